"""What explains another engine's answer: exactly the deviation it names, and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyconv.conformance import grid
from polyconv.conformance.deviations import CRASHES, DIFFERENCES, REFUSALS, crash, explanation, refusal
from polyconv.conformance.judge import expected
from polyconv.conformance.operands import Operands, operands
from polyconv.problem.epilogue import Activation
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"


def made_for(text: str) -> tuple[Problem, Operands]:
    p = Problem.parse(text)
    return p, operands(p, np.random.default_rng(3), kind="normal")


def test_every_name_stands_on_the_page() -> None:
    section = PAGE.read_text().split("\n## Other engines\n")[1].split("\n## ")[0]
    cells = [line.split("|") for line in section.splitlines() if line.startswith("|")]
    listed = {(engine, row[2].strip()) for row in cells for engine in row[1].strip().split(", ")}
    known = {(row.engine, row.name) for table in (REFUSALS, DIFFERENCES, CRASHES) for row in table}
    known |= {(engine, name) for engine, name, _ in grid.EXPLANATIONS}
    assert known <= listed
    engines = {engine for engine, _ in known}
    assert {row for row in listed if row[0] in engines} == known


@pytest.mark.parametrize(
    ("engine", "text", "factor", "name"),
    [
        ("torch", "conv bf16 NCHW n1 c4 i9x9 m4 k3x3 b1", 1.5, "f16 and bf16 rounded between operators"),
        ("torch", "conv bf16 NCHW n1 c4 i9x9 m4 k3x3 b1", 40.0, None),
        ("torch", "conv bf16 NCHW n1 c4 i9x9 m4 k3x3", 1.5, None),
        ("torch", "conv f32 NCHW n1 c4 i9x9 m4 k3x3 b1", 100.0, None),
        ("torch", "conv_transpose f16 NCHW n1 c4 i9x9 m4 k3x3", 8.0, "f16 transposed convolutions summed in f16"),
        ("torch", "conv_transpose f16 NCHW n1 c4 i9x9 m4 k3x3", 400.0, None),
        ("onnxruntime", "conv bf16 NCHW n1 c4 i9x9 m4 k3x3 b1", 1.5, None),
    ],
)
def test_an_error_is_explained_up_to_its_size(engine: str, text: str, factor: float, name: str | None) -> None:
    """One output is off by a number of roundings of all that was added up to it."""
    p, made = made_for(text)
    want = expected(p, made)
    sizes = (np.abs(a) if a is not None else None for a in (made.x, made.w, made.bias))
    magnitude = oracle(p, *sizes, raw=True)[0, 0, 0, 0]
    got = np.array(want.values)
    got[0, 0, 0, 0] = want.exact[0, 0, 0, 0] + factor * p.y_dtype.eps * magnitude
    assert explanation(engine, p, made, want, got) == name


def test_nan_is_explained_by_the_padding_only_with_inf_among_the_operands() -> None:
    p, made = made_for("conv f32 NCHW n1 c2 i5x5 m2 k3x3 p1")
    got = np.array(expected(p, made).values)
    got[0, 1, 0, 0] = np.nan
    assert explanation("torch", p, made, expected(p, made), got) is None
    made.w[1, 0, 0, 0] = np.inf
    want = expected(p, made)
    got = np.array(want.values)
    got[0, 1, 0, 0] = np.nan  # the tap lies in the padding there
    assert np.isfinite(want.values[0, 1, 0, 0])
    assert explanation("torch", p, made, want, got) == "0 * Inf in the padding"
    got[0, 0, 2, 2] += 1.0  # no deviation: the other channel has finite weights
    assert explanation("torch", p, made, want, got) is None


def test_ignored_begin_pads_are_explained_by_the_result_without_them() -> None:
    p, made = made_for("conv_transpose f32 NCHW n1 c4 i5 m4 k3 s2 p1 g2 y9")
    want = expected(p, made)
    without = Problem.parse("conv_transpose f32 NCHW n1 c4 i5 m4 k3 s2 g2 y9")
    got = oracle(without, made.x, made.w)
    reason = "grouped backprop with an output_shape input ignores pads_begin"
    assert explanation("openvino", p, made, want, got) == reason
    assert explanation("torch", p, made, want, got) is None
    got[0, 0, 4] += 1.0
    assert explanation("openvino", p, made, want, got) is None


def test_a_dropped_shift_is_explained_by_the_result_without_it() -> None:
    p, made = made_for("conv_transpose f32 NCHW n1 c4 i5 m4 k1 p1:0 op1")
    want = expected(p, made)
    got = oracle(Problem.parse("conv_transpose f32 NCHW n1 c4 i5 m4 k1"), made.x, made.w)
    reason = "pointwise backprop with the input's extents ignores pads and output_padding"
    assert explanation("openvino", p, made, want, got) == reason
    assert explanation("onnxruntime", p, made, want, got) is None
    got[0, 0, 4] += 1.0
    assert explanation("openvino", p, made, want, got) is None


def test_wrong_shapes_and_types_are_never_explained() -> None:
    p, made = made_for("conv bf16 NCHW n1 c4 i9x9 m4 k3x3 b1")
    want = expected(p, made)
    assert explanation("torch", p, made, want, want.values[:, :, :, 1:]) is None
    assert explanation("torch", p, made, want, want.values.astype(np.float32)) is None


def test_refusals_name_the_first_reason() -> None:
    p, made = made_for("conv f64 NCHW n1 c2 i4x4x4x4 m2 k1x1x1x1")
    assert refusal("openvino", p, made) == "more than three spatial axes rejected"
    assert refusal("torch", p, made) == "more than three spatial axes have no operator"
    p, made = made_for("conv f32 NCHW n1 c2 i4x4 m2 k3x3")
    assert [refusal(engine, p, made) for engine in ("onnxruntime", "openvino", "torch")] == [None] * 3


def test_a_crash_is_explained_for_windows_in_the_padding_only() -> None:
    p, made = made_for("conv f32 NCHW n1 c1 i14x1 m2 k3x2 s3 p2x7:6 d3 act=Relu")
    assert crash("openvino", p, made) == "dies of whole windows in the padding before an activation"
    assert crash("torch", p, made) is None
    assert crash("openvino", *made_for("conv f32 NCHW n1 c1 i14x1 m2 k3x2 s3 p2x7:3 d3 act=Relu")) is None
    assert crash("openvino", *made_for("conv f32 NCHW n1 c1 i14x1 m2 k3x2 s3 p2x7:6 d3")) is None


def test_an_overflow_between_operators_is_explained() -> None:
    p, made = made_for("conv f16 NCHW n1 c2 i3x3 m1 k3x3 b1 r1")
    made.x[...], made.w[...], made.residual[...] = 100.0, 100.0, -60000.0
    made.bias[...] = -60000.0
    want = expected(p, made)
    assert np.isfinite(want.values).all()
    got = np.full_like(want.values, np.inf)
    assert explanation("torch", p, made, want, got) == "f16 and bf16 rounded between operators"
    assert explanation("torch", p, made, want, np.full_like(got, np.nan)) is None
    gated = replace(p, activation=Activation("Gelu"))  # of -Inf, as -Inf times 0
    found = explanation("torch", gated, made, expected(gated, made), np.full_like(got, np.nan))
    assert found == "f16 and bf16 rounded between operators"
