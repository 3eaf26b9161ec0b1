"""Sweeps with their axes in the order that suits tiles: which one lies along their rows.

A convolution is the same, however its axes are numbered.  Where channels lie together, pixels are found as easily along
one axis as along another, and maps of 200 x 3 have longer rows when they are read as 3 x 200.  It must not know what a
tile multiplies.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.form import ChannelsForm, Part
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import Arithmetic
from polyconv.lowering.program import Program, Request
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep, sweeps

__all__ = ["OrderedForm"]

_SHORT = 28
"""Outputs of a row below which other axes are tried: the rows of the tallest tile."""


@dataclass(frozen=True, slots=True)
class OrderedForm(ChannelsForm):
    """Sweeps whose axes have another ``order`` than the problem's."""

    order: tuple[int, ...]

    @classmethod
    def of(cls, s: Situation, arith: Arithmetic) -> Self:
        """That of a situation which has one, in the order that is predicted fastest."""
        found = [
            cls(s, tuple(cls.part(s, arith, sweep) for sweep in _sweeps(s, order)), arith, order)
            for order in _orders(s)
        ]
        return min(found, key=lambda form: s.price(("order", form.order), sum(form.cost().values())))

    @classmethod
    @abstractmethod
    def part(cls, s: Situation, arith: Arithmetic, sweep: Sweep) -> Part:
        """A sweep with its sizes."""

    @property
    def is_turned(self) -> bool:
        """Whether rows do not run along the problem's last axis."""
        return self.order[-1] < len(self.order) - 1

    def choices(self) -> dict[str, object]:
        """Boxes of a sweep, and the order of axes, if it is another."""
        turned = {"order of axes": self.order} if self.is_turned else {}
        return {**super(OrderedForm, self).choices(), **turned}

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        return super(OrderedForm, self).build(_in_order(r, self.order) if self.is_turned else r)


def _orders(s: Situation) -> list[tuple[int, ...]]:
    """Orders of axes that may be worth it: as they are, and with the longest one last.

    Sums of floats are formed as the axes are: their bits must not depend on the layout.
    """
    p, axes = s.problem, tuple(range(s.problem.rank))
    longest = max(axes, key=lambda a: (p.out[a] or 0, a))
    short = (p.out[-1] or 0) < min(_SHORT, p.out[longest] or 0)
    if p.layout == "NCHW" or p.x_dtype.is_float or not short:
        return [axes]
    return [axes, (*(a for a in axes if a != longest), longest)]


def _sweeps(s: Situation, order: tuple[int, ...]) -> list[Sweep]:
    """Sweeps of a problem, one after another, with their axes in an order."""
    return [tuple(sweep[a] for a in order) for sweep in sweeps(s.problem)]


def _in_order(r: Request, order: tuple[int, ...]) -> Request:
    """A request whose axes are in an order, for sweeps that have them so."""
    back = [order.index(a) for a in range(len(order))]

    def weights(sweep: Sweep) -> NDArray[Any]:
        w = r.weights(tuple(sweep[a] for a in back))
        taps = [sweep[a].taps for a in back]
        return np.ascontiguousarray(
            w.reshape(*w.shape[:3], *taps).transpose(0, 1, 2, *(3 + a for a in order))
        ).reshape(*w.shape[:3], math.prod(taps))  # fmt: skip

    def packed(key: Any, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        return r.packed((order, key), make)

    residual = None if r.residual is None else r.residual.along(order)
    return replace(r, x=r.x.along(order), y=r.y.along(order), residual=residual, weights=weights, packed=packed)
