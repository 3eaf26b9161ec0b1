"""What a caller gives for an input, turned into an array, a shape, a type or a list of sizes.

Each function reads one kind of thing and says which input was wrong.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv import dtypes
from polyconv.dialects.attributes import Attribute, integers
from polyconv.dialects.node import Dim, Shape
from polyconv.errors import ArgumentError, DtypeError, shown
from polyconv.runtime.guests import as_array
from polyconv.runtime.memory import native_order

__all__ = ["array", "checked_shape", "sizes", "type_name", "whole"]

Array = NDArray[Any]


def whole(value: Any, name: str) -> int:
    """A version, position or operator set as int.

    Raises
    ------
    ArgumentError
        If it is no integer.
    """
    (number,) = integers().check(name, [value])
    return int(number)


def array(value: ArrayLike, name: str) -> Array:
    """An input as NumPy array in native byte order.

    Raises
    ------
    ArgumentError, DtypeError
        If it is a masked array, lies on another device, wants a gradient, or holds no numbers.
    """
    return native_order(as_array(value, name), name)


def sizes(given: Array, name: str) -> tuple[int, ...]:
    """Content of an input that holds sizes, none of them negative.

    Raises
    ------
    ArgumentError
        If it is not a list of such integers.
    """
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ArgumentError(
            f"{name} of shape {given.shape} and dtype {given.dtype} holds sizes: give a list of integers"
        )
    content: tuple[int, ...] = integers(least=0).check(name, given)
    return content


def checked_shape(shape: Any, name: str) -> Shape:
    """A shape given by a caller, its whole numbers as int.

    Raises
    ------
    ArgumentError
        If it is not a tuple of sizes, symbols and None.
    """
    if shape is None:
        return None
    if isinstance(shape, str | bytes) or not isinstance(shape, Sequence) or len(shape) > 64:
        raise ArgumentError(
            f"shape of {name}, {shown(shape)}, is not a tuple of sizes: give one per axis, at most 64"
        )
    size = integers(least=0)
    return tuple(_dim(d, f"shape of {name}", size) for d in shape)


def _dim(value: Any, name: str, size: Attribute) -> Dim:
    if value is None or isinstance(value, str):
        return value
    (number,) = size.check(name, [value])
    return int(number)


def type_name(dtype: Any, argument: str) -> str:
    """Short name of an element type given by a caller: a short name, or whatever NumPy takes for a dtype.

    Raises
    ------
    DtypeError
        If it is not one of polyconv's.
    """
    if isinstance(dtype, str) and dtype in dtypes.DTYPES:
        return dtype
    try:
        return dtypes.of_array(np.dtype(dtype), argument).name
    except TypeError as error:
        if isinstance(error, DtypeError):
            raise
        raise DtypeError(
            f"dtype {shown(dtype)} of {argument} is not a type; give one of {', '.join(dtypes.DTYPES)}"
        ) from None
