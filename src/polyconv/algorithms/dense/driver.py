"""The driver of ``direct`` and ``stem``: boxes of outputs, each with a panel of its inputs, chunk by chunk of channels.

For every block of output channels, rows of the box are tiles that stream packed weights.  Sums go on from chunk to
chunk in slots.  Tiles may also read the input where it lies.  The same code serves every element type: it moves bytes
and calls moves and tiles through tables.  It must not know how boxes, blocks and chunks are chosen.
"""

from __future__ import annotations

from polyconv.algorithms.dense.channel_panel import PanelWords, pack_panel
from polyconv.dataclass import dataclass
from polyconv.kernels.fused import Walk
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import MoveOut
from polyconv.kernels.record import Counted, CountedRows, Function, Memory, Record, Table, Word
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import FIRST, LAST, EdgeTile
from polyconv.lowering.panel import (
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
from polyconv.lowering.program import Request, address_of

__all__ = ["BlockWords", "ChunkList", "DirectWords", "TileWords", "address"]


class ChunkList(Record):
    """A list of entries: the entry it begins with, how many there are, and how many of them are a chunk's."""

    first: Word
    count: Word
    chunk_count: Word


class BlockWords(Record):
    """Blocks of output channels of a group: their packed weights, and the rows of their sums.

    The last blocks of all groups, which may be narrower, follow all others; an item has a ``split`` of a group's.
    """

    weights: Memory
    w_group: Word
    w_block: Word
    w_chunk: Word
    w_last: Word
    w_last_group: Word
    w_last_chunk: Word
    of_group: Word
    count: Word
    split: Word
    outputs: Word
    last_outputs: Word
    last_lanes: Word
    sum_row: Word
    sum_row_last: Word


class TileWords(Record):
    """So many equal tiles of a row: their first pixel, whether they read the input in place, and their function."""

    first: Word
    times: Word
    in_place: Word
    function: Function[EdgeTile | Walk]


class DirectWords(Record):
    """The driver's words: the panel's geometry, entry lists and packed weights, tables of tiles, moves.

    The chain of additions goes on from chunk to chunk through the slots.  ``bands`` says for every output along an
    outer axis which list of entries it has; whole entries come first.  Entries of tiles that read the input in place
    stand ``x_entries`` bytes further; their outputs lie ``x_step`` apart, others ``panel_step``.  Tiles ask for the
    inputs of the next box and, ``ahead_weights`` bytes if they come from memory, for the next block's weights.
    ``tiles`` holds four tables (last block or not, fewer than ``row_pixels`` in a row or not).  Those that ``walk``
    take one chunk and, if they are ``fused``, leave results in their place.  Rows of boxes that lie ``flat`` are one.
    """

    common: Common
    inputs: PanelWords
    chunks: Word
    entries: Memory
    x_entries: Word
    bands: Memory
    lists: Table[ChunkList]
    blocks: BlockWords
    total_outputs: Word
    ahead: Ahead
    ahead_weights: Word
    ahead_tile: Word
    chunk_steps: Word
    row_tiles: Word
    ask_results: Word
    slots: Word
    slot_block: Word
    slot_row: Word
    flat: Word
    row_pixels: Word
    panel_step: Word
    x_step: Word
    tiles: Counted[TileWords]
    table_words: Word
    walk: Word
    fused: Word
    word_bytes: Word
    tables: EpilogueTables
    move_out: Function[MoveOut]


def address(r: Request) -> Address[Driver]:
    """Address of the driver."""
    return address_of(r, "direct", "direct", Driver, _driver)


def _driver(k: Module, name: str) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = DirectWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        first_block = item.split * p.blocks.split
        end_block = k.minimum(first_block + p.blocks.split, p.blocks.count)
        rows = k.select(p.flat.equals(1), 1, box_rows(k, p.common, item))
        with k.when(p.walk.equals(0)):
            k.clear(workspace + p.common.scratch, 256)  # sums start from these zeros
        x = frame.x
        begin, blocks = x + row_source(k, p.common, item, k.constant(INT, 0)), end_block - first_block
        with k.loop(0, p.chunks) as chunk:
            pack_panel(k, p.common, p.inputs, item, x, workspace + p.common.panel, chunk.index * p.inputs.chunk)
            with k.loop(first_block, end_block) as block:
                number = chunk.index * blocks + block.index - first_block
                turns = block.index + 1 < end_block
                following = _weights(
                    k, p.blocks, item, k.select(turns, block.index + 1, first_block),
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


def _weights(k: Module, b: BlockWords, item: Item, block: Value, chunk: Value) -> Buffer:
    """Where the weights of a block of outputs and a chunk of channels begin."""
    return b.weights + k.select(
        block.equals(b.count - 1),
        b.w_last + item.g * b.w_last_group + chunk * b.w_last_chunk,
        item.g * b.w_group + block * b.w_block + chunk * b.w_chunk,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of outputs of a block: its inputs in the panel and in place, its tiles, and where they read and write."""

    number: Value
    panel: Buffer
    x: Buffer
    table: CountedRows[TileWords]
    list: Buffer
    entries: Value
    weights: Buffer
    sums: Buffer
    sum_row: Value
    outputs: Value
    y: Buffer
    r: Buffer
    bias: Buffer
    scale: Buffer


def _row(k: Module, p: DirectWords, item: Item, frame: Frame, workspace: Buffer, slot: Value, chunk: Value,
         block: Value, row: Value, early: _Early) -> None:  # fmt: skip
    """One row of outputs of one block of output channels: its tiles, and its way out after the last chunk."""
    c, b = p.common, p.blocks
    last = axis_words(c, c.axes - 1)
    is_last = block.equals(b.count - 1)
    width = item.extent(c.axes - 1)
    rows = k.select(p.flat.equals(1), box_rows(k, c, item), 1)
    pixels = rows * width
    line, y_offset, r_offset = row_place(k, c, item, row)
    of_row = p.lists.at(row_list(k, p.bands, item, row, c.axes - 1))
    with k.choice(p.x_step > 0, [k.constant(INT, 0)]) as in_place:
        in_place.next(row_source(k, c, item, row))
    channel = block * b.outputs
    absolute = item.g * b.of_group + channel
    bias, scale = p.tables.bias + absolute * p.word_bytes, p.tables.scale + absolute * p.word_bytes
    outputs = k.minimum(k.select(is_last, b.last_outputs, b.outputs), p.total_outputs - absolute)
    here = _Row(
        row, workspace + c.panel + line * p.inputs.line_bytes, frame.x + in_place.results[0],
        p.tiles + k.select(is_last, p.table_words * 16, 0) + k.select(pixels < p.row_pixels, p.table_words * 8, 0),
        p.entries + (of_row.first + chunk * of_row.chunk_count) * 24,
        k.minimum(of_row.chunk_count, of_row.count - chunk * of_row.chunk_count),
        _weights(k, b, item, block, chunk), workspace + slot, k.select(is_last, b.sum_row_last, b.sum_row), outputs,
        frame.y + (y_offset + channel * c.y_c), frame.residual + (r_offset + channel * c.r_c), bias, scale,
    )  # fmt: skip
    with k.when(p.walk.equals(1)):
        _walks(k, p, here, early)
    with k.when(p.walk.equals(0)):
        _edge_tiles(k, p, item, here, workspace + c.scratch, chunk, early)
    with k.when(chunk.equals(p.chunks - 1) & p.fused.equals(0)), k.loop(0, rows) as some:
        with k.choice(p.flat.equals(1), [y_offset, r_offset]) as place:
            place.next(*row_place(k, c, item, some.index)[1:])
        y, r = place.results
        k.call(p.move_out, MoveOut(
            here.sums + some.index * width * here.sum_row, here.sum_row, p.word_bytes,
            frame.y + (y + channel * c.y_c), last.y_stride, c.y_c, width, outputs,
            bias, scale, frame.residual + (r + channel * c.r_c), last.r_stride, c.r_c, p.tables.constants,
        ))  # fmt: skip


def _walks(k: Module, p: DirectWords, row: _Row, early: _Early) -> None:
    """The tiles of a row that multiply all there is, to the result or, in one chunk, to the slots."""
    last, fused = axis_words(p.common, p.common.axes - 1), p.fused.equals(1)
    number, calls = early.number * early.rows + row.number, early.rows * early.blocks
    soon = ahead_place(k, p.common, p.ahead, early.begin, number, calls)
    with k.loop(0, row.table.count, carry=[soon]) as tile:
        (soon,) = tile.values
        some = row.table.at(tile.index)
        first, times, function, in_place = some.first, some.times, some.function, some.in_place.equals(1)
        k.call(function, Walk(
            k.either(in_place, row.x + first * p.x_step, row.panel + first * p.panel_step),
            k.select(in_place, p.x_step, p.panel_step), row.list + k.select(in_place, p.x_entries, 0), row.entries,
            row.weights, k.either(fused, row.y + first * last.y_stride, row.sums + first * row.sum_row),
            k.select(fused, last.y_stride, row.sum_row), row.r + first * last.r_stride, last.r_stride,
            times, p.blocks.last_lanes, row.bias, row.scale, p.tables.constants, soon,
        ))  # fmt: skip
        tile.next(soon + times * p.ahead_tile)


def _edge_tiles(k: Module, p: DirectWords, item: Item, row: _Row, zeros: Buffer, chunk: Value, early: _Early) -> None:
    """The tiles of a row that leave out products with padding, and go on from the sums of the chunk before."""
    axis, count = p.common.axes - 1, row.table.count
    last, begin = axis_words(p.common, axis), item.first(axis)
    edges = k.select(begin.equals(0), FIRST, 0), k.select((begin + item.extent(axis)).equals(last.out), LAST, 0)
    begins = chunk.equals(0)
    start, start_row = k.either(begins, zeros, row.sums), k.select(begins, 0, row.sum_row)
    with k.loop(0, count) as tile:
        of_tile = row.table.at(tile.index)
        first = of_tile.first
        with k.when(p.ask_results.equals(1)), k.loop(0, row.outputs) as one:
            k.prefetch(row.y + (first * last.y_stride + one.index * p.common.y_c), writing=True)
        met = k.select(first.equals(0), edges[0], 0) | k.select(tile.index + 1 < count, 0, edges[1])
        at, pace = early.place(k, p, row.number, tile.index)
        k.call(of_tile.function, EdgeTile(
            row.panel + first * p.panel_step, row.entries, row.list, row.weights, start + first * start_row, start_row,
            row.sums + first * row.sum_row, row.sum_row, met, at, pace,
        ))  # fmt: skip
