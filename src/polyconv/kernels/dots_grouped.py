"""Tiles of small groups of small integers: a pixel's channels as they lie, word by word against weights of their own.

The words of a vector are of several groups.  A sum for every output of a word's groups takes the words of all of them
at once, so no channel moves before the end: then the words of one group are added, and results are put in the order of
channels.  It must not know sizes of a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyconv.kernels.fused import FusedTile, WordWalk
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Move, woven
from polyconv.kernels.move import finished
from polyconv.kernels.rescale import is_packed, packed_bytes, packed_place
from polyconv.kernels.tile import multiply_add

__all__ = ["grouped_dot_tile", "store_block", "sum_count"]


def sum_count(arithmetic: str, group: int) -> int:
    """Sums of a word: one for every output of its groups, which are as wide out as in."""
    return max(ARITHMETIC[arithmetic].channels, group)


def grouped_dot_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, group: int) -> None:
    """Add the tile of ``rows`` pixels by a vector of words, of groups of ``group`` channels.

    An entry is (offset, ignored, taps before it).  Results of 8 bits take biases and scales in the order of sums;
    others are stored as sums.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    count, together = sum_count(spec.arithmetic, group), arithmetic.channels
    order = [j * lanes + lane for lane in range(lanes) for j in range(together)]
    with k.function(name, WordWalk) as g:
        mask = k.mask(g.last, together * lanes) if spec.edge else None
        step, y_step = g.row * rows, g.y_row * rows
        with k.loop(0, g.tiles, carry=[g.panel, g.y]) as tile:
            panel, y = tile.values
            with k.loop(0, g.count, carry=[k.constant(kind, 0)] * (rows * count)) as entry:
                place = g.entries + entry.index * 24
                weights = g.weights + k.word(place, 2) * (count * words.bytes)
                pixel, total = panel + k.word(place), list(entry.values)
                if count <= rows:  # what is used again is held
                    of_sums = [k.load(words, weights + j * words.bytes) for j in range(count)]
                    for r in range(rows):
                        value = k.load(words, pixel + g.row * r)
                        for j, weight in enumerate(of_sums):
                            total[r * count + j] = multiply_add(k, arithmetic, value, weight, total[r * count + j])
                else:
                    values = [k.load(words, pixel + g.row * r) for r in range(rows)]
                    for j in range(count):
                        weight = k.load(words, weights + j * words.bytes)
                        for r, value in enumerate(values):
                            total[r * count + j] = multiply_add(k, arithmetic, value, weight, total[r * count + j])
                entry.next(*total)
            for r in range(rows):
                sums = _added(k, entry.results[r * count : (r + 1) * count], together)
                store_block(k, g, spec, sums, y + g.y_row * r, woven, order, mask)
            tile.next(panel + step, y + y_step)


def store_block(
    k: Module, g: WordWalk, spec: FusedTile, sums: list[Value], y: Buffer,
    in_order: Callable[[Module, list[Value]], list[Value]], bytes_order: Sequence[int], mask: Mask | None,
) -> None:  # fmt: skip
    """Store a pixel's results of 8 bits, finished, or its sums, in the order of channels.

    Parameters
    ----------
    in_order : callable
        Brings sums into it.
    bytes_order : sequence of int
        For every channel which result it has: those of the first sum, lane by lane, then those of the second, ...
    mask : Mask, optional
        Which results of 8 bits are stored, if not all.
    """
    if spec.target == "i32":
        for j, run in enumerate(in_order(k, sums)):
            there = k.mask(g.last - j * run.type.lanes, run.type.lanes) if spec.edge else None
            if spec.epilogue.bias:
                bias = g.bias + j * run.type.bytes
                run = run + (k.load(run.type, bias) if there is None else k.load_first(run.type, bias, there))
            if there is None:
                k.store(run, y + j * run.type.bytes)
            else:
                k.store_first(run, y + j * run.type.bytes, there)
        return
    result, places = _finished_bytes(k, spec, sums, g)
    order = [places[at] for at in bytes_order]
    if mask is None:
        k.store(k.shuffle(result, result, order), y)
    else:
        order += order[:1] * (mask.bits.type.lanes - len(order))
        k.store_first(k.shuffle(result, result, order), y, mask)


def _added(k: Module, sums: list[Value], together: int) -> list[Value]:
    """As many sums as a word has channels: the words of a group added, its results in lanes one after another."""
    step = 1
    while len(sums) > together:
        lanes = range(sums[0].type.lanes)
        # lanes with the bit ``step`` in their number take the sum that stands ``together`` later
        low = [(len(lanes) if lane & step else 0) + (lane & ~step) for lane in lanes]
        pairs = [(i, i + together) for i in range(len(sums)) if not i & together]
        sums = [
            k.shuffle(sums[a], sums[b], low) + k.shuffle(sums[a], sums[b], [at + step for at in low]) for a, b in pairs
        ]
        step *= 2
    return sums


def _finished_bytes(k: Module, spec: FusedTile, sums: list[Value], g: WordWalk) -> tuple[Value, list[int]]:
    """Results of 8 bits, and where among them the one of a sum and a lane is: those of a sum one after another."""
    kind, nothing = sums[0].type, k.constant(INT, 0)
    if is_packed(kind, spec.target, spec.epilogue):
        if spec.epilogue.bias:
            sums = [total + k.load(kind, g.bias + j * kind.bytes) for j, total in enumerate(sums)]
        scales = [k.load(kind.of("float"), g.scale + j * kind.bytes) for j in range(len(sums))]
        packed = packed_bytes(k, sums, scales, g.constants, spec.target, spec.epilogue)
        return packed, [packed_place(j, lane) for j in range(len(sums)) for lane in range(kind.lanes)]
    block = Block(k, Move("i32", spec.target, "cc", spec.epilogue), kind, False)
    word = None
    for j, total in enumerate(sums):
        finish = finished(
            block, g.bias + j * kind.bytes, g.scale + j * kind.bytes, g.residual, nothing, nothing, g.constants
        )
        byte = k.cast("zext", finish(total, nothing, nothing, None), kind) << 8 * j
        word = byte if word is None else word | byte
    assert word is not None
    size = 4 if len(sums) > 2 else len(sums)
    if size < 4:
        word = k.cast("trunc", word, kind.of(f"i{8 * size}"))
    places = [lane * size + j for j in range(len(sums)) for lane in range(kind.lanes)]
    return k.cast("bitcast", word, Type("i8", kind.lanes * size)), places
