"""What memory is taken for, said where there is none; how much is kept, and what is free, given back.

A bare MemoryError names no argument and no way out; whoever takes memory for a caller says both.  It must not know how
memory is taken.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyconv.collecting import uncollected
from polyconv.errors import OutOfMemory
from polyconv.settings import spelled_bytes

__all__ = ["Recent", "allocating", "collecting_later", "freed", "kept_count", "most_bytes", "native_order", "sized"]

T = TypeVar("T")

_UNKNOWN_MACHINE = 4 << 30
_MOST_FREED = 8 << 20
"""Bytes that may wait until they are given back, which takes about a millisecond."""
_freed = [0]
_FEW = 8
"""Of what may be wanted again so many are kept, whatever they take."""


def most_bytes() -> int:
    """Largest tensor, in bytes, that a model may ask for: half the machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # not POSIX
        return _UNKNOWN_MACHINE


def sized(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """An array and what it takes: ``w of shape (4, 3), float32, takes 48 B``."""
    return f"{name} of shape {shape}, {dtype}, takes {spelled_bytes(math.prod(shape) * dtype.itemsize)}"


@contextmanager
def allocating(what: str | Callable[[], str], way_out: str) -> Iterator[None]:
    """Say what a block takes memory for where there is none.

    Parameters
    ----------
    what : str or callable
        As ``sized`` spells it; or what spells it once it must be said, for blocks that are met often.
    way_out : str
        What the caller can do.

    Raises
    ------
    OutOfMemory
        If the block runs out of memory and does not say for what itself.
    """
    try:
        yield
    except OutOfMemory:
        raise
    except MemoryError:
        said = what if isinstance(what, str) else what()
        raise OutOfMemory(f"{said}, more than the system gives; {way_out}") from None


def native_order(a: NDArray[Any], name: str) -> NDArray[Any]:
    """An array in this machine's byte order: itself, or a copy of one that is byte-swapped."""
    if a.dtype.isnative:
        return a
    dtype = a.dtype.newbyteorder("=")
    what = sized(f"a copy of {name}, which is byte-swapped,", a.shape, dtype)
    with allocating(what, f"give {name} in native byte order"):
        return a.astype(dtype)


@contextmanager
def collecting_later(*, trims: bool = True) -> Iterator[None]:
    """As ``uncollected``; at the end the system gets back what the block took for a while, if ``trims``."""
    try:
        with uncollected():
            yield
    finally:
        if trims:
            freed(_MOST_FREED)


def _is_too_many(others: int, total: int, most: int, room: int) -> bool:
    """Whether one more than so many others is not kept: they are the most, or take too many bytes with it."""
    return others >= most or (others >= _FEW and total > room)


def kept_count(sizes: Iterable[int], most: int, room: int) -> int:
    """How many of some things are kept, of which the last used come first: no more than ``most``.

    Beyond the first few only as many as take no more than ``room`` bytes all together.
    """
    count = 0
    for total in accumulate(sizes):
        if _is_too_many(count, total, most, room):
            break
        count += 1
    return count


class Recent(OrderedDict[Any, T]):
    """Things by key, the last used last, of which as many are kept as ``kept_count`` says; bytes are counted along.

    Parameters
    ----------
    size_of : callable
        Bytes of a thing.
    """

    def __init__(self, size_of: Callable[[T], int]) -> None:
        super().__init__()
        self._size_of, self._bytes = size_of, 0

    def put(self, key: Any, thing: T) -> None:
        """Have a thing be the last one; another thread may have put one there before."""
        if key in self:
            self._bytes -= self._size_of(self.pop(key))
        self[key] = thing
        self._bytes += self._size_of(thing)

    def pop_first(self) -> T:
        """Take out the thing that was used before all others."""
        gone = self.popitem(last=False)[1]
        self._bytes -= self._size_of(gone)
        return gone

    def are_too_many(self, most: int, room: int) -> bool:
        """Whether the first one must go."""
        return _is_too_many(len(self) - 1, self._bytes, most, room)


def freed(count: int) -> None:
    """Be told of so many bytes that are freed for good; once they are many, the system gets them back.

    glibc keeps what lies below something that lives: after ConvNeXt's first run 62 of 243 MB.
    """
    _freed[0] += count
    if _freed[0] >= _MOST_FREED:
        _freed[0] = 0
        _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """The C library's call that gives back all free memory; where it has none, one that does nothing."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (TypeError, OSError, AttributeError):  # not glibc
        return bool
