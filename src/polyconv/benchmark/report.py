"""A document to one HTML page that needs nothing else: card, method, summaries, pictures, every layer.

Written for a reader who knows the other engines better than we do, so it says what each was asked to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from polyconv.benchmark.engines import OURS
from polyconv.benchmark.judge import best_peer, ratio, speed
from polyconv.benchmark.plots import ratio_plot, roofline_plot
from polyconv.benchmark.record import Document, Measure, Row
from polyconv.benchmark.summary import Group, summary

__all__ = ["report"]

_STYLE = """
body { font: 14px/1.45 sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-size: 12px }
th, td { padding: .15em .6em; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
th:first-child, td:first-child, td.text, th.text { text-align: left }
td.lost { background: #fbe3d6 } td.won { background: #ddeedd }
svg { max-width: 100%; height: auto } code { font-size: 12px }
"""

_METHOD = (
    "Every engine runs in a process of its own, all in one run. Each layer is made ready by every engine (weights "
    "packed, model compiled), run once, and checked; then rounds follow. In a round the engines are asked one after "
    "the other, in random order, for a burst of calls; before the next one begins, the last one's threads have "
    "stopped spinning. A figure is the median over the rounds of the burst's median; a ratio is taken round by round.",
    "Beside every round a loop of multiply-adds runs on each CPU alone and on all together. Rounds in which a CPU "
    "gave less than 85 % of its best, or two together gave less than 90 % of two, or an engine that should have been "
    "idle was not, do not count and are repeated.",
    "The error is rms(result - exact) / rms(exact), exact in float64 for channels spread over the result. The chain "
    "is the error of one f32 chain of fused multiply-adds per output. An engine whose error is that of a smaller "
    "type is shown but is no reference. The reference is the fastest of all other engines, whatever layout it was "
    "given: what a call takes to bring its layout into another one is not added to it.",
)


def report(document: Document) -> str:
    """The page.

    Parameters
    ----------
    document : Document
        With at least one layer.
    """
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>polyconv bench</title><style>{_STYLE}"
        "</style></head><body><h1>polyconv bench</h1>",
        f"<p>{escape(document.started)}, {len(document.rows)} layers, {document.options.get('threads')} thread(s), "
        f"accuracy {escape(str(document.options.get('accuracy')))}. Peaks of the CPUs used: "
        f"{document.peaks.flops / 1e9:.0f} GFLOP/s (f32 multiply-adds), {document.peaks.bandwidth / 1e9:.1f} GB/s "
        "(large copy, read and written).</p>",
        "<h2>Summary</h2>",
        *(_summary(layout, summary(document.rows, layout)) for layout in OURS),
        "<h2>Ratio of every layer</h2>", ratio_plot(document),
        "<h2>Roofline</h2>", roofline_plot(document),
        "<h2>Layers</h2>", _layers(document),
        "<h2>Method</h2>", *(f"<p>{escape(text)}</p>" for text in _METHOD),
        "<h2>Engines</h2>", _engines(document),
        "<h2>Machine</h2>", _card({**document.machine, "options": document.options}),
        "</body></html>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[str] = ()) -> str:
    """A table of cells that are HTML already; the columns named in ``text`` are set to the left."""
    classes = [" class='text'" if name in text else "" for name in columns]
    head = "".join(f"<th{c}>{escape(name)}</th>" for c, name in zip(classes, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(cell if cell.startswith("<td") else f"<td{c}>{cell}</td>"
                         for c, cell in zip(classes, row, strict=True)) + "</tr>\n"
        for row in rows
    )  # fmt: skip
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _ratio_cell(value: float | None, goal: float = 1.0) -> str:
    if value is None:
        return "<td>-</td>"
    return f"<td class='{'won' if value >= goal else 'lost' if value < 1.0 else ''}'>{value:.2f}</td>"


def _summary(layout: str, groups: Sequence[Group]) -> str:
    rows = [
        (
            escape(f"{g.kind}: {g.name}" if g.kind == "set" else g.name), f"{g.compared} of {g.count}",
            _ratio_cell(g.mean, g.goal or 1.0), "-" if g.goal is None else f"{g.goal:g}", _ratio_cell(g.least),
            str(g.below), str(g.lost), escape(g.slowest),
        )
        for g in groups
    ]  # fmt: skip
    columns = ("", "compared", "geometric mean", "goal", "least", "below 1.0", "below 0.97", "slowest layer")
    return f"<h3>polyconv {layout}</h3>" + _table(columns, rows, ("slowest layer",))


def _time(measure: Measure | None) -> str:
    if measure is None:
        return "-"
    if measure.seconds is None:
        return f"<span title='{escape(measure.why, quote=True)}'>-</span>"
    spread = f"{1e6 * (measure.low or 0):.1f} to {1e6 * (measure.high or 0):.1f} us"
    spread = "; ".join(word for word in (spread, measure.precision, measure.kernel, measure.remark) if word)
    return f"<span title='{escape(spread, quote=True)}'>{1e6 * measure.seconds:,.1f}</span>"


def _layers(document: Document) -> str:
    others = [name for name in document.engines if name not in OURS.values()]
    columns = ["layer", "problem", *(f"{layout} us" for layout in OURS), "GFLOP/s", "of FMA", "of roofline",
               *(f"ratio {layout}" for layout in OURS), "best", *others, "error", "/ chain", "its error"]  # fmt: skip
    rows = [_layer(document, row, others) for row in document.rows]
    return _table(columns, rows, ("problem", "best"))


def _layer(document: Document, row: Row, others: Sequence[str]) -> list[str]:
    own = row.measures.get(OURS["NCHW"])
    reached = None if own is None else speed(row, own, document.peaks)
    found = {layout: ratio(row, layout) for layout in OURS}
    best = best_peer(row)
    error = None if own is None else own.error
    return [
        escape(row.label) + (" (noisy)" if row.is_noisy else ""), f"<code>{escape(row.problem)}</code>",
        *(_time(row.measures.get(OURS[layout])) for layout in OURS),
        *(("-",) * 3 if reached is None
          else (f"{reached.gflops:.0f}", f"{reached.of_flops:.0%}", f"{reached.of_bound:.0%}")),
        *(_ratio_cell(None if r is None else r.value) for r in found.values()),
        "-" if best is None else escape(best.engine),
        *(_time(row.measures.get(name)) for name in others),
        "-" if error is None else f"{error:.1e}",
        f"{error / row.chain_error:.2f}" if error is not None and row.chain_error else "-",
        "-" if best is None or best.error is None else f"{best.error:.1e}",
    ]  # fmt: skip


def _engines(document: Document) -> str:
    rows = [
        (escape(name), *(escape(facts[key]) for key in ("version", "words", "missing")), _precisions(document, name))
        for name, facts in document.engines.items()
    ]
    columns = ("engine", "version", "what is measured", "missing", "precision")
    return _table(columns, rows, columns)


def _precisions(document: Document, engine: str) -> str:
    """What the engine said it computed in, over all layers."""
    said = (row.measures[engine].precision for row in document.rows if engine in row.measures)
    return escape("; ".join(dict.fromkeys(word.partition(",")[0] for word in said if word)))


def _card(facts: Mapping[str, Any]) -> str:
    rows = []
    for title, value in facts.items():
        pairs = value.items() if isinstance(value, Mapping) else [("", value)]
        rows += [(escape(f"{title} {name}".strip()), escape(str(fact))) for name, fact in pairs]
    return _table(("", "value"), rows, ("value",))
