"""Prepared engines to times: interleaved rounds in random order, a burn of the CPUs beside each.

In a round one engine after the other runs a burst of calls while the rest are idle, which is checked by
their CPU clocks; rounds in which the CPUs were somebody else's are repeated.  It must not know problems.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.benchmark.process import GuestError, Process
from polyconv.benchmark.record import Round
from polyconv.dataclass import dataclass

__all__ = ["ROUNDS", "Budget", "Times", "interleave"]

ROUNDS = 7
"""Good rounds that are wanted."""
_LEAST_ROUNDS = 3
_SAMPLE_SECONDS = 20e-6  # shorter calls are timed by the dozen: the clock itself takes 0.05 us
_WARM_SECONDS = 1e-3
_SLOW_SECONDS = 0.5
_MOST_SAMPLES = 400
_TOO_SLOW = 2.0  # times the fastest: such an engine is no reference, a few rounds are enough
_LEAST_SHARE, _LEAST_RATE = 0.9, 0.85
_MOST_DISTURBANCE = 0.05


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to measure.

    Parameters
    ----------
    seconds : float
        For all engines together, about.
    rounds : int
        Good rounds wanted.
    """

    seconds: float = 2.0
    rounds: int = ROUNDS


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call, by engine and round; None where an engine sat out or failed."""

    rounds: tuple[Round, ...]
    seconds: Mapping[str, tuple[float | None, ...]]
    failures: Mapping[str, str]


def interleave(hosts: Mapping[str, Process], subjects: Collection[str], first: Mapping[str, float],
               burn: Callable[[], tuple[float, float]], best_rate: float, budget: Budget,
               rng: np.random.Generator) -> Times:  # fmt: skip
    """Measure engines against each other.

    Parameters
    ----------
    hosts : mapping
        The process that hosts each engine; all have prepared the problem and run it once.
    subjects : collection of str
        Engines that never sit out; of the others, those that have no chance to be the fastest do.
    first : mapping
        Seconds of each engine's first call.
    burn : callable
        Rate of one CPU alone, and the least share of it that one gets when all burn.
    best_rate : float
        The rate of a CPU that nobody disturbs.
    rng : Generator
        Decides the order in each round.
    """
    failures: dict[str, str] = {}
    typical: dict[str, float] = {}
    for name in hosts:
        _attempt(typical, failures, name, _once, hosts[name], name, first[name])
    part = budget.seconds / budget.rounds / max(1, len(hosts))
    found: list[dict[str, float]] = []
    rounds: list[Round] = []
    for process in set(hosts.values()):
        process.settle()
    begin = time.perf_counter()
    before = burn()
    while _goes_on(rounds, budget, time.perf_counter() - begin):
        present = [name for name in hosts if name not in failures]
        fastest = min((typical[name] for name in present if name not in subjects), default=math.inf)
        seconds: dict[str, float] = {}
        disturbance = 0.0
        if len(rounds) >= _LEAST_ROUNDS:
            present = [name for name in present if name in subjects or typical[name] <= _TOO_SLOW * fastest]
        last = None
        for name in _order(present, hosts, rng):
            if last is not None and hosts[name] is not last:
                last.settle()
            last = hosts[name]
            others = [process for process in set(hosts.values()) if process is not hosts[name]]
            idle, start = sum(p.cpu_seconds() for p in others), time.perf_counter()
            _attempt(seconds, failures, name, _burst, hosts[name], name, typical[name], part)
            took = time.perf_counter() - start
            disturbance = max(disturbance, (sum(p.cpu_seconds() for p in others) - idle) / took)
        if last is not None:
            last.settle()
        typical.update(seconds)
        after = burn()
        rate, share = min(before[0], after[0]), min(before[1], after[1])
        good = share >= _LEAST_SHARE and rate >= _LEAST_RATE * best_rate and disturbance <= _MOST_DISTURBANCE
        rounds.append(Round(rate, share, disturbance, good))
        found.append(seconds)
        best_rate = max(best_rate, rate)
        before = after
    return Times(tuple(rounds), {name: tuple(s.get(name) for s in found) for name in hosts}, failures)


def _order(engines: Sequence[str], hosts: Mapping[str, Process], rng: np.random.Generator) -> list[str]:
    """Engines in random order, those of one process together: between them nothing need come to rest."""
    mixed = [engines[index] for index in rng.permutation(len(engines))]
    processes = dict.fromkeys(hosts[name] for name in mixed)
    return [name for process in processes for name in mixed if hosts[name] is process]


def _attempt(found: dict[str, float], failures: dict[str, str], name: str, work: Callable[..., float],
             *arguments: Any) -> None:  # fmt: skip
    """Enter what the work finds, or why the guest failed."""
    try:
        found[name] = work(*arguments)
    except GuestError as error:
        failures[name] = str(error)


def _once(host: Process, engine: str, first: float) -> float:
    """About the seconds of a call; a first call so slow that nothing in it can be called preparation will do."""
    return first if first > _SLOW_SECONDS else float(min(host.call("burst", engine, 1, 3, 1)))


def _goes_on(rounds: list[Round], budget: Budget, elapsed: float) -> bool:
    """Until there are enough good rounds, or time is up and there are at least a few."""
    if sum(r.good for r in rounds) >= budget.rounds or len(rounds) >= 2 * budget.rounds:
        return False
    return len(rounds) < min(_LEAST_ROUNDS, budget.rounds) or elapsed < 1.5 * budget.seconds


def _burst(host: Process, engine: str, typical: float, seconds: float) -> float:
    """Median of the samples of one burst."""
    calls = max(1, math.ceil(_SAMPLE_SECONDS / typical))
    samples = min(_MOST_SAMPLES, max(1, int(seconds / (typical * calls))))
    warm = 0 if typical > 20 * _WARM_SECONDS else min(200, math.ceil(_WARM_SECONDS / typical))
    return float(statistics.median(host.call("burst", engine, warm, samples, calls)))
