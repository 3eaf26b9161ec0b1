"""What a run returns is the caller's: writing to it leaves no trace in feeds, in the model or in other outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, random, save_ir, session
from onnx import TensorProto, helper

from polyconv.models import InferenceSession, onnx_host

node = helper.make_node
INT64 = TensorProto.INT64
LARGE = (1 << 16) // 4 + 8  # elements of a constant that hosts read in place
X = random(2, 3, 4, 4)


@pytest.fixture(params=["onnxruntime", "reference"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "reference":
        monkeypatch.setattr(onnx_host, "find_spec", lambda name: None)
    return str(request.param)


def arrays(value: Any) -> list[np.ndarray]:
    return [a for v in value for a in arrays(v)] if isinstance(value, list) else [value]


def check(run: Callable[[], Sequence[Any]], feeds: dict[str, np.ndarray]) -> None:
    """Outputs share nothing; all their bits are flipped and nobody else sees it, in the next run neither."""
    given = {name: a.copy() for name, a in feeds.items()}
    first = arrays(list(run()))
    expected = [a.copy() for a in first]
    for at, a in enumerate(first):
        assert a.flags.writeable
        for other in [*feeds.values(), *first[:at]]:
            assert not np.shares_memory(a, other)
    for a in first:
        a.reshape(-1).view(np.uint8)[...] ^= 0xFF
    for name, a in feeds.items():
        np.testing.assert_array_equal(a, given[name])
    for again, right in zip(arrays(list(run())), expected, strict=True):
        np.testing.assert_array_equal(again, right)


VIEWS = {
    "the input": ([], ["x"], {}),
    "identity": ([node("Identity", ["x"], ["y"])], ["y"], {}),
    "identity twice": ([node("Identity", ["x"], ["y"]), node("Identity", ["x"], ["z"])], ["x", "y", "z"], {}),
    "reshape": ([node("Reshape", ["x", "to"], ["y"])], ["y"], {"to": np.array([2, -1])}),
    "transpose": ([node("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])], ["y"], {}),
    "flatten": ([node("Flatten", ["x"], ["y"])], ["y"], {}),
    "squeeze": (
        [node("Unsqueeze", ["x", "at"], ["u"]), node("Squeeze", ["u"], ["y"])], ["u", "y"], {"at": np.array([0])},
    ),
    "cast": ([node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], ["y"], {}),
    "dropout": ([node("Dropout", ["x"], ["y"])], ["y"], {}),
    "slice": (
        [node("Slice", ["x", "from", "to"], ["y"])], ["y"], {"from": np.array([0, 1]), "to": np.array([2, 3])},
    ),
    "split": ([node("Split", ["x"], ["y", "z"], axis=0)], ["y", "z"], {}),
    "sum of one": ([node("Sum", ["x"], ["y"]), node("Max", ["x"], ["z"])], ["y", "z"], {}),
    "expand": ([node("Expand", ["x", "to"], ["y"])], ["y"], {"to": np.array([2, 3, 4, 4])}),
    "one value and views of it": (
        [node("Abs", ["x"], ["a"]), node("Flatten", ["a"], ["b"]), node("Transpose", ["a"], ["c"])],
        ["a", "b", "c"], {},
    ),
    "a constant": ([node("Identity", ["c"], ["y"]), node("Abs", ["x"], ["z"])], ["y", "z"], {"c": random(5)}),
    "a view of a constant": (
        [node("Transpose", ["c"], ["y"]), node("Abs", ["x"], ["z"])], ["y", "z", "c"], {"c": random(5, 3)},
    ),
    "a constant reshaped like the input": (
        [node("Shape", ["x"], ["s"]), node("Reshape", ["c", "s"], ["y"])], ["y"], {"c": random(96)},
    ),
    "a constant filled to a shape": (
        [node("ConstantOfShape", ["s"], ["y"]), node("Abs", ["x"], ["z"])], ["y", "z"], {"s": np.array([3, 2])},
    ),
    "a sequence": ([node("SequenceConstruct", ["x", "x"], ["y"])], ["y"], {}),
    "a convolution and views of it": (
        [
            node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("Identity", ["b"], ["c"]),
            node("Flatten", ["b"], ["d"]),
        ],
        ["a", "b", "c", "d"], {"w": random(4, 3, 3, 3)},
    ),
    "the weights": (
        [node("Conv", ["x", "w"], ["a"]), node("Identity", ["w"], ["b"])], ["a", "b", "w"], {"w": random(4, 3, 1, 1)},
    ),
}  # fmt: skip


def outputs(names: Sequence[str]) -> list[onnx.ValueInfoProto | str]:
    return [info(name, [2, 3, 4, 4]) if name == "x" else name for name in names]


@pytest.mark.parametrize("case", VIEWS)
@pytest.mark.usefixtures("host")
def test_outputs_are_the_callers_own(case: str) -> None:
    nodes, names, constants = VIEWS[case]
    model = onnx_model(nodes, [info("x", [2, 3, 4, 4])], outputs(names), constants)
    made, feeds = session(model), {"x": X.copy()}
    check(lambda: made.run(None, feeds), feeds)
    check(lambda: made.run([*names, *names], feeds), feeds)


@pytest.mark.usefixtures("host")
def test_a_large_constant_reshaped_by_a_feed() -> None:
    """Hosts read it in place; a view of it would let callers change the model."""
    model = onnx_model([node("Reshape", ["c", "s"], ["y"])], [info("s", [2], INT64)], ["y"], {"c": random(LARGE)})
    made, feeds = session(model), {"s": np.array([2, LARGE // 2])}
    check(lambda: made.run(None, feeds), feeds)


@pytest.mark.usefixtures("host")
def test_branches_that_return_what_is_outside() -> None:
    def branch(name: str, value: str) -> onnx.GraphProto:
        return helper.make_graph([node("Identity", [value], [name])], name, [], [onnx.ValueInfoProto(name=name)])

    choose = node("If", ["which"], ["y"], then_branch=branch("t", "c"), else_branch=branch("e", "x"))
    inputs = [info("x", [2, 3, 4, 4]), info("which", [], TensorProto.BOOL)]
    made = session(onnx_model([choose], inputs, ["y"], {"c": random(LARGE)}))
    for which in (True, False):
        feeds = {"x": X.copy(), "which": np.array(which)}
        check(lambda feeds=feeds: made.run(None, feeds), feeds)


@pytest.mark.usefixtures("host")
def test_a_default_that_is_an_output() -> None:
    nodes = [node("Identity", ["c"], ["y"]), node("Add", ["x", "c"], ["z"])]
    model = onnx_model(nodes, [info("x", [3]), info("c", [3])], ["y", "z"], {"c": random(3)})
    made = session(model)
    for feeds in ({"x": random(3, seed=1)}, {"x": random(3, seed=1), "c": random(3, seed=2)}):
        check(lambda feeds=feeds: made.run(None, feeds), feeds)


LAYERS = {
    "relu": lambda ops, x: ops.relu(x),
    "convert to its own type": lambda ops, x: ops.convert(x, "f32"),
    "clamp of integers": lambda ops, x: ops.clamp(ops.convert(x, "i32"), -9.0, 9.0),
    "prelu": lambda ops, x: ops.prelu(x, np.ones(3, np.float32)),
    "reshape": lambda ops, x: ops.reshape(x, np.array([2, -1]), False),
    "the input": lambda ops, x: x,
    "a constant": lambda ops, x: ops.constant(random(3, 3)),
    "a convolution": lambda ops, x: ops.convolution(x, random(4, 3, 3, 3), [1, 1], [0, 0], [0, 0], [1, 1]),
}


@pytest.mark.parametrize("case", LAYERS)
def test_outputs_of_an_ir_are_the_callers_own(case: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    ops = openvino.opset13
    x = ops.parameter([2, 3, 4, 4], np.float32, name="x")
    made = InferenceSession(save_ir(openvino.Model([LAYERS[case](ops, x), ops.abs(x)], [x], "test"), tmp_path))
    feeds = {"x": X.copy()}
    check(lambda: made.run(None, feeds), feeds)
