"""Arguments of the filters as people write them: arrays, axes, and one value or one an axis.

Every check stands here, before the first store, and names the argument, what disagrees and the way out.  It must not
know how anything is computed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyconv.dtypes import DTYPES, of_array
from polyconv.errors import ArgumentError, DtypeError
from polyconv.ndimage.borders import MODES
from polyconv.operands import check_writable
from polyconv.runtime.arrays import mark
from polyconv.runtime.guests import as_array
from polyconv.runtime.memory import allocating, native_order, sized

__all__ = [
    "axes_of", "axis_of", "check_mode", "field_of", "fitting_origin", "integer", "number", "one_each", "result_for",
    "weights_of",
]  # fmt: skip

Array = NDArray[Any]
T = TypeVar("T")


def field_of(given: Any) -> Array:
    """The array to filter, in native byte order."""
    array = native_order(as_array(given, "input"), "input")
    if array.dtype.kind not in "bc":
        of_array(array.dtype, "input")
    elif array.dtype.kind == "c" and array.dtype.char not in "FD":
        raise DtypeError(f"input has dtype {array.dtype}; complex64 and complex128 are filtered: convert it")
    return array


def result_for(x: Array, output: Any, *, is_complex: bool) -> tuple[Any, Array]:
    """What the call returns, and the array to write: ``output`` itself, or a new one of its type or the field's.

    Parameters
    ----------
    output : None, dtype or array
    is_complex : bool
        Whether results have an imaginary part.
    """
    if output is None:
        dtype = np.promote_types(x.dtype, np.complex64) if is_complex else x.dtype
    elif isinstance(output, str | type | np.dtype):
        try:
            dtype = np.dtype(output).newbyteorder("=")
        except TypeError:
            raise DtypeError(f"output={output!r} is no dtype; pass one such as numpy.float32, or an array") from None
    else:
        array = as_array(output, "output")
        check_writable(array, "output", x.shape)
        _check_result(array.dtype, is_complex)
        return output, array
    _check_result(dtype, is_complex)
    with allocating(sized("the result", x.shape, dtype), "filter parts, or give an output= such as a numpy.memmap"):
        fresh = mark(np.empty(x.shape, dtype))
    return fresh, fresh


def _check_result(dtype: np.dtype[Any], is_complex: bool) -> None:
    if (dtype.kind == "c") != is_complex or (is_complex and dtype.char not in "FD"):
        raise DtypeError(
            f"output has dtype {dtype}, but the result is {'complex' if is_complex else 'real'}: "
            f"pass {'complex64 or complex128' if is_complex else 'a real type, or its real part'}"
        )
    if dtype.kind not in "bc":
        of_array(dtype, "output")


def weights_of(given: Any, *, ndim: int | None = None) -> Array:
    """Weights as float64 or complex128, with no axis of extent 0."""
    array = as_array(given, "weights")
    if array.dtype.kind not in "bc" and array.dtype not in {row.numpy for row in DTYPES.values()}:
        raise DtypeError(f"weights have dtype {array.dtype}, which is no type of numbers; convert them to float64")
    if ndim is not None and array.ndim != ndim:
        raise ArgumentError(f"weights have shape {array.shape}; this filter takes {ndim} axis of them")
    if not array.size:
        raise ArgumentError(f"weights have shape {array.shape}: there are none; every extent must be at least 1")
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def axis_of(given: Any, ndim: int) -> int:
    """An axis, counted from the first."""
    return _existing(integer(given, "axis"), ndim, f"axis={given}")


def _existing(axis: int, ndim: int, spelled: str) -> int:
    if not -ndim <= axis < ndim:
        there = f"{ndim} axes, {-ndim} to {ndim - 1}" if ndim else "no axes"
        raise ArgumentError(f"{spelled} names axis {axis}, but input has {there}")
    return axis % ndim


def axes_of(given: Any, ndim: int) -> tuple[int, ...]:
    """The axes to filter along, counted from the first, in the order in which they were given."""
    if given is None:
        return tuple(range(ndim))
    wanted = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    axes = [_existing(integer(one, "axes"), ndim, f"axes={given}") for one in wanted]
    if len(set(axes)) < len(axes):
        raise ArgumentError(f"axes={given} names an axis twice; name each once")
    return tuple(axes)


def one_each(given: Any, axes: Sequence[int], name: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
    """One value an axis, from one for all or a sequence."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        return (read(given, name),) * len(axes)
    values = tuple(given)
    if len(values) != len(axes):
        raise ArgumentError(
            f"{name} has {len(values)} entries, but {len(axes)} axes are filtered; give one for each, or one for all"
        )
    return tuple(read(value, name) for value in values)


def check_mode(given: Any, name: str) -> str:
    """A padding mode."""
    if not isinstance(given, str) or given not in MODES:
        raise ArgumentError(f"{name}={given!r} is not one of {', '.join(MODES)}")
    return given


def integer(given: Any, name: str) -> int:
    """A whole number."""
    try:
        return operator.index(given)
    except TypeError:
        raise ArgumentError(f"{name}={given!r} must be a whole number") from None


def number(given: Any, name: str) -> float:
    """A real number."""
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name}={given!r} must be a number") from None


def fitting_origin(origin: int, size: int) -> int:
    """An origin that leaves the output's own position in the window."""
    if not -(size // 2) <= origin <= (size - 1) // 2:
        raise ArgumentError(
            f"origin={origin} moves a window of {size} off its output; give {-(size // 2)} to {(size - 1) // 2}"
        )
    return origin

