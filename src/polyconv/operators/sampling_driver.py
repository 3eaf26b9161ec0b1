"""The driver of arrays of which each output is taken from few inputs along every axis: row by row.

Rows of the last axis are read where they lie; where a row of results is a weighted sum of rows, these are added up
first, in the workspace.  Along the row a pattern that repeats runs on vectors, whose results are merged in registers;
its ends go by the table, and so does a row without a pattern, unless what each vector of outputs takes lies in one or
two vectors of inputs, whose lanes can be picked.  It must not know how tables are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.layout import woven
from polyconv.kernels.record import Memory, Record, Word, at_once
from polyconv.kernels.unzip import residues
from polyconv.kernels.values import Buffer
from polyconv.operators.expression import Expression, evaluated
from polyconv.operators.job import Drive
from polyconv.operators.planes import PlaneRows, each_row
from polyconv.operators.rows import each_block, each_vector, read, write
from polyconv.operators.types import LLVM, TYPES

__all__ = ["NUMBER_BYTES", "PICKED", "AxisWords", "Sampling", "SamplingWords", "drive_sampling"]

_CHAINS = 4
"""Vectors of a row that are summed at once."""
NUMBER_BYTES = 8
"""Of each number that results are finished with."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """All that shapes the code.

    Parameters
    ----------
    dtype : str
    sums : bool
        Whether rows of results are weighted sums of rows.
    fills : bool
        Whether some outputs take the filling value.
    direct : bool
        Whether outputs along the last axis are its inputs.
    picks : bool
        Whether each output along the last axis is one input.
    phases : tuple of tuple of int
        Offsets of the inputs of each output that repeats; none without a pattern.
    stride : int
        Inputs from one repeat to the next.
    vector_bytes : int
    masks : bool
    window : int
        Vectors of inputs from which each vector of outputs along the last axis is picked; 0 where it is not.
    taps : int
        Of an output along the last axis, at most, where it is.
    finish : Expression or None
        What is done with each element of the result before it is stored, of the element and of some numbers.
    """

    dtype: str
    sums: bool
    fills: bool
    direct: bool
    picks: bool
    phases: tuple[tuple[int, ...], ...]
    stride: int
    vector_bytes: int
    masks: bool
    window: int = 0
    taps: int = 0
    finish: Expression | None = None

    def __str__(self) -> str:
        flags = " ".join(name for name in ("sums", "fills", "direct", "picks") if getattr(self, name))
        taken = f"{self.dtype} {flags} {self.phases}/{self.stride} w{self.window} t{self.taps}".replace(", ", ",")
        return taken if self.finish is None else f"{taken} {self.finish}"

    @property
    def stored_bytes(self) -> int:
        """Of an element of the result."""
        return TYPES[self.dtype if self.finish is None else self.finish.made].itemsize

    @property
    def kind(self) -> Type:
        """A vector of elements."""
        return vector(LLVM_NAMES[self.dtype], self.vector_bytes // DTYPES[self.dtype].itemsize)


class AxisWords(Record):
    """Taps of an axis: for each output their count and places in bytes, and their weights."""

    outs: Word
    most: Word
    places: Memory
    weights: Memory


class SamplingWords(Record):
    """Words of the driver; strides in bytes, widths in elements, the pattern as ``Pattern`` has it."""

    rows: PlaneRows
    width: Word
    upper: AxisWords
    middle: AxisWords
    lower: AxisWords
    last: AxisWords
    begin: Word
    end: Word
    base: Word
    repeats: Word
    full: Word
    weights: Memory
    filling: Memory
    bases: Memory
    picks: Memory
    factors: Memory
    numbers: Memory


PICKED = {
    "float": ("permvar.sf.512", "vpermi2var.ps.512"), "i32": ("permvar.si.512", "vpermi2var.d.512"),
}  # fmt: skip
"""By element the x86 instructions that pick lanes of one vector, and of two."""


def drive_sampling(k: Module, name: str, spec: Sampling) -> None:
    """Add the driver; its operands are the array and the result."""
    with k.function(name, Drive) as given:
        w = at_once(SamplingWords.read(k, given.words))
        row = _Row(k, spec, w, k.load(spec.kind.scalar, w.filling), given.workspace, _numbers(k, spec, w.numbers))
        each_row(k, given, w.rows, lambda out, of_x, of_y: _row(row, out, of_x, k.rebase(of_y)))


@dataclass(frozen=True, slots=True)
class _Row:
    """What all rows share."""

    k: Module
    spec: Sampling
    w: SamplingWords
    filling: Value
    workspace: Buffer
    numbers: Sequence[Value]


def _numbers(k: Module, spec: Sampling, memory: Buffer) -> list[Value]:
    dtypes = () if spec.finish is None else spec.finish.inputs[1:]
    return [k.load(Type(LLVM[dtype]), memory + at * NUMBER_BYTES) for at, dtype in enumerate(dtypes)]


def _store(row: _Row, value: Value, target: Buffer, at: Value, mask: Mask | None) -> None:
    """Store elements of a row of the result, finished."""
    k, finish = row.k, row.spec.finish
    if finish is not None:
        lanes = value.type.lanes
        numbers = [k.splat(number, lanes) if lanes else number for number in row.numbers]
        (value,) = evaluated(k, finish, [value, *numbers])
    write(k, value, target + at * row.spec.stored_bytes, mask)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Taps of an output in its axis' table."""

    places: Buffer
    weights: Buffer
    count: Value


def _taken(row: _Row, axis: AxisWords, out: Value) -> _Taken:
    places = axis.places + out * ((axis.most + 1) * 8)
    return _Taken(places, axis.weights + out * (axis.most * row.spec.kind.element_bytes), row.k.word(places))


def _row(row: _Row, out: Value, x: Buffer, target: Buffer) -> None:
    """A row of results; all of it is filled where an outer axis has no taps."""
    k, spec, w = row.k, row.spec, row.w
    rest, lower = out // w.lower.outs, out % w.lower.outs
    at = (w.upper, rest // w.middle.outs), (w.middle, rest % w.middle.outs), (w.lower, lower)
    taken = [_taken(row, axis, here) for axis, here in at]
    if not spec.fills:
        _made(row, taken, x, target)
        return
    count = taken[0].count * taken[1].count * taken[2].count
    with k.when(count > 0):
        _made(row, taken, x, target)
    with k.when(count.equals(0)):

        def fill(at: Value, type_: Type, mask: Mask | None) -> None:
            value = k.splat(row.filling, type_.lanes) if type_.lanes else row.filling
            _store(row, value, target, at, mask)

        each_vector(k, spec.kind, 0, w.last.outs, spec.masks, fill)


def _made(row: _Row, taken: Sequence[_Taken], x: Buffer, target: Buffer) -> None:
    """A row of results from rows of inputs."""
    k, spec = row.k, row.spec
    if not spec.sums:
        for each in taken:
            x = x + k.word(each.places, 1)
        _along(row, k.rebase(x), target)
        return
    if spec.direct:
        _summed(row, taken, x, lambda value, at, mask: _store(row, value, target, at, mask))
        return
    line, size = row.workspace, spec.kind.element_bytes
    _summed(row, taken, x, lambda value, at, mask: write(k, value, line + at * size, mask))
    _along(row, line, target)


def _summed(row: _Row, taken: Sequence[_Taken], x: Buffer, put: Callable[[Value, Value, Mask | None], None]) -> None:
    """The weighted sum of all rows that the outer axes take; ``put`` stores elements of it from one on."""
    k, kind = row.k, row.spec.kind
    size = kind.element_bytes

    def over(axes: Sequence[_Taken], source: Buffer, weight: Value | None, totals: list[Value], type_: Type,
             mask: Mask | None) -> list[Value]:  # fmt: skip
        """Totals, with the products of all taps of some axes added."""
        if not axes:
            assert weight is not None
            factor = k.splat(weight, type_.lanes) if type_.lanes else weight
            values = [read(k, type_, source + j * type_.bytes, mask) for j in range(len(totals))]
            return [k.fma(factor, value, held) for value, held in zip(values, totals, strict=True)]
        axis = axes[0]
        with k.loop(0, axis.count, carry=totals) as tap:
            own = k.load(kind.scalar, axis.weights + tap.index * size)
            place = source + k.word(axis.places, tap.index + 1)
            tap.next(*over(axes[1:], place, own if weight is None else weight * own, tap.values, type_, mask))
        found: list[Value] = tap.results
        return found

    def some(at: Value, type_: Type, vectors: int, mask: Mask | None) -> None:
        zeros = [k.constant(type_, 0)] * vectors
        for j, total in enumerate(over(taken, x + at * size, None, zeros, type_, mask)):
            put(total, at + j * max(1, type_.lanes), mask)

    each_block(k, kind, 0, row.w.width, row.spec.masks, _CHAINS, some)


def _along(row: _Row, source: Buffer, target: Buffer) -> None:
    """Outputs along the last axis: the repeats on vectors, all others one by one."""
    k, spec, w = row.k, row.spec, row.w
    if spec.window:
        _picked(row, source, target)
        return
    if not spec.phases:
        _one_by_one(row, source, target, k.constant(w.end.type, 0), w.last.outs)
        return
    lanes, count, size = spec.kind.lanes, len(spec.phases), spec.kind.element_bytes
    _one_by_one(row, source, target, k.constant(w.end.type, 0), w.begin)
    pixels, results = source + w.base * size, target + w.begin * spec.stored_bytes
    weights: list[Value] = []
    if not spec.picks:
        taps = sum(len(phase) for phase in spec.phases)
        weights = [k.broadcast(spec.kind, w.weights + tap * size) for tap in range(taps)]
    with k.loop(0, w.full, lanes) as each:
        _repeats(row, pixels, results, weights, each.index, None)
    if spec.masks:
        with k.loop(w.full, w.repeats, lanes) as rest:
            _repeats(row, pixels, results, weights, rest.index, k.minimum(w.repeats - rest.index, lanes))
        _one_by_one(row, source, target, w.end, w.last.outs)
        return
    _one_by_one(row, source, target, w.begin + w.full * count, w.last.outs)


def _repeats(row: _Row, pixels: Buffer, results: Buffer, weights: Sequence[Value], at: Value, left: Value | None
             ) -> None:  # fmt: skip
    """A vector of repeats from one on, of which only some are ``left`` where that is given."""
    k, spec = row.k, row.spec
    kind, stride, count = spec.kind, spec.stride, len(spec.phases)
    source = pixels + at * (stride * kind.element_bytes)
    offsets = sorted({offset for phase in spec.phases for offset in phase})
    found: dict[int, Value] = {}
    groups = {offset: offset if stride == 1 else offset // stride * stride for offset in offsets}
    for group in dict.fromkeys(groups.values()):
        most = max(offset for offset in offsets if groups[offset] == group) - group
        parts = []
        for number in range(stride):  # nothing behind the last tap is touched
            mask = None if left is None else k.mask((left - 1) * stride + (most + 1 - number * kind.lanes), kind.lanes)
            parts.append(read(k, kind, source + group * kind.element_bytes + number * kind.bytes, mask))
        found |= {group + residue: value for residue, value in enumerate(residues(k, parts))}
    held, planes = iter(weights), list[Value]()
    for phase in spec.phases:
        if spec.picks:
            planes.append(found[phase[0]])
            continue
        total = k.constant(kind, 0)
        for offset in phase:
            total = k.fma(next(held), found[offset], total)
        planes.append(total)
    for number, value in enumerate(woven(k, planes)):
        mask = None if left is None else k.mask(left * count - number * kind.lanes, kind.lanes)
        _store(row, value, results, at * count + number * kind.lanes, mask)


def _picked(row: _Row, source: Buffer, target: Buffer) -> None:
    """Outputs by vectors, whose inputs are picked from the few vectors in which they lie."""
    k, spec, w = row.k, row.spec, row.w
    kind, chosen, lanes = spec.kind, Type("i32", spec.kind.lanes), spec.kind.lanes
    name = f"llvm.x86.avx512.{PICKED[kind.element][spec.window - 1]}"
    with k.loop(0, w.last.outs, lanes) as out:
        block = out.index // lanes
        base = k.word(w.bases, block)
        place, left = k.rebase(source + base), w.width - base // kind.element_bytes
        masks = [None if spec.sums else k.mask(left - j * lanes, lanes) for j in range(spec.window)]
        held = [read(k, kind, place + j * kind.bytes, mask) for j, mask in enumerate(masks)]
        picks, factors = (k.rebase(table + block * (spec.taps * kind.bytes)) for table in (w.picks, w.factors))
        total = k.constant(kind, 0)
        for tap in range(spec.taps):
            lane = k.load(chosen, picks + tap * chosen.bytes)
            operands = [held[0], lane, *held[1:]]
            value = k.target_intrinsic(name, kind, ", ".join(str(o.type) for o in operands), operands)
            if not spec.picks:
                value = k.fma(k.load(kind, factors + tap * kind.bytes), value, total)
            total = k.select(lane < 0, total, value)
        _store(row, total, target, out.index, k.mask(w.last.outs - out.index, lanes))


def _one_by_one(row: _Row, source: Buffer, target: Buffer, begin: Value, end: Value) -> None:
    """Outputs by the table."""
    k, spec, axis = row.k, row.spec, row.w.last
    scalar, size = spec.kind.scalar, spec.kind.element_bytes
    with k.loop(begin, end) as out:
        taken = _taken(row, axis, out.index)
        if spec.picks:
            value = k.load(scalar, source + k.word(taken.places, 1))
        else:
            with k.loop(0, taken.count, carry=[k.constant(scalar, 0)]) as tap:
                weight = k.load(scalar, taken.weights + tap.index * size)
                pixel = k.load(scalar, source + k.word(taken.places, tap.index + 1))
                tap.next(k.fma(weight, pixel, tap.values[0]))
            value = tap.results[0]
        if spec.fills:
            value = k.select(taken.count.equals(0), row.filling, value)
        _store(row, value, target, out.index, None)
