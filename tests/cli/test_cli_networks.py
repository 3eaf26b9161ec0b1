"""``polyconv bench --networks``: whole models in a table and a document, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from done import Done

from polyconv.benchmark.many_sizes import varied
from polyconv.benchmark.networks import Measure, Network, difference, summary
from polyconv.models.graph import Value

INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it from the start
from polyconv.cli import main
sys.exit(main())
"""

SHORT = ("--seconds", "0.2", "--rounds", "2")


def test_a_table_and_a_document(polyconv: Callable[..., Done], bank: Path, tmp_path: Path) -> None:
    file = tmp_path / "networks.json"
    words = ("bench", "--networks", bank / "filter_bank.onnx", "--dim", "height=32", "--dim", "width=32")
    done = polyconv(*words, *SHORT, "--save", file)
    assert done.code == 0, done.err
    assert "geometric mean of 1" in done.out
    head, rule, first = [line.split("|") for line in done.out.splitlines() if line.startswith("|")]
    assert len(head) == len(rule) == len(first) == 12
    assert head[1:3] == [" network ", " polyconv ms "] and first[1] == " filter_bank " and float(first[2]) > 0
    assert set(rule[2:-1]) == {" ---: "}
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


def test_many_sizes(polyconv: Callable[..., Done], bank: Path) -> None:
    words = ("bench", "--networks", bank / "filter_bank.onnx", *SHORT, "--sizes", "3", "--dim", "height=32",
             "--dim", "width=32")  # fmt: skip
    done = polyconv(*words)
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if line.startswith("|")]
    head, row = ([cell.strip() for cell in line.split("|")] for line in lines[3::2])
    assert head[1:4] == ["network", "sizes", "new: polyconv ms"] and row[1:3] == ["filter_bank", "3"]
    assert all(float(cell) > 0 for cell in row[3:-1])
    (document,) = polyconv(*words, "--peers", "onnxruntime", "--json").json["networks"]
    assert {g: (met["count"], met["why"]) for g, met in document["sizes"].items()} == {
        "polyconv": (3, ""), "onnxruntime": (3, ""),
    }  # fmt: skip


def test_sizes_grow_along_what_is_open() -> None:
    inputs = [Value("x", "float", ("n", 3, "h", None)), Value("k", "float", (4,)), Value("r", "float", None)]
    feeds = {"x": np.arange(3 * 40 * 5).reshape(1, 3, 40, 5), "k": np.ones(4), "r": np.ones(2)}
    many = varied(inputs, feeds, 4)
    shapes = [each["x"].shape for each in many]
    assert sorted(shapes) == [(1, 3, 64, 6), (1, 3, 96, 7), (1, 3, 128, 8), (1, 3, 160, 9)]
    assert all(each["k"].shape == (4,) and each["r"].shape == (2,) for each in many)
    assert {each["x"].shape[2:] for each in varied(inputs, feeds, 2, ["h"])} == {(64, 5), (96, 5)}
    assert varied(inputs, feeds, 4, ["w"]) == varied(inputs[1:], feeds, 4) == []


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


def test_a_file_that_is_no_model_is_named_and_the_others_go_on(
    polyconv: Callable[..., Done], bank: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    words = ("bench", "--networks", broken, bank / "filter_bank.onnx", "--dim", "height=32", "--dim", "width=32")
    none, row = polyconv(*words, *SHORT, "--json").json["networks"]
    assert none["measures"]["polyconv"]["seconds"] is None and "broken.onnx" in none["measures"]["polyconv"]["why"]
    assert row["name"] == "filter_bank" and row["measures"]["polyconv"]["seconds"] > 0
    assert "| broken | - |" in polyconv(*words, *SHORT).out
    assert polyconv("bench", "--networks", broken, *SHORT).code != 0


@pytest.mark.skipif(os.name != "posix", reason="sends an interrupt")
def test_an_interrupt_keeps_what_was_measured(bank: Path, tmp_path: Path) -> None:
    file = tmp_path / "networks.json"
    second = tmp_path / "second.onnx"
    second.write_bytes((bank / "filter_bank.onnx").read_bytes())
    words = ["bench", "--networks", bank / "filter_bank.onnx", second, "--dim", "height=32", "--dim", "width=32"]
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *map(str, words), "--save", str(file), *SHORT[:-2], "--rounds", "1000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in err
    assert "| filter_bank |" in out and "| second |" not in out
    [row] = json.loads(file.read_text())["networks"]
    assert row["name"] == "filter_bank"


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
