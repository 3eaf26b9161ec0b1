"""How arrays lie in memory: packed in the order of their axes, with channels last, or otherwise.

Channels are the second axis of an array of three axes or more, whatever the order in memory.  It must not know
operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.runtime.arrays import reach

__all__ = ["Array", "Lies", "channels_last", "in_memory", "is_channels_last", "lies", "lies_like", "like", "new_array",
           "packed", "reshaped"]  # fmt: skip

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Lies:
    """How an array lies: shape, dtype, byte strides, and what ``reach`` says of its first element and its bytes.

    Its ``values`` are there where a plan depends on them; see ``Own``.  ``align`` is the largest power of two up to 16
    that divides the address of the first element, of arrays on a GPU.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    offset: int
    size: int
    values: tuple[Any, ...] | None = None
    align: int = 16


def lies(a: Array) -> Lies:
    """How an array lies."""
    size, offset = reach(a)
    return Lies(a.shape, a.dtype, a.strides, offset, size)


def packed(shape: Sequence[int], dtype: Any) -> Lies:
    """How a new array will lie: in C order, without gaps."""
    kind = np.dtype(dtype)
    steps, step = [], kind.itemsize
    for extent in reversed(shape):
        steps.append(step)
        step *= max(1, extent)
    size = kind.itemsize * math.prod(shape)
    return Lies(tuple(shape), kind, tuple(reversed(steps)), 0, size)


def is_channels_last(lie: Lies) -> bool:
    """Whether an array has its channels, the second axis, together in memory, and its pixels behind each other.

    There may be gaps between pixels, as a slice of channels has them.  An array of one channel or one pixel lies both
    ways and does not count.
    """
    shape, strides = lie.shape, lie.strides
    if len(shape) < 3 or shape[1] < 2 or strides[1] != lie.dtype.itemsize:
        return False
    pixels = [step for extent, step in zip(shape[2:], strides[2:], strict=True) if extent > 1]
    return bool(pixels) and min(pixels) >= shape[1] * strides[1] and pixels == sorted(pixels, reverse=True)


def channels_last(shape: Sequence[int], dtype: Any) -> Lies:
    """How a new array will lie whose channels are together in memory, without gaps."""
    n, c, *extents = shape
    lie = packed((n, *extents, c), dtype)
    if c < 2 or math.prod(extents) < 2:  # it lies both ways
        return packed(shape, dtype)
    return replace(lie, shape=tuple(shape), strides=(lie.strides[0], lie.strides[-1], *lie.strides[1:-1]))


def lies_like(lie: Lies, other: Lies) -> bool:
    """Whether arrays of one shape have the same steps along all axes of more than one element."""
    return all(e == 1 or s == w for e, s, w in zip(lie.shape, lie.strides, other.strides, strict=True))


def new_array(lie: Lies) -> Array:
    """An array that lies so, with memory of its own.

    Raises
    ------
    MemoryError, ValueError
        If the system does not give it.
    """
    if lie.strides == packed(lie.shape, lie.dtype).strides:
        return np.empty(lie.shape, lie.dtype)
    return np.ndarray(lie.shape, lie.dtype, np.empty(lie.size, np.uint8), lie.offset, lie.strides)


class Unread(np.ndarray):
    """An array whose elements nobody reads or has written: a view that would have to copy it is new memory."""


def like(lie: Lies) -> Array:
    """An array that lies so, for whoever only looks at how it lies."""
    return new_array(lie).view(Unread)


def reshaped(x: Array, shape: Sequence[int]) -> Array:
    """An array in another shape: a view, or a copy where there is none."""
    if not isinstance(x, Unread):
        return x.reshape(shape)
    try:
        return x.reshape(shape, copy=False)
    except ValueError:
        return np.empty(shape, x.dtype)


def in_memory(lie: Lies) -> Lies:
    """The same array seen with channels as its last axis, if they lie so; any other as it is."""
    if not is_channels_last(lie):
        return lie
    shape, strides = ((*of[:1], *of[2:], of[1]) for of in (lie.shape, lie.strides))
    return replace(lie, shape=shape, strides=strides)
