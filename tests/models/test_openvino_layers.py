"""Layers of an IR on kernels of polyconv's own: against OpenVINO itself, and without the openvino package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
from making import openvino_run, random, save_ir
from openvino import opset1, opset8, opset10, opset14
from test_openvino import convolution, engines, model, parameter

from polyconv.errors import Error, ModelError
from polyconv.models import InferenceSession, openvino_host

Layer = Callable[[ov.Node], ov.Node]


def numbers(*values: int) -> ov.Node:
    return ops.constant(np.array(values, np.int64))


def interpolated(v: ov.Node, mode: str, coordinates: str, sizes: list[int], **more: object) -> ov.Node:
    return ops.interpolate(v, numbers(*sizes), mode, "sizes", coordinate_transformation_mode=coordinates,
                           axes=numbers(2, 3), **more)  # fmt: skip


OWN: dict[str, Layer] = {
    "add": lambda v: ops.add(v, ops.constant(random(8, 1, 1))),
    "subtract": lambda v: ops.subtract(ops.constant(random(1, 8, 1, 1)), v),
    "multiply": lambda v: ops.multiply(v, v),
    "divide": lambda v: ops.divide(v, ops.constant(np.abs(random(6)) + 1)),
    "maximum": lambda v: ops.maximum(v, ops.constant(np.float32(0.25))),
    "minimum": lambda v: ops.minimum(v, ops.constant(random(5, 6))),
    "power": lambda v: ops.power(v, ops.constant(np.float32(2))),
    "chain": lambda v: ops.sqrt(ops.abs(ops.negative(ops.exp(ops.tanh(v))))),
    "erf": ops.erf,
    "snake": lambda v: ops.add(v, ops.power(ops.sin(v), ops.constant(np.float32(2)))),
    "cos": ops.cos,
    "hsigmoid": ops.hsigmoid,
    "hard_sigmoid": lambda v: ops.hard_sigmoid(v, ops.constant(np.float32(0.3)), ops.constant(np.float32(0.4))),
    "to_f64": lambda v: ops.convert(v, "f64"),
    "max_pool": lambda v: ops.max_pool(v, [2, 2], [1, 1], [1, 0], [1, 1], [3, 2]),
    "max_pool_1": lambda v: opset1.max_pool(v, [1, 1], [0, 0], [0, 0], [2, 2], auto_pad="same_lower"),
    "max_pool_ceil": lambda v: opset14.max_pool(v, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2], "ceil_torch"),
    "max_pool_apart": lambda v: ops.max_pool(v, [1, 1], [2, 1], [0, 0], [0, 0], [2, 2]),
    "avg_pool": lambda v: opset1.avg_pool(v, [2, 2], [1, 1], [1, 1], [3, 3], True),
    "avg_pool_pads": lambda v: opset1.avg_pool(v, [2, 2], [1, 1], [1, 1], [3, 3], False),
    "mean": lambda v: ops.reduce_mean(v, numbers(2, 3), True),
    "mean_flat": lambda v: ops.reduce_mean(v, numbers(-1, -2), False),
    "sum": lambda v: ops.reduce_sum(v, numbers(1), True),
    "max": lambda v: ops.reduce_max(v, numbers(3), False),
    "min": lambda v: ops.reduce_min(v, numbers(0), False),
    "softmax": lambda v: ops.softmax(v, 1),
    "logsoftmax": lambda v: ops.log_softmax(v, -1),
    "softmax_last": lambda v: ops.softmax(v, -1),
    "concat": lambda v: ops.concat([v, ops.relu(v), v], 1),
    "concat_constant": lambda v: ops.concat([v, ops.constant(random(1, 2, 5, 6))], 1),
    "split": lambda v: ops.subtract(*(ops.split(v, ops.constant(1), 2).output(at) for at in (1, 0))),
    "variadic_split": lambda v: ops.relu(ops.variadic_split(v, numbers(1), numbers(3, -1)).output(1)),
    "transpose": lambda v: ops.transpose(v, numbers(0, 2, 3, 1)),
    "transpose_all": lambda v: ops.transpose(v, ops.constant(np.zeros(0, np.int64))),
    "reshape": lambda v: ops.reshape(v, numbers(0, 2, -1), True),
    "reshape_plain": lambda v: ops.reshape(v, numbers(2, -1), False),
    "squeeze": lambda v: ops.squeeze(ops.reduce_mean(v, numbers(2, 3), True), numbers(2, 3)),
    "unsqueeze": lambda v: ops.unsqueeze(v, numbers(1, -1)),
    "gather": lambda v: ops.gather(v, numbers(3, -1, 0), numbers(1)),
    "slice": lambda v: ops.slice(v, numbers(1, -1), numbers(8, -6), numbers(2, -2), numbers(1, 3)),
    "strided_slice": lambda v: ops.strided_slice(v, numbers(0, 2, 1), numbers(0, -1, 0), numbers(1, 1, 1), [1, 0, 0],
                                                 [1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    "strided_slice_steps": lambda v: ops.strided_slice(v, numbers(0, 6, 4), numbers(1, 0, 0), numbers(1, -2, -1),
                                                       [1, 0, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]),
    "strided_slice_new": lambda v: ops.strided_slice(v, numbers(0, 0, 2), numbers(0, 0, 7), numbers(1, 1, 2), [1, 1, 0],
                                                     [1, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]),
    "strided_slice_gone": lambda v: ops.strided_slice(v, numbers(0, -1), numbers(0, 8), numbers(1, 1), [1, 0], [1, 0],
                                                      [0, 0], [0, 1], [0, 0]),
    "strided_slice_last": lambda v: ops.strided_slice(v, numbers(0, 0, 0, 2), numbers(0, 0, 0, 3), numbers(1, 1, 1, 1),
                                                      [0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1],
                                                      [1, 0, 0, 0]),
    "lrn": lambda v: ops.lrn(v, numbers(1), 0.01, 0.75, 2.0, 5),
    "mvn": lambda v: ops.mvn(v, numbers(2, 3), True, 1e-5, "inside_sqrt"),
    "mvn_channels": lambda v: ops.mvn(v, numbers(1), True, 1e-3, "inside_sqrt"),
    "mvn_all": lambda v: ops.mvn(v, numbers(-1, 1, 2), True, 1e-3, "inside_sqrt"),
    "pad": lambda v: ops.pad(v, numbers(0, 0, 1, 2), numbers(0, 1, 0, 3), "constant", ops.constant(np.float32(0.5))),
    "pad_edge": lambda v: ops.pad(v, numbers(0, 0, 1, 2), numbers(0, 0, 0, 3), "edge"),
    "pad_reflect": lambda v: ops.pad(v, numbers(0, 0, 1, 2), numbers(0, 0, 4, 3), "reflect"),
    "depth_to_space": lambda v: ops.depth_to_space(v, "blocks_first", 2),
    "depth_to_space_fast": lambda v: ops.depth_to_space(v, "depth_first", 2),
    "space_to_depth": lambda v: ops.space_to_depth(ops.concat([v, v], 2), "blocks_first", 2),
    "space_to_depth_fast": lambda v: ops.space_to_depth(ops.concat([v, v], 2), "depth_first", 2),
    "tile": lambda v: ops.tile(v, numbers(1, 2, 1, 3)),
    "broadcast": lambda v: ops.broadcast(ops.reduce_max(v, numbers(1), True), numbers(1, 8, 5, 6)),
    "nearest": lambda v: interpolated(v, "nearest", "asymmetric", [10, 12], nearest_mode="floor"),
    "nearest_odd": lambda v: interpolated(v, "nearest", "half_pixel", [7, 17], nearest_mode="round_prefer_ceil"),
    "linear": lambda v: interpolated(v, "linear_onnx", "half_pixel", [10, 18]),
    "linear_corners": lambda v: interpolated(v, "linear_onnx", "align_corners", [9, 4]),
    "cubic": lambda v: interpolated(v, "cubic", "pytorch_half_pixel", [10, 12]),
    "scales": lambda v: ops.interpolate(v, ops.constant(np.array([2, 1.5], np.float32)), "nearest", "scales",
                                        axes=numbers(2, 3), nearest_mode="floor",
                                        coordinate_transformation_mode="asymmetric"),
    "interpolate_4": lambda v: opset10.interpolate(v, numbers(10, 12), ops.constant(np.ones(2, np.float32)),
                                                   "linear_onnx", "sizes", axes=numbers(2, 3)),
}  # fmt: skip
"""Layers behind a convolution that makes (1, 8, 5, 6)."""


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
def test_layers_mean_what_they_mean_to_openvino(name: str, is_open: bool, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Extents known, or open but for the channels; nothing is left for the openvino package."""
    monkeypatch.setattr(openvino_host, "find_spec", lambda name: None)
    x = parameter("x", *((-1, 3, -1, -1) if is_open else (1, 3, 5, 6)))
    made = OWN[name](convolution(x, random(8, 3, 1, 1), pads_begin=[0, 0]))
    y = ops.relu(made.output(0)) if made.get_output_size() > 1 else made
    path, feeds = save_ir(model([y], [x]), tmp_path), random(1, 3, 5, 6)
    session = InferenceSession(path)
    (theirs,) = openvino_run(path, [feeds])
    for _ in range(3):  # by steps, then replayed
        (ours,) = session.run(None, {"x": feeds})
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    others = {record.op: record.reason for record in session.nodes if record.engine not in ("polyconv", "constant")}
    assert not others


CUTS: dict[str, tuple[list[Any], tuple[Any, ...]]] = {
    "new and gone": ([(0, 0, 6, 1), (0, 0, 7, 3), (1, 1, 1, 1), [1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0],
                      [0, 0, 0, 0]], np.s_[:, None, 6, 1:3]),
    "the rest between": ([(0, 0, 0, 4), (0, 0, 0, 0), (1, 1, 1, -2), [0] * 4, [0, 0, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0],
                          [0, 1, 0, 0]], np.s_[0, ..., None, 4::-2]),
    "ends that are left out": ([(1, -2), (-1, 1), (1, -1), [1, 1], [1, 1], [0, 0], [0, 0], [0, 0]], np.s_[:, ::-1]),
}  # fmt: skip
"""Begins, ends, steps and masks of a StridedSlice, and what NumPy calls it; engines read beyond arrays for some."""


@pytest.mark.parametrize("name", CUTS)
def test_strided_slices_are_those_of_numpy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_host, "find_spec", lambda name: None)
    (begin, end, steps, *masks), index = CUTS[name]
    x = parameter("x", 1, 3, 5, 6)
    whole = convolution(x, random(8, 3, 1, 1), pads_begin=[0, 0])
    cut_out = ops.strided_slice(whole, numbers(*begin), numbers(*end), numbers(*steps), *masks)
    session = InferenceSession(save_ir(model([whole, cut_out], [x]), tmp_path))
    for seed in range(3):
        every, some = session.run(None, {"x": random(1, 3, 5, 6, seed=seed)})
        np.testing.assert_array_equal(some, every[index])


def test_an_element_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Of an axis whose extent only a run tells; the session works afterwards."""
    x = parameter("x", 1, 3, -1, 6)
    whole = convolution(x, random(8, 3, 1, 1), pads_begin=[0, 0])
    one = ops.strided_slice(whole, numbers(0, 0, 4), numbers(0, 0, 5), numbers(1, 1, 1), [1, 1, 0], [1, 1, 0], [0] * 3,
                            [0, 0, 1], [0] * 3)  # fmt: skip
    one.set_friendly_name("fifth row")
    session = InferenceSession(save_ir(model([one], [x]), tmp_path))
    with pytest.raises(Error, match=r"fifth row.*axis 2 .*no element 4"):
        session.run(None, {"x": random(1, 3, 4, 6)})
    assert session.run(None, {"x": random(1, 3, 5, 6)})[0].shape == (1, 8, 6)


ELSEWHERE: dict[str, tuple[Layer, str]] = {
    "softplus": (ops.softplus, "not computed here"),
    "ceil": (lambda v: opset8.max_pool(v, [2, 2], [1, 1], [1, 1], [1, 1], [3, 3], "ceil"), "in padding"),
    "indices": (lambda v: ops.convert(ops.max_pool(v, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]).output(1), "f32"),
                "more than one result"),
    "symmetric": (lambda v: ops.pad(v, numbers(0, 0, 1, 2), numbers(0, 0, 0, 3), "symmetric"), "no operator"),
    "smoothed": (lambda v: ops.interpolate(v, numbers(3, 4), "linear_onnx", "sizes", antialias=True,
                                           axes=numbers(2, 3)), "smoothes"),
    "by_thirds": (lambda v: ops.interpolate(v, ops.constant(np.array([1.3, 1.3], np.float32)), "linear_onnx",
                                            "scales", axes=numbers(2, 3)), "halves"),
    "mvn_outside": (lambda v: ops.mvn(v, numbers(2, 3), True, 1e-5, "outside_sqrt"), "to a root"),
    "mvn_apart": (lambda v: ops.mvn(v, numbers(1, 3), True, 1e-5, "inside_sqrt"), "neighbours"),
    "lrn_even": (lambda v: ops.lrn(v, numbers(1), 0.01, 0.75, 2.0, 4), "no operator"),
    "swish": (lambda v: ops.swish(v, ops.constant(np.float32(2))), "beta"),
}  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_openvino_does_in_another_way_stays_with_it(name: str, tmp_path: Path) -> None:
    layer, reason = ELSEWHERE[name]
    x = parameter("x", 1, 3, 5, 6)
    made = layer(ops.concat([convolution(x, random(8, 3, 1, 1), pads_begin=[0, 0])] * 2, 1))
    y = ops.relu(made.output(0)) if made.get_output_size() > 1 else made
    path, feeds = save_ir(model([y], [x]), tmp_path), random(1, 3, 5, 6)
    session = InferenceSession(path)
    np.testing.assert_allclose(session.run(None, {"x": feeds})[0], openvino_run(path, [feeds])[0], rtol=1e-4, atol=1e-5)
    said = [record.reason for record in session.nodes if record.engine in ("openvino", "numpy")]
    assert any(reason in each for each in said), said


def test_a_network_of_an_ir_needs_no_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Squeeze and excite, a branch that is enlarged and joined, weights of 16 bits."""
    monkeypatch.setattr(openvino_host, "find_spec", lambda name: None)
    x = parameter("x", -1, 3, 16, 16)
    a = ops.relu(ops.add(convolution(x, random(8, 3, 3, 3), pads_end=[1, 1]), ops.constant(random(1, 8, 1, 1))))
    gate = convolution(ops.reduce_mean(a, numbers(2, 3), True), random(8, 8, 1, 1), pads_begin=[0, 0])
    b = ops.multiply(a, ops.sigmoid(gate))
    low = convolution(ops.max_pool(b, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]).output(0), random(6, 8, 1, 1),
                      pads_begin=[0, 0])  # fmt: skip
    y = convolution(ops.concat([interpolated(low, "nearest", "asymmetric", [16, 16], nearest_mode="floor"), b], 1),
                    random(4, 14, 1, 1), pads_begin=[0, 0])  # fmt: skip
    path = tmp_path / "model.xml"
    ov.save_model(model([y], [x]), path, compress_to_fp16=True)
    session, feeds = InferenceSession(path), random(2, 3, 16, 16)
    np.testing.assert_allclose(session.run(None, {"x": feeds})[0], openvino_run(path, [feeds])[0], rtol=1e-3, atol=1e-3)
    assert set(engines(session).values()) == {"polyconv", "constant"}


def test_errors_name_the_layer(tmp_path: Path) -> None:
    x = parameter("x", -1, 3, -1, -1)
    y = ops.depth_to_space(convolution(x, random(8, 3, 1, 1), pads_begin=[0, 0]), "blocks_first", 2)
    z = ops.pad(y, numbers(0, 0, -3, 0), numbers(0, 0, -3, 0), "constant")
    z.set_friendly_name("cut")
    session = InferenceSession(save_ir(model([z], [x]), tmp_path))
    with pytest.raises(Error, match=r"Pad node 'cut': pads="):
        session.run(None, {"x": random(1, 3, 2, 2)})
    assert session.run(None, {"x": random(1, 3, 4, 4)})[0].shape == (1, 2, 2, 8)


def test_attributes_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    x = parameter("x", 1, 3, 5, 6)
    y = opset1.avg_pool(convolution(x, random(8, 3, 1, 1), pads_begin=[0, 0]), [2, 2], [1, 1], [1, 1], [3, 3], True)
    path = save_ir(model([y], [x]), tmp_path)
    path.write_text(path.read_text().replace('kernel="3, 3"', 'kernel="3, three"'))
    with pytest.raises(ModelError, match=r"AvgPool.*kernel=' three', which is no number"):
        InferenceSession(path)
