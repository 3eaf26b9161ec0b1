"""Direct convolution with output channels in the lanes: dense, any rank, stride, dilation, group, pads, layout.

A box of outputs gets a zero-padded panel of its inputs, and a tile reduces it, entry by entry, against packed weights.
Taps that lie in the padding of outer axes for a whole row of outputs are left out: they would add zeros.
Cost: the products, with lanes filled to m/groups of a multiple of the vector, plus one pass over input and output.
Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from typing import Any, Self

from polyconv.algorithms.dense.channel_panel import PanelWords
from polyconv.algorithms.dense.driver import DirectWords, TileWords, address
from polyconv.algorithms.dense.entries import Entries, Places, entries_of, in_panel
from polyconv.algorithms.dense.plan import pieces_of, sizes_of
from polyconv.algorithms.dense.price import (
    cycles_at_least,
    cycles_of,
    is_fused,
    missed_ends,
    row_bands,
    weights_are_far,
)
from polyconv.algorithms.dense.sizes import (
    ZEROS_BYTES,
    Sizes,
    channel_words,
    weight_bytes,
)
from polyconv.algorithms.dense.tiles import edge_tables, walk_tables
from polyconv.algorithms.dense.weights import block_words
from polyconv.algorithms.form import Form, Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.kernels.isa import channel_tile as most_rows
from polyconv.kernels.layout import Move
from polyconv.kernels.record import counted_words, filled
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.bands import bands_table
from polyconv.lowering.boxes import ahead_words, boxed_words, near_equal
from polyconv.lowering.gaps import gap_bytes, gap_step
from polyconv.lowering.moves import along_in, along_out, move_in_address, move_out_address, moved_apart, moved_by_planes
from polyconv.lowering.panel import Common, header_bytes
from polyconv.lowering.program import Program, Request, Step, epilogue_tables, program_of
from polyconv.lowering.situation import Situation, accumulator_arithmetic, has_pairs, image_bytes
from polyconv.lowering.sweep import Sweep

__all__ = ["DirectForm", "at_least", "forms", "refusal", "sweep_step"]

_BLOCK_WEIGHTS = 0.5
"""Share of a second-level cache: weights of a block of outputs up to this are asked for before they are needed."""

_RESULT_BYTES = 1.0
"""Share of a second-level cache: results beyond it come from afar when they are written, and are asked for before."""


def refusal(s: Situation) -> str | None:
    """Why ``direct`` has no form; None if it has one."""
    if s.problem.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {s.problem.op}"
    return None if s.finite else "weights hold Inf or NaN, which would meet the zeros of the padding"


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    return refusal(s) or (DirectForm.of(s),)


def at_least(s: Situation) -> float:
    """Cycles that ``direct`` takes whatever its boxes and tiles."""
    return cycles_at_least(s, ARITHMETIC[_arithmetic(s)])


def _arithmetic(s: Situation) -> str:
    """Dot products of bf16 pairs where the CPU has them; else the accumulator's."""
    pairs = has_pairs(s) and s.problem.c // s.problem.groups > 1
    return "bf16" if pairs else accumulator_arithmetic(s)


@dataclass(frozen=True, slots=True)
class DirectForm(Form):
    """Sweeps of outputs, each with the sizes of its boxes, blocks and chunks."""

    parts: tuple[tuple[Sweep, Sizes], ...]

    @classmethod
    def of(cls, s: Situation) -> Self:
        """That of a situation which has one."""
        arith = ARITHMETIC[_arithmetic(s)]
        return cls(s, tuple((sweep, sizes_of(s, arith, sweep)) for sweep in pieces_of(s, arith)))

    @property
    def arithmetic(self) -> str:
        """Dot products of bf16 pairs where the CPU has them; else the accumulator's."""
        return _arithmetic(self.s)

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        gaps = gap_bytes(self.s) if any(_is_gap(sweep) for sweep, _ in self.parts) else 0
        return max(gaps, max((sizes.workspace for _, sizes in self.parts), default=0))

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds at full tiles or at the loads that short rows need, and the moves."""
        terms = [cycles_of(self.s, ARITHMETIC[self.arithmetic], *part) for part in self.parts]
        return {name: sum(t[name] for t in terms) for name in ("products", "moves")}

    def choices(self) -> dict[str, object]:
        """Those of the first sweep."""
        if not self.parts:
            return {}
        sizes = self.parts[0][1]
        return sizes.choices(most_rows(self.s.target, ARITHMETIC[self.arithmetic], sizes.blocks.vectors))

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        keep: list[Any] = []
        return program_of([_step(r, *part, keep) for part in self.parts], self.workspace, keep)


def sweep_step(r: Request, sweep: Sweep, keep: list[Any]) -> Step:
    """Step of one sweep, for an algorithm that computes others itself."""
    return _step(r, sweep, sizes_of(r.situation, r.arith, sweep), keep)


def _is_gap(sweep: Sweep) -> bool:
    """Whether no product reaches its outputs."""
    return any(not axis.taps for axis in sweep)


def _step(r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
    if _is_gap(sweep):
        return gap_step(r, sweep, keep)
    values, items = _words(r, sweep, sizes)
    return Step(address(r), filled(values, keep), items)


# -- words ---------------------------------------------------------------------------------------------


def _words(r: Request, sweep: Sweep, sizes: Sizes) -> tuple[DirectWords, int]:
    """Words of a sweep, and how many items there are."""
    s, p, arith, last = r.situation, r.problem, r.arith, sweep[-1]
    vectors, channels = sizes.blocks.vectors, p.c // p.groups
    lies = along_out(r, last, "c")
    fused = is_fused(s, arith, sweep, sizes) and lies == "cc"
    if fused:
        tiles = walk_tables(r, sweep, sizes, lambda n: most_rows(r.target, arith, n), fused=True)
    else:
        tiles = edge_tables(r, sweep, sizes)
    entries = _entries(s, arith, sweep, sizes, fused=fused)
    common, items, inputs = _panel(r, sweep, sizes)
    chunk_steps = sizes.chunk_steps(p, arith, sweep)
    of_block = chunk_steps * sizes.blocks.outputs * arith.bytes
    far = sizes.blocks.count * sizes.chunks > 1 and weights_are_far(s, weight_bytes(s, arith, sweep, sizes.blocks))
    asked = of_block if far and of_block <= s.cache("l2", _BLOCK_WEIGHTS) else 0
    x_planes = 1 if r.x.c == r.x.itemsize else channels if r.x.spatial[-1] == r.x.itemsize else 0
    return DirectWords(
        common=common, inputs=inputs, chunks=sizes.chunks, entries=entries.words, x_entries=0,
        bands=bands_table(entries.bands), lists=entries.lists, blocks=block_words(r, sweep, sizes),
        total_outputs=r.y_channels, ahead=ahead_words(r, sweep, sizes.box, x_planes), ahead_weights=asked, ahead_tile=0,
        chunk_steps=max(1, chunk_steps), row_tiles=len(near_equal(sizes.row, most_rows(r.target, arith, vectors))),
        ask_results=int(lies == "cp" and image_bytes(p)[1] * (p.n or 0) > s.cache("l2", _RESULT_BYTES)),
        slots=header_bytes(len(sweep)) + sizes.panel + ZEROS_BYTES, slot_block=sizes.slot_block,
        slot_row=sizes.slot_row, flat=int(sizes.flat), row_pixels=sizes.row, panel_step=sizes.row_bytes, x_step=0,
        tiles=tiles, table_words=counted_words(TileWords, tiles), walk=int(fused), fused=int(fused),
        word_bytes=arith.bytes, tables=epilogue_tables(r),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, lies, r.epilogue)),
    ), items  # fmt: skip


def _entries(s: Situation, arith: Arithmetic, sweep: Sweep, sizes: Sizes, *, fused: bool) -> Entries:
    """Entries of a sweep: a tap of a block of channels each; offsets and rows of weights start anew in each chunk.

    Parameters
    ----------
    fused : bool
        Whether tiles multiply the padding at the ends of a row; others are told which taps miss which end.
    """
    last, channels, per_block = sweep[-1], s.problem.c // s.problem.groups, ROW_WORDS * arith.channels
    missed = [0] * last.taps if fused else missed_ends(last)
    taps, per_chunk = math.prod(axis.taps for axis in sweep), sizes.chunk // per_block
    row = [(at * sizes.row_bytes, t, 1, missed[t]) for t, at in enumerate(sizes.held[-1].start)]
    blocks = [
        (b % per_chunk * sizes.block_bytes, channel_words(min(per_block, channels - b * per_block), arith),
         b % per_chunk * ROW_WORDS * taps) for b in range(-(-channels // per_block))
    ]  # fmt: skip
    places = Places(in_panel(sizes.held, sizes.line_bytes), row, last.taps, blocks, per_chunk)
    return entries_of(places, row_bands(sweep, len(blocks) * taps))


def _panel(r: Request, sweep: Sweep, sizes: Sizes) -> tuple[Common, int, PanelWords]:
    """Words of the boxes, how many items there are, and words of the panel."""
    p, arith, last = r.problem, r.arith, sweep[-1]
    element = "i16" if arith.name == "bf16" else arith.accumulator
    header = header_bytes(len(sweep))
    common, items = boxed_words(
        r, sweep, sizes.box, sizes.held, sizes.splits, panel=header, scratch=header + sizes.panel
    )
    common = moved_apart(common, r, last, sizes.held[-1], "c", sizes.row_bytes, element)
    if arith.channels == 1 and sizes.box[-1] == last.out:
        common = moved_by_planes(common, r, sweep, sizes.held, sizes.line_bytes, sizes.row_bytes)
    return common, items, PanelWords(
        total_channels=r.x_channels, channels=p.c // p.groups, block_channels=ROW_WORDS * arith.channels,
        unpaired=arith.channels - 1, channel_bytes=arith.bytes // arith.channels, row_bytes=sizes.row_bytes,
        block_bytes=sizes.block_bytes, line_bytes=sizes.line_bytes, chunk=sizes.chunk, gapless=0,
        move_in=move_in_address(r, Move(p.x, element, along_in(r, last, "c"))),
    )  # fmt: skip
