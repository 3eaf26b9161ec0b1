"""Products of matrices that both come with a run, on the CPU: a driver that walks stacks of them.

An item has some rows of a product, which ``tiles`` make.  It must not know what is broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.kernels.language import Module
from polyconv.kernels.record import Record, Word, at_once, filled
from polyconv.operators.along import Along
from polyconv.operators.job import Drive, Planning, Step, address_of
from polyconv.operators.lying import Lies
from polyconv.operators.stacks import Stack, begins, stack_of
from polyconv.operators.tiles import Finish, Matrix, Tiles, multiply, tiles_of

__all__ = ["Matrices", "multiplied"]

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


class _Multiplying(Record):
    """Words of the driver: rows of an item, parts of a product's rows, extents, and steps in bytes."""

    chunk: Word
    parts: Word
    rows: Word
    columns: Word
    terms: Word
    a_row: Word
    a_term: Word
    b_term: Word
    y_row: Word
    added_row: Word
    stack: Stack


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
    c = planning.c
    tiles = tiles_of(m.dtype, c.target)
    of_a, of_b, of_y, *added = lies
    count = math.prod(m.outer)

    def made(threads: int) -> list[Step]:
        most = _TILES if threads == 1 else min(_TILES, -(-m.rows // (4 * threads * tiles.rows)))
        chunk = most * tiles.rows
        parts = -(-m.rows // chunk)
        keep: list[object] = []
        words = filled(_Multiplying(
            chunk=chunk, parts=parts, rows=m.rows, columns=m.columns, terms=m.terms,
            a_row=of_a.strides[-2], a_term=of_a.strides[-1], b_term=of_b.strides[-2], y_row=of_y.strides[-2],
            added_row=added[0].strides[-2] if added else 0, stack=stack_of(m.outer, lies, along),
        ), keep)  # fmt: skip
        name = f"multiply {m.dtype} {tiles.rows}{' added' * m.has_addend}{' scaled' * m.is_scaled}"
        driver = address_of(name, lambda k, name: _drive(k, name, m, tiles), c)
        return [Step(driver, words, count * parts, tuple(keep))]

    planning.job(made, operands, _CYCLES * count * m.rows * m.terms * -(-m.columns // tiles.lanes))


def _drive(k: Module, name: str, m: Matrices, tiles: Tiles) -> None:
    """Add the driver; an item has some rows of a product."""
    with k.function(name, Drive) as given:
        w = at_once(_Multiplying.read(k, given.words))
        begin = given.item % w.parts * w.chunk
        rows = begin, k.minimum(begin + w.chunk, w.rows)
        a, b, y, *others = begins(k, given.frame, w.stack, given.item // w.parts, 3 + m.has_addend)
        finish = None
        if m.is_scaled or m.has_addend:
            number = k.buffer(given.frame, 2 * (3 + m.has_addend))
            scale = k.load(tiles.kind.scalar, number) if m.is_scaled else None
            finish = Finish(scale, added=Matrix(others[0], w.added_row) if m.has_addend else None)
        left, right, made = Matrix(a, w.a_row, w.a_term), Matrix(b, w.b_term), Matrix(y, w.y_row)
        multiply(k, tiles, left, right, made, rows, w.terms, w.columns, finish)
