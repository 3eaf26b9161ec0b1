"""Tables of the tiles of a row: equal ones follow each other in one call, where they multiply all there is.

Those that leave out products with padding are called one by one.  It must not know where inputs lie.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from polyconv.algorithms.dense.driver import TileWords
from polyconv.algorithms.dense.sizes import Sizes
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import channel_tile as most_rows
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.program import Request
from polyconv.lowering.sweep import Sweep
from polyconv.lowering.tiles import edge_address, fused_address

__all__ = ["edge_tables", "walk_tables"]


def walk_tables(r: Request, sweep: Sweep, sizes: Sizes, most: Callable[[int], int], *, fused: bool, asked: int = 0,
                in_place: range = range(0)) -> list[list[TileWords]]:  # fmt: skip
    """Tables of tiles that multiply all there is, of at ``most`` so many rows for so many vectors.

    Those whose outputs are ``in_place`` read the input where it lies.
    """
    def walks(pixels: int, vectors: int, spec: FusedTile) -> list[TileWords]:
        tiles = [(first, rows, in_place.start <= first and first + rows <= in_place.stop)
                 for first, rows in near_equal(pixels, most(vectors))]  # fmt: skip
        found = []
        for (rows, near), alike in itertools.groupby(tiles, lambda tile: tile[1:]):
            (first, *_), *more = alike
            found.append(TileWords(first, 1 + len(more), int(near), fused_address(r, "channel", spec, rows, vectors)))
        return found

    blocks, tables = sizes.blocks, []
    for vectors, cut in ((blocks.vectors, False), (blocks.last_vectors, blocks.last_lanes < blocks.lanes)):
        spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, cut) if fused else of_sums(r.arith.name)
        tables += [walks(pixels, vectors, replace(spec, asked=asked)) for pixels in _row_lengths(sweep, sizes)]
    return tables


def edge_tables(r: Request, sweep: Sweep, sizes: Sizes) -> list[list[TileWords]]:
    """Tables of tiles that leave out products with padding."""
    return [
        [TileWords(first, 1, 0, edge_address(r, rows, vectors)) for first, rows in near_equal(pixels, most)]
        for vectors in (sizes.blocks.vectors, sizes.blocks.last_vectors)
        for most in (most_rows(r.target, r.arith, vectors),)
        for pixels in _row_lengths(sweep, sizes)
    ]


def _row_lengths(sweep: Sweep, sizes: Sizes) -> tuple[int, int]:
    """Outputs of a row of a box, and of one that is cut short; of those that lie flat one axis is cut at most."""
    cut = [axis.out % b or b for axis, b in zip(sweep, sizes.box, strict=True)]
    return sizes.row, math.prod(cut) if sizes.flat else cut[-1]
