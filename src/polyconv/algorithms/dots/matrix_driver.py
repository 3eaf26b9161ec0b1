"""The driver of tiles of the matrix unit: a box's panel, a list of its registers of pixels, then block by block.

A register holds neighbours of a panel.  It begins at the first output that none before it has, and goes on into the
next row of outputs where that lies near enough: what is between rows is multiplied too, and left out.  So maps whose
rows are shorter than a register fill it.  It must not know what a block of outputs is made of.
"""

from __future__ import annotations

from polyconv.algorithms.dots.driver import BlockWords, of_block
from polyconv.algorithms.dots.panel import pack
from polyconv.kernels import matrix_unit
from polyconv.kernels.dots_matrix import MATRIX_TILES, PIECE_BYTES, TILE_BYTES, MatrixWalk
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.layout import MoveOut
from polyconv.kernels.record import Functions, Memory, Word
from polyconv.kernels.signature import Address, altered
from polyconv.lowering.panel import (
    Driver,
    Frame,
    Item,
    RowLists,
    axis_words,
    box_rows,
    decode,
    row_place,
    row_source,
)
from polyconv.lowering.program import Request, address_of

__all__ = ["MatrixWords", "matrix_driver"]

_MOST = max(MATRIX_TILES.values())
"""Registers of pixels of the largest tile of all."""

_APART = 1 << 30
"""Between rows of outputs none of which shares a register with another."""


class MatrixWords(BlockWords):
    """The driver's words.

    A register has so many ``rows``, a step so many ``words`` of each.  Of the positions in a panel, rows of outputs
    begin ``pitch`` apart for every line.  ``tiles`` and ``pieces`` say where the lists lie in the workspace, ``sums``
    where registers are stored.  Each of the panel's ``pixels`` may have a ``spare_channel``, so many bytes from its
    begin.  ``functions`` has for a block, and for the last one, tiles of each number of registers of pixels, of which
    ``together`` is the largest.  A step reads so many ``lines`` of a block's weights, vectors of them; a group whose
    steps ask for one line each asks for ``asked`` bytes.
    """

    shapes: Memory
    rows: Word
    words: Word
    pitch: Word
    pieces_of_row: Word
    lists: RowLists
    together: Word
    last_together: Word
    functions: Functions[MatrixWalk]
    tiles: Word
    pieces: Word
    sums: Word
    spare_channel: Word
    pixels: Word
    lines: Word
    asked: Word


def _driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is some blocks of outputs of a box."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = MatrixWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        with k.when(p.panel.in_place.equals(0)):
            pack(k, p.common, p.panel, item, frame.x, workspace + p.common.panel, vector_bytes)
        rows = box_rows(k, p.common, item)
        with k.when(p.spare_channel > 0):
            _clear(k, p, workspace)
        tiles = _listed(k, p, item, workspace, rows)
        matrix_unit.shape(k, p.shapes)
        first = item.split * p.split_blocks
        with k.loop(first, k.minimum(first + p.split_blocks, p.blocks)) as block:
            _block(k, p, item, frame, workspace, block.index, rows, tiles)
        matrix_unit.release(k)


def _clear(k: Module, p: MatrixWords, workspace: Buffer) -> None:
    """Fill the channel with zeros that pixels have beside their own: what stands there may be Inf or NaN."""
    place = workspace + (p.common.panel + p.spare_channel)
    with k.loop(0, p.pixels, carry=[place]) as pixel:
        k.store(k.constant(Type("i16"), 0), pixel.values[0])
        pixel.next(pixel.values[0] + p.panel.pixel_bytes)


def _listed(k: Module, p: MatrixWords, item: Item, workspace: Buffer, rows: Value) -> Value:
    """List the registers of a box, and the pieces of each; their number."""
    last, results, none = axis_words(p.common, p.common.axes - 1), p.results, k.constant(INT, 0)
    pixels, in_place = item.extent(p.common.axes - 1), p.panel.in_place.equals(1)
    tiles, pieces = workspace + p.tiles, workspace + p.pieces
    fused = results.fused.equals(1)
    carry = [none, none, k.constant(INT, -_APART)]
    with k.loop(0, rows, carry=carry) as row:
        line, y_row, r_row = row_place(k, p.common, item, row.index)
        source = k.select(in_place, row_source(k, p.common, item, row.index), line * p.panel.line_bytes)
        begin = k.select(p.pitch > 0, line * p.pitch, row.index * _APART)
        y0 = k.select(fused, y_row, results.slots + row.index * pixels * results.slot_row)
        y_step = k.select(fused, last.y_stride, results.slot_row)
        with k.loop(0, p.pieces_of_row, carry=[none, *row.values]) as part:
            pixel, count, number, start = part.values
            with k.choice(pixel < pixels, part.values) as chosen:
                position = begin + pixel
                is_new = position >= start + p.rows
                # a register ends with the row where what lies behind it may be no one's memory
                back = k.select(in_place, k.maximum(pixel + p.rows - pixels, 0), 0)
                own = k.select(is_new, position - back, start)
                count = count + k.cast("zext", is_new, INT)
                at = position - own
                size = k.minimum(pixels - pixel, p.rows - at)
                tile, piece = tiles + (count - 1) * TILE_BYTES, pieces + number * PIECE_BYTES
                with k.when(is_new):
                    k.store(source + (pixel - at) * p.row_step, tile, 8)
                    k.store(number, tile + 8, 8)
                k.store(number + 1, tile + 16, 8)
                for place, value in enumerate((at, size, y0 + pixel * y_step, r_row + pixel * last.r_stride)):
                    k.store(value, piece + 8 * place, 8)
                chosen.next(pixel + size, count, number + 1, own)
            part.next(*chosen.results)
        row.next(*part.results[1:])
    found: Value = row.results[0]
    return found


def _block(k: Module, p: MatrixWords, item: Item, frame: Frame, workspace: Buffer, block: Value, rows: Value,
           tiles: Value) -> None:  # fmt: skip
    """All registers of pixels with a block of output channels."""
    last, results, own = axis_words(p.common, p.common.axes - 1), p.results, of_block(k, p, item, block)
    is_last, weights, bias, scale, constants, outputs, lanes, beside_y, beside_r = own
    fused, in_place = results.fused.equals(1), p.panel.in_place.equals(1)
    y_step, r_step = k.select(fused, last.y_stride, results.slot_row), k.select(fused, last.r_stride, 0)
    together, begin = k.select(is_last, p.last_together, p.together), k.select(is_last, _MOST, 0)
    # near-equal groups: one of a single register would take as long as one of all
    groups = (tiles + together - 1) // together
    size, larger = tiles // groups, tiles % groups
    # all of them together ask for the next block's weights
    lines = k.select(is_last, 0, (p.lines + groups - 1) // groups)
    asked, of_list = p.asked * lines, p.lists.lists.at(0)
    walk = MatrixWalk(
        k.either(in_place, frame.x, workspace + p.common.panel), p.row_step, p.rows, p.words,
        p.lists.entries + of_list.first * 8, of_list.count, weights, workspace + p.tiles, tiles, workspace + p.pieces,
        k.either(fused, frame.y + beside_y, workspace), y_step,
        k.either(fused, frame.residual + beside_r, workspace), r_step,
        lanes, bias, scale, constants, workspace + p.sums, weights + p.w_block, lines, asked,
    )  # fmt: skip
    rest = altered(
        walk, tiles=workspace + (p.tiles + larger * (size + 1) * TILE_BYTES), groups=groups - larger,
        next_weights=weights + (p.w_block + larger * asked),
    )  # fmt: skip
    for some, registers in ((altered(walk, groups=larger), size + 1), (rest, size)):
        with k.when(some.groups > 0):
            k.call(p.functions.at(begin + registers - 1), some)
    with k.when(results.fused.equals(0)), k.loop(0, rows, results.run_rows) as run:
        _, y_row, r_row = row_place(k, p.common, item, run.index)
        count = k.minimum(results.run_rows, rows - run.index) * item.extent(p.common.axes - 1)
        slot = results.slots + run.index * item.extent(p.common.axes - 1) * results.slot_row
        k.call(results.move_out, MoveOut(
            workspace + slot, results.slot_row, results.slot_bytes, frame.y + (y_row + beside_y), last.y_stride,
            p.common.y_c, count, outputs, bias, scale,
            frame.residual + (r_row + beside_r), last.r_stride, p.common.r_c, constants,
        ))  # fmt: skip


def matrix_driver(r: Request) -> Address[Driver]:
    """Address of the driver."""
    wide = r.target.vector_bytes
    return address_of(r, "dots matrix", "dots", Driver, lambda k, name: _driver(k, name, wide))
