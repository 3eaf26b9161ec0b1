"""Sums that are not finite, done again one product at a time.

Kernels multiply zeros in the place of padding, which turns an Inf or NaN among the weights into a NaN where the
specification has no product at all; and arithmetic in several passes turns an Inf into a NaN (Inf - Inf, 0 Inf), and
may overflow a little early.  A sum that is finite met none of that.  Others are added anew, of real products only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from polyconv.gpu.geometry import Geometry, reaches_out
from polyconv.gpu.language import Kernel, Type, Value, both

__all__ = ["Product", "exact_sum", "is_finite", "sum_again"]

Product = Callable[[Sequence[Value], Value, Value], tuple[Value, Value]]
"""From a position on every axis, the number of the tap and an input channel to an input and a weight, of sums' type."""


def is_finite(one: Value) -> Value:
    """Whether a sum is a finite number: Inf - Inf and NaN - NaN are NaN."""
    return (one - one).equals(0.0)


def exact_sum(k: Kernel, g: Geometry, at: Sequence[Value], one: Value, product: Product) -> Value:
    """A sum, done again if it is not finite.

    Parameters
    ----------
    at : sequence of Value
        The output's position on every axis of the sweep.
    one : Value
        The sum as it is.
    product : callable
    """
    result = k.variable(one, one.type)
    with k.when(is_finite(one), otherwise=True):
        result.set(sum_again(k, g, at, one.type, product, range(len(at))))
    return result.get()


def sum_again(k: Kernel, g: Geometry, at: Sequence[Value], sum_: Type, product: Product, order: Sequence[int]) -> Value:
    """A sum of real products; taps of the axes in an order, outermost first, then input channels."""
    total = k.variable(0, sum_)
    inside = None
    positions: dict[int, Value] = {}
    taps: dict[int, Value] = {}
    with ExitStack() as stack:
        for a in order:
            axis = g.axes[a]
            taps[a] = stack.enter_context(k.loop(0, axis.taps))
            positions[a] = at[a] * axis.stride - axis.pad + taps[a] * axis.dilation
            if reaches_out(axis):
                inside = both(inside, positions[a].below(axis.inp))
        tap = k.value(0)
        for a, axis in enumerate(g.axes):
            tap = tap * axis.taps + taps[a]
        stack.enter_context(k.only(inside))
        c = stack.enter_context(k.loop(0, g.c))
        x, w = product([positions[a] for a in range(len(at))], tap, c)
        total.set(k.fma(x, w, total.get()))
    return total.get()
