"""From rounds to figures: medians of good rounds, ratios, groups, changes, and the document they stand in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from polyconv.benchmark.burn import Peaks
from polyconv.benchmark.compare import changes, differences
from polyconv.benchmark.engines import ENGINES, GUESTS, OURS, chosen, environment
from polyconv.benchmark.judge import best_peer, computes_truly, quartiles, ratio, speed
from polyconv.benchmark.record import Document, Measure, Round, Row, load, save
from polyconv.benchmark.summary import geometric_mean, published, summary
from polyconv.errors import ArgumentError
from polyconv.problem.problem import Problem

GOOD, BAD = Round(1e11, 1.0, 0.0, True), Round(1e11, 0.5, 0.0, False)
PEAKS = Peaks((0,), 100e9, 100e9, 10e9)


def measure(engine: str, *seconds: float | None, counts: bool = True) -> Measure:
    """An engine whose rounds took so long."""
    known = sorted(s for s in seconds if s is not None)
    return Measure(engine, known[len(known) // 2], known[0], known[-1], tuple(seconds), counts=counts, error=1e-7)


def row(name: str, *measures: Measure, family: str = "dense 3x3", rounds: tuple[Round, ...] = (GOOD,) * 3) -> Row:
    """A layer of a set named net."""
    return Row(f"conv f32 NCHW n1 c8 i9x9 m8 k3x3 # {name}", "net", name, "", family, 2e6, 1e5, 1e-7, rounds,
               {m.engine: m for m in measures})  # fmt: skip


def document(*rows: Row) -> Document:
    """A run on one CPU."""
    options = {"threads": 1, "accuracy": "fast", "target": None}
    engines = {name: {"words": ENGINES[name].words, "version": "1", "missing": ""} for name in ENGINES}
    return Document(options, {"cpu": {"name": "some"}}, engines, PEAKS, "2026-01-01T00:00:00+00:00", list(rows))


def test_only_good_rounds_count_if_there_are_three() -> None:
    rounds = (GOOD, BAD, GOOD, GOOD)
    assert quartiles(rounds, (1.0, 9.0, 2.0, 3.0)) == (2.0, 1.5, 2.5)
    assert quartiles(rounds, (1.0, 9.0, 2.0, None)) == (2.0, 1.5, 5.5)
    assert quartiles((BAD,), (None,)) is None


def test_a_ratio_is_taken_round_by_round_against_the_fastest_that_counts() -> None:
    # the machine is half as fast in the second round: the ratio does not notice
    layer = row("a", measure("polyconv", 1e-3, 2e-3, 1e-3), measure("polyconv-nhwc", 4e-3, 8e-3, 4e-3),
                measure("torch", 2e-3, 4e-3, 2e-3), measure("onnxruntime", 3e-3, 6e-3, 3e-3),
                measure("openvino", 1e-6, 1e-6, 1e-6, counts=False))  # fmt: skip
    assert best_peer(layer) == layer.measures["torch"]
    first, last = ratio(layer, "NCHW"), ratio(layer, "NHWC")
    assert first is not None and (first.value, first.low, first.high, first.peer) == (2.0, 2.0, 2.0, "torch")
    assert last is not None and last.value == 0.5


def test_without_another_engine_there_is_no_ratio() -> None:
    assert ratio(row("a", measure("polyconv", 1e-3)), "NCHW") is None
    assert ratio(row("a", measure("torch", 1e-3)), "NCHW") is None


def test_speed_is_a_share_of_each_peak_and_of_the_roofline() -> None:
    layer = row("a", measure("polyconv", 1e-4))
    found = speed(layer, layer.measures["polyconv"], PEAKS)
    assert found is not None
    # 2e6 operations in 100 us are 20 GFLOP/s; 1e5 bytes 1 GB/s; the operations alone need 20 us
    assert (found.gflops, found.of_flops, found.of_bandwidth, found.of_bound) == pytest.approx((20, 0.2, 0.1, 0.2))


@pytest.mark.parametrize(
    ("text", "error", "truly"),
    [
        ("conv f32 NCHW n1 c64 i9x9 m8 k3x3", 4e-7, True),
        ("conv f32 NCHW n1 c64 i9x9 m8 k3x3", 2.4e-3, False),  # operands rounded to bf16
        ("conv f64 NCHW n1 c64 i9x9 m8 k3x3", 4e-7, False),  # computed in f32
        ("conv f16 NCHW n1 c64 i9x9 m8 k3x3", 3e-4, True),
        ("conv i32 NCHW n1 c64 i9x9 m8 k3x3", 0.0, True),
        ("conv i32 NCHW n1 c64 i9x9 m8 k3x3", 1e-9, False),
    ],
)
def test_an_error_tells_whether_an_engine_computes_in_the_type(text: str, error: float, truly: bool) -> None:
    assert computes_truly(Problem.parse(text), error) is truly


def test_groups_hold_mean_least_and_losses() -> None:
    rows = [
        row("a", measure("polyconv", 1e-3), measure("torch", 4e-3), rounds=(GOOD,)),
        row("b", measure("polyconv", 1e-3), measure("torch", 0.5e-3), rounds=(GOOD,)),
        row("c", measure("polyconv", 1e-3), measure("torch", 0.98e-3), family="small groups", rounds=(GOOD,)),
        row("d", measure("polyconv", 1e-3), family="small groups", rounds=(GOOD,)),
        row("e", measure("polyconv", 5e-6), measure("torch", 10e-6), family="other", rounds=(GOOD,)),
    ]
    groups = {(g.kind, g.name): g for g in summary(rows, "NCHW")}
    everything = groups["all", "all layers"]
    assert (everything.count, everything.compared, everything.below, everything.lost) == (5, 4, 2, 1)
    assert everything.mean == pytest.approx((4 * 0.5 * 0.98 * 2) ** 0.25)
    assert (everything.least, everything.slowest) == (0.5, "net b")
    assert groups["family", "dense 3x3"].mean == pytest.approx(2**0.5)
    assert (groups["family", "small groups"].count, groups["family", "small groups"].compared) == (2, 1)
    assert groups["short", "best peer below 20 us"].mean == pytest.approx(2.0)
    assert groups["set", "net"].count == 5
    assert all(g.mean is None for g in summary(rows, "NHWC"))


def test_a_geometric_mean_multiplies() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_a_document_comes_back_as_it_was_written(tmp_path: Path) -> None:
    made = document(row("a", measure("polyconv", 1e-3, None, 2e-3), measure("torch", 2e-3, 2e-3, 2e-3)), row("b"))
    save(published(made), tmp_path / "run.json")
    assert load(tmp_path / "run.json") == made
    content = json.loads((tmp_path / "run.json").read_text())
    assert (content["schema_version"], content["command"]) == (1, "bench")
    assert {"options", "machine", "engines", "peaks", "started", "rows", "summary"} <= set(content)
    assert content["rows"][0]["ratios"]["NCHW"]["peer"] == "torch" and content["rows"][1]["ratios"]["NCHW"] is None
    assert set(content["summary"]) == {"NCHW", "NHWC"}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema_version": 99, "command": "bench"}'])
def test_another_file_is_no_document(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ArgumentError, match=r"other\.json is no document"):
        load(tmp_path / "other.json")


def test_a_change_needs_ranges_apart_and_more_than_the_limit() -> None:
    before = document(*(row(name, measure("polyconv", 1.00e-3, 1.00e-3, 1.00e-3)) for name in "abcd"))
    now = document(
        row("a", measure("polyconv", 1.20e-3, 1.20e-3, 1.20e-3)), row("b", measure("polyconv", 0.5e-3, 0.5e-3, 0.5e-3)),
        row("c", measure("polyconv", 0.90e-3, 1.20e-3, 1.30e-3)), row("d", measure("polyconv", 1.02e-3)),
        row("new", measure("polyconv", 1.0)),
    )  # fmt: skip
    found = {c.label: (c.verdict, round(c.ratio, 2)) for c in changes(now, before, 5.0)}
    assert found == {
        "net a": ("slower", 1.2), "net b": ("faster", 0.5), "net c": ("same", 1.2), "net d": ("same", 1.02),
    }  # fmt: skip
    assert differences(now, before) == []
    other = replace(now, machine={"cpu": {"name": "another"}}, options={**now.options, "threads": 2})
    assert [text.split(":")[0] for text in differences(other, before)] == ["threads", "cpu"]


def test_engines_are_chosen_by_name_or_guest_and_ours_are_always_there() -> None:
    assert {ENGINES[name].guest for name in ENGINES} == set(GUESTS)
    assert set(chosen(["openvino"])) == {"polyconv", "polyconv-nhwc", "openvino", "openvino-nhwc"}
    assert set(chosen(["ncnn"])) == {"polyconv", "polyconv-nhwc", "ncnn", "ncnn-blocked"}
    assert list(chosen(["torch-packed"])) == ["polyconv", "polyconv-nhwc", "torch-packed"]
    assert all(chosen(None)[name] is None for name in OURS.values())
    with pytest.raises(ArgumentError, match="no engine 'caffe'"):
        chosen(["caffe"])


def test_a_restricted_run_restricts_every_engine_or_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    rows = chosen(None, "avx2")
    assert rows["onnxruntime"] == "cannot be restricted to avx2" and rows["torch-packed"] is None
    assert environment("torch", 2, "avx2")["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert environment("torch", 2, "avx2")["OMP_NUM_THREADS"] == "2"
    assert environment("polyconv", 1, "avx2") == {"POLYCONV_TARGET": "avx2"}
