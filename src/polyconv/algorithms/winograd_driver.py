"""The driver of the Winograd algorithm: an item is a box of tiles, for all blocks of outputs or some.

Its words are made in ``winograd``; sizes, cost and error are those of ``winograd_plan``.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.algorithms.dense.channel_panel import PanelWords
from polyconv.algorithms.dense.driver import DirectBox, DirectWords
from polyconv.algorithms.panel import (
    Common,
    Driver,
    EpilogueTables,
    Frame,
    Item,
    axis_words,
    box_rows,
    decode,
    row_list,
    row_place,
)
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import MoveOut
from polyconv.kernels.record import Function, Functions, Link, Memory, Record, Table, Word, word_count
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import PanelTile
from polyconv.kernels.transform import InputTransform, OutputTransform
from polyconv.kernels.unzip import ListedMoveOut

__all__ = [
    "BoxAgain", "BoxInputs", "EarlyWords", "EntryList", "KindTiles", "PhaseWords", "PlanesOut", "TileBox", "TileRow",
    "TileRun", "WinogradWords", "driver", "each_run", "flags_of", "lines_of_row", "place_box",
]  # fmt: skip


class TileRow(Record):
    """A row of tiles: its first lines of inputs and of outputs, outputs below each other, and the numbers of its tiles.

    Those of its first full tile and of its first short one are given.
    """

    line_in: Word
    line_out: Word
    valid: Word
    t_full: Word
    t_short: Word


class TileRun(Record):
    """Tiles of a row that are alike: the first one's pixel and number, how many, pixels from one to the next.

    Then the outputs of each beside each other, and whether they are ``short``.
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
    """The tiles that points of a kind need.

    The first, the calls that multiply them, the least tiles of a call, and how many calls have one more.
    """

    tile: Word
    calls: Word
    size: Word
    larger: Word


class JoinedRows(Record):
    """Rows whose tiles lie one after another and meet the same weights, as the driver notes them in the workspace.

    Their inputs, taps, first row, how many rows there are, and calls as above.
    """

    v: Word
    band: Word
    first: Word
    rows: Word
    calls: Word
    size: Word
    larger: Word


class TileBox(Record):
    """A box: its first outputs, how far they reach, and the segments of a row, outputs next to each other.

    Its rows of tiles; the runs of tiles of which every row consists; its tiles by kind of point; whether there are as
    many as in any box, so that those of neighbouring rows of outer axes lie one after another.
    """

    first_y: Word
    rows: Word
    first_x: Word
    columns: Word
    segments: Word
    segment: Word
    last_segment: Word
    records: Word
    record_count: Word
    runs: Word
    run_count: Word
    lists: Word
    joins: Word


class PhaseWords(Record):
    """A phase of the taps: its first line and pixel of a tile, bytes before its transformed inputs, their transform."""

    line: Word
    pixel: Word
    place: Word
    transform: Function[InputTransform]


class EarlyWords(Record):
    """How the inputs of the next item of a thread are asked for: where they are noted, and in which runs of bytes."""

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


class WinogradWords(Record):
    """The driver's words."""

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
    records: Table[TileRow]
    runs: Table[TileRun]
    lists: Table[KindTiles]
    functions: Functions[PanelTile]
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
    rows: Word
    sum_row: Word
    out: Word
    out_line: Word
    out_pixel: Word
    phase_count: Word
    phases: Table[PhaseWords]
    bands: Memory
    entries: Memory
    kinds: Table[EntryList]
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
    again: Function[BoxAgain]
    again_header: Word
    again_words: Link[DirectWords]
    repair: Function[DirectBox]
    early: EarlyWords
    asks: Word
    bring: Function[BoxInputs]
    output_transforms: Functions[OutputTransform]
    tables: EpilogueTables
    move_out: Function[MoveOut]
    planes_out: PlanesOut


class BoxInputs(Signature):
    """The inputs of a box, which is to be transformed: its place in the table of boxes, batch and group."""

    frame: Frame
    words: WinogradWords
    workspace: Buffer
    box: TileBox
    n: Int
    g: Int


class BoxAgain(BoxInputs):
    """A block of a box's outputs, whose flagged tiles are to be computed again."""

    block: Int


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = WinogradWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        box = place_box(k, p, item, workspace)
        with k.when(p.early.runs_a_call > 0):
            k.call(p.early.note, given)
        k.call(p.bring, BoxInputs(frame, p, workspace, box, item.n, item.g))
        first = item.split * p.split_blocks
        end = k.minimum(first + p.split_blocks, p.blocks)
        k.clear(workspace + p.common.scratch, 256)
        rows = box_rows(k, p.common, item, p.transformed)
        groups = _note_rows(k, p, item, workspace, rows)
        with k.loop(first // p.together, (end + p.together - 1) // p.together) as some:
            low = k.maximum(some.index * p.together, first)
            high = k.minimum((some.index + 1) * p.together, end)
            _multiply(k, p, item, box, frame.x, workspace, low, high, rows, groups, vector_bytes)
            with k.loop(low, high) as block:
                flags = flags_of(p, workspace, block.index, rows)
                k.store(k.constant(INT, 0), flags, 8)
                with k.loop(0, rows) as row:
                    narrow = _is_narrow(k, p, block.index)
                    at = (block.index - low) * rows * p.s_row + row.index * (p.s_row >> narrow)
                    sums = workspace + (p.sums + at)
                    _out(k, p, item, box, frame, workspace, sums, block.index, row.index, rows, flags)
        # once the transformed inputs are no longer needed their place serves to repair
        with k.loop(first, end) as block:
            found = k.word(flags_of(p, workspace, block.index, rows)) > 0
            with k.when(found):
                k.call(p.again, BoxAgain(frame, p, workspace, box, item.n, item.g, block.index))


def flags_of(p: WinogradWords, workspace: Buffer, block: Value, rows: Value) -> Buffer:
    """Flags of a block of outputs: a word for the block and one for each of its tiles, which count if that is not 0."""
    return workspace + (p.flags + 8 + block * ((p.tiles * rows + 1) * 8))


def place_box(k: Module, p: WinogradWords, item: Item, workspace: Buffer) -> TileBox:
    """Write where the box really lies: tiles are not all of one size, so a table says where each begins."""
    c, last = p.common, p.common.axes - 1
    x_box = item.first(last)
    y_box = k.select(p.transformed.equals(2), item.first(k.maximum(last - 1, 0)), 0)
    box = p.boxes.at(y_box * axis_words(c, last).boxes + x_box)

    def write(axis: Value, first: Value, extent: Value) -> None:
        place = workspace + axis * 24
        k.store(first * axis_words(c, axis).stride - axis_words(c, axis).pad, place, 8)
        k.store(extent, place + 8, 8)
        k.store(first, place + 16, 8)

    write(last, box.first_x, box.columns)
    with k.when(p.transformed.equals(2)):
        write(last - 1, box.first_y, box.rows)
    return box


def each_run(k: Module, p: WinogradWords, box: TileBox, record: TileRow, visit: Callable[[TileRun, Value], None]
             ) -> None:  # fmt: skip
    """``visit(run, tile)`` every run of tiles of a row, with the number of its first tile."""
    with k.loop(0, box.run_count) as number:
        run = p.runs.at(box.runs + number.index)
        visit(run, run.tile + k.select(run.short.equals(1), record.t_short, record.t_full))


def _ask_for_next(k: Module, p: WinogradWords, x: Buffer, workspace: Buffer) -> None:
    """Ask for a few more of the inputs that are noted."""
    early = p.early
    notes = workspace + (early.notes + p.common.axes * 24)
    first = k.word(notes, 1)
    end = k.minimum(first + early.runs_a_call, k.word(notes))
    with k.when(first < end):
        with k.loop(first, end) as number:
            row = k.word(notes, number.index // early.runs_a_row + 2)
            place = x + (row + number.index % early.runs_a_row * early.run_step)
            with k.loop(0, early.run_bytes, 64) as line:
                k.prefetch(place + line.index)
        k.store(end, notes + 8, 8)


def lines_of_row(k: Module, p: WinogradWords, item: Item) -> Value:
    """Lines of the box in a row of the axes that are not transformed."""
    return k.select(p.transformed.equals(2), item.extent(k.maximum(p.common.axes - 2, 0)), 1)


def _note_rows(k: Module, p: WinogradWords, item: Item, workspace: Buffer, rows: Value) -> Value:
    """Note where the inputs of the rows of the axes that are not transformed lie, and which taps meet any, by groups.

    How many groups there are is what it gives.
    """
    y_rows = lines_of_row(k, p, item)
    with k.loop(0, rows, carry=[k.constant(INT, -1), k.constant(INT, 0), k.constant(INT, 0)]) as row:
        following, band_before, count = row.values
        line, _, _ = row_place(k, p.common, item, row.index * y_rows)
        v, band = line // p.y_lines * p.v_line, row_list(
            k, p.bands, item, row.index, p.common.axes - p.transformed
        )
        joins = v.equals(following) & band.equals(band_before)
        count = count + k.select(joins, 0, 1)
        place = workspace + (p.rows + (count - 1) * (8 * word_count(JoinedRows)))
        joined = k.select(joins, k.word(place, 3) + 1, 1)
        tiles = joined * p.tiles
        calls = (tiles + p.most_tiles - 1) // p.most_tiles
        with k.when(joins, otherwise=True):
            for at, value in enumerate((v, band, row.index)):
                k.store(value, place + at * 8, 8)
        for at, value in enumerate((joined, calls, tiles // calls, tiles % calls), 3):
            k.store(value, place + at * 8, 8)
        row.next(v + p.v_line, band, count)
    groups: Value = row.results[2]
    return groups


def _multiply(k: Module, p: WinogradWords, item: Item, box: TileBox, x: Buffer, workspace: Buffer, low: Value,
              high: Value, rows: Value, groups: Value, vector_bytes: int) -> None:  # fmt: skip
    """The matrix products of some blocks of outputs, point by point: inputs and weights of a point stay near."""
    functions, entries, weights = p.functions, p.entries, p.weights + item.g * p.w_group
    row_bytes, v_line, scratch = p.inputs.row_bytes, p.v_line, workspace + p.common.scratch
    zeroes = p.short.equals(1)
    nothing = k.constant(vector("i32", vector_bytes // 4), 0)
    with k.loop(0, p.points, carry=[k.constant(INT, 0)]) as point:
        (column,) = point.values
        point.next(k.select((column + 1).equals(p.inner_points), 0, column + 1))
        at_end = k.cast("zext", column >= p.end_column, INT)
        low_end = k.cast("zext", point.index >= p.end_row, INT)
        kind = k.select(p.transformed.equals(2), low_end * 2 + at_end, at_end)
        needed = p.lists.at(box.lists + kind)
        joins = kind.equals(0) & box.joins.equals(1)
        first, calls_alone, size_alone, larger_alone = needed.tile, needed.calls, needed.size, needed.larger
        past = first + calls_alone * size_alone + larger_alone
        inputs = workspace + (p.v + point.index * p.v_point + first * row_bytes)
        sums_of_point = workspace + (p.sums + point.index * p.s_point)
        with k.loop(low, high) as block, k.loop(0, groups) as group:
            narrow = _is_narrow(k, p, block.index)
            sum_row, s_row = p.sum_row >> narrow, p.s_row >> narrow
            stream = k.word(p.point_weights, block.index * p.points + point.index)
            # rows in the middle first: these have all taps, whose weights then are near
            turned = group.index + groups // 2
            of_rows = JoinedRows.at(k, workspace + p.rows, turned - k.select(turned >= groups, groups, 0))
            of_kind = p.kinds.at(of_rows.band * 4 + kind)
            sums = sums_of_point + ((block.index - low) * rows * p.s_row + of_rows.first * s_row)
            source = inputs + of_rows.v
            calls, size = k.select(joins, of_rows.calls, calls_alone), k.select(joins, of_rows.size, size_alone)
            larger = k.select(joins, of_rows.larger, larger_alone)
            count, list_ = of_kind.count, entries + of_kind.first * 24
            with k.loop(0, k.select(joins, 1, of_rows.rows)) as row:
                target = sums + row.index * s_row
                # products that short tiles do without enter outputs that are thrown away, but must be finite
                with k.when((kind > 0) & zeroes), k.loop(0, 2) as side:
                    begin, end = side.index * past, k.select(side.index.equals(0), first, p.tiles)
                    with k.loop(begin * sum_row, end * sum_row, vector_bytes) as place:
                        k.store(nothing, target + place.index)
                begins = source + row.index * v_line, target + first * sum_row
                with k.loop(0, calls, carry=begins) as call:
                    tiles = size + k.select(call.index < larger, 1, 0)
                    k.call(functions.at_word((tiles * 2 + narrow) * 2), PanelTile(
                        call.values[0], count, list_, weights + stream,
                        scratch, 0, call.values[1], sum_row,
                    ))  # fmt: skip
                    _ask_for_next(k, p, x, workspace)
                    call.next(call.values[0] + tiles * row_bytes, call.values[1] + tiles * sum_row)


def _is_narrow(k: Module, p: WinogradWords, block: Value) -> Value:
    """1 for a block of outputs half as wide as others, as the last one may be, else 0."""
    return k.select(block.equals(p.blocks - 1), p.narrow, 0)


def _out(k: Module, p: WinogradWords, item: Item, box: TileBox, frame: Frame, workspace: Buffer, sums: Buffer,
         block: Value, row: Value, rows: Value, flags: Buffer) -> None:  # fmt: skip
    """Back from the transform domain and out by rows of tiles; flags tiles with a result that is not finite."""
    c = p.common
    last = axis_words(c, c.axes - 1)
    y_rows = lines_of_row(k, p, item)
    channel = block * p.block_outputs
    outputs = k.select(block.equals(p.blocks - 1), p.last_outputs, p.block_outputs)
    table_place = (item.g * p.outputs + channel) * p.word_bytes
    narrow = _is_narrow(k, p, block)
    sum_row = p.sum_row >> narrow
    with k.loop(0, box.record_count) as number:
        record = p.records.at(box.records + number.index)

        def transform(run: TileRun, tile: Value) -> None:
            function = p.output_transforms.at_word(narrow * 2)

            def back(first: Value, count: Value, flag: Buffer) -> None:
                k.call(function, OutputTransform(
                    sums + (tile + first) * sum_row, p.s_point,
                    workspace + (p.out + (run.pixel + first * run.step) * sum_row), p.out_line, p.out_pixel >> narrow,
                    count, run.step * sum_row, flag,
                ))  # fmt: skip

            found = workspace + p.flags
            k.store(k.constant(INT, 0), found, 8)
            back(k.constant(INT, 0), run.count, found)
            with k.when(k.word(found) > 0):  # once more, to see in which tiles
                with k.loop(0, k.select(k.word(flags).equals(0), rows * p.tiles + 1, 0)) as of_tile:
                    k.store(k.constant(INT, 0), flags + of_tile.index * 8, 8)
                k.store(k.constant(INT, 1), flags, 8)
                with k.loop(0, run.count) as one:
                    back(one.index, k.constant(INT, 1), flags + (1 + row * p.tiles + tile + one.index) * 8)

        each_run(k, p, box, record, transform)
        whole = p.planes_out.together.equals(1)
        with k.when(whole):
            _, y_offset, r_offset = row_place(k, c, item, row * y_rows + record.line_out)
            k.call(p.planes_out.move, ListedMoveOut(
                workspace + p.out, sum_row, p.word_bytes,
                frame.y + (y_offset + channel * c.y_c), last.y_stride, c.y_c, record.valid * box.columns,
                outputs, p.tables.bias + table_place, p.tables.scale + table_place,
                frame.residual + (r_offset + channel * c.r_c), last.r_stride, c.r_c, p.tables.constants,
                p.planes_out.places + narrow * p.planes_out.places_bytes,
            ))  # fmt: skip
        with k.loop(0, k.select(whole, 0, record.valid)) as i:
            _, y_offset, r_offset = row_place(k, c, item, row * y_rows + record.line_out + i.index * p.y_apart)
            line = workspace + (p.out + i.index * p.out_line)
            y, r = frame.y + (y_offset + channel * c.y_c), frame.residual + (r_offset + channel * c.r_c)
            with k.loop(0, box.segments) as x:
                at = x.index * p.x_apart
                pixels = k.select(x.index.equals(box.segments - 1), box.last_segment, box.segment)
                k.call(p.move_out, MoveOut(
                    line + x.index * (p.out_pixel >> narrow), sum_row, p.word_bytes,
                    y + at * last.y_stride, last.y_stride, c.y_c, pixels, outputs,
                    p.tables.bias + table_place, p.tables.scale + table_place,
                    r + at * last.r_stride, last.r_stride, c.r_c, p.tables.constants,
                ))  # fmt: skip
