"""What ``direct`` costs: cycles of a sweep of certain sizes, from rates of the machine and what was measured on Zen 5.

Products, with what streaming weights are late; inputs that are brought into the panel; results that leave.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

from polyconv.algorithms.dense.sizes import (
    Blocks,
    Sizes,
    blocks_of,
    channel_words,
    panel_blocks,
    steps_of,
    weight_bytes,
)
from polyconv.algorithms.least import least
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.isa import channel_tile as most_rows
from polyconv.kernels.tile import FIRST, LAST
from polyconv.lowering.bands import Bands, bands, share_met
from polyconv.lowering.boxes import near_equal_sizes
from polyconv.lowering.moves import is_apart
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, terms_of
from polyconv.lowering.tiles import is_fusible, tile_cycles
from polyconv.lowering.traffic import apart_cycles, far_cycles, planes_collide, streamed_cycles
from polyconv.target import Target

__all__ = [
    "ROW_CYCLES", "SHORT_CYCLES", "SHORT_STEP", "best_blocks", "cycles_at_least", "cycles_of", "is_fused",
    "missed_ends", "pack_cycles", "row_bands", "traffic", "weights_are_far",
]  # fmt: skip

_LIST_BYTES = 512 << 10
"""Most bytes of lists of entries; where bands of rows would need more, fewer axes have bands."""

_FAR_WEIGHTS, _NEAR_WEIGHTS, _BLOCK_WEIGHTS = 0.25, 0.5, 0.625
"""Weights beyond the first share of a last cache are taken to come from memory.  Up to the second share of a
second-level cache they stay there from box to box; up to the third, those of a block of outputs stream from there, and
others half as fast."""
_MEMORY, _LAST, _CACHE = 5 / 10.6, 8 / 24, 16 / 61
"""What a thread gets of the bytes a cycle of memory, of the last cache and of its second-level cache: measured, of what
a Zen 5 gives."""

_STREAM_WEIGHTS, _HELD_WEIGHTS, _FEW_PIXELS, _LATE = 1.0, 0.75, 20 / 24, 0.5
"""Weights stay from call to call in a second-level cache, up to the first share of it, or in a last cache, up to the
second.  Share of the bytes a cycle of the last one that come where pixels are few; of that time, beyond the time of
the products, the share that is lost."""

_FUSED_CYCLES = 6.0
"""Cycles of a vector of results that are saved where it leaves from registers."""

SHORT_STEP, SHORT_CYCLES = 6.0, 0.35
"""A step of a tile that takes fewer cycles takes so much longer.  Measured on Zen 5, AVX-512 and AVX2."""

ROW_CYCLES = 40.0
"""In which the driver comes to a row of outputs of a block.  Measured on Zen 5: 40 to 80 for rows of 3 outputs."""

_NARROW = 2 / 3
"""Of the cycles in which a vector of results is transposed, those of a shorter one.  Measured on Zen 5 with AVX2, 15
pointwise layers."""

_WAITING_ROWS = 4
"""Tiles of so few rows take weights faster than a second-level cache gives them."""


def weights_are_far(s: Situation, size: int) -> bool:
    """Whether so many bytes of weights come from memory, call after call."""
    return size > s.cache("l3", _FAR_WEIGHTS)


# -- tiles ---------------------------------------------------------------------------------------------


def _row_cycles(s: Situation, arith: Arithmetic, steps: int, vectors: int, width: int) -> tuple[float, int]:
    """Cycles of a step of all tiles of a row of outputs in blocks of so many vectors, and how many tiles there are."""
    outputs, size = -(-(s.problem.m // s.problem.groups) // lanes(s.target, arith)), s.target.vector_bytes
    total, tiles, rates, near = 0.0, 0, s.rates(arith), s.profile.cache("l2", _BLOCK_WEIGHTS)
    rate = s.profile.stream("l2", _CACHE)
    for some, blocks in ((vectors, outputs // vectors), *(((outputs % vectors, 1),) if outputs % vectors else ())):
        stream = some * size / (2 * rate if steps * some * size <= near else rate)
        late = streamed_cycles(s, some * size) * min(1.0, steps * some * size / s.profile.numbers["l1.bytes"])
        for rows, count in near_equal_sizes(width, most_rows(s.target, arith, some)):
            cycles = max(tile_cycles(rates, rows, some), stream)
            total += blocks * count * (cycles + late + (SHORT_CYCLES if cycles < SHORT_STEP else 0.0))
            tiles += blocks * count
    return total, tiles


@lru_cache(256)
def best_blocks(s: Situation, arith: Arithmetic, steps: int, width: int) -> Blocks:
    """Blocks of two vectors, or three where rows are cut into tiles too low for two."""
    lane, group_out = lanes(s.target, arith), s.problem.m // s.problem.groups
    choices = [v for v in (2, 3) if v <= -(-group_out // lane) and most_rows(s.target, arith, v)]
    best = min(choices, key=lambda n: s.price((n, width), _row_cycles(s, arith, steps, n, width)[0]), default=1)
    return blocks_of(s, arith, best)


def is_fused(s: Situation, arith: Arithmetic, sweep: Sweep, sizes: Sizes) -> bool:
    """Whether results leave from registers, if they lie as the layout says: such tiles multiply padding in a row.

    Tiles of few rows wait for weights, with padding or without.
    """
    p = s.problem
    fusible = p.layout == "NHWC" and sizes.chunks == 1 and arith.channels == 1 and is_fusible(p)
    steps, last = terms_of(p, sweep), sweep[-1]
    saved = steps / s.rates(arith).multiply_adds * _share_missed(last) if last.out > _WAITING_ROWS else 0.0
    return fusible and not sizes.flat and saved < _FUSED_CYCLES


def missed_ends(axis: Axis) -> list[int]:
    """For every tap of an axis which end of a line it misses, if one."""
    first = [t * axis.dilation - axis.pad for t in range(axis.taps)]
    last = [at + (axis.out - 1) * axis.stride for at in first]
    return [FIRST if a < 0 else LAST if b >= axis.inp else 0 for a, b in zip(first, last, strict=True)]


def _share_missed(axis: Axis) -> float:
    """Share of the products of a row that tiles leave out, since they meet padding at its ends."""
    return sum(end > 0 for end in missed_ends(axis)) / max(1, axis.taps * axis.out)


def row_bands(sweep: Sweep, entries: int) -> list[Bands]:
    """Bands of the outer axes, of as many as there is room for lists of so many entries."""
    return bands(sweep[:-1], _LIST_BYTES // (24 * max(1, entries)))


# -- a sweep -------------------------------------------------------------------------------------------


def cycles_of(s: Situation, arith: Arithmetic, sweep: Sweep, sizes: Sizes) -> dict[str, float]:
    """Cycles of one sweep: multiply-adds at full tiles or at the loads that short rows need, and the moves."""
    p, box_count = s.problem, sizes.boxes(sweep)
    lane, group_in, group_out = lanes(s.target, arith), p.c // p.groups, p.m // p.groups
    steps = steps_of(s, arith, sweep)
    row, tiles = _row_cycles(s, arith, steps, sizes.blocks.vectors, sizes.row)
    rows = math.prod(axis.out for axis in sweep[:-1]) * -(-sweep[-1].out // max(1, sizes.box[-1]))
    rows = box_count if sizes.flat else rows
    entries = panel_blocks(group_in, arith) * math.prod(axis.taps for axis in sweep)
    met, fused = share_met(sweep, row_bands(sweep, entries)), is_fused(s, arith, sweep, sizes)
    met *= 1.0 if fused else 1 - _share_missed(sweep[-1])
    products = rows * (met * (row * steps + tiles * (20 + 4.0 * entries)) + sizes.blocks.count * ROW_CYCLES)
    weights, of_all = weight_bytes(s, arith, sweep, sizes.blocks), math.prod(p.w_shape) * arith.bytes
    profile = s.profile
    if weights > profile.cache("l2", _STREAM_WEIGHTS):  # the first row of a box waits, others find them near
        held = of_all <= profile.cache("l3", _HELD_WEIGHTS)
        late = weights / profile.stream(*(("l3", _FEW_PIXELS) if held else ("memory", _MEMORY))) - met * row * steps
        products += _LATE * max(0.0, late) * box_count / p.groups
    lines_held = math.prod(max(1, h.count) for h in sizes.held)
    moves = box_count * pack_cycles(s, arith, sweep, sizes)
    moves += far_cycles(s, box_count * lines_held * group_in * p.x_dtype.itemsize, soon=True)
    leaving = _leaving(s, arith, fused=fused, apart=apart_cycles(s, sweep[-1]))
    moves += rows * sizes.row * -(-group_out // lane) * leaving
    batch = (p.n or 0) * p.groups
    return {"products": products * batch, "moves": moves * batch}


def cycles_at_least(s: Situation, arith: Arithmetic) -> float:
    """Cycles that products, entries, and the ways in and out take, whatever the boxes and tiles."""
    p, work = s.problem, least(s.problem)
    group_in = p.c // p.groups
    blocks_in = panel_blocks(group_in, arith)
    vectors = -(-(p.m // p.groups) // lanes(s.target, arith))
    cycles = work.met * vectors * channel_words(group_in, arith) / s.rates(arith).multiply_adds
    cycles += work.met * vectors * 4.0 * blocks_in / _largest_tile(s.target, arith)
    moves = work.outputs * vectors * _leaving(s, arith, fused=p.layout == "NHWC")
    moves += work.brought * (blocks_in * 6.0 if group_in >= 8 else group_in * 3.0)
    cycles += moves * s.moving
    return cycles * (p.n or 0) * p.groups


@cache
def _largest_tile(target: Target, arith: Arithmetic) -> int:
    """Most vectors of sums of a tile."""
    return max(vectors * most_rows(target, arith, vectors) for vectors in (1, 2, 3))


def _leaving(s: Situation, arith: Arithmetic, *, fused: bool, apart: float = 0.0) -> float:
    """Cycles in which a vector of results leaves: through a transposition, or straight from registers."""
    p = s.problem
    group_out = p.m // p.groups
    if group_out < lanes(s.target, arith) // 2:
        return 2.0 * group_out
    if p.layout == "NHWC":
        return 1.5 if fused else 4.0
    square = 12.0 if planes_collide(p, reading=False) else 9.0
    return square * (_NARROW if s.target.vector_bytes < 64 else 1.0) + apart


def pack_cycles(s: Situation, arith: Arithmetic, sweep: Sweep, sizes: Sizes) -> float:
    """Cycles that bringing the inputs of a box into the panel takes."""
    p = s.problem
    group_in = p.c // p.groups
    slow_in = 3.0 if planes_collide(p, reading=True) else 1.0
    if p.layout == "NCHW" and sweep[-1].stride > 1 and not is_apart(p, sweep[-1], lanes(s.target, arith), "c"):
        slow_in *= 2.0 if sweep[-1].stride == 2 else 4.0  # squares of every second pixel, or element by element
    held = math.prod(max(1, h.count) for h in sizes.held)
    return 400 + held * (panel_blocks(group_in, arith) * 6.0 * slow_in if group_in >= 8 else group_in * 3.0)


def traffic(s: Situation, arith: Arithmetic, sweep: Sweep, sizes: Sizes) -> float:
    """Cycles in which a sweep's tiles are fed: inputs, weights past the caches, once a box, and sums, twice a chunk.

    Weights that the caches hold are prefetched while a box is multiplied; it must not be too small for that.
    """
    p, box_count = s.problem, sizes.boxes(sweep)
    outputs, profile = math.prod(axis.out for axis in sweep), s.profile
    weights = weight_bytes(s, arith, sweep, sizes.blocks)
    sums = p.groups * sizes.blocks.count * sizes.blocks.outputs * outputs * arith.bytes
    products = weights / arith.bytes * outputs / (sizes.blocks.lanes * s.rates(arith).multiply_adds)
    stream = max(0.0, weights * box_count / profile.stream("l3", _LAST) - products)
    if weights > profile.cache("l3", _FAR_WEIGHTS):
        stream = weights * box_count / profile.stream("memory", _MEMORY)
    elif weights <= profile.cache("l2", _NEAR_WEIGHTS):
        stream = 0.0
    packing = box_count * p.groups * pack_cycles(s, arith, sweep, sizes)
    return packing + stream + 2 * (sizes.chunks - 1) * sums / profile.stream("l2", _CACHE)
