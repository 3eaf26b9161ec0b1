"""The registers of a CPU's matrix unit (Intel's AMX): how they are shaped, loaded, multiplied, stored.

There are eight, of up to 16 rows of 64 bytes.  A product takes one whose rows are pixels and one whose rows are words
of channels: to every word of a pixel and of a result's lane it adds what a dot product of a vector would.  Or rows are
output channels, and lanes of a result are pixels.  It must not know what is multiplied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.isa import Arithmetic
from polyconv.kernels.language import Buffer, Module, Value

__all__ = ["PIXEL_BYTES", "ROWS", "SUMS", "TALLEST", "WORDS", "clear", "load", "multiply", "release", "shape", "shapes",
           "store"]  # fmt: skip

SUMS, ROWS, WORDS = range(4), range(4, 6), range(6, 8)
"""Registers of sums; those whose rows are pixels or output channels; and those whose rows are words of the other."""
TALLEST = 16
"""Rows of a register."""
PIXEL_BYTES = 64
"""Bytes of a row."""

_PRODUCTS = {
    "u8s8": ("llvm.x86.tdpbusd", "llvm.x86.tdpbsud"), "bf16": ("llvm.x86.tdpbf16ps", "llvm.x86.tdpbf16ps"),
}  # fmt: skip
"""By the arithmetic: products of words of four bytes, u8 by i8, or of two bf16 numbers; and those turned."""


def shapes(rows: int, words: int) -> NDArray[np.uint8]:
    """What ``shape`` takes: so many rows, and words of each, in a register."""
    table = np.zeros(64, np.uint8)
    table[0] = 1  # the only palette there is
    bytes_of_row, heights = table[16:32].view(np.uint16), table[48:56]
    heights[:], bytes_of_row[:] = rows, PIXEL_BYTES
    bytes_of_row[list(ROWS)], heights[list(WORDS)] = 4 * words, words
    return table


def shape(k: Module, table: Buffer) -> None:
    """Give all registers their shapes."""
    k.act("llvm.x86.ldtilecfg", "ptr", k.rows_place(table, 0, 1, 64, "shapes of registers")[0])


def release(k: Module) -> None:
    """Give the registers back, so that the system need not keep them, and the CPU may clock higher."""
    k.act("llvm.x86.tilerelease", "", "")


def clear(k: Module, register: int) -> None:
    """Fill a register with zeros."""
    k.act("llvm.x86.tilezero", "i8", f"i8 {register}")


def load(k: Module, register: int, place: Buffer, step: Value | int, rows: Value | int, width: Value | int) -> None:
    """Load rows of so many bytes that lie a step apart."""
    _moved(k, "llvm.x86.tileloadd64", register, place, step, rows, width)


def store(k: Module, register: int, place: Buffer, step: Value | int, rows: Value | int, width: Value | int) -> None:
    """Store rows of so many bytes a step apart."""
    _moved(k, "llvm.x86.tilestored64", register, place, step, rows, width)


def _moved(k: Module, name: str, register: int, place: Buffer, step: Value | int, rows: Value | int,
           width: Value | int) -> None:  # fmt: skip
    at, apart = k.rows_place(place, step, rows, width, "tile of a matrix")
    k.act(name, "i8, ptr, i64", f"i8 {register}, {at}, {apart}")


def multiply(k: Module, arithmetic: Arithmetic, sums: int, rows: int, words: int, *, turned: bool = False) -> None:
    """Add products to sums, of pixels in rows by weights in words; ``turned``, of weights by pixels in words."""
    k.act(_PRODUCTS[arithmetic.name][turned], "i8, i8, i8", f"i8 {sums}, i8 {rows}, i8 {words}")
