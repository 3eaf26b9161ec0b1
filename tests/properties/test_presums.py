"""Products of bytes that are summed by two in 16 bits: no sum overflows, and what is multiplied apart is not lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyconv.benchmark.runs import restricted
from polyconv.conformance.operands import operands
from polyconv.lowering.presums import CERTAIN, beyond, crowded
from polyconv.prepared import Layer
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem
from polyconv.target import LEVELS, host_target, target

pytestmark = pytest.mark.skipif(
    "avx2" not in LEVELS[: LEVELS.index(host_target().level) + 1] or target("avx2").vnni,
    reason="needs AVX2, where it multiplies no bytes by fours",
)

SCALED = "zx=t zw=0 zy=t sx=t sw=c sy=t"


def test_no_sum_of_two_products_leaves_16_bits() -> None:
    """All pairs of weights, with the inputs at which sums are largest and smallest."""
    w = np.stack(np.meshgrid(np.arange(-128, 128), np.arange(-128, 128)), axis=-1).astype(np.int16)
    over = beyond(w)
    kept = w - np.stack([over, np.zeros_like(over)], axis=-1)
    assert over.min() >= -128
    assert over.max() <= 127
    for x in ((255, 255), (255, 0), (0, 255)):
        sums = (kept.astype(np.int64) * x).sum(axis=-1)
        assert sums.min() >= -(1 << 15)
        assert sums.max() < 1 << 15
    fits = np.abs(w.sum(axis=-1)) <= 128
    assert (over[fits] == 0).all()
    assert (over[~fits] != 0).all()


def test_crowded_counts_words_of_sixteen_outputs() -> None:
    w = np.zeros((16, 64, 1), np.int8)
    assert crowded(w) == 0
    w[3, 8:10] = 100
    assert crowded(w) == 1
    w[5, 40:42] = -100
    assert crowded(w) == 2
    w[:, 1:3] = 127  # the second of a pair and the first of the next
    assert crowded(w) == 2
    assert crowded(np.full((40, 7, 9), 127, np.int8)) == CERTAIN
    assert crowded(np.zeros((0, 7, 9), np.int8)) == 0


def _weights(p: Problem, rng: np.random.Generator, share: float) -> NDArray[Any]:
    """Weights of which so many have no room beside their neighbours."""
    w = rng.integers(-50, 50, p.w_shape)
    return np.where(rng.random(p.w_shape) < share, rng.choice([-128, 127], p.w_shape), w).astype(np.int8)


def _check(line: str, share: float, threads: int = 1) -> None:
    p, rng = Problem.parse(line), np.random.default_rng(7)
    made = operands(p, rng, "spread")
    w, info = _weights(p, rng, share), np.iinfo(p.x_dtype.numpy)
    x = np.where(rng.random(made.x.shape) < 0.5, rng.choice([info.min, info.max], made.x.shape), made.x)
    x = x.astype(made.x.dtype)
    layer = Layer(lambda n, i: p, w, made.bias, layout=p.layout, algorithm="dots", threads=threads,
                  quantities=made.quantities)  # fmt: skip
    want = oracle(p, x, w, made.bias, made.residual, quantities=made.quantities)
    np.testing.assert_array_equal(layer(x, residual=made.residual), want, line)
    assert layer.plan(p.x_shape).arithmetic == "dots u8s8 presummed"


@pytest.fixture(autouse=True)
def _on_avx2() -> Any:
    with restricted("avx2"):
        yield


@pytest.mark.parametrize("share", [0.0, 0.004])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("types", ["u8*i8", "i8"])
def test_channels_and_outputs_round_their_edges(types: str, layout: str, share: float) -> None:
    for c, m in ((1, 16), (3, 5), (4, 1), (5, 7), (8, 8), (9, 9), (31, 15), (32, 16), (33, 17), (64, 24), (65, 49)):
        _check(f"conv {types}>i32 {layout} n1 c{c} i5x7 m{m} k2x2 p1:0x0:1 b1 zx=t", share)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("geometry", [
    "i40 m20 k5 p2", "i9x10 m20 k1x1", "i9x10 m20 k1x1 s2", "i12x13 m20 k3x3 s2 p1", "i12x13 m20 k3x3 p2 d2",
    "i4x5x6 m20 k3x2x3 p1", "i3x3 m20 k3x3 p1", "i30x3 m20 k3x3 p1", "i1x40 m20 k1x7 p0x3", "i6x6 m20 k5x5 p4",
])  # fmt: skip
def test_geometry(geometry: str, layout: str) -> None:
    for channels in (8, 11):
        _check(f"conv u8*i8>i32 {layout} n2 c{channels} {geometry}", 0.004)
        _check(f"conv i8 {layout} n1 c{channels} {geometry} b1 {SCALED}", 0.004)


@pytest.mark.parametrize("geometry", ["i5x6 m18 k2x2 s2", "i5x6 m18 k3x3 s2 p1", "i5x6 m18 k3x3", "i9 m18 k4 s3"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_transposed(layout: str, geometry: str) -> None:
    _check(f"conv_transpose u8*i8>i32 {layout} n1 c12 {geometry}", 0.004)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_follows_sums(layout: str, threads: int) -> None:
    _check(f"conv u8*i8 {layout} n2 c40 i14x15 m70 k3x3 p1 b1 {SCALED}", 0.005, threads)
    _check(f"conv u8*i8>i32 {layout} n1 c40 i14x15 m70 k1x1 r1", 0.005, threads)


def test_one_layer_of_many_sizes_packs_its_weights_once_and_rightly() -> None:
    """Rows along the one axis and along the other, in place and by a panel, from one layer."""
    rng = np.random.default_rng(3)
    base = Problem.parse("conv u8*i8>i32 NHWC n1 c12 i9x9 m20 k3x3 p1")
    w = _weights(base, rng, 0.004)
    texts = {i: Problem.parse(f"conv u8*i8>i32 NHWC n1 c12 i{i[0]}x{i[1]} m20 k3x3 p1")
             for i in ((9, 9), (60, 3), (3, 60), (1, 1), (30, 31))}  # fmt: skip
    layer = Layer(lambda n, i: texts[i], w, layout="NHWC", algorithm="dots")
    for p in (*texts.values(), *texts.values()):
        x = rng.integers(0, 256, p.x_shape).astype(np.uint8)
        np.testing.assert_array_equal(layer(x), oracle(p, x, w), str(p))


@pytest.mark.parametrize("share", [0.0, 0.004])
def test_weights_are_put_together_again(share: float) -> None:
    """A layer need not keep weights as they were given beside their packed form, and makes them anew of it."""
    rng = np.random.default_rng(5)
    for line in ("c64 i9x9 m40 k1x1", "c9 i9x9 m17 k1x1", "c12 i9x9 m20 k3x3 s2", "c40 i20 m5 k4 s4"):
        p = Problem.parse(f"conv u8*i8>i32 NHWC n1 {line}")
        w, x = _weights(p, rng, share), rng.integers(0, 256, p.x_shape).astype(np.uint8)
        layer = Layer(lambda n, i, p=p: p, w.copy(), layout="NHWC", algorithm="dots")
        layer(x)
        assert layer.weights.let_go()
        np.testing.assert_array_equal(layer.weights.given(), w, line)
        np.testing.assert_array_equal(layer(x), oracle(p, x, w), line)


def test_weights_decide() -> None:
    """Where most words would be multiplied apart, pairs of 16 bits take less."""
    p = Problem.parse("conv u8*i8>i32 NHWC n1 c64 i9x9 m64 k1x1")
    for weight, arithmetic in ((64, "u8s8 presummed"), (65, "i16")):
        layer = Layer(lambda n, i: p, np.full(p.w_shape, weight, np.int8), layout="NHWC", algorithm="dots")
        assert layer.plan(p.x_shape).arithmetic == f"dots {arithmetic}"
        x = np.full(p.x_shape, 255, np.uint8)
        np.testing.assert_array_equal(layer(x), np.full(p.y_shape, 64 * 255 * weight))
