"""ONNX main domain: attributes, shapes and types in, a Problem or a clear error out."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from polyconv import dialects
from polyconv.errors import ArgumentError, DtypeError, Error, Unsupported

onnx = dialects.onnx

X, W, B = (2, 4, 9, 9), (6, 4, 3, 3), (6,)
XT, WT = (2, 4, 5, 5), (4, 6, 3, 3)


def problem(op, *shapes, dtypes="f32", **more):
    types = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    return op.problem(*shapes, dtypes=types, **more)


def refused(error, *fragments):
    """Expect an error whose message holds every fragment: argument, values, way out."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*(?:{f}))" for f in fragments))


# ---- the table ----

VERSIONS = {
    "Conv": [1, 11, 22],
    "ConvTranspose": [1, 11, 22],
    "ConvInteger": [10],
    "QLinearConv": [10],
    "DeformConv": [19, 22],
    "CausalConvWithState": [27],
}


def test_every_operator_and_version():
    found = {}
    for name, version in onnx.OPERATORS:
        found.setdefault(name, []).append(version)
    assert found == VERSIONS


@pytest.mark.parametrize("name", VERSIONS)
def test_factories(name):
    factory = getattr(onnx, name)
    assert factory.name == name
    assert factory().version == VERSIONS[name][-1]
    for version in VERSIONS[name]:
        op = factory(version=version)
        assert (op.domain, op.name, op.version) == ("", name, version)
    with refused(ArgumentError, "version=2 ", name, str(VERSIONS[name][0])):
        factory(version=2)


def test_factories_are_listed_and_others_are_not():
    assert set(VERSIONS) <= set(dir(onnx))
    with pytest.raises(AttributeError, match=r"MaxPool.*Conv"):
        onnx.MaxPool  # noqa: B018


@pytest.mark.parametrize(
    ("name", "opset", "version"),
    [
        ("Conv", 1, 1),
        ("Conv", 10, 1),
        ("Conv", 11, 11),
        ("Conv", 21, 11),
        ("Conv", 30, 22),
        ("DeformConv", 20, 19),
    ],
)
def test_lookup(name, opset, version):
    assert onnx.lookup(name, opset) == version


def test_lookup_before_the_first_version():
    with refused(Unsupported, "ConvInteger", "9", "onnx"):
        onnx.lookup("ConvInteger", 9)


def test_attributes_are_kept_as_validated():
    op = onnx.Conv(version=11, strides=np.array([2, 3]), group=np.int64(2), pads=None)
    assert op.attributes == {
        "auto_pad": "NOTSET",
        "dilations": None,
        "group": 2,
        "kernel_shape": None,
        "pads": None,
        "strides": (2, 3),
    }
    assert type(op.attributes["group"]) is int
    assert repr(op) == "Conv(version=11, group=2, strides=(2, 3))"


# ---- shapes ----


def test_infer_pinned():
    op = onnx.Conv(version=11, group=1, auto_pad="SAME_LOWER", strides=[2, 2], semantics="onnx")
    assert op.infer(("N", 3, None, 224), (64, 3, 7, 7)) == (("N", 64, None, 112),)


def test_infer_counts_what_a_loop_counts():
    for n, k, s, d, b, e in product((1, 4, 7), (1, 2, 3), (1, 2, 3), (1, 2), (0, 2), (0, 1)):
        taps = (k - 1) * d + 1
        if n + b + e < taps:
            continue
        op = onnx.Conv(strides=[s], dilations=[d], pads=[b, e])
        starts = [p for p in range(0, n + b + e, s) if p + taps <= n + b + e]
        assert op.infer((1, 1, n), (1, 1, k)) == ((1, 1, len(starts)),)


@pytest.mark.parametrize(
    ("x", "w", "y"),
    [
        (("N", "C", "H", 9), (6, 4, 3, 3), ("N", 6, None, 7)),
        ((2, None, 9, 9), ("M", None, 3, 3), (2, "M", 7, 7)),
        ((0, 4, 9, 9), (6, 4, 3, 3), (0, 6, 7, 7)),
        ((2, 4, 9, 9), (6, 4, None, 3), (2, 6, None, 7)),
        ((2, 4, 9, 9), None, (2, None, None, None)),
        (None, (6, 4, 3, 3), (None, 6, None, None)),
        (None, None, None),
        ((2, 4, 2, 3), (6, 4, 3, 3), (2, 6, 0, 1)),
    ],
)
def test_infer_with_unknowns(x, w, y):
    assert onnx.Conv().infer(x, w) == (y,)


def test_infer_kernel_shape_stands_in_for_unknown_weights():
    assert onnx.Conv(kernel_shape=[3, 3]).infer((2, 4, 9, 9), (6, 4, None, "k")) == ((2, 6, 7, 7),)
    assert onnx.Conv(kernel_shape=[3, 3]).infer((2, 4, 9, 9), None) == ((2, None, 7, 7),)


def test_infer_same_keeps_no_spatial_symbol():
    assert onnx.Conv(auto_pad="SAME_UPPER").infer(("N", 4, "H", 9), W) == (("N", 6, None, 9),)


def test_infer_checks_what_is_known():
    with refused(ArgumentError, "X of shape", "5 input channels", "change group"):
        onnx.Conv().infer(("N", 5, None, None), (6, 4, None, None))
    with refused(DtypeError, "W has dtype f64", "X has f32", "astype"):
        onnx.Conv().infer(X, W, dtypes=["f32", np.float64])
    with refused(DtypeError, "X", "polyconv computes"):
        onnx.Conv().infer(X, W, dtypes=[np.complex64])
    with refused(DtypeError, "dtype 'float99' of W", "f32"):
        onnx.Conv().infer(X, W, dtypes=["f32", "float99"])


def test_input_counts():
    with refused(ArgumentError, "lacks its input W at position 1", "X, W, \\[B\\]"):
        onnx.Conv().infer(X)
    with refused(ArgumentError, "4 inputs", "at most 3", "leave out"):
        onnx.Conv().infer(X, W, B, B)


# ---- Conv ----


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({}, ""),
        ({"pads": [1, 2, 3, 4]}, " p1:3x2:4"),
        ({"auto_pad": "VALID", "pads": [0, 0, 0, 0]}, ""),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, " s2 p1"),
        ({"auto_pad": "SAME_UPPER", "strides": [1, 2], "dilations": [2, 1]}, " s1x2 p2x1 d2x1"),
        ({"auto_pad": "SAME_LOWER", "dilations": [1, 4]}, " p1x4 d1x4"),
        ({"auto_pad": "", "pads": [1, 1, 1, 1]}, " p1"),
        ({"kernel_shape": [3, 3]}, ""),
        ({"group": 1, "strides": (2, 1)}, " s2x1"),
    ],
)
@pytest.mark.parametrize("version", [1, 11, 22])
def test_conv_problem(version, attributes, text):
    found = problem(onnx.Conv(version=version, **attributes), X, W, B)
    assert str(found) == f"conv f32 NCHW n2 c4 i9x9 m6 k3x3{text} b1"


def test_conv_any_number_of_axes():
    for rank in (1, 3, 6):
        assert (
            problem(onnx.Conv(pads=[1] * 2 * rank), (1, 2, *[5] * rank), (3, 2, *[3] * rank)).out
            == (5,) * rank
        )


def test_conv_groups_and_types():
    found = problem(onnx.Conv(group=2), (1, 4, 7), (6, 2, 3), dtypes="bf16")
    assert str(found) == "conv bf16 NCHW n1 c4 i7 m6 k3 g2"


def test_conv_semantics_only_move_negative_totals():
    x, w = (1, 1, 4, 9), (1, 1, 1, 3)
    attributes = {"auto_pad": "SAME_UPPER", "strides": [4, 2]}
    ours = problem(onnx.Conv(**attributes), x, w)
    theirs = problem(onnx.Conv(semantics="onnxruntime", **attributes), x, w)
    assert (ours.pads, theirs.pads) == (((0, 0), (1, 1)), ((-1, 1), (1, 1)))
    assert ours.out == theirs.out == (1, 5)


def test_onnxruntime_semantics_add_no_error():
    # the engine itself refuses dilation with SAME_*
    attributes = {"auto_pad": "SAME_LOWER", "dilations": [2, 2]}
    assert problem(onnx.Conv(semantics="onnxruntime", **attributes), X, W) == problem(
        onnx.Conv(**attributes), X, W
    )


def test_unknown_semantics():
    with refused(ArgumentError, "semantics='torch'", "onnx or onnxruntime"):
        onnx.Conv(semantics="torch")


BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("name", "version", "dtype", "allowed"),
    [
        (name, version, dtype, dtype in ("f16", "f32", "f64") or (dtype == "bf16" and version == 22))
        for name in ("Conv", "ConvTranspose")
        for version in (1, 11, 22)
        for dtype in ("f16", "bf16", "f32", "f64", "i8", "i32", "u8", "i64")
    ],
)
def test_float_operators_take_their_types(name, version, dtype, allowed):
    op = getattr(onnx, name)(version=version)
    shapes = (X, W) if name == "Conv" else (XT, WT)
    if allowed:
        assert problem(op, *shapes, dtypes=dtype).y == dtype
    else:
        with refused(
            DtypeError, f"X has dtype {dtype}", f"{name} version {version} takes", "another version"
        ):
            problem(op, *shapes, dtypes=dtype)


def test_dtypes_may_be_numpy_types():
    assert problem(onnx.Conv(), X, W, dtypes=[BF16, ml_dtypes.bfloat16]).x == "bf16"


def test_attribute_unknown():
    with refused(ArgumentError, "'stride' is not an attribute of Conv", "strides"):
        onnx.Conv(stride=[1, 1])


def test_attribute_of_another_operator():
    with refused(ArgumentError, "'auto_pad' is not an attribute of DeformConv", "offset_group"):
        onnx.DeformConv(auto_pad="VALID")


def test_pads_negative():
    with refused(ArgumentError, r"pads=\[0, -1\]", "-1", "least it may be is 0"):
        onnx.Conv(pads=[0, -1])


def test_pads_of_wrong_length():
    with refused(
        ArgumentError, r"pads=\[1, 1\] has 2 entries", r"X of shape \(2, 4, 9, 9\)", "2 begins, then 2 ends"
    ):
        problem(onnx.Conv(pads=[1, 1]), X, W)


@pytest.mark.parametrize("name", ["strides", "dilations", "kernel_shape"])
def test_lists_of_wrong_length(name):
    with refused(ArgumentError, rf"{name}=\[3\] has 1 entries", "2 spatial axes", "one entry per axis"):
        problem(onnx.Conv(**{name: [3]}), X, W)


@pytest.mark.parametrize("name", ["strides", "dilations", "kernel_shape"])
@pytest.mark.parametrize("value", [0, -2])
def test_lists_must_be_positive(name, value):
    with refused(ArgumentError, rf"{name}=\[1, {value}\]", "least it may be is 1", "raise"):
        onnx.Conv(**{name: [1, value]})


def test_kernel_shape_is_not_the_weights():
    with refused(ArgumentError, r"kernel_shape=\[3, 5\]", r"\[3, 3\] of W", "leave the attribute out"):
        problem(onnx.Conv(kernel_shape=[3, 5]), X, W)


def test_channels_disagree():
    with refused(
        ArgumentError, r"X of shape \(2, 4, 9, 9\) has 4", r"2 \* 4 = 8", "change group or the weights"
    ):
        problem(onnx.Conv(group=2), X, W)


def test_outputs_not_divisible_by_group():
    with refused(
        ArgumentError, "group=2 does not divide the 5 output channels", r"W of shape \(5, 2, 3, 3\)", "choose"
    ):
        problem(onnx.Conv(group=2), X, (5, 2, 3, 3))


@pytest.mark.parametrize("group", [0, -1])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"])
def test_group_not_positive(name, group):
    with refused(ArgumentError, f"group={group}", "least it may be is 1"):
        getattr(onnx, name)(group=group)


def test_ranks_disagree():
    with refused(
        ArgumentError, "X of shape .* has 2 spatial axes", r"W of shape \(6, 4, 3\) has 1", "reshape"
    ):
        problem(onnx.Conv(), X, (6, 4, 3))


@pytest.mark.parametrize(("x", "w"), [((2, 4), (6, 4)), ((2, 4), (6, 4, 1)), ((2, 4, 9), (6, 4)), ((), ())])
def test_no_spatial_axis(x, w):
    with refused(ArgumentError, "axes", "Conv needs", "reshape"):
        problem(onnx.Conv(), x, w)


@pytest.mark.parametrize("bias", [(1,), (1, 6), (5,), ()])
def test_bias_is_not_one_value_per_channel(bias):
    with refused(ArgumentError, "B of shape", r"\(6,\)", "one value per output channel"):
        problem(onnx.Conv(), X, W, bias)


def test_kernel_extent_zero():
    with refused(ArgumentError, r"W of shape \(6, 4, 0, 3\)", "extent of 0", "at least 1"):
        problem(onnx.Conv(), X, (6, 4, 0, 3))


def test_output_negative_is_an_error_and_zero_is_empty():
    assert problem(onnx.Conv(), (2, 4, 2, 9), W).out == (0, 7)
    with refused(
        ArgumentError,
        "X of shape .* extent 1 along spatial axis 0",
        "3 taps",
        "enlarge the input or the pads",
    ):
        problem(onnx.Conv(), (2, 4, 1, 9), W)


def test_pads_exclude_auto_pad():
    with refused(ArgumentError, r"pads=\[0, 0, 1, 0\]", "auto_pad=SAME_UPPER", "leave one of them out"):
        problem(onnx.Conv(auto_pad="SAME_UPPER", pads=[0, 0, 1, 0]), X, W)


@pytest.mark.parametrize("word", ["same_upper", "SAME", "EXPLICIT", b"VALID", 1])
def test_auto_pad_unknown(word):
    with refused(ArgumentError, "auto_pad=", "NOTSET, SAME_UPPER, SAME_LOWER, VALID"):
        onnx.Conv(auto_pad=word)


def test_too_large_to_address():
    with refused(ArgumentError, "w of shape|x of shape|y of shape", "addressable"):
        problem(onnx.Conv(), (1 << 40, 4, 1 << 30, 9), W)


def test_zero_sizes_are_valid():
    assert problem(onnx.Conv(), (0, 4, 9, 9), W).y_shape == (0, 6, 7, 7)
    assert problem(onnx.Conv(), (2, 0, 9, 9), (6, 0, 3, 3), B).y_shape == (2, 6, 7, 7)
    assert problem(onnx.Conv(), X, (0, 4, 3, 3)).y_shape == (2, 0, 7, 7)
    assert problem(onnx.Conv(pads=[1, 1, 2, 1]), (2, 4, 0, 9), W).y_shape == (2, 6, 1, 9)


# ---- ConvTranspose ----


@pytest.mark.parametrize(
    ("attributes", "text", "out"),
    [
        ({}, "", (7, 7)),
        ({"strides": [2, 1], "pads": [1, 0, 2, 1]}, " s2x1 p1:2x0:1", (8, 6)),
        ({"strides": [2, 2], "output_padding": [1, 0]}, " s2 op1x0", (12, 11)),
        ({"strides": [2, 2], "auto_pad": "SAME_UPPER"}, " s2 p0:1", (10, 10)),
        ({"strides": [2, 2], "auto_pad": "SAME_LOWER"}, " s2 p1:0", (10, 10)),
        ({"auto_pad": "VALID"}, "", (7, 7)),
        ({"strides": [2, 2], "output_shape": [10, 9]}, " s2 p1:0x1", (10, 9)),
        ({"strides": [2, 2], "output_shape": [10, 12], "auto_pad": "SAME_UPPER"}, " s2 p0:1x0:-1", (10, 12)),
        ({"strides": [2, 2], "output_shape": [2, 6, 10, 9]}, " s2 p1:0x1", (10, 9)),
        ({"pads": [1, 1, 1, 1], "output_shape": [7, 7]}, "", (7, 7)),
        ({"strides": [4, 4], "auto_pad": "SAME_UPPER"}, " s4", (19, 19)),
        ({"dilations": [2, 1]}, " d2x1", (9, 7)),
    ],
)
@pytest.mark.parametrize("version", [1, 11, 22])
def test_conv_transpose_problem(version, attributes, text, out):
    op = onnx.ConvTranspose(version=version, **attributes)
    found = problem(op, XT, WT, B)
    assert str(found) == f"conv_transpose f32 NCHW n2 c4 i5x5 m6 k3x3{text} b1"
    assert found.out == out
    assert op.infer(XT, WT, B) == ((2, 6, *out),)


def test_conv_transpose_groups_multiply_outputs():
    assert onnx.ConvTranspose(group=2).infer(("N", 4, 5, "W"), (4, 3, 3, 3)) == (("N", 6, 7, None),)
    found = problem(onnx.ConvTranspose(group=2), XT, (4, 3, 3, 3))
    assert (found.c, found.m, found.groups, found.w_shape) == (4, 6, 2, (4, 3, 3, 3))


def test_conv_transpose_infer_with_unknowns():
    op = onnx.ConvTranspose(output_shape=[8, 9], group=2)
    assert op.infer(("N", None, None, None), (4, "m", None, 3)) == (("N", None, 8, 9),)
    assert onnx.ConvTranspose().infer(None, WT) == ((None, 6, None, None),)
    assert onnx.ConvTranspose().infer(None, None) == (None,)


def test_conv_transpose_without_input_follows_the_formula():
    assert onnx.ConvTranspose().infer((1, 4, 0), (4, 6, 3)) == ((1, 6, 2),)
    with refused(ArgumentError, "natural output of -2", "enlarge the input or lower the pads"):
        onnx.ConvTranspose(strides=[3]).infer((1, 4, 0), (4, 6, 1))


def test_conv_transpose_channels_not_divisible_by_group():
    with refused(ArgumentError, "group=3 does not divide the 4 input channels", "choose one"):
        problem(onnx.ConvTranspose(group=3), XT, WT)


def test_conv_transpose_channels_disagree():
    with refused(ArgumentError, r"X of shape \(2, 4, 5, 5\) has 4", "takes 3", "change one"):
        problem(onnx.ConvTranspose(), XT, (3, 6, 3, 3))


def test_conv_transpose_bias():
    with refused(ArgumentError, r"B of shape \(3,\)", r"\(6,\)", "one value per output channel"):
        problem(onnx.ConvTranspose(group=2), XT, (4, 3, 3, 3), (3,))


def test_output_padding_reaches_stride_and_dilation():
    with refused(
        ArgumentError,
        r"output_padding=\[2, 0\] has 2",
        "stride 2",
        "dilation 1",
        "lower it, or give output_shape",
    ):
        problem(onnx.ConvTranspose(output_padding=[2, 0], strides=[2, 2]), XT, WT)
    # less than the dilation is enough, as in PyTorch
    assert problem(onnx.ConvTranspose(output_padding=[2, 0], dilations=[3, 1]), XT, WT).out == (13, 7)


def test_output_padding_negative():
    with refused(ArgumentError, r"output_padding=\[-1, 0\]", "least it may be is 0"):
        onnx.ConvTranspose(output_padding=[-1, 0])


@pytest.mark.parametrize("value", [0, -3])
def test_output_shape_not_positive(value):
    with refused(ArgumentError, rf"output_shape=\[5, {value}\]", "least it may be is 1"):
        onnx.ConvTranspose(output_shape=[5, value])


@pytest.mark.parametrize("given", [[7], [6, 7, 7]])
def test_output_shape_of_wrong_length(given):
    with refused(
        ArgumentError, "output_shape=", f"{len(given)} entries", "2 spatial axes", "one extent per axis"
    ):
        problem(onnx.ConvTranspose(output_shape=given), XT, WT)


def test_output_shape_with_other_batch_or_channels():
    with refused(
        ArgumentError, r"output_shape=\[2, 5, 7, 7\] starts with \[2, 5\]", r"\[2, 6\]", "2 spatial extents"
    ):
        problem(onnx.ConvTranspose(output_shape=[2, 5, 7, 7]), XT, WT)


def test_conv_transpose_output_negative():
    with refused(ArgumentError, "spatial axis 1", "natural output of 7", r"\(5, 3\)", "lower the pads"):
        problem(onnx.ConvTranspose(pads=[0, 5, 0, 3]), XT, WT)


def test_conv_transpose_pads_exclude_auto_pad():
    with refused(ArgumentError, "pads=", "auto_pad=VALID", "leave one"):
        problem(onnx.ConvTranspose(auto_pad="VALID", pads=[1, 0, 0, 0]), XT, WT)


def test_all_errors_are_polyconv_errors():
    for make in (lambda: onnx.Conv(group=0), lambda: onnx.lookup("Nothing", 1), lambda: onnx.Conv().infer()):
        with pytest.raises(Error):
            make()
