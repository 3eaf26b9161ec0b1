"""Entries of ``direct``: what a tile multiplies, as lists of (panel offset, words, rows of weights before it).

For every block of input channels every tap.  Rows of outputs leave out the taps of outer axes that meet only padding
there, so there is a list for every combination of taps.  It must not know how tiles read them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from polyconv.algorithms.dense.driver import ChunkList
from polyconv.algorithms.dense.price import missed_ends, row_bands
from polyconv.algorithms.dense.sizes import Sizes, channel_words
from polyconv.algorithms.sweep import Bands, Sweep, whole_bands
from polyconv.kernels.isa import Arithmetic
from polyconv.kernels.tile import ROW_WORDS

__all__ = ["Entries", "entries_of", "tap_offsets"]

_WORDS = 3


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
    count, chunk_count : int
        Entries of all taps, and how many of them are a chunk's.
    """

    bands: list[Bands]
    lists: list[ChunkList]
    words: list[int]
    count: int
    chunk_count: int


def entries_of(arith: Arithmetic, sweep: Sweep, sizes: Sizes, channels: int, *, careful: bool, fused: bool) -> Entries:
    """The entries of a sweep with so many input channels a group.

    Parameters
    ----------
    careful : bool
        Whether products with padding are left out one by one, so that all rows have one list.
    fused : bool
        Whether tiles multiply the padding at the ends of a row; others are told which taps miss which end.
    """
    all_taps = tuple(range(axis.taps) for axis in sweep[:-1])
    missed = [0] * sweep[-1].taps if fused else missed_ends(sweep[-1])
    words, chunk_count = _of_taps(arith, sizes, channels, all_taps, missed)
    count = len(words) // _WORDS
    found = whole_bands(sweep[:-1]) if careful else row_bands(sweep, count)
    lists = []
    for ranges in itertools.product(*(kinds for kinds, _ in found)):
        if ranges == all_taps:
            lists.append(ChunkList(0, count, chunk_count))
        else:
            some, of_chunk = _of_taps(arith, sizes, channels, ranges, missed)
            lists.append(ChunkList(len(words) // _WORDS, len(some) // _WORDS, of_chunk))
            words += some
    return Entries(found, lists, words, count, chunk_count)


def _of_taps(arith: Arithmetic, sizes: Sizes, channels: int, ranges: Sequence[range], missed: Sequence[int]
             ) -> tuple[list[int], int]:  # fmt: skip
    """Words of the entries of some taps of the outer axes, and how many entries a chunk of channels has.

    Offsets and rows start anew in each chunk.  Above an entry's words stands which end of a line its tap misses.
    """
    outer = [(0, 0)]
    for held, some in zip(sizes.held[:-1], ranges, strict=True):
        outer = [(o * held.count + held.start[t], tap * len(held.start) + t) for o, tap in outer for t in some]
    last = sizes.held[-1].start
    places = [
        (o * sizes.line_bytes + at * sizes.row_bytes, tap * len(last) + t, missed[t] << 32)
        for o, tap in outer for t, at in enumerate(last)
    ]  # fmt: skip
    taps = math.prod(len(held.start) for held in sizes.held)
    words: list[int] = []
    block_channels = ROW_WORDS * arith.channels
    per_chunk = sizes.chunk // block_channels
    for block, first in enumerate(range(0, channels, block_channels)):
        count = channel_words(min(block_channels, channels - first), arith)
        of_chunk = block % per_chunk
        for at, tap, end in places:
            words += (of_chunk * sizes.block_bytes + at, count | end, of_chunk * ROW_WORDS * taps + tap * count)
    return words, max(1, per_chunk * len(places))


def tap_offsets(sweep: Sweep) -> list[int]:
    """Input positions of every tap along every axis, in the order of a channel block's entries."""
    taps: list[list[int]] = [[]]
    for axis in sweep:
        taps = [[*t, u * axis.dilation] for t in taps for u in range(axis.taps)]
    return [offset for t in taps for offset in t]
