"""What is folded into a convolution, what is not, and that results stay as they were."""

from __future__ import annotations

import numpy as np
import pytest
from making import close, engines, info, onnx_model, random, session
from onnx import TensorProto, helper

from polyconv.models.activations import with_affine
from polyconv.models.graph import Node
from polyconv.problem.epilogue import Activation

node = helper.make_node


ACTIVATIONS = [
    ("Relu", {}, []), ("LeakyRelu", {"alpha": 0.3}, []), ("LeakyRelu", {}, []), ("Sigmoid", {}, []),
    ("Tanh", {}, []), ("HardSigmoid", {"alpha": 0.3}, []), ("HardSwish", {}, []), ("Elu", {"alpha": 0.7}, []),
    ("Mish", {}, []), ("Gelu", {}, []), ("Clip", {}, [-0.5, 0.25]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "attributes", "bounds"), ACTIVATIONS, ids=lambda v: str(v) if isinstance(v, str) else ""
)
def test_activations_are_fused(op: str, attributes: dict[str, float], bounds: list[float]) -> None:
    constants = {"w": random(4, 3, 3, seed=1)} | {f"c{i}": np.float32(v) for i, v in enumerate(bounds)}
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node(op, ["c", *(f"c{i}" for i in range(len(bounds)))], ["y"], "act", **attributes),
    ]
    made = close(
        onnx_model(nodes, [info("x", [1, 3, 9])], ["y"], constants, opset=20), {"x": random(1, 3, 9)}
    )
    assert len({record.step for record in made.nodes}) == 1
    assert set(engines(made).values()) == {"polyconv"}


def test_silu_is_fused() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Sigmoid", ["c"], ["s"]), node("Mul", ["s", "c"], ["y"])]
    made = close(
        onnx_model(nodes, [info("x", [1, 3, 9])], ["y"], {"w": random(4, 3, 3)}), {"x": random(1, 3, 9)},
        layout="model",
    )
    assert {record.problem for record in made.nodes} == {"conv f32 NCHW n1 c3 i9 m4 k3 act=Silu"}


@pytest.mark.parametrize("op", ["Relu", "Clip", "Sigmoid"])
def test_half_precision_fuses_only_what_commutes_with_rounding(op: str) -> None:
    kind = TensorProto.FLOAT16
    constants = {"w": random(4, 3, 3, dtype=np.float16)}
    extra = []
    if op == "Clip":
        extra = ["lo", "hi"]
        constants |= {"lo": np.float16(-0.3), "hi": np.float16(0.7)}
    nodes = [node("Conv", ["x", "w"], ["c"]), node(op, ["c", *extra], ["y"])]
    model = onnx_model(nodes, [info("x", [1, 3, 9], kind)], [info("y", None, kind)], constants)
    unfused = onnx_model(nodes, [info("x", [1, 3, 9], kind)], ["y", "c"], constants)
    x = random(1, 3, 9, dtype=np.float16)
    made = session(model)
    (y,) = made.run(None, {"x": x})
    assert len({r.step for r in made.nodes}) == (2 if op == "Sigmoid" else 1)
    np.testing.assert_array_equal(y, session(unfused).run(None, {"x": x})[0])


@pytest.mark.parametrize("batch", [2, "N"])
def test_residual_of_proven_shape_is_fused(batch: int | str) -> None:
    nodes = [
        node("Sigmoid", ["x"], ["s"], "other"),
        node("Conv", ["x", "w"], ["a"], "left", pads=[1, 1]),
        node("Conv", ["s", "v"], ["b"], "right"),
        node("Add", ["a", "b"], ["c"], "add"),
        node("Relu", ["c"], ["y"], "relu"),
    ]
    constants = {"w": random(4, 3, 3, seed=1), "v": random(4, 3, 1, seed=2)}
    made = close(onnx_model(nodes, [info("x", [batch, 3, 9])], ["y"], constants), {"x": random(2, 3, 9)})
    assert set(engines(made).values()) == {"polyconv"}
    assert any("r1 act=Relu" in (record.problem or "") for record in made.nodes)


@pytest.mark.parametrize(
    ("declared", "fed"), [([1, 4, 1], (1, 4, 1)), (["N", 4, "L"], (1, 4, 1)), (None, (2, 4, 9))]
)
def test_addends_that_may_broadcast_are_not_fused(
    declared: list[int | str] | None, fed: tuple[int, ...]
) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1]),
        node("Add", ["a", "r"], ["c"], "add"),
        node("Relu", ["c"], ["y"], "relu"),
    ]
    model = onnx_model(nodes, [info("x", ["N", 3, "L"]), info("r", declared)], ["y"], {"w": random(4, 3, 3)})
    made = close(model, {"x": random(2, 3, 9), "r": random(*fed, seed=5)})
    step = {record.name: record.step for record in made.nodes}
    assert step["conv"] != step["add"] == step["relu"]


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (1, 1, 1), (1,), ()])
def test_added_constants_become_biases(shape: tuple[int, ...]) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["c"]), node("Add", ["c", "r"], ["d"]),
        node("Relu", ["d"], ["y"]),
    ]  # fmt: skip
    model = onnx_model(
        nodes, [info("x", [1, 3, 5, 5]), info("r", [1, 4, 3, 3])], ["y"],
        {"w": random(4, 3, 3, 3), "b": random(*shape, seed=3)},
    )  # fmt: skip
    made = close(model, {"x": random(1, 3, 5, 5), "r": random(1, 4, 3, 3, seed=4)}, layout="model")
    assert {r.problem for r in made.nodes} == {"conv f32 NCHW n1 c3 i5x5 m4 k3x3 b1 r1 act=Relu"}


@pytest.mark.parametrize("shape", [(3,), (1, 4, 3, 3), (5, 1, 1, 1)])
def test_added_constants_of_other_shapes_do_not(shape: tuple[int, ...]) -> None:
    nodes = [node("Conv", ["x", "w"], ["a"], "conv"), node("Add", ["a", "b"], ["y"], "add")]
    model = onnx_model(
        nodes, [info("x", [1, 3, 5, 5])], ["y"], {"w": random(4, 3, 3, 3), "b": random(*shape, seed=3)}
    )
    assert len({record.step for record in close(model, {"x": random(1, 3, 5, 5)}).nodes}) == 2


def test_values_that_are_read_twice_stay() -> None:
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("Add", ["a", "b"], ["y"])]
    made = close(
        onnx_model(nodes, [info("x", [1, 3, 9])], ["y"], {"w": random(4, 3, 3)}), {"x": random(1, 3, 9)}
    )
    assert len({record.step for record in made.nodes}) == 2
    doubled = [node("Conv", ["x", "w"], ["a"]), node("Add", ["a", "a"], ["y"])]
    close(onnx_model(doubled, [info("x", [1, 3, 9])], ["y"], {"w": random(4, 3, 3)}), {"x": random(1, 3, 9)})


SPELLED = {
    "Relu": [node("Relu", ["a"], ["f"])],
    "HardSwish": [node("HardSwish", ["a"], ["f"])],
    "spelled out": [
        node("Add", ["a", "three"], ["b"]), node("Clip", ["b", "zero", "six"], ["d"]), node("Mul", ["a", "d"], ["e"]),
        node("Div", ["e", "six"], ["f"]),
    ],
}  # fmt: skip
NUMBERS = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}


@pytest.mark.parametrize("behind", ["scale", "shift", "both"])
@pytest.mark.parametrize("name", SPELLED)
def test_learned_scales_and_shifts_round_activations(name: str, behind: str) -> None:
    """As PP-LCNetV3 has them, single numbers: ``a2 f(a1 conv + b1) + b2``, and the convolution has a bias."""
    numbers = {"a1": [1.3], "b1": [-0.4], "a2": [0.7], "b2": [0.2]}
    constants = {"w": random(4, 3, 3, 3, seed=1), "bias": random(4, seed=2)} | NUMBERS
    constants |= {name: np.array(value, np.float32) for name, value in numbers.items()}
    nodes = [
        node("Conv", ["x", "w", "bias"], ["c"], pads=[1, 1, 1, 1]), node("Mul", ["a1", "c"], ["s"]),
        node("Add", ["s", "b1"], ["a"]), *SPELLED[name],
    ]  # fmt: skip
    last = "f"
    if behind != "shift":
        nodes.append(node("Mul", ["a2", last], ["scaled"]))
        last = "scaled"
    if behind != "scale":
        nodes.append(node("Add", [last, "b2"], ["y"]))
    else:
        nodes[-1].output[0] = "y"
    model = onnx_model(nodes, [info("x", [1, 3, 9, 8])], ["y"], constants)
    made = close(model, {"x": random(1, 3, 9, 8)}, layout="model")
    assert len({record.step for record in made.nodes if record.step is not None}) == 1
    [problem] = {record.problem for record in made.nodes if record.op == "Conv"}
    f = "ReluAffine" if name == "Relu" else "HardSwishAffine"
    a2 = 1 if behind == "shift" else float(constants["a2"][0])
    b2 = 0 if behind == "scale" else float(constants["b2"][0])
    assert str(problem) == f"conv f32 NCHW n1 c3 i9x8 m4 k3x3 p1 b1 act={f}({a2},{b2})"


@pytest.mark.parametrize(("number", "shown"), [([0.5, 0.6, 0.7, 0.8], []), ([[[[[0.5]]]]], []), ([0.5], ["f"])])
def test_scales_that_are_no_single_number_stay(number: list[float], shown: list[str]) -> None:
    """Of each position along rows, with more axes than the result, behind a value that is a result itself."""
    constants = {"w": random(4, 3, 3, 3, seed=1), "a2": np.array(number, np.float32)}
    nodes = [node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["f"]), node("Mul", ["f", "a2"], ["y"])]
    made = close(onnx_model(nodes, [info("x", [1, 3, 6, 6])], ["y", *shown], constants), {"x": random(1, 3, 6, 6)})
    [problem] = {str(record.problem) for record in made.nodes if record.op == "Conv"}
    assert problem.endswith("act=Relu")


def test_a_single_number_may_begin_an_activation() -> None:
    """``Clip(conv + 3, 0, 6) / 6`` is a HardSigmoid, so that 3 is no bias."""
    constants = {"w": random(4, 3, 1, 1, seed=1), "bias": random(4, seed=2)} | NUMBERS
    nodes = [
        node("Conv", ["x", "w", "bias"], ["c"]), node("Add", ["c", "three"], ["b"]),
        node("Clip", ["b", "zero", "six"], ["d"]), node("Div", ["d", "six"], ["y"]),
    ]  # fmt: skip
    made = close(onnx_model(nodes, [info("x", [1, 3, 6, 6])], ["y"], constants), {"x": random(1, 3, 6, 6)})
    [problem] = {str(record.problem) for record in made.nodes if record.op == "Conv"}
    assert "act=HardSigmoid(" in problem


def test_operators_of_other_domains_are_no_scales() -> None:
    """Whoever has a Mul of their own means something else by it."""
    weights = np.ones((4, 3, 3, 3), np.float32)
    constants = {"a2": np.ones(1, np.float32)}
    for domain, found in (("", "ReluAffine"), ("some.one", "Relu")):
        mul = Node("", "Mul", domain, 14, ("f", "a2"), ("y",), {})
        activation, further = with_affine(Activation("Relu"), "f", {"f": [mul]}, ["y"], constants, weights)
        assert (activation.name, further) == (found, [mul] if domain == "" else [])
