"""How a depthwise convolution is cut, and what that costs.

A window slides along one axis: where lanes are channels that lie together the last one, or that with most taps if the
last has one; where lanes are neighbouring pixels of the last the one before it.  The other taps are a list of entries.
Cost: the multiply-adds, or the loads that rows of outputs share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from polyconv.algorithms.depthwise_driver import ENTRY_BYTES
from polyconv.algorithms.program import Situation, accumulator_arithmetic, image_bytes
from polyconv.algorithms.sweep import Axis, Sweep, mean_taps, sweeps
from polyconv.kernels.depthwise import LIST_HEADER
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.problem.problem import Problem

__all__ = [
    "FAR_BYTES", "FAR_SHARE", "Plan", "applicable", "by_pixels", "cost", "cost_of", "interior", "list_place",
    "order_of", "parts_of_phases", "plan_of", "repeated", "window_share", "workspace",
]  # fmt: skip

_MOST = {32: 16, 16: 7}
_HELD = {32: 26, 16: 15}
"""By vector registers: outputs of the largest tile; with the taps of an entry they must fit the registers beside
inputs."""

_ACROSS = {32: {1: 9, 2: 16}, 16: {2: 8}}
"""By vector registers and stride of the lanes: most taps of an entry with several across the lanes, whose loads they
share."""

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
_WIDENED, _ONE_BY_ONE = {1: 0.15, 2: 0.045}, {1: 0.5, 2: 0.19}
"""Where elements of so many bytes are widened without masks they come one by one: cycles more of each product for a
lane at stride 1, and by how much longer a load takes for a lane beyond.  Measured on Zen 5 at AVX2: i8 takes 2 to 7
times as long as f32, bf16 and i16 1.4 to 3.5 times; at SSE2, with half the lanes, about half as much longer."""

_FAR_ROW = 30.0
"""Most cycles that a row waits for whose taps share no inputs with those of the next, a line of the map further on."""

_SETS, _WAYS = 64, 12
"""Of the first-level cache."""

_LEAST_ROWS = 6
"""Outputs of the largest tile, at least, where it has fewer so that the pixels of a line do not push each other out."""

FAR_SHARE = 2.5
"""Lines of a window, by those that it holds, from which on tiles wait for them."""


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
        Kinds of entries, in the words of ``KindWords``.
    most : int
        Outputs of the largest tile.
    chunk : int
        Channels of an item.
    box : tuple of int
    banded : bool
        Whether items are bands of a map, or planes, and ask for what the next one needs.
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
    rows = _MOST[s.target.registers]
    if axis.taps > 1 and axis.stride // g <= 2 and (phases == 1 or axis.out >= 4 * phases):
        stride, dilation, parts = axis.stride // g, axis.dilation, _parts(axis.taps)
    else:  # a window would share nothing
        stride, dilation, phases, parts = 1, axis.stride, 1, [(axis.taps, 1)]
    last = sweep[-1]
    channels = 2 if pixels and last.stride == 1 and lane >= 4 and 2 * last.out <= lane and p.c % 2 == 0 else 1
    widest = max((size for _, size in parts), default=1)
    across = next((n for n in (3, 2) if n * widest <= _ACROSS[s.target.registers].get(last.stride, 0)), 1)
    across = across if channels == 1 else 1
    rows = min(rows, _HELD[s.target.registers] - widest * across)
    if not pixels and not slid:
        fitting = (_WAYS * _sets(p) - axis.taps) // stride + 1
        rows = min(rows, fitting) if fitting >= _LEAST_ROWS else rows
    kinds = _kinds_of_entries(parts, _groups(last, across) if pixels else [(1, 1)], sweep[:slid])
    row_bytes = last.inp * p.x_dtype.itemsize
    if pixels:
        least, most = _CHANNELS
        fitting = min(most, s.near(_CHUNK_BYTES) // max(1, row_bytes * axis.inp)) // channels * channels
        chunk = min(p.c, max(least, fitting))
    else:
        held = row_bytes * lane * (sweep[-2].taps if slid else 1)
        vectors = max(_LEAST_VECTORS, min(24, s.near(_CHUNK_BYTES) // max(1, held)))
        chunk = p.m if not slid else min(p.m, lane // repeats * repeats * vectors)
    box = [1] * slid + [max(1, axis.out) for axis in sweep[slid:]]
    read, written = (math.prod(extents) for extents in zip(*((a.inp, a.out) for a in sweep), strict=True))
    streamed = p.c * (read * p.x_dtype.itemsize + written * p.y_dtype.itemsize)
    large = streamed > s.near(FAR_BYTES) and (slid > 0 or row_bytes * axis.inp > s.near(_MAP_BYTES))
    banded = pixels and phases == 1 and large
    if banded:
        chunk = channels
    if banded and not slid:
        box[slid] = min(box[slid], _BAND)
    if not pixels and slid:
        box[slid - 1] = max(1, sweep[slid - 1].out)
        cuts = -(-held * chunk // lane // s.near(_CHUNK_BYTES)) if chunk <= lane * _LEAST_VECTORS else 1
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


def by_pixels(p: Problem) -> bool:
    """Whether lanes are pixels, in arrays that lie as the layout says."""
    return p.layout == "NCHW" or p.c == 1


def _repeats(p: Problem) -> int:
    """Outputs of a channel."""
    return p.m // p.groups


def repeated(s: Situation) -> bool:
    """Whether lanes that are channels can hold an input as often as it has outputs."""
    return _repeats(s.problem) <= lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)])


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose") or p.c != p.groups or not p.m or (p.c == 1 and p.m > 1):
        return "computes conv and conv_transpose with one input channel a group"
    if not by_pixels(p) and not repeated(s):
        return "repeats an input within a vector"
    if p.quantisation is not None and p.quantisation.zx is not None:
        return "inputs with a zero point are converted in a panel"
    if math.prod(p.k) > _MOST_TAPS:
        return f"lists at most {_MOST_TAPS} taps, the kernel has {math.prod(p.k)}"
    if not s.finite and by_pixels(p):
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
    pixels = by_pixels(p)
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
    slid = plan.sweep[plan.slid]
    outer = math.prod(min(axis.taps, axis.inp) for axis in plan.outer)
    reach = (plan.most - 1) * slid.stride + (slid.taps - 1) * slid.dilation
    held = outer * min(slid.inp, slid.inp if outer > 1 else reach + 1)
    return held / (_WAYS * _sets(s.problem))


def _sets(p: Problem) -> int:
    """Sets of the first-level cache that the same channel of different pixels meets."""
    pixel = p.c * p.x_dtype.itemsize
    return _SETS if pixel % _LINE else _SETS // math.gcd(pixel // _LINE, _SETS)


def cost_of(s: Situation, plan: Plan) -> tuple[float, float]:
    """Cycles of the tiles of a sweep, and of its lists."""
    p, last, slid = s.problem, plan.sweep[-1], plan.sweep[plan.slid]
    arith, pixels = ARITHMETIC[accumulator_arithmetic(s)], plan.lanes == "p"
    lane, rates = lanes(s.target, arith), s.rates(arith)
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
    widened, one_by_one = 0.0, 1.0
    if pixels and not s.target.has_masks:
        widened = lane * _WIDENED.get(p.x_dtype.itemsize, 0.0) if last.stride == 1 else 0.0
        one_by_one += lane * _ONE_BY_ONE.get(p.x_dtype.itemsize, 0.0) if last.stride > 1 else 0.0
    entry = 0.0
    for number, taps, _, groups, across, *_ in plan.kinds:
        load = (_LOAD.get((last.stride, across), 20.0) * one_by_one if pixels else channel_load) * 2.0 / rates.loads
        loads = ((rows - 1) * plan.stride + taps) * load + taps * across / 2
        products = inside * rows * taps * across * (1 / rates.multiply_adds + widened)
        waited = rates.latency / 2 * taps * across
        entry += number * groups * (max(products, inside * loads, waited) + 3)
    guarded = sum(kind[0] * kind[3] for kind in plan.kinds)
    positions = plan.stride * min(rows, slid.out) + slid.taps
    edges = 0.0 if plan.held or interior(slid) == (0, slid.out) else 0.5 * guarded * positions
    apart = min(_FAR_ROW, 0.75 * last.inp * p.x_dtype.itemsize / _LINE) if pixels and slid.taps == 1 < slid.out else 0.0
    each = 30 + (2.5 + apart) * rows + met * (entry + edges / max(1, tiles))
    lists = lines * -(-p.m // plan.chunk) * (150 + min(3, strips) * met * guarded * 30)
    return lines * vectors * tiles * each, lists


def parts_of_phases(extent: int, phases: int, most: int) -> int:
    """Parts that ``near_equal_parts`` visits."""
    size, larger = divmod(extent, phases)
    return larger * -(-(size + 1) // most) + (phases - larger) * -(-size // most)


def order_of(sweep: Sweep, pixels: bool) -> tuple[int, ...]:
    """The axes, the one to slide along last: where lanes are channels it may be any.

    Of phases of a transposed convolution it stays the last: measured, lines written in parts cost more than they save.
    """
    axes = tuple(range(len(sweep)))
    if pixels or sweep[-1].taps != 1 or any(axis.out_step > 1 for axis in sweep):
        return axes
    slid = max(axes, key=lambda a: (sweep[a].taps, a))
    return (*(a for a in axes if a != slid), slid)


def interior(axis: Axis) -> tuple[int, int]:
    """Outputs low..high whose taps all lie inside."""
    low = min(axis.out, max(0, -(-axis.pad // axis.stride)))
    high = min(axis.out, (axis.inp - 1 - (axis.taps - 1) * axis.dilation + axis.pad) // axis.stride + 1)
    return low, max(low, high)
