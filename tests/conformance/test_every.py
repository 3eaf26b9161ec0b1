"""Every algorithm is right on every problem it takes, in any form, and no result comes from memory nobody wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyconv
from polyconv.algorithms.product import strassen
from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance import fuzz
from polyconv.conformance.every import by_every_algorithm
from polyconv.conformance.operands import operands
from polyconv.conformance.peers import available
from polyconv.conformance.trial import Trial
from polyconv.errors import ArgumentError, Error
from polyconv.layer import compute
from polyconv.lowering.situation import Situation
from polyconv.problem.problem import Problem
from polyconv.runtime import threads as pool
from polyconv.runtime.arrays import MARKS, mark, marked
from polyconv.target import target

CAMPAIGNS = {
    "avx512": (64, {}),
    "avx2": (40, {"POLYCONV_TARGET": "avx2"}),
    "baseline": (40, {"POLYCONV_TARGET": "baseline"}),
    "checked": (22, {"POLYCONV_CHECK": "1"}),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_algorithm_is_right(name: str) -> None:
    count, environment = CAMPAIGNS[name]
    words = ["--count", str(count), "--seed", "11", "--every-algorithm", "--json"]
    command = [sys.executable, "-m", "polyconv.conformance.fuzz", *words]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    report = fuzz.Report.from_json(done.stdout)
    assert report.next == count, done.stderr
    assert not report.findings, "\n".join(map(str, report.findings))
    assert sum(report.runs.values()) > 4 * count


def trial(line: str, **circumstances: Any) -> Trial:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "small")
    plain = {"is_layer": False, "out": "none", "threads": 1, "accuracy": "fast", "workspace_limit": None}
    return Trial(0, 0, p, made, "plain", **(plain | circumstances))


DEFECTS = (
    # an odd number of entries was halved where taps are left out that meet no input
    "conv f32 NCHW n1 c17 i2 m96 k4 s4 p3 d2",
    # rows of results were taken to follow each other past an axis with a single output
    "conv f64 NCHW n3 c2 i3x1x4 m27 k1x1x1 s2x1x2 p0:2x0x3:0",
    "conv f16 NCHW n1 c10 i7x1x3 m29 k1x1x1 s2x1x1 p1:2x0x0:2",
    "conv bf16 NHWC n3 c9 i6x2x2 m21 k1x1x1 s2x2x1 d2x1x3 g3 p0:0x0:0x0:3 b1",
    "conv u64 NHWC n3 c16 i9x1x1 m16 k1x1x3 s1x2x1 d1x2x1 g4 p1:0x0:0x3:0 b1",
    "conv f32 NCHW n1 c16 i3x1x1 m32 k1x3x3 g16 p0:0x2:0x0:3 b1",
    # a row without taps was read as a run of none, which a tile turns at least once
    "conv f64 NCHW n2 c16 i3x1 m63 k3x2 s2 p0x3:0 d1x2 b1",
    # phases of a transposed convolution summed their axes in different orders under one name
    "conv_transpose f32 NCHW n3 c147 i5x5x5 m63 k3x3x2 s2x2x5 p1:-1x1x4:6 g21",
    # sums of all phases of a single pixel were to have room beside each other, and had none
    "conv_transpose f32 NCHW n1 c3 i1x1x1 m8 k4x4x4 s2 b1 act=HardSigmoid(0.2,0.5)",
    "conv_transpose f64 NCHW n2 c5 i1x1 m40 k8x8 s3 b1",
    # results without elements could not be planned
    "conv_transpose f32 NCHW n1 c4 i3x3 m5 k3x3 s1x1 p3:2x0",
    "conv_transpose f32 NHWC n1 c8 i3x3 m8 k5x5 g8 p4:3x0",
    "conv f32 NCHW n1 c8 i2x2 m8 k3x3 g8",
    "conv f32 NHWC n1 c8 i2x2 m8 k3x3 g8",
)


@pytest.mark.parametrize("line", DEFECTS)
def test_former_defects(line: str) -> None:
    for limit in (None, 0):
        it = trial(line, workspace_limit=limit)
        runs, found = by_every_algorithm(it)
        assert runs
        assert not found, found


def test_results_without_elements_have_a_plan() -> None:
    for line in DEFECTS[-4:]:
        assert polyconv.plan(Problem.parse(line), workspace_limit=0).algorithm in ALGORITHMS


def test_a_row_that_never_ran_fails_the_campaign() -> None:
    report = fuzz.run(1, seed=11, every=True)
    assert "deformable" in report.idle or "causal" in str(report.operators)
    assert not report.passed
    assert not set(report.idle) & set(report.runs)


def test_every_algorithm_asks_no_peers() -> None:
    with pytest.raises(ArgumentError, match="every algorithm is tried against the oracle alone"):
        fuzz.run(1, every=True, peers=available())


def test_chance_gives_a_small_problem_several_boxes() -> None:
    p = Problem.parse("conv f32 NCHW n1 c32 i24x24 m32 k2x2 s2")
    boxes = set()
    for chance in (None, *range(100)):  # the smaller a second-level cache is, the fewer draws hold the whole image
        (form,) = strassen.forms(Situation(p, target(None), chance=chance))
        boxes.add(form.choices()["box"])
    assert (12, 12) in boxes
    assert len(boxes) > 3
    once = Situation(p, target(None), chance=7)
    assert once.price("form", 1.0) == once.price("form", 2.0) != Situation(p, target(None), chance=8).price("form", 1.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.int64])
def test_marks_differ_in_every_type(dtype: type) -> None:
    values = []
    for pattern in MARKS:
        with marked(pattern):
            values.append(mark(np.zeros((3, 2), dtype)[:, ::2]).copy())
    assert values[0].tobytes() != values[1].tobytes()
    if np.dtype(dtype).kind == "f":
        assert np.isnan(values[0]).all()
        assert np.isfinite(values[1]).all()
    assert (mark(np.ones(3)) == 1).all()


@pytest.mark.parametrize("dtype", ["f32", "i32", "u8"])
def test_check_mode_sees_results_that_were_not_written(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = Problem.parse(f"conv {dtype} NCHW n1 c3 i6x6 m4 k3x3")
    made = operands(p, np.random.default_rng(0), "small")
    run = pool.run_steps

    def forgetful(steps: Any, *rest: Any, **named: Any) -> None:
        """Run, but no item of any step."""
        steps = steps.copy()
        steps[3::4] = 0
        run(steps, *rest, **named)

    monkeypatch.setenv("POLYCONV_CHECK", "1")
    compute(p, made.x, made.w)  # packs, and is right
    monkeypatch.setattr(pool, "run_steps", forgetful)
    with pytest.raises(Error, match=r"64 of 64 outputs, the first at \(0, 0, 0, 0\), were not written"):
        compute(p, made.x, made.w, algorithm="generic")


@pytest.mark.parametrize("form", [None, "residual"])
def test_check_mode_computes_each_result_twice_from_the_same_operands(
    form: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = Problem.parse("conv f32 NCHW n1 c3 i6x6 m4 k3x3" + (" r1" if form else ""))
    made = operands(p, np.random.default_rng(0), "small")
    want = compute(p, made.x, made.w, None, made.residual)
    monkeypatch.setenv("POLYCONV_CHECK", "1")
    out = np.empty_like(want) if made.residual is None else made.residual
    got = compute(p, made.x, made.w, None, made.residual, out=out)
    assert got is out
    np.testing.assert_array_equal(got, want)


def test_the_command_says_what_never_ran(polyconv_command: Callable[..., Any]) -> None:
    done = polyconv_command("check", "--fuzz", 2, "--every-algorithm", "--json")
    assert done.returncode == 4
    said = json.loads(done.stdout)
    assert said["never_run"]
    assert set(said["never_run"]) <= set(ALGORITHMS)


@pytest.fixture
def polyconv_command() -> Callable[..., Any]:
    def call(*words: object) -> Any:
        command = [sys.executable, "-m", "polyconv.cli", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return call
