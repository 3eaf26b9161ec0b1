"""Depthwise convolution in place: one input channel a group, any rank.

A window slides along one axis: where lanes are channels that lie together the last one, or that with most taps if the
last has one; where lanes are neighbouring pixels of the last the one before it.  The other taps are a list of entries.
Padded taps are left out of the list, padded positions of the window are skipped, padded lanes are masked: nothing is
copied.  Arrays that lie otherwise than their layout says are read as they lie, and their sums run in that order.
Several outputs of a channel are convolutions of their own where lanes are pixels; else inputs are repeated in lanes.
Cost: the multiply-adds, or the loads that rows of outputs share.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.panel import COMMON, Item, Words, axis_record, decode
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    common_words,
    fill_words,
    image_bytes,
    near_equal,
    zeros,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep, mean_taps, sweeps
from polyconv.kernels.depthwise import ENTRY, LIST_HEADER, SETTINGS, DepthwiseTile, depthwise_tile
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.objects import kernel
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned, words

__all__ = [
    "ENTRY_BYTES", "FAR_BYTES", "FAR_SHARE", "WORDS", "Plan", "applicable", "box_step", "build", "cost", "cost_of",
    "list_place", "near_equal_parts", "order_of", "parts_of_phases", "place_of", "plan_of", "shares", "step_of",
    "tiles_of_row", "turned", "window_share", "workspace", "write_list",
]  # fmt: skip

_MOST = {"avx512": 16, "avx2": 7, "baseline": 7}
_HELD = {"avx512": 26, "avx2": 15, "baseline": 15}
"""Outputs of the largest tile; with the taps of an entry they must fit the registers beside inputs."""

_ACROSS = {"avx512": {1: 9, 2: 16}, "avx2": {2: 8}, "baseline": {2: 8}}
"""By stride of the lanes: most taps of an entry with several across the lanes, whose loads they share."""

_TAPS = 8
"""Most taps of an entry."""

_MOST_TAPS = 4096
_CHUNK_BYTES = 128 << 10
"""Input that the channels of an item share: of all lines where lanes are pixels, else of one line's window."""

_LEAST_VECTORS = 4
"""Vectors of channels of an item where lanes are channels, for they lie together; lines longer than that are cut."""

_CHANNELS = (4, 64)
"""Fewest and most channels of an item where lanes are pixels; they share its lists."""

FAR_BYTES = 12 << 20
"""Input and result that come from memory itself: asking early for them gains much, and costs where caches hold them."""

_MAP_BYTES = 128 << 10
"""Input of a channel beyond which pixels that come from memory are computed in bands of ``_BAND`` rows that ask for the
next one: a strip down all of it meets a new line far away in every row."""

_BAND = 32
_LINE = 64
_LOAD = {(1, 1): 0.9, (1, 2): 1.1, (1, 3): 1.1, (2, 1): 5.4, (2, 2): 4.6, (2, 3): 7.0}
"""Cycles of a load of pixels, by their stride and by taps across the lanes that share it."""

_SETS, _WAYS = 64, 12
"""Of the first-level cache."""

FAR_SHARE = 2.5
"""Lines of a window, by those that it holds, from which on tiles wait for them."""

ENTRY_BYTES = 8 * len(ENTRY)

WORDS = (
    *COMMON,
    "slid", "channels", "chunk_channels", "lanes", "repeats", "masked", "taps_outer", "*tap_offsets", "lane_step",
    "lane_reach", "lane_span", "lane_dilation", "reach", "kind_count", "*kinds", "dilation", "phases", "most", "list",
    "*weights", "w_shared", "w_vector", "w_tap", "*tiles", "*settings", "x_far", "x_asked", "y_far", "y_asked", "held",
)  # fmt: skip
"""The driver's words; along the lanes an entry counts in steps of ``lane_step`` elements, at most ``lane_span``."""

KIND = ("parts", "taps", "first", "groups", "across", "first_across", "weights")
"""A kind of entry: how many rows of taps of which size, from which tap on, along the sliding axis and across the lanes;
where its weights begin, in taps."""


def driver(k: Module, name: str, pixels: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; lanes are channels or ``pixels``."""
    with k.function(name, "buffer", "buffer", "int", "buffer") as (frame, table, number, workspace):
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
        _ask(k, place[0] + p.x_far + number * p.x_asked, p.x_asked)
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
        k.call(
            k.buffer(p.buffer("tiles") + (kind * p.most + rows - 1) * 16), p.buffer("settings"),
            x + o * slid.stride * slid.x_stride, entries, weights, y + o * slid.y_stride,
            r + o * slid.r_stride, channel, channels, used, start,
        )  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Plan:
    """How one sweep is cut: the sliding axis, what a tile does along it, and the box of an item.

    Parameters
    ----------
    lanes : str
        ``c`` or ``p``.
    channels : int
        Channels of a vector of pixels.
    repeats : int
        Neighbouring lanes of channels that have the same input.
    sweep : Sweep
        With an axis to slide along.
    slid : int
        The sliding axis.
    stride, dilation, phases : int
        Steps between outputs of a tile; input positions between steps; sets of outputs that share inputs.
    kinds : tuple of tuple
        Kinds of entries, in the words of ``KIND``.
    most : int
        Outputs of the largest tile.
    chunk : int
        Channels of an item.
    box : tuple of int
    banded : bool
        Whether items are bands of a map and ask for what follows them.
    held : bool
        Whether positions outside the input along the sliding axis hold zeros.
    """

    lanes: str
    channels: int
    repeats: int
    sweep: Sweep
    slid: int
    stride: int
    dilation: int
    phases: int
    kinds: tuple[tuple[int, ...], ...]
    most: int
    chunk: int
    box: tuple[int, ...]
    banded: bool
    held: bool = False

    @property
    def taps(self) -> int:
        """Taps of all axes."""
        return math.prod(axis.taps for axis in self.sweep)

    def across(self, lane: int) -> int:
        """Channels of results in a vector."""
        return lane // self.repeats * self.repeats if self.lanes == "c" else self.channels

    @property
    def outer(self) -> Sweep:
        """Axes before the sliding one."""
        return self.sweep[: self.slid]


@lru_cache(512)
def plan_of(s: Situation, sweep: Sweep, pixels: bool) -> Plan:
    """How a sweep is cut, whose axis to slide along is in place."""
    p, lane = s.problem, lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)])
    repeats = _repeats(p)
    if pixels and len(sweep) == 1:
        sweep = (Axis(1, 1, 1, 1, 1, 0), *sweep)
    slid = len(sweep) - (2 if pixels else 1)
    axis = sweep[slid]
    g = math.gcd(axis.stride, axis.dilation)
    phases = axis.dilation // g
    rows = _MOST[s.target.level]
    if axis.taps > 1 and axis.stride // g <= 2 and (phases == 1 or axis.out >= 4 * phases):
        stride, dilation, parts = axis.stride // g, axis.dilation, _parts(axis.taps)
    else:  # a window would share nothing
        stride, dilation, phases, parts = 1, axis.stride, 1, [(axis.taps, 1)]
    last = sweep[-1]
    channels = 2 if pixels and last.stride == 1 and lane >= 4 and 2 * last.out <= lane and p.c % 2 == 0 else 1
    widest = max((size for _, size in parts), default=1)
    across = next((n for n in (3, 2) if n * widest <= _ACROSS[s.target.level].get(last.stride, 0)), 1)
    across = across if channels == 1 else 1
    rows = min(rows, _HELD[s.target.level] - widest * across)
    kinds = _kinds_of_entries(parts, _groups(last, across) if pixels else [(1, 1)], sweep[:slid])
    row_bytes = last.inp * p.x_dtype.itemsize
    if pixels:
        least, most = _CHANNELS
        chunk = min(p.c, max(least, min(most, _CHUNK_BYTES // max(1, row_bytes * axis.inp)) // channels * channels))
    else:
        held = row_bytes * lane * (sweep[-2].taps if slid else 1)
        vectors = max(_LEAST_VECTORS, min(24, _CHUNK_BYTES // max(1, held)))
        chunk = p.m if not slid else min(p.m, lane // repeats * repeats * vectors)
    box = [1] * slid + [max(1, axis.out) for axis in sweep[slid:]]
    streamed = p.c * axis.inp * row_bytes + p.c * axis.out * last.out * p.y_dtype.itemsize
    banded = pixels and phases == 1 and not slid and row_bytes * axis.inp > _MAP_BYTES and streamed > FAR_BYTES
    if banded:
        chunk, box[slid] = channels, min(box[slid], _BAND)
    if not pixels and slid:
        box[slid - 1] = max(1, sweep[slid - 1].out)
        cuts = -(-held * chunk // lane // _CHUNK_BYTES) if chunk <= lane * _LEAST_VECTORS else 1
        box[slid] = -(-box[slid] // max(1, min(cuts, box[slid] // rows)))
    if s.threads > 1:
        items = (p.n or 0) * -(-p.m // chunk) * math.prod(-(-a.out // b) for a, b in zip(sweep, box, strict=True))
        if items < 4 * s.threads:
            cut = slid if pixels or not slid else slid - 1
            box[cut] = max(min(rows, box[cut]), -(-box[cut] // -(-4 * s.threads // max(1, items))))
    name = "p" if pixels else "c"
    return Plan(name, channels, repeats, sweep, slid, stride, dilation, phases, kinds, rows, chunk, tuple(box), banded)


def _parts(taps: int) -> list[tuple[int, int]]:
    """Near-equal rows of taps: how many have one tap more, and how many have not."""
    number = -(-taps // _TAPS)
    size, larger = divmod(taps, number)
    return [(n, t) for n, t in ((larger, size + 1), (number - larger, size)) if n]


def _groups(axis: Axis, most: int) -> list[tuple[int, int]]:
    """Groups of taps across the lanes that share loads, and taps of each."""
    if axis.dilation != 1 or axis.taps == 0:
        return [(axis.taps, 1)]
    whole, rest = divmod(axis.taps, most)
    if most == 3 and axis.stride == 2 and axis.taps > 3:  # the third vector costs a load and a permutation more
        rest = axis.taps % 2 * 3
        return [(n, across) for n, across in ((rest // 3, 3), ((axis.taps - rest) // 2, 2)) if n]
    return [(n, across) for n, across in ((whole, most), (int(rest > 0), rest)) if n]


def _kinds_of_entries(
    parts: list[tuple[int, int]], groups: list[tuple[int, int]], outer: Sweep
) -> tuple[tuple[int, ...], ...]:
    """Records in the words of ``KIND``, and with them the order of a sum."""
    kinds, before, across_before = [], 0, 0
    for number, across in groups:
        first = 0
        for rows, taps in parts:
            kinds.append((rows, taps, first, number, across, across_before, before))
            before += math.prod(axis.taps for axis in outer) * rows * taps * number * across
            first += rows * taps
        across_before += number * across
    return tuple(kinds)


def _pixels(p: Problem) -> bool:
    """Whether lanes are pixels, in arrays that lie as the layout says."""
    return p.layout == "NCHW" or p.c == 1


def _repeats(p: Problem) -> int:
    """Outputs of a channel."""
    return p.m // p.groups


def _repeated(s: Situation) -> bool:
    """Whether lanes that are channels can hold an input as often as it has outputs."""
    return _repeats(s.problem) <= lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)])


def shares(r: Request) -> list[Request]:
    """Requests for one output of every channel each, for lanes that are pixels."""
    p, times = r.problem, _repeats(r.problem)
    if times == 1:
        return [r]

    def share(j: int) -> Request:
        def of(o: Operand) -> Operand:
            return replace(o, c=o.c * times, offset=o.offset + j * o.c)

        def packed(key: Any, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
            return r.packed((j, key), make)

        def some(a: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if a is None else np.ascontiguousarray(a[j::times])

        return replace(
            r, situation=replace(r.situation, problem=replace(p, m=p.groups)), y=of(r.y),
            residual=r.residual and of(r.residual), weights=lambda sweep: r.weights(sweep)[:, j : j + 1],
            packed=packed, bias=some(r.bias), scale=some(r.scale),
        )  # fmt: skip

    return [share(j) for j in range(times)]


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose") or p.c != p.groups or not p.m or (p.c == 1 and p.m > 1):
        return "computes conv and conv_transpose with one input channel a group"
    if not _pixels(p) and not _repeated(s):
        return "repeats an input within a vector"
    if p.quantisation is not None and p.quantisation.zx is not None:
        return "inputs with a zero point are converted in a panel"
    if math.prod(p.k) > _MOST_TAPS:
        return f"lists at most {_MOST_TAPS} taps, the kernel has {math.prod(p.k)}"
    if not s.finite and _pixels(p):
        return "weights hold Inf or NaN, which would meet the masked lanes of the padding"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs: a list of entries."""
    return list_place(s.problem.rank + 1) + LIST_HEADER + ENTRY_BYTES * (math.prod(s.problem.k) + 1)


def list_place(rank: int) -> int:
    """Where an item's list lies in the workspace, behind its box."""
    return -(-24 * rank // 64) * 64


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds or loads of tiles, starting tiles; lists; at least the stream of input and result."""
    p = s.problem
    pixels = _pixels(p)
    times = _repeats(p) if pixels else 1
    if times > 1:
        s = replace(s, problem=replace(p, m=p.groups))
    plans = [plan_of(s, tuple(sweep[a] for a in order_of(sweep, pixels)), pixels) for sweep in sweeps(p)]
    terms = [cost_of(s, plan) for plan in plans]
    products, moves = (times * sum(t[i] for t in terms) for i in range(2))
    streamed = sum(image_bytes(p)) / 30.0
    batch = p.n or 0
    return {"products": max(products, streamed) * batch, "moves": moves * batch}


def window_share(s: Situation, plan: Plan) -> float:
    """Lines of the window of a row of outputs by those that the first-level cache holds, where lanes are channels.

    Pixels that lie some lines apart meet only some of its sets.
    """
    pixel, slid = s.problem.c * s.problem.x_dtype.itemsize, plan.sweep[plan.slid]
    outer = math.prod(min(axis.taps, axis.inp) for axis in plan.outer)
    reach = (plan.most - 1) * slid.stride + (slid.taps - 1) * slid.dilation
    held = outer * min(slid.inp, slid.inp if outer > 1 else reach + 1)
    sets = _SETS if pixel % _LINE else _SETS // math.gcd(pixel // _LINE, _SETS)
    return held / (_WAYS * sets)


def cost_of(s: Situation, plan: Plan) -> tuple[float, float]:
    """Cycles of the tiles of a sweep, and of its lists."""
    p, last, slid = s.problem, plan.sweep[-1], plan.sweep[plan.slid]
    lane, pixels = lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)]), plan.lanes == "p"
    strips = -(-last.out // (lane // plan.channels)) if pixels else 1
    vectors = strips * -(-p.m // plan.across(lane))
    lines = math.prod(axis.out for axis in plan.outer)
    tiles = parts_of_phases(slid.out, plan.phases, plan.most)
    rows = slid.out / max(1, tiles)
    met = math.prod(mean_taps(axis) for axis in plan.outer)  # rows of the window that meet the input
    inside = 1.0 if plan.held else mean_taps(slid) / max(1, slid.taps)
    channel_load = 0.9
    if not pixels and not plan.held and window_share(s, plan) > FAR_SHARE:
        channel_load = 3.5 if p.c * p.x_dtype.itemsize % 4096 else 7.0
    entry = 0.0
    for number, taps, _, groups, across, *_ in plan.kinds:
        load = _LOAD.get((last.stride, across), 20.0) if pixels else channel_load
        loads = ((rows - 1) * plan.stride + taps) * load + taps * across / 2
        products = inside * rows * taps * across / 2
        entry += number * groups * (max(products, inside * loads, 2.0 * taps * across) + 3)
    guarded = sum(kind[0] * kind[3] for kind in plan.kinds)
    positions = plan.stride * min(rows, slid.out) + slid.taps
    edges = 0.0 if plan.held or _interior(slid) == (0, slid.out) else 0.5 * guarded * positions
    each = 30 + 2.5 * rows + met * (entry + edges / tiles)
    lists = lines * -(-p.m // plan.chunk) * (150 + min(3, strips) * met * guarded * 30)
    return lines * vectors * tiles * each, lists


def parts_of_phases(extent: int, phases: int, most: int) -> int:
    """Parts that ``near_equal_parts`` visits."""
    size, larger = divmod(extent, phases)
    return larger * -(-(size + 1) // most) + (phases - larger) * -(-size // most)


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    pixels = _over_pixels(r)
    name = "pixels" if pixels else "channels"
    found = kernel(f"depthwise {name}", (name,), lambda k: driver(k, name, pixels), r.target, check=r.check)
    steps = []
    for one, sweep in itertools.product(shares(r) if pixels else [r], sweeps(r.problem)):
        order = order_of(sweep, pixels)
        axes = tuple(sweep[a] for a in order)
        plan = plan_of(one.situation, axes, pixels)
        steps.append(step_of(turned(one, sweep, order), plan, axes, found[name], keep))
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def order_of(sweep: Sweep, pixels: bool) -> tuple[int, ...]:
    """The axes, the one to slide along last: where lanes are channels it may be any.

    Of phases of a transposed convolution it stays the last: measured, lines written in parts cost more than they save.
    """
    axes = tuple(range(len(sweep)))
    if pixels or sweep[-1].taps != 1 or any(axis.out_step > 1 for axis in sweep):
        return axes
    slid = max(axes, key=lambda a: (sweep[a].taps, a))
    return (*(a for a in axes if a != slid), slid)


def turned(r: Request, sweep: Sweep, order: tuple[int, ...]) -> Request:
    """A request with its axes in another order."""
    if order == tuple(range(len(sweep))):
        return r

    def of(o: Operand) -> Operand:
        return replace(o, spatial=tuple(o.spatial[a] for a in order))

    def weights(_: Sweep) -> NDArray[Any]:
        w = r.weights(sweep)
        apart = w.reshape(*w.shape[:3], *(axis.taps for axis in sweep))
        return apart.transpose(0, 1, 2, *(3 + a for a in order)).reshape(w.shape)

    def packed(key: Any, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        return r.packed((order, key), make)

    residual = None if r.residual is None else of(r.residual)
    return replace(r, x=of(r.x), y=of(r.y), residual=residual, weights=weights, packed=packed)


def box_step(r: Request, sweep: Sweep, box: tuple[int, ...], chunk: int, keep: list[Any]) -> Step:
    """Step whose items are boxes of outputs of ``chunk`` channels, for algorithms that have some done again."""
    pixels = _over_pixels(r)
    name = "pixels" if pixels else "channels"
    address = kernel(f"depthwise {name}", (name,), lambda k: driver(k, name, pixels), r.target, check=r.check)[name]
    plan = plan_of(r.situation, sweep, pixels)
    box = (1,) * (len(plan.sweep) - len(sweep)) + box
    return step_of(r, replace(plan, box=box, chunk=chunk, banded=False), sweep, address, keep)


def _over_pixels(r: Request) -> bool:
    """Whether lanes are pixels: as the input lies, of which there are more loads than stores of the result."""
    channels, pixels = (stride == r.x.itemsize for stride in (r.x.c, r.x.spatial[-1]))
    if channels == pixels or r.problem.c == 1 or not r.situation.finite or not _repeated(r.situation):
        return _pixels(r.problem)
    return pixels


def step_of(r: Request, plan: Plan, sweep: Sweep, address: int, keep: list[Any], **more: int) -> Step:
    """Step of a sweep by a driver whose words are ``WORDS`` and ``more``."""
    p, arith = r.problem, r.arith
    if len(plan.sweep) > len(sweep):
        r = replace(r, x=_with_axis(r.x), y=_with_axis(r.y), residual=r.residual and _with_axis(r.residual))
    lane, slid, last = lanes(r.target, arith), plan.sweep[plan.slid], plan.sweep[-1]
    wide, step = (lane, plan.across(lane)) if plan.lanes == "c" else (1, lane // plan.channels)
    offsets: list[list[int]] = [[]]
    for axis in plan.outer:
        offsets = [[*o, t * axis.dilation] for o in offsets for t in range(axis.taps)]
    of_sweep = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    weights = r.packed(
        ("depthwise", arith.name, plan.lanes, lane, plan.kinds, of_sweep),
        lambda: _packed_weights(r.weights(sweep), plan, lane, step),
    )
    held, groups = [Lines((), (), ())] * len(plan.sweep), plan.chunk // plan.repeats
    values = common_words(r, plan.sweep, plan.box, held, 1, keep, groups)
    values.update({
        "slid": plan.slid, "channels": p.m, "chunk_channels": plan.chunk, "lanes": step,
        "repeats": plan.repeats, "masked": int(lane % step > 0),
        "taps_outer": len(offsets), "tap_offsets": words([v for o in offsets for v in o]),
        "lane_step": 1 if last.stride == 2 else last.stride, "lane_reach": (last.taps - 1) * last.dilation,
        "lane_span": 2 * lane - 2 if last.stride == 2 else lane // plan.channels - 1, "lane_dilation": last.dilation,
        "reach": (slid.taps - 1) * slid.dilation, "kind_count": len(plan.kinds),
        "kinds": words([v for kind in plan.kinds for v in kind]), "dilation": slid.dilation, "phases": plan.phases,
        "most": plan.most, "list": list_place(len(plan.sweep)),
        "weights": weights, "w_shared": min(wide, step), "w_vector": wide * plan.taps * arith.bytes,
        "w_tap": wide * arith.bytes, "tiles": words(_tile_addresses(r, plan)),
        "settings": fill_words(SETTINGS, _settings(r, plan, lane), keep),
        "panel": 0, "scratch": 0, "held": int(plan.held), **_asks(r, plan, lane), **more,
    })  # fmt: skip
    return Step(address, fill_words((*WORDS, *more), values, keep), values["items"])


def _asks(r: Request, plan: Plan, lane: int) -> dict[str, int]:
    """Where what follows an item's band begins, and bytes of it that a strip asks for, as if rows lay together."""
    p, slid, last = r.problem, plan.sweep[plan.slid], plan.sweep[-1]
    rows, strips = plan.box[plan.slid] * plan.banded, -(-last.out // lane)
    read, written = rows * slid.stride * last.inp * p.x_dtype.itemsize, rows * last.out * p.y_dtype.itemsize
    return {
        "x_far": read, "x_asked": -(-read // max(1, strips)), "y_far": written,
        "y_asked": -(-written // max(1, strips)),
    }  # fmt: skip


def _settings(r: Request, plan: Plan, lane: int) -> dict[str, Any]:
    """What the tiles of a step share."""
    slid, last, across = plan.sweep[plan.slid], plan.sweep[-1], plan.across(lane)
    residual = r.residual or Operand(0, 0, (0,) * len(plan.sweep), 0, 1)
    step = plan.phases * slid.out_step

    def lanes_apart(o: Operand, pixels: int) -> int:
        return o.c if plan.lanes == "c" else o.spatial[-1] * pixels

    return {
        "x_channel": across * r.x.c // plan.repeats, "x_step": plan.dilation * r.x.spatial[plan.slid],
        "x_lane": lanes_apart(r.x, last.stride), "x_element": r.x.spatial[-1],
        "w_channel": (lane if plan.lanes == "c" else across) * plan.taps * r.arith.bytes, "y_channel": across * r.y.c,
        "y_step": step * r.y.spatial[plan.slid], "y_lane": lanes_apart(r.y, last.out_step),
        "r_channel": across * residual.c, "r_step": step * residual.spatial[plan.slid],
        "r_lane": lanes_apart(residual, last.out_step), "unit": plan.dilation, "extent": slid.inp,
        "bias": zeros() if r.bias is None else r.bias, "scale": zeros() if r.scale is None else r.scale,
        "constants": r.constants,
    }  # fmt: skip


def _with_axis(o: Operand) -> Operand:
    return replace(o, spatial=(0, *o.spatial))


def _lying(plan: Plan, o: Operand, step: int) -> str:
    """How the lanes of an operand lie: together, every second element, or any way."""
    if plan.lanes == "c":
        return "1" if o.c == o.itemsize else "any"
    if o.spatial[-1] * step == o.itemsize:
        return "1"
    return "2" if o.spatial[-1] == o.itemsize and step == 2 else "any"


def _tile_addresses(r: Request, plan: Plan) -> list[int]:
    """Addresses of the tiles that a step uses, by kind and outputs; 0 for the others."""
    p, last, lane = r.problem, plan.sweep[-1], lanes(r.target, r.arith)
    writes = _lying(plan, r.y, last.out_step)
    if r.residual is not None and (writes == "2" or writes != _lying(plan, r.residual, last.out_step)):
        writes = "any"
    reads = "1" if plan.held else _lying(plan, r.x, last.stride)
    if reads == "any" and plan.lanes == "p" and last.stride == 2:
        reads = "any2"
    spec = DepthwiseTile(
        p.x, p.y, r.arith.accumulator, r.epilogue, plan.lanes, reads, writes, plan.stride,
        tuple((taps, across) for _, taps, _, _, across, *_ in plan.kinds), plan.channels, plan.repeats,
    )  # fmt: skip
    table = [0] * (2 * 4 * plan.most)
    slid, box = plan.sweep[plan.slid].out, plan.box[plan.slid]
    phases = {n for extent in (min(box, slid), slid % box) for n in (extent // plan.phases, -(-extent // plan.phases))}
    sizes = {size for n in phases for _, size in near_equal(n, plan.most)}
    for kind, rows in itertools.product(_kinds(plan, p.m, lane), sorted(sizes)):  # each compiles in less than 50 ms
        edge, masked = kind >= 2, kind % 2 == 1

        def tile(k: Module, rows: int = rows, edge: bool = edge, masked: bool = masked) -> None:
            depthwise_tile(k, "tile", spec, lane, rows, f16c=r.target.level != "baseline", edge=edge, masked=masked)

        label = f"{spec} {lane} {rows}{' edge' * edge}{' masked' * masked}"
        found = kernel(label, ("tile",), tile, r.target, check=r.check)
        table[2 * (kind * plan.most + rows - 1)] = found["tile"]
    return table


def _kinds(plan: Plan, channels: int, lane: int) -> list[int]:
    """Kinds of tiles that the driver may ask for: 1 for masked ones, 2 for those at an edge."""
    slid, last = plan.sweep[plan.slid], plan.sweep[-1]
    if plan.lanes == "c":
        partial = plan.across(lane) < lane
        masked = [m for m, there in ((0, channels >= lane and not partial), (1, channels % lane or partial)) if there]
    else:
        lane //= plan.channels
        first, end = _interior(last)
        whole = -(-first // lane) * lane + lane <= end
        masked = [m for m, there in ((0, whole), (1, first > 0 or end < last.out or last.out % lane)) if there]
    low, high = _interior(slid)
    edges = [e for e, there in ((0, high > low), (2, low > 0 or high < slid.out)) if there]
    if plan.held:
        edges = [0]
    return [e + m for e in edges for m in masked]


def _interior(axis: Axis) -> tuple[int, int]:
    """Outputs low..high whose taps all lie inside."""
    low = min(axis.out, max(0, -(-axis.pad // axis.stride)))
    high = min(axis.out, (axis.inp - 1 - (axis.taps - 1) * axis.dilation + axis.pad) // axis.stride + 1)
    return low, max(low, high)


def _packed_weights(w: NDArray[Any], plan: Plan, lane: int, step: int) -> NDArray[Any]:
    """Weights (groups, outputs, 1, taps) as rows of taps in the list's order, for every vector of channels."""
    channels, taps = w.shape[0] * w.shape[1], plan.taps
    outer = math.prod(axis.taps for axis in plan.outer)
    w = w.reshape(channels, outer, plan.sweep[plan.slid].taps, -1 if taps else 0)
    flat = np.zeros((channels, taps), w.dtype)
    for rows, size, first, groups, across, first_across, before in plan.kinds:
        part = w[:, :, first : first + rows * size, first_across : first_across + groups * across]
        part = part.reshape(channels, outer, rows, size, groups, across).transpose(0, 1, 2, 4, 5, 3)
        flat[:, before : before + outer * rows * size * groups * across] = part.reshape(channels, -1)
    if plan.lanes == "p":
        packed = aligned((channels, taps), w.dtype)
        packed[:] = flat
        return packed
    vectors = -(-channels // step)
    wide = aligned((vectors, taps, lane), w.dtype)
    padded = np.zeros((vectors * step, taps), w.dtype)
    padded[:channels] = flat
    wide[:, :, :step] = padded.reshape(vectors, step, taps).transpose(0, 2, 1)
    return wide
