"""Depthwise along the last axis of channels-first arrays: kernels that have all their taps there, any rank.

Lanes are pixels.  Tiles are neighbouring vectors of a line and read the input where it lies; those that would meet
padding, or what lies behind the line, read a copy of their part of it with zeros around.  Arrays whose pixels do not
lie together are left to ``depthwise``.
Cost: the multiply-adds or loads, and the copies.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms import depthwise, depthwise_plan
from polyconv.algorithms.depthwise_block import channel_bytes, lane_of, rates_of
from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.panel import Common, Driver, Frame, Item, axis_words, decode
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    address_of,
    boxed_words,
    epilogue_tables,
    near_equal,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep, sweeps
from polyconv.kernels.depthwise_line import AHEAD, DepthwiseLine, Line, LineSettings, depthwise_line
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Functions, Link, Memory, Record, Word, filled, words
from polyconv.kernels.signature import Address
from polyconv.runtime.arrays import aligned

__all__ = ["forms"]

_MOST = {32: 12, 16: 10}
"""Vectors of the largest tile, by vector registers."""

_ACROSS = {32: 4, 16: 1}
"""Neighbouring taps of an entry, by vector registers; their weights fit beside sums, and no tap is a vector away."""

_TOGETHER = 4
"""Lengths of tiles that are compiled together: lines of other lengths soon need the next one."""

_CHUNK_BYTES = 128 << 10
"""Input of the channels of an item."""

_COPIED_BYTES = 32 << 10
_LINES = 16
"""Copies, and lines, that are made before they are read: what was just written is read late."""

_CACHE_BYTES = 1 << 20
"""Input and result beyond this are asked for ahead."""


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
    channel_line: Word
    ahead: Word


def driver(k: Module, name: str, size: int, written: int, lane: int, flat: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module, for elements of these sizes.

    Lines one after another are those of the axis before the last, or, ``flat``, of the channels if there is none.
    """
    kind = Type(f"i{8 * size}", lane)
    with k.function(name, Driver) as given:
        workspace = given.workspace
        p = LineWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        along, zero = p.common.axes - 1, k.constant(INT, 0)
        last, origin, extent = axis_words(p.common, along), item.origin(along), item.extent(along)
        first = item.g * p.chunk_channels
        channels = k.minimum(p.chunk_channels, p.channels - first)
        before = zero if flat else along - 1
        lines, of_channel = (channels, k.constant(INT, 1)) if flat else (item.extent(along - 1), channels)
        with k.loop(0, before, carry=[of_channel]) as axis:
            axis.next(axis.values[0] * item.extent(axis.index))
        vectors = (extent + (lane - 1)) // lane
        parts = (vectors + (p.most - 1)) // p.most
        size_of_part, larger = vectors // parts, vectors % parts

        def copy(here: Buffer, at: Value, count: Value, slot: Buffer) -> None:
            """Copy the input of a tile with zeros around, by masks where there are some."""
            before = k.minimum(k.maximum(-at + (lane - 1), 0) // lane, count)
            behind = k.maximum(k.minimum(k.maximum(last.inp - at, 0) // lane, count), before)
            for low, high, whole in ((zero, before, False), (before, behind, True), (behind, count, False)):
                with k.loop(low, high) as one:
                    come = here + one.index * kind.bytes
                    k.prefetch(come + p.ahead)
                    if whole:
                        value = k.load(kind, come)
                    else:
                        position = at + one.index * lane
                        value = k.load_first(kind, come, k.span(-position, last.inp - position, lane))
                    k.store(value, slot + one.index * kind.bytes)

        with k.loop(0, axis.results[0]) as outer, k.loop(0, lines, p.together) as block:
            end = k.minimum(block.index + p.together, lines)
            channel, *places = _places(k, p.common, item, given.frame, first, before, outer.index)
            steps = [p.x_line, p.y_line, p.r_line]
            places = [place + block.index * step for place, step in zip(places, steps, strict=True)]
            channel = channel + block.index * p.channel_line
            for copying in (True, False):
                with k.loop(block.index, end, carry=[workspace + p.common.panel, channel, *places]) as line:
                    slot, channel_, x, y, r = line.values
                    with k.loop(0, parts, carry=[zero, slot]) as part:
                        done, slot = part.values
                        count = size_of_part + k.cast("zext", part.index < larger, INT)
                        at = origin + done * lane
                        inside = (at >= 0) & (at + count * lane + p.extra <= last.inp)
                        here = x + at * size
                        if copying:
                            with k.when(inside, otherwise=True):
                                copy(here, at, count + p.copied, slot)
                        for source, skipped in ((slot, True), (here, False)) if not copying else ():
                            with k.when(inside, otherwise=skipped):
                                k.call(p.tiles.at(count - 1), Line(
                                    p.settings, source, p.weights + channel_ * p.w_channel,
                                    y + done * (lane * written), r + done * (lane * written), channel_,
                                    extent - (done + count - 1) * lane,
                                ))  # fmt: skip
                        part.next(done + count, slot + k.select(inside, 0, p.slot))
                    line.next(
                        part.results[1], channel_ + p.channel_line,
                        *(place + step for place, step in zip((x, y, r), steps, strict=True)),
                    )  # fmt: skip


def _places(
    k: Module, c: Common, item: Item, frame: Frame, channel: Value, before: Value, row: Value
) -> tuple[Value, Buffer, Buffer, Buffer]:
    """Channel, column 0 of the input and the item's first result and residual of a row of the first axes."""
    zero = k.constant(INT, 0)
    with k.loop(0, c.axes - 1, carry=[zero, zero, zero, row]) as back:
        x, y, r, q = back.values
        axis = c.axes - 2 - back.index
        record = axis_words(c, axis)
        extent = k.select(axis < before, item.extent(axis), 1)
        o = q % extent
        x = x + (item.origin(axis) + o * record.stride) * record.x_stride
        o = o + item.first(axis)
        back.next(x, y + o * record.y_stride, r + o * record.r_stride, q // extent)
    x, y, r, q = back.results
    channel = channel + q
    last, o = axis_words(c, c.axes - 1), item.first(c.axes - 1)
    return (
        channel,
        frame.x + (c.x_base + item.n * c.x_n + channel * c.x_c + x),
        frame.y + (c.y_base + item.n * c.y_n + channel * c.y_c + o * last.y_stride + y),
        frame.residual + (c.r_base + item.n * c.r_n + channel * c.r_c + o * last.r_stride + r),
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """How the lines of a sweep are cut.

    Parameters
    ----------
    entries : tuple of (int, int)
        Neighbouring taps, first tap; in the order of taps.
    extra : int
        Elements that a tile reads behind its outputs.
    slot : int
        Elements of a copy.
    copies : int
        Tiles of a line that read one.
    together : int
        Lines whose copies are made before they are read.
    chunk : int
        Channels of an item.
    box : tuple of int
    """

    entries: tuple[tuple[int, int], ...]
    extra: int
    slot: int
    copies: int
    together: int
    chunk: int
    box: tuple[int, ...]


@lru_cache(256)
def _cut_of(s: Situation, sweep: Sweep) -> Cut:
    p, lane, most, last = s.problem, lane_of(s), _MOST[s.target.registers], sweep[-1]
    size = p.x_dtype.itemsize
    most_taps = min(lane, _ACROSS[s.target.registers]) if last.dilation == 1 else 1
    entries = tuple((min(most_taps, last.taps - tap), tap) for tap in range(0, last.taps, most_taps))
    extra = max(tap * last.dilation + lane * (across > 1) for across, tap in entries)
    slot = lane * (most + -(-extra // lane))
    row = size * math.prod(axis.inp for axis in sweep)
    chunk = min(p.c, max(1, s.near(_CHUNK_BYTES) // max(1, row)))
    box = [max(1, axis.out) for axis in sweep]
    if s.threads > 1:
        chunk = min(chunk, max(1, p.c * (p.n or 0) // (4 * s.threads)))
        parts = -(-4 * s.threads // max(1, -(-p.c // chunk) * (p.n or 0)))
        cut = max(range(len(sweep)), key=lambda a: box[a] // (lane * most if a == len(sweep) - 1 else 1))
        unit = lane * most if cut == len(sweep) - 1 else 1
        box[cut] = min(box[cut], unit * -(-box[cut] // (unit * parts)))
    copies = max(
        sum(not _inside(last, first + o * lane, count, lane, extra) for o, count in near_equal(-(-part // lane), most))
        for first in range(0, max(1, last.out), box[-1])
        for part in (min(box[-1], last.out - first),)
    )
    together = max(1, min(_LINES, s.near(_COPIED_BYTES) // max(1, copies * slot * size)))
    if copies < -(-last.out // (lane * most)):  # whole lines in order, as the hardware foresees them
        together = 1
    return Cut(entries, extra, slot, copies, together, chunk, tuple(box))


def _inside(last: Axis, o: int, vectors: int, lane: int, extra: int) -> bool:
    """Whether a tile from an output on reads nothing outside the line."""
    return o >= last.pad and o - last.pad + vectors * lane + extra <= last.inp


def _asks(s: Situation, sweep: Sweep) -> bool:
    """Whether tiles ask for memory ahead."""
    return s.problem.c * channel_bytes(s, sweep) > s.near(_CACHE_BYTES)


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = depthwise_plan.applicable(s)
    if reason is not None:
        return reason
    p = s.problem
    if p.op != "conv" or not depthwise_plan.by_pixels(p):
        return "computes convolutions of channels-first arrays"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    (sweep,) = sweeps(p)
    *outer, last = sweep
    if last.taps < 2 or last.stride != 1 or any(a.taps != 1 or depthwise_plan.interior(a) != (0, a.out) for a in outer):
        return "computes kernels that have all taps along the last axis, without a stride"
    return (LineForm(s, sweep, _cut_of(s, sweep)),)


@dataclass(frozen=True, slots=True)
class LineForm(Form):
    """Lines of pixels, cut into tiles of neighbouring vectors."""

    sweep: Sweep
    cut: Cut

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box, and copies."""
        cut, size = self.cut, self.s.problem.x_dtype.itemsize
        return depthwise_plan.list_place(len(self.sweep)) + cut.together * cut.copies * cut.slot * size

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds or loads; tiles; copies; at least the stream of input and result."""
        s, p, last, cut = self.s, self.s.problem, self.sweep[-1], self.cut
        lane, rates = lane_of(s), rates_of(s)
        lines = p.m * math.prod(axis.out for axis in self.sweep[:-1])
        vectors = -(-last.out // lane)
        tiles = -(-vectors // _MOST[s.target.registers])
        of_vector = sum(max(1.1, 0.55 * across * rates.slower + 0.3) for across, _ in cut.entries)
        latency = rates.latency * last.taps
        of_tile = max(vectors / max(1, tiles) * of_vector, latency) + 40 + 3 * len(cut.entries)
        moves = lines * cut.copies * (15 + 2.0 * (vectors / max(1, tiles) + cut.extra / lane))
        streamed = p.c * channel_bytes(s, self.sweep)
        batch = p.n or 0
        return {"products": max(lines * tiles * of_tile, streamed / 30.0) * batch, "moves": moves * batch}

    def choices(self) -> dict[str, object]:
        """How lines are cut."""
        most = _MOST[self.s.target.registers]
        return {"box": self.cut.box, "channels of an item": self.cut.chunk, "tile": f"up to {most} vectors of a line"}

    def build(self, r: Request) -> Program:
        """Program of a request: one step for every output of a channel."""
        lying = [o.spatial[-1] == o.itemsize for o in (r.x, r.y, r.residual) if o is not None]
        if not all(lying):
            return depthwise.build(r)
        keep: list[Any] = []
        steps = [_step(share, self, keep) for share in depthwise.shares(r)]
        return Program(tuple(step for step in steps if step.items), self.workspace, tuple(keep))


def _step(r: Request, form: LineForm, keep: list[Any]) -> Step:
    s, p, arith, sweep, cut = r.situation, r.problem, r.arith, form.sweep, form.cut
    last, lane, size = sweep[-1], lane_of(s), r.x.itemsize
    flat, written = len(sweep) == 1, r.y.itemsize
    name = "flat_lines" if flat else "lines"
    label = f"depthwise {name} {size} {written} {lane}"
    address = address_of(r, label, name, Driver, lambda k, name: driver(k, name, size, written, lane, flat))
    of_sweep = (last.taps, last.first_tap, last.tap_step)
    weights = r.packed(("depthwise line", arith.name, of_sweep), lambda: _packed(r.weights(sweep)))
    kinds = Counter(across for across, _ in cut.entries)  # the last may have less
    count, *others = kinds.values()
    entries = words([tap * last.dilation * size for _, tap in cut.entries])

    def of_line(o: Operand | None, step: int = 1) -> int:
        return 0 if o is None else o.c if flat else o.spatial[-2] * step

    panel = depthwise_plan.list_place(len(sweep))
    held = [Lines((), (), ())] * len(sweep)
    common, items = boxed_words(r, sweep, cut.box, held, block_groups=cut.chunk, panel=panel)
    values = LineWords(
        common=common, channels=p.c, chunk_channels=cut.chunk, together=cut.together,
        most=_MOST[r.target.registers], extra=cut.extra, copied=-(-cut.extra // lane), slot=cut.slot * size,
        weights=weights, w_channel=last.taps * arith.bytes, tiles=_tile_addresses(r, cut, tuple(kinds), sweep),
        settings=LineSettings(entries, epilogue_tables(r), count, sum(others)),
        x_line=of_line(r.x, sweep[-2:][0].stride), y_line=of_line(r.y), r_line=of_line(r.residual),
        channel_line=int(flat), ahead=AHEAD if _asks(s, sweep) else 0,
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _tile_addresses(r: Request, cut: Cut, kinds: tuple[int, ...], sweep: Sweep) -> list[Address[Line] | None]:
    """Addresses of the tiles that a step uses, by vectors; None for the others."""
    lane, most, out, asks = lane_of(r.situation), _MOST[r.target.registers], sweep[-1].out, _asks(r.situation, sweep)
    spec = DepthwiseLine(r.problem.x, r.problem.y, r.arith.accumulator, r.epilogue, kinds, asks)
    table: list[Address[Line] | None] = [None] * most
    extents = {-(-extent // lane) for extent in (min(cut.box[-1], out), out % cut.box[-1])}
    runs = {(most - count) // _TOGETHER for n in extents for _, count in near_equal(n, most)}
    for vectors in range(1, most + 1):  # each compiles in less than 50 ms
        if (most - vectors) // _TOGETHER not in runs:
            continue

        def tile(k: Module, vectors: int = vectors) -> None:
            depthwise_line(k, "tile", spec, lane, vectors, f16c=r.target.converts_f16)

        found = kernel(f"{spec} {lane} {vectors}", {"tile": Line}, tile, r.target, check=r.check)
        table[vectors - 1] = found["tile"]
    return table


def _packed(w: NDArray[Any]) -> NDArray[Any]:
    """Weights (groups, 1, 1, taps), channel after channel."""
    packed = aligned((w.shape[0], w.shape[3]), w.dtype)
    packed[:] = w[:, 0, 0]
    return packed
