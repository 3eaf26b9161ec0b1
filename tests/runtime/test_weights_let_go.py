"""Weights that only their packed form holds: put together again bit by bit, and sessions that do with less."""

from __future__ import annotations

import numpy as np
import onnx.helper
import onnx.numpy_helper
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyconv
from polyconv.layer import Layer
from polyconv.problem.problem import Problem

WHOLE = ("pointwise", "direct", "generic")
"""Algorithms whose packed weights are those that were given, in another order."""


def odd_weights(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """All patterns of bits: NaNs of any payload, infinities, subnormals, zeros of both signs."""
    return np.random.default_rng(seed).integers(0, 2**32, shape, np.uint32).view(np.float32)


def layer_of(p: Problem, w: np.ndarray, algorithm: str) -> Layer:
    return Layer(lambda n, i: p.with_extents(n, i), w, layout=p.layout, algorithm=algorithm, own=False, threads=1)


@settings(deadline=None, max_examples=60)
@given(
    algorithm=st.sampled_from(WHOLE), layout=st.sampled_from(["NCHW", "NHWC"]), m=st.integers(1, 70),
    c=st.integers(1, 40), k=st.sampled_from([(1, 1), (3, 3), (2, 3), (4, 4)]), groups=st.sampled_from([1, 1, 2, 3]),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_packed_weights_are_put_together_bit_by_bit(
    algorithm: str, layout: str, m: int, c: int, k: tuple[int, int], groups: int, seed: int
) -> None:
    text = f"conv f32 {layout} n1 c{c * groups} i9x9 m{m * groups} k{k[0]}x{k[1]} g{groups}"
    p = Problem.parse(text)
    w = odd_weights(p.w_shape, seed)
    layer = layer_of(p, w, algorithm)
    try:
        layer(np.zeros(p.x_shape, np.float32))
    except polyconv.Unsupported:
        return
    if layer.weights.let_go():
        assert layer.weights.given().tobytes() == w.tobytes()
        assert layer.weights.given_bytes == 4
        assert layer.weights.w.shape == w.shape


@pytest.mark.parametrize("text, algorithm, is_let_go", [
    ("conv f32 NCHW n1 c40 i14x14 m70 k1x1", "pointwise", True),
    ("conv f32 NHWC n1 c40 i14x14 m70 k1x1", "pointwise", True),
    ("conv f32 NCHW n1 c40 i14x14 m70 k3x3 p1", "direct", True),
    ("conv f32 NCHW n1 c40 i16x16 m70 k4x4 s4", "pointwise", True),
    ("conv f32 NCHW n1 c3 i32x32 m32 k3x3 p1 s2", "generic", True),
    ("conv f32 NCHW n1 c40 i28x28 m70 k3x3 p1", "winograd", False),  # repairs of non-finite results need them
    ("conv f32 NCHW n1 c256 i28x28 m256 k1x1", "strassen", False),
    ("conv f16>f32 NCHW n1 c40 i14x14 m70 k3x3 p1", "direct", False),  # packed in another type
])  # fmt: skip
def test_who_lets_go(text: str, algorithm: str, is_let_go: bool) -> None:
    p = Problem.parse(text)
    w = np.random.default_rng(0).standard_normal(p.w_shape).astype(p.w_dtype.numpy)
    layer = layer_of(p, w, algorithm)
    assert not layer.weights.let_go()  # nothing is packed yet
    layer(np.zeros(p.x_shape, p.x_dtype.numpy))
    assert layer.weights.let_go() is is_let_go
    assert layer.weights.given().tobytes() == w.tobytes()
    assert layer.packed_bytes - layer.weights.packed_bytes == (w.itemsize if is_let_go else w.nbytes)


def network(ms: list[int], k: int) -> onnx.ModelProto:
    """Convolutions in a row, of which the last two share their weights, for images of any extents."""
    rng, nodes, tensors, last = np.random.default_rng(1), [], [], "x"
    for at, (c, m) in enumerate(zip([16, *ms], ms, strict=False)):
        name = f"w{at}" if at < len(ms) - 1 else f"w{at - 1}"
        if name == f"w{at}":
            w = rng.standard_normal((m, c, k, k)).astype(np.float32)
            tensors.append(onnx.numpy_helper.from_array(w, name))
        made = "y" if at == len(ms) - 1 else f"v{at}"
        nodes.append(onnx.helper.make_node("Conv", [last, name], [made], pads=[k // 2] * 4))
        last = made
    dims = ["n", 16, "h", "w"], ["n", ms[-1], "h", "w"]
    ends = [onnx.helper.make_tensor_value_info(n, 1, d) for n, d in zip("xy", dims, strict=True)]
    return onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:], tensors),
        opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10,
    )  # fmt: skip


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_sessions_have_the_same_bits_for_every_size(k: int, threads: int) -> None:
    made = network([64, 96, 96, 96], k)
    rng = np.random.default_rng(2)
    images = [rng.standard_normal((n, 16, h, w)).astype(np.float32)
              for n, h, w in ((1, 14, 14), (1, 1, 1), (2, 30, 17), (1, 14, 14), (1, 112, 112), (1, 7, 40))]  # fmt: skip
    session = polyconv.InferenceSession(made, threads=threads)
    for x in images:
        fresh = polyconv.InferenceSession(made, threads=threads)
        assert session.run(None, {"x": x})[0].tobytes() == fresh.run(None, {"x": x})[0].tobytes()


def test_a_session_holds_weights_once() -> None:
    made = network([256, 128, 128, 128], 1)
    session = polyconv.InferenceSession(made, threads=1, accuracy="strict")  # Strassen's scheme would keep them as well
    given = sum(4 * int(np.prod(tensor.dims)) for tensor in made.graph.initializer)
    session.run(None, {"x": np.zeros((1, 16, 8, 8), np.float32)})
    shared = 4 * 128 * 128  # packed by both layers that have them
    assert session.memory.held_bytes <= given + shared + 64 * len(made.graph.node)
