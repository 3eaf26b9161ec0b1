"""Choosing by timing: every applicable algorithm runs the problem, the fastest is kept for this process.

The clock decides once; from then on the same situation gets the same algorithm, so bits do not change
from call to call.  What runs a candidate is given by the caller.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from polyconv.algorithms.program import Situation
from polyconv.algorithms.table import ALGORITHMS

__all__ = ["fastest", "known_choice"]

_ROUNDS = {"measure": (5, 0.05), "patient": (25, 0.5)}

_known: dict[str, str] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    """In a child, the thread that was measuring is gone."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _key(s: Situation) -> str:
    """What a choice may depend on: never the batch or the number of threads."""
    problem = replace(s.problem, n=None).__str__()
    return f"{problem} | {s.target.level} {s.limit} {s.strict} {s.finite}"


def known_choice(s: Situation) -> str | None:
    """Algorithm that was measured fastest for a situation, or None."""
    return _known.get(_key(s))


def fastest(s: Situation, rigor: str, candidate: Callable[[Situation, str], Callable[[], object]]) -> str | None:
    """Algorithm that runs a situation fastest; measured at most once a process.

    Parameters
    ----------
    rigor : str
        ``measure`` or ``patient``.
    candidate : callable
        ``candidate(situation, name)``: a function that runs the problem once with that algorithm.
    """
    with _lock:
        key = _key(s)
        if key not in _known:
            names = [name for name, row in ALGORITHMS.items() if row.refusal(s) is None]
            if len(names) > 1:
                rounds, seconds = _ROUNDS[rigor]
                runs = {name: candidate(s, name) for name in names}
                times = {name: _median(run, rounds, seconds / len(runs)) for name, run in runs.items()}
                names.sort(key=lambda name: times[name])
            if names:
                _known[key] = names[0]
        return _known.get(key)


def _median(run: Callable[[], object], rounds: int, seconds: float) -> float:
    run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < rounds or (time.perf_counter() - begin < seconds and len(times) < 1000):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        if time.perf_counter() - begin > 20 * seconds + 1:
            break
    return statistics.median(times)
