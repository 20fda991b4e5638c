import functools
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pool_functions as do
import pytest

from lightning_rlvr.verify import pool
from lightning_rlvr.verify.pool import Failure, run

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


def members(session):
    """pid -> clock ticks used, of the living processes of a session."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, sid, *rest = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(sid) == session and state not in "ZX":
            found[int(stat.parent.name)] = int(rest[7]) + int(rest[8])
    return found


def vanish(session, within):
    end = time.monotonic() + within
    while members(session):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def sweep(session):
    for pid in members(session):
        os.kill(pid, signal.SIGKILL)


def current_session():
    return run(do.session, [None], time_limit=5)[0]


def statuses(results):
    return [result.status if isinstance(result, Failure) else "ok" for result in results]


def script(folder, text, closed=()):
    """A running script that is no test module: without main guard, and with its own ``__main__``."""
    path = folder / "script.py"
    path.write_text(
        f"import os, pool_functions as do\nfrom lightning_rlvr.verify.pool import run\n"
        f"say = lambda value: print(value, flush=True)\n{text}\n"
    )
    paths = os.pathsep.join([str(Path(do.__file__).parent), *sys.path])
    streams = " ".join(f"{descriptor}>&-" for descriptor in closed)
    return subprocess.Popen(
        ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )


def output(process):
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    return out.splitlines(), err


def test_results_keep_the_order_of_the_items():
    assert run(do.double, range(300), time_limit=5) == [2 * i for i in range(300)]
    assert run(do.double, (), time_limit=5) == []


def test_calls_that_hang_cost_the_others_nothing(capfd):
    started = time.monotonic()
    results = run(do.obey, ["sleep", "stuck", 1, "loop", *range(40), "stuck"], time_limit=0.5)
    assert time.monotonic() - started < 0.5 + 2
    assert [r for r in results if not isinstance(r, Failure)] == [1, *range(40)]
    assert [results[i] for i in (0, 1, 3, -1)] == [Failure(status="timeout", reason="no result within 0.5 s")] * 4
    assert capfd.readouterr() == ("", "")


@needs_proc
def test_more_hanging_calls_than_workers_are_replaced_and_leave_no_process_busy():
    results = run(do.obey, ["loop"] * 15 + [*range(20)], time_limit=0.3)
    assert statuses(results) == ["timeout"] * 15 + ["ok"] * 20
    before = members(current_session())
    time.sleep(0.3)
    after = members(current_session())
    assert len(after) > 8
    assert sum(after.values()) - sum(before.get(pid, 0) for pid in after) < 10, "ticks of 10 ms"


def test_time_limit_counts_from_the_start_of_a_call():
    assert statuses(run(do.nap, [0.2] * 50, time_limit=0.5)) == ["ok"] * 50


def test_whatever_a_call_raises_is_its_own_failure_and_the_worker_lives_on():
    errors = [ZeroDivisionError("by\nzero"), SystemExit(0), KeyboardInterrupt(), do.Alarm("late"), GeneratorExit()]
    run(do.nap, [0.1] * 50, time_limit=5)
    workers = set(run(do.nap, [0.1] * 50, time_limit=5))
    results = run(do.obey, [*errors, do.UnprintableError(), "recurse", 8], time_limit=5)
    assert statuses(results) == ["error"] * 7 + ["ok"]
    assert [result.reason for result in results[:4]] == [
        "ZeroDivisionError: by zero",
        "SystemExit: 0",
        "KeyboardInterrupt",
        "pool_functions.Alarm: late",
    ]
    assert results[6].reason.startswith("RecursionError")
    assert set(run(do.nap, [0.1] * 50, time_limit=5)) <= workers


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("kill", "worker died (SIGKILL, out of memory?)"),
        ("crash", "worker died (SIGSEGV)"),
        ("exit", "worker died (exit code 3)"),
        pytest.param("memory", "MemoryError", marks=needs_proc),
    ],
)
def test_call_that_takes_its_worker_along_fails_alone(order, reason):
    results = run(do.obey, [0, order, 2, 3, order], time_limit=5)
    assert [results[i] for i in (0, 2, 3)] == [0, 2, 3]
    assert results[1] == results[4] == Failure(status="error", reason=reason)
    assert run(do.obey, [4], time_limit=5) == [4]


def test_threads_share_the_server():
    def batch(i):
        return run(do.obey, [i, "sleep", ValueError(i)], time_limit=0.3)

    with ThreadPoolExecutor(4) as threads:
        for i, results in enumerate(threads.map(batch, range(4))):
            assert results[0] == i
            assert statuses(results) == ["ok", "timeout", "error"]


def test_server_that_dies_is_replaced(tmp_path):
    os.kill(current_session(), signal.SIGKILL)
    assert run(do.double, [1], time_limit=5) == [2]
    started = time.monotonic()
    assert run(do.kill_server, [tmp_path / "flag"] * 3, time_limit=30) == ["survived"] * 3
    results = run(do.kill_server, [None] * 3, time_limit=30)
    assert results == [Failure(status="error", reason="the server of the workers died twice")] * 3
    assert run(do.double, [1], time_limit=5) == [2]
    assert time.monotonic() - started < 10, "death is noticed at once, not by a time limit"


def test_idle_worker_that_dies_is_not_missed():
    os.kill(run(do.nap, [0], time_limit=5)[0], signal.SIGKILL)
    time.sleep(0.3)
    assert run(do.double, range(40), time_limit=5) == [2 * i for i in range(40)]


@needs_proc
def test_interrupted_batch_leaves_neither_processes_nor_stale_answers():
    session = current_session()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(do.obey, ["sleep"], time_limit=30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert run(do.double, [21], time_limit=5) == [42]
    assert vanish(session, within=1)


def test_fork_has_a_server_of_its_own():
    session = current_session()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, pickle.dumps((current_session(), run(do.obey, [1, "loop"], time_limit=0.3))))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        theirs, results = pickle.load(answer)
    os.waitpid(child, 0)
    assert statuses(results) == ["ok", "timeout"]
    assert theirs != session == current_session()


def test_fork_while_another_thread_waits_for_a_batch():
    thread = threading.Thread(target=run, args=(do.nap, [0.5]), kwargs={"time_limit": 5})
    thread.start()
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        try:
            os._exit(run(do.double, [21], time_limit=5)[0])
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    thread.join()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_works_in_a_child_of_multiprocessing(method):
    with multiprocessing.get_context(method).Pool(1) as children:
        results = children.apply(functools.partial(run, do.obey, [1, "stuck"], time_limit=0.3))
    assert statuses(results) == ["ok", "timeout"]


def test_script_without_main_guard_verifies_at_exit_too(tmp_path):
    process = script(
        tmp_path,
        "import atexit\n"
        "atexit.register(lambda: say(run(do.double, [3], time_limit=5)))\n"
        "say(run(do.double, [1], time_limit=5))\n"
        "atexit.register(lambda: say(run(do.double, [2], time_limit=5)))\n",
    )
    assert output(process) == (["[2]", "[4]", "[6]"], "")


@needs_proc
@pytest.mark.parametrize("last", ["input()", "run(do.obey, ['stuck', 'loop', 'sleep'], time_limit=30)", "1 / 0"])
def test_no_process_outlives_the_caller(tmp_path, last):
    with script(tmp_path, f"say(run(do.session, [0], time_limit=5)[0])\n{last}") as process:
        session = int(process.stdout.readline())
        assert len(members(session)) > 8
        time.sleep(0.3)
        process.kill()
        gone = vanish(session, within=1.5)
        sweep(session)
    assert gone


@needs_proc
@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_a_caller_without_standard_streams_gets_results_and_leaves_no_process(tmp_path, closed):
    process = script(
        tmp_path,
        "from lightning_rlvr.verify import pool\n"
        "shouted = run(do.shout, ['hello'], time_limit=5)\n"
        f"with open({str(tmp_path / 'found')!r}, 'w') as found:\n"
        "    print(pool._server.process.pid, shouted, file=found)\n",
        closed,
    )
    process.communicate(timeout=20)
    session, shouted = (tmp_path / "found").read_text().split(maxsplit=1)
    gone = vanish(int(session), within=1)
    sweep(int(session))
    assert gone
    assert shouted == "['hello']\n"


@pytest.mark.parametrize("limit", [6, 20])  # too low for the channel to the server; for the workers
def test_too_low_a_limit_on_open_files_is_named(tmp_path, limit):
    process = script(
        tmp_path,
        f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "try:\n    run(do.double, [1], time_limit=5)\n"
        "except ValueError as error:\n    say(error)\n",
    )
    [message], _ = output(process)
    assert message.startswith("the worker processes of the verifier cannot be started (OSError: ")
    assert "Too many open files" in message


@needs_proc
def test_no_worker_outlives_the_server(tmp_path):
    hang = "run(do.obey, ['stuck'], time_limit=0.6)"
    with script(tmp_path, f"say(run(do.session, [0], time_limit=5)[0])\n{hang}") as process:
        session = int(process.stdout.readline())
        time.sleep(0.3)
        process.send_signal(signal.SIGSTOP)  # or it would sweep up itself
        os.kill(session, signal.SIGKILL)
        gone = vanish(session, within=0.6 + 1 + 0.5)
        sweep(session)
        process.kill()
    assert gone


def test_bad_requests_are_refused():
    def local():
        pass

    for limit in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="`time_limit` must be a positive number of seconds, got"):
            run(do.double, [1], time_limit=limit)
    with pytest.raises(ValueError, match=r"`function` and `items` must pickle .*local"):
        run(local, [1], time_limit=1)
    with pytest.raises(ValueError, match=r"`function` and `items` must pickle .*lock"):
        run(do.double, [threading.Lock()], time_limit=1)
    with pytest.raises(ValueError, match=r"results of `function` must pickle .*Local"):
        run(do.local_class, [1, 2], time_limit=1)
    assert run(do.double, [1], time_limit=5) == [2]


def test_function_must_be_importable_in_a_new_process(tmp_path, monkeypatch):
    module = type(sys)("only_here")
    exec("def here(x): return x", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(ValueError, match=r"`function` must be importable in a new process .*only_here"):
        run(module.here, [1], time_limit=1)
    monkeypatch.setattr(module.here, "__module__", "__main__")
    with pytest.raises(ValueError, match="`function` must be defined in a module other than `__main__`"):
        run(module.here, [1], time_limit=1)


def test_modules_are_found_where_the_caller_finds_them(tmp_path, monkeypatch):
    run(do.double, [1], time_limit=5)
    (tmp_path / "found_late.py").write_text("def triple(x):\n    return 3 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import found_late

    assert run(found_late.triple, [1, 2], time_limit=5) == [3, 6]


def test_server_finds_this_package_where_the_caller_does(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(pool.__file__, tmp_path / "elsewhere" / "copied_pool.py")
    monkeypatch.syspath_prepend(tmp_path)
    from elsewhere import copied_pool

    assert copied_pool.run(do.double, [1], time_limit=5) == [2]


@needs_proc
def test_server_is_warm_lean_and_lazy(tmp_path):
    process = script(
        tmp_path,
        "from lightning_rlvr.verify import pool\n"
        "say(pool._server)\n"
        "say(run(do.imported, [['torch', 'numpy', 'pool_functions']], time_limit=5))\n"
        "worker, server, warmed = run(do.processes, [None], time_limit=5)[0]\n"
        "say(warmed == [server] and server != os.getpid())\n",
    )
    assert output(process)[0] == ["None", "[['pool_functions']]", "True"]


def test_prints_of_a_library_go_to_standard_error(tmp_path):
    out, err = output(script(tmp_path, "say(run(do.shout, ['hello'], time_limit=5))"))
    assert out == ["['hello']"]
    assert "and to the file descriptor" in err


def test_integers_of_any_length_are_read():
    assert run(do.digits, ["9" * 5000], time_limit=5) == [5001]


@pytest.mark.parametrize(("cores", "workers"), [(2, 10), (16, 24), (128, 24)])
def test_workers_grow_with_the_cores_up_to_a_cap(cores, workers, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(pool, "ProcessPool", lambda count, **settings: count)
    assert pool._new_pool(None) == workers
