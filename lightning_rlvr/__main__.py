"""Entry point of `rlvr`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from lightning_rlvr import __version__

_COMMANDS = {
    "verify": "lightning_rlvr.verify_command",
    "sweep": "lightning_rlvr.sweep.command",
    "report": "lightning_rlvr.report.command",
}
"""Imported when asked for: torch and lightning take seconds, and these begin without them."""


def main(args: Sequence[str] | None = None) -> None:
    """Run ``rlvr`` with these arguments; by default those of the process. Ctrl-C ends it with exit status 130."""
    try:
        _run(args)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _run(args: Sequence[str] | None) -> None:
    arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
    if os.getcwd() not in sys.path:  # as `python -m` has it: a plug-in lies where the user works
        sys.path.insert(0, os.getcwd())
    if arguments == ["--version"]:
        print(f"lightning_rlvr {__version__}")  # noqa: T201  # the command's output
    elif arguments[0] in _COMMANDS:
        from lightning_rlvr.messages import one_sentence_errors

        command = import_module(_COMMANDS[arguments[0]])
        with one_sentence_errors():
            getattr(command, f"{arguments[0]}_command")(arguments[1:])
    else:
        from lightning_rlvr import cli

        cli.main(arguments)


if __name__ == "__main__":
    main()
