"""Few outputs of several channels, where channels lie together: any rank, stride, dilation and element type.

Lanes are input channels, read where they lie, and the lanes of a sum are added at its end, so that nothing is padded,
turned or copied: outputs with the same taps inside the input are a box of their own.  bf16 numbers and small integers
are multiplied in pairs.
Cost: the products over lane use, and adding lanes.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.grouped import pieces
from polyconv.algorithms.grouped.pieces import PlaceWords, along, boxes_of, cut_lines, lines_at, place_words, tap_places
from polyconv.kernels.channel_sums import ENTRY_WORDS, ChannelSums, channel_sums_tile
from polyconv.kernels.fused import FusedTile
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes
from polyconv.kernels.language import Module
from polyconv.kernels.record import Counted, Function, Record, Word, counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Program, Request, Step, address_of, program_of, residual_of
from polyconv.lowering.situation import Situation, accumulator_arithmetic, has_pairs, image_bytes
from polyconv.lowering.sweep import Sweep, sweeps, taps_of
from polyconv.lowering.tiles import is_fusible, tile_cycles
from polyconv.runtime.arrays import aligned

__all__ = ["forms"]

_PIXELS = {1: 8, 2: 8, 3: 8, 4: 4, 5: 4, 6: 4}
"""Output channels -> most pixels of a tile: sums, weights and a pixel fill 32 registers."""
_MOST_OUTPUTS = 16
"""Of a group: with more, lanes that are outputs need no sums of lanes."""
_MOST_TAPS, _MOST_BOXES = 1 << 16, 1 << 13
"""Most taps of all lists, and most boxes of a sweep."""
_LAST, _NEAR, _FAR = 4.0, 5 / 4, 5 / 3
"""By the bytes a cycle that a cache gives, those that take time beside the products: of input and result that come and
go, of lines that the second cache holds, and the last one."""
_LINE = 64
"""Bytes of a cache line."""


class TileWords(Record):
    """Tiles of a line: their first output, how many there are, the outputs of each, and their function."""

    first: Word
    times: Word
    pixels: Word
    function: Function[ChannelSums]


class ChannelSumsWords(Record):
    """The driver's words."""

    shared: PlaceWords
    tiles: Counted[TileWords]
    x_channel: Word
    y_channel: Word
    r_channel: Word
    vectors: Word
    last: Word
    zero_point: Word


def driver(k: Module, name: str) -> None:
    """Add the driver to a module: a part of the boxes of a block, by tiles along lines."""
    with k.function(name, Driver) as given:
        p = ChannelSumsWords.read(k, given.words)

        def tiles(line: pieces.PieceLine, tile: TileWords) -> None:
            with k.loop(0, tile.times) as number:
                first = tile.first + number.index * tile.pixels
                k.call(tile.function, ChannelSums(
                    *line.places(first), p.x_channel, p.y_channel, p.r_channel, p.vectors, p.last, p.zero_point,
                    *line.tables,
                ))  # fmt: skip

        pieces.visit(k, p.shared, p.tiles, given, tiles)


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = _refusal(s)
    if reason is not None:
        return reason
    return (ChannelSumsForm(s, tuple(near_equal(s.problem.m // s.problem.groups, max(_PIXELS)))),)


def _refusal(s: Situation) -> Refusal | None:
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    group_in, group_out = p.c // p.groups, p.m // p.groups
    if p.layout != "NHWC" or group_in < 2 or not 0 < group_out <= _MOST_OUTPUTS:
        return f"computes up to {_MOST_OUTPUTS} outputs of several channels that lie together"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet lanes of zeros"
    if not is_fusible(p):
        return "needs a cheap epilogue"
    for sweep in sweeps(p):
        taps, boxes = pieces.counts_of(sweep, 2, _EACH)
        if taps > _MOST_TAPS or boxes > _MOST_BOXES:
            return "has too many boxes of outputs with taps of their own"
    return None


_EACH = 1 << 62
"""More combinations of taps than there are: no output has taps in the padding."""


def _arithmetic(s: Situation) -> str:
    """In pairs where the CPU multiplies them; else the accumulator's."""
    if has_pairs(s):
        return "bf16"
    name = accumulator_arithmetic(s)
    return "i16" if name == "i32" and s.problem.x in ("i8", "u8", "i16") else name


def _vectors(s: Situation, arith: Arithmetic) -> int:
    """Vectors of the channels of a group."""
    return -(-(s.problem.c // s.problem.groups) // (lanes(s.target, arith) * arith.channels))


@dataclass(frozen=True, slots=True)
class ChannelSumsForm(Form):
    """Sets of a group's output channels: first and number."""

    sets: tuple[tuple[int, int], ...]

    @property
    def arithmetic(self) -> str:
        """In pairs where the CPU multiplies them; else the accumulator's."""
        return _arithmetic(self.s)

    @property
    def workspace(self) -> int:
        """None: a box is read and written in place."""
        return 0

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds, loads or the latency of sums, adding lanes, and inputs that no near cache holds."""
        s, p = self.s, self.s.problem
        cycles = 0.0
        for sweep in sweeps(p):
            cycles += len(self.sets) * _read_again(s, sweep)
            for box, (_, outputs) in itertools.product(boxes_of(sweep, 2, _EACH), self.sets):
                length = box.extents[along(box.extents, _PIXELS[outputs])]
                tiles = sum(n * _tile_cycles(s, outputs, pixels, box.taps) for _, n, pixels in _cut(length, outputs))
                cycles += math.prod(box.extents) // max(1, length) * tiles
        moved = sum(image_bytes(p)) / s.profile.stream("l3", _LAST)
        return {"products": (p.n or 0) * p.groups * cycles, "moves": (p.n or 0) * moved}

    def choices(self) -> Mapping[str, object]:
        """The largest tile."""
        outputs = max(n for _, n in self.sets)
        return {"tile": f"{outputs} outputs by {_PIXELS[outputs]} pixels"}

    def build(self, r: Request) -> Program:
        """One step per sweep."""
        keep: list[Any] = []
        return program_of([_step(r, sweep, self.sets, keep) for sweep in sweeps(r.problem)], 0, keep)


def _tile_cycles(s: Situation, outputs: int, pixels: int, taps: int) -> float:
    """Cycles of a tile of a box with so many taps: measured on Zen 5, 61 problems of all types within a third."""
    p, arith = s.problem, ARITHMETIC[_arithmetic(s)]
    rates, size = s.rates(arith), p.x_dtype.itemsize
    width = lanes(s.target, arith) * arith.channels * size  # bytes of a vector of channels
    lines = 2.0 if width == s.target.vector_bytes and (p.c * size) % width else 1.0  # of a cache, that a load meets
    step = max(tile_cycles(rates, pixels, outputs), (lines * pixels + outputs) / rates.loads)
    return taps * (1.15 * _vectors(s, arith) * step + 0.8) + 24.0 + 1.2 * outputs * pixels


def _read_again(s: Situation, sweep: Sweep) -> float:
    """Cycles in which the lines of a group come from a cache that holds those that an output meets, for all outputs."""
    p, last = s.problem, sweep[-1]
    lines, size = math.prod(axis.taps for axis in sweep[:-1]), p.x_dtype.itemsize
    window = lines * last.inp * p.c * size
    if window <= s.profile.cache("l1", 1):
        return 0.0
    pixels = min(last.inp, (last.out - 1) * last.stride + (last.taps - 1) * last.dilation + 1)
    read = math.prod(axis.out for axis in sweep[:-1]) * lines * pixels * max(_LINE, p.c // p.groups * size)
    near = window <= s.profile.cache("l2", 1 / 2)
    return read / (s.profile.stream("l2", _NEAR) if near else s.profile.stream("l3", _FAR))


def _cut(length: int, outputs: int) -> Iterator[tuple[int, int, int]]:
    """Tiles of a line: first output, how many tiles, and pixels of each, fewer and fewer."""
    first, pixels = 0, _PIXELS[outputs]
    while first < length:
        times = (length - first) // pixels
        if times:
            yield first, times, pixels
        first, pixels = first + times * pixels, pixels // 2


def _step(r: Request, sweep: Sweep, sets: tuple[tuple[int, int], ...], keep: list[Any]) -> Step:
    p, arith, residual = r.problem, r.arith, residual_of(r)
    group_in, group_out, taps = p.c // p.groups, p.m // p.groups, math.prod(axis.taps for axis in sweep)
    vectors, heights = _vectors(r.situation, arith), sorted({outputs for _, outputs in sets})
    width = lanes(r.target, arith) * arith.channels
    packed = r.packed(
        ("channel_sums", arith.name, width, taps_of(sweep)), lambda: _packed_weights(r.weights(sweep), sets, width)
    )
    of_output = taps * vectors * r.target.vector_bytes
    blocks = [
        pieces.Block(
            g * group_in * r.x.c, m * r.y.c, m * residual.c, heights.index(outputs), m * of_output, m * arith.bytes, 0
        )
        for g in range(p.groups) for first, outputs in sets for m in (g * group_out + first,)
    ]  # fmt: skip
    boxes, most = boxes_of(sweep, 2, _EACH), _PIXELS[heights[-1]]
    cut = [lines for box in boxes for lines in cut_lines(box, most, pieces.parts_of(r, len(blocks)))]
    entries: list[int] = []
    lists: dict[tuple[range, ...], tuple[int, int]] = {}
    for box in boxes:
        if box.ranges not in lists:
            lists[box.ranges] = len(entries), box.taps
            entries += itertools.chain.from_iterable(tap_places(r, sweep, box.ranges))
    assert len(entries) == ENTRY_WORDS * sum(count for _, count in lists.values())
    lengths = sorted({box.extents[axis] for box, axis in cut})
    functions = {(n, pixels): _function(r, n, pixels) for n in heights for length in lengths
                 for _, _, pixels in _cut(length, n)}  # fmt: skip
    tables = [
        [TileWords(first, times, pixels, functions[n, pixels]) for first, times, pixels in _cut(length, n)]
        for length in lengths for n in heights
    ]  # fmt: skip
    visited = [
        lines_at(r, sweep, box, axis, lists[box.ranges], lengths.index(box.extents[axis]) * len(heights))
        for box, axis in cut
    ]
    shared, items = place_words(r, sweep, visited, blocks, entries, counted_words(TileWords, tables), packed)
    values = ChannelSumsWords(
        shared, tables, x_channel=r.x.c, y_channel=r.y.c, r_channel=residual.c, vectors=vectors - 1,
        last=group_in - (vectors - 1) * width, zero_point=r.zero_point,
    )  # fmt: skip
    return Step(address_of(r, "channel_sums", "channel_sums", Driver, driver), filled(values, keep), items)


def _function(r: Request, outputs: int, pixels: int) -> Address[ChannelSums]:
    """Address of a tile."""
    spec, apart = FusedTile(r.arith.name, r.problem.y, r.epilogue), r.x.c != r.x.itemsize
    count, f16c = lanes(r.target, r.arith), r.target.converts_f16

    def make(k: Module, name: str) -> None:
        channel_sums_tile(k, name, spec, r.problem.x, count, pixels, outputs, apart=apart, f16c=f16c)

    label = f"channel sums {r.problem.x} {spec} {pixels} {outputs}{' apart' * apart}"
    return address_of(r, label, "tile", ChannelSums, make)


def _packed_weights(w: NDArray[Any], sets: Sequence[tuple[int, int]], width: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as they stream: [group][set][tap][vector of channels][output][channel]."""
    groups, m, c, taps = w.shape
    vectors = -(-c // width)
    packed = aligned((groups, m, vectors * width * taps), w.dtype)
    for first, outputs in sets:
        whole = np.zeros((groups, outputs, vectors * width, taps), w.dtype)
        whole[:, :, :c] = w[:, first : first + outputs]
        by_tap = whole.reshape(groups, outputs, vectors, width, taps).transpose(0, 4, 2, 1, 3)
        packed[:, first : first + outputs] = by_tap.reshape(groups, outputs, -1)
    return packed
