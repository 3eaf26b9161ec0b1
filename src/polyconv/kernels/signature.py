"""What functions of generated code take: one declaration for a function's body and for every call of it.

A ``Signature`` names the arguments: each is a ``Buffer``, an ``Int``, or a record that lies in memory.  Its instances
are the arguments themselves: those that a body was given, and those of a call.

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

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, dataclass_transform, get_type_hints

from polyconv.dataclass import dataclass
from polyconv.kernels.values import Buffer, Value

if TYPE_CHECKING:
    from polyconv.kernels.language import Module

__all__ = [
    "Address", "Callee", "Declared", "Int", "Placed", "Signature", "View", "altered", "arguments_of", "memory_of",
    "pointed",
]  # fmt: skip


class Int:
    """An argument that is a 64-bit integer: a call gives a ``Value`` or a number, a body gets a ``Value``."""

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> Value: ...
        def __set__(self, instance: object, value: Value | int) -> None: ...


class Declared:
    """Values by name, as a subclass declares them, those that it inherits first: a dataclass in what it does.

    Its ``__init__`` is made with the first instance: a process that finds its kernels on disk meets few of the records
    and signatures that it imports.  ``dataclass`` would take five times as long to make one.
    """

    def __init_subclass__(cls) -> None:
        cls.__init__ = _first_init  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """``Pair(low=1, high=2)``."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def _declared(cls: type[Declared]) -> dict[str, Any]:
    """Names of a class's values, and what they are declared as."""
    return {
        name: hint for base in reversed(cls.__mro__) if base is not Declared
        for name, hint in vars(base).get("__annotations__", {}).items()
    }  # fmt: skip


def _first_init(self: Any, *values: Any, **named: Any) -> None:
    """Give the class an ``__init__`` with an argument for each of its values, then make this instance."""
    cls = type(self)
    made: dict[str, Any] = {}
    lines = (f"\n    self.{name} = {name}" for name in _declared(cls))
    exec(f"def __init__({', '.join(('self', *_declared(cls)))}):{''.join(lines) or ' pass'}", made)
    made["__init__"].__qualname__ = f"{cls.__name__}.__init__"  # as errors call it
    cls.__init__ = made["__init__"]
    self.__init__(*values, **named)


D = TypeVar("D", bound=Declared)


def altered(declared: D, **values: Any) -> D:
    """A copy with other values for some names.

    Raises
    ------
    TypeError
        If it has no value of such a name.
    """
    made = object.__new__(type(declared))
    own = vars(made)
    own.update(vars(declared), **values)
    if len(own) != len(vars(declared)):
        raise TypeError(f"{type(declared).__name__} has no {', '.join(own.keys() - vars(declared).keys())}")
    return made


class Placed(ABC):
    """What lies in memory and is read there; a body gets it as ``View``, as which calls give it."""

    @classmethod
    @abstractmethod
    def read(cls, k: Module, memory: Buffer) -> Self:
        """What lies at a place."""


class View:
    """Something ``Placed`` where it lies."""

    def __init__(self, kind: type[Placed], k: Module, memory: Buffer) -> None:
        self._kind, self._k, self._memory = kind, k, memory


def memory_of(placed: Placed) -> Buffer:
    """Where something lies that was read from memory.

    Raises
    ------
    TypeError
        If it was not.
    """
    if not isinstance(placed, View):
        raise TypeError(f"{placed!r} does not lie in memory")
    return placed._memory


@dataclass_transform(eq_default=False)
class Signature(Declared):
    """Arguments of a function; subclasses declare them, and those they inherit come first."""


_ARGUMENTS: dict[type[Signature], dict[str, type]] = {}


def arguments_of(signature: type[Signature]) -> dict[str, type]:
    """Names of a signature's arguments and what they are: ``Int``, ``Buffer`` or something ``Placed``.

    Raises
    ------
    TypeError
        If an argument is declared as anything else.
    """
    if signature not in _ARGUMENTS:
        hints = get_type_hints(signature)
        for name, hint in hints.items():
            if hint not in (Buffer, Int) and not (isinstance(hint, type) and issubclass(hint, Placed)):
                raise TypeError(
                    f"argument {name} of {signature.__name__} is a {hint}; declare it as Buffer, Int or a record"
                )
        _ARGUMENTS[signature] = hints
    return _ARGUMENTS[signature]


def pointed(kind: type, value: Any) -> Buffer | None:
    """The memory of an argument of a kind, or None if the value is of another."""
    if kind is Buffer:
        return value if isinstance(value, Buffer) else None
    return value._memory if isinstance(value, View) and value._kind is kind else None


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
