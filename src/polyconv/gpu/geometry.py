"""What a kernel is told of a convolution: extents of one group, where operands lie, what follows the sum.

A convolution of any rank is one or more sweeps (``lowering.sweep``), each of which is one geometry.  Everything here
is a constant in the code that is made of it.  It must not know kernels.
"""

from __future__ import annotations

import math

from polyconv.dataclass import dataclass
from polyconv.lowering.sweep import Axis, Sweep
from polyconv.problem.epilogue import Activation
from polyconv.problem.quantisation import QUANTITIES

__all__ = ["NOTHING", "Geometry", "Lie", "OfGeometry", "Quantities", "packed"]


@dataclass(frozen=True, slots=True)
class Lie:
    """How an operand lies: steps, in elements, of batch, channel and spatial axes.

    Parameters
    ----------
    align : int
        The largest power of two, up to 16, that divides the address in bytes.
    group : int or None
        Of groups, where their channels do not follow each other.
    """

    n: int
    c: int
    spatial: tuple[int, ...]
    align: int = 16
    group: int | None = None

    def aligned(self, itemsize: int) -> int:
        """Bytes, up to 16, to which the channels of every pixel are aligned where channels lie together."""
        steps = [step * itemsize for step in (self.n, *self.spatial, self.group or 0)]
        return math.gcd(self.align, *steps)

    def of_group(self, channels: int) -> int:
        """Step of groups of so many channels."""
        return channels * self.c if self.group is None else self.group


def packed(n: int, c: int, extents: tuple[int, ...]) -> Lie:
    """Channels last, without gaps."""
    steps = [c]
    for extent in reversed(extents[1:]):
        steps.append(steps[-1] * extent)
    return Lie(steps[-1] * extents[0] if extents else c, 1, tuple(reversed(steps)) if extents else ())


@dataclass(frozen=True, slots=True)
class Quantities:
    """How zero points and scales of integers come to a kernel.

    Each is a word: empty where there is none, ``number`` where a launch is told it, else an argument that points to
    ``one`` value or to one for ``each`` output channel.
    """

    zx: str = ""
    zw: str = ""
    zy: str = ""
    sx: str = ""
    sw: str = ""
    sy: str = ""
    zr: str = ""
    sr: str = ""
    zs: str = ""
    ss: str = ""

    def named(self, *words: str) -> tuple[str, ...]:
        """Names of those that come in one of these ways."""
        return tuple(name for name in QUANTITIES if getattr(self, name) in words)


NOTHING = Quantities()
"""Of a problem without zero points and scales."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """One sweep of a convolution.

    Parameters
    ----------
    n, groups : int
    c, m : int
        Channels of a group: inputs and outputs.
    axes : tuple of Axis
        Spatial axes; outputs of the sweep that are not the tensor's are told by ``first_out`` and ``out_step``.
    x, y : Lie
    residual : Lie or None
    x_type, w_type, y_type : str
        Names of ``DTYPES``.
    bias : bool
        Whether a bias is added; it lies as numbers of the type of the sums.
    activation : Activation or None
    saturate : bool
        Whether integers that leave the range of the result are clamped.
    quantities : Quantities
        What kernels subtract from inputs, and what follows integer sums.  Weights come less their zero points.
    """

    n: int
    groups: int
    c: int
    m: int
    axes: Sweep
    x: Lie
    y: Lie
    residual: Lie | None
    x_type: str
    w_type: str
    y_type: str
    bias: bool
    activation: Activation | None
    saturate: bool
    quantities: Quantities = NOTHING

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers that a kernel takes."""
        bias, residual = ("b",) * self.bias, ("r",) * (self.residual is not None)
        return "x", "w", *bias, *residual, *self.quantities.named("one", "each"), "y"

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers that a launch is told, of which the code does not depend."""
        return dict.fromkeys(self.quantities.named("number"), 0)

    @property
    def rescales(self) -> bool:
        """Whether integer sums are multiplied by scales and rounded."""
        return self.quantities.sx != ""

    @property
    def pixels(self) -> int:
        """Outputs of a channel, of the whole batch."""
        return self.n * math.prod(axis.out for axis in self.axes)

    @property
    def taps(self) -> int:
        """Products of an input channel that an output has at most."""
        return math.prod(axis.taps for axis in self.axes)

    @property
    def is_padded(self) -> bool:
        """Whether some tap of some output lies outside the input."""
        return any(reaches_out(axis) for axis in self.axes)


class OfGeometry:
    """What launches of kernels are told of a geometry that shapes them."""

    __slots__ = ()
    g: Geometry

    @property
    def cluster(self) -> int:
        """Blocks that reach each other's shared memory."""
        return 1

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers, behind the pointers."""
        return self.g.numbers

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of pointers."""
        return self.g.arguments


def reaches_out(axis: Axis) -> bool:
    """Whether some tap of some output of an axis lies outside the input."""
    last = (axis.out - 1) * axis.stride - axis.pad + (axis.taps - 1) * axis.dilation
    return axis.pad > 0 or last >= axis.inp
