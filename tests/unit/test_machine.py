"""Machine profiles: presets are whole, files replace them or are refused, and what is measured is kept."""

from __future__ import annotations

import logging
import math
import pickle
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiles import changed

import polyconv
from polyconv import ArgumentError, Problem, Unsupported, wisdom
from polyconv.cli.machine import LAYERS, plans
from polyconv.lowering.situation import Situation
from polyconv.machine import calibrate
from polyconv.machine.host import of_cpu, profile_in_force
from polyconv.machine.profile import Profile, arithmetics, of_file, presets, spelled
from polyconv.planning.planner import choose
from polyconv.planning.wisdom_file import read
from polyconv.target import LEVELS, Target, host_target, levels, target

PROBLEMS = Path(__file__).parents[1] / "kernels" / "problems.txt"
TEXT = "conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1"
TRIPLES = dict.fromkeys(LEVELS, "x86_64-unknown-linux-gnu") | {"neon": "aarch64-unknown-linux-gnu"}
WAY_OUT = "polyconv info --machine --toml"


@pytest.fixture(autouse=True)
def _no_profile_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYCONV_PROFILE", raising=False)


# -- presets ---------------------------------------------------------------------------------------------


def test_every_table_of_the_file_is_a_preset() -> None:
    file = Path(polyconv.__file__).parent / "machine" / "presets.toml"
    assert list(presets()) == list(tomllib.loads(file.read_text("utf-8")))


@pytest.mark.parametrize("preset", presets().values(), ids=str)
def test_every_number_of_a_preset_has_a_source(preset: Profile) -> None:
    keys = [key for key, *_ in preset.rows()]
    assert sorted(keys) == sorted(preset.numbers)
    for key, value, unit, source in preset.rows():
        assert math.isfinite(value), key
        assert value > 0, key
        assert unit, key
        assert source, key
    for start in preset.sources:
        assert any(key == start or key.startswith(f"{start}.") for key in keys), f"{start} is the source of nothing"


@pytest.mark.parametrize("preset", presets().values(), ids=str)
def test_a_preset_has_all_levels_below_its_own_and_all_arithmetics(preset: Profile) -> None:
    assert preset.levels in (("baseline", "avx2"), ("baseline", "avx2", "avx512"), ("neon",))
    for level in preset.levels:
        for name in arithmetics(level):
            rates = preset.rates_of(level, name)
            assert 0 < rates.multiply_adds <= 8
            assert 1 <= rates.latency <= 16


def test_a_cpu_has_one_preset() -> None:
    cpus = [cpu for preset in presets().values() for cpu in preset.cpus]
    assert len(cpus) == len(set(cpus))
    assert all(of_cpu(cpu) is not None for cpu in cpus)
    assert of_cpu("i486") is None


@pytest.mark.parametrize("preset", presets().values(), ids=str)
def test_every_preset_plans_every_problem(preset: Profile) -> None:
    drawn = [line for line in PROBLEMS.read_text().splitlines() if not line.startswith("#")]
    for level in preset.levels:
        here = Target(level, TRIPLES[level], preset.cpus[0], "")
        for line in drawn[::8]:
            found = choose(Situation(Problem.parse(line).fused(), here, profile=preset))
            assert all(0 < sum(terms.values()) < math.inf for terms in found.costs.values()), line


def test_the_table_has_a_plan_of_every_layer_for_every_preset() -> None:
    rows = plans()
    assert [text for text, _ in rows] == list(LAYERS)
    for text, by_preset in rows:
        assert list(by_preset) == list(presets()), text


def test_arithmetic_that_takes_twice_as_long_is_priced_so() -> None:
    """A product of integers is what a dense layer waits for: at half the rate it takes twice as long."""
    here, one = target("baseline") if "baseline" in levels() else host_target(), profile_in_force()
    s = Situation(Problem.parse("conv i8>i32 NCHW n1 c256 i14x14 m256 k3x3 p1").fused(), here)
    key = here.level, "i32"
    slow = replace(one.rates[key], multiply_adds=one.rates[key].multiply_adds / 2, latency=one.rates[key].latency / 2)
    other = replace(one, name="slow", rates={**one.rates, key: slow})
    fast, late = (choose(replace(s, profile=profile)).costs["direct"]["products"] for profile in (one, other))
    assert late / fast == pytest.approx(2, rel=0.2)
    floats = Situation(Problem.parse(TEXT).fused(), here)
    assert choose(floats).costs == choose(replace(floats, profile=other)).costs


# -- files -----------------------------------------------------------------------------------------------


def test_a_file_says_what_it_was_written_from(tmp_path: Path) -> None:
    for preset in presets().values():
        file = tmp_path / f"{preset.name}.toml"
        file.write_text(spelled(preset))
        found = of_file(file)
        assert found == preset
        assert (found.numbers, found.cpus) == (preset.numbers, preset.cpus)
        assert [row for row in found.rows()] == [row for row in preset.rows()]


def test_a_file_replaces_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = polyconv.plan(TEXT)
    file = changed(tmp_path / "slow.toml", clock="1e6")
    monkeypatch.setenv("POLYCONV_PROFILE", str(file))
    plan = polyconv.plan(TEXT)
    assert plan.profile == str(of_file(file)) != before.profile
    assert plan.profile.startswith("slow ")
    assert (plan.algorithm, plan.cycles) == (before.algorithm, before.cycles)
    assert plan.seconds == pytest.approx(sum(cycles for _, cycles in plan.cycles) / 1e6)
    assert f"machine     {plan.profile}" in str(plan)


def test_a_plan_for_another_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, x = np.ones((8, 4, 3, 3), np.float32), np.ones((1, 4, 6, 6), np.float32)
    kept = pickle.dumps(polyconv.plan("conv f32 NCHW n1 c4 i6x6 m8 k3x3 p1"))
    before = pickle.loads(kept)(x, w)
    monkeypatch.setenv("POLYCONV_PROFILE", str(changed(tmp_path / "other.toml", wake="1")))
    with pytest.raises(Unsupported, match=r"the plan is for the machine profile .* uses other .*set POLYCONV_PROFILE"):
        pickle.loads(kept)(x, w)
    monkeypatch.delenv("POLYCONV_PROFILE")
    assert (pickle.loads(kept)(x, w) == before).all()


def test_a_preset_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(name for name, preset in presets().items() if host_target().level in preset.levels)
    monkeypatch.setenv("POLYCONV_PROFILE", name)
    assert profile_in_force() is presets()[name]
    assert polyconv.plan(TEXT).profile == str(presets()[name])


def test_an_unknown_name_is_answered_with_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_PROFILE", "zen9")
    with pytest.raises(ArgumentError, match=r"POLYCONV_PROFILE='zen9'.*zen4, zen5, .*ends in \.toml"):
        polyconv.plan(TEXT)


def test_a_machine_without_this_ones_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    level = host_target().level
    name = next(name for name, preset in presets().items() if level not in preset.levels)
    monkeypatch.setenv("POLYCONV_PROFILE", name)
    with pytest.raises(ArgumentError, match=f"{name} has no numbers for the target {level}.*POLYCONV_TARGET"):
        polyconv.plan(TEXT)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace("wake = ", "sleep = "), "no number called sleep"),
        (lambda text: "\n".join(row for row in text.splitlines() if not row.startswith("l2.bytes")), "lacks l2.bytes"),
        (lambda text: text.replace("\nline = 64", "\nline = 0"), "line=0 must be a positive number"),
        (lambda text: text.replace("\nline = 64", "\nline = nan"), "line=nan must be a positive number"),
        (lambda text: text.replace("\nline = 64", "\nline = true"), "line=True must be a positive number"),
        (lambda text: text.replace("\nline = 64", '\nline = "64"'), "line='64' must be a positive number"),
        (lambda text: text.replace("cpus = [", "cpus = [1, "), "cpus="),
        (lambda text: text.replace("[sources]", "[sources]\nx = 1"), "sources must be"),
        (lambda text: text.replace("[sources]", "[sources"), "it is not TOML"),
        (lambda text: "", "lacks clock"),
        (lambda text: "[" * 5000, "it is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str], said: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(edit(spelled(presets()["zen4"])))
    monkeypatch.setenv("POLYCONV_PROFILE", str(file))
    with pytest.raises(ArgumentError) as caught:
        polyconv.plan(TEXT)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)
    assert WAY_OUT in str(caught.value) or "positive number" in said


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        of_file(tmp_path / "none.toml")
    with pytest.raises(ArgumentError, match="cannot be read"):
        of_file(tmp_path)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ArgumentError, match="more than 1 MiB"):
        of_file(large)


def test_wisdom_of_another_profile_is_kept_and_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_WISDOM", str(tmp_path / "wisdom.json"))
    wisdom.forget()
    s = Situation(Problem.parse(TEXT).fused(), host_target())
    other = next(name for name in choose(s).costs if name != choose(s).algorithm)
    wisdom.remember(s, other, {other: 1e-6}, "measure")
    assert wisdom.decision(s) is not None
    monkeypatch.setenv("POLYCONV_PROFILE", str(changed(tmp_path / "other.toml", wake="1")))
    there = Situation(s.problem, s.target)
    assert there != s
    assert wisdom.decision(there) is None
    [entry] = wisdom.entries()
    assert "another machine profile" in str(wisdom.outdated(entry))
    assert wisdom.save() is not None
    assert wisdom.save() is not None  # what stands in the file is looked at, too
    assert read(tmp_path / "wisdom.json") == (entry,)
    wisdom.forget()


# -- calibration -----------------------------------------------------------------------------------------


def _targets() -> list[Target]:
    return [target(level) for level in levels()]


def test_measured_numbers_are_positive_and_of_every_level() -> None:
    found = calibrate.measured(_targets())
    assert found.levels == levels()
    assert found.cpus == (host_target().cpu,)
    for key, value, _, source in found.rows():
        assert 0 < value < math.inf, key
        assert source, key
    wide = found.rates_of(levels()[-1], "f32")
    assert 0.1 < wide.multiply_adds < 16  # a busy machine only makes it lower
    assert wide.latency > 0.5


def test_what_was_measured_is_kept_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    first = calibrate.kept(_targets(), folder)

    def never(targets: object) -> Profile:
        raise AssertionError("measured again")

    monkeypatch.setattr(calibrate, "measured", never)
    again = calibrate.kept(_targets(), folder)
    assert again == first
    assert again.numbers == first.numbers
    monkeypatch.setenv("POLYCONV_PROFILE", str(folder / "calibrated.toml"))
    assert polyconv.plan(TEXT).profile == str(first)


@pytest.mark.parametrize(("text", "said"), [("cpus = [", "it is not TOML"), (None, "another CPU, znver9")])
def test_a_damaged_or_foreign_file_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str | None, said: str
) -> None:
    mine = profile_in_force()
    monkeypatch.setattr(calibrate, "measured", lambda targets: mine)
    (tmp_path / "calibrated.toml").write_text(text or spelled(replace(mine, cpus=("znver9",))))
    with caplog.at_level(logging.WARNING, "polyconv"):
        assert calibrate.kept(_targets(), tmp_path) == mine
    assert said in caplog.text
    assert of_file(tmp_path / "calibrated.toml").numbers == mine.numbers


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine = profile_in_force()

    def full(self: Path, where: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(calibrate, "measured", lambda targets: mine)
    monkeypatch.setattr(Path, "replace", full)
    with caplog.at_level(logging.WARNING, "polyconv"):
        assert calibrate.kept(_targets(), tmp_path) == mine
    assert "No space left" in caplog.text
    assert "POLYCONV_PROFILE" in caplog.text
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")] == []


def test_a_folder_of_others_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine, shared = profile_in_force(), tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setattr(calibrate, "measured", lambda targets: mine)
    with caplog.at_level(logging.WARNING, "polyconv"):
        assert calibrate.kept(_targets(), shared) == mine
    assert "cannot be kept" in caplog.text
    assert list(shared.iterdir()) == []
