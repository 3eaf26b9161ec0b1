"""Sums whose lanes are parts of them to vectors of whole sums: for tiles that multiply several inputs by lanes.

Within 128 bits lanes are added first, where most vectors are left and moving words costs least, then 128 bits of each.
A sum is the same however many there are beside it.  It must not know what is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from polyconv.dtypes import DTYPES
from polyconv.kernels.fused import FusedTile
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import finished

__all__ = ["by_pixel", "lanes_added", "parts_of", "repeated", "store_by_pixel", "vectors_of"]


class Tables(Protocol):
    """What the epilogue takes of a tile's arguments, biases and scales for every lane; factors come before weights."""

    weights: Buffer
    residual: Buffer
    bias: Buffer
    scale: Buffer
    constants: Buffer


def parts_of(lanes: int) -> list[int]:
    """Lanes of a part of a vector, from all of them down to two: 8, 4 and 2."""
    return [lanes >> halved for halved in range(lanes.bit_length() - 1)]


def vectors_of(each: int, lanes: int, part: int) -> int:
    """Vectors of a pixel that hold the sums of so many outputs, in parts of their lanes."""
    return -(-each // (lanes // part))


def repeated(k: Module, part: Value, lanes: int) -> Value:
    """So many lanes that hold a part again and again: registers are filled by the load."""
    count = part.type.lanes
    return part if count == lanes else k.shuffle(part, part, [lane % count for lane in range(lanes)])


def lanes_added(k: Module, sums: Sequence[Value], part: int) -> tuple[Value, list[int]]:
    """One vector of the sums of every ``part`` neighbouring lanes, of as many vectors or fewer.

    Returns
    -------
    Value, list of int
        The lane of each sum: those of the first vector in their order, of the second, ...
    """
    lanes, piece = sums[0].type.lanes, 16 // sums[0].type.element_bytes
    near = [d for d in _halves(piece) if d < part]
    held = [(value, [(number, lane) for lane in range(lanes)]) for number, value in enumerate(sums)]
    for distance in [*near, *(d for d in _halves(part) if d >= piece)]:
        unit = piece if distance < piece else lanes
        pairs = zip(held[::2], [*held[1::2], *held[-1:]], strict=False)
        held = [_added(k, a, b, distance, unit) for a, b in pairs]
    ((value, places),) = held
    return value, [places.index((number, first)) for number in range(len(sums)) for first in range(0, lanes, part)]


_Labelled = tuple[Value, list[tuple[int, int]]]
"""A vector, and for every lane the number of the vector and its first lane whose sum it is a part of."""


def _halves(count: int) -> list[int]:
    return [1 << bit for bit in reversed(range(count.bit_length() - 1))]


def _added(k: Module, a: _Labelled, b: _Labelled, distance: int, unit: int) -> _Labelled:
    """Lanes ``distance`` apart of two vectors, maybe the same, added; units have their half of each side by side."""
    lanes = len(a[1])
    parts = [(side * lanes + lane, label) for first in range(0, lanes, unit) for side, (_, labels) in enumerate((a, b))
             for lane, label in enumerate(labels) if first <= lane < first + unit]  # fmt: skip
    low = [(at, label) for at, label in parts if not label[1] & distance]
    high = {(at >= lanes, label): at for at, label in parts}
    beside = [high[at >= lanes, (label[0], label[1] | distance)] for at, label in low]
    added = k.shuffle(a[0], b[0], [at for at, _ in low]) + k.shuffle(a[0], b[0], beside)
    return added, [label for _, label in low]


def by_pixel(k: Module, spec: FusedTile, given: Tables, added: tuple[Value, list[int]], pixels: int, outputs: int
             ) -> Value:  # fmt: skip
    """The sums of some pixels, pixel by pixel, without those of windows, which are taken off the others."""
    sums, places = added
    each, kind = len(places) // pixels, sums.type
    numbers = [min(number, pixels * outputs - 1) for number in range(kind.lanes)]
    found = k.shuffle(sums, sums, [places[n // outputs * each + n % outputs] for n in numbers])
    if not spec.windows:
        return found
    of_windows = k.shuffle(sums, sums, [places[n // outputs * each + outputs] for n in numbers])
    return found - (of_windows * k.load(kind, given.weights) if spec.windows == "each" else of_windows)


def store_by_pixel(k: Module, spec: FusedTile, given: Tables, sums: Value, y: Buffer, y_pixel: Value, pixels: int,
                   outputs: int, *, f16c: bool = False) -> None:  # fmt: skip
    """Store the results of some pixels, whose channels lie together, from a vector that has them pixel by pixel."""
    zero = k.constant(INT, 0)
    block = Block(k, Move(sums.type.element, spec.target, "cc", spec.epilogue), sums.type, f16c)
    finish = finished(block, given.bias, given.scale, given.residual, zero, zero, given.constants)
    value = finish(sums, zero, zero, None)
    follow = y_pixel.equals(outputs * DTYPES[spec.target].itemsize)
    with k.when(follow):
        k.store_first(value, y, k.mask(k.constant(INT, pixels * outputs), value.type.lanes))
    with k.when(follow, otherwise=True):
        for r in range(pixels):
            k.store(k.shuffle(value, value, range(r * outputs, (r + 1) * outputs)), y + y_pixel * r)
