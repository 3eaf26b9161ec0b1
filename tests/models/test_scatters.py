"""ScatterND over a box of places is a join; over others it stays; results are onnxruntime's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from making import info, onnx_model, onnxruntime_run, random
from onnx import TensorProto, helper

from polyconv.models import InferenceSession
from polyconv.models.onnx_rules import RULES
from polyconv.models.reading import read_model
from polyconv.models.rewriting import rewritten

SHAPE = 2, 6, 5, 7


def _grid(*ranges: tuple[int, int]) -> np.ndarray:
    """All places of a box, in order."""
    return np.stack(np.meshgrid(*(np.arange(a, b) for a, b in ranges), indexing="ij"), axis=-1)


def _both(places: np.ndarray, opset: int = 17, **attributes: Any) -> tuple[set[str], list[np.ndarray]]:
    """Operators that the rewritten graph has, and our results and onnxruntime's."""
    updates = random(*places.shape[:-1], *SHAPE[places.shape[-1] :], seed=1)
    nodes = [helper.make_node("ScatterND", ["x", "places", "updates"], ["y"], **attributes)]
    inputs = [info("x", SHAPE), info("updates", updates.shape)]
    model = onnx_model(nodes, inputs, [info("y")], {"places": places}, opset=opset)
    feeds = {"x": random(*SHAPE), "updates": updates}
    graph = read_model(model.SerializeToString())
    made = rewritten(graph, [rule for rule in RULES if "ScatterND" in rule.ops], graph.constants, graph.origin.opsets)
    session = InferenceSession(model.SerializeToString())
    return {node.op for node in made.nodes}, [session.run(None, feeds)[0], onnxruntime_run(model, feeds)[0]]


BOXES = {
    "first channels": [(0, 2), (0, 3)], "last channels": [(0, 2), (2, 6)], "channels between": [(0, 2), (1, 5)],
    "images": [(1, 2)], "all": [(0, 2), (0, 6)], "rows": [(0, 2), (0, 6), (4, 5)],
    "columns": [(0, 2), (0, 6), (0, 5), (3, 5)], "from the end": [(0, 2), (-4, -1)],
}  # fmt: skip


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("box", BOXES)
def test_boxes_of_all_but_one_axis_are_joined(box: str, opset: int) -> None:
    ops, (ours, theirs) = _both(_grid(*BOXES[box]), opset)
    assert ours.tobytes() == theirs.tobytes()
    assert "Concat" in ops
    assert "ScatterND" not in ops


def _shuffled(places: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(places[:, ::-1])


OTHERS: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "a corner": (_grid((0, 1), (0, 3)), {}),
    "another order": (_shuffled(_grid((0, 2), (0, 3))), {}),
    "every second": (_grid((0, 2), (0, 6))[:, ::2], {}),
    "added": (_grid((0, 2), (0, 3)), {"reduction": "add"}),
    "a list": (_grid((0, 2), (0, 3)).reshape(-1, 2), {}),
}


@pytest.mark.parametrize("which", OTHERS)
def test_other_places_stay(which: str) -> None:
    places, attributes = OTHERS[which]
    ops, (ours, theirs) = _both(places, **attributes)
    assert ours.tobytes() == theirs.tobytes()
    assert ops == {"ScatterND"}


def test_extents_that_are_open_stay() -> None:
    nodes = [helper.make_node("ScatterND", ["x", "places", "updates"], ["y"])]
    inputs = [info("x", [2, "c", 5, 7]), info("updates", [2, 3, 5, 7])]
    model = onnx_model(nodes, inputs, [info("y")], {"places": _grid((0, 2), (0, 3))})
    feeds = {"x": random(*SHAPE), "updates": random(2, 3, 5, 7, seed=1)}
    ours = InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    assert ours.tobytes() == onnxruntime_run(model, feeds)[0].tobytes()


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_elements_of_any_type(kind: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [helper.make_node("ScatterND", ["x", "places", "updates"], ["y"])]
    updates = (random(2, 3, 5, 7, seed=1) > 0).astype(dtype)
    inputs = [info("x", SHAPE, kind), info("updates", updates.shape, kind)]
    model = onnx_model(nodes, inputs, [info("y", None, kind)], {"places": _grid((0, 2), (0, 3))})
    feeds = {"x": (random(*SHAPE) > 0).astype(dtype), "updates": updates}
    ours = InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    assert ours.tobytes() == onnxruntime_run(model, feeds)[0].tobytes()
