"""What every way to multiply small integers asks first: whether it takes a problem, by which products, and its bias.

Bytes are multiplied as u8 by i8: i8 inputs and u8 weights move by 128.  They are multiplied with the input's zero
point; what that adds to a sum is the same for all outputs of a channel, since padding holds the zero point too, so it
is taken off by the bias.  In 16 bits numbers less their zero points are multiplied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Refusal
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.lowering.program import Request
from polyconv.lowering.situation import Situation, accumulator_arithmetic
from polyconv.lowering.tiles import is_fusible
from polyconv.runtime.arrays import aligned

__all__ = ["arithmetic_of", "channel_bytes", "padding_of", "refusal", "taken_off", "with_bias"]


def refusal(s: Situation) -> Refusal | None:
    """Why no algorithm by dot products takes a situation; None if ``dense`` does."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if p.x not in ("u8", "i8", "i16"):
        return f"multiplies numbers of u8, i8 and i16, not {p.x}"
    if accumulator_arithmetic(s) != "i32":
        return "sums modulo 2^32, which this result does not allow"
    if not is_fusible(p):
        return "needs a cheap epilogue"
    return None


def arithmetic_of(s: Situation) -> Arithmetic:
    """Dot products of bytes where the CPU has them and weights fit; else of pairs of 16 bits."""
    return ARITHMETIC["u8s8" if s.target.vnni and s.narrow and s.problem.x != "i16" else "i16"]


def channel_bytes(arith: Arithmetic) -> int:
    """Bytes of a channel in a word."""
    return arith.bytes // arith.channels


def taken_off(r: Request) -> int:
    """What is taken off inputs before they are multiplied."""
    if r.arith.name != "u8s8":
        return r.zero_point
    return -128 if r.problem.x == "i8" else 0


def padding_of(r: Request) -> int:
    """The byte that stands for the input's zero point where inputs are multiplied with it."""
    return r.zero_point - taken_off(r)


def with_bias(r: Request, w: NDArray[Any], padding: int) -> Request:
    """The request with what the input's zero point adds to sums taken off by its bias."""
    if not padding:
        return r
    bias = aligned((r.problem.m,), np.int32)
    bias[...] = 0 if r.bias is None else r.bias
    bias -= w.sum(axis=(2, 3), dtype=np.int32).reshape(-1) * np.int32(padding)
    return replace(r, bias=bias)
