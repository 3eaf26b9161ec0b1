"""A row of pixels times a set of output channels, walked by tiles: native code of all algorithms that form products.

Results are products of weights with the *entries* of a pixel: its channels, or those of all taps of its window.  Tiles
compute a *set* of output channels together.  Lanes are output channels or pixels.  Results go from registers to their
place, or to a slot in the workspace and on by a move that applies the epilogue.  It must not know where entries lie.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import MoveOut
from polyconv.kernels.point import ListedPointTile, PointTile
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word
from polyconv.lowering.panel import Common, EpilogueTables, Item

__all__ = ["OutputSet", "ProductWords", "Row", "move_row", "multiply", "multiply_tile", "sets_of"]


class OutputSet(Record):
    """A set of output channels: its first, how many, and bytes of weights before it.

    A tile has at most so many pixels (lanes are channels) or vectors (lanes are pixels); where the functions for 1, 2,
    ... of them stand, and for tiles cut short.  Then the outputs in the last vector, bytes to what is asked for early
    and its step, and bytes to its place in result and residual.
    """

    first: Word
    outputs: Word
    weights: Word
    most: Word
    functions: Word
    edges: Word
    there: Word
    early: Word
    early_step: Word
    y: Word
    r: Word


class ProductWords(Record):
    """Words of sets of output channels, their weights and tiles, and of the slots for sums.

    An item does ``split_sets`` sets.  In a slot sums of neighbouring pixels lie ``slot_pixel`` bytes apart, those of
    rows of a tile ``slot_step``, and those of channels ``slot_channel``.
    """

    weights: Memory
    w_group: Word
    set_count: Word
    split_sets: Word
    sets: Table[OutputSet]
    functions: Functions[PointTile | ListedPointTile]
    outputs: Word
    word_bytes: Word
    result_bytes: Word
    lanes: Word
    fused: Word
    slots: Word
    slot_pixel: Word
    slot_step: Word
    slot_channel: Word
    tables: EpilogueTables
    move_out: Function[MoveOut]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of pixels for a set of outputs: its entries and where they begin in input, result and residual.

    Entries lie so far apart, or have a list.
    """

    common: Common
    p: ProductWords
    g: Value
    set: OutputSet
    x: Buffer
    x_pixel: Value
    x_entry: Value | Buffer
    entries: Value
    pixels: Value
    y: Buffer
    y_pixel: Value
    r: Buffer
    r_pixel: Value

    @property
    def weights(self) -> Buffer:
        """The set's weights."""
        return self.p.weights + (self.g * self.p.w_group + self.set.weights)

    @property
    def tables(self) -> tuple[Buffer, Buffer, Buffer]:
        """Bias and scale of the set, and the constants."""
        p = self.p
        at = (self.g * p.outputs + self.set.first) * p.word_bytes
        return p.tables.bias + at, p.tables.scale + at, p.tables.constants


def sets_of(k: Module, p: ProductWords, item: Item) -> tuple[Value, Value]:
    """The first set of an item, and the one after its last."""
    first = item.split * p.split_sets
    return first, k.minimum(first + p.split_sets, p.set_count)


def multiply(k: Module, row: Row, slot: Buffer | None, *, pixels: bool) -> None:
    """A row to its place, or to a slot; lanes are pixels or output channels."""
    (_multiply_pixels if pixels else _multiply_channels)(k, row, slot)


def _multiply_channels(k: Module, row: Row, slot: Buffer | None) -> None:
    """In near-equal tiles."""
    p, of_set = row.p, row.set
    parts = (row.pixels + of_set.most - 1) // of_set.most
    share, larger = row.pixels // parts, row.pixels % parts
    y, y_step = (row.y, row.y_pixel) if slot is None else (slot, p.slot_step)
    with k.loop(0, parts, carry=[k.constant(INT, 0)]) as tile:
        (first,) = tile.values
        count = share + k.cast("zext", tile.index < larger, INT)
        function = p.functions.at_word(of_set.functions + count * 2)
        x = row.x + first * row.x_pixel
        rest = (
            row.entries, row.weights, y + first * y_step, y_step, row.r + first * row.r_pixel, row.r_pixel,
            of_set.there, *row.tables, of_set.early, of_set.early_step,
        )  # fmt: skip
        if isinstance(row.x_entry, Buffer):
            k.call(function, ListedPointTile(x, row.x_pixel, row.x_entry, *rest))
        else:
            k.call(function, PointTile(x, row.x_pixel, row.x_entry, *rest))
        tile.next(first + count)


def _multiply_pixels(k: Module, row: Row, slot: Buffer | None) -> None:
    """In the largest tiles there are, the last vector cut short."""
    p, of_set = row.p, row.set
    every = (row.pixels + p.lanes - 1) // p.lanes
    with k.loop(0, every, of_set.most) as tile:
        multiply_tile(k, row, slot, tile.index * p.lanes, k.minimum(every - tile.index, of_set.most))


def multiply_tile(k: Module, row: Row, slot: Buffer | None, first: Value, vectors: Value) -> None:
    """A tile of so many vectors of pixels, from the ``first`` of a row on; the last may be cut short."""
    p, of_set = row.p, row.set
    assert not isinstance(row.x_entry, Buffer)
    y, y_step, size = (row.y, row.common.y_c, p.result_bytes) if slot is None else (slot, p.slot_channel, p.word_bytes)
    there = row.pixels - first - (vectors - 1) * p.lanes
    family = k.select(there < p.lanes, of_set.edges, of_set.functions)
    k.call(p.functions.at_word(family + vectors * 2), PointTile(
        row.x + first * row.x_pixel, row.x_pixel,
        row.x_entry, row.entries, row.weights, y + first * size, y_step,
        row.r + first * p.result_bytes, row.common.r_c, there, *row.tables, of_set.early,
        of_set.early_step,
    ))  # fmt: skip


def move_row(k: Module, row: Row, sums: Buffer, pixel: Value) -> None:
    """Sums of a row, ``pixel`` bytes apart, to its place, through the epilogue."""
    p, (bias, scale, constants) = row.p, row.tables
    k.call(p.move_out, MoveOut(
        sums, pixel, p.slot_channel, row.y, row.y_pixel, row.common.y_c, row.pixels, row.set.outputs,
        bias, scale, row.r, row.r_pixel, row.common.r_c, constants,
    ))  # fmt: skip
