"""What an operator is given, turned into what it amounts to: counted and typed inputs, then the row's own arithmetic.

It must not know the name of any operator, attribute or input, nor what computes the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv import dtypes as element_types
from polyconv.dialects import inputs as given
from polyconv.dialects.node import Lowering, Node, Shape, Value
from polyconv.errors import ArgumentError, DtypeError

if TYPE_CHECKING:
    from polyconv.dialects.call import Operator

__all__ = [
    "SIZES", "arrays_of", "check_count", "check_kind", "described", "layout_of", "lower", "operands_of", "values_of",
]  # fmt: skip

Array = NDArray[Any]

SIZES = "sizes"
"""Role of an input that holds sizes: its content is read when the problem is made."""


def described(operator: Operator, shapes: Sequence[Shape], dtypes: Sequence[Any] | None,
              values: Mapping[int, ArrayLike] | None, absent: Sequence[int] = ()) -> Lowering:  # fmt: skip
    """Lowering of inputs of which a caller tells shapes, types and perhaps contents."""
    check_kind(dtypes, Sequence | None, "dtypes", "a list of element types, one per input")
    check_kind(values, Mapping | None, "values", "a dict from positions of inputs to their contents")
    check_count(operator, [True] * len(shapes))
    found = {}
    for at, (row, shape) in enumerate(zip(operator.row.inputs, shapes, strict=False)):
        if at in absent:
            continue
        dtype = None if dtypes is None or at >= len(dtypes) else dtypes[at]
        content = None
        if row.role == SIZES and values is not None and at in values:
            content = given.sizes(np.asarray(values[at]), row.name)
        name = None if dtype is None else given.type_name(dtype, row.name)
        found[row.role] = Value(row.name, given.checked_shape(shape, row.name), name, content)
    return lower(operator, found)


def arrays_of(operator: Operator, inputs: Sequence[ArrayLike | None]) -> tuple[Array | None, ...]:
    """An array for each input of the row, None for one that is absent."""
    check_count(operator, [a is not None for a in inputs])
    pairs = zip(inputs, operator.row.inputs, strict=False)
    arrays = tuple(None if a is None else given.array(a, row.name) for a, row in pairs)
    return arrays + (None,) * (len(operator.row.inputs) - len(arrays))


def values_of(operator: Operator, arrays: Sequence[Array | None]) -> dict[str, Value]:
    """What a row's arithmetic knows of arrays, by role."""
    return {
        row.role: Value(
            row.name,
            array.shape,
            element_types.of_array(array.dtype, row.name).name,
            given.sizes(array, row.name) if row.role == SIZES else None,
        )
        for row, array in zip(operator.row.inputs, arrays, strict=True)
        if array is not None
    }


def layout_of(operator: Operator) -> str:
    """Axis order of the operator's input and result."""
    return "NHWC" if operator.attributes.get("channels_last") else operator.row.layout


def lower(operator: Operator, values: Mapping[str, Value]) -> Lowering:
    """The row's own arithmetic, applied to inputs of the types that it takes."""
    _check_types(operator, values)
    return operator.row.lower(Node(operator.name, operator.attributes, layout_of(operator), operator.semantics, values))


def operands_of(operator: Operator, lowering: Lowering, arrays: Sequence[Array | None]) -> dict[str, Array]:
    """Operands of ``layer.compute``, by parameter."""
    found = {}
    for row, array in zip(operator.row.inputs, arrays, strict=True):
        if array is not None and row.role != SIZES:
            change = lowering.operands.get(row.role)
            found[row.role] = array if change is None else change(array)
    return found


def check_kind(value: Any, kind: Any, name: str, wanted: str) -> None:
    """Refuse an argument of another type than is wanted."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is of type {type(value).__name__}; give {wanted}")


def check_count(operator: Operator, present: Sequence[bool]) -> None:
    """Refuse too many inputs, or too few: ``present`` says by position which are there."""
    inputs = operator.row.inputs
    names = ", ".join(f"[{i.name}]" if i.optional else i.name for i in inputs)
    if len(present) > len(inputs):
        raise ArgumentError(
            f"{operator.name} was given {len(present)} inputs, it has at most {len(inputs)} ({names}): "
            f"leave out the rest"
        )
    for at, row in enumerate(inputs):
        if not row.optional and not (at < len(present) and present[at]):
            raise ArgumentError(f"{operator.name} lacks its input {row.name} at position {at}: give {names}")


def _check_types(operator: Operator, values: Mapping[str, Value]) -> None:
    bound: dict[str, Value] = {}
    for row in operator.row.inputs:
        value = values.get(row.role)
        if value is None or value.dtype is None:
            continue
        allowed = operator.row.types[row.type]
        if value.dtype not in allowed:
            raise DtypeError(
                f"{row.name} has dtype {value.dtype}, {operator.name} version {operator.version} takes "
                f"{', '.join(allowed)} there: convert it with .astype(...) or take another version"
            )
        first = bound.setdefault(row.type, value)
        if first.dtype != value.dtype:
            raise DtypeError(
                f"{row.name} has dtype {value.dtype}, {first.name} has {first.dtype}; {operator.name} takes "
                f"one type for both: convert one with .astype(...)"
            )
