"""Convolution by Fourier transforms of tiles: large kernels, any rank, by overlap-save.

A tile of N positions along every axis becomes a spectrum, is multiplied by that of the kernel and comes back: of its
N results the first N - taps + 1 are outputs (Stockham 1966).  A tile that holds the whole input needs less: padding
on both sides may share its positions, N >= input + the wider padding.  Strides are computed and dropped, dilations are
zeros between taps.  ``plan`` says what lies in the lanes.
Cost: the passes of the transforms, the products, and the moves.  Error: window bound, admitted in accuracy "fast" only.
Tiles with a result that is not finite are computed again by ``careful``.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any

from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.fourier.plan import Plan, kinds, options, sized
from polyconv.algorithms.fourier.price import at_least, cost
from polyconv.algorithms.fourier.program import step
from polyconv.algorithms.fourier.spectra import FEW_TAPS
from polyconv.algorithms.fourier.tiles import LEAST_TAPS, radices
from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.lowering import packing
from polyconv.lowering.program import Program, Request, program_of
from polyconv.lowering.situation import Situation, accumulator_arithmetic, of_one_image, scheme_of, transform_refusal
from polyconv.lowering.sweep import Sweep, sweeps

__all__ = ["at_least", "forms"]

_LEAST_TERMS = 24
"""Products of a sum, at least.  Measured rms errors as multiples of that of a direct f32 sum: 2.2 for 9 terms, 1.5 for
31, 1.4 for 49, 1.1 for 81, 0.7 for 200, 0.5 for 400."""
_MOST_POINTS = 4
"""Tiles with more than so many times the fewest points of an image are not priced: no plan of the corpus has them."""
_MOST_BYTES = 32 << 20
_MOST_SPECTRA_BYTES = 128 << 20
"""Workspace of a thread, and transformed weights, that are too much."""
_DEPTH = {2: 1, 3: 4, 4: 2, 5: 6, 6: 7, 8: 6, 9: 11}
"""Roundings on the longest path through a butterfly, by radix."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p, reason = s.problem, transform_refusal(s)
    if reason is not None:
        return reason
    if p.c == 0 or p.m == 0:
        return "there are no channels to transform"
    if max(p.k) < LEAST_TAPS:
        return f"needs {LEAST_TAPS} taps along an axis, this has {max(p.k)}"
    group_in, group_out = p.c // p.groups, p.m // p.groups
    terms = min((math.prod(axis.taps for axis in sweep) for sweep in sweeps(p)), default=0) * group_in
    if terms < _LEAST_TERMS:
        return f"a direct sum of {terms} products has less than half of the error"
    if not kinds(s):
        return f"has no lanes for groups of {group_in} and {group_out} channels"
    # neither batch nor threads may change what is chosen, not even a tie
    plans = tuple(_plan(of_one_image(s), sweep) for sweep in sweeps(p))
    found = tuple(plan for plan in plans if plan is not None)
    return (FourierForm(s, found),) if len(found) == len(plans) else "needs taps, outputs, and tiles with room for them"


@lru_cache(256)
def _plan(s: Situation, sweep: Sweep) -> Plan | None:
    """The cheapest kind and tiles; None where there is none."""
    if not all(axis.taps and axis.out and axis.inp for axis in sweep):
        return None
    budget, plans = s.budget(_MOST_BYTES), list[Plan]()
    for kind in kinds(s):
        found = [
            plan for tiles in itertools.product(*options(sweep, kind)) for plan in sized(s, sweep, kind, tiles)
            if plan.workspace <= budget and plan.spectra <= _MOST_SPECTRA_BYTES
        ]  # fmt: skip
        fewest = min([plan.count * plan.points for plan in found], default=0)
        plans += [plan for plan in found if plan.count * plan.points <= _MOST_POINTS * fewest]
    return min(plans, key=lambda plan: s.price(plan, sum(cost(s, plan).values())), default=None)


@dataclass(frozen=True, slots=True)
class FourierForm(Form):
    """A plan for every sweep."""

    plans: tuple[Plan, ...]

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return max((plan.workspace for plan in self.plans), default=0)

    @property
    def scheme(self) -> str:
        """Kinds and lengths of tiles: with them the bits change."""
        return scheme_of([f"{plan.kind} {'x'.join(str(tile.length) for tile in plan.tiles)}" for plan in self.plans])

    @property
    def bound(self) -> tuple[str, float]:
        """Window bound, after Higham (Accuracy and Stability of Numerical Algorithms, 2002, chapter 24).

        A pass of radix r multiplies 2-norms by sqrt(r), its computed form errs by ``d u |F_r||x|`` componentwise, d
        roundings deep: relative to the pass ``d sqrt(2r) u`` in the 2-norm, as ``|F_r|`` has norm r; twiddles, rounded
        once and multiplied, add 4 u.  To first order these add over the passes of both transforms (theorem 24.2), and
        spectra taken apart, multiplied, summed over c channels and put together add 30 + c.  All being multiples of
        unitary maps but the product, ``|e|_inf <= |e|_2 <= f u max|H| |x|_2 <= f u sqrt(P) max|x| sum|w|`` for a tile
        of P inputs.
        """
        p, u = self.s.problem, DTYPES[accumulator_arithmetic(self.s)].eps / 2
        worst = 0.0
        for plan in self.plans:
            depth = sum(_DEPTH[r] * math.sqrt(2 * r) + 4 for tile in plan.tiles for r in radices(tile.points))
            held = math.prod(min(t.reach, a.inp) for a, t in zip(plan.sweep, plan.tiles, strict=True))
            worst = max(worst, (2 * depth + 30 + p.c // p.groups) * u * math.sqrt(held))
        return "window", worst

    def cost(self) -> dict[str, float]:
        """Cycles by term."""
        terms = [cost(self.s, plan) for plan in self.plans]
        return {name: sum(t[name] for t in terms) for name in ("transforms", "products", "moves")}

    def preparing(self) -> float:
        """Cycles in which a program is made and the spectra of the weights are found, in double precision."""
        total = packing.cycles(self.s) + 4 * packing.TABLES_CYCLES
        for plan in self.plans:
            taps = math.prod(axis.taps for axis in plan.sweep)
            total += plan.spectra * (1.2 + 0.06 * taps if taps <= FEW_TAPS else 5.5)
        return total

    def choices(self) -> dict[str, object]:
        """Tiles and lanes of the sweep with the most outputs."""
        plan = max(self.plans, key=lambda plan: plan.count * math.prod(plan.box))
        return {
            "tile": tuple(tile.length for tile in plan.tiles), "outputs of a tile": plan.box,
            "lanes": _LANES[plan.kind], "tiles of an item": plan.together,
        }  # fmt: skip

    def build(self, r: Request) -> Program:
        """Program of a request: one step for every sweep."""
        keep: list[Any] = []
        return program_of([step(r, plan, keep) for plan in self.plans], self.workspace, keep)


_LANES = {
    "own": "channels", "blocks": "tiles", "dense": "channels, as terms of matrix products",
}  # fmt: skip
