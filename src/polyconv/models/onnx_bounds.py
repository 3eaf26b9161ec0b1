"""Operators of ONNX graphs that hold values between two numbers, whatever they are called.

The one idea: Relu, Clip, and Max and Min with one number are the same with other bounds, and two of them in a row are
one.  It runs nothing.
"""

from __future__ import annotations

import math

import numpy as np

from polyconv.models.graph import Array, Node
from polyconv.models.rewriting import Change, View

__all__ = ["CLIPPING", "bounds_of", "clipped"]

CLIPPING = ("Relu", "Clip")
"""What is left of them behind ``clipped``."""

_TAKES_BOUNDS = 11
"""The opset since which the bounds of a Clip are inputs."""


def bounds_of(node: Node, view: View) -> tuple[float, float] | None:
    """Between what a Relu, or a Clip with constant bounds, holds values."""
    if node.op == "Relu":
        return 0.0, math.inf
    if node.version < _TAKES_BOUNDS:
        return float(node.attributes.get("min", -math.inf)), float(node.attributes.get("max", math.inf))
    found = []
    for position, absent in ((1, -math.inf), (2, math.inf)):
        given = view.constant(node, position)
        is_given = len(node.inputs) > position and bool(node.inputs[position])
        if is_given and (given is None or given.size != 1):
            return None
        found.append(absent if given is None else float(given.reshape(-1)[0]))
    return (found[0], found[1]) if found[0] <= found[1] else None


def clipped(node: Node, view: View) -> Change | None:
    """``Max(x, low)`` or ``Min(x, high)`` -> ``Clip(x)``; ``Clip(Clip(x))``, or of a Relu -> one ``Clip``."""
    if view.opsets[""] < _TAKES_BOUNDS:
        return None
    return _in_a_row(node, view) if node.op == "Clip" else _by_one_number(node, view)


def _by_one_number(node: Node, view: View) -> Change | None:
    numbers = [array for array in map(view.constants.get, node.inputs) if array is not None]
    if len(node.inputs) != 2 or len(numbers) != 1:
        return None
    (bound,) = numbers
    x = next(name for name in node.inputs if name not in view.constants)
    value = view.values.get(x)
    rank = 0 if value is None or value.dims is None else len(value.dims)
    if bound.size != 1 or bound.ndim > rank or bound.dtype not in (np.float32, np.float64) or np.isnan(bound).any():
        return None
    ends = (bound, None) if node.op == "Max" else (None, bound)
    return _clip(x, ends, (node,), view)


def _in_a_row(node: Node, view: View) -> Change | None:
    inner, bounds = view.makers.get(node.inputs[0]), bounds_of(node, view)
    held = [array for array in (view.constant(node, 1), view.constant(node, 2)) if array is not None]
    if inner is None or inner.op not in CLIPPING or inner.domain or bounds is None or not held:
        return None
    before = bounds_of(inner, view)
    if before is None or held[0].dtype.kind != "f" or view.only_reader(inner.outputs[0]) is not node:
        return None
    ends = [np.array(min(max(bound, bounds[0]), bounds[1]), held[0].dtype) for bound in before]
    return _clip(inner.inputs[0], (ends[0], ends[1]), (inner, node), view)


def _clip(x: str, ends: tuple[Array | None, Array | None], taken: tuple[Node, ...], view: View) -> Change:
    """The Clip of a value in the place of some nodes, of which the last makes its result."""
    last = taken[-1]
    names = ["" if end is None else view.fresh(f"{which} of {last.outputs[0]}")
             for which, end in zip(("least", "most"), ends, strict=True)]  # fmt: skip
    constants = {name: end.reshape(()) for name, end in zip(names, ends, strict=True) if end is not None}
    inputs = (x, *names) if names[1] else (x, *names[:1])
    stands_for = tuple(each for part in taken for each in part.of_file)
    made = Node(last.name, "Clip", "", view.opsets[""], inputs, last.outputs, stands_for=stands_for)
    return Change(taken, (made,), constants)
