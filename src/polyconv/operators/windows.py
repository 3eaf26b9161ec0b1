"""Windows that slide over planes: the largest element or the sum of each, as a driver.

Turns the taps and strides of windows into a step.  The one idea: the lines of a window are taken together first, into a
line of the workspace that has its padding at both ends; windows along that line then meet no border.  So a window of
3 x 3 costs three loads a line, not nine.  That is done for some rows of the result at a time: what has just been stored
cannot be read at once, since the vectors along a line begin elsewhere.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Mask, Module, Type, Value, vector
from polyconv.kernels.record import Memory, Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.functions import FUNCTIONS
from polyconv.operators.job import Conditions, Drive, Step, address_of
from polyconv.operators.planes import PlaneRows, cut_planes, some_rows
from polyconv.operators.rows import each_block, each_vector, read, write

__all__ = ["Axis", "Windows", "window_step", "workspace_of"]


_MOST_LINES = 8
_LINES_BYTES = 1 << 14
"""Of the lines of some rows of results: less than half the nearest cache."""
_CHAINS = 4
"""Vectors that are taken together at a time: one waits for the one before it."""


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
    """All that shapes the code: ``Max`` or ``Add``, the type, the windows along the last axis, and if all are deep."""

    function: str
    dtype: str
    taps: int
    stride: int
    dilation: int
    vector_bytes: int
    masks: bool
    deep: bool = True

    def __str__(self) -> str:
        return f"{self.function} {self.dtype} k{self.taps} s{self.stride} d{self.dilation}{' deep' * self.deep}"

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
    lines: Word
    out: Word
    upper: _Lines
    lower: _Lines
    divisors: Memory


def workspace_of(windows: Windows, last: Axis) -> int:
    """Bytes of the lines in a thread's workspace."""
    size = _held(windows, last) * DTYPES[windows.dtype].itemsize
    return size * _lines(size)


def _lines(size: int) -> int:
    """How many lines of so many bytes there are."""
    return max(1, min(_MOST_LINES, _LINES_BYTES // size))


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
        rows=rows, begin=last.begin, width=last.inp, held=(held := _held(windows, last)) * size,
        lines=_lines(held * size), out=last.out,
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
        with k.loop(0, w.held * w.lines, kind.bytes) as each:
            k.store(neutral, given.workspace + each.index)

        def rows(row: Value, count: Value, of_x: Buffer, of_y: Buffer) -> None:
            with k.loop(0, count) as each:
                out, place, upper = row + each.index, of_x, None
                if spec.deep:
                    first, count_there = _range(k, w.upper, out // w.lower.outs)
                    out, place, upper = out % w.lower.outs, place + first * w.upper.step, (count_there, w.upper.pace)
                first, count_there = _range(k, w.lower, out)
                line = given.workspace + each.index * w.held + w.begin * size
                place, lower = place + first * w.lower.step, (count_there, w.lower.pace)
                _together(k, spec, kind, place, upper, lower, line, w.width)
            with k.loop(0, count) as each:
                done, divisors = each.index * w.rows.y_row, w.divisors + (row + each.index) * w.rows.y_row
                _along(k, spec, kind, given.workspace + each.index * w.held, of_y + done, w.out, divisors)

        some_rows(k, given, w.rows, w.lines, rows)


def _range(k: Module, lines: _Lines, index: Value) -> tuple[Value, Value]:
    """First position and count of an output's taps."""
    return k.word(lines.ranges, index * 2), k.word(lines.ranges, index * 2 + 1)


def _joined(k: Module, spec: Windows, a: Value, b: Value) -> Value:
    return FUNCTIONS[spec.function].emit(k, DTYPES[spec.dtype], a, b)


_Lined = tuple[Value, Value]
"""How many lines, and bytes from one to the next."""


def _together(k: Module, spec: Windows, kind: Type, place: Buffer, upper: _Lined | None, lower: _Lined, line: Buffer,
              width: Value) -> None:  # fmt: skip
    """Take the lines of a window together, into the workspace."""

    def near(source: Buffer, type_: Type, mask: Mask | None, held: Sequence[Value]) -> Sequence[Value]:
        with k.loop(0, lower[0], carry=held) as each:
            there = k.rebase(source + each.index * lower[1])
            loaded = [read(k, type_, there + j * type_.bytes, mask) for j in range(len(held))]
            each.next(*(_joined(k, spec, *pair) for pair in zip(each.values, loaded, strict=True)))
        return each.results

    def some(at: Value, type_: Type, count: int, mask: Mask | None) -> None:
        here, held = at * type_.element_bytes, [k.constant(type_, spec.neutral)] * count
        if upper is None:
            found = near(place + here, type_, mask, held)
        else:
            with k.loop(0, upper[0], carry=held) as far:
                far.next(*near(place + far.index * upper[1] + here, type_, mask, far.values))
            found = far.results
        for j, value in enumerate(found):
            write(k, value, line + here + j * type_.bytes, mask)

    each_block(k, kind, 0, width, spec.masks, _CHAINS, some)


def _along(k: Module, spec: Windows, kind: Type, line: Buffer, y: Buffer, out: Value, divisors: Buffer) -> None:
    """Windows along the line of the workspace, stored as results; sums are divided."""
    size = kind.element_bytes

    def some(at: Value, type_: Type, mask: Mask | None) -> None:
        values = _strided(k, type_, k.rebase(line + at * (spec.stride * size)), spec)
        total = values[0]
        for value in values[1:]:
            total = _joined(k, spec, total, value)
        if spec.function == "Add":
            total = total / read(k, type_, divisors + at * size, mask)
        write(k, total, y + at * size, mask)

    each_vector(k, kind, 0, out, spec.masks, some)


def _strided(k: Module, type_: Type, place: Buffer, spec: Windows) -> list[Value]:
    """For each tap elements that lie a stride apart; of two vectors with stride 2 there are even and odd ones."""
    size, offsets = type_.element_bytes, range(0, spec.taps * spec.dilation, spec.dilation)
    if not type_.lanes or spec.stride == 1:
        return [k.load(type_, place + offset * size) for offset in offsets]
    if spec.stride > 2:
        apart = k.constant(INT, spec.stride * size)
        return [k.gather(type_, place + offset * size, apart) for offset in offsets]
    firsts = sorted({offset // 2 * 2 for offset in offsets})
    pairs = {at: (k.load(type_, place + at * size), k.load(type_, place + at * size + type_.bytes)) for at in firsts}
    return [k.shuffle(*pairs[offset // 2 * 2], range(offset % 2, 2 * type_.lanes, 2)) for offset in offsets]
