"""Unusual input at the facade that is right: zero sizes, non-finite weights, memory of every kind."""

from __future__ import annotations

import numpy as np
import pytest

import polyconv
from polyconv import operands

X, W = np.ones((1, 4, 8, 8), np.float32), np.ones((6, 4, 3, 3), np.float32)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_pads_in_all_their_forms() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (1, 4, 8, 8)).astype(np.float32)
    one = polyconv.conv(x, W, pads=1)
    for pads in ([1, 1], (1, 1), [(1, 1), (1, 1)], [1, 1, 1, 1], np.array([1, 1, 1, 1])):
        np.testing.assert_array_equal(polyconv.conv(x, W, pads=pads), one)
    pairs = polyconv.conv(x, W, pads=[(0, 1), (2, 3)])
    np.testing.assert_array_equal(polyconv.conv(x, W, pads=[0, 2, 1, 3]), pairs)
    assert pairs.shape == (1, 6, 7, 11)
    padded = np.pad(x, [(0, 0), (0, 0), (0, 1), (2, 3)])
    np.testing.assert_array_equal(pairs, polyconv.conv(padded, W))
    # zeros beside an auto_pad say nothing
    np.testing.assert_array_equal(polyconv.conv(x, W, auto_pad="SAME_UPPER", pads=0), one)


def test_numbers_of_any_integer_type_are_accepted() -> None:
    right = polyconv.conv(X, W, strides=2, groups=1, threads=1)
    given = {"strides": np.int64(2), "groups": np.uint8(1), "threads": np.int32(1)}
    np.testing.assert_array_equal(polyconv.conv(X, W, **given), right)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_zero_sizes(layout: str) -> None:
    def image(n: int, c: int, h: int, w: int) -> np.ndarray:
        return ones(n, c, h, w) if layout == "NCHW" else ones(n, h, w, c)

    def shape(y: np.ndarray) -> tuple[int, ...]:
        return y.shape if layout == "NCHW" else (y.shape[0], y.shape[3], *y.shape[1:3])

    bias = np.arange(6, dtype=np.float32)
    assert shape(polyconv.conv(image(0, 4, 8, 8), W, layout=layout)) == (0, 6, 6, 6)
    assert shape(polyconv.conv(image(1, 4, 8, 8), ones(0, 4, 3, 3), layout=layout)) == (1, 0, 6, 6)
    for y in (
        polyconv.conv(image(2, 0, 8, 8), ones(6, 0, 3, 3), bias, layout=layout),  # no channels
        polyconv.conv(image(2, 4, 0, 0), W, bias, pads=4, layout=layout),  # nothing but padding
        polyconv.conv_transpose(image(2, 0, 4, 4), ones(0, 6, 3, 3), bias, layout=layout),
    ):
        assert shape(y) == (2, 6, 6, 6)
        channels = y if layout == "NCHW" else np.moveaxis(y, -1, 1)
        assert (channels == bias.reshape(1, 6, 1, 1)).all()
    # nothing in, nothing out
    assert shape(polyconv.conv(image(1, 4, 0, 8), W, pads=1, layout=layout)) == (1, 6, 0, 8)
    assert shape(polyconv.conv(image(1, 4, 0, 8), W, auto_pad="SAME_UPPER", layout=layout)) == (1, 6, 0, 8)
    assert shape(polyconv.conv(image(1, 4, 0, 8), ones(6, 4, 1, 1), layout=layout)) == (1, 6, 0, 8)
    assert shape(polyconv.conv_transpose(image(1, 4, 0, 8), ones(4, 6, 1, 1), layout=layout)) == (1, 6, 0, 8)


def test_an_operator_of_a_specification_may_leave_no_output() -> None:
    """The facade refuses a kernel larger than the padded image (test_bad_input); ONNX and OpenVINO name a size of 0."""
    small = ones(1, 4, 2, 8)
    assert polyconv.dialects.onnx.Conv()(small, W).shape == (1, 6, 0, 6)
    nhwc = polyconv.dialects.ort.Conv()(np.moveaxis(small, 1, -1), W)
    assert nhwc.shape == (1, 0, 6, 6)
    attributes = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
    assert polyconv.dialects.openvino.Convolution(**attributes)(small, W).shape == (1, 6, 0, 6)


def test_non_finite_weights_spread_no_further_than_products_carry_them() -> None:
    w = np.ones((1, 1, 3, 3), np.float32)
    w[0, 0, 0, :] = np.inf  # the upper taps
    w[0, 0, 1, 0] = np.nan  # the left tap
    y = polyconv.conv(ones(1, 1, 6, 6), w, pads=1)[0, 0]
    assert np.isfinite(y[0, 0])  # its upper and left taps meet padding only
    assert np.isnan(y[:, 1:]).all()
    assert np.isinf(y[1:, 0]).all()
    x = ones(1, 1, 16, 16)
    x[0, 0, 5, 7] = np.nan
    y = polyconv.conv(x, ones(1, 1, 3, 3), pads=1)[0, 0]
    spread = np.zeros((16, 16), bool)
    spread[4:7, 6:9] = True
    np.testing.assert_array_equal(np.isnan(y), spread)


def test_memory_of_every_kind_is_read_where_it_lies() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (2, 4, 8, 8)).astype(np.float32)
    right = polyconv.conv(x, W)
    read_only = x.copy()
    read_only.flags.writeable = False
    spaced = np.zeros((2, 4, 16, 16), np.float32)
    spaced[:, :, ::2, ::2] = x
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    forms = {
        "read-only": read_only,
        "fortran": np.asfortranarray(x),
        "channels last": np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1),
        "reversed": x[:, :, ::-1, ::-1].copy()[:, :, ::-1, ::-1],
        "spaced": spaced[:, :, ::2, ::2],
        "unaligned": unaligned,
        "byte-swapped": x.astype(">f4"),
        "memoryview": memoryview(x),
    }
    for name, form in forms.items():
        np.testing.assert_array_equal(polyconv.conv(form, W), right, name)
    repeated = np.broadcast_to(x[:1, :1], x.shape)
    np.testing.assert_array_equal(polyconv.conv(repeated, W), polyconv.conv(repeated.copy(), W))


def test_inputs_are_never_written() -> None:
    rng = np.random.default_rng(0)
    given = [
        rng.standard_normal(s, dtype=np.float32) for s in ((1, 4, 8, 8), (6, 4, 3, 3), (6,), (1, 6, 6, 6))
    ]
    before = [a.copy() for a in given]
    x, w, b, residual = given
    polyconv.conv(x, w, b, residual=residual)
    layer = polyconv.Conv(w, b)
    layer(x, residual=residual)
    for a, old in zip(given, before, strict=True):
        np.testing.assert_array_equal(a, old)


def test_a_layer_keeps_its_own_weights() -> None:
    w = W.copy()
    layer = polyconv.Conv(w)
    right = layer(X)
    w[...] = 99.0
    np.testing.assert_array_equal(layer(X), right)


def test_strides_of_axes_of_one_element_mean_nothing() -> None:
    """NumPy leaves them as a transposition left them; neither result nor algorithm may depend on them."""
    x = np.arange(3 * 7 * 9, dtype=np.float32).reshape(3, 1, 7, 9)
    w = np.ones((5, 1, 3, 3), np.float32)
    layer = polyconv.Conv(w, layout="NHWC")
    odd = np.moveaxis(x, 1, -1)
    assert odd.strides[-1] != odd.itemsize and odd.flags.c_contiguous
    np.testing.assert_array_equal(layer(odd), layer(np.array(odd, order="C")))
    told = operands.strides(odd, layer.problem.with_extents(3, (7, 9)))
    assert told.c == odd.itemsize
