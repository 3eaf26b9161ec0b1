"""Results of which each axis is made of few inputs, on a GPU: a thread has one result.

Axes that stay as they are have no tables.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import I32, I64, Kernel, Pointer, Value, Variable
from polyconv.operators.on_gpu.teams import loaded, stored, summed_in
from polyconv.operators.on_gpu.walk import OfElements, Walk, thread_number

__all__ = ["Sample"]


@dataclass(frozen=True, slots=True)
class Sample(OfElements):
    """A kernel to make.

    Parameters
    ----------
    dtype : str
    walk : Walk
        Of the input along axes without tables, and of the result; axes in the order of the result's memory.
    steps : tuple of int or None
        Of the input along each of these axes that has a table, in bytes.
    most : tuple of int
        Taps of an output at most, for each axis with a table.
    sums : bool
        Whether results are weighted sums; else each is one input.
    filling : number
        What outputs without taps are.
    """

    dtype: str
    walk: Walk
    steps: tuple[int | None, ...]
    most: tuple[int, ...]
    sums: bool
    filling: float

    @property
    def name(self) -> str:
        """All that shapes the code."""
        which = "".join("-" if step is None else "t" for step in self.steps)
        return f"sample {self.dtype} {which}{' sums' * self.sums} {self.filling}, {self.walk}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        kinds = ("counts", "places", "weights") if self.sums else ("counts", "places")
        return "input", "result", *(f"{kind}{at}" for at in range(len(self.most)) for kind in kinds)

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        steps = [step for step in self.steps if step is not None]
        told = {f"step{at}": step for at, step in enumerate(steps)} | {f"most{at}": m for at, m in enumerate(self.most)}
        return self.walk.numbers | told

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("sample", self.arguments, self.threads, numbers=tuple(self.numbers))
        number = thread_number(k, self.walk)
        with k.when(self.walk.has(k, number)):
            axes = self.walk.axes(k, number)
            source, target = self.walk.places(k, axes)
            total = k.variable(0 if self.sums else self.filling, ELEMENTS[summed_in(self.dtype)])
            tables = [at for at, step in zip(axes, self.steps, strict=True) if step is not None]
            self._nest(k, tables, 0, source, None, total)
            stored(k, total.get(), self.dtype, Pointer("result", target))
        return k

    def _nest(self, k: Kernel, axes: Sequence[Value], at: int, place: Value, weight: Value | None, total: Variable
              ) -> None:  # fmt: skip
        """The taps of all axes from one on, each input times the product of its weights."""
        if at == len(axes):
            value = loaded(k, self.dtype, total.type, Pointer("input", place))
            total.set(value if weight is None else total.get() + weight * value)
            return
        count = k.load(I32, Pointer(f"counts{at}", axes[at] * 4))
        if self.sums:
            with k.when(count.equals(0)):
                total.set(self.filling)
        with k.loop(0, count) as tap:
            here = axes[at] * k.numbers[f"most{at}"] + k.cast("zext", tap, I64)
            position = k.cast("zext", k.load(I32, Pointer(f"places{at}", here * 4)), I64)
            own = weight
            if self.sums:
                own = k.load(total.type, Pointer(f"weights{at}", here * total.type.bytes))
                own = own if weight is None else weight * own
            self._nest(k, axes, at + 1, place + position * k.numbers[f"step{at}"], own, total)
