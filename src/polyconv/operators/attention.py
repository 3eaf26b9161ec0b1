"""Attention as a driver: ``softmax(q k * scale + added) v``, some rows of q at a time.

What lies between its two products has as many elements as there are pairs of tokens: of some rows it stays in the
second cache.  Sums of exponentials divide the results, which are fewer than the weights that would be divided.
It must not know how operands came to lie as they do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.language import Mask, Module, Type, Value
from polyconv.kernels.record import Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.machine.host import profile_in_force
from polyconv.operators.along import Along
from polyconv.operators.job import Drive, Planning, Step, address_of
from polyconv.operators.lying import Lies
from polyconv.operators.rows import each_vector, read, write
from polyconv.operators.stacks import Stack, begins, stack_of
from polyconv.operators.tiles import Finish, Matrix, Tiles, multiply, tiles_of
from polyconv.operators.together import Walk, raised

__all__ = ["Attention", "attended"]

_TILES = 4
"""Most tiles of rows of an item."""
_HELD = 0.4
"""Of the second cache: for what lies between the products."""
_CYCLES = 0.7
"""Of a multiply-add of vectors."""
_RAISED = 18.0
"""Cycles of a vector of exponentials, and of their largest."""


@dataclass(frozen=True, slots=True)
class Attention:
    """So many attentions: rows of queries, keys of so many terms, and columns of values.

    ``is_scaled`` says whether sums are multiplied by a number, ``has_addend`` whether a matrix is then added, and
    ``is_guarded`` whether weights that are no numbers count as 0.
    """

    dtype: str
    outer: tuple[int, ...]
    rows: int
    keys: int
    terms: int
    columns: int
    is_scaled: bool
    has_addend: bool
    is_guarded: bool

    def __str__(self) -> str:
        return f"{self.dtype}{' added' * self.has_addend}{' scaled' * self.is_scaled}{' guarded' * self.is_guarded}"


class _Words(Record):
    """Words of the driver: rows of an item, parts of an attention's rows, extents, and steps in bytes."""

    chunk: Word
    parts: Word
    rows: Word
    keys: Word
    terms: Word
    columns: Word
    pitch: Word
    q_row: Word
    q_term: Word
    k_term: Word
    v_row: Word
    y_row: Word
    added_row: Word
    stack: Stack


def attended(planning: Planning, of: Attention, operands: Sequence[int], lies: Sequence[Lies],
             along: Sequence[Along]) -> None:  # fmt: skip
    """Add the job of attentions, of keys and values whose columns lie together, as those of the result.

    Parameters
    ----------
    operands : sequence of int
        Queries, keys, values, the result, what is added, and the number by which sums are multiplied; the latter where
        they are.
    lies : sequence of Lies
        How queries (rows, terms), keys (terms, keys), values (keys, columns), the result, and what is added lie.
    along : sequence of Along
        Steps of those along the axes before rows and columns.
    """
    c, size = planning.c, DTYPES[of.dtype].itemsize
    tiles = tiles_of(of.dtype, c.target)
    of_q, of_k, of_v, of_y, *added = lies
    pitch = _pitch(of.keys * size)
    most = _most_rows(pitch, tiles)
    count = math.prod(of.outer)

    def made(threads: int) -> list[Step]:
        share = of.rows if threads == 1 else -(-of.rows * count // (4 * threads))
        chunk = max(1, min(most, -(-share // tiles.rows) * tiles.rows))
        parts = -(-of.rows // chunk)
        keep: list[object] = []
        words = filled(_Words(
            chunk=chunk, parts=parts, rows=of.rows, keys=of.keys, terms=of.terms, columns=of.columns, pitch=pitch,
            q_row=of_q.strides[-2], q_term=of_q.strides[-1], k_term=of_k.strides[-2], v_row=of_v.strides[-2],
            y_row=of_y.strides[-2], added_row=added[0].strides[-2] if added else 0,
            stack=stack_of(of.outer, lies, along),
        ), keep)  # fmt: skip
        driver = address_of(f"attend {tiles.rows} {of}", lambda k, name: _drive(k, name, of, tiles), c)
        return [Step(driver, words, count * parts, tuple(keep))]

    vectors = count * of.rows * -(-of.keys // tiles.lanes)
    products = vectors * of.terms + count * of.rows * of.keys * -(-of.columns // tiles.lanes)
    planning.job(made, operands, _CYCLES * products + _RAISED * vectors, most * (pitch + size) + 64)


def _pitch(row: int) -> int:
    """Bytes from row to row of what lies between: an odd number of lines, so that rows do not share sets of a cache."""
    lines = -(-row // 64)
    return (lines + 1 - lines % 2) * 64


def _most_rows(pitch: int, tiles: Tiles) -> int:
    """Rows of an item, so many that what lies between stays in the second cache."""
    held = profile_in_force().cache("l2", _HELD)
    return tiles.rows * max(1, min(_TILES, int(held // (pitch * tiles.rows))))


def _drive(k: Module, name: str, of: Attention, tiles: Tiles) -> None:
    """Add the driver; an item has some rows of queries."""
    kind, size = tiles.kind, DTYPES[of.dtype].itemsize
    with k.function(name, Drive) as given:
        w = at_once(_Words.read(k, given.words))
        begin = given.item % w.parts * w.chunk
        rows = k.minimum(w.chunk, w.rows - begin)
        q, keys, values, y, *others = begins(k, given.frame, w.stack, given.item // w.parts, 4 + of.has_addend)
        scale = k.load(kind.scalar, k.buffer(given.frame, 2 * (4 + of.has_addend))) if of.is_scaled else None
        weights, factors = given.workspace, given.workspace + w.chunk * w.pitch
        queries, made = Matrix(q + begin * w.q_row, w.q_row, w.q_term), Matrix(y + begin * w.y_row, w.y_row)
        multiply(k, tiles, queries, Matrix(keys, w.k_term), Matrix(weights, w.pitch), (0, rows), w.terms, w.keys)
        with k.loop(0, rows) as row:
            line = k.rebase(weights + row.index * w.pitch)
            added = k.rebase(others[0] + (begin + row.index) * w.added_row) if of.has_addend else None

            def loaded(at: Value, type_: Type, mask: Mask | None) -> Value:
                value = read(k, type_, line + at * size, mask)
                if scale is not None:
                    value = value * (k.splat(scale, type_.lanes) if type_.lanes else scale)
                return value if added is None else value + read(k, type_, added + at * size, mask)

            factor = raised(Walk(k, kind, w.keys, tiles.masks), loaded, line)
            if of.is_guarded:
                factor = _guarded(k, tiles, w.keys, line, factor)
            k.store(factor, factors + row.index * size)
        multiply(k, tiles, Matrix(weights, w.pitch, size), Matrix(values, w.v_row), made, (0, rows), w.keys, w.columns,
                 Finish(factors=factors))  # fmt: skip


def _guarded(k: Module, tiles: Tiles, keys: Value, line: Buffer, factor: Value) -> Value:
    """A row's factor; it and all weights are 0 where the weights are no numbers, as their sum then is none either."""
    def zero(at: Value, type_: Type, mask: Mask | None) -> None:
        write(k, k.constant(type_, 0.0), line + at * type_.element_bytes, mask)

    with k.when(factor.is_nan()):
        each_vector(k, tiles.kind, 0, keys, tiles.masks, zero)
    return k.select(factor.is_nan(), 0.0, factor)
