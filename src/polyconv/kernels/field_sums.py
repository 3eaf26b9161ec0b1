"""Sums over windows of a panel, in registers: all taps of a box of them, or a list.

Sums in ``double`` that are not ``fused`` are rounded after every product and every addition, in the order of their
taps: that fixes each bit.  It must not know where sums go.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.kernels.language import Buffer, Module, Type, Value
from polyconv.kernels.signature import Int, Signature

__all__ = ["ENTRY_WORDS", "FieldTile", "Sums", "TilesOfField", "double"]

ENTRY_WORDS = {"dense": 0, "listed": 2, "even": 3, "odd": 3}
"""Words of an entry by form: offsets, then a weight in the sum's type."""


class TilesOfField(Signature):
    """So many ``tiles`` along a line of outputs, or several lines; of the last one so many lanes count.

    The first output's first tap lies at ``panel``, the next row of the panel ``row`` bytes further on.  Taps are
    ``entries``, or they are dense: ``weights`` of ``down`` rows of ``along`` taps, ``tap`` bytes apart, for every one
    of the ``outer`` ones, whose places in the panel are listed.  What starts with ``again`` is for sums that are done
    again: their panel, row and entries; rows and columns that a window is longer than 1, or -1 where it is longer
    along other axes too; and ``room`` for a vector, then for the number whose level window was summed last, and its
    sum.
    """

    panel: Buffer
    row: Int
    entries: Buffer
    entry_count: Int
    weights: Buffer
    down: Int
    along: Int
    tap: Int
    places: Buffer
    outer: Int
    y: Buffer
    y_row: Int
    y_column: Int
    tiles: Int
    last: Int
    constants: Buffer
    again: Buffer
    again_row: Int
    again_entries: Buffer
    again_count: Int
    again_down: Int
    again_along: Int
    room: Buffer


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


@dataclass(frozen=True, slots=True)
class Sums:
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
        return found if read == self.kind else [double(k, value) for value in found]

    def add(self, total: Value, value: Value, weight: Value) -> Value:
        """A product more."""
        return self.k.fma(weight, value, total) if self.spec.fused else total + weight * value

    def dense(self, at: Buffer, given: TilesOfField) -> list[Value]:
        """Sums over all taps: a row of the panel is read once for all rows of outputs that it has taps in.

        There are at least as many rows of taps as of outputs: output row r meets line i with taps row i - r, so rows
        join one by one at first, and leave one by one at last.
        """
        k, rows, sums = self.k, self.rows, [self.k.constant(self.kind, 0)] * (self.rows * self.vectors)
        row, along, tap = given.row, given.along, given.tap
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

        with k.loop(0, given.outer, carry=[given.weights, *sums], runs=True) as o:
            w, *sums = o.values
            begin = at + k.word(given.places, o.index)
            for i in range(rows - 1):
                sums = taps(begin + row * i if i else begin, w + line * i if i else w, 0, i + 1, sums)
            start = [begin + row * (rows - 1) if rows > 1 else begin, w + line * (rows - 1) if rows > 1 else w, *sums]
            with k.loop(rows - 1, given.down, carry=start, runs=True) as middle:
                place, weight, *sums = middle.values
                middle.next(place + row, weight + line, *taps(place, weight, 0, rows, sums))
            sums = middle.results[2:]
            for i in range(rows - 1):
                sums = taps(begin + row * (given.down + i), w + line * (given.down - 1), i + 1, rows, sums)
            o.next(w + line * given.down, *sums)
        return o.results[1:]

    def listed(self, at: Buffer, given: TilesOfField) -> list[Value]:
        """Sums over a list of taps, or of pairs of them after the middle one."""
        return self.over(at, given.row, given.entries, given.entry_count)

    def over(self, at: Buffer, row: Value | int, entries: Buffer, count: Value) -> list[Value]:
        """Sums over a list of some entries."""
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
                values = self.values(here + r * row if r else here)
                if pairs:
                    others = self.values(there + r * row if r else there)
                    both = zip(values, others, strict=True)
                    values = [a + b if self.spec.form == "even" else a - b for a, b in both]
                for v, value in enumerate(values):
                    total[r * width + v] = self.add(total[r * width + v], value, weight)
            return total

        if paired:
            sums = taps(entries, False, sums)
        with k.loop(int(paired), count, carry=[entries + (size if paired else 0), *sums]) as entry:
            place, *total = entry.values
            entry.next(place + size, *taps(place, paired, total))
        return entry.results[1:]


def double(k: Module, value: Value) -> Value:
    """Floats as doubles; doubles as they are."""
    return value if value.type.element == "double" else k.cast("fpext", value, value.type.of("double"))
