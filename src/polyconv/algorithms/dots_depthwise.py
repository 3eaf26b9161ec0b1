"""Depthwise convolutions of small integers: as many channels out as in, taps along a line without dilation.

Boxes, panels and what follows sums are those of ``dots_grouped``.  Words hold inputs of one channel from several lines
that taps meet, four of bytes or two of 16 bits; what is left of the last word meets weights of zero.
Cost: a product for the taps that share a word, and weaving every pixel of every such group of lines once.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import dots, dots_grouped, dots_plan
from polyconv.algorithms.dots_grouped import Form, block_channels, blocks_step, line_offsets, plan_of
from polyconv.algorithms.panel import Driver
from polyconv.algorithms.program import Program, Request, Situation, Step, address_of, row_lists
from polyconv.algorithms.sweep import Axis, Sweep, sweeps
from polyconv.kernels.dots_depthwise import depthwise_dot_row, woven_channels
from polyconv.kernels.fused import FusedTile, WordWalk
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Address

__all__ = ["applicable", "build", "cost"]

_MOST_TAPS, _MOST_LINES = 7, 12
"""Most taps along a line, and lines, of a walk, which has code for each of them."""
_HELD = 12
"""Vectors of weights that stay in registers."""


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    reason = dots_grouped.applicable(s)
    if reason is not None:
        return reason
    if p.c != p.groups:
        return "needs one channel a group"
    for sweep in sweeps(p):
        last = sweep[-1]
        if not last.stride <= last.taps <= _MOST_TAPS or last.dilation > 1:
            return f"has walks of up to {_MOST_TAPS} taps along a line, no less than their stride, without dilation"
        if not 0 < math.prod(axis.taps for axis in sweep[:-1]) <= _MOST_LINES:
            return f"has walks along up to {_MOST_LINES} lines"
    return None


def cost(s: Situation) -> dict[str, float]:
    """Cycles: products and weaving, what follows sums, and one pass over input and output."""
    p, arith = s.problem, ARITHMETIC[dots_plan.arithmetic(s)]
    rates, slow, together = s.rates(arith), 1.0 if s.target.vnni else 1.5, arith.channels
    products = 0.0
    for sweep in sweeps(p):
        plan, last = plan_of(s, arith, sweep), sweep[-1]
        groups = -(-math.prod(axis.taps for axis in sweep[:-1]) // together)
        rows, taps = math.prod(axis.out for axis in sweep[:-1]) * plan.blocks, groups * together * last.taps
        step = max(slow * taps / rates.multiply_adds, taps / rates.loads * (taps > _HELD))
        step += groups * together * last.stride
        products += rows * (last.out * (step + 3.0 * together) + 30 + groups * together * last.taps)
    return {"products": products * (p.n or 0), "moves": dots_grouped.cost(s)["moves"]}


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    address = dots.driver_address(r)
    steps = [_step(r, sweep, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), dots_grouped.workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    arith, plan, last = r.arith, plan_of(r.situation, r.arith, sweep), sweep[-1]
    block, of_lines = block_channels(r.target, arith), line_offsets(plan)
    groups = -(-len(of_lines) // arith.channels)
    entries = of_lines + of_lines[-1:] * (groups * arith.channels - len(of_lines))
    channels = woven_channels(arith.channels, lanes(r.target, arith))
    key = ("dots_depthwise", arith.name, block, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep))
    form = Form(
        weights=r.packed(key, lambda: _packed(r.weights(sweep), last.taps, np.array(channels))),
        rows=row_lists(sweep[:-1], [entries, *[[]] * (len(of_lines) - 1)], 1, whole=True),
        channels=tuple(itertools.chain.from_iterable(channels)),
        tiles=lambda spec: _row(r, spec, last, groups), whole_rows=True,
    )
    return blocks_step(r, sweep, plan, form, address, keep)


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
    return np.ascontiguousarray(of_sums.transpose(0, 3, 5, 1, 2, 4))
