"""Loops that every blocked algorithm shares: which box an item is, and filling its zero-padded panel.

Everything that shapes a problem arrives in tables of 64-bit words, so this code is the same for any
rank, extent, stride, dilation, padding, group and layout; only the moves it calls know element types.
It must know nothing of what the panel is used for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from polyconv.kernels.epilogue import EpilogueTables
from polyconv.kernels.language import INT, Buffer, Module, Type, Value, vector
from polyconv.kernels.layout import MoveIn, zero_rows
from polyconv.kernels.move_rows import RowsIn
from polyconv.kernels.record import Function, Memory, Record, Table, Word
from polyconv.kernels.signature import Callee, Int, Signature
from polyconv.kernels.unzip import ListedMoveIn, MoveApart

__all__ = [
    "Ahead", "AxisWords", "BoxWords", "Common", "Driver", "EpilogueTables", "Frame", "Item", "ListWords", "RowLists",
    "RunWords", "ahead_place", "axis_words", "box_rows", "decode", "fill", "fill_planes", "header_bytes", "line_place",
    "positions_within", "row_entries", "row_list", "row_place", "row_source", "write_box",
]  # fmt: skip


class AxisWords(Record):
    """An axis of the tensor; the outermost is the first, and the last axis has a record too.

    Extents and steps are those of the sweep; of a combined line ``lines`` are the axis's, at ``positions`` in their
    table, and neighbours lie ``pitch`` lines apart.
    """

    inp: Word
    x_stride: Word
    block: Word
    out: Word
    stride: Word
    pad: Word
    y_stride: Word
    r_stride: Word
    boxes: Word
    lines: Word
    positions: Word
    pitch: Word


class RunWords(Record):
    """Pixels of a line, a ``step`` apart in the input: first place in the panel's line, number, first position."""

    first: Word
    count: Word
    position: Word


class BoxWords(Record):
    """Which boxes, groups and splits there are, and the positions of lines, in which every axis has its own place."""

    axes: Word
    axis: Table[AxisWords]
    positions: Memory
    boxes: Word
    splits: Word
    groups: Word


class Common(BoxWords):
    """Words of every blocked driver: its boxes, how tensors lie, and the lines of its panel.

    Pixels whose residues modulo the stride lie apart in the panel are moved by ``move_apart``, whole planes by
    ``move_planes``, short lines by ``rows_in``, for which those of the last axis but one are in ``row_runs``.
    """

    line_count: Word
    run_count: Word
    runs: Table[RunWords]
    x_base: Word
    x_n: Word
    x_g: Word
    x_c: Word
    y_base: Word
    y_n: Word
    y_g: Word
    y_c: Word
    r_base: Word
    r_n: Word
    r_g: Word
    r_c: Word
    step: Word
    zero_point: Word
    panel: Word
    scratch: Word
    residues: Word
    residue_places: Memory
    move_apart: Function[MoveApart]
    planes: Word
    plane_places: Memory
    move_planes: Function[ListedMoveIn]
    row_run_count: Word
    row_runs: Table[RunWords]
    rows_in: Function[RowsIn]


class ListWords(Record):
    """A list of entries: the word it begins with, and how many there are."""

    first: Word
    count: Word


class RowLists(Record):
    """Which entries rows of outputs have: ``bands`` says for every output of an outer axis which list."""

    bands: Memory
    lists: Table[ListWords]
    entries: Memory


class Ahead(Record):
    """Where a box asks for inputs of the next: ``size`` bytes, so many further, in each of some ``planes``."""

    step: Word
    size: Word
    planes: Word


class Frame(Record):
    """The arrays of a call."""

    x: Memory
    y: Memory
    residual: Memory
    offset: Memory
    mask: Memory


class Driver(Signature):
    """An item of a step: the call's arrays, the step's words, which item it is, and the thread's workspace."""

    frame: Frame
    words: Buffer
    item: Int
    workspace: Buffer


class Item:
    """What ``decode`` found: batch, group and split indices, and the box in the workspace's header.

    The header holds three words per axis: input position of the box's first output, number of outputs,
    first output.
    """

    def __init__(self, k: Module, header: Buffer, n: Value, g: Value, split: Value) -> None:
        self.k, self.header, self.n, self.g, self.split = k, header, n, g, split

    def origin(self, axis: Value | int) -> Value:
        """Input position that output 0 of the box starts from, before tap offsets."""
        return self.k.word(self.header, axis * 3)

    def extent(self, axis: Value | int) -> Value:
        """Outputs of the box along an axis."""
        return self.k.word(self.header, axis * 3 + 1)

    def first(self, axis: Value | int) -> Value:
        """First output of the box along an axis."""
        return self.k.word(self.header, axis * 3 + 2)


def header_bytes(axes: int) -> int:
    """Bytes of the workspace's header, whole cache lines."""
    return -(-24 * axes // 64) * 64


def axis_words(p: BoxWords, axis: Value | int) -> AxisWords:
    """Words of an axis."""
    return p.axis.at(axis)


def decode(k: Module, p: BoxWords, item: Value, header: Buffer) -> Item:
    """Split an item number into batch, group, split and box, and write the box into the header."""
    box, rest = item % p.boxes, item // p.boxes
    split, rest = rest % p.splits, rest // p.splits
    write_box(k, p, box, header)
    return Item(k, header, rest // p.groups, rest % p.groups, split)


def write_box(k: Module, p: BoxWords, number: Value, header: Buffer) -> None:
    """Write a box of a number into a header."""
    with k.loop(0, p.axes, carry=[number]) as back:
        axis = p.axes - 1 - back.index
        record = axis_words(p, axis)
        (q,) = back.values
        first = (q % record.boxes) * record.block
        extent = k.minimum(record.block, record.out - first)
        place = header + axis * 24
        k.store(first * record.stride - record.pad, place, 8)
        k.store(extent, place + 8, 8)
        k.store(first, place + 16, 8)
        back.next(q // record.boxes)


def _split(k: Module, number: Value, count: Value, axis: Value) -> tuple[Value, Value]:
    """What an axis leaves of a combined number to those outside it, and its own part: the outermost takes all."""
    with k.choice(axis > 0, [k.constant(INT, 0), number]) as divided:
        divided.next(number // count, number % count)
    rest, own = divided.results
    return rest, own


def line_place(k: Module, p: Common, item: Item, line: Value, start: Value, inner: int = 1) -> tuple[Value, Value]:
    """Offset of a combined line of the axes but some inner ones, from ``start`` on; 1 if it lies inside, else 0."""
    with k.loop(inner, p.axes, carry=[line, start, k.constant(INT, 1)]) as back:
        q, offset, inside = back.values
        axis = p.axes - 1 - back.index
        record = axis_words(p, axis)
        rest, own = _split(k, q, record.lines, axis)
        position = item.origin(axis) + k.word(p.positions, record.positions + own)
        within = k.cast("zext", position.below(record.inp), INT)
        back.next(rest, offset + position * record.x_stride, inside & within)
    _, offset, inside = back.results
    return offset, inside


def positions_within(k: Module, first: Value, step: Value, extent: Value, count: Value) -> tuple[Value, Value]:
    """Of ``count`` positions, ``step`` apart, the first that lies in 0..extent and the end of these."""
    before, until = 0 - first, extent - first
    with k.choice(step > 1, [before, until]) as strided:
        strided.next((before + (step - 1)) / step, (until + (step - 1)) / step)
    before, until = strided.results
    head = k.minimum(k.maximum(before, 0), count)
    return head, k.maximum(k.minimum(until, count), head)


def fill(k: Module, p: Common, item: Item, x: Buffer, channel: Value, put: Callable[..., None]) -> None:
    """Visit every run of every line of a box.

    ``put(source, line, first_line, count, head, end)`` fills ``count`` pixels from line ``first_line`` of the
    last axis in the combined line ``line`` of the outer axes: those in head..end from memory, where pixel
    ``head`` lies at ``source`` (channel ``channel`` of the item's group), the others with zeros.
    """
    start = p.x_base + item.n * p.x_n + item.g * p.x_g + channel * p.x_c
    last = axis_words(p, p.axes - 1)
    with k.loop(0, p.line_count) as line:
        offset, inside = line_place(k, p, item, line.index, start)
        with k.loop(0, p.run_count) as number:
            run = p.runs.at(number.index)
            first_line, count = run.first, run.count
            at, step = item.origin(p.axes - 1) + run.position, p.step
            head, end = positions_within(k, at, step, last.inp, count)
            end = k.select(inside.equals(0), head, end)
            source = x + (offset + (at + head * step) * last.x_stride)
            put(source, line.index, first_line, count, head, end)


class Planes(Protocol):
    """Words of a panel of planes, [channel][line][pixel]: bytes between lines and between planes, and the move in."""

    @property
    def line_bytes(self) -> Value: ...
    @property
    def plane_bytes(self) -> Value: ...
    @property
    def move_in(self) -> Callee[MoveIn]: ...


def fill_planes(k: Module, c: Common, p: Planes, pixel_bytes: Value, item: Item, x: Buffer, panel: Buffer,
                first: Value, channels: Value, vector_bytes: int, planes: Value | None = None) -> None:  # fmt: skip
    """Fill a panel of planes with channels from ``first`` on; fewer ``planes`` if words hold several channels."""
    planes = channels if planes is None else planes
    pixel_step = c.step * axis_words(c, c.axes - 1).x_stride
    words_of_4 = vector("i32", vector_bytes // 4)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + (line * p.line_bytes + first_line * pixel_bytes)
        with k.when((head > 0) | (end < count)), k.loop(0, c.residues) as residue:
            place = target + k.word(c.residue_places, residue.index)
            low, high, all_ = ((n + (c.residues - 1 - residue.index)) // c.residues for n in (head, end, count))
            for first_, end_ in ((k.constant(INT, 0), low), (high, all_)):
                words_ = ((end_ - first_) * pixel_bytes + 3) >> 2  # half a word more is written again
                with k.when(words_ > 0):
                    zero_rows(k, place + first_ * pixel_bytes, p.plane_bytes, planes, words_, words_of_4)
        with k.when((end > head) & (c.residues > 1)):
            k.call(c.move_apart, MoveApart(
                source, pixel_step, c.x_c, target, pixel_bytes, p.plane_bytes, end - head,
                channels, c.zero_point, c.residue_places, head,
            ))  # fmt: skip
        with k.when((end > head) & c.residues.equals(1)):
            k.call(p.move_in, MoveIn(
                source, pixel_step, c.x_c, target + head * pixel_bytes, pixel_bytes,
                p.plane_bytes, end - head, channels, c.zero_point,
            ))  # fmt: skip

    with k.when(c.row_run_count > 0):
        _fill_rows(k, c, p, pixel_bytes, item, x, panel, first, channels, words_of_4)
    with k.when(c.row_run_count.equals(0)):
        fill(k, c, item, x, first, put)


def _fill_rows(k: Module, c: Common, p: Planes, pixel_bytes: Value, item: Item, x: Buffer, panel: Buffer, first: Value,
               channels: Value, words_of_4: Type) -> None:  # fmt: skip
    """Fill a panel of planes with short lines: with zeros, then with all lines along the last axis but one at once."""
    second, last = c.axes - 2, axis_words(c, c.axes - 1)
    axis = axis_words(c, second)
    start = c.x_base + item.n * c.x_n + item.g * c.x_g + first * c.x_c
    zero_rows(k, panel, p.plane_bytes, channels, (c.line_count * p.line_bytes + 3) >> 2, words_of_4)
    with k.loop(0, c.line_count // k.maximum(axis.lines, 1)) as outer:
        offset, inside = line_place(k, c, item, outer.index, start, inner=2)
        with k.when(inside.equals(1)), k.loop(0, c.row_run_count) as number, k.loop(0, c.run_count) as part:
            lines, run = c.row_runs.at(number.index), c.runs.at(part.index)
            line, pixel = item.origin(second) + lines.position, item.origin(c.axes - 1) + run.position
            low, high = positions_within(k, line, axis.stride, axis.inp, lines.count)
            head, end = positions_within(k, pixel, c.step, last.inp, run.count)
            source = offset + (line + low * axis.stride) * axis.x_stride + (pixel + head * c.step) * last.x_stride
            place = outer.index * axis.lines + lines.first + low
            with k.when((high > low) & (end > head)):
                k.call(c.rows_in, RowsIn(
                    x + source, c.step * last.x_stride, c.x_c,
                    panel + (place * p.line_bytes + (run.first + head) * pixel_bytes), pixel_bytes, p.plane_bytes,
                    end - head, channels, c.zero_point, high - low, axis.stride * axis.x_stride, p.line_bytes,
                ))  # fmt: skip


def box_rows(k: Module, p: Common, item: Item, inner: Value | int = 1) -> Value:
    """Rows of the box's outputs: along the last axis, or the ``inner`` last ones together."""
    with k.loop(inner, p.axes, carry=[k.constant(INT, 1)]) as back:
        back.next(back.values[0] * item.extent(p.axes - 1 - back.index))
    rows: Value = back.results[0]
    return rows


def row_list(k: Module, bands: Buffer, item: Item, row: Value, axes: Value) -> Value:
    """Which list of entries a row of the box has, one of ``axes`` outer axes: the sum of what ``bands_table`` says."""
    with k.loop(0, axes, carry=[row, k.constant(INT, 0)]) as back:
        q, number = back.values
        axis = axes - 1 - back.index
        o = item.first(axis) + q % item.extent(axis)
        of_axis = k.word(bands, k.word(bands, axis) + o)
        back.next(q // item.extent(axis), number + of_axis)
    found: Value = back.results[1]
    return found


def row_entries(k: Module, p: Common, rows: RowLists, item: Item, row: Value, inner: int = 1) -> tuple[Buffer, Value]:
    """The entries of a row of the axes but some inner ones and their number, by the words of ``boxes.row_lists``."""
    number = row_list(k, rows.bands, item, row, p.axes - inner)
    of_row = rows.lists.at(number)
    return rows.entries + of_row.first * 8, of_row.count


def row_source(k: Module, p: Common, item: Item, row: Value) -> Value:
    """Offset in the input of what the first taps of a row of the box meet, which may lie in the padding."""
    last = p.axes - 1
    start = p.x_base + item.n * p.x_n + item.g * p.x_g + item.origin(last) * axis_words(p, last).x_stride
    with k.loop(1, p.axes, carry=[row, start]) as back:
        q, offset = back.values
        axis = last - back.index
        record, extent = axis_words(p, axis), item.extent(axis)
        back.next(q // extent, offset + (item.origin(axis) + q % extent * record.stride) * record.x_stride)
    found: Value = back.results[1]
    return found


def ahead_place(k: Module, p: Common, ahead: Ahead, source: Buffer, call: Value, calls: Value) -> Buffer:
    """Where one of some calls for a box asks for inputs of the next, by ``boxes.ahead_words``.

    Together they ask for all of them, from ``source``, the box's own first input, on.
    """
    size = k.maximum(ahead.size, 1)
    at = call * ((size * ahead.planes // calls + 63) >> 6 << 6)
    return source + (ahead.step + at // size * p.x_c + at % size)


def row_place(k: Module, p: Common, item: Item, row: Value) -> tuple[Value, Value, Value]:
    """Panel line, result offset and residual offset (bytes, without channel) of a row of the box."""
    last = axis_words(p, p.axes - 1)
    first = item.first(p.axes - 1)
    y0 = p.y_base + item.n * p.y_n + item.g * p.y_g + first * last.y_stride
    r0 = p.r_base + item.n * p.r_n + item.g * p.r_g + first * last.r_stride
    with k.loop(1, p.axes, carry=[row, k.constant(INT, 0), y0, r0]) as back:
        q, line, y, r = back.values
        axis = p.axes - 1 - back.index
        record = axis_words(p, axis)
        rest, b = _split(k, q, item.extent(axis), axis)
        o = item.first(axis) + b
        back.next(rest, line + b * record.pitch, y + o * record.y_stride, r + o * record.r_stride)
    _, line, y, r = back.results
    return line, y, r
