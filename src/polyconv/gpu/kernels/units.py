"""What multiplies a stage: scalar multiply-adds, matrix products of a warp (``mma.sync``), of a warp group (``wgmma``).

``ARITHMETIC`` says in what: the type of what lies in a stage, of the sums, and the instruction.  A step of every matrix
product takes 32 bytes of a row, so that types of 1, 2 and 4 bytes share all but one name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from polyconv.gpu.kernels.arithmetic import ARITHMETIC, PASSES, halves
from polyconv.gpu.kernels.stages import swizzled
from polyconv.gpu.language import F32, I32, Kernel, Type, Value, Variable

if TYPE_CHECKING:
    from polyconv.gpu.kernels.gemm import Tile

__all__ = ["UNITS", "Parts", "Unit"]


class Unit(ABC):
    """What all units are asked."""

    reads_by_descriptor: ClassVar[bool] = False
    turns_behind: ClassVar[int] = 0
    """Turns for which a stage is read after its own."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.arithmetic = tile, ARITHMETIC[tile.arithmetic]
        self.totals: list[Variable] = []
        self.inputs: list[list[Variable]] = []

    @property
    def element_bytes(self) -> int:
        """Of an input or a weight in a stage."""
        return self.arithmetic.bytes

    @property
    def sum(self) -> Type:
        """Type of the sums."""
        return self.arithmetic.sum

    @property
    def parts(self) -> int:
        """Numbers that a weight is kept as: its halves, where it is not read through registers."""
        return 2 if self.arithmetic.three and self.reads_by_descriptor else 1

    @property
    @abstractmethod
    def threads(self) -> int:
        """Of a block."""

    @abstractmethod
    def begin(self, k: Kernel) -> None:
        """Make sums that are zero."""

    @abstractmethod
    def accumulate(self, k: Kernel, place: Value) -> None:
        """Add the products of a stage."""

    def end(self, k: Kernel) -> None:  # noqa: B027 - a unit may have nothing to wait for
        """Wait for the last products."""

    @property
    @abstractmethod
    def flat(self) -> list[Variable]:
        """All sums of a thread."""

    def begin_parts(self, k: Kernel) -> None:
        """Make totals, to which sums of parts are added."""
        self.totals = [k.variable(0, self.sum) for _ in self.flat]

    def end_part(self, k: Kernel) -> None:
        """Add the sums to the totals, and begin sums anew."""
        self.end(k)
        for total, one in zip(self.totals, self.flat, strict=True):
            total.set(total.get() + one.get())
            one.set(self._zero(k))

    def begin_inputs(self, k: Kernel) -> None:
        """Make sums of the inputs that are multiplied, of a unit for integers."""
        raise TypeError(f"{type(self).__name__} multiplies no integers")

    def subtract_inputs(self, k: Kernel, times: Callable[[Value], Value]) -> None:
        """Subtract them from all sums, times what belongs to a column of the block."""
        raise TypeError(f"{type(self).__name__} multiplies no integers")

    def write(self, k: Kernel, pitch: int) -> None:
        """Store the sums to shared memory, rows ``pitch`` bytes apart."""
        for total, one in zip(self.totals, self.flat, strict=True) if self.totals else ():
            one.set(total.get())
        self._write(k, pitch)

    @abstractmethod
    def _write(self, k: Kernel, pitch: int) -> None: ...

    def _zero(self, k: Kernel) -> Value:
        """A zero that counts as computed: LLVM hands constants to inline PTX one by one, not as a register."""
        zero = k.constant(self.sum, 0)
        return k.emit(f"{'fadd' if self.sum.is_float else 'add'} {self.sum} {zero.name}, {zero.name}", self.sum)


class Parts:
    """Where the parts of a sum end: after stage ``(p + 1) steps / parts`` for part p.

    Parameters
    ----------
    steps, parts : int
        Stages of the whole sum, and its parts.
    end : callable
        Ends a part.
    """

    def __init__(self, k: Kernel, steps: int, parts: int, end: Callable[[Kernel], None]) -> None:
        self.k, self.steps, self.parts, self.end = k, steps, parts, end
        self.part, self.next = k.variable(1), k.variable(steps // parts)

    def after(self, step: Value) -> None:
        """End a part if this stage was its last."""
        k = self.k
        with k.when((step + 1).equals(self.next.get())):
            self.end(k)
            part = self.part.get() + 1
            self.part.set(part)
            self.next.set(part * self.steps // self.parts)


class Scalar(Unit):
    """A thread adds ``scalar`` rows by columns.  Rows of a thread are 4 apart, columns 8: a warp covers 4 by 8."""

    @property
    def threads(self) -> int:
        """Of a block."""
        rows, columns = self.tile.scalar
        return 32 * (self.tile.rows // (4 * rows)) * (self.tile.columns // (8 * columns))

    def begin(self, k: Kernel) -> None:
        """Make sums that are zero."""
        tile = self.tile
        rows, columns = tile.scalar
        across = tile.columns // (8 * columns)
        lane, warp = k.thread & 31, k.thread >> 5
        down, right = lane // 8, lane % 8
        self.row = warp // across * (rows * 4) + down
        self.column = warp % across * (columns * 8) + right
        self.sums = [[k.variable(0, self.sum) for _ in range(columns)] for _ in range(rows)]
        pieces = tile.bytes // 16
        of_row, of_column = swizzled(down, tile.bytes), swizzled(right, tile.bytes)
        below = k.base + tile.rows * tile.bytes
        self.rows_at = [k.base + self.row * tile.bytes + ((of_row ^ piece) << 4) for piece in range(pieces)]
        self.columns_at = [below + self.column * tile.bytes + ((of_column ^ piece) << 4) for piece in range(pieces)]

    @property
    def flat(self) -> list[Variable]:
        """All sums of a thread."""
        return [one for row in self.sums for one in row]

    def accumulate(self, k: Kernel, place: Value) -> None:
        """Add the products of a stage."""
        tile, wide = self.tile, 16 // self.element_bytes
        rows, columns = tile.scalar
        flip = tile.bytes // 32  # what 4 rows further on changes the swizzle by
        for piece in range(tile.bytes // 16):
            left = [
                k.load_shared(self.rows_at[piece ^ (flip if i & 1 else 0)] + place, i * 4 * tile.bytes, wide, self.sum)
                for i in range(rows)
            ]
            for j in range(columns):
                right = k.load_shared(self.columns_at[piece] + place, j * 8 * tile.bytes, wide, self.sum)
                for i in range(rows):
                    total = self.sums[i][j].get()
                    for a, b in zip(left[i], right, strict=True):
                        total = k.fma(a, b, total)
                    self.sums[i][j].set(total)

    def _write(self, k: Kernel, pitch: int) -> None:
        size = self.sum.bytes
        at = k.base + self.row * pitch + self.column * size
        for i, row in enumerate(self.sums):
            for j, total in enumerate(row):
                k.store_shared(at, [total.get()], i * 4 * pitch + j * 8 * size)


_ONES = 0x01010101
"""Four bytes of 1."""


class Warp(Unit):
    """Warps share the tile; each adds blocks of 16 rows by 8 columns.

    Inputs are summed as a product with ones, whose 8 columns are alike: so each thread has the sums of its own rows.
    """

    @property
    def threads(self) -> int:
        """Of a block."""
        down, across = self.tile.warps
        return 32 * down * across

    def begin(self, k: Kernel) -> None:
        """Make sums that are zero."""
        tile = self.tile
        down, across = tile.warps
        rows, columns = tile.rows // down, tile.columns // across
        assert rows % 16 == 0, "a warp's rows are a multiple of 16"
        assert columns % 8 == 0, "and its columns of 8"
        lane, warp = k.thread & 31, k.thread >> 5
        first_row, first_column = warp // across * rows, warp % across * columns
        blocks, across = rows // 16, columns // 8
        self.sums = [[[k.variable(0, self.sum) for _ in range(4)] for _ in range(across)] for _ in range(blocks)]
        row, column = first_row + (lane & 15), first_column + (lane & 7) + ((lane >> 4) << 3)
        a = k.base + row * tile.bytes + (((lane >> 4) ^ swizzled(lane, tile.bytes)) << 4)
        b = k.base + tile.rows * tile.bytes + column * tile.bytes
        b = b + ((((lane >> 3) & 1) ^ swizzled(lane, tile.bytes)) << 4)
        self.a_at = [a ^ (step * 32) for step in range(tile.bytes // 32)]
        self.b_at = [b ^ (step * 32) for step in range(tile.bytes // 32)]
        self.row, self.column = first_row + (lane >> 2), first_column + (lane & 3) * 2

    @property
    def flat(self) -> list[Variable]:
        """All sums of a thread."""
        return [one for row in self.sums for block in row for one in block]

    def begin_inputs(self, k: Kernel) -> None:
        """Make sums of inputs."""
        self.inputs = [[k.variable(0, I32) for _ in range(4)] for _ in self.sums]

    def subtract_inputs(self, k: Kernel, times: Callable[[Value], Value]) -> None:
        """Subtract them from all sums."""
        sums = self.totals or self.flat
        of_columns = [[times(self.column + (j * 8 + q)) for q in (0, 1)] for j in range(len(self.sums[0]))]
        of_sums = [(i, j, q) for i in range(len(self.sums)) for j in range(len(self.sums[0])) for q in range(4)]
        for one, (i, j, q) in zip(sums, of_sums, strict=True):
            one.set(one.get() - self.inputs[i][q].get() * of_columns[j][q % 2])

    def accumulate(self, k: Kernel, place: Value) -> None:
        """Add the products of a stage."""
        three = self.arithmetic.three
        before = [[[one.get() for one in block] for block in row] for row in self.sums]
        sums = [[[self._zero(k)] * 4 for _ in row] for row in before] if three else before
        for a_at, b_at in zip(self.a_at, self.b_at, strict=True):
            self._step(k, a_at + place, b_at + place, sums)
        for old, new, row in zip(before, sums, self.sums, strict=True):
            for j, block in enumerate(row):
                for q, one in enumerate(block):
                    one.set(old[j][q] + new[j][q] if three else new[j][q])

    def _step(self, k: Kernel, a_at: Value, b_at: Value, sums: list[list[list[Value]]]) -> None:
        """Multiply 32 bytes of every row and column."""
        size, columns = self.tile.bytes, len(sums[0])
        a: list[Any] = [k.load_matrices(a_at, 4, i * 16 * size) for i in range(len(sums))]
        b: list[Any] = []
        for j in range(0, columns - 1, 2):
            pair = k.load_matrices(b_at, 4, j * 8 * size)
            b += [pair[:2], pair[2:]]
        if columns % 2:
            b.append(k.load_matrices(b_at, 2, (columns - 1) * 8 * size))
        shape = self.arithmetic.warp
        for left, inputs in zip(a, self.inputs, strict=False):
            ones = [self._zero(k) + _ONES] * 2
            for one, total in zip(inputs, k.multiply(shape, left, ones, [v.get() for v in inputs]), strict=True):
                one.set(total)
        if not self.arithmetic.three:
            for i, row in enumerate(sums):
                for j in range(columns):
                    row[j] = k.multiply(shape, a[i], b[j], row[j])
            return
        a, b = ([[halves(k, bits) for bits in one] for one in blocks] for blocks in (a, b))
        for of_a, of_b in PASSES:
            for i, row in enumerate(sums):
                for j in range(columns):
                    left, right = [half[of_a] for half in a[i]], [half[of_b] for half in b[j]]
                    row[j] = k.multiply(shape, left, right, row[j])

    def _write(self, k: Kernel, pitch: int) -> None:
        size = self.sum.bytes
        at = k.base + self.row * pitch + self.column * size
        for i, row in enumerate(self.sums):
            for j, block in enumerate(row):
                one = [total.get() for total in block]
                k.store_shared(at, one[:2], i * 16 * pitch + j * 8 * size)
                k.store_shared(at, one[2:], (i * 16 + 8) * pitch + j * 8 * size)


class Group(Unit):
    """Warp groups of 128 threads share the rows; each adds blocks of 64 rows by all columns."""

    reads_by_descriptor = True

    def __init__(self, tile: Tile) -> None:
        super().__init__(tile)
        self.turns_behind = 0 if self.arithmetic.three else 1  # type: ignore[misc]

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * self.tile.warps[0]

    def begin(self, k: Kernel) -> None:
        """Make sums that are zero."""
        tile = self.tile
        blocks = tile.rows // (64 * tile.warps[0])
        assert blocks * 64 * tile.warps[0] == tile.rows, "a warp group's rows are a multiple of 64"
        lane, warp = k.thread & 31, (k.thread >> 5) & 3
        self.first = (k.thread >> 7) * (blocks * 64)
        self.sums = [[k.variable(0, F32) for _ in range(tile.columns // 2)] for _ in range(blocks)]
        row = self.first + warp * 16 + (lane & 15)
        at = k.base + row * tile.bytes + (((lane >> 4) ^ swizzled(lane, tile.bytes)) << 4)
        self.a_at = [at ^ (step * 32) for step in range(tile.bytes // 32)]
        self.row, self.column = self.first + warp * 16 + (lane >> 2), (lane & 3) * 2
        self.shape = f"m64n{tile.columns}{self.arithmetic.group}"

    def _columns(self, k: Kernel, place: Value) -> Value:
        tile = self.tile
        return k.descriptor(k.base + place + tile.rows * tile.bytes, tile.bytes, 8 * tile.bytes)

    @property
    def flat(self) -> list[Variable]:
        """All sums of a thread."""
        return [one for block in self.sums for one in block]

    def accumulate(self, k: Kernel, place: Value) -> None:
        """Add the products of a stage, which are under way when this returns but with three passes."""
        if self.arithmetic.three:
            self._accumulate_three(k, place)
            return
        tile = self.tile
        k.group_fence()
        b = self._columns(k, place)
        for i, block in enumerate(self.sums):
            rows = k.base + place + self.first * tile.bytes + i * 64 * tile.bytes
            a, sums = k.descriptor(rows, tile.bytes, 8 * tile.bytes), [one.get() for one in block]
            for step in range(tile.bytes // 32):
                sums = self._multiply(k, [a + 2 * step], b + 2 * step, sums)
            for one, total in zip(block, sums, strict=True):
                one.set(total)
        k.group_commit()
        k.group_wait(1)

    def _multiply(self, k: Kernel, a: Sequence[Value], b: Value, sums: Sequence[Value], *,
                  add: bool = True) -> list[Value]:  # fmt: skip
        modifiers = self.arithmetic.modifiers
        if len(a) > 1 and modifiers.count(",") == 4:  # of an operand in registers none says how it lies
            modifiers = modifiers.rsplit(",", 1)[0]
        return k.group_multiply(self.shape, a, b, sums, add=add, modifiers=modifiers)

    def _accumulate_three(self, k: Kernel, place: Value) -> None:
        tile = self.tile
        high = self._columns(k, place)
        parts = high, high + (tile.columns * tile.bytes >> 4)
        for i, block in enumerate(self.sums):
            a = [[halves(k, bits) for bits in k.load_matrices(at + place, 4, i * 64 * tile.bytes)] for at in self.a_at]
            k.group_fence()
            sums = [self._zero(k)] * len(block)
            is_first = True
            for step, of_step in enumerate(a):
                for of_a, of_b in PASSES:
                    left = [half[of_a] for half in of_step]
                    sums = self._multiply(k, left, parts[of_b] + 2 * step, sums, add=not is_first)
                    is_first = False
            k.group_commit()
            k.group_wait(0)
            for one, more in zip(block, k.settled(sums), strict=True):
                one.set(one.get() + more)

    def end(self, k: Kernel) -> None:
        """Wait for the last products."""
        if not self.arithmetic.three:
            k.group_wait(0)
            for one, total in zip(self.flat, k.settled([one.get() for one in self.flat]), strict=True):
                one.set(total)

    def _write(self, k: Kernel, pitch: int) -> None:
        at = k.base + self.row * pitch + self.column * 4
        for i, block in enumerate(self.sums):
            for j in range(0, len(block), 4):
                one = [total.get() for total in block[j : j + 4]]
                k.store_shared(at, one[:2], i * 64 * pitch + j * 8)
                k.store_shared(at, one[2:], (i * 64 + 8) * pitch + j * 8)


UNITS: dict[str, type[Unit]] = {"scalar": Scalar, "warp": Warp, "group": Group}
