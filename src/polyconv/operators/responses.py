"""LRN: each element divided by a power of the squares of its neighbours among the channels.

``y = x / (bias + alpha / size * sum of x^2) ^ beta``, the sum over ``size`` channels round the element's own, as far as
there are so many.  The one idea: a vector holds pixels that lie side by side, and the squares of a window are summed
anew for each channel, since a running sum would lose what large neighbours drown.  It must not know graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.record import Memory, Record, Word, at_once, filled
from polyconv.operators.job import Conditions, Drive, Operation, Own, Plan, Planning, Step, address_of
from polyconv.operators.lying import Lies
from polyconv.operators.moving import as_packed
from polyconv.operators.rows import each_block, read, write
from polyconv.operators.types import dtype_name, untaken

__all__ = ["response"]

_CHAINS = 4
"""Vectors whose results take turns: one waits for the one before it."""
_ROOTS = (1, 2, 3, 4)
"""Quarters that an exponent may be: powers that roots make."""


@dataclass(frozen=True, slots=True)
class _Way:
    """The attributes: channels before and after an element's own, ``alpha / size``, the bias, four times beta."""

    before: int
    after: int
    factor: float
    bias: float
    quarters: int


def response(operation: Operation) -> Own | str:
    """An operation as sums of squares, or why not."""
    x, a = operation.inputs[0] if operation.inputs else None, operation.attributes
    if x is None or len(operation.inputs) != 1 or operation.outputs != 1:
        return "it has not one input and one result"
    dtype = dtype_name(x.dtype)
    if dtype is None or not DTYPES[dtype].is_float or operation.on_gpu:
        return untaken(x.dtype) if dtype is None else "it is not done here for this type, or on a GPU"
    if set(a).difference(("alpha", "beta", "bias", "size")) or not isinstance(a.get("size"), int) or a["size"] < 1:
        return "its attributes are not those of the specification"
    alpha, beta, bias = (float(np.float32(a.get(k, v))) for k, v in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    if not (alpha >= 0 and 0 < bias < math.inf and alpha < math.inf) or 4 * beta not in _ROOTS:
        return "beta is none of 0.25, 0.5, 0.75 and 1, or what has its power may be 0 or less"
    size = a["size"]
    way = _Way((size - 1) // 2, size // 2, alpha / size, bias, round(4 * beta))
    return Own((0,), (x.dtype,), lambda given, c: _planned(way, dtype, given, c))


def _planned(way: _Way, dtype: str, given: Sequence[Lies], c: Conditions) -> Plan:
    planning = Planning(given, c)
    shape = given[0].shape
    if len(shape) < 2:
        raise ArgumentError(f"the input of shape {shape} has no channels")
    y = planning.result(shape, given[0].dtype, alike=False)
    if 0 not in shape:
        x = as_packed(planning, 0)
        lanes = c.target.vector_bytes // given[0].dtype.itemsize
        cycles = math.prod(shape) / lanes * (30.0 + 2.0 * (way.before + way.after))
        planning.job(lambda threads: [_step(way, dtype, shape, planning.lie(x).offset, c, threads)], [x, y], cycles)
    return planning.plan()


class _Squares(Record):
    """Words of the driver: channels, pixels, pixels of an item, parts of an image, neighbours; factor and bias."""

    base: Word
    channels: Word
    pixels: Word
    columns: Word
    parts: Word
    before: Word
    after: Word
    numbers: Memory


def _step(way: _Way, dtype: str, shape: Sequence[int], offset: int, c: Conditions, threads: int) -> Step:
    """The step: items are some pixels of an image, all channels of them."""
    row = DTYPES[dtype]
    lanes, pixels = c.target.vector_bytes // row.itemsize, math.prod(shape[2:])
    wanted = 1 if shape[0] >= 4 * threads or threads == 1 else -(-4 * threads // shape[0])
    columns = -(-pixels // (wanted * lanes)) * lanes
    parts, keep = -(-pixels // columns), list[object]()
    words = filled(_Squares(
        base=offset, channels=shape[1], pixels=pixels, columns=columns, parts=parts, before=way.before,
        after=way.after, numbers=np.array([way.factor, way.bias], row.numpy),
    ), keep)  # fmt: skip
    name = f"responses {dtype} power {way.quarters}/4"
    driver = address_of(name, lambda k, name: _drive(k, name, dtype, way.quarters, lanes, c.target.has_masks), c)
    return Step(driver, words, shape[0] * parts, tuple(keep))


def _drive(k: Module, name: str, dtype: str, quarters: int, lanes: int, masks: bool) -> None:
    """Add the driver; its operands are the tensor and the result."""
    kind, size = vector(LLVM_NAMES[dtype], lanes), DTYPES[dtype].itemsize
    with k.function(name, Drive) as given:
        w = at_once(_Squares.read(k, given.words))
        channel = w.pixels * size
        image, begin = given.item // w.parts * w.channels * channel, given.item % w.parts * w.columns
        x, y = k.buffer(given.frame) + w.base + image, k.buffer(given.frame, 2) + image

        def some(at: Value, type_: Type, count: int, mask: Mask | None) -> None:
            factor, bias = (k.load(type_.scalar, w.numbers + number * size) for number in range(2))
            if type_.lanes:
                factor, bias = k.splat(factor, type_.lanes), k.splat(bias, type_.lanes)

            def loaded(c: Value) -> list[Value]:
                place = x + c * channel + at * size
                return [read(k, type_, place + j * type_.bytes, mask) for j in range(count)]

            with k.loop(0, w.channels) as own:
                first, last = k.maximum(own.index - w.before, 0), k.minimum(own.index + w.after + 1, w.channels)
                with k.loop(first, last, carry=[k.constant(type_, 0.0)] * count) as other:
                    sums = zip(other.values, loaded(other.index), strict=True)
                    other.next(*(total + value * value for total, value in sums))
                place = y + own.index * channel + at * size
                for j, (value, total) in enumerate(zip(loaded(own.index), other.results, strict=True)):
                    power = _power(k, bias + factor * total, quarters)
                    write(k, value / power, place + j * type_.bytes, mask)

        each_block(k, kind, begin, k.minimum(begin + w.columns, w.pixels), masks, _CHAINS, some)


def _power(k: Module, value: Value, quarters: int) -> Value:
    """A positive value to so many quarters."""
    if quarters == 4:
        return value
    root = k.intrinsic("sqrt", value.type, value)
    if quarters == 2:
        return root
    fourth = k.intrinsic("sqrt", value.type, root)
    return fourth if quarters == 1 else root * fourth
