"""Large windows of floats: what lies inside the field by a layer of the engine, which takes Fourier transforms of it.

Windows that reach beyond the border are summed from panels, so the field is not padded here either.  Transforms spread
what is not finite, and overflow earlier than sums: a field whose sums are not all finite is summed as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.layer import Conv
from polyconv.ndimage.calls import Call, Conditions, bound
from polyconv.ndimage.fields import field, pieces
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.stages import Types

__all__ = ["Large", "large"]

Array = NDArray[Any]

_FEWEST = 256
"""Taps below which sums are faster, whatever is predicted of transforms."""

_SAVED = 0.6
"""Share of the time of sums up to which a layer is taken: compiling transforms and preparing weights comes first."""

_INSIDE = 0.25
"""Share of the outputs that lie inside, at least."""


@dataclass(frozen=True, slots=True, eq=False)
class Large:
    """A layer for the inside of a field, sums for the rest, and sums for all of it."""

    layer: Conv
    shape: tuple[int, ...]
    inside: tuple[slice, ...]
    border: Call
    whole: Call

    def enter(self, x: Array, y: Array) -> Any:
        """As in ``calls.Ready``."""
        if np.may_share_memory(x, y):
            return None
        self(x, y)
        return y

    def __call__(self, x: Array, y: Array) -> None:
        """As in ``calls.Ready``."""
        self.layer(x.reshape(self.shape), out=y.reshape(self.shape)[self.inside])
        self.border(x, y)
        with np.errstate(all="ignore"):
            is_finite = np.isfinite(np.add.reduce(y, axis=None))
        if not is_finite:
            self.whole(x, y)

    @property
    def nbytes(self) -> int:
        """As in ``calls.Ready``; the layer keeps its weights' transforms besides."""
        return self.layer.packed_bytes + self.border.nbytes + self.whole.nbytes


def large(one: Pass, x: Array, y: Array, types: Types, c: Conditions) -> Large | None:
    """A layer for the inside of arrays that lie like these, if a pass is large enough to be faster by one."""
    w = one.weights
    if w.size < _FEWEST or types.strict or x.dtype != y.dtype or types.x not in ("f32", "f64") or one.kind == "mean":
        return None
    rank = len(one.axes)
    trailing = one.axes == tuple(range(x.ndim - rank, x.ndim))
    together = x.ndim == rank or (x.flags.c_contiguous and y.flags.c_contiguous)
    if not trailing or not together or x.strides[-1] != x.itemsize or not np.isfinite(w).all():
        return None
    spatial = x.shape[x.ndim - rank :]
    inside = tuple(
        slice(size // 2 + origin, n - (size - 1 - size // 2 - origin))
        for n, size, origin in zip(spatial, w.shape, one.origins, strict=True)
    )
    share = float(np.prod([max(0, s.stop - s.start) / n for s, n in zip(inside, spatial, strict=True)]))
    whole = field([one], x, y, types)
    if share < _INSIDE or len(whole.stages) > 1:  # products of lines need no transform
        return None
    layer = Conv(w.astype(x.dtype)[None, None], accuracy="fast", threads=c.threads, workspace_limit=c.limit)
    shape = (x.size // int(np.prod(spatial)), 1, *spatial)
    sums = x.size * w.size * 0.6 / (c.target.vector_bytes // x.itemsize)
    if sum(cycles for _, cycles in layer.plan(shape).cycles) > _SAVED * sums:
        return None
    border = bound(pieces(whole), x, y, c)
    return Large(layer, shape, (slice(None), slice(None), *inside), border, bound([whole], x, y, c))
