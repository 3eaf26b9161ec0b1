"""ONNX Runtime's own operators against the engine itself: activations, summand, channels-last layouts.

The engine has no CPU kernel for its channels-last float domain; there the oracle is its channels-first
operator between two transposes, which is how that domain is defined.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx_node import by_onnxruntime

from polyconv import dialects

CONTRIB = "com.microsoft"

ACTIVATIONS = {
    None: None,
    "Relu": None,
    "Tanh": None,
    "Sigmoid": None,
    "LeakyRelu": [0.1],
    "Clip": [-0.5, 1.5],
    "HardSigmoid": [0.3, 0.4],
    "HardSwish": None,
}


def operands(rng, *shapes):
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def channels_last(a):
    return np.ascontiguousarray(np.moveaxis(a, 1, -1))


def activated(name):
    named = {"activation": name, "activation_params": ACTIVATIONS[name]}
    return {k: v for k, v in named.items() if v is not None}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("biased", "summed"), [(False, False), (True, False), (True, True), (False, True)])
def test_fused_conv(name, biased, summed):
    rng = np.random.default_rng(0)
    x, w, b, z = operands(rng, (2, 4, 7, 6), (8, 2, 3, 3), (8,), (2, 8, 7, 6))
    b, z = b if biased else None, z if summed else None
    attributes = {"group": 2, "pads": [1, 1, 1, 1], **activated(name)}
    theirs = by_onnxruntime("FusedConv", 1, [x, w, b, z], attributes, CONTRIB)
    ours = dialects.ort.FusedConv(**attributes)(x, w, b, z)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6)
    # the channels-last forms are the same operator behind a transpose
    last = None if z is None else channels_last(z)
    nhwc = dialects.ort.NhwcFusedConv(**attributes)(channels_last(x), w, b, last)
    np.testing.assert_allclose(nhwc, channels_last(theirs), rtol=0, atol=5e-6)
    if not summed:
        internal = dialects.ort.Conv(**attributes)(channels_last(x), w, b)
        np.testing.assert_allclose(internal, channels_last(theirs), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("LeakyRelu", None),
        ("LeakyRelu", [1.0, 2.0]),
        ("Clip", [0.0]),
        ("HardSigmoid", None),
        ("relu", None),
        ("", None),
    ],
)
def test_both_refuse(name, given):
    rng = np.random.default_rng(1)
    x, w = operands(rng, (1, 2, 4, 4), (3, 2, 3, 3))
    attributes = {"activation": name} | ({} if given is None else {"activation_params": given})
    assert isinstance(by_onnxruntime("FusedConv", 1, [x, w], attributes, CONTRIB), Exception)
    with pytest.raises(ValueError, match="activation"):
        dialects.ort.FusedConv(**attributes)(x, w)


@pytest.mark.parametrize("name", ["Relu", "Tanh", "Sigmoid", "HardSwish"])
def test_both_ignore_parameters_of_those_without(name):
    rng = np.random.default_rng(2)
    x, w = operands(rng, (1, 2, 4, 4), (3, 2, 3, 3))
    attributes = {"activation": name, "activation_params": [0.5, 0.25]}
    theirs = by_onnxruntime("FusedConv", 1, [x, w], attributes, CONTRIB)
    np.testing.assert_allclose(dialects.ort.FusedConv(**attributes)(x, w), theirs, rtol=0, atol=5e-6)


def test_same_with_a_stride_beyond_the_kernel_crops():
    x, w = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4), np.ones((1, 1, 1, 1), np.float32)
    attributes = {"auto_pad": "SAME_UPPER", "strides": [4, 4]}
    ours = dialects.ort.FusedConv(**attributes)(x, w)
    np.testing.assert_array_equal(ours, by_onnxruntime("FusedConv", 1, [x, w], attributes, CONTRIB))
    assert ours.item() == x[0, 0, 1, 1]


def test_nhwc_conv_and_conv_transpose():
    rng = np.random.default_rng(3)
    for rank in (1, 2, 3):
        x, w, b = operands(rng, (2, 4, *[6] * rank), (6, 2, *[3] * rank), (6,))
        attributes = {"group": 2, "strides": [2] * rank, "auto_pad": "SAME_LOWER"}
        theirs = by_onnxruntime("Conv", 11, [x, w, b], attributes)
        ours = dialects.ort.NhwcConv(**attributes)(channels_last(x), w, b)
        np.testing.assert_allclose(ours, channels_last(theirs), rtol=0, atol=5e-6)
        x, w, b = operands(rng, (2, 4, *[5] * rank), (4, 3, *[3] * rank), (6,))
        attributes = {"group": 2, "strides": [2] * rank, "output_shape": [10] * rank}
        theirs = by_onnxruntime("ConvTranspose", 11, [x, w, b], attributes)
        ours = dialects.ort.ConvTranspose(activation="Relu", **attributes)(channels_last(x), w, b)
        np.testing.assert_allclose(ours, np.maximum(channels_last(theirs), 0), rtol=0, atol=5e-6)


@pytest.mark.parametrize("last", [0, 1])
def test_qlinear_conv(last):
    rng = np.random.default_rng(4)
    x = rng.integers(0, 255, (2, 4, 7, 6), dtype=np.uint8, endpoint=True)
    w = rng.integers(0, 255, (6, 4, 3, 3), dtype=np.uint8, endpoint=True)
    scales = [np.array(v, np.float32) for v in (0.02, 0.01, 0.4)]
    zero_points = [np.array(v, np.uint8) for v in (130, 120, 101)]
    bias = rng.integers(-999, 999, 6).astype(np.int32)
    attributes = {"pads": [1, 0, 1, 0], "strides": [1, 2], "channels_last": last}
    first = x if not last else channels_last(x)
    inputs = [first, scales[0], zero_points[0], w, scales[1], zero_points[1], scales[2], zero_points[2], bias]
    ours = dialects.ort.QLinearConv(version=1, **attributes)(*inputs)
    theirs = by_onnxruntime("QLinearConv", 1, inputs, attributes, CONTRIB)
    np.testing.assert_array_equal(ours, theirs)
    internal = dialects.ort.QLinearConv(pads=[1, 0, 1, 0], strides=[1, 2])(channels_last(x), *inputs[1:])
    np.testing.assert_array_equal(internal, theirs if last else channels_last(theirs))
