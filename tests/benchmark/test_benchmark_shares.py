"""Random problems and the bound of their time: what is drawn, what it needs at least, what is made of the shares."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyconv.benchmark import bound as bounds
from polyconv.benchmark import draws, shares
from polyconv.benchmark.bound import Bound, bytes_of, fastest_arithmetic, products
from polyconv.benchmark.peaks import burner
from polyconv.benchmark.shares import Share, groups, measured, plain, read, worst
from polyconv.cli import main
from polyconv.errors import ArgumentError
from polyconv.lowering.situation import Situation
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem
from polyconv.target import Target, target

MANY = [draws.problem(7, index) for index in range(300)]


def share(text: str, value: float, algorithm: str = "direct") -> Share:
    """A problem that took so much of its bound."""
    return Share(Problem.parse(text), algorithm, "f32", 1e-3 / value, Bound(1e-3, 1e-4, 5e-4, "f32"))


def test_a_seed_and_a_number_name_a_problem() -> None:
    assert [*draws.problems(12, 7)] == MANY[:12]
    assert [*draws.problems(12, 7, first=9)] == MANY[9:12]
    assert draws.problem(8, 0) != MANY[0]


def test_drawn_problems_are_of_all_kinds_and_take_a_while_but_not_long() -> None:
    assert {shares.operator(p) for p in MANY} == {"conv", "conv_transpose", "quantised", "deform_conv"}
    assert {"f32", "f64", "f16", "bf16", "i8", "u16", "i32", "u64", "u8*i8>i32", "u8*i8"} <= {
        shares.types(p) for p in MANY
    }
    assert {p.rank for p in MANY} == {1, 2, 3} and {p.layout for p in MANY} == {"NCHW", "NHWC"}
    for p in MANY:
        assert 2e6 <= products(p) <= 6e7 and bytes_of(p) <= 32 << 20 and max(p.k) <= 63, p
        assert Problem.parse(str(p)) == p
    for field, least in (("s", 5), ("d", 6), ("k", 40), ("groups", 100)):
        assert max(np.max(getattr(p, field)) for p in MANY) >= least, field
    assert {p.c % 2 for p in MANY} == {p.m % 2 for p in MANY} == {0, 1}


@pytest.mark.parametrize(
    "text",
    [
        "conv i64 NCHW n2 c3 i7x9 m4 k3x2 s2x1 p3:0x1 d1x2",
        "conv i64 NHWC n1 c4 i5 m6 k9 p8 g2",
        "conv_transpose i64 NCHW n2 c4 i5x6 m2 k3x4 s2x3 p2x5 d2x1 g2",
        "conv_transpose i64 NCHW n1 c1 i4x3x2 m3 k1x2x3 s1x2x5 op0x1x0",
    ],
)
def test_products_are_those_that_meet_an_input(text: str) -> None:
    """Of ones, every product adds one to one result."""
    p = replace(Problem.parse(text), layout="NCHW")
    ones = [np.ones([int(e or 0) for e in shape], np.int64) for shape in (p.x_shape, p.w_shape)]
    assert products(Problem.parse(text)) == int(oracle(p, *ones).sum())


def test_a_bound_is_the_longest_of_work_loads_and_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "peak", lambda target, name: 100.0)  # GFLOP/s
    monkeypatch.setattr(bounds, "copy_bandwidth", lambda size: 10e9)
    found = bounds.bound(Problem.parse("conv f32 NCHW n1 c16 i30x30 m8 k1x1"), target())
    assert found.multiply_adds == pytest.approx(2 * 900 * 16 * 8 / 100e9)
    assert found.bandwidth == pytest.approx(4 * (900 * 16 + 16 * 8 + 900 * 8) / 10e9)
    assert found.seconds == found.bandwidth and found.held_by == "bandwidth" and found.arithmetic == "f32"
    deep = bounds.bound(Problem.parse("conv f32 NCHW n1 c64 i30x30 m64 k3x3"), target())
    assert deep.held_by == "multiply-adds" and deep.seconds == deep.multiply_adds > deep.bandwidth > deep.loads > 0.0


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("conv f32 NCHW n2 c3 i64x160 m5 k1x1 s4x1", 2 * 3 * 16 * 640),  # a quarter of the rows
        ("conv f32 NCHW n1 c3 i64x160 m5 k1x1 s1x5", 3 * 64 * 640),  # lines of 16 numbers hold some that are needed
        ("conv f32 NCHW n1 c3 i64x160 m5 k1x1 s1x32", 3 * 64 * 5 * 64),  # every second line
        ("conv f32 NHWC n1 c32 i64x160 m5 k1x1 s1x5", 64 * 32 * 128),  # a fifth of the pixels
        ("conv_transpose f32 NCHW n1 c3 i8x160 m5 k1x1 s2x2", 3 * 8 * 640),
    ],
)
def test_inputs_that_strides_pass_over_are_not_read(
    text: str, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "peak", lambda target, name: 1e9)
    monkeypatch.setattr(bounds, "copy_bandwidth", lambda size: 10e9)
    p = Problem.parse(text)
    others = math.prod(p.w_shape) + math.prod(int(e or 0) for e in p.y_shape)
    assert bounds.bound(p, target()).bandwidth == pytest.approx((read + 4 * others) / 10e9)


def test_a_deformable_convolution_also_interpolates_and_reads_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "peak", lambda target, name: 100.0)
    monkeypatch.setattr(bounds, "copy_bandwidth", lambda size: 10e9)
    p = Problem.parse("deform_conv f32 NCHW n1 c6 i10x12 m5 k3x3 og2 mask")
    outputs, taps = 8 * 10, 9
    found = bounds.bound(p, target())
    assert found.multiply_adds == pytest.approx(2 * outputs * taps * 6 * (5 + 4) / 100e9)
    elements = 6 * 120 + 5 * 6 * taps + 5 * outputs + outputs * taps * 2 * (2 + 1)
    assert bytes_of(p) == 4 * elements and found.bandwidth == pytest.approx(4 * elements / 10e9)


@pytest.mark.parametrize(
    ("text", "with_dots", "without"),
    [
        ("f32", "f32", "f32"), ("f16", "f32", "f32"), ("f64", "f64", "f64"), ("bf16", "bf16", "f32"),
        ("i8", "u8s8", "i16"), ("u8*i8>i32", "u8s8", "i16"), ("i16", "i16", "i16"), ("u16", "i16 sums", "i16 sums"),
        ("u16>i32", "i32", "i32"), ("i32", "i32", "i32"), ("u64", "i64", "i64"), ("u8>i64", "i64", "i64"),
    ],
)  # fmt: skip
def test_the_fastest_arithmetic_depends_on_types_and_instructions(text: str, with_dots: str, without: str) -> None:
    p = Problem.parse(f"conv {text} NCHW n1 c8 i9x9 m8 k3x3")
    dots = Target("avx512", "x86_64-unknown-linux-gnu", "znver4", "", bf16=True, vnni=True)
    plain_ = replace(dots, bf16=False, vnni=False)
    assert fastest_arithmetic(Situation(p, dots)) == with_dots
    assert fastest_arithmetic(Situation(p, plain_)) == without


def test_samples_are_not_rounded_to_bf16_for_dot_products() -> None:
    p = Problem.parse("deform_conv bf16 NCHW n1 c8 i9x9 m8 k3x3 og1")
    dots = Target("avx512", "x86_64-unknown-linux-gnu", "znver4", "", bf16=True, vnni=True)
    assert fastest_arithmetic(Situation(p, dots)) == "f32"


def test_a_burn_counts_every_product_of_a_word() -> None:
    single, pairs = burner(target(), "i32")[1], burner(target(), "i16")[1]
    assert pairs == 2 * single


def test_groups_hold_percentiles_and_cliffs() -> None:
    found = [
        share("conv f32 NCHW n1 c8 i9x9 m8 k3x3", 0.9), share("conv f32 NHWC n1 c8 i9x9 m8 k3x3", 0.5),
        share("conv i8 NCHW n1 c8 i9x9 m8 k3x3", 0.1, "dots"), share("conv_transpose f32 NCHW n1 c8 i9 m8 k3", 0.3),
    ]  # fmt: skip
    rows = {(g.kind, g.name): g for g in groups(found)}
    everything = rows["all", "all problems"]
    assert (everything.count, everything.least, everything.below) == (4, pytest.approx(0.1), 2)
    assert everything.median == pytest.approx(0.4) and everything.p25 == pytest.approx(0.25)
    assert rows["operator", "conv"].count == 3 and rows["types", "conv f32"].median == pytest.approx(0.7)
    assert rows["algorithm", "dots"].below == 1 and rows["held by", "multiply-adds"].count == 4
    assert [round(s.share, 3) for s in worst(found, 2)] == [0.1, 0.3]
    assert groups([]) == []


def test_a_share_comes_back_as_it_was_written() -> None:
    made = share("conv f32 NCHW n1 c8 i9x9 m8 k3x3", 0.25)
    values = json.loads(json.dumps(plain(made)))
    assert read(values) == made and values["share"] == pytest.approx(0.25) and values["held_by"] == "multiply-adds"
    for broken in ({}, values | {"problem": "conv"}, values | {"seconds": "soon"}, values | {"seconds": 0.0}):
        with pytest.raises(ArgumentError, match="no share of a random problem"):
            read(broken)


def test_problems_that_an_algorithm_does_not_take_are_told() -> None:
    told: list[Share | None] = []
    p = Problem.parse("conv f32 NCHW n1 c8 i9x9 m8 k3x3")
    assert measured([p], target(), "deformable", progress=told.append) == [] and told == [None]
    (found,) = measured([p], target(), "generic", progress=told.append)
    assert told == [None, found] and (found.problem, found.algorithm) == (p, "generic") and found.seconds > 0.0


@pytest.mark.parametrize("index", [MANY.index(next(p for p in MANY if shares.operator(p) == name))
                                   for name in ("conv", "conv_transpose", "quantised", "deform_conv")])  # fmt: skip
def test_every_operator_is_measured(index: int) -> None:
    (found,) = measured([MANY[index]], target())
    assert found.problem == MANY[index] and found.algorithm and found.seconds > 0.0 and found.bound.seconds > 0.0


@pytest.fixture
def bench(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``bench("--random", 3)`` as the shell would call it: its exit code, and what it wrote."""
    monkeypatch.setenv("COLUMNS", "250")

    def call(*words: object) -> Any:
        capfd.readouterr()
        return main(["bench", *map(str, words)]), *capfd.readouterr()

    return call


def test_the_command_prints_lines_that_can_be_given_back(bench: Callable[..., Any]) -> None:
    code, out, err = bench("--random", 2, "--seed", 7)
    assert code == 0, err
    assert all(f"'{p}'" in out for p in MANY[:2]) and "of 2 below 35% of the bound" in out


def test_a_document_is_taken_up_where_it_ended(bench: Callable[..., Any], tmp_path: Path) -> None:
    file, page = tmp_path / "run.json", tmp_path / "run.html"
    words = ("--seed", 7, "--save", file)
    assert bench("--random", 1, *words)[0] == 0
    first = json.loads(file.read_text())
    code, out, err = bench("--random", 3, *words, "--resume", "--json")
    assert code == 0, err
    content = json.loads(out)
    assert [s["problem"] for s in content["shares"]] == [str(p) for p in MANY[:3]]
    assert content["shares"][0] == first["shares"][0] and content["drawn"] == 3
    assert set(content["worst"]) == {str(p) for p in MANY[:3]} and content["groups"][0]["count"] == 3
    assert json.loads(file.read_text())["shares"] == content["shares"]
    code, _, err = bench("--random", 3, "--seed", 8, "--save", file, "--resume")
    assert code == 2 and "was measured with seed=7, this run has 8" in err
    pytest.importorskip("matplotlib")
    assert bench("--random", 3, *words, "--resume", "--report", page)[0] == 0
    text = page.read_text()
    assert text.count("<svg") == 1 and all(str(p).replace(">", "&gt;") in text for p in MANY[:3])


def test_an_interrupt_keeps_what_was_measured(bench: Callable[..., Any], tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def drawn(seed: int, index: int) -> Problem:
        if index == 1:
            raise KeyboardInterrupt
        return MANY[index]

    monkeypatch.setattr(draws, "problem", drawn)
    file = tmp_path / "run.json"
    code, out, _ = bench("--random", 5, "--seed", 7, "--save", file)
    assert code == 130 and f"'{MANY[0]}'" in out
    content = json.loads(file.read_text())
    assert content["drawn"] == 1 and [s["problem"] for s in content["shares"]] == [str(MANY[0])]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("conv f32 NCHW n1 c8 i9x9 m8 k3x3",), "leave out TARGET"),
        (("--threads", 2, "--peers", "torch"), "leave out --peers, --threads"),
        (("--algorithm", "magic"), "there is no algorithm 'magic'"),
        (("--match", "("), "no regular expression"),
    ],
)
def test_words_without_effect_are_refused(bench: Callable[..., Any], words: tuple[object, ...], message: str) -> None:
    code, _, err = bench("--random", 2, *words)
    assert code == 2 and message in err
