"""Tiles of a pointwise product that read the tensor in place: outputs of a pixel are a matrix times its channels.

Four forms of one contract, all with the epilogue in registers:

* ``channel_point_tile``: lanes are output channels.  Elements of ``rows`` pixels, ``x_pixel`` bytes apart, are
  broadcast against streaming weight vectors; results of a pixel lie together, those of the next ``y_row`` bytes
  further.  Any strides of x will do.
* ``listed_point_tile``: the same where a pixel has the entries of a list, channels of the taps of its window.
* ``pixel_point_tile``: lanes are pixels, which lie together in x and y.  Vectors of pixels are multiplied by
  streaming weights of ``rows`` output channels, whose results lie ``y_row`` bytes apart.
* ``square_point_tile``: the same where the channels of a pixel lie together, for few outputs: squares of pixels by
  channels are transposed in registers.  Weights are there, and zeros, for a whole number of squares.

At an edge (``FusedTile.edge``) the last vector has ``last`` lanes.  Sums add their products in the order of the
channels in all.
"""

from __future__ import annotations

from typing import Any

from polyconv.kernels.fused import FusedTile, Out, ask_for_results, leads_of, places_of_rows
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import Buffer, Mask, Module, Value, vector
from polyconv.kernels.layout import transposed
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.steps import repeated
from polyconv.kernels.tile import ask_early

__all__ = ["ListedPointTile", "PointTile", "channel_point_tile", "listed_point_tile", "pixel_point_tile",
           "square_point_tile"]  # fmt: skip


class PointTile(Signature):
    """Results of some pixels from ``count`` channels each.

    Rows of results and residuals lie ``y_row`` and ``r_row`` bytes apart, so many lanes of the ``last`` vector count;
    what is asked for early lies ``early`` bytes from the input, and ``early_step`` from channel to channel.
    """

    x: Buffer
    x_pixel: Int
    x_channel: Int
    count: Int
    weights: Buffer
    y: Buffer
    y_row: Int
    residual: Buffer
    r_row: Int
    last: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer
    early: Int
    early_step: Int


class ListedPointTile(Signature):
    """The same by a list of ``entries``, instead of channels: offset, and that of a line to ask for meanwhile."""

    x: Buffer
    x_pixel: Int
    entries: Buffer
    count: Int
    weights: Buffer
    y: Buffer
    y_row: Int
    residual: Buffer
    r_row: Int
    last: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer
    early: Int
    early_step: Int


def _ask(k: Module, place: Buffer, lines: int) -> None:
    """Ask for lines from a place on."""
    for line in range(lines):
        k.prefetch(place + 64 * line, far=True)


def channel_point_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, vectors: int,
                       *, f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` pixels by ``vectors`` vectors of output channels to a module."""
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, PointTile) as given:
        out = Out(k, spec, kind, f16c, given.bias, given.scale, given.constants, given.last, "cc")
        y, y_row = given.y, given.y_row
        if spec.written:
            ask_for_results(k, y + y_row * (rows * spec.written), y_row, rows, vectors, out.bytes)
        leads = leads_of(given.x_pixel)
        start = [given.x + given.early, given.x, given.weights, *[k.constant(kind, 0)] * (rows * vectors)]

        def step(_: Value, values: list[Any]) -> list[Any]:
            soon, a, b, *total = values
            _ask(k, soon, spec.asked)
            of_b = [k.load(kind, b + j * kind.bytes) for j in range(vectors)]
            ask_early(k, b, kind, vectors)
            for r, pixel in enumerate(places_of_rows(k, a, leads, rows)):
                word = k.broadcast(kind, pixel)
                for j in range(vectors):
                    total[r * vectors + j] = k.fma(word, of_b[j], total[r * vectors + j])
            return [soon + given.early_step, a + given.x_channel, b + vectors * kind.bytes, *total]

        sums = repeated(k, arithmetic, given.count, start, step)[3:]
        out.store(sums, vectors, y, y_row, given.residual, given.r_row)


def listed_point_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, vectors: int,
                      *, f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` pixels by ``vectors`` vectors of output channels whose entries are listed."""
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, ListedPointTile) as given:
        out = Out(k, spec, kind, f16c, given.bias, given.scale, given.constants, given.last, "cc")
        x, x_pixel, y, y_row = given.x, given.x_pixel, given.y, given.y_row
        if spec.written:
            ask_for_results(k, y + y_row * (rows * spec.written), y_row, rows, vectors, out.bytes)
        leads = leads_of(x_pixel)
        start = [given.entries, given.weights, *[k.constant(kind, 0)] * (rows * vectors)]

        def step(_: Value, values: list[Any]) -> list[Any]:
            entry, b, *total = values
            k.prefetch(x + k.word(entry, 1))
            of_b = [k.load(kind, b + j * kind.bytes) for j in range(vectors)]
            ask_early(k, b, kind, vectors)
            for r, pixel in enumerate(places_of_rows(k, x + k.word(entry), leads, rows)):
                word = k.broadcast(kind, pixel)
                for j in range(vectors):
                    total[r * vectors + j] = k.fma(word, of_b[j], total[r * vectors + j])
            return [entry + 16, b + vectors * kind.bytes, *total]

        sums = repeated(k, arithmetic, given.count, start, step)[2:]
        out.store(sums, vectors, y, y_row, given.residual, given.r_row)


def pixel_point_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, vectors: int,
                     *, f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels to a module."""
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, PointTile) as given:
        out = Out(k, spec, kind, f16c, given.bias, given.scale, given.constants, given.last, "pp")
        x, y, y_row = given.x, given.y, given.y_row
        if spec.written:
            ask_for_results(k, y + vectors * spec.written * out.bytes, y_row, rows, vectors, out.bytes)
        start = [x + given.early, x, given.weights, *[k.constant(kind, 0)] * (rows * vectors)]

        def step(_: Value, values: list[Any]) -> list[Any]:
            soon, a, b, *total = values
            _ask(k, soon, spec.asked)
            pixels = [k.load(kind, a + j * kind.bytes) for j in range(vectors - 1)]
            end = a + (vectors - 1) * kind.bytes
            mask = None if spec.padded else out.mask
            pixels.append(k.load(kind, end) if mask is None else k.load_first(kind, end, mask))
            following = []
            for r in range(rows):
                word = k.broadcast(kind, b + r * arithmetic.bytes)
                following += [k.fma(word, pixels[j], total[r * vectors + j]) for j in range(vectors)]
            return [soon + given.early_step, a + given.x_channel, b + rows * arithmetic.bytes, *following]

        sums = repeated(k, arithmetic, given.count, start, step)[3:]
        out.store(sums, vectors, y, y_row, given.residual, given.r_row)


def square_point_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, vectors: int,
                      *, f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels, whose channels lie together."""
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, PointTile) as given:
        n = given.count
        out = Out(k, spec, kind, f16c, given.bias, given.scale, given.constants, given.last, "pp")

        def add(at: Buffer, b: Buffer, sums: list[Value], mask: Mask | None) -> list[Value]:
            """Add the products of a square of channels; lanes beyond the last pixel take it once more."""
            total = list(sums)
            for j in range(vectors):
                lines = []
                for lane in range(lanes):
                    lines.append(k.load(kind, at) if mask is None else k.load_first(kind, at, mask))
                    beyond = spec.edge and j == vectors - 1
                    at = at + (k.select(given.last > lane + 1, given.x_pixel, 0) if beyond else given.x_pixel)
                for c, pixels in enumerate(transposed(k, lines)):
                    for r in range(rows):
                        word = k.broadcast(kind, b + (c * rows + r) * arithmetic.bytes)
                        total[r * vectors + j] = k.fma(word, pixels, total[r * vectors + j])
            return total

        full = n - n % lanes
        step_bytes = lanes * rows * arithmetic.bytes
        start = [given.x, given.weights, *[k.constant(kind, 0)] * (rows * vectors)]
        with k.loop(0, full, lanes, carry=start) as step:
            a, b, *total = step.values
            step.next(a + kind.bytes, b + step_bytes, *add(a, b, total, None))
        a, b, *total = step.results
        with k.choice(full < n, carry=total) as rest:
            rest.next(*add(a, b, total, k.mask(n - full, lanes)))
        out.store(rest.results, vectors, given.y, given.y_row, given.residual, given.r_row)
