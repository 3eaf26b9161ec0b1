"""MaxPool, AveragePool and their global forms: attributes to windows.

The one idea: extents, pads and counts are whole numbers of each axis, found when inputs come; what slides is
``windows``.  It must not know how windows are computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.operators.along import Along
from polyconv.operators.job import Array, Conditions, Operation, Own, Plan, Planning
from polyconv.operators.lying import Lies, is_channels_last
from polyconv.operators.moving import with_rows
from polyconv.operators.reduction import reduction
from polyconv.operators.types import dtype_name, untaken
from polyconv.operators.windows import Axis, Windows, window_step, workspace_of
from polyconv.problem.extents import effective_kernel
from polyconv.problem.padding import AUTO_PADS, forward_pads

if TYPE_CHECKING:
    from polyconv.operators.on_gpu.launching import Launching

__all__ = ["pooling"]


@dataclass(frozen=True, slots=True)
class _Pool:
    """The attributes of a pooling operator."""

    function: str
    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str
    ceil: bool
    count_pads: bool


def pooling(operation: Operation) -> Own | str:
    """An operation as windows, or why not."""
    function, kinds, allowed = _TABLE[operation.op]
    x = operation.inputs[0] if operation.inputs else None
    if x is None or operation.outputs != 1 or len(operation.inputs) != 1:
        return "it has more than one result or input"
    dtype = dtype_name(x.dtype, has_halves=operation.on_gpu)
    if dtype is None or DTYPES[dtype].kind not in kinds:
        return untaken(x.dtype)
    if set(operation.attributes).difference(allowed):
        return "it has attributes that are not done here"
    if x.dims is not None and DTYPES[dtype].kind == "f" and _is_whole(operation.attributes, x.dims[2:]):
        return reduction(replace(operation, op=f"Global{operation.op}", attributes={}))
    pool = _pool(function, operation.attributes)
    if isinstance(pool, str):
        return pool
    if x.dims is not None and len(x.dims) != len(pool.taps) + 2:
        return f"its input does not have {len(pool.taps)} spatial axes"
    return Own((0,), (x.dtype,), lambda given, c: _planned(pool, given, c))


def _is_whole(attributes: Mapping[str, Any], extents: Sequence[int | None]) -> bool:
    """Whether the one window is all of an image."""
    pads, dilations = _ints(attributes.get("pads", (0,))), _ints(attributes.get("dilations", (1,)))
    alone = attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID") and pads is not None and not any(pads)
    return alone and dilations is not None and {*dilations} == {1} and _ints(attributes.get("kernel_shape")) == extents


def _pool(function: str, attributes: Mapping[str, Any]) -> _Pool | str:
    """The attributes, if windows of one to three axes have them and none lies in padding alone."""
    taps = _ints(attributes.get("kernel_shape"))
    if taps is None or not 1 <= len(taps) <= 3:
        return "its windows have not one to three axes"
    rank = len(taps)
    strides = _ints(attributes.get("strides", [1] * rank))
    dilations = _ints(attributes.get("dilations", [1] * rank))
    pads = _ints(attributes.get("pads", [0] * 2 * rank))
    auto_pad = attributes.get("auto_pad", "NOTSET")
    if strides is None or dilations is None or pads is None or auto_pad not in AUTO_PADS:
        return "its attributes are not of the types of the specification"
    if not len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        return f"strides, dilations and pads are not those of {rank} axes"
    reach = [effective_kernel(k, d) for k, d in zip(taps, dilations, strict=True)]
    if min((*taps, *strides, *dilations)) < 1 or min(pads) < 0 or max(taps) > _MOST_TAPS:
        return f"a window has more than {_MOST_TAPS} taps along an axis, or none, or pads are negative"
    if any(p >= k for p, k in zip(pads, (*taps, *taps), strict=True)) or max(reach) > _MOST_REACH:
        return "pads are as large as windows, or windows are too large"
    if max(dilations) > 1 and auto_pad != "NOTSET":
        return "engines differ over auto_pad with dilations"
    return _Pool(function, taps, strides, dilations, pads, auto_pad, bool(attributes.get("ceil_mode", 0)),
                 bool(attributes.get("count_include_pad", 0)))  # fmt: skip


_ALONE = Axis(1, 1, 1, 1, 1, 0)
"""Stands for an axis that a tensor does not have."""
_MOST_TAPS, _MOST_REACH = 16, 1 << 12


def _ints(values: Any) -> tuple[int, ...] | None:
    fine = isinstance(values, Sequence) and not isinstance(values, str) and all(isinstance(v, int) for v in values)
    return tuple(values) if fine else None


def _axis(pool: _Pool, a: int, extent: int) -> tuple[Axis, int]:
    """Windows along an axis, and the pads at its end."""
    k, s, d, rank = pool.taps[a], pool.strides[a], pool.dilations[a], len(pool.taps)
    begin, end = forward_pads(pool.auto_pad, extent, k, s, d, (pool.pads[a], pool.pads[a + rank]))
    room = extent + begin + end - effective_kernel(k, d)
    if room < 0:
        raise ArgumentError(f"windows of {k} do not fit into an extent of {extent} with pads {begin} and {end}")
    out = (-(-room // s) if pool.ceil else room // s) + 1
    if pool.ceil and (out - 1) * s >= extent + begin:  # a window that would begin in the pads at the end
        out -= 1
    return Axis(extent, out, k, s, d, begin), end


def _counts(pool: _Pool, axis: Axis, end: int) -> list[int]:
    """Elements that a mean divides by, along one axis."""
    if not pool.count_pads:
        return [count for _, count in axis.inside()]
    last = axis.inp + end
    return [sum(1 for t in range(axis.taps) if o * axis.stride - axis.begin + t * axis.dilation < last)
            for o in range(axis.out)]  # fmt: skip


def _planned(pool: _Pool, given: Sequence[Lies], c: Conditions) -> Plan:
    shape, rank = given[0].shape, len(pool.taps)
    if len(shape) != rank + 2:
        raise ArgumentError(f"the input of shape {shape} does not have the {rank} spatial axes of the windows")
    found = [_axis(pool, a, extent) for a, extent in enumerate(shape[2:])]
    planning = Planning(given, c)
    dtype = dtype_name(given[0].dtype, has_halves=True)
    assert dtype is not None
    y = planning.result((*shape[:2], *(axis.out for axis, _ in found)), given[0].dtype, alike=c.on_gpu or rank < 3)
    if 0 in planning.lie(y).shape:
        return planning.plan()
    pixels = rank < 3 and not c.on_gpu and is_channels_last(given[0])
    x = 0 if c.on_gpu or pixels else with_rows(planning, 0)  # kernels of a GPU read arrays as they lie
    lie = planning.lie(x)
    slid = [axis for axis, _ in found]
    if pixels:  # a line has the channels of a pixel, and one window each
        slid.append(Axis(shape[1], shape[1], 1, 1, 1, 0))
    axes = [_ALONE] * (3 - len(slid)) + slid
    planes = (shape[0], 1) if pixels else (shape[0], shape[1])
    strides = [*lie.strides[:2], *[0] * (3 - len(slid)), *lie.strides[2 : len(slid) + 1]]
    last = axes[-1]
    windows = Windows(pool.function, dtype, last.taps, last.stride, last.dilation, c.target.vector_bytes,
                      c.target.has_masks, deep=len(slid) == 3)  # fmt: skip
    divisors = _divisors(pool, found, shape[1] if pixels else 1) if pool.function == "Add" else None

    def kernels() -> list[Launching]:
        from polyconv.operators.on_gpu.teams import summed_in  # here, as on a CPU no kernel of a GPU is needed
        from polyconv.operators.on_gpu.windows import Span, slid

        numbers = [x, y]
        if divisors is not None:
            numbers.append(planning.constant(divisors.astype(DTYPES[summed_in(dtype)].numpy)))
        spans = [Span(axis.taps, axis.stride, axis.dilation, axis.begin) for axis, _ in found]
        of_x, of_y = (Along(each.offset, each.strides) for each in (lie, planning.lie(y)))
        shapes = shape, planning.lie(y).shape
        return [slid(pool.function, dtype, windows.neutral, spans, shapes, of_x, of_y, numbers)]

    work = _cycles(axes, windows, math.prod(planning.lie(y).shape))
    planning.job(
        lambda threads: [window_step(windows, axes, planes, strides, lie.offset, divisors, c, threads)],
        [x, y], work, workspace_of(windows, axes[-1]), kernels=kernels,
    )  # fmt: skip
    return planning.plan()


_LINE_CYCLES = 35.0
"""Of a line of windows, beside its vectors (Zen 5: 54 cycles a line of 3 x 3 over 27, 42 of 2 x 2 over 14)."""


def _cycles(axes: Sequence[Axis], windows: Windows, outputs: int) -> float:
    """About the cycles that so many windows take on one thread."""
    *outer, last = axes
    held, made = -(-last.inp // windows.lanes), -(-last.out // windows.lanes)
    line = _LINE_CYCLES + held * math.prod(axis.taps for axis in outer) + made * (2 * last.taps + 4)
    return outputs / last.out * line


def _divisors(pool: _Pool, found: Sequence[tuple[Axis, int]], channels: int) -> Array:
    """By what sums are divided, for each combination of outputs, and of channels where lines have these."""
    total = np.ones(1)
    for axis, end in found:
        total = np.multiply.outer(total, np.array(_counts(pool, axis, end), np.float64)).reshape(-1)
    return total.repeat(channels)


_PLACES = ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode", "dilations")
_TABLE: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "MaxPool": ("Max", "fiu", (*_PLACES, "storage_order")),
    "AveragePool": ("Add", "f", (*_PLACES, "count_include_pad")),
}
"""Operator -> what its windows do, kinds of types, attributes."""
