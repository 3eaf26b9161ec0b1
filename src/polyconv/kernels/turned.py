"""Moves of bytes between planes and pixels whose channels lie together: up to 64 channels of 16 pixels in registers.

Each of 16 vectors holds 16 pixels of one to four channels, 16 channels apart, in pieces of 128 bits; four rounds of
weaving pairs within the pieces make vectors of the channels of a pixel, in their order, or the other way round.  For
CPUs with masks.  It must not know what values mean.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.kernels.language import Buffer, Mask, Module, Value, vector
from polyconv.kernels.layout import Block, Move, MoveBlock, MoveIn, MoveOut, transposed
from polyconv.kernels.move import converted

__all__ = ["turn_in", "turn_out"]

_PIXELS = 16

Turn = Callable[[Value, Value, Value | None, Value | None], None]


def turn_in(k: Module, name: str, spec: Move, wide: int) -> None:
    """Add the move from planes, of so many channels at a time, to bytes or numbers of 16 bits."""
    piece, kind = vector("i8", _PIXELS), vector(spec.element, wide)
    with k.function(name, MoveIn) as g:
        block = Block(k, spec, kind, False)

        def turn(p: Value, c: Value, pixels: Value | None, channels: Value | None) -> None:
            begin, mask = g.source + (c * g.source_channel + p), _first(k, pixels, _PIXELS)
            places = begin.rows(wide, g.source_channel, channels)
            planes = [k.load(piece, at) if mask is None else k.load_first(piece, at, mask) for at in places]
            target, stored = g.target + (p * g.target_pixel + c * kind.element_bytes), _first(k, channels, wide)
            rows = [k.joined(planes[j::_PIXELS]) for j in range(_PIXELS)]
            for j, row in enumerate(transposed(k, rows)):
                value = converted(block, row, g.zero_point)
                _put(k, value, target + g.target_pixel * j, stored, pixels, j)

        _squares(k, g, wide, turn)


def turn_out(k: Module, name: str, spec: Move, wide: int) -> None:
    """Add the move to planes, of so many channels at a time."""
    kind = vector("i8", wide)
    assert spec.epilogue is not None
    with k.function(name, MoveOut) as g:

        def turn(p: Value, c: Value, pixels: Value | None, channels: Value | None) -> None:
            begin, mask = g.source + (p * g.source_pixel + c), _first(k, channels, wide)
            places = begin.rows(_PIXELS, g.source_pixel, pixels)
            target, stored = g.target + (c * g.target_channel + p), _first(k, pixels, _PIXELS)
            rows = [k.load(kind, at) if mask is None else k.load_first(kind, at, mask) for at in places]
            turned = transposed(k, rows)
            for q in range(wide // _PIXELS):
                for j, row in enumerate(turned):
                    part = k.shuffle(row, row, range(q * _PIXELS, (q + 1) * _PIXELS))
                    channel = q * _PIXELS + j
                    _put(k, part, target + g.target_channel * channel, stored, channels, channel)

        _squares(k, g, wide, turn)


def _squares(k: Module, g: MoveBlock, wide: int, turn: Turn) -> None:
    """Visit squares of 16 pixels; the last ones overlap those before, unless there are fewer pixels or channels."""
    whole = (g.channels >= wide) & (g.pixels >= _PIXELS)
    pixels = k.minimum(g.pixels, _PIXELS)
    with k.loop(0, g.channels, wide) as c, k.loop(0, g.pixels, _PIXELS) as p:
        first = k.maximum(k.minimum(p.index, g.pixels - _PIXELS), 0)
        with k.when(whole):
            turn(first, k.minimum(c.index, g.channels - wide), None, None)
        with k.when(whole, otherwise=True):
            turn(first, c.index, pixels, g.channels - c.index)


def _first(k: Module, count: Value | None, lanes: int) -> Mask | None:
    return None if count is None else k.mask(count, lanes)


def _put(k: Module, value: Value, place: Buffer, mask: Mask | None, count: Value | None, number: int) -> None:
    """Store the lanes of a mask, if there are more than ``number`` vectors."""
    if mask is None:
        k.store(value, place)
        return
    assert count is not None
    with k.when(count > number):
        k.store_first(value, place, mask)
