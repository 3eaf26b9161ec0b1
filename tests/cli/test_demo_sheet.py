"""The demo's sheet: every output is on it, and no picture has a frame of the zeros that convolutions pad with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]


def _python(script: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src"))}
    subprocess.run([sys.executable, ROOT / "examples" / script, folder], env=environment, check=True)


def test_the_sheet(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    _python("make_filter_bank.py", tmp_path)
    words = ["--input", f"image={tmp_path}/photo.png", "--save", tmp_path / "onnx", "--no-images"]
    assert polyconv("run", tmp_path / "filter_bank.onnx", *words).code == 0
    _python("contact_sheet.py", tmp_path)
    with Image.open(tmp_path / "contact-sheet.png") as sheet:
        assert sheet.width > 1000 and sheet.height > 1000
    pictures = {file.stem: np.asarray(Image.open(file)).astype(float) for file in (tmp_path / "pictures").iterdir()}
    assert len(pictures) == 16
    photo = pictures["photo"]
    assert photo.shape == (512, 512, 3)
    for name in ("smooth", "boxed", "half", "quarter", "zoomed"):
        rim, right = pictures[name][0].mean(axis=0), photo[:2].mean(axis=(0, 1))
        assert np.abs(rim - right).max() < 8, f"{name}: zeros beyond the border would darken its first row"
    for name in ("laplace", "coarse"):
        assert abs(pictures[name][0].mean() - 127) < 30, f"{name}: zeros beyond the border would be an edge"
    assert pictures["gabor"].max() == 255 and np.mean(pictures["gabor"] > 64) > 0.03, "stripes can be seen"
