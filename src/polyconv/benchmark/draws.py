"""A seed and a number to a convolution whose speed is worth knowing: all operators, types, ranks and sizes.

Sizes are drawn apart from each other, odd ones as likely as round ones, and drawn again until the work takes long
enough to be timed and short enough to wait for.  It must not know how anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from polyconv.benchmark.bound import bytes_of, products
from polyconv.errors import ArgumentError
from polyconv.problem.extents import effective_kernel
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import Quantisation

__all__ = ["problem", "problems"]

_LEAST, _MOST = 2_000_000, 60_000_000
"""Multiply-adds: at the fastest, tens of microseconds, beside which a call's own time is small; at most some 100 ms."""
_MOST_BYTES = 32 << 20

_RANKS = (1, 2, 2, 2, 3, 3)
_MOST_CHANNELS, _MOST_KERNEL = 100, 63
_MOST_EXTENT = {1: 30_000, 2: 300, 3: 300}
_SMALL_KERNELS = (1, 1, 2, 3, 3, 3, 4, 5, 7)
_FLOATS = ("f32", "f32", "f64", "f16", "bf16")
_TYPES: tuple[tuple[str, str, str], ...] = (
    *((name, name, name) for name in 2 * _FLOATS),
    *((name, name, name) for name in ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")),
    ("u8", "i8", "i32"),
)

Fields = dict[str, Any]


def problem(seed: int, index: int) -> Problem:
    """The problem number ``index`` of a seed; nothing else decides it."""
    rng = np.random.default_rng([seed, index])
    names, shares = zip(*((draw, share) for draw, share in _OPERATORS), strict=True)
    draw = names[int(rng.choice(len(names), p=shares))]
    while True:
        try:
            found = Problem(**draw(rng))
        except ArgumentError:  # a kernel larger than its image
            continue
        if min(int(o or 0) for o in found.out) > 0 and bytes_of(found) <= _MOST_BYTES:
            work = products(found)
            if _LEAST <= work <= _MOST:
                return found


def problems(count: int, seed: int, first: int = 0) -> Iterator[Problem]:
    """Problems number ``first`` to ``count - 1`` of a seed."""
    return (problem(seed, index) for index in range(first, count))


def _pick(rng: np.random.Generator, values: tuple[Any, ...]) -> Any:
    return values[int(rng.integers(len(values)))]


def _between(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number between two, the high one included; each doubling as likely as the next."""
    return int(math.exp(rng.uniform(math.log(low), math.log(high + 1))))


def _conv(rng: np.random.Generator, op: str = "conv") -> Fields:
    rank = _pick(rng, _RANKS)
    groups, c, m = _channels(rng)
    x, w, y = _pick(rng, _TYPES)
    axes = [_axis(rng, _MOST_EXTENT[rank]) for _ in range(rank)]
    i, k, s, d, pads = (tuple(values) for values in zip(*axes, strict=True))
    return {
        "op": op, "x": x, "w": w, "y": y, "layout": _pick(rng, ("NCHW", "NHWC")), "n": _pick(rng, (1, 1, 1, 2, 5)),
        "c": groups * c, "i": i, "m": groups * m, "k": k, "s": s, "d": d, "pads": pads, "groups": groups,
        "bias": bool(rng.integers(2)),
    }  # fmt: skip


def _channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """Groups, input channels and output channels of a group."""
    kind = _pick(rng, ("dense", "dense", "few in", "few out", "depthwise", "multiplier", "grouped"))
    if kind == "depthwise":
        return int(rng.integers(2, 3 * _MOST_CHANNELS)), 1, 1
    if kind == "multiplier":
        return int(rng.integers(2, _MOST_CHANNELS + 1)), 1, int(rng.integers(2, 5))
    if kind == "grouped":
        return int(rng.integers(2, 33)), int(rng.integers(2, 18)), int(rng.integers(2, 18))
    c, m = (int(v) for v in rng.integers(1, _MOST_CHANNELS + 1, 2))
    few = int(rng.integers(1, 5))
    return 1, few if kind == "few in" else c, few if kind == "few out" else m


def _axis(rng: np.random.Generator, most: int) -> tuple[int, int, int, int, tuple[int, int]]:
    """Extent, kernel, stride, dilation and pads of one axis."""
    k = _pick(rng, _SMALL_KERNELS) if rng.random() < 0.85 else _between(rng, 8, _MOST_KERNEL)
    s, d = _pick(rng, (1, 1, 1, 1, 2, 2, 3, 5)), _pick(rng, (1, 1, 1, 1, 1, 2, 3, 6))
    reach = effective_kernel(k, d)
    same = reach // 2
    drawn = int(rng.integers(reach)), int(rng.integers(reach))
    return _between(rng, 1, most), k, s, d, _pick(rng, ((0, 0), (same, same), (same, same), drawn))


def _transposed(rng: np.random.Generator) -> Fields:
    return _conv(rng, "conv_transpose")


def _quantised(rng: np.random.Generator) -> Fields:
    x, w = _pick(rng, (("u8", "i8"), ("u8", "i8"), ("i8", "i8"), ("u8", "u8")))
    if rng.integers(2):
        return _conv(rng) | {"x": x, "w": w, "y": "i32", "bias": False,
                             "quantisation": Quantisation(zx="t", zw=_pick(rng, (None, "t")))}  # fmt: skip
    quantisation = Quantisation(zx="t", zw="t", zy="t", sx="t", sw=_pick(rng, ("t", "c")), sy="t")
    return _conv(rng) | {"x": x, "w": w, "y": x, "quantisation": quantisation}


def _deformable(rng: np.random.Generator) -> Fields:
    name, groups = _pick(rng, _FLOATS), int(rng.integers(1, 4))
    axes = [_axis(rng, _MOST_EXTENT[2]) for _ in range(2)]
    i, k, s, d, pads = (tuple(values) for values in zip(*axes, strict=True))
    c, m = (groups * int(v) for v in rng.integers(1, _MOST_CHANNELS // groups + 1, 2))
    return {
        "op": "deform_conv", "x": name, "w": name, "y": name, "layout": "NCHW", "n": 1, "c": c, "i": i, "m": m,
        "k": tuple(min(taps, 7) for taps in k), "s": s, "d": d, "pads": pads, "groups": groups, "bias": True,
        "offset_groups": _pick(rng, tuple(g for g in (1, 2, 4) if c % g == 0)), "mask": bool(rng.integers(2)),
    }  # fmt: skip


_OPERATORS: tuple[tuple[Callable[[np.random.Generator], Fields], float], ...] = (
    (_conv, 0.5), (_transposed, 0.25), (_quantised, 0.15), (_deformable, 0.1),
)  # fmt: skip
"""What draws each kind of problem, and its share."""
