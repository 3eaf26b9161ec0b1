"""The differential fuzz: a count and a seed in, a report of every disagreement out.

Each problem is computed by polyconv and by the peers and judged by the oracle; index by index, so
that a campaign stops, crashes and resumes without losing its place.  It must not know how a trial
is drawn or judged.

``polyconv check --fuzz`` runs it; ``python -m polyconv.conformance.fuzz --seed 2026 --index 171`` repeats one
problem.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path

from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance.corpus import OPERATORS
from polyconv.conformance.deviations import crash, explanation
from polyconv.conformance.every import by_every_algorithm, excluded
from polyconv.conformance.judge import Expected, complaint, expected
from polyconv.conformance.peers import Peer, available, opened
from polyconv.conformance.trial import Trial, against, drawn
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, Unsupported
from polyconv.settings import for_the_process, resolve
from polyconv.target import target as available_target

__all__ = ["Campaign", "Finding", "Report", "main", "run"]

@dataclass(frozen=True, slots=True)
class Campaign:
    """What a campaign tries, apart from how long: a state file belongs to one.

    Parameters
    ----------
    seed : int
    operator : str or None
        Only problems of this kind, a name of ``corpus.OPERATORS``.
    algorithm : str or None
        Algorithm to force; problems it does not take are counted and passed over.
    target : str or None
        Instruction set that kernels are restricted to, as in ``POLYCONV_TARGET``.
    every : bool
        Each problem by every algorithm that takes it, or by the one that is named, in two forms.
    """

    seed: int = 0
    operator: str | None = None
    algorithm: str | None = None
    target: str | None = None
    every: bool = False

    def __str__(self) -> str:
        named = {"operator": self.operator, "algorithm": self.algorithm, "target": self.target}
        words = [f"seed {self.seed}", *(f"{name} {v}" for name, v in named.items() if v is not None)]
        return " ".join(words + ["every algorithm"] * self.every)


@dataclass(frozen=True, slots=True)
class Finding:
    """One disagreement, with the line that reproduces it.

    Parameters
    ----------
    index : int
        Number of the problem; with the seed it names the trial.
    engine : str
        ``polyconv``, or the peer that is wrong without an explanation.
    trial : str
        Problem text and circumstances.
    message : str
        What is wrong.
    """

    index: int
    engine: str
    trial: str
    message: str

    def __str__(self) -> str:
        return f"{self.engine}: {self.trial}: {self.message}"


@dataclass(slots=True)
class Report:
    """Where a campaign stands.

    Parameters
    ----------
    campaign : Campaign
    next : int
        First index not yet tried.
    running : int or None
        Index being tried; found in a state file, it is the one that ended the process.
    operators : dict
        Problems tried, by operator.
    not_applicable : int
        Problems that the forced algorithm, or any within the workspace limit, does not take.
    peers : dict
        By engine: how often it agreed, and how often each named reason stood in the way.
    findings : list of Finding
    runs : dict
        By algorithm, how often it ran; of a campaign with every algorithm.
    excluded : dict
        Algorithms that the target cannot build at all, with the reason.
    """

    campaign: Campaign
    next: int = 0
    running: int | None = None
    operators: dict[str, int] = field(default_factory=dict)
    not_applicable: int = 0
    peers: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)

    @property
    def idle(self) -> list[str]:
        """Algorithms that never ran in a campaign with every algorithm, though the target can build them."""
        if not self.campaign.every or self.campaign.algorithm is not None:
            return []
        return [name for name in ALGORITHMS if not self.runs.get(name) and name not in self.excluded]

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong, and nothing left untried."""
        return not self.findings and not self.idle

    @property
    def mismatches(self) -> list[Finding]:
        """Findings against polyconv itself."""
        return [f for f in self.findings if f.engine == "polyconv"]

    def to_json(self) -> str:
        """The report as text, for a state file."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Report:
        """Read what ``to_json`` wrote."""
        values = json.loads(text)
        values["campaign"] = Campaign(**values["campaign"])
        values["findings"] = [Finding(**f) for f in values["findings"]]
        return Report(**values)


def run(
    count: int,
    seed: int = 0,
    *,
    operator: str | None = None,
    algorithm: str | None = None,
    target: str | None = None,
    every: bool = False,
    resume: Path | None = None,
    peers: Sequence[str] = (),
    progress: Callable[[Report], None] | None = None,
    enough: Callable[[Report], bool] | None = None,
) -> Report:
    """Try the problems 0 .. count - 1 of a seed.

    Parameters
    ----------
    count : int
        How many problems the campaign has in all, those of a resumed state included.
    seed, operator, algorithm, target, every
        As in ``Campaign``.
    resume : Path, optional
        State file: read when it exists, written after every problem.
    peers : sequence of str
        Engines to ask as well, names of ``peers.ENGINES``.
    progress : callable, optional
        Called with the report after every problem.
    enough : callable, optional
        Asked after every problem whether to stop early.

    Raises
    ------
    ArgumentError
        If a name is unknown, an engine is not installed, the target is beyond this machine, or the state
        file belongs to another campaign.
    """
    missing = [name for name in peers if name not in available()]
    if missing:
        raise ArgumentError(f"peers={missing} are not installed here; installed are {list(available())}")
    for name, given, known in (("operator", operator, OPERATORS), ("algorithm", algorithm, ALGORITHMS)):
        if given is not None and given not in known:
            raise ArgumentError(f"{name}={given!r} is not known; choose from {list(known)}")
    if every and peers:
        raise ArgumentError("every algorithm is tried against the oracle alone; leave out the peers")
    campaign = Campaign(seed, operator, algorithm, target, every)
    report = _resumed(resume, campaign)
    with opened(peers) as guests, for_the_process("target", target):
        available_target(resolve("target"))  # here, rather than in every problem
        report.excluded = excluded() if every else {}
        while report.next < count and not (enough is not None and enough(report)):
            report.running = report.next
            _save(report, resume)
            try:
                _try(report, report.next, guests)
            except KeyboardInterrupt:  # the process ends, but no fault of the trial's: it is tried again
                _forget_running(resume)
                raise
            report.next, report.running = report.next + 1, None
            if progress is not None:
                progress(report)
    _save(report, resume)
    return report


def _resumed(resume: Path | None, campaign: Campaign) -> Report:
    if resume is None or not resume.exists():
        return Report(campaign)
    report = Report.from_json(resume.read_text())
    if report.campaign != campaign:
        raise ArgumentError(
            f"the state file {resume} belongs to {report.campaign}, not {campaign}; name another file"
        )
    if report.running is not None:
        trial = drawn(campaign.seed, report.running, operator=campaign.operator)
        ended = "the process ended in this trial"
        report.findings.append(Finding(report.running, "polyconv", str(trial), ended))
        report.next, report.running = report.running + 1, None
    return report


def _save(report: Report, path: Path | None) -> None:
    if path is not None:
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(report.to_json())
        fresh.replace(path)


def _forget_running(path: Path | None) -> None:
    if path is not None:
        _save(replace(Report.from_json(path.read_text()), running=None), path)


def _try(report: Report, index: int, guests: dict[str, Peer]) -> None:
    trial = drawn(report.campaign.seed, index, operator=report.campaign.operator)
    p = trial.problem
    name = "quantised" if p.quantisation is not None else p.op
    report.operators[name] = report.operators.get(name, 0) + 1
    if report.campaign.every:
        runs, wrong = by_every_algorithm(trial, report.campaign.algorithm)
        report.not_applicable += not runs
        report.findings += [Finding(index, "polyconv", str(trial), message) for message in wrong]
        for algorithm, count in runs.items():
            report.runs[algorithm] = report.runs.get(algorithm, 0) + count
        return
    want = expected(p, trial.operands)
    try:
        wrong = against(trial, want, algorithm=report.campaign.algorithm)
    except Unsupported:
        report.not_applicable += 1
        wrong = []
    report.findings += [Finding(index, "polyconv", str(trial), message) for message in wrong]
    for engine, guest in guests.items():
        outcome, message = _peer_outcome(trial, want, guest)
        tally = report.peers.setdefault(engine, {})
        tally[outcome] = tally.get(outcome, 0) + 1
        if message is not None:
            report.findings.append(Finding(index, engine, str(trial), message))


def _peer_outcome(trial: Trial, want: Expected, guest: Peer) -> tuple[str, str | None]:
    """How a peer fared, and the message if that is unexplained."""
    p, made = trial.problem, trial.operands
    answer = guest.run(p, made)
    if isinstance(answer, str):
        if not answer.startswith("error: "):
            return f"not asked: {answer}", None
        reason = crash(guest.engine, p, made) if " died " in answer else None
        return ("unexplained", answer) if reason is None else (f"explained: {reason}", None)
    wrong = complaint(p, want, answer)
    if wrong is None:
        return "agrees", None
    reason = explanation(guest.engine, p, made, want, answer)
    return ("unexplained", wrong) if reason is None else (f"explained: {reason}", None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 1 when polyconv was wrong, or a peer without explanation."""
    parser = argparse.ArgumentParser(
        prog="python -m polyconv.conformance.fuzz",
        description="Random problems of a seed against the oracle, and against other engines.",
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", default="", help="comma list of " + ", ".join(available()))
    parser.add_argument("--resume", type=Path, help="state file")
    parser.add_argument("--algorithm", choices=ALGORITHMS)
    parser.add_argument("--operator", choices=OPERATORS)
    parser.add_argument("--every-algorithm", action="store_true", help="each problem by every algorithm that takes it")
    parser.add_argument("--index", type=int, help="only this problem of the seed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    engines = [name for name in given.peers.split(",") if name]
    if given.index is not None:
        campaign = Campaign(given.seed, given.operator, given.algorithm, every=given.every_algorithm)
        report = Report(campaign, next=given.index)
        with opened(engines) as guests:
            _try(report, given.index, guests)
    else:
        report = run(
            given.count, given.seed, operator=given.operator, algorithm=given.algorithm, resume=given.resume,
            every=given.every_algorithm, peers=engines, progress=None if given.json else _progress(),
        )  # fmt: skip
    sys.stdout.write(report.to_json() + "\n" if given.json else _text(report))
    return 1 if report.findings or (report.idle and given.index is None) else 0


def _progress() -> Callable[[Report], None]:
    """Say every half minute where a campaign stands."""
    said = time.monotonic()

    def progress(report: Report) -> None:
        nonlocal said
        if time.monotonic() - said >= 30:
            said = time.monotonic()
            sys.stderr.write(f"{report.next} problems, {len(report.findings)} findings\n")

    return progress


def _text(report: Report) -> str:
    lines = [
        f"{report.campaign}: " + ", ".join(f"{n} {name}" for name, n in sorted(report.operators.items()))
        + f"; {report.not_applicable} not applicable"
    ]  # fmt: skip
    for engine, tally in report.peers.items():
        lines += [
            f"  {engine}: {n} {outcome}" for outcome, n in sorted(tally.items(), key=lambda row: -row[1])
        ]
    lines += [f"  {name}: {report.runs.get(name, 0)} runs" for name in ALGORITHMS if report.campaign.every]
    lines += [f"never run: {name}" for name in report.idle]
    lines += [str(finding) for finding in report.findings]
    lines.append(f"{len(report.mismatches)} mismatches of polyconv, {len(report.findings)} findings in all")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
