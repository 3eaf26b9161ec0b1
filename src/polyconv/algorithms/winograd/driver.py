"""The driver of matrix products: an item is a box of tiles, for all blocks of output channels or some.

For a box: inputs to the points, products point by point, sums back to outputs, and what is not finite once more.  It
knows words, not how they were chosen.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.algorithms.winograd import words
from polyconv.algorithms.winograd.words import BoxInputs, ChannelWords, JoinedRows, RepairBlock, TileBox, TileRun
from polyconv.dataclass import dataclass
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import MoveOut
from polyconv.kernels.record import word_count
from polyconv.kernels.tile import PanelTile
from polyconv.kernels.transform import OutputTransform
from polyconv.kernels.unzip import ListedMoveOut
from polyconv.lowering.panel import Driver, Frame, Item, axis_words, box_rows, decode, row_list, row_place

__all__ = ["Here", "driver", "each_run", "flags_of", "place_box"]


@dataclass(frozen=True, slots=True)
class Here:
    """A box as generated code sees it: what every part of the driver works with."""

    k: Module
    p: ChannelWords
    item: Item
    box: TileBox
    frame: Frame
    workspace: Buffer

    @classmethod
    def of(cls, k: Module, given: BoxInputs) -> Here:
        """The box that a function was given."""
        item = Item(k, given.workspace, given.n, given.g, k.constant(INT, 0))
        return cls(k, given.words, item, given.box, given.frame, given.workspace)

    @property
    def y_lines(self) -> Value:
        """Lines of outputs in a row of the axes that are not transformed."""
        k, p = self.k, self.p
        return k.select(p.transformed.equals(2), self.item.extent(k.maximum(p.common.axes - 2, 0)), 1)

    def is_narrow(self, block: Value) -> Value:
        """1 for a block of outputs half as wide as others, as the last one may be, else 0."""
        return self.k.select(block.equals(self.p.blocks - 1), self.p.narrow, 0)


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = ChannelWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        box = place_box(k, p, item, workspace)
        here = Here(k, p, item, box, frame, workspace)
        with k.when(p.following.runs_a_call > 0):
            k.call(p.following.note, given)
        k.call(p.bring, BoxInputs(frame, p, workspace, box, item.n, item.g))
        first = item.split * p.split_blocks
        end = k.minimum(first + p.split_blocks, p.blocks)
        k.clear(workspace + p.common.scratch, words.ZERO_BYTES)
        rows = box_rows(k, p.common, item, p.transformed)
        groups = _join_rows(here, rows)
        with k.loop(first // p.together, (end + p.together - 1) // p.together) as some:
            low = k.maximum(some.index * p.together, first)
            high = k.minimum((some.index + 1) * p.together, end)
            _multiply(here, frame.x, low, high, rows, groups, vector_bytes)
            with k.loop(low, high) as block:
                flags = flags_of(p, workspace, block.index, rows)
                k.store(k.constant(INT, 0), flags, 8)
                with k.loop(0, rows) as row:
                    narrow = here.is_narrow(block.index)
                    at = (block.index - low) * rows * p.s_row + row.index * (p.s_row >> narrow)
                    _back(here, workspace + (p.sums + at), block.index, row.index, rows, flags)
        # once the transformed inputs are no longer needed their place serves to repair
        with k.loop(first, end) as block:
            found = k.word(flags_of(p, workspace, block.index, rows)) > 0
            with k.when(found):
                k.call(p.repair, RepairBlock(frame, p, workspace, box, item.n, item.g, block.index))


def flags_of(p: ChannelWords, workspace: Buffer, block: Value, rows: Value) -> Buffer:
    """Flags of a block of outputs: a word for the block and one for each of its tiles, which count if that is not 0."""
    return workspace + (p.flags + 8 + block * ((p.tiles * rows + 1) * 8))


def place_box(k: Module, p: ChannelWords, item: Item, workspace: Buffer) -> TileBox:
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


def each_run(here: Here, row: words.TileRow, visit: Callable[[TileRun, Value], None]) -> None:
    """``visit(run, tile)`` every run of tiles of a row, with the number of its first tile."""
    k, box = here.k, here.box
    with k.loop(0, box.run_count) as number:
        run = here.p.runs.at(box.runs + number.index)
        visit(run, run.tile + k.select(run.short.equals(1), row.first_short, row.first_full))


def _join_rows(here: Here, rows: Value) -> Value:
    """Note rows of the axes that are not transformed as ``JoinedRows``; how many there are of these."""
    k, p, item = here.k, here.p, here.item
    y_lines = here.y_lines
    with k.loop(0, rows, carry=[k.constant(INT, -1), k.constant(INT, 0), k.constant(INT, 0)]) as row:
        following, band_before, count = row.values
        line, _, _ = row_place(k, p.common, item, row.index * y_lines)
        v, band = line // p.y_lines * p.v_line, row_list(
            k, p.bands, item, row.index, p.common.axes - p.transformed
        )
        joins = v.equals(following) & band.equals(band_before)
        count = count + k.select(joins, 0, 1)
        place = here.workspace + (p.joined_rows + (count - 1) * (8 * word_count(JoinedRows)))
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


def _multiply(here: Here, x: Buffer, low: Value, high: Value, rows: Value, groups: Value, vector_bytes: int
              ) -> None:  # fmt: skip
    """The matrix products of some blocks of outputs, point by point: inputs and weights of a point stay near."""
    k, p, box, workspace = here.k, here.p, here.box, here.workspace
    products, entries, weights = p.products, p.entries, p.weights + here.item.g * p.w_group
    row_bytes, v_line, scratch = p.inputs.row_bytes, p.v_line, workspace + p.common.scratch
    zeroes = p.short.equals(1)
    nothing = k.constant(vector("i32", vector_bytes // 4), 0)
    with k.loop(0, p.points, carry=[k.constant(INT, 0)]) as point:
        (column,) = point.values
        point.next(k.select((column + 1).equals(p.inner_points), 0, column + 1))
        at_end = k.cast("zext", column >= p.end_column, INT)
        low_end = k.cast("zext", point.index >= p.end_row, INT)
        kind = k.select(p.transformed.equals(2), low_end * 2 + at_end, at_end)
        needed = p.kind_tiles.at(box.kind_tiles + kind)
        joins = kind.equals(0) & box.joins.equals(1)
        first, calls_alone, size_alone, larger_alone = needed.tile, needed.calls, needed.size, needed.larger
        past = first + calls_alone * size_alone + larger_alone
        inputs = workspace + (p.v + point.index * p.v_point + first * row_bytes)
        sums_of_point = workspace + (p.sums + point.index * p.s_point)
        with k.loop(low, high) as block, k.loop(0, groups) as group:
            narrow = here.is_narrow(block.index)
            sum_row, s_row = p.sum_row >> narrow, p.s_row >> narrow
            stream = k.word(p.point_weights, block.index * p.points + point.index)
            # rows in the middle first: these have all taps, whose weights then are near
            turned = group.index + groups // 2
            of_rows = JoinedRows.at(k, workspace + p.joined_rows, turned - k.select(turned >= groups, groups, 0))
            of_kind = p.entry_lists.at(of_rows.band * 4 + kind)
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
                    k.call(products.at_word((tiles * 2 + narrow) * 2), PanelTile(
                        call.values[0], count, list_, weights + stream,
                        scratch, 0, call.values[1], sum_row,
                    ))  # fmt: skip
                    _fetch_following(here, x)
                    call.next(call.values[0] + tiles * row_bytes, call.values[1] + tiles * sum_row)


def _fetch_following(here: Here, x: Buffer) -> None:
    """Fetch a few more of the inputs that are noted for the next item."""
    k, following = here.k, here.p.following
    notes = here.workspace + (following.notes + here.p.common.axes * 24)
    first = k.word(notes, 1)
    end = k.minimum(first + following.runs_a_call, k.word(notes))
    with k.when(first < end):
        with k.loop(first, end) as number:
            row = k.word(notes, number.index // following.runs_a_row + 2)
            place = x + (row + number.index % following.runs_a_row * following.run_step)
            with k.loop(0, following.run_bytes, 64) as line:
                k.prefetch(place + line.index)
        k.store(end, notes + 8, 8)


def _back(here: Here, sums: Buffer, block: Value, row: Value, rows: Value, flags: Buffer) -> None:
    """Sums back to outputs, and these out, by rows of tiles; flags tiles with a result that is not finite."""
    k, p, item, workspace = here.k, here.p, here.item, here.workspace
    c, frame = p.common, here.frame
    last = axis_words(c, c.axes - 1)
    y_lines = here.y_lines
    channel = block * p.block_outputs
    outputs = k.select(block.equals(p.blocks - 1), p.last_outputs, p.block_outputs)
    table_place = (item.g * p.outputs + channel) * p.word_bytes
    narrow = here.is_narrow(block)
    sum_row = p.sum_row >> narrow

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

    with k.loop(0, here.box.tile_row_count) as number:
        tiles = p.tile_rows.at(here.box.tile_rows + number.index)
        each_run(here, tiles, transform)
        whole = p.planes_out.together.equals(1)
        with k.when(whole):
            _, y_offset, r_offset = row_place(k, c, item, row * y_lines + tiles.line_out)
            k.call(p.planes_out.move, ListedMoveOut(
                workspace + p.out, sum_row, p.word_bytes,
                frame.y + (y_offset + channel * c.y_c), last.y_stride, c.y_c, tiles.lines * here.box.columns,
                outputs, p.tables.bias + table_place, p.tables.scale + table_place,
                frame.residual + (r_offset + channel * c.r_c), last.r_stride, c.r_c, p.tables.constants,
                p.planes_out.places + narrow * p.planes_out.places_bytes,
            ))  # fmt: skip
        with k.loop(0, k.select(whole, 0, tiles.lines)) as i:
            _, y_offset, r_offset = row_place(k, c, item, row * y_lines + tiles.line_out + i.index * p.y_apart)
            line = workspace + (p.out + i.index * p.out_line)
            y, r = frame.y + (y_offset + channel * c.y_c), frame.residual + (r_offset + channel * c.r_c)
            with k.loop(0, here.box.segments) as x:
                at = x.index * p.x_apart
                pixels = k.select(x.index.equals(here.box.segments - 1), here.box.last_segment, here.box.segment)
                k.call(p.move_out, MoveOut(
                    line + x.index * (p.out_pixel >> narrow), sum_row, p.word_bytes,
                    y + at * last.y_stride, last.y_stride, c.y_c, pixels, outputs,
                    p.tables.bias + table_place, p.tables.scale + table_place,
                    r + at * last.r_stride, last.r_stride, c.r_c, p.tables.constants,
                ))  # fmt: skip
