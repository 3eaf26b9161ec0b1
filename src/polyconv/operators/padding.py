"""Pad where no convolution takes it in: pads of each axis to the inputs that its outputs are.

The one idea: every mode says of an output along an axis which input it is, or that it has the value.  It must not know
kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.operators.job import Conditions, Operation, Own, Plan, Planning, constant
from polyconv.operators.lying import Lies
from polyconv.operators.moving import carrier
from polyconv.operators.numbers import COMES_WITH_THE_RUN, with_numbers
from polyconv.operators.picking import sampled
from polyconv.operators.taps import Integers, Taps, picked
from polyconv.operators.types import untaken
from polyconv.operators.views import View

__all__ = ["padding"]


@dataclass(frozen=True, slots=True)
class _Pads:
    """The mode, begins and then ends of some axes, which ones (None for all), and the value."""

    mode: str
    pads: tuple[int, ...]
    axes: tuple[int, ...] | None
    value: float


def padding(operation: Operation) -> Own | View | str:
    """An operation as taps of each axis, as a view where nothing is padded, or why not."""
    x = operation.inputs[0] if operation.inputs else None
    if x is None or operation.outputs != 1:
        return "it has no input"
    pads = _given(operation)
    if x.dims is not None and isinstance(pads, _Pads) and pads.axes is None and pads.pads == (0, 0) * len(x.dims):
        return View(lambda inputs: [x for x in inputs[:1] if x is not None], (x.dtype,))
    return with_numbers(operation, (1, 2, 3), _read)


def _given(operation: Operation) -> _Pads | str:
    return _before_11(operation) if operation.version < 11 else _pads(operation)


def _read(operation: Operation) -> Own | str:
    x, pads = operation.inputs[0], _given(operation)
    assert x is not None
    if carrier(x.dtype) is None:
        return untaken(x.dtype)
    if isinstance(pads, str):
        return pads
    return Own((0,), (x.dtype,), lambda given, c: _planned(pads, given, c), gaps=True)


def _before_11(operation: Operation) -> _Pads | str:
    """Pads and the value were attributes."""
    a = operation.attributes
    mode, pads = a.get("mode", "constant"), a.get("pads")
    if set(a).difference(("mode", "pads", "value")) or mode not in _MODES or pads is None:
        return "it has attributes that are not done here"
    return _Pads(mode, tuple(pads), None, float(np.float32(a.get("value", 0.0))))


def _pads(operation: Operation) -> _Pads | str:
    mode = operation.attributes.get("mode", "constant")
    given = [*operation.inputs, None, None, None][:4]
    if set(operation.attributes).difference(("mode",)) or mode not in _MODES:
        return "it has attributes that are not done here"
    held = [constant(each) for each in given[1:]]
    pads, value, axes = held
    if pads is None or any(a is None and each is not None for each, a in zip(given[1:], held, strict=True)):
        return COMES_WITH_THE_RUN
    filling: Any = 0
    if value is not None and value.size:
        filling = value.reshape(-1)[0].item()
    if not isinstance(filling, int | float):
        return "the value is no number"
    return _Pads(mode, tuple(pads.reshape(-1).tolist()), None if axes is None else tuple(axes.reshape(-1).tolist()),
                 filling)  # fmt: skip


def _planned(pads: _Pads, given: Sequence[Lies], c: Conditions) -> Plan:
    shape, planning = given[0].shape, Planning(given, c)
    around = _around(pads, shape)
    outs = [begin + extent + end for extent, (begin, end) in zip(shape, around, strict=True)]
    if min(outs, default=0) < 0:
        raise ArgumentError(f"pads={list(pads.pads)} take more from the input of shape {shape} than there is")
    y = planning.result(outs, given[0].dtype)
    if not c.dry:
        taps = [_taps(pads.mode, extent, each) for extent, each in zip(shape, around, strict=True)]
        sampled(planning, 0, y, taps, pads.value)
    return planning.plan()


def _around(pads: _Pads, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pads at the begin and at the end of every axis."""
    rank = len(shape)
    axes = range(rank) if pads.axes is None else pads.axes
    if len(pads.pads) != 2 * len(axes) or any(not -rank <= a < rank for a in axes):
        raise ArgumentError(
            f"pads={list(pads.pads)} must be a begin and an end for each of the axes {list(axes)} of the input of "
            f"shape {shape}"
        )
    found = [(0, 0)] * rank
    for at, a in enumerate(axes):
        found[a] = pads.pads[at], pads.pads[at + len(axes)]
    return found


def _taps(mode: str, extent: int, around: tuple[int, int]) -> Taps:
    """Taps of an axis: positions count from the input's first element."""
    begin, end = around
    positions = np.arange(-begin, extent + end)
    if extent == 0 and mode != "constant" and len(positions):
        raise ArgumentError(f"an axis without elements cannot be padded by {begin} and {end} in the mode {mode!r}")
    return picked(_MODES[mode](positions, extent), extent)


def _reflected(positions: Integers, extent: int) -> Integers:
    """There and back without the ends twice; an axis of one element is that element."""
    turn = max(1, 2 * (extent - 1))
    place = positions % turn
    return np.minimum(place, turn - place) if extent > 1 else np.zeros_like(place)


_MODES: Mapping[str, Callable[[Integers, int], Integers]] = {
    "constant": lambda positions, extent: np.where((positions >= 0) & (positions < extent), positions, -1),
    "edge": lambda positions, extent: np.clip(positions, 0, extent - 1),
    "reflect": _reflected,
    "wrap": lambda positions, extent: positions % max(1, extent),
}
"""``mode`` -> the input at a position, or -1 for the value."""
