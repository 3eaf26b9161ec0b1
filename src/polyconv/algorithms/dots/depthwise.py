"""Depthwise convolutions of small integers: up to four outputs a channel, any taps.

Words hold inputs of one channel that several taps meet, four of bytes or two of 16 bits; what is left of the last word
meets weights of zero.  Taps of a window along the line share what is woven: they are of one line each, or of every so
many places of it.  Boxes and what follows sums are those of ``blocks``.
Cost: a product for the taps that share a word, and weaving the columns of inputs that windows slide over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.blocks import Block, BlocksForm, line_offsets, refusal, row_step
from polyconv.algorithms.dots.form import Sizes
from polyconv.algorithms.dots.situations import narrow_arithmetic
from polyconv.algorithms.form import Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.dots_depthwise import Window, depthwise_dot_row, depthwise_dot_tile, woven_channels
from polyconv.kernels.fused import FusedTile, WordWalk
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Address
from polyconv.lowering.bands import whole_bands
from polyconv.lowering.boxes import near_equal_sizes, row_lists
from polyconv.lowering.program import Request, address_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Lines, Sweep, line_pixels, taps_of
from polyconv.runtime.arrays import as_aligned

__all__ = ["DepthwiseForm", "forms"]

_MOST_TAPS, _MOST_LINES = 7, 12
"""Most taps of a window, and inputs of a column of a walk: a kernel has code for each of them."""
_MOST_OUTPUTS = 4
"""Most outputs of a channel."""
_MOST_COLUMNS, _MOST_SHARED = 5, 3
"""Of a tile whose windows share columns, these and taps of a window: LLVM weaves them all before it multiplies, so that
with more sums spill.  Measured on Zen 5."""
_HELD = 12
"""Vectors of weights that stay in registers."""
_WEIGHTS_SHARE = 1 / 4
"""Of the first-level cache, for weights that every tile reads anew beside its inputs."""
_MOST_STREAMS, _ROW_SHARE, _LATE_CYCLES = 24, 1 / 2, 2.0
"""Lines that a CPU asks for by itself; of the first-level cache, for all inputs of a row of outputs of a block; and
cycles that an input of more lines takes longer where it does not hold them: 1 to 3.7 in columns of 38 to 115 taps.
Measured on Zen 5."""
_TILE_CYCLES, _ROW_CYCLES = 25.0, 60.0
"""Of starting a tile, and a row.  Measured on Zen 5, by rows of 1 to 5 outputs."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if (reason := refusal(s)) is not None:
        return reason
    if p.c != p.groups or not 0 < p.m <= _MOST_OUTPUTS * p.c:
        return f"needs one channel a group, with up to {_MOST_OUTPUTS} outputs"
    return (DepthwiseForm.of(s),)


@dataclass(frozen=True, slots=True)
class Cut:
    """How the taps along a line are cut into windows.

    Window tap ``i`` that begins at tap ``t`` of the line is ``t + i * apart``.  A run of windows begins at each of
    ``apart`` neighbouring taps, the next run where these end.

    Parameters
    ----------
    taps : int
        Of a window.
    apart : int
    stride : int
        Columns between outputs of the same phase.
    phases : int
        Outputs whose windows have no column in common lie side by side: so many.
    walks : bool
        Whether sums of a row are carried on from pixel to pixel; else tiles have some pixels.
    """

    taps: int
    apart: int
    stride: int
    phases: int
    walks: bool

    def begins(self, taps: int) -> list[int]:
        """Taps at which windows begin, of so many along a line."""
        run = self.taps * self.apart
        return [t for first in range(0, taps, run) for t in range(first, min(first + self.apart, taps))]

    def behind(self, taps: int) -> int:
        """Taps that windows reach behind the last one."""
        return max((t + (self.taps - 1) * self.apart for t in self.begins(taps)), default=0) - max(0, taps - 1)


def _cuts(axis: Axis, together: int) -> Iterator[Cut]:
    """The cuts of an axis whose windows share columns, and that into single taps."""
    for walks in (False, True):
        yield Cut(1, max(1, axis.taps), 1, 1, walks)
        for apart in range(1, together + 1):
            step = apart * axis.dilation
            common = math.gcd(axis.stride, step)
            for taps in range(2, min(_MOST_TAPS, -(-axis.taps // apart)) + 1):
                if axis.stride // common <= taps if walks else axis.stride == common and taps <= _MOST_SHARED:
                    yield Cut(taps, apart, axis.stride // common, step // common, walks)


@lru_cache(1024)
def _cut_of(s: Situation, sweep: Sweep) -> Cut:
    """The cut by which a row of outputs costs least."""
    together, outer = narrow_arithmetic(s).channels, math.prod(axis.taps for axis in sweep[:-1])
    fitting = [
        cut for cut in _cuts(sweep[-1], together)
        if not cut.walks or 0 < outer * len(cut.begins(sweep[-1].taps)) <= _MOST_LINES
    ]  # fmt: skip
    return min(fitting, key=lambda cut: s.price(cut, _row_cycles(s, sweep, cut)))


def _window(s: Situation, cut: Cut) -> Window:
    return Window(lanes(s.target, narrow_arithmetic(s)), s.problem.m // s.problem.c, cut.taps, cut.stride)


def _most_rows(s: Situation, cut: Cut) -> int:
    """Rows of the largest tile: sums, weights that are used again, and what is woven fit the registers."""
    together, window = narrow_arithmetic(s).channels, _window(s, cut)
    sums, used = window.sums(together), 2 * together + 2 * window.vectors(together)
    if cut.taps > 1:
        return max(1, min(_MOST_COLUMNS + 1 - cut.taps, (s.target.registers - used) // sums))
    return max(1, min(_MOST_COLUMNS - 1, (s.target.registers - used) // sums - 1))


def _row_cycles(s: Situation, sweep: Sweep, cut: Cut) -> float:
    """Cycles of products and weaving of a row of outputs of a block."""
    arith, last = narrow_arithmetic(s), sweep[-1]
    window, together, rates, slow = _window(s, cut), arith.channels, s.rates(arith), 1.0 if s.target.vnni else 1.5
    sums = window.sums(together)
    words = -(-math.prod(axis.taps for axis in sweep[:-1]) * len(cut.begins(last.taps)) // together)
    weaving = _weaving(together, window.vectors(together))
    phases, outputs = min(cut.phases, max(1, last.out)), -(-last.out // cut.phases)
    products = words * cut.taps * sums
    if cut.walks:
        step = max(slow * products / rates.multiply_adds, products / rates.loads * (products > _HELD))
        step += words * weaving * cut.stride
        return phases * (outputs * step + 30 + products)
    lines = math.prod(axis.taps for axis in sweep[:-1])
    inputs = lines * line_pixels(last, last.out)[0].count * s.target.vector_bytes
    late = _LATE_CYCLES * together * (lines > _MOST_STREAMS and inputs > s.cache("l1", _ROW_SHARE))
    far = words * cut.taps * sums * s.target.vector_bytes > s.cache("l1", _WEIGHTS_SHARE)
    cycles = 0.0
    for rows, count in near_equal_sizes(outputs, _most_rows(s, cut)):
        columns = len({row * cut.stride + tap for row in range(rows) for tap in range(cut.taps)})
        loads = columns * together + cut.taps * sums * (1 + far)
        step = max(slow * cut.taps * sums * rows / rates.multiply_adds + columns * weaving / 2, loads / rates.loads)
        cycles += count * (words * (max(step, rates.latency) + 2 + columns * late) + _TILE_CYCLES)
    return phases * cycles + _ROW_CYCLES


def _weaving(together: int, vectors: int) -> float:
    """Cycles in which a column is woven, two vectors moved in each."""
    return (together * math.log2(together) if vectors == together else vectors + together // 2 + 1) / 2


@dataclass(frozen=True, slots=True)
class DepthwiseForm(BlocksForm):
    """Walks along rows of pixels, or tiles of some, whose columns are woven once for all outputs that they are of."""

    @staticmethod
    def pixels(s: Situation, sweep: Sweep, outputs: int) -> tuple[Lines, int, int]:
        """The pixels of a line of the panel: as they lie, where windows slide over them."""
        cut, last = _cut_of(s, sweep), sweep[-1]
        if cut.taps == 1:
            return *line_pixels(last, outputs), 0
        span, behind = (outputs - 1) * last.stride + (last.taps - 1) * last.dilation + 1, cut.behind(last.taps)
        starts = tuple(t * last.dilation for t in range(last.taps))
        return Lines(range(span), ((0, span, 0),), starts), 1, behind * last.dilation

    def products(self, sweep: Sweep, sizes: Sizes) -> float:
        """Cycles of an image's products and weaving, and of what follows sums."""
        rows = math.prod(axis.out for axis in sweep[:-1]) * sizes.blocks
        row = _row_cycles(self.s, sweep, _cut_of(self.s, sweep)) + sweep[-1].out * self.leaving(sweep[-1])
        return rows * row

    def choices(self) -> dict[str, object]:
        """Boxes, and windows of the first sweep that has taps."""
        if not self.parts:
            return {}
        cut = _cut_of(self.s, self.shown.sweep)
        window = f"{cut.taps} taps, {cut.apart} apart, {'walks along rows' if cut.walks else 'tiles'}"
        return {**BlocksForm.choices(self), "window": window}

    def block(self, r: Request, sweep: Sweep, sizes: Sizes) -> Block:
        """How blocks of a request are multiplied."""
        arith, last, s = r.arith, sweep[-1], self.s
        cut, together = _cut_of(s, sweep), arith.channels
        window, starts = _window(s, cut), sizes.held[-1].start
        entries = [
            line + starts[t] * sizes.pixel_bytes for line in line_offsets(sizes) for t in cut.begins(last.taps)
        ]
        words = -(-len(entries) // together)
        entries += entries[-1:] * (words * together - len(entries))
        channels = woven_channels(together, window.lanes, window.times)
        key = ("dots_depthwise", arith.name, str(window), cut, taps_of(sweep))
        lists = [entries, *[[]] * (math.prod(axis.taps for axis in sweep[:-1]) - 1)]
        return Block(
            weights=r.packed(key, lambda: _packed(r.weights(sweep), last.taps, cut, np.array(channels), together)),
            rows=row_lists(sweep[:-1], lists, 1 if cut.walks else together, whole_bands(sweep[:-1])),
            channels=tuple(itertools.chain.from_iterable(channels)),
            most=0 if cut.walks else _most_rows(s, cut),
            tile=lambda spec, rows: _tile(r, spec, window, words, 0 if cut.walks else rows),
            word=row_step(sweep, sizes) if cut.taps == 1 else cut.apart * last.dilation * sizes.pixel_bytes,
            phases=cut.phases,
        )  # fmt: skip


def _tile(r: Request, spec: FusedTile, window: Window, words: int, rows: int) -> Address[WordWalk]:
    """Address of the tile of so many rows, or of the walk along a row."""

    def make(k: Module, name: str) -> None:
        if rows:
            depthwise_dot_tile(k, name, spec, window, rows)
        else:
            depthwise_dot_row(k, name, spec, window, words)

    what = f"of {rows}" if rows else f"along {words}"
    return address_of(r, f"depthwise dots {spec} {window} {what}", "tile", WordWalk, make)


def _packed(w: NDArray[Any], taps: int, cut: Cut, channels: NDArray[Any], together: int) -> NDArray[Any]:
    """Weights (c, outputs, 1, taps) as [block][word][tap of the window][sum][lane][input of the word]."""
    count, times, begins = w.shape[0], w.shape[1], cut.begins(taps)
    lines, block = w.shape[3] // max(1, taps), channels.size // times
    blocks, words = -(-count // block), -(-lines * len(begins) // together)
    whole = np.zeros((blocks * block, times, words * together, cut.taps), w.dtype)
    apart = w.reshape(count, times, lines, taps)
    for number, (line, t) in enumerate(itertools.product(range(lines), begins)):
        some = apart[:, :, line, t :: cut.apart][..., : cut.taps]
        whole[:count, :, number, : some.shape[-1]] = some
    of_sums = whole.reshape(blocks, block * times, words, together, cut.taps)[:, channels]
    return as_aligned(of_sums.transpose(0, 3, 5, 1, 2, 4))  # of blocks, sum, lane, word, input, tap
