"""Pictures to tensors and back, without any model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyconv.cli import images
from polyconv.errors import ArgumentError


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 12, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    return tmp_path / "p.png"


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64, np.float16])
@pytest.mark.parametrize("layout", ["first", "last"])
def test_colours_go_where_the_input_has_them(picture: Path, dtype: type, layout: str) -> None:
    pixels = np.asarray(Image.open(picture))
    shape = (1, 3, "h", "w") if layout == "first" else ("n", None, None, 3)
    tensor = images.read(picture, shape, np.dtype(dtype), "x")
    want = np.moveaxis(pixels, 2, 0)[None] if layout == "first" else pixels[None]
    assert tensor.dtype == dtype
    assert tensor.flags.c_contiguous
    scale = 1 if np.dtype(dtype).kind in "iu" else 255
    np.testing.assert_allclose(tensor.astype(np.float64) * scale, want, rtol=2e-3, atol=0)


def test_grey_is_wanted_where_the_input_has_one_channel(picture: Path) -> None:
    tensor = images.read(picture, (1, 1, 10, 12), np.dtype(np.uint8), "x")
    assert np.array_equal(tensor[0, 0], np.asarray(Image.open(picture).convert("L")))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((1, 8, 10, 12), "f4"), ((3, 10, 12), "f4"), ((1, 3, 10, 12), "i1"), ((), "f4")]
)
def test_inputs_that_are_no_pictures_are_refused_by_name(
    picture: Path, shape: tuple[int, ...], dtype: str
) -> None:
    with pytest.raises(ArgumentError, match="input pixels"):
        images.read(picture, shape, np.dtype(dtype), "pixels")


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (1, 3, 9, 11)).astype(np.float32) / 255
    for layout in (pixels, np.moveaxis(pixels, 1, 3)):
        assert images.looks_like_image(layout)
        assert images.write(tmp_path / "y.png", layout) == (0.0, 1.0)
        back = images.read(tmp_path / "y.png", (1, 3, 9, 11), np.dtype(np.float32), "y")
        assert np.array_equal(back, pixels)


def test_other_ranges_are_stretched_and_told(tmp_path: Path) -> None:
    values = np.linspace(-3, 5, 64).reshape(1, 1, 8, 8)
    assert images.write(tmp_path / "y.png", values) == (-3.0, 5.0)
    shown = np.asarray(Image.open(tmp_path / "y.png"))
    assert (shown.min(), shown.max()) == (0, 255)


def test_nan_and_infinities_do_not_set_the_scale(tmp_path: Path) -> None:
    values = np.array([[np.nan, np.inf], [-np.inf, 0.5]])
    assert images.write(tmp_path / "y.png", values) == (0.0, 1.0)
    assert np.asarray(Image.open(tmp_path / "y.png")).tolist() == [[0, 255], [0, 128]]


def test_channels_form_a_sheet_in_reading_order(tmp_path: Path) -> None:
    maps = np.arange(5, dtype=np.float32)[None, :, None, None] / 5 + np.zeros((1, 5, 2, 5), np.float32)
    images.write(tmp_path / "y.png", maps)
    sheet = np.asarray(Image.open(tmp_path / "y.png"))
    assert sheet.shape == (4, 15)
    assert [round(v / 51) for v in sheet[::2, ::5].ravel()] == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("shape", [(1, 8, 9, 9), (1, 3, 4, 9), (3, 9, 9), (17, 3, 9, 9), (0, 3, 9, 9)])
def test_what_does_not_look_like_a_picture(shape: tuple[int, ...]) -> None:
    assert not images.looks_like_image(np.zeros(shape))
