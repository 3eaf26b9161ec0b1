"""Outputs to a folder, whole or not at all.

All files are written to a temporary folder beside the target and moved in place when the last one
is complete, so an interrupted run leaves no half-written file.  It must not know what made them.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.cli import images
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError

__all__ = ["Saved", "names_of", "save"]


@dataclass(frozen=True, slots=True)
class Saved:
    """The files of one output; ``black`` and ``white`` are the values at the ends of the picture's scale."""

    array: Path
    picture: Path | None = None
    black: float | None = None
    white: float | None = None


def save(
    folder: Path, outputs: Mapping[str, NDArray[Any]], *, pictures: bool | None = None
) -> dict[str, Saved]:
    """Write every output as NAME.npy, and as NAME.png where it looks like a picture.

    Parameters
    ----------
    folder : Path
        Made when it does not exist; files of the same names are replaced, others stay.
    outputs : mapping
        Arrays by name; characters that file systems dislike become ``_``.
    pictures : bool, optional
        True writes a picture of every output with 2 to 4 axes, False of none; by default of those
        with 4 axes, 1 or 3 channels, and at least 8 rows and columns.

    Raises
    ------
    ArgumentError
        If the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"--save {str(folder)!r} is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    saved: dict[str, Saved] = {}
    draft = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        for name, stem in zip(outputs, names_of(outputs), strict=True):
            saved[name] = _write(draft, folder, stem, outputs[name], pictures)
        for file in draft.iterdir():
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return saved


def _write(draft: Path, folder: Path, stem: str, values: NDArray[Any], pictures: bool | None) -> Saved:
    array = f"{stem}.npy"
    # bfloat16 is no type of the .npy format: float32 holds its values exactly
    np.save(draft / array, values.astype(np.float32) if values.dtype.name == "bfloat16" else values)
    can = 2 <= values.ndim <= 4 and values.size > 0 and values.dtype.kind in "iufV"
    if can and (images.looks_like_image(values) if pictures is None else pictures):
        black, white = images.write(draft / f"{stem}.png", values)
        return Saved(folder / array, folder / f"{stem}.png", black, white)
    return Saved(folder / array)


def names_of(words: Iterable[str]) -> list[str]:
    """A file name of its own for every word: without what file systems dislike, and distinct whatever the case."""
    names, used = list[str](), set[str]()
    for name in words:
        plain = re.sub(r"[^\w.+-]", "_", name).lstrip(".")[:100] or "output"
        stem, number = plain, 1
        # two names that differ in case only share a file on some systems
        while stem.lower() in used:
            number += 1
            stem = f"{plain}-{number}"
        names.append(stem)
        used.add(stem.lower())
    return names
