"""The driver of tiles with channels in the lanes: a box's panel, then block by block of outputs its rows of tiles.

Where nothing is padded and words lie as the instructions take them, tiles read the tensor itself.  Results leave from
registers to their place, or by slots and a move.  It must not know what a block of outputs is made of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from polyconv.algorithms.dots.form import Sizes
from polyconv.algorithms.dots.panel import DotPanel, pack, panel_common
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.fused import WordWalk
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import Move, MoveOut
from polyconv.kernels.record import Counted, Function, Memory, Record, Word
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxed_words, rows_follow
from polyconv.lowering.moves import along_out, move_out_address
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
    row_list,
    row_place,
    row_source,
)
from polyconv.lowering.program import Request, address_of, epilogue_tables
from polyconv.lowering.sweep import Axis, Sweep

__all__ = ["BlockWords", "DotTile", "DotWords", "common_words", "driver_address", "finished_in_registers", "of_block",
           "outputs_of_last", "result_words"]  # fmt: skip


class DotTile(Record):
    """A tile of a row: its first pixel, how many follow each other, and their function."""

    first: Word
    times: Word
    function: Function[WordWalk]


class DotResults(Record):
    """Words with which results leave: ``fused`` from registers, or by slots.

    Slots have ``slot_bytes`` an output, and leave when ``run_rows`` rows are there.
    """

    tables: EpilogueTables
    fused: Word
    slots: Word
    slot_bytes: Word
    slot_row: Word
    slot_row_last: Word
    run_rows: Word
    move_out: Function[MoveOut]


class BlockWords(Record):
    """Words of a driver that goes block by block of outputs, whatever its tiles are.

    So many lanes of a block's last vector are outputs: ``block_lanes``, of the last block ``last_lanes``.  Biases and
    scales of the next group lie ``table_group`` bytes further, those of the next block ``table_block``.
    """

    common: Common
    panel: DotPanel
    row_step: Word
    weights: Memory
    w_group: Word
    w_block: Word
    w_last: Word
    w_last_group: Word
    table_group: Word
    table_block: Word
    blocks: Word
    split_blocks: Word
    block_outputs: Word
    last_outputs: Word
    block_lanes: Word
    last_lanes: Word
    results: DotResults


class DotWords(BlockWords):
    """The driver's words.

    ``tiles`` holds four tables (last block or not, box cut short along the last axis or not), whose rows are outputs
    ``phases`` apart.  A block of outputs reads the channels that the one before it does, or those ``source_block``
    bytes further.  Biases of the next list of taps lie ``bias_list`` bytes further.  The next block has the same lists
    of entries, or others, so many ``block_lists`` further.
    """

    word_step: Word
    phases: Word
    source_block: Word
    rows: RowLists
    block_lists: Word
    bias_list: Word
    tiles: Counted[DotTile]
    table_words: Word


class OfBlock(NamedTuple):
    """What a block of outputs has of its own: weights and tables, its outputs, and bytes before its first result."""

    is_last: Value
    weights: Buffer
    bias: Buffer
    scale: Buffer
    constants: Buffer
    outputs: Value
    lanes: Value
    beside_y: Value
    beside_r: Value


def of_block(k: Module, p: BlockWords, item: Item, block: Value) -> OfBlock:
    """What a block of an item's group has."""
    tables, is_last = p.results.tables, block.equals(p.blocks - 1)
    weights = p.weights + k.select(
        is_last, p.w_last + item.g * p.w_last_group, item.g * p.w_group + block * p.w_block
    )
    at, first = item.g * p.table_group + block * p.table_block, block * p.block_outputs
    return OfBlock(
        is_last, weights, tables.bias + at, tables.scale + at, tables.constants,
        k.select(is_last, p.last_outputs, p.block_outputs), k.select(is_last, p.last_lanes, p.block_lanes),
        first * p.common.y_c, first * p.common.r_c,
    )  # fmt: skip


def outputs_of_last(sizes: Sizes, outputs: int, of_each: int, lane: int) -> tuple[int, int, int]:
    """Outputs of the last block, where others have so many each; and of the last vector of a block, and of that one."""
    last = outputs - (sizes.blocks - 1) * of_each
    return last, of_each - (sizes.vectors - 1) * lane, last - (sizes.last_vectors - 1) * lane


def _driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is some blocks of outputs of a box."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = DotWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        with k.when(p.panel.in_place.equals(0)):
            pack(k, p.common, p.panel, item, frame.x, workspace + p.common.panel, vector_bytes)
        first = item.split * p.split_blocks
        rows = box_rows(k, p.common, item)
        with k.loop(first, k.minimum(first + p.split_blocks, p.blocks)) as block:
            _block(k, p, item, frame, workspace, block.index, rows)


def _block(k: Module, p: DotWords, item: Item, frame: Frame, workspace: Buffer, block: Value, rows: Value) -> None:
    """All rows of outputs of a block of output channels."""
    last, results, own = axis_words(p.common, p.common.axes - 1), p.results, of_block(k, p, item, block)
    is_last, weights, bias, scale, constants, outputs, lanes, beside_y, beside_r = own
    pixels = item.extent(p.common.axes - 1)
    table = p.tiles + k.select(is_last, p.table_words * 16, 0) + k.select(pixels < last.block, p.table_words * 8, 0)
    slot_row = k.select(is_last, results.slot_row_last, results.slot_row)
    fused, in_place = results.fused.equals(1), p.panel.in_place.equals(1)
    begin = workspace + p.common.panel
    with k.loop(0, rows, carry=[k.constant(INT, 0), k.constant(INT, 0), k.constant(INT, 0)]) as row:
        waiting, y_run, r_run = row.values  # rows in the slots, and where they begin
        line, y_row, r_row = row_place(k, p.common, item, row.index)
        there = frame.x + row_source(k, p.common, item, row.index)
        source = k.either(in_place, there, begin + line * p.panel.line_bytes) + block * p.source_block
        which = row_list(k, p.rows.bands, item, row.index, p.common.axes - 1)
        of_row, biases = p.rows.lists.at(which + block * p.block_lists), bias + which * p.bias_list
        entries, count = p.rows.entries + of_row.first * 8, of_row.count
        slot = results.slots + waiting * pixels * slot_row
        y = k.either(fused, frame.y + (y_row + beside_y), workspace + slot)
        y_step = k.select(fused, last.y_stride, slot_row)
        r = k.either(fused, frame.residual + (r_row + beside_r), workspace)
        r_step = k.select(fused, last.r_stride, 0)
        with k.loop(0, table.count) as number:
            tile = table.at(number.index)
            first, times, function = tile.first, tile.times, tile.function
            k.call(function, WordWalk(
                source + first * p.row_step, p.row_step, entries, count, weights, y + first * y_step, y_step * p.phases,
                r + first * r_step, r_step * p.phases, times, lanes, biases, scale, constants, workspace, p.word_step,
            ))  # fmt: skip
        begins = waiting.equals(0)
        y_run, r_run, waiting = k.select(begins, y_row, y_run), k.select(begins, r_row, r_run), waiting + 1
        leaves = waiting.equals(results.run_rows) | (row.index + 1).equals(rows)
        with k.when(leaves & results.fused.equals(0)):
            k.call(results.move_out, MoveOut(
                workspace + results.slots, slot_row, results.slot_bytes, frame.y + (y_run + beside_y), last.y_stride,
                p.common.y_c, waiting * pixels, outputs, biases, scale,
                frame.residual + (r_run + beside_r), last.r_stride, p.common.r_c, constants,
            ))  # fmt: skip
        row.next(k.select(leaves, 0, waiting), y_run, r_run)


def driver_address(r: Request) -> Address[Driver]:
    """Address of the driver."""
    wide = r.target.vector_bytes
    return address_of(r, "dots", "dots", Driver, lambda k, name: _driver(k, name, wide))


def finished_in_registers(r: Request, last: Axis) -> bool:
    """Whether results are finished where their sums are: they lie together, or leave as bytes by slots.

    Sums of bf16 results leave as they are: on Zen 5 squares of 32 results took 5 to 10 % longer than 16 sums.
    """
    along = along_out(r, last, "c")
    return along == "cc" or (along == "cp" and r.problem.y_dtype.bits == 8 and r.residual is None)


def result_words(r: Request, sweep: Sweep, sizes: Sizes, lane: int, *, in_registers: bool, are_alike: bool = True,
                 by_pixel: bool = False) -> DotResults:  # fmt: skip
    """Words with which results leave, of blocks of ``sizes.vectors`` times so many lanes.

    Tiles may store single channels ``by_pixel``, wherever pixels lie.

    Rows leave together, if the biases that sums get on their way are alike.
    """
    p, along = r.problem, along_out(r, sweep[-1], "c")
    fused, finished = in_registers and along == "cc", in_registers and along != "cc"
    size = p.y_dtype.itemsize if finished else r.arith.bytes
    return DotResults(
        tables=epilogue_tables(r), fused=int(fused), slots=sizes.header + sizes.panel, slot_bytes=size,
        slot_row=sizes.vectors * lane * size, slot_row_last=sizes.last_vectors * lane * size,
        run_rows=sizes.run_rows if rows_follow(r, sweep) and (finished or are_alike) else 1,
        move_out=move_out_address(
            r, Move(f"i{8 * size}", p.y, along, Epilogue()) if finished
            else Move(r.arith.accumulator, p.y, along, r.epilogue),
            min(p.m, sizes.vectors * lane),
        ),
    )  # fmt: skip


def common_words(r: Request, sweep: Sweep, sizes: Sizes, groups: int) -> tuple[Common, int]:
    """The words of every blocked driver, for boxes of one of so many groups, and how many items there are."""
    of_groups = replace(r, situation=replace(r.situation, problem=replace(r.problem, groups=groups)))
    common, items = boxed_words(of_groups, sweep, sizes.box, sizes.held, sizes.splits, panel=sizes.header)
    return panel_common(r, common, sizes.step), items
