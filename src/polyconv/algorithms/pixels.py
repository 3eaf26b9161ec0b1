"""Tiles whose lanes are pixels, over the output channels of a group: cutting, tables, packed weights.

Shared by the algorithms that bring pixels into a panel, however they do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from numpy.typing import NDArray

from polyconv.algorithms.packing import Set, packed_sets
from polyconv.algorithms.program import Request, tile_addresses
from polyconv.kernels.isa import pixel_tiles
from polyconv.kernels.record import Record, Word
from polyconv.kernels.signature import Address, Signature
from polyconv.kernels.tile import PanelTile
from polyconv.target import Target

__all__ = ["Tile", "packed_weights", "panel_tiles", "pixel_tables", "tile_rows"]

S = TypeVar("S", bound=Signature)


class Tile(Record):
    """A set of output channels: its first, how many, and bytes of weights before it and before each further chunk.

    Its tiles have ``most`` vectors; their functions stand at the word ``table`` and two more for each vector.
    """

    first: Word
    rows: Word
    weights: Word
    chunk_weights: Word
    most: Word
    table: Word


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
    addresses: Callable[[int], Sequence[Address[S] | None]]
) -> tuple[list[Address[S] | None], list[Tile]]:
    """Table of tile functions, and a record for every set of output channels.

    Functions of a number of rows are what ``addresses`` gives, first tiles of 1, 2, ... vectors.
    """
    heights = pixel_tiles(r.target)
    functions: list[Address[S] | None] = []
    tables: dict[int, int] = {}
    for rows in sorted({rows for _, rows in tiles}):
        tables[rows] = 2 * len(functions) - 2  # the function of n vectors is at word 2 n
        functions += addresses(rows)
    size = r.arith.bytes
    records = [
        Tile(first, rows, first * entries * size, rows * chunk_entries * size, heights[rows], tables[rows])
        for first, rows in tiles
    ]
    return functions, records


def panel_tiles(r: Request, rows: int) -> Sequence[Address[PanelTile]]:
    """Tiles over a panel of 1, 2, ... vectors."""
    return tile_addresses(r, "pixel", rows, range(1, pixel_tiles(r.target)[rows] + 1))


def packed_weights(r: Request, w: NDArray[Any], tiles: list[tuple[int, int]]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) in streaming order: per group and tile, [channel][tap][row]."""
    _, m, c, taps = w.shape
    sets = [Set(first, rows, rows, first * c * taps, m * c * taps) for first, rows in tiles]
    return packed_sets(r, w, sets, 1, w.size)
