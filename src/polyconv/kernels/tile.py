"""The micro-kernels: a register tile of sums, reduced over a list of offsets into a panel.

Two orientations of one contract, ``PanelTile``:

* ``channel_tile``: lanes are output channels.  MR rows of panel words, one word apart in pixels
  (``ROW_WORDS`` words), are broadcast against streaming weight vectors.  An entry is (offset, count, rows of
  weights before it): one tap of one channel block, ``count`` words long; a list may leave some out.
* ``pixel_tile``: lanes are pixels.  An entry is an offset: one tap of one channel; pixel vectors are
  loaded there, and MR streaming weights are broadcast.

Neither knows any size of the problem: code depends on arithmetic, ISA, rows and vectors alone.
The chain of additions of a sum is the order of the list, in every tile size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polyconv.kernels.isa import Arithmetic
from polyconv.kernels.language import Buffer, Module, Type, Value, vector
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.steps import repeated

__all__ = [
    "FIRST", "LAST", "ROW_WORDS", "EdgeTile", "PanelTile", "ask_early", "channel_tile", "edge_tile", "multiply_add",
    "pixel_tile",
]  # fmt: skip

_AHEAD = 16 << 10
"""Bytes by which streaming weights are asked for early.  Measured on Zen 5: 15-20 % off where weights come from
memory (512 channels on maps of 7 to 28), nothing where caches hold them; 8 to 64 KiB do equally well."""

ROW_WORDS = 16
"""Words of a panel row (one pixel, one channel block): 64 bytes in 4-byte arithmetic."""

FIRST, LAST = 1, 2
"""The pixel at an end of a line for which an entry meets only padding."""


class PanelTile(Signature):
    """Sums of a tile: those at ``start``, with the products of ``count`` entries, go to ``sums``."""

    panel: Buffer
    count: Int
    entries: Buffer
    weights: Buffer
    start: Buffer
    start_row: Int
    sums: Buffer
    sum_row: Int


class EdgeTile(PanelTile):
    """A tile that leaves out products with padding, and asks for what is read long after it.

    ``edges`` has ``FIRST`` and ``LAST`` for the ends of a line that it meets; it asks from ``early`` on, ``pace`` bytes
    further with a step.
    """

    edges: Int
    early: Buffer
    pace: Int


def multiply_add(k: Module, arithmetic: Arithmetic, word: Value, weights: Value, total: Value) -> Value:
    """Sums with the products of words and weights added to them, as the arithmetic forms them."""
    dot = _DOTS.get(arithmetic.name)
    return k.fma(word, weights, total) if dot is None else dot(k, word, weights, total)


def _of_bf16(k: Module, word: Value, weights: Value, total: Value) -> Value:
    # vdpbf16ps: sum of two products per lane; subnormals count as zero (stated in the plan)
    pairs = vector("bfloat", 2 * total.type.lanes)
    operands = (total, k.cast("bitcast", word, pairs), k.cast("bitcast", weights, pairs))
    kinds = f"{total.type}, {pairs}, {pairs}"
    return k.target_intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", total.type, kinds, operands)


_DOTS_OF_BYTES = {
    16: "llvm.aarch64.neon.usdot.v4i32.v16i8", 32: "llvm.x86.avx512.vpdpbusd.256", 64: "llvm.x86.avx512.vpdpbusd.512",
}  # fmt: skip
"""By the bytes of a vector; that of 256 bits is AVX-VNNI's where there is no AVX-512."""


def _of_bytes(k: Module, word: Value, weights: Value, total: Value) -> Value:
    # usdot, vpdpbusd: sum of four products of u8 by i8 per lane; what overflows wraps, as vpdpbusds would not
    quads = vector("i8", 4 * total.type.lanes)
    operands = (total, k.cast("bitcast", word, quads), k.cast("bitcast", weights, quads))
    name = _DOTS_OF_BYTES[total.type.bytes]
    return k.target_intrinsic(name, total.type, f"{total.type}, {quads}, {quads}", operands)


def _of_i16(k: Module, word: Value, weights: Value, total: Value) -> Value:
    # LLVM finds vpmaddwd, and vpdpwssd where there is one
    lanes = total.type.lanes
    wide, pairs = vector("i32", 2 * lanes), vector("i16", 2 * lanes)
    a, b = (k.cast("sext", k.cast("bitcast", v, pairs), wide) for v in (word, weights))
    products = a * b
    return total + (k.shuffle(products, products, range(0, 2 * lanes, 2))
                    + k.shuffle(products, products, range(1, 2 * lanes, 2)))  # fmt: skip


def _of_presums(k: Module, word: Value, weights: Value, total: Value) -> Value:
    # vpmaddubsw: sums of two products of u8 by i8, in 16 bits; vpmaddwd by ones: two of these sums, in 32
    lanes = total.type.lanes
    quads, pairs = vector("i8", 4 * lanes), vector("i16", 2 * lanes)
    operands = k.cast("bitcast", word, quads), k.cast("bitcast", weights, quads)
    sums = k.target_intrinsic("llvm.x86.avx2.pmadd.ub.sw", pairs, f"{quads}, {quads}", operands)
    ones = k.constant(pairs, 1)
    return total + k.target_intrinsic("llvm.x86.avx2.pmadd.wd", total.type, f"{pairs}, {pairs}", (sums, ones))


_DOTS: dict[str, Callable[[Module, Value, Value, Value], Value]] = {
    "bf16": _of_bf16, "u8s8": _of_bytes, "i16": _of_i16, "u8s8 presummed": _of_presums,
}  # fmt: skip
"""How arithmetic with several channels a word forms its products and adds them."""


def _start(k: Module, kind: Type, start: Buffer, stride: Value, rows: int, vectors: int) -> list[Value]:
    sums = []
    for _ in range(rows):
        sums += [k.load(kind, start + j * kind.bytes) for j in range(vectors)]
        start = start + stride
    return sums


def _finish(k: Module, sums: list[Value], target: Buffer, stride: Value, vectors: int) -> None:
    for r in range(0, len(sums), vectors):
        for j in range(vectors):
            k.store(sums[r + j], target + j * sums[0].type.bytes)
        target = target + stride


def ask_early(k: Module, weights: Buffer, kind: Type, vectors: int) -> None:
    """Ask for what streams in after ``weights``, a step's worth; integer products need the registers themselves."""
    if kind.is_float:
        for line in range(0, vectors * kind.bytes, 64):
            k.prefetch(weights + (_AHEAD + line))


def channel_tile(k: Module, name: str, arithmetic: Arithmetic, lanes: int, rows: int, vectors: int) -> None:
    """Add the tile of ``rows`` pixels by ``vectors`` vectors of output channels to a module."""
    sum_type = vector(arithmetic.accumulator, lanes)
    with k.function(name, PanelTile) as given:
        held = _start(k, sum_type, given.start, given.start_row, rows, vectors)
        with k.loop(0, given.count, carry=held) as entry:
            row, count, streamed = _entry(k, given, entry.index, vectors * sum_type.bytes)
            entry.next(*_reduce(k, arithmetic, vectors, count, row, streamed, entry.values, range(rows)))
        _finish(k, entry.results, given.sums, given.sum_row, vectors)


def edge_tile(k: Module, name: str, arithmetic: Arithmetic, lanes: int, rows: int, vectors: int) -> None:
    """Add a tile that leaves out products with padding, and asks for what is read long after it.

    Above the 32 bits of its count an entry has the pixel of a line for which it meets only padding: ``FIRST`` or
    ``LAST``.
    """
    sum_type = vector(arithmetic.accumulator, lanes)
    kept = {0: range(rows), FIRST: range(1, rows), LAST: range(rows - 1)}
    with k.function(name, EdgeTile) as given:
        pace = given.pace
        held = _start(k, sum_type, given.start, given.start_row, rows, vectors)
        with k.loop(0, given.count, carry=[given.early, *held]) as entry:
            soon, *total = entry.values
            row, word, streamed = _entry(k, given, entry.index, vectors * sum_type.bytes)
            count, missed = word & 0xFFFFFFFF, (word >> 32) & given.edges
            for kind, some in kept.items():
                if some:
                    with k.choice(missed.equals(kind), total) as chosen:
                        chosen.next(*_reduce(k, arithmetic, vectors, count, row, streamed, total, some, (soon, pace)))
                    total = chosen.results
            entry.next(soon + count * pace, *total)
        _finish(k, entry.results[1:], given.sums, given.sum_row, vectors)


def _entry(k: Module, given: PanelTile, number: Value, step: int) -> tuple[Buffer, Value, Buffer]:
    """Where an entry's words lie, how many there are, and where their weights lie."""
    place = given.entries + number * 24
    return given.panel + k.word(place), k.word(place, 1), given.weights + k.word(place, 2) * step


def _reduce(k: Module, arithmetic: Arithmetic, vectors: int, count: Value, row: Buffer, streamed: Buffer,
            sums: Sequence[Value], rows: range, asked: Sequence[Any] = ()) -> list[Value]:  # fmt: skip
    """Sums with an entry's products added to those of some rows; ``asked``: a place to ask for, and its pace."""
    word_type = vector(arithmetic.word, sums[0].type.lanes)

    def step(_: Value, values: list[Any]) -> list[Any]:
        a, b, *total = values
        soon = [total.pop(0) for _ in asked[:1]]
        ask_early(k, b, sums[0].type, vectors)
        for place in soon:
            k.prefetch(place, far=True)
        vectors_of_b = [k.load(word_type, b + j * word_type.bytes) for j in range(vectors)]
        for r in rows:
            word = k.broadcast(word_type, a + r * ROW_WORDS * arithmetic.bytes)
            for j in range(vectors):
                total[r * vectors + j] = multiply_add(k, arithmetic, word, vectors_of_b[j], total[r * vectors + j])
        return [a + arithmetic.bytes, b + vectors * word_type.bytes, *[place + asked[1] for place in soon], *total]

    return repeated(k, arithmetic, count, [row, streamed, *asked[:1], *sums], step)[2 + len(asked[:1]) :]


def pixel_tile(k: Module, name: str, arithmetic: Arithmetic, lanes: int, rows: int, vectors: int) -> None:
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels to a module."""
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, PanelTile) as given:
        held = _start(k, kind, given.start, given.start_row, rows, vectors)

        def entry(index: Value, values: list[Any]) -> list[Any]:
            b, *total = values
            place = given.panel + k.word(given.entries, index)
            pixels = [k.load(kind, place + j * kind.bytes) for j in range(vectors)]
            following = []
            for r in range(rows):
                word = k.broadcast(kind, b + r * arithmetic.bytes)
                following += [
                    multiply_add(k, arithmetic, word, pixels[j], total[r * vectors + j]) for j in range(vectors)
                ]
            return [b + rows * arithmetic.bytes, *following]

        _, *sums = repeated(k, arithmetic, given.count, [given.weights, *held], entry, runs=False)
        _finish(k, sums, given.sums, given.sum_row, vectors)
