"""What is computed on a GPU, and a way to compute it, as data."""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.gpu.device import Device
from polyconv.gpu.geometry import NOTHING, Lie, Quantities
from polyconv.gpu.kernels import move
from polyconv.gpu.kernels.deformable import Deformable
from polyconv.gpu.kernels.depthwise import Depthwise
from polyconv.gpu.kernels.direct import Direct
from polyconv.gpu.kernels.gemm import Gemm
from polyconv.gpu.kernels.patch import Patch
from polyconv.gpu.kernels.plain import Plain
from polyconv.gpu.kernels.zeros import Compensation, Padding
from polyconv.problem.problem import Problem

__all__ = ["Form", "Job", "Step"]


@dataclass(frozen=True, slots=True)
class Job:
    """A problem on a device, and how its operands lie.

    Parameters
    ----------
    problem : Problem
    x, y : Lie
    residual : Lie or None
    w : tuple of int
        Steps of the weights, in elements, in the order of their axes.
    accuracy : str
        ``fast``, ``strict`` or ``tf32``.
    device : Device
    limit : int or None
        Most bytes beyond the result.
    quantities : Quantities
    offset, mask : Lie or None
        Of a deformable convolution; the step of its channels is that of offset groups times taps.
    """

    problem: Problem
    x: Lie
    y: Lie
    residual: Lie | None
    w: tuple[int, ...]
    accuracy: str
    device: Device
    limit: int | None = None
    quantities: Quantities = NOTHING
    offset: Lie | None = None
    mask: Lie | None = None


Kernels = Deformable | Depthwise | Direct | Gemm | Patch | Plain


@dataclass(frozen=True)
class Step:
    """A kernel, and what makes the arrays that it reads and that are made once.

    Parameters
    ----------
    kernel : Kernels
    weights : Arrange
        Of its sweep.
    compensation : Compensation or None
        Where zero points of inputs stand in the bias.
    padding : Padding or None
        Where padding is read.
    """

    kernel: Kernels
    weights: move.Arrange
    compensation: Compensation | None = None
    padding: Padding | None = None


@dataclass(frozen=True)
class Form:
    """A way to compute a job.

    Parameters
    ----------
    algorithm : str
    arithmetic : str
        What fixes the bits of results.
    moved : Arrange, Turn or None
        What makes a copy of the input that kernels read in its place.
    steps : tuple of Step
        One a sweep.
    """

    algorithm: str
    arithmetic: str
    moved: move.Arrange | move.Turn | None
    steps: tuple[Step, ...]
    seconds: float

    @property
    def workspace(self) -> int:
        """Bytes beyond the result."""
        return 0 if self.moved is None else self.moved.bytes

    def __str__(self) -> str:
        words = self.algorithm, self.steps[0].kernel.shape, "moved" if self.moved else ""
        return " ".join(word for word in words if word)
