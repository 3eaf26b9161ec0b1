"""A problem to the time that no direct computation of it stays below, on one core.

It is the longest of three: its multiply-adds at the fastest rate that the CPU showed, the vectors that registers must
load and store, and its arrays moved once at the speed of a copy of that size.  Schemes with fewer multiplications
(Winograd's, Strassen's, Fourier's) can be faster than the first.  It must not know algorithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyconv.benchmark.peaks import copy_bandwidth, peak
from polyconv.kernels.isa import ARITHMETIC
from polyconv.lowering.situation import Situation, accumulator_arithmetic
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = ["Bound", "bound", "bytes_of", "fastest_arithmetic", "products"]

_CORNERS = 4
"""Elements that a sample of a deformable convolution is interpolated from."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds that each resource needs.

    Parameters
    ----------
    multiply_adds : float
        Those that meet an input, and of a deformable convolution those that interpolate.
    loads : float
        Of every array into registers or out of them, once; of a deformable convolution four numbers a sample.
    bandwidth : float
        Of every array through the smallest cache that holds all of them, or memory.
    arithmetic : str
        Row of ``ARITHMETIC`` whose rate the multiply-adds have.
    """

    multiply_adds: float
    loads: float
    bandwidth: float
    arithmetic: str

    @property
    def seconds(self) -> float:
        """The longest."""
        return max(self.multiply_adds, self.loads, self.bandwidth)

    @property
    def held_by(self) -> str:
        """Which is the longest."""
        times = {"multiply-adds": self.multiply_adds, "loads": self.loads, "bandwidth": self.bandwidth}
        return max(times, key=lambda name: times[name])


def bound(p: Problem, target: Target) -> Bound:
    """Least seconds of a problem on one core.

    Parameters
    ----------
    p : Problem
        With all extents known.
    target : Target
        Whose instructions count.

    Notes
    -----
    The rates of multiply-adds and copies are measured once in a process; loads and stores a cycle are those of the
    machine's profile.
    """
    s = Situation(p, target)
    name = fastest_arithmetic(s)
    work = products(p) + _CORNERS * _samples(p)
    rates, clock = s.rates(ARITHMETIC[name]), s.profile.clock
    x, w, y = _bytes(p)
    loads = ((x + w) / target.vector_bytes + _CORNERS * _samples(p)) / rates.loads
    cycles = max(loads, y / target.vector_bytes / rates.stores)
    moved = x + w + y
    return Bound(2.0 * work / (1e9 * peak(target, name)), cycles / clock, moved / copy_bandwidth(moved), name)


def fastest_arithmetic(s: Situation) -> str:
    """The fastest row of ``ARITHMETIC`` that gives a problem's sums: dot products wherever they are exact enough."""
    p, target = s.problem, s.target
    name = accumulator_arithmetic(s)
    if name == "f32" and target.bf16 and p.x == p.w == "bf16":
        return "bf16"
    if name == "i32" and p.x_dtype.bits == 8:
        return "u8s8" if target.vnni else "i16"
    return "i16" if name == "i32" and p.x == "i16" else name


def products(p: Problem) -> int:
    """Multiply-adds of a problem, those with padding or with outputs that are cut off left out."""
    if p.op == "deform_conv":
        return p.macs
    met = math.prod(_met(p, a) for a in range(p.rank))
    return int(p.n or 0) * (p.c // p.groups) * p.m * met


def _met(p: Problem, a: int) -> int:
    """Pairs of a position and a tap along an axis whose product is part of a result."""
    i, o, (begin, _) = int(p.i[a] or 0), int(p.out[a] or 0), p.pads[a]
    taps = np.arange(p.k[a]) * p.d[a] - begin
    positions, limit = (i, o) if p.op == "conv_transpose" else (o, i)
    places = np.arange(positions)[:, None] * p.s[a] + taps
    return int(np.count_nonzero((places >= 0) & (places < limit)))


def _samples(p: Problem) -> int:
    """Numbers that a deformable convolution interpolates."""
    if p.op != "deform_conv":
        return 0
    return int(p.n or 0) * p.c * math.prod(p.k) * math.prod(int(o or 0) for o in p.out)


def _bytes(p: Problem) -> tuple[int, int, int]:
    """Of input (offsets and mask among them), weights and result."""
    shapes = ((p.x_shape, p.x_dtype), (p.w_shape, p.w_dtype), (p.y_shape, p.y_dtype))
    x, w, y = (math.prod(int(e or 0) for e in shape) * dtype.itemsize for shape, dtype in shapes)
    places = int(p.n or 0) * p.offset_groups * math.prod(p.k) * math.prod(int(o or 0) for o in p.out)
    return x + places * (2 + p.mask) * p.x_dtype.itemsize, w, y


def bytes_of(p: Problem) -> int:
    """Bytes of all arrays, each once."""
    return sum(_bytes(p))
