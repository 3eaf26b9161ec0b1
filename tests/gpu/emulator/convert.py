"""``cvt``: between all types, with the rounding and saturation that the opcode names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .fused import rounded_to_bf16
from .parser import Instruction
from .registers import NUMPY, Active, is_float

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS", "saturated"]

Array = NDArray[Any]
Run = Callable[[Active], None]
_WHOLE: dict[str, Callable[[Any], Any]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")


def saturated(value: Any, dtype: Any) -> Array:
    """Integers, or whole numbers in float64, cut to an integer type; NaN becomes 0."""
    info = np.iinfo(dtype)
    if np.asarray(value).dtype.kind != "f":
        value = np.asarray(value)
        # compared as Python would: signed and unsigned types mix
        low = value < info.min if np.iinfo(value.dtype).min < info.min else np.zeros(value.shape, bool)
        high = value > info.max if np.iinfo(value.dtype).max > info.max else np.zeros(value.shape, bool)
        return np.where(low, info.min, np.where(high, info.max, value.astype(dtype))).astype(dtype)
    high, low = value >= float(info.max) + (info.max < 2**53), value < float(info.min)
    inside = np.where(high | low | np.isnan(value), 0, value).astype(dtype)
    return np.where(high, dtype(info.max), np.where(low, dtype(info.min), inside))


def _directed(x: Array, dtype: Any, mode: str) -> Array:
    """Float64 to a narrower floating type, toward zero, down or up."""
    near = rounded_to_bf16(x) if np.dtype(dtype) == NUMPY["bf16"] else x.astype(dtype)
    back = near.astype(np.float64)
    away = {"rz": np.abs(back) > np.abs(x), "rm": back > x, "rp": back < x}[mode]
    bits = np.ascontiguousarray(near).view(f"i{near.itemsize}")
    # one step in the order of the bits: toward zero for the magnitude, or away where the number must grow
    step = np.where((back > x) == (back > 0), -1, 1).astype(bits.dtype)
    crossing = (back == 0) & away  # from zero to the smallest number of the other side
    smallest = np.where(x > 0, 1, np.iinfo(bits.dtype).min + 1).astype(bits.dtype)
    return np.where(crossing, smallest, np.where(away, bits + step, bits)).astype(bits.dtype).view(near.dtype)


def _tf32(x: Array, mode: str) -> Array:
    """f32 to the nearest number with 10 bits of fraction: ties to even, or away from zero (``rna``)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    half = np.uint32(0x1000) if mode == "rna" else np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
    rounded = (bits + half) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, bits).astype(np.uint32).view(np.float32)


def _to_float(value: Array, type_: str, mode: str) -> Array:
    """A number of any type as floating ``type_``."""
    if type_ == "tf32":
        return _tf32(value, mode)
    dtype = NUMPY[type_]
    if value.dtype.kind in "iu" and value.itemsize == 8 and type_ in ("f32", "f64"):
        if mode != "rn":
            raise NotImplementedError(f"64-bit integers to {type_} with .{mode}")
        return value.astype(dtype)
    wide = value.astype(np.float64)
    if mode in ("rz", "rm", "rp"):
        return _directed(wide, dtype, mode)
    return rounded_to_bf16(wide) if type_ == "bf16" else wide.astype(dtype)


def _function(ins: Instruction, to: str, of: str) -> Callable[[Array], Array]:
    """What turns values of type ``of`` into type ``to``."""
    mode = next((m for m in _ROUNDINGS if m in ins.opcode), "rn")
    whole = next((_WHOLE[m] for m in _WHOLE if m in ins.opcode), None)
    saturate, relu = "sat" in ins.opcode or "satfinite" in ins.opcode, "relu" in ins.opcode
    flush = "ftz" in ins.opcode

    def compute(x: Array) -> Array:
        if flush and of == "f32":
            x = np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)
        if is_float(of) and not is_float(to):
            return saturated((whole or np.trunc)(x.astype(np.float64)), NUMPY[to])
        if is_float(to):
            y = whole(x.astype(np.float64)).astype(x.dtype) if whole is not None else _to_float(x, to, mode)
            if relu:
                y = np.where(y < 0, y.dtype.type(0), y)
            if "sat" in ins.opcode:
                y = np.where(np.isnan(y), y.dtype.type(0), np.clip(y, y.dtype.type(0), y.dtype.type(1)))
            return y
        return saturated(x, NUMPY[to]) if saturate else x.astype(NUMPY[to])

    return compute


def _convert(machine: Machine, ins: Instruction) -> Run:
    if "pack" in ins.opcode:
        return _pack(machine, ins)
    to, of = ins.opcode[-2:]
    ins.only(*_ROUNDINGS, *_WHOLE, "sat", "satfinite", "relu", "ftz", to, of)
    registers = machine.registers
    if "satfinite" in ins.opcode:
        raise NotImplementedError(ins.text)
    if to.endswith("x2"):  # two numbers into one register, the first into its upper half
        compute = _function(ins, to.removesuffix("x2"), of)
        high, low = (registers.source(ins.word(i), of) for i in (1, 2))
        view = registers.view(ins.word(0), to)

        def both(active: Active) -> None:
            pair = np.stack([compute(np.broadcast_to(v, machine.count)) for v in (low, high)], axis=1)
            np.copyto(view, pair, where=active.pairs())

        return both
    compute, source = _function(ins, to, of), registers.source(ins.word(1), of)

    def run(active: Active) -> None:
        value = compute(np.asarray(source))
        if is_float(to):
            value = value.view(f"u{value.itemsize}")
        registers.write(ins.word(0), value, active)

    return run


def _pack(machine: Machine, ins: Instruction) -> Run:
    """``cvt.pack.sat``: two numbers saturated side by side, above them the low part of a third."""
    ins.only("pack", "sat", *ins.opcode[-3:])
    to, of = ins.opcode[3:5]
    registers, bits = machine.registers, 8 * np.dtype(NUMPY[to]).itemsize
    a, b = (registers.source(ins.word(i), of) for i in (1, 2))
    c = registers.source(ins.word(3), "b32") if len(ins.operands) > 3 else np.uint32(0)

    def run(active: Active) -> None:
        x, y = (saturated(np.asarray(v), NUMPY[to]).view(f"u{bits // 8}").astype(np.uint32) for v in (a, b))
        above = c << np.uint32(2 * bits) if bits < 16 else np.uint32(0)
        registers.write(ins.word(0), above | x << np.uint32(bits) | y, active)

    return run


BUILDERS = {"cvt": _convert}
