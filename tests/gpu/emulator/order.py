"""What happened before what: every thread's clock, and how far it knows the clocks of the others.

A thread's clock counts what it has published.  An access is stamped with the clock of its thread; another
thread may rely on it once it knows that clock, which barriers spread.  With a second plane of the same
numbers for the asynchronous proxy: up to where each thread's accesses were fenced for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["IN_FLIGHT", "Order"]

Array = NDArray[Any]

IN_FLIGHT = 1 << 25
"""Clock of an asynchronous access that nobody has waited for: later than anything a thread knows."""

_OWN = 1 << 24
"""What a thread knows of itself: everything but what is in flight."""


def _run(lanes: Array) -> Any:
    """Lanes as a slice where they follow each other, so that NumPy copies nothing to get at them."""
    follow = len(lanes) > 0 and lanes[-1] - lanes[0] == len(lanes) - 1 and bool((lanes[1:] > lanes[:-1]).all())
    return slice(int(lanes[0]), int(lanes[-1]) + 1) if follow else lanes


class Order:
    """Clocks of all threads.

    Parameters
    ----------
    clusters, width : int
        Threads lie cluster after cluster, ``width`` each; who shares no cluster shares no memory.
    proxies : bool
        Keep the second plane.
    """

    def __init__(self, clusters: int, width: int, proxies: bool) -> None:
        self.width, self.count = width, clusters * width
        self.index = np.arange(self.count) % width
        self.clock = np.ones(self.count, np.int32)
        self.together = np.zeros(self.count, np.int32)
        self._known = np.zeros((1 + proxies, self.count, width), np.int32)
        self._known[0, np.arange(self.count), self.index] = _OWN

    def knows(self, lanes: Array, others: Array, clocks: Array) -> Array:
        """Whether each thread may rely on what another of its cluster did at a clock."""
        return np.asarray(self._known[0, lanes, others] >= clocks)

    def fenced(self, lanes: Array, others: Array, clocks: Array) -> Array:
        """The same for what the asynchronous proxy reads in a thread's name."""
        return np.asarray(self._known[1, lanes, others] >= clocks)

    def nothing(self) -> Array:
        """Knowledge of nothing: what barriers start with."""
        return np.zeros((len(self._known), self.width), np.int32)

    def _rows(self, lanes: Array) -> Array:
        rows = self._known[:, lanes]
        rows[0, np.arange(len(lanes)), self.index[lanes]] = self.clock[lanes]
        return rows

    def publish(self, lanes: Array) -> Array:
        """What several threads of one cluster know, themselves included; what they do next is not in it.

        Where a warp last executed an instruction together, each of its threads speaks for all.
        """
        rows = self._rows(lanes)
        first = lanes // 32 * 32
        column = self.index[first][:, None] + np.arange(32)
        here = np.arange(len(lanes))[:, None]
        rows[0, here, column] = np.maximum(rows[0, here, column], self.together[first[:, None] + np.arange(32)])
        self.clock[lanes] += 1
        return np.asarray(rows.max(axis=1))

    def learn(self, lanes: Array, knowledge: Array) -> None:
        """Threads take over what a barrier gathered."""
        where = _run(lanes)
        self._known[:, where] = np.maximum(self._known[:, where], knowledge[:, None])
        self._known[0, lanes, self.index[lanes]] = _OWN

    def join(self, groups: Array) -> None:
        """Every row of threads meets: each knows afterwards what any of them knew."""
        for lanes in groups:
            where = _run(lanes)
            self._known[0, lanes, self.index[lanes]] = self.clock[lanes]
            self._known[:, where] = self._known[:, where].max(axis=1)[:, None]
            self._known[0, lanes, self.index[lanes]] = _OWN
        self.clock[groups.reshape(-1)] += 1

    def meet(self, lanes: Array) -> None:
        """Warps execute an instruction together: from here each of their threads speaks for all, up to now."""
        self.together[lanes] = self.clock[lanes]
        self.clock[lanes] += 1

    def fence(self, lanes: Array) -> None:
        """What these threads know, their own accesses included, becomes visible to the asynchronous proxy."""
        if len(self._known) > 1:
            rows = self._rows(lanes)
            self._known[1, lanes] = np.maximum(rows[0], rows[1])
            self.clock[lanes] += 1

    def tick(self, lane: int) -> int:
        """The clock of a thread, which then goes on: to tell what comes later from what came before."""
        now = int(self.clock[lane])
        self.clock[lane] += 1
        return now

    def last_known(self, lanes: Array) -> Array:
        """The most that any of these threads knows of each thread of their cluster."""
        return np.asarray(self._rows(lanes)[0].max(axis=0))
