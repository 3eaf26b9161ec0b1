"""Operators that treat each image of a batch alone: images are the first axis of what they read and make.

Turns an operation into yes or no.  The one idea: who joins, turns or sums along the first axis shows it by the extents
of its result; the few that do not are named here.  It must not know kernels.
"""

from __future__ import annotations

from polyconv.operators.job import Operation
from polyconv.operators.table import BY_FAMILY

__all__ = ["by_image"]

_LINES = {"Softmax", "LogSoftmax", "LayerNormalization"}
"""Operators whose lines may run along the first axis."""
_SHOWING = frozenset(
    name for family, names in BY_FAMILY.items() for name in names
    if family.partition(".")[0] in ("pooling", "reduction", "moving", "resizing", "normalisation", "responses")
) - _LINES  # fmt: skip
"""Operators that treat images alone, if for fewer images they make a result of as many."""


def by_image(operation: Operation) -> bool:
    """Whether a result of as many images as are read has each from that image alone.

    Results of the operators that join, turn or sum along the first axis may have as many only for some extents: who
    asks must see that a result for fewer images has fewer, too.
    """
    if operation.op in _LINES:
        x, axis = operation.inputs[0], operation.attributes.get("axis", 1 if operation.version < 13 else -1)
        return x is not None and x.dims is not None and isinstance(axis, int) and axis % len(x.dims) > 0
    is_cut_out = operation.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"  # by any axis
    return operation.op in _SHOWING and not is_cut_out
