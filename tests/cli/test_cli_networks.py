"""``polyconv bench --networks``: whole models in a table and a document, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Done

from polyconv.benchmark.networks import Measure, Network, difference, summary

SHORT = ("--seconds", "0.2", "--rounds", "2")


def test_a_table_and_a_document(polyconv: Callable[..., Done], bank: Path, tmp_path: Path) -> None:
    file = tmp_path / "networks.json"
    words = ("bench", "--networks", bank / "filter_bank.onnx", "--dim", "height=32", "--dim", "width=32")
    done = polyconv(*words, *SHORT, "--save", file)
    assert done.code == 0, done.err
    assert "filter_bank" in done.out and "geometric mean of 1" in done.out
    document = json.loads(file.read_text())
    [row] = document["networks"]
    assert document["threads"] == 1 and document["summary"]["compared"] == 1
    assert set(row["measures"]) == {"polyconv", "onnxruntime", "openvino"}
    for engine, found in row["measures"].items():
        assert found["why"] == "", engine
        assert all(found[name] > 0 for name in ("seconds", "load_seconds", "first_seconds"))
    assert row["measures"]["polyconv"]["error"] < 1e-5
    assert row["measures"]["onnxruntime"]["error"] is None  # others are compared with it
    assert row["peer"] in ("onnxruntime", "openvino")


def test_engines_are_chosen(polyconv: Callable[..., Done], bank: Path) -> None:
    done = polyconv("bench", "--networks", bank / "filter_bank.xml", "--peers", "openvino", *SHORT, "--json")
    [row] = done.json["networks"]
    assert set(row["measures"]) == {"polyconv", "openvino"}
    assert row["ratio"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name .onnx or .xml files"),
        (("conv f32 NCHW n1 c3 i9 m4 k3",), "name .onnx or .xml files"),
        (("MODEL", "--peers", "torch"), "'torch' opens no model files; choose from onnxruntime, openvino"),
    ],
)
def test_what_is_no_model(polyconv: Callable[..., Done], bank: Path, words: tuple[str, ...], said: str) -> None:
    done = polyconv("bench", "--networks", *(bank / "filter_bank.onnx" if w == "MODEL" else w for w in words))
    assert done.code == 2
    assert said in done.err


def test_an_engine_that_fails_is_named_and_the_others_go_on(polyconv: Callable[..., Done], bank: Path) -> None:
    """An IR is nothing to onnxruntime."""
    done = polyconv("bench", "--networks", bank / "filter_bank.xml", *SHORT, "--json")
    [row] = done.json["networks"]
    assert row["measures"]["onnxruntime"]["why"] and row["measures"]["onnxruntime"]["seconds"] is None
    assert row["peer"] == "openvino" and row["measures"]["polyconv"]["error"] < 1e-5


def test_differences_are_relative_and_the_largest_counts() -> None:
    one, two = np.full(4, 2.0, np.float32), np.zeros(3, np.int64)
    assert difference([one, two], [one, two]) == 0.0
    assert difference([one * 1.5, two], [one, two]) == 0.5
    assert difference([one[:3], two], [one, two]) == float("inf")


def test_the_summary_is_a_geometric_mean() -> None:
    def row(name: str, ratio: float | None) -> Network:
        return Network(name, {"polyconv": Measure("polyconv")}, ratio, "openvino", 1, 1)

    found = summary([row("a", 4.0), row("b", 0.25), row("c", None)])
    assert found == {"compared": 2, "mean": pytest.approx(1.0), "least": 0.25, "below": ["b"]}
    assert summary([row("c", None)])["mean"] is None
