"""Rewrites of ONNX graphs by which convolutions whose results are joined take up what is done to the whole.

The one idea: what sees each element alone, or each channel, is done to the parts as well, and a convolution does it on
its way out.  It runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyconv.models.activations import activation_of
from polyconv.models.graph import Array, Node
from polyconv.models.onnx_products import ACTIVATIONS
from polyconv.models.onnx_weights import held_weights, output_channels
from polyconv.models.rewriting import Change, View, standing_for
from polyconv.models.spelled import spelled_out

__all__ = ["activated_parts", "normalised_parts"]


_ROLES = ("scale", "shift", "mean", "variance")
"""What a BatchNormalization reads behind its input; two of them may be one value."""


def activated_parts(join: Node, view: View) -> Change | None:
    """``Relu(Concat(Conv(x), Conv(y)))`` -> ``Concat(Relu(Conv(x)), Relu(Conv(y)))``; spelled-out activations alike."""
    name = join.outputs[0]
    parts, alone = _parts(join, view), view.only_reader(name)
    if any("activation" in part.attributes for part in parts) or not parts:
        return None
    if alone is not None and not alone.domain and alone.op in ACTIVATIONS and alone.inputs[0] == name:
        return _apart([alone], join, [{}] * len(parts), view)
    found = spelled_out(name, view.readers, view.results, view.constants, activation_of)
    return None if found is None else _apart(found[1], join, [{}] * len(parts), view)


def normalised_parts(node: Node, view: View) -> Change | None:
    """``BatchNormalization(Concat(Conv(x), Conv(y)))`` -> ``Concat`` of a ``BatchNormalization`` of each."""
    join = view.makers.get(node.inputs[0])
    parts = _parts(join, view) if join is not None and view.only_reader(node.inputs[0]) is node else []
    weights = [view.constant(part, 1) for part in parts]
    counts = [output_channels(part, w) for part, w in zip(parts, weights, strict=True) if w is not None]
    given = [view.constant(node, at) for at in range(1, 5)]
    axis = None if join is None else join.attributes.get("axis")
    if join is None or not parts or axis != 1 or len(counts) < len(parts):
        return None
    is_whole = all(array is not None and array.shape == (sum(counts),) for array in given)
    if not is_whole or len(node.outputs) != 1 or len(node.inputs) != 5:
        return None
    if any(held_weights(part, view) is None for part in parts):
        return None
    ends = np.cumsum(counts)[:-1]
    cut = zip(*(np.split(array, ends) for array in given if array is not None), strict=True)
    of_parts = [
        {view.fresh(f"{role} of {part.outputs[0]}"): array for role, array in zip(_ROLES, arrays, strict=True)}
        for part, arrays in zip(parts, cut, strict=True)
    ]  # fmt: skip
    return _apart([node], join, of_parts, view)


def _parts(join: Node, view: View) -> list[Node]:
    """The convolutions whose results a Concat alone joins; none if it joins others."""
    if join.op != "Concat" or join.domain:
        return []
    found = [
        part for name in join.inputs
        if (part := view.makers.get(name)) is not None and part.op in ("Conv", "ConvTranspose")
        and view.only_reader(name) is join
    ]  # fmt: skip
    return found if len(found) == len(join.inputs) else []


def _apart(nodes: Sequence[Node], join: Node, constants: Sequence[Mapping[str, Array]], view: View) -> Change:
    """Nodes in a row done to each part of what is joined, with constants of its own, or with those of the nodes."""
    made, names, last = list[Node](), list[str](), nodes[-1]
    for part, held in zip(join.inputs, constants, strict=True):
        name_of = {join.outputs[0]: part}
        for node in nodes:
            name_of[node.outputs[0]] = view.fresh(f"{part} of {node.outputs[0]}")
            inputs = (part, *held) if held else tuple(name_of.get(name, name) for name in node.inputs)
            made.append(standing_for(node, (node,), inputs=inputs, outputs=(name_of[node.outputs[0]],)))
        names.append(name_of[last.outputs[0]])
    every = {name: array for held in constants for name, array in held.items()}
    made.append(standing_for(join, (join,), inputs=tuple(names), outputs=last.outputs))
    return Change((join, *nodes), tuple(made), every)
