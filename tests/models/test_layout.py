"""Networks with channels last: the same answers as in the order of the model, in results that lie as the model says.

Every operator of our own stands between two convolutions here, whose results lie with channels last.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from levels import BOTH_ENDS
from making import close, info, onnx_model, onnxruntime_run, random
from onnx import TensorProto, helper

import polyconv
from polyconv.models import layout as layouts
from polyconv.models.session import InferenceSession
from polyconv.operators.lying import channels_last, in_memory, is_channels_last, lies, new_array, packed

SHAPE = (2, 6, 7, 9)
INT64 = TensorProto.INT64


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs.split()[0], **attributes)


def _conv(x: str, y: str, w: str = "w", **attributes: Any) -> onnx.NodeProto:
    return _node("Conv", f"{x} {w}", y, **{"pads": [1, 1, 1, 1], **attributes})


def _between(*nodes: onnx.NodeProto, channels: int = 6, shape: Any = SHAPE, results: str = "y", opset: int = 17,
             **constants: Any) -> onnx.ModelProto:  # fmt: skip
    """A convolution of x to a, the nodes, and a convolution of b with so many channels to y."""
    rank = len(shape) - 2
    held = {"w": random(6, shape[1], *[3] * rank, seed=1), "v": random(5, channels, *[1] * rank, seed=2)} | constants
    every = [_conv("x", "a", pads=[1] * 2 * rank), *nodes, _conv("b", "y", "v", pads=[0] * 2 * rank)]
    read = {name for node in every for name in node.input}
    held = {name: np.asarray(a) for name, a in held.items() if name in read}
    return onnx_model(every, [info("x", shape)], results.split(), held, opset=opset)


def _numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


OPERATORS: dict[str, onnx.ModelProto] = {
    "Relu": _between(_node("Relu", "a", "b")),
    "Add of a channel's number": _between(_node("Add", "a c", "b"), c=random(6, 1, 1)),
    "Mul by its mean": _between(_node("GlobalAveragePool", "a", "g"), _node("Mul", "g a", "b")),
    "a convolution of a constant": _between(
        _conv("k", "p", "u"), _node("Add", "a p", "b"), k=random(*SHAPE, seed=4), u=random(6, 6, 3, 3, seed=5),
    ),
    "a residual that is a constant": _between(_node("Add", "a k", "b"), k=random(*SHAPE, seed=4)),
    "Mul by a row": _between(_node("Mul", "a c", "b"), c=random(9)),
    "PRelu": _between(_node("PRelu", "a c", "b"), c=random(6, 1, 1)),
    "BatchNormalization after a sum": _between(
        _node("Add", "a x", "s"), _node("BatchNormalization", "s one c c two", "b"),
        one=random(6), c=random(6, seed=3), two=np.abs(random(6)) + 1,
    ),
    "MaxPool": _between(_node("MaxPool", "a", "b", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])),
    "MaxPool, dilated": _between(_node("MaxPool", "a", "b", kernel_shape=[2, 2], dilations=[3, 2])),
    "MaxPool, ceil": _between(_node("MaxPool", "a", "b", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)),
    "MaxPool of one window": _between(_node("MaxPool", "a", "b", kernel_shape=[7, 9])),
    "MaxPool of a slice": _between(
        _node("Split", "a", "s t", axis=1), _node("MaxPool", "t", "b", kernel_shape=[2, 2]), channels=3,
    ),
    "MaxPool of lines": _between(_node("MaxPool", "a", "b", kernel_shape=[3], strides=[2]), shape=(2, 6, 19)),
    "MaxPool of volumes": _between(
        _node("MaxPool", "a", "b", kernel_shape=[2, 3, 2], pads=[0, 1, 0, 1, 1, 1]), shape=(1, 6, 4, 5, 6),
    ),
    "AveragePool": _between(_node("AveragePool", "a", "b", kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    "AveragePool, counting pads": _between(
        _node("AveragePool", "a", "b", kernel_shape=[2, 3], strides=[2, 2], pads=[1, 0, 0, 1], count_include_pad=1),
    ),
    "GlobalMaxPool": _between(_node("GlobalMaxPool", "a", "b")),
    "ReduceMean of pixels": _between(_node("ReduceMean", "a", "b", axes=[2, 3], keepdims=1)),
    "ReduceSum of channels": _between(_node("ReduceSum", "a axes", "b", keepdims=1), channels=1, axes=_numbers(1)),
    "ReduceMax of a row": _between(_node("ReduceMax", "a", "b", axes=[3], keepdims=1)),
    "ReduceMean without axes": _between(
        _node("ReduceMean", "a", "r", axes=[2, 3], keepdims=0), _node("Unsqueeze", "r axes", "b"), axes=_numbers(2, 3),
    ),
    "Concat of channels": _between(_node("Relu", "a", "r"), _node("Concat", "a r x", "b", axis=1), channels=18),
    "Concat of rows": _between(_node("Concat", "a x", "b", axis=2)),
    "Concat of images": _between(_node("Concat", "a a", "b", axis=0)),
    "Split and Concat": _between(_node("Split", "a", "s t", axis=1), _node("Concat", "t s t", "b", axis=1), channels=9),
    "Slice of channels": _between(
        _node("Slice", "a from to axes", "b"), channels=3, **{"from": _numbers(2), "to": _numbers(5)}, axes=_numbers(1),
    ),
    "Slice of rows": _between(
        _node("Slice", "a from to axes steps", "b"), **{"from": _numbers(1, 8), "to": _numbers(7, 0)},
        axes=_numbers(2, 3), steps=_numbers(2, -2),
    ),
    "Pad": _between(_node("Pad", "a pads c", "b"), pads=_numbers(0, 0, 1, 2, 0, 0, 2, 0), c=np.float32(0.5)),
    "Pad of channels": _between(_node("Pad", "a pads", "b"), channels=9, pads=_numbers(0, 1, 0, 0, 0, 2, 0, 1)),
    "Pad, reflected": _between(_node("Pad", "a pads", "b", mode="reflect"), pads=_numbers(0, 0, 2, 1, 0, 0, 0, 3)),
    "Pad of a slice": _between(
        _node("Split", "a", "s t", axis=1), _node("Pad", "t pads", "b", mode="edge"), channels=3,
        pads=_numbers(0, 0, 2, 1, 0, 0, 0, 3),
    ),
    "DepthToSpace": _between(
        _node("Concat", "a x", "j", axis=1), _node("DepthToSpace", "j", "b", blocksize=2, mode="CRD"), channels=3,
    ),
    "SpaceToDepth": _between(_node("SpaceToDepth", "a", "b", blocksize=2), channels=24, shape=(1, 6, 8, 10)),
    "Tile": _between(_node("Tile", "a times", "b"), channels=12, times=_numbers(1, 2, 1, 3)),
    "Transpose": _between(_node("Transpose", "a", "b", perm=[0, 1, 3, 2])),
    "Transpose to channels last": _between(
        _node("Transpose", "a", "t", perm=[0, 2, 3, 1]), _node("Softmax", "t", "s", axis=-1),
        _node("Transpose", "s", "b", perm=[0, 3, 1, 2]),
    ),
    "Reshape": _between(
        _node("Reshape", "a flat", "f"), _node("Softmax", "f", "s", axis=-1), _node("Reshape", "s back", "b"),
        flat=_numbers(2, 6, 63), back=_numbers(*SHAPE),
    ),
    "channel shuffle": _between(
        _node("Reshape", "a apart", "p"), _node("Transpose", "p", "t", perm=[0, 2, 1, 3, 4]),
        _node("Reshape", "t back", "b"), apart=_numbers(2, 2, 3, 7, 9), back=_numbers(*SHAPE),
    ),
    "Softmax of channels": _between(_node("Softmax", "a", "b", axis=1)),
    "Softmax of a row": _between(_node("Softmax", "a", "b", axis=3)),
    "LayerNormalization": _between(
        _node("LayerNormalization", "a c d", "b", axis=1), c=random(6, 7, 9), d=random(6, 7, 9, seed=4),
    ),
    "InstanceNormalization": _between(
        _node("InstanceNormalization", "a c d", "b"), c=random(6), d=random(6, seed=4),
    ),
    "InstanceNormalization of lines": _between(
        _node("InstanceNormalization", "a c d", "b"), c=random(6), d=random(6, seed=4), shape=(2, 6, 33),
    ),
    "GroupNormalization": _between(
        _node("GroupNormalization", "a c d", "b", num_groups=3), c=random(6), d=random(6, seed=4), opset=21,
    ),
    "LRN": _between(_node("LRN", "a", "b", size=3)),
    "CumSum, on a host": _between(_node("CumSum", "a axis", "b"), axis=np.int64(2)),
    "ConvTranspose": _between(_node("ConvTranspose", "a u", "b", strides=[2, 2]), u=random(6, 6, 3, 2, seed=5)),
    "a residual": _between(
        _conv("a", "r", "u"), _node("Add", "r a", "s"), _node("Relu", "s", "b"), u=random(6, 6, 3, 3),
    ),
    "results between": _between(_node("Relu", "a", "r"), _node("Sigmoid", "r", "b"), results="y r a"),
    "one channel": _between(_conv("a", "b", "u"), channels=1, u=random(1, 6, 3, 3)),
} | {
    f"Resize {mode} {way} {spelled}": _between(
        _node("Resize", f"a  {spelled}" if spelled == "scales" else f"a   {spelled}", "b", mode=mode,
              coordinate_transformation_mode=way),
        scales=np.array([1, 1, 2, 1.5], np.float32), sizes=_numbers(2, 6, 5, 13),
    )
    for mode, way, spelled in itertools.product(
        ("nearest", "linear", "cubic"), ("asymmetric", "half_pixel", "align_corners"), ("scales", "sizes"),
    )
    if mode != "cubic" or way == "half_pixel"
}  # fmt: skip


WITHOUT_RULE = {
    "GroupNormalization", "LRN", "CumSum, on a host", "Resize nearest align_corners scales",
    "Resize linear align_corners scales", "Resize cubic half_pixel scales", "Resize cubic half_pixel sizes",
}  # fmt: skip
"""Those for which no enclosures are derived: other tests hold them, in the order of the model, against engines."""


def _resized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inputs that are left out have empty names."""
    for each in model.graph.node:
        if each.op_type == "Resize":
            x, name = each.input[0], each.input[-1]
            each.input[:] = [x, "", name] if name == "scales" else [x, "", "", name]
    return model


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_between_convolutions(name: str, level: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if level is not None:
        monkeypatch.setenv("POLYCONV_TARGET", level)
    model = _resized(OPERATORS[name])
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": random(*shape, seed=8)}
    if name in WITHOUT_RULE:
        made = InferenceSession(model, layout="channels_last", threads=2)
        right = InferenceSession(model, layout="model").run(None, feeds)
        for y, want in zip(made.run(None, feeds), right, strict=True):
            np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-4, strict=True)  # 60 products of up to 20
    else:
        made = close(model, feeds, layout="channels_last", threads=2)
    first = made.run(None, feeds)
    for _ in range(3):  # by steps again, then replayed
        for before, now in zip(first, made.run(None, feeds), strict=True):
            assert now.flags.c_contiguous and now.tobytes() == before.tobytes()
    problems = [step.problem for step in made.steps if step.problem]
    assert problems and all("NHWC" in problem for problem in problems)


@pytest.mark.parametrize("name", ["QLinearConv", "ConvInteger"])
def test_integers(name: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 255, (1, 5, 6, 7), np.uint8), rng.integers(-9, 9, (4, 5, 3, 3), np.int8)
    zero, scale = np.uint8(3), np.float32(0.02)
    if name == "QLinearConv":
        nodes = [_node("QLinearConv", "x s z w s o s z", "y", pads=[1] * 4)]
    else:
        nodes = [_node("ConvInteger", "x w z", "y", pads=[1] * 4)]
    constants = {"w": w, "s": scale, "z": zero, "o": np.int8(0)}
    read = {n for node in nodes for n in node.input}
    kind = TensorProto.UINT8
    made = info("y", None, kind if name == "QLinearConv" else TensorProto.INT32)
    held = {n: np.asarray(a) for n, a in constants.items() if n in read}
    model = onnx_model(nodes, [info("x", x.shape, kind)], [made], held)
    for layout in ("model", "channels_last"):
        [y] = InferenceSession(model, layout=layout).run(None, {"x": x})
        np.testing.assert_array_equal(y, onnxruntime_run(model, {"x": x})[0], strict=True)


def test_feeds_may_lie_in_any_order() -> None:
    model = OPERATORS["MaxPool"]
    x = random(*SHAPE)
    want = InferenceSession(model, layout="channels_last").run(None, {"x": x})
    turned = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for made in (InferenceSession(model, layout="channels_last"), InferenceSession(model, layout="model")):
        for _ in range(4):
            [y] = made.run(None, {"x": turned})
            assert y.flags.c_contiguous
            np.testing.assert_allclose(y, want[0], rtol=1e-5, atol=1e-5)


def test_errors_speak_of_the_axes_of_the_model() -> None:
    w = random(4, 3, 3, 3)
    model = onnx_model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")], [info("x", ["n", "c", "h", "w"])], ["y"],
                       {"w": w})  # fmt: skip
    made = InferenceSession(model, layout="channels_last")
    made.run(None, {"x": random(1, 3, 8, 9)})
    with pytest.raises(polyconv.ArgumentError, match=r"conv.*\(1, 5, 8, 9\)"):
        made.run(None, {"x": random(1, 5, 8, 9)})


@pytest.mark.parametrize("shape", [(1, 5, 8, 9), (7,), (2, 3)])
@pytest.mark.parametrize("layout", ["model", "channels_last"])
def test_errors_speak_of_constants_as_they_are(layout: str, shape: tuple[int, ...]) -> None:
    nodes = [_conv("k", "a", "w"), _node("Add", "a x", "y")]
    model = onnx_model(nodes, [info("x", (1, 4, 8, 9))], ["y"], {"k": random(*shape), "w": random(4, 3, 3, 3)})
    with pytest.raises(polyconv.Error, match=rf"'a'.*\({', '.join(map(str, shape))},?\)"):
        InferenceSession(model, layout=layout).run(None, {"x": random(1, 4, 8, 9)})


def _tokens(*between: onnx.NodeProto) -> onnx.ModelProto:
    """Products of tokens, and a depthwise convolution of the image that they are, as transformers for images have."""
    nodes = [_node("MatMul", "x w", "t"), _node("Transpose", "t", "p", perm=[0, 2, 1]),
             _node("Reshape", "p image", "i"), _conv("i", "c", "d", group=24), *between,
             _node("MatMul", "o v", "y")]  # fmt: skip
    constants = {"w": random(8, 24), "d": random(24, 1, 3, 3, seed=1), "v": random(24, 5, seed=2),
                 "image": _numbers(2, 24, 6, 7), "rows": _numbers(2, 24, 42)}  # fmt: skip
    read = {name for node in nodes for name in node.input}
    return onnx_model(nodes, [info("x", (2, 42, 8))], ["y"], {n: a for n, a in constants.items() if n in read})


BACK = [_node("Reshape", "c rows", "r"), _node("Transpose", "r", "a", perm=[0, 2, 1])]


@pytest.mark.parametrize("layout", ["model", "channels_last"])
def test_images_of_tokens_are_not_copied(layout: str) -> None:
    model, feeds = _tokens(*BACK, _node("Tanh", "a", "o")), {"x": random(2, 42, 8, seed=9)}
    first = close(model, feeds, layout=layout).run(None, feeds)
    made = InferenceSession(model, layout=layout)
    for _ in range(4):
        np.testing.assert_array_equal(made.run(None, feeds)[0], first[0])
    ((_, replay),) = made._promised.program.replays._replays
    jobs = [made.steps[step].ops for piece in replay._pieces for step in piece.owners]
    products = [("MatMul",), ("Conv", "Tanh"), ("MatMul",)]
    assert jobs == products if layout == "channels_last" else jobs.count(("Transpose",)) == 2


def test_activations_move_to_the_convolution_behind_which_they_stand() -> None:
    made = close(_tokens(*BACK, _node("Relu", "a", "o")), {"x": random(2, 42, 8)})
    assert {step.ops for step in made.steps if "Conv" in step.ops} == {("Conv", "Relu")}
    other = close(_tokens(*BACK, _node("Relu", "a", "z"), _node("Add", "z a", "o")), {"x": random(2, 42, 8)})
    assert {step.ops for step in other.steps if "Conv" in step.ops} == {("Conv",)}  # somebody needs it as it was


JOINED = {
    "each layer reads all before it": ([
        _conv("x", "a"), _node("Relu", "a", "r"), _conv("r", "c", "u"), _node("Concat", "a c", "j", axis=1),
        _node("Sigmoid", "j", "s"), _conv("s", "d", "u12"), _node("Concat", "j d", "k", axis=1), _conv("k", "y", "u18"),
    ], {"j", "k"}),
    "both halves of a value, and what follows from one": ([
        _conv("x", "a"), _node("Split", "a", "s t", axis=1), _conv("t", "c", "u3"), _node("Add", "t c", "d"),
        _node("Concat", "s t d", "j", axis=1), _conv("j", "y", "u9"),
    ], {"j"}),
    "what a pooling makes is copied": ([
        _conv("x", "a"), _node("MaxPool", "a", "p", kernel_shape=[3, 3], pads=[1] * 4),
        _node("Concat", "a p", "j", axis=1), _conv("j", "y", "u12"),
    ], set()),
    "one value twice": ([
        _conv("x", "a"), _conv("a", "c", "u"), _node("Concat", "a c a", "j", axis=1), _conv("j", "y", "u18"),
    ], set()),
    "an input and a result": ([
        _conv("x", "a"), _node("Concat", "x a", "j", axis=1), _conv("j", "y", "u12"), _node("Relu", "a", "z"),
    ], set()),
    "a result that is joined": ([
        _conv("x", "a"), _conv("a", "c", "u"), _node("Concat", "a c", "z", axis=1), _conv("z", "y", "u12"),
    ], set()),
    "rows and images from last to first": ([
        _conv("x", "a"), _conv("a", "c", "u"), _node("Slice", "c from to axes back", "s"),
        _node("Concat", "a s", "j", axis=1), _conv("j", "y", "u12"),
    ], set()),
    "its mean": ([
        _conv("x", "a"), _conv("a", "c", "u"), _node("Concat", "a c", "j", axis=1), _conv("j", "y", "u12"),
        _node("GlobalAveragePool", "c", "g"), _node("Softmax", "g", "z", axis=1),
    ], {"j"}),
    "in another order of rows too": ([
        _conv("x", "a"), _conv("a", "c", "u"), _node("Concat", "a c", "j", axis=1),
        _node("Transpose", "c", "t", perm=[0, 1, 3, 2]), _conv("j", "y", "u12"), _conv("t", "z", "u"),
    ], {"j"}),
    "enlarged": ([
        _conv("x", "a"), _node("AveragePool", "a", "p", kernel_shape=[2, 2]),
        helper.make_node("Resize", ["p", "", "grown"], ["r"], mode="linear"), _node("Concat", "a r", "j", axis=1),
        _conv("j", "y", "u12"),
    ], {"j"}),
    "enlarged along one axis": ([
        _conv("x", "a"), _node("AveragePool", "a", "p", kernel_shape=[2, 1]),
        helper.make_node("Resize", ["p", "", "higher"], ["r"]), _node("Concat", "a r", "j", axis=1),
        _conv("j", "y", "u12"),
    ], {"j"}),
    "padded": ([
        _conv("x", "a"), _node("AveragePool", "a", "p", kernel_shape=[2, 2]), _node("Pad", "p around", "r"),
        _node("Concat", "r a", "j", axis=1), _conv("j", "y", "u12"),
    ], {"j"}),
}  # fmt: skip
"""Nodes with joins of channels, and those of which nothing is copied where channels are last."""


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("name", JOINED)
def test_channels_are_joined_in_place(name: str, images: int) -> None:
    nodes, free = JOINED[name]
    weights = {"w": random(6, 6, 3, 3, seed=1), "u": random(6, 6, 3, 3, seed=2)}
    weights |= {f"u{c}": random(3 if c == 3 else 6, c, 3, 3, seed=c) for c in (3, 9, 12, 18)}
    weights |= {"from": _numbers(-1, -1), "to": _numbers(-99, -99), "axes": _numbers(0, 2), "back": _numbers(-1, -1)}
    weights |= {"grown": np.array([1, 1, 1.17, 1.13], np.float32), "higher": np.array([1, 1, 1.17, 1], np.float32)}
    weights |= {"around": _numbers(0, 0, 1, 0, 0, 0, 0, 1)}
    made = {n for node in nodes for n in node.output}
    read = {n for node in nodes for n in node.input}
    model = onnx_model(nodes, [info("x", (images, *SHAPE[1:]))], [n for n in ("y", "z") if n in made],
                       {n: a for n, a in weights.items() if n in read})  # fmt: skip
    feeds = {"x": random(images, *SHAPE[1:], seed=8)}
    session = close(model, feeds, layout="channels_last", threads=1)
    first = session.run(None, feeds)
    for seed in (8, 9, 8):
        fed = {"x": random(images, *SHAPE[1:], seed=seed)}
        want = InferenceSession(model, layout="channels_last", threads=1).run(None, fed)
        assert [a.tobytes() for a in session.run(None, fed)] == [a.tobytes() for a in want]
    assert [a.tobytes() for a in first] == [a.tobytes() for a in session.run(None, feeds)]
    joins = {step.nodes[0]: step.seconds for step in session.steps if step.ops == ("Concat",)}
    assert {name for name, seconds in joins.items() if seconds == 0.0} == free


@pytest.mark.parametrize(
    ("convolutions", "others", "is_last"),
    [
        ([(1.0, 0.9)], [], True), ([(1.0, 0.98)], [], False), ([(1.0, 0.9), (1.0, 1.1)], [], False), ([], [], False),
        ([(1.0, 0.5)], [(0.0, 0.4)], True), ([(1.0, 0.5)], [(0.0, 0.5)], False), ([None, (1.0, 0.9)], [], True),
        ([None], [(1.0, 0.1)], False),
    ],
)  # fmt: skip
def test_all_of_a_network_has_the_cheaper_order(convolutions: list[Any], others: list[Any], is_last: bool,
                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(layouts, "_priced", lambda prices: prices)
    given = [lambda each=each: each for each in convolutions], [lambda each=each: each for each in others]
    assert layouts.Layout("auto", *given).is_last is is_last
    for asked in ("model", "channels_last"):
        assert layouts.Layout(asked, *given).is_last is (asked == "channels_last")


def test_the_order_follows_from_the_model_alone() -> None:
    """Not from the sizes of a run; joins of channels cost copies where channels are last."""
    open_model = _between(_node("Relu", "a", "b"), shape=("n", 6, "h", "w"))
    found = set()
    for extents in ((1, 6, 5, 5), (3, 6, 90, 70)):
        made = InferenceSession(open_model, threads=1)
        made.run(None, {"x": random(*extents)})
        found.add(tuple(str(step.problem).split()[2] for step in made.steps))
    assert len(found) == 1
    joined = InferenceSession(OPERATORS["Concat of channels"], threads=1)
    [price] = joined._promised.program.ahead._layout.others
    assert price()[0] == 0.0 < price()[1]


def test_exact_networks_have_the_order_of_the_model() -> None:
    made = InferenceSession(OPERATORS["Relu"], rewrites="exact")
    made.run(None, {"x": random(*SHAPE)})
    assert all("NCHW" in step.problem for step in made.steps if step.problem)
    with pytest.raises(polyconv.ArgumentError, match=r"layout=.last..*auto, model or channels_last"):
        InferenceSession(OPERATORS["Relu"], layout="last")


def test_the_layout_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_LAYOUT", "channels_last")
    for made, order in (
        (InferenceSession(OPERATORS["Relu"]), "NHWC"), (InferenceSession(OPERATORS["Relu"], rewrites="exact"), "NHWC"),
        (InferenceSession(OPERATORS["Relu"], layout="model"), "NCHW"),
    ):  # fmt: skip
        made.run(None, {"x": random(*SHAPE)})
        assert all(order in step.problem for step in made.steps if step.problem)


@pytest.mark.parametrize(
    ("shape", "is_last"), [((2, 3, 4, 5), True), ((1, 3, 9), True), ((2, 1, 4, 5), False), ((2, 3, 1, 1), False)]
)
def test_arrays_with_channels_last(shape: tuple[int, ...], is_last: bool) -> None:
    lie = channels_last(shape, np.float32)
    made = new_array(lie)
    assert lies(made) == lie and is_channels_last(lie) is is_last
    seen = in_memory(lie)
    assert seen.strides == packed(seen.shape, np.float32).strides
    assert is_channels_last(lies(made[:, : max(1, shape[1] - 1)])) is (is_last and shape[1] > 2)
    assert not is_channels_last(packed(shape, np.float32)) or not is_last
