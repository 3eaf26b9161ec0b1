"""Batches whose large steps run image by image give the bits of runs of the whole batch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, random
from onnx import helper

from polyconv.conformance.graph_fuzz import complaints
from polyconv.conformance.graphs import drawn
from polyconv.machine.profile import preset
from polyconv.models import images, replay
from polyconv.models.session import InferenceSession
from polyconv.operators.images import by_image
from polyconv.operators.job import Known, Operation, Own
from polyconv.operators.running import Planned
from polyconv.operators.table import taken
from polyconv.planning import planner

BATCH = 4
SHAPE = (BATCH, 8, 12, 12)


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs.split()[0], **attributes)


def _conv(x: str, y: str, w: str = "w8") -> onnx.NodeProto:
    return _node("Conv", f"{x} {w}", y, pads=[1, 1, 1, 1])


def _pool(x: str, y: str) -> onnx.NodeProto:
    return _node("MaxPool", x, y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def _model(nodes: list[onnx.NodeProto], results: str = "y", **constants: Any) -> onnx.ModelProto:
    known = {f"w{c}": random(8, c, 3, 3, seed=c) for c in (4, 8, 16)} | constants
    read = {name for node in nodes for name in node.input}
    held = {name: np.asarray(a) for name, a in known.items() if name in read}
    return onnx_model(nodes, [info("x", SHAPE)], results.split(), held)


GRAPHS: dict[str, onnx.ModelProto] = {
    "a row of steps": _model([_conv("x", "a"), _pool("a", "b"), _conv("b", "c"), _node("Relu", "c", "y")]),
    "a residual, and values read later": _model([
        _conv("x", "a"), _pool("a", "b"), _conv("b", "c"), _node("Add", "c a", "d"), _node("Softmax", "d", "e", axis=0),
        _conv("e", "f"), _node("Add", "f b", "y"),
    ]),
    "results in the middle": _model([_conv("x", "a"), _pool("a", "b"), _conv("b", "c"), _pool("c", "y")], "b y a"),
    "joins of channels": _model([
        _conv("x", "a"), _pool("a", "b"), _node("Concat", "a b", "j", axis=1), _conv("j", "y", "w16"),
    ]),
    "joins that are results": _model([
        _conv("x", "a"), _pool("a", "b"), _node("Concat", "a b", "y", axis=1), _node("Sigmoid", "y", "z"),
    ], "y z"),
    "halves": _model([
        _conv("x", "a"), _node("Split", "a", "s t", axis=1), _pool("t", "b"), _node("Concat", "s t b s", "j", axis=1),
        _conv("j", "y", "w16"),
    ]),
    "halves that others read": _model([
        _conv("x", "a"), _node("Split", "a", "s t", axis=1), _conv("t", "b", "w4"), _pool("b", "c"),
        _node("ReduceMax", "s", "r", axes=[0], keepdims=1), _node("Add", "c b", "y"),
    ], "y r t"),
    "parts of the batch": _model([
        _conv("x", "a"), _node("Split", "a", "s t", axis=0), _node("Concat", "t s", "b", axis=0), _conv("b", "c"),
        _pool("c", "y"),
    ]),
    "another order of axes": _model([
        _conv("x", "a"), _node("Transpose", "a", "t", perm=[0, 2, 3, 1]), _node("Softmax", "t", "s", axis=-1),
        _node("Transpose", "s", "b", perm=[0, 3, 1, 2]), _conv("b", "y"),
    ]),
    "shapes that the file states": _model([
        _conv("x", "a"), _node("Reshape", "a flat", "f"), _node("Softmax", "f", "s", axis=-1),
        _node("Reshape", "s back", "b"), _conv("b", "y"),
    ], flat=[BATCH, 8, 144], back=SHAPE),
    "shapes that mix images": _model([
        _conv("x", "a"), _node("Reshape", "a flat", "f"), _node("Softmax", "f", "s", axis=1),
        _node("Reshape", "s back", "b"), _conv("b", "c"), _pool("c", "y"),
    ], flat=[BATCH, 9, 128], back=SHAPE),
    "turned images": _model([
        _conv("x", "a"), _node("Transpose", "a", "t", perm=[2, 1, 0, 3]), _node("Slice", "t from to axes", "s"),
        _pool("s", "b"), _node("Sigmoid", "b", "y"),
    ], **{"from": [0], "to": [BATCH], "axes": [0]}),
    "a host between": _model([
        _conv("x", "a"), _pool("a", "b"), _node("CumSum", "b axis", "c"), _pool("c", "d"), _conv("d", "y"),
    ], axis=np.int64(0)),
    "constants of all images": _model([
        _conv("x", "a"), _node("Mul", "a all", "b"), _conv("b", "c"), _node("Concat", "c all", "j", axis=1),
        _conv("j", "d", "w16"), _pool("d", "y"),
    ], all=random(*SHAPE, seed=7)),
    "numbers of channels, as many as images": _model([
        _node("Slice", "x from to axes", "h"), _conv("h", "a", "w4"), _node("Slice", "a from to axes", "b"),
        _node("ReduceMean", "b", "m", axes=[0, 2, 3], keepdims=1), _node("Mul", "b m", "c"), _conv("c", "d", "w4"),
        _pool("d", "y"),
    ], **{"from": [0], "to": [4], "axes": [1]}),
}  # fmt: skip


WAYS = {"each image": (64, False), "two images": (2, False), "side by side": (64, True)}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def _everything_is_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    most_groups, is_shared = request.param
    monkeypatch.setattr(images, "_LARGE", 0.0)
    monkeypatch.setattr(images, "_MOST_GROUPS", most_groups)
    monkeypatch.setattr(images, "_weighs_less", lambda step, images, size: True)
    if is_shared:
        monkeypatch.setattr(planner, "_SHARED_SECONDS", 0.0)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lanes each row has; what one of them writes, no other one reads or writes."""
    right, found = replay.Replay._side_by_side, list[int]()

    def checked(self: replay.Replay, jobs: Any) -> Any:
        read, written = defaultdict[int, list[range]](list), defaultdict[int, list[range]](list)
        for step, job, ready in jobs:
            for at, number in enumerate(job.operands):
                begin, size = ready.operands[2 * at : 2 * at + 2]
                if number is not None and begin:  # others come with a run
                    (read if number < len(step.reads) else written)[step.lane].append(range(begin, begin + size))
        constants = {c.ctypes.data for step, _, _ in jobs for c in step.plan.constants}
        for lane, ranges in written.items():
            others = [r for other in {*written, *read} - {lane} for r in (*written[other], *read[other])]
            for mine in ranges:
                meets = any(mine.start < other.stop and other.start < mine.stop for other in others)
                assert not meets or mine.start in constants
        found.append(len({step.lane for step, _, _ in jobs}))
        return right(self, jobs)

    monkeypatch.setattr(replay.Replay, "_side_by_side", checked)
    return found


def _feeds(seed: int) -> dict[str, np.ndarray]:
    return {"x": random(*SHAPE, seed=seed)}


@pytest.mark.usefixtures("_everything_is_large", "lanes")
@pytest.mark.parametrize(
    ("threads", "layout"), [(1, "model"), (2, "channels_last"), (3, "model"), (1, "channels_last")]
)
@pytest.mark.parametrize("name", GRAPHS)
def test_bits_are_those_of_the_whole_batch(name: str, threads: int, layout: str) -> None:
    session = InferenceSession(GRAPHS[name], threads=threads, layout=layout)
    kept = [(_feeds(seed), session.run(None, _feeds(seed))) for seed in (0, 0)]
    for seed in range(3):
        feeds = _feeds(seed)
        want = InferenceSession(GRAPHS[name], threads=threads, layout=layout).run(None, feeds)
        got = session.run(None, feeds)
        assert [a.shape for a in got] == [a.shape for a in want]
        assert [a.tobytes() for a in got] == [a.tobytes() for a in want]
        kept.append((feeds, got))
    for feeds, got in kept:  # results are the caller's
        want = InferenceSession(GRAPHS[name], threads=threads, layout=layout).run(None, feeds)
        assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


@pytest.mark.parametrize("_everything_is_large", [WAYS["side by side"]], indirect=True)
@pytest.mark.usefixtures("_everything_is_large")
@pytest.mark.parametrize(("threads", "rows"), [(1, []), (2, [2, 2]), (3, [3]), (4, [4]), (5, [])])
def test_each_thread_does_images_of_its_own(threads: int, rows: list[int], lanes: list[int]) -> None:
    """As many at once as there are threads; the times of steps add up to no more than the run's."""
    session = InferenceSession(GRAPHS["a row of steps"], threads=threads)
    for _ in range(2):
        session.run(None, _feeds(0))
    assert lanes == rows
    begin = perf_counter()
    session.run(None, _feeds(0))
    whole, parts = perf_counter() - begin, [step.seconds for step in session.steps]
    assert None not in parts
    assert 0 < sum(seconds or 0 for seconds in parts) <= whole


@pytest.mark.parametrize("_everything_is_large", [WAYS["side by side"]], indirect=True)
@pytest.mark.usefixtures("_everything_is_large")
def test_images_that_crowd_the_cache_are_not_side_by_side(lanes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(preset("zen5"), numbers={**preset("zen5").numbers, "l3.bytes": 10_000.0})
    monkeypatch.setattr(images, "profile_in_force", lambda: small)
    session = InferenceSession(GRAPHS["a row of steps"], threads=2)
    for _ in range(2):
        session.run(None, _feeds(0))
    assert lanes == []


@pytest.mark.usefixtures("_everything_is_large", "lanes")
def test_less_lies_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept() -> int:
        session = InferenceSession(GRAPHS["a row of steps"], threads=1, layout="model")
        for _ in range(2):
            session.run(None, _feeds(0))
        return session.memory.replay_bytes

    few = kept()
    monkeypatch.setattr(images, "_LARGE", 1.0)
    assert 0 < few < kept()


@pytest.mark.usefixtures("_everything_is_large")
def test_images_that_lie_in_another_order() -> None:
    """Feeds with channels last, images from last to first, every other one, one for all."""
    model = GRAPHS["joins of channels"]
    wide = random(2 * BATCH, *SHAPE[1:], seed=3)
    for x in (
        random(BATCH, 12, 12, 8, seed=1).transpose(0, 3, 1, 2), wide[:BATCH][::-1], wide[::2],
        np.broadcast_to(wide[:1], SHAPE),
    ):  # fmt: skip
        session = InferenceSession(model, threads=1)
        want, _, got = (session.run(None, {"x": x})[0] for _ in range(3))
        assert got.tobytes() == want.tobytes()


@pytest.mark.usefixtures("_everything_is_large", "lanes")
def test_random_graphs() -> None:
    several = [graph for graph in (drawn(5, index) for index in range(32)) if graph.feeds]
    assert [text for graph in several for text in complaints(graph)] == []


X = random(4, 4, 6, 8, seed=1)
OPERATIONS = [
    Operation("Softmax", 13, {"axis": 0}, (Known(),)), Operation("Softmax", 13, {"axis": -4}, (Known(),)),
    Operation("Softmax", 13, {}, (Known(),)), Operation("Softmax", 11, {"axis": 0}, (Known(),)),
    Operation("Softmax", 11, {}, (Known(),)), Operation("Softmax", 13, {"axis": 1}, (Known(),)),
    Operation("LayerNormalization", 17, {"axis": 0}, (Known(), X)),
    Operation("LayerNormalization", 17, {"axis": 1}, (Known(), X[0])),
    Operation("Transpose", 13, {"perm": [1, 0, 2, 3]}, (Known(),)),
    Operation("Transpose", 13, {"perm": [0, 2, 3, 1]}, (Known(),)),
    Operation("Concat", 13, {"axis": 0}, (Known(), Known())), Operation("Concat", 13, {"axis": 2}, (Known(), Known())),
    Operation("ReduceMean", 13, {"axes": [0]}, (Known(),)), Operation("ReduceMean", 13, {"axes": [1]}, (Known(),)),
    Operation("ReduceMax", 13, {"axes": [0], "keepdims": 0}, (Known(),)),
    Operation("MaxPool", 12, {"kernel_shape": [3, 3]}, (Known(),)),
    Operation("GlobalAveragePool", 1, {}, (Known(),)), Operation("DepthToSpace", 13, {"blocksize": 2}, (Known(),)),
    Operation("InstanceNormalization", 6, {}, (Known(), X[0, :, 0, 0], X[0, :, 1, 1])),
    Operation("Resize", 13, {"mode": "linear"}, (Known(), None, np.float32([1, 1, 2, 2]))),
    Operation("Resize", 13, {"mode": "linear"}, (Known(), None, None, np.int64([4, 4, 12, 8]))),
    Operation("Tile", 13, {}, (Known(), np.int64([1, 2, 1, 1]))),
    Operation("Pad", 13, {}, (Known(), np.int64([1, 0, 0, 0, -1, 0, 0, 0]))),
]  # fmt: skip
"""Inputs that come with a run are ``Known()``, the others arrays."""


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: f"{row.op} {row.attributes}")
def test_images_of_results_follow_from_those_of_inputs(row: Operation) -> None:
    inputs = tuple(
        Known("float32", X.shape) if isinstance(each, Known)
        else None if each is None else Known(each.dtype.name, each.shape, each)
        for each in row.inputs
    )  # fmt: skip
    operation = Operation(row.op, row.version, row.attributes, inputs)
    own = taken(operation)
    assert isinstance(own, Own)
    run = Planned(own.planner, 1, own.numbers)
    fed = [X + np.float32(n) for n in range(len(own.reads))]
    (whole,) = run(fed)
    images_of = [run([x[n : n + 1] for x in fed])[0] for n in range(len(X))] if by_image(operation) else []
    if images_of and all(one.shape == (1, *whole.shape[1:]) for one in images_of) and len(whole) == len(X):
        assert np.concatenate(images_of).tobytes() == whole.tobytes()
    else:
        across = row.attributes.get("axis") == 0 or row.attributes.get("axes") == [0] or row.op in ("Pad", "Resize")
        assert across or row.attributes.get("axis") == -4 or row.attributes.get("perm") == [1, 0, 2, 3]
