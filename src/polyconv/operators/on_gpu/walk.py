"""Elements of some axes, counted in a row, and where each operand has the one with a number.

Extents and steps are told to a launch, so that a new size needs no new code; which steps are none, and which are one
element, shapes it.  It must not know what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.gpu.language import I32, I64, Kernel, Type, Value

__all__ = ["OfElements", "Walk", "thread_number"]


@dataclass(frozen=True, slots=True)
class Walk:
    """A space, of which the last axis is counted fastest.

    Parameters
    ----------
    extents : tuple of int
    steps : tuple of tuple of int
        In bytes, by operand and axis.
    sizes : tuple of int
        Bytes of an element of each operand.
    name : str
        What the names of told numbers begin with.
    """

    extents: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    name: str = ""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.extents)

    @property
    def index(self) -> Type:
        """Type in which elements are counted."""
        return I32 if self.size < 1 << 31 else I64

    def _kinds(self, operand: int) -> str:
        """Of each axis: ``0`` where an operand is repeated, ``1`` where its elements lie together, ``s`` else."""
        size = self.sizes[operand]
        return "".join("0" if step == 0 else "1" if step == size else "s" for step in self.steps[operand])

    def __str__(self) -> str:
        """All that shapes the code."""
        return f"{' '.join(self._kinds(i) for i in range(len(self.steps)))} in {self.index}"

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        told = {f"{self.name}size": self.size}
        told |= {f"{self.name}extent{a}": extent for a, extent in enumerate(self.extents) if a}
        for i, steps in enumerate(self.steps):
            kinds = self._kinds(i)
            told |= {f"{self.name}step{i}_{a}": step for a, step in enumerate(steps) if kinds[a] == "s"}
        return told

    def has(self, k: Kernel, number: Value) -> Value:
        """Whether there is an element with a number."""
        return number.below(_narrow(k, k.numbers[f"{self.name}size"], self.index))

    def axes(self, k: Kernel, number: Value) -> list[Value]:
        """Where the element with a number stands along each axis, in 64 bits."""
        found: list[Value] = []
        rest = number
        for a in reversed(range(len(self.extents))):
            extent = _narrow(k, k.numbers[f"{self.name}extent{a}"], self.index) if a else None
            found.append(_wide(k, rest if extent is None else rest % extent))
            rest = rest if extent is None else rest // extent
        return found[::-1]

    def places(self, k: Kernel, axes: Sequence[Value]) -> list[Value]:
        """Bytes from each operand's first element to the one that stands there along each axis."""
        found = []
        for i, size in enumerate(self.sizes):
            place = k.value(0, I64)
            for a, kind in enumerate(self._kinds(i)):
                if kind != "0":
                    place = place + axes[a] * (size if kind == "1" else k.numbers[f"{self.name}step{i}_{a}"])
            found.append(place)
        return found

    def counted(self, k: Kernel, value: Value) -> Value:
        """A number of 32 bits in the type in which elements are counted."""
        return value if self.index == I32 else k.cast("zext", value, I64)


class OfElements:
    """How kernels are launched that have a thread for each element of a space."""

    __slots__ = ()
    walk: Walk
    threads = 256
    shared = 0
    cluster = 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-self.walk.size // self.threads), 1, 1


def thread_number(k: Kernel, walk: Walk) -> Value:
    """The number of a thread among all of a launch, counted as the elements of a space."""
    return walk.counted(k, k.block[0]) * k.threads + walk.counted(k, k.thread)


def _narrow(k: Kernel, value: Value, index: Type) -> Value:
    return value if value.type == index else k.cast("trunc", value, index)


def _wide(k: Kernel, value: Value) -> Value:
    return value if value.type == I64 else k.cast("zext", value, I64)
