"""Ratios of many layers to a few numbers: per family, per set, for the short ones, and for all.

Geometric means, as ratios multiply; the smallest stands beside them with its layer, because a mean hides
it.  It must not know how anything is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from polyconv.benchmark.engines import OURS
from polyconv.benchmark.families import FAMILIES
from polyconv.benchmark.judge import NOISE, best_peer, ratio
from polyconv.benchmark.record import Document, Row
from polyconv.dataclass import dataclass

__all__ = ["Group", "geometric_mean", "published", "summary"]

_SHORT_SECONDS = 20e-6


@dataclass(frozen=True, slots=True)
class Group:
    """Ratios of some layers.

    Parameters
    ----------
    kind : str
        ``all``, ``short``, ``family`` or ``set``.
    name : str
    count, compared : int
        Layers, and those of them that have a ratio.
    mean, least : float or None
        Geometric mean, and the smallest.
    slowest : str
        The layer of the smallest.
    below : int
        How many ratios are below 1.
    lost : int
        How many are below 1 by more than the noise.
    """

    kind: str
    name: str
    count: int
    compared: int
    mean: float | None
    least: float | None
    slowest: str
    below: int
    lost: int


def geometric_mean(values: Sequence[float]) -> float:
    """``exp(mean(log))``; of at least one value."""
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def _is_short(row: Row) -> bool:
    peer = best_peer(row)
    return peer is not None and (peer.seconds or 1.0) < _SHORT_SECONDS


def summary(rows: Sequence[Row], layout: str) -> list[Group]:
    """Groups of layers that are not empty, for polyconv in a layout."""
    sets = dict.fromkeys(row.set for row in rows if row.set)
    groups = [
        _group("all", "all layers", rows, layout),
        _group("short", "best peer below 20 us", [row for row in rows if _is_short(row)], layout),
        *(_group("family", f.name, [r for r in rows if r.family == f.name], layout) for f in FAMILIES),
        *(_group("set", name, [r for r in rows if r.set == name], layout) for name in sets),
    ]
    return [group for group in groups if group.count]


def _group(kind: str, name: str, members: Sequence[Row], layout: str) -> Group:
    found = [(r.value, row.label) for row in members if (r := ratio(row, layout)) is not None]
    values = [value for value, _ in found]
    least, slowest = min(found, default=(None, ""))
    return Group(
        kind, name, len(members), len(found), geometric_mean(values) if values else None, least, slowest,
        sum(v < 1.0 for v in values), sum(v < NOISE for v in values),
    )  # fmt: skip


def published(document: Document) -> dict[str, Any]:
    """A document in JSON's terms, with all that follows from it: ratios of each layer, and the summaries."""
    made = document.plain()
    for row, values in zip(document.rows, made["rows"], strict=True):
        found = {layout: ratio(row, layout) for layout in OURS}
        values["ratios"] = {layout: None if r is None else asdict(r) for layout, r in found.items()}
    return {**made, "summary": {layout: [asdict(g) for g in summary(document.rows, layout)] for layout in OURS}}
