"""Dialects in the types that only PyTorch computes truly: float64 and integers, with groups and dilation."""

from __future__ import annotations

import numpy as np
import pytest

from polyconv import dialects

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def arrays(rng, dtype, *shapes):
    if np.dtype(dtype).kind == "f":
        return [rng.standard_normal(s).astype(dtype) for s in shapes]
    limits = np.iinfo(dtype)
    return [rng.integers(limits.min, limits.max, s, dtype=dtype, endpoint=True) for s in shapes]


def test_onnx_conv_float64():
    rng = np.random.default_rng(0)
    x, w, b = arrays(rng, np.float64, (2, 4, 9, 8), (6, 2, 3, 2), (6,))
    ours = dialects.onnx.Conv(group=2, strides=[2, 1], pads=[1, 2, 1, 2], dilations=[1, 3])(x, w, b)
    theirs = functional.conv2d(*map(torch.from_numpy, (x, w, b)), (2, 1), (1, 2), (1, 3), 2)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-13)


def test_onnx_conv_transpose_float64_with_output_padding_up_to_the_dilation():
    # onnxruntime wants output_padding below the stride
    rng = np.random.default_rng(1)
    x, w, b = arrays(rng, np.float64, (2, 4, 5), (4, 3, 3), (6,))
    ours = dialects.onnx.ConvTranspose(group=2, strides=[2], pads=[1, 1], dilations=[3], output_padding=[2])(
        x, w, b
    )
    theirs = functional.conv_transpose1d(*map(torch.from_numpy, (x, w, b)), 2, 1, 2, 2, 3)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_openvino_integers_wrap(dtype):
    rng = np.random.default_rng(2)
    data, filters = arrays(rng, dtype, (1, 3, 7, 6), (4, 3, 3, 3))
    ours = dialects.openvino.Convolution(pads_begin=[1, 1], pads_end=[1, 1], strides=[2, 1])(data, filters)
    theirs = functional.conv2d(torch.from_numpy(data), torch.from_numpy(filters), None, (2, 1), 1)
    np.testing.assert_array_equal(ours, theirs.numpy())
    assert ours.dtype == dtype


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # it tells of a copy it makes
def test_same_upper_is_padding_same():
    rng = np.random.default_rng(3)
    for k, d in ((2, 1), (3, 2), (4, 3)):
        x, w = arrays(rng, np.float64, (1, 2, 9), (3, 2, k))
        ours = dialects.onnx.Conv(auto_pad="SAME_UPPER", dilations=[d])(x, w)
        theirs = functional.conv1d(torch.from_numpy(x), torch.from_numpy(w), None, 1, "same", d)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-13)
