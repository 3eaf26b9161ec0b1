"""RoiAlign: regions of images as maps of one size, each element the mean of some samples between pixels.

A sample lies between two rows and between two columns, and weights of both axes are multiplied.  So a region has, for
each row of its map, some rows of the image with a weight each, and for each column some columns,

    y[r, a, b] = sum over i, j of u[r, a, i] v[r, b, j] x[row(r, a, i), column(r, b, j)],

and a vector holds channels.  The one idea: these few numbers are NumPy's, as regions are others in every run; the sums
have a kernel.  It must not know graphs.  Source: He et al., Mask R-CNN, 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.along import Along
from polyconv.operators.job import Array, Conditions, Drive, Operation, Plan, Planning, Step, address_of
from polyconv.operators.lying import Lies
from polyconv.operators.moving import copied
from polyconv.operators.rows import each_block, read, write
from polyconv.operators.running import Planned
from polyconv.operators.together import spread
from polyconv.operators.views import View

__all__ = ["regions"]

_TOGETHER = 4
"""Vectors of channels that are summed at once."""
_MOST_TAPS = 1 << 22
"""Weights of all regions along an axis: beyond them regions are no part of an image."""
_ALLOWED = {
    "coordinate_transformation_mode", "mode", "output_height", "output_width", "sampling_ratio", "spatial_scale",
}  # fmt: skip


def regions(operation: Operation) -> View | str:
    """An operation as lines of NumPy around a kernel, or why not."""
    a = operation.attributes
    half = a.get("coordinate_transformation_mode", "half_pixel" if operation.version >= 16 else "output_half_pixel")
    if operation.on_gpu or set(a).difference(_ALLOWED) or a.get("mode", "avg") != "avg":
        return "it takes the largest of samples, has attributes that are not done here, or is on a GPU"
    if half not in ("half_pixel", "output_half_pixel"):
        return f"coordinates are transformed by {half}"
    kinds = [x.dtype for x in operation.inputs if x is not None]
    if kinds != ["float32", "float32", "int64"]:
        return "its inputs are not of f32, f32 and i64"
    extents = int(a.get("output_height", 1)), int(a.get("output_width", 1))
    samples, scale = int(a.get("sampling_ratio", 0)), np.float32(a.get("spatial_scale", 1.0))
    if min(*extents, samples + 1) < 1:
        return "its extents are none"
    shift = np.float32(0.5 if half == "half_pixel" else 0.0)
    planned = Planned(_planned, 1)  # nobody says here how many threads the session has

    def look(given: Sequence[Array | None]) -> Sequence[Array]:
        x, boxes, images = given
        assert x is not None and boxes is not None and images is not None
        _check(x, boxes, images)
        if not boxes.size or not x.size:
            return [np.zeros((len(boxes), x.shape[1], *extents), np.float32)]
        tables = list[Array]()
        with np.errstate(all="ignore"):
            ends = boxes * scale - shift
            for axis in (1, 0):  # rows, then columns
                size = ends[:, 2 + axis] - ends[:, axis]
                size = size if shift else np.maximum(size, np.float32(1))
                tables += _taps(ends[:, axis], size, extents[1 - axis], samples, x.shape[3 - axis])
        (y,) = planned([x, np.ascontiguousarray(images), *tables])
        return [y.transpose(0, 3, 1, 2)]

    x = operation.inputs[0]
    channels = None if x is None or x.dims is None or len(x.dims) != 4 else x.dims[1]
    return View(look, ("float32",), True, (None, channels, *extents))


def _check(x: Array, boxes: Array, images: Array) -> None:
    """Raise an error if inputs do not fit each other."""
    if x.ndim != 4 or boxes.ndim != 2 or boxes.shape[1] != 4 or images.shape != boxes.shape[:1]:
        raise ArgumentError(
            f"regions of shape {boxes.shape} with images of shape {images.shape} do not fit an input of shape {x.shape}"
        )
    if images.size and not 0 <= images.min() <= images.max() < len(x):
        raise ArgumentError(f"images {images.min()} to {images.max()} lie outside of the {len(x)} of the input")


def _taps(begin: Array, size: Array, count: int, samples: int, extent: int) -> tuple[Array, Array, Array]:
    """How many rows (or columns) each region reads for one of its map, which, and their weights.

    Arrays of shape (regions,), (regions, count, most) and (regions, count, most).  As everywhere, what lies no more
    than a pixel outside counts as the nearest pixel, and what lies farther away as 0.
    """
    step = size / np.float32(count)
    of_each = np.full(len(size), samples) if samples else np.ceil(np.nan_to_num(step, nan=0.0)).clip(0, 1e9).astype(int)
    most = int(of_each.max())
    if len(size) * count * 2 * most > _MOST_TAPS:
        raise ArgumentError(f"a region takes {most} samples for each of {count}; it is no part of an image of {extent}")
    number, sample = np.arange(count, dtype=np.float32)[:, None], np.arange(most, dtype=np.float32)
    part = (sample + np.float32(0.5)) * step[:, None, None] / of_each[:, None, None].astype(np.float32)
    at = begin[:, None, None] + number * step[:, None, None] + part
    is_there = (at >= -1) & (at <= extent) & (sample < of_each[:, None, None])
    at = np.where(is_there, at, 0).clip(0, extent - 1)
    low = at.astype(np.int64)
    upper = (at - low).astype(np.float32)
    share = is_there / np.maximum(of_each, 1)[:, None, None].astype(np.float32)
    places = np.stack([low, np.minimum(low + 1, extent - 1)], -1).reshape(len(size), count, 2 * most)
    weights = (np.stack([1 - upper, upper], -1) * share[..., None]).reshape(places.shape).astype(np.float32)
    return 2 * of_each.astype(np.int64), places, weights


class _Words(Record):
    """Words of the driver: extents of a map, most taps of both axes, channels, bytes of an image, a row and a pixel."""

    height: Word
    width: Word
    rows: Word
    columns: Word
    channels: Word
    image: Word
    row: Word
    pixel: Word


def _planned(given: Sequence[Lies], c: Conditions) -> Plan:
    """The plan for images, numbers of images, and counts, places and weights of both axes."""
    planning, x = Planning(given, c), given[0]
    n, channels, h, w = x.shape
    (count, height, rows), (_, width, columns) = given[3].shape, given[6].shape
    pixels, steps = 0, (x.strides[0], *x.strides[2:])
    if x.strides[1] != 4 or min(x.strides) < 0:
        pixels = planning.between((n, h, w, channels), np.float32, alike=False)
        made = planning.lie(pixels)
        order = [x.strides[at] for at in (0, 2, 3, 1)]
        copied(planning, 0, pixels, made.shape, Along(x.offset, tuple(order)), Along(0, made.strides))
        steps = made.strides[:3]
    y = planning.result((count, height, width, channels), np.float32, alike=False)
    lanes = c.target.vector_bytes // 4
    cycles = 2.0 * count * height * width * rows * columns * -(-channels // lanes)

    def made_steps(threads: int) -> list[Step]:
        keep: list[Any] = []
        words = filled(_Words(
            height=height, width=width, rows=rows, columns=columns, channels=channels, image=steps[0], row=steps[1],
            pixel=steps[2],
        ), keep)  # fmt: skip
        driver = address_of("regions", lambda k, name: _drive(k, name, lanes, c.target.has_masks), c)
        return [Step(driver, words, count, tuple(keep))]

    planning.job(made_steps, [pixels, *range(1, 8), y], cycles)
    return planning.plan()


def _drive(k: Module, name: str, lanes: int, masks: bool) -> None:
    """Add the driver, whose items are regions."""
    kind = vector("float", lanes)
    with k.function(name, Drive) as given:
        w = at_once(_Words.read(k, given.words))
        x, images, *tables, y = (k.buffer(given.frame, 2 * at) for at in range(9))
        axes = tables[:3], tables[3:]
        region = given.item
        counts = [k.word(of_axis[0], region) for of_axis in axes]
        image = x + k.word(images, region) * w.image
        with k.loop(0, w.height) as a, k.loop(0, w.width) as b:
            firsts = (region * w.height + a.index) * w.rows, (region * w.width + b.index) * w.columns
            target = y + ((region * w.height + a.index) * w.width + b.index) * (w.channels * 4)
            some = partial(_sum, k, w, image, target, axes, counts, firsts)
            each_block(k, kind, 0, w.channels, masks, _TOGETHER, some)


def _sum(k: Module, w: _Words, image: Buffer, target: Buffer, axes: Sequence[Sequence[Buffer]], counts: Sequence[Value],
         firsts: Sequence[Value], at: Value, type_: Type, count: int, mask: Mask | None) -> None:  # fmt: skip
    """Some channels of an element of a map: a sum over rows and columns."""
    (_, rows, heights), (_, columns, widths) = axes
    size, scalar = type_.bytes, type_.scalar if type_.lanes else type_
    with k.loop(0, counts[0], carry=[k.constant(type_, 0.0)] * count) as i:
        line = image + k.word(rows, firsts[0] + i.index) * w.row + at * 4
        height = k.load(scalar, heights + (firsts[0] + i.index) * 4)
        with k.loop(0, counts[1], carry=i.values) as j:
            weight = height * k.load(scalar, widths + (firsts[1] + j.index) * 4)
            place = line + k.word(columns, firsts[1] + j.index) * w.pixel
            factor = spread(k, weight, type_)
            j.next(*(k.fma(factor, read(k, type_, place + v * size, mask), held) for v, held in enumerate(j.values)))
        i.next(*j.results)
    for v, value in enumerate(i.results):
        write(k, value, target + at * 4 + v * size, mask)
