"""What depthwise tiles share: the list of taps that they read, how inputs become factors, and how sums leave."""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.epilogue import Epilogue, EpilogueTables
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import store_out
from polyconv.kernels.record import Record, Word, word_count

__all__ = ["LIST_HEADER", "Entry", "Tile", "entry_at", "neighbours", "parted", "parted_order", "store_sums"]

LIST_HEADER = 64
"""Bytes before the entries: a word for each kind of entry, how many there are."""


class Entry(Record):
    """An entry: offsets in bytes, position along the sliding axis, lanes of pixels that are not padding.

    Where an entry has several taps across the lanes: elements of the input, counted from lane 0 of the first of them.
    """

    input: Word
    weights: Word
    position: Word
    first_lane: Word
    end_lane: Word


def entry_at(k: Module, entries: Buffer, number: Value) -> Entry:
    """An entry of a list."""
    return Entry.read(k, entries + number * (8 * word_count(Entry)) + LIST_HEADER)


@dataclass(frozen=True, slots=True)
class Tile:
    """What all kinds of tiles say.

    Parameters
    ----------
    source, target : str
        dtypes of input and result.
    element : str
        LLVM accumulator.
    epilogue : Epilogue
    """

    source: str
    target: str
    element: str
    epilogue: Epilogue

    def in_memory(self, lanes: int) -> Type:
        """A vector of the input."""
        return vector(self.element, lanes).of(LLVM_NAMES[DTYPES[self.source].name])

    def as_factor(self, k: Module, value: Value, *, f16c: bool = True) -> Value:
        """A vector of the input in the type of sums."""
        return widen(k, value, DTYPES[self.source], self.element, f16c=f16c)

    def way_out(self, k: Module, along: str, lanes: int, *, f16c: bool = True, y_lane: Value | None = None) -> Block:
        """How sums leave, ``along`` as a ``Move`` spells it; lanes that lie any way are ``y_lane`` bytes apart."""
        move = Move(self.element, self.target, along, self.epilogue)
        return Block(k, move, vector(self.element, lanes), f16c, None, y_lane)


def store_sums(out: Block, tables: EpilogueTables, value: Value, y: Buffer, residual: Buffer, channel: Value,
               mask: Mask | None, *, r_lane: Value | None = None) -> None:  # fmt: skip
    """Finish and store a vector of sums of lanes that begin with a channel, or are pixels of it."""
    zero = out.k.constant(INT, 0)
    store = store_out(out, tables.bias, tables.scale, residual, zero if r_lane is None else r_lane, zero,
                      tables.constants)  # fmt: skip
    store(value, y, zero, channel, mask)


def parted(k: Module, a: Value, b: Value, of_a: int, of_b: int) -> Value:
    """Every second element of two vectors, from the first (0) or the second (1) of each, in ``parted_order``."""
    lanes, piece = a.type.lanes, 16 // a.type.element_bytes
    return k.shuffle(a, b, [
        half * lanes + first + i + of for first in range(0, lanes, piece) for half, of in enumerate((of_a, of_b))
        for i in range(0, piece, 2)
    ])  # fmt: skip


def parted_order(lanes: int, size: int) -> list[int]:
    """The order in which one shuffle within pieces of 128 bits gives every second element of two vectors."""
    piece = 16 // size
    return [half * lanes // 2 + (first + i) // 2 for first in range(0, lanes, piece) for half in range(2)
            for i in range(0, piece, 2)]  # fmt: skip


def neighbours(k: Module, here: Value, rest: Value, count: int, kind: Type) -> list[Value]:
    """A vector and those ``count`` - 1 elements further on, whose last lanes are in ``rest``, as of a kind.

    Both are whole numbers, and lanes beyond the rest zeros: so one instruction shifts, which asks for no constant.
    """
    lanes = here.type.lanes
    rest = k.shuffle(rest, k.constant(rest.type, 0), [min(i, rest.type.lanes) for i in range(lanes)])
    found = [here, *(k.shuffle(here, rest, range(j, lanes + j)) for j in range(1, count))]
    return found if kind == here.type else [k.cast("bitcast", value, kind) for value in found]
