"""The verdict on a computed result: a problem, its operands and an array in, None or a complaint out.

An output is right when it lies within the own bound of the oracle's value (or the window bound, for
those whose algorithm has no other), when NaN and infinities stand exactly where the oracle has them,
and when integers are equal.  It must not know who computed the array.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.conformance.operands import Operands
from polyconv.dataclass import dataclass
from polyconv.dtypes import Dtype
from polyconv.problem.oracle import magnitude, oracle, tolerance
from polyconv.problem.problem import Problem

__all__ = ["Expected", "complaint", "expected", "faults", "present_state", "widened", "window"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a problem's result must be.

    Parameters
    ----------
    values : array
        The oracle's result, converted to the result type.
    exact : array
        Before the conversion: float64, or the integers of ``values``.
    allowed : array
        Largest admissible distance from ``exact``; 0 for integers.
    """

    values: Array
    exact: Array
    allowed: Array


def expected(p: Problem, made: Operands) -> Expected:
    """The oracle's answer for given operands, with the own bound around it."""
    arrays, named = (made.x, made.w, made.bias, made.residual), made.keywords()
    with np.errstate(all="ignore"):  # overflow to infinity is a valid result
        values = oracle(p, *arrays, **named)
        if not p.y_dtype.is_float:
            return Expected(values, values, np.zeros(values.shape))
        exact = oracle(p, *arrays, raw=True, **named)
        size = magnitude(p, *arrays, **named)
        return Expected(values, exact, tolerance(p, size, exact))


def widened(p: Problem, made: Operands, want: Expected) -> Expected:
    """The same answer with the window bound around it: ``k eps max|x| sum|w|`` in place of ``k eps sum|x||w|``."""
    x, w = (np.abs(a.astype(np.float64)) for a in (made.x, made.w))
    with np.errstate(all="ignore"):  # a bound beyond the type's range is infinite
        own = magnitude(p, made.x, made.w, made.bias, made.residual, **made.keywords())
        return replace(want, allowed=tolerance(p, own + window(p, x, w), want.exact))


def window(p: Problem, x: Array, w: Array) -> Array:
    """``max|x| sum|w|`` of the channels of the result, of magnitudes ``x`` and ``w``."""
    largest = float(np.max(x, where=np.isfinite(x), initial=0.0))
    if p.op == "conv_transpose":
        grouped = w.reshape(p.groups, p.c // p.groups, p.m // p.groups, math.prod(p.k))
        heaviest = grouped.sum(axis=(1, 3)).reshape(p.m)
    else:
        heaviest = w.reshape(p.m, -1).sum(axis=1)
    found = largest * heaviest.reshape(-1, *(1,) * p.rank)
    return np.moveaxis(found, 0, -1) if p.layout == "NHWC" else found


def present_state(p: Problem, made: Operands) -> Array:
    """State after a causal convolution: the last k - 1 positions of past and input (semantics 5.6)."""
    lead = np.zeros((*made.x.shape[:2], p.k[0] - 1), made.x.dtype) if made.past is None else made.past
    whole = np.concatenate([lead, made.x], axis=2)
    return whole[:, :, whole.shape[2] - (p.k[0] - 1) :]


def _largest(dtype: Dtype) -> float:
    """Values at least this large round to infinity."""
    mantissa = round(-math.log2(dtype.eps))
    exponent = {"f16": 15, "bf16": 127, "f32": 127, "f64": 1023}[dtype.name]
    return float((2.0 - 2.0 ** -(mantissa + 1)) * 2.0**exponent)


def complaint(p: Problem, want: Expected, got: Array) -> str | None:
    """What is wrong with a result, in one line; None when nothing is.

    Parameters
    ----------
    p : Problem
    want : Expected
    got : array
        In the shape and type of the problem's result.
    """
    if got.shape != want.values.shape or got.dtype != want.values.dtype:
        return f"result is {got.dtype} {got.shape}, must be {want.values.dtype} {want.values.shape}"
    wrong, distance = faults(p, want, got)
    if not wrong.any():
        return None
    at = np.unravel_index(
        int(np.argmax(np.where(wrong, np.nan_to_num(distance, nan=np.inf), -1.0))), got.shape
    )
    return (
        f"{int(wrong.sum())} of {got.size} outputs wrong; worst at {tuple(int(a) for a in at)}: "
        f"got {got[at]!s}, expected {want.exact[at]!s} within {want.allowed[at]:.3g}"
    )


def faults(p: Problem, want: Expected, got: Array) -> tuple[Array, Array]:
    """Which outputs are wrong, as a mask, and how far each is from the exact value.

    Parameters
    ----------
    p : Problem
    want : Expected
    got : array
        In the shape and type of the problem's result.
    """
    if not p.y_dtype.is_float:
        return got != want.values, np.zeros(got.shape)
    got = got.astype(np.float64)
    exact, allowed = want.exact, want.allowed
    with np.errstate(all="ignore"):
        distance = np.abs(got - exact)
        within = distance <= allowed
        # A finite value at the type's end may round to infinity, as far as the bound lets it.
        may_overflow = (
            np.isinf(got) & (np.sign(got) == np.sign(exact)) & (np.abs(exact) + allowed >= _largest(p.y_dtype))
        )
        special = np.where(np.isnan(exact), np.isnan(got), got == exact)
    right = np.where(np.isfinite(exact), within | may_overflow, special)
    return ~right, distance
