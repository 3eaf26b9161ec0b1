"""A case: a sweep with the schemes that compute it, and what follows from these however boxes are cut.

Output channels come in blocks of two vectors.  Every phase of the taps has products at some of the points, of which
there are four kinds: finite ones, infinity along the last axis, along the one before, along both.  It must not know
boxes.
"""

from __future__ import annotations

import math
import operator
from functools import cache
from typing import Self

from polyconv.algorithms.winograd.schemes import NONE, Phase, phases
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.transform import Scheme
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep
from polyconv.problem.hashed import Hashed

__all__ = ["Case"]

_MOST_VECTORS = 2
"""Vectors of output channels in a block."""


@dataclass(frozen=True, slots=True)
class Case(Hashed):
    """A sweep to be computed by schemes of its last two axes, ``y`` and ``x``; ``y`` is ``NONE`` if only one is.

    The sweep may be one of several that are alike but for where they lie, as ``anywhere`` leaves it.

    Parameters
    ----------
    transformed : int
        Number of transformed axes: the last one or two.
    outer : Sweep
        The other axes.
    outer_taps : int
        Combinations of their taps.
    groups : (int, int)
        Channels of a group, of the input and of the result.
    lane : int
        Numbers of a vector.
    vectors, last_vectors, blocks : int
        Vectors of output channels in a block, those of the last block, and blocks of a group.
    phases : tuple of Phase
    points, entering : tuple of int
        How many points there are of each kind, and how many phases have products at each of them.
    products : int
        Those of a tile for an input channel and an output channel: every point by the phases that enter it.
    """

    s: Situation
    arith: Arithmetic
    sweep: Sweep
    y: Scheme
    x: Scheme
    transformed: int
    outer: Sweep
    outer_taps: int
    groups: tuple[int, int]
    lane: int
    vectors: int
    last_vectors: int
    blocks: int
    phases: tuple[Phase, ...]
    points: tuple[int, int, int, int]
    entering: tuple[int, int, int, int]
    products: int

    __hash__ = Hashed.__hash__

    @classmethod
    def of(cls, s: Situation, arith: Arithmetic, sweep: Sweep, y: Scheme, x: Scheme) -> Self:
        """The case of a sweep and two schemes."""
        p, lane = s.problem, lanes(s.target, arith)
        transformed = 1 if y == NONE else 2
        outer = sweep[:-transformed]
        vectors_out = -(-(p.m // p.groups) // lane)
        vectors = min(vectors_out, _MOST_VECTORS)
        blocks = -(-vectors_out // vectors)
        found, points = phases(sweep, y, x), _points(transformed, y, x)
        entering = _entering(tuple([phase.full for phase in found]))
        return cls(
            s, arith, sweep, y, x, transformed, outer, math.prod([axis.taps for axis in outer]),
            (p.c // p.groups, p.m // p.groups), lane, vectors, vectors_out - (blocks - 1) * vectors, blocks, found,
            points, entering, sum(map(operator.mul, points, entering)),
        )  # fmt: skip

    @property
    def vectors_out(self) -> int:
        """Vectors of output channels; the last block may have one less than others."""
        return (self.blocks - 1) * self.vectors + self.last_vectors

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights of a group."""
        rows = self.products * self.outer_taps * self.groups[0]
        return rows * self.vectors_out * self.lane * self.arith.bytes

    @property
    def kinds(self) -> list[int]:
        """Kind of every point: 1 infinity along the last axis, 2 along the one before, 3 along both; else 0."""
        y, x = self.y, self.x
        infinite = y.ends if self.transformed == 2 else 0
        row = [0] * (x.n - x.ends) + [1] * x.ends
        return row * (y.n - infinite) + [2 + kind for kind in row] * infinite


@cache
def _points(transformed: int, y: Scheme, x: Scheme) -> tuple[int, int, int, int]:
    """How many points there are of each kind."""
    inner, ends = x.n - x.ends, x.ends
    if transformed == 1:
        return inner * y.n, ends * y.n, 0, 0
    return inner * (y.n - y.ends), ends * (y.n - y.ends), inner * y.ends, ends * y.ends


@cache
def _entering(full: tuple[tuple[bool, bool], ...]) -> tuple[int, int, int, int]:
    """How many phases, with all taps or one less along the two axes, have products at points of each kind."""
    along_y, along_x = sum(y for y, _ in full), sum(x for _, x in full)
    return len(full), along_x, along_y, sum(y and x for y, x in full)
