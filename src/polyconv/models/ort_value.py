"""``OrtValue``: a value with onnxruntime's methods around it, in the CPU's memory or on a GPU.

The one idea: it is an array and says of itself what onnxruntime's object of that name says.  It must not know sessions.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyconv.dtypes import of_array
from polyconv.errors import ArgumentError, shown
from polyconv.gpu.arrays import Borrowed, GpuArray, to_gpu
from polyconv.gpu.driver import driver, why_absent
from polyconv.gpu.guests import as_own, device_of
from polyconv.models.elements import BY_NUMPY, BY_ONNX, Element
from polyconv.models.graph import Array
from polyconv.runtime.guests import as_array
from polyconv.runtime.memory import allocating, native_order, sized

__all__ = ["OrtValue", "at_address", "check_target", "device_named", "fill"]

_MOST_AXES = 64
_NOT_AS_NUMPY = (8, 21, 22, 23, 25, 26)
"""Strings, and types of less than a byte, which lie packed elsewhere."""


class OrtValue:
    """A tensor, or a sequence of them, with the methods of ``onnxruntime.OrtValue``, in the CPU's memory or on a GPU.

    Parameters
    ----------
    value : array_like or list of arrays
        Held as it is, not copied; an array on a GPU, too.

    Examples
    --------
    >>> import numpy as np, polyconv
    >>> value = polyconv.OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))
    >>> value.shape(), value.data_type()
    ([2, 3], 'tensor(float)')
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        if isinstance(value, list | dict):
            self._value: Any = value
        elif device_of(value) is not None:
            self._value = as_own(value, "value")
        else:
            self._value = native_order(as_array(value, "value"), "value")

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Hold an array: the same memory, if it is C-contiguous and stays; a copy on a GPU, ``cuda``."""
        array = np.ascontiguousarray(as_array(numpy_obj, "numpy_obj"))
        number = device_named(device_type, device_id)
        return cls(array if number is None else to_gpu(array, number))

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
        number = device_named(device_type, device_id)
        if memory_info is not None:
            raise ArgumentError("memory_info chooses an allocator of onnxruntime's; leave it out")
        extents, kind = _extents(shape), element_of(element_type).numpy
        with allocating(sized("an OrtValue", extents, kind), "ask for less"):
            zeros = np.zeros(extents, kind)
        return cls(zeros if number is None else to_gpu(zeros, number))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Hold the memory of whatever speaks DLPack."""
        return cls(data if device_of(data) is not None else as_array(data, "data"))

    def numpy(self) -> Array:
        """The tensor, in the same memory; a copy of one on a GPU."""
        tensor = self._tensor()
        return tensor.numpy() if type(tensor) is GpuArray else tensor

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
        """``cpu`` or ``cuda``."""
        return "cuda" if type(self._value) is GpuArray else "cpu"

    def data_ptr(self) -> int:
        """Address of the first element."""
        tensor = self._tensor()
        return int(tensor.address if type(tensor) is GpuArray else tensor.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Bytes of the tensor."""
        tensor = self._tensor()
        return int(math.prod(tensor.shape) * tensor.dtype.itemsize)

    def has_value(self) -> bool:
        """True: there are no empty ones here."""
        return True

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return isinstance(self._value, np.ndarray | GpuArray)

    def is_sparse_tensor(self) -> bool:
        """False: there are no sparse ones here."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence of tensors."""
        return isinstance(self._value, list)

    def update_inplace(self, data: Any) -> None:
        """Copy an array of the same shape and type, or the one of another value, into this one's memory."""
        given = data._tensor() if isinstance(data, OrtValue) else data
        source = as_own(given, "data") if device_of(given) is not None else as_array(given, "data")
        check_target(self._tensor(), source, "data")
        fill(self._tensor(), source)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._here().__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._here().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if type(self._value) is not GpuArray:
            raise AttributeError("the value lies in the CPU's memory")
        return self._value.__cuda_array_interface__

    def _here(self) -> Array:
        """The tensor in the CPU's memory, whose DLPack NumPy makes."""
        tensor = self._tensor()
        if type(tensor) is GpuArray:
            raise ArgumentError("the value lies on a GPU, whose __cuda_array_interface__ says where; take that")
        return np.asarray(tensor)

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}, {self.shape() if self.is_tensor() else len(self._value)})"

    def _tensor(self) -> Any:
        if not self.is_tensor():
            kind = type(self._value).__name__
            raise ArgumentError(f"the value is a {kind}, not a tensor; take its elements one by one")
        return self._value


def fill(target: Any, source: Any) -> None:
    """Copy an array into one of its shape and type, wherever they lie."""
    if type(target) is not GpuArray:
        target[...] = source.numpy() if type(source) is GpuArray else source
        return
    from polyconv.operators.on_gpu.seeing import copy_there  # here, as on a CPU no kernel of a GPU is needed

    copy_there(source if type(source) is GpuArray else to_gpu(source, target.device, wait=False), target)


def check_target(target: Any, source: Any, name: str) -> None:
    """Refuse memory that an array cannot be copied into: it must have its shape and type."""
    if not isinstance(source, np.ndarray | GpuArray):
        raise ArgumentError(f"{name} is a {type(source).__name__}, which no memory can be given for; leave it out")
    if (target.shape, target.dtype) != (source.shape, source.dtype):
        raise ArgumentError(
            f"{name} has shape {source.shape} and type {source.dtype}, the memory it is to fill has {target.shape} and "
            f"{target.dtype}; give memory of the same"
        )
    if type(target) is GpuArray:
        if type(source) is GpuArray and source.device != target.device:
            where = f"CUDA device {source.device}, the memory it is to fill on {target.device}"
            raise ArgumentError(f"{name} lies on {where}; give memory there")
    elif not target.flags.writeable:
        raise ArgumentError(f"the memory that {name} is to fill is read-only; give one that can be written")


def device_named(device_type: str, device_id: int = 0) -> int | None:
    """Number of a GPU by onnxruntime's words for a device, ``cuda`` and a number; None for ``cpu``.

    Raises
    ------
    ArgumentError
        If there is no such device.
    """
    kind = str(device_type).lower()
    if kind == "cuda":
        if (reason := why_absent()) is not None:
            raise ArgumentError(f"no device cuda:{device_id}: {reason}; give 'cpu', 0")
        count = driver().count
        if isinstance(device_id, int) and 0 <= device_id < count:
            return device_id
        raise ArgumentError(f"no device cuda:{device_id}; give a number from 0 to {count - 1}")
    if kind != "cpu" or device_id != 0:
        raise ArgumentError(f"no device {device_type}:{device_id}; give 'cpu', 0, or 'cuda' and a number")
    return None


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


def at_address(pointer: int, element_type: Any, shape: Sequence[int], device: int | None = None) -> Any:
    """The array at an address, perhaps of a GPU; the caller vouches that it is there for as long as it is used."""
    row, extents = element_of(element_type), _extents(shape)
    if row.onnx in _NOT_AS_NUMPY:
        raise ArgumentError(f"element_type={element_type!r} does not lie in memory as NumPy has it; bind an array")
    size = math.prod(extents) * row.numpy.itemsize
    if not isinstance(pointer, int) or (pointer <= 0 and size):
        raise ArgumentError(f"buffer_ptr={pointer!r} is no address; give that of the first element")
    if device is not None:
        kind = of_array(row.numpy, "element_type")
        return GpuArray(extents, kind, device, memory=Borrowed(pointer, size, device))
    if not size:
        return np.empty(extents, row.numpy)
    memory = (ctypes.c_uint8 * size).from_address(pointer)
    return np.ndarray(extents, row.numpy, memory)  # type: ignore[arg-type]  # a buffer like any other
