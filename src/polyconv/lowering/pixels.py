"""Sums of a panel of pixels, and their way to the result: what algorithms share whose lanes are pixels.

A group's output channels are cut into sets of as many as a tile has rows.  Tiles of a set go over a panel in which
every tap of every channel is a contiguous vector of pixels.  Sums wait in slots, where the chain of additions goes on
from one chunk of input channels to the next, until a move brings them to their place.  It must not know how the panel
is filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from polyconv.kernels.fused import Walk
from polyconv.kernels.isa import Arithmetic, lanes, pixel_tiles
from polyconv.kernels.language import Buffer, Module, Value
from polyconv.kernels.layout import Move, MoveOut
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import PanelTile
from polyconv.lowering.moves import move_out_address
from polyconv.lowering.packing import Set, packed_sets
from polyconv.lowering.panel import Common, EpilogueTables, Frame, axis_words
from polyconv.lowering.program import Request, epilogue_tables
from polyconv.lowering.tiles import tile_addresses
from polyconv.target import Target

__all__ = [
    "ZERO_BYTES", "OutputSet", "PixelSums", "add_products", "by_heights", "contiguous", "move_sums", "packed_weights",
    "panel_tiles", "pixel_sums", "tile_rows",
]  # fmt: skip

ZERO_BYTES = 512
"""Zeros before the slots, from which sums start: as many as the widest tile has in a row."""


class OutputSet(Record):
    """A set of output channels: its first, how many, and bytes of weights before it and before each further chunk.

    Its tiles have up to ``most`` vectors; their functions stand at the word ``table`` and two more for each vector.
    """

    first: Word
    rows: Word
    weights: Word
    chunk_weights: Word
    most: Word
    table: Word


class PixelSums(Record):
    """Words of the sums of a group's output channels, and of their way out.

    A ``chunk`` of the group's input ``channels`` is in the panel at a time; ``entries`` are the places of its taps
    there.  Sums of neighbouring outputs lie ``output_bytes`` apart.
    """

    channels: Word
    outputs: Word
    chunk: Word
    chunks: Word
    taps: Word
    entries: Memory
    weights: Memory
    w_group: Word
    set_count: Word
    sets: Table[OutputSet]
    functions: Functions[PanelTile | Walk]
    lanes: Word
    lane_bytes: Word
    word_bytes: Word
    slots: Word
    output_bytes: Word
    tables: EpilogueTables
    move_out: Function[MoveOut]


def add_products(k: Module, p: PixelSums, of_set: OutputSet, panel: Buffer, group: Value, chunk: Value,
                 workspace: Buffer, zeros: Value, slot: Value, vectors: Value) -> None:  # fmt: skip
    """Add the products of a chunk, for a set of outputs, to the sums of so many vectors of pixels.

    Parameters
    ----------
    panel : Buffer
        The first pixel of the first tap.
    zeros, slot : Value
        Where in the workspace there are zeros, and the first sum.
    """
    channels = k.minimum(p.chunk, p.channels - chunk * p.chunk)
    weights = p.weights + (group * p.w_group + of_set.weights + chunk * of_set.chunk_weights)
    begins = chunk.equals(0)
    with k.loop(0, vectors, of_set.most) as v:
        here, at = k.minimum(vectors - v.index, of_set.most), v.index * p.lane_bytes
        k.call(p.functions.at_word(of_set.table + here * 2), PanelTile(
            panel + at, channels * p.taps, p.entries, weights,
            workspace + k.select(begins, zeros, slot + at), k.select(begins, 0, p.output_bytes),
            workspace + (slot + at), p.output_bytes,
        ))  # fmt: skip


def move_sums(k: Module, p: PixelSums, c: Common, frame: Frame, sums: Buffer, group: Value, first: Value, count: Value,
              pixels: Value, y: Value, r: Value) -> None:  # fmt: skip
    """Move a row of sums of some output channels of a group to the result.

    Parameters
    ----------
    first, count : Value
        The channels.
    y, r : Value
        Offsets of the row's first pixel in result and residual, for the group's first channel.
    """
    last, channel = axis_words(c, c.axes - 1), (group * p.outputs + first) * p.word_bytes
    k.call(p.move_out, MoveOut(
        sums, p.word_bytes, p.output_bytes, frame.y + (y + first * c.y_c), last.y_stride, c.y_c, pixels, count,
        p.tables.bias + channel, p.tables.scale + channel,
        frame.residual + (r + first * c.r_c), last.r_stride, c.r_c, p.tables.constants,
    ))  # fmt: skip


def tile_rows(outputs: int, target: Target, arithmetic: Arithmetic) -> list[tuple[int, int]]:
    """Cut a group's output channels into the tile heights there are: (first, rows)."""
    return by_heights(outputs, pixel_tiles(target, arithmetic))


def by_heights(outputs: int, heights: Iterable[int]) -> list[tuple[int, int]]:
    """Cut a group's output channels into some tile heights, the tallest first: (first, rows)."""
    cut, first = [], 0
    for rows in sorted(heights, reverse=True):
        while outputs - first >= rows:
            cut.append((first, rows))
            first += rows
    return cut


_FEW_CHANNELS = 8
"""Fewer channels are cheaper moved one by one than through squares of channels and pixels."""


def contiguous(found: str, channels: int) -> str:
    """Which axes a move of so many channels takes as contiguous, of those that are."""
    return "any" if found in ("pc", "cp") and channels < _FEW_CHANNELS else found


def panel_tiles(r: Request, rows: int) -> Sequence[Address[PanelTile]]:
    """Tiles over a panel of 1, 2, ... vectors."""
    return tile_addresses(r, "pixel", rows, range(1, pixel_tiles(r.target, r.arith)[rows] + 1))


def pixel_sums(
    r: Request, weights: NDArray[Any], sets: Sequence[tuple[int, int]], places: Sequence[int], *, taps: int, chunk: int,
    slots: int, output_bytes: int, along: str, channels: int | None = None,
    functions_of: Callable[[int], Sequence[Address[PanelTile | Walk] | None]],
) -> PixelSums:  # fmt: skip
    """The words of sums.

    Parameters
    ----------
    weights : array
        From ``packed_weights``.
    sets : sequence of (int, int)
        From ``tile_rows``.
    places : sequence of int
        Bytes from the panel's begin to what every tap of every channel of a chunk meets, for the first pixel.
    taps, chunk : int
        Taps of a channel, and input channels of a chunk.
    slots, output_bytes : int
        Where slots begin in the workspace, and bytes between the sums of neighbouring outputs.
    along : str
        Which axes lie contiguous on the way out, as a ``Move`` spells it.
    channels : int, optional
        Input channels of a group, where each tap of one counts as one.
    functions_of : callable
        Gives the tiles of so many rows: those of 1, 2, ... vectors come first.
    """
    p, arith, heights = r.problem, r.arith, pixel_tiles(r.target, r.arith)
    group_in = p.c // p.groups if channels is None else channels
    group_out, size = sum(rows for _, rows in sets), r.arith.bytes
    functions: list[Address[PanelTile | Walk] | None] = []
    tables: dict[int, int] = {}
    for rows in sorted({rows for _, rows in sets}):
        tables[rows] = 2 * len(functions) - 2  # the function of n vectors is at word 2 n
        functions += functions_of(rows)
    records = [
        OutputSet(first, rows, first * group_in * taps * size, rows * chunk * taps * size, heights[rows], tables[rows])
        for first, rows in sets
    ]
    return PixelSums(
        channels=group_in, outputs=p.m // p.groups, chunk=chunk, chunks=max(1, -(-group_in // chunk)), taps=taps,
        entries=[*places], weights=weights, w_group=group_out * group_in * taps * size, set_count=len(sets),
        sets=records, functions=functions, lanes=lanes(r.target, arith), lane_bytes=r.target.vector_bytes,
        word_bytes=size, slots=slots, output_bytes=output_bytes, tables=epilogue_tables(r),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, along, r.epilogue)),
    )  # fmt: skip


def packed_weights(r: Request, w: NDArray[Any], sets: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) in streaming order: per group and set, [channel][tap][row]."""
    _, m, c, taps = w.shape
    order = [Set(first, rows, rows, first * c * taps, m * c * taps) for first, rows in sets]
    return packed_sets(r, w, order, 1, w.size)
