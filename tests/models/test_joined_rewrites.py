"""What is done to joined convolutions is done to each; rows are normalised in their product; shapes that come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from making import close, info, onnx_model, random, session, steps
from onnx import helper

node = helper.make_node


def statistics(m: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {name: rng.uniform(0.5, 1.5, m).astype(np.float32) for name in ("gamma", "beta", "mean", "var")}


def network(nodes: Sequence[onnx.NodeProto], shape: Sequence[Any], results: Sequence[str] = ("y",), **constants: Any
            ) -> onnx.ModelProto:  # fmt: skip
    read = {name for each in nodes for name in each.input}
    held = {name: np.asarray(array) for name, array in constants.items() if name in read}
    return onnx_model(list(nodes), [info("x", list(shape))], list(results), held)


NORM = node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["y"])
BRANCHES = [node("Conv", ["x", "w1"], ["a"]), node("Conv", ["x", "w3", "b3"], ["b"], pads=[1] * 4),
            node("ConvTranspose", ["x", "wt"], ["d"])]  # fmt: skip
WEIGHTS = {"w1": random(3, 4, 1, 1), "w3": random(5, 4, 3, 3, seed=1), "b3": random(5, seed=2),
           "wt": random(4, 2, 1, 1, seed=3)}  # fmt: skip
AFTER = {
    "Relu": [node("Relu", ["c"], ["y"])],
    "Clip": [node("Clip", ["c", "low", "high"], ["y"])],
    "a spelled-out Silu": [node("Sigmoid", ["c"], ["s"]), node("Mul", ["c", "s"], ["y"])],
    "a spelled-out HardSwish": [node("HardSigmoid", ["c"], ["s"], alpha=1 / 6), node("Mul", ["s", "c"], ["y"])],
    "BatchNormalization": [NORM],
    "both": [node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"]), node("Relu", ["n"], ["y"])],
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER)
@pytest.mark.parametrize("layout", ["model", "channels_last"])
def test_what_follows_a_join_is_part_of_its_convolutions(name: str, layout: str) -> None:
    nodes = [*BRANCHES, node("Concat", ["a", "b", "d"], ["c"], axis=1), *AFTER[name]]
    limits = {"low": np.float32(-0.5), "high": np.float32(0.5)}
    model = network(nodes, (2, 4, 9, 7), **WEIGHTS, **statistics(10), **limits)
    made = close(model, {"x": random(2, 4, 9, 7, seed=9)}, layout=layout)
    found = steps(made)
    assert len(found) == 4
    assert {each.split("+")[0] for each in found} == {"Conv", "ConvTranspose", "Concat"}


def test_statistics_that_are_one_value() -> None:
    norm = node("BatchNormalization", ["c", "gamma", "beta", "gamma", "gamma"], ["y"])
    nodes = [*BRANCHES, node("Concat", ["a", "b", "d"], ["c"], axis=1), norm]
    made = close(network(nodes, (2, 4, 9, 7), **WEIGHTS, **statistics(10)), {"x": random(2, 4, 9, 7, seed=9)})
    assert len(steps(made)) == 4


KEPT = {
    "another value joined": [BRANCHES[0], node("Concat", ["a", "x"], ["c"], axis=1), node("Relu", ["c"], ["y"])],
    "a part read elsewhere": [*BRANCHES[:2], node("Concat", ["a", "b"], ["c"], axis=1), node("Relu", ["c"], ["y"]),
                              node("Tanh", ["a"], ["z"])],
    "the whole read elsewhere": [*BRANCHES[:2], node("Concat", ["a", "b"], ["c"], axis=1), node("Relu", ["c"], ["y"]),
                                 node("Tanh", ["c"], ["z"])],
    "normalised along the joined axis": [node("Conv", ["x", "w1"], ["a"]), node("Conv", ["x", "w1"], ["b"]),
                                         node("Relu", ["b"], ["r"]), node("Concat", ["a", "r"], ["c"], axis=2), NORM],
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_others_follow_the_join(name: str) -> None:
    results = ("y", "z") if any("z" in each.output for each in KEPT[name]) else ("y",)
    model = network(KEPT[name], (2, 4, 9, 7), results, **WEIGHTS, **statistics(3))
    made = close(model, {"x": random(2, 4, 9, 7, seed=9)})
    (joined,) = [record.step for record in made.nodes if record.op == "Concat"]
    after = KEPT[name][-1 if len(results) == 1 else -2].op_type
    (last,) = [record.step for record in made.nodes if record.op == after and record.step > joined]
    assert last > joined


def test_rows_are_normalised_in_their_product() -> None:
    """As LeViT exports it: tokens as rows of one matrix for the normalisation, and back."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]), node("Flatten", ["m"], ["r"], axis=2),
        node("BatchNormalization", ["r", *STATISTICS], ["n"]), node("Reshape", ["n", "back"], ["t"]),
        node("Relu", ["t"], ["y"]),
    ]  # fmt: skip
    model = network(nodes, (2, 5, 8), w=random(8, 6), back=np.array([2, 5, 6]), **statistics(6))
    assert steps(close(model, {"x": random(2, 5, 8, seed=9)})) == ["MatMul+BatchNormalization+Relu"]


STATISTICS = ("gamma", "beta", "mean", "var")


def test_rows_of_other_channels_stay() -> None:
    """Rows of 3 of the 6 channels: their normalisation is another."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Reshape", ["m", "rows"], ["r"]),
             node("BatchNormalization", ["r", *STATISTICS], ["y"])]  # fmt: skip
    model = network(nodes, (2, 5, 8), w=random(8, 6), rows=np.array([20, 3]), **statistics(3))
    made = close(model, {"x": random(2, 5, 8, seed=9)})
    assert {record.step for record in made.nodes if record.op == "MatMul"} != {
        record.step for record in made.nodes if record.op == "BatchNormalization"}  # fmt: skip


def test_shapes_that_are_the_old_ones_again_are_no_steps() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Flatten", ["a"], ["f"], axis=2), node("Reshape", ["f", "back"], ["b"]),
             node("Tanh", ["b"], ["y"])]  # fmt: skip
    made = close(network(nodes, (2, 3, 4, 5), back=np.array([2, 3, 4, 5])), {"x": random(2, 3, 4, 5)})
    assert steps(made) == ["Relu+Tanh"]


def test_shapes_of_open_extents_stay() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Reshape", ["a", "flat"], ["f"]), node("Reshape", ["f", "back"], ["b"]),
             node("Tanh", ["b"], ["y"])]  # fmt: skip
    model = network(nodes, ("n", "m"), flat=np.array([-1]), back=np.array([-1, 4]))
    made = session(model)
    x = random(6, 2)
    np.testing.assert_allclose(made.run(None, {"x": x})[0], np.tanh(np.maximum(x, 0)).reshape(3, 4), rtol=1e-6)
