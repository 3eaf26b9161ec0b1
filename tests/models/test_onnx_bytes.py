"""Large initialisers are taken out of a model's bytes: with what is left they are the model, damaged or not."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from polyconv.errors import ModelError
from polyconv.models.beside import FileBytes, Part
from polyconv.models.onnx_bytes import without_values
from polyconv.models.reading import read_model

LARGE = 1 << 16


def _model() -> Any:
    rng = np.random.default_rng(1)
    arrays = {
        "large": rng.standard_normal((128, 130)).astype(np.float32), "small": np.arange(9, dtype=np.int64),
        "bytes": rng.integers(0, 255, 2 * LARGE, np.uint8), "empty": np.zeros((0, 3), np.float32),
    }  # fmt: skip
    tensors = [numpy_helper.from_array(a, name) for name, a in arrays.items()]
    listed = TensorProto(name="listed", data_type=TensorProto.FLOAT, dims=[LARGE // 4])
    listed.float_data.extend([0.5] * (LARGE // 4))
    node = helper.make_node("Identity", ["large"], ["y"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [128, 130])
    graph = helper.make_graph([node], "g", [], [y], [*tensors, listed])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def _bytes_of(data: bytes, part: Part) -> bytes:
    return data[part.start : part.start + part.length]


def _together(data: bytes) -> Any:
    """The model that bytes are without their large values, with these put back."""
    lighter, parts = without_values(data)
    model = onnx.load_model_from_string(lighter)
    for tensor in model.graph.initializer:
        if tensor.name in parts:
            assert tensor.raw_data == b""
            tensor.raw_data = _bytes_of(data, parts[tensor.name])
    return model


def _parsed(load: Any, data: bytes) -> Any:
    try:
        return load(data)
    except Exception:  # protobuf's own
        return None


def test_large_values_are_taken_out_and_are_the_file_s() -> None:
    model = _model()
    data = model.SerializeToString()
    lighter, parts = without_values(data)
    assert set(parts) == {"large", "bytes"}
    assert len(lighter) < 2 * LARGE
    for tensor in model.graph.initializer:
        if tensor.name in parts:
            assert _bytes_of(data, parts[tensor.name]) == tensor.raw_data
    assert _together(data) == model


def test_a_file_is_read_as_its_bytes_are(tmp_path: Path) -> None:
    model, path = _model(), tmp_path / "model.onnx"
    data = model.SerializeToString()
    path.write_bytes(data)
    with path.open("rb") as file:
        assert without_values(FileBytes(file)) == without_values(data)


@pytest.mark.parametrize("left", [0, 1, 100, LARGE, 2 * LARGE])
def test_a_file_that_is_cut_short_while_it_is_read(tmp_path: Path, left: int) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_model().SerializeToString())
    with path.open("rb") as file:
        data = FileBytes(file)
        os.truncate(path, left)
        lighter, parts = without_values(data)
    assert (len(lighter), parts) == (left, {})
    with pytest.raises(ModelError):
        read_model(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_a_file_too(tmp_path: Path) -> None:
    model, path = _model(), tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(model.SerializeToString()))
    writer.start()
    graph = read_model(path)
    writer.join()
    assert graph.constants["large"].tobytes() == model.graph.initializer[0].raw_data


@pytest.mark.parametrize("data", [b"", b"<xml/>", b"\xff" * 40, bytes(100), b"\x3a\xff\xff\xff\xff\x0f"])
def test_other_bytes_stay_as_they_are(data: bytes) -> None:
    assert without_values(data) == (data, {})


def test_a_name_that_is_there_twice_takes_nothing_out() -> None:
    model = _model()
    model.graph.initializer[2].name = "large"
    data = model.SerializeToString()
    assert without_values(data) == (data, {})


def test_two_graphs_take_nothing_out() -> None:
    """Protobuf would merge them."""
    data = 2 * _model().SerializeToString()
    assert without_values(data) == (data, {})


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_mean_what_they_mean_to_the_parser(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = _model().SerializeToString()
    heads = [at for at in range(len(whole)) if whole[at : at + 5] in (b"large", b"bytes", b"small")]
    for _ in range(250):
        data = bytearray(whole)
        at = max(0, int(rng.choice(heads)) + int(rng.integers(-30, 30)))
        data[at] = rng.integers(0, 256)
        if rng.random() < 0.2:
            del data[int(rng.integers(0, len(data))) :]
        assert _parsed(_together, bytes(data)) == _parsed(onnx.load_model_from_string, bytes(data))
