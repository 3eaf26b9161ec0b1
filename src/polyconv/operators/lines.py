"""Lines that are brought to one scale: softmax and its logarithm, and mean 0 with variance 1, as drivers.

Turns the extents and strides of an array into a step.  A line is all that is taken together: its elements lie beside
each other, and vectors run along it, or it goes across rows, and a vector holds as many lines as it has lanes.  The one
idea: a line is read two or three times while it is in the nearest cache.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels import mathfn
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.logarithm import logarithm
from polyconv.kernels.record import Memory, Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.job import Conditions, Drive, Step, address_of
from polyconv.operators.rows import Some, each_block, each_vector, read, write
from polyconv.operators.together import CHAINS, Walk, added, larger, raised, spread, taken_together

__all__ = ["LinesSpec", "Place", "Space", "line_step"]


@dataclass(frozen=True, slots=True)
class LinesSpec:
    """All that shapes the code.

    Parameters
    ----------
    function : str
        ``Softmax``, ``LogSoftmax`` or ``Normal``.
    dtype : str
    along : bool
        Whether vectors run along lines; else they run across them.
    scaled : str
        What scales and shifts belong to: ``element`` of a line, ``part`` of one, ``pixel``, whose elements they
        follow each time, or nothing.
    """

    function: str
    dtype: str
    along: bool
    scaled: str = ""

    def __str__(self) -> str:
        return f"{self.function} {self.dtype} {'along' if self.along else 'across'} {self.scaled}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where lines lie: the first element, and byte strides of the two outer axes and along a line."""

    offset: int
    outer: int
    inner: int
    step: int


@dataclass(frozen=True, slots=True)
class Space:
    """Two outer axes of lines, elements of a line, and how many lines lie side by side; 1 where they do not."""

    outer: int
    inner: int
    length: int
    width: int


class _Lines(Record):
    """Words of the driver; strides in bytes."""

    total: Word
    inner: Word
    rows: Word
    columns: Word
    parts: Word
    length: Word
    width: Word
    x_base: Word
    x_outer: Word
    x_inner: Word
    x_step: Word
    y_outer: Word
    y_inner: Word
    y_step: Word
    repeat: Word
    pieces: Word
    numbers: Memory


def line_step(spec: LinesSpec, space: Space, x: Place, y: Place, pieces: tuple[int, int], epsilon: float,
              c: Conditions, threads: int) -> Step:  # fmt: skip
    """The step of lines.

    Parameters
    ----------
    pieces : (int, int)
        After how many lines scales begin anew, and how many parts of a line have a scale of their own.
    epsilon : float
        Added to variances.
    """
    row = DTYPES[spec.dtype]
    lanes = c.target.vector_bytes // row.itemsize
    total = space.outer * space.inner
    rows = -(-total // (4 * threads)) if threads > 1 else total
    columns = space.width
    if threads > 1 and total < 4 * threads and space.width > lanes:
        columns = -(-space.width // (4 * threads * lanes)) * lanes
    parts = -(-space.width // columns)
    keep: list[object] = []
    words = filled(_Lines(
        total=total, inner=space.inner, rows=rows, columns=columns, parts=parts, length=space.length,
        width=space.width, x_base=x.offset, x_outer=x.outer, x_inner=x.inner, x_step=x.step, y_outer=y.outer,
        y_inner=y.inner, y_step=y.step, repeat=pieces[0], pieces=pieces[1], numbers=np.array([epsilon], row.numpy),
    ), keep)  # fmt: skip
    driver = address_of(f"lines {spec}", lambda k, name: _drive(k, name, spec, lanes, c.target.has_masks), c)
    return Step(driver, words, -(-total // rows) * parts, tuple(keep))


def _drive(k: Module, name: str, spec: LinesSpec, lanes: int, masks: bool) -> None:
    """Add the driver; its operands are the array, the result, and scales and shifts if there are any."""
    kind, size = vector(LLVM_NAMES[spec.dtype], lanes), DTYPES[spec.dtype].itemsize
    with k.function(name, Drive) as given:
        w = at_once(_Lines.read(k, given.words))
        x, y = k.buffer(given.frame) + w.x_base, k.buffer(given.frame, 2)
        scales = [k.buffer(given.frame, 2 * at) for at in (2, 3)] if spec.scaled else []
        first, begin = given.item // w.parts * w.rows, given.item % w.parts * w.columns
        with k.loop(first, k.minimum(first + w.rows, w.total)) as row:
            upper, lower = row.index // w.inner, row.index % w.inner
            source = x + upper * w.x_outer + lower * w.x_inner
            target = y + upper * w.y_outer + lower * w.y_inner
            if spec.along:
                here = row.index % w.repeat * (w.pieces * size) if spec.scaled == "part" else 0
                line = _Line(k, spec, kind, masks, k.rebase(source), k.rebase(target), w, [s + here for s in scales])
                _ALONG[spec.function](line)
            else:
                end = k.minimum(begin + w.columns, w.width)
                _across(_Line(k, spec, kind, masks, source, target, w, scales), begin, end)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line, or several side by side: where they are read and written, and their scales and shifts."""

    k: Module
    spec: LinesSpec
    kind: Type
    masks: bool
    x: Buffer
    y: Buffer
    w: _Lines
    scales: Sequence[Buffer]

    @property
    def along(self) -> Walk:
        """How its elements are walked, if they lie beside each other."""
        return Walk(self.k, self.kind, self.w.length, self.masks)

    def loaded(self, at: Value, type_: Type, mask: Mask | None) -> Value:
        """Its elements from one on."""
        return read(self.k, type_, self.x + at * self.kind.element_bytes, mask)

    def root(self, squares: Value, count: Value) -> Value:
        """One over the root of a mean of squares and epsilon."""
        k, type_ = self.k, squares.type
        epsilon = spread(k, k.load(type_.scalar, self.w.numbers), type_)
        return 1.0 / k.intrinsic("sqrt", type_, squares / count + epsilon)


# -- along a line -------------------------------------------------------------------------------------


def _each(line: _Line, begin: Value | int, end: Value, some: Some) -> None:
    """Do something with all elements of a part of a line."""
    each_vector(line.k, line.kind, begin, end, line.masks, some)


def _softmax_along(line: _Line) -> None:
    """``exp(x - max) / sum``: the exponentials are kept in the result until their sum is known."""
    k, size = line.k, line.kind.element_bytes
    factor = raised(line.along, line.loaded, line.y)

    def scaled(at: Value, type_: Type, mask: Mask | None) -> None:
        place = line.y + at * size
        write(k, read(k, type_, place, mask) * spread(k, factor, type_), place, mask)

    _each(line, 0, line.w.length, scaled)


def _log_softmax_along(line: _Line) -> None:
    """``x - max - ln(sum)`` with the sum of ``exp(x - max)``: the logarithm of a share that may itself be 0."""
    k, size = line.k, line.kind.element_bytes
    top = taken_together(line.along, float("-inf"), line.loaded, partial(larger, k))

    def below(at: Value, type_: Type, mask: Mask | None) -> Value:
        return line.loaded(at, type_, mask) - spread(k, top, type_)

    def power(at: Value, type_: Type, mask: Mask | None) -> Value:
        return mathfn.exponential_below(k, below(at, type_, mask))

    total = logarithm(k, taken_together(line.along, 0.0, power, added))

    def finished(at: Value, type_: Type, mask: Mask | None) -> None:
        write(k, below(at, type_, mask) - spread(k, total, type_), line.y + at * size, mask)

    _each(line, 0, line.w.length, finished)


def _normal_along(line: _Line) -> None:
    """``(x - mean) / sqrt(variance + epsilon)``, times scales, plus shifts: of each element, or of each part."""
    k, size, w = line.k, line.kind.element_bytes, line.w
    count = k.cast("sitofp", w.length, line.kind.scalar)
    mean = taken_together(line.along, 0.0, line.loaded, added) / count

    def centred(at: Value, type_: Type, mask: Mask | None) -> Value:
        return line.loaded(at, type_, mask) - spread(k, mean, type_)

    def squared(at: Value, type_: Type, mask: Mask | None) -> Value:
        value = centred(at, type_, mask)
        return value * value

    factor = line.root(taken_together(line.along, 0.0, squared, added), count)
    if not line.spec.scaled:

        def brought(at: Value, type_: Type, mask: Mask | None) -> None:
            write(k, centred(at, type_, mask) * spread(k, factor, type_), line.y + at * size, mask)

        _each(line, 0, w.length, brought)
        return
    scale, shift = line.scales
    if line.spec.scaled == "element":

        def finished(at: Value, type_: Type, mask: Mask | None) -> None:
            own, more = (read(k, type_, place + at * size, mask) for place in (scale, shift))
            write(k, centred(at, type_, mask) * spread(k, factor, type_) * own + more, line.y + at * size, mask)

        _each(line, 0, w.length, finished)
        return
    if line.spec.scaled == "pixel":
        with k.loop(0, w.length, w.pieces) as pixel:

            def channels(at: Value, type_: Type, mask: Mask | None) -> None:
                own, more = (read(k, type_, place + at * size, mask) for place in (scale, shift))
                value = centred(pixel.index + at, type_, mask) * spread(k, factor, type_)
                write(k, value * own + more, line.y + (pixel.index + at) * size, mask)

            _each(line, 0, w.pieces, channels)
        return
    piece = w.length // w.pieces
    with k.loop(0, w.pieces) as part:
        own, more = (k.load(line.kind.scalar, place + part.index * size) for place in (scale, shift))

        def scaled(at: Value, type_: Type, mask: Mask | None) -> None:
            value = centred(at, type_, mask) * spread(k, factor, type_)
            write(k, value * spread(k, own, type_) + spread(k, more, type_), line.y + at * size, mask)

        _each(line, part.index * piece, part.index * piece + piece, scaled)


# -- across lines -------------------------------------------------------------------------------------


def _across(line: _Line, begin: Value, end: Value) -> None:
    """All lines of some columns: several vectors of them at once, then one, then what is left of one."""
    each_block(line.k, line.kind, begin, end, line.masks, CHAINS, partial(_ACROSS[line.spec.function], line))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Some vectors of lines that lie side by side."""

    line: _Line
    at: Value
    type_: Type
    count: int
    mask: Mask | None

    def places(self, base: Buffer, step: Value, element: Value) -> list[Buffer]:
        """Where an element of each vector's lines lies."""
        first = base + self.at * self.type_.element_bytes + element * step
        return [first + j * self.type_.bytes for j in range(self.count)]

    def loaded(self, element: Value) -> list[Value]:
        """An element of all lines."""
        places = self.places(self.line.x, self.line.w.x_step, element)
        return [read(self.line.k, self.type_, place, self.mask) for place in places]

    def targets(self, element: Value) -> list[Buffer]:
        """Where an element of all lines goes."""
        return self.places(self.line.y, self.line.w.y_step, element)

    def joined(self, neutral: float, of: Callable[[Value], Sequence[Value]], join: Callable[[Value, Value], Value]
               ) -> list[Value]:  # fmt: skip
        """What is found of all elements, joined line by line."""
        k = self.line.k
        with k.loop(0, self.line.w.length, carry=[k.constant(self.type_, neutral)] * self.count) as each:
            each.next(*(join(held, value) for held, value in zip(each.values, of(each.index), strict=True)))
        return list(each.results)


def _softmax_across(line: _Line, at: Value, type_: Type, count: int, mask: Mask | None) -> None:
    """As along a line, for each line of the columns."""
    k, columns = line.k, _Columns(line, at, type_, count, mask)
    tops = columns.joined(float("-inf"), columns.loaded, partial(larger, k))

    def raised(element: Value) -> list[Value]:
        powers = [mathfn.exponential_below(k, v - top) for v, top in zip(columns.loaded(element), tops, strict=True)]
        for power, place in zip(powers, columns.targets(element), strict=True):
            write(k, power, place, mask)
        return powers

    factors = [1.0 / total for total in columns.joined(0.0, raised, added)]
    with k.loop(0, line.w.length) as each:
        for factor, place in zip(factors, columns.targets(each.index), strict=True):
            write(k, read(k, type_, place, mask) * factor, place, mask)


def _log_softmax_across(line: _Line, at: Value, type_: Type, count: int, mask: Mask | None) -> None:
    """As along a line, for each line of the columns."""
    k, columns = line.k, _Columns(line, at, type_, count, mask)
    tops = columns.joined(float("-inf"), columns.loaded, partial(larger, k))

    def below(element: Value) -> list[Value]:
        return [value - top for value, top in zip(columns.loaded(element), tops, strict=True)]

    def powers(element: Value) -> list[Value]:
        return [mathfn.exponential_below(k, value) for value in below(element)]

    totals = [logarithm(k, total) for total in columns.joined(0.0, powers, added)]
    with k.loop(0, line.w.length) as each:
        for value, total, place in zip(below(each.index), totals, columns.targets(each.index), strict=True):
            write(k, value - total, place, mask)


def _normal_across(line: _Line, at: Value, type_: Type, count: int, mask: Mask | None) -> None:
    """As along a line, for each line of the columns."""
    k, columns = line.k, _Columns(line, at, type_, count, mask)
    length = spread(k, k.cast("sitofp", line.w.length, type_.scalar), type_)
    means = [total / length for total in columns.joined(0.0, columns.loaded, added)]

    def centred(element: Value) -> list[Value]:
        return [value - mean for value, mean in zip(columns.loaded(element), means, strict=True)]

    squares = columns.joined(0.0, lambda element: [v * v for v in centred(element)], added)
    factors = [line.root(total, length) for total in squares]
    with k.loop(0, line.w.length) as each:
        scales = [
            spread(k, k.load(type_.scalar, place + each.index * type_.element_bytes), type_) for place in line.scales
        ]
        for value, factor, place in zip(centred(each.index), factors, columns.targets(each.index), strict=True):
            brought = value * factor
            write(k, brought * scales[0] + scales[1] if scales else brought, place, mask)


_ALONG = {"Softmax": _softmax_along, "LogSoftmax": _log_softmax_along, "Normal": _normal_along}
_ACROSS = {"Softmax": _softmax_across, "LogSoftmax": _log_softmax_across, "Normal": _normal_across}
