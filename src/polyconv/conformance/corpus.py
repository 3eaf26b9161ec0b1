"""Random problems: a seed and an index in, one ``Problem`` out, the same on every machine.

Convolutions come in three kinds: any sizes around the edges at which tiles and vectors end; axes of the sort that
algorithms get wrong (a single input, a single tap between pads, outputs beyond the input, windows that do not overlap,
odd strides with dilations); and layers as networks have them, which the specialised algorithms take.  Sizes are then
halved until the problem fits a budget of multiply-adds, so that a case takes milliseconds.  It must not know who
computes the problems, nor with which arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.problem.epilogue import ACTIVATIONS, WITH_AFFINE, Activation
from polyconv.problem.extents import effective_kernel
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import Quantisation

__all__ = ["BUDGET", "OPERATORS", "problem", "problems"]

BUDGET = 3_000_000
"""Most multiply-adds of one problem."""

# One below, at and one above: vectors of 4, 8, 16, 32 elements, tiles of 6, 14 and 28 rows.
_EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 27, 28, 29, 31, 32, 33, 47, 56, 65)
_LONG = (95, 129, 191, 193, 257, 385, 513)
"""Lines of several tiles, of which the inner ones meet no padding."""
_CHANNELS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96)
_DEEP = (127, 128, 129, 255, 257, 384, 512, 513)
_GROUP_CHANNELS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32)
_KERNELS = (1, 1, 2, 3, 3, 3, 4, 5, 7, 9, 11)
_FLOATS = ("f32", "f32", "f32", "f32", "f64", "f64", "f16", "bf16")
_INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")

_MACS_PER_ELEMENT = 11  # what moving one element of a tensor counts

T = TypeVar("T")


def _pick(rng: np.random.Generator, values: tuple[T, ...]) -> T:
    return values[int(rng.integers(len(values)))]


def _chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)


def _types(rng: np.random.Generator) -> tuple[str, str, str]:
    if _chance(rng, 0.72):
        x = _pick(rng, _FLOATS)
        return x, x, "f32" if x in ("f16", "bf16") and _chance(rng, 0.25) else x
    if _chance(rng, 0.2):
        return "u8", "i8", _pick(rng, ("i32", "i32", "i64"))
    x = _pick(rng, _INTEGERS)
    wider = tuple(
        name
        for name in _INTEGERS
        if DTYPES[name].bits > DTYPES[x].bits and (DTYPES[name].kind == "i" or DTYPES[x].kind == "u")
    )
    return x, x, _pick(rng, wider) if wider and _chance(rng, 0.4) else x


def _activation(rng: np.random.Generator, y: str) -> Activation | None:
    if _chance(rng, 0.6):
        return None
    if not DTYPES[y].is_float:
        return _pick(rng, (Activation("Relu"), Activation("Clip", (3.0, 60.0))))
    name = _pick(rng, tuple(ACTIVATIONS))
    given = {"LeakyRelu": (0.1,), "Clip": (-0.5, 2.0), "Elu": (0.75,), "HardSigmoid": (0.25, 0.5)}
    given |= dict.fromkeys(WITH_AFFINE.values(), (0.5, -0.25))
    defaults = ACTIVATIONS[name].defaults
    return Activation(name, given.get(name, ()) if defaults is None or _chance(rng, 0.5) else defaults)


def _groups(rng: np.random.Generator) -> tuple[int, int, int]:
    """Groups, input channels and output channels of a group."""
    kind = rng.random()
    if kind < 0.55:
        return 1, _pick(rng, _CHANNELS), _pick(rng, _CHANNELS)
    if kind < 0.8:  # depthwise, with channel multipliers
        return _pick(rng, _CHANNELS), 1, _pick(rng, (1, 1, 1, 2, 3, 4))
    return int(rng.integers(2, 33)), _pick(rng, _GROUP_CHANNELS), _pick(rng, _GROUP_CHANNELS)


def _pads(rng: np.random.Generator, k: int, d: int) -> tuple[int, int]:
    reach = effective_kernel(k, d)
    kind = rng.random()
    if kind < 0.3:
        return 0, 0
    if kind < 0.6:
        return reach // 2, reach // 2
    if kind < 0.8:
        return int(rng.integers(0, reach + 1)), int(rng.integers(0, reach + 1))
    if kind < 0.92:  # whole windows of padding
        return int(rng.integers(0, 2 * reach + 3)), int(rng.integers(0, 2 * reach + 3))
    return int(rng.integers(-3, 4)), int(rng.integers(-3, 4))


def _axes(rng: np.random.Generator, rank: int) -> dict[str, Any]:
    k = tuple(_pick(rng, _KERNELS if rank < 3 else _KERNELS[:6]) for _ in range(rank))
    if rank == 1 and _chance(rng, 0.1):
        k = (int(rng.integers(12, 40)),)
    s = tuple(_pick(rng, (1, 1, 1, 2, 2, 3, 4, 5)) for _ in range(rank))
    d = tuple(_pick(rng, (1, 1, 1, 1, 2, 3)) for _ in range(rank))
    pads = tuple(_pads(rng, ki, di) for ki, di in zip(k, d, strict=True))
    return {"k": k, "s": s, "d": d, "pads": pads}


def _edgy_axis(rng: np.random.Generator) -> tuple[int, int, int, int, tuple[int, int]]:
    """One axis of the sort that is easy to get wrong: its input, kernel, stride, dilation and pads."""
    kind = int(rng.integers(7))
    begin, end = int(rng.integers(4)), int(rng.integers(4))
    s, d, k = int(rng.integers(1, 4)), int(rng.integers(1, 4)), _pick(rng, (1, 1, 2, 3, 5))
    i = _pick(rng, _EXTENTS[:12])
    if kind == 0:  # a single input, with or without padding around it
        return 1, k, s, d, (begin, end)
    if kind == 1:  # a single tap between pads: outputs that meet only padding
        return i, 1, int(rng.integers(1, 6)), 1, (begin, end)
    if kind == 2:  # windows that do not overlap
        return i, k, int(rng.integers(k, k + 3)), 1, (begin, end)
    if kind == 3:  # odd strides and dilations together
        return i, _pick(rng, (2, 3, 4)), _pick(rng, (3, 5, 7)), _pick(rng, (2, 3, 4, 5, 6)), (begin, end)
    if kind == 4:  # a single output
        reach = effective_kernel(k, d)
        return reach, k, s, d, (0, 0)
    reach = effective_kernel(k, d)
    if kind == 5:  # a single output that meets only padding
        return i, k, i + 1, d, (reach, 0)
    return i, k, s, d, (reach + begin, reach + end)  # outputs far beyond the input on both sides


def _edgy(rng: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any]]:
    """Groups, extents and axes: many axes or few channels at times, of which each may be edgy."""
    rank = _pick(rng, (1, 2, 2, 3, 3, 3, 4, 5))
    i, k, s, d, pads = zip(*(_edgy_axis(rng) for _ in range(rank)), strict=True)
    if rank > 3:
        i, k = tuple(min(e, 5) for e in i), tuple(min(taps, 3) for taps in k)
    few = (1, int(rng.integers(1, 4)), int(rng.integers(1, 6)))
    return few if _chance(rng, 0.25) else _groups(rng), i, {"k": k, "s": s, "d": d, "pads": pads}


def _layer_like(rng: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any]]:
    """Groups, extents and axes as networks have them: one kernel, stride and dilation for all axes, and equal pads."""
    rank = _pick(rng, (1, 2, 2, 2, 2, 3))
    many = _pick(rng, _CHANNELS[8:])
    kind = _pick(rng, ("dense", "pairs", "depthwise", "depthwise", "small groups", "small groups"))
    groups = {
        "dense": (1, _pick(rng, _CHANNELS[6:]), _pick(rng, _CHANNELS[6:])),
        "pairs": (1, 2 * _pick(rng, (8, 9, 16, 17, 24)), 2 * _pick(rng, (1, 4, 8, 9, 16, 17))),
        "depthwise": (many, 1, 1),
        "small groups": (int(rng.integers(2, 13)), *(_pick(rng, (2, 3, 4, 8, 16)),) * 2),
    }[kind]
    taps = _pick(rng, (1, 2, 3, 3, 3, 3, 5, 7, 9) if rank < 3 else (1, 2, 3, 3))
    if rank == 1 and _chance(rng, 0.3):
        taps = int(rng.integers(12, 64))
    is_long = rank < 3 and _chance(rng, 0.5 if kind == "depthwise" else 0.2)
    along = is_long and _chance(rng, 0.5)  # all taps along the long axis
    if along:
        taps = _pick(rng, (2, 3, 3, 3, 5, 9))
    if kind == "pairs":
        taps = _pick(rng, (1, 1, 2, 4))
    stride = taps if kind == "pairs" else _pick(rng, (1, 1, 1, 1, 2))
    dilation = _pick(rng, (1, 1, 1, 1, 2, 3)) if stride == 1 else 1
    pad = 0 if kind == "pairs" else _pick(rng, (0, 1, 1)) * (effective_kernel(taps, dilation) // 2)
    extents = tuple(max(_pick(rng, _EXTENTS[3:]), effective_kernel(taps, dilation) - 2 * pad) for _ in range(rank))
    if is_long:
        extents = (*(min(e, 9) for e in extents[:-1]), _pick(rng, _LONG))
    k = (*(1,) * (rank - 1), taps) if along or _chance(rng, 0.15) else (taps,) * rank
    pads = tuple((pad, pad) if n > 1 else (0, 0) for n in k)
    return groups, extents, {"k": k, "s": (stride,) * rank, "d": (dilation,) * rank, "pads": pads}


def _any(rng: np.random.Generator) -> tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any]]:
    """Groups, extents and axes, each drawn apart."""
    rank = _pick(rng, (1, 1, 2, 2, 2, 2, 3, 3, 4))
    is_deep = _chance(rng, 0.06)  # more channels than are held at a time
    groups = (1, _pick(rng, _DEEP), _pick(rng, _GROUP_CHANNELS)) if is_deep else _groups(rng)
    axes = _axes(rng, rank)
    return groups, tuple(_pick(rng, _EXTENTS[:6] if is_deep else _EXTENTS) for _ in range(rank)), axes


def _conv(rng: np.random.Generator, op: str = "conv") -> Problem:
    x, w, y = _types(rng)
    (g, c, m), i, axes = _pick(rng, (_any, _any, _edgy, _edgy, _layer_like, _layer_like, _layer_like))(rng)
    p = Problem(
        op, x, w, y, _pick(rng, ("NCHW", "NHWC")), _pick(rng, (1, 1, 1, 2, 3)), g * c, i, g * m,
        **axes, groups=g, bias=_chance(rng, 0.5), residual=_chance(rng, 0.25), activation=_activation(rng, y),
        overflow="wrap" if DTYPES[y].is_float or y == "u64" else _pick(rng, ("wrap", "saturate")),
    )  # fmt: skip
    return _with_zero_size(rng, p) if _chance(rng, 0.05) else p


def _with_zero_size(rng: np.random.Generator, p: Problem) -> Problem:
    what = _pick(rng, ("n", "c", "m", "i"))
    if what == "i":
        return replace(p, i=(0, *p.i[1:]))
    if what == "n":
        return replace(p, n=0)
    return replace(p, groups=1, c=0 if what == "c" else p.c, m=0 if what == "m" else p.m)


def _transpose(rng: np.random.Generator) -> Problem:
    p = _conv(rng, "conv_transpose")
    if _chance(rng, 0.3):
        p = replace(p, output_padding=tuple(int(rng.integers(0, s + 1)) for s in p.s))
    if _chance(rng, 0.15):  # extents as a file would state them: cropped or extended at the high end
        o = tuple(max(0, int(e or 0) + int(rng.integers(-2, 4))) for e in p.out)
        p = replace(p, o=o)
    return p


def _deform(rng: np.random.Generator) -> Problem:
    x = _pick(rng, _FLOATS)
    axes = _axes(rng, 2)
    axes["k"] = tuple(min(k, 5) for k in axes["k"])
    axes["pads"] = tuple((abs(b), abs(e)) for b, e in axes["pads"])
    groups, offset_groups = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    c = groups * offset_groups * _pick(rng, (1, 2, 5, 8))
    i = (_pick(rng, _EXTENTS), _pick(rng, _EXTENTS))
    return Problem(
        "deform_conv", x, x, x, "NCHW", _pick(rng, (1, 2)), c, i, groups * _pick(rng, (1, 3, 8, 17)),
        **axes, groups=groups, bias=_chance(rng, 0.5), offset_groups=offset_groups, mask=_chance(rng, 0.5),
    )  # fmt: skip


def _causal(rng: np.random.Generator) -> Problem:
    x = _pick(rng, ("f32", "f32", "f16", "bf16"))
    c, k = _pick(rng, _CHANNELS), int(rng.integers(1, 9))
    return Problem(
        "causal_conv", x, x, x, "NCHW", _pick(rng, (1, 2, 3)), c, (_pick(rng, _EXTENTS),), c, (k,),
        pads=((k - 1, 0),), groups=c, bias=_chance(rng, 0.5),
        activation=Activation("Silu") if _chance(rng, 0.4) else None,
    )  # fmt: skip


def _quantised(rng: np.random.Generator) -> Problem:
    p = replace(_pick(rng, (_conv, _conv, _transpose))(rng), residual=False, activation=None, overflow="wrap")
    zw = _pick(rng, (None, "t", "c"))
    if _chance(rng, 0.5):
        q = Quantisation(zx=_pick(rng, (None, "t")), zw=zw)
        x, w = _pick(rng, ("u8", "i8")), _pick(rng, ("u8", "i8"))
        return replace(p, x=x, w=w, y="i32", quantisation=q, bias=False)
    x, w, y = _pick(rng, (("u8", "u8", "u8"), ("u8", "i8", "u8"), ("i8", "i8", "i8")))
    q = Quantisation(zx="t", zw=zw or "t", zy="t", sx="t", sw=_pick(rng, ("t", "c")), sy="t")
    if _chance(rng, 0.3):
        q = replace(q, zr=_pick(rng, (None, "t", "t")), sr="t", zs=_pick(rng, (None, "t", "t")), ss="t")
    return replace(p, x=x, w=w, y=y, quantisation=q, residual=q.adds)


OPERATORS: dict[str, tuple[float, Callable[[np.random.Generator], Problem]]] = {
    "conv": (0.5, _conv),
    "conv_transpose": (0.25, _transpose),
    "deform_conv": (0.07, _deform),
    "causal_conv": (0.05, _causal),
    "quantised": (0.13, _quantised),
}
"""Share of each kind of problem, and what draws one."""


def _largest(p: Problem) -> int:
    shapes = (p.x_shape, p.w_shape, p.y_shape)
    return max(int(np.prod([e or 0 for e in s], dtype=np.float64)) for s in shapes)


def _within(p: Problem, budget: int) -> Problem:
    """Halve what is largest until the problem fits; every step keeps it valid or raises."""
    while p.macs > budget or _largest(p) > budget // _MACS_PER_ELEMENT:
        i = [e or 0 for e in p.i]
        largest = max(i)
        per_group = max(p.c, p.m) // p.groups
        if p.o is None and largest > 4 and largest >= per_group:
            a = i.index(largest)
            p = replace(p, i=(*p.i[:a], largest // 2 + 1, *p.i[a + 1 :]))
        elif per_group > 1 and p.op != "causal_conv":
            g, og = p.groups, max(1, p.offset_groups)
            c, m = p.c // g, p.m // g
            c, m = (max(og, c // 2 // og * og), m) if c > m else (c, m // 2)
            if (c * g, m * g) == (p.c, p.m):
                raise ArgumentError(f"{p} cannot be made smaller")
            p = replace(p, c=g * c, m=g * m)
        elif p.groups > 1 and not p.offset_groups:
            g = p.groups // 2
            p = replace(p, groups=g, c=p.c // p.groups * g, m=p.m // p.groups * g)
        else:
            raise ArgumentError(f"{p} cannot be made smaller")
    return p


def problem(seed: int, index: int, *, operator: str | None = None, budget: int = BUDGET) -> Problem:
    """The problem number ``index`` of the corpus ``seed``.

    Parameters
    ----------
    seed, index : int
        Together they name the problem; nothing else decides it.
    operator : str, optional
        One of ``OPERATORS``; drawn by their shares when left out.
    budget : int
        Most multiply-adds.
    """
    rng = np.random.default_rng([seed, index])
    shares = np.array([share for share, _ in OPERATORS.values()])
    name = operator or tuple(OPERATORS)[int(rng.choice(len(shares), p=shares / shares.sum()))]
    while True:
        try:
            return _within(OPERATORS[name][1](rng), budget)
        except ArgumentError:  # drawn sizes that leave no output: draw again, from the same stream
            continue


def problems(
    seed: int, count: int, *, operator: str | None = None, budget: int = BUDGET
) -> Iterator[Problem]:
    """The first ``count`` problems of a corpus, as ``problem`` gives them."""
    return (problem(seed, index, operator=operator, budget=budget) for index in range(count))
