"""A problem as something to time: random operands, one thread, weights packed, a median of calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from polyconv.benchmark.engines import OURS, polyconv
from polyconv.benchmark.engines.ready import Ready, Task
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem
from polyconv.settings import for_the_process

__all__ = ["median_seconds", "prepared", "restricted"]


def prepared(p: Problem, algorithm: str | None = None, accuracy: str = "fast") -> Ready:
    """A packed layer that writes into an array of its own, on one thread, with random operands.

    Parameters
    ----------
    algorithm : str, optional
        The one to use; without it, the planner's choice.
    accuracy : str
        ``fast`` or ``strict``.

    Raises
    ------
    Unsupported
        If the algorithm does not take the problem.
    """
    first = replace(p, layout="NCHW")
    made = replace(operands(first, np.random.default_rng(0), "normal"), past=None)
    return polyconv.ready(OURS[p.layout], first, made, Task(accuracy=accuracy, algorithm=algorithm))


def median_seconds(run: Callable[[], object], least: int = 5, seconds: float = 0.02,
                   clock: Callable[[], float] = time.perf_counter) -> float:  # fmt: skip
    """Median time of a call by a clock, after one that is not counted; of ``least`` calls, more within ``seconds``."""
    run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < least or (len(times) < 1000 and time.perf_counter() - begin < seconds):
        start = clock()
        run()
        times.append(clock() - start)
    return statistics.median(times)


def restricted(level: str | None) -> AbstractContextManager[None]:
    """Make kernels for a lower instruction-set level, if one is given."""
    return for_the_process("target", level)
