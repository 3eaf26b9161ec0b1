"""Every filter against scipy.ndimage: bit for bit, and floats that are summed as floats within their bound."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
from calls import MODES, TYPES, Call, by_chance, lying

from polyconv import ndimage

Array = np.ndarray[Any, Any]


def called(module: Any, call: Call, **more: Any) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # roots of negative numbers, which are whole ones' squares that wrapped
        return np.asarray(getattr(module, call.function)(call.input, *call.arguments, **call.keywords, **more))


def ours(call: Call, **more: Any) -> Array:
    return called(ndimage, call, **more)


def scipys(call: Call) -> Array:
    return called(scipy.ndimage, call)


def has_own_sums(call: Call, dtype: np.dtype[Any]) -> bool:
    """Whether SciPy's means come from sums that run along a whole line and are rounded on their way."""
    x = call.input
    rounds = x.dtype.itemsize == 8 and x.dtype.kind in "iu" and bool((np.abs(x.astype(float)) >= 2.0**46).any())
    again = dtype.itemsize == 8 and x.ndim > 1  # what wrapped is large
    return call.function.startswith("uniform") and (dtype.kind == "f" or x.dtype.kind == "f" or rounds or again)


def assert_near(found: Array, right: Array, call: Call) -> None:
    """``k eps sum|w||x|``, where every pass of a filter is a sum of at most a few hundred products."""
    largest = max(float(np.abs(call.input.astype(float)).max()), abs(call.keywords["cval"]))
    bound = 400 * np.finfo(right.dtype).eps * call.amplitude * largest
    if call.function == "gaussian_gradient_magnitude":  # a root: of an error beside 0 too
        bound = max(bound, 20 * largest * float(np.sqrt(np.finfo(right.dtype).eps)))
    with np.errstate(invalid="ignore"):
        apart = np.where(found == right, 0.0, np.abs(found.astype(float) - right.astype(float)))
    assert np.array_equal(np.isnan(found), np.isnan(right))
    assert np.nan_to_num(apart).max() <= bound


@pytest.mark.parametrize("block", range(24))
def test_calls_by_chance(block: int) -> None:
    for seed in range(1000 * block, 1000 * block + 40):
        call = by_chance(seed)
        right, strict, fast = scipys(call), ours(call, accuracy="strict"), ours(call, accuracy="fast")
        assert strict.dtype == fast.dtype == right.dtype, (seed, str(call))
        if has_own_sums(call, right.dtype):
            if right.dtype.kind == "f":
                assert_near(strict, right, call)
                assert_near(fast, right, call)
            continue
        np.testing.assert_array_equal(strict, right, err_msg=f"{seed}: {call}")
        if right.dtype.kind == "f":
            assert_near(fast, right, call)
        else:
            np.testing.assert_array_equal(fast, right, err_msg=f"{seed}: {call}")


@pytest.mark.parametrize("x", TYPES)
@pytest.mark.parametrize("y", TYPES)
def test_types(x: str, y: str) -> None:
    """Any type to any other, by windows, lines and means."""
    rng = np.random.default_rng(0)
    field = (rng.random((9, 21)) * 90).astype(x)
    w = rng.integers(-3, 4, (3, 4)) / 4
    for name, arguments in (("correlate", [w]), ("correlate1d", [w[0]]), ("uniform_filter", [3])):
        call = Call(name, field, arguments, {"output": np.dtype(y)})
        if not (name == "uniform_filter" and y in ("f4", "f8")):
            np.testing.assert_array_equal(ours(call, accuracy="strict"), scipys(call), err_msg=name)


NUMBERS = [0.0, 0.5, 0.999, 1.0, 1.5, 127.9, 128.0, 255.0, 256.7, 2.0**31 - 0.5, 2.0**31, 2.0**32, 2.0**53, 2.0**62,
           2.0**63 - 1024, 2.0**63, 2.0**64 - 2048, 2.0**64, 1e300, np.inf, np.nan]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_are_cut_and_wrap_as_scipys_do(dtype: str) -> None:
    x = np.array([*NUMBERS, *(-n for n in NUMBERS)])
    for name in ("correlate", "correlate1d"):
        right = getattr(scipy.ndimage, name)(x, [1.0], output=np.dtype(dtype))
        np.testing.assert_array_equal(getattr(ndimage, name)(x, [1.0], output=np.dtype(dtype)), right, err_msg=name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("extents", [(1,), (2,), (3, 1), (1, 4), (2, 3, 2)])
def test_windows_larger_than_the_field(mode: str, extents: tuple[int, ...]) -> None:
    """Positions far beyond the ends, where SciPy's own are not always right, by NumPy's padding."""
    rng = np.random.default_rng(len(extents))
    x = rng.integers(-9, 9, extents).astype(np.int32)
    w = rng.integers(-4, 5, [4 * n + 3 for n in extents])
    pads = [(k // 2, k - 1 - k // 2) for k in w.shape]
    name = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge"}.get(mode.removeprefix("grid-"), mode)
    name = {"grid-mirror": "symmetric"}.get(mode, name.removeprefix("grid-"))
    padded = np.pad(x, pads, name, **({"constant_values": 5} if name == "constant" else {}))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape)
    right = (windows * w).sum(tuple(range(x.ndim, 2 * x.ndim)))
    np.testing.assert_array_equal(ndimage.correlate(x, w, mode=mode, cval=5), right)
    for axis in range(x.ndim):
        line = w[tuple(slice(None) if a == axis else 0 for a in range(x.ndim))]
        found = ndimage.correlate1d(x, line, axis, mode=mode, cval=5)
        np.testing.assert_array_equal(found, scipy.ndimage.correlate1d(x, line, axis, mode=mode, cval=5))


def test_a_mode_and_an_origin_for_every_axis() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 8, 7))
    for modes in itertools.permutations(("constant", "wrap", "constant", "mirror"), 3):
        for name, arguments in (("gaussian_filter", [1.5]), ("sobel", [0]), ("prewitt", [1]), ("laplace", [])):
            call = Call(name, x, arguments, {"mode": modes, "cval": 1.25})
            np.testing.assert_array_equal(ours(call), scipys(call), err_msg=f"{name} {modes}")
    modes = ("reflect", "wrap", "nearest")
    for name, arguments in (("gaussian_filter", [1.5]), ("sobel", []), ("laplace", []), ("gaussian_laplace", [1.0])):
        call = Call(name, x, arguments, {"mode": modes})
        np.testing.assert_array_equal(ours(call), scipys(call), err_msg=name)
    call = Call("uniform_filter", x, [(3, 4, 5)], {"mode": modes, "origin": (1, -2, 0)})
    np.testing.assert_allclose(ours(call), scipys(call), rtol=0, atol=1e-14)
    call = Call("gaussian_filter", x, [(0.5, 0, 2.0)], {"order": (0, 1, 2), "radius": (1, 2, 7)})
    np.testing.assert_array_equal(ours(call), scipys(call))
    # windows take one, too: the axes are padded one after the other
    w = rng.integers(-3, 4, (3, 5, 2)).astype(float)
    padded = x
    for axis, (mode, size) in enumerate(zip(("symmetric", "wrap", "edge"), w.shape, strict=True)):
        pads = [(size // 2, size - 1 - size // 2) if a == axis else (0, 0) for a in range(3)]
        padded = np.pad(padded, pads, mode)
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape)
    right = np.einsum("abcijk,ijk->abc", windows, w)
    np.testing.assert_allclose(ndimage.correlate(x, w, mode=modes), right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_pictures_with_channels_and_batches_of_them(dtype: str) -> None:
    rng = np.random.default_rng(0)
    batch = (rng.random((2, 33, 70, 3)) * 255).astype(dtype)
    w = rng.random((5, 4))
    of_planes = np.empty_like(batch)
    for n in range(2):
        for c in range(3):
            of_planes[n, :, :, c] = scipy.ndimage.correlate(batch[n, :, :, c], w, mode="mirror")
    planes = np.ascontiguousarray(np.moveaxis(batch, -1, 1))
    for found in (
        ndimage.correlate(batch, w, mode="mirror", axes=(1, 2), accuracy="strict"),
        np.moveaxis(ndimage.correlate(planes, w, mode="mirror", axes=(-2, -1), accuracy="strict"), 1, -1),
        np.stack([ndimage.correlate(one, w, mode="mirror", axes=(0, 1), accuracy="strict") for one in batch]),
    ):
        np.testing.assert_array_equal(found, of_planes)
    edges = ndimage.sobel(batch, 1, axes=(1, 2), accuracy="strict")
    for n in range(2):
        for c in range(3):
            np.testing.assert_array_equal(edges[n, :, :, c], scipy.ndimage.sobel(batch[n, :, :, c], 0))


@pytest.mark.parametrize("name", ["correlate", "convolve", "correlate1d", "convolve1d"])
def test_complex_numbers(name: str) -> None:
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Array:
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    size = (3, 4) if name in ("correlate", "convolve") else (5,)
    for x, w, cval in (
        (numbers(9, 10), rng.standard_normal(size), 1 + 2j),
        (rng.standard_normal((9, 10)), numbers(*size), 1.5),
        (numbers(9, 10), numbers(*size), 2j),
        (numbers(9, 10).astype(np.complex64), numbers(*size), 0.5),
    ):
        call = Call(name, lying(rng, x), [w], {"mode": "constant", "cval": cval})
        found, right = ours(call, accuracy="strict"), scipys(call)
        assert found.dtype == right.dtype
        np.testing.assert_array_equal(found, right)


def test_more_complex_filters() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 10)) + 1j * rng.standard_normal((9, 10))
    for name, arguments in (("gaussian_filter", [1.0]), ("sobel", []), ("uniform_filter", [3]), ("laplace", [])):
        call = Call(name, x, arguments, {"mode": "wrap"})
        np.testing.assert_allclose(ours(call), scipys(call), rtol=0, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("dtype", ["f2", "bfloat16"])
def test_half_floats_which_scipy_does_not_take(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 30)).astype(kind)
    w = rng.standard_normal((3, 3))
    found = ndimage.correlate(x, w)
    right = scipy.ndimage.correlate(x.astype(np.float64), w)
    eps = float(ml_dtypes.finfo(kind).eps)
    assert found.dtype == kind
    bound = eps / 2 * np.abs(right) + 20 * 2.0**-23 * np.abs(w).sum() * 5 + float(ml_dtypes.finfo(kind).tiny)
    assert (np.abs(found.astype(np.float64) - right) <= bound).all()
