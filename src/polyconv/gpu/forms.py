"""The forms of a convolution on a GPU: kernels that compute it, copies of input and weights that they read, the price.

A form is data, printable and comparable.  What fixes the bits of a result (what multiplies, how long a stage is, how
many blocks share a sum) is chosen for one image, the rest of a tile for the batch: so no batch changes bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from polyconv.algorithms.sweep import Sweep, sweeps
from polyconv.dtypes import DTYPES
from polyconv.gpu.device import Device
from polyconv.gpu.geometry import Geometry, Lie, packed
from polyconv.gpu.kernels import move
from polyconv.gpu.kernels.depthwise import Depthwise
from polyconv.gpu.kernels.direct import Direct
from polyconv.gpu.kernels.finish import sum_type
from polyconv.gpu.kernels.gemm import Gemm, Tile
from polyconv.gpu.kernels.patch import Patch, PatchTile
from polyconv.gpu.kernels.plain import Plain
from polyconv.gpu.kernels.units import ARITHMETIC, UNITS
from polyconv.gpu.price import seconds_of
from polyconv.problem.problem import Problem

__all__ = ["Form", "Job", "Step", "forms"]

_MOST_BYTES = 1 << 31
"""Arrays of fewer are addressed with 32 bits."""


@dataclass(frozen=True, slots=True)
class Job:
    """A problem on a device, and how its operands lie.

    Parameters
    ----------
    problem : Problem
    x, y : Lie
    residual : Lie or None
    w : tuple of int
        Steps of the weights, in elements, in the order of their axes.
    accuracy : str
        ``fast``, ``strict`` or ``tf32``.
    device : Device
    limit : int or None
        Most bytes beyond the result.
    """

    problem: Problem
    x: Lie
    y: Lie
    residual: Lie | None
    w: tuple[int, ...]
    accuracy: str
    device: Device
    limit: int | None = None


Kernels = Depthwise | Direct | Gemm | Patch | Plain


@dataclass(frozen=True)
class Step:
    """A kernel with the weights of its sweep."""

    kernel: Kernels
    weights: move.Arrange


@dataclass(frozen=True)
class Form:
    """A way to compute a job.

    Parameters
    ----------
    algorithm : str
    arithmetic : str
        What fixes the bits of results.
    moved : Arrange, Turn or None
        What makes a copy of the input that kernels read in its place.
    steps : tuple of Step
        One a sweep.
    """

    algorithm: str
    arithmetic: str
    moved: move.Arrange | move.Turn | None
    steps: tuple[Step, ...]
    seconds: float

    @property
    def workspace(self) -> int:
        """Bytes beyond the result."""
        return 0 if self.moved is None else self.moved.bytes

    def __str__(self) -> str:
        words = self.algorithm, self.steps[0].kernel.shape, "moved" if self.moved else ""
        return " ".join(word for word in words if word)


def forms(job: Job) -> Iterator[Form]:
    """All forms of a job that fit into its limit; there is one at least."""
    found = False
    for form in _all(job):
        if job.limit is None or form.workspace <= job.limit:
            found = True
            yield form
    if not found:
        yield _plain(job, sweeps(job.problem))


def _all(job: Job) -> Iterator[Form]:
    p = job.problem
    of_sweeps = sweeps(p)
    small = _bytes(job) < _MOST_BYTES
    has_products = p.c > 0 and all(axis.taps for sweep in of_sweeps for axis in sweep)
    if not (small and has_products):
        yield _plain(job, of_sweeps)
        return
    if p.c == p.groups and p.m // p.groups <= _MOST_MULTIPLIER:
        yield from _depthwise(job, of_sweeps)
        return
    yield from _gemms(job, of_sweeps)
    yield from _patches(job, of_sweeps)
    yield from _directs(job, of_sweeps)


_FEW_CHANNELS, _FEW_TERMS = 4, 384
"""Input channels, and products of a sum, up to which no tensor core is of use."""


def _directs(job: Job, of_sweeps: tuple[Sweep, ...]) -> Iterator[Form]:
    p = job.problem
    c = p.c // p.groups
    if p.c > _FEW_CHANNELS or c * math.prod(p.k) > _FEW_TERMS:
        return
    for pixels, columns in ((1, 16), (2, 16), (1, 32), (2, 8), (4, 4)):
        if columns >= 2 * (p.m // p.groups) and columns > 4:
            continue
        steps = tuple(
            Step(
                Direct(_geometry(job, sweep, c, job.x, p.x, p.w), pixels, columns),
                _weights(job, sweep, outer="gtcm", padded=c, target=p.w),
            )
            for sweep in of_sweeps
        )
        arithmetic = f"direct {sum_type(steps[0].kernel.g)}"
        yield Form("direct", arithmetic, None, steps, seconds_of(job.device, steps, None))


_MOST_MULTIPLIER = 8


def _bytes(job: Job) -> int:
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


def _geometry(job: Job, sweep: Sweep, c: int, x: Lie, x_type: str, w_type: str) -> Geometry:
    p = job.problem
    return Geometry(
        n=p.n or 0, groups=p.groups, c=c, m=p.m // p.groups, axes=sweep, x=x, y=job.y, residual=job.residual,
        x_type=x_type, w_type=w_type, y_type=p.y, bias=p.bias, activation=p.activation,
        saturate=p.overflow == "saturate",
    )  # fmt: skip


# -- weights -----------------------------------------------------------------------------------------


def _weights(job: Job, sweep: Sweep, *, outer: str, padded: int, target: str, halves: bool = False) -> move.Arrange:
    """Weights of a sweep: axes in the order that letters name, of g group, m output, c input channel, t taps."""
    p = job.problem
    c, m = p.c // p.groups, p.m // p.groups
    first_step, second_step, *steps = job.w
    if p.op == "conv_transpose":  # (c, m / groups, taps)
        of = {"g": (p.groups, c * first_step), "c": (c, first_step), "m": (m, second_step)}
    else:
        of = {"g": (p.groups, m * first_step), "m": (m, first_step), "c": (c, second_step)}
    axes: list[move.Axis] = []
    for letter in outer:
        if letter == "t":
            axes += [
                move.Axis(axis.taps, axis.tap_step * step, axis.taps) for axis, step in zip(sweep, steps, strict=True)
            ]
            continue
        extent, step = of[letter]
        axes.append(move.Axis(padded if letter == "c" else extent, step, extent))
    first = sum(axis.first_tap * step for axis, step in zip(sweep, steps, strict=True))
    return move.Arrange(tuple(axes), p.w, target, first, halves)


# -- plain and depthwise -----------------------------------------------------------------------------


def _plain(job: Job, of_sweeps: tuple[Sweep, ...]) -> Form:
    p = job.problem
    c = p.c // max(1, p.groups)
    steps = tuple(
        Step(Plain(_geometry(job, sweep, c, job.x, p.x, p.w)), _weights(job, sweep, outer="gtcm", padded=c, target=p.w))
        for sweep in of_sweeps
    )
    return Form("plain", f"plain {sum_type(steps[0].kernel.g)}", None, steps, seconds_of(job.device, steps, None))


def _depthwise(job: Job, of_sweeps: tuple[Sweep, ...]) -> Iterator[Form]:
    p = job.problem
    size = p.x_dtype.itemsize
    last = len(p.i) - 1
    is_last = job.x.c == 1 and job.y.c == 1
    widths = [1]
    if is_last and p.m == p.groups and p.w == p.x:
        widths += [v for v in (2, 4) if v * size <= 16 and p.c % v == 0 and job.x.aligned(size) % (v * size) == 0]
    along = last if is_last or last == 0 else last - 1
    for channels in widths:
        for outputs in (1, 2, 4, 7):
            if outputs > 2 and (channels > 2 or not _shares(of_sweeps, along, outputs)):
                continue
            steps = tuple(
                Step(
                    Depthwise(_geometry(job, sweep, 1, job.x, p.x, p.w), channels, outputs, along),
                    _weights(job, sweep, outer="tgmc", padded=1, target=p.w),
                )
                for sweep in of_sweeps
            )
            arithmetic = f"depthwise {sum_type(steps[0].kernel.g)}, taps of axis {along} inner"
            yield Form("depthwise", arithmetic, None, steps, seconds_of(job.device, steps, None))


def _shares(of_sweeps: tuple[Sweep, ...], along: int, outputs: int) -> bool:
    """Whether outputs that follow each other along an axis read some inputs in common."""
    return any(
        a.dilation * (a.taps - 1) >= a.stride and a.dilation < a.stride * outputs
        for a in (sweep[along] for sweep in of_sweeps)
    )


# -- matrix products ---------------------------------------------------------------------------------


def arithmetic_of(p: Problem, accuracy: str) -> str:
    """Row of ``ARITHMETIC`` in which products of a problem are summed."""
    x, w = p.x_dtype, p.w_dtype
    if x.is_float:
        if x.name == "f32":
            return {"fast": "x3", "strict": "f32", "tf32": "tf32"}[accuracy]
        return x.name
    whole = p.overflow == "saturate" or p.activation is not None or p.y_dtype.bits == 64
    terms = (p.c // p.groups) * math.prod(p.k)
    largest = terms * 2 ** (x.bits + w.bits - (x.kind == "i") - (w.kind == "i"))
    if whole and largest >= 2**31:
        return "i64"
    if x.bits == 8:
        return f"{'s' if x.kind == 'i' else 'u'}8{'s' if w.kind == 'i' else 'u'}8"
    return "i32"


def _gemms(job: Job, of_sweeps: tuple[Sweep, ...]) -> Iterator[Form]:
    p, name = job.problem, arithmetic_of(job.problem, job.accuracy)
    row = ARITHMETIC[name]
    c = p.c // p.groups
    piece = 16 // row.bytes
    padded = -(-c // piece) * piece
    x, moved = _input(job, c, padded, row.staged)
    one = replace(job, problem=replace(p, n=1))
    w_type = p.w if row.bytes == 1 else row.staged
    geometries = [_geometry(job, sweep, padded, x, row.staged, w_type) for sweep in of_sweeps]
    of_one = [_geometry(one, sweep, padded, x, row.staged, w_type) for sweep in of_sweeps]
    for tile in _tiles(job.device, name, *max(zip(of_one, geometries, strict=True), key=lambda g: g[0].pixels)):
        steps = []
        for sweep, g in zip(of_sweeps, geometries, strict=True):
            kernel = Gemm(g, _fitting(tile, g, row.bytes))
            halves = kernel.unit.parts > 1
            weights = _weights(job, sweep, outer="gmtc", padded=padded, target=w_type, halves=halves)
            steps.append(Step(kernel, weights))
        if any(step.kernel.shared > job.device.shared_block for step in steps):
            continue
        scalar = " scalar" * (tile.unit == "scalar")  # products of warps and of warp groups have the same bits
        bits = f"gemm{scalar} {name} k{tile.bytes} parts{tile.parts}"
        yield Form("gemm", bits, moved, tuple(steps), seconds_of(job.device, tuple(steps), moved))


_PATCHES = (
    (8, 8, 64, 1), (8, 8, 128, 1), (8, 8, 160, 1), (8, 8, 80, 1), (8, 8, 96, 1), (8, 16, 64, 1), (8, 16, 64, 2),
    (8, 16, 128, 2), (16, 16, 64, 2), (8, 16, 8, 2), (16, 16, 8, 2), (8, 16, 16, 2), (8, 8, 32, 1), (16, 16, 32, 2),
)  # fmt: skip
"""Heights, widths and columns of blocks, and the warp groups that share them."""
_MOST_SUMS = {True: 64, False: 128}
"""Of a thread, with three passes and without: with more it runs out of registers."""
_MOST_SLOTS = 8


def _patches(job: Job, of_sweeps: tuple[Sweep, ...]) -> Iterator[Form]:
    """Forms of stride 1 along the last two axes whose channels fill whole rows of patches."""
    p, name = job.problem, arithmetic_of(job.problem, job.accuracy)
    row = ARITHMETIC[name]
    if not (row.group and job.device.has_groups and p.groups == 1 and p.rank in (2, 3)):
        return
    is_plain = all(axis.stride == 1 and axis.dilation > 0 for sweep in of_sweeps for axis in sweep[-2:])
    if not is_plain or p.c * row.bytes % 128 or min(sweep[-2].out for sweep in of_sweeps) < 4:
        return
    x, moved = _input(job, p.c, p.c, row.staged)
    geometries = [_geometry(job, sweep, p.c, x, row.staged, row.staged) for sweep in of_sweeps]
    for height, width, columns, groups in _PATCHES:
        if p.m % columns and not p.m < columns < 2 * max(8, p.m):
            continue
        squares = height * width // (64 * groups)
        if squares * columns // 2 > _MOST_SUMS[row.three]:
            continue
        plain = _filled(job.device, PatchTile(name, height, width, columns, groups, _MOST_SLOTS), geometries)
        if plain is None or len({Patch(g, plain).map for g in geometries}) > 1:  # a call has one tensor map
            continue
        most = max(geometries, key=lambda g: g.pixels)
        blocks, stages = Patch(most, plain).grid[0], min(Patch(g, plain).steps for g in geometries)
        is_batch, each = (p.n or 0) > 1, squares * columns / 2
        for parts, split in _shares_of_sums(job.device, blocks, stages, each, is_batch=is_batch, three=row.three):
            tile = replace(plain, parts=parts, split=split)
            steps = tuple(Step(Patch(g, tile), _patch_weights(job, g, tile)) for g in geometries)
            bits = f"patch {name} parts{parts}"
            yield Form("patch", bits, moved, steps, seconds_of(job.device, steps, moved))


def _filled(device: Device, tile: PatchTile, geometries: list[Geometry]) -> PatchTile | None:
    """The tile with as many slots as leave room for a second block, or as fit at all; None if too few do."""
    for room in (device.shared_multiprocessor // 2 - 1024, device.shared_block):
        for slots in range(tile.slots, 2, -1):
            made = replace(tile, slots=slots)
            kernels = [Patch(g, made) for g in geometries]
            if all(kernel.shared <= room and max(kernel.box) <= 256 for kernel in kernels):
                return made
    return None


def _patch_weights(job: Job, g: Geometry, tile: PatchTile) -> move.Arrange:
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


def _fitting(tile: Tile, g: Geometry, size: int) -> Tile:
    """A tile whose blocks all have something to add, for a sweep with fewer taps than another."""
    stages = -(-g.taps * g.c * size // tile.bytes)
    parts = tile.parts
    while parts > max(1, stages):
        parts //= 2
    return replace(tile, parts=parts, split=min(tile.split, parts))


def _input(job: Job, c: int, padded: int, staged: str) -> tuple[Lie, move.Arrange | move.Turn | None]:
    """How the input lies that kernels read, and what makes it where it is not the caller's."""
    p, x = job.problem, job.x
    size = DTYPES[staged].itemsize
    n, extents = p.n or 0, tuple(e or 0 for e in p.i)
    if staged == p.x and c == padded and x.c == 1 and x.aligned(size) == 16:
        return x, None
    lie = packed(n, padded * p.groups, extents)
    if x.c == 1 or math.prod(extents) == 1:
        axes = [move.Axis(n, x.n, n)]
        axes += [move.Axis(extent, step, extent) for extent, step in zip(extents, x.spatial, strict=True)]
        axes += [move.Axis(p.groups, c * x.c, p.groups), move.Axis(padded, x.c, c)]
        return lie, move.Arrange(tuple(axes), p.x, staged)
    spatial = x.spatial
    if all(outer == inner * extent for outer, inner, extent in zip(spatial, spatial[1:], extents[1:], strict=False)):
        extents, spatial = (math.prod(extents),), spatial[-1:]  # planes without gaps
    return lie, move.Turn(n, p.groups, c, padded, extents, x.n, x.c, spatial, p.x, staged)


_SHAPES = {
    "group": ((64, 64), (64, 32), (64, 128), (128, 64), (128, 128), (64, 16), (64, 8), (64, 48), (64, 80), (64, 160)),
    "warp": ((64, 64), (32, 64), (64, 32), (32, 32), (128, 32), (64, 16), (128, 64), (16, 32)),
    "scalar": ((64, 64), (64, 32), (32, 32), (128, 64), (128, 128)),
}
_WARPS = {
    (64, 64): (2, 2), (32, 64): (2, 2), (64, 32): (2, 2), (32, 32): (2, 2), (128, 32): (4, 2), (64, 16): (4, 1),
    (128, 64): (4, 2), (16, 32): (1, 2),
}  # fmt: skip
_SCALAR = {(64, 64): (8, 4), (64, 32): (4, 4), (32, 32): (4, 2), (128, 64): (8, 8), (128, 128): (8, 8)}


def _tiles(device: Device, arithmetic: str, one: Geometry, g: Geometry) -> Iterator[Tile]:
    """Tiles of a geometry whose parts suit that of one image."""
    row = ARITHMETIC[arithmetic]
    units = ["warp"] if row.warp else ["scalar"]
    if row.group and device.has_groups:
        units.insert(0, "group")
    for unit in units:
        least = min(columns for _, columns in _SHAPES[unit])
        for rows, columns in _SHAPES[unit]:
            if (columns >= 2 * g.m and columns > least) or (rows >= 2 * g.pixels and rows > 64):
                continue
            if columns % 32 and g.m % columns and columns < g.m:  # odd widths are for what they fit
                continue
            base: dict[str, Any] = {"unit": unit, "arithmetic": arithmetic, "rows": rows, "columns": columns}
            if unit == "scalar":
                base |= {"bytes": 64, "scalar": _SCALAR[rows, columns]}
            elif unit == "warp":
                base |= {"warps": _WARPS[rows, columns], "stages": 3 if row.three else 4}
            else:
                base |= {"warps": (rows // 64, 1), "stages": 3 if row.three else 4}
            tile = Tile(**base)
            blocks = -(-g.pixels // rows) * -(-g.m // columns) * g.groups
            stages = -(-g.taps * g.c * row.bytes // tile.bytes)
            each = rows * columns / UNITS[unit](tile).threads
            for parts, split in _shares_of_sums(device, blocks, stages, each, is_batch=g.n > 1, three=row.three):
                yield replace(tile, parts=parts, split=split)


def _shares_of_sums(device: Device, blocks: int, stages: int, each: float, *, is_batch: bool, three: bool
                    ) -> Iterator[tuple[int, int]]:  # fmt: skip
    """Parts of a sum, and blocks that share it.

    More where there are few blocks, two stages at least for each.  A batch, whose parts are those of one image, may
    have them added by one block if it has registers for the totals: ``each`` is the number of a thread's sums.
    """
    for parts in (1, 2, 4, 8):
        if parts > 1 and (stages // parts < 2 or not device.has_clusters):
            return
        if parts == 1 or blocks * parts <= _BLOCKS * device.multiprocessors:
            yield parts, parts
        if is_batch and parts > 1 and each * (3 if three else 2) <= _MOST_TOTALS:
            yield parts, 1


_BLOCKS = 2.2
"""For each multiprocessor, up to which sums are divided."""
_MOST_TOTALS = 160
