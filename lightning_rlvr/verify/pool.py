"""Calls in worker processes that are killed and replaced, for checkers that may hang, crash or eat the memory.

The first `run` of a process starts a server: a small interpreter in a session of its own, which imports the module of
the function (never the caller's `__main__`, nor torch) and forks the workers from that warm image. A batch is one
message there and one back over a socket, so that any thread can call, at any time, at interpreter exit too. When the
socket closes, because the caller exits, is killed or loses patience, the server kills its whole process group.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from pebble import ProcessExpired, ProcessPool

from lightning_rlvr.checks import require

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_CORES = 16
"""Cores that are used at most: every process of a run, one for each GPU of a node, has a server of its own."""
_SPARE_WORKERS = 8
"""Workers beyond one for each core: so many calls may hang without holding up the others."""
_MEMORY = 4 << 30
"""Bytes of address space that a call may add; huge integers then end in a MemoryError."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a call has no result."""

    status: Literal["timeout", "error"]
    reason: str
    """One line for people."""


def run(function: Callable[[Item], Result], items: Sequence[Item], *, time_limit: float) -> list[Result | Failure]:
    """``function(item)`` for each item, in order, in processes that are killed when a call takes too long.

    What a call raises, of any base class, is a `Failure` of that item alone, and so is a worker that dies. If the
    whole server dies, the batch is repeated once. Workers start with all that the module of ``function`` imports;
    imports that it leaves for later belong in a function ``warm_up()`` of that module, which is called before.

    Args:
        function: Found in a module by its name, not in ``__main__``.
        items: What it is called with; they and the results are pickled.
        time_limit: Seconds for each call, counted from when a worker starts on it.

    Raises:
        ValueError: ``time_limit`` is not positive and finite, ``function`` cannot be imported by the server, items or
            results do not pickle, or no process can be started (a limit on open files or on processes).

    Example:
        >>> from math import sqrt
        >>> run(sqrt, [4, -1], time_limit=5)
        [2.0, Failure(status='error', reason='ValueError: math domain error')]
    """
    require(0 < time_limit < math.inf, "time_limit", "a positive number of seconds", time_limit)
    importable = getattr(function, "__module__", None) != "__main__"
    require(importable, "function", "defined in a module other than `__main__`", function)
    try:
        call = pickle.dumps(function), [pickle.dumps(item) for item in items]
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"`function` and `items` must pickle ({_line(error)})") from error
    reply = _ask(pickle.dumps((_path(), *call, time_limit))) if items else []
    if isinstance(reply, str):
        raise ValueError(reply)
    if reply is None:
        return [Failure(status="error", reason="the server of the workers died twice")] * len(items)
    return [outcome if isinstance(outcome, Failure) else pickle.loads(outcome) for outcome in reply]


class _Server:
    def __init__(self) -> None:
        self.connection, theirs = _channel()
        stderr = _standard_error()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=stderr,  # what libraries print has no place in the caller's output
                stderr=stderr,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(_path())},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def kill(self) -> None:
        self.connection.close()
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _channel() -> tuple[Connection, Connection]:
    """Two connected ends, neither in the place of a standard stream that the caller has closed."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        copies = [Connection(fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)) for end in (ours, theirs)]
    return copies[0], copies[1]


def _standard_error() -> int:
    """That of the caller; where it started without one, or closed it, the descriptor may be any file of its own."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return subprocess.DEVNULL if sys.__stderr__ is None else 2


_server: _Server | None = None
_lock = threading.Lock()


def _forget() -> None:
    """A forked process leaves the server, and a lock that another thread may hold, to its parent."""
    global _server, _lock
    _server, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _ask(request: bytes) -> Any:
    """Outcomes in order, or why the request is refused (a string), or None if two servers died of it."""
    global _server
    with _lock:
        for _ in range(2):
            try:
                server = _server = _server or _Server()
            except OSError as error:
                raise ValueError(_not_started(error)) from error
            try:
                server.connection.send_bytes(request)
                return server.connection.recv()
            except BaseException as error:  # the answer may still be on the way: nobody must take it for another's
                _server = None
                server.kill()
                if not isinstance(error, (EOFError, OSError)):
                    raise
    return None


def _path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


def _serve(parent: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.set_int_max_str_digits(0)  # the time limit is the guard
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(parent, requests), daemon=True).start()
    pool, warm = _new_pool(parent), set()
    try:
        while True:
            sys.path[:], pickled, items, time_limit = pickle.loads(requests.get())
            try:
                function = pickle.loads(pickled)
                module = getattr(function, "__module__", None) or "builtins"
                if cold := module not in warm:
                    getattr(sys.modules[module], "warm_up", lambda: None)()
            except BaseException as error:
                parent.send(f"`function` must be importable in a new process ({_line(error)})")
                continue
            if cold:
                pool.stop()
                pool.join()
                pool = _new_pool(parent)
                warm.add(module)
            try:
                calls = [pool.schedule(_call, (function, item, time_limit), timeout=time_limit) for item in items]
            except (OSError, BrokenProcessPool) as error:
                parent.send(_not_started(error.__cause__ or error))
                return
            outcomes = [_outcome(call, time_limit) for call in calls]
            parent.send(next((outcome for outcome in outcomes if isinstance(outcome, str)), outcomes))
    finally:
        os.killpg(0, signal.SIGKILL)


def _listen(parent: Connection, requests: SimpleQueue[bytes]) -> None:
    try:
        while True:
            requests.put(parent.recv_bytes())
    finally:
        os.killpg(0, signal.SIGKILL)


def _new_pool(parent: Connection) -> Any:
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    workers = min(cores, _MAX_CORES) + _SPARE_WORKERS
    fork = multiprocessing.get_context("fork")
    return ProcessPool(workers, initializer=_prepare, initargs=(parent,), context=fork)


def _prepare(parent: Connection) -> None:
    """In a new worker: leave the caller to the server, let pebble's SIGTERM kill at once, limit the memory."""
    parent.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        import resource

        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + _MEMORY
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _call(function: Callable[[Any], Any], item: bytes, time_limit: float) -> bytes | Failure | str:
    """In a worker: the pickled result, why there is none, or why the batch is refused."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, time_limit + 1)  # the end of a call that hangs, should the server be gone
    try:
        result = function(pickle.loads(item))
        try:
            return pickle.dumps(result)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return f"results of `function` must pickle ({_line(error)})"
    except BaseException as error:
        return Failure(status="error", reason=_line(error))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _outcome(call: Future[bytes | Failure | str], time_limit: float) -> bytes | Failure | str:
    try:
        return call.result(2 * time_limit + 30)
    except ProcessExpired as end:
        if end.exitcode != -signal.SIGALRM:
            cause = f"exit code {end.exitcode}" if end.exitcode > 0 else signal.Signals(-end.exitcode).name
            cause += ", out of memory?" if end.exitcode == -signal.SIGKILL else ""
            return Failure(status="error", reason=f"worker died ({cause})")
    except TimeoutError:
        if not call.done():
            raise  # a worker died in pebble's lock: only a new server helps
    return Failure(status="timeout", reason=f"no result within {time_limit:g} s")


def _not_started(error: BaseException) -> str:
    return f"the worker processes of the verifier cannot be started ({_line(error)})"


def _line(error: BaseException) -> str:
    return " ".join("".join(traceback.format_exception_only(error)).split())[:300]


if __name__ == "__main__":
    from lightning_rlvr.verify import pool  # under its own name, by which its objects are pickled

    pool._serve(Connection(int(sys.argv[1])))
