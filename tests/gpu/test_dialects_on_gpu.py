"""Operators of the dialects with operands on a GPU: the answers are those of the CPU, errors name what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from virtual_gpu import virtual_gpu

from polyconv import dialects
from polyconv.errors import ArgumentError, Unsupported
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


def test_what_is_computed_on_the_cpu() -> None:
    image, weights = (to_gpu(np.ones(shape, np.uint8)) for shape in ((1, 1, 4, 4), (1, 1, 3, 3)))
    scale, zero = to_gpu(np.ones((), np.float32)), to_gpu(np.zeros((), np.uint8))
    with pytest.raises(Unsupported, match=r"QLinearConv .*computed on the CPU; copy its inputs there"):
        dialects.onnx.QLinearConv()(image, scale, zero, weights, scale, zero, scale, zero)
