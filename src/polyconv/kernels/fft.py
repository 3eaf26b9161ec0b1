"""Fourier transforms as kernels: one transform per lane, without a shuffle.

A point is two vectors, real and imaginary parts; a line is a run of points a run-time step apart.  Passes work in
place, decimating in frequency forwards and in time backwards (Gentleman and Sande 1966, Cooley and Tukey 1965), so
that spectra stay in the order of their mixed-radix digits reversed: products do not mind, and nothing is permuted.

Real tiles are half as long: complex row j of the first axis holds real rows 2j and 2j + 1 (Z = E + iO).  With
``Z' = conj Z(-k)`` the spectra of even and odd rows are ``E = (Z + Z')/2`` and ``O = (Z - Z')/2i``, and that of the
tile is ``E + wO`` at k and ``E - wO`` half a period further, ``w = exp(-2 pi i k/N)``.  ``pair_product`` multiplies
these by a kernel's spectrum and goes back the same way; constant factors are in the weights.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

from polyconv.kernels.language import Buffer, Module, Value, vector

__all__ = ["PAIR", "RADICES", "pair_product", "passes", "scan", "spread"]

Complex = tuple[Value, Value]

RADICES = (2, 3, 4, 5, 6, 8, 9)
"""Points of a butterfly; 9 of them and their sums fill the registers."""

PAIR = ("a", "b", "cosine", "sine")
"""A pair of points k and -k: their places in a plane, and w, in 8-byte slots that hold accumulators."""

_BASE = {2: (2,), 3: (3,), 4: (4,), 5: (5,), 6: (2, 3), 8: (2, 4), 9: (3, 3)}


def _times(k: Module, z: Complex, w: complex) -> Complex:
    """``z w`` for a constant on the unit circle."""
    re, im = z
    if abs(w.imag) < 1e-15:
        return z if w.real > 0 else (-re, -im)
    if abs(w.real) < 1e-15:
        return (-im, re) if w.imag > 0 else (im, -re)
    c, s = k.constant(re.type, w.real), k.constant(re.type, w.imag)
    return k.fma(re, c, -(im * s)), k.fma(re, s, im * c)


def _add(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def _sub(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def _dft(k: Module, x: Sequence[Complex], sign: int) -> list[Complex]:
    """``sum x_a exp(sign 2 pi i a q / r)`` for q = 0..r, in registers."""
    r = len(x)
    if r == 2:
        return [_add(x[0], x[1]), _sub(x[0], x[1])]
    if r == 4:
        (a, b), (c, d) = _dft(k, (x[0], x[2]), sign), _dft(k, (x[1], x[3]), sign)
        d = _times(k, d, complex(0, sign))
        return [_add(a, c), _add(b, d), _sub(a, c), _sub(b, d)]
    if r in (3, 5):
        return _odd(k, x, sign)
    p, q = _BASE[r]
    parts = [_dft(k, x[b::q], sign) for b in range(q)]  # over the legs b, b + q, ...: their p frequencies
    result: list[Complex] = [x[0]] * r
    for f in range(p):
        column = [_times(k, parts[b][f], cmath.exp(sign * 2j * math.pi * b * f / r)) for b in range(q)]
        for g, value in enumerate(_dft(k, column, sign)):
            result[f + p * g] = value
    return result


def _odd(k: Module, x: Sequence[Complex], sign: int) -> list[Complex]:
    """A prime number of points: sums and differences of opposite ones."""
    r, half = len(x), len(x) // 2
    sums = [_add(x[a], x[r - a]) for a in range(1, half + 1)]
    differences = [_sub(x[a], x[r - a]) for a in range(1, half + 1)]
    total = x[0]
    for s in sums:
        total = _add(total, s)
    result = [total] * r
    for q in range(1, half + 1):
        even = x[0]
        odd = _scaled(differences[0], sign * math.sin(2 * math.pi * q / r))
        for a in range(1, half + 1):
            angle = 2 * math.pi * a * q / r
            even = _plus_scaled(k, even, sums[a - 1], math.cos(angle))
            if a > 1:
                odd = _plus_scaled(k, odd, differences[a - 1], sign * math.sin(angle))
        result[q] = even[0] - odd[1], even[1] + odd[0]  # even + i odd
        result[r - q] = even[0] + odd[1], even[1] - odd[0]
    return result


def _scaled(z: Complex, c: float) -> Complex:
    return z[0] * c, z[1] * c


def _plus_scaled(k: Module, total: Complex, z: Complex, c: float) -> Complex:
    factor = k.constant(z[0].type, c)
    return k.fma(z[0], factor, total[0]), k.fma(z[1], factor, total[1])


def passes(k: Module, radix: int, element: str, lanes: int) -> None:
    """Add ``forward``, ``backward`` and the same without twiddles, ``forward_last`` and ``backward_first``.

    ``name(line, leg, inner, step, outer, outer_step, twiddles)``: butterflies of points a ``leg`` apart, ``inner`` of
    them a ``step`` apart, for each of ``outer`` parts of the line.  Twiddles are radix - 1 factors per inner index.
    """
    kind = vector(element, lanes)
    arguments = ("buffer", "int", "int", "int", "int", "int", "buffer")
    for name, sign, twiddled in (
        ("forward", -1, True), ("forward_last", -1, False), ("backward", 1, True), ("backward_first", 1, False),
    ):  # fmt: skip
        with (
            k.function(name, *arguments) as (line, leg, inner, step, outer, outer_step, twiddles),
            k.loop(0, outer) as o,
            k.loop(0, inner) as i,
        ):
            first = line + (o.index * outer_step + i.index * step)
            factors = twiddles + i.index * (2 * (radix - 1) * kind.element_bytes)
            points, at = [], first
            for q in range(radix):
                place = k.rebase(at)
                z = k.load(kind, place), k.load(kind, place + kind.bytes)
                points.append(_twisted(k, z, factors, q, sign) if twiddled and sign > 0 else z)
                at = at + leg
            at = first
            for q, z in enumerate(_dft(k, points, sign)):
                place = k.rebase(at)
                re, im = _twisted(k, z, factors, q, sign) if twiddled and sign < 0 else z
                k.store(re, place)
                k.store(im, place + kind.bytes)
                at = at + leg


def _twisted(k: Module, z: Complex, factors: Buffer, q: int, sign: int) -> Complex:
    """``z w_q``, or its conjugate on the way back; the first leg has no factor."""
    if q == 0:
        return z
    re, im = z
    place = factors + 2 * (q - 1) * re.type.element_bytes
    c, s = k.broadcast(re.type, place), k.broadcast(re.type, place + re.type.element_bytes)
    if sign < 0:
        return k.fma(re, c, -(im * s)), k.fma(re, s, im * c)
    return k.fma(re, c, im * s), k.fma(im, c, -(re * s))


def pair_product(k: Module, name: str, element: str, lanes: int, each: bool) -> None:
    """Add ``name(source, plane_bytes, channels, pairs, count, weights, target)``.

    The spectra of ``channels`` planes times those of their kernels, summed: a plane.  Weights are vectors where
    ``each`` lane has its own, else numbers; they stream pair by pair, channel by channel, four of them.
    """
    kind = vector(element, lanes)
    size = kind.bytes if each else kind.element_bytes
    arguments = ("buffer", "int", "int", "buffer", "int", "buffer", "buffer")
    with (
        k.function(name, *arguments) as (source, plane_bytes, channels, pairs, count, weights, target),
        k.loop(0, count) as pair,
    ):
        record = pairs + pair.index * (8 * len(PAIR))
        a, b = k.word(record), k.word(record, 1)
        cosine, sine = k.broadcast(kind, record + 16), k.broadcast(kind, record + 24)
        zeros = [k.constant(kind, 0)] * 4
        stream = weights + pair.index * channels * (4 * size)
        with k.loop(0, channels, carry=[source, stream, *zeros], runs=True) as channel:
            plane, h, re0, im0, re1, im1 = channel.values
            here, there = k.rebase(plane + a), k.rebase(plane + b)
            zr, zi = k.load(kind, here), k.load(kind, here + kind.bytes)
            yr, yi = k.load(kind, there), k.load(kind, there + kind.bytes)
            er, ei, odd_r, odd_i = zr + yr, zi - yi, zi + yi, yr - zr
            pr, pi = k.fma(odd_r, cosine, odd_i * sine), k.fma(odd_i, cosine, -(odd_r * sine))
            at = k.rebase(h)
            w = [(k.load if each else k.broadcast)(kind, at + j * size) for j in range(4)]
            low, high = (er + pr, ei + pi), (er - pr, ei - pi)
            sums = *_plus(k, (re0, im0), low, w[:2]), *_plus(k, (re1, im1), high, w[2:])
            channel.next(plane + plane_bytes, h + 4 * size, *sums)
        re0, im0, re1, im1 = channel.results[2:]
        er, ei, gr, gi = re0 + re1, im0 + im1, re0 - re1, im0 - im1
        odd_r, odd_i = k.fma(gr, cosine, -(gi * sine)), k.fma(gi, cosine, gr * sine)
        here, there = k.rebase(target + a), k.rebase(target + b)
        k.store(er + odd_i, there)
        k.store(odd_r - ei, there + kind.bytes)
        k.store(er - odd_i, here)
        k.store(ei + odd_r, here + kind.bytes)


def _plus(k: Module, total: Complex, x: Complex, w: Sequence[Value]) -> Complex:
    """``total + x w``."""
    re, im = k.fma(x[0], w[0], total[0]), k.fma(x[0], w[1], total[1])
    return k.fma(-x[1], w[1], re), k.fma(x[1], w[0], im)


def spread(k: Module, name: str, element: str, lanes: int) -> None:
    """Add ``name(points, count, step)``: the first lane of vectors a step apart in all their lanes."""
    kind = vector(element, lanes)
    with k.function(name, "buffer", "int", "int") as (points, count, step), k.loop(0, count) as i:
        place = points + i.index * step
        k.store(k.broadcast(kind, place), place)


def scan(k: Module, name: str, element: str, lanes: int) -> None:
    """Add ``name(points, count, step, seen)``: lanes of ``seen`` become NaN where a value is not finite."""
    kind = vector(element, lanes)
    with k.function(name, "buffer", "int", "int", "buffer") as (points, count, step, seen):
        with k.loop(0, count, carry=[k.load(kind, seen)]) as i:
            i.next(k.fma(k.load(kind, points + i.index * step), k.constant(kind, 0), i.values[0]))
        k.store(i.results[0], seen)
