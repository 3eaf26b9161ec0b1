"""A problem to the time that no direct computation of it stays below, on one core.

It is the longest of three: its multiply-adds at the fastest rate that the CPU showed, the vectors that registers must
load and store, and what it reads and writes moved once at the speed of a copy of that size.  Schemes with fewer
multiplications (Winograd's, Strassen's, Fourier's) can be faster than the first.  It must not know algorithms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from polyconv.benchmark.peaks import copy_bandwidth, peak
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import ARITHMETIC
from polyconv.lowering.situation import Situation, accumulator_arithmetic, short_sums
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = ["Bound", "bound", "bytes_of", "fastest_arithmetic", "products"]

_LINE = 64
"""Bytes of a cache line."""
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
        Of every array into registers or out of them, once, in whole vectors; of a deformable convolution four numbers
        a sample, in vectors of channels.
    bandwidth : float
        Of every array through the smallest cache that holds all of them, or memory.  Of an input that strides pass
        over, the cache lines count that are read.
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
    whole, w, y = _bytes(p)
    x = min(whole, _read(p))
    corners = _CORNERS * _samples(p) * p.x_dtype.itemsize
    cycles = max((x + w + corners) / target.vector_bytes / rates.loads, y / target.vector_bytes / rates.stores)
    moved = x + w + y
    return Bound(2.0 * work / (1e9 * peak(target, name)), cycles / clock, moved / copy_bandwidth(round(moved)), name)


def fastest_arithmetic(s: Situation) -> str:
    """The fastest row of ``ARITHMETIC`` that gives a problem's sums: dot products wherever they are exact enough.

    Samples of a deformable convolution are no bf16 numbers, so their products are not formed in pairs of these.
    """
    p, target = s.problem, s.target
    name = accumulator_arithmetic(s)
    if name == "f32" and target.bf16 and p.x == p.w == "bf16" and p.op != "deform_conv":
        return "bf16"
    if name == "i32" and p.x_dtype.bits == 8:
        return "u8s8" if target.vnni else "i16"
    if name == "i32" and p.x == "i16":
        return "i16"
    return "i16 sums" if short_sums(s) else name


def products(p: Problem) -> int:
    """Multiply-adds of a problem, those with padding or with outputs that are cut off left out."""
    if p.op == "deform_conv":
        return p.macs
    met = math.prod(_met(p, a) for a in range(p.rank))
    return int(p.n or 0) * (p.c // p.groups) * p.m * met


def _met(p: Problem, a: int) -> int:
    """Pairs of a position and a tap along an axis whose product is part of a result."""
    return int(np.count_nonzero(_pairs(p, a)[1]))


def _pairs(p: Problem, a: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Inputs along an axis by position and tap, and which of these pairs are part of a result."""
    i, o, (begin, _) = int(p.i[a] or 0), int(p.out[a] or 0), p.pads[a]
    taps = np.arange(p.k[a]) * p.d[a] - begin
    transposed = p.op == "conv_transpose"
    positions = np.arange(i if transposed else o)[:, None]
    places = positions * p.s[a] + taps
    real = (places >= 0) & (places < (o if transposed else i))
    return np.broadcast_to(positions, places.shape) if transposed else places, real


def _read(p: Problem) -> float:
    """Bytes of the cache lines of the input that a product needs; infinite where offsets decide."""
    if p.op == "deform_conv":
        return math.inf
    needed = [np.unique(places[real]) for places, real in (_pairs(p, a) for a in range(p.rank))]
    planes = p.layout == "NCHW"
    size = p.x_dtype.itemsize * (1 if planes else p.c)
    lines = np.unique(needed[-1][:, None] * size // _LINE + np.arange(-(-size // _LINE)))
    rows = int(p.n or 0) * math.prod(len(n) for n in needed[:-1]) * (p.c if planes else 1)
    return float(rows * len(lines) * _LINE)


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
