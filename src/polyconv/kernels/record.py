"""Tables of 64-bit words that generated code reads: one declaration for who reads and who fills them.

A ``Record`` names its words.  Generated code reads them where they lie; a program fills them from values.

    class Walk(Record):
        first: Word
        tile: Function[Tile]

    walk = Walk.read(k, place)   # in generated code: walk.first is a Value, k.call(walk.tile, Tile(...))
    filled(Walk(first=3, tile=address), keep)  # for a program: its words in memory

So mypy sees a word that is missing or of another kind, and filling refuses what it does not see.  Records stand in
records as they are, and their words follow each other; kinds of words are in ``word.py``.  It must know nothing of what
the words mean.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.language import Module
from polyconv.kernels.signature import Declared, Placed, View, altered
from polyconv.kernels.values import Buffer, Value
from polyconv.kernels.word import Bits, Callees, Function, Functions, Kind, Memory, Span, Word, put_elsewhere, words

__all__ = [
    "Bits", "Callees", "Counted", "CountedRows", "Function", "Functions", "Link", "Memory", "Record", "Rows", "Span",
    "Table", "Word", "altered", "at_once", "counted_words", "filled", "word_count", "words", "words_of",
]  # fmt: skip

R = TypeVar("R", bound="Record")


class Rows(Generic[R]):
    """Records in memory, one after another."""

    def __init__(self, k: Module, memory: Buffer, record: type[R]) -> None:
        self.k, self.memory, self.record = k, memory, record

    def __add__(self, step: Value) -> Rows[R]:
        """Those that begin so many bytes further."""
        return Rows(self.k, self.memory + step, self.record)

    def at(self, number: Value | int) -> R:
        """The record of a number."""
        return self.record.at(self.k, self.memory, number)


class Table(Generic[R]):
    """An array of records."""

    size = 2

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> Rows[R]: ...
        def __set__(self, instance: object, value: Sequence[R]) -> None: ...

    def __init__(self, record: type[R]) -> None:
        self.record = record

    def read(self, k: Module, memory: Buffer, place: int) -> Rows[R]:
        """The records."""
        return Rows(k, k.buffer(memory, place), self.record)

    def put(self, table: list[int], value: Sequence[R], keep: list[Any]) -> None:
        """Append where the records lie."""
        rows: list[int] = []
        _put_rows(rows, self.record, value, keep)
        put_elsewhere(table, rows, keep)


class CountedRows(Generic[R]):
    """A count, and so many records; and more such tables behind it."""

    def __init__(self, k: Module, memory: Buffer, record: type[R]) -> None:
        self.k, self.memory, self.record = k, memory, record

    def __add__(self, step: Value) -> CountedRows[R]:
        """The table that begins so many bytes further."""
        return CountedRows(self.k, self.memory + step, self.record)

    @property
    def count(self) -> Value:
        """How many records there are."""
        return self.k.word(self.memory)

    def at(self, number: Value) -> R:
        """The record of a number."""
        return self.record.at(self.k, self.memory + 8, number)


class Counted(Generic[R]):
    """Tables of records, before each how many it has; all are as long as the longest."""

    size = 2

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> CountedRows[R]: ...
        def __set__(self, instance: object, value: Sequence[Sequence[R]]) -> None: ...

    def __init__(self, record: type[R]) -> None:
        self.record = record

    def read(self, k: Module, memory: Buffer, place: int) -> CountedRows[R]:
        """The first table."""
        return CountedRows(k, k.buffer(memory, place), self.record)

    def put(self, table: list[int], value: Sequence[Sequence[R]], keep: list[Any]) -> None:
        """Append where the tables lie."""
        length, tables = counted_words(self.record, value), list[int]()
        for rows in value:
            end = len(tables) + length
            tables.append(len(rows))
            _put_rows(tables, self.record, rows, keep)
            tables += [0] * (end - len(tables))
        put_elsewhere(table, tables, keep)


def counted_words(record: type[R], tables: Sequence[Sequence[R]]) -> int:
    """Words of each of some tables that stand behind each other with their counts."""
    return 1 + word_count(record) * max(map(len, tables), default=0)


class Link(Generic[R]):
    """A record that lies elsewhere."""

    size = 2

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: Any) -> R: ...
        def __set__(self, instance: object, value: R) -> None: ...

    def __init__(self, record: type[R]) -> None:
        self.record = record

    def read(self, k: Module, memory: Buffer, place: int) -> R:
        """The record."""
        return self.record.read(k, k.buffer(memory, place))

    def put(self, table: list[int], value: R, keep: list[Any]) -> None:
        """Append where the record lies."""
        own: list[int] = []
        _put(own, self.record, value, keep)
        put_elsewhere(table, own, keep)


class _Nested:
    """A record whose words stand among those of another."""

    def __init__(self, record: type[Record]) -> None:
        self.record, self.size = record, word_count(record)

    def read(self, k: Module, memory: Buffer, place: int) -> Record:
        return self.record.read(k, memory + 8 * place)

    def put(self, table: list[int], value: Record, keep: list[Any]) -> None:
        _put(table, self.record, value, keep)


@dataclass_transform(eq_default=False)
class Record(Declared, Placed):
    """Words by name; subclasses declare them, and those they inherit come first."""

    @classmethod
    def read(cls, k: Module, memory: Buffer) -> Self:
        """The record that lies at a place, in generated code: its words are read where they are named."""
        return cast(Self, _Reader(cls, k, memory))

    @classmethod
    def at(cls, k: Module, memory: Buffer, number: Value | int) -> Self:
        """One of several records that follow each other."""
        return cls.read(k, memory + number * (8 * word_count(cls)))


class _Reader(View):
    """A record in memory: every attribute emits the loads of its words."""

    def __getattr__(self, name: str) -> Any:
        assert issubclass(self._kind, Record)
        words = _layout(self._kind)
        if name not in words:
            raise AttributeError(f"{self._kind.__name__} has no {name}; it has {', '.join(words)}")
        place, kind = words[name]
        return kind.read(self._k, self._memory, place)


def at_once(record: R) -> R:
    """A record that lies in memory with all its words loaded here, in their order, not where they are named.

    Raises
    ------
    TypeError
        If it does not lie in memory.
    """
    if not isinstance(record, _Reader):
        raise TypeError(f"{record!r} does not lie in memory")
    values: dict[str, Any] = {}
    for name, (_, kind) in _layout(record._kind).items():
        value = getattr(record, name)
        values[name] = at_once(value) if isinstance(kind, _Nested) else value
    return cast(R, record._kind(**values))


def word_count(record: type[Record]) -> int:
    """Words of a record."""
    return sum(kind.size for _, kind in _layout(record).values())


_LAYOUTS: dict[type[Record], dict[str, tuple[int, Kind]]] = {}


def _layout(record: type[Record]) -> dict[str, tuple[int, Kind]]:
    """Place and kind of every word; found when first needed, as a record may link to one that is declared later."""
    found = _LAYOUTS.get(record)
    if found is None:
        found, place = {}, 0
        for name, hint in get_type_hints(record).items():
            found[name] = place, _kind(record, name, hint)
            place += found[name][1].size
        _LAYOUTS[record] = found
    return found


def _kind(record: type[Record], name: str, hint: Any) -> Kind:
    plain: dict[Any, Kind] = {Word: Word(), Bits: Bits(), Memory: Memory()}
    if hint in plain:
        return plain[hint]
    if isinstance(hint, type) and issubclass(hint, Record):
        return _Nested(hint)
    origin, (of, *_) = get_origin(hint), get_args(hint) or (None,)
    if origin in (Function, Functions):
        return cast(Kind, origin(get_args(of) if get_origin(of) in (Union, types.UnionType) else (of,)))
    if origin in (Table, Counted, Link):
        return cast(Kind, origin(of))
    raise TypeError(f"{name} of {record.__name__} is a {hint}, which is no kind of word")


def _put(table: list[int], declared: type[Record], record: Record, keep: list[Any]) -> None:
    """Append the words of a record."""
    if type(record) is not declared:
        raise TypeError(f"a {declared.__name__}")
    try:
        for value_of, put in _fillers(declared):
            put(table, value_of(record), keep)
    except TypeError:
        _say_which(declared, record)
        raise


def _put_rows(table: list[int], declared: type[Record], records: Sequence[Record], keep: list[Any]) -> None:
    """Append the words of records that follow each other: of integers alone at once, for tables are long."""
    values_of, put = _fillers(declared)[0]
    if put is not _put_integers or len(_fillers(declared)) > 1 or any([type(each) is not declared for each in records]):
        for record in records:
            _put(table, declared, record, keep)
    else:
        table += itertools.chain.from_iterable(map(values_of, records))


def _say_which(declared: type[Record], record: Record) -> None:
    """Raise a TypeError that names the word whose value does not fit."""
    for name, (_, kind) in _layout(declared).items():
        value = getattr(record, name)
        try:
            kind.put([], value, [])
        except TypeError as error:
            raise TypeError(f"{name} of {declared.__name__} is {error}, not {value!r}") from None


_Put = Callable[[list[int], Any, list[Any]], None]
_FILLERS: dict[type[Record], list[tuple[operator.attrgetter[Any], _Put]]] = {}


def _fillers(record: type[Record]) -> list[tuple[operator.attrgetter[Any], _Put]]:
    """How to get values of a record, and to append their words: integers that follow each other at once."""
    found = _FILLERS.get(record)
    if found is None:
        found = []
        for are_integers, some in itertools.groupby(_layout(record).items(), lambda word: type(word[1][1]) is Word):
            kinds = {name: kind for name, (_, kind) in some}
            if are_integers and len(kinds) > 1:
                found.append((operator.attrgetter(*kinds), _put_integers))
            else:
                found += [(operator.attrgetter(name), kind.put) for name, kind in kinds.items()]
        _FILLERS[record] = found
    return found


def _put_integers(table: list[int], values: tuple[int, ...], keep: list[Any]) -> None:
    """Append integers; if one is none, the table that is made of all refuses it."""
    table += values


def filled(record: Record, keep: list[Any]) -> NDArray[np.int64]:
    """The words of a record; what they point to is kept alive in ``keep``, and so are they.

    Raises
    ------
    TypeError
        If a value is not what its word takes.
    """
    table: list[int] = []
    _put(table, type(record), record, keep)
    try:
        made = words(table)
    except TypeError:
        _say_which(type(record), record)
        raise
    keep.append(made)
    return made


def words_of(*parts: Record | list[int], keep: list[Any]) -> list[int]:
    """The words of records and integers that follow each other, for a table that has others beside them.

    What the words point to is kept alive in ``keep``.
    """
    table: list[int] = []
    for part in parts:
        if isinstance(part, list):
            table += part
        else:
            _put(table, type(part), part, keep)
    return table
