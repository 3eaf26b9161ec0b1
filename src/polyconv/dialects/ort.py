"""The operators that ONNX Runtime adds: its internal channels-last domain and its contributed ones.

They are ONNX's convolutions with another layout, an activation and a summand, so their functions call
those of ``onnx``; input and result may be channels-last, weights never are (semantics 3 and 5).  It
must not know arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from polyconv.dialects import onnx
from polyconv.dialects.attributes import boolean, floats, text
from polyconv.dialects.node import Lowering, Node
from polyconv.dialects.rows import Factory, Input, Row, factories, named, newest
from polyconv.errors import ArgumentError, shown
from polyconv.problem.epilogue import ACTIVATIONS, Activation

__all__ = ["CONTRIB", "NHWC", "OPERATORS", "lookup"]

NHWC = "com.ms.internal.nhwc"
CONTRIB = "com.microsoft"

# What its parser knows.  Those without parameters ignore any that are given (semantics 3.3).
_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish")


def conv(node: Node) -> Lowering:
    """Conv with an activation."""
    return onnx.conv(node, activation=_activation(node))


def conv_transpose(node: Node) -> Lowering:
    """ConvTranspose with an activation."""
    return onnx.conv_transpose(node, activation=_activation(node))


def _activation(node: Node) -> Activation | None:
    """The attributes activation and activation_params; unlike ONNX's own they have no defaults."""
    name: str | None = node.attributes["activation"]
    given: tuple[float, ...] = node.attributes["activation_params"] or ()
    if name is None:
        return None
    if name not in _ACTIVATIONS:
        raise ArgumentError(
            f"activation={shown(name)} is not known to {node.operator} (case counts); "
            f"choose one of {', '.join(_ACTIVATIONS)}"
        )
    takes = ACTIVATIONS[name].parameters
    if takes and len(given) != len(takes):
        raise ArgumentError(
            f"activation_params={shown(list(given))} has {len(given)} values, {name} needs {len(takes)}: "
            f"give [{', '.join(takes)}]"
        )
    return Activation(name, given if takes else ())


_XWB = onnx.OPERATORS["Conv", 11].inputs
_XWBZ = (*_XWB, Input("Z", "residual", "T", optional=True))

_ACTIVATED: dict[str, Any] = {"activation": text(), "activation_params": floats()}
_CONV = {**onnx.CONV, **_ACTIVATED}
_TRANSPOSE = {**onnx.CONV_TRANSPOSE, **_ACTIVATED}
_QLINEAR = {**onnx.CONV, "channels_last": boolean(False)}
_QLINEAR_TRANSPOSE = onnx.qlinear_conv_transpose, onnx.QLINEAR, onnx.CONV_TRANSPOSE, onnx.QLINEAR_TYPES

_T, _SHORT = {"T": ("f16", "f32", "f64")}, {"T": ("f16", "f32")}


_SEMANTICS = ("onnxruntime", "onnx")


_nhwc = partial(Row, NHWC, layout="NHWC", semantics=_SEMANTICS)
_contrib = partial(Row, CONTRIB, semantics=_SEMANTICS)

OPERATORS: dict[tuple[str, str, int], Row] = {
    (row.domain, row.name, row.version): row
    for row in (
        _nhwc("Conv", 1, conv, _XWB, _CONV, _T),
        _nhwc("Conv", 11, conv, _XWB, _CONV, _T),
        _nhwc("ConvTranspose", 1, conv_transpose, _XWB, _TRANSPOSE, _T),
        _nhwc("ConvTranspose", 11, conv_transpose, _XWB, _TRANSPOSE, _T),
        _nhwc("QLinearConv", 10, onnx.qlinear_conv, onnx.QLINEAR, onnx.CONV, onnx.QLINEAR_TYPES),
        _nhwc("QLinearConvTranspose", 1, *_QLINEAR_TRANSPOSE),
        _contrib("FusedConv", 1, conv, _XWBZ, _CONV, _T),
        _contrib("NhwcConv", 1, onnx.conv, _XWB, onnx.CONV, _T, layout="NHWC"),
        _contrib("NhwcFusedConv", 1, conv, _XWBZ, _CONV, _SHORT, layout="NHWC"),
        _contrib("QLinearConv", 1, onnx.qlinear_conv, onnx.QLINEAR, _QLINEAR, onnx.QLINEAR_TYPES),
        _contrib("QLinearConvTranspose", 1, *_QLINEAR_TRANSPOSE),
    )
}
"""Every operator by domain, name and the version of the operator set that introduced it."""


def lookup(domain: str, name: str, opset: int) -> int:
    """Version of an operator that holds in an operator set of its domain: the newest not above it.

    Raises
    ------
    Unsupported
        If there is none.
    """
    return newest("ort", [v for d, n, v in OPERATORS if (d, n) == (domain, name)], f"{domain}.{name}", opset)


_FACTORIES = factories(OPERATORS.values())


def __getattr__(name: str) -> Factory:
    return named(_FACTORIES, name, __name__)


def __dir__() -> list[str]:
    return [*__all__, *_FACTORIES]
