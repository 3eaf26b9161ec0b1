"""Cases to a document: the processes started, each case prepared, checked, measured and entered.

One case is in the guests' memory at a time; whoever asked is told of every finished row.  What the engines
do is theirs, what the figures mean is the judge's.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from polyconv.benchmark.bound import bytes_of
from polyconv.benchmark.burn import Peaks, burn, cpus_for, peaks
from polyconv.benchmark.engines import ENGINES, OURS, chosen, environment
from polyconv.benchmark.engines.ready import Task
from polyconv.benchmark.families import family
from polyconv.benchmark.judge import computes_truly, quartiles
from polyconv.benchmark.process import GuestError, Process
from polyconv.benchmark.record import Document, Measure, Row
from polyconv.benchmark.rounds import Budget, Times, interleave
from polyconv.benchmark.sets import Case
from polyconv.benchmark.truth import Truth, truth
from polyconv.conformance.operands import operands
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.problem.problem import Problem
from polyconv.settings import resolve
from polyconv.target import target

__all__ = ["Options", "resumed", "run"]


@dataclass(frozen=True, slots=True)
class Options:
    """What to compare and how.

    Parameters
    ----------
    threads : int
        Of every engine.
    accuracy : str
        polyconv's: ``fast`` or ``strict``.
    target : str or None
        Instruction-set level to which all engines are restricted.
    peers : tuple of str or None
        Engines or guests; None is every one that is installed.
    seconds : float
        Of measuring, per layer and about.
    rounds : int
        Good rounds wanted per layer.
    seed : int
        Of operands and orders.
    """

    threads: int = 1
    accuracy: str = "fast"
    target: str | None = None
    peers: tuple[str, ...] | None = None
    seconds: float = 2.0
    rounds: int = Budget().rounds
    seed: int = 0

    def plain(self) -> dict[str, Any]:
        """As the document records them."""
        return {
            "threads": self.threads, "accuracy": self.accuracy, "target": self.target,
            "peers": None if self.peers is None else list(self.peers), "seconds": self.seconds,
            "rounds": self.rounds, "seed": self.seed,
        }  # fmt: skip


def resumed(earlier: Document, options: Options) -> Document:
    """An earlier document, if it can be continued under these options.

    Raises
    ------
    ArgumentError
        If it was measured otherwise; the message names the first difference.
    """
    for name, value in options.plain().items():
        if earlier.options.get(name) != value:
            raise ArgumentError(
                f"the earlier run had {name}={earlier.options.get(name)!r}, this one {value!r}; "
                "use the same options or another file"
            )
    return earlier


def run(cases: Sequence[Case], options: Options, *, machine: Mapping[str, Any] | None = None,
        earlier: Document | None = None, progress: Callable[[Document, Row], None] = lambda document, row: None,
        ) -> Document:  # fmt: skip
    """Measure every case that an earlier document does not hold.

    Parameters
    ----------
    machine : mapping, optional
        The machine card, entered as it is.
    earlier : Document, optional
        Taken up where it ends.
    progress : callable
        Told of the document so far and its newest row.

    Raises
    ------
    ArgumentError
        If an engine is unknown, or there are fewer CPUs than threads.
    """
    level = target(options.target or resolve("target"))
    engines = chosen(options.peers, options.target)
    cpus = cpus_for(options.threads)
    if len(cpus) < options.threads:
        raise ArgumentError(f"threads={options.threads}, but this process may use {len(cpus)} CPUs; give fewer threads")
    done = set() if earlier is None else {row.key for row in earlier.rows}
    left = [case for case in cases if (case.set, case.name, str(case.problem)) not in done]
    if earlier is not None and not left:
        return earlier
    limits = peaks(level, cpus)
    document = earlier or Document(
        options.plain(), dict(machine or {}), {}, limits,
        datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    )  # fmt: skip
    document.peaks = _higher(document.peaks, limits)
    task = Task(options.threads, cpus, options.accuracy)
    with ExitStack() as stack:
        processes = {}
        for guest in dict.fromkeys(ENGINES[name].guest for name, why in engines.items() if why is None):
            processes[guest] = Process(guest, task, environment(guest, options.threads, options.target))
            stack.callback(processes[guest].close)
        bench = _Bench(options, engines, processes, partial(burn, level, cpus))
        for name, why in engines.items():
            problem = why if why is not None else bench.begin(ENGINES[name].guest)
            version = "" if why is not None else processes[ENGINES[name].guest].version
            document.engines[name] = {"words": ENGINES[name].words, "version": version, "missing": problem}
        for case in left:
            row = bench.measure(case, document.peaks)
            document.rows.append(row)
            document.peaks = _seen(document.peaks, row)
            progress(document, row)
    return document


def _higher(a: Peaks, b: Peaks) -> Peaks:
    return Peaks(b.cpus, max(a.flops, b.flops), max(a.alone, b.alone), max(a.bandwidth, b.bandwidth))


def _seen(known: Peaks, row: Row) -> Peaks:
    """Peaks, raised by what the burns beside a row reached."""
    alone = max((r.rate for r in row.rounds), default=0.0)
    together = max((r.rate * r.share for r in row.rounds), default=0.0) * len(known.cpus)
    return replace(known, alone=max(known.alone, alone), flops=max(known.flops, together))


@dataclass(frozen=True, slots=True)
class _Bench:
    """The processes of one run."""

    options: Options
    engines: Mapping[str, str | None]
    processes: Mapping[str, Process]
    burn: Callable[[], tuple[float, float]]

    def begin(self, guest: str) -> str:
        """Start a guest unless it runs; the reason if it cannot."""
        try:
            self.processes[guest].start()
        except GuestError as error:
            return str(error)
        return ""

    def measure(self, case: Case, limits: Peaks) -> Row:
        """One row of the document."""
        p = replace(case.problem, layout="NCHW")
        rng = np.random.default_rng([self.options.seed, *map(ord, str(p))])
        made = operands(p, rng, "normal")
        made = replace(made, past=None)
        failures = {name: why for name, why in self.engines.items() if why is not None}
        for guest, process in self.processes.items():
            why = self.begin(guest)
            try:
                if not why:
                    process.call("load", p, made)
            except GuestError as error:
                why = str(error)
            failures |= {name: why for name in self.engines if why and ENGINES[name].guest == guest}
        right = truth(p, made, rng)
        del made
        facts: dict[str, dict[str, Any]] = {}
        errors: dict[str, float] = {}
        for name in self.engines:
            if name in failures:
                continue
            process = self.processes[ENGINES[name].guest]
            try:
                facts[name] = process.call("prepare", name)
                sample = process.call("sample", name, right.channels)
                if sample.shape != right.exact.shape:
                    failures[name] = f"wrong: results of shape {sample.shape}, not {right.exact.shape}"
                else:
                    errors[name] = right.error(sample)
            except GuestError as error:
                failures[name] = str(error).removeprefix("Lacking: ")
        hosts = {name: self.processes[ENGINES[name].guest] for name in self.engines if name in errors}
        budget = Budget(self.options.seconds, self.options.rounds)
        first = {name: facts[name]["first_seconds"] for name in hosts}
        times = interleave(hosts, OURS.values(), first, self.burn, limits.alone, budget, rng)
        failures |= times.failures
        measures = {
            name: _measure(name, p, facts.get(name, {}), errors.get(name), times, failures.get(name, ""))
            for name in self.engines
        }
        return _row(case, right, times, measures)


def _measure(engine: str, p: Problem, facts: Mapping[str, Any], error: float | None, times: Times, why: str) -> Measure:
    found = None if why or engine not in times.seconds else quartiles(times.rounds, times.seconds[engine])
    true = error is not None and computes_truly(p, error)
    if error is not None and not why and not true:
        why = f"error {error:.1e}: it does not compute in {p.x}"
    middle, low, high = found or (None, None, None)
    counts = true and found is not None
    rounds = times.seconds.get(engine, ())
    return Measure(engine, middle, low, high, rounds, error=error, counts=counts, why=why, **facts)


def _row(case: Case, right: Truth, times: Times, measures: Mapping[str, Measure]) -> Row:
    p = case.problem
    return Row(
        str(p), case.set, case.name, case.source, family(p).name, 2.0 * p.macs, float(bytes_of(p)), right.chain,
        times.rounds, measures,
    )  # fmt: skip
