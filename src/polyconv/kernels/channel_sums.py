"""Tiles of few output channels by pixels whose input channels lie together: lanes are input channels.

Some of a pixel's channels are read where they lie, and multiplied by those of outputs' weights, lane by lane.  The
lanes of a sum are added after the last tap, those of several pixels together.  A sum is the same in every size of a
tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.fused import FusedTile, leads_of, places_of_rows
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.lane_sums import by_pixel, lanes_added, repeated, store_by_pixel, vectors_of
from polyconv.kernels.language import INT, Buffer, Mask, Module, Value, vector
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import store_out
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add

__all__ = ["ENTRY_WORDS", "LINE", "ChannelSums", "channel_sums_tile"]

LINE = 64
"""Bytes of a cache line."""
ENTRY_WORDS = 2
"""Words of an entry, a tap: its offset in the input, and its number, after which its weights are found."""


class ChannelSums(Signature):
    """Results of some pixels, which lie ``x_pixel`` bytes apart in the input and ``y_pixel`` in the result.

    A pixel has ``vectors`` whole parts of channels, and one more with ``last`` channels, one at least; or a whole one
    that ends with these, where tiles overlap. Biases and scales are those of a vector of results, pixel by pixel.
    Tiles that ask for inputs do so ``early`` bytes behind those that they read.
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
    early: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer


def channel_sums_tile(k: Module, name: str, spec: FusedTile, source: str, lanes: int, part: int, pixels: int,
                      outputs: int, *, apart: bool, spread: bool, overlaps: bool, f16c: bool) -> None:  # fmt: skip
    """Add the tile of some pixels by some output channels, of an input of a dtype.

    Parameters
    ----------
    lanes : int
        Words of a vector.
    part : int
        Words of a pixel at a time: a vector of weights has those of as many outputs as it has such parts.
    apart : bool
        Whether channels do not lie together.
    spread : bool
        Whether those of the result do not, or a residual is read.
    overlaps : bool
        Whether a pixel's last channels are read with some before them, which count no more: there are as many.
    """
    arithmetic, dtype = ARITHMETIC[spec.arithmetic], DTYPES[source]
    kind, words = vector(arithmetic.accumulator, lanes), vector(arithmetic.word, lanes)
    element = {1: arithmetic.accumulator, 2: "i16", 4: "i8"}[arithmetic.channels]
    channels = vector(element, part * arithmetic.channels)
    lying = channels.of(LLVM_NAMES[source])
    shifts = dtype.bits == 8 and (arithmetic.channels == 2 or (arithmetic.channels == 4 and dtype.kind == "i"))
    vectors = vectors_of(outputs + (spec.windows > ""), lanes, part)
    with k.function(name, ChannelSums) as given:
        before = channels.lanes - given.last if overlaps else 0  # channels read once more, with the last
        last = k.span(k.constant(INT, 0) + before, given.last + before, channels.lanes)
        zero_point = k.splat(k.cast("trunc", given.zero_point, channels.scalar), channels.lanes) if shifts else None
        leads = leads_of(given.x_pixel, pixels)
        x_step = given.x_channel * channels.lanes if apart else lying.bytes
        tap_bytes = (given.vectors + 1) * (vectors * kind.bytes)
        first_weights = given.weights + (kind.bytes if spec.windows == "each" else 0)

        def word(place: Buffer, there: Mask | None) -> Value:
            """Channels of a pixel as words, again and again."""
            masked = None if overlaps else there
            if apart:
                value = k.gather(lying, place, given.x_channel, masked)
            else:
                value = k.load(lying, place) if masked is None else k.load_first(lying, place, masked)
            value = widen(k, value, dtype, element, f16c=f16c)
            value = value if zero_point is None else value - zero_point
            if overlaps and there is not None and value.type.is_float:  # Inf and NaN times a weight of 0 would count
                value = k.select(there.bits, value, 0.0)
            if arithmetic.channels > 1:
                value = k.cast("bitcast", value, vector(arithmetic.word, part))
            return repeated(k, value, lanes)

        def added(place: Buffer, b: Buffer, sums: Sequence[Value], there: Mask | None = None) -> list[Value]:
            """The sums with the products of some channels of every pixel."""
            of_b = [k.load(words, b + j * kind.bytes) for j in range(vectors)]
            total = list(sums)
            for r, pixel in enumerate(places_of_rows(k, place, leads, pixels)):
                value = word(pixel, there)
                if spec.asked:
                    k.prefetch(pixel + given.early)
                for j, weight in enumerate(of_b):
                    total[r * vectors + j] = multiply_add(k, arithmetic, value, weight, total[r * vectors + j])
            return total

        with k.loop(0, given.count, carry=[k.constant(kind, 0)] * (pixels * vectors)) as entry:
            tap = given.entries + entry.index * (8 * ENTRY_WORDS)
            begin, weights = given.x + k.word(tap), first_weights + k.word(tap, 1) * tap_bytes
            with k.loop(0, given.vectors, carry=[begin, weights, *entry.values]) as step:
                place, b, *sums = step.values
                step.next(place + x_step, b + vectors * kind.bytes, *added(place, b, sums))
            place, b, *sums = step.results
            if overlaps:
                place = place + (given.last - channels.lanes) * (given.x_channel if apart else lying.element_bytes)
            entry.next(*added(place, b, sums, last))
        _leave(k, spec, given, entry.results, part, pixels, outputs, f16c, spread=spread)


def _leave(k: Module, spec: FusedTile, given: ChannelSums, sums: Sequence[Value], part: int, pixels: int, outputs: int,
           f16c: bool, *, spread: bool) -> None:  # fmt: skip
    """Add the lanes of sums, and store the results of as many pixels together as fill a vector."""
    vectors = len(sums) // pixels
    of_vector = part // vectors
    for first in range(0, pixels, of_vector):
        count = min(of_vector, pixels - first)
        of_pixels = lanes_added(k, sums[first * vectors : (first + count) * vectors], part)
        total = by_pixel(k, spec, given, of_pixels, count, outputs)
        if spread:
            _store_apart(k, spec, given, total, first, count, outputs, f16c)
        else:
            store_by_pixel(k, spec, given, total, given.y + given.y_pixel * first, given.y_pixel, count, outputs,
                           f16c=f16c)  # fmt: skip


def _store_apart(k: Module, spec: FusedTile, given: ChannelSums, total: Value, first: int, pixels: int, outputs: int,
                 f16c: bool) -> None:  # fmt: skip
    """Store results output by output, wherever they lie."""
    block = Block(k, Move(total.type.element, spec.target, "pp", spec.epilogue), vector(total.type.element, pixels),
                  f16c, None, given.y_pixel)  # fmt: skip
    y, residual, zero = given.y + given.y_pixel * first, given.residual + given.r_pixel * first, k.constant(INT, 0)
    store = store_out(block, given.bias, given.scale, residual, given.r_pixel, given.r_channel, given.constants)
    for j in range(outputs):
        of_output = k.shuffle(total, total, range(j, pixels * outputs, outputs))
        store(of_output, y + given.y_channel * j, zero, k.constant(INT, j), None)
