"""Stages: what a block copies to shared memory, so many bytes of every row of pixels and of every column of weights.

Every thread copies the same 16-byte piece of some rows, and finds a pixel's place once.  What padding, the end of a
group's channels or a row beyond the result would read becomes zeros; its address is that of the array's start.  Where
inputs have a zero point, padding is read from an array of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyconv.dataclass import dataclass
from polyconv.gpu.geometry import reaches_out
from polyconv.gpu.language import Kernel, Pointer, Value, both
from polyconv.lowering.sweep import Axis

if TYPE_CHECKING:
    from polyconv.gpu.kernels.gemm import Gemm

__all__ = ["Stages", "swizzled"]

_FAR = -(1 << 30)
"""A position that is outside every image."""


def swizzled(row: Value, size: int) -> Value:
    """What the number of a 16-byte piece is xor-ed with in a row of ``size`` bytes, 128 or 64."""
    return row & 7 if size == 128 else (row >> 1) & 3


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that a thread copies: whether there is one, where its first tap lies, and the position on each axis."""

    guard: Value | None
    inside: Value | None
    base: Value
    positions: tuple[Value, ...]


class Stages:
    """Copies of one block.

    Parameters
    ----------
    k : Kernel
    s : Gemm
    first_row, first_column, group : Value
        Of the block.
    """

    def __init__(self, k: Kernel, s: Gemm, first_row: Value, first_column: Value, group: Value) -> None:
        self.k, self.s = k, s
        g, tile, unit = s.g, s.tile, s.unit
        self.size = unit.element_bytes
        pieces = tile.bytes // 16
        self.piece, row = k.thread % pieces, k.thread // pieces
        self.step = unit.threads // pieces
        assert self.step % 8 == 0, "rows that a thread copies must share a swizzle"
        assert g.c * self.size % 16 == 0, "channels of a group must fill pieces"
        self.target = k.base + row * tile.bytes + ((self.piece ^ swizzled(row, tile.bytes)) << 4)
        columns = tile.columns * unit.parts
        self.bytes = (tile.rows + columns) * tile.bytes
        self.of_x = [self._pixel(first_row, row, i, group) for i in range(-(-tile.rows // self.step))]
        self.of_w = [self._column(first_column, row, i, group) for i in range(-(-columns // self.step))]

    def _guard(self, row: Value, turn: int, rows: int) -> tuple[Value, Value | None]:
        at = row + turn * self.step
        return at, at < rows if (turn + 1) * self.step > rows else None

    def _pixel(self, first_row: Value, row: Value, turn: int, group: Value) -> _Row:
        k, g = self.k, self.s.g
        row, guard = self._guard(row, turn, self.s.tile.rows)
        rest = first_row + row
        inside = rest < g.pixels if g.pixels % self.s.tile.rows else None
        positions: list[Value] = []
        for axis in reversed(g.axes):
            at = k.value(0)
            if axis.out > 1:
                at, rest = rest % axis.out, rest // axis.out
            positions.append(at * axis.stride - axis.pad)
        positions.reverse()
        base = group * (g.x.of_group(g.c) * self.size) if g.groups > 1 else k.value(0)
        if g.n > 1:
            base = base + rest * (g.x.n * self.size)
        for at, step in zip(positions, g.x.spatial, strict=True):
            base = base + at * (step * self.size)
        if inside is not None and g.is_padded:
            last = max(a for a, axis in enumerate(g.axes) if reaches_out(axis))
            positions[last] = k.pick(inside, positions[last], _FAR)
        return _Row(guard, inside, base, tuple(positions))

    def _column(self, first_column: Value, row: Value, turn: int, group: Value) -> _Row:
        k, s, g = self.k, self.s, self.s.g
        columns = s.tile.columns
        row, guard = self._guard(row, turn, columns * s.unit.parts)
        part, at = k.value(0), row
        if s.unit.parts > 1:
            part, at = row // columns, row % columns
        channel = first_column + at
        inside = channel < g.m if g.m % columns else None
        whole = channel + group * g.m if g.groups > 1 else channel
        whole = whole + part * (g.m * g.groups) if s.unit.parts > 1 else whole
        return _Row(guard, inside, whole * (g.taps * g.c * self.size), ())

    def copy(self, step: Value, place: Value) -> None:
        """Begin to copy stage ``step`` of the sum to a place in shared memory, in bytes from its start."""
        k, g = self.k, self.s.g
        taps, channel, valid = self._where(step)
        target = self.target + place
        shift, at = channel * self.size, k.value(0)
        for axis, tap, along in zip(g.axes, taps, g.x.spatial, strict=True):
            shift = shift + tap * (axis.dilation * along * self.size)
            at = at * axis.taps + tap
        for i, row in enumerate(self.of_x):
            ok = valid
            for axis, tap, position in zip(g.axes, taps, row.positions, strict=True):
                if reaches_out(axis):
                    ok = both(ok, _inside(axis, tap, position))
            if not g.is_padded:
                ok = both(ok, row.inside)
            source = Pointer("x", row.base + shift)
            if self.s.reads_padding and ok is not None:
                padding = k.select(ok, k.address(source), k.address(Pointer("padding", channel * self.size)))
                self._copy(target, padding, valid, row.guard, i)
            else:
                self._copy(target, source, ok, row.guard, i)
        weights = (at * g.c + channel) * self.size
        below = self.s.tile.rows * self.s.tile.bytes
        for i, column in enumerate(self.of_w):
            ok = both(valid, column.inside)
            self._copy(target, Pointer("w", column.base + weights), ok, column.guard, i, below)

    def _copy(self, target: Value, source: Pointer | Value, ok: Value | None, guard: Value | None, turn: int,
              below: int = 0) -> None:  # fmt: skip
        """Copy a piece of a row, or zeros; the address is the array's own start then, or one that can be read."""
        k = self.k
        offset = below + turn * self.step * self.s.tile.bytes
        with k.only(guard):
            if ok is not None and isinstance(source, Pointer):
                source = Pointer(source.argument, k.pick(ok, source.offset or 0, 0))
            k.copy(target, source, 16 if ok is None else k.pick(ok, 16, 0), offset)

    def _where(self, step: Value) -> tuple[list[Value], Value, Value | None]:
        """Taps on every axis and first channel of this thread's piece, and whether there is such a one."""
        k, g = self.k, self.s.g
        elements = self.s.tile.bytes // self.size
        mine = self.piece * (16 // self.size)
        valid = None
        if g.c % elements == 0:
            stages = g.c // elements
            tap = step // stages
            channel = (step % stages) * elements + mine if stages > 1 else mine
        else:
            at, total = step * elements + mine, g.taps * g.c
            valid = at < total if total % elements else None
            tap, channel = at // g.c, at % g.c
        taps: list[Value] = []
        for a, axis in reversed(list(enumerate(g.axes))):
            if axis.taps == 1:
                taps.append(k.value(0))
            elif all(before.taps == 1 for before in g.axes[:a]):
                taps.append(tap)
            else:
                taps.append(tap % axis.taps)
                tap = tap // axis.taps
        return list(reversed(taps)), channel, valid


def _inside(axis: Axis, tap: Value, position: Value) -> Value:
    return (tap * axis.dilation + position if axis.taps > 1 else position).below(axis.inp)
