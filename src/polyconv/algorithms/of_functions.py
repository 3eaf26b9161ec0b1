"""Forms of algorithms that are still written as functions of a situation, each of which finds the plan anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polyconv.algorithms import packing
from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.program import Program, Request, Situation, accumulator_arithmetic, own_bound


@dataclass(frozen=True, slots=True)
class Functions:
    """What a row of the table named before there were forms."""

    applicable: Callable[[Situation], str | None]
    cost: Callable[[Situation], Mapping[str, float]]
    workspace: Callable[[Situation], int]
    arithmetic: Callable[[Situation], str]
    bound: Callable[[Situation], tuple[str, float]]
    build: Callable[[Request], Program]
    scheme: Callable[[Situation], str] = lambda s: ""
    preparing: Callable[[Situation], float] = packing.cycles

    def __call__(self, s: Situation) -> Forms:
        """Its only form."""
        return self.applicable(s) or (_OfFunctions(s, self),)


@dataclass(frozen=True, slots=True)
class _OfFunctions(Form):
    of: Functions

    @property
    def arithmetic(self) -> str:
        return self.of.arithmetic(self.s)

    @property
    def scheme(self) -> str:
        return self.of.scheme(self.s)

    @property
    def bound(self) -> tuple[str, float]:
        return self.of.bound(self.s)

    @property
    def workspace(self) -> int:
        return self.of.workspace(self.s)

    def cost(self) -> Mapping[str, float]:
        return self.of.cost(self.s)

    def preparing(self) -> float:
        return self.of.preparing(self.s)

    def build(self, r: Request) -> Program:
        return self.of.build(r)


__all__ = ["Functions", "accumulator_arithmetic", "own_bound"]
