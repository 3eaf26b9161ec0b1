"""Tiles of small groups: lanes are the channels of several groups, as many out as in.

A pixel's channels are read as they lie and multiplied lane by lane.  A sum for every distance between an input
channel and an output channel of its group takes the products of all groups that are so far apart; at the end the
sums are rotated within their groups and added.  So no input has to be moved between lanes, whatever the width of a
group, and a tile of ``rows`` pixels needs a load a pixel and ``group`` loads of weights for ``rows * group``
multiply-adds.
"""

from __future__ import annotations

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.fused import FusedTile, Out, PlaceWalk, Walk, lanes_apart
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Mask, Module, Value, vector
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import converted, store_out
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.transform import Scheme

__all__ = ["ENTRY_WORDS", "ColumnsIn", "ColumnsOut", "columns_in", "columns_out", "grouped_tile"]

ENTRY_WORDS = 2
"""Words of an entry, a tap: its offset in the panel, and bytes of weights before its own."""


def grouped_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, group: int, *, f16c: bool) -> None:
    """Add the tile of ``rows`` pixels by one vector of groups of ``group`` channels.

    The contract is the fused channel tile's but for the entries.  Weights of a tap are a vector for every distance,
    whose lane is the input channel's.  A tile that reads pixels in place may not touch what is behind the channels that
    count.
    """
    kind = vector(ARITHMETIC[spec.arithmetic].accumulator, lanes)
    lying, used = kind.of(LLVM_NAMES[spec.source]) if spec.source else kind, lanes // group * group
    with k.function(name, PlaceWalk if spec.source else Walk) as given:
        out = Out(k, spec, kind, f16c, given.bias, given.scale, given.constants, given.last, "cc",
                  lanes_apart(spec, given))  # fmt: skip
        there = out.mask if spec.source else None

        def load(pixel: Buffer) -> Value:
            if spec.apart and isinstance(given, PlaceWalk):
                value = k.gather(lying, pixel, given.word, there)
            else:
                value = k.load(lying, pixel) if there is None else k.load_first(lying, pixel, there)
            return widen(k, value, DTYPES[spec.source], kind.element, f16c=f16c) if spec.source else value

        with k.loop(0, given.tiles, carry=[given.panel, given.y, given.residual]) as walk:
            rows_in, rows_out, rows_beside = walk.values
            with k.loop(0, given.count, carry=[k.constant(kind, 0)] * (rows * group)) as entry:
                place = given.entries + entry.index * (8 * ENTRY_WORDS)
                pixel, of_tap = k.rebase(rows_in + k.word(place)), k.rebase(given.weights + k.word(place, 1))
                pixels = []
                for _ in range(rows):
                    pixels.append(pixel)
                    pixel = k.rebase(pixel + given.row)
                total = list(entry.values)
                if rows < group:  # what is used more often is held in registers
                    values = [load(pixel) for pixel in pixels]
                    for distance in range(group):
                        weight = k.load(kind, of_tap + distance * kind.bytes)
                        for r, value in enumerate(values):
                            total[r * group + distance] = k.fma(value, weight, total[r * group + distance])
                else:
                    of_distance = [k.load(kind, of_tap + distance * kind.bytes) for distance in range(group)]
                    for r, pixel in enumerate(pixels):
                        value = load(pixel)
                        for distance, weight in enumerate(of_distance):
                            total[r * group + distance] = k.fma(value, weight, total[r * group + distance])
                entry.next(*total)
            sums = []
            for r in range(rows):
                terms = entry.results[r * group : (r + 1) * group]
                for distance in range(1, group):
                    back = [
                        lane // group * group + (lane % group - distance) % group if lane < used else lane
                        for lane in range(lanes)
                    ]  # fmt: skip
                    terms[distance] = k.shuffle(terms[distance], terms[distance], back)
                while len(terms) > 1:
                    terms = [
                        terms[i] + terms[i + 1] if i + 1 < len(terms) else terms[i] for i in range(0, len(terms), 2)
                    ]  # fmt: skip
                sums.append(terms[0])
            walk.next(
                rows_in + given.row * rows, *out.store(sums, 1, rows_out, given.y_row, rows_beside, given.r_row)
            )


class ColumnsIn(Signature):
    """Winograd's way in: pixels head..end of lines top..bottom, of one line at least, of some ``vectors``.

    They come from memory, where pixel ``head`` of line 0 would lie at ``x``; others of ``count`` are zeros.
    """

    x: Buffer
    x_line: Int
    x_pixel: Int
    x_vector: Int
    target: Buffer
    target_point: Int
    target_vector: Int
    vectors: Int
    channels: Int
    head: Int
    end: Int
    count: Int
    top: Int
    bottom: Int


def columns_in(k: Module, name: str, spec: Move, y: Scheme, lanes: int, *, several: bool, f16c: bool) -> None:
    """Add Winograd's way in along columns of pixels, of one vector of channels or ``several`` beside each other."""
    block = Block(k, spec, vector(spec.target, lanes), f16c)
    kind = block.kind.of(LLVM_NAMES[spec.source])
    with k.function(name, ColumnsIn) as given:
        mask, nothing = k.mask(given.channels, lanes), k.constant(vector("i1", lanes), 0)
        masks, places = [], []
        for i in range(y.n):
            here = (given.top <= i) & (given.bottom > i)
            masks.append(Mask(k.select(here, mask.bits, nothing), k.select(here, mask.count, 0)))
            # an empty mask takes a CPU hundreds of cycles where there is no memory: a line that is there
            places.append(k.minimum(k.maximum(given.top, i), given.bottom - 1) * given.x_line)

        def put(values: list[Value], place: Buffer) -> None:
            at = k.rebase(place)
            for value in values:
                k.store(value, at)
                at = k.rebase(at + given.target_point)

        def column(source: Buffer, place: Buffer) -> None:
            values = [
                converted(block, k.load_first(kind, source + at, there), k.constant(INT, 0))
                for at, there in zip(places, masks, strict=True)
            ]
            put(y.forward(k, values), place)

        for low, high in ((k.constant(INT, 0), given.head), (given.end, given.count)):
            with k.loop(0, given.vectors) as v, k.loop(low, high) as u:
                place = given.target + (v.index * given.target_vector + u.index * block.kind.bytes)
                put([k.constant(block.kind, 0)] * y.n, place)
        with k.loop(given.head, given.end, carry=[given.x]) as u:
            begin = given.target + u.index * block.kind.bytes
            if several:
                with k.loop(0, given.vectors, carry=[u.values[0], begin]) as v:
                    column(*v.values)
                    v.next(v.values[0] + given.x_vector, v.values[1] + given.target_vector)
            else:
                column(u.values[0], begin)
            u.next(u.values[0] + given.x_pixel)


class ColumnsOut(Signature):
    """Winograd's way back: the first ``lines`` of some pixels, with their epilogue.

    A vector has ``used`` channels more before it than the one beside it.  Where an output is not finite ``flag``
    becomes non-zero.
    """

    sums: Buffer
    sums_point: Int
    sums_vector: Int
    target: Buffer
    target_line: Int
    target_pixel: Int
    target_vector: Int
    vectors: Int
    channels: Int
    used: Int
    pixels: Int
    lines: Int
    bias: Buffer
    residual: Buffer
    r_line: Int
    r_pixel: Int
    r_channel: Int
    constants: Buffer
    flag: Buffer


def columns_out(k: Module, name: str, spec: Move, y: Scheme, lanes: int, *, several: bool, f16c: bool) -> None:
    """Add the way back.  Without the last line there is no product at infinity, which alone needs it."""
    block = Block(k, spec, vector(spec.source, lanes), f16c)
    kind = block.kind
    with k.function(name, ColumnsOut) as given:
        lines, bias, residual = given.lines, given.bias, given.residual
        mask, nothing = k.mask(given.channels, lanes), k.constant(vector("i1", lanes), 0)
        # lines that are not there have the place of one that is: see ``Buffer.rows``
        there = [lines > i for i in range(y.m)]
        masks = [Mask(k.select(each, mask.bits, nothing), k.select(each, mask.count, 0)) for each in there]
        stores = [
            store_out(block, bias, bias, residual + k.select(there[i], given.r_line * i, 0) if i else residual,
                      given.r_pixel, given.r_channel, given.constants)
            for i in range(y.m)
        ]  # fmt: skip
        steps = [k.select(each, given.target_line, 0) for each in there[1:]] + [given.target_line]

        def column(place: Buffer, at: Buffer, seen: Value, u: Value, channel: Value) -> Value:
            products = []
            for i in range(y.n):
                products.append(k.load_first(kind, at, mask if i < y.n - 1 else masks[-1]))
                at = at + given.sums_point
            outputs = y.back(k, products)
            total = outputs[0]
            for value, store, inside, step in zip(outputs, stores, masks, steps, strict=True):
                store(value, place, u, channel, inside)
                place = place + step
            for value in outputs[1:]:
                total = total + value
            # 0 * Inf and 0 * NaN are NaN, of a sum too: one multiply-add finds them
            return k.fma(total, k.constant(kind, 0), seen)

        with k.loop(0, given.pixels, carry=[given.target, k.constant(kind, 0)]) as u:
            place, seen = u.values
            begin = given.sums + u.index * kind.bytes
            if several:
                with k.loop(0, given.vectors, carry=[place, begin, seen]) as v:
                    to, at, so_far = v.values
                    so_far = column(to, at, so_far, u.index, v.index * given.used)
                    v.next(to + given.target_vector, at + given.sums_vector, so_far)
                seen = v.results[2]
            else:
                seen = column(place, begin, seen, u.index, k.constant(INT, 0))
            u.next(place + given.target_pixel, seen)
        found = k.any(u.results[1].is_nan())
        with k.when(found > 0):
            k.store(found, given.flag)
