"""Rewrites of ONNX graphs by which sums of products over letters (Einsum) become products of matrices.

``bhqd,bhkd->bhqk`` names axes by letters: those of one operand alone are rows or columns, one that the result lacks is
summed over, and the others count matrices.  The one idea: which axis is which is a matter of order, in which a product
reads and stores arrays anyhow.  Of constant weights the letters that belong together become one axis.  It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from polyconv.models.elements import BY_TYPE, type_of
from polyconv.models.graph import Array, Node, Value
from polyconv.models.native import OWN
from polyconv.models.onnx_products import FLOATS, other_axes
from polyconv.models.rewriting import Change, View, standing_for
from polyconv.operators.counting import letters_of

__all__ = ["sums_of_products"]

_ROW = "1"
"""Stands for the letter of rows where a product has one row."""


class _Terms(NamedTuple):
    """The letters of two operands and of the result, and those summed over."""

    left: str
    right: str
    made: str
    summed: str

    def swapped(self) -> _Terms:
        return self._replace(left=self.right, right=self.left)


def sums_of_products(node: Node, view: View) -> Change | None:
    """``Einsum(a, b)`` -> a product of a and b in some order of their axes, or of one and constant weights."""
    found = letters_of(node.attributes)
    if found is None or len(found[0]) != 2 or len(node.inputs) != 2:
        return None
    (left, right), made = found
    if any(len(set(letters)) < len(letters) for letters in (left, right)):  # it takes a diagonal
        return None
    summed = "".join(letter for letter in left if letter in right and letter not in made)
    terms, values = _Terms(left, right, made, summed), [_known(name, view) for name in node.inputs]
    if not summed or set(left) | set(right) != {*made, *summed} or not made or not _fit(terms, values):
        return None
    constant = [name in view.constants for name in node.inputs]
    if constant == [False, False]:
        return _product(node, view, terms) if len(summed) == 1 else None
    if constant == [False, True]:
        return _weighted(node, view, terms, node.inputs)
    return _weighted(node, view, terms.swapped(), node.inputs[::-1]) if constant == [True, False] else None


def _known(name: str, view: View) -> Value | None:
    array = view.constants.get(name)
    return view.values.get(name) if array is None else Value(name, type_of(array.dtype), array.shape)


def _fit(terms: _Terms, values: Sequence[Value | None]) -> bool:
    """Whether operands have one type and as many axes as letters, and equal extents where they are summed."""
    a, b = values
    if a is None or b is None or a.type != b.type or a.type not in FLOATS or a.dims is None or b.dims is None:
        return False
    if (len(a.dims), len(b.dims)) != (len(terms.left), len(terms.right)):
        return False
    of_a, of_b = dict(zip(terms.left, a.dims, strict=True)), dict(zip(terms.right, b.dims, strict=True))
    return all(of_a[letter] == of_b[letter] is not None for letter in terms.summed)  # 1 would be repeated


# -- two computed operands -----------------------------------------------------------------------------


def _product(node: Node, view: View, terms: _Terms) -> Change | None:
    """A product of two operands that come with a run."""
    names = node.inputs
    if set(terms.right) <= set(terms.left) or (terms.made[-1] in terms.left and terms.made[-1] not in terms.right):
        terms, names = terms.swapped(), names[::-1]  # the last letter of the result, if it can be, is that of columns
    columns = [letter for letter in terms.made if letter not in terms.left]
    rows = [letter for letter in terms.made if letter not in terms.right]
    if not columns:
        return None
    column = columns[-1]
    row = rows[-1] if rows else _ROW
    stack = [letter for letter in terms.made if letter not in (row, column)]
    nodes, constants, inputs = list[Node](), dict[str, Array](), list[str]()
    words: dict[str, Any] = {"dtype": BY_TYPE[view.values[names[0]].type].numpy.name}
    wanted = {"a_order": [*stack, row, terms.summed], "b_order": [*stack, terms.summed, column]}
    for name, letters, (role, order) in zip(names, terms[:2], wanted.items(), strict=True):
        new = [letter for letter in _needed(order, letters) if letter not in letters]
        given, there = name, [*new, *letters]
        if new:
            given = view.fresh(f"{name} for {node.outputs[0]}")
            shown, axes = other_axes("Unsqueeze", node, name, given, range(len(new)), view)
            nodes.append(shown)
            constants |= axes
        _say(words, role, [there.index(letter) for letter in _needed(order, letters)])
        inputs.append(given)
    outputs, after = _stored(node, view, terms.made, [*stack, row, column], words, constants)
    made = standing_for(node, (node,), op="Product", domain=OWN, version=1, inputs=tuple(inputs), outputs=(outputs,),
                        attributes=words)  # fmt: skip
    return Change((node,), (*nodes, made, *after), constants)


def _needed(order: Sequence[str], letters: str) -> list[str]:
    """Letters of an operand in order, but for those in front that it lacks: matrices are repeated along them."""
    first = next(at for at, letter in enumerate(order) if letter in letters or at == len(order) - 2)
    return list(order[first:])


def _say(words: dict[str, Any], role: str, order: Sequence[int]) -> None:
    """Say an order of axes, if it is another one than that in which they lie."""
    if list(order) != list(range(len(order))):
        words[role] = list(order)


def _stored(node: Node, view: View, made: str, stack: Sequence[str], words: dict[str, Any],
            constants: dict[str, Array]) -> tuple[str, list[Node]]:  # fmt: skip
    """What a product is called, and the views and turns of it that are the result; its order is added to ``words``."""
    *_, row, column = stack
    order = [letter for letter in made if letter != column]
    order += [_ROW, column] if row == _ROW else [column]
    _say(words, "y_order", [stack.index(letter) for letter in order])
    after, name = list[Node](), node.outputs[0]
    if made[-1] != column:
        there = [letter for letter in order if letter != _ROW]
        inner = view.fresh(f"{name} before it is turned")
        perm = {"perm": [there.index(letter) for letter in made]}
        after.insert(0, _node(node, view, "Transpose", (inner,), name, perm))
        name = inner
    if row == _ROW:
        inner = view.fresh(f"{name} with one row")
        shown, axes = other_axes("Squeeze", node, inner, name, (len(order) - 2,), view)
        after.insert(0, shown)
        constants |= axes
        name = inner
    return name, after


# -- constant weights ----------------------------------------------------------------------------------


def _weighted(node: Node, view: View, terms: _Terms, names: Sequence[str]) -> Change | None:
    """A product of one operand with weights that have no letter in common with the result but their columns."""
    x, w = names[0], view.constants[names[1]]
    left = [letter for letter in terms.left if letter not in terms.summed]
    columns = [letter for letter in terms.made if letter not in left]
    if not left or not columns or any(letter in terms.right for letter in left) or not w.size:
        return None
    order = [*terms.summed, *columns]
    extents = dict(zip(terms.right, w.shape, strict=True))
    matrix = w.transpose([terms.right.index(letter) for letter in order]).reshape(
        math.prod(extents[letter] for letter in terms.summed), -1
    )
    nodes, constants, there = list[Node](), dict[str, Array](), [*left, *terms.summed]
    if there != list(terms.left):
        turned = view.fresh(f"{x} turned for {node.outputs[0]}")
        nodes.append(_node(node, view, "Transpose", (x,), turned, {"perm": [terms.left.index(n) for n in there]}))
        x = turned
    if len(terms.summed) > 1:
        x = _reshaped(node, view, x, view.fresh(f"{x} in rows"), [0] * len(left) + [len(matrix)], nodes, constants)
    held = view.fresh(f"weights of {node.outputs[0]}")
    constants[held] = matrix
    last, made = [*left, *columns], node.outputs[0]
    is_turned, is_split = last != list(terms.made), len(columns) > 1
    name = view.fresh(f"rows of {made}") if is_turned or is_split else made
    nodes.append(_node(node, view, "MatMul", (x, held), name, {}))
    if is_split:
        split = view.fresh(f"{made} before it is turned") if is_turned else made
        shape = [0] * len(left) + [extents[letter] for letter in columns]
        name = _reshaped(node, view, name, split, shape, nodes, constants)
    if is_turned:
        nodes.append(_node(node, view, "Transpose", (name,), made, {"perm": [last.index(n) for n in terms.made]}))
    return Change((node,), tuple(nodes), constants)


def _reshaped(node: Node, view: View, x: str, y: str, shape: Sequence[int], nodes: list[Node],
              constants: dict[str, Array]) -> str:  # fmt: skip
    """Append a Reshape, and say what it makes."""
    which = view.fresh(f"shape of {y}")
    constants[which] = np.array(shape)
    nodes.append(_node(node, view, "Reshape", (x, which), y, {}))
    return y


def _node(node: Node, view: View, op: str, inputs: tuple[str, ...], output: str, attributes: dict[str, Any]) -> Node:
    return standing_for(node, (node,), op=op, version=view.opsets[""], inputs=inputs, outputs=(output,),
                        attributes=attributes)  # fmt: skip
