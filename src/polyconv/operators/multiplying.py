"""MatMul of two operands that come with a run; of constant matrices rewrites make convolutions.

A ``Product`` is a MatMul that reads and stores arrays with their axes in another order, as attention has its heads
behind its tokens in memory.  It may multiply its sums by a number, and add an array to them.
On a GPU axes in front of the last two are one, along which each operand has one step; what does not lie so is copied.
It must not know kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.operators.along import Along
from polyconv.operators.job import Operation, Own, Planning
from polyconv.operators.matrices import Matrices, multiplied
from polyconv.operators.moving import copied
from polyconv.operators.seen import in_rows, outer_axes, outer_of, own_of, seen, stored, stretched, whole
from polyconv.operators.types import dtype_name, untaken

__all__ = ["multiplying", "product"]


@dataclass(frozen=True, slots=True)
class _Product:
    """What is more than two matrices multiplied.

    Parameters
    ----------
    dtype : str
        Of all elements.
    a_order, b_order : tuple of int or None
        The axes of the factors in the order in which these are stacks of matrices.
    y_order : tuple of int or None
        The axes of the stack of products in the order in which it is stored.
    scale : float
        By which sums are multiplied, before anything is added.
    """

    dtype: str
    a_order: tuple[int, ...] | None = None
    b_order: tuple[int, ...] | None = None
    y_order: tuple[int, ...] | None = None
    scale: float = 1.0


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
    return own_of(operation, present[0].dtype, partial(_plan, _Product(dtype)))


def product(operation: Operation) -> Own | str:
    """A ``Product``, whose attributes say all that is known of it; its third input is added."""
    words = operation.attributes
    dtype = dtype_name(words["dtype"])
    assert dtype is not None  # as the rewrite has seen
    orders = {name: tuple(order) for name, order in words.items() if name.endswith("_order")}
    of = _Product(dtype, scale=words.get("scale", 1.0), **orders)
    return own_of(operation, words["dtype"], partial(_plan, of))


def _plan(of: _Product, planning: Planning, numbers: Sequence[int]) -> None:
    """Add the kernels that multiply two arrays of a plan, to which a third is added."""
    a, b, *others = numbers
    added = others[0] if others else None
    of_a, of_b = seen(planning.lie(a), of.a_order, "left"), seen(planning.lie(b), of.b_order, "right")
    (*_, rows, terms), (*_, other_terms, columns) = of_a.shape, of_b.shape
    outer = outer_of(of_a, of_b)
    if terms != other_terms or outer is None:
        raise ArgumentError(f"operands of the shapes {of_a.shape} and {of_b.shape} are not multiplied")
    extents = (*outer, rows, columns)
    of_added = None
    if added is not None:
        added, of_added = in_rows(planning, added, planning.lie(added))
        of_added = stretched(of_added, extents)
    y, of_y = stored(planning, extents, of_a, of.y_order)
    if 0 in extents:
        return
    if not terms:
        source = Along(0, (0,) * len(extents)) if of_added is None else Along(of_added.offset, of_added.strides)
        filling = planning.constant(np.zeros((), of_a.dtype)) if added is None else added
        copied(planning, filling, y, extents, source, Along(of_y.offset, of_y.strides))
        return
    if planning.c.dry:
        return
    if planning.c.on_gpu:
        _multiplied_there(planning, of.dtype, outer, (a, b, y))
        return
    b, of_b = in_rows(planning, b, of_b)
    operands, lies = [a, b, y], [of_a, of_b, of_y]
    if added is not None and of_added is not None:
        operands.append(added)
        lies.append(of_added)
    is_scaled = of.scale != 1.0
    if is_scaled:
        operands.append(planning.constant(np.array(of.scale, of_a.dtype)))
    along, steps = outer_axes(outer, lies)
    matrices = Matrices(of.dtype, tuple(along), rows, columns, terms, is_scaled, added is not None)
    multiplied(planning, matrices, operands, lies, steps)


def _multiplied_there(planning: Planning, dtype: str, outer: Sequence[int], numbers: tuple[int, int, int]) -> None:
    """Add the kernels of a GPU, for which what comes before the last two axes is one axis."""
    a, b, y = numbers
    if len(outer_axes(outer, [planning.lie(number) for number in numbers])[0]) > 1:
        a, b = (whole(planning, number, planning.lie(number), outer)[0] for number in (a, b))
    (pairs,), steps = outer_axes(outer, [planning.lie(number) for number in (a, b, y)])
    from polyconv.operators.on_gpu import multiplying as there  # here, as the CPU needs none of its kernels

    *_, rows, columns = planning.lie(y).shape
    matrices = there.Matrices(dtype, pairs, rows, columns, planning.lie(a).shape[-1])
    there.multiplied(planning, matrices, (a, b, y), tuple(each.strides[0] for each in steps))
