"""What detectors find: places of what is not 0, elements at places, boxes that stay; onnxruntime's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from levels import LEVELS
from making import info, onnx_model, onnxruntime_run, random
from onnx import TensorProto, helper
from own_models import at_level

from polyconv.errors import ArgumentError, ModelError
from polyconv.models import InferenceSession

Feeds = Mapping[str, np.ndarray]


def _model(op: str, feeds: Feeds, constants: Feeds, kind: int = TensorProto.FLOAT, outputs: int = 1, **attributes: Any
           ) -> onnx.ModelProto:  # fmt: skip
    """A model of one node, whose inputs have the order of feeds and constants by name."""
    names = sorted([*feeds, *constants])
    inputs = [
        info(name, [f"{name}{at}" for at in range(a.ndim)], helper.np_dtype_to_tensor_dtype(a.dtype))
        for name, a in sorted(feeds.items())
    ]  # fmt: skip
    made = [f"y{at}" for at in range(outputs)]
    node = helper.make_node(op, names, made, op, **attributes)
    return onnx_model([node], inputs, [info(name, None, kind) for name in made], constants, opset=17)


def _same(model: onnx.ModelProto, feeds: Feeds, level: str | None = None) -> list[np.ndarray]:
    """What a session makes, which has the bits that onnxruntime makes; it starts no engine."""
    with at_level(level):
        session = InferenceSession(model.SerializeToString(), threads=1)
        for _ in range(3):
            ours = session.run(None, dict(feeds))
    assert {node.engine for node in session.nodes} == {"polyconv"}
    for one, other in zip(ours, onnxruntime_run(model, dict(feeds)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)
    return ours


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float32, np.uint8])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (0, 3), (1, 1)])
def test_places_of_what_is_not_zero(shape: tuple[int, ...], dtype: Any) -> None:
    x = (random(*shape) > 0.3).astype(dtype)
    _same(_model("NonZero", {"x": x}, {}, TensorProto.INT64), {"x": x})
    _same(_model("NonZero", {"x": x}, {}, TensorProto.INT64), {"x": np.zeros_like(x)})


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dims", [(5,), (2, 3), (0,)])
def test_elements_at_places(dims: tuple[int, ...], count: int) -> None:
    rng = np.random.default_rng(count)
    a, b = random(4, 5, 6), rng.integers(-4, 4, (*dims, count))
    _same(_model("GatherND", {"a": a, "b": b}, {}), {"a": a, "b": b})


@pytest.mark.parametrize("count", [1, 2, 3])
def test_elements_are_written_at_places(count: int) -> None:
    rng = np.random.default_rng(count)
    a = random(4, 5, 6)
    every = np.argwhere(np.ones(a.shape[:count]))
    b = rng.permutation(every)[:3]  # no place twice
    c = random(3, *a.shape[count:], seed=2)
    _same(_model("ScatterND", {"a": a, "b": b, "c": c}, {}), {"a": a, "b": b, "c": c})


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("is_row", [False, True])
def test_elements_are_written_along_an_axis(axis: int, dtype: Any, is_row: bool) -> None:
    a = (random(6, 5, 7) * 9).astype(dtype)
    shape = [3, 4, 5]
    shape[axis] = 2
    order = np.argsort(random(*a.shape, seed=3), axis)[:3, :4, :5].take(range(2), axis)
    if is_row:
        order = np.broadcast_to(order[tuple(slice(None) if at == axis % 3 else slice(1) for at in range(3))], shape)
    b, c = np.ascontiguousarray(order), (random(*shape, seed=2) * 9).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    _same(_model("ScatterElements", {"a": a, "b": b, "c": c}, {}, kind, axis=axis), {"a": a, "b": b, "c": c})


def _boxes(count: int, seed: int = 0, images: int = 1) -> np.ndarray:
    """Corners in any order, of boxes of which many overlap."""
    rng = np.random.default_rng(seed)
    low = rng.random((images, count, 2)) * 20
    ends = [low, low + rng.random((images, count, 2)) * 6]
    turned = rng.random((images, count, 1)) < 0.3
    return np.concatenate([np.where(turned, *ends[::-1]), np.where(turned, *ends)], -1).astype(np.float32)


LIMITS: Mapping[str, tuple[int, float | None, float | None]] = {
    "all": (1000, 0.5, None), "few": (3, 0.5, None), "none": (0, 0.5, None), "only scores": (1000, None, 0.6),
    "both": (20, 0.3, 0.4), "everything overlaps": (1000, 0.0, 0.1), "nothing does": (1000, 1.0, 0.1),
    "no score is enough": (10, 0.5, 2.0),
}  # fmt: skip


def _limits(most: int, overlap: float | None, least: float | None) -> Feeds:
    given = {"c": np.array([most])}
    if overlap is not None or least is not None:
        given["d"] = np.array([overlap or 0], np.float32)
    return given if least is None else {**given, "e": np.array([least], np.float32)}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("which", LIMITS)
@pytest.mark.parametrize("is_centred", [0, 1])
def test_boxes_that_stay(which: str, is_centred: int, level: str | None) -> None:
    boxes, scores = _boxes(150, images=2), random(2, 3, 150, seed=1).clip(0) * 0.5
    feeds = {"a": boxes, "b": scores}
    if is_centred:
        feeds["a"] = np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, abs(boxes[..., 2:] - boxes[..., :2])], -1)
    model = _model("NonMaxSuppression", feeds, _limits(*LIMITS[which]), TensorProto.INT64, center_point_box=is_centred)
    found = _same(model, feeds, level)[0]
    assert len(found) == 0 or which not in ("none", "no score is enough")


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 255, 256, 257, 600])
def test_boxes_of_any_number(count: int) -> None:
    feeds = {"a": _boxes(count), "b": np.random.default_rng(2).random((1, 1, count)).astype(np.float32)}
    _same(_model("NonMaxSuppression", feeds, _limits(count, 0.4, 0.2), TensorProto.INT64), feeds)


def test_boxes_of_one_score_come_in_their_order() -> None:
    feeds = {"a": _boxes(80), "b": np.round(np.random.default_rng(2).random((1, 2, 80)) * 4).astype(np.float32)}
    _same(_model("NonMaxSuppression", feeds, _limits(80, 0.3, None), TensorProto.INT64), feeds)


def test_boxes_without_an_extent_overlap_nothing() -> None:
    boxes = _boxes(40)
    boxes[0, ::2, 2:] = boxes[0, ::2, :2]
    boxes[0, 20:] = boxes[0, :20]
    feeds = {"a": boxes, "b": np.random.default_rng(2).random((1, 1, 40)).astype(np.float32)}
    _same(_model("NonMaxSuppression", feeds, _limits(40, 0.0, None), TensorProto.INT64), feeds)


HOSTILE: Mapping[str, tuple[str, Feeds, Feeds]] = {
    "a place outside": ("GatherND", {"a": random(4, 5), "b": np.array([[4, 0]])}, {}),
    "a place before": ("GatherND", {"a": random(4, 5), "b": np.array([[-5, 0]])}, {}),
    "too many axes": ("GatherND", {"a": random(4, 5), "b": np.array([[0, 0, 0]])}, {}),
    "written outside": ("ScatterND", {"a": random(4), "b": np.array([[4]]), "c": random(1)}, {}),
    "updates that do not fit": ("ScatterND", {"a": random(4, 5), "b": np.array([[1]]), "c": random(1, 4)}, {}),
    "written outside an axis": ("ScatterElements", {"a": random(4), "b": np.array([4]), "c": random(1)}, {}),
    "scores of other boxes": (
        "NonMaxSuppression", {"a": _boxes(5), "b": np.zeros((1, 1, 6), np.float32)}, _limits(5, 0.5, None),
    ),
    "a share above all": (
        "NonMaxSuppression", {"a": _boxes(5), "b": np.zeros((1, 1, 5), np.float32)}, _limits(5, 1.5, None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", HOSTILE)
def test_what_does_not_fit_is_an_error_that_names_the_node(which: str) -> None:
    op, feeds, constants = HOSTILE[which]
    kind = TensorProto.INT64 if op == "NonMaxSuppression" else TensorProto.FLOAT
    session = InferenceSession(_model(op, feeds, constants, kind).SerializeToString(), threads=1)
    for _ in range(2):
        with pytest.raises((ArgumentError, ModelError), match=op):
            session.run(None, dict(feeds))


def test_no_number_stays_or_goes_without_harm() -> None:
    feeds = {"a": _boxes(50), "b": np.random.default_rng(2).random((1, 1, 50)).astype(np.float32)}
    feeds["a"][0, 3], feeds["a"][0, 7, 1], feeds["b"][0, 0, 9] = np.nan, np.inf, np.nan
    model = _model("NonMaxSuppression", feeds, _limits(50, 0.5, 0.1), TensorProto.INT64)
    found = InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    assert len(set(found[:, 2].tolist())) == len(found)
    assert 9 not in found[:, 2]
