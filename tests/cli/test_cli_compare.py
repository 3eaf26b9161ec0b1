"""``compare``: a problem held against the exact result, a model node by node, and who differs is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from polyconv.cli import compare as verb
from polyconv.models import compare, openvino_host
from polyconv.models.compare import difference

PROBLEM = "conv f32 NCHW n1 c8 i9x9 m8 k3x3 p1 b1 act=Relu"
SIZES = ("--dim", "height=24", "--dim", "width=20")


def test_a_problem_and_its_engines(polyconv: Callable[..., Any]) -> None:
    done = polyconv("compare", PROBLEM)
    assert done.code == 0, done.err
    assert "0 differ from the exact result" in done.out
    document = polyconv("compare", PROBLEM, "--with", "", "--json").json
    assert document["differ"] == []
    [ours] = document["engines"]
    assert (ours["engine"], ours["outputs"]) == ("polyconv", 0)
    assert 0 < ours["share"] < 1 and ours["rms"] <= ours["largest"]


def test_steps_between_values_of_a_rewrite_are_one(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    """A Gemm is a convolution of an image of one pixel, which the file does not have, with views round it."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        net (float[2, 3] x) => (float[2, 2] y)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}>
        { a = Relu(x)
          y = Gemm<transB = 1>(a, w, b) }
    """)
    onnx.save(model, tmp_path / "gemm.onnx")
    document = polyconv("compare", str(tmp_path / "gemm.onnx"), "--json").json
    relu, gemm = document["steps"]
    assert relu["ops"] == ["Relu"] and gemm["ops"] == ["Gemm"]
    assert gemm["problem"].startswith("conv f32") and gemm["difference"]["outputs"] == 0
    assert {row["engine"] for row in document["steps"]} <= {"onnxruntime", "onnx reference"}


def test_a_shape_that_is_known_before_a_run(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    """It is counted from the graph's input, which the step that reshapes by it does not read."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        net (float[2, 3, 4] x) => (float[2, 12] y)
        <int64[1] zero = {0}, int64[1] rest = {-1}>
        { a = Relu(x)
          b = Softmax<axis = 1>(a)
          extents = Shape(x)
          first = Gather(extents, zero)
          shape = Concat<axis = 0>(first, rest)
          c = Transpose<perm = [0, 2, 1]>(b)
          d = Reshape(c, shape)
          y = Tanh(d) }
    """)
    onnx.save(model, tmp_path / "rows.onnx")
    document = polyconv("compare", str(tmp_path / "rows.onnx"), "--json").json
    assert "Reshape" in [op for row in document["steps"] for op in row["ops"]]
    assert all(row["difference"] and row["difference"]["outputs"] == 0 for row in document["steps"]), document


@pytest.mark.parametrize("text", ["conv i8 NCHW n1 c4 i9 m4 k3", "causal_conv f32 NCW n2 c16 i21 m16 k4 p3:0 g16"])
def test_integers_and_state(polyconv: Callable[..., Any], text: str) -> None:
    assert polyconv("compare", text, "--with", "").code == 0


def test_a_wrong_problem_is_4(polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    right = verb.compute

    def wrong(p: Any, *arrays: Any, **more: Any) -> Any:
        y = right(p, *arrays, **more)
        y.flat[5] += 1e-2
        return y

    monkeypatch.setattr(verb, "compute", wrong)
    done = polyconv("compare", PROBLEM, "--with", "", "--json")
    assert done.code == 4
    assert done.json["differ"] == ["polyconv"]
    assert done.json["engines"][0]["outputs"] == 1 and done.json["engines"][0]["share"] > 1
    assert "1 differ from the exact result: polyconv" in polyconv("compare", PROBLEM, "--with", "").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([PROBLEM, "--with", "abacus"], "abacus"),
        ([PROBLEM, "--save", "x"], "--save"),
        ([PROBLEM, "--tolerance", "1"], "--tolerance"),
        (["nothing.onnx"], "nothing.onnx"),
    ],
)
def test_wrong_usage(polyconv: Callable[..., Any], words: list[str], said: str) -> None:
    done = polyconv("compare", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_model_agrees_node_by_node(polyconv: Callable[..., Any], bank: Path) -> None:
    done = polyconv("compare", bank / "filter_bank.onnx", *SIZES, "--json")
    assert done.code == 0
    assert (done.json["differ"], done.json["first"]) == (0, None)
    rows = done.json["steps"]
    assert len(rows) == 16
    assert sum(row["problem"] != "" for row in rows) == 16
    assert all(row["difference"]["outputs"] == 0 and row["engine"] for row in rows)
    assert "0 of 16 steps differ" in polyconv("compare", bank / "filter_bank.onnx", *SIZES).out
    other = polyconv("compare", bank / "filter_bank.onnx", *SIZES, "--with", "torch")
    assert other.code == 2 and "onnxruntime" in other.err


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino")
def test_an_ir_agrees_with_openvino(polyconv: Callable[..., Any], bank: Path) -> None:
    done = polyconv("compare", bank / "filter_bank.xml", "--json")
    assert done.code == 0, done.out
    assert {row["engine"] for row in done.json["steps"]} == {"openvino"}


def test_a_planted_wrong_node_is_named_and_saved(
    polyconv: Callable[..., Any], bank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*arguments: Any) -> Any:
        program = make(*arguments)
        steps = list(program.steps)
        at = [i for i, step in enumerate(steps) if any("Conv" in node.op for node in step.nodes)][6]
        run = steps[at].segment.run

        def wrong(arrays: Any) -> Any:
            [y] = run(arrays)
            y[0, 0, 3, 4] += 0.25
            return (y,)

        steps[at] = replace(steps[at], segment=replace(steps[at].segment, run=wrong))
        planted.extend(node.name for node in steps[at].nodes)
        return replace(program, steps=tuple(steps))

    make, planted = compare.compiled, []
    monkeypatch.setattr(compare, "compiled", faulty)
    done = polyconv("compare", bank / "filter_bank.onnx", *SIZES, "--json", "--save", tmp_path / "out")
    assert done.code == 4
    assert done.json["differ"] == 1, "what comes after the wrong node is fed the same by both"
    assert done.json["first"] == planted
    [file] = done.json["saved"]
    with np.load(file) as saved:
        assert str(saved["problem"]).startswith("conv f32")
        ours = next(saved[name] for name in saved.files if name.startswith("polyconv "))
        theirs = next(saved[name] for name in saved.files if name.startswith("onnx"))
        assert np.argmax(np.abs(ours - theirs)) == np.ravel_multi_index((0, 0, 3, 4), ours.shape)
        assert any(name.startswith("input ") for name in saved.files)
    said = polyconv("compare", bank / "filter_bank.onnx", *SIZES)
    assert said.code == 4 and f"the first is {planted[0]}" in said.out


def test_nothing_compared_is_a_failure(
    polyconv: Callable[..., Any], bank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(name: str, package: str | None = None) -> Any:
        return None if name == "openvino" else find_spec(name, package)

    monkeypatch.setattr(openvino_host, "find_spec", lacks)
    done = polyconv("compare", bank / "filter_bank.xml")
    assert done.code == 3
    assert "none was compared" in done.err and "pip install openvino" in done.err
    assert "neither a convolution" not in done.err + done.out
    document = polyconv("compare", bank / "filter_bank.xml", "--json")
    assert (document.code, document.json["compared"], document.json["differ"]) == (3, 0, 0)


def test_differences() -> None:
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    assert difference(x, x).outputs == 0
    assert difference(x * np.float32(1 + 1e-6), x).outputs == 0
    assert difference(x * np.float32(1.01), x).outputs > 900
    assert difference(x * np.float32(1.01), x, tolerance=0.1).outputs == 0
    broken = x.copy()
    broken[3] = np.nan
    assert difference(broken, x).outputs == difference(x, broken).outputs == 1
    assert difference(broken, broken).outputs == 0
    whole = np.arange(9, dtype=np.int8)
    assert difference(whole, whole).outputs == 0
    assert difference(whole + np.int8(1), whole).outputs == 9
    assert difference(x, x.astype(np.float64)).outputs == x.size
    assert difference(x[:0], x[:0]).outputs == 0
    half = x.astype(ml_dtypes.bfloat16)
    assert difference((half.astype(np.float32) * 1.002).astype(ml_dtypes.bfloat16), half).outputs == 0
    whole = np.array([2**62, -(2**62), 7], np.int64)  # neighbours are one number in float64
    assert difference(whole, whole + np.array([1, 0, 0])).outputs == 1
    assert difference(whole.astype(np.uint64), whole.astype(np.uint64)).outputs == 0


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1.0])
def test_differences_of_values_whose_squares_leave_the_range(scale: float) -> None:
    x = np.random.default_rng(0).standard_normal(1000) * scale
    assert difference(x, x).outputs == 0
    found = difference(1.01 * x, x)
    assert found.outputs > 900
    assert found.rms == pytest.approx(0.01)
    assert difference(np.zeros(3), np.zeros(3)).rms == 0.0
