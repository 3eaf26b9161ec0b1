"""GridSample: each output is interpolated between inputs round a place that comes with the run.

Of an axis of E elements the place g, from -1 to 1, is ``((g + 1) E - 1) / 2``, or ``(g + 1) / 2 (E - 1)`` where the
ends are the middles of the first and the last element; of two neighbours the one behind has its fraction as weight.
Places are taken no further out than where nothing changes any more, so that whatever comes with a run, NaN too, is a
place of the input or next to it; an element next to it is a row of zeros.  The one idea: all channels of a place share
its neighbours, so a place is computed once, and channels that lie together are vectors.  It must not know graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Table, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.functions import FUNCTIONS, converted
from polyconv.operators.job import Conditions, Drive, Operation, Own, Planning, Step, address_of
from polyconv.operators.lying import Lies, is_channels_last
from polyconv.operators.moving import as_packed
from polyconv.operators.rows import each_vector, read, write
from polyconv.operators.seen import own_of
from polyconv.operators.types import dtype_name

__all__ = ["gridding"]

_MODES = {"linear": True, "bilinear": True, "nearest": False}
"""Names of what is done, and whether it interpolates."""
_MOST_AXES = 3
_PLACE, _ELEMENT = 40.0, 3.0
"""Cycles of a place, and of an element of a channel that does not lie beside the next one."""
_FEWEST = 16
"""Places of an item, at least."""


@dataclass(frozen=True, slots=True)
class _Way:
    """All that shapes the code: types of elements and places, axes, what is done, how channels lie, lanes, masks."""

    dtype: str
    places: str
    axes: int
    is_linear: bool
    has_border: bool
    ends_are_middles: bool
    in_vectors: bool
    lanes: int
    masks: bool

    def __str__(self) -> str:
        padding, ends = "border" if self.has_border else "zeros", "middles" if self.ends_are_middles else "edges"
        words = "linear" if self.is_linear else "nearest", padding, ends, "vectors" if self.in_vectors else "planes"
        return f"{self.dtype} by {self.places} {self.axes} {' '.join(words)}"


def gridding(operation: Operation) -> Own | str:
    """An operation as samples of places, or why not."""
    x, grid = operation.inputs if len(operation.inputs) == 2 else (None, None)
    if x is None or grid is None or operation.on_gpu:
        return "it has not two inputs, or is on a GPU"
    dtype, of_places = dtype_name(x.dtype), dtype_name(grid.dtype)
    if dtype is None or of_places is None or not (DTYPES[dtype].is_float and DTYPES[of_places].is_float):
        return "it is computed for floats of 32 and 64 bits"
    if x.dims is None or grid.dims is None or len(grid.dims) != len(x.dims) or not 3 <= len(x.dims) <= 2 + _MOST_AXES:
        return "the model does not say that it has one to three axes behind channels"
    a = operation.attributes
    mode, padding = a.get("mode", "linear"), a.get("padding_mode", "zeros")
    if set(a).difference(("align_corners", "mode", "padding_mode")) or mode not in _MODES:
        return f"it is {mode}, which is not interpolated here"
    if padding not in ("zeros", "border"):
        return f"its padding is {padding}"
    ends_are_middles = bool(a.get("align_corners", 0))
    way = partial(_Way, dtype, of_places, len(x.dims) - 2, _MODES[mode], padding == "border", ends_are_middles)
    return own_of(operation, x.dtype, partial(_plan, way))


def _plan(way: partial[_Way], planning: Planning, numbers: Sequence[int]) -> None:
    """Add the job that samples an array at places."""
    x, grid = numbers
    (n, channels, *extents), (images, *places, axes) = planning.lie(x).shape, planning.lie(grid).shape
    if images != n or axes != len(extents):
        raise ArgumentError(f"places of shape {planning.lie(grid).shape} do not fit an input of shape "
                            f"{planning.lie(x).shape}: [{n}, ..., {len(extents)}]")  # fmt: skip
    if 0 in extents:
        raise ArgumentError(f"there is nothing to sample in an input of shape {planning.lie(x).shape}")
    y = planning.result((n, channels, *places), planning.lie(x).dtype)
    count = math.prod(places)
    if planning.c.dry or not n * channels * count:
        return
    grid = as_packed(planning, grid)
    x = x if is_channels_last(planning.lie(x)) else as_packed(planning, x)
    of_x, of_y, c = planning.lie(x), planning.lie(y), planning.c
    size, lanes = of_x.dtype.itemsize, c.target.vector_bytes // of_x.dtype.itemsize
    in_vectors = channels > 1 and of_x.strides[1] == of_y.strides[1] == size
    made = way(in_vectors, lanes, c.target.has_masks)
    zeros = planning.constant(np.zeros(channels, of_x.dtype))
    element = 2.0 ** len(extents) * (1 / lanes if in_vectors else _ELEMENT)
    cycles = n * count * (_PLACE + channels * element)
    planning.job(lambda threads: [_step(made, of_x, of_y, c, threads)], [x, grid, y, zeros], cycles)


class _Axis(Record):
    """An axis of the input: its elements, and bytes between them."""

    extent: Word
    step: Word


class _Words(Record):
    """Words of the driver: channels, places of an image and of an item, items of an image, and bytes between things."""

    channels: Word
    places: Word
    chunk: Word
    parts: Word
    base: Word
    x_image: Word
    x_channel: Word
    y_image: Word
    y_channel: Word
    y_place: Word
    axes: Table[_Axis]


def _step(way: _Way, of_x: Lies, of_y: Lies, c: Conditions, threads: int) -> Step:
    """The step: items are some places of an image, all channels of them."""
    n, channels, *places = of_y.shape
    count, size = math.prod(places), of_x.dtype.itemsize
    wanted = 1 if threads == 1 else max(1, -(-4 * threads // n))
    chunk = max(min(count, _FEWEST), -(-count // wanted))
    parts, keep = -(-count // chunk), list[object]()
    is_last = is_channels_last(of_y)
    words = filled(_Words(
        channels=channels, places=count, chunk=chunk, parts=parts, base=of_x.offset, x_image=of_x.strides[0],
        x_channel=of_x.strides[1], y_image=channels * count * size, y_channel=size if is_last else count * size,
        y_place=channels * size if is_last else size,
        axes=[_Axis(extent=e, step=s) for e, s in zip(of_x.shape[2:], of_x.strides[2:], strict=True)],
    ), keep)  # fmt: skip
    driver = address_of(f"grid {way}", partial(_drive, way=way), c)
    return Step(driver, words, n * parts, tuple(keep))


class _Neighbour(NamedTuple):
    """An element along an axis: whether it is there, where it begins, and its weight; None where it is the only one."""

    is_there: Value
    begin: Value
    weight: Value | None


def _drive(k: Module, name: str, way: _Way) -> None:
    """Add the driver; its operands are the input, places, the result and a row of zeros."""
    kind, size = vector(LLVM_NAMES[way.dtype], way.lanes), DTYPES[way.dtype].itemsize
    with k.function(name, Drive) as given:
        w = at_once(_Words.read(k, given.words))
        image, begin = given.item // w.parts, given.item % w.parts * w.chunk
        x, y = k.buffer(given.frame) + w.base + image * w.x_image, k.buffer(given.frame, 4) + image * w.y_image
        of_places, step = Type(LLVM_NAMES[way.places]), DTYPES[way.places].itemsize
        grid, zeros = k.buffer(given.frame, 2) + image * w.places * (way.axes * step), k.buffer(given.frame, 6)
        axes = [at_once(w.axes.at(at)) for at in range(way.axes)]
        with k.loop(begin, k.minimum(begin + w.chunk, w.places)) as each:
            place = grid + each.index * (way.axes * step)
            corners: list[tuple[Value | None, Value, Value | None]] = [(None, k.constant(INT, 0), None)]
            for at, axis in enumerate(axes):  # of a place the last axis comes first
                found = _neighbours(k, way, k.load(of_places, place + (way.axes - 1 - at) * step), axis)
                corners = [_met(corner, one) for corner in corners for one in found]
            sources = [(k.either(there, x + at, zeros), k.select(there, w.x_channel, 0), weight)
                       for there, at, weight in corners if there is not None]  # fmt: skip
            target = y + each.index * w.y_place

            def some(at: Value, type_: Type, mask: Mask | None, sources: Sequence[tuple[Buffer, Value, Value | None]]
                     = sources, target: Buffer = target) -> None:  # fmt: skip
                total = None
                for source, step, weight in sources:
                    value = read(k, type_, source + at * (size if way.in_vectors else step), mask)
                    if weight is not None:
                        factor = k.splat(weight, type_.lanes) if type_.lanes else weight
                        value = value * factor if total is None else k.fma(value, factor, total)
                    total = value
                assert total is not None
                write(k, total, target + at * (size if way.in_vectors else w.y_channel), mask)

            if way.in_vectors:
                each_vector(k, kind, 0, w.channels, way.masks, some)
            else:
                with k.loop(0, w.channels) as channel:
                    some(channel.index, kind.scalar, None)


def _met(corner: tuple[Value | None, Value, Value | None], one: _Neighbour) -> tuple[Value, Value, Value | None]:
    """An element of the axes so far, and the one along the next axis."""
    there, at, weight = corner
    both = one.is_there if there is None else there & one.is_there
    return both, at + one.begin, one.weight if weight is None or one.weight is None else weight * one.weight


def _neighbours(k: Module, way: _Way, g: Value, axis: _Axis) -> list[_Neighbour]:
    """The elements next to a place along an axis."""
    kind, dtype = g.type, DTYPES[way.places]
    extent = k.cast("sitofp", axis.extent, kind)
    at = (g + 1.0) * 0.5 * (extent - 1.0) if way.ends_are_middles else ((g + 1.0) * extent - 1.0) * 0.5
    low, high = (k.constant(kind, 0.0), extent - 1.0) if way.has_border else (k.constant(kind, -1.0), extent)
    at = k.select(at > low, at, low)  # of NaN too
    at = k.select(at < high, at, high)
    near = FUNCTIONS["Floor" if way.is_linear else "Round"].emit(k, dtype, at)
    first = k.cast("fptosi", near, INT)
    every: list[tuple[Value, Value | None]] = [(first, None)]
    if way.is_linear:
        behind = converted(k, at - near, DTYPES[way.places], DTYPES[way.dtype])
        every = [(first, 1.0 - behind), (first + 1, behind)]
    return [_Neighbour(index.below(axis.extent), index * axis.step, weight) for index, weight in every]
