"""What a process leaves the next one about a model: its graph and its plans, in whatever state the files are."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, random
from onnx import helper

import polyconv
from polyconv import ModelError, cache
from polyconv.machine.profile import presets
from polyconv.models import onnx_file, onnx_reading
from polyconv.models.reading import read_model
from polyconv.target import host_target, levels

LEVEL = host_target().level
OTHER = next(n for n, p in presets().items() if LEVEL in p.levels and host_target().cpu not in p.cpus)
"""A machine profile that is not this CPU's."""

PLANNED = 4
"""Of two convolutions, in both orders of axes: prices say which the network has."""

SCRIPT = """
import hashlib, json, logging, sys

class Heard(logging.Handler):
    messages = []
    def emit(self, record):
        self.messages.append(record.getMessage())

logging.getLogger("polyconv").addHandler(Heard())
import numpy as np
import polyconv
from polyconv.planning import planner
session = polyconv.InferenceSession(sys.argv[1], **json.loads(sys.argv[2]))
x = (np.arange(1 * 16 * 20 * 20, dtype=np.float32) % 7 - 3).reshape(1, 16, 20, 20)
y = session.run(None, {"x": x})[0]
print(json.dumps({
    "digest": hashlib.sha256(y.tobytes()).hexdigest(), "onnx": "onnx" in sys.modules,
    "planned": planner._cheapest.cache_info().misses, "heard": Heard.messages,
    "problems": [step.problem for step in session.steps], "modules": [m for m in sys.modules if "polyconv" in m],
}))
"""


def _model(w: np.ndarray | None = None, **fields: Any) -> onnx.ModelProto:
    """Two convolutions, of which the first has large weights, and a pooling between them."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1] * 4),
        helper.make_node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["b", "v"], ["c"], "second"),
        helper.make_node("Reshape", ["c", "shape"], ["y"], "flat"),
    ]
    constants = {
        "w": random(128, 16, 3, 3) if w is None else w, "v": random(8, 128, 1, 1, seed=1), "shape": np.array([1, -1]),
    }  # fmt: skip
    return onnx_model(nodes, [info("x", [1, 16, 20, 20])], [info("y")], constants, **fields)


def _run(path: Path, folder: Path | str, options: dict[str, Any] | None = None, **variables: str) -> dict[str, Any]:
    """What a fresh process finds with this cache."""
    environment = {**os.environ, "POLYCONV_CACHE_DIR": str(folder), "POLYCONV_WISDOM": "off", **variables}
    environment["PYTHONPATH"] = str(Path(polyconv.__file__).parents[1])
    words = [sys.executable, "-c", SCRIPT, str(path), json.dumps({"threads": 1, **(options or {})})]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the model."""
    made = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(_model(), str(made))
    return made


@pytest.fixture(scope="module")
def filled(path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A cache that one process has filled, and what that process found."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    return folder, _run(path, folder)


def _copy(folder: Path, target: Path) -> Path:
    """Another folder with the same files."""
    target.mkdir(mode=0o700)
    for file in folder.iterdir():
        made = target / file.name
        made.write_bytes(file.read_bytes())
        made.chmod(0o600)
    return target


def _of_models(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.suffix in (".model", ".plans")}


def test_sessions_import_what_they_need(filled: tuple[Path, dict[str, Any]], path: Path) -> None:
    """No kernels of a GPU; algorithms where plans are made, of which one that is left names its own."""
    folder, first = filled
    second = _run(path, folder)
    for found in (first, second):
        assert not [m for m in found["modules"] if m.startswith(("polyconv.operators.on_gpu", "polyconv.gpu.kernels"))]
    others = {f"polyconv.algorithms.{name}.form" for name in ("fourier", "generic")}
    assert others <= set(first["modules"])
    assert others.isdisjoint(second["modules"])
    assert not [m for m in first["modules"] if "deformable" in m and "algorithms" in m]  # no node needs it


def test_the_second_process_neither_asks_onnx_nor_plans(path: Path, filled: tuple[Path, dict[str, Any]]) -> None:
    folder, first = filled
    assert first["onnx"] and first["planned"] == PLANNED and sorted(Path(n).suffix for n in _of_models(folder)) == [
        ".model", ".plans"
    ]  # fmt: skip
    before = _of_models(folder)
    second = _run(path, folder)
    assert not second["onnx"] and second["planned"] == 0 and second["heard"] == []
    assert (second["digest"], second["problems"]) == (first["digest"], first["problems"])
    assert _of_models(folder) == before


def _whole(payload: bytes) -> bytes:
    """A file of the cache with this payload, whole by its checksum."""
    return cache._MAGIC + hashlib.sha256(payload).digest() + payload


@pytest.mark.parametrize("kind", [".model", ".plans"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "another object", "no object", "a class that is gone"])
def test_damaged_files_are_made_anew(path: Path, filled: tuple[Path, dict[str, Any]], tmp_path: Path, kind: str,
                                     damage: str) -> None:  # fmt: skip
    folder = _copy(filled[0], tmp_path / "cache")
    [file] = [f for f in folder.iterdir() if f.suffix == kind]
    right = file.read_bytes()
    middle = len(right) // 2
    file.write_bytes({
        "flipped": right[:middle] + bytes([right[middle] ^ 1]) + right[middle + 1 :], "cut": right[:middle],
        "empty": b"", "another object": _whole(b"\x80\x05K\x01."), "no object": _whole(b"no pickle at all"),
        "a class that is gone": _whole(b"cpolyconv.gone\nGraph\n."),
    }[damage])  # fmt: skip
    found = _run(path, folder)
    assert found["digest"] == filled[1]["digest"]
    assert file.read_bytes() == right
    assert bool(found["onnx"]) == (kind == ".model") and bool(found["planned"]) == (kind == ".plans")


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"accuracy": "strict"}, {}), ({"threads": 2}, {}), ({"workspace_limit": 0}, {}),
        ({}, {"POLYCONV_PROFILE": OTHER}), ({}, {"POLYCONV_TARGET": levels()[0]}),
    ],
)  # fmt: skip
def test_other_settings_find_their_own_plans(path: Path, filled: tuple[Path, dict[str, Any]], tmp_path: Path,
                                             options: dict[str, Any], variables: dict[str, str]) -> None:  # fmt: skip
    """Bits are those of a process that finds nothing, and what stood there for the old settings is still found."""
    folder = _copy(filled[0], tmp_path / "cache")
    fresh = _run(path, tmp_path / "fresh", options, **variables)
    assert _run(path, folder, options, **variables)["digest"] == fresh["digest"]
    again, old = _run(path, folder, options, **variables), _run(path, folder)
    assert again["planned"] == old["planned"] == 0
    assert (again["digest"], old["digest"]) == (fresh["digest"], filled[1]["digest"])


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "getuid"), reason="modes of POSIX")
def test_a_cache_that_cannot_be_written_is_read(
    path: Path, filled: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = _copy(filled[0], tmp_path / "cache")
    for file in folder.iterdir():
        if file.suffix == ".plans":
            file.unlink()
    folder.chmod(0o500)
    found = _run(path, folder)
    folder.chmod(0o700)
    assert found["digest"] == filled[1]["digest"] and not found["onnx"] and found["planned"] == PLANNED
    if os.getuid():  # root writes all the same
        assert not any(name.endswith(".plans") for name in _of_models(folder))
        assert "cannot be written" in found["heard"][0]


def test_without_a_folder_nothing_is_left(path: Path, tmp_path: Path, filled: tuple[Path, dict[str, Any]]) -> None:
    (tmp_path / "a file").write_text("")
    found = _run(path, tmp_path / "a file")
    assert found["digest"] == filled[1]["digest"] and found["onnx"] and found["planned"] == PLANNED


# -- in one process ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A cache of our own."""
    before = cache.cache_folder() if cache.has_folder() else ...
    made = tmp_path / "cache"
    made.mkdir(mode=0o700)
    cache.use_folder(made)
    yield made
    cache._folder[:] = [] if before is ... else [before]


def _must_not_parse(*_: Any) -> Any:
    raise AssertionError("parsed anew")


def _kept(folder: Path) -> int:
    return sum(file.suffix == ".model" for file in folder.iterdir())


def test_weights_are_those_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files that differ in large values alone have one graph, and each its values."""
    read_model(_model().SerializeToString())
    monkeypatch.setattr(onnx_file, "parsed", _must_not_parse)
    for seed in (5, 6):
        w = random(128, 16, 3, 3, seed=seed)
        graph = read_model(_model(w).SerializeToString())
        np.testing.assert_array_equal(graph.constants["w"], w)
        np.testing.assert_array_equal(graph.constants["v"], random(8, 128, 1, 1, seed=1))
    with pytest.raises(AssertionError, match="parsed anew"):
        read_model(_model(random(64, 16, 3, 3)).SerializeToString())


def test_the_same_graph_comes_back(folder: Path) -> None:
    data = _model().SerializeToString()
    first, second = read_model(data), read_model(data)
    assert _kept(folder) == 1
    for name in ("format", "inputs", "outputs", "results", "defaults", "stated", "about", "digest"):
        assert getattr(first, name) == getattr(second, name), name
    assert list(first.constants) == list(second.constants) and first.origin.opsets == second.origin.opsets
    for one, other in zip(first.nodes, second.nodes, strict=True):
        assert one.origin.message == other.origin.message
        for field in ("name", "op", "domain", "version", "inputs", "outputs", "attributes", "captured", "hidden"):
            assert getattr(one, field) == getattr(other, field), field


@pytest.mark.parametrize("change", [-4, 4])
def test_values_that_do_not_fit_are_refused_as_before(folder: Path, change: int) -> None:
    model = _model()
    read_model(model.SerializeToString())
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    tensor.raw_data = tensor.raw_data[:change] if change < 0 else tensor.raw_data + bytes(change)
    with pytest.raises(ModelError, match=r"initialiser 'w' of shape .* needs 73728 bytes, the file holds"):
        read_model(model.SerializeToString())


def test_a_file_may_go_once_it_is_read(folder: Path, tmp_path: Path) -> None:
    file, x = tmp_path / "model.onnx", random(1, 16, 20, 20, seed=3)
    file.write_bytes(_model().SerializeToString())
    expected = polyconv.InferenceSession(file, threads=1).run(None, {"x": x})[0]
    session = polyconv.InferenceSession(file, threads=1)  # reads what the first one left
    file.unlink()
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


def test_what_lies_elsewhere_is_not_left(folder: Path, tmp_path: Path) -> None:
    """External data may change while the model stays, and so may what inference read of it."""
    file = tmp_path / "model.onnx"
    for seed in (1, 2):
        w = random(128, 16, 3, 3, seed=seed)
        onnx.save(_model(w), str(file), save_as_external_data=True, location="data.bin", size_threshold=0)
        np.testing.assert_array_equal(read_model(file).constants["w"], w)
        (tmp_path / "data.bin").unlink()
    assert _kept(folder) == 0


def test_models_with_functions_and_packed_values_are_parsed_each_time(folder: Path) -> None:
    body = [helper.make_node("Conv", ["a", "b"], ["c"])]
    function = helper.make_function("own", "F", ["a", "b"], ["c"], body, [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("F", ["x", "w"], ["y"], domain="own")]
    w = random(128, 16, 3, 3)
    model = onnx_model(nodes, [info("x", [1, 16, 20, 20])], [info("y")], {"w": w}, domains={"own": 1},
                       functions=[function])  # fmt: skip
    four = np.arange(1 << 18, dtype=np.int64) % 7
    packed = _model(opset=21, ir_version=10)
    pairs = (four[::2] | four[1::2] << 4).astype(np.uint8)
    packed.graph.initializer.append(
        onnx.TensorProto(name="q", data_type=onnx.TensorProto.INT4, dims=[1 << 18], raw_data=pairs.tobytes())
    )
    for data in (model.SerializeToString(), packed.SerializeToString()):
        for _ in range(2):
            graph = read_model(data)
            np.testing.assert_array_equal(graph.constants["w"], w)
        if "q" in graph.constants:
            np.testing.assert_array_equal(graph.constants["q"].astype(np.int64), four)
    assert _kept(folder) == 0


def test_another_onnx_package_judges_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _model().SerializeToString()
    read_model(data)
    monkeypatch.setattr(onnx_file, "parsed", _must_not_parse)
    read_model(data)
    monkeypatch.setattr(onnx_reading, "package", lambda name: ("another",))
    with pytest.raises(AssertionError, match="parsed anew"):
        read_model(data)


def test_hosts_get_the_file_s_own_nodes(folder: Path) -> None:
    """A node that onnxruntime runs keeps what only its own message says: here a graph among its attributes."""
    branch = [
        helper.make_graph([helper.make_node(op, ["x"], [name])], op, [], [info(name)])
        for op, name in (("Exp", "p"), ("Neg", "q"))
    ]
    nodes = [helper.make_node("If", ["yes"], ["y"], then_branch=branch[0], else_branch=branch[1])]
    inputs = [info("x", [3]), helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, [])]
    data = onnx_model(nodes, inputs, [info("y", [3])]).SerializeToString()
    x = np.array([0, 1, 2], np.float32)
    for _ in range(2):
        session = polyconv.InferenceSession(data)
        for yes, expected in ((True, np.exp(x)), (False, -x)):
            [y] = session.run(None, {"x": x, "yes": np.array(yes)})
            np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert _kept(folder) == 1


def test_wisdom_counts_more_than_plans_that_were_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, x = _model().SerializeToString(), random(1, 16, 20, 20, seed=3)

    def algorithm() -> list[str]:
        session = polyconv.InferenceSession(data, threads=1)
        session.run(None, {"x": x})
        return [d for d in asked if d]

    from polyconv import prepared

    asked: list[str] = []
    monkeypatch.setattr(prepared, "decided", lambda s, rigor, known=None: _decision(s, asked))
    assert not algorithm()
    asked.append("")
    assert algorithm() == ["direct"]


def _decision(s: Any, asked: list[str]) -> Any:
    """What wisdom says of the layers of 3x3 once it is asked for it."""
    from polyconv.planning.planner import Decision

    if not asked or s.problem.k != (3, 3):
        return None
    asked.append("direct")
    return Decision("direct", "wisdom")


@pytest.mark.parametrize("seed", range(40))
def test_what_damaged_models_say_does_not_depend_on_what_was_left(folder: Path, seed: int) -> None:
    """Bytes flipped or cut are read, or refused with the same words, whether something was left or not."""
    rng = np.random.default_rng(seed)
    data = bytearray(_model().SerializeToString())
    head = len(data) - 4200  # large values lie before; names, small values, nodes behind
    for at in rng.integers(head, len(data), 1 + seed % 3):
        data[at] ^= 1 << int(rng.integers(8))
    if seed % 4 == 0:
        del data[int(rng.integers(head, len(data))) :]
    said = []
    for _ in range(3):
        try:
            graph = read_model(bytes(data))
        except polyconv.Error as error:
            said.append(f"{type(error).__name__} {error}")
        else:
            said.append(str([n.label for n in graph.nodes]) + str({k: a.tobytes() for k, a in graph.constants.items()}))
    assert len(set(said)) == 1


