"""Plans of huge extents: what a plan takes grows with its lists of boxes and taps, never with positions of the input.

Inputs repeat one number, so that they take no memory; addresses beyond 2^32 are reached all the same.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from fresh import run

import polyconv
from polyconv import Problem, Unsupported
from polyconv.lowering import sweep
from polyconv.lowering.bands import bands
from polyconv.lowering.sweep import Axis

LIMITED = """
import resource
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), resource.RLIM_INFINITY))
"""

PLANNED = [
    "conv f32 NCHW n1 c1 i8589934592 m1 k3 s1073741824",
    "conv f32 NCHW n1 c1 i8589934593 m1 k3 d4294967296",
    "conv i8 NHWC n1 c1 i5 m1 k3 s68719476736 p274877906944",
    "conv f32 NCHW n1 c16 i8589934592 m16 k5",
    "conv f64 NHWC n1 c16 i8589934592x3 m16 k5x2 p0x1 d1x2",
    "conv f16 NCHW n1 c16 i1x3x9 m16 k1x2x2 s2x1x1 p0x8589934592x0 d2x2x1",
    "conv f32 NCHW n1 c64 i8589934592x3 m64 k3x3 g64 p1",
    "conv f32 NHWC n8589934592 c3 i9x9 m16 k3x3",
    "conv_transpose f32 NCHW n1 c4 i8589934592 m4 k3 s2",
]


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space, as Linux does")
def test_plans_fit_into_a_gigabyte() -> None:
    out = run(
        f"from polyconv import Problem\nprint(polyconv.plan(Problem.parse({PLANNED[0]!r})).threads > 0)\n{LIMITED}\n"
        f"for text in {PLANNED!r}:\n    assert polyconv.plan(Problem.parse(text)).algorithm, text\nprint('all')"
    )
    assert out.split() == ["True", "all"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8])
@pytest.mark.parametrize(
    ("extents", "kernel", "keywords"),
    [
        ((1 << 33,), (3,), {"strides": 1 << 30}),
        (((1 << 33) + 1,), (3,), {"dilations": 1 << 32}),
        ((1 << 20, 1 << 20), (3, 3), {"strides": 1 << 18}),
        ((1 << 20, 1 << 20), (3, 3), {"strides": 1 << 18, "layout": "NHWC"}),
    ],
    ids=str,
)
def test_results_of_huge_extents(dtype: Any, extents: Any, kernel: Any, keywords: Any) -> None:
    shape = (1, *extents, 1) if keywords.get("layout") == "NHWC" else (1, 1, *extents)
    y = polyconv.conv(np.broadcast_to(dtype(1), shape), np.ones((1, 1, *kernel), dtype), overflow="wrap", **keywords)
    assert 0 < y.size < 64 and (y == np.prod(kernel)).all()


def test_a_result_of_huge_pads() -> None:
    """Output 4 begins one before the input, whose first two elements its last two taps meet; all others lie apart."""
    x, w = np.ones((1, 1, 5), np.float32), np.ones((1, 1, 3), np.float32)
    y = polyconv.conv(x, w, pads=(1 << 38) + 1, strides=1 << 36)
    assert y.tolist() == [[[0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0]]]


def test_a_transposed_convolution_of_too_many_parts_is_refused() -> None:
    x, w = np.ones((1, 1, 2), np.float32), np.ones((1, 1, 1), np.float32)
    with pytest.raises(Unsupported, match=r"strides \(67108864,\) make 67108864 convolutions.*; at most 65536"):
        polyconv.conv_transpose(x, w, strides=1 << 26)
    with pytest.raises(Unsupported, match="make 90000 convolutions"):
        polyconv.plan(Problem.parse("conv_transpose f32 NCHW n1 c1 i9x9 m1 k3x3 s300x300"))
    assert polyconv.conv_transpose(x, w, strides=500)[0, 0, ::500].tolist() == [1.0, 1.0]


def brute_kinds(axis: Axis) -> list[range]:
    """Taps that meet input, output by output."""
    found = []
    for o in range(axis.out):
        met = [t for t in range(axis.taps) if 0 <= o * axis.stride - axis.pad + t * axis.dilation < axis.inp]
        found.append(range(met[0], met[-1] + 1) if met else range(0))
    return found


def test_taps_of_outputs_and_lines_of_blocks_are_those_counted_one_by_one() -> None:
    rng = np.random.default_rng(3)
    for _ in range(3000):
        drawn = rng.integers([0, 0, 1, 1, 1, -12, 1], [40, 30, 8, 6, 9, 30, 9])
        out, inp, taps, stride, dilation, pad, block = (int(v) for v in drawn)
        axis = Axis(out, inp, taps, stride, dilation, pad)
        ((ranges, of_output),) = bands((axis,), sys.maxsize)
        assert [ranges[kind] for kind in of_output] == brute_kinds(axis)
        held = sweep.lines(axis, block)
        positions = list(held.positions)
        assert len(positions) == held.count == len(set(positions))
        for t in range(taps):
            reads = [positions[held.start[t] + b] for b in range(block)]
            assert reads == [b * stride + t * dilation for b in range(block)]
