"""Steps that NumPy runs: of those whose numbers a run counted only a view is left, the others are left as they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from making import info, onnx_model, random
from onnx import helper
from onnx.reference import ReferenceEvaluator

import polyconv
from polyconv.models.session import InferenceSession

WORDS, WIDTH = 40, 12
pytestmark = pytest.mark.usefixtures("own_cache")


def _of_words() -> onnx.ModelProto:
    """Rows of a table by words, with places from sines, through two convolutions; the results by the best first."""
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["rows"], "embedded"),
        helper.make_node("Mul", ["when", "rate"], ["angle"]),
        helper.make_node("Sin", ["angle"], ["sine"], "places"),
        helper.make_node("Add", ["rows", "sine"], ["sum"]),
        helper.make_node("Transpose", ["sum"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["turned", "w"], ["a"], "first", pads=[1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["b"], "second"),
        helper.make_node("GatherElements", ["b", "places"], ["y"], "picked", axis=2),
    ]
    constants = {
        "table": random(WORDS, WIDTH), "rate": random(WIDTH, seed=1), "w": random(16, WIDTH, 3, seed=2),
        "v": random(4, 16, 1, seed=3), "places": np.array([[[5, 0], [1, 1], [2, -1], [3, 7]]]),
    }  # fmt: skip
    ids = helper.make_tensor_value_info("words", onnx.TensorProto.INT64, [1, 8])
    return onnx_model(nodes, [ids, info("when", [1, 1, 1])], [info("y")], constants)


def _feeds(seed: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    return {"words": drawn.integers(-WORDS, WORDS, (1, 8)), "when": drawn.random((1, 1, 1), np.float32)}


def test_the_next_session_runs_numpy_s_steps_alike(by_steps: list[int]) -> None:
    model = _of_words()
    first = InferenceSession(model)
    for seed in range(2):
        first.run(None, _feeds(seed))
    second, right = InferenceSession(model.SerializeToString()), ReferenceEvaluator(model)
    assert len(by_steps) == 2
    for seed in range(2, 6):
        feeds = _feeds(seed)
        (one,), (other,) = first.run(None, feeds), second.run(None, feeds)
        assert one.tobytes() == other.tobytes()
        np.testing.assert_allclose(other, right.run(None, feeds)[0], rtol=1e-4, atol=1e-4)
    assert len(by_steps) == 2
    assert [node.engine for node in second.nodes] == ["polyconv"] * len(second.nodes)


def test_a_word_that_no_table_has(by_steps: list[int]) -> None:
    """The next session says so as the first one does, and goes on."""
    model = _of_words().SerializeToString()
    first = InferenceSession(model)
    right = [first.run(None, _feeds(0))[0] for _ in range(2)][1]
    second, wrong = InferenceSession(model), _feeds(0)
    wrong["words"][0, 3] = WORDS
    said = []
    for session in (first, second):
        with pytest.raises(polyconv.Error, match=r"embedded.*elements -?[0-9]+ to 40 of axis 0") as caught:
            session.run(None, wrong)
        said.append(str(caught.value))
        assert session.run(None, _feeds(0))[0].tobytes() == right.tobytes()
    assert said[0] == said[1]
    assert len(by_steps) == 2


@pytest.mark.parametrize("extents", [(9, 12), (1, 5), (6, 6)], ids=str)
def test_views_by_counted_numbers_are_no_steps_of_a_replay(extents: tuple[int, int]) -> None:
    """Of images of any size: cut to their first half, and reshaped to rows of channels."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Shape", ["a"], ["extents"]),
        helper.make_node("Gather", ["extents", "three"], ["width"]),
        helper.make_node("Add", ["width", "one"], ["more"]),
        helper.make_node("Div", ["more", "two"], ["half"]),
        helper.make_node("Slice", ["a", "zero", "half", "three"], ["cut"], "cut"),
        helper.make_node("Conv", ["cut", "v"], ["b"], "second", pads=[1] * 4),
        helper.make_node("Concat", ["ends", "half"], ["shape"], axis=0),
        helper.make_node("Reshape", ["b", "shape"], ["rows"], "rows"),
        helper.make_node("Mul", ["rows", "rows"], ["y"]),
    ]
    constants = {
        "w": random(8, 3, 3, 3), "v": random(6, 8, 3, 3, seed=1), "three": np.array([3]), "one": np.array([1]),
        "two": np.array([2]), "zero": np.array([0]), "ends": np.array([0, -1]),
    }  # fmt: skip
    model = onnx_model(nodes, [info("x", ["n", 3, "h", "w"])], [info("y")], constants)
    session, right = InferenceSession(model), ReferenceEvaluator(model)
    for seed in range(4):
        x = random(2, 3, *extents, seed=seed)
        np.testing.assert_allclose(session.run(None, {"x": x})[0], right.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
    ((_, replay),) = session._promised.program.replays._replays
    assert [session.steps[piece.index].ops for piece in replay._pieces if not hasattr(piece, "jobs")] == []
