"""Measured layers to figures: the best other engine, polyconv's ratio to it, speeds and shares of the peaks.

A ratio is taken round by round, because what slows a machine down slows both; its median and quartiles
over the good rounds are the result.  It must not know how anything is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from polyconv.benchmark.burn import Peaks
from polyconv.benchmark.engines import OURS
from polyconv.benchmark.record import Measure, Round, Row
from polyconv.dataclass import dataclass
from polyconv.problem.problem import Problem

__all__ = ["NOISE", "Ratio", "Speed", "best_peer", "computes_truly", "quartiles", "ratio", "speed"]

NOISE = 0.97
"""A ratio below this is a loss beyond the noise of measuring."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The time of the best other engine over polyconv's: above 1, polyconv is faster; with its quartiles."""

    value: float
    low: float
    high: float
    peer: str


@dataclass(frozen=True, slots=True)
class Speed:
    """What a time means.

    Parameters
    ----------
    gflops : float
        Billions of operations a second, padding counted as work.
    of_flops, of_bandwidth : float
        Shares of the measured peaks; the second can exceed 1, as caches are faster than memory.
    of_bound : float
        Share of what the slower of the two allows (the roofline).
    """

    gflops: float
    of_flops: float
    of_bandwidth: float
    of_bound: float


def _counted(rounds: Sequence[Round], values: Sequence[float | None]) -> list[float]:
    """Values of the good rounds; of all, where fewer than three are good."""
    good = [v for r, v in zip(rounds, values, strict=True) if r.good and v is not None]
    return good if len(good) >= 3 else [v for v in values if v is not None]


def quartiles(rounds: Sequence[Round], values: Sequence[float | None]) -> tuple[float, float, float] | None:
    """Median and quartiles of the rounds that count, or None without any."""
    counted = _counted(rounds, values)
    if not counted:
        return None
    low, middle, high = np.percentile(counted, [25, 50, 75])
    return float(middle), float(low), float(high)


def computes_truly(p: Problem, error: float) -> bool:
    """Whether an error is one of the problem's own precision.

    Parameters
    ----------
    error : float
        rms error over rms of the outputs.

    Notes
    -----
    The roundings of a sum of k products add up like a random walk, to about ``sqrt(k) eps / 2``; eight times
    as much is granted.  Computing an f32 problem in bf16 errs by 2^-9 and is found out up to 2^21 products.
    """
    if not p.y_dtype.is_float:
        return error == 0.0 or (p.quantisation is not None and p.quantisation.rescales and error < 0.01)
    products = (p.c // p.groups) * math.prod(p.k)
    eps = max(p.y_dtype.eps, p.x_dtype.eps)
    return error <= 4.0 * math.sqrt(products) * eps


def best_peer(row: Row) -> Measure | None:
    """The fastest other engine that counts, or None."""
    peers = [m for m in row.measures.values() if m.counts and m.seconds and m.engine not in OURS.values()]
    return min(peers, key=lambda m: m.seconds or math.inf, default=None)


def ratio(row: Row, layout: str) -> Ratio | None:
    """Compare polyconv in a layout with the best other engine, whatever layout that is given."""
    own, peer = row.measures.get(OURS[layout]), best_peer(row)
    if own is None or peer is None or not own.seconds:
        return None
    pairs = [None if a is None or b is None else b / a for a, b in zip(own.rounds, peer.rounds, strict=True)]
    found = quartiles(row.rounds, pairs)
    return None if found is None else Ratio(*found, peer.engine)


def speed(row: Row, measure: Measure, peaks: Peaks) -> Speed | None:
    """Speed of an engine on a layer."""
    if not measure.seconds:
        return None
    work, moved = row.flops / measure.seconds, row.bytes / measure.seconds
    bound = max(row.flops / peaks.flops, row.bytes / peaks.bandwidth)
    return Speed(work / 1e9, work / peaks.flops, moved / peaks.bandwidth, bound / measure.seconds)
