"""Floats: bounds of sums in their own type, what is not finite, large windows by transforms, and the sign of 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal

from polyconv import ndimage
from polyconv.ndimage import running
from polyconv.ndimage.large import Large

Array = np.ndarray[Any, Any]


def kept() -> type:
    """The kind of call that was made, or found, last."""
    return type(next(reversed(running._kept.values())))


@pytest.mark.parametrize("size", [3, 5, 8, 15])
def test_sums_in_float32_keep_their_bound(size: int) -> None:
    """``(taps + 2) 2^-23 sum|w||x|``: also beside numbers a million times larger, and where sums cancel."""
    rng = np.random.default_rng(size)
    x = rng.standard_normal((70, 90)).astype(np.float32)
    x[::7, ::11] *= 1e6
    for w in (rng.standard_normal((size, size)), np.outer(*rng.standard_normal((2, size)))):
        right = scipy.ndimage.correlate(x.astype(np.float64), w)
        scale = scipy.ndimage.correlate(np.abs(x).astype(np.float64), np.abs(w))
        found = ndimage.correlate(x, w)
        assert (np.abs(found - right) <= (w.size + 2) * 2.0**-23 * scale).all()
        np.testing.assert_array_equal(ndimage.correlate(x, w, accuracy="strict"), scipy.ndimage.correlate(x, w))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("size", [3, 4, 9, 27])
def test_what_is_not_finite_stays_where_it_is(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((60, 75)).astype(dtype)
    x[5, 7], x[30, 40], x[31, 42], x[-1, -1] = np.nan, np.inf, -np.inf, np.inf
    for w in (rng.standard_normal((size, size)), np.outer(*np.abs(rng.standard_normal((2, size)))), _gaps(size, rng)):
        right = scipy.ndimage.correlate(x, w)
        for accuracy in ("fast", "strict"):
            found = ndimage.correlate(x, w, accuracy=accuracy)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
            np.testing.assert_array_equal(np.isinf(found), np.isinf(right))
            np.testing.assert_array_equal(found[np.isinf(found)], right[np.isinf(right)])
    for name, arguments in (("gaussian_filter", [2.0]), ("sobel", []), ("laplace", [])):
        right, found = (getattr(m, name)(x, *arguments) for m in (scipy.ndimage, ndimage))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(right))


def _gaps(size: int, rng: np.random.Generator) -> Array:
    w = rng.standard_normal((size, size))
    w[rng.random(w.shape) < 0.3] = 0  # SciPy leaves these out: they meet no NaN
    return w


def test_sums_that_overflow_only_on_their_way() -> None:
    """In float32 the sums of numbers near its end overflow, in SciPy's doubles they do not."""
    x = np.full((40, 50), 3e38, np.float32)
    w = np.array([[1.0, -2, 1], [-2, 4, -2], [1, -2, 1]])
    np.testing.assert_array_equal(ndimage.correlate(x, w), 0)
    np.testing.assert_array_equal(ndimage.uniform_filter(x, 5), x)
    np.testing.assert_array_equal(ndimage.correlate(x, np.full((30, 30), 1 / 900)), x)
    found = ndimage.correlate(x, np.full((2, 2), 1.0))
    assert np.isinf(found).all()


def test_weights_that_floats_do_not_hold() -> None:
    x = np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10)
    for factor in (1e-60, 1e60, 1e-300):
        w = np.array([[1.0, 2], [3, 4]]) * factor
        right = scipy.ndimage.correlate1d(x, w[0], 1)
        np.testing.assert_array_equal(ndimage.correlate1d(x, w[0], 1), right)
        np.testing.assert_array_equal(ndimage.correlate(x, w), scipy.ndimage.correlate(x, w))
    for w in (np.full((3, 3), np.nan), np.array([[np.inf, 1.0], [1.0, 1.0]])):
        np.testing.assert_array_equal(ndimage.correlate(x, w), scipy.ndimage.correlate(x, w))


def test_the_sign_of_zero_and_the_smallest_numbers() -> None:
    x = np.array([-0.0, -0.0, 0.0, 5e-324, -5e-324, 1e-310], np.float64)
    for name, w in (("correlate", [1.0]), ("correlate1d", [1.0]), ("correlate1d", [1.0, 1.0]), ("correlate", [0.5, 1])):
        right, found = (getattr(m, name)(x, w) for m in (scipy.ndimage, ndimage))
        np.testing.assert_array_equal(found.view(np.int64), right.view(np.int64))


LARGE = [((200, 260), (31, 31), "f4"), ((150, 160), (30, 33), "f8"), ((3, 130, 140), (27, 27), "f4"),
         ((5000,), (999,), "f4"), ((40, 44, 50), (9, 9, 10), "f4")]  # fmt: skip


@pytest.mark.parametrize(("shape", "size", "dtype"), LARGE, ids=str)
@pytest.mark.parametrize("mode", ["reflect", "constant", "wrap"])
def test_large_windows(shape: tuple[int, ...], size: tuple[int, ...], dtype: str, mode: str) -> None:
    """Transforms inside and sums at the border, by sums in double of the padded field."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape).astype(dtype), rng.standard_normal(size)
    axes = tuple(range(len(shape) - len(size), len(shape)))
    shift = 4
    found = ndimage.correlate(x, w, mode=mode, cval=2.0, axes=axes, origin=shift)
    pads = [(0, 0)] * (len(shape) - len(size)) + [(n // 2 + shift, n - 1 - n // 2 - shift) for n in size]
    more = {"constant_values": 2.0} if mode == "constant" else {}
    padded = np.pad(x.astype(np.float64), pads, {"reflect": "symmetric"}.get(mode, mode), **more)  # type: ignore[call-overload]
    flipped = w[(slice(None, None, -1),) * w.ndim].reshape((1,) * (len(shape) - len(size)) + size)
    right = scipy.signal.oaconvolve(padded, flipped, "valid", axes=axes)
    assert np.abs(found - right).max() <= 20 * np.finfo(dtype).eps * np.abs(w).sum() * np.abs(x).max()


def test_transforms_are_taken_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is known: what is faster is another thing on each."""
    monkeypatch.setenv("POLYCONV_PROFILE", "zen5")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((180, 190)).astype(np.float32)
    ndimage.correlate(x, rng.standard_normal((31, 31)))
    assert kept() is Large
    for more in ({"accuracy": "strict"}, {"output": np.float64}, {"axes": (1, 0)}):
        ndimage.correlate(x, rng.standard_normal((5, 5) if "axes" in more else (31, 31)), **more)
        assert kept() is not Large
    ndimage.correlate(x, np.ones((31, 31)))  # a product of lines
    assert kept() is not Large


def test_large_windows_of_fields_that_are_not_finite_are_summed() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((90, 95)).astype(np.float32), rng.standard_normal((31, 31))
    x[40, 50] = np.nan
    found = ndimage.correlate(x, w)
    right = scipy.ndimage.correlate(x, w)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-3)
