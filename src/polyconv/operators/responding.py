"""LRN, local response normalisation, on a GPU: an element is divided by a power of the mean square of its neighbours.

On the CPU ``responses`` computes it.  It must not know kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.operators.job import Conditions, Operation, Own, Plan, Planning
from polyconv.operators.lying import Lies
from polyconv.operators.types import dtype_name, untaken

if TYPE_CHECKING:
    from polyconv.operators.on_gpu.responding import Response

__all__ = ["responding"]

_MOST_NEIGHBOURS = 64


def responding(operation: Operation) -> Own | str:
    """An operation as a kernel of a GPU, or why not."""
    x = operation.inputs[0] if operation.inputs else None
    if x is None or len(operation.inputs) != 1 or operation.outputs != 1:
        return "it has not one input and one result"
    dtype, given = dtype_name(x.dtype, has_halves=True), operation.attributes
    if dtype is None or not DTYPES[dtype].is_float:
        return untaken(x.dtype)
    size, quarters = given.get("size", 0), 4 * given.get("beta", 0.75)
    if not isinstance(size, int) or not 1 <= size <= _MOST_NEIGHBOURS:
        return f"it has more than {_MOST_NEIGHBOURS} neighbours, or none"
    if quarters not in (1, 2, 3, 4):
        return "its power is not one, two, three or four quarters"
    from polyconv.operators.on_gpu.responding import Response  # here, as on a CPU no kernel of a GPU is needed

    alpha, bias = float(given.get("alpha", 1e-4)), float(given.get("bias", 1.0))
    response = Response(dtype, size, int(quarters), alpha / size, bias)
    return Own((0,), (x.dtype,), lambda lies, c: _planned(response, lies[0], c))


def _planned(response: Response, x: Lies, c: Conditions) -> Plan:
    if len(x.shape) < 2:
        raise ArgumentError(f"the input of shape {x.shape} has no channels")
    from polyconv.operators.on_gpu.responding import responded

    planning = Planning([x], c)
    y = planning.result(x.shape, x.dtype)
    if 0 not in x.shape:
        planning.launch(lambda: [responded(response, x, planning.lie(y), (0, y))])
    return planning.plan()
