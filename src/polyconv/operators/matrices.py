"""Products of matrices that both come with a run, on the CPU: tiles of some rows by some vectors of columns.

Neither operand is packed: an element of the left one meets vectors of a row of the right one, whose columns lie
together.  The one idea: columns are walked outside and rows inside, so that a strip of the right operand stays in the
first cache.  It must not know what is broadcast.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.job import Drive, Planning, Step, address_of
from polyconv.operators.rows import each_vector, read, write

__all__ = ["Matrices", "multiplied"]

_VECTORS = 3
"""Of a tile: with as many rows as registers allow, more multiply-adds than loads."""
_BESIDE = 4
"""Registers for other things than sums."""
_TERMS = 128
"""Rows of the right operand whose strip of columns stays in a first cache, wherever its lines fall."""
_CYCLES = 0.7
"""Of a multiply-add of vectors; those in flight are two a cycle."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """So many products ``[rows, terms] x [terms, columns]`` of one element type."""

    dtype: str
    count: int
    rows: int
    columns: int
    terms: int


class _Multiplying(Record):
    """Words of the driver: rows of an item, parts of a product's rows, extents, and strides in bytes."""

    chunk: Word
    parts: Word
    rows: Word
    columns: Word
    terms: Word
    a_base: Word
    a_product: Word
    a_row: Word
    a_term: Word
    b_base: Word
    b_product: Word
    b_term: Word
    y_product: Word


def multiplied(planning: Planning, m: Matrices, operands: tuple[int, int, int], steps: tuple[int, int, int]) -> None:
    """Add the job that multiplies two arrays of a plan, the columns of the second of which lie together.

    Parameters
    ----------
    operands : tuple of int
        The factors, and the packed result.
    steps : tuple of int
        Bytes from product to product, of each of them.
    """
    c, size = planning.c, DTYPES[m.dtype].itemsize
    lanes = c.target.vector_bytes // size
    tall = (c.target.registers - _BESIDE) // _VECTORS
    of_a, of_b = planning.lie(operands[0]), planning.lie(operands[1])
    masks = 0 < c.target.masked_loads <= size

    def made(threads: int) -> list[Step]:
        chunk = m.rows if threads == 1 else -(-m.rows // (4 * threads * tall)) * tall
        parts = -(-m.rows // chunk)
        keep: list[object] = []
        words = filled(_Multiplying(
            chunk=chunk, parts=parts, rows=m.rows, columns=m.columns, terms=m.terms,
            a_base=of_a.offset, a_product=steps[0], a_row=of_a.strides[-2], a_term=of_a.strides[-1],
            b_base=of_b.offset, b_product=steps[1], b_term=of_b.strides[-2], y_product=steps[2],
        ), keep)  # fmt: skip
        name = f"multiply {m.dtype} {tall}"
        driver = address_of(name, lambda k, name: _drive(k, name, m.dtype, lanes, tall, masks=masks), c)
        return [Step(driver, words, m.count * parts, tuple(keep))]

    cycles = _CYCLES * m.count * m.rows * m.terms * -(-m.columns // lanes)
    planning.job(made, operands, cycles)


def _drive(k: Module, name: str, dtype: str, lanes: int, tall: int, *, masks: bool) -> None:
    """Add the driver; an item has some rows of a product."""
    kind = vector(LLVM_NAMES[dtype], lanes)
    with k.function(name, Drive) as given:
        w = at_once(_Multiplying.read(k, given.words))
        product, part = given.item // w.parts, given.item % w.parts
        begin = part * w.chunk
        end = k.minimum(begin + w.chunk, w.rows)
        a, b, y = (k.buffer(given.frame, 2 * at) for at in range(3))
        a, b = a + (w.a_base + product * w.a_product), b + (w.b_base + product * w.b_product)
        y = y + product * w.y_product
        full = end - (end - begin) % tall

        def some(at: Value, type_: Type, count: int, mask: Mask | None) -> None:
            column = at * kind.element_bytes
            places = a, b + column, y + column

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


def _tile(k: Module, kind: Type, places: tuple[Buffer, Buffer, Buffer], row: Value, extents: tuple[int, int],
          mask: Mask | None, w: _Multiplying, part: tuple[Value | int, Value], *, begun: bool) -> None:  # fmt: skip
    """Some rows and vectors of columns of a product: a part of the terms, added to those before where it has begun."""
    a, b, y = places
    tall, count = extents
    a = a + row * w.a_row
    width = w.columns * kind.element_bytes
    targets = [y + (row + at) * width + number * kind.bytes for at in range(tall) for number in range(count)]
    before = [read(k, kind, target, mask) if begun else k.constant(kind, 0.0) for target in targets]
    with k.loop(*part, carry=before) as term:
        line = b + term.index * w.b_term
        right = [read(k, kind, line + at * kind.bytes, mask) for at in range(count)]
        sums = []
        for at in range(tall):
            place = a + (term.index * w.a_term + w.a_row * at)
            left = k.broadcast(kind, place) if kind.lanes else k.load(kind, place)
            sums += [k.fma(left, value, total) for value, total in
                     zip(right, term.values[at * count : (at + 1) * count], strict=True)]  # fmt: skip
        term.next(*sums)
    for total, target in zip(term.results, targets, strict=True):
        write(k, total, target, mask)
