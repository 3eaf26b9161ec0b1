"""``polyconv bench``: convolutions measured against every other engine that is installed, or whole models.

What to measure comes from problem lines, files of them, layer sets that come with the package, or a model;
tables, a JSON document and a report page come out.  ``--random``, ``--networks``,
``--ndimage`` and ``--smoke`` measure other things.  How it is measured is the package ``benchmark``'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark import compare, record, sets
from polyconv.benchmark.record import Document, Row
from polyconv.benchmark.rounds import Budget
from polyconv.benchmark.run import Options, resumed, run
from polyconv.benchmark.summary import published
from polyconv.cli import bench_tables, gpu, info, networks, pictures, render, shares, smoke
from polyconv.cli.interrupts import kept_when_interrupted
from polyconv.cli.options import Accuracy, AsJson, Dim, Files, Semantics, usage
from polyconv.cli.targets import Level, Match, Sets, Targets, cases_of
from polyconv.settings import resolve

__all__ = ["command"]

_NOISE_PERCENT = 3.0
_NOTHING_NAMED = (
    "name what to measure: problems, files of them, models, --set NAME, --random N, --networks, --ndimage or --smoke"
)

Peers = Annotated[
    str | None, typer.Option("--peers", metavar="NAME,...", help="Other engines; by default all that are installed.")
]
Layout = Annotated[
    Literal["NCHW", "NHWC"], typer.Option("--layout", help="Whose ratios lead; both are always measured.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of every engine.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.01, help="Of measuring, per layer and about.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Good rounds wanted per layer.")]
Save = Annotated[
    Path | None, typer.Option("--save", metavar="FILE", help="Takes the JSON document, after every layer.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Leave out the layers that the --save file holds already.")]
Compare = Annotated[
    Path | None, typer.Option("--compare", metavar="FILE", exists=True, dir_okay=False, help="Of an earlier --save.")
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
Networks = Annotated[
    bool, typer.Option("--networks", help="Instead: whole models, each engine in a process of its own.")
]
ManySizes = Annotated[
    int, typer.Option("--sizes", metavar="N", min=0, help="With --networks: so many sizes of images as well.")
]
Vary = Annotated[
    list[str] | None, typer.Option("--vary", metavar="NAME", help="With --sizes: only extents of such names vary.")
]
Problems = Annotated[int, typer.Option("--problems", min=1, help="With --smoke: random problems for the floor.")]
Algorithm = Annotated[
    str | None,
    typer.Option("--algorithm", help="With --random: instead of the planned one; with --smoke: generic, by default."),
]
Random = Annotated[
    int | None,
    typer.Option("--random", metavar="N", min=1, help="Instead: N random problems as shares of what the CPU allows."),
]

OnDevice = Annotated[
    str | None, typer.Option("--device", metavar="cuda[:N]", help="On a GPU: layers with cuDNN, networks with ORT.")
]
Kinds = Annotated[
    str, typer.Option("--kinds", metavar="KIND,...", help="With --device: f32, strict, tf32, f16, bf16.")
]
Forms = Annotated[int, typer.Option("--forms", min=1, help="With --device: so many forms of each layer.")]


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
    as_json: AsJson = False,
    save: Save = None,
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
    networks_: Networks = False,
    sizes: ManySizes = 0,
    vary: Vary = None,
    problems: Problems = 300,
    random: Random = None,
    algorithm: Algorithm = None,
    device: OnDevice = None,
    kinds: Kinds = "f32,tf32,f16",
    forms: Forms = 1,
) -> None:
    """Measure convolutions against PyTorch, ONNX Runtime and OpenVINO; on a GPU against cuDNN or ORT."""
    if smoke_:
        smoke.show(problems, seed, _known(algorithm or "generic"), as_json=as_json)
        return
    _check_files(save, report)
    if resume and save is None:
        raise typer.BadParameter("--resume takes up a run that --save FILE kept: name that file")
    if random is not None:
        given = {"TARGET": targets, "--set": set_, "--peers": peers, "--compare": compare_, "--device": device,
                 "--threads": threads != 1}  # fmt: skip
        _leave_out("--random", "draws its own problems and runs them on one thread, without other engines", given)
        chosen = None if algorithm is None else _known(algorithm)
        drawn = shares.Options(random, seed, match, chosen, resolve("accuracy", accuracy), target)
        usage(partial(shares.show, as_json=as_json, file=save, resume=resume, report=report), drawn, _machine())
        return
    if ndimage:
        pictures.show(match, threads, seconds, rounds, seed, as_json=as_json, file=save)
        return
    names = None if peers is None else tuple(word.strip() for word in peers.split(",") if word.strip())
    if networks_:
        budget = Budget(seconds, rounds)
        networks.show(targets or (), names, threads, budget, seed, inputs, dim, device, sizes, vary,
                      as_json=as_json, file=save)  # fmt: skip
        return
    if not targets and not set_:
        raise typer.BadParameter(_NOTHING_NAMED)
    cases = usage(sets.select, cases_of(targets or (), set_ or (), inputs, dim, semantics, seed), match)
    if device is not None:
        gpu.bench(device, cases, gpu.kinds_of(kinds), forms, rounds, as_json=as_json, file=save)
        return
    options = Options(threads, resolve("accuracy", accuracy), target, names, seconds, rounds, seed)
    earlier = usage(resumed, record.load(save), options) if resume and save is not None and save.exists() else None
    before = None if compare_ is None else record.load(compare_)
    so_far: list[Document] = []

    def show_so_far() -> None:
        if so_far and not as_json:
            bench_tables.show(so_far[-1], layout)

    with render.progress("layers") as advance, kept_when_interrupted(show_so_far):

        def finished(document: Document, row: Row) -> None:
            so_far[:] = [document]
            advance(len(document.rows), len(cases))
            render.note(bench_tables.line(row))
            if save is not None:
                record.save(published(document), save)

        document = run(cases, options, machine=_machine(), earlier=earlier, progress=finished)
    percent = _NOISE_PERCENT if fail_over is None else fail_over
    changes = [] if before is None else compare.changes(document, before, percent)
    if as_json:
        render.document({**published(document), "changes": changes})
    else:
        bench_tables.show(document, layout)
        if before is not None:
            bench_tables.show_changes(changes, compare.differences(document, before))
    if report is not None:
        _draw(document, report)
    if fail_over is not None and any(change.verdict == "slower" for change in changes):
        raise typer.Exit(5)


def _draw(document: Document, file: Path) -> None:
    """Write the page with plots."""
    from polyconv.benchmark.report import report  # brings matplotlib

    file.write_text(report(document), encoding="utf-8")
    render.note(f"report written to {file}")


def _leave_out(option: str, does: str, given: Mapping[str, object]) -> None:
    """Refuse words that would have no effect beside an option."""
    vain = [name for name, value in given.items() if value]
    if vain:
        raise typer.BadParameter(f"{option} {does}; leave out {', '.join(vain)}")


def _known(algorithm: str) -> str:
    if algorithm not in ALGORITHMS:
        raise typer.BadParameter(f"there is no algorithm {algorithm!r}; choose from {', '.join(ALGORITHMS)}")
    return algorithm


def _check_files(document: Path | None, report: Path | None) -> None:
    """Refuse, before anything is measured, files that cannot be written and a page that cannot be drawn."""
    for option, file in (("--save", document), ("--report", report)):
        if file is None:
            continue
        if file.is_dir() or not file.parent.is_dir():
            why = "is a folder" if file.is_dir() else f"is in {file.parent}, which is no folder"
            raise typer.BadParameter(f"{option} {file} {why}; name a file in a folder that exists")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise typer.BadParameter(f"{option} {file} may not be written; name another file")
    if report is not None and find_spec("matplotlib") is None:
        raise typer.BadParameter(
            "--report draws with matplotlib, which is not installed: pip install 'polyconv[bench]'; without --report, "
            "tables are printed and --save keeps the figures"
        )


def _machine() -> dict[str, object]:
    """The machine card, without what names the user."""
    return {title: facts for title, facts in info.card().items() if title != "paths"}
