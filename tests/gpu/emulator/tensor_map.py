"""What ``cuTensorMapEncodeTiled`` makes: a box of an array that the copy engine can bring to shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TensorMap", "swizzled"]

Array = NDArray[Any]


def swizzled(addresses: Array, span: int) -> Array:
    """Where the byte of a logical shared address lies.

    A swizzle of 128, 64 or 32 bytes exchanges the 16-byte pieces of a row: bits 4 to 6 (5, 4) are combined with bits
    7 to 9 (8, 7) of the address itself.
    """
    pieces = span // 16 - 1 if span else 0
    moved: Array = addresses ^ (addresses >> 7 & pieces) << 4
    return moved


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tiled map of an array, and the checks that the driver makes.

    Parameters
    ----------
    array : ndarray
        Memory that the map describes: the kernel's copies read nothing outside it.  Elements have its type, unless
        ``itemsize`` says their bytes.
    dims : sequence of int
        Extents in elements, innermost first; one to five.
    strides : sequence of int
        Bytes between neighbours, for every dimension but the innermost.
    box : sequence of int
        Extents of what one copy brings, innermost first.
    swizzle : int
        Bytes: 0, 32, 64 or 128.
    element_strides : sequence of int, optional
        Steps of the box in elements.
    offset : int
        Bytes of the array before the first element.
    itemsize : int, optional

    Raises
    ------
    ValueError
        A value that the driver refuses.
    """

    array: Array
    dims: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    swizzle: int = 0
    element_strides: Sequence[int] = ()
    offset: int = 0
    itemsize: int = 0

    def __post_init__(self) -> None:
        rank, item = len(self.dims), self.itemsize or self.array.itemsize
        object.__setattr__(self, "itemsize", item)
        steps = tuple(self.element_strides) or (1,) * rank
        object.__setattr__(self, "element_strides", steps)
        rules = {
            f"a map has 1 to 5 dimensions, not {rank}": 1 <= rank <= 5,
            f"{rank} dimensions need {rank - 1} strides, {rank} box extents and element strides": (
                len(self.strides) == rank - 1 and len(self.box) == len(steps) == rank),
            f"extents {tuple(self.dims)} lie within 1 to 2**32": all(1 <= d <= 2**32 for d in self.dims),
            f"strides {tuple(self.strides)} are multiples of 16 below 2**40": (
                all(s % 16 == 0 and 0 < s < 2**40 for s in self.strides)),
            f"an offset of {self.offset} bytes is a multiple of 16": self.offset % 16 == 0,
            f"box extents {tuple(self.box)} lie within 1 to 256": all(1 <= b <= 256 for b in self.box),
            f"element strides {steps} lie within 1 to 8": all(1 <= s <= 8 for s in steps),
            f"a swizzle has 0, 32, 64 or 128 bytes, not {self.swizzle}": self.swizzle in (0, 32, 64, 128),
        }  # fmt: skip
        inner = self.box[0] * item if self.box else 0
        rules[f"the innermost box extent has {inner} bytes, no multiple of 16"] = inner % 16 == 0
        rules[f"the innermost box extent has {inner} bytes, the swizzle {self.swizzle}"] = (
            not self.swizzle or inner <= self.swizzle
        )
        outer = sum((d - 1) * s for d, s in zip(self.dims[1:], self.strides, strict=False))
        last = self.offset + (self.dims[0] - 1) * item + outer
        rules[f"the map reaches byte {last + item} of an array of {self.array.nbytes}"] = (
            last + item <= self.array.nbytes
        )
        for rule, holds in rules.items():
            if not holds:
                raise ValueError(f"tensor map: {rule}")

    @property
    def bytes(self) -> int:
        """Size of a box."""
        return int(np.prod(self.box)) * self.itemsize

    def box_at(self, memory: Array, start: Sequence[int]) -> Array:
        """Bytes of the box at these coordinates, elements outside the array as zeros.

        Parameters
        ----------
        memory : ndarray
            The array's bytes.
        start : sequence of int
            Coordinates, innermost first; negative ones lie outside.
        """
        item, rank = self.itemsize, len(self.dims)
        at, inside = np.full(1, self.offset, np.int64), np.ones(1, bool)
        for d in reversed(range(rank)):
            position = start[d] + np.arange(self.box[d]) * self.element_strides[d]
            stride = item if d == 0 else self.strides[d - 1]
            at = (at[:, None] + position * stride).reshape(-1)
            inside = (inside[:, None] & ((position >= 0) & (position < self.dims[d]))).reshape(-1)
        elements = np.zeros((len(at), item), np.uint8)
        elements[inside] = memory[at[inside, None] + np.arange(item)]
        return elements.reshape(-1)
