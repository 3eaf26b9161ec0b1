"""A kernel of a GPU as part of a plan: data, and which of the plan's arrays its pointers are.

It must not know operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.gpu.code import Launchable

__all__ = ["Launching", "in_order"]


@dataclass(frozen=True, slots=True)
class Launching:
    """A kernel, and for each of its pointers the number of an array and bytes from its first one.

    Parameters
    ----------
    kernel : Launchable
    operands : tuple of (int, int)
        In the order of the kernel's arguments.
    """

    kernel: Launchable
    operands: tuple[tuple[int, int], ...]


def in_order(shape: Sequence[int], like: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides, in bytes, of an array without gaps whose axes follow each other as those of another do.

    ``like`` are the other's strides: an array of (1, 8, 5, 5) like one of strides (800, 4, 160, 32) has its channels
    last, too.
    """
    order = sorted(range(len(shape)), key=lambda axis: (shape[axis] != 1) * -abs(like[axis]))
    steps, step = [0] * len(shape), itemsize
    for axis in reversed(order):
        steps[axis] = step
        step *= max(1, shape[axis])
    assert step == itemsize * math.prod(max(1, extent) for extent in shape)
    return tuple(steps)
