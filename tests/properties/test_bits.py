"""Same bits: for any number of threads, any split of the batch, any memory behind the operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from algorithms import algorithms, result

from polyconv.conformance import corpus
from polyconv.conformance.operands import Operands, dressed, operands
from polyconv.problem.problem import Problem

ALGORITHMS = pytest.mark.parametrize("algorithm", algorithms(), ids=str)
OPERATORS = pytest.mark.parametrize("operator", sorted(corpus.OPERATORS))
COUNT = 25


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def drawn(operator: str, seed: int) -> list[tuple[Problem, Operands]]:
    found = corpus.problems(seed, COUNT, operator=operator, budget=400_000)
    return [(p, operands(p, np.random.default_rng(i), kind="normal")) for i, p in enumerate(found)]


@ALGORITHMS
@OPERATORS
def test_threads(algorithm: str | None, operator: str) -> None:
    for p, made in drawn(operator, 41):
        alone = result(p, made, algorithm, threads=1)
        if alone is not None:
            assert same_bits(alone, result(p, made, algorithm, threads=2)), p


@ALGORITHMS
@OPERATORS
def test_batch_split(algorithm: str | None, operator: str) -> None:
    for p, made in drawn(operator, 42):
        if not p.n or p.n < 2:
            continue
        whole = result(p, made, algorithm, threads=2)
        if whole is None:
            continue
        for b in range(p.n):
            per_image = {
                name: getattr(made, name)[b : b + 1]
                for name in ("x", "residual", "offset", "mask", "past")
                if getattr(made, name) is not None
            }
            part = result(replace(p, n=1), replace(made, **per_image), algorithm, threads=1)
            assert part is not None
            assert same_bits(part[0], whole[b]), p


@ALGORITHMS
@OPERATORS
def test_memory_of_the_operands(algorithm: str | None, operator: str) -> None:
    for index, (p, made) in enumerate(drawn(operator, 43)):
        put, forms = dressed(made, np.random.default_rng(index))
        plain = replace(put, x=np.array(put.x, order="C"), w=np.array(put.w, order="C"))
        y = result(p, plain, algorithm, threads=1)
        if y is not None:
            assert same_bits(y, result(p, put, algorithm, threads=1)), f"{p} {forms}"


@ALGORITHMS
@OPERATORS
def test_repetition(algorithm: str | None, operator: str) -> None:
    for p, made in drawn(operator, 44)[:10]:
        y = result(p, made, algorithm)
        if y is not None:
            assert all(same_bits(y, result(p, made, algorithm)) for _ in range(3)), p
