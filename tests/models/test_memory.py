"""What a session says of its memory before a run is what the run takes, and views take none."""

from __future__ import annotations

import platform
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import polyconv

MIB = 1 << 20
SMALL = 64 << 10
"""Bytes that Python's own objects take beside arrays."""


def _model(nodes: list[Any], extents: list[Any], outputs: tuple[str, ...] = ("y",), **constants: Any) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, extents)
    ys = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], ys, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


def _weights(m: int, c: int) -> Any:
    return np.random.default_rng(0).standard_normal((m, c, 1, 1)).astype(np.float32)


def _pool(x: str, y: str) -> Any:
    return helper.make_node("MaxPool", [x], [y], y, kernel_shape=[3, 3], pads=[1] * 4)


def _peak(run: Callable[[], object]) -> int:
    """Bytes of arrays that were alive at once, as NumPy tells Python of them."""
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _traced(session: Any, x: Any, names: list[str] | None = None) -> int:
    """Bytes that a run by steps has alive at once."""
    session.run(names, {"x": x})  # plans and frames are kept
    with polyconv.settings(rigor="estimate"):  # unlike the run before, so that no replay is made
        return _peak(lambda: session.run(names, {"x": x}))


CHAIN = [_pool("x", "a"), _pool("a", "b"), _pool("b", "c"), _pool("c", "y")]
"""Two values of four are alive at once."""

BRANCH = [_pool("x", "a"), _pool("a", "b"), _pool("b", "c"), helper.make_node("Add", ["a", "c"], ["y"], "y")]
"""``a`` waits for ``c``: three values are alive at once, when it has been made or when the sum is."""

VIEW = [
    _pool("x", "a"), helper.make_node("Reshape", ["a", "shape"], ["r"], "r"), _pool("x", "b"), _pool("b", "c"),
    helper.make_node("Reshape", ["c", "shape"], ["s"], "s"), helper.make_node("Add", ["r", "s"], ["y"], "y"),
]  # fmt: skip
"""A reshape takes nothing, and keeps what it looks at alive."""


@pytest.mark.parametrize(("nodes", "alive", "values"), [(CHAIN, 2, 4), (BRANCH, 3, 4), (VIEW, 3, 4)])
def test_the_peak_is_known_before_the_run(nodes: list[Any], alive: int, values: int) -> None:
    constants = {"shape": np.array([1, 4, 256, 256])} if nodes is VIEW else {}
    session = polyconv.InferenceSession(_model(nodes, [1, 4, 256, 256], **constants), threads=1)
    said = session.memory
    assert (said.peak_bytes, said.sum_bytes) == (alive * MIB, values * MIB)
    taken = _traced(session, np.ones((1, 4, 256, 256), np.float32))
    assert alive * MIB <= taken <= alive * MIB + SMALL
    assert session.memory.peak_bytes == said.peak_bytes


def test_what_a_replay_keeps_is_told_and_its_runs_take_only_results() -> None:
    session = polyconv.InferenceSession(_model(CHAIN, [1, 4, 256, 256]), threads=1)
    x = np.ones((1, 4, 256, 256), np.float32)
    session.run(None, {"x": x})
    assert session.memory.replay_bytes == 0
    session.run(None, {"x": x})
    assert 2 * MIB <= session.memory.replay_bytes <= 2 * MIB + SMALL  # a and b, or b and c; a workspace
    assert MIB <= _peak(lambda: session.run(None, {"x": x})) <= MIB + SMALL


def test_open_extents_are_told_by_the_run() -> None:
    session = polyconv.InferenceSession(_model(CHAIN, ["n", 4, "h", "w"]), threads=1)
    assert (session.memory.peak_bytes, session.memory.sum_bytes) == (None, None)
    for edge in (128, 64):
        session.run(None, {"x": np.ones((2, 4, edge, edge), np.float32)})
        assert session.memory.peak_bytes == 2 * 2 * 4 * edge * edge * 4


def test_results_that_were_not_asked_for_are_not_kept() -> None:
    session = polyconv.InferenceSession(_model(CHAIN, [1, 4, 256, 256], ("y", "a")), threads=1)
    assert session.memory.peak_bytes == 3 * MIB
    assert _traced(session, np.ones((1, 4, 256, 256), np.float32), ["y"]) <= 2 * MIB + SMALL


def test_steps_tell_bytes_and_constants() -> None:
    w = _weights(8, 4)
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], "conv"), _pool("a", "y")]
    session = polyconv.InferenceSession(_model(nodes, [1, 4, 32, 32], w=w), threads=1)
    conv, pool = session.steps
    assert (conv.nodes, conv.ops, conv.engine, conv.seconds) == (("conv",), ("Conv",), "polyconv", None)
    assert conv.shapes == ((1, 8, 32, 32),) and conv.result_bytes == pool.result_bytes == 8 * 32 * 32 * 4
    assert (conv.held_bytes, pool.held_bytes) == (w.nbytes, 0)
    session.run(None, {"x": np.ones((1, 4, 32, 32), np.float32)})
    conv = session.steps[0]
    assert conv.held_bytes > w.nbytes and conv.seconds is not None and conv.seconds > 0
    assert polyconv.Problem.parse(conv.problem).m == 8
    assert session.memory.held_bytes == conv.held_bytes


def test_weights_are_held_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file's bytes nor the parser's copy stay, and a layer reads the array that was read.

    By an algorithm whose packed weights are others: those of some stand for the array, which is let go then.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        monkeypatch.setenv("POLYCONV_PROFILE", "zen5")
    w = np.random.default_rng(0).standard_normal((256, 1024, 3, 3)).astype(np.float32)
    path = tmp_path / "model.onnx"
    path.write_bytes(_model([helper.make_node("Conv", ["x", "w"], ["y"])], [1, 1024, 8, 8], w=w))
    session = polyconv.InferenceSession(path, threads=1)
    [step] = session._promised.program.steps
    ways = next(cell.cell_contents for cell in step.segment.held.__closure__)  # type: ignore[union-attr]
    x = np.ones((1, 1024, 8, 8), np.float32)
    session.run(None, {"x": x})
    held = ways._way._bound
    assert ways._made(True) is ways._made(False) is ways._way  # who could make another has let the constants go
    [layer] = held._layers.values()
    assert layer.weights.w is held.constants[1] or np.shares_memory(layer.weights.w, held.constants[1])
    assert np.array_equal(layer.weights.w, w)
    assert not layer.weights.w.flags.writeable
