"""Sweeps as products take them: axes that lie together in memory as one.

Then rows of pixels are long.  The batch may be an axis too.  Only how arrays lie decides; no bits of a result depend
on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyconv.lowering.program import Operand, Request
from polyconv.lowering.situation import image_bytes
from polyconv.lowering.sweep import Axis, Sweep

__all__ = ["folded_as_packed", "is_inside", "large_boxes", "stacked", "with_folded"]


def is_inside(axis: Axis) -> bool:
    """Whether there are windows, with taps, and they meet no padding."""
    span = (axis.taps - 1) * axis.dilation
    whole = axis.pad <= 0 and (axis.out - 1) * axis.stride - axis.pad + span < axis.inp
    return axis.out > 0 and axis.taps > 0 and whole


def _folded(sweep: Sweep, operands: Sequence[Operand]) -> tuple[Sweep, list[Operand]]:
    """Neighbouring axes that lie together in all operands (the input first) as one, and none of a single result.

    A joined axis counts the taps of all that it stands for; where they lie is known from the sweep as it was.
    """
    axes, spatial = [sweep[-1]], [[o.spatial[-1]] for o in operands]
    for a in range(len(sweep) - 2, -1, -1):
        outer, inner = sweep[a], axes[0]
        whole = inner.out == inner.inp and inner.stride == outer.stride == 1 and inner.pad == outer.pad == 0
        plain = inner.out_step == outer.out_step == 1 and inner.first_out == outer.first_out == 0
        if plain and inner.out == 1 and inner.pad == 0:
            axes[0] = replace(outer, taps=outer.taps * inner.taps)
            for o, known in zip(operands, spatial, strict=True):
                known[0] = o.spatial[a]
        elif whole and plain and all(
            o.spatial[a] == inner.out * known[0] for o, known in zip(operands, spatial, strict=True)
        ):  # fmt: skip
            taps = outer.taps * inner.taps
            axes[0] = replace(inner, out=outer.out * inner.out, inp=outer.inp * inner.inp, taps=taps)
        else:
            axes.insert(0, outer)
            for o, known in zip(operands, spatial, strict=True):
                known.insert(0, o.spatial[a])
    return tuple(axes), [replace(o, spatial=tuple(known)) for o, known in zip(operands, spatial, strict=True)]


def folded_as_packed(sweep: Sweep) -> Sweep:
    """The axes that are left where tensors lie as their layout says, by strides in elements of one byte."""

    def packed(extents: list[int]) -> Operand:
        steps = itertools.accumulate(reversed(extents[1:]), lambda step, extent: step * extent, initial=1)
        return Operand(0, 0, tuple(steps)[::-1], 0, 1)

    return _folded(sweep, [packed([axis.inp for axis in sweep]), packed([axis.out for axis in sweep])])[0]


def with_folded(r: Request, sweep: Sweep) -> tuple[Request, Sweep]:
    """The request and the sweep with axes that lie together in all operands as one."""
    operands = [r.x, r.y] + ([r.residual] if r.residual is not None else [])
    axes, (x, y, *residual) = _folded(sweep, operands)
    return replace(r, x=x, y=y, residual=residual[0] if residual else None), axes


def stacked(r: Request, sweep: Sweep) -> tuple[Request, Sweep]:
    """The request with its batch as the outermost axis, if boxes may hold several images.

    Images of planes that are an eighth of a second-level cache or less then take fewer passes over the weights.  Images
    of one pixel are one image of so many.
    """
    p = r.problem
    images = p.n or 0
    if images < 2 or (p.layout == "NCHW" and image_bytes(p)[0] > r.situation.cache("l2", 1 / 8)):
        return r, sweep

    def stack(o: Operand) -> Operand:
        return replace(o, n=0, spatial=(o.n, *o.spatial))

    are_pixels = {*p.i, *p.out, *p.k} == {1}
    situation = replace(r.situation, problem=p.images_as_pixels() if are_pixels else replace(p, n=1))
    residual = None if r.residual is None else stack(r.residual)
    return (replace(r, situation=situation, x=stack(r.x), y=stack(r.y), residual=residual),
            (Axis(images, images, 1, 1, 1, 0), *sweep))  # fmt: skip


def large_boxes(sweep: Sweep, most: int, ways: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Boxes of at most so many outputs, the largest first: one axis cut, those after it whole, those before it single.

    At most so many ``ways`` into how many parts the axis is cut, nearly equal ones, with the boxes.
    """
    extents = [axis.out for axis in sweep]
    cut = next((a for a in range(len(extents)) if math.prod(extents[a + 1 :]) <= most), len(extents) - 1)
    inner = math.prod(extents[cut + 1 :])
    block = min(extents[cut], max(1, most // inner)) + 1
    for _ in range(min(ways, block - 1)):
        parts = -(-extents[cut] // max(1, block - 1))
        block = -(-extents[cut] // parts)
        yield parts, (*[1] * cut, block, *extents[cut + 1 :])
