"""The driver of the generic algorithm: a box's inputs into a padded panel, tiles over it, and sums to the result.

Lanes are pixels of a row, or of the whole flattened box where rows are short.  Results leave from registers (*fused*
tiles), or their sums wait in slots and a move brings them out.  It must not know how boxes are chosen.
"""

from __future__ import annotations

from polyconv.kernels.fused import Walk
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import MoveIn
from polyconv.kernels.move_rows import RowsOut
from polyconv.kernels.record import Function, Memory, Record, Word
from polyconv.lowering.panel import (
    Ahead,
    Common,
    Driver,
    Frame,
    Item,
    ahead_place,
    axis_words,
    box_rows,
    decode,
    fill_planes,
    row_place,
    row_source,
)
from polyconv.lowering.pixels import ZERO_BYTES, OutputSet, PixelSums, add_products, move_sums

__all__ = ["GenericWords", "driver"]


class GenericWords(Record):
    """The driver's words.

    An item is a box of ``block_groups`` groups: small groups share the work of finding lines and rows.  Where there
    is one group, the phases of a transposed convolution may be members of one sweep, each a set of rows of its tiles.
    A member's words: shifts of result and residual in bytes, then for every axis the outputs of the sweep, low and end,
    that are the member's.  Neighbouring outputs have slots ``slot_bytes`` apart, rows in them ``row_bytes``.
    Short rows leave ``together`` with their neighbours.
    """

    common: Common
    sums: PixelSums
    block_groups: Word
    group_total: Word
    plane_bytes: Word
    line_bytes: Word
    move_in: Function[MoveIn]
    ahead: Ahead
    split_sets: Word
    flat: Word
    fused: Word
    slot_bytes: Word
    row_bytes: Word
    member_count: Word
    members: Memory
    together: Word
    rows_out: Function[RowsOut]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = GenericWords.read(k, given.words)
        item, s = decode(k, p.common, given.item, workspace), p.sums
        k.clear(workspace + p.common.scratch, ZERO_BYTES)
        rows = box_rows(k, p.common, item)
        first_group = item.g * p.block_groups
        groups = k.minimum(p.block_groups, p.group_total - first_group)
        first_set = item.split * p.split_sets
        end_set = k.minimum(first_set + p.split_sets, s.set_count)
        single = p.block_groups.equals(1) & p.member_count.equals(1)
        with k.loop(0, s.chunks) as chunk:
            first = chunk.index * s.chunk
            channels = k.minimum(s.chunk, s.channels - first)
            fill_planes(k, p.common, p, s.word_bytes, item, frame.x, workspace + p.common.panel, first,
                        channels * groups, vector_bytes)  # fmt: skip
            with k.loop(0, groups) as group, k.loop(first_set, end_set) as number:
                of_set = s.sets.at(number.index)
                slot = s.slots + (group.index * s.outputs + of_set.first) * p.slot_bytes
                fused = p.fused.equals(1)
                with k.when(fused):
                    _fused_rows(k, p, of_set, item, frame, workspace, rows, number.index)
                with k.when(fused, otherwise=True):
                    _add_rows(k, p, of_set, item, workspace, slot, chunk.index, group.index, rows)
                    with k.when(single & chunk.index.equals(s.chunks - 1)):
                        _move_rows(k, p, item, frame, workspace + slot, rows, of_set.first, of_set.rows, p.members)
        with k.when(single, otherwise=True), k.loop(0, p.member_count) as member:
            sums = workspace + (s.slots + member.index * s.outputs * p.slot_bytes)
            record = p.members + member.index * (p.common.axes + 1) * 16
            _move_rows(k, p, item, frame, sums, rows, k.constant(INT, 0), groups * s.outputs, record)


def _fused_rows(k: Module, p: GenericWords, of_set: OutputSet, item: Item, frame: Frame, workspace: Buffer, rows: Value,
                number: Value) -> None:  # fmt: skip
    """Fused tiles of a set of outputs over the box, in near-equal walks; the last vector of a row may be masked."""
    c, s, last = p.common, p.sums, axis_words(p.common, p.common.axes - 1)
    width = item.extent(c.axes - 1)
    vectors = (width + s.lanes - 1) // s.lanes
    last_lanes = width - (vectors - 1) * s.lanes
    cut = k.select(last_lanes < s.lanes, 1, k.constant(INT, 0))
    parts = (vectors + of_set.most - 1) // of_set.most
    less, more = vectors // parts, vectors % parts
    weights = s.weights + (item.g * s.w_group + of_set.weights)
    channel = (item.g * s.outputs + of_set.first) * s.word_bytes
    x = frame.x + row_source(k, c, item, k.constant(INT, 0))
    with k.loop(0, rows) as row:
        soon = ahead_place(k, c, p.ahead, x, number * rows + row.index, s.set_count * rows)
        line, y_row, r_row = row_place(k, c, item, row.index)
        panel = workspace + (c.panel + line * p.line_bytes)
        y, r = frame.y + (y_row + of_set.first * c.y_c), frame.residual + (r_row + of_set.first * c.r_c)
        begin = k.constant(INT, 0)
        for size, times, kind in ((less + 1, more, 0), (less, parts - more - cut, 0), (less, cut, of_set.most * 2)):
            first = begin * s.lanes
            with k.when(times > 0):
                k.call(s.functions.at_word(of_set.table + size * 2 + kind), Walk(
                    panel + begin * s.lane_bytes, 0,
                    s.entries, s.channels * s.taps, weights, y + first * last.y_stride, c.y_c,
                    r + first * last.r_stride, c.r_c, times, last_lanes, s.tables.bias + channel,
                    s.tables.scale + channel, s.tables.constants, soon,
                ))  # fmt: skip
            soon = soon + times * s.channels * (s.taps * 64)
            begin = begin + size * times


def _add_rows(k: Module, p: GenericWords, of_set: OutputSet, item: Item, workspace: Buffer, slot: Value, chunk: Value,
              group: Value, rows: Value) -> None:  # fmt: skip
    """Sums of a set of outputs over the box: row by row, or as one row that has what lies between rows in it."""
    s, flat = p.sums, p.flat.equals(1)
    last_line, _, _ = row_place(k, p.common, item, rows - 1)
    width = item.extent(p.common.axes - 1)
    width = k.select(flat, last_line * (p.line_bytes // s.word_bytes) + width, width)
    vectors = (width + s.lanes - 1) // s.lanes
    planes = workspace + p.common.panel + group * s.channels * p.plane_bytes
    with k.loop(0, k.select(flat, 1, rows)) as row:
        line, _, _ = row_place(k, p.common, item, row.index)
        add_products(
            k, s, of_set, planes + line * p.line_bytes, item.g * p.block_groups + group, chunk, workspace,
            p.common.scratch, slot + row.index * p.row_bytes, vectors,
        )  # fmt: skip


def _move_rows(k: Module, p: GenericWords, item: Item, frame: Frame, sums: Buffer, rows: Value, first: Value,
               count: Value, member: Buffer) -> None:  # fmt: skip
    """Move the sums of some output channels of the item to the result, row by row: those that are a member's."""
    c, s = p.common, p.sums
    last = axis_words(c, c.axes - 1)

    def bounds(axis: Value) -> tuple[Value, Value]:
        return k.word(member, axis * 2 + 2), k.word(member, axis * 2 + 3)

    low, end = bounds(c.axes - 1)
    begin = item.first(c.axes - 1)
    low, end = k.maximum(low - begin, 0), k.minimum(end - begin, item.extent(c.axes - 1))
    second = k.maximum(c.axes - 2, 0)
    inner, lines = axis_words(c, second), p.together.equals(1)  # rows of the last axis but one follow each other
    from_, to = bounds(second)
    run, before = k.select(lines, item.extent(second), 1), item.first(second)
    top = k.select(lines, k.maximum(from_ - before, 0), 0)
    many = k.select(lines, k.minimum(to - before, run) - top, 1)
    flat = p.flat.equals(1)
    with k.loop(0, rows // run) as number:
        with k.loop(k.select(lines, 2, 1), c.axes, carry=[number.index, end - low]) as back:
            q, pixels = back.values
            axis = c.axes - 1 - back.index
            from_, to = bounds(axis)
            place = item.first(axis) + q % item.extent(axis)
            back.next(q // item.extent(axis), k.select((place - from_).below(to - from_), pixels, 0))
        pixels, row = back.results[1], number.index * run + top
        line, y, r = row_place(k, c, item, row)
        place = k.select(flat, line, row) * p.row_bytes + low * s.word_bytes
        y, r = y + k.word(member) + low * last.y_stride, r + k.word(member, 1) + low * last.r_stride
        with k.when((pixels > 0) & (p.together.equals(0))):
            move_sums(k, s, c, frame, sums + place, item.g * p.block_groups, first, count, pixels, y, r)
        with k.when((pixels > 0) & (many > 0) & lines):
            channel = (item.g * p.block_groups * s.outputs + first) * s.word_bytes
            k.call(p.rows_out, RowsOut(
                sums + place, s.word_bytes, s.output_bytes, frame.y + (y + first * c.y_c), last.y_stride, c.y_c,
                pixels, count, s.tables.bias + channel, s.tables.scale + channel,
                frame.residual + (r + first * c.r_c), last.r_stride, c.r_c, s.tables.constants,
                many, k.select(flat, inner.pitch, 1) * p.row_bytes, inner.y_stride, inner.r_stride,
            ))  # fmt: skip
