"""Arrays for a problem: a random generator in, operands of every kind a caller may bring out.

Values cover small whole numbers, spread magnitudes, full integer ranges, NaN and infinities; the
memory behind them may be read-only, strided, reversed, transposed, broadcast or unaligned.  It must
not know who computes with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, Dtype
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES

__all__ = ["FORMS", "Operands", "dressed", "operands"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Operands:
    """The arrays of one call; absent ones are None, run-time quantities by name."""

    x: Array
    w: Array
    bias: Array | None = None
    residual: Array | None = None
    offset: Array | None = None
    mask: Array | None = None
    past: Array | None = None
    quantities: dict[str, Array] = field(default_factory=dict)

    def keywords(self) -> dict[str, Any]:
        """Operands that ``oracle`` and ``compute`` take by keyword."""
        named = {"offset": self.offset, "mask": self.mask, "past": self.past}
        return {k: v for k, v in named.items() if v is not None} | {"quantities": self.quantities}

    @property
    def is_finite(self) -> bool:
        """Whether no operand holds NaN or an infinity."""
        arrays = (self.x, self.w, self.bias, self.residual, self.offset, self.mask, self.past)
        return all(a is None or bool(np.isfinite(a.astype(np.float64)).all()) for a in arrays)


def _shape(extents: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(int(e or 0) for e in extents)


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Dtype, kind: str) -> Array:
    if not dtype.is_float:
        lo, hi = dtype.limits
        if kind == "small":
            lo, hi = max(lo, -8), min(hi, 8)
        values = rng.integers(lo, hi, shape, dtype=dtype.numpy, endpoint=True)
        if kind != "spread":
            return values
        bits, (low, high) = values & 3, (dtype.numpy.type(v) for v in (lo, hi))  # its own bits: nothing more is drawn
        return np.where(bits == 0, low, np.where(bits == 1, high, values))
    if kind == "small":
        return rng.integers(-4, 5, shape).astype(dtype.numpy)
    values = rng.standard_normal(shape)
    if kind == "spread":
        values = values * 10.0 ** rng.uniform(-2.0, 2.0, shape)
    return values.astype(dtype.numpy)


def _spoilt(rng: np.random.Generator, a: Array) -> Array:
    """A copy with one to three values replaced by NaN, inf or -inf."""
    a = a.copy()
    if a.size:
        at = rng.integers(0, a.size, int(rng.integers(1, 4)))
        a.reshape(-1)[at] = rng.choice([np.nan, np.inf, -np.inf], at.size).astype(a.dtype)
    return a


def _scalar(value: Any, dtype: Any) -> Array:
    return np.asarray(value, dtype)


def _quantities(rng: np.random.Generator, p: Problem) -> dict[str, Array]:
    q = p.quantisation
    if q is None:
        return {}

    def drawn(name: str, given: float | str | None) -> Array:
        shape = (p.m,) if given == "c" else ()
        if name.startswith("z"):
            dtype = p.quantity_dtype(name)
            values = rng.integers(*dtype.limits, shape, dtype=dtype.numpy, endpoint=True)
            if name == "zw" and values.size and values.flat[0] & 1:  # as in most models: weights less it are all of i8
                return np.full_like(values, 0 if dtype.kind == "i" else (dtype.limits[1] + 1) // 2)
            return values
        # sx * sw / sy of about 2^-13..2^-5 brings sums of 8-bit products back into 8 bits, and sums of two bytes stay
        exponent = {"sx": -4.0, "sw": -5.0}.get(name, 0.0) + rng.uniform(-2.0, 2.0, shape)
        return _scalar(2.0**exponent, np.float32)

    return {n: np.asarray(drawn(n, getattr(q, n))) for n in QUANTITIES if getattr(q, n) in ("t", "c")}


def operands(p: Problem, rng: np.random.Generator, kind: str | None = None) -> Operands:
    """Random operands of a problem, in plain memory.

    Parameters
    ----------
    p : Problem
        With all extents known.
    rng : numpy.random.Generator
        Source of the values.
    kind : str, optional
        ``small`` whole numbers (sums are exact in f32), ``normal``, ``spread`` over four orders of magnitude
        (integers: the full range, half of them at its ends), or ``nonfinite`` (a few NaN and infinities in x or w).
        Drawn when left out.
    """
    kind = kind or str(rng.choice(["small", "normal", "spread", "nonfinite"], p=[0.3, 0.48, 0.14, 0.08]))
    x = _values(rng, _shape(p.x_shape), p.x_dtype, kind)
    w = _values(rng, p.w_shape, p.w_dtype, kind)
    made = Operands(x, w, quantities=_quantities(rng, p))
    extra: dict[str, Array] = {}
    if p.bias:
        rescaled = p.quantisation is not None and p.quantisation.rescales
        extra["bias"] = _values(
            rng, (p.m,), DTYPES["i32"] if rescaled else p.y_dtype, "small" if rescaled else kind
        )
    if p.residual:
        extra["residual"] = _values(rng, _shape(p.y_shape), p.y_dtype, kind)
    if p.op == "deform_conv":
        n, (oh, ow) = int(p.n or 0), _shape(p.out)
        taps = p.offset_groups * p.k[0] * p.k[1]
        # whole and half offsets meet the corners exactly; the rest falls between and outside
        offset = rng.uniform(-3.0, 3.0, (n, 2 * taps, oh, ow))
        offset = np.where(rng.random(offset.shape) < 0.3, np.rint(offset), offset)
        extra["offset"] = offset.astype(p.x_dtype.numpy)
        if p.mask:
            extra["mask"] = rng.uniform(0.0, 1.0, (n, taps, oh, ow)).astype(p.x_dtype.numpy)
    if p.op == "causal_conv" and rng.random() < 0.6:
        extra["past"] = _values(rng, (int(p.n or 0), p.c, p.k[0] - 1), p.x_dtype, kind)
    made = replace(made, **extra)  # type: ignore[arg-type]
    if kind == "nonfinite" and p.x_dtype.is_float:
        spoil = "x" if rng.random() < 0.5 else "w"
        made = replace(made, **{spoil: _spoilt(rng, getattr(made, spoil))})  # type: ignore[arg-type]
    return made


def _read_only(a: Array, rng: np.random.Generator) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


def _strided(a: Array, rng: np.random.Generator) -> Array:
    holder = np.zeros(tuple(2 * e for e in a.shape), a.dtype)
    view = holder[tuple(slice(None, None, 2) for _ in a.shape)]
    view[...] = a
    return view


def _reversed(a: Array, rng: np.random.Generator) -> Array:
    every = tuple(slice(None, None, -1) for _ in a.shape)
    return a[every].copy()[every]


def _transposed(a: Array, rng: np.random.Generator) -> Array:
    axes = rng.permutation(a.ndim)
    return np.ascontiguousarray(a.transpose(axes)).transpose(np.argsort(axes))


def _channels_last(a: Array, rng: np.random.Generator) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1) if a.ndim > 1 else a


def _broadcast(a: Array, rng: np.random.Generator) -> Array:
    return np.broadcast_to(a[:1], a.shape)


def _unaligned(a: Array, rng: np.random.Generator) -> Array:
    holder = np.zeros(a.nbytes + 1, np.uint8)
    view = holder[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


FORMS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "plain": lambda a, rng: a,
    "read_only": _read_only,
    "strided": _strided,
    "reversed": _reversed,
    "transposed": _transposed,
    "channels_last": _channels_last,
    "broadcast": _broadcast,
    "unaligned": _unaligned,
}
"""Ways in which the same array may lie in memory (``broadcast`` repeats the first row)."""


def dressed(made: Operands, rng: np.random.Generator) -> tuple[Operands, str]:
    """The operands with x and w (and a residual) lying in memory in randomly chosen ways, and their names."""
    names = [str(rng.choice(list(FORMS))) if rng.random() < 0.5 else "plain" for _ in range(3)]
    fields = {"x": made.x, "w": made.w} | ({} if made.residual is None else {"residual": made.residual})
    put = {f: FORMS[name](a, rng) for (f, a), name in zip(fields.items(), names, strict=False)}
    return replace(made, **put), " ".join(f"{f}:{name}" for f, name in zip(put, names, strict=False))  # type: ignore[arg-type]
