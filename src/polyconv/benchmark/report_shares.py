"""Shares of random problems to one HTML page: a picture, percentiles, the lowest shares, every problem, method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from polyconv.benchmark.page import Cell, card, page, table
from polyconv.benchmark.plots import shares_plot
from polyconv.benchmark.shares import LEAST, Share, groups, worst

__all__ = ["report"]

_METHOD = (
    "Problems are drawn from a seed: operators, types, ranks, layouts, groups, channels, extents, kernels, strides, "
    "dilations and pads apart from each other, so most are like no layer of a network. Each runs on one thread, with "
    "packed weights and a result array; the time is the median of calls, as the thread's own clock counts it, or the "
    f"shorter of two medians where the share is below {LEAST:.0%}.",
    "The bound is the longest of three times: the multiply-adds that meet an input, at the fastest rate that the CPU "
    "showed in the fastest arithmetic that is exact enough; the vectors that registers must load and store once, and "
    "the four numbers of each sample of a deformable convolution, in vectors of channels; and what is read and written "
    "of all arrays, at the speed of a copy between two arrays that have as many bytes together. Schemes with fewer "
    "multiplications (winograd, strassen, fft) can be faster than the first.",
)


def report(shares: Sequence[Share], document: Mapping[str, Any]) -> str:
    """The page.

    Parameters
    ----------
    shares : sequence of Share
    document : mapping
        What ``bench --random --json`` writes: options, machine, peaks.
    """
    facts = {name: document[name] for name in ("random", "peaks_gflops", "copy_bytes_per_second")}
    picture = f"<div class='plot'>{shares_plot(shares)}</div>" if shares else "<p>No problem was measured.</p>"
    parts = [
        f"<p>{len(shares)} problems; the dotted line is at {LEAST:.0%}.</p>", picture,
        "<h2>Percentiles</h2>", _percentiles(shares),
        "<h2>The lowest shares</h2>", _problems(worst(shares)),
        "<h2>All problems</h2>", "<p>A heading sorts by its column.</p>", _problems(shares),
        "<h2>Method</h2>", *(f"<p>{escape(text)}</p>" for text in _METHOD),
        "<h2>Machine</h2>", card({**document["machine"], **facts}),
    ]  # fmt: skip
    return page("polyconv bench --random", parts)


def _share_cell(value: float) -> Cell:
    return Cell(f"{value:.0%}", "lost" if value < LEAST else "", value)


def _percentiles(shares: Sequence[Share]) -> str:
    rows: list[tuple[str | Cell, ...]] = [
        (escape(f"{g.kind}: {g.name}"), str(g.count),
         *(_share_cell(v) for v in (g.least, g.p5, g.p25, g.median, g.p75, g.p95)), str(g.below))
        for g in groups(shares)
    ]  # fmt: skip
    columns = ("", "number", "least", "5 %", "25 %", "median", "75 %", "95 %", f"below {LEAST:.0%}")
    return table(columns, rows, more=("5 %", "25 %", "75 %", "95 %"), kind="sortable")


def _problems(shares: Sequence[Share]) -> str:
    rows: list[tuple[str | Cell, ...]] = [
        (f"<code>{escape(str(s.problem))}</code>", escape(s.algorithm), escape(s.bound.held_by),
         Cell(f"{1e6 * s.seconds:,.0f}", value=s.seconds), Cell(f"{1e6 * s.bound.seconds:,.0f}", value=s.bound.seconds),
         _share_cell(s.share))
        for s in shares
    ]  # fmt: skip
    columns = ("problem", "algorithm", "held by", "us", "bound us", "share")
    return table(columns, rows, ("algorithm", "held by"), ("held by", "bound us"), "sortable")
