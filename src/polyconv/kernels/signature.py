"""What functions of generated code take: one declaration for a function's body and for every call of it.

A ``Signature`` names the arguments, each a ``Buffer`` or an ``Int``.  Its instances are the arguments themselves: those
that a body was given, and those of a call.

    class Sum(Signature):
        numbers: Buffer
        count: Int

    with k.function("sum", Sum) as given:  # given.numbers, given.count
        ...
    k.call("sum", Sum(numbers, 4))

So mypy sees an argument that a call lacks, and ``Module.call`` refuses what it does not see.  It must know nothing of
how a call is spelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, dataclass_transform, get_type_hints

from polyconv.kernels.values import Buffer, Value

__all__ = ["Address", "Callee", "Int", "Signature", "arguments_of"]


class Int:
    """An argument that is a 64-bit integer: a call gives a ``Value`` or a number, a body gets a ``Value``."""

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> Value: ...
        def __set__(self, instance: object, value: Value | int) -> None: ...


@dataclass_transform()
class Signature:
    """Arguments of a function; subclasses declare them, and those they inherit come first.

    Raises
    ------
    TypeError
        If an argument is declared as anything but ``Buffer`` and ``Int``.
    """

    def __init_subclass__(cls) -> None:
        dataclass(cls)
        hints = get_type_hints(cls)
        for name, hint in hints.items():
            if hint not in (Buffer, Int):
                raise TypeError(f"argument {name} of {cls.__name__} is a {hint}; declare it as Buffer or Int")
        _ARGUMENTS[cls] = hints


_ARGUMENTS: dict[type[Signature], dict[str, type]] = {}


def arguments_of(signature: type[Signature]) -> dict[str, type]:
    """Names of a signature's arguments and what they are, ``Buffer`` or ``Int``."""
    return _ARGUMENTS[signature]


S = TypeVar("S", bound=Signature)
Taken = TypeVar("Taken", bound=Signature, covariant=True)


@dataclass(frozen=True, slots=True)
class Callee(Generic[S]):
    """A function whose address generated code has loaded from memory, and what it may take: mostly one signature."""

    place: Buffer
    signatures: tuple[type[S], ...]


class Address(int, Generic[Taken]):
    """Where a compiled function lies, and what it takes."""

    signature: type[Taken]

    def __new__(cls, address: int, signature: type[Taken]) -> Address[Taken]:
        """Say of an address what the function takes."""
        made = super().__new__(cls, address)
        made.signature = signature
        return made
