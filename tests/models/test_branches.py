"""Convolutions and normalisations of one value that are added: one convolution where sums of weights say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from making import close, info, onnx_model, random, session
from onnx import helper


def conv(y: str, w: str, bias: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", ["x", w, *([bias] if bias else [])], [y], f"conv {w}", **attributes)


NORM = helper.make_node("BatchNormalization", ["x", "gamma", "beta", "mean", "var"], ["n"], "norm")


def added(*names: str) -> list[onnx.NodeProto]:
    """The sum of some values, one after the other, to y."""
    nodes, last = [], names[0]
    for at, name in enumerate(names[1:]):
        made = "y" if at == len(names) - 2 else f"sum {at}"
        nodes.append(helper.make_node("Add", [last, name], [made], f"add {at}"))
        last = made
    return nodes


def network(*nodes: onnx.NodeProto, shape: Any = (2, 8, 9, 7), results: Any = ("y",), **constants: Any
            ) -> onnx.ModelProto:  # fmt: skip
    c = shape[1]
    rng = np.random.default_rng(2)
    held = {"gamma": random(c), "beta": random(c, seed=1), "mean": random(c, seed=2),
            "var": rng.uniform(0.5, 2, c).astype(np.float32), **constants}  # fmt: skip
    read = {name for each in nodes for name in each.input}
    return onnx_model(list(nodes), [info("x", shape)], list(results), {n: a for n, a in held.items() if n in read})


W3, W1 = random(8, 8, 3, 3, seed=3), random(8, 8, 1, 1, seed=4)
MERGED = {
    "3x3 and 1x1": network(conv("a", "w", pads=[1] * 4), conv("b", "v", "s"), *added("a", "b"), w=W3, v=W1,
                           s=random(8)),
    "1x1 first": network(conv("a", "v"), conv("b", "w", "s", pads=[1] * 4), *added("a", "b"), w=W3, v=W1,
                         s=random(8)),
    "normalised": network(conv("a", "w", "s", pads=[1] * 4), NORM, *added("n", "a"), w=W3, s=random(8)),
    "three branches": network(conv("a", "w", pads=[1] * 4), conv("b", "v"), NORM, *added("b", "a", "n"), w=W3, v=W1),
    "two of one size": network(conv("a", "w", pads=[1] * 4), conv("b", "v", pads=[1] * 4), *added("a", "b"), w=W3,
                               v=random(8, 8, 3, 3, seed=7)),
    "strides and groups": network(conv("a", "w", strides=[2, 1], pads=[1] * 4, group=2),
                                  conv("b", "v", strides=[2, 1], group=2), *added("a", "b"), w=random(6, 4, 3, 3),
                                  v=random(6, 4, 1, 1, seed=4)),
    "one tap, normalised first": network(conv("a", "w"), NORM, *added("n", "a"), w=W1),
    "one tap, normalised last": network(conv("a", "w"), NORM, *added("a", "n"), w=W1),
    "groups, normalised": network(conv("a", "w", pads=[1] * 4, group=2), NORM, *added("a", "n"), w=random(8, 4, 3, 3)),
    "depthwise, itself too": network(conv("a", "w", pads=[1] * 4, group=8), conv("b", "v", group=8),
                                     *added("a", "b", "x"), w=random(8, 1, 3, 3), v=random(8, 1, 1, 1, seed=4)),
    "at one side": network(conv("a", "w", pads=[2, 0, 0, 1]), conv("b", "v"), *added("a", "b"),
                           w=random(8, 8, 3, 2, seed=3), v=W1),
    "taps apart": network(conv("a", "w", pads=[4] * 4, dilations=[2, 2]),
                          conv("b", "v", pads=[2] * 4, dilations=[2, 2]), *added("a", "b"), w=random(8, 8, 5, 5), v=W3),
    "one axis": network(conv("a", "w", pads=[3, 3]), conv("b", "v", pads=[1, 1]), NORM, *added("a", "b", "n"),
                        shape=(1, 8, 30), w=random(8, 8, 7), v=random(8, 8, 3, seed=5)),
    "three axes": network(conv("a", "w", pads=[1] * 6), conv("b", "v"), *added("a", "b"), shape=(1, 4, 5, 6, 7),
                          w=random(5, 4, 3, 3, 3), v=random(5, 4, 1, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_they_are_one_convolution(name: str) -> None:
    model = MERGED[name]
    feeds = {"x": random(*[d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim], seed=9)}
    made = close(model, feeds)
    assert len({(record.engine, record.step) for record in made.nodes}) == 1
    apart = session(model, rewrites="exact")
    assert len({record.step for record in apart.nodes}) > 1
    for before, now in zip(apart.run(None, feeds), made.run(None, feeds), strict=True):
        np.testing.assert_allclose(now, before, rtol=1e-4, atol=1e-4)


KEPT = {
    "other strides": network(conv("a", "w", pads=[1] * 4, strides=[1, 1]),
                             helper.make_node("Conv", ["x", "v"], ["b"], pads=[4, 3, 4, 4], strides=[2, 2]),
                             *added("a", "b"), w=W3, v=W1),
    "an output shifted": network(conv("a", "w", pads=[1] * 4), conv("b", "v", pads=[2, 1, 0, 1]), *added("a", "b"),
                                 w=random(8, 8, 3, 3), v=random(8, 8, 3, 3, seed=4)),
    "one of them is returned": network(conv("a", "w", pads=[1] * 4), conv("b", "v"), *added("a", "b"), w=W3, v=W1,
                                       results=("y", "b")),
    "other inputs": network(conv("a", "w", pads=[1] * 4), helper.make_node("Relu", ["x"], ["r"]),
                            helper.make_node("Conv", ["r", "v"], ["b"]), *added("a", "b"), w=W3, v=W1),
    "other groups": network(conv("a", "w", pads=[1] * 4), conv("b", "v", group=8), *added("a", "b"), w=W3,
                            v=random(8, 1, 1, 1)),
    "an activation between": network(conv("a", "w", pads=[1] * 4), conv("b", "v"),
                                     helper.make_node("Relu", ["b"], ["r"]), *added("a", "r"), w=W3, v=W1),
    "one channel for all": network(conv("a", "w", pads=[1] * 4), conv("b", "v"), *added("a", "b"), w=W3,
                                   v=random(1, 8, 1, 1)),
    "crossed kernels": network(conv("a", "w", pads=[1, 0, 1, 0]), conv("b", "v", pads=[0, 1, 0, 1]), *added("a", "b"),
                               w=random(8, 8, 3, 1), v=random(8, 8, 1, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_others_stay_apart(name: str) -> None:
    made = close(KEPT[name], {"x": random(2, 8, 9, 7, seed=9)})
    assert [record.op for record in made.nodes if record.engine == "polyconv"].count("Conv") == 2
    assert len({record.step for record in made.nodes if record.op == "Conv"}) == 2


@pytest.mark.parametrize("order", [("x", "a"), ("a", "x")])
def test_one_tap_of_each_channel_takes_up_its_input(order: tuple[str, str]) -> None:
    model = network(conv("a", "w", group=8), *added(*order), w=random(8, 1, 1, 1))
    made = close(model, {"x": random(2, 8, 9, 7)})
    assert len({record.step for record in made.nodes}) == 1


def test_a_dense_convolution_leaves_its_residual() -> None:
    """Added after its sums it is exact; as a tap of 1 amid others it would not be."""
    made = close(network(conv("a", "w", pads=[1] * 4), *added("a", "x"), w=W3), {"x": random(2, 8, 9, 7)})
    [record] = {step.problem for step in made.steps}
    assert " r1" in record


def test_weights_are_added_in_f64() -> None:
    large, small = np.float32(1), np.float32(2.0**-24 * 1.5)
    nodes = [conv("a", "w"), conv("b", "v"), conv("c", "u"), *added("a", "b", "c")]
    model = network(*nodes, shape=(1, 1, 2), w=np.full((1, 1, 1), large), v=np.full((1, 1, 1), small),
                    u=np.full((1, 1, 1), -large))  # fmt: skip
    made = session(model)
    [y] = made.run(None, {"x": np.ones((1, 1, 2), np.float32)})
    np.testing.assert_array_equal(y, np.float32(np.float32(1 + 1.5 * 2.0**-24) - 1))
