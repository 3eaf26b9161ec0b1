"""A pass over arrays on a GPU: a thread computes an expression for one element, or for some that lie together.

Elements are counted as the first result has them in memory, so that neighbouring threads store beside each other.
Where all operands allow it, a thread loads and stores up to 16 bytes at once.  The expression is the CPU's.  It must
not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import Kernel, Pointer, Type, Value
from polyconv.operators.along import Along, joined
from polyconv.operators.expression import Expression, evaluated, in_f32
from polyconv.operators.on_gpu.launching import Launching
from polyconv.operators.on_gpu.walk import OfElements, Walk, thread_number

__all__ = ["Pass", "passed"]


@dataclass(frozen=True, slots=True)
class Pass(OfElements):
    """A kernel to make.

    Parameters
    ----------
    expression : Expression
    walk : Walk
        Of its inputs, then its results; its last axis counts vectors.
    lanes : int
        Elements of a vector: 1, 2, 4 or 8.
    """

    expression: Expression
    walk: Walk
    lanes: int = 1

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"pass {self.walk} by {self.lanes} {self.expression}"

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
        k = Kernel("pass", self.arguments, self.threads, numbers=tuple(self.numbers))
        number = thread_number(k, self.walk)
        with k.when(self.walk.has(k, number)):
            offsets = self.walk.places(k, self.walk.axes(k, number))
            places = [Pointer(name, at) for name, at in zip(self.arguments, offsets, strict=True)]
            inputs = len(self.expression.inputs)
            repeated = [steps[-1] == 0 for steps in self.walk.steps]
            loaded = [
                self._loaded(k, ELEMENTS[dtype], place, is_repeated=one)
                for dtype, place, one in zip(self.expression.inputs, places[:inputs], repeated, strict=False)
            ]
            expression = in_f32(self.expression)
            made = [evaluated(k, expression, values) for values in zip(*loaded, strict=True)]
            for values, place in zip(zip(*made, strict=True), places[inputs:], strict=True):
                whole = values[0] if self.lanes == 1 else k.vector(values)
                k.store(whole, place, whole.type.bytes)
        return k

    def _loaded(self, k: Kernel, kind: Type, place: Pointer, *, is_repeated: bool) -> list[Value]:
        """A vector's elements, or one that all of them meet."""
        if self.lanes == 1 or is_repeated:
            return [k.load(kind, place)] * self.lanes
        whole = Type(kind.element, self.lanes)
        return k.elements(k.load(whole, place, whole.bytes))


def passed(expression: Expression, extents: Sequence[int], operands: Sequence[Along], numbers: Sequence[int],
           aligns: Sequence[int]) -> Launching:  # fmt: skip
    """The launch of a pass over arrays of a plan, which have these numbers: inputs, then results.

    Parameters
    ----------
    aligns : sequence of int
        Powers of two, up to 16, that divide the addresses at which operands begin.
    """
    first = operands[len(expression.inputs)].strides
    order = sorted(range(len(extents)), key=lambda axis: -abs(first[axis]))
    turned = [Along(o.offset, tuple(o.strides[a] for a in order)) for o in operands]
    whole, places = joined([extents[a] for a in order], turned)
    dtypes = (expression.dtype(n) for n in (*range(len(expression.inputs)), *expression.results))
    sizes = tuple(DTYPES[dtype].itemsize for dtype in dtypes)
    steps = [place.strides for place in places]
    lanes = _lanes(whole, steps, sizes, aligns, len(expression.inputs))
    walk = Walk(
        (*whole[:-1], whole[-1] // lanes), tuple((*step[:-1], step[-1] * lanes) for step in steps),
        tuple(size * lanes for size in sizes),
    )  # fmt: skip
    offsets = tuple((n, o.offset) for n, o in zip(numbers, operands, strict=True))
    return Launching(Pass(expression, walk, lanes), offsets)


def _lanes(extents: Sequence[int], steps: Sequence[Sequence[int]], sizes: Sequence[int], aligns: Sequence[int],
           inputs: int) -> int:  # fmt: skip
    """Elements that a thread may load and store at once: of each operand they lie together, or inputs are repeated."""

    def allows(at: int, lanes: int) -> bool:
        *outer, last = steps[at]
        size = sizes[at] * lanes
        if last == 0 and at < inputs:
            return True
        return last == sizes[at] and size <= 16 and aligns[at] % size == 0 and not any(step % size for step in outer)

    wide = (lanes for lanes in (8, 4, 2) if extents[-1] % lanes == 0)
    return next((lanes for lanes in wide if all(allows(at, lanes) for at in range(len(steps)))), 1)
