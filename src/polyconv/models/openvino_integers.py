"""Layers of an IR that quantise, and convolutions with weights in bytes, in terms of ONNX.

OpenVINO writes real numbers that stand for integers: FakeQuantize rounds to one of 256 levels, weights are bytes that
Convert, Subtract and Multiply turn into floats.  The one idea: levels are integers with a scale and a zero point, so
that such a layer is QuantizeLinear and DequantizeLinear, and such weights are DequantizeLinear of the bytes; what is
made of that ONNX's rules know.  It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from polyconv.models.graph import Array, Node, along
from polyconv.models.openvino_layer import AUTO_PADS, Layer

__all__ = ["CONVOLUTIONS", "levels_of", "of_bytes"]

CONVOLUTIONS = {
    "Convolution": "Conv", "GroupConvolution": "Conv",
    "ConvolutionBackpropData": "ConvTranspose", "GroupConvolutionBackpropData": "ConvTranspose",
}  # fmt: skip
"""Layers whose weights may be bytes, and what they are to ONNX."""

_LEVELS = 256
_NEAR = 1e-3
"""How far a zero point may be from a whole number, which ranges are meant to make it."""
_TINY = np.finfo(np.float32).tiny


def levels_of(node: Node, layer: Layer, rank: int) -> tuple[tuple[Node, Node], dict[str, Array]] | None:
    """A FakeQuantize to 256 levels of one range, or of one a channel, as what makes integers and what turns them back.

    Their scale and zero point are constants: a value is ``scale (integers - zero)``.  None for any other.
    """
    ends = [layer.constant(at) for at in range(1, 5)]
    if layer.numbers("levels", "0") != [_LEVELS] or layer.text("auto_broadcast", "numpy") != "numpy":
        return None
    numbers = [None if end is None else along(end, rank, 1) for end in ends]
    if any(each is None for each in numbers) or len({each.size for each in numbers if each is not None}) > 1:
        return None
    found = _scale_of([each for each in numbers if each is not None], _LEVELS)
    if found is None or not ((found[1] <= 0) & (found[1] > -_LEVELS)).all():
        return None
    scale, zero = found[0], -found[1]
    name, shape = node.outputs[0], () if scale.size == 1 else scale.shape
    constants: dict[str, Array] = {
        f"scale of {name}": scale.reshape(shape).astype(np.float32),
        f"zero point of {name}": zero.reshape(shape).astype(np.uint8),
    }
    axis, integers = {"axis": 1} if shape else {}, f"integers of {name}"
    first, second = (
        Node(node.name, op, "", 13, (read, *constants), (made,), axis, stands_for=(node,))
        for op, read, made in (("QuantizeLinear", node.inputs[0], integers), ("DequantizeLinear", integers, name))
    )
    return (first, second), constants


def _scale_of(ends: Sequence[Array], levels: int) -> tuple[Array, Array] | None:
    """What a level is, and the number of the least one, of the same ranges before and behind; None of others.

    ``ends`` are the lower and the upper one before, and those behind.
    """
    low, high, *made = (end.astype(np.float64) for end in ends)
    scale = (high - low) / (levels - 1)
    if not all(map(np.array_equal, made, (low, high))) or not (np.isfinite(scale) & (scale > _TINY)).all():
        return None
    least = np.rint(low / scale)
    return None if (abs(least - low / scale) > _NEAR).any() else (scale, least)


def of_bytes(conv: Layer, makers: Mapping[str, Node]) -> tuple[tuple[Node, Node], dict[str, Array]] | None:
    """A convolution with weights in bytes in terms of ONNX, and the constants that it reads.

    Parameters
    ----------
    conv : Layer
        One of ``CONVOLUTIONS``.
    makers : mapping
        Layers that make values of constants alone.

    Returns
    -------
    ((Node, Node), dict) or None
        DequantizeLinear of the weights, and Conv or ConvTranspose; None where the weights are none of bytes.
    """
    if len(conv.node.inputs) != 2:
        return None  # a wrong one, as whoever makes it ready says, or one that is told its extents
    weights, attributes = _weights(conv, makers), _attributes(conv)
    if weights is None or attributes is None:
        return None
    name, op = conv.node.outputs[0], CONVOLUTIONS[conv.node.op]
    parts = {f"{role} of {name}": a for role, a in zip(("bytes", "scales", "zeros"), weights, strict=True)}
    real, axis = f"real weights of {name}", {"axis": int(_is_transposed(conv))} if weights[1].size > 1 else {}
    if weights[1].size == 1:
        parts = {name: a.reshape(()) if a.size == 1 and a is not weights[0] else a for name, a in parts.items()}
    made = Node("", "DequantizeLinear", "", 13, tuple(parts), (real,), axis)
    inputs = conv.node.inputs[0], real
    return (made, Node(conv.node.name, op, "", 13, inputs, (name,), attributes, stands_for=(conv.node,))), parts


def _is_transposed(conv: Layer) -> bool:
    return CONVOLUTIONS[conv.node.op] == "ConvTranspose"


def _attributes(conv: Layer) -> dict[str, object] | None:
    """Those of ONNX's Conv or ConvTranspose; None where padding is of another kind."""
    auto, is_transposed = AUTO_PADS.get(conv.text("auto_pad", "explicit")), _is_transposed(conv)
    if auto is None or (is_transposed and auto != "NOTSET"):
        return None
    found: dict[str, object] = {"strides": conv.numbers("strides"), "dilations": conv.numbers("dilations")}
    if is_transposed and any(more := conv.numbers("output_padding", "0")):
        steps = zip(more, conv.numbers("strides"), conv.numbers("dilations"), strict=False)
        if any(not 0 <= extra < max(step, dilation) for extra, step, dilation in steps):
            return None  # ONNX has none of these
        found["output_padding"] = more
    if conv.node.op.startswith("Group"):
        dims = conv.known(conv.node.inputs[1]).dims
        if dims is None:
            return None
        found["group"] = dims[0]
    if auto != "NOTSET":
        return found | {"auto_pad": auto}
    return found | {"pads": [*conv.numbers("pads_begin"), *conv.numbers("pads_end")]}


def _weights(conv: Layer, makers: Mapping[str, Node]) -> tuple[Array, Array, Array] | None:
    """Bytes, scales and zero points of weights that are made of them, or rounded to levels."""
    dims = tuple(extent for extent in conv.known(conv.node.inputs[1]).dims or () if isinstance(extent, int))
    maker = makers.get(conv.node.inputs[1])
    if maker is not None and maker.op == "Reshape":
        maker = makers.get(maker.inputs[0])
    read = {"Multiply": _multiplied, "FakeQuantize": _rounded}.get("" if maker is None else maker.op)
    found = None if maker is None or read is None else read(maker, conv, makers)
    if found is None or not dims or found[0].size != math.prod(dims):
        return None
    integers, scale, zero = found
    grouped = conv.node.op.startswith("Group")
    first = dims[0] * (dims[1] if grouped else 1)
    if _is_transposed(conv):
        fits = [a.size == 1 or (not grouped and _is_along(a, integers, dims)) for a in (scale, zero)]
    else:
        fits = [_is_by_output(a, integers, first) for a in (scale, zero)]
    if not all(fits):
        return None
    whole = np.broadcast_to(zero.reshape(-1), scale.size if zero.size == 1 else zero.size).astype(integers.dtype)
    if (whole != zero.reshape(-1)).any() or whole.size != scale.size:
        return None
    return integers.reshape(first, -1, *dims[2 + grouped :]), scale.reshape(-1), whole


def _multiplied(maker: Node, conv: Layer, makers: Mapping[str, Node]) -> tuple[Array, Array, Array] | None:
    """Of ``Multiply([Subtract](Convert(bytes), zeros), scales)``."""
    scale, inner = _number(maker.inputs[1], conv, makers), makers.get(maker.inputs[0])
    zero = None if scale is None else np.zeros(scale.shape, np.float32)
    if inner is not None and inner.op == "Subtract":
        zero, inner = _number(inner.inputs[1], conv, makers), makers.get(inner.inputs[0])
    integers = None if inner is None or inner.op != "Convert" else conv.constants.get(inner.inputs[0])
    if integers is None or integers.dtype not in (np.int8, np.uint8) or scale is None or zero is None:
        return None
    return integers, scale, zero


def _rounded(maker: Node, conv: Layer, makers: Mapping[str, Node]) -> tuple[Array, Array, Array] | None:
    """Of ``FakeQuantize(weights)`` to at most 256 levels of the ranges that it has before and behind."""
    layer = Layer(maker, conv.known, conv.constants)
    ends, inner = [layer.constant(at) for at in range(1, 5)], makers.get(maker.inputs[0])
    levels, dims = layer.numbers("levels"), layer.dims
    real = conv.constants.get(maker.inputs[0] if inner is None or inner.op != "Reshape" else inner.inputs[0])
    if real is None or dims is None or any(end is None for end in ends) or not levels or not 2 < levels[0] <= _LEVELS:
        return None
    found = _scale_of([end for end in ends if end is not None], levels[0])
    if found is None:
        return None
    scale, least = found
    low, high = (end.astype(np.float64) for end in ends[:2] if end is not None)
    steps = np.rint(np.clip(real.reshape(dims), low, high) / scale)
    if np.isnan(steps).any() or steps.shape != tuple(dims):
        return None
    if (abs(steps + 0.5) < 128).all():
        return steps.astype(np.int8), scale.astype(np.float32), np.zeros(scale.shape, np.float32)
    return (steps - least).astype(np.uint8), scale.astype(np.float32), -least


def _is_by_output(numbers: Array, integers: Array, outputs: int) -> bool:
    """Whether numbers that are broadcast to weights are one of all, or one of each output channel."""
    if numbers.size == 1:
        return True
    leading = 1 if integers.shape[0] == outputs else 2
    aligned = (1,) * (integers.ndim - numbers.ndim) + numbers.shape
    return numbers.size == outputs and aligned[:leading] == integers.shape[:leading]


def _is_along(numbers: Array, integers: Array, dims: tuple[int, ...]) -> bool:
    """Whether numbers that are broadcast to weights (c, m, ...) are one of each output channel."""
    aligned = (1,) * (integers.ndim - numbers.ndim) + numbers.shape
    return integers.shape == dims and aligned == (1, dims[1], *(1,) * (len(dims) - 2))


def _number(name: str, layer: Layer, makers: Mapping[str, Node]) -> Array | None:
    """A constant, or one that is stored in another type."""
    maker = makers.get(name)
    held = layer.constants.get(name if maker is None or maker.op != "Convert" else maker.inputs[0])
    return None if held is None else held.astype(np.float32)
