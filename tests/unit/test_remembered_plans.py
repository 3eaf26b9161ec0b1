"""What one process planned is planned no more in the next: forms come back from bytes as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyconv.algorithms.form import Refusal
from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance.kernel_texts import _made, _nothing, _situations
from polyconv.errors import Error
from polyconv.kernels.objects import texts_only
from polyconv.lowering.situation import Situation
from polyconv.machine.profile import presets
from polyconv.planning import planner
from polyconv.planning.planner import choose, form_of, take
from polyconv.planning.remembered import Remembered, remembering
from polyconv.problem.problem import Problem
from polyconv.target import host_target

ALONG_ONE_AXIS = (
    "conv f32 NCHW n1 c64 i256 m64 k3 p1", "conv f32 NCHW n1 c64 i256 m64 k7 d3 p9",
    "conv_transpose f32 NCHW n1 c64 i64 m32 k16 s8 p4", "conv f32 NCHW n1 c64 i20x20 m64 k3x1 p1x0",
)  # fmt: skip
LINES = (Path(__file__).parents[1] / "kernels" / "problems.txt").read_text("utf-8").splitlines()
PROBLEMS = [Problem.parse(line) for line in (*ALONG_ONE_AXIS, *LINES) if line and not line.startswith("#")]


def _situation(text: str = "conv f32 NCHW n1 c32 i14x14 m32 k3x3 p1", **fields: Any) -> Situation:
    return replace(Situation(Problem.parse(text), host_target()), **fields)


def _back(memory: Remembered, s: Situation) -> Remembered:
    """A memory that went through bytes."""
    return Remembered.of(memory.left(s.profile, s.target), s.profile, s.target)


def _must_not_plan(*_: Any) -> Any:
    raise AssertionError("planned anew")


def _numbers(program: Any) -> list[Any]:
    """Words of a program that are no places in memory, and how its steps are cut."""
    tables = [step.words for step in program.steps] + [a for a in program.keep if getattr(a, "dtype", None) == np.int64]
    sizes = [(step.driver, step.items) for step in program.steps]
    return [program.workspace, sizes, *(np.where(abs(t) < 1 << 45, t, 0).tolist() for t in tables)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_form_from_bytes_builds_the_same_program(algorithm: str) -> None:
    level = host_target()
    built = 0
    for p in PROBLEMS:
        problem = replace(p, op="conv") if p.op == "causal_conv" else p
        layer, lying, deformation = _made(problem)
        for s in _situations(layer, problem, level):
            form = ALGORITHMS[algorithm].fitting(s)
            if isinstance(form, Refusal):
                continue
            memory = Remembered()
            memory.found(algorithm, s, lambda _, form=form: form)
            again = _back(memory, s).found(algorithm, s, _must_not_plan)
            with texts_only(lambda *_: None):  # the one from bytes first: what is found is kept for equal forms
                other, one = (layer.program(f, lying, *deformation, run=_nothing) for f in (again, form))
            assert _numbers(one) == _numbers(other), str(p)
            built += 1
        if built >= 8:
            break
    reason = ALGORITHMS[algorithm].excluded(level)
    assert built or reason is not None or not level.vnni


def test_a_choice_is_found_again_without_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    s, memory = _situation(), Remembered()
    with remembering(memory):
        chosen = take(s)
        form = form_of(chosen.algorithm, s)
    assert memory.is_worth_leaving
    again = _back(memory, s)
    monkeypatch.setattr(planner, "_cheapest", _must_not_plan)
    with remembering(again):
        assert take(s) == chosen and form_of(chosen.algorithm, s) == form
    assert not again.is_worth_leaving
    with pytest.raises(AssertionError, match="planned anew"):
        take(s)  # outside nothing is remembered


@pytest.mark.parametrize(
    "changes", [{"strict": True}, {"limit": 1000}, {"finite": False}, {"far": True}, {"once": True}, {"chance": 3}]
)
def test_another_situation_is_planned(changes: dict[str, Any]) -> None:
    s, memory = _situation(), Remembered()
    with remembering(memory):
        take(s)
    other, again = replace(s, **changes), _back(memory, s)
    with remembering(again):
        found = take(other)
    assert again.is_worth_leaving and found == take(other)


def test_what_another_profile_says_is_not_left() -> None:
    mine, theirs = (_situation(profile=presets()[name]) for name in ("zen5", "skylake-x"))
    memory = Remembered()
    with remembering(memory):
        take(mine)
        take(theirs)
    again = _back(memory, mine)
    again.found("", mine, _must_not_plan)
    assert not again.is_worth_leaving
    with remembering(again):
        assert take(theirs) == choose_alone(theirs)
    assert again.is_worth_leaving


def choose_alone(s: Situation) -> Any:
    """What planning takes with nothing remembered."""
    return planner._cheapest(s)


def test_a_decision_counts_more_than_what_is_remembered() -> None:
    s, memory = _situation(), Remembered()
    with remembering(memory):
        chosen = take(s)
        other = next(name for name in choose(s).costs if name != chosen.algorithm)
        assert take(s, planner.Decision(other, "wisdom")).algorithm == other


def test_a_refusal_is_said_again() -> None:
    s, memory = _situation(), Remembered()
    for _ in range(2):
        with remembering(memory), pytest.raises(Error, match="deformable cannot compute"):
            form_of("deformable", s)
        memory = _back(memory, s)


def test_rows_that_nobody_used_go_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyconv.planning.remembered._MOST", 3)
    memory = Remembered()
    for n, extent in enumerate((8, 9, 10, 11)):
        s = _situation(f"conv f32 NCHW n1 c4 i{extent} m4 k3")
        with remembering(memory):
            take(s)
        memory = _back(memory, s)
        assert len(memory._before) == (n + 1 if n < 3 else 1)
