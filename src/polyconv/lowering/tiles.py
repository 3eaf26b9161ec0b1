"""Families of tiles: addresses of generated tiles by size, and the cycles of one of their steps.

Tiles that are needed together are compiled together.  It must not know what the tiles sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.fused import FusedTile, PlaceWalk, Walk, WordWalk, fused_channel_tile, fused_pixel_tile
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, pixel_tiles, run_tiles
from polyconv.kernels.isa import channel_tile as most_rows
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import EdgeTile, PanelTile, channel_tile, edge_tile, pixel_tile
from polyconv.lowering.program import Request, S, addresses_of
from polyconv.machine.profile import Rates
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = ["edge_address", "fused_address", "is_fusible", "place_address", "product_instructions", "tile_addresses",
           "tile_cycles", "word_address"]  # fmt: skip

_FAMILY = 7
"""Sizes of tiles that share a kernel: few enough to compile in 50 ms, enough that new extents rarely compile."""


def tile_addresses(r: Request, orientation: str, rows: Sequence[int] | int,
                   vectors: Sequence[int] | int) -> list[Address[PanelTile]]:  # fmt: skip
    """Addresses of a family of tiles, for every number of rows and of vectors."""
    heights = (rows,) if isinstance(rows, int) else tuple(rows)
    widths = (vectors,) if isinstance(vectors, int) else tuple(vectors)
    return r.once((orientation, r.arithmetic, heights, widths), lambda: _family(r, orientation, heights, widths))


def _family(r: Request, orientation: str, heights: tuple[int, ...], widths: tuple[int, ...]
            ) -> list[Address[PanelTile]]:  # fmt: skip
    make = {"channel": channel_tile, "pixel": pixel_tile}[orientation]
    count = lanes(r.target, r.arith)
    sizes = [(n, v) for n in heights for v in widths]
    addresses: list[Address[PanelTile]] = []
    for first in range(0, len(sizes), _FAMILY):
        family = {f"tile{n}x{v}": (n, v) for n, v in sizes[first : first + _FAMILY]}
        label = f"{orientation} {r.arithmetic} {' '.join(family)}"
        found = addresses_of(r, label, PanelTile, family, lambda k, name, size: make(k, name, r.arith, count, *size))
        addresses += found.values()
    return addresses


_EDGES = 3
"""The same for tiles that leave out products with padding, three loops each."""


def edge_address(r: Request, rows: int, vectors: int) -> Address[EdgeTile]:
    """Address of a tile that leaves out products with padding."""
    return r.once(("edge", r.arithmetic, rows, vectors), lambda: _edge_address(r, rows, vectors))


def _edge_address(r: Request, rows: int, vectors: int) -> Address[EdgeTile]:
    first = (rows - 1) // _EDGES * _EDGES + 1
    family = {f"tile{n}": n for n in range(first, min(first + _EDGES, most_rows(r.target, r.arith, vectors) + 1))}
    label, count = f"edge {r.arithmetic} {vectors} {first}-{first + len(family) - 1}", lanes(r.target, r.arith)
    return addresses_of(
        r, label, EdgeTile, family, lambda k, name, n: edge_tile(k, name, r.arith, count, n, vectors)
    )[f"tile{rows}"]  # fmt: skip


def is_fusible(p: Problem) -> bool:
    """Whether the epilogue of a problem is cheap enough for fused tiles."""
    return Epilogue(activation="" if p.activation is None else p.activation.name).is_cheap


def fused_address(r: Request, orientation: str, spec: FusedTile, rows: int, vectors: int) -> Address[Walk]:
    """Address of a fused tile."""
    return r.once((spec, orientation, rows, vectors), lambda: _fused_address(r, orientation, spec, rows, vectors, Walk))


def word_address(r: Request, spec: FusedTile, rows: int, vectors: int) -> Address[WordWalk]:
    """Address of a fused tile of output channels for words of several channels."""
    return r.once((spec, "word", rows, vectors), lambda: _fused_address(r, "channel", spec, rows, vectors, WordWalk))


def place_address(r: Request, spec: FusedTile, rows: int, vectors: int) -> Address[PlaceWalk]:
    """Address of a fused tile of output channels whose pixels are read in place."""
    return r.once((spec, "place", rows, vectors), lambda: _fused_address(r, "channel", spec, rows, vectors, PlaceWalk))


def _fused_address(r: Request, orientation: str, spec: FusedTile, rows: int, vectors: int, signature: type[S]
                   ) -> Address[S]:  # fmt: skip
    arith, f16c = ARITHMETIC[spec.arithmetic], r.target.converts_f16
    count = lanes(r.target, arith)
    by_rows = orientation == "channel"
    make = fused_channel_tile if by_rows else fused_pixel_tile
    tallest = run_tiles(r.target, arith, picking=spec.beside > 0)
    size, most = (rows, tallest[vectors]) if by_rows else (vectors, pixel_tiles(r.target, arith)[rows])
    first = (size - 1) // _FAMILY * _FAMILY + 1
    family = {f"tile{n}": (n, vectors) if by_rows else (rows, n) for n in range(first, min(first + _FAMILY, most + 1))}
    label = f"{orientation} {spec} {vectors if by_rows else rows} {first}-{first + len(family) - 1}"
    return addresses_of(
        r, label, signature, family, lambda k, name, tile: make(k, name, spec, count, *tile, f16c=f16c)
    )[f"tile{size}"]  # fmt: skip


def product_instructions(target: Target, arithmetic: Arithmetic) -> int:
    """Instructions that form a product and add it: two where none does both."""
    return 2 if arithmetic.has_products and not (arithmetic.channels == 2 and target.vnni) else 1


def tile_cycles(rates: Rates, rows: int, vectors: int) -> float:
    """Cycles of one step of a tile: multiply-adds, loads, and the latency of the sums, whichever is longest."""
    return max(rows * vectors / rates.multiply_adds, (rows + vectors) / rates.loads, rates.latency)
