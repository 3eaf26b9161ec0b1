"""A document to one HTML page that needs nothing else: conditions, summaries, pictures, every layer, method.

Written for a reader who knows the other engines better than we do, so it says what each was asked to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from polyconv.benchmark.engines import OURS
from polyconv.benchmark.judge import NOISE, best_peer, ratio, speed
from polyconv.benchmark.page import Cell, card, page, table
from polyconv.benchmark.plots import ratio_plot, roofline_plot
from polyconv.benchmark.record import Document, Measure, Row
from polyconv.benchmark.summary import Group, summary

__all__ = ["report"]

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
    "The share of the peak counts the products of the definition, padding included, against the multiply-adds that the "
    "CPUs reached in this run. Algorithms that need fewer products (winograd, fft, strassen), or leave out those with "
    "padding, can pass 100 %. The roofline is the lesser of that peak and of what a large copy allows.",
)


def report(document: Document) -> str:
    """The page.

    Parameters
    ----------
    document : Document
        With at least one layer.
    """
    parts = [
        _conditions(document), _noise(document),
        "<h2>Summary</h2>",
        *(_summary(layout, summary(document.rows, layout)) for layout in OURS),
        "<h2>Ratio of every layer</h2>", f"<div class='plot'>{ratio_plot(document)}</div>",
        "<h2>Roofline</h2>", f"<div class='plot'>{roofline_plot(document)}</div>",
        "<h2>Layers</h2>", "<p>A heading sorts by its column; a layer opens to its problem and all engines.</p>",
        _layers(document),
        "<h2>Method</h2>", *(f"<p>{escape(text)}</p>" for text in _METHOD),
        "<h2>Engines</h2>", _engines(document),
        "<h2>Machine</h2>", card({**document.machine, "options": document.options}),
    ]  # fmt: skip
    return page("polyconv bench", parts)


def _conditions(document: Document) -> str:
    """Where, with what, and how loaded it was."""
    machine, options = document.machine, document.options
    cpu, cores, versions = (machine.get(title, {}) for title in ("cpu", "cores", "versions"))
    engines = (f"{name} {facts['version']}".strip() for name, facts in document.engines.items() if not facts["missing"])
    rows = {
        "started": document.started,
        "CPU": f"{cpu.get('name', 'unknown')}, instructions {cpu.get('used', 'unknown')}",
        "CPUs used": f"{len(document.peaks.cpus)} of {cores.get('affinity', 'unknown')}",
        "peaks": f"{document.peaks.flops / 1e9:.0f} GFLOP/s of f32 multiply-adds, {document.peaks.bandwidth / 1e9:.1f} "
                 "GB/s of a large copy, read and written",
        "load before": cores.get("load average", "unknown"),
        "rounds": _good_rounds(document),
        "measured": f"{len(document.rows)} layers, {options.get('threads')} thread(s), accuracy "
                    f"{options.get('accuracy')}",
        "engines": ", ".join(engines),
        "system": f"{versions.get('system', 'unknown')}, Python {versions.get('python', 'unknown')}",
    }  # fmt: skip
    return table(("", ""), [(escape(name), escape(str(value))) for name, value in rows.items()], ("",), kind="facts")


def _good_rounds(document: Document) -> str:
    rounds = [one for row in document.rows for one in row.rounds]
    good = sum(one.good for one in rounds)
    return f"{good} of {len(rounds)} undisturbed" if rounds else "none"


def _noise(document: Document) -> str:
    """A banner where layers were measured while the CPUs did something else."""
    noisy = [row.label for row in document.rows if row.is_noisy]
    if not noisy:
        return ""
    some = ", ".join(noisy[:8]) + (f" and {len(noisy) - 8} more" if len(noisy) > 8 else "")
    return (
        f"<p class='banner'><strong>Noisy.</strong> {len(noisy)} of {len(document.rows)} layers had fewer than three "
        f"undisturbed rounds, because something else used the CPUs; all their rounds were taken: {escape(some)}. "
        "Measure these again before you rely on them.</p>"
    )


def _ratio_cell(value: float | None) -> Cell:
    if value is None:
        return Cell("-")
    return Cell(f"{value:.2f}", "won" if value >= 1.0 else "lost" if value < NOISE else "", value)


def _summary(layout: str, groups: Sequence[Group]) -> str:
    rows = [
        (
            escape(f"{g.kind}: {g.name}" if g.kind == "set" else g.name), f"{g.compared} of {g.count}",
            _ratio_cell(g.mean), _ratio_cell(g.least), str(g.below), str(g.lost), escape(g.slowest),
        )
        for g in groups
    ]  # fmt: skip
    columns = ("", "compared", "geometric mean", "least", "below 1.0", "below 0.97", "slowest layer")
    return f"<h3>polyconv {layout}</h3>" + table(
        columns, rows, ("slowest layer",), ("compared", "below 1.0", "slowest layer")
    )


def _microseconds(measure: Measure | None) -> Cell:
    if measure is None or measure.seconds is None:
        return Cell("-")
    return Cell(f"{1e6 * measure.seconds:,.1f}", value=measure.seconds)


def _layers(document: Document) -> str:
    columns = ["layer", "algorithm", *(f"{layout} us" for layout in OURS), *(f"ratio {layout}" for layout in OURS),
               "fastest other", "its us", "GFLOP/s", "of peak", "of roofline", "error / chain"]  # fmt: skip
    more = ("algorithm", "NHWC us", "ratio NHWC", "fastest other", "GFLOP/s", "of peak", "of roofline", "error / chain")
    rows = [_layer(document, row) for row in document.rows]
    return table(columns, rows, ("algorithm", "fastest other"), more, "sortable")


def _layer(document: Document, row: Row) -> list[str | Cell]:
    own, best = row.measures.get(OURS["NCHW"]), best_peer(row)
    reached = None if own is None else speed(row, own, document.peaks)
    error = None if own is None else own.error
    shares = () if reached is None else (reached.of_flops, reached.of_bound)
    ratios = (ratio(row, layout) for layout in OURS)
    return [
        Cell(f"<details><summary>{escape(row.label)}{' (noisy)' if row.is_noisy else ''}</summary>"
              f"{_details(row)}</details>", value=row.label),
        escape(_algorithms(row)),
        *(_microseconds(row.measures.get(engine)) for engine in OURS.values()),
        *(_ratio_cell(None if r is None else r.value) for r in ratios),
        "-" if best is None else escape(best.engine), _microseconds(best),
        *(("-",) * 3 if reached is None else (f"{reached.gflops:.0f}", *(f"{share:.0%}" for share in shares))),
        f"{error / row.chain_error:.2f}" if error is not None and row.chain_error else "-",
    ]  # fmt: skip


def _algorithms(row: Row) -> str:
    """polyconv's, in both layouts where they differ."""
    found = (m.kernel for engine in OURS.values() if (m := row.measures.get(engine)) is not None and m.kernel)
    return ", ".join(dict.fromkeys(found)) or "-"


def _details(row: Row) -> str:
    """The problem, and what is known of every engine on it."""
    lines = [f"<code>{escape(row.problem)}</code>"]
    for m in row.measures.values():
        time = m.why or "not measured" if m.seconds is None else f"{1e6 * m.seconds:,.1f} us"
        quartiles = f"quartiles {1e6 * (m.low or 0):,.1f} to {1e6 * (m.high or 0):,.1f} us" if m.seconds else ""
        error = "" if m.error is None else f"error {m.error:.1e}"
        lines.append(escape(", ".join(w for w in (f"{m.engine}: {time}", quartiles, error, m.precision, m.kernel,
                                                  m.remark) if w)))  # fmt: skip
    return "".join(f"<p>{line}</p>" for line in lines)


def _engines(document: Document) -> str:
    rows = [
        (escape(name), *(escape(facts[key]) for key in ("version", "words", "missing")), _precisions(document, name))
        for name, facts in document.engines.items()
    ]
    columns = ("engine", "version", "what is measured", "missing", "precision")
    return table(columns, rows, columns, ("what is measured",))


def _precisions(document: Document, engine: str) -> str:
    """What the engine said it computed in, over all layers."""
    said = (row.measures[engine].precision for row in document.rows if engine in row.measures)
    return escape("; ".join(dict.fromkeys(word.partition(",")[0] for word in said if word)))
