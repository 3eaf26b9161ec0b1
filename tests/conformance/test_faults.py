"""Planted faults are noticed twice, by the fuzz and by check mode; ``polyconv check --faults`` tries them all."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance import faults, planted
from polyconv.errors import ArgumentError, Error


@pytest.mark.parametrize("fault", planted.FAULTS.values(), ids=lambda fault: fault.name)
def test_the_fault_can_be_planted(fault: planted.Fault) -> None:
    """The text a fault replaces stands in today's generator, and what replaces it is valid."""
    spec = importlib.util.find_spec(fault.module)
    assert spec is not None and spec.origin is not None
    compile(fault.planted_in(Path(spec.origin).read_text()), spec.origin, "exec")


def test_there_are_forty_faults_and_one_for_every_algorithm() -> None:
    assert len(planted.FAULTS) >= 40
    assert len({(f.module, f.right, f.wrong) for f in planted.FAULTS.values()}) == len(planted.FAULTS)
    assert {f.algorithm for f in planted.FAULTS.values()} == {*ALGORITHMS, ""}


@pytest.mark.parametrize("name", ["tail mask", "group offset", "chunk weights", "tap offset"])
def test_the_fault_is_caught(name: str) -> None:
    (verdict,) = faults.run([name], most=40)
    assert verdict.fuzz is not None
    assert verdict.check is not None
    assert verdict.check.how.endswith(("load", "store"))  # by a bounds check, not by a wrong value


@pytest.mark.parametrize("name", ["early place", "kept address"])
def test_the_fault_is_caught_by_graphs(name: str) -> None:
    (verdict,) = faults.run([name], most=30)
    assert verdict.fuzz is not None and verdict.fuzz.how.endswith("a second run gave other bits")


def test_graphs_without_a_fault_show_none() -> None:
    harmless = planted.Fault("", "", "polyconv.models.places", "\nLINE = 64", "\nLINE = 128", "")
    assert faults.caught(harmless, most=10, check=False) is None


@pytest.mark.parametrize("check", [False, True])
def test_a_harmless_change_is_not_caught(check: bool) -> None:
    """The search itself reports nothing."""
    harmless = planted.Fault("", "", "polyconv.kernels.layout", "_INT = ", "_INT  = ", "generic")
    assert faults.caught(harmless, most=15, check=check) is None


def test_what_cannot_be_planted_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"faults \['typo'\] are not known; choose from \['tail mask'"):
        faults.run(["typo"])
    with pytest.raises(Error, match=r"stands 0 times in polyconv\.kernels\.layout, must stand once"):
        planted.FAULTS["tail mask"].planted_in("nothing")
    loaded = planted.Fault("late", "", "polyconv.errors", "a", "b", "generic")
    with pytest.raises(Error, match=r"polyconv\.errors is loaded already"):
        faults.plant(loaded)
