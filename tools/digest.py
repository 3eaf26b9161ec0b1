"""Compares the text of every generated kernel with what it was: ``python3 tools/digest.py``.

The kernels are those of all algorithms for the problems of tests/kernels/problems.txt and the published layers, on
every level of x86-64, and in check mode for some of them.  tests/kernels/digest.txt keeps a fingerprint of each; where
one differs this fails and names it.  Nothing is compiled, so any machine will do.

``--write`` keeps today's texts instead, ``--part`` compares a part that takes some seconds, ``--list`` also says which
algorithms use each kernel.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark.sets import of_sets
from polyconv.conformance.kernel_texts import TARGETS, KernelText, kernel_texts
from polyconv.problem.problem import Problem

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "kernels"
KEPT = FOLDER / "digest.txt"

HEAD = """\
# Fingerprints of the texts of generated kernels, made by tools/digest.py --write: one kernel a line.
# Fields of a label that are False, empty, 0 or None are left out.
"""
CHECKED = 4
"""One problem of so many is also built in check mode, and is the part that ``--part`` compares."""

_DEFAULT = r"\w+=(?:False|None|0|'')"


def main(arguments: list[str]) -> int:
    """Compare or keep; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the fingerprints of today's texts")
    parser.add_argument("--part", action="store_true", help="compare some of the kernels only")
    parser.add_argument("--list", action="store_true", help="list every kernel with the algorithms that use it")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file of fingerprints")
    given = parser.parse_args(arguments)
    if given.write and given.part:
        parser.error("--write keeps all kernels; --part is for comparing")
    found = generated(part=given.part)
    today = {name: digest for name, (digest, _) in found.items()}
    if given.list:
        for name, (digest, algorithms) in found.items():
            print(digest, name, "for", ", ".join(sorted(algorithms)))
    counts = {a: sum(a in algorithms for _, algorithms in found.values()) for a in ALGORITHMS}
    print("kernels by algorithm:", ", ".join(f"{a} {count}" for a, count in counts.items()))
    print(f"{len(today)} kernels, total {fingerprint(lines(today))}")
    if unused := [a for a, count in counts.items() if not count and not given.part]:
        print(f"no problem is computed by {', '.join(unused)}: add one to {FOLDER / 'problems.txt'}")
        return 1
    if given.write:
        given.kept.write_text(HEAD + lines(today))
        return 0
    return compared(today, kept(given.kept), part=given.part)


Found = dict[str, tuple[str, set[str]]]
"""Kernels by name: the fingerprint of the text, and the algorithms that use it."""


def generated(*, part: bool) -> Found:
    """Every kernel by name: its target, whether it checks bounds, and its label.  All CPUs write texts."""
    # the longest begin first
    jobs = [(target, kind) for kind in ("all", "checked", "drawn")[1 if part else 0 :] for target in TARGETS]
    found: Found = {}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for some in pool.map(_written, *zip(*jobs, strict=True)):
            for name, (digest, algorithms) in some.items():
                known = found.setdefault(name, (digest, set()))
                assert known[0] == digest, f"two kernels are called '{name}'"
                known[1].update(algorithms)
    return found


def _written(target: str, kind: str) -> Found:
    """The kernels of a target for all problems, or for the drawn ones that are built in check mode too."""
    text = (FOLDER / "problems.txt").read_text()
    problems = [Problem.parse(line) for line in text.splitlines() if not line.startswith("#")]
    if kind == "all":
        problems += dict.fromkeys(case.problem for case in of_sets(["all"]))
    else:
        problems = problems[::CHECKED]
    found: dict[str, KernelText] = {}
    for label, kernel in kernel_texts(problems, TARGETS[target], check=kind == "checked").items():
        known = found.setdefault(short(label), kernel)
        assert known.text == kernel.text, f"two kernels are called '{label}'"
        known.algorithms.update(kernel.algorithms)
    return {name: (fingerprint(kernel.text), kernel.algorithms) for name, kernel in found.items()}


def short(label: str) -> str:
    """A label without the fields that say nothing."""
    label = " ".join(label.split())
    while label != (less := re.sub(rf", {_DEFAULT}(?=[,)])|(?<=\(){_DEFAULT}(?:, |(?=\)))", "", label)):
        label = less
    return label


def fingerprint(text: str) -> str:
    """The first 64 bits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def lines(digests: dict[str, str]) -> str:
    """The kept file's lines."""
    return "".join(f"{digest} {name}\n" for name, digest in sorted(digests.items()))


def kept(file: Path) -> dict[str, str]:
    """The digests of a file by name."""
    rows = [line.split(" ", 1) for line in file.read_text().splitlines() if not line.startswith("#")]
    return {name: digest for digest, name in rows}


def compared(today: dict[str, str], before: dict[str, str], *, part: bool) -> int:
    """Say which kernels differ from those kept; 1 if any does."""
    kinds = {
        "has another text": [name for name in today if before.get(name, today[name]) != today[name]],
        "is new": [name for name in today if name not in before],
        "is gone": [] if part else [name for name in before if name not in today],
    }
    for what, names in kinds.items():
        for name in names:
            print(f"{what}: {name}")
    differing = sum(map(len, kinds.values()))
    if differing:
        print(
            f"{differing} of {len(today)} generated kernels are not those of {KEPT.name}.  If that is what you want,"
            " run 'python3 tools/digest.py --write' and commit the file with the reason; else the change is a mistake."
        )
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
