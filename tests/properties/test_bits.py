"""Same bits: for any number of threads, any split of the batch, any memory behind the operands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from algorithms import algorithms, result

import polyconv
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


@pytest.mark.parametrize("accuracy", ["fast", "strict"])
@pytest.mark.parametrize("line", [
    "conv_transpose f16 NCHW n3 c31 i29x9x6 m1 k1x1x2 p0x0x1 d1x2x1", "conv f32 NCHW n2 c32 i8x14x14 m32 k3x1x1 p1x0x0",
    "conv f32 NHWC n1 c16 i6x9x40 m20 k1x1x3", "conv f32 NCHW n1 c40 i20x10x10 m40 k9x1x1 p4x0x0",
    "conv f32 NHWC n1 c64 i12x10x10 m64 k5x1x1 p2x0x0 g64",
])  # fmt: skip
def test_results_that_lie_apart_have_the_same_bits(line: str, accuracy: str) -> None:
    """Axes on which the kernel does nothing are one where arrays allow it; the algorithm is that of the whole."""
    p = Problem.parse(line)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(p.x_dtype.numpy) for shape in (p.x_shape, p.w_shape))
    make = polyconv.ConvTranspose if p.op == "conv_transpose" else polyconv.Conv
    pads = [begin for begin, _ in p.pads] + [end for _, end in p.pads]
    layer = make(w, strides=p.s, pads=pads, dilations=p.d, groups=p.groups, layout=p.layout, accuracy=accuracy)
    held = np.zeros([2 * extent for extent in p.y_shape], p.y_dtype.numpy)
    apart = held[tuple(slice(None, None, 2) for _ in p.y_shape)]
    layer(x, out=apart)
    np.testing.assert_array_equal(apart, layer(x))
