"""Depthwise convolutions of bytes along the lines of a plane: a word is four neighbouring pixels of a line.

A vector of words that begins ``i`` strides into a line meets the taps of every output whose number leaves ``i`` when
it is divided by the sums of a word: 4 for a stride of 1, 2 for 2, 1 for 4.  So a load at each of those places, and one
dot product each, give a whole vector of results::

    y[o] = sum_t w[t] x[s o + t],   o = j (4 / s) + i:   word j of the vector at s i is x[4j + s i .. 4j + s i + 3]

and nothing is moved until results are bytes: those of the sums of a word then follow each other in it.  Kernels with
more than four taps along a line take a further word for each four.  It must not know extents, pads or channels.
"""

from __future__ import annotations

from dataclasses import replace

from polyconv.dataclass import dataclass
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Move, woven
from polyconv.kernels.move import finished
from polyconv.kernels.rescale import is_packed, packed_bytes, packed_place
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add

__all__ = ["BYTES_OF_A_WORD", "ByteLines", "DotLines", "dot_lines"]

BYTES_OF_A_WORD = 4
_HELD = 14
"""Words of weights that stay in registers; more are read with every product."""


class ByteLines(Signature):
    """A plane's rows of outputs: the panel's lines that tap 0 of the first ones meets, and where results go.

    ``offsets`` has the bytes from there to the line of each tap, ``group`` leads to the next rows.  A row has so many
    ``vectors`` of results, the last of them ``last`` results; where several rows share a vector there is one vector.
    """

    lines: Buffer
    group: Int
    offsets: Buffer
    weights: Buffer
    y: Buffer
    y_row: Int
    rows: Int
    vectors: Int
    last: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer
    channel: Int


@dataclass(frozen=True, slots=True)
class DotLines:
    """A kind of such a kernel.

    Parameters
    ----------
    target : str
        dtype of the result.
    epilogue : Epilogue
    lines : int
        Lines that taps meet.
    words : int
        Words of weights of a line.
    stride : int
        Along a line: 1, 2 or 4.
    together : int
        Rows of outputs whose lines lie in one vector, one after another.
    """

    target: str
    epilogue: Epilogue
    lines: int
    words: int
    stride: int
    together: int


def dot_lines(k: Module, name: str, spec: DotLines, lanes: int) -> None:
    """Add the kernel, for vectors of so many words, to a module."""
    kind, words, arithmetic = vector("i32", lanes), vector("i32", lanes), ARITHMETIC["u8s8"]
    sums_of_word = BYTES_OF_A_WORD // spec.stride
    with k.function(name, ByteLines) as g:
        every = [(line, word) for line in range(spec.lines) for word in range(spec.words)]
        weight = {at: g.weights + number * BYTES_OF_A_WORD for number, at in enumerate(every)}
        held = {at: k.broadcast(words, place) for at, place in weight.items()} if len(every) <= _HELD else {}
        offsets = [k.word(g.offsets, line) for line in range(spec.lines)]
        first = k.broadcast(kind, g.bias + g.channel * 4) if spec.epilogue.bias else k.constant(kind, 0)
        results = lanes * sums_of_word
        of_row = results // spec.together
        masks = [_results(k, spec, of_row * row, of_row * row + g.last, results) for row in range(spec.together)]

        def sums(lines: Buffer) -> list[Value]:
            total = [first] * sums_of_word
            for line, offset in enumerate(offsets):
                here = k.rebase(lines + offset)
                for word in range(spec.words):
                    of_tap = held.get((line, word)) or k.broadcast(words, weight[line, word])
                    for i in range(sums_of_word):
                        pixels = k.load(words, here + (i * spec.stride + word * BYTES_OF_A_WORD))
                        total[i] = multiply_add(k, arithmetic, pixels, of_tap, total[i])
            return total

        with k.loop(0, g.rows, spec.together, carry=[g.lines, g.y]) as row:
            lines, y = row.values
            with k.loop(1, g.vectors, carry=[lines, y]) as column:
                here, there = column.values
                for place, value in _finished(k, spec, g, sums(here)):
                    k.store(value, there + place)
                column.next(here + words.bytes, there + results * _itemsize(spec))
            here, there = column.results
            parts = _finished(k, spec, g, sums(here))
            for number, of_parts in enumerate(masks):
                with k.when(row.index + number < g.rows):
                    begin = there + g.y_row * number + -number * of_row * _itemsize(spec)
                    for (place, value), mask in zip(parts, of_parts, strict=True):
                        k.store_first(value, begin + place, mask)
            row.next(lines + g.group, y + g.y_row * spec.together)


def _itemsize(spec: DotLines) -> int:
    return 4 if spec.target == "i32" else 1


def _results(k: Module, spec: DotLines, first: int, end: Value, results: int) -> list[Mask]:
    """Masks of a row's results in the vectors that are stored: one of bytes, or those of the sums."""
    if spec.target != "i32":
        return [k.span(k.constant(INT, first), end, results)]
    lanes = results * spec.stride // BYTES_OF_A_WORD
    return [k.span(first - at + k.constant(INT, 0), end - at, lanes) for at in range(0, results, lanes)]


def _finished(k: Module, spec: DotLines, g: ByteLines, sums: list[Value]) -> list[tuple[int, Value]]:
    """Vectors of results in the order of outputs, and the byte at which each lies; the bias is in the sums."""
    kind, nothing = sums[0].type, k.constant(INT, 0)
    if is_packed(kind, spec.target, spec.epilogue):
        scale = k.broadcast(kind.of("float"), g.scale + g.channel * 4)
        packed = packed_bytes(k, sums, [scale] * len(sums), g.constants, spec.target, spec.epilogue)
        in_turn = [packed_place(j, lane) for lane in range(kind.lanes) for j in range(len(sums))]
        return [(0, k.shuffle(packed, packed, in_turn))]
    block = Block(k, Move("i32", spec.target, "pp", replace(spec.epilogue, bias=False)), kind, False)
    finish = finished(block, g.bias, g.scale, g.y, nothing, nothing, g.constants)
    values = [finish(total, nothing, g.channel, None) for total in sums]
    if spec.target == "i32":
        return [(j * kind.bytes, value) for j, value in enumerate(woven(k, values))]
    merged = k.cast("zext", values[0], kind)
    for j, value in enumerate(values[1:], 1):
        merged = merged | k.cast("zext", value, kind) << 8 * j
    if len(values) < BYTES_OF_A_WORD:
        merged = k.cast("trunc", merged, kind.of(f"i{8 * len(values)}"))
    return [(0, k.cast("bitcast", merged, Type("i8", kind.lanes * len(values))))]
