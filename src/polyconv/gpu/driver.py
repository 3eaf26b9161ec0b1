"""NVIDIA's driver through ctypes: devices, code, memory and time; its errors with their names.

The context is the device's primary one, which PyTorch, CuPy, JAX and Numba use: their addresses and streams are valid
here.  Where there is no driver or no GPU, ``Unsupported`` says which.  It must know nothing of LLVM and convolutions.

Names and numbers are those of the "CUDA Driver API".
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.errors import Error, OutOfMemory, Unsupported

__all__ = ["Driver", "Event", "Function", "TensorMap", "driver", "why_absent"]

_Handle = ctypes.c_void_p

_OUT_OF_MEMORY = 2
_CAPTURING = range(900, 909)
"""Errors of what a captured stream does not allow."""
_RELAXED = 2
_LAST_PORTABLE_CLUSTER = 8
_PLAIN_SHARED_BYTES = 48 << 10
_ATTRIBUTES = {
    "multiprocessors": 16, "clock_khz": 13, "shared_block": 97, "shared_multiprocessor": 81, "l2_bytes": 38,
    "memory_khz": 36, "memory_bits": 37, "major": 75, "minor": 76, "registers": 82,
}  # fmt: skip
"""Numbers of cuDeviceGetAttribute."""


@dataclass(frozen=True, slots=True)
class Function:
    """Code on a device, ready to be launched."""

    handle: int
    threads: int
    shared: int
    registers: int
    local_bytes: int


class Driver:
    """The driver, loaded."""

    def __init__(self) -> None:
        name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
        try:
            self._lib = ctypes.CDLL(name)
        except OSError as error:
            raise Unsupported(f"no NVIDIA driver is installed: {error}") from None
        self._lock = threading.RLock()
        self._contexts: dict[int, _Handle] = {}
        code = self._lib.cuInit(0)
        if code:
            raise Unsupported(f"the NVIDIA driver does not start: {self._name(code)}")
        count = ctypes.c_int()
        self.check(self._lib.cuDeviceGetCount(ctypes.byref(count)), "counting devices")
        self.count = count.value
        if not self.count:
            raise Unsupported("the NVIDIA driver finds no GPU")
        version = ctypes.c_int()
        self.check(self._lib.cuDriverGetVersion(ctypes.byref(version)), "asking for the version")
        self.version = version.value

    # -- errors ------------------------------------------------------------------------------------

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._lib.cuGetErrorName(code, ctypes.byref(text))
        name = text.value.decode() if text.value else "unknown"
        self._lib.cuGetErrorString(code, ctypes.byref(text))
        return f"{name} ({code}: {text.value.decode() if text.value else 'no description'})"

    def check(self, code: int, doing: str) -> None:
        """Raise what a number that the driver returned says went wrong, and during what.

        Raises
        ------
        OutOfMemory, Error
        """
        if not code:
            return
        if code in _CAPTURING:
            raise Error(
                f"the GPU's driver reports {self._name(code)}, {doing}: a stream is being captured into a graph, which "
                f"takes launches only; make the same call once before the capture, with memory for its results"
            )
        if code == _OUT_OF_MEMORY:
            raise OutOfMemory(f"the GPU has no memory left, {doing}: free arrays, or compute parts of the batch")
        raise Error(f"the GPU's driver reports {self._name(code)}, {doing}")

    # -- devices -----------------------------------------------------------------------------------

    def attributes(self, device: int) -> dict[str, int]:
        """What a device has, by the names of ``_ATTRIBUTES``."""
        value, found = ctypes.c_int(), {}
        for name, number in _ATTRIBUTES.items():
            self.check(
                self._lib.cuDeviceGetAttribute(ctypes.byref(value), number, self._device(device)), f"asking for {name}"
            )
            found[name] = value.value
        return found

    def name(self, device: int) -> str:
        """How a device is called: ``NVIDIA H100 80GB HBM3``."""
        text = ctypes.create_string_buffer(128)
        self.check(self._lib.cuDeviceGetName(text, 128, self._device(device)), "asking for the device's name")
        return text.value.decode()

    def _device(self, number: int) -> ctypes.c_int:
        found = ctypes.c_int()
        self.check(self._lib.cuDeviceGet(ctypes.byref(found), number), f"looking for device {number}")
        return found

    def enter(self, device: int) -> None:
        """Make a device's primary context the one of this thread."""
        self.check(self._lib.cuCtxSetCurrent(self._context(device)), f"entering device {device}")

    def _context(self, device: int) -> _Handle:
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                context = _Handle()
                retain = self._lib.cuDevicePrimaryCtxRetain
                self.check(retain(ctypes.byref(context), self._device(device)), f"opening device {device}")
                self._contexts[device] = context
            return context

    @contextmanager
    def visit(self, device: int) -> Iterator[None]:
        """Enter a device, and leave it as this thread's device was before."""
        self.check(self._lib.cuCtxPushCurrent_v2(self._context(device)), f"entering device {device}")
        try:
            yield
        finally:
            self._lib.cuCtxPopCurrent_v2(ctypes.byref(_Handle()))

    # -- code --------------------------------------------------------------------------------------

    def machine_code(self, ptx: str) -> bytes:
        """Machine code of PTX for this thread's device, by the driver's own compiler.

        Raises
        ------
        Error
            With the compiler's log.
        """
        log = ctypes.create_string_buffer(1 << 14)
        keys = (ctypes.c_int * 2)(5, 6)  # buffer of the error log, its size
        values = (_Handle * 2)(ctypes.addressof(log), len(log))
        state = _Handle()
        self.check(self._lib.cuLinkCreate_v2(2, keys, values, ctypes.byref(state)), "starting to compile")
        try:
            text = ptx.encode() + b"\0"
            code = self._lib.cuLinkAddData_v2(
                state, 1, text, ctypes.c_size_t(len(text)), b"kernel", 0, None, None
            )
            found, size = _Handle(), ctypes.c_size_t()
            code = code or self._lib.cuLinkComplete(state, ctypes.byref(found), ctypes.byref(size))
            if code:
                said = log.value.decode(errors="replace").strip()
                raise Error(f"the GPU's driver refuses generated code: {self._name(code)}: {said}; please report it")
            return ctypes.string_at(found, size.value)
        finally:
            self._lib.cuLinkDestroy(state)

    def load(self, code: bytes, name: str, threads: int, shared: int, cluster: int = 1) -> Function:
        """Load machine code (or PTX that ends in a zero byte) on this thread's device; it is never unloaded."""
        module, function, value = _Handle(), _Handle(), ctypes.c_int()
        self.check(self._lib.cuModuleLoadData(ctypes.byref(module), code), "loading code")
        self.check(self._lib.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"looking for {name}")
        if shared > _PLAIN_SHARED_BYTES:
            self.check(self._lib.cuFuncSetAttribute(function, 8, shared), f"asking for {shared} shared bytes")
        if cluster > _LAST_PORTABLE_CLUSTER:
            self.check(self._lib.cuFuncSetAttribute(function, 14, 1), f"asking for clusters of {cluster}")
        found = []
        for number in (4, 3):  # registers, bytes of local memory
            self.check(self._lib.cuFuncGetAttribute(ctypes.byref(value), number, function), "asking what code takes")
            found.append(value.value)
        return Function(function.value or 0, threads, shared, *found)

    @property
    def launching(self) -> int:
        """Address of cuLaunchKernel, for native code."""
        return ctypes.cast(self._lib.cuLaunchKernel, _Handle).value or 0

    def tensor_map(self, address: int, extents: Sequence[int], steps: Sequence[int], box: Sequence[int],
                   dtype: str) -> TensorMap:  # fmt: skip
        """The map of an array for the copy engine; steps in bytes, from the second axis on, innermost first."""
        made, rank = TensorMap(), len(extents)
        code = self._lib.cuTensorMapEncodeTiled(
            _Handle(made.address), _MAPPED[dtype], rank, _Handle(address), (ctypes.c_uint64 * rank)(*extents),
            (ctypes.c_uint64 * (rank - 1))(*steps), (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank), 0, 3, 2, 0,
        )  # fmt: skip
        self.check(code, f"mapping an array of extents {tuple(extents)} and steps {tuple(steps)} in boxes of {box}")
        return made

    # -- memory, streams, time ---------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        """Address of so many bytes on this thread's device, at least one."""
        address = ctypes.c_uint64()
        take = self._lib.cuMemAlloc_v2
        self.check(take(ctypes.byref(address), ctypes.c_size_t(max(1, size))), f"taking {size} bytes")
        return address.value

    def free(self, address: int) -> None:
        """Give memory back."""
        self.check(self._lib.cuMemFree_v2(ctypes.c_uint64(address)), "giving memory back")

    def upload(self, address: int, data: memoryview | bytes, stream: int = 0) -> None:
        """Copy bytes of the host to the device, before what is started on a stream from then on.

        Raises
        ------
        Error
            If the stream is captured: a graph would copy from memory that is gone then.
        """
        if self.is_capturing(stream):
            self.check(_CAPTURING[0], "copying from the CPU's memory")
        source = (ctypes.c_char * len(data)).from_buffer_copy(data)
        copy = self._lib.cuMemcpyHtoDAsync_v2  # which takes the bytes before it returns, as they are not page-locked
        code = copy(ctypes.c_uint64(address), source, ctypes.c_size_t(len(data)), _Handle(stream))
        self.check(code, "copying to the GPU")

    def download(self, address: int, size: int) -> bytes:
        """Bytes of the device, after all that was started on it."""
        target = ctypes.create_string_buffer(max(1, size))
        self.check(
            self._lib.cuMemcpyDtoH_v2(target, ctypes.c_uint64(address), ctypes.c_size_t(size)), "copying from the GPU"
        )
        return target.raw[:size]

    def synchronize(self, stream: int = 0) -> None:
        """Wait for a stream; an error of code that ran on it is raised here."""
        self.check(self._lib.cuStreamSynchronize(_Handle(stream)), "waiting for the GPU")

    def synchronize_all(self) -> None:
        """Wait for all streams of this thread's device; an error of code that ran there is raised here."""
        self.check(self._lib.cuCtxSynchronize(), "waiting for the GPU")

    def is_capturing(self, stream: int) -> bool:
        """Whether what is started on a stream goes into a graph, to run later."""
        status = ctypes.c_int()
        self.check(self._lib.cuStreamIsCapturing(_Handle(stream), ctypes.byref(status)), "asking about a stream")
        return status.value != 0

    @contextmanager
    def allocating_while_captured(self) -> Iterator[None]:
        """Let this thread take memory, which is no part of a graph, while it captures."""
        mode = ctypes.c_int(_RELAXED)
        exchange = self._lib.cuThreadExchangeStreamCaptureMode
        self.check(exchange(ctypes.byref(mode)), "asking for memory while a stream is captured")
        try:
            yield
        finally:
            exchange(ctypes.byref(mode))

    def event(self) -> Event:
        """A mark in a stream, with its time."""
        handle = _Handle()
        self.check(self._lib.cuEventCreate(ctypes.byref(handle), 0), "making an event")
        return Event(self, handle)


_MAPPED = {"f16": 6, "f32": 7, "bf16": 9}
"""Types of arrays in tensor maps."""


class TensorMap:
    """128 bytes that tell the copy engine of an array."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(192)
        self.address = (ctypes.addressof(self._memory) + 63) & ~63


class Event:
    """A mark in a stream."""

    def __init__(self, of: Driver, handle: Any) -> None:
        self._driver, self._handle = of, handle

    def record(self, stream: int = 0) -> None:
        """Mark what was started so far."""
        of = self._driver
        of.check(of._lib.cuEventRecord(self._handle, _Handle(stream)), "recording an event")

    def seconds_since(self, earlier: Event) -> float:
        """Time between two marks, once this one is reached."""
        of, elapsed = self._driver, ctypes.c_float()
        of.check(of._lib.cuEventSynchronize(self._handle), "waiting for an event")
        of.check(of._lib.cuEventElapsedTime(ctypes.byref(elapsed), earlier._handle, self._handle), "reading a time")
        return elapsed.value / 1e3

    def __del__(self) -> None:
        self._driver._lib.cuEventDestroy_v2(self._handle)


@cache
def _loaded() -> Driver | str:
    try:
        return Driver()
    except Unsupported as reason:
        return str(reason)


def driver() -> Driver:
    """The driver of this process.

    Raises
    ------
    Unsupported
        If there is no driver or no GPU, with the reason.
    """
    found = _loaded()
    if isinstance(found, str):
        raise Unsupported(found)
    return found


def why_absent() -> str | None:
    """Why there is no GPU here; None if there is one."""
    found = _loaded()
    return found if isinstance(found, str) else None

