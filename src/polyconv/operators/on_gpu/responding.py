"""LRN on a GPU: a thread has one element and reads its neighbours along the channels.

It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from polyconv.dataclass import dataclass
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import Kernel, Pointer, Value
from polyconv.operators.on_gpu.launching import Launching
from polyconv.operators.on_gpu.teams import loaded, stored, summed_in
from polyconv.operators.on_gpu.walk import OfElements, Walk, thread_number

__all__ = ["Respond", "Response", "responded"]


@dataclass(frozen=True, slots=True)
class Response:
    """``x / (bias + factor sum x^2) ** (quarters / 4)``, over ``size`` neighbours; ONNX's alpha is ``factor size``."""

    dtype: str
    size: int
    quarters: int
    factor: float
    bias: float


@dataclass(frozen=True, slots=True)
class Respond(OfElements):
    """A kernel to make.

    Parameters
    ----------
    response : Response
    walk : Walk
        Of input and result, in the order of the result's memory.
    axis : int
        Which of the walk's axes is that of channels.
    channels, step : int
        Of the input along it; the step in bytes.
    """

    response: Response
    walk: Walk
    axis: int
    channels: int
    step: int
    arguments: ClassVar[tuple[str, ...]] = ("input", "result")

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"respond {self.response} {self.axis}, {self.walk}"

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        return self.walk.numbers | {"channels": self.channels, "step": self.step}

    def kernel(self) -> Kernel:
        """The kernel."""
        k, of = Kernel("respond", self.arguments, self.threads, numbers=tuple(self.numbers)), self.response
        wide = ELEMENTS[summed_in(of.dtype)]
        number = thread_number(k, self.walk)
        with k.when(self.walk.has(k, number)):
            axes = self.walk.axes(k, number)
            source, target = self.walk.places(k, axes)
            total = k.variable(0, wide)
            for far in range(-((of.size - 1) // 2), of.size // 2 + 1):
                with k.when((axes[self.axis] + far).below(k.numbers["channels"])):
                    near = loaded(k, of.dtype, wide, Pointer("input", source + k.numbers["step"] * far))
                    total.set(total.get() + near * near)
            x = loaded(k, of.dtype, wide, Pointer("input", source))
            power = self._power(k, total.get() * of.factor + of.bias)
            stored(k, x / power, of.dtype, Pointer("result", target))
        return k

    def _power(self, k: Kernel, base: Value) -> Value:
        """A power of so many quarters, of roots."""
        root = k.intrinsic("sqrt", base.type, base)
        if self.response.quarters in (2, 4):
            return root if self.response.quarters == 2 else base
        fourth = k.intrinsic("sqrt", base.type, root)
        return fourth if self.response.quarters == 1 else root * fourth


def responded(response: Response, x: Any, y: Any, numbers: Sequence[int]) -> Launching:
    """The launch of LRN on an array that lies as one ``Lies`` says, into another."""
    order = sorted(range(len(y.shape)), key=lambda a: -abs(y.strides[a]))
    steps = tuple(tuple(of.strides[a] for a in order) for of in (x, y))
    walk = Walk(tuple(y.shape[a] for a in order), steps, (y.dtype.itemsize,) * 2)
    kernel = Respond(response, walk, order.index(1), x.shape[1], x.strides[1])
    return Launching(kernel, ((numbers[0], x.offset), (numbers[1], 0)))
