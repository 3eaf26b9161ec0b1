"""Results of which each axis is made of few inputs: the axes put together as the driver of ``sampling`` takes them.

Turns a table of taps for each axis of an array into jobs.  The one idea: axes that stay as they are, in front and at
the end, are one each; what lies between has a table.  It must not know operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from polyconv.dtypes import DTYPES
from polyconv.operators.along import Along, joined
from polyconv.operators.expression import cycles_of
from polyconv.operators.finish import Finish
from polyconv.operators.job import Planning
from polyconv.operators.lying import Lies, channels_last, in_memory, is_channels_last, lies_like, packed
from polyconv.operators.moving import as_packed, carrier, copied, copy_of, without_gaps
from polyconv.operators.sampling import sampling_step, window_of, workspace_of
from polyconv.operators.sampling_driver import Sampling
from polyconv.operators.strided import pass_over
from polyconv.operators.taps import Taps, whole
from polyconv.operators.types import dtype_name

if TYPE_CHECKING:
    from polyconv.operators.on_gpu.launching import Launching

__all__ = ["sampled"]

_MOST_AXES = 4


def sampled(planning: Planning, x: int, y: int, axes: Sequence[Taps], filling: float = 0,
            finish: Finish | None = None) -> None:  # fmt: skip
    """Add the jobs that make a result of an array.

    Parameters
    ----------
    x, y : int
        Numbers of the array and of the result.
    axes : sequence of Taps
        One for each of its axes.  Outputs with weights need an array of f32 or f64.
    filling : number
        What outputs without taps are.
    finish : Finish or None
        What is done with every element of the result.
    """
    lie = planning.lie(x)
    if 0 in planning.lie(y).shape:
        return
    if finish is not None and (0 in lie.shape or not axes):
        between = planning.between(planning.lie(y).shape, lie.dtype)
        sampled(planning, x, between, axes, filling)
        numbers = [planning.constant(array) for array in finish.numbers]
        pass_over(planning, finish.expression, planning.lie(y).shape, [between, *numbers, y])
        return
    if 0 in lie.shape or not axes:
        source = planning.constant(np.array(filling).astype(lie.dtype)) if axes else x
        pass_over(planning, copy_of(lie.dtype), planning.lie(y).shape, [source, y])
        return
    if planning.c.on_gpu:
        planning.launch(lambda: [_on_gpu(planning, x, y, axes, filling)])
        return
    _in_order(planning, x, y, axes, filling, finish)


def _in_order(planning: Planning, x: int, y: int, axes: Sequence[Taps], filling: float, finish: Finish | None) -> None:
    """The jobs of an array with elements, whose axes are taken in the order of memory."""
    lie, of_y = planning.lie(x), planning.lie(y)
    last = is_channels_last(lie)
    is_dense = lies_like(of_y, (channels_last if last else packed)(of_y.shape, of_y.dtype))
    if not is_dense and not (last and axes[1].is_whole and not axes[-1].is_whole and _has_even_pixels(of_y)):
        made = planning.between(of_y.shape, of_y.dtype)
        _in_order(planning, x, made, axes, filling, finish)
        copied(planning, made, y, of_y.shape, *(Along(a.offset, a.strides) for a in (planning.lie(made), of_y)))
        return
    if last:  # so does the result
        axes, x = [*axes[:1], *axes[2:], axes[1]], without_gaps(planning, x)
    changed = _changed(axes)
    while len(changed) > 1 and changed[-1] + (changed[-1] < len(axes) - 1) - changed[0] >= _MOST_AXES:
        at = changed.pop()
        extents = in_memory(planning.lie(x)).shape
        alone = [axis if a == at else whole(extents[a]) for a, axis in enumerate(axes)]
        between = planning.between([axis.outputs for axis in alone], lie.dtype, alike=False)
        _add(planning, x, between, alone, filling)
        axes = [whole(axis.outputs) if a == at else axis for a, axis in enumerate(axes)]
        x = between  # axis by axis is the same, and nobody needs this to be fast
    _add(planning, x, y, axes, filling, finish)


def _on_gpu(planning: Planning, x: int, y: int, axes: Sequence[Taps], filling: float) -> Launching:
    """The kernel of a GPU, which reads arrays as they lie."""
    from polyconv.operators.on_gpu.launching import Launching  # here, as on a CPU no kernel of a GPU is needed
    from polyconv.operators.on_gpu.sampling import Sample
    from polyconv.operators.on_gpu.teams import summed_in
    from polyconv.operators.on_gpu.walk import Walk

    source, target = planning.lie(x), planning.lie(y)
    order = sorted(range(len(axes)), key=lambda a: -abs(target.strides[a]))
    tables = [None if axes[a].is_whole else axes[a] for a in order]
    sums = not all(axis.picks for axis in axes)
    dtype = dtype_name(source.dtype, has_halves=True) if sums else carrier(source.dtype)
    assert dtype is not None
    row = DTYPES[dtype]
    steps = [source.strides[a] for a in order]
    walk = Walk(
        tuple(target.shape[a] for a in order),
        (tuple(step if table is None else 0 for step, table in zip(steps, tables, strict=True)),
         tuple(target.strides[a] for a in order)), (row.itemsize, row.itemsize),
    )  # fmt: skip
    arrays = []
    for table in tables:
        if table is not None:
            arrays += [table.counts.astype(np.int32), np.ascontiguousarray(table.positions, np.int32)]
            arrays += [np.ascontiguousarray(table.weights, DTYPES[summed_in(dtype)].numpy)] if sums else []
    kernel = Sample(
        dtype, walk, tuple(None if table is None else step for step, table in zip(steps, tables, strict=True)),
        tuple(table.most for table in tables if table is not None), sums,
        np.array(filling).astype(source.dtype).view(row.numpy).item(),
    )  # fmt: skip
    return Launching(kernel, ((x, source.offset), (y, 0), *((planning.constant(a), 0) for a in arrays)))


def _changed(axes: Sequence[Taps]) -> list[int]:
    """Axes that do not stay as they are; the last one where all do."""
    return [a for a, axis in enumerate(axes) if not axis.is_whole] or [len(axes) - 1]


def _add(planning: Planning, x: int, y: int, axes: Sequence[Taps], filling: float, finish: Finish | None = None
         ) -> None:  # fmt: skip
    """Add the job of one array, if it lies so that it can be read; else that of a packed copy too."""
    found = _laid(planning, x, axes)
    if found is None:
        x = as_packed(planning, x)
        found = _laid(planning, x, axes)
    assert found is not None
    planes, strides, four = found
    lie, c = planning.lie(x), planning.c
    last, sums = four[-1], not all(axis.picks for axis in four[:-1])
    dtype = (carrier if last.picks and not sums and finish is None else dtype_name)(lie.dtype)
    assert dtype is not None
    pattern = last.pattern
    spec = Sampling(
        dtype, sums, any(not axis.counts.all() for axis in four), last.is_whole, last.picks,
        () if pattern is None else pattern.phases, 1 if pattern is None else pattern.stride, c.target.vector_bytes,
        c.target.has_masks, window := window_of(last, dtype, c.target), last.most * (window > 0),
        None if finish is None else finish.expression,
    )  # fmt: skip
    pitch, numbers = _pitch(planning, y, last.outputs), () if finish is None else finish.numbers
    value = np.array(filling).astype(lie.dtype).view(DTYPES[dtype].numpy).item()
    planning.job(
        lambda threads: [sampling_step(spec, four, planes, strides, lie.offset, pitch, value, numbers, c, threads)],
        [x, y], _cycles(spec, four, math.prod(planes)), workspace_of(spec, four),
    )  # fmt: skip


def _has_even_pixels(lie: Lies) -> bool:
    """Whether an array has channels last, and each pixel as far behind the one before as all others."""
    (n, _, *extents), (step, _, *steps) = lie.shape, lie.strides
    return is_channels_last(lie) and len(joined((n, *extents), [Along(0, (step, *steps))])[0]) == 1


def _pitch(planning: Planning, y: int, row: int) -> int:
    """Bytes from one row of the result to the next: rows of channels may have gaps between them."""
    lie = planning.lie(y)
    if not is_channels_last(lie) or lies_like(lie, channels_last(lie.shape, lie.dtype)):
        return row * lie.dtype.itemsize
    return min(step for extent, step in zip(lie.shape[2:], lie.strides[2:], strict=True) if extent > 1)


def _cycles(spec: Sampling, axes: Sequence[Taps], planes: int) -> float:
    """About the cycles of one thread."""
    rows, last = planes * math.prod(axis.outputs for axis in axes[:-1]), axes[-1]
    summed = math.prod(axis.most for axis in axes[:-1]) * -(-last.extent // spec.kind.lanes) if spec.sums else 0
    pattern = last.pattern
    alone = last.outputs if pattern is None else last.outputs - (pattern.end - pattern.begin)
    vectors = -(-(last.outputs - alone) // spec.kind.lanes)
    if spec.window:
        vectors, alone = 2 * -(-last.outputs // spec.kind.lanes), 0
    finished = 0.0 if spec.finish is None else -(-last.outputs // spec.kind.lanes) * cycles_of(spec.finish)
    return rows * (30.0 + 1.5 * summed + 2.0 * vectors * last.most + 3.0 * alone * last.most + finished)


_Laid = tuple[tuple[int, int], list[int], list[Taps]]


def _laid(planning: Planning, x: int, axes: Sequence[Taps]) -> _Laid | None:
    """Extents of planes, strides and four axes with taps; None where an array must be packed for it."""
    lie = in_memory(planning.lie(x))
    changed = _changed(axes)
    first, last = changed[0], changed[-1]
    size = lie.dtype.itemsize
    inner, (along,) = joined(lie.shape[last + 1 :], [Along(0, lie.strides[last + 1 :])])
    outer, (planes,) = joined(lie.shape[:first], [Along(0, lie.strides[:first])])
    if len(outer) > 2 or len(inner) > 1:
        return None
    middle, strides = list(axes[first : last + 1]), list(lie.strides[first : last + 1])
    if inner != [1]:
        middle.append(whole(inner[0]))
        strides.append(along.strides[0])
    if len(middle) > _MOST_AXES or (strides[-1] != size and middle[-1].extent > 1):
        return None
    lead, more = 2 - len(outer), _MOST_AXES - len(middle)
    extents = [1] * lead + outer
    steps = [*[0] * lead, *planes.strides, *[0] * more, *strides[:-1]]
    return (extents[0], extents[1]), steps, [whole(1)] * more + middle
