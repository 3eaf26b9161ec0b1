"""From a situation to a plan: ask every algorithm of the table, take the one predicted fastest.

The choice depends on problem, weights being finite, accuracy, workspace limit and target; never on the
batch or the number of threads, so that these cannot change bits.  It knows no algorithm by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from polyconv.algorithms.program import FREE_BYTES, Situation
from polyconv.algorithms.table import ALGORITHMS, Algorithm
from polyconv.errors import Unsupported
from polyconv.problem.plan import Plan
from polyconv.runtime.threads import MOST_WORKERS

__all__ = ["Choice", "choose", "describe", "threads_for", "waking"]

CLOCK = 4.0e9
"""Cycles a second assumed by predictions; choices do not depend on it."""

# Below this a second thread costs more than it brings; below the next, waking one that sleeps does, though between
# the two it pays for the jobs of a burst, which then find it awake.
_SHARED_SECONDS = 10e-6
_BURST_SECONDS = 15e-6
_WAKE_SECONDS = 150e-6

Choice = tuple[Algorithm, Mapping[str, float], tuple[tuple[str, str], ...]]


def choose(s: Situation, algorithm: str | None = None) -> Choice:
    """Algorithm for a situation, its cost by term, and what was refused and why.

    Parameters
    ----------
    algorithm : str, optional
        Consider this row of the table only.

    Raises
    ------
    Unsupported
        If no algorithm is applicable; the message gives every reason.
    """
    return _choose(replace(s, problem=replace(s.problem, n=1), threads=1), algorithm)


@lru_cache(1024)
def _choose(one: Situation, algorithm: str | None) -> Choice:
    refused: list[tuple[str, str]] = []
    costs: dict[str, Mapping[str, float]] = {}
    for name, row in ALGORITHMS.items():
        reason = row.refusal(one) if algorithm in (None, name) else f"only {algorithm} was asked for"
        if reason is None:
            costs[name] = row.cost(one)
        else:
            refused.append((name, reason))
    if not costs:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
        raise Unsupported(f"no algorithm can compute '{one.problem}': {reasons}")
    best = min(costs, key=lambda name: sum(costs[name].values()))
    for name, terms in costs.items():
        if name != best:
            refused.append(
                (name, f"predicted {sum(terms.values()) / max(1.0, sum(costs[best].values())):.2f} times slower")
            )
    return ALGORITHMS[best], costs[best], tuple(refused)


def threads_for(s: Situation, seconds: float, workspace: int) -> int:
    """Threads a call will use: fewer for short calls, and as many as the pool has and the workspace limit allows."""
    threads = 1 if seconds < _SHARED_SECONDS else min(s.threads, MOST_WORKERS + 1)
    if s.limit is not None and workspace > FREE_BYTES:
        threads = min(threads, max(1, s.limit // (workspace - FREE_BYTES)))
    return threads


def waking(seconds: float) -> int:
    """Whether a job wakes sleeping threads: 0 never, 1 in a burst of jobs, 2 always."""
    return (seconds >= _BURST_SECONDS) + (seconds >= _WAKE_SECONDS)


def describe(s: Situation, algorithm: str | None = None, packed_bytes: int = 0, notes: tuple[str, ...] = ()) -> Plan:
    """Plan of a situation."""
    p = s.problem
    row, terms, refused = choose(s, algorithm)
    cycles = tuple((name, count * (p.n or 0)) for name, count in terms.items())
    seconds = sum(count for _, count in cycles) / CLOCK
    workspace = row.workspace(s)
    threads = threads_for(s, seconds, workspace)
    arithmetic = row.arithmetic(s)
    kind, bound = row.bound(s)
    if arithmetic == "bf16":
        notes = (
            *notes,
            "dot products of bf16 pairs count subnormal numbers as zero; accuracy='strict' does not use them",
        )
    return Plan(
        problem=p,
        algorithm=row.name,
        arithmetic=" ".join(word for word in (row.name, arithmetic, row.scheme(s)) if word),
        target=s.target.level,
        threads=threads,
        workspace_bytes=threads * max(0, workspace - FREE_BYTES),
        packed_bytes=packed_bytes,
        error_bound=bound,
        bound_kind=kind,
        seconds=seconds,
        cycles=cycles,
        refused=refused,
        notes=notes,
    )
