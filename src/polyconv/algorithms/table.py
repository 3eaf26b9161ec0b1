"""The table of algorithms: one row each; the planner reads it and never names one.

To add an algorithm, write its file and add its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.dataclass import dataclass
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


def _lazy(module: str, name: str = "forms") -> Callable[[Situation], Any]:
    """A function of a module here, imported when it is first asked: a process that finds its plans needs but few."""
    @cache
    def found() -> Callable[[Situation], Any]:
        function: Callable[[Situation], Any] = getattr(import_module(f"polyconv.algorithms.{module}"), name)
        return function

    return lambda s: found()(s)


def _if(suits: Callable[[Situation], bool]) -> Callable[[Situation], float]:
    """An ``at_least`` that knows which situations have no form at all: nothing else is looked at there."""
    return lambda s: 0.0 if suits(s) else math.inf


# What problems an algorithm may have a form for; most of the table is left out by a glance at type, groups and layout.
_of_pairs = _if(lambda s: s.problem.x_dtype.bits <= 16)
_of_bytes = _if(lambda s: s.problem.x_dtype.bits == 8)
_depthwise = _if(lambda s: s.problem.c == s.problem.groups)
_channels_last = _if(lambda s: s.problem.layout == "NHWC")
_planes = _if(lambda s: s.problem.layout == "NCHW")


def _few_registers(target: Target) -> str | None:
    """Why tiles that fill 32 vector registers are not used."""
    return None if target.registers >= 32 else f"needs 32 vector registers, {target.level} has fewer"


def _no_masks(target: Target) -> str | None:
    """Why tiles whose loads and stores all have masks are not used."""
    return None if target.has_masks else f"needs mask registers, {target.level} has none"


def _no_matrix(target: Target) -> str | None:
    """Why the matrix unit is not used."""
    return None if target.matrix else "needs a matrix unit (AMX) that the system lets this process use"


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm("direct", _lazy("dense.direct"), _lazy("dense.direct", "at_least")),
        Algorithm("dots", _lazy("dots.dense"), _of_pairs),
        Algorithm("dots_depthwise", _lazy("dots.depthwise"), _of_pairs),
        Algorithm("dots_grouped", _lazy("dots.grouped"), _of_pairs),
        Algorithm("dots_inner", _lazy("dots.inner"), _of_pairs),
        Algorithm("dots_lines", _lazy("dots.lines"), _of_pairs, _no_masks),
        Algorithm("dots_matrix", _lazy("dots.matrix"), _of_pairs, _no_matrix),
        Algorithm("dots_matrix_pixels", _lazy("dots.matrix_pixels"), _of_pairs, _no_matrix),
        Algorithm("dots_patches", _lazy("dots.patches"), _of_pairs, _no_masks),
        Algorithm("dots_pixels", _lazy("dots.pixels"), _of_pairs, _no_masks),
        Algorithm("pointwise", _lazy("product.pointwise")),
        Algorithm("strassen", _lazy("product.strassen"), _lazy("product.strassen", "at_least")),
        Algorithm("winograd", _lazy("winograd.channels"), _lazy("winograd.channels", "at_least")),
        Algorithm("winograd_dots", _lazy("winograd.integers"), _of_bytes),
        Algorithm("winograd_rows", _lazy("winograd.rows"), _lazy("winograd.rows", "at_least")),
        Algorithm("winograd_groups", _lazy("winograd.groups"), _channels_last),
        Algorithm("fft", _lazy("fourier.form"), _lazy("fourier.form", "at_least")),
        Algorithm("depthwise", _lazy("depthwise.slide"), _depthwise),
        Algorithm("depthwise_block", _lazy("depthwise.block"), _depthwise, _few_registers),
        Algorithm("depthwise_last", _lazy("depthwise.last"), _lazy("depthwise.last", "at_least")),
        Algorithm("depthwise_line", _lazy("depthwise.line"), _depthwise),
        Algorithm("depthwise_plane", _lazy("depthwise.plane"), _depthwise, _no_masks),
        Algorithm("channel_sums", _lazy("grouped.channel_sums"), _channels_last),
        Algorithm("in_place", _lazy("grouped.in_place"), _channels_last),
        Algorithm("in_planes", _lazy("grouped.in_planes"), _planes, _no_masks),
        Algorithm("stem", _lazy("dense.stem"), _lazy("dense.stem", "at_least")),
        Algorithm("woven", _lazy("woven.form"), _if(lambda s: s.problem.op == "conv_transpose")),
        Algorithm("careful", _lazy("careful"), _if(lambda s: not s.finite)),
        Algorithm("generic", _lazy("generic.form"), _lazy("generic.form", "at_least")),
        Algorithm("deformable", _lazy("deformable.form"), _if(lambda s: s.problem.op == "deform_conv")),
    )
}  # fmt: skip
