"""What planning costs: the first plan of a problem, a program whose kernels are there, a known layer's new image size.

Each kind of layer is measured in a fresh process, where no cache of plans knows its problem.  What is not planning is
taken off or done before: importing, measuring the clock, compiling, packing, and of a call with a new size the time of
a second one.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from polyconv.benchmark.load import fresh
from polyconv.dataclass import dataclass

__all__ = ["KINDS", "PlanningTimes", "planning_times"]

KINDS = {
    "3x3": "c64 i56x56 m64 k3x3 p1",
    "1x1": "c64 i56x56 m128 k1x1",
    "first, 7x7 with stride 2": "c3 i112x112 m64 k7x7 s2 p3",
    "depthwise 3x3": "c64 i56x56 m64 k3x3 p1 g64",
}
"""Kinds of layers, each f32 with the size of its first image; the others have random heights and widths."""

_LEAST, _MOST = 16, 112
"""Heights and widths of new images."""

_FEW = 10
"""Sizes that a layer meets before those that are timed: they import what is imported late."""

_OTHER = "conv_transpose f64 NCHW n1 c2 i9 m3 k4 s2"
"""A problem that has nothing in common with them."""

_TIMES = """
import json, statistics, sys, time
import numpy
import polyconv
from polyconv.kernels.objects import EVENTS
text, other, least, most, seed, few, sizes = json.load(sys.stdin)
polyconv.plan(other)  # imports what planning needs, and measures the clock
problem = polyconv.Problem.parse(text)
start = time.perf_counter()
polyconv.plan(problem)
first = time.perf_counter() - start

rng = numpy.random.default_rng(seed)
layer = polyconv.Conv(rng.standard_normal(problem.w_shape, numpy.float32), strides=problem.s, pads=problem.pads,
                      groups=problem.groups, layout=problem.layout, threads=1)
# memory that was written before: the first call of a size is not the first to touch it
memory = [numpy.ones(channels * most * most, numpy.float32) for channels in (problem.c, problem.m)]

def arrays(h, w):
    sized = problem.with_extents(1, (h, w))
    shapes = sized.x_shape, sized.y_shape
    return [part[: numpy.prod(shape)].reshape(shape) for part, shape in zip(memory, shapes)]

x, y = arrays(*problem.i)
layer(x, out=y)
programs = []
for _ in range(20):
    start = time.perf_counter()
    layer._layer.unrun(x, y, None, None, None, run=lambda *_: None)  # its packed weights are there
    programs.append(time.perf_counter() - start)

times, seen, compiling = [], {problem.i}, 0
while len(times) < few + sizes:
    size = tuple(rng.integers(least, most + 1, 2).tolist())
    if size in seen:
        continue
    seen.add(size)
    x, y = arrays(*size)
    before = EVENTS.compiled + EVENTS.loaded
    start = time.perf_counter()
    layer(x, out=y)
    middle = time.perf_counter()
    layer(x, out=y)
    end = time.perf_counter()
    if EVENTS.compiled + EVENTS.loaded > before:
        compiling += 1
    else:
        times.append(2 * middle - start - end)
print(json.dumps([first, statistics.median(programs), times[few:], compiling]))
"""


@dataclass(frozen=True, slots=True)
class PlanningTimes:
    """Seconds of planning for a kind of layer, on one thread.

    Parameters
    ----------
    kind, layout : str
    first : float
        First plan of a problem: the median of several processes.
    program : float
        Making a program whose plan, kernels and packed weights are there: the median of many.
    size, size_p99 : float
        By how much the first call with a new image size takes longer than the second: the median of many sizes, and
        what 99 of 100 stay below.
    sizes, compiling : int
        How many sizes these were, and how many others, which are not timed, needed a kernel that was not there.
    """

    kind: str
    layout: str
    first: float
    program: float
    size: float
    size_p99: float
    sizes: int
    compiling: int


def planning_times(sizes: int = 100, rounds: int = 3, seed: int = 0,
                   progress: Callable[[PlanningTimes], None] = lambda times: None) -> list[PlanningTimes]:  # fmt: skip
    """Time fresh processes, ``rounds`` for every kind of layer and layout; new sizes in the last one.

    Parameters
    ----------
    sizes : int
        How many new image sizes.
    rounds : int
    seed : int
        Of the sizes.
    progress : callable
        Told of every row.
    """
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, fields in KINDS.items():
            for layout in ("NCHW", "NHWC"):
                problem = f"conv f32 {layout} n1 {fields}"
                given: list[Any] = [problem, _OTHER, _LEAST, _MOST, seed]
                answers = [fresh(_TIMES, [*given, 0, 0], folder, "planning") for _ in range(rounds - 1)]
                answers.append(fresh(_TIMES, [*given, _FEW, sizes], folder, "planning"))
                first, program, times, compiling = zip(*answers, strict=True)
                row = PlanningTimes(kind, layout, statistics.median(first), statistics.median(program),
                                    statistics.median(times[-1]), float(np.quantile(times[-1], 0.99)), sizes,
                                    compiling[-1])  # fmt: skip
                measured.append(row)
                progress(row)
    return measured
