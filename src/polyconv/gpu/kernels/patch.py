"""Convolution of stride 1 along planes: patches of the image in shared memory, products on shifted views of them.

A block owns ``height`` by ``width`` outputs, in squares of 8 by 8, and ``columns`` output channels.  For each 128 bytes
of channels (and each tap along a third axis) the copy engine brings the patch that all taps of the plane read, zeros
for padding; for each tap, its weights, which lie packed as they are read.  A tap is another start address of the
same patch: 8 pixels of a row are what ``wgmma`` takes together, and from row to row it is told any step.  So an input
travels once per block and not once per tap.

A warp of its own starts the copies; barriers of shared memory tell it what is free, and the others what has come.
Three passes and the shares of a cluster are as in ``gemm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyconv.dtypes import DTYPES
from polyconv.gpu.geometry import Geometry
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.kernels.repair import Product
from polyconv.gpu.kernels.results import Lying, Place, store_results
from polyconv.gpu.kernels.units import ARITHMETIC, PASSES, Arithmetic, Parts, halves
from polyconv.gpu.language import F32, Kernel, Pointer, Value, Variable, both

__all__ = ["Patch", "PatchTile"]

_ROW = 128
"""Bytes of channels of a pixel in a patch."""
_PATCHES = 2
_SQUARE = 8


@dataclass(frozen=True, slots=True)
class PatchTile:
    """Shape of a kernel.

    Parameters
    ----------
    arithmetic : str
        Row of ``ARITHMETIC`` that warp groups have.
    height, width : int
        Outputs of a block, multiples of 8.
    columns : int
        Output channels of a block.
    groups : int
        Warp groups that share the squares.
    slots : int
        Taps whose weights lie in shared memory.
    parts, split : int
        Into which a sum is divided, and blocks that share it: as many, or one.
    """

    arithmetic: str
    height: int
    width: int
    columns: int
    groups: int = 1
    slots: int = 4
    parts: int = 1
    split: int = 1

    def __str__(self) -> str:
        return (
            f"{self.arithmetic} {self.height}x{self.width}x{self.columns} g{self.groups} s{self.slots} "
            f"split{self.split}" + (f" of {self.parts}" if self.parts != self.split else "")
        )


@dataclass(frozen=True)
class Patch:
    """A kernel to make.

    Parameters
    ----------
    g : Geometry
        One group, of two or three axes, stride 1 along the last two; channels lie together and fill 128 bytes.
    tile : PatchTile
    """

    g: Geometry
    tile: PatchTile

    @property
    def arithmetic(self) -> Arithmetic:
        """In what is multiplied."""
        return ARITHMETIC[self.tile.arithmetic]

    @property
    def channels(self) -> int:
        """Of a patch."""
        return _ROW // self.arithmetic.bytes

    @property
    def parts(self) -> int:
        """Numbers that a weight is kept as."""
        return 2 if self.arithmetic.three else 1

    @property
    def box(self) -> tuple[int, int]:
        """Height and width of a patch."""
        above, across = self.g.axes[-2:]
        tile = self.tile
        return tile.height + (above.taps - 1) * above.dilation, tile.width + (across.taps - 1) * across.dilation

    @property
    def patch_bytes(self) -> int:
        """Of a patch, up to a multiple of what a swizzle repeats after."""
        height, width = self.box
        return -(-height * width * _ROW // 1024) * 1024

    @property
    def slot_bytes(self) -> int:
        """Of the weights of a tap."""
        return self.tile.columns * _ROW * self.parts

    @property
    def barriers(self) -> int:
        """Where barriers lie in shared memory."""
        rows = self.tile.height * self.tile.width
        return max(_PATCHES * self.patch_bytes + self.tile.slots * self.slot_bytes, rows * self.pitch)

    @property
    def pitch(self) -> int:
        """Bytes of a row of sums."""
        return (self.tile.columns + 8) * 4

    @property
    def shape(self) -> str:
        """The tile, in short."""
        return str(self.tile)

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"patch {self.tile} {self.g}"

    @property
    def threads(self) -> int:
        """Of a block: warp groups, and the warp that copies."""
        return 128 * self.tile.groups + 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.barriers + 16 * (_PATCHES + self.tile.slots)

    @property
    def cluster(self) -> int:
        """Blocks that reach each other's shared memory."""
        return self.tile.split

    @property
    def numbers(self) -> dict[str, int]:
        """None: all is in the code."""
        return {}

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        total = self.tile.split * self.across * self.g.n
        for extent in self.tiles:
            total *= extent
        return total, 1, 1

    @property
    def across(self) -> int:
        """Tiles of output channels."""
        return -(-self.g.m // self.tile.columns)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles along every axis."""
        above, across = self.g.axes[-2:]
        plane = -(-above.out // self.tile.height), -(-across.out // self.tile.width)
        return (*(axis.out for axis in self.g.axes[:-2]), *plane)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes; behind them comes the tensor map."""
        g = self.g
        return "x", "w", *(("b",) if g.bias else ()), *(("r",) if g.residual is not None else ()), "y"

    @property
    def map(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
        """What the tensor map is made of: extents, steps in bytes (both from the channels out), box, type."""
        g, size = self.g, self.arithmetic.bytes
        extents = (g.c, *(axis.inp for axis in reversed(g.axes)), g.n)
        steps: list[int] = []
        inner = g.c * size
        for extent, step in zip(extents[1:], (*reversed(g.x.spatial), g.x.n), strict=True):
            steps.append(step * size if extent > 1 else inner)  # the step of an extent of 1 is anything
            inner = steps[-1] * extent
        height, width = self.box
        return extents, tuple(steps), (self.channels, width, height, *(1,) * (len(g.axes) - 1)), self.arithmetic.staged

    @property
    def plane_taps(self) -> int:
        """Taps that read one patch."""
        return self.g.axes[-2].taps * self.g.axes[-1].taps

    @property
    def steps(self) -> int:
        """Taps of the whole sum, of each 128 bytes of channels."""
        return self.g.taps * (self.g.c // self.channels)

    def kernel(self) -> Kernel:
        """The kernel."""
        tile = self.tile
        k = Kernel("convolution", self.arguments, self.threads, has_map=True, cluster=tile.split, shared=self.shared)
        at, rank = k.block[0], k.value(0)
        if tile.split > 1:
            at, rank = at // tile.split, at % tile.split
        column, at = (at % self.across, at // self.across) if self.across > 1 else (k.value(0), at)
        first = []
        for extent, size in zip(reversed(self.tiles), (tile.width, tile.height, *(1,) * len(self.tiles)), strict=False):
            first.append((at % extent) * size if extent > 1 else k.value(0))
            at = at // extent if extent > 1 else at
        block = _Block(k, self, rank, column, tuple(reversed(first)), at)
        block.run()
        return k


class _Block:
    """What one block does."""

    def __init__(self, k: Kernel, s: Patch, rank: Value, column: Value, first: tuple[Value, ...], n: Value) -> None:
        self.k, self.s, self.rank, self.column, self.first, self.n = k, s, rank, column, first, n
        self.start, self.end = rank * s.steps // s.tile.split, (rank + 1) * s.steps // s.tile.split
        self.lane, self.warp = k.thread & 31, k.thread >> 5
        base = k.base + s.barriers
        self.patch_full, self.patch_free = base, base + 8 * _PATCHES
        self.slot_full = base + 16 * _PATCHES
        self.slot_free = self.slot_full + 8 * s.tile.slots
        self.weights = k.base + _PATCHES * s.patch_bytes

    def run(self) -> None:
        """All of it."""
        k, s, tile = self.k, self.s, self.s.tile
        warps = 4 * tile.groups
        with k.when(k.thread.equals(0)):
            for full, free, count in (
                (self.patch_full, self.patch_free, _PATCHES), (self.slot_full, self.slot_free, tile.slots),
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
        patches, slots = _Ring(k, _PATCHES, 1), _Ring(k, s.tile.slots, 1)
        height, width = s.box
        with k.loop(self.start, self.end) as step:
            tap = step % s.plane_taps
            with k.when(step.equals(self.start) | tap.equals(0)):
                i = patches.index()
                k.barrier_wait(self.patch_free + i * 8, patches.parity())
                full = self.patch_full + i * 8
                k.barrier_expect(full, height * width * _ROW)
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
        patches, slots = _Ring(k, _PATCHES, 0), _Ring(k, s.tile.slots, 0)
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
            b = k.descriptor(self.weights + i * s.slot_bytes, _ROW, 8 * _ROW)
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
            at = k.base + patch * s.patch_bytes + (self._square(number) + shift) * _ROW
            a, found = k.descriptor(at, _ROW, s.box[1] * _ROW), [one.get() for one in square]
            for step in range(_ROW // 32):
                found = k.group_multiply(
                    self._shape, [a + 2 * step], b + 2 * step, found, add=True, modifiers=s.arithmetic.modifiers
                )
            for one, total in zip(square, found, strict=True):
                one.set(total)
        k.group_commit()
        k.group_wait(1)

    def _three(self, sums: list[list[Variable]], patch: Value, shift: Value, b: Value) -> None:
        k, s, lane = self.k, self.s, self.lane
        parts = b, b + (s.tile.columns * _ROW >> 4)
        row = ((self.warp & 3) * 2 + ((lane >> 3) & 1)) * s.box[1] + (lane & 7)
        for number, square in enumerate(sums):
            pixel = self._square(number) + shift + row
            at = k.base + patch * s.patch_bytes + pixel * _ROW + (((lane >> 4) ^ (pixel & 7)) << 4)
            a = [[halves(k, bits) for bits in k.load_matrices(at ^ (step * 32), 4)] for step in range(_ROW // 32)]
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
