"""Whole ONNX graphs: where they are cut, what is folded and fused, and what a run may be fed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from making import close, engines, info, onnx_model, onnxruntime_run, random, session
from onnx import TensorProto, helper, numpy_helper

from polyconv.errors import ArgumentError, DtypeError, ModelError, Unsupported
from polyconv.models import InferenceSession

node = helper.make_node
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_light_models(name: str) -> None:
    made = InferenceSession(LIGHT / f"light_{name}.onnx")
    (value,) = made.get_inputs()
    size = int(np.prod(value.shape))
    x = (np.arange(size).reshape(value.shape) / size).astype(np.float32)
    expected = onnx.TensorProto.FromString((LIGHT / f"light_{name}_output_0.pb").read_bytes())
    (y,) = made.run(None, {value.name: x})
    if name == "squeezenet":  # all classes have the score 1e10: the last bit of one decides what the others get
        model = onnx.load(LIGHT / f"light_{name}.onnx")
        (scores,) = model.graph.node.pop().input
        model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name=scores))
        ours, theirs = session(model).run(None, {value.name: x})[0], onnxruntime_run(model, {value.name: x})[0]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    else:
        np.testing.assert_allclose(y, numpy_helper.to_array(expected), rtol=1e-3, atol=1e-7)
    # Weights come from ConstantOfShape; a step that made one anew in every run would not be "constant".
    assert {r.engine for r in made.nodes if r.op == "ConstantOfShape"} <= {"constant", "removed"}
    assert {r.engine for r in made.nodes if r.op == "Conv"} == {"polyconv"}


def branching() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "first", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"], "relu"),
        node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["c", "w1"], ["d"], "left"),
        node("Conv", ["c", "w2"], ["e"], "right"),
        node("Concat", ["d", "e"], ["f"], "join", axis=1),
        node("ConvTranspose", ["f", "w3"], ["y"], "last", strides=[2, 2]),
        node("Atan", ["d"], ["z"], "tangent"),
    ]
    weights = {
        "w0": random(4, 3, 3, 3, seed=1), "w1": random(2, 4, 1, 1, seed=2), "w2": random(3, 4, 1, 1, seed=3),
        "w3": random(5, 2, 2, 2, seed=4),
    }  # fmt: skip
    return onnx_model(nodes, [info("x", ["N", 3, "H", "W"])], ["y", "z", "b"], weights)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (3, 3, 5, 11), (0, 3, 8, 8)])
def test_branches_and_dynamic_sizes(shape: tuple[int, ...]) -> None:
    model = branching()
    made = session(model)
    x = random(*shape)
    results = made.run(None, {"x": x})
    if 0 not in shape:
        for ours, theirs in zip(results, onnxruntime_run(model, {"x": x}), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert results[0].shape[0] == shape[0]
    ours = ("first", "left", "right", "last", "relu", "pool", "join")
    assert engines(made) == dict.fromkeys(ours, "polyconv") | {"tangent": "onnxruntime"}


def test_some_outputs_need_some_steps() -> None:
    made = session(branching())
    x = random(1, 3, 8, 8)
    everything = made.run(None, {"x": x})
    (z,) = made.run(["z"], {"x": x})
    np.testing.assert_array_equal(z, everything[1])
    ran = {record.name for record in made.nodes if record.seconds is not None}
    assert "left" in ran and "last" not in ran
    assert set(made.profile()) == {"polyconv", "onnxruntime"}
    b, y = made.run(["b", "y"], {"x": x})
    np.testing.assert_array_equal(b, everything[2])
    np.testing.assert_array_equal(y, everything[0])


def test_records_spell_the_problem() -> None:
    made = session(branching(), layout="model")
    assert all(record.problem is None and record.seconds is None for record in made.nodes)
    made.run(None, {"x": random(2, 3, 8, 8)})
    problems = {record.name: record.problem for record in made.nodes}
    assert problems["first"] == "conv f32 NCHW n2 c3 i8x8 m4 k3x3 p1 act=Relu"
    assert problems["last"] == "conv_transpose f32 NCHW n2 c5 i4x4 m2 k2x2 s2"
    assert problems["pool"] is None


def test_inputs_and_outputs_look_like_onnxruntimes() -> None:
    import onnxruntime

    model = branching()
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = InferenceSession(model.SerializeToString(), None, ["CPUExecutionProvider"], None)
    assert [(v.name, v.shape, v.type) for v in ours.get_inputs()] == [
        (v.name, v.shape, v.type) for v in theirs.get_inputs()
    ]
    assert [(v.name, v.type) for v in ours.get_outputs()] == [(v.name, v.type) for v in theirs.get_outputs()]
    assert ours.get_providers() == ["PolyconvExecutionProvider", "CPUExecutionProvider"]
    with pytest.raises(TypeError):
        InferenceSession(model.SerializeToString(), no_such_option=1)


@pytest.mark.parametrize(
    ("feeds", "error", "words"),
    [
        ({}, ArgumentError, "lacks 'x'"),
        ({"x": random(1, 3, 8, 8), "q": random(1)}, ArgumentError, "'q'"),
        ({"x": random(1, 3, 8, 8).astype(np.float64)}, DtypeError, "float64"),
        ({"x": random(1, 3, 8)}, ArgumentError, r"\(1, 3, 8\)"),
        ({"x": random(1, 4, 8, 8)}, ArgumentError, r"\(1, 4, 8, 8\)"),
        ({"x": np.ma.masked_array(random(1, 3, 8, 8))}, ArgumentError, "masked"),
    ],
)
def test_feeds_are_checked(feeds: dict[str, np.ndarray], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        session(branching()).run(None, feeds)


def test_output_names_are_checked() -> None:
    with pytest.raises(ArgumentError, match="nope"):
        session(branching()).run(["nope"], {"x": random(1, 3, 8, 8)})


@pytest.mark.parametrize(
    "option", [{"semantics": "torch"}, {"accuracy": "best"}, {"threads": 0}, {"weights": b""}]
)
def test_options_are_checked(option: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(option))):
        session(branching(), **option)


def test_any_strides_and_byte_orders_are_fed() -> None:
    made = session(branching())
    x = random(2, 8, 8, 3)
    plain = made.run(["y"], {"x": np.ascontiguousarray(np.moveaxis(x, -1, 1))})[0]
    np.testing.assert_array_equal(made.run(["y"], {"x": np.moveaxis(x, -1, 1)})[0], plain)
    swapped = np.moveaxis(x, -1, 1).astype(">f4")
    np.testing.assert_array_equal(made.run(["y"], {"x": swapped})[0], plain)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initialisers_that_are_inputs_can_be_fed(ir_version: int) -> None:
    w, other = random(2, 3, 3, seed=1), random(2, 3, 3, seed=2)
    nodes = [node("Transpose", ["w"], ["t"], perm=[1, 0, 2]), node("Transpose", ["t"], ["u"], perm=[1, 0, 2])]
    nodes += [node("Conv", ["x", "u"], ["c"]), node("Mul", ["c", "s"], ["y"])]
    model = onnx_model(
        nodes, [info("x", [1, 3, 8]), info("w", [2, 3, 3]), info("s", [])], ["y"],
        {"w": w, "s": np.float32(2)}, ir_version=ir_version, opset=9,
    )  # fmt: skip
    made = session(model)
    assert [v.name for v in made.get_inputs()] == ["x"]
    assert [v.name for v in made.get_overridable_initializers()] == ["w", "s"]
    x = random(1, 3, 8)
    double = made.run(None, {"x": x})[0]
    np.testing.assert_allclose(made.run(None, {"x": x, "s": np.float32(1)})[0] * 2, double, rtol=1e-6)
    peer = onnx_model([node("Conv", ["x", "w"], ["y"])], [info("x", [1, 3, 8])], ["y"], {"w": other})
    fed = made.run(None, {"x": x, "w": other, "s": np.float32(1)})[0]
    np.testing.assert_allclose(fed, onnxruntime_run(peer, {"x": x})[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], double)


def test_weights_computed_in_the_graph_are_folded() -> None:
    nodes = [
        node(
            "ConstantOfShape", ["shape"], ["ones"], value=numpy_helper.from_array(np.array([0.5], np.float32))
        ),
        node("Unsqueeze", ["ones", "axes"], ["w"]),
        node("Constant", [], ["q"], value_floats=[1.0, 2.0]),
        node("Add", ["q", "q"], ["b"]),
        node("Conv", ["x", "w", "b"], ["y"], "conv"),
        node("Identity", ["b"], ["z"]),
    ]
    constants = {"shape": np.array([2, 3], np.int64), "axes": np.array([2, 3], np.int64)}
    made = close(
        onnx_model(nodes, [info("x", [1, 3, 4, 4])], ["y", "z"], constants), {"x": random(1, 3, 4, 4)}
    )
    assert set(engines(made).values()) == {"polyconv", "constant"}
    z = made.run(["z"], {"x": random(1, 3, 4, 4)})[0]
    z += 1.0  # a result belongs to the caller
    assert made.run(["z"], {"x": random(1, 3, 4, 4)})[0].tolist() == [2.0, 4.0]


def test_random_numbers_are_not_folded() -> None:
    nodes = [node("RandomNormal", [], ["w"], shape=[2, 3, 3]), node("Conv", ["x", "w"], ["y"])]
    made = session(onnx_model(nodes, [info("x", [1, 3, 8])], ["y"]))
    x = random(1, 3, 8)
    assert (made.run(None, {"x": x})[0] != made.run(None, {"x": x})[0]).any()


def test_functions_are_written_out() -> None:
    body = [node("Conv", ["p", "q"], ["r"]), node("LeakyRelu", ["r"], ["s"])]
    body[1].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    block = helper.make_function(
        "mine", "Block", ["p", "q"], ["s"], body, [helper.make_opsetid("", 17)], attributes=["slope"]
    )
    nodes = [
        node("Block", ["x", "w"], ["a"], domain="mine", slope=0.5),
        node("Block", ["a", "v"], ["y"], domain="mine", slope=0.25),
    ]
    constants = {"w": random(4, 3, 3), "v": random(2, 4, 1)}
    model = onnx_model(
        nodes, [info("x", [1, 3, 9])], ["y"], constants, domains={"mine": 1}, functions=[block]
    )
    made = close(model, {"x": random(1, 3, 9)})
    assert [r.engine for r in made.nodes if r.op == "Conv"] == ["polyconv", "polyconv"]


def test_control_flow_without_convolutions_runs_on_the_host() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([node(op, ["c"], ["o"])], op, [], [info("o")])

    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("If", ["flag"], ["y"], "if", then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    inputs = [info("x", [1, 3, 9]), info("flag", [], TensorProto.BOOL)]
    # whole numbers, so that their sums are exact in any order
    model = onnx_model(nodes, inputs, ["y"], {"w": np.rint(4 * random(4, 3, 3))})
    for flag in (True, False):
        close(model, {"x": np.rint(4 * random(1, 3, 9)), "flag": np.array(flag)})


@pytest.mark.parametrize(
    ("op", "domain"), [("Conv", "com.microsoft.nchwc"), ("ConvTransposeWithDynamicPads", "com.microsoft")]
)
def test_unknown_convolutions_are_refused(op: str, domain: str) -> None:
    model = onnx_model(
        [node(op, ["x", "w"], ["y"], "it", domain=domain)], [info("x")], ["y"], {"w": random(4, 3, 3)}
    )
    with pytest.raises(Unsupported, match="it"):
        session(model)


def with_external(folder: Path, location: str = "weights.bin") -> onnx.ModelProto:
    w = random(4, 3, 3)
    (folder / "weights.bin").write_bytes(b"\0" * 3 + w.tobytes())
    model = onnx_model([node("Conv", ["x", "w"], ["y"])], [info("x", [1, 3, 9])], ["y"], {"w": w})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "3"), ("length", str(w.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return model


def test_external_data(tmp_path: Path) -> None:
    model = with_external(tmp_path)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    plain = onnx_model(
        [node("Conv", ["x", "w"], ["y"])], [info("x", [1, 3, 9])], ["y"], {"w": random(4, 3, 3)}
    )
    (y,) = InferenceSession(tmp_path / "model.onnx").run(None, {"x": random(1, 3, 9)})
    np.testing.assert_allclose(y, onnxruntime_run(plain, {"x": random(1, 3, 9)})[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match=r"'w'.*path"):
        InferenceSession(model.SerializeToString())


def test_without_onnxruntime_the_reference_runs_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyconv.models import onnx_host

    monkeypatch.setattr(onnx_host, "find_spec", lambda name: None)
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv"), node("Sigmoid", ["a"], ["b"]),
        node("Add", ["b", "big"], ["c"]), node("Softsign", ["c"], ["y"], "soft"),
    ]  # fmt: skip
    constants = {"w": random(4, 3, 3), "big": random(4, 20000, seed=1)}
    model = onnx_model(nodes, [info("x", [1, 3, 20002])], ["y"], constants, opset=9)
    made = close(model, {"x": random(1, 3, 20002)})
    assert engines(made)["soft"] == "onnx.reference"
    assert made.get_providers() == ["PolyconvExecutionProvider", "ReferenceEvaluator"]


def test_a_missing_onnx_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    data = branching().SerializeToString()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(Unsupported, match=r"pip install polyconv\[onnx\]"):
        InferenceSession(data)


def test_runs_may_overlap() -> None:
    from concurrent.futures import ThreadPoolExecutor

    made = session(branching())
    inputs = [random(1, 3, 6 + i % 3, 7, seed=i) for i in range(12)]
    alone = [made.run(["y"], {"x": x})[0] for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: made.run(["y"], {"x": x})[0], inputs))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
