"""OpenVINO's dialect against its CPU plugin: padding tables, groups, output_shape, deformable borders.

Values are small whole numbers, so that sums are exact; integer types are compared where the plugin's
detour over f32 and its saturation cannot show.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from polyconv import dialects
from polyconv.target import host_target

ov = pytest.importorskip("openvino")
opset1 = pytest.importorskip("openvino.opset1")
opset8 = pytest.importorskip("openvino.opset8")

CORE = ov.Core()
CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}


def by_openvino(build, *inputs):
    """Result of the CPU plugin; ``build`` makes the node from parameters."""
    parameters = [opset8.parameter(list(a.shape), a.dtype) for a in inputs]
    compiled = CORE.compile_model(ov.Model([build(*parameters)], parameters), "CPU", CONFIG)
    return compiled(list(inputs))[0]


def whole(rng, *shape, dtype=np.float32):
    return rng.integers(-4, 4, shape, endpoint=True).astype(dtype)


def window(rng, rank, auto_pad="explicit"):
    return {
        "strides": rng.integers(1, 4, rank).tolist(),
        "pads_begin": rng.integers(0, 3, rank).tolist(),
        "pads_end": rng.integers(0, 3, rank).tolist(),
        "dilations": rng.integers(1, 3, rank).tolist(),
        "auto_pad": auto_pad,
    }


@pytest.mark.parametrize("auto_pad", ["explicit", "valid", "same_upper", "same_lower"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution(rank, auto_pad):
    rng = np.random.default_rng(rank)
    for _ in range(5):
        data, filters = (
            whole(rng, 2, 4, *rng.integers(5, 8, rank)),
            whole(rng, 6, 4, *rng.integers(1, 4, rank)),
        )
        attributes = window(rng, rank, auto_pad)
        ours = dialects.openvino.Convolution(**attributes)(data, filters)
        theirs = by_openvino(lambda d, f, a=attributes: opset1.convolution(d, f, **a), data, filters)
        np.testing.assert_array_equal(ours, theirs)
        grouped = filters[:, :2].reshape(2, 3, 2, *filters.shape[2:]).copy()
        ours = dialects.openvino.GroupConvolution(**attributes)(data, grouped)
        theirs = by_openvino(lambda d, f, a=attributes: opset1.group_convolution(d, f, **a), data, grouped)
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower"])
def test_same_on_a_grid(auto_pad):
    rng = np.random.default_rng(0)
    for k, s, d in product((1, 2, 3), (1, 2, 4), (1, 2)):
        data, filters = whole(rng, 1, 1, 7, 8), whole(rng, 1, 1, k, 1)
        attributes = {
            "strides": [s, 4], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [d, 1],
            "auto_pad": auto_pad,
        }  # fmt: skip
        ours = dialects.openvino.Convolution(**attributes)(data, filters)
        theirs = by_openvino(lambda d, f, a=attributes: opset1.convolution(d, f, **a), data, filters)
        np.testing.assert_array_equal(ours, theirs)


def backprop(attributes, out=None):
    shape = None if out is None else opset8.constant(np.array([out], np.int64))
    return lambda d, f: opset1.convolution_backprop_data(d, f, output_shape=shape, **attributes)


def grouped_backprop(attributes, out=None):
    """Like ``backprop``; with an output_shape its builder drops pads_begin and pads_end."""
    shape = None if out is None else opset8.constant(np.array([out], np.int64))
    return lambda d, f: opset1.group_convolution_backprop_data(d, f, output_shape=shape, **attributes)


@pytest.mark.parametrize("auto_pad", ["explicit", "valid", "same_upper", "same_lower"])
def test_backprop_table(auto_pad):
    rng = np.random.default_rng(1)
    for k, s, op, begin in product((2, 3), (1, 3), (0, 1), (0, 1)):
        natural = 2 * s + k + op
        data, filters = whole(rng, 1, 4, 3), whole(rng, 2, 2, 3, k)
        attributes = {
            "strides": [s], "pads_begin": [begin], "pads_end": [0], "dilations": [1], "auto_pad": auto_pad,
            "output_padding": [op],
        }  # fmt: skip
        dense = dialects.openvino.ConvolutionBackpropData(**attributes)
        grouped = dialects.openvino.GroupConvolutionBackpropData(**attributes)
        for out in (None, natural - 3, natural - 2, natural, natural + 2):
            sizes = None if out is None else np.array([out])
            first = by_openvino(backprop(attributes, out), data[:, :2].copy(), filters[0].copy())
            ours = dense(data[:, :2], filters[0], sizes)
            np.testing.assert_array_equal(ours, first, err_msg=f"{attributes} {out}")
            if out is not None and auto_pad == "explicit" and begin:
                second = by_openvino(backprop(attributes, out), data[:, 2:].copy(), filters[1].copy())
                theirs = np.concatenate([first, second], axis=1)
            else:
                theirs = by_openvino(grouped_backprop(attributes, out), data, filters)
            np.testing.assert_array_equal(
                grouped(data, filters, sizes), theirs, err_msg=f"{attributes} {out}"
            )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_backprop(rank):
    rng = np.random.default_rng(rank + 5)
    for _ in range(4):
        data = whole(rng, 2, 4, *rng.integers(4, 6, rank))
        filters = whole(rng, 4, 3, *rng.integers(2, 4, rank))
        attributes = window(rng, rank) | {"output_padding": rng.integers(0, 3, rank).tolist()}
        ours = dialects.openvino.ConvolutionBackpropData(**attributes)(data, filters)
        np.testing.assert_array_equal(ours, by_openvino(backprop(attributes), data, filters))


def test_negative_output_padding_crops():
    rng = np.random.default_rng(9)
    data, filters = whole(rng, 1, 2, 4), whole(rng, 2, 3, 3)
    attributes = {
        "strides": [2], "pads_begin": [0], "pads_end": [0], "dilations": [1], "auto_pad": "explicit",
        "output_padding": [-1],
    }  # fmt: skip
    ours = dialects.openvino.ConvolutionBackpropData(**attributes)(data, filters)
    np.testing.assert_array_equal(ours, by_openvino(backprop(attributes), data, filters))


BYTES = pytest.mark.skipif(
    not host_target().vnni, reason="openvino's sums of i8 are wrong on CPUs without dot products of bytes"
)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, pytest.param(np.int8, marks=BYTES), np.uint8, np.int32, np.int64]
)
def test_types(dtype):
    rng = np.random.default_rng(2)
    data, filters = rng.integers(0, 4, (1, 2, 5)).astype(dtype), rng.integers(0, 4, (3, 2, 3)).astype(dtype)
    attributes = {
        "strides": [1],
        "pads_begin": [1],
        "pads_end": [1],
        "dilations": [1],
        "auto_pad": "explicit",
    }
    ours = dialects.openvino.Convolution(**attributes)(data, filters)
    theirs = by_openvino(lambda d, f: opset1.convolution(d, f, **attributes), data, filters)
    np.testing.assert_array_equal(ours, theirs)
    assert ours.dtype == theirs.dtype == dtype


def test_integers_are_exact_and_wrap_where_the_plugin_is_not():
    data, filters = np.full((1, 1, 1), 100, np.int8), np.full((1, 1, 1), 4, np.int8)
    assert dialects.openvino.Convolution()(data, filters).item() == 400 - 512
    attributes = {"strides": [1], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
    assert by_openvino(lambda d, f: opset1.convolution(d, f, **attributes), data, filters).item() == 127
    large = np.full((1, 1, 1), 4097, np.int32)
    assert dialects.openvino.Convolution()(large, large).item() == 4097 * 4097
    assert (
        by_openvino(lambda d, f: opset1.convolution(d, f, **attributes), large, large).item() != 4097 * 4097
    )


def test_same_upper_mirrors_onnx():
    data, filters = np.ones((1, 1, 3), np.float32), np.array([[[1, 10, 100]]], np.float32)
    sizes = np.array([6])
    ours = dialects.openvino.ConvolutionBackpropData(strides=[2], auto_pad="same_upper")(data, filters, sizes)
    onnx = dialects.onnx.ConvTranspose(strides=[2], auto_pad="SAME_LOWER", output_shape=[6])(data, filters)
    np.testing.assert_array_equal(ours, onnx)


# ---- deformable ----


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("version", [1, 8])
def test_deformable(version, padded):
    rng = np.random.default_rng(3)
    for groups, offset_groups, masked in product((1, 2), (1, 2), (False, True)):
        if version == 1 and (padded or masked):
            continue  # version 1 knows neither
        data = rng.standard_normal((2, 4, 6, 7)).astype(np.float32)
        filters = rng.standard_normal((6, 4 // groups, 3, 2)).astype(np.float32)
        attributes = {
            "strides": [1, 2], "pads_begin": [1, 0], "pads_end": [1, 1], "dilations": [1, 2],
            "group": groups, "deformable_group": offset_groups,
        }  # fmt: skip
        if version == 8:
            attributes["bilinear_interpolation_pad"] = padded
        offsets = rng.uniform(-4, 4, (2, offset_groups * 12, 6, 3)).astype(np.float32)
        offsets = np.where(rng.random(offsets.shape) < 0.2, np.rint(offsets), offsets).astype(np.float32)
        inputs = [data, offsets, filters]
        if masked:
            inputs.append(rng.uniform(0, 1, (2, offset_groups * 6, 6, 3)).astype(np.float32))
        make = (opset1 if version == 1 else opset8).deformable_convolution

        def build(d, o, f, *m, make=make, attributes=attributes):
            return make(d, o, f, **attributes, **({"mask": m[0]} if m else {}))

        ours = dialects.openvino.DeformableConvolution(version=version, **attributes)(*inputs)
        np.testing.assert_allclose(ours, by_openvino(build, *inputs), atol=5e-5)


def test_deformable_border_without_padding():
    # one column of three pixels, one tap; positions before, on, between and behind them
    data = np.array([1.0, 2.0, 4.0], np.float32).reshape(1, 1, 3, 1)
    ones = np.ones((1, 1, 1, 1), np.float32)
    expected = {-1.0: 0, -0.25: 0, 0.0: 1, 0.5: 1.5, 2.0: 4, 2.25: 4, 2.75: 4, 3.0: 0, 3.5: 0}
    padded = {-0.25: 0.75, 2.25: 3, 2.75: 1}
    for position, value in expected.items():
        offsets = np.zeros((1, 2, 3, 1), np.float32)
        offsets[0, 0, 0, 0] = position
        bare = dialects.openvino.DeformableConvolution()(data, offsets, ones)
        assert bare[0, 0, 0, 0] == value, position
        with_pad = dialects.openvino.DeformableConvolution(bilinear_interpolation_pad=True)(
            data, offsets, ones
        )
        assert with_pad[0, 0, 0, 0] == padded.get(position, value)
        theirs = by_openvino(
            lambda d, o, f: opset8.deformable_convolution(d, o, f, [1, 1], [0, 0], [0, 0], [1, 1]),
            data, offsets, ones,
        )  # fmt: skip
        np.testing.assert_array_equal(bare, theirs)
