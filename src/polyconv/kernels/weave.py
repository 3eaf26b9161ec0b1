"""The tile of a transposed convolution whose lanes are pixels: neighbouring outputs in all phases, woven together.

Outputs a stride apart read the same inputs through other taps.  A tile has those of all phases of the last axis for
some output channels and vectors of pixels; its results are merged in registers and leave as whole lines, each once.
The first phases may have one tap more; phases without taps are zeros, and with a dilation each reads other pixels.
The chain of additions of a sum is the order of the entries, then that of their taps.  It must not know sizes of a
problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.fused import FusedTile
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Block, Move, woven
from polyconv.kernels.move import store_out
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add

__all__ = ["Phases", "WeaveTile", "weave_tile"]


class WeaveTile(Signature):
    """Outputs of some channels in all phases, from ``count`` entries of so many ``taps``.

    Tiles ask from ``ahead`` on for what comes next where ``asks`` is -1, not where it is 0.  Steps of result and
    residual are those between channels; in a row the tile's results from ``head`` to ``end`` are there.
    """

    panel: Buffer
    ahead: Buffer
    asks: Int
    entries: Buffer
    count: Int
    taps: Int
    weights: Buffer
    y: Buffer
    y_channel: Int
    residual: Buffer
    r_channel: Int
    head: Int
    end: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer


@dataclass(frozen=True, slots=True)
class Phases:
    """Phases of a stride.

    Parameters
    ----------
    count : int
        The stride.
    places : tuple of (int, int)
        Phases that have taps, and how many pixels before the entry's each reads, of which none is less than the last.
    common : bool
        Whether there are taps that all of them have.
    longer : int
        How many of them, the first ones, have one tap more, of the pixels before.
    step : int
        Pixels between taps.
    """

    count: int
    places: tuple[tuple[int, int], ...]
    common: bool
    longer: int
    step: int


def weave_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, phases: Phases, vectors: int, *,
               f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels.

    An entry is the offset of a plane's pixels in the panel, for the first of the taps that all phases have, and that
    of a line of inputs which a later panel needs.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    with k.function(name, WeaveTile) as given:
        y, residual = given.y, given.residual
        result_bytes = DTYPES[spec.target].itemsize

        for r in range(rows):  # else stores wait for memory
            for line in range(0, phases.count * vectors * lanes * result_bytes, 64):
                k.prefetch(y + (given.y_channel * r if r else 0) + line, writing=True)

        times, longer = len(phases.places), phases.longer

        def multiplied(pixels: Buffer, b: Buffer, held: Sequence[Value], of: int) -> list[Any]:
            """The weights that follow, and sums with a tap's products for the first phases."""
            total, of_pixels, shift = list(held), list[Value](), -1
            for own, (_, further) in enumerate(phases.places[:of]):
                if further != shift:
                    shift, begin = further, pixels + -further * arithmetic.bytes
                    of_pixels = [k.load(words, begin + j * kind.bytes) for j in range(vectors)]
                for r in range(rows):
                    weight = k.broadcast(words, b + (r * of + own) * arithmetic.bytes)
                    for j, value in enumerate(of_pixels, (r * times + own) * vectors):
                        total[j] = multiply_add(k, arithmetic, weight, value, total[j])
            return [b + rows * of * arithmetic.bytes, *total]

        start = [given.weights, *[k.constant(kind, 0)] * (rows * times * vectors)]
        with k.loop(0, given.count, carry=start) as entry:
            here = given.entries + entry.index * 16
            place = k.rebase(given.panel + k.word(here))
            k.prefetch(given.ahead + (k.word(here, 1) & given.asks))
            b, *held = entry.values
            if phases.common:
                with k.loop(0, given.taps, carry=[place, b, *held], runs=True) as tap:
                    pixels, b, *held = tap.values
                    tap.next(pixels + phases.step * arithmetic.bytes, *multiplied(k.rebase(pixels), b, held, times))
                b, *held = tap.results[1:]
            before = place + -phases.step * arithmetic.bytes
            entry.next(*(multiplied(before, b, held, longer) if longer else (b, *held)))
        sums = entry.results[1:]
        out = _Woven(k, spec, phases, Block(k, Move(kind.element, spec.target, "pp", spec.epilogue), kind, f16c), given)
        for r in range(rows):
            of_row = sums[r * times * vectors : (r + 1) * times * vectors]
            out.store([of_row[j::vectors] for j in range(vectors)], r, y, residual)
            y, residual = y + given.y_channel, residual + given.r_channel


@dataclass(frozen=True, slots=True)
class _Woven:
    """Stores of a tile."""

    k: Module
    spec: FusedTile
    phases: Phases
    block: Block
    given: WeaveTile

    def store(self, parts: list[list[Value]], channel: int, y: Buffer, residual: Buffer) -> None:
        """Store sums of a channel: of each vector of pixels those of the phases that have taps."""
        k, (head, end) = self.k, (self.given.head, self.given.end)
        along = self.phases.count * self.block.kind.lanes
        if not self.spec.edge:
            # a branch that is always taken: LLVM weaves all channels before it stores one, if it can
            has_zeros = len(self.phases.places) < self.phases.count
            with k.when(end > head) if has_zeros else nullcontext():
                for j, sums in enumerate(parts):
                    self._run(sums, channel, y, residual, j * along, masked=False)
        else:
            for j, sums in enumerate(parts):
                begin, behind = j * along, (j + 1) * along
                assert self.spec.epilogue is not None
                if not self.spec.epilogue.is_cheap:  # too long to be written twice
                    self._run(sums, channel, y, residual, begin, masked=True)
                    continue
                whole = (head <= begin) & (end >= behind)
                with k.when(whole):
                    self._run(sums, channel, y, residual, begin, masked=False)
                with k.when((end > begin) & (head < behind) & whole.equals(0)):
                    self._run(sums, channel, y, residual, begin, masked=True)

    def _run(self, sums: list[Value], channel: int, y: Buffer, residual: Buffer, first: int, *, masked: bool) -> None:
        """Store the results of a vector of pixels, from the ``first`` of the tile on."""
        k, kind, given = self.k, self.block.kind, self.given
        zero, places = k.constant(INT, 0), self.phases.places
        own = {phase: total for (phase, _), total in zip(places, sums, strict=True)}
        planes = [own.get(phase, k.constant(kind, 0)) for phase in range(self.phases.count)]
        for i, value in enumerate(woven(k, planes)):
            place = first + i * kind.lanes
            at = place * DTYPES[self.spec.target].itemsize
            mask = k.span(given.head - place, given.end - place, kind.lanes) if masked else None
            store = store_out(self.block, given.bias, given.scale, residual + at, zero, zero, given.constants)
            store(value, y + at, zero, k.constant(INT, channel), mask)
