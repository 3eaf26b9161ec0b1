"""Runs that are alike give the bits of runs by steps, in memory of their own, whatever happens between them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, random
from onnx import TensorProto, helper

import polyconv
from polyconv.errors import Error
from polyconv.models import arena, replay, replays
from polyconv.models.session import InferenceSession

Feeds = Mapping[str, np.ndarray]
INT64 = TensorProto.INT64
SHAPE = (1, 8, 12, 12)


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs.split()[0], **attributes)


def _conv(x: str, y: str, w: str = "w") -> onnx.NodeProto:
    return _node("Conv", f"{x} {w}", y, pads=[1, 1, 1, 1])


def _pool(x: str, y: str) -> onnx.NodeProto:
    return _node("MaxPool", x, y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def _model(nodes: list[onnx.NodeProto], results: str = "y", extents: Any = SHAPE, **constants: Any) -> onnx.ModelProto:
    weights = {"w": random(8, 8, 3, 3, seed=1), "v": random(8, 8, 3, 3, seed=2)}
    known = {name: np.asarray(a) for name, a in (weights | constants).items()}
    read = {name for node in nodes for name in node.input}
    inputs = [info("x", extents)] + [info(n, [1], INT64) for n in ("start", "end") if n in read]
    return onnx_model(nodes, inputs, results.split(), {n: a for n, a in known.items() if n in read})


TAIL = [_pool("z", "p"), _conv("p", "q", "v"), _pool("q", "y")]
"""Own steps after what a graph is about, so that there is something to replay."""

GRAPHS: dict[str, onnx.ModelProto] = {
    "convolutions": _model([_conv("x", "a"), _node("Relu", "a", "b"), _conv("b", "z", "v"), *TAIL]),
    "own operators": _model([
        _pool("x", "a"), _node("Sigmoid", "a", "s"), _node("Mul", "a s", "m"), _pool("m", "b"),
        _node("GlobalAveragePool", "b", "g"), _node("Add", "b g", "z"), *TAIL,
    ]),
    "a residual": _model([_conv("x", "a"), _pool("a", "b"), _conv("b", "c", "v"), _node("Add", "c a", "z"), *TAIL]),
    "split": _model([
        _pool("x", "a"), _node("Split", "a", "s t", axis=1), _pool("s", "c"), _pool("t", "d"),
        _node("Concat", "c d", "z", axis=1), *TAIL,
    ]),
    "slices": _model([
        _pool("x", "a"), _node("Slice", "a from to axes", "s"), _pool("s", "c"),
        _node("Concat", "c c c", "z", axis=2), *TAIL,
    ], **{"from": [2], "to": [6], "axes": [2]}),
    "reshape": _model([
        _pool("x", "a"), _node("Reshape", "a flat", "r"), _node("Softmax", "r", "s", axis=-1),
        _node("Reshape", "s back", "z"), *TAIL,
    ], flat=[1, 8, 144], back=SHAPE),
    "transpose": _model([
        _pool("x", "a"), _node("Transpose", "a", "t", perm=[0, 2, 1, 3]), _node("Relu", "t", "r"),
        _node("Transpose", "r", "z", perm=[0, 2, 1, 3]), *TAIL,
    ]),
    "views of views": _model([
        _pool("x", "a"), _node("Split", "a", "s t", axis=1), _node("Reshape", "t four", "r"),
        _node("Split", "r", "u k", axis=1), _pool("s", "c"), _pool("u", "d"), _pool("k", "e"),
        _node("Concat", "c d e", "z", axis=1), *TAIL,
    ], four=[1, 4, 12, 12]),
    "views that outlive what is made between": _model([
        _pool("x", "a"), _node("Slice", "a from to axes", "s"), _pool("a", "b"), _pool("b", "c"), _pool("c", "d"),
        _node("Add", "d s", "z"), *TAIL,
    ], **{"from": [0], "to": [12], "axes": [2]}),
    "a view of an input": _model([_node("Split", "x", "s t", axis=1), _node("Concat", "t s", "z", axis=1), *TAIL]),
    "a host between": _model([
        _conv("x", "a"), _pool("a", "b"), _node("CumSum", "b axis", "c"), _pool("c", "z"), *TAIL,
    ], axis=np.int64(2)),
    "a host reads views": _model([
        _conv("x", "a"), _node("Split", "a", "s t", axis=1), _node("CumSum", "s axis", "c"), _pool("t", "d"),
        _node("Concat", "c d", "z", axis=1), *TAIL,
    ], axis=np.int64(2)),
    "results in the middle": _model([_conv("x", "a"), _pool("a", "z"), *TAIL], "a y z q"),
    "results that are views": _model([
        _conv("x", "a"), _pool("a", "b"), _node("Split", "b", "s t", axis=1), _node("Reshape", "a flat", "r"),
        _node("Add", "a b", "z"), *TAIL,
    ], "s y t r a", flat=[8, 144]),
    "a result that shows an input": _model([_node("Reshape", "x flat", "r"), _conv("x", "z"), *TAIL], "r y",
                                           flat=[8, 144]),
    "a result that shows what a step made": _model([
        _conv("x", "a"), _pool("a", "b"), _node("Reshape", "b flat", "y"),
    ], flat=[8, 144]),
    "a result that shows what others read": _model([
        _conv("x", "a"), _pool("a", "b"), _node("Reshape", "b flat", "r"), _pool("b", "z"), *TAIL,
    ], "r y", flat=[8, 144]),
    "a result that shows a result": _model([
        _conv("x", "a"), _pool("a", "b"), _node("Reshape", "b flat", "y"),
    ], "y b", flat=[8, 144]),
    "a result in another order than what it shows": _model([
        _conv("x", "a"), _pool("a", "b"), _node("Slice", "b from to axes", "y"),
    ], **{"from": [2], "to": [6], "axes": [2]}),
    "a result that is a part of what it shows": _model([
        _conv("x", "a"), _node("Reshape", "a planes", "p"), _pool("p", "b"), _node("Slice", "b from to axes", "y"),
    ], **{"planes": [8, 1, 12, 12], "from": [0], "to": [2], "axes": [0]}),
    "a result that is joined": _model([
        _conv("x", "a"), _pool("a", "b"), _conv("b", "c", "v"), _node("Concat", "b c", "j", axis=1),
        _node("Slice", "j from to axes", "z"), *TAIL,
    ], "y j b", **{"from": [4], "to": [12], "axes": [1]}),
    "a result that is known": _model([_node("Identity", "w", "k"), _conv("x", "z"), *TAIL], "k y"),
}  # fmt: skip


def _halves(name: str, first: str, second: str) -> onnx.NodeProto:
    return _node("Split", name, f"{first} {second}", axis=1)


def _join(names: str, y: str) -> onnx.NodeProto:
    return _node("Concat", names, y, axis=1)


_WIDE = {f"w{c}": random(8, c, 3, 3, seed=c) for c in (12, 16, 20, 24, 32)}
_CUT = {"from": [4], "to": [12], "axes": [1]}

JOINED: dict[str, tuple[onnx.ModelProto, set[str]]] = {
    "each layer reads all before it": (_model([
        _pool("x", "a"), _conv("a", "b"), _join("a b", "j"), _node("Relu", "j", "r"), _conv("r", "c", "w16"),
        _join("a b c", "k"), _conv("k", "d", "w24"), _join("a b c d", "l"), _conv("l", "z", "w32"), *TAIL,
    ], **_WIDE), {"j", "k", "l"}),
    "joins of joins": (_model([
        _pool("x", "a"), _conv("a", "b"), _join("a b", "j"), _conv("b", "c", "v"), _join("c j", "k"),
        _conv("k", "d", "w24"), _conv("j", "e", "w16"), _node("Add", "d e", "z"), *TAIL,
    ], **_WIDE), {"j", "k"}),
    "both halves of a value, and what follows from one": (_model([
        _conv("x", "a"), _halves("a", "s", "t"), _pool("t", "b"), _join("s t b", "j"), _conv("j", "z", "w12"), *TAIL,
    ], **_WIDE), {"j"}),
    "halves changed round": (_model([
        _conv("x", "a"), _halves("a", "s", "t"), _join("t s", "z"), *TAIL]), set()),
    "half a value": (_model([
        _conv("x", "a"), _halves("a", "s", "t"), _pool("t", "b"), _join("s b", "z"), _node("Relu", "t", "k"), *TAIL,
    ], "y k"), set()),
    "one value in two joins": (_model([
        _pool("x", "a"), _conv("a", "b"), _join("a b", "j"), _conv("j", "c", "w16"), _join("c a", "k"),
        _conv("k", "z", "w16"), *TAIL,
    ], **_WIDE), {"j"}),
    "one value twice": (_model([
        _pool("x", "a"), _conv("a", "b"), _join("a a b", "j"), _conv("j", "z", "w24"), *TAIL], **_WIDE), set()),
    "an input, a constant and a result": (_model([
        _pool("x", "a"), _conv("a", "b"), _join("x b", "j"), _join("b one", "k"), _join("a b", "l"),
        _conv("j", "c", "w16"), _conv("k", "d", "w16"), _conv("l", "e", "w16"), _node("Sum", "c d e", "z"), *TAIL,
    ], "y a", one=random(*SHAPE, seed=9), **_WIDE), set()),
    "what outlives a join": (_model([
        _conv("x", "a"), _pool("x", "b"), _join("a b", "j"), _conv("j", "c", "w16"), _pool("c", "d"), _pool("d", "e"),
        _node("Add", "e a", "z"), *TAIL,
    ], **_WIDE), {"j"}),
    "parts of a join": (_model([
        _conv("x", "a"), _pool("x", "b"), _join("a b", "j"), _node("Slice", "j from to axes", "s"), _pool("s", "c"),
        _join("s c", "k"), _conv("k", "z", "w16"), *TAIL,
    ], **_WIDE, **_CUT), {"j"}),
    "what a host makes": (_model([
        _conv("x", "a"), _node("CumSum", "a axis", "c"), _pool("a", "b"), _join("b c", "j"), _conv("j", "z", "w16"),
        *TAIL,
    ], axis=np.int64(2), **_WIDE), set()),
}  # fmt: skip
"""Graphs with joins, and those of which nothing is copied."""
GRAPHS |= {name: graph for name, (graph, _) in JOINED.items()}


@pytest.mark.parametrize("name", JOINED)
def test_joins_are_written_in_place(name: str) -> None:
    model, free = JOINED[name]
    session = _replaying(model, layout="model")
    session.run(None, _feeds(1))
    joins = {step.nodes[0]: step.seconds for step in session.steps if step.ops == ("Concat",)}
    assert {name for name, seconds in joins.items() if seconds == 0.0} == free


def test_joins_of_several_images_are_copied() -> None:
    model = _model([_pool("x", "a"), _conv("a", "b"), _join("a b", "j"), _conv("j", "z", "w16"), *TAIL],
                   extents=(2, 8, 12, 12), **_WIDE)  # fmt: skip
    session = _replaying(model, _feeds(0, (2, 8, 12, 12)))
    _same(session.run(None, _feeds(1, (2, 8, 12, 12))), _by_steps(model, _feeds(1, (2, 8, 12, 12))))
    assert {step.seconds == 0.0 for step in session.steps if step.ops == ("Concat",)} == {False}


def _feeds(seed: int, shape: tuple[int, ...] = SHAPE) -> dict[str, np.ndarray]:
    return {"x": random(*shape, seed=seed)}


def _by_steps(model: onnx.ModelProto, feeds: Feeds, names: Any = None, **options: Any) -> list[np.ndarray]:
    """What the first run of a session gives."""
    return InferenceSession(model, **({"threads": 1} | options)).run(names, dict(feeds))


def _same(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in want]
    assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """How many runs were replayed."""
    count, right, lock = SimpleNamespace(runs=0), replay.Replay.run, threading.Lock()

    def run(self: replay.Replay, *given: Any) -> Any:
        done = right(self, *given)
        with lock:
            count.runs += done is not None
        return done

    monkeypatch.setattr(replay.Replay, "run", run)
    yield count


def _replaying(model: onnx.ModelProto, feeds: Feeds | None = None, **options: Any) -> InferenceSession:
    """A session whose runs for such feeds are replayed."""
    session = InferenceSession(model, **({"threads": 1} | options))
    for _ in range(2):
        session.run(None, dict(feeds or _feeds(0)))
    return session


@pytest.mark.parametrize("layout", ["model", "channels_last"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_bits_are_those_of_runs_by_steps(name: str, threads: int, layout: str, counted: SimpleNamespace) -> None:
    session = _replaying(GRAPHS[name], threads=threads, layout=layout)
    for seed in range(3):
        _same(session.run(None, _feeds(seed)), _by_steps(GRAPHS[name], _feeds(seed), layout=layout))
    assert counted.runs == 3


def test_runs_that_need_much_memory_keep_none(counted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(GRAPHS))
    kept = _replaying(GRAPHS[name]).memory.replay_bytes
    assert kept > 0
    monkeypatch.setattr(replays, "MOST_BYTES", 64)
    session = _replaying(GRAPHS[name])
    _same(session.run(None, _feeds(1)), _by_steps(GRAPHS[name], _feeds(1)))
    assert counted.runs == 0
    assert session.memory.replay_bytes == 0


@pytest.mark.parametrize("name", GRAPHS)
def test_results_are_the_callers_and_inputs_stay(name: str, counted: SimpleNamespace) -> None:
    session, feeds = _replaying(GRAPHS[name]), _feeds(1)
    first = session.run(None, feeds)
    kept = [a.copy() for a in first]
    second = session.run(None, _feeds(2))
    _same(first, kept)
    held = [*first, *second, feeds["x"]]
    assert not any(np.shares_memory(a, b) for at, a in enumerate(held) for b in held[:at])
    for a in (*first, *second):
        a.fill(np.nan)  # whoever writes them disturbs nobody
    assert np.array_equal(feeds["x"], _feeds(1)["x"])
    _same(session.run(None, feeds), kept)
    assert counted.runs == 3


@pytest.mark.parametrize("name", GRAPHS)
def test_nothing_is_written_beyond_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    behind: list[np.ndarray] = []

    def watched(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        size = int(np.prod(shape)) * dtype.itemsize
        memory = np.full(size + (64 << 10), 0xA5, np.uint8)
        behind.append(memory[size:])
        return memory[:size].view(dtype).reshape(shape)

    session = _replaying(GRAPHS[name])
    monkeypatch.setattr(replay, "_new", watched)
    session.run(None, _feeds(1))
    assert all((memory == 0xA5).all() for memory in behind)


COMPUTED = _model(
    [_pool("x", "a"), _conv("a", "b"), _node("Slice", "b start end axes", "s"), _pool("b", "c"), _pool("c", "d"),
     _pool("s", "e"), _node("Concat", "e d", "y", axis=2)], axes=[2],
)  # fmt: skip


def test_places_that_a_run_computes_are_looked_up_in_each_run(counted: SimpleNamespace) -> None:
    def feeds(seed: int, start: int, end: int) -> dict[str, np.ndarray]:
        return _feeds(seed) | {"start": np.array([start]), "end": np.array([end])}

    session = _replaying(COMPUTED, feeds(0, 2, 6))
    for seed, start in ((1, 2), (2, 8), (3, 0)):
        _same(session.run(None, feeds(seed, start, start + 4)), _by_steps(COMPUTED, feeds(seed, start, start + 4)))
    assert counted.runs == 3
    _same(session.run(None, feeds(4, 1, 9)), _by_steps(COMPUTED, feeds(4, 1, 9)))  # of other extents
    assert counted.runs == 3
    for seed in (5, 6, 7):
        _same(session.run(None, feeds(seed, 3, 5)), _by_steps(COMPUTED, feeds(seed, 3, 5)))


def test_numbers_that_say_where_they_are_looked_at(counted: SimpleNamespace) -> None:
    """A slice of the very numbers that say where it begins."""
    model = _model(
        [_conv("x", "a"), _pool("a", "b"), _node("ReduceMax", "b", "m", keepdims=0), _node("Reshape", "m one", "n"),
         _node("Cast", "n", "i", to=INT64), _node("Slice", "i i one", "y"), _pool("b", "z")], "y z", one=[1],
    )  # fmt: skip
    found = []
    session = _replaying(model, {"x": np.zeros(SHAPE, np.float32)})
    for scale in (0.0, 1.0, 0.0):
        feeds = {"x": np.float32(scale) * _feeds(0)["x"]}
        got = session.run(None, feeds)
        _same(got, _by_steps(model, feeds))
        found.append(got[0].size)
    assert found == [1, 0, 1]


def test_what_is_counted_with_extents_is_counted_once(counted: SimpleNamespace) -> None:
    """A mask as long as the input, made of its shape by nodes that another engine runs: no part of a replay."""
    nodes = [
        _conv("x", "a"), _node("Shape", "a", "s"), _node("Gather", "s three", "n"),
        _node("ConstantOfShape", "n", "each", value=helper.make_tensor("v", TensorProto.INT64, [1], [1])),
        _node("CumSum", "each zero", "at", exclusive=1), _node("Less", "at two", "is"),
        _node("Cast", "is", "f", to=TensorProto.FLOAT), _node("Mul", "a f", "z"), *TAIL,
    ]  # fmt: skip
    numbers = {"zero": np.array(0), "two": np.array(2), "three": np.array([3])}
    model = _model(nodes, "y at", [1, 8, "h", "w"], **numbers)
    for shape in (SHAPE, (1, 8, 9, 31)):
        made = _replaying(model, _feeds(0, shape))
        counted.runs = 0
        feeds = _feeds(1, shape)
        results = made.run(None, feeds)
        assert counted.runs == 1
        _same(results, _by_steps(model, feeds))
        np.testing.assert_array_equal(results[1], np.arange(shape[3]))
        results[1][:] = -1  # the caller's own
        np.testing.assert_array_equal(made.run(None, feeds)[1], np.arange(shape[3]))
        assert {step.seconds for step in made.steps if step.engine == "onnxruntime"} == {0.0}


PADS = {
    "of extents": [_node("Shape", "a", "s"), _node("Slice", "s two three", "h"), _node("Mod", "h five", "odd"),
                   _node("Concat", "zeros odd zeros odd", "pads", axis=0)],
    "of a run": [_node("Concat", "zeros more zeros more", "pads", axis=0)],
}  # fmt: skip


@pytest.mark.parametrize("name", PADS)
def test_pads_that_follow_from_extents_are_part_of_a_replay(name: str, counted: SimpleNamespace) -> None:
    """Their plan follows from their values: known where these are the same in all runs, else made in each run."""
    nodes = [_conv("x", "a"), *PADS[name], _node("Pad", "a pads", "wide", mode="reflect"), _conv("wide", "z"), *TAIL]
    model = _model(nodes, "y", [1, 8, "h", "w"], two=[2], three=[3], five=[5], zeros=[0, 0, 0])
    if name == "of a run":
        model.graph.input.append(info("more", [1], INT64))
    for shape in (SHAPE, (1, 8, 9, 31)):

        def feeds(seed: int, more: int, shape: tuple[int, ...] = shape) -> dict[str, np.ndarray]:
            return _feeds(seed, shape) | ({"more": np.array([more])} if name == "of a run" else {})

        made = _replaying(model, feeds(0, 2))
        last = made._promised.program.replays._replays[-1][1]
        by_python = [made.steps[each.index].ops for each in last._pieces if not hasattr(each, "jobs")]
        assert (("Pad",) in by_python) == (name == "of a run")
        counted.runs = 0
        for seed, more in ((1, 2), (2, 4), (3, 1)):
            _same(made.run(None, feeds(seed, more)), _by_steps(model, feeds(seed, more)))
        assert counted.runs >= 1


def test_what_varies_is_not_kept() -> None:
    nodes = [_node("RandomNormal", "", "r", shape=list(SHAPE)), _node("Add", "x r", "s"), _conv("s", "z"), *TAIL]
    made = _replaying(_model(nodes))
    first, second = (made.run(None, _feeds(0))[0] for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize("names", [["y", "y"], ["s", "y", "s", "a", "a"], ["y"], ["r"]])
def test_results_that_were_asked_for(names: list[str], counted: SimpleNamespace) -> None:
    model = GRAPHS["results that are views"]
    session = InferenceSession(model, threads=1)
    for seed in range(4):
        got = session.run(names, _feeds(seed))
        _same(got, _by_steps(model, _feeds(seed), names))
        assert not any(np.shares_memory(a, b) for at, a in enumerate(got) for b in got[:at])
    assert counted.runs == (2 if len(set(names)) > 1 or names[0] == "y" else 0)  # "r" takes a single step


def test_feeds_that_lie_otherwise_or_are_larger(counted: SimpleNamespace) -> None:
    model = _model([_conv("x", "z"), *TAIL], extents=["n", 8, "h", "w"])
    session = _replaying(model)
    x = random(1, 12, 12, 8, seed=5).transpose(0, 3, 1, 2)
    backwards = random(*SHAPE, seed=6)[:, :, ::-1]
    for one in (x, backwards, random(2, 8, 12, 12), random(1, 8, 7, 9), random(1, 8, 24, 24)[:, :, ::2, ::2]):
        for _ in range(4):
            _same(session.run(None, {"x": one}), _by_steps(model, {"x": np.ascontiguousarray(one)}))
        _same(session.run(None, _feeds(1)), _by_steps(model, _feeds(1)))
    assert counted.runs >= 2 * 5


def test_sizes_that_take_turns(counted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its replay, of which those of late are kept."""
    model = _model([_conv("x", "z"), *TAIL], extents=["n", 8, "h", "w"])
    shapes = [(1, 8, 12, 12), (1, 8, 9, 20), (2, 8, 7, 11)]

    def runs(session: InferenceSession, shape: tuple[int, ...]) -> int:
        before = counted.runs
        _same(session.run(None, _feeds(1, shape)), _by_steps(model, _feeds(1, shape)))
        return counted.runs - before

    session = InferenceSession(model, threads=1)
    assert [runs(session, shape) for _ in range(5) for shape in shapes] == [0] * 6 + [1] * 9
    monkeypatch.setattr(replays, "_MOST_REPLAYS", 2)
    session = InferenceSession(model, threads=1)
    assert [runs(session, shape) for _ in range(3) for shape in shapes[:2]] == [0] * 4 + [1] * 2
    assert [runs(session, shapes[2]) for _ in range(3)] == [0, 0, 1]  # the first of them goes
    assert [runs(session, shape) for shape in shapes] == [0, 1, 1]
    assert [runs(session, shapes[0]) for _ in range(2)] == [0, 1]


def test_sizes_share_their_memory(counted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model([_conv("x", "z"), *TAIL], extents=["n", 8, "h", "w"])
    each = [_feeds(1, (1, 8, 40, width)) for width in (40, 39, 12, 38, 37, 36)]

    def replayed(*several: dict[str, np.ndarray]) -> tuple[int, int]:
        """How many of several feeds are replayed once each was run twice, and bytes that are kept for it."""
        session = InferenceSession(model, threads=1)
        for feeds in several:
            for _ in range(2):
                session.run(None, feeds)
        before = counted.runs
        for feeds in several[::-1]:
            _same(session.run(None, feeds), _by_steps(model, feeds))
        return counted.runs - before, session.memory.replay_bytes

    alone = [replayed(feeds)[1] for feeds in each]
    count, together = replayed(*each)
    assert count == len(each) and max(alone) <= together <= 2 * max(alone) < sum(alone)
    grown = replayed(each[2], each[0])
    assert grown[0] == 2 and grown[1] > max(alone)  # the smaller memory and the larger one
    monkeypatch.setattr(replays, "MOST_BYTES", grown[1] - 1)
    assert replayed(each[2], each[0])[0] == 1  # the later one alone


def test_threads_at_once_replay_in_memory_of_their_own(counted: SimpleNamespace) -> None:
    model = _model([_conv("x", "z"), *TAIL], extents=["n", 8, "h", "w"])
    one, other = _feeds(1, (1, 8, 12, 12)), _feeds(2, (1, 8, 9, 20))
    session = InferenceSession(model, threads=1)
    for _ in range(2):
        session.run(None, one)
    ((_, first),) = session._promised.program.replays._replays
    with first.arena.lock:  # as a thread has it that runs
        assert counted.runs == 0
        _same(session.run(None, one), _by_steps(model, one))  # by steps
        assert counted.runs == 0
        for _ in range(3):
            _same(session.run(None, other), _by_steps(model, other))
        assert counted.runs == 1
    _same(session.run(None, one), _by_steps(model, one))
    assert counted.runs == 2


@pytest.mark.parametrize("shape", [(0, 8, 12, 12), (1, 8, 0, 12)])
def test_inputs_of_no_elements(shape: tuple[int, ...]) -> None:
    model = _model([_node("Relu", "x", "a"), _node("Split", "a", "s t", axis=1), _node("Sigmoid", "t", "c"),
                    _node("Concat", "s c", "z", axis=1), _node("Exp", "z", "y")],
                   extents=["n", 8, "h", "w"])  # fmt: skip
    session = InferenceSession(model, threads=1)
    for _ in range(4):
        _same(session.run(None, _feeds(0, shape)), _by_steps(model, _feeds(0, shape)))
    for seed in range(4):
        _same(session.run(None, _feeds(seed)), _by_steps(model, _feeds(seed)))


def test_several_threads_run_one_session(counted: SimpleNamespace) -> None:
    model = GRAPHS["results that are views"]
    session = _replaying(model, threads=2)
    wanted = [_by_steps(model, _feeds(seed)) for seed in range(4)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        for _ in range(40):
            got = session.run(None, _feeds(seed))
            if [a.tobytes() for a in got] != [a.tobytes() for a in wanted[seed]]:
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert counted.runs > 0


def test_terminate_between_chains(counted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_CHAIN_SECONDS", 0.0)
    model = GRAPHS["own operators"]
    session = _replaying(model)

    class Ending:
        """Run options that ask a run to end after a while."""

        def __init__(self, after: int) -> None:
            self.left = after

        @property
        def terminate(self) -> bool:
            self.left -= 1
            return self.left < 0

    for after in range(3):
        with pytest.raises(Error, match="the run was asked to end, before its step"):
            session.run(None, _feeds(0), Ending(after))
    assert counted.runs == 0
    _same(session.run(None, _feeds(1)), _by_steps(model, _feeds(1)))
    assert counted.runs == 1


@pytest.mark.parametrize("given", [{"threads": 2}, {"accuracy": "fast"}, {"workspace_limit": 0}])
def test_other_settings_do_not_take_a_replay(given: dict[str, Any], counted: SimpleNamespace) -> None:
    model = GRAPHS["a residual"]
    session = InferenceSession(model)
    with polyconv.settings(threads=1):
        for _ in range(3):
            session.run(None, _feeds(0))
    assert counted.runs == 1
    with polyconv.settings(threads=1):  # the same again
        want = session.run(None, _feeds(0))
    assert counted.runs == 2
    with polyconv.settings(**given):
        want = InferenceSession(model).run(None, _feeds(1))
        _same(session.run(None, _feeds(1)), want)
        assert counted.runs == 2
        for _ in range(3):
            _same(session.run(None, _feeds(1)), want)


def test_check_mode_replays_nothing(counted: SimpleNamespace) -> None:
    model = GRAPHS["own operators"]
    session = _replaying(model)
    with polyconv.settings(check=True):
        for seed in range(4):
            _same(session.run(None, _feeds(seed)), _by_steps(model, _feeds(seed)))
    assert counted.runs == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_the_child_replays(counted: SimpleNamespace) -> None:
    model = GRAPHS["a residual"]
    session = _replaying(model, threads=2)
    want = session.run(None, _feeds(1))
    child = os.fork()
    if not child:
        same = all(session.run(None, _feeds(1))[0].tobytes() == want[0].tobytes() for _ in range(3))
        os._exit(0 if same and counted.runs == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    _same(session.run(None, _feeds(1)), want)


def test_where_there_is_no_memory_for_a_replay_runs_go_by_steps(
    counted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(arena, "aligned", refused)
    session = _replaying(GRAPHS["own operators"])
    _same(session.run(None, _feeds(1)), _by_steps(GRAPHS["own operators"], _feeds(1)))
    assert (counted.runs, session.memory.replay_bytes) == (0, 0)


def test_every_step_has_its_time(counted: SimpleNamespace) -> None:
    session = _replaying(GRAPHS["a host reads views"])
    session.run(None, _feeds(0))
    assert counted.runs == 1
    times = {step.nodes[0]: step.seconds for step in session.steps}
    assert None not in times.values()
    assert all(seconds for name, seconds in times.items() if name != "s")
    assert session.profile()["onnxruntime"] > 0


def test_extents_are_those_of_the_last_run(counted: SimpleNamespace) -> None:
    session = _replaying(_model([_conv("x", "z"), *TAIL], extents=["n", 8, "h", "w"]))
    session.run(None, _feeds(0, (2, 8, 12, 12)))
    assert session.steps[0].shapes == ((2, 8, 12, 12),)
    session.run(None, _feeds(0))
    assert counted.runs == 1
    assert session.steps[0].shapes == (SHAPE,)


def test_a_step_that_fails_in_the_middle_is_named_and_the_session_lives(counted: SimpleNamespace) -> None:
    model = _model(
        [_pool("x", "a"), _node("Slice", "a start end axes", "s"), _pool("a", "b"), _pool("b", "c"),
         _node("Gather", "c start", "g", axis=2), _pool("g", "h"), _node("Add", "h c", "y")], axes=[2],
    )  # fmt: skip
    feeds: Callable[[int], dict[str, np.ndarray]] = lambda start: _feeds(0) | {  # noqa: E731
        "start": np.array([start]), "end": np.array([12])}
    session = _replaying(model, feeds(1))
    with pytest.raises(Error, match="Gather"):
        session.run(None, feeds(12))
    _same(session.run(None, feeds(1)), _by_steps(model, feeds(1)))
