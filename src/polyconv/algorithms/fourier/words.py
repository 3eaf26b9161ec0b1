"""Words of the driver: passes of transforms, lines and rows of a tile, what is done at its points, and moves.

A row of a tile is a line of complex points along the last axis.  Its real and imaginary parts are rows of the tile, or
every second pixel of the only axis.
"""

from __future__ import annotations

from polyconv.algorithms.careful import CarefulBox, CarefulWords
from polyconv.kernels.fft import ChannelProduct, PairProduct, Pairs, Pass, Scan
from polyconv.kernels.layout import MoveIn, MoveOut
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word
from polyconv.lowering.panel import Common

__all__ = ["FftWords", "LaneWords", "LineWords", "PartWords", "PassWords", "PointFunctions", "TileWords"]


class PassWords(Record):
    """A pass over the points of a line, as ``kernels.fft.Pass`` takes it."""

    function: Function[Pass]
    leg: Word
    inner: Word
    step: Word
    outer: Word
    outer_step: Word
    twiddles: Memory


class LineWords(Record):
    """The lines of an axis: the first of their passes either way, and how many passes there are.

    Then the first line, how many there are, and how many of them a pass goes over at a time.
    """

    forward: Word
    backward: Word
    passes: Word
    first: Word
    count: Word
    together: Word


class PartWords(Record):
    """Outputs of the real or the imaginary part: from ``first`` on, ``step`` apart, at point ``begin``.

    There are ``count`` of them in a whole tile.
    """

    first: Word
    step: Word
    begin: Word
    count: Word


class TileWords(Record):
    """The points of a tile.

    For each of its rows the table has the place, whether outputs lie there, its position along the other axes, and its
    outputs there of either part.
    """

    rows: Word
    row_words: Word
    row_table: Memory
    points: Word
    pixel_step: Word
    reaches: Memory
    parts: Table[PartWords]
    from_step: Word
    lines: Table[LineWords]
    passes: Table[PassWords]
    offsets: Memory


class PointFunctions(Record):
    """What is done at the points of a tile; ``products`` are those of 1, 2, ... tiles."""

    products: Functions[ChannelProduct]
    product: Function[PairProduct]
    scan: Function[Scan]
    apart: Function[Pairs]
    unite: Function[Pairs]


class LaneWords(Record):
    """Bytes between lanes in input, result and residual, and in the last two between blocks of outputs."""

    x_lane: Word
    y_lane: Word
    y_block: Word
    r_lane: Word
    r_block: Word


class FftWords(Record):
    """The driver's words."""

    common: Common
    total: Word
    together: Word
    inputs: Word
    channels: Word
    outputs: Word
    last_outputs: Word
    split_outputs: Word
    planes: Word
    plane: Word
    target: Word
    runs: Word
    seen: Word
    tile: TileWords
    pairs: Memory
    pair_count: Word
    weights: Memory
    w_g: Word
    w_block: Word
    functions: PointFunctions
    slots: Memory
    beside: LaneWords
    bias_g: Word
    bias_block: Word
    bias: Memory
    constants: Memory
    move_in: Function[MoveIn]
    move_out: Function[MoveOut]
    again_words: CarefulWords
    again: Function[CarefulBox]
