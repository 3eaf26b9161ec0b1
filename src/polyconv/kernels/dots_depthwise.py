"""Depthwise convolutions of small integers: words of a channel's inputs that several taps meet, woven in registers.

What taps of several lines, or of neighbouring places of one, meet is woven word by word, and all taps of a window along
the line take words from there.  A channel may have several outputs, which share its words.  What weaving does to the
order of channels a shuffle of bytes undoes at the end.  It must not know sizes of a problem but those of a window.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

from polyconv.dataclass import dataclass
from polyconv.kernels.dots_grouped import store_block
from polyconv.kernels.fused import FusedTile, WordWalk
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import woven as in_turns
from polyconv.kernels.tile import multiply_add

__all__ = ["Window", "depthwise_dot_row", "depthwise_dot_tile", "woven_channels"]

_FEW = 3
"""Most taps whose weights stay in registers beside sums and what is woven."""
_PIECE = 16
"""Bytes of a vector within which a CPU weaves."""


@dataclass(frozen=True, slots=True)
class Window:
    """What slides along a line.

    Parameters
    ----------
    lanes : int
        Of a vector of sums.
    times : int
        Outputs of a channel.
    taps : int
        That take words of one column after the other.
    stride : int
        Columns between neighbouring outputs.
    """

    lanes: int
    times: int
    taps: int
    stride: int

    def __str__(self) -> str:
        return f"{self.lanes} {self.times} {self.taps} {self.stride}"

    def vectors(self, together: int) -> int:
        """Vectors of words of that many inputs each, of a block: each is of all outputs of its channels."""
        return max(1, together // self.times)

    def sums(self, together: int) -> int:
        """Vectors of sums of a block."""
        return self.vectors(together) * self.times


def woven_channels(together: int, lanes: int, times: int = 1) -> list[list[int]]:
    """For every vector of a block's sums the outputs of its lanes: those of a channel follow each other."""
    if times > 1:
        vectors = max(1, together // times)
        return [[(v * lanes + lane) * times + j for lane in range(lanes)] for v in range(vectors) for j in range(times)]
    words = _PIECE // 4
    return [
        [lane // words * words * together + j * words + lane % words for lane in range(lanes)] for j in range(together)
    ]


def depthwise_dot_row(k: Module, name: str, spec: FusedTile, window: Window, groups: int) -> None:
    """Add the walk along a row of pixels, ``tiles`` of them, of a block of channels.

    Sums of the pixels that a column of inputs is of are carried on to the next.  Entries are the offsets of lines, as
    many as ``groups`` of words have numbers; weights have [group][tap of the window][sum], each a vector of words.
    """
    taps, stride = window.taps, window.stride
    b = _Block(k, spec, window)
    count = groups * b.together
    with k.function(name, WordWalk) as g:
        mask = b.mask(g)
        every = itertools.product(range(groups), range(taps), range(b.sums))
        held = {one: b.weight(g.weights, *one) for one in every} if groups * taps <= _FEW else {}

        def weight(group: int, tap: int, j: int) -> Value:
            return held[group, tap, j] if held else b.weight(g.weights, group, tap, j)

        def add(columns: range, lines: list[Buffer], sums: list[list[Value]]) -> list[Buffer]:
            """Add the columns' products to the sums of the pixels that they are of, the first of which is first."""
            for column in columns:
                for group in range(groups):
                    words = b.woven(lines[group * b.together : (group + 1) * b.together])
                    for pixel, tap in ((q, column - q * stride) for q in range(column // stride + 1)):
                        if tap >= taps:
                            continue
                        if pixel == len(sums):
                            sums.append(b.zeros())
                        b.add(words, partial(weight, group, tap), sums[pixel])
                lines = [line + g.word for line in lines]
            return lines

        sums: list[list[Value]] = []
        begin = [k.rebase(g.panel + k.word(g.entries, line)) for line in range(count)]
        begin = add(range(taps - stride), begin, sums)
        carried = [g.y, *begin, *(v for some in sums for v in some)]
        with k.loop(0, g.tiles, carry=carried, runs=True) as pixel:
            y, *rest = pixel.values
            lines, flat = rest[:count], rest[count:]
            own = [flat[first : first + b.sums] for first in range(0, len(flat), b.sums)]
            lines = add(range(taps - stride, taps), lines, own)
            b.store(g, own[0], y, mask)
            pixel.next(y + g.y_row, *lines, *(v for some in own[1:] for v in some))


def depthwise_dot_tile(k: Module, name: str, spec: FusedTile, window: Window, rows: int) -> None:
    """Add the tile of ``rows`` pixels by a block of channels; a call computes ``tiles`` of them, one after the other.

    Entries are the offsets of the inputs of a word; weights are those of ``depthwise_dot_row``.
    """
    taps, stride = window.taps, window.stride
    b = _Block(k, spec, window)
    columns = sorted({row * stride + tap for row in range(rows) for tap in range(taps)})
    with k.function(name, WordWalk) as g:
        mask = b.mask(g)
        shifts = {column: g.word * column for column in columns}
        step, y_step = g.word * (rows * stride), g.y_row * rows
        with k.loop(0, g.tiles, carry=[g.panel, g.y]) as tile:
            panel, y = tile.values
            with k.loop(0, g.count, carry=[total for _ in range(rows) for total in b.zeros()]) as entry:
                place = g.entries + entry.index * (8 * b.together)
                lines = [k.rebase(panel + k.word(place, i)) for i in range(b.together)]
                weights = k.rebase(g.weights + entry.index * (taps * b.sums * b.words.bytes))
                sums = [list(entry.values[row * b.sums : (row + 1) * b.sums]) for row in range(rows)]
                for column in columns:
                    words = b.woven([line + shifts[column] for line in lines])
                    for row, tap in ((row, column - row * stride) for row in range(rows)):
                        if 0 <= tap < taps:
                            b.add(words, partial(b.weight, weights, 0, tap), sums[row])
                entry.next(*(total for own in sums for total in own))
            for row in range(rows):
                b.store(g, list(entry.results[row * b.sums : (row + 1) * b.sums]), y + g.y_row * row, mask)
            tile.next(panel + step, y + y_step)


class _Block:
    """Words, products and results of a pixel of a block of channels."""

    def __init__(self, k: Module, spec: FusedTile, window: Window) -> None:
        self.k, self.spec, self.arithmetic, self.times = k, spec, ARITHMETIC[spec.arithmetic], window.times
        self.together = self.arithmetic.channels
        self.sums, self.vectors = window.sums(self.together), window.vectors(self.together)
        self.kind, self.words = vector("i32", window.lanes), vector(self.arithmetic.word, window.lanes)
        self.taps, self.lanes = window.taps, window.lanes
        self.line = Type(f"i{32 // self.together}", window.lanes * self.vectors)

    def weight(self, weights: Buffer, group: int, tap: int, j: int) -> Value:
        """Weights of a sum for the words of a tap."""
        return self.k.load(self.words, weights + ((group * self.taps + tap) * self.sums + j) * self.words.bytes)

    def mask(self, g: WordWalk) -> Mask | None:
        """Which results of 8 bits are stored, if not all."""
        sums = 1 << (self.sums - 1).bit_length()
        return self.k.mask(g.last, sums * self.lanes) if self.spec.edge else None

    def zeros(self) -> list[Value]:
        """Sums of a pixel, before any product."""
        return [self.k.constant(self.kind, 0)] * self.sums

    def woven(self, lines: list[Buffer]) -> list[Value]:
        """Vectors of words of the inputs that lie at some places."""
        loaded = [self.k.load(self.line, line) for line in lines]
        found = _woven(self.k, loaded) if self.vectors == self.together else self._gathered(loaded)
        return [self.k.cast("bitcast", v, self.words) for v in found]

    def _gathered(self, lines: list[Value]) -> list[Value]:
        """The same of lines that are parts of vectors: put together first, until two hold them all."""
        k, each = self.k, lines[0].type.lanes
        while len(lines) > 2:
            lines = [
                k.shuffle(a, b, range(2 * a.type.lanes)) for a, b in zip(lines[::2], lines[1::2], strict=True)
            ]
        first, second = lines
        picks = [line * each + lane for lane in range(self.lanes) for line in range(self.together)]
        return [k.shuffle(first, second, [at + v * self.lanes for at in picks]) for v in range(self.vectors)]

    def add(self, words: list[Value], weight: Callable[[int], Value], sums: list[Value]) -> None:
        """Add products of words to the sums of a pixel; ``weight(j)`` are the weights of sum ``j``."""
        for j in range(self.sums):
            word = words[j // self.times if self.times > 1 else j]
            sums[j] = multiply_add(self.k, self.arithmetic, word, weight(j), sums[j])

    def store(self, g: WordWalk, sums: list[Value], y: Buffer, mask: Mask | None) -> None:
        """Store the results of a pixel."""
        store_block(self.k, g, self.spec, sums, y, self._in_order, self._bytes_order(), mask)

    def _in_order(self, k: Module, sums: list[Value]) -> list[Value]:
        if self.times == 1:
            return _apart(k, sums)
        return [run for v in range(0, self.sums, self.times) for run in in_turns(k, sums[v : v + self.times])]

    def _bytes_order(self) -> list[int]:
        """For every output which result it has, where those of all sums follow each other."""
        found = {
            output: j * self.lanes + lane
            for j, some in enumerate(woven_channels(self.together, self.lanes, self.times))
            for lane, output in enumerate(some)
        }  # fmt: skip
        return [found[output] for output in range(self.sums * self.lanes)]


def _woven(k: Module, lines: list[Value]) -> list[Value]:
    """Words of the same channel of all lines, pieces of 16 bytes at a time."""
    while len(lines) > 1:
        half = len(lines) // 2
        pairs = [(lines[2 * i], lines[2 * i + 1]) for i in range(half)]
        kind = lines[0].type
        piece = _PIECE // kind.element_bytes
        merged = []
        for first in (0, piece // 2):
            picks = [
                at + side * kind.lanes
                for begin in range(first, kind.lanes, piece) for at in range(begin, begin + piece // 2)
                for side in (0, 1)
            ]  # fmt: skip
            wider = Type(f"i{16 * kind.element_bytes}", kind.lanes // 2)
            merged.append([k.cast("bitcast", k.shuffle(a, b, picks), wider) for a, b in pairs])
        if half == 1:
            return [vector for part in merged for vector in part]
        low, high = merged
        return [*_woven(k, low), *_woven(k, high)]
    return lines


def _apart(k: Module, sums: list[Value]) -> list[Value]:
    """Sums in the order of channels: their pieces of 16 bytes by turns."""
    words = _PIECE // 4
    each = sums[0].type.lanes // words

    def picked(a: Value, b: Value, pieces: Sequence[int]) -> Value:
        return k.shuffle(a, b, [piece * words + at for piece in pieces for at in range(words)])

    if len(sums) <= 2 or each <= 2:  # a vector of results is of two of sums
        pieces = list(itertools.product(range(each), range(len(sums))))
        runs = [pieces[first : first + each] for first in range(0, len(pieces), each)]
        return [
            picked(sums[run[0][1]], sums[run[-1][1]], [piece + each * (j > run[0][1]) for piece, j in run])
            for run in runs
        ]
    halves = [
        [picked(a, b, (first, first + 1, each + first, each + first + 1)) for a, b in (sums[:2], sums[2:])]
        for first in range(0, each, 2)
    ]
    return [picked(a, b, range(odd, 2 * each, 2)) for a, b in halves for odd in (0, 1)]
