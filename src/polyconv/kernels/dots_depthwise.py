"""Rows of depthwise convolutions of small integers: words of a channel's inputs from several lines.

Lines that taps of the outer axes meet are woven word by word in registers, once for every pixel of a line, and all taps
along the line take them from there.  What weaving does to the order of channels a shuffle of bytes undoes at the end.
It must not know sizes of a problem but the taps along a line, and their stride.
"""

from __future__ import annotations

import itertools

from polyconv.kernels.dots_grouped import store_block
from polyconv.kernels.fused import FusedTile, WordWalk
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import Buffer, Module, Type, Value, vector
from polyconv.kernels.tile import multiply_add

__all__ = ["depthwise_dot_row", "woven_channels"]

_FEW = 3
"""Most taps whose weights stay in registers beside sums and what is woven."""
_PIECE = 16
"""Bytes of a vector within which a CPU weaves."""


def woven_channels(together: int, lanes: int) -> list[list[int]]:
    """For every vector of woven words the channels of its lanes."""
    words = _PIECE // 4
    return [
        [lane // words * words * together + j * words + lane % words for lane in range(lanes)] for j in range(together)
    ]


def depthwise_dot_row(k: Module, name: str, spec: FusedTile, lanes: int, taps: int, stride: int, groups: int) -> None:
    """Add the walk along a row of pixels, ``tiles`` of them, of a block of channels.

    Sums of the pixels that a column of inputs is of are carried on to the next.  Entries are the offsets of lines, as
    many as ``groups`` of words have numbers; weights have [group][tap along a line][vector of words].

    Parameters
    ----------
    taps, stride : int
        Along the row.
    groups : int
        Groups of lines that share words.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words, together = vector("i32", lanes), vector(arithmetic.word, lanes), arithmetic.channels
    channels, count = Type(f"i{32 // together}", lanes * together), groups * together
    with k.function(name, WordWalk) as g:
        mask = k.mask(g.last, together * lanes) if spec.edge else None

        def weight(group: int, tap: int, j: int) -> Value:
            return k.load(words, g.weights + ((group * taps + tap) * together + j) * words.bytes)

        every = list(itertools.product(range(groups), range(taps), range(together)))
        held = {one: weight(*one) for one in every} if groups * taps <= _FEW else {}

        def add(columns: range, lines: list[Buffer], sums: list[list[Value]]) -> list[Buffer]:
            """Add the columns' products to the sums of the pixels that they are of, the first of which is first."""
            for column in columns:
                for group in range(groups):
                    loaded = [k.load(channels, line) for line in lines[group * together : (group + 1) * together]]
                    woven = [k.cast("bitcast", v, words) for v in _woven(k, loaded)]
                    for pixel, tap in ((q, column - q * stride) for q in range(column // stride + 1)):
                        if tap >= taps:
                            continue
                        if pixel == len(sums):
                            sums.append([k.constant(kind, 0)] * together)
                        for j in range(together):
                            of_tap = held[group, tap, j] if held else weight(group, tap, j)
                            sums[pixel][j] = multiply_add(k, arithmetic, woven[j], of_tap, sums[pixel][j])
                lines = [line + g.word for line in lines]
            return lines

        sums: list[list[Value]] = []
        begin = [k.rebase(g.panel + k.word(g.entries, line)) for line in range(count)]
        begin = add(range(taps - stride), begin, sums)
        carried = [g.y, *begin, *(v for some in sums for v in some)]
        with k.loop(0, g.tiles, carry=carried, runs=True) as pixel:
            y, *rest = pixel.values
            lines, flat = rest[:count], rest[count:]
            own = [flat[first : first + together] for first in range(0, len(flat), together)]
            lines = add(range(taps - stride, taps), lines, own)
            store_block(k, g, spec, own[0], y, _apart, _bytes_order(together, lanes), mask)
            pixel.next(y + g.y_row, *lines, *(v for some in own[1:] for v in some))


def _bytes_order(together: int, lanes: int) -> list[int]:
    """For every channel which result it has, where those of all sums follow each other."""
    found = {
        channel: j * lanes + lane
        for j, some in enumerate(woven_channels(together, lanes)) for lane, channel in enumerate(some)
    }  # fmt: skip
    return [found[channel] for channel in range(lanes * together)]


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
    kind, words = sums[0].type, _PIECE // 4
    pieces = [(sums[j], piece) for piece in range(kind.lanes // words) for j in range(len(sums))]
    vectors = []
    for first in range(0, len(pieces), kind.lanes // words):
        parts = [
            k.shuffle(value, value, range(piece * words, (piece + 1) * words))
            for value, piece in pieces[first : first + kind.lanes // words]
        ]
        while len(parts) > 1:
            size = 2 * parts[0].type.lanes
            parts = [k.shuffle(a, b, range(size)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        vectors.append(parts[0])
    return vectors
