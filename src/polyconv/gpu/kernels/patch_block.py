"""What one block of a patch kernel does: a warp copies, warp groups multiply, and all store.

A warp of its own starts the copies; barriers of shared memory tell it what is free, and the others what has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polyconv.dtypes import DTYPES
from polyconv.gpu.kernels.arithmetic import PASSES, halves
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.kernels.repair import Product
from polyconv.gpu.kernels.results import Lying, Place, store_results
from polyconv.gpu.kernels.units import Parts
from polyconv.gpu.language import F32, Kernel, Pointer, Value, Variable, both

if TYPE_CHECKING:
    from polyconv.gpu.kernels.patch import Patch

__all__ = ["PATCHES", "ROW", "Block"]

ROW = 128
"""Bytes of channels of a pixel in a patch."""
PATCHES = 2
"""Of a block in shared memory."""
_SQUARE = 8


class Block:
    """What one block does."""

    def __init__(self, k: Kernel, s: Patch, rank: Value, column: Value, first: tuple[Value, ...], n: Value) -> None:
        self.k, self.s, self.rank, self.column, self.first, self.n = k, s, rank, column, first, n
        self.start, self.end = rank * s.steps // s.tile.split, (rank + 1) * s.steps // s.tile.split
        self.lane, self.warp = k.thread & 31, k.thread >> 5
        base = k.base + s.barriers
        self.patch_full, self.patch_free = base, base + 8 * PATCHES
        self.slot_full = base + 16 * PATCHES
        self.slot_free = self.slot_full + 8 * s.tile.slots
        self.weights = k.base + PATCHES * s.patch_bytes

    def run(self) -> None:
        """All of it."""
        k, s, tile = self.k, self.s, self.s.tile
        warps = 4 * tile.groups
        with k.when(k.thread.equals(0)):
            for full, free, count in (
                (self.patch_full, self.patch_free, PATCHES), (self.slot_full, self.slot_free, tile.slots),
            ):  # fmt: skip
                for i in range(count):
                    k.barrier_begin(full + 8 * i, 1)
                    k.barrier_begin(free + 8 * i, warps)
            k.barriers_begun()
        k.barrier()
        with k.when(self.warp.equals(warps)), k.when(self.lane.equals(0)):
            self._copy()
        squares = tile.height * tile.width // (64 * tile.groups)
        sums = [[k.variable(0, F32) for _ in range(tile.columns // 2)] for _ in range(squares)]
        with k.when(self.warp < warps):
            self._multiply(sums)
        k.barrier()  # every patch and slot has been read: sums may take their place
        with k.when(self.warp < warps):
            self._write(sums)
        lie = Lying(tile.height * tile.width, tile.columns, 128 * tile.groups, tile.split, s.pitch, F32)
        again = self._again if s.g.is_padded or s.arithmetic.three else None
        first_column = self.column * tile.columns
        store_results(k, s.g, lie, self.rank, self._output, first_column, k.value(0), again)

    # -- copies ------------------------------------------------------------------------------------

    def _copy(self) -> None:
        k, s = self.k, self.s
        patches, slots = _Ring(k, PATCHES, 1), _Ring(k, s.tile.slots, 1)
        height, width = s.box
        with k.loop(self.start, self.end) as step:
            tap = step % s.plane_taps
            with k.when(step.equals(self.start) | tap.equals(0)):
                i = patches.index()
                k.barrier_wait(self.patch_free + i * 8, patches.parity())
                full = self.patch_full + i * 8
                k.barrier_expect(full, height * width * ROW)
                k.copy_box(k.base + i * s.patch_bytes, self._corner(step // s.plane_taps), full)
                patches.advance()
            i = slots.index()
            k.barrier_wait(self.slot_free + i * 8, slots.parity())
            full, part = self.slot_full + i * 8, s.slot_bytes // s.parts
            k.barrier_expect(full, s.slot_bytes)
            at = (self.column * s.steps + step) * part
            for half in range(s.parts):
                place = Pointer("w", at) + half * part * s.steps * s.across
                k.copy_bulk(self.weights + i * s.slot_bytes + half * part, place, part, full)
            slots.advance()

    def _corner(self, patch: Value) -> list[Value]:
        """First channel and position, from the last axis to the first, and image of a patch."""
        k, s = self.k, self.s
        found: list[Value] = []
        for axis, first in zip(reversed(s.g.axes), reversed(self.first), strict=True):
            found.append(first - axis.pad)
        if len(s.g.axes) == 3:
            deep = s.g.axes[0]
            found[2] = self.first[0] * deep.stride - deep.pad + (patch % deep.taps) * deep.dilation
            patch = patch // deep.taps
        return [patch * s.channels, *found, self.n if s.g.n > 1 else k.value(0)]

    # -- products ----------------------------------------------------------------------------------

    def _multiply(self, sums: list[list[Variable]]) -> None:
        k, s = self.k, self.s
        three = s.arithmetic.three
        patches, slots = _Ring(k, PATCHES, 0), _Ring(k, s.tile.slots, 0)
        patch, before = k.variable(0), k.variable(0)
        across = s.g.axes[-1]
        totals = [[k.variable(0, F32) for _ in square] for square in sums] if s.tile.parts > s.tile.split else []
        parts = Parts(k, s.steps, s.tile.parts, lambda k: self._end_part(sums, totals)) if totals else None
        with k.loop(self.start, self.end) as step:
            tap = step % s.plane_taps
            with k.when(step.equals(self.start) | tap.equals(0)):
                i = patches.index()
                k.barrier_wait(self.patch_full + i * 8, patches.parity())
                patch.set(i)
                patches.advance()
            i = slots.index()
            k.barrier_wait(self.slot_full + i * 8, slots.parity())
            down, right = (tap // across.taps, tap % across.taps) if across.taps > 1 else (tap, k.value(0))
            shift = down * (s.g.axes[-2].dilation * s.box[1]) + right * across.dilation
            b = k.descriptor(self.weights + i * s.slot_bytes, ROW, 8 * ROW)
            if three:
                self._three(sums, patch.get(), shift, b)
                self._free(self.slot_free + i * 8)
                with k.when(tap.equals(s.plane_taps - 1)):
                    self._free(self.patch_free + patch.get() * 8)
            else:
                self._one(sums, patch.get(), shift, b)
                with k.when(self.start < step):  # what was read one step ago
                    self._free(self.slot_free + before.get() * 8)
                    with k.when(tap.equals(0)):
                        self._free(self.patch_free + (patch.get() ^ 1) * 8)
                before.set(i)
            slots.advance()
            if parts is not None:
                parts.after(step)
        self._settle(sums)
        for square, of_square in zip(sums, totals, strict=False):
            for one, total in zip(square, of_square, strict=True):
                one.set(total.get())

    def _settle(self, sums: list[list[Variable]]) -> None:
        """Wait for all products."""
        k = self.k
        if not self.s.arithmetic.three:
            k.group_wait(0)
            flat = [one for square in sums for one in square]
            for one, total in zip(flat, k.settled([one.get() for one in flat]), strict=True):
                one.set(total)

    def _end_part(self, sums: list[list[Variable]], totals: list[list[Variable]]) -> None:
        """Add the sums to the totals, and begin sums anew."""
        k = self.k
        self._settle(sums)
        zero = k.constant(F32, 0.0)
        for square, of_square in zip(sums, totals, strict=True):
            for one, total in zip(square, of_square, strict=True):
                total.set(total.get() + one.get())
                one.set(k.emit(f"fadd {F32} {zero.name}, {zero.name}", F32))

    def _free(self, barrier: Value) -> None:
        with self.k.when(self.lane.equals(0)):
            self.k.barrier_arrive(barrier)

    def _square(self, number: int) -> Value:
        """First pixel, within a patch, of a square of this thread's warp group."""
        k, tile = self.k, self.s.tile
        square = (k.thread >> 7) * (tile.height * tile.width // (64 * tile.groups)) + number
        wide = tile.width // _SQUARE
        down, right = (square // wide, square % wide) if wide > 1 else (square, k.value(0))
        return down * (_SQUARE * self.s.box[1]) + right * _SQUARE

    @property
    def _shape(self) -> str:
        return f"m64n{self.s.tile.columns}{self.s.arithmetic.group}"

    def _one(self, sums: list[list[Variable]], patch: Value, shift: Value, b: Value) -> None:
        k, s = self.k, self.s
        k.group_fence()
        for number, square in enumerate(sums):
            at = k.base + patch * s.patch_bytes + (self._square(number) + shift) * ROW
            a, found = k.descriptor(at, ROW, s.box[1] * ROW), [one.get() for one in square]
            for step in range(ROW // 32):
                found = k.group_multiply(
                    self._shape, [a + 2 * step], b + 2 * step, found, add=True, modifiers=s.arithmetic.modifiers
                )
            for one, total in zip(square, found, strict=True):
                one.set(total)
        k.group_commit()
        k.group_wait(1)

    def _three(self, sums: list[list[Variable]], patch: Value, shift: Value, b: Value) -> None:
        k, s, lane = self.k, self.s, self.lane
        parts = b, b + (s.tile.columns * ROW >> 4)
        row = ((self.warp & 3) * 2 + ((lane >> 3) & 1)) * s.box[1] + (lane & 7)
        for number, square in enumerate(sums):
            pixel = self._square(number) + shift + row
            at = k.base + patch * s.patch_bytes + pixel * ROW + (((lane >> 4) ^ (pixel & 7)) << 4)
            a = [[halves(k, bits) for bits in k.load_matrices(at ^ (step * 32), 4)] for step in range(ROW // 32)]
            k.group_fence()
            zero = k.constant(F32, 0.0)
            found: Sequence[Value] = [k.emit(f"fadd {F32} {zero.name}, {zero.name}", F32)] * len(square)
            is_first = True
            for step, of_step in enumerate(a):
                for of_a, of_b in PASSES:
                    left: list[Any] = [half[of_a] for half in of_step]
                    found = k.group_multiply(
                        self._shape, left, parts[of_b] + 2 * step, found, add=not is_first, modifiers=", 1, 1"
                    )
                    is_first = False
            k.group_commit()
            k.group_wait(0)
            for one, more in zip(square, k.settled(found), strict=True):
                one.set(one.get() + more)

    # -- results -----------------------------------------------------------------------------------

    def _write(self, sums: list[list[Variable]]) -> None:
        k, s, lane = self.k, self.s, self.lane
        first = (k.thread >> 7) * (64 * len(sums)) + (self.warp & 3) * 16 + (lane >> 2)
        at = k.base + first * s.pitch + (lane & 3) * 8
        for number, square in enumerate(sums):
            for j in range(0, len(square), 4):
                one = [total.get() for total in square[j : j + 4]]
                k.store_shared(at, one[:2], number * 64 * s.pitch + j * 8)
                k.store_shared(at, one[2:], (number * 64 + 8) * s.pitch + j * 8)

    def _output(self, row: Value) -> tuple[Place, Value | None]:
        """The pixel of a row of sums."""
        k, s = self.k, self.s
        above, across = s.g.axes[-2:]
        square, inner = row >> 6, row & 63
        wide = s.tile.width // _SQUARE
        down, right = (square // wide, square % wide) if wide > 1 else (square, k.value(0))
        h = self.first[-2] + down * _SQUARE + (inner >> 3)
        w = self.first[-1] + right * _SQUARE + (inner & 7)
        inside = both(
            h < above.out if above.out % s.tile.height else None, w < across.out if across.out % s.tile.width else None
        )
        n = self.n if s.g.n > 1 else k.value(0)
        return Place(k, s.g, n, (*self.first[:-2], h, w)), inside

    def _again(self, place: Place, channel: Value) -> Product:
        k, s, g = self.k, self.s, self.s.g
        staged = ELEMENTS[s.arithmetic.staged]
        size, columns = DTYPES[s.arithmetic.staged].itemsize, s.tile.columns

        def wide(value: Value) -> Value:
            return value if value.type == F32 else k.cast("fpext", value, F32)

        def product(positions: Sequence[Value], tap: Value, c: Value) -> tuple[Value, Value]:
            at = place.n * g.x.n + c
            for position, step in zip(positions, g.x.spatial, strict=True):
                at = at + position * step
            in_plane, deep = tap % s.plane_taps, tap // s.plane_taps
            patches = g.taps // s.plane_taps
            step_ = (c // s.channels * patches + deep) * s.plane_taps + in_plane
            row, inner = channel % columns, c % s.channels
            piece = (inner // (16 // size)) ^ (row & 7)
            of_w = (channel // columns * s.steps + step_) * columns + row
            of_w = of_w * s.channels + piece * (16 // size) + inner % (16 // size)
            pointer = Pointer("w", of_w * size)
            w = wide(k.load(staged, pointer))
            if s.parts > 1:
                w = w + k.load(staged, pointer + size * s.across * s.steps * columns * s.channels)
            return wide(k.load(staged, Pointer("x", at * size))), w

        return product


class _Ring:
    """Places that are taken in turn: which is next, and the parity of the phase that its barrier completes."""

    def __init__(self, k: Kernel, count: int, parity: int) -> None:
        self.k, self.count = k, count
        self._index, self._parity = k.variable(0), k.variable(parity)

    def index(self) -> Value:
        """The next place."""
        return self._index.get()

    def parity(self) -> Value:
        """Of the phase to wait for."""
        return self._parity.get()

    def advance(self) -> None:
        """Go on to the place after it."""
        k = self.k
        after = self._index.get() + 1
        wraps = after.equals(self.count)
        self._parity.set(k.pick(wraps, self._parity.get() ^ 1, self._parity.get()))
        self._index.set(k.pick(wraps, 0, after))
