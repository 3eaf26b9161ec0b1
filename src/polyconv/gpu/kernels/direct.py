"""Convolution of few input channels: a thread owns some pixels and some neighbouring output channels.

Inputs are read from wherever they lie, planes or channels last, each once by every thread that needs it; weights of the
block's output channels lie in shared memory, from where all threads read the same ones at a time.  So a first layer
needs no copy of its image.  A sum is a chain of multiply-adds, tap by tap, channels inner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.geometry import Geometry, OfGeometry, reaches_out
from polyconv.gpu.kernels.finish import ELEMENTS, Finish, quantity, sum_type
from polyconv.gpu.kernels.move import widened
from polyconv.gpu.kernels.repair import is_finite, sum_again
from polyconv.gpu.kernels.results import Place
from polyconv.gpu.language import Kernel, Pointer, Type, Value, Variable, both

__all__ = ["Direct"]

_MOST_UNROLLED = 48
"""Products of a sum that follow each other in the code; beyond them taps are a loop."""


@dataclass(frozen=True, slots=True)
class Direct(OfGeometry):
    """A kernel to make.

    Parameters
    ----------
    g : Geometry
    pixels, columns : int
        Of a thread; columns are a multiple of 4.
    threads : int
        Of a block.
    """

    g: Geometry
    pixels: int
    columns: int
    threads: int = 128

    @property
    def shape(self) -> str:
        """What a thread does, in short."""
        return f"{self.pixels} pixels {self.columns} channels"

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"direct {self}"

    @property
    def sum(self) -> Type:
        """Type of the sums."""
        return ELEMENTS[sum_type(self.g)]

    @property
    def terms(self) -> int:
        """Products of a sum."""
        return self.g.taps * self.g.c

    @property
    def shared(self) -> int:
        """Bytes of shared memory: weights of a block."""
        return self.terms * self.columns * self.sum.bytes

    @property
    def across(self) -> int:
        """Blocks that share a group's output channels."""
        return -(-self.g.m // self.columns)

    @property
    def rows(self) -> int:
        """Blocks that share the pixels."""
        return -(-self.g.pixels // (self.pixels * self.threads))

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return self.rows * self.across * self.g.groups, 1, 1

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("convolution", self.arguments, self.threads, numbers=tuple(self.numbers), shared=self.shared)
        row, rest = k.block[0] % self.rows, k.block[0] // self.rows
        column, group = rest % self.across * self.columns, rest // self.across
        self._load_weights(k, column, group)
        k.barrier()
        _Thread(k, self, row * (self.pixels * self.threads) + k.thread, column, group).run()
        return k

    def _load_weights(self, k: Kernel, column: Value, group: Value) -> None:
        """Weights lie as [group][tap][input channel][output channel]; those beyond the last are zero."""
        g, of_w = self.g, DTYPES[self.g.w_type]
        total = self.terms * self.columns
        with k.loop(0, -(-total // self.threads)) as turn:
            at = turn * self.threads + k.thread
            with k.when(at < total):
                term, channel = at // self.columns, column + at % self.columns
                value = k.variable(0, self.sum)
                with k.only(channel < g.m if g.m % self.columns else None):
                    place = (group * self.terms + term) * g.m + channel
                    one = k.load(ELEMENTS[of_w.name], Pointer("w", place * of_w.itemsize))
                    value.set(widened(k, one, of_w, self.sum))
                k.store_shared(k.base + at * self.sum.bytes, [value.get()])


class _Thread:
    """What one thread does: pixels that lie as many apart as the block has threads."""

    def __init__(self, k: Kernel, s: Direct, first: Value, column: Value, group: Value) -> None:
        self.k, self.s, self.column, self.group = k, s, column, group
        g = s.g
        self.numbers = [first + j * s.threads for j in range(s.pixels)]
        self.places = [Place.of(k, g, number) for number in self.numbers]
        self.sums = [[k.variable(0, s.sum) for _ in range(s.columns)] for _ in range(s.pixels)]
        self.zero = quantity(k, g.quantities, "zx", DTYPES[g.x_type], s.sum) if g.quantities.zx else None

    def run(self) -> None:
        """Add and store."""
        self._taps(0, self.k.value(0), [self.k.value(0) for _ in self.places], [None for _ in self.places])
        self._store()

    def _taps(self, a: int, tap: Value, x_at: list[Value], ok: list[Value | None]) -> None:
        """Go through the taps of the axes from ``a`` on."""
        k, g = self.k, self.s.g
        if a == len(g.axes):
            self._channels(tap, x_at, ok)
            return
        axis = g.axes[a]
        inner = math.prod(one.taps for one in g.axes[a + 1 :]) * g.c
        with ExitStack() as stack:
            taps = [k.value(t) for t in range(axis.taps)]
            if axis.taps * inner > _MOST_UNROLLED:
                taps = [stack.enter_context(k.loop(0, axis.taps))]
            for t in taps:
                places, inside = [], []
                for place, at, fine in zip(self.places, x_at, ok, strict=True):
                    position = place.at[a] * axis.stride - axis.pad + t * axis.dilation
                    inside.append(both(fine, position.below(axis.inp)) if reaches_out(axis) else fine)
                    places.append(at + position * g.x.spatial[a])
                self._taps(a + 1, tap * axis.taps + t, places, inside)

    def _channels(self, tap: Value, x_at: list[Value], ok: list[Value | None]) -> None:
        k, s, g = self.k, self.s, self.s.g
        of_x, wide = DTYPES[g.x_type], 16 // s.sum.bytes
        bases = [place.n * g.x.n + self.group * (g.c * g.x.c) for place in self.places]
        for c in range(g.c):
            values = []
            for number, base, at, fine in zip(self.numbers, bases, x_at, ok, strict=True):
                inside = both(fine, number < g.pixels if g.pixels % (s.pixels * s.threads) else None)
                place = base + at + c * g.x.c
                place = place if inside is None else k.pick(inside, place, 0)
                one = widened(k, k.load(ELEMENTS[of_x.name], Pointer("x", place * of_x.itemsize)), of_x, s.sum)
                one = one if self.zero is None else one - self.zero
                values.append(one if inside is None else k.select(inside, one, 0))
            row = k.base + (tap * g.c + c) * (s.columns * s.sum.bytes)
            for first in range(0, s.columns, wide):
                weights = k.load_shared(row, first * s.sum.bytes, wide, s.sum)
                for value, sums in zip(values, self.sums, strict=True):
                    for i, w in enumerate(weights):
                        sums[first + i].set(k.fma(value, w, sums[first + i].get()))

    def _store(self) -> None:
        """Store; pixels with a sum that is not finite are added again, of real products, and stored then."""
        k, s, g = self.k, self.s, self.s.g
        repairs = g.is_padded and s.sum.is_float
        suspect = k.variable(0)  # a bit for each pixel
        whole = g.pixels % (s.pixels * s.threads) == 0
        for j, (number, place, sums) in enumerate(zip(self.numbers, self.places, self.sums, strict=True)):
            with k.only(None if whole else number < g.pixels):
                self._store_pixel(j, place, [one.get() for one in sums], suspect if repairs else None)
        if not repairs:
            return
        with ExitStack() as stack:
            stack.enter_context(k.when(suspect.get().equals(0), otherwise=True))
            j_again = stack.enter_context(k.loop(0, s.pixels))
            stack.enter_context(k.when(((suspect.get() >> j_again) & 1).equals(1)))
            column = stack.enter_context(k.loop(0, s.columns))
            stack.enter_context(k.when(self.column + column < g.m))
            place = Place.of(k, g, self.numbers[0] + j_again * s.threads)
            self._finish(place, self.column + column, [self._again(place, column)])

    def _store_pixel(self, j: int, place: Place, sums: list[Value], suspect: Variable | None) -> None:
        k, s = self.k, self.s
        if suspect is None:
            self._store_runs(place, sums)
            return
        fine = is_finite(sums[0])
        for one in sums[1 : s.columns]:
            fine = fine & is_finite(one)
        suspect.set(k.pick(fine, suspect.get(), suspect.get() | (1 << j)))
        with k.when(fine):
            self._store_runs(place, sums)

    def _store_runs(self, place: Place, sums: Sequence[Value]) -> None:
        k, s, g = self.k, self.s, self.s.g
        wide = 4 if g.m % 4 == 0 else 1
        for first in range(0, s.columns, wide):
            channel = self.column + first
            with k.only(channel < g.m if g.m % s.columns else None):
                self._finish(place, channel, sums[first : first + wide])

    def _finish(self, place: Place, channel: Value, sums: Sequence[Value]) -> None:
        g = self.s.g
        finish = Finish(self.k, g)
        size = finish.y.itemsize
        whole = channel + self.group * g.m
        y_at = place.offset(g.y.n, g.y.spatial, size) + whole * (g.y.c * size)
        r_at = None
        if g.residual is not None:
            r_at = place.offset(g.residual.n, g.residual.spatial, size) + whole * (g.residual.c * size)
        together = len(sums) > 1 and g.y.c == 1 and g.y.aligned(size) % min(16, len(sums) * size) == 0
        finish.store(sums, whole, y_at, r_at, together=together)

    def _again(self, place: Place, column: Value) -> Value:
        """A sum of real products only; ``column`` counts within the block."""
        k, s, g = self.k, self.s, self.s.g
        of_x = DTYPES[g.x_type]

        def product(positions: Sequence[Value], tap: Value, c: Value) -> tuple[Value, Value]:
            at = place.n * g.x.n + self.group * (g.c * g.x.c) + c * g.x.c
            for position, step in zip(positions, g.x.spatial, strict=True):
                at = at + position * step
            x = widened(k, k.load(ELEMENTS[of_x.name], Pointer("x", at * of_x.itemsize)), of_x, s.sum)
            row = k.base + ((tap * g.c + c) * s.columns + column) * s.sum.bytes
            return x, k.load_shared(row, 0, 1, s.sum)[0]

        return sum_again(k, g, place.at, s.sum, product, range(len(g.axes)))
