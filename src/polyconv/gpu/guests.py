"""Arrays that lie on a GPU, whoever holds them: PyTorch, CuPy, Numba, JAX.

A guest's library is asked for what only it can tell: the stream that is current, and memory for results, which are then
arrays of its own.  Nothing is copied to the host.  It must know nothing of convolutions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, Dtype, of_array
from polyconv.errors import ArgumentError, DtypeError
from polyconv.gpu.arrays import Borrowed, GpuArray, current_stream

__all__ = ["DeviceArray", "Guest", "as_own", "device_of", "guest_of", "read", "stand_in", "where"]


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array on a GPU.

    Parameters
    ----------
    address : int
        Of its first element.
    shape, strides : tuple of int
        Strides in elements.
    dtype : Dtype
    device : int
        Number of the GPU.
    holder : object
        The guest, whose life is that of the memory.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Dtype
    device: int
    holder: Any

    @property
    def align(self) -> int:
        """The largest power of two, up to 16, that divides the address."""
        return math.gcd(self.address, 16)

    @property
    def span(self) -> tuple[int, int]:
        """Addresses of the first byte and behind the last."""
        if 0 in self.shape:
            return self.address, self.address
        size = self.dtype.itemsize
        low = sum((e - 1) * s for e, s in zip(self.shape, self.strides, strict=True) if s < 0)
        high = sum((e - 1) * s for e, s in zip(self.shape, self.strides, strict=True) if s > 0)
        return self.address + low * size, self.address + (high + 1) * size


@dataclass(frozen=True, slots=True)
class Guest:
    """A library whose arrays lie on GPUs.

    Parameters
    ----------
    name : str
        Its module.
    read : callable
        A ``DeviceArray`` of one of its arrays, and of the argument's name.
    known : callable
        An array's address, and what else its ``DeviceArray`` follows from, to be looked up; None if it must be read.
    maker : callable
        What makes arrays of a device, a shape and a type; with the order of their axes in memory, outermost first.
    address : callable
        Address of what that makes.
    stream : callable
        Handle of the stream that is current on a device.
    waits : bool
        Whether a call waits for its result, for a library whose streams are not known.
    has_pool : bool
        Whether memory that is given back serves what comes later on its stream, or in the graph that is captured.
    """

    name: str
    read: Callable[[Any, str], DeviceArray]
    known: Callable[[Any], tuple[int, Any] | None]
    maker: Callable[[int, tuple[int, ...], Dtype, Sequence[int] | None], Callable[[], Any]]
    address: Callable[[Any], int]
    stream: Callable[[int], int]
    waits: bool = False
    has_pool: bool = False

    def empty(self, device: int, shape: tuple[int, ...], dtype: Dtype) -> DeviceArray:
        """A new array without gaps."""
        return self.read(self.maker(device, shape, dtype, None)(), "a new array")


def device_of(value: object) -> int | None:
    """Number of the GPU on which an array lies; None for all else."""
    kind = type(value)
    if kind is np.ndarray or isinstance(value, int | float | list | tuple):
        return None
    if kind.__module__ == "torch" or kind.__module__.startswith("torch."):
        device = getattr(value, "device", None)
        return device.index if device is not None and device.type == "cuda" else None
    if kind is GpuArray:
        return int(value.device)  # type: ignore[attr-defined]
    if not hasattr(value, "__cuda_array_interface__") and not hasattr(value, "__dlpack_device__"):
        return None
    try:
        kind_number, number = value.__dlpack_device__()  # type: ignore[attr-defined]
    except Exception:  # each library raises its own
        return 0 if hasattr(value, "__cuda_array_interface__") else None
    return int(number) if int(kind_number) == 2 else None


def where(arrays: Mapping[str, Any]) -> int | None:
    """Number of the GPU on which arrays lie, by the arguments' names; None if it is the CPU's memory.

    Raises
    ------
    ArgumentError
        If they do not lie together; it names two of them.
    """
    found = {name: device_of(value) for name, value in arrays.items() if value is not None}
    numbers = set(found.values())
    if len(numbers) > 1:
        first, *rest = found
        other = next(name for name in rest if found[name] != found[first])
        raise ArgumentError(
            f"{first} lies {_place(found[first])}, {other} {_place(found[other])}; copy one of them, so that all "
            f"operands lie together (in PyTorch: {other}.to({first}.device))"
        )
    return next(iter(numbers), None)


def _place(number: int | None) -> str:
    return "in the CPU's memory" if number is None else f"on CUDA device {number}"


def stand_in(value: Any, name: str) -> NDArray[Any]:
    """An array of the CPU with the shape and type of one on a GPU, of one element in memory."""
    a = read(value, name)
    return np.broadcast_to(np.zeros((), a.dtype.numpy), a.shape)


def guest_of(value: object) -> Guest:
    """The library that an array on a GPU belongs to.

    Raises
    ------
    ArgumentError
        If it is none that can make results.
    """
    if device_of(value) is None:
        raise ArgumentError("x lies in the CPU's memory, w on a GPU; copy one of them, so that they lie together")
    root = type(value).__module__.partition(".")[0]
    found = _GUESTS.get(root)
    if found is None:
        raise ArgumentError(
            f"x is an array of {root} on a GPU; results are made by its library, and polyconv knows "
            f"{', '.join(sorted({g.name for g in _GUESTS.values()}))}: pass an array of one of these"
        )
    return found


def read(value: Any, name: str) -> DeviceArray:
    """An array on a GPU as numbers.

    Raises
    ------
    ArgumentError, DtypeError
        Naming the argument.
    """
    return guest_of(value).read(value, name)


# -- PyTorch ---------------------------------------------------------------------------------------

_TORCH_TYPES = {
    "torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32", "torch.float64": "f64",
    "torch.int8": "i8", "torch.int16": "i16", "torch.int32": "i32", "torch.int64": "i64", "torch.uint8": "u8",
    "torch.uint16": "u16", "torch.uint32": "u32", "torch.uint64": "u64",
}  # fmt: skip


def _torch_read(value: Any, name: str) -> DeviceArray:
    if value.requires_grad and _torch().is_grad_enabled():
        raise ArgumentError(
            f"{name} requires a gradient, and polyconv computes none; pass {name}.detach()"
        )
    dtype = _TORCH_TYPES.get(str(value.dtype))
    if dtype is None:
        raise DtypeError(f"{name} has type {value.dtype}; polyconv computes {', '.join(DTYPES)}")
    return DeviceArray(value.data_ptr(), tuple(value.shape), value.stride(), DTYPES[dtype], value.device.index, value)


def _torch() -> Any:
    return sys.modules["torch"]


def _torch_known(value: Any) -> tuple[int, Any] | None:
    if value.requires_grad:
        return None
    address = value.data_ptr()
    return address, (value.shape, value.stride(), value.dtype, value.device, address & 15)


def _torch_maker(device: int, shape: tuple[int, ...], dtype: Dtype, order: Sequence[int] | None) -> Callable[[], Any]:
    torch = _torch()
    kind = getattr(torch, next(n for n, d in _TORCH_TYPES.items() if d == dtype.name).partition(".")[2])
    steps = _steps(shape, order)
    return partial(torch.empty_strided, shape, steps, dtype=kind, device=torch.device("cuda", device))


def _torch_address(value: Any) -> int:
    return int(value.data_ptr())


def _steps(shape: tuple[int, ...], order: Sequence[int] | None) -> tuple[int, ...]:
    """Strides without gaps of axes in an order, outermost first."""
    steps, step = [1] * len(shape), 1
    for axis in reversed(order if order is not None else range(len(shape))):
        steps[axis] = step
        step *= max(1, shape[axis])
    return tuple(steps)


def _torch_stream(device: int) -> int:
    return int(_torch()._C._cuda_getCurrentRawStream(device))


# -- libraries with __cuda_array_interface__ -------------------------------------------------------


def _interface_read(value: Any, name: str) -> DeviceArray:
    try:
        told = value.__cuda_array_interface__
    except Exception as error:  # each library raises its own
        raise ArgumentError(f"{name} cannot be read as an array on a GPU ({error})") from None
    dtype = of_array(np.dtype(getattr(value, "dtype", told["typestr"])), name)
    shape = tuple(told["shape"])
    steps = told.get("strides")
    if steps is None:
        strides = tuple(math.prod(shape[a + 1 :]) for a in range(len(shape)))
    else:
        if any(step % dtype.itemsize for step in steps):
            raise ArgumentError(f"{name} has strides of {steps} bytes, {dtype.itemsize} an element; pass a plain array")
        strides = tuple(step // dtype.itemsize for step in steps)
    return DeviceArray(told["data"][0], shape, strides, dtype, device_of(value) or 0, value)


def _interface_known(value: Any) -> tuple[int, Any] | None:
    told = value.__cuda_array_interface__
    address = told["data"][0]
    return address, (told["shape"], told.get("strides"), str(value.dtype), address & 15, device_of(value))


def _interface_address(value: Any) -> int:
    return int(value.__cuda_array_interface__["data"][0])


def _ordered(make: Callable[..., Any], shape: tuple[int, ...], dtype: Dtype, order: Sequence[int] | None) -> Any:
    """An array whose axes lie in an order in memory, from what makes it without gaps."""
    if order is None:
        return make(shape, dtype.numpy)
    made = make(tuple(shape[a] for a in order), dtype.numpy)
    return made.transpose([list(order).index(a) for a in range(len(shape))])


def _cupy_maker(device: int, shape: tuple[int, ...], dtype: Dtype, order: Sequence[int] | None) -> Callable[[], Any]:
    cupy = sys.modules["cupy"]

    def make() -> Any:
        with cupy.cuda.Device(device):
            return _ordered(cupy.empty, shape, dtype, order)

    return make


def _cupy_stream(device: int) -> int:
    return int(sys.modules["cupy"].cuda.get_current_stream().ptr)


def _numba_maker(device: int, shape: tuple[int, ...], dtype: Dtype, order: Sequence[int] | None) -> Callable[[], Any]:
    cuda = sys.modules["numba.cuda"]

    def make() -> Any:
        with cuda.gpus[device]:
            return _ordered(cuda.device_array, shape, dtype, order)

    return make


# -- JAX -------------------------------------------------------------------------------------------


def _jax_read(value: Any, name: str) -> DeviceArray:
    value.block_until_ready()  # JAX computes on streams of its own
    dtype = of_array(np.dtype(value.dtype), name)
    shape = tuple(value.shape)
    strides = tuple(math.prod(shape[a + 1 :]) for a in range(len(shape)))
    return DeviceArray(value.unsafe_buffer_pointer(), shape, strides, dtype, device_of(value) or 0, value)


def _jax_maker(device: int, shape: tuple[int, ...], dtype: Dtype, order: Sequence[int] | None) -> Callable[[], Any]:
    jax = sys.modules["jax"]
    place = jax.devices("gpu")[device]

    def make() -> Any:
        made = jax.device_put(jax.numpy.zeros(shape, dtype.numpy), place)
        return made.block_until_ready()

    return make


def _jax_known(value: Any) -> tuple[int, Any] | None:
    return None  # it must be waited for


def _jax_address(value: Any) -> int:
    return int(value.unsafe_buffer_pointer())


def _no_stream(device: int) -> int:
    return 0


# -- polyconv's own --------------------------------------------------------------------------------


def _own_read(value: Any, name: str) -> DeviceArray:
    return DeviceArray(value.address, value.shape, value.strides, value.kind, value.device, value)


def as_own(value: Any, name: str) -> GpuArray:
    """An array on a GPU as one of polyconv's own, in the same memory."""
    if type(value) is GpuArray:
        return value
    a = read(value, name)
    low, high = a.span
    memory = Borrowed(low, high - low, a.device, a.holder)
    return GpuArray(a.shape, a.dtype, a.device, strides=a.strides, memory=memory, offset=a.address - low)


def _own_stream(device: int) -> int:
    return current_stream()


def _own_known(value: Any) -> tuple[int, Any] | None:
    address = value.address
    return address, (value.shape, value.strides, value.kind.name, value.device, address & 15)


def _own_maker(device: int, shape: tuple[int, ...], dtype: Dtype, order: Sequence[int] | None) -> Callable[[], Any]:
    return partial(GpuArray, shape, dtype, device, strides=_steps(shape, order))


def _own_address(value: Any) -> int:
    return int(value.address)


_JAX = Guest("jax", _jax_read, _jax_known, _jax_maker, _jax_address, _no_stream, waits=True)

_GUESTS: dict[str, Guest] = {
    "torch": Guest(
        "torch", _torch_read, _torch_known, _torch_maker, _torch_address, _torch_stream, has_pool=True
    ),
    "cupy": Guest("cupy", _interface_read, _interface_known, _cupy_maker, _interface_address, _cupy_stream),
    "numba": Guest("numba", _interface_read, _interface_known, _numba_maker, _interface_address, _no_stream),
    "polyconv": Guest("polyconv", _own_read, _own_known, _own_maker, _own_address, _own_stream),
    "jaxlib": _JAX,
    "jax": _JAX,
}
