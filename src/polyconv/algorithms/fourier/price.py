"""What transforms of a sweep cost: passes, products or the stream of spectra, and moves; and the least of it.

Numbers that no profile has were measured on a Zen 5.
"""

from __future__ import annotations

import math

from polyconv.algorithms.fourier.plan import Plan, kinds, options, transforms
from polyconv.algorithms.fourier.tiles import LEAST_TAPS, line_cycles
from polyconv.kernels.isa import lanes
from polyconv.lowering.situation import Situation, arith_of, image_bytes
from polyconv.lowering.sweep import sweeps
from polyconv.lowering.traffic import planes_collide

__all__ = ["at_least", "cost"]

_POINT, _TERM = 12.0, 2.7
"""Cycles of a product at a point, with the spectra taken apart and put together; of each term of a matrix product."""
_NEAR = 900 / 1024
"""Share of a second-level cache: planes that stay there; others come from the last one."""
_CACHED, _MEMORY = 0.75, 8 / 10.6
"""Share of a last cache that spectra may have; of the bytes a cycle of memory, those of tensors beyond half of it."""
_NEAR_LINES, _LINES = 6.0, 3.5 / 24
"""Input and result of one axis: what exceeds so many second-level caches comes and goes at this share of the bytes a
cycle that the last one gives."""
_HELD, _SCATTERED = 1.5, {"NCHW": 1.2, "NHWC": 0.8}
"""Input and result of several axes: what exceeds so many second-level caches costs so many cycles a byte more, as tiles
touch planes line by line, far apart, which no CPU foresees."""
_ITEM = 1000.0
"""Cycles in which an item begins."""


def cost(s: Situation, plan: Plan) -> dict[str, float]:
    """Cycles by term."""
    batch = s.problem.n or 0
    return {
        "transforms": _transforms_cycles(s, plan) * batch,
        "products": _products_cycles(s, plan) * batch,
        "moves": _moves_cycles(s, plan) * batch,
    }


def _transforms_cycles(s: Situation, plan: Plan) -> float:
    """Passes along all axes both ways; along the last one only over rows that hold input, or outputs."""
    slower, outer = s.transforming(arith_of(s)), [*zip(plan.sweep, plan.tiles, strict=True)][:-1]
    lines = [plan.points // tile.points * line_cycles(tile.points) * slower for tile in plan.tiles]
    held = math.prod([min(tile.reach, axis.inp) / tile.length for axis, tile in outer])
    wanted = math.prod([min(1.0, tile.outputs * axis.stride / tile.length) for axis, tile in outer])
    is_near = plan.planes * plan.plane <= s.profile.cache("l2", _NEAR)
    far = 0.0 if is_near else 2.0 * plan.plane / s.profile.stream("l3", 1.0)
    columns = sum(lines[:-1]) + far * len(lines)
    return plan.times * (plan.inputs * (columns + lines[-1] * held) + plan.outputs * (columns + lines[-1] * wanted))


def _products_cycles(s: Situation, plan: Plan) -> float:
    """Products at all points, or the stream of the weights' spectra if that takes longer."""
    p, arith, group_in = s.problem, arith_of(s), s.problem.c // s.problem.groups
    slower = s.rates(arith).slower
    weights = 2 * plan.points * arith.bytes * (1 if plan.kind == "blocks" else plan.lane) * group_in
    of_all = weights * plan.outputs * p.groups
    held = s.profile.cache("l3", _CACHED)
    stream = weights / (12.0 if of_all < held / 3 else 8.0 if of_all < held else 6.0)
    if plan.kind != "dense":
        return plan.times * plan.outputs * max(plan.points * _point_cycles(group_in) * slower, stream)
    items = p.groups * -(-plan.count // plan.together)
    matrices = plan.points * group_in * max(_TERM * plan.together, 5.0) * slower
    joined = plan.times * plan.points * _POINT * slower * (plan.inputs + plan.outputs) / 2
    return items * plan.outputs * max(matrices, stream) + joined


def _point_cycles(group_in: int) -> float:
    """Cycles of a point of an output, where lanes are no channels of both sides: from one plane to another."""
    return _POINT + 8.0 * (group_in - 1)


def _moves_cycles(s: Situation, plan: Plan) -> float:
    """The ways in and out, with what tensors that caches do not hold cost more."""
    p, tiles, last, blocks, only = s.problem, plan.tiles, plan.sweep[-1], plan.kind == "blocks", len(plan.tiles) == 1
    read = math.prod(min(t.reach, a.inp) for a, t in zip(plan.sweep, tiles, strict=True))
    written = math.prod(plan.box)
    if blocks and not only:  # rows of a tile pass through squares, however short they are
        short, few = min(tiles[-1].reach, last.inp), plan.box[-1]
        read = read // short * (-(-short // plan.lane) * plan.lane)
        written = written // few * max(few, plan.lane // 2)
    per_in, per_out = _pixel_cycles(s, plan)
    moves = plan.times * (plan.inputs * (read * per_in + plan.points) + plan.outputs * written * per_out + _ITEM)
    moved = image_bytes(p)
    if only:  # lines of many channels, a little of each at a time
        return moves + max(0, sum(moved) - s.profile.cache("l2", _NEAR_LINES)) / s.profile.stream("l3", _LINES)
    far = sum(b for b in moved if b > s.profile.cache("l3", _CACHED / 2))
    moves += far / s.profile.stream("memory", _MEMORY)
    beyond = max(0, sum(moved) - s.profile.cache("l2", _HELD))
    if blocks:  # lanes are tiles: neighbours in a row are taken one by one
        return moves + (16.0 if p.layout == "NCHW" else 8.0) / plan.box[-1] * beyond
    return moves if plan.kind == "own" else moves + _SCATTERED[p.layout] * beyond


def _pixel_cycles(s: Situation, plan: Plan) -> tuple[float, float]:
    """Cycles of a vector on the way in, and out."""
    p = s.problem
    if plan.kind == "blocks":  # by runs of neighbouring tiles, those at the ends alone
        along = plan.tiles[-1].count
        runs = max(1.0, min(plan.lane, plan.count) / along * min(along, 3))
        return 7.0 * runs, 14.0 * runs
    if p.layout == "NCHW":
        return 6.0 * (1 + planes_collide(p, reading=True)), 9.0 * (1 + planes_collide(p, reading=False))
    if len(plan.tiles) > 1:
        return 3.0, 4.0
    collide_in, collide_out = (  # pixels of a line that meet few sets of a cache
        math.gcd(channels * dtype.itemsize, 2048) // 1024 for channels, dtype in ((p.c, p.x_dtype), (p.m, p.y_dtype))
    )
    return 3.0 + 8.0 * collide_in, 4.0 + 8.0 * collide_out


def at_least(s: Situation) -> float:
    """Cycles that transforms, products and the way out take, whatever the tiles."""
    p, arith = s.problem, arith_of(s)
    if max(p.k) < LEAST_TAPS or not p.c * p.m:
        return math.inf
    lane, group_in = lanes(s.target, arith), p.c // p.groups
    slower, transforming = s.rates(arith).slower, s.transforming(arith)
    written = (4.0 if p.layout == "NHWC" else 9.0) * math.prod(o or 0 for o in p.out) * s.moving
    cycles = []
    for kind in kinds(s):
        times, inputs, outputs = transforms(s, kind, lane)
        product = outputs * _point_cycles(group_in)
        if kind == "dense":
            product = outputs * group_in * _TERM + _POINT * (inputs + outputs) / 2
        total = outputs * written
        for sweep in sweeps(p):  # all points pass along all axes but one
            along = options(sweep, kind) if all(axis.taps and axis.out and axis.inp for axis in sweep) else [()]
            points = math.prod(min((tile.count * tile.points for tile in tiles), default=0) for tiles in along)
            passes = sum(
                min((line_cycles(tile.points) / tile.points for tile in tiles), default=0.0)
                for tiles in along[:-1] or along
            )
            total += points * ((inputs + outputs) * passes * transforming + product * slower)
        cycles.append(times / lane * total)
    return min(cycles, default=math.inf) * (p.n or 0)
