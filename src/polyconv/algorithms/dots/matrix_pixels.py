"""Bytes, and bf16, over channels-first maps by the CPU's matrix unit: products of 16 output channels by 16 pixels.

Inputs become planes of words, as in ``pixels``, or words of a patch are woven from planes of channels: so every product
takes up to 16 words of each of 16 pixels, and results of a channel lie together as they leave the unit.
Cost: the products, what follows sums, and weaving words.
Error: sums of integers are exact modulo 2^32; those of bf16 have an own bound, k eps sum|x||w| of f32.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.channel_blocks import only_sweep, stored_cycles, walked
from polyconv.algorithms.dots.matrix import step_words
from polyconv.algorithms.dots.pixels import PixelsForm, TileKind, box_of, pixel_words, tile_spec, with_residuals
from polyconv.algorithms.dots.pixels_driver import PixelRun, PixelWords, packed_box
from polyconv.algorithms.dots.situations import arithmetic_of, has_half_word, unit_refusal, window_outputs
from polyconv.algorithms.form import Forms, Refusal
from polyconv.dataclass import dataclass
from polyconv.kernels import matrix_unit
from polyconv.kernels.dots_pixels import DotPixels
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import INT, Module
from polyconv.kernels.matrix_pixels import MatrixPixelWalk, PixelTile, matrix_pixels
from polyconv.kernels.record import Memory, Record, Table, Word, filled, word_count
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import near_equal_sizes
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Request, Step, address_of
from polyconv.lowering.situation import Situation, of_one_image
from polyconv.lowering.sweep import Sweep, taps_of
from polyconv.runtime.arrays import as_aligned

__all__ = ["MatrixPixelsForm", "forms"]

_VECTORS, _HEIGHT = len(matrix_unit.SUMS), matrix_unit.TALLEST
"""Registers of pixels of a tile, and its output channels: a block.  Squares of registers would load fewer of them for a
product, but leave lines of results half as long: a sixth slower in 12 of 14 layers of an Emerald Rapids."""
_PRODUCT, _LOAD = 16.0, 5.0
"""Cycles of a product, and what is not hidden behind products of a load of a register.  Measured on an Emerald Rapids,
as all that follows."""
_CROSSING = 2.0
"""Loads as which one counts whose rows begin anywhere: nearly all cross a cache line."""
_ROW, _BLOCK, _WEAVE = 3.0, 40.0, 2.5
"""Cycles of a row of sums on its way out of the unit, for each vector; of a block of output channels besides; and of a
vector of words that is woven."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p, kind = s.problem, arithmetic_of(s)
    if isinstance(sweep := only_sweep(s, adds=True), Refusal):
        return sweep
    if (reason := unit_refusal(s)) is not None:
        return reason
    if window_outputs(s):
        return "needs weights that less their zero points are numbers of i8"
    ways = [woven for woven in (False, True) if woven or not has_half_word(kind, p.c // p.groups)]
    ways = ways[:1] if p.residual else ways  # which is of bytes, whose words are whole; patches add none
    one = of_one_image(s)  # neither batch nor threads may change the order of sums

    def price(woven: bool) -> float:
        return s.price(("woven", woven), sum(_form(one, sweep, woven=woven).cost().values()))

    return with_residuals(_form(s, sweep, woven=min(ways, key=price)))


def _form(s: Situation, sweep: Sweep, *, woven: bool) -> MatrixPixelsForm:
    """The cheapest form of a sweep, of patches or of planes: tiles begin anew with a line or run on."""
    kind, box = arithmetic_of(s), box_of(s, sweep, woven=woven)
    found = [MatrixPixelsForm(s, sweep, kind, box, _VECTORS, woven, by_lines) for by_lines in (False, True)]
    return min(found, key=lambda form: s.price(("lines", form.by_lines), sum(form.cost().values())))


@dataclass(frozen=True, slots=True)
class MatrixPixelsForm(PixelsForm):
    """Boxes whose inputs are planes, by a register of output channels and some of pixels."""

    @property
    def steps(self) -> tuple[int, int]:
        """Steps of a tap, of which a patch is one, and words of a step.

        A patch has words of zeros after its own where steps would be short otherwise.
        """
        words = self.words if self.woven else self.panel.count
        if self.woven:
            steps = -(-words // (matrix_unit.PIXEL_BYTES // 4))
            return steps, -(-words // steps)
        return words // step_words(words), step_words(words)

    @property
    def sums(self) -> int:
        """Where sums of registers lie in the workspace."""
        steps, of_step = self.steps
        patches = 2 * steps * of_step * self.vectors * self.s.target.vector_bytes * self.woven
        return -(-(self.patch + patches) // 64) * 64

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box, the panel, patches of two tiles, and sums of two blocks."""
        return self.sums + 2 * self.vectors * _HEIGHT * matrix_unit.PIXEL_BYTES

    @property
    def blocks(self) -> int:
        """Blocks of a group, of which the last may have fewer output channels."""
        return max(1, -(-(self.s.problem.m // self.s.problem.groups) // _HEIGHT))

    def products(self) -> float:
        """Cycles of a box's tiles."""
        s, panel, lane = self.s, self.panel, lanes(self.s.target, self.kind)
        taps, (steps, _) = 1 if self.woven else self.taps, self.steps
        runs_on = panel.has_gaps and not self.by_lines
        of_vector, total = stored_cycles(s, gaps=runs_on) + _ROW, 0.0
        stretches, pixels = panel.stretches(self.vectors * lane)
        if panel.has_gaps and self.by_lines:
            stretches, pixels = math.prod(self.box[:-1]), self.box[-1]
        crossing = _CROSSING if self.taps > 1 and not self.woven else 1.0
        for vectors, tiles in near_equal_sizes(-(-pixels // lane), self.vectors):
            step = vectors * _PRODUCT + (1 + vectors * crossing) * _LOAD
            of_block = taps * steps * step + _HEIGHT * vectors * of_vector + _BLOCK
            total += stretches * tiles * (self.words * vectors * _WEAVE * self.woven + self.blocks * of_block)
        return total

    def step(self, r: Request, keep: list[Any]) -> Step:
        """The only step of a program."""
        values, items, tile_kinds = pixel_words(r, self)
        steps, of_step = self.steps
        whole, cut = (_stretches(*kinds) for kinds in ((tile_kinds[0], 0), (tile_kinds[1], len(tile_kinds[0]))))
        of_matrix = MatrixPixelWords(
            **vars(values), stretches=[*whole, *cut], box_stretches=len(whole), cut_stretches=len(cut),
            shapes=matrix_unit.shapes(matrix_unit.TALLEST, of_step),
            taps=1 if self.woven else self.taps, steps=steps, step_words=of_step, plane=self.panel.plane_bytes,
            sums=self.sums,
        )  # fmt: skip
        wide = r.target.vector_bytes
        address = address_of(r, "matrix pixels", "matrix_pixels", Driver, lambda k, name: _driver(k, name, wide))
        return Step(address, filled(of_matrix, keep), items)

    def runs(self, r: Request, kinds: list[TileKind]) -> tuple[list[PixelRun], int]:
        """The only run of blocks, with its tiles of each kind, and bytes of weights of a group."""
        spec = tile_spec(r, self)
        if self.woven:
            spec = replace(spec, patch="woven", half=has_half_word(self.kind, self.taps * self.panel.count))
        functions = [_tile(r, replace(spec, gaps=gaps, edge=edge), n) for n, gaps, edge in kinds]
        steps = math.prod((self.steps[0], 1 if self.woven else self.taps))
        return [PixelRun(0, self.blocks, 0, functions)], self.blocks * steps * _HEIGHT * matrix_unit.PIXEL_BYTES

    def packed(self, r: Request, w: NDArray[Any]) -> NDArray[Any]:
        """Weights (groups, m, c, taps) as [group][block][tap][step][output channel][word of a row of a register]."""
        (steps, of_step), together, row = self.steps, self.kind.channels, matrix_unit.PIXEL_BYTES // w.itemsize

        def make() -> NDArray[Any]:
            groups, m, *_ = w.shape
            by_tap = w.reshape(groups, m, 1, -1) if self.woven else w.swapaxes(2, 3)
            entries = np.zeros((groups, m, by_tap.shape[2], steps * of_step * together), w.dtype)
            entries[..., : by_tap.shape[3]] = by_tap
            whole = np.zeros((groups, self.blocks * _HEIGHT, by_tap.shape[2], steps, row), w.dtype)
            whole[:, :m, ..., : of_step * together] = entries.reshape(*entries.shape[:3], steps, -1)
            by_block = whole.reshape(groups, self.blocks, _HEIGHT, *whole.shape[2:])
            return as_aligned(np.ascontiguousarray(by_block.transpose(0, 1, 3, 4, 2, 5)))

        return r.packed(("dots_matrix_pixels", self.kind.name, self.woven, taps_of(self.sweep)), make)

    def offsets(self) -> list[int]:
        """Where the taps of a pixel lie, or entry by entry what its patch is woven from."""
        return PixelsForm.offsets(self) if self.woven else self.tap_offsets()

    def choices(self) -> dict[str, object]:
        """Sizes of boxes and tiles."""
        tile = f"{_HEIGHT} channels x {self.vectors} vectors of pixels"
        return {"box": self.box, "tile": tile, "words": "woven" if self.woven else "in planes"}


class TileStretch(Record):
    """Tiles of a kind: bytes of others before them, and how many there are."""

    before: Word
    count: Word
    kind: Word


class MatrixPixelWords(PixelWords):
    """The driver's words: those of ``pixels``, and the shapes of registers with what they are to multiply.

    Tiles of a whole box lie in ``box_stretches``, those of one that is cut short in ``cut_stretches``.
    """

    stretches: Table[TileStretch]
    box_stretches: Word
    cut_stretches: Word
    shapes: Memory
    taps: Word
    steps: Word
    step_words: Word
    plane: Word
    sums: Word


def _stretches(kinds: list[int], before: int) -> list[TileStretch]:
    """Stretches of tiles of these kinds, which follow so many others."""
    found, size = [], 8 * word_count(PixelTile)
    for kind, same in itertools.groupby(kinds):
        count = len(list(same))
        found.append(TileStretch(before * size, count, kind))
        before += count
    return found


def _driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is a box of pixels of a group."""
    with k.function(name, Driver) as given:
        p, workspace = MatrixPixelWords.read(k, given.words), given.workspace
        item, y, residual, first, _ = packed_box(k, given, p, vector_bytes)
        is_whole, run = first.equals(0), p.runs.at(0)
        begin = k.select(is_whole, 0, p.box_stretches)
        matrix_unit.shape(k, p.shapes)
        with k.loop(0, k.select(is_whole, p.box_stretches, p.cut_stretches)) as number:
            stretch = p.stretches.at(begin + number.index)
            k.call(run.functions.at(stretch.kind), MatrixPixelWalk(
                *walked(p, item, run, y, residual, k.constant(INT, 0)), workspace + p.common.panel, p.offsets, p.gaps,
                workspace + p.patch, p.tiles.memory + stretch.before, stretch.count, p.outputs, p.taps, p.steps,
                p.step_words, p.plane, workspace + p.sums,
            ))  # fmt: skip
        matrix_unit.release(k)


def _tile(r: Request, spec: DotPixels, vectors: int) -> Address[MatrixPixelWalk]:
    """Address of a tile."""

    def make(k: Module, name: str) -> None:
        matrix_pixels(k, name, spec, lanes(r.target, r.arith), vectors)

    return address_of(r, f"matrix {spec} {vectors}", "tile", MatrixPixelWalk, make)
