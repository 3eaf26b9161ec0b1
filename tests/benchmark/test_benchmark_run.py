"""Two tiny layers through the whole comparison: every engine that is here gives a right result and a time."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from polyconv.benchmark import record
from polyconv.benchmark import run as running
from polyconv.benchmark.engines import ENGINES, GUESTS, OURS
from polyconv.benchmark.engines.ready import Task
from polyconv.benchmark.process import GuestError, Process
from polyconv.benchmark.run import Options, resumed, run
from polyconv.benchmark.sets import of_line
from polyconv.benchmark.truth import truth
from polyconv.cli import main
from polyconv.errors import ArgumentError
from polyconv.target import host_target

LAYERS = (
    "conv f32 NCHW n2 c6 i9x8 m8 k3x3 p1:0x0:1 s2x1 g2 b1 act=Relu  # tiny grouped",
    "conv_transpose f32 NHWC n1 c4 i7 m5 k4 s2 p1  # tiny transposed",
)
FOR_INTEGERS = {"onnxruntime-nhwc": "QLinearConv"} | dict.fromkeys(
    (name for name in ENGINES if "qdq" in name or "quantized" in name or "pt2e" in name), "quantised"
)
QUICK = ("--seconds", "0.02", "--rounds", "1")


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def bench(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """``bench("--set", "all")`` as the shell would call it."""
    monkeypatch.setenv("COLUMNS", "250")  # test workers may say a narrow terminal

    def call(*words: object) -> Done:
        capfd.readouterr()
        code = main(["bench", *map(str, words)])
        return Done(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="module")
def document() -> record.Document:
    """Both layers on every engine that is installed."""
    return run([of_line(line) for line in LAYERS], Options(seconds=0.05, rounds=1), machine={"cpu": {"name": "this"}})


def test_an_engine_whose_results_have_another_shape_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO's quantised 1x1 layer with padding, on a CPU with AMX, gives 10x10 results where 7x7 are right."""
    def fewer(*given: Any) -> Any:
        found = truth(*given)
        return replace(found, exact=found.exact[..., :-1])

    monkeypatch.setattr(running, "truth", fewer)
    options = Options(peers=(), seconds=0.05, rounds=1)
    (row,) = run([of_line(LAYERS[0])], options, machine={"cpu": {"name": "this"}}).rows
    for name in OURS.values():
        assert "wrong: results of shape" in row.measures[name].why


def _here(engine: str) -> bool:
    return importlib.util.find_spec(GUESTS[ENGINES[engine].guest].module) is not None


def test_every_engine_that_is_here_is_measured_and_right(document: record.Document) -> None:
    assert [row.label for row in document.rows] == ["tiny grouped", "tiny transposed"]
    for row in document.rows:
        assert set(row.measures) == set(ENGINES)
        for name, measure in row.measures.items():
            if not _here(name):
                assert measure.why == "not installed"
                continue
            if name in FOR_INTEGERS:
                assert FOR_INTEGERS[name] in measure.why
                continue
            assert measure.why == "" and measure.counts, (row.label, measure)
            assert measure.error is not None and measure.error < 1e-6, (row.label, measure)
            assert measure.seconds is not None and measure.seconds > 0.0
            assert measure.prepare_seconds is not None and measure.first_seconds is not None
            assert len(measure.rounds) == len(row.rounds)
            assert "f32" in measure.precision and measure.kernel
    assert document.peaks.flops > 0.0 and document.peaks.bandwidth > 0.0


@pytest.mark.skipif(not all(map(_here, ("onnxruntime", "openvino", "torch"))), reason="compares with other engines")
@pytest.mark.skipif(not host_target().vnni, reason="without dot products of bytes sums of other engines saturate")
@pytest.mark.parametrize("types", ["u8*i8", "i8"])
def test_quantised_layers_have_peers_in_both_layouts(types: str) -> None:
    """Exact where the operator is QLinearConv; others may round otherwise, by a quantum."""
    line = f"conv {types} NCHW n1 c16 i9x11 m24 k3x3 p1 g2 b1 zx={0 if types == 'i8' else 't'} zw=0 zy=t sx=t sw=c sy=t"
    (row,) = run([of_line(line)], Options(seconds=0.02, rounds=1), machine={"cpu": {"name": "this"}}).rows
    exact = ("polyconv", "polyconv-nhwc", "onnxruntime", "onnxruntime-nhwc")
    of_u8 = ("torch-quantized", "torch-quantized-nhwc", "torch-pt2e", "torch-pt2e-nhwc")
    near = ("onnxruntime-qdq", "onnxruntime-qdq-nhwc", "openvino", "openvino-nhwc",
            *(of_u8 if types == "u8*i8" else ("litert",) if _here("litert") else ()))  # fmt: skip
    for name in (*exact, *near):
        measure = row.measures[name]
        assert measure.why == "" and measure.counts and measure.error is not None, (name, measure)
        assert measure.error < (1e-12 if name in exact else 0.01), (name, measure)
        assert measure.precision.startswith(types[:2]) or name in OURS.values(), (name, measure)
    assert "no operator" in row.measures["torch"].why
    assert types == "u8*i8" or all("takes u8" in row.measures[name].why for name in of_u8)


def test_work_and_bytes_are_those_of_the_problem(document: record.Document) -> None:
    grouped = document.rows[0]
    # outputs 2 images x 8 channels x 4 x 7, each of 3 channels x 9 taps; x, w and y of 4 bytes
    assert grouped.flops == 2 * (2 * 8 * 4 * 7) * (3 * 9)
    assert grouped.bytes == 4 * (2 * 6 * 9 * 8 + 8 * 3 * 9 + 2 * 8 * 4 * 7)


def test_a_run_is_taken_up_where_it_ended(document: record.Document) -> None:
    options = Options(seconds=0.05, rounds=1)
    told: list[str] = []
    again = run([of_line(line) for line in LAYERS], options, earlier=resumed(document, options),
                progress=lambda _, row: told.append(row.label))  # fmt: skip
    assert told == [] and len(again.rows) == 2
    with pytest.raises(ArgumentError, match="the earlier run had accuracy='fast', this one 'strict'"):
        resumed(document, Options(seconds=0.05, rounds=1, accuracy="strict"))


def test_more_threads_than_cpus_are_refused() -> None:
    with pytest.raises(ArgumentError, match="this process may use"):
        run([], Options(threads=10_000, peers=()))


def test_the_report_holds_every_layer_and_both_pictures(document: record.Document) -> None:
    pytest.importorskip("matplotlib")
    from polyconv.benchmark.report import report

    page = report(document)
    assert page.count("<svg") == 2 and "tiny grouped" in page and "geometric mean" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


def test_a_guest_that_fails_says_why_and_the_process_lives() -> None:
    process = Process("polyconv", Task(), {})
    process.start()
    try:
        case = of_line(LAYERS[0])
        with pytest.raises(GuestError, match="AssertionError"):
            process.call("prepare", "polyconv")
        with pytest.raises(GuestError, match="KeyError"):
            process.call("burst", "polyconv", 1, 1, 1)
        x = np.zeros((2, 6, 9, 8), np.float32)
        with pytest.raises(GuestError, match="AttributeError"):
            process.call("nothing", case.problem, x)
        assert process.cpu_seconds() >= 0.0
    finally:
        process.close()
    with pytest.raises(GuestError, match="not running"):
        process.call("prepare", "polyconv")


def test_a_guest_that_dies_or_hangs_is_named() -> None:
    missing = Process("no_such_guest", Task(), {})
    with pytest.raises(GuestError, match="ModuleNotFoundError"):
        missing.start()
    missing.close()


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_command_writes_tables_and_a_document(bench: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    done = bench(*LAYERS, "--peers", "polyconv", *QUICK, "--save", file)
    assert done.code == 0, done.err
    assert "tiny grouped" in done.out and "NHWC" in done.out
    content = _json(file)
    assert [row["name"] for row in content["rows"]] == ["grouped", "transposed"]
    assert set(content["rows"][0]["measures"]) == set(OURS.values())
    assert content["machine"]["cpu"]["name"] and "paths" not in content["machine"]


def test_a_regression_ends_with_code_5(bench: Callable[..., Done], tmp_path: Path) -> None:
    file, fast, slow = tmp_path / "run.json", tmp_path / "fast.json", tmp_path / "slow.json"
    assert bench(LAYERS[0], "--peers", "polyconv", *QUICK, "--save", file).code == 0
    for path, factor in ((fast, 1e-3), (slow, 1e3)):
        content = _json(file)
        for measure in content["rows"][0]["measures"].values():
            measure |= {key: measure[key] * factor for key in ("seconds", "low", "high")}
        path.write_text(json.dumps(content))
    again = (LAYERS[0], "--peers", "polyconv", *QUICK, "--save", file, "--resume")
    assert bench(*again, "--compare", fast, "--fail-over", 50).code == 5
    assert bench(*again, "--compare", fast).code == 0
    done = bench(*again, "--compare", slow, "--fail-over", 50)
    assert done.code == 0 and "0 slower, 2 faster" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name what to measure"),
        (("--set", "lenet"), "there is no layer set lenet"),
        (("conv f32 NCHW n1 c8 i9x9 m8 q3",), "q3"),
        ((LAYERS[0], "--match", "nothing"), "fits none"),
    ],
)
def test_wrong_usage_is_named(bench: Callable[..., Done], words: tuple[str, ...], message: str) -> None:
    done = bench(*words)
    assert done.code == 2 and message in done.err
