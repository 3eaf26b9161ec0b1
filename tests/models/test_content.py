"""Large values of a model stay in its file until somebody needs them, and are then those that it had."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from making import info, onnx_model, random
from onnx import helper

from polyconv import InferenceSession
from polyconv.errors import ModelError
from polyconv.models.beside import FileBytes, Part
from polyconv.models.content import Content
from polyconv.models.reading import read_model

PARTS = {"b": Part(8, 3 << 20), "a": Part((3 << 20) + 11, 100)}
held = pytest.mark.skipif(not hasattr(os, "preadv"), reason="files are read when they are opened")


@pytest.fixture
def data() -> bytes:
    return np.random.default_rng(3).bytes(4 << 20)


@pytest.fixture
def path(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "data"
    path.write_bytes(data)
    return path


def _content(path: Path) -> Content:
    with path.open("rb") as file:
        return Content("digest", FileBytes(file), PARTS)


def _expect(content: Content, data: bytes) -> None:
    for name, (start, length) in PARTS.items():
        assert content.arrays[name].tobytes() == data[start : start + length]
        assert not content.arrays[name].flags.writeable
        assert content.arrays[name].ctypes.data % 64 == 0


def test_values_of_bytes_are_there_at_once(data: bytes) -> None:
    _expect(Content("digest", data, PARTS), data)


def test_systems_without_reads_at_places_have_values_at_once(
    path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "preadv", raising=False)
    content = _content(path)
    path.unlink()
    _expect(content, data)
    assert content() == Content("digest", data, PARTS)()


@held
@pytest.mark.parametrize("is_asked", [False, True])
def test_values_of_a_file_come_when_they_are_asked_for(path: Path, data: bytes, is_asked: bool) -> None:
    content = _content(path)
    assert not any(a.any() for a in content.arrays.values())
    if is_asked:
        content.begin()
        assert content() == Content("digest", data, PARTS)()
        assert not any(a.any() for a in content.arrays.values())
    for _ in range(2):
        content.fill()
        _expect(content, data)
    assert content() == Content("digest", data, PARTS)()


@held
def test_another_file_in_its_place_is_another_one(path: Path, data: bytes) -> None:
    content = _content(path)
    content.begin()
    path.unlink()
    path.write_bytes(bytes(4 << 20))
    content.fill()
    _expect(content, data)


@held
@pytest.mark.parametrize("length", [0, 9, 4 << 20])
def test_a_file_that_was_written_over_is_no_longer_read(path: Path, length: int) -> None:
    content = _content(path)
    content.begin()
    known = content()
    path.write_bytes(bytes(length))
    for _ in range(2):
        with pytest.raises(ModelError, match=r"data.*was (cut short|written over) after it was opened; open it again"):
            content.fill()
    assert content() == known


@held
def test_a_fingerprint_of_a_file_that_was_cut_short_is_another(path: Path, data: bytes) -> None:
    content = _content(path)
    os.truncate(path, 1 << 20)
    content.begin()
    assert content() != Content("digest", data, PARTS)()


@held
def test_files_are_closed_with_who_reads_them(path: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("the system does not tell")
    before = len(list(folder.iterdir()))
    contents = [_content(path) for _ in range(10)]
    assert len(list(folder.iterdir())) == before + 10
    del contents
    assert len(list(folder.iterdir())) == before


@held
@pytest.mark.usefixtures("own_cache")
def test_a_session_that_finds_how_a_model_ran_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Conv", ["a", "v"], ["y"])]
    weights = {"w": random(32, 16, 9, 9, seed=1), "v": random(16, 32, 9, 9, seed=2)}
    model, path = onnx_model(nodes, [info("x", [1, 16, "h", 24])], [info("y")], weights), tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    small, large = random(1, 16, 24, 24, seed=3), random(1, 16, 30, 24, seed=4)
    first = InferenceSession(path, threads=1)
    expected = [first.run(None, {"x": x})[0] for x in (small, small, large)]
    filled = list[Content]()
    fill = Content.fill

    def noting(content: Content) -> None:
        filled.append(content)
        fill(content)

    monkeypatch.setattr(Content, "fill", noting)
    session = InferenceSession(path, threads=1)
    np.testing.assert_array_equal(session.run(None, {"x": small})[0], expected[1])
    assert filled == []
    np.testing.assert_array_equal(session.run(None, {"x": large})[0], expected[2])  # is planned, and packs
    assert len(filled) == 1

    written_over = InferenceSession(path, threads=1)
    written_over.run(None, {"x": small})
    path.write_bytes(bytes(path.stat().st_size))
    np.testing.assert_array_equal(written_over.run(None, {"x": small})[0], expected[1])
    with pytest.raises(ModelError, match=r"model\.onnx.*after it was opened"):
        written_over.run(None, {"x": large})
    np.testing.assert_array_equal(written_over.run(None, {"x": small})[0], expected[1])


def test_a_model_that_is_only_read_has_its_values(tmp_path: Path) -> None:
    w = random(128, 16, 3, 3)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_model(nodes, [info("x", [1, 16, 9, 9])], [info("y")], {"w": w}).SerializeToString())
    for _ in range(2):  # the second time as it was left
        np.testing.assert_array_equal(read_model(path).constants["w"], w)
