"""Entries of ``direct`` and ``stem``: what a tile multiplies, as lists of (offset, words, rows of weights before it).

For every block of input channels every run of taps.  Rows of outputs leave out the taps of outer axes that meet only
padding there, so there is a list for every combination of taps.  It must not know how tiles read them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from polyconv.algorithms.dense.driver import ChunkList
from polyconv.dataclass import dataclass
from polyconv.lowering.bands import Bands
from polyconv.lowering.sweep import Lines

__all__ = ["Entries", "Places", "entries_of", "in_panel"]

_WORDS = 3


@dataclass(frozen=True, slots=True)
class Places:
    """Where inputs lie.

    Parameters
    ----------
    outer : sequence of sequence of int
        Offset of every tap along each outer axis.
    row : sequence of (int, int, int, int)
        Runs of taps along the last axis: offset, first tap, number, and which end of a line they miss, if one.
    row_taps : int
    blocks : sequence of (int, int, int)
        Blocks of input channels: offset, words, rows of weights before them.
    per_chunk : int
        Blocks that the panel holds at a time.
    """

    outer: Sequence[Sequence[int]]
    row: Sequence[tuple[int, int, int, int]]
    row_taps: int
    blocks: Sequence[tuple[int, int, int]]
    per_chunk: int

    def entries(self, ranges: Sequence[range]) -> tuple[list[int], int]:
        """Words of the entries of some taps of the outer axes, and how many entries a chunk of channels has.

        Above an entry's words stands which end of a line its taps miss.
        """
        outer = [(0, 0)]
        for offsets, some in zip(self.outer, ranges, strict=True):
            outer = [(at + offsets[t], tap * len(offsets) + t) for at, tap in outer for t in some]
        of_taps = [
            (at + place, tap * self.row_taps + t, taps, end << 32)
            for at, tap in outer for place, t, taps, end in self.row
        ]  # fmt: skip
        found: list[int] = []
        for begin, words, before in self.blocks:
            for at, tap, taps, end in of_taps:
                found += (begin + at, words * taps | end, before + tap * words)
        return found, max(1, self.per_chunk * len(outer) * len(self.row))


@dataclass(frozen=True, slots=True)
class Entries:
    """Lists of entries.

    Parameters
    ----------
    bands : list of Bands
        Of the outer axes: which list a row has.
    lists : list of ChunkList
    words : list of int
        Of all entries; those of all taps are the first.
    """

    bands: list[Bands]
    lists: list[ChunkList]
    words: list[int]


def entries_of(places: Places, bands: list[Bands]) -> Entries:
    """The entries of all taps, and of those that rows have by some bands."""
    all_taps = tuple(range(len(offsets)) for offsets in places.outer)
    words, chunk_count = places.entries(all_taps)
    count = len(words) // _WORDS
    lists = []
    for ranges in itertools.product(*(kinds for kinds, _ in bands)):
        if ranges == all_taps:
            lists.append(ChunkList(0, count, chunk_count))
        else:
            some, of_chunk = places.entries(ranges)
            lists.append(ChunkList(len(words) // _WORDS, len(some) // _WORDS, of_chunk))
            words += some
    return Entries(bands, lists, words)


def in_panel(held: Sequence[Lines], line_bytes: int) -> list[list[int]]:
    """Offsets in a panel of every tap along each outer axis."""
    offsets: list[list[int]] = []
    for lines in reversed(held[:-1]):
        offsets.insert(0, [line * line_bytes for line in lines.start])
        line_bytes *= lines.count
    return offsets
