"""Small integers, and bf16, by dot products of words: any rank, stride, dilation, group, pads and layout.

Lanes are output channels.  A box of outputs gets a panel of its inputs, their padding written out; where nothing is
padded and words lie as the instructions take them, tiles read the tensor itself.  Tiles broadcast words of several
channels against vectors of output channels, or pick those of several groups lane by lane from a pixel whose channels
lie together.  They reduce over (tap, words) or, where taps of a kernel's line follow each other, over whole lines of a
kernel.  Results leave from registers to their place, or by slots and a move.
Cost: the products, and one pass over input and output.
Error: sums of integers are exact modulo 2^32; those of bf16 have an own bound, k eps sum|x||w| of f32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from polyconv.algorithms.dots.axes import OrderedForm
from polyconv.algorithms.dots.dense_sizes import ROW_CYCLES, part_of, row_cycles
from polyconv.algorithms.dots.driver import (
    DotTile,
    DotWords,
    common_words,
    driver_address,
    finished_in_registers,
    outputs_of_last,
    result_words,
)
from polyconv.algorithms.dots.form import Part, Sizes
from polyconv.algorithms.dots.panel import copying_cycles, panel_words, turning_cycles, weaving_cycles
from polyconv.algorithms.dots.presums import entries_of_blocks, presummed
from polyconv.algorithms.dots.situations import (
    channel_bytes,
    dense_arithmetic,
    has_half_word,
    refusal,
    row_bands,
    windows,
    with_row_biases,
)
from polyconv.algorithms.dots.weights import block_weights
from polyconv.algorithms.form import Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import Arithmetic, lanes, run_tiles
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.record import counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.bands import share_met
from polyconv.lowering.boxes import block_row_lists, near_equal, row_lists, taps_of_lists
from polyconv.lowering.moves import along_in, move_in_address, words_in_address
from polyconv.lowering.presums import CERTAIN
from polyconv.lowering.program import Request, Step
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, box_count
from polyconv.lowering.tiles import word_address
from polyconv.lowering.traffic import apart_cycles, far_cycles
from polyconv.problem.problem import Problem

__all__ = ["LYING", "MERGED", "DenseForm", "forms", "lies", "word_entries"]

LYING = {"i8": ("u8",), "i16": ("i16", "u16"), "bf16": ("bf16",)}
"""Types of inputs that are multiplied as they lie, by the type of a weight."""

MERGED = {"i8": 4, "i16": 2, "bf16": 7}
"""Most channels whose planes are merged pixel by pixel, by the type of a weight; more are transposed."""

_PHASES = 0.2
"""Of the cycles that results of several phases take more where they leave alone: slots hold many at once."""

_OF_PLANES = 1.02
"""How much longer products take whose words lie in planes, a line each: measured on Zen 5, 13 layers of bf16."""

_COLLIDING = 2048
"""Pixels so many bytes apart share few sets of a first-level cache: they are not read in place."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    return refusal(s) or (DenseForm.of(s, dense_arithmetic(s)),)


@dataclass(frozen=True, slots=True)
class DenseForm(OrderedForm):
    """Blocks of some vectors of output channels."""

    @classmethod
    def part(cls, s: Situation, arith: Arithmetic, sweep: Sweep) -> Part:
        """A sweep with its sizes: groups side by side are brought from planes to pixels, if that takes less."""
        part, form = part_of(s, arith, sweep), cls(s, (), arith, tuple(range(len(sweep))))
        if s.problem.layout == "NHWC" or part.together.beside < 2:
            return part
        ways = (part.planes, part.together)
        best = min(ways, key=lambda sizes: s.price(("turned", sizes.beside), sum(form.cycles(sweep, sizes))))
        return replace(part, planes=best)

    def cycles(self, sweep: Sweep, sizes: Sizes) -> tuple[float, float]:
        """Cycles of an image's products at full tiles, and of its moves."""
        s, p, arith = self.s, self.s.problem, self.arith
        group_in, group_out, (*outer, last) = p.c // p.groups, p.m // p.groups, sweep
        count = box_count(sweep, sizes.box)
        width = sizes.box[-1]
        rows = math.prod(axis.out for axis in outer) * -(-last.out // max(1, width))
        met = share_met(sweep[:-1], row_bands(arith, sweep))
        words = -(-last.taps * group_in // arith.channels) if sizes.whole_lines else (
            last.taps * -(-group_in // arith.channels)
        )  # fmt: skip
        steps = met * math.prod(axis.taps for axis in outer) * words
        sets, panel_in = (1, p.c) if sizes.all_groups else (p.groups, group_in)
        of_row = row_cycles(s, arith, sizes.vectors, sizes.last_vectors, sizes.blocks, width, steps, sizes.beside)
        products = sets * rows * (of_row + sizes.blocks * ROW_CYCLES)
        held = math.prod(max(1, h.count) for h in sizes.held)
        if sizes.beside and p.layout == "NCHW":
            moves = count * (400 + turning_cycles(arith, sizes, panel_in))
        elif sizes.planes:
            run = max(1, sizes.held[-1].count)
            moves = sets * count * (400 + weaving_cycles(s, arith, sizes.held, run, panel_in, sizes.step))
            products *= _OF_PLANES
        elif sizes.beside < 2 and lies(p, arith, sweep, p.c * p.x_dtype.itemsize):
            moves = sets * count * 400.0
        else:
            follow = panel_in == p.c and sizes.pixel_bytes == panel_in * channel_bytes(arith) and not self.is_turned
            moves = sets * count * (400 + copying_cycles(arith, sizes, panel_in, follow=follow))
        moves += far_cycles(s, sets * count * held * panel_in * p.x_dtype.itemsize)
        leaving = _leaving(s, sizes) + _PHASES * apart_cycles(s, last)
        vectors = p.groups * -(-group_out // lanes(s.target, arith))
        if sizes.beside > 1:
            vectors = (sizes.blocks - 1) * sizes.vectors + sizes.last_vectors
        return products, moves + rows * width * vectors * leaving

    def choices(self) -> dict[str, object]:
        """How boxes are cut, and how much of the weights has no room in sums of 16 bits."""
        apart = {"words multiplied apart": f"{self.s.crowded} of {CERTAIN}"} if self.arith.presummed else {}
        return {**super(DenseForm, self).choices(), **apart}

    def step(self, r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
        """Step of a sweep."""
        p, arith, last, together = r.problem, r.arith, sweep[-1], r.x.c == r.x.itemsize
        group_in, group_out = p.c // p.groups, p.m // p.groups
        lane, of_vector = lanes(r.target, arith), r.target.vector_bytes
        w = r.weights(sweep)
        in_place = together and sizes.beside < 2 and lies(p, arith, sweep, r.x.spatial[-1])
        in_place = in_place and not (arith.name == "i16" and r.zero_point)
        r, found, lists = with_row_biases(r, sweep, w)
        words = -(-group_in * (last.taps if sizes.whole_lines else 1) // arith.channels)
        steps = math.prod(axis.taps for axis in sweep[:-1]) * words * (1 if sizes.whole_lines else last.taps)
        before = (windows(r) == "each") + (sizes.beside > 1)  # rows of factors and places come first
        entries = word_entries(r, sweep, sizes, words, before, in_place=in_place)
        word_step = sizes.plane_bytes if sizes.planes else arith.bytes
        block_lists = 0
        if arith.presummed:
            weights, apart = presummed(r, sweep, sizes, w, words)
            found, before = row_bands(arith, sweep), apart.shape[1]  # there are no rows before, but these behind
            rows = block_row_lists(sweep[:-1], entries_of_blocks(entries, apart, word_step), 3, found)
            block_lists = len(taps_of_lists(sweep[:-1], found))
            keep.append(apart)
        else:
            weights = block_weights(r, sweep, sizes, w, words)
            rows = row_lists(sweep[:-1], entries, 3, found)
        steps += before
        main, rest = steps * sizes.vectors * of_vector, steps * sizes.last_vectors * of_vector
        sets, channels, outputs = (1, p.c, p.m) if sizes.all_groups else (p.groups, group_in, group_out)
        in_registers = finished_in_registers(r, last)
        half = has_half_word(arith, group_in * (last.taps if sizes.whole_lines else 1))
        block_outputs = group_out * sizes.beside if sizes.beside else sizes.vectors * lane - (windows(r) > "")
        last_outputs, block_lanes, last_lanes = outputs_of_last(sizes, outputs, block_outputs, lane)
        spec = FusedTile(arith.name, p.y, r.epilogue) if in_registers else of_sums(arith.name)
        is_cut = in_registers and block_lanes < lane, in_registers and last_lanes < lane
        tiles = _tiles(r, last, sizes, replace(spec, half=half, windows=windows(r)), is_cut, last_outputs // group_out)
        common, items = common_words(r, sweep, sizes, sets)
        move = _move_in(r, replace(last, stride=sizes.step), sizes, group_in, together=together)
        values = DotWords(
            common=common, panel=panel_words(r, sizes, channels, move, last, in_place=in_place),
            row_step=last.stride * r.x.spatial[-1] if in_place else sizes.pixel_bytes * (last.stride // sizes.step),
            word_step=word_step, phases=1,
            source_block=sizes.beside * group_in * channel_bytes(arith),
            rows=rows, block_lists=block_lists,
            bias_list=p.m * arith.bytes * (lists > 1), weights=weights, w_group=main * (sizes.blocks - 1), w_block=main,
            w_last=main * (sizes.blocks - 1) * sets, w_last_group=rest, table_group=outputs * arith.bytes,
            table_block=block_outputs * arith.bytes, blocks=sizes.blocks,
            split_blocks=-(-sizes.blocks // sizes.splits), block_outputs=block_outputs, last_outputs=last_outputs,
            block_lanes=block_lanes, last_lanes=last_lanes, tiles=tiles, table_words=counted_words(DotTile, tiles),
            results=result_words(r, sweep, sizes, lane, in_registers=in_registers, are_alike=lists < 2),
        )  # fmt: skip
        return Step(driver_address(r), filled(values, keep), items)


def _leaving(s: Situation, sizes: Sizes) -> float:
    """Cycles in which results of a vector of channels leave: bytes to planes the sooner, the more vectors there are."""
    p = s.problem
    if p.layout == "NHWC":
        return 0.4
    if p.y_dtype.bits > 8 or p.residual:
        return 2.0
    return 0.5 + 2.0 / min(4, sizes.vectors) if s.target.has_masks else 1.2


def lies(p: Problem, arith: Arithmetic, sweep: Sweep, pixel_bytes: int) -> bool:
    """Whether tiles can read words from the input as it lies: nothing is padded or moved, words hold whole channels.

    Neighbouring pixels of a line lie so many bytes apart, their channels together.
    """
    if p.x not in LYING[arith.weight] or p.c // p.groups % arith.channels or pixel_bytes % _COLLIDING == 0:
        return False
    return all(
        axis.pad <= 0 and (axis.out - 1) * axis.stride - axis.pad + (axis.taps - 1) * axis.dilation < axis.inp
        for axis in sweep
    )


def word_entries(r: Request, sweep: Sweep, sizes: Sizes, words: int, before: int = 0, *, in_place: bool = False
                 ) -> list[list[int]]:  # fmt: skip
    """For every combination of taps of the outer axes the words of its entries: offset, words, weights before it.

    So many rows come ``before`` all weights.
    """
    last = sweep[-1]
    outer = [0]
    for axis, h, stride in zip(sweep[:-1], sizes.held[:-1], r.x.spatial[:-1], strict=True):
        if in_place:
            outer = [o + t * axis.dilation * stride for o in outer for t in range(axis.taps)]
        else:
            outer = [o * h.count + t for o in outer for t in h.start]
    line, pixel, starts = sizes.held[-1].count * sizes.pixel_bytes, sizes.pixel_bytes, sizes.held[-1].start
    whole = sizes.whole_lines
    if in_place:
        line, pixel, starts = 1, r.x.spatial[-1], tuple(t * last.dilation for t in range(last.taps))
        whole = whole and (last.taps <= 1 or pixel == r.problem.c // r.problem.groups * r.x.itemsize)
    if not words or not last.taps:
        return [[] for _ in outer]
    if whole:
        return [[o * line, words, before + tap * words] for tap, o in enumerate(outer)]
    if sizes.whole_lines:
        words //= last.taps
    firsts = [before + number * words for number in range(len(outer) * last.taps)]
    return [
        [v for t, at in enumerate(starts) for v in (o * line + at * pixel, words, firsts[tap * last.taps + t])]
        for tap, o in enumerate(outer)
    ]


def _tiles(r: Request, last: Axis, sizes: Sizes, spec: FusedTile, cut: tuple[bool, bool], last_groups: int
           ) -> list[list[DotTile]]:  # fmt: skip
    """The tables of tiles; those of all blocks but the last, and of that, mask their last vector where it is cut."""
    edge, picking = last.out % sizes.box[-1] or sizes.box[-1], sizes.beside > 1
    most = run_tiles(r.target, r.arith, picking=picking)
    tables: list[list[DotTile]] = []
    for vectors, is_cut, groups, is_there in zip(
        (sizes.vectors, sizes.last_vectors), cut, (sizes.beside, last_groups), (sizes.blocks > 1, True), strict=True
    ):
        of_block = replace(spec, edge=is_cut)
        if picking:
            width = r.problem.m // r.problem.groups if spec.windows else 0
            of_block = replace(of_block, beside=groups if width else 1, width=width)
        for pixels in (sizes.box[-1], edge):
            parts = near_equal(pixels, most[vectors]) if is_there else []
            functions = {n: word_address(r, of_block, n, vectors) for n in sorted({n for _, n in parts})}
            tables.append([DotTile(first, 1, functions[n]) for first, n in parts])
    return tables


def _move_in(r: Request, last: Axis, sizes: Sizes, group_in: int, *, together: bool) -> Address[MoveIn]:
    """The move of pixels into the panel."""
    p, arith = r.problem, r.arith
    element = f"i{8 * channel_bytes(arith)}"
    along = "cc" if together else along_in(r, last, "c")
    if sizes.whole_lines and along == "pc" and 0 < group_in <= MERGED[arith.weight]:
        return move_in_address(r, Move(p.x, element, "pc", together=group_in))
    if (arith.name == "bf16" or sizes.beside) and not sizes.planes:
        return move_in_address(r, Move(p.x, element, along))
    if not sizes.planes or along in ("any", "cc"):
        return move_in_address(r, Move(p.x, element, along if together else "any"))
    return words_in_address(r, Move(p.x, element, along, together=arith.channels))
