"""Resizing with element-wise work on its way out: bits are those of the operators one by one.

Where the resized array is a result of the model, too, nothing is taken in; what it is then is checked elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from levels import BOTH_ENDS, LEVELS
from making import info, onnx_model, random, session
from onnx import helper
from own_models import at_level, node, same_bits
from test_integer_rewrites import steps_of
from test_resizing import drawn

import polyconv
from polyconv.models.session import InferenceSession

NUMBERS = {
    "s": np.float32(0.37), "z": np.uint8(90), "t": np.float32(0.5), "i": np.int8(-7), "two": np.float32(2.0),
}  # fmt: skip
PASSES = {
    "quantised": [node("QuantizeLinear", ["u", "s", "z"], ["y"])],
    "a sigmoid, quantised": [node("Sigmoid", ["u"], ["v"]), node("QuantizeLinear", ["v", "t", "i"], ["y"])],
    "a sigmoid": [node("Sigmoid", ["u"], ["y"])],
    "a number less than twice": [node("Mul", ["two", "u"], ["v"]), node("Sub", ["t", "v"], ["y"])],
    "a square": [node("Mul", ["u", "u"], ["y"])],
}  # fmt: skip
"""Element-wise nodes from ``u`` to ``y``."""
QUANTISING = ("QuantizeLinear", "DequantizeLinear")
"""Which take f32 with the scales above."""


def resizing(x: np.ndarray, passes: list[onnx.NodeProto], a: dict[str, Any], outputs: list[str], *, dims: Any = None
             ) -> InferenceSession:  # fmt: skip
    """A session of an array that is resized, and of passes over that."""
    read = {name for n in passes for name in n.input}
    constants = {name: np.asarray(number) for name, number in NUMBERS.items() if name in read}
    if {n.op_type for n in passes}.isdisjoint(QUANTISING):
        constants = {name: number.astype(x.dtype) for name, number in constants.items()}
    scales, sizes, roi = a.get("scales"), a.get("sizes"), a.get("roi")
    names = ["x", "", "scales"] if sizes is None else ["x", "", "", "sizes"]
    constants |= {"scales": np.array(scales, np.float32)} if sizes is None else {"sizes": np.array(sizes)}
    if roi is not None:
        names[1], constants["roi"] = "roi", np.array(roi, np.float32)
    left = {name: value for name, value in a.items() if name not in ("scales", "sizes", "roi")}
    nodes = [node("Resize", names, ["u"], **left), *passes]
    given = info("x", x.shape if dims is None else dims, helper.np_dtype_to_tensor_dtype(x.dtype))
    model = onnx_model(nodes, [given], outputs, constants, opset=19)
    return session(onnx.shape_inference.infer_shapes(model))


def is_one_step(made: InferenceSession) -> bool:
    return len(steps_of(made)) == 1


@settings(max_examples=150, deadline=None)
@given(drawn(), st.sampled_from(sorted(PASSES)))
def test_bits_are_those_of_single_steps(case: Any, name: str) -> None:
    """Any axes of any rank by any numbers, whatever order the array has in memory."""
    x, a, _, _ = case
    assume(a["mode"] != "nearest" and (x.dtype == np.float32 or "quantised" not in name))
    joint, single = (resizing(x, PASSES[name], a, outputs) for outputs in (["y"], ["y", "u"]))
    assert is_one_step(joint)
    assert not is_one_step(single)
    for level in BOTH_ENDS:
        for threads in (1, 2):
            with at_level(level), polyconv.settings(threads=threads):
                same_bits(joint.run(None, {"x": x})[0], single.run(None, {"x": x})[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PASSES)
def test_what_networks_have(name: str, level: str | None) -> None:
    """Rows longer than vectors, twofold and by other numbers, with channels in both places."""
    cases = (
        ((2, 3, 9, 37), [1, 1, 2, 2]), ((1, 2, 5, 67), [1, 1, 2, 1.7]), ((2, 9, 11, 37), [1, 2, 2, 1]),
        ((1, 7, 130), [1, 2, 1]), ((1, 4, 5, 6, 18), [1, 2, 2, 2, 1]),
    )  # fmt: skip
    for shape, scales in cases:
        x = random(*shape) * 30
        for mode in ("linear", "cubic"):
            a = {"mode": mode, "scales": scales}
            joint, single = (resizing(x, PASSES[name], a, outputs) for outputs in (["y"], ["y", "u"]))
            with at_level(level):
                for _ in range(3):
                    same_bits(joint.run(None, {"x": x})[0], single.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("passes", "outputs", "dims"),
    [
        ([node("Sigmoid", ["u"], ["y"]), node("Relu", ["u"], ["r"]), node("Softmax", ["r"], ["v"])], ["y", "v"], None),
        ([node("Add", ["u", "x"], ["y"])], ["y"], None),
        ([node("Sigmoid", ["u"], ["y"])], ["y"], (None, None, None, None)),
    ],
    ids=["two results", "another array", "extents that a run tells"],
)  # fmt: skip
def test_what_is_not_taken_in_and_what_is(passes: Any, outputs: list[str], dims: Any) -> None:
    """A pass of two results, or of two arrays, is a step of its own."""
    x, a = random(1, 2, 6, 9), {"mode": "linear", "sizes": [1, 2, 6, 9]}
    joint, single = (resizing(x, passes, a, [*outputs, *more], dims=dims) for more in ([], ["u"]))
    assert is_one_step(joint) is (dims is not None)
    for ours, theirs in zip(joint.run(None, {"x": x}), single.run(None, {"x": x}), strict=False):
        same_bits(ours, theirs)


def test_arrays_without_elements() -> None:
    a = {"mode": "linear", "scales": [1, 1, 2, 2]}
    made = resizing(random(1, 2, 3, 4), PASSES["quantised"], a, ["y"], dims=("n", "c", "h", "w"))
    for shape in ((0, 2, 3, 4), (1, 2, 3, 0), (1, 2, 3, 4)):
        (y,) = made.run(None, {"x": np.zeros(shape, np.float32)})
        same_bits(y, np.full((*shape[:2], 2 * shape[2], 2 * shape[3]), 90, np.uint8))

