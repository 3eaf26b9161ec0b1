"""What both ways to compute 3x3 taps of maps share: which axes they take, the list of outer taps, items for threads.

The two axes of a map are the last ones; taps of axes before them are entries of a list, one each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from polyconv.algorithms.depthwise.parts import cut_for_threads
from polyconv.algorithms.depthwise.situations import refusal
from polyconv.algorithms.depthwise.taps import KindWords, TapWords, tap_words
from polyconv.algorithms.form import Refusal
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, sweeps

__all__ = ["TAPS", "map_box", "map_refusal", "map_taps", "outer_extent"]

TAPS = 3


def map_refusal(s: Situation, layout: str, fits: Callable[[Axis], bool], taken: str, *, several: bool
                ) -> Refusal | None:  # fmt: skip
    """Why maps of a layout, whose axes must fit, are not taken; ``taken`` says which are.

    Parameters
    ----------
    several : bool
        Whether a channel may have several outputs.
    """
    if (reason := refusal(s)) is not None:
        return reason
    if s.problem.layout != layout:
        return f"computes channels-{'last' if layout == 'NHWC' else 'first'} maps"
    if s.problem.m != s.problem.c and not several:
        return "computes one output of a channel"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the columns of the padding"

    def taken_axis(axis: Axis) -> bool:
        return axis.taps == TAPS and (axis.stride == 1 or (axis.stride == 2 and axis.dilation == 1)) and fits(axis)

    for sweep in sweeps(s.problem):
        if len(sweep) < 2 or not all(taken_axis(axis) for axis in sweep[-2:]):
            return f"computes 3x3 taps, dilated or by strides of two{taken}"
    return None


def map_taps(sweep: Sweep, w_tap: int) -> TapWords:
    """Words of the outer taps of a sweep, for taps of so many bytes of weights."""
    return tap_words(sweep, len(sweep) - 2, [KindWords(1, 1, 0, 1, 1, 0, 0)], TAPS * TAPS * w_tap)


def map_box(s: Situation, sweep: Sweep, chunk: int, least: int) -> tuple[int, ...]:
    """A whole map of outputs, or for threads bands of some rows."""
    box = (*(1 for _ in sweep[:-2]), *(max(1, axis.out) for axis in sweep[-2:]))
    return cut_for_threads(s, sweep, box, chunk, len(sweep) - 2, least)


def outer_extent(sweep: Sweep) -> tuple[int, int]:
    """Maps of results, and of taps of each, of the axes before the last two."""
    return math.prod(axis.out for axis in sweep[:-2]), math.prod(axis.taps for axis in sweep[:-2])
