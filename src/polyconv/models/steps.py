"""Steps in running order: which of them some results need, when their values die, how many bytes are alive at once.

The one idea: a value lives from the step that makes it to the last step that reads it, or reads a view of it; all
that follows is known before any run, where extents are.  It must not know how a step runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from polyconv.dataclass import dataclass
from polyconv.models.elements import BY_TYPE
from polyconv.models.graph import Node, Value
from polyconv.models.segment import Segment

__all__ = ["Alive", "Schedule", "Step", "Times", "bytes_of", "most_alive", "scheduled"]

Schedule = list[tuple[int, tuple[str, ...]]]
"""Steps to run by number, each with the values that nobody reads after it."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What runs as one.

    Parameters
    ----------
    nodes : tuple of Node
        The nodes of the file that it stands for.
    reads : tuple of str
        Values that its segment takes.
    writes : tuple of str
        Values that its segment makes.
    segment : Segment
        How it runs.
    """

    nodes: tuple[Node, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    segment: Segment


@dataclass(frozen=True, slots=True)
class Alive:
    """Bytes of the values of a run that are alive at once, at most, and the step during which they are.

    Inputs belong to the caller and do not count; results of the run do.  Workspaces and weights come on top.
    """

    bytes: int
    step: int


class Times:
    """How long the steps of a run took; added up where somebody asks, since a run has better things to do."""

    __slots__ = ("_added", "_count", "_later", "_none")

    def __init__(self, count: int) -> None:
        self._count = count
        self._added: list[tuple[int, float]] = []
        self._later: list[tuple[Sequence[int], Callable[[], Sequence[float]]]] = []
        self._none: Iterable[int] = ()

    def add(self, index: int, seconds: float) -> None:
        """A part of a step, or all of it."""
        self._added.append((index, seconds))

    def nothing(self, indices: Iterable[int]) -> None:
        """Steps of which this run has nothing to do."""
        self._none = indices

    def add_later(self, indices: Sequence[int], seconds: Callable[[], Sequence[float]]) -> None:
        """Parts of steps, whose seconds are known when they are asked for."""
        self._later.append((indices, seconds))

    def seconds(self) -> list[float | None]:
        """Of every step; None for one that did not run."""
        found: list[float | None] = [None] * self._count
        for index in self._none:
            found[index] = 0.0
        for indices, seconds in self._later:
            self._added += zip(indices, seconds(), strict=True)
        self._later = []
        for index, passed in self._added:
            found[index] = (found[index] or 0.0) + passed
        return found


def scheduled(steps: Sequence[Step], results: Collection[str], constants: Collection[str]) -> Schedule:
    """Steps that the results need, each with the values that nobody reads after it."""
    needed, found = set(results), []
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if needed.isdisjoint(step.writes):
            continue
        last = tuple(n for n in {*step.reads, *step.writes} if n not in needed and n not in constants)
        needed.update(step.reads)
        found.append((index, last))
    found.reverse()
    return found


def bytes_of(value: Value) -> int | None:
    """Bytes of a value; None where its type or an extent is unknown."""
    element = BY_TYPE.get(value.type)
    if element is None or value.dims is None:
        return None
    extents = [d for d in value.dims if isinstance(d, int)]
    return element.numpy.itemsize * math.prod(extents) if len(extents) == len(value.dims) else None


def most_alive(steps: Sequence[Step], schedule: Schedule, values: Mapping[str, Value]) -> Alive | None:
    """Bytes that a run has alive at once; None where a value's extents are known by a run only."""
    sizes: dict[str, int] = {}
    memory: dict[str, frozenset[str]] = {}  # whose memory a value may lie in: its own, or that of others
    alive: set[str] = set()  # names that steps to come, or the caller, will read
    most = Alive(0, 0)
    for index, last in schedule:
        step = steps[index]
        is_seen = step.segment.views and not step.segment.may_copy
        below = frozenset[str]().union(*(memory.get(name, ()) for name in step.reads)) if is_seen else None
        for name in step.writes:
            size = bytes_of(values.get(name, Value(name)))
            if below is None and size is None:
                return None
            memory[name] = frozenset((name,)) if below is None else below
            sizes[name] = size or 0
            alive.add(name)
        held = frozenset[str]().union(*(memory[name] for name in alive))
        total = sum(sizes[name] for name in held)
        if total > most.bytes:
            most = Alive(total, index)
        alive.difference_update(last)
    return most
