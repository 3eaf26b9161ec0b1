"""Residuals with a scale of their own: scaled results and bytes added as what they stand for, to the very byte.

A convolution of one tap whose weight, scale and inverse are 1 makes every byte, so that an image of 256 by 256 pixels
with all residuals has all pairs of bytes that there are.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import algorithms, result
from extremes import extreme
from levels import LEVELS

import polyconv
from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance.judge import complaint, expected
from polyconv.errors import ArgumentError
from polyconv.lowering.rescaling import LEAST_SCALE, adds_by, rescaling_constants
from polyconv.lowering.situation import Situation
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import Quantisation
from polyconv.target import target

SCALES = "zx=t zw=t zy=t sx=t sw=c sy=t zr=t sr=t zs=t ss=t"
F32 = np.float32


def pairs(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """All bytes by all bytes."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    first, second = np.meshgrid(np.arange(low, high + 1), np.arange(low, high + 1), indexing="ij")
    return first.astype(dtype), second.astype(dtype)


def defined(y: np.ndarray, r: np.ndarray, of: dict[str, Any]) -> np.ndarray:
    """DequantizeLinear of both, Add and QuantizeLinear, an operation at a time; NaN is the least integer."""
    info = np.iinfo(y.dtype)
    with np.errstate(all="ignore"):
        own = (y.astype(F32) - F32(of["zy"])) * F32(of["sy"])
        beside = (r.astype(F32) - F32(of["zr"])) * F32(of["sr"])
        steps = np.rint((own + beside) / F32(of["ss"])).astype(np.float64) + of["zs"]
    return np.where(np.isnan(steps), info.min, np.clip(steps, info.min, info.max)).astype(y.dtype)


def added(y: np.ndarray, r: np.ndarray, of: dict[str, Any], layout: str) -> np.ndarray:
    """The same by a convolution whose results are ``y``: an input of one channel of y's bytes, with a weight of 1."""
    kind = "u8*i8>u8" if y.dtype == np.uint8 else "i8"
    shape = (1, *y.shape, 1) if layout == "NHWC" else (1, 1, *y.shape)
    plan = polyconv.plan(f"conv {kind} {layout} n1 c1 i{y.shape[0]}x{y.shape[1]} m1 k1x1 r1 zx=t zy=t sx=t sw=t sy=t "
                         "zr=t sr=t zs=t ss=t")  # fmt: skip
    given = {**of, "zx": of["zy"], "sx": of["sy"], "sw": F32(1)}
    found = plan(y.reshape(shape), np.ones((1, 1, 1, 1), np.int8), residual=r.reshape(shape), **given)
    return np.asarray(found).reshape(y.shape)


def drawn(rng: np.random.Generator, dtype: Any) -> dict[str, Any]:
    """Scales as of layers that follow each other, and any zero points, often the least byte."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    zeros = {name: dtype(rng.choice([low, rng.integers(low, high + 1)])) for name in ("zy", "zr", "zs")}
    own, beside = np.exp2(rng.uniform(-8, 0, 2))
    return {**zeros, "sy": F32(own), "sr": F32(beside), "ss": F32(max(own, beside) * np.exp2(rng.uniform(-1, 1)))}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_all_pairs_of_bytes(dtype: Any, level: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if level is not None:
        monkeypatch.setenv("POLYCONV_TARGET", level)
    rng, (y, r) = np.random.default_rng(5), pairs(dtype)
    ties = [{"sy": F32(0.5), "sr": F32(0.25), "ss": F32(1)}, {"sy": F32(0.3), "sr": F32(0.1), "ss": F32(0.2)}]
    numbers = ((1e30, 1e30, 1), (1, np.inf, 1), (1, np.nan, 1), (1, 1, 0), (-1, 1, 2), (1, 2, -0.7))
    odd = [{"sy": F32(own), "sr": F32(beside), "ss": F32(whole)} for own, beside, whole in numbers]
    for at, scales in enumerate([*ties, *odd, *[{}] * 6]):
        of = drawn(rng, dtype) | scales
        assert np.array_equal(added(y, r, of, ("NCHW", "NHWC")[at % 2]), defined(y, r, of)), of


def ways(of: dict[str, Any], *, has_fma: bool) -> str:
    """How a sum with these numbers is computed."""
    p = Problem.parse("conv u8*i8>u8 NHWC n1 c1 i4 m1 k1 r1 zy=t sx=t sw=t sy=t zr=t sr=t zs=t ss=t")
    return adds_by(p, rescaling_constants(p, lambda name: float(of[name])), has_fma)


def test_most_sums_are_two_multiply_adds() -> None:
    """Both ways are taken, so that the tests above are of both: by multiply-adds nearly always, where there are any."""
    rng = np.random.default_rng(5)
    numbers = [drawn(rng, np.uint8) for _ in range(60)]
    found = [ways(of, has_fma=True) for of in numbers]
    assert {"together"} <= {*found} <= {"together", "defined"}
    assert found.count("together") > 50
    assert {ways(of, has_fma=False) for of in numbers} == {"defined"}
    nothing = numbers[0] | {"ss": F32(0)}
    assert ways(nothing, has_fma=True) == "defined"


@pytest.mark.parametrize("algorithm", algorithms())
@pytest.mark.parametrize("level", LEVELS)
def test_every_algorithm(algorithm: str | None, level: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape of tiles, with edges, both layouts, threads and types."""
    if level is not None:
        monkeypatch.setenv("POLYCONV_TARGET", level)
    shapes = ("n2 c3 i7x9 m5 k3x3 p1", "n1 c32 i5x20 m48 k1x1", "n1 c33 i4x6 m70 k1x1", "n1 c8 i6x5 m8 k3x3 p1 g8",
              "n2 c16 i6x7 m24 k3x2 s2 p1 g2", "n1 c64 i3x9 m130 k2x1 d2", "n1 c16 i12 m40 k3 p1")  # fmt: skip
    for at, (shape, layout) in enumerate(itertools.product(shapes, ("NCHW", "NHWC"))):
        types = ("u8*i8>u8", "i8", "u8", "i8*u8>u8", "u8*i8>i8")[at % 5]
        p = Problem.parse(f"conv {types} {layout} {shape} b{at % 2} r1 {SCALES}")
        made = extreme(p, at)
        for threads in (1, 2)[: 1 + at % 2]:
            got = result(p, made, algorithm, threads=threads)
            assert got is None or complaint(p, expected(p, made), got) is None, f"{p} {threads}"


def test_transposed_and_without_zero_points() -> None:
    for layout in ("NCHW", "NHWC"):
        for fields in ("k3x3 s2 p1 zy=t zr=t zs=t", "k2x2 s2", "k4x4 s2 p1 zs=t"):
            p = Problem.parse(f"conv_transpose u8*i8>u8 {layout} n1 c8 i5x6 m20 {fields} r1 sx=t sw=c sy=t sr=t ss=t")
            made = extreme(p)
            got = result(p, made, None)
            assert got is not None
            assert complaint(p, expected(p, made), got) is None, p


@pytest.mark.parametrize("algorithm", ["dots_pixels", "dots_matrix_pixels"])
def test_residuals_may_lie_otherwise_than_results(algorithm: str) -> None:
    """Pixels of planes get theirs vector by vector: planes further apart, pixels apart, channels last, turned round."""
    for shape in ("n2 c16 i5x33 m10 k1x1", "n1 c8 i3x4x50 m24 k1x1x1", "n2 c12 i300 m7 k1 g1", "n1 c4 i1x1 m3 k1x1"):
        p = Problem.parse(f"conv u8*i8>u8 NCHW {shape} b1 r1 {SCALES}")
        made = extreme(p)
        right, usual = expected(p, made), np.asarray(made.residual)
        wide = np.zeros((*usual.shape[:-1], 2 * usual.shape[-1]), np.uint8)
        wide[..., ::2] = usual
        planes = np.zeros((usual.shape[0], 2 * usual.shape[1], *usual.shape[2:]), np.uint8)
        planes[:, ::2] = usual
        last = np.moveaxis(np.ascontiguousarray(np.moveaxis(usual, 1, -1)), -1, 1)
        for residual in (usual, wide[..., ::2], planes[:, ::2], last, usual[..., ::-1].copy()[..., ::-1]):
            got = result(p, replace(made, residual=residual), algorithm)
            assert got is None or complaint(p, right, got) is None, p


def test_tiles_of_pixels_add_residuals() -> None:
    """Where pixels follow each other; not where a kernel leaves gaps between them, nor to sums without a scale."""
    host = target()
    for algorithm in ("dots_pixels", "dots_matrix_pixels"):
        row = ALGORITHMS[algorithm]
        if row.excluded(host) is not None or (algorithm == "dots_matrix_pixels" and not host.matrix):
            continue
        given = "conv u8*i8>u8 NCHW n1 c16 i9x20 m24 {} b1 r1 zx=t zy=t sx=t sw=c sy=t{}"
        sums = " sr=t ss=t"
        s = Situation(Problem.parse(given.format("k1x1", sums)), host)
        assert row.refusal(s) is None
        for fields, more in (("k3x3 p1", sums), ("k1x1", "")):
            assert row.refusal(replace(s, problem=Problem.parse(given.format(fields, more)))) is not None


def test_results_may_take_the_residuals_place() -> None:
    p = Problem.parse(f"conv u8*i8>u8 NHWC n1 c32 i9x20 m64 k1x1 b1 r1 {SCALES}")
    made = extreme(p)
    right, place = expected(p, made), np.array(made.residual)
    plan = polyconv.plan(p)
    assert plan(made.x, made.w, made.bias, residual=place, out=place, **made.quantities) is place
    assert complaint(p, right, place) is None


@pytest.mark.parametrize(("fields", "words"), [
    ("r1 sx=t sw=t sy=t sr=t", "give sr and ss"), ("r1 sx=t sw=t sy=t zr=t", "give sr and ss"),
    ("sx=t sw=t sy=t sr=t ss=t", "give r1"), ("r1 sr=t ss=t", "give r1, sx"),
    ("r1 sx=t sw=t sy=t sr=t ss=t act=Relu", "no activation"),
])  # fmt: skip
def test_what_is_no_sum_is_refused(fields: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Problem.parse(f"conv u8*i8>u8 NHWC n1 c4 i5 m4 k1 {fields}")


def test_results_of_more_bits_are_refused() -> None:
    with pytest.raises(ArgumentError, match="of u8 or i8"):
        Problem.parse("conv u8*i8>i16 NHWC n1 c4 i5 m4 k1 r1 sx=t sw=t sy=t sr=t ss=t")


@pytest.mark.parametrize("name", ["sy", "sr", "ss"])
def test_scales_too_small_for_normal_numbers_are_refused(name: str) -> None:
    y, r = (a[:4, :4] for a in pairs(np.uint8))
    of = drawn(np.random.default_rng(1), np.uint8) | {name: F32(LEAST_SCALE / 2)}
    with pytest.raises(ArgumentError, match=f"{name}=.* too small"):
        added(y, r, of, "NHWC")


def test_the_text_of_a_problem_has_them() -> None:
    p = Problem.parse("conv u8*i8>u8 NHWC n1 c4 i5 m4 k1 r1 sx=0.5 sw=c sy=t zr=128 sr=0.25 zs=t ss=1")
    assert p.quantisation == Quantisation(sx=0.5, sw="c", sy="t", zr=128.0, sr=0.25, zs="t", ss=1.0)
    assert Problem.parse(str(p)) == p
    assert str(p).endswith("zr=128.0 sr=0.25 zs=t ss=1.0")
