"""Memory that lies between the steps of runs, lent to replays that take turns.

The one idea: no two runs in one arena go at once, so what one of them leaves there the next one may write over; a
network that sees images of many sizes needs the memory of the largest, not that of all.  It must not know what lies
there.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from polyconv.runtime.arrays import aligned

__all__ = ["Arena"]

_GROWTH = 1.25
"""A part that is too small is followed by one so many times as large: of sizes that grow little by little, few are
larger than all before.  Whoever was lent the smaller one keeps it."""


class Arena:
    """Memory by what it is for.  ``lock`` is held by whoever runs in it.

    Parameters
    ----------
    most : int
        Bytes of a part.
    """

    __slots__ = ("_most", "_parts", "lock")

    def __init__(self, most: int) -> None:
        self.lock, self._most = threading.Lock(), most
        self._parts: dict[str, NDArray[np.uint8]] = {}

    def part(self, what: str, size: int) -> NDArray[np.uint8]:
        """Memory of at least so many bytes, the same for all who ask for no more.

        Raises
        ------
        MemoryError
            If that is more than a part may have, or the system does not give it.
        """
        if size > self._most:
            raise MemoryError(f"{size} bytes of {what}, a session keeps {self._most}")
        found = self._parts.get(what)
        if found is None or found.nbytes < size:
            grown = size if found is None else max(size, min(self._most, round(_GROWTH * found.nbytes)))
            found = self._parts[what] = aligned(grown, np.uint8)
        return found
