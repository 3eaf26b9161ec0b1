"""Reductions on a GPU: a team of threads takes the elements of a line together.

It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import Kernel, Pointer, Value
from polyconv.operators.along import Along
from polyconv.operators.functions import FUNCTIONS
from polyconv.operators.on_gpu.launching import Launching
from polyconv.operators.on_gpu.teams import OfTeams, Teams, loaded, stored, summed_in, teams_of, walks_of
from polyconv.operators.on_gpu.walk import Walk

__all__ = ["Reduce", "reduced"]


@dataclass(frozen=True, slots=True)
class Reduce(OfTeams):
    """A kernel to make.

    Parameters
    ----------
    function, dtype : str
        What joins two elements (``Add``, ``Max`` or ``Min``), and their type.
    mean : bool
        Whether sums are divided by their number.
    neutral : number
        What changes no result.
    lines, line : Walk
        What is kept, and what is taken together.
    teams : Teams
    """

    function: str
    dtype: str
    mean: bool
    neutral: float
    lines: Walk
    line: Walk
    teams: Teams

    @property
    def name(self) -> str:
        """All that shapes the code."""
        mean = " mean" * self.mean
        return f"reduce {self.function}{mean} {self.dtype} {self.neutral}, {self.lines}, {self.line}, {self.teams}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        return "input", "result"

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        return self.lines.numbers | self.line.numbers

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("reduce", self.arguments, self.threads, numbers=tuple(self.numbers), shared=self.shared)
        row = DTYPES[summed_in(self.dtype)]
        wide = ELEMENTS[row.name]

        def join(a: Value, b: Value) -> Value:
            return FUNCTIONS[self.function].emit(k, row, a, b)

        number = self.teams.line(k, self.lines)
        source, target = self.lines.places(k, self.lines.axes(k, number))
        is_there = self.lines.has(k, number)
        found = k.variable(self.neutral, wide)
        with k.when(is_there):

            def element(at: Value) -> Value:
                here, _ = self.line.places(k, self.line.axes(k, at))
                return loaded(k, self.dtype, wide, Pointer("input", source + here))

            found.set(self.teams.over(k, self.line, k.constant(wide, self.neutral), join, element))
        total = self.teams.together(k, found.get(), join)
        if self.mean:
            total = total / k.cast("sitofp", k.numbers["line_size"], wide)
        with k.when(is_there & self.teams.member(k).equals(0)):
            stored(k, total, self.dtype, Pointer("result", target))
        return k


def reduced(function: str, dtype: str, neutral: float, extents: Sequence[int], axes: Sequence[int], x: Along, y: Along,
            numbers: tuple[int, int], *, mean: bool) -> Launching:  # fmt: skip
    """The launch that takes some axes of an array together.

    Parameters
    ----------
    extents : sequence of int
        Of the array.
    axes : sequence of int
        Which go.
    x, y : Along
        How the array lies; and the result, with a step of 0 along the axes that go.
    numbers : (int, int)
        Of both in the plan.
    """
    kept = sorted((a for a in range(len(extents)) if a not in axes), key=lambda a: -abs(y.strides[a]))
    gone = sorted(axes, key=lambda a: -abs(x.strides[a]))
    size = DTYPES[dtype].itemsize

    def part(o: Along, which: Sequence[int]) -> Along:
        return Along(0, tuple(o.strides[a] for a in which))

    lines, line = walks_of(
        ([extents[a] for a in kept], [extents[a] for a in gone]), (part(x, kept), part(x, gone)),
        (part(y, kept), part(y, gone)), size,
    )  # fmt: skip
    teams = teams_of(line.steps[0][-1], size, line.size)
    kernel = Reduce(function, dtype, mean, neutral, lines, line, teams)
    return Launching(kernel, ((numbers[0], x.offset), (numbers[1], y.offset)))
