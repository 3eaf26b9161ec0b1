"""What a caller may wrongly give a session: the error names the argument and what the model has."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from making import info, onnx_model, random, session
from onnx import helper

from polyconv import ArgumentError, DtypeError
from polyconv.models import InferenceSession

X = random(1, 3, 8, 8)


@pytest.fixture(scope="module")
def made() -> InferenceSession:
    nodes = [helper.make_node("Conv", ["x", "w"], ["conv"]), helper.make_node("Abs", ["conv"], ["abs"])]
    return session(onnx_model(nodes, [info("x", ["N", 3, "H", "W"])], ["conv", "abs"], {"w": random(4, 3, 3, 3)}))


@pytest.mark.parametrize(
    "given", ["conv", b"conv", 5, [5], [None], [["conv"]], ["q"], object()],
    ids=["name", "bytes", "number", "list of numbers", "list of None", "list of lists", "unknown", "object"],
)
def test_output_names(made: InferenceSession, given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"output_names.*\['conv', 'abs'\]"):
        made.run(given, {"x": X})


def test_no_names_and_any_list_of_names(made: InferenceSession) -> None:
    assert len(made.run([], {"x": X})) == 2  # as onnxruntime has it
    for names in (("abs", "conv"), (name for name in ("abs", "conv")), np.array(["abs", "conv"])):
        first, second = made.run(names, {"x": X})
        np.testing.assert_array_equal(first, np.abs(second))


@pytest.mark.parametrize("given", [None, [X], 5, "x", X], ids=lambda given: type(given).__name__)
def test_input_feed(made: InferenceSession, given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"input_feed is of type .*\['x'\]"):
        made.run(None, given)


@pytest.mark.parametrize("given", [5, None, ("x",), b"x"], ids=repr)
def test_names_of_inputs(made: InferenceSession, given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"input_feed has .*\['x'\]"):
        made.run(None, {given: X})


@pytest.mark.parametrize("given", [None, [[1], [1, 2]], "abc", {}, X.astype(object), np.array("abc")], ids=repr)
def test_inputs_that_are_no_arrays(made: InferenceSession, given: Any) -> None:
    with pytest.raises((ArgumentError, DtypeError), match="the input 'x'"):
        made.run(None, {"x": given})


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="this system has no such device")  # noqa: PTH110
def test_a_device_is_no_model() -> None:
    for path in ("/dev/zero", "a\0b"):
        with pytest.raises(ArgumentError, match="is no model file"):
            InferenceSession(path)
