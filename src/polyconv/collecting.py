"""Python's collector of cycles, which waits while objects are made that stay.

It must not import anything that takes long: importing is what it makes shorter.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the collector wait while a block makes many objects that stay.

    It would look through all of them each time that some hundreds are made: a tenth of an import or of a small model's
    start, 2 to 25 % of a run with a new size.  Where two threads are in such blocks, it may run again before both are
    through.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
