"""``Plan``: how one problem will be computed, as a printable and picklable value.

It holds names and numbers, never code or buffers, so it can be logged, compared and sent elsewhere.
It must not know how it was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyconv.dataclass import dataclass
from polyconv.problem.problem import Problem
from polyconv.settings import spelled_bytes

__all__ = ["Candidate", "Plan", "spelled"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm that could compute a problem.

    Parameters
    ----------
    algorithm : str
        Row of the table of algorithms.
    predicted : float
        Seconds of a call on one thread, by the cost model.
    measured : float or None
        Seconds of a call as it was measured, where it was; the plan's ``conditions`` say with which batch.
    """

    algorithm: str
    predicted: float
    measured: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A choice for a problem.

    Parameters
    ----------
    problem : Problem
        With known extents.
    algorithm : str
        Row of the table of algorithms.
    arithmetic : str
        Names what fixes the bits: plans with equal names give equal bits on one instruction set, for any
        batch, number of threads or workspace limit, on arrays that lie alike in memory.
    target : str
        Instruction-set level the kernels are made for.
    threads : int
        Most threads that will share the work.
    workspace_bytes : int
        All that a call takes beyond its result for those threads; 64 KiB a thread are always there and
        are not counted.
    packed_bytes : int
        Bytes of the weights, in all forms that the layer has made so far.
    error_bound : float
        ``b`` such that every output differs from the exact one by at most ``b`` times a size (to first order;
        0 for integers), before the rounding to the result type.
    bound_kind : str
        The size: ``own``, the output's own ``sum|x||w|``; ``window``, ``max|x| sum|w|`` over the inputs of its tile.
    seconds : float
        Predicted time of a call.
    cycles : tuple of (str, float)
        The terms of the prediction, in clock cycles of one core.
    refused : tuple of (str, str)
        Every other algorithm, with the reason or its predicted and measured time.
    notes : tuple of str
        What the user should know.
    source : str
        What the choice rests on: ``estimate``, the predictions; ``measured``, the clock in this process;
        ``wisdom``, the clock in an earlier one; ``asked``, the caller; ``around``, the predictions for smaller and for
        larger images.
    candidates : tuple of Candidate
        All algorithms that were considered, the chosen one among them.
    conditions : str
        Batch, threads and rigor with which times were measured; empty where none were.
    accuracy : str
        ``fast`` or ``strict``: the error bounds that were admitted.
    workspace_limit : int or None
        Most bytes of workspace that were admitted.
    profile : str
        Name and fingerprint of the machine's profile, of which predictions are made.
    form : tuple of (str, str)
        What the algorithm chose for this problem, such as its tile and its box, by name; none of it changes bits.
    """

    problem: Problem
    algorithm: str
    arithmetic: str
    target: str
    threads: int
    workspace_bytes: int
    packed_bytes: int
    error_bound: float
    bound_kind: str
    seconds: float
    cycles: tuple[tuple[str, float], ...]
    refused: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    source: str = "estimate"
    candidates: tuple[Candidate, ...] = ()
    conditions: str = ""
    accuracy: str = "fast"
    workspace_limit: int | None = None
    profile: str = ""
    form: tuple[tuple[str, str], ...] = ()

    @property
    def measured(self) -> float | None:
        """Measured seconds of the chosen algorithm; None where nothing was measured."""
        return next((c.measured for c in self.candidates if c.algorithm == self.algorithm), None)

    @property
    def is_on_gpu(self) -> bool:
        """Whether it is made for a GPU."""
        return self.target.startswith("cuda ")

    def __str__(self) -> str:
        return "\n".join(f"{name:<10}  {text}" for name, text in self._rows())

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks; what was refused stands folded."""
        rows = list(self._rows())
        html = [_row(name, text) for name, text in rows if name != "refused"]
        refused = "".join(_row("", text) for name, text in rows if name == "refused")
        more = f"<details><summary>refused: {len(self.refused)}</summary><table>{refused}</table></details>"
        return f"<table>{''.join(html)}</table>{more if refused else ''}"

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "problem", str(self.problem)
        threads = "" if self.is_on_gpu else f", up to {self.threads} thread(s)"
        yield "algorithm", f"{self.algorithm} for {self.target}{threads}"
        yield "chosen", _SOURCES[self.source].format(count=len(self.candidates))
        limit = "" if self.workspace_limit is None else f", workspace at most {spelled_bytes(self.workspace_limit)}"
        if limit or self.accuracy != "fast":
            yield "asked for", f"accuracy {self.accuracy}{limit}"
        yield "arithmetic", self.arithmetic
        if self.form:
            yield "form", ", ".join(f"{name} {value}" for name, value in self.form)
        cycles = ", ".join(f"{name} {count:,.0f}" for name, count in self.cycles)
        detail = "" if self.is_on_gpu else f" one thread; cycles: {cycles}"
        yield "predicted", f"{spelled(self.seconds)}{detail}"
        if self.profile:
            yield "machine", self.profile
        if self.measured is not None:
            yield "measured", f"{spelled(self.measured)} {self.conditions}"
        workspace, packed = spelled_bytes(self.workspace_bytes), spelled_bytes(self.packed_bytes)
        always = "" if self.is_on_gpu else " (+ 64 KiB a thread)"
        yield "memory", f"workspace {workspace}{always}, packed weights {packed}"
        bound = f"at most {self.error_bound:.2g} x {_SIZES[self.bound_kind]}, plus one rounding"
        yield "error", "exact" if self.error_bound == 0 else bound
        for name, reason in self.refused:
            yield "refused", f"{name}: {reason}"
        for note in self.notes:
            yield "note", note


def _row(name: str, text: str) -> str:
    from html import escape  # here: only notebooks ask for rows

    head = f'<th style="text-align: left">{escape(name)}</th>' if name else ""
    return f'<tr>{head}<td style="text-align: left">{escape(text)}</td></tr>'


_SOURCES = {
    "estimate": "predicted fastest of {count} candidate(s); nothing was measured",
    "around": "predicted fastest of {count} candidate(s) for smaller and for larger images; nothing was measured",
    "measured": "measured in this process: fastest, within 2 %, of {count} candidate(s)",
    "wisdom": "wisdom, measured in an earlier process: fastest, within 2 %, of {count} candidate(s)",
    "asked": "the caller named it",
}
_SIZES = {"own": "sum|x||w|", "window": "max|x| sum|w| over a tile's inputs"}


def spelled(seconds: float) -> str:
    """Spell a time with its unit, in three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
