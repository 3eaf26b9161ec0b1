"""Programs of the Winograd algorithm: driver, tables and transformed weights.

What they carry out, its cost and its error are in ``winograd_plan``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms import direct
from polyconv.algorithms.packing import SOURCE, Set, bring_rows, forward_strides, run, set_words, source_words
from polyconv.algorithms.panel import COMMON, Item, Words, axis_record, box_rows, decode, fill, row_list, row_place
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Step,
    along_in,
    along_out,
    apart_words,
    common_words,
    fill_words,
    move_address,
    tile_addresses,
    zeros,
)
from polyconv.algorithms.sweep import Bands, Sweep, bands_table
from polyconv.algorithms.winograd_plan import (
    NEAR_BYTES,
    Cut,
    Plan,
    again_box,
    is_stacked,
    order,
    outer_bands,
    parts,
    shared,
    turned,
    workspace,
)
from polyconv.kernels.isa import channel_tile, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, zero_words
from polyconv.kernels.objects import kernel
from polyconv.kernels.tile import ROW_WORDS
from polyconv.kernels.transform import input_transform, output_transform, weight_transform
from polyconv.runtime.arrays import aligned, words

__all__ = ["build"]

_RECORD = ("line_in", "line_out", "valid", "t_full", "t_short")
_RUN = ("pixel", "tile", "count", "step", "outputs", "short")
_PHASE = ("line", "pixel", "place", "*transform")
_KIND = ("first", "count")
_KIND_TILES = ("tile", "calls", "size", "larger")
"""The tiles that points of a kind need: the first, the calls that multiply them, the least tiles of a call, and how
many calls have one more."""
_ROWS = ("v", "band", "first", "rows", "calls", "size", "larger")
"""Rows whose tiles lie one after another and meet the same weights: inputs, taps, first row, rows, calls as above."""
_BOX = (
    "first_y", "rows", "first_x", "columns", "segments", "segment", "last_segment",
    "records", "record_count", "runs", "run_count", "lists", "joins",
)  # fmt: skip
"""A box: its first outputs, how far they reach, and the segments of a row, outputs next to each other; its rows of
tiles, each a record; the runs of tiles of which every row consists; its tiles by kind of point; whether there are as
many as in any box, so that those of neighbouring rows of outer axes lie one after another."""

_RUN_BYTES = 1 << 10
"""Inputs that lie together are asked for by so many bytes at a time."""
_DRIVING_BYTES = 10 << 20
"""Transformed weights that drive inputs out of the caches from call to call: each chunk is asked for before its turn.
Measured: 2 to 8 % off where channels lie apart, nothing to lose where they lie together."""

WORDS = (
    *COMMON,
    "total_channels", "channels", "block_channels", "unpaired", "channel_bytes", "row_bytes", "block_bytes",
    "line_bytes", "chunk",
    "transformed", "y_lines", "y_apart", "x_apart", "outer_lines", "points", "inner_points", "*boxes_table", "*records",
    "*runs_of", "*lists", "*functions", "most_tiles", "tiles", "tile_line", "tile_pixel", "x_residues",
    "v", "v_point", "v_line", "v_block", "sums", "s_point", "s_row", "short", "rows", "sum_row", "out", "out_line",
    "out_pixel", "phase_count", "*phases", "*bands", "*entries", "*kinds", "*weights", "*point_weights", "w_group",
    "together",
    "outputs", "blocks", "split_blocks", "block_outputs", "last_outputs", "word_bytes",
    "narrow", "flags", "again", "*again_words", "*repair",
    "notes", "item_count", "items_ahead", "runs_a_call", "runs_a_row", "run_step", "run_bytes", "asks",
    "*output_transforms", "*bias", "*scale", "*constants", "*move_in", "*move_out",
)  # fmt: skip


_PACKED_PHASE = ("tap", "*transform")
_POINT = ("first", "entering")
_PACKING = (
    *SOURCE,
    "made", "made_point", "points", "outer", "outer_taps", "y_taps", "x_taps", "phase_count", "*phases",
    "*point_table", "*before", "*place",
)  # fmt: skip


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, "buffer", "buffer", "int", "buffer") as (frame, table, number, workspace):
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        box = _place_box(k, p, item, workspace)
        _note_next(k, p, number, k.buffer(frame, 0), workspace)
        panel = workspace + p.panel
        with k.loop(0, p.channels, p.chunk) as chunk:
            _ask_for_chunk(k, p, item, k.buffer(frame, 0), chunk.index + p.chunk)
            direct.pack_panel(k, p, item, k.buffer(frame, 0), panel, chunk.index)
            target = workspace + (p.v + chunk.index // p.block_channels * p.v_block)
            there = k.minimum(p.chunk, p.channels - chunk.index)
            with k.loop(0, there, p.block_channels, [panel, target]) as block:
                _transform_inputs(k, p, box, *block.values)
                block.next(block.values[0] + p.block_bytes, block.values[1] + p.v_block)
        first = item.split * p.split_blocks
        end = k.minimum(first + p.split_blocks, p.blocks)
        k.clear(workspace + p.scratch, 256)
        rows = box_rows(k, p, item, p.transformed)
        groups = _note_rows(k, p, item, workspace, rows)
        with k.loop(first // p.together, (end + p.together - 1) // p.together) as some:
            low = k.maximum(some.index * p.together, first)
            high = k.minimum((some.index + 1) * p.together, end)
            _multiply(k, p, item, box, k.buffer(frame, 0), workspace, low, high, rows, groups, vector_bytes)
            with k.loop(low, high) as block:
                flags = _flags(p, workspace, block.index, rows)
                k.store(k.constant(INT, 0), flags, 8)
                with k.loop(0, rows) as row:
                    narrow = _is_narrow(k, p, block.index)
                    at = (block.index - low) * rows * p.s_row + row.index * (p.s_row >> narrow)
                    sums = workspace + (p.sums + at)
                    _out(k, p, item, box, frame, workspace, sums, block.index, row.index, rows, flags)
        # once the transformed inputs are no longer needed their place serves to repair
        with k.loop(first, end) as block:
            flags = _flags(p, workspace, block.index, rows)
            with k.loop(0, k.select(k.word(flags) > 0, rows, 0)) as row:
                of_row = flags + (row.index * p.tiles + 1) * 8
                _repair(k, p, item, box, frame, workspace, block.index, row.index, of_row)


def _flags(p: Words, workspace: Buffer, block: Value, rows: Value) -> Buffer:
    """Flags of a block of outputs: a word for the block and one for each of its tiles, which count if that is not 0."""
    return workspace + (p.flags + 8 + block * ((p.tiles * rows + 1) * 8))


def _place_box(k: Module, p: Words, item: Item, workspace: Buffer) -> Words:
    """Write where the box really lies: tiles are not all of one size, so a table says where each begins."""
    last = p.axes - 1
    x_box = item.first(last)
    y_box = k.select(p.transformed.equals(2), item.first(k.maximum(last - 1, 0)), 0)
    box = Words(k, p.buffer("boxes_table"), _BOX).at(
        y_box * axis_record(k, p, last).boxes + x_box, len(_BOX)
    )

    def write(axis: Value, first: Value, extent: Value) -> None:
        place = workspace + axis * 24
        k.store(first * axis_record(k, p, axis).stride - axis_record(k, p, axis).pad, place, 8)
        k.store(extent, place + 8, 8)
        k.store(first, place + 16, 8)

    write(last, box.first_x, box.columns)
    with k.when(p.transformed.equals(2)):
        write(last - 1, box.first_y, box.rows)
    return box


def _runs(k: Module, p: Words, box: Words, record: Words, visit: Callable[[Words, Value], None]) -> None:
    """``visit(run, tile)`` every run of tiles of a row, with the number of its first tile."""
    with k.loop(0, box.run_count) as number:
        run = Words(k, p.buffer("runs_of"), _RUN).at(box.runs + number.index, len(_RUN))
        visit(run, run.tile + k.select(run.short.equals(1), record.t_short, record.t_full))


def _note_next(k: Module, p: Words, number: Value, x: Buffer, workspace: Buffer) -> None:
    """Note where the rows of inputs begin that the next item of this thread needs: memory is slow to answer.

    Notes are: runs of bytes in all, runs asked for so far, then the offset of every row.
    """
    header = workspace + p.notes
    notes = header + p.axes * 24
    k.store(k.constant(INT, 0), notes, 8)
    k.store(k.constant(INT, 0), notes + 8, 8)
    following = number + p.items_ahead
    with k.when((p.runs_a_call > 0) & (following < p.item_count)):
        item = decode(k, p, following, header)
        _place_box(k, p, item, header)

        def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
            with k.when(first_line.equals(0) & (head < end)):  # other runs of a row lie between the pixels of the first
                rows = k.word(notes)
                k.store(source.total(), notes + (rows * 8 + 16), 8)
                k.store(rows + 1, notes, 8)

        fill(k, p, item, x, k.constant(INT, 0), put)
        k.store(k.word(notes) * p.runs_a_row, notes, 8)


def _ask_for_next(k: Module, p: Words, x: Buffer, workspace: Buffer) -> None:
    """Ask for a few more of the inputs that are noted."""
    notes = workspace + (p.notes + p.axes * 24)
    first = k.word(notes, 1)
    end = k.minimum(first + p.runs_a_call, k.word(notes))
    with k.when(first < end):
        with k.loop(first, end) as number:
            row = k.word(notes, number.index // p.runs_a_row + 2)
            place = x + (row + number.index % p.runs_a_row * p.run_step)
            with k.loop(0, p.run_bytes, 64) as line:
                k.prefetch(place + line.index)
        k.store(end, notes + 8, 8)


def _ask_for_chunk(k: Module, p: Words, item: Item, x: Buffer, channel: Value) -> None:
    """Ask for the inputs of the channels from ``channel`` on, if weights have driven them out of the caches."""
    pixel_step = p.step * axis_record(k, p, p.axes - 1).x_stride
    channels = k.minimum(p.channels - channel, p.chunk) * p.asks
    by_plane = p.x_c > pixel_step

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        pixels = end - head
        step = k.select(by_plane, p.x_c, pixel_step)
        size = k.select(by_plane, pixels * pixel_step, channels * p.x_c)
        with k.loop(0, k.select(by_plane, channels, pixels)) as run:
            place = source + run.index * step
            with k.loop(0, size, 64) as part:
                k.prefetch(place + part.index)
            k.prefetch(place + (size - 1))

    with k.when(channels > 0):
        fill(k, p, item, x, channel, put)


def _transform_inputs(k: Module, p: Words, box: Words, panel: Buffer, v: Buffer) -> None:
    with k.loop(0, p.outer_lines) as outer, k.loop(0, p.phase_count) as number:
        phase = Words(k, p.buffer("phases"), _PHASE).at(number.index, len(_PHASE) + 1)
        with k.loop(0, box.record_count) as r:
            target = v + (outer.index * p.v_line + phase.place)
            record = Words(k, p.buffer("records"), _RECORD).at(box.records + r.index, len(_RECORD))
            at = (outer.index * p.y_lines + phase.line + record.line_in) * p.line_bytes + phase.pixel * p.row_bytes
            line = panel + at

            def transform(run: Words, tile: Value, line: Buffer = line, target: Buffer = target,
                          phase: Words = phase) -> None:  # fmt: skip
                k.call(
                    phase.buffer("transform"), line + run.pixel * p.row_bytes, p.tile_line, p.tile_pixel,
                    target + tile * p.row_bytes, p.v_point, run.count, run.step * p.row_bytes,
                )  # fmt: skip

            _runs(k, p, box, record, transform)


def _lines_of_row(k: Module, p: Words, item: Item) -> Value:
    """Lines of the box in a row of the axes that are not transformed."""
    return k.select(p.transformed.equals(2), item.extent(k.maximum(p.axes - 2, 0)), 1)


def _note_rows(k: Module, p: Words, item: Item, workspace: Buffer, rows: Value) -> Value:
    """Note where the inputs of the rows of the axes that are not transformed lie, and which taps meet any, by groups.

    How many groups there are is what it gives.
    """
    y_rows = _lines_of_row(k, p, item)
    with k.loop(0, rows, carry=[k.constant(INT, -1), k.constant(INT, 0), k.constant(INT, 0)]) as row:
        following, band_before, count = row.values
        line, _, _ = row_place(k, p, item, row.index * y_rows)
        v, band = line // p.y_lines * p.v_line, row_list(k, p, item, row.index, p.axes - p.transformed)
        joins = v.equals(following) & band.equals(band_before)
        count = count + k.select(joins, 0, 1)
        place = workspace + (p.rows + (count - 1) * (8 * len(_ROWS)))
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


def _multiply(k: Module, p: Words, item: Item, box: Words, x: Buffer, workspace: Buffer, low: Value, high: Value,
              rows: Value, groups: Value, vector_bytes: int) -> None:  # fmt: skip
    """The matrix products of some blocks of outputs, point by point: inputs and weights of a point stay near."""
    functions, entries, weights = p.buffer("functions"), p.buffer("entries"), p.buffer("weights") + item.g * p.w_group
    row_bytes, v_line, scratch = p.row_bytes, p.v_line, workspace + p.scratch
    zeroes = p.short.equals(1)
    with k.loop(0, p.points) as point:
        at_end = k.cast("zext", (point.index % p.inner_points).equals(p.inner_points - 1), INT)
        low_end = k.cast("zext", point.index >= p.points - p.inner_points, INT)
        kind = k.select(p.transformed.equals(2), low_end * 2 + at_end, at_end)
        needed = Words(k, p.buffer("lists"), _KIND_TILES).at(box.lists + kind, len(_KIND_TILES))
        joins = kind.equals(0) & box.joins.equals(1)
        first, calls_alone, size_alone, larger_alone = needed.tile, needed.calls, needed.size, needed.larger
        inputs = workspace + (p.v + point.index * p.v_point + first * row_bytes)
        sums_of_point = workspace + (p.sums + point.index * p.s_point)
        with k.loop(low, high) as block, k.loop(0, groups) as group:
            narrow = _is_narrow(k, p, block.index)
            sum_row, s_row = p.sum_row >> narrow, p.s_row >> narrow
            stream = k.word(p.buffer("point_weights"), block.index * p.points + point.index)
            of_rows = Words(k, workspace + p.rows, _ROWS).at(group.index, len(_ROWS))
            of_kind = Words(k, p.buffer("kinds"), _KIND).at(of_rows.band * 4 + kind, len(_KIND))
            sums = sums_of_point + ((block.index - low) * rows * p.s_row + of_rows.first * s_row)
            source = inputs + of_rows.v
            calls, size = k.select(joins, of_rows.calls, calls_alone), k.select(joins, of_rows.size, size_alone)
            larger = k.select(joins, of_rows.larger, larger_alone)
            count, list_ = of_kind.count, entries + of_kind.first * 24
            with k.loop(0, k.select(joins, 1, of_rows.rows)) as row:
                target = sums + row.index * s_row
                # products that short tiles do without enter outputs that are thrown away, but must be finite
                with k.when((kind > 0) & zeroes):
                    zero_words(k, target, s_row // 4, vector("i32", vector_bytes // 4))
                begins = source + row.index * v_line, target + first * sum_row
                with k.loop(0, calls, carry=begins) as call:
                    tiles = size + k.select(call.index < larger, 1, 0)
                    k.call(
                        k.buffer(functions, (tiles * 2 + narrow) * 2), call.values[0], count, list_, weights + stream,
                        scratch, 0, call.values[1], sum_row,
                    )  # fmt: skip
                    _ask_for_next(k, p, x, workspace)
                    call.next(call.values[0] + tiles * row_bytes, call.values[1] + tiles * sum_row)


def _is_narrow(k: Module, p: Words, block: Value) -> Value:
    """1 for a block of outputs half as wide as others, as the last one may be, else 0."""
    return k.select(block.equals(p.blocks - 1), p.narrow, 0)


def _out(k: Module, p: Words, item: Item, box: Words, frame: Buffer, workspace: Buffer, sums: Buffer, block: Value,
         row: Value, rows: Value, flags: Buffer) -> None:  # fmt: skip
    """Back from the transform domain and out by rows of tiles; flags tiles with a result that is not finite."""
    last = axis_record(k, p, p.axes - 1)
    y_rows = _lines_of_row(k, p, item)
    channel = block * p.block_outputs
    outputs = k.select(block.equals(p.blocks - 1), p.last_outputs, p.block_outputs)
    table_place = (item.g * p.outputs + channel) * p.word_bytes
    narrow = _is_narrow(k, p, block)
    sum_row = p.sum_row >> narrow
    with k.loop(0, box.record_count) as number:
        record = Words(k, p.buffer("records"), _RECORD).at(box.records + number.index, len(_RECORD))

        def transform(run: Words, tile: Value) -> None:
            function = k.buffer(p.buffer("output_transforms"), narrow * 2)

            def back(first: Value, count: Value, flag: Buffer) -> None:
                k.call(
                    function, sums + (tile + first) * sum_row, p.s_point,
                    workspace + (p.out + (run.pixel + first * run.step) * sum_row), p.out_line, p.out_pixel >> narrow,
                    count, run.step * sum_row, flag,
                )  # fmt: skip

            found = workspace + p.flags
            k.store(k.constant(INT, 0), found, 8)
            back(k.constant(INT, 0), run.count, found)
            with k.when(k.word(found) > 0):  # once more, to see in which tiles
                with k.loop(0, k.select(k.word(flags).equals(0), rows * p.tiles + 1, 0)) as of_tile:
                    k.store(k.constant(INT, 0), flags + of_tile.index * 8, 8)
                k.store(k.constant(INT, 1), flags, 8)
                with k.loop(0, run.count) as one:
                    back(one.index, k.constant(INT, 1), flags + (1 + row * p.tiles + tile + one.index) * 8)

        _runs(k, p, box, record, transform)
        with k.loop(0, record.valid) as i:
            _, y_offset, r_offset = row_place(k, p, item, row * y_rows + record.line_out + i.index * p.y_apart)
            line = workspace + (p.out + i.index * p.out_line)
            y, r = k.buffer(frame, 2) + (y_offset + channel * p.y_c), k.buffer(frame, 4) + (r_offset + channel * p.r_c)
            with k.loop(0, box.segments) as x:
                at = x.index * p.x_apart
                pixels = k.select(x.index.equals(box.segments - 1), box.last_segment, box.segment)
                k.call(
                    p.buffer("move_out"), line + x.index * (p.out_pixel >> narrow), sum_row, p.word_bytes,
                    y + at * last.y_stride, last.y_stride, p.y_c, pixels, outputs,
                    p.buffer("bias") + table_place, p.buffer("scale") + table_place,
                    r + at * last.r_stride, last.r_stride, p.r_c, p.buffer("constants"),
                )  # fmt: skip


def _repair(k: Module, p: Words, item: Item, box: Words, frame: Buffer, workspace: Buffer, block: Value, row: Value,
            flags: Buffer) -> None:  # fmt: skip
    """Compute the flagged tiles of a row of outer axes again, directly.

    Boxes depend on the number of threads and images, tiles do not: so neither do bits, whatever the inputs.
    Neighbours along the columns are done together, wherever tiles have no outputs of others between theirs.
    """
    y_rows = _lines_of_row(k, p, item)
    with k.loop(0, box.record_count) as number:
        record = Words(k, p.buffer("records"), _RECORD).at(box.records + number.index, len(_RECORD))

        def again(run: Words, tile: Value) -> None:
            found, whole = flags + tile * 8, p.x_apart.equals(1)
            joins = k.select(whole | run.step.equals(1), 1, 0)
            with k.loop(0, run.count, carry=[k.constant(INT, 0)]) as last:
                # tiles of the series of flagged ones that ends here, if it ends
                series = k.select(k.word(found, last.index) > 0, last.values[0] + 1, 0)
                following = k.word(found, k.minimum(last.index + 1, run.count - 1)) > 0
                goes_on = joins.equals(1) & following & (last.index + 1 < run.count)
                last.next(k.select(goes_on, series, 0))
                pixel = run.pixel + (last.index + 1 - series) * run.step
                column = pixel // p.x_residues * p.x_apart + pixel % p.x_residues
                length = k.select(whole, series * run.outputs, series)
                pieces = k.select(whole, 1, run.outputs)
                with k.loop(0, k.select((series > 0) & goes_on.equals(0), pieces, 0)) as j:
                    first = column + j.index * p.x_apart
                    with k.when(first < box.columns):  # the last tile of a run may have less outputs
                        rows(first, length)

        def rows(column: Value, length: Value) -> None:
            whole = p.y_apart.equals(1) | p.transformed.equals(1)
            with k.loop(0, k.select(whole, 1, record.valid)) as i:
                line = row * y_rows + record.line_out + i.index * p.y_apart
                lines = k.select(whole & p.transformed.equals(2), record.valid, 1)
                header = workspace + p.again
                _narrow(k, p, item, p.axes - 1, column, length, header)
                with k.loop(1, p.axes, carry=[line]) as back:
                    axis = p.axes - 1 - back.index
                    extent = item.extent(axis)
                    _narrow(k, p, item, axis, back.values[0] % extent, k.select(back.index.equals(1), lines, 1), header)
                    back.next(back.values[0] // extent)
                k.call(
                    p.buffer("repair"), frame, p.buffer("again_words"), header, item.n, item.g, block, block + 1,
                )  # fmt: skip

        _runs(k, p, box, record, again)


def _narrow(k: Module, p: Words, item: Item, axis: Value, first: Value, extent: Value, header: Buffer) -> None:
    """Write a part of an axis of the box into a header of its own."""
    place = header + axis * 24
    k.store(item.origin(axis) + first * axis_record(k, p, axis).stride, place, 8)
    k.store(extent, place + 8, 8)
    k.store(item.first(axis) + first, place + 16, 8)


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    r = _turned(r)
    keep: list[Any] = []
    address = kernel(
        "winograd", ("winograd",), lambda k: driver(k, "winograd", r.target.vector_bytes), r.target, check=r.check
    )["winograd"]
    steps = [
        direct.sweep_step(r, sweep, keep) if plan is None
        else _step(_stacked(r) if is_stacked(r.problem, sweep) else r, sweep, plan, address, keep)
        for sweep, plan in parts(r.situation)
    ]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _turned(r: Request) -> Request:
    """The request with its axes in the order in which they are swept."""
    axes, weights = order(r.problem), r.weights

    def turn(o: Operand) -> Operand:
        return replace(o, spatial=tuple(o.spatial[a] for a in axes))

    def of_sweep(sweep: Sweep) -> NDArray[Any]:  # a single axis with taps has moved: they lie in the same order
        return weights(tuple(sweep[axes.index(a)] for a in range(len(axes))))

    return replace(
        r, situation=turned(r.situation), x=turn(r.x), y=turn(r.y), weights=of_sweep,
        residual=None if r.residual is None else turn(r.residual),
    )  # fmt: skip


def _stacked(r: Request) -> Request:
    """The request with its batch as one more axis, the outermost."""
    def stack(o: Operand) -> Operand:
        return replace(o, n=0, spatial=(o.n, *o.spatial))

    weights, s = r.weights, r.situation
    return replace(
        r, situation=replace(s, problem=replace(s.problem, n=1)), x=stack(r.x), y=stack(r.y),
        weights=lambda sweep: weights(sweep[1:]), residual=None if r.residual is None else stack(r.residual),
    )  # fmt: skip


def _step(r: Request, sweep: Sweep, alone: Plan, address: int, keep: list[Any]) -> Step:
    p, arith = r.problem, r.arith
    plan, splits = shared(r.situation, arith, sweep, alone)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane = lanes(r.target, arith)
    row_bytes, block_outputs = ROW_WORDS * arith.bytes, plan.vectors * lane
    sum_row = block_outputs * arith.bytes
    outer_axes = len(sweep) - plan.transformed
    box_counts = (*plan.outer, *((1, 1) if plan.transformed == 2 else (1,)))
    cuts = ((len(plan.rows),) if plan.transformed == 2 else ()) + (len(plan.columns),)
    counted = sweep[:outer_axes] + tuple(
        replace(axis, out=count) for axis, count in zip(sweep[outer_axes:], cuts, strict=True)
    )  # as decode sees them: boxes instead of outputs; a table says where they lie
    values = common_words(r, counted, box_counts, list(plan.held), splits, keep)
    boxes_table, records, runs, lists = _tables(r, plan)
    height = channel_tile(r.target, plan.vectors)
    functions = [
        [0, *tile_addresses(r, "channel", range(1, height + 1), last)] for last in (plan.vectors, plan.last_vectors)
    ]
    found = outer_bands(sweep, plan.transformed, len(plan.phases), group_in)
    entries, kinds = _entries(plan, found, group_in)
    points = plan.y.n * plan.x.n
    weight_bytes, *point_weights = _weight_places(r, sweep, plan)
    transforms = {full: _input_transform(r, plan, full) for full in {phase.full for phase in plan.phases}}
    phases = [
        v for number, phase in enumerate(plan.phases)
        for v in (phase.line, phase.pixel, number * plan.v_phase, transforms[phase.full], 0)
    ]  # fmt: skip
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep[-len(p.k) :])
    packed = r.packed(
        ("winograd", arith.name, lane, plan.vectors, plan.together, plan.y, plan.x, key),
        lambda: _packed_weights(r, sweep, plan),
    )
    last = sweep[-1]
    most = again_box(plan.transformed, plan.rows, plan.columns, plan.outer)
    again_words = direct.again_words(r, sweep, most, plan.vectors, keep)
    values.update({
        "panel": plan.panel, "scratch": plan.panel - 256, "total_channels": p.c, "channels": group_in,
        "block_channels": ROW_WORDS, "unpaired": 0, "channel_bytes": arith.bytes, "row_bytes": row_bytes,
        "block_bytes": plan.block_bytes,
        "line_bytes": plan.line_bytes, "chunk": plan.chunk, "transformed": plan.transformed,
        "y_lines": plan.held[-2].count if plan.transformed == 2 else 1, "y_apart": plan.rows[0].apart,
        "x_apart": plan.columns[0].apart,
        "tile_line": plan.rows[0].residues * plan.line_bytes, "tile_pixel": plan.columns[0].residues * row_bytes,
        "x_residues": plan.columns[0].residues,
        "outer_lines": math.prod(h.count for h in plan.held[:outer_axes]), "points": points,
        "inner_points": plan.x.n, "boxes_table": words(boxes_table), "records": words(records),
        "runs_of": words(runs), "lists": words(lists), "most_tiles": height, "tiles": plan.tiles,
        "functions": words([v for pair in zip(*functions, strict=True) for function in pair for v in (function, 0)]),
        "v": plan.v, "v_point": plan.v_point, "v_line": plan.v_line, "v_block": plan.v_block, "sums": plan.sums,
        "s_point": plan.s_point, "s_row": plan.tiles * sum_row, "short": int(_has_short(plan)), "rows": plan.row_notes,
        "sum_row": sum_row, "out": plan.out, "out_line": plan.out_line, "out_pixel": plan.columns[0].residues * sum_row,
        "phase_count": len(plan.phases), "phases": words(phases), "bands": words(bands_table(found)),
        "entries": words(entries), "kinds": words(kinds),
        "weights": packed, "point_weights": words(point_weights),
        "w_group": weight_bytes, "together": plan.together,
        "outputs": group_out, "blocks": plan.blocks, "split_blocks": -(-plan.blocks // splits),
        "block_outputs": block_outputs, "last_outputs": group_out - (plan.blocks - 1) * block_outputs,
        "word_bytes": arith.bytes, "flags": plan.flags, "again": plan.v, "again_words": again_words,
        "repair": direct.repair_address(r),
        **_early(r, sweep, plan, values["items"]), "asks": int(packed.nbytes > _DRIVING_BYTES),
        "narrow": int(plan.last_vectors < plan.vectors),
        "output_transforms": words([_output_transform(r, plan, plan.vectors), 0,
                                    _output_transform(r, plan, plan.last_vectors), 0]),
        "bias": zeros() if r.bias is None else r.bias, "scale": zeros(), "constants": r.constants,
        **apart_words(r, last, plan.held[-1], "c", row_bytes),
        "move_in": move_address(r, Move(p.x, arith.accumulator, along_in(r, last, "c"))),
        "move_out": move_address(r, Move(arith.accumulator, p.y, along_out(r, last, "c"), r.epilogue)),
    })  # fmt: skip
    return Step(address, fill_words(WORDS, values, keep), values["items"])


def _early(r: Request, sweep: Sweep, plan: Plan, items: int) -> dict[str, int]:
    """Words that say in which runs of bytes the inputs of an item are asked for while the item before is computed."""
    p, last = r.problem, sweep[-1]
    row = plan.held[-1].runs[0][1] * last.stride * r.x.spatial[-1]
    runs, step, size = 0, 0, 0
    if along_in(r, last, "c")[0] in "p2":
        runs, step, size = p.c // p.groups, r.x.c, row
    elif r.x.c == r.x.itemsize and p.groups == 1:
        runs, step, size = -(-row // _RUN_BYTES), _RUN_BYTES, _RUN_BYTES
    rows = math.prod(h.count for h in plan.held[:-1])
    calls = plan.y.n * plan.x.n * plan.blocks * -(-plan.tiles // channel_tile(r.target, plan.vectors))
    far = (p.n or 0) * p.c * math.prod(axis.inp for axis in sweep) * r.x.itemsize > NEAR_BYTES
    return {
        "notes": plan.notes, "item_count": items, "items_ahead": r.situation.threads,
        "runs_a_call": -(-rows * runs // calls) if far else 0, "runs_a_row": max(1, runs), "run_step": step,
        "run_bytes": size,
    }  # fmt: skip


def _entries(plan: Plan, found: Sequence[Bands], group_in: int) -> tuple[list[int], list[int]]:
    """Entries of the channel tiles; where those of every combination of bands and kind of point begin, and how many."""
    held = plan.held[: len(found)]
    taps = math.prod(len(h.start) for h in held)
    entries: list[int] = []
    kinds: list[int] = []
    for ranges in itertools.product(*(kinds for kinds, _ in found)):
        outer = [(0, 0)]
        for h, some in zip(held, ranges, strict=True):
            outer = [(o * h.count + h.start[t], tap * len(h.start) + t) for o, tap in outer for t in some]
        for kind in range(4):
            entering = [number for number, phase in enumerate(plan.phases) if phase.enters(kind)]
            at = len(entries) // 3
            for block, first in enumerate(range(0, group_in, ROW_WORDS)):
                count = min(ROW_WORDS, group_in - first)
                for place, number in enumerate(entering):
                    before = (first * len(entering) + place * count) * taps
                    for o, tap in outer:
                        where = o * plan.v_line + number * plan.v_phase + block * plan.v_block
                        entries += (where, count, before + tap * count)
            kinds += (at, len(entries) // 3 - at)
    return entries, kinds


def _tables(r: Request, plan: Plan) -> tuple[list[int], list[int], list[int], list[int]]:
    """Boxes, the rows of tiles of each, the runs of a row, and for each kind of point its tiles.

    The tiles of a box are numbered so that those a point needs are neighbours: short row and full column,
    full both, short column, short both.  The point at infinity of an axis does without its short tiles.
    """
    most = channel_tile(r.target, plan.vectors)
    boxes_table: list[int] = []
    records: list[int] = []
    runs: list[int] = []
    lists: list[int] = []
    runs_at = []
    for columns in plan.columns:
        here = _row_of_tiles(columns, plan.x.m, plan.columns[0].residues)
        runs_at.append((len(runs) // len(_RUN), len(here) // len(_RUN)))
        runs += here
    for rows in plan.rows:
        for columns, runs_here in zip(plan.columns, runs_at, strict=True):
            ends = _class_ends(plan, rows, columns)
            of_box = _records(plan, rows, columns)
            boxes_table += (
                rows.first, rows.span, columns.first, columns.span, *columns.segments,
                len(records) // len(_RECORD), len(of_box) // len(_RECORD), *runs_here, len(lists) // len(_KIND_TILES),
                int(ends[-1] == plan.tiles),
            )  # fmt: skip
            records += of_box
            for low, high in ((0, 4), (0, 2), (1, 3), (1, 2)):
                tiles = ends[high] - ends[low]
                calls = -(-tiles // most)
                lists += (ends[low], calls, *divmod(tiles, max(1, calls)))
    return boxes_table, records, runs, lists


def _class_ends(plan: Plan, rows: Cut, columns: Cut) -> list[int]:
    """Where the four classes of tiles begin, and where the last ends."""
    full_rows, full_columns = rows.tiles(plan.y.m), columns.tiles(plan.x.m)
    short_rows, short_columns = rows.tiles() - full_rows, columns.tiles() - full_columns
    counts = (
        short_rows * full_columns, full_rows * full_columns, full_rows * short_columns, short_rows * short_columns,
    )  # fmt: skip
    return [0, *itertools.accumulate(counts)]


def _row_of_tiles(columns: Cut, m: int, pitch: int) -> list[int]:
    """Runs of tiles next to each other: those of a residue, or of residues alike, whichever are fewer.

    Neighbours in a tile lie ``pitch`` pixels apart in the panel.
    """
    by_residue = [
        (low + r + pitch * sum(sizes[:first]), sizes[first], count, pitch * sizes[first])
        for low, residues, sizes in columns.alike for r in range(residues)
        for first, count in ((0, sizes.count(m)), (sizes.count(m), len(sizes) - sizes.count(m))) if count
    ]  # fmt: skip
    by_tile = [
        (low + pitch * sum(sizes[:i]), size, residues, 1)
        for low, residues, sizes in columns.alike for i, size in enumerate(sizes)
    ]  # fmt: skip
    runs: list[int] = []
    full = short = 0
    for pixel, size, count, step in min(by_residue, by_tile, key=len):
        if size == m:
            runs += (pixel, full, count, step, size, 0)
            full += count
        else:
            runs += (pixel, short, count, step, size, 1)
            short += count
    return runs


def _records(plan: Plan, rows: Cut, columns: Cut) -> list[int]:
    """The rows of tiles of a box."""
    full_columns = columns.tiles(plan.x.m)
    short_columns = columns.tiles() - full_columns
    _, class_1, class_2, class_3, _ = _class_ends(plan, rows, columns)
    records: list[int] = []
    full, short, pitch = 0, 0, plan.rows[0].residues
    for low, residues, sizes in rows.alike:
        for r in range(low, low + residues):
            done = 0
            for size in sizes:
                if size == plan.y.m:
                    tiles = class_1 + full * full_columns, class_2 + full * short_columns
                    full += 1
                else:
                    tiles = short * full_columns, class_3 + short * short_columns
                    short += 1
                records += (pitch * done + r, rows.apart * done + r, size, *tiles)
                done += size
    return records


def _has_short(plan: Plan) -> bool:
    return any(cut.tiles() > cut.tiles(plan.x.m) for cut in plan.columns) or any(
        cut.tiles() > cut.tiles(plan.y.m) for cut in plan.rows
    )


def _weight_places(r: Request, sweep: Sweep, plan: Plan) -> list[int]:
    """Bytes of a group's transformed weights, then bytes before those of every block and point.

    They stream in the order of products: [blocks whose sums are held together][point][block].
    """
    taps = math.prod(axis.taps for axis in sweep[: len(sweep) - plan.transformed])
    row = taps * (r.problem.c // r.problem.groups) * lanes(r.target, r.arith) * r.arith.bytes
    places = [[0] * len(plan.point_phases) for _ in range(plan.blocks)]
    end = 0
    for first in range(0, plan.blocks, plan.together):
        for point, phases in enumerate(plan.point_phases):
            for block in range(first, min(first + plan.together, plan.blocks)):
                places[block][point] = end
                end += phases * row * (plan.vectors if block < plan.blocks - 1 else plan.last_vectors)
    return [end, *itertools.chain.from_iterable(places)]


def _input_transform(r: Request, plan: Plan, full: tuple[bool, bool]) -> int:
    """Address of the input transform of phases with all taps, or one less, along the two axes."""
    element, lane, y, x = r.arith.accumulator, lanes(r.target, r.arith), plan.y, plan.x

    def build(k: Module) -> None:
        input_transform(k, "transform", y, x, element, lane, full)

    label = f"winograd input {y} {x} {element} {full}"
    return kernel(label, ("transform",), build, r.target, check=r.check)["transform"]


def _output_transform(r: Request, plan: Plan, vectors: int) -> int:
    """Address of the output transform of so many vectors."""
    element, lane, y, x = r.arith.accumulator, lanes(r.target, r.arith), plan.y, plan.x

    def build(k: Module) -> None:
        output_transform(k, "transform", y, x, element, lane, vectors)

    label = f"winograd output {y} {x} {element} {vectors}"
    return kernel(label, ("transform",), build, r.target, check=r.check)["transform"]


def packing_driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` that transforms a block of outputs' weights."""
    with k.function(name, "buffer", "buffer", "int", "buffer") as (_, table, number, rows):
        p = Words(k, table, _PACKING)
        of_set, source, target = set_words(k, p, number)
        made, row = rows + p.made, of_set.row
        points = p.buffer("point_table") + number % p.set_count * (p.points * 16)
        with k.loop(0, p.channels, ROW_WORDS) as c:
            count = k.minimum(p.channels - c.index, ROW_WORDS)
            bring_rows(k, p, of_set, source, c.index, count, rows, vector_bytes)
            with k.loop(0, p.phase_count) as phase, k.loop(0, p.outer) as outer:
                of_phase = Words(k, p.buffer("phases"), _PACKED_PHASE).at(phase.index, len(_PACKED_PHASE) + 1)
                k.call(
                    of_phase.buffer("transform"), rows + (outer.index * p.outer_taps + of_phase.tap) * row,
                    p.taps * row, p.y_taps * row, p.x_taps * row, made, p.made_point, count, row,
                )  # fmt: skip
                with k.loop(0, p.points) as point:
                    of_point = Words(k, points, _POINT).at(point.index, len(_POINT))
                    before = k.word(p.buffer("before"), phase.index * p.points + point.index)
                    at = c.index * of_point.entering * p.outer + (before * p.outer + outer.index) * count
                    with k.when(before >= 0):
                        k.call(
                            p.buffer("place"), made + point.index * p.made_point, p.word_bytes, 0,
                            target + (of_point.first + at * row), p.word_bytes, 0, count * row // p.word_bytes, 1, 0,
                        )  # fmt: skip


def _packed_weights(r: Request, sweep: Sweep, plan: Plan) -> NDArray[Any]:
    """Transformed weights as they stream: of a block and point [channel block][phase][outer tap][channel][output].

    The transform is done in float64 and rounded once.
    """
    arith, w, lane = r.arith, forward_strides(r.weights(sweep)), lanes(r.target, r.arith)
    groups, m, _, taps = w.shape
    wide = sweep[-1].taps
    inner = wide * sweep[-2].taps if plan.transformed == 2 else wide
    outer, points, row = taps // inner, plan.y.n * plan.x.n, plan.vectors * lane * arith.bytes
    enters = [[phase.enters(plan.kind(point)) for point in range(points)] for phase in plan.phases]
    before = [
        sum(other[point] for other in enters[:number]) if enters[number][point] else -1
        for number in range(len(enters)) for point in range(points)
    ]  # fmt: skip
    group_bytes, *places = _weight_places(r, sweep, plan)
    of_group = group_bytes // w.itemsize
    packed = aligned(groups * of_group, w.dtype)
    sets = []
    for first in range(0, m, plan.vectors * lane):
        width = min(plan.vectors, -(-(m - first) // lane)) * lane
        sets.append(Set(first, min(width, m - first), width, 0, of_group))
    transforms = {counts: _weight_transform(r, plan, counts) for counts in {phase.counts for phase in plan.phases}}
    phases = [(phase.taps[0] * wide + phase.taps[1], transforms[phase.counts], 0) for phase in plan.phases]
    of_points = zip(places, itertools.cycle(plan.point_phases), strict=False)
    made, made_point = ROW_WORDS * taps * row, (ROW_WORDS * row // 64 | 1) * 64
    values = source_words(r, w, sets, packed)
    values.update({
        "made": made, "made_point": made_point, "points": points, "outer": outer, "outer_taps": inner,
        "y_taps": wide * (sweep[-2].stride if plan.transformed == 2 else 1), "x_taps": sweep[-1].stride,
        "phase_count": len(phases), "phases": words([v for phase in phases for v in phase]),
        "point_table": words([v for first, count in of_points for v in (first, count)]),
        "before": words(before), "place": move_address(r, Move(arith.name, arith.accumulator, "pp")),
    })  # fmt: skip
    address = kernel(
        "winograd pack", ("pack",), lambda k: packing_driver(k, "pack", r.target.vector_bytes), r.target, check=r.check
    )["pack"]
    keep: list[Any] = []
    step = Step(address, fill_words(_PACKING, values, keep), groups * plan.blocks)
    run(r, step, made + points * made_point, w.nbytes)
    return packed


def _weight_transform(r: Request, plan: Plan, taps: tuple[int, int]) -> int:
    """Address of the transform of the weights of phases with so many taps along the two axes."""
    element, y, x = r.arith.accumulator, plan.y, plan.x

    def build(k: Module) -> None:
        weight_transform(k, "transform", y, x, element, r.target.vector_bytes // 8, taps)

    label = f"winograd weights {y} {x} {element} {taps}"
    return kernel(label, ("transform",), build, r.target, check=r.check)["transform"]
