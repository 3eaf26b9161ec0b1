"""``polyconv info --machine``: what the machine can do, where each number comes from, and what follows from it.

It also plans typical layers for every preset, whatever this machine is.  It must not know how a plan is chosen.
"""

from __future__ import annotations

from typing import Any

from polyconv.cli import render
from polyconv.lowering.situation import Situation
from polyconv.machine.host import profile_in_force
from polyconv.machine.profile import Profile, presets, spelled
from polyconv.planning.planner import choose
from polyconv.problem.problem import Problem
from polyconv.settings import resolve
from polyconv.target import Target

__all__ = ["LAYERS", "plans", "show"]

LAYERS = (
    "conv f32 NCHW n1 c3 i224x224 m64 k7x7 s2 p3",
    "conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1",
    "conv f32 NHWC n1 c64 i56x56 m64 k3x3 p1",
    "conv f32 NCHW n1 c256 i28x28 m256 k3x3 s2 p1",
    "conv f32 NCHW n1 c512 i7x7 m512 k3x3 p1",
    "conv f32 NCHW n1 c256 i56x56 m64 k1x1",
    "conv f32 NHWC n1 c256 i56x56 m64 k1x1",
    "conv f32 NCHW n1 c128 i28x28 m128 k3x3 p1 g32",
    "conv f32 NCHW n1 c256 i28x28 m256 k3x3 p1 g256",
    "conv f32 NHWC n1 c192 i28x28 m192 k7x7 p3 g192",
    "conv f32 NCHW n1 c64 i28x28 m64 k31x31 p15 g64",
    "conv f32 NCHW n1 c32 i16x32x32 m32 k3x3x3 p1",
    "conv_transpose f32 NCHW n1 c128 i28x28 m64 k4x4 s2x2 p1",
    "conv f64 NCHW n1 c64 i56x56 m64 k3x3 p1",
    "conv i8>i32 NCHW n1 c256 i14x14 m256 k3x3 p1",
)
"""Typical layers, of which tables show the plans."""

_TRIPLES = {"neon": "aarch64-unknown-linux-gnu"}


def plans() -> list[tuple[str, dict[str, str]]]:
    """The algorithm of each of ``LAYERS`` by preset, with the widest vectors that it has."""
    rows = []
    for text in LAYERS:
        problem = Problem.parse(text).fused()
        found = {name: Situation(problem, _target(preset), profile=preset) for name, preset in presets().items()}
        rows.append((text, {name: choose(s).algorithm for name, s in found.items()}))
    return rows


def _target(profile: Profile) -> Target:
    level = profile.levels[-1]
    return Target(level, _TRIPLES.get(level, "x86_64-unknown-linux-gnu"), profile.cpus[0], "")


def show(*, as_json: bool, toml: bool, with_plans: bool) -> None:
    """Write the profile in force, as tables, one JSON document, or the file that would be read as it; or the plans."""
    profile = profile_in_force()
    if toml:
        render.line(spelled(profile).rstrip())
        return
    made = plans() if with_plans else []
    if as_json:
        render.document({"command": "info", "machine": _content(profile), "plans": _objects(made)})
        return
    if with_plans:
        columns = ("layer", *presets())
        render.table("algorithms by preset", columns, [(text, *by_preset.values()) for text, by_preset in made])
        return
    render.facts("machine", {
        "profile": str(profile), "chosen": _chosen(), "CPUs": ", ".join(profile.cpus) or "any",
        "presets": ", ".join(presets()),
    })  # fmt: skip
    cells = [(key, f"{value:.6g}", unit, source) for key, value, unit, source in profile.rows()]
    render.table("numbers", ("number", "value", "unit", "from"), cells, right="value")


def _chosen() -> str:
    if resolve("profile") is not None:
        return "POLYCONV_PROFILE"
    return "measured here, once" if profile_in_force().name == "calibrated" else "preset of this CPU"


def _content(profile: Profile) -> dict[str, Any]:
    numbers = [
        {"number": key, "value": value, "unit": unit, "from": source} for key, value, unit, source in profile.rows()
    ]
    return {
        "name": profile.name, "digest": profile.digest, "chosen": _chosen(), "cpus": profile.cpus,
        "presets": list(presets()), "numbers": numbers,
    }  # fmt: skip


def _objects(made: list[tuple[str, dict[str, str]]]) -> list[dict[str, Any]]:
    return [{"problem": text, "algorithms": by_preset} for text, by_preset in made]
