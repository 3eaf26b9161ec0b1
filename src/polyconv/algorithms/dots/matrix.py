"""Bytes, and bf16, by the CPU's matrix unit (Intel's AMX): products of 16 pixels by 16 output channels at once.

What is multiplied, and how its sums leave, is as in ``dense``: a box of outputs gets a panel of its inputs, channels
of a pixel together; lanes are output channels.  A product takes up to 16 words of each of up to 16 pixels.
Cost: the products, which take eight times less than by dot products of vectors, so that one pass over input and
output, and the way of sums from the matrix unit through memory, often take longer.
Error: sums of integers are exact modulo 2^32; those of bf16 have an own bound, k eps sum|x||w| of f32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.algorithms.dots.dense import MERGED, lies, word_entries
from polyconv.algorithms.dots.dense_sizes import fitting, sizes_of_box
from polyconv.algorithms.dots.driver import common_words, finished_in_registers, outputs_of_last, result_words
from polyconv.algorithms.dots.form import ChannelsForm, Part, Sizes
from polyconv.algorithms.dots.matrix_driver import MatrixWords, matrix_driver
from polyconv.algorithms.dots.panel import copying_cycles, panel_words, turning_cycles
from polyconv.algorithms.dots.situations import (
    adding_cycles,
    arithmetic_of,
    channel_bytes,
    has_half_word,
    padding_of,
    refusal,
    unit_refusal,
    window_outputs,
    windows,
    with_bias,
)
from polyconv.algorithms.dots.weights import block_weights
from polyconv.algorithms.form import Forms, Refusal
from polyconv.dataclass import dataclass
from polyconv.kernels import matrix_unit
from polyconv.kernels.dots_matrix import MATRIX_TILES, PIECE_BYTES, TILE_BYTES, MatrixWalk, matrix_tile
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.record import filled
from polyconv.kernels.signature import Address
from polyconv.kernels.words import spread_in
from polyconv.lowering.bands import whole_bands
from polyconv.lowering.boxes import row_lists, rows_together
from polyconv.lowering.moves import along_in, move_in_address
from polyconv.lowering.program import Request, Step, address_of, addresses_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, box_count, sweeps
from polyconv.lowering.traffic import apart_cycles, far_cycles
from polyconv.problem.problem import Problem

__all__ = ["MatrixForm", "forms", "step_words"]

_TO_PLANES = {False: 3.0, True: 25.0}
"""Cycles in which a vector of results becomes planes, and does so beside residuals, on its way through memory: measured
on an Emerald Rapids."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    return _refusal(s) or (MatrixForm.of(s),)


def _refusal(s: Situation) -> Refusal | None:
    p = s.problem
    if (reason := refusal(s) or unit_refusal(s)) is not None:
        return reason
    if not p.c or not p.m:
        return "needs channels"
    return None


@dataclass(frozen=True, slots=True)
class MatrixForm(ChannelsForm):
    """Blocks of some vectors of output channels, by registers of pixels."""

    @classmethod
    def of(cls, s: Situation) -> MatrixForm:
        """That of a situation which has one."""
        arith, found = arithmetic_of(s), []
        for sweep in sweeps(s.problem):
            sizes = _sizes(s, arith, sweep)
            found.append(Part(sweep, sizes, sizes))
        return cls(s, tuple(found), arith)

    def cycles(self, sweep: Sweep, sizes: Sizes) -> tuple[float, float]:
        """Cycles of an image's products, and of its moves and results."""
        s, p, arith = self.s, self.s.problem, self.arith
        count, group_in = box_count(sweep, sizes.box), p.c // p.groups
        tiles = p.groups * count * _tiles(sweep, sizes)
        products = tiles * _block_cycles(s, arith, sweep, sizes.vectors)
        held = math.prod(max(1, h.count) for h in sizes.held)
        if p.layout == "NCHW":
            moves = turning_cycles(arith, sizes, group_in)
        elif _lies(p, arith, sweep, p.c * p.x_dtype.itemsize):
            moves = 0.0
        else:
            follow = p.groups == 1 and sizes.pixel_bytes == group_in * channel_bytes(arith)
            moves = copying_cycles(arith, sizes, group_in, follow=follow)
        moves = p.groups * count * (600 + moves)
        moves += far_cycles(s, p.groups * count * held * group_in * p.x_dtype.itemsize)
        pixels = math.prod(axis.out for axis in sweep)
        vectors = p.groups * -(-(p.m // p.groups) // lanes(s.target, arith))
        leaving = 0.5 + 0.2 * apart_cycles(s, sweep[-1]) if p.layout == "NHWC" else _TO_PLANES[p.residual]
        return products, moves + pixels * vectors * (leaving + adding_cycles(s))

    def step(self, r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
        """Step of a sweep."""
        p, arith, last, together = r.problem, r.arith, sweep[-1], r.x.c == r.x.itemsize
        group_in, group_out = p.c // p.groups, p.m // p.groups
        lane, of_vector, w = lanes(r.target, arith), r.target.vector_bytes, r.weights(sweep)
        channels, edge = _channels(r.situation, arith), last.out % sizes.box[-1] or sizes.box[-1]
        rows, words = _rows(sweep, sizes), _entry_words(arith, sweep, sizes, channels)
        in_place = together and _lies(p, arith, sweep, r.x.spatial[-1]) and edge >= rows
        in_place = in_place and (last.taps <= 1 or r.x.spatial[-1] == group_in * r.x.itemsize)
        r = with_bias(r, w, padding_of(r))
        before = int(windows(r) == "each")  # a row of factors comes first
        of_taps = word_entries(r, sweep, sizes, words, before, in_place=in_place)
        if group_in < channels:
            w = np.pad(w, ((0, 0), (0, 0), (0, channels - group_in), (0, 0)))
        weights = block_weights(r, sweep, sizes, w, words)
        counts = [count for entries in of_taps for count in entries[1::3]]
        steps, words = before + sum(counts), step_words(_alike(arith, last, channels, min(counts, default=1)))
        for entries in of_taps:
            entries[1::3] = [count // words for count in entries[1::3]]
        lists = row_lists(sweep[:-1], of_taps, 3, whole_bands(sweep[:-1]))
        main, rest = steps * sizes.vectors * of_vector, steps * sizes.last_vectors * of_vector
        in_registers = finished_in_registers(r, last)
        block_outputs = sizes.vectors * lane - (windows(r) > "")
        last_outputs, block_lanes, last_lanes = outputs_of_last(sizes, group_out, block_outputs, lane)
        spec = replace(FusedTile(arith.name, p.y, r.epilogue) if in_registers else of_sums(arith.name),
                       windows=windows(r))  # fmt: skip
        functions = [
            function
            for vectors, of_last in ((sizes.vectors, block_lanes), (sizes.last_vectors, last_lanes))
            for function in _functions(r, replace(spec, edge=in_registers and of_last < lane), vectors)
        ]
        common, items = common_words(r, sweep, sizes, p.groups)
        results = result_words(r, sweep, sizes, lane, in_registers=in_registers)
        tiles, pieces, sums = _places(sweep, sizes)
        pixel_step = sizes.pixel_bytes * (last.stride // sizes.step)
        moved = replace(last, stride=sizes.step)
        spreads = _spreads(r, moved, group_in, together=together)
        values = MatrixWords(
            common=common,
            panel=panel_words(r, sizes, group_in, _move_in(r, moved, sizes, group_in, together=together), last,
                              in_place=in_place),
            shapes=matrix_unit.shapes(rows, words), rows=rows, words=words,
            pitch=sizes.held[-1].count if _flows(sweep, sizes) and not in_place else 0,
            pieces_of_row=_pieces_of_row(sweep, sizes),
            row_step=last.stride * r.x.spatial[-1] if in_place else pixel_step,
            lists=lists, weights=weights, w_group=main * (sizes.blocks - 1), w_block=main,
            w_last=main * (sizes.blocks - 1) * p.groups, w_last_group=rest, table_group=group_out * arith.bytes,
            table_block=block_outputs * arith.bytes, blocks=sizes.blocks,
            split_blocks=-(-sizes.blocks // sizes.splits), block_outputs=block_outputs, last_outputs=last_outputs,
            block_lanes=block_lanes, last_lanes=last_lanes, together=MATRIX_TILES[sizes.vectors],
            last_together=MATRIX_TILES[sizes.last_vectors], functions=functions, tiles=tiles, pieces=pieces, sums=sums,
            spare_channel=group_in * channel_bytes(arith) if group_in < channels and not spreads else 0,
            pixels=math.prod(max(1, h.count) for h in sizes.held), results=results,
            lines=words * sizes.vectors, asked=main // (words * sizes.vectors),
        )  # fmt: skip
        return Step(matrix_driver(r), filled(values, keep), items)


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep) -> Sizes:
    """Sizes of a sweep's boxes, with as many vectors of output channels as take least."""
    most = -(-(s.problem.m // s.problem.groups + window_outputs(s)) // lanes(s.target, arith))
    ways = [some for some in MATRIX_TILES if some <= most]
    vectors = min(ways, key=lambda some: s.price(("vectors", some), _block_cycles(s, arith, sweep, some)))
    even = replace(s, problem=replace(s.problem, c=_channels(s, arith) * s.problem.groups))

    def sizes(box: tuple[int, ...]) -> Sizes:
        return _roomy(sweep, _spread(sweep, sizes_of_box(even, arith, sweep, box, vectors)))

    return fitting(s, sweep, sizes)


_COLLIDING, _FEW_SETS = 512, 2048
"""Pixels of a panel a multiple of so many bytes apart go a line further apart, as they share few sets of a first-level
cache: a tenth off nine layers of an Emerald Rapids.  Pixels of a tensor are copied from so many on: where they are read
in place, layers take 1.05 times as long there at 2048 bytes, and 0.7 to 0.9 at 512 and 1024."""


def _lies(p: Problem, arith: Arithmetic, sweep: Sweep, pixel_bytes: int) -> bool:
    """Whether pixels are read from the input as they lie."""
    return lies(p, arith, sweep, pixel_bytes) and sweep[-1].stride * pixel_bytes % _FEW_SETS > 0


def _spread(sweep: Sweep, sizes: Sizes) -> Sizes:
    """Sizes whose pixels lie a line further apart where they would collide, and no tap need follow another."""
    if math.prod(axis.taps for axis in sweep) != 1 or sizes.pixel_bytes % _COLLIDING or not sizes.pixel_bytes:
        return sizes
    count = math.prod(max(1, h.count) for h in sizes.held)
    pixel = sizes.pixel_bytes + matrix_unit.PIXEL_BYTES
    line = sizes.held[-1].count * pixel
    return replace(sizes, pixel_bytes=pixel, line_bytes=line, panel=sizes.panel + count * matrix_unit.PIXEL_BYTES)


def _roomy(sweep: Sweep, sizes: Sizes) -> Sizes:
    """Sizes with room for the results of a box, for the sums of some registers and for the lists of all.

    The last register of a panel may hold what lies behind it.
    """
    outputs = math.prod(sizes.box)
    behind = matrix_unit.TALLEST * sizes.pixel_bytes * sweep[-1].stride
    lists = _most_pieces(sweep, sizes) * (TILE_BYTES + PIECE_BYTES)
    return replace(
        sizes, panel=sizes.panel + -(-behind // 64) * 64, run_rows=rows_together(sweep, sizes.box, outputs),
        slots=outputs * sizes.vectors * matrix_unit.PIXEL_BYTES + _SUMS_BYTES + lists,
    )  # fmt: skip


_SUMS_BYTES = 2 * len(matrix_unit.SUMS) * matrix_unit.TALLEST * matrix_unit.PIXEL_BYTES
"""Of the sums of two groups of registers."""


def _places(sweep: Sweep, sizes: Sizes) -> tuple[int, int, int]:
    """Where in the workspace the lists of registers and of pieces begin, and the sums of registers."""
    sums = sizes.header + sizes.panel + math.prod(sizes.box) * sizes.vectors * matrix_unit.PIXEL_BYTES
    tiles = sums + _SUMS_BYTES
    return tiles, tiles + _most_pieces(sweep, sizes) * TILE_BYTES, sums


def _rows(sweep: Sweep, sizes: Sizes) -> int:
    """Pixels of a register: all that it holds, or near-equal parts of a row where it has none of the next."""
    if _flows(sweep, sizes):
        return min(matrix_unit.TALLEST, max(1, math.prod(sizes.box)))
    pixels = max(1, sizes.box[-1])
    return -(-pixels // -(-pixels // matrix_unit.TALLEST))


def _pieces_of_row(sweep: Sweep, sizes: Sizes) -> int:
    """Most registers that have pixels of a row of outputs."""
    return -(-sizes.box[-1] // max(1, _rows(sweep, sizes))) + 1


def _most_pieces(sweep: Sweep, sizes: Sizes) -> int:
    """Most pieces of a box, and most registers."""
    return math.prod(sizes.box[:-1]) * _pieces_of_row(sweep, sizes)


def _flows(sweep: Sweep, sizes: Sizes) -> bool:
    """Whether the next row of outputs follows in the panel, so that a register may have pixels of both."""
    return sizes.step == sweep[-1].stride and sizes.held[-1].count > 0


def _tiles(sweep: Sweep, sizes: Sizes) -> float:
    """Registers of pixels of a box."""
    *outer, pixels = sizes.box
    rows, high = math.prod(outer), _rows(sweep, sizes)
    if not _flows(sweep, sizes):
        return rows * -(-pixels // high)
    gap = max(0, sizes.held[-1].count - pixels)
    return min(rows * -(-pixels // high), -(-(rows * (pixels + gap) - gap) // high))


def _entry_words(arith: Arithmetic, sweep: Sweep, sizes: Sizes, channels: int) -> int:
    """Words of an entry: a tap of a pixel, or a line of them."""
    return -(-channels * (sweep[-1].taps if sizes.whole_lines else 1) // arith.channels)


def _channels(s: Situation, arith: Arithmetic) -> int:
    """Channels of a group in the panel: an odd one of bf16 has a neighbour of zeros, as no word is half of others."""
    channels = s.problem.c // s.problem.groups
    return channels + has_half_word(arith, channels)


def _alike(arith: Arithmetic, last: Axis, channels: int, words: int) -> int:
    """The words that steps must make up: an entry's, if rows of all boxes have such, as floats are rounded by step."""
    follow = last.taps <= 1 or (last.dilation == 1 and last.stride <= 2 * last.taps)
    return words if follow or arith.accumulator != "float" else -(-channels // arith.channels)


def step_words(words: int) -> int:
    """Words of a step: as many as a register holds, such that steps make up so many."""
    most = matrix_unit.PIXEL_BYTES // 4
    return next((some for some in range(min(most, words), 0, -1) if words % some == 0), 1)


_PRODUCT, _LOAD = 16.0, 4.0
"""Cycles of a product, and what is not hidden behind products of a load of a register from a first-level cache."""
_PIXELS_SEEN, _WEIGHTS_SEEN = 0.75, 0.3
"""Shares of a load from a second-level cache that are not hidden.  Rows of pixels lie apart: nobody fetches them ahead.
Measured on an Emerald Rapids, as what stands above: 25 layers by one to four vectors."""
_CALL, _ROW = 40.0, 2.0
"""Of a group of registers; and of a row of sums on its way out of the unit, for each vector."""


def _block_cycles(s: Situation, arith: Arithmetic, sweep: Sweep, vectors: int) -> float:
    """Cycles of a register of pixels with all output channels of a group, so many vectors at a time.

    Pixels come from a second-level cache where no tap has them again, weights where a first-level cache does not hold
    those of a block.
    """
    p = s.problem
    lane, group_out, channels = lanes(s.target, arith), p.m // p.groups, _channels(s, arith)
    line = sweep[-1].dilation == 1 or sweep[-1].taps <= 1
    words = -(-channels * (sweep[-1].taps if line else 1) // arith.channels)
    steps = math.prod(axis.taps for axis in sweep[: -1 if line else None]) * (
        words // step_words(_alike(arith, sweep[-1], channels, words))
    )
    width = vectors * lane - window_outputs(s)
    blocks = max(1, -(-group_out // width))
    last = max(1, -(-(group_out - (blocks - 1) * width + window_outputs(s)) // lane))
    register = matrix_unit.TALLEST * matrix_unit.PIXEL_BYTES
    far, near = register / s.profile.stream("l2", 1), _LOAD
    total = 0.0
    for some, count in ((vectors, blocks - 1), (last, 1)):
        tiles = MATRIX_TILES[some]
        of_pixels = _PIXELS_SEEN * far if math.prod(axis.taps for axis in sweep) == 1 else near
        of_weights = _WEIGHTS_SEEN * far if steps * some * register > s.cache("l1", 1 / 2) else near
        step = tiles * some * _PRODUCT + tiles * of_pixels + some * of_weights
        total += count * ((steps * step + _CALL) / tiles + matrix_unit.TALLEST * some * _ROW)
    return total


def _functions(r: Request, spec: FusedTile, vectors: int) -> list[Address[MatrixWalk] | None]:
    """Addresses of the tiles of each number of registers of pixels."""
    most, count, f16c = MATRIX_TILES[vectors], lanes(r.target, r.arith), r.target.converts_f16
    family = {f"tile{tiles}": tiles for tiles in range(1, most + 1)}
    found = r.once(("matrix", spec, vectors), lambda: addresses_of(
        r, f"matrix {spec} {vectors}", MatrixWalk, family,
        lambda k, name, tiles: matrix_tile(k, name, spec, count, tiles, vectors, f16c=f16c),
    ))  # fmt: skip
    return [*found.values(), *[None] * (max(MATRIX_TILES.values()) - most)]


_FEW = 7
"""Most channels of pixels that get one more, some pixels at once."""


def _spreads(r: Request, last: Axis, group_in: int, *, together: bool) -> bool:
    """Whether pixels get their channel of zeros while they are moved."""
    follow = together and last.stride * r.x.spatial[-1] == group_in * r.x.itemsize
    return follow and has_half_word(r.arith, group_in) and group_in <= _FEW


def _move_in(r: Request, last: Axis, sizes: Sizes, group_in: int, *, together: bool) -> Address[MoveIn]:
    """The move of pixels into the panel."""
    p, element = r.problem, f"i{8 * channel_bytes(r.arith)}"
    if _spreads(r, last, group_in, together=together):
        return address_of(r, f"spread {element} {group_in}", "move", MoveIn,
                          lambda k, name: spread_in(k, name, element, group_in))  # fmt: skip
    along = "cc" if together else along_in(r, last, "c")
    follow = sizes.pixel_bytes == group_in * channel_bytes(r.arith)
    if follow and along == "pc" and 0 < group_in <= MERGED[r.arith.weight]:
        return move_in_address(r, Move(p.x, element, along, together=group_in))
    return move_in_address(r, Move(p.x, element, along))
