"""The table of algorithms: one row each; the planner reads it and never names one.

To add an algorithm, write its file and add its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polyconv.algorithms import deformable, direct, generic
from polyconv.algorithms.program import Program, Request, Situation

__all__ = ["ALGORITHMS", "Algorithm"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute a convolution.

    Parameters
    ----------
    name : str
    applicable : callable
        ``applicable(situation)``: None, or a sentence that says why not.
    cost : callable
        ``cost(situation)``: predicted cycles of one core, by term.
    workspace : callable
        ``workspace(situation)``: bytes a thread needs.
    arithmetic : callable
        ``arithmetic(situation)``: in which arithmetic it forms products.
    build : callable
        ``build(request)``: the program.
    """

    name: str
    applicable: Callable[[Situation], str | None]
    cost: Callable[[Situation], Mapping[str, float]]
    workspace: Callable[[Situation], int]
    arithmetic: Callable[[Situation], str]
    build: Callable[[Request], Program]


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("direct", direct.applicable, direct.cost, direct.workspace, direct.arithmetic, direct.build),
        Algorithm("careful", direct.careful_applicable, direct.careful_cost, direct.workspace,
                  direct.plain_arithmetic, direct.careful_build),
        Algorithm("generic", generic.applicable, generic.cost, generic.workspace, generic.arithmetic, generic.build),
        Algorithm("deformable", deformable.applicable, deformable.cost, deformable.workspace,
                  deformable.arithmetic, deformable.build),
    )
}  # fmt: skip
