"""What holds an array without being one of NumPy's: DLPack alone, other devices, lists, pictures."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyconv
from polyconv import ArgumentError, DtypeError, dialects

Array = np.ndarray[Any, Any]

X = np.arange(2 * 5 * 8 * 9, dtype=np.float32).reshape(2, 5, 8, 9) % 3
W = np.arange(7 * 5 * 3 * 3, dtype=np.float32).reshape(7, 5, 3, 3) % 2
B = np.arange(7, dtype=np.float32)
RIGHT = polyconv.conv(X, W, B, accuracy="strict")


class OverDlpack:
    """An array that only DLPack leads to, as of libraries without NumPy."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


class Elsewhere(OverDlpack):
    """The same in the memory of a device, which no CPU reads."""

    device = 2, 1

    def __dlpack__(self, **keywords: Any) -> Any:
        raise BufferError("this memory is not the CPU's")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OnMetal(Elsewhere):
    device = 8, 0


class OnSomethingNew(Elsewhere):
    device = 77, 0


# DLPack


def test_dlpack_alone_is_enough() -> None:
    layer = polyconv.Conv(OverDlpack(W), OverDlpack(B), accuracy="strict")
    for _ in range(2):
        np.testing.assert_array_equal(layer(OverDlpack(X)), RIGHT)
    turned = OverDlpack(np.ascontiguousarray(X.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2))
    np.testing.assert_array_equal(layer(turned), RIGHT)
    residual = np.ones_like(RIGHT)
    np.testing.assert_array_equal(layer(X, residual=OverDlpack(residual)), RIGHT + 1)
    out = np.zeros_like(RIGHT)
    guest = OverDlpack(out)
    assert layer(X, out=guest) is guest
    np.testing.assert_array_equal(out, RIGHT)
    y = dialects.onnx.Conv(accuracy="strict")(OverDlpack(X), OverDlpack(W), OverDlpack(B))
    np.testing.assert_array_equal(y, RIGHT)


def test_dlpack_alone_in_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    x, w = (torch.from_numpy(a).to(torch.bfloat16) for a in (X, W))
    y = polyconv.conv(OverDlpack(x), OverDlpack(w))
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y.astype(np.float32), polyconv.conv(X, W, accuracy="strict"))


@pytest.mark.parametrize(
    ("guest", "device"),
    [(Elsewhere, "CUDA device 1"), (OnMetal, "Metal device 0"), (OnSomethingNew, "DLPack kind 77 device 0")],
)
@pytest.mark.parametrize("name", ["x", "w", "b", "residual", "out"])
def test_other_devices_are_named(guest: type[Elsewhere], device: str, name: str) -> None:
    given: dict[str, Any] = {"x": X, "w": W, "b": B, "residual": RIGHT.copy()}
    given[name] = guest(np.zeros(1))
    by_name = rf"{name} lies in the memory of {device}.*CPU"
    apart = rf"({name} lies|, {name}) on {device}.*copy one of them"  # all of them there would do
    with pytest.raises(ArgumentError, match=apart if guest is Elsewhere and name in "xw" else by_name):
        polyconv.conv(**given)


def test_tensors_without_memory_or_with_another_form_of_it() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.empty(X.shape, device="meta"), torch.from_numpy(X).to_sparse()):
        with pytest.raises(ArgumentError, match="x cannot be read as an array"):
            polyconv.conv(tensor, W)


def test_out_must_be_memory() -> None:
    class Copies:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
            return np.zeros(RIGHT.shape, np.float32)

    for out in (RIGHT.tolist(), Copies()):
        with pytest.raises(ArgumentError, match=r"out is of type .*cannot be written; pass an array"):
            polyconv.conv(X, W, out=out)


# Lists


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int16, np.int64])
def test_lists_take_the_type_of_the_array_they_meet(dtype: Any) -> None:
    x, w = X.astype(dtype), W.astype(dtype)
    right = polyconv.conv(x, w, accuracy="strict")
    for y in (
        polyconv.conv(X.astype(int).tolist(), w, accuracy="strict"),
        polyconv.conv(x, W.astype(int).tolist(), accuracy="strict"),
        polyconv.Conv(w, accuracy="strict")(X.astype(int).tolist()),
    ):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, right)
    with_bias = polyconv.conv(x, w, B.astype(int).tolist(), accuracy="strict")
    np.testing.assert_array_equal(with_bias, polyconv.conv(x, w, B.astype(dtype), accuracy="strict"))
    residual = np.ones(right.shape, int).tolist()
    with_residual = polyconv.conv(x, w, residual=residual, accuracy="strict")
    np.testing.assert_array_equal(
        with_residual, polyconv.conv(x, w, residual=np.ones(right.shape, dtype), accuracy="strict")
    )


def test_two_lists_take_the_type_of_all_their_numbers() -> None:
    assert polyconv.conv([[[1, 2, 3]]], [[[0.5, 0.5]]]).tolist() == [[[1.5, 2.5]]]
    whole = polyconv.conv([[[1, 2, 3]]], [[[1, 1]]])
    assert (whole.dtype, whole.tolist()) == (np.int64, [[[3, 5]]])
    with_bias = polyconv.conv(np.ones((1, 1, 3), np.uint8), np.ones((1, 1, 3), np.uint8), [1000], out_dtype="int32")
    assert with_bias.tolist() == [[[1003]]]


def test_numbers_that_the_type_does_not_hold_are_not_bent() -> None:
    pixels = np.ones((1, 1, 3), np.uint8)
    with pytest.raises(ArgumentError, match="w has values from -1 to 1, which uint8 does not hold"):
        polyconv.conv(pixels, [[[-1, 0, 1]]], out_dtype=np.int32)
    with pytest.raises(DtypeError, match="x has type u8, w has type f64"):
        polyconv.conv(pixels, [[[0.5, 0.5]]], out_dtype=np.int32)
    with pytest.raises(ArgumentError, match="which float16 does not hold"):
        polyconv.conv([[[1e6]]], np.ones((1, 1, 1), np.float16))
    infinite = polyconv.conv([[[float("inf"), 1]]], np.ones((1, 1, 1), np.float16))
    assert infinite.tolist() == [[[float("inf"), 1.0]]]
    # arrays in a list have types of their own, which are not lowered in silence
    with pytest.raises(DtypeError, match="f64"):
        polyconv.conv([np.ones((1, 3))], np.ones((1, 1, 2), np.float32))
    with pytest.raises(ArgumentError, match="x cannot be read"):
        polyconv.conv([[[1.0], [1.0, 2.0]]], np.ones((1, 1, 1), np.float32))


# Pictures


def test_a_picture_lacks_a_batch_and_is_told_so() -> None:
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.full((8, 9, 3), 7, np.uint8))
    w = np.ones((3, 1, 3, 3), np.uint8)
    for call in (
        lambda: polyconv.conv(picture, w, groups=3, layout="NHWC", overflow="saturate"),
        lambda: polyconv.Conv(w, groups=3, layout="NHWC", overflow="saturate")(picture),
        lambda: polyconv.conv(picture, w, groups=3, overflow="saturate"),
    ):
        with pytest.raises(ArgumentError, match=r"lack the axis of the batch\? numpy\.asarray\(x\)\[None\]"):
            call()
    y = polyconv.conv(np.asarray(picture)[None], w, groups=3, layout="NHWC", out_dtype=np.int32)
    assert (y == 63).all()
    with pytest.raises(ArgumentError, match=r"numpy\.asarray\(x\)\[None, None\]"):
        polyconv.conv(picture.convert("L"), w[:1], overflow="wrap")
