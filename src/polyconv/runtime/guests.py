"""Whatever holds an array, as a NumPy array over the same memory where that is possible.

NumPy's own kinds, tensors of other libraries, DLPack, buffers, pictures, lists of numbers.  Guests are known by what
they answer, never by their library; memory that is no CPU's is refused by the device's name.  It must know nothing
of problems.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError, DtypeError
from polyconv.runtime.dlpack import device_name, device_of, is_readable, read_bfloat16

__all__ = ["as_array", "is_plain", "together"]

Array = NDArray[Any]

_TYPES = frozenset(row.numpy for row in DTYPES.values())
"""What numbers can become."""


def is_plain(value: object) -> bool:
    """Whether a value is numbers without a type of their own: Python's, or a list of them."""
    while isinstance(value, list | tuple):
        if not value:
            return True
        value = value[0]
    return isinstance(value, int | float) and not isinstance(value, np.generic)


def as_array(value: ArrayLike, name: str, like: np.dtype[Any] | None = None) -> Array:
    """Whatever holds an array, as a NumPy array over the same memory where that is possible.

    Parameters
    ----------
    value : array_like
        An array, a tensor in CPU memory, or a list of numbers.
    name : str
        The argument, for messages.
    like : dtype, optional
        What numbers without a type of their own become, where it holds them; else NumPy's usual type.

    Raises
    ------
    ArgumentError
        For masked arrays, whose mask NumPy would drop, tensors that want gradients or lie on another device, numbers
        that ``like`` does not hold, and what holds no numbers.
    DtypeError
        For Python objects.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{name} is a masked array; its mask would be lost: pass {name}.filled(...) instead")
    if is_plain(value):
        return _typed(value, name, like)
    if not isinstance(value, np.ndarray | np.generic | list | tuple):
        found = _guest(value, name)
        if found is not None:
            return found
    return _numpy(value, name)


def together(x: ArrayLike, w: ArrayLike) -> tuple[Array, Array]:
    """Input and weights; a list takes the type of the array it meets, two lists that of all their numbers."""
    if is_plain(x) and is_plain(w):
        first, second = as_array(x, "x"), as_array(w, "w")
        both = np.result_type(first, second)
        return as_array(x, "x", both), as_array(w, "w", both)
    if is_plain(w):
        first = as_array(x, "x")
        return first, as_array(w, "w", first.dtype)
    second = as_array(w, "w")
    return as_array(x, "x", second.dtype), second


def _typed(value: Any, name: str, like: np.dtype[Any] | None) -> Array:
    array = _numpy(value, name)
    if like is None or like not in _TYPES or array.dtype == like or array.dtype.kind not in "iuf":
        return array
    if like.kind in "iu":
        if array.dtype.kind == "f" and array.size:
            return array  # fractions: the types disagree, and whoever compares them says so
        info = np.iinfo(like)
        fits = not array.size or (array.min() >= info.min and array.max() <= info.max)
        made = array.astype(like)
    else:
        with np.errstate(over="ignore"):
            made = array.astype(like)
        fits = np.array_equal(np.isinf(made), np.isinf(array))
    if not fits:
        raise ArgumentError(
            f"{name} has values from {array.min()} to {array.max()}, which {like} does not hold; convert it with "
            f"numpy.asarray({name}, dtype) to the type that is meant"
        )
    return made


def _guest(value: Any, name: str) -> Array | None:
    """A tensor of another library; None if NumPy knows better."""
    if getattr(value, "requires_grad", False) is True:
        raise ArgumentError(f"{name} requires a gradient, and polyconv computes none; pass {name}.detach()")
    if not hasattr(value, "__dlpack__"):
        return None
    try:
        if hasattr(value, "__array__") and "bfloat16" not in str(getattr(value, "dtype", "")):
            return np.asarray(value)
        return _over_dlpack(value)
    except Exception as error:  # each library raises its own
        device = device_of(value)
        if device is not None and not is_readable(device):
            raise ArgumentError(
                f"{name} lies in the memory of {device_name(device)}, and polyconv computes on the CPU; copy it there "
                f"first ({name}.cpu() in PyTorch)"
            ) from None
        raise ArgumentError(f"{name} cannot be read as an array ({error}); pass a NumPy array") from None


def _over_dlpack(value: Any) -> Array:
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError):  # a type that NumPy does not read
        found = read_bfloat16(value)
        if found is None:
            raise
        return found


def _numpy(value: Any, name: str) -> Array:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentError(f"{name} cannot be read as an array ({error}); pass a NumPy array") from None
    if array.dtype == object:
        raise DtypeError(f"{name} holds Python objects, not numbers of one type; convert it with numpy.asarray")
    return array
