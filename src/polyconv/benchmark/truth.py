"""A problem and its operands to what an engine's result is held against: exact values, and a plain sum's error.

The exact values are the float64 oracle's, for as many output channels as take less than a second.  Beside
them stands the error of the plainest f32 program, one chain of multiply-adds per output.  It must not know
who computed a result.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.conformance.operands import Operands
from polyconv.dataclass import dataclass
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

__all__ = ["Truth", "chain_error", "truth"]

Array = NDArray[Any]

_PRODUCTS = 2e8  # of the oracle: about 0.2 s
_CHAIN_CHANNELS, _CHAIN_OUTPUTS, _CHAIN_PRODUCTS = 8, 512, 2_000_000


@dataclass(frozen=True, slots=True)
class Truth:
    """Exact values of some outputs.

    Parameters
    ----------
    channels : array of int
        Output channels that were computed, in the last image of the batch.
    exact : array
        Their float64 values, or integers, with the axes (1, channel, spatial).
    chain : float or None
        rms error, over the rms of the outputs, of one f32 chain of multiply-adds per output; None for
        problems that are not f32, and where there are no outputs.
    """

    channels: NDArray[np.intp]
    exact: Array
    chain: float | None

    def error(self, sample: Array) -> float:
        """Rms of the differences over the rms of the exact values.

        Parameters
        ----------
        sample : array
            An engine's outputs for ``channels`` of the last image, shaped as ``exact``.
        """
        exact = self.exact.astype(np.float64)
        size = float(np.sqrt(np.mean(np.square(exact)))) if exact.size else 0.0
        difference = float(np.sqrt(np.mean(np.square(sample.astype(np.float64) - exact)))) if exact.size else 0.0
        return difference / size if size else difference


def truth(p: Problem, made: Operands, rng: np.random.Generator) -> Truth:
    """Exact values of a problem.

    Parameters
    ----------
    p : Problem
        Channels first, with all extents known.
    made : Operands
        Its operands.
    rng : Generator
        Chooses the outputs whose plain sums are made.
    """
    part, operands, channels = _part(p, made)
    keywords = {k: v for k, v in operands.keywords().items() if k != "past"}
    is_float = p.y_dtype.is_float
    exact = oracle(part, operands.x, operands.w, operands.bias, operands.residual, raw=is_float, **keywords)
    plain = p.x == p.w == p.y == "f32" and p.op in ("conv", "conv_transpose") and p.quantisation is None
    return Truth(channels, exact, chain_error(part, operands, rng) if plain and exact.size else None)


def _part(p: Problem, made: Operands) -> tuple[Problem, Operands, NDArray[np.intp]]:
    """The problem of the last image and of output channels spread over all, with its operands."""
    n, g = int(p.n or 0), p.groups
    inputs, outputs = p.c // g, p.m // g
    affordable = max(1, int(_PRODUCTS * p.m * n / max(1, p.macs)))
    if p.op == "deform_conv":  # offset groups and groups interleave: all channels, one image
        groups, inside = np.arange(g), np.arange(outputs)
    else:
        groups = _spread(g, affordable)
        inside = _spread(outputs, max(1, affordable // len(groups)))
    channels = (groups[:, None] * outputs + inside).reshape(-1)
    sources = (groups[:, None] * inputs + np.arange(inputs)).reshape(-1)
    w = made.w[sources][:, inside] if p.op == "conv_transpose" else made.w[channels]
    part = replace(p, n=min(n, 1), c=len(sources), m=len(channels), groups=len(groups))
    last = slice(max(0, n - 1), n)

    def image(a: Array | None) -> Array | None:
        return None if a is None else a[last]

    operands = Operands(
        x=made.x[last][:, sources], w=w,
        bias=None if made.bias is None else made.bias[channels],
        residual=None if made.residual is None else made.residual[last][:, channels],
        offset=image(made.offset), mask=image(made.mask),
        quantities={name: a[channels] if a.ndim else a for name, a in made.quantities.items()},
    )  # fmt: skip
    return part, operands, channels


def _spread(count: int, most: int) -> NDArray[np.intp]:
    """At most so many of ``range(count)``, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def chain_error(p: Problem, made: Operands, rng: np.random.Generator) -> float:
    """Error of one f32 chain of fused multiply-adds per output, over the rms of the outputs.

    Parameters
    ----------
    p : Problem
        Channels first, f32, a plain or transposed convolution of one image.
    rng : Generator
        Draws the outputs that are summed; bias, residual and activation are left out.

    Notes
    -----
    A product of two f32 is exact in f64, so adding it there and rounding to f32 is a fused multiply-add,
    but for double roundings.
    """
    left, right = _products(p, made.x, made.w, rng)
    sums = np.zeros(len(left), np.float32)
    for a, b in zip(left.T, right.T, strict=True):
        sums = (sums + a * b).astype(np.float32)
    exact = np.einsum("pk,pk->p", left, right)
    size = float(np.sqrt(np.mean(np.square(exact)))) if exact.size else 0.0
    return float(np.sqrt(np.mean(np.square(sums - exact)))) / size if size else 0.0


def _products(p: Problem, x: Array, w: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Factors of randomly drawn outputs, each an array (outputs, channels x taps) of float64; 0 for padding."""
    inputs, outputs = p.c // p.groups, p.m // p.groups
    taps = np.array(list(itertools.product(*(range(k) for k in p.k))), np.intp)
    most = min(_CHAIN_OUTPUTS, max(64, _CHAIN_PRODUCTS // max(1, inputs * len(taps))))
    channels = _spread(p.m, _CHAIN_CHANNELS)
    each = -(-most // len(channels))
    at = np.stack([rng.integers(0, max(1, int(o or 0)), each * len(channels)) for o in p.out], axis=1)
    channel = np.repeat(channels, each)
    if any(o == 0 for o in p.out):
        at, channel = at[:0], channel[:0]
    place = np.zeros((len(at), len(taps)), np.intp)
    meets = np.ones((len(at), len(taps)), bool)
    for a, extent in enumerate(x.shape[2:]):
        begin, reach = p.pads[a][0], taps[:, a] * p.d[a]
        if p.op == "conv_transpose":
            index, rest = np.divmod(at[:, a, None] + begin - reach, p.s[a])
            meets &= rest == 0
        else:
            index = at[:, a, None] * p.s[a] + reach - begin
        meets &= (index >= 0) & (index < extent)
        place = place * extent + np.clip(index, 0, extent - 1)
    group = channel // outputs
    flat = x[0].reshape(p.groups, inputs, -1).astype(np.float64)
    left = flat[group[:, None, None], np.arange(inputs)[None, :, None], place[:, None]] * meets[:, None]
    if p.op == "conv_transpose":
        weights = np.swapaxes(w.reshape(p.groups, inputs, outputs, -1), 1, 2).reshape(p.m, inputs, -1)
    else:
        weights = w.reshape(p.m, inputs, -1)
    right = weights[channel].astype(np.float64)
    return left.reshape(len(at), -1), right.reshape(len(at), -1)
