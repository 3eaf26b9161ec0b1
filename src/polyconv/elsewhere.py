"""Functions that run in a helper process: the memory that they need is no longer taken when it has ended.

Who loads LLVM has 75 to 90 MB less for good; a helper ends once it has had nothing to do for a second.  The one idea:
where there can be no helper the function runs here, with the same result.  It must not know what it computes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import platform
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import subprocess

__all__ = ["elsewhere", "main", "run_here"]

T = TypeVar("T")

_IDLE_SECONDS = 1.0
_MOST = 8
"""Helpers at a time, each of which takes 85 MB while it lives."""
_START = "import sys; sys.path[:] = sys.argv[1:]; from polyconv.elsewhere import main; main()"

_idle: list[subprocess.Popen[bytes]] = []
_of_parent: list[subprocess.Popen[bytes]] = []
"""Helpers that a fork has left to the other process."""
_places = threading.BoundedSemaphore(_MOST)
_is_possible = [
    sys.platform == "linux" and platform.machine() == "x86_64"  # elsewhere LLVM is needed to link as well
    and Path(sys.executable or "").name.startswith("python")  # and no program that embeds it
]  # fmt: skip


def _after_fork() -> None:
    global _places
    _of_parent.extend(_idle)
    _idle.clear()
    _places = threading.BoundedSemaphore(_MOST)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def elsewhere(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function in another process, or here where LLVM is loaded already or there is no other process.

    Parameters
    ----------
    function : callable
        Of a module of this package; it changes nothing but what it returns.
    arguments
        Data that can be pickled, like its result.

    Raises
    ------
    RuntimeError
        If the helper died over it.
    """
    if not _is_possible[0] or "llvmlite.binding" in sys.modules:
        return function(*arguments)
    with _places:
        helper = _idle_helper() or _started()
        if helper is None:
            return function(*arguments)
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            pickle.dump((function, arguments), helper.stdin)
            helper.stdin.flush()
            is_result, answer = pickle.load(helper.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            how = _ended(helper)
            raise RuntimeError(f"a helper process of polyconv ended by {how} in {function.__name__}") from None
        except BaseException:  # an interrupt: what it answers must not be taken for the next answer
            _ended(helper)
            raise
        _idle.append(helper)
    if is_result:
        return answer  # type: ignore[no-any-return]
    raise answer


def run_here() -> None:
    """Start no helper from now on."""
    _is_possible[0] = False


def _idle_helper() -> subprocess.Popen[bytes] | None:
    """A helper that has waited less than a second, if there is one."""
    while True:
        try:
            helper = _idle.pop()
        except IndexError:
            return None
        if _is_there(helper):
            return helper
        _ended(helper)


def _is_there(helper: subprocess.Popen[bytes]) -> bool:
    """Whether a helper answers, and thereby waits for a request however long that takes."""
    assert helper.stdin is not None
    assert helper.stdout is not None
    with contextlib.suppress(OSError):
        helper.stdin.write(b"?")
        helper.stdin.flush()
        return bool(helper.stdout.read(1))
    return False


def _started() -> subprocess.Popen[bytes] | None:
    """A new helper that is ready; None if there can be none, now and later."""
    path = [str(Path(__file__).parents[1]), *sys.path]
    try:
        import subprocess  # here and below: most processes find all kernels in the cache, and it takes 3 ms

        helper = subprocess.Popen([sys.executable, "-I", "-S", "-c", _START, *path], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        threading.Thread(target=helper.wait, name="polyconv helper", daemon=True).start()  # leaves no zombie
        if _is_there(helper):
            return helper
        _ended(helper)
    except (ImportError, OSError, RuntimeError, ValueError):  # no process, no thread, a path with a zero byte
        pass
    _is_possible[0] = False
    return None


def _ended(helper: subprocess.Popen[bytes]) -> str:
    """How a helper ended; one that has not is killed."""
    import subprocess

    for pipe in (helper.stdin, helper.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
    try:
        code = helper.wait(0.1)
    except subprocess.TimeoutExpired:
        helper.kill()
        code = helper.wait()
    return f"signal {-code}" if code < 0 else f"exit code {code}"


@atexit.register
def _end_all() -> None:
    while _idle:
        _ended(_idle.pop())


def main() -> None:
    """Answer requests until none comes for a second, or the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    requests, answers = os.fdopen(0, "rb", closefd=False), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while select.select([0], [], [], _IDLE_SECONDS)[0] and requests.read(1):
        answers.write(b"!")
        answers.flush()
        try:
            function, arguments = pickle.load(requests)
            answer = True, function(*arguments)
        except EOFError:
            break
        except Exception as error:
            answer = False, error
        answers.write(pickle.dumps(answer))
        answers.flush()
    os._exit(0)
