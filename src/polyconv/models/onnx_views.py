"""Nodes of ONNX that look at constants in another way, or at a few numbers: evaluated where they are, without a copy.

It must not know who asks: what is folded when a model is read, or what inference proves of extents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyconv.errors import ModelError
from polyconv.models.graph import Array, Node
from polyconv.models.limits import check_bytes, shorten
from polyconv.models.onnx_extents import onnx_extents
from polyconv.operators.job import Known, Operation
from polyconv.operators.views import view

__all__ = ["filled", "onnx_views"]


def filled(node: Node, inputs: Sequence[Array]) -> Array:
    """ConstantOfShape; a tensor that the machine cannot hold is refused."""
    shape = inputs[0]
    if shape.ndim != 1 or shape.dtype.kind not in "iu" or shape.size > 64:
        raise ModelError(
            f"{node.label} is given the shape {shorten(shape.tolist())}, which is no list of extents"
        )
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32)))
    if value.size != 1:
        raise ModelError(f"{node.label} fills with {value.size} values; it takes one")
    extents = [int(extent) for extent in shape]
    check_bytes(node.label, extents, value.itemsize)
    return np.broadcast_to(value.reshape(()), extents)


def _unsqueezed(node: Node, inputs: Sequence[Array]) -> Array:
    axes = inputs[1].tolist() if len(inputs) > 1 else node.attributes.get("axes")
    return np.expand_dims(inputs[0], tuple(axes))  # type: ignore[arg-type]


def _looked_at(node: Node, inputs: Sequence[Array]) -> Array | None:
    """A node that runs as a view; None where it does not, or has several results."""
    if len(node.outputs) != 1 or not all(node.inputs):
        return None
    known = tuple(Known(a.dtype.name, a.shape, a) for a in inputs)
    found = view(Operation(node.op, node.version, node.attributes, known))
    return None if isinstance(found, str) else found.look(inputs)[0]


def _joined(node: Node, inputs: Sequence[Array]) -> Array | None:
    axis = node.attributes.get("axis")
    return None if axis is None or not all(node.inputs) else np.concatenate(inputs, axis)


onnx_views: Mapping[str, Callable[[Node, Sequence[Array]], Array | None]] = {
    **dict.fromkeys(("Flatten", "Reshape", "Slice", "Squeeze"), _looked_at),
    **onnx_extents,
    "Concat": _joined,
    "ConstantOfShape": filled,
    "Identity": lambda node, inputs: inputs[0],
    "Transpose": lambda node, inputs: inputs[0].transpose(node.attributes.get("perm")),
    "Unsqueeze": _unsqueezed,
}
"""Nodes that look at a constant in another way, evaluated without a copy, however large it is; and a few numbers."""
