"""Depthwise tiles over planes: rows of outputs by all vectors of pixels of a map, channel after channel.

Lanes are pixels that lie together.  A row of the input is loaded once for all rows of outputs that it feeds; every
load and store has a mask, which costs nothing, so that one piece of code serves every strip of a map.  With a stride
of two along the lanes even and odd elements are parted in the order that costs least, and a tap one output further
on is a sum of its own that moves by one lane once it is complete: strips go from right to left, so that each finds
the lane that it lacks.  It knows neither extents nor pads nor what lies outside the two axes, which is a list of
entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.depthwise_tile import Tile, entry_at, neighbours, parted, parted_order, store_sums
from polyconv.kernels.epilogue import EpilogueTables
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.record import Bits, Memory, Record, Word, at_once, word_count
from polyconv.kernels.signature import Int, Signature

__all__ = [
    "DepthwisePlane", "FirstStrip", "LoadWords", "PlaneSettings", "RowsOfOutputs", "StripWords", "depthwise_plane",
    "loads",
]  # fmt: skip

TAPS = 3


class PlaneSettings(Record):
    """What all calls of a step share: byte strides, positions from one tap to the next (``unit``), the input's extent.

    ``x_row`` leads from one tap to the next, ``strip`` from one vector to the one on its left.  There are so many
    ``groups`` of ``strips``: a ``FirstStrip``, then for every group ``StripWords`` and all its ``LoadWords``.
    """

    x_row: Word
    y_row: Word
    r_row: Word
    x_channel: Word
    w_channel: Word
    y_channel: Word
    r_channel: Word
    r_lane: Word
    x_strip: Word
    y_strip: Word
    r_strip: Word
    unit: Word
    height: Word
    groups: Word
    strips: Memory
    tables: EpilogueTables


class LoadWords(Record):
    """A load: offset in bytes from column 0, mask, lanes first..end that it has."""

    offset: Word
    bits: Bits
    first: Word
    end: Word


class FirstStrip(Record):
    """Whether the rightmost strip lacks a lane, and the load of it."""

    lacks: Word
    load: LoadWords


class StripWords(Record):
    """Strips side by side with equal masks.

    Their number, offsets of the rightmost in bytes, mask and lanes of its outputs.
    """

    count: Word
    y: Word
    r: Word
    bits: Bits
    used: Word


class RowsOfOutputs(Signature):
    """A tile's rows of outputs of ``channels`` from one on.

    The input is that of column 0 in the first row, whose position is ``row``.
    """

    settings: PlaneSettings
    x: Buffer
    entries: Buffer
    weights: Buffer
    y: Buffer
    residual: Buffer
    channel: Int
    channels: Int
    row: Int


@dataclass(frozen=True, slots=True)
class DepthwisePlane(Tile):
    """A kind of tile, beside what all say.

    Parameters
    ----------
    stride : (int, int)
        Along rows and along the lanes.
    apart : bool
        Whether taps along the lanes are no neighbours.
    alone : bool
        Whether rows of outputs share no rows of the input, so that every tap loads its own: an entry is a row of taps
        that exists for all rows, and a load without lanes is left out.
    channels : int
        Channels of a vector, 1 or 2: narrow strips leave half of the lanes to the next channel.  Two of them load
        every tap as if it lay apart.
    ahead : str
        Ask for as much memory as the tile has, from the rows below on, all ``lines`` in order or, where rows of the
        tile are no neighbours, its ``rows``: masked loads train no prefetcher.  Empty: do not.
    """

    stride: tuple[int, int]
    apart: bool
    alone: bool
    channels: int
    ahead: str


def loads(along: int, apart: bool, lanes: int) -> list[tuple[int, int]]:
    """Loads of a strip in a row of the input: at which tap or, of neighbours, at which column, and how many lanes.

    What one load lacks for neighbours further on comes from a short one: loads that cross a line are the bound.
    """
    if apart:
        return [(tap, lanes) for tap in range(TAPS)]
    return [(0, lanes), (lanes, lanes if along == 2 else TAPS - 1)]


def depthwise_plane(k: Module, name: str, spec: DepthwisePlane, lanes: int, rows: int) -> None:
    """Add the tile of ``rows`` rows of outputs; rows of the input that do not exist are left out."""
    kind = vector(spec.element, lanes)
    memory = spec.in_memory(lanes)
    size = kind.element_bytes
    down, along = spec.stride
    halved = along == 2
    of_channel = lanes // spec.channels
    shifted = not halved and not spec.apart
    element = f"i{8 * memory.element_bytes}" if shifted else memory.element
    part, whole = vector(spec.element, of_channel), Type(element, of_channel)
    number_of_loads = len(loads(along, spec.apart, of_channel))
    few = Type(element, 4) if shifted else whole
    with k.function(name, RowsOfOutputs) as given:
        s, entries = at_once(given.settings), given.entries
        number_of_entries = k.word(entries)
        zero = k.constant(INT, 0)
        nothing = [k.constant(kind, 0)] * rows
        # what is asked for in a strip: lines of input and result, from one to the next
        asks, lines = (rows * down * along, rows), 2 * (spec.ahead == "lines")
        sizes = k.constant(INT, memory.bytes), k.constant(INT, lanes * DTYPES[spec.target].itemsize)
        ask_steps = sizes if lines else (s.x_row, s.y_row)
        steps: dict[str, list[Value]] = {}  # of the channels of a vector, from the first

        def span(load: LoadWords, kind: Type) -> Span:
            offset, first, end = load.offset, load.first, load.end
            return kind, offset, Mask(_bits(k, load.bits, kind.lanes), end, first)

        def joined(parts: list[Value]) -> Value:
            return parts[0] if len(parts) == 1 else k.shuffle(parts[0], parts[1], range(2 * parts[0].type.lanes))

        def loaded(kind: Type, place: Buffer, mask: Mask) -> Value:
            return joined([k.load_first(kind, place + step, mask) for step in steps["x"]])

        def weight(place: Buffer) -> Value:
            return joined([k.broadcast(part, place + step) for step in steps["w"]])

        def summed(x: Buffer, w: Buffer, spans: list[Span], used: list[list[int]],
                   asked: Sequence[Buffer]) -> list[list[Value]]:  # fmt: skip
            """Sums of the taps ``used``, by rows: a list of them for every chain of sums; asks from places on."""
            chains = len(used)
            with k.loop(0, number_of_entries, carry=nothing * chains) as entry:
                totals = [list(entry.values[c * rows : (c + 1) * rows]) for c in range(chains)]
                taps = entry_at(k, entries, entry.index)
                line, of_entry = k.rebase(x + taps.input), w + taps.weights
                of_tap = {
                    (i, j): weight(of_entry + (i * TAPS + j) * size)
                    for i in range(TAPS)
                    for j in range(TAPS)
                    if any(j in chain for chain in used)
                }
                for i in range((rows - 1) * down + TAPS):
                    if asked and i < rows * down:
                        for vector_ in range(i * along, (i + 1) * along):
                            k.prefetch(asked[0] + ask_steps[0] * vector_)
                        if i % down == 0:
                            k.prefetch(asked[1] + ask_steps[1] * (i // down), writing=True)
                    fed = [a for a in range(rows) if 0 <= i - a * down < TAPS]
                    held = [chain[a] for chain in totals for a in fed]
                    with k.choice((given.row + s.unit * i).below(s.height), tuple(held)) as there:
                        here = [loaded(kind, line + offset, mask) for kind, offset, mask in spans]
                        if shifted:
                            here = neighbours(k, here[0], here[1], TAPS, memory)
                        here = [spec.as_factor(k, value) for value in here]
                        if halved and len(here) == 2:
                            here = [parted(k, here[0], here[1], first, first) for first in (0, 1)]
                        for c, chain in enumerate(used):
                            for j in chain:
                                value = here[j % len(here)]
                                for at, a in enumerate(fed, c * len(fed)):
                                    held[at] = k.fma(value, of_tap[i - a * down, j], held[at])
                        there.next(*held)
                    sums = iter(there.results)
                    for chain_totals in totals:
                        for a in fed:
                            chain_totals[a] = next(sums)
                    line = k.rebase(line + s.x_row)
                entry.next(*(total for chain_totals in totals for total in chain_totals))
            return [entry.results[c * rows : (c + 1) * rows] for c in range(chains)]

        def summed_alone(x: Buffer, w: Buffer, spans: list[Span]) -> list[Value]:
            """Sums of all taps, by rows, each of which takes its inputs from rows of its own."""
            with k.loop(0, number_of_entries, carry=nothing) as entry:
                totals = list(entry.values)
                taps = entry_at(k, entries, entry.index)
                line, of_entry = k.rebase(x + taps.input), w + taps.weights
                for tap, (kind_, offset, mask) in enumerate(spans):
                    with k.choice(mask.count > 0, tuple(totals)) as there:
                        of_tap, place = weight(of_entry + tap * size), k.rebase(line + offset)
                        for a in range(rows):
                            value = spec.as_factor(k, loaded(kind_, place, mask))
                            totals[a] = k.fma(value, of_tap, totals[a])
                            place = k.rebase(place + s.x_row)
                        there.next(*totals)
                    totals = there.results
                entry.next(*totals)
            return entry.results

        steps_of = {"x": s.x_channel, "w": s.w_channel, "y": s.y_channel, "r": s.r_channel}
        start = [given.x, given.weights, given.y, given.residual]
        with k.loop(0, given.channels, spec.channels, carry=start) as each:
            x, w, y, other = each.values
            each.next(*(at + step * spec.channels for at, step in zip(each.values, steps_of.values(), strict=True)))
            # a second channel that does not exist is the first one again, without results
            paired = each.index + 1 < given.channels
            for n, step in steps_of.items():
                steps[n] = [zero, k.select(paired, step, 0)][: spec.channels]
            beyond: list[Value] = []
            if halved:
                right = FirstStrip.read(k, s.strips)
                with k.choice(right.lacks.equals(1), nothing) as lacking:
                    lacking.next(*summed(x, w, [span(right.load, whole)], [[2]], [])[0])
                beyond = lacking.results
            below = [s.x_row * (rows * down), s.y_row * rows]
            asked: Sequence[Any] = [x + below[0], y + below[1]] if spec.ahead == "lines" else []
            with k.loop(0, s.groups, carry=[*asked, *beyond]) as group:
                group_words = word_count(StripWords) + number_of_loads * word_count(LoadWords)
                place = s.strips + (group.index * group_words + word_count(FirstStrip)) * 8
                of_strips, beside = StripWords.read(k, place), place + 8 * word_count(StripWords)
                kinds = [whole, *[few] * (number_of_loads - 1)]
                spans = [span(LoadWords.at(k, beside, i), kind) for i, kind in enumerate(kinds)]
                bits, used = _bits(k, of_strips.bits, of_channel), of_strips.used
                masks = [Mask(bits, used)]
                if spec.channels > 1:
                    masks.append(Mask(k.select(paired, bits, k.constant(bits.type, 0)), k.select(paired, used, 0)))
                start = [x, y + of_strips.y, other + of_strips.r]
                with k.loop(0, of_strips.count, carry=[*start, *group.values]) as strip:
                    here, to, with_ = strip.values[:3]
                    asked, lacked = strip.values[3 : 3 + lines], strip.values[3 + lines :]
                    moved = [a + step * number for a, step, number in zip(asked, ask_steps, asks, strict=False)]
                    if spec.ahead == "rows":
                        asked = [here + spans[0][1] + below[0], to + below[1]]
                    if halved:
                        sums, further = summed(here, w, spans, [[0, 1], [2]], asked)
                        totals = _moved(k, sums, further, lacked, spec.channels)
                        following = further
                    else:
                        alone = summed_alone(here, w, spans) if spec.alone else None
                        totals = alone or summed(here, w, spans, [[0, 1, 2]], asked)[0]
                        following = []
                    strip.next(here + s.x_strip, to + s.y_strip, with_ + s.r_strip, *moved, *following)
                    out = spec.way_out(k, "pp", of_channel)
                    for total in totals:
                        for c, mask in enumerate(masks):
                            own = range(c * of_channel, (c + 1) * of_channel)
                            one = total if spec.channels == 1 else k.shuffle(total, total, own)
                            store_sums(
                                out, s.tables, one, to + steps["y"][c], with_ + steps["r"][c],
                                given.channel + each.index + c, mask, r_lane=s.r_lane,
                            )  # fmt: skip
                        to, with_ = to + s.y_row, with_ + s.r_row
                group.next(*strip.results[3:])


Span = tuple[Type, Value, Mask]
"""A load: its type, offset and mask."""


def _bits(k: Module, bits: Value, lanes: int) -> Value:
    whole = bits if lanes == 32 else k.cast("trunc", bits, Type(f"i{lanes}"))
    return k.cast("bitcast", whole, Type("i1", lanes))


def _moved(k: Module, sums: list[Value], further: list[Value], beyond: list[Value], channels: int) -> list[Value]:
    """Sums in order, each with that of the last tap, which stands one output further on."""
    lanes = sums[0].type.lanes
    part = lanes // channels
    order = parted_order(part, sums[0].type.element_bytes)
    inverse = [order.index(i) for i in range(part)]
    places = [c * part + i for c in range(channels) for i in inverse]
    after = [i for c in range(channels) for i in (*places[c * part + 1 : (c + 1) * part], lanes + c * part)]
    return [
        k.shuffle(one, one, places) + k.shuffle(two, right, after)
        for one, two, right in zip(sums, further, beyond, strict=True)
    ]
