"""Products of many pairs of matrices on a GPU: the kernels of a convolution with a group for each pair.

A row of the left matrix is a pixel, a column of the right one an output channel.  The right one is packed by each run,
as weights are once.  It must not know operators.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import Unsupported
from polyconv.gpu.device import device
from polyconv.gpu.forms import products
from polyconv.gpu.geometry import Lie
from polyconv.gpu.job import Form, Job
from polyconv.gpu.kernels.move import Arrange, Axis, Turn
from polyconv.gpu.placing import MOST_BYTES
from polyconv.operators.job import Planning
from polyconv.operators.lying import Lies
from polyconv.operators.on_gpu.launching import Launching
from polyconv.problem.problem import Problem

__all__ = ["Matrices", "multiplied"]


@dataclass(frozen=True, slots=True)
class Matrices:
    """How many pairs of matrices, of how many rows, columns and terms of a sum."""

    dtype: str
    pairs: int
    rows: int
    columns: int
    terms: int


def multiplied(planning: Planning, of: Matrices, numbers: tuple[int, int, int], steps: tuple[int, ...]) -> None:
    """Add kernels that multiply two arrays of a plan into a third.

    Parameters
    ----------
    steps : tuple of int
        Of all three from a pair to the next, in bytes.

    Raises
    ------
    Unsupported
        If an array is too large for addresses of 32 bits.
    """
    a, b, y = (planning.lie(number) for number in numbers)
    most = of.pairs * max(of.rows, of.columns) * max(64, of.terms, of.columns) * 8
    if max(a.size, b.size, y.size, most) >= MOST_BYTES:
        raise Unsupported(f"products of {of.pairs} pairs of matrices need 2 GiB or more in one array; divide them")
    size = a.dtype.itemsize
    pair_a, pair_b, pair_y = (step // size for step in steps)
    form = _form(planning, of, _lie(a, -1, -2, pair_a), _lie(y, -1, -2, pair_y))
    (step,) = form.steps
    x, x_offset = numbers[0], a.offset
    if form.moved is not None:
        x, x_offset = _made(planning, form.moved, (x, x_offset)), 0
    w = _made(planning, _packed(step.weights, of, b, pair_b), (numbers[1], b.offset))
    operands = {"x": (x, x_offset), "w": (w, 0), "y": (numbers[2], y.offset)}
    kernel = step.kernel
    planning.launch(lambda: [Launching(kernel, tuple(operands[name] for name in kernel.arguments))])


def _packed(weights: Arrange, of: Matrices, b: Lies, pair: int) -> Arrange:
    """What brings right matrices into the order of weights: by group, output channel, input channel."""
    size, (_, _, _, channel) = b.dtype.itemsize, weights.axes
    axes = (
        Axis(of.pairs, pair, of.pairs), Axis(of.columns, b.strides[-1] // size, of.columns),
        Axis(channel.extent, b.strides[-2] // size, of.terms),
    )  # fmt: skip
    return replace(weights, axes=axes)


def _lie(lie: Lies, channel: int, pixel: int, pair: int) -> Lie:
    """How an array lies as pixels of channels, of which a group is a pair."""
    size = lie.dtype.itemsize
    step = 0 if lie.shape[pixel] == 1 else lie.strides[pixel] // size
    c = 1 if lie.shape[channel] == 1 else lie.strides[channel] // size
    return Lie(0, c, (step,), lie.align, pair)


def _form(planning: Planning, of: Matrices, x: Lie, y: Lie) -> Form:
    """The kernels predicted fastest."""
    p = Problem.parse(
        f"conv {of.dtype} NHWC n1 c{of.pairs * of.terms} i{of.rows} m{of.pairs * of.columns} k1 g{of.pairs}"
    )
    job = Job(p, x, y, None, (of.terms, 1, 1), planning.c.accuracy, device(planning.c.device))
    return min(products(job), key=lambda form: form.seconds)


def _made(planning: Planning, wanted: Arrange | Turn, source: tuple[int, int]) -> int:
    """An array that a kernel makes of another one."""
    made = planning.between((wanted.bytes,), np.uint8, alike=False)
    planning.launch(lambda: [Launching(wanted, (source, (made, 0)))])
    return made
