"""What writes LLVM text, an instruction at a time: values, constants, conversions, intrinsics, conditions.

The languages of CPU and GPU kernels grow from it.  It must know nothing of memory and functions, which differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from polyconv.kernels.values import INT, Type, Value

__all__ = ["Emitter"]


class Emitter:
    """Text of a unit under construction.

    Parameters
    ----------
    fma : bool
        Whether the target multiplies and adds in one instruction; else ``fma`` emits two.
    """

    def __init__(self, *, fma: bool) -> None:
        self.has_fma = fma
        self._lines: list[str] = []
        self._declared: dict[str, str] = {}
        self._count = 0
        self._block = ""

    # -- conditions ------------------------------------------------------------------------------

    @contextmanager
    def when(self, condition: Value, *, otherwise: bool = False) -> Iterator[None]:
        """Run the block if the condition holds (with ``otherwise``: if it does not)."""
        yes, leave = self._fresh("then"), self._fresh("join")
        first, second = (leave, yes) if otherwise else (yes, leave)
        self._line(f"  br i1 {condition.name}, label %{first}, label %{second}")
        self._start(yes)
        yield
        self._line(f"  br label %{leave}")
        self._start(leave)

    def select(self, condition: Value, a: Any, b: Any) -> Value:
        """``a`` where the condition holds, else ``b``."""
        type_ = a.type if isinstance(a, Value) else b.type if isinstance(b, Value) else INT
        kind = condition.type
        return self.emit(
            f"select {kind} {condition.name}, {type_} {self.spell(a, type_)}, {type_} {self.spell(b, type_)}", type_
        )

    def minimum(self, a: Value, b: Value | int) -> Value:
        """Smaller of two integers."""
        return self.select(a < b, a, b)

    def maximum(self, a: Value, b: Value | int) -> Value:
        """Larger of two integers."""
        return self.select(a > b, a, b)

    # -- values ----------------------------------------------------------------------------------

    def constant(self, type_: Type, number: float) -> Value:
        """A constant, in every lane."""
        return Value(self, self.spell(number, type_), type_)

    def cast(self, operation: str, value: Value, to: Type) -> Value:
        """An LLVM conversion: fpext, fptrunc, sitofp, uitofp, fptosi, zext, sext, trunc, bitcast."""
        return self.emit(f"{operation} {value.type} {value.name} to {to}", to)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """``a * b + c``: one rounding where the target can, else two; wrapping for integers."""
        if not a.type.is_float or not self.has_fma:
            return a * b + c
        return self.intrinsic("fma", a.type, a, b, c)

    def intrinsic(self, name: str, type_: Type, *operands: Value) -> Value:
        """Call ``llvm.<name>`` of one type: fma, sqrt, fabs, copysign, maximum, smax, umin, ..."""
        kinds = ", ".join(str(o.type) for o in operands)
        full = f"llvm.{name}.{type_.suffix}"
        return self.target_intrinsic(full, type_, kinds, operands)

    def target_intrinsic(self, full: str, type_: Type, kinds: str, operands: Sequence[Value]) -> Value:
        """Call an intrinsic by its full name."""
        self._declared.setdefault(full, f"declare {type_} @{full}({kinds})")
        given = ", ".join(f"{o.type} {o.name}" for o in operands)
        return self.emit(f"call {type_} @{full}({given})", type_)

    # -- text ------------------------------------------------------------------------------------

    def emit(self, instruction: str, type_: Type) -> Value:
        """Append an instruction that gives a value."""
        name = f"%{self._fresh('v')}"
        self._line(f"  {name} = {instruction}")
        return Value(self, name, type_)

    def spell(self, value: Any, type_: Type) -> str:
        """An operand's text: a value's name, or a constant of the type."""
        if isinstance(value, Value):
            return value.name
        if type_.is_float and type_.element != "ptr":
            number = _hexadecimal(float(value), type_.element)
        else:
            number = str(int(value))
        return f"splat ({type_.element} {number})" if type_.lanes else number

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def _start(self, block: str) -> None:
        self._line(f"{block}:")
        self._block = block


def _hexadecimal(number: float, element: str) -> str:
    """A float constant exactly, as LLVM spells it: the double's bits, for float rounded to float first."""
    if element == "float":
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
