"""MatMul of two operands that come with a run; of constant matrices rewrites make convolutions.

Axes in front of the last two are one axis, along which each operand has one step; what does not lie so is copied first.
It must not know kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.operators.along import Along, across, joined
from polyconv.operators.job import Conditions, Operation, Own, Plan, Planning, constant
from polyconv.operators.lying import Lies
from polyconv.operators.matrices import Matrices, multiplied
from polyconv.operators.moving import copy_of, with_rows
from polyconv.operators.strided import pass_over
from polyconv.operators.types import dtype_name, untaken

__all__ = ["multiplying"]

def multiplying(operation: Operation) -> Own | str:
    """An operation as products of matrices, or why not."""
    present = [given for given in operation.inputs if given is not None]
    if len(present) != 2:
        return "it has not two operands"
    dtype = dtype_name(present[0].dtype, has_halves=operation.on_gpu)
    is_taken = dtype is not None and (DTYPES[dtype].bits > 8 if operation.on_gpu else DTYPES[dtype].is_float)
    if dtype is None or present[1].dtype != present[0].dtype or not is_taken:
        return untaken(present[0].dtype) if dtype is None else "it is not done here for these types"
    if any(given.dims is None or len(given.dims) < 2 for given in present):
        return "the model does not say that its operands have two axes or more"
    held = [constant(given) for given in present]
    reads = tuple(at for at, array in enumerate(held) if array is None)

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        planning = Planning(given, c)
        moving = iter(range(len(given)))
        a, b = (next(moving) if array is None else planning.constant(array) for array in held)
        _plan(planning, dtype, a, b)
        return planning.plan()

    return Own(reads, (present[0].dtype,), planned)


def _plan(planning: Planning, dtype: str, a: int, b: int) -> None:
    """Add the kernels that multiply two arrays of a plan."""
    of_a, of_b = planning.lie(a), planning.lie(b)
    (*outer_a, rows, terms), (*outer_b, other_terms, columns) = of_a.shape, of_b.shape
    try:
        outer = np.broadcast_shapes(tuple(outer_a), tuple(outer_b))
    except ValueError:
        outer = None
    if terms != other_terms or outer is None:
        raise ArgumentError(f"operands of the shapes {of_a.shape} and {of_b.shape} are not multiplied")
    y = planning.result((*outer, rows, columns), of_a.dtype, alike=False)
    if 0 in planning.lie(y).shape:
        return
    if not terms:
        zero = planning.constant(np.zeros((), of_a.dtype))
        pass_over(planning, copy_of(of_a.dtype), planning.lie(y).shape, [zero, y])
        return
    if planning.c.dry:
        return
    if len(_outer(planning, outer, (a, b, y))[0]) > 1:
        a, b = (_whole(planning, one, outer) for one in (a, b))
    if not planning.c.on_gpu:
        b = with_rows(planning, b)
    extents, steps = _outer(planning, outer, (a, b, y))
    matrices = extents[0], rows, columns, terms
    along = tuple(each.strides[0] for each in steps)
    if not planning.c.on_gpu:
        multiplied(planning, Matrices(dtype, *matrices), (a, b, y), (along[0], along[1], along[2]))
        return
    from polyconv.operators.on_gpu import multiplying as there  # here, as the CPU needs none of its kernels

    there.multiplied(planning, there.Matrices(dtype, *matrices), (a, b, y), along)


def _outer(planning: Planning, outer: Sequence[int], numbers: Sequence[int]) -> tuple[list[int], list[Along]]:
    """The axes before the last two, as few as they can be, and the steps of arrays along them."""
    lies = [planning.lie(number) for number in numbers]
    return joined(outer, [across(lie.shape[:-2], lie.strides[:-2], outer, 0) for lie in lies])


def _whole(planning: Planning, number: int, outer: Sequence[int]) -> int:
    """A copy of an array, repeated along all outer axes, without gaps."""
    lie = planning.lie(number)
    made = planning.between((*outer, *lie.shape[-2:]), lie.dtype, alike=False)
    pass_over(planning, copy_of(lie.dtype), planning.lie(made).shape, [number, made])
    return made
