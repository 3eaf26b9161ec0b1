"""Python's collector waits while a model is read and runs step by step, and is as it was afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from making import info, onnx_model, random
from onnx import helper

import polyconv
from polyconv import ModelError
from polyconv.models.program import Program
from polyconv.runtime.memory import collecting_later


@pytest.fixture(params=[True, False], ids=["on", "off"], autouse=True)
def wanted(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the process collects."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_it_waits_in_a_block_and_also_when_that_fails(wanted: bool) -> None:
    with collecting_later():
        assert not gc.isenabled()
        with collecting_later():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() == wanted
    with pytest.raises(ValueError), collecting_later():
        raise ValueError
    assert gc.isenabled() == wanted


def test_a_session_leaves_it_as_it_was(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    by_steps = Program._by_steps

    def run(*arguments: object) -> object:
        seen.append(gc.isenabled())
        return by_steps(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Program, "_by_steps", run)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    data = onnx_model(nodes, [info("x", [1, 4, "h", 8])], [info("y")], {"w": random(4, 4, 3, 3)}).SerializeToString()
    session = polyconv.InferenceSession(data)
    assert gc.isenabled() == wanted
    for height in (8, 9):
        session.run(None, {"x": np.ones((1, 4, height, 8), np.float32)})
        assert gc.isenabled() == wanted
    assert seen == [False, False]
    with pytest.raises(ModelError):
        polyconv.InferenceSession(b"no model")
    assert gc.isenabled() == wanted
