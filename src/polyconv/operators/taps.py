"""What each output along an axis is made of, as a table: positions of inputs and their weights.

Resizing and padding turn into such tables, one an axis; an output without taps is filled with a value.  The one idea:
where the pattern of a few outputs comes again and again, as when an axis is enlarged twofold, code for that pattern
can run on vectors, and the table is left to the borders.  It must not know kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass

__all__ = ["Blocks", "Pattern", "Taps", "picked", "weighted", "whole"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_MOST_PHASES = 8
_MOST_STRIDE = 4
_LEAST_SHARE = 0.6
"""Of the outputs, from which on a pattern is worth its code."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """What repeats along an axis: output ``begin + len(phases) * i + r`` takes inputs ``base + stride * i + offset``.

    Parameters
    ----------
    begin, end : int
        Outputs for which it holds; a whole number of repeats.
    base, stride : int
    phases : tuple of tuple of int
        The offsets of each of the outputs that repeat; none is negative.
    weights : tuple of tuple of float
    """

    begin: int
    end: int
    base: int
    stride: int
    phases: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Outputs by vectors of them, the last of which may be filled up.

    Parameters
    ----------
    bases : array (blocks,)
        The first input that a block takes.
    picks : array (blocks, most, lanes)
        By tap how far behind it the input of each output lies; -1 where it has no such tap.
    weights : array (blocks, most, lanes)
    """

    bases: Integers
    picks: Integers
    weights: Floats

    @property
    def reach(self) -> int:
        """Inputs from the first to the last one of a block, at most."""
        return int(self.picks.max(initial=-1)) + 1


@dataclass(frozen=True, eq=False)
class Taps:
    """Taps of all outputs along an axis.

    Parameters
    ----------
    extent : int
        Inputs.
    counts : array (outputs,)
        Taps of each output; 0 where it takes the filling value.
    positions : array (outputs, most)
        Inputs in rising order; what lies beyond the count is 0.
    weights : array (outputs, most)
    """

    extent: int
    counts: Integers
    positions: Integers
    weights: Floats

    @property
    def outputs(self) -> int:
        """Outputs."""
        return len(self.counts)

    @property
    def most(self) -> int:
        """The most taps that an output has."""
        return int(self.positions.shape[1])

    @property
    def picks(self) -> bool:
        """Whether each output is one input, or filled."""
        return self.most == 1 and bool((self.weights[self.counts > 0] == 1).all())

    @property
    def is_whole(self) -> bool:
        """Whether outputs are the inputs."""
        same = self.picks and self.outputs == self.extent and bool(self.counts.all())
        return same and bool((self.positions[:, 0] == np.arange(self.extent)).all())

    def blocks(self, lanes: int) -> Blocks:
        """The outputs by vectors."""
        count, rest = -(-self.outputs // lanes), -self.outputs % lanes
        there = np.pad(np.arange(self.most) < self.counts[:, None], ((0, rest), (0, 0)))
        places, weights = (np.pad(a, ((0, rest), (0, 0))) for a in (self.positions, self.weights))
        bases = np.where(there, places, self.extent).reshape(count, -1).min(1)
        picks = np.where(there, places - np.repeat(bases, lanes)[:, None], -1)
        by_tap = (np.ascontiguousarray(a.reshape(count, lanes, -1).transpose(0, 2, 1)) for a in (picks, weights))
        return Blocks(np.minimum(bases, self.extent - 1), *by_tap)

    @cached_property
    def pattern(self) -> Pattern | None:
        """The shortest pattern that holds for most outputs; None where there is none."""
        for phases in range(1, _MOST_PHASES + 1):
            if (found := self._repeated(phases)) is not None and found.end - found.begin >= _LEAST_SHARE * self.outputs:
                return found
        return None

    def _repeated(self, phases: int) -> Pattern | None:
        """The longest run of outputs of which each has the taps of the one ``phases`` before, moved by one stride."""
        if self.outputs < 2 * phases and phases > 1:
            return None
        if self.outputs == 1:
            step, alike = 1, np.zeros(0, bool)
        else:
            step, alike = self._alike(phases)
        if not 1 <= step <= _MOST_STRIDE:
            return None
        begin, end = _longest(alike & (self.counts[: len(alike)] > 0))
        end = begin + (end - begin + phases) // phases * phases
        first = slice(begin, begin + phases)
        if end > self.outputs or not self.counts[first].all():
            return None
        base = int(min(self.positions[o, 0] for o in range(begin, begin + phases)))
        taps = [range(self.counts[o]) for o in range(begin, begin + phases)]
        offsets = tuple(tuple(int(self.positions[begin + r, t]) - base for t in each) for r, each in enumerate(taps))
        weights = tuple(tuple(float(self.weights[begin + r, t]) for t in each) for r, each in enumerate(taps))
        return Pattern(begin, end, base, step, offsets, weights)

    def _alike(self, phases: int) -> tuple[int, NDArray[np.bool_]]:
        """The commonest step of positions over some outputs, and for which outputs it holds with equal weights."""
        moved = self.positions[phases:] - self.positions[:-phases]
        if not len(moved):
            return 0, np.zeros(0, bool)
        steps, times = np.unique(moved[:, 0], return_counts=True)
        step = int(steps[np.argmax(times)])
        there = np.arange(self.most) < self.counts[:, None]
        near = np.abs(self.weights[phases:] - self.weights[:-phases]) <= 8 * np.finfo(float).eps * (self.extent + 1)
        same = (~there[phases:] | ((moved == step) & near)).all(1) & (self.counts[phases:] == self.counts[:-phases])
        return step, same


def _longest(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """Begin and end of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    at = int(np.argmax(ends - begins))
    return int(begins[at]), int(ends[at])


def whole(extent: int) -> Taps:
    """Outputs that are the inputs."""
    return picked(np.arange(extent), extent)


def picked(positions: Sequence[int] | Integers, extent: int) -> Taps:
    """Outputs that are one input each; filled where the position is negative."""
    places = np.asarray(positions, np.int64).reshape(-1, 1)
    there = places >= 0
    return Taps(extent, there[:, 0].astype(np.int64), np.where(there, places, 0), there.astype(float))


def weighted(positions: Integers, weights: Floats, extent: int, filled: NDArray[np.bool_] | None = None) -> Taps:
    """Outputs that are weighted sums.

    Parameters
    ----------
    positions : array (outputs, taps)
        In rising order; those outside mean the nearest input inside, and share its weight.
    weights : array (outputs, taps)
        Taps of weight 0 do not count.
    extent : int
    filled : array of bool (outputs,), optional
        Outputs that take the filling value instead.
    """
    outputs, most = positions.shape
    clamped = np.clip(positions, 0, extent - 1)
    summed = np.zeros((outputs, most))
    places = np.zeros((outputs, most), np.int64)
    last = np.full(outputs, -1)
    rows = np.arange(outputs)
    for tap in range(most):
        counts = weights[:, tap] != 0
        if filled is not None:
            counts = counts & ~filled
        fresh = counts & ((last < 0) | (places[rows, np.maximum(last, 0)] != clamped[:, tap]))
        last = last + fresh
        places[rows[fresh], last[fresh]] = clamped[fresh, tap]
        summed[rows[counts], last[counts]] += weights[counts, tap]
    counts = last + 1
    used = max(1, int(counts.max(initial=0)))
    return Taps(extent, counts, places[:, :used], summed[:, :used])
