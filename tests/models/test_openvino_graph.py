"""IRs in terms of ONNX: products with constant weights, extents that layers count, whole networks; against OpenVINO."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from making import openvino_run, random, save_ir
from openvino import opset1
from test_openvino import convolution, engines, model, parameter
from test_openvino_layers import numbers

from polyconv.models import InferenceSession, openvino_host

TOOL = Path(__file__).resolve().parents[2] / "tools" / "networks.py"


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions do not find the openvino package."""
    monkeypatch.setattr(openvino_host, "find_spec", lambda name: None)


def checked(path: Path, *feeds: np.ndarray, apart: float = 1e-5) -> InferenceSession:
    """The session of a file, whose results are OpenVINO's."""
    session = InferenceSession(path)
    names = [value.name for value in session.get_inputs()]
    for ours, theirs in zip(session.run(None, dict(zip(names, feeds, strict=True))), openvino_run(path, list(feeds)),
                            strict=True):  # fmt: skip
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert np.abs(ours - theirs).max() <= apart * np.abs(theirs).max()
    return session


def products(x: ov.Node, outputs: int, *, turned: bool, half: bool = False) -> ov.Node:
    """A product of rows with constant columns; they may lie transposed, or be stored as f16."""
    inner = x.get_output_partial_shape(0)[-1].get_length()
    w = random(*((outputs, inner) if turned else (inner, outputs)), seed=outputs)
    held = ops.convert(ops.constant(w.astype(np.float16)), "f32") if half else ops.constant(w)
    return ops.matmul(x, held, False, turned)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(5, 12), (1, 12), (2, 7, 12), (2, 3, 4, 12), (1, 2, 3, 2, 12)])
@pytest.mark.usefixtures("without_openvino")
def test_a_product_is_a_convolution(shape: tuple[int, ...], turned: bool, half: bool, tmp_path: Path) -> None:
    x = parameter("x", *shape)
    added = ops.add(products(x, 9, turned=turned, half=half), ops.constant(random(*(1,) * (len(shape) - 1), 9)))
    session = checked(save_ir(model([ops.gelu(added, "erf")], [x]), tmp_path), random(*shape, seed=3))
    assert engines(session)["MatMul"] == "polyconv"
    if len(shape) > 2:  # bias and activation are part of it
        assert {record.problem.split()[-2:] == ["b1", "act=Gelu"] for record in session.nodes
                if record.op == "MatMul" and record.problem} == {True}  # fmt: skip


@pytest.mark.usefixtures("without_openvino")
def test_products_take_any_batch_and_rows(tmp_path: Path) -> None:
    x = parameter("x", -1, -1, 6)
    path = save_ir(model([ops.relu(products(x, 4, turned=True))], [x]), tmp_path)
    for shape in ((1, 5, 6), (3, 2, 6)):
        checked(path, random(*shape))


def test_what_is_no_such_product_stays_with_openvino(tmp_path: Path) -> None:
    x, z = parameter("x", 2, 4, 6), parameter("z", 2, 6, 5)
    y = [ops.relu(ops.matmul(x, z, False, False)), ops.matmul(ops.constant(random(3, 4)), x, False, False),
         ops.matmul(x, ops.constant(random(4, 3)), True, False)]  # fmt: skip
    path = save_ir(model(y, [x, z]), tmp_path)
    session = checked(path, random(2, 4, 6), random(2, 6, 5, seed=1))
    assert {record.engine for record in session.nodes if record.op == "MatMul"} == {"openvino"}


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.usefixtures("without_openvino")
def test_extents_of_products_are_known_to_those_after_them(is_scaled: bool, tmp_path: Path) -> None:
    """A block of ConvNeXt: normalised and expanded with channels last, turned back and added."""
    x = parameter("x", 1, 8, 6, 5)
    last = ops.transpose(convolution(x, random(8, 8, 3, 3), pads_end=[1, 1]), numbers(0, 2, 3, 1))
    scaled = ops.mvn(last, numbers(-1), True, 1e-6, "inside_sqrt")
    if is_scaled:
        scaled = ops.add(ops.multiply(scaled, ops.constant(random(8))), ops.constant(random(1, 1, 1, 8, seed=1)))
    wide = ops.gelu(ops.add(products(scaled, 32, turned=True), ops.constant(random(32))), "erf")
    y = ops.add(x, ops.transpose(products(wide, 8, turned=True), numbers(0, 3, 1, 2)))
    session = checked(save_ir(model([y], [x]), tmp_path), random(1, 8, 6, 5, seed=2))
    assert {"openvino", "numpy"}.isdisjoint(engines(session).values())
    assert ("Transpose",) not in {step.ops for step in session.steps}  # nothing is turned
    assert ("MVN", "Multiply", "Add") in {step.ops for step in session.steps} or not is_scaled


def halves(x: ov.Node, count: Callable[[ov.Node], ov.Node]) -> ov.Node:
    """``count`` of the channels of x, those behind them added to the first."""
    channels = ops.gather(ops.shape_of(x, "i64"), numbers(1), ops.constant(np.int64(0)))
    middle = count(channels)
    end = ops.multiply(middle, numbers(2))
    first = ops.slice(x, numbers(0), middle, numbers(1), numbers(1))
    return ops.add(first, ops.slice(x, middle, end, numbers(1), numbers(1)))


COUNTED = {
    "divided": lambda c: ops.divide(ops.add(c, numbers(1)), numbers(2)),
    "rounded down": lambda c: ops.negative(ops.divide(ops.negative(c), numbers(2))),
    "converted": lambda c: ops.convert(ops.divide(ops.convert(c, "i32"), ops.constant(np.array([2], np.int32))), "i64"),
}


@pytest.mark.parametrize("name", COUNTED)
def test_extents_that_layers_count_are_known(name: str, tmp_path: Path) -> None:
    x = parameter("x", 1, 3, 5, 4)
    half = halves(convolution(x, random(6, 3, 3, 3)), COUNTED[name])
    y = ops.softmax(convolution(half, random(4, 3, 3, 3, seed=1)), 1)
    path = save_ir(model([y], [x]), tmp_path)
    session = checked(path, random(1, 3, 5, 4))
    assert engines(session)["SoftMax"] == "polyconv"
    if name != "rounded down":  # negative numbers are the host's
        assert engines(session)["ShapeOf"] == engines(session)["Divide"] == "removed"
        assert "openvino" not in engines(session).values()


@pytest.mark.usefixtures("without_openvino")
def test_what_is_known_of_open_extents_is_enough(tmp_path: Path) -> None:
    """Sizes are open, channels are not: half of these, and the rank behind a Reshape, are known all the same."""
    x = parameter("x", -1, 3, -1, -1)
    half = halves(convolution(x, random(6, 3, 3, 3)), COUNTED["divided"])
    mean = ops.reduce_mean(convolution(half, random(4, 3, 3, 3, seed=1)), numbers(2, 3), True)
    flat = ops.reshape(mean, numbers(-1, 4), True)
    hidden = ops.hswish(ops.add(products(flat, 8, turned=True), ops.constant(random(1, 8))))
    path = save_ir(model([products(hidden, 5, turned=True)], [x]), tmp_path)
    for shape in ((1, 3, 5, 4), (3, 3, 6, 7)):
        session = checked(path, random(*shape))
        assert {"openvino", "numpy"}.isdisjoint(engines(session).values())


def test_a_rank_that_only_a_run_tells(tmp_path: Path) -> None:
    """OpenVINO compiles no layers of an open rank: they are compiled for those that come."""
    x, shape = parameter("x", 1, 2, 4, 3), parameter("shape", -1, kind=np.int64)
    y = ops.softplus(ops.reshape(convolution(x, random(2, 2, 3, 3), pads_end=[1, 1]), shape, False))
    session = InferenceSession(save_ir(model([y], [x, shape]), tmp_path))
    whole = None
    for extents in ([24], [4, 6], [2, 3, 4]):
        [made] = session.run(None, {"x": random(1, 2, 4, 3), "shape": np.array(extents)})
        assert made.shape == tuple(extents)
        whole = made.reshape(-1) if whole is None else whole
        np.testing.assert_array_equal(made.reshape(-1), whole)


@pytest.mark.parametrize("name", ["mobilenet_v3_large", "yolov8n_like"])
@pytest.mark.usefixtures("without_openvino")
def test_a_network_that_openvino_wrote(name: str, tmp_path: Path) -> None:
    """Weights of 16 bits, a classifier's products, cuts at counted channels."""
    pytest.importorskip("torch")
    runpy.run_path(str(TOOL))["write_ir"](name, tmp_path / "network.xml")
    shape = tuple(ov.Core().read_model(tmp_path / "network.xml").inputs[0].get_shape())
    session = checked(tmp_path / "network.xml", random(*shape), apart=2e-5)
    assert {"openvino", "numpy"}.isdisjoint(engines(session).values())


# -- integers --------------------------------------------------------------------------------------------------


def levels(x: ov.Node, low: float, high: float, *, count: int = 256) -> ov.Node:
    """Values rounded to levels between two ends."""
    ends = [ops.constant(np.array(end, np.float32)) for end in (low, high)]
    return ops.fake_quantize(x, *ends, *ends, count)


def in_bytes(shape: tuple[int, ...], kind: str, zeros: str, *, seed: int, half: bool = False,
             single: bool = False, axis: int = 0) -> ov.Node:  # fmt: skip
    """Weights that are bytes in the file; one scale, or one for each output channel along an axis."""
    rng = np.random.default_rng(seed)
    along = tuple(extent if at == axis and not single else 1 for at, extent in enumerate(shape))
    info = np.iinfo(kind)
    value = ops.convert(ops.constant(rng.integers(info.min, info.max, shape, endpoint=True).astype(kind)), "f32")
    if zeros:
        zero = rng.integers(100, 140, along) if kind == "uint8" else rng.integers(-3, 3, along)
        value = ops.subtract(value, ops.convert(ops.constant(zero.astype(kind)), "f32"))
    scale = rng.random(along).astype(np.float16 if half else np.float32) / 500 + np.float16(1e-3)
    held = ops.constant(scale.astype(np.float16 if half else np.float32))
    return ops.multiply(value, ops.convert(held, "f32") if half else held)


def windows(x: ov.Node, w: ov.Node, strides: tuple[int, int] = (1, 1), begin: int = 1, end: int = 1,
            **more: object) -> ov.Node:  # fmt: skip
    """A convolution of two axes, in groups where its weights have an axis for them."""
    conv = opset1.convolution if len(w.get_output_shape(0)) == 4 else opset1.group_convolution
    return conv(x, w, list(strides), [begin, begin], [end, end], **({"dilations": [1, 1]} | more))


def spread(x: ov.Node, w: ov.Node, **more: object) -> ov.Node:
    """A transposed convolution of two axes, in groups where its weights have an axis for them."""
    is_plain = len(w.get_output_shape(0)) == 4
    conv = opset1.convolution_backprop_data if is_plain else opset1.group_convolution_backprop_data
    words = {"pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]} | more
    return conv(x, w, [2, 2], **words)


QUANTISED: dict[str, Callable[[ov.Node], ov.Node]] = {
    "plain": lambda x: windows(x, in_bytes((6, 4, 3, 3), "int8", "", seed=1)),
    "one scale": lambda x: windows(x, in_bytes((6, 4, 1, 1), "int8", "", seed=2, single=True), begin=0, end=0),
    "stored as f16": lambda x: windows(x, in_bytes((6, 4, 3, 3), "int8", "", seed=3, half=True), (2, 1), end=0,
                                       dilations=[1, 2]),
    "unsigned": lambda x: windows(x, in_bytes((6, 4, 3, 3), "uint8", "zeros", seed=4)),
    "with zero points": lambda x: windows(x, in_bytes((6, 4, 3, 3), "int8", "zeros", seed=5), auto_pad="same_upper"),
    "groups": lambda x: windows(
        x, ops.reshape(in_bytes((6, 2, 3, 3), "int8", "", seed=6), numbers(2, 3, 2, 3, 3), False)),
    "depthwise": lambda x: windows(
        x, ops.reshape(in_bytes((4, 1, 3, 3), "int8", "", seed=7), numbers(4, 1, 1, 3, 3), False)),
    "transposed": lambda x: spread(x, in_bytes((4, 6, 4, 4), "int8", "", seed=8, axis=1)),
    "transposed, unsigned": lambda x: spread(x, in_bytes((4, 6, 2, 2), "uint8", "zeros", seed=9, axis=1)),
    "transposed, with more outputs": lambda x: spread(x, in_bytes((4, 6, 3, 3), "int8", "", seed=10, axis=1),
                                                      output_padding=[1, 0]),
    "transposed, in groups": lambda x: spread(
        x, ops.reshape(in_bytes((4, 3, 4, 4), "int8", "", seed=11, single=True), numbers(2, 2, 3, 4, 4), False)),
}  # fmt: skip
BEHIND: dict[str, Callable[[ov.Node], ov.Node]] = {
    "nothing": lambda y: levels(y, -4.0, 4 * 127 / 128),
    "bias": lambda y: levels(ops.add(y, ops.constant(random(1, y.get_output_shape(0)[1], 1, 1))), 0.0, 6.0),
    "relu": lambda y: levels(ops.relu(ops.add(y, ops.constant(random(y.get_output_shape(0)[1], 1, 1)))), -4.0, 3.96875),
    "clamp": lambda y: levels(ops.clamp(y, -0.5, 1.25), -2.0, 2.0 * 127 / 128),
    "extrema": lambda y: levels(ops.minimum(ops.constant(np.float32(1.25)), ops.maximum(ops.relu(y), np.float32(-0.5))),
                                -2.0, 2.0 * 127 / 128),
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("name", QUANTISED)
def test_a_convolution_between_levels_is_one_of_integers(name: str, behind: str, tmp_path: Path) -> None:
    """Against the same layers in real numbers, whose sums are rounded: another level where a sum is between two."""
    x = parameter("x", 2, 4, 9, 8)
    made = BEHIND[behind](QUANTISED[name](levels(ops.relu(x), 0.0, 2.55)))
    path = save_ir(model([made], [x]), tmp_path)
    session, real, x = InferenceSession(path), InferenceSession(path, rewrites="exact"), random(2, 4, 9, 8) * 2
    [ours], [theirs] = (each.run(None, {"x": x}) for each in (session, real))
    [problem] = {record.problem for record in session.nodes if "Convolution" in record.op}
    op = "conv_transpose" if name.startswith("transposed") else "conv"
    assert str(problem).startswith(f"{op} u8 " if name.endswith("unsigned") else f"{op} u8*i8 ")
    assert {"openvino", "numpy"}.isdisjoint(engines(session).values())
    level = np.diff(np.unique(theirs)).min()
    apart = np.rint(np.abs(ours - theirs) / level)
    assert apart.max() <= 1 and np.mean(apart > 0) < 0.01
    assert np.ptp(theirs) > 20 * level


def levels_by_channel(x: ov.Node, low: np.ndarray, high: np.ndarray) -> ov.Node:
    """Values rounded to levels between two ends of each channel."""
    ends = [ops.constant(np.asarray(end, np.float32).reshape(1, -1, 1, 1)) for end in (low, high)]
    return ops.fake_quantize(x, *ends, *ends, 256)


CLIPS: dict[str, Callable[[ov.Node], ov.Node]] = {
    "nothing": lambda y: y, "relu": ops.relu, "clamp": lambda y: ops.clamp(y, 0.0, 6.0),
}  # fmt: skip


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("is_signed", [False, True])
def test_levels_of_each_channel_round_a_depthwise_convolution(is_signed: bool, clip: str, tmp_path: Path) -> None:
    """As NNCF quantises what a depthwise convolution reads: each channel has a range of its own."""
    rng, x = np.random.default_rng(5), parameter("x", 2, 4, 9, 8)
    ends = [rng.uniform(1.5, 6.0, 6) for _ in range(2)]
    lows = [-high * 128 / 127 if is_signed else np.zeros(6) for high in ends]
    y = levels(ops.relu(x), 0.0, 2.55)
    y = windows(y, in_bytes((6, 4, 1, 1), "int8", "", seed=1), begin=0, end=0)
    y = ops.add(y, ops.constant(random(1, 6, 1, 1)))
    y = levels_by_channel(CLIPS[clip](y), lows[0], ends[0])
    w = ops.reshape(in_bytes((6, 1, 3, 3), "int8", "", seed=2), numbers(6, 1, 1, 3, 3), False)
    y = levels_by_channel(ops.add(windows(y, w), ops.constant(random(1, 6, 1, 1, seed=2))), lows[1], ends[1])
    path = save_ir(model([y], [x]), tmp_path)
    session, real, fed = InferenceSession(path), InferenceSession(path, rewrites="exact"), random(2, 4, 9, 8) * 2
    [ours], [theirs] = (each.run(None, {"x": fed}) for each in (session, real))
    types = [str(record.problem).split()[1] for record in session.nodes if record.op.endswith("Convolution")]
    assert types == ["u8*i8", "u8*i8"]
    assert {"openvino", "numpy"}.isdisjoint(engines(session).values())
    level = ((ends[1] - lows[1]) / 255).reshape(1, -1, 1, 1)
    apart = np.rint(np.abs(ours - theirs) / level)
    assert apart.max() <= 2 and np.mean(apart > 0) < 0.02
    assert len(np.unique(theirs)) > 50


def test_zero_points_of_each_channel_are_no_numbers_of_a_convolution(tmp_path: Path) -> None:
    x = parameter("x", 1, 4, 6, 5)
    y = levels_by_channel(x, -np.arange(4.0), 255 - np.arange(4.0))
    w = ops.reshape(in_bytes((4, 1, 3, 3), "int8", "", seed=2), numbers(4, 1, 1, 3, 3), False)
    path = save_ir(model([levels(windows(y, w), -2.56, 2.54)], [x]), tmp_path)
    session = checked(path, random(1, 4, 6, 5) * 9, apart=0.02)
    assert {str(record.problem).split()[1] for record in session.nodes if record.problem} == {"f32"}


@pytest.mark.parametrize("signed", [False, True])
def test_a_pooling_keeps_integers(signed: bool, tmp_path: Path) -> None:
    """Of the greatest: levels have the order of what they stand for, and padding is never the greatest."""
    x = parameter("x", 1, 4, 9, 8)
    y = levels(x, -1.28, 1.27) if signed else levels(ops.relu(x), 0.0, 2.55)
    y = opset1.max_pool(y, [2, 2], [1, 1], [1, 1], [3, 3], "floor", "explicit")
    made = levels(windows(y, in_bytes((6, 4, 3, 3), "int8", "", seed=1)), -4.0, 4 * 127 / 128)
    path = save_ir(model([made], [x]), tmp_path)
    session, real, fed = InferenceSession(path), InferenceSession(path, rewrites="exact"), random(1, 4, 9, 8)
    [ours], [theirs] = (each.run(None, {"x": fed}) for each in (session, real))
    [problem] = {str(record.problem) for record in session.nodes if record.op == "Convolution"}
    assert problem.startswith("conv u8*i8 ")
    assert np.abs(ours - theirs).max() <= 8 / 255 * 1.001
    assert np.mean(np.abs(ours - theirs) > 1e-5) < 0.01


def counted_bias(y: ov.Node, bias: np.ndarray) -> ov.Node:
    """A bias brought to a convolution's axes by counting them, as a file of ONNX is read."""
    ranks = ops.subtract(ops.shape_of(ops.shape_of(y, "i64"), "i64"), numbers(2))
    held = ops.constant(bias)
    ones = ops.broadcast(numbers(1), ranks)
    return ops.add(y, ops.reshape(held, ops.concat([numbers(1), ops.shape_of(held, "i64"), ones], 0), False))


@pytest.mark.usefixtures("without_openvino")
def test_a_bias_whose_axes_are_counted(tmp_path: Path) -> None:
    x = parameter("x", 1, 4, 9, 8)
    y = ops.relu(counted_bias(windows(x, ops.constant(random(6, 4, 3, 3))), random(6)))
    session = checked(save_ir(model([y], [x]), tmp_path), random(1, 4, 9, 8))
    assert [str(record.problem).split()[-2:] for record in session.nodes if record.op == "Convolution"] == [
        ["b1", "act=Relu"]
    ]


def test_a_bias_whose_axes_are_counted_between_levels(tmp_path: Path) -> None:
    x = parameter("x", 1, 4, 9, 8)
    y = counted_bias(windows(levels(ops.relu(x), 0.0, 2.55), in_bytes((6, 4, 3, 3), "int8", "", seed=1)), random(6))
    path = save_ir(model([levels(ops.relu(y), 0.0, 6.0)], [x]), tmp_path)
    session, real, fed = InferenceSession(path), InferenceSession(path, rewrites="exact"), random(1, 4, 9, 8)
    [ours], [theirs] = (each.run(None, {"x": fed}) for each in (session, real))
    [problem] = {str(record.problem) for record in session.nodes if record.op == "Convolution"}
    assert problem.startswith("conv u8*i8 ")
    assert "openvino" not in engines(session).values()
    assert np.abs(ours - theirs).max() <= 6 / 255 * 1.001
    assert np.mean(np.abs(ours - theirs) > 1e-5) < 0.01


STAYS: dict[str, Callable[[ov.Node], ov.Node]] = {
    "other levels": lambda x: levels(x, 0.0, 2.0, count=16),
    "other results": lambda x: ops.fake_quantize(x, *(ops.constant(np.float32(v)) for v in (0.0, 1.0, 0.0, 2.0)), 256),
    "no whole zero point": lambda x: levels(x, -1.0, 1.0),
    "zero outside": lambda x: levels(x, 1.0, 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_what_no_integers_stand_for_stays_with_openvino(name: str, tmp_path: Path) -> None:
    x = parameter("x", 1, 4, 6, 5)
    y = ops.relu(convolution(STAYS[name](x), random(3, 4, 3, 3)))
    session = checked(save_ir(model([y], [x]), tmp_path), random(1, 4, 6, 5))
    assert engines(session)["FakeQuantize"] == "openvino"


def test_levels_with_real_numbers_behind_convolutions(tmp_path: Path) -> None:
    """Results that others read too, a bias for each pixel, no levels behind: of weights in bytes, sums are integers."""
    x = parameter("x", 1, 4, 6, 5)
    given = levels(x, -1.28, 1.27)

    def one(seed: int) -> ov.Node:
        return windows(given, in_bytes((4, 4, 1, 1), "int8", "", seed=seed), begin=0, end=0)

    read_twice, by_pixel = one(1), ops.add(one(2), ops.constant(random(1, 4, 6, 5)))
    y = [levels(read_twice, -2.56, 2.54), ops.relu(read_twice), levels(by_pixel, -2.56, 2.54), one(3),
         levels(convolution(given, random(3, 4, 3, 3)), -2.56, 2.54)]  # fmt: skip
    path = save_ir(model(y, [x]), tmp_path)
    session, real, x = InferenceSession(path), InferenceSession(path, rewrites="exact"), random(1, 4, 6, 5)
    for ours, theirs in zip(*(each.run(None, {"x": x}) for each in (session, real)), strict=True):
        assert np.abs(ours - theirs).max() <= 0.0201  # a level
        assert np.mean(np.abs(ours - theirs) > 1e-5) < 0.01
    kinds = sorted(record.problem.split()[1] for record in session.nodes if record.problem)
    assert kinds == ["f32", "u8*i8>i32", "u8*i8>i32", "u8*i8>i32"]
