"""Native code of ``grouped``: the lines of a box copied for some blocks of groups, then every row of every block."""

from __future__ import annotations

from polyconv.algorithms.grouped.side_by_side import WalkWords
from polyconv.kernels.fused import Walk
from polyconv.kernels.grouped import BlocksIn
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import MoveIn, MoveOut, zero_words
from polyconv.kernels.record import Counted, Function, Memory, Record, Word
from polyconv.lowering.panel import (
    Common,
    Driver,
    EpilogueTables,
    Frame,
    Item,
    RowLists,
    axis_words,
    box_rows,
    decode,
    fill,
    row_entries,
    row_place,
)

__all__ = ["GroupedWords", "driver"]


class GroupedWords(Record):
    """The driver's words.

    ``tiles`` holds four tables (block of all outputs or cut short, box cut short along the last axis or not): the walks
    of a row.  Where channels lie ``together`` all blocks of an item are moved in at once.
    """

    common: Common
    lanes_used: Word
    total_channels: Word
    total_outputs: Word
    total_blocks: Word
    item_blocks: Word
    pixel_bytes: Word
    line_bytes: Word
    block_bytes: Word
    row_step: Word
    rows: RowLists
    weights: Memory
    w_block: Word
    always_cut: Word
    fused: Word
    slots: Word
    sum_row: Word
    run_rows: Word
    tiles: Counted[WalkWords]
    table_words: Word
    word_bytes: Word
    tables: EpilogueTables
    together: Word
    move_in: Function[MoveIn]
    move_blocks: Function[BlocksIn]
    move_out: Function[MoveOut]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = GroupedWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        first = item.g * p.item_blocks
        blocks = k.minimum(p.item_blocks, p.total_blocks - first)
        _pack(k, p, item, frame.x, workspace + p.common.panel, first, blocks, vector_bytes)
        rows = box_rows(k, p.common, item)
        with k.loop(0, blocks) as block:
            _block(k, p, item, frame, workspace, block.index, first + block.index, rows)


def _pack(k: Module, p: GroupedWords, item: Item, x: Buffer, panel: Buffer, first: Value, blocks: Value,
          vector_bytes: int) -> None:  # fmt: skip
    """Copy the lines of a box for some blocks."""
    words_of_4 = vector("i32", vector_bytes // 4)
    pixel_step = p.common.step * axis_words(p.common, p.common.axes - 1).x_stride

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + (line * p.line_bytes + first_line * p.pixel_bytes)
        channels = k.minimum(blocks * p.lanes_used, p.total_channels - first * p.lanes_used)
        with k.when((head > 0) | (end < count)), k.loop(0, blocks) as block:
            here = target + block.index * p.block_bytes
            zero_words(k, here, (head * p.pixel_bytes) >> 2, words_of_4)
            zero_words(k, here + end * p.pixel_bytes, ((count - end) * p.pixel_bytes) >> 2, words_of_4)
        target, pixels = target + head * p.pixel_bytes, end - head
        together = p.together.equals(1)
        with k.when((pixels > 0) & together):
            k.call(p.move_blocks, BlocksIn(
                source, pixel_step, target, p.pixel_bytes, p.block_bytes, pixels, channels,
                p.common.zero_point,
            ))  # fmt: skip
        with k.loop(0, k.select((pixels > 0) & p.together.equals(0), channels, 0), p.lanes_used, [target]) as block:
            k.call(p.move_in, MoveIn(
                source + block.index * p.common.x_c, pixel_step, p.common.x_c, block.values[0], p.pixel_bytes,
                p.word_bytes, pixels, k.minimum(channels - block.index, p.lanes_used), p.common.zero_point,
            ))  # fmt: skip
            block.next(block.values[0] + p.block_bytes)

    fill(k, p.common, item, x, k.constant(INT, 0), put)


def _block(k: Module, p: GroupedWords, item: Item, frame: Frame, workspace: Buffer, block: Value, absolute: Value,
           rows: Value) -> None:  # fmt: skip
    """All rows of outputs of one block of groups."""
    last = axis_words(p.common, p.common.axes - 1)
    pixels = item.extent(p.common.axes - 1)
    channel = absolute * p.lanes_used
    outputs = k.minimum(p.lanes_used, p.total_outputs - channel)
    cut = k.select(outputs < p.lanes_used, 1, p.always_cut)
    table = p.tiles + cut * p.table_words * 16
    table = table + k.select(pixels < last.block, p.table_words * 8, 0)
    weights = p.weights + absolute * p.w_block
    bias, scale = p.tables.bias + channel * p.word_bytes, p.tables.scale + channel * p.word_bytes
    beside_y, beside_r = block * p.lanes_used * p.common.y_c, block * p.lanes_used * p.common.r_c
    fused = p.fused.equals(1)
    with k.loop(0, rows, carry=[k.constant(INT, 0), k.constant(INT, 0), k.constant(INT, 0)]) as row:
        waiting, y_run, r_run = row.values  # rows in the slots, and where they begin
        line, y_row, r_row = row_place(k, p.common, item, row.index)
        panel = workspace + (p.common.panel + block * p.block_bytes + line * p.line_bytes)
        entries, count = row_entries(k, p.common, p.rows, item, row.index)
        y, r = frame.y + (y_row + beside_y), frame.residual + (r_row + beside_r)
        slot = p.slots + waiting * pixels * p.sum_row
        with k.loop(0, table.count) as tile:
            walk = table.at(tile.index)
            first, times, function = walk.first, walk.times, walk.function
            source, step = panel + first * p.row_step, p.row_step
            rest = times, outputs, bias, scale, p.tables.constants, workspace
            with k.when(fused):
                k.call(function, Walk(
                    source, step, entries, count, weights, y + first * last.y_stride, last.y_stride,
                    r + first * last.r_stride, last.r_stride, *rest,
                ))  # fmt: skip
            with k.when(fused, otherwise=True):
                sums = workspace + (slot + first * p.sum_row)
                k.call(function, Walk(source, step, entries, count, weights, sums, p.sum_row, workspace, 0, *rest))
        begins = waiting.equals(0)
        y_run, r_run, waiting = k.select(begins, y_row, y_run), k.select(begins, r_row, r_run), waiting + 1
        leaves = waiting.equals(p.run_rows) | (row.index + 1).equals(rows)
        with k.when(leaves & p.fused.equals(0)):
            k.call(p.move_out, MoveOut(
                workspace + p.slots, p.sum_row, p.word_bytes,
                frame.y + (y_run + beside_y), last.y_stride, p.common.y_c, waiting * pixels, outputs, bias, scale,
                frame.residual + (r_run + beside_r), last.r_stride, p.common.r_c, p.tables.constants,
            ))  # fmt: skip
        row.next(k.select(leaves, 0, waiting), y_run, r_run)
