"""Filters run: passes over arrays become calls, which are kept for arrays that lie alike.

It must not know one filter from another.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import of_array
from polyconv.fields.plan import PANEL_BYTES
from polyconv.in_force import target_in_force
from polyconv.ndimage.calls import Conditions, Ready, bound
from polyconv.ndimage.fields import field
from polyconv.ndimage.large import large
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.stages import Types
from polyconv.runtime.arrays import mark, may_overlap
from polyconv.runtime.memory import allocating, sized
from polyconv.settings import resolve as setting

__all__ = ["Run", "filtered"]

Array = NDArray[Any]

_MOST_KEPT, _MOST_BYTES = 64, 64 << 20
"""Filters of which programs are kept, and bytes of their tables."""

_BROUGHT = 2.0
"""Elements that a box brings, for each output of its own, up to which passes share panels."""

_COLUMNS, _SPARE = 256, 64
"""Columns of a box with many lines, and columns of a panel that no output needs."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Calls one after the other, with arrays between them, for fields and results that lie as they did once."""

    calls: tuple[Ready, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __call__(self, x: Array, y: Array | None) -> Array | None:
        """Filter x into y, or into a new array; None, and nothing done, where the arrays are others."""
        result = np.empty(self.shape, self.dtype) if y is None else y
        if len(self.calls) == 1:
            found: Array | None = self.calls[0].enter(x, result)
            return found
        if np.may_share_memory(x, result):
            return None
        for call, (source, target) in zip(self.calls, _steps(x, result, len(self.calls)), strict=True):
            call(source, target)
        return result


def _steps(x: Array, y: Array, count: int) -> list[tuple[Array, Array]]:
    """What each of some calls that lead from x to y reads and writes."""
    with allocating(sized("what is between two passes", y.shape, y.dtype), "filter parts of the field"):
        between = [mark(np.empty(y.shape, y.dtype)) for _ in range(min(2, count - 1))]
    steps = [x, *(between[n % 2] for n in range(count - 1)), y]
    return list(itertools.pairwise(steps))


_lock = threading.Lock()
_kept: OrderedDict[Any, Ready] = OrderedDict()


def filtered(x: Array, y: Array, passes: Sequence[Pass], *, cval: float, strict: bool, threads: int) -> Run | None:
    """Write into ``y`` what passes make of ``x``, one after the other.

    Parameters
    ----------
    x, y : array
        Of one shape, in native byte order; bool or a type of ``DTYPES``.
    cval : float
        What lies beyond a border of mode ``constant``.
    strict : bool
        Whether sums of floats are formed in double as well.
    threads : int
        Most threads.

    Returns
    -------
    Run or None
        What ran, if that is all, so that it may run again for arrays alike.
    """
    if not x.size:
        return None
    if not passes:
        np.copyto(y, x, casting="unsafe")
        return None
    has_truth, truth = np.bool_ in (x.dtype, y.dtype), y.dtype == np.bool_
    x, y = (a.view(np.uint8) if a.dtype == np.bool_ else a for a in (x, y))
    target = np.empty(y.shape, y.dtype) if may_overlap(x, y) else y
    groups = _groups(passes, x.shape)
    last = len(groups) - 1
    first, after = (of_array(a.dtype, name).name for a, name in ((x, "input"), (y, "output")))
    types = [Types(after if n else first, after, truth and n == last, strict, cval) for n in range(last + 1)]
    calls = []
    for group, here, (source, result) in zip(groups, types, _steps(x, target, last + 1), strict=True):
        calls.append(_call(group, source, result, here, threads))
        calls[-1](source, result)
    if target is not y:
        y[...] = target
        return None
    return None if has_truth else Run(tuple(calls), y.shape, y.dtype)


def _groups(passes: Sequence[Pass], shape: tuple[int, ...]) -> list[list[Pass]]:
    """Passes that follow each other in one program: lines of different axes, whose borders stay small."""
    groups: list[list[Pass]] = []
    for one in passes:
        if groups and _share_panels([*groups[-1], one], shape):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _share_panels(passes: Sequence[Pass], shape: tuple[int, ...]) -> bool:
    """Whether boxes as large as panels of doubles allow bring little more than their own part of the field."""
    axes = [axis for one in passes for axis in one.axes]
    if len(set(axes)) < len(axes) or any(one.kind == "window" for one in passes):
        return False
    reach = {one.axes[0]: one.weights.size - 1 for one in passes}
    columns = min(shape[-1], _COLUMNS) + reach.pop(len(shape) - 1, 0) + _SPARE
    lines = PANEL_BYTES / (8 * columns * (len(passes) + sum(one.kind == "mean" for one in passes)))
    side = lines ** (1 / max(1, len(reach)))  # of a box with as many lines along each axis
    brought = 1.0
    for axis, more in reach.items():
        outputs = min(shape[axis], side - more)
        brought *= (outputs + more) / outputs if outputs >= 1 else math.inf
    return brought <= _BROUGHT


def _call(passes: Sequence[Pass], x: Array, y: Array, types: Types, threads: int) -> Ready:
    """The call for arrays like these, kept for more of them."""
    c = Conditions(target_in_force(), threads, setting("workspace_limit"), setting("check"))
    given = tuple((p.kind, p.axes, p.weights.shape, p.weights.tobytes(), p.origins, p.modes) for p in passes)
    key = (x.shape, x.strides, y.strides, types, given, c)
    with _lock:
        found = _kept.get(key)
        if found is not None:
            _kept.move_to_end(key)
            return found
    made: Ready | None = large(passes[0], x, y, types, c) if len(passes) == 1 else None
    if made is None:
        made = bound([field(passes, x, y, types)], x, y, c)
    with _lock:
        _kept[key] = made
        while len(_kept) > 1 and (len(_kept) > _MOST_KEPT or sum(c.nbytes for c in _kept.values()) > _MOST_BYTES):
            _kept.popitem(last=False)
    return made
