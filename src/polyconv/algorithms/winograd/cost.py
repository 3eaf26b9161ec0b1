"""Cycles of a sweep in boxes of tiles: the products, the way in and the way out; and the least that schemes take.

Numbers without another source were fitted to measured times of layers on a Zen 5 with AVX-512.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from polyconv.algorithms.winograd.boxes import LIST_BYTES, Boxes, near_bytes, outer_bands
from polyconv.algorithms.winograd.case import Case
from polyconv.algorithms.winograd.schemes import NONE
from polyconv.algorithms.winograd.tiles import Cut, cuts
from polyconv.kernels.isa import Arithmetic, channel_tile, lanes
from polyconv.kernels.tile import ROW_WORDS
from polyconv.kernels.transform import Scheme
from polyconv.lowering.bands import bands, share_met
from polyconv.lowering.boxes import near_equal_sizes
from polyconv.lowering.moves import is_apart
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, sweeps
from polyconv.lowering.tiles import tile_cycles
from polyconv.lowering.traffic import WEIGHTS_FROM_MEMORY, far_cycles, is_slow_beyond, planes_collide
from polyconv.machine.profile import Profile, Rates
from polyconv.problem.problem import Problem

__all__ = ["at_least", "cycles", "is_stacked"]

_SLOWER = 1.15
"""Cycles of products, measured over counted."""
_TRANSFORM = 3.6
"""Cycles in which a vector of a tile is transformed."""
_NEAR_WEIGHTS = 1 / 2
"""Share of a second-level cache: transformed weights that stay there from box to box.  In a network whose weights come
from memory larger ones pay for that in every box, though a further one may find them in the last cache: with the first
box alone paying, ResNet-18 took 2 % longer on one thread and 7 % on two."""
_FEW_WEIGHTS, _HELD_WEIGHTS = 1 / 8, 25 / 32
"""Shares of a last cache: transformed weights that come as fast as it gives; those beyond which some come from memory,
whose bytes a cycle threads share."""
_STREAMED = (
    ("l2", _NEAR_WEIGHTS, 32 / 61), ("l3", _FEW_WEIGHTS, 1.0), ("l3", _HELD_WEIGHTS, 14 / 24), ("l3", 5 / 4, 11 / 24),
)  # fmt: skip
_STREAMED_SLOWLY = ("l2", _NEAR_WEIGHTS, 32 / 61), ("l3", 3 / 8, 1.0), ("l3", 5 / 4, 3 / 4)
"""Transformed weights of less than a share of a cache come with a share of the bytes a cycle that it gives; of more,
with ``WEIGHTS_FROM_MEMORY`` of those of memory.  The second table is for a slow last cache, from
which more weights come hardly slower.  Measured on an Emerald Rapids, 15 layers."""
_FEW_TILES, _SOONER = 4, 1.3
"""Where a single box has so few tiles, almost nothing but weights is read; those beyond ``_FEW_WEIGHTS`` then come so
much faster."""
_ONE_AXIS = 0.85
"""Cycles of the way in and out where one axis is transformed, as a share of those counted."""


def is_stacked(p: Problem, sweep: Sweep) -> bool:
    """Whether the batch is the first axis of a sweep, so that boxes hold tiles of several images."""
    return len(sweep) > len(p.k)


def at_least(s: Situation, arith: Arithmetic, sweep: Sweep, y: Scheme, x: Scheme) -> float:
    """Cycles that the products and transforms of two schemes take, however boxes are cut."""
    p, lane, both = s.problem, lanes(s.target, arith), y != NONE
    group_in, outer = p.c // p.groups, sweep[: -2 if both else -1]
    products, entering, tiles = _along(sweep[-1], x)
    if both:
        of_y = _along(sweep[-2], y)
        products, entering, tiles = products * of_y[0], entering * of_y[1], tiles * of_y[2]
    taps = math.prod([axis.taps for axis in outer])
    met = taps * (share_met(outer, bands(outer, LIST_BYTES)) if outer else 1.0)
    vectors, vectors_in = -(-(p.m // p.groups) // lane), -(-group_in // ROW_WORDS) * (ROW_WORDS // lane)
    multiplying = _SLOWER / s.rates(arith).multiply_adds * products * vectors * group_in * met
    transforms = 1.0 * tiles * (vectors * y.n * x.n + vectors_in * entering)
    transforms *= _TRANSFORM * s.transforming(arith) * (1.0 if both else _ONE_AXIS)
    return (multiplying + transforms) * math.prod([axis.out for axis in outer]) * (p.n or 0) * p.groups


@lru_cache(1024)
def _along(axis: Axis, scheme: Scheme) -> tuple[int, int, int]:
    """Products of all tiles along an axis, points by the phases that enter them, and tiles."""
    cut = cuts(axis, scheme.m, axis.out, axis.dilation)
    tiles, full = sum([each.tiles for each in cut.boxes]), sum([each.full for each in cut.boxes])
    step, taps = (scheme.r, axis.taps) if axis.stride == 1 else (axis.stride, axis.taps)
    phases = -(-taps // step) if axis.stride == 1 else min(step, taps)
    whole = taps // step if axis.stride == 1 else taps - (scheme.r - 1) * step
    inner = (scheme.n - scheme.ends) * phases
    return inner * tiles + scheme.ends * whole * full, inner + scheme.ends * whole, tiles


def cycles(b: Boxes) -> dict[str, float]:
    """Cycles by term: the inputs of all boxes, the products, the outputs."""
    case, ways = b.case, _ways(b.case)
    outer_boxes = math.prod([-(-axis.out // deep) for axis, deep in zip(case.outer, b.outer, strict=True)])
    inner_boxes, lines = len(b.rows.boxes) * len(b.columns.boxes), math.prod([h.count for h in b.held])
    # what leaves the second-level cache is written to the third, and comes back as fast as that gives: with inputs,
    # results and weights beside it more and more of a box that takes above half of the cache, all of one that fills it
    held = b.workspace - (b.out - b.sums) // b.together * (b.together - 1)
    far = held * min(1.0, max(0.0, 2 * held / ways.near - 1))
    of_tile_in = b.outer_lines * ways.tile_in
    of_box_in = lines * ways.vectors_in * ways.vector_in + 1500.0 + far / ways.far_rate
    alone = outer_boxes * inner_boxes == 1 and math.prod(b.outer) * b.tiles <= _FEW_TILES
    of_blocks = _blocks(case, alone=True) if alone else ways.blocks
    products = inputs = outputs = 0.0
    for (rows, tall), (columns, wide) in itertools.product(b.rows.alike, b.columns.alike):
        tiles, pixels, segments = rows.tiles * columns.tiles, rows.covers * columns.covers, columns.segments[0]
        products += tall * wide * _products(b, rows, columns, ways.kinds, of_blocks)
        of_box = of_box_in * outer_boxes + tiles * of_tile_in * outer_boxes
        inputs += tall * wide * (of_box + ways.outer_rows * segments * ways.segment * ways.vectors_in)
        of_rows = (tiles * ways.tile_out + pixels * ways.vector_out) * case.vectors_out
        outputs += tall * wide * ways.outer_rows * (of_rows + segments * ways.segment * case.blocks * case.vectors)
    products *= ways.outer_rows / math.prod(b.outer)
    s, p, batch = case.s, case.s.problem, ways.batch
    bytes_in = lines * p.c * p.x_dtype.itemsize * inner_boxes * outer_boxes
    images, stacked = p.n or 0, is_stacked(p, case.sweep)
    far_in = far_cycles(s, bytes_in / (images if stacked else 1), soon=True) * images
    if case.transformed == 1:
        inputs, outputs = _ONE_AXIS * inputs, _ONE_AXIS * outputs
    return {"inputs": inputs * batch + far_in, "products": products * batch, "outputs": outputs * batch}


class _Ways(NamedTuple):
    """What all boxes of a case have in common, in cycles unless said: the ways in and out, and products.

    In their order: transforms of a tile, of all its channels and of a vector of results; a vector of a pixel that comes
    in and one that goes out; a segment of a line, for each vector and way.  Vectors of input channels; rows of outputs
    of the axes that are not transformed; images, or groups of them, that are computed one by one.  Workspace that stays
    in a second-level cache, in bytes; bytes a cycle of what does not.  Kinds of points, with how many there are of each
    and its steps; blocks of outputs.
    """

    tile_in: float
    tile_out: float
    vector_in: float
    vector_out: float
    segment: float
    vectors_in: int
    outer_rows: int
    batch: int
    near: int
    far_rate: float
    kinds: list[tuple[int, int, float]]
    blocks: list[_Block]


@lru_cache(256)
def _ways(case: Case) -> _Ways:
    s, p, last = case.s, case.s.problem, case.sweep[-1]
    vectors_in = -(-case.groups[0] // ROW_WORDS) * (ROW_WORDS // case.lane)
    transform = _TRANSFORM * s.transforming(case.arith)
    vector_in, vector_out, segment = 3.5, 3.0, 0.0
    if p.layout == "NCHW":
        lines = min(1.0, s.target.vector_bytes / s.profile.numbers["line"])  # of a vector: it is these that collide
        vector_in = 4.5 + 2.5 * lines * planes_collide(p, reading=True)
        vector_in *= 1.0 if last.stride == 1 else 1.3 if is_apart(p, last, case.lane, "c") else 2.5
        vector_out = 4.0 + 6.0 * lines * planes_collide(p, reading=False)
        segment = 60.0
    return _Ways(
        vectors_in * case.products * transform, case.y.n * case.x.n * transform, vector_in, vector_out, segment,
        vectors_in, math.prod([axis.out for axis in case.outer]),
        p.groups * (1 if is_stacked(p, case.sweep) else p.n or 0), near_bytes(case),
        s.profile.stream("l3", 1.0), _kinds(case), _blocks(case, alone=False),
    )  # fmt: skip


class _Block(NamedTuple):
    """Blocks of outputs alike: their vectors, their number, and cycles of a step of their products.

    ``near`` and ``far`` are those in which its weights come from the nearest cache and from where they lie; ``steps``
    those of the multiply-adds by the rows of a tile.
    """

    vectors: int
    number: int
    near: float
    far: float
    steps: tuple[float, ...]


def _blocks(case: Case, *, alone: bool) -> list[_Block]:
    """The blocks of outputs of a group; ``alone`` where a single box has few tiles."""
    s, most, size = case.s, channel_tile(case.s.target, case.arith, case.vectors), case.weight_bytes
    # weights of a group or a sweep push out those of another; further calls find those of a point nearby
    whole = size * s.problem.groups * len(sweeps(s.problem))
    fetched = s.far and whole > s.profile.cache("l2", _NEAR_WEIGHTS)
    rate = s.profile.stream("memory", WEIGHTS_FROM_MEMORY) if fetched else _streamed(s.profile, whole)
    if fetched or size > s.profile.cache("l3", _HELD_WEIGHTS):
        rate /= s.threads
    near = _streamed(s.profile, size // case.blocks // case.products)
    if alone and size > s.profile.cache("l3", _FEW_WEIGHTS):
        rate *= _SOONER
    numbers = [(case.vectors, case.blocks - 1), (case.last_vectors, 1)]
    if case.vectors == case.last_vectors or case.blocks == 1:
        numbers = [(case.last_vectors, case.blocks)]
    row = case.lane * case.arith.bytes
    return [
        _Block(of, count, of * row / near, of * row / rate, _step_cycles(s.rates(case.arith), of, most))
        for of, count in numbers
    ]  # fmt: skip


def _streamed(profile: Profile, size: int) -> float:
    """Bytes a cycle of transformed weights that are so many."""
    return next(rate for most, rate in _streams(profile) if size < most)


@cache
def _streams(profile: Profile) -> list[tuple[float, float]]:
    """Most bytes, and the bytes a cycle of so many."""
    streamed = _STREAMED_SLOWLY if is_slow_beyond(profile) else _STREAMED
    caches = [(profile.cache(level, share), profile.stream(level, rate)) for level, share, rate in streamed]
    return [*caches, (math.inf, profile.stream("memory", WEIGHTS_FROM_MEMORY))]


@cache
def _step_cycles(rates: Rates, vectors: int, most: int) -> tuple[float, ...]:
    """Cycles of a step of a tile of so many vectors, by its rows."""
    return tuple([_SLOWER * tile_cycles(rates, rows, vectors) for rows in range(most + 1)])


class _Calls(NamedTuple):
    """Products of some tiles by a block: calls, cycles of a step of all, and those that the first waits for weights."""

    number: int
    step: float
    late: float


@lru_cache(4096)
def _calls(of: _Block, tiles: int) -> _Calls:
    sizes = near_equal_sizes(tiles, len(of.steps) - 1)
    step = sum([max(of.steps[rows], of.near) * number for rows, number in sizes])
    return _Calls(sum([n for _, n in sizes]), step, max(0.0, of.far - max(of.steps[sizes[0][0]], of.near)))


def _kinds(case: Case) -> list[tuple[int, int, float]]:
    met = case.outer_taps * share_met(case.outer, outer_bands(case)) if case.outer else 1
    steps = met * case.groups[0]
    return [(kind, points, steps * case.entering[kind]) for kind, points in enumerate(case.points) if points]


def _products(b: Boxes, rows: Cut, columns: Cut, of_points: Sequence[tuple[int, int, float]], of_blocks: list[_Block]
              ) -> float:  # fmt: skip
    """Cycles of the products of such a box, where the first tile waits for its weights."""
    found, deep = 0.0, math.prod(b.outer)
    tall, wide = (rows.tiles, rows.full), (columns.tiles, columns.full)
    for kind, points, steps in of_points:
        tiles = tall[kind >> 1] * wide[kind & 1]
        if not tiles:
            continue
        joins = not kind and tiles == b.tiles  # rows of other axes are one matrix product
        repeated, size = (1, deep * tiles) if joins else (deep, tiles)
        for of in of_blocks:
            calls, step, late = _calls(of, size)
            of_block = (repeated * step + late) * steps + 20 * repeated * calls + 1.0 * deep * tiles * of.vectors
            found += points * of.number * of_block
    return found
