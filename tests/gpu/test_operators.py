"""Operators that have kernels on a GPU only: gathers, LRN, products of two operands that come with a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from test_sessions import CUDA, info, node, onnx_model, random
from virtual_gpu import Libcuda, virtual_gpu

import polyconv
from polyconv.errors import ArgumentError
from polyconv.gpu.arrays import GpuArray, to_gpu


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Libcuda]:
    with virtual_gpu() as lib:
        yield lib


def ran(model: onnx.ModelProto, feeds: dict[str, Any], **options: Any) -> np.ndarray:
    """The result of a session on the GPU, step by step and replayed."""
    session = polyconv.InferenceSession(model, providers=CUDA, **options)
    assert {step.device for step in session.steps} == {"cuda:0"}
    there = {name: a if type(a) is GpuArray else to_gpu(a) for name, a in feeds.items()}
    runs = [session.run(None, there)[0] for _ in range(3)]
    assert session.memory.replay_bytes > 0
    np.testing.assert_array_equal(runs[2], runs[0])
    return runs[0]


# -- Gather -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "at"), [(1, [4, 0, -3]), (0, [[1, 1], [0, -2]]), (-1, [[2]]), (2, [])])
def test_gather_of_constant_indices(axis: int, at: list[Any]) -> None:
    indices = np.array(at, np.int64)
    model = onnx_model([node("Gather", ["x", "at"], ["y"], axis=axis)], [info("x", [2, 5, 3])], ["y"], {"at": indices})
    x = random(2, 5, 3)
    session = polyconv.InferenceSession(model, providers=CUDA)
    for given in (x, to_gpu(x[::-1])):
        want = np.take(x if given is x else x[::-1], indices, axis)
        np.testing.assert_array_equal(session.run(None, {"x": given})[0], want, strict=True)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_gather_of_words(kind: type) -> None:
    """An embedding: a table that is constant, indices that come with a run and lie on the GPU."""
    table = random(7, 6).astype(np.float16)
    nodes = [node("Gather", ["table", "words"], ["e"]), node("Relu", ["e"], ["y"])]
    number = TensorProto.INT32 if kind is np.int32 else TensorProto.INT64
    model = onnx_model(nodes, [info("words", ["n", "t"], number)], ["y"], {"table": table})
    words = np.array([[0, 6, -1], [3, 3, -7]], kind)
    np.testing.assert_array_equal(ran(model, {"words": words}), np.maximum(table[words], 0))


def test_indices_outside() -> None:
    """Constant ones are an error; of others nobody can be told, and nothing outside the table is read."""
    nodes = [node("Gather", ["x", "at"], ["y"], name="pick", axis=1)]
    model = onnx_model(nodes, [info("x", [2, 5])], ["y"], {"at": np.array([4, 5])})
    with pytest.raises(ArgumentError, match=r"Gather node 'pick'.*lie outside axis 1"):
        polyconv.InferenceSession(model, providers=CUDA).run(None, {"x": random(2, 5)})
    nodes = [node("Gather", ["table", "words"], ["y"])]
    table, words = random(4, 3), np.array([[4, -5, 1 << 40, 2]])
    model = onnx_model(nodes, [info("words", [1, 4], TensorProto.INT64)], ["y"], {"table": table})
    want = np.stack([0 * table[0], 0 * table[0], 0 * table[0], table[2]])[None]
    np.testing.assert_array_equal(ran(model, {"words": words}), want)


def test_extents_are_still_gathered_on_the_cpu() -> None:
    """Several extents of a shape are numbers of the CPU's memory, as one is."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "at"], ["to"]), node("Relu", ["x"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[1, 0, 2]), node("Reshape", ["t", "to"], ["y"]),
    ]  # fmt: skip
    model = onnx_model(nodes, [info("x", ["n", 4, "h"])], ["y"], {"at": np.array([2, 1, 0])})
    x = random(3, 4, 5)
    got = polyconv.InferenceSession(model, providers=CUDA).run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, np.maximum(x, 0).transpose(1, 0, 2).reshape(5, 4, 3))


# -- LRN ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (4, 0.5), (1, 1.0), (3, 0.25)])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_lrn(size: int, beta: float, kind: type) -> None:
    """Sums of ``size`` squares, then six more roundings of f32; a half rounds once more, its input is exact."""
    given = {"size": size, "beta": beta, "alpha": 0.5, "bias": 2.0}
    number = TensorProto.FLOAT if kind is np.float32 else TensorProto.FLOAT16
    nodes = [node("LRN", ["x"], ["y"], **given)]
    x = random(2, 7, 3, 4).astype(kind)
    got = ran(onnx_model(nodes, [info("x", [2, 7, 3, 4], number)], ["y"], {}), {"x": x})
    squares = x.astype(np.float64) ** 2
    low, high = (size - 1) // 2, size // 2  # "i from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2)"
    sums = [squares[:, max(0, c - low) : c + high + 1].sum(1) for c in range(7)]
    want = x / (2.0 + 0.5 / size * np.stack(sums, 1)) ** beta
    rounding = (size + 6) * 2.0**-24 + (2.0**-11 if kind is np.float16 else 0.0)
    assert got.dtype == kind
    assert (np.abs(got - want) <= rounding * np.abs(want) + 2.0**-25 * (kind is np.float16)).all()


def test_lrn_of_an_unusual_power_is_refused() -> None:
    model = onnx_model([node("LRN", ["x"], ["y"], size=3, beta=0.6)], [info("x", [1, 7, 3, 4])], ["y"], {})
    with pytest.raises(polyconv.Unsupported, match="its power is not one, two, three or four quarters"):
        polyconv.InferenceSession(model, providers=CUDA)
