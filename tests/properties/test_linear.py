"""Laws that need no reference: linearity, impulses, shifts, the adjoint, groups as parts.

Operands are small whole numbers, whose sums are exact in every type tried, so equality is exact.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from algorithms import Array, algorithms, exact_problems, small
from algorithms import result as computed

from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

ALGORITHMS = pytest.mark.parametrize("algorithm", algorithms(), ids=str)
OPERATORS = pytest.mark.parametrize("operator", ["conv", "conv_transpose"])
COUNT = 60


def result(p: Problem, made: Operands, algorithm: str | None) -> Array | None:
    """What an algorithm computes; of transforms in which no whole numbers are exact, the nearest of them."""
    y = computed(p, made, algorithm)
    transforms = algorithm in (None, "fft", "winograd", "winograd_rows", "winograd_groups")
    return np.rint(y) if y is not None and transforms and y.dtype.kind == "f" else y


@ALGORITHMS
@OPERATORS
def test_linear_in_x_and_w(algorithm: str | None, operator: str) -> None:
    for index, p in enumerate(exact_problems(operator, COUNT)):
        (x1, w1), (x2, w2) = small(p, 2 * index), small(p, 2 * index + 1)
        run = partial(result, p, algorithm=algorithm)
        first = run(Operands(x1, w1))
        if first is None:
            continue
        np.testing.assert_array_equal(run(Operands(x1 + x2, w1)), first + run(Operands(x2, w1)), str(p))
        np.testing.assert_array_equal(run(Operands(x1, w1 + w2)), first + run(Operands(x1, w2)), str(p))


def impulse_problem(op: str, dtype: str, layout: str, rank: int) -> Problem:
    k = (3, 2, 4)[:rank]
    return Problem(op, dtype, dtype, dtype, layout, 1, 3, (9,) * rank, 5, k, pads=((2, 2),) * rank)


@ALGORITHMS
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_impulse_returns_the_kernel(algorithm: str | None, dtype: str, layout: str, rank: int) -> None:
    """A forward convolution shows the kernel flipped, a transposed one as it is."""
    rng = np.random.default_rng(0)
    for op in ("conv", "conv_transpose"):
        p = impulse_problem(op, dtype, layout, rank)
        x = np.zeros((1, p.c, *p.i), p.x_dtype.numpy)
        x[(0, 1) + (4,) * rank] = 1
        w = rng.integers(1, 9, p.w_shape).astype(p.w_dtype.numpy)
        y = result(p, Operands(np.moveaxis(x, 1, -1) if layout == "NHWC" else x, w), algorithm)
        if y is None:
            continue
        y = np.moveaxis(y, -1, 1) if layout == "NHWC" else y
        flip = (slice(None), *(slice(None, None, -1) for _ in p.k))
        kernel = w[:, 1][flip] if op == "conv" else w[1]
        # The impulse at 4 reaches outputs 4 + 2 - t of a forward convolution, 4 - 2 + t of a transposed one.
        starts = [4 + 2 - (k - 1) if op == "conv" else 4 - 2 for k in p.k]
        cut = tuple(slice(b, b + k) for b, k in zip(starts, p.k, strict=True))
        np.testing.assert_array_equal(y[(0, slice(None), *cut)], kernel)
        assert np.count_nonzero(y) == np.count_nonzero(kernel)


@ALGORITHMS
@pytest.mark.parametrize("text", [
    "conv f32 NCHW n1 c5 i18x17 m7 k3x3",
    "conv f64 NHWC n1 c5 i18x17 m7 k3x2 d2",
    "conv f32 NCW n1 c16 i60 m16 k5 g16",
    "conv_transpose f32 NCHW n1 c5 i9x8 m7 k4x3 s2",
])  # fmt: skip
def test_shifting_x_shifts_y(algorithm: str | None, text: str) -> None:
    p = Problem.parse(text)
    x, w = small(p, 1)
    axis = 1 if p.layout == "NHWC" else 2
    zero = np.zeros_like(np.take(x, [0], axis))
    shifted = np.concatenate([zero, np.delete(x, -1, axis)], axis)
    y, z = (result(p, Operands(a, w), algorithm) for a in (x, shifted))
    if y is None or z is None:
        return
    s = p.s[0] if p.op == "conv_transpose" else 1
    end = int(y.shape[axis]) - (((p.k[0] - 1) * p.d[0] + 1) if p.op == "conv_transpose" else 1)
    begin = (p.k[0] - 1) * p.d[0] + 1 if p.op == "conv_transpose" else 1
    kept = np.take(z, range(begin + s, end), axis)
    np.testing.assert_array_equal(kept, np.take(y, range(begin, end - s), axis))


@ALGORITHMS
def test_adjoint(algorithm: str | None) -> None:
    """<conv(x, w), y> = <x, conv_transpose(y, w)> for every stride, dilation, pad and group."""
    for index, p in enumerate(exact_problems("conv", COUNT, seed=32)):
        if p.x_dtype.kind == "u" or p.x != p.y or p.x != p.w or any(v < 0 for pad in p.pads for v in pad):
            continue
        x, w = small(p, index)
        y = result(p, Operands(x, w), algorithm)
        if y is None:
            continue
        back = replace(
            p, op="conv_transpose", c=p.m, m=p.c, i=p.out, o=tuple(int(e or 0) for e in p.i),
        )  # fmt: skip
        other = np.random.default_rng(index).integers(0, 4, y.shape).astype(y.dtype)
        z = result(back, Operands(other, w), None)
        assert z is not None
        wide = np.float64 if p.x_dtype.is_float else np.int64
        left = (y.astype(wide) * other.astype(wide)).sum()
        right = (x.astype(wide) * z.astype(wide)).sum()
        assert left == right, p


@ALGORITHMS
@OPERATORS
def test_groups_are_parts(algorithm: str | None, operator: str) -> None:
    for index, p in enumerate(exact_problems(operator, COUNT, seed=33)):
        if p.groups == 1:
            continue
        x, w = small(p, index)
        whole = result(p, Operands(x, w), algorithm)
        if whole is None:
            continue
        axis, g = (-1 if p.layout == "NHWC" else 1), p.groups
        part = replace(p, c=p.c // g, m=p.m // g, groups=1)
        parts = [
            result(part, Operands(np.ascontiguousarray(a), np.ascontiguousarray(b)), None)
            for a, b in zip(np.split(x, g, axis), np.split(w, g, 0), strict=True)
        ]
        np.testing.assert_array_equal(whole, np.concatenate(parts, axis), str(p))  # type: ignore[arg-type]
