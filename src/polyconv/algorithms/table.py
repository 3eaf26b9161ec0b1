"""The table of algorithms: one row each; the planner reads it and never names one.

To add an algorithm, write its file and add its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polyconv.algorithms import (
    deformable,
    depthwise,
    depthwise_block,
    depthwise_line,
    depthwise_panel,
    depthwise_plan,
    depthwise_plane,
    direct,
    dots,
    dots_depthwise,
    dots_grouped,
    dots_plan,
    fft,
    fft_plan,
    generic,
    grouped,
    in_place,
    in_planes,
    packing,
    patches,
    pointwise,
    stem,
    strassen,
    winograd,
    winograd_dots,
    winograd_groups,
    winograd_plan,
    winograd_rows,
    woven,
)
from polyconv.algorithms.program import FREE_BYTES, Program, Request, Situation, accumulator_arithmetic, own_bound
from polyconv.target import Target

__all__ = ["ALGORITHMS", "Algorithm"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute a convolution.

    Parameters
    ----------
    name : str
    applicable : callable
        ``applicable(situation)``: None, or a sentence that says why not, whatever the workspace limit.
    cost : callable
        ``cost(situation)``: predicted cycles of one core, by term.
    workspace : callable
        ``workspace(situation)``: bytes a thread needs.
    arithmetic : callable
        ``arithmetic(situation)``: in which arithmetic it forms products.
    bound : callable
        ``bound(situation)``: ``own`` or ``window``, and the factor of its error bound.
    build : callable
        ``build(request)``: the program.
    scheme : callable
        ``scheme(situation)``: what else fixes the bits; empty if nothing does.
    preparing : callable
        ``preparing(situation)``: predicted cycles of what comes before the first call: the program and the weights.
    excluded : callable
        ``excluded(target)``: None, or why no problem at all can use it on a target.
    at_least : callable
        ``at_least(situation)``: cycles that no cost stays below, found without planning, so that what cannot be the
        cheapest is not planned; 0 where nothing is known, infinite where it is soon seen that it is not applicable.
    """

    name: str
    applicable: Callable[[Situation], str | None]
    cost: Callable[[Situation], Mapping[str, float]]
    workspace: Callable[[Situation], int]
    arithmetic: Callable[[Situation], str]
    bound: Callable[[Situation], tuple[str, float]]
    build: Callable[[Request], Program]
    scheme: Callable[[Situation], str] = lambda s: ""
    preparing: Callable[[Situation], float] = packing.cycles
    excluded: Callable[[Target], str | None] = lambda target: None
    at_least: Callable[[Situation], float] = lambda s: 0.0

    def refusal(self, s: Situation) -> str | None:
        """None, or why it cannot be used: not applicable, or beyond the workspace limit."""
        reason = self.excluded(s.target) or self.applicable(s)
        if reason is not None or s.limit is None:
            return reason
        needed = self.workspace(s) - FREE_BYTES
        return f"needs {needed} bytes of workspace, the limit is {s.limit}" if needed > s.limit else None


def _few_registers(target: Target) -> str | None:
    """Why tiles that fill 32 vector registers are not used."""
    return None if target.registers >= 32 else f"needs 32 vector registers, {target.level} has fewer"


def _no_masks(target: Target) -> str | None:
    """Why tiles whose loads and stores all have masks are not used."""
    return None if target.has_masks else f"needs mask registers, {target.level} has none"


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("direct", direct.applicable, direct.cost, direct.workspace, direct.arithmetic, own_bound,
                  direct.build, at_least=direct.at_least),
        Algorithm("dots", dots_plan.applicable, dots_plan.cost, dots_plan.workspace, dots_plan.arithmetic, own_bound,
                  dots.build),
        Algorithm("dots_depthwise", dots_depthwise.applicable, dots_depthwise.cost, dots_grouped.workspace,
                  dots_plan.arithmetic, own_bound, dots_depthwise.build),
        Algorithm("dots_grouped", dots_grouped.applicable, dots_grouped.cost, dots_grouped.workspace,
                  dots_plan.arithmetic, own_bound, dots_grouped.build),
        Algorithm("pointwise", pointwise.applicable, pointwise.cost, pointwise.workspace, accumulator_arithmetic,
                  own_bound, pointwise.build),
        Algorithm("patches", patches.applicable, patches.cost, patches.workspace, accumulator_arithmetic, own_bound,
                  patches.build, at_least=patches.at_least),
        Algorithm("strassen", strassen.applicable, strassen.cost, strassen.workspace, accumulator_arithmetic,
                  strassen.bound, strassen.build, strassen.scheme, strassen.preparing, at_least=strassen.at_least),
        Algorithm("winograd", winograd_plan.applicable, winograd_plan.cost, winograd_plan.workspace,
                  accumulator_arithmetic, winograd_plan.bound, winograd.build, winograd_plan.scheme,
                  winograd_plan.preparing, at_least=winograd_plan.at_least),
        Algorithm("winograd_dots", winograd_dots.applicable, winograd_dots.cost, winograd_dots.workspace,
                  winograd_dots.arithmetic, own_bound, winograd_dots.build, winograd_dots.scheme,
                  winograd_dots.preparing),
        Algorithm("winograd_rows", winograd_rows.applicable, winograd_rows.cost, winograd_rows.workspace,
                  accumulator_arithmetic, winograd_rows.bound, winograd_rows.build, winograd_rows.scheme,
                  winograd_rows.preparing, at_least=winograd_rows.at_least),
        Algorithm("winograd_groups", winograd_groups.applicable, winograd_groups.cost, winograd_groups.workspace,
                  accumulator_arithmetic, winograd_rows.bound, winograd_groups.build, winograd_groups.scheme,
                  winograd_rows.preparing),
        Algorithm("fft", fft_plan.applicable, fft_plan.cost, fft_plan.workspace, accumulator_arithmetic,
                  fft_plan.bound, fft.build, fft_plan.scheme, fft_plan.preparing, at_least=fft_plan.at_least),
        Algorithm("depthwise", depthwise_plan.applicable, depthwise_plan.cost, depthwise_plan.workspace,
                  accumulator_arithmetic, own_bound, depthwise.build),
        Algorithm("depthwise_block", depthwise_block.applicable, depthwise_block.cost, depthwise_block.workspace,
                  accumulator_arithmetic, own_bound, depthwise_block.build, excluded=_few_registers),
        Algorithm("depthwise_line", depthwise_line.applicable, depthwise_line.cost, depthwise_line.workspace,
                  accumulator_arithmetic, own_bound, depthwise_line.build),
        Algorithm("depthwise_panel", depthwise_panel.applicable, depthwise_panel.cost, depthwise_panel.workspace,
                  accumulator_arithmetic, own_bound, depthwise_panel.build),
        Algorithm("depthwise_plane", depthwise_plane.applicable, depthwise_plane.cost, depthwise_plane.workspace,
                  accumulator_arithmetic, own_bound, depthwise_plane.build, excluded=_no_masks),
        Algorithm("grouped", grouped.applicable, grouped.cost, grouped.workspace, accumulator_arithmetic, own_bound,
                  grouped.build, at_least=grouped.at_least),
        Algorithm("in_place", in_place.applicable, in_place.cost, in_place.workspace, accumulator_arithmetic, own_bound,
                  in_place.build),
        Algorithm("in_planes", in_planes.applicable, in_planes.cost, in_planes.workspace, accumulator_arithmetic,
                  own_bound, in_planes.build, excluded=_no_masks),
        Algorithm("stem", stem.applicable, stem.cost, stem.workspace, accumulator_arithmetic, own_bound, stem.build,
                  stem.scheme, at_least=stem.at_least),
        Algorithm("woven", woven.applicable, woven.cost, woven.workspace, accumulator_arithmetic, own_bound,
                  woven.build),
        Algorithm("careful", direct.careful_applicable, direct.careful_cost, direct.workspace,
                  accumulator_arithmetic, own_bound, direct.careful_build),
        Algorithm("generic", generic.applicable, generic.cost, generic.workspace, accumulator_arithmetic, own_bound,
                  generic.build, generic.scheme, at_least=generic.at_least),
        Algorithm("deformable", deformable.applicable, deformable.cost, deformable.workspace, accumulator_arithmetic,
                  own_bound, deformable.build),
    )
}  # fmt: skip
