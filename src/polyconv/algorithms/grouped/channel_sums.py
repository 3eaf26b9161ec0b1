"""Few outputs of several channels, where channels lie together: any rank, stride, dilation and element type.

Lanes are input channels, read where they lie, and the lanes of a sum are added at its end, so that nothing is padded,
turned or copied: outputs with the same taps inside the input are a box of their own.  Words are those of ``dots``:
bytes are multiplied four at a time, bf16 numbers and 16 bits in pairs.
Cost: the products over lane use, and adding lanes.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from polyconv.algorithms.dots.situations import (
    arithmetic_of,
    padding_of,
    taken_off,
    window_outputs,
    windows,
    with_bias,
)
from polyconv.algorithms.dots.weights import by_lanes, inner_weights
from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.grouped import pieces
from polyconv.algorithms.grouped.pieces import (
    PlaceWords,
    along,
    boxes_of,
    channel_steps,
    cut_lines,
    lines_at,
    place_words,
    tap_places,
)
from polyconv.dataclass import dataclass
from polyconv.kernels.channel_sums import ENTRY_WORDS, LINE, ChannelSums, channel_sums_tile
from polyconv.kernels.fused import FusedTile
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.lane_sums import parts_of, vectors_of
from polyconv.kernels.language import Module
from polyconv.kernels.record import Counted, Function, Record, Word, counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Program, Request, Step, address_of, program_of, residual_of
from polyconv.lowering.situation import Situation, accumulator_arithmetic, has_pairs, image_bytes
from polyconv.lowering.sweep import Sweep, mean_taps, sweeps, taps_of
from polyconv.lowering.tiles import is_fusible, product_instructions, tile_cycles
from polyconv.target import Target

__all__ = ["forms"]

_PIXELS = {32: {1: 16, 2: 8, 3: 8, 4: 4, 5: 4, 6: 4, 7: 2, 8: 2}, 16: {1: 8, 2: 4, 3: 2, 4: 2, 5: 1, 6: 1, 7: 1, 8: 1}}
"""Registers -> vectors of sums of a pixel -> most pixels of a tile: sums, weights, a pixel and a product fill them."""
_MOST_TAPS, _MOST_BOXES = 1 << 16, 1 << 13
"""Most taps of all lists, and most boxes of a sweep."""
_LAST, _NEAR, _FAR = 4.0, 2.0, 10 / 3
"""By the bytes a cycle that a cache gives, those that take time beside the products: of input and result that come and
go, of lines that the second cache holds, and the last one.  With the next measured on Zen 5, 208 random problems: half
of all times are 0.80 to 1.05 of their price."""
_MOST_READ = 2
"""Most reads of an input that comes from afar where tiles ask for it early: 3.4 and 1.3 times as fast with 3/2 and 2
reads on Zen 5, slower with 5."""
_CROSSING = 0.9
"""Loads more as which one of a whole vector counts that begins anywhere: nearly all cross a cache line, of halves half,
in which others wait for nothing."""
_ADD_CYCLES, _LEAVING, _APART = 0.8, 4.0, 2.0
"""Cycles of adding the lanes of a vector of sums, in which a vector of results leaves, and in which results of a pixel
leave alone, as those of a group do."""
_TILE_CYCLES, _STEP_CYCLES, _STEP_TIMES = {64: 14.0, 32: 22.0}, {64: 0.9, 32: 0.3}, {64: 1.1, 32: 1.0}
"""By the bytes of a vector, cycles of the rest of a tile, those of a step beside products and loads, and how much
longer than said these take.  Those of 32 are of 28 layers on a Zen 3: most times are 0.9 to 1.25 of their price."""


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
    vectors: Word
    last: Word
    zero_point: Word


def driver(k: Module, name: str) -> None:
    """Add the driver to a module: a part of the boxes of a block, by tiles along lines."""
    with k.function(name, Driver) as given:
        p = ChannelSumsWords.read(k, given.words)
        lane = p.shared.lane

        def tiles(line: pieces.PieceLine, tile: TileWords) -> None:
            with k.loop(0, tile.times) as number:
                first = tile.first + number.index * tile.pixels
                k.call(tile.function, ChannelSums(
                    *line.places(first), lane.x, lane.y, lane.r, p.vectors, p.last, p.zero_point, line.piece.early,
                    *line.tables,
                ))  # fmt: skip

        pieces.visit(k, p.shared, p.tiles, given, tiles)


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = _refusal(s)
    if reason is not None:
        return reason
    return (ChannelSumsForm(s, _wide(s)),)


def _refusal(s: Situation) -> Refusal | None:
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    group_in, group_out = p.c // p.groups, p.m // p.groups
    most = lanes(s.target, ARITHMETIC[_arithmetic(s)]) - (_each(s) - group_out)
    if p.layout != "NHWC" or group_in < 2 or not 0 < group_out <= most:
        return f"computes up to {most} outputs of several channels that lie together"
    if not _ways(s):
        return "needs as many channels as the shortest part of a vector has"
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
    """In words of bytes or pairs where the CPU multiplies them; else the accumulator's."""
    if has_pairs(s):
        return "bf16"
    name = accumulator_arithmetic(s)
    return arithmetic_of(s).name if name == "i32" and s.problem.x in ("i8", "u8", "i16") else name


def _each(s: Situation) -> int:
    """Sums of a pixel."""
    return s.problem.m // s.problem.groups + (window_outputs(s) if _arithmetic(s) == "u8s8" else 0)


def _steps(s: Situation, wide: int) -> int:
    """Of the channels of a group, each of so many words."""
    return -(-(s.problem.c // s.problem.groups) // (wide * ARITHMETIC[_arithmetic(s)].channels))


def _wide(s: Situation) -> int:
    """Words of a pixel at a time: with those of a whole vector adding takes longest, with few some outputs are none."""
    lane, some = lanes(s.target, ARITHMETIC[_arithmetic(s)]), next(iter(sweeps(s.problem)), ())
    taps, tiles = round(math.prod(map(mean_taps, some))), _PIXELS[s.target.registers]

    def price(wide: int) -> float:
        most = tiles[vectors_of(_each(s), lane, wide)]
        return s.price(("wide", wide), _tile_cycles(s, wide, most, taps) / most)

    return min(_ways(s), key=price)


def _ways(s: Situation) -> list[int]:
    """Words of a pixel that tiles may take at a time; where the last ones overlap others, a pixel has as many."""
    arith, group_in = ARITHMETIC[_arithmetic(s)], s.problem.c // s.problem.groups
    lane, most = lanes(s.target, arith), max(_PIXELS[s.target.registers])
    found = [wide for wide in parts_of(lane) if vectors_of(_each(s), lane, wide) <= most]
    return [wide for wide in found if wide * arith.channels <= group_in] if _overlaps(s.target) else found


def _overlaps(target: Target) -> bool:
    """Whether a pixel's last channels are read with some before them: where masks do not keep others out."""
    return not target.has_masks


@dataclass(frozen=True, slots=True)
class ChannelSumsForm(Form):
    """Lanes are ``wide`` words of a pixel, again and again, for as many outputs."""

    wide: int

    @property
    def arithmetic(self) -> str:
        """In words of bytes or pairs where the CPU multiplies them; else the accumulator's."""
        return _arithmetic(self.s)

    @property
    def scheme(self) -> str:
        """Sums of floats are formed of as many parts as a pixel has words at a time."""
        return f"{self.wide} lanes" if self.s.problem.x_dtype.is_float else ""

    @property
    def workspace(self) -> int:
        """None: a box is read and written in place."""
        return 0

    @property
    def most(self) -> int:
        """Most pixels of a tile."""
        vectors = vectors_of(_each(self.s), lanes(self.s.target, ARITHMETIC[self.arithmetic]), self.wide)
        return _PIXELS[self.s.target.registers][vectors]

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds, loads or the latency of sums, adding lanes, and inputs that no near cache holds."""
        s, p, cycles = self.s, self.s.problem, 0.0
        for sweep in sweeps(p):
            cycles += _read_again(s, sweep)
            for box in boxes_of(sweep, 2, _EACH):
                length = box.extents[along(box.extents, self.most)]
                tiles = sum(n * _tile_cycles(s, self.wide, pixels, box.taps) for _, n, pixels in self.cut(length))
                cycles += math.prod(box.extents) // max(1, length) * tiles
        moved = sum(image_bytes(p)) / s.profile.stream("l3", _LAST)
        return {"products": (p.n or 0) * p.groups * cycles, "moves": (p.n or 0) * moved}

    def choices(self) -> Mapping[str, object]:
        """The largest tile."""
        return {"tile": f"{self.most} pixels, {self.wide} words of each at a time"}

    def build(self, r: Request) -> Program:
        """One step per sweep."""
        keep: list[Any] = []
        return program_of([_step(r, sweep, self, keep) for sweep in sweeps(r.problem)], 0, keep)

    def cut(self, length: int) -> Iterator[tuple[int, int, int]]:
        """Tiles of a line: first output, how many tiles, and pixels of each, fewer and fewer."""
        first, pixels = 0, self.most
        while first < length:
            times = (length - first) // pixels
            if times:
                yield first, times, pixels
            first, pixels = first + times * pixels, pixels // 2


def _tile_cycles(s: Situation, wide: int, pixels: int, taps: int) -> float:
    """Cycles of a tile of a box with so many taps: measured on Zen 5."""
    arith = ARITHMETIC[_arithmetic(s)]
    rates, lane = s.rates(arith), lanes(s.target, arith)
    vectors = vectors_of(_each(s), lane, wide)
    loads = pixels * (1 + _CROSSING * (wide * arith.bytes / LINE) ** 2) + vectors
    narrow = s.problem.x_dtype.itemsize < arith.bytes // arith.channels
    converted = narrow + (wide < lane) + (narrow and arith.channels > 1)  # less the zero point
    instructions = pixels * (converted + product_instructions(s.target, arith) * vectors) / (2 * rates.multiply_adds)
    step = max(tile_cycles(rates, pixels, vectors), loads / rates.loads, instructions)
    adding = pixels * vectors * (1 - 1 / wide) * _ADD_CYCLES + -(-pixels * vectors // wide) * _LEAVING
    adding += pixels * _APART if s.problem.groups > 1 else 0.0
    size = max(32, s.target.vector_bytes)
    step = step * _STEP_TIMES[size] + _STEP_CYCLES[size]
    return taps * (_steps(s, wide) * step + 0.8) + adding + _TILE_CYCLES[size]


def _read_again(s: Situation, sweep: Sweep) -> float:
    """Cycles in which the lines of a group come from a cache that holds those that an output meets, for all outputs."""
    p, last = s.problem, sweep[-1]
    lines, size = math.prod(mean_taps(axis) for axis in sweep[:-1]), p.x_dtype.itemsize
    window = lines * last.inp * p.c * size
    if window <= s.profile.cache("l1", 1):
        return 0.0
    pixels = min(last.inp, (last.out - 1) * last.stride + (last.taps - 1) * last.dilation + 1)
    read = math.prod(axis.out for axis in sweep[:-1]) * lines * pixels * max(LINE, p.c // p.groups * size)
    near = window <= s.profile.cache("l2", 1 / 2)
    return read / (s.profile.stream("l2", _NEAR) if near else s.profile.stream("l3", _FAR))


def _step(r: Request, sweep: Sweep, form: ChannelSumsForm, keep: list[Any]) -> Step:
    p, arith, residual, wide = r.problem, r.arith, residual_of(r), form.wide
    lane, group_in, w = lanes(r.target, arith), p.c // p.groups, r.weights(sweep)
    steps, table = _steps(r.situation, wide), lane * arith.bytes
    key = ("channel_sums", arith.name, wide, taps_of(sweep))
    packed = r.packed(key, lambda: inner_weights(r, w, 1, steps, wide, overlaps=_overlaps(r.target)))
    boxes = boxes_of(sweep, 2, _EACH)
    entries: list[int] = []
    lists: dict[tuple[range, ...], tuple[int, int]] = {}
    taps: list[list[int]] = []
    for box in boxes:
        if box.ranges not in lists:
            places = tap_places(r, sweep, box.ranges)
            lists[box.ranges] = len(entries), len(places)
            taps.append([tap for _, tap in places])
            entries += itertools.chain.from_iterable(places)
    assert len(entries) == ENTRY_WORDS * sum(count for _, count in lists.values())
    biases = p.groups * table if padding_of(r) and len(lists) > 1 else 0  # between those of one list and of the next
    number_of = {ranges: number for number, ranges in enumerate(lists)}
    r = by_lanes(with_bias(r, w, padding_of(r), taps), lane)
    blocks = [
        pieces.Block(g * group_in * r.x.c, m * r.y.c, m * residual.c, 0, g * (packed.nbytes // p.groups), g * table)
        for g in range(p.groups) for m in (g * (p.m // p.groups),)
    ]  # fmt: skip
    cut = [lines for box in boxes for lines in cut_lines(box, form.most, pieces.parts_of(r, len(blocks)))]
    lengths = sorted({box.extents[axis] for box, axis in cut})
    functions = {n: _function(r, form, n) for length in lengths for _, _, n in form.cut(length)}
    tables = [
        [TileWords(first, times, pixels, functions[pixels]) for first, times, pixels in form.cut(length)]
        for length in lengths
    ]  # fmt: skip
    visited = [
        lines_at(r, sweep, box, axis, lists[box.ranges], lengths.index(box.extents[axis]),
                 biases * number_of[box.ranges])
        for box, axis in cut
    ]  # fmt: skip
    shared, items = place_words(
        r, sweep, visited, blocks, entries, counted_words(TileWords, tables), packed, channel_steps(r)
    )
    values = ChannelSumsWords(
        shared, tables, vectors=steps - 1, last=group_in - (steps - 1) * wide * arith.channels,
        zero_point=taken_off(r),
    )  # fmt: skip
    return Step(address_of(r, "channel_sums", "channel_sums", Driver, driver), filled(values, keep), items)


def _is_far(r: Request) -> bool:
    """Whether inputs come from afar, and so few outputs read each that this is what takes time."""
    p = r.problem
    return image_bytes(p)[0] > r.situation.cache("l2", 1) and math.prod(p.k) <= _MOST_READ * math.prod(p.s)


def _function(r: Request, form: ChannelSumsForm, pixels: int) -> Address[ChannelSums]:
    """Address of a tile."""
    outputs, size = r.problem.m // r.problem.groups, r.y.itemsize
    spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, asked=int(_is_far(r)), windows=windows(r))
    apart, spread = r.x.c != r.x.itemsize, r.residual is not None or (outputs > 1 and r.y.c != size)
    count, f16c, wide = lanes(r.target, r.arith), r.target.converts_f16, form.wide

    def make(k: Module, name: str) -> None:
        channel_sums_tile(
            k, name, spec, r.problem.x, count, wide, pixels, outputs, apart=apart, spread=spread,
            overlaps=_overlaps(r.target), f16c=f16c,
        )  # fmt: skip

    label = f"channel sums {r.problem.x} {spec} {wide} {pixels} {outputs}{' apart' * apart}{' spread' * spread}"
    return address_of(r, label, "tile", ChannelSums, make)
