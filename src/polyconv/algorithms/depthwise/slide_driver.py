"""The driver of a sliding window: rows of outputs of an item, each with a list of its taps.

Lanes are channels, whose rows have one list, or pixels, where strips as wide as a vector that lie inside share one.
Its words are made in ``slide``.
"""

from __future__ import annotations

from polyconv.algorithms.depthwise.parts import near_equal_parts
from polyconv.algorithms.depthwise.taps import Place, TapWords, row_place, write_list
from polyconv.kernels.depthwise import Slide, SlideSettings
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Functions, Link, Memory, Record, Word
from polyconv.lowering.panel import Common, Driver, Item, axis_words, decode

__all__ = ["AheadWords", "SlideWords", "driver", "tiles_of_row"]

_LINE = 64


class AheadWords(Record):
    """Where what follows an item begins in input and result, and how many bytes of it a strip asks for."""

    x_far: Word
    x_plane: Word
    x_asked: Word
    y_far: Word
    y_asked: Word


class SlideWords(Record):
    """The driver's words.

    ``tiles`` stand by kind (masked or not, then those at an edge), then by their outputs.
    """

    common: Common
    taps: TapWords
    channels: Word
    chunk_channels: Word
    lanes: Word
    repeats: Word
    masked: Word
    lane_reach: Word
    reach: Word
    phases: Word
    most: Word
    weights: Memory
    w_shared: Word
    w_vector: Word
    tiles: Functions[Slide]
    settings: Link[SlideSettings]
    ahead: AheadWords


def driver(k: Module, name: str, pixels: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; lanes are channels or ``pixels``."""
    with k.function(name, Driver) as given:
        p = SlideWords.read(k, given.words)
        item = decode(k, p.common, given.item, given.workspace)
        entries = given.workspace + p.taps.place
        with k.loop(0, p.taps.slid, carry=[k.constant(INT, 1)]) as axis:
            axis.next(axis.values[0] * item.extent(axis.index))
        with k.loop(0, axis.results[0]) as row:
            place = row_place(k, p.common, p.taps.slid, item, given.frame, row.index, item.g)
            (_strips if pixels else _channels)(k, p, item, entries, row.index, place)


def _channels_of(k: Module, p: SlideWords, item: Item) -> tuple[Value, Value]:
    """First channel of an item, and how many it has."""
    first = item.g * p.chunk_channels
    return first, k.minimum(p.chunk_channels, p.channels - first)


def _moved(place: Place, x: Value, y: Value, r: Value) -> Place:
    return place[0] + x, place[1] + y, place[2] + r


def _channels(k: Module, p: SlideWords, item: Item, entries: Buffer, row: Value, place: Place) -> None:
    """A row of outputs: whole vectors of channels, then part of one."""
    first, channels = _channels_of(k, p, item)
    whole = channels - channels % p.lanes
    write_list(k, p.common, p.taps, item, entries, row)
    rest = channels - whole
    parts = (k.constant(INT, 0), whole, p.lanes, p.masked), (whole, rest, rest, k.constant(INT, 1))
    for skipped, there, used, masked in parts:
        with k.when(there > 0):
            c = p.common
            at = _moved(place, skipped // p.repeats * c.x_c, skipped * c.y_c, skipped * c.r_c)
            tiles_of_row(k, p, item, entries, at, first + skipped, there, used, masked)


_WHOLE = 56
"""Place in the list's header of a word that says whether it is that of strips inside; kinds need fewer words."""


def _strips(k: Module, p: SlideWords, item: Item, entries: Buffer, row: Value, place: Place) -> None:
    """A row of outputs, strip by strip: those whose lanes all read the input for every tap share a list."""
    c = p.common
    last = axis_words(c, c.axes - 1)
    first, channels = _channels_of(k, p, item)
    width, origin = item.extent(c.axes - 1), item.origin(c.axes - 1)
    k.store(k.constant(INT, 0), entries + _WHOLE, 8)
    with k.loop(0, width, p.lanes) as strip:
        column, used = origin + strip.index * last.stride, width - strip.index
        end = column + ((p.lanes - 1) * last.stride + p.lane_reach)
        masked = k.select((column >= 0) & (end < last.inp) & (used >= p.lanes), k.constant(INT, 0), 1)
        with k.when(k.word(entries + _WHOLE).equals(0) | masked.equals(1)):
            write_list(k, c, p.taps, item, entries, row, column)
            k.store(1 - masked, entries + _WHOLE, 8)
        number, ahead = strip.index // p.lanes, p.ahead
        far = ahead.x_far + item.origin(k.maximum(p.taps.slid - 1, 0)) * ahead.x_plane
        _ask(k, place[0] + far + number * ahead.x_asked, ahead.x_asked)
        _ask(k, place[1] + ahead.y_far + number * ahead.y_asked, ahead.y_asked, writing=True)
        o = item.first(c.axes - 1) + strip.index
        at = _moved(place, column * last.x_stride, o * last.y_stride, o * last.r_stride)
        tiles_of_row(k, p, item, entries, at, first, channels, used, masked)


def _ask(k: Module, place: Buffer, size: Value, *, writing: bool = False) -> None:
    with k.loop(0, size, _LINE) as line:
        k.prefetch(place + line.index, writing=writing)


def tiles_of_row(k: Module, p: SlideWords, item: Item, entries: Buffer, place: Place, channel: Value, channels: Value,
                 used: Value, masked: Value) -> None:  # fmt: skip
    """All outputs of a row along the sliding axis, every ``phases``-th in a tile."""
    slid = axis_words(p.common, p.taps.slid)
    x, y, r = place
    weights = p.weights + channel // p.w_shared * p.w_vector
    with near_equal_parts(k, item.extent(p.taps.slid), p.phases, p.most) as (o, rows):
        start = item.origin(p.taps.slid) + o * slid.stride
        inside = (start >= 0) & (start + ((rows - 1) * p.phases * slid.stride + p.reach) < slid.inp)
        kind = masked + k.select(inside, 0, 2)
        k.call(p.tiles.at(kind * p.most + rows - 1), Slide(
            p.settings, x + o * slid.stride * slid.x_stride, entries, weights, y + o * slid.y_stride,
            r + o * slid.r_stride, channel, channels, used, start,
        ))  # fmt: skip
