"""Whole models on polyconv and on other engines: time of a run, loading, first run, memory, error.

Each engine opens the file in a process of its own; rounds go from one to the next, and medians over them count.  The
one idea: what a user sees from opening a file to the last of many runs.  It must not know tables.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.benchmark.burn import burn, cpus_for, peaks
from polyconv.benchmark.engines import GUESTS, environment
from polyconv.benchmark.engines.ready import Task
from polyconv.benchmark.judge import quartiles
from polyconv.benchmark.many_sizes import Sizes, visited
from polyconv.benchmark.process import GuestError, Process
from polyconv.benchmark.rounds import Budget, Times, interleave
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.settings import resolve
from polyconv.target import target

__all__ = ["NETWORK_GUESTS", "OURS", "Feeds", "Measure", "Network", "chosen_guests", "difference", "measure", "summary"]

OURS = "polyconv"
NETWORK_GUESTS = (OURS, "onnxruntime", "openvino")
"""Guests that open model files."""

_WARM_RUNS = 2
"""After the first: engines learn from them what later runs are like."""

Array = NDArray[Any]
Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Measure:
    """One engine on one model.

    Parameters
    ----------
    engine : str
        Its guest.
    seconds, low, high : float or None
        Median and quartiles of a run.
    load_seconds, first_seconds : float or None
        Of opening the file, and of the first run.
    loaded_bytes, peak_bytes : int or None
        By which the process had grown after opening, and at most until after the first run; None where the system
        does not tell.
    error : float or None
        rms difference of the outputs from the first other engine's, over their rms; the largest of all outputs.
    why : str
        Why there is no time.
    """

    engine: str
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    load_seconds: float | None = None
    first_seconds: float | None = None
    loaded_bytes: int | None = None
    peak_bytes: int | None = None
    error: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Network:
    """A model on all engines.

    Parameters
    ----------
    name : str
        Of the file.
    measures : mapping
        By engine.
    ratio : float or None
        Time of the fastest other engine over polyconv's: the median over rounds.
    peer : str
        That engine.
    good, rounds : int
        Rounds in which the CPUs were free, and all.
    sizes : mapping
        By engine, what images of many sizes took; empty where none were asked for.
    """

    name: str
    measures: Mapping[str, Measure]
    ratio: float | None
    peer: str
    good: int
    rounds: int
    sizes: Mapping[str, Sizes] = field(default_factory=dict)


def chosen_guests(words: Sequence[str] | None) -> dict[str, str]:
    """Guests to measure, polyconv first, each with why it cannot be, or nothing.

    Raises
    ------
    ArgumentError
        If one is none that opens model files.
    """
    for word in words or ():
        if word not in NETWORK_GUESTS:
            raise ArgumentError(f"{word!r} opens no model files; choose from {', '.join(NETWORK_GUESTS[1:])}")
    wanted = [g for g in NETWORK_GUESTS if words is None or g in (OURS, *words)]
    return {g: "" if find_spec(GUESTS[g].module) else "not installed; pip install 'polyconv[bench]'" for g in wanted}


def measure(path: Path, feeds: Feeds, guests: Mapping[str, str], threads: int, budget: Budget, seed: int,
            many: Sequence[Feeds] = ()) -> Network:  # fmt: skip
    """Open a model on every guest, run it in turn, and compare what comes out.

    Parameters
    ----------
    path : Path
        The model's file.
    feeds : mapping
        Arrays for its inputs.
    guests : mapping
        As ``chosen_guests`` returns them.
    many : sequence of mapping
        Feeds of other sizes, with which it runs after all else.
    """
    cpus = cpus_for(threads)
    level = target(resolve("target"))
    rng = np.random.default_rng(seed)
    facts: dict[str, dict[str, Any]] = {}
    outputs: dict[str, list[Array]] = {}
    failures = {guest: why for guest, why in guests.items() if why}
    with ExitStack() as stack:
        processes, typical = {}, {}
        for guest in guests:
            if guest in failures:
                continue
            process = Process(guest, Task(threads, cpus), environment(guest, threads, None), seconds=600.0)
            stack.callback(process.close)
            try:
                process.start()
                facts[guest] = process.call("open", guest, str(path), dict(feeds))
                outputs[guest] = process.call("results", guest)
                typical[guest] = min(process.call("burst", guest, _WARM_RUNS, 1, 1))
                process.settle()
            except GuestError as error:
                failures[guest] = str(error)
            else:
                processes[guest] = process
        best = peaks(level, cpus, tries=2).alone
        times = interleave(processes, list(processes), typical, partial(burn, level, cpus), best, budget, rng)
        met = visited({g: p for g, p in processes.items() if g not in times.failures}, many, rng) if many else {}
    failures |= times.failures
    truth = next((outputs[g] for g in guests if g != OURS and g in outputs), None)
    measures = {g: _measure(g, times, facts.get(g, {}), outputs.get(g), truth, failures.get(g, "")) for g in guests}
    ratio, peer = _ratio(times, measures)
    return Network(path.stem, measures, ratio, peer, sum(r.good for r in times.rounds), len(times.rounds), met)


def _measure(guest: str, times: Times, facts: Mapping[str, Any], found: Sequence[Array] | None,
             truth: Sequence[Array] | None, why: str) -> Measure:  # fmt: skip
    error = None if found is None or truth is None or found is truth else difference(found, truth)
    found_times = None if why or guest not in times.seconds else quartiles(times.rounds, times.seconds[guest])
    middle, low, high = found_times or (None, None, None)
    return Measure(guest, middle, low, high, error=error, why=why, **facts)


def difference(found: Sequence[Array], truth: Sequence[Array]) -> float:
    """Largest rms difference of outputs over the rms of the true ones; infinite where their shapes differ."""
    worst = 0.0
    for a, b in zip(found, truth, strict=True):
        if a.shape != b.shape:
            return math.inf
        if b.dtype.kind not in "fiub" or not b.size:
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        size = float(np.sqrt(np.mean(b * b)))
        worst = max(worst, float(np.sqrt(np.mean((a - b) ** 2))) / (size or 1.0))
    return worst


def _ratio(times: Times, measures: Mapping[str, Measure]) -> tuple[float | None, str]:
    """The fastest other engine's time over polyconv's, taken round by round."""
    peers = [m for m in measures.values() if m.seconds and m.engine != OURS]
    peer = min(peers, key=lambda m: m.seconds or math.inf, default=None)
    if peer is None or not measures[OURS].seconds:
        return None, "" if peer is None else peer.engine
    pairs = zip(times.seconds[OURS], times.seconds[peer.engine], strict=True)
    found = quartiles(times.rounds, [None if a is None or b is None else b / a for a, b in pairs])
    return (None if found is None else found[0]), peer.engine


def summary(rows: Sequence[Network]) -> dict[str, Any]:
    """Geometric mean of the ratios, the least of them, and the networks below 1."""
    ratios = {row.name: row.ratio for row in rows if row.ratio is not None}
    if not ratios:
        return {"compared": 0, "mean": None, "least": None, "below": []}
    below = [name for name, ratio in ratios.items() if ratio < 1.0]
    return {
        "compared": len(ratios), "mean": statistics.geometric_mean(ratios.values()), "least": min(ratios.values()),
        "below": below,
    }  # fmt: skip
