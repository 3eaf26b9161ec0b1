"""Tiles of few output channels: lanes are the words of a window's line, whose products are added at the end.

A step multiplies some neighbouring words of a pixel's window, as many as a vector has lanes or a part of these again
and again, by those of as many outputs' weights as there are parts.  So few lanes are idle, whether lines or outputs are
few.  The sums of all lanes become vectors of results: pixel by pixel, its outputs in order.  It must not know how large
a problem is.
"""

from __future__ import annotations

from polyconv.kernels.fused import FusedTile, WordWalk, leads_of, places_of_rows
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.lane_sums import by_pixel, lanes_added, repeated, store_by_pixel, vectors_of
from polyconv.kernels.language import Module, vector
from polyconv.kernels.tile import multiply_add

__all__ = ["inner_tile"]

def inner_tile(k: Module, name: str, spec: FusedTile, lanes: int, part: int, rows: int, outputs: int) -> None:
    """Add the tile of ``rows`` pixels by ``outputs`` output channels, no more together than lanes, to a module.

    Every ``part`` lanes are words of an output: a vector of weights holds as many outputs as it has parts.  An entry is
    (offset, parts, parts of all outputs' weights before it).  Biases and scales are those of a vector of results.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    vectors = vectors_of(outputs + (spec.windows > ""), lanes, part)
    with k.function(name, WordWalk) as g:
        first = g.weights + (kind.bytes if spec.windows == "each" else 0)
        leads = leads_of(g.row)
        with k.loop(0, g.tiles, carry=[g.panel, g.y]) as tile:
            pixels, y = tile.values
            with k.loop(0, g.count, carry=[k.constant(kind, 0)] * (rows * vectors)) as entry:
                place = g.entries + entry.index * 24
                begin = first + k.word(place, 2) * (vectors * words.bytes)
                carry = [pixels + k.word(place), begin, *entry.values]
                with k.loop(0, k.word(place, 1), carry=carry, runs=True) as step:
                    a, b, *total = step.values
                    weights = [k.load(words, b + j * words.bytes) for j in range(vectors)]
                    for r, pixel in enumerate(places_of_rows(k, a, leads, rows)):
                        value = repeated(k, k.load(vector(words.element, part), pixel), lanes)
                        for j, weight in enumerate(weights):
                            total[r * vectors + j] = multiply_add(k, arithmetic, value, weight, total[r * vectors + j])
                    step.next(a + part * arithmetic.bytes, b + vectors * words.bytes, *total)
                entry.next(*step.results[2:])
            of_vector = part // vectors  # pixels
            for begins in range(0, rows, of_vector):
                end = min(begins + of_vector, rows)
                sums = lanes_added(k, entry.results[begins * vectors : end * vectors], part)
                found = by_pixel(k, spec, g, sums, end - begins, outputs)
                store_by_pixel(k, spec, g, found, y + g.y_row * begins, g.y_row, end - begins, outputs)
            tile.next(pixels + g.row * rows, y + g.y_row * rows)
