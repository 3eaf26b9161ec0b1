"""The table of activations: names, parameters, defaults and their exact meaning in float64.

``y = activation(conv + bias + residual)``.  The kernels' vector forms are in ``kernels/mathfn.py``
under the same names; this table is what validation, text, oracle and documentation read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.names import advice

__all__ = ["ACTIVATIONS", "WITHOUT_AFFINE", "WITH_AFFINE", "Activation", "ActivationRow", "activation"]

Values = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ActivationRow:
    """One activation function.

    Parameters
    ----------
    parameters : tuple of str
        Names of its parameters, in order.
    defaults : tuple of float or None
        Their defaults in Python; None where they must be given.
    integers : bool
        Whether it is defined on integers.
    reference : callable
        ``reference(values, *parameters)`` in the precision of ``values``.
    lipschitz : float
        Largest slope, by which an error of its argument grows (for tolerances);
        a parameter named alpha multiplies it.
    """

    parameters: tuple[str, ...]
    defaults: tuple[float, ...] | None
    integers: bool
    reference: Callable[..., Values]
    lipschitz: float


def _sigmoid(v: Values) -> Values:
    e = np.exp(-np.abs(v))
    return np.where(v >= 0, 1.0, e) / (1.0 + e)


def _clip(v: Values, lo: float, hi: float) -> Values:
    # min(max(v, lo), hi): with lo > hi the result is hi; NaN stays NaN (onnxruntime's order).
    if v.dtype.kind in "iu":  # bounds of the integer type itself: a comparison in float64 would lose low bits
        least, most = int(np.iinfo(v.dtype).min), int(np.iinfo(v.dtype).max)
        low, high = (least if b <= least else most if b >= most else int(b) for b in (lo, hi))
        return np.clip(v, low, high) if low <= high else np.full_like(v, high)
    return np.minimum(np.maximum(v, lo), hi)


def _relu(v: Values) -> Values:
    return np.maximum(v, 0)


def _hard_swish(v: Values) -> Values:
    # The limit at -inf is 0; the product there would be NaN.
    return np.maximum(v, -3.0) * np.clip(v / 6.0 + 0.5, 0.0, 1.0)


def _silu(v: Values) -> Values:
    # The limit at -inf is 0; the product there would be NaN.
    return np.where(np.isneginf(v), 0.0, v * _sigmoid(v))


def _mish(v: Values) -> Values:
    # tanh(log(1 + e^v)) = n / (n + 2) with n = e^v (e^v + 2); beyond 30 it is 1 in float64.
    e = np.exp(np.minimum(v, 30.0))
    n = e * (e + 2.0)
    return np.where(v > 30.0, v, np.where(np.isneginf(v), 0.0, v * (n / (n + 2.0))))


def _gelu(v: Values) -> Values:
    from math import erfc  # the exact form v * Phi(v); erfc keeps its relative accuracy below 0

    phi = np.vectorize(lambda q: 0.5 * erfc(-q / 2.0**0.5), otypes=[np.float64])(v)
    return np.where(np.isneginf(v), 0.0, v * phi)


def _elu(v: Values, alpha: float) -> Values:
    return np.where(v > 0, v, alpha * np.expm1(np.minimum(v, 0.0)))


ACTIVATIONS: dict[str, ActivationRow] = {
    "Relu": ActivationRow((), (), True, _relu, 1.0),
    "LeakyRelu": ActivationRow(("alpha",), (0.01,), False, lambda v, a: np.where(v >= 0, v, a * v), 1.0),
    "Clip": ActivationRow(("min", "max"), None, True, _clip, 1.0),
    "HardSigmoid": ActivationRow(
        ("alpha", "beta"), (0.2, 0.5), False, lambda v, a, b: np.clip(a * v + b, 0.0, 1.0), 1.0
    ),
    "HardSwish": ActivationRow((), (), False, _hard_swish, 1.5),
    "Sigmoid": ActivationRow((), (), False, _sigmoid, 0.25),
    "Tanh": ActivationRow((), (), False, np.tanh, 1.0),
    "Silu": ActivationRow((), (), False, _silu, 1.1),
    "Mish": ActivationRow((), (), False, _mish, 1.1),
    "Gelu": ActivationRow((), (), False, _gelu, 1.13),
    "Elu": ActivationRow(("alpha",), (1.0,), False, _elu, 1.0),
    "ReluAffine": ActivationRow(("alpha", "beta"), None, False, lambda v, a, b: a * _relu(v) + b, 1.0),
    "HardSwishAffine": ActivationRow(("alpha", "beta"), None, False, lambda v, a, b: a * _hard_swish(v) + b, 1.5),
}

WITH_AFFINE = {"Relu": "ReluAffine", "HardSwish": "HardSwishAffine"}
"""Activation f to ``alpha f(v) + beta``: networks learn a scale and a shift behind these (PP-LCNetV3, PP-HGNetV2)."""
WITHOUT_AFFINE = {affine: name for name, affine in WITH_AFFINE.items()}
"""And back."""


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation with its parameters, as a problem holds it."""

    name: str
    parameters: tuple[float, ...] = ()

    def __call__(self, values: Values) -> Values:
        """Apply the reference form to an array."""
        return ACTIVATIONS[self.name].reference(values, *self.parameters)

    def __str__(self) -> str:
        """Spell it as a problem's text does: ``Clip(0,6)``."""
        inner = ",".join(_shortest(p) for p in self.parameters)
        return f"{self.name}({inner})" if inner else self.name


def _shortest(value: float) -> str:
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(value)


def activation(name: str | None, parameters: Sequence[float] | None, *, is_float: bool = True) -> Activation | None:
    """Validate an activation given by name and parameters.

    Parameters
    ----------
    name : str or None
        As spelled in ONNX, case counts; None means no activation.
    parameters : sequence of float or None
        None takes the defaults.
    is_float : bool
        Whether the result type is a float type.

    Raises
    ------
    ArgumentError
        If the name is unknown, the number of parameters is wrong, or the function is not defined
        on integers.
    """
    if name is None:
        if parameters is not None and not (isinstance(parameters, Sized) and len(parameters) == 0):
            raise ArgumentError(
                f"activation_params={parameters!r} was given without activation; name one of "
                f"{', '.join(ACTIVATIONS)} or leave the parameters out"
            )
        return None
    row = ACTIVATIONS.get(name) if isinstance(name, str) else None
    if row is None:
        raise ArgumentError(
            f"activation={name!r} is not known (case counts); choose one of {', '.join(ACTIVATIONS)}"
            f"{advice('activation', name, ACTIVATIONS)}"
        )
    if not is_float and not row.integers:
        raise ArgumentError(f"activation={name!r} is not defined on integers; integer results take Relu and Clip")
    if parameters is None:
        if row.defaults is None:
            raise ArgumentError(f"activation={name!r} needs activation_params={list(row.parameters)}; none were given")
        values = row.defaults
    else:
        try:
            values = tuple(float(p) for p in parameters)
        except (TypeError, ValueError, OverflowError):
            raise ArgumentError(
                f"activation_params={parameters!r} must be a sequence of numbers "
                f"({', '.join(row.parameters) or 'none'} for {name})"
            ) from None
        if len(values) != len(row.parameters):
            raise ArgumentError(
                f"activation_params={list(values)} has {len(values)} values, {name} takes "
                f"{len(row.parameters)} ({', '.join(row.parameters) or 'none'})"
            )
        if not is_float and any(v != v for v in values):
            raise ArgumentError(f"activation_params={list(values)} has a NaN, which no integer is; give numbers")
    return Activation(name, values)
