"""Scalar instructions of the emulator against exact arithmetic: Python's integers and fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from emulator import launch
from numpy.typing import NDArray
from snippets import NUMPY, apply, kernel, rounded

Array = NDArray[Any]


def edges(type_: str) -> Array:
    """Numbers at which arithmetic of a type goes wrong, and some between."""
    dtype = np.dtype(NUMPY[type_])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        near = [0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 100]
        values = [v for v in (*near, *(-v for v in near)) if info.min <= v <= info.max]
        return np.array([*values, info.min, info.min + 1, info.max, info.max - 1, info.max // 3], dtype)
    digits = {2: 11, 4: 24, 8: 53}[dtype.itemsize] if type_ != "bf16" else 8
    least = {"f16": -24, "bf16": -133, "f32": -149, "tf32": -149, "f64": -1074}[type_]
    most = {"f16": 15, "bf16": 127, "f32": 127, "tf32": 127, "f64": 1023}[type_]
    one_more = 2.0 ** (1 - digits)
    numbers = [
        0.0, 1.0, 1.5, 1 / 3, 2.5, 3.5, 0.1, 255.5, 1000.25, one_more / 2, 1 + one_more, 2.0**least,
        2.0 ** (least + 1) * 3, 2.0 ** (least + digits - 1), 2.0**most * (2 - one_more), 2.0 ** (most // 2),
    ]  # fmt: skip
    return np.array([s * v for v in numbers for s in (1, -1)]).astype(dtype)


def pairs(type_: str) -> tuple[Array, Array]:
    """All pairs of edges."""
    e = edges(type_)
    return np.repeat(e, len(e)), np.tile(e, len(e))


def wrapped(values: list[int], dtype: Any) -> Array:
    """Python's integers modulo a type."""
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([v % (1 << bits) for v in values], np.dtype(f"u{bits // 8}")).view(dtype)


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b, "min": min, "max": max,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}  # fmt: skip


_TYPES = ["u16", "s16", "u32", "s32", "u64", "s64"]
_OPERATIONS = [(n, t) for n in (*INTEGER, "div", "rem", "mul.hi") for t in _TYPES]
_OPERATIONS += [("mul.wide", t) for t in _TYPES[:4]]


@pytest.mark.parametrize(("name", "type_"), _OPERATIONS)
def test_integer_arithmetic(name: str, type_: str) -> None:
    a, b = pairs(type_)
    bits = int(type_[1:])
    if name in ("div", "rem"):
        a, b = a[b != 0], b[b != 0]
    of = [int(v) for v in a], [int(v) for v in b]
    suffix = f"b{bits}" if name in ("and", "or", "xor") else type_
    result = f"{type_[0]}{2 * bits}" if name == "mul.wide" else type_
    got = apply(f"{name}.{suffix} {{d}}, {{a}}, {{b}};", [result, type_, type_], a, b)
    function: Callable[[int, int], int] = INTEGER.get(name) or {
        "div": quotient, "rem": lambda x, y: x - quotient(x, y) * y, "mul.hi": lambda x, y: x * y >> bits,
        "mul.wide": lambda x, y: x * y,
    }[name]  # fmt: skip
    np.testing.assert_array_equal(got, wrapped([function(x, y) for x, y in zip(*of, strict=True)], NUMPY[result]))


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_multiply_add(type_: str) -> None:
    a, b = pairs(type_)
    c = np.roll(a, 7)
    got = apply(f"mad.lo.{type_} {{d}}, {{a}}, {{b}}, {{c}};", [type_] * 4, a, b, c)
    want = [int(x) * int(y) + int(z) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(got, wrapped(want, NUMPY[type_]))


@pytest.mark.parametrize("type_", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"])
def test_shifts_clamp_their_amount(type_: str) -> None:
    bits = int(type_[1:])
    values = edges(f"s{bits}" if type_[0] == "s" else f"u{bits}")
    amounts = np.array([0, 1, 5, bits - 1, bits, bits + 1, 200, 2**32 - 1], np.uint32)
    a, n = np.repeat(values, len(amounts)), np.tile(amounts, len(values))
    both = list(zip(a.tolist(), n.tolist(), strict=True))
    if type_[0] == "b":
        got = apply(f"shl.{type_} {{d}}, {{a}}, {{b}};", [type_, type_, "u32"], a, n)
        np.testing.assert_array_equal(got, wrapped([x << min(y, 64) for x, y in both], got.dtype))
    got = apply(f"shr.{type_} {{d}}, {{a}}, {{b}};", [type_, type_, "u32"], a, n)
    np.testing.assert_array_equal(got, wrapped([x >> min(y, 64) for x, y in both], got.dtype))


def test_funnel_shifts() -> None:
    low, high = (v.astype(np.uint32) for v in pairs("u32"))
    n = np.resize(np.array([0, 1, 13, 31, 32, 33, 64], np.uint32), len(low))
    for direction, mode in itertools.product("lr", ("wrap", "clamp")):
        got = apply(f"shf.{direction}.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", ["b32"] * 4, low, high, n)
        want = []
        for x, y, s in zip(low.tolist(), high.tolist(), n.tolist(), strict=True):
            s = s & 31 if mode == "wrap" else min(s, 32)
            both = y << 32 | x
            want.append(both << s >> 32 if direction == "l" else both >> s)
        np.testing.assert_array_equal(got, wrapped(want, np.uint32))


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
def test_bit_fields(type_: str) -> None:
    bits = int(type_[1:])
    values = edges(type_)
    places = list(itertools.product((0, 1, 7, bits - 1, bits, 250), (0, 1, 5, bits - 3, bits, 255)))
    a = np.repeat(values, len(places))
    at, length = (np.tile(np.array(v, np.uint32), len(values)) for v in zip(*places, strict=True))
    got = apply(f"bfe.{type_} {{d}}, {{a}}, {{b}}, {{c}};", [type_, type_, "u32", "u32"], a, at, length)
    want = []
    for x, p, n in zip(a.tolist(), at.tolist(), length.tolist(), strict=True):
        # the loop of the specification
        field = sum((x >> p + i & 1) << i for i in range(min(n, bits)) if p + i < bits)
        sign = x >> min(p + n - 1, bits - 1) & 1 if n and type_[0] == "s" else 0
        top = min(n, max(bits - p, 0))
        want.append(field | (-1 << top if sign else 0))
    np.testing.assert_array_equal(got, wrapped(want, got.dtype))
    if type_[0] == "u":
        b = np.roll(a, 11)
        got = apply(f"bfi.b{bits} {{d}}, {{a}}, {{b}}, {{c}}, {{e}};", [type_] * 3 + ["u32"] * 2, a, b, at, length)
        want = []
        for x, y, p, n in zip(a.tolist(), b.tolist(), at.tolist(), length.tolist(), strict=True):
            for i in range(min(n, bits)):
                if p + i < bits:
                    y = y & ~(1 << p + i) | (x >> i & 1) << p + i
            want.append(y)
        np.testing.assert_array_equal(got, wrapped(want, got.dtype))


def test_bytes_and_bits() -> None:
    a, b = (v.astype(np.uint32) for v in pairs("u32"))
    selector = np.resize(np.array([0x3210, 0x7654, 0x5410, 0x8888, 0xF0A1, 0x0123], np.uint32), len(a))
    got = apply("prmt.b32 {d}, {a}, {b}, {c};", ["b32"] * 4, a, b, selector)
    want = []
    for x, y, s in zip(a.tolist(), b.tolist(), selector.tolist(), strict=True):
        eight = x.to_bytes(4, "little") + y.to_bytes(4, "little")
        picks = [s >> 4 * i & 15 for i in range(4)]
        four = [eight[q & 7] if q < 8 else (255 if eight[q & 7] & 128 else 0) for q in picks]
        want.append(int.from_bytes(bytes(four), "little"))
    np.testing.assert_array_equal(got, wrapped(want, np.uint32))
    c = np.roll(a, 5)
    for table, want_bits in ((0x96, a ^ b ^ c), (0xCA, a & b | ~a & c)):
        got = apply(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", ["b32"] * 4, a, b, c)
        np.testing.assert_array_equal(got, want_bits)
    for bits in (32, 64):
        values = edges(f"u{bits}")
        spelt = [f"{v:0{bits}b}" for v in values.tolist()]
        types = [f"u{bits}", f"u{bits}"]
        reverse = apply(f"brev.b{bits} {{d}}, {{a}};", types, values)
        np.testing.assert_array_equal(reverse, np.array([int(s[::-1], 2) for s in spelt], values.dtype))
        ones = apply(f"popc.b{bits} {{d}}, {{a}};", ["u32", f"u{bits}"], values)
        np.testing.assert_array_equal(ones, [s.count("1") for s in spelt])
        zeros = apply(f"clz.b{bits} {{d}}, {{a}};", ["u32", f"u{bits}"], values)
        np.testing.assert_array_equal(zeros, [len(s) - len(s.lstrip("0")) for s in spelt])


def test_dot_of_bytes() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(0, 2**32, 200, np.uint32) for _ in range(3))
    for left, right in itertools.product(("s32", "u32"), repeat=2):
        total = "s32" if "s32" in (left, right) else "u32"
        got = apply(f"dp4a.{left}.{right} {{d}}, {{a}}, {{b}}, {{c}};", [total, "b32", "b32", total], a, b, c)
        x, y = (v.view(np.int8 if t == "s32" else np.uint8).reshape(-1, 4) for v, t in ((a, left), (b, right)))
        want = (x.astype(object) * y.astype(object)).sum(axis=1) + c.view(NUMPY[total]).astype(object)
        np.testing.assert_array_equal(got, wrapped(want.tolist(), NUMPY[total]))


FLOAT: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add.rn": lambda a, b: a + b, "sub.rn": lambda a, b: a - b, "mul.rn": lambda a, b: a * b,
    "div.rn": lambda a, b: a / b,
}  # fmt: skip


def fractions(*arrays: Array) -> list[tuple[Fraction, ...]]:
    return [tuple(Fraction(float(v)) for v in row) for row in zip(*arrays, strict=True)]


def assert_same_numbers(got: Array, want: list[float]) -> None:
    """Equal, where the signs of zeros are not looked at."""
    np.testing.assert_array_equal(got.astype(np.float64), np.array(want))


_HAS_DIVISION = ("f32", "f64")
_FLOAT_OPERATIONS = [
    (n, t) for n in FLOAT for t in ("f16", "bf16", *_HAS_DIVISION) if n != "div.rn" or t in _HAS_DIVISION
]


@pytest.mark.parametrize(("name", "type_"), _FLOAT_OPERATIONS)
def test_float_arithmetic_rounds_once(name: str, type_: str) -> None:
    a, b = pairs(type_)
    if name == "div.rn":
        a, b = a[b != 0], b[b != 0]
    got = apply(f"{name}.{type_} {{d}}, {{a}}, {{b}};", [type_] * 3, a, b)
    assert_same_numbers(got, [rounded(FLOAT[name](x, y), type_) for x, y in fractions(a, b)])


@pytest.mark.parametrize("type_", ["f16", "bf16", "f32", "f64"])
def test_fma_rounds_once(type_: str) -> None:
    rng = np.random.default_rng(1)
    a, b = pairs(type_)
    c = np.resize(edges(type_)[rng.permutation(len(edges(type_)))], len(a))
    # near ties: a product of all digits plus something far below its last one
    x, y = ((1 + rng.integers(0, 2**10, 500) / 2.0**10).astype(NUMPY[type_]) for _ in range(2))
    least = -24 if type_ == "f16" else -60
    z = (rng.choice([-1.0, 1.0], 500) * 2.0 ** rng.integers(least, -5, 500)).astype(NUMPY[type_])
    a, b, c = np.concatenate([a, x]), np.concatenate([b, y]), np.concatenate([c, z])
    got = apply(f"fma.rn.{type_} {{d}}, {{a}}, {{b}}, {{c}};", [type_] * 4, a, b, c)
    assert_same_numbers(got, [rounded(p * q + r, type_) for p, q, r in fractions(a, b, c)])


@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_packed_arithmetic_is_that_of_its_halves(type_: str) -> None:
    a, b = pairs(type_)
    c = np.roll(a, 3)
    packed = [np.ascontiguousarray(v[: len(v) // 2 * 2]).view(np.uint32) for v in (a, b, c)]
    for text, count in (("add.rn", 2), ("mul.rn", 2), ("fma.rn", 3)):
        names = ", ".join(f"{{{n}}}" for n in "abc"[:count])
        got = apply(f"{text}.{type_}x2 {{d}}, {names};", ["b32"] * (count + 1), *packed[:count])
        each = apply(f"{text}.{type_} {{d}}, {names};", [type_] * (count + 1), *(a, b, c)[:count])
        np.testing.assert_array_equal(got.view(each.dtype)[: len(each)], each[: len(got) * 2])


@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_square_root_is_the_nearest(type_: str) -> None:
    a = np.abs(edges(type_))
    got = apply(f"sqrt.rn.{type_} {{d}}, {{a}};", [type_] * 2, a)
    for x, root in zip(a.tolist(), got.tolist(), strict=True):
        below, above = (float(np.nextafter(NUMPY[type_](root), NUMPY[type_](d))) for d in (-math.inf, math.inf))
        middles = [(Fraction(root) + Fraction(v)) / 2 for v in (below, above)]
        if x:
            assert middles[0] ** 2 <= Fraction(x) <= middles[1] ** 2


@pytest.mark.parametrize("type_", ["f16", "bf16", "f32", "f64"])
def test_extremes_with_nan_and_zeros(type_: str) -> None:
    dtype = NUMPY[type_]
    values = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan]).astype(dtype)
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    unsigned = f"u{np.dtype(dtype).itemsize}"
    for name, largest in (("min", False), ("max", True)):
        for nan in (False, True) if type_ != "f64" else (False,):
            got = apply(f"{name}{'.NaN' if nan else ''}.{type_} {{d}}, {{a}}, {{b}};", [type_] * 3, a, b)
            for x, y, z in zip(a, b, got, strict=True):
                spoilt = [bool(np.isnan(x)), bool(np.isnan(y))]
                if all(spoilt) or (nan and any(spoilt)):
                    assert np.isnan(z)
                    continue
                candidates = [v for v, s in zip((x, y), spoilt, strict=True) if not s]
                # -0 counts as less than +0
                order = sorted(candidates, key=lambda v: (float(v), not np.signbit(v)))
                want = order[-1 if largest else 0]
                assert np.array([z]).view(unsigned) == np.array([want]).view(unsigned), (name, x, y)


@pytest.mark.parametrize("type_", ["f16", "bf16", "f32", "f64"])
def test_sign_bits(type_: str) -> None:
    dtype = np.dtype(NUMPY[type_])
    a = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, -np.nan]).astype(dtype)
    unsigned, top = np.dtype(f"u{dtype.itemsize}"), 1 << 8 * dtype.itemsize - 1
    bits = a.view(unsigned)
    absolute = apply(f"abs.{type_} {{d}}, {{a}};", [type_] * 2, a)
    np.testing.assert_array_equal(absolute.view(unsigned), bits & unsigned.type(top - 1))
    negative = apply(f"neg.{type_} {{d}}, {{a}};", [type_] * 2, a)
    np.testing.assert_array_equal(negative.view(unsigned), bits ^ unsigned.type(top))


COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("type_", ["u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64", "f16"])
def test_comparisons(type_: str) -> None:
    a, b = pairs(type_)
    floating = type_[0] == "f"
    if floating:
        odd = np.array([np.nan, np.inf, -np.inf, 1.0], a.dtype)
        a, b = np.concatenate([a, np.repeat(odd, 4)]), np.concatenate([b, np.tile(odd, 4)])
    unordered = [floating and (x != x or y != y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    for name, function in COMPARE.items():
        for also in ("", "u") if floating else ("",):
            text = f"setp.{name}{also}.{type_} %p2, {{a}}, {{b}}; selp.b32 {{d}}, 1, 0, %p2;"
            got = apply(text, ["b32", type_, type_], a, b)
            each = zip(a.tolist(), b.tolist(), unordered, strict=True)
            want = [bool(also) if nan else function(x, y) for x, y, nan in each]
            np.testing.assert_array_equal(got, np.array(want, np.uint32))


def test_comparison_with_a_second_predicate() -> None:
    a, b = pairs("s32")
    text = "setp.gt.s32 %p3, {a}, 0; setp.lt.and.s32 %p4|%p5, {a}, {b}, !%p3; selp.b32 %r200, 1, 0, %p4;"
    text += "selp.b32 %r201, 2, 0, %p5; or.b32 {d}, %r200, %r201;"
    got = apply(text, ["b32", "s32", "s32"], a, b)
    np.testing.assert_array_equal(got, np.where(a > 0, 0, np.where(a < b, 1, 2)))


def test_logic_of_predicates() -> None:
    a, b = (v & 1 for v in pairs("u32"))
    load = "setp.ne.b32 %p2, {a}, 0; setp.ne.b32 %p3, {b}, 0; "
    for name, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        got = apply(load + f"{name}.pred %p4, %p2, %p3; selp.b32 {{d}}, 1, 0, %p4;", ["b32"] * 3, a, b)
        np.testing.assert_array_equal(got, function(a, b))
    got = apply(load + "not.pred %p4, %p2; selp.b32 {d}, 1, 0, %p4;", ["b32"] * 3, a, b)
    np.testing.assert_array_equal(got, 1 - a)


def test_select_by_sign() -> None:
    a, b = pairs("s32")
    got = apply("slct.b32.s32 {d}, {a}, {b}, {c};", ["s32"] * 4, a, b, b)
    np.testing.assert_array_equal(got, np.where(b >= 0, a, b))


WHOLE: dict[str, Callable[[Any], int]] = {"rni": round, "rzi": int, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("of", ["f16", "f32", "f64"])
def test_floats_to_integers_saturate(of: str, to: str) -> None:
    with np.errstate(over="ignore"):
        large = np.array([2.5, -2.5, 127.5, 128.5, -128.5, 3e9, -3e9, 1e19, -1e19, 1e30]).astype(NUMPY[of])
    a = np.concatenate([edges(of), large])
    info = np.iinfo(NUMPY[to])
    register = to if info.bits >= 16 else f"{to[0]}16"  # narrow results lie in 16-bit registers
    for mode, function in WHOLE.items():
        got = apply(f"cvt.{mode}.{to}.{of} {{d}}, {{a}};", [register, of], a)
        least, most = int(info.min), int(info.max)
        want = [(least if v < 0 else most) if abs(v) == math.inf else min(max(function(Fraction(v)), least), most)
                for v in a.astype(float)]  # fmt: skip
        np.testing.assert_array_equal(got, want)
    nan = apply(f"cvt.rni.{to}.{of} {{d}}, {{a}};", [register, of], np.array([np.nan], NUMPY[of]))
    assert nan[0] == 0


@pytest.mark.parametrize("to", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("of", ["s16", "u16", "s32", "u32", "s64", "u64"])
def test_integers_to_floats(of: str, to: str) -> None:
    a = np.concatenate([edges(of), np.array([2049, 2051, 257, 259, 30001], NUMPY[of])])
    got = apply(f"cvt.rn.{to}.{of} {{d}}, {{a}};", [to, of], a)
    assert_same_numbers(got, [rounded(Fraction(int(v)), to) for v in a])


@pytest.mark.parametrize(("of", "to"), [("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16")])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_narrowing_floats(of: str, to: str, mode: str) -> None:
    rng = np.random.default_rng(2)
    near = edges(to).astype(np.float64)
    middles = (near + np.nextafter(edges(to), NUMPY[to](0)).astype(np.float64)) / 2
    spread = rng.standard_normal(300) * 2.0 ** rng.integers(-40, 15, 300)
    a = np.concatenate([near, middles, middles * (1 + 2.0**-20), spread, edges(of).astype(np.float64)])
    with np.errstate(over="ignore"):
        a = a.astype(NUMPY[of])
    a = a[np.isfinite(a.astype(np.float64))]
    got = apply(f"cvt.{mode}.{to}.{of} {{d}}, {{a}};", [to, of], a)
    assert_same_numbers(got, [rounded(Fraction(float(v)), to, mode) for v in a])


def test_two_narrowed_numbers_in_one_register() -> None:
    a, b = pairs("f32")
    for to in ("f16", "bf16"):
        got = apply(f"cvt.rn.{to}x2.f32 {{d}}, {{a}}, {{b}};", ["b32", "f32", "f32"], a, b)
        halves = got.view(NUMPY[to]).reshape(-1, 2)
        assert_same_numbers(halves[:, 1], [rounded(Fraction(float(v)), to) for v in a])
        assert_same_numbers(halves[:, 0], [rounded(Fraction(float(v)), to) for v in b])


def test_tf32_keeps_ten_bits_of_fraction() -> None:
    a = edges("f32")
    a = np.concatenate([a, (1 + np.arange(64) * 2.0**-13).astype(np.float32)])
    for mode in ("rn", "rna"):
        got = apply(f"cvt.{mode}.tf32.f32 {{d}}, {{a}};", ["f32", "f32"], a)
        assert_same_numbers(got, [rounded(Fraction(float(v)), "tf32", mode) for v in a])


def test_widening_floats_and_rounding_to_whole_numbers() -> None:
    for of, to in (("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64")):
        got = apply(f"cvt.{to}.{of} {{d}}, {{a}};", [to, of], edges(of))
        assert_same_numbers(got, edges(of).astype(np.float64).tolist())
    a = np.concatenate([edges("f32"), np.array([0.5, 1.5, -0.5, -2.5], np.float32)])
    for mode, function in WHOLE.items():
        got = apply(f"cvt.{mode}.f32.f32 {{d}}, {{a}};", ["f32", "f32"], a)
        assert_same_numbers(got, [float(function(Fraction(float(v)))) for v in a])


@pytest.mark.parametrize("of", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("to", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integers_to_integers(of: str, to: str) -> None:
    a, info = edges(of), np.iinfo(NUMPY[to])
    got = apply(f"cvt.{to}.{of} {{d}}, {{a}};", [to, of], a)
    np.testing.assert_array_equal(got, wrapped([int(v) for v in a], NUMPY[to]))
    got = apply(f"cvt.sat.{to}.{of} {{d}}, {{a}};", [to, of], a)
    np.testing.assert_array_equal(got, np.array([min(max(int(v), info.min), info.max) for v in a], NUMPY[to]))


def test_conversions_read_the_low_part_and_extend_the_result() -> None:
    a = np.array([0x12345680, 0xFFFFFF7F, 0x80, 0x17F], np.uint32)
    got = apply("cvt.s32.s8 {d}, {a};", ["s32", "u32"], a)
    np.testing.assert_array_equal(got, [-128, 127, -128, 127])
    got = apply("cvt.u32.u8 {d}, {a};", ["u32", "u32"], a)
    np.testing.assert_array_equal(got, [128, 127, 128, 127])
    got = apply("cvt.sat.s8.s32 {d}, {a};", ["s32", "s32"], np.array([300, -300, 5, -128], np.int32))
    np.testing.assert_array_equal(got, [127, -128, 5, -128])


def test_packing_saturated_bytes() -> None:
    a, b = np.array([300, -300, 5], np.int32), np.array([-1, 77, 200], np.int32)
    c = np.array([0xABCD1234] * 3, np.uint32)
    got = apply("cvt.pack.sat.s8.s32.b32 {d}, {a}, {b}, {c};", ["b32", "s32", "s32", "b32"], a, b, c)
    np.testing.assert_array_equal(got, [0x12347FFF, 0x1234804D, 0x1234057F])
    got = apply("cvt.pack.sat.u8.s32.b32 {d}, {a}, {b}, {c};", ["b32", "s32", "s32", "b32"], a, b, c)
    np.testing.assert_array_equal(got, [0x1234FF00, 0x1234004D, 0x123405C8])


def test_moves_cut_and_join_registers() -> None:
    a = np.array([0x11112222, 0xAAAABBBB], np.uint32)
    got = apply("mov.b32 {{%rs5, %rs6}}, {a}; mov.b32 {d}, {{%rs6, %rs5}};", ["b32", "b32"], a)
    np.testing.assert_array_equal(got, [0x22221111, 0xBBBBAAAA])
    wide = np.array([0x1111222233334444], np.uint64)
    got = apply("mov.b64 {{%r50, %r51}}, {a}; mov.b64 {d}, {{%r51, %r50}};", ["b64", "b64"], wide)
    np.testing.assert_array_equal(got, np.array([0x3333444411112222], np.uint64))


@pytest.mark.parametrize(("name", "function"), [
    ("ex2.approx", np.exp2), ("rcp.approx", np.reciprocal), ("rsqrt.approx", lambda x: 1 / np.sqrt(x)),
    ("lg2.approx", np.log2), ("tanh.approx", np.tanh),
])  # fmt: skip
def test_approximate_functions(name: str, function: Callable[[Array], Array]) -> None:
    a = np.array([0.25, 0.5, 1.0, 3.0, 7.5], np.float32)
    got = apply(f"{name}.f32 {{d}}, {{a}};", ["f32", "f32"], a)
    np.testing.assert_allclose(got, function(a.astype(np.float64)), rtol=2.0**-22)


def test_flush_to_zero() -> None:
    a, b = np.array([2.0**-127, -(2.0**-127), 1.0], np.float32), np.array([1.0, 1.0, 2.0**-127], np.float32)
    got = apply("mul.rn.ftz.f32 {d}, {a}, {b};", ["f32"] * 3, a, b)
    np.testing.assert_array_equal(np.signbit(got), [False, True, False])
    np.testing.assert_array_equal(got, [0, 0, 0])


@pytest.mark.parametrize("text", ["frobnicate.b32 %r1, %r2;", "add.rn.mystery.f32 %r1, %r2;", "ld.b32 %r1, [%rd1];"])
def test_an_unknown_instruction_is_named(text: str) -> None:
    with pytest.raises(NotImplementedError, match=text.split(".")[0] + r"|mystery|generic"):
        launch(kernel(text, 0), "k", grid=1, threads=32, arguments=[])
