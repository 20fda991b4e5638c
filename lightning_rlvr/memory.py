"""Running out of memory as an answer instead of an end."""

from __future__ import annotations

from collections.abc import Callable

import torch

_REFUSED = ("DefaultCPUAllocator: can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""What a plain RuntimeError says where a library's own buffers find no room."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that an accelerator or the CPU has no memory left for a tensor.

    Example:
        >>> is_out_of_memory(torch.OutOfMemoryError()), is_out_of_memory(RuntimeError("shapes do not match"))
        (True, False)
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):  # the latter is std::bad_alloc of a CPU
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _REFUSED)


def fits(work: Callable[[], object]) -> bool:
    """Run ``work``; False if it ran out of memory, after what it held has been freed. Other errors pass.

    Example:
        >>> fits(lambda: torch.empty(2)), fits(lambda: torch.empty(2**60))
        (True, False)
    """
    try:
        work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    else:
        return True
    torch.cuda.empty_cache()  # only now: an error that is being handled holds frames, and these the tensors
    return False
