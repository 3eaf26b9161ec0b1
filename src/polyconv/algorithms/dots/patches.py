"""Convolutions of small integers, and bf16, over rows of channels-first maps, by dot products of patches.

Lanes are pixels of a row.  A tile's patch has the words of all entries of its windows, an entry being a channel of a
tap, in an order in which no word but the last lacks one: first layers, of few channels, so multiply next to nothing in
vain.  The first block of output channels weaves the patch while it multiplies, all blocks share it.  Inputs are read in
place, where nothing is padded or converted, and arrays lie as planned; else ``pixels`` has a panel of them.
Cost: the products, what follows sums, and copying lines.
Error: sums of integers are exact modulo 2^32; those of bf16 have an own bound, k eps sum|x||w| of f32.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

from polyconv.algorithms.dots.channel_blocks import (
    BLOCK_CYCLES,
    PATCHES,
    ChannelRun,
    ChannelWords,
    RowsForm,
    only_sweep,
    patch_scheme,
    rows_of,
    stored_cycles,
    tile_address,
    walked,
)
from polyconv.algorithms.dots.dense import LYING
from polyconv.algorithms.dots.pixels import pixels_form
from polyconv.algorithms.dots.situations import (
    arithmetic_of,
    has_half_word,
    padding_of,
    window_outputs,
    windows,
    with_bias,
)
from polyconv.algorithms.dots.weights import block_bytes, run_weights
from polyconv.algorithms.form import Forms, Refusal
from polyconv.algorithms.product.axes import folded_as_packed, is_inside, with_folded
from polyconv.dataclass import dataclass
from polyconv.kernels.dots_pixels import DotPixels, PixelWalk
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Counted, Functions, Memory, Word, counted_words, filled, words
from polyconv.lowering.boxes import boxed_words, near_equal, near_equal_sizes, thread_parts
from polyconv.lowering.panel import (
    Driver,
    Item,
    axis_words,
    box_rows,
    decode,
    header_bytes,
    row_place,
    row_source,
)
from polyconv.lowering.program import Program, Request, Step, address_of, epilogue_tables
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Lines, Sweep, box_count, lines, sweeps, taps_of
from polyconv.lowering.traffic import far_cycles

__all__ = ["PatchesForm", "forms"]

_MOST_TILES, _ITEM = 16, 0.05
"""Tiles of an item that reads in place; and what an item takes besides, in tiles or rows."""
_REPEATED = 0.05
"""Share of an item's time that every part of its outputs takes for itself."""
_ROW_CYCLES = 1.0
"""Cycles of a row of sums besides.  Measured on Zen 5, as all that follows."""
_WOVEN = 1.0
"""Cycles that weaving a vector of words takes beside its products."""


_LINE = 64
"""Bytes of a cache line.  Loads that cross one take 4 to 5 % of the time of 256 channels to 64."""
_ALIGNED = 24
"""Tiles of a row from which on they begin with a line: that may take one more."""


class PatchRun(ChannelRun):
    """A run with its tiles: that of a whole one's pixels, and that of fewer."""

    tiles: Functions[PixelWalk]


class PatchesWords(ChannelWords):
    """The driver's words; tiles of so many ``pixels`` begin where a cache line of the input does if it ``aligns``."""

    patch: Word
    pixels: Word
    aligns: Word
    places: Memory
    pixel_bytes: Word
    runs: Counted[PatchRun]
    run_words: Word


def driver(k: Module, name: str) -> None:
    """Add the driver to a module: an item is a box of pixels of a group."""
    with k.function(name, Driver) as given:
        frame, p = given.frame, PatchesWords.read(k, given.words)
        c = p.common
        item = decode(k, c, given.item, given.workspace)
        with k.loop(0, box_rows(k, c, item)) as row:
            _, y, _ = row_place(k, c, item, row.index)
            source = frame.x + row_source(k, c, item, row.index)
            _row(k, p, item, _early(k, p, source), source, frame.y + y, given.workspace + p.patch)


def _early(k: Module, p: PatchesWords, source: Buffer) -> Value:
    """How many pixels before its own a row's tiles begin, so that most begin with a cache line."""
    beyond = k.address(source) & (_LINE - 1)
    whole = (beyond % p.pixel_bytes).equals(0) & p.aligns.equals(1)
    return k.select(whole, beyond // p.pixel_bytes, 0)


def _row(k: Module, p: PatchesWords, item: Item, early: Value, source: Buffer, y: Buffer, patch: Buffer) -> None:
    """The tiles of a row of a box, whose pixels begin and end so much ``early``, but for those of the whole row."""
    c = p.common
    last = c.axes - 1
    first, extent = item.first(last), item.extent(last)
    begin = k.select(first > 0, 0, early)
    end = extent + k.select((first + extent).equals(axis_words(c, last).out), early, 0)
    runs = p.runs + item.split * p.run_words * 8
    with k.loop(0, end, p.pixels) as tile, k.loop(0, runs.count) as each:
        run, at = runs.at(each.index), k.maximum(tile.index, begin)
        pixels = k.minimum(tile.index + p.pixels, end) - at
        function = run.tiles.at(k.select(pixels.equals(p.pixels), k.constant(INT, 0), 1))
        pixel = at - early
        target = y + pixel * p.y_pixel
        k.call(function, PixelWalk(
            *walked(p, item, run, target, target, pixels),  # there are no residuals
            source + pixel * p.pixel_bytes, p.places, patch, patch,
        ))  # fmt: skip


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p, kind = s.problem, arithmetic_of(s)
    if isinstance(sweep := only_sweep(s), Refusal):
        return sweep
    lies = p.x in LYING[kind.weight] and (p.quantisation is None or kind.name == "u8s8")
    in_place = lies and p.op == "conv" and sweep[-1].stride == 1 and all(is_inside(axis) for axis in sweep)
    if not in_place:
        return (pixels_form(s, sweep, woven=True),)
    axes = folded_as_packed(sweep) if _folds(sweep) else sweep
    found = [_form(s, kind, axes, vectors) for vectors in PATCHES if vectors % kind.channels == 0]
    return (min(found, key=lambda form: s.price(("vectors", form.vectors), sum(form.cost().values()))),)


@dataclass(frozen=True, slots=True)
class PatchesForm(RowsForm):
    """Boxes of rows, read in place: axes that lie together are one."""

    @property
    def scheme(self) -> str:
        """The order in which products are summed, where it is not tap by tap."""
        return patch_scheme(self.sweep)

    @property
    def entries(self) -> int:
        """Entries of a window."""
        return self.s.problem.c // self.s.problem.groups * math.prod(axis.taps for axis in self.sweep)

    @property
    def words(self) -> int:
        """Words of a pixel."""
        return -(-self.entries // self.kind.channels)

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box, and a tile's words."""
        return header_bytes(len(self.box)) + self.words * self.vectors * self.s.target.vector_bytes

    def cost(self) -> dict[str, float]:
        """Cycles: the products, what follows sums, and inputs that come from afar."""
        s, p, count = self.s, self.s.problem, box_count(self.sweep, self.box)
        rates, rows = s.rates(self.kind), math.prod(axis.out for axis in self.sweep[:-1])
        stored = stored_cycles(s)
        of_tile = self.words * self.vectors * _WOVEN
        for outputs, blocks in near_equal_sizes(p.m // p.groups, rows_of(s, self.vectors)):
            all_rows = outputs + window_outputs(s)
            loads = (all_rows + self.vectors + 1) / rates.loads
            of_word = max(all_rows * self.vectors / rates.multiply_adds, loads, rates.latency)
            of_tile += blocks * (self.words * of_word + outputs * (stored * self.vectors + _ROW_CYCLES) + BLOCK_CYCLES)
        tiles = rows * -(-self.sweep[-1].out // (self.vectors * lanes(s.target, self.kind)))
        held = math.prod(lines(axis, b).count for axis, b in zip(self.sweep, self.box, strict=True))
        moves, images = far_cycles(s, count * held * p.c * p.x_dtype.itemsize), p.n or 0
        return {"products": images * p.groups * (tiles * of_tile + count * 300.0), "moves": images * moves}

    def build(self, r: Request) -> Program:
        """Program of a request."""
        (sweep,) = sweeps(r.problem)
        folded, axes = with_folded(r, sweep) if _folds(sweep) else (r, sweep)
        if axes != self.sweep or folded.x.spatial[-1] != r.x.itemsize:
            return pixels_form(self.s, sweep, woven=True).build(r)
        keep: list[Any] = []
        step = _step(r, folded, self, keep)
        return Program((step,) if step.items else (), self.workspace, tuple(keep))


def _folds(sweep: Sweep) -> bool:
    """Whether axes that lie together may be one: several taps of an axis would then not be a step of it apart."""
    return all(axis.taps == 1 for axis in sweep)


def _form(s: Situation, kind: Arithmetic, axes: Sweep, vectors: int) -> PatchesForm:
    """The form of tiles of so many vectors."""
    unit, extents = vectors * lanes(s.target, kind), [max(1, axis.out) for axis in axes]
    return PatchesForm(s, axes, kind, _cut(s, extents, unit, s.near(_MOST_TILES)), vectors)


def _cut(s: Situation, extents: list[int], unit: int, most: int) -> tuple[int, ...]:
    """Boxes of at most so many tiles, of which the busiest thread has least to do: the outermost axis is cut."""
    last = len(extents) - 1
    cut = next((a for a, extent in enumerate(extents) if extent > 1), last)
    size, inner = (unit, 1) if cut == last else (1, math.prod(extents[cut + 1 : last]) * -(-extents[last] // unit))
    pieces, images = -(-extents[cut] // size), max(1, (s.problem.n or 0) * s.problem.groups)

    def busiest(each: int) -> float:
        return -(-images * -(-pieces // each) // s.threads) * (each + _ITEM)

    each = min(range(1, max(1, min(pieces, most // inner)) + 1), key=lambda each: (busiest(each), -each))
    return (*extents[:cut], each * size, *extents[cut + 1 :])


def _step(given: Request, r: Request, form: PatchesForm, keep: list[Any]) -> Step:
    """The step of a request whose axes lie as the form takes them; weights are those of the request as given."""
    p, kind, last, group_out = r.problem, form.kind, form.sweep[-1], r.problem.m // r.problem.groups
    (sweep,) = sweeps(p)
    w = given.weights(sweep)
    r = with_bias(r, w, padding_of(r))
    entries = w.reshape(*w.shape[:2], form.entries, 1)
    parts = near_equal_sizes(group_out, rows_of(r.situation, form.vectors))
    whole = (p.n or 0) * p.groups * box_count(form.sweep, form.box)
    splits = thread_parts(r.situation.threads, whole, sum(blocks for _, blocks in parts), _REPEATED)
    held, header = [Lines((), (), ())] * len(form.sweep), header_bytes(len(form.sweep))
    common, items = boxed_words(r, form.sweep, form.box, held, splits, panel=header)
    runs, tile = _runs(r, form, parts, splits), form.vectors * lanes(r.target, kind)
    aligns = form.entries > group_out and r.x.c % _LINE == 0 and last.out > _ALIGNED * tile
    values = PatchesWords(
        common=common, patch=header, pixels=tile, aligns=int(aligns), words=form.words,
        places=words(_places(r, form)), pixel_bytes=r.x.itemsize,
        weights=r.packed(("dots_patches", kind.name, form.vectors, taps_of(sweep)),
                         lambda: run_weights(r, entries, parts)),
        w_group=sum(blocks * block_bytes(r, rows, form.words) for rows, blocks in parts), outputs=group_out, runs=runs,
        run_words=counted_words(PatchRun, runs), tables=epilogue_tables(r), y_pixel=r.y.spatial[-1],
    )  # fmt: skip
    return Step(address_of(r, "dot patches", "patches", Driver, driver), filled(values, keep), items)


def _places(r: Request, form: PatchesForm) -> list[int]:
    """For every word of a pixel the bytes from its window's first entry to its entries; the last stands for none."""
    taps = [0]
    for axis, stride in zip(form.sweep, r.x.spatial, strict=True):
        taps = [at + t * axis.dilation * stride for at in taps for t in range(axis.taps)]
    found = [c * r.x.c + at for c in range(r.problem.c // r.problem.groups) for at in taps]
    return found + found[-1:] * (form.words * form.kind.channels - len(found))


def _runs(r: Request, form: PatchesForm, parts: list[tuple[int, int]], splits: int) -> list[list[PatchRun]]:
    """Blocks of output channels of every item of a box, with their tiles: the first block of each weaves."""
    plain = DotPixels(
        r.arith.name, r.problem.y, r.epilogue, windows(r), patch="held", apart=r.y.spatial[-1] != r.y.itemsize
    )
    weaving = replace(plain, patch="woven", half=has_half_word(form.kind, form.entries))
    every = [outputs for outputs, blocks in parts for _ in range(blocks)]
    found, channel, before = [], 0, 0
    for first, size in near_equal(len(every), -(-len(every) // splits)):
        runs, (woven, *others) = [], every[first : first + size]
        alike = [(outputs, len(list(same))) for outputs, same in itertools.groupby(others)]
        for spec, outputs, blocks in ((weaving, woven, 1), *((plain, *some) for some in alike)):
            tiles = [tile_address(r, replace(spec, edge=edge), outputs, form.vectors) for edge in (False, True)]
            runs.append(PatchRun(channel, blocks, before, tiles))
            channel, before = channel + outputs * blocks, before + blocks * block_bytes(r, outputs, form.words)
        found.append(runs)
    return found
