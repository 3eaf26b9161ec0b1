"""Planted faults: one wrong line in the kernel generator, and whether the fuzz and check mode notice.

A fault is a piece of the generator's text and what stands there instead.  A process of its own loads
the module with that text, so that the kernels are generated and compiled as they would be with the real
mistake, into a cache that is thrown away.  It must not import the generator before a fault is planted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from polyconv.errors import ArgumentError, Error

if TYPE_CHECKING:
    from polyconv.conformance.fuzz import Report

__all__ = ["FAULTS", "Catch", "Fault", "Verdict", "caught", "main", "plant", "run"]

SEED = 2
MOST_PROBLEMS = 600
_SECONDS = 600.0
_OUTSIDE = "reached outside a buffer"


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault.

    Parameters
    ----------
    name : str
    meaning : str
        What goes wrong, in words.
    module : str
        Module of the generator.
    right, wrong : str
        What stands there, once, and what replaces it.
    """

    name: str
    meaning: str
    module: str
    right: str
    wrong: str

    def planted_in(self, text: str) -> str:
        """The module's text with the fault.

        Raises
        ------
        Error
            If the text to replace does not stand there exactly once: the generator has changed.
        """
        if text.count(self.right) != 1:
            raise Error(
                f"fault '{self.name}': {self.right!r} stands {text.count(self.right)} times in {self.module}, "
                f"must stand once; bring the row of FAULTS up to date"
            )
        return text.replace(self.right, self.wrong)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "tail mask", "the last vector of a row is stored one lane too long",
            "polyconv.kernels.layout", "k.mask(columns - full, lanes)", "k.mask(columns - full + 1, lanes)",
        ),
        Fault(
            "end edge", "one pixel beyond the end of a line is read instead of padding",
            "polyconv.algorithms.panel", ", last.inp - at", ", last.inp - at + 1",
        ),
        Fault(
            "begin edge", "one pixel before the begin of a line is read instead of padding",
            "polyconv.algorithms.panel", "until = 0 - at", "until = -1 - at",
        ),
        Fault(
            "outer edge", "one line beyond the end of an outer axis is read instead of padding",
            "polyconv.algorithms.panel", "position.below(record.inp)", "position.below(record.inp + 1)",
        ),
        Fault(
            "last box", "the box that is cut short at the end of an axis has one output too many",
            "polyconv.algorithms.panel", "record.out - first)", "record.out - first + 1)",
        ),
        Fault(
            "pixel step", "pixels are taken one further apart than the stride",
            "polyconv.algorithms.direct", "pixel_step = p.step *", "pixel_step = (p.step + 1) *",
        ),
        Fault(
            "stride phase", "a phase of a transposed convolution has one output too many",
            "polyconv.algorithms.sweep", "count = (out - o0 + s - 1) // s", "count = (out - o0 + s) // s",
        ),
        Fault(
            "group offset", "groups of input channels lie one channel too far apart",
            "polyconv.algorithms.program", '"x_g": r.x.c * group_in', '"x_g": r.x.c * (group_in + 1)',
        ),
        Fault(
            "bias offset", "every output channel gets the bias of the next one",
            "polyconv.kernels.layout", "per_channel(bias, kind, c, mask)", "per_channel(bias, kind, c + 1, mask)",
        ),
        Fault(
            "residual pitch", "rows of the residual lie one element too far apart",
            "polyconv.algorithms.program",
            "r.residual.spatial[a] * axis.out_step",
            "(r.residual.spatial[a] + r.residual.itemsize) * axis.out_step",
        ),
        Fault(
            "last channel", "a block of output channels stores one channel too many",
            "polyconv.algorithms.direct", "p.total_outputs - absolute)", "p.total_outputs - absolute) + 1",
        ),
        Fault(
            "chunk weights", "the next chunk of input channels goes on one tap too late in the weights",
            "polyconv.algorithms.pixels", "rows * chunk_entries * size", "rows * (chunk_entries + 1) * size",
        ),
        Fault(
            "entry weights", "a tap of a block of channels takes its weights one row too late",
            "polyconv.algorithms.direct", "ROW_WORDS * taps + tap * count)", "ROW_WORDS * taps + tap * count + 1)",
        ),
        Fault(
            "tap offset", "a deformed sample takes its horizontal offset from the next tap",
            "polyconv.algorithms.deformable",
            "read(offsets, at + p.o_c)", "read(offsets, at + 2 * p.o_c)",
        ),
    )
}  # fmt: skip
"""By name; each leaves a buffer in some problems, so that check mode can catch it there."""


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
    """A fault, and how the fuzz and check mode caught it; None if they did not."""

    fault: Fault
    fuzz: Catch | None
    check: Catch | None

    @property
    def is_caught(self) -> bool:
        """Whether both caught it."""
        return self.fuzz is not None and self.check is not None


def plant(fault: Fault) -> ModuleType:
    """Load the fault's module with the fault into this process, for good.

    Raises
    ------
    Error
        If the module is loaded already, or its text has changed.
    """
    if fault.module in sys.modules:
        raise Error(f"{fault.module} is loaded already; plant '{fault.name}' in a fresh process")
    spec = importlib.util.find_spec(fault.module)
    if spec is None or spec.origin is None:
        raise Error(f"fault '{fault.name}': {fault.module} has no file")
    code = compile(fault.planted_in(Path(spec.origin).read_text()), spec.origin, "exec", dont_inherit=True)
    module = importlib.util.module_from_spec(spec)
    sys.modules[fault.module] = module
    exec(code, module.__dict__)  # our own source, with one text replaced
    return module


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
        by_fuzz, by_check = (caught(FAULTS[name], seed, most, check=check) for check in (False, True))
        verdicts.append(Verdict(FAULTS[name], by_fuzz, by_check))
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
        Compile bounds checks, and look for what they report only.

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
        planted = (fault.module, fault.right, fault.wrong)
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
    if check:
        *_, function, access = message.split(f"{_OUTSIDE}, at ")[1].split(";")[0].split(": ")
        return Catch(report.next, f"{function}: {access}")
    return Catch(report.next, message.split(";")[0])


def _message(report: Report, *, check: bool) -> str | None:
    """What a campaign is stopped for: the first mismatch, or in check mode the first access outside a buffer."""
    return next((f.message for f in report.mismatches if not check or _OUTSIDE in f.message), None)


def main(words: list[str]) -> None:
    """The process that has a fault: ``MODULE RIGHT WRONG SEED MOST STATE``."""
    module, right, wrong, seed, most, state = words
    plant(Fault(module, "", module, right, wrong))
    from polyconv.conformance import fuzz
    from polyconv.settings import resolve

    check = resolve("check")
    fuzz.run(
        int(most), int(seed), resume=Path(state),
        enough=lambda report: _message(report, check=check) is not None,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
