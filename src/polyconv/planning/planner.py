"""From a situation to a plan: ask every algorithm of the table, take the one predicted or measured fastest.

The choice depends on problem, weights being finite and whether they stay, accuracy, workspace limit, target and
what was measured, and the machine's profile; never on the batch, the number of threads or the clock, so that these
cannot change bits.  It knows no algorithm by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache

from polyconv.algorithms.form import Form, Refusal
from polyconv.algorithms.table import ALGORITHMS
from polyconv.dataclass import dataclass
from polyconv.errors import Unsupported
from polyconv.lowering.gaps import gap_cycles
from polyconv.lowering.situation import FREE_BYTES, Situation, changed, of_one_image
from polyconv.machine.profile import Profile
from polyconv.planning.remembered import remembered
from polyconv.problem.plan import Candidate, Plan, spelled
from polyconv.runtime.threads import MOST_WORKERS

__all__ = [
    "Choice", "Decision", "arithmetic_name", "choose", "describe", "form_of", "priced", "reasons", "take",
    "threads_for", "threads_of", "waking",
]  # fmt: skip

# Below this a second thread costs more than it brings; below so many wakings, waking one that sleeps does, though it
# pays for the jobs of a burst, which then find it awake.
_SHARED_SECONDS = 5e-6
_REPAID_WAKINGS = 4.5


@dataclass(frozen=True, slots=True)
class Decision:
    """An algorithm taken for another reason than its prediction.

    Parameters
    ----------
    algorithm : str
    source : str
        ``asked`` by the caller, ``measured`` in this process, ``wisdom``: measured in an earlier one, or ``around``:
        predicted fastest for smaller and for larger images.
    seconds : mapping
        Measured times of the candidates.
    rigor : str
        How carefully they were measured.
    conditions : str
        Under which they were measured.
    """

    algorithm: str
    source: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    rigor: str = ""
    conditions: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm for one image, the form and the cost of every candidate, and why others are none.

    Costs are by term.  With weights that come anew with each call, ``preparing`` has the cycles that every candidate
    needs for them.
    """

    algorithm: str
    forms: Mapping[str, Form]
    costs: Mapping[str, Mapping[str, float]]
    preparing: Mapping[str, float]
    refused: tuple[tuple[str, Refusal], ...]
    decision: Decision | None = None

    @property
    def form(self) -> Form:
        """What was chosen."""
        return self.forms[self.algorithm]

    def running(self, n: int = 1) -> float:
        """Predicted cycles of the algorithm for so many images, once it is prepared."""
        return n * sum(self.costs[self.algorithm].values())

    def cycles(self, name: str, n: int = 1) -> float:
        """Predicted cycles of a call with so many images by a candidate."""
        return n * sum(self.costs[name].values()) + self.preparing.get(name, 0.0)


def arithmetic_name(algorithm: str, form: Form) -> str:
    """What fixes the bits of a form's results."""
    return " ".join(word for word in (algorithm, form.arithmetic, form.scheme) if word)


def form_of(algorithm: str, s: Situation) -> Form:
    """The form with which an algorithm computes a situation, whatever the workspace limit.

    Raises
    ------
    Unsupported
        If it has none.
    """
    found = remembered(algorithm, changed(s, once=False), ALGORITHMS[algorithm].form)
    if isinstance(found, Refusal):
        raise Unsupported(f"{algorithm} cannot compute '{s.problem}': {found}")
    return found


def choose(s: Situation, decision: Decision | None = None) -> Choice:
    """Algorithm for a situation: the one predicted fastest, or what was decided.

    Parameters
    ----------
    decision : Decision, optional
        Its algorithm must be applicable; one that was asked for is the only one considered.

    Raises
    ------
    Unsupported
        If no algorithm is applicable; the message gives every reason.
    """
    one = of_one_image(s)
    if decision is None:
        return _estimated(one, None)
    if decision.source == "asked":
        return replace(_estimated(one, decision.algorithm), decision=decision)
    return replace(_estimated(one, None), algorithm=decision.algorithm, decision=decision)


def take(s: Situation, decision: Decision | None = None) -> Choice:
    """What ``choose`` takes, with its own costs alone: others are priced only as far as they might be cheaper."""
    one = of_one_image(s)
    if decision is None:
        return remembered("", one, _cheapest)
    return replace(_alone(one, decision.algorithm), decision=decision)


@lru_cache(1024)
def _alone(one: Situation, name: str) -> Choice:
    """What ``_estimated`` says of one algorithm, without a reason for every other one."""
    form = ALGORITHMS[name].fitting(changed(one, once=False)) if name in ALGORITHMS else ""
    if isinstance(form, Refusal):
        return _estimated(one, name)  # which raises, with the reason
    return Choice(name, {name: form}, {name: priced(form)}, {name: form.preparing()} if one.once else {}, ())


_ROUNDED = 1 + 1e-9
"""Costs and the least of them are rounded on different ways."""


@lru_cache(1024)
def _cheapest(one: Situation) -> Choice:
    """The choice among all, the likeliest first: of others it is enough that they take longer at least."""
    ready = changed(one, once=False)
    rows = [(row.at_least(ready), at, row) for at, row in enumerate(ALGORITHMS.values())]
    best: tuple[float, int] = (math.inf, 0)
    found: Choice | None = None
    for at_least, at, row in sorted(rows, key=lambda each: each[:2]):
        if at_least > best[0] * _ROUNDED or at_least == math.inf:
            break
        form = row.fitting(ready)
        if isinstance(form, Refusal):
            continue
        costs = priced(form)
        preparing = {row.name: form.preparing()} if one.once else {}
        price = sum(costs.values()) + sum(preparing.values()), at
        if found is None or price < best:
            best, found = price, Choice(row.name, {row.name: form}, {row.name: costs}, preparing, ())
    return _estimated(one, None) if found is None else found


@lru_cache(1024)
def _estimated(one: Situation, only: str | None) -> Choice:
    ready = changed(one, once=False)  # no algorithm asks
    found = {
        name: row.fitting(ready) if only in (None, name) else f"only {only} was asked for"
        for name, row in ALGORITHMS.items()
    }
    forms = {name: form for name, form in found.items() if not isinstance(form, Refusal)}
    refused = tuple((name, reason) for name, reason in found.items() if isinstance(reason, Refusal))
    costs = {name: priced(form) for name, form in forms.items()}
    preparing = {name: form.preparing() for name, form in forms.items()} if one.once else {}
    if not costs and only is not None:
        reason = dict(refused).get(only, "there is no such algorithm")
        raise Unsupported(f"{only}, the algorithm asked for, cannot compute '{one.problem}': {reason}")
    if not costs:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
        raise Unsupported(f"no algorithm can compute '{one.problem}': {reasons}")
    best = min(costs, key=lambda name: sum(costs[name].values()) + preparing.get(name, 0.0))
    return Choice(best, forms, costs, preparing, refused)


_MOVES = ("moves", "panels", "sums")
"""Terms of loads and stores in caches, which algorithms count for a machine with two loads and one store a cycle."""


def priced(form: Form) -> Mapping[str, float]:
    """Cycles of a form by term, those of moves by how fast the machine moves vectors."""
    times = form.s.moving
    costs = {term: cycles * (times if term in _MOVES else 1.0) for term, cycles in form.cost().items()}
    beside = 0.0 if form.is_whole else gap_cycles(form.s)
    return {**costs, "gaps": beside * times} if beside else costs


def reasons(choice: Choice, n: int, clock: float) -> tuple[tuple[str, str], ...]:
    """Every algorithm that was not taken, with the reason: why it cannot be, or how much slower it is.

    Parameters
    ----------
    n : int
        Batch, for the predicted times.
    clock : float
        Cycles a second, for these as well.
    """
    chosen = choice.algorithm
    measured = {} if choice.decision is None else choice.decision.seconds
    said = list(choice.refused)
    for name in choice.costs:
        if name == chosen:
            continue
        predicted = choice.cycles(name, n or 1), choice.cycles(chosen, n or 1)
        words = [f"predicted {_compared(*predicted)}" + (f" ({spelled(predicted[0] / clock)})" if n else "")]
        if name in measured and chosen in measured:
            words.append(f"measured {_compared(measured[name], measured[chosen])} ({spelled(measured[name])})")
        elif measured:
            words.append("not measured")
        said.append((name, ", ".join(words)))
    return tuple(said)


def _compared(time: float, other: float) -> str:
    if time >= other:
        return f"{time / max(other, 1e-12):.2f} times slower"
    return f"{other / max(time, 1e-12):.2f} times faster"


def threads_for(s: Situation, seconds: float, workspace: int) -> int:
    """Threads a call will use; one whose forms are taken by chance is shared, however short it is.

    A call that is predicted to be short reads its weights all the same: amid others, which push them out of nearer
    caches, from the last one.
    """
    p = s.problem
    weights = p.m * (p.c // max(1, p.groups)) * math.prod(p.k) * p.w_dtype.itemsize
    reading = weights / (s.profile.stream("l3", 1.0) * s.profile.clock)
    return threads_of(s.threads, s.limit, math.inf if s.chance is not None else max(seconds, reading), workspace)


def threads_of(most: int, limit: int | None, seconds: float, workspace: int) -> int:
    """Threads for a call: fewer for short calls, and as many as the pool has and the workspace limit allows."""
    threads = 1 if seconds < _SHARED_SECONDS else min(most, MOST_WORKERS + 1)
    if limit is not None and workspace > FREE_BYTES:
        threads = min(threads, max(1, limit // (workspace - FREE_BYTES)))
    return threads


def waking(profile: Profile, seconds: float) -> int:
    """Whether a job wakes sleeping threads: 1 in a burst of jobs, 2 always."""
    return 1 + (seconds >= _REPAID_WAKINGS * profile.wake)


def _spelled(value: object) -> str:
    """A choice in words: ``(14, 14)`` is ``14x14``."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def describe(s: Situation, decision: Decision | None = None, packed_bytes: int = 0) -> Plan:
    """Plan of a situation."""
    p = s.problem
    n = p.n or 0
    choice = choose(s, decision)
    name = choice.algorithm
    form = form_of(name, s)
    cycles = {term: count * n for term, count in choice.costs[name].items()}
    if s.once:
        cycles["preparing"] = choice.preparing[name]
    workspace = form.workspace
    clock = s.profile.clock
    threads = threads_for(s, choice.running(n) / clock, workspace)
    kind, bound = form.bound
    measured: Mapping[str, float] = {} if decision is None else decision.seconds
    notes = []
    if form.arithmetic == "bf16":
        notes.append("dot products of bf16 pairs count subnormal numbers as zero; accuracy='strict' does not use them")
    if s.once:
        notes.append("new weights are prepared in every call; the choice is that for one image: no batch changes bits")
    return Plan(
        problem=p,
        algorithm=name,
        arithmetic=arithmetic_name(name, form),
        target=s.target.level,
        threads=threads,
        workspace_bytes=threads * max(0, workspace - FREE_BYTES),
        packed_bytes=packed_bytes,
        error_bound=bound,
        bound_kind=kind,
        seconds=choice.cycles(name, n) / clock,
        cycles=tuple(cycles.items()),
        refused=reasons(choice, n, clock),
        notes=tuple(notes),
        source="estimate" if decision is None else decision.source,
        candidates=tuple(
            Candidate(name, choice.cycles(name, n) / clock, measured.get(name)) for name in choice.costs
        ),
        conditions="" if decision is None or not measured else f"{decision.conditions}, rigor {decision.rigor}",
        accuracy="strict" if s.strict else "fast",
        workspace_limit=s.limit,
        profile=str(s.profile),
        form=tuple((term, _spelled(value)) for term, value in form.choices().items()),
    )
