"""``polyconv check``: shows whether polyconv computes right on this machine.

A short self-test by default: one problem of every kind, type and layout against the float64 oracle,
within the bound that the arithmetic allows.  ``--conformance``, ``--fuzz``, ``--graphs`` and ``--faults`` run the
long tests.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from polyconv.algorithms.table import ALGORITHMS
from polyconv.cli import gpu, render
from polyconv.cli.options import AsJson
from polyconv.conformance.operands import operands
from polyconv.dataclass import dataclass
from polyconv.errors import Error
from polyconv.layer import compute
from polyconv.problem.oracle import magnitude, oracle, tolerance
from polyconv.problem.problem import Problem

__all__ = ["PROBLEMS", "command"]

_FLOATS = ("f32", "f64", "f16", "bf16")
_INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")

PROBLEMS: tuple[str, ...] = (
    *(
        f"conv {t} {layout} n2 c5 i14x9 m19 k3x3 s2x1 p1:2x0:1 b1 r1 act=Relu"
        for t in _FLOATS
        for layout in ("NCHW", "NHWC")
    ),
    *(f"conv {t} NCHW n1 c7 i12x13 m9 k3x2 p1 d2x1" for t in _INTEGERS),
    "conv u8*i8>i32 NHWC n1 c33 i8x8 m17 k3x3 p1",
    "conv u8*i8 NCHW n1 c12 i9x9 m16 k3x3 p1 b1 zx=t zw=t zy=t sx=t sw=c sy=t",
    "conv f32 NCHW n1 c32 i14x14 m32 k3x3 p1 g32 act=HardSwish",
    "conv f32 NHWC n1 c24 i17x15 m48 k5x5 s2 p2 g24",
    "conv f32 NCHW n1 c24 i16x16 m36 k3x3 p1 g6",
    "conv f32 NCHW n3 c64 i7x7 m65 k1x1 b1",
    "conv f32 NWC n2 c3 i101 m8 k9 p4 d3",
    "conv f32 NCDHW n1 c3 i6x7x8 m5 k3x3x3 p1",
    "conv f32 NCHW n1 c2 i3x4x5x3 m3 k2x2x2x2",
    "conv_transpose f32 NCHW n1 c8 i7x7 m6 k4x4 s2 p1 b1 act=Sigmoid",
    "conv_transpose f64 NHWC n1 c6 i5x4 m9 k3x3 s3x2 g3 op1",
    "deform_conv f32 NCHW n1 c4 i9x9 m6 k3x3 p1 og2 mask",
    "causal_conv f32 NCW n2 c16 i21 m16 k4 p3:0 g16 act=Silu",
)
"""One line per kind of arithmetic, with odd sizes so that every tail and edge runs."""


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of one problem: its largest error as a share of what is allowed."""

    problem: str
    passed: bool
    share: float | None
    milliseconds: float
    remark: str = ""


def command(
    conformance: Annotated[
        bool, typer.Option("--conformance", help="Published cases of every operator and version.")
    ] = False,
    fuzz: Annotated[
        int | None,
        typer.Option("--fuzz", min=1, metavar="N", help="N random problems against oracle and peers."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the random numbers.")] = 0,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="Keeps the state of --fuzz, and goes on there."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option("--peers", metavar="NAMES", help="Engines --fuzz asks too; by default all installed."),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", metavar="NAME", help="Only this algorithm, where it applies.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="LEVEL", help="Fuzz kernels for avx512, avx2, baseline or neon."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="cuda[:N]", help="Compute on this GPU, in forms drawn by chance.")
    ] = None,
    every_algorithm: Annotated[
        bool,
        typer.Option("--every-algorithm", help="With --fuzz: each problem by every algorithm that takes it."),
    ] = False,
    graphs: Annotated[
        int | None,
        typer.Option("--graphs", min=1, metavar="N", help="N random ONNX graphs, against derived bounds."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Of --graphs: a small model of each mismatch.")
    ] = None,
    faults: Annotated[
        bool, typer.Option("--faults", help="Plant faults in the kernels: do --fuzz and check mode see them?")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Test that polyconv computes right on this machine."""
    if conformance + faults + (fuzz is not None) + (graphs is not None) > 1:
        raise typer.BadParameter("--conformance, --fuzz, --graphs and --faults are separate runs; give one of them")
    if folder is not None and graphs is None:
        raise typer.BadParameter("--save belongs to --graphs N")
    given = {
        "--resume": resume, "--peers": peers, "--algorithm": algorithm, "--target": target,
        "--every-algorithm": every_algorithm or None,
    }  # fmt: skip
    if device is not None:
        if conformance or faults or graphs is not None or any(value is not None for value in given.values()):
            raise typer.BadParameter("--device goes with --fuzz N and --seed alone")
        if not gpu.check(device, fuzz or gpu.FEW, seed, as_json=as_json):
            raise typer.Exit(4)
        return
    if fuzz is None and (named := [name for name, value in given.items() if value is not None]):
        raise typer.BadParameter(f"{' and '.join(named)} belong to --fuzz N")
    if every_algorithm and (peers or algorithm is not None):
        raise typer.BadParameter("--every-algorithm tries all of them against the oracle alone; leave out the others")
    if conformance:
        passed = _conformance(as_json=as_json)
    elif faults:
        passed = _faults(as_json=as_json)
    elif graphs is not None:
        passed = _graphs(graphs, seed, folder, as_json=as_json)
    elif fuzz is not None:
        passed = _fuzz(fuzz, seed, resume, peers, algorithm, target, every=every_algorithm, as_json=as_json)
    else:
        passed = _self_test(seed, as_json=as_json)
    if not passed:
        raise typer.Exit(4)


def _self_test(seed: int, *, as_json: bool) -> bool:
    with render.progress("self-test") as advance:
        rows = []
        for number, text in enumerate(PROBLEMS):
            advance(number, len(PROBLEMS))
            rows.append(_judged(text, seed))
    failed = sum(not row.passed for row in rows)
    if as_json:
        render.document({"command": "check", "seed": seed, "failed": failed, "problems": rows})
    else:
        render.table(
            "self-test",
            ("problem", "", "error / bound", "ms", ""),
            [(r.problem, "ok" if r.passed else "FAILED", r.share, r.milliseconds, r.remark) for r in rows],
            right="ms",
        )
        render.line(f"{len(rows)} problems, {failed} failed")
    return failed == 0


def _judged(text: str, seed: int) -> Row:
    problem = Problem.parse(text)
    made = operands(problem, np.random.default_rng(seed), kind="normal")
    arrays = (made.x, made.w, made.bias, made.residual)
    started = time.perf_counter()
    try:
        result = compute(problem, *arrays, **made.keywords())
    except Error as error:
        return Row(text, False, None, 0.0, str(error))
    spent = 1e3 * (time.perf_counter() - started)
    got = np.asarray(result[0] if problem.op == "causal_conv" else result)
    share = _share(problem, got, arrays, made.keywords())
    return Row(text, share <= 1.0, share, spent)


def _share(problem: Problem, got: Any, arrays: tuple[Any, ...], more: dict[str, Any]) -> float:
    """Largest error of a result as a share of its bound; integers have to be equal."""
    if got.dtype != problem.y_dtype.numpy or got.shape != problem.y_shape:
        return float("inf")
    if not problem.y_dtype.is_float:
        return 0.0 if np.array_equal(got, oracle(problem, *arrays, **more)) else float("inf")
    exact = oracle(problem, *arrays, raw=True, **more)
    bound = tolerance(problem, magnitude(problem, *arrays, **more), exact)
    error = np.abs(got.astype(np.float64) - exact)
    return float(np.max(np.where(np.isnan(error), np.inf, error / bound), initial=0.0))


def _conformance(*, as_json: bool) -> bool:
    from polyconv.conformance import suite

    with render.progress("conformance") as advance:
        done = itertools.count(1)
        rows = suite.run(lambda outcome: advance(next(done)))
    failed = sum(row.failed for row in rows)
    if as_json:
        names = ("operator", "version", "run", "passed", "failed", "failures", "deviations")
        shown = [{name: getattr(row, name) for name in names} for row in rows]
        render.document({"command": "check", "failed": failed, "conformance": shown})
        return failed == 0
    render.table(
        "conformance",
        ("operator", "version", "run", "passed", "failed"),
        [(row.operator, row.version, row.run, row.passed, row.failed) for row in rows],
        right="version run passed failed",
    )
    deviations = [(row.operator, *pair) for row in rows for pair in sorted(row.deviations.items())]
    if deviations:
        title = "known deviations of other engines, among the passed cases"
        render.table(title, ("operator", "deviation", "cases"), deviations, right="cases")
    for row in rows:
        for name, complaint in row.failures:
            render.line(f"{row.operator} {row.version}: {name}: {complaint}")
    render.line(f"{sum(row.run for row in rows)} cases, {failed} failed")
    return failed == 0


def _fuzz(
    count: int,
    seed: int,
    resume: Path | None,
    peers: str | None,
    algorithm: str | None,
    target: str | None,
    *,
    every: bool,
    as_json: bool,
) -> bool:
    from polyconv.conformance import fuzz
    from polyconv.conformance.peers import available

    named = tuple(name for name in (peers or "").split(",") if name)
    engines = available() if peers is None and not every else named
    with render.progress("fuzz") as advance:
        report = fuzz.run(
            count, seed, algorithm=algorithm, target=target, every=every, resume=resume, peers=engines,
            progress=lambda state: advance(state.next, count),
        )  # fmt: skip
    if as_json:
        render.document({"command": "check", "fuzz": report, "never_run": report.idle})
        return report.passed
    render.table("problems", ("kind", "tried"), sorted(report.operators.items()), right="tried")
    outcomes = [(engine, *row) for engine, tally in report.peers.items() for row in sorted(tally.items())]
    if outcomes:
        render.table("other engines", ("engine", "outcome", "problems"), outcomes, right="problems")
    if every:
        runs = [(name, report.runs.get(name, 0), report.excluded.get(name, "")) for name in ALGORITHMS]
        render.table("runs by algorithm, each in two forms on one thread and on two", ("algorithm", "runs", ""), runs,
                     right="runs")  # fmt: skip
    for name in report.idle:
        render.line(f"{name} was never run: try more problems, or another --seed")
    for finding in report.findings:
        render.line(str(finding))
    if report.not_applicable:
        render.line(f"{report.not_applicable} problems were passed over: the algorithm does not take them")
    render.line(
        f"{report.campaign}: {report.next} problems, {len(report.mismatches)} mismatches of polyconv, "
        f"{len(report.findings) - len(report.mismatches)} of other engines without an explanation"
    )
    return report.passed


def _graphs(count: int, seed: int, folder: Path | None, *, as_json: bool) -> bool:
    from polyconv.conformance import graph_fuzz

    with render.progress("graphs") as advance:
        report = graph_fuzz.run(count, seed, folder=folder, progress=lambda state: advance(state.next, count))
    if as_json:
        render.document({"command": "check", "failed": len(report.mismatches), "graphs": report})
        return not report.mismatches
    render.table("nodes", ("operator", "nodes"), sorted(report.nodes.items()), right="nodes")
    render.table("onnxruntime", ("outcome", "graphs"), sorted(report.outcomes.items()), right="graphs")
    for finding in report.findings:
        render.line(str(finding))
    render.line(
        f"seed {seed}: {report.next} graphs of {sum(report.nodes.values())} nodes, {len(report.mismatches)} mismatches "
        f"of polyconv, {len(report.findings) - len(report.mismatches)} of onnxruntime"
    )
    return not report.mismatches


def _faults(*, as_json: bool) -> bool:
    from polyconv.conformance import faults
    from polyconv.conformance.planted import FAULTS

    with render.progress("planted faults") as advance:
        done = itertools.count(1)
        verdicts = faults.run(progress=lambda verdict: advance(next(done), len(FAULTS)))
    missed = sum(not verdict.is_caught for verdict in verdicts)
    if as_json:
        render.document({"command": "check", "missed": missed, "faults": verdicts})
        return missed == 0
    rows = [
        (v.fault.name, v.fault.meaning, *_caught(v.fuzz), *_caught(v.check, wanted=v.fault.seen_in_check_mode))
        for v in verdicts
    ]
    columns = ("fault", "what goes wrong", "fuzz", "shown by", "check", "memory touched wrongly")
    render.table("planted faults, and after how many problems each is caught", columns, rows, right="fuzz check")
    render.line(f"{len(verdicts)} faults, {missed} missed")
    return missed == 0


def _caught(catch: Any, *, wanted: bool = True) -> tuple[int | None, str]:
    """After how many problems a fault was caught, and by what."""
    if catch is not None:
        return catch.problems, catch.how
    return None, "MISSED" if wanted else "nowhere"
