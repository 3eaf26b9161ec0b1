"""What a process leaves of how it ran a model: the next one runs it at once and alike, or goes its own way."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import leaving
import numpy as np
import onnx
import pytest
from making import info, onnx_model, random
from onnx import helper

import polyconv
from polyconv import cache
from polyconv.algorithms.table import ALGORITHMS
from polyconv.kernels.record import Function, Memory, Record, Table, Word, filled, words_of
from polyconv.kernels.word import Pointing, pointing, words
from polyconv.layer import Layer
from polyconv.models import building, kept_runs
from polyconv.models.beside import Part
from polyconv.models.content import Content
from polyconv.models.kept_runs import About
from polyconv.models.program import Program
from polyconv.models.session import InferenceSession
from polyconv.models.snapshot import bytes_of
from polyconv.problem.problem import Problem
from polyconv.target import host_target

SHAPE = 2, 16, 20, 20
NOTHING = About((), {})
pytestmark = pytest.mark.usefixtures("own_cache")


def _model(seed: int = 0, pool: int = 2) -> onnx.ModelProto:
    """Two convolutions, a pooling between them and a view behind; the first one's weights are large."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "first", pads=[1] * 4),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", kernel_shape=[2, 2], strides=[pool, pool]),
        helper.make_node("Conv", ["p", "v"], ["c"], "second"),
        helper.make_node("Reshape", ["c", "shape"], ["y"], "flat"),
    ]
    constants = {
        "w": random(128, 16, 3, 3, seed=seed), "b": random(128, seed=2), "v": random(8, 128, 1, 1, seed=1),
        "shape": np.array([0, -1]),
    }  # fmt: skip
    return onnx_model(nodes, [info("x", ["n", 16, "h", "h"])], [info("y"), info("c")], constants)


def _left(model: Any, feeds: Any = None, results: Any = None, **options: Any) -> InferenceSession:
    """A session that has run twice, after which its runs are left."""
    session = InferenceSession(model, **options)
    for _ in range(2):
        session.run(results, feeds or {"x": random(*SHAPE)})
    return session


def _by_another_process(script: str, folder: Path, *words: str) -> str:
    """What a script prints that finds its kernels in a folder, and leaves its runs there."""
    environment = {**os.environ, "POLYCONV_CACHE_DIR": str(folder)}
    environment["PYTHONPATH"] = str(Path(polyconv.__file__).parents[1])
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


TWICE = """
import sys, numpy as np, polyconv
x = np.ones((2, 16, 20, 20), np.float32)
session = polyconv.InferenceSession(sys.argv[1])
print(*(session.run(None, {"x": x})[0].sum().item().hex() for _ in range(3)))
"""


def _files() -> list[Path]:
    folder = cache.cache_folder()
    assert folder is not None
    return sorted(folder.glob("*.runs"))


# -- what is left is run at once -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"layout": "model"}, {"rewrites": "exact"}], ids=str)
def test_the_next_session_runs_at_once_with_the_same_bits(options: dict[str, Any], by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    first = _left(model, **options)
    assert len(by_steps) == 2
    assert len(_files()) == 1
    second = InferenceSession(model, **options)
    for seed in range(4):
        x = random(*SHAPE, seed=seed)
        for one, other in zip(first.run(None, {"x": x}), second.run(None, {"x": x}), strict=True):
            assert one.tobytes() == other.tobytes()
    assert len(by_steps) == 2
    assert [step.problem for step in second.steps] == [step.problem for step in first.steps]
    assert [step.held_bytes for step in second.steps] == [step.held_bytes for step in first.steps]
    assert [step.shapes for step in second.steps] == [step.shapes for step in first.steps]
    assert [node.engine for node in second.nodes] == [node.engine for node in first.nodes]
    assert None not in [step.seconds for step in second.steps]
    assert second.memory.replay_bytes == first.memory.replay_bytes > 0


def test_processes_that_run_once_leave_it_together(by_steps: list[int]) -> None:
    """The second one runs twice by steps, and leaves what it found out; so does the next one if that is spoilt."""
    model, x = _model().SerializeToString(), random(*SHAPE)

    def once() -> tuple[list[bytes], int]:
        before = len(by_steps)
        return [a.tobytes() for a in InferenceSession(model).run(None, {"x": x})], len(by_steps) - before

    expected, steps = once()
    assert (steps, _files()) == (1, [])
    assert once() == (expected, 2)
    assert once() == (expected, 0)
    _files()[0].write_bytes(b"nothing of the kind")
    assert once() == (expected, 2)
    assert once() == (expected, 0)


def test_runs_of_another_kind_than_the_process_before_had_begun_with_are_first_ones(by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    for n in (1, 2, 3):
        InferenceSession(model).run(None, {"x": random(n, *SHAPE[1:])})
    assert len(by_steps) == 3
    assert _files() == []


def test_nothing_is_compiled_that_nobody_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model().SerializeToString()
    first = _left(model)
    right, made = building.compiled, list[str]()

    def counted(graph: Any, *rest: Any) -> Program:
        made.append(graph.digest)
        return right(graph, *rest)

    monkeypatch.setattr(building, "compiled", counted)
    second = InferenceSession(model)
    assert [(o.name, o.type, o.shape) for o in second.get_outputs()] == [
        (o.name, o.type, o.shape) for o in first.get_outputs()
    ]
    for seed in range(2):
        x = random(*SHAPE, seed=seed)
        for one, other in zip(first.run(None, {"x": x}), second.run(None, {"x": x}), strict=True):
            assert one.tobytes() == other.tobytes()
    assert made == []
    assert [(n.name, n.step, n.problem) for n in second.nodes] == [(n.name, n.step, n.problem) for n in first.nodes]
    assert len(made) == 1
    for _ in range(2):
        second.run(None, {"x": random(*SHAPE)})
        second.run(["y"], {"x": random(*SHAPE)})
    assert len(made) == 1


def test_what_is_left_is_found_by_a_program_that_is_compiled(by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    first = _left(model)
    for file in _files()[0].parent.glob("*.made"):
        file.unlink()
    second = InferenceSession(model)
    for seed in range(3):
        x = random(*SHAPE, seed=seed)
        for one, other in zip(first.run(None, {"x": x}), second.run(None, {"x": x}), strict=True):
            assert one.tobytes() == other.tobytes()
    assert len(by_steps) == 2
    assert second.memory.replay_bytes == first.memory.replay_bytes


def test_runs_at_once_in_several_threads() -> None:
    model = _model().SerializeToString()
    first = _left(model)
    xs = [random(*SHAPE, seed=seed) for seed in range(8)]
    want = [first.run(None, {"x": x})[0].tobytes() for x in xs]
    for _ in range(3):
        session = InferenceSession(model, threads=2)
        with ThreadPoolExecutor(8) as pool:
            assert [y[0].tobytes() for y in pool.map(lambda x: session.run(None, {"x": x}), xs)] == want  # noqa: B023


def test_sessions_of_a_model_share_what_was_left(by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    first = _left(model)
    sessions = [InferenceSession(model) for _ in range(4)]
    xs = [random(*SHAPE, seed=seed) for seed in range(4)]
    want = [first.run(None, {"x": x})[0].tobytes() for x in xs]
    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            made = pool.map(lambda s, x: s.run(None, {"x": x})[0].tobytes(), sessions, xs)
            assert [*made] == want
    assert len(by_steps) == 2
    assert len(kept_runs._SHARED) == 1
    (shared,) = kept_runs._SHARED.values()
    assert {id(session._promised._before) for session in sessions} == {id(shared)}
    del sessions, shared
    gc.collect()
    assert len(kept_runs._SHARED) == 0


def test_many_sessions_load_kernels_once() -> None:
    model = _model().SerializeToString()
    script = """
import sys, numpy as np, polyconv
from polyconv.kernels.objects import EVENTS
loaded = []
for _ in range(3):
    polyconv.InferenceSession(sys.argv[1]).run(None, {"x": np.ones((2, 16, 20, 20), np.float32)})
    loaded.append(EVENTS.loaded)
assert loaded[0] == loaded[2] > 0 == EVENTS.compiled, loaded
"""
    folder = cache.cache_folder()
    assert folder is not None
    path = folder.parent / "model.onnx"
    path.write_bytes(model)
    _by_another_process(TWICE, folder, str(path))
    _by_another_process(script, folder, str(path))


def test_a_run_that_is_asked_to_end() -> None:
    model = _model().SerializeToString()
    _left(model)
    options = polyconv.RunOptions()
    options.terminate = True
    session = InferenceSession(model)
    with pytest.raises(polyconv.Error, match="before its step 0 of "):
        session.run(None, {"x": random(*SHAPE)}, options)
    assert len(session.run(None, {"x": random(*SHAPE)})) == 2


def test_other_extents_go_their_own_way(by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    _left(model)
    session, fresh = InferenceSession(model), InferenceSession(_model(pool=2))
    session.run(None, {"x": random(*SHAPE)})
    assert len(by_steps) == 2
    x = random(1, 16, 12, 12)
    want = fresh.run(None, {"x": x})
    for _ in range(3):
        got = session.run(None, {"x": x})
        assert [a.tobytes() for a in got] == [a.tobytes() for a in want]
    assert len(by_steps) == 2 + 1 + 2
    session.run(None, {"x": random(*SHAPE)})
    assert len(by_steps) == 2 + 1 + 2
    assert len(_files()) == 1  # of each program one way of running it is left


def test_feeds_and_results_that_nobody_ran_with(by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    _left(model)
    turned = random(SHAPE[0], *SHAPE[2:], SHAPE[1]).transpose(0, 3, 1, 2)
    for feeds, results in (({"x": turned}, None), ({"x": random(*SHAPE)}, ["c"])):
        del by_steps[:]
        InferenceSession(model).run(results, feeds)
        assert len(by_steps) == 1


@pytest.mark.parametrize("other", [{"threads": 2}, {"accuracy": "strict"}, {"layout": "model"}, {"rewrites": "exact"}])
def test_other_options_have_files_of_their_own(other: dict[str, Any], by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    _left(model, threads=1, layout="channels_last")
    InferenceSession(model, **{"threads": 1, "layout": "channels_last", **other}).run(None, {"x": random(*SHAPE)})
    assert len(by_steps) == 3


def test_other_weights_are_another_model(by_steps: list[int]) -> None:
    """Which the plans' fingerprint does not see: large weights are no part of it."""
    one, other = _model(seed=0).SerializeToString(), _model(seed=9).SerializeToString()
    _left(one)
    want = [a.tobytes() for a in _left(other).run(None, {"x": random(*SHAPE)})]
    assert len(by_steps) == 4
    assert len(_files()) == 2
    assert [a.tobytes() for a in InferenceSession(other).run(None, {"x": random(*SHAPE)})] == want
    assert [a.tobytes() for a in InferenceSession(one).run(None, {"x": random(*SHAPE)})] != want
    assert len(by_steps) == 4


@pytest.mark.parametrize(
    ("variable", "value"),
    [("POLYCONV_KEPT_RUNS", "0"), ("POLYCONV_KEPT_RUNS", "1KB"), ("POLYCONV_CHECK", "1"), ("POLYCONV_VERBOSE", "plan"),
     ("POLYCONV_RIGOR", "measure")],
)  # fmt: skip
def test_settings_with_which_nothing_is_left(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    _left(_model().SerializeToString())
    assert _files() == []
    polyconv.wisdom.forget()


def test_settings_that_change_between_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InferenceSession(_model().SerializeToString())
    for threads in "12":
        monkeypatch.setenv("POLYCONV_NUM_THREADS", threads)
        session.run(None, {"x": random(*SHAPE)})
    assert _files() == []


def test_an_input_that_chooses_a_branch_is_looked_at(by_steps: list[int]) -> None:
    """As sampling rates are; what is left is the branch that was chosen."""
    def branch(name: str) -> onnx.GraphProto:
        conv = helper.make_node("Conv", ["x", "w"], [f"{name} a"])
        nodes = [conv, helper.make_node(name, [f"{name} a"], [f"{name} b"])]
        return helper.make_graph(nodes, name, [], [info(f"{name} b")])

    nodes = [
        helper.make_node("Equal", ["rate", "most"], ["is"]),
        helper.make_node("If", ["is"], ["c"], then_branch=branch("Relu"), else_branch=branch("Abs")),
        helper.make_node("Conv", ["c", "v"], ["y"]),
    ]
    constants = {"w": random(128, 16, 3, 3), "v": random(8, 128, 1, 1, seed=1), "most": np.array(16000)}
    inputs = [info("x", SHAPE), info("rate", [], onnx.TensorProto.INT64)]
    model = onnx_model(nodes, inputs, [info("y")], constants).SerializeToString()
    x = random(*SHAPE)
    rates = [{"x": x, "rate": np.array(rate)} for rate in (16000, 8000)]
    session = _left(model, rates[0])
    assert len(_files()) == 1
    expected = [session.run(None, feeds)[0].tobytes() for feeds in rates]
    assert expected[0] != expected[1]
    for order, steps in (((0, 0, 1, 0), 2), ((1, 0, 1), 4)):  # of the graph and of the branch
        other, before = InferenceSession(model), len(by_steps)
        for which in order:
            assert other.run(None, rates[which])[0].tobytes() == expected[which]
        assert len(by_steps) - before == steps


def test_dimensions_that_the_caller_fixes(by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    _left(model)
    options = polyconv.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    session = InferenceSession(model, options)
    assert [i.shape[0] for i in session.get_inputs()] == [2]
    session.run(None, {"x": random(*SHAPE)})
    assert len(by_steps) == 3


def test_what_another_engine_runs_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "one"),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2]),
        helper.make_node("CumSum", ["b", "axis"], ["y"], "others"),
    ]
    constants = {"w": random(8, 16, 3, 3), "axis": np.array(1)}
    model = onnx_model(nodes, [info("x", SHAPE)], [info("y")], constants).SerializeToString()
    _left(model)
    assert _files() == []
    begun = list[object]()
    monkeypatch.setattr(Content, "begin", begun.append)
    _left(model)
    assert begun == []  # which the next process knows before it looks at weights


def test_weights_are_not_looked_at_where_nothing_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_KEPT_RUNS", "1KB")
    model = _model().SerializeToString()
    _left(model)
    begun = list[object]()
    monkeypatch.setattr(Content, "begin", begun.append)
    _left(model)
    assert begun == []
    assert _files() == []


def test_a_fingerprint_whose_thread_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is in a child of a process that is forked meanwhile: its own way there is as good."""
    data, parts = random(128, seed=1).tobytes(), {"b": Part(0, 256), "a": Part(256, 256)}
    content = Content("digest", data, parts)
    content.begin()
    want = content()
    lost = Content("digest", data, parts)
    with monkeypatch.context() as patch:
        patch.setattr(lost, "_find", lambda: None)
        lost.begin()
    assert lost() == want
    assert Content("digest", data, parts)() == want
    assert Content("another", data, parts)() != want
    assert Content("digest", random(128, seed=3).tobytes(), parts)() != want
    assert Content("digest", data, {"b": Part(0, 256), "c": Part(256, 256)})() != want


def test_memory_that_is_lacking(by_steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(size: int) -> memoryview:
        raise MemoryError(size)

    model = _model().SerializeToString()
    want = _left(model).run(None, {"x": random(*SHAPE)})
    monkeypatch.setattr(kept_runs, "_room", lacking)
    got = InferenceSession(model).run(None, {"x": random(*SHAPE)})
    assert [a.tobytes() for a in got] == [a.tobytes() for a in want]
    assert len(by_steps) == 3


@pytest.mark.parametrize("damage", ["cut", "bit", "other", "empty"])
def test_damaged_files_are_made_anew(damage: str, by_steps: list[int]) -> None:
    model = _model().SerializeToString()
    first = _left(model)
    (file,) = _files()
    data = bytearray(file.read_bytes())
    if damage == "other":
        cache.write(file, pickle.dumps({"not": "runs"}))
    elif damage == "bit":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    file.chmod(0o600)
    x = random(*SHAPE, seed=5)
    want = first.run(None, {"x": x})
    got = [_left(model).run(None, {"x": x}), InferenceSession(model).run(None, {"x": x})]
    assert len(by_steps) == 4  # left again, then found
    for each in got:
        assert [a.tobytes() for a in each] == [a.tobytes() for a in want]


def test_kernels_that_are_gone_are_compiled_again(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_model().SerializeToString())
    folder = tmp_path / "kept"
    want = _by_another_process(TWICE, folder, str(path))
    assert len([*folder.glob("*.runs")]) == 1
    for number, file in enumerate(sorted(folder.glob("*.o"))):
        if number % 3 == 0:
            file.unlink()
    for _ in range(2):
        assert _by_another_process(TWICE, folder, str(path)) == want


# -- by another process --------------------------------------------------------------------------------

GRAPHS = """
import json, os, sys
from pathlib import Path
from polyconv.conformance.graph_fuzz import complaints
from polyconv.conformance.graphs import drawn
from polyconv.models import building, kept_runs
from polyconv.models.content import Content
from polyconv.models.kept_runs import About
from polyconv.models.program import Program

right, count = Program._by_steps, [0]
def counted(self, *given):
    count[0] += 1
    return right(self, *given)
Program._by_steps = counted

def left():
    return sum(1 for _ in Path(os.environ["POLYCONV_CACHE_DIR"]).glob("*.runs"))

rows = []
for index in range(int(sys.argv[1])):
    graph = drawn(307, index)
    if graph.feeds:
        count[0], before = 0, left()
        rows.append([index, complaints(graph), count[0], left() - before])
print(json.dumps(rows))
"""


def test_random_graphs_of_another_process(tmp_path: Path) -> None:
    """Two processes draw the same graphs: the second one runs at once those that the first one has left."""
    found = [json.loads(_by_another_process(GRAPHS, tmp_path / "kept", "24")) for _ in range(2)]
    first, second = found
    assert [row for row in first + second if row[1]] == []
    kept = [index for index, _, _, left in first if left]
    assert len(kept) > len(first) // 2
    at_once = [index for (index, _, before, _), (_, _, after, _) in zip(first, second, strict=True) if after < before]
    assert at_once == kept
    assert not any(left for *_, left in second)


def test_every_algorithm_in_another_process(tmp_path: Path) -> None:
    """All that a program's words point to is told: another process, where nothing lies as here, runs it alike."""
    script, rows = Path(leaving.__file__).read_text(), str(tmp_path / "rows")
    ran = json.loads(_by_another_process(script, tmp_path / "kept", "leave", rows))
    here = {name for name, row in ALGORITHMS.items() if row.excluded(host_target()) is None}
    assert here - set(ran) <= {"deformable"}
    assert _by_another_process(script, tmp_path / "kept", "run", rows) == ""


# -- tables of words -----------------------------------------------------------------------------------


class Inner(Record):
    """Where something lies."""

    at: Memory


class Outer(Record):
    """Words of all kinds."""

    count: Word
    inner: Inner
    rows: Table[Inner]
    empty: Memory
    function: Function[Any]


def test_words_that_are_addresses_are_told() -> None:
    a, b = np.arange(4.0), np.arange(3)
    keep: list[Any] = []
    with pointing(told := Pointing()):
        made = filled(Outer(7, Inner(a), [Inner(b), Inner(a)], np.zeros(0), None), keep)
        mixed = words([0, *[0] * 2])
        listed = words_of(Inner(b), [5, 6], Inner(a), keep=keep)
        spliced = filled(Inner(listed), keep)
    filled(Outer(7, Inner(a), [], [], None), keep)  # nobody asks any more
    assert len(told.tables) == 5
    places = {name: array.ctypes.data for name, array in (("a", a), ("b", b), ("made", made), ("spliced", spliced))}
    _, links = told.tables[places["made"]]
    (word_a, *is_a), (word_rows, rows, size), (word_empty, _, nothing) = links
    assert (word_a, is_a, word_rows, size, word_empty, nothing) == (1, [places["a"], 32], 3, 32, 5, 0)
    assert told.tables[rows][1] == [(0, places["b"], 24), (2, places["a"], 32)]
    assert told.tables[mixed.ctypes.data][1] == []
    ((_, inner, _),) = told.tables[places["spliced"]][1]
    assert told.tables[inner][1] == [(0, places["b"], 24), (4, places["a"], 32)]


def test_an_address_that_nobody_told_is_not_left() -> None:
    """A table with an address that was written as a number, as nothing says where it is to point elsewhere."""
    layer = Layer(lambda n, i: Problem.parse("conv f32 NCHW n1 c4 i9x9 m8 k3x3"), random(8, 4, 3, 3), threads=1)
    x, y = random(1, 4, 9, 9), np.empty((1, 8, 7, 7), np.float32)
    with pointing(told := Pointing()):
        laid = leaving.laid(layer, {"x": x}, y)
    assert laid is not None
    assert bytes_of(laid, told, NOTHING, 1 << 30) is not None
    for table, links in told.tables.values():
        if links and links[0][2] > 0:
            told.tables[np.frombuffer(table, np.int64).ctypes.data] = table, links[1:]
            break
    assert bytes_of(laid, told, NOTHING, 1 << 30) is None
