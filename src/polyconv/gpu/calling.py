"""A call with all but addresses decided: code loaded, weights packed, kernels ready to be launched together.

It must not know how forms are chosen, nor check operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.gpu.code import Launchable, function
from polyconv.gpu.driver import TensorMap, driver
from polyconv.gpu.forms import Form
from polyconv.gpu.guests import DeviceArray, Guest, guest_of
from polyconv.gpu.kernels import move
from polyconv.gpu.kernels.patch import Patch
from polyconv.gpu.launches import ITSELF, Launch, Launches, Slot, launch_once
from polyconv.gpu.scratch import Scratch
from polyconv.gpu.work import Mapped, Work
from polyconv.problem.problem import Problem

__all__ = ["Call", "Places", "copied", "launched", "launches_of", "work_of"]

_X, _Y, _R, _OFFSET, _MASK, _MOVED, _MAP = range(7)
"""What changes from call to call: addresses of the operands, of the input's copy and of its tensor map."""
_MOST_MAPS = 64

Places = tuple[int, int, int, int, int]
"""Addresses of input, result, residual, offset and mask; 0 for those that are absent."""


@dataclass(frozen=True, slots=True)
class Call:
    """Launches for operands that lie in one way.

    Parameters
    ----------
    make : callable
        Makes the result.
    launches : Launches
    scratch : Scratch
        Where the input's copy lies, if there is one.
    spans : tuple
        Bytes before and behind the address of each operand, in the order of ``Places``; None for those that are absent.
    is_alike : bool
        Whether result and residual lie alike, so that they may be the same memory.
    keep : tuple
        Packed weights and bias.
    map : tuple or None
        What the input's tensor map is made of, where kernels read it through one.
    maps : dict
        Maps by the input's address.
    """

    problem: Problem
    form: Form
    make: Callable[[], Any]
    scratch: Scratch
    launches: Launches
    spans: tuple[tuple[int, int] | None, ...]
    is_alike: bool
    keep: tuple[DeviceArray, ...]
    map: tuple[Any, ...] | None
    maps: dict[int, TensorMap] = field(default_factory=dict)

    def start(self, guest: Guest, device: int, places: Places) -> None:
        """Launch on a library's current stream."""
        stream = guest.stream(device)
        if self.form.workspace:
            with self.scratch.taken(guest, stream, self.form.workspace) as copy:
                self.launches((*places, copy, self._mapped(copy)), stream)
        else:
            self.launches((*places, 0, self._mapped(places[_X])), stream)
        if guest.waits:
            driver().synchronize(stream)

    def _mapped(self, x: int) -> int:
        """Address of the map of an input."""
        if self.map is None:
            return 0
        found = self.maps.get(x)
        if found is None:
            if len(self.maps) >= _MOST_MAPS:
                self.maps.clear()
            found = self.maps[x] = driver().tensor_map(x, *self.map)
        return found.address

    def is_clear(self, places: Places, others: Sequence[tuple[int, int]]) -> bool:
        """Whether the result's memory is surely no operand's, but for the residual's own."""
        of_y = self.spans[_Y]
        assert of_y is not None
        low, high = places[_Y] + of_y[0], places[_Y] + of_y[1]
        held = [
            (place + span[0], place + span[1]) for at, (place, span) in enumerate(zip(places, self.spans, strict=True))
            if span is not None and at != _Y and not (at == _R and place == places[_Y] and self.is_alike)
        ]  # fmt: skip
        return all(end <= low or high <= start for start, end in (*held, *others))


def launches_of(form: Form, device: int, of_steps: Sequence[Mapping[str, int]], zero: int) -> list[Launch]:
    """Kernels of a form with what does not change: of each step, by the argument's name; and the input's zero point."""
    launches = []
    if form.moved is not None and form.moved.grid[0]:
        launches.append(_launch(form.moved, device, {"source": _X, "target": _MOVED}, {"zero": zero}))
    changing = {"x": _X if not launches else _MOVED, "y": _Y, "r": _R, "offset": _OFFSET, "mask": _MASK}
    return launches + [
        _launch(step.kernel, device, changing, fixed)
        for step, fixed in zip(form.steps, of_steps, strict=True) if step.kernel.grid[0]
    ]  # fmt: skip


def _launch(spec: Launchable, number: int, changing: Mapping[str, int], fixed: Mapping[str, int]) -> Launch:
    """A kernel's launch; of its arguments some change from call to call."""
    addresses = [fixed.get(name, 0) for name in spec.arguments]
    slots = tuple((slot, changing[name]) for slot, name in enumerate(spec.arguments) if name in changing)
    if isinstance(spec, Patch):
        slots = (*slots, (len(addresses), ITSELF + _MAP))
        addresses.append(0)
    told = [fixed.get(name, value) for name, value in spec.numbers.items()]
    return Launch(function(spec, number), spec.grid, (*addresses, *told), slots)


def launched(spec: Launchable, fixed: Mapping[str, int], stream: int, device: int) -> None:
    """Start one kernel, with an address or a number for the name of each argument."""
    launch_once(_launch(spec, device, {}, fixed), stream, device)


def copied(source: DeviceArray) -> DeviceArray:
    """A copy without gaps, made before this returns."""
    guest = guest_of(source.holder)
    copy = guest.empty(source.device, source.shape, source.dtype)
    if 0 not in source.shape:
        axes = tuple(move.Axis(extent, step, extent) for extent, step in zip(source.shape, source.strides, strict=True))
        stream = guest.stream(source.device)
        wanted = move.Arrange(axes, source.dtype.name, source.dtype.name)
        launched(wanted, {"source": source.address, "target": copy.address}, stream, source.device)
        driver().synchronize(stream)
    return copy


def work_of(call: Call, reads: int, x: int, residual: int | None) -> Work:
    """A convolution's call as work on so many arrays, of which x and residual have these numbers."""
    moved = call.form.moved
    copies = moved is not None and moved.grid[0] > 0
    numbers = {0: x, 1: reads, 2: residual or 0, _MOVED: reads + 1}
    slots = [
        Slot(i, argument, numbers[which % ITSELF] if which < ITSELF else -1, is_itself=which >= ITSELF)
        for i, launch in enumerate(call.launches.all) for argument, which in launch.changing
    ]  # fmt: skip
    own = (moved.bytes,) if moved is not None and copies else ()
    mapped = None if call.map is None else Mapped(reads + 1 if copies else x, call.map)
    launches = tuple(replace(launch, values=_cleared(launch), changing=()) for launch in call.launches.all)
    return Work(launches, tuple(slots), own, mapped, (call,))


def _cleared(launch: Launch) -> tuple[int, ...]:
    """Arguments, with 0 in the place of those that change."""
    changing = {slot for slot, _ in launch.changing}
    return tuple(0 if slot in changing else value for slot, value in enumerate(launch.values))

