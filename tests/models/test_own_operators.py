"""Operators beside convolution: against the specification's own cases, NumPy, mpmath and onnxruntime, at every level.

What is rounded once per operator has NumPy's bits; exponentials and their kin are within 4 units in the last place.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levels import BOTH_ENDS, LEVELS
from making import engines, info, onnx_model, onnxruntime_run, random, session
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import polyconv
from polyconv.errors import Error
from polyconv.operators.table import OPERATORS

node = helper.make_node
FLOATS = (np.float32, np.float64)
INTEGERS = (np.int32, np.int64, np.uint8, np.int8)
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 3e38, -3e38, 0.5, 1.5, 2.5, 88.7, -103.5]


def model_of(
    nodes: Sequence[onnx.NodeProto], feeds: Sequence[np.ndarray], outputs: Sequence[str] = ("y",), *,
    opset: int = 17, constants: dict[str, np.ndarray] | None = None, open_dims: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """Nodes that read x0, x1, ..; types and extents of all values are inferred, extents of inputs may be left open."""
    inputs = [
        info(f"x{at}", [None if open_dims else e for e in x.shape], helper.np_dtype_to_tensor_dtype(x.dtype))
        for at, x in enumerate(feeds)
    ]
    return onnx.shape_inference.infer_shapes(onnx_model(nodes, inputs, list(outputs), constants, opset=opset))


@contextmanager
def at_level(level: str | None) -> Iterator[None]:
    """A block whose kernels use the instructions of a level only."""
    with pytest.MonkeyPatch.context() as patch:
        if level is not None:
            patch.setenv("POLYCONV_TARGET", level)
        yield


def run(model: onnx.ModelProto, feeds: Sequence[np.ndarray], *, level: str | None = None) -> list[np.ndarray]:
    """Results of a session in which polyconv runs every node that is not folded."""
    made = session(model)
    assert set(engines(made).values()) <= {"polyconv", "constant", "removed"}
    with at_level(level):
        return made.run(None, {f"x{at}": x for at, x in enumerate(feeds)})


def one(op: str, *feeds: np.ndarray, level: str | None = None, opset: int = 17, **attributes: Any) -> np.ndarray:
    names = [f"x{at}" for at in range(len(feeds))]
    return run(model_of([node(op, names, ["y"], **attributes)], feeds, opset=opset), feeds, level=level)[0]


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal, zeros of either sign alike, NaN where NaN is."""
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@cache
def specified() -> dict[str, list[Any]]:
    """The specification's own cases of one node, by operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # expected values of some of them overflow on purpose
        cases = collect_testcases(None)
    found: dict[str, list[Any]] = {}
    for case in cases:
        if len(case.model.graph.node) == 1:
            found.setdefault(case.model.graph.node[0].op_type, []).append(case)
    return found


def with_constants(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> onnx.ModelProto:
    """The model with all inputs but the first as constants."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    later = made.graph.input[1:]
    del made.graph.input[1:]
    made.graph.initializer.extend(
        numpy_helper.from_array(x, v.name) for v, x in zip(later, inputs[1:], strict=True)
    )
    return made


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_cases_of_the_specification(op: str) -> None:
    """All that polyconv runs, as they are and with all inputs but the first as constants; at least one."""
    count = 0
    for case in specified().get(op, []):
        for inputs, outputs in case.data_sets:
            if not all(isinstance(a, np.ndarray) for a in (*inputs, *outputs)):
                continue
            for model in (case.model, with_constants(case.model, inputs))[: len(inputs)]:
                made = session(model)
                if set(engines(made).values()) != {"polyconv"}:
                    continue
                count += 1
                feeds = {v.name: x for v, x in zip(made.get_inputs(), inputs, strict=False)}
                for ours, expected in zip(made.run(None, feeds), outputs, strict=True):
                    assert ours.shape == expected.shape and ours.dtype == expected.dtype, case.name
                    if expected.dtype.kind == "f":
                        np.testing.assert_allclose(ours, expected, rtol=case.rtol, atol=case.atol, err_msg=case.name)
                    else:
                        np.testing.assert_array_equal(ours, expected, err_msg=case.name)
    assert count or op in _WITHOUT_CASES


_WITHOUT_CASES = frozenset(("Dropout", "Swish", "Cast", "LayerNormalization", "ReduceProd", "ScatterElements"))
"""Operators whose cases are all of types that are left to others, or of forms that rewrites change."""
"""Operators whose cases all have what runs on the host: rare outputs, other types."""


ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, t) for op in ARITHMETIC for t in (*FLOATS, *INTEGERS) if op != "Div" or t in FLOATS],
)
def test_arithmetic_has_numpys_bits(op: str, dtype: Any, level: str | None) -> None:
    rng = np.random.default_rng(1)
    shapes = [((2, 3, 5, 37), (3, 1, 1)), ((4, 7), (4, 7)), ((5, 1), (1, 33)), ((), (3,)), ((2, 1, 4), (3, 1))]
    opset = 18 if op in ("Max", "Min") else 17
    for a_shape, b_shape in shapes:
        a, b = ((rng.standard_normal(s) * 50).astype(dtype) for s in (a_shape, b_shape))
        with np.errstate(all="ignore"):
            same_bits(one(op, a, b, level=level, opset=opset), ARITHMETIC[op](a, b))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_numbers(dtype: Any, level: str | None) -> None:
    values = np.array(SPECIAL, dtype)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(values[:, None], values[None, :]))
    with np.errstate(all="ignore"):
        for op, function in ARITHMETIC.items():
            same_bits(one(op, a, b, level=level), function(a, b))
        for op, alone in (
            ("Sqrt", np.sqrt), ("Abs", np.abs), ("Neg", np.negative), ("Reciprocal", np.reciprocal),
            ("Relu", lambda v: np.maximum(v, 0)), ("LeakyRelu", lambda v: np.where(v < 0, v * np.float32(0.01), v)),
        ):  # fmt: skip
            same_bits(one(op, a, level=level), alone(a).astype(dtype))


EXACT: dict[str, Callable[[Any], Any]] = {
    "Exp": mpmath.exp, "Erf": mpmath.erf, "Tanh": mpmath.tanh, "Sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)),
    "Log": mpmath.log,
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", EXACT)
def test_functions_are_within_four_units(op: str, dtype: Any, level: str | None) -> None:
    mpmath.mp.prec = 200
    rng = np.random.default_rng(3)
    size = 85.0 if dtype is np.float32 else 700.0
    x = np.concatenate([rng.uniform(-size, size, 300), rng.normal(0, 1, 300), rng.uniform(-6, 6, 300),
                        10.0 ** rng.uniform(-30, 0, 100), np.linspace(0.9, 1.1, 41)]).astype(dtype)  # fmt: skip
    tiny = float(np.finfo(dtype).tiny)
    if op == "Log":
        most = float(np.finfo(dtype).max)
        ends = [tiny, tiny / 3, float(np.finfo(dtype).smallest_subnormal), most, most / 3]
        near = 1 + rng.normal(0, 1e-4, 100)
        x = np.abs(np.concatenate([x, ends, near, 10.0 ** rng.uniform(-37, 38, 300)])).astype(dtype)
        x = x[x > 0]
    for v, found in zip(x, one(op, x, level=level), strict=True):
        right = EXACT[op](mpmath.mpf(float(v)))
        unit = np.spacing(np.asarray(max(abs(float(right)), tiny), dtype))
        assert abs(mpmath.mpf(float(found)) - right) <= 4 * mpmath.mpf(float(unit)), (v, found, right)


def test_ends_of_the_exponential() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 89, 710, -104, -800, 0], np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(one("Exp", x), np.exp(x))
        np.testing.assert_array_equal(one("Exp", x.astype(np.float64))[:3], np.exp(x.astype(np.float64))[:3])
    np.testing.assert_array_equal(one("Erf", x[:5]), np.array([np.nan, 1, -1, 1, 1], np.float32))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_ends_of_the_logarithm(dtype: Any, level: str | None) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, -1e-40, 1.0], dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(one("Log", x, level=level), np.log(x))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("op", "function"), [("Floor", np.floor), ("Ceil", np.ceil), ("Round", np.rint)])
def test_whole_numbers(op: str, function: Callable[..., Any], dtype: Any, level: str | None) -> None:
    rng = np.random.default_rng(5)
    whole = 2.0 ** np.finfo(dtype).nmant
    near = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, whole / 2, whole / 2 + 0.5, whole - 0.5, whole, whole + 1,
                     1e30, np.inf, np.nan, np.finfo(dtype).tiny, np.finfo(dtype).max])  # fmt: skip
    x = np.concatenate([near, -near, rng.normal(0, 3, 200), rng.normal(0, 1, 200) * whole]).astype(dtype)
    with np.errstate(all="ignore"):
        x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
        same_bits(one(op, x, level=level), function(x))


@st.composite
def broadcast(draw: st.DrawFn) -> tuple[list[np.ndarray], list[tuple[str, int, int]]]:
    """Arrays whose shapes broadcast, and operators that each read two values made before."""
    full = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 17, 40]), max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    arrays = []
    for _ in range(draw(st.integers(1, 4))):
        kept = full[draw(st.integers(0, len(full))):]
        shape = [1 if draw(st.booleans()) else extent for extent in kept]
        array = rng.standard_normal(shape).astype(np.float32)
        order = draw(st.permutations(range(len(shape))))
        lies = np.asarray(array.transpose(order), order="C")
        arrays.append(lies.transpose(np.argsort(order, kind="stable").astype(int)))
    steps = []
    for at in range(draw(st.integers(1, 9))):
        known = st.integers(0, len(arrays) + at - 1)
        steps.append((draw(st.sampled_from(["Add", "Sub", "Mul", "Max", "Relu", "Neg"])), draw(known), draw(known)))
    return arrays, steps


@settings(max_examples=80, deadline=None)
@given(broadcast(), st.booleans(), st.sampled_from(BOTH_ENDS), st.integers(1, 2))
def test_graphs_of_arithmetic_have_numpys_bits(
    drawn: tuple[list[np.ndarray], list[tuple[str, int, int]]], open_dims: bool, level: str | None, threads: int
) -> None:
    """However many run as one pass, and whatever order arrays have in memory."""
    arrays, steps = drawn
    values = [np.asarray(a) for a in arrays]
    names = [f"x{at}" for at in range(len(arrays))]
    nodes, results = [], []
    single: dict[str, Callable[..., np.ndarray]] = {"Relu": lambda a: np.maximum(a, 0), "Neg": np.negative}
    for at, (op, a, b) in enumerate(steps):
        reads = (a,) if op in single else (a, b)
        nodes.append(node(op, [names[r] for r in reads], [f"v{at}"]))
        names.append(f"v{at}")
        values.append((single | ARITHMETIC)[op](*(values[r] for r in reads)))
        if at == len(steps) - 1 or at % 3 == 0:
            results.append(f"v{at}")
    model = model_of(nodes, arrays, results, open_dims=open_dims)
    with polyconv.settings(threads=threads):
        found = run(model, arrays, level=level)
    for name, ours in zip(results, found, strict=True):
        same_bits(ours, np.asarray(values[names.index(name)]))


def test_a_chain_is_one_step_and_reads_each_value_once() -> None:
    nodes = [
        node("Div", ["x0", "root"], ["a"]), node("Erf", ["a"], ["b"]), node("Add", ["b", "one"], ["c"]),
        node("Mul", ["x0", "c"], ["d"]), node("Mul", ["d", "half"], ["y"]),
    ]  # fmt: skip
    constants = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    x = random(2, 8, 5, 7)
    model = model_of(nodes, [x], constants={n: np.asarray(v) for n, v in constants.items()})
    made = session(model)
    (y,) = made.run(None, {"x0": x})
    assert len({record.step for record in made.nodes}) == 1
    np.testing.assert_allclose(y, onnxruntime_run(model, {"x0": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 7), (1, 16, 8, 8), (1, 1, 9, 4), (3, 40, 1, 1), (1, 5, 13, 1), (1, 8, 65, 64)], ids=str
)
@pytest.mark.parametrize("last", [True, False])
def test_numbers_of_few_channels(shape: tuple[int, ...], last: bool, level: str | None) -> None:
    """Rows that are repeated, whole vectors and what is left of them: all have NumPy's bits, in either order."""
    scale, shift = (random(shape[1], 1, 1, seed=seed) for seed in (1, 2))
    x = random(*shape)
    fed = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if last else x
    nodes = [node("Mul", ["x0", "scale"], ["a"]), node("Add", ["shift", "a"], ["b"]), node("Div", ["b", "two"], ["c"]),
             node("Div", ["x0", "c"], ["d"]), node("Relu", ["d"], ["y"])]  # fmt: skip
    constants = {"scale": scale, "shift": shift, "two": np.float32(2)}
    model = model_of(nodes, [x], constants=constants)
    made = session(model)
    with at_level(level):
        [y] = made.run(None, {"x0": fed})
    same_bits(y, np.maximum(x / ((x * scale + shift) / np.float32(2)), np.float32(0)))


def test_normalisation_scales_and_shifts() -> None:
    x, parts = random(2, 6, 5, 7), [np.abs(random(6, seed=s)) + 0.5 for s in range(4)]
    constants = dict(zip(("s", "b", "m", "v"), parts, strict=True))
    model = model_of([node("BatchNormalization", ["x0", "s", "b", "m", "v"], ["y"])], [x], constants=constants)
    (y,) = run(model, [x])
    s, b, m, v = (p.reshape(6, 1, 1).astype(np.float64) for p in parts)
    scale = s / np.sqrt(v + float(np.float32(1e-5)))
    # three roundings: of scale and shift, of the product, of the sum
    bound = 4 * np.finfo(np.float32).eps * (np.abs(x * scale) + np.abs(b - m * scale))
    assert (np.abs(y - (x * scale + (b - m * scale))) <= bound).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantising_and_back(dtype: Any, axis: int | None, level: str | None) -> None:
    x = np.concatenate([random(3, 40).reshape(-1) * 40, [np.inf, -np.inf, 1e30, -1e30, 0.25, 0.75, -0.25, -0.75] * 3])
    x = np.ascontiguousarray(x.reshape(48, 3).T).astype(np.float32)
    scale = np.array([0.5, 0.25, 3.0], np.float32) if axis else np.float32(0.5)
    zero = (np.array([3, 128, 0]) if axis else np.array(7)).astype(dtype)
    constants = {"s": np.asarray(scale), "z": zero}
    attributes = {} if axis is None else {"axis": 0}
    wide = [a.reshape(-1, 1) if axis else a for a in (np.asarray(scale), zero.astype(np.float32))]
    limits = np.iinfo(dtype)
    q = run(model_of([node("QuantizeLinear", ["x0", "s", "z"], ["y"], **attributes)], [x], constants=constants), [x],
            level=level)[0]  # fmt: skip
    right = np.clip(np.rint(x / wide[0]) + wide[1], limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(q, right)
    back = run(model_of([node("DequantizeLinear", ["x0", "s", "z"], ["y"], **attributes)], [q], constants=constants),
               [q], level=level)[0]  # fmt: skip
    same_bits(back, ((q.astype(np.float32) - wide[1]) * wide[0]).astype(np.float32))


WINDOWS = [
    (k, s, p, ceil)
    for k, s, p in itertools.product([(2, 2), (3, 3), (1, 3), (5, 2)], [(1, 1), (2, 2), (3, 3), (1, 2)],
                                     [(0, 0, 0, 0), (1, 0, 0, 1)])
    for ceil in (0, 1) if k[0] > p[0] and k[1] > p[3]
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
def test_windows_over_planes(level: str | None) -> None:
    x = random(2, 3, 11, 37)
    wide, tall = random(1, 2, 6, 150), random(1, 2, 37, 9)
    for (k, s, p, ceil), z in itertools.product(WINDOWS, (x, wide, tall)):
        attributes = {"kernel_shape": k, "strides": s, "pads": p, "ceil_mode": ceil}
        nodes = [node("MaxPool", ["x0"], ["y"], **attributes)]
        if not ceil:  # where engines differ over what a window beyond the pads divides by
            nodes += [node("AveragePool", ["x0"], [f"a{c}"], count_include_pad=c, **attributes) for c in (0, 1)]
        model = model_of(nodes, [z], [n.output[0] for n in nodes])
        y, *means = zip(run(model, [z], level=level), onnxruntime_run(model, {"x0": z}), strict=True)
        same_bits(*y)
        for ours, theirs in means:  # k eps sum|x|, of either engine
            np.testing.assert_allclose(ours, theirs, atol=2 * math.prod(k) * np.finfo(np.float32).eps * np.abs(z).max())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int8])
def test_largest_of_windows_of_any_rank(dtype: Any, level: str | None) -> None:
    for shape, attributes in (
        ((2, 3, 50), {"kernel_shape": [3], "strides": [2]}),
        ((2, 3, 9, 8, 20), {"kernel_shape": [3, 2, 3], "strides": [2, 1, 2], "pads": [1] * 6}),
        ((1, 2, 20, 90), {"kernel_shape": [3, 3], "dilations": [2, 3], "strides": [1, 2]}),
        ((1, 2, 20, 90), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((1, 1, 9, 2500), {"kernel_shape": [3, 4], "dilations": [1, 3], "strides": [1, 2]}),  # few lines at a time
        ((1, 1, 12, 9000), {"kernel_shape": [2, 2], "strides": [1, 1]}),
    ):
        x = (random(*shape) * 50).astype(dtype)
        model = model_of([node("MaxPool", ["x0"], ["y"], **attributes)], [x])
        same_bits(run(model, [x], level=level)[0], onnxruntime_run(model, {"x0": x})[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions(dtype: Any, level: str | None) -> None:
    for shape in ((2, 3, 11, 37), (1, 70, 9, 40), (3, 1, 1, 1)):
        x = random(*shape, dtype=dtype)
        for axes, keep in itertools.product(([1], [2, 3], [3], [0], [1, 2], [-1]), (0, 1)):
            some = tuple(axes)
            count = math.prod(shape[a] for a in axes)
            size = np.abs(x.astype(np.float64)).sum(axis=some, keepdims=bool(keep))
            mean = one("ReduceMean", x, level=level, axes=axes, keepdims=keep)
            right = x.astype(np.float64).mean(axis=some, keepdims=bool(keep))
            assert (np.abs(mean - right) <= (count + 2) * np.finfo(dtype).eps * size / count).all()
            same_bits(one("ReduceMax", x, level=level, axes=axes, keepdims=keep), x.max(axis=some, keepdims=bool(keep)))
            squares = (x.astype(np.float64) ** 2).sum(axis=some, keepdims=bool(keep))
            for op, exact in (("ReduceL1", size), ("ReduceSumSquare", squares), ("ReduceL2", np.sqrt(squares))):
                found = one(op, x, level=level, axes=axes, keepdims=keep)
                assert (np.abs(found - exact) <= (count + 3) * np.finfo(dtype).eps * exact).all(), op


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1, 1, 2**16), (1, 2**16, 3), (2, 2**14, 40)])
def test_long_sums_keep_small_addends(shape: tuple[int, ...], level: str | None) -> None:
    """One chain from the 1 on would lose all that follow it."""
    axis = 2 if shape[1] == 1 else 1
    x = np.full(shape, 2.0**-25, np.float32)
    x[:, :1, :1] = 1
    if axis == 1:
        x[:, :1] = 1
    found = one("ReduceL1", x, level=level, axes=[axis], keepdims=0)
    right = x.astype(np.float64).sum(axis=axis)
    count = shape[axis]
    assert (np.abs(found - right) <= (2 * 64 + count / 64) * np.finfo(np.float32).eps).all()
    assert (found > 1 + count * 2.0**-26).all()


def normalised(x: np.ndarray, axes: Sequence[int], epsilon: float = 1e-5) -> np.ndarray:
    """Mean 0 and variance 1 over axes, in float64."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=tuple(axes), keepdims=True)
    squares = (centred**2).mean(axis=tuple(axes), keepdims=True)
    return np.asarray(centred / np.sqrt(squares + float(np.float32(epsilon))))


def near(ours: np.ndarray, right: np.ndarray, terms: int, size: float) -> None:
    """Within ``(terms + 8) eps`` of magnitudes of a size."""
    assert ours.dtype in FLOATS and ours.shape == right.shape
    np.testing.assert_allclose(ours, right, rtol=0, atol=(terms + 8) * float(np.finfo(ours.dtype).eps) * size)


LINE_SHAPES = ((2, 3, 11, 37), (1, 70, 9, 40), (3, 1, 1, 1), (1, 16, 3, 129))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_over_any_axis(dtype: Any, level: str | None) -> None:
    for shape, axis in itertools.product(LINE_SHAPES, (0, 1, 2, -1)):
        x = random(*shape, dtype=dtype) * 5
        wide = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
        right = wide / wide.sum(axis=axis, keepdims=True)
        # roundings of the sum, of the function's argument (at most 50) and of the function, relatively
        units = shape[axis] + 50 + 8
        ours = one("Softmax", x, level=level, axis=axis)
        assert (np.abs(ours - right) <= units * np.finfo(dtype).eps * right).all()
        if axis == 2:
            before = one("Softmax", x, level=level, opset=11, axis=axis)  # all axes from there on
            rows = x.reshape(shape[0], shape[1], -1)
            same_bits(before, one("Softmax", rows, level=level, axis=-1).reshape(shape))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_special_numbers(axis: int, level: str | None) -> None:
    """What is no number spoils its own line alone; minus infinity has no share."""
    x = random(19, 37)
    x[3, 5], x[7, 9], x[11, 2] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        wide = np.exp(x - x.max(axis=axis, keepdims=True), dtype=np.float64)
        right = wide / wide.sum(axis=axis, keepdims=True)
    ours = one("Softmax", x, level=level, axis=axis)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(right))
    assert ours[11, 2] == 0
    np.testing.assert_allclose(ours, right, rtol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_normalisation_of_lines(dtype: Any, level: str | None) -> None:
    for shape in LINE_SHAPES[:2]:
        x = random(*shape, dtype=dtype) * 3 + 2
        for axis in (1, 2, 3):
            axes, extents = tuple(range(axis, 4)), shape[axis:]
            scale, bias = random(*extents, seed=1, dtype=dtype), random(*extents, seed=2, dtype=dtype)
            right = normalised(x, axes)
            terms = math.prod(extents)
            ours = one("LayerNormalization", x, scale, bias, level=level, axis=axis)
            near(ours, right * scale + bias, terms, 4 * float(np.abs(right).max()) * 4)
            near(one("LayerNormalization", x, scale, level=level, axis=axis - 4), right * scale, terms, 64)
        scale, bias = random(shape[1], seed=1, dtype=dtype), random(shape[1], seed=2, dtype=dtype)
        column = (-1, 1, 1)
        right = normalised(x, (2, 3), 1e-3) * scale.reshape(column) + bias.reshape(column)
        near(one("InstanceNormalization", x, scale, bias, level=level, epsilon=1e-3), right, shape[2] * shape[3], 64)


@pytest.mark.parametrize("level", BOTH_ENDS)
def test_normalisation_of_groups(level: str | None) -> None:
    x, scale, bias = random(2, 12, 5, 7) + 1, random(12, seed=1), random(12, seed=2)
    for groups in (1, 3, 4, 12):
        right = normalised(x.reshape(2, groups, -1), (2,)).reshape(x.shape)
        ours = one("GroupNormalization", x, scale, bias, level=level, opset=21, num_groups=groups)
        near(ours, right * scale.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1), 12 * 35 // groups, 64)


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_responses_of_neighbouring_channels(level: str | None, dtype: Any) -> None:
    """Odd and even windows, wider than there are channels too, every power, pixels that fill no vector."""
    shapes = (2, 7, 5, 13), (1, 33, 150), (3, 4)
    for size, beta, shape in itertools.product((1, 2, 5, 40), (0.25, 0.5, 0.75, 1.0), shapes):
        x = random(*shape, dtype=dtype) * 30
        squares, sums = x.astype(np.float64) ** 2, np.zeros(shape)
        for c in range(shape[1]):
            sums[:, c] = squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1)
        right = x / (2.0 + float(np.float32(0.01)) / size * sums) ** beta
        ours = one("LRN", x, level=level, size=size, alpha=0.01, beta=beta, bias=2.0)
        bound = (min(size, shape[1]) + 8) * float(np.finfo(dtype).eps)  # of sums of squares, whose power is below 1
        assert (np.abs(ours - right) <= bound * np.abs(right)).all()


def test_responses_that_are_left_to_others() -> None:
    """Powers that roots do not make, and sums that may be 0: the answer is onnxruntime's."""
    x = random(1, 4, 3, 3)
    for attributes in ({"beta": 0.6}, {"bias": 0.0}):
        made = session(model_of([node("LRN", ["x0"], ["y"], size=3, **attributes)], [x]))
        assert set(engines(made).values()) == {"onnxruntime"}


def test_no_lines_and_no_elements() -> None:
    for shape in ((0, 3), (2, 0)):
        x = np.zeros(shape, np.float32)
        assert one("Softmax", x).shape == one("LayerNormalization", x, np.ones(shape[1], np.float32)).shape == shape


def test_lines_that_lie_otherwise() -> None:
    """A turned, a reversed and a repeated input, whose copies must not be needed to be right."""
    x = random(6, 40, 5)
    turned = x.transpose(2, 0, 1), x.transpose(1, 0, 2)
    for z in (*turned, x[::-1, :, ::-1], x[:, ::2], np.broadcast_to(x[:1], (4, 40, 5))):
        packed = np.ascontiguousarray(z)
        for axis in range(3):
            same_bits(one("Softmax", z, axis=axis), one("Softmax", packed, axis=axis))
        w = random(z.shape[-1], seed=1)
        same_bits(one("LayerNormalization", z, w), one("LayerNormalization", packed, w))


def test_what_is_joined_and_turned() -> None:
    a, b = random(2, 3, 11, 37), random(2, 5, 11, 37, seed=1)
    same_bits(one("Concat", a, b, a, axis=1), np.concatenate([a, b, a], 1))
    many = [random(2, at % 3, 7, seed=at) for at in range(40)]
    same_bits(one("Concat", *many, axis=-2), np.concatenate(many, 1))
    for perm in itertools.permutations(range(4)):
        same_bits(one("Transpose", a, perm=perm), a.transpose(perm))


def test_inputs_that_lie_otherwise() -> None:
    """A turned, a reversed and a strided input, fed as they lie."""
    x = random(6, 40, 5)
    for z in (x.transpose(2, 0, 1), x[::-1, :, ::-1], x[:, ::2], np.broadcast_to(x[:1], (4, 40, 5))):
        same_bits(one("Add", z, z), z + z)
        same_bits(one("MaxPool", z, kernel_shape=[2]), np.maximum(z[..., :-1], z[..., 1:]))
        same_bits(one("ReduceMax", z, axes=[1], keepdims=0), z.max(1))
        same_bits(one("Concat", z, z, axis=0), np.concatenate([z, z]))


@pytest.mark.parametrize(
    ("nodes", "shapes"),
    [
        ([node("Add", ["x0", "x1"], ["y"])], [(2, 3), (4, 3)]),
        ([node("PRelu", ["x0", "x1"], ["y"])], [(1, 3), (4, 3)]),
        ([node("MaxPool", ["x0"], ["y"], kernel_shape=[5])], [(1, 1, 3)]),
        ([node("Concat", ["x0", "x1"], ["y"], axis=0)], [(1, 2), (1, 3)]),
        ([node("LayerNormalization", ["x0", "x1"], ["y"])], [(2, 3), (4,)]),
        ([node("InstanceNormalization", ["x0", "x1", "x1"], ["y"])], [(2, 3, 4), (4,)]),
        ([node("Reshape", ["x0", "to"], ["y"])], [(2, 3)]),
    ],
)
def test_shapes_that_do_not_fit_are_named(nodes: list[onnx.NodeProto], shapes: list[tuple[int, ...]]) -> None:
    """Where extents are open until a run; the session works afterwards."""
    feeds = [random(*shape) for shape in shapes]
    kinds = [info(f"x{at}", [None] * x.ndim) for at, x in enumerate(feeds)]
    made = session(onnx_model(nodes, kinds, [info("y")], {"to": np.array([4, -1])}))
    with pytest.raises(Error, match=nodes[0].op_type):
        made.run(None, {f"x{at}": x for at, x in enumerate(feeds)})
    good = [random(*[6] * x.ndim) for x in feeds]
    assert made.run(None, {f"x{at}": x for at, x in enumerate(good)})[0].size


def test_casts_and_chosen_elements() -> None:
    x = np.array([0.5, -1.5, 2.5, 100.7, -100.2, 0.0], np.float32)
    for to in (TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64, TensorProto.INT8):
        same_bits(one("Cast", x, to=to), x.astype(helper.tensor_dtype_to_np_dtype(to)))
    y = np.arange(-3, 3)
    same_bits(one("Cast", y, to=TensorProto.FLOAT), y.astype(np.float32))
    z = random(3, 4, 5)
    for axis, at in ((0, 2), (1, -1), (-1, 0)):
        for indices in (np.array(at), np.array([[at, 0], [1, at]])):
            model = model_of([node("Gather", ["x0", "at"], ["y"], axis=axis)], [z], constants={"at": indices})
            same_bits(run(model, [z])[0], z.take(indices, axis))


def test_quotients_of_integers() -> None:
    a, b = np.array([7, -7, 7, -7, 0, 6]), np.array([2, 2, -2, -2, 3, -3])
    same_bits(one("Div", a, b), np.array([3, -3, -3, 3, 0, -2]))
    same_bits(one("Div", a.reshape(6)[1:2].reshape(()), np.array(2)), np.array(-3))
    with pytest.raises(Error, match=r"Div.*divided by 0"):
        one("Div", a, b * 0)


def test_types_that_are_not_done_run_on_the_host() -> None:
    x = random(3, 4, dtype=np.float16)
    model = onnx_model([node("Add", ["x0", "x0"], ["y"], "add")], [info("x0", [3, 4], TensorProto.FLOAT16)], ["y"])
    made = session(model)
    np.testing.assert_array_equal(made.run(None, {"x0": x})[0], x + x)
    assert engines(made) == {"add": "onnxruntime"}
    assert [record.reason for record in made.nodes] == ["float16 is not computed here"]


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 4)])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools_of_inputs_whose_rank_a_run_tells(op: str, shape: tuple[int, ...]) -> None:
    """A file need not say it; a Sigmoid, then, makes values of any rank."""
    model = onnx_model([node("Sigmoid", ["x"], ["s"]), node(op, ["s"], ["y"])], [info("x", None)], [info("y", None)])
    made, x = session(model), random(*shape)
    [y] = made.run(None, {"x": x})
    s = 1 / (1 + np.exp(-x.astype(np.float64)))
    axes = tuple(range(2, len(shape)))
    want = s.mean(axes, keepdims=True) if op == "GlobalAveragePool" else s.max(axes, keepdims=True)
    eps = float(np.finfo(np.float32).eps)
    assert y.shape == want.shape
    assert (np.abs(y - want) <= (8 + math.prod(shape[2:])) * eps).all()
    assert set(engines(made).values()) == {"polyconv"}
    with pytest.raises(Error, match="has no spatial axes"):
        made.run(None, {"x": random(2, 3)})


COMPARISONS: dict[str, Callable[..., Any]] = {
    "Equal": np.equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less,
    "LessOrEqual": np.less_equal,
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS))
@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons(op: str, dtype: Any, level: str | None) -> None:
    rng = np.random.default_rng(1)
    if dtype in FLOATS:
        a, b = (rng.integers(-3, 3, (5, 37)).astype(dtype) for _ in range(2))
        a[0, :6], b[0, :6] = [np.nan, 1, np.inf, -np.inf, 0.0, np.nan], [1, np.nan, np.inf, np.inf, -0.0, np.nan]
    else:
        limits = np.iinfo(dtype)
        a, b = (rng.integers(limits.min, limits.max, (5, 37), dtype, endpoint=True) for _ in range(2))
        b[:, ::2] = a[:, ::2]
    same_bits(one(op, a, b, level=level), COMPARISONS[op](a, b))
    same_bits(one(op, a, b[:1], level=level), COMPARISONS[op](a, b[:1]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, np.bool_))
def test_choices(dtype: Any, level: str | None) -> None:
    rng = np.random.default_rng(2)
    is_met = rng.integers(0, 2, (4, 41)).astype(np.bool_)
    a, b = (rng.integers(0, 100, shape).astype(dtype) for shape in ((4, 41), (1, 41)))
    same_bits(one("Where", is_met, a, b, level=level), np.where(is_met, a, b))
    same_bits(one("Where", is_met[:, :1], a, b[:, :1], level=level), np.where(is_met[:, :1], a, b[:, :1]))


@pytest.mark.parametrize("level", LEVELS)
def test_truth_values(level: str | None) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2, (7, 67)).astype(np.bool_) for _ in range(2))
    for op, function in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor), ("Equal", np.equal)):
        same_bits(one(op, a, b, level=level), function(a, b))
    same_bits(one("Not", a, level=level), ~a)
    for kind in (np.float32, np.float64, np.int32, np.int64, np.uint8, np.int8):
        to = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        same_bits(one("Cast", a, level=level, to=to), a.astype(kind))
        x = rng.integers(-1, 2, (3, 35)).astype(kind)
        same_bits(one("Cast", x, level=level, to=TensorProto.BOOL), x.astype(np.bool_))
    nan = np.array([np.nan, 0.0, -0.0, 1e-40], np.float32)
    same_bits(one("Cast", nan, level=level, to=TensorProto.BOOL), np.array([True, False, False, True]))


def test_a_mask_is_one_pass() -> None:
    nodes = [
        node("Less", ["x", "limit"], ["low"]), node("Greater", ["x", "least"], ["high"]),
        node("And", ["low", "high"], ["in"]), node("Not", ["in"], ["out"]), node("Where", ["out", "none", "x"], ["y"]),
    ]  # fmt: skip
    constants = {"limit": np.float32(1), "least": np.float32(-1), "none": np.float32(0)}
    made = session(onnx_model(nodes, [info("x", [3, 50])], ["y"], constants))
    x = random(3, 50)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], np.where(np.abs(x) < 1, x, 0))
    assert [step.ops for step in made.steps] == [("Less", "Greater", "And", "Not", "Where")]


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.int32, np.uint8))
@pytest.mark.parametrize("given", [("x", "low", "high"), ("x", "low"), ("x", "", "high")])
def test_clips_by_numbers_of_a_run(given: tuple[str, ...], dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [info("x", [3, 37], kind), *(info(name, [], kind) for name in ("low", "high") if name in given)]
    made = session(onnx_model([node("Clip", list(given), ["y"], "clip")], inputs, [info("y", None, kind)]))
    rng = np.random.default_rng(4)
    for low, high in ((1, 5), (3, 3), (0, 100)):
        x = rng.integers(0, 9, (3, 37)).astype(dtype)
        feeds = {"x": x, "low": np.array(low, dtype), "high": np.array(high, dtype)}
        found = made.run(None, {name: a for name, a in feeds.items() if name in given})[0]
        same_bits(found, np.clip(x, low if "low" in given else None, high if "high" in given else None).astype(dtype))
    assert engines(made) == {"clip": "polyconv"}
