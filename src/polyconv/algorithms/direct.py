"""Direct convolution with output channels in the lanes: dense, any rank, stride, dilation, group, pads, layout.

A box of outputs gets a zero-padded panel of its inputs, [channel block][line][pixel][16 words]; the
channel tile reduces it over the list of (tap, channel block) entries against streaming packed weights, without the
taps that lie in the padding of outer axes for a whole row of outputs (they would add zeros); sums leave through a
move with the epilogue.  Where most taps along the last axis meet padding its outputs are told apart by those that do
not.  Cost: the products, with lanes filled to m/groups of a
multiple of the vector, plus one pass over input and output.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.least import least
from polyconv.algorithms.packing import LateWords, Set, late_sets, late_words, packed_sets, when_needed
from polyconv.algorithms.panel import (
    Ahead,
    Common,
    Driver,
    EpilogueTables,
    Frame,
    Item,
    ahead_place,
    axis_words,
    box_rows,
    decode,
    fill,
    line_place,
    row_list,
    row_place,
    row_source,
)
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    ahead_words,
    along_in,
    along_out,
    apart_cycles,
    boxed_words,
    boxes,
    edge_address,
    epilogue_tables,
    far_cycles,
    fused_address,
    image_bytes,
    is_apart,
    is_fusible,
    move_in_address,
    move_out_address,
    moved_apart,
    moved_by_planes,
    near_equal,
    near_equal_sizes,
    of_one_image,
    planes_collide,
    thread_parts,
    tile_cycles,
)  # fmt: skip
from polyconv.algorithms.sweep import (
    Axis,
    Bands,
    Lines,
    Sweep,
    anywhere,
    bands,
    bands_table,
    lines,
    pieces,
    share_met,
    sweeps,
    whole_bands,
)
from polyconv.kernels.fused import FusedTile, Walk
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes
from polyconv.kernels.isa import channel_tile as channel_tile_rows
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import Move, MoveIn, MoveOut
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import (
    Counted,
    Function,
    Functions,
    Memory,
    Record,
    Table,
    Word,
    counted_words,
    filled,
    words,
)
from polyconv.kernels.signature import Address, Int, Signature
from polyconv.kernels.tile import FIRST, LAST, ROW_WORDS, EdgeTile
from polyconv.kernels.unzip import ListedMoveIn, MoveApart
from polyconv.target import Target

__all__ = [
    "DirectBox", "again_words", "again_workspace", "applicable", "arithmetic", "at_least", "build",
    "careful_applicable", "careful_build", "careful_cost", "cost", "pack_panel", "plain_words", "sweep_cost",
    "sweep_step", "sweep_workspace", "workspace",
]  # fmt: skip

PANEL_BYTES = 400 << 10
LARGEST_PANEL_BYTES = 4 << 20
"""Workspace of a thread that stays in half of a 1 MiB second-level cache beside the streaming weights; how
far one box may go beyond it before channels are taken in chunks."""

_LIST_BYTES = 512 << 10
"""Most bytes of lists of entries; where bands of rows would need more, fewer axes have bands."""

_CACHED_BYTES = 8 << 20
"""Weights beyond this are taken to come from memory, not from a share of the last cache."""
_MEMORY_BYTES, _LAST_BYTES, _CACHE_BYTES = 5.0, 8.0, 16.0
"""Bytes a cycle that a thread gets from memory, from the last cache and from its second-level cache."""
_NEAR_BYTES = 512 << 10
"""Weights up to this stay in a second-level cache from box to box."""
_STREAM_BYTES, _HELD_BYTES, _STREAM, _LATE = 1 << 20, 24 << 20, 20.0, 0.5
"""Weights that stay there from call to call, and those that the last cache holds; bytes a cycle that come from it to
few pixels, and the share of the time they need beyond that of the products that is lost."""

_FUSED_CYCLES = 6.0
"""Cycles of a vector of results that are saved where it leaves from registers."""
_WAITING_ROWS = 4
"""Tiles of so few rows take weights faster than a second-level cache gives them."""

_RESULT_BYTES = 1 << 20
"""Results beyond this come from afar when they are written: they are asked for before."""

_SHORT_STEP, _SHORT_CYCLES, _BLOCK_BYTES = 6.0, 0.35, 640 << 10
"""A step of a tile of fewer cycles takes so much longer; weights of a block of outputs up to this stream from a
second-level cache, others half as fast.  Measured on Zen 5, AVX-512 and AVX2."""

class PanelWords(Record):
    """Words of a panel of blocks of channels: [block][line][pixel][a row of words].

    Blocks have ``block_channels`` of a group's ``channels``; so many of them, a ``chunk``, are in the panel at a time.
    """

    total_channels: Word
    channels: Word
    block_channels: Word
    unpaired: Word
    channel_bytes: Word
    row_bytes: Word
    block_bytes: Word
    line_bytes: Word
    chunk: Word
    move_in: Function[MoveIn]


class ChunkList(Record):
    """A list of entries: the entry it begins with, how many there are, and how many of them are a chunk's."""

    first: Word
    count: Word
    chunk_count: Word


class TileWords(Record):
    """A tile of a row: its first pixel and its function."""

    first: Word
    function: Function[EdgeTile | Walk]


class DirectWords(Record):
    """The driver's words: the panel's geometry, entry lists and packed weights, tables of tiles, moves.

    The chain of additions goes on from chunk to chunk through the slots.  ``bands`` says for every output along an
    outer axis which list of entries it has; whole entries come first.  Tiles ask for the inputs of the next box and,
    ``ahead_weights`` bytes if they come from memory, for the next block's weights.  Where there is one chunk and output
    channels lie together, tiles are ``fused``: results go from registers to their place.  ``tiles`` holds four tables
    (last block or not, box cut short along the last axis or not).  ``one_rows`` are tiles of one row, of the last block
    and of others, for rows that are computed output by output.
    """

    common: Common
    inputs: PanelWords
    careful: Word
    taps: Word
    offsets: Memory
    total_outputs: Word
    chunks: Word
    chunk_entries: Word
    entry_count: Word
    entries: Memory
    bands: Memory
    lists: Table[ChunkList]
    weights: Memory
    w_group: Word
    w_block: Word
    w_chunk: Word
    w_last: Word
    w_last_group: Word
    w_last_chunk: Word
    outputs: Word
    blocks: Word
    split_blocks: Word
    block_outputs: Word
    last_outputs: Word
    sum_row: Word
    sum_row_last: Word
    ahead: Ahead
    ahead_weights: Word
    chunk_steps: Word
    row_tiles: Word
    ask_results: Word
    slots: Word
    slot_block: Word
    slot_row: Word
    tiles: Counted[TileWords]
    table_words: Word
    one_rows: Functions[EdgeTile]
    word_bytes: Word
    fused: Word
    last_lanes: Word
    tables: EpilogueTables
    move_out: Function[MoveOut]
    late: LateWords


def driver(k: Module, name: str) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module.

    The same code serves every element type: it moves bytes and calls moves and tiles through tables.
    """
    _box_body(k, f"{name}_box")
    with k.function(name, Driver) as given:
        p, workspace = DirectWords.read(k, given.words), given.workspace
        item = decode(k, p.common, given.item, workspace)
        first = item.split * p.split_blocks
        end = k.minimum(first + p.split_blocks, p.blocks)
        k.call(f"{name}_box", DirectBox(given.frame, p, workspace, item.n, item.g, first, end))


def repair_address(r: Request) -> Address[DirectBox]:
    """Address of the ``DirectBox`` that computes boxes for an algorithm whose own results are not finite.

    Its words are ``again_words`` or ``plain_words``.
    """
    return _kernel(r)[1]


class DirectBox(Signature):
    """Blocks first..end of outputs of a box, which stands in the workspace's header as ``decode`` leaves it."""

    frame: Frame
    words: DirectWords
    workspace: Buffer
    n: Int
    g: Int
    first: Int
    end: Int


def _box_body(k: Module, name: str) -> None:
    """Add the function that computes blocks of outputs of a box."""
    with k.function(name, DirectBox) as given:
        frame, workspace, first_block, end_block = given.frame, given.workspace, given.first, given.end
        p = given.words
        item = Item(k, workspace, given.n, given.g, k.constant(INT, 0))
        rows = box_rows(k, p.common, item)
        when_needed(k, p.late)
        k.clear(workspace + p.common.scratch, 256)  # sums start from these zeros
        x = frame.x
        begin, blocks = x + row_source(k, p.common, item, k.constant(INT, 0)), end_block - first_block
        with k.loop(0, p.chunks) as chunk:
            pack_panel(k, p.common, p.inputs, item, x, workspace + p.common.panel, chunk.index * p.inputs.chunk)
            with k.loop(first_block, end_block) as block:
                number = chunk.index * blocks + block.index - first_block
                turns = block.index + 1 < end_block
                following = _weights(
                    k, p, item, k.select(turns, block.index + 1, first_block),
                    k.select(turns, chunk.index, (chunk.index + 1) % p.chunks),
                )  # fmt: skip
                soon = _Soon(begin, number, blocks * p.chunks, following, rows)
                with k.loop(0, rows) as row:
                    slot = p.slots + (block.index - first_block) * p.slot_block + row.index * p.slot_row
                    _row(k, p, item, frame, workspace, slot, chunk.index, block.index, row.index, soon)


@dataclass(frozen=True, slots=True)
class _Soon:
    """What tiles of a block ask for early: inputs of the box after the one that begins there, following weights.

    A box has so many ``blocks`` of ``rows``, this one the ``number``.
    """

    begin: Buffer
    number: Value
    blocks: Value
    weights: Buffer
    rows: Value

    def place(self, k: Module, p: DirectWords, row: Value, tile: Value) -> tuple[Buffer, Value]:
        """Where a tile asks, and by how many bytes it goes on with a step: tiles take turns where both lie far."""
        call, calls = row * p.row_tiles + tile, k.maximum(self.rows * p.row_tiles, 1)
        inputs = (p.ahead.step > 0) & (p.ahead_weights.equals(0) | (call & 1).equals(1))
        of_inputs = p.ahead.size * p.ahead.planes // (calls * self.blocks)
        of_weights = p.ahead_weights // calls
        place = k.either(
            inputs, ahead_place(k, p.common, p.ahead, self.begin, self.number * calls + call, calls * self.blocks),
            self.weights + call * of_weights,
        )  # fmt: skip
        return place, (2 * k.select(inputs, of_inputs, of_weights) + 63) // p.chunk_steps


def _weights(k: Module, p: DirectWords, item: Item, block: Value, chunk: Value) -> Buffer:
    """Where the weights of a block of outputs and a chunk of channels begin."""
    return p.weights + k.select(
        block.equals(p.blocks - 1),
        p.w_last + item.g * p.w_last_group + chunk * p.w_last_chunk,
        item.g * p.w_group + block * p.w_block + chunk * p.w_chunk,
    )


def _row(k: Module, p: DirectWords, item: Item, frame: Frame, workspace: Buffer, slot: Value, chunk: Value,
         block: Value, row: Value, soon: _Soon) -> None:  # fmt: skip
    """One row of outputs of one block of output channels: its tiles, and its way out after the last chunk."""
    last = axis_words(p.common, p.common.axes - 1)
    is_last = block.equals(p.blocks - 1)
    pixels = item.extent(p.common.axes - 1)
    sum_row = k.select(is_last, p.sum_row_last, p.sum_row)
    weights = _weights(k, p, item, block, chunk)
    short = pixels < last.block
    table = p.tiles + k.select(is_last, p.table_words * 16, 0) + k.select(short, p.table_words * 8, 0)
    begins = chunk.equals(0)
    start, start_row = k.select(begins, p.common.scratch, slot), k.select(begins, 0, sum_row)
    line, y_offset, r_offset = row_place(k, p.common, item, row)
    of_row = p.lists.at(row_list(k, p.bands, item, row, p.common.axes - 1))
    list_ = p.entries + (of_row.first + chunk * of_row.chunk_count) * 24
    entries = k.minimum(of_row.chunk_count, of_row.count - chunk * of_row.chunk_count)
    panel = workspace + p.common.panel + line * p.inputs.line_bytes
    tile_count = k.select(p.careful.equals(1), 0, table.count)
    with k.when(p.careful.equals(1)):
        _careful_row(k, p, item, workspace, slot, sum_row, weights, chunk, row, panel, is_last)
    channel = block * p.block_outputs
    absolute = item.g * p.outputs + channel
    bias, scale = p.tables.bias + absolute * p.word_bytes, p.tables.scale + absolute * p.word_bytes
    y, r = frame.y + (y_offset + channel * p.common.y_c), frame.residual + (r_offset + channel * p.common.r_c)
    fused = p.fused.equals(1)
    outputs = k.minimum(k.select(is_last, p.last_outputs, p.block_outputs), p.total_outputs - absolute)
    begin = item.first(p.common.axes - 1)
    edges = k.select(begin.equals(0), FIRST, 0), k.select((begin + pixels).equals(last.out), LAST, 0)
    with k.loop(0, tile_count) as tile:
        of_tile = table.at(tile.index)
        first = of_tile.first
        pixels_in = panel + first * p.inputs.row_bytes
        with k.when(fused):
            k.call(of_tile.function, Walk(
                pixels_in, p.inputs.row_bytes, list_, entries, weights, y + first * last.y_stride, last.y_stride,
                r + first * last.r_stride, last.r_stride, 1, p.last_lanes, bias, scale, p.tables.constants,
                workspace,
            ))  # fmt: skip
        with k.when(fused, otherwise=True):
            with k.when(p.ask_results.equals(1)), k.loop(0, outputs) as one:
                k.prefetch(y + (first * last.y_stride + one.index * p.common.y_c), writing=True)
            met = k.select(first.equals(0), edges[0], 0) | k.select(tile.index + 1 < tile_count, 0, edges[1])
            function = of_tile.function
            from_, to = workspace + (start + first * start_row), workspace + (slot + first * sum_row)
            early, pace = soon.place(k, p, row, tile.index)
            k.call(function, EdgeTile(
                pixels_in, entries, list_, weights, from_, start_row, to, sum_row, met, early, pace
            ))
    with k.when(chunk.equals(p.chunks - 1) & p.fused.equals(0)):
        k.call(p.move_out, MoveOut(
            workspace + slot, sum_row, p.word_bytes, y, last.y_stride, p.common.y_c, pixels, outputs,
            bias, scale, r, last.r_stride, p.common.r_c, p.tables.constants,
        ))  # fmt: skip


def _careful_row(k: Module, p: DirectWords, item: Item, workspace: Buffer, slot: Value, sum_row: Value, weights: Buffer,
                 chunk: Value, row: Value, panel: Buffer, is_last: Value) -> None:  # fmt: skip
    """A row output by output and entry by entry, leaving out the entries whose tap lies in the padding."""
    one_row = p.one_rows.at(k.cast("zext", is_last, INT))
    entries = k.minimum(p.chunk_entries, p.entry_count - chunk * p.chunk_entries)
    with k.loop(0, item.extent(p.common.axes - 1)) as pixel:
        sums = workspace + (slot + pixel.index * sum_row)
        with k.when(chunk.equals(0)):
            k.call(one_row, EdgeTile(
                panel, 0, p.entries, weights, workspace + p.common.scratch, 0, sums, 0, 0, panel, 0,
            ))
        with k.loop(0, entries) as entry:
            record = p.entries + (chunk * p.chunk_entries + entry.index) * 24
            offsets = p.offsets + (entry.index % p.taps) * p.common.axes * 8
            with k.loop(0, p.common.axes, carry=[row, k.constant(INT, 1)]) as back:
                q, inside = back.values
                axis = p.common.axes - 1 - back.index
                is_last = back.index.equals(0)
                b = k.select(is_last, pixel.index, q % item.extent(axis))
                of_axis = axis_words(p.common, axis)
                position = item.origin(axis) + b * of_axis.stride + k.word(offsets, axis)
                within = k.cast("zext", position.below(of_axis.inp), INT)
                back.next(k.select(is_last, q, q // item.extent(axis)), inside & within)
            with k.when(back.results[1].equals(1)):
                k.call(one_row, EdgeTile(
                    panel + pixel.index * p.inputs.row_bytes, 1, record, weights, sums, sum_row, sums, sum_row, 0,
                    panel, 0,
                ))  # fmt: skip


def pack_panel(k: Module, c: Common, p: PanelWords, item: Item, x: Buffer, panel: Buffer, first: Value) -> None:
    """Fill the panel with one chunk of channels, from ``first`` on."""
    with k.when(c.planes.equals(1)):
        _pack_planes(k, c, p, item, x, panel, first)
    with k.when(c.planes.equals(0)):
        _pack_lines(k, c, p, item, x, panel, first)


def _pack_planes(k: Module, c: Common, p: PanelWords, item: Item, x: Buffer, panel: Buffer, first: Value) -> None:
    """The same for planes whose lines follow each other: all those of a plane together."""
    y, last = axis_words(c, c.axes - 2), axis_words(c, c.axes - 1)
    chunk = k.minimum(p.chunk, k.minimum(p.channels, p.total_channels - item.g * p.channels) - first)
    start = c.x_base + item.n * c.x_n + item.g * c.x_g + first * c.x_c
    origin = item.origin(c.axes - 2)
    top = k.minimum(k.maximum(0 - origin, 0), y.lines)
    bottom = k.maximum(k.minimum(y.inp - origin, y.lines), top)
    with k.loop(0, c.line_count // y.lines) as plane:
        offset, inside = line_place(k, c, item, plane.index, start, 2)
        pixels = k.select(inside.equals(1), (bottom - top) * last.inp, 0)
        source, target = x + (offset + (origin + top) * y.x_stride), panel + plane.index * (y.lines * p.line_bytes)
        with k.loop(0, chunk, p.block_channels, [source, target]) as block:
            planes, lines = block.values
            with k.loop(0, y.lines * p.line_bytes, 64) as part:
                k.clear(lines + part.index, 64)
            with k.when(pixels > 0):
                k.call(c.move_planes, ListedMoveIn(
                    planes, last.x_stride, c.x_c, lines + top * p.line_bytes, p.row_bytes,
                    p.channel_bytes, pixels, k.minimum(p.block_channels, chunk - block.index), c.zero_point,
                    c.plane_places,
                ))  # fmt: skip
            block.next(planes + p.block_channels * c.x_c, lines + p.block_bytes)


def _pack_lines(k: Module, c: Common, p: PanelWords, item: Item, x: Buffer, panel: Buffer, first: Value) -> None:
    """The same line by line."""
    there = k.minimum(p.channels, p.total_channels - item.g * p.channels)  # the last group may be cut short
    chunk = k.minimum(p.chunk, there - first)
    pixel_step = c.step * axis_words(c, c.axes - 1).x_stride
    apart = c.residues > 1
    # of planes a block of channels at a time, all its lines: so few places a CPU foresees
    at_once = k.select(c.x_c > pixel_step, p.block_channels, p.chunk)
    with k.loop(0, chunk, at_once, [panel]) as some:
        (begin,) = some.values
        channels = k.minimum(at_once, chunk - some.index)

        def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
            with k.loop(
                0, channels, p.block_channels, [begin + line * p.line_bytes + first_line * p.row_bytes, source]
            ) as step:
                target, x_block = step.values
                here = k.minimum(p.block_channels, channels - step.index)
                # a word of two channels whose second does not exist must hold a zero there
                before = k.select((here & p.unpaired).equals(1), count, head)
                with k.loop(0, 2) as side:
                    _clear(k, c, p, target, side.index * end, k.select(side.index.equals(0), before, count))
                with k.when(apart):
                    k.call(c.move_apart, MoveApart(
                        x_block, pixel_step, c.x_c, target, p.row_bytes, p.channel_bytes,
                        end - head, here, c.zero_point, c.residue_places, head,
                    ))  # fmt: skip
                with k.when(apart, otherwise=True):
                    k.call(p.move_in, MoveIn(
                        x_block, pixel_step, c.x_c,
                        target + head * p.row_bytes, p.row_bytes, p.channel_bytes, end - head, here, c.zero_point,
                    ))  # fmt: skip
                step.next(target + p.block_bytes, x_block + p.block_channels * c.x_c)

        fill(k, c, item, x, first + some.index, put)
        some.next(begin + p.block_bytes)


def _clear(k: Module, c: Common, p: PanelWords, rows: Buffer, first: Value, end: Value) -> None:
    """Zeros for the pixels first..end of a line; without residues they lie together."""
    apart = c.residues > 1
    with k.when(apart), k.loop(first, end) as pixel:
        of_residue = k.word(c.residue_places, pixel.index % c.residues)
        place = rows + (of_residue + pixel.index // c.residues * p.row_bytes)
        with k.loop(0, p.row_bytes, 64) as part:
            k.clear(place + part.index, 64)
    with k.when(apart, otherwise=True), k.loop(first * p.row_bytes, end * p.row_bytes, 64) as part:
        k.clear(rows + part.index, 64)


def applicable(s: Situation) -> str | None:
    """None, or why the dense tile cannot be used."""
    if s.problem.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {s.problem.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    return None


def careful_applicable(s: Situation) -> str | None:
    """None, or why padded taps need not be skipped one by one."""
    if s.problem.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {s.problem.op}"
    if s.finite:
        return "only needed for weights with Inf or NaN: all are finite"
    return None


def arithmetic(s: Situation) -> str:
    """Dot products of bf16 pairs where the CPU has them; else the accumulator's."""
    p = s.problem
    pairs = p.x == p.w == "bf16" and s.target.bf16 and not s.strict and p.c // p.groups > 1
    return "bf16" if pairs else accumulator_arithmetic(s)


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[arithmetic(s) if s.finite else accumulator_arithmetic(s)]
    return max((sweep_workspace(s, arith, sweep) for sweep in _sweeps(s, arith)), default=0)


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds at full tiles or at the loads that short rows need, and the moves."""
    arith = ARITHMETIC[arithmetic(s)]
    terms = [sweep_cost(s, arith, sweep) for sweep in _sweeps(s, arith)]
    return {name: sum(t[name] for t in terms) for name in ("products", "moves")}


def at_least(s: Situation) -> float:
    """Cycles that products, entries, and the ways in and out take, whatever the boxes and tiles."""
    p, arith, work = s.problem, ARITHMETIC[arithmetic(s)], least(s.problem)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    vectors = -(-group_out // lanes(s.target, arith))
    blocks_in = -(-group_in // (ROW_WORDS * arith.channels))
    cycles = work.met * vectors * group_in_words(group_in, arith) / s.rates(arith).multiply_adds
    cycles += work.met * vectors * 4.0 * blocks_in / _largest_tile(s.target)
    cycles += work.outputs * vectors * _leaving(s, arith, fused=p.layout == "NHWC")
    cycles += work.brought * (blocks_in * 6.0 if group_in >= 8 else group_in * 3.0)
    return cycles * (p.n or 0) * p.groups


@cache
def _largest_tile(target: Target) -> int:
    """Most vectors of sums of a tile."""
    return max(vectors * channel_tile_rows(target, vectors) for vectors in (1, 2, 3))


_MOST_PIECES = 32
"""Most sweeps that one is cut into."""


@lru_cache(256)
def _sweeps(s: Situation, arith: Arithmetic) -> tuple[Sweep, ...]:
    """The sweeps, cut up where enough taps meet padding: those left out would add zeros, so no bits depend on it."""
    whole = sweeps(s.problem)
    s = of_one_image(s)
    ways = [whole]
    for axes in sorted({1, len(s.problem.i)}) if s.finite else ():  # the last alone, or all
        cut = [(*((axis,) for axis in sweep[:-axes]), *(pieces(axis) for axis in sweep[-axes:])) for sweep in whole]
        if len(whole) < sum(math.prod(map(len, one)) for one in cut) <= _MOST_PIECES * len(whole):
            ways.append(tuple(itertools.chain.from_iterable(itertools.product(*one) for one in cut)))
    return min(ways, key=lambda way: s.price(way, sum(sum(sweep_cost(s, arith, sweep).values()) for sweep in way)))


def sweep_cost(s: Situation, arith: Arithmetic, sweep: Sweep) -> dict[str, float]:
    """Cycles of one sweep."""
    p, plan = s.problem, _plan(s, arith, sweep)
    lane, group_in, group_out = lanes(s.target, arith), p.c // p.groups, p.m // p.groups
    box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
    steps = group_in_words(group_in, arith) * math.prod(axis.taps for axis in sweep)
    row, tiles = _row_cycles(s, arith, steps, plan.vectors, plan.box[-1])
    rows = math.prod(plan.box[:-1]) * box_count
    lines_held = math.prod(max(1, h.count) for h in plan.held)
    blocks_in = -(-group_in // (ROW_WORDS * arith.channels))
    entries = blocks_in * math.prod(axis.taps for axis in sweep)
    met = share_met(sweep, _row_bands(sweep, entries))
    fused = _is_fused(s, arith, sweep, plan)
    met *= 1.0 if fused else 1 - _share_missed(sweep[-1])
    products = rows * met * (row * steps + tiles * (20 + 4.0 * entries))
    weights, of_all = _weight_bytes(s, arith, sweep, plan), math.prod(p.w_shape) * arith.bytes
    if weights > _STREAM_BYTES:  # the first row of a box waits for them, the others find those of a block nearby
        late = weights / (_STREAM if of_all <= _HELD_BYTES else _MEMORY_BYTES) - met * row * steps
        products += _LATE * max(0.0, late) * box_count / p.groups
    moves = box_count * _pack_cycles(s, arith, sweep, plan)
    bytes_in = box_count * lines_held * group_in * p.x_dtype.itemsize
    moves += far_cycles(p, bytes_in, soon=True)
    leaving = _leaving(s, arith, fused=fused, apart=apart_cycles(p, sweep[-1]))
    moves += rows * plan.box[-1] * -(-group_out // lane) * leaving
    batch = (p.n or 0) * p.groups
    return {"products": products * batch, "moves": moves * batch}


def _leaving(s: Situation, arith: Arithmetic, *, fused: bool, apart: float = 0.0) -> float:
    """Cycles in which a vector of results leaves: through a transposition, or straight from registers."""
    p = s.problem
    group_out = p.m // p.groups
    if group_out < lanes(s.target, arith) // 2:
        return 2.0 * group_out
    if p.layout == "NHWC":
        return 1.5 if fused else 4.0
    return (12.0 if planes_collide(p, reading=False) else 9.0) + apart


def sweep_workspace(s: Situation, arith: Arithmetic, sweep: Sweep) -> int:
    """Bytes a thread needs for one sweep."""
    return _plan(s, arith, sweep).workspace


def sweep_step(r: Request, sweep: Sweep, keep: list[Any], *, careful: bool = False) -> Step:
    """Step of one sweep."""
    plan = _plan(r.situation, r.arith, sweep)
    values, items = _dense_words(r, sweep, plan, careful, planes=r.arith.channels == 1)
    return Step(_kernel(r)[0], filled(values, keep), items)


def _kernel(r: Request) -> tuple[Address[Driver], Address[DirectBox]]:
    """Addresses of the driver and of the function that computes a box for it."""
    functions: dict[str, type[Signature]] = {"direct": Driver, "direct_box": DirectBox}
    found: dict[str, Address[Any]] = kernel(
        "direct", functions, lambda k: driver(k, "direct"), r.target, check=r.check
    )
    return found["direct"], found["direct_box"]


def careful_cost(s: Situation) -> dict[str, float]:
    """Cycles: one call of a one-row tile per output, tap and block of channels."""
    p = s.problem
    outputs = (p.n or 0) * math.prod(o or 0 for o in p.out)
    blocks = -(-(p.c // p.groups) // ROW_WORDS) * -(-(p.m // p.groups) // 8) * p.groups
    return {"products": 60.0 * outputs * math.prod(p.k) * blocks}


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    return _build(r, careful=False)


def careful_build(r: Request) -> Program:
    """Program that skips padded taps output by output."""
    return _build(r, careful=True)


def _build(r: Request, *, careful: bool) -> Program:
    keep: list[Any] = []
    found = _sweeps(r.situation, r.arith)
    steps = [sweep_step(r, sweep, keep, careful=careful) for sweep in found]
    needed = max((sweep_workspace(r.situation, r.arith, sweep) for sweep in found), default=0)
    return Program(tuple(step for step in steps if step.items), needed, tuple(keep))


def again_words(r: Request, sweep: Sweep, box: tuple[int, ...], vectors: int) -> DirectWords:
    """Words with which ``repair_address`` computes boxes of at most this size, skipping padded taps."""
    plan = box_sizes(r.situation, r.arith, sweep, box, _whole(r.situation, r.arith), vectors)
    return _dense_words(r, sweep, plan, True, late=True)[0]


def plain_words(r: Request, sweep: Sweep, box: tuple[int, ...]) -> tuple[DirectWords, int]:
    """Words with which ``repair_address`` computes boxes of this size, or the last ones; vectors of outputs."""
    plan = box_sizes(r.situation, r.arith, sweep, box, _whole(r.situation, r.arith), 1)
    return _dense_words(r, sweep, plan, False, late=True)[0], plan.blocks


@lru_cache(1024)
def again_workspace(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...],
                    vectors: int | None = None) -> int:  # fmt: skip
    """Bytes that computing such a box takes."""
    return box_sizes(s, arith, sweep, box, _whole(s, arith), vectors).workspace


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one sweep's blocks."""

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    vectors: int
    last_vectors: int
    blocks: int
    chunk: int
    chunks: int
    row_bytes: int
    line_bytes: int
    block_bytes: int
    panel: int
    slot_row: int
    slot_block: int
    splits: int
    workspace: int


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> _Plan:
    return _plan_anywhere(s, arith, tuple(anywhere(axis) for axis in sweep))


@lru_cache(256)
def _plan_anywhere(s: Situation, arith: Arithmetic, sweep: Sweep) -> _Plan:
    """The plan, which depends neither on places nor on pads."""
    budget = s.budget(PANEL_BYTES)
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], 256))
    block_channels = ROW_WORDS * arith.channels
    chunk = _whole(s, arith)

    def fitted(chunk: int, room: int) -> _Plan:
        box = boxes(start, lambda box: box_sizes(s, arith, sweep, box, chunk).workspace, room)
        return box_sizes(s, arith, sweep, box, chunk)

    plan = fitted(chunk, budget)
    most = s.near(LARGEST_PANEL_BYTES) if s.limit is None else budget
    # where weights come from memory for every box, a larger one may be worth its place
    far = _weight_bytes(s, arith, sweep, plan) > s.near(_CACHED_BYTES)
    rooms = (budget, min(2 * budget, most)) if far else (budget,)
    while chunk > block_channels:
        chunk = max(block_channels, chunk // 2 // block_channels * block_channels)
        for less in (fitted(chunk, room) for room in rooms):
            cheaper = less.workspace <= most and _traffic(s, arith, sweep, less) < _traffic(s, arith, sweep, plan)
            if plan.workspace > most or cheaper:
                plan = less
    p = s.problem
    items = (p.n or 0) * p.groups * math.prod(-(-e // b) for e, b in zip(extents, plan.box, strict=True))
    steps = group_in_words(p.c // p.groups, arith) * math.prod(axis.taps for axis in sweep)
    products = math.prod(plan.box) * steps * plan.blocks * plan.vectors / s.rates(arith).multiply_adds
    repeated = _pack_cycles(s, arith, sweep, plan) / max(1.0, products)
    return replace(plan, splits=thread_parts(s.threads, items, plan.blocks, repeated))


def _pack_cycles(s: Situation, arith: Arithmetic, sweep: Sweep, plan: _Plan) -> float:
    """Cycles that bringing the inputs of a box in place takes."""
    p = s.problem
    group_in = p.c // p.groups
    slow_in = 3.0 if planes_collide(p, reading=True) else 1.0
    if p.layout == "NCHW" and sweep[-1].stride > 1 and not is_apart(p, sweep[-1], lanes(s.target, arith), "c"):
        slow_in *= 2.0 if sweep[-1].stride == 2 else 4.0  # squares of every second pixel, or element by element
    blocks_in = -(-group_in // (ROW_WORDS * arith.channels))
    held = math.prod(max(1, h.count) for h in plan.held)
    return 400 + held * (blocks_in * 6.0 * slow_in if group_in >= 8 else group_in * 3.0)


def _traffic(s: Situation, arith: Arithmetic, sweep: Sweep, plan: _Plan) -> float:
    """Cycles in which a sweep's tiles are fed: inputs, weights past the caches, once a box, and sums, twice a chunk.

    Weights that the caches hold are prefetched while a box is multiplied; it must not be too small for that.
    """
    p = s.problem
    outputs = p.groups * plan.blocks * plan.vectors * lanes(s.target, arith)
    weights = _weight_bytes(s, arith, sweep, plan)
    box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
    sums = outputs * math.prod(axis.out for axis in sweep) * arith.bytes
    rate = lanes(s.target, arith) * s.rates(arith).multiply_adds
    products = weights / arith.bytes * math.prod(axis.out for axis in sweep) / rate
    stream = max(0.0, weights * box_count / _LAST_BYTES - products) if weights > _NEAR_BYTES else 0.0
    stream = weights * box_count / _MEMORY_BYTES if weights > _CACHED_BYTES else stream
    packing = box_count * p.groups * _pack_cycles(s, arith, sweep, plan)
    return packing + stream + 2 * (plan.chunks - 1) * sums / _CACHE_BYTES


def _weight_bytes(s: Situation, arith: Arithmetic, sweep: Sweep, plan: _Plan) -> int:
    """Bytes of the packed weights of a sweep."""
    p = s.problem
    steps = group_in_words(p.c // p.groups, arith) * math.prod(axis.taps for axis in sweep)
    return steps * p.groups * plan.blocks * plan.vectors * lanes(s.target, arith) * arith.bytes


def _whole(s: Situation, arith: Arithmetic) -> int:
    """All channels of a group, rounded up to blocks."""
    block_channels = ROW_WORDS * arith.channels
    return max(block_channels, -(-(s.problem.c // s.problem.groups) // block_channels) * block_channels)


def box_sizes(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...], chunk: int,
           vectors: int | None = None) -> _Plan:  # fmt: skip
    p = s.problem
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane = lanes(s.target, arith)
    steps = group_in_words(group_in, arith) * math.prod(axis.taps for axis in sweep)
    vectors = vectors or _vectors(s, arith, steps, sweep[-1].out)
    block_outputs = vectors * lane
    blocks = max(1, -(-group_out // block_outputs))
    last_vectors = max(1, -(-(group_out - (blocks - 1) * block_outputs) // lane))
    block_channels = ROW_WORDS * arith.channels
    row_bytes = ROW_WORDS * arith.bytes
    header = -(-(24 * len(sweep)) // 64) * 64
    held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
    pixels = max(1, held[-1].count)
    rows = math.prod(max(1, h.count) for h in held[:-1])
    # an odd number of cache lines between lines and blocks: no two share all their sets
    line_bytes = (pixels | 1) * row_bytes
    block_bytes = rows * line_bytes + 64
    chunks = max(1, -(-group_in // chunk))
    panel = -(-min(chunk, max(group_in, 1)) // block_channels) * block_bytes
    row_sums = box[-1] * block_outputs * arith.bytes
    slot_row = row_sums if chunks > 1 else 0
    slot_block = slot_row * math.prod(box[:-1])
    sums = slot_block * blocks if chunks > 1 else row_sums
    return _Plan(
        box, held, vectors, last_vectors, blocks, chunk, chunks, row_bytes, line_bytes, block_bytes, panel,
        slot_row, slot_block, 1, header + panel + 256 + sums + 128,
    )  # fmt: skip


def _row_cycles(s: Situation, arith: Arithmetic, steps: int, vectors: int, width: int) -> tuple[float, int]:
    """Cycles of a step of all tiles of a row of outputs in blocks of so many vectors, and how many tiles there are."""
    outputs, size = -(-(s.problem.m // s.problem.groups) // lanes(s.target, arith)), s.target.vector_bytes
    total, tiles, rates = 0.0, 0, s.rates(arith)
    for some, blocks in ((vectors, outputs // vectors), *(((outputs % vectors, 1),) if outputs % vectors else ())):
        stream = some * size / (2 * _CACHE_BYTES if steps * some * size <= _BLOCK_BYTES else _CACHE_BYTES)
        for rows, count in near_equal_sizes(width, channel_tile_rows(s.target, some)):
            least = max(tile_cycles(rates, rows, some), stream)
            total += blocks * count * (least + (_SHORT_CYCLES if least < _SHORT_STEP else 0.0))
            tiles += blocks * count
    return total, tiles


@lru_cache(256)
def _vectors(s: Situation, arith: Arithmetic, steps: int, width: int) -> int:
    """Vectors of outputs of a tile: two, or three where rows are cut into tiles too low for two."""
    outputs = -(-(s.problem.m // s.problem.groups) // lanes(s.target, arith))
    choices = [v for v in (2, 3) if v <= outputs and channel_tile_rows(s.target, v)]
    return min(choices, key=lambda n: s.price((n, width), _row_cycles(s, arith, steps, n, width)[0]), default=1)


def _is_fused(s: Situation, arith: Arithmetic, sweep: Sweep, plan: _Plan) -> bool:
    """Whether results leave from registers, if they lie as the layout says: such tiles multiply padding in a row.

    Tiles of few rows wait for weights, with padding or without.
    """
    p = s.problem
    fusible = p.layout == "NHWC" and plan.chunks == 1 and arith.channels == 1 and is_fusible(p)
    steps = p.c // p.groups * math.prod(axis.taps for axis in sweep)
    saved = steps / s.rates(arith).multiply_adds * _share_missed(sweep[-1]) if sweep[-1].out > _WAITING_ROWS else 0.0
    return fusible and saved < _FUSED_CYCLES


def _share_missed(axis: Axis) -> float:
    """Share of the products of a row that tiles leave out, since they meet padding at its ends."""
    return sum(end > 0 for end in _missed(axis)) / max(1, axis.taps * axis.out)


def _dense_words(r: Request, sweep: Sweep, plan: _Plan, careful: bool, *, late: bool = False, planes: bool = False
                 ) -> tuple[DirectWords, int]:  # fmt: skip
    """Words of a sweep, and how many items there are; weights that few calls need are packed late.

    Boxes of whole lines may bring ``planes`` into the panel at once.
    """
    p, arith = r.problem, r.arith
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane, taps = lanes(r.target, arith), math.prod(a.taps for a in sweep)
    block_outputs = plan.vectors * lane
    last_lanes = (group_out - 1) % lane + 1
    last = sweep[-1]
    fused = not careful and _is_fused(r.situation, arith, sweep, plan) and along_out(r, last, "c") == "cc"
    tiles, one_rows = _tile_tables(r, last, plan, fused, last_lanes < lane, careful)
    key = (arith.name, lane, plan.vectors, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep))
    widths = plan.vectors, plan.last_vectors
    if late:
        form = r.late(("direct late", *key), lambda: late_sets(r, w := r.weights(sweep), *_order(r, w.shape, *widths)))
        packed = form.weights
    else:
        form, packed = None, r.packed(("direct", *key), lambda: packed_weights(r, r.weights(sweep), *widths))
    near = r.situation.near
    steps = group_in_words(group_in, arith) * taps
    chunk_steps = group_in_words(min(plan.chunk, group_in), arith) * taps
    main = steps * block_outputs * arith.bytes
    rest = steps * plan.last_vectors * lane * arith.bytes
    of_block = chunk_steps * block_outputs * arith.bytes
    far = plan.blocks * plan.chunks > 1 and _weight_bytes(r.situation, arith, sweep, plan) > near(_CACHED_BYTES)
    x_planes = 1 if r.x.c == r.x.itemsize else group_in if r.x.spatial[-1] == r.x.itemsize else 0
    element = "i16" if arith.name == "bf16" else arith.accumulator
    header = -(-(24 * len(sweep)) // 64) * 64
    scratch = header + plan.panel
    common, items = boxed_words(r, sweep, plan.box, plan.held, plan.splits, panel=header, scratch=scratch)
    common = moved_apart(common, r, last, plan.held[-1], "c", plan.row_bytes, element)
    if planes and plan.box[-1] == last.out:
        common = moved_by_planes(common, r, sweep, plan.held, plan.line_bytes, plan.row_bytes)
    inputs = PanelWords(
        total_channels=r.x_channels, channels=group_in, block_channels=ROW_WORDS * arith.channels,
        unpaired=arith.channels - 1, channel_bytes=arith.bytes // arith.channels, row_bytes=plan.row_bytes,
        block_bytes=plan.block_bytes, line_bytes=plan.line_bytes, chunk=plan.chunk,
        move_in=move_in_address(r, Move(p.x, element, along_in(r, last, "c"))),
    )  # fmt: skip
    of_rows, lists, entries, (entry_count, chunk_entries) = _lists(r, sweep, plan, careful, fused)
    return DirectWords(
        common=common, inputs=inputs, careful=int(careful), taps=taps, offsets=words(_tap_offsets(sweep)),
        total_outputs=r.y_channels, chunks=plan.chunks, chunk_entries=chunk_entries, entry_count=entry_count,
        entries=words(entries), bands=words(bands_table(of_rows)), lists=lists,
        weights=packed, w_group=main * (plan.blocks - 1), w_block=main, w_chunk=of_block,
        w_last=main * (plan.blocks - 1) * p.groups, w_last_group=rest,
        w_last_chunk=chunk_steps * plan.last_vectors * lane * arith.bytes,
        outputs=group_out, blocks=plan.blocks, split_blocks=-(-plan.blocks // plan.splits),
        block_outputs=block_outputs, last_outputs=group_out - (plan.blocks - 1) * block_outputs,
        sum_row=block_outputs * arith.bytes, sum_row_last=plan.last_vectors * lane * arith.bytes,
        ahead=ahead_words(r, sweep, plan.box, x_planes),
        ahead_weights=of_block if far and of_block <= near(_NEAR_BYTES) else 0,
        chunk_steps=max(1, chunk_steps),
        row_tiles=len(near_equal(plan.box[-1], channel_tile_rows(r.target, plan.vectors))),
        ask_results=int(along_out(r, last, "c") == "cp" and image_bytes(p)[1] * (p.n or 0) > near(_RESULT_BYTES)),
        slots=scratch + 256, slot_block=plan.slot_block, slot_row=plan.slot_row, tiles=tiles,
        table_words=counted_words(TileWords, tiles), one_rows=one_rows, word_bytes=arith.bytes, fused=int(fused),
        last_lanes=last_lanes, tables=epilogue_tables(r),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, along_out(r, last, "c"), r.epilogue)),
        late=late_words(r, form),
    ), items  # fmt: skip


def _tile_tables(r: Request, last: Axis, plan: _Plan, fused: bool, cut: bool, careful: bool
                 ) -> tuple[list[list[TileWords]], list[Address[EdgeTile] | None]]:  # fmt: skip
    """The tables of tiles, and the tiles of one row.

    Parameters
    ----------
    cut : bool
        Whether the last vector of outputs is masked, where results leave from registers.
    careful : bool
        Whether rows are computed output by output.
    """
    edge = last.out % plan.box[-1] or plan.box[-1]

    one_rows = [edge_address(r, 1, vectors) if careful else None for vectors in (plan.vectors, plan.last_vectors)]

    def functions(vectors: int, cut: bool) -> Sequence[Address[Walk | EdgeTile] | None]:
        rows = range(1, channel_tile_rows(r.target, vectors) + 1)
        if careful:
            return [one_rows[vectors == plan.last_vectors], *[None] * (len(rows) - 1)]
        needed = {n for pixels in (plan.box[-1], edge) for _, n in near_equal(pixels, rows[-1])}
        if fused:
            spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, cut)
            return [fused_address(r, "channel", spec, n, vectors) if n in needed else None for n in rows]
        return [edge_address(r, n, vectors) if n in needed else None for n in rows]

    families = functions(plan.vectors, False), functions(plan.last_vectors, cut)
    tiles = [
        [TileWords(first, of_block[rows - 1]) for first, rows in near_equal(pixels, len(of_block))]
        for of_block in families
        for pixels in (plan.box[-1], edge)
    ]
    return tiles, one_rows


def _missed(axis: Axis) -> list[int]:
    """For every tap of an axis which end of a line it misses, if one."""
    first = [t * axis.dilation - axis.pad for t in range(axis.taps)]
    last = [at + (axis.out - 1) * axis.stride for at in first]
    return [FIRST if a < 0 else LAST if b >= axis.inp else 0 for a, b in zip(first, last, strict=True)]


def _lists(r: Request, sweep: Sweep, plan: _Plan, careful: bool, fused: bool
           ) -> tuple[list[Bands], list[ChunkList], list[int], tuple[int, int]]:  # fmt: skip
    """Bands of the outer axes, which say what list of entries a row of outputs has; these lists, and the entries.

    Those of all taps stand first; last of what is returned are their number and that of a chunk.
    """
    group_in = r.problem.c // r.problem.groups
    whole = tuple(range(axis.taps) for axis in sweep[:-1])
    missed = [0] * sweep[-1].taps if fused else _missed(sweep[-1])
    entries, chunk_entries = _entries(r.arith, plan, group_in, whole, missed)
    count = len(entries) // 3
    found = whole_bands(sweep[:-1]) if careful else _row_bands(sweep, count)
    lists: list[ChunkList] = []
    for ranges in itertools.product(*(kinds for kinds, _ in found)):
        if ranges == whole:
            lists.append(ChunkList(0, count, chunk_entries))
        else:
            some, of_chunk = _entries(r.arith, plan, group_in, ranges, missed)
            lists.append(ChunkList(len(entries) // 3, len(some) // 3, of_chunk))
            entries += some
    return found, lists, entries, (count, chunk_entries)


def _tap_offsets(sweep: Sweep) -> list[int]:
    """Input offset of every tap along every axis, in the order of a channel block's entries."""
    taps: list[list[int]] = [[]]
    for axis in sweep:
        taps = [[*t, u * axis.dilation] for t in taps for u in range(axis.taps)]
    return [offset for t in taps for offset in t]


def group_in_words(channels: int, arith: Arithmetic) -> int:
    """Panel words that hold some channels."""
    return -(-channels // arith.channels)


def _entries(arith: Arithmetic, plan: _Plan, group_in: int, ranges: Sequence[range],
             missed: Sequence[int]) -> tuple[list[int], int]:  # fmt: skip
    """List of (panel offset, words, rows of weights before it) for the given taps of the outer axes, and its chunk.

    For every channel block every tap; offsets and rows start anew in each chunk.  Above the words stands which end of a
    line the tap misses.
    """
    block_channels = ROW_WORDS * arith.channels
    outer = [(0, 0)]
    for h, some in zip(plan.held[:-1], ranges, strict=True):
        outer = [(o * h.count + h.start[t], tap * len(h.start) + t) for o, tap in outer for t in some]
    last = plan.held[-1].start
    places = [
        (o * plan.line_bytes + s * plan.row_bytes, tap * len(last) + t, missed[t] << 32)
        for o, tap in outer for t, s in enumerate(last)
    ]
    taps = math.prod(len(h.start) for h in plan.held)
    entries: list[int] = []
    per_chunk = plan.chunk // block_channels
    for block, first in enumerate(range(0, group_in, block_channels)):
        count = group_in_words(min(block_channels, group_in - first), arith)
        of_chunk = block % per_chunk
        for at, tap, kind in places:
            entries += (of_chunk * plan.block_bytes + at, count | kind, of_chunk * ROW_WORDS * taps + tap * count)
    return entries, max(1, per_chunk * len(places))


def _row_bands(sweep: Sweep, entry_count: int) -> list[Bands]:
    """Bands of the outer axes, of as many as the lists of entries have room for."""
    return bands(sweep[:-1], _LIST_BYTES // (24 * max(1, entry_count)))


def packed_weights(r: Request, w: NDArray[Any], vectors: int, last_vectors: int, together: int = ROW_WORDS
                   ) -> NDArray[Any]:  # fmt: skip
    """Weights (groups, m, c, taps) in streaming order: per group and block of outputs, entry by entry.

    The last block of every group, which may be narrower, follows after all others.  So many words of channels
    ``together`` follow each other before the next tap.
    """
    return packed_sets(r, w, *_order(r, w.shape, vectors, last_vectors, together))


def _order(r: Request, shape: tuple[int, ...], vectors: int, last_vectors: int, together: int = ROW_WORDS
           ) -> tuple[list[Set], int, int]:  # fmt: skip
    """Sets, channels of a block and size of packed weights."""
    groups, m, c, taps = shape
    lane = lanes(r.target, r.arith)
    step, last = vectors * lane, last_vectors * lane
    rows = group_in_words(c, r.arith) * r.arith.channels * taps
    blocks = max(1, -(-m // step))
    sets = [Set(b * step, step, step, b * step * rows, (blocks - 1) * step * rows) for b in range(blocks - 1)]
    end = (blocks - 1) * step
    sets.append(Set(end, m - end, last, groups * end * rows, last * rows))
    return sets, together * r.arith.channels, groups * (end + last) * rows
