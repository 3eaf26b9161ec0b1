"""``depthwise_line``: taps along the last axis of channels-first arrays, all of them there, any rank.

Lanes are pixels.  Tiles are neighbouring vectors of a line and read the input where it lies; those that would meet
padding, or what lies behind the line, read a copy of their part of it with zeros around.  Arrays whose pixels do not
lie together are left to ``slide``.  Cost: the multiply-adds or loads, and the copies.  Error: own bound, k eps
sum|x||w|.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from polyconv.algorithms.depthwise import situations
from polyconv.algorithms.depthwise.parts import ITEMS, cut_for_threads, tiles_by_size
from polyconv.algorithms.depthwise.requests import StepOf, item_words, of_every_output, program_of, taps_by_channel
from polyconv.algorithms.depthwise.situations import (
    DepthwiseForm,
    by_pixels,
    channel_bytes,
    lane_of,
    lies_together,
    of_one_output,
)
from polyconv.algorithms.depthwise.slide import SlideForm
from polyconv.algorithms.form import Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.depthwise_line import AHEAD, DepthwiseLine, Line, LineSettings, depthwise_line
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.record import Functions, Link, Memory, Record, Word
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.panel import Common, Driver, Frame, Item, axis_words, decode, header_bytes, row_place, row_source
from polyconv.lowering.program import Operand, Program, Request, address_of, epilogue_tables
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, inside, sweeps

__all__ = ["forms"]

_MOST = {32: 12, 16: 10}
"""Vectors of the largest tile, by vector registers."""

_ACROSS = {32: 4, 16: 1}
"""Neighbouring taps of an entry, by vector registers; their weights fit beside sums, and no tap is a vector away."""

_TOGETHER = 4
"""Lengths of tiles that are compiled together where extents vary: lines of other lengths soon need the next one."""

_CHUNK = 1 / 8
"""Share of the second-level cache for the input of the channels of an item."""

_COPIED = 2 / 3
_LINES = 16
"""Copies, as a share of the first-level cache, and lines, that are made before they are read: what was just written is
read late."""


class LineWords(Record):
    """The driver's words.

    A tile reads ``extra`` elements behind its outputs, a copy has ``copied`` vectors beside them, in a ``slot`` of so
    many bytes.  ``line`` leads from one line to the next.
    """

    common: Common
    channels: Word
    chunk_channels: Word
    together: Word
    most: Word
    extra: Word
    copied: Word
    slot: Word
    weights: Memory
    w_channel: Word
    tiles: Functions[Line]
    settings: Link[LineSettings]
    x_line: Word
    y_line: Word
    r_line: Word
    ahead: Word


def driver(k: Module, name: str, size: int, written: int, lane: int, flat: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module, for elements of these sizes.

    Lines one after another are those of the axis before the last, or, ``flat``, of the channels if there is none.
    """
    kind = Type(f"i{8 * size}", lane)
    with k.function(name, Driver) as given:
        p = LineWords.read(k, given.words)
        item = decode(k, p.common, given.item, given.workspace)
        along, zero, one = p.common.axes - 1, k.constant(INT, 0), k.constant(INT, 1)
        last, origin, extent = axis_words(p.common, along), item.origin(along), item.extent(along)
        first = item.g * p.chunk_channels
        channels = k.minimum(p.chunk_channels, p.channels - first)
        lines, of_channel = (channels, one) if flat else (item.extent(along - 1), channels)
        with k.loop(0, zero if flat else along - 1, carry=[one]) as axis:
            axis.next(axis.values[0] * item.extent(axis.index))
        outer = axis.results[0]
        vectors = (extent + (lane - 1)) // lane
        parts = (vectors + (p.most - 1)) // p.most
        size_of_part, larger = vectors // parts, vectors % parts
        steps = p.x_line, p.y_line, p.r_line
        with k.loop(0, outer * of_channel) as number, k.loop(0, lines, p.together) as block:
            end = k.minimum(block.index + p.together, lines)
            of_item, row = (block.index, zero) if flat else (number.index // outer, number.index % outer * lines)
            places = _places(k, p.common, item, given.frame, of_item, row)
            if not flat:
                places = [place + block.index * step for place, step in zip(places, steps, strict=True)]
            start = [given.workspace + p.common.panel, first + of_item, *places]
            for copying in (True, False):
                with k.loop(block.index, end, carry=start) as line:
                    slot, channel, x, y, r = line.values
                    with k.loop(0, parts, carry=[zero, slot]) as part:
                        done, slot = part.values
                        count = size_of_part + k.cast("zext", part.index < larger, INT)
                        at = origin + done * lane
                        in_line = (at >= 0) & (at + count * lane + p.extra <= last.inp)
                        here = x + at * size
                        if copying:
                            with k.when(in_line, otherwise=True):
                                _copy(k, here, at, count + p.copied, slot, kind, last.inp, p.ahead)
                        for source, skipped in ((slot, True), (here, False)) if not copying else ():
                            with k.when(in_line, otherwise=skipped):
                                k.call(p.tiles.at(count - 1), Line(
                                    p.settings, source, p.weights + channel * p.w_channel,
                                    y + done * (lane * written), r + done * (lane * written), channel,
                                    extent - (done + count - 1) * lane,
                                ))  # fmt: skip
                        part.next(done + count, slot + k.select(in_line, 0, p.slot))
                    moved = [place + step for place, step in zip((x, y, r), steps, strict=True)]
                    line.next(part.results[1], channel + int(flat), *moved)


def _copy(k: Module, here: Buffer, at: Value, count: Value, slot: Buffer, kind: Type, extent: Value, ahead: Value
          ) -> None:  # fmt: skip
    """Copy vectors of a line from position ``at`` on with zeros around, by masks where there are some."""
    lane = kind.lanes
    before = k.minimum(k.maximum(-at + (lane - 1), 0) // lane, count)
    behind = k.maximum(k.minimum(k.maximum(extent - at, 0) // lane, count), before)
    for low, high, whole in ((0, before, False), (before, behind, True), (behind, count, False)):
        with k.loop(low, high) as one:
            come = here + one.index * kind.bytes
            k.prefetch(come + ahead)
            if whole:
                value = k.load(kind, come)
            else:
                position = at + one.index * lane
                value = k.load_first(kind, come, k.span(-position, extent - position, lane))
            k.store(value, slot + one.index * kind.bytes)


def _places(k: Module, c: Common, item: Item, frame: Frame, channel: Value, row: Value) -> list[Buffer]:
    """Column 0 of the input, and the first result and residual of a row, of a channel of the item."""
    last = c.axes - 1
    x = row_source(k, c, item, row) - item.origin(last) * axis_words(c, last).x_stride
    _, y, r = row_place(k, c, item, row)
    return [
        frame.x + (x + channel * c.x_c), frame.y + (y + channel * c.y_c), frame.residual + (r + channel * c.r_c),
    ]  # fmt: skip


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if (reason := situations.refusal(s)) is not None:
        return reason
    if p.op != "conv" or not by_pixels(p):
        return "computes convolutions of channels-first arrays"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    (sweep,) = sweeps(p)
    *outer, last = sweep
    if last.taps < 2 or last.stride != 1 or any(a.taps != 1 or inside(a) != range(a.out) for a in outer):
        return "computes kernels that have all taps along the last axis, without a stride"
    return (LineForm(s, sweep, _cut_of(of_one_output(s), sweep)),)


@dataclass(frozen=True, slots=True)
class Cut:
    """How lines are cut: into items of ``chunk`` channels by a ``box`` of outputs, and tiles of ``most`` vectors.

    Entries are neighbouring taps, and the first of them, in the order of taps; a tile reads ``extra`` elements behind
    its outputs, and asks for memory ``ahead`` or not.  So many ``copies`` of a line have a ``slot`` of elements each;
    those of some lines ``together`` are made before they are read.
    """

    most: int
    entries: tuple[tuple[int, int], ...]
    extra: int
    slot: int
    copies: int
    together: int
    chunk: int
    box: tuple[int, ...]
    ahead: bool


def _cut_of(s: Situation, sweep: Sweep) -> Cut:
    p, lane, most, last = s.problem, lane_of(s), _MOST[s.target.registers], sweep[-1]
    size = p.x_dtype.itemsize
    most_taps = min(lane, _ACROSS[s.target.registers]) if last.dilation == 1 else 1
    entries = tuple((min(most_taps, last.taps - tap), tap) for tap in range(0, last.taps, most_taps))
    extra = max(tap * last.dilation + lane * (across > 1) for across, tap in entries)
    slot = lane * (most + -(-extra // lane))
    chunk = min(p.c, max(1, s.cache("l2", _CHUNK) // max(1, size * math.prod(axis.inp for axis in sweep))))
    box = tuple(max(1, axis.out) for axis in sweep)
    if s.threads > 1:
        chunk = min(chunk, max(1, p.c * (p.n or 0) // (ITEMS * s.threads)))
        units = [1] * (len(sweep) - 1) + [lane * most]
        cut = max(range(len(sweep)), key=lambda a: box[a] // units[a])
        box = cut_for_threads(s, sweep, box, chunk, cut, 1, units[cut])
    copies = max(
        sum(not _inside(last, first + o * lane, count, lane, extra) for o, count in near_equal(-(-part // lane), most))
        for first in range(0, max(1, last.out), box[-1])
        for part in (min(box[-1], last.out - first),)
    )
    together = max(1, min(_LINES, s.cache("l1", _COPIED) // max(1, copies * slot * size)))
    if copies < -(-last.out // (lane * most)):  # whole lines in order, as the hardware foresees them
        together = 1
    ahead = p.c * channel_bytes(s, sweep) > s.cache("l2", 1)
    return Cut(most, entries, extra, slot, copies, together, chunk, box, ahead)


def _inside(last: Axis, o: int, vectors: int, lane: int, extra: int) -> bool:
    """Whether a tile from an output on reads nothing outside the line."""
    return o >= last.pad and o - last.pad + vectors * lane + extra <= last.inp


@dataclass(frozen=True, slots=True)
class LineForm(DepthwiseForm):
    """Lines of pixels, cut into tiles of neighbouring vectors."""

    sweep: Sweep
    cut: Cut

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box, and copies."""
        cut, size = self.cut, self.s.problem.x_dtype.itemsize
        return header_bytes(len(self.sweep)) + cut.together * cut.copies * cut.slot * size

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds or loads; tiles; copies; at least the stream of input and result."""
        s, p, last, cut = self.s, self.s.problem, self.sweep[-1], self.cut
        lane, rates = lane_of(s), situations.rates_of(s)
        lines = p.m * math.prod(axis.out for axis in self.sweep[:-1])
        vectors = -(-last.out // lane)
        tiles = -(-vectors // cut.most)
        of_vector = sum(max(1.1, 0.55 * across * rates.slower + 0.3) for across, _ in cut.entries)
        latency = rates.latency * last.taps
        of_tile = max(vectors / max(1, tiles) * of_vector, latency) + 40 + 3 * len(cut.entries)
        moves = lines * cut.copies * (15 + 2.0 * (vectors / max(1, tiles) + cut.extra / lane))
        streamed = p.c * channel_bytes(s, self.sweep)
        batch = p.n or 0
        return {"products": max(lines * tiles * of_tile, streamed / 30.0) * batch, "moves": moves * batch}

    def choices(self) -> dict[str, object]:
        """How lines are cut."""
        cut = self.cut
        return {"tile": f"up to {cut.most} vectors of a line", "box": cut.box, "channels of an item": cut.chunk}

    def build(self, r: Request) -> Program:
        """Program of a request: one step for every output of a channel."""
        if not lies_together(r, "pixels"):
            return SlideForm.usual(self.s).build(r)
        return program_of(self, (_step_of(one, self.sweep, self.cut) for one in of_every_output(r)))


def _step_of(r: Request, sweep: Sweep, cut: Cut) -> StepOf:
    """Driver, words and number of items."""
    last, lane, size, written = sweep[-1], lane_of(r.situation), r.x.itemsize, r.y.itemsize
    flat = len(sweep) == 1
    name = "flat_lines" if flat else "lines"
    label = f"depthwise {name} {size} {written} {lane}"
    address = address_of(r, label, name, Driver, lambda k, name: driver(k, name, size, written, lane, flat))
    kinds = Counter(across for across, _ in cut.entries)  # the last may have less
    count, *others = kinds.values()
    entries = [tap * last.dilation * size for _, tap in cut.entries]

    def of_line(o: Operand | None, step: int = 1) -> int:
        return 0 if o is None else o.c if flat else o.spatial[-2] * step

    common, items = item_words(r, sweep, cut.box, cut.chunk, panel=header_bytes(len(sweep)))
    return address, LineWords(
        common=common, channels=r.problem.c, chunk_channels=cut.chunk, together=cut.together, most=cut.most,
        extra=cut.extra, copied=-(-cut.extra // lane), slot=cut.slot * size, weights=taps_by_channel(r, sweep),
        w_channel=last.taps * r.arith.bytes, tiles=_tile_addresses(r, last, cut, tuple(kinds)),
        settings=LineSettings(entries, epilogue_tables(r), count, sum(others)),
        x_line=of_line(r.x, sweep[-2:][0].stride), y_line=of_line(r.y), r_line=of_line(r.residual),
        ahead=AHEAD * cut.ahead,
    ), items  # fmt: skip


def _tile_addresses(r: Request, last: Axis, cut: Cut, kinds: tuple[int, ...]) -> Sequence[Address[Line] | None]:
    """Addresses of the tiles that a step uses, by vectors; None for the others."""
    lane = lane_of(r.situation)
    spec = DepthwiseLine(r.problem.x, r.problem.y, r.arith.accumulator, r.epilogue, kinds, cut.ahead)
    extents = {-(-extent // lane) for extent in (min(cut.box[-1], last.out), last.out % cut.box[-1])}
    sizes = {count for n in extents for _, count in near_equal(n, cut.most)}

    def tile(k: Module, name: str, vectors: int) -> None:
        depthwise_line(k, name, spec, lane, vectors, f16c=r.target.converts_f16)

    return tiles_by_size(r, f"{spec} {lane}", Line, cut.most, sizes, tile, together=_TOGETHER)
