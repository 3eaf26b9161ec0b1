"""What writes LLVM text, an instruction at a time: constants, conversions, intrinsics, lanes, conditions.

The languages of CPU and GPU kernels grow from it.  It must know nothing of memory and functions, which differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from polyconv.kernels.values import BOOL, INT, Mask, Type, Value

__all__ = ["Emitter", "Loop"]


class Loop:
    """A running loop or choice: its index, the values carried from turn to turn, and afterwards their results."""

    def __init__(self, index: Value, values: list[Any]) -> None:
        self.index = index
        self.values = values
        self.results: list[Any] = []
        self._following: list[Any] | None = None

    def next(self, *values: Any) -> None:
        """Give the carried values for the next turn, in the order of ``values``."""
        self._following = list(values)


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

    @contextmanager
    def choice(self, condition: Value, carry: Sequence[Value]) -> Iterator[Loop]:
        """Run the block, which gives values with ``next``, if the condition holds; else ``results`` are the carried."""
        yes, leave, before = self._fresh("then"), self._fresh("join"), self._block
        self._line(f"  br i1 {condition.name}, label %{yes}, label %{leave}")
        self._start(yes)
        chosen = Loop(self.constant(INT, 0), list(carry))
        yield chosen
        assert chosen._following is not None, "next() must give every carried value"
        end = self._block
        self._line(f"  br label %{leave}")
        self._start(leave)
        chosen.results = [
            self.emit(f"phi {old.type} [{old.name}, %{before}], [{new.name}, %{end}]", old.type)
            for old, new in zip(carry, chosen._following, strict=True)
        ]

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

    def act(self, full: str, kinds: str, given: str) -> None:
        """Call an intrinsic by its full name that has no result, with operands as LLVM spells them."""
        self._declared.setdefault(full, f"declare void @{full}({kinds})")
        self._line(f"  call void @{full}({given})")

    # -- lanes -----------------------------------------------------------------------------------

    def splat(self, scalar: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        type_ = Type(scalar.type.element, lanes)
        one = self.emit(f"insertelement {type_} poison, {scalar.type} {scalar.name}, i32 0", type_)
        return self.emit(f"shufflevector {type_} {one.name}, {type_} poison, <{lanes} x i32> zeroinitializer", type_)

    def bits(self, value: Value) -> Value:
        """The same, but half floats as integers: LLVM takes vectors of those apart to move them."""
        return self.cast("bitcast", value, value.type.of("i16")) if value.type.element == "half" else value

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Lanes picked from a (0..) and b (continuing after a's)."""
        if a.type.element == "half":
            return self.cast("bitcast", self.shuffle(self.bits(a), self.bits(b), lanes), Type("half", len(lanes)))
        type_ = Type(a.type.element, len(lanes))
        picks = ", ".join(f"i32 {i}" for i in lanes)
        return self.emit(f"shufflevector {a.type} {a.name}, {b.type} {b.name}, <{len(lanes)} x i32> <{picks}>", type_)

    def picked(self, value: Value, places: Value) -> Value:
        """A vector of the bytes at ``places`` of one, both of 512 bits; on CPUs that pick bytes."""
        of_bytes, kinds = places.type, f"{places.type}, {places.type}"
        operands = [self.cast("bitcast", value, of_bytes), places]
        found = self.target_intrinsic("llvm.x86.avx512.permvar.qi.512", of_bytes, kinds, operands)
        return self.cast("bitcast", found, value.type)

    def joined(self, parts: Sequence[Value]) -> Value:
        """Vectors one after another in one; their number is a power of two."""
        while len(parts) > 1:
            every = range(2 * parts[0].type.lanes)
            parts = [self.shuffle(a, b, every) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def any(self, bits: Value) -> Value:
        """1 if a lane of a mask is set, else 0."""
        whole = Type(f"i{bits.type.lanes}")
        packed = self.emit(f"bitcast {bits.type} {bits.name} to {whole}", whole)
        return self.cast("zext", self.emit(f"icmp ne {whole} {packed.name}, 0", BOOL), INT)

    def mask(self, count: Value, lanes: int) -> Mask:
        """Mask of the first ``count`` lanes; counts below 0 and above ``lanes`` are clamped."""
        count = self.maximum(self.minimum(count, lanes), 0)
        ramp = ", ".join(f"i32 {i}" for i in range(lanes))
        wide = self.splat(self.cast("trunc", count, Type("i32")), lanes)
        bits = self.emit(f"icmp slt <{lanes} x i32> <{ramp}>, {wide.name}", Type("i1", lanes))
        return Mask(bits, count)

    def span(self, first: Value, end: Value, lanes: int) -> Mask:
        """Mask of the lanes first..end, both clamped to what there is."""
        first = self.minimum(self.maximum(first, 0), lanes)
        end = self.maximum(self.minimum(end, lanes), first)
        ramp = ", ".join(f"i32 {i}" for i in range(lanes))
        low, size = (self.splat(self.cast("trunc", v, Type("i32")), lanes) for v in (first, end - first))
        bits = self.emit(f"sub <{lanes} x i32> <{ramp}>, {low.name}", low.type).below(size)
        return Mask(bits, end, first)

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
