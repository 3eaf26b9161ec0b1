"""Winograd's F(4x4, 3x3) of 8-bit integers, exact: a quarter of the products of ``dots``, in 16 bits, no rounding.

A box of tiles gets a zero-padded panel of its inputs less their zero point, [line][pixel][channels of 16 bits].  Tiles
of it become points, [point][block of channels][tile][channels], which the channel tile multiplies, point by point, with
those of the weights; the sums of a block of output channels come back, are scaled and rounded, and leave by slots and a
move.  Sums stand modulo 2^32, and are right if the result of no output channel can reach 2^25: what that takes of
weights is known when they are packed.  Cost: the products, and transforms in proportion to input and output.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dense.weights import packed_weights
from polyconv.algorithms.dots.situations import integer_refusal as no_dots
from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.winograd.boxes import odd_lines
from polyconv.algorithms.winograd.words import ZERO_BYTES
from polyconv.dataclass import dataclass
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import ARITHMETIC, channel_tile, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, MoveOut
from polyconv.kernels.record import Function, Functions, Memory, Record, Word, filled, words
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import PanelTile
from polyconv.kernels.whole import POINTS, TILE, TilesIn, TilesOut, points_of_weights, tiles_in, tiles_out
from polyconv.kernels.words import fill_bytes
from polyconv.lowering.boxes import boxed_words, boxes, near_equal_sizes, thread_parts
from polyconv.lowering.moves import along_in, along_out, move_in_address, move_out_address
from polyconv.lowering.panel import Common, Driver, EpilogueTables, Frame, Item, axis_words, decode, fill, row_place
from polyconv.lowering.program import Program, Request, address_of, epilogue_tables, one_step
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Lines, Sweep, sweeps
from polyconv.lowering.tiles import tile_addresses, tile_cycles
from polyconv.lowering.traffic import WEIGHTS_FROM_MEMORY, far_cycles

__all__ = ["IntegersForm", "forms"]

_BLOCK_BYTES = 64
"""Bytes of a block of channels: a cache line."""
_BLOCK = _BLOCK_BYTES // 2
"""Channels of a block, of 16 bits."""
_ALL = POINTS * POINTS
"""Points of a tile."""
_PANEL = 64 + ZERO_BYTES
"""Where the panel begins in the workspace: behind a cache line for the item's box, and zeros."""
_WORKSPACE_SHARE = 25 / 32
"""Of a second-level cache, workspace of a thread: less is left for weights, which stream."""
_IN_CYCLES, _OUT_CYCLES, _ROW_CYCLES = 55.0, 65.0, 40.0
"""Cycles in which a vector of a tile comes in, and goes out; of a call of a product's tile.  Measured on Zen 5."""
_WEIGHTS_SHARE, _FAR_STREAM, _NEAR_STREAM = 1 / 2, 20 / 24, 64 / 61
"""Of a second-level cache, transformed weights beyond which they come from the last one for every box; by the bytes a
cycle that the last and the second-level one give, those that come.  Measured on Zen 5."""


class IntegerWords(Record):
    """The driver's words: a panel, points of inputs, sums at points, slots, tables of tiles, and moves.

    ``products`` has the tiles of 1, 2, ... rows for whole blocks of output channels, and so many for the last one.
    """

    common: Common
    channels: Word
    pixel_bytes: Word
    line_bytes: Word
    move_in: Function[MoveIn]
    tiles_in: Function[TilesIn]
    points: Word
    point_bytes: Word
    block_bytes: Word
    entries: Memory
    entry_count: Word
    weights: Memory
    w_group: Word
    w_block: Word
    w_point: Word
    w_last: Word
    w_last_group: Word
    w_last_point: Word
    outputs: Word
    blocks: Word
    split_blocks: Word
    block_outputs: Word
    last_outputs: Word
    lanes: Word
    most_rows: Word
    products: Functions[PanelTile]
    sums: Word
    sum_point: Word
    sum_row: Word
    sum_row_last: Word
    zeros: Word
    tiles_out: Functions[TilesOut]
    tables: EpilogueTables
    slots: Word
    slot_bytes: Word
    slot_line: Word
    move_out: Function[MoveOut]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is some blocks of outputs of a box."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = IntegerWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        k.clear(workspace + p.zeros, ZERO_BYTES)
        rows, columns = (_tiles_of(item.extent(axis)) for axis in (0, 1))
        _transform_inputs(k, p, item, frame.x, workspace, rows, columns, vector_bytes)
        first = item.split * p.split_blocks
        with k.loop(first, k.minimum(first + p.split_blocks, p.blocks)) as block:
            _multiply(k, p, item, workspace, block.index, rows * columns)
            _transform_back(k, p, item, frame, workspace, block.index, rows, columns)


def _tiles_of(outputs: Value) -> Value:
    return (outputs + (TILE - 1)) // TILE


def _transform_inputs(k: Module, p: IntegerWords, item: Item, x: Buffer, workspace: Buffer, rows: Value, columns: Value,
                      vector_bytes: int) -> None:  # fmt: skip
    """The panel of a box, and its points."""
    panel, x_step = workspace + p.common.panel, axis_words(p.common, 1).x_stride
    nothing = k.constant(vector("i8", vector_bytes), 0)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + (line * p.line_bytes + first_line * p.pixel_bytes)
        with k.when(head > 0):
            fill_bytes(k, target, head * p.pixel_bytes, nothing)
        with k.when(end < count):
            fill_bytes(k, target + end * p.pixel_bytes, (count - end) * p.pixel_bytes, nothing)
        k.call(p.move_in, MoveIn(
            source, x_step, p.common.x_c, target + head * p.pixel_bytes, p.pixel_bytes, 2, end - head, p.channels,
            p.common.zero_point,
        ))  # fmt: skip

    fill(k, p.common, item, x, k.constant(INT, 0), put)
    with k.loop(0, rows) as row:
        k.call(p.tiles_in, TilesIn(
            panel + row.index * TILE * p.line_bytes, p.line_bytes, p.pixel_bytes, columns,
            workspace + (p.points + row.index * columns * _BLOCK_BYTES), p.point_bytes, p.block_bytes, p.channels,
        ))  # fmt: skip


def _multiply(k: Module, p: IntegerWords, item: Item, workspace: Buffer, block: Value, tiles: Value) -> None:
    """Sums at all points of a block of output channels; tiles are cut into near-equal parts."""
    is_last = block.equals(p.blocks - 1)
    weights = p.weights + k.select(
        is_last, p.w_last + item.g * p.w_last_group, item.g * p.w_group + block * p.w_block
    )
    w_point, sum_row = k.select(is_last, p.w_last_point, p.w_point), k.select(is_last, p.sum_row_last, p.sum_row)
    functions = k.select(is_last, p.most_rows, 0) - 1
    parts = (tiles + (p.most_rows - 1)) // p.most_rows
    with k.loop(0, _ALL) as point:
        of_point = p.points + point.index * p.point_bytes, p.sums + point.index * p.sum_point
        with k.loop(0, parts) as part:
            first, end = (tiles * number // parts for number in (part.index, part.index + 1))
            k.call(p.products.at(functions + (end - first)), PanelTile(
                workspace + (of_point[0] + first * _BLOCK_BYTES), p.entry_count, p.entries,
                weights + point.index * w_point, workspace + p.zeros, 0,
                workspace + (of_point[1] + first * sum_row), sum_row,
            ))  # fmt: skip


def _transform_back(k: Module, p: IntegerWords, item: Item, frame: Frame, workspace: Buffer, block: Value, rows: Value,
                    columns: Value) -> None:  # fmt: skip
    """Results of a block of output channels, from its sums to their place."""
    is_last = block.equals(p.blocks - 1)
    outputs, sum_row = k.select(is_last, p.last_outputs, p.block_outputs), k.select(is_last, p.sum_row_last, p.sum_row)
    channel = item.g * p.outputs + block * p.block_outputs
    pixel = p.block_outputs * p.slot_bytes
    y_step, r_step = axis_words(p.common, 1).y_stride, axis_words(p.common, 1).r_stride
    bias, scale = p.tables.bias + channel * 4, p.tables.scale + channel * 4
    with k.loop(0, rows) as row:
        with k.loop(0, outputs, p.lanes) as first:
            left = k.minimum(outputs - first.index, p.lanes)
            function = p.tiles_out.at(k.select(left < p.lanes, k.constant(INT, 1), 0))
            k.call(function, TilesOut(
                workspace + (p.sums + row.index * columns * sum_row + first.index * 4), p.sum_point, sum_row, columns,
                workspace + (p.slots + first.index * p.slot_bytes), p.slot_line, pixel, left,
                bias + first.index * 4, scale + first.index * 4, p.tables.constants,
            ))  # fmt: skip
        begin = row.index * TILE
        with k.loop(begin, k.minimum(begin + TILE, item.extent(0))) as line:
            _, y, r = row_place(k, p.common, item, line.index)
            k.call(p.move_out, MoveOut(
                workspace + (p.slots + (line.index - begin) * p.slot_line), pixel, p.slot_bytes,
                frame.y + (y + block * p.block_outputs * p.common.y_c), y_step, p.common.y_c, item.extent(1), outputs,
                bias, scale, frame.residual + (r + block * p.block_outputs * p.common.r_c), r_step, p.common.r_c,
                p.tables.constants,
            ))  # fmt: skip


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p, reason = s.problem, no_dots(s)
    if reason is not None:
        return reason
    if {p.x, p.w} - {"u8", "i8"} or not s.narrow or not p.c or not p.m:
        return "transforms inputs of 8 bits with weights that are numbers of i8"
    if not s.light:
        return "sums of these weights may reach 2^25, from where they would not come back exactly"
    sweep, *others = sweeps(p) or [()]
    if others or len(sweep) != 2 or any((a.taps, a.stride, a.dilation) != (3, 1, 1) for a in sweep):
        return "computes windows of 3x3 pixels at stride 1 that lie together"
    budget = s.budget(s.profile.cache("l2", _WORKSPACE_SHARE))
    tiles = boxes([-(-axis.out // TILE) for axis in sweep], lambda some: _sizes(s, some).workspace, budget)
    return (IntegersForm(s, sweep, _sizes(s, tiles)),)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a box of tiles, and where things begin in the workspace.

    A box needs ``held`` inputs along both axes.  Output channels come in ``blocks`` of so many ``vectors``, the last of
    fewer.  ``point_bytes`` and ``sum_bytes`` are those of a box's inputs and of a block's sums at a point.
    """

    tiles: tuple[int, ...]
    box: tuple[int, ...]
    held: tuple[int, ...]
    vectors: int
    last_vectors: int
    blocks: int
    pixel_bytes: int
    points: int
    point_bytes: int
    sums: int
    sum_bytes: int
    slots: int
    workspace: int


def _sizes(s: Situation, tiles: tuple[int, ...]) -> Sizes:
    p, lane, wide, count = s.problem, lanes(s.target, ARITHMETIC["i16"]), s.target.vector_bytes, math.prod(tiles)
    in_blocks, total = -(-(p.c // p.groups) // _BLOCK), -(-(p.m // p.groups) // lane)
    vectors = min(2, total)
    blocks = -(-total // vectors)
    box, held = tuple(TILE * n for n in tiles), tuple(TILE * n + 2 for n in tiles)
    pixel, point, sums_at_point = (
        in_blocks * _BLOCK_BYTES, odd_lines(in_blocks * count * _BLOCK_BYTES), odd_lines(count * vectors * wide)
    )
    points = _PANEL + math.prod(held) * pixel + 64
    sums = points + _ALL * point
    slots = sums + _ALL * sums_at_point
    return Sizes(
        tiles, box, held, vectors, total - (blocks - 1) * vectors, blocks, pixel, points, point, sums, sums_at_point,
        slots, slots + TILE * box[1] * vectors * wide,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class IntegersForm(Form):
    """Boxes of tiles of whole numbers."""

    sweep: Sweep
    sizes: Sizes

    @property
    def arithmetic(self) -> str:
        """Pairs of 16 bits."""
        return "i16"

    @property
    def scheme(self) -> str:
        """Which of Winograd's."""
        return "F(4x4,3x3)"

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return self.sizes.workspace

    def cost(self) -> dict[str, float]:
        """Cycles: the products of all points, transforms on both sides, and the moves."""
        s, p, sizes, arith = self.s, self.s.problem, self.sizes, ARITHMETIC["i16"]
        group_in, vectors_out = p.c // p.groups, -(-(p.m // p.groups) // lanes(s.target, arith))
        tiles, steps, in_blocks = math.prod(sizes.tiles), -(-group_in // 2), -(-group_in // _BLOCK)
        products, rates, slow = 0.0, s.rates(arith), 1.0 if s.target.vnni else 1.5
        for some, count in ((sizes.vectors, sizes.blocks - 1), (sizes.last_vectors, 1)):
            for rows, alike in near_equal_sizes(tiles, channel_tile(s.target, arith, some)):
                products += _ALL * count * alike * (slow * tile_cycles(rates, rows, some) * steps + _ROW_CYCLES)
        streamed = _ALL * group_in * vectors_out * s.target.vector_bytes // 2
        near = streamed * p.groups <= s.cache("l2", _WEIGHTS_SHARE)
        products = max(products, streamed / s.profile.stream(*(("l2", _NEAR_STREAM) if near else ("l3", _FAR_STREAM))))
        # in a network whose weights no cache holds; ResNet-18 of 8 bits is 7 % faster with small maps left to ``dots``
        beyond = (s.far and not near) or streamed * p.groups > s.cache("l3", 1)
        fetched = streamed * p.groups / s.profile.stream("memory", WEIGHTS_FROM_MEMORY) if beyond else 0.0
        transforms = tiles * (_IN_CYCLES * 64 / s.target.vector_bytes * in_blocks + _OUT_CYCLES * vectors_out)
        held, by_channels = math.prod(sizes.held), p.layout == "NHWC"
        moves = 400 + held * in_blocks * (4.0 if by_channels else 8.0)
        moves += tiles * TILE * TILE * vectors_out * (1.5 if by_channels else 2.8)
        moves += far_cycles(s, held * group_in * p.x_dtype.itemsize)
        times = self._boxes()
        return {"products": products * times + fetched, "transforms": transforms * times, "moves": moves * times}

    def preparing(self) -> float:
        """Cycles in which a program is made and weights are transformed."""
        return 1.0e6 + 60.0 * math.prod(self.s.problem.w_shape) / 9

    def choices(self) -> dict[str, object]:
        """The scheme, the box in outputs, and how output channels are taken."""
        lane = lanes(self.s.target, ARITHMETIC["i16"])
        return {"scheme": self.scheme, "box": self.sizes.box, "output channels of a block": self.sizes.vectors * lane}

    def build(self, r: Request) -> Program:
        """Program of a request."""
        sizes, wide, keep = self.sizes, r.target.vector_bytes, list[Any]()
        splits = thread_parts(r.situation.threads, self._boxes(), sizes.blocks, 0.1)
        held = [Lines(range(count), ((0, count, 0),), (0, 1, 2)) for count in sizes.held]
        common, items = boxed_words(r, self.sweep, sizes.box, held, splits, panel=_PANEL)
        table = filled(_words(r, self, common, -(-sizes.blocks // splits)), keep)
        address = address_of(r, "winograd dots", "box", Driver, lambda k, name: driver(k, name, wide))
        return one_step(address, table, items, self.workspace, keep)

    def _boxes(self) -> int:
        """Boxes of all groups and images."""
        p = self.s.problem
        along = (-(-axis.out // b) for axis, b in zip(self.sweep, self.sizes.box, strict=True))
        return (p.n or 0) * p.groups * math.prod(along)


def _words(r: Request, form: IntegersForm, common: Common, split_blocks: int) -> IntegerWords:
    p, arith, sweep, sizes, wide = r.problem, r.arith, form.sweep, form.sizes, r.target.vector_bytes
    group_in, group_out, lane = p.c // p.groups, p.m // p.groups, lanes(r.target, r.arith)
    widths, steps = (sizes.vectors, sizes.last_vectors), -(-group_in // arith.channels)
    key = ("winograd_dots", lane, sizes.vectors, tuple((a.first_tap, a.tap_step) for a in sweep))
    packed = r.packed(key, lambda: packed_weights(r, points_of_weights(r.weights(sweep)), *widths, steps))
    along_x, along_y = along_in(r, sweep[-1], "c"), along_out(r, sweep[-1], "c")
    of_bytes = p.y_dtype.bits == 8 and r.residual is None
    spec = FusedTile(arith.name, p.y, r.epilogue) if of_bytes else of_sums(arith.name)
    move_out = Move("i8", p.y, along_y, Epilogue()) if of_bytes else Move("i32", p.y, along_y, r.epilogue)
    count, slot = math.prod(sizes.tiles), p.y_dtype.itemsize if of_bytes else arith.bytes
    main, rest = (steps * vectors * wide for vectors in widths)
    most, earlier = min(channel_tile(r.target, arith, v) for v in widths), sizes.blocks - 1
    return IntegerWords(
        common=common, channels=group_in, pixel_bytes=sizes.pixel_bytes, line_bytes=sizes.held[1] * sizes.pixel_bytes,
        move_in=move_in_address(r, Move(p.x, "i16", along_x)),
        tiles_in=address_of(r, "winograd dots in", "tiles", TilesIn, lambda k, name: tiles_in(k, name, wide // 2)),
        points=sizes.points, point_bytes=sizes.point_bytes, block_bytes=count * _BLOCK_BYTES,
        entries=_entries(group_in, count), entry_count=-(-group_in // _BLOCK), weights=packed,
        w_group=main * _ALL * earlier, w_block=main * _ALL, w_point=main,
        w_last=main * _ALL * earlier * p.groups, w_last_group=rest * _ALL, w_last_point=rest,
        outputs=group_out, blocks=sizes.blocks, split_blocks=split_blocks,
        block_outputs=sizes.vectors * lane, last_outputs=group_out - earlier * sizes.vectors * lane, lanes=lane,
        most_rows=most, products=[f for v in widths for f in tile_addresses(r, "channel", range(1, most + 1), v)],
        sums=sizes.sums, sum_point=sizes.sum_bytes,
        sum_row=sizes.vectors * wide, sum_row_last=sizes.last_vectors * wide, zeros=_PANEL - ZERO_BYTES,
        tiles_out=_ways_out(r, spec, group_out), tables=epilogue_tables(r), slots=sizes.slots, slot_bytes=slot,
        slot_line=sizes.box[1] * sizes.vectors * lane * slot,
        move_out=move_out_address(r, move_out, min(group_out, sizes.vectors * lane)),
    )  # fmt: skip


def _entries(channels: int, tiles: int) -> NDArray[np.int64]:
    """An entry for every block of channels: its offset, words, and rows of weights before it."""
    firsts = range(0, channels, _BLOCK)
    return words([
        v for first in firsts for v in (first // _BLOCK * tiles * _BLOCK_BYTES, -(-min(_BLOCK, channels - first) // 2),
                                        first // 2)
    ])  # fmt: skip


def _ways_out(r: Request, spec: FusedTile, outputs: int) -> list[Address[TilesOut] | None]:
    """The way out of whole vectors of output channels, and of one that is cut; None for what there is not."""
    lane = lanes(r.target, r.arith)

    def address(spec: FusedTile) -> Address[TilesOut]:
        label = f"winograd dots out {spec}"
        return address_of(r, label, "tiles", TilesOut, lambda k, name: tiles_out(k, name, spec, lane))

    return [address(spec) if outputs >= lane else None, address(replace(spec, edge=True)) if outputs % lane else None]
