"""What every way to multiply words of channels asks first: whether it takes a problem, by which products, its bias.

Small integers are multiplied exactly, bf16 numbers in pairs with sums in f32.
Bytes are multiplied as u8 by i8: i8 inputs and u8 weights move by 128.  They are multiplied with the input's zero
point; what that adds to a sum is the same for all outputs of a channel, since padding holds the zero point too, so it
is taken off by the bias.  Weights that less their zero points are no numbers of i8 are multiplied with these: one more
output has the zero point for all its weights, and its sums are taken off those of the same pixel.  Where zero points
differ between channels it has ones, and its sums are multiplied by each.
In 16 bits numbers less their zero points are multiplied, and numbers of u16 as the numbers of i16 with the same bits:
their sums are the same modulo 2^16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Refusal
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.lowering.bands import Bands, bands, share_met, whole_bands
from polyconv.lowering.boxes import taps_of_lists
from polyconv.lowering.presums import CERTAIN
from polyconv.lowering.program import Request
from polyconv.lowering.situation import Situation, accumulator_arithmetic, has_pairs, short_sums
from polyconv.lowering.sweep import Sweep
from polyconv.lowering.tiles import is_fusible
from polyconv.runtime.arrays import aligned

__all__ = [
    "adding_cycles", "arithmetic_of", "channel_bytes", "dense_arithmetic", "has_half_word", "integer_refusal",
    "narrow_arithmetic", "packs_results", "padding_of", "refusal", "row_bands", "taken_off", "unit_refusal",
    "window_outputs", "windows", "with_bias", "with_row_biases", "word_cost", "zero_weight",
]  # fmt: skip

_ADDING = 4.0
"""Cycles of ``adding_cycles``: eight instructions a vector, two at a time on an Emerald Rapids."""


def refusal(s: Situation) -> Refusal | None:
    """Why no algorithm by dot products takes a situation; None if ``dense`` does."""
    p = s.problem
    if not has_pairs(s):
        return integer_refusal(s)
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    return None if is_fusible(p) else "needs a cheap epilogue"


def unit_refusal(s: Situation) -> Refusal | None:
    """Why a CPU's matrix unit does not take a situation that ``dense`` does; None if it may."""
    takes = arithmetic_of(s).name in ("u8s8", "bf16")
    return None if takes else f"multiplies bytes and bf16 numbers, not {s.problem.x}"


def integer_refusal(s: Situation) -> Refusal | None:
    """Why no algorithm by dot products of integers takes a situation; None if ``dense`` does."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if p.x not in ("u8", "i8", "i16") and not (p.x == "u16" and short_sums(s)):
        return f"multiplies numbers of u8, i8 and i16, and of u16 modulo 2^16, not {p.x}"
    if accumulator_arithmetic(s) != "i32":
        return "sums modulo 2^32, which this result does not allow"
    if not is_fusible(p):
        return "needs a cheap epilogue"
    return None


def arithmetic_of(s: Situation) -> Arithmetic:
    """Dot products of bytes where the CPU has them; else of pairs of 16 bits."""
    if s.problem.x_dtype.is_float:
        return ARITHMETIC["bf16"]
    return ARITHMETIC["u8s8" if s.target.vnni and s.problem.x_dtype.bits == 8 else "i16"]


def narrow_arithmetic(s: Situation) -> Arithmetic:
    """The same where no more outputs are summed: weights less their zero points must be numbers of i8."""
    return arithmetic_of(s) if s.narrow or s.problem.x_dtype.is_float else ARITHMETIC["i16"]


_PAIR, _PRESUMMED, _APART = 1.35, 1.95, 2.0
"""Multiply-adds of f32 that a word of pairs takes where it is two instructions; a word of bytes whose products are
summed in 16 bits first; and one that is multiplied apart.  Measured on a Zen 3, seven layers, weights of eight spreads.
"""


def word_cost(s: Situation, arith: Arithmetic) -> float:
    """Multiply-adds of f32 that a word takes."""
    if arith.presummed:
        return _PRESUMMED + _APART * s.crowded / CERTAIN
    return _PAIR if arith.name == "i16" and s.target.has_fma and not s.target.vnni else 1.0


def dense_arithmetic(s: Situation) -> Arithmetic:
    """``arithmetic_of``, or bytes with sums of two in 16 bits first, where most weights leave these sums room."""
    plain, p = arithmetic_of(s), s.problem
    if not (s.target.presums and s.narrow and p.groups == 1 and p.c and p.x_dtype.bits == 8) or p.x_dtype.is_float:
        return plain
    ways = plain, ARITHMETIC["u8s8 presummed"]
    return min(ways, key=lambda row: s.price(("arithmetic", row.name), word_cost(s, row) / row.channels))


def window_outputs(s: Situation) -> int:
    """Outputs that sum windows of inputs, for zero points of weights: 0 or 1."""
    return int(arithmetic_of(s).name == "u8s8" and not s.narrow)


def windows(r: Request) -> str:
    """The same of a request: ``all``, if its sums are taken off as they are, ``each``, times a number, or empty."""
    return "" if r.zero_left is None else "all" if r.zero_left.size == 1 else "each"


def zero_weight(r: Request) -> int:
    """The weights of that output."""
    assert r.zero_left is not None
    return int(r.zero_left[0]) if r.zero_left.size == 1 else 1


def channel_bytes(arith: Arithmetic) -> int:
    """Bytes of a channel in a word."""
    return arith.bytes // arith.channels


def has_half_word(arith: Arithmetic, channels: int) -> bool:
    """Whether the last word of so many channels is half of others, whose Inf or NaN no weight of zero takes away."""
    return arith.name == "bf16" and channels % arith.channels > 0


def packs_results(s: Situation) -> bool:
    """Whether results are bytes of scaled sums and nothing else, which vectors of 256 bits and more pack together.

    Residuals with scales of their own are added before.
    """
    p, q = s.problem, s.problem.quantisation
    scaled = q is not None and q.rescales and (q.adds or not p.residual) and p.activation is None
    return scaled and p.y_dtype.bits == 8 and s.target.vector_bytes >= 32


def adding_cycles(s: Situation) -> float:
    """Cycles in which bytes of a residual are added to a vector of scaled sums, if they are."""
    q = s.problem.quantisation
    return _ADDING if q is not None and q.adds else 0.0


def taken_off(r: Request) -> int:
    """What is taken off inputs before they are multiplied."""
    if r.arith.channels < 4:
        return r.zero_point
    return -128 if r.problem.x == "i8" else 0


_LISTS, _WORTH = 64, 0.85
"""Most lists of taps of rows that have biases of their own, and the share of the taps that must be left then."""


def row_bands(arith: Arithmetic, sweep: Sweep) -> list[Bands]:
    """Which taps of outer axes rows of outputs have: bytes of padding are multiplied, unless many would be."""
    axes = sweep[:-1]
    found = bands(axes, _LISTS)
    is_worth = arith.channels < 4 or share_met(axes, found) < _WORTH
    return found if is_worth else whole_bands(axes)


def padding_of(r: Request) -> int:
    """The byte that stands for the input's zero point where inputs are multiplied with it."""
    return r.zero_point - taken_off(r)


def with_bias(r: Request, w: NDArray[Any], padding: int, lists: Sequence[Sequence[int]] = ()) -> Request:
    """The request with what the input's zero point adds to sums taken off by its bias.

    Parameters
    ----------
    w : array
        Weights (groups, m/groups, c/groups, taps).
    padding : int
        What stands for the zero point.
    lists : sequence of sequence of int
        The taps that some outputs have; biases for those of each list follow those of the one before it.  Without
        lists all outputs have all taps.
    """
    if not padding:
        return r
    sums = w.sum(axis=2, dtype=np.int32).reshape(r.problem.m, w.shape[3])
    if r.zero_left is not None:
        sums -= (r.zero_left * np.int32(w.shape[2])).reshape(-1, 1)
    bias = aligned((max(1, len(lists)) * r.problem.m,), np.int32)
    of_lists = bias.reshape(-1, r.problem.m)
    of_lists[...] = 0 if r.bias is None else r.bias
    for biases, taps in zip(of_lists, lists or [range(w.shape[3])], strict=True):
        biases -= sums[:, taps].sum(axis=1, dtype=np.int32) * np.int32(padding)
    return replace(r, bias=bias)


def with_row_biases(r: Request, sweep: Sweep, w: NDArray[Any]) -> tuple[Request, list[Bands] | None, int]:
    """The request with biases for each list of taps that rows of outputs have, these, and how many lists there are.

    There is one list, and no bands are known, where nothing is added to sums that padding must not add.
    """
    if not padding_of(r):
        return r, None, 1
    found, along = row_bands(r.arith, sweep), range(sweep[-1].taps)
    lists = [[tap * len(along) + t for tap in taps for t in along] for taps in taps_of_lists(sweep[:-1], found)]
    return with_bias(r, w, padding_of(r), lists), found, len(lists)
