"""Reward functions with TRL's keyword signature, unchanged."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import pkgutil
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

from typing_extensions import override

from lightning_rlvr.verify.base import VERIFIERS, Attempt, Verdict, Verifier


@VERIFIERS.register("function")
class FunctionVerifier(Verifier):
    """The rewards that ``function(prompts=, completions=, completion_ids=, **columns)`` returns; correct above 0.

    Prompts and completions are lists of strings, token ids a list of lists, and every column of the data is a list too
    (None where a row lacks it). A function without ``**columns`` gets what it names; a coroutine is awaited. None or
    NaN in what it returns is a completion that it abstains from: it has no score, which is not a score of 0.

    Completions are never lists of chat messages, whatever the template: a function that reads
    ``completion[0]["content"]`` wants a wrapper that makes such lists. Nor is there a trainer to hand over: TRL's
    ``trainer_state``, ``log_extra`` and ``log_metric`` are not passed, so they must have defaults.

    Args:
        function: The function, or its import path such as `my_package.rewards.length`.

    Raises:
        ValueError: The path leads to nothing callable or its module raised, or Python cannot tell the arguments of the
            function; on verifying: it raised, or returned anything but one finite number or None for each completion.

    Example:
        >>> def short(completions, **columns):
        ...     return [1.0 if len(text) < 5 else None for text in completions]
        >>> attempts = [
        ...     Attempt(prompt="", completion=text, completion_ids=(), truncated=False, columns={})
        ...     for text in ("yes", "certainly")
        ... ]
        >>> [(verdict.status, verdict.reward) for verdict in FunctionVerifier(short).verify(attempts)]
        [('correct', 1.0), ('abstained', nan)]
    """

    def __init__(self, function: str | Callable[..., Any]) -> None:
        self.function = _resolve(function) if isinstance(function, str) else function
        if not callable(self.function):
            raise ValueError(f"`function` must be callable or an import path of a callable, got {function!r}")
        self.name = getattr(self.function, "__qualname__", repr(self.function))
        try:
            parameters = inspect.signature(self.function).parameters
        except ValueError as error:  # some callables of C have no signature
            raise ValueError(f"`function` must have named arguments, got {function!r} ({error})") from error
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._named = None if takes_all else frozenset(parameters)

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
        if self._named is not None:
            arguments = {name: values for name, values in arguments.items() if name in self._named}
        try:
            rewards = self.function(**arguments)
            if inspect.isawaitable(rewards):
                rewards = asyncio.run_coroutine_threadsafe(_awaited(rewards), _event_loop(os.getpid())).result()
        except Exception as error:
            raise ValueError(f"reward function {self.name} raised {type(error).__name__}: {error}") from error
        return [self._verdict(row, reward) for row, reward in enumerate(self._as_list(rewards, len(attempts)))]

    def _as_list(self, rewards: Any, expected: int) -> list[Any]:
        unordered = isinstance(rewards, (str, Mapping, AbstractSet))
        try:
            values = [] if unordered else list(rewards)
        except TypeError:  # no iterable, though a scalar array looks like one
            unordered = True
        if unordered:
            raise ValueError(
                f"reward function {self.name} must return a list of {expected} numbers, got {type(rewards).__name__}"
            )
        if len(values) != expected:
            raise ValueError(
                f"reward function {self.name} must return {expected} rewards, one for each completion, "
                f"got {len(values)}"
            )
        return values

    def _verdict(self, row: int, reward: Any) -> Verdict:
        try:
            value = math.nan if reward is None else float(reward)
            number = not isinstance(reward, (str, bytes)) and not math.isinf(value)
        except (TypeError, ValueError, OverflowError):
            number = False
        if not number:
            raise ValueError(
                f"reward function {self.name} must return finite numbers or None, got {reward!r} at position {row}"
            )
        if math.isnan(value):
            return Verdict(status="abstained", reward=math.nan, reason=f"{self.name} gave no score")
        return Verdict(status="correct" if value > 0 else "wrong", reward=value)


@cache
def _event_loop(process_id: int) -> asyncio.AbstractEventLoop:
    """One loop for the life of a process: the clients of asynchronous functions belong to the loop they met first."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name=f"rewards of {process_id}").start()
    return loop


async def _awaited(rewards: Awaitable[Any]) -> Any:
    return await rewards


def _resolve(path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except Exception as error:  # a module raises what it likes
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"`function` must be an import path of a callable, got {path!r} ({reason})") from error
