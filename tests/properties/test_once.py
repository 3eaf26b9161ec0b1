"""Weights that come anew with each call: preparing them counts, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyconv
from polyconv import Problem
from polyconv.conformance.kernel_texts import TARGETS
from polyconv.layer import compute
from polyconv.lowering.situation import Situation
from polyconv.machine.profile import presets
from polyconv.planning.planner import choose
from polyconv.target import target

_LARGE_KERNEL = "conv f32 NCHW n1 c64 i56x56 m64 k15x15 p7"
"""Its spectra take longer than its sum."""


def test_spectra_that_serve_one_call_are_not_made() -> None:
    problem = Problem.parse(_LARGE_KERNEL)
    layers = Situation(problem, TARGETS["avx512"], profile=presets()["zen5"])
    assert choose(layers).algorithm == "fft"
    assert choose(replace(layers, once=True)).algorithm in ("direct", "generic")
    assert "preparing" in dict(polyconv.plan(problem, once=True).cycles)
    assert "preparing" not in dict(polyconv.plan(problem).cycles)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_preparing_counts_once_a_call_and_the_batch_decides_nothing(n: int) -> None:
    s = Situation(Problem.parse(_LARGE_KERNEL.replace("n1", f"n{n}")), target(None), once=True)
    choice = choose(s)
    assert choice.algorithm is choose(Situation(Problem.parse(_LARGE_KERNEL), target(None), once=True)).algorithm
    name = choice.algorithm
    assert choice.cycles(name, n) == pytest.approx(choice.running(n) + choice.preparing[name])
    assert polyconv.plan(s.problem, once=True).seconds == pytest.approx(choice.cycles(name, n) / s.profile.clock)


def test_a_call_gives_what_its_plan_says() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 16, 28, 28), np.float32), rng.standard_normal((32, 16, 5, 5), np.float32)
    problem = Problem.parse("conv f32 NCHW n2 c16 i28x28 m32 k5x5 p2")
    name = polyconv.plan(problem, once=True).algorithm
    assert name != polyconv.plan(problem).algorithm
    y = polyconv.conv(x, w, pads=2)
    np.testing.assert_array_equal(y, compute(problem, x, w, algorithm=name))
    np.testing.assert_array_equal(y[:1], polyconv.conv(x[:1], w, pads=2))
    np.testing.assert_allclose(y, polyconv.Conv(w, pads=2)(x), rtol=1e-4, atol=1e-4)
