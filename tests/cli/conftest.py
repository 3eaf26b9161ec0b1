"""What the tests of the command line share: calling it, and the filter bank of the examples."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from done import Done

from polyconv.cli import main
from polyconv.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in SETTINGS.values():
        for variable in row.variables:
            if variable not in ("POLYCONV_CHECK", "POLYCONV_TARGET", "POLYCONV_CACHE_DIR", "POLYCONV_WISDOM"):
                monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def polyconv(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``polyconv("run", "model.onnx")`` as the shell would call it."""

    def call(*words: object) -> Done:
        capfd.readouterr()
        code = main([str(word) for word in words])
        return Done(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photo.png, a small part of the example's photograph, and the bank in both formats."""
    from PIL import Image
    from skimage import data

    example = runpy.run_path(str(ROOT / "examples" / "make_filter_bank.py"))
    folder = tmp_path_factory.mktemp("bank")
    photo = np.ascontiguousarray(data.astronaut()[:96, 160:288])
    Image.fromarray(photo).save(folder / "photo.png")
    example["write_onnx"](folder / "filter_bank.onnx", example["the_bank"]())
    example["write_openvino"](folder / "filter_bank.xml", example["the_bank"](), *photo.shape[:2])
    return folder
