"""auto_pad arithmetic against independent formulations, exhaustively on small grids."""

from __future__ import annotations

from itertools import product

import pytest

from polyconv.problem.extents import output_extent
from polyconv.problem.padding import (
    AUTO_PADS,
    backprop_pads,
    forward_axes,
    forward_pads,
    natural_extent,
    same_pads,
    same_pads_onnxruntime,
    transposed_axes,
    transposed_pads,
)

FORWARD = list(product(range(0, 13), range(1, 6), range(1, 7), range(1, 4)))
TRANSPOSED = list(product(range(1, 6), range(1, 5), range(1, 5), range(1, 4), range(0, 3)))


def least_total(n: int, k: int, s: int, d: int) -> int:
    """Smallest total padding that lets a kernel start ceil(n/s) times, found by counting starts."""
    taps = [t * d for t in range(k)]
    total = 0
    while sum(1 for start in range(0, n + total, s) if start + taps[-1] < n + total) < len(range(0, n, s)):
        total += 1
    return total


def test_same_is_the_least_padding_that_reaches_every_stride():
    for n, k, s, d in FORWARD:
        begin, end = same_pads(n, k, s, d, True)
        if n:
            assert begin + end == least_total(n, k, s, d), (n, k, s, d)
        assert output_extent(n, k, s, d, begin, end) == -(-n // s), (n, k, s, d)


def test_same_by_remainder():
    # the second way in which the specifications write it
    for n, k, s, d in FORWARD:
        if n:
            total = max(0, (k - 1) * d + 1 - (n % s or s))
            assert sum(same_pads(n, k, s, d, False)) == total


def test_same_sides():
    for n, k, s, d in FORWARD:
        begin, end = same_pads(n, k, s, d, True)
        assert 0 <= end - begin <= 1, "SAME_UPPER has the extra element at the end"
        assert same_pads(n, k, s, d, False) == (end, begin)


def c_quotient(a: int, b: int) -> int:
    """Division as in C: towards zero."""
    return abs(a) // b if a >= 0 else -(abs(a) // b)


def test_onnxruntime_differs_only_where_the_stride_exceeds_the_kernel():
    moved = set()
    for n, k, s, d in FORWARD:
        for upper in (True, False):
            ours = same_pads_onnxruntime(n, k, s, d, upper)
            raw = (-(-n // s) - 1) * s + k - n
            if d > 1 or raw >= 0:
                assert ours == same_pads(n, k, s, d, upper)
                continue
            needed = raw + 1
            head = c_quotient(needed if upper else needed + 1, 2)
            assert ours[0] == head
            if n:
                assert output_extent(n, k, s, d, *ours) == -(-n // s)
            if head:
                moved.add((n, k, s, upper))
    # from the scan of the installed engine: one tap, stride 4, four inputs, extra at the end
    assert (4, 1, 4, True) in moved
    assert (4, 1, 4, False) not in moved
    assert all(s > k for _, k, s, _ in moved)


@pytest.mark.parametrize(("raw", "upper", "lower"), [(-2, 0, 0), (-3, -1, 0), (-4, -1, -1), (-5, -2, -1)])
def test_onnxruntime_crops_by_half(raw, upper, lower):
    n = s = 1 - raw
    assert same_pads_onnxruntime(n, 1, s, 1, True)[0] == upper
    assert same_pads_onnxruntime(n, 1, s, 1, False)[0] == lower


def test_explicit_and_valid_forward():
    assert forward_pads("NOTSET", 5, 3, 1, 1, (2, 7)) == (2, 7)
    assert forward_pads("VALID", 5, 3, 1, 1, (2, 7)) == (0, 0)
    assert forward_pads("SAME_LOWER", 5, 2, 1, 1, (2, 7)) == (1, 0)
    assert forward_axes("SAME_UPPER", (5, 6), (2, 3), (1, 2), (1, 1), ((0, 0),) * 2) == ((0, 1), (0, 1))
    cropping = forward_axes("SAME_UPPER", (4,), (1,), (4,), (1,), ((0, 0),), same_pads_onnxruntime)
    assert cropping == ((-1, 1),)


def extent(pads: tuple[int, int], n: int, k: int, s: int, d: int, op: int) -> int:
    return natural_extent(n, k, s, d, op) - sum(pads)


def test_natural_extent_counts_the_scattered_positions():
    for n, k, s, d, op in TRANSPOSED:
        reached = max(i * s + t * d for i in range(n) for t in range(k)) + 1
        assert natural_extent(n, k, s, d, op) == reached + op


def test_transposed_same_is_the_adjoint_of_forward_same():
    for n, k, s, d, op in TRANSPOSED:
        if op == 0:
            for word in ("SAME_UPPER", "SAME_LOWER"):
                pads = transposed_pads(word, n, k, s, d, 0, (9, 9))
                assert pads == forward_pads(word, n * s, k, s, d, (9, 9)), (word, n, k, s, d)


def test_transposed_same_without_output_shape():
    for n, k, s, d, op in TRANSPOSED:
        natural = natural_extent(n, k, s, d, op)
        for word in ("SAME_UPPER", "SAME_LOWER"):
            pads = transposed_pads(word, n, k, s, d, op, (0, 0))
            assert extent(pads, n, k, s, d, op) == min(n * s, natural)
            assert min(pads) >= 0


@pytest.mark.parametrize("auto_pad", AUTO_PADS)
def test_transposed_output_shape_is_met_exactly(auto_pad):
    for n, k, s, d, op in TRANSPOSED:
        natural = natural_extent(n, k, s, d, op)
        for out in range(1, natural + 4):
            begin, end = transposed_pads(auto_pad, n, k, s, d, op, (5, 5), out)
            assert extent((begin, end), n, k, s, d, op) == out
            excess = max(0, natural - out)
            assert begin == (excess // 2 if auto_pad == "SAME_UPPER" else (excess + 1) // 2)


def test_transposed_examples_of_the_specification():
    # test_convtranspose_autopad_same: 3x3, kernel 3, stride 2, SAME_UPPER gives 6x6 from the first row on
    assert transposed_pads("SAME_UPPER", 3, 3, 2, 1, 0, (0, 0)) == (0, 1)
    # test_convtranspose_output_shape: natural (9, 7), asked for (10, 8): zeros appended
    assert transposed_axes("NOTSET", (3, 3), (3, 3), (3, 2), (1, 1), (0, 0), ((0, 0),) * 2, (10, 8)) == (
        (0, -1),
        (0, -1),
    )
    # test_convtranspose_pads: 3x3, kernel 3, strides (3, 2), pads (1, 2)
    assert transposed_axes("NOTSET", (3, 3), (3, 3), (3, 2), (1, 1), (0, 0), ((1, 1), (2, 2))) == (
        (1, 1),
        (2, 2),
    )
    # output_padding takes part where output_shape is given (measured on ONNX Runtime)
    assert transposed_pads("NOTSET", 3, 3, 2, 1, 1, (0, 0), 7)[0] == 1
    assert transposed_pads("VALID", 3, 3, 2, 1, 0, (4, 4)) == (0, 0)


def test_backprop_without_output_shape():
    for n, k, s, d, op in TRANSPOSED:
        assert backprop_pads("NOTSET", n, k, s, d, op, (1, 2)) == (1, 2)
        for word in ("VALID", "SAME_UPPER", "SAME_LOWER"):
            assert backprop_pads(word, n, k, s, d, op, (1, 2)) == (0, 0)


def test_backprop_output_shape_mirrors_onnx():
    for n, k, s, d, op in TRANSPOSED:
        for out in range(0, natural_extent(n, k, s, d, op) + 4):
            found = {a: backprop_pads(a, n, k, s, d, op, (1, 2), out) for a in AUTO_PADS}
            assert all(extent(p, n, k, s, d, op) == out for p in found.values())
            assert found["NOTSET"][0] == 1
            assert found["VALID"][0] == 0
            onnx = {a: transposed_pads(a, n, k, s, d, op, (0, 0), out) for a in AUTO_PADS}
            assert found["SAME_UPPER"] == onnx["SAME_LOWER"]
            assert found["SAME_LOWER"] == onnx["SAME_UPPER"]


def test_backprop_along_several_axes():
    found = transposed_axes(
        "SAME_UPPER", (3, 3), (3, 3), (2, 2), (1, 1), (0, 0), ((0, 0),) * 2, (4, 6), rule=backprop_pads
    )
    assert found == ((2, 1), (1, 0))
