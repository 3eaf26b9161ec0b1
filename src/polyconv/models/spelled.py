"""Activations that exporters spell out in several nodes, found behind a value.

Turns the nodes that follow a value into one of our activations, if they amount to it.  The one idea: a formula is a
tree of operators with X at its leaves, and a graph matches it where every node of it serves nothing else.  It changes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.models.graph import Array, Node
from polyconv.problem.epilogue import Activation

__all__ = ["spelled_out"]

X = "X"
"""The value itself, in a formula."""

Formula = Any
"""X, a number, or an operator and its operands; ``Activation`` with an operand stands for a node that applies it."""

_MOST_NODES = 12


def _either(*formulas: Formula) -> tuple[str, ...]:
    return ("or", *formulas)


_CLIPPED = (Activation("Clip", (0.0, 6.0)), ("Add", X, 3.0))
_SIXTH = 1.0 / 6.0
_ERF = ("Add", ("Erf", _either(("Div", X, math.sqrt(2.0)), ("Mul", X, math.sqrt(0.5)))), 1.0)
_HARD_SIGMOID = _either(
    (Activation("HardSigmoid", (_SIXTH, 0.5)), X), ("Div", _CLIPPED, 6.0), ("Mul", _CLIPPED, _SIXTH)
)  # fmt: skip

FORMULAS: tuple[tuple[Activation, Formula], ...] = (
    (Activation("Gelu"), _either(
        ("Mul", ("Mul", X, _ERF), 0.5), ("Mul", ("Mul", X, 0.5), _ERF), ("Mul", X, ("Mul", _ERF, 0.5)),
    )),
    (Activation("HardSwish"), _either(
        ("Mul", X, _HARD_SIGMOID), ("Div", ("Mul", X, _CLIPPED), 6.0), ("Mul", ("Mul", X, _CLIPPED), _SIXTH),
        ("Mul", ("Mul", X, _SIXTH), _CLIPPED), ("Mul", ("Div", X, 6.0), _CLIPPED),
    )),
    (Activation("HardSigmoid", (_SIXTH, 0.5)), _HARD_SIGMOID),
    (Activation("Mish"), ("Mul", X, ("Tanh", ("Softplus", X)))),
    (Activation("Silu"), ("Mul", X, (Activation("Sigmoid"), X))),
    (Activation("Sigmoid"), ("Div", 1.0, ("Add", ("Exp", ("Neg", X)), 1.0))),
)  # fmt: skip
"""What can be spelled out, and how; a formula that contains another stands before it."""

Read = Callable[[Node, str, Mapping[str, Array]], Activation | None]


def spelled_out(value: str, readers: Mapping[str, Sequence[Node]], kept: Collection[str],
                constants: Mapping[str, Array], read: Read) -> tuple[Activation, list[Node]] | None:  # fmt: skip
    """Find an activation that the nodes behind a value amount to.

    Parameters
    ----------
    value : str
        What it is applied to.
    readers : mapping
        The nodes that read a value, once for each reading input.
    kept : collection of str
        Values that must stay.
    constants : mapping
        Values that are known.
    read : callable
        The activation that one node applies to a value, as ``activations.activation_of``.

    Returns
    -------
    tuple or None
        The activation and the nodes that it takes the place of, in running order, the last of them the one that makes
        the result.
    """
    cone = _cone(value, readers)
    makers = {node.outputs[0]: node for node in cone}
    for activation, formula in FORMULAS:
        for root in cone:
            for used in _matches(root.outputs[0], formula, value, makers, constants, read):
                nodes = [node for node in cone if node in used]
                if nodes[-1] is root and _is_closed(value, nodes, root, readers, kept):
                    return activation, nodes
    return None


def _cone(value: str, readers: Mapping[str, Sequence[Node]]) -> list[Node]:
    """The first nodes behind a value, in an order in which they can run."""
    found: dict[Node, None] = {}
    waiting = [value]
    while waiting and len(found) < _MOST_NODES:
        for node in readers.get(waiting.pop(0), ()):
            if node.op in _OPS and len(node.outputs) == 1:
                found.pop(node, None)  # behind everything that it may read
                found[node] = None
                waiting.append(node.outputs[0])
    return list(found)


def _operators(formula: Formula) -> Iterator[str]:
    if isinstance(formula, tuple):
        name = formula[0]
        yield name.name if isinstance(name, Activation) else name
        for operand in formula[1:]:
            yield from _operators(operand)


_OPS = frozenset(name for _, formula in FORMULAS for name in _operators(formula))
_COMMUTE = ("Add", "Mul")


def _matches(name: str, formula: Formula, value: str, makers: Mapping[str, Node], constants: Mapping[str, Array],
             read: Read) -> Iterator[frozenset[Node]]:  # fmt: skip
    """The sets of nodes by which a value is what a formula says."""
    if formula == X:
        if name == value:
            yield frozenset()
        return
    if isinstance(formula, float):
        if _is_number(constants.get(name), formula):
            yield frozenset()
        return
    kind, *operands = formula
    if kind == "or":
        for each in operands:
            yield from _matches(name, each, value, makers, constants, read)
        return
    node = makers.get(name)
    if node is None or node.domain:
        return
    given = tuple(filter(None, node.inputs))
    if isinstance(kind, Activation):
        applied = read(node, node.inputs[0], constants)
        if applied is None or applied.name != kind.name or not np.allclose(applied.parameters, kind.parameters, 1e-6):
            return
        given = given[:1]
    elif node.op != kind or node.attributes or len(given) != len(operands):
        return
    for order in (given, given[::-1]) if kind in _COMMUTE else (given,):
        partial = [frozenset((node,))]
        for operand, each in zip(order, operands, strict=True):
            partial = [
                known | used for known in partial for used in _matches(operand, each, value, makers, constants, read)
            ]
        yield from partial


def _is_number(array: Array | None, number: float) -> bool:
    """Whether a constant is a number, up to the rounding of its type."""
    if array is None or array.size != 1 or array.dtype.kind != "f":
        return False
    found = float(array.reshape(-1)[0])
    return abs(found - number) <= 4 * float(np.finfo(array.dtype).eps) * abs(number)


def _is_closed(value: str, nodes: Sequence[Node], root: Node, readers: Mapping[str, Sequence[Node]],
               kept: Collection[str]) -> bool:  # fmt: skip
    """Whether nobody but the nodes themselves reads the value, or what they make on the way."""
    inner = [value, *(node.outputs[0] for node in nodes if node is not root)]
    return all(name not in kept and all(reader in nodes for reader in readers.get(name, ())) for name in inner)
