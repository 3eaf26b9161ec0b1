"""Convolutions of small integers, and bf16, over channels-first maps, by dot products whose lanes are pixels.

A box's inputs become planes of words, as in ``dense``, and where a line has a stride, its residues lie apart: so every
tap meets words that follow each other, from one place on.  Tiles broadcast words of weights against them, and store
results of a channel where they belong.  Their vectors run on from line to line, over pixels that only taps need, such
as the last two of every line for three taps; these have no results.  Few output channels so fill vectors, which in
``dense`` need 16 of them.  Or the planes are those of channels, and tiles weave the words of a patch: see ``patches``.
Where results do not lie together a box is a row.  CPUs with AVX-512.
Cost: the products, what follows sums, and weaving words.
Error: as in ``dense``, which adds the same products in the same order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.channel_blocks import (
    BLOCK_CYCLES,
    PANEL_SHARE,
    PATCHES,
    ROWS,
    RowsForm,
    only_sweep,
    patch_scheme,
    rows_of,
    stored_cycles,
    tile_address,
)
from polyconv.algorithms.dots.panel import DotPanel, by_planes, panel_common, weaving_cycles
from polyconv.algorithms.dots.pixels_driver import PixelRun, PixelWords, driver
from polyconv.algorithms.dots.planes import Part, Planes
from polyconv.algorithms.dots.situations import (
    arithmetic_of,
    channel_bytes,
    has_half_word,
    padding_of,
    window_outputs,
    windows,
    with_bias,
)
from polyconv.algorithms.dots.weights import block_bytes, run_weights
from polyconv.algorithms.form import Forms, Refusal
from polyconv.dataclass import dataclass
from polyconv.kernels.dots_pixels import DotPixels, stored_together
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import vector
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.matrix_pixels import PixelTile
from polyconv.kernels.record import filled, words
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxed_words, boxes, near_equal_sizes, rows_follow
from polyconv.lowering.moves import along_in, move_in_address, words_in_address
from polyconv.lowering.panel import Driver, header_bytes
from polyconv.lowering.program import Operand, Program, Request, Step, address_of, epilogue_tables, zeros
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, taps_of
from polyconv.lowering.traffic import far_cycles

__all__ = [
    "PixelsForm", "TileKind", "box_of", "forms", "pixel_words", "pixels_form", "tile_spec", "with_residuals",
]  # fmt: skip

_MANY = 6
"""Output channels from which on tiles have at least so many: else they read pixels so often that these come from the
second-level cache (256 channels, 14x14: twice as slow on Zen 5)."""
_CROSSING = 1.9
"""Loads as which one counts that begins anywhere: nearly all cross a cache line."""
_MOST_PIXELS = 16384
"""Of a box: a program has the tiles of one, which take 2 us each to prepare."""
_AFAR = 1.1
"""How much longer tiles take that read more words than a first-level cache holds: 8 and 10 % in two layers on Zen 5."""
_UNALIGNED = 5.0
"""Cycles that a vector of results of a patch takes more that begins anywhere, as those do that run on over lines."""
_ROW_CYCLES, _WOVEN_ROW_CYCLES = 2.5, 1.0
"""Cycles of a row of sums besides, and of one of a patch."""
_LINE_CYCLES, _LINE_BYTES = 45.0, 28
"""Cycles of copying a line of a channel, or each residue modulo the stride of one, and bytes that then pass in one."""
_WOVEN = 2.5
"""Cycles that weaving a vector of words from a panel takes: nearly all loads cross a cache line."""


TileKind: TypeAlias = tuple[int, bool, bool]
"""A tile's vectors, whether it closes gaps, and whether it has fewer pixels."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p, kind = s.problem, arithmetic_of(s)
    if isinstance(sweep := only_sweep(s, adds=True), Refusal):
        return sweep
    if has_half_word(kind, p.c // p.groups):
        return f"multiplies whole words of channels, not {p.c // p.groups} a group"
    return with_residuals(pixels_form(s, sweep))


def with_residuals(form: PixelsForm) -> Forms:
    """The form, unless it has residuals to add and gaps between its pixels."""
    is_even = not form.woven and not form.panel.has_gaps
    return (form,) if is_even or not form.s.problem.residual else "adds residuals to pixels that follow each other"


@dataclass(frozen=True, slots=True)
class PixelsForm(RowsForm):
    """Boxes whose inputs are planes: of words, or of channels that are ``woven`` to those of a patch.

    The tiles of a patch may begin ``by_lines`` anew.
    """

    woven: bool
    by_lines: bool = False

    @property
    def scheme(self) -> str:
        """The order in which products are summed, where it is not tap by tap."""
        return patch_scheme(self.sweep) if self.woven else ""

    @property
    def panel(self) -> Planes:
        """Where an item's inputs lie."""
        return _planes(self.s, self.sweep, self.box, woven=self.woven)

    @property
    def taps(self) -> int:
        """Taps of the kernel."""
        return math.prod(axis.taps for axis in self.sweep)

    @property
    def words(self) -> int:
        """Words of a pixel."""
        return -(-self.taps * self.panel.count // (self.kind.channels if self.woven else 1))

    @property
    def patch(self) -> int:
        """Where a tile's patch lies in the workspace."""
        return header_bytes(len(self.box)) + self.panel.size

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box, the panel, and a tile's patch."""
        return self.patch + self.words * self.vectors * self.s.target.vector_bytes * self.woven

    def takes(self, x: Operand, y: Operand, residual: Operand | None) -> bool:
        """Whether residuals, if there are any, lie as results do, pixel by pixel."""
        if residual is None:
            return True
        return y.spatial[-1] == y.itemsize and (residual.n, residual.c, residual.spatial) == (y.n, y.c, y.spatial)

    def cost(self) -> dict[str, float]:
        """Cycles: the products, what follows sums, and weaving words."""
        s, p, panel = self.s, self.s.problem, self.panel
        outputs, stride = math.prod(axis.out for axis in self.sweep), self.sweep[-1].stride
        items = outputs / max(1, math.prod(self.box))
        runs = [count for _, count, _ in panel.held[-1].runs]
        if self.woven:
            of_lines = sum(_LINE_CYCLES + count * panel.pixel_bytes * stride / _LINE_BYTES for count in runs)
            moved = 300.0 + panel.lines * panel.count * of_lines
        else:
            arith, channels = arithmetic_of(s), p.c // p.groups
            moved = sum(weaving_cycles(s, arith, panel.held, count, channels, stride) for count in runs)
        read = items * panel.lines * sum(runs) * p.c * p.x_dtype.itemsize
        return {
            "products": self.products() * items * p.groups * (p.n or 0),
            "moves": (moved * items * p.groups + far_cycles(s, read)) * (p.n or 0),
        }

    def products(self) -> float:
        """Cycles of a box's tiles."""
        return _product_cycles(self)

    def build(self, r: Request) -> Program:
        """Program of a request."""
        *outer, last = self.box
        follow = r.y.spatial[-1] == r.y.itemsize and rows_follow(r, self.sweep)
        form = self if follow else replace(self, box=(*(1 for _ in outer), last))
        keep: list[Any] = []
        step = form.step(r, keep)
        return Program((step,) if step.items else (), form.workspace, tuple(keep))

    def step(self, r: Request, keep: list[Any]) -> Step:
        """The only step of a program."""
        values, items, _ = pixel_words(r, self)
        wide = r.target.vector_bytes
        address = address_of(r, "dot pixels", "dot_pixels", Driver, lambda k, name: driver(k, name, wide))
        return Step(address, filled(values, keep), items)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Output channels of a block, and blocks: of a group."""
        return near_equal_sizes(self.s.problem.m // self.s.problem.groups, rows_of(self.s, self.vectors))

    def runs(self, r: Request, kinds: list[TileKind]) -> tuple[list[PixelRun], int]:
        """Runs of blocks with their tiles of each kind, and bytes of weights of a group."""
        found, channel, before, half = [], 0, 0, has_half_word(self.kind, self.taps * self.panel.count)
        for rows, blocks, spec in _runs(self.parts, tile_spec(r, self), half=half):
            functions = [tile_address(r, replace(spec, gaps=gaps, edge=edge), rows, n) for n, gaps, edge in kinds]
            found.append(PixelRun(channel, blocks, before, functions))
            channel += rows * blocks
            before += blocks * block_bytes(r, rows, self.words)
        return found, before

    def packed(self, r: Request, w: NDArray[Any]) -> NDArray[Any]:
        """Weights (groups, m, c, taps) as the tiles take them."""
        entries = w.reshape(*w.shape[:2], -1, 1) if self.woven else w
        key = ("dots_patches" if self.woven else "dots_pixels", self.kind.name, self.vectors, taps_of(self.sweep))
        return r.packed(key, lambda: run_weights(r, entries, self.parts))

    def offsets(self) -> list[int]:
        """For every tap and word of it the bytes from the place of a pixel's first tap to what it meets.

        Of a patch those of all taps of a channel, then the next one's; the last of all stands for none.
        """
        taps, planes = self.tap_offsets(), [number * self.panel.plane_bytes for number in range(self.panel.count)]
        if not self.woven:
            return [at + plane for at in taps for plane in planes]
        found = [at + plane for plane in planes for at in taps]
        return found + found[-1:] * (self.words * self.kind.channels - len(found))

    def tap_offsets(self) -> list[int]:
        """The same for every tap of the first word."""
        panel = self.panel
        return [at * panel.pixel_bytes for at in panel.places([h.start for h in panel.held]).tolist()]


def _planes(s: Situation, sweep: Sweep, box: tuple[int, ...], *, woven: bool) -> Planes:
    return Planes.of(s, arithmetic_of(s), sweep, box, max(ROWS), woven=woven)


def box_of(s: Situation, sweep: Sweep, *, woven: bool) -> tuple[int, ...]:
    """Outputs of an item: as many as a share of a second-level cache holds the inputs of, but some for every thread."""
    p = s.problem
    extents = tuple(max(1, axis.out) for axis in sweep)
    budget = s.budget(s.profile.cache("l2", PANEL_SHARE))

    def size(box: tuple[int, ...]) -> int:
        is_few = math.prod(box) <= s.near(_MOST_PIXELS)
        return _planes(s, sweep, box, woven=woven).size if is_few else budget + 1

    box = boxes(extents, size, budget)
    items = (p.n or 0) * p.groups * math.prod(-(-e // b) for e, b in zip(extents, box, strict=True))
    if s.threads > 1 and items % s.threads:
        cut = next((a for a, e in enumerate(extents) if e > 1), 0)
        part = -(-extents[cut] // (s.threads * -(-extents[cut] // box[cut])))
        box = (*box[:cut], max(1, part), *box[cut + 1 :])
    return box


def pixels_form(s: Situation, sweep: Sweep, *, woven: bool = False) -> PixelsForm:
    """The form of a sweep."""
    kind, box = arithmetic_of(s), box_of(s, sweep, woven=woven)
    wide = [vectors for vectors in ROWS if rows_of(s, vectors) >= min(s.problem.m // s.problem.groups, _MANY)]
    if woven:
        wide = [vectors for vectors in PATCHES if vectors % kind.channels == 0]
    found = [PixelsForm(s, sweep, kind, box, vectors, woven, by_lines)
             for vectors in wide for by_lines in (False, True)[: 1 + woven]]  # fmt: skip
    return min(found, key=lambda form: s.price(("vectors", form.vectors, form.by_lines), _product_cycles(form)))


def _product_cycles(form: PixelsForm) -> float:
    """Cycles of a box's tiles: products or loads, what follows sums, and weaving those of a patch."""
    s, kind, panel, steps, most = form.s, form.kind, form.panel, form.words, form.vectors
    rates, total, lane = s.rates(kind), 0.0, lanes(s.target, kind)
    runs_on = panel.has_gaps and not form.by_lines
    within = min(1.0, max(0, form.box[-1] - most * lane + 1) / panel.pitch) if runs_on else 1.0
    of_vector = within * stored_cycles(s) + (1 - within) * stored_cycles(s, gaps=True)
    of_row = _WOVEN_ROW_CYCLES if form.woven else _ROW_CYCLES
    crossing = _CROSSING if form.taps > 1 and not form.woven else 1.0
    lines_read = panel.count * len(panel.held[-1].runs) * math.prod(len(h.start) for h in panel.held[:-1])
    stretches, pixels = panel.stretches(most * lane)
    if panel.has_gaps and form.by_lines:
        stretches, pixels = math.prod(form.box[:-1]), form.box[-1]
    if form.woven and runs_on:
        of_vector += _UNALIGNED * lane * s.problem.y_dtype.itemsize / s.target.vector_bytes
    for vectors, tiles in near_equal_sizes(-(-pixels // lane), most):
        vectors = most if form.woven else vectors
        read = lines_read * vectors * crossing * s.target.vector_bytes
        slower = _AFAR if read > s.profile.cache("l1", 1) and not form.woven else 1.0
        of_tile = steps * vectors * _WOVEN * form.woven
        for rows, blocks in near_equal_sizes(s.problem.m // s.problem.groups, rows_of(s, most)):
            all_rows = rows + window_outputs(s)
            loads = (all_rows + vectors * crossing + 1) / rates.loads
            of_word = max(all_rows * vectors / rates.multiply_adds, loads, rates.latency) * slower
            of_tile += blocks * (steps * of_word + rows * (of_vector * vectors + of_row) + BLOCK_CYCLES)
        total += stretches * tiles * of_tile
    return total


def pixel_words(r: Request, form: PixelsForm) -> tuple[PixelWords, int, tuple[list[int], list[int]]]:
    """The driver's words for a request, items, and kinds of the tiles of a whole box and of one that is cut short."""
    p, kind, sweep, padding = r.problem, form.kind, form.sweep, padding_of(r)
    last, panel = sweep[-1], form.panel
    w = r.weights(sweep)
    r = with_bias(r, w, padding)
    common, items = boxed_words(r, sweep, form.box, panel.held, panel=header_bytes(len(sweep)))
    cut = tuple(axis.out % b or b for axis, b in zip(sweep, form.box, strict=True))
    whole_tiles, cut_tiles = _parts(r, form, form.box), _parts(r, form, cut) if cut != form.box else []
    tiles, kinds, of_tiles, closed = _tiles(form, [*whole_tiles, *cut_tiles], lanes(r.target, kind))
    runs, of_group = form.runs(r, kinds)
    packed = DotPanel(
        in_place=0, channels=p.c // p.groups, plane_channels=1 if form.woven else kind.channels,
        channel_bytes=channel_bytes(kind), pixel_bytes=panel.pixel_bytes,
        line_bytes=panel.pitch * panel.pixel_bytes, plane_bytes=panel.plane_bytes, one_run=0, padding=padding,
        move_in=_move_in(r, last, woven=form.woven), by_planes=0, slabs=0, slab_rows=0, row_run_count=0, row_runs=[],
        planes_in=None,
    )  # fmt: skip
    values = PixelWords(
        common=panel_common(r, common, last.stride),
        panel=packed if form.woven else by_planes(packed, r, panel.held, last), patch=form.patch,
        tiles=tiles, gaps=closed,
        box_pixels=math.prod(form.box), box_tiles=len(whole_tiles), cut_tiles=len(cut_tiles), words=form.words,
        offsets=words(form.offsets()), weights=form.packed(r, w), w_group=of_group, outputs=p.m // p.groups, runs=runs,
        run_count=len(runs), tables=epilogue_tables(r), y_pixel=r.y.spatial[-1],
    )  # fmt: skip
    return values, items, (of_tiles[: len(whole_tiles)], of_tiles[len(whole_tiles) :])


def tile_spec(r: Request, form: PixelsForm) -> DotPixels:
    """The kind of tile of a request."""
    return DotPixels(
        r.arith.name, r.problem.y, r.epilogue, windows(r), form.panel.has_gaps, r.target.vbmi2,
        "held" if form.woven else "", apart=r.y.spatial[-1] != r.y.itemsize,
    )  # fmt: skip


def _parts(r: Request, form: PixelsForm, extents: tuple[int, ...]) -> list[Part]:
    """Tiles of a box of so many outputs along every axis; each begins with a pixel that has a result."""
    count, unit = lanes(r.target, r.arith), r.arith.channels if form.woven else 1
    stored = stored_together(tile_spec(r, form), vector(r.arith.accumulator, count))
    return form.panel.parts(extents, form.vectors, count, unit, stored * count, r.y.itemsize, by_lines=form.by_lines)


def _runs(parts: list[tuple[int, int]], spec: DotPixels, *, half: bool) -> list[tuple[int, int, DotPixels]]:
    """Blocks of output channels with their kind of tile: the first one weaves a patch, if there is one."""
    found = [(rows, blocks, spec) for rows, blocks in parts]
    if not spec.patch:
        return found
    (rows, blocks), *_ = parts
    rest = [(rows, blocks - 1, spec)] if blocks > 1 else []
    return [(rows, 1, replace(spec, patch="woven", half=half)), *rest, *found[1:]]


def _tiles(form: PixelsForm, parts: list[Part], lanes: int
           ) -> tuple[list[PixelTile], list[TileKind], list[int], NDArray[Any]]:  # fmt: skip
    """Tiles, their kinds, that of each, and the gaps."""
    size, before, tiles, kinds, of_tiles = form.panel.pixel_bytes, 0, [], dict[TileKind, int](), []
    for part in parts:
        closes = part.pixels < part.span
        edge = form.woven and not closes and part.pixels < part.vectors * lanes
        of_tiles.append(kinds.setdefault((part.vectors, closes, edge), len(kinds)))
        tiles.append(PixelTile(part.first, part.pixels, part.place * size, before, of_tiles[-1]))
        before += part.gaps.nbytes
    return tiles, list(kinds), of_tiles, np.concatenate([part.gaps for part in parts]) if before else zeros()


def _move_in(r: Request, last: Axis, *, woven: bool) -> Address[MoveIn]:
    """The move of pixels into words of the panel, or of those of a channel."""
    p, kind = r.problem, r.arith
    size, along = channel_bytes(kind), along_in(r, last, "p" if woven else "c")
    if woven:
        return move_in_address(r, Move(p.x, f"i{8 * size}", "any" if along == "cp" else along))
    if along in ("any", "cc"):
        return move_in_address(r, Move(p.x, f"i{8 * size}", "any"))
    return words_in_address(r, Move(p.x, f"i{8 * size}", along, together=kind.channels))
