"""``polyconv bench --ndimage``: a table, a document, and what is said of engines that are not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from done import Done

from polyconv.benchmark import pictures

FEW = ("bench", "--ndimage", "--match", "^512x512 (u8|f32) 3x3 random", "--seconds", "0.05", "--rounds", "2")


def test_a_table_with_ratios(polyconv: Callable[..., Done]) -> None:
    done = polyconv(*FEW)
    assert done.code == 0
    assert "512x512 u8" in done.out and "512x512 f32" in done.out
    assert "time of scipy over polyconv's" in done.out
    assert "0 results" in done.out  # differ from SciPy's


def test_the_same_as_a_document(polyconv: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "filters.json"
    done = polyconv(*FEW, "--save", file)
    assert done.code == 0
    kept = json.loads(file.read_text())
    shown = polyconv(*FEW, "--json").json
    for found in (kept, shown):
        assert found["schema_version"] == 1 and found["threads"] == 1
        of_bytes, of_floats = found["filters"]
        assert of_bytes["case"] == {"size": 512, "kernel": 3, "dtype": "u8", "weights": "random"}
        assert of_bytes["differing"] == 0
        assert of_floats["difference"] <= 11  # the bound of 9 taps, in eps sum|w||x|
        assert all(seconds > 0 for case in found["filters"] for seconds in case["seconds"].values())


def test_what_is_not_installed_is_named(polyconv: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_MODULES", {"opencv": "no_such_module", "scipy": "neither.this"})
    done = polyconv(*FEW)
    assert done.code == 0
    assert "opencv is not installed; install polyconv[bench]" in done.err
    assert "scipy is not installed; install polyconv[bench]" in done.err


def test_cases_that_are_none(polyconv: Callable[..., Done]) -> None:
    done = polyconv("bench", "--ndimage", "--match", "77x77")
    assert done.code == 2
    assert "fits none of the 144 filters, such as '512x512 u8 3x3 random'" in done.err


def test_scipy_filters_some_rows_of_a_large_picture() -> None:
    [case] = pictures.cases("^4096x4096 u8 31x31 whole")
    assert str(case) == "4096x4096 u8 31x31 whole"
    small = pictures.Case(600, 31, "u8", "whole")
    times = pictures.measure(small, 1, 0.01, 1, 0)
    assert times.scipy_rows < 600
    assert times.differing == 0
