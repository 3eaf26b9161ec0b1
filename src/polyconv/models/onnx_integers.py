"""Rewrites of ONNX graphs in which nodes that quantise stand round those that compute: into integer operators.

A tensor of integers q with a scale s and a zero point z stands for ``s (q - z)``.  The one idea: what DequantizeLinear
and QuantizeLinear do round a convolution is what QLinearConv does, with the sums exact.  It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import numpy as np

from polyconv.dialects import ort
from polyconv.models.graph import Array, Node
from polyconv.models.onnx_bounds import CLIPPING, bounds_of
from polyconv.models.onnx_products import other_axes
from polyconv.models.onnx_quantities import BYTES, Quantity, convolved, of_channels, quantity, tensor_wide
from polyconv.models.onnx_weights import is_transposed, output_channels
from polyconv.models.rewriting import Change, View

__all__ = ["clipped_sum", "integer_convolution", "integer_product", "integer_sums", "integer_weights", "real_constant",
           "turned_weights"]  # fmt: skip

_REAL = "DequantizeLinear"
_KEPT = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "NhwcConv", "Transpose"))
"""Operators whose constant operands in bytes stay so, while there may be a form of integers."""

_MOST_AXES = 5
"""Of the left operand of a product."""
_NEAR = 1e-5
"""How near the scale of a bias is to that of the sums, relatively, where it was computed as theirs in f32."""


def _quantised(value: float, to: Quantity) -> set[int]:
    """QuantizeLinear of a number, by every scale."""
    info = np.iinfo(to.zero.dtype)
    if math.isinf(value):
        return {int(info.max if value > 0 else info.min)}
    steps = np.rint(np.float32(value) / to.scale.reshape(-1)).astype(np.float64) + int(to.zero.reshape(-1)[0])
    return {int(step) for step in np.clip(steps, info.min, info.max)}


def integer_convolution(conv: Node, view: View) -> Change | None:
    """``QuantizeLinear([Relu](Conv(Dequantize(x), Dequantize(w), b)))`` -> ``[Clip](QLinearConv(x, w, b))``.

    A Relu or Clip commutes with quantising, which keeps order; where the result's type holds it in anyway, it goes.
    Channels of x, where each is convolved alone, and of the result may have scales of their own: they are factors of
    the weights', ``y = round(sx sw sum / sy)``.  ``ConvTranspose`` alike, as ``QLinearConvTranspose``, and ``NhwcConv``
    between quantities of whole tensors.
    """
    w = _weights(conv, view) if len(conv.outputs) == 1 else None
    if w is None:
        return None
    integers, is_last = view.constants[w.integers], conv.op == "NhwcConv"
    outputs = output_channels(conv, integers)
    of_end = tensor_wide if is_last else partial(of_channels, rank=integers.ndim)
    x = of_end(quantity(view.makers.get(conv.inputs[0]), view, _REAL))
    taken, bounds = [conv], None
    following = view.only_reader(conv.outputs[0])
    if following is not None and following.op in CLIPPING and not following.domain:
        bounds = bounds_of(following, view)
        if bounds is None:
            return None
        taken.append(following)
        following = view.only_reader(following.outputs[0])
    y = of_end(quantity(following, view, "QuantizeLinear"))
    if x is None or y is None or following is None or following.inputs[0] != taken[-1].outputs[0]:
        return None
    taken.append(following)
    limits = np.iinfo(y.zero.dtype)
    ends = [{limits.min}, {limits.max}] if bounds is None else [_quantised(bound, y) for bound in bounds]
    both = _with_one_scale(x, w, conv, integers)
    if both is None or (y.scale.ndim and y.scale.size != outputs):
        return None
    x, w = both
    bias = _bias(conv, view, x, w, outputs)
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
    op = "QLinearConvTranspose" if is_transposed(conv) else "QLinearConv"
    kind = (ort.CONTRIB, 1) if is_last or is_transposed(conv) else ("", conv.version)
    words = {**conv.attributes, "channels_last": 1} if is_last else conv.attributes
    made = Node(conv.name, op, *kind, operands, y.node.outputs, words, stands_for=file)
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


def integer_sums(conv: Node, view: View) -> Change | None:
    """``Conv(Dequantize(x), Dequantize(w), b)`` -> ``Add(Mul(Cast(ConvInteger(x, w)), scale), b)``.

    Where real numbers follow, as before an activation or a residual: what is done to each element is one pass then.
    Sums must fit into 32 bits.
    """
    w = _weights(conv, view) if len(conv.outputs) == 1 else None
    if w is None:
        return None
    integers = view.constants[w.integers]
    x = of_channels(quantity(view.makers.get(conv.inputs[0]), view, _REAL), integers.ndim)
    both = None if x is None else _with_one_scale(x, w, conv, integers)
    if both is None or integers[0].size * 255**2 >= 2**31:
        return None
    x, w = both
    bias = _real_bias(conv, view, len(integers))
    if bias is None:
        return None
    scale = (x.scale.astype(np.float64).reshape(-1) * w.scale.astype(np.float64).reshape(-1)).astype(np.float32)
    if not (np.isfinite(scale) & (scale >= np.finfo(np.float32).tiny)).all():
        return None
    name, shape, version = conv.outputs[0], (-1, *(1,) * (integers.ndim - 2)), view.opsets[""]
    held = {"zero of x": x.zero, "zero of w": w.zero, "scale": scale.reshape(shape if scale.size > 1 else ())}
    constants = {view.fresh(f"{role} of {name}"): array for role, array in held.items()}
    zx, zw, factor = constants
    sums, real, scaled = (view.fresh(f"{what} {name}") for what in ("sums of", "real sums of", "scaled sums of"))
    file = conv.of_file
    nodes = [
        Node(conv.name, "ConvInteger", "", 10, (x.integers, w.integers, zx, zw), (sums,), conv.attributes,
             stands_for=file),
        Node(conv.name, "Cast", "", version, (sums,), (real,), {"to": 1}, stands_for=file),
        Node(conv.name, "Mul", "", version, (real, factor), (scaled if bias.size else name,), stands_for=file),
    ]  # fmt: skip
    if bias.size:
        added = view.fresh(f"bias of {name}")
        constants[added] = bias.reshape(shape)
        nodes.append(Node(conv.name, "Add", "", version, (scaled, added), (name,), stands_for=file))
    return Change((conv,), tuple(nodes), constants)


def clipped_sum(relu: Node, view: View) -> Change | None:
    """``QuantizeLinear(Relu(Add(Dequantize(a), Dequantize(b))))`` -> ``[Clip](QuantizeLinear(Add(...)))``.

    Relu commutes with quantising, so that a quantised convolution that makes a takes up the sum; where zero is the
    least byte anyway, it goes.
    """
    add, following = view.makers.get(relu.inputs[0]), view.only_reader(relu.outputs[0])
    y = tensor_wide(quantity(following, view, "QuantizeLinear"))
    if add is None or add.op != "Add" or add.domain or y is None or view.only_reader(add.outputs[0]) is not relu:
        return None
    terms = [tensor_wide(quantity(view.makers.get(name), view, _REAL)) for name in add.inputs]
    if None in terms or not any(term is not None and convolved(term, view) for term in terms):
        return None
    made = replace(y.node, inputs=(add.outputs[0], *y.node.inputs[1:]), origin=None, stands_for=y.node.of_file)
    if y.zero.reshape(-1)[0] == np.iinfo(y.zero.dtype).min:
        made = replace(made, stands_for=(*relu.of_file, *y.node.of_file))
        return Change((relu, y.node), (made,))
    if view.opsets[""] < 12:  # no Clip of bytes
        return None
    inner, least = view.fresh(f"unclipped {y.integers}"), view.fresh(f"least of {y.integers}")
    clip = Node(relu.name, "Clip", "", view.opsets[""], (inner, least), y.node.outputs, stands_for=relu.of_file)
    return Change((relu, y.node), (replace(made, outputs=(inner,)), clip), {least: y.zero.reshape(())})


def _real_bias(conv: Node, view: View, outputs: int) -> Array | None:
    """The bias in real numbers; empty without one, None where it comes with a run."""
    held = _held_bias(conv, view, outputs)
    if held is None:
        return None
    numbers, scale = held
    if scale is None:
        return numbers if numbers.dtype == np.float32 else None
    return numbers.astype(np.float32) * scale


def _held_bias(conv: Node, view: View, outputs: int) -> tuple[Array, Array | None] | None:
    """A constant bias: real numbers and no scale, or integers and theirs; empty without one.

    None where it comes with a run, or is not as long as there are outputs: whoever computes it says so.
    """
    if len(conv.inputs) < 3 or not conv.inputs[2]:
        return np.zeros(0, np.float32), None
    real, found = view.constant(conv, 2), quantity(view.makers.get(conv.inputs[2]), view, _REAL)
    integers = None if found is None else view.constants.get(found.integers)
    if real is not None:
        return (real, None) if real.shape == (outputs,) else None
    if found is None or integers is None or integers.dtype != np.int32 or found.zero.any():
        return None
    return (integers, found.scale) if integers.shape == (outputs,) else None


def _with_one_scale(x: Quantity, w: Quantity, conv: Node, integers: Array) -> tuple[Quantity, Quantity] | None:
    """An input with one scale, and weights: scales of channels that are convolved alone go into theirs."""
    outputs, groups = output_channels(conv, integers), conv.attributes.get("group", 1)
    if not x.scale.ndim:
        return x, w
    if integers.shape[1] != 1 or x.scale.size != groups or outputs % groups:
        return None
    return _folded(x, w, np.repeat(x.scale, outputs // groups))


def _folded(quantity: Quantity, w: Quantity, factor: Array | None) -> tuple[Quantity, Quantity]:
    """A quantity whose scale is 1, and weights whose scales have those of its channels as a factor, if there is one."""
    if factor is None:
        return quantity, w
    zero = np.broadcast_to(w.zero, factor.shape)
    return replace(quantity, scale=np.ones((), np.float32)), replace(w, scale=w.scale * factor, zero=zero)


def _is_moderate(x: Quantity, w: Quantity, y: Quantity) -> bool:
    """Whether the factors from sums to results are normal numbers of f32."""
    sx, sw, sy = (each.scale.astype(np.float64).reshape(-1) for each in (x, w, y))
    factors, limits = sx * sw / sy, np.finfo(np.float32)
    return bool(((factors >= limits.tiny) & (factors <= limits.max)).all())


def _weights(conv: Node, view: View) -> Quantity | None:
    """Constant weights in bytes, with one scale or one per output channel."""
    found = quantity(view.makers.get(conv.inputs[1]), view, "DequantizeLinear")
    integers = None if found is None else view.constants.get(found.integers)
    if found is None or integers is None or integers.dtype not in BYTES or integers.ndim < 3:
        return None
    if found.scale.size == 1:
        return Quantity(found.node, found.integers, found.scale.reshape(()), found.zero.reshape(-1)[:1].reshape(()))
    axis = int(is_transposed(conv))
    if found.node.attributes.get("axis", 1) not in (axis, axis - integers.ndim):
        return None
    if found.scale.shape != (integers.shape[axis],):
        return None
    times = output_channels(conv, integers) // max(1, integers.shape[axis])  # groups have the same
    zero = np.broadcast_to(found.zero, found.scale.shape)
    return Quantity(found.node, found.integers, np.tile(found.scale, times), np.tile(zero, times))


def _bias(conv: Node, view: View, x: Quantity, w: Quantity, outputs: int) -> Array | None:
    """The bias in units of the sums; empty without one, None where it cannot be spelled so."""
    held = _held_bias(conv, view, outputs)
    if held is None:
        return None
    numbers, scale = held
    if not numbers.size:
        return np.zeros(0, np.int32)
    unit = np.broadcast_to(x.scale.astype(np.float64).reshape(-1) * w.scale.astype(np.float64), (outputs,))
    if scale is None:
        return _whole(numbers.astype(np.float64) / unit)
    relative = scale.astype(np.float64) / unit
    return numbers if bool((np.abs(relative - 1.0) < _NEAR).all()) else _whole(numbers * relative)


def _whole(steps: Array) -> Array | None:
    if not (np.abs(steps) < 2.0**31 - 1).all():
        return None
    return np.rint(steps).astype(np.int32)


def integer_product(node: Node, view: View) -> Change | None:
    """``QuantizeLinear([Relu](MatMul(x, Dequantize(w))))``, or ``Gemm`` -> the same of a convolution of 1x1 windows.

    Rows of an x of 3 to 5 axes are pixels with channels last; those of a matrix are images of one pixel, between views,
    whatever follows them.
    """
    found, rank = _rows(node, view), _rank_of(node, view)
    following = view.only_reader(node.outputs[0])
    if following is not None and following.op in CLIPPING and not following.domain:
        following = view.only_reader(following.outputs[0])
    before, after = quantity(view.makers.get(node.inputs[0]), view, _REAL), quantity(following, view, "QuantizeLinear")
    if found is None or rank is None or tensor_wide(before) is None or (rank > 2 and tensor_wide(after) is None):
        return None
    of_w, integers = found
    x, name, version = node.inputs[0], node.outputs[0], view.opsets[""]
    windows, zero, real = (view.fresh(f"{role} of {name}") for role in ("windows", "zero of windows", "real windows"))
    shape = *integers.shape, *(1,) * max(1, rank - 2)
    zeros = np.ascontiguousarray(np.broadcast_to(of_w.zero.reshape((-1,) * of_w.scale.ndim), of_w.scale.shape))
    constants: dict[str, Array] = {windows: integers.reshape(shape), zero: zeros}
    read, axis = (windows, of_w.node.inputs[1], zero), {"axis": 0} if of_w.scale.size > 1 else {}
    made = Node(of_w.node.name, _REAL, "", version, read, (real,), axis, stands_for=of_w.node.of_file)
    if rank > 2:
        conv = Node(node.name, "NhwcConv", ort.CONTRIB, 1, (x, real), node.outputs, stands_for=node.of_file)
        return Change((node,), (made, conv), constants)
    image, sums = view.fresh(f"image of {name}"), view.fresh(f"image {name}")
    there, axes = other_axes("Unsqueeze", node, x, image, (2,), view)
    back, _ = other_axes("Squeeze", node, sums, name, (2,), view)
    inputs = image, real, *node.inputs[2:]
    conv = Node(node.name, "Conv", "", version, inputs, (sums,), stands_for=node.of_file)
    return Change((node,), (there, made, conv, back), constants | axes)


def _rank_of(node: Node, view: View) -> int | None:
    """Axes of the left operand of a product, as far as a file says it; None where they are too many or too few."""
    if node.op == "Gemm":
        return 2
    maker = view.makers.get(node.inputs[0])
    for name in (node.inputs[0], *(() if maker is None else maker.inputs[:1])):
        value = view.values.get(name)
        if value is not None and value.dims is not None:
            return len(value.dims) if 2 <= len(value.dims) <= _MOST_AXES else None
    return None


def _rows(node: Node, view: View) -> tuple[Quantity, Array] | None:
    """Constant weights in bytes of a product with a matrix, outputs first: with one scale, or one per output.

    What it adds is constant, too, and one number for each output.
    """
    found = quantity(view.makers.get(node.inputs[1]), view, "DequantizeLinear")
    integers = None if found is None else view.constants.get(found.integers)
    a = node.attributes
    if found is None or integers is None or integers.ndim != 2 or integers.dtype not in BYTES:
        return None
    if a.get("transA", 0) or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0 or node.version < 7:
        return None
    outputs_first = bool(a.get("transB", 0))
    axis = found.node.attributes.get("axis", 1) % 2
    if found.scale.size > 1 and (axis == outputs_first or found.scale.shape != (integers.shape[axis],)):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    maker = view.makers.get(bias)
    added = view.constants.get(maker.inputs[0] if maker is not None and maker.op == _REAL else bias)
    rows = integers if outputs_first else integers.T
    return None if bias and (added is None or added.shape != rows.shape[:1]) else (found, rows)


def _shape_along(node: Node, found: Quantity, array: Array) -> tuple[int, ...] | None:
    """The shape in which scales and zero points are broadcast to an array along their axis; None if they do not fit."""
    axis, rank = node.attributes.get("axis", 1), array.ndim
    if found.scale.size == 1:
        return ()
    if not -rank <= axis < rank or found.scale.shape != (array.shape[axis],):
        return None
    return (-1, *(1,) * (rank - 1 - axis % rank))


def integer_weights(node: Node, view: View) -> Change | None:
    """``QuantizeLinear(w)`` of a constant w -> the integers, a constant."""
    w, name = view.constant(node, 0), node.outputs[0]
    found = quantity(node, view, "QuantizeLinear")
    if found is None or w is None or w.dtype != np.float32 or found.zero.dtype not in BYTES or name in view.results:
        return None
    shape = _shape_along(node, found, w)
    if shape is None:
        return None
    scale, zero = found.scale.reshape(shape), found.zero.reshape(shape if found.zero.size > 1 else ())
    limits = np.iinfo(zero.dtype)
    with np.errstate(over="ignore"):
        quotient = np.rint(w / scale)
    if np.isnan(quotient).any():
        return None
    integers = np.clip(quotient.astype(np.float64) + zero, limits.min, limits.max).astype(zero.dtype)
    known = view.fresh(f"integers {name}")
    return Change((node,), constants={known: np.asarray(integers)}, renamed={name: known})


def turned_weights(node: Node, view: View) -> Change | None:
    """``Transpose(DequantizeLinear(q))`` of a constant q -> ``DequantizeLinear`` of the integers, turned."""
    real = view.makers.get(node.inputs[0])
    found = quantity(real, view, _REAL)
    integers = None if found is None else view.constants.get(found.integers)
    if real is None or found is None or integers is None or integers.dtype not in BYTES:
        return None
    rank, axis = integers.ndim, real.attributes.get("axis", 1)
    perm = list(node.attributes.get("perm", range(rank - 1, -1, -1)))
    if sorted(perm) != list(range(rank)) or (found.scale.size > 1 and not -rank <= axis < rank):
        return None
    words = {"axis": perm.index(axis % rank)} if found.scale.size > 1 else {}
    name = view.fresh(f"integers {node.outputs[0]}")
    inputs = (name, *real.inputs[1:])
    made = Node(real.name, _REAL, "", real.version, inputs, node.outputs, words, stands_for=node.of_file)
    return Change((node,), (made,), {name: np.ascontiguousarray(integers.transpose(perm))})


def real_constant(node: Node, view: View, *, kept: Collection[str] = _KEPT) -> Change | None:
    """``DequantizeLinear(q)`` of a constant q -> the real numbers, but for operands of those that are kept integers."""
    integers, name = view.constant(node, 0), node.outputs[0]
    found = quantity(node, view, _REAL)
    if found is None or integers is None or name in view.results or found.zero.dtype != integers.dtype:
        return None
    if any(reader.op in kept for reader in view.readers.get(name, ())):
        return None
    shape = _shape_along(node, found, integers)
    if shape is None:
        return None
    zero = found.zero.astype(np.int32)
    known = view.fresh(f"real {name}")
    reals = (integers.astype(np.int32) - zero.reshape(shape)).astype(np.float32) * found.scale.reshape(shape)
    return Change((node,), constants={known: np.asarray(reals)}, renamed={name: known})

