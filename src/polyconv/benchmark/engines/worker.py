"""The process that hosts one guest of a comparison: problems in, prepared calls kept, times out.

All engines of the guest live here side by side and run when they are asked, never on their own.  It must
not know what the parent makes of the times.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.benchmark.burn import pin
from polyconv.benchmark.engines.ready import Ready, Task
from polyconv.conformance.guests.worker import receive, send
from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

__all__ = ["Worker", "main"]


class Worker:
    """Answers the parent: every public method is a request."""

    def __init__(self, guest: str, task: Task) -> None:
        if task.cpus:
            pin(task.cpus)
        self._guest = importlib.import_module(f"polyconv.benchmark.engines.{guest}")
        self._task = task
        self._guest.start(task)
        self._given: tuple[Problem, Operands] | None = None
        self._ready: dict[str, Ready] = {}

    def version(self) -> str:
        """Version of the guest."""
        return str(self._guest.version())

    def load(self, p: Problem, made: Operands) -> None:
        """Take a problem and its operands, channels first; forget the ones before."""
        self._ready.clear()
        gc.collect()
        self._given = p, made

    def prepare(self, engine: str) -> dict[str, Any]:
        """Make the problem ready and run it once: the seconds of both, and the engine's facts."""
        assert self._given is not None
        begin = time.perf_counter()
        made = self._guest.ready(engine, *self._given, self._task)
        prepared = time.perf_counter()
        made.run()
        first = time.perf_counter()
        self._ready[engine] = made
        return {"prepare_seconds": prepared - begin, "first_seconds": first - prepared, **made.facts()}

    def open(self, engine: str, path: str, feeds: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Open a model's file and run it once: seconds of both, and bytes by which the process grew."""
        self._ready.clear()
        prepare = self._guest.network
        before, begin = _resident("VmRSS"), time.perf_counter()
        made = prepare(path, feeds, self._task)
        opened = time.perf_counter()
        loaded, start = _resident("VmRSS"), time.perf_counter()
        made.run()
        first = time.perf_counter()
        self._ready[engine] = made
        grown = {} if before is None or loaded is None else {
            "loaded_bytes": loaded - before, "peak_bytes": (_resident("VmHWM") or 0) - before,
        }  # fmt: skip
        return {"load_seconds": opened - begin, "first_seconds": first - start, **grown}

    def visit(self, engine: str, feeds: dict[str, NDArray[Any]]) -> float:
        """Seconds of a run of an open model with other feeds."""
        begin = time.perf_counter()
        self._ready[engine].visit(feeds)
        return time.perf_counter() - begin

    def results(self, engine: str) -> list[NDArray[Any]]:
        """What the last run of a model made."""
        return [np.array(a) for a in self._ready[engine].result()]

    def sample(self, engine: str, channels: NDArray[np.intp]) -> NDArray[Any]:
        """Some output channels of the last image of the batch."""
        return np.ascontiguousarray(self._ready[engine].result()[-1:, channels])

    def burst(self, engine: str, warm: int, samples: int, calls: int) -> list[float]:
        """Seconds of a call, sample by sample.

        Parameters
        ----------
        warm : int
            Calls that are not counted, to fill caches and wake threads.
        samples, calls : int
            How many times are taken, and of how many calls each is the mean.
        """
        run = self._ready[engine].run
        times = []
        gc.disable()
        try:
            for _ in range(warm):
                run()
            for _ in range(samples):
                begin = time.perf_counter()
                for _ in itertools.repeat(None, calls):
                    run()
                times.append((time.perf_counter() - begin) / calls)
        finally:
            gc.enable()
        return times


def _resident(row: str) -> int | None:
    """Bytes of memory of this process, now (VmRSS) or at most (VmHWM); None where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{row}:"):
                return int(line.split()[1]) * 1024
    return None


def main(guest: str) -> None:
    """Answer requests until the pipe closes; the first message is the task."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a guest that prints must not write into the answers
    requests = sys.stdin.buffer
    with contextlib.suppress(EOFError):
        try:
            worker = Worker(guest, receive(requests))
            send(answers, (True, worker.version()))
        except Exception as error:
            send(answers, (False, f"{type(error).__name__}: {error}"))
            return
        while True:
            function, arguments = receive(requests)
            try:
                send(answers, (True, getattr(worker, function)(*arguments)))
            except Exception as error:
                send(answers, (False, f"{type(error).__name__}: {error}"))
