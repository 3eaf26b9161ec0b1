"""A tile's way out: sums of a block, or of the blocks of a cluster, from shared memory to the result.

Every thread finishes some runs of neighbouring channels of a pixel.  Sums that are not finite may be wrong; their runs
are added again and stored then.  A residual may lie where the result does, so every run is stored once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext

from polyconv.dataclass import dataclass
from polyconv.gpu.geometry import Geometry, Lie
from polyconv.gpu.kernels.finish import Finish
from polyconv.gpu.kernels.repair import Product, exact_sum, is_finite
from polyconv.gpu.language import Kernel, Type, Value, Variable, both

__all__ = ["Again", "Lying", "Place", "store_results"]

_UNROLLED = 4
"""Runs of a thread that are under way together; with more, code grows and the driver's compiler takes seconds."""


@dataclass(frozen=True, slots=True)
class Place:
    """A pixel of the result: its image, and its position on every axis of the sweep."""

    k: Kernel
    g: Geometry
    n: Value
    at: tuple[Value, ...]

    @staticmethod
    def of(k: Kernel, g: Geometry, pixel: Value) -> Place:
        """The pixel of a number, counted over the batch."""
        rest, found = pixel, []
        for axis in reversed(g.axes):
            if axis.out == 1:
                found.append(k.value(0))
                continue
            found.append(rest % axis.out)
            rest = rest // axis.out
        return Place(k, g, rest if g.n > 1 else k.value(0), tuple(reversed(found)))

    def offset(self, n: int, spatial: tuple[int, ...], size: int) -> Value:
        """Where its first channel lies in an array, in bytes."""
        total = self.n * (n * size)
        for axis, at, step in zip(self.g.axes, self.at, spatial, strict=True):
            total = total + (at * axis.out_step + axis.first_out) * (step * size)
        return total


Again = Callable[[Place, Value], Product]
"""From a pixel and an output channel of the group to the products of its sum."""


@dataclass(frozen=True, slots=True)
class Lying:
    """How sums lie in shared memory.

    Parameters
    ----------
    rows, columns : int
        Pixels and output channels of a block.
    threads : int
        That store.
    split : int
        Blocks of a cluster, of which each holds a part of every sum.
    pitch : int
        Bytes from a row to the next.
    sum : Type
    """

    rows: int
    columns: int
    threads: int
    split: int
    pitch: int
    sum: Type

    @property
    def wide(self) -> int:
        """Sums of a run: 16 bytes."""
        return 16 // self.sum.bytes

    @property
    def runs(self) -> int:
        """Of the block."""
        return self.rows * (self.columns // self.wide)

    @property
    def share(self) -> int:
        """Of them that this block finishes."""
        return -(-self.runs // self.split)


def store_results(k: Kernel, g: Geometry, lie: Lying, rank: Value,
                  outputs: Callable[[Value], tuple[Place, Value | None]], first_column: Value, group: Value,
                  again: Again | None) -> None:  # fmt: skip
    """Wait for all sums and store the block's share of results.

    Parameters
    ----------
    rank : Value
        Of the block in its cluster.
    outputs : callable
        From a row to its pixel, and whether there is such a one.
    first_column, group : Value
        Output channel of the first column, in its group.
    again : callable or None
        Where sums that are not finite may be wrong.
    """
    k.cluster_barrier() if lie.split > 1 else k.barrier()
    with k.only(k.thread < lie.threads if k.threads > lie.threads else None):
        _Results(k, g, lie, rank, outputs, first_column, group, again).store()
    if lie.split > 1:
        k.cluster_barrier()  # others may still read this block's sums


class _Results:
    def __init__(self, k: Kernel, g: Geometry, lie: Lying, rank: Value,
                 outputs: Callable[[Value], tuple[Place, Value | None]], first_column: Value, group: Value,
                 again: Again | None) -> None:  # fmt: skip
        self.k, self.g, self.lie, self.rank, self.outputs = k, g, lie, rank, outputs
        self.first_column, self.group, self.again = first_column, group, again
        self.finish = Finish(k, g)
        size = self.finish.y.itemsize
        self.along_channels = g.y.c == 1
        fits = g.m % lie.wide == 0 and g.y.aligned(size) % min(16, lie.wide * size) == 0
        self.together = self.along_channels and fits

    def store(self) -> None:
        """Store the runs of this block's share, then those to be added again."""
        k, lie = self.k, self.lie
        suspect = k.variable(0) if self.again is not None else None
        turns = -(-lie.share // lie.threads)
        rounds = -(-turns // _UNROLLED)
        with k.loop(0, rounds) if rounds > 1 else nullcontext(k.value(0)) as start:
            for turn in range(min(turns, _UNROLLED)):
                mine = k.thread + start * (_UNROLLED * lie.threads) + turn * lie.threads
                whole = lie.share % ((_UNROLLED if rounds > 1 else turns) * lie.threads) == 0
                self._store_run(mine, None if whole else mine < lie.share, suspect)
        if suspect is not None:
            with k.when(suspect.get().equals(1)), k.loop(0, -(-lie.share // lie.threads)) as again:
                mine = k.thread + again * lie.threads
                self._store_run(mine, mine < lie.share, None)

    def _store_run(self, mine: Value, guard: Value | None, suspect: Variable | None) -> None:
        k, lie, g = self.k, self.lie, self.g
        run = mine + self.rank * lie.share if lie.split > 1 else mine
        if lie.runs % lie.split:
            guard = both(guard, run < lie.runs)
        across = lie.columns // lie.wide
        row, column = (run // across, run % across) if self.along_channels else (run % lie.rows, run // lie.rows)
        place, inside = self.outputs(row)
        channel = self.first_column + column * lie.wide
        guard = both(guard, inside)
        if g.m % lie.columns:
            guard = both(guard, channel < g.m)
        with k.only(guard):
            address = k.base + row * lie.pitch + column * 16
            sums = self._sums(address, lie.wide)
            if self.again is None:
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
            with ExitStack() as stack:
                stack.enter_context(k.when(fine, otherwise=True))
                i = stack.enter_context(k.loop(0, lie.wide))
                stack.enter_context(k.only(channel + i < g.m if g.m % lie.wide else None))
                (one,) = self._sums(address + i * lie.sum.bytes, 1)
                self._write([exact_sum(k, g, place.at, one, self.again(place, channel + i))], place, channel + i)

    def _sums(self, address: Value, count: int) -> list[Value]:
        """Sums that lie together: this block's, or those of all blocks of the cluster in their order."""
        k, lie = self.k, self.lie
        if lie.split == 1:
            return k.load_shared(address, 0, count, lie.sum)
        total = k.load_neighbour(address, 0, count, lie.sum)
        for rank in range(1, lie.split):
            total = [a + b for a, b in zip(total, k.load_neighbour(address, rank, count, lie.sum), strict=True)]
        return total

    def _channel_at(self, lie: Lie, place: Place, channel: Value) -> Value:
        """Where a pixel's output channel of this group lies in an array, in bytes."""
        size = self.finish.y.itemsize
        at = place.offset(lie.n, lie.spatial, size) + channel * (lie.c * size)
        return at + self.group * (lie.of_group(self.g.m) * size) if self.g.groups > 1 else at

    def _write(self, sums: list[Value], place: Place, channel: Value) -> None:
        k, g = self.k, self.g
        whole = channel + self.group * g.m if g.groups > 1 else channel
        size = self.finish.y.itemsize
        y_at, r_at = self._channel_at(g.y, place, channel), None
        if g.residual is not None:
            r_at = self._channel_at(g.residual, place, channel)
        if g.m % self.lie.wide == 0 or len(sums) == 1:
            self.finish.store(sums, whole, y_at, r_at, together=self.together)
            return
        for i, one in enumerate(sums):
            with k.when(channel + i < g.m):
                beside = None if r_at is None or g.residual is None else r_at + i * g.residual.c * size
                self.finish.store([one], whole + i, y_at + i * g.y.c * size, beside, together=False)
