"""What every way to multiply words of channels asks first: whether it takes a problem, by which products, its bias.

Small integers are multiplied exactly, bf16 numbers in pairs with sums in f32.
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
from polyconv.lowering.situation import Situation, accumulator_arithmetic, has_pairs
from polyconv.lowering.tiles import is_fusible
from polyconv.runtime.arrays import aligned

__all__ = [
    "arithmetic_of", "channel_bytes", "has_half_word", "integer_refusal", "packs_results", "padding_of", "refusal",
    "taken_off", "with_bias",
]  # fmt: skip


def refusal(s: Situation) -> Refusal | None:
    """Why no algorithm by dot products takes a situation; None if ``dense`` does."""
    p = s.problem
    if not has_pairs(s):
        return integer_refusal(s)
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    return None if is_fusible(p) else "needs a cheap epilogue"


def integer_refusal(s: Situation) -> Refusal | None:
    """Why no algorithm by dot products of integers takes a situation; None if ``dense`` does."""
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
    if s.problem.x_dtype.is_float:
        return ARITHMETIC["bf16"]
    return ARITHMETIC["u8s8" if s.target.vnni and s.narrow and s.problem.x != "i16" else "i16"]


def channel_bytes(arith: Arithmetic) -> int:
    """Bytes of a channel in a word."""
    return arith.bytes // arith.channels


def has_half_word(arith: Arithmetic, channels: int) -> bool:
    """Whether the last word of so many channels is half of others, whose Inf or NaN no weight of zero takes away."""
    return arith.name == "bf16" and channels % arith.channels > 0


def packs_results(s: Situation) -> bool:
    """Whether results are bytes of scaled sums and nothing else, which vectors of 256 bits and more pack together."""
    p = s.problem
    scaled = p.quantisation is not None and p.quantisation.rescales and not p.residual and p.activation is None
    return scaled and p.y_dtype.bits == 8 and s.target.vector_bytes >= 32


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
