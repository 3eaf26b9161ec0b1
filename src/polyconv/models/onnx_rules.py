"""Rewrites of ONNX graphs: what they look for, and what takes its place.

Each rule stands with the graph before and after it.  The one idea: a rule fires only where all that it needs is known,
and says whether bits may change.  It runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from polyconv.dialects import ort
from polyconv.models.activations import activation_of
from polyconv.models.elements import BY_ONNX
from polyconv.models.graph import Array, Node, along
from polyconv.models.native import OWN
from polyconv.models.onnx_bounds import clipped
from polyconv.models.onnx_branches import branches
from polyconv.models.onnx_channels import biased, channels_first
from polyconv.models.onnx_dynamic import constant_zero, product_of_bytes, spanning
from polyconv.models.onnx_integers import (
    clipped_sum,
    integer_convolution,
    integer_product,
    integer_sums,
    integer_weights,
    real_constant,
    turned_weights,
)
from polyconv.models.onnx_joins import activated_parts, normalised_parts
from polyconv.models.onnx_moves import MOVES, again_the_same, joined_as_bytes, moved_as_bytes, quantised_before
from polyconv.models.onnx_norms import centred_lines, grouped_lines, scaled_lines
from polyconv.models.onnx_orders import added_product, attention, later_turned, scaled_product, turned_product
from polyconv.models.onnx_products import (
    ACTIVATIONS,
    ALL_FLOATS,
    activated_before,
    linear,
    product,
    same_shape,
    scaled_rows,
    there_and_back,
    turned,
)
from polyconv.models.onnx_qlinear import (
    ON_REAL_NUMBERS,
    joined_on_real_numbers,
    on_real_numbers,
    real_product,
    real_rows,
)
from polyconv.models.onnx_recurrent import recurrent
from polyconv.models.onnx_scatters import written_over
from polyconv.models.onnx_sums import sums_of_products
from polyconv.models.onnx_weights import held_weights, normalisation, output_channels, scaled_weights, with_weights
from polyconv.models.operators import has_row
from polyconv.models.rewriting import Change, Rule, View, standing_for
from polyconv.models.spelled import spelled_out

__all__ = ["LAST_RULES", "LATE_RULES", "ON_GPU", "RULES"]


def same_value(node: Node, view: View) -> Change | None:
    """``y = Identity(x)``, ``y = Dropout(x)``, ``y = Cast(x)`` to its own type -> ``x``."""
    if node.op == "Dropout" and not _is_no_dropout(node, view):
        return None
    if node.op == "Cast":
        row = BY_ONNX.get(node.attributes.get("to", 0))
        value = view.values.get(node.inputs[0])
        if row is None or value is None or row.type != value.type:
            return None
    if any(name in view.readers or name in view.results for name in node.outputs[1:]):
        return None
    return Change((node,), renamed={node.outputs[0]: node.inputs[0]})


def _is_no_dropout(node: Node, view: View) -> bool:
    if node.version < 7:
        return False  # an attribute said whether it is a test
    training = view.constant(node, 2)
    return len(node.inputs) < 3 or not node.inputs[2] or (training is not None and not training.any())


def same_node(node: Node, view: View) -> Change | None:
    """Two ``Shape``, ``Transpose``, ... nodes of one value -> the first of them."""
    if not node.inputs or not node.inputs[0]:
        return None
    first = next(other for other in view.readers[node.inputs[0]] if _key(other) == _key(node))
    return None if first is node else Change((node,), renamed={node.outputs[0]: first.outputs[0]})


def _key(node: Node) -> tuple[Any, ...]:
    return node.op, node.domain, node.inputs, len(node.outputs), sorted(node.attributes.items())


def known_shape(node: Node, view: View) -> Change | None:
    """``Shape(x)`` of an x whose extents are numbers -> a constant."""
    value = view.values.get(node.inputs[0])
    constant = view.constant(node, 0)
    dims = constant.shape if constant is not None else None if value is None else value.dims
    name = node.outputs[0]
    if dims is None or name in view.results:
        return None
    start, end = node.attributes.get("start", 0), node.attributes.get("end", len(dims))
    part = dims[start:end]
    if not all(isinstance(extent, int) for extent in part):
        return None
    known = view.fresh(f"extents {name}")
    return Change((node,), constants={known: np.array(part, np.int64)}, renamed={name: known})


def padding(node: Node, view: View) -> Change | None:
    """``Conv(Pad(x, zeros))`` -> ``Conv(x)`` with the pads of both.

    Weights must be finite: a product of a padded zero and an infinite weight is no number, one with padding is absent.
    """
    conv = view.only_reader(node.outputs[0])
    pads = _spatial_pads(node, view)
    if conv is None or pads is None or conv.op != "Conv" or not has_row(conv):
        return None
    weights = view.constant(conv, 1)
    if conv.inputs[0] != node.outputs[0] or conv.inputs.count(node.outputs[0]) > 1 or weights is None:
        return None
    if conv.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or not np.isfinite(weights).all():
        return None
    own = conv.attributes.get("pads") or [0] * len(pads)
    if len(own) != len(pads) or weights.ndim != len(pads) // 2 + 2:
        return None
    attributes = {name: value for name, value in conv.attributes.items() if name != "auto_pad"}
    attributes["pads"] = [a + b for a, b in zip(own, pads, strict=True)]
    inputs = (node.inputs[0], *conv.inputs[1:])
    return Change((node, conv), (standing_for(conv, (node, conv), inputs=inputs, attributes=attributes),))


def cut_off(node: Node, view: View) -> Change | None:
    """``Slice(Conv(x))`` that leaves out the last outputs along spatial axes -> ``Conv``, with smaller pads at the end.

    So causal convolutions are exported: they pad both ends.
    """
    conv = view.makers.get(node.inputs[0])
    if node.version < 10 or conv is None or conv.op != "Conv" or not has_row(conv):
        return None
    weights, value = view.constant(conv, 1), view.values.get(node.inputs[0])
    dims = None if value is None else value.dims
    ends = None if dims is None else _ends(node, view, dims)
    if dims is None or ends is None or weights is None or view.only_reader(node.inputs[0]) is not node:
        return None
    rank = weights.ndim - 2
    given = [conv.attributes.get(name) for name in ("pads", "strides", "dilations")]
    pads, strides, dilations = given[0] or [0] * 2 * rank, given[1] or [1] * rank, given[2] or [1] * rank
    is_whole = len(pads) == 2 * rank and len(strides) == len(dilations) == rank
    if not is_whole or conv.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    for axis, left in ends.items():
        if not left:
            continue
        a = axis - 2
        if a < 0 or pads[rank + a] < strides[a] * left:
            return None
        reach = (weights.shape[axis] - 1) * dilations[a] + 1
        shortest = (pads[a] + pads[rank + a] - reach) // strides[a] + 1
        if not isinstance(dims[axis], int) and shortest < left:
            return None  # of a short input nothing might be left
    pads = [*pads[:rank], *(pads[rank + a] - strides[a] * ends.get(a + 2, 0) for a in range(rank))]
    made = standing_for(conv, (conv, node), outputs=node.outputs, attributes={**conv.attributes, "pads": pads})
    return Change((conv, node), (made,))


def _ends(node: Node, view: View, dims: Sequence[int | str | None]) -> dict[int, int] | None:
    """By axis how many of the last elements a Slice leaves out; None unless it takes all others, in order."""
    given = [view.constant(node, at) for at in range(1, len(node.inputs))]
    arrays = [a.reshape(-1).tolist() for a in given if a is not None]
    if len(arrays) not in (3, 4) or len(arrays) < len(given) or any(arrays[0]):
        return None
    found: dict[int, int] = {}
    _, ends, axes, *steps = arrays
    for axis, end, step in zip(axes, ends, steps[0] if steps else [1] * len(ends), strict=False):
        at = axis + len(dims) * (axis < 0)
        if not 0 <= at < len(dims):
            return None
        extent = dims[at]
        if step != 1 or at in found or (not isinstance(extent, int) and 0 <= end < _ALL):
            return None
        found[at] = -end if end < 0 else max(0, extent - end) if isinstance(extent, int) else 0
        if isinstance(extent, int) and found[at] >= extent:
            return None
    return found or None


_ALL = (1 << 31) - 1
"""An end beyond which no array reaches."""


def _spatial_pads(node: Node, view: View) -> list[int] | None:
    """What a Pad adds to spatial axes, begins before ends; None unless it adds zeros there and nowhere else."""
    if node.attributes.get("mode", "constant") != "constant" or len(node.inputs) > 3:
        return None
    if node.version < 11:
        given, value = node.attributes.get("pads"), node.attributes.get("value", 0.0)
    else:
        array, constant = view.constant(node, 1), view.constant(node, 2)
        given = None if array is None else array.tolist()
        is_given = len(node.inputs) > 2 and bool(node.inputs[2])
        value = None if is_given and constant is None else 0.0 if constant is None else constant.reshape(-1)[0]
    if given is None or value is None or float(value) != 0.0 or len(given) % 2 or min(given, default=-1) < 0:
        return None
    rank = len(given) // 2
    if rank < 3 or any((*given[:2], *given[rank : rank + 2])):
        return None
    return [*given[2:rank], *given[rank + 2 :]]


def scaled(node: Node, view: View) -> Change | None:
    """``BatchNormalization(Conv(x))``, ``Mul`` or ``Div`` of it by a constant per channel -> ``Conv``, other weights.

    ``w' = w scale`` and ``b' = b scale + shift`` in f64, rounded once.
    """
    other = len(node.inputs) == 2 and view.constant(node, 0) is not None
    conv = view.makers.get(node.inputs[int(other)])
    if conv is None or conv.op not in _SCALABLE or view.only_reader(conv.outputs[0]) is not node or not has_row(conv):
        return None
    held = held_weights(conv, view)
    if held is None or len(node.outputs) != 1:
        return None
    w, _ = held
    m = output_channels(conv, w)
    axis = w.ndim - 1 if conv.op == "NhwcConv" else 1
    factors = normalisation(node, view) if node.op == "BatchNormalization" else _factor(node, conv, view, w.ndim, axis)
    if factors is None or any(f.shape != (m,) for f in factors) or (axis != 1 and node.op == "BatchNormalization"):
        return None
    return with_weights(conv, (conv, node), *scaled_weights(conv, held, *factors), view)


_SCALABLE = frozenset(("Conv", "ConvTranspose", "NhwcConv"))


def _factor(node: Node, conv: Node, view: View, rank: int, axis: int) -> tuple[Array, Array] | None:
    """Scale, and no shift, of a Mul or Div by a constant per channel, or by one number."""
    at = 1 - node.inputs.index(conv.outputs[0])
    given = view.constant(node, at)
    weights = view.constant(conv, 1)
    if node.attributes or given is None or weights is None or (node.op == "Div" and at == 0):
        return None
    m = output_channels(conv, weights)
    numbers = along(given, rank, axis)
    if numbers is None or numbers.size not in (1, m) or given.dtype != weights.dtype:
        return None
    values = np.broadcast_to(numbers.astype(np.float64), (m,))
    with np.errstate(all="ignore"):
        return (values if node.op == "Mul" else 1.0 / values), np.zeros(m)


def one_slope(node: Node, view: View) -> Change | None:
    """``PRelu(x)`` of one slope -> ``LeakyRelu``."""
    slope = view.constant(node, 1)
    if slope is None or not slope.size or slope.dtype != np.float32 or (slope != slope.flat[0]).any():
        return None
    attributes = {"alpha": float(slope.flat[0])}
    value = view.values.get(node.inputs[0])
    if value is None or value.dims is None or slope.ndim > len(value.dims):
        return None
    made = Node(node.name, "LeakyRelu", "", node.version, node.inputs[:1], node.outputs, attributes,
                stands_for=node.of_file)  # fmt: skip
    return Change((node,), (made,))


def spelled_function(node: Node, view: View) -> Change | None:
    """The nodes round an ``Erf`` or a ``Softplus`` that spell out a Gelu or a Mish -> one node of that operator."""
    wanted, version = _SPELLED[node.op]
    at = view.makers.get(node.inputs[0])
    for name in (*(() if at is None else at.inputs), node.inputs[0]):
        value = view.values.get(name)
        if value is None or value.type not in ("tensor(float)", "tensor(double)"):
            continue
        found = spelled_out(name, view.readers, view.results, view.constants, activation_of)
        if found is not None and found[0].name == wanted and node in found[1]:
            nodes, last = found[1], found[1][-1]
            made = Node(last.name, wanted, "", version, (name,), last.outputs)
            return Change(tuple(nodes), (standing_for(made, nodes),))
    return None


_SPELLED = {"Erf": ("Gelu", 20), "Softplus": ("Mish", 18)}
"""Operator of which there is one in a spelled-out function -> that function, and the version that has it."""


def _rule(apply: Any, *ops: str, is_exact: bool = False, domains: Sequence[str] = ("",)) -> Rule:
    return Rule(frozenset(ops), apply, is_exact, frozenset(domains))


RULES = (
    _rule(same_value, "Identity", "Dropout", "Cast", is_exact=True),
    _rule(known_shape, "Shape", is_exact=True),
    _rule(
        same_node, "Shape", "DequantizeLinear", "Cast", "Transpose", "Reshape", "Relu", "ReduceMean", "Sub",
        is_exact=True, domains=("", ort.CONTRIB),
    ),
    _rule(one_slope, "PRelu", is_exact=True),
    _rule(clipped, "Clip", "Max", "Min", is_exact=True),
    _rule(spelled_function, *_SPELLED),
    _rule(integer_weights, "QuantizeLinear", is_exact=True),
    _rule(real_constant, "DequantizeLinear", is_exact=True),
    _rule(turned_weights, "Transpose", is_exact=True),
    _rule(again_the_same, "QuantizeLinear", is_exact=True),
    _rule(moved_as_bytes, *MOVES, is_exact=True),
    _rule(joined_as_bytes, "Concat", is_exact=True),
    _rule(turned, "Gemm", is_exact=True),
    _rule(integer_product, "Gemm", "MatMul"),
    _rule(integer_convolution, "Conv", "ConvTranspose", "NhwcConv", domains=("", ort.CONTRIB)),
    _rule(clipped_sum, "Relu", is_exact=True),
    _rule(quantised_before, "QuantizeLinear", is_exact=True),
    _rule(on_real_numbers, *ON_REAL_NUMBERS, domains=(ort.CONTRIB,)),
    _rule(real_rows, "QLinearMatMul"),
    _rule(joined_on_real_numbers, "QLinearConcat", domains=(ort.CONTRIB,)),
    _rule(real_product, "QGemm", domains=(ort.CONTRIB,)),
    _rule(padding, "Pad"),
    _rule(cut_off, "Slice"),
    _rule(written_over, "ScatterND", is_exact=True),
    _rule(scaled, "BatchNormalization", "Mul", "Div"),
    _rule(scaled_rows, "BatchNormalization"),
    _rule(branches, "Add"),
    _rule(product, "MatMul"),
    _rule(linear, "Gemm", "MatMul"),
    _rule(scaled_lines, "LayerNormalization", domains=("", OWN)),
    _rule(grouped_lines, "InstanceNormalization"),
    _rule(channels_first, "Transpose"),
    _rule(biased, "Add"),
    _rule(there_and_back, "Unsqueeze", is_exact=True),
    _rule(same_shape, "Reshape", is_exact=True),
    _rule(activated_before, *ACTIVATIONS, is_exact=True),
    _rule(activated_parts, "Concat", is_exact=True),
    _rule(normalised_parts, "BatchNormalization", is_exact=True),
)
"""The rules, in the order in which they are tried."""

LATE_RULES = (_rule(integer_sums, "Conv"),)
"""Those for what no other rule has a better form for."""

LAST_RULES = (_rule(partial(real_constant, kept=()), "DequantizeLinear", is_exact=True),)
"""Of weights in bytes that no convolution of integers takes."""

ON_CPU = (
    _rule(recurrent, "LSTM", "GRU", "RNN"),
    _rule(spanning, "DynamicQuantizeLinear", is_exact=True),
    _rule(product_of_bytes, "MatMulInteger", is_exact=True),
    _rule(constant_zero, "ConvInteger", is_exact=True),
    _rule(centred_lines, "ReduceMean"),
    _rule(sums_of_products, "Einsum"),
    _rule(later_turned, "Split", "Gather", "Squeeze", is_exact=True),
    _rule(scaled_product, "MatMul", "Product", domains=("", OWN)),
    _rule(attention, "Softmax"),
    _rule(added_product, "MatMul", "Product", is_exact=True, domains=("", OWN)),
    _rule(turned_product, "MatMul", "Product", "Attention", is_exact=True, domains=("", OWN)),
)
"""Those whose nodes a GPU has no kernels for."""

ON_GPU = (
    _rule(partial(product, types=ALL_FLOATS), "MatMul", is_exact=True),
    _rule(partial(linear, types=ALL_FLOATS), "Gemm", "MatMul", is_exact=True),
)
"""Products for which a GPU has no other kernels than those of convolutions."""
