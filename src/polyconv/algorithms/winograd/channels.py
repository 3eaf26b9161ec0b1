"""Winograd's convolution as matrix products: kernels of 2 to 12 taps along one axis or two, lanes are output channels.

A box of tiles is transformed, every point is a small matrix product by the channel tile of the direct algorithm, and
sums are transformed back tile by tile.  Cost: the products of the schemes, (m + r - 1)^2 for m^2 outputs; the
transforms; the transformed weights, which stream once per box.  Error: window bound, k eps max|x| sum|w| over a tile's
inputs, so accuracy "fast" only.  Tiles with a result that is not finite are computed again by ``careful``, so
that Inf and NaN spread no further than they belong.
Sources: Winograd 1980; Lavin and Gray 2015; points after Barabasz et al. 2020.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from polyconv.algorithms.dense import direct
from polyconv.algorithms.dense.plan import sweep_cost, sweep_workspace
from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.winograd import cost, program
from polyconv.algorithms.winograd.boxes import Boxes, candidates
from polyconv.algorithms.winograd.case import Case
from polyconv.algorithms.winograd.cost import cycles
from polyconv.algorithms.winograd.schemes import NONE, factor, pairs
from polyconv.algorithms.winograd.sharing import shared
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.kernels.transform import Scheme
from polyconv.lowering import packing
from polyconv.lowering.program import Program, Request
from polyconv.lowering.situation import Situation, accumulator_arithmetic, of_one_image, scheme_of, transform_refusal
from polyconv.lowering.sweep import Axis, Sweep, anywhere, sweeps
from polyconv.problem.problem import Problem

__all__ = ["Part", "WinogradForm", "at_least", "forms", "order"]

_LEAST_CHANNELS = 8
"""Channels of a group on both sides: with fewer, vectors of both are mostly empty."""
_MOST_OUTPUTS = 1 << 22
"""Most outputs along an axis: a program lists its tiles."""
_WORTH_STACKING = 0.95
"""Boxes hold several images where that takes less than this share of the cycles of image after image: with large maps
nothing is gained, and two threads lost up to a tenth."""
_LESS = 1 - 1e-9
"""A later choice must take less than this share of an earlier one's cycles: else rounding would decide."""


@dataclass(frozen=True, slots=True)
class Part:
    """A sweep of a problem and how it is computed.

    Parameters
    ----------
    sweep : Sweep
        With the batch as its first axis where boxes hold tiles of several images.
    boxes : Boxes or None
        None where the direct algorithm takes less.
    cycles : mapping
        Predicted, by term, for all images on one thread.
    workspace : int
        Bytes of a thread; where several share the boxes these may be smaller.
    """

    sweep: Sweep
    boxes: Boxes | None
    cycles: Mapping[str, float]
    workspace: int


@dataclass(frozen=True, slots=True)
class WinogradForm(Form):
    """Schemes and boxes for every sweep of a problem."""

    parts: tuple[Part, ...]

    @property
    def scheme(self) -> str:
        """Which schemes compute the sweeps."""
        return scheme_of([_spelled(part) for part in self.parts])

    @property
    def bound(self) -> tuple[str, float]:
        """Window bound: the additions of a point and of the transforms, times how far the transforms enlarge terms."""
        p, s = self.s.problem, self.s
        worst = factor(s, p.c // p.groups * math.prod(p.k))
        for boxes in [part.boxes for part in self.parts if part.boxes is not None]:
            case, terms = boxes.case, boxes.case.groups[0] * boxes.case.outer_taps * len(boxes.case.phases)
            worst = max(worst, factor(s, terms, case.y.n + case.x.n, case.y.growth * case.x.growth))
        return "window", worst

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return max(part.workspace for part in self.parts)

    def cost(self) -> dict[str, float]:
        """Cycles by term."""
        terms = [part.cycles for part in self.parts]
        return {name: sum(t.get(name, 0.0) for t in terms) for name in dict.fromkeys(itertools.chain(*terms))}

    def preparing(self) -> float:
        """Cycles in which a program is made and the weights are transformed."""
        size = sum(part.boxes.case.weight_bytes for part in self.parts if part.boxes is not None)
        return packing.cycles(self.s) + 1.5 * packing.TABLES_CYCLES + 0.75 * self.s.problem.groups * size

    def choices(self) -> dict[str, object]:
        """Of every sweep the scheme, the first box in outputs, and how output channels are taken; once where alike."""
        of_sweeps = [_chosen(_turned(self.s), part) for part in self.parts]
        found = {name: [chosen.get(name) for chosen in of_sweeps] for name in max(of_sweeps, key=len)}
        return {name: values if len(set(values)) > 1 else values[0] for name, values in found.items()}

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        keep: list[Any] = []
        turned = program.turned(r, order(r.problem), _turned(r.situation))
        steps = [
            direct.sweep_step(turned, part.sweep, keep) if part.boxes is None
            else program.step(turned, part.sweep, *shared(turned.situation, part.boxes), keep)
            for part in self.parts
        ]  # fmt: skip
        return Program(tuple(step for step in steps if step.items), self.workspace, tuple(keep))


def _spelled(part: Part) -> str:
    if part.boxes is None:
        return "direct"
    case = part.boxes.case
    return str(case.x) if case.transformed == 1 else f"{case.y}x{case.x}"


def _chosen(s: Situation, part: Part) -> dict[str, Hashable]:
    if part.boxes is None:
        return {"scheme": _spelled(part)}
    boxes, splits = shared(s, part.boxes)
    rows = (boxes.rows.first.span,) if boxes.case.transformed == 2 else ()
    return {
        "scheme": _spelled(part), "box": (*boxes.outer, *rows, boxes.columns.first.span),
        "output channels of a block": boxes.case.vectors * boxes.case.lane, "blocks held together": boxes.together,
        "items of a box": splits,
    }  # fmt: skip


def at_least(s: Situation) -> float:
    """Cycles that products and transforms take, whatever the boxes; infinite where no scheme is admitted."""
    p = s.problem
    if min(p.c, p.m) // p.groups < _LEAST_CHANNELS or not p.x_dtype.is_float:
        return math.inf
    one = of_one_image(_turned(s))
    of_sweeps = sweeps(one.problem)
    if len(of_sweeps) != 1:  # some may be the direct algorithm's
        return 0.0
    found = _likeliest(one, ARITHMETIC[accumulator_arithmetic(s)], of_sweeps[0])
    return found[0][0] * (p.n or 0) if found else math.inf


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p, reason = s.problem, transform_refusal(s)
    if reason is not None:
        return reason
    if min(p.c, p.m) // p.groups < _LEAST_CHANNELS:
        return (
            f"needs {_LEAST_CHANNELS} channels a group on both sides, this has {p.c // p.groups} and {p.m // p.groups}"
        )
    if max(e or 0 for e in p.out) > _MOST_OUTPUTS:
        return f"lists the tiles of an axis, of at most {_MOST_OUTPUTS} outputs"
    parts = _parts(_turned(s if s.threads == 1 else replace(s, threads=1)))
    if all(part.boxes is None for part in parts):
        return "needs 2 to 5 taps a stride (12 at stride 1) along its last axis with taps, s or d 1, and room"
    return (WinogradForm(s, parts),)


@lru_cache(256)
def _parts(s: Situation) -> tuple[Part, ...]:
    """Every sweep of a situation of one thread."""
    one = of_one_image(s)  # neither batch nor threads may change what is chosen, by any tie
    arith, images, found = ARITHMETIC[accumulator_arithmetic(one)], s.problem.n or 0, sweeps(one.problem)
    parts = []
    for sweep in found:
        boxes, terms = _cheapest(one, arith, sweep)
        if len(found) > 1 or boxes is None:
            plain = sweep_cost(one, arith, sweep)
            if boxes is None or sum(terms.values()) >= sum(plain.values()):
                boxes, terms = None, plain
        room = sweep_workspace(one, arith, sweep) if boxes is None else boxes.workspace
        part = Part(sweep, boxes, {term: images * count for term, count in terms.items()}, room)
        parts.append(part if boxes is None or images < 2 or boxes.outer else _stacked(s, part, boxes))
    return tuple(parts)


@lru_cache(256)
def _cheapest(s: Situation, arith: Arithmetic, sweep: Sweep) -> tuple[Boxes | None, dict[str, float]]:
    """The cheapest schemes and boxes with their cycles; None where the sweep admits no scheme."""
    found = pairs(sweep, s.problem.c // s.problem.groups)
    transformed = 0 if not found else 1 if found[0][0] == NONE else 2
    return _cheapest_anywhere(s, arith, tuple(
        # pads of other axes say which taps are left out, those of three taps whether their scheme may be the closed one
        anywhere(axis, 0 if after < transformed and axis.taps != 3 else axis.pad)
        for axis, after in zip(sweep, reversed(range(len(sweep))), strict=True)
    ))  # fmt: skip


@lru_cache(256)
def _cheapest_anywhere(s: Situation, arith: Arithmetic, sweep: Sweep) -> tuple[Boxes | None, dict[str, float]]:
    """The same for a sweep that may lie anywhere in result and kernel."""
    best, least, terms = None, math.inf, dict[str, float]()
    for bound, pair in _likeliest(s, arith, sweep):
        if bound >= least:  # others cannot win
            break
        for boxes in candidates(Case.of(s, arith, sweep, *pair)):
            of_boxes = cycles(boxes)
            price = s.price(boxes, sum(of_boxes.values()))
            if price < _LESS * least:
                best, least, terms = boxes, price, of_boxes
    return best, terms


@lru_cache(256)
def _likeliest(s: Situation, arith: Arithmetic, sweep: Sweep) -> list[tuple[float, tuple[Scheme, Scheme]]]:
    """The least cycles of every pair of schemes, the likeliest first."""
    found = [(cost.at_least(s, arith, sweep, *pair), pair) for pair in pairs(sweep, s.problem.c // s.problem.groups)]
    return sorted(found, key=lambda each: each[0])


def _stacked(s: Situation, part: Part, alone: Boxes) -> Part:
    """The part with boxes that hold several images, by the schemes of one image, if that is worth it."""
    images, case = s.problem.n or 0, alone.case
    stacked = (Axis(images, images, 1, 1, 1, 0), *part.sweep)
    together = Case.of(s, case.arith, stacked, case.y, case.x)
    found = [(cycles(boxes), boxes) for boxes in candidates(together, alone.together)]
    if not found:
        return part
    terms, boxes = min(found, key=lambda each: sum(each[0].values()))
    if sum(terms.values()) > _WORTH_STACKING * sum(part.cycles.values()):
        return part
    return Part(stacked, boxes, terms, boxes.workspace)


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


def _turned(s: Situation) -> Situation:
    """The situation with its axes in that order, which then is the order it asks for."""
    axes = order(s.problem)
    return s if axes == tuple(range(len(axes))) else replace(s, problem=s.problem.along(axes))
