"""Gather of several elements along an axis, on a GPU: indices are constants, or come with a run and lie there.

On the CPU NumPy's view or copy does it (``views``).  It must not know kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyconv.errors import ArgumentError
from polyconv.operators.job import Array, Conditions, Operation, Own, Plan, Planning, constant
from polyconv.operators.lying import Lies
from polyconv.operators.moving import carrier

__all__ = ["gathering"]



def gathering(operation: Operation) -> Own | str:
    """An operation as the copy of elements that indices name, or why not."""
    if len(operation.inputs) != 2 or set(operation.attributes) - {"axis"}:
        return "it has attributes that are not done here"
    x, indices = operation.inputs
    if x is None or indices is None or x.dims is None or carrier(x.dtype) is None:
        return "the model does not say the rank or the type of its input"
    if indices.dims is None or indices.dtype not in ("int32", "int64"):
        return "the model does not say the rank of its indices"
    rank, axis = len(x.dims), operation.attributes.get("axis", 0)
    if not -rank <= axis < rank:
        return "its axis lies outside the input"
    held = [constant(x), constant(indices)]
    reads = tuple(at for at, array in enumerate(held) if array is None)
    return Own(reads, (x.dtype,), lambda given, c: _planned(held, axis % rank, given, c))


def _planned(held: Sequence[Array | None], axis: int, given: Sequence[Lies], c: Conditions) -> Plan:
    planning = Planning(given, c)
    moving = iter(range(len(given)))
    x, indices = (next(moving) if array is None else planning.constant(array) for array in held)
    shape, extent, at = planning.lie(x).shape, planning.lie(x).shape[axis], planning.lie(indices).shape
    known = held[1]
    y = planning.result((*shape[:axis], *at, *shape[axis + 1 :]), planning.lie(x).dtype)
    if 0 in planning.lie(y).shape:
        return planning.plan()
    if not extent or (known is not None and not -extent <= np.min(known) <= np.max(known) < extent):
        raise ArgumentError(f"indices lie outside axis {axis} of the input of shape {shape}")
    if c.dry:
        return planning.plan()
    from polyconv.operators.on_gpu.gathering import gathered  # here, as on a CPU no kernel of a GPU is needed

    planning.launch(lambda: [gathered(planning.lie(x), planning.lie(indices), planning.lie(y), axis, (x, indices, y))])
    return planning.plan()
