"""Networks that tools/networks.py writes: they open, and results are onnxruntime's."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import onnx
import pytest
from making import onnxruntime_run, session

TOOL = Path(__file__).resolve().parents[2] / "tools" / "networks.py"
FEW = ("espcn", "dcgan", "tcn", "mobilenet_v3_large_bn")


@pytest.mark.parametrize("name", FEW)
def test_a_network_runs_as_in_onnxruntime(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tool = runpy.run_path(str(TOOL))
    path = tmp_path / f"{name}.onnx"
    tool["write"](name, path)
    model = onnx.load(path)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).random(shape, np.float32)
    [ours], [theirs] = session(model).run(None, {"x": x}), onnxruntime_run(model, {"x": x})
    apart = float(np.sqrt(np.mean((ours - theirs) ** 2)) / np.sqrt(np.mean(theirs**2)))
    assert apart < 1e-5
    if name.endswith("_bn"):
        assert "BatchNormalization" in {node.op_type for node in model.graph.node}


def test_dynamic_networks_leave_sizes_open(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    tool = runpy.run_path(str(TOOL))
    tool["write"]("espcn", tmp_path / "any.onnx", dynamic=True)
    model = onnx.load(tmp_path / "any.onnx")
    assert [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim] == ["x0", "", "x2", "x3"]
    x = np.random.default_rng(1).random((2, 1, 20, 30), np.float32)
    [ours], [theirs] = session(model).run(None, {"x": x}), onnxruntime_run(model, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
