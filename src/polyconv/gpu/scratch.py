"""Memory for copies of inputs, which a layer's calls need from one of their launches to the next.

It is kept for each stream, so that a warm call allocates nothing: a call may be captured into a graph.  Memory of which
a graph has the address is the graph's from then on, so that its replays meet no later call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from polyconv.dtypes import DTYPES
from polyconv.gpu.driver import driver
from polyconv.gpu.guests import DeviceArray, Guest

__all__ = ["Scratch"]

_MOST_STREAMS = 8
_OF_THREAD = 2
"""Handle by which every thread names a default stream of its own."""


class Scratch:
    """A layer's memory for copies.  Safe to use from several threads.

    Parameters
    ----------
    device : int
    """

    __slots__ = ("_captured", "_device", "_held", "_lock")

    def __init__(self, device: int) -> None:
        self._device, self._lock = device, threading.Lock()
        self._held: OrderedDict[tuple[int, int], DeviceArray] = OrderedDict()
        self._captured: list[DeviceArray] = []

    @contextmanager
    def taken(self, guest: Guest, stream: int, size: int) -> Iterator[int]:
        """Address of so many bytes, for launches that are started on a stream while the block runs."""
        if guest.has_pool:  # which orders by stream what is given back and taken, in captured calls too
            memory = guest.empty(self._device, (size,), DTYPES["u8"])
            yield memory.address
            return
        with self._lock:
            key = stream, threading.get_ident() if stream == _OF_THREAD else 0
            is_captured, found = driver().is_capturing(stream), self._held.pop(key, None)
            if found is None or found.shape[0] < size:
                with driver().allocating_while_captured() if is_captured else nullcontext():
                    found = guest.empty(self._device, (size,), DTYPES["u8"])
            yield found.address
            if is_captured:
                self._captured.append(found)
                return
            self._held[key] = found
            if len(self._held) > _MOST_STREAMS:
                self._held.popitem(last=False)  # the driver waits until nothing uses it
