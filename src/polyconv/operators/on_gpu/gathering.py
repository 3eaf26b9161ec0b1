"""Elements that indices name, on a GPU: a thread copies one.

Indices count from the end where they are negative.  One outside the input makes a zero: nobody waits here for what a
GPU finds, so nobody can be told.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from polyconv.dataclass import dataclass
from polyconv.gpu.language import I64, Kernel, Pointer, Type
from polyconv.operators.on_gpu.launching import Launching
from polyconv.operators.on_gpu.walk import OfElements, Walk, thread_number

__all__ = ["Gather", "gathered"]



@dataclass(frozen=True, slots=True)
class Gather(OfElements):
    """A kernel to make.

    Parameters
    ----------
    walk : Walk
        Of the result's elements: where input (without the axis that indices name), indices and result have them.
    extent, step : int
        Of the input along that axis; the step in bytes.
    """

    walk: Walk
    extent: int
    step: int
    arguments: ClassVar[tuple[str, ...]] = ("input", "indices", "result")

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"gather {self.walk.sizes}, {self.walk}"

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        return self.walk.numbers | {"extent": self.extent, "step": self.step}

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("gather", self.arguments, self.threads, numbers=tuple(self.numbers))
        size, of_index, _ = self.walk.sizes
        kind = Type(f"i{8 * size}")
        number = thread_number(k, self.walk)
        with k.when(self.walk.has(k, number)):
            source, named, target = self.walk.places(k, self.walk.axes(k, number))
            index = k.load(Type(f"i{8 * of_index}"), Pointer("indices", named))
            index = index if index.type == I64 else k.cast("sext", index, I64)
            index = k.select(index < 0, index + k.numbers["extent"], index)
            inside = index.below(k.numbers["extent"])
            place = source + k.select(inside, index, 0) * k.numbers["step"]
            k.store(k.select(inside, k.load(kind, Pointer("input", place)), 0), Pointer("result", target))
        return k


def gathered(x: Any, indices: Any, y: Any, axis: int, numbers: Sequence[int]) -> Launching:
    """The launch that copies elements of an array.

    Parameters
    ----------
    x, indices, y : Lies
        How they lie.
    axis : int
        Which indices name.
    numbers : sequence of int
        Of all three in the plan.
    """
    rank, rest = len(indices.shape), len(x.shape) - axis - 1
    steps = (
        (*x.strides[:axis], *(0,) * rank, *x.strides[axis + 1 :]),
        (*(0,) * axis, *indices.strides, *(0,) * rest), y.strides,
    )  # fmt: skip
    order = sorted(range(len(y.shape)), key=lambda a: -abs(y.strides[a]))
    walk = Walk(
        tuple(y.shape[a] for a in order), tuple(tuple(of[a] for a in order) for of in steps),
        (y.dtype.itemsize, indices.dtype.itemsize, y.dtype.itemsize),
    )  # fmt: skip
    offsets = (x.offset, indices.offset, 0)
    return Launching(Gather(walk, x.shape[axis], x.strides[axis]), tuple(zip(numbers, offsets, strict=True)))
