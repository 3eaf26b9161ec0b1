"""Operators that make, order or pick numbers by other numbers, as exporters count with extents: lines of NumPy.

The one idea: these are a few numbers, or an array that repeats one, so that no engine need be started for them; extents
of results may follow from numbers, which only a run knows.  Products and orders of what is no whole number may be
large, and are left to others.  It must not know kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError
from polyconv.operators.job import Array, Known, Operation
from polyconv.operators.views import Dims, Look, View, maker

__all__ = ["adds_up", "axis_of", "check_places", "counting", "letters_of"]

_LETTERS = 26
"""Axes of an operand that a product may name."""

_SPARSE = 4
"""Times as many elements as are asked for, and as rows, from which on only the first ones are put in order."""
_FEW = 1 << 16
"""Elements up to which lines of NumPy are as fast as another engine that picks or compares one by one; of twenty times
as many, places along an axis with short lines take it two to four times as long.  Measured on a Zen 3."""


def counting(operation: Operation) -> View | str:
    """An operation as lines of NumPy, or why not."""
    if operation.on_gpu:
        return "it counts in the CPU's memory"
    make = maker(_TABLE, operation)
    if isinstance(make, str):
        return make
    if not operation.inputs or any(x is None or not x.dtype for x in operation.inputs):
        return "the model does not say the types of its inputs"
    return make(operation, [x for x in operation.inputs if x is not None])


def _whole(*inputs: Known) -> bool:
    """Whether all are of whole numbers."""
    return all(np.dtype(x.dtype).kind in "iu" for x in inputs)


def _alike(*inputs: Known) -> bool:
    """Whether all are of one type."""
    return len({x.dtype for x in inputs}) == 1


def _may_be_many(x: Known) -> bool:
    """Whether an input has many elements, as far as is known."""
    return x.dims is not None and math.prod(e or 1 for e in x.dims) > _FEW


def _rank(x: Known) -> int | None:
    return None if x.dims is None else len(x.dims)


def _open(rank: int | None) -> Dims | None:
    """Extents of which only their number is known."""
    return None if rank is None else (None,) * rank


def _without(dims: Dims | None, axes: Collection[int] | None, keepdims: bool) -> Dims | None:
    """Extents of what has one number for some axes, or for all of them."""
    if dims is None:
        return None
    gone = range(len(dims)) if axes is None else {axis % max(1, len(dims)) for axis in axes}
    return tuple(1 if at in gone else e for at, e in enumerate(dims) if keepdims or at not in gone)


def _one(look: Callable[..., Any]) -> Look:
    """One result of all inputs."""
    return lambda inputs: [np.asarray(look(*inputs))]


def _counts(look: Look, dtype: str, dims: Dims | None) -> View:
    return View(look, (dtype,), True, dims)


def axis_of(operation: Operation, shape: Sequence[int], usual: int) -> int:
    """The axis that an operation names, counted from the first one."""
    axis, rank = operation.attributes.get("axis", usual), len(shape)
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise ArgumentError(f"axis={axis} lies outside the input of shape {tuple(shape)}")
    return axis % rank


def _size(operation: Operation, inputs: Sequence[Known]) -> View | str:
    return _counts(_one(lambda x: np.array(x.size, np.int64)), "int64", ())


def _constant_of_shape(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """One number everywhere, in the memory of one."""
    value, dims = operation.attributes.get("value", np.zeros(1, np.float32)), inputs[0].dims
    if not isinstance(value, np.ndarray) or value.size != 1 or inputs[0].dtype != "int64":
        return "its value is no array of one number, or its shape of another type"

    def look(shape: Array) -> Array:
        if shape.ndim != 1 or (shape < 0).any():
            raise ArgumentError(f"the shape {shape.tolist()} is no list of extents")
        return np.broadcast_to(value.reshape(()), tuple(shape.tolist()))

    rank = dims[0] if dims is not None and len(dims) == 1 else None
    return _counts(_one(look), value.dtype.name, _open(rank))


def _range(operation: Operation, inputs: Sequence[Known]) -> View | str:
    if len(inputs) != 3 or not _alike(*inputs):
        return "it needs a start, a limit and a step of one type"

    def look(*given: Array) -> Array:
        start, limit, step = (x.item() for x in given)  # one element, or an error that says so
        if step == 0:
            raise ArgumentError("its step is 0")
        count = max(0, math.ceil((limit - start) / step))
        made: Array = (start + np.arange(count) * step).astype(given[0].dtype)
        return made

    return _counts(_one(look), inputs[0].dtype, (None,))


def _product(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """ReduceProd of whole numbers, modulo their type."""
    if not _whole(*inputs) or (len(inputs) > 1 and inputs[1].value is None):
        return "a product of numbers that are no counts, or over axes that come with a run"
    a = operation.attributes
    given = inputs[1].value.reshape(-1).tolist() if len(inputs) > 1 and inputs[1].value is not None else a.get("axes")
    if not given and a.get("noop_with_empty_axes", 0):
        return "it has no axes"
    axes, keepdims = tuple(given) if given else None, a.get("keepdims", 1) == 1

    def look(x: Array, *_: Array) -> Array:
        made: Array = np.prod(x, axes, dtype=x.dtype, keepdims=keepdims)
        return made

    return _counts(_one(look), inputs[0].dtype, _without(inputs[0].dims, axes, keepdims))


def _largest(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """ArgMax and ArgMin: the place of the first one."""
    a = operation.attributes
    if a.get("select_last_index", 0) or np.dtype(inputs[0].dtype).kind not in "iuf":
        return "the last of equal elements is asked for, or they are of another type"
    axis, rank = a.get("axis", 0), _rank(inputs[0])
    is_last = rank is not None and axis in (-1, rank - 1)
    if _may_be_many(inputs[0]) or not (is_last or (inputs[0].dims is not None and None not in inputs[0].dims)):
        return "there may be many elements"
    find, keepdims = np.argmax if operation.op == "ArgMax" else np.argmin, a.get("keepdims", 1) == 1

    def look(x: Array) -> Array:
        axis = axis_of(operation, x.shape, 0)
        if not x.shape[axis]:
            raise ArgumentError(f"axis={axis} of the input of shape {x.shape} has no element")
        made: Array = find(x, axis, keepdims=keepdims)
        return made

    return _counts(_one(look), "int64", _without(inputs[0].dims, [a.get("axis", 0)], keepdims))


def _ordered(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """TopK: equal ones in the order of their places, NaN behind all numbers."""
    if len(inputs) != 2 or operation.outputs != 2:
        return "it has two inputs and two outputs"
    kind = np.dtype(inputs[0].dtype).kind
    if kind not in "iuf" or not _whole(inputs[1]) or (kind == "f" and _may_be_many(inputs[0])):
        return "there are many numbers, or of another type"
    is_largest = operation.attributes.get("largest", 1) == 1

    def look(inputs: Sequence[Array | None]) -> Sequence[Array]:
        x, asked = inputs[0], inputs[1]
        assert x is not None and asked is not None
        axis, count = axis_of(operation, x.shape, -1), int(asked.item())
        extent = x.shape[axis]
        if not 0 <= count <= extent:
            raise ArgumentError(f"it has {extent} elements along axis {axis}, of which {count} are asked for")
        keys = x if not is_largest else -x if kind == "f" else ~x  # -1 - x: its order is the other way round
        if x.ndim == 1:  # of each class of a detector
            at = _first(keys, count)
            return [x[at], np.ascontiguousarray(at, np.int64)]
        at = np.moveaxis(_first(np.moveaxis(keys, axis, -1), count), -1, axis)
        return [np.take_along_axis(x, at, axis), np.ascontiguousarray(at, np.int64)]

    return View(look, (inputs[0].dtype, "int64"), True, _open(_rank(inputs[0])))


def _first(keys: Array, count: int) -> Array:
    """Places of the least along the last axis, in order; equal ones in the order of their places.

    Of few among many in few rows only those are put in order that the last of them does not come before.
    """
    extent, rows = keys.shape[-1], keys.reshape(-1, keys.shape[-1]) if keys.size else keys
    if not 0 < _SPARSE * count <= extent or len(rows) * _SPARSE > extent:
        return np.argsort(keys, -1, kind="stable")[..., :count]
    found = np.empty((len(rows), count), np.int64)
    for row, made in zip(rows, found, strict=True):
        last = np.partition(row, count - 1)[count - 1]
        near = np.arange(extent) if np.isnan(last) else np.flatnonzero(row <= last)
        made[:] = near[np.argsort(row[near], kind="stable")[:count]]
    return found.reshape(*keys.shape[:-1], count)


def check_places(places: Array, shape: Sequence[int], axis: int) -> None:
    """Raise an error if places lie outside an axis, or are more than an input has along another one."""
    others = (p <= e for at, (p, e) in enumerate(zip(places.shape, shape, strict=False)) if at != axis)
    if places.ndim != len(shape) or not all(others):
        raise ArgumentError(f"places of shape {places.shape} do not fit an input of shape {tuple(shape)}")
    if places.size and not -shape[axis] <= places.min() <= places.max() < shape[axis]:
        raise ArgumentError(f"places {places.min()} to {places.max()} of axis {axis} lie outside of {shape[axis]}")


def _indices(given: Array, x: Array, axis: int) -> Array:
    """Places along an axis, those from its end as well."""
    check_places(given, x.shape, axis)
    return np.where(given < 0, given + x.shape[axis], given)


def _picked(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """GatherElements."""
    if len(inputs) != 2 or not _whole(inputs[1]):
        return "it needs whole numbers as places"
    if _may_be_many(inputs[1]):
        return "there are many places"

    def look(x: Array, places: Array) -> Array:
        axis = axis_of(operation, x.shape, 0)
        check_places(places, x.shape, axis)
        part = x[tuple(slice(None) if at == axis else slice(p) for at, p in enumerate(places.shape))]
        return np.take_along_axis(part, _indices(places, x, axis), axis)

    return _counts(_one(look), inputs[0].dtype, _open(_rank(inputs[0])))


def adds_up(operation: Operation) -> bool:
    """Whether an operator that writes at places adds to what is there, or the like."""
    return operation.attributes.get("reduction", "none") not in ("none", b"none")


def _scattered(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """ScatterElements: whole rows at once where all elements of a row go along an axis to one place, as boxes do."""
    if len(inputs) != 3 or not _whole(inputs[1]) or not _alike(inputs[0], inputs[2]):
        return "its places are no whole numbers, or its numbers are of two types"
    if not _whole(inputs[0]) and (np.dtype(inputs[0].dtype).kind != "f" or _may_be_many(inputs[1])):
        return "there are many places, or elements of another type"
    if adds_up(operation):
        return "it sums"

    def look(x: Array, places: Array, updates: Array) -> Array:
        axis = axis_of(operation, x.shape, 0)
        check_places(places, x.shape, axis)
        if places.shape != updates.shape:
            raise ArgumentError(f"places of shape {places.shape} do not fit numbers of shape {updates.shape}")
        made = np.empty_like(updates, shape=x.shape)  # in the order of axes of what it mostly is
        made[...] = x
        row = places[tuple(slice(None) if a == axis else slice(1) for a in range(x.ndim))]
        at: list[Any]
        is_spread = all(step == 0 or a == axis for a, step in enumerate(places.strides))  # as Expand makes it
        if is_spread or (places == row).all():
            at = [slice(extent) for extent in places.shape]
            at[axis] = _indices(row, x, axis).reshape(-1)
        else:
            at = list(np.indices(places.shape, sparse=True))
            at[axis] = _indices(places, x, axis)
        made[tuple(at)] = updates
        return made

    return _counts(_one(look), inputs[0].dtype, inputs[0].dims)


def _reversed(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """ReverseSequence: each sequence of the batch turned up to its length."""
    a = operation.attributes
    time, batch = a.get("time_axis", 0), a.get("batch_axis", 1)
    if len(inputs) != 2 or not _whole(inputs[1]) or {time, batch} != {0, 1}:
        return "its axes of time and batch are not the first two"

    def look(x: Array, lengths: Array) -> Array:
        if x.ndim < 2 or lengths.shape != (x.shape[batch],):
            raise ArgumentError(f"lengths of shape {lengths.shape} do not fit an input of shape {x.shape}")
        if lengths.size and not 0 <= lengths.min() <= lengths.max() <= x.shape[time]:
            raise ArgumentError(f"lengths of {lengths.min()} to {lengths.max()} lie outside of {x.shape[time]}")
        made = x.copy()
        for at, length in enumerate(lengths.tolist()):
            if time == 0:
                made[:length, at] = x[:length, at][::-1]
            else:
                made[at, :length] = x[at, :length][::-1]
        return made

    return _counts(_one(look), inputs[0].dtype, inputs[0].dims)


def letters_of(attributes: Mapping[str, Any]) -> tuple[list[str], str] | None:
    """The letters of an Einsum's operands and of its result; None where it has an ellipsis, or the result one twice.

    Without an arrow the result has the letters that stand there once, in the order of the alphabet.
    """
    read, arrow, made = str(attributes.get("equation", "")).replace(" ", "").partition("->")
    terms = read.split(",")
    every = "".join(terms)
    made = made if arrow else "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    is_plain = all(letter.isascii() and letter.isalpha() for letter in every + made)
    return (terms, made) if is_plain and set(made) <= set(every) and len(set(made)) == len(made) else None


def _outer(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """Einsum that sums over nothing: products of all elements of its inputs with each other, and turns of axes."""
    found = letters_of(operation.attributes)
    letters = set("".join(found[0])) if found else set[str]()
    if found is None or letters != set(found[1]) or len(letters) > _LETTERS:
        return "it sums products"
    terms, made = found
    if not _alike(*inputs):
        return "its inputs are of several types"
    equation = f"{','.join(terms)}->{made}"
    return _counts(_one(lambda *given: np.einsum(equation, *given)), inputs[0].dtype, _open(len(made)))


def _remainder(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """Mod of whole numbers: with the divisor's sign, or by ``fmod`` with the dividend's."""
    if len(inputs) != 2 or not _whole(*inputs) or not _alike(*inputs) or any(map(_may_be_many, inputs)):
        return "there are many numbers, or no whole ones of one type"
    find = np.fmod if operation.attributes.get("fmod", 0) else np.mod
    ranks = [_rank(x) for x in inputs]

    def look(a: Array, b: Array) -> Array:
        if not b.all():
            raise ArgumentError("whole numbers are divided by 0")
        made: Array = find(a, b)
        return made

    return _counts(_one(look), inputs[0].dtype, None if None in ranks else _open(max(r or 0 for r in ranks)))


def _angles(operation: Operation, inputs: Sequence[Known]) -> View | str:
    """Sin and Cos of f64, as encodings of places have them; those of f32 are part of passes."""
    if inputs[0].dtype != "float64":
        return "it is not done here for this type"
    return _counts(_one(np.sin if operation.op == "Sin" else np.cos), inputs[0].dtype, inputs[0].dims)


_TABLE: Mapping[str, tuple[Sequence[str], Callable[[Operation, Sequence[Known]], View | str]]] = {
    "ArgMax": (("axis", "keepdims", "select_last_index"), _largest),
    "ArgMin": (("axis", "keepdims", "select_last_index"), _largest),
    "ConstantOfShape": (("value",), _constant_of_shape),
    "Cos": ((), _angles),
    "Einsum": (("equation",), _outer),
    "GatherElements": (("axis",), _picked),
    "Mod": (("fmod",), _remainder),
    "Range": ((), _range),
    "ReduceProd": (("axes", "keepdims", "noop_with_empty_axes"), _product),
    "ReverseSequence": (("batch_axis", "time_axis"), _reversed),
    "ScatterElements": (("axis", "reduction"), _scattered),
    "Sin": ((), _angles),
    "Size": ((), _size),
    "TopK": (("axis", "largest", "sorted"), _ordered),
}
"""Operator -> the attributes that it may have, and what makes its lines."""
