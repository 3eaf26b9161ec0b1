"""Choosing by timing: applicable algorithms run the problem in turns, the fastest is remembered.

The clock decides once; from then on the same situation gets the same algorithm, so bits do not change
from call to call.  What runs a candidate is given by the caller.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from polyconv.lowering.situation import Situation
from polyconv.planning import wisdom
from polyconv.planning.planner import Decision, choose
from polyconv.planning.wisdom_file import RIGORS

__all__ = ["fastest"]

_ROUNDS = {"measure": (5, 0.05), "patient": (25, 0.5)}
"""Rounds and seconds of all candidates together."""

_MEASURED_BELOW = {"measure": 8.0, "patient": float("inf")}
"""Candidates predicted to take so many times longer than the best are not timed."""

_RACING = 3.0  # one that takes so many times longer in the best of three calls is not timed again
_NOISE = 1.02  # a gain below it leaves the predicted one in place
_MOST_CALLS = 1000

_lock = threading.RLock()


def _after_fork() -> None:
    """In a child, the thread that was measuring is gone."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def fastest(s: Situation, rigor: str, candidate: Callable[[Situation, str], Callable[[], object]]) -> Decision | None:
    """Decide by measuring, unless it is known already with as much rigor; None where there is no choice.

    Parameters
    ----------
    rigor : str
        ``measure`` or ``patient``.
    candidate : callable
        ``candidate(situation, name)``: a function that runs the problem once with that algorithm.
    """
    with _lock:
        known = wisdom.decision(s)
        if known is not None and RIGORS.index(known.rigor) >= RIGORS.index(rigor):
            return known
        choice = choose(s)
        cycles = {name: choice.cycles(name) for name in choice.costs}
        predicted = choice.algorithm
        most = _MEASURED_BELOW[rigor] * cycles[predicted]
        names = [name for name in sorted(cycles, key=cycles.__getitem__) if cycles[name] <= most]
        if len(cycles) < 2 or 0 in s.problem.y_shape:
            return known
        times = _times({name: candidate(s, name) for name in names}, *_ROUNDS[rigor])
        best = min(times, key=times.__getitem__)
        if times[predicted] <= _NOISE * times[best]:
            best = predicted
        wisdom.remember(s, best, times, rigor)
        return wisdom.decision(s)


def _times(runs: Mapping[str, Callable[[], object]], rounds: int, seconds: float) -> dict[str, float]:
    """Seconds of a call: the median of the rounds' best.

    A round times every candidate, so that a busy spell of the machine hits all alike.
    """
    once = {}
    for name, run in runs.items():
        run()  # packs, compiles, touches the memory
        once[name] = _clocked(run)
    for name in [name for name in runs if once[name] > _RACING * min(once.values())]:
        once[name] = min(once[name], _clocked(runs[name]), _clocked(runs[name]))  # another process may have had the CPU
    racing = [name for name in runs if once[name] <= _RACING * min(once.values())]
    calls = {
        name: min(_MOST_CALLS, max(1, round(seconds / rounds / len(racing) / max(once[name], 1e-9)))) for name in racing
    }
    best: dict[str, list[float]] = {name: [] for name in racing}
    for _ in range(rounds):
        for name in racing:
            best[name].append(min(_clocked(runs[name]) for _ in range(calls[name])))
    return {**once, **{name: float(np.median(times)) for name, times in best.items()}}


def _clocked(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
