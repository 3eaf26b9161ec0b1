"""A pass over arrays on a GPU: a thread computes an expression for one element.

Elements are counted as the first result has them in memory, so that neighbouring threads store beside each other.  The
expression is the CPU's.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from polyconv.dtypes import DTYPES
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import Kernel, Pointer
from polyconv.operators.along import Along, joined
from polyconv.operators.expression import Expression, evaluated, in_f32
from polyconv.operators.on_gpu.launching import Launching
from polyconv.operators.on_gpu.walk import Walk, thread_number

__all__ = ["Pass", "passed"]

_THREADS = 256


@dataclass(frozen=True, slots=True)
class Pass:
    """A kernel to make.

    Parameters
    ----------
    expression : Expression
    walk : Walk
        Of its inputs, then its results.
    """

    expression: Expression
    walk: Walk
    threads: ClassVar[int] = _THREADS
    shared: ClassVar[int] = 0
    cluster: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"pass {self.walk} {self.expression}"

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-self.walk.size // _THREADS), 1, 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        inputs, results = len(self.expression.inputs), len(self.expression.results)
        return *(f"input{i}" for i in range(inputs)), *(f"result{i}" for i in range(results))

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        return self.walk.numbers

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("pass", self.arguments, _THREADS, numbers=tuple(self.numbers))
        number = thread_number(k, self.walk)
        with k.when(self.walk.has(k, number)):
            offsets = self.walk.places(k, self.walk.axes(k, number))
            places = [Pointer(name, at) for name, at in zip(self.arguments, offsets, strict=True)]
            inputs = len(self.expression.inputs)
            values = [
                k.load(ELEMENTS[dtype], place)
                for dtype, place in zip(self.expression.inputs, places[:inputs], strict=True)
            ]
            for value, place in zip(evaluated(k, in_f32(self.expression), values), places[inputs:], strict=True):
                k.store(value, place)
        return k


def passed(expression: Expression, extents: Sequence[int], operands: Sequence[Along], numbers: Sequence[int]
           ) -> Launching:  # fmt: skip
    """The launch of a pass over arrays of a plan, which have these numbers: inputs, then results."""
    first = operands[len(expression.inputs)].strides
    order = sorted(range(len(extents)), key=lambda axis: -abs(first[axis]))
    turned = [Along(o.offset, tuple(o.strides[a] for a in order)) for o in operands]
    whole, places = joined([extents[a] for a in order], turned)
    dtypes = (expression.dtype(n) for n in (*range(len(expression.inputs)), *expression.results))
    sizes = tuple(DTYPES[dtype].itemsize for dtype in dtypes)
    walk = Walk(tuple(whole), tuple(place.strides for place in places), sizes)
    return Launching(
        Pass(expression, walk), tuple((n, o.offset) for n, o in zip(numbers, operands, strict=True))
    )
