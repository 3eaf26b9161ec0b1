"""Lines of text to cases: the named layer sets, files of problem lines, and the convolutions of a model.

A case is a problem with a name: ``problem  # set name source`` is its line, and all after the problem may
be missing.  It must not know how a case is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, Error
from polyconv.models.session import NodeRecord
from polyconv.problem.problem import Problem

__all__ = ["Case", "layer_sets", "of_file", "of_line", "of_model", "of_sets", "pattern_of", "select"]

_SOURCE = "layers.txt"


@dataclass(frozen=True, slots=True)
class Case:
    """A problem to measure.

    Parameters
    ----------
    problem : Problem
        With all extents known.
    set, name : str
        Where it comes from: a network and the layer in it, a file, a model and its nodes.
    source : str
        Who published it.
    """

    problem: Problem
    set: str = ""
    name: str = ""
    source: str = ""

    @property
    def label(self) -> str:
        """Set and name, or the problem where it has none."""
        return " ".join(word for word in (self.set, self.name) if word) or str(self.problem)


def of_line(line: str, where: str = "") -> Case:
    """Read a case from its line.

    Parameters
    ----------
    line : str
        ``problem``, or ``problem  # set name source``.
    where : str
        Names the line in errors.

    Raises
    ------
    ArgumentError
        If the problem cannot be read or leaves a size open.
    """
    text, _, comment = line.partition("#")
    try:
        problem = Problem.parse(text.strip())
    except Error as error:
        raise ArgumentError(f"{where}{error}") from None
    if not problem.is_known:
        raise ArgumentError(f"{where}'{problem}' leaves sizes open; put numbers in place of '?'")
    return Case(_forward(problem), *comment.split(None, 2))


def _forward(p: Problem) -> Problem:
    """A causal convolution as the padded one that it is for engines without the operator."""
    return replace(p, op="conv", pads=((p.k[0] - 1, 0),)) if p.op == "causal_conv" else p


def of_file(path: Path) -> list[Case]:
    """Cases of a file of lines; empty lines and those that begin with ``#`` count for nothing.

    Raises
    ------
    ArgumentError
        For a line that is no problem, or a file without any; the message names file and line.
    """
    cases = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            case = of_line(line, f"{path}:{number}: ")
            cases.append(case if case.set else replace(case, set=path.stem, name=str(number)))
    if not cases:
        raise ArgumentError(f"{path} holds no problem; give one a line, as 'conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1'")
    return cases


def of_model(name: str, records: Iterable[NodeRecord]) -> list[Case]:
    """Distinct convolutions of a model that has run, named by the nodes that compute them."""
    steps: dict[tuple[str, int | None], list[str]] = {}
    for record in records:
        if record.problem is not None:
            steps.setdefault((record.problem, record.step), []).append(record.name)
    nodes: dict[str, list[str]] = {}
    for (problem, _), names in steps.items():
        nodes.setdefault(problem, []).append("+".join(names))
    return [
        Case(_forward(Problem.parse(text)), name, found[0] + (f" x{len(found)}" if len(found) > 1 else ""))
        for text, found in nodes.items()
    ]


@cache
def layer_sets() -> dict[str, tuple[Case, ...]]:
    """The sets that come with the package, by name."""
    text = files("polyconv.benchmark").joinpath(_SOURCE).read_text()
    sets: dict[str, list[Case]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#"):
            case = of_line(line, f"{_SOURCE}:{number}: ")
            sets.setdefault(case.set, []).append(case)
    return {name: tuple(cases) for name, cases in sets.items()}


def of_sets(names: Sequence[str]) -> list[Case]:
    """Cases of the named sets; ``all`` is every one.

    Raises
    ------
    ArgumentError
        If there is no such set; the message lists them.
    """
    known = layer_sets()
    unknown = [name for name in names if name not in known and name != "all"]
    if unknown:
        raise ArgumentError(f"there is no layer set {', '.join(unknown)}; choose from all, {', '.join(known)}")
    chosen = known if "all" in names else {name: known[name] for name in dict.fromkeys(names)}
    return [case for cases in chosen.values() for case in cases]


def pattern_of(match: str | None) -> re.Pattern[str]:
    """The regular expression of ``--match``; without one, that which is found in everything.

    Raises
    ------
    ArgumentError
        If it is none.
    """
    try:
        return re.compile(match or "")
    except re.error as error:
        raise ArgumentError(f"--match {match!r} is no regular expression: {error}") from None


def select(cases: Iterable[Case], match: str | None) -> list[Case]:
    """Cases without repetitions, and of these the ones in whose line a regular expression is found.

    Raises
    ------
    ArgumentError
        If the expression is none, or nothing is left.
    """
    distinct = list(dict.fromkeys(cases))
    if match is None:
        return distinct
    pattern = pattern_of(match)
    found = [case for case in distinct if pattern.search(f"{case.problem}  # {case.set} {case.name}")]
    if not found:
        raise ArgumentError(f"--match {match!r} fits none of the {len(distinct)} problems")
    return found
