"""Products of matrices that both come with a run, on the CPU: tiles of some rows by some vectors of columns.

Neither operand is packed: an element of the left one meets vectors of a row of the right one, whose columns lie
together.  The one idea: columns are walked outside and rows inside, so that a strip of the right operand stays in the
first cache.  It must not know what is broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Table, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.along import Along
from polyconv.operators.job import Drive, Planning, Step, address_of
from polyconv.operators.lying import Lies
from polyconv.operators.rows import each_vector, read, write

__all__ = ["Matrices", "multiplied"]

_VECTORS = 3
"""Of a tile: with as many rows as registers allow, more multiply-adds than loads."""
_BESIDE = 4
"""Registers for other things than sums."""
_TERMS = 128
"""Rows of the right operand whose strip of columns stays in a first cache, wherever its lines fall."""
_TILES = 8
"""Of an item: so few rows of the result that the lines which two strips of columns share are still near."""
_CYCLES = 0.7
"""Of a multiply-add of vectors; those in flight are two a cycle."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """So many products ``[rows, terms] x [terms, columns]`` of one element type.

    They may be multiplied by a number, if they are scaled, and a matrix may then be added.
    """

    dtype: str
    outer: tuple[int, ...]
    rows: int
    columns: int
    terms: int
    is_scaled: bool = False
    has_addend: bool = False


class _Axis(Record):
    """An axis along which products lie: its extent, and steps in bytes of factors, result and what is added."""

    extent: Word
    a: Word
    b: Word
    y: Word
    added: Word


class _Multiplying(Record):
    """Words of the driver: rows of an item, parts of a product's rows, extents, and first elements and steps in bytes.

    Of the axes along which products lie, the first one varies fastest.
    """

    chunk: Word
    parts: Word
    rows: Word
    columns: Word
    terms: Word
    count: Word
    axes: Table[_Axis]
    a_row: Word
    a_term: Word
    b_term: Word
    y_row: Word
    added_row: Word
    base: _Axis


def multiplied(planning: Planning, m: Matrices, operands: Sequence[int], lies: Sequence[Lies],
               along: Sequence[Along]) -> None:  # fmt: skip
    """Add the job that multiplies two arrays of a plan; columns of the second and of the result lie together.

    Parameters
    ----------
    operands : sequence of int
        The factors, the result, what is added, and the number by which sums are multiplied; the latter where they are.
    lies : sequence of Lies
        How factors, result and what is added lie as matrices, whatever the order of their axes in the plan.
    along : sequence of Along
        Steps of those along the axes before rows and columns.
    """
    c, size = planning.c, DTYPES[m.dtype].itemsize
    lanes = c.target.vector_bytes // size
    tall = (c.target.registers - _BESIDE) // _VECTORS
    of_a, of_b, of_y, *added = lies
    masks = 0 < c.target.masked_loads <= size
    count = math.prod(m.outer)

    def axis(extent: int, a: int, b: int, y: int, added: int = 0) -> _Axis:
        return _Axis(extent=extent, a=a, b=b, y=y, added=added)

    axes = [axis(extent, *steps) for extent, *steps in zip(m.outer, *(each.strides for each in along), strict=True)]

    def made(threads: int) -> list[Step]:
        chunk = min(_TILES, -(-m.rows // (4 * threads * tall))) * tall if threads > 1 else _TILES * tall
        parts = -(-m.rows // chunk)
        keep: list[object] = []
        words = filled(_Multiplying(
            chunk=chunk, parts=parts, rows=m.rows, columns=m.columns, terms=m.terms, count=len(axes), axes=axes[::-1],
            a_row=of_a.strides[-2], a_term=of_a.strides[-1], b_term=of_b.strides[-2], y_row=of_y.strides[-2],
            added_row=added[0].strides[-2] if added else 0, base=axis(0, *(lie.offset for lie in lies)),
        ), keep)  # fmt: skip
        name = f"multiply {m.dtype} {tall}{' added' * m.has_addend}{' scaled' * m.is_scaled}"
        driver = address_of(name, lambda k, name: _drive(k, name, m, lanes, tall, masks=masks), c)
        return [Step(driver, words, count * parts, tuple(keep))]

    planning.job(made, operands, _CYCLES * count * m.rows * m.terms * -(-m.columns // lanes))


def _drive(k: Module, name: str, m: Matrices, lanes: int, tall: int, *, masks: bool) -> None:
    """Add the driver; an item has some rows of a product."""
    kind = vector(LLVM_NAMES[m.dtype], lanes)
    with k.function(name, Drive) as given:
        w = at_once(_Multiplying.read(k, given.words))
        begin = given.item % w.parts * w.chunk
        end = k.minimum(begin + w.chunk, w.rows)
        first = [given.item // w.parts, w.base.a, w.base.b, w.base.y, w.base.added]
        with k.loop(0, w.count, carry=first) as each:
            number, *begins = each.values
            axis = at_once(w.axes.at(each.index))
            place, steps = number % axis.extent, (axis.a, axis.b, axis.y, axis.added)
            each.next(number // axis.extent, *(at + place * step for at, step in zip(begins, steps, strict=True)))
        _, *begins = each.results
        buffers = [k.buffer(given.frame, 2 * at) for at in range(3 + m.has_addend + m.is_scaled)]
        a, b, y = (buffer + begin for buffer, begin in zip(buffers[:3], begins[:3], strict=True))
        added = buffers[3] + begins[3] if m.has_addend else None
        scale = k.load(kind.scalar, buffers[-1]) if m.is_scaled else None
        full = end - (end - begin) % tall

        def some(at: Value, type_: Type, count: int, mask: Mask | None) -> None:
            column = at * kind.element_bytes
            places = _Places(a, b + column, y + column, None if added is None else added + column, scale)

            def rows(first: Value | int, *, begun: bool) -> None:
                part = first, k.minimum(w.terms, first + _TERMS)
                with k.loop(begin, full, tall) as row:
                    _tile(k, type_, places, row.index, (tall, count), mask, w, part, begun=begun)
                with k.loop(full, end) as row:
                    _tile(k, type_, places, row.index, (1, count), mask, w, part, begun=begun)

            rows(0, begun=False)
            with k.loop(_TERMS, w.terms, _TERMS) as part:
                rows(part.index, begun=True)

        done: Value | int = 0
        for count in range(_VECTORS, 1, -1):  # of eight vectors, three, three and two
            until = done + (w.columns - done) // (count * kind.lanes) * (count * kind.lanes)
            with k.loop(done, until, count * kind.lanes) as each:
                some(each.index, kind, count, None)
            done = until
        each_vector(k, kind, done, w.columns, masks, lambda at, type_, mask: some(at, type_, 1, mask))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the matrices of a product begin, what is added to it, and the number by which its sums are multiplied."""

    a: Buffer
    b: Buffer
    y: Buffer
    added: Buffer | None
    scale: Value | None


def _tile(k: Module, kind: Type, places: _Places, row: Value, extents: tuple[int, int],
          mask: Mask | None, w: _Multiplying, part: tuple[Value | int, Value], *, begun: bool) -> None:  # fmt: skip
    """Some rows and vectors of columns of a product: a part of the terms, added to those before where it has begun."""
    tall, count = extents
    a = places.a + row * w.a_row
    each = [(row + at, number * kind.bytes) for at in range(tall) for number in range(count)]
    targets = [places.y + at_row * w.y_row + column for at_row, column in each]
    before = [read(k, kind, target, mask) if begun else k.constant(kind, 0.0) for target in targets]
    with k.loop(*part, carry=before) as term:
        line = places.b + term.index * w.b_term
        right = [read(k, kind, line + at * kind.bytes, mask) for at in range(count)]
        sums = []
        for at in range(tall):
            place = a + (term.index * w.a_term + w.a_row * at)
            left = k.broadcast(kind, place) if kind.lanes else k.load(kind, place)
            sums += [k.fma(left, value, total) for value, total in
                     zip(right, term.values[at * count : (at + 1) * count], strict=True)]  # fmt: skip
        term.next(*sums)
    if places.scale is None and places.added is None:
        for total, target in zip(term.results, targets, strict=True):
            write(k, total, target, mask)
        return
    with k.when(part[1] < w.terms):
        for total, target in zip(term.results, targets, strict=True):
            write(k, total, target, mask)
    with k.when(part[1] < w.terms, otherwise=True):
        scale = k.splat(places.scale, kind.lanes) if places.scale is not None and kind.lanes else places.scale
        for total, target, (at_row, column) in zip(term.results, targets, each, strict=True):
            made = total if scale is None else total * scale
            if places.added is not None:
                made = made + read(k, kind, places.added + at_row * w.added_row + column, mask)
            write(k, made, target, mask)
