"""What each instruction-set level offers a kernel: register tiles and arithmetic, as rows.

``ARITHMETIC`` says in which type a product is formed and summed; the tables of tiles which of them fit
into registers without spilling.  An ISA feature is a row here; kernels and algorithms read the tables.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.target import Target

__all__ = ["ARITHMETIC", "Arithmetic", "channel_tile", "field_tile", "lanes", "pixel_tiles", "run_tiles", "square_tile",
           "steps_together"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How products are formed and summed.

    Parameters
    ----------
    name : str
        As in a plan.
    word : str
        LLVM type of one panel word, the unit that is broadcast.
    accumulator : str
        LLVM type of the sum.
    bytes : int
        Bytes of a word and of an accumulator (they are equal).
    channels : int
        Input channels per word: 2 for dot products of pairs, 4 of bytes.
    weights : str
        dtype of a weight; empty where it is named as the arithmetic is.
    rates : str
        Arithmetic whose rates it has in a machine's profile; empty for its own.
    presummed : bool
        Whether two products of bytes are summed in 16 bits before 32: weights must leave these sums room.
    """

    name: str
    word: str
    accumulator: str
    bytes: int
    channels: int = 1
    weights: str = ""
    rates: str = ""
    presummed: bool = False

    @property
    def weight(self) -> str:
        """Element type of a weight, and of an input's channel in a word."""
        return self.weights or self.name

    @property
    def has_products(self) -> bool:
        """Whether x86 forms products in registers of their own, before they are added: integers, but bytes by fours."""
        return self.accumulator not in ("float", "double") and self.channels < 4


ARITHMETIC: dict[str, Arithmetic] = {
    row.name: row
    for row in (
        Arithmetic("f32", "float", "float", 4),
        Arithmetic("f64", "double", "double", 8),
        Arithmetic("i32", "i32", "i32", 4),
        Arithmetic("i64", "i64", "i64", 8),
        Arithmetic("bf16", "i32", "float", 4, 2),
        Arithmetic("u8s8", "i32", "i32", 4, 4, "i8", "f32"),
        Arithmetic("u8s8 presummed", "i32", "i32", 4, 4, "i8", "f32", True),
        Arithmetic("i16", "i32", "i32", 4, 2, rates="f32"),
        Arithmetic("i16 sums", "i16", "i16", 2, weights="i16", rates="f32"),
    )
}

# (rows, vectors) of the largest tile by vectors per row.  32 registers hold 14 x 2 sums, 2 weights and
# a broadcast; 16 hold 6 x 2, or 4 x 3.  Without FMA, and with integers, a product needs a register of its own: with
# it 32 still hold all tiles, 16 no 4 x 3: a sum that leaves its register costs such a tile two fifths of its speed.
# Sums in 16 bits need one more for the ones that widen them.
# Measured on Zen 4: all of them run at 97-100 % of one FMA a cycle.  Those of neon are counted, not measured.
_CHANNEL_TILES: dict[str, dict[int, int]] = {
    "avx512": {1: 14, 2: 14, 3: 9, 4: 6},
    "avx2": {1: 6, 2: 6, 3: 4},
    "avx2 products": {1: 6, 2: 6, 3: 3},
    "baseline": {1: 4, 2: 4},
    "neon": {1: 14, 2: 12, 3: 8, 4: 6},
}

# Vectors -> rows of tiles that store their results: several vectors, so that a pixel's results fill whole lines.
_RUN_TILES: dict[str, dict[int, int]] = {
    "avx512": {1: 28, 2: 14, 3: 9, 4: 6},
    "avx2": {1: 12, 2: 6, 3: 4},
    "avx2 products": {1: 12, 2: 6, 3: 3},
    "avx2 presummed": {1: 10, 2: 5, 3: 3},
    "baseline": {1: 4, 2: 4},
    "neon": {1: 22, 2: 12, 3: 8, 4: 6},
}

# The same of tiles whose lanes each pick a word of a pixel, with a vector of places for each of the weights.
_PICKING_TILES: dict[int, int] = {1: 26, 2: 13, 3: 8, 4: 5}

# Output channels -> most pixel vectors, for the tile whose lanes are pixels.
_PIXEL_TILES: dict[str, dict[int, int]] = {
    "avx512": {1: 8, 2: 8, 3: 7, 4: 6, 5: 5, 6: 4, 7: 3, 8: 3},
    "avx2": {1: 8, 2: 4, 3: 3, 4: 3},
    "avx2 products": {1: 8, 2: 4, 3: 3, 4: 2, 6: 2},
    "baseline": {1: 4, 2: 4, 4: 2},
    "neon": {1: 8, 2: 8, 3: 7, 4: 6, 5: 4, 6: 4, 7: 3, 8: 3},
}

# Most output channels of the tile that transposes squares of pixels by channels in registers; two such vectors spill.
_SQUARE_TILES: dict[str, int] = {"avx512": 8, "avx2": 4, "baseline": 4, "neon": 8}

# Rows of outputs, and vectors of each, of the tile of a field: with every line that it reads rows share its vectors.
_FIELD_TILES: dict[str, tuple[int, int]] = {"avx512": (4, 4), "avx2": (2, 4), "baseline": (2, 3), "neon": (4, 4)}


# Steps of a tile that stand in one turn of its loop.  Small tiles have few instructions, so that those that count and
# jump weigh more.  Measured on a Zen 3: while the core's other thread is busy, and the two share what decodes
# instructions, tiles of 6 x 2 sums take 12 to 20 % less time; alone they take as long.  Four steps gain 2 % more and
# take twice as long to compile.  Without FMA several steps spill; not measured on neon.
_TOGETHER = {"avx512": 1, "avx2": 2, "baseline": 1, "neon": 1}


def steps_together(target: Target) -> int:
    """Steps of a tile that stand in one turn of its loop."""
    return _TOGETHER[target.level]


def lanes(target: Target, arithmetic: Arithmetic) -> int:
    """Accumulators in one vector register."""
    return target.vector_bytes // arithmetic.bytes


def _level(target: Target, arithmetic: Arithmetic) -> str:
    """The row of a table of tiles."""
    if target.level != "avx2":
        return target.level
    return "avx2 presummed" if arithmetic.presummed else "avx2 products" if arithmetic.has_products else "avx2"


def channel_tile(target: Target, arithmetic: Arithmetic, vectors: int) -> int:
    """Most rows of a tile of ``vectors`` weight vectors, 0 if there is none."""
    return _CHANNEL_TILES[_level(target, arithmetic)].get(vectors, 0)


def run_tiles(target: Target, arithmetic: Arithmetic, *, picking: bool = False) -> dict[int, int]:
    """Vectors of output channels -> most pixels, for the tile whose pixels lie a run-time step apart.

    Its lanes all have the same word, or each picks one.
    """
    return _PICKING_TILES if picking else _RUN_TILES[_level(target, arithmetic)]


def pixel_tiles(target: Target, arithmetic: Arithmetic) -> dict[int, int]:
    """Output channels -> most pixel vectors, for the tile whose lanes are pixels."""
    return _PIXEL_TILES[_level(target, arithmetic)]


def field_tile(target: Target) -> tuple[int, int]:
    """Rows of outputs and vectors of each, of the tile that sums over windows of a field."""
    return _FIELD_TILES[target.level]


def square_tile(target: Target) -> int:
    """Most output channels of the tile that transposes a vector of pixels in registers."""
    return _SQUARE_TILES[target.level]
