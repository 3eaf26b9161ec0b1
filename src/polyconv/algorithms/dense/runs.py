"""Runs of ``stem``: the taps of a row of the kernel and their channels lie together, and are one entry of a list.

So they lie in a panel of lines, [line][pixel][channel], and often in the input itself.  There tiles whose windows meet
no padding read it in place, and lines are copied for the others only.  Without any padding planes of channels are read
in place as well: the taps of a row of a channel are a run.  It must not know how boxes are chosen.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dense.driver import ChunkList
from polyconv.algorithms.dense.sizes import Sizes
from polyconv.algorithms.program import Request, Situation, accumulator_arithmetic, listed_rows, near_equal
from polyconv.algorithms.sweep import Axis, Sweep, bands, bands_table, inside, sweeps, whole_bands
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import ARITHMETIC, run_tiles
from polyconv.kernels.record import words, words_of

__all__ = ["Lists", "by_planes", "copied", "is_same", "is_whole", "lists_of", "runs_of"]

_LEAST_LINE = 1 << 10
"""Bytes of a line that is copied as a whole sooner than its two ends."""

_ENTRY_WORDS = 3


def is_same(s: Situation) -> bool:
    """Whether elements are what the tile multiplies."""
    p = s.problem
    return p.x_dtype.is_float and LLVM_NAMES[p.x] == ARITHMETIC[accumulator_arithmetic(s)].accumulator


def is_whole(s: Situation) -> bool:
    """Whether no window meets padding, so that all is read in place."""
    return is_same(s) and all(inside(axis) == range(axis.out) for axis in sweeps(s.problem)[0])


def by_planes(s: Situation) -> bool:
    """Whether runs are the taps of a row of one channel, not of all."""
    return s.problem.layout == "NCHW" and s.problem.c > s.problem.groups and is_whole(s)


def runs_of(last: Axis) -> list[tuple[int, int]]:
    """Runs of taps of a row that lie together: the first one's offset in pixels, and how many."""
    return [(0, last.taps)] if last.dilation == 1 else [(t * last.dilation, 1) for t in range(last.taps)]


def _entries(last: Axis, channels: int, places: Sequence[int], pixel: int) -> tuple[tuple[int, ...], ...]:
    """Words of the entries of every combination of the outer axes' taps, whose inputs begin at some places."""
    row_words = channels * last.taps
    return tuple(
        tuple(
            v for at, taps in runs_of(last) if row_words
            for v in (place + at * pixel, taps * channels, tap * row_words + at // last.dilation * channels)
        ) for tap, place in enumerate(places)
    )  # fmt: skip


def _plane_entries(last: Axis, channels: int, places: Sequence[int], pixel: int, channel: int, *,
                   together: bool) -> list[int]:  # fmt: skip
    """The same channel by channel, which lie some bytes apart, for weights in that order; all are one list.

    Taps of a row may lie ``together``, and are a run.
    """
    runs = [(0, last.taps)] if together and last.taps else [(t, 1) for t in range(last.taps)]
    taps = len(places) * last.taps
    return [
        v for c in range(channels) for tap, place in enumerate(places) for t, count in runs
        for v in (c * channel + place + t * last.dilation * pixel, count, c * taps + tap * last.taps + t)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists of entries.

    Parameters
    ----------
    bands : array
        Which list a row has, as ``bands_table`` says it.
    lists : list of ChunkList
    entries : array
        Behind those of the panel stand those of the input in place, ``in_place`` bytes further.
    in_place : int
    outputs : range
        Outputs of a row whose tiles read the input in place.
    """

    bands: NDArray[np.int64]
    lists: list[ChunkList]
    entries: NDArray[np.int64]
    in_place: int
    outputs: range


def lists_of(r: Request, sweep: Sweep, sizes: Sizes, *, gapless: bool) -> Lists:
    """Lists of entries of a sweep; lines of the input may lie ``gapless``, as they would in the panel.

    Input is read in place if boxes have whole rows, not too short, and rows leave out all lines of padding.
    """
    s, outer, last = r.situation, sweep[:-1], sweep[-1]
    channels, pixel = r.problem.c // r.problem.groups, r.x.spatial[-1]
    in_panel, in_x = [0], [0]
    for axis, held, step in zip(outer, sizes.held, r.x.spatial, strict=False):
        in_panel = [at * held.count + line for at in in_panel for line in held.start]
        in_x = [place + t * axis.dilation * step for place in in_x for t in range(axis.taps)]
    in_panel = [at * sizes.line_bytes for at in in_panel]
    if by_planes(s):
        together = pixel == r.x.itemsize
        entries = (
            _plane_entries(last, channels, in_x, pixel, r.x.c, together=last.dilation == 1) if together else
            _plane_entries(last, channels, in_panel, sizes.row_bytes, r.arith.bytes, together=False)
        )  # fmt: skip
        count = len(entries) // _ENTRY_WORDS
        return Lists(
            words(bands_table(whole_bands(outer))), [ChunkList(0, count, count)], words(entries), 0,
            range(sizes.box[-1] * together),
        )  # fmt: skip
    table, lists, entries = listed_rows(outer, _entries(last, channels, in_panel, sizes.row_bytes), _ENTRY_WORDS)
    told_apart = len(lists) == math.prod(len(kinds) for kinds, _ in bands(outer, sys.maxsize))
    whole, in_place, outputs = is_whole(s), words(entries).nbytes, range(0)
    long = sizes.box[-1] == last.out and sizes.line_bytes >= s.near(_LEAST_LINE)
    if gapless and is_same(s) and told_apart and (whole or long):
        entries += listed_rows(outer, _entries(last, channels, in_x, pixel), _ENTRY_WORDS)[2]
        outputs = range(sizes.box[-1]) if whole else inside(last)
    of_rows = [ChunkList(first // _ENTRY_WORDS, count, count) for first, count in map(words_of, lists)]
    return Lists(table, of_rows, words(entries), in_place, outputs)


def copied(r: Request, last: Axis, sizes: Sizes, outputs: range) -> tuple[tuple[int, int, int], ...]:
    """Runs of pixels of a line that tiles read which do not read the input in place, as these ``outputs`` may."""
    low, high = 0, sizes.box[-1]
    for vectors in (sizes.blocks.vectors, sizes.blocks.last_vectors):
        for first, rows in near_equal(sizes.box[-1], run_tiles(r.target)[vectors]):
            low = max(low, first + rows) if first < outputs.start else low
            high = min(high, first) if first + rows > outputs.stop else high
    span = sizes.held[-1].count
    left = (low - 1) * last.stride + (last.taps - 1) * last.dilation + 1 if low else 0
    right = high * last.stride if high < sizes.box[-1] else span
    if left >= right:
        return ((0, span, 0),)
    return tuple((first, end - first, first) for first, end in ((0, left), (right, span)) if first < end)
