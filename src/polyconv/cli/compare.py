"""``polyconv compare``: results held against other engines and the exact ones, to see who differs and by how much.

A problem runs on random numbers through polyconv and every other engine that is installed; the float64 oracle
says who is right.  A model runs once, and each step that polyconv runs also on onnxruntime or OpenVINO, on the
arrays that reached it: the first row that differs is the node to look at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from polyconv.cli import options, render
from polyconv.cli.interrupts import kept_when_interrupted
from polyconv.conformance import peers
from polyconv.conformance.judge import Expected, expected, faults, widened
from polyconv.conformance.operands import Operands
from polyconv.dataclass import dataclass
from polyconv.layer import compute, plan
from polyconv.models.compare import Compared, compared
from polyconv.problem.problem import Problem
from polyconv.runtime.memory import allocating, sized

__all__ = ["command"]

_OF_MODELS = {".onnx": "onnxruntime", ".xml": "openvino"}
_DIFFER, _NOTHING_COMPARED = 4, 3
"""Exit codes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One engine's result of a problem.

    Parameters
    ----------
    engine : str
    rms, largest : float or None
        Error against the exact values, in units of their rms.
    share : float or None
        The largest error as a share of what is allowed; None for integers.
    outputs : int or None
        How many are wrong; None where there is no result.
    allowed : str
        Which bound was granted: ``own`` or ``window``.
    remark : str
        Why there is no result.
    """

    engine: str
    rms: float | None = None
    largest: float | None = None
    share: float | None = None
    outputs: int | None = None
    allowed: str = ""
    remark: str = ""


def command(
    target: options.Target,
    with_: Annotated[
        str | None, typer.Option("--with", metavar="NAME,...", help="Other engines; by default all that can.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", min=0, help="Of a model's nodes, in units of the rms of the node's values."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="A .npz of every node that differs.")
    ] = None,
    inputs: options.Files = None,
    dim: options.Dim = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    accuracy: options.Accuracy = None,
    workspace_limit: options.WorkspaceLimit = None,
    semantics: options.Semantics = "onnx",
    as_json: options.AsJson = False,
) -> None:
    """Compare results with other engines: the whole of a problem, a model node by node."""
    wanted = options.subject(target)
    names = None if with_ is None else tuple(word.strip() for word in with_.split(",") if word.strip())
    with options.within(threads, accuracy, workspace_limit):
        if isinstance(wanted, Problem):
            if inputs or dim or folder is not None or tolerance is not None:
                raise typer.BadParameter("--input, --dim, --save and --tolerance are for models")
            code = _problem(wanted, names, seed, as_json=as_json)
        else:
            _check_engine(wanted, names)
            _, fed = options.session(wanted, semantics, inputs, dim, seed)
            arrays = {name: feed.array for name, feed in fed.items()}
            rows: list[Compared] = []
            with render.progress("steps") as advance, kept_when_interrupted(lambda: _table(target, rows)):
                for row in compared(wanted, arrays, semantics=semantics, tolerance=tolerance, progress=advance):
                    rows.append(row if row.arrays and folder is not None else replace(row, arrays={}))  # noqa: PERF401
            saved = [] if folder is None else _saved(rows, folder)
            code = _model(target, rows, saved, as_json=as_json)
    if code:
        raise typer.Exit(code)


# -- a problem -----------------------------------------------------------------------------------------


def _problem(p: Problem, names: Sequence[str] | None, seed: int, *, as_json: bool) -> int:
    """Compare all engines with the exact result; the exit code."""
    there = peers.available()
    unknown = [name for name in names or () if name not in there]
    if unknown:
        raise typer.BadParameter(f"--with {', '.join(unknown)}: the engines here are {', '.join(there) or 'none'}")
    made = options.drawn(p, seed)
    shape = tuple(int(e or 0) for e in p.y_shape)
    with allocating(sized("the exact result", shape, np.dtype(np.float64)), "choose smaller sizes"):
        want = expected(p, made)
    bound = plan(p, once=True).bound_kind
    result = compute(p, made.x, made.w, made.bias, made.residual, **made.keywords())
    answers = [_judged("polyconv", p, made, want, result[0] if isinstance(result, tuple) else result, bound)]
    with peers.opened(there if names is None else names) as engines:
        for name, peer in engines.items():
            got = peer.run(p, made)
            if isinstance(got, str):
                answers.append(Answer(name, remark=got))
            else:
                answers.append(_judged(name, p, made, want, got, "window"))
    differ = [answer.engine for answer in answers if answer.outputs]
    if as_json:
        render.document(
            {"command": "compare", "problem": str(p), "seed": seed, "differ": differ, "engines": answers}
        )
        return _DIFFER if differ else 0
    render.table(
        f"{p}, against the exact result",
        ("engine", "rms", "largest", "of-bound", "wrong", "bound", ""),
        [
            (a.engine, _error(a.rms), _error(a.largest), None if a.share is None else f"{a.share:.3f}",
             None if a.outputs is None else str(a.outputs), a.allowed, a.remark)
            for a in answers
        ],
        "rms largest of-bound wrong",
    )  # fmt: skip
    render.line(f"{len(differ)} differ from the exact result" + (f": {', '.join(differ)}" if differ else ""))
    return _DIFFER if differ else 0


def _judged(
    engine: str, p: Problem, made: Operands, want: Expected, got: NDArray[Any], kind: str
) -> Answer:  # fmt: skip
    """An answer within its bound: the own one where it keeps that, else the window's if that is granted."""
    if got.shape != want.values.shape or got.dtype != want.values.dtype:
        shapes = f"{got.dtype} {got.shape}, not {want.values.dtype} {want.values.shape}"
        return Answer(engine, outputs=want.values.size, remark=f"the result is {shapes}")
    wrong, _ = faults(p, want, got)
    allowed = "own"
    if wrong.any() and kind == "window" and p.y_dtype.is_float and p.op in ("conv", "conv_transpose"):
        want, allowed = widened(p, made, want), "window"
        wrong, _ = faults(p, want, got)
    exact, values = want.exact.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(exact) & np.isfinite(values)
    apart = np.abs(values[finite] - exact[finite])
    rms = float(np.sqrt(np.mean(np.square(exact[finite])))) if finite.any() else 0.0
    share = None
    if p.y_dtype.is_float and apart.size:
        share = float(np.max(apart / np.maximum(want.allowed[finite], np.finfo(np.float64).tiny)))
    return Answer(
        engine, float(np.sqrt(np.mean(np.square(apart)))) / (rms or 1.0) if apart.size else 0.0,
        float(apart.max(initial=0.0)) / (rms or 1.0), share, int(wrong.sum()), allowed,
    )  # fmt: skip


def _error(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}"


# -- a model -------------------------------------------------------------------------------------------


def _check_engine(path: Path, names: Sequence[str] | None) -> None:
    engine = _OF_MODELS.get(path.suffix)
    if names is not None and engine is not None and list(names) != [engine]:
        raise typer.BadParameter(f"--with {','.join(names)}: the nodes of {path.name} are compared with {engine}")


def _saved(rows: Sequence[Compared], folder: Path) -> list[Path]:
    """One .npz a differing node: what went in, and what came out of both."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, row in enumerate(rows):
        if row.arrays:
            files.append(folder / f"{number:03d}-{re.sub(r'[^A-Za-z0-9_.-]', '_', row.nodes[0])[:80]}.npz")
            content: dict[str, Any] = {name.replace("/", "_"): a for name, a in row.arrays.items()}
            np.savez(files[-1], problem=np.array(row.problem), **content)
    return files


def _model(target: str, rows: Sequence[Compared], saved: Sequence[Path], *, as_json: bool) -> int:
    """Show what the comparison of a model found; the exit code."""
    differ = [row for row in rows if row.found is not None and row.found.outputs]
    silent = [row for row in rows if row.found is None]
    code = _DIFFER if differ else _NOTHING_COMPARED if len(silent) == len(rows) else 0
    if as_json:
        shown = [
            {"nodes": r.nodes, "ops": r.ops, "problem": r.problem, "engine": r.engine, "difference": r.found,
             "remark": r.remark}
            for r in rows
        ]  # fmt: skip
        first = differ[0].nodes if differ else None
        render.document(
            {"command": "compare", "target": target, "compared": len(rows) - len(silent), "differ": len(differ),
             "first": first, "saved": saved, "steps": shown}
        )  # fmt: skip
        return code
    _table(target, rows)
    held = len(rows) - len(silent)
    render.line(
        f"{len(differ)} of {held} steps differ"
        + (f"; the first is {differ[0].nodes[0]}" if differ else "")
        + (f"; {len(silent)} more ran on no other engine" if silent else "")
    )
    for file in saved:
        render.note(f"saved {file}")
    if code == _NOTHING_COMPARED:
        why = f": {silent[0].remark}" if silent else ""
        render.complain(f"{target} has {len(rows)} steps, of which none was compared{why}")
    return code


def _table(target: str, rows: Sequence[Compared]) -> None:
    render.table(
        f"{target}: steps on the arrays that reached them",
        ("node", "problem", "against", "rms", "largest", "beyond", ""),
        [
            (
                " + ".join(r.nodes) if len(r.nodes) < 4 else f"{r.nodes[0]} and {len(r.nodes) - 1} more", r.problem,
                r.engine or None, None if r.found is None else _error(r.found.rms),
                None if r.found is None else _error(r.found.largest), None if r.found is None else str(r.found.outputs),
                r.remark,
            )
            for r in rows
        ],
        "rms largest beyond",
    )  # fmt: skip
