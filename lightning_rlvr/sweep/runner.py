"""One cell of a sweep as a job: the two commands in processes of their own, resumed, retried and accounted for."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from filelock import FileLock, Timeout

from lightning_rlvr.monitoring.files import PROGRESS_FILE, read_json, replace_text
from lightning_rlvr.sweep.spec import Cell

NOTHING: Mapping[str, str] = MappingProxyType({})
_SECONDS_TO_END = 20
"""After SIGTERM, before SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a cell ended."""

    cell: str
    status: Literal["finished", "failed", "busy"]
    """``busy``: another sweep is running it."""
    attempts: int = 0
    """0: it was finished before."""
    seconds: float = 0.0
    message: str = ""


class StoppedError(Exception):
    """The job was told to stop; it goes on when it is run again."""


Call = Callable[[Sequence[str], Path, Path, Mapping[str, str], threading.Event], int]
"""Runs ``rlvr`` with arguments, its output appended to a file, from a directory, with environment variables, until an
event tells it to stop; returns the exit status."""


def in_subprocess(
    args: Sequence[str], log: Path, cwd: Path, environment: Mapping[str, str], stop: threading.Event
) -> int:
    """A process of its own, which ends with this one whatever happens to this one (on Linux).

    Raises:
        StoppedError: ``stop`` was set; the process has been terminated.
    """
    quiet = {"TQDM_MININTERVAL": "10"}  # the progress bar goes into a file
    variables = {name: value for name, value in {**quiet, **os.environ, **environment}.items() if value != UNSET}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lightning_rlvr", *args],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=variables,
            start_new_session=True,  # Ctrl-C reaches this process, which then ends that one and its children
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    try:
        while True:
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if stop.is_set():
                    raise StoppedError from None
    finally:
        _end(process)


UNSET = "<unset>"
"""As the value of an environment variable of a job: it is removed."""


def in_process(
    args: Sequence[str], log: Path, cwd: Path, environment: Mapping[str, str], stop: threading.Event
) -> int:
    """This very process: no start-up time, and a debugger sees it."""
    from lightning_rlvr.__main__ import main

    with log.open("a", encoding="utf-8") as output, redirect_stdout(output), redirect_stderr(output), chdir(cwd):
        try:
            main(args)
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code)  # noqa: T201  # into the log
                return 1
            if end.code == 128 + signal.SIGINT:
                raise KeyboardInterrupt from end
            return int(end.code or 0)
        except Exception:  # a plug-in may raise anything; a process of its own would end with status 1
            traceback.print_exc()
            return 1
    return 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell and where it runs; may be pickled and sent to another machine that shares the file system."""

    cell: Cell
    folder: Path
    """Of the sweep, absolute."""
    cwd: Path
    """Directory from which paths in the commands are meant."""
    retries: int = 1

    @property
    def path(self) -> Path:
        """Folder of the cell."""
        return self.folder / self.cell.folder

    @property
    def finished(self) -> bool:
        """Nothing is left to do: these very commands have been run."""
        kept, flags = self._record(), self.cell.test_flags
        return kept.get("status") == "finished" and kept.get("tested") == (flags if flags is None else list(flags))

    @property
    def seconds(self) -> float:
        """Spent on it so far."""
        seconds = self._record().get("seconds")
        return float(seconds) if isinstance(seconds, (int, float)) else 0.0

    def _record(self) -> dict[str, Any]:
        """What was kept of earlier attempts; nothing of what a crash of the machine damaged."""
        try:
            return read_json(self.path / "cell.json")
        except ValueError:
            return {}

    def run(
        self,
        environment: Mapping[str, str] = NOTHING,
        stop: threading.Event | None = None,
        call: Call = in_subprocess,
    ) -> Outcome:
        """Train and test, or what is left of it; may be called again at any time, from anywhere.

        Args:
            environment: Variables for the commands; ``UNSET`` removes one.
            stop: Once set, the job ends as soon as it can.
            call: How a command is run.

        Raises:
            StoppedError: ``stop`` was set.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path / ".lock").acquire(blocking=False):
                return self._run(environment, stop or threading.Event(), call)
        except Timeout:
            return Outcome(cell=self.cell.folder, status="busy", message="another sweep is running it")
        except StoppedError:
            raise
        except Exception as error:  # a full disk, a damaged file: it is this cell's alone
            message = f"{type(error).__name__}: {error}"
            return Outcome(cell=self.cell.folder, status="failed", attempts=1, message=message)

    def _run(self, environment: Mapping[str, str], stop: threading.Event, call: Call) -> Outcome:
        started, spent, attempts, message = time.monotonic(), 0.0, 0, ""

        def outcome(status: Literal["running", "stopped", "finished", "failed"]) -> Outcome:
            seconds = spent + time.monotonic() - started
            content = {"status": status, "attempts": attempts, "seconds": round(seconds, 1), "message": message}
            replace_text(
                self.path / "cell.json", json.dumps(content | {"tested": self.cell.test_flags}, indent=2) + "\n"
            )
            ended: Literal["finished", "failed"] = "finished" if status == "finished" else "failed"
            return Outcome(cell=self.cell.folder, status=ended, attempts=attempts, seconds=seconds, message=message)

        def command(args: Sequence[str]) -> int:
            with (self.path / "log.txt").open("a", encoding="utf-8") as log:
                log.write(f"\n$ rlvr {shlex.join(args)}\n")
            return call(args, self.path / "log.txt", self.cwd, environment, stop)

        try:
            spent = self.seconds
            if self.finished:
                return Outcome(cell=self.cell.folder, status="finished", seconds=spent)
            for attempts in range(1, self.retries + 2):  # noqa: B007  # `outcome` reads it
                outcome("running")
                message = self._attempt(command)
                if not message:
                    return outcome("finished")
            return outcome("failed")
        except (StoppedError, KeyboardInterrupt, SystemExit):
            outcome("stopped")
            raise

    def _attempt(self, command: Callable[[Sequence[str]], int]) -> str:
        """Do what is left; the reason of a failure, or nothing."""
        run = newest_run(self.path)
        if run is None or not trained(run):
            checkpoint = None if run is None else run / "checkpoints" / "last.ckpt"
            resumed = [] if checkpoint is None or not checkpoint.exists() else ["--ckpt_path", self._seen(checkpoint)]
            if status := command([*self.cell.fit, *resumed]):
                return f"`rlvr fit` ended with {_reason(status, self.path / 'log.txt')}"
            run = newest_run(self.path)
            if run is None or not trained(run):
                return (
                    "`rlvr fit` was stopped before its last step, by a callback or a limit such as `trainer.max_time`"
                )
        if self.cell.test is not None:
            last = run / "checkpoints" / "last.ckpt"
            if status := command([*self.cell.test, "--ckpt_path", self._seen(last)]):
                return f"`rlvr test` ended with {_reason(status, self.path / 'log.txt')}"
        return ""

    def _seen(self, path: Path) -> str:
        return str(path.relative_to(self.cwd) if path.is_relative_to(self.cwd) else path)


def newest_run(cell: Path) -> Path | None:
    """The run folder of a cell that has come furthest: with a checkpoint before without, then the newest."""
    runs = [path for path in cell.glob("version_*") if path.name.removeprefix("version_").isdecimal()]

    def rank(run: Path) -> tuple[bool, int]:
        return (run / "checkpoints" / "last.ckpt").exists(), int(run.name.removeprefix("version_"))

    return max(runs, key=rank, default=None)


def trained(run: Path) -> bool:
    """The run has trained to its end; if it was killed right then, its ``progress.json`` says so afterwards."""
    try:
        progress = read_json(run / PROGRESS_FILE)
    except ValueError:  # damaged when the machine stopped
        progress = {}
    if progress.get("finished"):
        return True
    checkpoint = run / "checkpoints" / "last.ckpt"
    if not checkpoint.exists():
        return False
    import torch  # only where a run was killed

    try:
        saved = torch.load(checkpoint, weights_only=True, map_location="cpu", mmap=True)
        step, last = int(saved["global_step"]), int(saved["max_steps"])
    except Exception:  # whatever the bytes lead to: `rlvr fit` then says what is wrong with it
        return False
    if not 0 < last <= step:
        return False
    repaired = progress | {"step": step, "max_steps": last, "finished": True}
    replace_text(run / PROGRESS_FILE, json.dumps(repaired, indent=2) + "\n")
    return True


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Runs between fork and exec, where nothing may be imported or loaded."""
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process if it still runs, then kill what it left in its session."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_SECONDS_TO_END)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(status: int, log: Path) -> str:
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"{how}: {_last_words(log)}"


def _last_words(log: Path) -> str:
    """The error that a command ended with: its one sentence, or the last line that it wrote."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 20_000))
        lines = [line.strip() for line in stream.read().decode(errors="replace").replace("\r", "\n").splitlines()]
    return next(_said(lines), "it said nothing")


def _said(lines: Sequence[str]) -> Iterator[str]:
    start = max((number for number, line in enumerate(lines) if line.startswith("$ rlvr ")), default=-1)
    of_command = [line for line in lines[start + 1 :] if line]
    yield from (line.removeprefix("rlvr: ") for line in reversed(of_command) if line.startswith("rlvr: "))
    yield from reversed(of_command)
