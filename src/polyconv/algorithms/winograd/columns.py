"""Winograd's convolution along columns of the image: what it has in common whatever stands in the lanes.

A tile is 4 outputs below each other, by F(4,3); the taps along rows, and along further axes, are products of their own,
summed at the points.  ``rows`` has pixels in the lanes, ``groups`` the channels of several groups.  Both read inputs
and write results where they lie, and take no arrays that lie otherwise.  The form, the words of boxes and of what is
computed again, and the geometry of a box are here; the transforms and the products are theirs.

Cost: half the products of a direct sum, and a few additions for each input and output.  Error: window bound, k eps
max|x| sum|w| over a tile's inputs, so accuracy "fast" only.  Groups of a box with an output that is not finite are
computed again by ``careful``.  Sources: as ``channels``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import careful
from polyconv.algorithms.careful import CarefulBox, CarefulWords, box_bytes
from polyconv.algorithms.form import Form
from polyconv.algorithms.winograd.schemes import factor
from polyconv.dataclass import dataclass
from polyconv.kernels.language import Buffer, Module, Value
from polyconv.kernels.record import Function, Memory, Record, Word
from polyconv.kernels.rows import ENTRY_WORDS
from polyconv.kernels.transform import Scheme
from polyconv.lowering import packing, panel
from polyconv.lowering.boxes import row_lists, tap_entries
from polyconv.lowering.panel import Common, EpilogueTables, RowLists, axis_words, line_place, row_entries, row_place
from polyconv.lowering.program import Request, epilogue_tables
from polyconv.lowering.situation import Situation, scheme_of, transform_refusal
from polyconv.lowering.sweep import Lines, Sweep, lines, sweeps
from polyconv.lowering.tiles import is_fusible
from polyconv.problem.problem import Problem

__all__ = [
    "SCHEME", "Box", "ColumnWords", "ColumnsForm", "Sizes", "at_points", "column_words", "entries",
    "held_lines", "in_tiles", "is_admitted", "refusal", "sizes",
]  # fmt: skip

SCHEME = Scheme(4, 3, (5 / 8, 3 / 2))

_LEAST_TERMS = 8
"""Products a point must sum: shorter direct sums are more accurate than twice its error.  Measured rms errors, as
multiples of that of a direct f32 sum, for 3x3 kernels of 2 / 3 / 4 / 8 / 16 channels: 2.1 / 1.9 / 1.7 / 1.5 / 1.4."""
_MOST_CHANNELS = 64
"""Channels of a group: with more, lanes of channels are full and ``winograd`` has less products."""


class ColumnWords(Record):
    """Words of both drivers.

    ``down`` is the number of outputs along the columns, ``reach`` how many pixels of a line are read beyond those of
    the outputs; ``v`` are transformed inputs, in the panel, ``sums`` products at the points.
    """

    common: Common
    word_bytes: Word
    down: Word
    reach: Word
    outer_lines: Word
    v_point: Word
    v_line: Word
    rows: RowLists
    weights: Memory
    sums: Word
    s_point: Word
    y_row: Word
    r_row: Word
    tables: EpilogueTables
    again_words: CarefulWords
    again: Function[CarefulBox]


@dataclass(frozen=True, slots=True)
class Box:
    """The box of an item, in generated code."""

    k: Module
    c: ColumnWords
    item: panel.Item
    frame: panel.Frame
    workspace: Buffer

    @classmethod
    def of(cls, k: Module, c: ColumnWords, given: panel.Driver) -> Box:
        """The box of the item that a driver was given."""
        return cls(k, c, panel.decode(k, c.common, given.item, given.workspace), given.frame, given.workspace)

    @property
    def flag(self) -> Buffer:
        """What becomes non-zero where a result is not finite, behind the header."""
        return self.workspace + self.c.common.axes * 24

    @property
    def tall(self) -> Value:
        """Tiles below each other."""
        return self.item.extent(self.c.common.axes - 2)

    @property
    def pixels(self) -> Value:
        """Outputs of a row."""
        return self.item.extent(self.c.common.axes - 1)

    @property
    def pixels_in(self) -> Value:
        """Inputs of a row."""
        return self.pixels + self.c.reach

    def first_line(self, tile: Value | int) -> Value:
        """Position of the first line of inputs of one of the tiles below each other."""
        return self.item.origin(self.c.common.axes - 2) + tile * SCHEME.m

    def inputs(self, line: Value, channel: Value, first: Value) -> tuple[Buffer, tuple[Value, ...]]:
        """Where the inputs of a row of tiles lie, and which of them are there.

        From line ``first`` on, in a combined line of the outer axes: the place of the first that is no padding; first
        and last pixel that are none, how many pixels there are; first and last line inside the image.
        """
        k, c, item, last = self.k, self.c.common, self.item, self.c.common.axes - 1
        y, x = axis_words(c, last - 1), axis_words(c, last)
        at, count = item.origin(last), self.pixels_in
        head = k.minimum(k.maximum(0 - at, 0), count)
        end = k.maximum(k.minimum(x.inp - at, count), head)
        offset, inside = line_place(k, c, item, line, c.x_base + item.n * c.x_n + item.g * c.x_g + channel * c.x_c, 2)
        there = head, k.select(inside.equals(1), end, head), count, 0 - first, k.minimum(y.inp - first, SCHEME.n)
        return self.frame.x + (offset + first * y.x_stride + (at + head) * x.x_stride), there

    def products(self, row: Value) -> tuple[Buffer, Buffer, Value]:
        """For a row of the outer axes, its first transformed inputs, and the entries of its sums with their number."""
        k, c, item = self.k, self.c, self.item
        line, _, _ = row_place(k, c.common, item, row * self.tall)
        entries, count = row_entries(k, c.common, c.rows, item, row, 2)
        lines = axis_words(c.common, c.common.axes - 2).lines
        return self.workspace + (c.common.panel + line // lines * c.v_line), entries, count

    def lines_out(self, tile: Value | int) -> Value:
        """Lines of outputs of one of the tiles below each other."""
        first = (self.item.first(self.c.common.axes - 2) + tile) * SCHEME.m
        return self.k.minimum(self.c.down - first, SCHEME.m)

    def results(self, row: Value, channel: Value) -> tuple[Buffer, Buffer]:
        """Where the results of a row of tiles go, from a channel of the item on, and where its residual lies."""
        c = self.c.common
        _, y, r = row_place(self.k, c, self.item, row)
        return self.frame.y + (y + channel * c.y_c), self.frame.residual + (r + channel * c.r_c)

    def compute_again(self, first: Value, end: Value) -> None:
        """The outputs of some groups once more by ``careful``, if flagged: for it the box counts outputs, not tiles."""
        k, c, item, workspace = self.k, self.c, self.item, self.workspace
        header, y = workspace + c.common.panel, c.common.axes - 2
        begins = item.first(y) * SCHEME.m
        with k.when(k.word(self.flag) > 0):
            with k.loop(0, c.common.axes * 3) as word:
                k.store(k.word(workspace, word.index), header + word.index * 8, 8)
            k.store(k.minimum(self.tall * SCHEME.m, c.down - begins), header + (y * 24 + 8), 8)
            k.store(begins, header + (y * 24 + 16), 8)
            with k.loop(first, end) as group:
                k.call(c.again, CarefulBox(
                    self.frame, c.again_words, header, item.n, group.index, 0, c.again_words.outputs
                ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a sweep's boxes, in tiles along the last axis but one, and where things lie in the workspace."""

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    panel: int
    v_point: int
    sums: int
    s_point: int
    workspace: int

    @property
    def rows(self) -> int:
        """Combinations of its outputs along the outer axes."""
        return math.prod(self.box[:-2])

    @property
    def outer_lines(self) -> int:
        """Combinations of its input lines along the outer axes."""
        return math.prod([h.count for h in self.held[:-2]])


@dataclass(frozen=True, slots=True)
class ColumnsForm(Form):
    """Boxes for every sweep of a problem, and the sentences on them that hold whatever stands in the lanes."""

    parts: tuple[tuple[Sweep, Sizes], ...]

    @property
    def scheme(self) -> str:
        """The scheme, and the boxes that are done again where a result is not finite: with them the bits change."""
        boxes = ["x".join(map(str, sizes.box)) for _, sizes in self.parts]
        return scheme_of([f"{SCHEME} boxes {box}" for box in boxes])

    @property
    def bound(self) -> tuple[str, float]:
        """Window bound: the additions of a point and of the transforms, times how far the transforms enlarge terms."""
        products = self.s.problem.c // self.s.problem.groups * math.prod(self.s.problem.k)
        transformed = factor(self.s, products // SCHEME.r, SCHEME.n, SCHEME.growth)
        return "window", max(factor(self.s, products), transformed)

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return max(sizes.workspace for _, sizes in self.parts)

    def preparing(self) -> float:
        """Cycles in which a program is made and the weights are transformed, in NumPy."""
        size = math.prod(e or 0 for e in self.s.problem.w_shape) * self.s.problem.w_dtype.itemsize
        return packing.cycles(self.s) + 1.5 * packing.TABLES_CYCLES + 45.0 * size

    def choices(self) -> dict[str, object]:
        """The scheme, along columns alone, and the first sweep's box in outputs."""
        return {"scheme": f"{SCHEME} along columns", "box": _outputs(self.parts[0][1].box)}


def refusal(s: Situation, layout: str) -> str | None:
    """Why nothing is computed so, in a layout; None if it may be."""
    p, reason = s.problem, transform_refusal(s)
    if reason is not None:
        return reason
    if p.layout != layout or not is_fusible(p):
        return f"computes layout {layout} with a cheap epilogue"
    if not (0 < p.c // p.groups <= _MOST_CHANNELS and 0 < p.m // p.groups <= _MOST_CHANNELS):
        return f"takes groups of up to {_MOST_CHANNELS} channels on both sides"
    if p.c // p.groups * math.prod(p.k) < _LEAST_TERMS * SCHEME.r:
        return f"sums of less than {_LEAST_TERMS * SCHEME.r} products are more accurate than it is"
    if not is_admitted(p):
        return "needs 3 taps without stride or dilation along the last axis but one, and stride 1 along the last"
    return None


def is_admitted(p: Problem) -> bool:
    """Whether there are sweeps, and all have such columns."""
    return bool(sweeps(p)) and all(
        len(sweep) > 1 and all(axis.taps and axis.out for axis in sweep) and sweep[-2].out > 1
        and (sweep[-2].taps, sweep[-2].stride, sweep[-2].dilation, sweep[-1].stride) == (3, 1, 1, 1)
        for sweep in sweeps(p)
    )  # fmt: skip


def in_tiles(sweep: Sweep) -> Sweep:
    """The sweep with tiles for outputs along the last axis but one."""
    y = sweep[-2]
    tiles = replace(y, out=-(-y.out // SCHEME.m), taps=SCHEME.n, stride=SCHEME.m, out_step=y.out_step * SCHEME.m)
    return (*sweep[:-2], tiles, sweep[-1])


def _outputs(box: Sequence[int]) -> tuple[int, ...]:
    """A box of tiles, in outputs."""
    return (*box[:-2], box[-2] * SCHEME.m, box[-1])


def held_lines(sweep: Sweep, box: Sequence[int]) -> tuple[Lines, ...]:
    """Inputs of a box of tiles; of a line all between the first and the last that some outputs need."""
    last, count = sweep[-1], box[-1] + (sweep[-1].taps - 1) * sweep[-1].dilation
    held = [lines(axis, b) for axis, b in zip(sweep[:-1], _outputs(box)[:-1], strict=True)]
    return (*held, Lines(tuple(range(count)), ((0, count, 0),), tuple(t * last.dilation for t in range(last.taps))))


def sizes(s: Situation, sweep: Sweep, box: tuple[int, ...], v_point: int, s_point: int, together: int = 1) -> Sizes:
    """Sizes of a box of so many bytes at a point, of inputs and of sums; boxes of a whole row ``together``."""
    held = held_lines(sweep, box)
    panel = -(-(24 * len(sweep) + 8) // 64) * 64  # behind the header and a flag
    sums = panel + together * math.prod(h.count for h in held[:-2]) * SCHEME.n * v_point
    end = max(sums + together * SCHEME.n * s_point, panel + box_bytes(s, len(sweep)))
    return Sizes(box, held, panel, v_point, sums, s_point, end)


def column_words(r: Request, common: Common, sweep: Sweep, sizes: Sizes, weights: NDArray[Any],
                 entries: Sequence[Sequence[int]]) -> ColumnWords:  # fmt: skip
    """The words of both drivers."""
    y_row, r_row = (0 if o is None else o.spatial[-2] * sweep[-2].out_step for o in (r.y, r.residual))
    return ColumnWords(
        common=common, word_bytes=r.arith.bytes, down=sweep[-2].out, reach=sizes.held[-1].count - sizes.box[-1],
        outer_lines=sizes.outer_lines, v_point=sizes.v_point, v_line=SCHEME.n * sizes.v_point,
        rows=row_lists(sweep[:-2], entries, ENTRY_WORDS), weights=weights, sums=sizes.sums, s_point=sizes.s_point,
        y_row=y_row, r_row=r_row, tables=epilogue_tables(r), again_words=careful.box_words(r, sweep),
        again=careful.repair_address(r),
    )  # fmt: skip


def entries(sizes: Sizes, pixel_bytes: int, weight_row: int, channels: int = 1, channel_bytes: int = 0
            ) -> list[list[int]]:  # fmt: skip
    """Words of the entries of every combination of outer taps, as ``tap_entries`` says, at any point."""
    held = *sizes.held[:-2], sizes.held[-1]
    return tap_entries(held, SCHEME.n * sizes.v_point, pixel_bytes, weight_row, channels, channel_bytes)


def at_points(w: NDArray[Any], wide: int) -> NDArray[np.float64]:
    """Weights (groups, m, c, taps) as (groups, m, c, point, tap not transformed), for ``wide`` taps along rows."""
    inner = w.astype(np.float64).reshape(*w.shape[:3], -1, SCHEME.r, wide)
    made: NDArray[np.float64] = np.einsum("iy,gmctyx->gmcitx", SCHEME.weights, inner)
    return made.reshape(*w.shape[:3], SCHEME.n, -1)
