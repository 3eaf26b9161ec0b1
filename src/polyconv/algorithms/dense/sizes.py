"""Sizes of ``direct`` and ``stem``: what a box of outputs takes, its blocks of output channels, panel and workspace.

It must not know which boxes are good.
"""

from __future__ import annotations

import math

from polyconv.dataclass import dataclass
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.boxes import near_equal_sizes
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Lines, Sweep, box_count, lines
from polyconv.problem.problem import Problem

__all__ = [
    "ZEROS_BYTES", "Blocks", "Sizes", "all_channels", "blocks_of", "channel_words", "of_box", "panel_blocks",
    "steps_of", "weight_bytes",
]  # fmt: skip

ZEROS_BYTES = 256
"""Zeros in the workspace that sums start from."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of output channels of a group; the last may have fewer vectors.

    Parameters
    ----------
    lanes : int
        Channels of a vector.
    vectors, last_vectors : int
        Of a block, and of the last one.
    count : int
    last_outputs : int
        Channels of the last block.
    """

    lanes: int
    vectors: int
    last_vectors: int
    count: int
    last_outputs: int

    @property
    def outputs(self) -> int:
        """Channels of a block but the last."""
        return self.vectors * self.lanes

    @property
    def last_lanes(self) -> int:
        """Channels of the last vector."""
        return (self.last_outputs - 1) % self.lanes + 1


def blocks_of(s: Situation, arith: Arithmetic, vectors: int) -> Blocks:
    """The output channels of a group in blocks of so many vectors."""
    outputs, lane = s.problem.m // s.problem.groups, lanes(s.target, arith)
    count = max(1, -(-outputs // (vectors * lane)))
    left = outputs - (count - 1) * vectors * lane
    return Blocks(lane, vectors, max(1, -(-left // lane)), count, left)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one sweep.

    Parameters
    ----------
    box : tuple of int
        Outputs of a box.
    held : tuple of Lines
        Lines of its inputs along every axis.
    blocks : Blocks
        Of output channels.
    chunk, chunks : int
        Input channels that the panel holds at a time, and how many times.
    row_bytes, line_bytes, block_bytes, panel : int
        Of the panel: from pixel to pixel, line to line and block to block of channels, and all of it.
    slot_row, slot_block : int
        Bytes of the sums of a row and of a block, where they wait for the next chunk; else 0.
    workspace : int
    flat : bool
        Whether tiles run across rows: those of windows of one tap follow each other in the panel.
    splits : int
        Items that share the blocks of a box.
    """

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    blocks: Blocks
    chunk: int
    chunks: int
    row_bytes: int
    line_bytes: int
    block_bytes: int
    panel: int
    slot_row: int
    slot_block: int
    workspace: int
    flat: bool = False
    splits: int = 1

    @property
    def row(self) -> int:
        """Outputs that tiles have in a row."""
        return math.prod(self.box) if self.flat else self.box[-1]

    def boxes(self, sweep: Sweep) -> int:
        """Boxes of the sweep."""
        return box_count(sweep, self.box)

    def choices(self, most_rows: int) -> dict[str, object]:
        """What was chosen, by name, if tiles have at most so many rows."""
        rows = max((n for n, _ in near_equal_sizes(self.row, most_rows)), default=0)
        tile = f"{rows} outputs by {self.blocks.vectors} vectors of channels"
        found: dict[str, object] = {"tile": tile, "box": self.box}
        return found if self.chunks == 1 else {**found, "input channels at a time": self.chunk}

    def chunk_steps(self, p: Problem, arith: Arithmetic, sweep: Sweep) -> int:
        """Steps of a tile in a chunk: taps of its words of input channels."""
        return channel_words(min(self.chunk, p.c // p.groups), arith) * math.prod(axis.taps for axis in sweep)


def of_box(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...], chunk: int, blocks: Blocks, *,
           flat: bool = False) -> Sizes:  # fmt: skip
    """The sizes with such boxes, chunks of input channels and blocks of output channels."""
    group_in = s.problem.c // s.problem.groups
    held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
    row_bytes = ROW_WORDS * arith.bytes
    # an odd number of cache lines between lines and blocks: no two share all their sets
    line_bytes = (max(1, held[-1].count) | (not flat)) * row_bytes
    block_bytes = math.prod(max(1, h.count) for h in held[:-1]) * line_bytes + 64
    chunks = max(1, -(-group_in // chunk))
    panel = panel_blocks(min(chunk, max(group_in, 1)), arith) * block_bytes
    row, rows = (math.prod(box), 1) if flat else (box[-1], math.prod(box[:-1]))
    row_sums = row * blocks.outputs * arith.bytes
    slot_row = row_sums if chunks > 1 else 0
    slot_block = slot_row * rows
    sums = slot_block * blocks.count if chunks > 1 else row_sums
    workspace = header_bytes(len(sweep)) + panel + ZEROS_BYTES + sums + 128
    return Sizes(
        box, held, blocks, chunk, chunks, row_bytes, line_bytes, block_bytes, panel, slot_row, slot_block, workspace,
        flat,
    )  # fmt: skip


def all_channels(s: Situation, arith: Arithmetic) -> int:
    """The input channels of a group, rounded up to blocks of the panel."""
    return max(1, panel_blocks(s.problem.c // s.problem.groups, arith)) * ROW_WORDS * arith.channels


def panel_blocks(channels: int, arith: Arithmetic) -> int:
    """Blocks of the panel that hold some input channels."""
    return -(-channels // (ROW_WORDS * arith.channels))


def channel_words(channels: int, arith: Arithmetic) -> int:
    """Words of the panel that hold some input channels."""
    return -(-channels // arith.channels)


def steps_of(s: Situation, arith: Arithmetic, sweep: Sweep) -> int:
    """Steps of a tile: taps of all words of a group's input channels."""
    return channel_words(s.problem.c // s.problem.groups, arith) * math.prod(axis.taps for axis in sweep)


def weight_bytes(s: Situation, arith: Arithmetic, sweep: Sweep, blocks: Blocks) -> int:
    """Bytes of the packed weights of a sweep, as if last blocks were whole."""
    return steps_of(s, arith, sweep) * s.problem.groups * blocks.count * blocks.outputs * arith.bytes
