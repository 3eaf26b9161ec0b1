"""ONNX's integer, deformable and causal convolutions: shapes and types in, a Problem or an error out."""

from __future__ import annotations

import pytest

from polyconv import dialects
from polyconv.errors import ArgumentError, DtypeError, Unsupported

onnx = dialects.onnx

X, W, B = (2, 4, 9, 9), (6, 4, 3, 3), (6,)


def problem(op, *shapes, dtypes="f32", **more):
    types = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    return op.problem(*shapes, dtypes=types, **more)


def refused(error, *fragments):
    """Expect an error whose message holds every fragment: argument, values, way out."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*(?:{f}))" for f in fragments))


# ---- integers ----


def test_conv_integer():
    op = onnx.ConvInteger(pads=[1, 1, 1, 1])
    assert str(problem(op, X, W, dtypes=["u8", "i8"])) == "conv u8*i8>i32 NCHW n2 c4 i9x9 m6 k3x3 p1"
    zero_points = problem(op, X, W, (), (6,), dtypes=["i8", "u8", "i8", "u8"])
    assert str(zero_points).endswith(" p1 zx=t zw=c")
    assert str(problem(op, X, W, None, (1,), dtypes=["i8", "u8", None, "u8"])).endswith(" p1 zw=t")


def test_conv_integer_zero_points_of_wrong_shape():
    types = ["u8", "u8", "u8", "u8"]
    with refused(ArgumentError, r"x_zero_point of shape \(4,\)", "scalar"):
        problem(onnx.ConvInteger(), X, W, (4,), dtypes=types)
    with refused(
        ArgumentError, r"w_zero_point of shape \(4,\)", r"\(6,\)", "scalar, or one value per output channel"
    ):
        problem(onnx.ConvInteger(), X, W, (), (4,), dtypes=types)
    with refused(DtypeError, "x_zero_point has dtype i8", "x has u8"):
        problem(onnx.ConvInteger(), X, W, (), (), dtypes=["u8", "u8", "i8", "u8"])


QSHAPES = (X, (), (), W, (6,), (6,), (), (1,), B)
QTYPES = ["u8", "f32", "u8", "i8", "f32", "i8", "f32", "u8", "i32"]


def test_qlinear_conv():
    found = problem(onnx.QLinearConv(), *QSHAPES, dtypes=QTYPES)
    assert str(found) == "conv u8*i8 NCHW n2 c4 i9x9 m6 k3x3 b1 zx=t zw=c zy=t sx=t sw=c sy=t"
    other = problem(onnx.QLinearConv(), *QSHAPES[:-1], dtypes=[*QTYPES[:7], "i8"])
    assert (other.y, other.bias) == ("i8", False)


@pytest.mark.parametrize(
    ("at", "shape", "fragment"),
    [
        (1, (2,), "x_scale"),
        (2, (4,), "x_zero_point"),
        (4, (5,), "w_scale"),
        (5, (1, 6), "w_zero_point"),
        (6, (6,), "y_scale"),
        (7, (6,), "y_zero_point"),
        (8, (1,), "B"),
    ],
)
def test_qlinear_conv_shapes(at, shape, fragment):
    shapes = [*QSHAPES[:at], shape, *QSHAPES[at + 1 :]]
    with refused(ArgumentError, f"{fragment} of shape", "must", "scalar|one value"):
        problem(onnx.QLinearConv(), *shapes, dtypes=QTYPES)


@pytest.mark.parametrize(
    ("at", "dtype", "name"), [(0, "i32", "x"), (1, "f64", "x_scale"), (8, "f32", "B"), (7, "u16", "y_z")]
)
def test_qlinear_conv_types(at, dtype, name):
    with refused(DtypeError, f"{name}.* has dtype {dtype}", "QLinearConv version 10 takes", "convert"):
        problem(onnx.QLinearConv(), *QSHAPES, dtypes=[*QTYPES[:at], dtype, *QTYPES[at + 1 :]])


def test_qlinear_conv_lacks_inputs():
    with refused(ArgumentError, "lacks its input y_zero_point at position 7"):
        onnx.QLinearConv().infer(*QSHAPES[:7])


# ---- DeformConv ----

OFFSET, MASK = (2, 2 * 9 * 2, 9, 9), (2, 2 * 9, 9, 9)


def test_deform_conv():
    op = onnx.DeformConv(offset_group=2, pads=[1, 1, 1, 1])
    assert str(problem(op, X, W, OFFSET, B, MASK)) == "deform_conv f32 NCHW n2 c4 i9x9 m6 k3x3 p1 b1 og2 mask"
    assert str(problem(op, X, W, OFFSET)) == "deform_conv f32 NCHW n2 c4 i9x9 m6 k3x3 p1 og2"
    assert op.infer(("N", 4, 9, None), W, None) == (("N", 6, 9, None),)


def test_deform_conv_types():
    op = onnx.DeformConv(version=19, offset_group=2, pads=[1, 1, 1, 1])
    with refused(DtypeError, "X has dtype bf16", "DeformConv version 19 takes"):
        problem(op, X, W, OFFSET, dtypes="bf16")


def test_deform_conv_offset_and_mask_shapes():
    op = onnx.DeformConv(offset_group=2, pads=[1, 1, 1, 1])
    with refused(
        ArgumentError, r"offset of shape \(2, 18, 9, 9\)", r"\(2, 36, 9, 9\)", "two offsets per offset group"
    ):
        problem(op, X, W, (2, 18, 9, 9))
    with refused(ArgumentError, r"mask of shape \(2, 18, 7, 9\)", r"\(2, 18, 9, 9\)", "one factor"):
        problem(op, X, W, OFFSET, None, (2, 18, 7, 9))


def test_deform_conv_offset_group():
    with refused(ArgumentError, "offset_group=3 does not divide the 4 input channels", "choose"):
        problem(onnx.DeformConv(offset_group=3), X, W, (2, 54, 7, 7))
    with refused(ArgumentError, "offset_group=0", "least"):
        onnx.DeformConv(offset_group=0)


def test_deform_conv_other_ranks():
    with refused(Unsupported, "DeformConv with 1 spatial axes", "reshape to two"):
        problem(onnx.DeformConv(), (2, 4, 9), (6, 4, 3), (2, 6, 7))


# ---- CausalConvWithState ----


def test_causal_conv():
    op = onnx.CausalConvWithState(activation="silu")
    shapes = (2, 5, 7), (5, 1, 4), (5,), (2, 5, 3)
    assert str(problem(op, *shapes)) == "causal_conv f32 NCHW n2 c5 i7 m5 k4 p3:0 g5 b1 act=Silu"
    assert op.infer(*shapes) == ((2, 5, 7), (2, 5, 3))
    assert op.infer(("N", 5, "L"), (5, 1, 4)) == (("N", 5, "L"), ("N", 5, 3))
    assert op.infer(None, (5, 1, 4)) == ((None, 5, None), (None, 5, 3))


def test_causal_conv_short_input_and_single_tap():
    op = onnx.CausalConvWithState()
    assert op.infer((2, 5, 1), (5, 1, 4)) == ((2, 5, 1), (2, 5, 3))
    assert problem(op, (2, 5, 1), (5, 1, 4)).y_shape == (2, 5, 1)
    assert op.infer((2, 5, 7), (5, 1, 1)) == ((2, 5, 7), (2, 5, 0))


@pytest.mark.parametrize(("word", "name"), [("none", None), ("silu", "Silu"), ("swish", "Silu")])
def test_causal_conv_activation(word, name):
    found = problem(onnx.CausalConvWithState(activation=word), (2, 5, 7), (5, 1, 4)).activation
    assert (found and found.name) == name


@pytest.mark.parametrize("word", ["Silu", "relu", ""])
def test_causal_conv_unknown_activation(word):
    with refused(ArgumentError, f"activation='{word}'", "none, silu, swish"):
        onnx.CausalConvWithState(activation=word)


@pytest.mark.parametrize(
    ("shapes", "fragments"),
    [
        (((2, 5, 7), (4, 1, 3)), (r"weight of shape \(4, 1, 3\)", r"\(5, 1, 3\)", "one kernel per channel")),
        (((2, 5, 7), (5, 2, 3)), (r"weight of shape \(5, 2, 3\)", r"\(5, 1, 3\)", "one kernel per channel")),
        (((2, 5, 7), (5, 1, 0)), ("weight", "extent 0", "at least 1")),
        (((2, 5, 7), (5, 1, 3), (4,)), (r"bias of shape \(4,\)", r"\(5,\)", "one value per channel")),
        (
            ((2, 5, 7), (5, 1, 3), (5,), (2, 5, 3)),
            (r"past_state of shape \(2, 5, 3\)", r"\(2, 5, 2\)", "one sample less"),
        ),
        (((2, 5, 7, 7), (5, 1, 3, 3)), ("input of shape", "more than 3 axes", "fold")),
        (((2, 5, 7), (5, 1, 3, 3)), ("input of shape", "weight of shape", "reshape")),
    ],
)
def test_causal_conv_errors(shapes, fragments):
    with refused(ArgumentError, *fragments):
        problem(onnx.CausalConvWithState(), *shapes)


def test_causal_conv_types():
    with refused(DtypeError, "input has dtype f64", "bf16, f16, f32"):
        problem(onnx.CausalConvWithState(), (2, 5, 7), (5, 1, 4), dtypes="f64")
