"""How low a share of the peak an algorithm sinks on random problems: the search for cliffs.

Problems of every operator form, rank, type, layout, group count, stride and dilation above 1 MFLOP,
drawn from a seed.  A share is that of the peak of the arithmetic the problem is summed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from polyconv.algorithms.program import Situation, accumulator_arithmetic
from polyconv.benchmark.peaks import copy_bandwidth, peak
from polyconv.benchmark.runs import median_seconds, runner
from polyconv.errors import ArgumentError
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = ["Share", "random_problems", "shares"]

_TYPES = ("f32",) * 4 + ("f64", "f16", "bf16", "i8", "i32", "i64")
_LEAST, _MOST = 0.5e6, 20e6  # multiply-adds


@dataclass(frozen=True, slots=True)
class Share:
    """A problem, its GFLOP/s, that as a share of its arithmetic's peak, and of what memory allows.

    ``of_bound`` relates the time to the longer of two: all multiply-adds at the peak, or every byte of
    input, weights and result moved once at the speed of a large copy.
    """

    problem: Problem
    gflops: float
    share: float
    of_bound: float


def random_problems(count: int, seed: int) -> Iterator[Problem]:
    """Problems above 1 MFLOP, the same for the same seed."""
    rng = np.random.default_rng(seed)
    made = 0
    while made < count:
        problem = _draw(rng)
        if problem is not None and _LEAST <= problem.macs <= _MOST:
            made += 1
            yield problem


def _draw(rng: np.random.Generator) -> Problem | None:
    rank = int(rng.choice([1, 2, 2, 2, 3, 3, 4]))
    groups, per_in, per_out = _channels(rng)
    most = {1: 20_000, 2: 120, 3: 28, 4: 12}[rank]
    spatial = tuple(int(e) for e in np.exp(rng.uniform(math.log(2), math.log(most), rank)))
    k = tuple(int(rng.choice([1, 2, 3, 3, 5, 7])) for _ in range(rank))
    d = tuple(int(rng.choice([1, 1, 1, 2, 3])) for _ in range(rank))
    pads = tuple((int(rng.integers(0, e + 1)), int(rng.integers(0, e + 1))) for e in k)
    dtype = str(rng.choice(_TYPES))
    try:
        problem = Problem(
            op=str(rng.choice(["conv", "conv", "conv", "conv_transpose"])), x=dtype, w=dtype, y=dtype,
            layout=str(rng.choice(["NCHW", "NHWC"])), n=int(rng.choice([1, 1, 2])), c=groups * per_in, i=spatial,
            m=groups * per_out, k=k, s=tuple(int(rng.choice([1, 1, 1, 2, 3])) for _ in range(rank)), d=d, pads=pads,
            groups=groups,
        )  # fmt: skip
        return problem if all(o and o > 0 for o in problem.out) else None
    except ArgumentError:
        return None


def _channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """Groups and channels per group: dense, depthwise, with a multiplier, grouped."""
    kind = rng.choice(["dense", "few", "depthwise", "multiplier", "grouped"])
    if kind == "dense":
        return 1, int(rng.integers(1, 130)), int(rng.integers(1, 130))
    if kind == "few":
        return 1, int(rng.integers(1, 5)), int(rng.integers(1, 5))
    if kind == "depthwise":
        return int(rng.integers(2, 300)), 1, 1
    if kind == "multiplier":
        return int(rng.integers(2, 100)), 1, int(rng.integers(2, 5))
    return int(rng.integers(2, 33)), int(rng.choice([2, 3, 4, 8, 16])), int(rng.choice([2, 3, 4, 8, 16]))


def shares(problems: Iterator[Problem], target: Target, algorithm: str | None,
           progress: Callable[[Share], None] = lambda share: None) -> list[Share]:  # fmt: skip
    """Speed of every problem on one thread, as a share of its arithmetic's peak."""
    found = []
    for problem in problems:
        seconds = median_seconds(runner(problem, algorithm))
        flops = 2.0 * problem.macs
        best = peak(target, accumulator_arithmetic(Situation(problem, target))) * 1e9
        bound = max(flops / best, _bytes(problem) / copy_bandwidth())
        share = Share(problem, flops / seconds / 1e9, flops / seconds / best, bound / seconds)
        progress(share)
        found.append(share)
    return found


def _bytes(p: Problem) -> float:
    shapes = ((p.x_shape, p.x_dtype), (p.w_shape, p.w_dtype), (p.y_shape, p.y_dtype))
    return float(sum(math.prod(e or 0 for e in shape) * dtype.itemsize for shape, dtype in shapes))
