"""Steps made ready before the first run: the same bits, and what is wrong with a step is still said by its run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from fresh import run

import polyconv
from polyconv.models.ahead import Ahead
from polyconv.models.graph import Value
from polyconv.models.layout import Layout
from polyconv.models.segment import Segment
from polyconv.models.steps import Step

CHAIN = """
<ir_version: 10, opset_import: ["" : 17]>
net (float[n, 3, 20, 20] x) => (float[n, 4, 20, 20] y)
{
    a = Conv <pads = [1, 1, 1, 1]> (x, w0)
    b = Conv <pads = [2, 2, 2, 2]> (a, w1)
    c = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b)
    d = Conv <pads = [1, 1, 1, 1], group = 8> (c, w2)
    e = Sigmoid (d)
    y = Conv (e, w3)
}
"""


def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(CHAIN)
    rng = np.random.default_rng(0)
    for at, shape in enumerate([(8, 3, 3, 3), (8, 8, 5, 5), (8, 1, 3, 3), (4, 8, 1, 1)]):
        values = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, f"w{at}"))
    return made


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_are_those_of_one_thread(threads: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 20, 20)).astype(np.float32)
    alone, together = (polyconv.InferenceSession(model(), threads=t).run(None, {"x": x})[0] for t in (1, threads))
    assert alone.tobytes() == together.tobytes()


SCRIPT = """
import json, threading
from pathlib import Path
from polyconv.kernels import objects
from polyconv.models.ahead import Ahead

ready, steps, threads = [], [], set()
elsewhere = objects.elsewhere
def noted(function, *arguments):
    threads.add(threading.current_thread().name)
    return elsewhere(function, *arguments)
objects.elsewhere = noted
session = polyconv.InferenceSession(Path("MODEL"), threads=2)
ahead = Ahead.__call__
def counted(self, steps, *rest):
    ahead(self, steps, *rest)
    ready.append(objects.EVENTS.compiled)
Ahead.__call__ = counted
session.run(None, {"x": np.ones((2, 3, 20, 20), np.float32)})
print(json.dumps({"ready": ready, "all": objects.EVENTS.compiled, "threads": sorted(threads)}))
"""


def test_kernels_are_compiled_before_the_steps_run_and_by_several_threads(tmp_path: Path) -> None:
    onnx.save(model(), tmp_path / "model.onnx")
    code = SCRIPT.replace("MODEL", str(tmp_path / "model.onnx"))
    cold, warm = (json.loads(run(code, tmp_path / "cache")) for _ in range(2))
    (ready,) = cold["ready"]
    assert ready >= cold["all"] - 2  # what is left is native code of calls, which is no step's
    assert any(name.startswith("polyconv ahead") for name in cold["threads"])
    assert (warm["ready"], warm["all"], warm["threads"]) == ([0], 0, [])


def _step(reads: tuple[str, ...], seen: list[tuple[object, ...]]) -> Step:
    def ahead(arrays: object) -> None:
        assert isinstance(arrays, list)
        seen.append(tuple((a.shape, a.dtype) for a in arrays))
        raise polyconv.Error("said by the run only")

    return Step((), reads, ("y",), Segment("polyconv", (), lambda arrays: arrays, ahead=ahead))


def test_symbols_are_those_of_the_feeds_and_what_is_open_is_left_to_the_run() -> None:
    seen: list[tuple[object, ...]] = []
    values = {
        "x": Value("x", "tensor(float)", ("n", 3)), "a": Value("a", "tensor(int8)", (2, "n", 5)),
        "b": Value("b", "tensor(float)", ("m",)), "c": Value("c", "tensor(float)", None),
    }  # fmt: skip
    ahead = Ahead(2, Layout("model"))
    steps = [_step(reads, seen) for reads in (("x",), ("a", "x"), ("b",), ("c",), ("unknown",))]
    ahead(steps, values, {"x": np.zeros((7, 3), np.float32)})
    x = ((7, 3), np.dtype(np.float32))
    assert seen == [(x,), (((2, 7, 5), np.dtype(np.int8)), x)]
    ahead(steps, values, {"x": np.zeros((9, 3), np.float32)})
    assert len(seen) == 2  # once


@pytest.mark.parametrize("settings", [{"check": True}, {"rigor": "measure"}])
def test_what_counts_or_times_kernels_is_not_disturbed(settings: dict[str, object]) -> None:
    seen: list[tuple[object, ...]] = []
    layout, given = Layout("model"), ({"x": Value("x", "tensor(float)", (1,))}, {"x": np.zeros(1, np.float32)})
    with polyconv.settings(**settings):
        Ahead(2, layout)([_step(("x",), seen)], *given)
    Ahead(1, layout)([_step(("x",), seen)], *given)
    assert seen == []


def test_an_invalid_step_is_named_by_its_run() -> None:
    made = model()
    made.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_value")
    session = polyconv.InferenceSession(made, threads=2)
    with pytest.raises(polyconv.Error, match="Conv"):
        session.run(None, {"x": np.zeros((2, 4, 20, 20), np.float32)})
