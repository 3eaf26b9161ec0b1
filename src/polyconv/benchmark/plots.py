"""Measured layers to pictures in SVG: ratios of layers, layers under the roofline, shares of random problems.

matplotlib draws them; it is loaded when a picture is wanted.  What the figures mean is the judge's.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from polyconv.benchmark.engines import OURS
from polyconv.benchmark.families import FAMILIES
from polyconv.benchmark.judge import best_peer, ratio
from polyconv.benchmark.record import Document, Row
from polyconv.benchmark.shares import LEAST, Share, operator

__all__ = ["ratio_plot", "roofline_plot", "shares_plot"]

_COLOURS = {"NCHW": "#0072b2", "NHWC": "#d55e00", "peer": "#7f7f7f"}
_OPERATORS = {"conv": ("o", "#0072b2"), "conv_transpose": ("D", "#d55e00"), "quantised": ("s", "#009e73"),
              "deform_conv": ("^", "#cc79a7")}  # fmt: skip
"""Mark and colour of each operator."""
_ROW_INCHES = 0.16
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # text stays text: the page can be searched, and is smaller
    pyplot.rcParams.update({"svg.fonttype": "none", "font.size": 8, "font.family": "sans-serif"})
    return pyplot


def _svg(figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight")
    _pyplot().close(figure)
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def ratio_plot(document: Document) -> str:
    """Ratio to the best other engine of every layer in both layouts, by family, with quartiles."""
    rows = [row for row in document.rows if any(ratio(row, layout) for layout in OURS)]
    pyplot = _pyplot()
    families = [(f, sorted((r for r in rows if r.family == f.name), key=_headline)) for f in FAMILIES]
    lines = sum(len(members) + 1 for _, members in families if members)
    figure, axes = pyplot.subplots(figsize=(9, 1 + _ROW_INCHES * max(lines, 4)))
    at, ticks = 0, []
    for family, members in families:
        if not members:
            continue
        ticks.append((at, family.name, True))
        for row in members:
            at += 1
            ticks.append((at, row.label, False))
            for layout in OURS:
                found = ratio(row, layout)
                if found is not None:
                    axes.plot([found.low, found.high], [at, at], color=_COLOURS[layout], lw=1)
                    axes.plot(found.value, at, "o" if layout == "NCHW" else "D", ms=3.5, color=_COLOURS[layout],
                              mfc=_COLOURS[layout] if layout == "NCHW" else "white")  # fmt: skip
        at += 1
    axes.axvline(1.0, color="black", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.set_xlim(*_ends(rows))
    axes.set_yticks([place for place, _, _ in ticks], [name for _, name, _ in ticks])
    for label, (_, _, is_family) in zip(axes.get_yticklabels(), ticks, strict=True):
        label.set_fontweight("bold" if is_family else "normal")
    axes.set_ylim(at, -1)
    axes.grid(axis="x", lw=0.3)
    axes.tick_params(top=True, labeltop=True)
    for layout, mark in (("NCHW", "o"), ("NHWC", "D")):
        axes.plot([], [], mark, ms=4, color=_COLOURS[layout], mfc=_COLOURS[layout] if layout == "NCHW" else "white",
                  label=f"polyconv {layout}")  # fmt: skip
    _legend_above(axes)
    axes.set_xlabel("time of the best other engine / time of polyconv (quartiles of the rounds)")
    return _svg(figure)


def _legend_above(axes: Any) -> None:
    """A legend beside the data, never on it."""
    above = 1.0 + 0.35 / axes.figure.get_figheight()  # and above the numbers of the axis
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, above), ncols=3, frameon=False)


def _ends(rows: Sequence[Row]) -> tuple[float, float]:
    """Ends of the axis of ratios: all quartiles, and 1."""
    found = [r for row in rows for layout in OURS if (r := ratio(row, layout)) is not None]
    return 0.95 * min([1.0, *(r.low for r in found)]), 1.05 * max([1.0, *(r.high for r in found)])


def _headline(row: Row) -> float:
    return min((r.value for layout in OURS if (r := ratio(row, layout)) is not None), default=0.0)


def roofline_plot(document: Document) -> str:
    """GFLOP/s over operations per byte, under the measured peaks."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 5))
    limits = document.peaks
    rows = [row for row in document.rows if row.bytes]
    intensity = [row.flops / row.bytes for row in rows]
    ends = min([0.5, *intensity]), max([200.0, *intensity])
    knee = limits.flops / limits.bandwidth
    corners = [ends[0], knee, max(ends[1], knee)]
    axes.plot(corners, [min(limits.flops, x * limits.bandwidth) / 1e9 for x in corners], color="black", lw=1)
    series = [(layout, OURS[layout], "o" if layout == "NCHW" else "D") for layout in OURS]
    for layout, engine, mark in series:
        found = [(x, row.flops / m.seconds / 1e9) for x, row in zip(intensity, rows, strict=True)
                 if (m := row.measures.get(engine)) is not None and m.seconds]  # fmt: skip
        axes.plot([x for x, _ in found], [y for _, y in found], mark, ms=3.5, color=_COLOURS[layout],
                  mfc=_COLOURS[layout] if layout == "NCHW" else "white", label=f"polyconv {layout}")  # fmt: skip
    peers = [(x, row.flops / m.seconds / 1e9) for x, row in zip(intensity, rows, strict=True)
             if (m := best_peer(row)) is not None and m.seconds]  # fmt: skip
    axes.plot([x for x, _ in peers], [y for _, y in peers], "x", ms=3.5, color=_COLOURS["peer"],
              label="best other engine")  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of input, weights and result")
    axes.set_ylabel("GFLOP/s, padding counted as work")
    axes.grid(lw=0.3)
    _legend_above(axes)
    return _svg(figure)


def shares_plot(shares: Sequence[Share]) -> str:
    """Share of the bound of every problem over the bound, and how many problems stay below a share."""
    pyplot = _pyplot()
    figure, (each, below) = pyplot.subplots(1, 2, figsize=(9, 4.5), sharey=True, width_ratios=(3, 2))
    for name, (mark, colour) in _OPERATORS.items():
        members = [s for s in shares if operator(s.problem) == name]
        if not members:
            continue
        each.plot([1e6 * s.bound.seconds for s in members], [s.share for s in members], mark, ms=3, color=colour,
                  mfc="none", label=f"{name} ({len(members)})")  # fmt: skip
        rising = sorted(s.share for s in members)
        below.step([(rank + 1) / len(rising) for rank in range(len(rising))], rising, color=colour)
    each.set_xscale("log")
    each.set_yscale("log")
    ticks = [tick for tick in _TICKS if min(0.1, *(s.share for s in shares)) <= tick <= 5]
    each.set_yticks(ticks, [f"{tick:.0%}" for tick in ticks])
    each.set_yticks([], minor=True)
    each.set_xlabel("bound, us")
    each.set_ylabel("bound / time")
    below.set_xlabel("part of the problems that is below")
    for axes in (each, below):
        axes.axhline(1.0, color="black", lw=1)
        axes.axhline(LEAST, color="black", lw=1, ls=":")
        axes.grid(lw=0.3)
    _legend_above(each)
    return _svg(figure)
