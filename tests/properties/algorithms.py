"""What the property tests run over: every algorithm of the table, on a slice of the corpus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance import corpus
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import Operands, operands
from polyconv.errors import Unsupported
from polyconv.layer import compute
from polyconv.lowering.situation import Situation
from polyconv.problem.problem import Problem
from polyconv.target import target

Array = NDArray[Any]


def algorithms() -> list[str | None]:
    """Names of the table's rows, and None for the planner's own choice."""
    return [None, *ALGORITHMS]


def result(p: Problem, made: Operands, algorithm: str | None, **options: Any) -> Array | None:
    """The result of a forced algorithm; None where it does not take the problem."""
    if algorithm is not None:
        options["algorithm"] = algorithm
    try:
        y = compute(p, made.x, made.w, made.bias, made.residual, **made.keywords(), **options)
    except Unsupported:
        if algorithm is None:
            raise
        return None
    return y[0] if p.op == "causal_conv" else y


def refused(line: str, algorithm: str, **given: Any) -> str:
    """Why an algorithm of the host does not take a problem: it must not."""
    found = ALGORITHMS[algorithm].refusal(Situation(Problem.parse(line), target(), **given))
    assert found is not None, line
    return found


def agrees(line: str, algorithm: str, **options: Any) -> bool:
    """Whether an algorithm takes a problem; its result must be within the bound over windows."""
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    got = result(p, made, algorithm, **options)
    if got is not None:
        assert complaint(p, widened(p, made, expected(p, made)), got) is None, line
    return got is not None


def exact_problems(operator: str, count: int, seed: int = 31) -> list[Problem]:
    """Small problems without epilogue whose sums of small whole numbers are exact in every type."""
    found = []
    for p in corpus.problems(seed, count, operator=operator, budget=60_000):
        plain = replace(p, bias=False, residual=False, activation=None, quantisation=None, overflow="wrap")
        if plain.quantisation is None and p.y not in ("f16", "bf16", "i8", "u8") and 0 not in plain.y_shape:
            found.append(plain)
    return found


def small(p: Problem, seed: int) -> tuple[Array, Array]:
    """Input and weights of small non-negative whole numbers."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, [int(e or 0) for e in p.x_shape]).astype(p.x_dtype.numpy)
    return x, rng.integers(0, 4, p.w_shape).astype(p.w_dtype.numpy)
