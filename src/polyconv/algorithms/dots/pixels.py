"""Pointwise convolutions of small integers over channels-first maps, by dot products whose lanes are pixels.

A box of pixels becomes planes of words, as in ``dense``; tiles read them as they lie, broadcast words of weights
against them, and store results of a channel where they belong.  Any stride without padding, any group.  Arrays whose
results do not lie together are left to ``dense``, and CPUs without AVX-512.
Cost: the products, what follows sums, and weaving words.  Exact: sums are taken modulo 2^32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.dense import DenseForm
from polyconv.algorithms.dots.panel import DotPanel, pack_lines, panel_common, words_in_address
from polyconv.algorithms.dots.situations import arithmetic_of, channel_bytes, padding_of, refusal, with_bias
from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.panel import Common, Driver, EpilogueTables, box_rows, decode, header_bytes, row_place
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    Step,
    address_of,
    along_in,
    boxed_words,
    boxes,
    epilogue_tables,
    far_cycles,
    move_in_address,
    near_equal,
    near_equal_sizes,
    rows_follow,
)
from polyconv.algorithms.sweep import Axis, Sweep, lines, sweeps
from polyconv.kernels.dots_pixels import DotPixels, PixelWalk, dot_pixels
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.language import INT, Module
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.record import Function, Memory, Record, Table, Word, filled
from polyconv.kernels.signature import Address

__all__ = ["PixelsForm", "forms"]

_ROWS = {4: 6, 3: 8, 2: 12, 1: 24}
"""Output channels of a tile by its vectors of pixels: sums, pixels and a weight fit 32 registers."""
_PANEL_SHARE = 3 / 16
"""Of a second-level cache, for a panel: measured on Zen 5, 3 % slower with half or twice as much."""


class PixelTile(Record):
    """A tile of a box: its first pixel, and a function for its pixels."""

    first: Word
    function: Function[PixelWalk]


class ChannelRun(Record):
    """Blocks of as many output channels: the first channel, blocks, bytes of weights before them, and their tiles.

    Those of a whole box come before those of the last one, which may be cut short.
    """

    channel: Word
    blocks: Word
    weights: Word
    tiles: Table[PixelTile]


class PixelWords(Record):
    """The driver's words: of a whole box ``box_pixels``, in ``box_tiles``; of the last one so many in ``cut_tiles``."""

    common: Common
    panel: DotPanel
    box_pixels: Word
    box_tiles: Word
    cut_tiles: Word
    words: Word
    weights: Memory
    w_group: Word
    outputs: Word
    runs: Table[ChannelRun]
    run_count: Word
    tables: EpilogueTables
    y_pixel: Word


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is a box of pixels of a group."""
    with k.function(name, Driver) as given:
        frame, p = given.frame, PixelWords.read(k, given.words)
        c, tables = p.common, p.tables
        item = decode(k, c, given.item, given.workspace)
        panel = given.workspace + c.panel
        pack_lines(k, c, p.panel, item, frame.x, panel, vector_bytes)
        pixels = box_rows(k, c, item, 0)
        is_whole = pixels.equals(p.box_pixels)
        first_tile = k.select(is_whole, 0, p.box_tiles)
        _, y, _ = row_place(k, c, item, k.constant(INT, 0))
        with k.loop(0, k.select(is_whole, p.box_tiles, p.cut_tiles)) as number, k.loop(0, p.run_count) as each:
            run = p.runs.at(each.index)
            tile = run.tiles.at(first_tile + number.index)
            first, channel = tile.first, item.g * p.outputs + run.channel
            k.call(tile.function, PixelWalk(
                panel + first * p.panel.pixel_bytes, p.panel.plane_bytes, p.words,
                p.weights + (item.g * p.w_group + run.weights), frame.y + (y + run.channel * c.y_c + first * p.y_pixel),
                c.y_c, run.blocks, pixels - first, tables.bias + channel * 4, tables.scale + channel * 4,
                tables.constants,
            ))  # fmt: skip


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    if (reason := refusal(s)) is not None:
        return reason
    p = s.problem
    if p.op != "conv" or p.layout != "NCHW" or any(taps != 1 for taps in p.k) or p.residual or p.y == "i16":
        return "computes pointwise convolutions of channels-first maps, without a residual, to 8 and 32 bits"
    (sweep,) = sweeps(p)
    if any(axis.pad > 0 or (axis.out - 1) * axis.stride - axis.pad >= axis.inp for axis in sweep):
        return "needs windows that meet no padding"
    return (_form(s, sweep),)


@dataclass(frozen=True, slots=True)
class PixelsForm(Form):
    """Boxes of pixels, whose tiles have a few vectors of pixels by some output channels.

    Parameters
    ----------
    sweep : Sweep
    kind : Arithmetic
        How words are multiplied.
    box : tuple of int
        Pixels of an item along every axis.
    vectors : int
        Most vectors of pixels of a tile.
    """

    sweep: Sweep
    kind: Arithmetic
    box: tuple[int, ...]
    vectors: int

    @property
    def arithmetic(self) -> str:
        """Bytes by bytes, or pairs of 16 bits."""
        return self.kind.name

    @property
    def words(self) -> int:
        """Words of a pixel."""
        return -(-(self.s.problem.c // self.s.problem.groups) // self.kind.channels)

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box and the panel."""
        return header_bytes(len(self.box)) + _panel_bytes(self.s, self.kind, self.box)

    def cost(self) -> dict[str, float]:
        """Cycles: the products, what follows sums, and weaving words."""
        s, p = self.s, self.s.problem
        outputs, pixels = p.m // p.groups, math.prod(axis.out for axis in self.sweep)
        products = _product_cycles(s, self.kind, self.words, outputs, math.prod(self.box), self.vectors)
        products *= pixels / max(1, math.prod(self.box))
        lines_in = math.prod(axis.out for axis in self.sweep[:-1])
        woven = lines_in * self.words * (12 + self.sweep[-1].out * self.kind.bytes * self.sweep[-1].stride / 28)
        return {
            "products": products * p.groups * (p.n or 0),
            "moves": (woven * p.groups + far_cycles(p, pixels * p.c)) * (p.n or 0),
        }

    def choices(self) -> dict[str, object]:
        """Sizes of boxes and tiles."""
        return {"box": self.box, "tile": f"{_ROWS[self.vectors]} channels x {self.vectors} vectors of pixels"}

    def build(self, r: Request) -> Program:
        """Program of a request."""
        if r.y.spatial[-1] != r.y.itemsize or not rows_follow(r, self.sweep):
            return DenseForm.of(r.situation).build(r)
        keep: list[Any] = []
        step = _step(r, self, keep)
        return Program((step,) if step.items else (), self.workspace, tuple(keep))


def _form(s: Situation, sweep: Sweep) -> PixelsForm:
    kind, p = arithmetic_of(s), s.problem
    extents = tuple(max(1, axis.out) for axis in sweep)
    words, outputs = -(-(p.c // p.groups) // kind.channels), p.m // p.groups

    def price(vectors: int) -> float:
        return s.price(("vectors", vectors), _product_cycles(s, kind, words, outputs, math.prod(extents), vectors))

    vectors = min(_ROWS, key=price)
    box = boxes(extents, lambda box: _panel_bytes(s, kind, box), s.budget(s.profile.cache("l2", _PANEL_SHARE)))
    items = (p.n or 0) * p.groups * math.prod(-(-e // b) for e, b in zip(extents, box, strict=True))
    if s.threads > 1 and items % s.threads:
        cut = next((a for a, e in enumerate(extents) if e > 1), 0)
        part = -(-extents[cut] // (s.threads * -(-extents[cut] // box[cut])))
        box = (*box[:cut], max(1, part), *box[cut + 1 :])
    return PixelsForm(s, sweep, kind, box, vectors)


def _product_cycles(s: Situation, kind: Arithmetic, words: int, outputs: int, pixels: int, most: int) -> float:
    """Cycles of a box's tiles of at most so many vectors: products or loads, and what follows sums."""
    rates, total = s.rates(kind), 0.0
    for vectors, tiles in near_equal_sizes(-(-pixels // lanes(s.target, kind)), most):
        for rows, blocks in near_equal_sizes(outputs, _ROWS[most]):
            of_word = max(rows * vectors / rates.multiply_adds, (rows + vectors) / rates.loads, rates.latency)
            total += tiles * blocks * (words * of_word + rows * (1.7 * vectors + 2.5) + 8.0)
    return total


def _plane_bytes(kind: Arithmetic, box: tuple[int, ...]) -> int:
    """Of a panel: an odd number of cache lines, and room to read and write more."""
    return (-(-(math.prod(box) * kind.bytes) // 64) | 1) * 64 + 128


def _panel_bytes(s: Situation, kind: Arithmetic, box: tuple[int, ...]) -> int:
    """Bytes of a panel, with what the last tile reads behind it."""
    p = s.problem
    words = -(-(p.c // p.groups) // kind.channels)
    return _plane_bytes(kind, box) * max(1, words) + max(_ROWS) * s.target.vector_bytes


def _step(r: Request, form: PixelsForm, keep: list[Any]) -> Step:
    p, kind, sweep, padding = r.problem, form.kind, form.sweep, padding_of(r)
    group_in, group_out, last = p.c // p.groups, p.m // p.groups, form.sweep[-1]
    w = r.weights(sweep)
    r = with_bias(r, w, padding)
    held = [lines(axis, b) for axis, b in zip(sweep, form.box, strict=True)]
    common, items = boxed_words(r, sweep, form.box, held, panel=header_bytes(len(sweep)))
    parts = near_equal_sizes(group_out, _ROWS[form.vectors])
    tiles = _tiles(r, form)
    runs, channel = [], 0
    for rows, blocks in parts:
        runs.append(ChannelRun(channel, blocks, channel * form.words * kind.bytes, tiles(rows)))
        channel += rows * blocks
    size = channel_bytes(kind)
    values = PixelWords(
        common=panel_common(r, common, last.stride),
        panel=DotPanel(
            in_place=0, channels=group_in, plane_channels=kind.channels, channel_bytes=size, pixel_bytes=kind.bytes,
            line_bytes=form.box[-1] * kind.bytes, plane_bytes=_plane_bytes(kind, form.box), one_run=0, padding=0,
            move_in=_move_in(r, last),
        ),
        box_pixels=math.prod(form.box), box_tiles=len(_parts(r, math.prod(form.box), form.vectors)),
        cut_tiles=len(_parts(r, _cut_pixels(form), form.vectors)), words=form.words,
        weights=r.packed(("dots_pixels", kind.name, form.vectors), lambda: _packed(w, kind, parts)),
        w_group=group_out * form.words * kind.bytes, outputs=group_out, runs=runs, run_count=len(runs),
        tables=epilogue_tables(r), y_pixel=r.y.itemsize,
    )  # fmt: skip
    address = address_of(r, "dot pixels", "dot_pixels", Driver, lambda k, name: driver(k, name, r.target.vector_bytes))
    return Step(address, filled(values, keep), items)


def _cut_pixels(form: PixelsForm) -> int:
    """Pixels of the last box."""
    return math.prod(axis.out % b or b for axis, b in zip(form.sweep, form.box, strict=True))


def _parts(r: Request, pixels: int, most: int) -> list[tuple[int, int]]:
    """Tiles of so many pixels: the first vector and number of vectors of each."""
    return near_equal(-(-pixels // lanes(r.target, r.arith)), most)


def _tiles(r: Request, form: PixelsForm) -> Callable[[int], list[PixelTile]]:
    """What lists the tiles of a whole box and of the last one, for blocks of so many output channels."""
    spec, count = DotPixels(r.arith.name, r.problem.y, r.epilogue), lanes(r.target, r.arith)
    parts = [part for pixels in (math.prod(form.box), _cut_pixels(form)) for part in _parts(r, pixels, form.vectors)]

    def of_rows(rows: int) -> list[PixelTile]:
        functions: dict[int, Address[PixelWalk]] = {}
        for vectors in sorted({vectors for _, vectors in parts}):
            def make(k: Module, name: str, vectors: int = vectors) -> None:
                dot_pixels(k, name, spec, count, rows, vectors)

            functions[vectors] = address_of(r, f"{spec} {rows}x{vectors}", "tile", PixelWalk, make)
        return [PixelTile(first * count, functions[vectors]) for first, vectors in parts]

    return of_rows


def _move_in(r: Request, last: Axis) -> Address[MoveIn]:
    """The move of pixels into words of the panel."""
    p, kind = r.problem, r.arith
    size, along = channel_bytes(kind), along_in(r, last, "c")
    if along not in ("pc", "2c"):
        return move_in_address(r, Move(p.x, f"i{8 * size}", "any"))
    return words_in_address(r, Move(p.x, f"i{8 * size}", along, together=kind.channels))


def _packed(w: NDArray[Any], kind: Arithmetic, parts: list[tuple[int, int]]) -> NDArray[Any]:
    """Weights (groups, m, c, 1) as [group][block][word][output channel][channel of the word]."""
    groups, m, c, _ = w.shape
    words = -(-c // kind.channels)
    whole = np.zeros((groups, m, words * kind.channels), w.dtype)
    whole[:, :, :c] = w[..., 0]
    whole = whole.reshape(groups, m, words, kind.channels)
    packed, first = [], 0
    for rows, blocks in parts:
        some = whole[:, first : first + rows * blocks].reshape(groups, blocks, rows, words, kind.channels)
        packed.append(some.transpose(0, 1, 3, 2, 4).reshape(groups, -1))
        first += rows * blocks
    return np.ascontiguousarray(np.concatenate(packed, axis=1))
