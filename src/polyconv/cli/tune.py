"""``polyconv tune``: every candidate measured, the fastest remembered for all later processes.

Problems come as for ``bench``; a table of what the estimate would take and what the clock says, and the
user's wisdom file come out.  What is known already with as much rigor is not measured again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Literal

import typer

from polyconv import wisdom
from polyconv.benchmark import sets
from polyconv.benchmark.runs import restricted
from polyconv.cli import gpu, render
from polyconv.cli.options import (
    Accuracy,
    AsJson,
    Dim,
    Files,
    Seed,
    Semantics,
    Threads,
    WorkspaceLimit,
    usage,
    within,
)
from polyconv.cli.targets import Level, Match, Sets, Targets, cases_of
from polyconv.dataclass import dataclass
from polyconv.layer import plan
from polyconv.problem.plan import Candidate, Plan
from polyconv.problem.problem import Problem
from polyconv.settings import resolve

__all__ = ["command"]

_NEAR = 1.1  # an estimate is good if what it takes is at most so many times slower than the best


@dataclass(frozen=True, slots=True)
class Row:
    """One tuned problem: what the estimate takes, what was chosen, and every candidate's times in seconds.

    ``gain`` is the measured time of the estimate's algorithm over the chosen one's, ``loss`` over the best one's.
    """

    label: str
    problem: str
    source: str
    estimate: str
    chosen: str
    predicted: float
    measured: float | None
    gain: float | None
    loss: float | None
    candidates: tuple[Candidate, ...]


def command(
    targets: Targets = None,
    set_: Sets = None,
    match: Match = None,
    rigor: Annotated[
        Literal["measure", "patient"], typer.Option("--rigor", help="patient takes ten times longer.")
    ] = "measure",
    layout: Annotated[
        Literal["NCHW", "NHWC", "both"] | None, typer.Option("--layout", help="In place of each problem's own.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also measure what wisdom knows already.")] = False,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", metavar="SECONDS", min=0, help="Begin no problem after it.")
    ] = None,
    threads: Threads = None,
    accuracy: Accuracy = None,
    workspace_limit: WorkspaceLimit = None,
    target: Level = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cuda[:N]", help="Tune kernels of this GPU instead.")
    ] = None,
    inputs: Files = None,
    dim: Dim = None,
    seed: Seed = 0,
    semantics: Semantics = "onnx",
    as_json: AsJson = False,
) -> None:
    """Measure all algorithms that can compute a problem and remember the fastest; on a GPU the likeliest forms."""
    if not targets and not set_:
        raise typer.BadParameter("name what to tune: problems, files of problems, models, or --set NAME")
    if resolve("check"):
        raise typer.BadParameter("POLYCONV_CHECK is on: the times of checked kernels decide nothing")
    where = None if device is None else gpu.name_of(device)
    if where is not None and (threads is not None or target is not None):
        raise typer.BadParameter("--device tunes kernels of a GPU; leave out --threads and --target")
    cases = usage(sets.select, cases_of(targets or (), set_ or (), inputs, dim, semantics, seed), match)
    if layout is not None:
        wanted = ("NCHW", "NHWC") if layout == "both" else (layout,)
        cases = [replace(case, problem=replace(case.problem, layout=order)) for case in cases for order in wanted]
        cases = list(dict.fromkeys(cases))
    if again:
        wisdom.forget()
    rows: list[Row] = []
    end = None if time_limit is None else time.monotonic() + time_limit
    with restricted(target), within(threads, accuracy, workspace_limit):
        used = resolve("threads")
        try:
            with render.progress("problems") as advance:
                for case in cases:
                    if end is not None and time.monotonic() >= end:
                        break
                    rows.append(_row(case, _tuned(case.problem, device, rigor)))
                    advance(len(rows), len(cases))
                    render.note(_line(rows[-1]))
        finally:  # an interrupt keeps what was measured
            file = wisdom.save()
    near = [row for row in rows if row.loss is None or row.loss <= _NEAR]
    if as_json:
        render.document(
            {
                "command": "tune", "rigor": rigor, "threads": used, "device": where, "file": file,
                "problems": len(cases),
                "estimate_near": len(near), "rows": rows,
            }
        )  # fmt: skip
    else:
        _show(rows, len(cases), len(near), f"on {where}" if where else f"with {used} thread(s)")
    if file is not None:
        render.note(f"kept in {file}")
    elif wisdom.path() is None:
        render.note("POLYCONV_WISDOM is off: nothing was kept")


def _tuned(problem: Problem, device: str | None, rigor: str) -> Plan:
    return plan(problem, rigor=rigor) if device is None else gpu.tuned(problem, device, rigor)


def _row(case: sets.Case, found: Plan) -> Row:
    times = {c.algorithm: c.measured for c in found.candidates if c.measured is not None}
    estimate = min(found.candidates, key=lambda c: c.predicted).algorithm
    own = times.get(estimate)
    chosen = min(times, key=times.__getitem__) if found.is_on_gpu and times else found.algorithm  # a form has a name
    measured = times.get(chosen)
    label = f"{case.label} {case.problem.layout}" if case.set or case.name else str(case.problem)
    return Row(
        label, str(case.problem), found.source, estimate, chosen, found.seconds, measured,
        None if own is None or measured is None else own / measured,
        None if own is None else own / min(times.values()), found.candidates,
    )  # fmt: skip


def _line(row: Row) -> str:
    times = sorted((c.measured, c.algorithm) for c in row.candidates if c.measured is not None)
    return f"{row.label}: " + (", ".join(f"{name} {1e6 * t:.1f} us" for t, name in times) or "one candidate only")


def _show(rows: list[Row], wanted: int, near: int, where: str) -> None:
    table = [
        (
            row.label, row.estimate, row.chosen if row.chosen != row.estimate else "the same",
            f"{1e6 * row.predicted:,.1f}", None if row.measured is None else f"{1e6 * row.measured:,.1f}",
            None if row.gain is None else f"{row.gain:.2f}", row.source,
        )
        for row in rows
    ]  # fmt: skip
    columns = ("problem", "estimate", "chosen", "predicted-us", "measured-us", "gain", "by")
    render.table(f"tuned {where}", columns, table, "predicted-us measured-us gain")
    if len(rows) < wanted:
        render.line(f"the time limit left {wanted - len(rows)} of {wanted} out")
    if not rows:
        return
    render.line(
        f"estimate within {100 * (_NEAR - 1):.0f} % of the best measured candidate: {near} of {len(rows)} "
        f"({near / len(rows):.0%}); another was chosen for {sum(row.chosen != row.estimate for row in rows)}"
    )
    times = [(row.measured * row.gain, row.measured) for row in rows if row.measured and row.gain]
    estimated, chosen = (1e3 * sum(column) for column in zip(*times, strict=True)) if times else (0.0, 0.0)
    render.line(f"together {estimated:.2f} ms as estimated, {chosen:.2f} ms as chosen")
