"""What an algorithm takes at least: never more than it costs, and what is taken by it is what all prices choose."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from polyconv.algorithms.form import Refusal
from polyconv.algorithms.least import least
from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance import corpus
from polyconv.conformance.kernel_texts import TARGETS
from polyconv.errors import ArgumentError, Unsupported
from polyconv.lowering.situation import Situation
from polyconv.machine.profile import presets
from polyconv.planning.planner import Decision, choose, priced, take
from polyconv.problem.problem import Problem

PROBLEMS = Path(__file__).parents[1] / "kernels" / "problems.txt"
KEPT = [Problem.parse(line) for line in PROBLEMS.read_text().splitlines() if not line.startswith("#")]
DRAWN = [corpus.problem(1729, index) for index in range(600)]
WAYS: tuple[dict[str, object], ...] = (
    {}, {"once": True}, {"strict": True}, {"finite": False}, {"limit": 0}, {"limit": 1 << 18}, {"chance": 5},
    {"threads": 3},
)  # fmt: skip


def situations(level: str) -> list[Situation]:
    """Problems that are computed in one way each, on machines that are not alike."""
    profiles = [profile for profile in presets().values() if level in profile.levels]
    known = [replace(p, op="conv") if p.op == "causal_conv" else p for p in KEPT + DRAWN]
    return [
        Situation(p.fused(), TARGETS[level], profile=profiles[at % len(profiles)], **WAYS[at % len(WAYS)])  # type: ignore[arg-type]
        for at, p in enumerate(known) if 0 not in p.y_shape
    ]  # fmt: skip


@pytest.mark.parametrize("level", TARGETS)
def test_no_cost_stays_below_the_least(level: str) -> None:
    bounded = set()
    for s in situations(level):
        for name, row in ALGORITHMS.items():
            found = row.at_least(s)
            form = row.fitting(s)
            if not isinstance(form, Refusal):
                assert found <= sum(priced(form).values()) * (1 + 1e-9), (name, s)
                bounded |= {name} if found else set()
    assert bounded >= {"direct", "generic", "stem", "winograd", "fft"}


@pytest.mark.parametrize("level", TARGETS)
def test_what_is_taken_is_what_all_prices_choose(level: str) -> None:
    for s in situations(level):
        try:
            chosen = choose(s)
        except Unsupported as error:
            with pytest.raises(Unsupported) as raised:
                take(s)
            assert str(raised.value) == str(error)
            continue
        taken, name = take(s), chosen.algorithm
        assert taken.algorithm is chosen.algorithm, s
        assert taken.costs[name] == chosen.costs[name]
        assert taken.running(2) == chosen.running(2)
        assert taken.cycles(name) == chosen.cycles(name)


def test_what_was_decided_is_taken() -> None:
    s = Situation(Problem.parse("conv f32 NCHW n2 c16 i12x12 m32 k3x3 p1"), TARGETS["avx2"], profile=presets()["zen4"])
    for source in ("asked", "measured"):
        decision = Decision("generic", source)
        assert take(s, decision).algorithm == choose(s, decision).algorithm == "generic"
        assert take(s, decision).running(2) == choose(s, decision).running(2)


def test_the_least_work_is_counted_as_one_counts() -> None:
    """Against all outputs and taps, one by one."""
    for p in [p for p in KEPT if p.op == "conv" and math.prod(p.out) * math.prod(p.k) < 20_000][:40]:
        met = 1
        for a, out in enumerate(p.out):
            met *= sum(0 <= o * p.s[a] + t * p.d[a] - p.pads[a][0] < p.i[a] for o in range(out) for t in range(p.k[a]))
        found = least(p)
        assert found.outputs == math.prod(p.out)
        assert found.met == pytest.approx(met)
        assert found.met <= found.taken <= found.outputs * math.prod(p.k)


EMPTY = [
    f"{op} {types} {layout} n1 c8 {rest}"
    for op in ("conv", "conv_transpose")
    for types in ("f32", "bf16", "f64", "i8", "u8", "u8*i8>i32", "i16", "u64")
    for layout in ("NCHW", "NHWC")
    for rest in (
        "i4x0 m8 k3x3 p1", "i0x5 m3 k3x3 p0x1 g1", "i4x4 m8 k3x3 p3", "i4x4 m8 k3x3 p3 g8", "i3 m8 k3 p1:4",
        "i4x4x4 m8 k3x3x3 s2x1x1 p3", "i4x4 m3 k3x3 s2 p3x4:5",
    )
]  # fmt: skip


@pytest.mark.parametrize("level", TARGETS)
def test_every_algorithm_answers_for_an_empty_result(level: str) -> None:
    """A result without elements has a form with a price, or a reason why not."""
    answered = 0
    for line in EMPTY:
        try:
            p = Problem.parse(line)
        except ArgumentError:  # no such shape
            continue
        s = Situation(p, TARGETS[level], profile=presets()["zen5"])  # which has numbers for all of them
        for row in ALGORITHMS.values() if 0 in p.y_shape else ():
            found = row.fitting(s)
            assert row.at_least(s) >= 0
            assert isinstance(found, str) or min(found.cost().values(), default=0.0) >= 0, (line, row.name)
            answered += 1
    assert answered > 1000
