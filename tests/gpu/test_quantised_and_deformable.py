"""Integers with zero points and scales, sampled and causal convolutions: every kernel for them, on the emulator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from on_virtual_gpu import all_forms, check, exactly, nth, one_each, seeded
from virtual_gpu import Libcuda, virtual_gpu

import polyconv
from polyconv.conformance.operands import operands
from polyconv.errors import ArgumentError, DtypeError
from polyconv.gpu import forms as forms_file
from polyconv.gpu import layer as layer_file
from polyconv.gpu.arrays import to_gpu
from polyconv.gpu.forms import Form, Job
from polyconv.gpu.layer import DeviceLayer, compute
from polyconv.gpu.plan import choose
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Libcuda]:
    monkeypatch.setattr(layer_file, "_TIMED_SECONDS", 0.0)  # the emulator has no clock: the fewest turns will do
    with virtual_gpu() as found:
        yield found


def check_forms(line: str, kind: str = "normal") -> set[str]:
    """Compute a problem by a form of every shape; the algorithms that took it."""
    found = one_each(all_forms(line, kind=kind))
    for form in found:
        check(line, exactly(form), kind=kind)
    return {form.algorithm for form in found}


# -- zero points and scales --------------------------------------------------------------------------

SUMS = ["u8>i32", "i8>i32", "u8*i8>i32", "i8*u8>i32"]
RESCALED = ["u8", "i8", "u8*i8", "i8*u8>u8", "u8*i8>i8", "u8*i8>i16", "u8*i8>i32"]
SCALES = "zx=t zw=t zy=t sx=t sw=c sy=t"


FIELDS = ["n2 c6 i5x4 m10 k3x2 p1 g2 b1", "n1 c3 i9 m5 k3 p2 d2 r1", "n1 c8 i4x3 m8 k3x3 p1 g8 b1"]
"""Of a matrix product, of few input channels, of one a group."""
POINTS = ["zx=t zw=c", "zx=t", "zw=t"]


@pytest.mark.parametrize(("at", "types"), list(enumerate(SUMS)))
def test_zero_points(gpu: Libcuda, at: int, types: str) -> None:
    """What padding would read is the zero point: it adds nothing."""
    for i, fields in enumerate(FIELDS):
        layout = ("NCHW", "NHWC")[(at + i) % 2]
        check(f"conv {types} {layout} {fields} {POINTS[(at + i) % 3]}", nth(i), kind="spread")


@pytest.mark.parametrize(("at", "types"), list(enumerate(RESCALED)))
def test_rescaled_sums(gpu: Libcuda, at: int, types: str) -> None:
    for i, fields in enumerate(FIELDS):
        layout, quantities = ("NCHW", "NHWC")[(at + i) % 2], SCALES if i else "sx=t sw=c sy=t"
        check(f"conv {types} {layout} {fields} {quantities}", nth(i), kind="spread")


@pytest.mark.parametrize(("at", "types"), list(enumerate(["u8*i8>u8", "i8", "u8", "i8*u8>u8"])))
def test_residuals_with_scales(gpu: Libcuda, at: int, types: str) -> None:
    """A residual of bytes and a scaled result are added as what they stand for."""
    for i, fields in enumerate(FIELDS):
        layout, zeros = ("NCHW", "NHWC")[(at + i) % 2], ("zr=t zs=t", "zs=t", "")[(at + i) % 3]
        fields = fields.removesuffix(" r1")
        check(f"conv {types} {layout} {fields} r1 {SCALES} {zeros} sr=t ss=t", nth(i), kind="spread")


@pytest.mark.parametrize("line", [
    f"conv u8*i8 NHWC n1 c12 i4x5 m21 k3x2 p1 b1 {SCALES}", f"conv u8*i8 NCHW n1 c3 i7x6 m12 k3x3 s2 p1 b1 {SCALES}",
    f"conv u8 NHWC n1 c8 i5x4 m8 k3x3 p1 g8 b1 {SCALES}", "conv u8*i8 NHWC n1 c32 i5x3 m24 k3x2 p1 b1 sx=t sw=c sy=t",
    "conv_transpose u8*i8 NHWC n1 c8 i5x8 m12 k3x3 s2 p1 g2 b1 zx=t zw=c zy=t sx=t sw=c sy=t",
    "conv_transpose u8*i8 NHWC n1 c8 i5x4 m12 k3x3 s2 p1 g2 b1 zx=t zw=c zy=t sx=t sw=c sy=t",
])  # fmt: skip
def test_every_form_of_quantised_layers(gpu: Libcuda, line: str) -> None:
    assert check_forms(line, "spread")


BYTES = [
    "conv u8*i8 NHWC n1 c32 i7x5 m24 k3x3 p1 b1 sx=t sw=c sy=t", "conv u8*i8>i32 NHWC n1 c32 i5x4 m10 k3x2 p1 zx=t",
    "conv i8*u8>i32 NCHW n2 c12 i5x4 m21 k3x2 p1 d2 b1 zx=t zw=c", "conv u8>i32 NHWC n1 c5 i9 m6 k3 p2:0 zw=t",
    f"conv i8 NHWC n1 c64 i4x5 m20 k3x2 p1 g2 {SCALES}", f"conv u8*i8>u8 NHWC n1 c48 i6x5 m40 k1x1 b1 r1 {SCALES}",
    "conv u8 NHWC n1 c7 i6x5 m6 k3x3 p2 overflow=saturate zx=3 zw=250",
    "conv_transpose u8*i8>i32 NCHW n1 c20 i5x4 m6 k3x3 s2 p1 b1 zx=t zw=t",
]  # fmt: skip


@pytest.mark.parametrize("line", BYTES)
def test_bytes_go_through_tensor_cores(gpu: Libcuda, line: str) -> None:
    """With zero points, too: by every form, whose sums may be shared by blocks."""
    for form in one_each(all_forms(line, kind="spread"), "gemm"):
        gpu.launched.clear()
        check(line, exactly(form), kind="spread")
        assert all("mma.sync" in text for text in gpu.launched if ".entry convolution" in text)


@pytest.mark.parametrize(("types", "x", "w", "zx", "zw"), [
    ("u8*i8", 255, -128, 0, 127), ("u8", 255, 255, 0, 0), ("u8", 0, 0, 255, 255), ("i8", -128, -128, 127, 127),
])  # fmt: skip
def test_ends_of_bytes(gpu: Libcuda, types: str, x: int, w: int, zx: int, zw: int) -> None:
    p = Problem.parse(f"conv {types}>i32 NHWC n1 c80 i5x6 m9 k3x3 p1 zx=t zw=c")
    full = np.full(p.x_shape, x, p.x_dtype.numpy), np.full(p.w_shape, w, p.w_dtype.numpy)
    given = {"zx": np.array(zx, p.x_dtype.numpy), "zw": np.full(9, zw, p.w_dtype.numpy)}
    got = compute(p, *map(to_gpu, full), quantities={name: to_gpu(a) for name, a in given.items()}).numpy()
    np.testing.assert_array_equal(got, oracle(p, *full, quantities=given))


def test_weights_whose_zero_points_are_all_zero_have_none(gpu: Libcuda) -> None:
    """As models bring them: no kernel sums inputs for them, and the result is the same."""
    p = Problem.parse("conv u8*i8>i32 NHWC n1 c16 i5x6 m9 k3x3 p1 zx=t zw=c")
    made = operands(p, seeded("zeros"), "spread")
    given = {"zx": made.quantities["zx"], "zw": np.zeros(9, np.int8)}
    layer = DeviceLayer(p.with_extents, to_gpu(made.w), layout="NHWC", quantities=given)
    np.testing.assert_array_equal(layer(to_gpu(made.x)).numpy(), oracle(p, made.x, made.w, quantities=given))
    assert not any("u8.s8" in text and "16843009" in text for text in gpu.launched), "a product with ones"


@pytest.mark.parametrize("line", [
    "conv i16>i64 NHWC n1 c4 i6 m5 k3 p1 zx=t zw=c", "conv u8>i64 NCHW n1 c4 i6x5 m5 k3x3 p1 zx=t zw=t",
    "conv i8 NHWC n1 c5 i6x5 m6 k3x3 p1 zx=t zw=t overflow=saturate", "conv u8 NHWC n1 c5 i6x5 m6 k3x3 zx=3 zw=250",
    "conv u8*i8 NHWC n1 c5 i6x5 m6 k3x3 p1 zx=3 zw=-2 zy=7 sx=0.5 sw=0.25 sy=3.0",
    "conv_transpose u8*i8>i32 NHWC n1 c4 i5x4 m6 k3x3 s2 p1 zx=t zw=t",
])  # fmt: skip
def test_other_types_and_constant_quantities(gpu: Libcuda, line: str) -> None:
    check(line, nth(0), kind="spread")


def test_quantised_arrays_that_32_bits_cannot_address(gpu: Libcuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms_file, "MOST_BYTES", 0)
    check(f"conv u8*i8 NCHW n2 c6 i5x7 m4 k3x2 s2x1 p1 g2 b1 {SCALES}")
    check("conv i8*u8>i32 NHWC n1 c6 i5x7 m4 k3x2 p1 zx=t zw=c")


def test_halves_are_rounded_to_even(gpu: Libcuda) -> None:
    """Sums 1, 3, 5, 7 times one half; then far beyond the ends of the type, and what is no number."""
    p = Problem.parse("conv i8 NHWC n1 c1 i4 m1 k1 zy=t sx=t sw=t sy=t")
    x, w = np.array([1, 3, -5, 7], np.int8).reshape(1, 4, 1), np.ones((1, 1, 1), np.int8)
    for scale, want in ((0.5, [0, 2, -2, 4]), (3e38, [127, 127, -128, 127]), (-3e38, [-128, -128, 127, -128])):
        given = {"zy": np.int8(0), "sx": np.float32(scale), "sw": np.float32(1), "sy": np.float32(1)}
        got = compute(p, to_gpu(x), to_gpu(w), quantities=given).numpy()
        assert got.reshape(-1).tolist() == want
        np.testing.assert_array_equal(got, oracle(p, x, w, quantities=given))
    given["sx"] = np.float32(np.nan)
    compute(p, to_gpu(x), to_gpu(w), quantities=given)


def test_a_layer_keeps_zero_points_and_scales(gpu: Libcuda) -> None:
    p = Problem.parse(f"conv u8*i8 NHWC n2 c5 i6x5 m6 k3x3 p1 b1 {SCALES}")
    made = operands(p, seeded("layer"), "normal")
    there = {name: to_gpu(a) for name, a in made.quantities.items()}
    layer = DeviceLayer(p.with_extents, to_gpu(made.w), to_gpu(made.bias), layout="NHWC", quantities=there)
    want = oracle(p, made.x, made.w, made.bias, quantities=made.quantities)
    x = to_gpu(made.x)
    for _ in range(3):  # the second and third go past all that the first found
        np.testing.assert_array_equal(layer(x).numpy(), want)
    out = to_gpu(np.zeros_like(want))
    assert layer(x, out=out) is out
    np.testing.assert_array_equal(out.numpy(), want)
    assert layer.plan(x.shape, rigor="measure").source == "measured"
    np.testing.assert_array_equal(layer(x).numpy(), want)


def test_quantities_of_another_kind(gpu: Libcuda) -> None:
    p = Problem.parse("conv u8*i8>i32 NHWC n1 c5 i6x5 m6 k3x3 zx=t zw=c")
    x, w = to_gpu(np.ones((1, 6, 5, 5), np.uint8)), to_gpu(np.ones((6, 5, 3, 3), np.int8))
    zero = np.uint8(1)
    with pytest.raises(ArgumentError, match="zw is given at run time by this problem, but was not passed"):
        compute(p, x, w, quantities={"zx": zero})
    with pytest.raises(DtypeError, match="zx has type int8 where u8 is needed"):
        compute(p, x, w, quantities={"zx": np.int8(1), "zw": np.int8(1)})
    with pytest.raises(ArgumentError, match=r"zw has shape \(5,\), this convolution needs one value, or 6 of them"):
        compute(p, x, w, quantities={"zx": zero, "zw": to_gpu(np.ones(5, np.int8))})
    with pytest.raises(DtypeError, match="zw has type u8 where i8 is needed"):
        compute(p, x, w, quantities={"zx": zero, "zw": to_gpu(np.ones(6, np.uint8))})


# -- deformable --------------------------------------------------------------------------------------

SAMPLED = [
    "n2 c6 i5x4 m5 k3x2 p1x0:2 og2 mask b1", "n1 c8 i6x5 m12 k3x3 s2x1 p1 d2x1 g4 og2", "n1 c4 i4x3 m34 k2x2 g2 og4 r1",
    "n1 c12 i5x4 m6 k1x3 p2 g3 og4 mask act=Relu", "n1 c3 i2x3 m1 k5x5 p4 og1", "n0 c3 i4x4 m2 k2x2 og1",
    "n1 c0 i4x4 m2 k2x2 og1 b1", "n1 c2 i0x4 m3 k1x1 p2 og1 b1",
]  # fmt: skip


@pytest.mark.parametrize("fields", SAMPLED)
def test_deformable(gpu: Libcuda, fields: str) -> None:
    for i, types in enumerate(("f32", "f16", "bf16", "f64", "f16>f32")):
        if types == "f32" or (len(fields) + i) % 2:
            check(f"deform_conv {types} {('NCHW', 'NHWC')[(len(fields) + i) % 2]} {fields}", nth(i))


def test_every_form_of_deformable_layers(gpu: Libcuda) -> None:
    line = "deform_conv f32 NHWC n1 c4 i4x5 m35 k3x2 p1 og2 mask b1"
    assert check_forms(line) == {"deformable"}
    assert len(one_each(all_forms(line))) == 4


def test_samples_of_what_is_not_finite(gpu: Libcuda) -> None:
    """A corner of weight 0 is not read, and a sample outside the image is 0, times an infinite weight no number."""
    for fields in ("NCHW n1 c4 i6x5 m4 k3x3 p1 og1", "NHWC n1 c4 i6x5 m4 k3x3 p1 og1 mask"):
        check(f"deform_conv f32 {fields}", kind="nonfinite")


def test_offsets_that_are_no_places(gpu: Libcuda) -> None:
    p = Problem.parse("deform_conv f32 NCHW n1 c1 i3x3 m1 k1x1 og1")
    offset = np.zeros((1, 2, 3, 3), np.float32)
    offset[0, 0] = [[np.nan, np.inf, -np.inf], [1e30, -1e30, -1.0], [0.5, 2.5, -0.5]]
    x, w = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3), np.ones((1, 1, 1, 1), np.float32)
    got = compute(p, to_gpu(x), to_gpu(w), offset=to_gpu(offset)).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, oracle(p, x, w, offset=offset))


def test_deformable_operands_that_do_not_fit(gpu: Libcuda) -> None:
    p = Problem.parse("deform_conv f32 NCHW n1 c2 i4x4 m2 k2x2 og1 mask")
    x, w = to_gpu(np.ones((1, 2, 4, 4), np.float32)), to_gpu(np.ones((2, 2, 2, 2), np.float32))
    offset, mask = to_gpu(np.zeros((1, 8, 3, 3), np.float32)), to_gpu(np.ones((1, 4, 3, 3), np.float32))
    with pytest.raises(ArgumentError, match="offset is missing"):
        compute(p, x, w, mask=mask)
    with pytest.raises(ArgumentError, match="mask is missing"):
        compute(p, x, w, offset=offset)
    with pytest.raises(ArgumentError, match=r"offset has shape \(1, 4, 3, 3\), this convolution needs \(1, 8, 3, 3\)"):
        compute(p, x, w, offset=mask, mask=mask)
    with pytest.raises(ArgumentError, match="mask lies in the CPU's memory, x on a GPU"):
        compute(p, x, w, offset=offset, mask=np.ones((1, 4, 3, 3), np.float32))
    with pytest.raises(ArgumentError, match="out overlaps mask"):
        compute(Problem.parse("deform_conv f32 NCHW n1 c2 i4x4 m4 k2x2 og1 mask"), x,
                to_gpu(np.ones((4, 2, 2, 2), np.float32)), offset=offset, mask=mask, out=mask)  # fmt: skip


# -- causal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", ["f32", "f16", "bf16"])
def test_causal(gpu: Libcuda, types: str) -> None:
    long, short = "n2 c5 i9 m5 k4 p3:0 g5 b1 act=Silu", "n1 c3 i2 m3 k6 p5:0 g3"
    for fields in (long, short, "n2 c1 i7 m1 k1", "n0 c2 i3 m2 k2 p1:0 g2"):
        check(f"causal_conv {types} NCHW {fields}")


def test_operands_that_lie_elsewhere(gpu: Libcuda) -> None:
    """What is not of the input's library is looked at anew in every call: it may lie in the CPU's memory."""
    x, w, r = (np.ones(shape, np.float32) for shape in ((1, 2, 4, 4), (2, 2, 1, 1), (1, 2, 4, 4)))
    layer = polyconv.Conv(to_gpu(w))
    for given in ({"residual": r}, {"out": r}):
        with pytest.raises(ArgumentError, match="lies in the CPU's memory, x on a GPU"):
            layer(to_gpu(x), **given)


def test_causal_operands_that_do_not_fit(gpu: Libcuda) -> None:
    p = Problem.parse("causal_conv f32 NCHW n1 c2 i5 m2 k3 p2:0 g2")
    x, w = to_gpu(np.ones((1, 2, 5), np.float32)), to_gpu(np.ones((2, 1, 3), np.float32))
    with pytest.raises(ArgumentError, match=r"past_state has shape \(1, 2, 3\), this convolution needs \(1, 2, 2\)"):
        compute(p, x, w, past=to_gpu(np.ones((1, 2, 3), np.float32)))
    with pytest.raises(ArgumentError, match="out overlaps input"):
        compute(p, x, w, out=x)


# -- plans and layers --------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [
    f"conv u8*i8 NHWC n1 c32 i14x14 m32 k3x3 p1 b1 {SCALES}", "deform_conv f32 NCHW n1 c32 i14x14 m32 k3x3 p1 og1 mask",
    "causal_conv f32 NCHW n1 c64 i100 m64 k4 p3:0 g64",
])  # fmt: skip
def test_plans(gpu: Libcuda, line: str) -> None:
    """A plan names the form that a call takes for operands without gaps."""
    taken: list[Form] = []

    def take(job: Job) -> Form:
        taken.append(choose(job))
        return taken[-1]

    check(line, take)
    from polyconv.gpu.device import device
    from polyconv.gpu.plan import plan

    assert plan(Problem.parse(line), device()).algorithm == taken[0].algorithm


def test_public_layers_on_the_gpu(gpu: Libcuda) -> None:
    """``Conv`` of weights on a GPU shows them, computes, plans and measures."""
    rng = seeded("layers")
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 6, 7), (8, 4, 3, 3), (8,)))
    there = to_gpu(w)
    layer = polyconv.Conv(there, to_gpu(b), pads=1, activation="Relu")
    np.testing.assert_array_equal(layer.weight.numpy(), w)
    np.testing.assert_array_equal(layer.bias.numpy(), b)
    assert layer.weight is not there, "a layer owns its weights"
    want = polyconv.conv(x, w, b, pads=1, activation="Relu")
    np.testing.assert_allclose(layer(to_gpu(x)).numpy(), want, rtol=0, atol=1e-4)  # sums of 36 numbers near 1
    assert layer.plan((1, 4, 6, 7)).target.startswith("cuda")
    assert layer.plan((1, 4, 6, 7), rigor="measure").source == "measured"
    assert "conv" in repr(layer)
    turned = polyconv.ConvTranspose(to_gpu(np.ascontiguousarray(w.transpose(1, 0, 2, 3))))
    assert turned(to_gpu(x)).shape == (1, 8, 8, 9)
