"""A hash that is found once: tables look problems and situations up many times for one plan."""

from __future__ import annotations

__all__ = ["Hashed"]


class Hashed:
    """Base of a frozen dataclass with slots, whose ``__hash__`` is this one: of all fields, and not pickled."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            pass
        found = hash(tuple([getattr(self, name) for name in self.__slots__]))
        object.__setattr__(self, "_hash", found)
        return found
