"""OpenVINO IR files, read without the openvino package, against OpenVINO itself."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from making import openvino_run, random, save_ir
from openvino import opset1, opset8

from polyconv.errors import ArgumentError, DtypeError, ModelError, Unsupported
from polyconv.models import InferenceSession

Feeds = dict[str, np.ndarray]


def close(path: Path, feeds: Feeds, **options: Any) -> InferenceSession:
    """Compare a file's outputs with OpenVINO's, and every convolution's engine with ours."""
    session = InferenceSession(path, **options)
    results = session.run(None, feeds)
    for ours, theirs in zip(results, openvino_run(path, list(feeds.values())), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert {r.engine for r in session.nodes if "Convolution" in r.op} == {"polyconv"}
    return session


def engines(session: InferenceSession) -> dict[str, str]:
    return {record.op: record.engine for record in session.nodes}


def parameter(name: str, *shape: int, kind: object = np.float32) -> ov.Node:
    made = ops.parameter(ov.PartialShape(list(shape)), kind, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def model(outputs: list[ov.Node], inputs: list[ov.Node]) -> ov.Model:
    for at, node in enumerate(outputs):
        node.output(0).get_tensor().set_names({f"y{at}"})
    return ov.Model([ops.result(node) for node in outputs], inputs, "test")


def convolution(x: ov.Node, w: np.ndarray, **more: object) -> ov.Node:
    rank = w.ndim - 2
    given = {
        "strides": [1] * rank,
        "pads_begin": [1] * rank,
        "pads_end": [0] * rank,
        "dilations": [1] * rank,
    } | more
    return opset1.convolution(x, ops.constant(w), **given)


WINDOW = ([2, 1], [1, 0], [1, 2], [1, 1])


@pytest.mark.parametrize("auto_pad", ["explicit", "same_upper", "same_lower", "valid"])
def test_convolution_family(auto_pad: str, tmp_path: Path) -> None:
    # Weights differ on purpose: OpenVINO 2026.4.1 confuses constants whose bytes are one shared blob.
    x = parameter("x", 2, 4, 7, 6)
    w = [
        random(3, 4, 3, 2),
        random(2, 3, 2, 3, 2, seed=1),
        random(4, 3, 3, 2, seed=2),
        random(2, 2, 3, 3, 2, seed=3),
    ]
    strides, begin, end, dilations = WINDOW
    transposed = (strides, None, begin, end, dilations, auto_pad)
    nodes = [
        opset1.convolution(x, ops.constant(w[0]), *WINDOW, auto_pad=auto_pad),
        opset1.group_convolution(x, ops.constant(w[1]), *WINDOW, auto_pad=auto_pad),
        opset1.convolution_backprop_data(x, ops.constant(w[2]), *transposed),
        opset1.group_convolution_backprop_data(x, ops.constant(w[3]), *transposed),
    ]
    close(save_ir(model(nodes, [x]), tmp_path), {"x": random(2, 4, 7, 6)})


@pytest.mark.parametrize("bias", [False, True])
def test_backprop_with_output_shape(bias: bool, tmp_path: Path) -> None:
    x = parameter("x", 1, 4, 5, 5)
    shape = ops.constant(np.array([10, 11], np.int64))
    y = opset1.convolution_backprop_data(
        x, ops.constant(random(4, 3, 3, 3)), [2, 2], shape, [0, 0], [0, 0], [1, 1], auto_pad="same_upper"
    )
    if bias:
        y = ops.add(y, ops.constant(random(1, 3, 1, 1)))
    session = close(save_ir(model([y], [x]), tmp_path), {"x": random(1, 4, 5, 5)})
    assert set(engines(session).values()) <= {"polyconv", "constant"}


def test_backprop_without_output_shape_takes_a_bias(tmp_path: Path) -> None:
    x = parameter("x", 1, 4, 5, 5)
    y = opset1.convolution_backprop_data(
        x, ops.constant(random(4, 3, 3, 3)), [2, 2], None, [0, 0], [0, 0], [1, 1], output_padding=[1, 0]
    )
    y = ops.relu(ops.add(y, ops.constant(random(3, 1, 1))))
    session = close(save_ir(model([y], [x]), tmp_path), {"x": random(1, 4, 5, 5)})
    assert {r.problem for r in session.nodes} == {
        "conv_transpose f32 NCHW n1 c4 i5x5 m3 k3x3 s2 op1x0 b1 act=Relu"
    }


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_spatial_axes(rank: int, tmp_path: Path) -> None:
    x = parameter("x", 2, 3, *range(5, 5 + rank))
    y = convolution(x, random(4, 3, *[2] * rank), strides=[2] * rank)
    close(save_ir(model([y], [x]), tmp_path), {"x": random(2, 3, *range(5, 5 + rank))})


@pytest.mark.parametrize("padded", [False, True])
def test_deformable_convolution(padded: bool, tmp_path: Path) -> None:
    x, offsets, mask = parameter("x", 1, 4, 6, 6), parameter("o", 1, 36, 4, 4), parameter("m", 1, 18, 4, 4)
    y = opset8.deformable_convolution(
        x, offsets, ops.constant(random(4, 2, 3, 3)), [1, 1], [0, 0], [0, 0], [1, 1], mask,
        group=2, deformable_group=2, bilinear_interpolation_pad=padded,
    )  # fmt: skip
    path = save_ir(model([y], [x, offsets, mask]), tmp_path)
    close(path, {"x": random(1, 4, 6, 6), "o": random(1, 36, 4, 4, seed=1), "m": random(1, 18, 4, 4, seed=2)})


ACTIVATIONS = {
    "relu": (ops.relu, "Relu"),
    "sigmoid": (ops.sigmoid, "Sigmoid"),
    "tanh": (ops.tanh, "Tanh"),
    "clamp": (lambda v: ops.clamp(v, -0.5, 0.25), "Clip(-0.5,0.25)"),
    "elu": (lambda v: ops.elu(v, 0.5), "Elu(0.5)"),
    "hswish": (ops.hswish, "HardSwish"),
    "swish": (ops.swish, "Silu"),
    "mish": (ops.mish, "Mish"),
    "gelu": (lambda v: ops.gelu(v, "ERF"), "Gelu"),
    "prelu": (lambda v: ops.prelu(v, ops.constant(np.array([0.25], np.float32))), "LeakyRelu(0.25)"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_fused(name: str, tmp_path: Path) -> None:
    apply, spelled = ACTIVATIONS[name]
    x = parameter("x", 1, 3, 8)
    session = close(
        save_ir(model([apply(convolution(x, random(4, 3, 3)))], [x]), tmp_path), {"x": random(1, 3, 8)},
        layout="model",
    )
    assert {r.problem for r in session.nodes} == {f"conv f32 NCHW n1 c3 i8 m4 k3 p1:0 act={spelled}"}


MORE = {
    "gelu_tanh": lambda v: ops.gelu(v, "TANH"),
    "swish_beta": lambda v: ops.swish(v, ops.constant(np.float32(1.5))),
    "prelu_channels": lambda v: ops.prelu(v, ops.constant(random(4, seed=9))),
    "subtract": lambda v: ops.subtract(v, ops.constant(random(4, 1))),
    "multiply": lambda v: ops.multiply(v, ops.constant(random(1, 1, 7))),
    "wide_add": lambda v: ops.add(v, ops.constant(random(5, 1, 1, 7))),
    "to_i32": lambda v: ops.convert(ops.multiply(v, ops.constant(np.float32(10))), "i32"),
} | {f"{name}_alone": apply for name, (apply, _) in ACTIVATIONS.items()}


ON_NUMPY = ("gelu_tanh", "swish_beta", "prelu_channels", "to_i32")
"""Those that no operator of ONNX does in the same way."""


@pytest.mark.parametrize("name", MORE)
def test_elementwise_layers_need_no_openvino(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyconv.models import openvino_host

    monkeypatch.setattr(openvino_host, "find_spec", lambda name: None)
    x = parameter("x", 1, 3, 8)
    y = convolution(x, random(4, 3, 3))
    if name.endswith("_alone"):  # a second reader of the convolution's result forbids fusion
        path = save_ir(model([MORE[name](y), y], [x]), tmp_path)
    else:
        path = save_ir(model([MORE[name](y)], [x]), tmp_path)
    found = set(engines(close(path, {"x": random(1, 3, 8)})).values())
    assert found == ({"polyconv", "numpy"} if name in ON_NUMPY else {"polyconv"})


def test_conversions_round(tmp_path: Path) -> None:
    # OpenVINO drops such a pair of conversions; what the file says is a rounding to f16.
    x = parameter("x", 1, 1, 3)
    y = ops.convert(ops.convert(convolution(x, np.ones((1, 1, 1), np.float32), pads_begin=[0]), "f16"), "f32")
    session = InferenceSession(save_ir(model([y], [x]), tmp_path))
    values = np.array([[[1 / 3, 2049.0, 1e6]]], np.float32)
    expected = [[[np.float32(np.float16(1 / 3)), 2048.0, np.inf]]]
    assert session.run(None, {"x": values})[0].tolist() == expected


def test_shared_blobs_are_read_in_each_shape(tmp_path: Path) -> None:
    x = parameter("x", 1, 2, 4)
    w = random(3, 2, 2)
    y, z = convolution(x, w), convolution(x, w.reshape(2, 2, 3))
    session = InferenceSession(save_ir(model([y, z], [x]), tmp_path))
    given = random(1, 2, 4, seed=1)
    for result, weights in zip(session.run(None, {"x": given}), (w, w.reshape(2, 2, 3)), strict=True):
        padded = np.pad(given, ((0, 0), (0, 0), (1, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[2], axis=2)
        np.testing.assert_allclose(result, np.einsum("nclk,mck->nml", windows, weights), rtol=1e-4, atol=1e-5)


def test_residuals_are_fused_where_their_shape_is_proven(tmp_path: Path) -> None:
    x = parameter("x", 2, 4, 6, 6)
    one = convolution(x, random(4, 4, 3, 3), pads_end=[1, 1])
    two = convolution(x, random(4, 4, 1, 1, seed=1), pads_begin=[0, 0])
    y = ops.relu(ops.add(ops.add(one, two), ops.constant(random(1, 4, 1, 1, seed=2))))
    session = close(save_ir(model([y], [x]), tmp_path), {"x": random(2, 4, 6, 6)})
    assert "r1" in " ".join(r.problem or "" for r in session.nodes)
    broadcast = convolution(x, random(4, 4, 6, 6, seed=1), pads_begin=[0, 0])
    path = save_ir(model([ops.relu(ops.add(one, broadcast))], [x]), tmp_path)
    assert "r1" not in " ".join(r.problem or "" for r in close(path, {"x": random(2, 4, 6, 6)}).nodes)


def test_dynamic_sizes(tmp_path: Path) -> None:
    x = parameter("x", -1, 3, -1, -1)
    path = save_ir(model([ops.relu(convolution(x, random(4, 3, 3, 3)))], [x]), tmp_path)
    session = close(path, {"x": random(1, 3, 8, 9)})
    assert session.get_inputs()[0].shape == [None, 3, None, None]
    assert session.run(None, {"x": random(3, 3, 5, 5)})[0].shape == (3, 4, 4, 4)


def test_other_layers_run_on_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = parameter("x", -1, 3, 8, 8)
    a = ops.relu(convolution(x, random(4, 3, 3, 3)))
    pooled = ops.max_pool(a, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2], rounding_type="ceil").output(0)
    b = convolution(pooled, random(5, 4, 2, 2, seed=1))
    y = ops.softmax(ops.reshape(b, ops.constant(np.array([0, -1])), True), 1)
    path = save_ir(model([y, a], [x]), tmp_path)
    session = close(path, {"x": random(2, 3, 8, 8)})
    assert engines(session)["MaxPool"] == "openvino"  # whose last windows ONNX leaves out
    assert engines(session)["SoftMax"] == "polyconv"  # the convolution before it tells its rank
    assert "padding" in next(record.reason for record in session.nodes if record.op == "MaxPool")
    assert session.get_providers() == ["PolyconvExecutionProvider", "OpenVINOExecutionProvider"]
    from polyconv.models import openvino_host

    monkeypatch.setattr(openvino_host, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"MaxPool.*pip install openvino"):
        InferenceSession(path)


def test_compressed_weights_are_folded(tmp_path: Path) -> None:
    x = parameter("x", 1, 3, 8)
    y = ops.add(convolution(x, random(4, 3, 3)), ops.constant(random(4, 1)))
    path = tmp_path / "model.xml"
    ov.save_model(model([y], [x]), path, compress_to_fp16=True)
    session = close(path, {"x": random(1, 3, 8)})
    assert engines(session) == {"Convolution": "polyconv", "Add": "polyconv", "Convert": "constant"}


def test_half_precision_takes_a_bias_before_the_one_rounding(tmp_path: Path) -> None:
    # 65536 - 40000 fits into f16 although 65536 does not; OpenVINO's own fusion keeps it (semantics 7.1).
    x = parameter("x", 1, 1, 2, kind=np.float16)
    y = convolution(x, np.full((1, 1, 2), 256.0, np.float16), pads_begin=[0])
    y = ops.add(y, ops.constant(np.full((1, 1, 1), -40000.0, np.float16)))
    session = InferenceSession(save_ir(model([y], [x]), tmp_path))
    (result,) = session.run(None, {"x": np.full((1, 1, 2), 128.0, np.float16)})
    assert result.dtype == np.float16
    assert result.tolist() == [[[25536.0]]]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, np.float64])
def test_element_types(kind: type, tmp_path: Path) -> None:
    x = parameter("x", 1, 2, 4, kind=kind)
    w = np.arange(12).reshape(2, 2, 3).astype(kind)
    b = np.array([[3], [100]], kind)
    y = ops.add(convolution(x, w, pads_begin=[0]), ops.constant(b))
    session = InferenceSession(save_ir(model([y], [x]), tmp_path))
    values = np.arange(8).reshape(1, 2, 4)
    (result,) = session.run(None, {"x": values.astype(kind)})
    windows = np.lib.stride_tricks.sliding_window_view(values, 3, axis=2)
    exact = np.einsum("nclk,mck->nml", windows, np.arange(12).reshape(2, 2, 3)) + np.array([[3], [100]])
    assert result.dtype == kind
    np.testing.assert_array_equal(result, exact.astype(kind))
    assert set(engines(session).values()) == {"polyconv"}


def test_bytes_and_names(tmp_path: Path) -> None:
    x = parameter("x", 1, 3, 8)
    path = save_ir(model([convolution(x, random(4, 3, 3))], [x]), tmp_path)
    session = InferenceSession(path.read_bytes(), weights=path.with_suffix(".bin").read_bytes())
    assert [(v.name, v.shape, v.type) for v in session.get_inputs()] == [("x", [1, 3, 8], "tensor(float)")]
    assert [(v.name, v.type) for v in session.get_outputs()] == [("y0", "tensor(float)")]
    feeds = {"x": random(1, 3, 8)}
    np.testing.assert_array_equal(session.run(["y0"], feeds)[0], InferenceSession(path).run(None, feeds)[0])
    with pytest.raises(ModelError, match="weights="):
        InferenceSession(path.read_bytes())
    with pytest.raises(DtypeError, match="'x'"):
        session.run(None, {"x": random(1, 3, 8).astype(np.float16)})
    with pytest.raises(ArgumentError, match="'x'"):
        session.run(None, {})


def test_version_10_is_named_after_layers(tmp_path: Path) -> None:
    x = parameter("x", 1, 3, 8)
    path = save_ir(model([convolution(x, random(4, 3, 3))], [x]), tmp_path)
    text = re.sub(r' names="[^"]*"', "", path.read_text()).replace('version="11"', 'version="10"')
    path.write_text(text)
    session = InferenceSession(path)
    theirs = ov.Core().read_model(path)
    assert [v.name for v in session.get_inputs()] == [p.any_name for p in theirs.inputs]
    assert [v.name for v in session.get_outputs()] == [p.any_name for p in theirs.outputs]
    close(path, {"x": random(1, 3, 8)})


IR = """<?xml version="1.0"?>
<net name="t" version="11"><layers>
  <layer id="5" name="w" type="Const" version="opset1">
    <data element_type="f32" shape="1,1,2" offset="3" size="8"/>
    <output><port id="9" precision="FP32"/></output></layer>
  <layer id="7" name="x" type="parameter" version="opset1">
    <data element_type="f32" shape=" 1, 1 ,? "/><output><port id="0" names="in\\,put,alias"/></output></layer>
  <layer id="2" name="conv" type="CONVOLUTION" version="opset8">
    <data kernel="7" group="3"/>
    <input><port id="40"/><port id="3"/></input>
    <output><port id="3"><dim>17</dim></port></output></layer>
  <layer id="1" name="out" type="Result" version="opset1"><input><port id="0"/></input></layer>
</layers><edges>
  <edge from-layer="2" from-port="3" to-layer="1" to-port="0"/>
  <edge from-layer="5" from-port="9" to-layer="2" to-port="3"/>
  <edge from-layer="7" from-port="0" to-layer="2" to-port="40"/>
</edges></net>"""


def test_labels_are_labels_and_blobs_need_no_alignment() -> None:
    # Port ids mean nothing, layers stand in any order, types ignore case, unknown attributes and stated
    # extents are ignored, missing attributes have defaults (semantics 10.1).
    weights = b"abc" + np.array([2.0, 10.0], np.float32).tobytes()
    session = InferenceSession(IR.encode(), weights=weights)
    assert session.get_inputs()[0].name == "in,put"
    x = np.array([[[1.0, 2.0, 3.0]]], np.float32)
    for name in ("in,put", "alias", "x"):
        assert session.run(["conv"], {name: x})[0].tolist() == [[[22.0, 34.0]]]
    with pytest.raises(ArgumentError, match="twice"):
        session.run(None, {"x": x, "alias": x})


def test_convolutions_inside_control_flow_are_refused(tmp_path: Path) -> None:
    x, flag = parameter("x", 1, 3, 8), parameter("flag", kind=bool)
    inner = [ops.parameter([1, 3, 8], np.float32) for _ in range(2)]
    bodies = [
        ov.Model([ops.result(convolution(inner[0], random(3, 3, 3)))], [inner[0]], "then"),
        ov.Model([ops.result(ops.abs(inner[1]))], [inner[1]], "else"),
    ]
    choice = ops.if_op(flag)
    choice.set_then_body(bodies[0])
    choice.set_else_body(bodies[1])
    choice.set_input(x.output(0), inner[0], inner[1])
    result = choice.set_output(bodies[0].results[0], bodies[1].results[0])
    path = save_ir(ov.Model([ops.result(result)], [x, flag], "test"), tmp_path)
    with pytest.raises(Unsupported, match="Convolution"):
        InferenceSession(path)


def test_binary_convolution_is_refused(tmp_path: Path) -> None:
    text = IR.replace('"CONVOLUTION"', '"BinaryConvolution"')
    with pytest.raises(Unsupported, match="conv"):
        InferenceSession(text.encode(), weights=bytes(16))


def test_elementwise_layers_at_the_ends_of_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gated values vanish towards -inf without a NaN, and small ones keep their digits until they do."""
    from polyconv.models import openvino_host

    monkeypatch.setattr(openvino_host, "find_spec", lambda name: None)
    values = np.array([-np.inf, -100.0, -8.0, -5.0, 0.0, 100.0, np.inf, np.nan])
    x = ops.parameter([len(values)], np.float64, name="x")
    by = [ops.constant(beta, np.float64) for beta in (1.0, -2.0)]
    layers = [ops.gelu(x, "TANH"), ops.gelu(x, "ERF"), *(ops.swish(x, beta) for beta in by)]
    results = InferenceSession(save_ir(model(layers, [x]), tmp_path)).run(None, {"x": values})

    def gated(v: float, gate: float) -> float:  # v / (1 + e^-gate), in exact arithmetic where it is not a limit
        with localcontext(prec=60):
            return float(Decimal(v) / (1 + (-Decimal(gate)).exp()))

    def tanh_gate(v: float) -> float:
        return 2 * np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)

    finite = [v for v in values if np.isfinite(v)]
    for y, gate in ((results[0], tanh_gate), (results[2], lambda v: v), (results[3], lambda v: -2 * v)):
        np.testing.assert_allclose(y[np.isfinite(values)], [gated(v, gate(v)) for v in finite], rtol=1e-12)
    for y in results[:3]:
        assert (y[0], y[-2]) == (0.0, np.inf)
    assert (results[3][0], results[3][-2]) == (-np.inf, 0.0)
    assert all(np.isnan(y[-1]) for y in results)
