"""``polyconv info``: this machine and this installation, as polyconv sees them.

Facts are read from the operating system, LLVM and the package metadata; only ``--machine`` may measure, once.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from polyconv.cli import gpu, machine, render
from polyconv.cli.options import AsJson
from polyconv.dataclass import dataclass
from polyconv.machine.caches import Cache, caches
from polyconv.settings import SETTINGS, affinity, cgroup_quota, resolve, spelled_bytes
from polyconv.target import host_target, target

__all__ = ["card", "command", "installed"]

_PACKAGES = (
    "polyconv", "numpy", "llvmlite", "ml_dtypes", "onnx", "onnxruntime", "openvino", "torch", "defusedxml",
    "typer", "rich", "pillow",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """What a setting is, and the environment variable that says so."""

    value: str
    variable: str | None


def command(
    of_machine: Annotated[
        bool, typer.Option("--machine", help="What the CPU does in a cycle, of which plans are made, and who says so.")
    ] = False,
    toml: Annotated[bool, typer.Option("--toml", help="With --machine: as a file for POLYCONV_PROFILE.")] = False,
    plans: Annotated[
        bool, typer.Option("--plans", help="With --machine: which algorithms typical layers get on every preset.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show CPU, instruction set, caches, cores, versions, paths and settings."""
    if (toml or plans) and not of_machine:
        raise typer.BadParameter("--toml and --plans show parts of --machine: give that too")
    if toml and (plans or as_json):
        raise typer.BadParameter("--toml is a text of its own: leave out --plans and --json")
    if of_machine:
        machine.show(as_json=as_json, toml=toml, with_plans=plans)
        return
    if as_json:
        render.document({"command": "info", **_facts()})
        return
    for title, part in card().items():
        render.facts(title, part)


def card() -> dict[str, dict[str, object]]:
    """All facts in the words and numbers that a person reads, title by title."""
    return {title: {name: _spelled(value) for name, value in part.items()} for title, part in _facts().items()}


def _facts() -> dict[str, dict[str, Any]]:
    return {
        "cpu": _cpu(),
        "caches": caches(),
        "cores": _cores(),
        "gpus": gpu.facts(),
        "versions": _versions(),
        "paths": {"package": str(Path(__file__).parent.parent), "cache": str(resolve("cache_dir"))},
        "settings": _settings(),
    }


def _spelled(value: object) -> object:
    if value is None:
        return "not installed"
    if isinstance(value, Cache):
        return f"{spelled_bytes(value.bytes)}, lines of {value.line} bytes, of CPUs {value.cpus}"
    if isinstance(value, Value):
        return value.value if value.variable is None else f"{value.value} (from {value.variable})"
    return value


def _cpu() -> dict[str, Any]:
    host = host_target()
    used = target(resolve("target"))
    beyond = {"dot products of bytes": host.vnni, "dot products of bf16": host.bf16, "matrix unit": host.matrix}
    return {
        "name": _model_name(),
        "machine": platform.machine(),
        "llvm name": host.cpu,
        "instruction set": ", ".join([host.level, *(name for name, has in beyond.items() if has)]),
        "used": used.level,
        "vector": f"{8 * used.vector_bytes} bits",
    }


def _model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


def _cores() -> dict[str, Any]:
    quota = cgroup_quota()
    return {
        "online": os.cpu_count(),
        "affinity": affinity(),
        "control group quota": "none" if quota is None else f"{quota:.3g}",
        "load average": f"{os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "unknown",
        "threads of a call": resolve("threads"),
    }


def _versions() -> dict[str, Any]:
    import llvmlite.binding as llvm

    return {
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        **{package: installed(package) for package in _PACKAGES},
    }


def installed(package: str) -> str | None:
    """Version of an installed package, without importing it; None if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _settings() -> dict[str, Value]:
    rows = {}
    for row in SETTINGS.values():
        value = resolve(row.name)
        shown = ",".join(sorted(value)) if isinstance(value, frozenset) else value
        variable = next((v for v in row.variables if os.environ.get(v, "").strip()), None)
        rows[row.name] = Value("none" if shown in (None, "") else str(shown), variable)
    return rows
