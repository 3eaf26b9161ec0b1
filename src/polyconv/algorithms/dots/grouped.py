"""Small groups of small integers, of 1, 2, 4 and 8 channels, as wide out as in: words of several groups a vector.

Channels of groups narrower than a word meet weights of zero in the other groups' sums; those of wider ones are added
at the end.  Boxes and what follows sums are those of ``blocks``.
Cost: the products, with words filled to whole groups.  Exact: sums are taken modulo 2^32.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.blocks import Block, BlocksForm, block_channels, line_offsets, refusal
from polyconv.algorithms.dots.form import Sizes
from polyconv.algorithms.dots.situations import padding_of
from polyconv.algorithms.form import Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.dots_grouped import grouped_dot_tile, sum_count
from polyconv.kernels.fused import FusedTile, WordWalk
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Address
from polyconv.lowering.bands import whole_bands
from polyconv.lowering.boxes import near_equal_sizes, row_lists
from polyconv.lowering.program import Request, address_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep, box_count, taps_of
from polyconv.runtime.arrays import as_aligned
from polyconv.target import Target

__all__ = ["GroupedForm", "forms"]

_MOST_ROWS = 8
_GROUPS = (1, 2, 4, 8)


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if (reason := refusal(s)) is not None:
        return reason
    if p.c != p.m or p.c // p.groups not in _GROUPS:
        return "needs groups of 1, 2, 4 or 8 channels, as many out as in"
    return (GroupedForm.of(s),)


@dataclass(frozen=True, slots=True)
class GroupedForm(BlocksForm):
    """Tiles of some pixels by a vector of words."""

    def products(self, sweep: Sweep, sizes: Sizes) -> float:
        """Cycles of an image's products or loads of their operands, and of what follows sums."""
        s, arith = self.s, self.arith
        group, rates, slow = s.problem.c // s.problem.groups, s.rates(arith), 1.0 if s.target.vnni else 1.5
        count, most = sum_count(arith.name, group), _most_rows(s.target, arith, group)
        rows, taps = math.prod(sizes.box[:-1]) * box_count(sweep, sizes.box), math.prod(axis.taps for axis in sweep)
        products = 0.0
        for pixels, alike in near_equal_sizes(sizes.box[-1], most):
            step = max(slow * pixels * count / rates.multiply_adds, (pixels + count) / rates.loads, rates.latency)
            tile = taps * (step + 1) + 15 + pixels * (self.leaving(sweep[-1]) + arith.channels + count)
            products += rows * alike * sizes.blocks * tile
        return products

    def block(self, r: Request, sweep: Sweep, sizes: Sizes) -> Block:
        """How blocks of a request are multiplied."""
        arith, channels, taps = r.arith, block_channels(r.situation, r.arith), sweep[-1].taps
        key = ("dots_grouped", arith.name, r.target.vector_bytes, taps_of(sweep))
        entries = [
            [v for t, at in enumerate(sizes.held[-1].start) for v in (line + at * sizes.pixel_bytes, 1, tap * taps + t)]
            for tap, line in enumerate(line_offsets(sizes))
        ]
        return Block(
            weights=r.packed(key, lambda: _packed(r.weights(sweep), arith, channels)),
            rows=row_lists(sweep[:-1], entries, 3, whole_bands(sweep[:-1]) if padding_of(r) else None),
            channels=tuple(np.arange(channels).reshape(-1, arith.channels).T.reshape(-1).tolist()),
            most=_most_rows(r.target, arith, r.problem.c // r.problem.groups), tile=partial(_tile, r),
            word=sizes.pixel_bytes,
        )


def _most_rows(target: Target, arith: Arithmetic, group: int) -> int:
    """Most rows of a tile: sums, the weights or pixels that are used again, and two more must fit the registers."""
    count, spare = sum_count(arith.name, group), 2 if target.vnni else 3
    fits = [n for n in range(1, _MOST_ROWS + 1) if n * count + min(n, count) + spare <= target.registers]
    return max(fits, default=1)


def _tile(r: Request, spec: FusedTile, rows: int) -> Address[WordWalk]:
    """Address of the tile of so many rows."""
    group = r.problem.c // r.problem.groups

    def make(k: Module, name: str) -> None:
        grouped_dot_tile(k, name, spec, lanes(r.target, r.arith), rows, group)

    return address_of(r, f"grouped dots {spec} {max(group, r.arith.channels)} {rows}", "tile", WordWalk, make)


def _packed(w: NDArray[Any], arith: Arithmetic, block: int) -> NDArray[Any]:
    """Weights (groups, group, group, taps) as [block][tap][sum][channel], zeros between different groups."""
    groups, group, _, taps = w.shape
    count, together, channels = sum_count(arith.name, group), arith.channels, groups * group
    blocks = -(-channels // block)
    packed = np.zeros((blocks * block, taps, count), w.dtype)
    channel = np.arange(channels)
    for number in range(count):
        output = channel // max(group, together) * max(group, together) + number
        alike = (output // group == channel // group) & (output < channels)
        some, of_some = channel[alike], output[alike]
        packed[some, :, number] = w[some // group, of_some % group, some % group]
    return as_aligned(packed.reshape(blocks, block, taps, count).transpose(0, 2, 3, 1))
