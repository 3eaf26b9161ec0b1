"""``polyconv bench --random N``: the tables of random problems' shares of their bounds, and the document they are in.

Problems are numbered, so that a run that was cut short is taken up where it ended.  What is drawn and measured is the
package ``benchmark``'s.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyconv.benchmark import draws, record, shares
from polyconv.benchmark.peaks import copy_bandwidth, peak
from polyconv.benchmark.runs import restricted
from polyconv.benchmark.sets import pattern_of
from polyconv.benchmark.shares import LEAST, Share, groups, plain, read, worst
from polyconv.cli import render
from polyconv.cli.interrupts import kept_when_interrupted
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.target import target

__all__ = ["Options", "show", "table_of_worst"]

_COLUMNS = ("problems", "number", "least", "5%", "25%", "median", "75%", "95%", f"<{LEAST:.0%}")
_SAVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """What to draw and how to compute it.

    Parameters
    ----------
    count, seed : int
        How many problems of which seed.
    match : str or None
        Regular expression; other problems are passed over.
    algorithm : str or None
        Instead of the planner's choices.
    accuracy : str
    level : str or None
        Instruction set that kernels are restricted to.
    """

    count: int
    seed: int
    match: str | None
    algorithm: str | None
    accuracy: str
    level: str | None


@dataclass(slots=True)
class _Run:
    """How far it is: problems that were drawn, shares, and problems that the algorithm did not take."""

    drawn: int
    shares: list[Share]
    not_taken: int


def show(options: Options, machine: Mapping[str, Any], *, as_json: bool, file: Path | None, resume: bool,
         report: Path | None) -> None:  # fmt: skip
    """Measure, and write tables or one document.

    Parameters
    ----------
    machine : mapping
        The machine card, for the document.
    file : Path or None
        Takes the document, every few seconds and when the run ends.
    resume : bool
        Leave out the problems that the file holds already.
    report : Path or None
        Takes a page.

    Raises
    ------
    ArgumentError
        If ``match`` is no regular expression, or the file belongs to another run.
    """
    run = _earlier(file, options) if resume and file is not None and file.exists() else _Run(0, [], 0)

    def show_so_far() -> None:
        if not as_json:
            _tables(run, options)

    with render.progress("problems") as advance, kept_when_interrupted(show_so_far), restricted(options.level):
        _measure(run, options, machine, file, advance)
    document = _document(run, options, machine)
    if as_json:
        render.document(document)
    else:
        _tables(run, options)
    if report is not None:
        from polyconv.benchmark.report_shares import report as page  # brings matplotlib

        report.write_text(page(run.shares, document), encoding="utf-8")
        render.note(f"report written to {report}")


def _measure(run: _Run, options: Options, machine: Mapping[str, Any], file: Path | None,
             advance: render.Advance) -> None:  # fmt: skip
    here, pattern = target(options.level), pattern_of(options.match)

    def told(share: Share | None) -> None:
        if share is None:
            run.not_taken += 1
        else:
            run.shares.append(share)

    def keep() -> float:
        if file is not None:
            record.save({"schema_version": render.SCHEMA_VERSION, **_document(run, options, machine)}, file)
        return time.monotonic()

    saved = time.monotonic()
    try:
        for index in range(run.drawn, options.count):
            problem = draws.problem(options.seed, index)
            if pattern.search(str(problem)):
                shares.measured([problem], here, options.algorithm, options.accuracy, told)
            run.drawn = index + 1
            advance(run.drawn, options.count)
            if time.monotonic() - saved > _SAVE_SECONDS:
                saved = keep()
    finally:  # an interrupt keeps what was measured
        keep()


def _tables(run: _Run, options: Options) -> None:
    """Percentiles of all groups, and the lowest shares."""
    if not run.shares:
        render.line(f"none of {run.drawn} problems was measured" + _passed_over(run))
        return
    by = "the planned algorithm" if options.algorithm is None else options.algorithm
    title = f"shares of the bound, by {by}, one thread, seed {options.seed}"
    rows = [
        (f"{'  ' * (g.kind == 'types')}{g.name}" if g.kind not in ("held by", "algorithm") else f"{g.kind} {g.name}",
         g.count, *(f"{v:.0%}" for v in (g.least, g.p5, g.p25, g.median, g.p75, g.p95)), g.below)
        for g in groups(run.shares)
    ]  # fmt: skip
    render.table(title, _COLUMNS, rows, " ".join(_COLUMNS[1:]))
    table_of_worst(run.shares)
    low = sum(s.share < LEAST for s in run.shares)
    render.line(f"{low} of {len(run.shares)} below {LEAST:.0%} of the bound{_passed_over(run)}")


def _passed_over(run: _Run) -> str:
    return f"; {run.not_taken} not taken by the algorithm" if run.not_taken else ""


def table_of_worst(found: Sequence[Share], most: int = shares.WORST) -> None:
    """The lowest shares, with lines that can be given to ``bench``, ``explain`` and ``plan`` as they stand."""
    rows = [
        (f"{s.share:.1%}", s.algorithm, s.bound.held_by, f"{1e6 * s.seconds:,.0f}", f"{1e6 * s.bound.seconds:,.0f}",
         f"'{s.problem}'")
        for s in worst(found, most)
    ]  # fmt: skip
    columns = ("share", "algorithm", "held by", "us", "bound-us", "problem")
    render.table(f"the lowest {len(rows)} of {len(found)}", columns, rows, "share us bound-us")


def _document(run: _Run, options: Options, machine: Mapping[str, Any]) -> dict[str, Any]:
    here = target(options.level)
    names = dict.fromkeys(s.bound.arithmetic for s in run.shares)
    return {
        "command": "bench", "random": asdict(options), "machine": dict(machine), "drawn": run.drawn,
        "not_taken": run.not_taken, "least_share": LEAST, "peaks_gflops": {name: peak(here, name) for name in names},
        "copy_bytes_per_second": copy_bandwidth(), "groups": [asdict(g) for g in groups(run.shares)],
        "worst": [str(s.problem) for s in worst(run.shares)], "shares": [plain(s) for s in run.shares],
    }  # fmt: skip


def _earlier(file: Path, options: Options) -> _Run:
    """An earlier run of the same options, but for the number of problems."""
    try:
        content = json.loads(file.read_text())
        given, run = content["random"], _Run(content["drawn"], [read(s) for s in content["shares"]],
                                             content["not_taken"])  # fmt: skip
    except (ValueError, KeyError, TypeError, ArgumentError) as error:
        raise ArgumentError(
            f"{file} is no document of 'polyconv bench --random --save' ({error}); name another file"
        ) from None
    for name, value in asdict(options).items():
        if name != "count" and given.get(name) != value:
            raise ArgumentError(
                f"{file} was measured with {name}={given.get(name)!r}, this run has {value!r}; "
                "use the same options or another file"
            )
    return run
