"""A problem as something to time: random operands, one thread, weights packed, a median of calls."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from polyconv.prepared import Layer
from polyconv.problem.problem import Problem

__all__ = ["median_seconds", "restricted", "runner"]


def runner(problem: Problem, algorithm: str | None = None) -> Callable[[], object]:
    """A call of a packed layer into an array of its own, on one thread."""
    rng = np.random.default_rng(0)
    kind = problem.x_dtype.numpy
    x = rng.integers(-3, 4, tuple(int(e or 0) for e in problem.x_shape)).astype(kind)
    w = rng.integers(-3, 4, problem.w_shape).astype(kind)
    bias = np.ones(problem.m, problem.y_dtype.numpy) if problem.bias else None
    out = np.empty(tuple(int(e or 0) for e in problem.y_shape), problem.y_dtype.numpy)
    layer = Layer(
        lambda n, i: replace(problem, n=n, i=i), w, bias, layout=problem.layout, threads=1, algorithm=algorithm
    )
    return lambda: layer(x, out=out)


def median_seconds(run: Callable[[], object], least: int = 5, seconds: float = 0.02) -> float:
    """Median time of a call, after one that is not counted."""
    run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < least or (len(times) < 1000 and time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@contextmanager
def restricted(level: str | None) -> Iterator[None]:
    """Make kernels for a lower instruction-set level, if one is given."""
    if level is None:
        yield
        return
    before = os.environ.get("POLYCONV_TARGET")
    os.environ["POLYCONV_TARGET"] = level
    try:
        yield
    finally:
        if before is None:
            del os.environ["POLYCONV_TARGET"]
        else:
            os.environ["POLYCONV_TARGET"] = before
