"""Constants of scaled results: bounds and zero point, and how a residual with a scale of its own is added.

The sum of a result y and a residual r is ``s = saturate(round(v / ss) + zs)`` with ``v = fl(y sy) + fl((r - zr) sr)``,
each operation rounded to f32 (``Quantisation``).  It is a function of two bytes.  So two multiply-adds,

    fma(y - zy, sy / ss, fma(r, sr / ss, -zr sr / ss)),

may stand for all of that where the rounded result is the same for all 65,536 pairs of bytes, which is found out when
weights are packed.  It nearly always is, as few pairs come near a tie: of random scales for 98 of 100, with factors
one unit in the last place up or down where need be.  Else the sum is computed as it is defined.  It must not know how
kernels round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.errors import ArgumentError
from polyconv.kernels.epilogue import ROUNDING_BITS, SLOTS
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned

__all__ = ["LEAST_SCALE", "adds_by", "rescaling_constants"]

_FAR = 2**20
"""Bounds are no further away: floats hold all whole numbers there, with room for what rounds them."""

LEAST_SCALE = 2.0**-100
"""Of the terms of a sum, and of the sum: what is left of two terms is a normal number of f32."""

Table = NDArray[np.int64]
Given = Callable[[str], Any]
"""``given(name)``: a zero point or scale of a problem, as a number."""


def rescaling_constants(p: Problem, given: Given) -> Table:
    """The constants of a problem whose sums are scaled, in slots of 8 bytes as ``SLOTS`` names them.

    Raises
    ------
    ArgumentError
        If a scale of a sum is so small that differences of its terms leave the normal numbers of f32, which kernels do
        not compute with.
    """
    table = aligned(len(SLOTS), np.int64)
    q = p.quantisation
    assert q is not None
    _put_bounds(table, p, given("zy"), "")
    if q.adds:
        _put_bounds(table, p, given("zs"), "sum_")
        for name in ("sy", "sr", "ss"):
            if 0 < abs(given(name)) < LEAST_SCALE:
                raise ArgumentError(f"{name}={given(name)} is too small a scale of a sum; give at least {LEAST_SCALE}")
        _put(table, scale=given("sy"), zero_beside=given("zr"), scale_beside=given("sr"), sum_scale=given("ss"))
        found = _multiply_adds(p, given)
        if found is not None:
            share, share_beside, rest = found
            _put(table, share=share, share_beside=share_beside, rest=rest)
            table[SLOTS["together"]] = 1
    return table


def adds_by(p: Problem, constants: Table, has_fma: bool) -> str:
    """How a residual with a scale of its own is added, as ``Epilogue.adds`` says; empty if there is none."""
    if p.quantisation is None or not p.quantisation.adds:
        return ""
    return "together" if has_fma and constants[SLOTS["together"]] else "defined"


def _put_bounds(table: Table, p: Problem, zero: int, prefix: str) -> None:
    """Bounds of results without their zero point, and that."""
    least, most = (min(max(limit - zero, -_FAR), _FAR) for limit in p.y_dtype.limits)
    _put(table, **{f"{prefix}least": least, f"{prefix}most": most})
    table[SLOTS[f"{prefix}zero"] :].view(np.int32)[0] = zero - ROUNDING_BITS


def _put(table: Table, **floats: float | np.float32) -> None:
    for name, value in floats.items():
        table[SLOTS[name] :].view(np.float32)[0] = value


def _multiply_adds(p: Problem, given: Given) -> tuple[np.float32, np.float32, np.float32] | None:
    """The three constants of two multiply-adds that agree with the definition for all pairs of bytes; None if none do.

    All terms are whole multiples of the last bit of one of the two factors.  Where no sum is 2^53 times as large, f64
    adds exactly, so that what comes is rounded once, to f32, as the fused operations do.
    """
    low, high = p.y_dtype.limits
    bytes_ = np.arange(low, high + 1)
    zy, zr, zs = given("zy"), given("zr"), given("zs")
    sy, sr, ss = (np.float32(given(name)) for name in ("sy", "sr", "ss"))
    with np.errstate(all="ignore"):
        steps, beside = (bytes_ - zy).astype(np.float32), bytes_.astype(np.float32)
        wanted = np.add.outer(steps * sy, (beside - np.float32(zr)) * sr) / ss
        if not np.isfinite(wanted).all():
            return None
        wanted = _rounded(wanted, low - zs, high - zs)
        for share, share_beside in product(_near(float(sy) / float(ss)), _near(float(sr) / float(ss))):
            rest = np.float32(-zr * float(share_beside))
            own, inner = steps.astype(np.float64) * share, beside.astype(np.float64) * share_beside + rest
            last_bit = float(min(np.spacing(np.abs(share)), np.spacing(np.abs(share_beside))))
            if not np.abs(own).max() + np.abs(inner).max() < last_bit * 2.0**53:
                continue
            found = np.add.outer(own, inner.astype(np.float32).astype(np.float64)).astype(np.float32)
            if np.array_equal(_rounded(found, low - zs, high - zs), wanted):
                return share, share_beside, rest
    return None


def _near(number: float) -> Iterator[np.float32]:
    """The nearest f32 to a number, and its two neighbours."""
    nearest = np.float32(number)
    yield nearest
    yield from (np.nextafter(nearest, np.float32(far)) for far in (np.inf, -np.inf))


def _rounded(values: NDArray[np.float32], least: int, most: int) -> NDArray[np.float32]:
    """Values within bounds, as whole numbers; they take the place of those given."""
    np.clip(values, np.float32(least), np.float32(most), out=values)
    return np.rint(values, out=values)
