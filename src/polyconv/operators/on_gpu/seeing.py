"""Views of arrays on a GPU: what NumPy says of an array that lies alike says where the elements of a view lie.

An array without gaps is made first where there is no view of one with gaps.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.errors import Unsupported
from polyconv.gpu.arrays import GpuArray, current_stream
from polyconv.gpu.launches import Launch, launch_once
from polyconv.operators.along import Along
from polyconv.operators.job import Array
from polyconv.operators.lying import packed
from polyconv.operators.moving import copy_of
from polyconv.operators.on_gpu.passing import passed
from polyconv.operators.on_gpu.running import array_of, launch_of, lies_there
from polyconv.operators.views import Look

__all__ = ["copy_there", "copying", "packed_there", "seen"]


def seen(look: Look, arrays: Sequence[Any]) -> list[GpuArray]:
    """What a view shows of the first array, which lies on a GPU; the others say how, and lie in the CPU's memory.

    Raises
    ------
    Unsupported
        If the others lie on the GPU too, or what is shown is no view.
    """
    x, *others = arrays
    if any(type(a) is GpuArray for a in others):
        raise Unsupported("the numbers that say what it shows are computed on the GPU; they must be known before")
    found = _views(look, x, others)
    if found is None:
        found = _views(look, packed_there(x), others)
    if found is None:
        raise Unsupported("it gathers elements that lie apart in no regular way, for which there is no kernel")
    return found


def _views(look: Look, x: GpuArray, others: Sequence[Any]) -> list[GpuArray] | None:
    """The views; None where a result is none."""
    lie = lies_there(x)
    memory = np.empty(max(1, lie.size), np.uint8)  # whose content nobody reads
    like: Array = np.ndarray(lie.shape, lie.dtype, memory, lie.offset, lie.strides)
    first, begin = memory.ctypes.data, like.ctypes.data
    found = []
    for made in look([like, *others]):
        at = made.ctypes.data
        if made.size and not first <= at < first + memory.nbytes:
            return None
        steps = [step // made.itemsize for step in made.strides]
        found.append(x.seen(made.shape, steps, at - begin if made.size else 0))
    return found


def packed_there(x: GpuArray) -> GpuArray:
    """A copy without gaps, in the order of its axes."""
    made = array_of(packed(x.shape, x.dtype), x.device)
    copy_there(x, made)
    return made


def copy_there(x: GpuArray, y: GpuArray) -> None:
    """Copy an array into another one of its shape and type on the same GPU, after all that was started before."""
    if 0 in x.shape:
        return
    launch = copying(x, y)
    launch_once(replace(launch, values=(x.address, y.address, *launch.values[2:])), current_stream(), x.device)


def copying(x: GpuArray, y: GpuArray) -> Launch:
    """The launch that copies an array that lies as one does into another; its first arguments are their addresses."""
    lies = [lies_there(a) for a in (x, y)]
    ends = [Along(0, lie.strides) for lie in lies]
    return launch_of(passed(copy_of(x.dtype), x.shape, ends, (0, 1), [lie.align for lie in lies]), x.device)
