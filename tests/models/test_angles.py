"""Sines and cosines of f32 on a kernel, for every size of a number, and passes that have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from levels import LEVELS
from making import info, onnx_model, random, steps
from onnx import TensorProto, helper
from own_models import one

from polyconv.models.session import InferenceSession

FUNCTIONS = {"Sin": np.sin, "Cos": np.cos}


def _drawn(name: str) -> np.ndarray:
    rng, count = np.random.default_rng(5), 1 << 16
    signs = rng.choice([-1.0, 1.0], count)
    found = {
        "within a turn": rng.uniform(-7, 7, count),
        "where parts are taken off": rng.uniform(-8200, 8200, count),
        "beyond": rng.uniform(8000, 2e6, count) * signs,
        "of every size": np.exp2(rng.uniform(-140, 128, count)) * signs,
        "next to quarter turns": rng.integers(1, 100_000, count) * (np.pi / 2) * signs,
        "round eighths of turns": rng.integers(1, 8000, count) * (np.pi / 4) * signs,
        "any bits": rng.integers(0, 1 << 32, count, np.uint32).view(np.float32),
    }[name]
    with np.errstate(over="ignore"):
        x = found.astype(np.float32)
    return x[np.isfinite(x)]


NAMES = ("within a turn", "where parts are taken off", "beyond", "of every size", "next to quarter turns",
         "round eighths of turns", "any bits")  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_within_two_units_in_the_last_place(op: str, name: str, level: str | None) -> None:
    """Of the results of f64, which are 2^29 times as close."""
    x = _drawn(name)
    want = FUNCTIONS[op](x.astype(np.float64))
    unit = np.spacing(np.maximum(np.abs(want), np.finfo(np.float32).tiny).astype(np.float32))
    assert (np.abs(one(op, x, level=level) - want) <= 2 * unit).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("count", [1, 5, 16, 33])
def test_what_is_no_number_and_zeros(op: str, count: int, level: str | None) -> None:
    for value in (np.inf, -np.inf, np.nan):
        x = np.linspace(-3, 1e5, count, dtype=np.float32)
        x[count // 2] = value
        y = one(op, x, level=level)
        assert np.isnan(y).tolist() == [at == count // 2 for at in range(count)]
    y = one(op, np.array([0.0, -0.0, 1e-45, -1e-45] * count, np.float32), level=level)
    want = np.array([0.0, -0.0, 1e-45, -1e-45] * count if op == "Sin" else [1.0] * (4 * count), np.float32)
    assert y.tobytes() == want.tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_snake_is_one_pass(threads: int) -> None:
    """``x + sin(a x)^2 / a`` by channel, as vocoders have it, behind a convolution."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1]),
        helper.make_node("Mul", ["a", "c"], ["ax"]), helper.make_node("Sin", ["ax"], ["s"]),
        helper.make_node("Pow", ["s", "two"], ["square"]), helper.make_node("Mul", ["b", "square"], ["share"]),
        helper.make_node("Add", ["c", "share"], ["y"]),
    ]  # fmt: skip
    a = np.abs(random(1, 12, 1, seed=3)) + np.float32(0.1)
    constants: dict[str, Any] = {"w": random(12, 4, 3), "a": a, "b": 1 / a, "two": np.float32(2)}
    model = onnx_model(nodes, [info("x", (2, 4, 500))], [info("y"), info("c")], constants)
    made = InferenceSession(model, threads=threads)
    for seed in range(3):
        y, c = made.run(None, {"x": random(2, 4, 500, seed=seed) * 9})
        want = c + np.sin((a * c).astype(np.float64)) ** 2 / a
        eps = np.finfo(np.float32).eps
        assert (np.abs(y - want) <= 4 * eps * (np.abs(c) + 1 / a + np.abs(a * c) / a)).all()
    assert "Mul+Sin+Pow+Mul+Add" in steps(made)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_of_f64_numpy_counts_them(op: str) -> None:
    kind = TensorProto.DOUBLE
    model = onnx_model([helper.make_node(op, ["x"], ["y"])], [info("x", (70,), kind)], [info("y", None, kind)], {})
    made, x = InferenceSession(model), (random(70) * 1e4).astype(np.float64)
    assert made.run(None, {"x": x})[0].tobytes() == FUNCTIONS[op](x).tobytes()
    assert {record.engine for record in made.nodes} == {"polyconv"}
