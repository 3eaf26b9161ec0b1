"""The table of ``polyconv bench --networks``: whole models beside ONNX Runtime and OpenVINO.

Figures come from ``benchmark.networks``; this file chooses columns and spells numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from polyconv.benchmark.many_sizes import varied
from polyconv.benchmark.networks import NETWORK_GUESTS, OURS, Measure, Network, chosen_guests, measure, summary
from polyconv.benchmark.record import save
from polyconv.benchmark.rounds import Budget
from polyconv.cli import feeds, gpu, render
from polyconv.cli.interrupts import kept_when_interrupted
from polyconv.cli.options import subject, usage
from polyconv.errors import Error
from polyconv.models.graph import Value
from polyconv.models.limits import shorten
from polyconv.models.reading import read_model

__all__ = ["show"]

_COLUMNS = ("network", "polyconv ms", "onnxruntime ms", "openvino ms", "ratio", "load s", "first s", "peak MB", "error",
            "rounds")  # fmt: skip
_SIZE_COLUMNS = ("network", "sizes", *(f"{when}{cell}" for when in ("new: ", "again: ") for cell in (
    "polyconv ms", "onnxruntime ms", "openvino ms", "ratio")))  # fmt: skip


def show(
    targets: Sequence[str], peers: Sequence[str] | None, threads: int, budget: Budget, seed: int,
    inputs: Sequence[str] | None, dim: Sequence[str] | None, device: str | None, sizes: int,
    vary: Sequence[str] | None, *, as_json: bool, file: Path | None,
) -> None:  # fmt: skip
    """Measure models, and write a table or one document.

    Parameters
    ----------
    targets : sequence of str
        Model files.
    peers : sequence of str or None
        Other engines; None is all that are installed.
    inputs, dim : sequence of str or None
        What models are fed, as for ``run``.
    device : str or None
        A GPU, on which ONNX Runtime's CUDA provider is the other engine.
    sizes : int
        How many sizes of images models see besides, where their files leave them open.
    vary : sequence of str or None
        Names of the extents that differ then; None is all that are open.
    file : Path or None
        Takes the document besides, after every model, so that an interrupt leaves what was measured.
    """
    named = [subject(word) for word in targets]
    paths = [path for path in named if isinstance(path, Path)]
    if not paths or len(paths) < len(named):
        raise typer.BadParameter("--networks measures whole models: name .onnx or .xml files")
    known = usage(feeds.dims, dim or ())

    def fed(path: Path) -> tuple[list[Value], dict[str, Any]]:
        """A model's inputs, and what it is fed: files that are named, an .npz beside it, else random numbers."""
        graph, beside = read_model(path), path.with_suffix(".npz")
        given = [value for value in graph.inputs if value.name not in graph.defaults]
        files = inputs or ([str(beside)] if beside.is_file() else ())
        return given, {name: feed.array for name, feed in usage(feeds.feeds, given, files, known, seed).items()}

    if device is not None:
        if sizes:
            raise typer.BadParameter("--sizes runs models on the CPU: leave out --device")
        gpu.name_of(device.partition(",")[0])  # or why there is none, before models are read
        gpu.networks(device, [(path, fed(path)[1]) for path in paths], budget.rounds, as_json=as_json, file=file)
        return
    guests = usage(chosen_guests, peers)
    rows: list[Network] = []

    def show_so_far() -> None:
        if rows and not as_json:
            _table(rows, threads)

    with render.progress("networks") as advance, kept_when_interrupted(show_so_far):
        for done, path in enumerate(paths):
            advance(done, len(paths))
            try:
                given, own = fed(path)
            except Error as error:  # the others are measured all the same
                if len(paths) == 1:
                    raise
                rows.append(Network(path.stem, {OURS: Measure(OURS, why=str(error))}, None, "", 0, 0))
            else:
                many = varied(given, own, sizes, vary or ()) if sizes else []
                rows.append(measure(path, own, guests, threads, budget, seed, many))
            render.note(_line(rows[-1]))
            if file is not None:
                save({"schema_version": render.SCHEMA_VERSION, **_document(rows, threads)}, file)
    if as_json:
        render.document(_document(rows, threads))
        return
    _table(rows, threads)
    for guest, why in guests.items():
        if why:
            render.note(f"{guest}: {why}")


def _table(rows: Sequence[Network], threads: int) -> None:
    """The tables, and what they come to."""
    render.line(f"Whole models, {threads} thread(s); ratio: time of the fastest other engine over polyconv's.\n")
    _markdown(_COLUMNS, map(_row, rows))
    render.line()
    found = summary(rows)
    if found["compared"]:
        render.line(
            f"ratio {found['mean']:.2f} in the geometric mean of {found['compared']}, at least {found['least']:.2f}; "
            f"below 1 for {', '.join(found['below']) or 'none'}"
        )
    render.line("load, first and peak: polyconv / onnxruntime / openvino; error: rms, from onnxruntime's outputs")
    _size_table([row for row in rows if row.sizes])


def _size_table(rows: Sequence[Network]) -> None:
    """What images of many sizes take."""
    if not rows:
        return
    render.line("\nImages of many sizes: a run with each for the first time, and for the last of several times.\n")
    _markdown(_SIZE_COLUMNS, map(_size_row, rows))
    for row in rows:
        for guest, met in row.sizes.items():
            if met.why:
                render.note(f"{row.name}: {guest}: {shorten(met.why, 200)}")


def _size_row(row: Network) -> tuple[object, ...]:
    cells: list[object] = []
    for name in ("new_seconds", "again_seconds"):
        cells += [_spelled(row.sizes, (guest,), name, 1e3, ".2f") for guest in NETWORK_GUESTS]
        times = {guest: time for guest, met in row.sizes.items() if (time := getattr(met, name)) is not None}
        own, fastest = times.pop(OURS, None), min(times.values(), default=None)
        cells.append(None if own is None or fastest is None else f"{fastest / own:.3g}")
    return row.name, max(met.count for met in row.sizes.values()), *cells


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table, as a page of the documentation takes it."""
    for cells in (columns, ("---", *("---:" for _ in columns[1:])), *rows):
        render.line(f"| {' | '.join('-' if cell is None else str(cell).replace('|', '/') for cell in cells)} |")


def _line(row: Network) -> str:
    """One finished model in a line."""
    times = ", ".join(f"{g} {1e3 * m.seconds:.2f} ms" if m.seconds else f"{g}: {shorten(m.why, 100)}"
                      for g, m in row.measures.items())  # fmt: skip
    return f"{row.name}: {times}" + ("" if row.ratio is None else f" = {row.ratio:.2f}x")


def _row(row: Network) -> tuple[object, ...]:
    own = row.measures[OURS]
    times = (_spelled(row.measures, (guest,), "seconds", 1e3, ".2f") for guest in NETWORK_GUESTS)
    return (
        row.name, *times, None if row.ratio is None else f"{row.ratio:.2f}",
        _spelled(row.measures, row.measures, "load_seconds", 1, ".2f"),
        _spelled(row.measures, row.measures, "first_seconds", 1, ".2f"),
        _spelled(row.measures, row.measures, "peak_bytes", 1e-6, ".0f"),
        None if own.error is None else f"{own.error:.1e}", f"{row.good}/{row.rounds}",
    )  # fmt: skip


def _spelled(measures: Mapping[str, object], guests: Any, name: str, factor: float, form: str) -> str:
    """A figure of some engines, with a slash between them."""
    values = [getattr(measures[g], name) if g in measures else None for g in guests]
    return " / ".join("-" if v is None else format(factor * v, form) for v in values)


def _document(rows: Sequence[Network], threads: int) -> dict[str, Any]:
    return {
        "command": "bench", "threads": threads, "networks": [asdict(row) for row in rows], "summary": summary(rows),
    }  # fmt: skip
