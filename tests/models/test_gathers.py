"""Gather by constant places that grow by equal steps is a view, of which nobody spoils what it shares with others."""

from __future__ import annotations

import numpy as np
import pytest
from making import info, onnx_model, onnxruntime_run, random
from onnx import helper

from polyconv.models import InferenceSession
from polyconv.operators.views import _steps

SHAPE = 2, 12, 12, 5


def _windows(count: int, width: int, apart: int = 1, step: int = 1) -> np.ndarray:
    """Places of the elements of windows, as PyTorch exports ``unfold``."""
    return np.arange(width)[:, None] * apart + np.arange(count) * step


GROWING = {
    "windows": _windows(10, 3), "windows apart": _windows(4, 3, 2, 2), "a range": np.arange(3, 9),
    "backwards": np.arange(7, -1, -1), "from the end": np.arange(-5, -1), "every third": np.arange(0, 12, 3),
    "one again and again": np.full((2, 4), 3), "one": np.array([5]), "one of several axes": np.array([[[5]]]),
}  # fmt: skip
OTHERS = {
    "no order": np.array([3, 1, 2]), "round the end": np.arange(-2, 3), "unequal": np.array([0, 1, 3]),
    "of two axes": np.array([[0, 1], [2, 4]]), "none": np.zeros((0, 3), np.int64),
}  # fmt: skip


@pytest.mark.parametrize("which", [*GROWING, *OTHERS])
@pytest.mark.parametrize("axis", [1, 2, -2])
@pytest.mark.parametrize("kind", [np.int64, np.int32])
def test_elements_are_those_of_the_places(which: str, axis: int, kind: type) -> None:
    places = (GROWING | OTHERS)[which].astype(kind)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Gather", ["a", "at"], ["b"], axis=axis),
        helper.make_node("Mul", ["b", "b"], ["c"]), helper.make_node("Neg", ["a"], ["d"]),
    ]  # fmt: skip
    model = onnx_model(nodes, [info("x", SHAPE)], [info("b"), info("c"), info("d")], {"at": places})
    feeds = {"x": random(*SHAPE)}
    session = InferenceSession(model.SerializeToString(), threads=1)
    for _ in range(3):
        for one, other in zip(session.run(None, feeds), onnxruntime_run(model, feeds), strict=True):
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("which", GROWING)
def test_steps_of_what_grows(which: str) -> None:
    steps = _steps(GROWING[which])
    assert steps is not None
    grid = np.indices(GROWING[which].shape)
    expected = GROWING[which].flat[0] + sum(s * g for s, g in zip(steps, grid, strict=True))
    np.testing.assert_array_equal(GROWING[which], expected)


@pytest.mark.parametrize("which", [name for name in OTHERS if name not in ("round the end", "none")])
def test_what_does_not_grow_by_equal_steps(which: str) -> None:
    assert _steps(OTHERS[which]) is None


def test_windows_are_read_by_a_convolution() -> None:
    """Of an array whose elements lie in several places at once."""
    places = _windows(10, 3)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Gather", ["a", "at"], ["b"], axis=2),
        helper.make_node("Reshape", ["b", "shape"], ["c"]), helper.make_node("Conv", ["c", "w"], ["y"]),
    ]  # fmt: skip
    constants = {"at": places, "shape": np.array([2, 36, 10, 5]), "w": random(6, 36, 3, 3)}
    model = onnx_model(nodes, [info("x", SHAPE)], [info("y")], constants)
    feeds = {"x": random(*SHAPE)}
    (ours,) = InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(ours, onnxruntime_run(model, feeds)[0], rtol=0, atol=36 * 9 * 2**-23 * 20)


def test_a_result_of_windows_can_be_written_to() -> None:
    model = onnx_model([helper.make_node("Gather", ["x", "at"], ["y"], axis=2)], [info("x", SHAPE)], [info("y")],
                       {"at": _windows(10, 3)})  # fmt: skip
    x = random(*SHAPE)
    (y,) = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert y.flags.writeable
    assert not np.may_share_memory(y, x)
