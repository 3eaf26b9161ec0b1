"""Rewrites of ONNX graphs in which nodes that quantise stand round those that compute: into integer operators.

A tensor of integers q with a scale s and a zero point z stands for ``s (q - z)``.  The one idea: what DequantizeLinear
and QuantizeLinear do round a convolution is what QLinearConv does, with the sums exact.  It runs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyconv.models.elements import BY_TYPE
from polyconv.models.graph import Array, Node
from polyconv.models.onnx_products import one_axis
from polyconv.models.rewriting import Change, View

__all__ = [
    "ON_REAL_NUMBERS", "integer_convolution", "integer_pooling", "integer_product", "integer_weights",
    "on_real_numbers", "real_product",
]  # fmt: skip

_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
_CLIPPING = ("Relu", "Clip")
_NEAR = 1e-5
"""How near the scale of a bias is to that of the sums, relatively, where it was computed as theirs in f32."""


@dataclass(frozen=True, slots=True)
class _Quantity:
    """What stands for real values: the integers' name, and scale and zero point as arrays."""

    node: Node
    integers: str
    scale: Array
    zero: Array


def _quantity(node: Node | None, view: View, op: str) -> _Quantity | None:
    """A DequantizeLinear or QuantizeLinear with constant quantities of 8-bit integers; None if it is none."""
    if node is None or node.op != op or node.domain or set(node.attributes) - {"axis"}:
        return None
    scale, zero = view.constant(node, 1), view.constant(node, 2)
    if scale is None or scale.dtype != np.float32 or not ((scale > 0) & np.isfinite(scale)).all():
        return None
    if zero is None:
        if len(node.inputs) > 2 and node.inputs[2]:
            return None
        kind = _type(node, view) if op == "DequantizeLinear" else np.dtype(np.uint8)
        if kind is None:
            return None
        zero = np.zeros(scale.shape, kind)
    if scale.ndim > 1 or zero.size not in (1, scale.size):
        return None
    return _Quantity(node, node.inputs[0] if op == "DequantizeLinear" else node.outputs[0], scale, zero)


def _type(node: Node, view: View) -> np.dtype[Any] | None:
    """Element type of what a node reads."""
    constant, value = view.constant(node, 0), view.values.get(node.inputs[0])
    if constant is not None:
        return constant.dtype
    row = None if value is None else BY_TYPE.get(value.type)
    return None if row is None else row.numpy


def _tensor_wide(found: _Quantity | None) -> _Quantity | None:
    """A quantity with one scale and one zero point, of bytes."""
    if found is None or found.scale.size != 1 or found.zero.size != 1 or found.zero.dtype not in _BYTES:
        return None
    return found


def _of_channels(found: _Quantity | None, rank: int) -> _Quantity | None:
    """A quantity of bytes with one zero point, and with one scale or one for each channel."""
    if found is None or found.zero.dtype not in _BYTES or not found.zero.size:
        return None
    zero, scale = found.zero.reshape(-1), found.scale
    if (zero != zero[0]).any() or (scale.size > 1 and found.node.attributes.get("axis", 1) not in (1, 1 - rank)):
        return None
    return replace(found, scale=scale if scale.size > 1 else scale.reshape(()), zero=zero[:1].reshape(()))


def _quantised(value: float, to: _Quantity) -> set[int]:
    """QuantizeLinear of a number, by every scale."""
    info = np.iinfo(to.zero.dtype)
    if math.isinf(value):
        return {int(info.max if value > 0 else info.min)}
    steps = np.rint(np.float32(value) / to.scale.reshape(-1)).astype(np.float64) + int(to.zero.reshape(-1)[0])
    return {int(step) for step in np.clip(steps, info.min, info.max)}


def _bounds(node: Node, view: View) -> tuple[float, float] | None:
    """Between what a Relu or a Clip with constant bounds holds values."""
    if node.op == "Relu":
        return 0.0, math.inf
    if node.version < 11:
        return float(node.attributes.get("min", -math.inf)), float(node.attributes.get("max", math.inf))
    found = []
    for position, absent in ((1, -math.inf), (2, math.inf)):
        given = view.constant(node, position)
        is_given = len(node.inputs) > position and bool(node.inputs[position])
        if is_given and (given is None or given.size != 1):
            return None
        found.append(absent if given is None else float(given.reshape(-1)[0]))
    return (found[0], found[1]) if found[0] <= found[1] else None


def integer_convolution(conv: Node, view: View) -> Change | None:
    """``QuantizeLinear([Relu](Conv(Dequantize(x), Dequantize(w), b)))`` -> ``[Clip](QLinearConv(x, w, b))``.

    A Relu or Clip commutes with quantising, which keeps order; where the result's type holds it in anyway, it goes.
    Channels of x, where each is convolved alone, and of the result may have scales of their own: they are factors of
    the weights', ``y = round(sx sw sum / sy)``.
    """
    w = _weights(conv, view) if len(conv.outputs) == 1 else None
    if w is None:
        return None
    integers = view.constants[w.integers]
    x = _of_channels(_quantity(view.makers.get(conv.inputs[0]), view, "DequantizeLinear"), integers.ndim)
    taken, bounds = [conv], None
    following = view.only_reader(conv.outputs[0])
    if following is not None and following.op in _CLIPPING and not following.domain:
        bounds = _bounds(following, view)
        if bounds is None:
            return None
        taken.append(following)
        following = view.only_reader(following.outputs[0])
    y = _of_channels(_quantity(following, view, "QuantizeLinear"), integers.ndim)
    if x is None or y is None or following is None or following.inputs[0] != taken[-1].outputs[0]:
        return None
    taken.append(following)
    limits = np.iinfo(y.zero.dtype)
    ends = [{limits.min}, {limits.max}] if bounds is None else [_quantised(bound, y) for bound in bounds]
    outputs, groups = len(integers), conv.attributes.get("group", 1)
    is_alone = integers.shape[1] == 1 and x.scale.size == groups and outputs % groups == 0
    if (x.scale.ndim and not is_alone) or (y.scale.ndim and y.scale.size != outputs):
        return None
    x, w = _folded(x, w, np.repeat(x.scale, outputs // groups) if x.scale.ndim else None)
    bias = _bias(conv, view, x, w, integers)
    y, w = _folded(y, w, 1 / y.scale if y.scale.ndim else None)
    if bias is None or any(len(end) > 1 for end in ends) or not _is_moderate(x, w, y):
        return None
    constants: dict[str, Array] = {
        view.fresh(f"{role} of {conv.outputs[0]}"): array
        for role, array in (
            ("x_scale", x.scale.reshape(())), ("x_zero_point", x.zero.reshape(())), ("w_scale", w.scale),
            ("w_zero_point", w.zero), ("y_scale", y.scale.reshape(())), ("y_zero_point", y.zero.reshape(())),
            *((("bias", bias),) if bias.size else ()),
        )
    }  # fmt: skip
    sx, zx, sw, zw, sy, zy, *b = constants
    file = tuple(node for each in taken for node in each.of_file)
    operands = x.integers, sx, zx, w.integers, sw, zw, sy, zy, *b
    made = Node(conv.name, "QLinearConv", "", conv.version, operands, y.node.outputs, conv.attributes, stands_for=file)
    low, high = (end.pop() for end in ends)
    if (low, high) == (limits.min, limits.max):
        return Change(tuple(taken), (made,), constants)
    if view.opsets[""] < 12:  # no Clip of bytes
        return None
    inner = view.fresh(f"unclipped {y.integers}")
    held = {view.fresh(f"{end} of {y.integers}"): np.array(value, y.zero.dtype)
            for end, value in (("least", low), ("most", high))}  # fmt: skip
    clip = Node(taken[1].name, "Clip", "", view.opsets[""], (inner, *held), y.node.outputs, stands_for=taken[1].of_file)
    made = replace(made, outputs=(inner,), stands_for=(*conv.of_file, *y.node.of_file))
    return Change(tuple(taken), (made, clip), constants | held)


def _folded(quantity: _Quantity, w: _Quantity, factor: Array | None) -> tuple[_Quantity, _Quantity]:
    """A quantity whose scale is 1, and weights whose scales have those of its channels as a factor, if there is one."""
    if factor is None:
        return quantity, w
    zero = np.broadcast_to(w.zero, factor.shape)
    return replace(quantity, scale=np.ones((), np.float32)), replace(w, scale=w.scale * factor, zero=zero)


def _is_moderate(x: _Quantity, w: _Quantity, y: _Quantity) -> bool:
    """Whether the factors from sums to results are normal numbers of f32."""
    sx, sw, sy = (each.scale.astype(np.float64).reshape(-1) for each in (x, w, y))
    factors, limits = sx * sw / sy, np.finfo(np.float32)
    return bool(((factors >= limits.tiny) & (factors <= limits.max)).all())


def _weights(conv: Node, view: View) -> _Quantity | None:
    """Constant weights in bytes, with one scale or one per output channel."""
    found = _quantity(view.makers.get(conv.inputs[1]), view, "DequantizeLinear")
    integers = None if found is None else view.constants.get(found.integers)
    if found is None or integers is None or integers.dtype not in _BYTES or integers.ndim < 3:
        return None
    if found.scale.size == 1:
        return _Quantity(found.node, found.integers, found.scale.reshape(()), found.zero.reshape(-1)[:1].reshape(()))
    axis = found.node.attributes.get("axis", 1)
    if axis not in (0, -integers.ndim) or found.scale.shape != integers.shape[:1]:
        return None
    zero = np.ascontiguousarray(np.broadcast_to(found.zero, found.scale.shape))
    return _Quantity(found.node, found.integers, found.scale, zero)


def _bias(conv: Node, view: View, x: _Quantity, w: _Quantity, integers: Array) -> Array | None:
    """The bias in units of the sums; empty without one, None where it cannot be spelled so."""
    if len(conv.inputs) < 3 or not conv.inputs[2]:
        return np.zeros(0, np.int32)
    unit = np.broadcast_to(x.scale.astype(np.float64).reshape(-1) * w.scale.astype(np.float64), integers.shape[:1])
    real = view.constant(conv, 2)
    found = _quantity(view.makers.get(conv.inputs[2]), view, "DequantizeLinear")
    if real is None and found is not None:
        held: Any = view.constants.get(found.integers)
        if held is None or held.dtype != np.int32 or found.zero.any():
            return None
        relative = found.scale.astype(np.float64) / unit
        is_unit = bool((np.abs(relative - 1.0) < _NEAR).all())
        return np.asarray(held) if is_unit else _whole(held * relative)
    return None if real is None else _whole(real.astype(np.float64) / unit)


def _whole(steps: Array) -> Array | None:
    if not (np.abs(steps) < 2.0**31 - 1).all():
        return None
    return np.rint(steps).astype(np.int32)


def integer_product(node: Node, view: View) -> Change | None:
    """``QuantizeLinear([Relu](Gemm(Dequantize(x), Dequantize(w), b)))`` -> the same of a ``Conv`` of one pixel.

    Views stand before and after it.  ``MatMul`` of a matrix alike.
    """
    x = _tensor_wide(_quantity(view.makers.get(node.inputs[0]), view, "DequantizeLinear"))
    w = _rows(node, view)
    taken = [node]
    following = view.only_reader(node.outputs[0])
    if following is not None and following.op in _CLIPPING and not following.domain:
        taken.append(following)
        following = view.only_reader(following.outputs[0])
    y = _tensor_wide(_quantity(following, view, "QuantizeLinear"))
    if x is None or w is None or y is None or y.node.inputs[0] != taken[-1].outputs[0]:
        return None
    quantity, integers = w
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    maker = view.makers.get(bias)
    held = view.constants.get(maker.inputs[0] if maker is not None and maker.op == "DequantizeLinear" else bias)
    if bias and (held is None or held.shape != integers.shape[:1]):
        return None
    name, version = y.integers, view.opsets[""]
    zx, zw, zy, windows = (view.fresh(f"{role} of {name}") for role in ("zero of x", "zero of w", "zero", "windows"))
    constants: dict[str, Array] = {zx: x.zero, zw: quantity.zero, zy: y.zero, windows: integers[:, :, None]}
    image, sums = view.fresh(f"image of {name}"), view.fresh(f"sums of {name}")
    before, axes = one_axis("Unsqueeze", node, x.integers, image, view)
    after, more = one_axis("Squeeze", y.node, sums, name, view)

    def made(of: Node, op: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> Node:
        return Node(of.name, op, "", version, inputs, (output,), attributes, stands_for=of.of_file)

    along = {"axis": 0} if quantity.scale.size > 1 else {}
    reals = view.fresh(f"real image of {name}"), view.fresh(f"real windows of {name}")
    nodes = [
        before, made(x.node, "DequantizeLinear", (image, x.node.inputs[1], zx), reals[0]),
        made(quantity.node, "DequantizeLinear", (windows, quantity.node.inputs[1], zw), reals[1], **along),
        made(node, "Conv", (*reals, *((bias,) if bias else ())), view.fresh(f"real {name}")),
    ]  # fmt: skip
    for each in taken[1:]:
        inputs = (nodes[-1].outputs[0], *each.inputs[1:])
        nodes.append(made(each, each.op, inputs, view.fresh(f"clipped {name}"), **each.attributes))
    nodes += [made(y.node, "QuantizeLinear", (nodes[-1].outputs[0], y.node.inputs[1], zy), sums), after]
    return Change((*taken, y.node), tuple(nodes), constants | axes | more)


def _rows(node: Node, view: View) -> tuple[_Quantity, Array] | None:
    """Constant weights in bytes of a product with a matrix, outputs first: with one scale, or one per output."""
    found = _quantity(view.makers.get(node.inputs[1]), view, "DequantizeLinear")
    integers = None if found is None else view.constants.get(found.integers)
    x, a = view.values.get(node.inputs[0]), node.attributes
    if found is None or integers is None or integers.ndim != 2 or integers.dtype not in _BYTES:
        return None
    if node.op == "MatMul" and (x is None or x.dims is None or len(x.dims) != 2):
        return None
    if a.get("transA", 0) or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0 or node.version < 7:
        return None
    outputs_first = bool(a.get("transB", 0))
    axis = found.node.attributes.get("axis", 1) % 2
    if found.scale.size > 1 and (axis == outputs_first or found.scale.shape != (integers.shape[axis],)):
        return None
    return found, integers if outputs_first else integers.T


def _between_equals(node: Node, view: View) -> tuple[_Quantity, _Quantity] | None:
    """What a node that makes no new numbers reads and makes, where both have the same quantities."""
    x = _tensor_wide(_quantity(view.makers.get(node.inputs[0]), view, "DequantizeLinear"))
    y = _tensor_wide(_quantity(view.only_reader(node.outputs[0]), view, "QuantizeLinear"))
    if len(node.outputs) != 1 or x is None or y is None or x.zero.dtype != y.zero.dtype:
        return None
    if x.scale.reshape(-1) != y.scale.reshape(-1) or x.zero.reshape(-1) != y.zero.reshape(-1):
        return None
    return x, y


def integer_pooling(node: Node, view: View) -> Change | None:
    """``QuantizeLinear(MaxPool(DequantizeLinear(x)))`` with the same quantities on both sides -> ``MaxPool(x)``.

    The largest of some integers stands for the largest of the values they stand for.  ``Flatten``, ``Reshape``,
    ``Squeeze``, ``Transpose`` and ``Unsqueeze``, which move values, alike.
    """
    found = _between_equals(node, view)
    if found is None or (node.op == "MaxPool" and view.opsets[""] < 12):
        return None
    x, y = found
    made = Node(
        node.name, node.op, "", node.version, (x.integers, *node.inputs[1:]), y.node.outputs, node.attributes,
        stands_for=tuple(each for part in (node, y.node) for each in part.of_file),
    )  # fmt: skip
    return Change((node, y.node), (made,))


def integer_weights(node: Node, view: View) -> Change | None:
    """``QuantizeLinear(w)`` of a constant w -> the integers, a constant."""
    w, name = view.constant(node, 0), node.outputs[0]
    found = _quantity(node, view, "QuantizeLinear")
    if found is None or w is None or w.dtype != np.float32 or found.zero.dtype not in _BYTES or name in view.results:
        return None
    axis = node.attributes.get("axis", 1)
    if found.scale.size > 1 and (not -w.ndim <= axis < w.ndim or found.scale.shape != (w.shape[axis],)):
        return None
    along = (-1, *(1,) * (w.ndim - 1 - axis % max(1, w.ndim))) if found.scale.size > 1 else ()
    scale, zero = found.scale.reshape(along), found.zero.reshape(along if found.zero.size > 1 else ())
    limits = np.iinfo(zero.dtype)
    with np.errstate(over="ignore"):
        quotient = np.rint(w / scale)
    if np.isnan(quotient).any():
        return None
    integers = np.clip(quotient.astype(np.float64) + zero, limits.min, limits.max).astype(zero.dtype)
    known = view.fresh(f"integers {name}")
    return Change((node,), constants={known: integers}, renamed={name: known})


ON_REAL_NUMBERS = {
    "QLinearAdd": ("Add", 2), "QLinearMul": ("Mul", 2), "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearLeakyRelu": ("LeakyRelu", 1), "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
}  # fmt: skip
"""Operators of com.microsoft that quantise: the one that they compute on real numbers, and how many it takes."""


def on_real_numbers(node: Node, view: View) -> Change | None:
    """``com.microsoft.QLinearAdd(a, b)`` -> ``QuantizeLinear(Add(Dequantize(a), Dequantize(b)))``; others alike.

    Others are QLinearMul, QLinearSigmoid, QLinearLeakyRelu and QLinearGlobalAveragePool of channels-first arrays.
    """
    op, count = ON_REAL_NUMBERS[node.op]
    operands = [node.inputs[at : at + 3] for at in range(0, 3 * count, 3)]
    quantities = node.inputs[3 * count :]
    if node.attributes.get("channels_last") or len(node.outputs) != 1:
        return None
    if len(quantities) != 2 or not quantities[1] or any(len(names) < 2 for names in operands):
        return None
    version = view.opsets[""]

    def made(name: str, kind: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> Node:
        read = inputs if inputs[-1] else inputs[:-1]
        return Node(name, kind, "", version, read, (output,), attributes, stands_for=node.of_file)

    result = node.outputs[0]
    reals = tuple(view.fresh(f"{result} real {number}") for number in range(count))
    nodes = [made(real, "DequantizeLinear", names, real) for names, real in zip(operands, reals, strict=True)]
    attributes = {"alpha": node.attributes.get("alpha", 0.01)} if op == "LeakyRelu" else {}
    sums = view.fresh(f"{result} real")
    nodes.append(made(sums, op, reals, sums, **attributes))
    nodes.append(made(node.name, "QuantizeLinear", (sums, *quantities), result))
    return Change((node,), tuple(nodes))


def real_product(node: Node, view: View) -> Change | None:
    """``com.microsoft.QGemm(a, b, c)`` -> ``QuantizeLinear(Gemm(Dequantize(a), Dequantize(b), Dequantize(c)))``."""
    names, attributes, version = node.inputs, node.attributes, view.opsets[""]
    if len(names) != 9 or not all(names[:6] + names[7:]) or version < 13:
        return None
    scales = view.constant(node, 1), view.constant(node, 4)
    if scales[0] is None or scales[1] is None or scales[0].size != 1 or attributes.get("alpha", 1.0) != 1.0:
        return None
    result = node.outputs[0]
    along = 0 if attributes.get("transB", 0) else 1
    reals = [view.fresh(f"{result} real {role}") for role in ("a", "b", "c", "sum")]

    def made(kind: str, inputs: tuple[str, ...], output: str, **words: Any) -> Node:
        return Node(output, kind, "", version, inputs, (output,), words, stands_for=node.of_file)

    nodes = [
        made("DequantizeLinear", names[:3], reals[0]),
        made("DequantizeLinear", names[3:6], reals[1], **({"axis": along} if scales[1].size > 1 else {})),
    ]
    constants: dict[str, Array] = {}
    if names[6]:
        unit = scales[0].reshape(()) * scales[1]
        quantities = view.fresh(f"{result} unit of c"), view.fresh(f"{result} zero of c")
        constants = dict(zip(quantities, (unit, np.zeros(unit.shape, np.int32)), strict=True))
        axis = {"axis": 0} if unit.size > 1 else {}
        nodes.append(made("DequantizeLinear", (names[6], *quantities), reals[2], **axis))
    words = {key: attributes[key] for key in ("transA", "transB") if key in attributes}
    nodes.append(made("Gemm", (*reals[:2], *((reals[2],) if names[6] else ())), reals[3], **words))
    nodes.append(made("QuantizeLinear", (reals[3], *names[7:]), result))
    return Change((node,), tuple(nodes), constants)
