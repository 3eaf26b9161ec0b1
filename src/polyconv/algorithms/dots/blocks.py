"""Small groups of small integers: the words of a pixel's channels as they lie fill vectors, of several groups each.

A box of outputs gets a panel of its inputs, channels together, by the driver that ``dense`` has: a block of outputs is
of the channels of a vector of words.  Any rank, stride, dilation, pads and layout.  It must not know how a tile
multiplies its words.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.driver import (
    DotTile,
    DotWords,
    common_words,
    driver_address,
    finished_in_registers,
    result_words,
)
from polyconv.algorithms.dots.form import RUN_PIXELS, ChannelsForm, Part, Sizes
from polyconv.algorithms.dots.panel import panel_words
from polyconv.algorithms.dots.situations import channel_bytes, narrow_arithmetic, padding_of, with_bias
from polyconv.algorithms.dots.situations import integer_refusal as no_dots
from polyconv.algorithms.form import Refusal
from polyconv.dataclass import dataclass
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.fused import FusedTile, WordWalk, of_sums
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.layout import Move
from polyconv.kernels.record import counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxes, near_equal_sizes, rows_together, thread_parts
from polyconv.lowering.moves import along_in, along_out, move_in_address
from polyconv.lowering.panel import RowLists
from polyconv.lowering.program import Request, Step
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Lines, Sweep, box_count, line_pixels, lines, sweeps
from polyconv.lowering.traffic import far_cycles
from polyconv.runtime.arrays import aligned

__all__ = ["Block", "BlocksForm", "block_channels", "line_offsets", "refusal", "row_step"]

Pixels: TypeAlias = Callable[[Situation, Sweep, int], tuple[Lines, int, int]]
"""``BlocksForm.pixels``."""

_TURN_CYCLES = 50.0
"""Of turning 16 pixels of a block from planes, or back, on a CPU with masks: measured on Zen 5."""
_APART_CYCLES, _APART_FEW = 330.0, 600.0
"""The same of squares of pixels that lie apart by as many channels as a vector has numbers of 16 bits, and of a run's
last ones, which need masks.  Measured on Zen 5 by pixels 5 apart: 200 to 330 in runs of 64, 550 to 800 in 10."""
_LEAVING, _LEAVING_APART = {"rescaled": 1.5, "bytes": 0.4, "results": 2.0, "turned": 1.5, "sums": 6.0}, 7.0
"""Cycles in which a pixel's results of a block leave, for a vector of sums: rescaled, as the lowest bytes of sums, as
sums that are results, bytes turned to planes, and others by slots; and more where pixels of planes lie apart.  Measured
on Zen 5."""
_LEAST_ROWS = 8
"""Of outputs of a box of one of several threads, unless each would have none: lines that two boxes need come twice."""
_PANEL_SHARE = 5 / 16
"""Of a second-level cache, for the workspace of a thread."""
_EACH_CHUNK, _EVEN = 0.004, 1.25
"""Share of an image's time that a chunk of channels takes for itself; and the busiest thread's share by a fair one, up
to which chunks are better than rows."""


def refusal(s: Situation) -> Refusal | None:
    """Why a problem is none of groups of small integers; None if it is one."""
    p = s.problem
    if (reason := no_dots(s)) is not None:
        return reason
    return None if p.groups and p.c else "needs channels"


@dataclass(frozen=True, slots=True)
class Block:
    """How the vector of words of a block is multiplied.

    Parameters
    ----------
    weights : array
        Of all blocks.
    rows : RowLists
        Entries of rows of outputs.
    channels : tuple of int
        For every lane of every sum the output of a block that it is of.
    most : int
        Rows of the largest tile; 0 if the only one walks along all of a row.
    tile : callable
        ``tile(spec, rows)``: address of a tile.
    word : int
        Bytes in the panel between the words that a tile takes one after the other.
    phases : int
        Rows of a tile are outputs so far apart.
    """

    weights: NDArray[Any]
    rows: RowLists
    channels: tuple[int, ...]
    most: int
    tile: Callable[[FusedTile, int], Address[WordWalk]]
    word: int
    phases: int = 1


@dataclass(frozen=True, slots=True)
class BlocksForm(ChannelsForm):
    """Blocks of the outputs of some input channels."""

    @classmethod
    def of(cls, s: Situation) -> Self:
        """That of a situation which has one."""
        arith = narrow_arithmetic(s)
        found = [(sweep, _fitting(s, arith, sweep, cls.pixels)) for sweep in sweeps(s.problem)]
        return cls(s, tuple(Part(sweep, sizes, sizes) for sweep, sizes in found), arith)

    @staticmethod
    def pixels(s: Situation, sweep: Sweep, outputs: int) -> tuple[Lines, int, int]:
        """The pixels of a line of the panel for so many outputs, the step between them, and pixels read behind."""
        return *line_pixels(sweep[-1], outputs), 0

    @abstractmethod
    def products(self, sweep: Sweep, sizes: Sizes) -> float:
        """Cycles of an image's products or loads of their operands, and of what follows sums."""

    @abstractmethod
    def block(self, r: Request, sweep: Sweep, sizes: Sizes) -> Block:
        """How blocks of a request are multiplied."""

    def leaving(self, last: Axis) -> float:
        """Cycles in which the results of a pixel of a block leave."""
        p = self.s.problem
        kind = "bytes" if p.layout == "NHWC" else "turned"
        if p.y_dtype.bits > 8:
            kind = "results" if p.layout == "NHWC" and p.y == "i32" and p.activation is None else "sums"
        each = _LEAVING["rescaled" if p.quantisation is not None and p.quantisation.rescales else kind]
        apart = p.layout == "NCHW" and last.out_step > 1
        return _vectors(self.s, self.arith) * (each + _LEAVING_APART * apart)

    def cycles(self, sweep: Sweep, sizes: Sizes) -> tuple[float, float]:
        """Cycles of an image's products, with what follows sums, and of its moves."""
        p, count = self.s.problem, box_count(sweep, sizes.box)
        *outer, run = (max(1, h.count) for h in sizes.held)
        lines, pixels = math.prod(outer), math.prod(sizes.box) * count
        held, wide = lines * run, self.s.target.vector_bytes
        brought, left = sizes.pixel_bytes / wide, sizes.blocks * sizes.vectors / self.arith.channels
        if p.layout == "NHWC":
            moves = count * (400 + held * brought * 3.0)
        elif self.s.target.has_masks:
            turned = self._turning(sizes) * brought * -(-sweep[-1].out // sizes.box[-1])
            for axis, block, h in zip(sweep[:-1], sizes.box, sizes.held, strict=False):
                turned *= _lines_within(axis, block, h)
            moves = count * 400 + turned + pixels / 16 * left * _TURN_CYCLES
        else:
            moves = count * (400 + held * brought * 8.0) + pixels * left * 10.0
        return self.products(sweep, sizes), moves + far_cycles(self.s, count * held * p.c * p.x_dtype.itemsize)

    def _turning(self, sizes: Sizes) -> float:
        """Cycles in which a line of planes becomes pixels, for a vector of bytes of each."""
        run = max(1, sizes.held[-1].count)
        if sizes.step == 1:
            return -(-run // 16) * _TURN_CYCLES
        square = self.s.target.vector_bytes // 2
        runs = [divmod(pixels, square) for _, pixels, _ in sizes.held[-1].runs]
        return sum(whole * _APART_CYCLES + (rest > 0) * _APART_FEW for whole, rest in runs)

    def step(self, r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
        """Step of a sweep."""
        block = self.block(r, sweep, sizes)
        p, arith, last, channels = r.problem, r.arith, sweep[-1], block_channels(r.situation, r.arith)
        chunks, of_each = -(-p.c // channels) // max(1, sizes.blocks), len(block.channels)
        r = with_bias(r, r.weights(sweep), padding_of(r))
        in_registers = _leaves_finished(r, last)
        if in_registers and p.y_dtype.bits == 8:
            r = _by_sums(r, sizes.blocks * chunks, block.channels)
        spec = FusedTile(arith.name, p.y, r.epilogue) if in_registers else of_sums(arith.name)
        common, items = common_words(r, sweep, sizes, chunks)
        edge = last.out % sizes.box[-1] or sizes.box[-1]
        tiles = _tiles(sizes, spec, edge, block, cut=in_registers and p.c % channels > 0)
        of_block = block.weights.nbytes // (sizes.blocks * chunks)
        move = Move(p.x, f"i{8 * channel_bytes(arith)}", along_in(r, replace(last, stride=sizes.step), "c"))
        outputs, of_chunk = p.m // chunks - (sizes.blocks - 1) * of_each, of_block * sizes.blocks
        values = DotWords(
            common=common, panel=panel_words(r, sizes, p.c // chunks, move_in_address(r, move), last),
            row_step=row_step(sweep, sizes), word_step=block.word, phases=block.phases,
            source_block=channels * channel_bytes(arith), rows=block.rows, block_lists=0, bias_list=0,
            weights=block.weights, w_group=of_chunk, w_block=of_block, w_last=of_chunk - of_block,
            w_last_group=of_chunk, table_group=p.m // chunks * arith.bytes, table_block=of_each * arith.bytes,
            blocks=sizes.blocks, split_blocks=-(-sizes.blocks // sizes.splits), block_outputs=of_each,
            last_outputs=outputs, block_lanes=of_each, last_lanes=outputs,
            tiles=tiles, table_words=counted_words(DotTile, tiles),
            results=result_words(r, sweep, sizes, lanes(r.target, arith), in_registers=in_registers),
        )  # fmt: skip
        return Step(driver_address(r), filled(values, keep), items)


def _lines_within(axis: Axis, block: int, held: Lines) -> float:
    """Lines of all boxes along an axis that lie inside the input: those of the padding are only filled."""
    span = max(held.positions, default=-1) + 1
    begins = range(-axis.pad, axis.out * axis.stride - axis.pad, max(1, block * axis.stride))
    within = sum(max(0, min(begin + span, axis.inp) - max(begin, 0)) for begin in begins)
    return held.count * within / max(1, span)


def _fitting(s: Situation, arith: Arithmetic, sweep: Sweep, pixels: Pixels) -> Sizes:
    """Sizes of the largest boxes that fit, of all blocks or of a chunk of them; every thread has a few."""
    extents = tuple(axis.out for axis in sweep)
    blocks = max(1, -(-s.problem.c // block_channels(s, arith)))
    chunks = _chunks(s, arith, blocks)
    images, wanted = (s.problem.n or 0) * chunks, 4 * s.threads if chunks == 1 else 1
    start = (*extents[:-1], min(extents[-1], 512))
    if s.threads > 1 and images < wanted:
        axis = 0 if len(extents) == 1 or extents[0] >= s.threads else len(extents) - 2
        each = max(1, min(4, extents[axis] // (_LEAST_ROWS * s.threads)))
        parts = -(-each * s.threads // max(1, images))
        start = tuple(max(1, -(-e // parts)) if a == axis else e for a, e in enumerate(start))
    budget = s.budget(s.profile.cache("l2", _PANEL_SHARE))

    def sizes(box: tuple[int, ...]) -> Sizes:
        return _sizes(s, arith, sweep, box, blocks // chunks, pixels)

    found = sizes(boxes(start, lambda box: sizes(box).workspace, budget))
    items = images * box_count(sweep, found.box)
    return replace(found, splits=thread_parts(s.threads, items, found.blocks, 0.3) if chunks == 1 else 1)


def _chunks(s: Situation, arith: Arithmetic, blocks: int) -> int:
    """Into how many chunks of whole blocks channels are cut for threads: planes of rows by several share their lines.

    Measured on two threads: 14 x 14 and 7 x 7 pixels of 384 to 960 channels in half the time, that in rows took no
    less than on one thread.
    """
    batch = max(1, s.problem.n or 0)
    if s.threads == 1 or s.problem.layout == "NHWC" or s.problem.c % block_channels(s, arith):
        return 1

    def busiest(chunks: int) -> float:
        return -(-batch * chunks // s.threads) / (batch * chunks)

    best = min((n for n in range(1, blocks + 1) if blocks % n == 0), key=lambda n: busiest(n) + _EACH_CHUNK * n)
    return best if busiest(best) <= _EVEN / s.threads else 1


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...], blocks: int, pixels: Pixels) -> Sizes:
    wide = s.target.vector_bytes
    run, step, behind = pixels(s, sweep, box[-1])
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], box[:-1], strict=True)), run)
    pixel = blocks * block_channels(s, arith) * channel_bytes(arith)
    line = run.count * pixel
    panel = -(-(math.prod(max(1, h.count) for h in held[:-1]) * line + behind * pixel) // wide) * wide + 64
    run_rows = rows_together(sweep, box, RUN_PIXELS)
    vectors = _vectors(s, arith)
    slots = run_rows * box[-1] * vectors * wide
    return Sizes(box, held, step, False, False, pixel, line, panel, panel, vectors, vectors, blocks, run_rows, slots)


def block_channels(s: Situation, arith: Arithmetic) -> int:
    """Input channels of a block: those of a vector, or of as many words of them as have all their outputs in sums."""
    return lanes(s.target, arith) * max(1, arith.channels // _times(s))


def _vectors(s: Situation, arith: Arithmetic) -> int:
    """Vectors of sums of a block."""
    return max(1, arith.channels // _times(s)) * _times(s)


def _times(s: Situation) -> int:
    """Outputs of an input channel."""
    return max(1, s.problem.m // s.problem.c)


def _leaves_finished(r: Request, last: Axis) -> bool:
    """Whether results are finished where their sums are: bytes, and sums that lie together and are results."""
    if r.residual is not None or not finished_in_registers(r, last):
        return False
    are_results = r.problem.y == "i32" and replace(r.epilogue, bias=False) == Epilogue()
    return r.problem.y_dtype.bits == 8 or (are_results and along_out(r, last, "c") == "cc")


def row_step(sweep: Sweep, sizes: Sizes) -> int:
    """Bytes in the panel between pixels of neighbouring outputs."""
    return sizes.pixel_bytes * (sweep[-1].stride // sizes.step)


def line_offsets(sizes: Sizes) -> list[int]:
    """Bytes in the panel before the lines that taps of the outer axes meet, for the first outputs of a box."""
    found = [0]
    for h in sizes.held[:-1]:
        found = [o * h.count + t for o in found for t in h.start]
    return [o * sizes.line_bytes for o in found]


def _by_sums(r: Request, blocks: int, channels: tuple[int, ...]) -> Request:
    """The request with biases and scales in the order of the lanes of sums, for whole blocks."""

    def ordered(table: NDArray[Any] | None) -> NDArray[Any] | None:
        if table is None:
            return None
        whole, found = np.zeros((blocks, len(channels)), table.dtype), aligned((blocks * len(channels),), table.dtype)
        whole.reshape(-1)[: table.size] = table
        found[...] = whole[:, channels].reshape(-1)
        return found

    return replace(r, bias=ordered(r.bias), scale=ordered(r.scale))


def _tiles(sizes: Sizes, spec: FusedTile, edge: int, block: Block, *, cut: bool) -> list[list[DotTile]]:
    """The tables of tiles; those of the last block mask its last channels where it is cut."""
    tables: list[list[DotTile]] = []
    for is_cut, is_there in ((False, sizes.blocks > 1), (cut, True)):
        for pixels in (sizes.box[-1], edge):
            table: list[DotTile] = []
            for phase in range(min(block.phases, pixels) if is_there else 0):
                first, count = phase, -(-(pixels - phase) // block.phases)
                for rows, times in near_equal_sizes(count, block.most) if block.most else [(1, count)]:
                    table.append(DotTile(first, times, block.tile(replace(spec, edge=is_cut), rows)))
                    first += rows * times * block.phases
            tables.append(table)
    return tables
