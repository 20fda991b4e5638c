"""Folders on disk: where built models are cached, and how one appears whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from lightning.pytorch.utilities import rank_zero_info


def cache_root() -> Path:
    """Where models that this package converts or builds are kept: ``$RLVR_CACHE``, else ``~/.cache/lightning_rlvr``.

    Example:
        >>> cache_root().is_absolute()
        True
    """
    return Path(os.environ.get("RLVR_CACHE") or "~/.cache/lightning_rlvr").expanduser().absolute()


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A new empty folder to fill; it takes the place of ``folder`` when the block ends without an error.

    Args:
        folder: What readers see: what was there before or all of the new files, never a part of them. An old folder
            is moved aside first, so for an instant there may be none.

    Example:
        >>> with tempfile.TemporaryDirectory() as root:
        ...     with whole_folder(Path(root, "model")) as new:
        ...         _ = (new / "weights").write_text("7")
        ...     sorted(path.name for path in Path(root).rglob("*"))
        ['model', 'weights']
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        new = Path(scratch, "new")
        new.mkdir()
        yield new
        if folder.exists():
            folder.replace(Path(scratch, "old"))
        new.replace(folder)


def cached_folder(folder: Path, build: Callable[[Path], None]) -> Path:
    """``folder``, filled by ``build`` if it does not exist yet; of several processes one builds, the others wait.

    Args:
        folder: Absolute path.
        build: Writes all files into the folder that it is given.

    Example:
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for text in "ab":
        ...         folder = cached_folder(Path(root, "f"), lambda new: print((new / "x").write_text(text)))
        ...     (folder / "x").read_text()
        1
        'a'
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                rank_zero_info(f"preparing {folder.name} in {folder.parent}, once; this can take a minute or two")
                with whole_folder(folder) as new:
                    build(new)
    return folder
