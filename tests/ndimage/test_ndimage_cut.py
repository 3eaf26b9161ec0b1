"""Sums that are cut to integers: SciPy's to the last one, also where they are formed in floats or line by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.ndimage

from polyconv import ndimage
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.stages import Grid, Types, stages_of

Array = np.ndarray[Any, Any]


def box(size: int, rng: np.random.Generator) -> Array:
    return np.ones((size, size)) / size**2


def bell(size: int, rng: np.random.Generator) -> Array:
    line = np.exp(-np.linspace(-2, 2, size) ** 2)
    return np.outer(line, line) / line.sum() ** 2


def by_chance(size: int, rng: np.random.Generator) -> Array:
    w = rng.random((size, size))
    return w / w.sum()


def gaps(size: int, rng: np.random.Generator) -> Array:
    w = by_chance(size, rng)
    w[rng.random(w.shape) < 0.2] = 0
    return w / w.sum()


def photographs(dtype: str, rng: np.random.Generator) -> dict[str, Array]:
    """Noise, one number all over, black and white, and smooth slopes with flat parts."""
    info = np.iinfo(dtype)
    shape = (61, 190)
    noise = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    slope = scipy.ndimage.gaussian_filter(rng.standard_normal(shape), 6) * 400 + 100
    return {
        "noise": noise, "level": np.full(shape, info.max - 5, dtype), "white": np.full(shape, info.max, dtype),
        "page": np.where(scipy.ndimage.binary_dilation(rng.random(shape) < 0.002, iterations=3), 0, info.max),
        "slope": np.clip(slope, max(info.min, -120), 120).astype(dtype),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "i4"])
@pytest.mark.parametrize("make", [box, bell, by_chance, gaps])
@pytest.mark.parametrize("size", [2, 3, 5, 7, 10, 11, 18, 21, 31])
def test_every_picture(dtype: str, make: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    w = make(size, rng)
    for name, picture in photographs(dtype, rng).items():
        x = picture.astype(dtype)
        for mode, cval in (("reflect", 0.0), ("constant", 7.0)):
            found = ndimage.correlate(x, w, mode=mode, cval=cval)
            right = scipy.ndimage.correlate(x, w, mode=mode, cval=cval)
            np.testing.assert_array_equal(found, right, err_msg=f"{name} {mode}")


def _stages(w: Array, x: str, y: str, *, strict: bool = False) -> tuple[str, ...]:
    one = Pass("window", (0, 1), w, (0, 0), ("reflect", "reflect"))
    found = stages_of([one], Grid(2, {0: 0, 1: 1}, 1), Types(x, y, False, strict, 0.0))
    return tuple(f"{s.tile.panel} {s.tile.form} {s.tile.doubt}".strip() for s in found)


def test_all_ways_are_taken() -> None:
    """Which arithmetic follows from what: so that the tests above cover each."""
    rng = np.random.default_rng(0)
    whole = rng.integers(-4, 5, (5, 5)).astype(float)
    assert _stages(whole, "u8", "u8") == ("float dense",)
    assert _stages(np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256, "u8", "u8") == ("float even", "float even")
    assert _stages(whole * 1e5, "u8", "i64") == ("double dense",)
    assert _stages(box(3, rng), "u8", "u8") == ("double dense",)
    assert _stages(by_chance(31, rng), "u8", "u8") == ("float dense whole",)
    assert _stages(by_chance(31, rng), "u16", "u16") == ("double dense",)
    assert _stages(bell(31, rng), "u8", "u8")[-1].endswith("whole")
    assert _stages(by_chance(5, rng), "f32", "f32") == ("float dense finite",)
    assert _stages(by_chance(5, rng), "f32", "f32", strict=True) == ("double dense",)
    assert _stages(by_chance(5, rng), "f32", "i32") == ("double dense",)
    assert _stages(gaps(5, rng), "f64", "f64") == ("double dense finite",)
    assert _stages(np.eye(5), "f64", "f64") == ("double listed",)
    assert len(_stages(bell(9, rng), "f32", "f32")) == len(_stages(bell(9, rng), "f64", "f64")) == 2


def test_sums_that_wrap() -> None:
    """Exact sums beyond a type's range keep their lowest bits, whatever they were formed in."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (20, 40), dtype=np.uint8, endpoint=True)
    for w in (np.full((3, 3), 3.0), rng.integers(-9, 9, (4, 5)) * 1000.0, np.full((2, 2), 2.0**30)):
        for output in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"):
            found = ndimage.correlate(x, w, output=output)
            np.testing.assert_array_equal(found, scipy.ndimage.correlate(x, w, output=output), err_msg=output)


def test_unsigned_numbers_below_zero_are_large_in_the_next_pass() -> None:
    rng = np.random.default_rng(0)
    for dtype in ("u1", "i1", "i2"):
        x = rng.integers(0, 100, (9, 30)).astype(dtype)
        for output in ("u2", "u4", "u8"):
            for name in ("sobel", "prewitt", "gaussian_laplace", "laplace"):
                arguments = [1.0] if name == "gaussian_laplace" else []
                found = getattr(ndimage, name)(x, *arguments, output=output)
                right = getattr(scipy.ndimage, name)(x, *arguments, output=output)
                np.testing.assert_array_equal(found, right, err_msg=f"{name} {dtype} {output}")


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4"])
@pytest.mark.parametrize("size", [2, 3, 11, 12, 50, 51, 131])
def test_means_of_integers(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (70, 150), dtype=dtype, endpoint=True)
    for mode in ("reflect", "wrap"):
        right = scipy.ndimage.uniform_filter(x, size, mode=mode)
        np.testing.assert_array_equal(ndimage.uniform_filter(x, size, mode=mode), right)
    found = ndimage.uniform_filter1d(x, size, 0, output=np.float32)
    np.testing.assert_array_equal(found, scipy.ndimage.uniform_filter1d(x, size, 0, output=np.float32))
