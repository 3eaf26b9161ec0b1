"""What a run is fed: anything that holds an array, as an array of the type and shape that the model declares.

It must not know what the model does with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError, DtypeError
from polyconv.gpu.guests import device_of
from polyconv.models.elements import BY_TYPE
from polyconv.models.graph import Array, Value
from polyconv.models.limits import shorten
from polyconv.models.ort_value import OrtValue
from polyconv.runtime.guests import as_array
from polyconv.runtime.memory import native_order

__all__ = ["check_shape", "fed"]


def fed(value: Value, given: Any) -> Array:
    """An input as an array of the model's type; its shape fits what the model declares.

    Parameters
    ----------
    value : Value
        What the model declares.
    given : array_like or OrtValue
        Lists of numbers take the declared type.

    Raises
    ------
    ArgumentError, DtypeError
        Naming the input and what differs.
    """
    if isinstance(given, OrtValue):
        given = given._value
    element = BY_TYPE.get(value.type)
    if element is None:  # a sequence or a type the file does not tell: its host looks at it
        return given  # type: ignore[no-any-return]
    if type(given) is np.ndarray and given.dtype == element.numpy and given.shape == value.dims:
        return given  # as nearly always
    name = f"the input {shorten(value.name)!r}"
    if (device := device_of(given)) is not None:
        raise ArgumentError(
            f"{name} lies on CUDA device {device}, the session computes on the CPU; copy it, or make a session with "
            f"providers=['CUDAExecutionProvider']"
        )
    if element.type == "tensor(string)":
        array = _texts(given, name)
        is_alike = array.dtype.kind in "OUST"
    else:
        array = _numbers(given, value, element.numpy)
        is_alike = array.dtype == element.numpy or array.dtype.newbyteorder("=") == element.numpy
    if not is_alike:
        raise DtypeError(
            f"{name} has dtype {array.dtype}, the model wants {element.numpy} ({value.type}): convert it with "
            f".astype(...)"
        )
    check_shape(value, array.shape, name)
    return native_order(array, name)


def check_shape(value: Value, shape: Sequence[int], name: str) -> None:
    """Refuse what is fed under a name if the model declares another shape, as far as it declares one."""
    dims = value.dims
    if dims is None:
        return
    sizes = zip(dims, shape, strict=False)
    if len(shape) != len(dims) or any(isinstance(wanted, int) and wanted != got for wanted, got in sizes):
        raise ArgumentError(f"{name} has shape {tuple(shape)}, the model wants {list(dims)}: reshape it")


def _numbers(given: Any, value: Value, like: np.dtype[Any]) -> Array:
    try:
        return as_array(given, shorten(value.name), like)
    except (ArgumentError, DtypeError) as error:
        raise type(error)(f"the input {shorten(value.name)!r}: {error}") from None


def _texts(given: Any, name: str) -> Array:
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{name} cannot be read as an array ({shorten(str(error))}); give a NumPy array") from None
