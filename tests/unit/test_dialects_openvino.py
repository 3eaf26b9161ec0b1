"""OpenVINO's convolutions: its attributes, groups in the filters, output_shape as an input."""

from __future__ import annotations

import numpy as np
import pytest

from polyconv import dialects
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError, DtypeError, Unsupported

openvino = dialects.openvino

DATA = (2, 4, 9, 7)
FILTERS, GROUPED = (6, 4, 3, 3), (2, 3, 2, 3, 3)
BACK, BACK_GROUPED = (4, 6, 3, 3), (2, 2, 3, 3, 3)


def problem(op, *shapes, dtypes="f32", values=None):
    types = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    return op.problem(*shapes, dtypes=types, values=values)


def refused(error, *fragments):
    """Expect an error whose message holds every fragment: argument, values, way out."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*(?:{f}))" for f in fragments))


def test_every_operator_and_version():
    assert set(openvino.OPERATORS) == {
        ("Convolution", 1),
        ("GroupConvolution", 1),
        ("ConvolutionBackpropData", 1),
        ("GroupConvolutionBackpropData", 1),
        ("DeformableConvolution", 1),
        ("DeformableConvolution", 8),
    }


def test_lookup():
    assert openvino.lookup("Convolution", 15) == 1
    assert openvino.lookup("DeformableConvolution", 7) == 1
    assert openvino.lookup("DeformableConvolution", 8) == 8
    assert openvino.DeformableConvolution().version == 8
    with refused(Unsupported, "BinaryConvolution", "openvino"):
        openvino.lookup("BinaryConvolution", 1)


# ---- forward ----


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({}, ""),
        ({"pads_begin": [2, 0], "pads_end": [1, 0], "auto_pad": "explicit"}, " p2:1x0"),
        ({"pads_begin": [2, 2], "auto_pad": "valid"}, ""),
        ({"pads_begin": [2, 2], "auto_pad": "same_upper", "strides": [2, 3]}, " s2x3 p1"),
        ({"auto_pad": "Same_Lower", "strides": [2, 4], "dilations": [2, 1]}, " s2x4 p2x0 d2x1"),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2], "dilations": [1, 2]}, " s2 p1x2 d1x2"),
    ],
)
def test_convolution(attributes, text):
    found = problem(openvino.Convolution(**attributes), DATA, FILTERS)
    assert str(found) == f"conv f32 NCHW n2 c4 i9x7 m6 k3x3{text}"


def test_convolution_pinned():
    op = openvino.Convolution(
        strides=[1, 1], pads_begin=[2, 2], pads_end=[2, 2], dilations=[1, 1], auto_pad="explicit"
    )
    assert op.infer(DATA, FILTERS) == ((2, 6, 11, 9),)


def test_same_does_not_crop():
    op = openvino.Convolution(auto_pad="same_upper", strides=[4])
    assert problem(op, (1, 1, 4), (1, 1, 1)).pads == ((0, 0),)


@pytest.mark.parametrize(
    ("data", "filters", "out"),
    [
        ((None, 4, "h", 7), FILTERS, (None, 6, None, 5)),
        ((2, None, 9, 7), (None, None, 3, 3), (2, None, 7, 5)),
        (None, FILTERS, (None, 6, None, None)),
        (None, None, None),
    ],
)
def test_convolution_infer_with_unknowns(data, filters, out):
    assert openvino.Convolution().infer(data, filters) == (out,)


def test_group_convolution():
    op = openvino.GroupConvolution(pads_begin=[1, 1], pads_end=[1, 1])
    assert str(problem(op, DATA, GROUPED)) == "conv f32 NCHW n2 c4 i9x7 m6 k3x3 p1 g2"
    assert op.infer(DATA, GROUPED) == ((2, 6, 9, 7),)


def test_group_convolution_infer_deduces_groups():
    op = openvino.GroupConvolution()
    assert op.infer(DATA, (None, 3, 2, 3, 3)) == ((2, 6, 7, 5),)
    assert op.infer((2, None, 9, 7), (None, 3, 2, 3, 3)) == ((2, None, 7, 5),)
    assert op.infer((2, None, 9, 7), GROUPED) == ((2, 6, 7, 5),)
    assert op.infer(None, GROUPED) == ((None, 6, None, None),)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Convolution", "ConvolutionBackpropData"])
def test_any_numeric_type(name, dtype):
    found = problem(getattr(openvino, name)(), DATA, FILTERS if name == "Convolution" else BACK, dtypes=dtype)
    assert (found.x, found.w, found.y, found.overflow) == (dtype, dtype, dtype, "wrap")


def test_types_agree():
    with refused(DtypeError, "filters has dtype i8", "data has u8", "one type for both"):
        problem(openvino.Convolution(), DATA, FILTERS, dtypes=["u8", "i8"])
    with refused(DtypeError, "data has dtype bool"):
        openvino.Convolution().infer(DATA, FILTERS, dtypes=[bool, bool])


# ---- errors ----


@pytest.mark.parametrize("word", ["notset", "", "auto", "same", "explicit ", 3])
def test_auto_pad_unknown(word):
    with refused(ArgumentError, "auto_pad=", "explicit, same_upper, same_lower, valid"):
        openvino.Convolution(auto_pad=word)


@pytest.mark.parametrize("name", ["strides", "dilations"])
def test_zero_strides(name):
    with refused(ArgumentError, rf"{name}=\[0, 1\]", "least it may be is 1"):
        openvino.Convolution(**{name: [0, 1]})


@pytest.mark.parametrize("name", ["pads_begin", "pads_end"])
def test_negative_pads(name):
    with refused(ArgumentError, rf"{name}=\[0, -1\]", "least it may be is 0"):
        openvino.Convolution(**{name: [0, -1]})


@pytest.mark.parametrize("name", ["strides", "dilations", "pads_begin", "pads_end"])
def test_lists_of_wrong_length(name):
    with refused(ArgumentError, rf"{name}=\[1, 1, 1\] has 3 entries", "data of shape", "one entry per axis"):
        problem(openvino.Convolution(**{name: [1, 1, 1]}), DATA, FILTERS)


def test_attributes_of_onnx():
    with refused(ArgumentError, "'group' is not an attribute of Convolution", "pads_begin"):
        openvino.Convolution(group=2)


def test_semantics_are_its_own():
    assert openvino.Convolution(semantics="openvino").semantics == "openvino"
    with refused(ArgumentError, "semantics='onnxruntime'", "openvino"):
        openvino.Convolution(semantics="onnxruntime")


def test_channels_disagree():
    with refused(
        ArgumentError, r"data of shape \(2, 4, 9, 7\) has 4", r"filters of shape .* takes 1 \* 3 = 3"
    ):
        problem(openvino.Convolution(), DATA, (6, 3, 3, 3))
    with refused(
        ArgumentError, "data .* has 4", "groups=3 takes 3 \\* 2 = 6", "change groups or the weights"
    ):
        problem(openvino.GroupConvolution(), DATA, (3, 3, 2, 3, 3))
    with refused(ArgumentError, "data .* has 4", "takes 6", "change one"):
        problem(openvino.GroupConvolutionBackpropData(), DATA, (3, 2, 3, 3, 3))


def test_ranks_disagree():
    with refused(ArgumentError, "data of shape .* 2 spatial axes", "filters of shape .* has 1", "reshape"):
        problem(openvino.GroupConvolution(), DATA, FILTERS)


def test_no_groups():
    with refused(ArgumentError, r"groups=0 in filters of shape \(0, 3, 2, 3, 3\)", "at least 1 group"):
        problem(openvino.GroupConvolution(), (2, 0, 9, 7), (0, 3, 2, 3, 3))


def test_kernel_larger_than_the_data():
    with refused(ArgumentError, "data of shape .* extent 9 along spatial axis 0", "enlarge"):
        problem(openvino.Convolution(dilations=[5, 1]), DATA, FILTERS)


# ---- backprop ----


def back(op, *shapes, out=None, dtypes="f32"):
    if out is None:
        return problem(op, *shapes, dtypes=dtypes)
    return problem(
        op, *shapes, (len(out),), dtypes=[dtypes, dtypes, "i32"], values={2: np.array(out, np.int32)}
    )


@pytest.mark.parametrize(
    ("attributes", "out", "text", "extents"),
    [
        ({}, None, "", (11, 9)),
        ({"pads_begin": [1, 0], "pads_end": [0, 2]}, None, " p1:0x0:2", (10, 7)),
        ({"strides": [2, 2], "output_padding": [1, 3]}, None, " s2 op1x3", (20, 18)),
        ({"output_padding": [-1, 0]}, None, " p0:1x0", (10, 9)),
        ({"output_padding": [-1, 0], "auto_pad": "valid"}, None, " p0:1x0", (10, 9)),
        ({"strides": [2, 2], "auto_pad": "same_upper"}, None, " s2", (19, 15)),
        ({"pads_begin": [3, 3], "auto_pad": "same_lower"}, None, "", (11, 9)),
        ({"pads_begin": [2, 0]}, [5, 9], " p2:4x0", (5, 9)),
        ({"pads_begin": [2, 0], "auto_pad": "valid"}, [5, 12], " p0:6x0:-3", (5, 12)),
        ({"auto_pad": "same_upper"}, [6, 6], " p3:2x2:1", (6, 6)),
        ({"auto_pad": "SAME_LOWER"}, [6, 6], " p2:3x1:2", (6, 6)),
        ({"auto_pad": "same_upper"}, [12, 0], " p0:-1x5:4", (12, 0)),
    ],
)
def test_backprop(attributes, out, text, extents):
    found = back(openvino.ConvolutionBackpropData(**attributes), DATA, BACK, out=out)
    assert str(found) == f"conv_transpose f32 NCHW n2 c4 i9x7 m6 k3x3{text}"
    assert found.out == extents
    grouped = back(openvino.GroupConvolutionBackpropData(**attributes), DATA, BACK_GROUPED, out=out)
    assert str(grouped) == f"conv_transpose f32 NCHW n2 c4 i9x7 m6 k3x3{with_groups(text)}"


def with_groups(text):
    """Groups stand before output_padding in a problem's text."""
    head, op, tail = text.partition(" op")
    return f"{head} g2{op}{tail}"


def test_backprop_infer():
    op = openvino.ConvolutionBackpropData(strides=[2, 2])
    assert op.infer(("N", 4, None, 7), BACK) == (("N", 6, None, 15),)
    assert op.infer(DATA, BACK, (2,)) == ((2, 6, None, None),)
    assert op.infer(DATA, BACK, None) == ((2, 6, None, None),)
    assert op.infer((2, 4, None, 7), (4, 6, 3, None), (2,), values={2: [5, 8]}) == ((2, 6, 5, 8),)
    assert op.infer(None, None, (2,)) == (None,)
    grouped = openvino.GroupConvolutionBackpropData()
    assert grouped.infer(DATA, (None, 2, 3, 3, 3)) == ((2, 6, 11, 9),)
    assert grouped.infer(("N", "C", 9, 7), (None, 2, 3, 3, 3)) == (("N", None, 11, 9),)


@pytest.mark.parametrize("out", [[5], [2, 6, 5, 5]])
def test_output_shape_covers_spatial_axes_only(out):
    with refused(ArgumentError, "output_shape of shape", r"\(2,\)", "without batch and channels"):
        back(openvino.ConvolutionBackpropData(), DATA, BACK, out=out)


def test_output_shape_of_wrong_shape():
    with refused(ArgumentError, r"output_shape of shape \(2, 1\)", r"\(2,\)"):
        openvino.ConvolutionBackpropData().infer(DATA, BACK, (2, 1))


def test_output_shape_negative():
    with refused(ArgumentError, r"output_shape=.*-5", "least it may be is 0"):
        back(openvino.ConvolutionBackpropData(), DATA, BACK, out=[5, -5])


@pytest.mark.parametrize("value", [[5.0, 5.0], [[5, 5]], 5])
def test_output_shape_is_a_list_of_integers(value):
    with refused(ArgumentError, "output_shape of shape .* holds sizes", "list of integers"):
        openvino.ConvolutionBackpropData().infer(DATA, BACK, (2,), values={2: value})


def test_output_shape_type():
    with refused(DtypeError, "output_shape has dtype f32", "takes .*i64"):
        openvino.ConvolutionBackpropData().infer(DATA, BACK, (2,), dtypes=["f32", "f32", "f32"])


def test_backprop_output_negative():
    with refused(ArgumentError, "natural output of 9", r"\(5, 5\)", "lower the pads"):
        problem(openvino.ConvolutionBackpropData(pads_begin=[0, 5], pads_end=[0, 5]), DATA, BACK)


# ---- deformable ----

OFFSETS, MASK = (2, 2 * 9 * 2, 7, 5), (2, 2 * 9, 7, 5)


def test_deformable():
    op = openvino.DeformableConvolution(deformable_group=2, group=2, bilinear_interpolation_pad=True)
    shapes = DATA, OFFSETS, (6, 2, 3, 3), MASK
    assert str(problem(op, *shapes)) == "deform_conv f32 NCHW n2 c4 i9x7 m6 k3x3 g2 og2 mask"
    assert op.infer(("N", 4, None, 7), None, (6, 2, 3, 3)) == (("N", 6, None, 5),)


def test_deformable_auto_pad():
    op = openvino.DeformableConvolution(auto_pad="same_upper")
    assert problem(op, DATA, (2, 18, 9, 7), FILTERS).pads == ((1, 1), (1, 1))


def test_deformable_version_1_has_no_mask_and_no_choice():
    op = openvino.DeformableConvolution(version=1)
    with refused(ArgumentError, "4 inputs", "at most 3"):
        op.infer(DATA, OFFSETS, FILTERS, MASK)
    with refused(ArgumentError, "'bilinear_interpolation_pad' is not an attribute"):
        openvino.DeformableConvolution(version=1, bilinear_interpolation_pad=True)


def test_deformable_errors():
    with refused(ArgumentError, r"offsets of shape \(2, 18, 7, 5\)", r"\(2, 36, 7, 5\)"):
        problem(openvino.DeformableConvolution(deformable_group=2), DATA, (2, 18, 7, 5), FILTERS)
    with refused(ArgumentError, "deformable_group=3 does not divide the 4"):
        problem(openvino.DeformableConvolution(deformable_group=3), DATA, OFFSETS, FILTERS)
    with refused(Unsupported, "DeformableConvolution of i32", "convert .* to f32"):
        problem(openvino.DeformableConvolution(), DATA, (2, 18, 7, 5), FILTERS, dtypes="i32")
