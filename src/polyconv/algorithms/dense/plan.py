"""Plans of ``direct``: a problem to its sweeps, and every sweep to the sizes that cost least.

A box and its panel fit the workspace, cut along outer axes first; where weights would come from afar for too many
boxes, fewer input channels at a time allow larger ones.  Sweeps whose taps mostly meet padding are cut into pieces.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from functools import lru_cache

from polyconv.algorithms.dense.price import best_blocks, cycles_of, pack_cycles, traffic, weights_are_far
from polyconv.algorithms.dense.sizes import Sizes, all_channels, of_box, steps_of, weight_bytes
from polyconv.kernels.isa import Arithmetic
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.boxes import boxes, near_equal_sizes, thread_parts
from polyconv.lowering.situation import Situation, of_one_image
from polyconv.lowering.sweep import Sweep, anywhere, inside, pieces, sweeps, without_taps

__all__ = ["pieces_of", "sizes_of", "sweep_cost", "sweep_workspace"]

_PANEL, _LARGEST_PANEL = 400 / 1024, 4.0
"""Shares of a second-level cache: workspace of a thread that stays there beside streaming weights; how far one box may
go beyond it before channels are taken in chunks."""

_LONGEST_ROW = 256
"""Most pixels of a row of a box."""

_MOST_PIECES = 32
"""Most pieces of a sweep."""


@lru_cache(256)
def pieces_of(s: Situation, arith: Arithmetic) -> tuple[Sweep, ...]:
    """The sweeps, cut up where enough taps meet padding: those left out would add zeros, so no bits depend on it."""
    whole = sweeps(s.problem)
    s = of_one_image(s)
    ways = [whole]
    for axes in sorted({1, len(s.problem.i)}) if s.finite else ():  # the last alone, or all
        cut = [(*((axis,) for axis in sweep[:-axes]), *(pieces(axis) for axis in sweep[-axes:])) for sweep in whole]
        if len(whole) < sum(math.prod(map(len, one)) for one in cut) <= _MOST_PIECES * len(whole):
            every = (_joined(some, sweep) for sweep, one in zip(whole, cut, strict=True)
                     for some in itertools.product(*one))  # fmt: skip
            ways.append(tuple(dict.fromkeys(every)))
    return min(ways, key=lambda way: s.price(way, sum(sum(sweep_cost(s, arith, sweep).values()) for sweep in way)))


def _joined(sweep: Sweep, whole: Sweep) -> Sweep:
    """A piece, whole along the axes after one without taps: no product reaches the outputs there either."""
    gap = next((a for a, axis in enumerate(sweep) if not axis.taps), len(sweep))
    return (*sweep[: gap + 1], *(without_taps(axis.first_out, axis.out, axis.out_step) for axis in whole[gap + 1 :]))


def sweep_cost(s: Situation, arith: Arithmetic, sweep: Sweep) -> dict[str, float]:
    """Cycles of one sweep."""
    return cycles_of(s, arith, sweep, sizes_of(s, arith, sweep))


def sweep_workspace(s: Situation, arith: Arithmetic, sweep: Sweep) -> int:
    """Bytes a thread needs for one sweep."""
    return sizes_of(s, arith, sweep).workspace


def sizes_of(s: Situation, arith: Arithmetic, sweep: Sweep) -> Sizes:
    """Sizes of a sweep, which depend neither on places nor on pads."""
    there = tuple(anywhere(axis) for axis in sweep)
    ways = [_sizes(s, arith, there, False)]
    if len(sweep) > 1 and all(axis.taps == 1 and inside(axis) == range(axis.out) for axis in sweep):
        ways.append(_sizes(s, arith, there, True))
    return min(ways, key=lambda sizes: s.price(sizes, sum(cycles_of(s, arith, there, sizes).values())))


@lru_cache(256)
def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, flat: bool) -> Sizes:
    p, extents, steps = s.problem, tuple(axis.out for axis in sweep), steps_of(s, arith, sweep)
    start = (*extents[:-1], max((size for size, _ in near_equal_sizes(extents[-1], _LONGEST_ROW)), default=0))
    blocks = best_blocks(s, arith, steps, min(_LONGEST_ROW, math.prod(extents)) if flat else extents[-1])
    budget = s.budget(round(_PANEL * s.profile.numbers["l2.bytes"]))
    block_channels, chunk = ROW_WORDS * arith.channels, all_channels(s, arith)

    def fitted(chunk: int, room: int) -> Sizes:
        def workspace(box: tuple[int, ...]) -> int:
            sizes = of_box(s, arith, sweep, box, chunk, blocks, flat=flat)
            return sizes.workspace if sizes.row <= _LONGEST_ROW else sys.maxsize

        return of_box(s, arith, sweep, boxes(start, workspace, room), chunk, blocks, flat=flat)

    found = fitted(chunk, budget)
    most = s.cache("l2", _LARGEST_PANEL) if s.limit is None else budget
    # where weights come from memory for every box, a larger one may be worth its place
    far = weights_are_far(s, weight_bytes(s, arith, sweep, blocks))
    rooms = (budget, min(2 * budget, most)) if far else (budget,)
    while chunk > block_channels:
        chunk = max(block_channels, chunk // 2 // block_channels * block_channels)
        for less in (fitted(chunk, room) for room in rooms):
            cheaper = less.workspace <= most and traffic(s, arith, sweep, less) < traffic(s, arith, sweep, found)
            if found.workspace > most or cheaper:
                found = less
    items = (p.n or 0) * p.groups * found.boxes(sweep)
    products = math.prod(found.box) * steps * blocks.count * blocks.vectors / s.rates(arith).multiply_adds
    repeated = pack_cycles(s, arith, sweep, found) / max(1.0, products)
    return replace(found, splits=thread_parts(s.threads, items, blocks.count, repeated))
