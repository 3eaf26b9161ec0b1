"""Copies in another order: of arrays that a view cannot show in another shape, of results, of what convolutions read.

The one idea: a reshape counts elements in the order of the model, so of an array with channels last it is a copy in
that order.  It must not know graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from polyconv.operators.along import Along
from polyconv.operators.job import Conditions, Plan, Planning
from polyconv.operators.lying import Array, Lies, channels_last, lies, packed
from polyconv.operators.moving import copied

__all__ = ["packed_copy", "packing", "pixels_copy"]


def packed_copy(lie: Lies, shape: Sequence[int], c: Conditions) -> Plan:
    """The plan of a copy in the order of the model, which is then seen in another shape of as many elements."""
    planning = Planning([lie], c)
    y = planning.result(shape, lie.dtype, alike=False)
    target = Along(0, packed(lie.shape, lie.dtype).strides)
    copied(planning, 0, y, lie.shape, Along(lie.offset, lie.strides), target)
    return planning.plan()


def pixels_copy(lie: Lies, c: Conditions) -> Plan:
    """The plan of a copy with channels last, as convolutions read it."""
    made = channels_last(lie.shape, lie.dtype)
    planning = Planning([lie], replace(c, into=(made,)))
    y = planning.result(lie.shape, lie.dtype)
    copied(planning, 0, y, lie.shape, Along(lie.offset, lie.strides), Along(0, made.strides))
    return planning.plan()


def packing(array: Array, look: Callable[[Array], Sequence[Array]], c: Conditions) -> Plan | None:
    """The plan of a view that is a copy; None where the copy would not be all of the array as the model counts it."""
    whole = np.empty(array.shape, array.dtype)  # which nobody reads
    shown = look(whole)
    if c.check or len(shown) != 1 or shown[0].size != whole.size or not shown[0].flags.c_contiguous:
        return None
    if not whole.size or shown[0].ctypes.data != whole.ctypes.data:
        return None
    return packed_copy(lies(array), shown[0].shape, c)
