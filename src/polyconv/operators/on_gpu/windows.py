"""Windows that slide over planes on a GPU: a thread takes the elements of one window together.

Results are counted as they lie in memory, channels last or planes.  It must not know operators.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import I64, Kernel, Pointer, Value, both
from polyconv.operators.along import Along
from polyconv.operators.functions import FUNCTIONS
from polyconv.operators.on_gpu.launching import Launching
from polyconv.operators.on_gpu.teams import loaded, stored, summed_in
from polyconv.operators.on_gpu.walk import OfElements, Walk, thread_number

__all__ = ["Slide", "Span", "slid"]

_MOST_UNROLLED = 16
"""Elements of a window that follow each other in the code; beyond them the first axis is a loop."""


@dataclass(frozen=True, slots=True)
class Span:
    """Windows along an axis, as far as they shape code."""

    taps: int
    stride: int
    dilation: int
    begin: int


@dataclass(frozen=True, slots=True)
class Slide(OfElements):
    """A kernel to make.

    Parameters
    ----------
    function, dtype : str
        ``Max``, or ``Add`` for means; the type.
    neutral : number
        What changes no result.
    spans : tuple of Span
        One a spatial axis.
    walk : Walk
        The result, axes in the order of its memory.
    order : tuple of int
        Which axis of the array each of them is.
    inputs : tuple of int
        Spatial extents of the input.
    steps : tuple of int
        Of the input, in bytes, in the order of its axes.
    """

    function: str
    dtype: str
    neutral: float
    spans: tuple[Span, ...]
    walk: Walk
    order: tuple[int, ...]
    inputs: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"windows {self.function} {self.dtype} {self.neutral} {self.spans} {self.order}, {self.walk}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        return "input", "result", *(("divisors",) if self.function == "Add" else ())

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        told = {f"input{a}": extent for a, extent in enumerate(self.inputs)}
        told |= {f"x_step{a}": step for a, step in enumerate(self.steps)}
        told |= {f"out{a}": extent for a, extent in zip(self.order, self.walk.extents, strict=True) if a > 2}
        return self.walk.numbers | told

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("windows", self.arguments, self.threads, numbers=tuple(self.numbers))
        number = thread_number(k, self.walk)
        with k.when(self.walk.has(k, number)):
            found = self.walk.axes(k, number)
            (target,) = self.walk.places(k, found)
            axes = [found[self.order.index(a)] for a in range(len(found))]
            total = self._window(k, axes)
            if self.function == "Add":
                at = k.value(0, I64)
                for a, here in enumerate(axes[2:]):
                    at = here if a == 0 else at * k.numbers[f"out{2 + a}"] + here
                total = total / k.load(total.type, Pointer("divisors", at * total.type.bytes))
            stored(k, total, self.dtype, Pointer("result", target))
        return k

    def _window(self, k: Kernel, axes: Sequence[Value]) -> Value:
        """The elements of a window taken together, taps of the last axis innermost."""
        row = DTYPES[summed_in(self.dtype)]
        wide = ELEMENTS[row.name]
        total = k.variable(self.neutral, wide)
        plane = axes[0] * k.numbers["x_step0"] + axes[1] * k.numbers["x_step1"]

        def place(a: int, tap: Value | int) -> tuple[Value, Value]:
            """Bytes to a tap, and whether it lies inside."""
            span = self.spans[a]
            at = axes[2 + a] * span.stride + (tap * span.dilation - span.begin)
            return at * k.numbers[f"x_step{2 + a}"], at.below(k.numbers[f"input{a}"])

        def taken(taps: Sequence[Value | int]) -> None:
            at, inside = plane, None
            for a, tap in enumerate(taps):
                step, fits = place(a, tap)
                at, inside = at + step, both(inside, fits)
            with k.only(inside):
                value = loaded(k, self.dtype, wide, Pointer("input", at))
                total.set(FUNCTIONS[self.function].emit(k, row, total.get(), value))

        counts = [span.taps for span in self.spans]
        if math.prod(counts) <= _MOST_UNROLLED:
            for taps in itertools.product(*map(range, counts)):
                taken(taps)
            return total.get()
        with k.loop(0, counts[0]) as first:
            for rest in itertools.product(*map(range, counts[1:])):
                taken((k.cast("zext", first, I64), *rest))
        return total.get()


def slid(function: str, dtype: str, neutral: float, spans: Sequence[Span], shapes: tuple[Sequence[int], Sequence[int]],
         x: Along, y: Along, numbers: Sequence[int]) -> Launching:  # fmt: skip
    """The launch of windows.

    Parameters
    ----------
    shapes : (sequence of int, sequence of int)
        Of the input and of the result.
    x, y : Along
        How they lie.
    numbers : sequence of int
        Of input, result and, for means, divisors in the plan.
    """
    order = tuple(sorted(range(len(shapes[1])), key=lambda a: -abs(y.strides[a])))
    size = DTYPES[dtype].itemsize
    walk = Walk(tuple(shapes[1][a] for a in order), (tuple(y.strides[a] for a in order),), (size,))
    kernel = Slide(function, dtype, neutral, tuple(spans), walk, order, tuple(shapes[0][2:]), x.strides)
    offsets = (x.offset, y.offset, 0)
    return Launching(kernel, tuple(zip(numbers, offsets, strict=False)))
