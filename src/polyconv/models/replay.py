"""Runs of a program that are alike: their native work is bound to memory once and done by few calls.

A replay has memory for what lies between the steps of such runs, writes all addresses into frames, and joins the jobs
of steps that follow each other into chains.  What comes anew with each run, the feeds, what a host makes, and the
results, has its address written before the chain that needs it.
It must not know operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from time import perf_counter
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.gpu.arrays import GpuArray
from polyconv.kernels.address import address
from polyconv.kernels.record import words
from polyconv.machine.host import profile_in_force
from polyconv.models.arena import Arena
from polyconv.models.graph import Array
from polyconv.models.laid import Laid
from polyconv.models.lanes import rows
from polyconv.models.places import LINE
from polyconv.models.steps import Times
from polyconv.models.told import Told, lies_so, name_between
from polyconv.operators.job import Job
from polyconv.operators.lying import Lies, lies
from polyconv.planning.planner import waking
from polyconv.runtime import threads as pool
from polyconv.runtime.memory import allocating, sized
from polyconv.settings import context

__all__ = ["Replay", "copied"]

_CHAIN_SECONDS = 10e-3
"""Of a chain: a run that is asked to end does so between two of them."""


def copied(value: Any, name: str) -> Any:
    """An array in memory of its own; a sequence of them, as ONNX has it too, is a list."""
    if isinstance(value, list):
        return [copied(v, name) for v in value]
    if type(value) is GpuArray:
        from polyconv.operators.on_gpu.seeing import packed_there  # here, as on a CPU no kernel of a GPU is needed

        return packed_there(value)
    if not isinstance(value, np.ndarray):
        return value
    with allocating(sized(f"the output {name!r}", value.shape, value.dtype), "ask for fewer outputs or smaller inputs"):
        return np.array(value, order="C")


@dataclass(slots=True)
class _Chain:
    """Jobs in a row: the steps they are of, addresses to write before, and results to make."""

    owners: list[int] = field(default_factory=list)
    jobs: list[pool.Ready] = field(default_factory=list)
    written: list[tuple[memoryview, int, str, int]] = field(default_factory=list)
    results: list[tuple[str, tuple[int, ...], np.dtype[Any]]] = field(default_factory=list)
    seconds: float = 0.0
    shared_seconds: float = 0.0
    run: pool.Chain | None = None


class Replay:
    """A program's runs for feeds that lie as they did; for one caller of its arena at a time.

    Parameters
    ----------
    laid : Laid
        Its steps, and where values lie.
    arena : Arena
        Where what lies between steps has its place, and workspaces theirs.

    Raises
    ------
    MemoryError
        If that is more than the arena gives.
    """

    def __init__(self, laid: Laid, arena: Arena) -> None:
        self._switches, self._still = laid.switches, [*laid.still]  # steps of which a run has nothing to do
        self.is_over = False
        self.arena = arena
        self._feeds, self._lies, self._moving, self._inside = laid.feeds, laid.lies, laid.moving, {**laid.inside}
        self.held: dict[str, Any] = {**laid.held}
        self._results, self._context = frozenset(laid.results), context()
        self._threads, told = laid.threads, laid.told
        self._kept = [(step.plan, step.segment) for step in told]  # what the words of jobs lie in
        self.table_bytes = sum(step.plan.table_bytes for step in told if step.plan is not None)
        needed = [
            pool.workspace_bytes(job.workspace, job.threads if step.lane is None else self._threads)
            for step in told if step.plan for job in step.plan.jobs
        ]  # fmt: skip
        self._workspace = arena.part("workspaces", max(needed, default=64))
        self._memory = arena.part("values between steps", max(LINE, laid.size))
        self._made = set[str]()  # results that have their memory by then
        self._by_address = _read_natively(told, laid.results)
        self._pieces: list[_Chain | Told] = []
        for row in rows(told):
            self._append(row, laid.begins)
        profile = profile_in_force()
        for piece in self._pieces:
            if isinstance(piece, _Chain):
                piece.run = pool.Chain(piece.jobs, waking(profile, piece.shared_seconds))
        first = self._pieces[0] if self._pieces else None
        self._wakes = isinstance(first, _Chain) and waking(profile, first.shared_seconds) > 1

    @property
    def parts(self) -> tuple[Array, Array]:
        """What it holds between runs: places of values, and the workspace; others may hold the same."""
        return self._memory, self._workspace

    def fits(self, results: Sequence[str], feeds: Mapping[str, Any]) -> bool:
        """Whether it gives these results, for feeds that lie as those did that it was made for."""
        if len(feeds) != len(self._feeds) or not all(lies_so(feeds.get(n), lie) for n, lie in self._feeds.items()):
            return False  # most of them, where images have many sizes
        if self._context != context() or self._results != set(results):
            return False
        return all(feeds[name].item() == number for name, number in self._switches.items())

    def run(self, feeds: Mapping[str, Array], times: Times, halt: Callable[[int], None]
            ) -> tuple[dict[str, Any], set[str]] | None:  # fmt: skip
        """Values by name, but for those ``held`` from run to run, and which of them have memory of their own.

        None if somebody else runs it, or what a host made lies otherwise than it did: then it ``is_over``.

        Parameters
        ----------
        times : Times
            Of every step.
        halt : callable
            Told of the step that comes next, before each chain and each step that is in none.
        """
        if not self.arena.lock.acquire(blocking=False):
            return None
        try:
            if self._threads > 1:
                pool.start_workers(self._threads)
                if self._wakes:  # meanwhile what comes before the first job is done here
                    pool.rouse()
            values, fresh = dict(feeds), set[str]()
            times.nothing(self._still)
            for piece in self._pieces:
                if isinstance(piece, Told):
                    halt(piece.index)
                    start = perf_counter()
                    given = [values[name] if name in values else self.held[name] for name in piece.reads]
                    made = piece.segment.run(given)[: len(piece.writes)]
                    times.add(piece.index, perf_counter() - start)
                    for array, lie in zip(made, piece.made, strict=True):
                        if not lies_so(array, lie):
                            self.is_over = True
                            return None
                    values.update(zip(piece.writes, made, strict=True))
                    if not piece.segment.views:
                        fresh.update(piece.writes)
                    continue
                halt(piece.owners[0])
                for name, shape, dtype in piece.results:
                    values[name] = _new(name, shape, dtype)
                    fresh.add(name)
                for operands, word, name, offset in piece.written:
                    operands[word] = address(values[name]) - offset
                assert piece.run is not None
                times.add_later(piece.owners, piece.run())
            for name in self._results - fresh:  # while nobody else writes to the memory that they may lie in
                values[name] = copied(values[name] if name in values else self.held[name], name)
            return values, fresh | self._results
        finally:
            self.arena.lock.release()

    def _append(self, row: Sequence[Told], begins: Mapping[str, int]) -> None:
        """Have a step, or a row of lanes, done after what comes before it."""
        work, made = list[Told](), list[str]()
        for step in row:
            if step.plan is None:
                self._look(step)
                continue
            new = self._settled(step, begins)
            made += new
            if step.plan.jobs or new:
                work.append(step)
            else:
                self._still.append(step.index)
        if not work:
            return
        chain = self._chain(work)
        chain.results += [(name, self._lies[name].shape, self._lies[name].dtype) for name in made]
        jobs = [each for step in work for each in self._bound(step, begins, chain)]
        chain.owners += [step.index for step, _, _ in jobs]
        if row[0].lane is None:
            chain.jobs += [ready for _, _, ready in jobs]
        else:
            chain.jobs.append(self._side_by_side(jobs))

    def _look(self, step: Told) -> None:
        """Do what a step shows now, where it shows the same memory in every run, else as a piece of a run.

        What only native work reads is an address in the memory that it shows, and takes no piece.
        """
        if step.looks and self._moving.isdisjoint(step.reads):
            made = step.segment.run([self.held[name] for name in step.reads])
            self.held.update(zip(step.writes, made, strict=False))
            self._still.append(step.index)
        elif step.looks and self._by_address.issuperset(step.writes):
            for name, source, begin in step.looks:
                whole, before = self._inside.get(source, (source, 0))
                self._inside[name] = whole, before + begin
            self._still.append(step.index)
        else:
            self._pieces.append(step)

    def _settled(self, step: Told, begins: Mapping[str, int]) -> list[str]:
        """Say where the results of a step's native work lie; which of them need memory in each run."""
        assert step.plan is not None
        new = list[str]()
        for name, lie in zip(step.writes, step.plan.results, strict=False):
            if name in begins:
                self.held[name] = self._array(begins[name], lie)
            elif (name := self._inside.get(name, (name, 0))[0]) not in self._made:
                new.append(name)
        self._made.update(new)
        return new

    def _chain(self, work: Sequence[Told]) -> _Chain:
        """The chain that work goes to: the last one, if it is the last piece and short enough."""
        seconds = sum(step.seconds for step in work)
        last = self._pieces[-1] if self._pieces else None
        if not isinstance(last, _Chain) or last.seconds + seconds > _CHAIN_SECONDS:
            last = _Chain()
            self._pieces.append(last)
        last.seconds += seconds
        shared = (step for step in work if step.plan and any(job.threads > 1 for job in step.plan.jobs))
        last.shared_seconds += seconds if work[0].lane is not None else sum(step.seconds for step in shared)
        return last

    def _bound(self, step: Told, begins: Mapping[str, int], chain: _Chain) -> list[tuple[Told, Job, pool.Ready]]:
        """The jobs of a step, bound to what has its place."""
        assert step.plan is not None
        between = [self._array(begins[name_between(step, n)], lie) for n, lie in enumerate(step.plan.between)]
        numbered: list[str | Array] = [*step.reads, *step.writes, *between, *step.plan.constants]
        return [(step, job, self._ready(job, numbered, chain)) for job in step.plan.jobs]

    def _side_by_side(self, jobs: Sequence[tuple[Told, Job, pool.Ready]]) -> pool.Ready:
        """The jobs of a row of lanes as one job."""
        lanes: dict[int | None, list[pool.Ready]] = {}
        for step, _, ready in jobs:
            lanes.setdefault(step.lane, []).append(ready)
        share, wake = max(job.workspace for _, job, _ in jobs), max(job.wake for _, job, _ in jobs)
        return pool.side_by_side(list(lanes.values()), share, wake, self._workspace)

    def _ready(self, job: Job, numbered: Sequence[str | Array], chain: _Chain) -> pool.Ready:
        """A job bound to what has its place; the chain is told of the rest."""
        frame, written = [0] * (2 * len(job.operands)), list[tuple[int, str, int]]()
        for at, number in enumerate(job.operands):
            if number is None:
                continue
            array = numbered[number]
            if isinstance(array, str) and (array in self._moving or array in self._inside):
                lie, (whole, begin) = self._lies[array], self._inside.get(array, (array, 0))
                written.append((2 * at, whole, lie.offset - begin))
            else:
                held = self.held[array] if isinstance(array, str) else array
                lie = lies(held)
                frame[2 * at] = address(held) - lie.offset
            frame[2 * at + 1] = lie.size
        ready = pool.Ready(job.steps, words(frame), job.workspace, threads=job.threads, wake=job.wake,
                           environment=pool.control_word(strict=job.strict), workspace=self._workspace)  # fmt: skip
        chain.written += [(ready.operands, word, name, offset) for word, name, offset in written]
        return ready

    def _array(self, begin: int, lie: Lies) -> Array:
        """An array in the memory."""
        return np.ndarray(lie.shape, lie.dtype, self._memory[begin : begin + lie.size], lie.offset, lie.strides)


def _read_natively(told: Sequence[Told], results: Collection[str]) -> set[str]:
    """Values that only native work reads, and what shows them to it: those whose address is enough."""
    found = {name for step in told for name in step.reads} - set(results)
    for step in reversed(told):
        if step.plan is None and not (step.looks and found.issuperset(step.writes)):
            found.difference_update(step.reads)
    return found


def _new(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array; an error says of which value it is, as the names of all would take time in every run."""
    try:
        return np.empty(shape, dtype)
    except MemoryError:
        with allocating(sized(f"the value {name!r}", shape, dtype), "run smaller inputs"):
            raise
