"""Packed weights: every weight in its place, whatever the strides it comes from; transforms exact to one rounding."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from levels import LEVELS

from polyconv.algorithms.winograd.channels import WinogradForm
from polyconv.algorithms.winograd.channels import forms as winograd_forms
from polyconv.benchmark.runs import restricted
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.prepared import Layer
from polyconv.problem.problem import Problem


def _packed(line: str, algorithm: str, level: str | None, threads: int = 1) -> tuple[Any, Any, Any]:
    """Weights given, all that an algorithm made of them, and its situation."""
    p = Problem.parse(line)
    made = np.random.default_rng(0).integers(-9, 10, p.w_shape).astype(p.w_dtype.numpy)
    with nullcontext() if level is None else restricted(level):
        layer = Layer(lambda n, i: p, made, None, layout=p.layout, algorithm=algorithm, threads=threads)
        layer(_input(p))
        return made, _forms(layer), layer.situation(p)


def _input(p: Problem) -> Any:
    return np.zeros([int(e or 0) for e in p.x_shape], p.x_dtype.numpy)


def _forms(layer: Layer) -> dict[Any, Any]:
    return dict(layer.weights._forms.items())


def _streamed(w: Any, lane: int, vectors: int, pair: int) -> list[float]:
    """Weights (groups, m, c, taps) as the dense tile streams them, written down one by one."""
    groups, m, c, taps = w.shape
    blocks = [(f, min(vectors * lane, -(-(m - f) // lane) * lane)) for f in range(0, m, vectors * lane)]
    found = []
    for some in (blocks[:-1], blocks[-1:]):
        for g in range(groups):
            for first, width in some:
                for c0 in range(0, c, 16 * pair):
                    for t in range(taps):
                        for c1 in range(c0, min(c, c0 + 16 * pair), pair):
                            found += [
                                float(w[g, o, i, t]) if o < m and i < c else 0.0
                                for o in range(first, first + width) for i in range(c1, c1 + pair)
                            ]  # fmt: skip
    return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", [
    "conv f32 NCHW n1 c35 i9x9 m70 k3x3 p1x1", "conv f64 NCHW n1 c18 i9 m40 k5",
    "conv f32 NHWC n1 c40 i9x9 m44 k2x2 g2", "conv bf16 NCHW n1 c35 i9x9 m33 k3x3",
    "conv i8>i32 NHWC n1 c20 i9x9 m33 k3x3", "conv i64 NCHW n1 c3 i9 m17 k1",
])  # fmt: skip
def test_dense_weights_stream_in_order(line: str, level: str | None) -> None:
    w, forms, s = _packed(line, "direct", level)
    p = s.problem
    ((key, packed),) = forms.items()
    of_groups = w.reshape(p.groups, p.m // p.groups, p.c // p.groups, -1)
    arith = ARITHMETIC[key[1]]
    assert packed.tolist() == _streamed(of_groups, lanes(s.target, arith), key[3], arith.channels)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", [
    "conv f32 NCHW n1 c35 i9x9 m70 k3x3 p1", "conv i16>i32 NHWC n1 c36 i9x9 m44 k3x3 s2",
    "conv i16>i32 NHWC n1 c40 i9x9 m20 k1x1", "conv i16>i32 NCHW n1 c7 i9x9 m33 k2x2",
    "conv u8*i8>i32 NHWC n1 c23 i9x9 m20 k1x1",
])  # fmt: skip
def test_weights_that_were_let_go_are_put_together_again(line: str, level: str | None) -> None:
    p = Problem.parse(line)
    w = np.random.default_rng(0).integers(-90, 91, p.w_shape).astype(p.w_dtype.numpy)
    with nullcontext() if level is None else restricted(level):
        layer = Layer(lambda n, i: p, w.copy(), layout=p.layout, algorithm="direct" if p.x == "f32" else "dots")
        layer(_input(p))
        kept = layer.weights.let_go()
        np.testing.assert_array_equal(layer.weights.given(), w)
    assert kept or p.x == "u8"  # of pairs of 16 bits numbers of 8 are no copy


@pytest.mark.parametrize("change", [
    lambda w: w[::-1, :, ::-1], lambda w: np.broadcast_to(w[:1], w.shape), lambda w: np.asfortranarray(w),
    lambda w: np.ascontiguousarray(w.transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1), lambda w: np.repeat(w, 2, 1)[:, ::2],
])  # fmt: skip
@pytest.mark.parametrize("algorithm", ["direct", "winograd", "generic"])
def test_any_strides_pack_alike(algorithm: str, change: Any) -> None:
    p = Problem.parse("conv f32 NCHW n1 c20 i9x9 m40 k3x3 p1x1")
    given = change(np.random.default_rng(0).standard_normal(p.w_shape, np.float32))
    x = _input(p)
    found = []
    for w in (given, np.ascontiguousarray(given)):
        layer = Layer(lambda n, i: p, w, None, algorithm=algorithm, own=False)
        layer(x)
        found.append(_forms(layer))
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][key], found[1][key]) for key in found[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", [
    "conv f32 NCHW n1 c35 i21x30 m40 k3x3 p1x1", "conv f64 NCHW n1 c17 i21x30 m20 k3x3 p1x1 g1",
    "conv f32 NHWC n1 c16 i7x9x30 m20 k3x3x3 p1x1x1", "conv f32 NCHW n1 c32 i900 m32 k4 g2",
    "conv f32 NCHW n1 c9 i40x40 m8 k2x2",
])  # fmt: skip
def test_transformed_weights_are_rounded_once(line: str, level: str | None) -> None:
    w, kept, s = _packed(line, "winograd", level)
    p = s.problem
    (form,) = winograd_forms(s)
    assert isinstance(form, WinogradForm)
    boxes = form.parts[0].boxes
    assert boxes is not None
    case = boxes.case
    arith = ARITHMETIC[p.x]
    lane, m, c = lanes(s.target, arith), p.m // p.groups, p.c // p.groups
    inner = case.sweep[-1].taps * (case.sweep[-2].taps if case.transformed == 2 else 1)
    spread = w.reshape(p.groups, m, c, -1, inner).astype(np.longdouble)
    points = np.einsum("pt,gmcot->gpocm", np.kron(case.y.weights, case.x.weights).astype(np.longdouble), spread)
    outer = points.shape[2]
    (packed,) = (array for key, array in kept.items() if key[0] == "winograd")
    rows = packed.reshape(p.groups, -1)
    scale = math.prod(np.abs(scheme.weights).sum(1).max() for scheme in (case.y, case.x)) * 9
    of_blocks = []
    for block in range(case.blocks):
        first = block * case.vectors * lane
        width = (case.vectors if block < case.blocks - 1 else case.last_vectors) * lane
        some = points[..., first : first + width]
        some = np.pad(some, [(0, 0)] * 4 + [(0, width - some.shape[-1])])
        of_blocks.append(np.concatenate([
            some[:, :, :, f : f + 16].reshape(*points.shape[:2], -1) for f in range(0, c, 16)
        ], axis=2))  # fmt: skip
    wanted = np.concatenate([
        of_block[:, point] for first in range(0, case.blocks, boxes.together) for point in range(points.shape[1])
        for of_block in of_blocks[first : first + boxes.together]
    ], axis=1)  # fmt: skip
    error = np.abs(rows - wanted)
    eps = np.finfo(packed.dtype).eps
    assert (error <= np.abs(wanted) * eps / (2 if p.x == "f32" else 0.25) + scale * outer * 2e-16).all()


def test_threads_pack_alike() -> None:
    for algorithm in ("direct", "winograd"):
        line = "conv f32 NCHW n1 c300 i16x16 m300 k3x3 p1x1"
        _, one, _ = _packed(line, algorithm, None)
        _, two, _ = _packed(line, algorithm, None, threads=2)
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize(("kind", "converted"), [("f32", 0), ("f16", 2)])
def test_weights_that_are_kept_for_repairs_count_if_they_are_copies(kind: str, converted: int) -> None:
    """f16 weights are kept as f32, twice as large; f32 ones are there already."""
    p = Problem.parse(f"conv {kind} NCHW n1 c32 i20x20 m32 k3x3 p1x1")
    w = np.ones(p.w_shape, p.w_dtype.numpy)
    layer = Layer(lambda n, i: p, w, None, algorithm="winograd", threads=1)
    layer(np.zeros(p.x_shape, p.x_dtype.numpy))
    (packed,) = (form for key, form in layer.weights._forms.items() if key[0] == "winograd")
    assert layer.packed_bytes == w.nbytes * (1 + converted) + packed.nbytes
