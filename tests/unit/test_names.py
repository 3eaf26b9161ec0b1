"""Words of other libraries: each is answered with the word that is meant here, or done where no meaning is lost."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyconv
from polyconv import dialects

X, W, B = np.ones((1, 4, 8, 8), np.float32), np.ones((6, 4, 3, 3), np.float32), np.ones(6, np.float32)
WT = np.ones((4, 6, 3, 3), np.float32)

KEYWORDS: dict[str, tuple[dict[str, Any], str]] = {
    "torch": ({"stride": 2, "padding": 1, "dilation": 2}, "strides=2, pads=1, dilations=2"),
    "torch, pairs": ({"padding": (1, 2)}, r"pads=\(1, 2\)"),
    "torch, same": ({"padding": "same"}, "auto_pad='SAME_UPPER'.*or 'SAME_LOWER'"),
    "torch, valid": ({"padding": "valid"}, "pads=0 or auto_pad='VALID'"),
    "torch, bias": ({"bias": B}, r"did you mean b\?"),
    "torch, border": ({"padding_mode": "reflect"}, r"zeros here.*numpy\.pad"),
    "onnx": ({"group": 2}, "did you mean groups=2"),
    "onnx, kernel_shape": ({"kernel_shape": [3, 3]}, "weights w carry their sizes"),
    "tensorflow": ({"data_format": "NHWC", "rate": 2}, "layout='NHWC', dilations=2"),
    "jax": ({"window_strides": (2, 2), "rhs_dilation": (1, 1)}, r"strides=\(2, 2\), dilations=\(1, 1\)"),
    "openvino": ({"pads_begin": [1, 1]}, r"pads=\[1, 1\]"),
    "scipy": ({"mode": "same"}, "auto_pad='same'"),
    "numpy": ({"dtype": np.float32}, "did you mean out_dtype"),
    "threads": ({"n_jobs": 2}, "threads=2"),
    "misspelled": ({"dilatoins": 2}, "dilations=2"),
    "case": ({"Strides": 2}, "strides=2"),
    "beyond all": ({"stride": 10**5000}, "strides=an integer of 16610 bits"),
    "a long value": ({"padding": [10**9] * 30}, r"did you mean pads\?"),
    "device": ({"device": "cuda"}, "run on the CPU"),
    "nothing like it": ({"colour": 1}, "'colour'; it takes .*strides, pads"),
}


@pytest.mark.parametrize("case", KEYWORDS)
def test_unknown_keywords(case: str) -> None:
    given, words = KEYWORDS[case]
    for call in (
        lambda: polyconv.conv(X, W, **given),
        lambda: polyconv.conv_transpose(X, WT, **given),
        lambda: polyconv.Conv(W, **given),
        lambda: polyconv.ConvTranspose(WT, **given),
    ):
        with pytest.raises(TypeError, match=words) as caught:
            call()
        for name in given:
            assert repr(name) in str(caught.value)


def test_operands_by_the_names_of_torch() -> None:
    with pytest.raises(TypeError, match=r"did you mean x, w, b\?"):
        polyconv.conv(input=X, weight=W, bias=B)  # type: ignore[call-arg]


def test_arguments_in_the_order_of_torch() -> None:
    with pytest.raises(TypeError, match=r"by position.*did you mean strides=2, pads=1, dilations=1, groups=1"):
        polyconv.conv(X, W, B, 2, 1, 1, 1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="strides=2, pads=1, output_padding=1, groups=1, dilations=1"):
        polyconv.conv_transpose(X, WT, B, 2, 1, 1, 1, 1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="strides=1, auto_pad='SAME_UPPER'"):
        polyconv.conv(X, W, B, 1, "same")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="give the others by name"):
        polyconv.conv(X, W, B, *range(20))  # type: ignore[call-arg]


def test_sizes_in_place_of_weights() -> None:
    for call in (
        lambda: polyconv.Conv(3, 64, 3),  # type: ignore[call-arg]
        lambda: polyconv.Conv(in_channels=3, out_channels=64, kernel_size=3),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match="weights w carry their sizes"):
            call()
    with pytest.raises(polyconv.ArgumentError, match="the weights themselves, not their sizes"):
        polyconv.Conv(3, 64)


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ({"auto_pad": "same_upper"}, {"auto_pad": "SAME_UPPER"}),
        ({"auto_pad": "Valid"}, {"auto_pad": "VALID"}),
        ({"layout": "nchw"}, {"layout": "NCHW"}),
    ],
)
def test_case_is_forgiven_where_no_meaning_is_lost(given: dict[str, str], right: dict[str, str]) -> None:
    np.testing.assert_array_equal(polyconv.conv(X, W, **given), polyconv.conv(X, W, **right))
    assert repr(polyconv.Conv(W, **given)) == repr(polyconv.Conv(W, **right))
    last = np.ascontiguousarray(np.moveaxis(X, 1, -1))
    np.testing.assert_array_equal(polyconv.conv(last, W, layout="nhwc"), polyconv.conv(last, W, layout="NHWC"))


ATTRIBUTES: dict[str, tuple[Callable[[], Any], str]] = {
    "onnx": (lambda: dialects.onnx.Conv(groups=2), r"did you mean group\?"),
    "onnx, torch's word": (lambda: dialects.onnx.Conv(stride=2), r"did you mean strides\?"),
    "onnx, value": (lambda: dialects.onnx.Conv(auto_pad="same"), "SAME_UPPER.*SAME_LOWER"),
    "ort": (lambda: dialects.ort.Conv(padding=[1, 1, 1, 1]), r"did you mean pads\?"),
    "openvino": (lambda: dialects.openvino.Convolution(padding=[1, 1]), r"did you mean pads_begin\?"),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_dialects_name_their_own_word(case: str) -> None:
    call, words = ATTRIBUTES[case]
    with pytest.raises(polyconv.ArgumentError, match=words):
        call()


def test_settings_too() -> None:
    with pytest.raises(TypeError, match="did you mean threads=2"), polyconv.settings(num_threads=2):
        pass


def test_signatures_stay_those_of_the_functions() -> None:
    parameters = list(inspect.signature(polyconv.conv).parameters)
    assert parameters[:4] == ["x", "w", "b", "strides"]
    assert next(iter(inspect.signature(polyconv.Conv).parameters)) == "w"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'w'"):
        polyconv.conv(X)  # type: ignore[call-arg]
