"""Rewrites of ONNX graphs by which what is written over a part of an array is joined with the rest of it.

PyTorch exports ``y[:, 2:5] = x`` as a ScatterND by the places of all that is written.  It runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyconv.models.graph import Array, Node
from polyconv.models.rewriting import Change, View, standing_for

__all__ = ["written_over"]


_ENDS = ("from", "to", "axis")
"""What a Slice reads beside its input."""


def written_over(node: Node, view: View) -> Change | None:
    """``ScatterND(data, places, updates)`` -> ``Concat(data before them, updates, data behind them)`` along one axis.

    Places must be constant and all those of a box, in order, which has all of the other axes.
    """
    places, value = view.constant(node, 1), view.values.get(node.inputs[0])
    if places is None or value is None or value.dims is None or node.attributes.get("reduction", "none") != "none":
        return None
    rank = places.shape[-1] if places.ndim else 0
    dims = [d for d in value.dims[:rank] if isinstance(d, int)]
    if places.ndim != rank + 1 or not places.size or len(dims) < rank:
        return None
    begin = _begin(places, dims)
    if begin is None:
        return None
    cut = [a for a in range(rank) if places.shape[a] < dims[a]]
    if len(cut) > 1:
        return None
    axis = cut[0] if cut else 0
    end = begin[axis] + places.shape[axis]
    made, parts, constants = list[Node](), list[str](), dict[str, Array]()
    for side, first, last in (("before", 0, begin[axis]), ("behind", end, dims[axis])):
        if first < last:
            name = view.fresh(f"{side} {node.outputs[0]}")
            ends = {f"{name}, {what}": np.array([at]) for what, at in zip(_ENDS, (first, last, axis), strict=True)}
            made.append(Node(name, "Slice", "", 13, (node.inputs[0], *ends), (name,), {}))
            parts.append(name)
            constants |= ends
        if side == "before":
            parts.append(node.inputs[2])
    made.append(Node(node.name, "Concat", "", 13, tuple(parts), node.outputs, {"axis": axis}))
    return Change((node,), (*made[:-1], standing_for(made[-1], (node,))), constants)


def _begin(places: Array, dims: Sequence[int]) -> list[int] | None:
    """The least place of a box of which all places are given, in order; None where they are others."""
    begin, rank = list[int](), len(dims)
    for axis, extent in enumerate(dims):
        of_axis = places[..., axis]
        first = int(of_axis.flat[0])
        row = np.arange(first, first + of_axis.shape[axis]).reshape([-1 if a == axis else 1 for a in range(rank)])
        first += extent if first < 0 else 0
        if (of_axis != row).any() or not 0 <= first <= extent - of_axis.shape[axis]:
            return None
        begin.append(first)
    return begin
