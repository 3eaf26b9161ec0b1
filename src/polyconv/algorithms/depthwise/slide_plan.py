"""How a sliding window computes a sweep: along which axis, in which tiles and items, and what that costs.

Where lanes are channels it slides along the last axis, or that with most taps if the last has one; where they are
neighbouring pixels of the last axis, along the one before it.  The other taps are a list of entries.  Cost: the
multiply-adds, or the loads that rows of outputs share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from polyconv.algorithms.depthwise.parts import cut_for_threads, number_of_parts
from polyconv.algorithms.depthwise.situations import channel_bytes, far_bytes, lane_of, rates_of
from polyconv.dataclass import dataclass
from polyconv.dtypes import Dtype
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, inside, mean_taps
from polyconv.lowering.traffic import sets_met, ways

__all__ = ["Plan", "cost_of", "cycles_of_output", "order_name", "order_of", "plan_of"]

_MOST = {32: 16, 16: 7}
_HELD = {32: 26, 16: 14}
"""By vector registers: outputs of the largest tile; with the taps of an entry they must fit the registers beside
inputs, and beside the mask of vectors that are not full where there are no registers for masks."""

_ACROSS = {32: {1: 9, 2: 16}, 16: {2: 8}}
"""By vector registers and stride of the lanes: most taps of an entry with several across the lanes, whose loads they
share."""

_TAPS = 8
"""Most taps of an entry."""

_CHUNK = 1 / 8
"""Share of the second-level cache for the lines of an item's channels where lanes are pixels."""

_WINDOW = 1 / 4
"""The same for the lines of one window where lanes are channels.  Measured on Zen 3, 21 layers: with an eighth some of
a pixel's channels are read at a time, which takes 1.1 to 1.5 times as long where the input comes from memory."""

_VECTORS = (256, 1536)
"""Fewest and most bytes of an item's vectors where lanes are channels, for they lie together; longer lines are cut."""

_CHANNELS = (4, 64)
"""Fewest and most channels of an item where lanes are pixels; they share its lists."""

_MAP = 1 / 8
"""Share of the second-level cache beyond which a channel whose pixels come from memory is computed in bands of
``_BAND`` rows that ask for the next one: a strip down all of it meets a new line far away in every row."""

_BAND = 32
_LINE = 64
_LOAD = {(1, 1): 0.9, (1, 2): 1.1, (1, 3): 1.1, (2, 1): 5.4, (2, 2): 4.6, (2, 3): 7.0}
"""Cycles of a load of pixels, by their stride and by taps across the lanes that share it.  Measured on Zen 5, of
vectors as long as a cache line.  Of shorter ones fewer cross a line: at a stride they take ``_SHORT`` of that."""
_SHORT = 0.75
_FAR_LOAD = 20.0
"""Of pixels further apart."""
_START, _STORE, _ENTRY_STARTS, _EDGE = 30.0, 2.5, 3.0, 0.5
_SHORTER = 0.5
"""Cycles of starting a tile, of a result, of starting an entry, and of a position that may lie outside.  Measured on
Zen 5, of vectors as long as a cache line; those of shorter ones, whose tiles are smaller, overlap by half."""
_SCATTERED, _SCATTERED_PIXEL = {1: 0.0, 2: 1.5}, 0.4
"""More cycles in which a vector of results leaves whose pixels lie so far apart, and of each pixel that lies further.
Measured on Zen 5."""
_CHANNEL_LOAD = 0.9
"""Of channels that a first-level cache holds.  Measured on Zen 5."""
_MISSED, _COLLIDING = 2.2, 13.0
"""Cycles of a line that the first-level cache does not hold: of any, and, by the sets that pixels meet which lie some
lines apart, where these also push each other out of the second one.  Measured on Zen 5, by vectors of a line and of
half a one, in strided windows and in pixels 1, 2 and 4 KiB apart."""
_NARROW_LOAD, _NARROW_STORE = 0.4, 1.5
"""Cycles less of a load and of a result, times the share of a vector that integers narrower than sums leave: fewer
cross a line.  Measured on Zen 5."""
_WIDENED, _ONE_BY_ONE = {1: 0.15, 2: 0.045}, {1: 0.5, 2: 0.19}
"""Where elements of so many bytes are widened without masks they come one by one: cycles more of each product for a
lane at stride 1, and by how much longer a load takes for a lane beyond.  Measured on Zen 5 at AVX2: i8 takes 2 to 7
times as long as f32, bf16 and i16 1.4 to 3.5 times; at SSE2, with half the lanes, about half as much longer."""

_AHEAD = 256
"""Multiply-adds of a tile below which a CPU begins the next before it ends, so that two chains of sums wait at once.
Measured on Zen 5."""

_FAR_ROW = 30.0
"""Most cycles that a row waits for whose taps share no inputs with those of the next, a line of the map further on."""

_LEAST_ROWS = 6
"""Outputs of the largest tile, at least, where it has fewer so that the pixels of a line do not push each other out."""

_SHORT_LINE = 12
"""Outputs of the last axis below which phases of transposed convolutions may slide along another one: measured, longer
lines that are written in parts cost a quarter more than prices say."""
_UNUSUAL = 1.1
"""By how much windows over channels must slide faster along another axis than the usual one: prices are no truer."""

_LIST, _ENTRY = 100.0, {"c": 7.0, "p": 15.0}
"""Cycles of a list and of an entry, by what lanes are.  Measured on Zen 5."""

_APART = 0.65
"""Of the cycles of loads that wait, those in which no products run where an item has some of a pixel's channels, of
which the CPU foresees no line, and weights beyond half a first-level cache.  Measured on Zen 5, windows of 49 to 961
taps, 128 to 1024 channels: 0.4 to 0.85, in three axes 1.2."""

_FAR_SHARE = 2.5
"""Lines of a window, by those that the first-level cache holds, from which on tiles wait for them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one sweep is cut: the sliding axis, what a tile does along it, and the box of an item.

    Parameters
    ----------
    lanes : str
        ``c`` for channels, ``p`` for pixels.
    channels : int
        Channels of a vector of pixels.
    repeats : int
        Neighbouring lanes of channels that have the same input.
    order : tuple of int
        Which axis of the problem each axis of the sweep is; -1 for one that is added to slide along.
    sweep : Sweep
        In this order.
    slid : int
        The sliding axis.
    stride, dilation, phases : int
        Steps between outputs of a tile; input positions between steps; sets of outputs that share inputs.
    kinds : tuple of tuple
        Kinds of entries, in the words of ``KindWords``.
    most : int
        Outputs of the largest tile.
    chunk : int
        Channels of an item.
    box : tuple of int
        Outputs of an item along every axis.
    ahead : bool
        Whether items are bands of a map, or planes, and ask for what the next one needs.
    """

    lanes: str
    channels: int
    repeats: int
    order: tuple[int, ...]
    sweep: Sweep
    slid: int
    stride: int
    dilation: int
    phases: int
    kinds: tuple[tuple[int, ...], ...]
    most: int
    chunk: int = 0
    box: tuple[int, ...] = ()
    ahead: bool = False

    @property
    def taps(self) -> int:
        """Taps of all axes."""
        return math.prod(axis.taps for axis in self.sweep)

    def across(self, lane: int) -> int:
        """Channels of results in a vector."""
        return lane // self.repeats * self.repeats if self.lanes == "c" else self.channels

    @property
    def axis(self) -> int | None:
        """The problem's axis along which the window slides; None if it is an added one."""
        return None if self.order[self.slid] < 0 else self.order[self.slid]

    @property
    def own_sweep(self) -> Sweep:
        """The sweep with its axes in the problem's order."""
        return tuple(self.sweep[self.order.index(a)] for a in sorted(self.order))

    @property
    def outer(self) -> Sweep:
        """Axes before the sliding one."""
        return self.sweep[: self.slid]

    @property
    def entries(self) -> int:
        """Entries of a combination of outer taps."""
        return sum(kind[0] * kind[3] for kind in self.kinds)


def order_of(sweep: Sweep, pixels: bool) -> tuple[int, ...]:
    """The axes, the one to slide along last as usual: where lanes are channels, one that has several taps."""
    axes = tuple(range(len(sweep)))
    if pixels or sweep[-1].taps != 1 or any(axis.out_step > 1 for axis in sweep):
        return axes
    slid = max(axes, key=lambda a: (sweep[a].taps, a))
    return (*(a for a in axes if a != slid), slid)


def order_name(plans: Sequence[Plan]) -> str:
    """Along which axes windows over channels slide, if not as ``order_of`` says: taps are summed in that order."""
    usual = [plan.lanes == "p" or plan.order == order_of(plan.own_sweep, False) for plan in plans]
    return "" if all(usual) else "+".join(f"along {plan.axis}" for plan in plans)


@lru_cache(512)
def plan_of(s: Situation, sweep: Sweep, pixels: bool, order: tuple[int, ...] | None = None) -> Plan:
    """How a sweep is cut, its axes in an order."""
    p, lane, registers = s.problem, lane_of(s), s.target.registers
    if order is None:
        order = order_of(sweep, pixels)
        whole_lines = all(axis.out_step == 1 for axis in sweep)
        if not pixels and len(sweep) > 1 and (whole_lines or sweep[-1].out < _SHORT_LINE):
            others = [(*(a for a in order if a != slid), slid) for slid in sorted(order) if slid != order[-1]]
            plans = [plan_of(s, sweep, pixels, each) for each in (order, *others)]
            return min(plans, key=lambda plan: s.price(plan.order, sum(cost_of(s, plan)) * (
                1.0 if plan is plans[0] else _UNUSUAL)))  # fmt: skip
    sweep = tuple(sweep[a] for a in order)
    if pixels and len(sweep) == 1:
        order, sweep = (-1, *order), (Axis(1, 1, 1, 1, 1, 0), *sweep)
    slid = len(sweep) - (2 if pixels else 1)
    axis, last = sweep[slid], sweep[-1]
    stride, dilation, phases, parts = _window(axis)
    channels = 2 if pixels and last.stride == 1 and lane >= 4 and 2 * last.out <= lane and p.c % 2 == 0 else 1
    widest = max((size for _, size in parts), default=1)
    across = next((n for n in (3, 2) if n * widest <= _ACROSS[registers].get(last.stride, 0)), 1)
    across = across if channels == 1 else 1
    mask = registers == 16 and (last.out if pixels else p.c) % lane > 0
    most = min(_MOST[registers], _HELD[registers] - mask - widest * across)
    if not pixels and not slid:
        fitting = (ways(s) * sets_met(s, _pitch(s, None)) - axis.taps) // stride + 1
        most = min(most, fitting) if fitting >= _LEAST_ROWS else most
    kinds = _kinds_of_entries(parts, _groups(last, across) if pixels else [(1, 1)], sweep[:slid])
    plan = Plan(
        "p" if pixels else "c", channels, p.m // p.groups, order, sweep, slid, stride, dilation, phases, kinds, most
    )
    plan = _items_of_pixels(s, plan) if pixels else _items_of_channels(s, plan)
    cut = slid if pixels or not slid else slid - 1
    return replace(plan, box=cut_for_threads(s, sweep, plan.box, plan.chunk, cut, most if cut == slid else 1))


def _window(axis: Axis) -> tuple[int, int, int, list[tuple[int, int]]]:
    """Stride, dilation and phases of a window along an axis, and its rows of taps: how many there are of which size."""
    g = math.gcd(axis.stride, axis.dilation)
    stride, phases = axis.stride // g, axis.dilation // g
    if axis.taps <= 1 or stride > 2 or (phases > 1 and axis.out < 4 * phases):  # outputs would share nothing
        return 1, axis.stride, 1, [(axis.taps, 1)]
    number = -(-axis.taps // _TAPS)
    size, larger = divmod(axis.taps, number)
    return stride, axis.dilation, phases, [(n, t) for n, t in ((larger, size + 1), (number - larger, size)) if n]


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
    """Records in the words of ``KindWords``, and with them the order of a sum."""
    kinds, before, across_before = [], 0, 0
    for number, across in groups:
        first = 0
        for rows, taps in parts:
            kinds.append((rows, taps, first, number, across, across_before, before))
            before += math.prod(axis.taps for axis in outer) * rows * taps * number * across
            first += rows * taps
        across_before += number * across
    return tuple(kinds)


def _items_of_pixels(s: Situation, plan: Plan) -> Plan:
    """With channels and box of an item whose lanes are pixels."""
    p, slid, last = s.problem, plan.sweep[plan.slid], plan.sweep[-1]
    least, most = _CHANNELS
    map_bytes = slid.inp * last.inp * p.x_dtype.itemsize
    fitting = min(most, s.cache("l2", _CHUNK) // max(1, map_bytes)) // plan.channels * plan.channels
    box = [*(1 for _ in plan.outer), max(1, slid.out), max(1, last.out)]
    streamed = p.c * channel_bytes(s, plan.sweep)
    large = streamed > far_bytes(s) and (plan.slid > 0 or map_bytes > s.cache("l2", _MAP))
    if plan.phases > 1 or not large:
        return replace(plan, chunk=min(p.c, max(least, fitting)), box=tuple(box))
    if not plan.slid:
        box[0] = min(box[0], _BAND)
    return replace(plan, chunk=plan.channels, box=tuple(box), ahead=True)


def _items_of_channels(s: Situation, plan: Plan) -> Plan:
    """With channels and box of an item whose lanes are channels."""
    p, lane, slid = s.problem, lane_of(s), plan.sweep[-1]
    if not plan.slid:
        return replace(plan, chunk=p.m, box=(max(1, slid.out),))
    *outer, before = plan.outer
    least, most = (size // s.target.vector_bytes for size in _VECTORS)
    held, wanted = slid.inp * p.x_dtype.itemsize * lane * before.taps, s.cache("l2", _WINDOW)
    chunk = min(p.m, plan.across(lane) * max(least, min(most, wanted // max(1, held))))
    cuts = -(-held * chunk // lane // wanted) if chunk <= lane * least else 1
    line = -(-max(1, slid.out) // max(1, min(cuts, slid.out // plan.most)))
    return replace(plan, chunk=chunk, box=(*(1 for _ in outer), max(1, before.out), line))


def _waits(s: Situation, plan: Plan) -> bool:
    """Whether tiles over channels wait for loads, since lines of a window push each other out of the first cache.

    Pixels that lie some lines apart meet only some of its sets.
    """
    slid, last = plan.sweep[plan.slid], plan.axis == s.problem.rank - 1
    outer = math.prod(min(axis.taps, axis.inp) for axis in plan.outer)
    reach = min(slid.inp, (plan.most - 1) * slid.stride + (slid.taps - 1) * slid.dilation + 1)
    held = outer * (slid.inp if last and outer > 1 else reach)
    return held > (_FAR_SHARE if last else 1.0) * ways(s) * sets_met(s, _pitch(s, plan.axis))


def _pitch(s: Situation, axis: int | None) -> int:
    """Bytes from a position of an axis to the next, where channels lie together."""
    p = s.problem
    behind = 1 if axis is None else math.prod(int(e or 0) for e in p.i[axis + 1 :])
    return p.c * p.x_dtype.itemsize * behind


def cost_of(s: Situation, plan: Plan) -> tuple[float, float]:
    """Cycles of the tiles of a sweep, and of its lists."""
    p, last, slid = s.problem, plan.sweep[-1], plan.sweep[plan.slid]
    pixels, lane, rates = plan.lanes == "p", lane_of(s), rates_of(s)
    strips = -(-last.out // (lane // plan.channels)) if pixels else 1
    vectors = strips * -(-p.m // plan.across(lane))
    lines = math.prod(axis.out for axis in plan.outer)
    tiles = number_of_parts(slid.out, plan.phases, plan.most)
    rows = slid.out / max(1, tiles)
    met = math.prod(mean_taps(axis) for axis in plan.outer)  # rows of the window that meet the input
    share = mean_taps(slid) / max(1, slid.taps)
    widened = 0.0 if s.target.has_masks or not pixels or last.stride > 1 else _WIDENED.get(p.x_dtype.itemsize, 0.0)
    entry, overlap = 0.0, _SHORTER if s.target.vector_bytes < _LINE else 1.0
    weights = plan.taps * plan.chunk * p.x_dtype.itemsize
    part = not pixels and plan.chunk < p.m and weights > s.profile.numbers["l1.bytes"] / 2 and _waits(s, plan)
    alone = 0.5 if plan.taps * rows < _AHEAD else 1.0
    for number, taps, _, groups, across, *_ in plan.kinds:
        load = _load_cycles(s, plan, across) * 2.0 / rates.loads
        loads = ((rows - 1) * plan.stride + taps) * load + taps * across / 2
        products = share * rows * taps * across * (1 / rates.multiply_adds + lane * widened)
        waited = rates.latency * alone * taps * across
        together = products + _APART * share * loads if part else max(products, share * loads)
        entry += number * groups * (max(together, waited) + _ENTRY_STARTS * overlap)
    positions = plan.stride * min(rows, slid.out) + slid.taps
    edges = 0.0 if inside(slid) == range(slid.out) else _EDGE * overlap * plan.entries * positions
    apart = min(_FAR_ROW, 0.75 * last.inp * p.x_dtype.itemsize / _LINE) if pixels and slid.taps == 1 < slid.out else 0.0
    scattered = _SCATTERED.get(last.out_step, _SCATTERED_PIXEL * min(lane, last.out)) if pixels else 0.0
    stored = overlap * (_STORE - (0.0 if pixels else _NARROW_STORE * _narrow(s, p.y_dtype)))
    if not s.target.has_masks and p.y_dtype.itemsize < 4 and lane % plan.repeats:
        stored += lane  # one by one
    each = _START * overlap + (stored + apart + scattered) * rows + met * (entry + edges / max(1, tiles))
    lists = lines * -(-p.m // plan.chunk) * (_LIST + min(3, strips) * met * plan.entries * _ENTRY[plan.lanes])
    return lines * vectors * tiles * each, lists


def cycles_of_output(s: Situation) -> float:
    """Cycles in which tiles begin and store a vector of channels, at least, beside its products."""
    stored = _STORE - _NARROW_STORE * _narrow(s, s.problem.y_dtype)
    return (stored + _START / _MOST[s.target.registers]) * (_SHORTER if s.target.vector_bytes < _LINE else 1.0)


def _load_cycles(s: Situation, plan: Plan, across: int) -> float:
    """Cycles of a load that so many taps across the lanes share."""
    p, stride, short = s.problem, plan.sweep[-1].stride, _SHORT if s.target.vector_bytes < _LINE else 1.0
    whole = lane_of(s) % plan.repeats == 0  # else vectors have lanes that do not count
    if plan.lanes == "p":
        one_by_one = 0.0 if s.target.has_masks or stride == 1 else _ONE_BY_ONE.get(p.x_dtype.itemsize, 0.0)
        each = _LOAD.get((stride, across), _FAR_LOAD) * (short if stride > 1 else 1.0)
        return each * (1.0 + lane_of(s) * one_by_one)
    if not _waits(s, plan):
        one_by_one = 0.0 if whole or s.target.has_masks else _ONE_BY_ONE.get(p.x_dtype.itemsize, 0.0)
        return short * _CHANNEL_LOAD * (1.0 + lane_of(s) * one_by_one) - _NARROW_LOAD * _narrow(s, p.x_dtype)
    return max(_MISSED, _COLLIDING / sets_met(s, _pitch(s, plan.axis))) * s.target.vector_bytes / _LINE


def _narrow(s: Situation, dtype: Dtype) -> float:
    """Share of a vector that integers leave which are narrower than their sums."""
    return 0.0 if dtype.is_float else 1.0 - lane_of(s) * dtype.itemsize / s.target.vector_bytes
