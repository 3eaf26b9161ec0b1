"""The clock: what needs seconds follows the machine, and no bit of a result does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from profiles import changed

import polyconv
from polyconv import Problem, calls
from polyconv.machine.host import profile_in_force
from polyconv.runtime.clock import cycles_a_second

SLOW, FAST = 1e6, 1e15


@pytest.fixture
def clocks(tmp_path: Path) -> dict[float, str]:
    """Files of profiles that differ from this machine's in the clock only."""
    return {clock: str(changed(tmp_path / f"{clock:.0e}.toml", clock=str(clock))) for clock in (SLOW, FAST)}

PROBLEMS = [
    "conv f32 NCHW n1 c16 i12x12 m32 k3x3 p1",
    "conv f32 NHWC n2 c64 i28x28 m64 k3x3 p1x1",
    "conv f32 NCHW n1 c64 i56x56 m64 k15x15 p7",
    "conv f16 NCHW n1 c48 i40x40 m48 k5x5 p2 g48",
    "conv_transpose f32 NCHW n1 c24 i17x17 m12 k4x4 s2x2 p1",
]


def test_a_clock_of_this_age_in_two_digits() -> None:
    clock = cycles_a_second()
    assert 0.1e9 < clock < 10e9
    assert clock == float(f"{clock:.2g}")
    assert cycles_a_second() == clock
    assert profile_in_force().clock == clock


@pytest.mark.parametrize("text", PROBLEMS)
def test_no_choice_depends_on_it(monkeypatch: pytest.MonkeyPatch, clocks: dict[float, str], text: str) -> None:
    problem = Problem.parse(text)
    plans = {}
    for clock in (SLOW, FAST):
        monkeypatch.setenv("POLYCONV_PROFILE", clocks[clock])
        plans[clock] = polyconv.plan(problem, threads=2)
    slow, fast = plans[SLOW], plans[FAST]
    assert (slow.algorithm, slow.arithmetic, slow.cycles) == (fast.algorithm, fast.arithmetic, fast.cycles)
    assert slow.seconds == pytest.approx(fast.seconds * FAST / SLOW)
    assert (slow.threads, fast.threads) == (2, 1)


def test_bits_are_the_same_on_a_slow_and_on_a_fast_machine(
    monkeypatch: pytest.MonkeyPatch, clocks: dict[float, str]
) -> None:
    rng = np.random.default_rng(4)
    w, x = rng.standard_normal((32, 16, 3, 3), np.float32), rng.standard_normal((2, 16, 30, 30), np.float32)
    results, told = [], []
    make = calls.make_entry

    def entry(*arguments: object) -> object:
        told.append(arguments[5:8])  # threads, waking, whether the GIL is kept
        return make(*arguments)

    monkeypatch.setattr(calls, "make_entry", entry)
    for clock in (SLOW, FAST):
        monkeypatch.setenv("POLYCONV_PROFILE", clocks[clock])
        with polyconv.settings(check=False):
            results.append(polyconv.Conv(w, threads=2)(x))
    assert told == [(2, 2, False), (1, 1, True)]
    assert results[0].tobytes() == results[1].tobytes()
