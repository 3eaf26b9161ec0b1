"""OpenVINO's layers that work element by element, in NumPy.

One function for each, from a node and arrays to an array of the layer's type.  The one idea: functions
are computed in float64 and rounded once, sums and products in the element type, which wraps.  It knows
no graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.errors import ModelError, Unsupported
from polyconv.models.elements import BY_OPENVINO, BY_TYPE, type_of
from polyconv.models.graph import Array, Dims, Node, Value
from polyconv.models.limits import shorten
from polyconv.problem.epilogue import ACTIVATIONS

__all__ = ["ELEMENTWISE", "described"]


def _rounded(function: Callable[..., Array], x: Array, *parameters: float) -> Array:
    return function(x.astype(np.float64), *parameters).astype(x.dtype)


def _activated(name: str, *attributes: str) -> Callable[[Node, Sequence[Array]], Array]:
    """A layer that is one of our activations, its parameters attributes of the layer."""

    def apply(node: Node, inputs: Sequence[Array]) -> Array:
        return _rounded(ACTIVATIONS[name].reference, inputs[0], *(_given(node, key) for key in attributes))

    return apply


def _given(node: Node, key: str) -> float:
    if key not in node.attributes:
        raise ModelError(f"{node.label} lacks its attribute {key!r}")
    return float(node.attributes[key])


def _binary(ufunc: Callable[[Array, Array], Array]) -> Callable[[Node, Sequence[Array]], Array]:
    def apply(node: Node, inputs: Sequence[Array]) -> Array:
        a, b = inputs
        rule = node.attributes.get("auto_broadcast", "numpy")
        if a.dtype != b.dtype:
            raise ModelError(
                f"{node.label} has operands of the types {a.dtype} and {b.dtype}; it takes one type"
            )
        if rule not in ("numpy", "none"):
            raise Unsupported(
                f"{node.label} broadcasts by the rule {shorten(str(rule))!r}; polyconv knows numpy and none"
            )
        if rule == "none" and a.shape != b.shape:
            raise ModelError(
                f"{node.label} has operands of the shapes {a.shape} and {b.shape}, and does not broadcast"
            )
        return ufunc(a, b)

    return apply


def _relu(node: Node, inputs: Sequence[Array]) -> Array:
    return np.maximum(inputs[0], np.zeros((), inputs[0].dtype))


def _clamp(node: Node, inputs: Sequence[Array]) -> Array:
    """Bounds are numbers; on integers the lower one is rounded up and the upper one down."""
    (x,) = inputs
    low, high = _given(node, "min"), _given(node, "max")
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        least = max(math.ceil(max(low, -(2.0**65))), int(info.min))
        most = min(math.floor(min(high, 2.0**65)), int(info.max))
        return np.clip(x, x.dtype.type(min(least, info.max)), x.dtype.type(max(most, info.min)))
    return _rounded(ACTIVATIONS["Clip"].reference, x, low, high)


def _gated(x: Array, argument: Array) -> Array:
    """Values times a sigmoid, which outweighs them towards its 0."""
    gate = ACTIVATIONS["Sigmoid"].reference(argument)
    return np.where(gate == 0.0, 0.0, x * gate)


def _swish(node: Node, inputs: Sequence[Array]) -> Array:
    x = inputs[0].astype(np.float64)
    beta = inputs[1].astype(np.float64).reshape(()) if len(inputs) > 1 else 1.0
    return _gated(x, beta * x).astype(inputs[0].dtype)


def _gelu(node: Node, inputs: Sequence[Array]) -> Array:
    if str(node.attributes.get("approximation_mode", "erf")).lower() == "erf":
        return _rounded(ACTIVATIONS["Gelu"].reference, inputs[0])
    x = inputs[0].astype(np.float64)
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    return _gated(x, 2.0 * inner).astype(inputs[0].dtype)  # 1 + tanh(inner), halved, without its cancellation


def _prelu(node: Node, inputs: Sequence[Array]) -> Array:
    """A one-axis slope stands for channels."""
    x, slope = inputs
    if slope.ndim == 1 and slope.size > 1 and x.ndim > 1:
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    return np.where(x < 0, x * slope, x).astype(x.dtype)


def _converted(node: Node, inputs: Sequence[Array]) -> Array:
    """Convert: floats are cut towards 0 and held at the ends of an integer type, integers wrap."""
    (x,) = inputs
    target = _target(node)
    if target.kind in "iu" and x.dtype.kind not in "iub":
        info = np.iinfo(target)
        cut = np.trunc(x.astype(np.float64))
        inside = np.where(np.isnan(cut), 0.0, cut).clip(float(info.min), float(info.max))
        converted = inside.astype(target)
        return np.where(inside >= float(info.max), target.type(info.max), converted)
    return x.astype(target)


def _target(node: Node) -> np.dtype[Any]:
    name = node.attributes.get("destination_type", "")
    if name not in BY_OPENVINO:
        raise Unsupported(
            f"{node.label} converts to {shorten(str(name))!r}; polyconv knows {', '.join(BY_OPENVINO)}"
        )
    return BY_OPENVINO[name].numpy


ELEMENTWISE: Mapping[str, Callable[[Node, Sequence[Array]], Array]] = {
    "Add": _binary(np.add),
    "Subtract": _binary(np.subtract),
    "Multiply": _binary(np.multiply),
    "Convert": _converted,
    "Relu": _relu,
    "Clamp": _clamp,
    "Sigmoid": _activated("Sigmoid"),
    "Tanh": _activated("Tanh"),
    "Elu": _activated("Elu", "alpha"),
    "HSwish": _activated("HardSwish"),
    "Mish": _activated("Mish"),
    "Swish": _swish,
    "Gelu": _gelu,
    "PRelu": _prelu,
}
"""Layer type -> its output from its node and inputs."""


def described(node: Node, inputs: Sequence[Value]) -> Value:
    """Type and extents of an elementwise layer's output."""
    kind = inputs[0].type
    if node.op == "Convert":
        kind = type_of(_target(node))
    dims = inputs[0].dims
    if len(inputs) == 2 and node.op in ("Add", "Subtract", "Multiply"):
        dims = _broadcast(dims, inputs[1].dims)
    return Value(node.outputs[0], kind if kind in BY_TYPE else "", dims)


def _broadcast(a: Dims | None, b: Dims | None) -> Dims | None:
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(d if d == e or e == 1 else e if d == 1 else None for d, e in pairs)
