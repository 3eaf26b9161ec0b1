"""Graphs that cannot run, or not on every input: the node is named, and the session works afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from making import close, info, onnx_model, onnxruntime_run, random, session
from onnx import helper

from polyconv.errors import Error, ModelError, Unsupported

node = helper.make_node
CONV = node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1])
CONSTANTS = {
    "w": random(4, 3, 3, 3), "ones": np.ones(4, np.float32), "product": random(8, 5, seed=1),
    "twice": np.array([1, 1, 2, 2], np.float32), "all": np.array([2, -1]),
}  # fmt: skip


def model(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",), domains: Mapping[str, int] | None = None
          ) -> onnx.ModelProto:  # fmt: skip
    used = {name: a for name, a in CONSTANTS.items() if any(name in each.input for each in (CONV, *nodes))}
    return onnx_model([CONV, *nodes], [info("x", ["n", 3, "h", "w"])], outputs, used, domains=domains)


TAKES_NOTHING = {
    "Relu": node("Relu", ["c"], ["y"]), "MaxPool": node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2]),
    "AveragePool": node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2]),
    "GlobalAveragePool": node("GlobalAveragePool", ["c"], ["y"]), "Softmax": node("Softmax", ["c"], ["y"], axis=1),
    "BatchNormalization": node("BatchNormalization", ["c", "ones", "ones", "ones", "ones"], ["y"]),
    "InstanceNormalization": node("InstanceNormalization", ["c", "ones", "ones"], ["y"]),
    "Flatten": node("Flatten", ["c"], ["y"]), "Concat": node("Concat", ["c", "c"], ["y"], axis=1),
    "Resize": node("Resize", ["c", "", "twice"], ["y"], mode="linear", coordinate_transformation_mode="half_pixel"),
    "MatMul": node("MatMul", ["c", "product"], ["y"]),
    "Transpose": node("Transpose", ["c"], ["y"], perm=[0, 2, 3, 1]), "Add": node("Add", ["c", "c"], ["y"]),
    "DepthToSpace": node("DepthToSpace", ["c"], ["y"], blocksize=2),
}  # fmt: skip


@pytest.mark.parametrize("op", TAKES_NOTHING)
def test_a_batch_of_nothing_gives_nothing_of_the_right_shape(op: str) -> None:
    given = model(TAKES_NOTHING[op])
    made = close(given, {"x": random(2, 3, 8, 8)})
    (two,) = made.run(None, {"x": random(2, 3, 8, 8)})
    (none,) = made.run(None, {"x": random(0, 3, 8, 8)})
    assert none.shape == (0, *two.shape[1:]) and none.dtype == two.dtype
    np.testing.assert_array_equal(made.run(None, {"x": random(2, 3, 8, 8)})[0], two)


STOPS = {
    "reshape": (node("Reshape", ["c", "sizes"], ["y"], "stops"), np.array([7, -1]), np.array([2, -1])),
    "gather": (node("Gather", ["c", "sizes"], ["y"], "stops", axis=1), np.array([0, 9]), np.array([0, 1])),
    "expand": (node("Expand", ["c", "sizes"], ["y"], "stops"), np.array([2, 4, 5, 8]), np.array([2, 4, 8, 8])),
    "tile": (node("Tile", ["c", "sizes"], ["y"], "stops"), np.array([1, -1, 1, 1]), np.array([1, 1, 1, 2])),
}


@pytest.mark.parametrize("what", STOPS)
def test_a_node_that_fails_in_the_middle_is_named_and_later_runs_are_right(what: str) -> None:
    stops, wrong, right = STOPS[what]
    nodes = [
        CONV, node("Softsign", ["c"], ["s"], "before"), stops, node("Neg", ["y"], ["z"], "after"),
        node("Conv", ["c", "v"], ["d"], "another"),
    ]  # fmt: skip
    inputs = [info("x", ["n", 3, 8, 8]), info("sizes", [None], onnx.TensorProto.INT64)]
    given = onnx_model(nodes, inputs, ["z", "s", "d"], {"w": CONSTANTS["w"], "v": random(2, 4, 1, 1)})
    made = session(given)
    x = {"x": random(2, 3, 8, 8)}
    for _ in range(2):
        with pytest.raises(Error, match="'stops'"):
            made.run(None, {**x, "sizes": wrong})
        results = made.run(None, {**x, "sizes": right})
        for ours, theirs in zip(results, onnxruntime_run(given, {**x, "sizes": right}), strict=True):
            assert ours.shape == theirs.shape
        close(given, {**x, "sizes": right})


def test_a_convolution_that_fails_in_the_middle_is_named() -> None:
    """Its weights have three channels; on a picture of another width the value before it has other channels."""
    nodes = [CONV, node("Transpose", ["c"], ["t"], perm=[0, 3, 1, 2]), node("Conv", ["t", "v"], ["y"], "wide")]
    constants = {"w": CONSTANTS["w"], "v": random(2, 8, 1, 1)}
    made = session(onnx_model(nodes, [info("x", ["n", 3, "h", "w"])], ["y"], constants))
    before = made.run(None, {"x": random(1, 3, 5, 8)})
    with pytest.raises(Error, match="'wide'"):
        made.run(None, {"x": random(1, 3, 5, 9)})
    np.testing.assert_array_equal(made.run(None, {"x": random(1, 3, 5, 8)})[0], before[0])


@pytest.mark.parametrize("domain", ["", "my.own"])
def test_an_unknown_operator_is_named(domain: str) -> None:
    odd = node("Frobnicate", ["c"], ["y"], "odd", domain=domain)
    with pytest.raises((ModelError, Unsupported), match="Frobnicate node 'odd'"):
        session(model(odd, domains={"my.own": 1} if domain else None))


def test_shapes_that_contradict_each_other_are_refused_with_the_node() -> None:
    nodes = [CONV, node("Add", ["c", "five"], ["y"], "sum")]
    given = onnx_model(nodes, [info("x", [1, 3, 8, 8])], ["y"], {"w": CONSTANTS["w"], "five": random(5, 1, 1)})
    with pytest.raises(Error, match="'sum'"):
        session(given).run(None, {"x": random(1, 3, 8, 8)})
