"""Cutting an axis into tiles, each long enough for the outputs it gives and the window of the last one.

The lengths are products of small primes, of which a few passes make a transform.  Cycles of passes stand here as well:
they decide which lengths are worth trying.  It must not know channels or lanes.
"""

from __future__ import annotations

import itertools
import math
from functools import cache, lru_cache

from polyconv.dataclass import dataclass
from polyconv.kernels.fft import RADICES
from polyconv.lowering.sweep import Axis

__all__ = ["LEAST_TAPS", "Tile", "line_cycles", "radices", "tiles_of", "window"]

LEAST_TAPS = 5
"""Taps along an axis, at least: for kernels of 3 Winograd's tiles are as fast, and the same at every extent."""

_SMOOTH = sorted(
    n for a, b, c in itertools.product(range(16), range(4), range(3)) if (n := 2**a * 3**b * 5**c) <= 1 << 15
)
_FEW = tuple(n for n in _SMOOTH if n.bit_count() == 1 or (n % 3 == 0 and (n // 3).bit_count() == 1))
_FEW_REACH = 5
"""Lengths in steps of 4/3 and 3/2, and how many times a kernel's window they may be.  Spectra of many channels are
large: images of all sizes share those of a few lengths, which costs some a tenth of their speed."""

_BUTTERFLY = {2: 7.0, 3: 12.0, 4: 14.0, 5: 23.0, 6: 28.0, 8: 42.0, 9: 56.0}
"""Cycles of a butterfly by radix, twiddles and memory of the second level included; measured on a Zen 5."""
_CALL = 12.0
"""Cycles of a call of a pass."""


@dataclass(frozen=True, slots=True)
class Tile:
    """An axis cut into ``count`` tiles of ``length`` positions, of which ``reach`` hold input or padding, others zeros.

    Each gives so many ``outputs``, the last perhaps fewer.  ``points`` are complex: half as many along the first axis.
    """

    length: int
    points: int
    outputs: int
    count: int
    reach: int


@lru_cache(4096)
def radices(n: int) -> tuple[int, ...]:
    """Radices of the passes over a line, the last the largest, at least cost."""
    if n == 1:
        return ()
    found = min(((*radices(n // r), r) for r in RADICES if n % r == 0), key=_passes_cycles)
    return tuple(sorted(found))


def _passes_cycles(passes: tuple[int, ...]) -> float:
    n = math.prod(passes)
    return sum(n // r * _BUTTERFLY[r] + _CALL for r in passes)


@cache
def line_cycles(points: int) -> float:
    """Cycles of the passes over a line."""
    return _passes_cycles(radices(points))


def window(axis: Axis) -> int:
    """Positions from an output's first tap to its last."""
    return (axis.taps - 1) * axis.dilation + 1


@lru_cache(1024)
def tiles_of(axis: Axis, *, halved: bool, most: int, few: bool) -> tuple[Tile, ...]:
    """The tiles worth trying along an axis, from short to long, of as few lengths as there are or of all.

    Parameters
    ----------
    halved : bool
        Whether two positions are a complex point.
    most : int
        Tiles to return.
    """
    taken, whole = window(axis), _whole(axis)
    best: list[Tile] = []
    effort, before = math.inf, 0
    for length in _FEW if few else _SMOOTH:
        fitting = axis.out if length >= whole else (length - taken) // axis.stride + 1
        if (halved and length % 2) or length < min(taken, whole) or (fitting >= axis.out and length < whole):
            continue
        if before == 1 or (few and length > max(32, _FEW_REACH * taken)):
            break
        count = -(-axis.out // fitting)
        points, outputs = length // 2 if halved else length, -(-axis.out // count)
        if count != before and count * line_cycles(points) < effort:
            effort = count * line_cycles(points)
            best.append(Tile(length, points, outputs, count, min(length, (outputs - 1) * axis.stride + taken)))
        before = count
    if len(best) > most:  # the shortest, for small workspaces, and the cheapest
        step = (len(best) - 1) / (most - 1)
        best = [best[round(i * step)] for i in range(most)]
    return tuple(best)


def _whole(axis: Axis) -> int:
    """Positions that a single tile needs: padding before and after may lie in the same ones."""
    last = (axis.out - 1) * axis.stride + window(axis) - axis.pad
    first, end = max(0, -axis.pad), min(axis.inp, last)
    held = max(0, end - first)
    before, after = max(0, first + axis.pad), max(0, last - max(end, first))
    return max(held + max(before, after), (axis.out - 1) * axis.stride + 1, 1)
