"""The table of ``polyconv bench --ndimage``: filters of pictures beside SciPy's and OpenCV's.

Figures come from ``benchmark.pictures``; this file chooses columns and spells numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyconv.benchmark.pictures import ENGINES, Times, cases, means, measure, missing
from polyconv.benchmark.record import save
from polyconv.cli import render
from polyconv.cli.options import usage

__all__ = ["show"]

_COLUMNS = ("picture", "kernel", "weights", "polyconv ms", "opencv ms", "scipy ms", "opencv/", "scipy/", "apart")


def show(match: str | None, threads: int, seconds: float, rounds: int, seed: int, *, as_json: bool,
         file: Path | None) -> None:  # fmt: skip
    """Measure, and write a table or one document.

    Parameters
    ----------
    match : str or None
        Regular expression for the cases.
    file : Path or None
        Takes the document besides.
    """
    chosen = usage(cases, match)
    times: list[Times] = []
    with render.progress("filters") as advance:
        for done, case in enumerate(chosen):
            advance(done, len(chosen))
            times.append(measure(case, threads, seconds, rounds, seed))
            render.note(_line(times[-1]))
            if file is not None:
                save({"schema_version": render.SCHEMA_VERSION, **_document(times, threads)}, file)
    if as_json:
        render.document(_document(times, threads))
        return
    title = f"ndimage.correlate, mode reflect, {threads} thread(s); SciPy has one"
    render.table(title, _COLUMNS, [_row(t) for t in times], " ".join(_COLUMNS[3:]))
    for engine in ENGINES[1:]:
        mean, slower = means(times, engine), _slower(times, engine)
        if mean is not None:
            render.line(f"time of {engine} over polyconv's: {mean:.2f} in the geometric mean, below 1 for {slower}")
    if any(t.scipy_rows < t.case.size for t in times):
        render.note("SciPy's time of large cases is that of some rows, by their share of the picture")
    for engine, way_out in missing().items():
        render.note(f"{engine} is not installed; {way_out}")


def _slower(times: Sequence[Times], engine: str) -> str:
    found = [str(t.case) for t in times if t.seconds.get(engine, 1e9) < t.seconds["polyconv"]]
    return ", ".join(found) if found else "none"


def _ratio(t: Times, engine: str) -> float | None:
    return t.seconds[engine] / t.seconds["polyconv"] if engine in t.seconds else None


def _line(t: Times) -> str:
    """One finished case in a line."""
    beside = [f"{engine} {1e3 * t.seconds[engine]:.3f} ms" for engine in ENGINES[1:] if engine in t.seconds]
    return f"{t.case}: {1e3 * t.seconds['polyconv']:.3f} ms" + (f" ({', '.join(beside)})" if beside else "")


def _row(t: Times) -> tuple[object, ...]:
    milliseconds = (f"{1e3 * t.seconds[e]:.3f}" if e in t.seconds else None for e in ENGINES)
    ratios = (None if r is None else f"{r:.2f}" for r in (_ratio(t, e) for e in ENGINES[1:]))
    apart = f"{t.differing} results" if t.case.dtype == "u8" else f"{t.difference or 0:.2f} eps"
    size, kernel = t.case.size, t.case.kernel
    picture, window = f"{size}x{size} {t.case.dtype}", f"{kernel}x{kernel}"
    return picture, window, t.case.weights, *milliseconds, *ratios, None if t.difference is None else apart


def _document(times: Sequence[Times], threads: int) -> dict[str, Any]:
    return {
        "command": "bench", "filters": [asdict(t) for t in times], "threads": threads, "missing": missing(),
        "means": {engine: means(times, engine) for engine in ENGINES[1:]},
    }  # fmt: skip
