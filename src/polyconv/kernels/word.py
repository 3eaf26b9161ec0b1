"""Kinds of words in a table: how generated code reads each, and how each is filled from a value.

An integer is one word; memory and functions are two: an address, and the bytes that lie there.  ``pointing`` tells
which words of which tables are addresses, for whoever wants to have these tables elsewhere.  It must not know records.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.kernels.address import address
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Address, Callee, Signature
from polyconv.kernels.values import Buffer, Type, Value

__all__ = [
    "Bits", "Callees", "Function", "Functions", "Kind", "Memory", "Pointing", "Span", "Word", "pointing",
    "put_elsewhere", "words",
]  # fmt: skip

S = TypeVar("S", bound=Signature)


class Span(NamedTuple):
    """Memory that no array stands for: an address, and how many bytes there are."""

    address: int
    size: int


@dataclass(slots=True, eq=False)
class Pointing:
    """Tables that were made while somebody asked which of their words are addresses.

    Parameters
    ----------
    tables : dict
        By address: the table, and its words that are addresses: which, of what, and how many bytes lie there; of a
        function -1.
    """

    tables: dict[int, tuple[Any, list[tuple[int, int, int]]]] = field(default_factory=dict)
    _growing: dict[int, tuple[list[int], list[tuple[int, int, int]]]] = field(default_factory=dict)

    def points(self, table: list[int], address: int, size: int) -> None:
        """Be told that the next word of a growing table is an address."""
        _, found = self._growing.setdefault(id(table), (table, []))  # which is held, so that its id is no other's
        found.append((len(table), address, size))

    def lies(self, table: list[int], address: int, made: Any) -> None:
        """Be told where a table that has grown lies."""
        _, found = self._growing.pop(id(table), (table, []))
        self.tables[address] = made, found


_TOLD: list[Pointing] = []


@contextmanager
def pointing(told: Pointing) -> Iterator[None]:
    """Have it told of the tables that this process makes meanwhile, in whatever thread."""
    _TOLD.append(told)
    try:
        yield
    finally:
        _TOLD.remove(told)
        told._growing.clear()  # of tables that were never finished


class Kind(Protocol):
    """How words of a kind are read, and filled from a value."""

    size: int

    def read(self, k: Module, memory: Buffer, place: int) -> Any:
        """What stands ``place`` words further on."""

    def put(self, table: list[int], value: Any, keep: list[Any]) -> None:
        """Append the words of a value, and keep alive what they point to."""


class Word:
    """An integer."""

    size = 1

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> Value: ...
        def __set__(self, instance: object, value: SupportsIndex) -> None: ...

    def read(self, k: Module, memory: Buffer, place: int) -> Value:
        """The integer."""
        return k.word(memory, place)

    def put(self, table: list[int], value: SupportsIndex, keep: list[Any]) -> None:
        """Append it."""
        table.append(operator.index(value))


class Bits:
    """Which of up to 32 lanes count, a bit for each."""

    size = 1

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> Value: ...
        def __set__(self, instance: object, value: SupportsIndex) -> None: ...

    def read(self, k: Module, memory: Buffer, place: int) -> Value:
        """The bits, as an integer of 32."""
        return k.load(Type("i32"), memory + 8 * place)

    def put(self, table: list[int], value: SupportsIndex, keep: list[Any]) -> None:
        """Append the word that they are the lowest bits of."""
        table.append(operator.index(value))


class Memory:
    """An array of anything: filled from one, from a list of words, or from where it lies."""

    size = 2

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> Buffer: ...
        def __set__(self, instance: object, value: NDArray[Any] | list[int] | Span) -> None: ...

    def read(self, k: Module, memory: Buffer, place: int) -> Buffer:
        """The array's memory."""
        return k.buffer(memory, place)

    def put(self, table: list[int], value: NDArray[Any] | list[int] | Span, keep: list[Any]) -> None:
        """Append address and bytes."""
        if type(value) is list:
            put_elsewhere(table, value, keep)
        elif isinstance(value, np.ndarray):
            keep.append(value)
            _put_address(table, address(value), value.nbytes)
        elif isinstance(value, Span):
            _put_address(table, *value)
        else:
            raise TypeError("an array, a list of integers or a Span")


class Function(Generic[S]):
    """A function of generated code: filled from its address, or None where nobody calls it."""

    size = 2

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> Callee[S]: ...
        def __set__(self, instance: object, value: Address[S] | None) -> None: ...

    def __init__(self, signatures: tuple[type[S], ...]) -> None:
        self.signatures = signatures

    def read(self, k: Module, memory: Buffer, place: int) -> Callee[S]:
        """The function, to be called."""
        return Callee(k.buffer(memory, place), self.signatures)

    def put(self, table: list[int], value: Address[S] | None, keep: list[Any]) -> None:
        """Append the address."""
        if value is not None and (not isinstance(value, Address) or value.signature not in self.signatures):
            raise TypeError(f"the address of a {' or '.join(s.__name__ for s in self.signatures)}")
        if value is None:
            table += (0, 0)
        else:
            _tell(table, value, -1)
            table += (value, 0)


class Callees(Generic[S]):
    """Functions in memory, one after another."""

    def __init__(self, k: Module, memory: Buffer, signatures: tuple[type[S], ...]) -> None:
        self.k, self.memory, self.signatures = k, memory, signatures

    def at(self, number: Value | int) -> Callee[S]:
        """The function of a number."""
        return Callee(self.k.buffer(self.memory + number * 16), self.signatures)

    def at_word(self, word: Value) -> Callee[S]:
        """The function that begins with a word."""
        return Callee(self.k.buffer(self.memory, word), self.signatures)


class Functions(Generic[S]):
    """A table of functions; those that nobody calls may be None."""

    size = 2

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> Callees[S]: ...
        def __set__(self, instance: object, value: Sequence[Address[S] | None]) -> None: ...

    def __init__(self, signatures: tuple[type[S], ...]) -> None:
        self.one = Function(signatures)

    def read(self, k: Module, memory: Buffer, place: int) -> Callees[S]:
        """The table."""
        return Callees(k, k.buffer(memory, place), self.one.signatures)

    def put(self, table: list[int], value: Sequence[Address[S] | None], keep: list[Any]) -> None:
        """Append where a table of the addresses lies."""
        functions: list[int] = []
        for function in value:
            if function is None:  # most are
                functions += (0, 0)
            else:
                self.one.put(functions, function, keep)
        put_elsewhere(table, functions, keep)


def put_elsewhere(table: list[int], values: list[int], keep: list[Any]) -> None:
    """Append where a table of its own lies, without the time that NumPy takes to say where an array lies."""
    try:
        made = array("q", values or [0])
    except OverflowError:  # an address in the upper half
        return Memory().put(table, words(values), keep)
    address, count = made.buffer_info()
    keep.append(memoryview(made))
    _tell_place(values, address, made)
    _put_address(table, address, 8 * count)


def _put_address(table: list[int], address: int, size: int) -> None:
    """Append an address and the bytes that lie there."""
    _tell(table, address, size)
    table += (address, size)


def _tell(table: list[int], address: int, size: int) -> None:
    """Say that a table's next word is an address; see ``Pointing``."""
    for told in _TOLD:
        told.points(table, address, size)


def _tell_place(values: list[int], address: int, made: Any) -> None:
    """Say where the table of some words lies."""
    for told in _TOLD:
        told.lies(values, address, made)


def words(values: list[int]) -> NDArray[np.int64]:
    """A table of 64-bit words."""
    try:
        made = np.frombuffer(array("q", values or [0]), np.int64)
    except OverflowError:  # an address in the upper half
        made = np.array([v % (1 << 64) for v in values], np.uint64).view(np.int64)
    _tell_place(values, address(made), made)
    return made
