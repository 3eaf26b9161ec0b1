"""Kernels for fields, arrays without channels: lines of a panel with their border, and tiles of sums over it.

A panel is a box of the field as floats, border included, so that every tap of every output is a plain load;
``field_line`` writes one of its lines, ``field_tiles`` sum up.  Lanes are neighbours along a line.  It must know
nothing of padding modes, which arrive as tables of positions, or of how a box was cut.
"""

from __future__ import annotations

from functools import partial

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, cut, cut_unsigned, narrow, widen
from polyconv.kernels.field_again import DIVISOR, Again
from polyconv.kernels.field_sums import FieldTile, Sums, TilesOfField, double
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.signature import Int, Signature

__all__ = ["FILLING", "FieldLine", "LineOfField", "field_line", "field_tiles"]

FILLING = 16
"""Where the constant of the border lies, after those of the sums."""


class LineOfField(Signature):
    """A line of a panel: ``count`` columns from ``first`` on, some of which may lie before or after the field's.

    The field has ``columns`` of them, ``step`` bytes apart, the first of them at ``source``.  What stands for those
    beyond is in a table: at ``place`` for the one after the last, and so on, and right before it for those before the
    first; -1 means the constant of the border.  Lines ``ahead`` bytes further on are asked for.
    """

    source: Buffer
    step: Int
    table: Buffer
    place: Int
    first: Int
    columns: Int
    target: Buffer
    constants: Buffer
    ahead: Int
    count: Int


@dataclass(frozen=True, slots=True)
class FieldLine:
    """A kind of line.

    Parameters
    ----------
    source : str
        dtype of the field.
    panel : str
        LLVM element of the panel.
    spread : bool
        Whether columns of the field lie apart.
    asks : bool
        Whether lines are asked for ahead.
    """

    source: str
    panel: str
    spread: bool
    asks: bool = False


def field_line(k: Module, name: str, spec: FieldLine, lanes: int, *, f16c: bool) -> None:
    """Add the function that brings a line into a panel."""
    dtype = DTYPES[spec.source]
    kind = vector(spec.panel, lanes)
    memory = kind.of(LLVM_NAMES[spec.source])
    convert = partial(widen, k, dtype=dtype, to=spec.panel, f16c=f16c)
    with k.function(name, LineOfField) as given:
        source, step, target, first, count = given.source, given.step, given.target, given.first, given.count
        filling = k.load(kind.scalar, given.constants + FILLING)
        head = k.minimum(k.maximum(0 - first, 0), count)
        tail = k.minimum(k.maximum(given.columns - first, head), count)

        def beyond(low: Value, high: Value, shift: Value | int) -> None:
            with k.loop(low, high) as i:
                at = k.word(given.table, given.place + first + i.index - shift)
                with k.choice(at >= 0, [filling]) as found:
                    found.next(convert(k.load(memory.scalar, source + at * step)))
                k.store(found.results[0], target + i.index * kind.element_bytes)

        def inside(i: Value, mask: Mask | None) -> None:
            here, to = source + (first + i) * step, target + i * kind.element_bytes
            if spec.asks:
                k.prefetch(here + given.ahead, far=True)
            if spec.spread:
                value = k.gather(memory, here, step, mask)
            else:
                value = k.load(memory, here) if mask is None else k.load_first(memory, here, mask)
            if mask is None:
                k.store(convert(value), to)
            else:
                k.store_first(convert(value), to, mask)

        beyond(k.constant(INT, 0), head, 0)
        whole = head + (tail - head) // lanes * lanes
        with k.loop(head, whole, lanes) as i:
            inside(i.index, None)
        with k.when(whole < tail):
            inside(whole, k.mask(tail - whole, lanes))
        beyond(tail, count, given.columns)


def field_tiles(k: Module, spec: FieldTile, lanes: int, rows: int, vectors: int, *, f16c: bool) -> None:
    """Add tiles ``rows``, ``rows_end``, ``row`` and ``row_end``, of several rows or one.

    The first and third are as wide as so many vectors, the others are a vector whose last lanes may be left out.
    """
    again = Again(k, spec, lanes) if spec.doubt else None
    if again is not None:
        again.define()
    for name, height in (("rows", rows), ("row", 1)):
        _tile(k, name, spec, again, lanes, height, vectors, ends=False, f16c=f16c)
        _tile(k, f"{name}_end", spec, again, lanes, height, 1, ends=True, f16c=f16c)


def _tile(k: Module, name: str, spec: FieldTile, again: Again | None, lanes: int, rows: int, vectors: int, *,
          ends: bool, f16c: bool) -> None:  # fmt: skip
    kind = vector(spec.panel, lanes)
    with k.function(name, TilesOfField) as given:
        sums_of = Sums(k, spec, kind, rows, vectors)
        out = _Out(k, spec, kind, given, f16c=f16c)
        with k.loop(0, given.tiles, carry=[given.panel, given.y, given.again]) as group:
            at, to, at_again = group.values
            if spec.asks:
                out.ask(to + given.y_row * rows, rows, vectors)
            sums = sums_of.dense(at, given) if spec.form == "dense" else sums_of.listed(at, given)
            sums = [out.divided(value) for value in sums]
            if again is not None:
                sums = again.settled(sums, vectors, at_again, given)
            mask = None
            if ends:
                mask = k.mask(k.select((group.index + 1).equals(given.tiles), given.last, lanes), lanes)
            for r in range(rows):
                for v in range(vectors):
                    out.store(sums[r * vectors + v], to + given.y_row * r + given.y_column * (v * lanes), mask)
            step = vectors * kind.bytes
            group.next(at + step, to + given.y_column * (vectors * lanes), at_again + step)


@dataclass(frozen=True, slots=True)
class _Out:
    """How sums become results."""

    k: Module
    spec: FieldTile
    kind: Type
    given: TilesOfField
    f16c: bool

    def divided(self, value: Value) -> Value:
        """A sum over what it is divided by, if it is."""
        return value / self.k.broadcast(self.kind, self.given.constants + DIVISOR) if self.spec.divided else value

    def ask(self, place: Buffer, rows: int, vectors: int) -> None:
        """Ask for the lines that a tile writes at a place."""
        size = vectors * self.kind.lanes * DTYPES[self.spec.target].itemsize
        for r in range(rows):
            for line in range(0, size, 64):
                self.k.prefetch(place + self.given.y_row * r + line if r else place + line, writing=True)

    def store(self, value: Value, place: Buffer, mask: Mask | None) -> None:
        """Store a vector of results, or those of a mask."""
        k, spec = self.k, self.spec
        if spec.inside:  # a line of a panel has room for whole vectors
            dtype = DTYPES.get(spec.target)
            if dtype is not None and not (dtype.is_float and dtype.itemsize >= self.kind.element_bytes):
                rounded = _rounded(k, spec, value, f16c=self.f16c)
                value = widen(k, rounded, dtype, spec.panel, f16c=self.f16c)
            k.store(value, place)
            return
        value = _rounded(k, spec, value, f16c=self.f16c)
        if spec.spread:
            k.scatter(value, place, self.given.y_column, mask)
        elif mask is None:
            k.store(value, place)
        else:
            k.store_first(value, place, mask)


def _rounded(k: Module, spec: FieldTile, value: Value, *, f16c: bool) -> Value:
    """A sum as the result's type has it: floats to nearest even, integers cut towards zero, modulo their size."""
    dtype, kind = DTYPES[spec.target], value.type
    if dtype.is_float:
        if dtype.bits == 64:
            return double(k, value)
        single = value if kind.element == "float" else k.cast("fptrunc", value, kind.of("float"))
        return narrow(k, single, dtype, f16c=f16c)
    wide = "i32" if dtype.bits < 32 or dtype.name == "i32" else "i64"
    if spec.bounded:
        whole = k.cast("fptosi", value, kind.of(wide))
    elif dtype.name == "u64" and spec.from_zero:  # SciPy's windows cut a negative number by its size
        below = value < 0.0
        size = cut_unsigned(k, k.select(below, -value, value))
        whole = k.select(below, 0 - size, size)
    else:
        whole = cut_unsigned(k, value) if dtype.name == "u64" else cut(k, value, wide)
    result = narrow(k, whole, dtype, f16c=f16c)
    return k.cast("zext", result.equals(0) ^ 1, result.type) if spec.truth else result
