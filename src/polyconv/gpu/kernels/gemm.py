"""Convolution as one matrix product: rows are output pixels, columns output channels.

What is summed are taps times channels, tap by tap, channels inner.  A block owns a tile of rows and columns.  Stages of
it, so many bytes of every row and column, travel through shared memory by asynchronous copies: rows gathered from the
image (zeros for padding), columns from packed weights.  Of a row of 128 bytes the 16-byte piece j lies at place
j ^ (row % 8), so that no reader meets a bank twice.  ``units`` multiply.

Bytes with zero points are multiplied as they lie; what zero points take from sums stands in ``zeros``.

Blocks of a cluster may split the sum.  Each leaves its tile in its own shared memory and finishes a share of it,
reading the others' in a fixed order: one launch, no memory beyond the result, and the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.geometry import Geometry, OfGeometry
from polyconv.gpu.kernels.finish import ELEMENTS, quantity
from polyconv.gpu.kernels.repair import Product
from polyconv.gpu.kernels.results import Again, Lying, Place, store_results
from polyconv.gpu.kernels.stages import Stages
from polyconv.gpu.kernels.units import UNITS, Parts, Unit
from polyconv.gpu.language import I32, Kernel, Pointer, Value

__all__ = ["Gemm", "Tile", "gemm"]


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of a kernel.

    Parameters
    ----------
    unit : str
        Row of ``UNITS``: what multiplies.
    arithmetic : str
        Row of ``ARITHMETIC``: in what.
    rows, columns : int
        Of a block.
    bytes : int
        Of a row in a stage: 128 or 64.
    warps : (int, int)
        How many share the rows and the columns; of warp groups the first counts groups.
    stages : int
        How many lie in shared memory.
    parts : int
        Into which a sum is divided, each added by itself: 1, 2, 4 or 8.  They fix the bits.
    split : int
        Blocks that share a sum: as many as there are parts, or one that adds them all in the same order.
    blocks : int
        Blocks a multiprocessor is to hold, which caps registers.
    scalar : (int, int)
        Rows and columns of a thread, of the unit ``scalar``.
    """

    unit: str
    arithmetic: str
    rows: int
    columns: int
    bytes: int = 128
    warps: tuple[int, int] = (2, 2)
    stages: int = 4
    parts: int = 1
    split: int = 1
    blocks: int = 1
    scalar: tuple[int, int] = (8, 8)

    def __str__(self) -> str:
        own = f"t{self.scalar[0]}x{self.scalar[1]}" if self.unit == "scalar" else f"w{self.warps[0]}x{self.warps[1]}"
        return (
            f"{self.unit} {self.arithmetic} {self.rows}x{self.columns} k{self.bytes} {own} s{self.stages} "
            f"split{self.split}" + (f" of {self.parts}" if self.parts != self.split else "")
        )


@dataclass(frozen=True)
class Gemm(OfGeometry):
    """A kernel to make.

    Parameters
    ----------
    g : Geometry
        Its channels fill 16-byte pieces.
    tile : Tile
    has_zeros : bool
        Whether inputs have a zero point, which stands in the bias and is what padding reads.
    """

    g: Geometry
    tile: Tile
    has_zeros: bool = False

    @cached_property
    def unit(self) -> Unit:
        """What multiplies."""
        return UNITS[self.tile.unit](self.tile)

    @property
    def reads_padding(self) -> bool:
        """Whether padding is read, from an array of its own."""
        return self.has_zeros and self.g.is_padded

    @property
    def shape(self) -> str:
        """The tile, in short."""
        return str(self.tile)

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"gemm {self.tile}{' with zero points' * self.has_zeros} {self.g}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.unit.threads

    @property
    def cluster(self) -> int:
        """Blocks that reach each other's shared memory."""
        return self.tile.split

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return self.tile.split * self._columns * self._rows * self.g.groups, 1, 1

    @property
    def _columns(self) -> int:
        return -(-self.g.m // self.tile.columns)

    @property
    def _rows(self) -> int:
        return -(-self.g.pixels // self.tile.rows)

    @property
    def pitch(self) -> int:
        """Bytes of a row of sums in shared memory; not a multiple of 128, so that rows start in different banks."""
        return (self.tile.columns + 8) * self.unit.sum.bytes

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        columns = self.tile.columns * self.unit.parts
        stages = self.tile.stages * (self.tile.rows + columns) * self.tile.bytes
        return max(stages, self.tile.rows * self.pitch)

    @property
    def repairs(self) -> bool:
        """Whether sums that are not finite may be wrong."""
        return self.unit.sum.is_float and (self.g.is_padded or self.unit.arithmetic.three)

    @property
    def steps(self) -> int:
        """Stages of the whole sum."""
        return -(-self.g.taps * self.g.c * self.unit.element_bytes // self.tile.bytes)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        x, *others = self.g.arguments
        return x, *(("padding",) if self.reads_padding else ()), *others

    def kernel(self) -> Kernel:
        """The kernel, whose text makes its code."""
        return gemm(self)


def gemm(s: Gemm) -> Kernel:
    """Write a kernel."""
    tile, g = s.tile, s.g
    k = Kernel("convolution", s.arguments, s.unit.threads, numbers=tuple(s.numbers), cluster=tile.split,
               shared=s.shared, blocks=tile.blocks)  # fmt: skip
    at, rank = k.block[0], k.value(0)
    if tile.split > 1:
        at, rank = at // tile.split, at % tile.split
    column, at = (at % s._columns, at // s._columns) if s._columns > 1 else (k.value(0), at)
    row, group = (at % s._rows, at // s._rows) if g.groups > 1 else (at, k.value(0))
    first_row, first_column = row * tile.rows, column * tile.columns
    start, end = rank * s.steps // tile.split, (rank + 1) * s.steps // tile.split
    s.unit.begin(k)
    if g.quantities.zw:
        s.unit.begin_inputs(k)
    if tile.parts > tile.split:
        s.unit.begin_parts(k)
    _sum(k, s, Stages(k, s, first_row, first_column, group), start, end)
    if g.quantities.zw:
        s.unit.subtract_inputs(k, _zero_points(k, g, first_column, group))
    s.unit.write(k, s.pitch)

    def outputs(row: Value) -> tuple[Place, Value | None]:
        pixel = first_row + row
        return Place.of(k, g, pixel), pixel < g.pixels if g.pixels % tile.rows else None

    lie = Lying(tile.rows, tile.columns, s.unit.threads, tile.split, s.pitch, s.unit.sum)
    again = _product(k, s, group) if s.repairs else None
    store_results(k, g, lie, rank, outputs, first_column, group, again)
    return k


def _zero_points(k: Kernel, g: Geometry, first_column: Value, group: Value) -> Callable[[Value], Value]:
    """From a column of the block to the zero point of its weights; of those beyond the last any will do."""

    def of(column: Value) -> Value:
        channel = first_column + column
        inside = k.pick(channel < g.m, channel, 0) + group * g.m
        return quantity(k, g.quantities, "zw", DTYPES[g.w_type], I32, inside)

    return of


def _product(k: Kernel, s: Gemm, group: Value) -> Again:
    """How a sum's products are read from the input and packed weights."""
    g, unit = s.g, s.unit
    staged, sum_ = ELEMENTS[unit.arithmetic.staged], unit.sum
    size = staged.bytes

    def wide(value: Value) -> Value:
        return value if value.type == sum_ else k.cast("fpext", value, sum_)

    def again(place: Place, channel: Value) -> Product:
        whole = channel + group * g.m

        def product(positions: Sequence[Value], tap: Value, c: Value) -> tuple[Value, Value]:
            at = place.n * g.x.n + group * g.x.of_group(g.c) + c * g.x.c
            for position, step in zip(positions, g.x.spatial, strict=True):
                at = at + position * step
            of_w = Pointer("w", ((whole * g.taps + tap) * g.c + c) * size)
            w = wide(k.load(staged, of_w))
            if unit.parts > 1:
                w = w + k.load(staged, of_w + size * g.m * g.groups * g.taps * g.c)
            return wide(k.load(staged, Pointer("x", at * size))), w

        return product

    return again


def _sum(k: Kernel, s: Gemm, stages: Stages, start: Value, end: Value) -> None:
    """The pipeline: some stages ahead are copied while one is multiplied."""
    count, unit = s.tile.stages, s.unit
    ahead = count - 1 - unit.turns_behind
    turns = end - start
    for stage in range(ahead):
        with k.only(turns > stage):
            stages.copy(start + stage, k.value(stage * stages.bytes))
        k.commit()
    reading, writing = k.variable(0), k.variable(ahead * stages.bytes)
    parts = Parts(k, s.steps, s.tile.parts, unit.end_part) if s.tile.parts > s.tile.split else None

    def following(place: Value) -> Value:
        after = place + stages.bytes
        return k.pick(after.equals(count * stages.bytes), 0, after)

    def copy_next(turn: Value) -> None:
        place = writing.get()
        with k.only(turn + ahead < turns):
            stages.copy(turn + ahead + start, place)
        k.commit()
        writing.set(following(place))

    with k.loop(0, turns) as turn:
        k.wait(ahead - 1)
        if unit.reads_by_descriptor:
            k.proxy_fence()
        k.barrier()
        if unit.turns_behind:
            unit.accumulate(k, reading.get())
            copy_next(turn)
        else:
            copy_next(turn)
            unit.accumulate(k, reading.get())
        reading.set(following(reading.get()))
        if parts is not None:
            parts.after(start + turn)
    unit.end(k)
    k.wait(0)
    k.barrier()
