"""Memory for kernels: aligned arrays, and the strides and extents of a caller's arrays.

Kernels read any strides in place, so nothing is copied here.  Memory that must be written before it is read can
start as a mark, so that a kernel which forgets a store is seen.  It must know nothing of problems.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.address import address
from polyconv.settings import spelled_bytes

__all__ = [
    "MARKS", "Place", "aligned", "as_aligned", "mark", "marked", "may_overlap",
    "overlap", "place", "reach", "unwritten",
]  # fmt: skip

_LINE = 64
_HUGE = 2 << 20

MARKS = (0x7FFF, 0x3C3B)
"""Two patterns of 16 bits for memory that nobody has written: repeated, the first is NaN in f16, bf16, f32 and f64 and
a large integer, the second a small number in each type.  Results that depend on such memory differ between them."""
_marking: ContextVar[int | None] = ContextVar("marking", default=None)


@contextmanager
def marked(pattern: int) -> Iterator[None]:
    """Have ``mark`` write a pattern of ``MARKS`` within the block; without a block it writes nothing."""
    token = _marking.set(pattern)
    try:
        yield
    finally:
        _marking.reset(token)


def mark(memory: NDArray[Any]) -> NDArray[Any]:
    """Let memory that is to be written start as the mark, if there is one; returns it."""
    pattern = _marking.get()
    if pattern is not None and memory.size:
        one = np.full(-(-memory.itemsize // 2), pattern, np.uint16).view(np.uint8)[: memory.itemsize]
        memory[...] = one.view(memory.dtype)[0]
    return memory


def unwritten(shape: int | tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """As ``aligned``, for whoever writes all of it before reading any."""
    return mark(aligned(shape, dtype, np.empty))


def aligned(shape: int | tuple[int, ...], dtype: Any, make: Callable[..., NDArray[Any]] = np.zeros) -> NDArray[Any]:
    """Zeros on a cache line, or what ``make`` makes; large ones on 2 MiB pages, which the weights of big layers need.

    Raises
    ------
    MemoryError
        If the system does not give it.
    """
    kind = np.dtype(dtype)
    count = (shape if isinstance(shape, int) else math.prod(shape)) * kind.itemsize
    if count >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            pages = mmap.mmap(-1, count + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has none
        except (OSError, OverflowError) as error:
            raise MemoryError(f"{spelled_bytes(count)} are more than the system gives ({error})") from None
        raw = np.frombuffer(pages, np.uint8)
        start = -address(raw) % _HUGE
        with suppress(OSError):  # a system without huge pages has others
            pages.madvise(mmap.MADV_HUGEPAGE, start, count // _HUGE * _HUGE)  # no more than there is
    else:
        raw = make(count + _LINE, np.uint8)
        start = -address(raw) % _LINE
    memory: NDArray[Any] = raw[start : start + count].view(kind).reshape(shape)
    return memory


def as_aligned(values: NDArray[Any]) -> NDArray[Any]:
    """A copy on a cache line, in the order of its axes."""
    copy = aligned(values.shape, values.dtype)
    copy[...] = values
    return copy


class Place(NamedTuple):
    """Where an array lies: lowest address, bytes from there to its end, offset of element 0, byte strides."""

    address: int
    size: int
    offset: int
    strides: tuple[int, ...]


def place(a: NDArray[Any]) -> Place:
    """Extent of an array in memory, for any strides (negative and zero included)."""
    size, offset = reach(a)
    return Place(address(a) - offset, size, offset, a.strides)


def reach(a: NDArray[Any]) -> tuple[int, int]:
    """Bytes from the lowest address of an array to its end, and from there to element 0: wherever it lies."""
    if a.size == 0:
        return 0, 0
    low, high = 0, a.itemsize
    for extent, stride in zip(a.shape, a.strides, strict=True):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return high - low, -low


def may_overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays share memory, judged by their extents."""
    return overlap(place(a), place(b))


def overlap(p: Place, q: Place) -> bool:
    """Whether two places share memory."""
    return p.size > 0 and q.size > 0 and p.address < q.address + q.size and q.address < p.address + p.size
