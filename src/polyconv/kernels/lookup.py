"""Bytes looked up in a table of 256, a vector of them at once.

Turns a table into the form that a target's instructions want, and vectors of places into what stands there.  The one
idea: x86 picks bytes of a vector by places that another one has, out of 16 bytes since AVX2, out of 128 with VBMI, so
that a table is a few such picks.  It must not know what a table holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.language import INT, Module, Value, vector
from polyconv.kernels.values import Buffer
from polyconv.target import Target

__all__ = ["PLACES", "Lookup", "arranged", "looked_up", "way_of"]

PLACES = 256
"""Entries of a table."""

_PIECE = 16
"""Bytes among which one instruction picks, in every 128 bits of a vector."""
_PIECES = 8
"""Pieces of half a table."""
_PICKING = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}
"""By the bytes of a vector what picks bytes of a piece, and has 0 where the place is negative."""

Lookup = Callable[[Value], Value]
"""From places to what stands there: both vectors of bytes, or single ones."""


def way_of(target: Target) -> str:
    """How a target looks up: ``halves`` of a table by two picks, ``pieces`` of it by sixteen, or ``single`` bytes."""
    if target.vbmi2:
        return "halves"
    return "pieces" if target.vector_bytes in _PICKING and target.level != "neon" else "single"


def arranged(table: NDArray[Any], way: str) -> NDArray[np.uint8]:
    """The bytes of a table as vectors of a way read them, and behind them as they are.

    Notes
    -----
    Half a table has 8 pieces T[0..7] of 16 bytes.  A pick has 0 where its place, as a signed number, is negative.  With
    D[0] = T[0] and D[j] = T[j] ^ T[j - 1], the picks of ``place - 16 j`` from D[j] are therefore 0 from the first j on
    that is beyond the place, and those before it give ``D[0] ^ ... ^ D[place / 16] = T[place / 16]``: a subtraction
    and a pick for each piece, and no comparison.
    """
    plain = table.view(np.uint8)
    found = plain.reshape(2, _PIECES, _PIECE).copy()
    if way == "pieces":
        found[:, 1:] ^= plain.reshape(2, _PIECES, _PIECE)[:, :-1]
    return np.concatenate([found.reshape(-1), plain])


def looked_up(k: Module, way: str, vector_bytes: int, table: Buffer) -> Lookup:
    """What looks up vectors of bytes, or single ones, in a table that was ``arranged``."""
    single = _one_by_one(k, table + PLACES)
    if way == "single":
        return single
    whole = (_by_halves if way == "halves" else _by_pieces)(k, vector_bytes, table)
    return lambda places: (whole if places.type.lanes else single)(places)


def _one_by_one(k: Module, table: Buffer) -> Lookup:
    return lambda place: k.load(place.type, table + k.cast("zext", place, INT))


def _by_halves(k: Module, vector_bytes: int, table: Buffer) -> Lookup:
    """The low seven bits of a place pick among two vectors; the eighth says among which two."""
    kind = vector("i8", vector_bytes)
    held = [k.load(kind, table + at) for at in range(0, PLACES, vector_bytes)]

    def find(places: Value) -> Value:
        low, high = (
            k.target_intrinsic("llvm.x86.avx512.vpermi2var.qi.512", kind, f"{kind}, {kind}, {kind}", [a, places, b])
            for a, b in (held[:2], held[2:])
        )
        return k.select(places < 0, high, low)

    return find


def _by_pieces(k: Module, vector_bytes: int, table: Buffer) -> Lookup:
    """See ``arranged``."""
    kind, piece = vector("i8", vector_bytes), vector("i8", _PIECE)
    name, kinds = _PICKING[vector_bytes], f"{kind}, {kind}"

    def find(places: Value) -> Value:
        total = k.constant(kind, 0)
        for half in range(2):
            signed = places ^ -128 if half else places
            for number in range(_PIECES):
                one = k.load(piece, table + (half * _PIECES + number) * _PIECE)
                entries = k.shuffle(one, one, [*range(_PIECE)] * (vector_bytes // _PIECE))
                here = signed
                if number:
                    here = k.intrinsic("ssub.sat", kind, signed, k.constant(kind, number * _PIECE))
                total = total ^ k.target_intrinsic(name, kind, kinds, [entries, here])
        return total

    return find
