"""Tiles of a pointwise product that read the tensor in place: outputs of a pixel are a matrix times its channels.

Two orientations of one contract ``tile(x, x_pixel, x_channel, n, weights, start, y, y_step, there)``:

* ``channel_point_tile``: lanes are output channels.  Elements of ``rows`` pixels, ``x_pixel`` bytes apart, are
  broadcast against streaming weight vectors; sums start from vectors at ``start`` and are stored ``y_step``
  bytes apart per pixel.  Any strides of x will do.  At an ``edge`` the last vector has ``there`` channels.
* ``pixel_point_tile``: lanes are pixels, which lie together in x and y.  Vectors of pixels are multiplied by
  streaming weights of ``rows`` output channels; sums start from a word per channel and are stored ``y_step`` bytes
  apart per channel.  At an ``edge`` the last vector has ``there`` pixels.

Sums add their products in the order of the channels in both.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.kernels.isa import Arithmetic
from polyconv.kernels.language import Buffer, Mask, Module, Value, vector
from polyconv.kernels.tile import AHEAD

__all__ = ["channel_point_tile", "pixel_point_tile"]

_SIGNATURE = ("buffer", "int", "int", "int", "buffer", "buffer", "buffer", "int", "int")


def _finish(k: Module, sums: list[Value], y: Buffer, y_step: Value, masks: Sequence[Mask | None]) -> None:
    for r in range(0, len(sums), len(masks)):
        for j, mask in enumerate(masks):
            place = y + j * sums[0].type.bytes
            if mask is None:
                k.store(sums[r + j], place)
            else:
                k.store_first(sums[r + j], place, mask)
        y = y + y_step


def channel_point_tile(k: Module, name: str, arithmetic: Arithmetic, lanes: int, rows: int, vectors: int,
                       *, edge: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` pixels by ``vectors`` vectors of output channels to a module."""
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, *_SIGNATURE) as (x, x_pixel, x_channel, n, weights, start, y, y_step, there):
        last = k.mask(there, lanes) if edge else None
        begin = [k.load(kind, start + j * kind.bytes) for j in range(vectors)]
        pixels = [k.rebase(x + x_pixel * r) for r in range(rows)]
        nothing = n * 0
        with k.loop(0, n, carry=[nothing, weights, *(begin * rows)], runs=True) as step:
            at, b, *total = step.values
            of_b = [k.load(kind, b + j * kind.bytes) for j in range(vectors)]
            for j in range(0, vectors * kind.bytes, 64):
                k.prefetch(b + (AHEAD + j))
            following = []
            for r, pixel in enumerate(pixels):
                word = k.broadcast(kind, pixel + at)
                following += [k.fma(word, of_b[j], total[r * vectors + j]) for j in range(vectors)]
            step.next(at + x_channel, b + vectors * kind.bytes, *following)
        _finish(k, step.results[2:], y, y_step, [None] * (vectors - 1) + [last])


def pixel_point_tile(k: Module, name: str, arithmetic: Arithmetic, lanes: int, rows: int, vectors: int,
                     *, edge: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels to a module."""
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, *_SIGNATURE) as (x, _, x_channel, n, weights, start, y, y_step, there):
        last = k.mask(there, lanes) if edge else None
        masks = [None] * (vectors - 1) + [last]
        begin = [k.broadcast(kind, start + r * arithmetic.bytes) for r in range(rows)]
        with k.loop(0, n, carry=[x, weights, *(b for b in begin for _ in masks)], runs=True) as step:
            a, b, *total = step.values
            pixels = [
                k.load(kind, a + j * kind.bytes) if mask is None else k.load_first(kind, a + j * kind.bytes, mask)
                for j, mask in enumerate(masks)
            ]
            following = []
            for r in range(rows):
                word = k.broadcast(kind, b + r * arithmetic.bytes)
                following += [k.fma(word, pixels[j], total[r * vectors + j]) for j in range(vectors)]
            step.next(a + x_channel, b + rows * arithmetic.bytes, *following)
        _finish(k, step.results[2:], y, y_step, masks)
