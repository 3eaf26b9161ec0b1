"""Depthwise tiles: one channel per lane, read in place, epilogue included.

A tile is a few outputs of many channels, each summed over a list of entries (input offset, weight offset, column
offset); every tap is a load with a multiply-add, so nothing is packed and the loads are the bound.
It knows neither extents nor kernel size.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyconv.kernels.language import Module, vector
from polyconv.kernels.layout import Block, Epilogue, Move, load_in, store_out

__all__ = ["ENTRY_BYTES", "DepthwiseTile", "depthwise_tile"]

ENTRY_BYTES = 24

# input, its step between outputs, entries, their number, weights, result, its step, bias, scale, residual, its step,
# constants, channels that count, strides of the channels in input, result and residual
_SIGNATURE = (
    "buffer", "int", "buffer", "int", "buffer", "buffer", "int", "buffer", "buffer", "buffer", "int", "buffer",
    "int", "int", "int", "int",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DepthwiseTile:
    """A kind of tile.

    Parameters
    ----------
    source, target : str
        dtypes of input and result.
    element : str
        LLVM accumulator.
    epilogue : Epilogue
    together : bool
        Whether channels lie together in input, result and residual.
    """

    source: str
    target: str
    element: str
    epilogue: Epilogue
    together: bool


def depthwise_tile(k: Module, name: str, spec: DepthwiseTile, lanes: int, rows: int, *, f16c: bool, edge: bool) -> None:
    """Add the tile of ``rows`` outputs: for a whole number of vectors of channels, or at an ``edge`` for part of one.

    The loop over vectors is inside, since a call with so many arguments costs as much as a vector's 3x3 taps.
    """
    kind = vector(spec.element, lanes)
    with k.function(name, *_SIGNATURE) as given:
        x, x_step, entries, n, weights, y, y_step, bias, scale, residual, r_step, constants = given[:12]
        count, x_lane, y_lane, r_lane = given[12:]
        strides = (None, None) if spec.together else (x_lane, y_lane)
        zero = k.constant(count.type, 0)
        block = Block(k, Move(spec.element, spec.target, "cc", spec.epilogue), kind, f16c, *strides)
        load = load_in(Block(k, Move(spec.source, spec.element, "cc"), kind, f16c, *strides), zero)
        mask = k.mask(count, lanes) if edge else None
        with k.loop(0, 1 if edge else count, lanes) as channel:
            c = channel.index
            inputs = [k.rebase(x + c * x_lane + x_step * r) for r in range(rows)]
            rows_of_weights = weights + c * kind.element_bytes
            with k.loop(0, n, carry=[k.constant(kind, 0)] * rows) as entry:
                place = entries + entry.index * ENTRY_BYTES
                offset, w = k.word(place), k.load(kind, rows_of_weights + k.word(place, 1))
                entry.next(*(k.fma(load(x + offset, mask), w, t) for x, t in zip(inputs, entry.values, strict=True)))
            for r, total in enumerate(entry.results):
                store = store_out(block, bias, scale, residual + c * r_lane + r_step * r, r_lane, zero, constants)
                store(total, y + c * y_lane + y_step * r, zero, c, mask)
