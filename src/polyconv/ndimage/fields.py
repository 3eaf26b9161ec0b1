"""Arrays and passes to fields: the axes that sums run over, joined where nothing is summed along them.

Axes without taps are one where they lie together; so are the pixels of a line and the channels between them, so that a
picture with channels last is read as lines of numbers.  It must not know how sums are formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.fields.plan import Field, FieldAxis
from polyconv.ndimage.borders import beyond
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.stages import Grid, Types, stages_of
from polyconv.runtime.arrays import place

__all__ = ["field", "pieces"]

Array = NDArray[Any]

_JOINED = 4096
"""Positions that windows may be longer than 1 along a line whose pixels have channels between them."""


def field(passes: Sequence[Pass], x: Array, y: Array, types: Types) -> Field:
    """The field of passes that share panels, over arrays that lie like these."""
    axes, grid = _grid(passes, x, y)
    stages = stages_of(passes, grid, types)
    return Field(axes, types.x, (x.itemsize, y.itemsize), (place(x).offset, place(y).offset), stages, types.cval)


def pieces(whole: Field) -> list[Field]:
    """The outputs of a field whose windows reach beyond it, in pieces that do not overlap."""
    found: list[Field] = []
    axes = list(whole.axes)
    for at, axis in enumerate(axes):
        inside = axis.before, axis.extent - (axis.reach - axis.before)
        sides = [some for some in ((0, inside[0]), (inside[1], axis.extent)) if some[0] < some[1]]
        found += [replace(whole, axes=(*axes[:at], replace(axis, some=s), *axes[at + 1 :])) for s in sides]
        axes[at] = replace(axis, some=inside)
    return found


@dataclass(frozen=True, slots=True)
class _Axis:
    """Axes of the arrays that are one as far as sums go: their elements, and strides in field and result."""

    extent: int
    x: int
    y: int
    own: int | None
    """The array's axis, if windows are longer than 1 along it."""

    def holds(self, inner: _Axis) -> bool:
        """Whether an inner axis lies in this one without a gap."""
        return (self.x, self.y) == (inner.extent * inner.x, inner.extent * inner.y)


def _grid(passes: Sequence[Pass], x: Array, y: Array) -> tuple[tuple[FieldAxis, ...], Grid]:
    """The axes that sums run over, and where the arrays' own are among them."""
    tapped = {
        axis: (size // 2 + origin, size - 1, mode)
        for p in passes
        for axis, size, origin, mode in zip(p.axes, p.weights.shape, p.origins, p.modes, strict=True)
        if size > 1
    }
    joined: list[_Axis] = []
    for axis, (n, sx, sy) in enumerate(zip(x.shape, x.strides, y.strides, strict=True)):
        one = _Axis(n, sx, sy, axis if axis in tapped else None)
        if one.own is None and n == 1:
            continue
        if joined and one.own is None and joined[-1].own is None and joined[-1].holds(one):
            one = _Axis(n * joined.pop().extent, sx, sy, None)
        joined.append(one)
    unit = 1
    if len(joined) > 1 and joined[-1].own is None and (pixels := joined[-2]).own is not None:
        channels = joined[-1]
        if pixels.holds(channels) and tapped[pixels.own][1] * channels.extent <= _JOINED:
            unit = channels.extent
            joined[-2:] = [_Axis(pixels.extent * unit, channels.x, channels.y, pixels.own)]
    while len(joined) < 2:
        joined.insert(0, _Axis(1, 0, 0, None))
    axes = []
    for at, one in enumerate(joined):
        step = unit if at == len(joined) - 1 else 1
        before, reach, mode = (0, 0, "nearest") if one.own is None else tapped[one.own]
        positions = beyond(mode, one.extent // step, before, reach - before)
        channels_of = np.where(positions[:, None] < 0, positions[:, None], positions[:, None] * step + np.arange(step))
        axes.append(
            FieldAxis(one.extent, before * step, reach * step, channels_of.reshape(-1), one.x, one.y)
        )  # fmt: skip
    where = {one.own: at for at, one in enumerate(joined) if one.own is not None}
    return tuple(axes), Grid(len(joined), where, unit)
