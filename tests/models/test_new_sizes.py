"""Sessions that meet image after image of another size: each result is that of a session which met this size alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, onnxruntime_run, random
from onnx import helper

import polyconv
from polyconv import Error, prepared
from polyconv.models import replays
from polyconv.operators import fusing, running

SIZES = [(1, 4, 12, 20), (1, 4, 13, 20), (2, 4, 7, 33), (1, 4, 40, 5), (1, 4, 12, 20), (1, 4, 64, 65), (3, 4, 13, 20)]


def _network(**conv: Any) -> onnx.ModelProto:
    """Two blocks with a scale a channel, a convolution that a test shapes, and a sum with what it read."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Mul", ["a", "s1"], ["b"]),
        helper.make_node("Sigmoid", ["b"], ["c"]), helper.make_node("Mul", ["c", "s2"], ["d"]),
        helper.make_node("Conv", ["d", "w2"], ["e"], **conv), helper.make_node("Add", ["e", "d"], ["f"]),
        helper.make_node("Relu", ["f"], ["g"]), helper.make_node("Mul", ["g", "s3"], ["h"]),
        helper.make_node("Sigmoid", ["h"], ["i"]), helper.make_node("Mul", ["i", "s4"], ["y"]),
    ]  # fmt: skip
    w2 = random(8, 8 // conv.get("group", 1), 3, 3, seed=2)
    constants = {"w1": random(8, 4, 3, 3, seed=1), "w2": w2, **{f"s{n}": random(8, 1, 1, seed=n) for n in range(1, 5)}}
    return onnx_model(nodes, [info("x", ["n", 4, "h", "w"])], [info("y")], constants)


SHAPED = {
    "pads": {"pads": [1, 1, 1, 1]}, "same": {"auto_pad": "SAME_UPPER"}, "groups": {"pads": [1, 1, 1, 1], "group": 8},
    "dilated": {"pads": [2, 2, 2, 2], "dilations": [2, 2]},
}  # fmt: skip


@pytest.mark.parametrize("layout", ["model", "channels_last"])
@pytest.mark.parametrize("shaped", SHAPED)
def test_a_size_gives_what_it_gives_alone(shaped: str, layout: str) -> None:
    model = _network(**SHAPED[shaped])
    session = polyconv.InferenceSession(model, threads=1, layout=layout)
    for number, shape in enumerate(SIZES):
        feeds = {"x": random(*shape, seed=number)}
        for _ in range(1 + number % 3):  # by steps, told, replayed
            (y,) = session.run(None, feeds)
        (alone,) = polyconv.InferenceSession(model, threads=1, layout=layout).run(None, feeds)
        np.testing.assert_array_equal(y, alone)
        np.testing.assert_allclose(y, onnxruntime_run(model, feeds)[0], rtol=1e-4, atol=1e-5)
        assert f"i{shape[2]}x{shape[3]}" in next(step.problem for step in session.steps if step.problem)


@pytest.mark.parametrize("layout", ["model", "channels_last"])
def test_a_size_that_fits_not_is_named_and_the_next_one_runs(layout: str) -> None:
    model = _network(pads=[1, 1, 1, 1])
    model.graph.node[0].attribute[0].ints[:] = [0, 0, 0, 0]
    session = polyconv.InferenceSession(model, threads=1, layout=layout)
    good = {"x": random(1, 4, 9, 9)}
    (first,) = session.run(None, good)
    for shape, said in (((1, 4, 9, 1), r"Conv.*extent 1"), ((1, 5, 9, 9), "input 'x'"), ((1, 4, 9), "input 'x'")):
        with pytest.raises(Error, match=said):
            session.run(None, {"x": random(*shape)})
    np.testing.assert_array_equal(session.run(None, good)[0], first)


@pytest.mark.parametrize("layout", ["model", "channels_last"])
def test_a_sum_of_other_extents_is_named(layout: str) -> None:
    """The second input has the extents of the convolution's result in one run and others in the next."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], name="first"), helper.make_node("Add", ["a", "z"], ["y"])]
    model = onnx_model(nodes, [info("x", [1, 8, "h", "w"]), info("z", [1, 8, "u", "v"])], [info("y")],
                       {"w": random(8, 8, 1, 1)})  # fmt: skip
    session = polyconv.InferenceSession(model, threads=1, layout=layout)
    for width in (9, 17):
        x, z = random(1, 8, 9, width), random(1, 8, 9, width, seed=1)
        np.testing.assert_allclose(
            session.run(None, {"x": x, "z": z})[0], onnxruntime_run(model, {"x": x, "z": z})[0], rtol=1e-4, atol=1e-5
        )
        with pytest.raises(Error, match=r"first|Add"):
            session.run(None, {"x": x, "z": z[..., 2:]})


def test_passes_share_plans_and_not_constants() -> None:
    nodes, names, constants = list[onnx.NodeProto](), ["x"], dict[str, np.ndarray]()
    for at in range(3):
        constants |= {f"w{at}": random(8, 8, 3, 3, seed=at), f"s{at}": random(8, 1, 1, seed=at)}
        nodes += [helper.make_node("Conv", [names[-1], f"w{at}"], [f"c{at}"], pads=[1, 1, 1, 1]),
                  helper.make_node("Relu", [f"c{at}"], [f"r{at}"]),
                  helper.make_node("Mul", [f"r{at}", f"s{at}"], [f"m{at}"]),
                  helper.make_node("Sigmoid", [f"m{at}"], [f"y{at}"])]  # fmt: skip
        names.append(f"y{at}")
    model = onnx_model(nodes, [info("x", ["n", 8, "h", "w"])], [info(name) for name in names[1:]], constants)
    session = polyconv.InferenceSession(model, threads=1)
    fusing._shared.cache_clear()
    feeds = {"x": random(1, 8, 11, 23)}
    for _ in range(3):
        for mine, theirs in zip(session.run(None, feeds), onnxruntime_run(model, feeds), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    met = fusing._shared.cache_info()
    assert (met.hits, met.misses) == (2, 1)


def test_a_large_constant_is_not_kept_by_a_shared_plan() -> None:
    nodes = [helper.make_node("Mul", ["x", "s"], ["a"]), helper.make_node("Sigmoid", ["a"], ["y"])]
    model = onnx_model(nodes, [info("x", ["n", 64, 80])], [info("y")], {"s": random(64, 80)})
    session = polyconv.InferenceSession(model, threads=1)
    fusing._shared.cache_clear()
    x = random(1, 64, 80)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], onnxruntime_run(model, {"x": x})[0], rtol=1e-5)
    assert fusing._shared.cache_info().misses == 0


def _note_new(monkeypatch: pytest.MonkeyPatch, kind: type, made: list[Any]) -> None:
    """Have a class note its new objects."""
    right = kind.__init__

    def noted(self: Any, *given: Any, **named: Any) -> None:
        made.append(self)
        right(self, *given, **named)

    monkeypatch.setattr(kind, "__init__", noted)


def test_tables_of_many_sizes_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sizes whose tables take more than is kept, the last few remain, and all of them run right."""
    made: dict[type, list[Any]] = {prepared.Layer: [], running.Planned: []}
    for kind in made:
        _note_new(monkeypatch, kind, made[kind])
    model = _network(pads=[1, 1, 1, 1])

    def kept() -> tuple[int, int, int]:
        """Of twelve sizes: those with a replay, and the most of a layer and of a pass."""
        for some in made.values():
            some.clear()
        session = polyconv.InferenceSession(model, threads=1)
        for width in range(20, 32):
            for _ in range(2):
                session.run(None, {"x": random(1, 4, 9, width)})
        feeds = {"x": random(1, 4, 9, 20)}
        ours, theirs = session.run(None, feeds)[0], onnxruntime_run(model, feeds)[0]
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        calls = max(len(layer._calls) for layer in made[prepared.Layer])
        return len(session._promised.program.replays._replays), calls, max(len(p._bound) for p in made[running.Planned])

    assert kept() == (12, 12, 12)
    for module in (replays, prepared, running):
        monkeypatch.setattr(module, "_MOST_TABLES", 1)
    assert kept() == (8, 8, 8)
