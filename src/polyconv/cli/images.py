"""Pictures to tensors and tensors to pictures.

A picture is a PIL image, a tensor an array of one batch element with its channels first or last;
floats run from 0 (black) to 1 (white).  It must not know of models or options.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.errors import ArgumentError

__all__ = ["SUFFIXES", "looks_like_image", "read", "write"]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})
"""Ends of the names of files that are pictures."""

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SMALLEST = 8  # a map of fewer rows or columns says nothing to the eye


def _channel_axis(shape: Sequence[object]) -> int | None:
    """Axis that holds the colours of a 4-axis shape: 1 or 3; None if neither has a fitting extent."""
    return next((axis for axis in (1, 3) if len(shape) == 4 and shape[axis] in _MODES), None)


def read(path: Path, shape: Sequence[object], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Read a picture as the tensor that an input takes.

    Parameters
    ----------
    path : Path
        A .png or .jpg file.
    shape : sequence of int, str or None
        The input's; its channel axis (1, else 3) says how many colours are wanted: 1 grey, 3 RGB,
        4 RGBA.
    dtype : numpy.dtype
        The input's; floats are scaled to 0..1, integers keep 0..255.
    name : str
        The input's, for messages.

    Raises
    ------
    ArgumentError
        If the input does not look like a picture, or the file is none.
    """
    from PIL import Image, UnidentifiedImageError

    axis = _channel_axis(shape)
    if axis is None:
        raise ArgumentError(
            f"input {name} has shape {list(shape)}: a picture needs 4 axes with 1, 3 or 4 channels on axis 1 "
            f"or 3; give {path.name} as an .npy file"
        )
    if dtype.kind in "iu" and np.iinfo(dtype).max < 255:
        raise ArgumentError(f"input {name} has dtype {dtype}, which cannot hold 0..255; give an .npy file")
    colours = shape[axis]
    assert isinstance(colours, int)
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert(_MODES[colours]))
    except UnidentifiedImageError:
        raise ArgumentError(f"input {name}: {path} is not a picture that Pillow can read") from None
    tensor = pixels.reshape(1, *pixels.shape[:2], colours)
    if dtype.kind not in "iu":
        tensor = (tensor / np.float32(255)).astype(dtype)
    if axis == 1:
        tensor = np.moveaxis(tensor, 3, 1)
    return np.ascontiguousarray(tensor, dtype=dtype)


def looks_like_image(values: NDArray[Any]) -> bool:
    """Whether an output is one picture, or a few pictures of a batch, with 1 or 3 colours."""
    axis = _channel_axis(values.shape)
    if axis is None or values.shape[axis] == 4 or not 1 <= values.shape[0] <= 16:
        return False
    return min(_sides(values, axis)) >= _SMALLEST


def _sides(values: NDArray[Any], axis: int) -> tuple[int, int]:
    return (values.shape[2], values.shape[3]) if axis == 1 else (values.shape[1], values.shape[2])


def write(path: Path, values: NDArray[Any]) -> tuple[float, float]:
    """Write a tensor of 2 to 4 axes as a .png file.

    One picture where it has 1 or 3 channels; else a sheet with one grey picture per channel, and
    pictures of a batch one below the other.

    Parameters
    ----------
    path : Path
        The file.
    values : ndarray
        Channels on axis 1, or on axis 3 where only that has 1 or 3.

    Returns
    -------
    tuple of float
        The values shown as black and as white: 0 and 1 (floats) or 0 and 255 (integers) where they
        hold all values, else the smallest and the largest finite value.
    """
    from PIL import Image

    tensor = values.astype(np.float64)
    if tensor.ndim < 4:
        tensor = tensor.reshape((1,) * (4 - tensor.ndim) + tensor.shape)
    black, white = _range(tensor, 255.0 if values.dtype.kind in "iu" else 1.0)
    scaled = (tensor - black) * (255.0 / (white - black))
    grey = np.rint(np.nan_to_num(np.clip(scaled, 0.0, 255.0))).astype(np.uint8)
    if _channel_axis(grey.shape) == 3:
        grey = np.moveaxis(grey, 3, 1)
    if grey.shape[1] == 3:
        rows = [np.moveaxis(picture, 0, 2) for picture in grey]
    else:
        rows = [_sheet(picture) for picture in grey]
    Image.fromarray(np.concatenate(rows)).save(path, format="PNG")
    return black, white


def _range(tensor: NDArray[Any], full: float) -> tuple[float, float]:
    finite = tensor[np.isfinite(tensor)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, full)
    if low >= 0.0 and high <= full:
        return 0.0, full
    return (low, high) if high > low else (low, low + 1.0)


def _sheet(maps: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Lay maps [c, h, w] out in rows, as nearly square as their number allows."""
    c, h, w = maps.shape
    across = math.ceil(math.sqrt(c))
    down = math.ceil(c / across)
    filled = np.zeros((down * across, h, w), np.uint8)
    filled[:c] = maps
    return filled.reshape(down, across, h, w).swapaxes(1, 2).reshape(down * h, across * w)
