"""Convolution by Fourier transforms of tiles: large kernels, any rank, by overlap-save.

A tile of N positions along every axis becomes a spectrum, is multiplied by that of the kernel and comes back: of its
N results the first N - taps + 1 are outputs (Stockham 1966).  A tile that holds the whole input needs less: padding
on both sides may share its positions, N >= input + the wider padding.  Every lane of a vector transforms its own
tile, so nothing is shuffled; which tiles those are is the plan's kind:

* ``own``: depthwise; lanes are channels.
* ``shared``: few input channels, each in all lanes; lanes are output channels.
* ``blocks``: few channels on both sides; lanes are tiles.
* ``dense``: lanes are channels, and a product is one of complex matrices, for several tiles together.

Strides are computed and dropped, dilations are zeros between taps.  Cost: the passes of the transforms, the products,
and the moves.  Error: window bound, admitted in accuracy "fast" only (``bound`` derives it).  Items with a result
that is not finite are done again, by the depthwise or the direct algorithm.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from polyconv.algorithms import packing
from polyconv.algorithms.dense.plan import again_workspace
from polyconv.algorithms.depthwise.situations import refusal
from polyconv.algorithms.depthwise.taps import workspace_of
from polyconv.algorithms.program import (
    Situation,
    accumulator_arithmetic,
    image_bytes,
    of_one_image,
    planes_collide,
    scheme_of,
    transform_refusal,
)
from polyconv.algorithms.sweep import Axis, Sweep, sweeps
from polyconv.dtypes import DTYPES
from polyconv.kernels.fft import RADICES
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, channel_tile, lanes
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = [
    "Plan", "Tile", "applicable", "at_least", "bound", "cost", "dense_rows", "parts", "radices", "scheme", "workspace",
]  # fmt: skip

_LONGEST = 1 << 15
_SMOOTH = sorted(
    n for a, b, c in itertools.product(range(16), range(4), range(3)) if (n := 2**a * 3**b * 5**c) <= _LONGEST
)
_LADDER = tuple(n for n in _SMOOTH if n.bit_count() == 1 or (n % 3 == 0 and (n // 3).bit_count() == 1))
_LADDER_REACH = 5
"""Lengths in steps of 4/3 and 3/2, and how many times a kernel's extent they may be.  Spectra of many channels are
large: images of all sizes share those of a few lengths, which costs some a tenth of their speed."""
_CANDIDATES = {1: 16, 2: 8, 3: 4}
"""Lengths tried along an axis, by rank."""

_BUTTERFLY = {2: 7.0, 3: 12.0, 4: 14.0, 5: 23.0, 6: 28.0, 8: 42.0, 9: 56.0}
"""Cycles of a butterfly, twiddles and memory of the second level included."""
_LEAST_BIT = 1.75
"""The least of them for a point, for every halving of a line: of radix 4 or 8."""
_CALL = 12.0
_POINT, _TERM = 12.0, 2.7
"""Cycles of a product at a point, with the spectra taken apart and put together; of each term of a matrix product."""
_NEAR_BYTES, _FAR_BYTES = 900 << 10, 24.0
"""Planes that stay in a second-level cache, and bytes a cycle that cost time where they do not."""
_CACHED_BYTES = 24 << 20
"""Spectra that a last-level cache holds."""
_MEMORY_BYTES = 8.0
"""Bytes a cycle of tensors that no cache holds."""
_NEAR_LINES, _LINES_BYTES = 6 << 20, 3.5
"""Of input and result of one axis, those beyond this come and go at so many bytes a cycle."""
_HELD_BYTES, _SCATTERED = 3 << 19, {"NCHW": 1.2, "NHWC": 0.8}
"""Of input and result, those beyond this cost so many cycles a byte: tiles of planes touch them line by line, far
apart, which no CPU foresees."""
_MOST_BYTES = 32 << 20
_MOST_SPECTRA_BYTES = 128 << 20
"""Workspace of a thread, and transformed weights, that are too much."""
_LEAST_TERMS = 24
"""Products of a sum, at least.  Measured rms errors as multiples of that of a direct f32 sum: 2.2 for 9 terms, 1.5 for
31, 1.4 for 49, 1.1 for 81, 0.7 for 200, 0.5 for 400."""
_LEAST_TAPS = 5
"""Taps along an axis, at least: for kernels of 3 Winograd's tiles are as fast, and the same at every extent."""
_MOST_SHARED, _MOST_BLOCKS = 8, 64
"""Most input channels that are transformed in all lanes, and pairs of channels whose lanes are tiles."""


@dataclass(frozen=True, slots=True)
class Tile:
    """An axis cut into tiles.

    Parameters
    ----------
    length : int
        Positions, N.
    points : int
        Complex points: N, or half of it along the first axis.
    outputs : int
        Of a tile; the last may have fewer.
    count : int
        Tiles.
    reach : int
        Positions that hold input or padding; others hold zeros.
    """

    length: int
    points: int
    outputs: int
    count: int
    reach: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One sweep: kind, tiles, how many of them are an item, and sizes in bytes."""

    kind: str
    tiles: tuple[Tile, ...]
    strides: tuple[int, ...]
    plane: int
    planes: int
    together: int
    lane: int
    header: int
    workspace: int

    @property
    def outputs(self) -> tuple[int, ...]:
        """Outputs of a tile."""
        return tuple(tile.outputs for tile in self.tiles)

    @property
    def count(self) -> int:
        """Tiles of an image."""
        return math.prod(tile.count for tile in self.tiles)


@lru_cache(4096)
def radices(n: int) -> tuple[int, ...]:
    """Radices of the passes over a line, the last the largest, at least cost."""
    if n == 1:
        return ()
    found = min(((*radices(n // r), r) for r in RADICES if n % r == 0), key=lambda passes: _line(passes))
    return tuple(sorted(found))


def _line(passes: tuple[int, ...]) -> float:
    """Cycles of the passes over a line."""
    n = math.prod(passes)
    return sum(n // r * _BUTTERFLY[r] + _CALL for r in passes)


def _extent(axis: Axis) -> int:
    return (axis.taps - 1) * axis.dilation + 1


def _tile(axis: Axis, length: int, outputs: int, count: int, paired: bool) -> Tile:
    reach = min(length, (outputs - 1) * axis.stride + _extent(axis))
    return Tile(length, length // 2 if paired else length, outputs, count, reach)


@lru_cache(1024)
def _tiles(axis: Axis, paired: bool, most: int, few: bool) -> tuple[Tile, ...]:
    """The best lengths of tiles along an axis, from short to long: of few that there are, or of all."""
    reach = max(32, _LADDER_REACH * _extent(axis))
    lengths = [n for n in (_LADDER if few else _SMOOTH) if not ((paired and n % 2) or (few and n > reach))]
    found: dict[int, Tile] = {}
    whole = _whole(axis)
    for length in lengths:
        if length >= whole:
            found[1] = _tile(axis, length, axis.out, 1, paired)
            break
        fitting = (length - _extent(axis)) // axis.stride + 1
        if length >= _extent(axis) and fitting < axis.out:
            count = -(-axis.out // fitting)
            found.setdefault(count, _tile(axis, length, -(-axis.out // count), count, paired))

    def effort(tile: Tile) -> float:
        return tile.count * _line(radices(tile.points))

    best: list[Tile] = []
    for tile in sorted(found.values(), key=lambda tile: tile.length):
        if not best or effort(tile) < effort(best[-1]):
            best.append(tile)
    if len(best) > most:  # the shortest, for small workspaces, and the cheapest
        step = (len(best) - 1) / (most - 1)
        best = [best[round(i * step)] for i in range(most)]
    return tuple(best)


def _whole(axis: Axis) -> int:
    """Positions that a single tile needs: padding before and after may lie in the same ones."""
    last = (axis.out - 1) * axis.stride + _extent(axis) - axis.pad
    first, end = max(0, -axis.pad), min(axis.inp, last)
    held = max(0, end - first)
    before, after = max(0, first + axis.pad), max(0, last - max(end, first))
    return max(held + max(before, after), (axis.out - 1) * axis.stride + 1, 1)


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> Plan | None:
    """The cheapest kind and tiles; None where there is none."""
    if not all(axis.taps and axis.out and axis.inp for axis in sweep):
        return None
    most = _CANDIDATES.get(len(sweep), 3)
    options = {few: [_tiles(axis, a == 0, most, few) for a, axis in enumerate(sweep)] for few in (False, True)}
    budget = s.budget(_MOST_BYTES)
    plans = [
        plan for kind in _kinds(s) for tiles in itertools.product(*options[kind in ("dense", "shared")])
        for together in _together(s, kind, tiles)
        if (plan := _sizes(s, arith, sweep, kind, tiles, together)).workspace <= budget
        and _spectra_bytes(s, arith, plan) <= _MOST_SPECTRA_BYTES
    ]  # fmt: skip
    for plan in sorted(plans, key=lambda plan: s.price(plan, sum(_cost(s, arith, sweep, plan).values()))):
        whole = _with_repair(s, arith, sweep, plan)
        if whole.workspace <= budget:
            return whole
    return None


def _spectra_bytes(s: Situation, arith: Arithmetic, plan: Plan) -> int:
    """Bytes of the spectra of all weights."""
    p, points = s.problem, math.prod(tile.points for tile in plan.tiles)
    group_out = p.m // p.groups
    rows = p.groups * group_out if plan.kind in ("own", "blocks") else p.groups * -(-group_out // plan.lane) * plan.lane
    return 2 * points * rows * (p.c // p.groups) * arith.bytes


def _with_repair(s: Situation, arith: Arithmetic, sweep: Sweep, plan: Plan) -> Plan:
    """With room for the algorithm that repairs, where the planes were."""
    own = plan.kind == "own"
    again = workspace_of(s) if own else again_workspace(s, arith, sweep, plan.outputs, 1)
    return replace(plan, workspace=max(plan.workspace, plan.header + again))


def _kinds(s: Situation) -> list[str]:
    p = s.problem
    group_in, group_out = p.c // p.groups, p.m // p.groups
    kinds = []
    if group_in == group_out == 1 and p.c > 1 and refusal(s) is None:
        kinds.append("own")
    if p.groups == 1 and p.c <= _MOST_SHARED and p.m > p.c:
        kinds.append("shared")
    if group_in * group_out <= _MOST_BLOCKS:
        kinds.append("blocks")
    if group_in >= 4 and group_out >= 8:
        kinds.append("dense")
    return kinds


def _together(s: Situation, kind: str, tiles: tuple[Tile, ...]) -> list[int]:
    """Numbers of tiles that an item may have."""
    if kind != "dense":
        return [lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)]) if kind == "blocks" else 1]
    count, most = math.prod(tile.count for tile in tiles), dense_rows(s.target)
    return sorted({-(-count // -(-count // n)) for n in (most, most // 2, 2, 1) if n <= count or n == 1})


def dense_rows(target: Target) -> int:
    """Most tiles of a matrix product: a complex sum each, and registers for a weight and a point."""
    return channel_tile(target, 2) - 1


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, kind: str, tiles: tuple[Tile, ...], together: int) -> Plan:
    p, vector = s.problem, s.target.vector_bytes
    lane = lanes(s.target, arith)
    strides = [2 * vector]
    for tile in reversed(tiles[1:]):
        # an odd number of points between lines: they fall into different sets of a cache
        strides.append(strides[-1] * (tile.points | 1))
    strides.reverse()
    # with places for the pairs that are a single point
    plane = tiles[0].points * strides[0] + 2 ** len(tiles) * 2 * vector + 64
    group_in = p.c // p.groups
    planes = {"own": 1, "dense": together * (-(-group_in // lane) + 1)}.get(kind, group_in + 1)
    # boxes of all tiles, runs of lanes and their number, what was seen of every tile
    header = 24 * len(sweep) * (1 + together) + 24 * lane + 8
    header = -(-header // 64) * 64 + together * vector
    header = -(-header // 64) * 64
    return Plan(kind, tiles, tuple(strides), plane, planes, together, lane, header, header + planes * plane)


def _cost(s: Situation, arith: Arithmetic, sweep: Sweep, plan: Plan) -> dict[str, float]:
    """Cycles: passes of the transforms, products or the stream of spectra, and moves."""
    p, lane, slower, transforming = s.problem, plan.lane, s.rates(arith).slower, s.transforming(arith)
    group_in = p.c // p.groups
    items, inputs, outputs = _transforms(p, plan.kind, lane, plan.count)
    points = math.prod(tile.points for tile in plan.tiles)
    lines = [points // tile.points * _line(radices(tile.points)) * transforming for tile in plan.tiles]
    held = [min(tile.reach, axis.inp) / tile.length for axis, tile in zip(sweep, plan.tiles, strict=True)]
    wanted = [
        min(1.0, tile.outputs * axis.stride / tile.length) for axis, tile in zip(sweep, plan.tiles, strict=True)
    ]  # fmt: skip
    far = 2.0 * plan.plane / _FAR_BYTES if plan.planes * plan.plane > _NEAR_BYTES else 0.0
    columns = sum(lines[:-1]) + far * len(lines)
    forward = columns + lines[-1] * math.prod(held[:-1])
    back = columns + lines[-1] * math.prod(wanted[:-1])
    transforms = items * (inputs * forward + outputs * back)
    weights = 2 * points * arith.bytes * (1 if plan.kind == "blocks" else lane) * group_in
    of_all = weights * outputs * p.groups
    stream = weights / (12.0 if of_all < _CACHED_BYTES / 3 else 8.0 if of_all < _CACHED_BYTES else 6.0)
    if plan.kind == "dense":
        lots = p.groups * -(-plan.count // plan.together)
        matrices = points * group_in * max(_TERM * plan.together, 5.0) * slower
        joined = items * points * _POINT * slower * (inputs + outputs) / 2
        products = lots * outputs * max(matrices, stream) + joined
    else:
        products = items * outputs * max(points * _point(plan.kind, group_in) * slower, stream)
    per_in, per_out = (3.0, 4.0) if p.layout == "NHWC" else (6.0, 9.0)
    if p.layout == "NHWC" and len(sweep) == 1:  # pixels of a line that meet few sets of a cache
        per_in += 8.0 * (math.gcd(p.c * p.x_dtype.itemsize, 2048) // 1024)
        per_out += 8.0 * (math.gcd(p.m * p.y_dtype.itemsize, 2048) // 1024)
    if plan.kind == "blocks":  # by runs of neighbouring tiles, those at the ends alone
        along = plan.tiles[-1].count
        runs = min(lane, plan.count) / along * min(along, 3)
        per_in, per_out = 7.0 * max(1.0, runs), 14.0 * max(1.0, runs)
    elif p.layout == "NCHW":
        per_in *= 1 + planes_collide(p, reading=True)
        per_out *= 1 + planes_collide(p, reading=False)
    read = math.prod(min(t.reach, a.inp) for a, t in zip(sweep, plan.tiles, strict=True))
    written = math.prod(plan.outputs)
    if len(sweep) > 1 and plan.kind == "blocks":  # rows of a tile pass through squares, however short they are
        short, few = min(plan.tiles[-1].reach, sweep[-1].inp), plan.outputs[-1]
        read, written = read // short * (-(-short // lane) * lane), written // few * max(few, lane // 2)
    moves = items * (inputs * (read * per_in + points) + outputs * written * per_out + 1000.0)
    bytes_moved = image_bytes(p)
    if len(sweep) == 1:  # lines of many channels, a little of each at a time
        moves += max(0, sum(bytes_moved) - _NEAR_LINES) / _LINES_BYTES
    else:
        moves += sum(b / _MEMORY_BYTES for b in bytes_moved if b > _CACHED_BYTES / 2)
    if len(sweep) > 1 and plan.kind == "blocks":  # lanes are tiles: neighbours in a row are taken one by one
        each = (16.0 if p.layout == "NCHW" else 8.0) / plan.outputs[-1]
        moves += each * max(0, sum(bytes_moved) - _HELD_BYTES)
    elif len(sweep) > 1 and plan.kind != "own":
        moves += _SCATTERED[p.layout] * max(0, sum(bytes_moved) - _HELD_BYTES)
    batch = p.n or 0
    return {"transforms": transforms * batch, "products": products * batch, "moves": moves * batch}


def _transforms(p: Problem, kind: str, lane: int, tiles: int) -> tuple[int, int, int]:
    """How often tiles are transformed and multiplied together, and each time how many inputs and outputs."""
    group_in, group_out = p.c // p.groups, p.m // p.groups
    if kind == "own":
        return tiles * -(-p.c // lane), 1, 1
    if kind == "shared":
        return tiles, p.c, -(-p.m // lane)
    if kind == "dense":
        return p.groups * tiles, -(-group_in // lane), -(-group_out // lane)
    return p.groups * -(-tiles // lane), group_in, group_out


def _point(kind: str, group_in: int) -> float:
    """Cycles of a point of an output, where lanes are no channels of both sides: from one plane to another."""
    return _POINT * (1.5 if kind == "shared" else 1.0) + 8.0 * (group_in - 1)


def _least_passes(axis: Axis) -> float:
    """Cycles of the passes for a position that results need, in tiles that overlap or one that holds all."""
    if _extent(axis) < _LEAST_TAPS or not axis.out:
        return 0.0
    return min(_LEAST_BIT * math.log2(max(2, _whole(axis)) / 2), _overlapping(_extent(axis), axis.stride))


@cache
def _overlapping(extent: int, stride: int) -> float:
    """The same, of tiles of the best length."""
    lengths = (n for n in _SMOOTH if n >= extent)
    return min((n / (n - extent + stride) * _LEAST_BIT * math.log2(n / 2) for n in lengths), default=math.inf)


def at_least(s: Situation) -> float:
    """Cycles that transforms, products and the way out take, whatever the tiles."""
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    if max(p.k) < _LEAST_TAPS or not p.c * p.m:
        return math.inf
    lane, slower, group_in = lanes(s.target, arith), s.rates(arith).slower, p.c // p.groups
    points = passed = 0.0
    for sweep in sweeps(p):  # half as many points as positions along the first axis; all pass along all axes but one
        of_sweep = math.prod((axis.out - 1) * min(axis.stride, _extent(axis)) + 1 for axis in sweep) / 2
        points += of_sweep
        passed += of_sweep * sum(map(_least_passes, sweep[:-1] or sweep)) * s.transforming(arith)
    leaving = (4.0 if p.layout == "NHWC" else 9.0) * math.prod(o or 0 for o in p.out)
    cycles = []
    for kind in _kinds(s):
        items, inputs, outputs = _transforms(p, kind, lane, lane)
        product = outputs * _point(kind, group_in)
        if kind == "dense":
            product = outputs * group_in * _TERM + _POINT * (inputs + outputs) / 2
        transforms = (inputs + outputs) * passed
        cycles.append(items / lane * (transforms + points * product * slower + outputs * leaving))
    return min(cycles, default=math.inf) * (p.n or 0)


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p, reason = s.problem, transform_refusal(s)
    if reason is not None:
        return reason
    if p.c == 0 or p.m == 0:
        return "there are no channels to transform"
    if max(p.k) < _LEAST_TAPS:
        return f"needs {_LEAST_TAPS} taps along an axis, this has {max(p.k)}"
    terms = min((math.prod(axis.taps for axis in sweep) for sweep in sweeps(p)), default=0) * (p.c // p.groups)
    if terms < _LEAST_TERMS:
        return f"a direct sum of {terms} products has less than half of the error"
    if not _kinds(s):
        group_in, group_out = p.c // p.groups, p.m // p.groups
        return f"has no lanes for groups of {group_in} and {group_out} channels"
    if any(plan is None for _, plan in parts(s)):
        return "needs taps, outputs, and tiles with room for them"
    return None


FEW_TAPS = 128
"""Taps whose spectrum is found sooner by a matrix product."""


def preparing(s: Situation) -> float:
    """Cycles in which a program is made and the spectra of the weights are found, in double precision."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    total = packing.cycles(s) + 4 * packing.TABLES_CYCLES
    for sweep, plan in _plans(s):
        taps = math.prod(axis.taps for axis in sweep)
        total += _spectra_bytes(s, arith, plan) * (1.2 + 0.06 * taps if taps <= FEW_TAPS else 5.5)
    return total


@lru_cache(256)
def parts(s: Situation) -> tuple[tuple[Sweep, Plan | None], ...]:
    """Every sweep with its plan."""
    s = of_one_image(s)  # neither may change what is chosen, not even a tie
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    return tuple((sweep, _plan(s, arith, sweep)) for sweep in sweeps(s.problem))


def _plans(s: Situation) -> list[tuple[Sweep, Plan]]:
    return [(sweep, plan) for sweep, plan in parts(s) if plan is not None]


def scheme(s: Situation) -> str:
    """Kinds and lengths of tiles: with them the bits change."""
    names = [f"{plan.kind} {'x'.join(str(tile.length) for tile in plan.tiles)}" for _, plan in _plans(s)]
    return scheme_of(names)


# Roundings on the longest path through a butterfly.
_DEPTH = {2: 1, 3: 4, 4: 2, 5: 6, 6: 7, 8: 6, 9: 11}


def bound(s: Situation) -> tuple[str, float]:
    """Window bound, after Higham (Accuracy and Stability of Numerical Algorithms, 2002, chapter 24).

    A pass of radix r multiplies 2-norms by sqrt(r), its computed form errs by ``d u |F_r||x|`` componentwise, d
    roundings deep: relative to the pass ``d sqrt(2r) u`` in the 2-norm, as ``|F_r|`` has norm r; twiddles, rounded
    once and multiplied, add 4 u.  To first order these add over the passes of both transforms (theorem 24.2), and
    spectra taken apart, multiplied, summed over c channels and put together add 30 + c.  All being multiples of
    unitary maps but the product, ``|e|_inf <= |e|_2 <= f u max|H| |x|_2 <= f u sqrt(P) max|x| sum|w|`` for a tile of
    P inputs.
    """
    p, u = s.problem, DTYPES[accumulator_arithmetic(s)].eps / 2
    worst = 0.0
    for sweep, plan in _plans(s):
        depth = sum(_DEPTH[r] * math.sqrt(2 * r) + 4 for tile in plan.tiles for r in radices(tile.points))
        held = math.prod(min(t.reach, a.inp) for a, t in zip(sweep, plan.tiles, strict=True))
        worst = max(worst, (2 * depth + 30 + p.c // p.groups) * u * math.sqrt(held))
    return "window", worst


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    return max((plan.workspace for _, plan in _plans(s)), default=0)


def cost(s: Situation) -> dict[str, float]:
    """Cycles by term."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    terms = [_cost(s, arith, sweep, plan) for sweep, plan in _plans(s)]
    return {name: sum(t[name] for t in terms) for name in ("transforms", "products", "moves")}
