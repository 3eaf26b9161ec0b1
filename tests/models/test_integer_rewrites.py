"""Nodes that quantise round convolutions: they become integer operators, and results are what real numbers give.

Expected values come from arithmetic in f64 on the integers themselves.  What may differ is derived: a result is the
real one to half a step, and as far as one factor and one bias, rounded once each, can move it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, random, session
from onnx import TensorProto, helper

from polyconv.errors import Error
from polyconv.models import InferenceSession
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

node = helper.make_node
KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}
EPS = float(np.finfo(np.float32).eps)


def steps_of(made: InferenceSession) -> list[tuple[str, str]]:
    """Engine and operators of every step."""
    found: dict[int, tuple[str, list[str]]] = {}
    for record in made.nodes:
        if record.step is not None:
            found.setdefault(record.step, (record.engine, []))[1].append(record.op)
    return [(engine, "+".join(names)) for engine, names in found.values()]


def arrays(numbers: dict[str, Any]) -> dict[str, np.ndarray]:
    """Numbers as arrays."""
    return {name: np.asarray(number) for name, number in numbers.items()}


def quantised(kind: str, bias: str, between: list[onnx.NodeProto], zero: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A convolution between quantities, and the numbers that it is made of."""
    dtype, element = KINDS[kind]
    rng = np.random.default_rng(7)
    limits = np.iinfo(dtype)
    constants: dict[str, Any] = {
        "sx": np.float32(0.021), "zx": np.array(limits.min + 100, dtype),
        "w": rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8),
        "sw": rng.uniform(0.002, 0.02, 8).astype(np.float32), "zw": np.zeros(8, np.int8),
        "sy": np.float32(0.05), "zy": np.array(limits.min + zero, dtype),
        "low": np.float32(-0.3), "high": np.float32(6.0),
    }  # fmt: skip
    unit = constants["sx"] * constants["sw"]  # in f32, as onnxruntime.quantization has it
    nodes = [
        node("DequantizeLinear", ["q", "sx", "zx"], ["x"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=0),
        node("Conv", ["x", "wf", "b"] if bias != "none" else ["x", "wf"], ["c"], "conv", pads=[1, 1, 1, 1]),
        *between, node("QuantizeLinear", [between[-1].output[0] if between else "c", "sy", "zy"], ["y"]),
    ]  # fmt: skip
    if bias == "integers":
        constants |= {"bi": rng.integers(-3000, 3000, 8).astype(np.int32), "sb": unit, "zb": np.zeros(8, np.int32)}
        nodes.insert(2, node("DequantizeLinear", ["bi", "sb", "zb"], ["b"], axis=0))
    elif bias == "real":
        constants["b"] = rng.uniform(-1, 1, 8).astype(np.float32)
    return onnx_model(nodes, [info("q", [2, 4, 9, 8], element)], ["y"], arrays(constants)), constants


def real_result(q: np.ndarray, given: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The convolution of what the integers stand for, in f64, and how far rounding its bias to whole steps moves it."""
    x = (q.astype(np.float64) - float(given["zx"])) * float(given["sx"])
    scale = given["sw"].astype(np.float64).reshape(-1, 1, 1, 1)
    y = oracle(Problem.parse("conv f64 NCHW n2 c4 i9x8 m8 k3x3 p1"), x, given["w"] * scale)
    unit = float(given["sx"]) * given["sw"].astype(np.float64)
    if "bi" in given:
        bias = given["bi"] * given["sb"].astype(np.float64)
    else:
        bias = np.asarray(given.get("b", np.zeros(8)), np.float64)
    moved = 0.5 * unit + EPS * np.abs(bias)
    return y + bias.reshape(-1, 1, 1), np.broadcast_to(moved.reshape(-1, 1, 1), y.shape)


def check(found: np.ndarray, real: np.ndarray, moved: np.ndarray, given: dict[str, Any]) -> None:
    """Every result is the real one to half a step, and what rounding may move it."""
    limits = np.iinfo(found.dtype)
    place = real / float(given["sy"]) + float(given["zy"])
    slack = moved / float(given["sy"]) + 3 * EPS * np.abs(real / float(given["sy"]))
    inside = np.clip(place, limits.min, limits.max)
    assert (np.abs(found - inside) <= 0.5 + slack).all()
    assert np.unique(found).size > 20


CLIPS = {
    "nothing": [], "Relu": [node("Relu", ["c"], ["r"])], "Clip": [node("Clip", ["c", "low", "high"], ["r"])],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["none", "integers", "real"])
@pytest.mark.parametrize("between", CLIPS)
@pytest.mark.parametrize("zero", [0, 40])
def test_a_convolution_between_quantities_runs_on_integers(kind: str, bias: str, between: str, zero: int) -> None:
    model, given = quantised(kind, bias, CLIPS[between], zero)
    limits = np.iinfo(KINDS[kind][0])
    q = np.random.default_rng(3).integers(limits.min, limits.max + 1, (2, 4, 9, 8)).astype(KINDS[kind][0])
    made = session(model)
    [found] = made.run(None, {"q": q})
    real, moved = real_result(q, given)
    bounds = {"nothing": (-np.inf, np.inf), "Relu": (0.0, np.inf), "Clip": (float(given["low"]), float(given["high"]))}
    check(found, np.clip(real, *bounds[between]), moved, given)
    operators = "+".join(["Conv", *(each.op_type for each in CLIPS[between]), "QuantizeLinear"])
    is_free = between == "nothing" or zero == 0  # else the type does not hold results within the bounds by itself
    first = operators if is_free and between != "Clip" else "Conv+QuantizeLinear"
    if between != "Clip" or zero != 0:
        assert steps_of(made)[0] == ("polyconv", first)
    assert not any("Dequantize" in names for _, names in steps_of(made))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ends", ["result", "input", "both"])
def test_channels_that_are_convolved_alone_may_have_scales_of_their_own(ends: str, bias: bool, kind: str) -> None:
    """Two outputs a channel; scales of the input's channels, of the result's, or of both."""
    dtype, element = KINDS[kind]
    rng, limits = np.random.default_rng(7), np.iinfo(dtype)

    def scale(channels: int, name: str) -> Any:
        return np.float32(0.03) if ends not in (name, "both") else rng.uniform(0.01, 0.05, channels).astype(np.float32)

    given = {
        "sx": scale(4, "input"), "w": rng.integers(-127, 128, (8, 1, 3, 3)).astype(np.int8),
        "sw": rng.uniform(0.002, 0.02, 8).astype(np.float32), "zw": np.zeros(8, np.int8), "sy": scale(8, "result"),
        "b": rng.uniform(-1, 1, 8).astype(np.float32) * bias,
    }  # fmt: skip
    given |= {f"z{of}": np.full(np.shape(given[f"s{of}"]), limits.min + 90, dtype) for of in "xy"}
    nodes = [
        node("DequantizeLinear", ["q", "sx", "zx"], ["x"], axis=1),
        node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=0),
        node("Conv", ["x", "wf", "b"] if bias else ["x", "wf"], ["c"], "conv", pads=[1, 1, 1, 1], group=4),
        node("QuantizeLinear", ["c", "sy", "zy"], ["y"], axis=1),
    ]
    made = session(onnx_model(nodes, [info("q", [2, 4, 9, 8], element)], ["y"], arrays(given)))
    q = rng.integers(limits.min, limits.max + 1, (2, 4, 9, 8)).astype(dtype)
    [found] = made.run(None, {"q": q})
    assert ("polyconv", "Conv+QuantizeLinear") in steps_of(made)

    def by_channel(name: str) -> np.ndarray:
        return np.asarray(given[name], np.float64).reshape(-1, 1, 1)

    x = (q - by_channel("zx")) * by_channel("sx")
    real = oracle(Problem.parse("conv f64 NCHW n2 c4 i9x8 m8 k3x3 p1 g4"), x, given["w"] * by_channel("sw")[..., None])
    real = (real + by_channel("b")) / by_channel("sy")
    unit = np.repeat(np.broadcast_to(by_channel("sx"), (4, 1, 1)), 2, 0) * by_channel("sw") / by_channel("sy")
    inside = np.clip(real + by_channel("zy"), limits.min, limits.max)
    assert (np.abs(found - inside) <= 0.5 + 0.5 * unit * bias + 6 * EPS * np.abs(real)).all()
    assert np.unique(found).size > 20


@pytest.mark.parametrize("name", ["zeros of their own", "several channels a group"])
def test_scales_of_channels_that_no_weights_can_take_stay_real(name: str) -> None:
    groups = 1 if name == "several channels a group" else 4
    zeros = np.full(4, 9, np.uint8) if groups == 1 else np.arange(4, dtype=np.uint8)
    given = {"sx": np.linspace(0.01, 0.02, 4, dtype=np.float32), "zx": zeros, "sw": np.float32(0.01), "zw": np.int8(0),
             "w": np.ones((4, 4 // groups, 3, 3), np.int8), "sy": np.float32(0.1), "zy": np.uint8(3)}  # fmt: skip
    nodes = [
        node("DequantizeLinear", ["q", "sx", "zx"], ["x"], axis=1), node("DequantizeLinear", ["w", "sw", "zw"], ["wf"]),
        node("Conv", ["x", "wf"], ["c"], "conv", group=groups), node("QuantizeLinear", ["c", "sy", "zy"], ["y"]),
    ]  # fmt: skip
    made = session(onnx_model(nodes, [info("q", [1, 4, 9, 8], TensorProto.UINT8)], ["y"], arrays(given)))
    made.run(None, {"q": np.ones((1, 4, 9, 8), np.uint8)})
    assert not any(operators == "Conv+QuantizeLinear" for _, operators in steps_of(made))


@pytest.mark.parametrize("end", ["sx", "sy"])
def test_scales_that_are_not_as_many_as_channels_are_no_factors(end: str) -> None:
    """Such a file is wrong: no rule may take it for another."""
    given = {"sx": np.float32(0.02), "zx": np.uint8(9), "sw": np.float32(0.01), "zw": np.int8(0),
             "w": np.ones((4, 1, 3, 3), np.int8), "sy": np.float32(0.1), "zy": np.uint8(3)}  # fmt: skip
    given |= {end: np.full(2, 0.02, np.float32), f"z{end[1]}": np.full(2, 9, np.uint8)}
    nodes = [
        node("DequantizeLinear", ["q", "sx", "zx"], ["x"], axis=1), node("DequantizeLinear", ["w", "sw", "zw"], ["wf"]),
        node("Conv", ["x", "wf"], ["c"], "conv", group=4), node("QuantizeLinear", ["c", "sy", "zy"], ["y"], axis=1),
    ]  # fmt: skip
    model = onnx_model(nodes, [info("q", [1, 4, 9, 8], TensorProto.UINT8)], ["y"], arrays(given))
    with pytest.raises(Error):
        session(model).run(None, {"q": np.ones((1, 4, 9, 8), np.uint8)})


def test_exact_leaves_quantities_as_they_are() -> None:
    model, _ = quantised("u8", "integers", [], 0)
    assert [names for _, names in steps_of(session(model, rewrites="exact"))][-1] == "QuantizeLinear"


def replaced(model: onnx.ModelProto, name: str, array: np.ndarray) -> onnx.ModelProto:
    """The model with another constant."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for tensor in changed.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(array), name))
    return changed


OTHERS = {
    "a scale of nothing": ("sy", np.float32(0.0)),
    "factors beyond f32": ("sy", np.float32(1e-43)),
    "weights along the wrong axis": ("sw", np.full(4, 0.01, np.float32)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_integers_cannot_say_stays_real(name: str) -> None:
    model, given = quantised("u8", "none", [], 0)
    what, array = OTHERS[name]
    changed = replaced(model, what, array)
    if what == "sw":
        changed = replaced(changed, "zw", np.zeros(4, np.int8))
        for each in changed.graph.node:
            if each.input[0] == "w":
                each.attribute[0].i = 1
    made = session(changed)
    assert ("polyconv", "Conv") in steps_of(made)
    made.run(None, {"q": np.full((2, 4, 9, 8), given["zx"])})


@pytest.mark.parametrize("same", [True, False])
def test_the_largest_of_integers_is_that_of_what_they_stand_for(same: bool) -> None:
    constants = {"s": np.float32(0.02), "z": np.uint8(7), "t": np.float32(0.02 if same else 0.03)}
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["x"]),
        node("MaxPool", ["x"], ["m"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("QuantizeLinear", ["m", "t", "z"], ["y"]),
    ]  # fmt: skip
    model = onnx_model(nodes, [info("q", [1, 3, 8, 8], TensorProto.UINT8)], ["y"], arrays(constants))
    q = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)
    made = session(model)
    [y] = made.run(None, {"q": q})
    padded = np.pad(q, ((0, 0), (0, 0), (1, 1), (1, 1)))
    largest = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).max((4, 5))
    if same:
        np.testing.assert_array_equal(y, largest)
        assert [names for _, names in steps_of(made)] == ["MaxPool+QuantizeLinear"]
    else:
        real = (largest.astype(np.float64) - 7) * np.float32(0.02) / np.float32(0.03)
        assert (np.abs(y - np.clip(real + 7, 0, 255)) <= 0.5 + 3 * EPS * np.abs(real)).all()


VIEWS = {
    "Flatten": (node("Flatten", ["x"], ["m"], axis=1), (2, 12)),
    "Reshape": (node("Reshape", ["x", "shape"], ["m"]), (4, 6)),
    "Transpose": (node("Transpose", ["x"], ["m"], perm=[0, 2, 3, 1]), (2, 2, 2, 3)),
    "Unsqueeze": (node("Unsqueeze", ["x", "axes"], ["m"]), (1, 2, 3, 2, 2)),
    "Squeeze": (node("Squeeze", ["x"], ["m"]), (2, 3, 2, 2)),
}


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("op", VIEWS)
def test_integers_are_moved_as_what_they_stand_for(op: str, same: bool) -> None:
    moved, shape = VIEWS[op]
    constants = {"s": np.float32(0.02), "z": np.uint8(7), "t": np.float32(0.02 if same else 0.03),
                 "shape": np.array([4, 6]), "axes": np.array([0])}  # fmt: skip
    kept = {name: np.asarray(a) for name, a in constants.items() if name in ("s", "z", "t") or name in moved.input}
    nodes = [node("DequantizeLinear", ["q", "s", "z"], ["x"]), moved, node("QuantizeLinear", ["m", "t", "z"], ["y"])]
    made = session(onnx_model(nodes, [info("q", [2, 3, 2, 2], TensorProto.UINT8)], ["y"], kept))
    q = np.random.default_rng(0).permutation(256)[:24].reshape(2, 3, 2, 2).astype(np.uint8)
    [y] = made.run(None, {"q": q})
    there = q.transpose(0, 2, 3, 1) if op == "Transpose" else q.reshape(shape)
    assert y.shape == shape
    if same:
        np.testing.assert_array_equal(y, there)
        assert not any("Dequantize" in names for _, names in steps_of(made))
    else:
        real = (there.astype(np.float64) - 7) * np.float32(0.02) / np.float32(0.03)
        assert (np.abs(y - np.clip(real + 7, 0, 255)) <= 0.5 + 3 * EPS * np.abs(real)).all()


def multiplied(kind: str, op: str, bias: str, scales: int, between: list[onnx.NodeProto], **words: Any
               ) -> tuple[onnx.ModelProto, dict[str, Any]]:  # fmt: skip
    """A product of matrices between quantities, and the numbers that it is made of: weights outputs first."""
    dtype, element = KINDS[kind]
    rng, limits = np.random.default_rng(11), np.iinfo(dtype)
    w = rng.integers(-127, 128, (9, 30)).astype(np.int8)
    sw = rng.uniform(0.002, 0.02, scales).astype(np.float32)
    given: dict[str, Any] = {
        "sx": np.float32(0.021), "zx": np.array(limits.min + 100, dtype), "w": w,
        "sw": sw if scales > 1 else sw[0], "zw": np.zeros(scales, np.int8) if scales > 1 else np.int8(0),
        "sy": np.float32(0.1), "zy": np.array(limits.min + 120, dtype),
    }  # fmt: skip
    outputs_first = bool(words.get("transB", 0))
    nodes = [
        node("DequantizeLinear", ["q", "sx", "zx"], ["x"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=0 if outputs_first else 1),
        node(op, ["x", "wf", "b"] if bias != "none" else ["x", "wf"], ["c"], "it", **words),
        *between, node("QuantizeLinear", [between[-1].output[0] if between else "c", "sy", "zy"], ["y"]),
    ]  # fmt: skip
    constants = given | {} if outputs_first else given | {"w": np.ascontiguousarray(w.T)}
    if bias == "integers":
        unit = np.broadcast_to(given["sx"] * given["sw"], 9).astype(np.float32)
        more = {"bi": rng.integers(-3000, 3000, 9).astype(np.int32), "sb": unit, "zb": np.zeros(9, np.int32)}
        nodes.insert(2, node("DequantizeLinear", ["bi", "sb", "zb"], ["b"], axis=0))
        given, constants = given | more, constants | more
    elif bias == "real":
        given, constants = ({**each, "b": np.linspace(-1, 1, 9, dtype=np.float32)} for each in (given, constants))
    return onnx_model(nodes, [info("q", [32, 30], element)], ["y"], arrays(constants)), given


def real_product(q: np.ndarray, given: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The product of what the integers stand for, in f64, and how far rounding its bias to whole steps moves it."""
    x = (q.astype(np.float64) - float(given["zx"])) * float(given["sx"])
    sw = np.broadcast_to(given["sw"], 9).astype(np.float64)
    unit = float(given["sx"]) * sw
    bias = given["bi"] * given["sb"].astype(np.float64) if "bi" in given else np.asarray(given.get("b", np.zeros(9)))
    y = x @ (given["w"] * sw[:, None]).T + bias
    return y, np.broadcast_to(0.5 * unit + EPS * np.abs(bias), y.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["none", "integers", "real"])
@pytest.mark.parametrize("scales", [1, 9])
@pytest.mark.parametrize("between", ["nothing", "Relu"])
@pytest.mark.parametrize("words", [{}, {"transB": 1}], ids=str)
def test_a_product_between_quantities_runs_on_integers(kind: str, bias: str, scales: int, between: str,
                                                       words: dict[str, int]) -> None:  # fmt: skip
    model, given = multiplied(kind, "Gemm", bias, scales, CLIPS[between], **words)
    limits = np.iinfo(KINDS[kind][0])
    q = np.random.default_rng(3).integers(limits.min, limits.max + 1, (32, 30)).astype(KINDS[kind][0])
    made = session(model)
    [found] = made.run(None, {"q": q})
    real, moved = real_product(q, given)
    check(found, np.maximum(real, 0.0) if between == "Relu" else real, moved, given)
    assert not any("Dequantize" in names for _, names in steps_of(made))
    assert {engine for engine, _ in steps_of(made)} == {"polyconv"}


def test_a_product_of_two_matrices_alone_runs_on_integers() -> None:
    model, given = multiplied("u8", "MatMul", "none", 1, [])
    q = np.random.default_rng(3).integers(0, 256, (32, 30)).astype(np.uint8)
    made = session(model)
    real, moved = real_product(q, given)
    check(made.run(None, {"q": q})[0], real, moved, given)
    assert not any("Dequantize" in names for _, names in steps_of(made))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["none", "integers"])
@pytest.mark.parametrize("scales", [1, 9])
@pytest.mark.parametrize("words", [{}, {"transB": 1}], ids=str)
def test_a_quantised_product_of_another_domain_runs_on_integers(kind: str, bias: str, scales: int,
                                                                words: dict[str, int]) -> None:  # fmt: skip
    dtype, element = KINDS[kind]
    model, given = multiplied(kind, "Gemm", bias, scales, [], **words)
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    if "sb" in held:  # which the operator does not read
        given["sb"] = np.broadcast_to(given["sx"] * given["sw"], 9).astype(np.float32)
    names = ["q", "sx", "zx", "w", "sw", "zw", "bi" if bias == "integers" else "", "sy", "zy"]
    nodes = [node("QGemm", names, ["y"], "it", domain="com.microsoft", **words)]
    kept = {name: a for name, a in held.items() if name in names}
    made = onnx_model(nodes, [info("q", [32, 30], element)], [info("y", None, element)], kept)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    limits = np.iinfo(dtype)
    q = np.random.default_rng(3).integers(limits.min, limits.max + 1, (32, 30)).astype(dtype)
    real, moved = real_product(q, given)
    running = session(made)
    check(running.run(None, {"q": q})[0], real, moved, given)
    assert {engine for engine, _ in steps_of(running)} == {"polyconv"}
    assert not any("Dequantize" in names for _, names in steps_of(running))


@pytest.mark.parametrize("words", [{"alpha": 0.5}, {"beta": 2.0}], ids=str)
def test_a_product_of_another_kind_stays_real(words: dict[str, Any]) -> None:
    model, given = multiplied("u8", "Gemm", "real", 1, [], **words)
    q = np.random.default_rng(3).integers(0, 256, (32, 30)).astype(np.uint8)
    real, _ = real_product(q, {**given, "b": np.zeros(9)})
    made = session(model)
    [found] = made.run(None, {"q": q})
    want = real * words.get("alpha", 1.0) + given["b"].astype(np.float64) * words.get("beta", 1.0)
    check(found, want, 64 * EPS * (np.abs(want) + 100), given)
    assert any("Dequantize" in names for _, names in steps_of(made))


def test_a_product_of_columns_runs_on_integers() -> None:
    model, given = multiplied("u8", "Gemm", "real", 1, [], transA=1)
    model.graph.input[0].CopyFrom(info("q", [30, 32], TensorProto.UINT8))
    q = np.random.default_rng(3).integers(0, 256, (30, 32)).astype(np.uint8)
    made = session(model)
    real, moved = real_product(q.T, given)
    check(made.run(None, {"q": q})[0], real, moved, given)
    assert not any("Dequantize" in names for _, names in steps_of(made))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["none", "integers", "real"])
@pytest.mark.parametrize("after", ["HardSwish", "residual", "result"])
def test_sums_of_integers_before_real_numbers(kind: str, bias: str, after: str) -> None:
    """A convolution whose result is not quantised at once: what follows is done with the real numbers of exact sums."""
    model, given = quantised(kind, bias, [], 120)
    nodes = list(model.graph.node)[:-1]
    nodes += {
        "HardSwish": [node("HardSwish", ["c"], ["h"]), node("QuantizeLinear", ["h", "sy", "zy"], ["y"])],
        "residual": [node("Add", ["c", "r"], ["a"]), node("Relu", ["a"], ["h"]),
                     node("QuantizeLinear", ["h", "sy", "zy"], ["y"])],
        "result": [node("Identity", ["c"], ["y"])],
    }[after]  # fmt: skip
    inputs = [info("q", [2, 4, 9, 8], KINDS[kind][1]), *([info("r", [2, 8, 9, 8])] if after == "residual" else [])]
    used = {name for each in nodes for name in each.input}
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name in used}
    made = session(onnx_model(nodes, inputs, ["y"], held))
    limits = np.iinfo(KINDS[kind][0])
    q = np.random.default_rng(5).integers(limits.min, limits.max + 1, (2, 4, 9, 8)).astype(KINDS[kind][0])
    r = random(2, 8, 9, 8)
    [found] = made.run(None, {"q": q} | ({"r": r} if after == "residual" else {}))
    real, _ = real_result(q, given)
    slack = 8 * EPS * (np.abs(real) + 100)  # sums of magnitudes are within 100
    if after == "result":
        assert (np.abs(found - real) <= slack).all()
    else:
        want = np.maximum(real + r, 0) if after == "residual" else real * np.clip(real / 6 + 0.5, 0, 1)
        check(found, want, 2 * slack, given)
    assert {engine for engine, _ in steps_of(made)} == {"polyconv"}
    kinds = {record.problem.split()[1] for record in made.nodes if record.problem}
    assert kinds == {"u8*i8>i32" if kind == "u8" else "i8>i32"}


@pytest.mark.parametrize("length", [1, 7])
def test_a_bias_that_is_not_as_long_as_channels_is_an_error(length: int) -> None:
    """Whoever follows: it must not be broadcast instead."""
    model, _ = quantised("u8", "real", [], 0)
    model = replaced(model, "b", np.ones(length, np.float32))
    del model.graph.node[-1]
    model.graph.node.append(node("Identity", ["c"], ["y"]))
    with pytest.raises(Error, match="conv"):
        session(model).run(None, {"q": np.zeros((2, 4, 9, 8), np.uint8)})


@pytest.mark.parametrize("axis", [None, 0])
def test_constant_weights_that_are_quantised_in_the_graph_are_integers(axis: int | None) -> None:
    """What training with quantisation exports: real weights that are quantised and made real again."""
    model, given = quantised("u8", "none", [], 0)
    scale = given["sw"] if axis == 0 else np.float32(0.01)
    zero = np.zeros(8, np.int8) if axis == 0 else np.int8(0)
    weights = random(8, 4, 3, 3)
    nodes = [*model.graph.node]
    words = {} if axis is None else {"axis": axis}
    nodes[1:2] = [
        node("QuantizeLinear", ["real", "scale", "zero"], ["wq"], **words),
        node("DequantizeLinear", ["wq", "scale", "zero"], ["wf"], **words),
    ]
    constants = {"real": weights, "scale": np.asarray(scale), "zero": np.asarray(zero)} | {
        name: np.asarray(given[name]) for name in ("sx", "zx", "sy", "zy")
    }
    made = session(onnx_model(nodes, [info("q", [2, 4, 9, 8], TensorProto.UINT8)], ["y"], constants))
    q = np.random.default_rng(3).integers(0, 256, (2, 4, 9, 8)).astype(np.uint8)
    [found] = made.run(None, {"q": q})
    along = np.asarray(scale).reshape((-1, 1, 1, 1) if axis == 0 else ())
    integers = np.clip(np.rint(weights / along), -128, 127)
    real, moved = real_result(q, {**given, "w": integers, "sw": np.broadcast_to(scale, 8)})
    check(found, real, moved, given)
    assert steps_of(made) == [("polyconv", "Conv+QuantizeLinear")]


REAL = {
    "QLinearAdd": lambda a, b: a + b,
    "QLinearMul": lambda a, b: a * b,
    "QLinearSigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "QLinearLeakyRelu": lambda a: np.where(a < 0, 0.25 * a, a),
    "QLinearGlobalAveragePool": lambda a: a.mean((2, 3), keepdims=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", REAL)
def test_quantised_operators_of_another_domain_are_computed_on_real_numbers(op: str, kind: str) -> None:
    dtype, element = KINDS[kind]
    limits, rng = np.iinfo(dtype), np.random.default_rng(3)
    count = 2 if op in ("QLinearAdd", "QLinearMul") else 1
    scales, zeros = (np.float32(0.03), np.float32(0.05)), (limits.min + 90, limits.min + 140)
    sy, zy = np.float32(0.01 if op == "QLinearSigmoid" else 0.06), limits.min + 120
    constants = {"sy": sy, "zy": np.array(zy, dtype)}
    names = []
    for at in range(count):
        constants |= {f"s{at}": scales[at], f"z{at}": np.array(zeros[at], dtype)}
        names += [f"q{at}", f"s{at}", f"z{at}"]
    attributes: dict[str, Any] = {"alpha": 0.25} if op == "QLinearLeakyRelu" else {}
    attributes |= {"channels_last": 0} if op == "QLinearGlobalAveragePool" else {}
    nodes = [node(op, [*names, "sy", "zy"], ["y"], "it", domain="com.microsoft", **attributes)]
    inputs = [info(f"q{at}", [2, 3, 5, 7], element) for at in range(count)]
    model = onnx_model(nodes, inputs, [info("y", None, element)], arrays(constants))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    made = session(model)
    given = [rng.integers(limits.min, limits.max + 1, (2, 3, 5, 7)).astype(dtype) for _ in range(count)]
    (y,) = made.run(None, {f"q{at}": q for at, q in enumerate(given)})
    assert {engine for engine, _ in steps_of(made)} == {"polyconv"}
    reals = [(q.astype(np.float64) - zeros[at]) * float(scales[at]) for at, q in enumerate(given)]
    want = np.clip(REAL[op](*reals) / float(sy) + zy, limits.min, limits.max)
    steps = sum(np.abs(r) for r in reals) / float(sy)
    assert (np.abs(y - want) <= 0.5 + 64 * EPS * (steps.max() + 256)).all()
