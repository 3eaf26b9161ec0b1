"""What a step does on a GPU, without addresses: launches, and which of its operands each of their arguments is.

So that the steps of a network can be put together and started as one.  It must not know what kernels compute.
"""

from __future__ import annotations

from typing import Any

from polyconv.dataclass import dataclass
from polyconv.gpu.launches import Launch, Slot

__all__ = ["Mapped", "Work"]


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
