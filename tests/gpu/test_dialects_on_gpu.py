"""Operators of the dialects with operands on a GPU: the answers are those of the CPU, errors name what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from virtual_gpu import virtual_gpu

from polyconv import dialects
from polyconv.errors import ArgumentError
from polyconv.gpu.arrays import GpuArray, to_gpu
from polyconv.problem.oracle import magnitude, oracle, tolerance
from polyconv.problem.problem import Problem

RNG = np.random.default_rng(3)
X, W, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 6, 7), (8, 4, 3, 3), (8,)))


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with virtual_gpu():
        yield


def close(result: Any, text: str, *operands: NDArray[Any]) -> bool:
    """Whether a result on the GPU is within the bound of a problem's exact one."""
    assert type(result) is GpuArray
    p = Problem.parse(text)
    exact = oracle(p, *operands, raw=True)
    allowed = tolerance(p, magnitude(p, *operands), exact) + 2.0**-19 * magnitude(p, *operands)
    return bool((np.abs(result.numpy() - exact) <= allowed).all())


def test_onnx() -> None:
    y = dialects.onnx.Conv(pads=[1, 1, 1, 1])(to_gpu(X), to_gpu(W), to_gpu(B))
    assert close(y, "conv f32 NCHW n2 c4 i6x7 m8 k3x3 p1 b1", X, W, B)
    w = RNG.standard_normal((4, 5, 2, 2)).astype(np.float32)
    y = dialects.onnx.ConvTranspose(strides=[2, 2])(to_gpu(X), to_gpu(w))
    assert close(y, "conv_transpose f32 NCHW n2 c4 i6x7 m5 k2x2 s2", X, w)


def test_onnxruntime() -> None:
    x = np.ascontiguousarray(X.transpose(0, 2, 3, 1))
    y = dialects.ort.Conv(activation="LeakyRelu", activation_params=[0.1])(to_gpu(x), to_gpu(W), to_gpu(B))
    assert close(y, "conv f32 NHWC n2 c4 i6x7 m8 k3x3 b1 act=LeakyRelu(0.1)", x, W, B)


def test_openvino() -> None:
    same = {"strides": [1, 1], "pads_begin": [1, 0], "pads_end": [1, 2], "dilations": [1, 1], "auto_pad": "explicit"}
    y = dialects.openvino.Convolution(**same)(to_gpu(X), to_gpu(W))
    assert close(y, "conv f32 NCHW n2 c4 i6x7 m8 k3x3 p1x0:2", X, W)


def test_operands_that_lie_apart() -> None:
    with pytest.raises(ArgumentError, match="X lies on CUDA device 0, W in the CPU's memory"):
        dialects.onnx.Conv()(to_gpu(X), W)


def test_quantised() -> None:
    """Zero points and scales lie on the GPU, or where one value is all there is, in the CPU's memory."""
    x, w = RNG.integers(0, 256, (2, 4, 6, 7)).astype(np.uint8), RNG.integers(-128, 128, (8, 4, 3, 3)).astype(np.int8)
    sx, zx, sy, zy = np.float32(0.02), np.uint8(117), np.float32(0.5), np.uint8(3)
    sw, zw = RNG.uniform(0.01, 0.02, 8).astype(np.float32), np.zeros(8, np.int8)
    operator = dialects.onnx.QLinearConv(pads=[1, 1, 1, 1])
    want = operator(x, sx, zx, w, sw, zw, sy, zy)
    arrays = [to_gpu(np.asarray(a)) for a in (x, sx, zx, w, sw, zw, sy, zy)]
    np.testing.assert_array_equal(operator(*arrays).numpy(), want)
    for at, here in ((1, sx), (2, zx), (6, sy), (7, zy)):
        arrays[at] = np.asarray(here)
    np.testing.assert_array_equal(operator(*arrays).numpy(), want)
    sums = dialects.onnx.ConvInteger()
    np.testing.assert_array_equal(sums(to_gpu(x), to_gpu(w), zx).numpy(), sums(x, w, zx))


def test_deformable() -> None:
    offset = RNG.uniform(-2, 2, (2, 18, 4, 5)).astype(np.float32)
    operator = dialects.onnx.DeformConv()
    got, want = operator(*map(to_gpu, (X, W, offset, B))), operator(X, W, offset, B)
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-4)  # sums of 36 numbers near 1


def test_causal_in_two_calls() -> None:
    """The state that the first leaves is the past of the second: together they are one long call."""
    x, w = RNG.standard_normal((2, 4, 9)).astype(np.float32), RNG.standard_normal((4, 1, 4)).astype(np.float32)
    operator = dialects.onnx.CausalConvWithState()
    there = to_gpu(w)
    whole, state = operator(to_gpu(x), there)
    first, between = operator(to_gpu(x[:, :, :2]), there)
    second, last = operator(to_gpu(x[:, :, 2:]), there, None, between)
    np.testing.assert_array_equal(np.concatenate([first.numpy(), second.numpy()], axis=2), whole.numpy())
    np.testing.assert_array_equal(last.numpy(), state.numpy())
    np.testing.assert_array_equal(state.numpy(), x[:, :, 6:])


def test_quantities_that_do_not_fit() -> None:
    image, weights = (to_gpu(np.ones(shape, np.uint8)) for shape in ((1, 1, 4, 4), (2, 1, 3, 3)))
    one, zero = np.float32(1), np.uint8(0)
    operator = dialects.onnx.QLinearConv()
    with pytest.raises(ArgumentError, match="sw has 2 values in the CPU's memory, x lies on a GPU; copy it there"):
        operator(image, one, zero, weights, np.ones(2, np.float32), zero, one, zero)
    with pytest.raises(ArgumentError, match="w in the CPU's memory"):
        operator(image, one, zero, np.ones((2, 1, 3, 3), np.uint8), one, zero, one, zero)
