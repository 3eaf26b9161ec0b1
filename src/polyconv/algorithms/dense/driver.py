"""The driver of ``direct``: boxes of outputs, each with a panel of its inputs, chunk by chunk of input channels.

For every block of output channels, rows of the box are tiles that stream packed weights.  Sums go on from chunk to
chunk in slots.  The same code serves every element type: it moves bytes and calls moves and tiles through tables.
It must not know how boxes, blocks and chunks are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyconv.algorithms.dense.channel_panel import PanelWords, pack_panel
from polyconv.algorithms.packing import LateWords, when_needed
from polyconv.algorithms.panel import (
    Ahead,
    Common,
    Driver,
    EpilogueTables,
    Frame,
    Item,
    ahead_place,
    axis_words,
    box_rows,
    decode,
    row_list,
    row_place,
    row_source,
)
from polyconv.algorithms.program import Request
from polyconv.kernels.fused import Walk
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import MoveOut
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Counted, Function, Functions, Memory, Record, Table, Word
from polyconv.kernels.signature import Address, Int, Signature
from polyconv.kernels.tile import FIRST, LAST, EdgeTile

__all__ = ["ChunkList", "DirectBox", "DirectWords", "TileWords", "addresses"]


class ChunkList(Record):
    """A list of entries: the entry it begins with, how many there are, and how many of them are a chunk's."""

    first: Word
    count: Word
    chunk_count: Word


class TileWords(Record):
    """A tile of a row: its first pixel and its function."""

    first: Word
    function: Function[EdgeTile | Walk]


class DirectWords(Record):
    """The driver's words: the panel's geometry, entry lists and packed weights, tables of tiles, moves.

    The chain of additions goes on from chunk to chunk through the slots.  ``bands`` says for every output along an
    outer axis which list of entries it has; whole entries come first.  Tiles ask for the inputs of the next box and,
    ``ahead_weights`` bytes if they come from memory, for the next block's weights.  Where there is one chunk and output
    channels lie together, tiles are ``fused``: results go from registers to their place.  ``tiles`` holds four tables
    (last block or not, box cut short along the last axis or not).  ``one_rows`` are tiles of one row, of the last block
    and of others, for rows that are computed output by output.
    """

    common: Common
    inputs: PanelWords
    careful: Word
    taps: Word
    offsets: Memory
    total_outputs: Word
    chunks: Word
    chunk_entries: Word
    entry_count: Word
    entries: Memory
    bands: Memory
    lists: Table[ChunkList]
    weights: Memory
    w_group: Word
    w_block: Word
    w_chunk: Word
    w_last: Word
    w_last_group: Word
    w_last_chunk: Word
    outputs: Word
    blocks: Word
    split_blocks: Word
    block_outputs: Word
    last_outputs: Word
    sum_row: Word
    sum_row_last: Word
    ahead: Ahead
    ahead_weights: Word
    chunk_steps: Word
    row_tiles: Word
    ask_results: Word
    slots: Word
    slot_block: Word
    slot_row: Word
    tiles: Counted[TileWords]
    table_words: Word
    one_rows: Functions[EdgeTile]
    word_bytes: Word
    fused: Word
    last_lanes: Word
    tables: EpilogueTables
    move_out: Function[MoveOut]
    late: LateWords


class DirectBox(Signature):
    """Blocks first..end of outputs of a box, which stands in the workspace's header as ``decode`` leaves it."""

    frame: Frame
    words: DirectWords
    workspace: Buffer
    n: Int
    g: Int
    first: Int
    end: Int


def addresses(r: Request) -> tuple[Address[Driver], Address[DirectBox]]:
    """Addresses of the driver, and of the function that computes a box for it and for other algorithms."""
    functions: dict[str, type[Signature]] = {"direct": Driver, "direct_box": DirectBox}
    found: dict[str, Address[Any]] = kernel(
        "direct", functions, lambda k: _driver(k, "direct"), r.target, check=r.check
    )
    return found["direct"], found["direct_box"]


def _driver(k: Module, name: str) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    _box(k, f"{name}_box")
    with k.function(name, Driver) as given:
        p, workspace = DirectWords.read(k, given.words), given.workspace
        item = decode(k, p.common, given.item, workspace)
        first = item.split * p.split_blocks
        end = k.minimum(first + p.split_blocks, p.blocks)
        k.call(f"{name}_box", DirectBox(given.frame, p, workspace, item.n, item.g, first, end))


def _box(k: Module, name: str) -> None:
    """Add the function that computes blocks of outputs of a box."""
    with k.function(name, DirectBox) as given:
        frame, workspace, first_block, end_block = given.frame, given.workspace, given.first, given.end
        p = given.words
        item = Item(k, workspace, given.n, given.g, k.constant(INT, 0))
        rows = box_rows(k, p.common, item)
        when_needed(k, p.late)
        k.clear(workspace + p.common.scratch, 256)  # sums start from these zeros
        x = frame.x
        begin, blocks = x + row_source(k, p.common, item, k.constant(INT, 0)), end_block - first_block
        with k.loop(0, p.chunks) as chunk:
            pack_panel(k, p.common, p.inputs, item, x, workspace + p.common.panel, chunk.index * p.inputs.chunk)
            with k.loop(first_block, end_block) as block:
                number = chunk.index * blocks + block.index - first_block
                turns = block.index + 1 < end_block
                following = _weights(
                    k, p, item, k.select(turns, block.index + 1, first_block),
                    k.select(turns, chunk.index, (chunk.index + 1) % p.chunks),
                )  # fmt: skip
                early = _Early(begin, number, blocks * p.chunks, following, rows)
                with k.loop(0, rows) as row:
                    slot = p.slots + (block.index - first_block) * p.slot_block + row.index * p.slot_row
                    _row(k, p, item, frame, workspace, slot, chunk.index, block.index, row.index, early)


@dataclass(frozen=True, slots=True)
class _Early:
    """What tiles of a block ask for early: inputs of the box after the one that begins there, following weights.

    A box has so many ``blocks`` of ``rows``, this one the ``number``.
    """

    begin: Buffer
    number: Value
    blocks: Value
    weights: Buffer
    rows: Value

    def place(self, k: Module, p: DirectWords, row: Value, tile: Value) -> tuple[Buffer, Value]:
        """Where a tile asks, and by how many bytes it goes on with a step: tiles take turns where both lie far."""
        call, calls = row * p.row_tiles + tile, k.maximum(self.rows * p.row_tiles, 1)
        inputs = (p.ahead.step > 0) & (p.ahead_weights.equals(0) | (call & 1).equals(1))
        of_inputs = p.ahead.size * p.ahead.planes // (calls * self.blocks)
        of_weights = p.ahead_weights // calls
        place = k.either(
            inputs, ahead_place(k, p.common, p.ahead, self.begin, self.number * calls + call, calls * self.blocks),
            self.weights + call * of_weights,
        )  # fmt: skip
        return place, (2 * k.select(inputs, of_inputs, of_weights) + 63) // p.chunk_steps


def _weights(k: Module, p: DirectWords, item: Item, block: Value, chunk: Value) -> Buffer:
    """Where the weights of a block of outputs and a chunk of channels begin."""
    return p.weights + k.select(
        block.equals(p.blocks - 1),
        p.w_last + item.g * p.w_last_group + chunk * p.w_last_chunk,
        item.g * p.w_group + block * p.w_block + chunk * p.w_chunk,
    )


def _row(k: Module, p: DirectWords, item: Item, frame: Frame, workspace: Buffer, slot: Value, chunk: Value,
         block: Value, row: Value, early: _Early) -> None:  # fmt: skip
    """One row of outputs of one block of output channels: its tiles, and its way out after the last chunk."""
    last = axis_words(p.common, p.common.axes - 1)
    is_last = block.equals(p.blocks - 1)
    pixels = item.extent(p.common.axes - 1)
    sum_row = k.select(is_last, p.sum_row_last, p.sum_row)
    weights = _weights(k, p, item, block, chunk)
    short = pixels < last.block
    table = p.tiles + k.select(is_last, p.table_words * 16, 0) + k.select(short, p.table_words * 8, 0)
    begins = chunk.equals(0)
    start, start_row = k.select(begins, p.common.scratch, slot), k.select(begins, 0, sum_row)
    line, y_offset, r_offset = row_place(k, p.common, item, row)
    of_row = p.lists.at(row_list(k, p.bands, item, row, p.common.axes - 1))
    list_ = p.entries + (of_row.first + chunk * of_row.chunk_count) * 24
    entries = k.minimum(of_row.chunk_count, of_row.count - chunk * of_row.chunk_count)
    panel = workspace + p.common.panel + line * p.inputs.line_bytes
    tile_count = k.select(p.careful.equals(1), 0, table.count)
    with k.when(p.careful.equals(1)):
        _careful_row(k, p, item, workspace, slot, sum_row, weights, chunk, row, panel, is_last)
    channel = block * p.block_outputs
    absolute = item.g * p.outputs + channel
    bias, scale = p.tables.bias + absolute * p.word_bytes, p.tables.scale + absolute * p.word_bytes
    y, r = frame.y + (y_offset + channel * p.common.y_c), frame.residual + (r_offset + channel * p.common.r_c)
    fused = p.fused.equals(1)
    outputs = k.minimum(k.select(is_last, p.last_outputs, p.block_outputs), p.total_outputs - absolute)
    begin = item.first(p.common.axes - 1)
    edges = k.select(begin.equals(0), FIRST, 0), k.select((begin + pixels).equals(last.out), LAST, 0)
    with k.loop(0, tile_count) as tile:
        of_tile = table.at(tile.index)
        first = of_tile.first
        pixels_in = panel + first * p.inputs.row_bytes
        with k.when(fused):
            k.call(of_tile.function, Walk(
                pixels_in, p.inputs.row_bytes, list_, entries, weights, y + first * last.y_stride, last.y_stride,
                r + first * last.r_stride, last.r_stride, 1, p.last_lanes, bias, scale, p.tables.constants,
                workspace,
            ))  # fmt: skip
        with k.when(fused, otherwise=True):
            with k.when(p.ask_results.equals(1)), k.loop(0, outputs) as one:
                k.prefetch(y + (first * last.y_stride + one.index * p.common.y_c), writing=True)
            met = k.select(first.equals(0), edges[0], 0) | k.select(tile.index + 1 < tile_count, 0, edges[1])
            function = of_tile.function
            from_, to = workspace + (start + first * start_row), workspace + (slot + first * sum_row)
            at, pace = early.place(k, p, row, tile.index)
            k.call(function, EdgeTile(
                pixels_in, entries, list_, weights, from_, start_row, to, sum_row, met, at, pace
            ))
    with k.when(chunk.equals(p.chunks - 1) & p.fused.equals(0)):
        k.call(p.move_out, MoveOut(
            workspace + slot, sum_row, p.word_bytes, y, last.y_stride, p.common.y_c, pixels, outputs,
            bias, scale, r, last.r_stride, p.common.r_c, p.tables.constants,
        ))  # fmt: skip


def _careful_row(k: Module, p: DirectWords, item: Item, workspace: Buffer, slot: Value, sum_row: Value, weights: Buffer,
                 chunk: Value, row: Value, panel: Buffer, is_last: Value) -> None:  # fmt: skip
    """A row output by output and entry by entry, leaving out the entries whose tap lies in the padding."""
    one_row = p.one_rows.at(k.cast("zext", is_last, INT))
    entries = k.minimum(p.chunk_entries, p.entry_count - chunk * p.chunk_entries)
    with k.loop(0, item.extent(p.common.axes - 1)) as pixel:
        sums = workspace + (slot + pixel.index * sum_row)
        with k.when(chunk.equals(0)):
            k.call(one_row, EdgeTile(
                panel, 0, p.entries, weights, workspace + p.common.scratch, 0, sums, 0, 0, panel, 0,
            ))
        with k.loop(0, entries) as entry:
            record = p.entries + (chunk * p.chunk_entries + entry.index) * 24
            offsets = p.offsets + (entry.index % p.taps) * p.common.axes * 8
            with k.loop(0, p.common.axes, carry=[row, k.constant(INT, 1)]) as back:
                q, inside = back.values
                axis = p.common.axes - 1 - back.index
                is_last = back.index.equals(0)
                b = k.select(is_last, pixel.index, q % item.extent(axis))
                of_axis = axis_words(p.common, axis)
                position = item.origin(axis) + b * of_axis.stride + k.word(offsets, axis)
                within = k.cast("zext", position.below(of_axis.inp), INT)
                back.next(k.select(is_last, q, q // item.extent(axis)), inside & within)
            with k.when(back.results[1].equals(1)):
                k.call(one_row, EdgeTile(
                    panel + pixel.index * p.inputs.row_bytes, 1, record, weights, sums, sum_row, sums, sum_row, 0,
                    panel, 0,
                ))  # fmt: skip
