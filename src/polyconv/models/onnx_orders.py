"""Rewrites of ONNX graphs by which products of two computed operands read and write them as they lie.

Attention takes its heads apart by a Transpose, scales its operands, multiplies them, and puts heads together by a
Transpose.  The one idea: a product reads rows with any distance between them, and stores rows so, so that it needs none
of those copies; and a number by which an operand is multiplied may as well multiply the sums.  It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyconv.models.elements import BY_TYPE
from polyconv.models.graph import Array, Node
from polyconv.models.native import OWN
from polyconv.models.onnx_products import FLOATS, named_axes, other_axes
from polyconv.models.rewriting import Change, View, standing_for

__all__ = ["added_product", "attention", "later_turned", "scaled_product", "turned_product"]

_MOST_ADDED = 1 << 16
"""Elements that are added: as many as a second cache has beside the factors; more are read faster in a pass."""
_MOST_SCALED = 1024.0
"""By which sums are multiplied, or divided, at most: sums of what is not scaled yet must not overflow."""
_ORDERS = {"Product": ("a_order", "b_order"), "Attention": ("q_order", "k_order", "v_order")}
"""By operator: the names of the orders in which its operands are seen."""


def turned_product(node: Node, view: View) -> Change | None:
    """``MatMul(Transpose(a), Transpose(b))``, and ``Transpose`` of one -> a product that reads and stores in order.

    Of attention alike.
    """
    made = _as_product(node, view)
    if made is None:
        return None
    for at, name in enumerate(_ORDERS[made.op]):
        turn = view.makers.get(made.inputs[at])
        perm = None if turn is None or view.only_reader(made.inputs[at]) is not node else _perm(turn, view)
        if turn is not None and perm is not None:
            inputs = _with(made.inputs, at, turn.inputs[0])
            order = [perm[axis] for axis in made.attributes.get(name, range(len(perm)))]
            return _changed(made, (turn, node), inputs=inputs, attributes={**made.attributes, name: order})
    turn = view.only_reader(made.outputs[0])
    perm = None if turn is None else _perm(turn, view)
    if turn is None or perm is None or perm[-1] != len(perm) - 1:  # elements of a row stay together
        return None
    stored = made.attributes.get("y_order", range(len(perm)))
    order = [stored[axis] for axis in perm]
    return _changed(made, (node, turn), outputs=turn.outputs, attributes={**made.attributes, "y_order": order})


def scaled_product(node: Node, view: View) -> Change | None:
    """``MatMul(Mul(a, s), b)``, and ``Mul`` or ``Div`` of one by a number -> a product whose sums are multiplied."""
    made = _as_product(node, view)
    if made is None:
        return None
    places = [(at, view.makers.get(name)) for at, name in enumerate(made.inputs[:2]) if view.only_reader(name) is node]
    after = view.only_reader(made.outputs[0]) if len(made.inputs) == 2 else None
    for at, factor in (*places, (2, after)):
        found = None if factor is None else _number(factor, view)
        scale = 0.0 if found is None else made.attributes.get("scale", 1.0) * found[1]
        if factor is None or found is None or not 1 / _MOST_SCALED <= abs(scale) <= _MOST_SCALED:
            continue
        attributes = {**made.attributes, "scale": scale}
        if at == 2:
            return _changed(made, (node, factor), outputs=factor.outputs, attributes=attributes)
        return _changed(made, (factor, node), inputs=_with(made.inputs, at, found[0]), attributes=attributes)
    return None


def added_product(node: Node, view: View) -> Change | None:
    """``Add(MatMul(a, b), c)`` of a c that has all columns -> a product that adds it."""
    made = _as_product(node, view)
    add = None if made is None or len(made.inputs) > 2 else view.only_reader(made.outputs[0])
    if made is None or add is None or add.op != "Add" or add.domain or add.attributes or "y_order" in made.attributes:
        return None
    others = [name for name in add.inputs if name != made.outputs[0]]
    if not _is_added(made.outputs[0], others, view, _MOST_ADDED):
        return None
    other = others[0]
    return _changed(made, (node, add), inputs=(*made.inputs, other), outputs=add.outputs)


def attention(node: Node, view: View) -> Change | None:
    """``MatMul(Softmax(MatMul(q, k)), v)``, and with ``Add`` before the ``Softmax`` -> attention, as one step.

    Also where ``Where`` puts 0 for weights that are no numbers.
    """
    guard = _guard(node, view)
    first, name = view.makers.get(node.inputs[0]), guard[-1].outputs[0] if guard else node.outputs[0]
    last = view.only_reader(name)
    if last is None or not _is_product(last) or last.inputs[0] != name:
        return None
    gone, others = [node, *guard, last], list[str]()
    if first is not None and first.op == "Add" and not first.domain and view.only_reader(first.outputs[0]) is node:
        gone.insert(0, first)
        summed = [name for name in first.inputs if _is_product(view.makers.get(name))]
        others = [name for name in first.inputs if name not in summed[:1]]
        first = view.makers.get(summed[0]) if summed and _is_added(summed[0], others, view) else None
    made = _as_product(first, view) if first is not None and _is_product(first) else None
    values = _as_product(last, view)
    if first is None or made is None or values is None or len(values.inputs) > 2 or not _is_last(node, view):
        return None
    if view.only_reader(first.outputs[0]) is not gone[0] or (others and len(made.inputs) > 2):
        return None
    if "y_order" in made.attributes or {"a_order", "scale"}.intersection(values.attributes):
        return None
    names = {"a_order": "q_order", "b_order": "k_order"}
    words = {names.get(name, name): word for name, word in made.attributes.items()}
    words |= {{"b_order": "v_order"}.get(name, name): word for name, word in values.attributes.items()}
    words |= {"guarded": 1} if guard else {}
    q, k, *added = made.inputs
    changed = _changed(made, (first, *gone), inputs=(q, k, values.inputs[1], *added, *others), outputs=last.outputs,
                       attributes=words)  # fmt: skip
    return replace(changed, nodes=(replace(changed.nodes[0], op="Attention"),))


def _guard(node: Node, view: View) -> list[Node]:
    """``Where(IsNaN(p), 0, p)`` of what a node makes, if nobody else reads it; else nothing."""
    name = node.outputs[0]
    readers = view.readers.get(name, ())
    tests = [each for each in readers if each.op == "IsNaN" and not each.domain]
    chosen = view.only_reader(tests[0].outputs[0]) if tests else None
    if chosen is None or chosen.op != "Where" or {*readers} != {tests[0], chosen} or name in view.results:
        return []
    zero = view.constant(chosen, 1)
    is_so = chosen.inputs[0] == tests[0].outputs[0] and chosen.inputs[2] == name and zero is not None and not zero.any()
    return [tests[0], chosen] if is_so and zero is not None and zero.size == 1 else []


def _is_product(node: Node | None) -> bool:
    return node is not None and node.op in ("MatMul", "Product")


def _is_last(node: Node, view: View) -> bool:
    """Whether a Softmax is one over the last axis."""
    value = view.values.get(node.outputs[0])
    axis = node.attributes.get("axis", -1 if node.version >= 13 else 1)
    return axis == -1 or (value is not None and value.dims is not None and axis == len(value.dims) - 1)


def later_turned(node: Node, view: View) -> Change | None:
    """``Split(Transpose(x))``, ``Gather`` or ``Squeeze`` of one -> ``Transpose(Split(x))``, where products read it."""
    turn = view.makers.get(node.inputs[0])
    perm = None if turn is None else _perm(turn, view)
    if turn is None or perm is None or not any(_is_multiplied(name, view) for name in node.writes):
        return None
    axes = _axes(node, view, len(perm))
    if axes is None:
        return None
    before, left = [perm[axis] for axis in axes], [axis for at, axis in enumerate(perm) if at not in axes]
    if node.op == "Split":
        left = perm
    order = [sorted(left).index(axis) for axis in left]
    inner = [view.fresh(f"{name} before {turn.name}") if name else "" for name in node.outputs]
    constants = dict[str, Array]()
    if node.op == "Squeeze":
        first, constants = other_axes("Squeeze", node, turn.inputs[0], inner[0], before, view)
    else:
        words, inputs = {**node.attributes, "axis": before[0]}, (turn.inputs[0], *node.inputs[1:])
        first = standing_for(node, (node,), inputs=inputs, outputs=tuple(inner), attributes=words)
    turns = [
        standing_for(turn, (turn,), inputs=(name,), outputs=(output,), attributes={"perm": order})
        for name, output in zip(inner, node.outputs, strict=True) if name
    ]  # fmt: skip
    gone = (turn, node) if view.only_reader(node.inputs[0]) is node else (node,)
    return Change(gone, (first, *turns), constants)


def _as_product(node: Node, view: View) -> Node | None:
    """A MatMul of two computed matrices, or of stacks of them, as the product that can be told more."""
    if node.domain == OWN:
        return node
    values = [view.values.get(name) for name in (*node.inputs, *node.outputs)]
    if any(value is None or value.type != values[0].type for value in values if values[0] is not None):
        return None
    kind = values[0].type if values[0] is not None else ""
    is_known = all(value is not None and value.dims is not None and len(value.dims) > 1 for value in values)
    if kind not in FLOATS or not is_known or any(name in view.constants for name in node.inputs):
        return None
    words = {"dtype": BY_TYPE[kind].numpy.name}
    return replace(standing_for(node, (node,), attributes=words), op="Product", domain=OWN, version=1)


def _changed(made: Node, gone: Sequence[Node], **fields: object) -> Change:
    return Change(tuple(gone), (standing_for(made, gone, **fields),))


def _is_added(name: str, others: Sequence[str], view: View, most: float = math.inf) -> bool:
    """Whether one other value is added to a product: of all its columns, repeated along others, and not too large."""
    if len(others) != 1:
        return False
    constant = view.constants.get(others[0])
    values = [view.values.get(each) for each in (name, others[0])]
    of_y, of_c = (None if value is None else value.dims for value in values)
    if constant is not None:
        of_c = constant.shape
    if not of_y or not of_c or len(of_c) > len(of_y) or of_c[-1] != of_y[-1] or of_c[-1] == 1:
        return False
    extents = [c for c in of_c if isinstance(c, int)]
    pairs = zip(of_c[::-1], of_y[::-1], strict=False)
    return len(extents) == len(of_c) and all(c in (1, y) for c, y in pairs) and math.prod(extents) <= most


def _with(inputs: Sequence[str], at: int, name: str) -> tuple[str, ...]:
    return (*inputs[:at], name, *inputs[at + 1 :])


def _perm(node: Node, view: View) -> list[int] | None:
    """The order that a Transpose gives axes; None of other nodes, and where the file does not say it."""
    if node.op != "Transpose" or node.domain:
        return None
    value = view.values.get(node.inputs[0])
    rank = None if value is None or value.dims is None else len(value.dims)
    given = node.attributes.get("perm", None if rank is None else range(rank - 1, -1, -1))
    return None if given is None or sorted(given) != list(range(len(given))) else list(given)


def _number(node: Node, view: View) -> tuple[str, float] | None:
    """What a Mul or Div by one number multiplies, and by what."""
    if node.op not in ("Mul", "Div") or node.domain or node.attributes or len(node.inputs) != 2:
        return None
    for at in (1, 0) if node.op == "Mul" else (1,):
        given, value = view.constant(node, at), view.values.get(node.inputs[1 - at])
        if given is None or given.size != 1:
            continue
        if given.ndim and (value is None or value.dims is None or given.ndim > len(value.dims)):
            continue  # it may give the other one more axes
        number = float(given.reshape(-1)[0])
        if number and np.isfinite(number):
            return node.inputs[1 - at], number if node.op == "Mul" else 1.0 / number
    return None


def _axes(node: Node, view: View, rank: int) -> list[int] | None:
    """Axes along which a node takes apart what it reads, or that it leaves out; None where that is not known."""
    if node.op == "Squeeze":
        axes = named_axes(node, view)
    elif node.op == "Gather":
        index = view.constant(node, 1)
        axes = [node.attributes.get("axis", 0)] if index is not None and not index.ndim else None
    else:
        axes = [node.attributes.get("axis", 0)]
    if not axes or not all(-rank <= axis < rank for axis in axes):
        return None
    found = [axis % rank for axis in axes]
    return found if len(set(found)) == len(found) else None


_ON_THE_WAY = ("Div", "Gather", "Mul", "Split", "Squeeze", "Transpose")


def _is_multiplied(name: str, view: View, steps: int = 5) -> bool:
    """Whether a value, or what is taken from it in a few steps, is an operand of a product."""
    return any(
        reader.op in _ORDERS or (reader.op == "MatMul" and not any(n in view.constants for n in reader.inputs))
        or (steps and reader.op in _ON_THE_WAY and any(_is_multiplied(n, view, steps - 1) for n in reader.writes))
        for reader in view.readers.get(name, ())
    )  # fmt: skip
