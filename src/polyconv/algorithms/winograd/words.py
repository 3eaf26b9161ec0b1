"""Words and signatures of the driver of matrix products: what ``program`` fills and generated code reads.

Names as in ``boxes``: ``v`` are transformed inputs, ``sums`` products at the points, ``out`` results of a row of tiles.
"""

from __future__ import annotations

from polyconv.algorithms.careful import CarefulBox, CarefulWords
from polyconv.algorithms.dense.channel_panel import PanelWords
from polyconv.kernels.language import Buffer
from polyconv.kernels.layout import MoveOut
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import PanelTile
from polyconv.kernels.transform import InputTransform, OutputTransform
from polyconv.kernels.unzip import ListedMoveOut
from polyconv.lowering.panel import Common, Driver, EpilogueTables, Frame

__all__ = [
    "ZERO_BYTES", "BoxInputs", "ChannelWords", "EntryList", "JoinedRows", "KindTiles", "NextInputs", "PhaseWords",
    "PlanesOut", "RepairBlock", "TileBox", "TileRow", "TileRun",
]  # fmt: skip

ZERO_BYTES = 256
"""Zeros before a panel, which tiles of products begin their sums with."""


class TileRow(Record):
    """A row of tiles: its first lines of inputs and of outputs, and how many lines of outputs it has.

    Then the numbers of its first full tile and of its first tile that is one output narrower.
    """

    line_in: Word
    line_out: Word
    lines: Word
    first_full: Word
    first_short: Word


class TileRun(Record):
    """Tiles of a row that are alike: the first one's pixel and number, how many, and pixels from one to the next.

    Then the outputs of each beside each other, and whether they are one output narrower (``short``).
    """

    pixel: Word
    tile: Word
    count: Word
    step: Word
    outputs: Word
    short: Word


class EntryList(Record):
    """A list of entries: the first, and how many there are."""

    first: Word
    count: Word


class KindTiles(Record):
    """The tiles that need the points of a kind: the first of them, and how they are cut into calls of a product.

    So many calls; tiles of each; how many of the calls have one more.
    """

    tile: Word
    calls: Word
    size: Word
    larger: Word


class JoinedRows(Record):
    """Rows whose tiles lie one after another and meet the same taps, so that they are one matrix product.

    The driver notes them in the workspace: their transformed inputs, which taps (``band``), the first row, how many
    rows there are, and calls as of ``KindTiles``.
    """

    v: Word
    band: Word
    first: Word
    rows: Word
    calls: Word
    size: Word
    larger: Word


class TileBox(Record):
    """A box: its first output and its extent along both axes; the segments of a line, outputs next to each other.

    Then where its entries of the tables begin: rows of tiles, the runs of which each row consists, tiles by kind of
    point.  Last, whether it has as many tiles as any box, so that those of neighbouring rows of outer axes lie one
    after another.
    """

    first_y: Word
    rows: Word
    first_x: Word
    columns: Word
    segments: Word
    segment: Word
    last_segment: Word
    tile_rows: Word
    tile_row_count: Word
    runs: Word
    run_count: Word
    kind_tiles: Word
    joins: Word


class PhaseWords(Record):
    """A phase of the taps: its first line and pixel of a tile, bytes before its transformed inputs, their transform."""

    line: Word
    pixel: Word
    place: Word
    transform: Function[InputTransform]


class NextInputs(Record):
    """How the inputs of the next item of a thread are fetched ahead: where they are noted, in which runs of bytes.

    A call of a product fetches some of these runs; 0 of them where a cache holds the inputs anyway.
    """

    notes: Word
    item_count: Word
    items_ahead: Word
    runs_a_call: Word
    runs_a_row: Word
    run_step: Word
    run_bytes: Word
    note: Function[Driver]


class PlanesOut(Record):
    """How the lines of a row of tiles leave together, where these follow each other in planes: if so, by ``places``."""

    together: Word
    places: Memory
    places_bytes: Word
    move: Function[ListedMoveOut]


class ChannelWords(Record):
    """The driver's words.

    ``y_apart``, ``x_apart`` are outputs between neighbours of a tile; points from ``end_row`` and ``end_column`` on are
    those at infinity; ``products`` has tiles of 0, 1, ... rows for whole blocks of outputs and for the last; ``narrow``
    says whether the last block is half as wide.
    """

    common: Common
    inputs: PanelWords
    transformed: Word
    y_lines: Word
    y_apart: Word
    x_apart: Word
    outer_lines: Word
    points: Word
    inner_points: Word
    end_row: Word
    end_column: Word
    boxes: Table[TileBox]
    tile_rows: Table[TileRow]
    runs: Table[TileRun]
    kind_tiles: Table[KindTiles]
    products: Functions[PanelTile]
    most_tiles: Word
    tiles: Word
    tile_line: Word
    tile_pixel: Word
    x_residues: Word
    v: Word
    v_point: Word
    v_line: Word
    v_block: Word
    sums: Word
    s_point: Word
    s_row: Word
    short: Word
    joined_rows: Word
    sum_row: Word
    out: Word
    out_line: Word
    out_pixel: Word
    phase_count: Word
    phases: Table[PhaseWords]
    bands: Memory
    entries: Memory
    entry_lists: Table[EntryList]
    weights: Memory
    point_weights: Memory
    w_group: Word
    together: Word
    outputs: Word
    blocks: Word
    split_blocks: Word
    block_outputs: Word
    last_outputs: Word
    word_bytes: Word
    narrow: Word
    flags: Word
    repair: Function[RepairBlock]
    repair_header: Word
    again_words: CarefulWords
    again: Function[CarefulBox]
    following: NextInputs
    fetches: Word
    bring: Function[BoxInputs]
    output_transforms: Functions[OutputTransform]
    tables: EpilogueTables
    move_out: Function[MoveOut]
    planes_out: PlanesOut


class BoxInputs(Signature):
    """A box whose inputs are to be transformed, with its image and group."""

    frame: Frame
    words: ChannelWords
    workspace: Buffer
    box: TileBox
    n: Int
    g: Int


class RepairBlock(BoxInputs):
    """A block of outputs of a box whose flagged tiles are to be computed again."""

    block: Int
