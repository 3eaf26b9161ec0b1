"""Operators beside convolution: against the specification's own cases, NumPy, mpmath and onnxruntime, at every level.

What is rounded once per operator has NumPy's bits; exponentials and their kin are within 4 units in the last place.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
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
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from own_models import FLOATS, INTEGERS, at_level, model_of, node, one, run, same_bits

import polyconv
from polyconv.errors import Error
from polyconv.operators.table import OPERATORS

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 3e38, -3e38, 0.5, 1.5, 2.5, 88.7, -103.5]

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
    "Log": mpmath.log, "Softplus": lambda v: mpmath.log1p(mpmath.exp(v)),
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
def test_ends_of_softplus(dtype: Any, level: str | None) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0], dtype)
    ends = np.array([np.nan, np.inf, 0, 1e30, 0, np.log(2), np.log(2)], dtype)
    np.testing.assert_array_max_ulp(one("Softplus", x, level=level)[1:], ends[1:], 1)
    assert np.isnan(one("Softplus", x, level=level)[0])


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


def test_types_that_are_not_done_run_on_the_host() -> None:
    x = random(3, 4, dtype=np.float16)
    model = onnx_model([node("Add", ["x0", "x0"], ["y"], "add")], [info("x0", [3, 4], TensorProto.FLOAT16)], ["y"])
    made = session(model)
    np.testing.assert_array_equal(made.run(None, {"x0": x})[0], x + x)
    assert engines(made) == {"add": "onnxruntime"}
    assert [record.reason for record in made.nodes] == ["float16 is not computed here"]
