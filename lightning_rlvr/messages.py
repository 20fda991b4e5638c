"""What a user reads when a configuration does not parse: one sentence, with the choices where a name is unknown."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, NoReturn

from jsonargparse import ArgumentParser
from typing_extensions import override

from lightning_rlvr.registry import Registry


@contextmanager
def one_sentence_errors() -> Iterator[None]:
    """Inside, what a user can cause ends the process in one sentence; RLVR_DEBUG=1 shows the traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, FloatingPointError, MemoryError) as error:
        if os.environ.get("RLVR_DEBUG"):
            raise
        text = str(error).strip() or type(error).__name__
        sys.exit(f"rlvr: {text}\n(RLVR_DEBUG=1 shows where this was raised)")


class ExplainedErrors(ArgumentParser):
    """A parser that says what is wrong in a few lines, without the usage of two hundred settings."""

    short_flags: ClassVar[tuple[str, ...]] = ()
    """Names that stand for a setting's whole name; worth suggesting too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, allow_abbrev=False)  # a misspelt name is no abbreviation of another

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ValueError(explained(message, [*self.short_flags, *_settings(self)])) from ex


def _settings(parser: argparse.ArgumentParser) -> list[str]:
    """Dotted names of all settings, those of subcommands included."""
    names = [option.removeprefix("--") for action in parser._actions for option in action.option_strings]
    subparsers = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return names + [name for action in subparsers for sub in action.choices.values() for name in _settings(sub)]


_NOISE = re.compile(
    r"(- )?(Does not validate against any of the Union subtypes$|Subtypes: |Errors:$|Expected a path but "
    r"|Expected a <class '(NoneType|list|str)'>$)"
)
_UNKNOWN_SETTING = re.compile(
    r"unrecognized arguments: --([\w.]+)|[Kk]ey '([\w.]+)' is not expected|does not accept option '([\w.]+)'"
)
_UNKNOWN_CLASS = re.compile(
    r"Expected a dot import path string: (\S+)|Unexpected import path format: (\S+)"
    r"|Problem with given class_path '(\S+)'"
)


def explained(message: str, settings: Sequence[str] = ()) -> str:
    """A message of the argument parser as one sentence, with the choices where a name was not known.

    Args:
        message: What jsonargparse says, over many lines.
        settings: Dotted names of all settings, for suggestions.

    Example:
        >>> explained("unrecognized arguments: --model.los", ["model.loss"])
        'unknown setting `model.los`; did you mean model.loss?'
    """
    if "arguments are required" in message and "data.train" in message:
        message += "; begin with a configuration, as in `-c configs/experiment/tiny_mcpo.yaml`"
    lines = _informative(message)
    text = " ".join(lines) or message
    if unknown := _UNKNOWN_SETTING.search(text):
        name = next(filter(None, unknown.groups()))
        close = get_close_matches(name, settings, n=3) or get_close_matches(
            name.rpartition(".")[2], [setting.rpartition(".")[2] for setting in settings], n=3
        )
        return f"unknown setting `{name}`" + _did_you_mean(close)
    key, _, rest = text.rpartition('Parser key "')[2].partition('": ')
    if not rest:
        return text
    if option := re.search(r"Option '([\w.]+)' is not accepted", rest):
        known = {name: plugin.__name__ for plugin in _plugins() for name in inspect.signature(plugin).parameters}
        close = [option[1]] if option[1] in known else get_close_matches(option[1], known, n=2)
        return f"`{key}` has no setting `{option[1]}`" + _did_you_mean([f"{n} (of {known[n]})" for n in close])
    if unknown := _UNKNOWN_CLASS.search(rest):
        name = next(filter(None, unknown.groups()))
        return f"`{key}` {name!r} is no file and no known class" + _why_not(name) + _choices(key)
    rest = re.sub(r"Expected a typing\.Literal\[(.*)\]\. Got value: (.*)", r"must be one of \1, got \2", rest)
    rest = re.sub(r"Expected a <class '(\w+)'>\. Got value: (.*)", r"must be \1, got \2", rest)
    return f"`{key}` {rest}" if rest.startswith("must be ") else f"`{key}`: {rest}"


def _informative(message: str) -> list[str]:
    """Lines without those that only say which types were tried and what the whole value was."""
    kept, in_value = [], False
    for line in filter(None, map(str.strip, message.splitlines())):
        in_value = line.startswith("Given value") or (in_value and not line.startswith("- "))
        if not in_value and not _NOISE.match(line):
            kept.append(line.removeprefix("- "))
    return kept


def _known() -> tuple[Registry[Any], Registry[Any], list[type]]:
    """Calibrators, assigners and sources; imported late, for `rlvr verify` needs none of them and no torch."""
    from lightning_rlvr.calibration.base import CALIBRATORS
    from lightning_rlvr.credit.base import CREDIT_ASSIGNERS
    from lightning_rlvr.data.sources import ProblemSource

    return CALIBRATORS, CREDIT_ASSIGNERS, ProblemSource.__subclasses__()


def _plugins() -> list[type]:
    *registries, sources = _known()
    return [*(registry[name] for registry in registries for name in registry), *sources]


def _choices(key: str) -> str:
    calibrators, assigners, sources = _known()
    if key in ("data.train", "data.val", "data.test"):
        return f"; choices: {', '.join(source.__name__ for source in sources)}"
    if key in ("calibrator", "credit"):
        names = (calibrators if key == "calibrator" else assigners).names()
        return f"; choices: {', '.join(names)}; in files by class path"
    return ""


def _why_not(name: str) -> str:
    """What is wrong with a dotted path: the module, or the name in it."""
    module, _, attribute = name.rpartition(".")
    if not all(part.isidentifier() for part in name.split(".")) or not module:
        return ""
    try:
        found = vars(import_module(module))
    except ImportError as error:
        return f" ({error})"
    classes = [known for known, value in found.items() if inspect.isclass(value) and value.__module__ == module]
    return f" (module {module} has no {attribute}, but {', '.join(classes) or 'no class'})"


def _did_you_mean(close: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(dict.fromkeys(close))}?" if close else ""
