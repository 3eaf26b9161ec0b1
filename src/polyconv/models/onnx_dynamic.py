"""Rewrites of ONNX graphs that are quantised dynamically: whose activations get their scale and zero point in each run.

The one idea: a zero point that comes with a run need not touch the weights.  With S the sums of an output's weights,

    sum (x - z) w = sum x w - z S,

also at the borders, if what is padded there is z and not absent; so weights are packed once.  It runs nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from polyconv.models.graph import Array, Node
from polyconv.models.native import OWN
from polyconv.models.onnx_quantities import BYTES
from polyconv.models.rewriting import Change, View

__all__ = ["constant_zero", "product_of_bytes", "spanning"]


def spanning(node: Node, view: View) -> Change | None:
    """``DynamicQuantizeLinear(x)`` -> the quantity that spans x, and ``QuantizeLinear(x)`` by it."""
    read = view.values.get(node.inputs[0])
    if len(node.outputs) != 3 or node.attributes or read is None or read.type != "tensor(float)":
        return None
    y, *rest = node.outputs
    scale, zero = (name or view.fresh(f"{role} of {y}") for name, role in zip(rest, ("scale", "zero"), strict=True))
    x, file = node.inputs[0], node.of_file
    found = Node(node.name, "SpanningQuantity", OWN, 1, (x,), (scale, zero), stands_for=file)
    made = Node(node.name, "QuantizeLinear", "", view.opsets[""], (x, scale, zero), (y,), stands_for=file)
    return Change((node,), (found, made) if y else (found,))


def constant_zero(conv: Node, view: View) -> Change | None:
    """``ConvInteger(x, w, z)`` of a z that comes with a run -> ``ConvInteger(x, w) - z S``.

    A padded x is quantised once more, with zeros round it, which z stands for.
    """
    x, w, z, *rest = (*conv.inputs, "", "")[:4]
    weights, zeros = view.constant(conv, 1), view.constant(conv, 3)
    if weights is None or weights.dtype not in BYTES or weights.ndim < 3 or len(conv.outputs) != 1:
        return None
    if not z or z in view.constants:
        return None
    if (rest[0] and zeros is None) or conv.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    if zeros is not None and zeros.shape not in ((), (1,), weights.shape[:1]):
        return None
    value, rank = view.values.get(z), weights.ndim - 2
    if value is None or value.dims not in ((), (1,)):
        return None
    pads = conv.attributes.get("pads") or [0] * 2 * rank
    if not isinstance(pads, list) or len(pads) != 2 * rank or min(pads) < 0:
        return None
    constants: dict[str, Array] = {}
    nodes: list[Node] = []
    file, y, version = conv.of_file, conv.outputs[0], view.opsets[""]

    def held(role: str, array: Array) -> str:
        name = view.fresh(f"{role} of {y}")
        constants[name] = array
        return name

    def added(op: str, inputs: tuple[str, ...], role: str, **attributes: int) -> str:
        name = y if not role else view.fresh(f"{role} of {y}")
        nodes.append(Node(conv.name, op, "", version, inputs, (name,), attributes, stands_for=file))
        return name

    if any(pads):
        quantise = view.makers.get(x)
        if quantise is None or quantise.op != "QuantizeLinear" or quantise.inputs[2:] != (z,) or version < 11:
            return None
        real = view.values.get(quantise.inputs[0])
        if real is None or real.type != "tensor(float)":
            return None
        around = np.array([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64)
        padded = added("Pad", (quantise.inputs[0], held("pads", around)), "padded input")
        x = view.fresh(f"padded integers of {y}")
        nodes.append(replace(quantise, inputs=(padded, *quantise.inputs[1:]), outputs=(x,), origin=None,
                             stands_for=quantise.of_file))  # fmt: skip
    zero_of_w = 0 if zeros is None else zeros.astype(np.int64).reshape(-1)
    sums = weights.sum(axis=tuple(range(1, rank + 2)), dtype=np.int64) - math.prod(weights.shape[1:]) * zero_of_w
    wrapped = sums.astype(np.int32).reshape(-1, *(1,) * rank)  # modulo 2^32, as all of it is
    none = held("zero", np.zeros((), np.uint8 if value.type != "tensor(int8)" else np.int8))
    attributes = {name: given for name, given in conv.attributes.items() if name not in ("pads", "auto_pad")}
    before = view.fresh(f"sums of {y}")
    made = replace(conv, inputs=(x, w, none, *rest[:1]), outputs=(before,), attributes=attributes, origin=None,
                   stands_for=file)  # fmt: skip
    nodes.append(made)
    wide = added("Cast", (z,), "wide zero", to=6)
    part = added("Mul", (wide, held("sums of weights", wrapped)), "share of zero")
    added("Sub", (before, part), "")
    return Change((conv,), tuple(nodes), constants)


def product_of_bytes(node: Node, view: View) -> Change | None:
    """``MatMulInteger(x, w, z)`` of constant weights -> ``ConvInteger`` of images of one pixel, between views."""
    x, _, *zeros = node.inputs
    weights, value = view.constant(node, 1), view.values.get(x)
    zeros_of_w = view.constant(node, 3)
    if weights is None or weights.ndim != 2 or weights.dtype not in BYTES or not weights.size or value is None:
        return None
    dims = value.dims
    if len(node.outputs) != 1 or (dims is not None and (len(dims) < 2 or 0 in dims)) or view.opsets[""] < 10:
        return None
    of_x = view.values.get(zeros[0]) if zeros and zeros[0] else None
    if zeros and zeros[0] and zeros[0] not in view.constants and (of_x is None or of_x.dims not in ((), (1,))):
        return None
    if len(zeros) > 1 and zeros[1] and (zeros_of_w is None or zeros_of_w.shape not in ((), (1,), weights.shape[1:])):
        return None
    name, version, file = node.outputs[0], view.opsets[""], node.of_file
    roles = ("windows", "image", "sums", "shape of images", "shape of the product")
    windows, image, sums, before, behind = (view.fresh(f"{role} of {name}") for role in roles)
    constants = {
        windows: np.ascontiguousarray(weights.T)[:, :, None], before: np.array([-1, weights.shape[0], 1]),
    }  # fmt: skip
    nodes: list[Node] = []
    known = [extent if isinstance(extent, int) else -1 for extent in (dims or ())[:-1]]
    if dims is not None and known.count(-1) < 2:
        constants[behind] = np.array([*known, weights.shape[1]])
    else:
        shape, rows, first, end, last = (
            view.fresh(f"{role} of {name}") for role in ("extents", "rows", "first axis", "last axis", "columns")
        )
        constants |= {first: np.array([0]), end: np.array([-1]), last: np.array([weights.shape[1]])}
        nodes = [
            Node(node.name, "Shape", "", version, (x,), (shape,), stands_for=file),
            Node(node.name, "Slice", "", version, (shape, first, end), (rows,), stands_for=file),
            Node(node.name, "Concat", "", version, (rows, last), (behind,), {"axis": 0}, stands_for=file),
        ]
    nodes += [
        Node(node.name, "Reshape", "", version, (x, before), (image,), stands_for=file),
        Node(node.name, "ConvInteger", "", 10, (image, windows, *zeros), (sums,), stands_for=file),
        Node(node.name, "Reshape", "", version, (sums, behind), (name,), stands_for=file),
    ]
    return Change((node,), tuple(nodes), constants)
