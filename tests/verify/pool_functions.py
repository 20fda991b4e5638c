"""What worker processes are asked to do; they import it by name."""

import itertools
import os
import signal
import sys
import time

WARMED_IN = []


def warm_up():
    WARMED_IN.append(os.getpid())


def double(x):
    return 2 * x


def digits(text):
    return len(str(int(text) + 1))


def session(_=None):
    return os.getsid(0)


def processes(_):
    return os.getpid(), os.getppid(), WARMED_IN


def imported(names):
    return [name for name in names if name in sys.modules]


def shout(text):
    sys.stdout.write(text)
    os.write(1, b"and to the file descriptor\n")
    return text


def nap(seconds):
    time.sleep(seconds)
    return os.getpid()


def obey(order):
    """Answers what it is told to, unless it is told to hang, to die, or to raise."""
    match order:
        case "sleep":
            time.sleep(60)
        case "loop":
            while True:
                pass
        case "stuck":
            return max(itertools.repeat(1))  # never lets go of the interpreter lock, nor looks for signals
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "memory":
            return len(bytes(6 << 30))
        case "recurse":
            return obey(order)
        case BaseException():
            raise order
    return order


def kill_server(flag):
    """Kills the server, once if ``flag`` names a file that can be made."""
    if flag is None or not os.path.exists(flag):
        if flag is not None:
            open(flag, "x").close()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return "survived"


def local_class(_):
    class Local:
        pass

    return Local()


class Alarm(BaseException):
    """As third-party time limits do, it does not derive from Exception."""


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError
