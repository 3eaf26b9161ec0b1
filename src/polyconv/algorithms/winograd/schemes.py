"""Which of Winograd's schemes compute an axis or two, so that errors stay below twice those of a direct sum.

F(m, r) computes m outputs of r taps from m + r - 1 products; along two axes F(4, 3) takes 36 for 16 outputs, where a
direct sum takes 144.  A stride s splits an axis into s phases: inputs s apart, with every s-th tap.  More than five
taps are summed in parts, as if those were phases: 7 taps by F(3, 4) take 6 + 5 products for 3 outputs.

The points are those of Barabasz et al. 2020; the schemes themselves are derived in ``kernels/transform.py``.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.transform import Closed, Scheme
from polyconv.lowering.situation import Situation, accumulator_arithmetic
from polyconv.lowering.sweep import Axis, Lines, Sweep, lines, residue_lines

__all__ = ["NONE", "SCHEMES", "Phase", "factor", "lines_of", "options", "pairs", "phases"]

_PAIRS = (5 / 8, 3 / 2)

# Schemes by number of taps, the largest tile first.  Measured rms errors in two dimensions, as multiples of that
# of a direct f32 sum, for 16 / 32 / 64 channels: F(3,2) 1.1 / 0.9 / 0.9, F(5,2) with F(3,2) 1.9 / 1.7 / 1.6 (along one
# axis alone 2.1 / 1.9 / 1.8), F(2,3) 0.8 / 0.7 / 0.6, F(2,5) 1.5 / 1.3 / 1.2, F(3,4) 1.6 / 1.4 / 1.4, F(4,3) 2.2 /
# 1.9 / 1.8 with these points, which are exact in binary (2.3 / 2.0 / 1.9 with 2^-1/2 and 2^1/2, 2.4 / 2.1 / 2.0 with
# 3/4 and 3/2); for 5 taps in parts as well 2.2 / 1.96 / 1.8.  F(2,7) stayed above 2 with all points tried: left out.
SCHEMES: dict[int, tuple[Scheme, ...]] = {
    2: (Scheme(5, 2, _PAIRS), Scheme(3, 2, (1.0,))),
    3: (Scheme(4, 3, _PAIRS), Scheme(2, 3, (1.0,))),
    4: (Scheme(3, 4, _PAIRS),),
    5: (Scheme(2, 5, _PAIRS),),
}
NONE, _CLOSED = Scheme(1, 1), Closed()
"""F(1, 1), which stands for an axis that is not transformed; and the scheme of two outputs that meet two inputs."""

_MOST_TAPS = 12
"""Most taps along an axis at stride 1, summed in parts."""
_LEAST_TERMS = 32
"""Least products that a point sums (input channels times taps that are not transformed) where the scheme is F(4,3)
along both axes, or F(5,2): the error of fewer products summed directly is less than half of theirs.  With strides along
both axes, for 5x5 kernels, F(4,3) came to 2.02 times the error of a direct sum, and is not admitted; nor is F(5,2)
along both."""


def factor(s: Situation, terms: int, points: int = 0, growth: float = 1.0) -> float:
    """Factor of the error bound of sums of so many products.

    Parameters
    ----------
    terms : int
        Products of a sum.
    points : int
        Points of the schemes, whose transforms add about twice as often.
    growth : float
        How much larger terms get by the transforms.
    """
    return (terms + 2 * points + 4) * DTYPES[accumulator_arithmetic(s)].eps * growth


@lru_cache(256)
def pairs(sweep: Sweep, channels: int) -> list[tuple[Scheme, Scheme]]:
    """Pairs of schemes that can compute the last two axes; the first is ``NONE`` where only the last is transformed."""
    def can(axis: Axis) -> bool:
        return 1 in (axis.dilation, axis.stride) and bool(options(axis)) and axis.out > axis.dilation

    *outer, last = sweep
    before = outer[-1] if outer and can(outer[-1]) else None
    found: list[tuple[Scheme, Scheme]] = []
    if not all(axis.taps and axis.out for axis in sweep):
        return found
    if last.taps == 1:
        found = [(y, NONE) for y in options(before)] if before else []
    elif can(last) and before:
        strided = 1 not in (before.stride, last.stride)
        found = [
            (y, x) for y, x in itertools.product(options(before), options(last))
            if y.m + x.m < 8 or not (strided and y.r == x.r == 3)
        ]
    elif can(last):
        found = [(NONE, x) for x in options(last)]
    terms = channels * math.prod(axis.taps for axis in sweep[:-2])
    return [pair for pair in found if _is_accurate(*pair, terms)]


def _is_accurate(y: Scheme, x: Scheme, terms: int) -> bool:
    """Whether errors stay below twice those of direct sums where points sum so many products."""
    if 5 in (y.m, x.m):
        return terms >= _LEAST_TERMS and min(y.m, x.m) < 4 and max(y.r, x.r) < 4
    return terms >= _LEAST_TERMS or y.m + x.m < 8


def options(axis: Axis) -> tuple[Scheme, ...]:
    """Schemes for an axis: for the most taps of a phase, or at stride 1 for parts of many taps."""
    taps = -(-axis.taps // axis.stride)
    if axis.stride == 1 and max(SCHEMES) < taps <= _MOST_TAPS:
        return SCHEMES[4][0], SCHEMES[3][0]
    if axis.stride == 1 and taps == 5:  # in parts of 3 and 2 they take 11 products for 4 outputs, not 6 for 2
        return SCHEMES[3][0], *SCHEMES[5]
    if axis.stride == 1 and taps == 3 and axis.pad == axis.dilation and axis.inp <= axis.out <= 2 * axis.dilation:
        return _CLOSED, *SCHEMES[3]
    # F(5,2) is as inaccurate for a phase of a single tap, whose direct sum is half as long
    return tuple(scheme for scheme in SCHEMES.get(taps, ()) if scheme.m < 5 or axis.taps % axis.stride == 0)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the strides, or a part of many taps, along both transformed axes.

    Parameters
    ----------
    taps : (int, int)
        First tap along the two axes: the inputs of a tile begin with its.
    counts : (int, int)
        Taps along the two axes.
    full : (bool, bool)
        Whether they are as many as the schemes take; a phase with one tap less has no product at the point infinity.
    """

    taps: tuple[int, int]
    counts: tuple[int, int]
    full: tuple[bool, bool]

    def enters(self, kind: int) -> bool:
        """Whether it has products at the points of a kind: 1 infinity along the last axis, 2 along the one before."""
        return (self.full[1] or not kind & 1) and (self.full[0] or not kind & 2)


def phases(sweep: Sweep, y: Scheme, x: Scheme) -> tuple[Phase, ...]:
    """The phases of a sweep by the schemes of its last two axes; of the last one alone if ``y`` is ``NONE``."""
    of_y = (1, 1) if y == NONE else (sweep[-2].taps, sweep[-2].stride)
    return _phases(*of_y, sweep[-1].taps, sweep[-1].stride, y.r, x.r)


@lru_cache(256)
def _phases(y_taps: int, y_stride: int, x_taps: int, x_stride: int, y_most: int, x_most: int) -> tuple[Phase, ...]:
    def along(taps: int, stride: int, most: int) -> list[tuple[int, int]]:
        """First tap and number of taps."""
        if stride == 1:
            return [(tap, min(most, taps - tap)) for tap in range(0, taps, most)]
        return [(tap, len(range(tap, taps, stride))) for tap in range(min(stride, taps))]

    of_y, of_x = along(y_taps, y_stride, y_most), along(x_taps, x_stride, x_most)
    return tuple(
        Phase((ty, tx), (tall, wide), (tall == y_most, wide == x_most))
        for (ty, tall), (tx, wide) in itertools.product(of_y, of_x)
    )


def lines_of(axis: Axis, scheme: Scheme, residues: int, outputs: int) -> Lines:
    """Lines of inputs for so many outputs of some residues; a last part of fewer taps reads no more than full ones."""
    if axis.stride > 1:
        return lines(axis, outputs)
    if isinstance(scheme, Closed):
        return residue_lines(axis, residues, outputs, 1)
    short = -axis.taps % scheme.r
    return residue_lines(axis, residues, outputs + max(0, short - 1))
