"""Rewrites of ONNX graphs: what becomes of each, that results are onnxruntime's, and what is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from making import close, info, onnx_model, random, session
from onnx import TensorProto, helper

import polyconv
from polyconv.models import InferenceSession, compiling
from polyconv.models.onnx_rules import ON_CPU, RULES

node = helper.make_node


def ops(made: InferenceSession) -> list[str]:
    """What each step of a session stands for, and who runs it."""
    steps: dict[Any, list[str]] = {}
    engines: dict[Any, str] = {}
    for record in made.nodes:
        steps.setdefault((record.engine, record.step), []).append(record.op)
        engines[record.engine, record.step] = record.engine
    return [f"{engines[key]}: {'+'.join(names)}" for key, names in steps.items()]


def statistics(m: int, seed: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    low, high = {"gamma": 0.5, "var": 0.2, "beta": -1.0, "mean": -1.0}, 1.5
    return {name: rng.uniform(least, high, m).astype(np.float32) for name, least in low.items()}


NORM = node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["y"], "norm", epsilon=1e-3)
CONVS: Mapping[str, tuple[onnx.NodeProto, dict[str, np.ndarray], int]] = {
    "plain": (node("Conv", ["x", "w"], ["c"], "conv"), {"w": random(6, 4, 3, 3, seed=1)}, 6),
    "bias": (node("Conv", ["x", "w", "b"], ["c"], "conv"), {"w": random(6, 4, 3, 3), "b": random(6, seed=2)}, 6),
    "groups": (node("Conv", ["x", "w"], ["c"], "conv", group=2), {"w": random(6, 2, 3, 3, seed=1)}, 6),
    "transposed": (node("ConvTranspose", ["x", "w"], ["c"], "conv"), {"w": random(4, 6, 3, 3, seed=1)}, 6),
    "transposed groups": (
        node("ConvTranspose", ["x", "w", "b"], ["c"], "conv", group=2, strides=[2, 2]),
        {"w": random(4, 3, 3, 3, seed=1), "b": random(6, seed=3)}, 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVS)
def test_normalisation_goes_into_weights(name: str) -> None:
    conv, constants, m = CONVS[name]
    model = onnx_model([conv, NORM], [info("x", [2, 4, 9, 8])], ["y"], {**constants, **statistics(m)})
    made = close(model, {"x": random(2, 4, 9, 8)})
    assert ops(made) == [f"polyconv: {conv.op_type}+BatchNormalization"]


@pytest.mark.parametrize("op", ["Mul", "Div"])
@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (1,), ()])
def test_factors_go_into_weights(op: str, shape: tuple[int, ...]) -> None:
    conv, constants, _ = CONVS["bias"]
    factor = np.random.default_rng(3).uniform(0.5, 2, shape).astype(np.float32)
    nodes = [conv, node(op, ["c", "f"], ["y"])]
    model = onnx_model(nodes, [info("x", [2, 4, 9, 8])], ["y"], {**constants, "f": factor})
    assert ops(close(model, {"x": random(2, 4, 9, 8)})) == [f"polyconv: Conv+{op}"]


@pytest.mark.parametrize("first", [True, False], ids=["constant first", "constant last"])
@pytest.mark.parametrize("name", ["plain", "bias"])
def test_what_is_added_to_channels_goes_into_the_bias(name: str, first: bool) -> None:
    conv, constants, _ = CONVS[name]
    nodes = [conv, node("Add", ["s", "c"] if first else ["c", "s"], ["y"])]
    given = {**constants, "s": random(6, 1, 1, seed=8)}
    made = close(onnx_model(nodes, [info("x", [2, 4, 9, 8])], ["y"], given), {"x": random(2, 4, 9, 8)})
    assert ops(made) == ["polyconv: Conv+Add"]
    [zero] = made.run(None, {"x": np.zeros((2, 4, 9, 8), np.float32)})
    bias = constants.get("b", np.zeros(6)).astype(np.float64) + given["s"].reshape(-1)
    np.testing.assert_array_equal(zero, np.broadcast_to(bias.astype(np.float32).reshape(-1, 1, 1), zero.shape))


def test_constants_that_nodes_make_by_looking_at_others_go_into_weights() -> None:
    """Weights, statistics and factors that are filled, and shown by channel by an Unsqueeze, as published models do."""
    value = onnx.numpy_helper.from_array(np.array([0.75], np.float32))
    shapes = {"w": (6, 4, 3, 3), **dict.fromkeys(("gamma", "beta", "mean", "var", "f", "s"), (6,))}
    nodes = [node("ConstantOfShape", [f"shape of {name}"], [name], f"fill {name}", value=value) for name in shapes]
    nodes += [node("Unsqueeze", [name, "axes"], [f"{name} by channel"], f"shown {name}") for name in ("f", "s")]
    nodes += [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"]),
              node("Mul", ["f by channel", "n"], ["m"]), node("Add", ["s by channel", "m"], ["a"]),
              node("Relu", ["a"], ["y"])]  # fmt: skip
    constants = {f"shape of {name}": np.array(shape) for name, shape in shapes.items()} | {"axes": np.array([1, 2])}
    made = close(onnx_model(nodes, [info("x", [2, 4, 9, 8])], ["y"], constants), {"x": random(2, 4, 9, 8)})
    assert "polyconv: Conv+BatchNormalization+Mul+Add+Relu" in ops(made)
    assert {record.step for record in made.nodes} == {0, None}
    assert {record.engine for record in made.nodes} <= {"polyconv", "constant", "removed"}


def test_a_normalised_convolution_takes_its_residual_and_activation() -> None:
    nodes = [CONVS["plain"][0], node("BatchNormalization", [*NORM.input], ["n"]), node("Add", ["n", "r"], ["a"]),
             node("Relu", ["a"], ["y"])]  # fmt: skip
    inputs = [info("x", [1, 4, 9, 8]), info("r", [1, 6, 7, 6])]
    model = onnx_model(nodes, inputs, ["y"], {**CONVS["plain"][1], **statistics(6)})
    made = close(model, {"x": random(1, 4, 9, 8), "r": random(1, 6, 7, 6)})
    assert ops(made) == ["polyconv: Conv+BatchNormalization+Add+Relu"]


def test_weights_are_folded_in_f64_and_rounded_once() -> None:
    """One tap and inputs of 1: the result is the folded weight plus the folded bias."""
    given = statistics(3)
    w = random(3, 1, 1, seed=9)
    conv = node("Conv", ["x", "w"], ["c"])
    model = onnx_model([conv, NORM], [info("x", [1, 1, 1])], ["y"], {"w": w, **given})
    [zero] = session(model).run(None, {"x": np.zeros((1, 1, 1), np.float32)})
    wide = {name: a.astype(np.float64) for name, a in given.items()}
    scale = wide["gamma"] / np.sqrt(wide["var"] + np.float64(np.float32(1e-3)))
    np.testing.assert_array_equal(zero.ravel(), (wide["beta"] - wide["mean"] * scale).astype(np.float32))
    [one] = session(model).run(None, {"x": np.full((1, 1, 1), 2.0**60, np.float32)})  # the bias is far below its ulp
    np.testing.assert_array_equal(one.ravel(), (w.ravel() * scale).astype(np.float32) * np.float32(2.0**60))


LEFT_ALONE: Mapping[str, tuple[list[onnx.NodeProto], list[str]]] = {
    "read twice": ([CONVS["plain"][0], NORM, node("Relu", ["c"], ["z"])], ["y", "z"]),
    "returned": ([CONVS["plain"][0], NORM], ["y", "c"]),
    "factor that varies": ([CONVS["plain"][0], node("Mul", ["c", "f"], ["y"])], ["y"]),
    "factor a pixel": ([CONVS["plain"][0], node("Mul", ["c", "pixels"], ["y"])], ["y"]),
    "divided by it": ([CONVS["plain"][0], node("Div", ["one", "c"], ["y"])], ["y"]),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_others_need_or_what_varies_is_left_alone(name: str) -> None:
    nodes, outputs = LEFT_ALONE[name]
    varies = any("f" in each.input for each in nodes)
    constants = {**CONVS["plain"][1], **statistics(6), "pixels": random(7, 6), "one": np.ones(1, np.float32)}
    inputs = [info("x", [1, 4, 9, 8])] + [info("f", [1, 6, 1, 1])] * varies
    feeds = {"x": random(1, 4, 9, 8)} | ({"f": random(1, 6, 1, 1)} if varies else {})
    made = close(onnx_model(nodes, inputs, outputs, constants), feeds)
    assert ops(made)[0] == "polyconv: Conv"


def test_exact_leaves_every_bit_as_it_is_without_rewrites() -> None:
    conv, constants, m = CONVS["bias"]
    model = onnx_model([conv, NORM], [info("x", [1, 4, 9, 8])], ["y"], {**constants, **statistics(m)})
    apart = onnx_model([conv, NORM], [info("x", [1, 4, 9, 8])], ["y", "c"], {**constants, **statistics(m)})
    x = {"x": random(1, 4, 9, 8)}
    expected = session(apart, layout="model").run(["y"], x)[0]  # a returned value is not fused away
    level = onnxruntime.SessionOptions()
    level.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for made in (session(model, rewrites="exact"), session(model, sess_options=level)):
        assert ops(made) == ["polyconv: Conv", "polyconv: BatchNormalization"]
        np.testing.assert_array_equal(made.run(None, x)[0], expected)
    with pytest.raises(polyconv.ArgumentError, match="rewrites='some' is not known; choose all or exact"):
        session(model, rewrites="some")


def test_values_that_are_others_are_removed() -> None:
    nodes = [
        node("Identity", ["x"], ["i"], "same"), node("Conv", ["i", "w"], ["c"], "conv"),
        node("Dropout", ["c"], ["d"], "dropout"), node("Cast", ["d"], ["f"], "cast", to=TensorProto.FLOAT),
        node("Relu", ["f"], ["y"], "relu"),
    ]  # fmt: skip
    model = onnx_model(nodes, [info("x", [1, 4, 9, 8])], ["y"], CONVS["plain"][1])
    made = close(model, {"x": random(1, 4, 9, 8)})
    assert {record.name: record.engine for record in made.nodes} == {
        "same": "removed", "dropout": "removed", "cast": "removed", "conv": "polyconv", "relu": "polyconv",
    }  # fmt: skip


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Identity", ["x"], ["y"])],
        [node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["y"])],
        [node("Cast", ["x"], ["c"], to=TensorProto.DOUBLE), node("Cast", ["c"], ["y"], to=TensorProto.FLOAT)],
        [node("Relu", ["x"], ["a"]), node("Relu", ["x"], ["b"]), node("Add", ["a", "b"], ["y"])],
        [node("Identity", ["x"], ["a"]), node("Identity", ["a"], ["b"]), node("Neg", ["b"], ["y"])],
    ],
    ids=["returned", "result", "casts", "same twice", "chain"],
)
def test_results_keep_their_names(nodes: Sequence[onnx.NodeProto]) -> None:
    close(onnx_model(nodes, [info("x", [2, 3])], ["y"]), {"x": random(2, 3)})


def test_a_value_that_a_subgraph_reads_keeps_its_maker() -> None:
    branch = helper.make_graph([node("Neg", ["i"], ["n"])], "branch", [], [info("n", None)])
    nodes = [node("Identity", ["x"], ["i"]), node("If", ["choice"], ["y"], then_branch=branch, else_branch=branch)]
    model = onnx_model(nodes, [info("x", [2, 3]), info("choice", [], TensorProto.BOOL)], ["y"])
    close(model, {"x": random(2, 3), "choice": np.array(True)})


def test_shapes_that_are_known_are_constants() -> None:
    """The chain that torch exports for ``x.view(n, c // 2, 2, -1)``."""
    constants = {**CONVS["plain"][1], "one": np.array(1), "two": np.array([2]), "rest": np.array([-1]),
                 "axes": np.array([0])}  # fmt: skip
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("Shape", ["c"], ["s"]), node("Gather", ["s", "one"], ["g"]),
        node("Unsqueeze", ["g", "axes"], ["u"]), node("Div", ["u", "two"], ["h"]),
        node("Concat", ["h", "two", "rest"], ["t"], axis=0), node("Reshape", ["c", "t"], ["y"]),
    ]  # fmt: skip
    feeds = {"x": random(1, 4, 9, 8)}
    made = close(onnx_model(nodes, [info("x", [1, 4, 9, 8])], ["y"], constants), feeds)
    assert {r.op: r.engine for r in made.nodes} == {
        "Conv": "polyconv", "Shape": "removed", "Gather": "constant", "Unsqueeze": "constant", "Div": "constant",
        "Concat": "constant", "Reshape": "polyconv",
    }  # fmt: skip
    dynamic = close(onnx_model(nodes, [info("x", ["n", 4, "h", 8])], ["y"], constants), feeds)
    assert {r.op: r.engine for r in dynamic.nodes}["Shape"] == "polyconv"


@pytest.mark.parametrize("own", [None, [1, 0, 2, 1]])
@pytest.mark.parametrize("pads", [[0, 0, 1, 2, 0, 0, 3, 0], [0, 0, 1, 0, 0, 1, 0, 0], [0, 0, -1, 0, 0, 0, 0, 0]])
def test_zeros_round_an_input_become_pads(own: list[int] | None, pads: list[int]) -> None:
    conv = node("Conv", ["p", "w"], ["y"], "conv", **({"pads": own} if own else {}))
    constants = {"w": random(6, 5 if pads[5] else 4, 3, 3), "pads": np.array(pads)}
    model = onnx_model([node("Pad", ["x", "pads"], ["p"]), conv], [info("x", [1, 4, 9, 8])], ["y"], constants)
    made = close(model, {"x": random(1, 4, 9, 8)})
    fits = pads == [0, 0, 1, 2, 0, 0, 3, 0]
    assert ops(made) == (["polyconv: Pad+Conv"] if fits else ["polyconv: Pad", "polyconv: Conv"])


@pytest.mark.parametrize(
    ("mode", "value", "w"), [("reflect", None, 1.0), ("constant", 1.0, 1.0), ("constant", 0.0, np.inf)]
)
def test_other_paddings_stay(mode: str, value: float | None, w: float) -> None:
    weights = np.full((6, 4, 3, 3), w, np.float32)
    constants = {"w": weights, "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    inputs = ["x", "pads"]
    if value is not None:
        constants["value"] = np.array(value, np.float32)
        inputs.append("value")
    nodes = [node("Pad", inputs, ["p"], mode=mode), node("Conv", ["p", "w"], ["y"])]
    made = close(onnx_model(nodes, [info("x", [1, 4, 9, 8])], ["y"], constants), {"x": random(1, 4, 9, 8)})
    assert ops(made) == ["polyconv: Pad", "polyconv: Conv"]


@pytest.mark.parametrize("shape", [(2, 300, 40), (1, 20, 15, 40), (1, 3, 10, 10, 40)])
def test_products_are_convolutions_with_bias_and_activation(shape: tuple[int, ...]) -> None:
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["b", "p"], ["a"]), node("Relu", ["a"], ["y"])]
    model = onnx_model(nodes, [info("x", shape)], ["y"], {"w": random(40, 96, seed=1), "b": random(96, seed=2)})
    made = close(model, {"x": random(*shape)})
    assert ops(made) == ["polyconv: MatMul+Add+Relu"]


@pytest.mark.parametrize(
    ("given", "shape", "w"),
    [(("n", 3, 40), (2, 3, 40), (40, 96)), (("n", "t", "c"), (2, 3, 40), (40, 96)),
     ((1, 300, 400), (1, 300, 400), (1, 400, 96))],
)  # fmt: skip
def test_products_of_open_extents_and_with_several_matrices(
    given: tuple[int | str, ...], shape: tuple[int, ...], w: tuple[int, ...]
) -> None:
    model = onnx_model([node("MatMul", ["x", "w"], ["y"])], [info("x", given)], ["y"], {"w": random(*w, seed=1)})
    made = close(model, {"x": random(*shape)})
    assert ops(made) == ["polyconv: MatMul"]
    assert (made.steps[0].problem is not None) == (len(w) == 2)


LINEAR: Mapping[str, tuple[onnx.NodeProto, dict[str, np.ndarray]]] = {
    "transposed": (node("Gemm", ["x", "w", "b"], ["p"], transB=1), {"w": random(7, 40, seed=1), "b": random(7)}),
    "factors": (
        node("Gemm", ["x", "w", "b"], ["p"], alpha=0.3, beta=-1.7), {"w": random(40, 7, seed=1), "b": random(1, 7)},
    ),
    "one bias": (node("Gemm", ["x", "w", "b"], ["p"]), {"w": random(40, 7), "b": np.array(2.5, np.float32)}),
    "no bias": (node("Gemm", ["x", "w"], ["p"]), {"w": random(40, 7, seed=1)}),
    "product": (node("MatMul", ["x", "w"], ["p"]), {"w": random(40, 7, seed=1)}),
}  # fmt: skip


@pytest.mark.parametrize("opset", [7, 11, 17])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", LINEAR)
def test_products_of_matrices_are_convolutions_of_one_pixel(name: str, rows: int, opset: int) -> None:
    """With the activation behind them; a second one reads the first without views between."""
    first, constants = LINEAR[name]
    if opset < 11 and first.op_type == "Gemm" and len(first.input) < 3:
        return  # the bias was no option then
    nodes = [first, node("Relu", ["p"], ["r"]), node("Gemm", ["r", "v", "c"], ["q"]), node("Tanh", ["q"], ["y"])]
    model = onnx_model(nodes, [info("x", [None, 40])], ["y"], {**constants, "v": random(7, 9), "c": random(9)},
                       opset=opset)  # fmt: skip
    made = close(model, {"x": random(rows, 40)})
    if opset == 17:
        assert len(made.nodes) - len(model.graph.node) == 2  # a view at either end


def test_a_matrix_is_turned_before_a_product() -> None:
    gemm = node("Gemm", ["x", "w", "b"], ["y"], transA=1, alpha=0.5)
    model = onnx_model([gemm], [info("x", [40, 3])], ["y"], {"w": random(40, 7), "b": random(7)})
    assert set(ops(close(model, {"x": random(40, 3)}))) == {"polyconv: Gemm"}


@pytest.mark.parametrize("what", ["turned", "a bias a row", "varying weights"])
def test_products_of_matrices_that_stay(what: str) -> None:
    w, b, inputs = random(40, 7), random(3, 1) if what == "a bias a row" else random(7), [info("x", [3, 40])]
    feeds = {"x": random(3, 40)}
    if what == "turned":
        inputs, feeds = [info("x", [40, 3])], {"x": random(40, 3)}
    if what != "a bias a row":
        inputs, feeds = [*inputs, info("w", [40, 7])], {**feeds, "w": w}
    constants = {"b": b} | ({} if "w" in feeds else {"w": w})
    gemm = node("Gemm", ["x", "w", "b"], ["y"], transA=int(what == "turned"))
    assert ops(close(onnx_model([gemm], inputs, ["y"], constants), feeds)) == ["onnxruntime: Gemm"]


def turned_block(rank: int, middle: Sequence[onnx.NodeProto], end: str) -> list[onnx.NodeProto]:
    """Nodes between a turn to channels last and back."""
    last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    turn = node("Transpose", ["x"], ["t"], "there", perm=last)
    return [turn, *middle, node("Transpose", [end], ["y"], "back", perm=first)]


BLOCK = [
    node("LayerNormalization", ["t", "s", "b"], ["n"], axis=-1), node("MatMul", ["n", "v"], ["p"]),
    node("Add", ["c", "p"], ["a"]), node("Div", ["a", "root2"], ["d"]), node("Erf", ["d"], ["e"]),
    node("Add", ["e", "one"], ["f"]), node("Mul", ["a", "f"], ["g"]), node("Mul", ["g", "half"], ["h"]),
    node("MatMul", ["h", "u"], ["q"]), node("Add", ["b", "q"], ["r"]),
]  # fmt: skip
TURNED = {
    "s": random(24, seed=1), "b": random(24, seed=2), "v": random(24, 96, seed=3), "c": random(96, seed=4),
    "u": random(96, 24, seed=5), "factor": random(24, 1, 1, seed=6),
    **{name: np.array(v, np.float32) for name, v in (("root2", 2**0.5), ("one", 1.0), ("half", 0.5))},
}  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 24, 700), (1, 24, 29, 31), (1, 24, 9, 9, 11)])
def test_turns_to_channels_last_and_back_go(shape: tuple[int, ...]) -> None:
    """With a bias, a Gelu, a factor a channel and a residual each in the convolution before it."""
    nodes = turned_block(len(shape), BLOCK, "r")
    nodes[-1].output[0] = "o"
    nodes += [node("Mul", ["factor", "o"], ["z"]), node("Add", ["x", "z"], ["y"])]
    constants = {**TURNED, "factor": TURNED["factor"].reshape(24, *(1,) * (len(shape) - 2))}
    made = close(onnx_model(nodes, [info("x", shape)], ["y"], constants), {"x": random(*shape)})
    assert ops(made) == [
        "removed: Transpose+Transpose", "polyconv: LayerNormalization", "polyconv: MatMul+Add+Div+Erf+Add+Mul+Mul",
        "polyconv: MatMul+Add+Mul+Add",
    ]  # fmt: skip


def test_a_turn_that_is_turned_back_at_once_goes() -> None:
    nodes = turned_block(4, [], "t")
    nodes[-1].output[0] = "o"
    model = onnx_model([*nodes, node("Relu", ["o"], ["y"])], [info("x", [2, 3, 5, 7])], ["y"])
    assert ops(close(model, {"x": random(2, 3, 5, 7)})) == ["removed: Transpose+Transpose", "polyconv: Relu"]


KEPT_TURNS: Mapping[str, tuple[list[onnx.NodeProto], str, list[str]]] = {
    "returned": (BLOCK[:1], "n", ["y", "n"]),
    "read by what needs them last": ([*BLOCK[:1], node("Softmax", ["n"], ["k"], axis=-1)], "n", ["y", "k"]),
    "joined with what is not turned": ([node("Add", ["t", "other"], ["k"])], "k", ["y"]),
    "another turn": ([node("LayerNormalization", ["t", "s"], ["n"], axis=-2)], "n", ["y"]),
}


@pytest.mark.parametrize("name", KEPT_TURNS)
def test_turns_that_somebody_needs_stay(name: str) -> None:
    middle, end, outputs = KEPT_TURNS[name]
    inputs, feeds = [info("x", [2, 24, 5, 7])], {"x": random(2, 24, 5, 7)}
    if name.startswith("joined"):
        inputs, feeds = [*inputs, info("other", [2, 5, 7, 24])], {**feeds, "other": random(2, 5, 7, 24)}
    constants = {**TURNED, "s": random(7, 24)} if name == "another turn" else TURNED
    made = close(onnx_model(turned_block(4, middle, end), inputs, outputs, constants), feeds)
    assert {record.name: record.engine for record in made.nodes}["there"] == "polyconv"


@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Max"])
@pytest.mark.parametrize("shape", [(), (24,), (7, 1), (5, 7, 24), (1, 5, 1, 24)])
def test_constants_between_turns_are_turned(op: str, shape: tuple[int, ...]) -> None:
    constant = np.random.default_rng(1).uniform(0.5, 2, shape).astype(np.float32)
    model = onnx_model(turned_block(4, [node(op, ["t", "k"], ["m"])], "m"), [info("x", [2, 24, 5, 7])], ["y"],
                       {"k": constant})  # fmt: skip
    assert ops(close(model, {"x": random(2, 24, 5, 7)})) == ["removed: Transpose+Transpose", f"polyconv: {op}"]


def test_one_slope_is_a_leaky_relu() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("PRelu", ["c", "slope"], ["y"])]
    slopes = {"one": np.full((6, 1, 1), 0.25, np.float32), "many": random(6, 1, 1)}
    for name, slope in slopes.items():
        model = onnx_model(nodes, [info("x", [1, 4, 9, 8])], ["y"], {**CONVS["plain"][1], "slope": slope})
        made = close(model, {"x": random(1, 4, 9, 8)})
        assert len(ops(made)) == (1 if name == "one" else 2)


SPELLED: Mapping[str, list[onnx.NodeProto]] = {
    "Gelu": [
        node("Div", ["c", "root2"], ["d"]), node("Erf", ["d"], ["e"]), node("Add", ["e", "one"], ["a"]),
        node("Mul", ["c", "a"], ["m"]), node("Mul", ["m", "half"], ["y"]),
    ],
    "Gelu of halves": [
        node("Mul", ["c", "root1_2"], ["d"]), node("Erf", ["d"], ["e"]), node("Add", ["one", "e"], ["a"]),
        node("Mul", ["half", "c"], ["h"]), node("Mul", ["h", "a"], ["y"]),
    ],
    "HardSwish": [node("HardSigmoid", ["c"], ["h"], alpha=1 / 6, beta=0.5), node("Mul", ["h", "c"], ["y"])],
    "HardSwish by Clip": [
        node("Add", ["c", "three"], ["a"]), node("Clip", ["a", "zero", "six"], ["k"]), node("Mul", ["c", "k"], ["m"]),
        node("Div", ["m", "six"], ["y"]),
    ],
    "HardSigmoid": [
        node("Add", ["c", "three"], ["a"]), node("Clip", ["a", "zero", "six"], ["k"]), node("Div", ["k", "six"], ["y"]),
    ],
    "Mish": [node("Softplus", ["c"], ["s"]), node("Tanh", ["s"], ["t"]), node("Mul", ["c", "t"], ["y"])],
    "Silu": [node("Sigmoid", ["c"], ["s"]), node("Mul", ["c", "s"], ["y"])],
    "Sigmoid": [
        node("Neg", ["c"], ["n"]), node("Exp", ["n"], ["e"]), node("Add", ["e", "one"], ["a"]),
        node("Div", ["one", "a"], ["y"]),
    ],
}  # fmt: skip
NUMBERS = {
    "root2": 2**0.5, "root1_2": 0.5**0.5, "one": 1.0, "half": 0.5, "three": 3.0, "zero": 0.0, "six": 6.0,
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLED)
def test_spelled_out_activations_are_fused(name: str) -> None:
    constants = {**CONVS["plain"][1], **{k: np.array(v, np.float32) for k, v in NUMBERS.items()}}
    model = onnx_model([CONVS["plain"][0], *SPELLED[name]], [info("x", [1, 4, 9, 8])], ["y"], constants)
    made = close(model, {"x": random(1, 4, 9, 8)})
    assert len(ops(made)) == 1
    word = name.partition(" ")[0]
    assert all(f"act={word}" in (record.problem or "") for record in made.nodes)


@pytest.mark.parametrize("name", ["Gelu", "Gelu of halves", "Mish"])
def test_a_function_behind_no_convolution_is_one_function(name: str) -> None:
    constants = {k: np.array(v, np.float32) for k, v in NUMBERS.items()}
    model = onnx_model([node("Abs", ["x"], ["b"]), node("Neg", ["b"], ["c"]), *SPELLED[name]],
                       [info("x", [1, 4, 9, 8])], ["y"], constants)  # fmt: skip
    made = close(model, {"x": random(1, 4, 9, 8)})
    assert len(ops(made)) == 1
    assert {record.engine for record in made.nodes} == {"polyconv"}


@pytest.mark.parametrize("name", ["Gelu", "HardSwish by Clip", "Mish"])
@pytest.mark.parametrize("what", ["other number", "inner value returned", "inner value read"])
def test_what_is_nearly_an_activation_is_not_fused(name: str, what: str) -> None:
    numbers = {**NUMBERS, **({"root2": 1.5, "six": 5.0} if what == "other number" else {})}
    constants = {**CONVS["plain"][1], **{k: np.array(v, np.float32) for k, v in numbers.items()}}
    inner = SPELLED[name][-2].output[0]
    nodes = [CONVS["plain"][0], *SPELLED[name]]
    outputs = ["y"]
    if what == "inner value returned":
        outputs.append(inner)
    elif what == "inner value read":
        nodes.append(node("Neg", [inner], ["z"]))
        outputs.append("z")
    elif name == "Mish":
        nodes[-2] = node("Sigmoid", ["s"], ["t"])
    made = close(onnx_model(nodes, [info("x", [1, 4, 9, 8])], outputs, constants), {"x": random(1, 4, 9, 8)})
    assert ops(made)[0] == "polyconv: Conv"


def test_every_rule_says_what_it_looks_for() -> None:
    for rule in (*RULES, *ON_CPU):
        assert rule.ops and "->" in (rule.apply.__doc__ or "")


@pytest.mark.parametrize("held", [0.0, 1.0])
def test_layers_know_whether_a_cache_holds_the_weights_of_all(held: float, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[bool]()
    right = compiling.convolution

    def convolution(*given: Any, far: bool = False, **others: Any) -> Any:
        told.append(far)
        return right(*given, far=far, **others)

    monkeypatch.setattr(compiling, "_HELD", held)
    monkeypatch.setattr(compiling, "convolution", convolution)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    x = random(1, 4, 6, 6)
    values = [info("x", (1, 4, 6, 6))], [info("y", (1, 5, 4, 4))]
    made = session(onnx_model(nodes, *values, {"w": random(5, 4, 3, 3)}))
    assert made.run(None, {"x": x})[0].shape == (1, 5, 4, 4)
    assert told == [held == 0.0]


def cut_off(ends: Sequence[int], axes: Sequence[int], *, shape: Sequence[int | str] = (2, 3, 20), starts: int = 0,
            **attributes: Any) -> onnx.ModelProto:  # fmt: skip
    """A causal convolution as exporters write it: it pads both ends, and a Slice takes the last outputs away."""
    constants = {"w": random(4, 3, *[3] * (len(shape) - 2)), "ends": np.array(ends), "axes": np.array(axes),
                 "starts": np.full(len(ends), starts), "steps": np.ones(len(ends), np.int64)}  # fmt: skip
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", **attributes),
        node("Slice", ["c", "starts", "ends", "axes", "steps"], ["s"], "cut"), node("Relu", ["s"], ["y"]),
    ]  # fmt: skip
    return onnx_model(nodes, [info("x", shape)], ["y"], constants)


@pytest.mark.parametrize(
    ("ends", "axes", "shape", "attributes"),
    [
        ([-2], [2], (2, 3, 20), {"pads": [2, 2]}), ([-8], [-1], (2, 3, "n"), {"pads": [8, 8], "dilations": [4]}),
        ([20], [2], (2, 3, 20), {"pads": [2, 2]}), ([-1], [2], (2, 3, 20), {"pads": [2, 2], "strides": [2]}),
        ([-1, 2**63 - 1], [3, 2], (1, 3, 9, 8), {"pads": [1, 1, 1, 1]}),
        ([-1, -2], [2, 3], (1, 3, 9, 8), {"pads": [1, 2, 1, 2]}),
    ],
)  # fmt: skip
def test_what_is_cut_off_is_not_computed(
    ends: list[int], axes: list[int], shape: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    model = cut_off(ends, axes, shape=shape, **attributes)
    fed = [7 if isinstance(extent, str) else extent for extent in shape]
    assert ops(close(model, {"x": random(*fed)})) == ["polyconv: Conv+Slice+Relu"]
    if "n" in shape:
        close(model, {"x": random(2, 3, 1)})


@pytest.mark.parametrize(
    ("ends", "axes", "more"),
    [
        ([-3], [2], {"pads": [2, 2]}), ([-2], [1], {"pads": [2, 2]}), ([-2], [2], {"pads": [2, 2], "starts": 1}),
        ([-2], [2], {"pads": [2, 2], "strides": [2]}), ([-2], [2], {"auto_pad": "SAME_UPPER"}),
        ([-2], [2], {"pads": [0, 2], "shape": (2, 3, "n")}),
        ([2, 2**63 - 1, 2**63 - 1], [1, 0, 2], {"pads": [2, 2]}), ([2**63 - 1, 2], [0, 1], {"pads": [2, 2]}),
    ],
)  # fmt: skip
def test_other_slices_stay(ends: list[int], axes: list[int], more: dict[str, Any]) -> None:
    made = close(cut_off(ends, axes, **more), {"x": random(2, 3, 20)})
    assert any(step.endswith("Slice") for step in ops(made))
    exact = session(cut_off([-2], [2], pads=[2, 2]), rewrites="exact")
    assert "polyconv: Slice" in ops(exact)


def test_one_of_two_equal_turns_is_not_taken_from_the_other() -> None:
    """Both turn x; behind the first is what can do without, and the second is found to be the first."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("Transpose", ["c"], ["t"], perm=[0, 2, 3, 1]),
        node("LayerNormalization", ["t", "s", "b"], ["n"]), node("Transpose", ["n"], ["y"], perm=[0, 3, 1, 2]),
        node("Transpose", ["c"], ["u"], perm=[0, 2, 3, 1]), node("Softmax", ["u"], ["z"], axis=-1),
        node("Identity", ["z"], ["v"]),
    ]  # fmt: skip
    constants = {"w": random(6, 4, 1, 1), "s": random(6, seed=1), "b": random(6, seed=2)}
    close(onnx_model(nodes, [info("x", [1, 4, 5, 7])], ["y", "v"], constants), {"x": random(1, 4, 5, 7)})
