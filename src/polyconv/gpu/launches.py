"""Kernels of one call, started together: one foreign call puts their arguments in place and hands them to the driver.

Arguments are numbers, of which some change from call to call.  It must not know what kernels compute.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

from polyconv.dataclass import dataclass
from polyconv.gpu.driver import Driver, Function, driver
from polyconv.kernels.objects import kernel_text
from polyconv.target import host_target

__all__ = ["CHANGING", "ITSELF", "Launch", "Launches", "Slot", "Table", "launch_once"]

_INVALID_CONTEXT = 201


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


_HEADER = 7
"""Words of a launch before its arguments."""
_MOST_ARGUMENTS = 160
CHANGING = 7
"""Numbers that are given to a call."""
ITSELF = 64
"""Added to which number of a call an argument is, if that number is the address of the argument itself."""

_FIXED_ITSELF = -2
"""Which number of a call an argument is, if it is none of them but the address of the argument itself."""

_SHAPE = "\n".join(
    f"  %p{i} = getelementptr i64, ptr %at, i64 {i}\n  %w{i} = load i64, ptr %p{i}\n  %i{i} = trunc i64 %w{i} to i32"
    for i in range(1, 6)
)

_GIVEN = "\n".join(
    f"  %s{i} = getelementptr i64, ptr %given, i64 {i}\n  store i64 %g{i}, ptr %s{i}" for i in range(CHANGING)
)

# Each launch has its arguments on this function's own stack: threads may start the same ones at a time.
_TEXT = f"""
declare i32 @cuLaunchKernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)

define i64 @start(ptr %words, i64 %launches, {", ".join(f"i64 %g{i}" for i in range(CHANGING))}, ptr %stream) {{
entry:
  %given = alloca [{CHANGING} x i64]
  %values = alloca [{_MOST_ARGUMENTS} x i64]
  %places = alloca [{_MOST_ARGUMENTS} x ptr]
{_GIVEN}
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
  %isfixed = icmp eq i64 %which, {_FIXED_ITSELF}
  br i1 %changes, label %taken, label %put
taken:
  %itself = icmp sge i64 %which, {ITSELF}
  %low = and i64 %which, {ITSELF - 1}
  %pgiven = getelementptr i64, ptr %given, i64 %low
  %told = load i64, ptr %pgiven
  br label %put
put:
  %value = phi i64 [%fixed, %one], [%told, %taken]
  %isplace = phi i1 [%isfixed, %one], [%itself, %taken]
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


@cache
def _native(of: Driver) -> Callable[..., int]:
    """Native code that starts launches by a driver."""
    found = kernel_text("start of launches", ("start",), _TEXT, host_target(), {"cuLaunchKernel": of.launching})
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * (1 + CHANGING), ctypes.c_void_p)
    return kind(found["start"])


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument of a ``Table`` that changes: which launch's, which, and by which number of a call.

    With ``is_itself`` that number is the address of the argument itself.
    """

    launch: int
    argument: int
    number: int
    is_itself: bool = False


class Launches:
    """Launches of one call, started together by one foreign call.

    Parameters
    ----------
    of : Driver
    launches : sequence of Launch
    device : int
    """

    __slots__ = ("_address", "_count", "_device", "_driver", "_start", "_words", "all")

    def __init__(self, of: Driver, launches: Sequence[Launch], device: int) -> None:
        self.all = tuple(launches)
        words = [word % (1 << 64) for launch in launches for word in launch.words]
        self._words = (ctypes.c_uint64 * max(1, len(words)))(*words)
        self._address, self._count = ctypes.addressof(self._words), len(launches)
        self._driver, self._device, self._start = of, device, _native(of)

    def __call__(self, given: Sequence[int], stream: int) -> None:
        """Start them on a stream, with ``CHANGING`` numbers."""
        _begin(self._driver, self._device, self._start, (self._address, self._count, *given, stream))


class Table:
    """Launches of which any number of arguments changes, started together by one foreign call.

    Safe to start from several threads.

    Parameters
    ----------
    of : Driver
    launches : sequence of Launch
        None of them with arguments that change.
    changing : sequence of Slot
    device : int
    """

    __slots__ = ("_changing", "_count", "_device", "_driver", "_start", "_words")

    def __init__(self, of: Driver, launches: Sequence[Launch], changing: Sequence[Slot], device: int) -> None:
        words: list[int] = []
        firsts: list[int] = []
        for launch in launches:
            firsts.append(len(words) + _HEADER)
            words += launch.words
        self._changing: list[tuple[int, int, int]] = []
        for slot in changing:
            at = firsts[slot.launch] + 2 * slot.argument
            words[at + 1] = _FIXED_ITSELF if slot.is_itself else -1
            self._changing.append((at, slot.number, words[at]))
        self._words = (ctypes.c_uint64 * max(1, len(words)))(*(word % (1 << 64) for word in words))
        self._driver, self._device, self._start, self._count = of, device, _native(of), len(launches)

    def __call__(self, numbers: Sequence[int], stream: int) -> None:
        """Start them on a stream, with numbers for the arguments that change, to which their own values are added."""
        words = type(self._words).from_buffer_copy(self._words)
        for at, number, value in self._changing:
            words[at] = numbers[number] + value
        given = (0,) * CHANGING
        _begin(self._driver, self._device, self._start, (ctypes.addressof(words), self._count, *given, stream))


def _begin(of: Driver, device: int, start: Callable[..., int], arguments: tuple[int, ...]) -> None:
    """Start launches on a device, from whatever thread."""
    if of.count > 1:  # which device is the thread's is its own affair
        with of.visit(device):
            code = start(*arguments)
    else:
        code = start(*arguments)
    if code == _INVALID_CONTEXT:  # a thread that has not met the device yet
        of.enter(device)
        code = start(*arguments)
    if code:
        of.check(code, "launching a kernel")


def launch_once(launch: Launch, stream: int, device: int) -> None:
    """Start one kernel, of whose arguments none changes, on a stream of a device."""
    Launches(driver(), (launch,), device)((0,) * CHANGING, stream)
