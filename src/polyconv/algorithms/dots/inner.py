"""Small integers with few output channels a group: words of a window's line in the lanes, added at the end.

In ``dense`` lanes are output channels, of which there are fewer than lanes here.  A tile multiplies as many words of a
line of a kernel as a vector holds by the weights of each of its outputs, pixel by pixel, from a panel in which channels
lie together, whatever the layout.  Boxes, panel, and the driver are those of ``dense``.  CPUs with AVX-512.
Cost: the products, with lines filled to whole vectors, adding the lanes of sums, and one pass over input and output.
Exact: sums are taken modulo 2^32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.axes import OrderedForm
from polyconv.algorithms.dots.dense import word_entries
from polyconv.algorithms.dots.dense_sizes import ROW_CYCLES, fitting, sizes_of_box
from polyconv.algorithms.dots.driver import (
    DotTile,
    DotWords,
    common_words,
    driver_address,
    finished_in_registers,
    result_words,
)
from polyconv.algorithms.dots.form import Part, Sizes
from polyconv.algorithms.dots.panel import copying_cycles, panel_words
from polyconv.algorithms.dots.situations import (
    arithmetic_of,
    channel_bytes,
    integer_refusal,
    row_bands,
    window_outputs,
    windows,
    with_row_biases,
    zero_weight,
)
from polyconv.algorithms.dots.weights import by_lines
from polyconv.algorithms.form import Forms
from polyconv.kernels.dots_inner import inner_tile
from polyconv.kernels.fused import FusedTile, WordWalk, of_sums
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Module
from polyconv.kernels.layout import Move
from polyconv.kernels.record import counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.bands import share_met
from polyconv.lowering.boxes import near_equal_sizes, row_lists
from polyconv.lowering.moves import along_in, move_in_address
from polyconv.lowering.program import Request, Step, address_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep, box_count, taps_of
from polyconv.lowering.traffic import far_cycles
from polyconv.runtime.arrays import aligned, as_aligned

__all__ = ["InnerForm", "forms"]

_MOST_OUTPUTS = 16
"""Output channels of a block: as many as a vector has lanes."""
_CROSSING = 1.9
"""Loads as which one counts that begins anywhere: nearly all cross a cache line."""
_ADD_CYCLES, _TILE_CYCLES, _ENTRY_CYCLES = 0.8, 6.0, 2.0
"""Cycles of adding the lanes of a sum, of what else a tile takes, and of an entry.  Measured on Zen 5, as what follows,
in 20 layers."""
_AFAR = 1.5
"""Cycles of a vector of words that the nearest cache does not hold."""
_TURN, _TURN_BACK = 110.0, 50.0
"""Cycles of turning 16 pixels of 64 bytes from planes (of 16 bits twice as long), and of 16 pixels of results."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    if (reason := integer_refusal(s)) is not None:
        return reason
    p = s.problem
    if p.residual:
        return "adds no residual"
    if not 0 < p.m // max(1, p.groups) <= _most(s) or not p.c:
        return f"has blocks of up to {_most(s)} output channels, and needs inputs"
    return (InnerForm.of(s),)


def _most(s: Situation) -> int:
    """Most output channels of a block: lanes of a vector of results, less that of windows."""
    return _MOST_OUTPUTS - window_outputs(s)


@dataclass(frozen=True, slots=True)
class InnerForm(OrderedForm):
    """Tiles of some pixels by all outputs of a group."""

    @classmethod
    def part(cls, s: Situation, sweep: Sweep) -> Part:
        """A sweep with its sizes."""

        def sizes(box: tuple[int, ...]) -> Sizes:
            return replace(sizes_of_box(s, arithmetic_of(s), sweep, box, 1), blocks=1, last_vectors=1)

        found = fitting(s, sweep, sizes)
        return Part(sweep, found, found)

    @property
    def each(self) -> int:
        """Sums of a pixel."""
        return self.s.problem.m // self.s.problem.groups + window_outputs(self.s)

    @property
    def rows(self) -> int:
        """Pixels of a tile: their sums fill a vector."""
        return _MOST_OUTPUTS // self.each

    def cycles(self, sweep: Sweep, sizes: Sizes) -> tuple[float, float]:
        """Cycles of an image's products, with what follows sums, and of its moves."""
        s, p, arith, outer, last = self.s, self.s.problem, self.arith, sweep[:-1], sweep[-1]
        rates, count, group_in = s.rates(arith), box_count(sweep, sizes.box), p.c // p.groups
        entries = share_met(outer, row_bands(s, sweep)) * math.prod(axis.taps for axis in outer)
        entries *= 1 if sizes.whole_lines else last.taps
        steps = entries * _vectors(s, sweep, sizes)
        tiles, near = 0.0, s.profile.cache("l1", 1) >= entries * sizes.box[-1] * sizes.pixel_bytes * last.stride
        for rows, alike in near_equal_sizes(sizes.box[-1], self.rows):
            loads = (rows * _CROSSING + self.each) / rates.loads
            step = max(rows * self.each / rates.multiply_adds, loads, rates.latency, 0 if near else rows * 2 * _AFAR)
            tiles += alike * (steps * step + entries * _ENTRY_CYCLES + rows * self.each * _ADD_CYCLES + _TILE_CYCLES)
        products = p.groups * math.prod(sizes.box[:-1]) * count * (tiles + ROW_CYCLES)
        *lines, run = (max(1, h.count) for h in sizes.held)
        if p.layout == "NHWC":
            follow = p.groups == 1 and sizes.whole_lines and not self.is_turned
            moves = copying_cycles(s, sizes, group_in, follow=follow)
        else:
            squares = math.prod(lines) * -(-run // 16) * -(-group_in * p.x_dtype.itemsize // 64)
            moves = squares * _TURN * p.x_dtype.itemsize + math.prod(sizes.box) / 16 * _TURN_BACK
        read = p.groups * count * math.prod(lines) * run * group_in * p.x_dtype.itemsize
        return products, p.groups * count * (400 + moves) + far_cycles(s, read)

    def step(self, r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
        """Step of a sweep."""
        p, arith, last, lane = r.problem, r.arith, sweep[-1], lanes(r.target, r.arith)
        group_in, group_out = p.c // p.groups, p.m // p.groups
        w = r.weights(sweep)
        r, found, lists = with_row_biases(r, sweep, w)
        in_registers = finished_in_registers(r, last)
        vectors = _vectors(r.situation, sweep, sizes)
        packed = r.packed(("dots_inner", arith.name, sizes.whole_lines, taps_of(sweep)),
                          lambda: _packed(r, w, last.taps if sizes.whole_lines else 1, vectors))  # fmt: skip
        of_group = packed.nbytes // p.groups
        spec = replace(FusedTile(arith.name, p.y, r.epilogue) if in_registers else of_sums(arith.name),
                       windows=windows(r))  # fmt: skip
        common, items = common_words(r, sweep, sizes, p.groups)
        results = result_words(_by_lanes(r, lane), sweep, sizes, lane, in_registers=in_registers, are_alike=lists < 2)
        move = Move(p.x, f"i{8 * channel_bytes(arith)}", along_in(r, replace(last, stride=sizes.step), "c"))
        edge = last.out % sizes.box[-1] or sizes.box[-1]
        tiles = [[], [], *(_tiles(r, self, spec, pixels) for pixels in (sizes.box[-1], edge))]
        values = DotWords(
            common=common, panel=panel_words(r, sizes, group_in, move_in_address(r, move), last),
            row_step=sizes.pixel_bytes * (last.stride // sizes.step), word_step=arith.bytes, phases=1, source_block=0,
            rows=row_lists(sweep[:-1], word_entries(r, sweep, sizes, vectors), 3, found),
            bias_list=p.groups * lane * arith.bytes * (lists > 1),
            weights=packed, w_group=of_group, w_block=0, w_last=0, w_last_group=of_group,
            table_group=lane * arith.bytes, table_block=0, blocks=1, split_blocks=1, block_outputs=group_out,
            last_outputs=group_out, block_lanes=group_out, last_lanes=group_out,
            tiles=tiles, table_words=counted_words(DotTile, tiles), results=results,
        )  # fmt: skip
        return Step(driver_address(r), filled(values, keep), items)


def _vectors(s: Situation, sweep: Sweep, sizes: Sizes) -> int:
    """Vectors of words of an entry."""
    arith, of_entry = arithmetic_of(s), s.problem.c // s.problem.groups * (sweep[-1].taps if sizes.whole_lines else 1)
    return -(-of_entry // (lanes(s.target, arith) * arith.channels))


def _packed(r: Request, w: NDArray[Any], taps: int, vectors: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as [group][entry][vector][output][channel]; so many ``taps`` are one entry.

    Weights of windows are a group's last output; its zero points come before them all where they differ.
    """
    w = by_lines(w, taps)
    groups, m, channels, entries = w.shape
    lane, each = lanes(r.target, r.arith), m + (windows(r) > "")
    wide = lane * r.arith.channels
    whole = np.zeros((groups, each, vectors * wide, entries), w.dtype)
    whole[:, :m, :channels] = w
    if windows(r):
        whole[:, m, :channels] = zero_weight(r)
    found = whole.reshape(groups, each, vectors, wide, entries).transpose(0, 4, 2, 1, 3).reshape(groups, -1)
    if windows(r) == "each":
        assert r.zero_left is not None
        factors = r.zero_left.reshape(groups, m)[:, np.arange(lane) % m]
        found = np.concatenate([np.ascontiguousarray(factors).view(w.dtype), found], axis=1)
    return as_aligned(found)


def _by_lanes(r: Request, lane: int) -> Request:
    """The request with the biases and scales of each group in as many lanes as results of some pixels have."""
    outputs = r.problem.m // r.problem.groups

    def repeated(table: NDArray[Any] | None) -> NDArray[Any] | None:
        if table is None:
            return None
        of_groups = table.reshape(-1, outputs)
        found = aligned((len(of_groups) * lane,), table.dtype)
        found[...] = of_groups[:, np.arange(lane) % outputs].reshape(-1)
        return found

    return replace(r, bias=repeated(r.bias), scale=repeated(r.scale))


def _tiles(r: Request, form: InnerForm, spec: FusedTile, pixels: int) -> list[DotTile]:
    """The tiles of a row of so many pixels: whole ones in a walk, then one of what is left."""
    whole, rest = divmod(pixels, form.rows)
    found = [DotTile(0, whole, _tile(r, spec, form.rows))] if whole else []
    return [*found, DotTile(pixels - rest, 1, _tile(r, spec, rest))] if rest else found


def _tile(r: Request, spec: FusedTile, rows: int) -> Address[WordWalk]:
    """Address of a tile of so many pixels."""
    outputs = r.problem.m // r.problem.groups

    def make(k: Module, name: str) -> None:
        inner_tile(k, name, spec, lanes(r.target, r.arith), rows, outputs)

    return address_of(r, f"inner {spec} {rows}x{outputs}", "tile", WordWalk, make)
