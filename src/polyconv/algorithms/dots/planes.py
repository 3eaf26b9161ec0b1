"""Planes of a box's inputs, words or channels, in which what taps meet follows each other from line to line.

It knows where words lie, and must not know what tiles make of them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.kernels.dots_pixels import GAP_WORDS
from polyconv.kernels.isa import Arithmetic
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Lines, Sweep, lines

__all__ = ["Part", "Planes"]


@dataclass(frozen=True, slots=True)
class Part:
    """A tile: its first pixel, how many have results, of so many, its place in a plane, vectors, and words of gaps."""

    first: int
    pixels: int
    span: int
    place: int
    vectors: int
    gaps: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Planes:
    """Planes of words of a box's inputs, or of channels that are woven to words later.

    Runs of pixels of a line, whose residues modulo the stride differ, lie apart: each plane has all lines of the first
    run, a ``pitch`` of pixels from one to the next, then those of the second.

    Parameters
    ----------
    box : tuple of int
        Outputs along every axis.
    held : tuple of Lines
        Lines of every axis; those of the last one are pixels of a plane.
    pitch : int
    pixel_bytes : int
        Of a word or a channel.
    count : int
        Planes.
    plane_bytes : int
        An odd number of cache lines, and room to read and write more.
    size : int
        Bytes, with what the last tile reads behind them.
    """

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    pitch: int
    pixel_bytes: int
    count: int
    plane_bytes: int
    size: int

    @classmethod
    def of(cls, s: Situation, kind: Arithmetic, sweep: Sweep, box: tuple[int, ...], behind: int, *, woven: bool
           ) -> Self:  # fmt: skip
        """Those of a box, behind which tiles read up to so many vectors; of channels, if these are ``woven`` later."""
        together = 1 if woven else kind.channels
        pixel = kind.bytes // kind.channels * together
        *outer, last = (lines(axis, b) for axis, b in zip(sweep, box, strict=True))
        pitch = max(count for _, count, _ in last.runs)
        apart = math.prod(h.count for h in outer) * pitch + s.target.vector_bytes // pixel
        runs = tuple((number * apart, count, position) for number, (_, count, position) in enumerate(last.runs))
        begins = [first for first, _, _ in last.runs]
        start = [(bisect.bisect(begins, at) - 1, at) for at in last.start]
        spread = replace(last, runs=runs, start=tuple(n * apart + at - begins[n] for n, at in start))
        plane = (-(-(len(runs) * apart * pixel) // 64) | 1) * 64 + 64
        count = -(-(s.problem.c // s.problem.groups) // together)
        size = plane * count + behind * s.target.vector_bytes
        return cls(box, (*outer, spread), pitch, pixel, count, plane, size)

    @property
    def lines(self) -> int:
        """Lines of a run."""
        return math.prod(h.count for h in self.held[:-1])

    @property
    def has_gaps(self) -> bool:
        """Whether between pixels of outputs others lie."""
        return self.span(self.box) > math.prod(self.box)

    def span(self, extents: Sequence[int]) -> int:
        """Pixels from the first to the last one of so many outputs along every axis."""
        last = 0
        for extent, size in zip(extents, self._sizes, strict=True):
            last = last * size + extent - 1
        return last + 1

    def stretches(self, gap: int) -> tuple[int, int]:
        """How many stretches of pixels outputs of a box meet, between which at least such a gap lies, and of how many.

        Lines of a stride's other residues lie between those of neighbouring outputs: tiles leave them out.
        """
        count, pixels, pitch = 1, 1, 1
        for extent, size in zip(reversed(self.box), reversed(self._sizes), strict=True):
            if extent > 1 and pitch - pixels >= gap:
                count *= extent
            else:
                pixels += (extent - 1) * pitch
            pitch *= size
        return count, pixels

    def places(self, outputs: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """Pixels of a plane at some places of every axis, the outer axes' places first."""
        found = np.zeros(1, np.int64)
        for some, size in zip(outputs, self._sizes, strict=True):
            found = (found[:, None] * size + np.array(some, np.int64)).ravel()
        return found

    def parts(self, extents: Sequence[int], most: int, lanes: int, unit: int, stored: int, itemsize: int, *,
              by_lines: bool) -> list[Part]:  # fmt: skip
        """Tiles of so many outputs along every axis, each of at most so many vectors.

        Parameters
        ----------
        lanes : int
            Pixels of a vector.
        unit : int
            Vectors of a tile are a multiple of it.
        stored : int
            Pixels whose results are stored together, to each of which belong words of gaps.
        itemsize : int
            Bytes of a result.
        by_lines : bool
            Whether no tile runs on from line to line.
        """
        wide = lanes * unit
        if not self.has_gaps:
            pixels, none = math.prod(extents), np.zeros((0, GAP_WORDS), np.int64)
            return [
                Part(first * wide, held, held, first * wide, some * unit, none)
                for first, some in near_equal(-(-pixels // wide), most // unit)
                for held in [min(some * wide, pixels - first * wide)]
            ]  # fmt: skip
        places, begins = self.places([range(e) for e in extents]), [0]
        if by_lines:
            line, each = extents[-1], most * lanes
            begins = [at + first for at in range(0, len(places), line) for first in range(0, line, each)]
        else:
            total = -(-self.span(extents) // wide)
            each = -(-total // -(-total // (most // unit))) * wide  # tiles are near equal
            while (end := int(np.searchsorted(places, places[begins[-1]] + each))) < len(places):
                begins.append(end)
        sizes = np.diff([*begins, len(places)])
        spans = places[np.cumsum(sizes) - 1] - places[begins] + 1
        vectors = -(-spans // wide) * unit
        groups = int(-(-vectors.max() * lanes // stored))
        number, lane = np.divmod(places - np.repeat(places[begins], sizes), stored)
        number += np.repeat(np.arange(len(begins)) * groups, sizes)
        bits = np.zeros(len(begins) * groups, np.uint64)
        np.bitwise_or.at(bits, number, np.uint64(1) << lane.astype(np.uint64))
        results = np.bincount(number, minlength=bits.size).reshape(-1, groups)
        before = (np.cumsum(results, axis=1) - results) * itemsize
        gaps = np.stack([bits.view(np.int64).reshape(-1, groups), results, before], axis=2)
        columns = (column.tolist() for column in (sizes, spans, places[begins], vectors))
        return list(map(Part, begins, *columns, gaps))

    @property
    def _sizes(self) -> tuple[int, ...]:
        """Places along every axis, for pixels those of a run."""
        return (*(h.count for h in self.held[:-1]), self.pitch)
