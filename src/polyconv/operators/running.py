"""Plans run: on arrays that lie as a plan was made for, on the pool of threads that convolutions use.

The one idea: a plan is made once for inputs that lie alike, and kept.  It must not know operators.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyconv.kernels.record import words
from polyconv.operands import span
from polyconv.operators.job import Array, Conditions, Job, Lies, Plan, Planner, lies
from polyconv.prepared import target_in_force
from polyconv.runtime import threads as pool
from polyconv.runtime.arrays import mark
from polyconv.runtime.memory import allocating, sized
from polyconv.settings import resolve as setting

__all__ = ["Planned", "conditions"]

_MOST_PLANS = 32
_ENVIRONMENT = pool.control_word(strict=True)
"""Subnormal numbers count: results are those of the specification, to the bit where they are rounded once."""


def conditions(threads: int | None) -> Conditions:
    """Conditions by the settings in force."""
    return Conditions(target_in_force(), setting("threads", threads), setting("check"))


class Planned:
    """An operator's plans, by how its inputs lie.  Safe to use from several threads.

    Parameters
    ----------
    planner : callable
        Makes them.
    threads : int or None
        Most threads; None is the setting.
    """

    __slots__ = ("_lock", "_planner", "_plans", "_threads")

    def __init__(self, planner: Planner, threads: int | None) -> None:
        self._planner, self._threads = planner, threads
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, arrays: Sequence[Array]) -> Plan:
        """The plan for arrays that lie so."""
        here = conditions(self._threads)
        key = (here, *((a.shape, a.dtype, a.strides) for a in arrays))
        with self._lock:
            found = self._plans.get(key)
        if found is None:
            found = self._planner([lies(a) for a in arrays], here)
            with self._lock:
                self._plans[key] = found
                if len(self._plans) > _MOST_PLANS:
                    self._plans.popitem(last=False)
        return found

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the operator; its results, each in new memory."""
        plan = self.plan(arrays)
        results = [_new(lie, "a result") for lie in plan.results]
        between = [_new(lie, "what is between two passes") for lie in plan.between]
        everything = [*arrays, *results, *between, *plan.constants]
        for job in plan.jobs:
            _run(job, [everything[number] for number in job.operands])
        return results


def _new(lie: Lies, what: str) -> Array:
    with allocating(sized(what, lie.shape, lie.dtype), "run smaller inputs"):
        return mark(np.empty(lie.shape, lie.dtype))


def _run(job: Job, operands: Sequence[Array]) -> None:
    if job.threads > 1:
        pool.start_workers(job.threads)
    frame = words([v for a in operands for v in span(a)])
    pool.run_steps(
        job.steps, frame, job.workspace, environment=_ENVIRONMENT, threads=job.threads, wake=job.wake,
        check=setting("check"),
    )  # fmt: skip


