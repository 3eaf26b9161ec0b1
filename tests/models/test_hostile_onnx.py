"""Damaged and hostile ONNX files: a polyconv error that names the culprit, soon, and nothing worse."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from making import info, onnx_model, random
from onnx import AttributeProto, TensorProto, helper

from polyconv.errors import Error, ModelError, Unsupported
from polyconv.models import InferenceSession

node = helper.make_node


def small(**attributes: object) -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", **attributes),
        node("Relu", ["c"], ["d"], "relu"),
        node("MaxPool", ["d"], ["y"], "pool", kernel_shape=[2], strides=[2]),
    ]
    constants = {"w": random(4, 3, 3), "b": random(4, seed=1)}
    return onnx_model(nodes, [info("x", [1, 3, 9])], ["y"], constants)


def refused(model: onnx.ModelProto | bytes | Path, words: str, error: type[Error] = ModelError) -> None:
    data = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    with pytest.raises(error, match=words) as caught:
        InferenceSession(data).run(None, {"x": random(1, 3, 9)})
    assert len(str(caught.value)) < 3000


def initialiser(model: onnx.ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"PK\x03\x04 not a model", bytes(range(256)) * 10])
def test_bytes_that_are_no_model(data: bytes) -> None:
    refused(data, "model|graph")


def test_truncated_files() -> None:
    data = small().SerializeToString()
    for length in range(1, len(data), 7):
        with pytest.raises(Error):
            InferenceSession(data[:length]).run(None, {"x": random(1, 3, 9)})


@pytest.mark.parametrize("length", [0, 1, 143, 145, 1000])
def test_raw_data_of_the_wrong_length(length: int) -> None:
    model = small()
    initialiser(model, "w").raw_data = bytes(length)
    refused(model, f"'w'.*144 bytes.* {length}")


@pytest.mark.parametrize(
    "dims", [[4, 3, -3], [-1], [1 << 62, 4, 4], [1 << 40, 1 << 40], [10**6, 10**6, 3], [1] * 100]
)
def test_declared_shapes_that_cannot_be(dims: list[int]) -> None:
    model = small()
    tensor = initialiser(model, "w")
    del tensor.dims[:]
    tensor.dims.extend(dims)
    refused(model, "'w'")


@pytest.mark.parametrize("number", [0, 77, -1, 8, 20, 22])
def test_element_types_that_cannot_be(number: int) -> None:
    model = small()
    initialiser(model, "w").data_type = number
    refused(model, "'w'|conv")


def test_too_few_typed_values() -> None:
    model = small()
    tensor = initialiser(model, "w")
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0, 2.0])
    refused(model, "'w'")


def test_weights_of_another_type() -> None:
    model = small()
    initialiser(model, "w").CopyFrom(onnx.numpy_helper.from_array(random(4, 3, 3, dtype=np.float64), "w"))
    refused(model, "conv")


def test_circles() -> None:
    nodes = [
        node("Add", ["x", "b"], ["a"], "one"),
        node("Neg", ["a"], ["b"], "two"),
        node("Abs", ["x"], ["y"]),
    ]
    refused(onnx_model(nodes, [info("x", [1, 3, 9])], ["y"]), "one|two")
    refused(onnx_model([node("Add", ["x", "y"], ["y"], "self")], [info("x", [1, 3, 9])], ["y"]), "self")


def test_long_circles_and_chains_are_quick() -> None:
    chain = [node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(20000)]
    inputs = [info("v0", [1])]
    start = time.perf_counter()
    refused(onnx_model([*chain[1:], node("Neg", ["v20000"], ["v1"], "back")], inputs, ["v5"]), "circle")
    assert time.perf_counter() - start < 60  # no promise, but no quadratic search either


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.node[1].input.__setitem__(0, "ghost"), "relu.*ghost"),
        (lambda g: g.node[2].output.__setitem__(0, "c"), "pool.*'c'.*conv"),
        (lambda g: g.node[2].output.__setitem__(0, "x"), "pool.*'x'"),
        (lambda g: g.output.add(name="ghost"), "ghost"),
        (lambda g: g.output.add(name="y"), "'y'"),
        (lambda g: g.input.add(name="x"), "'x'"),
        (lambda g: g.input.add(), "name"),
        (lambda g: g.initializer.append(g.initializer[0]), "'w'"),
        (lambda g: g.initializer.add(), "name"),
        (lambda g: g.node[0].input.__setitem__(1, ""), "conv.*W"),
        (lambda g: g.node[0].input.pop(), "none"),
        (lambda g: g.node[0].input.extend(["b", "b"]), "conv.*5 inputs"),
        (lambda g: g.node[0].output.append("more"), "conv.*2 outputs"),
        (lambda g: g.node[1].input.append("b"), "relu"),
        (lambda g: g.node[0].ClearField("op_type"), "conv"),
        (lambda g: setattr(g.node[0], "domain", "nowhere"), "conv.*nowhere"),
        (lambda g: setattr(g.node[1], "op_type", "Reluu"), "relu"),
        (lambda g: g.node[2].ClearField("attribute"), "pool"),
        (lambda g: g.input[0].type.tensor_type.shape.dim[1].__setattr__("dim_value", -7), "'x'.*-7"),
        (lambda g: g.input[0].type.tensor_type.shape.dim[1].__setattr__("dim_value", 4), "conv"),
    ],
)
def test_graphs_that_contradict_themselves(change: Callable[[onnx.GraphProto], None], words: str) -> None:
    model = small()
    change(model.graph)
    if words == "none":  # a bias left out is no contradiction
        InferenceSession(model.SerializeToString()).run(None, {"x": random(1, 3, 9)})
    else:
        refused(model, words)


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [0]}, {"strides": [-1]}, {"strides": [1] * 1_000_000}, {"strides": [1 << 62]},
        {"strides": 2}, {"strides": "two"}, {"strides": [0.5]},
        {"pads": [-1, 0]}, {"pads": [1]}, {"pads": [1 << 62, 1 << 62]}, {"auto_pad": "VALID", "pads": [1, 1]},
        {"dilations": [1 << 61]}, {"group": 0}, {"group": 2}, {"group": [1]}, {"kernel_shape": [4]},
        {"auto_pad": "same_upper"}, {"auto_pad": 3}, {"threads": 4}, {"semantics": "onnxruntime"},
        {"x" * 10**6: 1},
    ],
    ids=lambda a: next(iter(a))[:20],
)  # fmt: skip
def test_attributes_that_cannot_be(attributes: dict[str, object]) -> None:
    refused(small(**attributes), "conv")


def test_attributes_of_odd_types() -> None:
    model = small()
    model.graph.node[0].attribute.append(AttributeProto(name="strides", type=AttributeProto.TENSOR))
    refused(model, "conv.*strides")
    model = small(strides=[1])
    model.graph.node[0].attribute.append(model.graph.node[0].attribute[0])
    refused(model, "conv.*strides")
    model = small()
    model.graph.node[0].attribute.add(name="strides", type=AttributeProto.INTS, ref_attr_name="outer")
    refused(model, "conv.*strides")


@pytest.mark.parametrize("shape", [[10**6, 10**6, 3], [-1, 3, 3], [1 << 62, 1 << 62], [1] * 200])
@pytest.mark.parametrize("reader", ["Conv", "Abs"])
def test_constants_made_too_large(shape: list[int], reader: str) -> None:
    nodes = [node("ConstantOfShape", ["s"], ["w"], "huge")]
    nodes += (
        [node("Conv", ["x", "w"], ["y"])]
        if reader == "Conv"
        else [node("Abs", ["w"], ["z"]), node("Add", ["x", "z"], ["y"])]
    )
    refused(onnx_model(nodes, [info("x", [1, 3, 9])], ["y"], {"s": np.array(shape, np.int64)}), "huge")


def test_results_too_large_for_the_machine() -> None:
    refused(small(pads=[1 << 50, 0]), "conv")
    up = node("ConvTranspose", ["x", "w"], ["y"], "up", strides=[1 << 45])
    refused(onnx_model([up], [info("x", [1, 3, 9])], ["y"], {"w": random(3, 4, 3)}), "up")


def test_opsets_that_cannot_be() -> None:
    for version, error in ((0, ModelError), (-5, ModelError), (10**6, Unsupported)):
        model = small()
        model.opset_import[0].version = version
        refused(model, "operator set|opset", error)


def block(name: str, calls: list[str]) -> onnx.FunctionProto:
    body = [node(op, ["p"], ["q"], domain="f" if op.startswith("F") else "") for op in calls[:1]]
    body += [
        node(op, ["q"], [f"r{i}"], domain="f" if op.startswith("F") else "") for i, op in enumerate(calls[1:])
    ]
    return helper.make_function(
        "f", name, ["p"], ["q"], body, [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    )


def test_functions_that_call_themselves() -> None:
    call = [node("F0", ["x"], ["y"], "start", domain="f")]
    inputs = [info("x", [1, 3, 9])]
    circle = [block("F0", ["F1"]), block("F1", ["F0"])]
    refused(onnx_model(call, inputs, ["y"], domains={"f": 1}, functions=circle), "calls itself")
    tower = [block(f"F{i}", [f"F{i + 1}"] * 10) for i in range(30)] + [block("F30", ["Abs"])]
    refused(onnx_model(call, inputs, ["y"], domains={"f": 1}, functions=tower), "nodes")


@pytest.fixture
def external(tmp_path: Path) -> Callable[..., Path]:
    """A model whose weights lie in another file; its folder holds weights.bin, its parent secret.bin."""

    def make(**entries: str) -> Path:
        folder = tmp_path / "models"
        folder.mkdir(exist_ok=True)
        data = random(4, 3, 3).tobytes()
        (folder / "weights.bin").write_bytes(data)
        (tmp_path / "secret.bin").write_bytes(data)
        if not (folder / "link.bin").exists():
            (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
            (folder / "loop.bin").symlink_to(folder / "loop.bin")
            (folder / "out").symlink_to(tmp_path)
            os.mkfifo(folder / "pipe")
        model = small()
        tensor = initialiser(model, "w")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in ({"location": "weights.bin"} | entries).items():
            tensor.external_data.add(key=key, value=value)
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return make


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "./../secret.bin", "..\\secret.bin", "link.bin", "loop.bin", "out/secret.bin",
     "pipe", ".", "/etc/passwd", "/dev/zero", "missing.bin", "", "a\0b", "x" * 10**6, "weights.bin/"],
    ids=lambda name: repr(name)[:20],
)  # fmt: skip
def test_external_data_stay_in_the_folder(external: Callable[..., Path], location: str) -> None:
    if location == "weights.bin/":
        InferenceSession(external(location=location))
    else:
        refused(external(location=location), "'w'")


@pytest.mark.parametrize(
    "entries",
    [{"offset": "1"}, {"offset": "1000000000000"}, {"offset": "-4"}, {"offset": "0x10"},
     {"offset": "9" * 5000}, {"offset": "\u0663"}, {"length": "143"}, {"length": "1000000"},
     {"length": "-144"}, {"length": "abc"}],
    ids=str,
)  # fmt: skip
def test_external_data_lie_in_the_file(external: Callable[..., Path], entries: dict[str, str]) -> None:
    refused(external(**entries), "'w'")


def test_a_session_outlives_the_file_of_its_external_data(external: Callable[..., Path]) -> None:
    """A mapped file that is cut short kills whoever reads it."""
    path = external()
    session, x = InferenceSession(path), random(1, 3, 9)
    (want,) = InferenceSession(path).run(None, {"x": x})
    os.truncate(path.parent / "weights.bin", 0)
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)


def test_external_data_take_no_more_memory_than_their_file(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(4 * 64))
    names = [f"w{i}" for i in range(40)]
    model = onnx_model([node("Sum", ["x", *names], ["y"])], [info("x", [32])], ["y"],
                       {name: np.zeros(32, np.float32) for name in names})  # fmt: skip
    for stride, is_fine in ((0, True), (4, False)):
        for index, name in enumerate(names):
            tensor = initialiser(model, name)
            tensor.ClearField("raw_data")
            tensor.ClearField("external_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", str(min(stride * index, 128)))):
                tensor.external_data.add(key=key, value=value)
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        if is_fine:
            InferenceSession(tmp_path / "model.onnx")
        else:
            refused(tmp_path / "model.onnx", "where others lie too")


def test_external_data_of_other_tensors_are_refused() -> None:
    value = TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    value.external_data.add(key="location", value="/etc/passwd")
    fill = node("ConstantOfShape", ["s"], ["w"], "fill", value=value)
    constants = {"s": np.array([4, 3, 3])}
    model = onnx_model([fill, node("Conv", ["x", "w"], ["y"])], [info("x", [1, 3, 9])], ["y"], constants)
    refused(model, "fill", Unsupported)
    branch = helper.make_graph([node("Add", ["x", "v"], ["o"])], "b", [], [info("o", [1, 3, 9])], [value])
    choice = node("If", ["flag"], ["y"], "choice", then_branch=branch, else_branch=branch)
    refused(
        onnx_model([choice], [info("x", [1, 3, 9])], ["y"], {"flag": np.array(True)}), "choice", Unsupported
    )


def test_flipped_bits() -> None:
    """One flipped bit: an error of ours, or a run that gives an array."""
    data = small(strides=[2], pads=[1, 1]).SerializeToString()
    random_state = np.random.default_rng(2024)
    x = random(1, 3, 9)
    errors = 0
    for at in random_state.integers(0, len(data) * 8, 400):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << (at % 8)
        try:
            session = InferenceSession(bytes(damaged))
            results = session.run(None, {value.name: x for value in session.get_inputs()})
        except Error:
            errors += 1
        else:
            assert all(isinstance(result, np.ndarray) for result in results)
    assert 0 < errors < 400


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean", "Concat"])
def test_inputs_that_may_not_be_left_out(op: str) -> None:
    """What onnxruntime would read lies where nothing is."""
    attributes = {"axis": 1} if op == "Concat" else {}
    refused(onnx_model([node(op, ["x", ""], ["y"], "it", **attributes)], [info("x", [1, 3, 9])], ["y"]), "it.*leaves")
