"""Sums of 8-bit numbers that stay in 8 bits: a warning at the caller's line, and every way to say what is meant."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyconv

KINDS = {"conv": polyconv.conv, "conv_transpose": polyconv.conv_transpose}
LAYERS = {"Conv": polyconv.Conv, "ConvTranspose": polyconv.ConvTranspose}


def image(dtype: Any) -> np.ndarray:
    return np.full((1, 1, 3), 100, dtype)


def box(dtype: Any) -> np.ndarray:
    return np.ones((1, 1, 3), dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_that_wraps_is_warned_of_at_the_callers_line(kind: str, dtype: Any) -> None:
    with pytest.warns(polyconv.OverflowWarning, match=r"out_dtype=numpy\.int32.*overflow='saturate'") as caught:
        y = KINDS[kind](image(dtype), box(dtype), pads=1)
    assert caught[0].filename == __file__
    assert issubclass(polyconv.OverflowWarning, UserWarning)
    assert y[0, 0, 1] == np.asarray(300).astype(dtype)  # it still wraps


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_warns_when_it_is_made_and_never_again(kind: str) -> None:
    with pytest.warns(polyconv.OverflowWarning) as caught:
        layer = LAYERS[kind](box(np.uint8))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(image(np.uint8))
        for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
            np.testing.assert_array_equal(other(image(np.uint8)), layer(image(np.uint8)))


SILENT: dict[str, Callable[[], Any]] = {
    "overflow wraps": lambda: polyconv.conv(image("u1"), box("u1"), overflow="wrap"),
    "overflow saturates": lambda: polyconv.conv(image("u1"), box("u1"), overflow="saturate"),
    "out_dtype wider": lambda: polyconv.conv(image("u1"), box("u1"), out_dtype=np.int32),
    "out_dtype as narrow": lambda: polyconv.conv(image("u1"), box("u1"), out_dtype=np.uint8),
    "mixed": lambda: polyconv.conv(image("u1"), box("i1"), out_dtype=np.int32),
    "16 bits": lambda: polyconv.conv(image("i2"), box("i2")),
    "float": lambda: polyconv.conv(image("f4"), box("f4")),
    "layer": lambda: polyconv.Conv(box("i1"), overflow="wrap"),
    "dialect": lambda: polyconv.dialects.openvino.Convolution(
        strides=[1], pads_begin=[0], pads_end=[0], dilations=[1]
    )(image("u1"), box("u1")),
}


@pytest.mark.parametrize("case", SILENT)
def test_who_says_what_is_meant_hears_nothing(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SILENT[case]()


def test_a_line_in_a_loop_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for extent in (3, 4, 5):
            polyconv.conv(np.ones((1, 1, extent), np.uint8), box(np.uint8))
    assert len(caught) == 1
