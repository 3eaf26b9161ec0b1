"""Winograd's F(4x4, 3x3) in whole numbers: tiles in, points of weights, and the way back, without any rounding.

Inputs of at most 8 bits besides a sign become points of 16 bits, and so do weights of 8 bits with the rows of their
transform multiplied until they are whole.  Sums of products are taken modulo 2^32, where the way back has 576 times the
result.  Times the inverse of 9 modulo 2^32 that is 64 times the result, which loses nothing as long as the result
is below 2^25.  It must know nothing of problems.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.fused import FusedTile, Out
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.signature import Int, Signature

__all__ = ["EXACT_BELOW", "POINTS", "TILE", "TilesIn", "TilesOut", "points_of_weights", "tiles_in", "tiles_out"]

TILE, POINTS = 4, 6
"""Outputs of a tile, and points, along an axis."""

EXACT_BELOW = 1 << 25
"""Sums smaller than this come back exactly."""

_WEIGHTS = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 6]], np.float32)
"""24 times the transform of Lavin and Gray (2015), the last row 6 times: the way back takes four times its point."""

_NINTH = pow(9, -1, 1 << 32) - (1 << 32)
"""The inverse of 9 modulo 2^32."""

_BLOCK_BYTES = 64
"""Channels of a block, of a tile and a point, lie together: those of 16 bits in a cache line."""


class TilesIn(Signature):
    """A row of tiles, whose pixels and lines lie so many bytes apart, to rows of points of blocks of channels."""

    panel: Buffer
    line: Int
    pixel: Int
    tiles: Int
    target: Buffer
    target_point: Int
    target_block: Int
    channels: Int


class TilesOut(Signature):
    """Sums of a row of tiles, a vector of output channels, to their pixels; so many lanes count."""

    sums: Buffer
    sums_point: Int
    sums_tile: Int
    tiles: Int
    y: Buffer
    line: Int
    pixel: Int
    lanes: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer


def points_of_weights(w: NDArray[np.int8]) -> NDArray[np.int16]:
    """Points (groups, m, c, 36) of weights (groups, m, c, 9)."""
    both = np.einsum("ai,bj->ijab", _WEIGHTS, _WEIGHTS).reshape(9, POINTS * POINTS)
    points: NDArray[np.int16] = np.matmul(w.astype(np.float32), both).astype(np.int16)  # floats hold what is below 2^24
    return points


def tiles_in(k: Module, name: str, lanes: int) -> None:
    """Add the way in, ``lanes`` channels of 16 bits at a time."""
    kind = vector("i16", lanes)
    with k.function(name, TilesIn) as g, k.loop(0, g.tiles) as tile, k.loop(0, g.channels, lanes) as c:
        begin = k.rebase(g.panel + (tile.index * TILE * g.pixel + c.index * 2))
        columns = []
        for _ in range(POINTS):
            at, column = begin, []
            for _ in range(POINTS):
                column.append(k.load(kind, at))
                at = k.rebase(at + g.line)
            columns.append(_points(column))
            begin = k.rebase(begin + g.pixel)
        block, within = (c.index * 2) // _BLOCK_BYTES, (c.index * 2) % _BLOCK_BYTES
        place = k.rebase(g.target + (block * g.target_block + tile.index * _BLOCK_BYTES + within))
        for i in range(POINTS):
            for value in _points([column[i] for column in columns]):
                k.store(value, place)
                place = k.rebase(place + g.target_point)


def tiles_out(k: Module, name: str, spec: FusedTile, lanes: int) -> None:
    """Add the way out of the sums of ``lanes`` output channels, with what follows a sum."""
    kind = vector("i32", lanes)
    with k.function(name, TilesOut) as g:
        out = Out(k, spec, kind, False, g.bias, g.scale, g.constants, g.lanes, "cc")
        with k.loop(0, g.tiles) as tile:
            at, rows = k.rebase(g.sums + tile.index * g.sums_tile), []
            for _ in range(POINTS):
                row = []
                for _ in range(POINTS):
                    row.append(k.load(kind, at))
                    at = k.rebase(at + g.sums_point)
                rows.append(_results(row))
            columns = [_results([row[x] for row in rows]) for x in range(TILE)]
            y = k.rebase(g.y + tile.index * TILE * g.pixel)
            for line in range(TILE):
                sums = [(column[line] * k.constant(kind, _NINTH)).signed_shift(6) for column in columns]
                out.store(sums, 1, y, g.pixel, y, k.constant(INT, 0))
                y = k.rebase(y + g.line)


def _points(d: list[Value]) -> list[Value]:
    """The points 0, 1, -1, 2, -2 and infinity of six inputs: ten times as large at most."""
    four = [v << 2 for v in d]
    a, b = d[4] - four[2], d[3] - four[1]
    e, f = d[4] - d[2], (d[3] - d[1]) << 1
    return [four[0] - four[2] + e, a + b, a - b, e + f, e - f, four[1] - four[3] + (d[5] - d[3])]


def _results(p: list[Value]) -> list[Value]:
    """Four results of the sums at six points, the last of which counts four times."""
    even, odd, more, most = p[1] + p[2], p[1] - p[2], p[3] + p[4], p[3] - p[4]
    return [p[0] + even + more, odd + (most << 1), even + (more << 2), odd + (most << 3) + (p[5] << 2)]
