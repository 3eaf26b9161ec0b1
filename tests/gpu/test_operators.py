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
from polyconv.gpu.driver import driver
from polyconv.operators.on_gpu import running


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


TABLE = random(7, 6).astype(np.float16)


def words(kind: type) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """An embedding: a table that is constant, indices that come with a run and lie on the GPU."""
    nodes = [node("Gather", ["table", "words"], ["e"]), node("Relu", ["e"], ["y"])]
    number = TensorProto.INT32 if kind is np.int32 else TensorProto.INT64
    model = onnx_model(nodes, [info("words", ["n", "t"], number)], ["y"], {"table": TABLE})
    return model, {"words": np.array([[0, 6, -1], [3, 3, -7]], kind)}


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_gather_of_words(kind: type) -> None:
    model, feeds = words(kind)
    np.testing.assert_array_equal(ran(model, feeds), np.maximum(TABLE[feeds["words"]], 0))


def test_indices_outside() -> None:
    """Constant ones are an error; of others nobody can be told, and nothing outside the table is read."""
    nodes = [node("Gather", ["x", "at"], ["y"], name="pick", axis=1)]
    model = onnx_model(nodes, [info("x", [2, 5])], ["y"], {"at": np.array([4, 5])})
    with pytest.raises(ArgumentError, match=r"Gather node 'pick'.*lie outside axis 1"):
        polyconv.InferenceSession(model, providers=CUDA).run(None, {"x": random(2, 5)})
    nodes = [node("Gather", ["table", "words"], ["y"])]
    table, given = random(4, 3), np.array([[4, -5, 1 << 40, 2]])
    model = onnx_model(nodes, [info("words", [1, 4], TensorProto.INT64)], ["y"], {"table": table})
    want = np.stack([0 * table[0], 0 * table[0], 0 * table[0], table[2]])[None]
    np.testing.assert_array_equal(ran(model, {"words": given}), want)


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


def response(kind: type, given: dict[str, Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """LRN with attributes."""
    number = TensorProto.FLOAT if kind is np.float32 else TensorProto.FLOAT16
    model = onnx_model([node("LRN", ["x"], ["y"], **given)], [info("x", [2, 7, 3, 4], number)], ["y"], {})
    return model, {"x": random(2, 7, 3, 4).astype(kind)}


@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (4, 0.5), (1, 1.0), (3, 0.25)])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_lrn(size: int, beta: float, kind: type) -> None:
    """Sums of ``size`` squares, then six more roundings of f32; a half rounds once more, its input is exact."""
    model, feeds = response(kind, {"size": size, "beta": beta, "alpha": 0.5, "bias": 2.0})
    got, x = ran(model, feeds), feeds["x"]
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


# -- MatMul -------------------------------------------------------------------------------------------

PRODUCTS = [
    ((6, 20), (20, 9)), ((2, 3, 6, 20), (2, 3, 20, 9)), ((2, 3, 1, 16), (3, 16, 5)), ((4, 5, 3), (3, 8)),
    ((3, 1, 5, 4), (1, 2, 4, 6)), ((2, 7, 1), (2, 1, 3)), ((2, 4, 0), (2, 0, 3)), ((0, 4, 2), (2, 3)),
]  # fmt: skip


def product_bounds(a: np.ndarray, b: np.ndarray, unit: float, lost: float) -> tuple[np.ndarray, np.ndarray]:
    """Products in f64, and how far sums of ``k`` terms in f32 and one rounding to a unit may be off."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    want, size = a @ b, np.abs(a) @ np.abs(b)
    return want, (a.shape[-1] + 1) * 2.0**-23 * size + lost * size + unit * np.abs(want)


@pytest.mark.parametrize(("of_a", "of_b"), PRODUCTS)
def test_products_of_two_that_come_with_a_run(of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    model = onnx_model([node("MatMul", ["a", "b"], ["y"])], [info("a", of_a), info("b", of_b)], ["y"], {})
    a, b = random(*of_a, seed=1), random(*of_b, seed=2)
    session = polyconv.InferenceSession(model, providers=CUDA, accuracy="strict")
    want, allowed = product_bounds(a, b, 0.0, 0.0)
    got = session.run(None, {"a": a, "b": b})[0]
    assert got.shape == want.shape
    assert (np.abs(got - want) <= allowed).all()


def attention(kind: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Queries times turned keys; heads lie side by side, so that a pair's rows lie apart."""
    number = TensorProto.FLOAT if kind == "f32" else TensorProto.FLOAT16
    q, keys = (random(1, 10, 3, 16, seed=s).astype(np.float16 if kind == "f16" else np.float32) for s in (3, 4))
    nodes = [
        node("Transpose", ["q"], ["a"], perm=[0, 2, 1, 3]), node("Transpose", ["k"], ["b"], perm=[0, 2, 3, 1]),
        node("MatMul", ["a", "b"], ["y"]),
    ]  # fmt: skip
    model = onnx_model(nodes, [info("q", q.shape, number), info("k", keys.shape, number)], ["y"], {})
    return model, {"q": q, "k": keys}


@pytest.mark.parametrize(("kind", "unit", "lost"), [("f32", 0.0, 2.0**-20), ("f16", 2.0**-11, 0.0)])
def test_attention(kind: str, unit: float, lost: float, gpu: Libcuda) -> None:
    """On tensor cores."""
    model, feeds = attention(kind)
    q, keys = feeds["q"], feeds["k"]
    want, allowed = product_bounds(q.transpose(0, 2, 1, 3), keys.transpose(0, 2, 3, 1), unit, lost)
    assert (np.abs(ran(model, feeds) - want) <= allowed).all()
    assert any("mma" in text for text in gpu.launched)


def test_products_of_integers_and_of_what_does_not_fit() -> None:
    inputs = [info("a", ["n", 3, 4], TensorProto.INT32), info("b", [4, "m"], TensorProto.INT32)]
    model = onnx_model([node("MatMul", ["a", "b"], ["y"], name="times")], inputs, ["y"], {})
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-(2**31), 2**31, shape, np.int32) for shape in ((2, 3, 4), (4, 5)))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(ran(model, {"a": a, "b": b}), a @ b)
    floats = [info("a", ["n", 3, "k"]), info("b", ["k", "m"])]
    session = polyconv.InferenceSession(
        onnx_model([node("MatMul", ["a", "b"], ["y"], name="times")], floats, ["y"], {}), providers=CUDA
    )
    with pytest.raises(ArgumentError, match=r"'times'.*shapes \(2, 3, 4\) and \(5, 6\) are not multiplied"):
        session.run(None, {"a": random(2, 3, 4), "b": random(5, 6)})


# -- vectors of element-wise passes -------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "kind", "lanes"), [
    ((2, 3, 4, 6), np.float32, 4), ((2, 3, 10), np.float32, 2), ((3, 5, 7), np.float32, 1), ((2, 4, 8), np.float16, 8),
    ((5, 12), np.int32, 4), ((2, 3, 2), np.float64, 2),
])  # fmt: skip
def test_passes_load_vectors(
    shape: tuple[int, ...], kind: type, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As wide as extents and types allow, beside what is repeated; numbers are small, so that no result is rounded."""
    made: list[int] = []
    find = running.function

    def noted(spec: Any, number: int) -> Any:
        made.append(spec.lanes)
        return find(spec, number)

    monkeypatch.setattr(running, "function", noted)
    number = {np.float32: 1, np.float16: 10, np.int32: 6, np.float64: 11}[kind]
    nodes = [node("Mul", ["x", "c"], ["m"]), node("Add", ["m", "x"], ["y"])]
    c = np.arange(1, 1 + shape[0]).reshape(-1, *[1] * (len(shape) - 1)).astype(kind)
    x = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    got = ran(onnx_model(nodes, [info("x", [*shape], number)], ["y"], {"c": c}), {"x": x})
    np.testing.assert_array_equal(got, x * c + x, strict=True)
    assert set(made) == {lanes}


def test_arrays_that_are_not_aligned() -> None:
    model = onnx_model([node("Relu", ["x"], ["y"])], [info("x", [4, 8])], ["y"], {})
    session = polyconv.InferenceSession(model, providers=CUDA)
    x, whole = random(4, 8), to_gpu(np.zeros(40, np.float32))
    driver().upload(whole.address + 4, x.tobytes())
    for offset, want in ((4, x), (0, None), (4, x)):
        given = GpuArray((4, 8), whole.kind, memory=whole.memory, offset=offset)
        got = session.run(None, {"x": given})[0]
        if want is not None:
            np.testing.assert_array_equal(got, np.maximum(want, 0))
