"""How the outputs of an axis are cut into tiles, and tiles into boxes.

Outputs of one residue modulo a dilation are a convolution without dilation, of the inputs of one residue: a tile has
outputs a dilation apart, and a box tiles of several residues.  The last tiles of an axis may be one output short: they
do without the point infinity and use the same weights, so that edges waste nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, Self

from polyconv.lowering.boxes import near_equal
from polyconv.lowering.sweep import Axis

__all__ = ["UNCUT", "Cut", "Cuts", "cuts", "halves", "tile_count", "tile_sizes"]


class Cut(NamedTuple):
    """The tiles of a box along one axis: outputs of some neighbouring residues modulo the dilation.

    Parameters
    ----------
    first : int
        First output of the first residue; the others follow it.
    apart : int
        Outputs between neighbours in a tile: the dilation.
    residues : int
        Without dilation there is one; no box has more than the first.
    sizes : tuple of int
        Outputs of each tile of the first residue, full ones first.
    whole : int
        Residues that are like the first; the last tile of the others has an output less.
    tiles, full : int
        Number of tiles of all residues, and of those that are not short.
    covers, span : int
        Number of outputs, and outputs from the first to the last.
    segments : (int, int, int)
        Runs of outputs next to each other, a dilation apart: how many, outputs of each, and of the last.
    """

    first: int
    apart: int
    residues: int
    sizes: tuple[int, ...]
    whole: int
    tiles: int
    full: int
    covers: int
    span: int
    segments: tuple[int, int, int]

    @classmethod
    def of(cls, first: int, apart: int, residues: int, sizes: tuple[int, ...], whole: int, m: int) -> Self:
        """Such tiles, those of ``m`` outputs full."""
        last, fewer, lines = sizes[-1], residues - whole, sum(sizes)
        tiles = residues * len(sizes) - fewer * (last == 1)
        full = residues * sizes.count(m) + fewer * ((last - 1 == m) - (last == m))
        span = apart * (lines - 1) + whole
        segments = (1, span, span) if residues == apart else (lines, residues, whole)
        return cls(first, apart, residues, sizes, whole, tiles, full, residues * lines - fewer, span, segments)

    @property
    def shape(self) -> tuple[Any, ...]:
        """All but where it begins."""
        return self[1:]

    @property
    def alike(self) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """Neighbouring residues with equal tiles: the first, how many, the outputs of each tile."""
        groups = (0, self.whole, self.sizes), (self.whole, self.residues - self.whole, _fewer(self.sizes))
        return tuple(group for group in groups if group[1])


class Cuts(NamedTuple):
    """An axis in boxes.

    Parameters
    ----------
    boxes : tuple of Cut
        The first has as many tiles as any.
    alike : tuple of (Cut, int)
        Boxes with equal tiles, wherever they begin: one of each, and how many there are.
    """

    boxes: tuple[Cut, ...]
    alike: tuple[tuple[Cut, int], ...]

    @property
    def first(self) -> Cut:
        """The first box."""
        return self.boxes[0]


_ONE_ROW = Cut.of(0, 1, 1, (1,), 1, 1)
UNCUT = Cuts((_ONE_ROW,), ((_ONE_ROW, 1),))
"""The one row of outputs of a sweep of which only the last axis is transformed."""


def tile_sizes(out: int, m: int) -> tuple[int, ...]:
    """Cut outputs into tiles of m, the last ones one output short where that comes out even; else the last is cut."""
    count = -(-out // m)
    short = count * m - out
    if m > 1 and short <= count:
        return (m,) * (count - short) + (m - 1,) * short
    return (m,) * (count - 1) + (out - (count - 1) * m,)


def tile_count(axis: Axis, m: int) -> int:
    """Tiles of the first residue of an axis."""
    return len(tile_sizes(-(-axis.out // axis.dilation), m))


def halves(whole: int) -> list[int]:
    """A number, and what remains of it, halved again and again."""
    found = [whole]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2))
    return found


def cuts(axis: Axis, m: int, most: int, residues: int) -> Cuts:
    """An axis in boxes of at most so many tiles of each residue and so many residues.

    Which outputs make a tile is the same however boxes are cut.
    """
    return _cuts(axis.out, axis.dilation, m, most, residues)


@lru_cache(1024)
def _cuts(out: int, apart: int, m: int, most: int, residues: int) -> Cuts:
    sizes = tile_sizes(-(-out // apart), m)
    longer = out % apart or apart  # residues with as many outputs as the first
    boxes: list[Cut] = []
    found: dict[tuple[int, tuple[int, ...], int], list[Cut]] = {}
    for low, together in near_equal(apart, residues):
        done = 0
        for begin, count in near_equal(len(sizes), most):
            here = sizes[begin : begin + count]
            whole = together if begin + count < len(sizes) else min(max(longer - low, 0), together)
            tiles = here, whole
            if not whole:
                tiles = _fewer(here), together
            if tiles[0]:
                same = found.setdefault((together, *tiles), [])
                first = low + done * apart
                same.append(Cut(first, *same[0].shape) if same else Cut.of(first, apart, together, *tiles, m))
                boxes.append(same[-1])
            done += sum(here)
    return Cuts(tuple(boxes), tuple([(same[0], len(same)) for same in found.values()]))


def _fewer(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Outputs of tiles, the last one's an output less."""
    return (*sizes[:-1], *((sizes[-1] - 1,) if sizes[-1] > 1 else ()))
