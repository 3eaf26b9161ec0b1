"""Convolution as one matrix product: rows are output pixels, columns output channels.

What is summed are taps times channels, tap by tap, channels inner.  A block owns a tile of rows and columns.  Stages of
it, so many bytes of every row and column, travel through shared memory by asynchronous copies: rows gathered from the
image (zeros for padding), columns from packed weights.  Of a row of 128 bytes the 16-byte piece j lies at place
j ^ (row % 8), so that no reader meets a bank twice.  ``units`` multiply.

Blocks of a cluster may split the sum.  Each leaves its tile in its own shared memory and finishes a share of it,
reading the others' in a fixed order: one launch, no memory beyond the result, and the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from polyconv.gpu.geometry import Geometry
from polyconv.gpu.kernels.finish import ELEMENTS, Finish
from polyconv.gpu.kernels.repair import exact_sum, is_finite
from polyconv.gpu.kernels.stages import Stages
from polyconv.gpu.kernels.units import UNITS, Unit
from polyconv.gpu.language import Kernel, Pointer, Value, Variable, both

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
    split : int
        Blocks that share a sum: 1, 2, 4 or 8.
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
    split: int = 1
    blocks: int = 1
    scalar: tuple[int, int] = (8, 8)

    def __str__(self) -> str:
        own = f"t{self.scalar[0]}x{self.scalar[1]}" if self.unit == "scalar" else f"w{self.warps[0]}x{self.warps[1]}"
        return (
            f"{self.unit} {self.arithmetic} {self.rows}x{self.columns} k{self.bytes} {own} s{self.stages} "
            f"split{self.split}" + (f" b{self.blocks}" if self.blocks > 1 else "")
        )


@dataclass(frozen=True)
class Gemm:
    """A kernel to make: a geometry whose channels fill 16-byte pieces, and a tile."""

    g: Geometry
    tile: Tile

    @cached_property
    def unit(self) -> Unit:
        """What multiplies."""
        return UNITS[self.tile.unit](self.tile)

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"gemm {self.tile} {self.g}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.unit.threads

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
        g = self.g
        return "x", "w", *(("b",) if g.bias else ()), *(("r",) if g.residual is not None else ()), "y"

    def kernel(self) -> Kernel:
        """The kernel, whose text makes its code."""
        return gemm(self)


def gemm(s: Gemm) -> Kernel:
    """Write a kernel."""
    tile, g = s.tile, s.g
    k = Kernel("convolution", s.arguments, s.unit.threads, cluster=tile.split, shared=s.shared, blocks=tile.blocks)
    at, rank = k.block[0], k.value(0)
    if tile.split > 1:
        at, rank = at // tile.split, at % tile.split
    column, at = (at % s._columns, at // s._columns) if s._columns > 1 else (k.value(0), at)
    row, group = (at % s._rows, at // s._rows) if g.groups > 1 else (at, k.value(0))
    first_row, first_column = row * tile.rows, column * tile.columns
    start, end = rank * s.steps // tile.split, (rank + 1) * s.steps // tile.split
    s.unit.begin(k)
    _sum(k, s, Stages(k, s, first_row, first_column, group), start, end)
    s.unit.write(k, s.pitch)
    k.cluster_barrier() if tile.split > 1 else k.barrier()
    _Results(k, s, first_row, first_column, group, rank).store()
    if tile.split > 1:
        k.cluster_barrier()  # others may still read this block's sums
    return k


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
    unit.end(k)
    k.wait(0)
    k.barrier()


class _Results:
    """The tile's way out of shared memory: every thread finishes some runs of up to four neighbouring channels."""

    def __init__(self, k: Kernel, s: Gemm, first_row: Value, first_column: Value, group: Value, rank: Value) -> None:
        self.k, self.s, self.rank = k, s, rank
        self.first_row, self.first_column, self.group = first_row, first_column, group
        self.finish = Finish(k, s.g)
        g, size = s.g, self.finish.y.itemsize
        self.wide = 16 // s.unit.sum.bytes
        """Sums of a run."""
        self.along_channels = g.y.c == 1
        fits = g.m % self.wide == 0 and g.y.aligned(size) % min(16, self.wide * size) == 0
        self.together = self.along_channels and fits
        self.runs = s.tile.rows * (s.tile.columns // self.wide)
        self.share = -(-self.runs // s.tile.split)

    def store(self) -> None:
        """Store the block's share; runs with a sum that is not finite are done again and stored then.

        A residual may lie where the result does: every run is stored once.
        """
        k, threads = self.k, self.s.unit.threads
        suspect = k.variable(0) if self.s.repairs else None
        for turn in range(-(-self.share // threads)):
            mine = k.thread + turn * threads
            guard = mine < self.share if (turn + 1) * threads > self.share else None
            self._store_run(mine, guard, suspect)
        if suspect is not None:
            with k.when(suspect.get().equals(1)), k.loop(0, -(-self.share // threads)) as again:
                mine = k.thread + again * threads
                self._store_run(mine, mine < self.share, None)

    def _store_run(self, mine: Value, guard: Value | None, suspect: Variable | None) -> None:
        k, s, g = self.k, self.s, self.s.g
        tile = s.tile
        run = mine + self.rank * self.share if tile.split > 1 else mine
        if self.runs % tile.split:
            guard = both(guard, run < self.runs)
        across = tile.columns // self.wide
        row, column = (run // across, run % across) if self.along_channels else (run % tile.rows, run // tile.rows)
        pixel, channel = self.first_row + row, self.first_column + column * self.wide
        if g.pixels % tile.rows:
            guard = both(guard, pixel < g.pixels)
        if g.m % tile.columns:
            guard = both(guard, channel < g.m)
        with k.only(guard):
            sums = self._sums(k.base + row * s.pitch + column * (self.wide * s.unit.sum.bytes))
            place = _Place(k, g, pixel, self.group)
            if not s.repairs:
                self._write(sums, place, channel)
                return
            fine = is_finite(sums[0])
            for one in sums[1:]:
                fine = fine & is_finite(one)
            if suspect is not None:
                suspect.set(k.pick(fine, suspect.get(), 1))
                with k.when(fine):
                    self._write(sums, place, channel)
                return
            with k.when(fine, otherwise=True):
                self._write([self._exact(place, channel + i, one) for i, one in enumerate(sums)], place, channel)

    def _exact(self, place: _Place, channel: Value, one: Value) -> Value:
        """A sum, done again if it is not finite; what lies beyond the last channel repeats that one's."""
        k, g, unit = self.k, self.s.g, self.s.unit
        channel = k.minimum(channel, g.m - 1)
        whole = channel + self.group * g.m
        staged = ELEMENTS[unit.arithmetic.staged]
        size = staged.bytes

        def wide(value: Value) -> Value:
            return value if value.type == one.type else k.cast("fpext", value, one.type)

        def product(positions: Sequence[Value], tap: Value, c: Value) -> tuple[Value, Value]:
            at = place.n * g.x.n + self.group * (g.c * g.x.c) + c * g.x.c
            for position, step in zip(positions, g.x.spatial, strict=True):
                at = at + position * step
            of_w = Pointer("w", ((whole * g.taps + tap) * g.c + c) * size)
            w = wide(k.load(staged, of_w))
            if unit.parts > 1:
                w = w + k.load(staged, of_w + size * g.m * g.groups * g.taps * g.c)
            return wide(k.load(staged, Pointer("x", at * size))), w

        return exact_sum(k, g, place.at, one, product)

    def _sums(self, address: Value) -> list[Value]:
        """Sums of a run: this block's, or those of all blocks of the cluster in their order."""
        k, element = self.k, self.s.unit.sum
        if self.s.tile.split == 1:
            return k.load_shared(address, 0, self.wide, element)
        total = k.load_neighbour(address, 0, 0, element)
        for rank in range(1, self.s.tile.split):
            total = [a + b for a, b in zip(total, k.load_neighbour(address, rank, 0, element), strict=True)]
        return total

    def _write(self, sums: list[Value], place: _Place, channel: Value) -> None:
        k, g = self.k, self.s.g
        whole = channel + self.group * g.m if g.groups > 1 else channel
        size = self.finish.y.itemsize
        y_at = place.in_y(size) + whole * (g.y.c * size)
        r_at = None if g.residual is None else place.in_residual(size) + whole * (g.residual.c * size)
        if g.m % self.wide == 0:
            self.finish.store(sums, whole, y_at, r_at, together=self.together)
            return
        for i, one in enumerate(sums):
            with k.when(channel + i < g.m):
                beside = None if r_at is None or g.residual is None else r_at + i * g.residual.c * size
                self.finish.store([one], whole + i, y_at + i * g.y.c * size, beside, together=False)


class _Place:
    """A pixel of the result: batch and spatial position."""

    def __init__(self, k: Kernel, g: Geometry, pixel: Value, group: Value) -> None:
        self.g = g
        rest, found = pixel, []
        for axis in reversed(g.axes):
            if axis.out == 1:
                found.append(k.value(0))
                continue
            found.append(rest % axis.out)
            rest = rest // axis.out
        self.at = tuple(reversed(found))
        self.n = rest if g.n > 1 else k.value(0)

    def in_y(self, size: int) -> Value:
        """Where its first channel lies in the result, in bytes."""
        return self._in(self.g.y.n, self.g.y.spatial, size)

    def in_residual(self, size: int) -> Value:
        """Where its first channel lies in the residual, in bytes."""
        assert self.g.residual is not None
        return self._in(self.g.residual.n, self.g.residual.spatial, size)

    def _in(self, n: int, spatial: tuple[int, ...], size: int) -> Value:
        total = self.n * (n * size)
        for axis, at, step in zip(self.g.axes, self.at, spatial, strict=True):
            total = total + (at * axis.out_step + axis.first_out) * (step * size)
        return total

