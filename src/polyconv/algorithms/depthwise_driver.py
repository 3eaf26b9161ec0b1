"""The driver of the depthwise algorithm: rows of outputs of an item, whose taps are a list written once a row or strip.

Its words are made in ``depthwise``; how a sweep is cut is ``depthwise_plan``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyconv.algorithms.panel import Common, Driver, Frame, Item, axis_words, decode
from polyconv.kernels.depthwise import LIST_HEADER, Entry, Slide, SlideSettings
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Functions, Link, Memory, Record, Table, Word, word_count

__all__ = [
    "ENTRY_BYTES", "Ask", "DepthwiseWords", "KindWords", "driver", "near_equal_parts", "place_of", "tiles_of_row",
    "write_list",
]  # fmt: skip

_LINE = 64

ENTRY_BYTES = 8 * word_count(Entry)


class KindWords(Record):
    """A kind of entry: how many rows of taps of which size, from which tap on, along the sliding axis.

    The same across the lanes; and where its weights begin, in taps.
    """

    parts: Word
    taps: Word
    first: Word
    groups: Word
    across: Word
    first_across: Word
    weights: Word


class Ask(Record):
    """Where what follows an item begins in input and result, and how many bytes of it a strip asks for."""

    x_far: Word
    x_turn: Word
    x_asked: Word
    y_far: Word
    y_asked: Word


class DepthwiseWords(Record):
    """The driver's words: how the window slides, taps of the other axes, kinds of entries, packed weights, tiles.

    Along the lanes an entry counts in steps of ``lane_step`` elements, at most ``lane_span``.  ``tiles`` stand by kind
    (masked or not, then those at an edge), then by their outputs.
    """

    common: Common
    slid: Word
    channels: Word
    chunk_channels: Word
    lanes: Word
    repeats: Word
    masked: Word
    taps_outer: Word
    tap_offsets: Memory
    lane_step: Word
    lane_reach: Word
    lane_span: Word
    lane_dilation: Word
    reach: Word
    kind_count: Word
    kinds: Table[KindWords]
    dilation: Word
    phases: Word
    most: Word
    list_place: Word
    weights: Memory
    w_shared: Word
    w_vector: Word
    w_tap: Word
    tiles: Functions[Slide]
    settings: Link[SlideSettings]
    ask: Ask
    held: Word


def driver(k: Module, name: str, pixels: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; lanes are channels or ``pixels``."""
    with k.function(name, Driver) as given:
        p = DepthwiseWords.read(k, given.words)
        item = decode(k, p.common, given.item, given.workspace)
        entries = given.workspace + p.list_place
        with k.loop(0, p.slid, carry=[k.constant(INT, 1)]) as axis:
            axis.next(axis.values[0] * item.extent(axis.index))
        with k.loop(0, axis.results[0]) as row:
            place = place_of(k, p, item, given.frame, row.index)
            (_strips if pixels else _channels)(k, p, item, entries, row.index, place)


# Word of the list's header that says whether it holds all taps; the first ones count entries by kind.
_ALL = 56

Place = tuple[Buffer, Buffer, Buffer]


def _moved(place: Place, x: Value, y: Value, r: Value) -> Place:
    return place[0] + x, place[1] + y, place[2] + r


def _channels(k: Module, p: DepthwiseWords, item: Item, entries: Buffer, row: Value, place: Place) -> None:
    """A row of outputs: whole vectors of channels, then part of one."""
    first = item.g * p.chunk_channels
    channels = k.minimum(p.chunk_channels, p.channels - first)
    whole = channels - channels % p.lanes
    write_list(k, p, item, entries, row, None)
    rest = channels - whole
    parts = (k.constant(INT, 0), whole, p.lanes, p.masked), (whole, rest, rest, k.constant(INT, 1))
    for skipped, there, used, masked in parts:
        with k.when(there > 0):
            c = p.common
            at = _moved(place, skipped // p.repeats * c.x_c, skipped * c.y_c, skipped * c.r_c)
            tiles_of_row(k, p, item, entries, at, first + skipped, there, used, masked)


def _strips(k: Module, p: DepthwiseWords, item: Item, entries: Buffer, row: Value, place: Place) -> None:
    """Strips as wide as a vector: those whose lanes all read the input for every tap share a list."""
    c = p.common
    last = axis_words(c, c.axes - 1)
    first = item.g * p.chunk_channels
    channels = k.minimum(p.chunk_channels, p.channels - first)
    width, reach = item.extent(c.axes - 1), p.lane_reach
    k.store(k.constant(INT, 0), entries + _ALL, 8)
    with k.loop(0, width, p.lanes) as strip:
        column, used = item.origin(c.axes - 1) + strip.index * last.stride, width - strip.index
        end = column + ((p.lanes - 1) * last.stride + reach)
        masked = k.select((column >= 0) & (end < last.inp) & (used >= p.lanes), k.constant(INT, 0), 1)
        with k.when(k.word(entries + _ALL).equals(0) | masked.equals(1)):
            write_list(k, p, item, entries, row, column)
            k.store(1 - masked, entries + _ALL, 8)
        number = strip.index // p.lanes
        far = p.ask.x_far + item.origin(k.maximum(p.slid - 1, 0)) * p.ask.x_turn
        _ask(k, place[0] + far + number * p.ask.x_asked, p.ask.x_asked)
        _ask(k, place[1] + p.ask.y_far + number * p.ask.y_asked, p.ask.y_asked, writing=True)
        o = item.first(c.axes - 1) + strip.index
        at = _moved(place, column * last.x_stride, o * last.y_stride, o * last.r_stride)
        tiles_of_row(k, p, item, entries, at, first, channels, used, masked)


def place_of(k: Module, p: DepthwiseWords, item: Item, frame: Frame, row: Value) -> Place:
    """Input, result and residual of a row of the box, for the box's first output along the sliding axis.

    The input is at its first position before tap offsets, without the axes that entries know.
    """
    c = p.common
    slid = axis_words(c, p.slid)
    o = item.first(p.slid)
    y = c.y_base + item.n * c.y_n + item.g * c.y_g + o * slid.y_stride
    r = c.r_base + item.n * c.r_n + item.g * c.r_g + o * slid.r_stride
    with k.loop(0, p.slid, carry=[row, y, r]) as back:
        q, y, r = back.values
        axis = p.slid - 1 - back.index
        record, extent = axis_words(c, axis), item.extent(axis)
        o = item.first(axis) + q % extent
        back.next(q // extent, y + o * record.y_stride, r + o * record.r_stride)
    _, y, r = back.results
    x = c.x_base + item.n * c.x_n + item.g * c.x_g + item.origin(p.slid) * slid.x_stride
    return frame.x + x, frame.y + y, frame.residual + r


def write_list(k: Module, p: DepthwiseWords, item: Item, entries: Buffer, row: Value, column: Value | None) -> None:
    """Write the list of a row: the taps whose lines exist and, for a strip from ``column`` on, that have lanes."""
    slid, last = axis_words(p.common, p.slid), axis_words(p.common, p.common.axes - 1)
    zero = k.constant(INT, 0)
    with k.loop(0, p.kind_count, carry=[zero]) as number:
        kind = p.kinds.at(number.index)
        (before,) = number.values
        with k.loop(0, p.taps_outer, carry=[before]) as tap:
            with k.loop(0, p.slid, carry=[row, zero, k.constant(INT, 1)]) as back:
                q, offset, inside = back.values
                axis = p.slid - 1 - back.index
                record, extent = axis_words(p.common, axis), item.extent(axis)
                shift = k.word(p.tap_offsets, tap.index * p.slid + axis)
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
                entry = [at, (weights + each.index * size) * p.w_tap, shift]
                kept = k.constant(INT, 1)
                if column is not None:
                    entry[0] = at + across * last.x_stride
                    first, end = column + across, last.inp - column - across
                    step = p.lane_step
                    first = k.select(first < 0, (step - 1 - first) // step, 0)
                    end = k.select(end > 0, (end + step - 1) // step, 0)
                    entry += [first, end]
                    kept = k.cast("zext", (first < end) & (first < p.lane_span + kind.across), INT)
                for index, word in enumerate(entry):
                    k.store(word, place + 8 * index, 8)
                each.next(count + kept)
            tap.next(each.results[0])
        k.store(tap.results[0] - before, entries + number.index * 8, 8)
        number.next(tap.results[0])


def _ask(k: Module, place: Buffer, size: Value, *, writing: bool = False) -> None:
    with k.loop(0, size, _LINE) as line:
        k.prefetch(place + line.index, writing=writing)


def tiles_of_row(k: Module, p: DepthwiseWords, item: Item, entries: Buffer, place: Place, channel: Value,
                 channels: Value, used: Value, masked: Value) -> None:  # fmt: skip
    """All outputs along the sliding axis, every ``phases``-th in a tile."""
    slid = axis_words(p.common, p.slid)
    x, y, r = place
    weights = p.weights + channel // p.w_shared * p.w_vector
    with near_equal_parts(k, item.extent(p.slid), p.phases, p.most) as (o, rows):
        start = item.origin(p.slid) + o * slid.stride
        inside = (p.held > 0) | (start >= 0) & (start + ((rows - 1) * p.phases * slid.stride + p.reach) < slid.inp)
        kind = masked + k.select(inside, 0, 2)
        k.call(p.tiles.at(kind * p.most + rows - 1), Slide(
            p.settings, x + o * slid.stride * slid.x_stride, entries, weights, y + o * slid.y_stride,
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
