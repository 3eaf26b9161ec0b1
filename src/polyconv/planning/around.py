"""What is taken for images of many sizes: the algorithm that is predicted fastest all around each.

Around a size are the powers of two below and above its extents.  What is fastest for both is taken for all between, so
that few of the sizes that come along are priced, while the choice for each depends on no other that came before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polyconv.algorithms.form import Refusal
from polyconv.algorithms.table import ALGORITHMS
from polyconv.errors import ArgumentError
from polyconv.lowering.situation import Situation, changed, of_one_image
from polyconv.planning.planner import Decision, take

__all__ = ["Around"]

_SMALL = 16
"""Extents up to this decide by themselves: there a step more is a large share, and tiles are as large."""


class Around:
    """Decisions of a layer, whose situations differ in extents, residual, target and profile alone."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[Any, str | None] = {}

    def decision(self, s: Situation) -> Decision | None:
        """What is taken in a situation; None if it has to be priced."""
        p = s.problem
        if p.o is not None:  # output extents that do not follow from the image's
            return None
        low = tuple([e if e <= _SMALL else 1 << e.bit_length() - 1 for e in map(int, p.i)])  # type: ignore[arg-type]
        high = tuple([e if e <= _SMALL else 1 << (e - 1).bit_length() for e in map(int, p.i)])  # type: ignore[arg-type]
        key = low, high, p.k, p.pads, p.residual, s.target, s.profile  # taps are fewer along axes of one element
        if key not in self._found:
            self._found[key] = _fastest(s, (low, high))
        name = self._found[key]
        if name is None or isinstance(ALGORITHMS[name].fitting(changed(of_one_image(s), once=False)), Refusal):
            return None
        return Decision(name, "around")


def _fastest(s: Situation, corners: tuple[tuple[int, ...], tuple[int, ...]]) -> str | None:
    """What is predicted fastest for two sizes, if it is the same."""
    try:
        name, other = (take(replace(s, problem=replace(s.problem, i=i))).algorithm for i in corners)
    except ArgumentError:  # a kernel does not fit into the smaller one
        return None
    return name if name == other else None
