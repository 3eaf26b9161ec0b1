"""GatherElements by places that are the same in every run, on a kernel, against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from levels import LEVELS
from making import info, onnx_model, random, steps
from onnx import TensorProto, helper
from own_models import at_level

import polyconv
from polyconv.models.session import InferenceSession

node = helper.make_node
KINDS = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64, "uint8": TensorProto.UINT8, "bool": TensorProto.BOOL,
}  # fmt: skip


def _model(x: np.ndarray, places: np.ndarray, axis: int | None) -> Any:
    words = {} if axis is None else {"axis": axis}
    kind = KINDS[x.dtype.name]
    nodes = [node("GatherElements", ["x", "places"], ["y"], "picked", **words)]
    return onnx_model(nodes, [info("x", x.shape, kind)], [info("y", None, kind)], {"places": places})


def _right(x: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """By ONNX's definition, one by one."""
    y = np.empty(places.shape, x.dtype)
    for at in np.ndindex(*places.shape):
        source = list(at)
        source[axis] = places[at]
        y[at] = x[tuple(source)]
    return y


def _drawn(shape: tuple[int, ...], extent: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-extent, extent, shape)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_every_axis(axis: int, level: str) -> None:
    x = random(5, 6, 7)
    places = _drawn((4, 6, 3) if axis % 3 != 1 else (5, 9, 7), x.shape[axis])
    with at_level(level):
        made = InferenceSession(_model(x, places, axis))
        for _ in range(2):
            np.testing.assert_array_equal(made.run(None, {"x": x})[0], _right(x, places, axis))
    assert steps(made) == ["GatherElements"]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_every_type(dtype: str, kind: str) -> None:
    x = (random(3, 40) * 100).astype(dtype)
    places = _drawn((3, 50), 40).astype(kind)
    made = InferenceSession(_model(x, places, 1))
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], _right(x, places, 1))
    assert {record.engine for record in made.nodes} == {"polyconv"}


REPEATED = {
    "a matrix for all": ((2, 3, 8, 8), 3, (1, 1, 8, 8), (2, 3, 8, 8)),
    "a matrix for each image": ((2, 3, 8, 8), 3, (2, 1, 8, 8), (2, 3, 8, 8)),
    "a row for all": ((2, 3, 8, 8), 3, (1, 1, 1, 8), (2, 3, 5, 8)),
    "fewer rows": ((2, 3, 8, 8), 3, (1, 1, 5, 8), (2, 3, 5, 8)),
    "an axis in between": ((2, 3, 8, 8), 2, (1, 1, 8, 8), (2, 3, 8, 8)),
    "fewer heads": ((2, 3, 8, 8), 3, (1, 1, 8, 8), (2, 2, 8, 8)),
    "many": ((3, 4, 40, 90), 3, (1, 1, 40, 70), (3, 4, 40, 70)),
}
"""Shape of the input, axis, shape of the places, and to which they are repeated."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", REPEATED)
def test_places_that_are_repeated(name: str, threads: int) -> None:
    shape, axis, own, whole = REPEATED[name]
    x = random(*shape)
    places = np.ascontiguousarray(np.broadcast_to(_drawn(own, shape[axis]), whole))
    made = InferenceSession(_model(x, places, axis), threads=threads)
    for seed in range(3):
        x = random(*shape, seed=seed)
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], _right(x, places, axis))


@pytest.mark.parametrize("layout", ["model", "channels_last"])
@pytest.mark.parametrize("axis", [1, 2, 3])
def test_what_a_convolution_made(axis: int, layout: str) -> None:
    w = random(6, 3, 3, 3)
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1] * 4), node("Slice", ["c", "from", "to", "along"], ["s"]),
             node("GatherElements", ["s", "places"], ["p"], axis=axis), node("Add", ["p", "p"], ["y"])]  # fmt: skip
    places = _drawn((2, 4, 4, 5), 4)
    constants = {"w": w, "places": places, "from": np.array([1]), "to": np.array([5]), "along": np.array([1])}
    model = onnx_model(nodes, [info("x", (2, 3, 6, 7))], [info("y")], constants)
    plain = onnx_model(nodes[:2], [info("x", (2, 3, 6, 7))], [info("s")], {n: a for n, a in constants.items()
                                                                       if n != "places"})  # fmt: skip
    made, before = InferenceSession(model, layout=layout), InferenceSession(plain, layout=layout)
    for seed in range(3):
        x = random(2, 3, 6, 7, seed=seed)
        cut = before.run(None, {"x": x})[0]
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], 2 * _right(cut, places, axis))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)], ids=str)
def test_nothing_is_picked(shape: tuple[int, int]) -> None:
    x = random(3, 5)
    made = InferenceSession(_model(x, np.zeros(shape, np.int64), 1))
    assert made.run(None, {"x": x})[0].shape == shape


WRONG = {
    "outside": (np.array([[5]]), "places 5 to 5 of axis 1 lie outside of 5"),
    "before": (np.array([[0], [-6]]), "places -6 to 0 of axis 1 lie outside of 5"),
    "too many rows": (np.zeros((4, 1), np.int64), r"places of shape \(4, 1\) do not fit an input of shape \(3, 5\)"),
    "fewer axes": (np.array([1]), r"places of shape \(1,\) do not fit"),
}


@pytest.mark.parametrize("name", WRONG)
def test_places_that_are_wrong(name: str) -> None:
    places, said = WRONG[name]
    x = random(3, 5)
    with pytest.raises(polyconv.Error, match=f"picked.*{said}"):
        InferenceSession(_model(x, places, 1)).run(None, {"x": x})
