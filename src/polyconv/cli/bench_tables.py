"""The tables of ``polyconv bench``: a row a layer, the summaries, and what changed since an earlier run.

Figures come from the judge; this file chooses columns and spells numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.benchmark.compare import Change
from polyconv.benchmark.engines import OURS
from polyconv.benchmark.judge import best_peer, ratio, speed
from polyconv.benchmark.record import Document, Row
from polyconv.benchmark.summary import Group, summary
from polyconv.cli import render

__all__ = ["line", "show", "show_changes"]

_LAYERS = ("layer", "us", "GFLOP/s", "FMA", "memory", "roofline", "NCHW", "NHWC", "best", "its-us", "error", "/chain",
           "its-error", "first-ms", "rounds")  # fmt: skip
_GROUPS = ("layers", "compared", "mean", "least", "<1.0", "<0.97", "slowest")
_MOST_CHANGES = 20


def _spelled(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def line(row: Row) -> str:
    """One finished layer in a line."""
    peer = best_peer(row)
    parts = []
    for layout, engine in OURS.items():
        own, found = row.measures.get(engine), ratio(row, layout)
        time = "-" if own is None or own.seconds is None else f"{1e6 * own.seconds:.1f} us"
        parts.append(f"{layout} {time}" + ("" if found is None else f" = {found.value:.2f}x"))
    best = "no other engine" if peer is None or peer.seconds is None else f"{peer.engine} {1e6 * peer.seconds:.1f} us"
    return f"{row.label}: {', '.join(parts)} ({best}{', noisy' if row.is_noisy else ''})"


def show(document: Document, layout: str) -> None:
    """All tables of a run; times, speeds and errors are those of polyconv in the leading layout."""
    rows = [_layer(document, row, layout) for row in document.rows]
    render.table(f"polyconv {layout}: times, speeds, ratios to the best other engine", _LAYERS, rows,
                 " ".join(name for name in _LAYERS if name not in ("layer", "best")))  # fmt: skip
    for which in sorted(OURS, key=lambda name: name != layout):
        groups = summary(document.rows, which)
        render.table(f"polyconv {which}: time of the best other engine / time of polyconv", _GROUPS,
                     [_group(g) for g in groups], " ".join(_GROUPS[1:-1]))  # fmt: skip
    for name, facts in document.engines.items():
        if facts["missing"]:
            render.note(f"{name}: {facts['missing']}")
    peaks, options = document.peaks, document.options
    render.line(
        f"peaks of {len(peaks.cpus)} CPU(s): {peaks.flops / 1e9:.0f} GFLOP/s f32, {peaks.bandwidth / 1e9:.1f} GB/s "
        f"copied; {options['threads']} thread(s), accuracy {options['accuracy']}"
    )
    noisy = sum(row.is_noisy for row in document.rows)
    if noisy:
        render.note(f"{noisy} layer(s) had too few good rounds: the CPUs were busy with something else")


def _layer(document: Document, row: Row, layout: str) -> tuple[str, ...]:
    own, peer = row.measures.get(OURS[layout]), best_peer(row)
    reached = None if own is None else speed(row, own, document.peaks)
    found = {name: ratio(row, name) for name in OURS}
    error = None if own is None else own.error
    first = None if own is None or own.first_seconds is None else own.first_seconds + (own.prepare_seconds or 0.0)
    return (
        row.label, _spelled(None if own is None or own.seconds is None else 1e6 * own.seconds, ",.1f"),
        *(("-",) * 4 if reached is None else (f"{reached.gflops:.1f}", f"{reached.of_flops:.0%}",
                                              f"{reached.of_bandwidth:.0%}", f"{reached.of_bound:.0%}")),
        *(_spelled(None if r is None else r.value, ".2f") for r in found.values()),
        "-" if peer is None else peer.engine,
        _spelled(None if peer is None or peer.seconds is None else 1e6 * peer.seconds, ",.1f"),
        _spelled(error, ".1e"),
        _spelled(error / row.chain_error if error is not None and row.chain_error else None, ".2f"),
        _spelled(None if peer is None else peer.error, ".1e"),
        _spelled(None if first is None else 1e3 * first, ".1f"),
        f"{sum(r.good for r in row.rounds)}/{len(row.rounds)}",
    )  # fmt: skip


def _group(g: Group) -> tuple[str, ...]:
    name = f"set {g.name}" if g.kind == "set" else g.name
    return (name, f"{g.compared}/{g.count}", _spelled(g.mean, ".2f"), _spelled(g.least, ".2f"),
            str(g.below), str(g.lost), g.slowest)  # fmt: skip


def show_changes(changes: Sequence[Change], differences: Sequence[str]) -> None:
    """What became slower or faster, the largest changes first."""
    moved = [c for c in changes if c.verdict != "same"]
    moved.sort(key=lambda c: max(c.ratio, 1.0 / c.ratio), reverse=True)
    rows = [
        (c.label, c.engine, f"{1e6 * c.before:,.1f}", f"{1e6 * c.now:,.1f}", f"{c.ratio:.2f}", c.verdict)
        for c in moved[:_MOST_CHANGES]
    ]
    render.table("changes since the earlier run", ("layer", "engine", "before", "now", "ratio", "verdict"), rows,
                 "before now ratio")  # fmt: skip
    slower = sum(c.verdict == "slower" for c in changes)
    render.line(f"{slower} slower, {len(moved) - slower} faster, {len(changes) - len(moved)} the same")
    for difference in differences:
        render.note(f"not the same conditions: {difference}")
