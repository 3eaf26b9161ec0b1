"""A graph made ready to run: steps in order, each a convolution of ours or a group of other nodes.

The one idea: a run that is like the one before it is replayed, any other goes step by step, and values die with their
last reader.  It must not know how steps came about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import Error
from polyconv.gpu.arrays import GpuArray
from polyconv.models.elements import type_of
from polyconv.models.graph import Array, Node, Value
from polyconv.models.kept import KeptPlans
from polyconv.models.kept_runs import About, KeptRuns
from polyconv.models.replay import Replay, copied
from polyconv.models.replays import Replays
from polyconv.models.steps import Alive, Schedule, Step, Times, most_alive, scheduled
from polyconv.runtime.memory import collecting_later

if TYPE_CHECKING:
    from polyconv.models.ahead import Ahead
    from polyconv.models.gpu_replay import GpuReplays

__all__ = ["Program", "halting", "own"]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Steps in running order, and what is known beforehand.

    Parameters
    ----------
    steps : tuple of Step
        In running order.
    folded : tuple of Node
        Nodes that were computed when the model was read, or lie in a step as constants.
    removed : tuple of Node
        Nodes that need no computing.
    constants : mapping
        Values that are the same in every run, of those that are results or that steps read.
    values : mapping
        What the engines know of every value.
    reasons : mapping
        Why nodes that are on a host are there.
    open : sequence of tuple of str
        By step, the values of which only a run tells the extents.
    replays : Replays
        Of runs that are alike.
    ahead : Ahead
        What makes steps ready before the first run.
    here : frozenset of str
        Values in the CPU's memory, where the others lie on a GPU.
    clock : callable or None
        Seconds at which what was started is done; None if nobody wants to wait for that.
    plans : KeptPlans
        Of its convolutions.
    runs : KeptRuns or None
        To whom it is told how it first ran, so that this is left.
    counting : frozenset of int
        Steps that follow from extents and from whole numbers that are inputs.
    """

    steps: tuple[Step, ...]
    folded: tuple[Node, ...]
    removed: tuple[Node, ...]
    constants: Mapping[str, Array]
    values: Mapping[str, Value]
    reasons: Mapping[Node, str]
    open: Sequence[tuple[str, ...]]
    _schedules: dict[tuple[str, ...], Schedule] = field(default_factory=dict)
    _seen: dict[str, Value] = field(default_factory=dict)
    _told_by: list[object] = field(default_factory=list)
    _said: list[tuple[str | None, int]] = field(default_factory=list)
    replays: Replays | GpuReplays = field(default_factory=Replays)
    ahead: Ahead = field(kw_only=True)
    plans: KeptPlans = field(kw_only=True)
    counting: frozenset[int] = frozenset()
    here: frozenset[str] = frozenset()
    clock: Callable[[], float] | None = perf_counter
    runs: KeptRuns | None = None

    def run(
        self, feeds: Mapping[str, Any], results: Sequence[str], is_halted: Callable[[], bool] = lambda: False
    ) -> tuple[list[Array], Times]:
        """Run the steps that some results need.

        Parameters
        ----------
        feeds : mapping
            Graph inputs.
        results : sequence of str
            Values to return, in this order.
        is_halted : callable
            Asked before each step; once it is true, the run ends with an ``Error``.

        Returns
        -------
        list of ndarray, Times
            The results, each in memory of its own, and how long the steps took.
        """
        times, halt = Times(len(self.steps)), halting(is_halted, len(self.steps))
        replay = self.replays.found(results, feeds)
        done = None if replay is None else replay.run(feeds, times, halt)
        if replay is not None and replay.is_over:
            self.replays.forget(replay)  # type: ignore[arg-type]  # its own
        if done is not None and replay not in self._told_by and any(self.open):
            assert replay is not None
            self._told_by[:] = [replay]  # which makes values of the same extents in every run
            again = {**replay.held, **done[0]}
            names = (name for of_step in self.open for name in of_step if name in again)
            self._seen.update({name: _seen(name, again[name]) for name in names})
        if done is None:
            is_first = not self._schedules
            done = self._noted(feeds, tuple(results), times, halt, is_first)
            if is_first and self.runs is not None and self.runs.are_again:  # that one also planned and packed
                with suppress(MemoryError):
                    self._noted(feeds, tuple(results), Times(len(self.steps)), halt, False)
        return own(results, *done), times

    def _noted(self, feeds: Mapping[str, Any], results: tuple[str, ...], times: Times, halt: Callable[[int], None],
               is_first: bool) -> tuple[dict[str, Any], set[str]]:  # fmt: skip
        """Run step by step; the second of two runs that are alike makes the replay, and may be left."""
        told: list[Any] | None = [] if self.replays.wants(results, feeds) else None
        with nullcontext() if self.runs is None else self.runs.noting():
            with collecting_later(trims=is_first), self.plans():  # later ones take less for a while
                done = self._by_steps(feeds, results, times, halt, told)
            laid = self.replays.learn(told, results, self.constants, feeds) if told else None
        if self.runs is not None and not is_first:
            self.runs.leave(laid, self._about, is_like_the_first=bool(told))
        return done

    def heard(self, replay: Replay, about: About) -> None:
        """Be told of runs that an earlier process has left, and what it said of their steps."""
        assert type(self.replays) is Replays
        self.replays.adopt(replay)
        self._said[:] = about.steps
        self._seen.update(about.values)

    def _about(self) -> About:
        """What is said of runs that are left."""
        return About(tuple((step.segment.problem(), step.segment.held()) for step in self.steps), {**self._seen})

    def problem(self, index: int) -> str | None:
        """The convolution that a step ran last."""
        return self.steps[index].segment.problem() or (self._said[index][0] if self._said else None)

    def held_bytes(self, index: int) -> int:
        """Bytes of the constants of a step, in all forms that are made by now."""
        segment = self.steps[index].segment
        return segment.held() if segment.problem() or not self._said else self._said[index][1]

    def told(self, feeds: Mapping[str, Any], results: Sequence[str]) -> tuple[list[Array], list[Any]]:
        """Results of a run, and what its steps tell of themselves; None for one that may do otherwise the next time."""
        told: list[Any] = []
        with self.plans():
            done = self._by_steps(feeds, tuple(results), Times(len(self.steps)), lambda index: None, told)
        return own(results, *done), told

    def _by_steps(self, feeds: Mapping[str, Array], results: tuple[str, ...], times: Times, halt: Callable[[int], None],
                  told: list[Any] | None) -> tuple[dict[str, Any], set[str]]:  # fmt: skip
        """Run step by step: values by name, and which of them nobody else holds the memory of."""
        values: dict[str, Any] = {**self.constants, **feeds}
        fresh: set[str] = set()
        schedule = self._schedule(results)
        self._told_by.clear()
        self.ahead([self.steps[index] for index, _ in schedule], self.values, feeds)
        for index, last in schedule:
            step = self.steps[index]
            halt(index)
            start = self.clock() if self.clock else 0.0
            given, chosen, telling = [values[name] for name in step.reads], None, step.segment.telling
            if told is None or telling is None:
                made = step.segment.run(given)
            else:
                made, chosen = telling(given)
            passed = self.clock() - start if self.clock else 0.0
            if self.clock:
                times.add(index, passed)
            if told is not None:
                names, counts = (step.reads, step.writes), index in self.counting
                told.append(self.replays.tell(index, *names, step.segment, given, made, passed, counts, chosen))
            values.update(zip(step.writes, made, strict=False))
            for name in self.open[index]:
                self._seen[name] = _seen(name, values[name])
            if not step.segment.views:
                fresh.update(step.writes)
            for name in last:
                del values[name]
        return values, fresh

    @property
    def known(self) -> Mapping[str, Value]:
        """What is known of every value: before any run, or else by the last one."""
        return {**self.values, **self._seen}

    def alive(self, results: Sequence[str]) -> Alive | None:
        """Bytes that a run for some results has alive at once; None as long as no run has told open extents."""
        return most_alive(self.steps, self._schedule(tuple(results)), self.known)

    def _schedule(self, results: tuple[str, ...]) -> Schedule:
        found = self._schedules.get(results)
        if found is None:
            found = self._schedules[results] = scheduled(self.steps, results, self.constants)
        return found


def halting(is_halted: Callable[[], bool], steps: int) -> Callable[[int], None]:
    """What ends a run before a step if it ``is_halted``.

    Raises
    ------
    Error
        When it is called then.
    """
    def halt(index: int) -> None:
        if is_halted():
            raise Error(f"the run was asked to end, before its step {index} of {steps}")

    return halt


def own(results: Sequence[str], values: Mapping[str, Any], fresh: set[str]) -> list[Array]:
    """Results, each in memory of its own: copies of those that others may hold."""
    found = []
    for name in results:
        is_own = name in fresh and (type(values[name]) is not np.ndarray or values[name].flags.c_contiguous)
        found.append(values[name] if is_own else copied(values[name], name))
        fresh.discard(name)  # it may be asked for twice
    return found


def _seen(name: str, made: Any) -> Value:
    """What a run tells of a value."""
    is_array = isinstance(made, np.ndarray | GpuArray)
    return Value(name, type_of(made.dtype), made.shape) if is_array else Value(name)
