"""Work that no form of an algorithm does without, from a problem alone: so that one that cannot win is not priced.

An algorithm's ``at_least`` makes cycles of it.  It must not plan anything: it is asked for every new extent.
"""

from __future__ import annotations

import math
from functools import lru_cache

from polyconv.dataclass import dataclass
from polyconv.lowering.sweep import Axis, inside, mean_taps, sweeps
from polyconv.problem.problem import Problem

__all__ = ["Least", "least"]


@dataclass(frozen=True, slots=True)
class Least:
    """Of one channel of one image.

    Parameters
    ----------
    outputs : int
        Positions of the result that products reach.
    taken : int
        Pairs of an output and a tap, those that meet padding among them.
    met : float
        Pairs that meet an input.
    brought : int
        Inputs that are brought in place, for whatever boxes: those of every output, less those that neighbours may
        have brought, and padding.
    """

    outputs: int
    taken: int
    met: float
    brought: int


@lru_cache(256)
def least(p: Problem) -> Least:
    """The least work of a problem with known extents."""
    outputs, taken, met, brought = 0, 0, 0.0, 0
    for sweep in sweeps(p):
        outputs += math.prod(axis.out for axis in sweep)
        of_taken, of_met, of_brought = zip(*map(_along, sweep), strict=True)
        taken, met, brought = taken + math.prod(of_taken), met + math.prod(of_met), brought + math.prod(of_brought)
    # phases of a transposed convolution may share what they bring
    return Least(outputs, taken, met, 0 if p.op == "conv_transpose" else brought)


@lru_cache(1024)
def _along(axis: Axis) -> tuple[int, float, int]:
    """What is taken, met and brought along an axis.

    Of an output no neighbour reads the inputs of taps with different residues modulo the stride.
    """
    apart = min(axis.taps, axis.stride // math.gcd(axis.stride, axis.dilation))
    return axis.out * axis.taps, axis.out * mean_taps(axis), len(inside(axis)) * apart
