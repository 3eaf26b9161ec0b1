"""``OrtValue``: a value with onnxruntime's methods around it, in CPU memory.

The one idea: it is a NumPy array and says of itself what onnxruntime's object of that name says.  It must not know
sessions.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError, shown
from polyconv.models.elements import BY_NUMPY, BY_ONNX, Element
from polyconv.models.graph import Array
from polyconv.runtime.guests import as_array
from polyconv.runtime.memory import allocating, native_order, sized

__all__ = ["OrtValue", "at_address", "check_cpu", "check_target"]

_MOST_AXES = 64
_NOT_AS_NUMPY = (8, 21, 22, 23, 25, 26)
"""Strings, and types of less than a byte, which lie packed elsewhere."""


class OrtValue:
    """A tensor, or a sequence of them, with the methods of ``onnxruntime.OrtValue``; its memory is the CPU's.

    Parameters
    ----------
    value : array_like or list of arrays
        Held as it is, not copied.

    Examples
    --------
    >>> import numpy as np, polyconv
    >>> value = polyconv.OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))
    >>> value.shape(), value.data_type()
    ([2, 3], 'tensor(float)')
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value if isinstance(value, list | dict) else native_order(as_array(value, "value"), "value")

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Hold an array: the same memory, if it is C-contiguous."""
        check_cpu(device_type, device_id)
        return cls(np.ascontiguousarray(as_array(numpy_obj, "numpy_obj")))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Any, /, onnx_element_type: int) -> OrtValue:
        """Hold the bits of an array as another type of the same size, by its number in ``onnx.TensorProto``."""
        array, wanted = cls.ortvalue_from_numpy(data).numpy(), element_of(onnx_element_type).numpy
        if array.itemsize != wanted.itemsize:
            raise ArgumentError(f"data has elements of {array.itemsize} bytes, {wanted} has {wanted.itemsize}: cast it")
        return cls(array.view(wanted))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> OrtValue:
        """Hold zeros of a shape and type: a NumPy type, or a number of ``onnx.TensorProto``."""
        check_cpu(device_type, device_id)
        if memory_info is not None:
            raise ArgumentError("memory_info chooses an allocator of onnxruntime's; leave it out")
        extents, kind = _extents(shape), element_of(element_type).numpy
        with allocating(sized("an OrtValue", extents, kind), "ask for less"):
            return cls(np.zeros(extents, kind))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Hold the memory of whatever speaks DLPack."""
        return cls(as_array(data, "data"))

    def numpy(self) -> Array:
        """The tensor, in the same memory."""
        return self._tensor()

    def shape(self) -> list[int]:
        """Extents."""
        return list(self._tensor().shape)

    def data_type(self) -> str:
        """``tensor(float)`` and so on; ``seq(...)`` for a sequence."""
        if isinstance(self._value, list):
            inner = {OrtValue(v).data_type() for v in self._value}
            return f"seq({inner.pop() if len(inner) == 1 else ''})"
        return element_of(self._tensor().dtype).type

    def element_type(self) -> int:
        """Number of the element type in ``onnx.TensorProto``."""
        return element_of(self._tensor().dtype).onnx

    def device_name(self) -> str:
        """``cpu``."""
        return "cpu"

    def data_ptr(self) -> int:
        """Address of the first element."""
        return int(self._tensor().ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of the tensor."""
        return int(self._tensor().nbytes)

    def has_value(self) -> bool:
        """True: there are no empty ones here."""
        return True

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        """False: there are no sparse ones here."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence of tensors."""
        return isinstance(self._value, list)

    def update_inplace(self, data: Any) -> None:
        """Copy an array of the same shape and type, or the one of another value, into this one's memory."""
        source = data.numpy() if isinstance(data, OrtValue) else as_array(data, "data")
        check_target(self._tensor(), source, "data")
        self._tensor()[...] = source

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._tensor(), dtype=dtype, copy=copy)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._tensor().__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor().__dlpack_device__()

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}, {self.shape() if self.is_tensor() else len(self._value)})"

    def _tensor(self) -> Array:
        if not isinstance(self._value, np.ndarray):
            kind = type(self._value).__name__
            raise ArgumentError(f"the value is a {kind}, not a tensor; take its elements one by one")
        return self._value


def check_target(target: Array, source: Any, name: str) -> None:
    """Refuse memory that an array cannot be copied into: it must have its shape and type."""
    if not isinstance(source, np.ndarray):
        raise ArgumentError(f"{name} is a {type(source).__name__}, which no memory can be given for; leave it out")
    if (target.shape, target.dtype) != (source.shape, source.dtype):
        raise ArgumentError(
            f"{name} has shape {source.shape} and type {source.dtype}, the memory it is to fill has {target.shape} and "
            f"{target.dtype}; give memory of the same"
        )
    if not target.flags.writeable:
        raise ArgumentError(f"the memory that {name} is to fill is read-only; give one that can be written")


def check_cpu(device_type: str, device_id: int = 0) -> None:
    """Refuse devices that are not the CPU."""
    if str(device_type).lower() != "cpu" or device_id != 0:
        raise ArgumentError(f"no device {device_type}:{device_id}; polyconv computes on the CPU: give 'cpu', 0")


def element_of(given: Any) -> Element:
    """Row of an element type: a NumPy type, or a number of ``onnx.TensorProto``."""
    row = BY_ONNX.get(given) if isinstance(given, int) else None
    if row is None and not isinstance(given, int):
        try:
            row = BY_NUMPY.get(np.dtype(given))
        except TypeError:
            row = None
    if row is None:
        raise ArgumentError(f"element_type={given!r} is no type; give a NumPy type or a number of onnx.TensorProto")
    return row


def _extents(shape: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(shape, Sequence | np.ndarray) or len(shape) > _MOST_AXES:
        raise ArgumentError(f"shape={shown(shape)} must be a list with a size for each axis, at most {_MOST_AXES}")
    if not all(isinstance(e, int | np.integer) and 0 <= e < 1 << 62 for e in shape):
        raise ArgumentError(f"shape={shown(list(shape))} must be whole numbers, none of them negative or beyond 2^62")
    extents = tuple(int(e) for e in shape)
    if math.prod(max(1, e) for e in extents) >= 1 << 58:
        raise ArgumentError(f"shape={shown(list(shape))} is beyond the memory that there can be; ask for less")
    return extents


def at_address(pointer: int, element_type: Any, shape: Sequence[int]) -> Array:
    """The array at an address; the caller vouches that it is there for as long as it is used."""
    row, extents = element_of(element_type), _extents(shape)
    if row.onnx in _NOT_AS_NUMPY:
        raise ArgumentError(f"element_type={element_type!r} does not lie in memory as NumPy has it; bind an array")
    size = math.prod(extents) * row.numpy.itemsize
    if not isinstance(pointer, int) or (pointer <= 0 and size):
        raise ArgumentError(f"buffer_ptr={pointer!r} is no address; give that of the first element")
    if not size:
        return np.empty(extents, row.numpy)
    memory = (ctypes.c_uint8 * size).from_address(pointer)
    return np.ndarray(extents, row.numpy, memory)  # type: ignore[arg-type]  # a buffer like any other
