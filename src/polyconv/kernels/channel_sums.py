"""Tiles of few output channels by pixels whose input channels lie together: lanes are input channels.

A vector of a pixel's channels is read where it lies and multiplied by one of weights for each output, lane by lane.
The lanes of a sum are added after the last tap, those of all pixels of the tile together.  A sum is the same in every
size of a tile: halves of its lanes are added, and halves of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.fused import LEAPS, FusedTile
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import store_out
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add

__all__ = ["ENTRY_WORDS", "ChannelSums", "channel_sums_tile"]

ENTRY_WORDS = 2
"""Words of an entry, a tap: its offset in the input, and its number, after which its weights are found."""


class ChannelSums(Signature):
    """Results of some pixels, which lie ``x_pixel`` bytes apart in the input and ``y_pixel`` in the result.

    A pixel has ``vectors`` whole vectors of channels, and one more with ``last`` channels, one at least.
    """

    x: Buffer
    x_pixel: Int
    entries: Buffer
    count: Int
    weights: Buffer
    y: Buffer
    y_pixel: Int
    residual: Buffer
    r_pixel: Int
    x_channel: Int
    y_channel: Int
    r_channel: Int
    vectors: Int
    last: Int
    zero_point: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer


def channel_sums_tile(k: Module, name: str, spec: FusedTile, source: str, lanes: int, pixels: int, outputs: int, *,
                      apart: bool, f16c: bool) -> None:  # fmt: skip
    """Add the tile of some pixels by some output channels, of an input of a dtype.

    Parameters
    ----------
    lanes : int
        Words of a vector; of channels there are as many, or twice as many where words hold two.
    pixels : int
        A power of two, no more than lanes.
    apart : bool
        Whether channels do not lie together.
    """
    arithmetic, dtype = ARITHMETIC[spec.arithmetic], DTYPES[source]
    kind, words = vector(arithmetic.accumulator, lanes), vector(arithmetic.word, lanes)
    element = arithmetic.accumulator if arithmetic.channels == 1 else "i16"
    channels = vector(element, lanes * arithmetic.channels)
    lying = channels.of(LLVM_NAMES[source])
    with k.function(name, ChannelSums) as given:
        last = k.span(k.constant(INT, 0), given.last, channels.lanes)
        zero_point = k.splat(k.cast("trunc", given.zero_point, Type("i16")), channels.lanes)
        leads, leap = [given.x_pixel * r for r in range(min(pixels, LEAPS))], given.x_pixel * LEAPS
        x_step = given.x_channel * channels.lanes if apart else lying.bytes
        tap_bytes = (given.vectors + 1) * (outputs * kind.bytes)

        def word(place: Buffer, there: Mask | None) -> Value:
            """A vector of channels as words."""
            if apart:
                value = k.gather(lying, place, given.x_channel, there)
            else:
                value = k.load(lying, place) if there is None else k.load_first(lying, place, there)
            value = widen(k, value, dtype, element, f16c=f16c)
            if dtype.bits == 8 and element == "i16":
                value = value - zero_point
            return value if arithmetic.channels == 1 else k.cast("bitcast", value, words)

        def added(place: Buffer, b: Buffer, sums: Sequence[Value], there: Mask | None = None) -> list[Value]:
            """The sums with the products of a vector of channels of every pixel."""
            of_b = [k.load(words, b + j * kind.bytes) for j in range(outputs)]
            pixel, total = k.opaque(place), list(sums)
            for r in range(pixels):
                if r and r % LEAPS == 0:
                    pixel = k.rebase(pixel + leap)
                value = word(pixel + leads[r % LEAPS], there)
                for j, weight in enumerate(of_b):
                    total[r * outputs + j] = multiply_add(k, arithmetic, value, weight, total[r * outputs + j])
            return total

        with k.loop(0, given.count, carry=[k.constant(kind, 0)] * (pixels * outputs)) as entry:
            tap = given.entries + entry.index * (8 * ENTRY_WORDS)
            begin, weights = given.x + k.word(tap), given.weights + k.word(tap, 1) * tap_bytes
            with k.loop(0, given.vectors, carry=[begin, weights, *entry.values]) as step:
                place, b, *sums = step.values
                step.next(place + x_step, b + outputs * kind.bytes, *added(place, b, sums))
            place, b, *sums = step.results
            entry.next(*added(place, b, sums, last))
        results = Move(arithmetic.accumulator, spec.target, "pp", spec.epilogue)
        block = Block(k, results, vector(kind.element, pixels), f16c, None, given.y_pixel)
        store = store_out(
            block, given.bias, given.scale, given.residual, given.r_pixel, given.r_channel, given.constants
        )
        for j in range(outputs):
            total, to = _lanes_added(k, entry.results[j::outputs]), given.y + given.y_channel * j
            store(total, to, k.constant(INT, 0), k.constant(INT, j), None)


def _lanes_added(k: Module, sums: list[Value]) -> Value:
    """The sum of every vector's lanes, side by side; there are as many vectors as a power of two."""
    lanes, width = sums[0].type.lanes, 1
    half = lanes // 2
    while len(sums) > 1:  # vectors hold the parts of ``width`` sums side by side, again and again
        low = [side * lanes + part + at for part in range(0, half, width) for side in (0, 1) for at in range(width)]
        high = [lane + half for lane in low]
        sums = [k.shuffle(a, b, low) + k.shuffle(a, b, high) for a, b in zip(sums[::2], sums[1::2], strict=True)]
        width *= 2
    (total,) = sums
    while total.type.lanes > width:
        half = total.type.lanes // 2
        total = k.shuffle(total, total, range(half)) + k.shuffle(total, total, range(half, 2 * half))
    return total
