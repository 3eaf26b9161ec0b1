"""Loops that every blocked algorithm shares: which box an item is, and filling its zero-padded panel.

Everything that shapes a problem arrives in tables of 64-bit words, so this code is the same for any
rank, extent, stride, dilation, padding, group and layout; only the moves it calls know element types.
It must know nothing of what the panel is used for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.signature import Int, Signature

__all__ = [
    "AXIS", "COMMON", "Driver", "Item", "Words", "ahead_place", "box_rows", "decode", "fill", "line_place",
    "row_entries", "row_list", "row_place", "row_source",
]  # fmt: skip

# One record per axis of the tensor, outermost first; the last axis has one too.
AXIS = (
    "inp",
    "x_stride",
    "block",
    "out",
    "stride",
    "pad",
    "y_stride",
    "r_stride",
    "boxes",
    "lines",
    "positions",
    "pitch",
)

# Words that decode() and fill() read; pointers take two words, address and bytes.
COMMON = (
    "axes", "*axis", "*positions", "boxes", "splits", "groups", "line_count", "run_count", "*runs",
    "x_base", "x_n", "x_g", "x_c", "y_base", "y_n", "y_g", "y_c", "r_base", "r_n", "r_g", "r_c",
    "step", "zero_point", "panel", "scratch", "residues", "*residue_places", "*move_apart",
    "planes", "*plane_places", "*move_planes",
)  # fmt: skip


class Driver(Signature):
    """An item of a step: the call's arrays, the step's words, which item it is, and the thread's workspace."""

    frame: Buffer
    words: Buffer
    item: Int
    workspace: Buffer


class Words:
    """Named 64-bit words in memory; a name with ``*`` is a buffer."""

    def __init__(self, k: Module, memory: Buffer, names: Sequence[str]) -> None:
        self.k, self.memory = k, memory
        self.index: dict[str, int] = {}
        place = 0
        for name in names:
            self.index[name.lstrip("*")] = place
            place += 2 if name.startswith("*") else 1

    def __getattr__(self, name: str) -> Value:
        return self.k.word(self.memory, self.index[name])

    def buffer(self, name: str) -> Buffer:
        """Buffer of a name."""
        return self.k.buffer(self.memory, self.index[name])

    def at(self, place: Value | int, count: int) -> Words:
        """The same names, ``place`` records of ``count`` words further on."""
        moved = Words(self.k, self.memory + place * (8 * count), ())
        moved.index = self.index
        return moved


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


def axis_record(k: Module, p: Words, axis: Value | int) -> Words:
    """Record of an axis."""
    return Words(k, p.buffer("axis"), AXIS).at(axis, len(AXIS))


def decode(k: Module, p: Words, item: Value, header: Buffer) -> Item:
    """Split an item number into batch, group, split and box, and write the box into the header."""
    box, rest = item % p.boxes, item // p.boxes
    split, rest = rest % p.splits, rest // p.splits
    with k.loop(0, p.axes, carry=[box]) as back:
        axis = p.axes - 1 - back.index
        record = axis_record(k, p, axis)
        (q,) = back.values
        first = (q % record.boxes) * record.block
        extent = k.minimum(record.block, record.out - first)
        place = header + axis * 24
        k.store(first * record.stride - record.pad, place, 8)
        k.store(extent, place + 8, 8)
        k.store(first, place + 16, 8)
        back.next(q // record.boxes)
    return Item(k, header, rest // p.groups, rest % p.groups, split)


def _split(k: Module, number: Value, count: Value, axis: Value) -> tuple[Value, Value]:
    """What an axis leaves of a combined number to those outside it, and its own part: the outermost takes all."""
    with k.choice(axis > 0, [k.constant(INT, 0), number]) as divided:
        divided.next(number // count, number % count)
    rest, own = divided.results
    return rest, own


def line_place(k: Module, p: Words, item: Item, line: Value, start: Value, inner: int = 1) -> tuple[Value, Value]:
    """Offset of a combined line of the axes but some inner ones, from ``start`` on; 1 if it lies inside, else 0."""
    with k.loop(inner, p.axes, carry=[line, start, k.constant(INT, 1)]) as back:
        q, offset, inside = back.values
        axis = p.axes - 1 - back.index
        record = axis_record(k, p, axis)
        rest, own = _split(k, q, record.lines, axis)
        position = item.origin(axis) + k.word(p.buffer("positions"), record.positions + own)
        within = k.cast("zext", position.below(record.inp), INT)
        back.next(rest, offset + position * record.x_stride, inside & within)
    _, offset, inside = back.results
    return offset, inside


def fill(k: Module, p: Words, item: Item, x: Buffer, channel: Value, put: Callable[..., None]) -> None:
    """Visit every run of every line of a box.

    ``put(source, line, first_line, count, head, end)`` fills ``count`` pixels from line ``first_line`` of the
    last axis in the combined line ``line`` of the outer axes: those in head..end from memory, where pixel
    ``head`` lies at ``source`` (channel ``channel`` of the item's group), the others with zeros.
    """
    start = p.x_base + item.n * p.x_n + item.g * p.x_g + channel * p.x_c
    last = axis_record(k, p, p.axes - 1)
    with k.loop(0, p.line_count) as line:
        offset, inside = line_place(k, p, item, line.index, start)
        with k.loop(0, p.run_count) as run:
            table = p.buffer("runs") + run.index * 24
            first_line, count = k.word(table), k.word(table, 1)
            at, step = item.origin(p.axes - 1) + k.word(table, 2), p.step
            before, until = 0 - at, last.inp - at
            with k.choice(step > 1, [before, until]) as strided:
                strided.next((before + (step - 1)) / step, (until + (step - 1)) / step)
            before, until = strided.results
            head = k.minimum(k.maximum(before, 0), count)
            end = k.maximum(k.minimum(until, count), head)
            end = k.select(inside.equals(0), head, end)
            source = x + (offset + (at + head * step) * last.x_stride)
            put(source, line.index, first_line, count, head, end)


def box_rows(k: Module, p: Words, item: Item, inner: Value | int = 1) -> Value:
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


_LIST = ("first", "count")


def row_entries(k: Module, p: Words, item: Item, row: Value, inner: int = 1) -> tuple[Buffer, Value]:
    """The entries of a row of the axes but some inner ones and their number, by the words of ``program.row_lists``."""
    number = row_list(k, p.buffer("bands"), item, row, p.axes - inner)
    of_row = Words(k, p.buffer("lists"), _LIST).at(number, len(_LIST))
    return p.buffer("entries") + of_row.first * 8, of_row.count


def row_source(k: Module, p: Words, item: Item, row: Value) -> Value:
    """Offset in the input of what the first taps of a row of the box meet, which may lie in the padding."""
    last = p.axes - 1
    start = p.x_base + item.n * p.x_n + item.g * p.x_g + item.origin(last) * axis_record(k, p, last).x_stride
    with k.loop(1, p.axes, carry=[row, start]) as back:
        q, offset = back.values
        axis = last - back.index
        record, extent = axis_record(k, p, axis), item.extent(axis)
        back.next(q // extent, offset + (item.origin(axis) + q % extent * record.stride) * record.x_stride)
    found: Value = back.results[1]
    return found


def ahead_place(k: Module, p: Words, source: Buffer, call: Value, calls: Value) -> Buffer:
    """Where one of some calls for a box asks for inputs of the next, by ``program.ahead_words``.

    Together they ask for all of them, from ``source``, the box's own first input, on.
    """
    size = k.maximum(p.ahead_bytes, 1)
    at = call * ((size * p.ahead_planes // calls + 63) >> 6 << 6)
    return source + (p.ahead + at // size * p.x_c + at % size)


def row_place(k: Module, p: Words, item: Item, row: Value) -> tuple[Value, Value, Value]:
    """Panel line, result offset and residual offset (bytes, without channel) of a row of the box."""
    last = axis_record(k, p, p.axes - 1)
    first = item.first(p.axes - 1)
    y0 = p.y_base + item.n * p.y_n + item.g * p.y_g + first * last.y_stride
    r0 = p.r_base + item.n * p.r_n + item.g * p.r_g + first * last.r_stride
    with k.loop(1, p.axes, carry=[row, k.constant(INT, 0), y0, r0]) as back:
        q, line, y, r = back.values
        axis = p.axes - 1 - back.index
        record = axis_record(k, p, axis)
        rest, b = _split(k, q, item.extent(axis), axis)
        o = item.first(axis) + b
        back.next(rest, line + b * record.pitch, y + o * record.y_stride, r + o * record.r_stride)
    _, line, y, r = back.results
    return line, y, r
