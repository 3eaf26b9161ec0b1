"""Operators that move elements: Pad, DepthToSpace, SpaceToDepth, Tile, Expand, Transpose, Concat, against NumPy.

Bits are those of the input, of every type, at every level, whatever order the input has in memory.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levels import BOTH_ENDS, LEVELS
from making import engines, info, onnx_model, random, session
from onnx import TensorProto, helper
from own_models import at_level, model_of, one, run, same_bits

import polyconv
from polyconv.errors import Error

node = helper.make_node
DTYPES = (np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, np.bool_,
          np.complex64)  # fmt: skip
EXTENTS = (1, 1, 2, 3, 4, 7, 8, 9, 16, 17, 33)


def some(shape: tuple[int, ...] | list[int], dtype: Any = np.float32) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 50).astype(dtype)


@st.composite
def arrays(draw: st.DrawFn, least: int = 1, most: int = 5) -> np.ndarray:
    """An array of any type in any order in memory, now and then with gaps or backwards."""
    rank = draw(st.integers(least, most))
    shape = [draw(st.sampled_from(EXTENTS[:8] if rank > 3 else EXTENTS)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    step = draw(st.sampled_from((1, 1, 1, 2, -1)))
    stored = [shape[axis] * (abs(step) if at == 0 else 1) for at, axis in enumerate(order)]
    x = some(stored, draw(st.sampled_from(DTYPES)))[::step][: shape[order[0]]]
    return x.transpose([order.index(axis) for axis in range(rank)])


AROUND = st.integers(1, 2), st.sampled_from(BOTH_ENDS)


def padded(x: np.ndarray, pads: list[tuple[int, int]], mode: str, value: Any) -> np.ndarray:
    """NumPy's padding; what is cut off goes first, and what is added counts from there on."""
    kept = tuple(slice(max(0, -b), e - max(0, -a)) for e, (b, a) in zip(x.shape, pads, strict=True))
    added = [(max(0, b), max(0, a)) for b, a in pads]
    return np.pad(x[kept], added, mode=mode, **({"constant_values": value} if mode == "constant" else {}))


@st.composite
def to_pad(draw: st.DrawFn) -> tuple[np.ndarray, list[tuple[int, int]], str]:
    x = draw(arrays())
    mode = draw(st.sampled_from(("constant", "constant", "edge", "reflect", "wrap")))
    least = -2 if mode == "constant" else 0  # of the others NumPy does not say what cutting off comes first
    pads = []
    for extent in x.shape:
        changes = draw(st.booleans())
        pads.append(tuple(draw(st.integers(max(least, -(extent // 2)), 5)) if changes else 0 for _ in range(2)))
    return x, pads, mode


@settings(max_examples=150, deadline=None)
@given(to_pad(), *AROUND)
def test_pads_as_numpy_has_them(case: tuple[np.ndarray, list[tuple[int, int]], str], threads: int, level: str | None
                                ) -> None:  # fmt: skip
    x, pads, mode = case
    constants = {"pads": np.array([b for b, _ in pads] + [a for _, a in pads], np.int64)}
    inputs, value = ["x0", "pads"], np.zeros((), x.dtype)
    if mode == "constant" and x.dtype.kind in "fiu":
        value = np.array(7, x.dtype)
        constants["value"] = value
        inputs.append("value")
    model = model_of([node("Pad", inputs, ["y"], mode=mode)], [x], opset=19, constants=constants)
    with polyconv.settings(threads=threads):
        same_bits(run(model, [x], level=level)[0], padded(x, pads, mode, value))


def test_pads_of_some_axes_and_of_old_opsets() -> None:
    x = random(2, 3, 5, 20)
    right = np.pad(x, ((0, 0), (0, 0), (1, 3), (2, 4)), constant_values=1.5)
    constants = {"pads": np.array([2, 1, 4, 3]), "v": np.array(1.5, np.float32), "axes": np.array([-1, 2])}
    model = model_of([node("Pad", ["x0", "pads", "v", "axes"], ["y"])], [x], opset=18, constants=constants)
    same_bits(run(model, [x])[0], right)
    same_bits(one("Pad", x, opset=10, pads=[0, 0, 1, 2, 0, 0, 3, 4], value=1.5), right)
    plain = model_of([node("Pad", ["x0", "pads"], ["y"])], [x], constants={"pads": np.array([0] * 8)})
    same_bits(run(plain, [x])[0], x)


def test_pads_cut_off_in_every_mode() -> None:
    """Negative pads count in positions of the input, as the others do."""
    x = random(1, 2, 9, 40)
    for mode in ("constant", "edge", "reflect", "wrap"):
        constants = {"pads": np.array([0, 0, -2, 3, 0, 0, -1, -5])}
        model = model_of([node("Pad", ["x0", "pads"], ["y"], mode=mode)], [x], opset=19, constants=constants)
        same_bits(run(model, [x])[0], np.pad(x, ((0, 0), (0, 0), (0, 0), (3, 0)), mode=mode)[:, :, 2:-1, :-5])


def test_pads_of_nothing_are_the_value() -> None:
    x = np.zeros((2, 0, 3), np.float32)
    constants = {"pads": np.array([0, 2, 1, 0, 1, 0]), "v": np.array(3, np.float32)}
    model = model_of([node("Pad", ["x0", "pads", "v"], ["y"])], [x], constants=constants)
    same_bits(run(model, [x])[0], np.full((2, 3, 4), 3, np.float32))


@settings(max_examples=100, deadline=None)
@given(arrays(4, 4), st.integers(1, 4), st.sampled_from(("DCR", "CRD")), *AROUND)
def test_depth_becomes_space_and_back(x: np.ndarray, size: int, mode: str, threads: int, level: str | None) -> None:
    n, c, h, w = x.shape
    deep = np.repeat(x, size * size, 1) + np.arange(c * size * size).reshape(-1, 1, 1).astype(x.dtype)
    if mode == "DCR":
        right = deep.reshape(n, size, size, c, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        right = deep.reshape(n, c, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    right = right.reshape(n, c, h * size, w * size)
    with polyconv.settings(threads=threads):
        same_bits(one("DepthToSpace", deep, level=level, blocksize=size, mode=mode), right)
        if mode == "DCR":
            same_bits(one("SpaceToDepth", right, level=level, blocksize=size), deep)


@settings(max_examples=100, deadline=None)
@given(arrays(), st.lists(st.integers(0, 3), min_size=5, max_size=5), *AROUND)
def test_tiles(x: np.ndarray, repeats: list[int], threads: int, level: str | None) -> None:
    times = np.array(repeats[: x.ndim], np.int64)
    model = model_of([node("Tile", ["x0", "times"], ["y"])], [x], constants={"times": times})
    with polyconv.settings(threads=threads):
        same_bits(run(model, [x], level=level)[0], np.tile(x, times))


@settings(max_examples=150, deadline=None)
@given(arrays(), st.randoms(use_true_random=False), *AROUND)
def test_turns(x: np.ndarray, random_: Any, threads: int, level: str | None) -> None:
    perm = random_.sample(range(x.ndim), x.ndim)
    with polyconv.settings(threads=threads):
        same_bits(one("Transpose", x, level=level, perm=perm), x.transpose(perm))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_rows_become_columns(dtype: Any, level: str | None) -> None:
    """Short axes and long ones, with all that can be left of a vector."""
    for rows, columns in itertools.product((1, 2, 3, 5, 8, 9, 16, 31, 64), (1, 3, 4, 15, 16, 17, 48, 100)):
        x = some((2, rows, columns), dtype)
        same_bits(one("Transpose", x, level=level, perm=[0, 2, 1]), x.transpose(0, 2, 1))


@pytest.mark.parametrize("level", BOTH_ENDS)
def test_no_access_is_out_of_bounds(level: str | None) -> None:
    """Kernels that check every access."""
    with at_level(level), polyconv.settings(check=True):
        for rows, columns in itertools.product((1, 2, 3, 9, 17), (1, 4, 16, 33)):
            x = some((2, rows, columns))
            same_bits(one("Transpose", x, perm=[0, 2, 1]), x.transpose(0, 2, 1))
            for mode in ("constant", "reflect"):
                model = model_of([node("Pad", ["x0", "p"], ["y"], mode=mode)], [x],
                                 constants={"p": np.array([0, 2, 1, 0, 0, 3])})  # fmt: skip
                same_bits(run(model, [x])[0], np.pad(x, ((0, 0), (2, 0), (1, 3)), mode=mode))
        deep = some((1, 18, 5, 19))
        same_bits(one("SpaceToDepth", one("DepthToSpace", deep, blocksize=3), blocksize=3), deep)


def test_expanded_values_take_no_memory() -> None:
    x = random(3, 1, 5)
    nodes = [node("Expand", ["x0", "shape"], ["a"]), node("Add", ["a", "x0"], ["y"])]
    model = model_of(nodes, [x], ["y", "a"], constants={"shape": np.array([2, 1, 4, 1])})
    y, a = run(model, [x])
    same_bits(a, np.broadcast_to(x, (2, 3, 4, 5)))
    same_bits(y, np.broadcast_to(x, (2, 3, 4, 5)) + x)
    assert a.flags.writeable


def test_of_types_without_arithmetic() -> None:
    """Of bool and bfloat16, which stay what they are through the graph."""
    x = some((2, 4, 3, 5)) > 0
    nodes = [node("Transpose", ["x0"], ["a"], perm=[0, 2, 3, 1]), node("Concat", ["a", "a"], ["y"], axis=1)]
    turned = x.transpose(0, 2, 3, 1)
    same_bits(run(model_of(nodes, [x]), [x])[0], np.concatenate([turned, turned], 1))
    half, same = (info(name, kind=TensorProto.BFLOAT16) for name in ("x0", "y"))
    made = session(onnx_model([node("DepthToSpace", ["x0"], ["y"], blocksize=2)], [half], [same]))
    assert made.get_outputs()[0].type == "tensor(bfloat16)" and set(engines(made).values()) == {"polyconv"}


@pytest.mark.parametrize(
    ("made", "shape", "constants"),
    [
        (node("Pad", ["x0", "p"], ["y"], "it"), (2, 3), {"p": np.array([1, 2, 3])}),
        (node("Pad", ["x0", "p"], ["y"], "it"), (2, 3), {"p": np.array([0, -2, 0, -2])}),
        (node("Pad", ["x0", "p"], ["y"], "it"), (2, 3), {"p": np.array([0, 1 << 40, 0, 0])}),
        (node("Pad", ["x0", "p"], ["y"], "it", mode="reflect"), (2, 0), {"p": np.array([0, 1, 0, 1])}),
        (node("DepthToSpace", ["x0"], ["y"], "it", blocksize=2), (1, 6, 2, 2), {}),
        (node("SpaceToDepth", ["x0"], ["y"], "it", blocksize=2), (1, 6, 2, 3), {}),
        (node("Tile", ["x0", "r"], ["y"], "it"), (2, 3), {"r": np.array([1, -1])}),
        (node("Tile", ["x0", "r"], ["y"], "it"), (2, 3), {"r": np.array([1 << 40, 1 << 20])}),
        (node("Expand", ["x0", "s"], ["y"], "it"), (2, 3), {"s": np.array([2, 4])}),
    ],
)
def test_what_does_not_fit_is_named(made: Any, shape: tuple[int, ...], constants: dict[str, np.ndarray]) -> None:
    model = onnx_model([made], [info("x0", [None] * len(shape))], [info("y")], constants)
    opened = session(model)
    assert set(engines(opened).values()) == {"polyconv"}
    with pytest.raises(Error, match=f"{made.op_type} node 'it': "):
        opened.run(None, {"x0": np.zeros(shape, np.float32)})


def test_numbers_that_come_with_a_run() -> None:
    """Pads, repeats and sizes that are fed: each run has its own, by steps and replayed, alike in extents or not."""
    x = random(1, 2, 4, 5)
    nodes = [
        node("Relu", ["x0"], ["a"]), node("Pad", ["a", "p"], ["b"]), node("Tile", ["b", "t"], ["c"]),
        node("Resize", ["c", "", "", "s"], ["d"], nearest_mode="floor", coordinate_transformation_mode="asymmetric"),
        node("Neg", ["d"], ["y"]),
    ]  # fmt: skip
    kinds = [info(name, shape, TensorProto.INT64) for name, shape in (("p", [8]), ("t", [4]), ("s", [4]))]
    model = onnx_model(nodes, [info("x0", [1, 2, 4, 5]), *kinds], [info("y")])
    made = session(model)
    assert set(engines(made).values()) == {"polyconv"}
    for pads, times, size in [([0, 1], 1, (8, 12))] * 4 + [([1, 0], 1, (8, 12))] * 2 + [([2, 3], 2, (5, 7))] * 3:
        feeds = {"x0": x, "p": np.array([0, 0, 0, pads[0], 0, 0, 0, pads[1]]), "t": np.array([1, 1, 1, times]),
                 "s": np.array([1, 2, *size])}  # fmt: skip
        right = np.tile(np.pad(np.maximum(x, 0), ((0, 0), (0, 0), (0, 0), tuple(pads))), (1, 1, 1, times))
        for axis, extent in zip((2, 3), size, strict=True):
            places = np.floor(np.arange(extent) / (extent / right.shape[axis])).astype(int)
            right = right.take(places, axis)
        same_bits(made.run(None, feeds)[0], -right)
    with pytest.raises(Error, match=r"Resize node.*cannot be resized to -4"):
        made.run(None, feeds | {"s": np.array([1, 2, 3, -4])})
    same_bits(made.run(None, feeds)[0], -right)
    kinds = [info("x0", [1, 3]), info("t", ["n"], TensorProto.INT64)]
    long = onnx_model([node("Tile", ["x0", "t"], ["y"])], kinds, ["y"])
    with pytest.raises(Error, match=r"Tile node.*more than 128 numbers"):
        session(long).run(None, {"x0": x[0, 0, :1, :3], "t": np.ones(1000, np.int64)})


def test_sizes_that_are_those_of_another_value() -> None:
    """As in a feature pyramid: enlarged to the extents of what it is added to, which only a run tells."""
    nodes = [
        node("Shape", ["x1"], ["e"], start=2), node("Concat", ["kept", "e"], ["s"], axis=0),
        node("Resize", ["x0", "", "", "s"], ["u"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("Add", ["u", "x1"], ["y"]),
    ]  # fmt: skip
    kinds = [info(name, ["n", 3, f"h{name}", f"w{name}"]) for name in ("x0", "x1")]
    made = session(onnx_model(nodes, kinds, [info("y")], {"kept": np.array([1, 3])}))
    assert set(engines(made).values()) == {"polyconv"}
    for h, w in ((3, 4), (3, 4), (3, 4), (5, 20)):
        low, high = random(1, 3, h, w), random(1, 3, 2 * h, 2 * w, seed=1)
        same_bits(made.run(None, {"x0": low, "x1": high})[0], low.repeat(2, 2).repeat(2, 3) + high)
