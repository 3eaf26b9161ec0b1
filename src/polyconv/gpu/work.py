"""What a step does on a GPU, without addresses: launches, and which of its operands each of their arguments is.

So that the steps of a network can be put together and started as one.  It must not know what kernels compute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polyconv.gpu.calling import MOVED, Call
from polyconv.gpu.launches import ITSELF, Launch, Slot

__all__ = ["Mapped", "Work", "work_of"]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A tensor map that kernels are told: of which operand, and what it is made of beside the address."""

    operand: int
    made_of: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Launches of a step.

    Parameters
    ----------
    launches : tuple of Launch
        None of them with arguments that change; what stands in their place is added to an address.
    slots : tuple of Slot
        Their numbers are those of operands: what the step reads, what it makes, memory of its own.  One that
        ``is_itself`` is told the map.
    own : tuple of int
        Bytes of its own memory.
    map : Mapped or None
    keep : tuple
        What addresses in the launches point to.
    """

    launches: tuple[Launch, ...]
    slots: tuple[Slot, ...]
    own: tuple[int, ...] = ()
    map: Mapped | None = None
    keep: tuple[Any, ...] = ()


def work_of(call: Call, reads: int, x: int, residual: int | None) -> Work:
    """A convolution's call as work on so many arrays, of which x and residual have these numbers."""
    moved = call.form.moved
    copies = moved is not None and moved.grid[0] > 0
    numbers = {0: x, 1: reads, 2: residual or 0, MOVED: reads + 1}
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

