"""Any sweep, one output a thread, with 64-bit addresses: for arrays that the other kernels cannot address.

Weights lie as [group][tap][input channel][output channel].
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import ClassVar

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.geometry import Geometry, OfGeometry, reaches_out
from polyconv.gpu.kernels.finish import ELEMENTS, Finish, quantity, sum_type
from polyconv.gpu.kernels.move import widened
from polyconv.gpu.language import I64, Kernel, Pointer, Value, both

__all__ = ["Plain"]

_THREADS = 128


@dataclass(frozen=True, slots=True)
class Plain(OfGeometry):
    """A kernel to make."""

    g: Geometry

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"plain {self}"

    @property
    def total(self) -> int:
        """Outputs."""
        return self.g.pixels * self.g.groups * self.g.m

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-self.total // _THREADS), 1, 1

    shared: ClassVar[int] = 0
    threads: ClassVar[int] = _THREADS
    shape: ClassVar[str] = ""

    def kernel(self) -> Kernel:
        """The kernel."""
        g = self.g
        k = Kernel("convolution", self.arguments, _THREADS, numbers=tuple(self.numbers))
        index = k.cast("zext", k.block[0], I64) * _THREADS + k.cast("zext", k.thread, I64)
        with k.only(index < self.total if self.total % _THREADS else None):
            channels, rest = g.groups * g.m, index
            if g.y.c == 1:
                channel, rest = rest % channels, rest // channels
            at = []
            for axis in reversed(g.axes):
                at.append(rest % axis.out)
                rest = rest // axis.out
            at.reverse()
            if g.y.c != 1:
                channel, rest = rest % channels, rest // channels
            total = self._sum(k, rest, channel, at)
            finish = Finish(k, g)
            size = finish.y.itemsize

            def place(n: int, c: int, spatial: tuple[int, ...]) -> Value:
                found = rest * n + channel * c
                for axis, position, step in zip(g.axes, at, spatial, strict=True):
                    found = found + (position * axis.out_step + axis.first_out) * step
                return found * size

            beside = g.residual
            r_at = None if beside is None else place(beside.n, beside.c, beside.spatial)
            narrow = k.cast("trunc", channel, k.thread.type)
            finish.store([total], narrow, place(g.y.n, g.y.c, g.y.spatial), r_at, together=False)
        return k

    def _sum(self, k: Kernel, n: Value, channel: Value, at: list[Value]) -> Value:
        g, of_x, of_w = self.g, DTYPES[self.g.x_type], DTYPES[self.g.w_type]
        wide = ELEMENTS[sum_type(g)]
        total = k.variable(0, wide)
        group, m = channel // g.m, channel % g.m
        base, tap, inside = n * g.x.n + group * (g.c * g.x.c), k.value(0, I64), None
        with ExitStack() as stack:
            for axis, position, step in zip(g.axes, at, g.x.spatial, strict=True):
                t = k.cast("zext", stack.enter_context(k.loop(0, axis.taps)), I64)
                here = position * axis.stride - axis.pad + t * axis.dilation
                base, tap = base + here * step, tap * axis.taps + t
                if reaches_out(axis):
                    inside = both(inside, here.below(axis.inp))
            stack.enter_context(k.only(inside))
            c = k.cast("zext", stack.enter_context(k.loop(0, g.c)), I64)
            at_w = ((group * math.prod(axis.taps for axis in g.axes) + tap) * g.c + c) * g.m + m
            x = k.load(ELEMENTS[of_x.name], Pointer("x", (base + c * g.x.c) * of_x.itemsize))
            w = k.load(ELEMENTS[of_w.name], Pointer("w", at_w * of_w.itemsize))
            x, w = widened(k, x, of_x, wide), widened(k, w, of_w, wide)
            if g.quantities.zx:
                x = x - quantity(k, g.quantities, "zx", of_x, wide)
            total.set(k.fma(x, w, total.get()))
        return total.get()
