"""Reward functions with TRL's keyword signature, unchanged."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from typing_extensions import override

from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier


@VERIFIERS.register("function")
class FunctionVerifier(Verifier):
    """The rewards that ``function(prompts=, completions=, completion_ids=, **columns)`` returns; correct above 0.

    Prompts and completions are lists of strings, token ids a list of lists, and every column of the data is a list too
    (None where a row lacks it). None or NaN in the returned list is a completion that the function abstains from: it
    has no score, which is not a score of 0.

    Args:
        function: The function, or its import path such as `my_package.rewards.length`.

    Raises:
        ValueError: The path leads to nothing callable; on verifying: the function raised, or returned anything but one
            finite number or None for each completion.

    Example:
        >>> def short(completions, **columns):
        ...     return [1.0 if len(text) < 5 else None for text in completions]
        >>> attempts = [
        ...     Attempt(prompt="", completion=text, completion_ids=(), truncated=False, columns={})
        ...     for text in ("yes", "certainly")
        ... ]
        >>> [(verdict.status, verdict.reward) for verdict in FunctionVerifier(short).verify(attempts)]
        [('correct', 1.0), ('error', nan)]
    """

    def __init__(self, function: str | Callable[..., Any]) -> None:
        self.function = _resolve(function) if isinstance(function, str) else function
        if not callable(self.function):
            raise ValueError(f"`function` must be callable or an import path of a callable, got {function!r}")
        self.name = getattr(self.function, "__qualname__", repr(self.function))

    @override
    def verify(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        if not attempts:
            return []
        names = dict.fromkeys(name for attempt in attempts for name in attempt.columns)
        arguments: dict[str, Any] = {name: [attempt.columns.get(name) for attempt in attempts] for name in names}
        arguments |= {
            "prompts": [attempt.prompt for attempt in attempts],
            "completions": [attempt.completion for attempt in attempts],
            "completion_ids": [list(attempt.completion_ids) for attempt in attempts],
        }
        try:
            rewards = self.function(**arguments)
        except Exception as error:
            raise ValueError(f"reward function {self.name} raised {type(error).__name__}: {error}") from error
        return [self._verdict(row, reward) for row, reward in enumerate(self._as_list(rewards, len(attempts)))]

    def _as_list(self, rewards: Any, expected: int) -> list[Any]:
        if isinstance(rewards, (str, Mapping, AbstractSet)) or not isinstance(rewards, Iterable):
            raise ValueError(
                f"reward function {self.name} must return a list of {expected} numbers, got {type(rewards).__name__}"
            )
        values = list(rewards)
        if len(values) != expected:
            raise ValueError(
                f"reward function {self.name} must return {expected} rewards, one for each completion, "
                f"got {len(values)}"
            )
        return values

    def _verdict(self, row: int, reward: Any) -> Verdict:
        try:
            value = math.nan if reward is None else float(reward)
            number = not isinstance(reward, str) and not math.isinf(value)
        except (TypeError, ValueError):
            number = False
        if not number:
            raise ValueError(
                f"reward function {self.name} must return finite numbers or None, got {reward!r} at position {row}"
            )
        if math.isnan(value):
            return Verdict(status="error", reward=math.nan, reason="abstained")
        return Verdict(status="correct" if value > 0 else "wrong", reward=value)


def _resolve(path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"`function` must be an import path of a callable, got {path!r} ({error})") from error
