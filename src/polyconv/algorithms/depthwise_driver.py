"""The driver of the depthwise algorithm: rows of outputs of an item, whose taps are a list written once a row or strip.

Its words are made in ``depthwise``; how a sweep is cut is ``depthwise_plan``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyconv.algorithms.panel import COMMON, Driver, Item, Words, axis_record, decode
from polyconv.kernels.depthwise import ENTRY, LIST_HEADER, Slide
from polyconv.kernels.language import INT, Buffer, Module, Value

__all__ = [
    "ENTRY_BYTES", "WORDS", "driver", "near_equal_parts", "place_of", "tiles_of_row", "write_list",
]  # fmt: skip

_LINE = 64

ENTRY_BYTES = 8 * len(ENTRY)

WORDS = (
    *COMMON,
    "slid", "channels", "chunk_channels", "lanes", "repeats", "masked", "taps_outer", "*tap_offsets", "lane_step",
    "lane_reach", "lane_span", "lane_dilation", "reach", "kind_count", "*kinds", "dilation", "phases", "most", "list",
    "*weights", "w_shared", "w_vector", "w_tap", "*tiles", "*settings", "x_far", "x_turn", "x_asked", "y_far",
    "y_asked", "held",
)  # fmt: skip
"""The driver's words; along the lanes an entry counts in steps of ``lane_step`` elements, at most ``lane_span``."""

KIND = ("parts", "taps", "first", "groups", "across", "first_across", "weights")
"""A kind of entry: how many rows of taps of which size, from which tap on, along the sliding axis and across the lanes;
where its weights begin, in taps."""


def driver(k: Module, name: str, pixels: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; lanes are channels or ``pixels``."""
    with k.function(name, Driver) as given:
        frame, table, number, workspace = given.frame, given.words, given.item, given.workspace
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        entries = workspace + p.list
        with k.loop(0, p.slid, carry=[k.constant(INT, 1)]) as axis:
            axis.next(axis.values[0] * item.extent(axis.index))
        with k.loop(0, axis.results[0]) as row:
            (_strips if pixels else _channels)(k, p, item, entries, row.index, place_of(k, p, item, frame, row.index))


# Word of the list's header that says whether it holds all taps; the first ones count entries by kind.
_ALL = 56

Place = tuple[Buffer, Buffer, Buffer]


def _moved(place: Place, x: Value, y: Value, r: Value) -> Place:
    return place[0] + x, place[1] + y, place[2] + r


def _channels(k: Module, p: Words, item: Item, entries: Buffer, row: Value, place: Place) -> None:
    """A row of outputs: whole vectors of channels, then part of one."""
    first = item.g * p.chunk_channels
    channels = k.minimum(p.chunk_channels, p.channels - first)
    whole = channels - channels % p.lanes
    write_list(k, p, item, entries, row, None)
    rest = channels - whole
    parts = (k.constant(INT, 0), whole, p.lanes, p.masked), (whole, rest, rest, k.constant(INT, 1))
    for skipped, there, used, masked in parts:
        with k.when(there > 0):
            at = _moved(place, skipped // p.repeats * p.x_c, skipped * p.y_c, skipped * p.r_c)
            tiles_of_row(k, p, item, entries, at, first + skipped, there, used, masked)


def _strips(k: Module, p: Words, item: Item, entries: Buffer, row: Value, place: Place) -> None:
    """Strips as wide as a vector: those whose lanes all read the input for every tap share a list."""
    last = axis_record(k, p, p.axes - 1)
    first = item.g * p.chunk_channels
    channels = k.minimum(p.chunk_channels, p.channels - first)
    width, reach = item.extent(p.axes - 1), p.lane_reach
    k.store(k.constant(INT, 0), entries + _ALL, 8)
    with k.loop(0, width, p.lanes) as strip:
        column, used = item.origin(p.axes - 1) + strip.index * last.stride, width - strip.index
        end = column + ((p.lanes - 1) * last.stride + reach)
        masked = k.select((column >= 0) & (end < last.inp) & (used >= p.lanes), k.constant(INT, 0), 1)
        with k.when(k.word(entries + _ALL).equals(0) | masked.equals(1)):
            write_list(k, p, item, entries, row, column)
            k.store(1 - masked, entries + _ALL, 8)
        number = strip.index // p.lanes
        far = p.x_far + item.origin(k.maximum(p.slid - 1, 0)) * p.x_turn
        _ask(k, place[0] + far + number * p.x_asked, p.x_asked)
        _ask(k, place[1] + p.y_far + number * p.y_asked, p.y_asked, writing=True)
        o = item.first(p.axes - 1) + strip.index
        at = _moved(place, column * last.x_stride, o * last.y_stride, o * last.r_stride)
        tiles_of_row(k, p, item, entries, at, first, channels, used, masked)


def place_of(k: Module, p: Words, item: Item, frame: Buffer, row: Value) -> Place:
    """Input, result and residual of a row of the box, for the box's first output along the sliding axis.

    The input is at its first position before tap offsets, without the axes that entries know.
    """
    slid = axis_record(k, p, p.slid)
    o = item.first(p.slid)
    y = p.y_base + item.n * p.y_n + item.g * p.y_g + o * slid.y_stride
    r = p.r_base + item.n * p.r_n + item.g * p.r_g + o * slid.r_stride
    with k.loop(0, p.slid, carry=[row, y, r]) as back:
        q, y, r = back.values
        axis = p.slid - 1 - back.index
        record, extent = axis_record(k, p, axis), item.extent(axis)
        o = item.first(axis) + q % extent
        back.next(q // extent, y + o * record.y_stride, r + o * record.r_stride)
    _, y, r = back.results
    x = p.x_base + item.n * p.x_n + item.g * p.x_g + item.origin(p.slid) * slid.x_stride
    return k.buffer(frame, 0) + x, k.buffer(frame, 2) + y, k.buffer(frame, 4) + r


def write_list(k: Module, p: Words, item: Item, entries: Buffer, row: Value, column: Value | None) -> None:
    """Write the list of a row: the taps whose lines exist and, for a strip from ``column`` on, that have lanes."""
    slid, last = axis_record(k, p, p.slid), axis_record(k, p, p.axes - 1)
    zero = k.constant(INT, 0)
    with k.loop(0, p.kind_count, carry=[zero]) as number:
        kind = Words(k, p.buffer("kinds"), KIND).at(number.index, len(KIND))
        (before,) = number.values
        with k.loop(0, p.taps_outer, carry=[before]) as tap:
            with k.loop(0, p.slid, carry=[row, zero, k.constant(INT, 1)]) as back:
                q, offset, inside = back.values
                axis = p.slid - 1 - back.index
                record, extent = axis_record(k, p, axis), item.extent(axis)
                shift = k.word(p.buffer("tap_offsets"), tap.index * p.slid + axis)
                position = item.origin(axis) + q % extent * record.stride + shift
                within = k.cast("zext", position.below(record.inp), INT)
                back.next(q // extent, offset + position * record.x_stride, inside & within)
            _, offset, inside = back.results
            groups, size = kind.groups, kind.taps * kind.across
            weights = kind.weights + tap.index * kind.parts * groups * size
            with k.loop(0, kind.parts * groups * inside, carry=tap.values) as each:
                (count,) = each.values
                shift = (kind.first + each.index // groups * kind.taps) * p.dilation
                across = (kind.first_across + each.index % groups * kind.across) * p.lane_dilation
                place = entries + count * ENTRY_BYTES + LIST_HEADER
                at = offset + shift * slid.x_stride
                words_of_entry = [at, (weights + each.index * size) * p.w_tap, shift]
                kept = k.constant(INT, 1)
                if column is not None:
                    words_of_entry[0] = at + across * last.x_stride
                    first, end = column + across, last.inp - column - across
                    step = p.lane_step
                    first = k.select(first < 0, (step - 1 - first) // step, 0)
                    end = k.select(end > 0, (end + step - 1) // step, 0)
                    words_of_entry += [first, end]
                    kept = k.cast("zext", (first < end) & (first < p.lane_span + kind.across), INT)
                for index, word in enumerate(words_of_entry):
                    k.store(word, place + 8 * index, 8)
                each.next(count + kept)
            tap.next(each.results[0])
        k.store(tap.results[0] - before, entries + number.index * 8, 8)
        number.next(tap.results[0])


def _ask(k: Module, place: Buffer, size: Value, *, writing: bool = False) -> None:
    with k.loop(0, size, _LINE) as line:
        k.prefetch(place + line.index, writing=writing)


def tiles_of_row(k: Module, p: Words, item: Item, entries: Buffer, place: Place, channel: Value, channels: Value,
           used: Value, masked: Value) -> None:  # fmt: skip
    """All outputs along the sliding axis, every ``phases``-th in a tile."""
    slid = axis_record(k, p, p.slid)
    x, y, r = place
    weights = p.buffer("weights") + channel // p.w_shared * p.w_vector
    with near_equal_parts(k, item.extent(p.slid), p.phases, p.most) as (o, rows):
        start = item.origin(p.slid) + o * slid.stride
        inside = (p.held > 0) | (start >= 0) & (start + ((rows - 1) * p.phases * slid.stride + p.reach) < slid.inp)
        kind = masked + k.select(inside, 0, 2)
        k.call(k.buffer(p.buffer("tiles") + (kind * p.most + rows - 1) * 16), Slide(
            p.buffer("settings"),
            x + o * slid.stride * slid.x_stride, entries, weights, y + o * slid.y_stride,
            r + o * slid.r_stride, channel, channels, used, start,
        ))  # fmt: skip


@contextmanager
def near_equal_parts(
    k: Module, extent: Value, phases: Value, most: Value | int
) -> Iterator[tuple[Value, Value]]:
    """Visit the fewest near-equal parts, each at most ``most``, of every phase of an extent: first and number."""
    with k.loop(0, k.minimum(phases, extent)) as phase:
        outputs = (extent - phase.index + phases - 1) // phases
        parts = (outputs + (most - 1)) // most
        size, larger = outputs // parts, outputs % parts
        with k.loop(0, parts, carry=[k.constant(INT, 0)]) as part:
            (done,) = part.values
            this = size + k.cast("zext", part.index < larger, INT)
            yield phase.index + done * phases, this
            part.next(done + this)
