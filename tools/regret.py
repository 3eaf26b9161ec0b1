"""How much time predictions lose, by type, instruction set and machine profile: ``python3 tools/regret.py``.

The regret of a layer is the time of the algorithm that is predicted fastest over that of the fastest one, less 1.
Every algorithm that may be near is timed; nothing is remembered.  Run it alone on the machine: with all sets, types
and levels it takes about ten minutes for each profile.  It prints a table in Markdown, and each layer that loses.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from polyconv import plan, wisdom
from polyconv.benchmark.runs import restricted
from polyconv.benchmark.sets import of_sets
from polyconv.machine.calibrate import measured
from polyconv.machine.host import profile_in_force
from polyconv.machine.profile import spelled
from polyconv.problem.problem import Problem
from polyconv.target import levels, target

TYPES = {"f32": ("f32", "f32"), "f64": ("f64", "f64"), "bf16": ("bf16", "bf16"), "i8>i32": ("i8", "i32")}
"""Types of input and weights, and of the result."""
NEAR = 0.1
HEADER = "| type | instructions | profile | layers | mean regret | time lost | within 10 % |\n" + "|---" * 7 + "|"


@dataclass(frozen=True, slots=True)
class Regret:
    """A layer's seconds by the algorithm that is predicted fastest, and by the fastest."""

    problem: Problem
    taken: str
    best: str
    seconds: float
    least: float

    @property
    def share(self) -> float:
        """What is lost, as a share of the least."""
        return self.seconds / self.least - 1


def main(arguments: list[str]) -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", nargs="+", default=["all"], help="sets of layers, as bench has them")
    parser.add_argument("--type", nargs="+", default=list(TYPES), choices=list(TYPES))
    parser.add_argument("--level", nargs="+", default=list(reversed(levels())), choices=levels())
    parser.add_argument("--profile", nargs="+", default=["own", "calibrated"], help="own is the one in force")
    parser.add_argument("--every", type=int, default=1, help="take one layer of so many")
    parser.add_argument("--rigor", default="measure", choices=wisdom.RIGORS)
    given = parser.parse_args(arguments)
    os.environ["POLYCONV_WISDOM"], os.environ["POLYCONV_NUM_THREADS"] = "off", "1"
    layers = list(dict.fromkeys(case.problem for case in of_sets(given.set)))[:: given.every]
    rows, losing = [HEADER], []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.profile:
            set_profile(name, Path(folder))
            for kind in given.type:
                problems = [replace(p, x=TYPES[kind][0], w=TYPES[kind][0], y=TYPES[kind][1]) for p in layers]
                for level in given.level:
                    found = list(regrets(problems, level, given.rigor))
                    if not found:
                        continue
                    rows.append(f"| {kind} | {level} | {profile_in_force().name} | {summary(found)} |")
                    losing += [(level, name, each) for each in found if each.share > NEAR]
                    print(rows[-1], file=sys.stderr)
    print("\n".join(rows))
    for level, name, each in sorted(losing, key=lambda row: -row[2].share):
        print(f"{each.share:.0%} lost by {each.taken}, not {each.best}: {each.problem} on {level} with {name}")
    return 0


def set_profile(name: str, folder: Path) -> None:
    """Have plans made for a preset, a file, this machine's own profile, or one measured now."""
    os.environ.pop("POLYCONV_PROFILE", None)
    if name == "calibrated":
        file = folder / "calibrated.toml"
        file.write_text(spelled(measured([target(level) for level in levels()])), encoding="utf-8")
        name = str(file)
    if name != "own":
        os.environ["POLYCONV_PROFILE"] = name


def regrets(problems: list[Problem], level: str, rigor: str) -> Iterator[Regret]:
    """The regret of each problem that has a choice."""
    with restricted(level):
        for problem in problems:
            wisdom.forget()
            candidates = plan(problem, rigor=rigor).candidates
            times = {each.algorithm: each.measured for each in candidates if each.measured is not None}
            taken = min(candidates, key=lambda each: each.predicted).algorithm
            if taken in times:
                best = min(times, key=times.__getitem__)
                yield Regret(problem, taken, best, times[taken], times[best])


def summary(found: list[Regret]) -> str:
    """Cells of a row: layers, mean regret, time lost of all together, and the share of layers that lose little."""
    mean = sum(each.share for each in found) / len(found)
    lost = sum(each.seconds for each in found) / sum(each.least for each in found) - 1
    near = sum(each.share <= NEAR for each in found)
    return f"{len(found)} | {mean:.1%} | {lost:.1%} | {near} of {len(found)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
