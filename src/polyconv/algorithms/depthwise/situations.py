"""What every depthwise algorithm asks first of a situation: whether it takes it, what a vector and a cache hold."""

from __future__ import annotations

import math
from dataclasses import replace

from polyconv.algorithms.form import Form, Refusal
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.lowering.program import Request
from polyconv.lowering.situation import Situation
from polyconv.lowering.situation import lane_arithmetic as arithmetic_of
from polyconv.lowering.sweep import Sweep
from polyconv.machine.profile import Rates
from polyconv.problem.problem import Problem

__all__ = [
    "DepthwiseForm", "arithmetic_of", "beyond_cycles", "by_pixels", "channel_bytes", "far_bytes", "lane_of",
    "lies_together", "of_one_output", "outputs_fit_lanes", "rates_of", "refusal", "too_many_taps",
]  # fmt: skip

_MOST_TAPS = 1 << 14
"""Of a kernel: a list of as many entries takes 640 KiB of a workspace."""


class DepthwiseForm(Form):
    """A form whose products are formed as ``arithmetic_of`` says."""

    __slots__ = ()

    @property
    def arithmetic(self) -> str:
        """Row of ``ARITHMETIC`` in which products are formed."""
        return arithmetic_of(self.s)


def refusal(s: Situation) -> Refusal | None:
    """Why no depthwise algorithm takes a situation; None if ``slide`` does."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose") or p.c != p.groups or not p.m or (p.c == 1 and p.m > 1):
        return "computes conv and conv_transpose with one input channel a group"
    if not by_pixels(p) and not outputs_fit_lanes(s):
        return "repeats an input within a vector"
    if p.quantisation is not None and p.quantisation.zx is not None:
        return "inputs with a zero point are converted in a panel"
    if (reason := too_many_taps(p)) is not None:
        return reason
    if not s.finite and by_pixels(p):
        return "weights hold Inf or NaN, which would meet the masked lanes of the padding"
    return None


def too_many_taps(p: Problem) -> Refusal | None:
    """Why no list holds the taps of a kernel; None if one does."""
    taps = math.prod(p.k)
    return f"lists at most {_MOST_TAPS} taps, the kernel has {taps}" if taps > _MOST_TAPS else None


def by_pixels(p: Problem) -> bool:
    """Whether lanes are pixels, in arrays that lie as the layout says; else they are channels."""
    return p.layout == "NCHW" or p.c == 1


def outputs_fit_lanes(s: Situation) -> bool:
    """Whether a vector of channels can hold an input as often as it has outputs."""
    return s.problem.m // s.problem.groups <= lane_of(s)


def of_one_output(s: Situation) -> Situation:
    """The situation of the first output of every channel, for algorithms that compute one after the other."""
    p = s.problem
    return s if p.m == p.groups else replace(s, problem=replace(p, m=p.groups))


def lies_together(r: Request, what: str) -> bool:
    """Whether neighbouring channels, or else ``pixels``, of all tensors lie side by side."""
    tensors = [o for o in (r.x, r.y, r.residual) if o is not None]
    return all((o.spatial[-1] if what == "pixels" else o.c) == o.itemsize for o in tensors)


def lane_of(s: Situation) -> int:
    """Lanes of a vector of sums."""
    return lanes(s.target, ARITHMETIC[arithmetic_of(s)])


def rates_of(s: Situation) -> Rates:
    """What the machine does with vectors of sums."""
    return s.rates(ARITHMETIC[arithmetic_of(s)])


def far_bytes(s: Situation) -> int:
    """Bytes of input and result from which on they come from memory itself.

    Asking early for them gains much, and costs where caches hold them: measured on Zen 5 from 12 of 32 MiB on.
    """
    return s.near(int(max(s.profile.numbers["l2.bytes"], s.profile.numbers["l3.bytes"] * 3 / 8)))


_BEYOND = 37 / 24
"""By the bytes a cycle that the last cache gives, those of input and result, which hardly come while tiles compute."""


def beyond_cycles(s: Situation, size: int) -> float:
    """Cycles in which so many bytes of input and result come from the last cache; 0 where the second holds them."""
    return size / s.profile.stream("l3", _BEYOND) if size > s.cache("l2", 1) else 0.0


def channel_bytes(s: Situation, sweep: Sweep) -> int:
    """Bytes of a channel of input and result."""
    p = s.problem
    read, written = math.prod(axis.inp for axis in sweep), math.prod(axis.out for axis in sweep)
    return read * p.x_dtype.itemsize + written * p.y_dtype.itemsize
