"""Sums of quantised values behind a quantised convolution: found, and folded into it.

``QLinearConv -> DequantizeLinear -> Add(., DequantizeLinear(r)) -> QuantizeLinear`` becomes one node that reads the
bytes r and makes those of the sum, with the same bits: ``Quantisation`` says how.  The one idea: what is done to two
bytes and makes a byte needs no memory for real numbers between.  It runs nothing.
"""

from __future__ import annotations

from dataclasses import replace

from polyconv.dataclass import dataclass
from polyconv.lowering.rescaling import LEAST_SCALE
from polyconv.models.graph import Node
from polyconv.models.onnx_quantities import Quantity, convolved, quantity, tensor_wide
from polyconv.models.rewriting import View

__all__ = ["ROLES", "ByteSum", "byte_sum"]

ROLES = ("sr", "zr", "ss", "zs", "residual")
"""Inputs that a convolution gets behind its own."""


@dataclass(frozen=True, slots=True)
class ByteSum:
    """A sum that a convolution may absorb.

    Parameters
    ----------
    absorbed : tuple of Node
        In running order; the last one makes the bytes of the sum.
    inputs : tuple of str
        Names of ``ROLES``; empty for a zero point that is not given.
    instead : tuple of Node
        What does the same behind the convolution by itself, from its bytes and those of the residual alone.
    """

    absorbed: tuple[Node, ...]
    inputs: tuple[str, ...]
    instead: tuple[Node, ...]


def byte_sum(conv: Node, view: View) -> ByteSum | None:
    """The sum behind a QLinearConv that it may absorb; None if there is none."""
    ours = tensor_wide(quantity(view.only_reader(conv.outputs[0]), view, "DequantizeLinear"))
    if ours is None or convolved(ours, view) is not conv:
        return None
    real = ours.node.outputs[0]
    add = view.only_reader(real)
    if add is None or add.op != "Add" or add.domain or add.attributes or len(add.inputs) != 2:
        return None
    (other,) = (name for name in add.inputs if name != real)
    beside = tensor_wide(quantity(view.makers.get(other), view, "DequantizeLinear"))
    total = tensor_wide(quantity(view.only_reader(add.outputs[0]), view, "QuantizeLinear"))
    if beside is None or total is None or beside.integers in view.constants:
        return None
    if not all(each.zero.dtype == ours.zero.dtype and _is_normal(each) for each in (ours, beside, total)):
        return None
    inputs = *_quantities(beside), *_quantities(total), beside.integers
    if view.only_reader(other) is add:
        absorbed = ours.node, beside.node, add, total.node
        return ByteSum(absorbed, inputs, absorbed)
    own = view.fresh(f"{other} beside {conv.outputs[0]}")  # what others read may be made where nobody here sees it
    reads = tuple(own if name == other else name for name in add.inputs)
    instead = ours.node, replace(beside.node, outputs=(own,)), replace(add, inputs=reads), total.node
    return ByteSum((ours.node, add, total.node), inputs, instead)


def _is_normal(found: Quantity) -> bool:
    return LEAST_SCALE <= float(found.scale.reshape(-1)[0]) <= 1 / LEAST_SCALE


def _quantities(found: Quantity) -> tuple[str, str]:
    """Names of a scale and of a zero point, which may be absent."""
    scale, zero = (*found.node.inputs[1:], "")[:2]
    return scale, zero
