"""The forms of a convolution on a GPU: kernels that compute it, copies of input and weights that they read, the price.

A form is data, printable and comparable.  What fixes the bits of a result (what multiplies, how long a stage is, how
many blocks share a sum) is chosen for one image, the rest of a tile for the batch: so no batch changes bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from polyconv.dtypes import DTYPES
from polyconv.gpu.device import Device
from polyconv.gpu.geometry import Geometry
from polyconv.gpu.job import Form, Job, Step
from polyconv.gpu.kernels.arithmetic import ARITHMETIC
from polyconv.gpu.kernels.deformable import Deformable
from polyconv.gpu.kernels.depthwise import Depthwise
from polyconv.gpu.kernels.direct import Direct
from polyconv.gpu.kernels.finish import sum_type
from polyconv.gpu.kernels.gemm import Gemm, Tile
from polyconv.gpu.kernels.patch import Patch, PatchTile
from polyconv.gpu.kernels.plain import Plain
from polyconv.gpu.kernels.units import UNITS
from polyconv.gpu.placing import (
    MOST_BYTES,
    arithmetic_of,
    compensation_of,
    geometry_of,
    input_of,
    most_bytes,
    of_bytes,
    padding_of,
    patch_weights,
    weight_type,
    weights_of,
)
from polyconv.gpu.price import seconds_of
from polyconv.lowering.gaps import gaps
from polyconv.lowering.sweep import Sweep, sweeps
from polyconv.problem.problem import Problem

__all__ = ["Form", "Job", "Step", "forms", "products"]


def _sweeps(p: Problem) -> tuple[Sweep, ...]:
    """All outputs."""
    return *sweeps(p), *gaps(p)


def forms(job: Job) -> Iterator[Form]:
    """All forms of a job that fit into its limit; there is one at least."""
    found = False
    for form in _all(job):
        if job.limit is None or form.workspace <= job.limit:
            found = True
            yield form
    if not found:
        yield _plain(job, _sweeps(job.problem))


def _all(job: Job) -> Iterator[Form]:
    p = job.problem
    of_sweeps = _sweeps(p)
    small = most_bytes(job) < MOST_BYTES
    if p.op == "deform_conv":
        yield from _deformables(job, of_sweeps)
        return
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
    c, w_type = p.c // p.groups, weight_type(job)
    if p.c > _FEW_CHANNELS or c * math.prod(p.k) > _FEW_TERMS:
        return
    for pixels, columns in ((1, 16), (2, 16), (1, 32), (2, 8), (4, 4)):
        if columns >= 2 * (p.m // p.groups) and columns > 4:
            continue
        steps = tuple(
            Step(
                Direct(geometry_of(job, sweep, c, job.x, p.x, w_type), pixels, columns),
                weights_of(job, sweep, outer="gtcm", padded=c, target=w_type),
            )
            for sweep in of_sweeps
        )
        arithmetic = f"direct {sum_type(steps[0].kernel.g)}"
        yield Form("direct", arithmetic, None, steps, seconds_of(job.device, steps, None))


_MOST_MULTIPLIER = 8


# -- plain and depthwise -----------------------------------------------------------------------------


def _plain(job: Job, of_sweeps: tuple[Sweep, ...]) -> Form:
    p = job.problem
    c, w_type = p.c // max(1, p.groups), weight_type(job)
    steps = tuple(
        Step(
            Plain(geometry_of(job, sweep, c, job.x, p.x, w_type)),
            weights_of(job, sweep, outer="gtcm", padded=c, target=w_type),
        )
        for sweep in of_sweeps
    )
    return Form("plain", f"plain {sum_type(steps[0].kernel.g)}", None, steps, seconds_of(job.device, steps, None))


def _deformables(job: Job, of_sweeps: tuple[Sweep, ...]) -> Iterator[Form]:
    p, (sweep,), offset = job.problem, of_sweeps, job.offset
    assert offset is not None
    c, m = p.c // p.groups, p.m // p.groups
    g = geometry_of(job, sweep, c, job.x, p.x, p.w)
    for columns in (4, 8, 16, 32):
        kernel = Deformable(g, p.offset_groups, offset, job.mask, columns)
        if columns > 4 and columns >= 2 * m:
            return
        outputs = kernel.across * columns
        steps = (Step(kernel, weights_of(job, sweep, outer="gtcm", padded=c, target=p.w, outputs=outputs)),)
        yield Form("deformable", f"deformable {sum_type(g)}", None, steps, seconds_of(job.device, steps, None))


def _depthwise(job: Job, of_sweeps: tuple[Sweep, ...]) -> Iterator[Form]:
    p = job.problem
    size, w_type = p.x_dtype.itemsize, weight_type(job)
    last = len(p.i) - 1
    is_last = job.x.c == 1 and job.y.c == 1
    widths = [1]
    if is_last and p.m == p.groups and DTYPES[w_type].itemsize <= max(2, size):
        widths += [v for v in (2, 4) if v * size <= 16 and p.c % v == 0 and job.x.aligned(size) % (v * size) == 0]
    along = last if is_last or last == 0 else last - 1
    for channels in widths:
        for outputs in (1, 2, 4, 7):
            if outputs > 2 and (channels > 2 or not _shares(of_sweeps, along, outputs)):
                continue
            steps = tuple(
                Step(
                    Depthwise(geometry_of(job, sweep, 1, job.x, p.x, w_type), channels, outputs, along),
                    weights_of(job, sweep, outer="tgmc", padded=1, target=w_type),
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


def products(job: Job) -> Iterator[Form]:
    """Forms of a job that are matrix products, whose groups may lie apart."""
    return _gemms(job, _sweeps(job.problem))


def _gemms(job: Job, of_sweeps: tuple[Sweep, ...]) -> Iterator[Form]:
    p, name = job.problem, arithmetic_of(job.problem, job.accuracy)
    row = ARITHMETIC[name]
    c = p.c // p.groups
    piece = 16 // row.bytes
    padded = -(-c // piece) * piece
    x, moved = input_of(job, c, padded, row.staged)
    one = replace(job, problem=replace(p, n=1))
    w_type, is_moved = p.w if row.bytes == 1 else row.staged, moved is not None
    geometries = [geometry_of(job, s, padded, x, row.staged, w_type, moved=is_moved) for s in of_sweeps]
    has_zeros = row.bytes == 1 and bool(job.quantities.zx)
    if row.bytes == 1:
        geometries = [of_bytes(g, job) for g in geometries]
    of_one = [geometry_of(one, s, padded, x, row.staged, w_type, moved=is_moved) for s in of_sweeps]
    for tile in _tiles(job.device, name, *max(zip(of_one, geometries, strict=True), key=lambda g: g[0].pixels)):
        steps = []
        for sweep, g in zip(of_sweeps, geometries, strict=True):
            kernel = Gemm(g, _fitting(tile, g, row.bytes), has_zeros)
            halves = kernel.unit.parts > 1
            weights = weights_of(job, sweep, outer="gmtc", padded=padded, target=w_type, halves=halves)
            steps.append(Step(kernel, weights, compensation_of(job, kernel), padding_of(job, kernel)))
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
    x, moved = input_of(job, p.c, p.c, row.staged)
    geometries = [geometry_of(job, sweep, p.c, x, row.staged, row.staged) for sweep in of_sweeps]
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
            steps = tuple(Step(Patch(g, tile), patch_weights(job, g, tile)) for g in geometries)
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


def _fitting(tile: Tile, g: Geometry, size: int) -> Tile:
    """A tile whose blocks all have something to add, for a sweep with fewer taps than another."""
    stages = -(-g.taps * g.c * size // tile.bytes)
    parts = tile.parts
    while parts > max(1, stages):
        parts //= 2
    return replace(tile, parts=parts, split=min(tile.split, parts))


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
