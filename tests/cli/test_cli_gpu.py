"""What the commands say of GPUs: plans for GPUs that are not here, and why nothing runs where there is none."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from polyconv.gpu import driver, layer
from polyconv.planning import wisdom as process_wide

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from virtual_gpu import virtual_gpu

PROBLEM = "conv f16 NHWC n1 c64 i20x20 m64 k3x3 p1 b1"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver, whatever this one has."""
    monkeypatch.setattr(driver, "_loaded", lambda: "no NVIDIA driver is installed: for this test")


def test_a_plan_for_a_gpu_that_is_not_here(polyconv: Callable[..., Any]) -> None:
    done = polyconv("explain", PROBLEM, "--device", "cuda:H100")
    assert done.code == 0
    assert re.search(r"^algorithm +\w+ for cuda NVIDIA H100 80GB HBM3 sm_90$", done.out, re.MULTILINE)
    assert "more forms are predicted slower" in done.err
    document = polyconv("explain", PROBLEM, "--device", "cuda:A100", "--json").json
    assert document["kernels"][-1].startswith("gemm warp")  # products of warp groups came after it


def test_the_code_of_a_gpu(polyconv: Callable[..., Any]) -> None:
    done = polyconv("explain", PROBLEM, "--device", "cuda:H100", "--kernel", "--code", "asm")
    assert done.code == 0
    assert done.out.count(".visible .entry convolution(") == 1
    assert ".target sm_90a" in done.out
    text = polyconv("explain", PROBLEM, "--device", "cuda:H100", "--kernel", "--code", "ir").out
    assert 'target triple = "nvptx64-nvidia-cuda"' in text


@pytest.mark.parametrize("words", [("explain", PROBLEM), ("check",), ("bench", PROBLEM), ("tune", PROBLEM)])
def test_a_device_that_no_one_knows(polyconv: Callable[..., Any], words: tuple[str, ...]) -> None:
    done = polyconv(*words, "--device", "rocm")
    assert done.code == 2
    assert "--device rocm is not known; give cuda" in " ".join(done.err.split())


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_reason_is_said(polyconv: Callable[..., Any]) -> None:
    done = polyconv("check", "--device", "cuda")
    assert done.code != 0
    assert "no NVIDIA driver is installed: for this test" in done.err
    assert polyconv("info", "--json").json["gpus"] == {"none": "no NVIDIA driver is installed: for this test"}


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", [("tune",), ("bench", "--networks"), ("bench",)])
def test_nothing_is_measured_without_a_gpu(polyconv: Callable[..., Any], model: Path, command: tuple[str, ...]) -> None:
    done = polyconv(*command, str(model), "--device", "cuda")
    assert done.code == 3
    assert "no NVIDIA driver is installed: for this test" in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_random_problems_on_the_emulator(polyconv: Callable[..., Any]) -> None:
    with virtual_gpu():
        document = polyconv("check", "--device", "cuda", "--fuzz", 3, "--seed", 1, "--json").json
        assert document["fuzz"]["findings"] == []
        assert document["fuzz"]["tried"] == 3
        assert "none" not in polyconv("info", "--json").json["gpus"]


def test_options_that_have_no_effect(polyconv: Callable[..., Any]) -> None:
    done = polyconv("check", "--device", "cuda", "--conformance")
    assert done.code == 2
    assert "--device goes with --fuzz N and --seed alone" in " ".join(done.err.split())
    assert polyconv("bench", PROBLEM, "--device", "cuda", "--kinds", "f8").code == 2


def test_forms_are_tuned(polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the CPU: what was measured is kept, and found again."""
    times = iter(range(100, 0, -1))
    monkeypatch.setattr(layer.DeviceLayer, "_time", lambda self, job, form: 1e-6 * next(times))
    monkeypatch.setattr(process_wide, "_known", {})
    problems = "conv f16 NHWC n1 c64 i9x9 m32 k3x3 p1", "causal_conv f32 NCHW n1 c8 i9 m8 k4 p3:0 g8"
    with virtual_gpu():
        document = polyconv("tune", *problems, "--device", "cuda", "--json").json
        for row in document["rows"]:
            measured = [c for c in row["candidates"] if c["measured"] is not None]
            assert row["chosen"] == min(measured, key=lambda c: c["measured"])["algorithm"]
            assert row["source"] == "measured"
        assert document["rows"][0]["gain"] > 1
        known = polyconv("tune", problems[0], "--device", "cuda").out
        assert "emulated NVIDIA H100" in known
        assert next(times) == 100 - sum(c["measured"] is not None for r in document["rows"] for c in r["candidates"])
        assert polyconv("tune", problems[0], "--device", "cuda", "--threads", 2).code == 2


def test_networks_on_a_gpu(polyconv: Callable[..., Any], model: Path) -> None:
    with virtual_gpu():
        words = "bench", "--networks", str(model), "--device", "cuda,cpu", "--rounds", 1
        (row,) = polyconv(*words, "--json").json["networks"]
        assert (row["name"], row["on_cpu"], row["peer_seconds"], row["ratio"]) == ("model", 1, None, None)
        assert row["seconds"] > 0
        assert row["error"] < 1e-5
        assert "CUDA provider" in row["why"]
        assert "no CUDA provider" in polyconv(*words).err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A layer, an operator that has no kernel on a GPU, and one that has."""
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["h"]), onnx.helper.make_node("Softsign", ["h"], ["s"]),
        onnx.helper.make_node("Relu", ["s"], ["y"]),
    ]  # fmt: skip
    weights = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    ends = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [1, 3, 6, 5]), ("y", None))]
    graph = onnx.helper.make_graph(nodes, "test", ends[:1], ends[1:], [weights])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_model_on_a_gpu(polyconv: Callable[..., Any], model: Path) -> None:
    with virtual_gpu():
        done = polyconv("run", str(model), "--device", "cuda")
        assert done.code != 0
        assert "Softsign" in done.err
        document = polyconv("run", str(model), "--device", "cuda,cpu", "--json").json
        assert [step["engine"] for step in document["steps"]] == ["polyconv cuda:0", "onnxruntime", "polyconv cuda:0"]
        here = polyconv("run", str(model), "--json").json
        for name in ("minimum", "maximum"):
            assert document["outputs"][0][name] == pytest.approx(here["outputs"][0][name], rel=1e-5)
        told = polyconv("explain", str(model), "--device", "cuda,cpu", "--json").json
        assert [(step["device"], step["copies"]) for step in told["steps"]] == [
            ("cuda:0", False), ("cpu", True), ("cuda:0", False),
        ]  # fmt: skip
        assert all(step["measured_seconds"] > 0 for step in told["steps"])
        assert polyconv("explain", str(model), "--device", "cuda,cpu").code == 0
        assert polyconv("run", str(model), "--device", "cuda,npu").code == 2
    assert polyconv("run", PROBLEM, "--device", "cuda").code == 2
