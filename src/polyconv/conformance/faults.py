"""Planted faults: one wrong line in our own code, and whether the fuzz and check mode notice.

A fault is a piece of the generator's text and what stands there instead.  A process of its own loads
the module with that text, so that the kernels are generated and compiled as they would be with the real
mistake, into a cache that is thrown away.  It must not import the generator before a fault is planted.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from polyconv.conformance.planted import FAULTS, Fault
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, Error

if TYPE_CHECKING:
    from polyconv.conformance.fuzz import Report

__all__ = ["Catch", "Verdict", "caught", "main", "plant", "run"]

SEED = 2
MOST_PROBLEMS = 2500
_MOST_GRAPHS = 200
_SECONDS = 600.0
_OUTSIDE, _UNWRITTEN = "reached beyond its buffers or tables", "not written or come from memory"


@dataclass(frozen=True, slots=True)
class Catch:
    """How a fault was caught.

    Parameters
    ----------
    problems : int
        Problems tried, the one that showed it included.
    how : str
        What was wrong with its result; in check mode the function and kind of the access.
    """

    problems: int
    how: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A fault, and how the fuzz and check mode caught it; None if they did not, or check mode cannot."""

    fault: Fault
    fuzz: Catch | None
    check: Catch | None

    @property
    def is_caught(self) -> bool:
        """Whether the fuzz caught it, and check mode too if memory is touched wrongly."""
        return self.fuzz is not None and (self.check is not None or not self.fault.seen_in_check_mode)


def plant(fault: Fault) -> ModuleType:
    """Load the fault's module with the fault into this process, for good.

    Raises
    ------
    Error
        If the module is loaded already, or its text has changed.
    """
    if fault.module in sys.modules:
        raise Error(f"{fault.module} is loaded already; plant '{fault.name}' in a fresh process")
    sys.meta_path.insert(0, _Finder(fault))
    return importlib.import_module(fault.module)


class _Finder(MetaPathFinder):
    """Finds the module of a fault, also where its own package is the first to import it."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:  # fmt: skip
        if fullname != self._fault.module:
            return None
        found = PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            raise Error(f"fault '{self._fault.name}': {fullname} has no file")
        return spec_from_loader(fullname, _Loader(self._fault, found.origin))


class _Loader(SourceFileLoader):
    """Loads our own source, with one text replaced."""

    def __init__(self, fault: Fault, path: str) -> None:
        super().__init__(fault.module, path)
        self._fault = fault

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._fault.planted_in(Path(self.path).read_text()), self.path, "exec", dont_inherit=True)


def run(
    names: Iterable[str] | None = None,
    *,
    seed: int = SEED,
    most: int = MOST_PROBLEMS,
    progress: Callable[[Verdict], None] | None = None,
) -> list[Verdict]:
    """Plant faults one by one and look for each twice: by the fuzz, and by its bounds checks.

    Parameters
    ----------
    names : iterable of str, optional
        Keys of ``FAULTS``; all when left out.
    seed, most : int
        Seed of the problems, and how many to try at most.
    progress : callable, optional
        Called with every verdict.

    Raises
    ------
    ArgumentError
        If a name is unknown.
    """
    chosen = list(FAULTS if names is None else names)
    if unknown := [name for name in chosen if name not in FAULTS]:
        raise ArgumentError(f"faults {unknown} are not known; choose from {list(FAULTS)}")
    verdicts = []
    for name in chosen:
        fault = FAULTS[name]
        by_fuzz = caught(fault, seed, most, check=False)
        by_check = caught(fault, seed, most, check=True) if fault.seen_in_check_mode else None
        verdicts.append(Verdict(fault, by_fuzz, by_check))
        if progress is not None:
            progress(verdicts[-1])
    return verdicts


def caught(fault: Fault, seed: int = SEED, most: int = MOST_PROBLEMS, *, check: bool) -> Catch | None:
    """Search for a fault in a process that has it; one that the fault kills has found it.

    Parameters
    ----------
    fault : Fault
    seed, most : int
        Seed of the problems, and how many to try at most.
    check : bool
        Compile bounds checks, and look only for what they report and for memory that was not written.

    Raises
    ------
    Error
        If the fault cannot be planted.
    """
    from polyconv.conformance.fuzz import Report

    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state.json"
        environment = {
            **os.environ, "POLYCONV_CACHE_DIR": str(Path(folder) / "cache"), "POLYCONV_CHECK": str(int(check)),
        }  # fmt: skip
        ending: str | None
        planted = (fault.module, fault.right, fault.wrong, fault.algorithm)
        command = [sys.executable, "-m", "polyconv.conformance.faults", *planted, str(seed), str(most), str(state)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
        except subprocess.TimeoutExpired:
            ending = f"the process hung for {_SECONDS:g} s"
        else:
            if done.returncode > 0:
                raise Error(f"fault '{fault.name}' could not be tried: {done.stderr[-1000:]}")
            ending = f"the process died ({signal.Signals(-done.returncode).name})" if done.returncode else None
        report = Report.from_json(state.read_text())
    if ending is not None:
        return None if check or report.running is None else Catch(report.running + 1, ending)
    message = _message(report, check=check)
    if message is None:
        return None
    if check and _OUTSIDE in message:
        *_, function, access = message.split(f"{_OUTSIDE}, at ")[1].split(";")[0].split(": ")
        return Catch(report.next, f"{function}: {access}")
    if check:
        return Catch(report.next, "memory that was not written")
    return Catch(report.next, message.split(";")[0])


def _message(report: Report, *, check: bool) -> str | None:
    """What a campaign is stopped for: the first mismatch, or in check mode the first that checks reported."""
    messages = (f.message for f in report.mismatches)
    return next((m for m in messages if not check or _OUTSIDE in m or _UNWRITTEN in m), None)


def main(words: list[str]) -> None:
    """The process that has a fault: ``MODULE RIGHT WRONG ALGORITHM SEED MOST STATE``."""
    module, right, wrong, algorithm, seed, most, state = words
    plant(Fault(module, "", module, right, wrong, algorithm))
    if not algorithm:
        _search_graphs(int(seed), min(int(most), _MOST_GRAPHS), Path(state))
        return
    from polyconv.conformance import fuzz
    from polyconv.settings import resolve

    check = resolve("check")
    fuzz.run(
        int(most), int(seed), every=True, algorithm=algorithm, resume=Path(state),
        enough=lambda report: _message(report, check=check) is not None,
    )  # fmt: skip


def _search_graphs(seed: int, most: int, state: Path) -> None:
    """Run random graphs until one is wrong."""
    from polyconv.conformance import fuzz, graph_fuzz
    from polyconv.conformance.graphs import drawn

    report = fuzz.Report(fuzz.Campaign(seed))
    for index in range(most):
        report.running = index
        state.write_text(report.to_json())
        graph = drawn(seed, index)
        report.findings += [fuzz.Finding(index, "polyconv", str(graph), m) for m in graph_fuzz.complaints(graph)]
        report.next, report.running = index + 1, None
        if report.findings:
            break
    state.write_text(report.to_json())


if __name__ == "__main__":
    main(sys.argv[1:])
