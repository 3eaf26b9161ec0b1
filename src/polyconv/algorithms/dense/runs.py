"""Runs of ``stem``: the taps of a row of the kernel and their channels lie together, and are one entry of a list.

So they lie in a panel of lines, [line][pixel][channel], and often in the input itself.  There tiles whose windows meet
no padding read it in place, and lines are copied for the others only.  Without any padding planes of channels are read
in place as well: the taps of a row of a channel are a run.  It must not know how boxes are chosen.
"""

from __future__ import annotations

import math
import sys

from polyconv.algorithms.dense.entries import Entries, Places, entries_of, in_panel
from polyconv.algorithms.dense.price import row_bands
from polyconv.algorithms.dense.sizes import Sizes
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import ARITHMETIC, run_tiles
from polyconv.lowering.bands import bands, whole_bands
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.program import Request
from polyconv.lowering.situation import Situation, accumulator_arithmetic
from polyconv.lowering.sweep import Axis, Sweep, inside, sweeps

__all__ = ["by_planes", "copied", "is_same", "is_whole", "runs", "runs_of"]

_LEAST_LINE = 1 << 10
"""Bytes of a line that is copied as a whole sooner than its two ends."""


def is_same(s: Situation) -> bool:
    """Whether tiles multiply the elements of the input as they are, without conversion."""
    p = s.problem
    return p.x_dtype.is_float and LLVM_NAMES[p.x] == ARITHMETIC[accumulator_arithmetic(s)].accumulator


def is_whole(s: Situation) -> bool:
    """Whether no window meets padding and no element is converted, so that all is read in place."""
    return is_same(s) and all(inside(axis) == range(axis.out) for axis in sweeps(s.problem)[0])


def by_planes(s: Situation) -> bool:
    """Whether a run is the taps of a row of one channel, not of all channels."""
    return s.problem.layout == "NCHW" and s.problem.c > s.problem.groups and is_whole(s)


def runs_of(last: Axis, *, together: bool = True) -> list[tuple[int, int]]:
    """Runs of taps of a row, first tap and number: without dilation all are one, if neighbours lie ``together``."""
    if together and last.dilation == 1 and last.taps:
        return [(0, last.taps)]
    return [(t, 1) for t in range(last.taps)]


def runs(r: Request, sweep: Sweep, sizes: Sizes, *, gapless: bool) -> tuple[Entries, int, range]:
    """Entries of a sweep, bytes to those that read the input in place, and which outputs of a row do so.

    Lines of the input may lie ``gapless``, as they would in the panel.  Input is read in place if boxes have whole
    rows, not too short, and rows leave out all lines of padding.
    """
    s, outer, last = r.situation, sweep[:-1], sweep[-1]
    channels, pixel, size = r.problem.c // r.problem.groups, r.x.spatial[-1], r.arith.bytes
    taps = math.prod(axis.taps for axis in sweep)
    of_panel = in_panel(sizes.held, sizes.line_bytes)
    of_x = [[t * axis.dilation * step for t in range(axis.taps)]
            for axis, step in zip(outer, r.x.spatial, strict=False)]  # fmt: skip

    def places(offsets: list[list[int]], pixel: int, channel: int, together: bool) -> Places:
        row = [(t * last.dilation * pixel, t, n, 0) for t, n in runs_of(last, together=together)]
        if not by_planes(s):
            return Places(offsets, row, last.taps, [(0, channels, 0)] if channels else [], 1)
        return Places(offsets, row, last.taps, [(c * channel, 1, c * taps) for c in range(channels)], channels)

    if by_planes(s):
        near = pixel == r.x.itemsize
        found = places(of_x, pixel, r.x.c, True) if near else places(of_panel, sizes.row_bytes, size, False)
        return entries_of(found, whole_bands(outer)), 0, range(sizes.box[-1] if near else 0)
    panel = places(of_panel, sizes.row_bytes, size, True)
    entries = entries_of(panel, row_bands(sweep, len(panel.row) * math.prod(map(len, of_panel))))
    told_apart = len(entries.lists) == math.prod(len(kinds) for kinds, _ in bands(outer, sys.maxsize))
    whole, in_place, outputs = is_whole(s), 8 * len(entries.words), range(0)
    long = sizes.box[-1] == last.out and sizes.line_bytes >= s.near(_LEAST_LINE)
    if gapless and is_same(s) and told_apart and (whole or long):
        entries.words.extend(entries_of(places(of_x, pixel, 0, True), entries.bands).words)
        outputs = range(sizes.box[-1]) if whole else inside(last)
    return entries, in_place, outputs


def copied(r: Request, last: Axis, sizes: Sizes, outputs: range) -> tuple[tuple[int, int, int], ...]:
    """Runs of pixels of a line that tiles read which do not read the input in place, as these ``outputs`` may."""
    low, high = 0, sizes.box[-1]
    for vectors in (sizes.blocks.vectors, sizes.blocks.last_vectors):
        for first, rows in near_equal(sizes.box[-1], run_tiles(r.target, r.arith)[vectors]):
            low = max(low, first + rows) if first < outputs.start else low
            high = min(high, first) if first + rows > outputs.stop else high
    span = sizes.held[-1].count
    left = (low - 1) * last.stride + (last.taps - 1) * last.dilation + 1 if low else 0
    right = high * last.stride if high < sizes.box[-1] else span
    if left >= right:
        return ((0, span, 0),)
    return tuple((first, end - first, first) for first, end in ((0, left), (right, span)) if first < end)
