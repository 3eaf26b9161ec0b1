"""The activations' vector code against mpmath: every function, float format and target this machine runs.

Errors are counted in units in the last place of the exact value, which mpmath gives in 200 bits.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from typing import Any

import elf
import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from elf import TARGETS, undefined_symbols
from mpmath import mpf

from polyconv.kernels import mathfn
from polyconv.kernels.compile import link, object_code
from polyconv.kernels.language import Buffer, Module, Type
from polyconv.kernels.signature import Int, Signature
from polyconv.problem.epilogue import ACTIVATIONS
from polyconv.runtime.architecture import ARM, X86, architecture_of
from polyconv.target import Target, levels, target

HERE = levels()
ARCHITECTURE = architecture_of(platform.machine())
DTYPES: dict[str, Any] = {"float": np.float32, "double": np.float64, "i32": np.int32, "i64": np.int64}

PARAMETERS = {
    "LeakyRelu": (0.01,), "Clip": (-1.5, 6.0), "HardSigmoid": (0.2, 0.5), "Elu": (1.7,), "ReluAffine": (0.75, 0.25),
    "HardSwishAffine": (0.5, 0.25),
}  # fmt: skip

EXACT: dict[str, Callable[..., Any]] = {
    "Relu": lambda v: max(v, mpf(0)),
    "LeakyRelu": lambda v, a: v if v >= 0 else a * v,
    "Clip": lambda v, lo, hi: min(max(v, lo), hi),
    "HardSigmoid": lambda v, a, b: min(max(a * v + b, mpf(0)), mpf(1)),
    "HardSwish": lambda v: v * min(max(v + 3, mpf(0)), mpf(6)) / 6,
    "Sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)),
    "Tanh": mpmath.tanh,
    "Silu": lambda v: v / (1 + mpmath.exp(-v)),
    "Mish": lambda v: v * mpmath.tanh(mpmath.log1p(mpmath.exp(v))),
    "Gelu": lambda v: v * mpmath.erfc(min(max(-v, mpf(-1000)), mpf(1000)) / mpmath.sqrt(2)) / 2,
    "Elu": lambda v, a: v if v > 0 else a * mpmath.expm1(v),
    "ReluAffine": lambda v, a, b: a * max(v, mpf(0)) + b,
    "HardSwishAffine": lambda v, a, b: a * v * min(max(v + 3, mpf(0)), mpf(6)) / 6 + b,
}

LIMITS: dict[str, tuple[float, float]] = {
    "Relu": (0, np.inf), "LeakyRelu": (-np.inf, np.inf), "Clip": (-1.5, 6), "HardSigmoid": (0, 1),
    "HardSwish": (0, np.inf), "Sigmoid": (0, 1), "Tanh": (-1, 1), "Silu": (0, np.inf), "Mish": (0, np.inf),
    "Gelu": (0, np.inf), "Elu": (-1.7, np.inf), "ReluAffine": (0.25, np.inf), "HardSwishAffine": (0.25, np.inf),
}  # fmt: skip
"""Values at both infinities."""

# Calls the kernel with subnormal numbers off, operands and results.
FLUSHING = f"""{ARCHITECTURE.exchange}
define void @flushing(ptr %x, ptr %y, ptr %parameters, i64 %n) {{
  %word = alloca i64
  store i64 {ARCHITECTURE.fast}, ptr %word
  call void @exchange(ptr %word)
  call void @loop(ptr %x, ptr %y, ptr %parameters, i64 %n)
  call void @exchange(ptr %word)
  ret void
}}
"""


class Each(Signature):
    """A function of every element, ``count`` of them, a multiple of the lanes."""

    x: Buffer
    y: Buffer
    parameters: Buffer
    count: Int


def text(name: str, kind: Type, to: Target) -> str:
    """Kernel ``loop`` of a function."""
    k = Module(fma=to.has_fma, wide=8 * to.vector_bytes)
    with k.function("loop", Each) as given:
        places = [given.parameters + i * kind.element_bytes for i in range(mathfn.PARAMETERS[name])]
        parameters = [k.broadcast(kind, p) if kind.lanes else k.load(kind, p) for p in places]
        with k.loop(0, given.count, max(1, kind.lanes)) as turn:
            at = turn.index * kind.element_bytes
            k.store(mathfn.apply(k, name, k.load(kind, given.x + at), parameters), given.y + at)
    return k.text(to.triple)


def lanes_of(element: str, to: Target) -> int:
    return to.vector_bytes // Type(element).element_bytes


def run(name: str, kind: Type, level: str, x: Any, parameters: Any = None, *, flush: bool = False) -> Any:
    """Results of the compiled kernel on an array of any length."""
    dtype, to = DTYPES[kind.element], target(level)
    obj = object_code(text(name, kind, to) + (FLUSHING if flush else ""), to)
    entry = "flushing" if flush else "loop"
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(link(obj, (entry,))[entry])
    padded = np.concatenate([x, np.zeros(-len(x) % 64, dtype)]).astype(dtype)
    table = np.array([*(PARAMETERS.get(name, ()) if parameters is None else parameters), 0]).astype(dtype)
    y = np.empty_like(padded)
    kernel(padded.ctypes.data, y.ctypes.data, table.ctypes.data, len(padded))
    return y[: len(x)]


@cache
def points(element: str) -> Any:
    """Finite arguments: every magnitude, the bent parts, the tails, branch points with their neighbours."""
    dtype, draw = DTYPES[element], np.random.default_rng(17)
    info = np.finfo(dtype)
    least, most = np.log10(float(info.tiny)), np.log10(float(info.max))
    tail = {"float": 112.0, "double": 762.0}[element]
    magnitudes = 10.0 ** np.concatenate([draw.uniform(least, 0, 300), draw.uniform(0, most, 100)])
    places = np.array([0, 1, 1.5, 2.5, 3, 6, 15, 30, 38.5, 40, 60, tail, *(np.log(2) * (np.arange(8) + 0.5))])
    places = np.concatenate([places, -places]).astype(dtype)
    near = places[:, None] + np.spacing(places)[:, None] * np.arange(-3, 4)
    wide = draw.uniform(-1, 1, 300)[None] * np.array([0.1, 1.0, 4.0, 12.0, 15.0, 40.0, tail])[:, None]
    ends = [info.max, info.tiny, info.smallest_subnormal]
    halves = [magnitudes, -magnitudes, near.ravel(), wide.ravel(), draw.uniform(-4, 4, 600)]
    return np.concatenate([*halves, ends, np.negative(ends)]).astype(dtype)


@cache
def exact(name: str, element: str) -> tuple[Any, Any]:
    """Exact values at ``points``, as the nearest double and what it leaves."""
    dtype = DTYPES[element]
    parameters = [mpf(float(dtype(p))) for p in PARAMETERS.get(name, ())]
    with mpmath.workprec(200):
        values = [EXACT[name](mpf(float(v)), *parameters) for v in points(element)]
        high = [float(v) for v in values]
        return np.array(high), np.array([float(v - h) for v, h in zip(values, high, strict=True)])


def kinds(element: str, to: Target) -> list[Type]:
    return [Type(element, lanes_of(element, to)), Type(element)]


@pytest.mark.parametrize("flush", [False, True] if ARCHITECTURE in (X86, ARM) else [False])
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("element", ["float", "double"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_accuracy(name: str, element: str, level: str, flush: bool) -> None:
    """Within 4 units in the last place; below the smallest normal number, within that."""
    x, (high, low) = points(element), exact(name, element)
    tiny = float(np.finfo(DTYPES[element]).tiny)
    digits = np.finfo(DTYPES[element]).nmant + 1
    unit = np.ldexp(1.0, np.maximum(np.frexp(high)[1], np.frexp(tiny)[1]) - digits)
    allowed = np.where(np.abs(high) < tiny, tiny, 4 * unit)
    counts = np.abs(x) >= tiny if flush else np.ones(len(x), bool)  # a subnormal argument is a 0 there
    for kind in kinds(element, target(level)):
        y = run(name, kind, level, x, flush=flush).astype(np.float64)
        bad = counts & ~(np.abs((y - high) - low) <= allowed)
        assert not bad.any(), [(a, b, c) for a, b, c in zip(x[bad], y[bad], high[bad], strict=True)][:5]


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("element", ["float", "double"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_limits_and_nan(name: str, element: str, level: str) -> None:
    """The limits at both infinities are taken exactly, and NaN (of either sign) stays NaN."""
    x = np.array([-np.inf, np.inf, np.nan, -np.nan], DTYPES[element])
    for kind in kinds(element, target(level)):
        y = run(name, kind, level, x)
        np.testing.assert_array_equal(y[:2], np.array(LIMITS[name], DTYPES[element]))
        assert np.isnan(y[2:]).all()


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("element", ["float", "double", "i32", "i64"])
def test_clip_with_crossed_bounds(element: str, level: str) -> None:
    """With min above max every result is max: ``min(max(v, lo), hi)``."""
    x = np.arange(-8, 8).astype(DTYPES[element])
    for kind in kinds(element, target(level)):
        assert (run("Clip", kind, level, x, (5, 2)) == 2).all()


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("element", ["i32", "i64"])
def test_integers(element: str, level: str) -> None:
    """Relu and Clip on integers, up to the ends of their range."""
    info = np.iinfo(DTYPES[element])
    x = np.array([info.min, info.min + 1, -7, -1, 0, 1, 6, 7, info.max - 1, info.max], DTYPES[element])
    for kind in kinds(element, target(level)):
        np.testing.assert_array_equal(run("Relu", kind, level, x), [0, 0, 0, 0, 0, 1, 6, 7, *x[-2:]])
        np.testing.assert_array_equal(
            run("Clip", kind, level, x, (-7, 6)), [-7, -7, -7, -1, 0, 1, 6, 6, 6, 6]
        )


@pytest.mark.parametrize("level", TARGETS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nothing_is_called(name: str, level: str) -> None:
    """No object refers to a symbol outside it: no libm, on no target."""
    to = TARGETS[level]
    for element in ("float", "double", *(("i32", "i64") if ACTIVATIONS[name].integers else ())):
        for kind in kinds(element, to):
            assert undefined_symbols(elf.object_code(text(name, kind, to), to)) == []


def test_undefined_symbols_are_seen() -> None:
    """The reader of the test above finds a call of libm where there is one."""
    to = TARGETS["baseline"]
    k = Module(fma=False)
    with k.function("loop", Each) as given:
        k.store(k.intrinsic("exp", Type("double"), k.load(Type("double"), given.x)), given.y)
    assert undefined_symbols(elf.object_code(k.text(to.triple), to)) == ["exp"]
