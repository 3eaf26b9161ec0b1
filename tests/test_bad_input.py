"""Bad input at the facade: every call is refused before the first store, and the message helps.

A message names the argument, the values that disagree, and a way out; what is merely unusual (zero
sizes, odd memory, non-finite weights) computes: ``test_unusual_input.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyconv
from polyconv import ArgumentError, DtypeError

WAY_OUT = re.compile(
    r"\b(give|use|choose|pass|convert|enlarge|leave|make|set|copy|must|takes?|one of|write|drop|call|lower|"
    r"fill|split|shrink|ask|or|instead|need|needs|between|at least|divide|positive)\b"
)


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


X, W, B = ones(1, 4, 8, 8), ones(6, 4, 3, 3), ones(6)
WT = ones(4, 6, 3, 3)  # IOHW
Y = (1, 6, 6, 6)


def refused(error: type[Exception], call: Callable[[], Any], *words: str) -> None:
    """The call raises, and its message has every pattern and a way out."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert re.search(word, message), f"{word!r} is not in: {message}"
    assert WAY_OUT.search(message), f"no way out in: {message}"
    assert isinstance(caught.value, polyconv.Error)


def test_the_errors_are_also_the_usual_ones() -> None:
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(DtypeError, TypeError)
    assert issubclass(polyconv.ModelError, ValueError)
    assert issubclass(polyconv.Unsupported, NotImplementedError)


# Element types

TYPES = {
    "complex": (lambda: polyconv.conv(ones(1, 4, 8, 8, dtype=np.complex64), W), "x", "complex64"),
    "bool": (lambda: polyconv.conv(ones(1, 4, 8, 8, dtype=bool), W), "x", "bool"),
    "object": (lambda: polyconv.conv(ones(1, 4, 8, 8, dtype=object), W), "x", "object"),
    "text": (lambda: polyconv.conv(np.full((1, 4, 8, 8), "a"), W), "x", "U1"),
    "complex weights": (lambda: polyconv.conv(X, W.astype(np.complex128)), "w", "complex128"),
    "mixed floats": (lambda: polyconv.conv(X, W.astype(np.float64)), "x", "w", "f(loat)?32", "f(loat)?64"),
    "mixed integers": (lambda: polyconv.conv(X.astype("i2"), W.astype("i4")), "x", "w", "16", "32"),
    "i8 with u8 needs out_dtype": (lambda: polyconv.conv(X.astype("i1"), W.astype("u1")), "out_dtype"),
    "u8 with i8 needs out_dtype": (lambda: polyconv.conv(X.astype("u1"), W.astype("i1")), "out_dtype"),
    "u8 with i8 into i16": (
        lambda: polyconv.conv(X.astype("u1"), W.astype("i1"), out_dtype="int16"),
        "out_dtype",
        "16",
    ),
    "f32 into f64": (lambda: polyconv.conv(X, W, out_dtype=np.float64), "out_dtype", "64"),
    "f32 into f16": (lambda: polyconv.conv(X, W, out_dtype=np.float16), "out_dtype", "16"),
    "f32 into i32": (lambda: polyconv.conv(X, W, out_dtype=np.int32), "out_dtype", "32"),
    "i16 into i8": (
        lambda: polyconv.conv(X.astype("i2"), W.astype("i2"), out_dtype="int8"),
        "out_dtype",
        "8",
    ),
    "i32 into f32": (lambda: polyconv.conv(X.astype("i4"), W.astype("i4"), out_dtype="float32"), "out_dtype"),
    "no type at all": (lambda: polyconv.conv(X, W, out_dtype="float33"), "out_dtype", "float33"),
    "no type of inputs": (lambda: polyconv.Conv(W, x_dtype="float33"), "x_dtype", "float33", r"numpy\.float32"),
    "type of a problem": (lambda: polyconv.conv(X, W, out_dtype="f32"), "out_dtype", "f32", r"numpy\.float32"),
    "integer bias": (lambda: polyconv.conv(X, W, B.astype(np.int32)), "b", "32"),
    "bias of another float": (lambda: polyconv.conv(X, W, B.astype(np.float64)), "b", "64"),
    "residual of another type": (
        lambda: polyconv.conv(X, W, residual=ones(*Y, dtype=np.float64)),
        "residual",
        "64",
    ),
    "out of another type": (lambda: polyconv.conv(X, W, out=ones(*Y, dtype=np.float64)), "out", "64"),
    "out of half the type": (lambda: polyconv.conv(X, W, out=ones(*Y, dtype=np.float16)), "out", "16"),
    "layer of another type": (lambda: polyconv.Conv(W)(X.astype(np.float64)), "f(loat)?32", "f(loat)?64"),
    "transposed": (lambda: polyconv.conv_transpose(X, WT.astype(np.float64)), "x", "w"),
}


@pytest.mark.parametrize("case", TYPES)
def test_element_types(case: str) -> None:
    call, *words = TYPES[case]
    refused(DtypeError, call, *words)


# Shapes

SHAPES = {
    "no spatial axis": (lambda: polyconv.conv(ones(1, 4), ones(6, 4)), "x", r"\(1, 4\)"),
    "one axis": (lambda: polyconv.conv(ones(4), W), "x"),
    "scalar": (lambda: polyconv.conv(np.float32(1), W), "x"),
    "rank of w": (lambda: polyconv.conv(X, ones(6, 4, 3)), "w", r"\(6, 4, 3\)"),
    "channels": (lambda: polyconv.conv(X, ones(6, 3, 3, 3)), "x", "w", "4", "3", "groups"),
    "channels, NHWC": (lambda: polyconv.conv(X, W, layout="NHWC"), "x", "w", "8", "4", "NHWC"),
    "channels, transposed": (lambda: polyconv.conv_transpose(X, ones(5, 6, 3, 3)), "x", "w", "4", "5"),
    "channels, layer": (lambda: polyconv.Conv(W)(ones(1, 5, 8, 8)), "x", "5", "4"),
    "groups of outputs": (lambda: polyconv.conv(X, ones(5, 2, 3, 3), groups=2), "groups", "5", "2"),
    "groups of inputs": (
        lambda: polyconv.conv_transpose(ones(1, 5, 8, 8), ones(5, 2, 3, 3), groups=2),
        "groups",
        "5",
    ),
    "bias too short": (lambda: polyconv.conv(X, W, ones(5)), "b", "5", "6"),
    "bias of one": (lambda: polyconv.conv(X, W, ones(1)), "b", "1", "6"),
    "bias with axes": (lambda: polyconv.conv(X, W, ones(6, 1)), "b", r"\(6, 1\)"),
    "scalar bias": (lambda: polyconv.conv(X, W, np.float32(1)), "b", r"\(\)"),
    "bias of the input's size": (lambda: polyconv.conv_transpose(X, WT, ones(4)), "b", "4", "6"),
    "residual broadcasts": (
        lambda: polyconv.conv(X, W, residual=ones(1, 6, 1, 1)),
        "residual",
        r"\(1, 6, 1, 1\)",
    ),
    "residual of x": (
        lambda: polyconv.conv(X, W, residual=X),
        "residual",
        r"\(1, 4, 8, 8\)",
        r"\(1, 6, 6, 6\)",
    ),
    "kernel of extent 0": (lambda: polyconv.conv(X, ones(6, 4, 0, 3)), "kernel|w", "0"),
    "kernel beyond the input": (lambda: polyconv.conv(ones(1, 4, 1, 8), W), "kernel|w", "3", "1"),
    "kernel one larger than the input": (lambda: polyconv.conv(ones(1, 4, 2, 2), W), "w", "covers 3", "has 2"),
    "kernel beyond the padded input": (
        lambda: polyconv.conv(ones(1, 4, 3, 3), ones(6, 4, 7, 3), pads=[(1, 2), (0, 0)]),
        "axis 0",
        "covers 7",
        "has 3",
        r"1 \+ 2",
    ),
    "kernel beyond the input, strides": (
        lambda: polyconv.conv(ones(1, 4, 8, 2), ones(6, 4, 3, 4), strides=3),
        "axis 1",
        "covers 4",
    ),
    "kernel beyond the input, no images": (lambda: polyconv.conv(ones(0, 4, 2, 2), W), "w", "covers 3"),
    "kernel beyond the input, layer": (lambda: polyconv.Conv(W)(ones(1, 4, 2, 2)), "w", "covers 3"),
    "kernel beyond the input, plan": (lambda: polyconv.Conv(W).plan((1, 4, 2, 2)), "w", "covers 3"),
    "kernel beyond an input of nothing": (lambda: polyconv.conv(ones(1, 4, 0, 8), W), "kernel", "3", "0"),
    "dilated beyond the input": (lambda: polyconv.conv(X, W, dilations=9), "dilations", "9"),
    "transposed, all cropped": (lambda: polyconv.conv_transpose(X, WT, pads=9), "pads", "9"),
    "transposed, just all cropped": (
        lambda: polyconv.conv_transpose(ones(1, 4, 1, 8), WT, pads=[(1, 2), (0, 0)]),
        "pads",
        r"1 \+ 2",
        "all 3",
        "axis 0",
    ),
    "out of another shape": (
        lambda: polyconv.conv(X, W, out=ones(1, 6, 6, 7)),
        "out",
        r"\(1, 6, 6, 7\)",
        r"\(1, 6, 6, 6\)",
    ),
    "out of more": (lambda: polyconv.conv(X, W, out=ones(2, 6, 6, 6)), "out", r"\(2, 6, 6, 6\)"),
    "out, NHWC": (
        lambda: polyconv.conv(ones(1, 8, 8, 4), W, layout="NHWC", out=ones(*Y)[:, :, :, :5]),
        "out",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case: str) -> None:
    call, *words = SHAPES[case]
    refused(ArgumentError, call, *words)


# Attributes

ATTRIBUTES = {
    "strides 0": ({"strides": 0}, "strides", "0"),
    "strides negative": ({"strides": [1, -2]}, "strides", "-2"),
    "strides count": ({"strides": [1, 1, 1]}, "strides", "3|1, 1, 1"),
    "strides none": ({"strides": []}, "strides"),
    "strides fraction": ({"strides": 1.5}, "strides", r"1\.5"),
    "strides beyond all": ({"strides": 10**5000}, "strides", "integer of 16610 bits"),
    "strides too many": ({"strides": [1] * 10**6}, "strides", "1000000 entries"),
    "strides text": ({"strides": "2"}, "strides", "2"),
    "dilations 0": ({"dilations": [0, 1]}, "dilations", "0"),
    "dilations negative": ({"dilations": -1}, "dilations", "-1"),
    "dilations count": ({"dilations": (1,) * 4}, "dilations"),
    "dilations fraction": ({"dilations": [1, 2.5]}, "dilations", r"2\.5"),
    "groups 0": ({"groups": 0}, "groups", "0"),
    "groups negative": ({"groups": -1}, "groups", "-1"),
    "groups fraction": ({"groups": 1.5}, "groups", r"1\.5"),
    "groups text": ({"groups": "2"}, "groups", "2"),
    "pads negative": ({"pads": -1}, "pads", "-1"),
    "pads one negative": ({"pads": [0, 0, -2, 0]}, "pads", "-2"),
    "pads of 3": ({"pads": [1, 1, 1]}, "pads", "1, 1, 1"),
    "pads of 5": ({"pads": [1] * 5}, "pads"),
    "pads one pair": ({"pads": [(1, 1)]}, "pads"),
    "pads triples": ({"pads": [(1, 1, 1), (1, 1, 1)]}, "pads"),
    "pads fraction": ({"pads": [0.5, 0.5]}, "pads", r"0\.5"),
    "pads text": ({"pads": "SAME_UPPER"}, "pads", "did you mean auto_pad='SAME_UPPER'"),
    "pads same": ({"pads": "same"}, "pads", "auto_pad='SAME_UPPER'", "SAME_LOWER"),
    "pads valid": ({"pads": "valid"}, "pads", "pads=0", "auto_pad='VALID'"),
    "pads in words": ({"pads": "1"}, "pads", "'1'", "whole number"),
    "pads beside SAME": ({"pads": 1, "auto_pad": "SAME_UPPER"}, "pads", "auto_pad", "SAME_UPPER"),
    "pads beside VALID": ({"pads": [0, 0, 0, 1], "auto_pad": "VALID"}, "pads", "auto_pad", "VALID"),
    "auto_pad unknown": ({"auto_pad": "SAME"}, "auto_pad", "SAME", "SAME_UPPER"),
    "auto_pad ambiguous": ({"auto_pad": "same"}, "auto_pad", "'same'", "SAME_UPPER", "end", "SAME_LOWER", "first"),
    "auto_pad of OpenVINO": ({"auto_pad": "explicit"}, "auto_pad", "explicit", "NOTSET"),
    "auto_pad misspelled": ({"auto_pad": "SAMEUPPER"}, "auto_pad", "did you mean 'SAME_UPPER'"),
    "auto_pad number": ({"auto_pad": 1}, "auto_pad", "1"),
    "layout unknown": ({"layout": "HWCN"}, "layout", "HWCN", "NCHW"),
    "layout of another rank": ({"layout": "NCDHW"}, "layout", "NCDHW"),
    "layout of torch": ({"layout": "channels_last"}, "layout", "did you mean 'NHWC'"),
    "layout without batch": ({"layout": "HWC"}, "layout", "NHWC", "x\\[None\\]"),
    "layout number": ({"layout": 4}, "layout", "4"),
    "activation unknown": ({"activation": "Swish"}, "activation", "Swish", "did you mean 'Silu'"),
    "activation in lower case": ({"activation": "relu"}, "activation", "relu", "did you mean 'Relu'"),
    "activation of torch": ({"activation": "hard_swish"}, "activation", "did you mean 'HardSwish'"),
    "activation relu6": ({"activation": "relu6"}, "activation", "did you mean 'Clip' with activation_params=.0, 6."),
    "activation empty": ({"activation": ""}, "activation"),
    "Relu with parameters": ({"activation": "Relu", "activation_params": [1.0]}, "activation_params", "Relu"),
    "LeakyRelu with two": (
        {"activation": "LeakyRelu", "activation_params": [0.1, 0.2]},
        "activation_params",
        "0.2",
        "LeakyRelu",
    ),
    "Clip without": ({"activation": "Clip"}, "activation_params", "Clip", "min"),
    "Clip with one": ({"activation": "Clip", "activation_params": [0.0]}, "activation_params", "Clip"),
    "HardSigmoid with one": (
        {"activation": "HardSigmoid", "activation_params": [0.2]},
        "activation_params",
        "HardSigmoid",
    ),
    "parameters of text": ({"activation": "Elu", "activation_params": ["a"]}, "activation_params", "a"),
    "parameters alone": ({"activation_params": [0.1]}, "activation_params", "activation"),
    "overflow unknown": ({"overflow": "clip"}, "overflow", "clip", "did you mean 'saturate'"),
    "saturating floats": ({"overflow": "saturate"}, "overflow", "saturate"),
    "accuracy unknown": ({"accuracy": "exact"}, "accuracy", "exact", "strict"),
    "threads 0": ({"threads": 0}, "threads", "0"),
    "threads negative": ({"threads": -2}, "threads", "-2"),
    "threads fraction": ({"threads": 1.5}, "threads", r"1\.5"),
    "threads text": ({"threads": "two"}, "threads", "two"),
    "workspace negative": ({"workspace_limit": -1}, "workspace_limit", "-1"),
    "workspace text": ({"workspace_limit": "1 lot"}, "workspace_limit", "1 lot"),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_attributes(case: str) -> None:
    """The same answer from the call, from the layer (when it is made), and from their transposed forms."""
    keywords, *words = ATTRIBUTES[case]
    refused(ArgumentError, lambda: polyconv.conv(X, W, **keywords), *words)
    refused(ArgumentError, lambda: polyconv.conv_transpose(X, WT, **keywords), *words)
    refused(ArgumentError, lambda: polyconv.Conv(W, **keywords), *words)
    refused(ArgumentError, lambda: polyconv.ConvTranspose(WT, **keywords), *words)


TRANSPOSED = {
    "output_padding negative": ({"output_padding": -1}, "output_padding", "-1"),
    "output_padding of a stride": ({"output_padding": 2, "strides": 2}, "output_padding", "2"),
    "output_padding count": ({"output_padding": [0, 0, 0]}, "output_padding"),
    "output_padding fraction": ({"output_padding": 0.5}, "output_padding", r"0\.5"),
    "output_shape 0": ({"output_shape": [0, 5]}, "output_shape", "0"),
    "output_shape negative": ({"output_shape": [-3, 5]}, "output_shape", "-3"),
    "output_shape count": ({"output_shape": [5]}, "output_shape"),
    "output_shape fraction": ({"output_shape": [5.5, 5]}, "output_shape", r"5\.5"),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_attributes(case: str) -> None:
    keywords, *words = TRANSPOSED[case]
    refused(ArgumentError, lambda: polyconv.conv_transpose(X, WT, **keywords), *words)


def test_integers_have_their_own_activations() -> None:
    x, w = X.astype(np.int32), W.astype(np.int32)
    refused(ArgumentError, lambda: polyconv.conv(x, w, activation="Sigmoid"), "activation", "Sigmoid", "Relu")
    assert polyconv.conv(x, w, activation="Relu").dtype == np.int32


def test_unknown_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="stride"):
        polyconv.conv(X, W, stride=2)
    with pytest.raises(TypeError, match="output_padding"):
        polyconv.conv(X, W, output_padding=1)


# Sizes beyond what can be addressed

HUGE = 1 << 62

SIZES = {
    "pads": (lambda: polyconv.conv(X, W, pads=HUGE), "pads"),
    "pads beyond 64 bits": (lambda: polyconv.conv(X, W, pads=1 << 70), "pads"),
    "strides": (lambda: polyconv.conv(X, W, strides=1 << 70), "strides"),
    "dilations": (lambda: polyconv.conv(X, W, dilations=HUGE, pads=HUGE), "dilations|pads"),
    "transposed strides": (lambda: polyconv.conv_transpose(X, WT, strides=HUGE), "strides"),
    "output_shape": (lambda: polyconv.conv_transpose(X, WT, output_shape=[HUGE, HUGE]), "output"),
    "the result": (
        # a broadcast input takes no memory; the result of it would take 2^70 bytes
        lambda: polyconv.conv(np.broadcast_to(np.float32(0), (1, 1, 1 << 28, 1 << 28)), ones(4096, 1, 1, 1)),
        "y|out|result",
    ),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_that_overflow(case: str) -> None:
    call, *words = SIZES[case]
    refused(ArgumentError, call, *words)


# out, and memory


def test_out_must_be_an_array() -> None:
    for out in ([0.0], object(), bytearray(16)):
        with pytest.raises((ArgumentError, DtypeError), match="out"):
            polyconv.conv(X, W, out=out)


def test_out_read_only() -> None:
    out = np.zeros(Y, np.float32)
    out.flags.writeable = False
    refused(ArgumentError, lambda: polyconv.conv(X, W, out=out), "out", "read-only|writ")


def test_out_overlaps_itself() -> None:
    base = np.zeros((1, 6, 1, 6), np.float32)
    out = np.lib.stride_tricks.as_strided(base, Y, (base.strides[0], base.strides[1], 0, 4))
    refused(ArgumentError, lambda: polyconv.conv(X, W, out=out), "out", "overlap")


@pytest.mark.parametrize("name", ["x", "w", "b"])
def test_out_overlaps_an_input(name: str) -> None:
    memory = np.ones(4096, np.float32)
    given = {"x": X, "w": W, "b": B}
    size = given[name].size
    given[name] = memory[:size].reshape(given[name].shape)
    out = memory[size - 3 : size - 3 + 216].reshape(Y)
    before = memory.copy()
    refused(
        ArgumentError,
        lambda: polyconv.conv(given["x"], given["w"], given["b"], out=out),
        "out",
        name,
        "overlap",
    )
    np.testing.assert_array_equal(memory, before)


def test_out_may_be_the_residual_and_nothing_between() -> None:
    residual = np.full(Y, 2.0, np.float32)
    right = polyconv.conv(X, W, residual=residual)
    assert polyconv.conv(X, W, residual=residual, out=residual) is residual
    np.testing.assert_array_equal(residual, right)
    memory = np.zeros(512, np.float32)
    residual, out = memory[:216].reshape(Y), memory[1:217].reshape(Y)
    refused(
        ArgumentError, lambda: polyconv.conv(X, W, residual=residual, out=out), "out", "residual", "overlap"
    )
    assert not memory.any()


@pytest.mark.parametrize(
    "keywords",
    [{"strides": 0}, {"b": ones(5)}, {"activation": "x"}, {"residual": ones(1)}, {"threads": 0}],
    ids=lambda keywords: next(iter(keywords)),
)
def test_out_is_untouched_after_an_error(keywords: dict[str, Any]) -> None:
    out = np.full(Y, 7.0, np.float32)
    with pytest.raises(polyconv.Error):
        polyconv.conv(X, W, **keywords, out=out)
    assert (out == 7.0).all()


@pytest.mark.parametrize("name", ["x", "w", "b", "residual"])
def test_masked_arrays_are_refused(name: str) -> None:
    given: dict[str, Any] = {"x": X, "w": W, "b": B, "residual": ones(*Y)}
    given[name] = np.ma.masked_array(given[name], mask=np.zeros(given[name].shape, bool))
    refused(ArgumentError, lambda: polyconv.conv(**given), name, "mask")


def test_a_plan_wants_a_problem_with_all_its_extents() -> None:
    problem = polyconv.Problem.parse("conv f32 NCHW n1 c3 i9x9 m4 k3x3")
    assert polyconv.plan(problem).algorithm
    refused(ArgumentError, lambda: polyconv.plan(5), "problem", "int", "Problem.parse")  # type: ignore[arg-type]
    refused(ArgumentError, lambda: polyconv.plan("conv f32"), "problem text", "docs/problem-text.md")
    refused(ArgumentError, lambda: polyconv.plan(replace(problem, n=None)), "unknown", "n and i")
    refused(ArgumentError, lambda: polyconv.plan(str(replace(problem, n=None))), "unknown", "n and i")


def test_a_subclass_of_error_catches_everything() -> None:
    for call in (lambda: polyconv.conv(X, W, strides=0), lambda: polyconv.conv(X.astype(complex), W)):
        with pytest.raises(polyconv.Error):
            call()
