"""The order of spatial axes: which one lies along the rows of tiles.

A convolution is the same, however its axes are numbered.  Where channels lie together, pixels are found as easily along
one axis as along another, and maps of 200 x 3 have longer rows when they are read as 3 x 200.  It must not know what a
tile is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.lowering.program import Operand, Request
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep, sweeps

__all__ = ["in_order", "orders", "sweeps_in"]

_SHORT = 28
"""Outputs of a row below which other axes are tried: the rows of the tallest tile."""


def orders(s: Situation) -> list[tuple[int, ...]]:
    """Orders of axes that may be worth it: as they are, and with the longest one last.

    Sums of floats are formed as the axes are: their bits must not depend on the layout.
    """
    p, axes = s.problem, tuple(range(s.problem.rank))
    longest = max(axes, key=lambda a: (p.out[a] or 0, a))
    short = (p.out[-1] or 0) < min(_SHORT, p.out[longest] or 0)
    if p.layout == "NCHW" or p.x_dtype.is_float or not short:
        return [axes]
    return [axes, (*(a for a in axes if a != longest), longest)]


def sweeps_in(s: Situation, order: tuple[int, ...]) -> list[Sweep]:
    """The sweeps of a problem with their axes in an order."""
    return [tuple(sweep[a] for a in order) for sweep in sweeps(s.problem)]


def in_order(r: Request, order: tuple[int, ...]) -> Request:
    """A request whose axes are in an order, for sweeps that have them so."""
    if order == tuple(range(len(order))):
        return r
    back = [order.index(a) for a in range(len(order))]

    def moved(o: Operand) -> Operand:
        return replace(o, spatial=tuple(o.spatial[a] for a in order))

    def weights(sweep: Sweep) -> NDArray[Any]:
        w = r.weights(tuple(sweep[a] for a in back))
        taps = [sweep[a].taps for a in back]
        return np.ascontiguousarray(
            w.reshape(*w.shape[:3], *taps).transpose(0, 1, 2, *(3 + a for a in order))
        ).reshape(*w.shape[:3], math.prod(taps))  # fmt: skip

    def packed(key: Any, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        return r.packed((order, key), make)

    residual = None if r.residual is None else moved(r.residual)
    return replace(r, x=moved(r.x), y=moved(r.y), residual=residual, weights=weights, packed=packed)
