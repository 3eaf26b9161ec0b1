"""Small integers with few output channels a group: words of a window's line in the lanes, added at the end.

In ``dense`` lanes are output channels, of which there are fewer than lanes here.  A tile multiplies as many words of a
line of a kernel as a vector holds by the weights of each of its outputs, pixel by pixel, from a panel in which channels
lie together, whatever the layout.  Boxes, panel, and the driver are those of ``dense``.
Cost: the products, with lines filled to whole vectors, adding the lanes of sums, and one pass over input and output.
Exact: sums are taken modulo 2^32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

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
from polyconv.algorithms.dots.panel import copying_cycles, panel_words, turning_cycles
from polyconv.algorithms.dots.situations import (
    arithmetic_of,
    channel_bytes,
    integer_refusal,
    row_bands,
    window_outputs,
    windows,
    with_row_biases,
)
from polyconv.algorithms.dots.weights import by_lanes, inner_weights
from polyconv.algorithms.form import Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.dots_inner import inner_tile
from polyconv.kernels.fused import FusedTile, WordWalk, of_sums
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.lane_sums import parts_of, vectors_of
from polyconv.kernels.language import Module
from polyconv.kernels.layout import Move
from polyconv.kernels.record import counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.bands import share_met
from polyconv.lowering.boxes import row_lists
from polyconv.lowering.moves import along_in, move_in_address
from polyconv.lowering.program import Request, Step, address_of
from polyconv.lowering.situation import Situation, image_bytes
from polyconv.lowering.sweep import Sweep, box_count, taps_of
from polyconv.lowering.tiles import product_instructions
from polyconv.lowering.traffic import far_cycles

__all__ = ["InnerForm", "forms"]

_SUMS = {32: 16, 16: 8}
"""Registers -> those that sums of a tile may take."""
_CROSSING = 0.9
"""Loads more as which one of a whole vector counts that begins anywhere: nearly all cross a cache line."""
_ADD_CYCLES, _LEAVING, _TILE_CYCLES, _ENTRY_CYCLES = 0.8, 3.0, 6.0, 2.0
"""Cycles of adding the lanes of a vector of sums, in which a vector of results leaves, of the rest of a tile, and of an
entry.  Measured on Zen 5, as what follows, in 20 layers."""
_SLOWER = 1.2
"""How much longer steps take than their products and loads."""
_AFAR = 1.5
"""Cycles of a vector of words that the nearest cache does not hold."""
_TURN, _TURN_BACK = 110.0, 50.0
"""Cycles of turning 16 pixels of 64 bytes from planes (of 16 bits twice as long), and of 16 pixels of results."""
_NARROW_TURN, _NARROW_GAPS = 2.0, 6.0
"""How much longer than ``dense`` says pixels are turned where vectors have 32 bytes, and those with gaps between them.
Measured on a Zen 3, 12 layers."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    if (reason := integer_refusal(s)) is not None:
        return reason
    p = s.problem
    if p.residual:
        return "adds no residual"
    if not 0 < p.m // max(1, p.groups) <= _most(s) or not p.c:
        return f"has blocks of up to {_most(s)} output channels, and needs inputs"
    return (InnerForm.of(s, arithmetic_of(s)),)


def _most(s: Situation) -> int:
    """Most output channels of a block: lanes of a vector of results, less that of windows."""
    return lanes(s.target, arithmetic_of(s)) - window_outputs(s)


@dataclass(frozen=True, slots=True)
class InnerForm(OrderedForm):
    """Tiles of some pixels by all outputs of a group."""

    @classmethod
    def part(cls, s: Situation, arith: Arithmetic, sweep: Sweep) -> Part:
        """A sweep with its sizes."""

        def sizes(box: tuple[int, ...]) -> Sizes:
            return replace(sizes_of_box(s, arith, sweep, box, 1), blocks=1, last_vectors=1)

        found = fitting(s, sweep, sizes)
        return Part(sweep, found, found)

    def cycles(self, sweep: Sweep, sizes: Sizes) -> tuple[float, float]:
        """Cycles of an image's products, with what follows sums, and of its moves."""
        s, p = self.s, self.s.problem
        count, group_in = box_count(sweep, sizes.box), p.c // p.groups
        tiles = _tile_cycles(s, sweep, sizes, _wide(s, sweep, sizes))
        products = p.groups * math.prod(sizes.box[:-1]) * count * (tiles + ROW_CYCLES)
        *lines, run = (max(1, h.count) for h in sizes.held)
        if p.layout == "NHWC":
            follow = p.groups == 1 and sizes.whole_lines and not self.is_turned
            moves = copying_cycles(self.arith, sizes, group_in, follow=follow)
        else:
            squares = math.prod(lines) * -(-run // 16) * -(-group_in * p.x_dtype.itemsize // 64)
            turn = squares * _TURN * p.x_dtype.itemsize
            if not s.target.has_masks:
                turn = turning_cycles(self.arith, sizes, group_in) * (_NARROW_TURN if sizes.step == 1 else _NARROW_GAPS)
            moves = turn + math.prod(sizes.box) / 16 * _TURN_BACK
        read = p.groups * count * math.prod(lines) * run * group_in * p.x_dtype.itemsize
        far = far_cycles(s, read)
        if p.layout == "NHWC" and (p.n or 0) * image_bytes(p)[0] > s.profile.cache("l2", 1):
            far += read / s.profile.stream("l3", 1.0)
        return products, p.groups * count * (400 + moves) + far

    def step(self, r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
        """Step of a sweep."""
        p, arith, last, lane = r.problem, r.arith, sweep[-1], lanes(r.target, r.arith)
        group_in, group_out = p.c // p.groups, p.m // p.groups
        w = r.weights(sweep)
        r, found, lists = with_row_biases(r, sweep, w)
        in_registers = p.m == 1 or finished_in_registers(r, last)
        wide = _wide(r.situation, sweep, sizes)
        steps = _steps(r.situation, sweep, sizes, wide)
        packed = r.packed(("dots_inner", arith.name, sizes.whole_lines, wide, taps_of(sweep)),
                          lambda: inner_weights(r, w, last.taps if sizes.whole_lines else 1, steps, wide))  # fmt: skip
        of_group = packed.nbytes // p.groups
        spec = replace(FusedTile(arith.name, p.y, r.epilogue) if in_registers else of_sums(arith.name),
                       windows=windows(r))  # fmt: skip
        common, items = common_words(r, sweep, sizes, p.groups)
        results = result_words(by_lanes(r, lane), sweep, sizes, lane, in_registers=in_registers,
                               are_alike=lists < 2, by_pixel=p.m == 1)  # fmt: skip
        move = Move(p.x, f"i{8 * channel_bytes(arith)}", along_in(r, replace(last, stride=sizes.step), "c"))
        edge = last.out % sizes.box[-1] or sizes.box[-1]
        tiles = [[], [], *(_tiles(r, spec, wide, pixels) for pixels in (sizes.box[-1], edge))]
        values = DotWords(
            common=common, panel=panel_words(r, sizes, group_in, move_in_address(r, move), last),
            row_step=sizes.pixel_bytes * (last.stride // sizes.step), word_step=arith.bytes, phases=1, source_block=0,
            rows=row_lists(sweep[:-1], word_entries(r, sweep, sizes, steps), 3, found),
            block_lists=0, bias_list=p.groups * lane * arith.bytes * (lists > 1),
            weights=packed, w_group=of_group, w_block=0, w_last=0, w_last_group=of_group,
            table_group=lane * arith.bytes, table_block=0, blocks=1, split_blocks=1, block_outputs=group_out,
            last_outputs=group_out, block_lanes=group_out, last_lanes=group_out,
            tiles=tiles, table_words=counted_words(DotTile, tiles), results=results,
        )  # fmt: skip
        return Step(driver_address(r), filled(values, keep), items)


def _each(s: Situation) -> int:
    """Sums of a pixel."""
    return s.problem.m // s.problem.groups + window_outputs(s)


def _rows(s: Situation, wide: int) -> int:
    """Pixels of a tile: their results fill vectors, their sums half of the registers."""
    lane = lanes(s.target, arithmetic_of(s))
    vectors = vectors_of(_each(s), lane, wide)
    of_vector = wide // vectors
    return of_vector * max(1, _SUMS[s.target.registers] // (of_vector * vectors))


def _steps(s: Situation, sweep: Sweep, sizes: Sizes, wide: int) -> int:
    """Of an entry, each of so many lanes of words."""
    of_entry = s.problem.c // s.problem.groups * (sweep[-1].taps if sizes.whole_lines else 1)
    return -(-of_entry // (wide * arithmetic_of(s).channels))


def _wide(s: Situation, sweep: Sweep, sizes: Sizes) -> int:
    """Words of a pixel at a time: with those of a whole vector adding takes longest, with few some outputs are none."""
    found = parts_of(lanes(s.target, arithmetic_of(s)))
    return min(found, key=lambda wide: s.price(("wide", wide), _tile_cycles(s, sweep, sizes, wide)))


def _tile_cycles(s: Situation, sweep: Sweep, sizes: Sizes, wide: int) -> float:
    """Cycles of the tiles of a row."""
    arith, outer, last = arithmetic_of(s), sweep[:-1], sweep[-1]
    rates, lane = s.rates(arith), lanes(s.target, arith)
    entries = share_met(outer, row_bands(arith, sweep)) * math.prod(axis.taps for axis in outer)
    entries *= 1 if sizes.whole_lines else last.taps
    steps, vectors = entries * _steps(s, sweep, sizes, wide), vectors_of(_each(s), lane, wide)
    near = s.profile.cache("l1", 1) >= entries * sizes.box[-1] * sizes.pixel_bytes * last.stride
    times = product_instructions(s.target, arith)
    crossing, afar = 1 + _CROSSING * wide / lane, 2 * _AFAR * wide / lane
    most, total = _rows(s, wide), 0.0
    whole, rest = divmod(sizes.box[-1], most)
    for rows, alike in ((most, whole), (rest, int(rest > 0))):
        loads = (rows * crossing + vectors) / rates.loads
        instructions = rows * ((wide < lane) + times * vectors) / (2 * rates.multiply_adds)
        step = max(rows * vectors / rates.multiply_adds, loads, instructions, rates.latency, 0 if near else rows * afar)
        adding = rows * vectors * (1 - 1 / wide) * _ADD_CYCLES + -(-rows * vectors // wide) * _LEAVING
        total += alike * (_SLOWER * steps * step + entries * _ENTRY_CYCLES + adding + _TILE_CYCLES)
    return total


def _tiles(r: Request, spec: FusedTile, wide: int, pixels: int) -> list[DotTile]:
    """The tiles of a row of so many pixels: whole ones in a walk, then one of what is left."""
    rows = _rows(r.situation, wide)
    whole, rest = divmod(pixels, rows)
    found = [DotTile(0, whole, _tile(r, spec, wide, rows))] if whole else []
    return [*found, DotTile(pixels - rest, 1, _tile(r, spec, wide, rest))] if rest else found


def _tile(r: Request, spec: FusedTile, wide: int, rows: int) -> Address[WordWalk]:
    """Address of a tile of so many pixels."""
    outputs = r.problem.m // r.problem.groups

    def make(k: Module, name: str) -> None:
        inner_tile(k, name, spec, lanes(r.target, r.arith), wide, rows, outputs)

    return address_of(r, f"inner {spec} {wide} {rows}x{outputs}", "tile", WordWalk, make)
