"""Fourier transforms as kernels: one transform per lane, without a shuffle.

A point is two vectors, real and imaginary parts; a line is a run of points a run-time step apart.  Passes work in
place, decimating in frequency forwards and in time backwards (Gentleman and Sande 1966, Cooley and Tukey 1965), so
that spectra stay in the order of their mixed-radix digits reversed: products do not mind, and nothing is permuted.

Real tiles are half as long: complex row j of the first axis holds real rows 2j and 2j + 1 (Z = E + iO).  With
``Z' = conj Z(-k)`` the spectra of even and odd rows are ``E = (Z + Z')/2`` and ``O = (Z - Z')/2i``, and that of the
tile is ``E + wO`` at k and ``E - wO`` half a period further, ``w = exp(-2 pi i k/N)``.  ``pair_product`` multiplies
these by a kernel's spectrum and goes back the same way; constant factors are in the weights.  Where channels are
summed lane by lane ``apart`` and ``together`` do both ways, and ``channel_product`` is a complex matrix product.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

from polyconv.kernels.language import Buffer, Module, Type, Value, vector
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import ask_early

__all__ = [
    "PAIR", "RADICES", "ChannelProduct", "PairProduct", "Pairs", "Pass", "Scan", "apart", "channel_product",
    "pair_product", "passes", "scan", "together",
]  # fmt: skip

Complex = tuple[Value, Value]

RADICES = (2, 3, 4, 5, 6, 8, 9)
"""Points of a butterfly; 9 of them and their sums fill the registers."""

PAIR = ("a", "b", "cosine", "sine", "second")
"""A pair of points k and -k: their places in a plane, and w, in 8-byte slots that hold accumulators.  The first value
of the real tile's spectrum is kept at ``a``, the other at ``second``: ``b``, or a place of its own where b is a."""

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


class Pass(Signature):
    """For each of the ``lines``, whose ``places`` are words, butterflies of points a ``leg`` apart.

    ``inner`` of them are a ``step`` apart, in each of ``outer`` parts.  Twiddles are radix - 1 factors per inner index.
    """

    plane: Buffer
    places: Buffer
    lines: Int
    leg: Int
    inner: Int
    step: Int
    outer: Int
    outer_step: Int
    twiddles: Buffer


def passes(k: Module, radix: int, element: str, lanes: int) -> None:
    """Add ``forward``, ``backward`` and the same without twiddles, ``forward_last`` and ``backward_first``."""
    kind = vector(element, lanes)
    for name, sign, twiddled in (
        ("forward", -1, True), ("forward_last", -1, False), ("backward", 1, True), ("backward_first", 1, False),
    ):  # fmt: skip
        with (
            k.function(name, Pass) as given,
            k.loop(0, given.lines) as line,
            k.loop(0, given.outer) as o,
            k.loop(0, given.inner) as i,
        ):
            of_line = k.word(given.places, line.index)
            first = given.plane + (of_line + o.index * given.outer_step + i.index * given.step)
            factors = given.twiddles + i.index * (2 * (radix - 1) * kind.element_bytes)
            points, at = [], first
            for q in range(radix):
                place = k.rebase(at)
                z = k.load(kind, place), k.load(kind, place + kind.bytes)
                points.append(_twisted(k, z, factors, q, sign) if twiddled and sign > 0 else z)
                at = at + given.leg
            at = first
            for q, z in enumerate(_dft(k, points, sign)):
                place = k.rebase(at)
                re, im = _twisted(k, z, factors, q, sign) if twiddled and sign < 0 else z
                k.store(re, place)
                k.store(im, place + kind.bytes)
                at = at + given.leg


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


class PairProduct(Signature):
    """The spectra of planes of ``channels``, ``plane`` bytes apart, times those of their kernels, summed: a plane."""

    source: Buffer
    plane: Int
    channels: Int
    pairs: Buffer
    count: Int
    weights: Buffer
    target: Buffer


def pair_product(k: Module, name: str, element: str, lanes: int, each: bool) -> None:
    """Add the product of pairs of points.

    Weights are vectors where ``each`` lane has its own, else numbers; they stream pair by pair, channel by channel,
    four of them.
    """
    kind = vector(element, lanes)
    size = kind.bytes if each else kind.element_bytes
    with k.function(name, PairProduct) as given, k.loop(0, given.count) as pair:
        source, channels, weights, target = given.source, given.channels, given.weights, given.target
        record = given.pairs + pair.index * (8 * len(PAIR))
        a, b = k.word(record), k.word(record, 1)
        cosine, sine = k.broadcast(kind, record + 16), k.broadcast(kind, record + 24)
        zeros = [k.constant(kind, 0)] * 4
        stream = weights + pair.index * channels * (4 * size)
        with k.loop(0, channels, carry=[source, stream, *zeros], runs=True) as channel:
            plane, h, re0, im0, re1, im1 = channel.values
            low, high = _spectra(k, kind, plane + a, plane + b, (cosine, sine))
            at = k.rebase(h)
            w = [(k.load if each else k.broadcast)(kind, at + j * size) for j in range(4)]
            sums = *_plus(k, (re0, im0), low, w[:2]), *_plus(k, (re1, im1), high, w[2:])
            channel.next(plane + given.plane, h + 4 * size, *sums)
        re0, im0, re1, im1 = channel.results[2:]
        _packed(k, (re0, im0), (re1, im1), target + a, target + b, (cosine, sine))


def _point(k: Module, kind: Type, place: Buffer) -> Complex:
    place = k.rebase(place)
    return k.load(kind, place), k.load(kind, place + kind.bytes)


def _put(k: Module, z: Complex, place: Buffer) -> None:
    place = k.rebase(place)
    k.store(z[0], place)
    k.store(z[1], place + z[0].type.bytes)


def _spectra(k: Module, kind: Type, a: Buffer, b: Buffer, w: Complex) -> tuple[Complex, Complex]:
    """Twice the two values of a real tile's spectrum: 2E + 2wO and 2E - 2wO."""
    (zr, zi), (yr, yi) = _point(k, kind, a), _point(k, kind, b)
    er, ei, odd_r, odd_i = zr + yr, zi - yi, zi + yi, yr - zr
    pr, pi = k.fma(odd_r, w[0], odd_i * w[1]), k.fma(odd_i, w[0], -(odd_r * w[1]))
    return (er + pr, ei + pi), (er - pr, ei - pi)


def _packed(k: Module, low: Complex, high: Complex, a: Buffer, b: Buffer, w: Complex) -> None:
    """The way back: twice E + iO, at both points."""
    (er, ei), (gr, gi) = _add(low, high), _sub(low, high)
    odd_r, odd_i = k.fma(gr, w[0], -(gi * w[1])), k.fma(gi, w[0], gr * w[1])
    _put(k, (er + odd_i, odd_r - ei), b)
    _put(k, (er - odd_i, ei + odd_r), a)


class Pairs(Signature):
    """Pairs of points of a plane."""

    plane: Buffer
    pairs: Buffer
    count: Int


def apart(k: Module, name: str, element: str, lanes: int) -> None:
    """Add the change of a plane to the spectrum of its real tile."""
    kind = vector(element, lanes)
    with k.function(name, Pairs) as given, k.loop(0, given.count) as pair:
        plane, record = given.plane, given.pairs + pair.index * (8 * len(PAIR))
        w = k.broadcast(kind, record + 16), k.broadcast(kind, record + 24)
        low, high = _spectra(k, kind, plane + k.word(record), plane + k.word(record, 1), w)
        _put(k, high, plane + k.word(record, 4))
        _put(k, low, plane + k.word(record))


def together(k: Module, name: str, element: str, lanes: int) -> None:
    """Add the change of the spectrum of a real tile to a plane."""
    kind = vector(element, lanes)
    with k.function(name, Pairs) as given, k.loop(0, given.count) as pair:
        plane, record = given.plane, given.pairs + pair.index * (8 * len(PAIR))
        w = k.broadcast(kind, record + 16), k.broadcast(kind, record + 24)
        low, high = _point(k, kind, plane + k.word(record)), _point(k, kind, plane + k.word(record, 4))
        _packed(k, low, high, plane + k.word(record), plane + k.word(record, 1), w)


class ChannelProduct(Signature):
    """At each of the places ``slots`` the values of input channels times a matrix: sums of a vector of output channels.

    Channels are lanes of planes ``vector_step`` apart.  Weights stream, real and imaginary vectors.
    """

    source: Buffer
    tile_step: Int
    vector_step: Int
    channels: Int
    slots: Buffer
    count: Int
    weights: Buffer
    target: Buffer
    target_step: Int


def channel_product(k: Module, name: str, element: str, lanes: int, tiles: int) -> None:
    """Add the matrix product for so many tiles."""
    kind = vector(element, lanes)
    with k.function(name, ChannelProduct) as given, k.loop(0, given.count, carry=[given.weights]) as slot:
        place = k.word(given.slots, slot.index)
        zeros = [k.constant(kind, 0)] * (2 * tiles)
        with k.loop(0, given.channels, lanes, carry=[given.source + place, *slot.values, *zeros]) as block:
            here = k.minimum(given.channels - block.index, lanes)
            with k.loop(0, here, carry=block.values, runs=True) as channel:
                a, h, *sums = channel.values
                ask_early(k, h, kind, 2)
                w = _point(k, kind, h)
                row = k.rebase(a)
                for t in range(tiles):
                    x = k.broadcast(kind, row), k.broadcast(kind, row + kind.bytes)
                    sums[2 * t : 2 * t + 2] = _plus(k, (sums[2 * t], sums[2 * t + 1]), x, w)
                    row = k.rebase(row + given.tile_step)
                channel.next(a + kind.element_bytes, h + 2 * kind.bytes, *sums)
            following = block.values[0] + given.vector_step
            block.next(following, *channel.results[1:])
        slot.next(block.results[1])
        at = given.target + place
        for t in range(tiles):
            _put(k, (block.results[2 + 2 * t], block.results[3 + 2 * t]), at)
            at = at + given.target_step


def _plus(k: Module, total: Complex, x: Complex, w: Sequence[Value]) -> Complex:
    """``total + x w``."""
    re, im = k.fma(x[0], w[0], total[0]), k.fma(x[0], w[1], total[1])
    return k.fma(-x[1], w[1], re), k.fma(x[1], w[0], im)


class Scan(Signature):
    """Vectors a step apart, and the lanes of a vector that become NaN where a value is not finite."""

    points: Buffer
    count: Int
    step: Int
    seen: Buffer


def scan(k: Module, name: str, element: str, lanes: int) -> None:
    """Add the search for values that are not finite."""
    kind = vector(element, lanes)
    with k.function(name, Scan) as given:
        with k.loop(0, given.count, carry=[k.load(kind, given.seen)]) as i:
            i.next(k.fma(k.load(kind, given.points + i.index * given.step), k.constant(kind, 0), i.values[0]))
        k.store(i.results[0], given.seen)
