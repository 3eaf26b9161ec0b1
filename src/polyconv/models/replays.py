"""Which replays of a program a session keeps: those of the ways of running it that were of use lately.

It must not know what a replay does.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from polyconv.models.arena import Arena
from polyconv.models.graph import Array
from polyconv.models.laid import Laid
from polyconv.models.replay import Replay
from polyconv.models.told import Told, native_steps, told_of
from polyconv.operators.lying import lies
from polyconv.runtime.memory import kept_count
from polyconv.settings import context
from polyconv.settings import resolve as setting

__all__ = ["MOST_BYTES", "Replays"]

MOST_BYTES = 512 << 20
"""Memory that a session may keep between runs for what lies between steps."""
_MOST_REPLAYS = 64
"""Ways of running a program, as sizes of images are, of which a session keeps replays."""
_MOST_TABLES = 64 << 20
"""Bytes of the tables of replays that are kept beyond a few."""
_MOST_ARENAS = 4
"""Runs at once, in as many threads, that each find memory of their own."""
_MOST_MET = 4 * _MOST_REPLAYS
"""Runs that are remembered, to see that one is like an earlier one."""


class Replays:
    """Replays of a program, one for each way of running it; the second of two such runs makes it.

    Those that were of use lately are kept, as many as memory allows.  Safe to use from several threads.

    Parameters
    ----------
    switches : sequence of str
        Feeds of one number by which branches are chosen: runs are alike if these are equal.
    """

    __slots__ = ("_lock", "_met", "_replays", "_switches")

    def __init__(self, switches: Sequence[str] = ()) -> None:
        self._switches = tuple(switches)
        self._met: list[object] = []  # ways of running it, those of late last; twice where one was to be learned
        self._replays: list[tuple[object, Replay]] = []
        self._lock = threading.RLock()  # a finaliser may run the session amid a run

    def found(self, results: Sequence[str], feeds: Mapping[str, Any]) -> Replay | None:
        """The replay that takes these feeds and gives these results, if there is one."""
        replays = self._replays  # another thread may put a new list there
        for key, replay in reversed(replays):
            if replay.fits(results, feeds):
                if replay is not replays[-1][1]:
                    with self._lock:  # it is the last one to go
                        self._replays = [*(each for each in self._replays if each[1] is not replay), (key, replay)]
                return replay
        return None

    @property
    def bytes(self) -> int:
        """What replays hold between runs; 0 where there is none."""
        return sum({k: size for _, replay in self._replays for k, size in _parts(replay).items()}.values())

    def wants(self, results: tuple[str, ...], feeds: Mapping[str, Any]) -> bool:
        """Whether a run of Python steps should tell what they do."""
        if setting("verbose") or not all(type(a) is np.ndarray for a in feeds.values()):
            return False
        key = self._key(results, feeds)
        with self._lock:
            times = self._met.count(key)
            self._met = [*self._met, key][-_MOST_MET:] if times < 2 else self._met
        return times == 1  # what is not worth a replay then is none later

    tell = staticmethod(told_of)

    def learn(self, told: Sequence[Told | None], results: tuple[str, ...], steady: Mapping[str, Array],
              feeds: Mapping[str, Array]) -> Laid | None:  # fmt: skip
        """Make the replay of such runs, if it is worth it; how they are laid out."""
        steps = [step for step in told if step is not None]
        if len(steps) < len(told) or native_steps(steps) < 2:
            return None
        from polyconv.models.laying import laid_out  # here, as who finds runs laid out needs none of it

        given = {name: lies(a) for name, a in feeds.items()}
        with suppress(MemoryError):  # runs by steps free as they go
            laid = laid_out(steps, results, steady, given, self._switched(feeds))
            self._keep(self._key(results, feeds), Replay(laid, self._arena()))
            return laid
        return None

    def adopt(self, replay: Replay) -> None:
        """Keep a replay that was made elsewhere."""
        self._keep(None, replay)

    def _arena(self) -> Arena:
        """One of a replay in which nobody runs now: where threads run at once, they come to learn in several."""
        found = list(dict.fromkeys(replay.arena for _, replay in reversed(self._replays)))
        idle = next((arena for arena in found if not arena.lock.locked()), None)
        return idle or (Arena(MOST_BYTES) if len(found) < _MOST_ARENAS else found[-1])

    def _key(self, results: tuple[str, ...], feeds: Mapping[str, Array]) -> object:
        """What runs that are alike have in common."""
        lie = [(name, a.shape, a.strides, a.dtype) for name, a in sorted(feeds.items())]
        return results, context(), lie, [a.item() for a in self._switched(feeds).values()]

    def _switched(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The switches that are one number, as they are now."""
        return {name: np.array(feeds[name]) for name in self._switches if feeds[name].size == 1}

    def _keep(self, key: object, replay: Replay) -> None:
        """Have a new replay be the last one to go; runs like those of one that goes are met anew."""
        with self._lock:
            rows = [(key, replay), *reversed(self._replays)]
            count = kept_count((each.table_bytes for _, each in rows), _MOST_REPLAYS, _MOST_TABLES)
            kept, parts = rows[:1], _parts(replay)
            for at, other in enumerate(rows[1:], 1):
                more = parts | _parts(other[1])
                if at < count and sum(more.values()) <= MOST_BYTES:
                    kept.append(other)
                    parts = more
                else:
                    self._met = [met for met in self._met if met != other[0]]
            self._replays = kept[::-1]

    def forget(self, replay: Replay) -> None:
        """Let a replay go whose host makes other extents each time."""
        with self._lock:
            self._replays = [other for other in self._replays if other[1] is not replay]


def _parts(replay: Replay) -> dict[int, int]:
    """Bytes of what a replay holds, by what tells it from what others hold."""
    return {id(part): part.nbytes for part in replay.parts}
