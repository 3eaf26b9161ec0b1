"""Tiles of products of two matrices of which neither is packed: some rows by some vectors of columns.

An element of the left matrix meets vectors of a row of the right one, whose columns lie together.  The one idea:
columns are walked outside and rows inside, so that a strip of the right matrix stays in the first cache.
It must not know what the products are for.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.values import Buffer
from polyconv.operators.rows import each_vector, read, write
from polyconv.target import Target

__all__ = ["Finish", "Matrix", "Tiles", "multiply", "tiles_of"]

_VECTORS = 3
"""Of a tile: with as many rows as registers allow, more multiply-adds than loads."""
_BESIDE = 4
"""Registers for other things than sums."""
_TERMS = 128
"""Rows of the right operand whose strip of columns stays in a first cache, wherever its lines fall."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Vectors of a type, rows of a tile, and whether vectors have masks."""

    dtype: str
    lanes: int
    rows: int
    masks: bool

    @property
    def kind(self) -> Type:
        """Of a vector."""
        return vector(LLVM_NAMES[self.dtype], self.lanes)


def tiles_of(dtype: str, target: Target) -> Tiles:
    """The tiles of a target."""
    size = DTYPES[dtype].itemsize
    rows = (target.registers - _BESIDE) // _VECTORS
    return Tiles(dtype, target.vector_bytes // size, rows, 0 < target.masked_loads <= size)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Where a matrix begins, and bytes from row to row; columns lie together, but for those of a left operand."""

    place: Buffer
    row: Value
    column: Value | int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """What is done with sums: all are multiplied by a number, or those of each row by one of its own; and added to."""

    scale: Value | None = None
    factors: Buffer | None = None
    added: Matrix | None = None


def multiply(k: Module, tiles: Tiles, a: Matrix, b: Matrix, y: Matrix, rows: tuple[Value | int, Value],
             terms: Value, columns: Value, finish: Finish | None = None) -> None:  # fmt: skip
    """Add the loops that make some rows of a product: ``y = a b``."""
    kind = tiles.kind
    begin, end = rows
    full = end - (end - begin) % tiles.rows

    def some(at: Value, type_: Type, count: int, mask: Mask | None) -> None:
        strip = _Strip(k, type_, count, mask, at * kind.element_bytes, a, b, y, terms, finish)

        def part(first: Value | int, *, begun: bool) -> None:
            last = k.minimum(terms, first + _TERMS)
            with k.loop(begin, full, tiles.rows) as row:
                _tile(strip, row.index, tiles.rows, (first, last), begun=begun)
            with k.loop(full, end) as row:
                _tile(strip, row.index, 1, (first, last), begun=begun)

        part(0, begun=False)
        with k.loop(_TERMS, terms, _TERMS) as each:
            part(each.index, begun=True)

    done: Value | int = 0
    for count in range(_VECTORS, 1, -1):  # of eight vectors, three, three and two
        until = done + (columns - done) // (count * kind.lanes) * (count * kind.lanes)
        with k.loop(done, until, count * kind.lanes) as each:
            some(each.index, kind, count, None)
        done = until
    each_vector(k, kind, done, columns, tiles.masks, lambda at, type_, mask: some(at, type_, 1, mask))


@dataclass(frozen=True, slots=True)
class _Strip:
    """Some vectors of columns of a product, from a byte of its rows on."""

    k: Module
    kind: Type
    count: int
    mask: Mask | None
    begin: Value
    a: Matrix
    b: Matrix
    y: Matrix
    terms: Value
    finish: Finish | None

    def places(self, of: Matrix, row: Value) -> list[Buffer]:
        """Where vectors of a row lie."""
        return [of.place + row * of.row + (self.begin + at * self.kind.bytes) for at in range(self.count)]


def _tile(strip: _Strip, row: Value, tall: int, part: tuple[Value | int, Value], *, begun: bool) -> None:
    """Some rows of a strip: a part of the terms, added to those before where it has begun."""
    k, kind, mask, count, a = strip.k, strip.kind, strip.mask, strip.count, strip.a
    rows = [row + at for at in range(tall)]
    targets = [place for each in rows for place in strip.places(strip.y, each)]
    before = [read(k, kind, target, mask) if begun else k.constant(kind, 0.0) for target in targets]
    left = a.place + row * a.row
    with k.loop(*part, carry=before) as term:
        right = [read(k, kind, place, mask) for place in strip.places(strip.b, term.index)]
        sums = []
        for at in range(tall):
            place = left + (term.index * a.column + a.row * at)
            value = k.broadcast(kind, place) if kind.lanes else k.load(kind, place)
            sums += [k.fma(value, other, total) for other, total in
                     zip(right, term.values[at * count : (at + 1) * count], strict=True)]  # fmt: skip
        term.next(*sums)
    if strip.finish is None:
        for total, target in zip(term.results, targets, strict=True):
            write(k, total, target, mask)
        return
    with k.when(part[1] < strip.terms):
        for total, target in zip(term.results, targets, strict=True):
            write(k, total, target, mask)
    with k.when(part[1] < strip.terms, otherwise=True):
        for at, each in enumerate(rows):
            sums = list(term.results[at * count : (at + 1) * count])
            for total, target in zip(_finished(strip, each, sums), strip.places(strip.y, each), strict=True):
                write(k, total, target, mask)


def _finished(strip: _Strip, row: Value, sums: list[Value]) -> list[Value]:
    """The sums of a row, multiplied and added to."""
    k, kind, finish = strip.k, strip.kind, strip.finish
    assert finish is not None
    scale = finish.scale
    if finish.factors is not None:
        scale = k.load(kind.scalar, finish.factors + row * kind.element_bytes)
    if scale is not None:
        times = k.splat(scale, kind.lanes) if kind.lanes else scale
        sums = [total * times for total in sums]
    if finish.added is not None:
        added = [read(k, kind, place, strip.mask) for place in strip.places(finish.added, row)]
        sums = [total + other for total, other in zip(sums, added, strict=True)]
    return sums
