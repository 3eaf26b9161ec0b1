"""check and info: the self-test judges as the oracle does, and the facts are this machine's."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polyconv.cli import check
from polyconv.dtypes import DTYPES
from polyconv.problem.problem import Problem


def test_the_self_test_passes_here(polyconv: Callable[..., Any]) -> None:
    done = polyconv("check", "--json", "--seed", 3)
    assert done.code == 0, done.out
    document = done.json
    assert document["failed"] == 0
    assert [row["problem"] for row in document["problems"]] == list(check.PROBLEMS)


def test_the_self_test_covers_every_operator_type_and_rank() -> None:
    problems = [Problem.parse(text) for text in check.PROBLEMS]
    assert [str(p) for p in problems] == [
        text.replace("NWC", "NHWC").replace("NCDHW", "NCHW").replace("NCW", "NCHW") for text in check.PROBLEMS
    ]
    assert {p.x for p in problems} == set(DTYPES)
    assert {p.op for p in problems} == {"conv", "conv_transpose", "deform_conv", "causal_conv"}
    assert {p.rank for p in problems} == {1, 2, 3, 4}
    assert {p.layout for p in problems} == {"NCHW", "NHWC"}


@pytest.mark.parametrize("what", ["value", "nan", "shape", "dtype", "integer"])
def test_a_wrong_result_is_exit_code_4(
    polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    right = check.compute

    def wrong(problem: Problem, *arrays: Any, **more: Any) -> Any:
        y = right(problem, *arrays, **more)
        if problem.op == "causal_conv" or problem.y_dtype.is_float == (what == "integer"):
            return y
        y = np.array(y)
        if what == "shape":
            return y[..., :-1]
        if what == "dtype":
            return y.astype(np.longdouble)
        y.flat[-1] = np.nan if what == "nan" else y.flat[-1] + 1
        return y

    monkeypatch.setattr(check, "compute", wrong)
    done = polyconv("check", "--json")
    assert done.code == 4
    hit = [Problem.parse(row["problem"]) for row in done.json["problems"] if not row["passed"]]
    assert {p.y_dtype.is_float for p in hit} == {what != "integer"}
    shown = polyconv("check")
    assert (shown.code, shown.err) == (4, "")
    assert "FAILED" in shown.out


def test_fuzz_runs_resumes_and_reports(polyconv: Callable[..., Any], tmp_path: Any) -> None:
    state = tmp_path / "state.json"
    first = polyconv("check", "--fuzz", 6, "--seed", 5, "--peers", "", "--resume", state, "--json")
    assert first.code == 0, first.out
    assert first.json["fuzz"]["next"] == 6
    again = polyconv("check", "--fuzz", 8, "--seed", 5, "--peers", "", "--resume", state)
    assert again.code == 0, again.out
    assert "8 problems, 0 mismatches" in again.out


def test_info_tells_this_machines_facts(
    polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    facts = polyconv("info", "--json").json
    assert facts["cores"]["online"] == os.cpu_count()
    assert facts["cores"]["threads of a call"] == 7
    assert facts["settings"]["threads"] == {"value": "7", "variable": "OMP_NUM_THREADS"}
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["cpu"]["machine"] == platform.machine()
    shown = polyconv("info")
    assert "7 (from OMP_NUM_THREADS)" in shown.out
    assert shown.err == ""
