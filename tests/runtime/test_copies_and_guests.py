"""Layers and plans that are copied and pickled, and tensors of another library in and out."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyconv

Array = np.ndarray[Any, Any]


def whole(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Small whole numbers, none negative: exact in every type and every order of additions."""
    return (np.arange(np.prod(shape)) % 3).reshape(shape).astype(dtype)


# Copies


def _copies(thing: Any) -> list[Any]:
    made = [pickle.loads(pickle.dumps(thing, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    return [*made, copy.copy(thing), copy.deepcopy(thing)]


def test_layers_travel_as_what_they_were_made_from() -> None:
    w, b, x = whole((6, 4, 3, 3)), whole((6,)), whole((1, 4, 9, 9))
    layers = [
        (polyconv.Conv(w, b, strides=2, pads=[(0, 1), (1, 0)], activation="LeakyRelu", activation_params=[0.5]), x),
        (polyconv.Conv(w, auto_pad="SAME_LOWER", accuracy="strict", threads=1, workspace_limit=0), x),
        (polyconv.Conv(w, b, layout="NHWC"), np.ascontiguousarray(np.moveaxis(x, 1, -1))),
        (polyconv.ConvTranspose(whole((4, 3, 2, 2)), strides=2, output_padding=1), x),
        (polyconv.ConvTranspose(whole((4, 3, 3, 3)), strides=2, output_shape=[18, 17], auto_pad="SAME_UPPER"), x),
        (polyconv.Conv(w.astype(np.int8), out_dtype=np.int32, overflow="saturate"), x.astype(np.int8)),
        (polyconv.Conv(w.astype(ml_dtypes.bfloat16), out_dtype=np.float32), x.astype(ml_dtypes.bfloat16)),
    ]
    for layer, given in layers:
        y = layer(given)
        for other in _copies(layer):
            assert type(other) is type(layer)
            assert other.problem == layer.problem
            assert other(given).tobytes() == y.tobytes()
            assert other.plan(given.shape) == layer.plan(given.shape)
            assert repr(other) == repr(layer)  # both have been called


def test_a_copy_has_the_weights_of_the_layer_not_of_the_array() -> None:
    w, x = whole((2, 1, 3)), whole((1, 1, 8))
    layer = polyconv.Conv(w)
    y = layer(x)
    w[...] = 100
    for other in (layer, *_copies(layer)):
        np.testing.assert_array_equal(other(x), y)


def test_plans_and_problems_travel() -> None:
    plan = polyconv.plan(polyconv.Problem.parse("conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1x1 b1 act=Relu"))
    for other in _copies(plan):
        assert other == plan
        assert str(other) == str(plan)


# Guests


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    w, x = whole((7, 5, 3, 3)), whole((2, 5, 8, 9))
    layer = polyconv.Conv(w, pads=1, accuracy="strict")  # by which whole numbers stay whole
    right = layer(x)
    for tensor in (torch.from_numpy(x), torch.from_numpy(x).contiguous(memory_format=torch.channels_last),
                   torch.from_numpy(x).flip(3).flip(3), torch.from_numpy(x)[:, :, :, :]):  # fmt: skip
        y = layer(tensor)
        assert type(y) is np.ndarray
        assert y.flags.c_contiguous
        np.testing.assert_array_equal(y, right)
        for memory_format in (torch.contiguous_format, torch.channels_last):
            out = torch.zeros(right.shape).contiguous(memory_format=memory_format)
            for _ in range(2):
                out.zero_()
                assert layer(tensor, out=out) is out
                np.testing.assert_array_equal(out.numpy(), right)
    at_once = polyconv.conv(torch.from_numpy(x), torch.from_numpy(w), pads=1, accuracy="strict")
    np.testing.assert_array_equal(at_once, right)
    np.testing.assert_array_equal(polyconv.Conv(torch.nn.Conv2d(5, 7, 3).weight.detach(), pads=1)(x).shape, right.shape)


def test_torch_bfloat16_comes_over_dlpack_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(2 * 3 * 8 * 9).remainder(3).reshape(2, 3, 8, 9).to(torch.bfloat16)
    w = torch.ones((4, 3, 3, 3), dtype=torch.bfloat16)
    right = polyconv.conv(x.float().numpy(), w.float().numpy())
    assert right.max() < 256  # exact in 8 bits
    layer = polyconv.Conv(w)
    for tensor in (
        x,
        x.contiguous(memory_format=torch.channels_last),
        x[:, :, :, 1:][:, :, :, :],
        x.permute(0, 1, 3, 2),
    ):
        same = polyconv.conv(tensor.float().numpy(), w.float().numpy())
        y = layer(tensor)
        assert y.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(y.astype(np.float32), same)
    out = torch.full((2, 4, 6, 7), 9, dtype=torch.bfloat16)
    assert layer(x, out=out) is out
    np.testing.assert_array_equal(out.float().numpy(), right)
    before = x.clone()
    del x
    gc.collect()
    np.testing.assert_array_equal(layer(before).astype(np.float32), right)


def test_torch_tensors_that_want_gradients_are_refused() -> None:
    torch = pytest.importorskip("torch")
    layer = polyconv.Conv(whole((7, 5, 3, 3)))
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(polyconv.ArgumentError, match=r"x requires a gradient.*x\.detach\(\)"):
            layer(torch.ones((1, 5, 8, 8), dtype=dtype, requires_grad=True))
    with pytest.raises(polyconv.ArgumentError, match=r"w requires a gradient.*w\.detach\(\)"):
        polyconv.Conv(torch.nn.Conv2d(5, 7, 3).weight)


def test_a_torch_tensor_is_not_freed_while_its_result_is_computed() -> None:
    torch = pytest.importorskip("torch")
    layer = polyconv.Conv(np.ones((4, 3, 3, 3), ml_dtypes.bfloat16))
    for _ in range(50):
        y = layer(torch.ones((1, 3, 64, 64), dtype=torch.bfloat16))
        assert (y == 27).all()
