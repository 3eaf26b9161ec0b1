"""Softmax and the normalisations on a GPU: a team of threads has a line.

A line is read two or three times, the later ones from caches.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import I64, Kernel, Pointer, Type, Value
from polyconv.kernels import mathfn
from polyconv.kernels.logarithm import logarithm
from polyconv.operators.functions import FUNCTIONS
from polyconv.operators.on_gpu.teams import OfTeams, Teams, loaded, stored, summed_in
from polyconv.operators.on_gpu.walk import Walk

__all__ = ["Lines"]


@dataclass(frozen=True, slots=True)
class Lines(OfTeams):
    """A kernel to make.

    Parameters
    ----------
    function, dtype : str
        ``Softmax``, ``LogSoftmax``, or ``Normal``: mean 0 and variance 1; the type.
    scaled : str
        What scales and shifts belong to: ``element`` of a line, ``part`` of one, or nothing.
    lines, line : Walk
        Lines in the order of their numbers, and the elements of one.
    teams : Teams
    repeat, pieces : int
        After how many lines scales begin anew, and how many parts of a line have one of their own.
    epsilon : float
        Added to variances.
    """

    function: str
    dtype: str
    scaled: str
    lines: Walk
    line: Walk
    teams: Teams
    repeat: int = 1
    pieces: int = 1
    epsilon: float = 0.0

    @property
    def name(self) -> str:
        """All that shapes the code."""
        what = f"{self.function} {self.dtype} {self.scaled} {self.epsilon}"
        return f"lines {what}, {self.lines}, {self.line}, {self.teams}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        return "input", "result", *(("scale", "shift") if self.scaled else ())

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        piece = {"repeat": self.repeat, "pieces": self.pieces, "piece": max(1, self.line.size // self.pieces)}
        return self.lines.numbers | self.line.numbers | (piece if self.scaled == "part" else {})

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("lines", self.arguments, self.threads, numbers=tuple(self.numbers), shared=self.shared)
        team = _Team(k, self, ELEMENTS[summed_in(self.dtype)])
        _KERNELS[self.function](team)
        return k


class _Team:
    """A team at work: where its line lies, and whether there is one for it."""

    def __init__(self, k: Kernel, spec: Lines, kind: Type) -> None:
        self.k, self.spec, self.kind = k, spec, kind
        self.number = spec.teams.line(k, spec.lines)
        self.source, self.target = spec.lines.places(k, spec.lines.axes(k, self.number))
        self.is_there = spec.lines.has(k, self.number)

    def places(self, at: Value) -> tuple[Pointer, Pointer]:
        """An element of the input, and of the result."""
        x, y = self.spec.line.places(self.k, self.spec.line.axes(self.k, at))
        return Pointer("input", self.source + x), Pointer("result", self.target + y)

    def loaded(self, at: Value) -> Value:
        """An element."""
        return loaded(self.k, self.spec.dtype, self.kind, self.places(at)[0])

    def found(self, start: float, join: str, of: Callable[[Value], Value]) -> Value:
        """What ``of`` finds of all elements, joined."""
        k, teams, row = self.k, self.spec.teams, DTYPES[summed_in(self.spec.dtype)]

        def joined(a: Value, b: Value) -> Value:
            return FUNCTIONS[join].emit(k, row, a, b)

        own = k.variable(start, self.kind)
        with k.when(self.is_there):
            own.set(teams.over(k, self.spec.line, k.constant(self.kind, start), joined, of))
        return teams.together(k, own.get(), joined)

    def store(self, of: Callable[[Value], Value]) -> None:
        """Store what ``of`` makes of each element."""
        k, line = self.k, self.spec.line
        size = k.numbers["line_size"]
        end = size if line.index == I64 else k.cast("trunc", size, line.index)
        first = line.counted(k, self.spec.teams.member(k))
        with k.when(self.is_there), k.loop(first, end, self.spec.teams.along) as at:
            stored(k, of(at), self.spec.dtype, self.places(at)[1])


def _softmax(team: _Team) -> None:
    """``exp(x - max) / sum``; exponentials are computed twice, so that nothing lies in between."""
    k = team.k
    top = team.found(float("-inf"), "Max", team.loaded)

    def power(at: Value) -> Value:
        return mathfn.exponential(k, team.loaded(at) - top)

    factor = 1.0 / team.found(0.0, "Add", power)
    team.store(lambda at: power(at) * factor)


def _log_softmax(team: _Team) -> None:
    """``x - max - ln(sum)`` with the sum of ``exp(x - max)``."""
    k = team.k
    top = team.found(float("-inf"), "Max", team.loaded)
    total = logarithm(k, team.found(0.0, "Add", lambda at: mathfn.exponential(k, team.loaded(at) - top)))
    team.store(lambda at: team.loaded(at) - top - total)


def _normal(team: _Team) -> None:
    """``(x - mean) / sqrt(variance + epsilon)``, times scales, plus shifts."""
    k, spec = team.k, team.spec
    count = k.cast("sitofp", k.numbers["line_size"], team.kind)
    mean = team.found(0.0, "Add", team.loaded) / count

    def squared(at: Value) -> Value:
        value = team.loaded(at) - mean
        return value * value

    variance = team.found(0.0, "Add", squared) / count
    factor = 1.0 / k.intrinsic("sqrt", team.kind, variance + spec.epsilon)

    def finished(at: Value) -> Value:
        whole = at if at.type == I64 else k.cast("zext", at, I64)
        if spec.scaled == "part":
            number = team.number if team.number.type == I64 else k.cast("zext", team.number, I64)
            whole = number % k.numbers["repeat"] * k.numbers["pieces"] + whole // k.numbers["piece"]
        places = (Pointer(name, whole * DTYPES[spec.dtype].itemsize) for name in ("scale", "shift"))
        scale, shift = (loaded(k, spec.dtype, team.kind, place) for place in places)
        return (team.loaded(at) - mean) * factor * scale + shift

    team.store(finished)


_KERNELS = {"Softmax": _softmax, "LogSoftmax": _log_softmax, "Normal": _normal}
