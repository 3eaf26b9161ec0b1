"""Recurrent layers against ONNX's definition in NumPy, in 64 bits, and against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from levels import LEVELS
from making import engines, info, onnx_model, onnxruntime_run, session
from onnx import TensorProto, helper
from own_models import at_level

from polyconv.conformance.kernel_texts import TARGETS
from polyconv.kernels.compile import assembly
from polyconv.kernels.objects import module_for
from polyconv.operators.recurrence import GATES, Cell, drive

node = helper.make_node
TYPES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}
DIRECTIONS = ("forward", "reverse", "bidirectional")


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def defined(kind: str, direction: str, x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray | None,
            h: np.ndarray | None, c: np.ndarray | None) -> list[np.ndarray]:  # fmt: skip
    """What ONNX says of a layer: all states, the last ones, and the last cells of an LSTM."""
    directions, states, gates = len(w), r.shape[2], GATES[kind]
    x, w, r = (a.astype(np.float64) for a in (x, w, r))
    steps, batch = x.shape[:2]
    ys = np.zeros((steps, directions, batch, states))
    last_h, last_c = np.zeros((directions, batch, states)), np.zeros((directions, batch, states))
    for d in range(directions):
        both = np.zeros(2 * gates * states) if b is None else b[d].astype(np.float64)
        of_x, of_h = both.reshape(2, gates, states)
        now = np.zeros((batch, states)) if h is None else h[d].astype(np.float64)
        cell = np.zeros((batch, states)) if c is None else c[d].astype(np.float64)
        order = range(steps)[::-1] if direction == "reverse" or d == 1 else range(steps)
        for t in order:
            a = (x[t] @ w[d].T).reshape(batch, gates, states) + of_x
            u = (now @ r[d].T).reshape(batch, gates, states) + of_h
            if kind == "LSTM":
                i, o, f = (sigmoid(a[:, g] + u[:, g]) for g in range(3))
                cell = f * cell + i * np.tanh(a[:, 3] + u[:, 3])
                now = o * np.tanh(cell)
            elif kind == "GRU":
                z, reset = (sigmoid(a[:, g] + u[:, g]) for g in range(2))
                now = (1 - z) * np.tanh(a[:, 2] + reset * u[:, 2]) + z * now
            else:
                now = np.tanh(a[:, 0] + u[:, 0])
            ys[t, d] = now
        last_h[d], last_c[d] = now, cell
    return [ys, last_h, last_c][: 3 if kind == "LSTM" else 2]


def layer(kind: str, direction: str, dtype: Any, extents: tuple[int, int, int, int], *, is_open: bool = False,
          bias: bool = True, initial: bool = True, **attributes: Any) -> tuple[onnx.ModelProto, list[Any]]:  # fmt: skip
    """A model of one layer, and what ``defined`` takes."""
    steps, batch, inputs, states = extents
    rng = np.random.default_rng(sum(extents))
    directions, gates = 2 if direction == "bidirectional" else 1, GATES[kind]

    def some(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(dtype)

    x = some(steps, batch, inputs) * 2
    w, r = some(directions, gates * states, inputs), some(directions, gates * states, states)
    b = some(directions, 2 * gates * states) if bias else None
    h, c = ((some(directions, batch, states) if initial else None) for _ in range(2))
    names = ["x", "w", "r", "b" if bias else "", "", "h" if initial else ""]
    names += ["c" if initial else ""] if kind == "LSTM" else []
    outputs = ["y", "yh", "yc"][: 3 if kind == "LSTM" else 2]
    words = {"direction": direction, "hidden_size": states, **attributes}
    if kind == "GRU":
        words.setdefault("linear_before_reset", 1)
    constants = {"w": w, "r": r, **({"b": b} if b is not None else {})}
    feeds = {"x": x, **({"h": h} if initial else {}), **({"c": c} if initial and kind == "LSTM" else {})}
    shapes = {"x": ["t", "n", inputs]} if is_open else {}
    given = [info(name, shapes.get(name, list(a.shape)), TYPES[dtype]) for name, a in feeds.items()]
    made = node(kind, names, outputs, "layer", **words)
    model = onnx_model([made], given, [info(name, None, TYPES[dtype]) for name in outputs], constants)
    return model, [x, w, r, b, h, c if kind == "LSTM" else None]


def feeds_of(given: list[Any]) -> dict[str, np.ndarray]:
    return {name: a for name, a in zip(("x", "", "", "", "h", "c"), given, strict=True) if name and a is not None}


def check(model: onnx.ModelProto, kind: str, direction: str, given: list[Any]) -> None:
    """Rounding grows from step to step, by no more than the layer lets a state grow: about once."""
    made = session(model)
    for _ in range(3):  # by steps, by steps that tell, and as a replay
        results = made.run(None, feeds_of(given))
        x, r = given[0], given[2]
        unit = float(np.finfo(x.dtype).eps) * (x.shape[0] + 2) * (x.shape[2] + r.shape[2] + 16)
        for found, right in zip(results, defined(kind, direction, *given), strict=True):
            assert found.dtype == x.dtype
            np.testing.assert_allclose(found, right, rtol=0, atol=unit)
    assert engines(made) == {"layer": "polyconv"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("states", [1, 7, 16, 17, 33, 64, 130])
@pytest.mark.parametrize("kind", GATES)
def test_sizes_around_vectors(kind: str, states: int, level: str | None) -> None:
    for dtype in TYPES:
        for direction in DIRECTIONS:
            model, given = layer(kind, direction, dtype, (4, 2, 5, states))
            with at_level(level):
                check(model, kind, direction, given)


@pytest.mark.parametrize(
    "extents", [(1, 1, 1, 3), (1, 3, 9, 20), (30, 1, 40, 24), (5, 4, 3, 24), (0, 2, 3, 4), (3, 0, 3, 4)]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", GATES)
def test_steps_and_batches(kind: str, direction: str, extents: tuple[int, int, int, int]) -> None:
    for options in ({}, {"bias": False}, {"initial": False}, {"is_open": True}):
        model, given = layer(kind, direction, np.float32, extents, **options)
        check(model, kind, direction, given)


@pytest.mark.parametrize("kind", GATES)
def test_onnxruntime_agrees(kind: str) -> None:
    for direction in DIRECTIONS:
        model, given = layer(kind, direction, np.float32, (6, 2, 12, 20))
        feeds = feeds_of(given)
        for ours, theirs in zip(session(model).run(None, feeds), onnxruntime_run(model, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("LSTM", {"clip": 1.0}), ("LSTM", {"activations": ["Sigmoid", "Tanh", "Relu"]}), ("LSTM", {"input_forget": 1}),
        ("GRU", {"linear_before_reset": 0}), ("RNN", {"activations": ["Relu"]}),
    ],
)  # fmt: skip
def test_other_layers_run_elsewhere(kind: str, attributes: dict[str, Any]) -> None:
    model, given = layer(kind, "forward", np.float32, (4, 2, 5, 8), **attributes)
    made, feeds = session(model), feeds_of(given)
    assert engines(made) == {"layer": "onnxruntime"}
    for ours, theirs in zip(made.run(None, feeds), onnxruntime_run(model, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sequences_of_several_lengths(kind: str, direction: str) -> None:
    """Each as if it were alone, with zeros behind its end."""
    model, given = layer(kind, direction, np.float32, (5, 4, 6, 20))
    model.graph.node[0].input[4] = "lengths"
    model.graph.input.append(info("lengths", [4], TensorProto.INT32))
    made = session(model)
    for lengths in ([5, 5, 5, 5], [1, 5, 3, 2]):
        feeds = {**feeds_of(given), "lengths": np.array(lengths, np.int32)}
        for _ in range(3):
            results = made.run(None, feeds)
            for at, length in enumerate(lengths):
                x, w, r, b, *states = given
                alone = [None if s is None else s[:, at : at + 1] for s in states]
                right = defined(kind, direction, x[:length, at : at + 1], w, r, b, *alone)
                np.testing.assert_allclose(results[0][:length, :, at : at + 1], right[0], rtol=0, atol=2e-5)
                assert not results[0][length:, :, at].any()
                for found, state in zip(results[1:], right[1:], strict=True):
                    np.testing.assert_allclose(found[:, at : at + 1], state, rtol=0, atol=2e-5)
    assert engines(made) == {"layer": "polyconv"}


def test_two_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = layer("LSTM", "bidirectional", np.float32, (40, 3, 64, 96))
    results = []
    for threads in (1, 2):
        made = session(model, threads=threads)
        results += [made.run(None, feeds_of(given)) for _ in range(3)]
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("level", TARGETS)
@pytest.mark.parametrize("kind", GATES)
def test_kernels_of_every_target_call_nothing(kind: str, level: str) -> None:
    target = TARGETS[level]
    for dtype, size in (("f32", 4), ("f64", 8)):
        block = (target.registers - 4) // GATES[kind]
        cell = Cell(kind, dtype, "bidirectional", block, 1, target.vector_bytes // size, target.has_masks, "lhc")
        k = module_for(target)
        drive(k, "drive", cell)
        assert "call" not in assembly(k.text(target.triple), target)
