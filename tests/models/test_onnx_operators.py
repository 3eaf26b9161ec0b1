"""Every convolution operator, run by a session from an ONNX file, against another engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from making import info, onnx_model, onnxruntime_run, random
from onnx import TensorProto, helper, numpy_helper

from polyconv.models import InferenceSession

DATA = Path(onnx.__file__).parent / "backend/test/data"
ENUM = {np.float16: TensorProto.FLOAT16, np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = InferenceSession(model.SerializeToString())
    results = session.run(None, feeds)
    assert {r.engine for r in session.nodes if "Conv" in r.op} == {"polyconv"}
    return results


@pytest.mark.parametrize("opset", [1, 6, 7, 11, 21, 22, 28])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_main_domain_in_every_opset(op: str, opset: int) -> None:
    x, w, b = random(2, 4, 7, 6), random(4, 2, 3, 3, seed=1), random(4, seed=2)
    node = helper.make_node(op, ["x", "w", "b"], ["y"], group=2, strides=[2, 1], pads=[1, 0, 1, 2])
    model = onnx_model([node], [info("x", ["N", 4, "H", "W"])], ["y"], {"w": w, "b": b[:4]}, opset=opset)
    newest = onnx_model([node], [info("x", ["N", 4, "H", "W"])], ["y"], {"w": w, "b": b[:4]}, opset=22)
    (y,) = run(model, {"x": x})
    np.testing.assert_allclose(y, onnxruntime_run(newest, {"x": x})[0], rtol=1e-4, atol=1e-5)


def converted_models() -> list[Path]:
    found = [
        *DATA.glob("pytorch-converted/test_Conv[1-3]d*"),
        *DATA.glob("pytorch-converted/test_ConvTranspose*"),
        *DATA.glob("pytorch-operator/test_operator_conv*"),
    ]
    assert len(found) == 30
    return sorted(found)


@pytest.mark.parametrize("folder", converted_models(), ids=lambda p: p.name)
def test_models_converted_from_pytorch(folder: Path) -> None:
    """Opset 6 with expected values from PyTorch; weights are graph inputs with defaults."""
    session = InferenceSession(folder / "model.onnx")
    for data in folder.glob("test_data_set_*"):
        tensors = [TensorProto.FromString(p.read_bytes()) for p in sorted(data.glob("*.pb"))]
        inputs = [
            numpy_helper.to_array(t)
            for p, t in zip(sorted(data.glob("*.pb")), tensors, strict=True)
            if "input" in p.name
        ]
        expected = numpy_helper.to_array(tensors[-1])
        names = [value.name for value in session.get_inputs()]
        (y,) = session.run(None, dict(zip(names, inputs, strict=True)))
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-5)


def test_the_main_domain_has_two_names() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], domain="ai.onnx"),
        helper.make_node("MaxPool", ["c"], ["y"], domain="ai.onnx", kernel_shape=[2]),
    ]
    model = onnx_model(nodes, [info("x", [1, 3, 9])], ["y"], {"w": random(4, 3, 3)})
    expected = onnxruntime_run(model, {"x": random(1, 3, 9)})[0]
    model.opset_import[0].domain = "ai.onnx"
    np.testing.assert_allclose(run(model, {"x": random(1, 3, 9)})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bias", ["b", ""])
def test_weights_may_come_with_the_run(dtype: type, bias: str) -> None:
    x, w, b = (
        random(1, 3, 9, dtype=dtype),
        random(5, 3, 4, seed=1, dtype=dtype),
        random(5, seed=2, dtype=dtype),
    )
    kind = ENUM[dtype]
    node = helper.make_node("Conv", ["x", "w", bias], ["y"])
    inputs = [info("x", [1, 3, 9], kind), info("w", None, kind), info("b", [5], kind)]
    (y,) = run(onnx_model([node], inputs, [info("y", None, kind)], opset=22), {"x": x, "w": w, "b": b})
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), 4, axis=2)
    exact = np.einsum("nclk,mck->nml", windows, w.astype(float)) + (b.astype(float)[:, None] if bias else 0)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(float), exact, rtol=0, atol=20 * np.finfo(dtype).eps)


def test_bfloat16() -> None:
    import ml_dtypes

    x = random(1, 2, 8).astype(ml_dtypes.bfloat16)
    w = random(3, 2, 3, seed=1).astype(ml_dtypes.bfloat16)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Neg", ["c"], ["y"])]
    kind = TensorProto.BFLOAT16
    (y,) = run(
        onnx_model(nodes, [info("x", None, kind)], [info("y", None, kind)], {"w": w}, opset=22), {"x": x}
    )
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), 3, axis=2)
    exact = -np.einsum("nclk,mck->nml", windows, w.astype(float))
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(y.astype(float), exact, rtol=2.0**-8, atol=1e-6)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_internal_channels_last_domain(op: str) -> None:
    x, w, b = random(2, 4, 6, 5), random(4, 4, 3, 2, seed=1), random(4, seed=2)
    common = {"strides": [2, 1], "pads": [1, 0, 1, 1]}
    nhwc = helper.make_node(
        op, ["x", "w", "b"], ["y"], domain="com.ms.internal.nhwc",
        activation="LeakyRelu", activation_params=[0.25], **common,
    )  # fmt: skip
    domains = {"com.ms.internal.nhwc": 11}
    model = onnx_model([nhwc], [info("x", [2, 6, 5, 4])], ["y"], {"w": w, "b": b}, domains=domains)
    nchw = [
        helper.make_node(op, ["x", "w", "b"], ["c"], **common),
        helper.make_node("LeakyRelu", ["c"], ["y"], alpha=0.25),
    ]
    peer = onnx_model(nchw, [info("x", [2, 4, 6, 5])], ["y"], {"w": w, "b": b}, opset=11)
    (y,) = run(model, {"x": np.ascontiguousarray(np.moveaxis(x, 1, -1))})
    np.testing.assert_allclose(
        np.moveaxis(y, -1, 1), onnxruntime_run(peer, {"x": x})[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("bias", ["b", ""])
def test_fused_conv_of_com_microsoft(bias: str) -> None:
    x, w, b, z = random(1, 3, 6, 6), random(4, 3, 3, 3, seed=1), random(4, seed=2), random(1, 4, 6, 6, seed=3)
    node = helper.make_node(
        "FusedConv",
        ["x", "w", bias, "z"],
        ["y"],
        domain="com.microsoft",
        activation="Relu",
        pads=[1, 1, 1, 1],
    )
    model = onnx_model(
        [node], [info("x", [1, 3, 6, 6]), info("z", [1, 4, 6, 6])], [info("y", [1, 4, 6, 6])],
        {"w": w, "b": b}, domains={"com.microsoft": 1},
    )  # fmt: skip
    feeds = {"x": x, "z": z}
    np.testing.assert_allclose(run(model, feeds)[0], onnxruntime_run(model, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["NhwcConv", "NhwcFusedConv"])
def test_channels_last_of_com_microsoft(op: str) -> None:
    x, w = random(1, 3, 6, 6), random(4, 3, 3, 3, seed=1)
    node = helper.make_node(op, ["x", "w"], ["y"], domain="com.microsoft")
    model = onnx_model([node], [info("x", [1, 6, 6, 3])], ["y"], {"w": w}, domains={"com.microsoft": 1})
    peer = onnx_model(
        [helper.make_node("Conv", ["x", "w"], ["y"])], [info("x", [1, 3, 6, 6])], ["y"], {"w": w}
    )
    (y,) = run(model, {"x": np.ascontiguousarray(np.moveaxis(x, 1, -1))})
    np.testing.assert_allclose(
        np.moveaxis(y, -1, 1), onnxruntime_run(peer, {"x": x})[0], rtol=1e-4, atol=1e-5
    )


def bytes_of(seed: int, *shape: int, dtype: type = np.uint8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def test_conv_integer() -> None:
    x, w = bytes_of(0, 1, 3, 6, 5), bytes_of(1, 4, 3, 3, 3, dtype=np.int8)
    node = helper.make_node("ConvInteger", ["x", "w", "zx"], ["y"], pads=[1, 1, 1, 1])
    model = onnx_model(
        [node], [info("x", [1, 3, 6, 5], TensorProto.UINT8)], [info("y", None, TensorProto.INT32)],
        {"w": w, "zx": np.uint8(7)},
    )  # fmt: skip
    (y,) = run(model, {"x": x})
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, onnxruntime_run(model, {"x": x})[0])


@pytest.mark.parametrize("channels_last", [None, 0, 1])
def test_qlinear_conv(channels_last: int | None) -> None:
    shape = (1, 6, 5, 3) if channels_last else (1, 3, 6, 5)
    x, w = bytes_of(0, *shape), bytes_of(1, 4, 3, 3, 3)
    constants = {
        "sx": np.float32(0.02), "zx": np.uint8(120), "w": w, "sw": np.float32(0.01), "zw": np.uint8(131),
        "sy": np.float32(0.05), "zy": np.uint8(99), "b": np.array([10, -20, 3000, 0], np.int32),
    }  # fmt: skip
    extra = {} if channels_last is None else {"domain": "com.microsoft", "channels_last": channels_last}
    node = helper.make_node(
        "QLinearConv", ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"], ["y"], **extra
    )
    model = onnx_model(
        [node], [info("x", shape, TensorProto.UINT8)], [info("y", None, TensorProto.UINT8)], constants,
        domains=None if channels_last is None else {"com.microsoft": 1},
    )  # fmt: skip
    (y,) = run(model, {"x": x})
    assert y.dtype == np.uint8
    np.testing.assert_array_equal(y, onnxruntime_run(model, {"x": x})[0])


@pytest.mark.parametrize("mask", ["m", ""])
def test_deform_conv(mask: str) -> None:
    x, w, b = random(1, 4, 6, 6), random(4, 2, 3, 3, seed=1), random(4, seed=2)
    offset, m = random(1, 36, 4, 4, seed=3), random(1, 18, 4, 4, seed=4)
    node = helper.make_node("DeformConv", ["x", "w", "o", "b", mask], ["y"], group=2, offset_group=2)
    inputs = [info("x", [1, 4, 6, 6]), info("o", [1, 36, 4, 4]), info("m", [1, 18, 4, 4])]
    model = onnx_model([node], inputs, ["y"], {"w": w, "b": b}, opset=19)
    feeds = {"x": x, "o": offset, "m": m}
    np.testing.assert_allclose(run(model, feeds)[0], onnxruntime_run(model, feeds)[0], rtol=1e-4, atol=1e-5)


def causal_cases() -> list[onnx.backend.test.case.test_case.TestCase]:
    from onnx.backend.test.case.node import _NodeTestCases, causal_conv_with_state

    assert causal_conv_with_state
    cases = [c for c in _NodeTestCases if "causal_conv_with_state" in c.name and "expanded" not in c.name]
    assert len(cases) == 13
    return cases


@pytest.mark.parametrize("case", causal_cases(), ids=lambda c: c.name)
def test_causal_conv_with_state(case: onnx.backend.test.case.test_case.TestCase) -> None:
    ((inputs, outputs),) = case.data_sets
    names = [value.name for value in case.model.graph.input]
    results = run(case.model, dict(zip(names, inputs, strict=True)))
    assert len(results) == len(outputs)
    for result, expected in zip(results, outputs, strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(
            result, expected, rtol=case.rtol, atol=1e-3 if result.dtype == np.float16 else 1e-6
        )


def test_semantics_of_onnxruntime_where_it_deviates() -> None:
    # Stride 4 over a kernel of 1: the specification takes x[0], onnxruntime x[1] (semantics 2.3).
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[4])
    model = onnx_model([node], [info("x", [1, 1, 4])], ["y"], {"w": np.ones((1, 1, 1), np.float32)})
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 4)
    data = model.SerializeToString()
    assert InferenceSession(data).run(None, {"x": x})[0].tolist() == [[[0.0]]]
    theirs = InferenceSession(data, semantics="onnxruntime").run(None, {"x": x})[0]
    np.testing.assert_array_equal(theirs, onnxruntime_run(model, {"x": x})[0])
    assert theirs.tolist() == [[[1.0]]]
