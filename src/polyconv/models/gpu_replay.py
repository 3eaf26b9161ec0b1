"""Runs of a program on a GPU that are alike: the kernels of all steps, started by one foreign call.

What lies between steps has its place in one memory, in which a place is free again after its last reader.  Results are
written where a caller bound memory to them, or into new memory.  Addresses of feeds and results are all that a run puts
in.  The counterpart of ``replay``.  It must not know what a step computes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import Error, OutOfMemory
from polyconv.gpu.arrays import Borrowed, GpuArray, current_stream
from polyconv.gpu.driver import TensorMap, driver
from polyconv.gpu.launches import Launch, Slot, Table
from polyconv.gpu.work import Work
from polyconv.models.places import LINE, places
from polyconv.models.segment import Chosen, Segment
from polyconv.models.steps import Times
from polyconv.models.told import Told, name_between
from polyconv.operators.job import Plan
from polyconv.operators.lying import packed

__all__ = ["GpuReplays", "into"]

_MOST_MAPS = 64

Arrays = Mapping[str, GpuArray]
_bound: ContextVar[Arrays] = ContextVar("memory that results of a run are written into", default={})  # noqa: B039


@contextmanager
def into(targets: Mapping[str, Any], feeds: Iterable[Any], device: int | None) -> Iterator[None]:
    """Let results be written into memory of a device, by their names; not if some of it meets a feed's or another's."""
    there = {name: a for name, a in targets.items() if type(a) is GpuArray and a.device == device}
    arrays = [*there.values(), *(a for a in feeds if type(a) is GpuArray)]
    spans = [(a.address + a.reach[0], a.address + sum(a.reach)) for a in arrays]
    pairs = ((one, two) for i, one in enumerate(spans[: len(there)]) for two in spans[i + 1 :])
    meet = any(one[0] < two[1] and two[0] < one[1] for one, two in pairs)
    before = _bound.set({} if meet else there)
    try:
        yield
    finally:
        _bound.reset(before)


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step of a run told: its work, or of a view the array that it shows and what it made of it.

    ``made`` are its results as they lay, or as memory lies that is bound to them and that its work writes.
    """

    index: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    segment: Segment
    work: Work | None
    source: GpuArray | None
    made: tuple[GpuArray, ...]


def _way(a: Any) -> tuple[Any, ...]:
    """How an array lies, as far as kernels depend on it."""
    return a.shape, a.strides, a.dtype, a.address % 16


class GpuReplays:
    """The replay of a program, made by the second of two runs that are alike.  Safe to use from several threads.

    Parameters
    ----------
    device : int
    is_off : bool
        Whether all runs go by steps, so that each can be timed.
    """

    __slots__ = ("_captured", "_device", "_is_off", "_key", "_learned", "_replay")

    def __init__(self, device: int, *, is_off: bool = False) -> None:
        self._device, self._is_off = device, is_off
        self._key: Any = None
        self._learned: Any = None
        self._replay: Replay | None = None
        self._captured: list[Replay] = []

    def _key_of(self, results: Sequence[str], feeds: Mapping[str, Any]) -> Any:
        ways = (sorted((name, _way(a)) for name, a in arrays.items()) for arrays in (feeds, _bound.get()))
        return tuple(results), *ways

    def found(self, results: Sequence[str], feeds: Mapping[str, Any]) -> Replay | None:
        """The replay that takes these feeds, on this stream, and gives these results, if there is one.

        A stream that is captured into a graph gets it for good: its memory is the graph's, and later runs learn anew.

        Raises
        ------
        Error
            If a stream is captured and there is none.
        """
        replay, stream = self._replay, current_stream()
        is_captured = driver().is_capturing(stream)
        lie_there = all(type(a) is GpuArray for a in feeds.values())
        if replay is None or not lie_there or replay.key != self._key_of(results, feeds):
            replay = None
        if not is_captured:
            return replay if replay is not None and replay.stream == stream else None
        if replay is None:
            raise Error(
                "a run is captured into a graph as it is replayed: run the session twice with inputs and outputs bound "
                "to the same memory on the GPU, then capture the third run"
            )
        self._captured.append(replay)
        self._replay = self._learned = None
        return replay

    @property
    def bytes(self) -> int:
        """What the replay holds between runs; 0 where there is none."""
        return 0 if self._replay is None else self._replay.bytes

    def wants(self, results: tuple[str, ...], feeds: Mapping[str, Any]) -> bool:
        """Whether a run by steps should tell what they do."""
        if self._is_off or not all(type(a) is GpuArray for a in feeds.values()):
            return False
        key = current_stream(), self._key_of(results, feeds)
        is_second, self._key = bool(self._key == key), key
        return is_second and self._learned != key

    def tell(self, index: int, reads: tuple[str, ...], writes: tuple[str, ...], segment: Segment, arrays: Sequence[Any],
             made: Sequence[Any], seconds: float, counts: bool, chosen: Chosen | None) -> _Step | None:  # fmt: skip
        """What a step that just ran tells of itself; None if it may do otherwise the next time."""
        if not arrays or not all(type(a) is GpuArray for a in (*arrays, *made)):
            return None
        work = None
        if not segment.views:
            bound = [_bound.get().get(name, a) for name, a in zip(writes, made, strict=True)]
            wanted = [b if _fits(b, a) else a for b, a in zip(bound, made, strict=True)]
            work = segment.work(arrays, wanted)
            if work is None:  # results cannot lie so
                work, wanted = segment.work(arrays, made), list(made)
            if work is None:
                return None
            made = wanted
        source = arrays[0] if segment.views else None
        if source is not None and any(m.memory is not source.memory for m in made):
            return None  # a copy was made first
        return _Step(index, reads, writes, segment, work, source, tuple(made))

    def learn(self, told: Sequence[_Step | None], results: tuple[str, ...], steady: Mapping[str, Any],
              feeds: Mapping[str, Any]) -> None:  # fmt: skip
        """Make the replay of such runs, if all that they do is known."""
        stream, key = self._learned = current_stream(), self._key_of(results, feeds)
        steps = [step for step in told if step is not None]
        if len(steps) == len(told) and not any(name in steady for name in results):
            try:
                self._replay = Replay(steps, results, feeds, key, stream, self._device)
            except OutOfMemory:  # runs by steps free as they go
                self._replay = None

    def forget(self, replay: Replay) -> None:
        """Let a replay go."""
        if self._replay is replay:
            self._replay = None


@dataclass(frozen=True, slots=True)
class _Base:
    """In what memory a value lies: the number of an address that a run gives, or -1, and bytes from there on."""

    number: int
    offset: int


class Replay:
    """A program's runs for feeds that lie as they did, on one stream; for one caller at a time.

    A result that a kernel makes, or that shows all of such a one, is written into memory of its own, or into what is
    bound to it if it lies so.  Others have a place between steps, from which a last kernel copies them.

    Parameters
    ----------
    told : sequence of _Step
        Every step of a run, in order.
    results : sequence of str
        What a run returns.
    feeds : mapping
    key : object
        What runs have in common.
    stream, device : int
    """

    is_over = False
    held: Mapping[str, Any] = MappingProxyType({})  # what a run returns is all that may be asked for

    def __init__(self, told: Sequence[_Step], results: Sequence[str], feeds: Arrays, key: Any, stream: int,
                 device: int) -> None:  # fmt: skip
        from polyconv.operators.on_gpu.running import lie_alike  # here, as on a CPU no kernel of a GPU is needed

        self.key, self.stream, self._device = key, stream, device
        self._lock, self._indices = threading.Lock(), [step.index for step in told]
        self._feeds, self._keep = tuple(feeds), [step.work for step in told]
        made = {name: a for step in told for name, a in zip(step.writes, step.made, strict=True)}
        roots = _roots(told)
        bound = {name: a for name, a in _bound.get().items() if name in made and _fits(a, made[name])}
        self._bound, self._ends = set(bound), {n: bound.get(n) or _like(made[n]) for n in results if n in made}
        direct: dict[str, str] = {}  # by the value that a kernel makes, the result that lies in its memory
        for name, end in self._ends.items():
            root, a = roots.get(name, ""), made[name]
            is_whole = root and (a.address, a.reach) == (made[root].address, made[root].reach)
            if is_whole and root not in direct and lie_alike(a, end) and (a.address - end.address) % 16 == 0:
                direct[root] = name
        self._copies = {name: made[name] for name in self._ends if direct.get(roots.get(name, "")) != name}
        sources = {name: root for name, root in roots.items() if root not in direct}
        sizes: dict[str, int] = {root: _size(made[root]) for root in sources.values()}
        for step in told:
            for n, size in enumerate(step.work.own if step.work is not None else ()):
                sizes[name_between(_told(step), n)] = size
        begins, size = places([_told(step) for step in told], sources, sizes, results)
        self._memory = GpuArray((max(LINE, size),), DTYPES["u8"], device)
        self._maps: dict[tuple[int, int], TensorMap] = {}
        self._mapped: list[tuple[_Base, tuple[Any, ...], int]] = []
        self._numbers = {name: at for at, name in enumerate((*self._feeds, *self._ends))}
        self._bases = {name: _Base(self._numbers[name], 0) for name in self._feeds}
        self._bases |= {root: _Base(self._numbers[name], 0) for root, name in direct.items()}
        self._bases |= {name: _Base(-1, self._memory.address + begin) for name, begin in begins.items()}
        self._table = self._joined(told)

    @property
    def bytes(self) -> int:
        """What it holds between runs."""
        return self._memory.shape[0]

    def _joined(self, told: Sequence[_Step]) -> Table:
        """The launches of all steps; what changes are the addresses of feeds and results, and of their maps."""
        from polyconv.operators.on_gpu.seeing import copying  # here, as on a CPU no kernel of a GPU is needed

        launches: list[Launch] = []
        slots: list[Slot] = []
        moving = len(self._numbers)
        for step in told:
            if step.work is None:
                assert step.source is not None
                base = self._bases[step.reads[0]]
                for name, a in zip(step.writes, step.made, strict=True):
                    self._bases[name] = _Base(base.number, base.offset + a.address - step.source.address)
                continue
            work, first = step.work, len(launches)
            own = [name_between(_told(step), n) for n in range(len(work.own))]
            operands = [self._bases[name] for name in (*step.reads, *step.writes, *own)]
            values = [list(launch.values) for launch in work.launches]
            for slot in work.slots:
                if slot.is_itself:
                    assert work.map is not None
                    slots.append(Slot(first + slot.launch, slot.argument, moving + len(self._mapped), is_itself=True))
                    continue
                operand = operands[slot.number]
                values[slot.launch][slot.argument] += operand.offset
                if operand.number >= 0:
                    slots.append(Slot(first + slot.launch, slot.argument, operand.number))
            if work.map is not None:
                self._mapped.append((operands[work.map.operand], work.map.made_of, len(self._mapped)))
            launches += [
                Launch(launch.function, launch.grid, tuple(own_values))
                for launch, own_values in zip(work.launches, values, strict=True)
            ]
        for name, a in self._copies.items():
            if 0 in a.shape:
                continue
            base, launch = self._bases[name], copying(a, self._ends[name])
            if base.number >= 0:
                slots.append(Slot(len(launches), 0, base.number))
            slots.append(Slot(len(launches), 1, self._numbers[name]))
            launches.append(replace(launch, values=(launch.values[0] + base.offset, *launch.values[1:])))
        return Table(driver(), launches, slots, self._device)

    def _map(self, base: _Base, made_of: tuple[Any, ...], at: int, addresses: Sequence[int]) -> int:
        """Address of a tensor map of an array, which is kept for the next run."""
        address = base.offset + (addresses[base.number] if base.number >= 0 else 0)
        found = self._maps.get((at, address))
        if found is None:
            if len(self._maps) >= _MOST_MAPS * max(1, len(self._mapped)):
                self._maps.clear()
            found = self._maps[at, address] = driver().tensor_map(address, *made_of)
        return found.address

    def run(self, feeds: Mapping[str, Any], times: Times, halt: Callable[[int], None]
            ) -> tuple[dict[str, Any], set[str]] | None:  # fmt: skip
        """Values by name, and which of them have memory of their own; None if somebody else runs it."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            halt(self._indices[0] if self._indices else 0)
            bound = _bound.get()
            made = {name: bound[name] if name in self._bound else _new(end) for name, end in self._ends.items()}
            addresses = [a.address for a in (*(feeds[name] for name in self._feeds), *made.values())]
            maps = [self._map(base, made_of, at, addresses) for base, made_of, at in self._mapped]
            self._table([*addresses, *maps], current_stream())
            return {**feeds, **made}, set(made)
        finally:
            self._lock.release()


def _size(a: GpuArray) -> int:
    return a.reach[1]


def _fits(target: GpuArray, made: GpuArray) -> bool:
    """Whether memory can take a result as it is; if not, the caller is told when it is filled."""
    return (target.shape, target.kind, target.device) == (made.shape, made.kind, made.device)


def _like(a: GpuArray) -> GpuArray:
    """How an array lies, without its memory; one with gaps as if it had none."""
    has_gaps = a.reach != (0, math.prod(a.shape) * a.kind.itemsize)
    nowhere = Borrowed(0, 0, a.device)
    return GpuArray(a.shape, a.kind, a.device, strides=None if has_gaps else a.strides, memory=nowhere)


def _new(like: GpuArray) -> GpuArray:
    """New memory for an array that lies so."""
    return GpuArray(like.shape, like.kind, like.device, strides=like.strides)


def _roots(told: Sequence[_Step]) -> dict[str, str]:
    """By value that a kernel makes, or that shows one, the value that is made; what shows a feed has none."""
    roots: dict[str, str] = {}
    for step in told:
        if step.work is not None:
            roots.update((name, name) for name in step.writes)
        elif step.reads[0] in roots:
            roots.update(dict.fromkeys(step.writes, roots[step.reads[0]]))
    return roots


def _told(step: _Step) -> Told:
    """What says where a step's values may lie."""
    own = () if step.work is None else step.work.own
    plan = Plan((), (), tuple(packed((size,), "u1") for size in own))
    return Told(step.index, step.reads, step.writes, step.segment, plan, (), (), 0.0)
