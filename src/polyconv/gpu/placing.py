"""How operands are told to kernels: the geometry of a sweep, weights in a kernel's order, the input or a copy of it.

It must not know prices, nor which kernel is taken.
"""

from __future__ import annotations

import math
from dataclasses import replace

from polyconv.dtypes import DTYPES
from polyconv.gpu.geometry import Geometry, Lie, Quantities, packed
from polyconv.gpu.job import Job
from polyconv.gpu.kernels import move
from polyconv.gpu.kernels.finish import sum_type
from polyconv.gpu.kernels.gemm import Gemm
from polyconv.gpu.kernels.patch import Patch, PatchTile
from polyconv.gpu.kernels.zeros import Compensation, Padding
from polyconv.lowering.sweep import Sweep
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import Quantisation

__all__ = [
    "MOST_BYTES", "arithmetic_of", "compensation_of", "geometry_of", "input_of", "most_bytes", "of_bytes",
    "padding_of", "patch_weights", "weight_type", "weights_of",
]  # fmt: skip

MOST_BYTES = 1 << 31
"""Arrays of fewer are addressed with 32 bits."""


def most_bytes(job: Job) -> int:
    """Bytes from the first to the last element of the operand that spans most, as it lies or channels last."""
    p = job.problem
    i, o = [e or 0 for e in p.i], [e or 0 for e in p.out]

    def span(lie: Lie, c: int, extents: list[int], size: int) -> int:
        steps = zip((p.n or 0, c, *extents), (lie.n, lie.c, *lie.spatial), strict=True)
        return size * (1 + sum((e - 1) * abs(s) for e, s in steps if e))

    whole = 8 * (p.n or 0) * math.prod(i) * (p.c + 16 * p.groups)
    weights = 16 * p.m * (p.c // max(1, p.groups) + 16) * math.prod(p.k)
    return max(
        span(job.x, p.c, i, p.x_dtype.itemsize), span(job.y, p.m, o, p.y_dtype.itemsize), weights, whole // 8,
        span(job.residual, p.m, o, p.y_dtype.itemsize) if job.residual else 0,
    )  # fmt: skip


def geometry_of(job: Job, sweep: Sweep, c: int, x: Lie, x_type: str, w_type: str, *, moved: bool = False) -> Geometry:
    """What a kernel is told of a sweep; an input that was ``moved`` has lost its zero point on the way."""
    p, quantities = job.problem, replace(job.quantities, zw="")
    return Geometry(
        n=p.n or 0, groups=p.groups, c=c, m=p.m // p.groups, axes=sweep, x=x, y=job.y, residual=job.residual,
        x_type=x_type, w_type=w_type, y_type=p.y, bias=p.bias, activation=p.activation,
        saturate=p.overflow == "saturate", quantities=replace(quantities, zx="") if moved else quantities,
    )  # fmt: skip


def of_bytes(g: Geometry, job: Job) -> Geometry:
    """A geometry whose inputs are multiplied as they lie: what their zero point takes from sums stands in the bias."""
    q = job.quantities
    return replace(g, bias=g.bias or bool(q.zx), quantities=q if not q.zx else replace(q, zx=""))


def weights_of(job: Job, sweep: Sweep, *, outer: str, padded: int, target: str, halves: bool = False,
               outputs: int = 0) -> move.Arrange:  # fmt: skip
    """Weights of a sweep: axes in the order that letters name, of g group, m output, c input channel, t taps.

    Zeros follow the input channels of a group until there are ``padded``, its outputs until there are ``outputs``.
    Weights come less their zero points, but bytes as bytes.
    """
    p, zero = job.problem, "" if DTYPES[target].bits == 8 else job.quantities.zw
    c, m = p.c // p.groups, p.m // p.groups
    first_step, second_step, *steps = job.w
    if p.op == "conv_transpose":  # (c, m / groups, taps)
        of = {"g": (p.groups, c * first_step), "c": (c, first_step), "m": (m, second_step)}
    else:
        of = {"g": (p.groups, m * first_step), "m": (m, first_step), "c": (c, second_step)}
    of_zero = {"g": m, "m": 1} if zero == "each" else {}
    axes: list[move.Axis] = []
    for letter in outer:
        if letter == "t":
            axes += [
                move.Axis(axis.taps, axis.tap_step * step, axis.taps) for axis, step in zip(sweep, steps, strict=True)
            ]
            continue
        extent, step = of[letter]
        whole = {"c": padded, "m": max(outputs, m)}.get(letter, extent)
        axes.append(move.Axis(whole, step, extent, of_zero.get(letter, 0)))
    first = sum(axis.first_tap * step for axis, step in zip(sweep, steps, strict=True))
    return move.Arrange(tuple(axes), p.w, target, first, halves, zero=zero)


def compensation_of(job: Job, kernel: Gemm) -> Compensation | None:
    """What makes the bias of bytes whose inputs have a zero point."""
    p, g, q = job.problem, kernel.g, job.quantities
    if not kernel.has_zeros:
        return None
    return Compensation(p.m, g.taps * g.c, g.taps * (p.c // p.groups), p.x, p.w, sum_type(g), p.bias,
                        Quantities(zx=q.zx, zw=q.zw))  # fmt: skip


def padding_of(job: Job, kernel: Gemm) -> Padding | None:
    """What makes the padding that a kernel reads, if it reads some."""
    p, zx = job.problem, job.quantities.zx
    return Padding(p.c // p.groups, kernel.g.c, p.x, Quantities(zx=zx)) if kernel.reads_padding else None


def weight_type(job: Job) -> str:
    """Type in which kernels that multiply in threads read weights: their own, or one that holds a difference."""
    p = job.problem
    if not job.quantities.zw:
        return p.w
    return "i16" if p.w_dtype.bits == 8 else arithmetic_of(p, job.accuracy)


def patch_weights(job: Job, g: Geometry, tile: PatchTile) -> move.Arrange:
    """Weights in the order in which a block copies them: tiles of columns, channels, taps; rows swizzled."""
    p, kernel = job.problem, Patch(g, tile)
    first_step, second_step, *steps = job.w
    c_step, m_step = (first_step, second_step) if p.op == "conv_transpose" else (second_step, first_step)
    piece = kernel.channels // 8
    taps = [move.Axis(axis.taps, axis.tap_step * step, axis.taps) for axis, step in zip(g.axes, steps, strict=True)]
    axes = (
        move.Axis(kernel.across, tile.columns * m_step, kernel.across),
        move.Axis(p.c // kernel.channels, kernel.channels * c_step, p.c // kernel.channels), *taps,
        move.Axis(tile.columns, m_step, min(p.m, tile.columns)), move.Axis(8, piece * c_step, 8),
        move.Axis(piece, c_step, piece),
    )  # fmt: skip
    first = sum(axis.first_tap * step for axis, step in zip(g.axes, steps, strict=True))
    staged = kernel.arithmetic.staged
    return move.Arrange(axes, p.w, staged, first, kernel.parts > 1, swizzled=True)


def arithmetic_of(p: Problem, accuracy: str) -> str:
    """Row of ``ARITHMETIC`` in which products of a problem are summed."""
    x, w = p.x_dtype, p.w_dtype
    if x.is_float:
        if x.name == "f32":
            return {"fast": "x3", "strict": "f32", "tf32": "tf32"}[accuracy]
        return x.name
    q = p.quantisation or Quantisation()
    whole = (p.overflow == "saturate" or p.activation is not None or p.y_dtype.bits == 64) and not q.rescales
    terms = (p.c // p.groups) * math.prod(p.k)
    bits = x.bits - (x.kind == "i" and q.zx is None) + w.bits - (w.kind == "i" and q.zw is None)
    if whole and terms * 2**bits >= 2**31:
        return "i64"
    if x.bits == 8 and w.bits == 8:
        return f"{'s' if x.kind == 'i' else 'u'}8{'s' if w.kind == 'i' else 'u'}8"
    return "i32"


def input_of(job: Job, c: int, padded: int, staged: str) -> tuple[Lie, move.Arrange | move.Turn | None]:
    """How the input lies that kernels read, and what makes it where it is not the caller's."""
    p, x = job.problem, job.x
    size = DTYPES[staged].itemsize
    n, extents = p.n or 0, tuple(e or 0 for e in p.i)
    zero = job.quantities.zx if size > 1 else ""
    if staged == p.x and c == padded and x.c == 1 and x.aligned(size) == 16 and not zero:
        return x, None
    lie = packed(n, padded * p.groups, extents)
    if x.c == 1 or math.prod(extents) == 1 or x.group is not None:
        axes = [move.Axis(n, x.n, n)]
        axes += [move.Axis(extent, step, extent) for extent, step in zip(extents, x.spatial, strict=True)]
        axes += [move.Axis(p.groups, x.of_group(c), p.groups), move.Axis(padded, x.c, c)]
        return lie, move.Arrange(tuple(axes), p.x, staged, zero=zero)
    spatial = x.spatial
    if all(outer == inner * extent for outer, inner, extent in zip(spatial, spatial[1:], extents[1:], strict=False)):
        extents, spatial = (math.prod(extents),), spatial[-1:]  # planes without gaps
    return lie, move.Turn(n, p.groups, c, padded, extents, x.n, x.c, spatial, p.x, staged, zero)
