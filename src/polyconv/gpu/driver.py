"""NVIDIA's driver through ctypes: devices, code, launches, memory and time; its errors with their names.

The context is the device's primary one, which PyTorch, CuPy, JAX and Numba use: their addresses and streams are valid
here.  Where there is no driver or no GPU, ``Unsupported`` says which.  It must know nothing of LLVM and convolutions.

Names and numbers are those of the "CUDA Driver API".
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from polyconv.errors import Error, OutOfMemory, Unsupported
from polyconv.kernels.objects import kernel_text
from polyconv.target import host_target

__all__ = [
    "CHANGING", "ITSELF", "Driver", "Event", "Function", "Launch", "Launches", "TensorMap", "driver", "why_absent",
]  # fmt: skip

_Handle = ctypes.c_void_p

_INVALID_CONTEXT, _OUT_OF_MEMORY = 201, 2
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
        self._check(self._lib.cuDeviceGetCount(ctypes.byref(count)), "counting devices")
        self.count = count.value
        if not self.count:
            raise Unsupported("the NVIDIA driver finds no GPU")
        version = ctypes.c_int()
        self._check(self._lib.cuDriverGetVersion(ctypes.byref(version)), "asking for the version")
        self.version = version.value

    # -- errors ------------------------------------------------------------------------------------

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._lib.cuGetErrorName(code, ctypes.byref(text))
        name = text.value.decode() if text.value else "unknown"
        self._lib.cuGetErrorString(code, ctypes.byref(text))
        return f"{name} ({code}: {text.value.decode() if text.value else 'no description'})"

    def _check(self, code: int, doing: str) -> None:
        if not code:
            return
        if code == _OUT_OF_MEMORY:
            raise OutOfMemory(f"the GPU has no memory left, {doing}: free arrays, or compute parts of the batch")
        raise Error(f"the GPU's driver reports {self._name(code)}, {doing}")

    # -- devices -----------------------------------------------------------------------------------

    def attributes(self, device: int) -> dict[str, int]:
        """What a device has, by the names of ``_ATTRIBUTES``."""
        value, found = ctypes.c_int(), {}
        for name, number in _ATTRIBUTES.items():
            self._check(
                self._lib.cuDeviceGetAttribute(ctypes.byref(value), number, self._device(device)), f"asking for {name}"
            )
            found[name] = value.value
        return found

    def name(self, device: int) -> str:
        """How a device is called: ``NVIDIA H100 80GB HBM3``."""
        text = ctypes.create_string_buffer(128)
        self._check(self._lib.cuDeviceGetName(text, 128, self._device(device)), "asking for the device's name")
        return text.value.decode()

    def _device(self, number: int) -> ctypes.c_int:
        found = ctypes.c_int()
        self._check(self._lib.cuDeviceGet(ctypes.byref(found), number), f"looking for device {number}")
        return found

    def enter(self, device: int) -> None:
        """Make a device's primary context the one of this thread."""
        self._check(self._lib.cuCtxSetCurrent(self._context(device)), f"entering device {device}")

    def _context(self, device: int) -> _Handle:
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                context = _Handle()
                retain = self._lib.cuDevicePrimaryCtxRetain
                self._check(retain(ctypes.byref(context), self._device(device)), f"opening device {device}")
                self._contexts[device] = context
            return context

    @contextmanager
    def visit(self, device: int) -> Iterator[None]:
        """Enter a device, and leave it as this thread's device was before."""
        self._check(self._lib.cuCtxPushCurrent_v2(self._context(device)), f"entering device {device}")
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
        self._check(self._lib.cuLinkCreate_v2(2, keys, values, ctypes.byref(state)), "starting to compile")
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
        self._check(self._lib.cuModuleLoadData(ctypes.byref(module), code), "loading code")
        self._check(self._lib.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"looking for {name}")
        if shared > _PLAIN_SHARED_BYTES:
            self._check(self._lib.cuFuncSetAttribute(function, 8, shared), f"asking for {shared} shared bytes")
        if cluster > _LAST_PORTABLE_CLUSTER:
            self._check(self._lib.cuFuncSetAttribute(function, 14, 1), f"asking for clusters of {cluster}")
        found = []
        for number in (4, 3):  # registers, bytes of local memory
            self._check(self._lib.cuFuncGetAttribute(ctypes.byref(value), number, function), "asking what code takes")
            found.append(value.value)
        return Function(function.value or 0, threads, shared, *found)

    @cached_property
    def start(self) -> Callable[..., int]:
        """Native code that starts ``Launches``."""
        place = ctypes.cast(self._lib.cuLaunchKernel, _Handle).value or 0
        found = kernel_text("start of launches", ("start",), _TEXT, host_target(), {"cuLaunchKernel": place})
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, _Handle, *[ctypes.c_int64] * (1 + CHANGING), _Handle)
        return kind(found["start"])

    def launch(self, launch: Launch, stream: int, device: int) -> None:
        """Start one kernel on a stream of a device."""
        Launches(self, (launch,), device)((0,) * CHANGING, stream)

    def tensor_map(self, address: int, extents: Sequence[int], steps: Sequence[int], box: Sequence[int],
                   dtype: str) -> TensorMap:  # fmt: skip
        """The map of an array for the copy engine; steps in bytes, from the second axis on, innermost first."""
        made, rank = TensorMap(), len(extents)
        code = self._lib.cuTensorMapEncodeTiled(
            _Handle(made.address), _MAPPED[dtype], rank, _Handle(address), (ctypes.c_uint64 * rank)(*extents),
            (ctypes.c_uint64 * (rank - 1))(*steps), (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank), 0, 3, 2, 0,
        )  # fmt: skip
        self._check(code, f"mapping an array of extents {tuple(extents)} and steps {tuple(steps)} in boxes of {box}")
        return made

    # -- memory, streams, time ---------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        """Address of so many bytes on this thread's device, at least one."""
        address = ctypes.c_uint64()
        take = self._lib.cuMemAlloc_v2
        self._check(take(ctypes.byref(address), ctypes.c_size_t(max(1, size))), f"taking {size} bytes")
        return address.value

    def free(self, address: int) -> None:
        """Give memory back."""
        self._check(self._lib.cuMemFree_v2(ctypes.c_uint64(address)), "giving memory back")

    def upload(self, address: int, data: memoryview | bytes) -> None:
        """Copy bytes of the host to the device, and wait."""
        source = (ctypes.c_char * len(data)).from_buffer_copy(data)
        copy = self._lib.cuMemcpyHtoD_v2
        self._check(copy(ctypes.c_uint64(address), source, ctypes.c_size_t(len(data))), "copying to the GPU")

    def download(self, address: int, size: int) -> bytes:
        """Bytes of the device, after all that was started on it."""
        target = ctypes.create_string_buffer(max(1, size))
        self._check(
            self._lib.cuMemcpyDtoH_v2(target, ctypes.c_uint64(address), ctypes.c_size_t(size)), "copying from the GPU"
        )
        return target.raw[:size]

    def synchronize(self, stream: int = 0) -> None:
        """Wait for a stream; an error of code that ran on it is raised here."""
        self._check(self._lib.cuStreamSynchronize(_Handle(stream)), "waiting for the GPU")

    def is_capturing(self, stream: int) -> bool:
        """Whether what is started on a stream goes into a graph, to run later."""
        status = ctypes.c_int()
        self._check(self._lib.cuStreamIsCapturing(_Handle(stream), ctypes.byref(status)), "asking about a stream")
        return status.value != 0

    def event(self) -> Event:
        """A mark in a stream, with its time."""
        handle = _Handle()
        self._check(self._lib.cuEventCreate(ctypes.byref(handle), 0), "making an event")
        return Event(self, handle)


_MAPPED = {"f16": 6, "f32": 7, "bf16": 9}
"""Types of arrays in tensor maps."""


class TensorMap:
    """128 bytes that tell the copy engine of an array."""

    __slots__ = ("_memory", "address")

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(192)
        self.address = (ctypes.addressof(self._memory) + 63) & ~63


@dataclass(frozen=True, slots=True)
class Launch:
    """Code with its arguments, of which some change from call to call.

    Parameters
    ----------
    function : Function
    grid : (int, int, int)
    values : tuple of int
        Arguments; of those that change, any number.
    changing : tuple of (int, int)
        Which arguments change, and which of the numbers given to a call they are.
    """

    function: Function
    grid: tuple[int, int, int]
    values: tuple[int, ...]
    changing: tuple[tuple[int, int], ...] = ()

    @property
    def words(self) -> list[int]:
        """As native code reads it: the function, its shape, and each argument with which number replaces it, or -1."""
        given = dict(self.changing)
        shape = [self.function.handle, *self.grid, self.function.threads, self.function.shared, len(self.values)]
        return shape + [w for slot, value in enumerate(self.values) for w in (value, given.get(slot, -1))]


_MOST_ARGUMENTS = 64
CHANGING = 5
"""Numbers that are given to a call."""
ITSELF = 64
"""Added to which number of a call an argument is, if that number is the address of the argument itself."""

_SHAPE = "\n".join(
    f"  %p{i} = getelementptr i64, ptr %at, i64 {i}\n  %w{i} = load i64, ptr %p{i}\n  %i{i} = trunc i64 %w{i} to i32"
    for i in range(1, 6)
)

# Each launch has its arguments on this function's own stack: threads may start the same ones at a time.
_TEXT = f"""
declare i32 @cuLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)

define i64 @start(ptr %words, i64 %launches, i64 %g0, i64 %g1, i64 %g2, i64 %g3, i64 %g4, ptr %stream) {{
entry:
  %given = alloca [{CHANGING} x i64]
  %values = alloca [{_MOST_ARGUMENTS} x i64]
  %places = alloca [{_MOST_ARGUMENTS} x ptr]
  store i64 %g0, ptr %given
  %s1 = getelementptr i64, ptr %given, i64 1
  store i64 %g1, ptr %s1
  %s2 = getelementptr i64, ptr %given, i64 2
  store i64 %g2, ptr %s2
  %s3 = getelementptr i64, ptr %given, i64 3
  store i64 %g3, ptr %s3
  %s4 = getelementptr i64, ptr %given, i64 4
  store i64 %g4, ptr %s4
  br label %launch
launch:
  %at = phi ptr [%words, %entry], [%after, %next]
  %left = phi i64 [%launches, %entry], [%fewer, %next]
  %ended = icmp eq i64 %left, 0
  br i1 %ended, label %done, label %shape
shape:
  %code = load ptr, ptr %at
{_SHAPE}
  %pcount = getelementptr i64, ptr %at, i64 6
  %count = load i64, ptr %pcount
  %first = getelementptr i64, ptr %at, i64 7
  br label %argument
argument:
  %slot = phi i64 [0, %shape], [%more, %put]
  %pair = phi ptr [%first, %shape], [%behind, %put]
  %filled = icmp eq i64 %slot, %count
  br i1 %filled, label %start, label %one
one:
  %fixed = load i64, ptr %pair
  %pwhich = getelementptr i64, ptr %pair, i64 1
  %which = load i64, ptr %pwhich
  %changes = icmp sge i64 %which, 0
  br i1 %changes, label %taken, label %put
taken:
  %itself = icmp sge i64 %which, {ITSELF}
  %low = and i64 %which, {ITSELF - 1}
  %pgiven = getelementptr i64, ptr %given, i64 %low
  %told = load i64, ptr %pgiven
  br label %put
put:
  %value = phi i64 [%fixed, %one], [%told, %taken]
  %isplace = phi i1 [false, %one], [%itself, %taken]
  %pvalue = getelementptr i64, ptr %values, i64 %slot
  store i64 %value, ptr %pvalue
  %there = inttoptr i64 %value to ptr
  %where = select i1 %isplace, ptr %there, ptr %pvalue
  %pplace = getelementptr ptr, ptr %places, i64 %slot
  store ptr %where, ptr %pplace
  %more = add i64 %slot, 1
  %behind = getelementptr i64, ptr %pair, i64 2
  br label %argument
start:
  %error = call i32 @cuLaunchKernel(ptr %code, i32 %i1, i32 %i2, i32 %i3, i32 %i4, i32 1, i32 1,
    i32 %i5, ptr %stream, ptr %places, ptr null)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %bad, label %next
next:
  %size = shl i64 %count, 1
  %after = getelementptr i64, ptr %first, i64 %size
  %fewer = sub i64 %left, 1
  br label %launch
bad:
  %wide = zext i32 %error to i64
  ret i64 %wide
done:
  ret i64 0
}}
"""


class Launches:
    """Launches of one call, started together by one foreign call.

    Parameters
    ----------
    of : Driver
    launches : sequence of Launch
    device : int
    """

    __slots__ = ("_address", "_count", "_device", "_driver", "_start", "_words")

    def __init__(self, of: Driver, launches: Sequence[Launch], device: int) -> None:
        words = [word % (1 << 64) for launch in launches for word in launch.words]
        self._words = (ctypes.c_uint64 * max(1, len(words)))(*words)
        self._address, self._count = ctypes.addressof(self._words), len(launches)
        self._driver, self._device, self._start = of, device, of.start

    def __call__(self, given: Sequence[int], stream: int) -> None:
        """Start them on a stream, with ``CHANGING`` numbers."""
        if self._driver.count > 1:  # which device is the thread's is its own affair
            with self._driver.visit(self._device):
                code = self._start(self._address, self._count, *given, stream)
        else:
            code = self._start(self._address, self._count, *given, stream)
        if code == _INVALID_CONTEXT:  # a thread that has not met the device yet
            self._driver.enter(self._device)
            code = self._start(self._address, self._count, *given, stream)
        if code:
            self._driver._check(code, "launching a kernel")


class Event:
    """A mark in a stream."""

    def __init__(self, of: Driver, handle: Any) -> None:
        self._driver, self._handle = of, handle

    def record(self, stream: int = 0) -> None:
        """Mark what was started so far."""
        of = self._driver
        of._check(of._lib.cuEventRecord(self._handle, _Handle(stream)), "recording an event")

    def seconds_since(self, earlier: Event) -> float:
        """Time between two marks, once this one is reached."""
        of, elapsed = self._driver, ctypes.c_float()
        of._check(of._lib.cuEventSynchronize(self._handle), "waiting for an event")
        of._check(of._lib.cuEventElapsedTime(ctypes.byref(elapsed), earlier._handle, self._handle), "reading a time")
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

