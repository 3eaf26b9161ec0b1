"""Quantities of ONNX graphs: integers of 8 bits that stand for real numbers, by a scale and a zero point.

A tensor of integers q with a scale s and a zero point z stands for ``s (q - z)``.  The one idea: only what is constant
counts, so that a rule that asks for a quantity gets numbers.  It changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.models.elements import BY_TYPE
from polyconv.models.graph import Array, Node
from polyconv.models.rewriting import View

__all__ = ["BYTES", "Quantity", "are_equal", "convolved", "of_channels", "quantity", "tensor_wide"]

BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


@dataclass(frozen=True, slots=True)
class Quantity:
    """What stands for real values: the node, the integers' name, and scale and zero point as arrays."""

    node: Node
    integers: str
    scale: Array
    zero: Array


def quantity(node: Node | None, view: View, op: str) -> Quantity | None:
    """A DequantizeLinear or QuantizeLinear with constant quantities of 8-bit integers; None if it is none."""
    if node is None or node.op != op or node.domain or set(node.attributes) - {"axis"}:
        return None
    if not isinstance(node.attributes.get("axis", 1), int):
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
    return Quantity(node, node.inputs[0] if op == "DequantizeLinear" else node.outputs[0], scale, zero)


def _type(node: Node, view: View) -> np.dtype[Any] | None:
    """Element type of what a node reads."""
    constant, value = view.constant(node, 0), view.values.get(node.inputs[0])
    if constant is not None:
        return constant.dtype
    row = None if value is None else BY_TYPE.get(value.type)
    return None if row is None else row.numpy


def tensor_wide(found: Quantity | None) -> Quantity | None:
    """A quantity with one scale and one zero point, of bytes."""
    if found is None or found.scale.size != 1 or found.zero.size != 1 or found.zero.dtype not in BYTES:
        return None
    return found


def of_channels(found: Quantity | None, rank: int) -> Quantity | None:
    """A quantity of bytes with one zero point, and with one scale or one for each channel."""
    if found is None or found.zero.dtype not in BYTES or not found.zero.size:
        return None
    zero, scale = found.zero.reshape(-1), found.scale
    if (zero != zero[0]).any() or (scale.size > 1 and found.node.attributes.get("axis", 1) not in (1, 1 - rank)):
        return None
    return replace(found, scale=scale if scale.size > 1 else scale.reshape(()), zero=zero[:1].reshape(()))


def convolved(found: Quantity, view: View) -> Node | None:
    """The QLinearConv that makes the integers, by the same scale and zero point and for nobody else, if one does."""
    conv = view.makers.get(found.integers)
    if conv is None or conv.op != "QLinearConv" or view.only_reader(found.integers) is not found.node:
        return None
    scale, zero = view.constant(conv, 6), view.constant(conv, 7)
    own = None if scale is None or zero is None else tensor_wide(Quantity(conv, found.integers, scale, zero))
    return conv if own is not None and are_equal(own, found) else None


def are_equal(a: Quantity, b: Quantity) -> bool:
    """Whether the same integers stand for the same values, by one scale and one zero point."""
    return a.zero.dtype == b.zero.dtype and all(
        x.reshape(-1)[0] == y.reshape(-1)[0] for x, y in ((a.scale, b.scale), (a.zero, b.zero))
    )
