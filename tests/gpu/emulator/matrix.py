"""``ldmatrix``, ``stmatrix`` and ``mma.sync``: fragments of small matrices spread over the lanes of a warp.

A product is summed in float64 (or exact integers) and rounded once, where the hardware cuts digits as it
adds: results of the two agree to a few units in the last place of f32, not in their bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .access import addresses
from .convert import saturated
from .parser import Instruction
from .registers import NUMPY, Active
from .warps import whole

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS", "fragment_a", "wide"]

Array = NDArray[Any]
Run = Callable[[Active], None]

_ELEMENT_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "f32": 32, "s32": 32}


def wide(words: Array, type_: str) -> Array:
    """Unsigned words ``[..]`` as numbers to compute with ``[.., elements of a word]``."""
    if type_ == "tf32":
        words = words & np.uint32(0xFFFFE000)
    values = np.ascontiguousarray(words)[..., None].view(NUMPY[type_])
    return np.asarray(values.astype(np.int64 if values.dtype.kind in "iu" else np.float64))


def fragment_a(words: Array, type_: str) -> Array:
    """Registers ``[i, warp, lane]`` of operand A as matrices ``[warp, 16, k]``: row and column of every lane.

    Register i holds rows ``lane / 4 + 8 (i & 1)`` and the columns of half ``i / 2``.
    """
    count, warps, _ = words.shape
    values = wide(words, type_)
    per = values.shape[-1]
    values = values.reshape(max(count // 2, 1), min(count, 2), warps, 8, 4, per)
    return values.transpose(2, 1, 3, 0, 4, 5).reshape(warps, 8 * min(count, 2), -1)


def _fragment_b(words: Array, type_: str) -> Array:
    """Registers ``[i, warp, lane]`` of operand B as matrices ``[warp, k, 8]``."""
    count, warps, _ = words.shape
    values = wide(words, type_)
    values = values.reshape(count, warps, 8, 4, values.shape[-1])
    return values.transpose(1, 0, 3, 4, 2).reshape(warps, -1, 8)


def _accumulators(words: Array, type_: str) -> Array:
    """Registers of operand C as matrices ``[warp, rows, 8]``: pairs of columns, then the lower rows."""
    warps = words.shape[1]
    values = wide(words, type_)  # f32, f64, s32: one a word; f16: two
    pairs = values.reshape(-1, 2, warps, 8, 4, 1) if values.shape[-1] == 1 else values.reshape(-1, 1, warps, 8, 4, 2)
    return pairs.transpose(2, 0, 3, 4, 1, 5).reshape(warps, -1, 8)


def _spread(matrix: Array, count: int) -> Array:
    """The reverse of ``_accumulators``: ``[register, warp, lane]`` words of a typed matrix."""
    warps, rows, _ = matrix.shape
    per = rows * 8 // 32 // count  # elements of a register
    split = matrix.reshape(warps, rows // 8, 8, 4, 2 // per, per)
    ordered = np.ascontiguousarray(split.transpose(1, 4, 0, 2, 3, 5))
    unsigned = np.dtype(f"u{per * matrix.itemsize}")
    return ordered.view(unsigned).reshape(count, warps, 32)


def _multiply(machine: Machine, ins: Instruction) -> Run:
    shape = re.fullmatch(r"m(\d+)n8k(\d+)", ins.opcode[3])
    if shape is None or ins.opcode[1:3] != ("sync", "aligned") or ins.opcode[4:6] != ("row", "col"):
        raise NotImplementedError(ins.text)
    rest = [part for part in ins.opcode[6:] if part != "satfinite"]
    d_type, a_type, b_type, c_type = rest
    if int(shape[1]) != (8 if a_type == "f64" else 16) or d_type != c_type or a_type not in _ELEMENT_BITS:
        raise NotImplementedError(ins.text)
    registers = machine.registers
    bits = "b64" if a_type == "f64" else "b32"
    groups = [[registers.source(name, bits) for name in ins.words(i)] for i in (1, 2, 3)]
    per_a = int(shape[1]) * int(shape[2]) * _ELEMENT_BITS[a_type] // 32 // int(bits[1:])
    if len(groups[0]) != per_a:
        raise NotImplementedError(f"{len(groups[0])} registers of A in {ins.text}")

    def run(active: Active) -> None:
        lanes = whole(active, 32).reshape(-1)
        a, b, c = (
            np.stack([np.broadcast_to(s, machine.count)[lanes] for s in group]).reshape(len(group), -1, 32)
            for group in groups
        )
        with np.errstate(all="ignore"):
            total = fragment_a(a, a_type) @ _fragment_b(b, b_type) + _accumulators(c, c_type)
            if d_type == "s32":
                result = saturated(total, np.int32) if "satfinite" in ins.opcode else total.astype(np.int32)
            else:
                result = total.astype(NUMPY[d_type])
        words = _spread(result, len(ins.words(0)))
        for name, values in zip(ins.words(0), words, strict=True):
            registers.write_lanes(name, lanes, values.reshape(-1))

    return run


def _matrix_form(ins: Instruction) -> tuple[int, bool]:
    """Matrices of an ldmatrix or stmatrix, and whether they are transposed."""
    ins.only("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16")
    return int(next(part for part in ins.opcode if part in ("x1", "x2", "x4"))[1]), "trans" in ins.opcode


def _load_matrix(machine: Machine, ins: Instruction) -> Run:
    count, transposed = _matrix_form(ins)
    where, names = addresses(machine, ins.address(1)), ins.words(0)

    def run(active: Active) -> None:
        warps = whole(active, 32)
        lanes = warps[:, : 8 * count].reshape(-1)
        at = machine.shared.locate(lanes, where(lanes), 16)
        rows = machine.shared.read(lanes, at, 4, 4).view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            rows = rows.transpose(0, 1, 3, 2)
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(-1, count, 32)
        for i, name in enumerate(names):
            machine.registers.write_lanes(name, warps.reshape(-1), words[:, i].reshape(-1))

    return run


def _store_matrix(machine: Machine, ins: Instruction) -> Run:
    count, transposed = _matrix_form(ins)
    where = addresses(machine, ins.address(0))
    sources = [machine.registers.source(name, "b32") for name in ins.words(1)]

    def run(active: Active) -> None:
        warps = whole(active, 32)
        words = np.stack([np.broadcast_to(s, machine.count)[warps] for s in sources], axis=1)
        rows = np.ascontiguousarray(words).view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            rows = rows.transpose(0, 1, 3, 2)
        lanes = warps[:, : 8 * count].reshape(-1)
        at = machine.shared.locate(lanes, where(lanes), 16)
        machine.shared.write(lanes, at, np.ascontiguousarray(rows).view(np.uint32).reshape(-1, 4))

    return run


BUILDERS = {"mma": _multiply, "ldmatrix": _load_matrix, "stmatrix": _store_matrix}
