"""Depthwise convolution: a thread owns some neighbouring channels and some outputs along one axis.

What outputs of a thread read in common is loaded once.  Loads are never skipped: the address of what lies outside is
that of the first element and its value is replaced by zero, so that all loads of a row are under way together.  Where
channels lie together threads go along them; else along the last axis, and a thread's outputs are rows below each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, Dtype
from polyconv.gpu.geometry import Geometry, OfGeometry, reaches_out
from polyconv.gpu.kernels.finish import ELEMENTS, Finish, quantity, sum_type
from polyconv.gpu.kernels.move import widened
from polyconv.gpu.kernels.repair import is_finite, sum_again
from polyconv.gpu.language import Kernel, Pointer, Type, Value, Variable, both
from polyconv.lowering.sweep import Axis

__all__ = ["Depthwise"]

_MOST_UNROLLED = 96
"""Loads that follow each other in the code; beyond them taps are a loop."""


@dataclass(frozen=True, slots=True)
class Depthwise(OfGeometry):
    """A kernel to make.

    Parameters
    ----------
    g : Geometry
        With one input channel a group.
    channels : int
        Of a thread: 1, or so many that lie together, with one output channel a group.
    outputs : int
        Of a thread.
    along : int
        Axis on which they follow each other.
    threads : int
        Of a block.
    """

    g: Geometry
    channels: int
    outputs: int
    along: int
    threads: int = 128

    @property
    def shape(self) -> str:
        """What a thread does, in short."""
        return f"{self.channels} channels {self.outputs} outputs {self.threads} threads"

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"depthwise {self}"

    @property
    def all_channels(self) -> int:
        """Output channels."""
        return self.g.groups * self.g.m

    def _extent(self, a: int) -> int:
        out = self.g.axes[a].out
        return -(-out // self.outputs) if a == self.along else out

    @property
    def total(self) -> int:
        """Threads with work."""
        extents = (self._extent(a) for a in range(len(self.g.axes)))
        return self.g.n * math.prod(extents) * (self.all_channels // self.channels)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-self.total // self.threads), 1, 1

    shared: ClassVar[int] = 0

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("convolution", self.arguments, self.threads, numbers=tuple(self.numbers))
        index = k.block[0] * self.threads + k.thread
        with k.only(index < self.total if self.total % self.threads else None):
            _Thread(k, self, index).run()
        return k


class _Thread:
    """What one thread does."""

    def __init__(self, k: Kernel, s: Depthwise, index: Value) -> None:
        self.k, self.s, g = k, s, s.g
        self.x_type, self.w_type = DTYPES[g.x_type], DTYPES[g.w_type]
        self.wide = ELEMENTS[sum_type(g)]
        groups = s.all_channels // s.channels
        rest = index
        if g.y.c == 1:
            rest, channel = rest // groups, rest % groups
        positions: list[Value] = []
        for a in reversed(range(len(g.axes))):
            extent = s._extent(a)
            at = k.value(0) if extent == 1 else rest % extent
            rest = rest if extent == 1 else rest // extent
            positions.append(at * s.outputs if a == s.along else at)
        if g.y.c != 1:
            rest, channel = rest // groups, rest % groups
        self.at = tuple(reversed(positions))
        self.n, self.channel = rest, channel * s.channels
        source = self.channel // g.m if g.m > 1 else self.channel
        self.x_base = self.n * g.x.n + source * g.x.c
        self.zero = quantity(k, g.quantities, "zx", self.x_type, self.wide) if g.quantities.zx else None
        self.sums: list[list[Variable]] = [
            [k.variable(0, self.wide) for _ in range(s.channels)] for _ in range(s.outputs)
        ]

    @property
    def repairs(self) -> bool:
        """Whether sums that are not finite may be wrong."""
        return self.s.g.is_padded and self.wide.is_float

    def run(self) -> None:
        """Add all taps and store."""
        g = self.s.g
        others = [a for a in range(len(g.axes)) if a != self.s.along]
        self._taps(others, {}, self.k.value(0), None)
        self._store()

    def _taps(self, axes: Sequence[int], tap_at: dict[int, Value], x_at: Value, ok: Value | None) -> None:
        """Go through the taps of the axes left, then add those of the axis along which outputs lie."""
        if not axes:
            self._line(tap_at, x_at, ok)
            return
        a, *rest = axes
        g, k = self.s.g, self.k
        axis = g.axes[a]
        inner = math.prod(g.axes[b].taps for b in rest) * len(self._used)
        with _each(k, axis, unrolled=axis.taps * inner <= _MOST_UNROLLED) as taps:
            for tap in taps:
                position = self.at[a] * axis.stride - axis.pad + tap * axis.dilation
                inside = None
                if reaches_out(axis):
                    inside = position.below(axis.inp)
                    position = k.pick(inside, position, 0)
                self._taps(rest, {**tap_at, a: tap}, x_at + position * g.x.spatial[a], both(ok, inside))

    @property
    def _used(self) -> list[int]:
        """Inputs, relative to the first output's first tap, that outputs of a thread read along their axis."""
        axis = self.s.g.axes[self.s.along]
        return sorted({
            o * axis.stride + t * axis.dilation for o, t in itertools.product(range(self.s.outputs), range(axis.taps))
        })  # fmt: skip

    def _line(self, tap_at: dict[int, Value], x_at: Value, ok: Value | None) -> None:
        k, s, g = self.k, self.s, self.s.g
        axis, step = g.axes[s.along], g.x.spatial[s.along]
        first = self.at[s.along] * axis.stride - axis.pad
        checked = reaches_out(axis) or axis.out % s.outputs
        loaded: dict[int, list[Value]] = {}
        for used in self._used:
            position, inside = first + used, ok
            if checked:
                here = position.below(axis.inp)
                inside, position = both(ok, here), k.pick(here, position, 0)
            place = Pointer("x", (self.x_base + x_at + position * step) * self.x_type.itemsize)
            values = self._load(place, self.x_type)
            if self.zero is not None:
                values = [v - self.zero for v in values]
            loaded[used] = values if inside is None else [k.select(inside, v, 0) for v in values]
        for tap in range(axis.taps):
            at = k.value(0)
            for a, one in enumerate(g.axes):
                at = at * one.taps + (tap if a == s.along else tap_at[a])
            place = Pointer("w", (at * s.all_channels + self.channel) * self.w_type.itemsize)
            weights = self._load(place, self.w_type)
            for o, total in enumerate(self.sums):
                for x, w, one_sum in zip(loaded[o * axis.stride + tap * axis.dilation], weights, total, strict=True):
                    one_sum.set(k.fma(x, w, one_sum.get()))

    def _load(self, place: Pointer, dtype: Dtype) -> list[Value]:
        k, count = self.k, self.s.channels
        element = ELEMENTS[dtype.name]
        type_ = element if count == 1 else Type(element.element, count)
        return [widened(k, v, dtype, self.wide) for v in k.elements(k.load(type_, place))]

    def _store(self) -> None:
        """Store; outputs with a sum that is not finite are added again, in the same order, and stored then.

        A residual may lie where the result does: every output is stored once.
        """
        k, s, g = self.k, self.s, self.s.g
        axis = g.axes[s.along]
        suspect = k.variable(0)  # a bit for each output
        for o, total in enumerate(self.sums):
            sums = [one.get() for one in total]
            with k.only(self.at[s.along] + o < axis.out if axis.out % s.outputs else None):
                if not self.repairs:
                    self._finish(k.value(o), sums, self.channel)
                    continue
                fine = is_finite(sums[0])
                for one in sums[1:]:
                    fine = fine & is_finite(one)
                suspect.set(k.pick(fine, suspect.get(), suspect.get() | (1 << o)))
                with k.when(fine):
                    self._finish(k.value(o), sums, self.channel)
        if self.repairs:
            with ExitStack() as stack:
                stack.enter_context(k.when(suspect.get().equals(0), otherwise=True))
                output = stack.enter_context(k.loop(0, s.outputs))
                stack.enter_context(k.when(((suspect.get() >> output) & 1).equals(1)))
                c = stack.enter_context(k.loop(0, s.channels))
                self._finish(output, [self._again(output, c)], self.channel + c)

    def _finish(self, output: Value, sums: list[Value], channel: Value) -> None:
        g = self.s.g
        finish = Finish(self.k, g)
        size = finish.y.itemsize
        y_at = self._at(g.y.n, g.y.spatial, g.y.c, output, channel) * size
        r_at = None
        if g.residual is not None:
            r_at = self._at(g.residual.n, g.residual.spatial, g.residual.c, output, channel) * size
        together = len(sums) > 1 and g.y.c == 1 and g.y.aligned(size) % min(16, len(sums) * size) == 0
        finish.store(sums, channel, y_at, r_at, together=together)

    def _again(self, output: Value, channel: Value) -> Value:
        """A sum of real products only."""
        k, s, g = self.k, self.s, self.s.g
        at = [here + output if a == s.along else here for a, here in enumerate(self.at)]

        def product(positions: Sequence[Value], tap: Value, c: Value) -> tuple[Value, Value]:
            place = self.x_base + channel * g.x.c
            for position, step in zip(positions, g.x.spatial, strict=True):
                place = place + position * step
            of_w = tap * s.all_channels + self.channel + channel
            x = k.load(ELEMENTS[self.x_type.name], Pointer("x", place * self.x_type.itemsize))
            w = k.load(ELEMENTS[self.w_type.name], Pointer("w", of_w * self.w_type.itemsize))
            return widened(k, x, self.x_type, self.wide), widened(k, w, self.w_type, self.wide)

        order = [a for a in range(len(g.axes)) if a != s.along]
        return sum_again(k, g, at, self.wide, product, [*order, s.along])

    def _at(self, n: int, spatial: Sequence[int], c: int, output: Value, channel: Value) -> Value:
        total = self.n * n + channel * c
        for a, (axis, step) in enumerate(zip(self.s.g.axes, spatial, strict=True)):
            at = self.at[a] + output if a == self.s.along else self.at[a]
            total = total + (at * axis.out_step + axis.first_out) * step
        return total


@contextmanager
def _each(k: Kernel, axis: Axis, *, unrolled: bool) -> Iterator[list[Value]]:
    """Taps of an axis: all of them, or that of the turn of a loop."""
    if unrolled:
        yield [k.value(t) for t in range(axis.taps)]
        return
    with k.loop(0, axis.taps) as tap:
        yield [tap]
