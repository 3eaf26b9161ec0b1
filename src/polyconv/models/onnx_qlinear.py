"""Rewrites of the operators of com.microsoft that quantise, and compute with bytes what ONNX's compute with numbers.

The one idea: each is the operator of ONNX between DequantizeLinear and QuantizeLinear, which other rules then see.  It
runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ModelError
from polyconv.models.graph import Array, Node
from polyconv.models.rewriting import Change, View

__all__ = ["ON_REAL_NUMBERS", "joined_on_real_numbers", "on_real_numbers", "real_product", "real_rows"]


@dataclass(frozen=True, slots=True)
class _Real:
    """The operator of ONNX's main domain, how many operands it takes, and the attributes that it takes over."""

    op: str
    operands: int = 1
    attributes: Sequence[str] = ()


_WINDOWS = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

ON_REAL_NUMBERS: Mapping[str, _Real] = {
    "QLinearAdd": _Real("Add", 2), "QLinearMul": _Real("Mul", 2), "QLinearSigmoid": _Real("Sigmoid"),
    "QLinearLeakyRelu": _Real("LeakyRelu", attributes=("alpha",)),
    "QLinearGlobalAveragePool": _Real("GlobalAveragePool"),
    "QLinearAveragePool": _Real("AveragePool", attributes=_WINDOWS),
    "QLinearSoftmax": _Real("Softmax", attributes=("axis",)),
}  # fmt: skip
"""By the operator that quantises."""


def on_real_numbers(node: Node, view: View) -> Change | None:
    """``com.microsoft.QLinearAdd(a, b)`` -> ``QuantizeLinear(Add(Dequantize(a), Dequantize(b)))``; others alike.

    Those of pixels are of arrays with channels second; of Softmax only what has one axis, as since opset 13.
    """
    row = ON_REAL_NUMBERS[node.op]
    operands = [node.inputs[at : at + 3] for at in range(0, 3 * row.operands, 3)]
    quantities = node.inputs[3 * row.operands :]
    if node.attributes.get("channels_last") or len(node.outputs) != 1:
        return None
    if len(quantities) != 2 or not all(quantities):
        return None
    if any(len(names) < 2 or not all(names[:2]) for names in operands):
        return None
    if row.op == "Softmax" and not (node.attributes.get("opset") in range(13, 100) and view.opsets[""] >= 13):
        return None
    attributes = {name: node.attributes[name] for name in row.attributes if name in node.attributes}
    return Change((node,), _between(node, row.op, operands, quantities, view, attributes))


def joined_on_real_numbers(node: Node, view: View) -> Change | None:
    """``com.microsoft.QLinearConcat(sy, zy, a, sa, za, ...)`` -> ``QuantizeLinear(Concat(Dequantize(a), ...))``.

    Raises
    ------
    ModelError
        If an input is left out: onnxruntime would read from where nothing is.
    """
    operands = [node.inputs[at : at + 3] for at in range(2, len(node.inputs), 3)]
    if not operands or len(operands[-1]) != 3 or not all(node.inputs):
        raise ModelError(f"{node.label} leaves inputs out; it needs scale and zero point of result and of parts")
    return Change((node,), _between(node, "Concat", operands, node.inputs[:2], view, node.attributes))


def real_rows(node: Node, view: View) -> Change | None:
    """``QLinearMatMul(a, b)`` with constant weights -> ``QuantizeLinear(MatMul(Dequantize(a), Dequantize(b)))``.

    With one scale of a, and one of b or one for each of its columns: then integers are summed, as the operator does.
    """
    held = [view.constant(node, at) for at in range(1, 8)]
    x, b = view.values.get(node.inputs[0]), held[2]
    if any(array is None for array in held) or b is None or b.ndim != 2 or x is None or x.dims is None:
        return None
    sizes = [1 if array is None else array.size for array in held]
    if sizes[0] != 1 or sizes[5] != 1 or sizes[3] not in (1, b.shape[1]) or not 2 <= len(x.dims) <= 5:
        return None
    return Change((node,), _between(node, "MatMul", [node.inputs[:3], node.inputs[3:6]], node.inputs[6:], view, {}))


def _between(node: Node, op: str, operands: Sequence[tuple[str, ...]], quantities: Sequence[str], view: View,
             attributes: Mapping[str, Any]) -> tuple[Node, ...]:  # fmt: skip
    """An operator of some operands' real values, and what quantises its result."""
    version, result = view.opsets[""], node.outputs[0]

    def made(name: str, kind: str, inputs: Sequence[str], output: str, **words: Any) -> Node:
        read = tuple(inputs if inputs[-1] else inputs[:-1])
        return Node(name, kind, "", version, read, (output,), words, stands_for=node.of_file)

    reals = tuple(view.fresh(f"{result} real {number}") for number in range(len(operands)))
    nodes = [made(real, "DequantizeLinear", names, real) for names, real in zip(operands, reals, strict=True)]
    whole = view.fresh(f"{result} real")
    nodes.append(made(whole, op, reals, whole, **attributes))
    nodes.append(made(node.name, "QuantizeLinear", (whole, *quantities), result))
    return tuple(nodes)


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
