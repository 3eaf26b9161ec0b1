"""Depthwise convolutions of small integers: as many channels out as in, taps along a line without dilation.

Words hold inputs of one channel from several lines that taps meet, four of bytes or two of 16 bits; what is left of the
last word meets weights of zero.  Boxes and what follows sums are those of ``blocks``.
Cost: a product for the taps that share a word, and weaving every pixel of every such group of lines once.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.blocks import Block, BlocksForm, block_channels, line_offsets, refusal
from polyconv.algorithms.dots.form import Sizes
from polyconv.algorithms.form import Forms
from polyconv.kernels.dots_depthwise import depthwise_dot_row, woven_channels
from polyconv.kernels.fused import FusedTile, WordWalk
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Address
from polyconv.lowering.bands import whole_bands
from polyconv.lowering.boxes import row_lists
from polyconv.lowering.program import Request, address_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, sweeps, taps_of
from polyconv.runtime.arrays import as_aligned

__all__ = ["DepthwiseForm", "forms"]

_MOST_TAPS, _MOST_LINES = 7, 12
"""Most taps along a line, and lines, of a walk, which has code for each of them."""
_HELD = 12
"""Vectors of weights that stay in registers."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if (reason := refusal(s)) is not None:
        return reason
    if p.c != p.groups:
        return "needs one channel a group"
    for sweep in sweeps(p):
        last = sweep[-1]
        if not last.stride <= last.taps <= _MOST_TAPS or last.dilation > 1:
            return f"has walks of up to {_MOST_TAPS} taps along a line, no less than their stride, without dilation"
        if not 0 < math.prod(axis.taps for axis in sweep[:-1]) <= _MOST_LINES:
            return f"has walks along up to {_MOST_LINES} lines"
    return (DepthwiseForm.of(s),)


@dataclass(frozen=True, slots=True)
class DepthwiseForm(BlocksForm):
    """Walks along rows of pixels, each woven once for all outputs that it is an input of."""

    def products(self, sweep: Sweep, sizes: Sizes) -> float:
        """Cycles of an image's products and weaving, and of what follows sums."""
        s, arith, last = self.s, self.arith, sweep[-1]
        rates, slow, together = s.rates(arith), 1.0 if s.target.vnni else 1.5, arith.channels
        groups = -(-math.prod(axis.taps for axis in sweep[:-1]) // together)
        rows, taps = math.prod(axis.out for axis in sweep[:-1]) * sizes.blocks, groups * together * last.taps
        step = max(slow * taps / rates.multiply_adds, taps / rates.loads * (taps > _HELD))
        step += groups * together * last.stride
        return rows * (last.out * (step + self.leaving(last)) + 30 + groups * together * last.taps)

    def block(self, r: Request, sweep: Sweep, sizes: Sizes) -> Block:
        """How blocks of a request are multiplied."""
        arith, last, of_lines = r.arith, sweep[-1], line_offsets(sizes)
        groups = -(-len(of_lines) // arith.channels)
        entries = of_lines + of_lines[-1:] * (groups * arith.channels - len(of_lines))
        channels = woven_channels(arith.channels, lanes(r.target, arith))
        key = ("dots_depthwise", arith.name, block_channels(r.target, arith), taps_of(sweep))
        return Block(
            weights=r.packed(key, lambda: _packed(r.weights(sweep), last.taps, np.array(channels))),
            rows=row_lists(sweep[:-1], [entries, *[[]] * (len(of_lines) - 1)], 1, whole_bands(sweep[:-1])),
            channels=tuple(itertools.chain.from_iterable(channels)),
            tiles=lambda spec: _row(r, spec, last, groups), whole_rows=True,
        )  # fmt: skip


def _row(r: Request, spec: FusedTile, last: Axis, groups: int) -> list[Address[WordWalk]]:
    """Address of the walk along a row."""

    def make(k: Module, name: str) -> None:
        depthwise_dot_row(k, name, spec, lanes(r.target, r.arith), last.taps, last.stride, groups)

    return [address_of(r, f"depthwise dots {spec} {last.taps} {last.stride} {groups}", "row", WordWalk, make)]


def _packed(w: NDArray[Any], taps: int, channels: NDArray[Any]) -> NDArray[Any]:
    """Weights (c, 1, 1, taps) as [block][lines of a word][tap along a line][sum][lane][line]."""
    count, block, together = w.shape[0], channels.size, len(channels)
    lines = w.shape[3] // taps
    blocks, words = -(-count // block), -(-lines // together)
    whole = np.zeros((blocks * block, words * together, taps), w.dtype)
    whole[:count, :lines] = w.reshape(count, lines, taps)
    of_sums = whole.reshape(blocks, block, words, together, taps)[:, channels]  # blocks, sum, lane, words, line, tap
    return as_aligned(of_sums.transpose(0, 3, 5, 1, 2, 4))
