"""Instruction-set levels: which ones an architecture has, and what is said to those that it lacks."""

from __future__ import annotations

import pytest

from polyconv import target
from polyconv.errors import ArgumentError
from polyconv.kernels import isa
from polyconv.settings import SETTINGS
from polyconv.target import LEVELS, Target

ARM = Target("neon", "aarch64-unknown-linux-gnu", "neoverse-n1", "+neon")
X86 = Target("avx2", "x86_64-pc-windows-msvc", "haswell", "+avx2")
OTHER = Target("baseline", "riscv64-unknown-linux-gnu", "generic-rv64", "")


@pytest.mark.parametrize(
    ("host", "levels"),
    [(ARM, ["neon"]), (X86, ["baseline", "avx2"]), (OTHER, ["baseline"])],
    ids=["arm", "x86", "other"],
)
def test_a_machine_has_the_levels_of_its_architecture(
    host: Target, levels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "host_target", lambda: host)
    assert list(target.levels()) == levels
    chosen = target.target.__wrapped__
    assert chosen(None) == chosen(host.level) == host
    for level in LEVELS:
        if level in levels:
            assert chosen(level).level == level
        else:
            with pytest.raises(ArgumentError, match=f"{level}.*this machine, which has {host.level}; choose from"):
                chosen(level)
    with pytest.raises(ArgumentError, match="'sse9' is not one of"):
        chosen("sse9")


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin24.1.0", "aarch64-pc-windows-msvc"])
def test_every_64_bit_arm_has_neon(triple: str) -> None:
    assert target._of_architecture(triple) == ("neon",)


def test_32_bit_arm_has_none() -> None:
    assert target._of_architecture("armv7l-unknown-linux-gnueabihf") == ("baseline",)


def test_every_level_has_tiles_and_a_word() -> None:
    for table in (isa._CHANNEL_TILES, isa._PIXEL_TILES):
        assert set(table) == {*LEVELS, "avx2 products"}
    assert set(isa._RUN_TILES) == {*LEVELS, "avx2 products", "avx2 presummed"}
    assert set(isa._SQUARE_TILES) == set(LEVELS)
    assert {SETTINGS["target"].read(level) for level in LEVELS} == set(LEVELS)
    assert all(level in SETTINGS["target"].values for level in LEVELS)


def test_a_matrix_unit_that_the_system_does_not_allow_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that another process left on disk with the unit has the name of what this one asks for."""
    features = "+avx512f,+amx-tile,+amx-int8,+sse4.1"
    found = Target("avx512", "x86_64-unknown-linux-gnu", "x", features, bf16=True, vnni=True, matrix=True)
    monkeypatch.setattr(target, "_host_target", lambda: found)
    chosen = target.host_target.__wrapped__
    monkeypatch.setattr(target, "_is_allowed", lambda: True)
    assert chosen() == found
    monkeypatch.setattr(target, "_is_allowed", lambda: False)
    assert not chosen().matrix and chosen().features == "+avx512f,+sse4.1"
