"""Rewrites of ONNX graphs that make one node of a normalisation.

Before operator sets had LayerNormalization and GroupNormalization, and where a library computes its own, files spell
them: ``d = x - mean(x)``, ``d / sqrt(mean(d d) + epsilon)``, and scales and shifts behind it.  The one idea: whatever
is spelled, a line of numbers is taken off its mean and divided by its deviation, and the lines' axes say which operator
that is.  It runs nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyconv.models.elements import type_of
from polyconv.models.graph import Array, Node, along
from polyconv.models.native import OWN
from polyconv.models.onnx_products import FLOATS
from polyconv.models.rewriting import Change, View, standing_for

__all__ = ["centred_lines", "grouped_lines", "scaled_lines"]


def centred_lines(node: Node, view: View) -> Change | None:
    """``Div(Sub(x, m), Sqrt(Add(v, epsilon)))`` -> ``LayerNormalization(x)``, without scales.

    ``m`` is the mean of x over neighbouring axes, ``v`` that of the squares of ``Sub(x, m)``.
    """
    x = view.values.get(node.inputs[0])
    axes = _axes(node, view)
    apart = view.only_reader(node.outputs[0])
    if x is None or axes is None or x.type not in FLOATS or apart is None or apart.op != "Sub" or apart.domain:
        return None
    if tuple(apart.inputs) != (node.inputs[0], node.outputs[0]) or apart.outputs[0] in view.results:
        return None
    squared, ends = _square(apart.outputs[0], view)
    variance = None if squared is None else view.only_reader(squared.outputs[0])
    if squared is None or len(ends) != 1 or variance is None or variance.op != "ReduceMean":
        return None
    found = _deviation(variance, view)
    if _axes(variance, view) != axes or found is None:
        return None
    epsilon, behind, divides = found
    (end,) = ends
    if end.op != ("Div" if divides else "Mul") or end.domain:
        return None
    y = view.values.get(end.outputs[0])
    if (divides and end.inputs[0] != apart.outputs[0]) or view.only_reader(behind[-1].outputs[0]) is not end:
        return None
    if y is None or y.dims is None or len(y.dims) != len(x.dims or ()):  # a constant has more axes
        return None
    made = Node(end.name, "LayerNormalization", OWN, 17, node.inputs[:1], end.outputs,
                {"axis": axes[0], "last_axis": axes[-1], "epsilon": epsilon})  # fmt: skip
    gone = (node, apart, squared, variance, *behind, end)
    return Change(gone, (standing_for(made, gone),))


def _axes(node: Node, view: View) -> tuple[int, ...] | None:
    """The neighbouring axes of a mean that stay, with an extent of 1, in order; None if there are others."""
    value, given = view.values.get(node.inputs[0]), node.attributes.get("axes")
    if len(node.inputs) > 1:
        held = view.constant(node, 1)
        given = None if held is None else held.reshape(-1).tolist()
    if not given or value is None or not value.dims or node.attributes.get("keepdims", 1) != 1 or node.domain:
        return None
    axes = tuple(sorted(int(axis) % len(value.dims) for axis in given))
    return axes if axes == tuple(range(axes[0], axes[-1] + 1)) else None


def _square(name: str, view: View) -> tuple[Node | None, list[Node]]:
    """What squares a value, and what else reads it."""
    squared, others = None, list[Node]()
    for reader in dict.fromkeys(view.readers.get(name, ())):
        two = view.constant(reader, 1) if reader.op == "Pow" else None
        squares = reader.op == "Mul" and tuple(reader.inputs) == (name, name)
        squares = squares or (two is not None and two.size == 1 and bool(two.flat[0] == 2))
        if squared is None and not reader.domain and squares:
            squared = reader
        else:
            others.append(reader)
    return squared, others


def _deviation(variance: Node, view: View) -> tuple[float, list[Node], bool] | None:
    """Epsilon, the nodes behind a variance that make its root, or one over it, and whether it is the root."""
    shifted = view.only_reader(variance.outputs[0])
    if shifted is None or shifted.op != "Add" or shifted.domain:
        return None
    given = next((n for at in (0, 1) if (n := view.constant(shifted, at)) is not None), None)
    root = view.only_reader(shifted.outputs[0])
    if given is None or given.size != 1 or root is None or root.domain:
        return None
    half = view.constant(root, 1) if root.op == "Pow" else None
    power = 0.5 if root.op == "Sqrt" else float(half.flat[0]) if half is not None and half.size == 1 else 0.0
    epsilon, behind, after = float(given.flat[0]), [shifted, root], view.only_reader(root.outputs[0])
    if abs(power) != 0.5 or not epsilon >= 0.0 or after is None:
        return None
    if power > 0 and not after.domain and _is_reciprocal(after, root.outputs[0], view):
        return epsilon, [*behind, after], False
    return epsilon, behind, power > 0


def _is_reciprocal(node: Node, name: str, view: View) -> bool:
    """Whether a node makes one over a value."""
    one = view.constant(node, 0) if node.op == "Div" and node.inputs[1] == name else None
    return node.op == "Reciprocal" or (one is not None and one.size == 1 and float(one.flat[0]) == 1.0)


def _numbers(following: Node | None, op: str, view: View, kind: str, rank: int, axis: int) -> Array | None:
    """What a Mul or Add that follows has for each element along an axis; None of other nodes, and of other types."""
    if following is None or following.op != op or following.domain or following.attributes:
        return None
    given = next((n for at in (0, 1) if (n := view.constant(following, at)) is not None), None)
    return None if given is None or type_of(given.dtype) != kind else along(given, rank, axis)


def grouped_lines(node: Node, view: View) -> Change | None:
    """``Reshape(InstanceNormalization(Reshape(x)))`` of groups of channels -> ``GroupNormalization(x)``.

    With the ``Mul`` and ``Add`` by channel that follow, as PyTorch exports it; numbers in f64, rounded once.
    """
    before, after = view.makers.get(node.inputs[0]), view.only_reader(node.outputs[0])
    given = [view.constant(node, at) for at in (1, 2)]
    moves = [each for each in (before, after) if each is not None and each.op == "Reshape" and not each.domain]
    if len(moves) < 2 or view.only_reader(node.inputs[0]) is not node or any(g is None or g.ndim != 1 for g in given):
        return None
    x, y = view.values.get(moves[0].inputs[0]), view.values.get(moves[1].outputs[0])
    lines = view.values.get(node.inputs[0])
    if x is None or y is None or not x.dims or x.dims != y.dims or len(x.dims) < 3 or x.type not in FLOATS:
        return None
    scale, shift = (g.astype(np.float64) for g in given if g is not None)
    groups, channels = len(scale), x.dims[1]
    dims = () if lines is None or lines.dims is None else lines.dims
    if len(dims) != 3 or dims[:2] != (x.dims[0], groups) or None in x.dims or not isinstance(channels, int):
        return None
    if not groups or channels % groups or len(shift) != groups:
        return None
    scale, shift = (np.repeat(each, channels // groups) for each in (scale, shift))
    taken = [moves[0], node, moves[1]]
    for op in ("Mul", "Add"):
        following = view.only_reader(taken[-1].outputs[0])
        numbers = _numbers(following, op, view, x.type, len(x.dims), 1)
        if following is None or numbers is None or numbers.size not in (1, channels):
            break
        taken.append(following)
        scale, shift = (scale * numbers, shift * numbers) if op == "Mul" else (scale, shift + numbers)
    name, kind = taken[-1].outputs[0], view.constants[node.inputs[1]].dtype
    with np.errstate(over="ignore"):
        held = (scale.astype(kind), shift.astype(kind))
    constants = {view.fresh(f"{role} of {name}"): each for role, each in zip(("scale", "shift"), held, strict=True)}
    words = {"num_groups": groups, "epsilon": node.attributes.get("epsilon", 1e-5)}
    made = Node(node.name, "GroupNormalization", "", 21, (moves[0].inputs[0], *constants), (name,), words)
    return Change(tuple(taken), (standing_for(made, taken),), constants)


def scaled_lines(node: Node, view: View) -> Change | None:
    """``Add(Mul(LayerNormalization(x), s), b)`` -> ``LayerNormalization(x, s, b)``, of lines along one axis.

    Where lines are whole images, or channels of them, and s and b have a number a channel:
    ``GroupNormalization(x, s, b)`` of one group, or ``InstanceNormalization(x, s, b)``.
    """
    x, a = view.values.get(node.inputs[0]), node.attributes
    if len(node.inputs) != 1 or len(node.outputs) != 1 or x is None or not x.dims:
        return None
    rank = len(x.dims)
    first, last = a.get("axis", -1) % rank, a.get("last_axis", rank - 1)
    for axis in dict.fromkeys((first, 1)):
        is_line = axis == first == last
        if not is_line and (axis != 1 or first > 2 or last != rank - 1 or rank < 3 or node.domain != OWN):
            continue
        found = _scales(node, view, rank, axis)
        if found is None:
            continue
        taken, held = found
        name, words = taken[-1].outputs[0], {"epsilon": a.get("epsilon", 1e-5)}
        constants = {view.fresh(f"{role} of {name}"): n for role, n in zip(("scale", "shift"), held, strict=True)}
        inputs, made = (node.inputs[0], *constants), node
        if not is_line and first == 1:
            made = replace(node, op="GroupNormalization", domain="", version=21, attributes={**words, "num_groups": 1})
        elif not is_line:
            made = replace(node, op="InstanceNormalization", domain="", version=6, attributes=words)
        return Change(tuple(taken), (standing_for(made, taken, inputs=inputs, outputs=(name,)),), constants)
    return None


def _scales(node: Node, view: View, rank: int, axis: int) -> tuple[list[Node], list[Array]] | None:
    """A node and the Mul and the Add behind it that have a number for each element along an axis, and these."""
    x = view.values[node.inputs[0]]
    assert x.dims is not None
    taken, held = [node], list[Array]()
    for op in ("Mul", "Add"):
        following = view.only_reader(taken[-1].outputs[0])
        numbers = _numbers(following, op, view, x.type, rank, axis)
        if following is None or numbers is None or numbers.size != x.dims[axis]:
            return None
        taken.append(following)
        held.append(numbers)
    return taken, held
