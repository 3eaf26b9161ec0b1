"""ONNX dialects against onnxruntime and onnx's reference: geometry and values, deviations by name.

Values are small whole numbers, so that every engine's sums are exact in any order and compare equal.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx_node import by_onnxruntime, model

from polyconv import dialects
from polyconv.target import host_target

reference = pytest.importorskip("onnx.reference")


def by_reference(name, opset, inputs, attributes, outputs=1):
    made, feeds = model(name, opset, inputs, attributes, outputs=outputs)
    return reference.ReferenceEvaluator(made).run(None, feeds)


def whole(rng, *shape, dtype=np.float32):
    return rng.integers(-8, 8, shape, endpoint=True).astype(dtype)


def given(**attributes):
    return {name: value for name, value in attributes.items() if value is not None}


# ---- Conv ----


@pytest.mark.parametrize("opset", [1, 11, 22])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv(rank, opset):
    rng = np.random.default_rng(rank)
    for trial in range(12):
        group = int(rng.choice([1, 2, 4]))
        x = whole(rng, 2, 4, *rng.integers(4, 9, rank))
        w = whole(rng, 8, 4 // group, *rng.integers(1, 4, rank))
        b = whole(rng, 8) if trial % 2 else None
        attributes = {
            "group": group,
            "strides": rng.integers(1, 4, rank).tolist(),
            "dilations": rng.integers(1, 3, rank).tolist(),
            "pads": rng.integers(1, 4, 2 * rank).tolist(),
        }
        ours = dialects.onnx.Conv(version=opset, **attributes)(x, w, b)
        np.testing.assert_array_equal(ours, by_onnxruntime("Conv", opset, [x, w, b], attributes))


# Extents, taps and strides at which onnxruntime's windows move; all others of the grid agree.
MOVED = {"SAME_UPPER": {(4, 1, 4), (4, 1, 5), (5, 1, 5), (5, 2, 5)}, "SAME_LOWER": {(5, 1, 5)}}


@pytest.mark.parametrize("auto_pad", MOVED)
def test_conv_same(auto_pad):
    """Our two semantics differ where the stride exceeds the kernel, and are each engine's there."""
    rng = np.random.default_rng(0)
    moved = set()
    for n, k, s in product(range(1, 8), range(1, 4), range(1, 6)):
        x, w = whole(rng, 1, 1, n), whole(rng, 1, 1, k)
        x[x == 0] = 1
        w[w == 0] = 1
        attributes = {"auto_pad": auto_pad, "strides": [s]}
        theirs = dialects.onnx.Conv(semantics="onnxruntime", **attributes)
        np.testing.assert_array_equal(theirs(x, w), by_onnxruntime("Conv", 11, [x, w], attributes))
        ours = dialects.onnx.Conv(**attributes)
        np.testing.assert_array_equal(ours(x, w), by_reference("Conv", 11, [x, w], attributes)[0])
        shapes, types = (x.shape, w.shape), ["f32", "f32"]
        if ours.problem(*shapes, dtypes=types) != theirs.problem(*shapes, dtypes=types):
            moved.add((n, k, s))
    assert moved == MOVED[auto_pad]


def test_conv_same_with_dilation_is_the_reference():
    rng = np.random.default_rng(1)
    for n, k, s, d in product((3, 5, 8), (2, 3), (1, 2), (2, 3)):
        x, w = whole(rng, 1, 2, n, n), whole(rng, 3, 2, k, k)
        attributes = {"auto_pad": "SAME_LOWER", "strides": [s, 1], "dilations": [1, d]}
        ours = dialects.onnx.Conv(**attributes)(x, w)
        np.testing.assert_array_equal(ours, by_reference("Conv", 11, [x, w], attributes)[0])


def test_conv_float64_and_float16():
    rng = np.random.default_rng(2)
    for dtype in (np.float64, np.float16):
        x, w, b = (
            whole(rng, 1, 3, 6, dtype=dtype),
            whole(rng, 2, 3, 3, dtype=dtype),
            whole(rng, 2, dtype=dtype),
        )
        ours = dialects.onnx.Conv(pads=[1, 1])(x, w, b)
        np.testing.assert_array_equal(ours, by_reference("Conv", 11, [x, w, b], {"pads": [1, 1]})[0])
        assert ours.dtype == dtype


# ---- ConvTranspose ----


def transpose_deviation(n, k, s, d, op, auto_pad, out):
    """Name of the known reason for which onnxruntime refuses what we compute; None where it must agree."""
    natural = (n - 1) * s + (k - 1) * d + 1 + op
    if out is None:
        if op >= s:
            return "output_padding not below the stride, though below the dilation"
        return None
    total = max(0, natural - out)
    if (out + total - ((k - 1) * d + 1)) // s + 1 != n:
        return "output_shape too far beyond the natural size, or output_padding not below the stride"
    return None


@pytest.mark.parametrize("opset", [1, 11, 22])
def test_conv_transpose_pads(opset):
    rng = np.random.default_rng(3)
    agreed = refused = 0
    every = product(
        (1, 3, 4), (1, 2, 3), (1, 2, 3), (1, 2), (0, 1), ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    )
    for at, (n, k, s, d, op, auto_pad) in enumerate(every):
        if op >= max(s, d) or (opset < 22 and (at // 4 + at) % 4):  # of older ones a fourth: they differ in types alone
            continue
        natural = (n - 1) * s + (k - 1) * d + 1 + op
        x, w, b = whole(rng, 1, 2, n), whole(rng, 2, 3, k), whole(rng, 3)
        for out in (None, natural - 3, natural - 2, natural - 1, natural, natural + 1, natural + 2):
            if out is not None and out < 1:
                continue
            attributes = given(
                auto_pad=auto_pad, strides=[s], dilations=[d], output_padding=[op], output_shape=out and [out]
            )
            ours = dialects.onnx.ConvTranspose(version=opset, **attributes)(x, w, b)
            theirs = by_onnxruntime("ConvTranspose", opset, [x, w, b], attributes)
            if transpose_deviation(n, k, s, d, op, auto_pad, out):
                assert isinstance(theirs, Exception), attributes
                assert "inconsistent" in str(theirs)
                refused += 1
            else:
                np.testing.assert_array_equal(ours, theirs, err_msg=str((n, k, attributes)))
                agreed += 1
    assert agreed > 2 * refused


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_transpose(rank):
    rng = np.random.default_rng(rank + 10)
    for trial in range(12):
        group = int(rng.choice([1, 2, 4]))
        x = whole(rng, 2, 4, *rng.integers(2, 6, rank))
        w = whole(rng, 4, 3, *rng.integers(2, 4, rank))
        b = whole(rng, 3 * group) if trial % 2 else None
        attributes = {
            "group": group,
            "strides": rng.integers(1, 4, rank).tolist(),
            "dilations": rng.integers(1, 3, rank).tolist(),
            "pads": rng.integers(0, 2, 2 * rank).tolist(),
        }
        ours = dialects.onnx.ConvTranspose(**attributes)(x, w, b)
        theirs = by_onnxruntime("ConvTranspose", 22, [x, w, b], attributes)
        if ours.size == 0:
            assert isinstance(theirs, Exception), "onnxruntime refuses empty outputs"
        else:
            np.testing.assert_array_equal(ours, theirs)


def test_output_shape_with_batch_and_channels_is_taken_by_onnxruntime_too():
    rng = np.random.default_rng(4)
    x, w = whole(rng, 1, 2, 3), whole(rng, 2, 3, 3)
    long, short = {"output_shape": [1, 3, 6], "strides": [2]}, {"output_shape": [6], "strides": [2]}
    ours = dialects.onnx.ConvTranspose(**long)(x, w)
    np.testing.assert_array_equal(ours, by_onnxruntime("ConvTranspose", 11, [x, w], short))


# ---- integers ----


def weights(rng, tx, tw, shape):
    """Weights of the whole range; on CPUs without dot products of bytes less of it, where signs differ.

    There onnxruntime adds products in pairs that saturate at 16 bits: 2 * 255 * 63 does not, nor 2 * 128 * 127.
    """
    low, high = np.iinfo(tw).min, np.iinfo(tw).max
    if tx != tw and not host_target().vnni:
        low, high = max(low, -63), min(high, 63)
    return rng.integers(low, high, shape, dtype=tw, endpoint=True)


@pytest.mark.parametrize(("tx", "tw"), list(product((np.uint8, np.int8), repeat=2)))
def test_conv_integer(tx, tw):
    rng = np.random.default_rng(5)
    x = rng.integers(np.iinfo(tx).min, np.iinfo(tx).max, (2, 4, 6, 5), dtype=tx, endpoint=True)
    w = weights(rng, tx, tw, (6, 2, 3, 3))
    attributes = {"group": 2, "pads": [1, 0, 2, 1], "strides": [1, 2]}
    for zx, zw in ((None, None), (tx(7), None), (tx(7), tw(3))):
        inputs = [x, w, None if zx is None else np.array(zx), None if zw is None else np.array(zw)]
        ours = dialects.onnx.ConvInteger(**attributes)(*inputs)
        np.testing.assert_array_equal(ours, by_onnxruntime("ConvInteger", 10, inputs, attributes))
        assert ours.dtype == np.int32


def test_conv_integer_zero_point_per_channel():
    # onnxruntime has one zero point only; onnx's reference has several along two axes
    rng = np.random.default_rng(6)
    x = rng.integers(0, 255, (1, 2, 5, 5), dtype=np.uint8, endpoint=True)
    w = rng.integers(0, 255, (3, 2, 3, 3), dtype=np.uint8, endpoint=True)
    inputs = [x, w, np.array(5, np.uint8), np.array([1, 2, 3], np.uint8)]
    ours = dialects.onnx.ConvInteger()(*inputs)
    np.testing.assert_array_equal(ours, by_reference("ConvInteger", 10, inputs, {})[0])


@pytest.mark.parametrize(
    ("tx", "tw"),
    [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)],
    ids=["u8u8", "u8i8", "i8i8"],
)
@pytest.mark.parametrize("channels", ["tensor", "channel"])
def test_qlinear_conv(tx, tw, channels):
    # a zero point per channel of the weights is 0 here: older engines refuse others
    rng = np.random.default_rng(7)
    x = rng.integers(np.iinfo(tx).min, np.iinfo(tx).max, (2, 4, 9, 8), dtype=tx, endpoint=True)
    w = weights(rng, tx, tw, (6, 4, 3, 3))
    many = () if channels == "tensor" else (6,)
    inputs = [
        x,
        np.array(0.02, np.float32),
        np.array(3, tx),
        w,
        np.asarray(rng.uniform(0.01, 0.03, many), np.float32),
        np.asarray(rng.integers(0, 9, many) if channels == "tensor" else np.zeros(6), tw),
        np.array(0.5, np.float32),
        np.array(5, tx),
        rng.integers(-900, 900, 6).astype(np.int32),
    ]
    for attributes in ({"pads": [1, 1, 1, 1]}, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}):
        ours = dialects.onnx.QLinearConv(**attributes)(*inputs)
        theirs = by_onnxruntime("QLinearConv", 10, inputs, attributes)
        np.testing.assert_array_equal(ours, theirs)
        assert len(np.unique(ours)) > 20


def test_qlinear_conv_rounds_ties_to_even_before_the_zero_point():
    x = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    one, half = np.array(1, np.float32), np.array(0.5, np.float32)
    zero, odd = np.array(0, np.uint8), np.array(1, np.uint8)
    inputs = [x, half, zero, np.ones((1, 1, 1, 1), np.uint8), one, zero, one, odd]
    ours = dialects.onnx.QLinearConv()(*inputs)
    np.testing.assert_array_equal(ours.ravel()[:6], [1, 1, 2, 3, 3, 3])  # 0 0.5 1 1.5 2 2.5, rounded, plus 1
    np.testing.assert_array_equal(ours, by_onnxruntime("QLinearConv", 10, inputs, {}))


# ---- deformable, causal ----


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_deform_conv(dtype):
    rng = np.random.default_rng(8)
    for group, offset_group, masked in product((1, 2), (1, 2), (False, True)):
        x, w, b = (rng.standard_normal(s).astype(dtype) for s in ((2, 4, 6, 7), (6, 4 // group, 3, 2), (6,)))
        attributes = {"group": group, "offset_group": offset_group, "pads": [1, 0, 1, 1], "strides": [1, 2]}
        out = (6, 4)
        offset = rng.uniform(-3, 3, (2, offset_group * 12, *out)).astype(dtype)
        mask = rng.uniform(0, 1, (2, offset_group * 6, *out)).astype(dtype) if masked else None
        ours = dialects.onnx.DeformConv(version=19, **attributes)(x, w, offset, b, mask)
        theirs = by_onnxruntime("DeformConv", 19, [x, w, offset, b, mask], attributes)
        np.testing.assert_allclose(ours, theirs, atol=2e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
def test_causal_conv(activation):
    rng = np.random.default_rng(9)
    for length, k, biased, stateful in product((1, 2, 7), (1, 4), (False, True), (False, True)):
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, length), (3, 1, k)))
        b = rng.standard_normal(3).astype(np.float32) if biased else None
        past = rng.standard_normal((2, 3, k - 1)).astype(np.float32) if stateful and k > 1 else None
        y, state = dialects.onnx.CausalConvWithState(activation=activation)(x, w, b, past)
        found = by_reference(
            "CausalConvWithState", 27, [x, w, b, past], {"activation": activation}, outputs=2
        )
        np.testing.assert_allclose(y, found[0], atol=2e-6)
        np.testing.assert_array_equal(state, found[1])
        assert state.dtype == x.dtype
