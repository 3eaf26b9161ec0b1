"""What ``explain --kernel`` shows: the kernels of plans in tables, below them LLVM text and assembly; or all as data.

Kernels that several plans share are shown once.  What stands around a text is a comment in it: one that is sent to a
file can be given to LLVM's tools or an assembler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from polyconv.benchmark.sets import pattern_of
from polyconv.cli import render
from polyconv.errors import ArgumentError
from polyconv.layer import Plan
from polyconv.planned import Kernel

__all__ = ["Form", "data", "of_plans", "roles", "show"]

Form = Literal["list", "ir", "asm", "all"]

Listed = Sequence[tuple[Plan, Sequence[Kernel]]]
"""Plans, and the kernels of each that are shown."""


def of_plans(plans: Sequence[Plan], match: str | None) -> Listed:
    """Kernels of some plans, of these the ones in whose label a regular expression is found.

    Raises
    ------
    ArgumentError
        If the expression is none, or is found in no label.
    """
    pattern = pattern_of(match)
    listed = [(plan, [kernel for kernel in plan.kernels() if pattern.search(kernel.label)]) for plan in plans]
    if match is not None and not any(kernels for _, kernels in listed):
        raise ArgumentError(f"--match {match!r} fits no kernel; --kernel --code list shows their labels")
    return listed


def show(listed: Listed, form: Form) -> None:
    """Write tables of kernels, and texts."""
    if form in ("list", "all"):
        for plan, kernels in listed:
            rows = [(k.label, k.role, _counted(k.kinds), k.file and k.file.name) for k in kernels]
            columns = "kernel", "role", "functions", "object-file"
            render.table(f"{plan.problem} by {plan.algorithm}", columns, rows)
    for kernel in _distinct(listed).values():
        if form in ("ir", "all"):
            _text(kernel, ";", kernel.ir)
        if form in ("asm", "all"):
            _text(kernel, "#", kernel.assembly)


def roles(kernels: Sequence[Kernel]) -> list[dict[str, str]]:
    """Kernels of a plan, as JSON has them beside the plan."""
    return [{"label": kernel.label, "role": kernel.role} for kernel in kernels]


def data(listed: Listed, form: Form) -> list[dict[str, Any]]:
    """All distinct kernels of the plans, as JSON has them."""
    return [
        {
            "label": kernel.label, "functions": [{"name": name, "kind": kind} for name, kind in kernel.functions],
            "file": kernel.file,
            **({"ir": kernel.ir} if form in ("ir", "all") else {}),
            **({"assembly": kernel.assembly} if form in ("asm", "all") else {}),
        }
        for kernel in _distinct(listed).values()
    ]  # fmt: skip


def _distinct(listed: Listed) -> dict[str, Kernel]:
    return {kernel.label: kernel for _, kernels in listed for kernel in kernels}


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in kinds.items())


def _text(kernel: Kernel, comment: str, text: str) -> None:
    """A text under what names it."""
    target = kernel.target
    render.line(f"{comment} kernel {kernel.label}")
    render.line(f"{comment} for {target.triple}, {target.cpu}")
    render.line(f"{comment} compiled: {kernel.file or 'not in the object cache'}")
    render.line(text)
