"""Kernels for fields, arrays without channels: lines of a panel with their border, and tiles of sums over it.

A panel is a box of the field as floats, border included, so that every tap of every output is a plain load;
``field_line`` writes one of its lines, ``field_tiles`` sum up.  Lanes are neighbours along a line.  Sums in ``double``
that are not ``fused`` are rounded after every product and every addition, in the order of their taps: that fixes each
bit.  It must know nothing of padding modes, which arrive as tables of positions, or of how a box was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, narrow, widen
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.signature import Int, Signature

__all__ = [
    "DIVISOR", "DOUBT", "ENTRY_WORDS", "FILLING", "FieldLine", "FieldTile", "LineIn", "SumAgain", "TileOfField",
    "field_line", "field_tiles",
]  # fmt: skip

ENTRY_WORDS = {"dense": 0, "listed": 2, "even": 3, "odd": 3}
"""Words of an entry by form: offsets, then a weight in the sum's type."""

DIVISOR, DOUBT, FILLING = 0, 8, 16
"""Where constants lie: what sums are divided by, how far from a whole number one is in no doubt, and what lies beyond
a border of constants."""

class LineIn(Signature):
    """Arguments of a line: where it comes from and goes to.

    Source at column 0, bytes between its columns; a table of the columns that stand for those beyond the ends, and the
    place in it of the first one after the field (those before it end there); the first column and the columns of the
    field; target, constants, bytes to what is asked for ahead, and how many columns to write.
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


class TileOfField(Signature):
    """Arguments of a tile: what it sums, and where results go.

    Panel at the first output's first tap, bytes between its rows; entries and their number; dense weights, their
    rows, columns, bytes between columns; places of the outer taps and their number; result, bytes between its rows and
    columns; tiles to walk along the line, lanes of the last one; constants; for sums done again: panel, bytes between
    its rows, entries, their number, rows and columns that a window is longer than 1 (rows -1 if not these alone), and
    room for a vector, then for a number whose level window was summed last, and the sum.
    """

    panel: Buffer
    row: Int
    entries: Buffer
    n: Int
    weights: Buffer
    down: Int
    along: Int
    tap: Int
    places: Buffer
    outer: Int
    y: Buffer
    y_row: Int
    y_column: Int
    times: Int
    last: Int
    constants: Buffer
    panel_again: Buffer
    row_again: Int
    entries_again: Buffer
    n_again: Int
    down_again: Int
    along_again: Int
    room: Buffer


class SumAgain(Signature):
    """Panel at a vector's first tap, entries and their number, constants, and room for the vector."""

    panel: Buffer
    entries: Buffer
    n: Int
    constants: Buffer
    room: Buffer


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


@dataclass(frozen=True, slots=True)
class FieldTile:
    """A kind of tile.

    Parameters
    ----------
    panel : str
        LLVM element of the panels and of the sums.
    fused : bool
        Whether a product and its addition may be rounded once.
    form : str
        ``dense``: rows of outputs share what they read, all taps of a box of them.  ``listed``: a list of taps.
        ``even`` and ``odd``: the middle tap, then pairs of taps whose values are added, or subtracted, first.
    target : str
        dtype of the results; empty where sums go to a panel as they are.
    inside : bool
        Whether results go to a panel, rounded to ``target`` first.
    bounded : bool
        Whether sums surely fit the integer that they are cut to.
    divided : bool
        Whether sums are divided by a constant.
    doubt : str
        Which sums are done again, in double and in order: ``finite`` those that are not finite, ``whole`` those near a
        whole number, which are to be cut to integers.
    blocked : bool
        Whether dense sums are formed line by line, for a bound that grows with lines and columns, not their product.
    truth : bool
        Whether results are 1 for all but 0.
    spread : bool
        Whether columns of the result lie apart.
    from_zero : bool
        Whether a sum begins with 0, so that it is never -0, or with its first product.
    asks : bool
        Whether lines of the result are asked for ahead.
    """

    panel: str
    fused: bool
    form: str
    target: str
    inside: bool = False
    bounded: bool = False
    divided: bool = False
    doubt: str = ""
    blocked: bool = False
    truth: bool = False
    spread: bool = False
    from_zero: bool = True
    asks: bool = False


def field_line(k: Module, name: str, spec: FieldLine, lanes: int, *, f16c: bool) -> None:
    """Add ``name``, a ``LineIn``: columns ``first`` to ``first + count`` of a line, also from beyond its ends.

    The table has columns of the field; -1 stands for the constant of the border.
    """
    dtype = DTYPES[spec.source]
    kind = vector(spec.panel, lanes)
    memory = kind.of(LLVM_NAMES[spec.source])
    convert = partial(widen, k, dtype=dtype, to=spec.panel, f16c=f16c)
    with k.function(name, LineIn) as g:
        source, step, table, place, first, columns = g.source, g.step, g.table, g.place, g.first, g.columns
        target, constants, ahead, count = g.target, g.constants, g.ahead, g.count
        filling = k.load(kind.scalar, constants + FILLING)
        head = k.minimum(k.maximum(0 - first, 0), count)
        tail = k.minimum(k.maximum(columns - first, head), count)

        def beyond(low: Value, high: Value, shift: Value | int) -> None:
            with k.loop(low, high) as i:
                at = k.word(table, place + first + i.index - shift)
                with k.choice(at >= 0, [filling]) as found:
                    found.next(convert(k.load(memory.scalar, source + at * step)))
                k.store(found.results[0], target + i.index * kind.element_bytes)

        def inside(i: Value, mask: Mask | None) -> None:
            here, to = source + (first + i) * step, target + i * kind.element_bytes
            if spec.asks:
                k.prefetch(here + ahead, far=True)
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
        beyond(tail, count, columns)


def field_tiles(k: Module, spec: FieldTile, lanes: int, rows: int, vectors: int, *, f16c: bool) -> None:
    """Add tiles ``rows``, ``rows_end``, ``row`` and ``row_end``, of several rows or one.

    The first and third are as wide as so many vectors, the others are a vector whose last lanes may be left out.
    """
    again = _Again(k, spec, lanes) if spec.doubt else None
    if again is not None:
        again.define("again")
    for name, height in (("rows", rows), ("row", 1)):
        _tile(k, name, spec, again, lanes, height, vectors, ends=False, f16c=f16c)
        _tile(k, f"{name}_end", spec, again, lanes, height, 1, ends=True, f16c=f16c)


def _tile(k: Module, name: str, spec: FieldTile, again: _Again | None, lanes: int, rows: int, vectors: int, *,
          ends: bool, f16c: bool) -> None:  # fmt: skip
    kind = vector(spec.panel, lanes)
    with k.function(name, TileOfField) as g:
        y_row, y_column, constants = g.y_row, g.y_column, g.constants
        sum_up = _Sums(k, spec, kind, rows, vectors)
        out = _Out(k, spec, kind, y_column, constants, f16c=f16c)
        with k.loop(0, g.times, carry=[g.panel, g.y, g.panel_again]) as group:
            at, to, at_again = group.values
            if spec.asks:
                out.ask(to + y_row * rows, y_row, rows, vectors)
            if spec.form == "dense":
                sums = sum_up.dense(at, g.row, g.weights, g.down, g.along, g.tap, g.places, g.outer)
            else:
                sums = sum_up.listed(at, g.row, g.entries, g.n)
            mask = k.mask(k.select((group.index + 1).equals(g.times), g.last, lanes), lanes) if ends else None
            sums = [out.divided(value) for value in sums]
            if again is not None:
                sums = again.settled(
                    sums, vectors, at_again, g.row_again, constants, g.entries_again, g.n_again, g.down_again,
                    g.along_again, g.room,
                )  # fmt: skip
            for r in range(rows):
                for v in range(vectors):
                    out.store(sums[r * vectors + v], to + y_row * r + y_column * (v * lanes), mask)
            group.next(at + vectors * kind.bytes, to + y_column * (vectors * lanes), at_again + vectors * kind.bytes)


@dataclass(frozen=True, slots=True)
class _Sums:
    """How the sums of a tile come about: ``rows`` of ``vectors`` each."""

    k: Module
    spec: FieldTile
    kind: Type
    rows: int
    vectors: int

    def values(self, place: Buffer) -> list[Value]:
        """A row's worth of the panel."""
        k, read = self.k, self.kind.of(self.spec.panel)
        found = [k.load(read, place + v * read.bytes) for v in range(self.vectors)]
        return found if read == self.kind else [_double(k, value) for value in found]

    def add(self, total: Value, value: Value, weight: Value) -> Value:
        """A product more."""
        return self.k.fma(weight, value, total) if self.spec.fused else total + weight * value

    def dense(self, at: Buffer, row: Value, weights: Buffer, down: Value, along: Value, tap: Value, places: Buffer,
              outer: Value) -> list[Value]:  # fmt: skip
        """Sums over all taps: a row of the panel is read once for all rows of outputs that it has taps in.

        There are at least as many rows of taps as of outputs: output row r meets line i with taps row i - r, so rows
        join one by one at first, and leave one by one at last.
        """
        k, rows, sums = self.k, self.rows, [self.k.constant(self.kind, 0)] * (self.rows * self.vectors)
        line = along * self.kind.element_bytes

        def taps(place: Buffer, weight: Buffer, first: int, end: int, sums: Sequence[Value]) -> list[Value]:
            """One line of the panel for rows first..end; the weights of the first of them, others lie before."""
            start = [k.constant(self.kind, 0)] * len(sums) if self.spec.blocked else sums
            with k.loop(0, along, carry=[place, weight, *start], runs=True) as j:
                a, b, *total = j.values
                values = self.values(a)
                for r in range(first, end):
                    w = k.broadcast(self.kind, b + (0 - line) * (r - first) if r > first else b)
                    for v, value in enumerate(values):
                        total[r * self.vectors + v] = self.add(total[r * self.vectors + v], value, w)
                j.next(a + tap, b + self.kind.element_bytes, *total)
            found = j.results[2:]
            if not self.spec.blocked:
                return found
            meant = range(first * self.vectors, end * self.vectors)
            return [one + found[i] if i in meant else one for i, one in enumerate(sums)]

        with k.loop(0, outer, carry=[weights, *sums], runs=True) as o:
            w, *sums = o.values
            begin = at + k.word(places, o.index)
            for i in range(rows - 1):
                sums = taps(begin + row * i if i else begin, w + line * i if i else w, 0, i + 1, sums)
            start = [begin + row * (rows - 1) if rows > 1 else begin, w + line * (rows - 1) if rows > 1 else w, *sums]
            with k.loop(rows - 1, down, carry=start, runs=True) as middle:
                place, weight, *sums = middle.values
                middle.next(place + row, weight + line, *taps(place, weight, 0, rows, sums))
            sums = middle.results[2:]
            for i in range(rows - 1):
                sums = taps(begin + row * (down + i), w + line * (down - 1), i + 1, rows, sums)
            o.next(w + line * down, *sums)
        return o.results[1:]

    def listed(self, at: Buffer, row: Value, entries: Buffer, n: Value) -> list[Value]:
        """Sums over a list of taps, or of pairs of them after the middle one."""
        k, size, width = self.k, 8 * ENTRY_WORDS[self.spec.form], self.vectors
        paired = self.spec.form in ("even", "odd")
        # -0 and a product is that product, whatever it is; 0 and a product of -0 is 0
        sums = [k.constant(self.kind, 0.0 if self.spec.from_zero else -0.0)] * (self.rows * width)

        def taps(entry: Buffer, pairs: bool, sums: Sequence[Value]) -> list[Value]:
            weight = k.broadcast(self.kind, entry + (size - 8))
            here = at + k.word(entry)
            there = at + k.word(entry, 1) if pairs else here
            total = list(sums)
            for r in range(self.rows):
                values = self.values(here + row * r if r else here)
                if pairs:
                    others = self.values(there + row * r if r else there)
                    both = zip(values, others, strict=True)
                    values = [a + b if self.spec.form == "even" else a - b for a, b in both]
                for v, value in enumerate(values):
                    total[r * width + v] = self.add(total[r * width + v], value, weight)
            return total

        if paired:
            sums = taps(entries, False, sums)
        with k.loop(int(paired), n, carry=[entries + (size if paired else 0), *sums]) as entry:
            place, *total = entry.values
            entry.next(place + size, *taps(place, paired, total))
        return entry.results[1:]


def _double(k: Module, value: Value) -> Value:
    return value if value.type.element == "double" else k.cast("fpext", value, value.type.of("double"))


@dataclass(frozen=True, slots=True)
class _Out:
    """How sums become results."""

    k: Module
    spec: FieldTile
    kind: Type
    column: Value
    constants: Buffer
    f16c: bool

    def divided(self, value: Value) -> Value:
        """A sum over what it is divided by, if it is."""
        return value / self.k.broadcast(self.kind, self.constants + DIVISOR) if self.spec.divided else value

    def ask(self, place: Buffer, row: Value, rows: int, vectors: int) -> None:
        """Ask for the lines that a tile writes at a place."""
        size = vectors * self.kind.lanes * DTYPES[self.spec.target].itemsize
        for r in range(rows):
            for line in range(0, size, 64):
                self.k.prefetch(place + row * r + line if r else place + line, writing=True)

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
            k.scatter(value, place, self.column, mask)
        elif mask is None:
            k.store(value, place)
        else:
            k.store_first(value, place, mask)


def _rounded(k: Module, spec: FieldTile, value: Value, *, f16c: bool) -> Value:
    """A sum as the result's type has it: floats to nearest even, integers cut towards zero, modulo their size."""
    dtype, kind = DTYPES[spec.target], value.type
    if dtype.is_float:
        if dtype.bits == 64:
            return _double(k, value)
        single = value if kind.element == "float" else k.cast("fptrunc", value, kind.of("float"))
        return narrow(k, single, dtype, f16c=f16c)
    wide = "i32" if dtype.bits < 32 or dtype.name == "i32" else "i64"
    if spec.bounded:
        cut = k.cast("fptosi", value, kind.of(wide))
    else:
        cut = (_cut_u64 if dtype.name == "u64" else _cut)(k, value, wide, from_zero=spec.from_zero)
    result = narrow(k, cut, dtype, f16c=f16c)
    return k.cast("zext", result.equals(0) ^ 1, result.type) if spec.truth else result


def _cut(k: Module, value: Value, to: str, **_: bool) -> Value:
    """Towards zero; beyond the range, and for NaN, the least number, as x86's conversion has it."""
    kind = value.type.of(to)
    bits = 8 * kind.element_bytes
    beyond, least = 2.0 ** (bits - 1), -(2 ** (bits - 1))
    # what is cut may reach below the least number by less than 1, if the float has a fraction there
    fits = (value > -beyond - 1 if bits == 32 else value >= -beyond) & (value < beyond)
    return k.select(fits, k.cast("fptosi", k.select(fits, value, 0.0), kind), least)


def _cut_u64(k: Module, value: Value, to: str, *, from_zero: bool) -> Value:
    """The same in two halves of the range; in SciPy's windows, which begin at 0, a negative number by its size."""
    below = value < 0.0
    size = k.select(below, -value, value) if from_zero else value
    high = size >= 2.0**63
    cut = _cut(k, k.select(high, size - 2.0**63, size), to)
    cut = k.select(high, cut ^ -(2**63), cut)
    return k.select(below, 0 - cut, cut) if from_zero else cut


_MIDDLE = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}
"""Where the last digit of a float counts ones; it stays so for sums of up to a third of it."""


@dataclass(frozen=True, slots=True)
class _Again:
    """Sums that are in doubt, done again in double, rounded after every step, in the order of their taps."""

    k: Module
    spec: FieldTile
    lanes: int

    def define(self, name: str) -> None:
        """Add ``name(panel, entries, n, constants, room)``: one vector of sums, stored in the room."""
        k, spec = self.k, self.spec
        slow = FieldTile(spec.panel, False, "listed", "")
        with k.function(name, SumAgain) as g:
            panel, entries, n, constants, room = g.panel, g.entries, g.n, g.constants, g.room
            kind = vector("double", self.lanes)
            [value] = _Sums(k, slow, kind, 1, 1).listed(panel, k.constant(INT, 0), entries, n)
            if spec.divided:
                divisor = k.load(Type(spec.panel), constants + DIVISOR)
                value = value / k.splat(_double(k, divisor), self.lanes)
            if spec.doubt == "whole":
                value = k.cast("sitofp", k.cast("fptosi", value, kind.of("i32")), kind)
            k.store(value if spec.panel == "double" else k.cast("fptrunc", value, kind.of("float")), room)

    def settled(self, sums: list[Value], vectors: int, panel: Buffer, row: Value, constants: Buffer, entries: Buffer,
                n: Value, down: Value, along: Value, room: Buffer) -> list[Value]:  # fmt: skip
        """The sums of a tile, each in doubt replaced."""
        k = self.k
        kind = sums[0].type
        doubts = self._doubts(sums, constants)
        any_ = doubts[0]
        for one in doubts[1:]:
            any_ = any_ | one

        def again(value: Value, doubt: Value, r: int, v: int) -> Value:
            with k.choice(k.any(doubt) > 0, [value]) as done:
                place = panel + row * r if r else panel
                k.call("again", SumAgain(place + v * kind.bytes, entries, n, constants, room))
                done.next(k.select(doubt, k.load(kind, room), value))
            found: Value = done.results[0]
            return found

        with k.choice(k.any(any_) > 0, sums) as chosen:
            is_level = k.constant(INT, 0)
            if self.spec.doubt == "whole":
                is_level = self._level(panel, row, down + len(sums) // vectors, along + vectors * self.lanes, down >= 0)
            with k.choice(is_level.equals(0), sums) as apart:
                each = zip(sums, doubts, strict=True)
                apart.next(*(again(value, doubt, *divmod(i, vectors)) for i, (value, doubt) in enumerate(each)))
            with k.choice(is_level > 0, apart.results) as level:
                one = self._level_sum(panel, entries, n, constants, room)
                level.next(*[one] * len(sums))
            chosen.next(*level.results)
        return chosen.results

    def _level(self, panel: Buffer, row: Value, rows: Value, columns: Value, known: Value) -> Value:
        """1 if all that the windows of a tile meet is one number, else 0; lines after one that is not cost nothing."""
        k, kind = self.k, vector(self.spec.panel, self.lanes)
        number = k.splat(k.load(kind.scalar, panel), self.lanes)
        with k.loop(0, rows, carry=[k.cast("zext", known, INT)]) as line:
            with k.choice(line.values[0] > 0, line.values) as so_far:
                place = panel + line.index * row
                with k.loop(0, columns, self.lanes, carry=[k.constant(INT, 1)]) as c:
                    here = k.load(kind, place + c.index * kind.element_bytes).equals(number) ^ 1
                    apart = k.any(here & k.mask(columns - c.index, self.lanes).bits)
                    c.next(k.select(apart > 0, 0, c.values[0]))
                so_far.next(c.results[0])
            line.next(so_far.results[0])
        found: Value = line.results[0]
        return found

    def _level_sum(self, panel: Buffer, entries: Buffer, n: Value, constants: Buffer, room: Buffer) -> Value:
        """The sum of a window of one number in every lane; the last number's is kept."""
        k, kind = self.k, vector(self.spec.panel, self.lanes)
        number, place = k.load(kind.scalar, panel), room + kind.bytes
        with k.when(k.load(kind.scalar, place).equals(number), otherwise=True):
            k.call("again", SumAgain(panel, entries, n, constants, room))
            k.store(number, place)
            k.store(k.load(kind.scalar, room), place + 8)
        return k.broadcast(kind, place + 8)

    def _doubts(self, sums: list[Value], constants: Buffer) -> list[Value]:
        k, kind = self.k, sums[0].type
        if self.spec.doubt == "finite":
            return [(value - value).is_nan() for value in sums]
        bound = k.broadcast(kind, constants + DOUBT)
        near, middle = [], _MIDDLE[kind.element]
        for value in sums:
            whole = value + middle - middle  # rounded to the last digit before the point
            # about 0 both sides are cut to 0
            near.append((k.intrinsic("fabs", kind, value - whole) <= bound) & (whole.equals(0.0) ^ 1))
        return near
