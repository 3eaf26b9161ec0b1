"""What is folded into a convolution, what is not, and that results stay as they were."""

from __future__ import annotations

import numpy as np
import pytest
from making import close, engines, info, onnx_model, random, session
from onnx import TensorProto, helper

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
        node("Conv", ["x", "w"], ["a"], "left", pads=[1, 1]),
        node("Conv", ["x", "v"], ["b"], "right"),
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
