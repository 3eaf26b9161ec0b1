"""Random problems to shares of what the machine allows: where polyconv is far from it, and how far everywhere.

Every problem runs by its planned algorithm, or the one that is named, on one thread.  A share of 0.5 took twice as
long as the bound.  It must not know how anything is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from polyconv.benchmark.bound import Bound, bound
from polyconv.benchmark.peaks import THREAD_CLOCK
from polyconv.benchmark.runs import median_seconds, prepared
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, Unsupported
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = ["LEAST", "WORST", "Group", "Share", "groups", "measured", "operator", "plain", "read", "types", "worst"]

LEAST = 0.35
"""A share below this is a cliff."""
WORST = 20
"""How many of the lowest shares are listed."""
_PERCENTILES = (0, 5, 25, 50, 75, 95)


@dataclass(frozen=True, slots=True)
class Share:
    """A problem, how long it took, and what that is of its bound.

    Parameters
    ----------
    problem : Problem
    algorithm, arithmetic : str
        As in its plan.
    seconds : float
        Median of the calls.
    bound : Bound
    """

    problem: Problem
    algorithm: str
    arithmetic: str
    seconds: float
    bound: Bound

    @property
    def share(self) -> float:
        """The bound over the time: 1 is all that the machine can do, but for schemes with fewer multiplications."""
        return self.bound.seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Group:
    """Shares of some problems.

    Parameters
    ----------
    kind : str
        ``all``, ``operator``, ``types`` (of an operator), ``held by`` or ``algorithm``.
    name : str
    count : int
    least, p5, p25, median, p75, p95 : float
        The lowest share, and percentiles.
    below : int
        How many are below ``LEAST``.
    """

    kind: str
    name: str
    count: int
    least: float
    p5: float
    p25: float
    median: float
    p75: float
    p95: float
    below: int


def measured(problems: Iterable[Problem], target: Target, algorithm: str | None = None, accuracy: str = "fast",
             progress: Callable[[Share | None], None] = lambda share: None) -> list[Share]:  # fmt: skip
    """Time every problem that the algorithm takes.

    Parameters
    ----------
    target : Target
        What kernels are made for: that of the settings in force.
    algorithm : str, optional
        Instead of the planner's choices.
    progress : callable
        Told of every share, and of None for a problem that the algorithm does not take.

    Notes
    -----
    Times are those of the calling thread, which does all the work, so that others on the machine matter less.  A share
    below ``LEAST`` is measured again, and the shorter time counts: caches may have been somebody else's for a moment.
    """
    found = []
    for problem in problems:
        try:
            ready = prepared(problem, algorithm, accuracy)
        except Unsupported:
            progress(None)
            continue
        seconds, limit = median_seconds(ready.run, clock=THREAD_CLOCK), bound(problem, target)
        if limit.seconds < LEAST * seconds:
            seconds = min(seconds, median_seconds(ready.run, clock=THREAD_CLOCK))
        facts = ready.facts()
        share = Share(problem, facts["kernel"], facts["precision"], seconds, limit)
        progress(share)
        found.append(share)
    return found


def operator(p: Problem) -> str:
    """The operator of a problem, as tables call it."""
    return "quantised" if p.quantisation is not None else p.op


def types(p: Problem) -> str:
    """The element types of a problem, as its text has them."""
    return str(p).split()[1]


def groups(shares: Sequence[Share]) -> list[Group]:
    """All together, by operator, by the types of each operator, by what the bound is made of, and by algorithm."""
    rows: list[tuple[str, str, list[Share]]] = [("all", "all problems", list(shares))]
    for name in sorted({operator(s.problem) for s in shares}):
        of_operator = [s for s in shares if operator(s.problem) == name]
        rows.append(("operator", name, of_operator))
        rows += [("types", f"{name} {kind}", members) for kind, members in _by(of_operator, lambda s: types(s.problem))]
    rows += [("held by", name, members) for name, members in _by(shares, lambda s: s.bound.held_by)]
    rows += [("algorithm", name, members) for name, members in _by(shares, lambda s: s.algorithm)]
    return [_group(*row) for row in rows if row[2]]


def _by(shares: Iterable[Share], name: Callable[[Share], str]) -> list[tuple[str, list[Share]]]:
    found: dict[str, list[Share]] = {}
    for share in shares:
        found.setdefault(name(share), []).append(share)
    return sorted(found.items())


def _group(kind: str, name: str, members: Sequence[Share]) -> Group:
    values = [s.share for s in members]
    least, p5, p25, median, p75, p95 = (float(v) for v in np.percentile(values, _PERCENTILES))
    return Group(kind, name, len(values), least, p5, p25, median, p75, p95, sum(v < LEAST for v in values))


def worst(shares: Iterable[Share], most: int = WORST) -> list[Share]:
    """The lowest shares, the lowest first."""
    return sorted(shares, key=lambda s: s.share)[:most]


def plain(share: Share) -> dict[str, Any]:
    """A share in JSON's terms."""
    return {
        "problem": str(share.problem), "operator": operator(share.problem), "types": types(share.problem),
        "algorithm": share.algorithm, "arithmetic": share.arithmetic, "seconds": share.seconds,
        "bound": asdict(share.bound), "held_by": share.bound.held_by, "share": share.share,
    }  # fmt: skip


def read(values: Mapping[str, Any]) -> Share:
    """A share from what ``plain`` made of it.

    Raises
    ------
    ArgumentError
        If it is something else.
    """
    try:
        share = Share(Problem.parse(values["problem"]), values["algorithm"], values["arithmetic"],
                      float(values["seconds"]), Bound(**values["bound"]))  # fmt: skip
        if not (math.isfinite(share.share) and share.share > 0.0):
            raise ValueError(f"a share of {share.share}")
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ArgumentError(f"{values!r} is no share of a random problem ({error})") from None
    return share
