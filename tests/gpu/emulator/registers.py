"""Registers of all threads: one NumPy array a register, seen as whatever type an instruction names."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .parser import Kernel

__all__ = ["NUMPY", "POISON", "Active", "Registers", "is_float", "poison"]

Array = NDArray[Any]

NUMPY: dict[str, Any] = {
    "u8": np.uint8, "s8": np.int8, "b8": np.uint8,
    "u16": np.uint16, "s16": np.int16, "b16": np.uint16, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "f32": np.float32, "tf32": np.float32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64, "f64": np.float64, "pred": np.bool_,
    "f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16,
}  # fmt: skip
"""NumPy type of a PTX type; of the packed ones, that of an element."""

POISON = 0x7FFF
"""Sixteen bits that, repeated, are NaN in every floating type: what registers and shared memory start with."""


def poison(array: Array) -> None:
    """Fill with NaN bits; predicates start as false."""
    if array.dtype == np.bool_:
        array[...] = False
    else:
        raw = array.view(np.uint8)
        raw[..., 0::2], raw[..., 1::2] = POISON & 0xFF, POISON >> 8


def is_float(type_: str) -> bool:
    """Whether a PTX type is a floating one."""
    return "f" in type_


@dataclass(slots=True)
class Active:
    """The threads that execute: all of them (``where`` is True), or those of a mask."""

    where: Any
    count: int
    _lanes: Array | None = field(default=None, repr=False)

    @property
    def lanes(self) -> Array:
        """Their positions on the axis."""
        if self._lanes is None:
            self._lanes = np.arange(self.count) if self.where is True else np.flatnonzero(self.where)
        return self._lanes

    @property
    def mask(self) -> Array:
        """A boolean for every thread."""
        return np.ones(self.count, bool) if self.where is True else self.where

    def pairs(self) -> Any:
        """The mask for arrays with two elements a thread."""
        return True if self.where is True else self.where[:, None]

    def narrowed(self, also: Array) -> Active:
        """Those for which a predicate holds too."""
        return Active(also.copy() if self.where is True else self.where & also, self.count)

    def any(self) -> bool:
        """Whether anybody executes."""
        return bool(self.where is True or self.where.any())


class Registers:
    """Arrays by register name, made when first named.

    Parameters
    ----------
    kernel : Kernel
    count : int
        Threads on the axis.
    special : mapping
        ``%tid.x`` and the like, one u32 a thread; and the addresses of variables, one number for all.
    """

    def __init__(self, kernel: Kernel, count: int, special: dict[str, Any]) -> None:
        self._types, self._count, self.special = kernel.registers, count, special
        self._arrays = dict[str, Array]()

    def is_register(self, word: str) -> bool:
        """Whether a word of an operand is a declared register."""
        return self._type(word) is not None

    def _type(self, word: str) -> str | None:
        return self._types.get(word) or self._types.get(word.rstrip("0123456789"))

    def array(self, name: str) -> Array:
        """All threads' values of a register, as unsigned bits or booleans."""
        if name not in self._arrays:
            kind = self._type(name)
            if kind is None:
                raise ValueError(f"{name} is no register of this kernel")
            width = {"pred": np.bool_, "8": np.uint8, "16": np.uint16, "32": np.uint32, "64": np.uint64}
            dtype = width[kind if kind == "pred" else kind.lstrip("busf")]
            self._arrays[name] = np.empty(self._count, dtype)
            poison(self._arrays[name])
        return self._arrays[name]

    def view(self, name: str, type_: str) -> Array:
        """A register as a type: the low part of a wider register; two columns for a packed type."""
        array, dtype = self.array(name), np.dtype(NUMPY[type_])
        if array.dtype == np.bool_ or dtype == np.bool_:
            if array.dtype != dtype:
                raise NotImplementedError(f"{name} used as {type_}")
            return array
        if type_.endswith("x2"):
            pairs: Array = array.view(dtype).reshape(self._count, 2)
            return pairs
        if array.itemsize < dtype.itemsize:
            raise NotImplementedError(f"{name} is narrower than {type_}")
        low: Array = array.view(dtype)[:: array.itemsize // dtype.itemsize]
        return low

    def source(self, word: str, type_: str) -> Any:
        """An operand that is read: an array over threads, or one number for all."""
        if self.is_register(word):
            return self.view(word, type_)
        dtype = np.dtype(NUMPY[type_])
        if word in self.special:
            value = self.special[word]
            if not isinstance(value, int):
                return value if dtype.itemsize == 4 else value.astype(dtype)
            bits = value
        elif word[:2] in ("0f", "0F", "0d", "0D"):
            bits = int(word[2:], 16)
        elif "." in word:
            bits = struct.unpack("<Q", struct.pack("<d", float(word)))[0]
            if dtype.itemsize != 8:
                return dtype.type(float(word))
        else:
            try:
                bits = int(word.rstrip("U"), 0)
            except ValueError:
                raise NotImplementedError(f"operand {word}") from None
        if type_ == "pred":
            return np.bool_(bits)
        raw = np.array([bits % (1 << 8 * np.dtype(np.uint32 if type_.endswith("x2") else dtype).itemsize)], np.uint64)
        return raw.view(dtype)[:2] if type_.endswith("x2") else raw.view(dtype)[0]

    def predicate(self, word: str) -> Any:
        """A predicate operand, perhaps negated: a function's worth of reading, so call it when executing."""
        return ~self.source(word[1:], "pred") if word[0] == "!" else self.source(word, "pred")

    def write(self, word: str, value: Any, active: Active) -> None:
        """Set a register of the active threads; a wider register takes the extension of the value's type."""
        if word == "_":
            return
        array = self.array(word)
        np.copyto(array, np.asarray(value).astype(array.dtype, copy=False), where=active.where)

    def write_lanes(self, word: str, lanes: Array, values: Any) -> None:
        """Set a register of the threads at ``lanes``, one value each."""
        if word != "_":
            array = self.array(word)
            array[lanes] = np.asarray(values).astype(array.dtype, copy=False)
