"""Operators that move elements: Concat, Transpose and their kin, as passes without arithmetic.

Turns each into copies between parts of arrays.  The one idea: how the parts lie says it all, and a pass takes arrays of
any strides.  It must not know kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyconv.errors import ArgumentError
from polyconv.operators.along import Along
from polyconv.operators.expression import Apply, Expression
from polyconv.operators.job import MOST_OPERANDS, Conditions, Job, Joins, Operation, Own, Plan, Planning, Step, constant
from polyconv.operators.lying import Lies, channels_last, is_channels_last, lies_like, packed
from polyconv.operators.numbers import COMES_WITH_THE_RUN, with_numbers
from polyconv.operators.strided import cycles, passed, swept
from polyconv.operators.turning import is_turned, turned_step

if TYPE_CHECKING:
    from polyconv.operators.on_gpu.launching import Launching

__all__ = ["as_packed", "carrier", "copied", "copy_of", "moving", "with_rows", "without_gaps"]


def moving(operation: Operation) -> Own | str:
    """An operation as copies, or why not."""
    allowed, read = _TABLE[operation.op]
    if set(operation.attributes).difference(allowed):
        return "it has attributes that are not done here"
    return read(operation)


_CARRIERS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def carrier(dtype: np.dtype[Any] | str) -> str | None:
    """The dtype of the kernels as which elements of a type are moved: an integer of their size; None if there is none.

    An empty name is an unknown type.
    """
    kind = np.dtype(dtype) if dtype != "" else None
    return None if kind is None or kind.hasobject else _CARRIERS.get(kind.itemsize)


def copy_of(dtype: np.dtype[Any]) -> Expression:
    """The expression that moves elements of a type."""
    name = carrier(dtype)
    assert name is not None
    return Expression((name,), (Apply("Identity", (0,), name),), (1,))


def copied(planning: Planning, x: int, y: int, extents: Sequence[int], source: Along, target: Along) -> None:
    """Add the job that copies elements from where they lie in one array to where they shall in another."""
    if 0 in extents:
        return
    expression, c = copy_of(planning.lie(x).dtype), planning.c
    work = cycles(expression, math.prod(extents), c)

    def steps(threads: int) -> list[Step]:
        turned = turned_step(expression.inputs[0], extents, source, target, c, threads)
        return [turned or swept(expression, extents, [source, target], c, threads)]

    planning.job(steps, [x, y], work, kernels=lambda: [passed(planning, expression, extents, [source, target], [x, y])])


def as_packed(planning: Planning, number: int) -> int:
    """The array, or a packed copy of one that has gaps or another order."""
    lie = planning.lie(number)
    return number if lies_like(lie, packed(lie.shape, lie.dtype)) else _again(planning, number, alike=False)


def without_gaps(planning: Planning, number: int) -> int:
    """An array with channels last, or a copy of it if there are gaps between its pixels."""
    lie = planning.lie(number)
    return number if lies_like(lie, channels_last(lie.shape, lie.dtype)) else _again(planning, number, alike=True)


def _again(planning: Planning, number: int, *, alike: bool) -> int:
    """A copy of an array without gaps, packed or in the order of an input's axes; see ``Planning.between``."""
    lie = planning.lie(number)
    made = planning.between(lie.shape, lie.dtype, alike=alike)
    copied(planning, number, made, lie.shape, Along(lie.offset, lie.strides), Along(0, planning.lie(made).strides))
    return made


def with_rows(planning: Planning, number: int) -> int:
    """The array, or a packed copy of one whose elements along the last axis do not lie together."""
    lie = planning.lie(number)
    return number if lie.shape[-1] == 1 or lie.strides[-1] == lie.dtype.itemsize else as_packed(planning, number)


def _concat(operation: Operation) -> Own | str:
    dtypes = {"" if x is None else x.dtype for x in operation.inputs}
    axis = operation.attributes.get("axis", 1 if operation.version < 4 else None)
    (dtype,) = dtypes if len(dtypes) == 1 else ("",)
    if carrier(dtype) is None or not isinstance(axis, int):
        return "its inputs are of several types, or of one that is not moved here"
    changing = [at for at, x in enumerate(operation.inputs) if constant(x) is None]
    held = [constant(x) for x in operation.inputs]

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        planning = Planning(given, c)
        numbers = dict(zip(changing, range(len(given)), strict=True))
        parts = [numbers[at] if array is None else planning.constant(array) for at, array in enumerate(held)]
        begins, in_pixels = _joined(planning, parts, axis)
        plan = planning.plan()
        if not plan.jobs or begins is None or len(changing) < len(parts):
            return plan

        def copies(places: Collection[int]) -> tuple[Job, ...]:
            again = Planning(given, c)
            _joined(again, parts, axis, places)
            return again.plan().jobs

        return replace(plan, joins=Joins(tuple(parts), begins, copies, in_pixels))

    return Own(tuple(changing), (dtype,), planned, gaps=True)


def _joined(planning: Planning, parts: Sequence[int], axis: int, places: Collection[int] | None = None
            ) -> tuple[tuple[int, ...] | None, bool]:  # fmt: skip
    """Add the jobs that put arrays behind each other along an axis: each holds as many copies as operands allow.

    Parameters
    ----------
    places : collection of int or None
        Which of them; None is all.

    Returns
    -------
    tuple of int or None, bool
        The byte of the result at which each begins, if each is one run of bytes there and where it comes from, or the
        byte of each pixel and True, if channels are joined where they come last.
    """
    shapes = [planning.lie(part).shape for part in parts]
    rank = len(shapes[0])
    at = axis % rank if -rank <= axis < rank else -1
    others = {(*shape[:at], *shape[at + 1 :]) for shape in shapes if at >= 0 and len(shape) == rank}
    if len(others) != 1 or any(len(shape) != rank for shape in shapes):
        raise ArgumentError(f"inputs of the shapes {', '.join(map(str, shapes))} cannot be joined along axis {axis}")
    shape = (*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :])
    y = planning.result(shape, planning.lie(parts[0]).dtype)
    strides = planning.lie(y).strides
    expression, c, offset = copy_of(planning.lie(y).dtype), planning.c, 0
    todo: list[tuple[int, tuple[int, ...], Along, Along]] = []
    begins = []
    for place, (part, own) in enumerate(zip(parts, shapes, strict=True)):
        lie = planning.lie(part)
        begins.append(offset)
        source, target = Along(lie.offset, lie.strides), Along(offset, strides)
        if 0 in own or (places is not None and place not in places):
            pass
        elif not c.on_gpu and is_turned(own, source, target, lie.dtype.itemsize):
            copied(planning, part, y, own, source, target)
        else:
            todo.append((part, own, source, target))
        offset += own[at] * strides[at]
    for first in range(0, len(todo), MOST_OPERANDS - 1):
        some = todo[first : first + MOST_OPERANDS - 1]
        work = sum(cycles(expression, math.prod(extents), c) for _, extents, _, _ in some)
        last = len(some)

        def steps(threads: int, some: Any = some, last: int = last) -> list[Any]:
            return [swept(expression, extents, [source, target], c, threads, (n, last))
                    for n, (_, extents, source, target) in enumerate(some)]  # fmt: skip

        def kernels(some: Any = some) -> list[Launching]:
            return [
                passed(planning, expression, extents, [source, target], [part, y])
                for part, extents, source, target in some
            ]

        planning.job(steps, [*(part for part, _, _, _ in some), y], work, kernels=kernels)
    if at == 1 and not c.on_gpu and is_channels_last(planning.lie(y)):
        return tuple(begins), True
    before = math.prod(e for e, s in zip(shape, strides, strict=True) if s > strides[at])
    way = channels_last if rank > 2 and strides[1] == planning.lie(y).dtype.itemsize else packed
    is_run = before == 1 and all(
        lies_like(lie, way(lie.shape, lie.dtype)) for lie in (planning.lie(part) for part in parts)
    )
    return tuple(begins) if is_run else None, False


def _transposed(operation: Operation) -> Own | str:
    """Transpose: a copy, as what reads it mostly wants its rows one after another; channel shuffles reshape it.

    None is needed where the result is packed as it is seen.
    """
    x = operation.inputs[0]
    if x is None or carrier(x.dtype) is None or (x.dims is None and "perm" not in operation.attributes):
        return "the model does not say the rank of its input, or its type is not moved here"
    rank = len(x.dims if x.dims is not None else operation.attributes["perm"])
    perm = tuple(operation.attributes.get("perm", range(rank - 1, -1, -1)))
    if sorted(perm) != list(range(rank)):
        return f"perm={list(perm)} is no order of {rank} axes"

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        lie = given[0]
        if len(lie.shape) != rank:
            raise ArgumentError(f"perm={list(perm)} does not fit an input of shape {lie.shape}")
        planning = Planning(given, c)
        extents = tuple(lie.shape[a] for a in perm)
        y = planning.result(extents, lie.dtype, alike=False)
        source = Along(lie.offset, tuple(lie.strides[a] for a in perm))
        copied(planning, 0, y, extents, source, Along(0, planning.lie(y).strides))
        return planning.plan()

    return Own((0,), (x.dtype,), planned, look=lambda array: array.transpose(perm))


def _blocks(operation: Operation) -> Own | str:
    """DepthToSpace and SpaceToDepth: a square of pixels is so many channels, which vary slowest, or fastest (CRD)."""
    x, a = operation.inputs[0], operation.attributes
    size, mode = a.get("blocksize", 0), a.get("mode", "DCR")
    if x is None or carrier(x.dtype) is None:
        return "the model does not say the type of its input, or it is not moved here"
    if not isinstance(size, int) or size < 1 or mode not in ("DCR", "CRD"):
        return "its attributes are not those of the specification"
    to_space = operation.op == "DepthToSpace"

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        return _of_blocks(Planning(given, c), size, mode == "CRD", to_space)

    return Own((0,), (x.dtype,), planned)


def _of_blocks(planning: Planning, size: int, fast: bool, to_space: bool) -> Plan:
    """The plan: the tensor with small planes and the one with few channels, both seen as n, c, h, block, w, block."""
    x = planning.lie(0)
    divided = x.shape[1:2] if to_space else x.shape[2:]
    by = size * size if to_space else size
    if len(x.shape) != 4 or any(extent % by for extent in divided):
        raise ArgumentError(f"the input of shape {x.shape} has not four axes, of which {by} divides those that it must")
    n, c, h, w = x.shape
    wide = (n, c // by, h * size, w * size) if to_space else x.shape
    y = planning.lie(planning.result(wide if to_space else (n, c * by * by, h // size, w // size), x.dtype))
    deep, broad = (x, y) if to_space else (y, x)
    n, c, h, w = deep.shape
    c //= size * size
    channel = deep.strides[1]
    block = (channel * size, channel) if fast else (channel * c * size, channel * c)
    extents = n, c, h, size, w, size
    of_deep = (deep.strides[0], channel * size * size if fast else channel, deep.strides[2], block[0],
               deep.strides[3], block[1])  # fmt: skip
    rows, columns = broad.strides[2:]
    of_broad = (*broad.strides[:2], rows * size, rows, columns * size, columns)
    source, target = (of_deep, of_broad) if to_space else (of_broad, of_deep)
    copied(planning, 0, 1, extents, Along(x.offset, source), Along(0, target))
    return planning.plan()


def _tiled(operation: Operation) -> Own | str:
    """Tile: each axis is read again and again."""
    return with_numbers(operation, (1,), _repeated)


def _repeated(operation: Operation) -> Own | str:
    x = operation.inputs[0]
    if x is None or carrier(x.dtype) is None or operation.version < 6 or len(operation.inputs) != 2:
        return "the type of its input is not moved here, or there is no one list of repeats"
    repeats = constant(operation.inputs[1])
    if repeats is None:
        return COMES_WITH_THE_RUN
    times = [int(v) for v in repeats.reshape(-1)]

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        lie, planning = given[0], Planning(given, c)
        if len(lie.shape) != len(times) or min(times, default=0) < 0:
            raise ArgumentError(f"repeats={times} must be one number for each axis of the input of shape {lie.shape}")
        y = planning.result([e * t for e, t in zip(lie.shape, times, strict=True)], lie.dtype)
        extents = [e for pair in zip(times, lie.shape, strict=True) for e in pair]
        source = [s for stride in lie.strides for s in (0, stride)]
        strides = planning.lie(y).strides
        target = [s for e, stride in zip(lie.shape, strides, strict=True) for s in (stride * e, stride)]
        copied(planning, 0, y, extents, Along(lie.offset, tuple(source)), Along(0, tuple(target)))
        return planning.plan()

    return Own((0,), (x.dtype,), planned)


_TABLE: Mapping[str, tuple[Sequence[str], Callable[[Operation], Own | str]]] = {
    "Concat": (("axis",), _concat),
    "Transpose": (("perm",), _transposed),
    "DepthToSpace": (("blocksize", "mode"), _blocks),
    "SpaceToDepth": (("blocksize", "mode"), _blocks),
    "Tile": ((), _tiled),
}
"""Operator -> the attributes that it may have, and what reads it."""
