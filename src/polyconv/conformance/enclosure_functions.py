"""The enclosures of functions of one number: of activations, exponentials, powers and their kin.

The one idea: what keeps order has the ends' values as its ends, and of the others the steepest slope is known.  It must
not know which graphs are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyconv.conformance.enclosures import Array, Call, Enclosure, rounded
from polyconv.errors import ArgumentError
from polyconv.problem.epilogue import ACTIVATIONS

__all__ = ["FUNCTION_UNITS", "OF_ONE", "Rule", "inverted", "negated"]

Rule = Callable[[Call], Sequence[Enclosure]]

FUNCTION_UNITS = 8
"""Units in the last place by which an engine's function of one number may err, of the result or of 1."""


def _function(of: Callable[[Array], Array], slope: float, x: Enclosure) -> Enclosure:
    """A function whose steepest slope is known; engines compute it by polynomials on its range of about 1."""
    at, spread = of(x.middle), slope * x.radius
    return rounded(at - spread, at + spread, x.dtype, FUNCTION_UNITS, np.maximum(np.abs(at) + spread, 1.0))


def _activation(call: Call) -> list[Enclosure]:
    op = call.node.op_type
    row = ACTIVATIONS[op]
    defaults = row.defaults or ()
    values = [call.attribute(name, default) for name, default in zip(row.parameters, defaults, strict=True)]
    scaling = (abs(v) for name, v in zip(row.parameters, values, strict=True) if name == "alpha")
    return [_function(lambda v: row.reference(v, *values), row.lipschitz * max(1.0, *scaling, 1.0), call.at(0))]


def _of_function(of: Callable[[Array], Array], slope: float) -> Rule:
    return lambda call: [_function(of, slope, call.at(0))]


def _erf(v: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(v) if v.size else v


def _exp(call: Call) -> list[Enclosure]:
    x = call.at(0)
    return [rounded(np.exp(x.low), np.exp(x.high), x.dtype, FUNCTION_UNITS)]


def negated(x: Enclosure) -> Enclosure:
    """What is taken off 0; no rounding."""
    return Enclosure(-x.high, -x.low, x.dtype)


def _size(x: Enclosure) -> Enclosure:
    """The absolute value."""
    least = np.where((x.low <= 0) & (x.high >= 0), 0.0, np.minimum(np.abs(x.low), np.abs(x.high)))
    return Enclosure(least, x.largest, x.dtype)


def _prelu(call: Call) -> list[Enclosure]:
    x, slope = call.at(0), call.at(1)
    a, b = x.ends(lambda e: np.where(e >= 0, e, e * slope.low))
    turn = np.where((x.low < 0) & (x.high > 0), 0.0, a)  # where the slope changes its sign, the least may lie
    return [rounded(np.minimum.reduce((a, b, turn)), np.maximum.reduce((a, b, turn)), x.dtype, 1)]


def _power(x: Enclosure, exponent: float) -> Enclosure:
    """A power of what is not below 0, or an even one."""
    even = exponent % 2 == 0
    if not even and (x.low < 0).any():
        raise ArgumentError(f"the power {exponent} has no rule for numbers below 0; only even ones do")
    ends = [np.power(end, exponent) for end in ((_size(x).low, x.largest) if even else (x.low, x.high))]
    return rounded(np.minimum(*ends), np.maximum(*ends), x.dtype, FUNCTION_UNITS)


def _powers(call: Call) -> list[Enclosure]:
    exponent = call.at(1)
    if exponent.low.size != 1 or exponent.low is not exponent.high:
        raise ArgumentError("a power has a rule for one exponent that is known")
    return [_power(call.at(0), float(exponent.low.flat[0]))]


def inverted(a: Enclosure) -> Enclosure:
    """One over something that is not zero."""
    spans = (a.low <= 0) & (a.high >= 0)
    return Enclosure(np.where(spans, -np.inf, 1 / a.high), np.where(spans, np.inf, 1 / a.low), a.dtype)


def _reciprocal(call: Call) -> list[Enclosure]:
    exact = inverted(call.at(0))
    return [rounded(exact.low, exact.high, exact.dtype, 1)]


OF_ONE: Mapping[str, Rule] = {
    **dict.fromkeys(set(ACTIVATIONS) - {"Relu", "Clip", "Silu"}, _activation),
    "Abs": lambda call: [_size(call.at(0))],
    "Cos": _of_function(np.cos, 1.0),
    "Erf": _of_function(_erf, 1.13),
    "Exp": _exp,
    "Neg": lambda call: [negated(call.at(0))],
    "PRelu": _prelu,
    "Pow": _powers,
    "Reciprocal": _reciprocal,
    "Sin": _of_function(np.sin, 1.0),
    "Softplus": _of_function(lambda v: np.logaddexp(v, 0.0), 1.0),
    "Softsign": _of_function(lambda v: v / (1 + np.abs(v)), 1.0),
    "Sqrt": lambda call: [_power(call.at(0), 0.5)],
}
"""Operator -> its rule."""
