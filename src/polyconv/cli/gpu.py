"""What the commands show of GPUs: ``check --device cuda`` and ``bench --device cuda``.

Figures come from ``conformance.on_gpu`` and ``benchmark.cuda``; this file chooses columns and spells numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from polyconv.benchmark.record import save
from polyconv.benchmark.sets import Case
from polyconv.cli import render

__all__ = ["FEW", "bench", "check", "kinds_of", "number_of"]

FEW = 60
"""Random problems of a check that names no number."""


def number_of(device: str) -> int:
    """Number of the GPU that ``cuda`` or ``cuda:1`` names."""
    word, _, number = device.partition(":")
    if word != "cuda" or not (number or "0").isdigit():
        raise typer.BadParameter(f"--device {device} is not known; give cuda, or cuda:1 for the second GPU")
    return int(number or 0)


def check(device: str, count: int, seed: int, *, as_json: bool) -> bool:
    """Random problems on a GPU; whether all were right."""
    from polyconv.conformance import on_gpu
    from polyconv.gpu.device import device as facts

    number = number_of(device)
    name = facts(number).name
    with render.progress("problems") as advance:
        report = on_gpu.run(count, seed, device=number, progress=lambda done: advance(done, count))
    if as_json:
        render.document({"command": "check", "device": name, "fuzz": report})
        return not report.findings
    render.table(f"runs on {name}", ("arithmetic", "runs"), sorted(report.runs.items()), right="runs")
    for finding in report.findings:
        render.line(finding)
    render.line(
        f"seed {seed}: {report.tried} problems, {sum(report.runs.values())} runs, {len(report.findings)} findings; "
        f"{report.passed_over} of operators that GPUs do not compute"
    )
    return not report.findings


def kinds_of(words: str) -> tuple[str, ...]:
    """Kinds of arithmetic from a list with commas."""
    from polyconv.benchmark.cuda import KINDS

    found = tuple(word.strip() for word in words.split(",") if word.strip())
    if strange := [word for word in found if word not in KINDS]:
        raise typer.BadParameter(f"--kinds {','.join(strange)} is not known; choose from {', '.join(KINDS)}")
    return found


_COLUMNS = ("layer", "type", "bound us", "cuDNN us", "with bias us", "polyconv us", "ratio", "planes", "error", "form")


def bench(device: str, cases: Sequence[Case], kinds: Sequence[str], count: int, rounds: int, *, as_json: bool,
          file: Path | None) -> None:  # fmt: skip
    """Layers on a GPU against cuDNN."""
    from polyconv.benchmark import cuda

    rows: list[cuda.Row] = []
    number = number_of(device)

    def document() -> dict[str, Any]:
        means = [asdict(mean) for mean in cuda.means(rows)]
        return {"command": "bench", "device": cuda.card(number), "rows": [asdict(row) for row in rows], "means": means}

    with render.progress("layers") as advance:

        def finished(row: cuda.Row, done: int, total: int) -> None:
            rows.append(row)
            advance(done, total)
            render.note(" ".join(str(word) for word in _row(row)))
            if file is not None:
                save({"schema_version": render.SCHEMA_VERSION, **document()}, file)

        cuda.run(cases, kinds, device=number, forms=count, rounds=rounds, progress=finished)
    if as_json:
        render.document(document())
        return
    card = cuda.card(number)
    title = ", ".join(f"{name} {value}" for name, value in card.items())
    render.table(title, _COLUMNS, [_row(row) for row in rows], " ".join(_COLUMNS[2:8]))
    for mean in cuda.means(rows):
        render.line(
            f"{mean.kind}: {mean.layers} layers, cuDNN takes {mean.best:.2f} times as long without its bias, "
            f"{mean.bias:.2f} with it; planes against planes {mean.planes:.2f}; {mean.share:.0%} of the bound; "
            f"lost: {', '.join(mean.lost) or 'none'}"
        )


def _row(row: Any) -> tuple[object, ...]:
    def spelled(value: float | None) -> str | None:
        return None if value is None else f"{value:.1f}"

    ratio = None if row.ratio is None else f"{row.ratio:.2f}"
    planes = None if row.planes is None else f"{row.planes:.2f}"
    error = None if row.error is None else f"{row.error:.1e}"
    times = (row.bound, row.cudnn, row.cudnn_bias, row.polyconv)
    return row.layer, row.kind, *(spelled(t) for t in times), ratio, planes, error, row.form
