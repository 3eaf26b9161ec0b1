"""Plans run: on arrays that lie as a plan was made for, on the pool of threads that convolutions use.

The one idea: a plan is made once for inputs that lie alike, and bound to frames; what is left to a run is to write the
addresses of its arrays into one of them.  It must not know operators.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from polyconv.errors import OutOfMemory
from polyconv.in_force import target_in_force
from polyconv.kernels.address import address
from polyconv.kernels.record import words
from polyconv.operators.job import Array, Conditions, Job, Plan, Planner
from polyconv.operators.lying import Lies, lies, new_array
from polyconv.operators.numbers import MOST_NUMBERS
from polyconv.runtime import threads as pool
from polyconv.runtime.arrays import mark
from polyconv.runtime.memory import Recent, sized
from polyconv.settings import context
from polyconv.settings import resolve as setting

__all__ = ["Planned", "conditions", "dry", "values_of"]

_MOST_PLANS = 64
"""Plans that an operator keeps."""
_MOST_TABLES = 16 << 20
"""Bytes of the tables of plans that are kept beyond a few."""


def conditions(threads: int | None) -> Conditions:
    """Conditions by the settings in force."""
    return Conditions(target_in_force(), setting("threads", threads), setting("check"))


def dry() -> Conditions:
    """Conditions of plans that only say how results will lie."""
    return Conditions(target_in_force(), 1, check=False, dry=True)


class Planned:
    """An operator's plans, by how its inputs lie.  Safe to use from several threads.

    Parameters
    ----------
    planner : callable
        Makes them.
    threads : int or None
        Most threads; None is the setting.
    numbers : sequence of int
        Arrays whose values plans depend on.
    """

    __slots__ = ("_bound", "_last", "_lock", "_numbers", "_planner", "_threads")

    def __init__(self, planner: Planner, threads: int | None, numbers: Sequence[int] = ()) -> None:
        self._planner, self._threads, self._numbers = planner, threads, tuple(numbers)
        self._bound: Recent[_Bound] = Recent(attrgetter("plan.table_bytes"))
        self._last: tuple[Any, Any, _Bound] | None = None
        self._lock = threading.RLock()  # a finaliser may run the operator amid a run

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the operator; its results, each in new memory."""
        key = self._key(arrays)
        last = self._last  # one tuple, as other threads may run other sizes
        if last is not None and last[0] is context() and last[1] == key:
            return last[2](arrays)
        bound = self._found(key, arrays)
        self._last = context(), key, bound
        return bound(arrays)

    def plan(self, arrays: Sequence[Array], into: tuple[Lies, ...] = ()) -> Plan | None:
        """The plan for all arrays that lie so; None where values count too, or kernels check their accesses.

        ``into`` says how results are to lie, if that is not the operator's own matter.
        """
        if self._numbers:
            return None
        if into:
            here = conditions(self._threads)
            return None if here.check else self._planner([lies(a) for a in arrays], replace(here, into=into))
        bound = self._found(self._key(arrays), arrays)
        return None if bound.check else bound.plan

    def _key(self, arrays: Sequence[Array]) -> list[Any]:
        key: list[Any] = [(a.shape, a.strides, a.dtype) for a in arrays]
        return key + [values_of(arrays[at]) for at in self._numbers] if self._numbers else key

    def _found(self, key: Sequence[Any], arrays: Sequence[Array]) -> _Bound:
        here = conditions(self._threads)
        whole = (here, *key)
        with self._lock:
            found = self._bound.get(whole)
        if found is None:
            given = [lies(a) for a in arrays]
            for at in self._numbers:
                given[at] = replace(given[at], values=values_of(arrays[at]))
            found = _Bound(self._planner(given, here), given, here)
            with self._lock:
                self._bound.put(whole, found)
                while self._bound.are_too_many(_MOST_PLANS, _MOST_TABLES):
                    self._bound.pop_first()
        return found


def with_values(planner: Planner, arrays: Sequence[Array], numbers: Sequence[int]) -> Planner:
    """The planner to which the values of some inputs are known."""
    known = {at: values_of(arrays[at]) for at in numbers}

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        return planner([replace(lie, values=known.get(at)) for at, lie in enumerate(given)], c)

    return planned


def values_of(numbers: Array) -> tuple[Any, ...]:
    """The numbers of an array; one too many of a long one, which a planner refuses."""
    return tuple(numbers.reshape(-1)[: MOST_NUMBERS + 1].tolist())


_Seat = list[tuple[pool.Ready, tuple[tuple[int, int], ...]]]
"""Jobs ready to run, and which array's address goes to which word of the frame."""


class _Bound:
    """A plan, and frames for those who run it at once."""

    __slots__ = ("_given", "_offsets", "_results", "_seats", "_threads", "check", "plan")

    def __init__(self, plan: Plan, given: Sequence[Lies], c: Conditions) -> None:
        self.plan, self._given, self.check = plan, tuple(given), c.check
        self._offsets = [lie.offset for lie in given]
        self._results = len(plan.results)
        self._threads = max((job.threads for job in plan.jobs), default=1)
        self._seats: list[_Seat] = []

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        plan = self.plan
        made = [_new(lie) for lie in (*plan.results, *plan.between)]
        addresses = [address(a) - offset for a, offset in zip(arrays, self._offsets, strict=True)]
        addresses += [address(a) for a in made]
        if self._threads > 1:
            pool.start_workers(self._threads)
        try:
            seat = self._seats.pop()
        except IndexError:
            seat = self._seat(len(addresses))
        for ready, places in seat:
            for number, at in places:
                ready.operands[2 * at] = addresses[number]
            ready()
        self._seats.append(seat)
        return made[: self._results]

    def _frame(self, job: Job) -> Any:
        """Addresses and bytes of a job's operands, of which only constants have their addresses by now."""
        plan, held = self.plan, [lies(a) for a in self.plan.constants]
        everything = [*self._given, *plan.results, *plan.between, *held]
        addresses = [0] * (len(everything) - len(held))
        addresses += [address(a) - lie.offset for a, lie in zip(plan.constants, held, strict=True)]
        return words([
            v for number in job.operands
            for v in ((0, 0) if number is None else (addresses[number], everything[number].size))
        ])  # fmt: skip

    def _seat(self, moving: int) -> _Seat:
        return [
            (
                pool.Ready(job.steps, self._frame(job), job.workspace, threads=job.threads, wake=job.wake,
                           environment=pool.control_word(strict=job.strict), check=self.check),
                _moving(job, moving),
            )
            for job in self.plan.jobs
        ]  # fmt: skip


def _moving(job: Job, count: int) -> tuple[tuple[int, int], ...]:
    """Arrays that come with a run, and which operands they are."""
    return tuple((number, at) for at, number in enumerate(job.operands) if number is not None and number < count)


def _new(lie: Lies) -> Array:
    try:
        return mark(new_array(lie))
    except (MemoryError, ValueError):
        what = sized("a result", lie.shape, lie.dtype)
        raise OutOfMemory(f"{what}, more than the system gives; run smaller inputs") from None
