"""Interrupts (Ctrl-C): counted, and held back while modules are imported.

A module whose import is cut short is left half made and complains in its own words, at length; one written in C may
call the interrupt something else.  So an interrupt waits for the imports, and whatever error follows one is the
interrupt.  One that is raised where Python has to ignore errors, such as in a finaliser, is lost there: long work asks
now and then whether one came.  It knows no command.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from polyconv.dataclass import dataclass

__all__ = ["Interrupts", "counted", "kept_when_interrupted", "raise_lost"]


@dataclass(slots=True)
class Interrupts:
    """What has come so far, and whether it still waits."""

    count: int = 0
    are_held: bool = True

    def release(self) -> None:
        """Hold back no longer; raises KeyboardInterrupt for one that waited."""
        self.are_held = False
        if self.count:
            raise KeyboardInterrupt

    def _come(self, *_: Any) -> None:
        self.count += 1
        if not self.are_held or self.count > 1:  # who asks twice does not wait
            raise KeyboardInterrupt


_LATEST: list[Interrupts] = []


def raise_lost() -> None:
    """Raise KeyboardInterrupt if one came and was lost."""
    if _LATEST and _LATEST[-1].count and not _LATEST[-1].are_held:
        raise KeyboardInterrupt


@contextmanager
def counted() -> Iterator[Interrupts]:
    """Interrupts from here on; none where somebody else handles or ignores them, or another thread receives them."""
    interrupts = Interrupts()
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if is_ours:
        signal.signal(signal.SIGINT, interrupts._come)
    _LATEST.append(interrupts)
    try:
        yield interrupts
    finally:
        _LATEST.pop()
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def kept_when_interrupted(show: Callable[[], None]) -> Iterator[None]:
    """Show what a long command has found so far before its interrupt goes on."""
    try:
        yield
    except KeyboardInterrupt:
        show()
        raise
