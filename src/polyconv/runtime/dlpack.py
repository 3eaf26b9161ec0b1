"""What NumPy leaves out of DLPack: the devices by name, and a reader of capsules for bfloat16.

Struct layouts and numbers are those of dlpack.h (versions 0 and 1); the memory stays the producer's.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["device_name", "device_of", "is_readable", "read_bfloat16"]

_CPU, _BFLOAT = 1, 4

_DEVICES = {
    1: "CPU", 2: "CUDA", 3: "CUDA host", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 11: "ROCm host",
    12: "extension", 13: "CUDA managed", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon", 17: "MAIA",
}  # fmt: skip
_READABLE = (1, 3, 11, 13)
"""Kinds of devices (DLDeviceType), and those whose memory the CPU reads."""


def device_of(guest: Any) -> tuple[int, int] | None:
    """Kind and number of the device that a guest's memory belongs to; None if it does not say."""
    try:
        kind, number = guest.__dlpack_device__()
        return int(kind), int(number)
    except Exception:  # each library raises its own for what has no memory
        return None


def is_readable(device: tuple[int, int]) -> bool:
    """Whether the CPU can read a device's memory."""
    return device[0] in _READABLE


def device_name(device: tuple[int, int]) -> str:
    """A device as people call it: ``CUDA device 0``."""
    kind, number = device
    return f"{_DEVICES.get(kind, f'DLPack kind {kind}')} device {number}"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


def read_bfloat16(guest: Any) -> NDArray[Any] | None:
    """A view of a guest's bfloat16 tensor in CPU memory, or None if it is no such thing."""
    device = device_of(guest)
    if device is None or device[0] != _CPU:
        return None
    capsule = guest.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    if tensor.code != _BFLOAT or tensor.bits != 16 or tensor.lanes != 1:
        return None
    shape = tuple(tensor.shape[a] for a in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(2 * tensor.strides[a] for a in range(tensor.ndim))
    else:
        strides = tuple(2 * int(np.prod(shape[a + 1 :])) for a in range(len(shape)))
    low = sum((e - 1) * s for e, s in zip(shape, strides, strict=True) if s < 0) if all(shape) else 0
    high = sum((e - 1) * s for e, s in zip(shape, strides, strict=True) if s > 0) if all(shape) else 0
    size = high - low + 2 if all(shape) else 0
    if not size:
        return np.empty(shape, ml_dtypes.bfloat16)
    memory = (ctypes.c_uint8 * size).from_address((tensor.data or 0) + tensor.byte_offset + low)
    memory.owner = capsule  # type: ignore[attr-defined]  # it keeps the producer's memory alive
    return np.ndarray(shape, ml_dtypes.bfloat16, memory, -low, strides)  # type: ignore[arg-type]
