"""Every kernel of the GPU on the emulator against the definition: numbers, bounds, races, waits, addresses.

No GPU takes part.  A result must lie within the bound that follows from its arithmetic, and the emulator must find
nothing wrong with how it came about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from on_virtual_gpu import all_forms, check, exactly, nth, on_gpu, one_each, seeded, shifted, wrong
from virtual_gpu import Libcuda, virtual_gpu

import polyconv
from polyconv.conformance import on_gpu as campaign
from polyconv.conformance.judge import expected
from polyconv.conformance.operands import operands
from polyconv.conformance.trial import drawn
from polyconv.gpu import forms as forms_file
from polyconv.gpu.arrays import GpuArray, to_gpu
from polyconv.gpu.forms import Form
from polyconv.gpu.kernels.depthwise import Depthwise
from polyconv.gpu.kernels.gemm import Gemm, Tile
from polyconv.gpu.layer import compute
from polyconv.problem.problem import Problem

Array = NDArray[Any]

@pytest.fixture
def gpu() -> Iterator[Libcuda]:
    with virtual_gpu() as found:
        yield found


# -- every tile of every unit ------------------------------------------------------------------------

ARITHMETIC = [
    ("f32", "fast"), ("f32", "tf32"), ("f32", "strict"), ("f16", "fast"), ("bf16", "fast"), ("f64", "fast"),
    ("i8", "fast"), ("u8", "fast"), ("u8*i8>i32", "fast"), ("i8*u8>i32", "fast"), ("u32", "fast"), ("i64", "fast"),
]  # fmt: skip


def _tile(form: Form) -> Tile:
    kernel = form.steps[0].kernel
    assert isinstance(kernel, Gemm)
    return kernel.tile


def check_shapes(line: str, accuracy: str, like: str = "H100") -> list[Form]:
    """Compute a problem by forms of every shape."""
    found = one_each(all_forms(line, accuracy, like))
    with virtual_gpu(like):
        for form in found:
            check(line, exactly(form), accuracy=accuracy)
    return found


@pytest.mark.parametrize(("types", "accuracy"), ARITHMETIC)
def test_all_tiles_and_splits(types: str, accuracy: str) -> None:
    """Sizes that are no multiple of any tile, sums that are no multiple of a stage."""
    found = check_shapes(f"conv {types} NHWC n1 c20 i7x9 m37 k3x3 p1", accuracy)
    assert len({_tile(f).split for f in found}) > 1 or types[1] == "8"  # sums of bytes are one stage here


@pytest.mark.parametrize(("types", "accuracy"), [("f32", "fast"), ("f32", "tf32"), ("f16", "fast")])
def test_all_tiles_of_many_channels(types: str, accuracy: str) -> None:
    units = set()
    for m in (160, 48):
        for form in check_shapes(f"conv {types} NHWC n1 c24 i9x15 m{m} k1x1", accuracy):
            units.add((_tile(form).unit, _tile(form).columns))
    assert {("group", n) for n in (8, 16, 32, 48, 64, 80, 128, 160)} <= units


@pytest.mark.parametrize("types", ["f32", "f16", "i8", "f64"])
def test_all_forms_for_ampere(types: str) -> None:
    """No instruction of sm_90 reaches the older architecture."""
    line = f"conv {types} NHWC n1 c20 i7x9 m37 k3x3 p1"
    found = check_shapes(line, "fast", "A100")
    assert {_tile(f).unit for f in found} <= {"warp", "scalar"}
    with virtual_gpu("A100") as gpu:
        check(line)
        assert all(word not in text for text in gpu.launched for word in ("wgmma", "mapa", "cluster", "cp.async.bulk"))
        assert all(".target sm_80" in text for text in gpu.launched)


# -- patches of images, first layers -----------------------------------------------------------------


PATCHES = [
    ("conv f16 NHWC n1 c64 i9x10 m64 k3x3 p1 b1", "fast"), ("conv f32 NHWC n2 c32 i6x11 m5 k3x3 p1", "fast"),
    ("conv f32 NCHW n1 c64 i8x9 m32 k1x5 p0x2 r1", "tf32"), ("conv bf16 NHWC n1 c64 i7x17 m80 k3x2 d2x3 p2", "fast"),
    ("conv f16 NHWC n1 c64 i3x9x7 m16 k2x3x3 p1 s2x1x1", "fast"),
    ("conv_transpose f16 NHWC n1 c64 i5x6 m8 k4x4 s2 p1", "fast"),
    ("conv f32 NHWC n1 c32 i7x8 m64 k3x3", "fast"), ("conv f16 NHWC n1 c64 i17x18 m7 k7x7 p3 act=Relu", "fast"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "accuracy"), PATCHES)
def test_patches(gpu: Libcuda, line: str, accuracy: str) -> None:
    found = one_each(all_forms(line, accuracy), "patch")
    assert found
    for form in found[len(line) % 2 :: 2] or found:
        check(line, exactly(form), accuracy=accuracy)


def test_patches_of_unlike_sweeps() -> None:
    """A transposed convolution may be sweeps with other numbers of taps, so other patches: but a call has one map."""
    check_shapes("conv_transpose f16 NHWC n1 c64 i5x6 m8 k3x3 s2 p1", "fast")


def test_patches_where_numbers_are_not_finite(gpu: Libcuda) -> None:
    for line in ("conv f16 NHWC n1 c64 i9x10 m64 k3x3 p1", "conv f32 NHWC n1 c32 i9x10 m32 k3x3 p1"):
        check(line, exactly(one_each(all_forms(line), "patch")[1]), kind="nonfinite")


FIRST_LAYERS = [
    "n2 c3 i17x15 m20 k7x7 s2 p3 b1", "n1 c1 i9x8 m33 k3x3 p1", "n1 c3 i16x12 m5 k4x4 s4",
    "n1 c4 i6x7 m16 k3x3 g2 p1 r1",
    "n1 c2 i5x4x6 m7 k3x3x3 p1", "n1 c4 i30 m10 k9 s2 d2 act=Sigmoid",
]  # fmt: skip


@pytest.mark.parametrize("types", ["f32", "f16", "u8>i32"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_first_layers(gpu: Libcuda, layout: str, types: str) -> None:
    for i, fields in enumerate(FIRST_LAYERS):
        line = f"conv {types} {layout} {fields}"
        if types[0] == "u":
            line = line.removesuffix(" act=Sigmoid")
        found = one_each(all_forms(line), "direct")
        assert found
        check(line, exactly(found[i % len(found)]))
        check(line, exactly(found[-i % len(found)]))


# -- geometry ----------------------------------------------------------------------------------------

GEOMETRY = [
    "n1 c1 i1 m1 k1", "n1 c1 i1x1 m1 k1x1", "n1 c3 i1x1 m5 k3x3 p1", "n2 c4 i5 m6 k3", "n3 c2 i1x9 m3 k1x4 p0:0x1",
    "n1 c8 i5x5 m8 k5x5", "n1 c3 i11x10 m8 k7x7 s2 p3", "n1 c3 i16x16 m6 k4x4 s4", "n2 c6 i9x8 m10 k3x2 s2x3 p1:0x2:1",
    "n1 c4 i12x13 m4 k3x3 d3x2 p2", "n1 c4 i9x9 m4 k3x3 p-1", "n1 c5 i4x5x6 m7 k2x3x2 p1x0x1",
    "n1 c4 i6x5x4 m3 k3x3x3 s2x1x2 d1x2x1 p1",
    "n1 c2 i3x3x2x3 m3 k2x2x1x2 p1", "n1 c16 i8 m12 k3 g4 p1", "n2 c12 i6x5 m8 k3x3 g2 p1", "n1 c40 i3x4 m72 k1x1 g8",
    "n1 c64 i6x6 m64 k3x3 p1", "n1 c130 i5x3 m66 k3x1 p1x0", "n1 c32 i70 m20 k16 s4", "n5 c8 i4x4 m16 k2x2",
    "n1 c7 i2x2 m9 k5x5 p4",
]  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("fields", GEOMETRY)
def test_geometry(gpu: Libcuda, fields: str, layout: str) -> None:
    for types in ("f32", "f16"):
        check(f"conv {types} {layout} {fields}")


TRANSPOSED = [
    "n1 c4 i5 m6 k4 s2 p1", "n2 c5 i4x3 m7 k3x3 s2 p1 op1", "n1 c8 i3x3 m4 k2x2 s2", "n1 c4 i4x4 m4 k3x3",
    "n1 c6 i3x4 m8 k5x3 s3x2 p2x1 g2", "n1 c3 i4x3 m5 k2x2 s3", "n1 c4 i2x3x2 m3 k3x2x3 s2x1x2 p1x0x1",
    "n1 c4 i4x4 m4 k3x3 d2 s2",
    "n1 c6 i5x5 m6 k4x4 s2 p1 g6",
]  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("fields", TRANSPOSED)
def test_transposed(gpu: Libcuda, fields: str, layout: str) -> None:
    check(f"conv_transpose f32 {layout} {fields}")


DEPTHWISE = [
    "n1 c8 i9x10 m8 k3x3 g8 p1", "n2 c16 i7x7 m16 k7x7 g16 p3", "n1 c24 i5x6 m24 k3x3 g24 s2 p1",
    "n1 c6 i11 m6 k5 g6 d2",
    "n1 c4 i4x5x6 m4 k3x3x3 g4 p1", "n1 c5 i8x7 m10 k3x2 g5 p1x0", "n1 c1 i12x11 m1 k3x3 p1",
    "n1 c32 i1x1 m32 k1x1 g32",
    "n1 c8 i20x3 m8 k13x1 g8 p6x0", "n1 c16 i5x9 m16 k1x11 g16 p0x5",
]  # fmt: skip


@pytest.mark.parametrize("types", ["f32", "f16", "bf16", "f64", "i8", "u8>i32", "i16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_depthwise(gpu: Libcuda, types: str, layout: str) -> None:
    for i, fields in enumerate(DEPTHWISE if types in ("f32", "f16") else DEPTHWISE[::3]):
        check(f"conv {types} {layout} {fields}", nth(5 * i))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_all_forms_of_depthwise(layout: str) -> None:
    for types in ("f32", "f16"):
        found = check_shapes(f"conv {types} {layout} n1 c24 i8x9 m24 k3x3 g24 p1", "fast")
        kernels = [form.steps[0].kernel for form in found]
        widths = {kernel.channels for kernel in kernels if isinstance(kernel, Depthwise)}
        assert widths >= ({1, 2, 4} if layout == "NHWC" else {1})


@pytest.mark.parametrize("types", ["f32", "f16", "bf16", "f64", "i8>i32", "u8", "i16", "u32", "i64", "u64"])
def test_the_kernel_for_everything(gpu: Libcuda, monkeypatch: pytest.MonkeyPatch, types: str) -> None:
    """What takes arrays that 32 bits cannot address."""
    monkeypatch.setattr(forms_file, "MOST_BYTES", 0)
    check(f"conv {types} NCHW n2 c6 i5x7 m4 k3x2 s2x1 p1 g2 b1", nth(0))
    check(f"conv_transpose {types} NHWC n1 c4 i4x3 m6 k3x3 s2 p1", nth(0))
    assert gpu.launched


@pytest.mark.parametrize("line", [
    "conv_transpose u8*i8>i32 NHWC n2 c12 i0x33 m12 k3x3 g6 y3x38 r1 act=Clip(3,60)",
    "conv f32 NCHW n0 c5 i6x6 m7 k3x3",
    "conv_transpose f32 NCHW n1 c5 i0 m7 k3 y4 b1", "conv f32 NCHW n1 c5 i0x4 m7 k3x3 p3 b1",
    "conv f16 NCHW n2 c0 i4x4 m3 k1x1 b1", "conv f32 NHWC n1 c6 i0x4 m6 k3x3 g6 p3 b1",
])  # fmt: skip
def test_nothing_to_multiply(gpu: Libcuda, line: str) -> None:
    check(line)


# -- how operands lie --------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [
    "conv f32 NCHW n2 c16 i6x7 m12 k3x3 p1 b1 r1", "conv f16 NCHW n1 c16 i6x7 m24 k3x3 p1",
    "conv f32 NCHW n1 c8 i6x7 m8 k3x3 g8 p1",
    "conv f16 NCHW n1 c10 i6x7 m6 k1x1",
])  # fmt: skip
def test_planes_that_lie_channels_last(gpu: Libcuda, line: str) -> None:
    check(line, channels_last=True)
    assert not any(".entry turn" in text for text in gpu.launched)


@pytest.mark.parametrize("types", ["f32", "f16", "i8"])
@pytest.mark.parametrize("slack", [0, 1, 2, 8])
def test_operands_at_any_address(gpu: Libcuda, types: str, slack: int) -> None:
    """Elements of the result that are not 16-byte aligned are stored one by one."""
    for line in (f"conv {types} NHWC n1 c16 i5x6 m16 k3x3 p1 r1", f"conv {types} NHWC n1 c16 i5x6 m16 k3x3 g16 p1 r1"):
        p = Problem.parse(line)
        made = operands(p, seeded(line), "small")
        assert made.residual is not None
        x, w, r, out = (shifted(a, slack) for a in (made.x, made.w, made.residual, np.zeros_like(made.residual)))
        compute(p, x, w, None, r, out=out)
        assert wrong(p, made, out.numpy(), "fast") is None


def test_views_with_strides_of_all_signs(gpu: Libcuda) -> None:
    p = Problem.parse("conv f32 NCHW n2 c4 i6x5 m6 k3x2 p1")
    made = operands(p, seeded("strides"), "normal")
    shapes = made.x.shape, made.w.shape, expected(p, made).values.shape
    for signs in ((2, 2, 2, 2), (-2, 2, 2, 2), (2, -2, 2, -2), (2, 2, -2, 2), (-2, -2, -2, -2)):
        index = tuple(slice(1, None, s) if s > 0 else slice(-2, None, s) for s in signs)
        x, w, out = (np.full([2 * n + 1 for n in shape], np.nan, np.float32)[index] for shape in shapes)
        x[...], w[...] = made.x, made.w
        there = to_gpu(out)
        compute(p, to_gpu(x), to_gpu(w), out=there)
        assert wrong(p, made, there.numpy(), "fast") is None
        everything = GpuArray((there.memory.size // 4,), there.kind, memory=there.memory).numpy()
        assert np.isnan(everything).sum() == everything.size - out.size, "what lies between is not touched"


def test_a_residual_may_be_the_result(gpu: Libcuda) -> None:
    for line in ("conv f32 NHWC n1 c16 i5x6 m40 k3x3 p1 r1 act=Relu", "conv f32 NHWC n1 c16 i5x6 m16 k3x3 g16 p1 r1"):
        p = Problem.parse(line)
        made = operands(p, seeded(line), "normal")
        assert made.residual is not None
        out = to_gpu(made.residual)
        compute(p, to_gpu(made.x), to_gpu(made.w), None, out, out=out)
        assert wrong(p, made, out.numpy(), "fast") is None


# -- what follows the sum ----------------------------------------------------------------------------

ACTIVATIONS = ["Relu", "LeakyRelu(0.1)", "Sigmoid", "Tanh", "Clip(-1,2)", "HardSigmoid(0.2,0.5)"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("types", ["f32", "f16", "f64"])
def test_epilogues(gpu: Libcuda, types: str, activation: str) -> None:
    for fields in ("n1 c16 i5x6 m20 k3x3 p1", "n1 c8 i5x6 m8 k3x3 p1 g8"):
        check(f"conv {types} NHWC {fields} b1 r1 act={activation}")


@pytest.mark.parametrize("types", ["i8", "u8", "i8>i32", "i16", "i32", "u32", "i64", "u64", "u8*i8>i32"])
def test_integers_wrap_or_saturate(gpu: Libcuda, types: str) -> None:
    for fields in ("n1 c16 i5x6 m20 k3x3 p1", "n1 c8 i5x6 m8 k3x3 p1 g8"):
        for more in ("", " b1 act=Relu", " overflow=saturate", " r1 overflow=saturate act=Clip(0,100)"):
            check(f"conv {types} NHWC {fields}{more}", kind="spread")


@pytest.mark.parametrize("line", [
    "conv f32 NHWC n1 c16 i6x7 m20 k3x3 p1", "conv f16 NHWC n1 c16 i6x7 m20 k3x3 p1",
    "conv f32 NHWC n1 c16 i6x7 m20 k1x1 b1",
    "conv f32 NCHW n1 c8 i6x7 m8 k3x3 p1 g8", "conv f64 NHWC n1 c16 i6x7 m20 k3x3 p1",
    "conv_transpose f32 NHWC n1 c8 i5x4 m8 k3x3 s2 p1",
])  # fmt: skip
def test_what_is_not_finite_spreads_as_far_as_products_do(gpu: Libcuda, line: str) -> None:
    for accuracy in ("fast", "strict"):
        check(line, kind="nonfinite", accuracy=accuracy)


def test_large_numbers_do_not_overflow_early(gpu: Libcuda) -> None:
    """Three passes round a factor up: one near the largest number must not become Inf."""
    p = Problem.parse("conv f32 NHWC n1 c16 i3x3 m8 k1x1")
    made = operands(p, seeded("large"), "normal")
    made.x[...] = np.finfo(np.float32).max * np.sign(made.x)
    made.w[...] = made.w * 2.0**-6
    arrays = on_gpu(p, made)
    assert wrong(p, made, compute(p, *arrays).numpy(), "fast") is None


# -- bits --------------------------------------------------------------------------------------------


def test_bits_do_not_depend_on_the_batch(gpu: Libcuda) -> None:
    for types in ("f32", "f16"):
        p = Problem.parse(f"conv {types} NHWC n5 c40 i6x7 m48 k3x3 p1")
        made = operands(p, seeded(types), "normal")
        w = to_gpu(made.w)
        whole = compute(p, to_gpu(made.x), w).numpy()
        again = compute(p, to_gpu(made.x), w).numpy()
        np.testing.assert_array_equal(whole, again)
        one = replace(p, n=1)
        for i in range(5):
            np.testing.assert_array_equal(compute(one, to_gpu(made.x[i : i + 1]), w).numpy()[0], whole[i])


# -- random problems ---------------------------------------------------------------------------------


def _is_small(p: Problem) -> bool:
    return int(np.prod([e or 0 for e in p.y_shape])) * (p.c // max(1, p.groups)) * int(np.prod(p.k)) < 200_000


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_problems_by_random_forms(gpu: Libcuda, first: int) -> None:
    """What ``polyconv check --device cuda`` does, on problems that take the emulator little time."""
    found: list[str] = []
    tried = 0
    for index in range(first, first + 20):
        if _is_small(drawn(11, index).problem):
            report = campaign.run(1, 11, first=index)
            tried, found = tried + report.tried, found + report.findings
    assert not found, "\n".join(found)
    assert tried >= 3


# -- the public surface ------------------------------------------------------------------------------


def test_the_public_calls_run_on_the_gpu(gpu: Libcuda) -> None:
    p = Problem.parse("conv f32 NCHW n2 c6 i7x8 m5 k3x3 p1 b1 act=Relu")
    made = operands(p, seeded("public"), "normal")
    x, w, b, _ = on_gpu(p, made)
    got = polyconv.conv(x, w, b, pads=1, activation="Relu")
    assert isinstance(got, GpuArray)
    assert wrong(p, made, got.numpy(), "fast") is None
