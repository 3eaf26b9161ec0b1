"""Deformable convolution: a thread owns a pixel and some neighbouring output channels, for which it samples once.

A sample is the mean of the four inputs around a place that offsets name, weighted by its distances from them; corners
outside the image count zero (ONNX DeformConv).  Places are found in the type of the sums, with 64-bit addresses.
Weights lie as [group][tap][input channel][output channel], with zeros behind the last output channel.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.geometry import Geometry, Lie, OfGeometry
from polyconv.gpu.kernels.finish import ELEMENTS, Finish, sum_type
from polyconv.gpu.kernels.move import widened
from polyconv.gpu.language import I64, Kernel, Pointer, Type, Value
from polyconv.lowering.sweep import Axis

__all__ = ["Deformable"]


@dataclass(frozen=True, slots=True)
class Deformable(OfGeometry):
    """A kernel to make.

    Parameters
    ----------
    g : Geometry
    offset_groups : int
    offset, mask : Lie
        Steps of channels are those of their axis, which holds offset groups times taps; no mask where it is None.
    columns : int
        Output channels of a thread.
    """

    g: Geometry
    offset_groups: int
    offset: Lie
    mask: Lie | None
    columns: int
    threads: ClassVar[int] = 128
    shared: ClassVar[int] = 0

    @property
    def shape(self) -> str:
        """What a thread does, in short."""
        return f"{self.columns} channels"

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"deformable {self}"

    @property
    def sum(self) -> Type:
        """Type of places, samples and sums."""
        return ELEMENTS[sum_type(self.g)]

    @property
    def across(self) -> int:
        """Threads that share a group's output channels."""
        return -(-self.g.m // self.columns)

    @property
    def rows(self) -> int:
        """Blocks that share the pixels."""
        return -(-self.g.pixels // self.threads)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return self.rows * self.across * self.g.groups, 1, 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        *operands, y = self.g.arguments
        return *operands, "offset", *(("mask",) if self.mask is not None else ()), y

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("convolution", self.arguments, self.threads)
        row, rest = k.block[0] % self.rows, k.block[0] // self.rows
        pixel = k.cast("zext", row, I64) * self.threads + k.cast("zext", k.thread, I64)
        with k.only(pixel < self.g.pixels if self.g.pixels % self.threads else None):
            _Thread(k, self, pixel, rest % self.across * self.columns, rest // self.across).run()
        return k


class _Thread:
    """What one thread does; ``column`` counts within the group."""

    def __init__(self, k: Kernel, s: Deformable, pixel: Value, column: Value, group: Value) -> None:
        self.k, self.s, self.g, self.column, self.group = k, s, s.g, column, group
        high, wide = s.g.axes
        self.at = pixel // wide.out % high.out, pixel % wide.out
        self.n = pixel // (high.out * wide.out)
        self.sums = [k.variable(0, s.sum) for _ in range(s.columns)]

    def run(self) -> None:
        """Sample and add, tap by tap and channel by channel; then store."""
        k, s, g = self.k, self.s, self.g
        high, wide = g.axes
        of_offsets = max(1, g.groups * g.c // s.offset_groups)  # channels that an offset group has
        first = self.group * g.c
        low, last = first // of_offsets, (first + (g.c - 1)) // of_offsets
        with k.loop(0, high.taps) as i, k.loop(0, wide.taps) as j:
            tap = i * wide.taps + j
            with k.loop(low, last + 1 if g.c else low) as part:
                places, weights, factor = self._sampling(part, tap, (i, j))
                start, end = part * of_offsets - first, (part + 1) * of_offsets - first
                with k.loop(k.maximum(start, 0), k.minimum(end, g.c)) as c:
                    self._add(self._sample(c, places, weights, factor), (self.group * g.taps + tap) * g.c + c)
        self._store()

    def _sampling(self, part: Value, tap: Value, taps: tuple[Value, Value]
                  ) -> tuple[list[Value], list[Value], Value | None]:  # fmt: skip
        """Of the four corners of a sample their places in a plane and weights, 0 outside; and what it is times."""
        s, g = self.s, self.g
        channel = (part * g.taps + tap) * 2
        ends = [
            self._around(axis, at, t, self._field("offset", s.offset, channel + a))
            for a, (axis, at, t) in enumerate(zip(g.axes, self.at, taps, strict=True))
        ]
        factor = None if s.mask is None else self._field("mask", s.mask, part * g.taps + tap)
        places, weights = [], []
        for (y, of_y), (x, of_x) in itertools.product(*ends):
            places.append(y * g.x.spatial[0] + x * g.x.spatial[1])
            weights.append(of_y * of_x)
        return places, weights, factor

    def _around(self, axis: Axis, at: Value, tap: Value, offset: Value) -> list[tuple[Value, Value]]:
        """The two inputs around a place on an axis, and the weight of each; 0 and any input where there is none."""
        k, real = self.k, self.s.sum
        whole = at * axis.stride - axis.pad + k.cast("sext", tap, I64) * axis.dilation
        place = k.cast("sitofp", whole, real) + offset
        near = (place > -1.0) & (place < float(axis.inp))  # false for NaN
        place = k.select(near, place, 0.0)
        floor = k.intrinsic("floor", real, place)
        rest = place - floor
        below = k.cast("fptosi", floor, I64)
        found = []
        for here, weight in ((below, 1.0 - rest), (below + 1, rest)):
            inside = near & here.below(axis.inp)
            found.append((k.select(inside, here, 0), k.select(inside, weight, 0.0)))
        return found

    def _field(self, name: str, lie: Lie, channel: Value) -> Value:
        """An offset or factor of this pixel, in the type of the sums."""
        k, of_x = self.k, DTYPES[self.g.x_type]
        place = self.n * lie.n + k.cast("sext", channel, I64) * lie.c
        for at, step in zip(self.at, lie.spatial, strict=True):
            place = place + at * step
        return widened(k, k.load(ELEMENTS[of_x.name], Pointer(name, place * of_x.itemsize)), of_x, self.s.sum)

    def _sample(self, c: Value, places: Sequence[Value], weights: Sequence[Value], factor: Value | None) -> Value:
        k, g, of_x = self.k, self.g, DTYPES[self.g.x_type]
        plane = self.n * g.x.n + k.cast("sext", self.group * g.c + c, I64) * g.x.c
        total = k.constant(self.s.sum, 0.0)
        is_empty = any(axis.inp == 0 for axis in g.axes)
        for place, weight in () if is_empty else zip(places, weights, strict=True):
            value = k.load(ELEMENTS[of_x.name], Pointer("x", (plane + place) * of_x.itemsize))
            more = k.fma(weight, widened(k, value, of_x, self.s.sum), total)
            total = k.select(weight.equals(0.0), total, more)  # an input of weight 0 may be Inf, or none at all
        return total if factor is None else total * factor

    def _add(self, sample: Value, row: Value) -> None:
        """Add a sample times the weights of this thread's channels."""
        k, of_w = self.k, DTYPES[self.g.w_type]
        first = k.cast("zext", row, I64) * (self.s.across * self.s.columns) + k.cast("zext", self.column, I64)
        for i, total in enumerate(self.sums):
            w = k.load(ELEMENTS[of_w.name], Pointer("w", (first + i) * of_w.itemsize))
            total.set(k.fma(sample, widened(k, w, of_w, self.s.sum), total.get()))

    def _store(self) -> None:
        k, s, g = self.k, self.s, self.g
        finish = Finish(k, g)
        whole = self.column + self.group * g.m
        for i, one in enumerate(self.sums):
            with k.only(self.column + i < g.m if g.m % s.columns else None):
                r_at = None if g.residual is None else self._place(g.residual, whole + i, finish.y.itemsize)
                y_at = self._place(g.y, whole + i, finish.y.itemsize)
                finish.store([one.get()], whole + i, y_at, r_at, together=False)

    def _place(self, lie: Lie, channel: Value, size: int) -> Value:
        total = self.n * lie.n + self.k.cast("zext", channel, I64) * lie.c
        for at, step in zip(self.at, lie.spatial, strict=True):
            total = total + at * step
        return total * size
