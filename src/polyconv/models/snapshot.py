"""Laid out runs as bytes: what one process leaves, so that the next one neither plans, nor packs, nor fills tables.

The one idea: all that jobs read is memory, and of its words it is known which are addresses.  So the memory is left as
it is, and beside it where its addresses stand and what lies there: a byte of this same memory, or a function of a
kernel, by name.  Whoever reads it back puts new addresses in their places.  It must not know what the words mean.
"""

from __future__ import annotations

import ctypes
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.kernels.address import address
from polyconv.kernels.objects import found_again, functions_by_address
from polyconv.kernels.record import words
from polyconv.kernels.word import Pointing
from polyconv.models.graph import Array
from polyconv.models.kept_runs import About
from polyconv.models.laid import Laid
from polyconv.models.segment import ENGINE, Again, Segment
from polyconv.models.told import Told
from polyconv.operators.job import Job, Plan
from polyconv.operators.lying import Lies, lies
from polyconv.runtime.arrays import place
from polyconv.target import Target

__all__ = ["bytes_of", "laid_of"]

_LINE, _WORD = 64, 8
_HEAD = struct.Struct("<QQ48x")
"""A line: bytes of what is pickled, and of the memory that comes before it."""
_LEAST_ADDRESS, _MOST_ADDRESS = 1 << 41, 1 << 48
"""Between them lie the addresses of a process of 64 bits; counts and distances are less."""


class _Refused(Exception):
    """There is something that bytes cannot say."""


class _There(NamedTuple):
    """An array in the memory: where its bytes begin, and how it lies from there on."""

    begin: int
    lie: Lies


class _Left(NamedTuple):
    """A job: its steps as (function, words, bytes, items), and its other fields."""

    steps: list[tuple[int, int, int, int]]
    operands: tuple[int | None, ...]
    workspace: int
    threads: int
    wake: int
    strict: bool
    table_bytes: int


class _Work(NamedTuple):
    """A plan: results, arrays between jobs, constants, and jobs."""

    results: tuple[Lies, ...]
    between: tuple[Lies, ...]
    constants: list[_There]
    jobs: list[_Left]


class _Numpy(NamedTuple):
    """A step of NumPy: what it is made of but for values, and the values of its constant inputs."""

    again: Again
    values: tuple[_There | None, ...]


class _Step(NamedTuple):
    """What remains of a ``Told``: how its values are named, and its work if it has some."""

    number: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    looks: tuple[tuple[str, str, int], ...]
    made: tuple[Lies, ...]
    seconds: float
    lane: int | None
    work: _Work | None
    numpy: _Numpy | None


@dataclass(frozen=True, slots=True)
class _Whole:
    """All that is pickled.

    ``functions`` are kernels and names of functions; ``pointers`` the numbers of words in the memory that are
    addresses in it, and what they point to; ``calls`` those that are addresses of functions, and of which.
    """

    steps: list[_Step]
    held: dict[str, _There]
    laid: dict[str, Any]
    functions: list[tuple[str, str]]
    pointers: tuple[Array, Array]
    calls: tuple[Array, Array]
    about: About


# -- leaving -------------------------------------------------------------------------------------------


class _Memory:
    """The memory that tables of words and arrays take, each where it lies now.

    Parameters
    ----------
    told : Pointing
        Which words of which tables are addresses.
    """

    def __init__(self, told: Pointing) -> None:
        self._told = told
        self._sizes: dict[int, int] = {}
        self._pointers: list[tuple[int, int]] = []
        self._calls: list[tuple[int, int]] = []
        self._functions = functions_by_address()
        self._numbers: dict[tuple[str, str], int] = {}

    def take(self, start: int, size: int) -> None:
        """Take what lies there, and all that it points to."""
        waiting = [(start, size)]
        while waiting:
            start, size = waiting.pop()
            if size <= self._sizes.get(start, 0):
                continue
            is_new = start not in self._sizes
            table, links = self._told.tables.get(start, (None, []))
            self._sizes[start] = size if table is None else max(size, len(table) * _WORD)
            for word, target, count in links if is_new else ():
                if count < 0:
                    self._calls.append((start + word * _WORD, self.function(target)))
                elif count == 0:  # nobody reads there
                    self._pointers.append((start + word * _WORD, start))
                else:
                    waiting.append((target, count))
                    self._pointers.append((start + word * _WORD, target))

    def function(self, at: int) -> int:
        """The number of the function at an address."""
        if at not in self._functions:
            raise _Refused
        return self._numbers.setdefault(self._functions[at], len(self._numbers))

    @property
    def functions(self) -> list[tuple[str, str]]:
        """Kernel and name of the functions, by number."""
        return [*self._numbers]

    def settle(self, most: int) -> None:
        """Say where everything goes, each as it lies to lines; overlapping parts once."""
        self._parts: list[tuple[int, int, int]] = []  # begin and end now, and place
        for start, size in sorted(self._sizes.items()):
            if self._parts and start < self._parts[-1][1]:
                begin, end, at = self._parts[-1]
                self._parts[-1] = begin, max(end, start + size), at
                continue
            self._parts.append((start, start + size, 0))
        at = 0
        for number, (begin, end, _) in enumerate(self._parts):
            at = -(-at // _LINE) * _LINE + begin % _LINE
            self._parts[number] = begin, end, at
            at += end - begin
        self.size = -(-at // _LINE) * _LINE
        if self.size > most:
            raise _Refused
        self._begins = np.array([begin for begin, _, _ in self._parts], np.int64)
        self._ends = np.array([end for _, end, _ in self._parts], np.int64)
        self._places = np.array([at for _, _, at in self._parts], np.int64)

    def places(self, addresses: Sequence[int]) -> Array:
        """Places of what lies at some addresses."""
        at = np.asarray(addresses, np.int64)
        part = np.searchsorted(self._begins, at, "right") - 1
        return at - self._begins[part] + self._places[part]

    def there(self, a: Array) -> _There:
        """An array as it will lie."""
        found = place(a)
        return _There(int(self.places([found.address])[0]) if found.size else 0, lies(a))

    def links(self) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The words that are addresses and what they point to: in the memory, and functions."""
        froms, tos = zip(*self._pointers, strict=True) if self._pointers else ((), ())
        calls, numbers = zip(*self._calls, strict=True) if self._calls else ((), ())
        made = self.places(froms), self.places(tos), self.places(calls)
        if any((a % _WORD).any() for a in (made[0], made[2])):
            raise _Refused
        return (made[0] // _WORD, made[1]), (made[2] // _WORD, np.array(numbers, np.int64))

    def pieces(self, known: Array) -> list[bytes | memoryview]:
        """Its bytes, in order; of words of tables that may be addresses, all must be ``known``."""
        told, found, after = {*known.tolist()}, list[bytes | memoryview](), 0
        for begin, end, at in self._parts:
            part = np.ctypeslib.as_array((ctypes.c_uint8 * (end - begin)).from_address(begin))
            if begin in self._told.tables:
                values = part[: (end - begin) // _WORD * _WORD].view(np.int64)
                likely = np.flatnonzero((values >= _LEAST_ADDRESS) & (values < _MOST_ADDRESS)) + at // _WORD
                if not told.issuperset(likely.tolist()):
                    raise _Refused  # an address of which nobody told, or a number that looks like one
            found += bytes(at - after), part.data
            after = at + end - begin
        return [*found, bytes(self.size - after)]


def bytes_of(laid: Laid, told: Pointing, about: About, most: int) -> list[bytes | memoryview] | None:
    """Laid out runs as bytes, if they can be said so, with no more memory than ``most`` bytes; else None.

    They come in pieces, of which the long ones are the memory of the runs itself.

    Parameters
    ----------
    laid : Laid
    told : Pointing
        Which words are addresses, of all tables that were made for them.
    about : About
        What else is said of them.
    """
    try:
        return _bytes_of(laid, told, about, most)
    except _Refused:
        return None


def _bytes_of(laid: Laid, told: Pointing, about: About, most: int) -> list[bytes | memoryview]:
    memory = _Memory(told)
    named = {*laid.results, *(name for step in laid.told for name in (*step.reads, *step.writes))}
    held = {name: a for name, a in laid.held.items() if name in named}
    for a in (*held.values(), *(a for step in laid.told for a in _constants(step))):
        if type(a) is not np.ndarray or a.dtype.hasobject:
            raise _Refused
        memory.take(*place(a)[:2])
    for step in laid.told:
        is_plain = all(np.dtype(lie.dtype.str) == lie.dtype for lie in step.made)
        if step.plan is None and not (step.looks and is_plain) and _again(step) is None:  # somebody else's work
            raise _Refused
        for job in step.plan.jobs if step.plan else ():
            for row in _rows(job):
                memory.take(*row[1:3])
    memory.settle(most)
    steps = [_step(step, memory) for step in laid.told]
    pointers, calls = memory.links()
    whole = _Whole(
        steps, {name: memory.there(a) for name, a in held.items()},
        {
            "results": laid.results, "feeds": laid.feeds, "moving": laid.moving & {*named, *laid.feeds},
            "lies": {n: lie for n, lie in laid.lies.items() if n in named}, "inside": laid.inside,
            "begins": laid.begins, "size": laid.size, "still": laid.still, "threads": laid.threads,
            "switches": {**laid.switches},
        },
        memory.functions, pointers, calls, about,
    )  # fmt: skip
    said = pickle.dumps(whole, pickle.HIGHEST_PROTOCOL)
    return [_HEAD.pack(len(said), memory.size), *memory.pieces(np.concatenate([pointers[0], calls[0]])), said]


def _again(step: Told) -> Again | None:
    """What a step is made of that NumPy runs, and that does more than look."""
    return None if step.plan is not None or step.looks else step.segment.again


def _constants(step: Told) -> Sequence[Array]:
    """Constants that a step reads."""
    if step.plan is not None:
        return step.plan.constants
    again = _again(step)
    return [x.value for x in again.operation.inputs if x is not None and x.value is not None] if again else []


def _rows(job: Job) -> list[list[int]]:
    """Driver, words, bytes and items of a job's steps."""
    return job.steps.reshape(-1, 4).tolist()


def _step(step: Told, memory: _Memory) -> _Step:
    work = None
    if step.plan is not None:
        jobs = []
        for job in step.plan.jobs:
            rows = [(memory.function(d), int(memory.places([w])[0]), size, n) for d, w, size, n in _rows(job)]
            rest = job.operands, job.workspace, job.threads, job.wake, job.strict, job.table_bytes
            jobs.append(_Left(rows, *rest))
        constants = [memory.there(a) for a in step.plan.constants]
        work = _Work(step.plan.results, step.plan.between, constants, jobs)
    numpy, again = None, _again(step)
    if again is not None:
        values = [None if x is None or x.value is None else memory.there(x.value) for x in again.operation.inputs]
        numpy = _Numpy(_with_values(again, [None] * len(values)), tuple(values))
    return _Step(step.index, step.reads, step.writes, step.looks, step.made, step.seconds, step.lane, work, numpy)


def _with_values(again: Again, values: Sequence[Array | None]) -> Again:
    """The same with other values of its constant inputs."""
    given = again.operation.inputs
    inputs = tuple(x and replace(x, value=value) for x, value in zip(given, values, strict=True))
    return replace(again, operation=replace(again.operation, inputs=inputs))


# -- reading back --------------------------------------------------------------------------------------


def laid_of(data: memoryview, target: Target) -> tuple[Laid, About] | None:
    """What bytes say of laid out runs; None if a kernel of theirs is no longer kept.

    Parameters
    ----------
    data : memoryview
        From ``bytes_of``, in memory that begins with a line; runs have their tables and weights there.
    target : Target
    """
    said, size = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + size + said:
        raise ValueError("it is of another length")
    whole = pickle.loads(data[_HEAD.size + size :])
    if not isinstance(whole, _Whole):
        raise TypeError("it is something else")
    names: dict[str, list[str]] = {}
    for level, name in whole.functions:
        names.setdefault(level, []).append(name)
    found = {level: found_again(level, of_kernel, target) or {} for level, of_kernel in names.items()}
    places = [found[level][name] for level, name in whole.functions if name in found[level]]
    if len(places) < len(whole.functions):
        return None
    memory = np.frombuffer(data, np.uint8, size, _HEAD.size)
    base, table = address(memory), memory.view(np.int64)
    functions = np.array(places, np.int64)
    (froms, tos), (calls, numbers) = whole.pointers, whole.calls
    table[froms] = tos + base
    table[calls] = functions[numbers]

    def array(there: _There) -> Array:
        begin, lie = there
        if lie.size == 0:
            return np.zeros(lie.shape, lie.dtype)
        return np.ndarray(lie.shape, lie.dtype, memory[begin : begin + lie.size], lie.offset, lie.strides)

    def plan(work: _Work) -> Plan:
        jobs = tuple(
            Job(words([v for d, w, count, items in each.steps for v in (places[d], base + w, count, items)]),
                each.operands, each.workspace, each.threads, each.wake, (memory,), each.strict, each.table_bytes)
            for each in work.jobs
        )  # fmt: skip
        return Plan(work.results, jobs, work.between, tuple(map(array, work.constants)))

    told = [
        Told(step.number, step.reads, step.writes, _segment(step, array), step.work and plan(step.work),
             step.looks, step.made, step.seconds, lane=step.lane)
        for step in whole.steps
    ]  # fmt: skip
    held = {name: array(there) for name, there in whole.held.items()}
    return Laid(told=told, held=held, **whole.laid), whole.about


class _Window:
    """Memory behind the first element of an array, for NumPy to look at; the array lives as long."""

    def __init__(self, a: Array, begin: int, lie: Lies) -> None:
        self._array = a
        self.__array_interface__ = {
            "version": 3, "data": (address(a) + begin, False), "shape": lie.shape, "strides": lie.strides,
            "typestr": lie.dtype.str,
        }  # fmt: skip


def _segment(step: _Step, array: Callable[[_There], Array]) -> Segment:
    """What runs a step of NumPy, or shows the results of one that only looks; of others nobody asks for it."""
    if step.numpy is not None:
        from polyconv.models.native import made_again  # here, as few runs have such steps

        return made_again(_with_values(step.numpy.again, [there and array(there) for there in step.numpy.values]))

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        looks = zip(step.looks, step.made, strict=True)
        return [np.asarray(_Window(arrays[0], begin, lie)) for (_, _, begin), lie in looks]

    return Segment(ENGINE, (), run, views=True, looks=True)
