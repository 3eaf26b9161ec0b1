"""check and info: the self-test judges as the oracle does, and the facts are this machine's."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyconv.cli import check
from polyconv.conformance import faults, fuzz, graph_fuzz, suite
from polyconv.dtypes import DTYPES
from polyconv.problem.problem import Problem
from polyconv.target import levels

LOWEST = levels()[0]


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


def test_graphs_are_counted_and_what_fails_is_kept(
    polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = polyconv("check", "--graphs", 4, "--seed", 306)
    assert done.code == 0 and "seed 306: 4 graphs of" in done.out and "0 mismatches of polyconv" in done.out
    monkeypatch.setattr(graph_fuzz, "complaints", lambda graph: ["is wrong"])
    done = polyconv("check", "--graphs", 2, "--save", tmp_path, "--json")
    assert done.code == 4 and done.json["failed"] == 2
    file = Path(done.json["graphs"]["findings"][0]["file"])
    monkeypatch.undo()
    assert polyconv("run", file, "-i", file.with_suffix(".npz")).code == 0
    assert polyconv("check", "--save", tmp_path).code == 2
    assert polyconv("check", "--graphs", 2, "--faults").code == 2


def test_fuzz_takes_an_algorithm_and_a_target(polyconv: Callable[..., Any]) -> None:
    words = ("check", "--fuzz", 12, "--seed", 5, "--peers", "", "--algorithm", "direct", "--target", LOWEST)
    done = polyconv(*words, "--json")
    assert done.code == 0, done.out
    named = {"seed": 5, "operator": None, "algorithm": "direct", "target": LOWEST, "every": False}
    assert done.json["fuzz"]["campaign"] == named
    assert f"seed 5 algorithm direct target {LOWEST}: 12 problems" in polyconv(*words).out
    assert "POLYCONV_TARGET" not in os.environ or os.environ["POLYCONV_TARGET"] != LOWEST
    wrong = polyconv("check", "--fuzz", 1, "--algorithm", "guess")
    assert (wrong.code, wrong.out) == (1, "")
    assert "algorithm='guess' is not known" in wrong.err


def test_a_mismatch_of_the_fuzz_is_exit_code_4(
    polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "against", lambda *given, **named: ["planted"])
    done = polyconv("check", "--fuzz", 2, "--seed", 5, "--peers", "", "--json")
    assert done.code == 4
    assert [f["message"] for f in done.json["fuzz"]["findings"]] == ["planted", "planted"]
    shown = polyconv("check", "--fuzz", 2, "--seed", 5, "--peers", "")
    assert shown.code == 4
    assert "2 problems, 2 mismatches of polyconv" in shown.out


def test_conformance_counts_by_operator_and_names_what_failed(
    polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = (
        suite.Outcome("onnx Conv", 11, "one", None),
        suite.Outcome("onnx Conv", 11, "two", "planted"),
        suite.Outcome("onnx Conv", 1, "three", None, "torch: a known one"),
    )
    monkeypatch.setattr(suite, "SECTIONS", {"made": lambda: iter(outcomes)})
    done = polyconv("check", "--conformance", "--json")
    assert done.code == 4
    rows = [(r["operator"], r["version"], r["run"], r["passed"], r["failed"]) for r in done.json["conformance"]]
    assert rows == [("onnx Conv", 1, 1, 1, 0), ("onnx Conv", 11, 2, 1, 1)]
    shown = polyconv("check", "--conformance")
    assert shown.code == 4
    assert "onnx Conv 11: two: planted" in shown.out
    assert "torch: a known one" in shown.out


@pytest.mark.parametrize("caught", [True, False])
def test_a_missed_fault_is_exit_code_4(
    polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caught: bool
) -> None:
    found = faults.Catch(3, "move: load") if caught else None
    monkeypatch.setattr(faults, "caught", lambda fault, *given, check: found if check else faults.Catch(2, "wrong"))
    done = polyconv("check", "--faults", "--json")
    assert done.code == (0 if caught else 4)
    seen = sum(fault.seen_in_check_mode for fault in faults.FAULTS.values())
    assert done.json["missed"] == (0 if caught else seen)
    shown = polyconv("check", "--faults")
    assert ("MISSED" in shown.out) is not caught
    assert "tail mask" in shown.out


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


def test_info_shows_the_machine_and_where_numbers_come_from(polyconv: Callable[..., Any]) -> None:
    content = polyconv("info", "--machine", "--json").json["machine"]
    assert {"zen4", "zen5"} <= set(content["presets"])
    assert all(row["value"] > 0 and row["unit"] and row["from"] for row in content["numbers"])
    shown = polyconv("info", "--machine").out
    assert all(row["number"] in shown for row in content["numbers"])
    assert f"{content['name']} {content['digest']}" in shown


def test_the_machine_as_a_file_is_read_back(
    polyconv: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = polyconv("info", "--machine", "--json").json["machine"]
    file = tmp_path / "mine.toml"
    file.write_text(polyconv("info", "--machine", "--toml").out)
    monkeypatch.setenv("POLYCONV_PROFILE", str(file))
    after = polyconv("info", "--machine", "--json").json["machine"]
    assert after["numbers"] == before["numbers"]
    assert (after["name"], after["chosen"]) == ("mine", "POLYCONV_PROFILE")


def test_plans_by_preset_are_shown(polyconv: Callable[..., Any]) -> None:
    done = polyconv("info", "--machine", "--plans", "--json").json
    assert len(done["plans"]) >= 15
    assert all(set(row["algorithms"]) == set(done["machine"]["presets"]) for row in done["plans"])
    shown = polyconv("info", "--machine", "--plans").out
    assert all(row["problem"] in shown for row in done["plans"])


@pytest.mark.parametrize("words", [["--toml"], ["--plans"], ["--machine", "--toml", "--json"]])
def test_parts_of_the_machine_that_do_not_fit_are_wrong_usage(polyconv: Callable[..., Any], words: list[str]) -> None:
    assert polyconv("info", *words).code == 2
