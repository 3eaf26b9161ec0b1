"""A GPU that is not there: NVIDIA's driver as polyconv calls it, with the emulator behind it.

`virtual_gpu` puts it in the place of ``libcuda``, so that all of polyconv runs as it does on a machine with a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from emulator import At, TensorMap, launch, parse
from numpy.typing import NDArray

from polyconv.gpu import arrays, code, device, driver, launches
from polyconv.kernels import objects

__all__ = ["Libcuda", "virtual_gpu"]

Array = NDArray[Any]

_addresses = itertools.count(1 << 40, 1 << 32)
"""Of new memory: never the same twice, and no two near each other."""

_POISON = 0x7FFF
"""What new memory holds: NaN in every floating type."""

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, NOT_FOUND, LAUNCH_FAILED, NOT_WHILE_CAPTURED = 1, 2, 201, 500, 719, 900
_NAMES = {
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE", OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT", NOT_FOUND: b"CUDA_ERROR_NOT_FOUND",
    LAUNCH_FAILED: b"CUDA_ERROR_LAUNCH_FAILED", NOT_WHILE_CAPTURED: b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
}  # fmt: skip

_NOT_CAPTURED = {
    "cuMemAlloc_v2", "cuMemFree_v2", "cuMemcpyDtoH_v2", "cuStreamSynchronize", "cuCtxSynchronize", "cuModuleLoadData",
    "cuEventSynchronize",
}  # fmt: skip
"""What fails while a stream is captured ("CUDA Programming Guide", Prohibited and Unhandled Operations)."""


@dataclass(slots=True)
class _Function:
    """A kernel of a loaded module; ``sizes`` are the bytes of its parameters."""

    text: str
    name: str
    cluster: int
    sizes: tuple[int, ...]
    shared: int = 48 << 10


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel with its arguments, as it was started."""

    function: _Function
    grid: tuple[int, int, int]
    threads: int
    shared: int
    arguments: list[bytes]


def _number(value: Any) -> int:
    """An argument that came as a number, or as a number of C."""
    return int(getattr(value, "value", value) or 0)


class Libcuda:
    """The functions of ``libcuda`` that polyconv calls.  Each returns 0, or the code of an error.

    Parameters
    ----------
    of : Device
        What it tells of its only device.
    edit : callable
        Changes the PTX of every kernel before it is loaded: to plant mistakes.
    memory : int
        Bytes of the device.
    """

    def __init__(self, of: device.Device, edit: Callable[[str], str], memory: int) -> None:
        self._of, self._edit, self._memory = of, edit, memory
        self._arrays = dict[int, Array]()
        self._linked, self._modules, self._functions = list[bytes](), list[str](), list[_Function]()
        self._buffers = list[Any]()
        self._current = threading.local()
        self.launched = list[str]()
        self.called = list[str]()
        self.streams = list[int]()
        self._captured: tuple[int, list[Launched]] | None = None
        self._is_relaxed = False
        self.fault: Exception | None = None
        self.cuLaunchKernel = _start
        self._known = dict[str, Any]()
        self._maps = dict[bytes, TensorMap]()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        # a partial, because ctypes' functions take attributes such as argtypes
        found = self._known[name] = self._known.get(name) or partial(self._call, name)
        return found

    def _call(self, name: str, *arguments: Any) -> int:
        """A function of the driver by its name; what a stream that is captured does not allow is refused."""
        function = getattr(self, f"_{name}")
        self.called.append(name)
        if self._captured is not None and name in _NOT_CAPTURED and not self._is_relaxed:
            return NOT_WHILE_CAPTURED
        return int(function(*arguments))

    # -- the process and its device ----------------------------------------------------------------

    def _cuInit(self, flags: int) -> int:
        return 0

    def _cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 1
        return 0

    def _cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 1  # of no real driver: code of this one is kept apart
        return 0

    def _cuGetErrorName(self, number: int, text: Any) -> int:
        text._obj.value = _NAMES.get(number, b"CUDA_ERROR_UNKNOWN")
        return 0

    def _cuGetErrorString(self, number: int, text: Any) -> int:
        return self._cuGetErrorName(number, text)

    def _cuDeviceGet(self, found: Any, number: int) -> int:
        found._obj.value = number
        return 0 if number == 0 else INVALID_VALUE

    def _cuDeviceGetName(self, text: Any, size: int, of: Any) -> int:
        text.value = f"emulated {self._of.name}".encode()
        return 0

    def _cuDeviceGetAttribute(self, value: Any, number: int, of: Any) -> int:
        told = {
            16: self._of.multiprocessors, 13: int(self._of.clock / 1e3), 97: self._of.shared_block,
            81: self._of.shared_multiprocessor, 38: self._of.l2, 36: int(self._of.memory / 2e3), 37: 8,
            75: self._of.major, 76: self._of.minor, 82: 65536,
        }  # fmt: skip
        value._obj.value = told[number]
        return 0

    def _cuDevicePrimaryCtxRetain(self, context: Any, of: Any) -> int:
        context._obj.value = 1
        return 0

    def _cuCtxSetCurrent(self, context: Any) -> int:
        self._current.context = _number(context)
        return 0

    def _cuCtxPushCurrent_v2(self, context: Any) -> int:
        return self._cuCtxSetCurrent(context)

    def _cuCtxPopCurrent_v2(self, context: Any) -> int:
        return 0

    def _is_entered(self) -> bool:
        return bool(getattr(self._current, "context", 0))

    # -- code --------------------------------------------------------------------------------------

    def _cuLinkCreate_v2(self, count: int, keys: Any, values: Any, state: Any) -> int:
        self._linked.append(b"")
        state._obj.value = len(self._linked)
        return 0 if self._is_entered() else INVALID_CONTEXT

    def _cuLinkAddData_v2(self, state: Any, kind: int, data: bytes, size: Any, *more: Any) -> int:
        self._linked[_number(state) - 1] = data[: _number(size)]
        return 0

    def _cuLinkComplete(self, state: Any, found: Any, size: Any) -> int:
        text = self._linked[_number(state) - 1]
        self._buffers.append(ctypes.create_string_buffer(text, len(text)))
        found._obj.value, size._obj.value = ctypes.addressof(self._buffers[-1]), len(text)
        return 0

    def _cuLinkDestroy(self, state: Any) -> int:
        return 0

    def _cuModuleLoadData(self, module: Any, data: bytes) -> int:
        self._modules.append(self._edit(data.rstrip(b"\0").decode()))
        module._obj.value = len(self._modules)
        return 0 if self._is_entered() else INVALID_CONTEXT

    def _cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        text = self._modules[_number(module) - 1]
        kernel = parse(text).kernels.get(name.decode())
        if kernel is None:
            return NOT_FOUND
        cluster = kernel.limits.get("reqnctapercluster", (1,))[0]
        sizes = tuple(p.size for p in kernel.parameters)
        self._functions.append(_Function(text, name.decode(), cluster, sizes))
        function._obj.value = len(self._functions)
        return 0

    def _cuFuncSetAttribute(self, function: Any, number: int, value: int) -> int:
        if number == 8:
            self._functions[_number(function) - 1].shared = value
        return 0 if value <= self._of.shared_block else INVALID_VALUE

    def _cuFuncGetAttribute(self, value: Any, number: int, function: Any) -> int:
        value._obj.value = 0
        return 0

    def start(self, handle: int, grid: tuple[int, int, int], threads: int, shared: int, stream: int, places: int
              ) -> int:  # fmt: skip
        """``cuLaunchKernel``; on a captured stream it goes into the graph, with its arguments as they are now."""
        if not self._is_entered():
            return INVALID_CONTEXT
        function = self._functions[handle - 1]
        if shared > function.shared:
            return INVALID_VALUE
        pointers = (ctypes.c_void_p * len(function.sizes)).from_address(places)
        raw = [ctypes.string_at(place, size) for place, size in zip(pointers, function.sizes, strict=True)]
        self.streams.append(stream or 0)
        made = Launched(function, grid, threads, shared, raw)
        if self._captured is None:
            return self._run(made)
        if stream != self._captured[0]:
            return NOT_WHILE_CAPTURED
        self._captured[1].append(made)
        return 0

    @contextmanager
    def capture(self, stream: int) -> Iterator[list[Launched]]:
        """Record what is started on a stream, as ``cuStreamBeginCapture`` does; nothing runs until it is replayed."""
        graph: list[Launched] = []
        self._captured = stream, graph
        try:
            yield graph
        finally:
            self._captured = None

    def replay(self, graph: list[Launched]) -> None:
        """Run a graph."""
        for one in graph:
            if self._run(one) and self.fault is not None:
                fault, self.fault = self.fault, None
                raise fault

    def _run(self, one: Launched) -> int:
        """Run a kernel; its fault is kept for the caller, who cannot be told through native code."""
        function = one.function
        self.launched.append(function.text)
        try:
            launch(
                function.text, function.name, grid=one.grid, threads=one.threads, shared=one.shared,
                cluster=function.cluster, arguments=[self._argument(value) for value in one.arguments],
            )  # fmt: skip
        except Exception as fault:
            self.fault = fault
            return LAUNCH_FAILED
        return 0

    def _argument(self, raw: bytes) -> Any:
        """A tensor map, a pointer into an array of the device, or a number."""
        if raw in self._maps:
            return self._maps[raw]
        value = int.from_bytes(raw, "little")
        start = self._start(value)
        return value if len(raw) < 8 or start is None else At(self._arrays[start], value - start)

    def _cuTensorMapEncodeTiled(
        self, target: Any, kind: Any, rank: Any, address: Any, dims: Any, strides: Any, box: Any, steps: Any,
        interleave: Any, swizzle: Any, promotion: Any, fill: Any,
    ) -> int:  # fmt: skip
        count, start = _number(rank), self._start(_number(address))
        if start is None or _number(interleave) or _number(fill):
            return INVALID_VALUE
        try:
            made = TensorMap(
                self._arrays[start], list(dims)[:count], list(strides)[: count - 1], list(box)[:count],
                (0, 32, 64, 128)[_number(swizzle)], list(steps)[:count], _number(address) - start,
                (1, 2, 4, 4, 8, 8, 2, 4, 8, 2)[_number(kind)],
            )  # fmt: skip
        except ValueError:
            return INVALID_VALUE
        raw = len(self._maps).to_bytes(8, "little") + b"tensor map of the emulator".ljust(120, b"\xa5")
        self._maps[raw] = made
        ctypes.memmove(target, raw, len(raw))
        return 0

    # -- memory, streams, time ---------------------------------------------------------------------

    def _start(self, address: int) -> int | None:
        return next((s for s, array in self._arrays.items() if s <= address < s + array.nbytes), None)

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        count = _number(size)
        if not self._is_entered():
            return INVALID_CONTEXT
        if count + sum(array.nbytes for array in self._arrays.values()) > self._memory:
            return OUT_OF_MEMORY
        address._obj.value = start = next(_addresses)
        self._arrays[start] = np.full(-(-count // 2), _POISON, np.uint16).view(np.uint8)[:count]
        return 0

    def _cuMemFree_v2(self, address: Any) -> int:
        return 0 if self._arrays.pop(_number(address), None) is not None else INVALID_VALUE

    def _held(self, address: Any, size: Any) -> Array | None:
        start = self._start(_number(address))
        if start is None:
            return None
        held = self._arrays[start][_number(address) - start :]
        return held[: _number(size)] if len(held) >= _number(size) else None

    def _cuMemcpyHtoDAsync_v2(self, address: Any, source: Any, size: Any, stream: Any) -> int:
        held = self._held(address, size)
        if held is None:
            return INVALID_VALUE
        held[...] = np.frombuffer(bytes(source), np.uint8)[: _number(size)]
        return 0

    def _cuMemcpyDtoH_v2(self, target: Any, address: Any, size: Any) -> int:
        held = self._held(address, size)
        if held is None:
            return INVALID_VALUE
        ctypes.memmove(target, held.ctypes.data, len(held))
        return 0

    def _cuStreamSynchronize(self, stream: Any) -> int:
        return 0

    def _cuCtxSynchronize(self) -> int:
        return 0 if self._is_entered() else INVALID_CONTEXT

    def _cuStreamIsCapturing(self, stream: Any, status: Any) -> int:
        status._obj.value = int(self._captured is not None and self._captured[0] == _number(stream))
        return 0

    def _cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self._is_relaxed, mode._obj.value = mode._obj.value == 2, 2 if self._is_relaxed else 0
        return 0

    def _cuEventCreate(self, event: Any, flags: int) -> int:
        event._obj.value = 1
        return 0

    def _cuEventRecord(self, event: Any, stream: Any) -> int:
        return 0

    def _cuEventSynchronize(self, event: Any) -> int:
        return 0

    def _cuEventElapsedTime(self, milliseconds: Any, first: Any, last: Any) -> int:
        milliseconds._obj.value = 1.0
        return 0

    def _cuEventDestroy_v2(self, event: Any) -> int:
        return 0


_current: list[Libcuda] = []
"""The GPU that runs kernels now."""

_KIND = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


def _dispatch(handle: int, gx: int, gy: int, gz: int, tx: int, ty: int, tz: int, shared: int, stream: int,
              places: int, extra: int) -> int:  # fmt: skip
    """``cuLaunchKernel`` for native code."""
    return _current[-1].start(handle, (gx, gy, gz), tx * ty * tz, shared, stream, places)


_start = _KIND(_dispatch)


def _telling(lib: Libcuda, start: Callable[..., int]) -> Callable[..., int]:
    """What starts launches, and raises the fault of a kernel where native code says that there was one."""

    def call(*arguments: Any) -> int:
        code = start(*arguments)
        if lib.fault is not None:
            fault, lib.fault = lib.fault, None
            raise fault
        return code

    return call


@contextmanager
def virtual_gpu(
    like: str = "H100", *, edit: Callable[[str], str] = lambda text: text, memory: int = 1 << 30
) -> Iterator[Libcuda]:
    """A GPU like one of ``device.presets``, while the block runs."""
    lib = Libcuda(device.presets[like], edit, memory)
    held = weakref.WeakSet[Any]()

    class Memory(arrays._Memory):
        """Of arrays that may outlive this GPU: there is nothing to give back then."""

        def __init__(self, size: int, device: int) -> None:
            super().__init__(size, device)
            held.add(self)

    with mock.patch.object(ctypes, "CDLL", lambda name: lib):
        made = driver.Driver()
    device.device.cache_clear()
    _current.append(lib)
    try:
        with (
            mock.patch.object(driver, "_loaded", lambda: made), mock.patch.object(code, "_loaded", {}),
            mock.patch.object(arrays, "_Memory", Memory), mock.patch.dict(objects._loaded),
        ):  # fmt: skip
            objects._loaded.pop("start of launches", None)  # native code that calls another driver
            start = _telling(lib, launches._native(made))
            with mock.patch.object(launches, "_native", lambda of: start):
                yield lib
    finally:
        _current.remove(lib)
        for one in held:
            one.__dict__.pop("address", None)
        device.device.cache_clear()
