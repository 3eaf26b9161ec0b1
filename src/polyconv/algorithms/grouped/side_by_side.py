"""Several small groups side by side in the lanes: what algorithms share whose vectors hold whole groups.

A *block* is as many groups as fill a vector, with as many channels out as in.  Its tiles are walked along a row of
pixels.  It must not know where pixels lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.fused import FusedTile
from polyconv.kernels.grouped import grouped_tile
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.program import Request, S, addresses_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.tiles import tile_cycles
from polyconv.lowering.traffic import planes_collide
from polyconv.machine.profile import Rates
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = [
    "block_count", "lanes_used", "most_rows", "of_blocks", "packed_weights", "plane_cycles", "row_cycles",
    "tile_functions", "walks_of",
]  # fmt: skip

_MOST_ROWS = 8
"""Most pixels of a tile."""


def lanes_used(s: Situation, arith: Arithmetic) -> int:
    """Lanes that whole groups fill."""
    lane, group = lanes(s.target, arith), s.problem.c // s.problem.groups
    return lane // group * group


def block_count(s: Situation, arith: Arithmetic) -> int:
    """Blocks of all channels; the last may have fewer groups."""
    return -(-s.problem.c // lanes_used(s, arith))


def of_blocks(r: Request) -> Request:
    """The request with the last block filled up, and blocks as groups."""
    s, blocks = r.situation, block_count(r.situation, r.arith)
    channels = blocks * lanes_used(s, r.arith)
    return replace(r, situation=replace(s, problem=replace(s.problem, c=channels, m=channels, groups=blocks)))


def most_rows(target: Target, group: int) -> int:
    """Most pixels of a tile: sums, the weights or pixels that are used again, and two more must fit the registers.

    Without FMA a product needs yet another one.
    """
    spare = 2 if target.has_fma else 3
    fits = [n for n in range(1, _MOST_ROWS + 1) if n * group + min(n, group) + spare <= target.registers]
    return max(fits, default=1)


def row_cycles(rates: Rates, pixels: int, most: int, group: int, taps: float) -> float:
    """Cycles of the tiles of a row of pixels, of at most so many each."""
    cycles = 0.0
    for _, rows in near_equal(pixels, most):
        step = max(tile_cycles(rates, rows, group), rows * 1.3 if group == 1 else 0.0)
        alone = 2.0 * group if rows == 1 else 0.0  # nothing else to do while its sums are added
        cycles += taps * step + 4 + 0.35 * rows * group + alone
    return cycles


def plane_cycles(p: Problem) -> tuple[float, float]:
    """Cycles in which a vector of a pixel comes from planes, and goes to planes."""
    per_in = 9.0 if planes_collide(p, reading=True) else 7.0
    return per_in, 9.0 if planes_collide(p, reading=False) else 5.5


def tile_functions(r: Request, spec: FusedTile, group: int, signature: type[S]) -> list[Address[S]]:
    """Addresses of the tiles of 1, 2, ... pixels."""
    count, f16c = lanes(r.target, r.arith), r.target.converts_f16
    tiles = {f"tile{rows}": rows for rows in range(1, most_rows(r.target, group) + 1)}
    return list(addresses_of(
        r, f"grouped {spec} {group}", signature, tiles,
        lambda k, name, rows: grouped_tile(k, name, spec, count, rows, group, f16c=f16c),
    ).values())  # fmt: skip


def walks_of(functions: Sequence[Address[S] | None], pixels: int, most: int
             ) -> Iterator[tuple[int, int, Address[S] | None]]:  # fmt: skip
    """Tiles of a row of pixels, equal ones together: the first pixel, how many there are, and their function."""
    for function, alike in itertools.groupby(near_equal(pixels, most), lambda tile: functions[tile[1] - 1]):
        (first, _), *more = alike
        yield first, 1 + len(more), function


def packed_weights(w: NDArray[Any], lane: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as [block][tap][distance][lane]: from input lane to the output that far after it."""
    groups, group, _, taps = w.shape
    per_block = lane // group
    blocks = -(-groups // per_block)
    packed = aligned((blocks, taps, group, lane), w.dtype)
    own, whole = np.arange(group), np.zeros((blocks * per_block, group, taps), w.dtype)
    for distance in range(group if taps else 0):
        whole[:groups] = w[:, (own + distance) % group, own]
        by_block = whole.reshape(blocks, per_block * group, taps).transpose(0, 2, 1)
        packed[:, :, distance, : per_block * group] = by_block
    return packed
