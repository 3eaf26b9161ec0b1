"""Values of the kernel language: types as LLVM names them, numbers in registers with operators, memory, masks.

Operators emit instructions into the module that a value belongs to; ``language`` has loops, loads and stores.
It must know nothing of functions and calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyconv.dataclass import dataclass

if TYPE_CHECKING:
    from polyconv.kernels.emitter import Emitter
    from polyconv.kernels.language import Module

__all__ = ["BOOL", "INT", "POINTER", "Buffer", "Mask", "Type", "Value", "vector"]

_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


@dataclass(frozen=True, slots=True)
class Type:
    """An LLVM element type and a number of lanes; 0 lanes is a scalar."""

    element: str
    lanes: int = 0

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.element}>" if self.lanes else self.element

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating point."""
        return not self.element.startswith("i")

    @property
    def element_bytes(self) -> int:
        """Bytes of one element in memory."""
        return max(1, _BITS[self.element] // 8)

    @property
    def bytes(self) -> int:
        """Bytes of the whole value in memory."""
        return self.element_bytes * max(1, self.lanes)

    @property
    def suffix(self) -> str:
        """How intrinsic names spell the type: ``v16f32``."""
        short = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16"}.get(self.element, self.element)
        return f"v{self.lanes}{short}" if self.lanes else short

    def of(self, element: str) -> Type:
        """The same number of lanes of another element."""
        return Type(element, self.lanes)

    @property
    def scalar(self) -> Type:
        """One element."""
        return Type(self.element)


INT = Type("i64")
BOOL = Type("i1")
POINTER = Type("ptr")


def vector(element: str, lanes: int) -> Type:
    """Type of ``lanes`` elements."""
    return Type(element, lanes)


class Value:
    """An SSA value; operators emit instructions.  Integers compare signed, shifts are logical."""

    __slots__ = ("module", "name", "type")

    def __init__(self, module: Emitter, name: str, type_: Type) -> None:
        self.module, self.name, self.type = module, name, type_

    def _binary(self, integer: str, floating: str, other: Value | float, *, swap: bool = False) -> Value:
        right = self.module.spell(other, self.type)
        a, b = (right, self.name) if swap else (self.name, right)
        op = floating if self.type.is_float else integer
        return self.module.emit(f"{op} {self.type} {a}, {b}", self.type)

    def __add__(self, other: Value | float) -> Value:
        return self if _is(other, 0) and not self.type.is_float else self._binary("add", "fadd", other)

    __radd__ = __add__

    def __sub__(self, other: Value | float) -> Value:
        return self if _is(other, 0) and not self.type.is_float else self._binary("sub", "fsub", other)

    def __rsub__(self, other: Value | float) -> Value:
        return self._binary("sub", "fsub", other, swap=True)

    def __mul__(self, other: Value | float) -> Value:
        if isinstance(other, int) and not self.type.is_float and not self.type.lanes:
            if other == 1:
                return self
            if other > 0 and other & (other - 1) == 0:
                return self._binary("shl", "", other.bit_length() - 1)
        return self._binary("mul", "fmul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary("sdiv", "fdiv", other)

    def __rtruediv__(self, other: Value | float) -> Value:
        return self._binary("sdiv", "fdiv", other, swap=True)

    def __floordiv__(self, other: Value | int) -> Value:
        return self._binary("udiv", "", other)

    def __mod__(self, other: Value | int) -> Value:
        return self._binary("urem", "", other)

    def __and__(self, other: Value | int) -> Value:
        return self._binary("and", "", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("or", "", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._binary("xor", "", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._binary("shl", "", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._binary("lshr", "", other)

    def signed_shift(self, bits: int) -> Value:
        """Shifted right by some bits, the sign kept."""
        return self._binary("ashr", "", bits)

    def __neg__(self) -> Value:
        if self.type.is_float:
            return self.module.emit(f"fneg {self.type} {self.name}", self.type)
        return 0 - self

    def _compare(self, integer: str, floating: str, other: Value | float) -> Value:
        op = f"fcmp {floating}" if self.type.is_float else f"icmp {integer}"
        right = self.module.spell(other, self.type)
        return self.module.emit(f"{op} {self.type} {self.name}, {right}", self.type.of("i1"))

    def __lt__(self, other: Value | float) -> Value:
        return self._compare("slt", "olt", other)

    def __le__(self, other: Value | float) -> Value:
        return self._compare("sle", "ole", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._compare("sgt", "ogt", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._compare("sge", "oge", other)

    def equals(self, other: Value | float) -> Value:
        """Lane-wise equality (NaN is unequal)."""
        return self._compare("eq", "oeq", other)

    def below(self, other: Value | int) -> Value:
        """Unsigned less-than: for an index, ``0 <= self < other``."""
        return self._compare("ult", "", other)

    def is_nan(self) -> Value:
        """Lane-wise test for NaN."""
        return self._compare("", "uno", self)


def _is(value: object, number: int) -> bool:
    return isinstance(value, int) and value == number


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory: a base pointer, its extent in bytes (check mode), and an offset into it."""

    module: Module
    base: str
    extent: Value | None
    offset: Value | None = None
    constant: int = 0

    def __add__(self, step: Value | int) -> Buffer:
        """The same memory, ``step`` bytes further on."""
        if isinstance(step, int):
            return Buffer(self.module, self.base, self.extent, self.offset, self.constant + step)
        offset = step if self.offset is None else self.offset + step
        return Buffer(self.module, self.base, self.extent, offset, self.constant)

    def rows(self, count: int, step: Value, there: Value | None) -> list[Buffer]:
        """Where rows begin that lie a step apart; if only some are ``there``, all others begin where the last one does.

        A masked access asks nothing of a row that is not there.  But a CPU may take thousands of cycles to find that
        out where its page is not there either.
        """
        found = [self]
        for row in range(1, count):
            found.append(found[-1] + (step if there is None else self.module.select(there > row, step, 0)))
        return found

    def total(self) -> Value:
        """Offset from the base, in bytes."""
        if self.offset is None:
            return self.module.constant(INT, self.constant)
        return self.offset + self.constant


@dataclass(frozen=True, slots=True)
class Mask:
    """The first ``count`` lanes of a vector, less those below ``first`` where that is given."""

    bits: Value
    count: Value
    first: Value | None = None
