"""One trial by every algorithm that takes it: a trial in, how often each algorithm ran and all complaints out.

Each algorithm runs as the planner would build it and in a form drawn by chance (other tiles, boxes of a few outputs),
on one thread and on two; memory that nobody wrote starts as another mark for each.  A result must be right, the same
for any number of threads, and the same for all forms that name the same arithmetic.  It must not know how trials are
drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Refusal
from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance.judge import Expected, complaint, expected, widened
from polyconv.conformance.trial import Trial, caller, same_bits, state_complaints
from polyconv.errors import Unsupported
from polyconv.lowering.situation import Situation
from polyconv.operands import narrow_and_light
from polyconv.planning.planner import arithmetic_name
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import MARKS, marked
from polyconv.runtime.threads import mark_workspace
from polyconv.settings import resolve
from polyconv.target import target

__all__ = ["by_every_algorithm", "excluded"]

Array = NDArray[Any]


def excluded() -> dict[str, str]:
    """Algorithms that no problem can use on this target, and why."""
    found = {name: row.excluded(target(resolve("target"))) for name, row in ALGORITHMS.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def by_every_algorithm(trial: Trial, only: str | None = None) -> tuple[dict[str, int], list[str]]:
    """Runs by algorithm, and what is wrong with their results; of ``only`` one algorithm, if it is given."""
    runs: dict[str, int] = {}
    found: list[str] = []
    want: Expected | None = None
    for name in ALGORITHMS if only is None else (only,):
        bits: dict[str, tuple[str, Array]] = {}
        for form, chance in _forms(trial):
            s = _situation(trial, chance)
            planned = ALGORITHMS[name].fitting(s)
            if isinstance(planned, Refusal):
                continue
            want = want or expected(trial.problem, trial.operands)
            results, again, wrong = _on_threads(trial, name, chance)
            runs[name] = runs.get(name, 0) + len(results)
            found += [f"{name}, {form}: {message}" for message in wrong]
            if wrong or not results:
                continue
            own = planned.bound[0] == "own"
            for way, result in (("", results[0]), (" called again with an input that lies otherwise", again)):
                if result is not None:
                    judged = _judged(trial, want, result, own=own)
                    found += [f"{name}, {form}{way}: {message}" for message in judged]
            if trial.problem.op == "causal_conv":
                continue  # computed in two parts, each with an arithmetic of its own
            got = results[0][0]
            before, other = bits.setdefault(arithmetic_name(name, planned), (form, got))
            if not same_bits(got, other):
                found.append(f"{name}, {form}: other bits than {before}, though both name the same arithmetic")
    return runs, found


def _forms(trial: Trial) -> Iterator[tuple[str, int | None]]:
    """Names of the forms to try and the seeds they are drawn by."""
    yield "as planned", None
    chance = trial.seed * 1_000_003 + trial.index
    yield f"chance={chance}", chance


def _situation(trial: Trial, chance: int | None) -> Situation:
    """What the choice of a trial's algorithm depends on; that of a causal convolution, of its larger part."""
    p, w = trial.problem, trial.operands.w
    if p.op == "causal_conv":
        p = replace(p, op="conv", pads=((0, 0),), i=(max(int(p.i[0] or 0), p.k[0]),))
    finite = not p.w_dtype.is_float or bool(np.isfinite(w).all())
    level = target(resolve("target"))
    given = trial.operands.quantities
    narrow, light = narrow_and_light(p, w, given.get("zx"), given.get("zw"))
    return Situation(p.fused(), level, trial.workspace_limit, 1, trial.accuracy == "strict", finite, chance=chance,
                     narrow=narrow, light=light)  # fmt: skip


_Result = tuple[Array, Array | None]
"""A result, and the state after it if the convolution is causal."""


def _on_threads(trial: Trial, algorithm: str, chance: int | None) -> tuple[list[_Result], _Result | None, list[str]]:
    """Results on one thread and on two, a layer's next result for an input that lies otherwise, or what went wrong."""
    results: list[_Result] = []
    again: _Result | None = None
    for threads, pattern in zip((1, 2), MARKS, strict=True):
        with marked(pattern):
            mark_workspace()
            try:
                call = caller(trial, threads, algorithm, chance)
                got = call(None)
                if trial.is_layer:
                    again = call(None, np.array(trial.operands.x, order="F")), None
            except Unsupported:  # arrays that lie otherwise are another problem, which it may not take
                return results, None, []
            except Exception as error:
                return results, None, [f"raised {type(error).__name__} on {threads} threads: {error}"]
        results.append(got if trial.problem.op == "causal_conv" else (got, None))
    if not same_bits(results[0][0], results[1][0]):
        return results, None, ["other bits on two threads, or with other values in memory that nobody wrote"]
    return results, again, []


def _judged(trial: Trial, want: Expected, result: _Result, *, own: bool) -> list[str]:
    p: Problem = trial.problem
    got, state = result
    wrong = complaint(p, want, got)
    if wrong is not None and not own:
        wrong = complaint(p, widened(p, trial.operands, want), got)
    found = [] if wrong is None else [wrong]
    return found if state is None else found + state_complaints(p, trial.operands, state)
