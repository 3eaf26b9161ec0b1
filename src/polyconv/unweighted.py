"""Plans of problems whose weights are not known yet: how a layer, or one call, would compute them.

It says what planning finds without weights, and must not know what plans are used for.
"""

from __future__ import annotations

from dataclasses import replace

from polyconv.errors import ArgumentError
from polyconv.in_force import target_in_force
from polyconv.lowering.situation import Situation
from polyconv.operands import narrow_and_light
from polyconv.planning.planner import describe
from polyconv.prepared import decided
from polyconv.problem.plan import Plan
from polyconv.problem.problem import Problem
from polyconv.settings import resolve as setting

__all__ = ["plan"]

_WITHOUT_WEIGHTS = (
    "planned without weights: those that less their zero points are no numbers of i8, or may sum to 2^25 with inputs, "
    "are computed in another way; a layer's plan knows"
)


def plan(problem: Problem, *, rigor: str | None = None, accuracy: str | None = None, threads: int | None = None,
         workspace_limit: int | None = None, once: bool = False) -> Plan:  # fmt: skip
    """How a problem would be computed.

    Parameters
    ----------
    problem : Problem
        With known extents.
    rigor : str
        ``estimate`` chooses by arithmetic; ``measure`` and ``patient`` time the candidates on this machine,
        and every later layer of this process uses what they found.
    accuracy, threads, workspace_limit
        As for ``conv``.
    once : bool
        Plan as ``conv`` does, where weights come anew with each call and preparing them counts, and not as for a
        layer, which prepares them for all its calls.  Nothing is measured for it.

    Raises
    ------
    ArgumentError
        If it is no Problem, or its extents are unknown.
    Unsupported
        If no algorithm can compute it.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError(f"problem is of type {type(problem).__name__}; give a Problem, as Problem.parse makes")
    if not problem.is_known:
        raise ArgumentError(f"'{problem}' has unknown extents; a plan needs all of them: give n and i")
    plain = replace(problem, op="conv") if problem.op == "causal_conv" else problem  # the past is as good as padding
    narrow, light = narrow_and_light(plain)
    s = Situation(plain.fused(), target_in_force(), setting("workspace_limit", workspace_limit),
                  setting("threads", threads), setting("accuracy", accuracy) == "strict", once=once,
                  narrow=narrow, light=light)  # fmt: skip
    found = describe(s, decided(s, setting("rigor", rigor)))
    notes = (*found.notes, _WITHOUT_WEIGHTS) if plain.w_dtype.bits == 8 else found.notes
    return replace(found, problem=problem, notes=notes)
