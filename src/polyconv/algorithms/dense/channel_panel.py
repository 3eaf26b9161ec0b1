"""The panel of blocks of input channels: lines of a box, zero-padded, into [block][line][pixel][a row of words].

Tiles read a row at a time; ``direct`` multiplies them, Winograd transforms them first; of few channels, in one block
without gaps, ``stem`` multiplies several pixels at a time.  It must not know which.
"""

from __future__ import annotations

from polyconv.kernels.language import Buffer, Module, Value
from polyconv.kernels.layout import MoveIn
from polyconv.kernels.record import Function, Record, Word
from polyconv.kernels.unzip import ListedMoveIn, MoveApart
from polyconv.lowering.panel import Common, Item, axis_words, fill, line_place

__all__ = ["PanelWords", "pack_panel"]


class PanelWords(Record):
    """Words of a panel of blocks of channels: [block][line][pixel][a row of words].

    Blocks have ``block_channels`` of a group's ``channels``; so many of them, a ``chunk``, are in the panel at a time.
    Pixels that follow each other without a gap, in the input and in the panel, are moved as one: such are ``gapless``.
    """

    total_channels: Word
    channels: Word
    block_channels: Word
    unpaired: Word
    channel_bytes: Word
    row_bytes: Word
    block_bytes: Word
    line_bytes: Word
    chunk: Word
    gapless: Word
    move_in: Function[MoveIn]


def pack_panel(k: Module, c: Common, p: PanelWords, item: Item, x: Buffer, panel: Buffer, first: Value) -> None:
    """Fill the panel with one chunk of channels, from ``first`` on."""
    with k.when(c.planes.equals(1)):
        _pack_planes(k, c, p, item, x, panel, first)
    with k.when(c.planes.equals(0)):
        _pack_lines(k, c, p, item, x, panel, first)


def _pack_planes(k: Module, c: Common, p: PanelWords, item: Item, x: Buffer, panel: Buffer, first: Value) -> None:
    """The same for planes whose lines follow each other: all those of a plane together."""
    y, last = axis_words(c, c.axes - 2), axis_words(c, c.axes - 1)
    chunk = k.minimum(p.chunk, k.minimum(p.channels, p.total_channels - item.g * p.channels) - first)
    start = c.x_base + item.n * c.x_n + item.g * c.x_g + first * c.x_c
    origin = item.origin(c.axes - 2)
    top = k.minimum(k.maximum(0 - origin, 0), y.lines)
    bottom = k.maximum(k.minimum(y.inp - origin, y.lines), top)
    with k.loop(0, c.line_count // y.lines) as plane:
        offset, inside = line_place(k, c, item, plane.index, start, 2)
        pixels = k.select(inside.equals(1), (bottom - top) * last.inp, 0)
        source, target = x + (offset + (origin + top) * y.x_stride), panel + plane.index * (y.lines * p.line_bytes)
        with k.loop(0, chunk, p.block_channels, [source, target]) as block:
            planes, lines = block.values
            with k.loop(0, y.lines * p.line_bytes, 64) as part:
                k.clear(lines + part.index, 64)
            with k.when(pixels > 0):
                k.call(c.move_planes, ListedMoveIn(
                    planes, last.x_stride, c.x_c, lines + top * p.line_bytes, p.row_bytes,
                    p.channel_bytes, pixels, k.minimum(p.block_channels, chunk - block.index), c.zero_point,
                    c.plane_places,
                ))  # fmt: skip
            block.next(planes + p.block_channels * c.x_c, lines + p.block_bytes)


def _pack_lines(k: Module, c: Common, p: PanelWords, item: Item, x: Buffer, panel: Buffer, first: Value) -> None:
    """The same line by line."""
    there = k.minimum(p.channels, p.total_channels - item.g * p.channels)  # the last group may be cut short
    chunk = k.minimum(p.chunk, there - first)
    pixel_step = c.step * axis_words(c, c.axes - 1).x_stride
    apart = c.residues > 1
    # of planes a block of channels at a time, all its lines: so few places a CPU foresees
    at_once = k.select(c.x_c > pixel_step, p.block_channels, p.chunk)
    with k.loop(0, chunk, at_once, [panel]) as some:
        (begin,) = some.values
        channels = k.minimum(at_once, chunk - some.index)

        def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
            with k.loop(
                0, channels, p.block_channels, [begin + line * p.line_bytes + first_line * p.row_bytes, source]
            ) as step:
                target, x_block = step.values
                here = k.minimum(p.block_channels, channels - step.index)
                # a word of two channels whose second does not exist must hold a zero there
                before = k.select((here & p.unpaired).equals(1), count, head)
                with k.loop(0, 2) as side:
                    _clear(k, c, p, target, side.index * end, k.select(side.index.equals(0), before, count))
                with k.when(apart):
                    k.call(c.move_apart, MoveApart(
                        x_block, pixel_step, c.x_c, target, p.row_bytes, p.channel_bytes,
                        end - head, here, c.zero_point, c.residue_places, head,
                    ))  # fmt: skip
                with k.when(apart, otherwise=True):
                    pixels, one = end - head, p.gapless.equals(1)
                    k.call(p.move_in, MoveIn(
                        x_block, pixel_step, c.x_c, target + head * p.row_bytes, p.row_bytes, p.channel_bytes,
                        k.select(one, k.minimum(pixels, 1), pixels), k.select(one, pixels * here, here), c.zero_point,
                    ))  # fmt: skip
                step.next(target + p.block_bytes, x_block + p.block_channels * c.x_c)

        fill(k, c, item, x, first + some.index, put)
        some.next(begin + p.block_bytes)


def _clear(k: Module, c: Common, p: PanelWords, rows: Buffer, first: Value, end: Value) -> None:
    """Zeros for the pixels first..end of a line; without residues they lie together."""
    apart = c.residues > 1
    with k.when(apart), k.loop(first, end) as pixel:
        of_residue = k.word(c.residue_places, pixel.index % c.residues)
        place = rows + (of_residue + pixel.index // c.residues * p.row_bytes)
        with k.loop(0, p.row_bytes, 64) as part:
            k.clear(place + part.index, 64)
    with k.when(apart, otherwise=True), k.loop(first * p.row_bytes, end * p.row_bytes, 64) as part:
        k.clear(rows + part.index, 64)
