"""Arrays on a GPU of polyconv's own, for whoever has no library of arrays there: tests, checks, models.

They hold memory, a shape, strides and a type, and do nothing but come and go.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dtypes import Dtype, of_array
from polyconv.gpu.driver import driver

__all__ = ["Borrowed", "GpuArray", "current_stream", "on_stream", "to_gpu"]

_stream: ContextVar[int] = ContextVar("stream of polyconv's own arrays", default=0)


def current_stream() -> int:
    """Handle of the stream on which work on these arrays is started."""
    return _stream.get()


@contextmanager
def on_stream(handle: int) -> Iterator[None]:
    """Start work on these arrays on a stream."""
    before = _stream.set(handle)
    try:
        yield
    finally:
        _stream.reset(before)


class _Memory:
    """Bytes on a GPU, given back with the last array that lies in them."""

    def __init__(self, size: int, device: int) -> None:
        driver().enter(device)
        self.device, self.size, self.address = device, size, driver().allocate(size)

    def __del__(self) -> None:
        address = getattr(self, "address", None)
        if address is not None:
            driver().enter(self.device)
            driver().free(address)


class Borrowed:
    """Bytes on a GPU that belong to somebody else, who is kept with them."""

    def __init__(self, address: int, size: int, device: int, holder: object = None) -> None:
        self.address, self.size, self.device, self.holder = address, size, device, holder


class GpuArray:
    """An array on a GPU.

    Parameters
    ----------
    shape, strides : tuple of int
        Strides in elements.
    dtype : Dtype
    device : int
    memory : object
        Holds the bytes; new ones by default.
    offset : int
        Bytes in it before the first element.

    Examples
    --------
    >>> from polyconv.gpu.arrays import to_gpu
    >>> y = polyconv.conv(to_gpu(x), to_gpu(w)).numpy()  # doctest: +SKIP
    """

    def __init__(self, shape: Sequence[int], dtype: Dtype, device: int = 0, *, strides: Sequence[int] | None = None,
                 memory: _Memory | Borrowed | None = None, offset: int = 0) -> None:  # fmt: skip
        self.shape = tuple(shape)
        packed = tuple(math.prod(self.shape[a + 1 :]) for a in range(len(self.shape)))
        self.strides = packed if strides is None else tuple(strides)
        self.kind, self.device = dtype, device
        self.memory = memory or _Memory(math.prod(self.shape) * dtype.itemsize, device)
        self._offset = offset

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.kind.numpy

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def address(self) -> int:
        """Of the first element."""
        return self.memory.address + self._offset

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        steps = tuple(step * self.kind.itemsize for step in self.strides)
        text = self.dtype.str if self.kind.name != "bf16" else "<V2"
        return {"shape": self.shape, "strides": steps, "typestr": text, "data": (self.address, False), "version": 3}

    @property
    def reach(self) -> tuple[int, int]:
        """Bytes from the first element to the lowest one, and how many it spans in all."""
        if 0 in self.shape:
            return 0, 0
        ends = [(extent - 1) * step * self.kind.itemsize for extent, step in zip(self.shape, self.strides, strict=True)]
        low = sum(end for end in ends if end < 0)
        return low, sum(end for end in ends if end > 0) - low + self.kind.itemsize

    def seen(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> GpuArray:
        """The same memory seen in another way, from so many bytes behind the first element."""
        offset += self._offset
        return GpuArray(shape, self.kind, self.device, strides=strides, memory=self.memory, offset=offset)

    def transpose(self, axes: Sequence[int]) -> GpuArray:
        """The same memory with its axes in another order."""
        return GpuArray(
            [self.shape[a] for a in axes], self.kind, self.device, strides=[self.strides[a] for a in axes],
            memory=self.memory, offset=self._offset,
        )  # fmt: skip

    def numpy(self) -> NDArray[Any]:
        """A copy in the CPU's memory, of what everything started before on the current stream has made of it."""
        driver().enter(self.device)
        driver().synchronize(current_stream())
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        low, size = self.reach
        held = np.frombuffer(bytearray(driver().download(self.address + low, size)), np.uint8)
        steps = tuple(step * self.kind.itemsize for step in self.strides)
        return np.array(np.ndarray(self.shape, self.dtype, held, -low, steps), order="C")


def to_gpu(a: NDArray[Any], device: int = 0, *, wait: bool = True) -> GpuArray:
    """A copy of an array on a GPU that lies there as it lies here, gaps and negative strides included.

    With ``wait`` it is there when this returns; else for what is started on the current stream.
    """
    dtype = of_array(a.dtype, "a")
    steps = [0 if extent == 1 else step for extent, step in zip(a.shape, a.strides, strict=True)]
    if a.size == 0 or any(step % a.itemsize for step in steps):
        a = np.ascontiguousarray(a)
        steps = list(a.strides)
    low = sum((e - 1) * s for e, s in zip(a.shape, steps, strict=True) if s < 0)
    high = sum((e - 1) * s for e, s in zip(a.shape, steps, strict=True) if s > 0)
    size = high - low + a.itemsize if a.size else 0
    memory = _Memory(size, device)
    if size:
        driver().upload(memory.address, ctypes.string_at(a.ctypes.data + low, size), current_stream())
        if wait:
            driver().synchronize(current_stream())
    return GpuArray(a.shape, dtype, device, strides=[s // a.itemsize for s in steps], memory=memory, offset=-low)
