"""The tree against an earlier one, layer by layer: ``python3 tools/versus.py COMMIT``.

Each tree has a process of its own; both prepare a layer, and bursts of calls alternate in random order, so that what
slows the machine down slows both.  A ratio is the earlier tree's time over this one's: above 1, this one is faster.
It prints a table in Markdown, each layer that became slower, and where the two chose differently.  Run it alone on
the machine; the earlier tree has to have ``polyconv.benchmark``.  Which sets of a cache arrays share depends on the
pages they happened to get: with arrays in one place small depthwise layers of a tree against itself (``HEAD``) came out
between 0.7 and 1.8.  So each layer is loaded several times (``--places``), and the median of all rounds counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from polyconv.benchmark.burn import burn, cpus_for, peaks
from polyconv.benchmark.engines import OURS, environment
from polyconv.benchmark.engines.ready import Task
from polyconv.benchmark.judge import quartiles
from polyconv.benchmark.process import Process
from polyconv.benchmark.record import Round
from polyconv.benchmark.rounds import Budget, interleave
from polyconv.benchmark.sets import Case, of_sets
from polyconv.benchmark.summary import geometric_mean
from polyconv.conformance.operands import operands
from polyconv.target import target

ROOT = Path(__file__).resolve().parent.parent
EARLIER = "earlier "
"""Stands before the name of an engine that is the earlier tree's."""
SLOWER = 1 / 1.03


class EarlierTree(Process):
    """The earlier tree's process, whose engines go by names of their own here."""

    def call(self, function: str, *arguments: Any) -> Any:
        """Answer to a request that names an engine as this tool does."""
        return super().call(function, *(a.removeprefix(EARLIER) if isinstance(a, str) else a for a in arguments))


@dataclass(frozen=True, slots=True)
class Change:
    """A layer in a layout: the earlier time over this tree's, and what each tree ran."""

    label: str
    layout: str
    ratio: float
    before: str
    now: str


def main(arguments: list[str]) -> int:
    """Measure and print; the exit code, 1 if a layer became slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what git knows the earlier tree by")
    parser.add_argument("--set", nargs="+", default=["all"], help="sets of layers, as bench has them")
    parser.add_argument("--every", type=int, default=1, help="take one layer of so many")
    parser.add_argument("--target", default=None, help="instruction-set level of both")
    parser.add_argument("--accuracy", default="fast", choices=("fast", "strict"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.4, help="of measuring, per layer and about")
    parser.add_argument("--rounds", type=int, default=3, help="of each place")
    parser.add_argument("--places", type=int, default=5, help="how often the arrays of a layer are made anew")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        extract(given.commit, Path(folder))
        found = list(changes(of_sets(given.set)[:: given.every], Path(folder), given))
    print("| layers | layout | ratio | least | most | slower by more than 3 % |\n" + "|---" * 6 + "|")
    for layout in OURS:
        ratios = [each.ratio for each in found if each.layout == layout]
        mean, slow = geometric_mean(ratios), sum(r < SLOWER for r in ratios)
        print(f"| {len(ratios)} | {layout} | {mean:.3f} | {min(ratios):.2f} | {max(ratios):.2f} | {slow} |")
    for each in sorted(found, key=lambda change: change.ratio):
        if each.ratio < SLOWER or each.before != each.now:
            ran = each.now if each.before == each.now else f"{each.before} before, {each.now} now"
            print(f"{each.ratio:.2f}  {each.label} {each.layout}: {ran}")
    return int(any(each.ratio < SLOWER for each in found))


def extract(commit: str, folder: Path) -> None:
    """Write the files of a commit to a folder."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


def changes(cases: Sequence[Case], folder: Path, given: argparse.Namespace) -> Iterator[Change]:
    """Every layer in both layouts, one after the other."""
    cpus = cpus_for(given.threads)
    level = target(given.target)
    task = Task(given.threads, cpus, given.accuracy)
    common = {**environment("polyconv", given.threads, given.target), "POLYCONV_WISDOM": "off"}

    def variables(source: Path, cache: str) -> dict[str, str]:
        return {**common, "PYTHONPATH": str(source), "POLYCONV_CACHE_DIR": str(folder / cache)}

    before = EarlierTree("polyconv", task, variables(folder / "src", "earlier"))
    now = Process("polyconv", task, variables(ROOT / "src", "now"))
    hosts: dict[str, Process] = dict.fromkeys(OURS.values(), now)
    hosts |= dict.fromkeys((EARLIER + name for name in OURS.values()), before)
    try:
        before.start()
        now.start()
        best = peaks(level, cpus).alone
        for number, case in enumerate(cases):
            rng = np.random.default_rng(number)
            problem = replace(case.problem, layout="NCHW")
            made = replace(operands(problem, rng, "normal"), past=None)
            pairs: dict[str, list[float | None]] = {layout: [] for layout in OURS}
            rounds: list[Round] = []
            for _ in range(given.places):
                for process in (before, now):
                    process.call("load", problem, made)
                facts = {name: host.call("prepare", name) for name, host in hosts.items()}
                first = {name: facts[name]["first_seconds"] for name in hosts}
                budget = Budget(given.seconds / given.places, given.rounds)
                times = interleave(hosts, tuple(hosts), first, partial(burn, level, cpus), best, budget, rng)
                rounds += times.rounds
                for layout, name in OURS.items():
                    pairs[layout] += [
                        None if a is None or b is None else a / b
                        for a, b in zip(times.seconds[EARLIER + name], times.seconds[name], strict=True)
                    ]
            for layout, name in OURS.items():
                middle = quartiles(rounds, pairs[layout])
                if middle is None:
                    raise RuntimeError(f"{case.problem} was not measured: {times.failures}")
                label = " ".join(word for word in (case.set, case.name) if word) or str(case.problem)
                yield Change(label, layout, middle[0], facts[EARLIER + name]["kernel"], facts[name]["kernel"])
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {len(cases)} layers", end="", file=sys.stderr)
    finally:
        before.close()
        now.close()


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main(sys.argv[1:]))
