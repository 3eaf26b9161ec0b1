"""Arrays of a plan seen as stacks of matrices, with their axes in another order than in memory.

The one idea: an order of axes is a matter of steps; only what has no steps is copied.  It must not know what is done
with the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from polyconv.errors import ArgumentError
from polyconv.operators.along import Along, across, joined
from polyconv.operators.job import Conditions, Operation, Own, Plan, Planning, constant
from polyconv.operators.lying import Array, Lies
from polyconv.operators.moving import copied

__all__ = ["in_rows", "outer_axes", "outer_of", "own_of", "seen", "stored", "stretched", "whole"]


def own_of(operation: Operation, dtype: str, plan: Callable[[Planning, Sequence[int]], None]) -> Own:
    """What runs an operation by a plan of all its operands; those that are constant are part of it."""
    held: list[Array | None] = [constant(given) for given in operation.inputs]
    reads = tuple(at for at, array in enumerate(held) if array is None)

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        planning = Planning(given, c)
        moving = iter(range(len(given)))
        plan(planning, [next(moving) if array is None else planning.constant(array) for array in held])
        return planning.plan()

    return Own(reads, (dtype,), planned)


def stored(planning: Planning, extents: Sequence[int], like: Lies, order: Sequence[int] | None) -> tuple[int, Lies]:
    """The result of a plan, stored with its axes in an order, and how it lies as a stack of matrices."""
    axes = range(len(extents))
    stored = axes if order is None else order
    if sorted(stored) != list(axes):
        raise ArgumentError(f"a product of the shape {tuple(extents)} is not stored in the order {order} of its axes")
    y = planning.result([extents[axis] for axis in stored], like.dtype, alike=False)
    return y, seen(planning.lie(y), [stored.index(axis) for axis in axes], "resulting")


def in_rows(planning: Planning, number: int, lie: Lies) -> tuple[int, Lies]:
    """The array as it is seen, or a copy of one whose elements along the last axis do not lie together."""
    if not lie.shape or lie.shape[-1] == 1 or lie.strides[-1] == lie.dtype.itemsize:
        return number, lie
    return whole(planning, number, lie, lie.shape[:-2])


def stretched(lie: Lies, extents: Sequence[int]) -> Lies:
    """An array as it is repeated to some extents."""
    pairs = zip(lie.shape[::-1], extents[::-1], strict=False)
    if len(lie.shape) > len(extents) or any(extent not in (1, whole) for extent, whole in pairs):
        raise ArgumentError(f"{lie.shape} is the shape of what is added to a product of the shape {tuple(extents)}")
    along = across(lie.shape, lie.strides, extents, lie.offset)
    return replace(lie, shape=tuple(extents), strides=along.strides)


def seen(lie: Lies, order: Sequence[int] | None, name: str) -> Lies:
    """An array with its axes in another order."""
    if order is None:
        return lie
    if len(order) != len(lie.shape):
        raise ArgumentError(f"the {name} operand of the shape {lie.shape} has not the {len(order)} axes of its order")
    return replace(lie, shape=tuple(lie.shape[a] for a in order), strides=tuple(lie.strides[a] for a in order))


def outer_of(*lies: Lies) -> tuple[int, ...] | None:
    """Extents of the axes before the last two, to which stacks are repeated; None where they do not fit together."""
    try:
        return np.broadcast_shapes(*(lie.shape[:-2] for lie in lies))
    except ValueError:
        return None


def outer_axes(outer: Sequence[int], lies: Sequence[Lies]) -> tuple[list[int], list[Along]]:
    """The axes before the last two, as few as they can be, and the steps of arrays along them."""
    return joined(outer, [across(lie.shape[:-2], lie.strides[:-2], outer, 0) for lie in lies])


def whole(planning: Planning, number: int, lie: Lies, outer: Sequence[int]) -> tuple[int, Lies]:
    """A copy of an array as it is seen, repeated along all outer axes, without gaps."""
    made = planning.between((*outer, *lie.shape[-2:]), lie.dtype, alike=False)
    source = across(lie.shape, lie.strides, (*outer, *lie.shape[-2:]), lie.offset)
    copied(planning, number, made, planning.lie(made).shape, source, Along(0, planning.lie(made).strides))
    return made, planning.lie(made)
