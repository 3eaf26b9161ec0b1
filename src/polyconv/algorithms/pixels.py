"""Tiles whose lanes are pixels, over the output channels of a group: cutting, tables, packed weights.

Shared by the algorithms that bring pixels into a panel, however they do it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.packing import Set, packed_sets
from polyconv.algorithms.program import Request, tile_addresses
from polyconv.kernels.isa import pixel_tiles
from polyconv.target import Target

__all__ = ["TILE", "packed_weights", "pixel_tables", "tile_rows"]

TILE = ("first", "rows", "weights", "chunk_weights", "most", "table")
"""Words of a set of output channels: its first, how many, bytes of weights before it and before each further
chunk of channels, most vectors of its tiles, and where their functions stand."""


def tile_rows(outputs: int, target: Target) -> list[tuple[int, int]]:
    """Cut a group's output channels into the tile heights there are: (first, rows)."""
    cut, first = [], 0
    for rows in sorted(pixel_tiles(target), reverse=True):
        while outputs - first >= rows:
            cut.append((first, rows))
            first += rows
    return cut


def pixel_tables(
    r: Request, tiles: list[tuple[int, int]], entries: int, chunk_entries: int,
    addresses: Callable[[int], list[int]] | None = None
) -> tuple[list[int], list[int]]:
    """Table of tile functions, and a record (``TILE``) for every set of output channels.

    Functions of a number of rows: tiles of 1, 2, ... vectors, or what ``addresses`` gives.
    """
    heights = pixel_tiles(r.target)
    functions: list[int] = []
    tables: dict[int, int] = {}
    for rows in sorted({rows for _, rows in tiles}):
        tables[rows] = len(functions) - 2  # the function of n vectors is at word 2 n
        found = tile_addresses(r, "pixel", rows, range(1, heights[rows] + 1)) if addresses is None else addresses(rows)
        for address in found:
            functions += (address, 0)
    size = r.arith.bytes
    records = [
        v for first, rows in tiles
        for v in (first, rows, first * entries * size, rows * chunk_entries * size, heights[rows], tables[rows])
    ]  # fmt: skip
    return functions, records


def packed_weights(r: Request, w: NDArray[Any], tiles: list[tuple[int, int]]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) in streaming order: per group and tile, [channel][tap][row]."""
    _, m, c, taps = w.shape
    sets = [Set(first, rows, rows, first * c * taps, m * c * taps) for first, rows in tiles]
    return packed_sets(r, w, sets, 1, w.size)
