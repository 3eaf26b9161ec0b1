"""Sums of quantised values behind a quantised convolution: found, and folded into it.

``QLinearConv -> DequantizeLinear -> Add(., DequantizeLinear(r)) -> QuantizeLinear`` becomes one node that reads the
bytes r and makes those of the sum, with the same bits: ``Quantisation`` says how.  The one idea: what is done to two
bytes and makes a byte needs no memory for real numbers between.  It runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.lowering.rescaling import LEAST_SCALE
from polyconv.models.graph import Array, Node

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


@dataclass(frozen=True, slots=True)
class _Around:
    """What lies around nodes of a graph."""

    readers: Mapping[str, list[Node]]
    makers: Mapping[str, Node]
    kept: Collection[str]
    constants: Mapping[str, Array]

    def only_reader(self, name: str) -> Node | None:
        """The node that alone reads a value, once."""
        found = self.readers.get(name, [])
        is_alone = len(found) == 1 and name not in self.kept and found[0].inputs.count(name) == 1
        return found[0] if is_alone and len(found[0].outputs) == 1 else None

    def fresh(self, name: str) -> str:
        """A name that no value has, near the given one."""
        while name in self.constants or name in self.makers or name in self.readers:
            name += "'"
        return name

    def steps(self, node: Node | None, op: str) -> tuple[float, int, str] | None:
        """Scale, zero point and type of a node that quantises, or turns back; None unless they are constant."""
        if node is None or node.op != op or node.domain or set(node.attributes) - {"axis"}:
            return None
        return self.quantity(*[*node.inputs[1:], "", ""][:2])

    def quantity(self, scale: str, zero: str) -> tuple[float, int, str] | None:
        """Scale, zero point and type of two constants of one value; without a zero point bytes are u8."""
        of_scale, of_zero = self.constants.get(scale), self.constants.get(zero) if zero else np.zeros((), np.uint8)
        if of_scale is None or of_scale.size != 1 or of_scale.dtype != np.float32:
            return None
        if of_zero is None or of_zero.size != 1 or of_zero.dtype not in (np.uint8, np.int8):
            return None
        value = float(of_scale.reshape(-1)[0])
        if not LEAST_SCALE <= value <= 1 / LEAST_SCALE:
            return None
        return value, int(of_zero.reshape(-1)[0]), str(of_zero.dtype)


def byte_sum(conv: Node, readers: Mapping[str, list[Node]], makers: Mapping[str, Node], kept: Collection[str],
             constants: Mapping[str, Array]) -> ByteSum | None:  # fmt: skip
    """The sum behind a quantised convolution that it may absorb; None if there is none.

    Parameters
    ----------
    conv : Node
        A QLinearConv.
    readers, makers : mapping
        Of the values of a graph.
    kept : collection of str
        Values that must stay.
    constants : mapping
        Values that are known.
    """
    around = _Around(readers, makers, kept, constants)
    ours = around.quantity(conv.inputs[6], conv.inputs[7]) if len(conv.inputs) > 7 and conv.inputs[7] else None
    real = around.only_reader(conv.outputs[0])
    if ours is None or real is None or around.steps(real, "DequantizeLinear") != ours:
        return None
    add = around.only_reader(real.outputs[0])
    if add is None or add.op != "Add" or add.domain or add.attributes or len(add.inputs) != 2:
        return None
    (other,) = (name for name in add.inputs if name != real.outputs[0])
    beside = makers.get(other)
    theirs = around.steps(beside, "DequantizeLinear")
    if beside is None or theirs is None or theirs[2] != ours[2] or beside.inputs[0] in constants:
        return None
    last = around.only_reader(add.outputs[0])
    of_sum = around.steps(last, "QuantizeLinear")
    if last is None or of_sum is None or of_sum[2] != ours[2]:
        return None
    zero = _input(beside, 2), _input(last, 2)
    inputs = beside.inputs[1], zero[0], last.inputs[1], zero[1], beside.inputs[0]
    if around.only_reader(other) is add:
        absorbed = real, beside, add, last
        return ByteSum(absorbed, inputs, absorbed)
    own = around.fresh(f"{other} beside {conv.outputs[0]}")  # what others read may be made where nobody here sees it
    reads = tuple(own if name == other else name for name in add.inputs)
    instead = real, replace(beside, outputs=(own,)), replace(add, inputs=reads), last
    return ByteSum((real, add, last), inputs, instead)


def _input(node: Node, position: int) -> str:
    return node.inputs[position] if position < len(node.inputs) else ""
