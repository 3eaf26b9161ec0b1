"""MatMul of two operands that come with a run; of constant matrices rewrites make convolutions.

A ``Product`` is a MatMul that reads and stores arrays with their axes in another order, as attention has its heads
behind its tokens in memory.  It may multiply its sums by a number, and add an array to them.
On a GPU axes in front of the last two are one, along which each operand has one step; what does not lie so is copied.
It must not know kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.operators.along import Along, across, joined
from polyconv.operators.job import Conditions, Operation, Own, Plan, Planning, constant
from polyconv.operators.lying import Array, Lies
from polyconv.operators.matrices import Matrices, multiplied
from polyconv.operators.moving import copied
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
    return _own(operation, present[0].dtype, _Product(dtype))


def product(operation: Operation) -> Own | str:
    """A ``Product``, whose attributes say all that is known of it; its third input is added."""
    words = operation.attributes
    dtype = dtype_name(words["dtype"])
    assert dtype is not None  # as the rewrite has seen
    orders = {name: tuple(order) for name, order in words.items() if name.endswith("_order")}
    return _own(operation, words["dtype"], _Product(dtype, scale=words.get("scale", 1.0), **orders))


def _own(operation: Operation, dtype: str, of: _Product) -> Own:
    """What runs a product; operands that are constant are part of its plan."""
    held: list[Array | None] = [constant(given) for given in operation.inputs]
    reads = tuple(at for at, array in enumerate(held) if array is None)

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        planning = Planning(given, c)
        moving = iter(range(len(given)))
        _plan(planning, of, *(next(moving) if array is None else planning.constant(array) for array in held))
        return planning.plan()

    return Own(reads, (dtype,), planned)


def _plan(planning: Planning, of: _Product, a: int, b: int, added: int | None = None) -> None:
    """Add the kernels that multiply two arrays of a plan."""
    of_a, of_b = _seen(planning.lie(a), of.a_order, "left"), _seen(planning.lie(b), of.b_order, "right")
    (*outer_a, rows, terms), (*outer_b, other_terms, columns) = of_a.shape, of_b.shape
    try:
        outer = np.broadcast_shapes(tuple(outer_a), tuple(outer_b))
    except ValueError:
        outer = None
    if terms != other_terms or outer is None:
        raise ArgumentError(f"operands of the shapes {of_a.shape} and {of_b.shape} are not multiplied")
    extents = (*outer, rows, columns)
    of_added = None if added is None else _stretched(planning.lie(added), extents)
    y, of_y = _result(planning, extents, of_a, of.y_order)
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
    if columns > 1 and of_b.strides[-1] != of_b.dtype.itemsize:
        b, of_b = _whole(planning, b, of_b, of_b.shape[:-2])
    operands, lies = [a, b, y], [of_a, of_b, of_y]
    if added is not None and of_added is not None:
        operands.append(added)
        lies.append(of_added)
    is_scaled = of.scale != 1.0
    if is_scaled:
        operands.append(planning.constant(np.array(of.scale, of_a.dtype)))
    along, steps = _outer(outer, lies)
    matrices = Matrices(of.dtype, tuple(along), rows, columns, terms, is_scaled, added is not None)
    multiplied(planning, matrices, operands, lies, steps)


def _multiplied_there(planning: Planning, dtype: str, outer: Sequence[int], numbers: tuple[int, int, int]) -> None:
    """Add the kernels of a GPU, for which what comes before the last two axes is one axis."""
    a, b, y = numbers
    if len(_outer(outer, [planning.lie(number) for number in numbers])[0]) > 1:
        a, b = (_whole(planning, number, planning.lie(number), outer)[0] for number in (a, b))
    (pairs,), steps = _outer(outer, [planning.lie(number) for number in (a, b, y)])
    from polyconv.operators.on_gpu import multiplying as there  # here, as the CPU needs none of its kernels

    *_, rows, columns = planning.lie(y).shape
    matrices = there.Matrices(dtype, pairs, rows, columns, planning.lie(a).shape[-1])
    there.multiplied(planning, matrices, (a, b, y), tuple(each.strides[0] for each in steps))


def _result(planning: Planning, extents: Sequence[int], like: Lies, order: Sequence[int] | None) -> tuple[int, Lies]:
    """The result of a plan, stored with its axes in an order, and how it lies as a stack of matrices."""
    axes = range(len(extents))
    stored = axes if order is None else order
    if sorted(stored) != list(axes):
        raise ArgumentError(f"a product of the shape {tuple(extents)} is not stored in the order {order} of its axes")
    y = planning.result([extents[axis] for axis in stored], like.dtype, alike=False)
    return y, _seen(planning.lie(y), [stored.index(axis) for axis in axes], "resulting")


def _stretched(lie: Lies, extents: Sequence[int]) -> Lies:
    """An array as it is repeated to some extents."""
    pairs = zip(lie.shape[::-1], extents[::-1], strict=False)
    if len(lie.shape) > len(extents) or any(extent not in (1, whole) for extent, whole in pairs):
        raise ArgumentError(f"{lie.shape} is the shape of what is added to a product of the shape {tuple(extents)}")
    along = across(lie.shape, lie.strides, extents, lie.offset)
    return replace(lie, shape=tuple(extents), strides=along.strides)


def _seen(lie: Lies, order: Sequence[int] | None, name: str) -> Lies:
    """An array with its axes in another order."""
    if order is None:
        return lie
    if len(order) != len(lie.shape):
        raise ArgumentError(f"the {name} operand of the shape {lie.shape} has not the {len(order)} axes of its order")
    return replace(lie, shape=tuple(lie.shape[a] for a in order), strides=tuple(lie.strides[a] for a in order))


def _outer(outer: Sequence[int], lies: Sequence[Lies]) -> tuple[list[int], list[Along]]:
    """The axes before the last two, as few as they can be, and the steps of arrays along them."""
    return joined(outer, [across(lie.shape[:-2], lie.strides[:-2], outer, 0) for lie in lies])


def _whole(planning: Planning, number: int, lie: Lies, outer: Sequence[int]) -> tuple[int, Lies]:
    """A copy of an array as it is seen, repeated along all outer axes, without gaps."""
    made = planning.between((*outer, *lie.shape[-2:]), lie.dtype, alike=False)
    source = across(lie.shape, lie.strides, (*outer, *lie.shape[-2:]), lie.offset)
    copied(planning, number, made, planning.lie(made).shape, source, Along(0, planning.lie(made).strides))
    return made, planning.lie(made)
