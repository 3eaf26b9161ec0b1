"""``polyconv bench``: convolutions measured against every other engine that is installed, ``--ndimage`` or ``--smoke``.

What to measure comes from problem lines, files of them, layer sets that come with the package, or a model;
tables, a JSON document and a report page come out.  How it is measured is the package ``benchmark``'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from polyconv.benchmark import compare, record, sets
from polyconv.benchmark.record import Document, Row
from polyconv.benchmark.run import Options, resumed, run
from polyconv.benchmark.summary import published
from polyconv.cli import bench_tables, info, pictures, render, smoke
from polyconv.cli.options import Accuracy, Dim, Files, Semantics, usage
from polyconv.cli.targets import Level, Match, Sets, Targets, cases_of
from polyconv.settings import resolve

__all__ = ["command"]

_NOISE_PERCENT = 3.0

Peers = Annotated[
    str | None, typer.Option("--peers", metavar="NAME,...", help="Other engines; by default all that are installed.")
]
Layout = Annotated[
    Literal["NCHW", "NHWC"], typer.Option("--layout", help="Whose ratios lead; both are always measured.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of every engine.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.01, help="Of measuring, per layer and about.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Good rounds wanted per layer.")]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="One JSON document, written after every layer; - is stdout."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Leave out the layers that the --json file holds already.")]
Compare = Annotated[
    Path | None, typer.Option("--compare", metavar="FILE", exists=True, dir_okay=False, help="Of an earlier --json.")
]
FailOver = Annotated[
    float | None,
    typer.Option("--fail-over", metavar="PERCENT", min=0, help="With --compare: exit code 5 if one is so much slower."),
]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML page with plots.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of operands, orders and random problems.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Instead: a minute's look at this installation alone.")]
Ndimage = Annotated[
    bool, typer.Option("--ndimage", help="Instead: filters of pictures against SciPy's and OpenCV's.")
]
Problems = Annotated[int, typer.Option("--problems", min=1, help="With --smoke: random problems for the floor.")]
Algorithm = Annotated[str, typer.Option("--algorithm", help="With --smoke: algorithm whose floor is measured.")]


def command(
    targets: Targets = None,
    set_: Sets = None,
    match: Match = None,
    peers: Peers = None,
    layout: Layout = "NCHW",
    threads: Threads = 1,
    accuracy: Accuracy = None,
    target: Level = None,
    seconds: Seconds = 2.0,
    rounds: Rounds = 7,
    json_: Json = None,
    resume: Resume = False,
    compare_: Compare = None,
    fail_over: FailOver = None,
    report: Report = None,
    inputs: Files = None,
    dim: Dim = None,
    semantics: Semantics = "onnx",
    seed: Seed = 0,
    smoke_: Smoke = False,
    ndimage: Ndimage = False,
    problems: Problems = 300,
    algorithm: Algorithm = "generic",
) -> None:
    """Measure convolutions against PyTorch, ONNX Runtime and OpenVINO."""
    if smoke_:
        smoke.show(problems, seed, algorithm, as_json=json_ == "-")
        return
    file = None if json_ in (None, "-") else Path(str(json_))
    if ndimage:
        pictures.show(match, threads, seconds, rounds, seed, as_json=json_ == "-", file=file)
        return
    if not targets and not set_:
        raise typer.BadParameter(
            "name what to measure: problems, files of problems, models, --set NAME, --ndimage or --smoke"
        )
    cases = usage(sets.select, cases_of(targets or (), set_ or (), inputs, dim, semantics, seed), match)
    names = None if peers is None else tuple(word.strip() for word in peers.split(",") if word.strip())
    options = Options(threads, resolve("accuracy", accuracy), target, names, seconds, rounds, seed)
    earlier = usage(resumed, record.load(file), options) if resume and file is not None and file.exists() else None
    before = None if compare_ is None else record.load(compare_)
    with render.progress("layers") as advance:

        def finished(document: Document, row: Row) -> None:
            advance(len(document.rows), len(cases))
            render.note(bench_tables.line(row))
            if file is not None:
                record.save(published(document), file)

        document = run(cases, options, machine=_machine(), earlier=earlier, progress=finished)
    if report is not None:
        from polyconv.benchmark.report import report as page  # brings matplotlib

        report.write_text(page(document))
    percent = _NOISE_PERCENT if fail_over is None else fail_over
    changes = [] if before is None else compare.changes(document, before, percent)
    if json_ == "-":
        render.document({**published(document), "changes": changes})
    else:
        bench_tables.show(document, layout)
        if before is not None:
            bench_tables.show_changes(changes, compare.differences(document, before))
    if fail_over is not None and any(change.verdict == "slower" for change in changes):
        raise typer.Exit(5)


def _machine() -> dict[str, object]:
    """The machine card, without what names the user."""
    return {title: facts for title, facts in info.card().items() if title != "paths"}
