"""The enclosures of what each ONNX operator makes, from those of its inputs: a rule an operator, in a table.

The one idea: most operators move values, keep their order or sum them, and share a rule; the others have formulas of a
few lines.  It must not know which graphs are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polyconv.conformance.enclosure_functions import FUNCTION_UNITS, OF_ONE, Rule, inverted, negated
from polyconv.conformance.enclosure_products import convolution, dequantise, integer_convolution, product, quantise
from polyconv.conformance.enclosures import (
    Array,
    Call,
    Enclosure,
    added,
    at_both_ends,
    exact,
    reference,
    rounded,
    summed,
)
from polyconv.errors import ArgumentError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["RULES", "enclosed", "enclosed_node"]


def enclosed(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Enclosure]:
    """Enclosures of every value of a model.

    Parameters
    ----------
    model : onnx.ModelProto
        Without subgraphs and functions.
    feeds : mapping
        Inputs by name.

    Raises
    ------
    ArgumentError
        If it has an operator without a rule.
    """
    from onnx import numpy_helper

    values = {tensor.name: exact(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    values |= {name: exact(array) for name, array in feeds.items()}
    (opset,) = (row.version for row in model.opset_import if row.domain == "")
    for node in model.graph.node:
        values |= enclosed_node(node, values, opset)
    return values


def enclosed_node(node: NodeProto, values: Mapping[str, Enclosure], opset: int) -> dict[str, Enclosure]:
    """Enclosures of a node's outputs."""
    rule = RULES.get(node.op_type)
    if rule is None or node.domain:
        raise ArgumentError(f"the operator {node.op_type} has no rule; it takes one of {', '.join(sorted(RULES))}")
    with np.errstate(all="ignore"):
        found = rule(Call(node, opset, tuple(values[name] if name else None for name in node.input)))
    return {name: e for name, e in zip(node.output, found, strict=False) if name}


# -- values that are moved, or one of several -------------------------------------------------------


def _moved(call: Call) -> list[Enclosure]:
    """No arithmetic, or one that keeps order: the ends of the results are those of the inputs' ends."""
    dtype = call.at(0).dtype
    return [Enclosure(low, high, dtype) for low, high in at_both_ends(call)]


def _pad(call: Call) -> list[Enclosure]:
    """What is cut off goes first, as numpy only adds."""
    x, rank = call.at(0), len(call.at(0).shape)
    begins, ends = np.split(call.at(1).low, 2)
    kept = tuple(slice(max(0, -b), x.shape[a] - max(0, -e)) for a, (b, e) in enumerate(zip(begins, ends, strict=True)))
    added_to = [(max(0, b), max(0, e)) for b, e in zip(begins, ends, strict=True)]
    mode = call.attribute("mode", "constant")
    value = call.optional(2)
    more = {"constant_values": 0.0 if value is None else float(value.low.reshape(-1)[0])} if mode == "constant" else {}
    assert len(call.given) < 4 and rank == len(begins)
    return [Enclosure(*x.ends(lambda e: np.pad(e[kept], added_to, mode, **more)), x.dtype)]


def _shape(call: Call) -> list[Enclosure]:
    return [exact(np.array(call.at(0).shape, np.int64))]


def _constant(call: Call) -> list[Enclosure]:
    return [exact(array) for array in reference(call, [None if e is None else e.low for e in call.given])]


def _cast(call: Call) -> list[Enclosure]:
    from onnx import helper

    x, dtype = call.at(0), np.dtype(helper.tensor_dtype_to_np_dtype(call.attribute("to")))
    if dtype.kind != "f":
        assert x.low is x.high  # who rounds to integers would need a rule for ties
        return [exact(x.low.astype(dtype))]
    low, high = x.low.astype(np.float64), x.high.astype(np.float64)
    if x.is_float and x.dtype.itemsize <= dtype.itemsize:
        return [Enclosure(low, high, dtype)]
    return [rounded(low, high, dtype, 1)]


# -- arithmetic of two ------------------------------------------------------------------------------


def _multiplied(a: Enclosure, b: Enclosure, units: float = 1) -> Enclosure:
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return rounded(np.minimum.reduce(corners), np.maximum.reduce(corners), a.dtype, units)


def _arithmetic(of_integers: Any, of_floats: Callable[[Enclosure, Enclosure], Enclosure]) -> Rule:
    def rule(call: Call) -> list[Enclosure]:
        a, b = call.at(0), call.at(1)
        if a.is_float:
            return [of_floats(a, b)]
        return [exact(np.asarray(of_integers(a.low, b.low)).astype(a.dtype))]

    return rule


def _sum(call: Call) -> list[Enclosure]:
    found = call.at(0)
    for position in range(1, len(call.given)):
        found = added(found, call.at(position), 2)
    return [found]


# -- sums over axes and windows ---------------------------------------------------------------------


def _reduced(call: Call) -> list[Enclosure]:
    """A sum or mean of many, whose terms' magnitudes are summed alike."""
    x = call.at(0)
    others = [None if e is None else e.low for e in call.given[1:]]
    low, high, size = (reference(call, [each, *others])[0] for each in (x.low, x.high, x.largest))
    return [summed(low, high, x.dtype, x.low.size // max(1, low.size), size)]


def _windows(call: Call, x: Array, fill: float) -> tuple[Array, tuple[int, ...]]:
    """The windows of a pooling, on as many trailing axes as there are spatial ones; ``fill`` stands beyond the ends."""
    k = call.attribute("kernel_shape")
    rank = len(k)
    strides, dilations = (call.attribute(name, [1] * rank) for name in ("strides", "dilations"))
    pads = call.attribute("pads", [0] * (2 * rank))
    up = call.attribute("ceil_mode", 0)
    reach = [d * (taps - 1) + 1 for d, taps in zip(dilations, k, strict=True)]
    out = []
    for axis in range(rank):
        room = x.shape[2 + axis] + pads[axis] + pads[rank + axis] - reach[axis]
        steps = -(-room // strides[axis]) if up else room // strides[axis]
        if up and steps * strides[axis] >= x.shape[2 + axis] + pads[axis]:
            steps -= 1  # a window may not begin behind the input
        out.append(steps + 1)
    whole = [(0, 0), (0, 0)]
    for axis in range(rank):
        behind = (out[axis] - 1) * strides[axis] + reach[axis] - x.shape[2 + axis] - pads[axis]
        whole.append((pads[axis], max(0, behind)))
    x = np.pad(x, whole, constant_values=fill)
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(2, 2 + rank)))
    steps_of = tuple(slice(0, (o - 1) * s + 1, s) for o, s in zip(out, strides, strict=True))
    taps_of = tuple(slice(None, None, d) for d in dilations)
    return seen[(slice(None), slice(None), *steps_of, *taps_of)], tuple(range(2 + rank, 2 + 2 * rank))


def _max_pool(call: Call) -> list[Enclosure]:
    x = call.at(0)

    def pooled(end: Array) -> Array:
        seen, axes = _windows(call, end.astype(np.float64), -np.inf)
        greatest: Array = seen.max(axis=axes)
        return greatest.astype(end.dtype)

    return [Enclosure(*x.ends(pooled), x.dtype)]


def _global_max_pool(call: Call) -> list[Enclosure]:
    x = call.at(0)
    axes = tuple(range(2, len(x.shape)))
    return [Enclosure(x.low.max(axis=axes, keepdims=True), x.high.max(axis=axes, keepdims=True), x.dtype)]


def _average_pool(call: Call) -> list[Enclosure]:
    x = call.at(0)
    seen = np.ones_like(x.low) if not call.attribute("count_include_pad", 0) else None
    count: Any = math.prod(call.attribute("kernel_shape"))
    if seen is not None:
        windows, axes = _windows(call, seen, 0.0)
        count = windows.sum(axis=axes)
    ends = []
    for end in (x.low, x.high, x.largest):
        windows, axes = _windows(call, end, 0.0)
        ends.append(windows.sum(axis=axes) / count)
    return [summed(ends[0], ends[1], x.dtype, math.prod(call.attribute("kernel_shape")), ends[2])]


def _line_axes(call: Call) -> tuple[int, ...]:
    """One axis; before opset 13 all axes from there on."""
    rank, axis = len(call.at(0).shape), call.attribute("axis", -1 if call.opset >= 13 else 1)
    return (axis,) if call.opset >= 13 else tuple(range(axis % rank, rank))


def _softmax(call: Call) -> list[Enclosure]:
    """``exp(x - top) / sum``."""
    x, axes = call.at(0), _line_axes(call)
    top = x.high.max(axis=axes, keepdims=True)
    low, high = x.ends(lambda e: np.exp(e - top))
    sums = [e.sum(axis=axes, keepdims=True) for e in (low, high)]
    terms = math.prod(x.shape[a] for a in axes)
    units = terms + 3 * FUNCTION_UNITS + float(np.max(x.high - x.low.min(), initial=0.0))
    return [rounded(low / (sums[1] - high + low), high / (sums[0] - low + high), x.dtype, units)]


def _log_softmax(call: Call) -> list[Enclosure]:
    """``x - top - ln(sum)``: it grows with its own element and falls with the others."""
    x, axes = call.at(0), _line_axes(call)
    top = x.high.max(axis=axes, keepdims=True)
    falls = x.ends(lambda e: e.astype(np.float64) - top)
    low, high = (np.exp(fall) for fall in falls)
    sums = [e.sum(axis=axes, keepdims=True) for e in (low, high)]
    ends = falls[0] - np.log(sums[1] - high + low), falls[1] - np.log(sums[0] - low + high)
    terms = math.prod(x.shape[a] for a in axes)
    sizes = 2 * np.abs(falls[0]) + math.log(terms) + 1.0
    return [rounded(*ends, x.dtype, terms + 3 * FUNCTION_UNITS, sizes)]


# -- normalisations ---------------------------------------------------------------------------------


def _scaled(x: Enclosure, scale: Array, shift: Array, centre: Array) -> Enclosure:
    """``(x - centre) scale + shift``, whether a product is added to a constant or the difference multiplied."""
    a, b = (x.low - centre) * scale + shift, (x.high - centre) * scale + shift
    size = (x.largest + np.abs(centre)) * np.abs(scale) + np.abs(shift)
    return rounded(np.minimum(a, b), np.maximum(a, b), x.dtype, 8, size)


def _batch_normalisation(call: Call) -> list[Enclosure]:
    x = call.at(0)
    column = (-1,) + (1,) * (len(x.shape) - 2)
    gamma, beta, mean, variance = (call.at(n).low.reshape(column) for n in range(1, 5))
    return [_scaled(x, gamma / np.sqrt(variance + call.attribute("epsilon", 1e-5)), beta, mean)]


def _normalised(x: Enclosure, axes: tuple[int, ...], epsilon: float) -> Enclosure:
    """Mean zero and variance one over axes, whichever formula finds the variance."""
    terms = math.prod(x.shape[a] for a in axes)

    def mean(e: Enclosure) -> Enclosure:
        ends = e.ends(lambda v: np.mean(v, axis=axes, keepdims=True))
        return summed(*ends, x.dtype, terms, np.mean(e.largest, axis=axes, keepdims=True))

    apart = added(x, negated(mean(x)))
    least = np.where((apart.low <= 0) & (apart.high >= 0), 0.0, np.minimum(np.abs(apart.low), np.abs(apart.high)))
    variance = mean(Enclosure(least**2, apart.largest**2, x.dtype))
    squares = np.mean(x.largest**2, axis=axes, keepdims=True)  # of which the mean's square may be taken
    variance = rounded(variance.low, variance.high, x.dtype, 2 * terms + 8, squares)
    root = [np.sqrt(np.maximum(v + epsilon, 0.0)) for v in (variance.low, variance.high)]
    return _multiplied(apart, inverted(rounded(root[0], root[1], x.dtype, 4)), 4)


def _layer_normalisation(call: Call) -> list[Enclosure]:
    x = call.at(0)
    axis = call.attribute("axis", -1) % len(x.shape)
    found = _normalised(x, tuple(range(axis, len(x.shape))), call.attribute("epsilon", 1e-5))
    found = _multiplied(found, call.at(1))
    return [added(found, bias) if (bias := call.optional(2)) else found]


def _instance_normalisation(call: Call) -> list[Enclosure]:
    x = call.at(0)
    column = (-1,) + (1,) * (len(x.shape) - 2)
    scale, bias = (exact(call.at(n).low.astype(x.dtype).reshape(column)) for n in (1, 2))
    found = _normalised(x, tuple(range(2, len(x.shape))), call.attribute("epsilon", 1e-5))
    return [added(_multiplied(found, scale, 4), bias, 4)]


# -- enlarging ------------------------------------------------------------------------------------


def _resize(call: Call) -> list[Enclosure]:
    """No weight of a nearest or linear mode is negative, so ends of results are those of ends."""
    assert call.attribute("mode") != "cubic"
    ((low, high),), x = at_both_ends(call), call.at(0)
    if call.attribute("mode", "nearest") == "nearest":
        return [Enclosure(low, high, x.dtype)]
    largest = float(np.max(x.largest, initial=0.0)) * max(x.shape)  # places are rounded, in units of the extent
    return [rounded(low, high, x.dtype, 8, largest)]


_MOVING = (
    "Clip", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Max",
    "Min", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
)  # fmt: skip

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_MOVING, _moved),
    **OF_ONE,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "GlobalAveragePool"), _reduced),
    "Add": _arithmetic(np.add, added),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalisation,
    "Cast": _cast,
    "Constant": _constant,
    "ConstantOfShape": _constant,
    "Conv": convolution,
    "ConvTranspose": convolution,
    "DequantizeLinear": dequantise,
    "Div": _arithmetic(np.floor_divide, lambda a, b: _multiplied(a, inverted(b), 3)),
    "Gemm": product,
    "GlobalMaxPool": _global_max_pool,
    "InstanceNormalization": _instance_normalisation,
    "LayerNormalization": _layer_normalisation,
    "LogSoftmax": _log_softmax,
    "MatMul": product,
    "MaxPool": _max_pool,
    "Mul": _arithmetic(np.multiply, _multiplied),
    "Pad": _pad,
    "QLinearConv": integer_convolution,
    "QuantizeLinear": quantise,
    "Resize": _resize,
    "Shape": _shape,
    "Softmax": _softmax,
    "Sub": _arithmetic(np.subtract, lambda a, b: added(a, negated(b))),
    "Sum": _sum,
}
"""Operator of ONNX's main domain -> its rule."""
