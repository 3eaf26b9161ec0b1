"""A guest's process: requests go out, answers or reasons come back, and its CPU time can be read.

A guest that dies or hangs costs its process and the engines in it for one problem, never the run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

from polyconv.benchmark.engines.ready import Task
from polyconv.conformance.guests.worker import receive, send
from polyconv.errors import Error

__all__ = ["GuestError", "Process"]

_CLOCK_OF_A_PROCESS = 2  # the CPU clock of a process, in the last three bits of its number (clock_getcpuclockid)

_QUIET_LOOKS = 3


class GuestError(Error):
    """A guest refused a request, died or took too long; the message says which."""


class Process:
    """One guest, started when it is first asked.

    Parameters
    ----------
    guest : str
        A file of ``benchmark.engines``.
    task : Task
        Threads, CPUs and accuracy of all its calls.
    variables : mapping
        Environment in addition to this process's.
    seconds : float
        Longest time of one request.
    """

    def __init__(self, guest: str, task: Task, variables: Mapping[str, str], seconds: float = 180.0) -> None:
        self.guest, self.version = guest, ""
        self._task, self._variables, self._seconds = task, dict(variables), seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None

    def start(self) -> None:
        """Start the process unless it runs; GuestError if the guest cannot be imported."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        code = f"from polyconv.benchmark.engines.worker import main; main({self.guest!r})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints,
            env={**os.environ, **self._variables},
        )  # fmt: skip
        self.version = self._exchange(self._task, "start")

    def call(self, function: str, *arguments: Any) -> Any:
        """Answer to a request.

        Raises
        ------
        GuestError
            With what the guest raised, or how its process ended.
        """
        if self._process is None or self._process.poll() is not None:
            raise GuestError(f"{self.guest} is not running")
        return self._exchange((function, arguments), function)

    def _exchange(self, message: Any, what: str) -> Any:
        process = self._process
        assert process is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(self._seconds, end)
        watch.daemon = True  # an interrupt must not leave the process waiting for it
        try:
            watch.start()
            send(cast(Any, process.stdin), message)
            succeeded, answer = receive(cast(Any, process.stdout))
        except (EOFError, OSError):
            code = process.wait()
            how = f"took longer than {self._seconds:g} s" if late.is_set() else f"died with exit status {code}"
            raise GuestError(f"{self.guest} {how} in {what}{self._last_words()}") from None
        finally:
            watch.cancel()
        if not succeeded:
            raise GuestError(str(answer))
        return answer

    def _last_words(self) -> str:
        assert self._complaints is not None
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def cpu_seconds(self) -> float:
        """CPU time of the whole process so far, all its threads; 0 where the system does not tell."""
        if self._process is None or not hasattr(time, "clock_gettime"):
            return 0.0
        with contextlib.suppress(OSError):
            return time.clock_gettime((~self._process.pid << 3) | _CLOCK_OF_A_PROCESS)
        return 0.0

    def _is_running(self) -> bool:
        """Whether any thread has or wants a CPU (proc(5): the state behind the name in brackets)."""
        assert self._process is not None
        for status in Path(f"/proc/{self._process.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError, IndexError):
                if status.read_text().rpartition(")")[2].split()[0] == "R":
                    return True
        return False

    def settle(self, seconds: float = 0.25) -> None:
        """Wait until its threads sleep, at most so long: after a call, pools spin for up to 100 ms."""
        if self._process is None or self._task.threads == 1:
            return
        end, quiet = time.perf_counter() + seconds, 0
        while quiet < _QUIET_LOOKS and time.perf_counter() < end:
            time.sleep(1e-3)
            quiet = 0 if self._is_running() else quiet + 1

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            self._process.wait()
            self._process = None
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None
