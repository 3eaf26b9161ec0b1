"""Depthwise tiles: a window slides along one axis, so that an input is loaded once for all outputs it feeds.

A tile is ``rows`` outputs along the sliding axis by one vector; an entry of its list is one row of ``taps``
neighbouring taps along that axis: ``rows + taps - 1`` loads for ``rows * taps`` multiply-adds.  Lanes are
channels, each with weights of its own, or pixels of one channel side by side.  It knows neither extents nor
kernel size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from polyconv.dataclass import dataclass
from polyconv.kernels.depthwise_tile import Tile, entry_at, neighbours, parted, parted_order, store_sums
from polyconv.kernels.epilogue import EpilogueTables
from polyconv.kernels.language import Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word, at_once
from polyconv.kernels.signature import Int, Signature

__all__ = ["DepthwiseTile", "Slide", "SlideSettings", "depthwise_tile"]


class SlideSettings(Record):
    """What all calls of a step share: byte strides, positions from one step to the next (``unit``), input extent.

    Where lanes are channels ``channel`` leads from one vector to the next.
    """

    x_channel: Word
    x_step: Word
    x_lane: Word
    x_element: Word
    w_channel: Word
    y_channel: Word
    y_step: Word
    y_lane: Word
    r_channel: Word
    r_step: Word
    r_lane: Word
    unit: Word
    extent: Word
    tables: EpilogueTables


class Slide(Signature):
    """A tile's outputs of ``channels`` from one on; so many lanes are ``used``; ``position``: of its first step."""

    settings: SlideSettings
    x: Buffer
    entries: Buffer
    weights: Buffer
    y: Buffer
    residual: Buffer
    channel: Int
    channels: Int
    used: Int
    position: Int


@dataclass(frozen=True, slots=True)
class DepthwiseTile(Tile):
    """A kind of tile, beside what all say.

    Parameters
    ----------
    lanes : str
        ``c`` for channels, ``p`` for pixels.
    reads, writes : str
        How the lanes lie in input and result (with residual): ``1`` together, ``2`` every second element, ``any`` way;
        ``any2`` every second element of a tensor whose elements lie any way.
    stride : int
        Steps from one output to the next.
    taps : tuple of (int, int)
        Kinds of entries, in the list's order: taps along the sliding axis, and across the lanes; several of those
        only where lanes read neighbours or every second element.
    channels : int
        Channels of a vector of pixels, 1 or 2: narrow maps leave half of the lanes to the next channel.
    repeats : int
        Neighbouring lanes of channels that have the same input.
    """

    lanes: str
    reads: str
    writes: str
    stride: int
    taps: tuple[tuple[int, int], ...]
    channels: int = 1
    repeats: int = 1


def _in_pieces(spec: DepthwiseTile, kind: Type) -> bool:
    """Whether every second element comes in the order of pieces of 128 bits: where vectors have two of them.

    On Zen 5 shuffles between pieces are what tiles by AVX2 waited for.
    """
    return spec.reads == "2" and kind.bytes == 32


def _lanes_of(spec: DepthwiseTile, memory: Type, lanes: int, channel: int) -> list[int]:
    """Lanes of sums that are the pixels of a channel of a vector, in their order."""
    order = parted_order(lanes, memory.element_bytes) if _in_pieces(spec, memory) else [*range(lanes)]
    part = lanes // spec.channels
    return [order.index(channel * part + i) for i in range(part)]


def _reader(k: Module, spec: DepthwiseTile, kind: Type, across: int, s: SlideSettings, first: Value, end: Value,
            used: Mask | None) -> Callable[[Buffer], list[Value]]:  # fmt: skip
    """How to load the vectors of ``across`` taps side by side; in masked tiles lanes outside first..end are 0."""
    n, size, lane, element = kind.lanes, kind.element_bytes, s.x_lane, s.x_element
    pixels = used is not None and spec.lanes == "p"
    if _in_pieces(spec, kind):
        return _reader_in_pieces(k, kind, across, first, end, pixels)

    def loaded(place: Buffer, mask: Mask | None, kind: Type = kind) -> Value:
        return k.load(kind, place) if mask is None else k.load_first(kind, place, mask)

    def gathered(place: Buffer, mask: Mask | None) -> Value:
        if mask is None or mask.first is None:
            return k.gather(kind, place, lane, mask)
        with k.choice(mask.first < mask.count, [k.constant(kind, 0)]) as there:
            there.next(k.gather(kind, place, lane, mask))
        value: Value = there.results[0]
        return value

    if spec.reads == "1" and across == 1:
        mask = k.span(first, end, n) if pixels else used
        return lambda place: [loaded(place, mask)]
    if spec.reads == "1":
        # what one load lacks for taps further on comes from a short one, since loads that cross a line are the bound
        mask = k.span(first, end, n) if pixels else None
        whole = kind.of(f"i{8 * size}")
        few = Type(whole.element, across - 1 if mask is None else 4)
        beyond = k.span(first - n, k.minimum(end - n, across - 1), few.lanes) if pixels else None

        def shifted(place: Buffer) -> list[Value]:
            here, rest = loaded(place, mask, whole), loaded(place + n * size, beyond, few)
            return neighbours(k, here, rest, across, kind)

        return shifted
    if spec.reads == "any":
        masks = [k.span(first - j, end - j, n) if pixels else used for j in range(across)]
        return lambda place: [gathered(place + element * j, mask) for j, mask in enumerate(masks)]
    if spec.reads == "any2":

        def half(bound: Value) -> Value:
            return (k.maximum(bound, 0) + 1) >> 1

        masks = [k.span(half(first - j), half(end - j), n) if pixels else None for j in range(across)]
        return lambda place: [gathered(place + element * j, mask) for j, mask in enumerate(masks)]

    # Two loads hold even and odd elements; one more element makes even ones shifted by one.  One tap alone needs no
    # more than 2 n - 1 elements.
    second = n if across > 1 else n - 1
    low, high, third = (
        k.span(first - at, k.minimum(end - at, most), n) if pixels else None
        for at, most in ((0, n), (second, n), (2 * n, 1))
    )

    def streams(place: Buffer) -> list[Value]:
        a, b = loaded(place, low), loaded(place + second * size, high)
        if across == 1:
            return [k.shuffle(a, b, [2 * i if 2 * i < n else 2 * i + 1 for i in range(n)])]
        found = [k.shuffle(a, b, [2 * i + j for i in range(n)]) for j in range(2)]
        if across == 3:
            beyond = place + 2 * n * size
            last = k.broadcast(kind, beyond) if third is None else loaded(beyond, third)
            found.append(k.shuffle(found[0], last, range(1, n + 1)))
        return found

    return streams


def _reader_in_pieces(k: Module, kind: Type, across: int, first: Value, end: Value, masked: bool
                      ) -> Callable[[Buffer], list[Value]]:  # fmt: skip
    """The same for every second element, in the order of pieces; nothing behind the last that a tap needs is read."""
    n, size = kind.lanes, kind.element_bytes
    places = {1: (0, n - 1), 2: (0, n), 3: (0, n, 2, n + 1)}[across]
    masks = [k.span(first - at, k.minimum(end - at, n), n) for at in places if masked]

    def loaded(place: Buffer, number: int) -> Value:
        place = place + places[number] * size
        return k.load_first(kind, place, masks[number]) if masked else k.load(kind, place)

    def read(place: Buffer) -> list[Value]:
        a, b, *more = (loaded(place, number) for number in range(len(places)))
        if across == 1:
            return [parted(k, a, b, 0, 1)]
        found = [parted(k, a, b, 0, 0), parted(k, a, b, 1, 1)]
        return found if across == 2 else [*found, parted(k, more[0], more[1], 0, 1)]

    return read


def depthwise_tile(k: Module, name: str, spec: DepthwiseTile, lanes: int, rows: int, *, f16c: bool, edge: bool,
                   masked: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` outputs.

    At an ``edge`` positions outside the input are left out; ``masked`` tiles have lanes that do not count: channels
    beyond the last, or pixels.  The loop over channels is inside, since a call costs as much as some taps.
    """
    kind = vector(spec.element, lanes)
    channels = spec.lanes == "c"
    with k.function(name, Slide) as given:
        s, used, entries = at_once(given.settings), given.used, given.entries
        zero = k.constant(used.type, 0)
        part = vector(spec.element, lanes // spec.channels)  # lanes of one channel of pixels
        x_next, w_next, y_next, r_next = (
            step if spec.channels == 1 else step / 2 for step in (s.x_channel, s.w_channel, s.y_channel, s.r_channel)
        )
        along = spec.lanes + ("2" if spec.writes == "2" else spec.lanes)
        out = spec.way_out(k, along, part.lanes, f16c=f16c, y_lane=s.y_lane if spec.writes == "any" else None)
        out_mask = k.mask(used, part.lanes) if masked else None
        fewer = lanes // spec.repeats  # inputs of a vector
        memory = spec.in_memory(part.lanes)
        if spec.repeats > 1:
            memory = Type(memory.element, 1 << (fewer - 1).bit_length())
        in_mask = out_mask
        if masked and spec.repeats > 1:
            in_mask = k.mask((used + (spec.repeats - 1)) // spec.repeats, memory.lanes)

        def joined(read: Callable[[Buffer], list[Value]], place: Buffer, step: Value) -> list[Value]:
            """Vectors of the channels that lie ``step`` apart, as one."""
            if spec.channels == 1:
                return read(place)
            return [k.shuffle(a, b, range(lanes)) for a, b in zip(read(place), read(place + step), strict=True)]

        def weight(place: Buffer) -> list[Value]:
            return [k.load(kind, place) if channels else k.broadcast(part, place)]

        def row_of_taps(size: tuple[int, int], number: Value, x: Buffer, w: Buffer, totals: list[Value]) -> list[Value]:
            """One entry: every position is loaded once and multiplied for all outputs that it feeds."""
            taps, across = size
            entry = entry_at(k, entries, number)
            read = _reader(k, spec, memory, across, s, entry.first_lane, entry.end_lane, in_mask)
            here, at, w = x + entry.input, given.position + entry.position, w + entry.weights
            pitch = kind.bytes if channels else kind.element_bytes
            of_tap = [joined(weight, w + t * pitch, w_next)[0] for t in range(across * taps)]
            for p in range((rows - 1) * spec.stride + taps):
                fed = [r for r in range(rows) if 0 <= p - r * spec.stride < taps]
                following = [totals[r] for r in fed]
                with nullcontext() if not edge else k.choice(at.below(s.extent), following) as inside:
                    for j, value in enumerate(joined(read, here, x_next)):
                        if spec.repeats > 1:
                            value = k.shuffle(value, value, [i // spec.repeats % memory.lanes for i in range(lanes)])
                        value = spec.as_factor(k, value, f16c=f16c)
                        weights = [of_tap[j * taps + p - r * spec.stride] for r in fed]
                        following = [k.fma(value, w, t) for w, t in zip(weights, following, strict=True)]
                    if inside is not None:
                        inside.next(*following)
                for r, total in zip(fed, following if inside is None else inside.results, strict=True):
                    totals[r] = total
                here, at = here + s.x_step, at + s.unit
            return totals

        step = fewer * spec.repeats if channels else spec.channels
        with k.loop(0, given.channels, step, carry=[given.x, given.weights, given.y, given.residual]) as each:
            x, w, y, other = each.values
            totals: list[Value] = [k.constant(kind, 0)] * rows
            here, start = k.rebase(x), zero
            for number, size in enumerate(spec.taps):
                end = start + k.word(entries, number)
                with k.loop(start, end, carry=totals) as entry:
                    entry.next(*row_of_taps(size, entry.index, here, w, list(entry.values)))
                totals, start = entry.results, end
            each.next(x + s.x_channel, w + s.w_channel, y + s.y_channel, other + s.r_channel)
            for total in totals:
                for c in range(spec.channels):
                    own = _lanes_of(spec, memory, lanes, c)
                    value = total if own == [*range(lanes)] else k.shuffle(total, total, own)
                    beside, to = other + r_next * c, y + y_next * c
                    store_sums(
                        out, s.tables, value, to, beside, given.channel + each.index + c, out_mask, r_lane=s.r_lane
                    )
                y, other = y + s.y_step, other + s.r_step
