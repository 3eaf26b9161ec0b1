"""The operators of ONNX's main domain: one function and one row each.

A function reads attributes and input shapes as the specification names them and hands them to
``lowering``; a row says which inputs, types and attributes a version has.  Neither knows arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from polyconv.dialects.attributes import Attribute, choice, integer, integers
from polyconv.dialects.lowering import forward, transposed
from polyconv.dialects.node import (
    Dim,
    Lowering,
    Node,
    Weights,
    exact,
    expect,
    known,
    per_axis,
    product,
    spatial_rank,
    split,
)
from polyconv.dialects.rows import Factory, Input, Row, factories, named, newest
from polyconv.errors import ArgumentError, Unsupported, shown
from polyconv.problem.epilogue import Activation
from polyconv.problem.padding import AUTO_PADS, Pair, same_pads, same_pads_onnxruntime
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import Quantisation

__all__ = ["OPERATORS", "lookup"]


def conv(node: Node, **fields: Any) -> Lowering:
    """Conv, and whatever differs from it in further fields of the Problem only (semantics 2)."""
    rank = spatial_rank(node)
    if rank is None:
        return Lowering((None,))
    same = same_pads_onnxruntime if node.semantics == "onnxruntime" else same_pads
    auto_pad = node.attributes["auto_pad"]
    return forward(node, rank, _weights(node, rank), auto_pad, _pads(node, rank), same=same, **fields)


def conv_transpose(node: Node, **fields: Any) -> Lowering:
    """ConvTranspose (semantics 4); output_shape decides over pads, as in ONNX Runtime."""
    rank = spatial_rank(node)
    if rank is None:
        return Lowering((None,))
    weights = _weights(node, rank, forward=False)
    padding = per_axis(node, "output_padding", rank, 0)
    strides, dilations = per_axis(node, "strides", rank, 1), per_axis(node, "dilations", rank, 1)
    for extra, s, d in zip(padding, strides, dilations, strict=True):
        if extra >= max(s, d):
            raise ArgumentError(
                f"output_padding={list(padding)} has {extra}, which must be less than the stride {s} or the "
                f"dilation {d} of its axis: lower it, or give output_shape"
            )
    wanted = _output_shape(node, rank, product(weights.groups, weights.outputs))
    auto_pad, pads = node.attributes["auto_pad"], _pads(node, rank)
    return transposed(node, rank, weights, auto_pad, pads, padding, wanted, **fields)


def conv_integer(node: Node) -> Lowering:
    """ConvInteger: exact 32-bit sums, zero points optional (semantics 5.1)."""
    return _quantised(node, ("zx",), ("zw",), "i32")


def qlinear_conv(node: Node) -> Lowering:
    """QLinearConv: rounded half to even, then the zero point, then saturated (semantics 5.2)."""
    return _quantised(node, *_SCALED, node.values["zy"].dtype)


def qlinear_conv_transpose(node: Node) -> Lowering:
    """QLinearConv of a transposed convolution, by the same rounding (semantics 3.2)."""
    return _quantised(node, *_SCALED, node.values["zy"].dtype, of=conv_transpose)


_SCALED = ("sx", "zx", "sy", "zy"), ("sw", "zw")
"""What QLinearConv has for a tensor, and what it may have for every output channel."""


def _quantised(node: Node, single: Sequence[str], per_channel: Sequence[str], y: str | None,
               of: Callable[..., Lowering] = conv) -> Lowering:  # fmt: skip
    """A convolution with zero points and scales, of which some may be given per output channel."""
    forms = {role: _form(node, role) for role in single}
    forms |= {role: _form(node, role, per_channel=True) for role in per_channel}
    given = {role: form for role, form in forms.items() if form is not None}
    lowering = of(node, y=y, quantisation=Quantisation(**given) if given else None)
    for role in (role for role in per_channel if given.get(role) == "c"):
        m = None if (shape := lowering.shapes[0]) is None else split(shape, len(shape) - 2, node.layout)[1]
        expect(node, role, (m,), "a scalar, or one value per output channel of the weights")
    scalars = {role: _scalar for role, form in given.items() if form == "t"}
    return replace(lowering, operands=scalars)


def _scalar(one: NDArray[Any]) -> NDArray[Any]:
    return one.reshape(())


def deform_conv(node: Node) -> Lowering:
    """DeformConv: two spatial axes, no auto_pad (semantics 5.5)."""
    rank = spatial_rank(node)
    if rank is None:
        return Lowering((None,))
    return deformable(node, rank, _weights(node, rank), "NOTSET", _pads(node, rank), "offset_group")


def deformable(
    node: Node, rank: int, weights: Weights, auto_pad: str, pads: tuple[Pair, ...], grouping: str
) -> Lowering:
    """Lower a deformable convolution of any dialect; ``grouping`` names its attribute of offset groups."""
    x = node.values["x"]
    if rank != 2:
        raise Unsupported(
            f"{node.operator} with {rank} spatial axes ({x}) is not computed: reshape to two spatial axes"
        )
    offset_groups: int = node.attributes[grouping]
    n, c, _ = split(x.shape, rank, node.layout)
    if isinstance(c, int) and c % offset_groups:
        raise ArgumentError(
            f"{grouping}={offset_groups} does not divide the {c} input channels of {x}: choose one that does"
        )
    masked = "mask" in node.values
    lowering = forward(
        node, rank, weights, auto_pad, pads, op="deform_conv", offset_groups=offset_groups, mask=masked
    )
    (shape,) = lowering.shapes
    out = split(shape, rank, node.layout)[2]
    samples = product(offset_groups, *weights.k)
    expect(node, "offset", (n, product(samples, 2), *out), "two offsets per offset group, tap and output")
    expect(node, "mask", (n, samples, *out), "one factor per offset group, tap and output")
    return lowering


def causal_conv(node: Node) -> Lowering:
    """CausalConvWithState: depthwise, along one axis, after the samples of past_state (semantics 5.6)."""
    x, w = node.values["x"], node.values["w"]
    if spatial_rank(node) not in (None, 1):
        raise ArgumentError(f"{x} has more than 3 axes, {node.operator} takes (N, C, L): fold batches into N")
    n, c, (length,) = split(x.shape, 1, "NCHW")
    channels, _, (taps,) = split(w.shape, 1, "NCHW")
    c = channels if c is None else c
    expect(node, "w", (c, 1, taps), f"one kernel per channel of {x}")
    if taps == 0:
        raise ArgumentError(f"{w} has a kernel of extent 0: it must be at least 1")
    expect(node, "bias", (c,), "give one value per channel")
    history: Dim = taps - 1 if isinstance(taps, int) else None
    expect(node, "past", (n, c, history), "one sample less than the kernel, for every batch and channel")
    shapes = (n, c, length), (n, c, history)
    if not known(n, c, length, taps) or x.dtype is None:
        return Lowering(shapes)
    activation = None if node.attributes["activation"] == "none" else Activation("Silu")
    n, c, length, taps = exact(n, c, length, taps)
    problem = Problem(
        "causal_conv", x.dtype, x.dtype, x.dtype, "NCHW", n, c, (length,), c, (taps,), pads=((taps - 1, 0),),
        groups=max(1, c), bias="bias" in node.values, activation=activation,
    )  # fmt: skip
    return Lowering(shapes, problem)


def _weights(node: Node, rank: int, *, forward: bool = True) -> Weights:
    """Sizes of weights in ONNX's order; kernel_shape stands in for extents that they do not tell."""
    shape = node.values["w"].shape or (None,) * (rank + 2)
    k = shape[2:]
    if node.attributes["kernel_shape"] is not None:
        given = per_axis(node, "kernel_shape", rank, 0)
        if any(known(a, b) and a != b for a, b in zip(given, k, strict=True)):
            raise ArgumentError(
                f"kernel_shape={list(given)} is not the kernel {list(k)} of {node.values['w']}: "
                f"leave the attribute out or change the weights"
            )
        k = given
    outputs, inputs = shape[:2] if forward else (shape[1], shape[0])
    return Weights(inputs, outputs, k, node.attributes["group"], "group")


def _pads(node: Node, rank: int) -> tuple[Pair, ...]:
    """The attribute pads, all begins before all ends, as pairs."""
    given: tuple[int, ...] | None = node.attributes["pads"]
    pads = (0,) * (2 * rank) if given is None else given
    if len(pads) != 2 * rank:
        raise ArgumentError(
            f"pads={shown(list(pads))} has {len(pads)} entries, {node.values['x']} has {rank} spatial axes: "
            f"give {rank} begins, then {rank} ends"
        )
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    if auto_pad != "NOTSET" and any(pads):
        raise ArgumentError(
            f"pads={shown(list(pads))} and auto_pad={auto_pad} exclude each other: leave one of them out"
        )
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def _output_shape(node: Node, rank: int, m: Dim) -> tuple[int, ...] | None:
    """The attribute output_shape: spatial extents, or all of them as ONNX Runtime takes too."""
    given: tuple[int, ...] | None = node.attributes["output_shape"]
    if given is None:
        return None
    x = node.values["x"]
    if len(given) == rank + 2:
        n_m = (split(x.shape, rank, node.layout)[0], m)
        if any(known(a, b) and a != b for a, b in zip(given[:2], n_m, strict=True)):
            raise ArgumentError(
                f"output_shape={list(given)} starts with {list(given[:2])}, the output has batch and "
                f"channels {list(n_m)}: give the {rank} spatial extents only"
            )
        return given[2:]
    if len(given) != rank:
        raise ArgumentError(
            f"output_shape={shown(list(given))} has {len(given)} entries, {x} has {rank} spatial axes: "
            f"give one extent per axis"
        )
    return given


def _form(node: Node, role: str, *, per_channel: bool = False) -> str | None:
    """How a zero point or scale is given: ``t`` one value, ``c`` one per output channel, None not at all."""
    value = node.values.get(role)
    if value is None:
        return None
    if value.shape is None or (product(*value.shape) == 1 and len(value.shape) < 2):
        return "t"
    if not per_channel:
        raise ArgumentError(f"{value} must be a scalar or have 1 element: {node.operator} has one per tensor")
    return "c"


_FLOATS = ("f16", "f32", "f64")
_BYTES = ("i8", "u8")

_XWB = (Input("X", "x", "T"), Input("W", "w", "T"), Input("B", "bias", "T", optional=True))
_DEFORMABLE = (
    *_XWB[:2],
    Input("offset", "offset", "T"),
    _XWB[2],
    Input("mask", "mask", "T", optional=True),
)
_INTEGER = (
    Input("x", "x", "T1"),
    Input("w", "w", "T2"),
    Input("x_zero_point", "zx", "T1", optional=True),
    Input("w_zero_point", "zw", "T2", optional=True),
)
QLINEAR = (
    Input("x", "x", "T1"),
    Input("x_scale", "sx", "tensor(float)"),
    Input("x_zero_point", "zx", "T1"),
    Input("w", "w", "T2"),
    Input("w_scale", "sw", "tensor(float)"),
    Input("w_zero_point", "zw", "T2"),
    Input("y_scale", "sy", "tensor(float)"),
    Input("y_zero_point", "zy", "T3"),
    Input("B", "bias", "T4", optional=True),
)
_CAUSAL = (
    Input("input", "x", "T"),
    Input("weight", "w", "T"),
    Input("bias", "bias", "T", optional=True),
    Input("past_state", "past", "T", optional=True),
)
QLINEAR_TYPES = {"T1": _BYTES, "T2": _BYTES, "T3": _BYTES, "T4": ("i32",), "tensor(float)": ("f32",)}

_WINDOW: Mapping[str, Attribute] = {
    "dilations": integers(least=1),
    "group": integer(1, least=1),
    "kernel_shape": integers(least=1),
    "pads": integers(least=0),
    "strides": integers(least=1),
}
# The empty string is NOTSET to ONNX Runtime and to onnx's reference.
CONV: Mapping[str, Attribute] = {
    "auto_pad": choice(*AUTO_PADS, fold=lambda word: word or "NOTSET"),
    **_WINDOW,
}
CONV_TRANSPOSE: Mapping[str, Attribute] = {
    **CONV,
    "output_padding": integers(least=0),
    "output_shape": integers(least=1),
}
_DEFORM = {**_WINDOW, "offset_group": integer(1, least=1)}
_STATE = {"activation": choice("none", "silu", "swish")}

_T, _T22 = {"T": _FLOATS}, {"T": ("bf16", *_FLOATS)}


_row = partial(Row, "", semantics=("onnx", "onnxruntime"))

OPERATORS: dict[tuple[str, int], Row] = {
    (row.name, row.version): row
    for row in (
        _row("Conv", 1, conv, _XWB, CONV, _T),
        _row("Conv", 11, conv, _XWB, CONV, _T),
        _row("Conv", 22, conv, _XWB, CONV, _T22),
        _row("ConvTranspose", 1, conv_transpose, _XWB, CONV_TRANSPOSE, _T),
        _row("ConvTranspose", 11, conv_transpose, _XWB, CONV_TRANSPOSE, _T),
        _row("ConvTranspose", 22, conv_transpose, _XWB, CONV_TRANSPOSE, _T22),
        _row("ConvInteger", 10, conv_integer, _INTEGER, CONV, {"T1": _BYTES, "T2": _BYTES}),
        _row("QLinearConv", 10, qlinear_conv, QLINEAR, CONV, QLINEAR_TYPES),
        _row("DeformConv", 19, deform_conv, _DEFORMABLE, _DEFORM, _T),
        _row("DeformConv", 22, deform_conv, _DEFORMABLE, _DEFORM, _T22),
        _row("CausalConvWithState", 27, causal_conv, _CAUSAL, _STATE, {"T": ("bf16", "f16", "f32")}),
    )
}
"""Every operator by name and the version of the operator set that introduced it."""


def lookup(name: str, opset: int) -> int:
    """Version of an operator that holds in an operator set: the newest not above it.

    Raises
    ------
    Unsupported
        If there is none.
    """
    return newest("onnx", [v for n, v in OPERATORS if n == name], name, opset)


_FACTORIES = factories(OPERATORS.values())


def __getattr__(name: str) -> Factory:
    return named(_FACTORIES, name, __name__)


def __dir__() -> list[str]:
    return [*__all__, *_FACTORIES]
