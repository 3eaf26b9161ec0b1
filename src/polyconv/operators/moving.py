"""Operators that move elements: Concat, Transpose and their kin, as passes without arithmetic.

Turns each into copies between parts of arrays.  The one idea: how the parts lie says it all, and a pass takes arrays of
any strides.  It must not know kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.operators.elementwise import dtype_name
from polyconv.operators.expression import Apply, Expression
from polyconv.operators.job import MOST_OPERANDS, Conditions, Lies, Operation, Own, Plan, Planning, constant
from polyconv.operators.strided import Along, cycles, pass_over, swept

__all__ = ["OPERATORS", "as_packed", "copied", "moving", "with_rows"]


def moving(operation: Operation) -> Own | str:
    """An operation as copies, or why not."""
    allowed, read = _TABLE[operation.op]
    if set(operation.attributes).difference(allowed):
        return "it has attributes that are not done here"
    return read(operation)


def _copy(dtype: str) -> Expression:
    return Expression((dtype,), (Apply("Identity", (0,), dtype),), (1,))


def copied(planning: Planning, x: int, y: int, extents: Sequence[int], source: Along, target: Along) -> None:
    """Add the job that copies elements from where they lie in one array to where they shall in another."""
    if 0 in extents:
        return
    dtype = dtype_name(planning.lie(x).dtype)
    assert dtype is not None
    expression = _copy(dtype)
    work = cycles(expression, math.prod(extents), planning.c)
    planning.job(lambda threads: [swept(expression, extents, [source, target], planning.c, threads)], [x, y], work)


def as_packed(planning: Planning, number: int) -> int:
    """The array, or a packed copy of one that has gaps or another order."""
    lie = planning.lie(number)
    steps, step = [], lie.dtype.itemsize
    for extent in reversed(lie.shape):
        steps.append(step)
        step *= max(1, extent)
    wanted = tuple(reversed(steps))
    if all(e == 1 or s == w for e, s, w in zip(lie.shape, lie.strides, wanted, strict=True)):
        return number
    dtype = dtype_name(lie.dtype)
    assert dtype is not None
    made = planning.between(lie.shape, lie.dtype)
    pass_over(planning, _copy(dtype), lie.shape, [number, made])
    return made


def with_rows(planning: Planning, number: int) -> int:
    """The array, or a packed copy of one whose elements along the last axis do not lie together."""
    lie = planning.lie(number)
    return number if lie.shape[-1] == 1 or lie.strides[-1] == lie.dtype.itemsize else as_packed(planning, number)


def _concat(operation: Operation) -> Own | str:
    dtypes = {None if x is None else dtype_name(x.dtype) for x in operation.inputs}
    axis = operation.attributes.get("axis", 1 if operation.version < 4 else None)
    (dtype,) = dtypes if len(dtypes) == 1 else (None,)
    if dtype is None or not isinstance(axis, int):
        return "its inputs are of several types, or of one that is not computed here"
    changing = [at for at, x in enumerate(operation.inputs) if constant(x) is None]
    held = [constant(x) for x in operation.inputs]

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        planning = Planning(given, c)
        numbers = dict(zip(changing, range(len(given)), strict=True))
        parts = [numbers[at] if array is None else planning.constant(array) for at, array in enumerate(held)]
        _joined(planning, parts, axis, dtype)
        return planning.plan()

    return Own(tuple(changing), (dtype,), planned)


def _joined(planning: Planning, parts: Sequence[int], axis: int, dtype: str) -> None:
    """Add the jobs that put arrays behind each other along an axis: each holds as many copies as operands allow."""
    shapes = [planning.lie(part).shape for part in parts]
    rank = len(shapes[0])
    at = axis % rank if -rank <= axis < rank else -1
    others = {(*shape[:at], *shape[at + 1 :]) for shape in shapes if at >= 0 and len(shape) == rank}
    if len(others) != 1 or any(len(shape) != rank for shape in shapes):
        raise ArgumentError(f"inputs of the shapes {', '.join(map(str, shapes))} cannot be joined along axis {axis}")
    shape = (*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :])
    y = planning.result(shape, DTYPES[dtype].numpy)
    strides = planning.lie(y).strides
    expression, c, offset = _copy(dtype), planning.c, 0
    todo: list[tuple[int, tuple[int, ...], Along, Along]] = []
    for part, own in zip(parts, shapes, strict=True):
        lie = planning.lie(part)
        if 0 not in own:
            todo.append((part, own, Along(lie.offset, lie.strides), Along(offset, strides)))
        offset += own[at] * strides[at]
    for first in range(0, len(todo), MOST_OPERANDS - 1):
        some = todo[first : first + MOST_OPERANDS - 1]
        work = sum(cycles(expression, math.prod(extents), c) for _, extents, _, _ in some)
        last = len(some)

        def steps(threads: int, some: Any = some, last: int = last) -> list[Any]:
            return [swept(expression, extents, [source, target], c, threads, (n, last))
                    for n, (_, extents, source, target) in enumerate(some)]  # fmt: skip

        planning.job(steps, [*(part for part, _, _, _ in some), y], work)


def _transposed(operation: Operation) -> Own | str:
    """Transpose: a copy, as what reads it mostly wants its rows one after another; channel shuffles reshape it."""
    x = operation.inputs[0]
    dtype = None if x is None else dtype_name(x.dtype)
    if x is None or x.dims is None or dtype is None:
        return "the model does not say the rank of its input, or its type is not computed here"
    rank = len(x.dims)
    perm = tuple(operation.attributes.get("perm", range(rank - 1, -1, -1)))
    if sorted(perm) != list(range(rank)):
        return f"perm={list(perm)} is no order of {rank} axes"

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        lie = given[0]
        if len(lie.shape) != rank:
            raise ArgumentError(f"perm={list(perm)} does not fit an input of shape {lie.shape}")
        planning = Planning(given, c)
        extents = tuple(lie.shape[a] for a in perm)
        y = planning.result(extents, lie.dtype)
        source = Along(lie.offset, tuple(lie.strides[a] for a in perm))
        copied(planning, 0, y, extents, source, Along(0, planning.lie(y).strides))
        return planning.plan()

    return Own((0,), (dtype,), planned)


_TABLE: Mapping[str, tuple[Sequence[str], Callable[[Operation], Own | str]]] = {
    "Concat": (("axis",), _concat),
    "Transpose": (("perm",), _transposed),
}
"""Operator -> the attributes that it may have, and what reads it."""

OPERATORS = tuple(_TABLE)
"""Operators of this family."""
