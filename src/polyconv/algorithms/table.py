"""The table of algorithms: one row each; the planner reads it and never names one.

To add an algorithm, write its file and add its row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from polyconv.algorithms.deformable import form as deformable
from polyconv.algorithms.dense import direct, stem
from polyconv.algorithms.depthwise import block, last, line, panel, plane, slide
from polyconv.algorithms.dots import dense as dots
from polyconv.algorithms.dots import depthwise as dots_depthwise
from polyconv.algorithms.dots import grouped as dots_grouped
from polyconv.algorithms.dots import lines as dots_lines
from polyconv.algorithms.dots import patches as dots_patches
from polyconv.algorithms.dots import pixels as dots_pixels
from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.fourier import form as fourier
from polyconv.algorithms.generic import form as generic
from polyconv.algorithms.grouped import in_place, in_planes, padded
from polyconv.algorithms.product import patches, pointwise, strassen
from polyconv.algorithms.winograd import channels, groups, integers, rows
from polyconv.algorithms.woven import form as woven
from polyconv.lowering.situation import FREE_BYTES, Situation
from polyconv.target import Target

__all__ = ["ALGORITHMS", "Algorithm"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to compute convolutions.

    Parameters
    ----------
    name : str
    forms : callable
        ``forms(situation)``: its forms, that predicted fastest first; or a sentence that says why it has none.
    at_least : callable
        ``at_least(situation)``: cycles that no cost stays below, found without planning, so that what cannot be the
        cheapest is not planned; 0 where nothing is known, infinite where it is soon seen that it has no form.
    excluded : callable
        ``excluded(target)``: None, or why no problem at all can use it on a target.
    """

    name: str
    forms: Callable[[Situation], Forms]
    at_least: Callable[[Situation], float] = lambda s: 0.0
    excluded: Callable[[Target], str | None] = lambda target: None

    def form(self, s: Situation) -> Form | Refusal:
        """Its first form, whatever the workspace limit; or why it has none."""
        return _first(self.name, s)

    def fitting(self, s: Situation) -> Form | Refusal:
        """The same, but a form that needs more workspace than the limit is none."""
        found = _first(self.name, s)
        if s.limit is None or isinstance(found, Refusal):
            return found
        needed = found.workspace - FREE_BYTES
        return f"needs {needed} bytes of workspace, the limit is {s.limit}" if needed > s.limit else found

    def refusal(self, s: Situation) -> Refusal | None:
        """Why no form is fitting; None if one is."""
        found = self.fitting(s)
        return found if isinstance(found, Refusal) else None


@lru_cache(4096)
def _first(name: str, s: Situation) -> Form | Refusal:
    row = ALGORITHMS[name]
    found = row.excluded(s.target) or row.forms(s)
    return found if isinstance(found, Refusal) else next(iter(found))


def _few_registers(target: Target) -> str | None:
    """Why tiles that fill 32 vector registers are not used."""
    return None if target.registers >= 32 else f"needs 32 vector registers, {target.level} has fewer"


def _no_masks(target: Target) -> str | None:
    """Why tiles whose loads and stores all have masks are not used."""
    return None if target.has_masks else f"needs mask registers, {target.level} has none"


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("direct", direct.forms, at_least=direct.at_least),
        Algorithm("dots", dots.forms),
        Algorithm("dots_depthwise", dots_depthwise.forms),
        Algorithm("dots_grouped", dots_grouped.forms),
        Algorithm("dots_lines", dots_lines.forms, excluded=_no_masks),
        Algorithm("dots_patches", dots_patches.forms, excluded=_no_masks),
        Algorithm("dots_pixels", dots_pixels.forms, excluded=_no_masks),
        Algorithm("pointwise", pointwise.forms),
        Algorithm("patches", patches.forms, at_least=patches.at_least),
        Algorithm("strassen", strassen.forms, at_least=strassen.at_least),
        Algorithm("winograd", channels.forms, at_least=channels.at_least),
        Algorithm("winograd_dots", integers.forms),
        Algorithm("winograd_rows", rows.forms, at_least=rows.at_least),
        Algorithm("winograd_groups", groups.forms),
        Algorithm("fft", fourier.forms, at_least=fourier.at_least),
        Algorithm("depthwise", slide.forms),
        Algorithm("depthwise_block", block.forms, excluded=_few_registers),
        Algorithm("depthwise_last", last.forms, at_least=last.at_least),
        Algorithm("depthwise_line", line.forms),
        Algorithm("depthwise_panel", panel.forms),
        Algorithm("depthwise_plane", plane.forms, excluded=_no_masks),
        Algorithm("grouped", padded.forms, at_least=padded.at_least),
        Algorithm("in_place", in_place.forms),
        Algorithm("in_planes", in_planes.forms, excluded=_no_masks),
        Algorithm("stem", stem.forms, at_least=stem.at_least),
        Algorithm("woven", woven.forms),
        Algorithm("careful", direct.careful_forms),
        Algorithm("generic", generic.forms, at_least=generic.at_least),
        Algorithm("deformable", deformable.forms),
    )
}  # fmt: skip
