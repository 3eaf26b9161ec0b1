"""Runs of a program on a GPU that are alike: the kernels of all steps, started by one foreign call.

What lies between steps has its place in one memory, in which a place is free again after its last reader.  Addresses
of feeds and results are all that a run puts in.  The counterpart of ``replay``.  It must not know what a step computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyconv.dtypes import DTYPES
from polyconv.errors import OutOfMemory
from polyconv.gpu.arrays import GpuArray, current_stream
from polyconv.gpu.driver import TensorMap, driver
from polyconv.gpu.launches import Launch, Slot, Table
from polyconv.gpu.work import Work
from polyconv.models.places import LINE, places
from polyconv.models.segment import Segment
from polyconv.models.steps import Times
from polyconv.models.told import Told, name_between
from polyconv.operators.job import Plan, packed

__all__ = ["GpuReplays"]

_MOST_MAPS = 64


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step of a run told: its work, or of a view the array that it shows and what it made of it."""

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

    __slots__ = ("_device", "_is_off", "_key", "_learned", "_replay")

    def __init__(self, device: int, *, is_off: bool = False) -> None:
        self._device, self._is_off = device, is_off
        self._key: Any = None
        self._learned: Any = None
        self._replay: Replay | None = None

    def _key_of(self, results: Sequence[str], feeds: Mapping[str, Any]) -> Any:
        return tuple(results), current_stream(), sorted((name, _way(a)) for name, a in feeds.items())

    def found(self, results: Sequence[str], feeds: Mapping[str, Any]) -> Replay | None:
        """The replay that takes these feeds, on this stream, and gives these results, if there is one."""
        replay = self._replay
        if replay is None or not all(type(a) is GpuArray for a in feeds.values()):
            return None
        return replay if replay.key == self._key_of(results, feeds) else None

    @property
    def bytes(self) -> int:
        """What the replay holds between runs; 0 where there is none."""
        return 0 if self._replay is None else self._replay.bytes

    def wants(self, results: tuple[str, ...], feeds: Mapping[str, Any]) -> bool:
        """Whether a run by steps should tell what they do."""
        if self._is_off or not all(type(a) is GpuArray for a in feeds.values()):
            return False
        if driver().is_capturing(current_stream()):  # a graph would keep the addresses of what a replay lets go
            return False
        key = self._key_of(results, feeds)
        is_second, self._key = bool(self._key == key), key
        return is_second and self._learned != key

    def tell(self, index: int, reads: tuple[str, ...], writes: tuple[str, ...], segment: Segment, arrays: Sequence[Any],
             made: Sequence[Any], seconds: float) -> _Step | None:  # fmt: skip
        """What a step that just ran tells of itself; None if it may do otherwise the next time."""
        if not arrays or not all(type(a) is GpuArray for a in (*arrays, *made)):
            return None
        work = None if segment.views else segment.work(arrays, made)
        if work is None and not segment.views:
            return None
        source = arrays[0] if segment.views else None
        if source is not None and any(m.memory is not source.memory for m in made):
            return None  # a copy was made first
        return _Step(index, reads, writes, segment, work, source, tuple(made))

    def learn(self, told: Sequence[_Step | None], results: tuple[str, ...], steady: Mapping[str, Any],
              feeds: Mapping[str, Any]) -> None:  # fmt: skip
        """Make the replay of such runs, if all that they do is known."""
        self._learned = self._key
        steps = [step for step in told if step is not None]
        if len(steps) == len(told) and not any(name in steady for name in results):
            try:
                self._replay = Replay(steps, results, feeds, self._key, self._device)
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

    Parameters
    ----------
    told : sequence of _Step
        Every step of a run, in order.
    results : sequence of str
        What a run returns.
    feeds : mapping
    key : object
        What runs have in common.
    device : int
    """

    is_over = False

    def __init__(self, told: Sequence[_Step], results: Sequence[str], feeds: Mapping[str, GpuArray], key: Any,
                 device: int) -> None:  # fmt: skip
        self.key, self._device = key, device
        self._lock, self._indices = threading.Lock(), [step.index for step in told]
        self._feeds, self._results = tuple(feeds), tuple(dict.fromkeys(results))
        self._keep = [step.work for step in told]
        made = {name: a for step in told for name, a in zip(step.writes, step.made, strict=True)}
        makers = {name for step in told if step.work is not None for name in step.writes}
        self._made = {name: made[name] for name in self._results if name in makers}
        self._shown = {name: made[name] for name in self._results if name in made and name not in makers}
        sources = {name: name for name in makers if name not in self._made}
        sizes: dict[str, int] = {name: _size(made[name]) for name in sources}
        for step in told:
            if step.work is None:
                sources.update((name, sources.get(step.reads[0], step.reads[0])) for name in step.writes)
            else:
                sizes.update((name_between(_told(step), n), size) for n, size in enumerate(step.work.own))
        begins, size = places([_told(step) for step in told], sources, sizes, results)
        self._memory = GpuArray((max(LINE, size),), DTYPES["u8"], device)
        self._maps: dict[tuple[int, int], TensorMap] = {}
        self._mapped: list[tuple[_Base, tuple[Any, ...], int]] = []
        self._bases = {name: _Base(at, 0) for at, name in enumerate((*self._feeds, *self._made))}
        self._bases |= {name: _Base(-1, self._memory.address + begin) for name, begin in begins.items()}
        self._table = self._joined(told)

    @property
    def bytes(self) -> int:
        """What it holds between runs."""
        return self._memory.shape[0]

    def _joined(self, told: Sequence[_Step]) -> Table:
        """The launches of all steps; what changes are the addresses of feeds and results, and of their maps."""
        launches: list[Launch] = []
        slots: list[Slot] = []
        moving = len(self._feeds) + len(self._made)
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
            made = {name: _like(a, self._device) for name, a in self._made.items()}
            addresses = [a.address for a in (*(feeds[name] for name in self._feeds), *made.values())]
            maps = [self._map(base, made_of, at, addresses) for base, made_of, at in self._mapped]
            self._table([*addresses, *maps], current_stream())
            arrays = {**feeds, **made}
            shown = {name: self._copied(name, a, arrays) for name, a in self._shown.items()}
            return {**arrays, **shown}, {*made, *shown}
        finally:
            self._lock.release()

    def _copied(self, name: str, like: GpuArray, arrays: Mapping[str, GpuArray]) -> GpuArray:
        """A result that shows another value, in memory of its own."""
        base = self._bases[name]
        if base.number < 0:
            whole, offset = self._memory, base.offset - self._memory.address
        else:
            whole, offset = arrays[(*self._feeds, *self._made)[base.number]], base.offset
        seen = GpuArray(
            like.shape, like.kind, self._device, strides=like.strides, memory=whole.memory,
            offset=whole.address + offset - whole.memory.address,
        )  # fmt: skip
        from polyconv.operators.on_gpu.seeing import packed_there  # here, as on a CPU no kernel of a GPU is needed

        return packed_there(seen)


def _size(a: GpuArray) -> int:
    return a.reach[1]


def _like(a: GpuArray, device: int) -> GpuArray:
    """A new array that lies as another one without gaps."""
    return GpuArray(a.shape, a.kind, device, strides=a.strides)


def _told(step: _Step) -> Told:
    """What says where a step's values may lie."""
    own = () if step.work is None else step.work.own
    plan = Plan((), (), tuple(packed((size,), "u1") for size in own))
    return Told(step.index, step.reads, step.writes, step.segment, plan, (), (), 0.0)
