"""Fused Winograd convolution: kernels of 2 to 12 taps along one axis or two.

A box of tiles is brought to the transform domain, every point is a small matrix product by the same
channel tile as the direct algorithm, and sums come back tile by tile; axes that are not transformed
sum their taps in the transform domain, as further entries of the list.  Where kernels have a single tap along the
last axis, tiles are one output wide.  Cost: (m + r - 1)^2 products for m^2 outputs, the transforms, and the
transformed weights streaming once per box.  A box may hold tiles of several images of a batch; which outputs make a
tile, and by which scheme, is decided for one.

A stride s splits an axis into s phases, inputs s apart, each with every s-th tap: their products are summed in the
transform domain as if phases were channels.  A phase with a tap less than others does without the point at
infinity: a 3x3 kernel of stride 2 by F(3,2) takes 16 + 12 + 12 + 9 products for 9 outputs, where a direct sum takes 81.

Outputs of one residue modulo a dilation are a convolution without dilation of the inputs of a residue: tiles take
inputs, and give outputs, a dilation apart.  A box holds tiles of many residues, all multiplied by the same weights.

Where a dilation leaves one output or two of a residue, and their taps meet no other inputs than those below them,
three taps take three products for two outputs, one for one.

Many taps are summed in parts as well, inputs a part apart: 7 taps by F(3,4) take 6 + 5 products for 3 outputs.

Tiles one output short skip the point at infinity with the same weights, so edges waste nothing.
Error: window bound, k eps max|x| sum|w| over a tile's inputs; admitted in accuracy "fast" only.  Tiles
with a non-finite value are done again by the direct algorithm, which spreads it no further
than it belongs.  Sources: Winograd 1980; Lavin and Gray 2015; points after Barabasz et al. 2020.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from polyconv.algorithms import packing
from polyconv.algorithms.dense.plan import again_workspace, sweep_cost, sweep_workspace
from polyconv.algorithms.program import (
    Situation,
    accumulator_arithmetic,
    apart_cycles,
    far_cycles,
    is_apart,
    near_equal,
    near_equal_sizes,
    of_one_image,
    planes_collide,
    scheme_of,
    tile_cycles,
    transform_refusal,
)
from polyconv.algorithms.sweep import (
    Axis,
    Bands,
    Lines,
    Sweep,
    anywhere,
    bands,
    lines,
    residue_lines,
    share_met,
    sweeps,
)
from polyconv.dtypes import DTYPES
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, channel_tile, lanes
from polyconv.kernels.tile import ROW_WORDS
from polyconv.kernels.transform import Closed, Scheme
from polyconv.machine.profile import Rates
from polyconv.problem.problem import Problem

__all__ = [
    "NEAR_BYTES", "Cut", "Plan", "again_box", "applicable", "at_least", "bound", "cost", "is_stacked", "order",
    "outer_bands", "parts", "scheme", "shared", "turned", "workspace",
]  # fmt: skip

_PAIRS = (5 / 8, 3 / 2)

# Schemes by number of taps, the largest tile first.  Measured rms errors in two dimensions, as multiples of that
# of a direct f32 sum, for 16 / 32 / 64 channels: F(3,2) 1.1 / 0.9 / 0.9, F(5,2) with F(3,2) 1.9 / 1.7 / 1.6 (along one
# axis alone 2.1 / 1.9 / 1.8), F(2,3) 0.8 / 0.7 / 0.6, F(2,5) 1.5 / 1.3 / 1.2, F(3,4) 1.6 / 1.4 / 1.4, F(4,3) 2.2 /
# 1.9 / 1.8 with these points, which are exact in binary (2.3 / 2.0 / 1.9 with 2^-1/2 and 2^1/2, 2.4 / 2.1 / 2.0 with
# 3/4 and 3/2); for 5 taps in parts as well 2.2 / 1.96 / 1.8.  F(2,7) stayed above 2 with all points tried: left out.
SCHEMES: dict[int, tuple[Scheme, ...]] = {
    2: (Scheme(5, 2, _PAIRS), Scheme(3, 2, (1.0,))),
    3: (Scheme(4, 3, _PAIRS), Scheme(2, 3, (1.0,))),
    4: (Scheme(3, 4, _PAIRS),),
    5: (Scheme(2, 5, _PAIRS),),
}
_MOST_TAPS = 12
"""Taps along an axis that are taken in parts, each by the scheme for its number."""
_LEAST_TERMS = 32
"""Products a point must sum for F(4,3) along both axes, and for F(5,2): short direct sums are more accurate than twice
their error.  With strides along both, 5x5 kernels, F(4,3) came to 2.02 times that of a direct sum, and is not admitted;
nor is F(5,2) along both axes."""
_NONE, _CLOSED = Scheme(1, 1), Closed()

TRANSFORMED_BYTES, _LARGEST_BYTES = 4 << 20, 16 << 20
"""Most workspace of a box; most where nothing less will do.  Beyond the second-level cache transformed inputs are read
again from the third, once per block of outputs; every box less saves a pass over the transformed weights.  With 8 MiB
one thread measured the same, two up to twice as long: they push each other's out of that cache."""

_DEPTHS = (1, 2, 4, 8, 16)
"""Most outputs of a box along the last axis that is not transformed."""
_LEAST_RESIDUES = 16
"""Residues along the last axis that a box may be cut down to: inputs and outputs of so many lie together."""

NEAR_BYTES, _FAR_BYTES = 1 << 20, 48.0
"""Workspace that stays in a second-level cache, and bytes a cycle that cost time where it does not."""
_NEAR_LINE = 640 << 10
"""The same where one axis is transformed: half as many products for each byte."""
_PANEL_BYTES = 32 << 10
"""Panel that stays in a first-level cache until it is transformed: of as many channels at a time as fit."""
_MOST_TOGETHER, _SUMS_BYTES = 4, 352 << 10
"""Most blocks of outputs whose sums are held together, and most bytes of these: every block that is alone reads all
transformed inputs again.  Measured: 3 to 10 % off on maps of 7 to 28 with 256 channels and more, 8 blocks no better."""
_STREAMED, _MEMORY_BYTES = ((512 << 10, 32.0), (4 << 20, 24.0), (25 << 20, 14.0), (40 << 20, 11.0)), 8.0
"""Bytes a cycle at which transformed weights stream in, by how many there are; and from memory."""
_FEW_TILES, _FROM_FAR, _SOONER = 4, 4 << 20, 1.3
"""Tiles of an only box up to which little else is read, so that more weights than these come so much sooner."""
_SLOWER, _TRANSFORM_CYCLES = 1.15, 3.6
"""Cycles of products for every one that they would take at full speed; those of a transformed vector."""
_ONE_AXIS, _TWO_TAPS = 0.85, 1.05
"""Share of the cycles of two axes in which a vector of one comes and goes; all that two taps along one take longer."""
_WORTH_STACKING = 0.95
"""Share of the cycles of images alone from which on boxes hold several: of large maps that gains nothing, and threads
lost up to a tenth by it."""
_COUNTED_ITEMS = 64
"""Items of a thread up to which it counts how they fall."""
_WORTH_CUTTING = 0.95
"""Share of the cycles of the busiest thread from which on boxes are cut for it."""
_SHARED_BYTES = 25 << 20
"""Transformed weights that come from memory, for which threads wait together."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Inputs a stride apart along each transformed axis.

    Parameters
    ----------
    taps : (int, int)
        First tap along the two axes.
    line, pixel : int
        Where they begin in a panel.
    counts : (int, int)
        Taps along the two axes.
    full : (bool, bool)
        Whether they are as many as the schemes take.
    """

    taps: tuple[int, int]
    line: int
    pixel: int
    counts: tuple[int, int]
    full: tuple[bool, bool]

    def enters(self, kind: int) -> bool:
        """Whether it has products at the points of a kind: 1 infinity along the last axis, 2 along the one before."""
        return (self.full[1] or not kind & 1) and (self.full[0] or not kind & 2)


@dataclass(frozen=True, slots=True)
class Cut:
    """The tiles of a box along one axis: outputs of some neighbouring residues modulo the dilation.

    Parameters
    ----------
    first : int
        First output of the first residue; the others follow it.
    apart : int
        Outputs between neighbours in a tile: the dilation.
    residues : int
        Without dilation there is one; no box has more than the first.
    sizes : tuple of int
        Outputs of each tile of the first residue, full ones first.
    whole : int
        Residues that are like the first; the last tile of the others has an output less.
    tiles, full : int
        Number of tiles of all residues, and of those that are not short.
    """

    first: int
    apart: int
    residues: int
    sizes: tuple[int, ...]
    whole: int
    tiles: int
    full: int

    @property
    def outputs(self) -> int:
        """Outputs of the first residue, which no other exceeds."""
        return sum(self.sizes)

    @property
    def span(self) -> int:
        """Outputs from the first to the last."""
        return self.apart * (self.outputs - 1) + self.whole

    @property
    def segments(self) -> tuple[int, int, int]:
        """Runs of outputs next to each other, a dilation apart: how many, outputs of each, and of the last."""
        if self.residues == self.apart:
            return 1, self.span, self.span
        return self.outputs, self.residues, self.whole

    @property
    def covers(self) -> int:
        """Number of outputs."""
        return self.residues * sum(self.sizes) - (self.residues - self.whole)

    @property
    def alike(self) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """Neighbouring residues with equal tiles: the first, how many, the outputs of each tile."""
        fewer = (*self.sizes[:-1], *((self.sizes[-1] - 1,) if self.sizes[-1] > 1 else ()))
        groups = (0, self.whole, self.sizes), (self.whole, self.residues - self.whole, fewer)
        return tuple(group for group in groups if group[1])


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one sweep: its schemes, how outputs are cut into tiles and tiles into boxes, where things lie."""

    y: Scheme
    x: Scheme
    transformed: int
    rows: tuple[Cut, ...]
    columns: tuple[Cut, ...]
    outer: tuple[int, ...]
    held: tuple[Lines, ...]
    phases: tuple[Phase, ...]
    points: tuple[int, int, int, int]  # how many there are of each kind
    by_kind: tuple[int, int, int, int]  # phases that have products at points of each kind
    products: int  # of an input channel and an output channel: points, each by the phases that enter it
    vectors: int
    last_vectors: int
    blocks: int
    together: int  # blocks of outputs whose sums are held at a time
    tiles: int
    line_bytes: int
    block_bytes: int
    chunk: int
    v_block: int
    v_line: int
    v_phase: int
    v_point: int
    s_point: int
    out_line: int
    panel: int
    v: int
    sums: int
    out: int
    flags: int
    row_notes: int
    notes: int
    workspace: int

    @property
    def vectors_out(self) -> int:
        """Vectors of output channels; the last block may have one less than others."""
        return (self.blocks - 1) * self.vectors + self.last_vectors

    def kind(self, point: int) -> int:
        """Kind of a point: along which of its axes short tiles do without it."""
        low_end = self.transformed == 2 and point >= (self.y.n - self.y.ends) * self.x.n
        return 2 * low_end + (point % self.x.n >= self.x.n - self.x.ends)

    @property
    def point_phases(self) -> list[int]:
        """Phases that have products, by point."""
        rows = [
            [self.by_kind[kind]] * (self.x.n - self.x.ends) + [self.by_kind[kind + 1]] * self.x.ends for kind in (0, 2)
        ]  # fmt: skip
        ends = self.y.ends if self.transformed == 2 else 0
        return rows[0] * (self.y.n - ends) + rows[1] * ends


def tile_sizes(out: int, m: int) -> tuple[int, ...]:
    """Cut outputs into tiles of m, the last ones one short where that ends exactly; else the last is cut."""
    count = -(-out // m)
    short = count * m - out
    if m > 1 and short <= count:
        return (m,) * (count - short) + (m - 1,) * short
    return (m,) * (count - 1) + (out - (count - 1) * m,)


_ALONE = (Cut(0, 1, 1, (1,), 1, 1, 1),)
"""The one row of an axis that is not there."""


def _cut(first: int, apart: int, residues: int, sizes: tuple[int, ...], whole: int, m: int) -> Cut:
    """Some tiles of an axis, those of ``m`` outputs full."""
    last, fewer = sizes[-1], residues - whole
    full = residues * sizes.count(m) + fewer * ((last - 1 == m) - (last == m))
    return Cut(first, apart, residues, sizes, whole, residues * len(sizes) - fewer * (last == 1), full)


@lru_cache(1024)
def _cuts(axis: Axis, m: int, most: int, residues: int) -> tuple[Cut, ...]:
    """An axis in boxes of at most so many tiles of each residue and so many residues.

    Which outputs make a tile is the same for all boxes.
    """
    apart = axis.dilation
    sizes = tile_sizes(-(-axis.out // apart), m)
    longer = axis.out % apart or apart  # residues with as many outputs as the first
    found = []
    for low, together in near_equal(apart, residues):
        done = 0
        for first, count in near_equal(len(sizes), most):
            here = sizes[first : first + count]
            whole = together if first + count < len(sizes) else min(max(longer - low, 0), together)
            cut = _cut(low + done * apart, apart, together, here, whole, m)
            done += sum(here)
            if whole:
                found.append(cut)
            elif fewer := cut.alike[0][2]:
                found.append(_cut(cut.first, apart, together, fewer, together, m))
    return tuple(found)


def _schemes(sweep: Sweep, channels: int) -> list[tuple[Scheme, Scheme]]:
    """Pairs of schemes for the last two axes that a sweep admits; F(1, 1) stands for an axis left alone."""
    terms = channels * math.prod(axis.taps for axis in sweep[:-2])

    def admits(axis: Axis) -> bool:
        return 1 in (axis.dilation, axis.stride) and bool(_options(axis)) and axis.out > axis.dilation

    found: list[tuple[Scheme, Scheme]] = []
    last = sweep[-1]
    alone = last.taps == 1
    if not (admits(last) or alone) or not all(axis.taps and axis.out for axis in sweep):
        return found
    if alone:
        found += [(y, _NONE) for y in _options(sweep[-2])] if len(sweep) > 1 and admits(sweep[-2]) else []
    elif len(sweep) > 1 and admits(sweep[-2]):
        strided = 1 not in (sweep[-2].stride, last.stride)
        found += [
            (y, x) for y, x in itertools.product(_options(sweep[-2]), _options(last))
            if y.m + x.m < 8 or not (strided and y.r == x.r == 3)
        ]
    else:
        found += [(_NONE, x) for x in _options(last)]
    return [pair for pair in found if _is_accurate(*pair, terms)]


def _is_accurate(y: Scheme, x: Scheme, terms: int) -> bool:
    """Whether errors of points that sum so many products stay below twice those of direct sums."""
    if 5 in (y.m, x.m):
        return terms >= _LEAST_TERMS and min(y.m, x.m) < 4 and max(y.r, x.r) < 4
    return terms >= _LEAST_TERMS or y.m + x.m < 8


def _options(axis: Axis) -> tuple[Scheme, ...]:
    """Schemes for the most taps of a phase of a stride, or for parts of many taps at stride 1."""
    taps = -(-axis.taps // axis.stride)
    if axis.stride == 1 and max(SCHEMES) < taps <= _MOST_TAPS:
        return SCHEMES[4][0], SCHEMES[3][0]
    if axis.stride == 1 and taps == 5:  # in parts of 3 and 2 they take 11 products for 4 outputs, not 6 for 2
        return SCHEMES[3][0], *SCHEMES[5]
    if axis.stride == 1 and taps == 3 and axis.pad == axis.dilation and axis.inp <= axis.out <= 2 * axis.dilation:
        return _CLOSED, *SCHEMES[3]
    # F(5,2) is as inaccurate for a phase of a single tap, whose direct sum is half as long
    return tuple(scheme for scheme in SCHEMES.get(taps, ()) if scheme.m < 5 or axis.taps % axis.stride == 0)


def _phases(sweep: Sweep, held: Sequence[Lines], transformed: int, schemes: tuple[Scheme, Scheme]) -> tuple[Phase, ...]:
    """Phases of the transformed axes: parts of the taps at stride 1; else a run of lines holds the inputs of one."""

    def along(axis: Axis, lines: Lines, scheme: Scheme) -> list[tuple[int, int, int]]:
        """First tap, where it lies, number of taps."""
        if axis.stride == 1:
            parts = range(0, axis.taps, scheme.r)
            return [(tap, lines.start[tap], min(scheme.r, axis.taps - tap)) for tap in parts]
        return [(tap, first, len(range(tap, axis.taps, axis.stride))) for first, _, tap in lines.runs]

    y, x = schemes
    rows = along(sweep[-2], held[-2], y) if transformed == 2 else [(0, 0, 1)]
    return tuple(
        Phase((ty, tx), line, pixel, (tall, wide), (tall == y.r, wide == x.r))
        for (ty, line, tall), (tx, pixel, wide) in itertools.product(rows, along(sweep[-1], held[-1], x))
    )


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> tuple[Plan | None, dict[str, float]]:
    """The cheapest schemes and boxes with their cycles; None where the sweep admits no scheme."""
    transformed = min((1 if y is _NONE else 2 for y, _ in _schemes(sweep, s.problem.c // s.problem.groups)), default=0)
    return _plan_anywhere(s, arith, tuple(
        # pads of other axes say which taps are left out, those of three taps whether their scheme may be the closed one
        anywhere(axis, 0 if after < transformed and axis.taps != 3 else axis.pad)
        for axis, after in zip(sweep, reversed(range(len(sweep))), strict=True)
    ))  # fmt: skip


@lru_cache(256)
def _plan_anywhere(s: Situation, arith: Arithmetic, sweep: Sweep) -> tuple[Plan | None, dict[str, float]]:
    """The same for a sweep that may lie anywhere in result and kernel."""
    best, least, cycles = None, math.inf, dict[str, float]()
    for bound, (y, x) in _likeliest(s, arith, sweep):  # others then cannot win
        if bound >= least:
            break
        for plan in _candidates(s, arith, sweep, y, x):
            terms = _cost(s, arith, sweep, plan)
            price = s.price(plan, sum(terms.values()))
            if price < least:
                best, least, cycles = plan, price, terms
    return best, cycles


@lru_cache(256)
def _likeliest(s: Situation, arith: Arithmetic, sweep: Sweep) -> list[tuple[float, tuple[Scheme, Scheme]]]:
    """Pairs of schemes with the least cycles of each, the likeliest first."""
    pairs = _schemes(sweep, s.problem.c // s.problem.groups)
    return sorted(((_scheme_at_least(s, arith, sweep, *pair), pair) for pair in pairs), key=lambda scheme: scheme[0])


def _scheme_at_least(s: Situation, arith: Arithmetic, sweep: Sweep, y: Scheme, x: Scheme) -> float:
    """Cycles that the products and transforms of two schemes take, whatever the boxes: most schemes need no more."""
    p, schemes = s.problem, (x,) if y is _NONE else (y, x)
    outer, inner = sweep[: -len(schemes)], sweep[-len(schemes) :]
    group_in, vectors = p.c // p.groups, -(-(p.m // p.groups) // lanes(s.target, arith))
    products = entering = tiles = 1
    for axis, scheme in zip(inner, schemes, strict=True):
        cuts = _cuts(axis, scheme.m, axis.out, axis.dilation)
        of_axis, full = sum(cut.tiles for cut in cuts), sum(cut.full for cut in cuts)
        step, taps = (scheme.r, axis.taps) if axis.stride == 1 else (axis.stride, axis.taps)
        phases = -(-taps // step) if axis.stride == 1 else min(step, taps)
        whole = taps // step if axis.stride == 1 else taps - (scheme.r - 1) * step
        products *= (scheme.n - scheme.ends) * phases * of_axis + scheme.ends * whole * full
        entering *= (scheme.n - scheme.ends) * phases + scheme.ends * whole
        tiles *= of_axis
    met = math.prod(axis.taps for axis in outer) * share_met(sweep, bands(outer, _LIST_BYTES))
    vectors_in = -(-group_in // ROW_WORDS) * (ROW_WORDS // lanes(s.target, arith))
    slower = s.transforming(arith)
    cycles = _SLOWER / s.rates(arith).multiply_adds * products * vectors * group_in * met
    transforms = _TRANSFORM_CYCLES * slower * tiles * (vectors * y.n * x.n + vectors_in * entering)
    cycles += transforms if len(schemes) == 2 else _ONE_AXIS * transforms
    return cycles * math.prod(axis.out for axis in outer) * (p.n or 0) * p.groups


def _candidates(s: Situation, arith: Arithmetic, sweep: Sweep, y: Scheme, x: Scheme, together: int = 0) -> list[Plan]:
    """Boxes of a few shapes whose transformed inputs fit."""
    transformed = 1 if y is _NONE else 2
    tall, high = _tiles(sweep[-2], y.m) if transformed == 2 else (1, 1)
    wide, across = _tiles(sweep[-1], x.m)

    def rows(most: int, residues: int) -> tuple[Cut, ...]:
        return _cuts(sweep[-2], y.m, most, residues) if transformed == 2 else _ALONE

    extents = tuple(axis.out for axis in sweep[: len(sweep) - transformed])
    depths = sorted({-(-extents[-1] // -(-extents[-1] // most)) for most in _DEPTHS}) if extents else [1]
    budget = s.budget(TRANSFORMED_BYTES)
    plans: dict[tuple[Any, ...], Plan] = {}

    def keep(of_rows: tuple[int, int], of_columns: tuple[int, int], outer: tuple[int, ...], room: int) -> Plan:
        """The plan of a box, which is a candidate if there is room; some are met twice."""
        key = of_rows, of_columns, outer
        columns = _cuts(sweep[-1], x.m, *of_columns)
        plan = plans.get(key) or _sizes(s, arith, sweep, y, x, rows(*of_rows), columns, outer, together)
        if plan.workspace <= room:
            plans[key] = plan
        return plan

    heights = [(most, high) for most in sorted({-(-tall // -(-tall // most)) for most in (1, 2, 3, 4, 7, tall)})]
    heights += [(tall, residues) for residues in sorted({1, 2, 3, -(-high // 2)}) if residues < high]
    for height, depth in itertools.product(heights, depths):
        keep(height, (wide, across), (*(1 for _ in extents[:-1]), depth) if extents else (), budget)
    near, single = min(_near(transformed), budget), (1,) * len(extents)
    for most in _halves(wide):  # a single row of tiles or parts of it, down to what stays near
        room = budget if plans or s.limit is not None else _LARGEST_BYTES
        if keep((1, 1), (most, across), single, room).workspace <= near:
            break
    for residues in _halves(across)[1:]:
        if residues < _LEAST_RESIDUES or keep((1, 1), (wide, residues), single, budget).workspace <= near:
            break
    return list(plans.values())


def _near(transformed: int) -> int:
    return NEAR_BYTES if transformed == 2 else _NEAR_LINE


def _halves(whole: int) -> list[int]:
    """A number, and what remains of it, halved again and again."""
    halves = [whole]
    while halves[-1] > 1:
        halves.append(-(-halves[-1] // 2))
    return halves


def _tiles(axis: Axis, m: int) -> tuple[int, int]:
    """Tiles of a residue, and residues."""
    return len(tile_sizes(-(-axis.out // axis.dilation), m)), axis.dilation


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, y: Scheme, x: Scheme, rows: tuple[Cut, ...],
           columns: tuple[Cut, ...], outer: tuple[int, ...], together: int = 0) -> Plan:  # fmt: skip
    """Sizes of a plan, with as many blocks of outputs together as said, or as fit."""
    p = s.problem
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane, transformed = lanes(s.target, arith), 1 if y is _NONE else 2
    vectors_out = -(-group_out // lane)
    vectors = min(vectors_out, 2)
    blocks = -(-vectors_out // vectors)
    tall, wide = max([len(cut.sizes) for cut in rows]), max([len(cut.sizes) for cut in columns])
    width = columns[0].residues * wide * x.m
    inner = (rows[0].residues, tall * y.m, y), (columns[0].residues, wide * x.m, x)
    held = (
        *(lines(axis, b) for axis, b in zip(sweep, outer, strict=False)),
        *(_lines(axis, *of) for axis, of in zip(sweep[-transformed:], inner[-transformed:], strict=True)),
    )
    row_bytes = ROW_WORDS * arith.bytes
    line_bytes = (held[-1].count | 1) * row_bytes
    all_lines = math.prod(h.count for h in held[:-1])
    block_bytes = all_lines * line_bytes + 64
    in_blocks = -(-group_in // ROW_WORDS)
    outer_lines = math.prod(h.count for h in held[: len(sweep) - transformed])
    tiles = max([cut.tiles for cut in rows]) * max([cut.tiles for cut in columns])
    v_line = tiles * row_bytes
    v_block = outer_lines * v_line
    phases = _phases(sweep, held, transformed, (y, x))
    points, by_kind = _points(transformed, y, x), _by_kind(tuple(phase.full for phase in phases))
    v_phase = in_blocks * v_block
    # an odd number of cache lines between points: their stores fall into different sets
    v_point = (-(-len(phases) * v_phase // 64) | 1) * 64
    sum_row = vectors * lane * arith.bytes
    sums_bytes = math.prod(outer) * tiles * sum_row
    if not together:
        most = 1 if s.limit is not None else min(_MOST_TOGETHER, s.near(_SUMS_BYTES) // (y.n * x.n * sums_bytes))
        together = -(-blocks // -(-blocks // max(1, most)))
    s_point = (-(-together * sums_bytes // 64) | 1) * 64
    out_line = (width + x.m) * sum_row
    header = -(-(24 * len(sweep)) // 64) * 64 + 256
    chunk_blocks = min(in_blocks, max(1, s.near(_PANEL_BYTES) // block_bytes))
    v = header + chunk_blocks * block_bytes
    sums = v + y.n * x.n * v_point
    out = sums + y.n * x.n * s_point
    flags = out + y.m * out_line
    again = again_workspace(s, arith, sweep, again_box(transformed, rows, columns, outer), vectors)
    flags = max(flags, v + again)
    row_notes = flags + 8 * (1 + blocks * (1 + tiles * math.prod(outer)))
    notes = row_notes + 56 * math.prod(outer)
    return Plan(
        y, x, transformed, rows, columns, outer, held, phases, points, by_kind,
        sum([count * number for count, number in zip(points, by_kind, strict=True)]), vectors,
        vectors_out - (blocks - 1) * vectors, blocks, together, tiles, line_bytes, block_bytes,
        chunk_blocks * ROW_WORDS, v_block, v_line, v_phase, v_point, s_point, out_line, header, v, sums, out, flags,
        row_notes, notes, notes + 24 * len(sweep) + 8 * (all_lines + 2) + 64,
    )  # fmt: skip


def _points(transformed: int, y: Scheme, x: Scheme) -> tuple[int, int, int, int]:
    """How many points there are of each kind."""
    inner, ends = x.n - x.ends, x.ends
    if transformed == 1:
        return inner * y.n, ends * y.n, 0, 0
    return inner * (y.n - y.ends), ends * (y.n - y.ends), inner * y.ends, ends * y.ends


@cache
def _by_kind(full: tuple[tuple[bool, bool], ...]) -> tuple[int, int, int, int]:
    """Of phases with all taps, or one less, along the two axes: how many have products at points of each kind."""
    along_y, along_x = sum(y for y, _ in full), sum(x for _, x in full)
    return len(full), along_x, along_y, sum(y and x for y, x in full)


def _lines(axis: Axis, residues: int, block: int, scheme: Scheme) -> Lines:
    """Lines of a box; the last part of the taps may be shorter, but reads what one tap less does."""
    if axis.stride > 1:
        return lines(axis, block)
    if scheme is _CLOSED:
        return residue_lines(axis, residues, block, 1)
    short = -axis.taps % scheme.r
    return residue_lines(axis, residues, block + max(0, short - 1))


def again_box(transformed: int, rows: tuple[Cut, ...], columns: tuple[Cut, ...],
              outer: tuple[int, ...]) -> tuple[int, ...]:  # fmt: skip
    """What the direct algorithm does again at a time, at most: neighbouring tiles of a row."""
    tall = (max([cut.sizes[0] for cut in rows]),) if transformed == 2 else ()  # full tiles come first
    return (*(1 for _ in outer), *tall, max([max(cut.segments[1:]) for cut in columns]))


_LIST_BYTES = 512 << 10
"""Most bytes of lists of entries; where bands of rows would need more, fewer axes have bands."""


def outer_bands(sweep: Sweep, transformed: int, phases: int, channels: int) -> list[Bands]:
    """Taps of the axes that are not transformed, by rows of outputs: those that meet only padding are left out."""
    axes = sweep[: len(sweep) - transformed]
    entries = 4 * phases * -(-channels // ROW_WORDS) * math.prod(axis.taps for axis in axes)
    return bands(axes, _LIST_BYTES // (24 * max(1, entries)))


def _streamed(size: int) -> float:
    """Bytes a cycle of transformed weights that are so many."""
    return next((rate for most, rate in _STREAMED if size < most), _MEMORY_BYTES)


def _alike(cuts: Sequence[Cut]) -> list[tuple[Cut, int]]:
    """Cuts of equal tiles, wherever they begin, and how many there are of each."""
    alike: dict[tuple[int, tuple[int, ...], int], list[Cut]] = {}
    for cut in cuts:
        alike.setdefault((cut.residues, cut.sizes, cut.whole), []).append(cut)
    return [(same[0], len(same)) for same in alike.values()]


@cache
def _step_cycles(rates: Rates, vectors: int, most: int) -> list[float]:
    """Cycles of a step of a tile of so many vectors, by its rows."""
    return [_SLOWER * tile_cycles(rates, rows, vectors) for rows in range(most + 1)]


def _cost(s: Situation, arith: Arithmetic, sweep: Sweep, plan: Plan) -> dict[str, float]:
    """Cycles: products, where the first tile of a box waits for the weights to stream in, and the passes over tiles."""
    p = s.problem
    group_in = p.c // p.groups
    most = channel_tile(s.target, plan.vectors)
    lane, rates, slower = lanes(s.target, arith), s.rates(arith), s.transforming(arith)
    taps = math.prod(axis.taps for axis in sweep[: len(sweep) - plan.transformed])
    products = inputs = outputs = 0.0
    outer_boxes = math.prod(-(-axis.out // b) for axis, b in zip(sweep, plan.outer, strict=False))
    outer_rows = math.prod(axis.out for axis in sweep[: len(sweep) - plan.transformed])
    outer_lines = math.prod(h.count for h in plan.held[: len(sweep) - plan.transformed])
    by_kind, products_entering = plan.by_kind, plan.products
    met = share_met(sweep, outer_bands(sweep, plan.transformed, len(plan.phases), group_in))
    weight_bytes = products_entering * taps * group_in * plan.vectors_out * lane * arith.bytes
    # weights of a group or a phase push out those of another; further calls find those of a point nearby
    bytes_a_cycle = _streamed(weight_bytes * p.groups * len(sweeps(p)))
    if weight_bytes > _SHARED_BYTES:
        bytes_a_cycle /= s.threads
    again = _streamed(weight_bytes // plan.blocks // products_entering)
    deep = math.prod(plan.outer)
    alone = outer_boxes * len(plan.rows) * len(plan.columns) == 1 and deep * plan.tiles <= _FEW_TILES
    if alone and weight_bytes > _FROM_FAR:
        bytes_a_cycle *= _SOONER
    full_boxes = outer_rows / deep
    vectors_in = -(-group_in // ROW_WORDS) * (ROW_WORDS // lane)
    per_in, per_out, per_segment = 3.5, 3.0, 0.0
    if p.layout == "NCHW":
        per_in = 7.0 if planes_collide(p, reading=True) else 4.5
        per_in *= 1.0 if sweep[-1].stride == 1 else 1.3 if is_apart(p, sweep[-1], lane, "c") else 2.5
        # a third, as measured: results of a box come with more work between them
        per_out = (10.0 if planes_collide(p, reading=False) else 4.0) + apart_cycles(p, sweep[-1]) / 3
        per_segment = 60.0
    # what leaves the second-level cache is written to the third and read from there
    held = plan.workspace - (plan.out - plan.sums) // plan.together * (plan.together - 1)
    far = 2 * held if held > _near(plan.transformed) else 0
    numbers = [(plan.vectors, [plan.blocks - 1]), (plan.last_vectors, [1])]
    if plan.vectors == plan.last_vectors:
        numbers = [(plan.vectors, [plan.blocks - 1, 1])]
    blocks_of = [
        (vectors, blocks, vectors * lane * arith.bytes / again, vectors * lane * arith.bytes / bytes_a_cycle,
         _step_cycles(rates, vectors, most))
        for vectors, blocks in numbers
    ]  # fmt: skip
    kinds = [(kind, share, met * taps * group_in * by_kind[kind]) for kind, share in enumerate(plan.points) if share]
    for (rows, tall_boxes), (columns, wide_boxes) in itertools.product(_alike(plan.rows), _alike(plan.columns)):
        times = tall_boxes * wide_boxes
        tall_by_end, wide_by_end = (rows.tiles, rows.full), (columns.tiles, columns.full)
        for kind, share, steps in kinds:
            tall, wide = tall_by_end[kind >> 1], wide_by_end[kind & 1]
            if not (tall and wide):
                continue
            joins = not kind and tall * wide == plan.tiles
            sizes = near_equal_sizes(deep * tall * wide if joins else tall * wide, most)
            repeated = 1 if joins else deep
            count = repeated * sum(number for _, number in sizes)
            for vectors, blocks, nearby, streamed, step_cycles in blocks_of:
                cycles = [(max(step_cycles[rows_], nearby), number) for rows_, number in sizes]
                starts = 20 * count + 1.0 * deep * tall * wide * vectors
                whole = repeated * sum([c * number for c, number in cycles])
                step = whole + max(0.0, streamed - cycles[0][0])  # the first tile waits for the weights
                for of_these in blocks:
                    products += times * share * of_these * full_boxes * (step * steps + starts)
        tile_count, pixels = rows.tiles * columns.tiles, rows.covers * columns.covers
        entering = tile_count * outer_lines * vectors_in * products_entering * _TRANSFORM_CYCLES * slower
        entering += math.prod(h.count for h in plan.held) * vectors_in * per_in
        inputs += times * outer_boxes * (entering + 1500.0 + far / _FAR_BYTES)
        leaving = tile_count * plan.y.n * plan.x.n * _TRANSFORM_CYCLES * slower + pixels * per_out
        outputs += times * outer_rows * plan.vectors_out * leaving
        segments = times * outer_rows * columns.segments[0] * per_segment
        inputs, outputs = inputs + segments * vectors_in, outputs + segments * plan.blocks * plan.vectors
    bytes_in = math.prod(h.count for h in plan.held) * p.c * p.x_dtype.itemsize
    bytes_in *= len(plan.rows) * len(plan.columns) * outer_boxes
    images, stacked = p.n or 0, is_stacked(p, sweep)
    far_in = far_cycles(p, bytes_in / (images if stacked else 1), soon=True) * images
    batch = p.groups * (1 if stacked else images)
    if plan.transformed == 1 and plan.x.r == 2 and sweep[-1].stride == 1:
        inputs, products, outputs = (_TWO_TAPS * cycles for cycles in (inputs, products, outputs))
    elif plan.transformed == 1:
        inputs, outputs = _ONE_AXIS * inputs, _ONE_AXIS * outputs
    return {"inputs": inputs * batch + far_in, "products": products * batch, "outputs": outputs * batch}


def order(p: Problem) -> tuple[int, ...]:
    """Spatial axes in the order in which they are swept.

    Where kernels have but one tap along the last two, the nearest axis with more goes before the last, where it can be
    transformed: no output, and no order of additions, depends on how outputs are visited.
    """
    axes = list(range(len(p.k)))
    tapped = [a for a in axes if p.k[a] > 1]
    if tapped and tapped[-1] < len(axes) - 2:
        axes.remove(tapped[-1])
        axes.insert(-1, tapped[-1])
    return tuple(axes)


def turned(s: Situation) -> Situation:
    """The situation with its axes in that order, which then is the order it asks for."""
    p, axes = s.problem, order(s.problem)
    if axes == tuple(range(len(axes))):
        return s

    def turn(values: Any) -> Any:
        return tuple(values[a] for a in axes)

    o = None if p.o is None else turn(p.o)
    return replace(s, problem=replace(
        p, i=turn(p.i), k=turn(p.k), s=turn(p.s), d=turn(p.d), pads=turn(p.pads),
        output_padding=turn(p.output_padding), o=o,
    ))  # fmt: skip


_MOST_OUTPUTS = 1 << 22


def at_least(s: Situation) -> float:
    """Cycles that products and transforms take, whatever the boxes; infinite where no scheme is admitted."""
    p = s.problem
    if p.c // p.groups < 8 or p.m // p.groups < 8 or not p.x_dtype.is_float:
        return math.inf
    one = of_one_image(turned(s))
    if len(sweeps(one.problem)) > 1:  # some may be the direct algorithm's
        return 0.0
    found = _likeliest(one, ARITHMETIC[accumulator_arithmetic(s)], sweeps(one.problem)[0])
    return found[0][0] * (p.n or 0) if found else math.inf


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p, reason = s.problem, transform_refusal(s)
    if reason is not None:
        return reason
    if p.c // p.groups < 8 or p.m // p.groups < 8:
        return f"needs 8 channels a group on both sides, this has {p.c // p.groups} and {p.m // p.groups}"
    if max(e or 0 for e in p.out) > _MOST_OUTPUTS:
        return f"lists the tiles of an axis, of at most {_MOST_OUTPUTS} outputs"
    if all(plan is None for _, plan in parts(s)):
        return "needs 2 to 5 taps a stride (12 at stride 1) along its last axis with taps, s or d 1, and room"
    return None


@lru_cache(256)
def parts(s: Situation) -> tuple[tuple[Sweep, Plan | None], ...]:
    """Every sweep with its plan; None where the direct algorithm does it better."""
    whole = turned(s if s.threads == 1 else replace(s, threads=1))
    s = of_one_image(whole)  # neither batch nor threads may change what is chosen, by any tie
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    parts: list[tuple[Sweep, Plan | None]] = []
    for sweep in sweeps(s.problem):
        plan, cycles = _plan(s, arith, sweep)
        if plan is not None and len(sweeps(s.problem)) > 1:
            plain = sweep_cost(s, arith, sweep)
            plan = plan if sum(cycles.values()) < sum(plain.values()) else None
        parts.append((sweep, plan))
    images = whole.problem.n or 0
    return tuple(
        (sweep, plan) if plan is None or images < 2 or plan.transformed < len(sweep)
        else _stacked(whole, arith, sweep, plan)
        for sweep, plan in parts
    )  # fmt: skip


def is_stacked(p: Problem, sweep: Sweep) -> bool:
    """Whether the batch is the first axis of a sweep, so that boxes hold tiles of several images."""
    return len(sweep) > len(p.k)


def _stacked(s: Situation, arith: Arithmetic, sweep: Sweep, alone: Plan) -> tuple[Sweep, Plan]:
    """A sweep whose boxes hold several images, with the schemes of one image: no bits depend on the batch."""
    images = s.problem.n or 0
    stacked = (Axis(images, images, 1, 1, 1, 0), *sweep)
    plans = _candidates(s, arith, stacked, alone.y, alone.x, alone.together)
    cycles = [sum(_cost(s, arith, stacked, plan).values()) for plan in plans]
    least = min(cycles, default=math.inf)
    if least > _WORTH_STACKING * sum(_cost(s, arith, sweep, alone).values()):
        return sweep, alone
    return stacked, plans[cycles.index(least)]


def scheme(s: Situation) -> str:
    """Which schemes compute the sweeps: with them the bits change."""
    names = [
        "direct" if plan is None else str(plan.x) if plan.transformed == 1 else f"{plan.y}x{plan.x}"
        for _, plan in parts(s)
    ]  # fmt: skip
    return scheme_of(names)


def bound(s: Situation) -> tuple[str, float]:
    """Window bound: the additions of a point and of the transforms, times how far the transforms enlarge terms."""
    p, eps = s.problem, DTYPES[accumulator_arithmetic(s)].eps
    products = p.c // p.groups
    worst = (products * math.prod(p.k) + 4) * eps
    for sweep, plan in parts(s):
        if plan is not None:
            taps = math.prod(axis.taps for axis in sweep[: len(sweep) - plan.transformed])
            growth = plan.y.growth * plan.x.growth
            worst = max(worst, (products * taps * len(plan.phases) + 2 * (plan.y.n + plan.x.n) + 4) * eps * growth)
    return "window", worst


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    s = turned(s)
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    return max(
        sweep_workspace(s, arith, sweep) if plan is None else plan.workspace for sweep, plan in parts(s)
    )


def cost(s: Situation) -> dict[str, float]:
    """Cycles by term."""
    s = turned(s)
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    is_one = of_one_image(s) is s  # whose plans were found by their cycles
    terms = [
        sweep_cost(s, arith, sweep) if plan is None
        else _plan(s, arith, sweep)[1] if is_one else _cost(s, arith, sweep, plan)
        for sweep, plan in parts(s)
    ]  # fmt: skip
    return {name: sum(t.get(name, 0.0) for t in terms) for name in dict.fromkeys(itertools.chain(*terms))}


def _weight_bytes(s: Situation, arith: Arithmetic, sweep: Sweep, plan: Plan) -> int:
    """Bytes of the transformed weights of a group."""
    taps = math.prod(axis.taps for axis in sweep[: len(sweep) - plan.transformed])
    rows = plan.products * taps * (s.problem.c // s.problem.groups)
    return rows * plan.vectors_out * lanes(s.target, arith) * arith.bytes


def preparing(s: Situation) -> float:
    """Cycles in which a program is made and the weights are transformed."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    sizes = [_weight_bytes(s, arith, sweep, plan) for sweep, plan in parts(s) if plan is not None]
    return packing.cycles(s) + 1.5 * packing.TABLES_CYCLES + 0.75 * s.problem.groups * sum(sizes)


@lru_cache(256)
def shared(s: Situation, arith: Arithmetic, sweep: Sweep, plan: Plan) -> tuple[Plan, int]:
    """The plan in boxes, and their output channels in so many parts, that the busiest thread has least to do.

    Every box streams the transformed weights, every part transforms the inputs.
    """
    if s.threads == 1:
        return plan, 1
    parts = sorted({-(-plan.blocks // -(-plan.blocks // n)) for n in range(1, 2 * s.threads + 1)})
    choices = [(finer, splits) for finer in _finer(s, arith, sweep, plan) for splits in parts]
    loads = [_load(s, arith, sweep, *choice) for choice in choices]
    least = min(loads)
    return choices[loads.index(least)] if least < _WORTH_CUTTING * loads[0] else choices[0]


def _finer(s: Situation, arith: Arithmetic, sweep: Sweep, plan: Plan) -> list[Plan]:
    """The plan, and others with fewer rows of tiles in a box, or tiles of its one row: parts of many are slower."""
    axis, m, cuts = (sweep[-2], plan.y.m, plan.rows) if plan.transformed == 2 else (sweep[-1], plan.x.m, plan.columns)
    inner = [_cuts(axis, m, most, cuts[0].residues) for most in _halves(len(cuts[0].sizes))]
    depths = [(*plan.outer[:-1], depth) for depth in _halves(plan.outer[-1])] if plan.outer else [()]
    found = (
        _sizes(
            s, arith, sweep, plan.y, plan.x, *((some, plan.columns) if plan.transformed == 2 else (plan.rows, some)),
            outer, plan.together,
        )
        for outer, some in itertools.product(depths, inner)
    )  # fmt: skip
    return [plan, *(finer for finer in found if finer.workspace < plan.workspace)]


def _load(s: Situation, arith: Arithmetic, sweep: Sweep, plan: Plan, splits: int) -> float:
    """Cycles of the thread that has most to do, where each takes the next item when it has done one."""
    p, terms = s.problem, _cost(s, arith, sweep, plan)
    cut = [
        [len(range(axis.out)[first : first + b]) for first in range(0, axis.out, b)]
        for axis, b in zip(sweep, plan.outer, strict=False)
    ]  # fmt: skip
    cut += [[rows.tiles for rows in plan.rows], [columns.tiles for columns in plan.columns]]
    boxes = [math.prod(sizes) for sizes in itertools.product(*cut)]
    share = -(-plan.blocks // splits)
    parts = [min(share, plan.blocks - first) / plan.blocks for first in range(0, plan.blocks, share)]
    times = p.groups * (1 if is_stacked(p, sweep) else p.n or 0)
    part_cycles = [terms["inputs"] + (terms["products"] + terms["outputs"]) * part for part in parts]
    of_tiles = 1 / max(1, sum(boxes) * times)
    total = sum(part_cycles) / s.threads
    if len(boxes) * splits * times > _COUNTED_ITEMS * s.threads:
        return total + max(boxes) * max(part_cycles) * of_tiles / 2
    busy = [0.0] * s.threads
    for cycles, tiles in itertools.product(part_cycles * times, boxes):
        heapq.heapreplace(busy, busy[0] + cycles * tiles * of_tiles)
    return max(busy)
