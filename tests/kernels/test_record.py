"""Records of words: what fills them is what generated code reads, and what does not fit is refused."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from polyconv.kernels.compile import link, object_code
from polyconv.kernels.language import INT, Buffer, Module
from polyconv.kernels.record import (
    Bits,
    Function,
    Functions,
    Link,
    Memory,
    Record,
    Span,
    Table,
    Word,
    at_once,
    filled,
    word_count,
    words_of,
)
from polyconv.kernels.signature import Address, Int, Signature, memory_of
from polyconv.target import host_target


class Put(Signature):
    """A number and where it goes."""

    target: Buffer
    number: Int


class Look(Signature):
    """Words to read, and where to write what they say."""

    words: Buffer
    target: Buffer


class Pair(Record):
    """Two numbers."""

    low: Word
    high: Word


class More(Pair):
    """One more."""

    top: Word


class Whole(Record):
    """Every kind of word."""

    first: Word
    pair: Pair
    numbers: Memory
    put: Function[Put]
    several: Functions[Put]
    pairs: Table[Pair]
    more: Link[More]
    either: Function[Put | Look]
    last: Word


class Lanes(Record):
    """Some lanes, and others."""

    pair: Pair
    bits: Bits
    last: Word


PUT = Address(1 << 20, Put)
LOOK = Address(1 << 21, Look)


def whole(**others: Any) -> Whole:
    values: dict[str, Any] = {
        "first": 1, "pair": Pair(2, 3), "numbers": np.array([40, 41]), "put": PUT, "several": [PUT, None],
        "pairs": [Pair(5, 6), Pair(7, 8)], "more": More(9, 10, 11), "either": LOOK, "last": 12,
    }  # fmt: skip
    return Whole(**(values | others))


def test_words_stand_in_the_order_of_the_declaration() -> None:
    """Inherited ones first, those of a record within in its place; two for what lies elsewhere."""
    keep: list[Any] = []
    numbers = np.array([40, 41])
    table = filled(whole(numbers=numbers), keep).tolist()
    assert len(table) == word_count(Whole) == 16
    assert (*table[:3], table[-1]) == (1, 2, 3, 12)
    assert table[3:5] == [numbers.ctypes.data, numbers.nbytes]
    assert table[5:7] == [PUT, 0]
    assert table[13:15] == [LOOK, 0]

    def there(place: int) -> list[int]:
        address, size = table[place : place + 2]
        return [*(ctypes.c_int64 * (size // 8)).from_address(address)]

    assert there(7) == [PUT, 0, 0, 0]
    assert there(9) == [5, 6, 7, 8]
    assert there(11) == [9, 10, 11]
    assert numbers in keep
    assert words_of(Pair(1, 2), [6, 7], More(3, 4, 5), keep=[]) == [1, 2, 6, 7, 3, 4, 5]


def test_memory_without_an_array() -> None:
    assert filled(whole(numbers=Span(64, 8)), [])[3:5].tolist() == [64, 8]
    keep: list[Any] = []
    address, size = filled(whole(numbers=[7, -8]), keep)[3:5].tolist()
    assert [*(ctypes.c_int64 * (size // 8)).from_address(address)] == [7, -8]


@pytest.mark.parametrize(("name", "value"), [
    ("first", 1.0), ("first", None), ("first", np.ones(2)), ("pair", 2), ("pair", More(1, 2, 3)), ("numbers", 64),
    ("numbers", [1.5]), ("put", 64), ("put", LOOK), ("several", [LOOK]), ("several", [64]), ("pairs", [More(1, 2, 3)]),
    ("pairs", [(1, 2)]), ("more", Pair(1, 2)), ("either", Address(64, Signature)), ("last", "12"),
])  # fmt: skip
def test_a_value_of_another_kind_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} of Whole"):
        filled(whole(**{name: value}), [])


def test_a_word_that_is_missing_or_unknown_is_refused() -> None:
    with pytest.raises(TypeError, match="high"):
        Pair(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="middle"):
        Pair(1, 2, middle=3)  # type: ignore[call-arg]


def test_a_word_that_does_not_exist_cannot_be_read() -> None:
    k = Module()
    with k.function("look", Look) as given, pytest.raises(AttributeError, match="Pair has no middle; it has low, high"):
        print(Pair.read(k, given.words).middle)  # type: ignore[attr-defined]


def test_a_kind_of_word_that_does_not_exist_is_refused() -> None:
    class Wrong(Record):
        size: float

    with pytest.raises(TypeError, match="size of Wrong"):
        word_count(Wrong)


def test_a_function_is_called_with_what_its_word_says() -> None:
    k = Module()
    with k.function("look", Look) as given:
        w = Whole.read(k, given.words)
        k.call(w.put, Put(given.target, w.first))
        k.call(w.either, Look(given.words, given.target))
        k.call(w.several.at(w.first), Put(given.target, 0))
        with pytest.raises(TypeError, match="takes Put is called with Look"):
            k.call(w.put, Look(given.words, given.target))  # type: ignore[arg-type]


@pytest.mark.parametrize("check", [False, True])
def test_generated_code_reads_what_was_filled(check: bool) -> None:
    """Every kind of word, through a compiled function; calls go to functions of the same unit."""
    k = Module(check=check)
    with k.function("put", Put) as given:
        k.store(given.number, given.target)
    with k.function("look", Look) as given:
        w, to = Whole.read(k, given.words), given.target
        numbers = w.numbers
        for at, value in enumerate((
            w.first, w.pair.low, w.pair.high, k.word(numbers, 1), w.pairs.at(1).low, w.pairs.at(w.first).high,
            w.more.low, w.more.top, w.last, k.word(memory_of(w.pair)),
        )):  # fmt: skip
            k.store(value, to + 8 * at)
        k.call(w.put, Put(to + 80, 13))
        k.call(w.several.at(w.first - 1), Put(to + 88, 14))
        k.call(w.several.at_word(w.first - 1), Put(to + 96, 15))
    target = host_target()
    found = link(object_code(k.text(target.triple), target), ("put", "look"))
    keep: list[Any] = []
    put = Address(found["put"], Put)
    table = filled(whole(put=put, several=[put]), keep)
    if check:  # functions carry no extent, buffers do
        table[6] = 8
    out, cell = np.zeros(13, np.int64), np.zeros(136, np.int64)
    word, size = ctypes.c_void_p, ctypes.c_int64
    kinds = [word, size, size, word, size, size, word] if check else [word, word]
    ends = (table.nbytes, 0, out.ctypes.data, out.nbytes, 0, cell.ctypes.data) if check else (out.ctypes.data,)
    ctypes.CFUNCTYPE(None, *kinds)(found["look"])(table.ctypes.data, *ends)
    assert out.tolist() == [1, 2, 3, 41, 7, 8, 9, 11, 12, 2, 13, 14, 15]
    assert not cell.any()


def test_words_loaded_at_once() -> None:
    """Before memory changes, each once however often it is named; bits are the lowest of their word."""
    k = Module()
    with k.function("look", Look) as given:
        lanes = at_once(Lanes.read(k, given.words))
        k.store(k.constant(INT, 9), given.words)
        for at, value in enumerate((lanes.pair.low, lanes.pair.low, lanes.pair.high, lanes.last)):
            k.store(value, given.target + 8 * at)
        k.store(k.cast("zext", lanes.bits, INT), given.target + 32)
    target = host_target()
    text = k.text(target.triple)
    assert text.count("load i64") == 3
    assert text.count("load i32") == 1
    table, out = filled(Lanes(Pair(1, 2), 5 + (1 << 32), 3), []), np.zeros(5, np.int64)
    look = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(link(object_code(text, target), ("look",))["look"])
    look(table.ctypes.data, out.ctypes.data)
    assert out.tolist() == [1, 1, 2, 3, 5]
    assert table[0] == 9


def test_only_what_lies_in_memory_is_loaded_at_once() -> None:
    with pytest.raises(TypeError, match=r"Pair\(low=1, high=2\) does not lie in memory"):
        at_once(Pair(1, 2))


def test_a_function_that_a_table_lacks_is_not_called_in_check_mode() -> None:
    class Few(Record):
        several: Functions[Put]

    def build(k: Module) -> None:
        with k.function("run", Look) as given:
            few = Few.read(k, given.words)
            k.call(few.several.at(1), Put(given.target, k.constant(INT, 7)))

    k = Module(check=True, first_site=5)
    build(k)
    target = host_target()
    found = link(object_code(k.text(target.triple), target), ("run",))
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(found["run"])
    keep: list[Any] = []
    table = filled(Few([None, None]), keep)
    out, cell = np.zeros(1, np.int64), np.zeros(136, np.int64)
    run(table.ctypes.data, table.nbytes, 0, out.ctypes.data, out.nbytes, 0, cell.ctypes.data)
    assert out[0] == 0 and "call of a function that its table lacks" in k.site_names[cell[0] - 5]
