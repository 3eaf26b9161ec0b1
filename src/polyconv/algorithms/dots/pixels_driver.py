"""The driver of tiles with pixels in the lanes: a box's panel, then tile by tile all runs of output channels.

It must not know how a tile multiplies.
"""

from __future__ import annotations

from polyconv.algorithms.dots.channel_blocks import ChannelRun, ChannelWords, walked
from polyconv.algorithms.dots.panel import DotPanel, pack
from polyconv.kernels.dots_pixels import PixelWalk
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.matrix_pixels import MatrixPixelWalk, PixelTile
from polyconv.kernels.record import Functions, Memory, Table, Word
from polyconv.lowering.panel import Driver, Item, box_rows, decode, row_place

__all__ = ["PixelRun", "PixelWords", "driver", "packed_box"]


class PixelRun(ChannelRun):
    """A run with its functions, one of each kind of tile."""

    functions: Functions[PixelWalk | MatrixPixelWalk]


class PixelWords(ChannelWords):
    """The driver's words: a whole box has ``box_pixels`` in ``box_tiles``.

    The last one, which may be cut short, has so many in ``cut_tiles``, which follow those.
    """

    panel: DotPanel
    patch: Word
    tiles: Table[PixelTile]
    gaps: Memory
    box_pixels: Word
    box_tiles: Word
    cut_tiles: Word
    offsets: Memory
    runs: Table[PixelRun]
    run_count: Word


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is a box of pixels of a group."""
    with k.function(name, Driver) as given:
        p = PixelWords.read(k, given.words)
        item, y, residual, first, count = packed_box(k, given, p, vector_bytes)
        with k.loop(first, first + count) as number, k.loop(0, p.run_count) as each:
            run, tile = p.runs.at(each.index), p.tiles.at(number.index)
            before = tile.first * p.y_pixel
            k.call(run.functions.at(tile.kind), PixelWalk(
                *walked(p, item, run, y + before, residual + before, tile.pixels),
                given.workspace + (p.common.panel + tile.place), p.offsets, p.gaps + tile.gaps,
                given.workspace + p.patch,
            ))  # fmt: skip


def packed_box(k: Module, given: Driver, p: PixelWords, vector_bytes: int
               ) -> tuple[Item, Buffer, Buffer, Value, Value]:  # fmt: skip
    """Bring the inputs of an item's box: the item, where results and residuals begin, its first tile, and how many."""
    c = p.common
    item = decode(k, c, given.item, given.workspace)
    pack(k, c, p.panel, item, given.frame.x, given.workspace + c.panel, vector_bytes)
    is_whole = box_rows(k, c, item, 0).equals(p.box_pixels)
    _, y, residual = row_place(k, c, item, k.constant(INT, 0))
    first, count = k.select(is_whole, 0, p.box_tiles), k.select(is_whole, p.box_tiles, p.cut_tiles)
    return item, given.frame.y + y, given.frame.residual + residual, first, count
