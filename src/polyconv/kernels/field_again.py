"""Sums in doubt, done again: in double, rounded after every step, in the order of their taps.

Fast sums may overflow where SciPy's do not, or lie so near a whole number that it cannot be told which side of it
SciPy's sum is cut on.  Where all that a tile meets is one number, one sum is done for all of them, and kept.  It must
not know why sums are fast.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.kernels.field_sums import FieldTile, Sums, TilesOfField, double
from polyconv.kernels.language import INT, Buffer, Module, Type, Value, vector
from polyconv.kernels.signature import Int, Signature

__all__ = ["DIVISOR", "DOUBT", "Again", "SumAgain"]

DIVISOR, DOUBT = 0, 8
"""Where constants lie: what sums are divided by, and how far from a whole number one is in no doubt."""

_NAME = "again"


class SumAgain(Signature):
    """One vector of sums over ``count`` entries, stored in the room."""

    panel: Buffer
    entries: Buffer
    count: Int
    constants: Buffer
    room: Buffer


_MIDDLE = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}
"""Where the last digit of a float counts ones; it stays so for sums of up to a third of it."""


@dataclass(frozen=True, slots=True)
class Again:
    """Sums that are in doubt, done again in double, rounded after every step, in the order of their taps."""

    k: Module
    spec: FieldTile
    lanes: int

    def define(self) -> None:
        """Add the function that does a vector of sums again."""
        k, spec = self.k, self.spec
        slow = FieldTile(spec.panel, False, "listed", "")
        with k.function(_NAME, SumAgain) as given:
            kind = vector("double", self.lanes)
            [value] = Sums(k, slow, kind, 1, 1).over(given.panel, 0, given.entries, given.count)
            if spec.divided:
                divisor = k.load(Type(spec.panel), given.constants + DIVISOR)
                value = value / k.splat(double(k, divisor), self.lanes)
            if spec.doubt == "whole":
                value = k.cast("sitofp", k.cast("fptosi", value, kind.of("i32")), kind)
            k.store(value if spec.panel == "double" else k.cast("fptrunc", value, kind.of("float")), given.room)

    def settled(self, sums: list[Value], vectors: int, panel: Buffer, given: TilesOfField) -> list[Value]:
        """The sums of a tile, whose taps lie at ``panel``, each in doubt replaced."""
        k = self.k
        doubts = self._doubts(sums, given.constants)
        any_ = doubts[0]
        for one in doubts[1:]:
            any_ = any_ | one
        with k.choice(k.any(any_) > 0, sums) as chosen:
            is_level = k.constant(INT, 0)
            if self.spec.doubt == "whole":
                is_level = self._level(panel, len(sums) // vectors, vectors * self.lanes, given)
            with k.choice(is_level.equals(0), sums) as apart:
                each = zip(sums, doubts, strict=True)
                apart.next(*(
                    self._again(value, doubt, panel, *divmod(i, vectors), given)
                    for i, (value, doubt) in enumerate(each)
                ))  # fmt: skip
            with k.choice(is_level > 0, apart.results) as level:
                level.next(*[self._level_sum(panel, given)] * len(sums))
            chosen.next(*level.results)
        return chosen.results

    def _call(self, panel: Buffer, given: TilesOfField) -> None:
        of = SumAgain(panel, given.again_entries, given.again_count, given.constants, given.room)
        self.k.call(_NAME, of)

    def _again(self, value: Value, doubt: Value, panel: Buffer, r: int, v: int, given: TilesOfField) -> Value:
        """A vector of sums, those in doubt done again."""
        k, kind = self.k, value.type
        with k.choice(k.any(doubt) > 0, [value]) as done:
            place = panel + given.again_row * r if r else panel
            self._call(place + v * kind.bytes, given)
            done.next(k.select(doubt, k.load(kind, given.room), value))
        found: Value = done.results[0]
        return found

    def _level(self, panel: Buffer, rows: int, columns: int, given: TilesOfField) -> Value:
        """1 if all that the windows of a tile meet is one number, else 0; lines after one that is not cost nothing."""
        k, kind = self.k, vector(self.spec.panel, self.lanes)
        number, width = k.splat(k.load(kind.scalar, panel), self.lanes), given.again_along + columns
        known = k.cast("zext", given.again_down >= 0, INT)
        with k.loop(0, given.again_down + rows, carry=[known]) as line:
            with k.choice(line.values[0] > 0, line.values) as so_far:
                place = panel + line.index * given.again_row
                with k.loop(0, width, self.lanes, carry=[k.constant(INT, 1)]) as c:
                    here = k.load(kind, place + c.index * kind.element_bytes).equals(number) ^ 1
                    apart = k.any(here & k.mask(width - c.index, self.lanes).bits)
                    c.next(k.select(apart > 0, 0, c.values[0]))
                so_far.next(c.results[0])
            line.next(so_far.results[0])
        found: Value = line.results[0]
        return found

    def _level_sum(self, panel: Buffer, given: TilesOfField) -> Value:
        """The sum of a window of one number in every lane; the last number's is kept."""
        k, kind = self.k, vector(self.spec.panel, self.lanes)
        number, place = k.load(kind.scalar, panel), given.room + kind.bytes
        with k.when(k.load(kind.scalar, place).equals(number), otherwise=True):
            self._call(panel, given)
            k.store(number, place)
            k.store(k.load(kind.scalar, given.room), place + 8)
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
