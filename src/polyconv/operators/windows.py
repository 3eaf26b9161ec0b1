"""Windows that slide over planes: the largest element or the sum of each, as a driver.

Turns the taps and strides of windows into a step.  The one idea: the lines of a window are taken together first, into a
line of the workspace that has its padding at both ends; windows along that line then meet no border.  So a window of
3 x 3 costs three loads a line, not nine.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Mask, Module, Type, Value, vector
from polyconv.kernels.record import Memory, Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.functions import FUNCTIONS
from polyconv.operators.job import Conditions, Drive, Step, address_of
from polyconv.operators.planes import PlaneRows, cut_planes, each_row
from polyconv.operators.rows import each_vector, read, write

__all__ = ["Axis", "Windows", "window_step", "workspace_of"]


@dataclass(frozen=True, slots=True)
class Axis:
    """Windows along an axis: extents, taps and how they lie."""

    inp: int
    out: int
    taps: int
    stride: int
    dilation: int
    begin: int

    def inside(self) -> list[tuple[int, int]]:
        """For each output the first of its taps' positions that lies inside, and how many do."""
        found = []
        for o in range(self.out):
            positions = [p for t in range(self.taps) if 0 <= (p := o * self.stride - self.begin + t * self.dilation)
                         < self.inp]  # fmt: skip
            found.append((positions[0] if positions else 0, len(positions)))
        return found


@dataclass(frozen=True, slots=True)
class Windows:
    """All that shapes the code: ``Max`` or ``Add``, the type, and the windows along the last axis."""

    function: str
    dtype: str
    taps: int
    stride: int
    dilation: int
    vector_bytes: int
    masks: bool

    def __str__(self) -> str:
        return f"{self.function} {self.dtype} k{self.taps} s{self.stride} d{self.dilation}"

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.vector_bytes // DTYPES[self.dtype].itemsize

    @property
    def neutral(self) -> float:
        """What changes no result."""
        if self.function == "Add":
            return 0
        row = DTYPES[self.dtype]
        return float("-inf") if row.is_float else row.limits[0]


class _Lines(Record):
    """Where the lines of windows lie: two outer axes, each with steps in bytes and a table of firsts and counts."""

    outs: Word
    step: Word
    pace: Word
    ranges: Memory


class _Sliding(Record):
    """Words of the driver; strides in bytes, widths in elements."""

    rows: PlaneRows
    begin: Word
    width: Word
    held: Word
    out: Word
    upper: _Lines
    lower: _Lines
    divisors: Memory


def workspace_of(windows: Windows, last: Axis) -> int:
    """Bytes of the line in a thread's workspace."""
    return _held(windows, last) * DTYPES[windows.dtype].itemsize


def _held(windows: Windows, last: Axis) -> int:
    """Elements of that line: what windows reach, and what vectors read beyond it."""
    lanes = windows.lanes
    reach = max(last.begin + last.inp, (last.out - 1) * last.stride + (last.taps - 1) * last.dilation + 1)
    return -(-(reach + 2 * lanes * max(1, last.stride)) // lanes) * lanes


def window_step(windows: Windows, axes: Sequence[Axis], planes: tuple[int, int], strides: Sequence[int], offset: int,
                divisors: NDArray[np.float64] | None, c: Conditions, threads: int) -> Step:  # fmt: skip
    """The step of windows over planes.

    Parameters
    ----------
    axes : sequence of Axis
        Three; the first ones have one output and one tap where the tensor has fewer.
    planes : (int, int)
        Batch and channels.
    strides : sequence of int
        Of batch, channels, and the two outer axes, in bytes; along the last one elements lie together.
    divisors : array or None
        Of averages: how many elements count, for each window of a plane.
    """
    size = DTYPES[windows.dtype].itemsize
    upper, lower, last = axes
    rows, items = cut_planes(planes, upper.out * lower.out, last.out * size, strides, offset, threads)
    keep: list[object] = []

    def lines(axis: Axis, stride: int) -> _Lines:
        table = np.array([v for pair in axis.inside() for v in pair], np.int64)
        return _Lines(outs=axis.out, step=stride, pace=axis.dilation * stride, ranges=table)

    words = filled(_Sliding(
        rows=rows, begin=last.begin, width=last.inp, held=_held(windows, last), out=last.out,
        upper=lines(upper, strides[2]), lower=lines(lower, strides[3]),
        divisors=np.ones(1) if divisors is None else divisors.astype(DTYPES[windows.dtype].numpy),
    ), keep)  # fmt: skip
    driver = address_of(f"windows {windows}", lambda k, name: _drive(k, name, windows), c)
    return Step(driver, words, items, tuple(keep))


def _drive(k: Module, name: str, spec: Windows) -> None:
    """Add the driver; its operands are the tensor and the result."""
    size = DTYPES[spec.dtype].itemsize
    kind = vector(LLVM_NAMES[spec.dtype], spec.lanes)
    with k.function(name, Drive) as given:
        w = at_once(_Sliding.read(k, given.words))
        neutral = k.constant(kind, spec.neutral)
        with k.loop(0, w.held, spec.lanes) as each:
            k.store(neutral, given.workspace + each.index * size)
        line = given.workspace + w.begin * size

        def row(out: Value, of_x: Buffer, of_y: Buffer) -> None:
            upper, lower = _range(k, w.upper, out // w.lower.outs), _range(k, w.lower, out % w.lower.outs)
            place = of_x + upper[0] * w.upper.step + lower[0] * w.lower.step
            _together(k, spec, kind, place, (upper[1], w.upper.pace), (lower[1], w.lower.pace), line, w.width)
            _along(k, spec, kind, given.workspace, of_y, w.out, w.divisors + out * w.rows.y_row)

        each_row(k, given, w.rows, row)


def _range(k: Module, lines: _Lines, index: Value) -> tuple[Value, Value]:
    """First position and count of an output's taps."""
    return k.word(lines.ranges, index * 2), k.word(lines.ranges, index * 2 + 1)


def _joined(k: Module, spec: Windows, a: Value, b: Value) -> Value:
    return FUNCTIONS[spec.function].emit(k, DTYPES[spec.dtype], a, b)


_Lined = tuple[Value, Value]
"""How many lines, and bytes from one to the next."""


def _together(k: Module, spec: Windows, kind: Type, place: Buffer, upper: _Lined, lower: _Lined, line: Buffer,
              width: Value) -> None:  # fmt: skip
    """Take the lines of a window together, into the workspace."""

    def some(at: Value, type_: Type, mask: Mask | None) -> None:
        here = at * type_.element_bytes
        with k.loop(0, upper[0], carry=[k.constant(type_, spec.neutral)]) as far:
            with k.loop(0, lower[0], carry=far.values) as near:
                source = place + far.index * upper[1] + near.index * lower[1] + here
                near.next(_joined(k, spec, near.values[0], read(k, type_, source, mask)))
            far.next(*near.results)
        write(k, far.results[0], line + here, mask)

    each_vector(k, kind, 0, width, spec.masks, some)


def _along(k: Module, spec: Windows, kind: Type, line: Buffer, y: Buffer, out: Value, divisors: Buffer) -> None:
    """Windows along the line of the workspace, stored as results; sums are divided."""
    size = kind.element_bytes

    def some(at: Value, type_: Type, mask: Mask | None) -> None:
        total = None
        for tap in range(spec.taps):
            value = _strided(k, type_, line + at * (spec.stride * size) + tap * spec.dilation * size, spec.stride)
            total = value if total is None else _joined(k, spec, total, value)
        assert total is not None
        if spec.function == "Add":
            total = total / read(k, type_, divisors + at * size, mask)
        write(k, total, y + at * size, mask)

    each_vector(k, kind, 0, out, spec.masks, some)


def _strided(k: Module, type_: Type, place: Buffer, stride: int) -> Value:
    """Elements that lie a stride apart."""
    if not type_.lanes or stride == 1:
        return k.load(type_, place)
    if stride == 2:
        pair = k.load(type_, place), k.load(type_, place + type_.bytes)
        return k.shuffle(*pair, range(0, 2 * type_.lanes, 2))
    return k.gather(type_, place, k.constant(INT, stride * type_.element_bytes))
