"""The generated code that computes a box of ``rows``, group after group: transforms, products, and what moves.

It must not know how boxes were chosen.
"""

from __future__ import annotations

from polyconv.algorithms.winograd.columns import SCHEME, Box, ColumnWords
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import zero_words
from polyconv.kernels.record import Function, Functions, Record, Table, Word
from polyconv.kernels.rows import RowsApart, RowsIn, RowsMultiply, RowsOut
from polyconv.lowering.panel import Driver, axis_words, box_rows, fill

__all__ = ["RowWords", "TileWords", "driver"]


class TileWords(Record):
    """A tile of output channels: its first, bytes before its weights, and of them at a point."""

    first: Word
    weights: Word
    point: Word


class RowWords(Record):
    """The driver's words.

    ``pitch`` pixels lie between tiles below each other, among transformed inputs and among sums.  ``multiply`` has for
    every tile its functions of 1, 2, ... ``most_vectors``.
    """

    columns: ColumnWords
    total_groups: Word
    item_groups: Word
    group_in: Word
    group_out: Word
    lanes: Word
    pitch: Word
    channel_bytes: Word
    move_in: Function[RowsApart]
    transform_in: Function[RowsIn]
    v_channel: Word
    most_vectors: Word
    vector_bytes: Word
    tiles: Table[TileWords]
    tile_count: Word
    multiply: Functions[RowsMultiply]
    w_group: Word
    s_channel: Word
    transform_out: Function[RowsOut]
    out_row: Word
    out_channel: Word
    flags: Word


def driver(k: Module, name: str, vector_bytes: int, near: bool) -> None:
    """Add the driver of boxes to a module, for inputs that are read and results that are written as they lie or not."""
    with k.function(name, Driver) as given:
        p = RowWords.read(k, given.words)
        box = Box.of(k, p.columns, given)
        first, flags = box.item.g * p.item_groups, given.workspace + p.flags
        groups = k.minimum(p.item_groups, p.total_groups - first)
        if not near:
            _fill_planes(box, p, groups, vector_bytes)
        rows = box_rows(k, p.columns.common, box.item, 2)
        with k.loop(0, groups) as group:
            flag = flags + group.index * 8
            k.store(k.constant(INT, 0), flag, 8)
            _transform_inputs(box, p, group.index, near)
            with k.loop(0, rows) as row:
                _multiply(box, p, first + group.index, row.index)
                _transform_back(box, p, first, group.index, row.index, flag, near)
        if not near:
            with k.loop(0, rows) as row, k.loop(0, box.tall) as tile:
                to = box.results(row.index * box.tall + tile.index, k.constant(INT, 0))
                steps = p.columns.word_bytes, p.out_channel
                box.move_out(
                    _planes(box, p, row.index, tile.index), steps, box.lines_out(tile.index), to, first * p.group_out,
                    groups * p.group_out,
                )  # fmt: skip
        with k.loop(0, groups) as group, k.when(k.word(flags + group.index * 8) > 0):
            box.compute_again(first + group.index, first + group.index + 1)


def _fill_planes(box: Box, p: RowWords, groups: Value, vector_bytes: int) -> None:
    """Copy the inputs of a box into planes."""
    k, c, channels, line_bytes = box.k, p.columns.common, groups * p.group_in, p.pitch * p.columns.word_bytes

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = box.workspace + (c.panel + line * line_bytes)
        with k.when(head < end):
            k.call(p.move_in, RowsApart(
                source, axis_words(c, c.axes - 1).x_stride, c.x_c, target, p.channel_bytes, head, end, count, channels,
            ))  # fmt: skip
        with k.when(head < end, otherwise=True), k.loop(0, channels) as channel:
            place = target + channel.index * p.channel_bytes
            zero_words(k, place, line_bytes >> 2, vector("i32", vector_bytes // 4))

    fill(k, c, box.item, box.frame.x, k.constant(INT, 0), put)


def _transform_inputs(box: Box, p: RowWords, group: Value, near: bool) -> None:
    """All lines of a group."""
    k, c, line_bytes = box.k, p.columns, p.pitch * p.columns.word_bytes
    y = axis_words(c.common, c.common.axes - 2)
    there: tuple[Value | int, ...]
    with k.loop(0, c.outer_lines) as line, k.loop(0, box.tall) as tile:
        if near:
            source, there = box.inputs(line.index, group * p.group_in, box.first_line(tile.index))
            steps = y.x_stride, c.common.x_c
        else:
            plane = c.common.panel + group * p.group_in * p.channel_bytes
            source = box.workspace + (plane + (line.index * y.lines + tile.index * SCHEME.m) * line_bytes)
            there, steps = box.whole(), (line_bytes, p.channel_bytes)
        k.call(p.transform_in, RowsIn(
            source, *steps, box.workspace + (c.v + line.index * c.v_line + tile.index * line_bytes), c.v_point,
            p.v_channel, p.group_in, *there,
        ))  # fmt: skip


def _multiply(box: Box, p: RowWords, group: Value, row: Value) -> None:
    """The products of a group, for a row of the outer axes: vectors are cut into near-equal parts."""
    k, c = box.k, p.columns
    v, entries, count = box.products(row)
    vectors = ((box.tall - 1) * p.pitch + box.pixels + p.lanes - 1) // p.lanes
    parts = (vectors + p.most_vectors - 1) // p.most_vectors
    with k.loop(0, parts) as part, k.loop(0, p.tile_count) as tile:
        low = part.index * vectors // parts
        here = (part.index + 1) * vectors // parts - low
        of_tile = p.tiles.at(tile.index)
        k.call(p.multiply.at(tile.index * p.most_vectors + (here - 1)), RowsMultiply(
            v + low * p.vector_bytes, c.v_point, entries, count, c.weights + (group * p.w_group + of_tile.weights),
            of_tile.point, box.workspace + (c.sums + of_tile.first * p.s_channel + low * p.vector_bytes), c.s_point,
            p.s_channel, SCHEME.n,
        ))  # fmt: skip


def _transform_back(box: Box, p: RowWords, first: Value, group: Value, row: Value, flag: Buffer, near: bool) -> None:
    """Results of a row of the outer axes, to their place or to planes."""
    k, c, channel = box.k, p.columns, group * p.group_out
    bias = c.tables.bias + (first * p.group_out + channel) * c.word_bytes
    with k.loop(0, box.tall) as tile:
        sums = box.workspace + (c.sums + tile.index * p.pitch * c.word_bytes)
        if near:
            target, residual = box.results(row * box.tall + tile.index, channel)
            steps = c.y_row, c.common.y_c
        else:
            target, residual = _planes(box, p, row, tile.index) + channel * p.out_channel, box.workspace
            steps = c.out_line, p.out_channel
        k.call(p.transform_out, RowsOut(
            sums, c.s_point, p.s_channel, target, *steps, p.group_out, box.pixels, box.lines_out(tile.index), bias,
            residual, c.r_row, c.common.r_c, c.tables.constants, flag,
        ))  # fmt: skip


def _planes(box: Box, p: RowWords, row: Value, tile: Value) -> Buffer:
    """Where results of a row of tiles stand before they move."""
    return box.workspace + (p.columns.out + row * p.out_row + tile * SCHEME.m * p.columns.out_line)
