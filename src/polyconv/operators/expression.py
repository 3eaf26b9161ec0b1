"""An expression of element functions: what a fused pass computes with every element, as data.

``Mul(x, Sigmoid(x))`` is ``Expression(("f32",), (Apply("Sigmoid", (0,), "f32"), Apply("Mul", (0, 1), "f32")), (2,))``:
values are numbered, inputs first, then what each step makes.  The one idea: expressions grow by putting one behind the
other, and their text names a kernel.  It must not know arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.kernels.emitter import Emitter
from polyconv.kernels.values import Value
from polyconv.operators.functions import COMPARED, FUNCTIONS, chosen, converted, dequantised, quantised
from polyconv.operators.types import HALVES, TYPES

__all__ = ["CONVERT", "DEQUANTISE", "QUANTISE", "WHERE", "Apply", "Expression", "cycles_of", "evaluated", "in_f32"]

CONVERT, QUANTISE, DEQUANTISE, WHERE = "Convert", "Quantise", "Dequantise", "Where"
"""Functions of several types: of a value; of a value, its scale and its zero point, and the scale's reciprocal where
that may stand for it; of a value, its scale and its zero point; of a truth value and two others."""


@dataclass(frozen=True, slots=True)
class Apply:
    """A step: a function of values, and the dtype of what it makes."""

    function: str
    arguments: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Expression:
    """Steps over numbered values.

    Parameters
    ----------
    inputs : tuple of str
        Their dtypes; they are the first values.
    steps : tuple of Apply
        In running order, each making the next value.
    results : tuple of int
        The values that come out.
    """

    inputs: tuple[str, ...]
    steps: tuple[Apply, ...]
    results: tuple[int, ...]

    def dtype(self, number: int) -> str:
        """Element type of a value."""
        return self.inputs[number] if number < len(self.inputs) else self.steps[number - len(self.inputs)].dtype

    @property
    def made(self) -> str:
        """Element type of the first result."""
        return self.dtype(self.results[0])

    def __str__(self) -> str:
        steps = " ".join(f"{s.function}{s.arguments}{s.dtype}".replace(" ", "") for s in self.steps)
        return f"{','.join(self.inputs)} {steps} {','.join(map(str, self.results))}"


def evaluated(k: Emitter, expression: Expression, values: Sequence[Value]) -> list[Value]:
    """Emit an expression's steps for some inputs; its results."""
    known = list(values)
    for step in expression.steps:
        given = [known[number] for number in step.arguments]
        source, target = TYPES[expression.dtype(step.arguments[0])], TYPES[step.dtype]
        if step.function == CONVERT:
            known.append(converted(k, given[0], source, target))
        elif step.function == QUANTISE:
            known.append(quantised(k, given[0], given[1], given[2], target, *given[3:]))
        elif step.function == DEQUANTISE:
            known.append(dequantised(k, given[0], given[1], given[2], source))
        elif step.function == WHERE:
            known.append(chosen(k, given[0], given[1], given[2]))
        elif step.function in COMPARED:
            known.append(FUNCTIONS[step.function].emit(k, source, *given))
        else:
            known.append(FUNCTIONS[step.function].emit(k, target, *given))
    return [known[number] for number in expression.results]


def in_f32(expression: Expression) -> Expression:
    """An expression whose steps on floats of 16 bits are computed in f32, and each rounded to them."""
    if not {*expression.inputs, *(step.dtype for step in expression.steps)}.intersection(HALVES):
        return expression
    steps: list[Apply] = []
    where = list(range(len(expression.inputs)))  # of each value, the number that it has now

    def added(step: Apply) -> int:
        steps.append(step)
        return len(expression.inputs) + len(steps) - 1

    for step in expression.steps:
        widened = [
            added(Apply(CONVERT, (where[n],), "f32")) if expression.dtype(n) in HALVES else where[n]
            for n in step.arguments
        ]  # fmt: skip
        is_half = step.dtype in HALVES
        done = added(Apply(step.function, tuple(widened), "f32" if is_half else step.dtype))
        where.append(added(Apply(CONVERT, (done,), step.dtype)) if is_half else done)
    return Expression(expression.inputs, tuple(steps), tuple(where[n] for n in expression.results))


def cycles_of(expression: Expression) -> float:
    """About the cycles that its steps take for one vector."""
    return sum(FUNCTIONS[s.function].cycles if s.function in FUNCTIONS else 10.0 for s in expression.steps)
