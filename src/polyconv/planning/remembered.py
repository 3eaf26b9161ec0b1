"""Choices and forms by situation, which one process finds and the next one need not find again.

Turns them into bytes and back.  The one idea: a situation says all that planning may depend on, so in an equal one the
same code finds the same.  What was measured is no part of it: that is wisdom's.  It must not know which situations
belong together, nor where bytes are kept.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from polyconv.lowering.situation import Situation
from polyconv.machine.profile import Profile
from polyconv.target import Target

__all__ = ["Remembered", "remembered", "remembering"]

F = TypeVar("F")

_MOST = 1024
"""Rows that are left: those of a network at a few sizes."""
_PROFILE, _TARGET = "profile", "target"
"""What stands in bytes for the profile and the target of every situation: where they are read it is those in force."""


class Remembered:
    """What was found, by what was asked and the situation.

    Parameters
    ----------
    before : dict
        What earlier processes found.
    """

    def __init__(self, before: dict[tuple[str, Situation], Any] | None = None) -> None:
        self._before, self._used = before or {}, dict[tuple[str, Situation], Any]()
        self._new = 0

    def found(self, what: str, s: Situation, find: Callable[[Situation], F]) -> F:
        """What is remembered, else what ``find`` finds."""
        row = what, s
        made = self._used.get(row)
        if made is None:
            known = self._before.get(row)
            self._new += known is None
            if len(self._used) >= 2 * _MOST:  # another thread may read the table, so it is not changed
                self._used = dict(list(self._used.copy().items())[-_MOST:])
            self._used[row] = made = find(s) if known is None else known
        return made

    @property
    def is_worth_leaving(self) -> bool:
        """Whether half as much was found as is left already: where inputs come in ever new sizes, that is seldom."""
        return 2 * self._new > len(self._before)

    def left(self, profile: Profile, target: Target) -> bytes:
        """Bytes for the next process, of what was found for a profile and a target."""
        used = self._used.copy()
        self._before = rows = {**self._before, **used} if len(self._before) + len(used) <= _MOST else used
        self._new = 0
        memory = io.BytesIO()
        pickler = pickle.Pickler(memory, pickle.HIGHEST_PROTOCOL)
        kinds = {Profile: _PROFILE, Target: _TARGET}
        pickler.persistent_id = lambda thing: kinds.get(type(thing))  # type: ignore[method-assign]
        pickler.dump({row: f for row, f in rows.items() if (row[1].profile, row[1].target) == (profile, target)})
        return memory.getvalue()

    @classmethod
    def of(cls, data: bytes, profile: Profile, target: Target) -> Remembered:
        """What bytes say that were left for this profile and target.

        Raises
        ------
        TypeError
            If they hold no such table; bytes that hold nothing raise what ``pickle`` does.
        """
        unpickler = pickle.Unpickler(io.BytesIO(data))
        unpickler.persistent_load = {_PROFILE: profile, _TARGET: target}.__getitem__  # type: ignore[method-assign]
        rows = unpickler.load()
        if not isinstance(rows, dict):
            raise TypeError(f"{type(rows).__name__} is no table of what was found")
        return cls(rows)


_in_force: ContextVar[Remembered | None] = ContextVar("what planning remembers", default=None)


@contextmanager
def remembering(memory: Remembered) -> Iterator[None]:
    """Let planning use a memory, and tell it what it finds."""
    token = _in_force.set(memory)
    try:
        yield
    finally:
        _in_force.reset(token)


def remembered(what: str, s: Situation, find: Callable[[Situation], F]) -> F:
    """What the memory in force knows, else what ``find`` finds."""
    memory = _in_force.get()
    return find(s) if memory is None else memory.found(what, s, find)
