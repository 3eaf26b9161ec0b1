"""The steps of a model as a table, and what a session takes of memory as a sentence.

Turns records of a session and plans of its convolutions into rows; it chooses nothing and measures only whole runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyconv.cli import render
from polyconv.models.records import Memory, StepRecord
from polyconv.models.session import InferenceSession
from polyconv.problem.plan import Plan
from polyconv.settings import spelled_bytes

__all__ = ["memory_line", "rows", "show", "timed"]

_RUNS = 3
"""Timed runs after the first; the steps of the middle one count."""


def timed(model: InferenceSession, feeds: Mapping[str, Any]) -> tuple[StepRecord, ...]:
    """The steps of a model with their times, of a run that took a middle time."""
    model.run(None, feeds)
    runs = []
    for _ in range(_RUNS):
        model.run(None, feeds)
        runs.append(model.steps)
    return sorted(runs, key=lambda steps: sum(step.seconds or 0.0 for step in steps))[_RUNS // 2]


def rows(records: Sequence[StepRecord], plans: Mapping[tuple[str, bool], Plan], once: bool) -> list[dict[str, Any]]:
    """A row a step: who runs it on what layout, bytes of results and constants, predicted and measured time, share."""
    total = sum(record.seconds or 0.0 for record in records) or 1.0
    found = []
    for record in records:
        plan = None if record.problem is None else plans.get((record.problem, once or record.once))
        found.append({
            "nodes": record.nodes, "ops": record.ops, "engine": record.engine, "device": record.device,
            "copies": record.copies,
            "layout": None if plan is None else plan.problem.layout,
            "algorithm": None if plan is None else plan.algorithm, "shapes": record.shapes,
            "result_bytes": record.result_bytes, "held_bytes": record.held_bytes,
            "predicted_seconds": None if plan is None else plan.seconds, "measured_seconds": record.seconds,
            "share": None if record.seconds is None else record.seconds / total,
        })  # fmt: skip
    return found


def show(target: str, steps: Sequence[Mapping[str, Any]], memory: Memory) -> None:
    """The table of a model's steps."""
    cells = [
        (
            _few(row["nodes"]), " ".join(dict.fromkeys(row["ops"])), _runs_on(row), row["layout"],
            " ".join(_extents(shape) for shape in row["shapes"]), _bytes(row["result_bytes"]),
            _bytes(row["held_bytes"] or None), _microseconds(row["predicted_seconds"]),
            _microseconds(row["measured_seconds"]), None if row["share"] is None else f"{row['share']:.1%}",
        )
        for row in steps
    ]  # fmt: skip
    columns = ("step", "operators", "runs-on", "layout", "shape", "bytes", "constants", "predicted-us", "us", "share")
    render.table(f"{target}: {len(cells)} steps", columns, cells, "bytes constants predicted-us us share")
    render.line(memory_line(memory))
    render.line()


def _runs_on(row: Mapping[str, Any]) -> str:
    """The algorithm or engine of a step, and the device if it is not the CPU, or the copies if others are elsewhere."""
    where = "" if row["device"] == "cpu" else f" {row['device']}"
    return f"{row['algorithm'] or row['engine']}{where}{' (copied there and back)' * row['copies']}"


def memory_line(memory: Memory) -> str:
    """What a session takes, in a sentence."""
    held = f"weights and other constants take {spelled_bytes(memory.held_bytes)} in the forms made so far"
    if memory.replay_bytes:
        kept = spelled_bytes(memory.replay_bytes)
        held += f"; runs that are alike keep {kept} for values and workspaces between them"
    if memory.peak_bytes is None or memory.sum_bytes is None:
        return held
    return (
        f"values of a run take at most {spelled_bytes(memory.peak_bytes)} at once, in the step of {memory.node} "
        f"({spelled_bytes(memory.sum_bytes)} in all); {held}"
    )


def _extents(shape: Sequence[object] | None) -> str:
    return "?" if shape is None else "x".join("?" if e is None else str(e) for e in shape) or "scalar"


def _bytes(count: int | None) -> str | None:
    return None if count is None else spelled_bytes(count)


def _microseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e6 * seconds:,.1f}"


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
