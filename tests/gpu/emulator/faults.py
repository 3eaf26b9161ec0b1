"""What the emulator finds wrong with a kernel."""

from __future__ import annotations

__all__ = ["AsyncFault", "Deadlock", "Fault", "MemoryFault", "Race"]


class Fault(Exception):
    """A mistake of the kernel that runs.

    Parameters
    ----------
    message : str
    lane : int, optional
        The thread to blame, as a position on the machine's axis; the machine adds its block and number.
    """

    def __init__(self, message: str, lane: int | None = None) -> None:
        super().__init__(message)
        self.lane = lane


class Race(Fault):
    """Two threads use one place, at least one of them writes, and nothing orders the two."""


class Deadlock(Fault):
    """Threads wait for what can no longer happen."""


class MemoryFault(Fault):
    """An access outside its array, at a wrong alignment, to what may not be written, or to what holds nothing yet."""


class AsyncFault(Fault):
    """Something asynchronous is used before it was waited for, or without the fence that makes it visible."""
