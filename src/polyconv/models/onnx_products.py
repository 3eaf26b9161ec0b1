"""Rewrites of ONNX graphs by which products of matrices become convolutions of 1x1 windows.

A product with constant weights is a convolution whose pixels are its rows.  The one idea: rows that already are pixels
of a channels-last tensor stay so; those of a plain matrix are images of one pixel.  It runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.dialects import ort
from polyconv.models.elements import type_of
from polyconv.models.graph import Array, Node
from polyconv.models.onnx_weights import held_weights, normalisation, scaled_weights, with_weights
from polyconv.models.rewriting import Change, View

__all__ = [
    "ACTIVATIONS", "ALL_FLOATS", "FLOATS", "activated_before", "linear", "named_axes", "other_axes", "product",
    "same_shape", "scaled_rows", "there_and_back", "turned",
]  # fmt: skip

ACTIVATIONS = ("Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""Operators that see each element alone; their first input is the only one that is no constant."""


FLOATS = ("tensor(float)", "tensor(double)")
ALL_FLOATS = (*FLOATS, "tensor(float16)", "tensor(bfloat16)")
"""Types of products: those for which a convolution is worth it on a CPU, and those that a GPU computes no other way."""


def product(node: Node, view: View, *, types: Sequence[str] = FLOATS) -> Change | None:
    """``MatMul(x, w)`` of an x of 3 to 5 axes -> a convolution of 1x1 windows, channels last, of the same x."""
    w, x = view.constant(node, 1), view.values.get(node.inputs[0])
    if w is None or w.ndim != 2 or not w.size or x is None or x.dims is None or x.type not in types:
        return None
    rank = len(x.dims)
    is_open = not isinstance(x.dims[-1], int)
    if not 3 <= rank <= 5 or x.type != type_of(w.dtype) or (not is_open and x.dims[-1] != w.shape[0]):
        return None
    name = view.fresh(f"windows of {node.outputs[0]}")
    windows = w.T.reshape(*w.T.shape, *(1,) * (rank - 2))
    made = Node(
        node.name, "NhwcConv", ort.CONTRIB, 1, (node.inputs[0], name), node.outputs, stands_for=node.of_file
    )  # fmt: skip
    return Change((node,), (made,), {name: windows})


def linear(node: Node, view: View, *, types: Sequence[str] = FLOATS) -> Change | None:
    """``Gemm(x, w, b)`` or ``MatMul(x, w)`` of a matrix x -> a convolution of images of one pixel, between views.

    ``alpha`` and ``beta`` go into weights and bias, in f64 and rounded once.
    """
    w = _columns(node, view, types)
    bias = _bias(node, view, w) if w is not None else None
    if w is None or bias is None or node.inputs[0] in view.constants:
        return None
    x, y = node.inputs[0], node.outputs[0]
    names = [view.fresh(f"{role} of {y}") for role in ("windows", "bias")[: 1 + bool(bias.size)]]
    constants = dict(zip(names, (w[:, :, None], bias), strict=False))
    image, made = view.fresh(f"{x} as an image of {y}"), view.fresh(f"image {y}")
    before, axes = other_axes("Unsqueeze", node, x, image, (2,), view)
    after, _ = other_axes("Squeeze", node, made, y, (2,), view)
    conv = Node(node.name, "Conv", "", view.opsets[""], (image, *names), (made,), stands_for=node.of_file)
    return Change((node,), (before, conv, after), constants | axes)


def turned(node: Node, view: View) -> Change | None:
    """``Gemm(x, w, b)`` of an x whose rows are columns, and constant weights -> ``Gemm(Transpose(x), w, b)``."""
    maker = view.makers.get(node.inputs[1])
    is_constant = node.inputs[1] in view.constants or (maker is not None and view.constant(maker, 0) is not None)
    if not node.attributes.get("transA", 0) or not is_constant:
        return None
    name, words = view.fresh(f"{node.inputs[0]} turned for {node.outputs[0]}"), dict(node.attributes)
    del words["transA"]
    before = Node(node.name, "Transpose", "", view.opsets[""], node.inputs[:1], (name,), {"perm": [1, 0]},
                  stands_for=node.of_file)  # fmt: skip
    made = Node(node.name, "Gemm", "", node.version, (name, *node.inputs[1:]), node.outputs, words,
                stands_for=node.of_file)  # fmt: skip
    return Change((node,), (before, made))


def _columns(node: Node, view: View, types: Sequence[str]) -> Array | None:
    """Weights of a product with a matrix, outputs first."""
    w, a = view.constant(node, 1), node.attributes
    if w is None or w.ndim != 2 or type_of(w.dtype) not in types or not w.size:
        return None
    if node.op == "MatMul":
        x = view.values.get(node.inputs[0])
        return w.T if x is not None and x.dims is not None and len(x.dims) == 2 else None
    if a.get("transA", 0) or a.get("broadcast", 0) or node.version < 7:
        return None
    out = w if a.get("transB", 0) else w.T
    return _times(out, a.get("alpha", 1.0))


def _bias(node: Node, view: View, w: Array) -> Array | None:
    """What a product adds to each row; empty if nothing, None where it varies or differs from row to row."""
    if node.op == "MatMul" or len(node.inputs) < 3 or not node.inputs[2]:
        return np.zeros(0, w.dtype)
    added = view.constant(node, 2)
    if added is None or added.ndim > 2 or added.dtype != w.dtype or added.size not in (1, len(w)):
        return None
    if added.size > 1 and added.shape[-1] != added.size:
        return None
    return _times(np.ascontiguousarray(np.broadcast_to(added.reshape(-1), len(w))), node.attributes.get("beta", 1.0))


def _times(array: Array, factor: float) -> Array:
    if factor == 1.0:
        return array
    with np.errstate(all="ignore"):
        return (array.astype(np.float64) * float(np.float32(factor))).astype(array.dtype)


def other_axes(op: str, node: Node, x: str, y: str, axes: Sequence[int], view: View
               ) -> tuple[Node, dict[str, Array]]:  # fmt: skip
    """A Squeeze or Unsqueeze that stands for a node, and the constant that says of which axes; alike ones share it."""
    version, name = view.opsets[""], f"axes {', '.join(map(str, axes))} of {node.outputs[0]}"
    attributes: dict[str, Any] = {} if version >= 13 else {"axes": list(axes)}
    constants = {name: np.array(axes)} if version >= 13 else {}
    return Node(node.name, op, "", version, (x, *constants), (y,), attributes, stands_for=node.of_file), constants


def there_and_back(node: Node, view: View) -> Change | None:
    """``Unsqueeze(Squeeze(x))`` of the same axes -> ``x``."""
    maker = view.makers.get(node.inputs[0])
    if maker is None or maker.op != "Squeeze" or maker.domain:
        return None
    axes = named_axes(node, view)
    if axes is None or axes != named_axes(maker, view) or min(axes) < 0:
        return None
    return Change((node,), renamed={node.outputs[0]: maker.inputs[0]})


def same_shape(node: Node, view: View) -> Change | None:
    """``Reshape(Flatten(x))``, and others of what is x in another shape, to the shape of x -> ``x``."""
    name = node.inputs[0]
    while (maker := view.makers.get(name)) is not None and maker.op in _RESHAPERS and not maker.domain:
        name = maker.inputs[0]
    before, after = view.values.get(name), view.values.get(node.outputs[0])
    if before is None or after is None or before.dims is None or before.dims != after.dims:
        return None
    if not all(isinstance(extent, int) for extent in before.dims):
        return None
    return Change((node,), renamed={node.outputs[0]: name})


_RESHAPERS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
"""Operators whose results are their first input in another shape."""


def scaled_rows(node: Node, view: View) -> Change | None:
    """``BatchNormalization(Flatten(MatMul(x, w)))`` of rows of channels -> ``Flatten(MatMul(x, w'))``.

    ``w' = w scale`` and ``b' = shift`` in f64, rounded once; the product is a convolution of 1x1 windows by then.
    """
    mover = view.makers.get(node.inputs[0])
    if mover is None or mover.op not in _RESHAPERS or mover.domain or view.only_reader(node.inputs[0]) is not node:
        return None
    conv = view.makers.get(mover.inputs[0])
    if conv is None or conv.op != "NhwcConv" or view.only_reader(mover.inputs[0]) is not mover:
        return None
    held, factors, rows = held_weights(conv, view), normalisation(node, view), view.values.get(node.inputs[0])
    if held is None or factors is None or len(node.outputs) != 1 or conv.attributes.get("group", 1) != 1:
        return None
    m = len(held[0])
    if rows is None or rows.dims is None or len(rows.dims) != 2 or rows.dims[1] != m or factors[0].shape != (m,):
        return None
    like = _like(node, conv.outputs, node.inputs)
    made = with_weights(conv, (conv, like), *scaled_weights(conv, held, *factors), view)
    return replace(made, gone=(conv, mover, node), nodes=(*made.nodes, _like(mover, node.outputs, mover.inputs)))


def named_axes(node: Node, view: View) -> list[int] | None:
    """The axes that a Squeeze or Unsqueeze names, in order; None where it names none, or no constants."""
    given = view.constant(node, 1)
    axes = node.attributes.get("axes") if given is None else given.reshape(-1).tolist()
    return sorted(axes) if axes else None


def activated_before(node: Node, view: View) -> Change | None:
    """``Relu(Squeeze(x))`` -> ``Squeeze(Relu(x))``, and for ``Reshape`` or ``Transpose`` of what a convolution makes.

    So the convolution can take the activation.
    """
    mover = view.makers.get(node.inputs[0])
    if mover is None or mover.op not in _MOVERS or mover.domain or len(node.outputs) != 1:
        return None
    if mover.op != "Squeeze" and not _is_of_convolution(mover, view):
        return None
    if view.only_reader(mover.outputs[0]) is not node:
        return None
    inner = view.fresh(f"{node.outputs[0]} before {mover.name}")
    first = _like(node, (inner,), (mover.inputs[0], *node.inputs[1:]))
    return Change((mover, node), (first, _like(mover, node.outputs, (inner, *mover.inputs[1:]))))


_MOVERS = ("Squeeze", "Reshape", "Transpose")
"""Operators whose results are the elements of their first input."""


def _is_of_convolution(node: Node | None, view: View) -> bool:
    """Whether a node moves what a convolution makes, and nobody else reads on the way."""
    while node is not None and node.op in _MOVERS and not node.domain:
        name = node.inputs[0]
        if view.only_reader(name) is not node:
            return False
        node = view.makers.get(name)
    return node is not None and node.op in ("Conv", "ConvTranspose") and "activation" not in node.attributes


def _like(node: Node, outputs: tuple[str, ...], inputs: tuple[str, ...]) -> Node:
    return Node(
        node.name, node.op, node.domain, node.version, inputs, outputs, node.attributes, stands_for=node.of_file
    )
