"""Frozen dataclasses that are made sooner: fields are the standard library's, methods are not compiled one by one.

``dataclasses.dataclass(frozen=True, slots=True)`` compiles eight functions a class, which takes 1.1 ms.  A session
imports 180 such classes, and a fifth of its start was that.  Here only ``__init__`` is compiled; what all classes do
alike they share.  ``dataclasses.fields``, ``replace`` and ``is_dataclass`` take these classes as any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_MISSING = dataclasses.MISSING


def _assigned(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _deleted(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _shown(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _pickled(cls: type) -> tuple[Callable[[Any], list[Any]], Callable[[Any, list[Any]], None]]:
    """What pickle keeps of an object, and how it is put back."""
    names, put = [f.name for f in dataclasses.fields(cls)], object.__setattr__

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def with_state(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            put(self, name, value)

    return state, with_state


def _compared(cls: type) -> tuple[Callable[[Any, object], bool], Callable[[Any], int]]:
    """Equality and hash by the fields that count."""
    names = [f.name for f in dataclasses.fields(cls) if f.compare]
    all_of: Callable[[Any], Any] = attrgetter(*names) if names else lambda self: ()

    def equal(self: Any, other: object) -> bool:
        return all_of(self) == all_of(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(all_of(self))

    return equal, hashed


class _Initialiser:
    """``__init__`` of a class until somebody looks at it or calls it: then it is compiled, and takes this one's place.

    A process makes no object of half of the classes that it imports, and compiling takes 0.2 ms a class.
    """

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: object, owner: type) -> Any:
        made = _initialiser(self._cls)
        self._cls.__init__ = made  # type: ignore[misc]
        return made if instance is None else made.__get__(instance, owner)


def _initialiser(cls: type) -> Callable[..., None]:
    """``__init__``: defaults and factories are names of its scope."""
    scope: dict[str, Any] = {"_put": object.__setattr__, "_missing": _MISSING}
    positional, named, body = list[str](), list[str](), list[str]()
    for f in dataclasses.fields(cls):
        value = f.name
        if f.default is not _MISSING:
            scope[f"_of_{f.name}"], default = f.default, f"=_of_{f.name}"
        elif f.default_factory is not _MISSING:
            scope[f"_of_{f.name}"], default = f.default_factory, "=_missing"
            value = f"_of_{f.name}() if {f.name} is _missing else {f.name}"
        else:
            default = ""
        if f.init:
            (named if f.kw_only else positional).append(f.name + default)
        elif default:
            value = f"_of_{f.name}" + "()" * (f.default is _MISSING)
        if f.init or default:
            body.append(f" _put(self, {f.name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    arguments = ", ".join(["self", *positional, *["*"] * bool(named), *named])
    exec(f"def __init__({arguments}):\n" + "\n".join(body or [" pass"]), scope)
    made: Callable[..., None] = scope["__init__"]
    return made


def _frozen(cls: type, *, slots: bool, eq: bool, repr: bool) -> type:
    own = dict(cls.__dict__)
    made: type = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    found: dict[str, Any] = {"__init__": _Initialiser(made), "__setattr__": _assigned, "__delattr__": _deleted}
    if repr:
        found["__repr__"] = _shown
    if eq:
        found["__eq__"], found["__hash__"] = _compared(made)
        if own.get("__hash__") is None and "__eq__" in own:  # Python took the hash away
            own.pop("__hash__", None)
    if slots:
        found["__getstate__"], found["__setstate__"] = _pickled(made)
    for name, function in found.items():
        if name not in own:
            setattr(made, name, function)
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, repr=True):
        """``dataclasses.dataclass`` with fewer options, sooner for frozen classes."""
        if not frozen:
            return dataclasses.dataclass(cls, slots=slots, eq=eq, repr=repr)

        def made(cls: type) -> type:
            return _frozen(cls, slots=slots, eq=eq, repr=repr)

        return made if cls is None else made(cls)
