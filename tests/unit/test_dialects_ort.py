"""ONNX Runtime's own operators: layout, activation and summand on top of ONNX's convolutions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from polyconv import dialects
from polyconv.errors import ArgumentError, DtypeError, Unsupported
from polyconv.problem.epilogue import Activation

ort = dialects.ort

X, W, B, Y = (2, 9, 7, 4), (6, 4, 3, 3), (6,), (2, 7, 5, 6)
FIRST = (2, 4, 9, 7)


def problem(op, *shapes, dtypes="f32"):
    types = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    return op.problem(*shapes, dtypes=types)


def refused(error, *fragments):
    """Expect an error whose message holds every fragment: argument, values, way out."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*(?:{f}))" for f in fragments))


def test_every_operator_and_version():
    assert set(ort.OPERATORS) == {
        ("com.ms.internal.nhwc", "Conv", 1),
        ("com.ms.internal.nhwc", "Conv", 11),
        ("com.ms.internal.nhwc", "ConvTranspose", 1),
        ("com.ms.internal.nhwc", "ConvTranspose", 11),
        ("com.ms.internal.nhwc", "QLinearConv", 10),
        ("com.ms.internal.nhwc", "QLinearConvTranspose", 1),
        ("com.microsoft", "FusedConv", 1),
        ("com.microsoft", "NhwcConv", 1),
        ("com.microsoft", "NhwcFusedConv", 1),
        ("com.microsoft", "QLinearConv", 1),
        ("com.microsoft", "QLinearConvTranspose", 1),
    }


@pytest.mark.parametrize(("domain", "name", "version"), ort.OPERATORS)
def test_factories_find_every_row(domain, name, version):
    op = getattr(ort, name)(version=version, domain=domain)
    assert (op.domain, op.name, op.version) == (domain, name, version)


def test_the_newest_qlinear_conv_is_the_internal_one():
    assert ort.QLinearConv().domain == "com.ms.internal.nhwc"
    assert ort.QLinearConv(domain="com.microsoft").version == 1


@pytest.mark.parametrize("asked", [{"version": 2}, {"domain": "ai.onnx"}, {"version": 10, "domain": "com.microsoft"}])
def test_an_operator_that_does_not_exist_is_refused(asked):
    given = ".*".join(f"{name}={value!r}" for name, value in asked.items())
    with refused(ArgumentError, given, "1 of com.microsoft, 10 of com.ms.internal.nhwc"):
        ort.QLinearConv(**asked)


def test_lookup_goes_by_domain():
    assert ort.lookup("com.ms.internal.nhwc", "Conv", 22) == 11
    assert ort.lookup("com.microsoft", "QLinearConv", 1) == 1
    with refused(Unsupported, "com.microsoft.Conv", "ort"):
        ort.lookup("com.microsoft", "Conv", 1)


@pytest.mark.parametrize("version", [1, 11])
def test_nhwc_conv(version):
    op = ort.Conv(version=version, activation="LeakyRelu", activation_params=[0.5], pads=[0, 1, 0, 1])
    assert str(problem(op, X, W, B)) == "conv f32 NHWC n2 c4 i9x7 m6 k3x3 p0x1 b1 act=LeakyRelu(0.5)"
    assert op.infer(("N", 9, "w", 4), W, B) == (("N", 7, None, 6),)


def test_nhwc_ranks():
    assert ort.Conv().infer((2, 9, 4), (6, 4, 3)) == ((2, 7, 6),)
    assert ort.Conv(group=2).infer((2, 9, 7, 5, 4), (6, 2, 3, 3, 1)) == ((2, 7, 5, 5, 6),)
    assert ort.Conv().infer(None, (6, 4, 3)) == ((None, None, 6),)


def test_nhwc_conv_transpose():
    op = ort.ConvTranspose(strides=[2, 2], output_shape=[18, 14], activation="Relu", group=2)
    assert (
        str(problem(op, X, (4, 3, 3, 3))) == "conv_transpose f32 NHWC n2 c4 i9x7 m6 k3x3 s2 p1:0 g2 act=Relu"
    )
    assert op.infer(X, (4, 3, 3, 3)) == ((2, 18, 14, 6),)


def test_nhwc_weights_stay_in_the_order_of_onnx():
    # weights with channels last have another number of output channels and another kernel
    assert ort.Conv().infer((1, 5, 6, 3), (4, 3, 2, 2)) == ((1, 4, 5, 4),)
    with refused(ArgumentError, r"X of shape \(1, 5, 6, 3\) has 3 input channels", "change"):
        ort.Conv().infer((1, 5, 6, 3), (4, 2, 2, 3))


def test_fused_conv():
    op = ort.FusedConv(activation="Clip", activation_params=[-1, 6])
    residual = (2, 6, 7, 5)
    assert str(problem(op, FIRST, W, B, residual)) == "conv f32 NCHW n2 c4 i9x7 m6 k3x3 b1 r1 act=Clip(-1,6)"
    assert str(problem(op, FIRST, W, None, residual)) == "conv f32 NCHW n2 c4 i9x7 m6 k3x3 r1 act=Clip(-1,6)"


@pytest.mark.parametrize("shape", [(2, 6, 1, 5), (6, 7, 5), (1, 6, 7, 5)])
def test_summand_has_exactly_the_shape_of_the_output(shape):
    with refused(ArgumentError, "Z of shape", r"\(2, 6, 7, 5\)", "not broadcast"):
        problem(ort.FusedConv(), FIRST, W, B, shape)


def test_nhwc_contributed():
    assert str(problem(ort.NhwcConv(), X, W, B, dtypes="f64")) == "conv f64 NHWC n2 c4 i9x7 m6 k3x3 b1"
    op = ort.NhwcFusedConv(activation="Relu")
    assert str(problem(op, X, W, B, Y, dtypes="f16")) == "conv f16 NHWC n2 c4 i9x7 m6 k3x3 b1 r1 act=Relu"
    with refused(ArgumentError, "Z of shape", r"\(2, 7, 5, 6\)"):
        problem(op, X, W, B, (2, 6, 7, 5), dtypes="f16")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Conv", "bf16"),
        ("ConvTranspose", "i8"),
        ("NhwcFusedConv", "f64"),
        ("FusedConv", "bf16"),
        ("NhwcConv", "u8"),
    ],
)
def test_types(name, dtype):
    with refused(DtypeError, f"X has dtype {dtype}", f"{name} version", "takes"):
        problem(getattr(ort, name)(), X, W, dtypes=dtype)


def test_nhwc_conv_has_no_activation():
    with refused(ArgumentError, "'activation' is not an attribute of NhwcConv"):
        ort.NhwcConv(activation="Relu")


# ---- activations ----


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("Relu", None, ()),
        ("Relu", [0.0, math.inf], ()),
        ("Tanh", [1], ()),
        ("Sigmoid", [], ()),
        ("HardSwish", [1, 2, 3], ()),
        ("LeakyRelu", [0.25], (0.25,)),
        ("Clip", [-math.inf, 6], (-math.inf, 6.0)),
        ("HardSigmoid", (0.25, 0.5), (0.25, 0.5)),
        ("HardSigmoid", np.array([0.25, 0.5], np.float32), (0.25, 0.5)),
    ],
)
def test_activations(name, given, kept):
    found = problem(ort.FusedConv(activation=name, activation_params=given), FIRST, W)
    assert found.activation == Activation(name, kept)


def test_parameters_have_32_bits():
    # as a model file stores them; 0.1 has no exact form
    found = problem(ort.FusedConv(activation="LeakyRelu", activation_params=[0.1]), FIRST, W, dtypes="f64")
    assert found.activation.parameters == (13421773 / 2**27,)


def test_parameters_without_activation_are_ignored():
    assert problem(ort.FusedConv(activation_params=[1, 2, 3]), FIRST, W).activation is None


@pytest.mark.parametrize(
    ("name", "given", "fragment"),
    [
        ("LeakyRelu", None, r"\[alpha\]"),
        ("LeakyRelu", [1, 2], r"\[alpha\]"),
        ("Clip", [0], r"\[min, max\]"),
        ("HardSigmoid", [], r"\[alpha, beta\]"),
    ],
)
def test_missing_parameters_have_no_defaults(name, given, fragment):
    with refused(ArgumentError, "activation_params=", f"{name} needs", fragment):
        problem(ort.FusedConv(activation=name, activation_params=given), FIRST, W)


@pytest.mark.parametrize("name", ["", "relu", "Silu", "Gelu", "Elu", "Mish"])
def test_unknown_activations(name):
    with refused(ArgumentError, f"activation='{name}'", "case counts", "HardSwish"):
        problem(ort.Conv(activation=name), X, W)


@pytest.mark.parametrize("value", [math.nan, True, "0.1", 10**400, 1e39, None, [0.1], 1j])
def test_hostile_parameters(value):
    with refused(ArgumentError, "activation_params=", "number belongs|beyond float32"):
        ort.Conv(activation="LeakyRelu", activation_params=[value])


@pytest.mark.parametrize("value", [0.1, "Relu", {0.1}, np.zeros((1, 1)), range(10**9)])
def test_hostile_parameter_lists(value):
    with refused(ArgumentError, "activation_params", "list|at most"):
        ort.Conv(activation="LeakyRelu", activation_params=value)


@pytest.mark.parametrize("value", [b"Relu", 1, ["Relu"]])
def test_activation_is_no_string(value):
    with refused(ArgumentError, "activation=", "not a string"):
        ort.Conv(activation=value)


# ---- QLinearConv ----

QTYPES = ["u8", "f32", "u8", "u8", "f32", "u8", "f32", "u8", "i32"]


def quantised(x):
    return (x, (), (), W, (6,), (), (), (), B)


@pytest.mark.parametrize(
    ("op", "x", "layout"),
    [
        (ort.QLinearConv(), X, "NHWC"),
        (ort.QLinearConv(version=1), FIRST, "NCHW"),
        (ort.QLinearConv(version=1, channels_last=0), FIRST, "NCHW"),
        (ort.QLinearConv(version=1, channels_last=1), X, "NHWC"),
        (ort.QLinearConv(version=1, channels_last=True), X, "NHWC"),
    ],
)
def test_qlinear_conv_layouts(op, x, layout):
    found = problem(op, *quantised(x), dtypes=QTYPES)
    assert str(found) == f"conv u8 {layout} n2 c4 i9x7 m6 k3x3 b1 zx=t zw=t zy=t sx=t sw=c sy=t"


@pytest.mark.parametrize("value", [2, -1, "1", 1.0])
def test_channels_last_is_0_or_1(value):
    with refused(ArgumentError, "channels_last=", "0 or 1"):
        ort.QLinearConv(version=1, channels_last=value)


def test_channels_last_belongs_to_the_contributed_one():
    with refused(ArgumentError, "'channels_last' is not an attribute of QLinearConv"):
        ort.QLinearConv(version=10, channels_last=1)


# ---- semantics ----


def test_its_own_semantics_are_the_default():
    attributes = {"auto_pad": "SAME_UPPER", "strides": [4, 4]}
    shapes = (1, 4, 4, 1), (1, 1, 1, 1)
    assert problem(ort.Conv(**attributes), *shapes).pads == ((-1, 1), (-1, 1))
    assert problem(ort.Conv(semantics="onnx", **attributes), *shapes).pads == ((0, 0), (0, 0))
