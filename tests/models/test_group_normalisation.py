"""Groups of channels that are normalised, as PyTorch exports them: one step; channels last where there is one group."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from making import close, info, onnx_model, random
from onnx import helper

node = helper.make_node


def network(shape: tuple[int, ...], groups: int, *, affine: bool = True, inner: bool = False) -> onnx.ModelProto:
    """A convolution, its results normalised by group, and one of those."""
    _, c, *extents = shape
    scales = (random(groups, seed=4), random(groups, seed=5)) if inner else (np.ones(groups), np.zeros(groups))
    nodes = [
        node("Conv", ["x", "v"], ["a"]), node("Reshape", ["a", "lines"], ["b"]),
        node("InstanceNormalization", ["b", "ones", "zeros"], ["i"], epsilon=1e-3),
        node("Reshape", ["i", "back"], ["r"]),
    ]  # fmt: skip
    last = "r"
    if affine:
        nodes += [node("Mul", ["r", "w"], ["m"]), node("Add", ["s", "m"], ["t"])]
        last = "t"
    nodes += [node("Sigmoid", [last], ["g"]), node("Mul", [last, "g"], ["z"]), node("Conv", ["z", "v"], ["y"])]
    constants = {
        "v": random(c, c, *[1] * len(extents), seed=1), "lines": np.array([0, groups, -1]), "back": np.array(shape),
        "ones": np.asarray(scales[0], np.float32), "zeros": np.asarray(scales[1], np.float32),
        "w": random(c, *[1] * len(extents), seed=2), "s": random(1, c, *[1] * len(extents), seed=3),
    }  # fmt: skip
    read = {name for each in nodes for name in each.input}
    return onnx_model(nodes, [info("x", list(shape))], ["y"], {k: a for k, a in constants.items() if k in read})


@pytest.mark.parametrize("layout", ["model", "channels_last"])
@pytest.mark.parametrize("groups", [1, 2, 20])
@pytest.mark.parametrize("shape", [(2, 20, 7, 5), (1, 20, 3, 10), (2, 20, 3, 4, 5), (3, 20, 1, 1)])
def test_groups_are_one_step(shape: tuple[int, ...], groups: int, layout: str) -> None:
    x = random(*shape, seed=9)
    made = close(network(shape, groups), {"x": x}, layout=layout)
    (step,) = {record.step for record in made.nodes if record.op == "InstanceNormalization"}
    assert sorted(record.op for record in made.nodes if record.step == step) == sorted(
        ["Reshape", "InstanceNormalization", "Reshape", "Mul", "Add"])  # fmt: skip
    first, *others = (made.run(None, {"x": x})[0] for _ in range(3))
    assert all((first == other).all() for other in others)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("layout", ["model", "channels_last"])
def test_scales_of_groups_and_of_channels_are_multiplied(affine: bool, inner: bool, layout: str) -> None:
    for groups in (1, 4):
        model = network((2, 12, 6, 5), groups, affine=affine, inner=inner)
        close(model, {"x": random(2, 12, 6, 5, seed=9)}, layout=layout)


def other(**changed: Any) -> onnx.ModelProto:
    model = network((2, 12, 6, 5), 3)
    for held in model.graph.initializer:
        if held.name in changed:
            held.CopyFrom(onnx.numpy_helper.from_array(changed[held.name], held.name))
    return model


@pytest.mark.parametrize("changed", [
    {"lines": np.array([1, 3, -1]), "ones": np.ones(3, np.float32)},  # both images together
    {"back": np.array([2, 6, 12, 5]), "v": random(6, 12, 1, 1), "w": random(6, 1, 1), "s": random(1, 6, 1, 1)},
])  # fmt: skip
def test_other_reshapes_stay(changed: dict[str, np.ndarray]) -> None:
    model = other(**{name: array for name, array in changed.items() if name != "v"})
    if "back" in changed:
        del model.graph.node[-1]
        model.graph.output[0].name = "z"
        model.graph.initializer.remove(next(i for i in model.graph.initializer if i.name == "w"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(changed["w"], "w"))
    made = close(model, {"x": random(2, 12, 6, 5, seed=9)})
    (step,) = {record.step for record in made.nodes if record.op == "InstanceNormalization"}
    assert [record.op for record in made.nodes if record.step == step] == ["InstanceNormalization"]
