"""``polyconv run``: a model on files, one or many, or on random numbers, or one convolution on random numbers.

Everything runs once to plan, compile and compute the answer, then again to be timed; what ran where
is a table, the outputs go to a folder.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray

import polyconv
from polyconv.cli import feeds, gpu, options, render
from polyconv.cli.many import RanFile, run_files
from polyconv.cli.saving import Saved, save
from polyconv.cli.steps import memory_line
from polyconv.dataclass import dataclass
from polyconv.layer import compute
from polyconv.models.records import Memory
from polyconv.models.session import InferenceSession
from polyconv.problem.problem import Problem

__all__ = ["command"]


@dataclass(frozen=True, slots=True)
class Ran:
    """What ran as one: the nodes of the file, who computed them, as which problem, how long."""

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    engine: str
    problem: str | None = None
    algorithm: str | None = None
    milliseconds: float | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """An input, and where its values came from."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Output:
    """An output, and its files if it was saved."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    saved: Saved | None = None


def command(
    target: options.Target,
    inputs: options.Files = None,
    dim: options.Dim = None,
    seed: options.Seed = 0,
    folder: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Writes NAME.npy, and NAME.png of pictures.")
    ] = None,
    pictures: Annotated[
        bool | None, typer.Option("--images/--no-images", help="A .png of every output, or of none.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Timed runs after the first; their median counts.")
    ] = 3,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Files at a time, if --input NAME='photos/*.jpg' finds many.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="cuda[:N][,cpu]", help="Run a model on this GPU; with ,cpu nodes without a "
                     "kernel there run on the CPU."),
    ] = None,
    threads: options.Threads = None,
    accuracy: options.Accuracy = None,
    workspace_limit: options.WorkspaceLimit = None,
    semantics: options.Semantics = "onnx",
    as_json: options.AsJson = False,
) -> None:
    """Run a model, or one convolution, and show what ran where."""
    if pictures is not None and folder is None:
        raise typer.BadParameter("--images and --no-images belong to --save DIR")
    wanted = options.subject(target)
    with options.within(threads, accuracy, workspace_limit):
        if isinstance(wanted, Problem):
            if inputs or dim:
                raise typer.BadParameter("--input and --dim are for models; a problem runs on random numbers")
            if device is not None:
                raise typer.BadParameter("--device runs models; check --device cuda runs problems on a GPU")
            answer = _problem(wanted, seed, repeat)
        else:
            providers = None if device is None else gpu.providers_of(device)
            model, known = options.opened(wanted, semantics, providers), options.usage(feeds.dims, dim or ())
            files, rest = options.usage(feeds.many, model.get_inputs(), inputs or ())
            if files:
                ran = run_files(model, files, rest, known, seed, batch=batch, folder=folder, pictures=pictures)
                _show_files(target, ran, as_json=as_json)
                return
            if batch is not None:
                raise typer.BadParameter("--batch is for many files: --input NAME='photos/*.jpg'")
            answer = _model(model, options.usage(feeds.feeds, model.get_inputs(), rest, known, seed), repeat)
    saved = {} if folder is None else save(folder, answer.outputs, pictures=pictures)
    outputs = [_output(name, values, saved.get(name)) for name, values in answer.outputs.items()]
    if as_json:
        render.document(
            {
                "command": "run",
                "target": target,
                "inputs": answer.inputs,
                "outputs": outputs,
                "steps": answer.ran,
                "milliseconds": {"first": answer.first, "median": answer.median},
                "memory": answer.memory,
            }
        )
    else:
        _show(answer, outputs)


@dataclass(frozen=True, slots=True)
class Answer:
    """Milliseconds of the first run and the median of so many after it, what ran, what came in and out."""

    first: float
    median: float
    repeats: int
    ran: list[Ran]
    inputs: list[Input]
    outputs: dict[str, NDArray[Any]]
    memory: Memory | None = None


def _model(model: InferenceSession, fed: Mapping[str, feeds.Feed], repeat: int) -> Answer:
    given = {name: feed.array for name, feed in fed.items()}
    first, results = _timed(lambda: model.run(None, given))
    times = []
    for _ in range(repeat):
        spent, results = _timed(lambda: model.run(None, given))
        times.append((spent, model.nodes))
    spent = statistics.median_low(taken for taken, _ in times)
    nodes = next(nodes for taken, nodes in times if taken == spent)
    names = [output.name for output in model.get_outputs()]
    sources = [Input(name, str(f.array.dtype), f.array.shape, f.source) for name, f in fed.items()]
    return Answer(
        first, spent, repeat, _steps(nodes), sources, dict(zip(names, results, strict=True)), model.memory
    )


def _steps(nodes: Sequence[Any]) -> list[Ran]:
    """One row per step of a session, in running order; folded nodes form the first."""
    steps: dict[Any, list[Any]] = {}
    for node in nodes:
        steps.setdefault(node.step, []).append(node)
    rows = []
    for group in steps.values():
        one = group[0]
        algorithm = None if one.problem is None else _algorithm(Problem.parse(one.problem), one.device)
        spent = None if one.seconds is None else 1e3 * one.seconds
        names, ops = tuple(n.name for n in group), tuple(n.op for n in group)
        engine = one.engine if one.device in ("", "cpu") else f"{one.engine} {one.device}"
        rows.append(Ran(names, ops, engine, one.problem, algorithm, spent))
    return rows


def _algorithm(problem: Problem, device: str) -> str:
    if device == "cpu":
        return polyconv.plan(problem).algorithm
    return gpu.planned(problem, device).algorithm


def _problem(problem: Problem, seed: int, repeat: int) -> Answer:
    made = options.drawn(problem, seed)
    arrays = (made.x, made.w, made.bias, made.residual)

    def call() -> Any:
        return compute(problem, *arrays, **made.keywords())

    first, result = _timed(call)
    spent = statistics.median_low(_timed(call)[0] for _ in range(repeat))
    algorithm = polyconv.plan(problem, once=True).algorithm
    ran = Ran((), (problem.op,), "polyconv", str(problem), algorithm, spent)
    results = result if isinstance(result, tuple) else (result,)
    given = {"x": made.x, "w": made.w, "bias": made.bias, "residual": made.residual, "offset": made.offset}
    given |= {"mask": made.mask, "past": made.past, **made.quantities}
    source = f"random, seed {seed}"
    sources = [Input(name, str(a.dtype), a.shape, source) for name, a in given.items() if a is not None]
    return Answer(first, spent, repeat, [ran], sources, dict(zip(("y", "present_state"), results, strict=False)))


def _timed(call: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return 1e3 * (time.perf_counter() - start), result


def _output(name: str, values: NDArray[Any], saved: Saved | None) -> Output:
    numeric = values.size > 0 and values.dtype.kind in "biufV"
    low, high = (float(values.min()), float(values.max())) if numeric else (None, None)
    return Output(name, str(values.dtype), values.shape, low, high, saved)


def _show(answer: Answer, outputs: Sequence[Output]) -> None:
    render.table(
        "what ran where",
        ("node", "op", "engine", "problem", "algorithm", "ms"),
        [(_few(r.nodes), _few(r.ops), r.engine, r.problem, r.algorithm, r.milliseconds) for r in answer.ran],
        right="ms",
    )
    render.table(
        "inputs",
        ("name", "type", "shape", "from"),
        [(i.name, i.dtype, _shape(i.shape), i.source) for i in answer.inputs],
    )
    render.table(
        "outputs",
        ("name", "type", "shape", "smallest", "largest", "file"),
        [(o.name, o.dtype, _shape(o.shape), o.minimum, o.maximum, _files(o.saved)) for o in outputs],
        right="smallest largest",
    )
    again = f"{answer.median:.3g} ms" + (f", the median of {answer.repeats}" if answer.repeats > 1 else "")
    render.line(f"first run {answer.first:.3g} ms (plans and compiles), then {again}")
    if answer.memory is not None:
        render.line(memory_line(answer.memory))


def _show_files(target: str, rows: Sequence[RanFile], *, as_json: bool) -> None:
    """Show what came out of every file."""
    if as_json:
        render.document({"command": "run", "target": target, "files": rows})
        return
    names = list(rows[0].outputs) if rows else []
    table = [
        (", ".join(map(str, row.files)), f"{row.milliseconds:.3g}", *(_shape(row.outputs[n][1]) for n in names),
         str(next(iter(row.saved.values())).array.parent) if row.saved else None)
        for row in rows
    ]  # fmt: skip
    render.table("files", ("file", "ms", *names, "saved in"), table, "ms")
    render.line(f"{len(rows)} files, {sum(row.milliseconds for row in rows):.3g} ms")


def _few(words: Sequence[str]) -> str:
    """All words if they are few, else the first and how many more."""
    return " + ".join(words) if len(words) <= 4 else f"{words[0]} and {len(words) - 1} more"


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _files(saved: Saved | None) -> str | None:
    if saved is None:
        return None
    if saved.picture is None:
        return str(saved.array)
    if saved.black == 0 and saved.white in (1, 255):
        return str(saved.picture)
    return f"{saved.picture} (black {saved.black:.3g}, white {saved.white:.3g})"
