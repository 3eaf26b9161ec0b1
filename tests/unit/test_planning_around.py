"""What is taken for images of many sizes: by the sizes around them, and by nothing that was seen before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

import polyconv
from polyconv.algorithms.table import Algorithm
from polyconv.lowering.situation import Situation
from polyconv.planning.around import Around
from polyconv.planning.planner import Decision, describe, take
from polyconv.planning.remembered import Remembered
from polyconv.problem.problem import Problem
from polyconv.target import host_target

LAYERS = (
    "conv f32 NCHW n1 c64 i{0}x{1} m64 k3x3 p1", "conv f32 NHWC n1 c24 i{0}x{1} m96 k1x1",
    "conv f32 NCHW n1 c3 i{0}x{1} m32 k3x3 s2 p1",
    "conv f32 NHWC n1 c48 i{0}x{1} m48 k5x5 p2 g48", "conv_transpose f32 NCHW n1 c16 i{0}x{1} m8 k4x4 s2 p1",
)  # fmt: skip


def _situation(text: str, **fields: object) -> Situation:
    return replace(Situation(Problem.parse(text), host_target()), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", LAYERS)
def test_what_is_fastest_on_either_side_is_taken_between(layer: str) -> None:
    found = {}
    for size in ((20, 36), (31, 63), (17, 33)):
        ends = {take(_situation(layer.format(*corner))).algorithm for corner in ((16, 32), (32, 64))}
        decision = found[size] = Around().decision(_situation(layer.format(*size)))
        assert decision == (Decision(ends.pop(), "around") if len(ends) == 1 else None)
    assert len(set(map(str, found.values()))) == 1


def test_small_extents_and_powers_of_two_decide_by_themselves() -> None:
    for size in ((13, 7), (16, 16), (64, 128), (1, 256)):
        s = _situation(LAYERS[0].format(*size))
        assert Around().decision(s) == Decision(take(s).algorithm, "around")


def test_what_does_not_fit_between_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    s = _situation(LAYERS[0].format(20, 20))
    known = Around()
    assert known.decision(s) is not None  # and what is taken for either side is known from here on
    monkeypatch.setattr(Algorithm, "fitting", lambda row, between: f"{row.name} has no form for {between.problem}")
    assert known.decision(s) is None


def test_a_kernel_that_fits_no_smaller_image() -> None:
    assert Around().decision(_situation("conv f32 NCHW n1 c4 i40x40 m4 k33x33")) is None
    assert Around().decision(_situation("conv f32 NCHW n1 c4 i9x9 m4 k3x3 y8x8")) is None  # extents do not follow


def test_a_plan_says_so() -> None:
    s = _situation(LAYERS[0].format(20, 36))
    assert "for smaller and for larger images" in str(describe(s, Around().decision(s)))


@pytest.mark.parametrize(("extents", "asked"), [("N, 8, H, W", True), ("N, 8, 20, 20", False), ("1, 8, 20, W", True)])
def test_sessions_ask_so_where_a_file_leaves_extents_open(
    monkeypatch: pytest.MonkeyPatch, extents: str, asked: bool
) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17]>
        net (float[{extents}] x) => (float[A, B, C, D] y) {{ y = Conv <pads = [1, 1, 1, 1]> (x, w) }}""")
    w = np.random.default_rng(0).standard_normal((8, 8, 3, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    met = []
    monkeypatch.setattr(Around, "decision", lambda self, s: met.append(s.problem.i))
    x = np.ones((1, 8, 20, 20), np.float32)
    y = polyconv.InferenceSession(model, threads=1).run(None, {"x": x})[0]
    np.testing.assert_allclose(y, polyconv.conv(x, w, pads=(1, 1)), rtol=1e-5, atol=1e-5)
    assert bool(met) == asked


def test_what_was_found_is_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyconv.planning.remembered._MOST", 4)
    memory = Remembered()
    for width in range(1, 30):
        s = _situation(LAYERS[1].format(3, width))
        assert memory.found("a", s, lambda s: s.problem.i) == (3, width)
        assert len(memory._used) <= 8
    left = memory.left(s.profile, s.target)
    again = Remembered.of(left, s.profile, s.target)
    assert again.found("a", s, lambda _: None) == (3, 29) and not again.is_worth_leaving
