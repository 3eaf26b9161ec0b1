"""``channel_sums``: few outputs of channels that lie together, whatever its tiles and how arrays lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import agrees, result
from levels import LEVELS

from polyconv.algorithms.grouped.channel_sums import ChannelSumsForm
from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.lowering.situation import Situation
from polyconv.machine.profile import preset
from polyconv.problem.problem import Problem
from polyconv.settings import resolve as setting
from polyconv.target import target

NAME = "channel_sums"


@pytest.fixture(autouse=True, params=LEVELS)
def _level(request: pytest.FixtureRequest) -> Iterator[None]:
    with restricted(request.param):
        yield


def situation(line: str) -> Situation:
    return Situation(Problem.parse(line), target(setting("target")))


def is_too_narrow(line: str) -> bool:
    """Whether a vector has fewer lanes than a pixel has outputs, or no part as short as its channels."""
    refusal = ALGORITHMS[NAME].refusal(situation(line))
    return refusal is not None and ("computes up to" in refusal or "shortest part" in refusal)


def judged(line: str, **options: Any) -> Any:
    """The result, which must be right and the same on three threads; None where vectors are too narrow for it."""
    p = Problem.parse(line)
    if is_too_narrow(line):
        return None
    made = operands(p, np.random.default_rng(0), "normal")
    got = result(p, made, NAME, **options)
    assert got is not None, line
    assert complaint(p, expected(p, made), got) is None, line
    assert np.array_equal(result(p, made, NAME, threads=3, **options), got), line  # type: ignore[arg-type]
    return got


@pytest.mark.parametrize("outputs", (1, 2, 3, 4, 5, 6, 7, 11, 16))
def test_outputs_and_channels(outputs: int) -> None:
    """Whole and part vectors of channels, lines that no tile divides, and outputs in sets."""
    for channels in (2, 15, 16, 17, 40):
        judged(f"conv f32 NHWC n2 c{channels} i7x13 m{outputs} k3x2 s1x2 p1 b1 r1")
    if outputs <= 8:
        judged(f"conv f64 NHWC n1 c27 i5x6 m{3 * outputs} k2 g3 act=Relu")


@pytest.mark.parametrize("line", [
    "conv f32 NHWC n1 c16 i1 m1 k1",
    "conv f32 NHWC n1 c9 i1x1 m2 k3x3 p1",  # taps that meet only padding
    "conv f32 NHWC n1 c33 i30x1 m3 k5x3 p2x1 d3x1 b1",  # lines of one output: tiles go across them
    "conv f32 NHWC n1 c20 i5x6 m4 k15x17 p7x8",  # a kernel larger than the image
    "conv f32 NHWC n1 c20 i4x3x5x4 m3 k2x3x2x3 s1x2x1x1 p0x1x1x1",
    "conv f32 NHWC n0 c20 i5 m3 k3", "conv f32 NHWC n2 c20 i0 m3 k3 p1", "conv f32 NHWC n3 c20 i900 m2 k9 s2 p4 b1",
    "conv_transpose f32 NHWC n2 c20 i6x3 m6 k4x3 s2x3 p1x0 b1 r1 act=Relu",
    "conv_transpose f64 NHWC n1 c19 i7x4 m2 k2x1 s3x4 b1",  # outputs that no tap reaches
    "conv_transpose f32 NHWC n1 c10 i1x8 m4 k6x3 s2x1 d3x2 g2",
])  # fmt: skip
def test_edges(line: str) -> None:
    judged(line)


@pytest.mark.parametrize("types", [
    "f32", "f64", "f16", "bf16", "f32>f64", "f16>f32", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64",
    "u8*i8>i32", "i16>i64",
])  # fmt: skip
def test_every_type(types: str) -> None:
    judged(f"conv {types} NHWC n2 c35 i7x19 m3 k3x2 s2x1 p1x0 b1")
    judged(f"conv_transpose {types} NHWC n1 c26 i4x5 m5 k3x3 s2x1 p1 b1", accuracy="strict")


@pytest.mark.parametrize("text", [
    "conv u8*i8>i32 NHWC n1 c40 i9x14 m5 k3x2 p1 zx=t zw=t",
    "conv u8 NHWC n2 c66 i7x15 m6 k3x3 s2 p1 g2 b1 zx=t zw=t zy=t sx=t sw=c sy=t",
    "conv i8 NHWC n1 c33 i6x5x12 m1 k3x5x2 p1x2x1 zx=t zw=t zy=t sx=t sw=t sy=t",
])  # fmt: skip
def test_zero_points_and_scales(text: str) -> None:
    judged(text)


def test_16_bits_at_the_ends_of_their_range_wrap() -> None:
    """A pair of products of least numbers is 2^31."""
    p = Problem.parse("conv i16>i32 NHWC n1 c40 i9 m2 k3")
    x, w = np.full(p.x_shape, -(2**15), np.int16), np.full(p.w_shape, -(2**15), np.int16)  # type: ignore[arg-type]
    made = replace(operands(p, np.random.default_rng(0), "normal"), x=x, w=w)
    got = result(p, made, NAME)
    assert got is not None
    assert (got == np.int64(120 * 2**30).astype(np.int32)).all()


def test_neither_tile_nor_how_arrays_lie_changes_a_bit() -> None:
    p = Problem.parse("conv f32 NHWC n2 c37 i3x21 m3 k2x3 p1 b1 r1")
    made = operands(p, np.random.default_rng(0), "normal")
    whole = judged(str(p))
    for first, count in ((0, 9), (4, 8), (11, 4), (18, 1)):  # the same outputs of images cut along lines
        some = Problem.parse(f"conv f32 NHWC n2 c37 i3x{count + 2} m3 k2x3 p1x0 b1 r1")
        part = slice(first + 1, first + 1 + count)
        cut = replace(made, x=made.x[:, :, first : first + count + 2], residual=made.residual[:, :, part])  # type: ignore[index]
        assert np.array_equal(result(some, cut, NAME), whole[:, :, part]), count  # type: ignore[arg-type]
    planes = np.ascontiguousarray(made.x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    for x in (planes, np.ascontiguousarray(made.x[..., ::-1])[..., ::-1], np.repeat(made.x, 2, axis=-1)[..., ::2]):
        assert np.array_equal(result(p, replace(made, x=x), NAME), whole)  # type: ignore[arg-type]
    for axis in range(4):
        shape = [2 * e if a == axis else e for a, e in enumerate(whole.shape)]
        apart = np.zeros(shape, whole.dtype)[tuple(slice(None, None, 2 if a == axis else 1) for a in range(4))]
        result(p, made, NAME, out=apart)
        assert np.array_equal(apart, whole), axis


def test_inf_behind_the_channels_of_a_group_is_not_met() -> None:
    p = Problem.parse("conv f32 NHWC n1 c36 i9 m2 k3 g2")
    x = np.ones((1, 9, 36), np.float32)
    x[..., 18:] = np.inf
    made = replace(operands(p, np.random.default_rng(0), "normal"), x=x)
    got = result(p, made, NAME)
    assert got is not None
    assert np.isfinite(got[..., 0]).all()


@pytest.mark.parametrize("channels", range(8, 20))
def test_channels_that_are_read_twice_count_once(channels: int) -> None:
    """Inf is Inf, not NaN, in whichever channel; so is a sum that is large in them all."""
    line = f"conv f32 NHWC n1 c{channels} i5 m2 k1"
    p = Problem.parse(line)
    for at in range(channels):
        made = operands(p, np.random.default_rng(at), "normal")
        x, w = np.ones((1, 5, channels), np.float32), np.ones((2, channels, 1), np.float32)
        x[:, 2, at] = np.inf
        got = result(p, replace(made, x=x, w=w), NAME)
        assert got is not None
        assert (got[0, [0, 1, 3, 4]] == channels).all()
        assert (got[0, 2] == np.inf).all()


def test_the_planner_takes_it_for_few_outputs() -> None:
    for line in ("conv bf16 NHWC n2 c98 i30x126 m3 k12x3 s1x2 p6x1 b1", "conv u64 NHWC n2 c33 i40x41x35 m2 k7x1x2"):
        s = situation(line)
        s = s if s.target.level == "neon" else replace(s, profile=preset("zen5"))
        form = ALGORITHMS[NAME].form(s)
        assert isinstance(form, ChannelSumsForm)
        generic = ALGORITHMS["generic"].form(s)
        assert not isinstance(generic, str)
        assert sum(form.cost().values()) < sum(generic.cost().values())


def test_what_it_does_not_take() -> None:
    for line, reason in (
        ("conv f32 NCHW n1 c18 i9x9 m2 k3x3", "lie together"), ("conv f32 NHWC n1 c18 i9x9 m17 k3x3", "outputs of"),
        ("conv f32 NHWC n1 c18 i9x9 m18 k3x3 g18", "several channels"),
        ("conv f32 NHWC n1 c18 i9x130x130 m2 k1x63x63 p0x31x31", "too many boxes"),
    ):  # fmt: skip
        found = ALGORITHMS[NAME].form(situation(line))
        assert isinstance(found, str)
        assert reason in found
    assert not agrees("conv f32 NCHW n1 c18 i9x9 m2 k3x3", NAME)
