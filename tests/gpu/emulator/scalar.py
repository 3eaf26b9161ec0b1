"""Arithmetic, logic, comparisons and moves: one value a thread, nothing shared.

Each builder takes an instruction apart once and returns a function that executes it for the active threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .fused import compiled, narrow, rounded_to_bf16
from .parser import Instruction, size_of
from .registers import NUMPY, Active, is_float

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS"]

Array = NDArray[Any]
Run = Callable[[Active], None]
Builder = Callable[["Machine", Instruction], Run]

_CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
"""Bits of the NaN that min and max return; f64 keeps one of its operands' NaNs."""


def _element(type_: str) -> str:
    return type_.removesuffix("x2")


def _flushed(x: Any) -> Any:
    """Subnormal numbers as zeros of their sign: what ``.ftz`` asks for."""
    tiny = np.finfo(np.float32).tiny
    return np.where(np.abs(x) < tiny, np.copysign(np.float32(0), x), x)


# functions of values ------------------------------------------------------------------------------------------
def _truncated_quotient(a: Any, b: Any) -> Any:
    """Division of integers toward zero; by zero gives all ones."""
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = a // safe
    if np.issubdtype(np.asarray(a).dtype, np.signedinteger):
        quotient = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.invert(np.zeros_like(quotient)), quotient)


def _remainder(a: Any, b: Any) -> Any:
    return np.where(b == 0, a, a - _truncated_quotient(a, b) * b)


def _high_product(a: Any, b: Any) -> Any:
    """The upper half of the product of two integers."""
    dtype = np.asarray(a).dtype
    bits = 8 * dtype.itemsize
    if bits < 64:
        wide = np.int64 if dtype.kind == "i" else np.uint64
        return (np.asarray(a).astype(wide) * np.asarray(b).astype(wide) >> wide(bits)).astype(dtype)
    # 64 bits: four products of halves, then corrections for the signs
    x, y, low = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64), np.uint64(0xFFFFFFFF)
    s = np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> s, y & low, y >> s
    middle = x1 * y0 + (x0 * y0 >> s)
    carry = (middle & low) + x0 * y1
    high = x1 * y1 + (middle >> s) + (carry >> s)
    if dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.astype(dtype)


def _extreme(largest: bool, nan: bool) -> Callable[[Any, Any], Any]:
    """Min or max of floats: -0 below +0; a NaN gives way to a number, or with ``nan`` wins."""

    def compute(a: Any, b: Any) -> Any:
        a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
        dtype, unsigned = a.dtype, np.dtype(f"u{a.itemsize}")
        one = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where((a > b) == largest, a, b))).astype(dtype)
        bits_a, bits_b = np.ascontiguousarray(a).view(unsigned), np.ascontiguousarray(b).view(unsigned)
        # equal numbers have equal bits, but for the two zeros
        equal = (bits_a & bits_b if largest else bits_a | bits_b).view(dtype)
        one = np.where(a == b, equal, one).astype(dtype)
        spoilt = (np.isnan(a) | np.isnan(b)) if nan else (np.isnan(a) & np.isnan(b))
        if dtype == np.float64:
            return np.where(spoilt, np.where(np.isnan(a), a, b), one)
        name = {2: "f16", 4: "f32"}[a.itemsize]
        return np.where(spoilt, np.array([_CANONICAL_NAN[name]], unsigned).view(dtype), one)

    return compute


def _shift_left(a: Any, amount: Any) -> Any:
    bits = 8 * np.asarray(a).dtype.itemsize
    dtype = np.asarray(a).dtype.type
    return np.where(amount >= bits, dtype(0), a << np.minimum(amount, bits - 1).astype(dtype))


def _shift_right(a: Any, amount: Any) -> Any:
    dtype = np.asarray(a).dtype
    bits = 8 * dtype.itemsize
    shifted = a >> np.minimum(amount, bits - 1).astype(dtype)
    return shifted if dtype.kind == "i" else np.where(amount >= bits, dtype.type(0), shifted)


def _mask(bits: Any) -> Any:
    """That many ones, up to 64."""
    full = np.minimum(bits, 63).astype(np.uint64)
    return np.where(bits >= 64, np.uint64(2**64 - 1), (np.uint64(1) << full) - np.uint64(1))


def _field(a: Any, position: Any, length: Any) -> Any:
    """Bit field extract; a signed one extends its highest bit, or that of the value where it ends there."""
    dtype = np.asarray(a).dtype
    bits = 8 * dtype.itemsize
    position, length = np.asarray(position) & 255, np.asarray(length) & 255
    wide = np.asarray(a).astype(np.int64 if dtype.kind == "i" else np.uint64)
    got = (wide >> np.minimum(position, 63).astype(wide.dtype)).view(np.uint64)
    got = np.where((position >= 64) & (dtype.kind == "u"), np.uint64(0), got) & _mask(length)
    if dtype.kind == "i":
        top = np.minimum(position.astype(np.int64) + length - 1, bits - 1)
        negative = (length > 0) & ((wide >> np.maximum(top, 0)) & 1 == 1)
        got = np.where(negative, got | ~_mask(length), got)
    return got.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)


def _inserted(a: Any, b: Any, position: Any, length: Any) -> Any:
    """Bit field insert: the low bits of a into b."""
    dtype = np.asarray(b).dtype
    position, length = np.asarray(position) & 255, np.asarray(length) & 255
    inside = np.where(position >= 64, np.uint64(0), _mask(length) << np.minimum(position, 63).astype(np.uint64))
    moved = np.asarray(a).astype(np.uint64) << np.minimum(position, 63).astype(np.uint64)
    return (np.asarray(b).astype(np.uint64) & ~inside | moved & inside).astype(dtype)


def _permuted(a: Any, b: Any, selector: Any) -> Any:
    """Four bytes picked among eight; bit 3 of a pick repeats the byte's sign instead."""
    eight = np.asarray(a).astype(np.uint64) | np.asarray(b).astype(np.uint64) << np.uint64(32)
    out: Any = np.uint32(0)
    for i in range(4):
        pick = np.asarray(selector).astype(np.uint64) >> np.uint64(4 * i) & np.uint64(15)
        byte = eight >> (pick & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(byte >= 128, np.uint64(255), np.uint64(0))
        out = out | np.where(pick >= 8, sign, byte).astype(np.uint32) << np.uint32(8 * i)
    return out


def _table_logic(a: Any, b: Any, c: Any, table: Any) -> Any:
    """lop3: bit (4a + 2b + c) of the table, for every bit."""
    out: Any = np.uint32(0)
    for i in range(8):
        if int(table) >> i & 1:
            out = out | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return np.broadcast_to(out, np.broadcast(a, b, c).shape)


def _funnel(left: bool, wrap: bool) -> Callable[..., Any]:
    def compute(low: Any, high: Any, amount: Any) -> Any:
        both = np.asarray(high).astype(np.uint64) << np.uint64(32) | np.asarray(low).astype(np.uint64)
        amount = (amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))).astype(np.uint64)
        moved = both << amount >> np.uint64(32) if left else both >> amount
        if left:
            moved = np.where(amount == 32, np.asarray(low).astype(np.uint64), moved)
        return moved.astype(np.uint32)

    return compute


def _reversed(a: Any) -> Any:
    dtype = np.asarray(a).dtype
    out = np.zeros_like(a)
    for i in range(8 * dtype.itemsize):
        out = out | (a >> dtype.type(i) & dtype.type(1)) << dtype.type(8 * dtype.itemsize - 1 - i)
    return out


def _leading_zeros(a: Any) -> Any:
    bits = 8 * np.asarray(a).dtype.itemsize
    for shift in (1, 2, 4, 8, 16, 32)[: bits.bit_length() - 1]:
        a = a | a >> np.asarray(a).dtype.type(shift)
    return bits - np.bitwise_count(a).astype(np.uint32)


def _dot(a: Any, b: Any, c: Any) -> Any:
    """Four products of bytes added to c; a and b come as rows of bytes."""
    total = (a.astype(np.int64) * b.astype(np.int64)).sum(axis=-1) + np.asarray(c).astype(np.int64)
    return total.astype(np.asarray(c).dtype)


# builders -----------------------------------------------------------------------------------------------------
def _elementwise(function: Callable[..., Any], machine: Machine, ins: Instruction, types: list[str]) -> Run:
    """``d = function(a, b, ..)``, the types in the order of the operands."""
    registers = machine.registers
    sources = [registers.source(ins.word(i + 1), t) for i, t in enumerate(types[1:])]
    flush, saturate = "ftz" in ins.opcode, "sat" in ins.opcode and is_float(types[0])
    packed = types[0].endswith("x2")
    if ins.word(0) == "_":
        return lambda active: None
    target = registers.array(ins.word(0))
    same = not packed and target.itemsize == np.dtype(NUMPY[types[0]]).itemsize
    view = registers.view(ins.word(0), types[0]) if packed or same else None
    if isinstance(function, np.ufunc) and view is not None and not packed and not flush and not saturate:
        return lambda active: function(*sources, out=view, where=active.where)

    def run(active: Active) -> None:
        value = function(*(map(_flushed, sources) if flush else sources))
        value = _flushed(value) if flush else value
        if saturate:
            value = np.where(np.isnan(value), 0, np.clip(value, 0, 1))
        if view is not None:
            np.copyto(view, value, where=active.pairs() if packed else active.where, casting="same_kind")
        else:
            registers.write(ins.word(0), value, active)

    return run


def _plain(floating: Callable[..., Any] | None, integer: Callable[..., Any] | None, count: int) -> Builder:
    """An operation whose operands all have the type the opcode ends with."""

    def build(machine: Machine, ins: Instruction) -> Run:
        ins.only("rn", "ftz", "sat", "lo", "wrap", "full", "approx", ins.type)
        function = floating if is_float(ins.type) else integer
        if function is None or ("sat" in ins.opcode and not is_float(ins.type)):
            raise NotImplementedError(ins.text)
        return _elementwise(function, machine, ins, [ins.type] * (count + 1))

    return build


def _bitwise(function: Callable[..., Any], logical: Callable[..., Any]) -> Builder:
    def build(machine: Machine, ins: Instruction) -> Run:
        ins.only(ins.type)
        if ins.type != "pred":
            return _elementwise(function, machine, ins, [ins.type] * len(ins.operands))
        registers, words = machine.registers, [ins.word(i) for i in range(1, len(ins.operands))]
        return lambda active: registers.write(ins.word(0), logical(*map(registers.predicate, words)), active)

    return build


def _shift(function: Callable[..., Any]) -> Builder:
    def build(machine: Machine, ins: Instruction) -> Run:
        ins.only(ins.type)
        amount = ins.word(2)
        if not machine.registers.is_register(amount) and int(amount, 0) < 8 * size_of(ins.type):
            simple = np.left_shift if function is _shift_left else np.right_shift
            return _elementwise(simple, machine, ins, [ins.type] * 3)
        return _elementwise(function, machine, ins, [ins.type, ins.type, "u32"])

    return build


def _multiply(machine: Machine, ins: Instruction) -> Run:
    if "wide" in ins.opcode:
        ins.only("wide", ins.type)
        wide = f"{ins.type[0]}{2 * int(ins.type[1:])}"
        dtype = NUMPY[wide]
        return _elementwise(lambda a, b: np.multiply(a, b, dtype=dtype), machine, ins, [wide, ins.type, ins.type])
    if "hi" in ins.opcode:
        ins.only("hi", ins.type)
        return _elementwise(_high_product, machine, ins, [ins.type] * 3)
    return _plain(np.multiply, np.multiply, 2)(machine, ins)


def _multiply_add(machine: Machine, ins: Instruction) -> Run:
    if is_float(ins.type):
        return _fma(machine, ins)
    if "wide" in ins.opcode:
        ins.only("wide", ins.type)
        wide = f"{ins.type[0]}{2 * int(ins.type[1:])}"
        dtype = NUMPY[wide]

        def product(a: Any, b: Any, c: Any) -> Any:
            return np.multiply(a, b, dtype=dtype) + c

        return _elementwise(product, machine, ins, [wide, ins.type, ins.type, wide])
    ins.only("lo", "hi", ins.type)
    high = "hi" in ins.opcode
    types = [ins.type] * 4
    return _elementwise(lambda a, b, c: (_high_product(a, b) if high else a * b) + c, machine, ins, types)


def _fma(machine: Machine, ins: Instruction) -> Run:
    ins.only("rn", "ftz", "sat", "relu", ins.type)
    types, element = [ins.type] * 4, _element(ins.type)
    if element in ("f16", "bf16"):
        rounded = rounded_to_bf16 if element == "bf16" else lambda v: v.astype(np.float16)
        relu = _extreme(True, True)
        zero = NUMPY[element](0)

        def compute(a: Any, b: Any, c: Any) -> Any:
            value = rounded(narrow(a, b, c))
            return relu(value, zero) if "relu" in ins.opcode else value

        return _elementwise(compute, machine, ins, types)
    registers, loop = machine.registers, compiled(ins.type)
    if {"ftz", "sat"} & set(ins.opcode):
        raise NotImplementedError(ins.text)
    operands = [np.atleast_1d(np.asarray(registers.source(ins.word(i), ins.type))) for i in (1, 2, 3)]
    pointers = [v for o in operands for v in (o.ctypes.data, int(len(o) > 1))]
    target = registers.view(ins.word(0), ins.type)
    out, count, everyone = target.ctypes.data, machine.count, np.ones(machine.count, bool)
    all_ones = everyone.ctypes.data

    def run(active: Active, keep: Any = (operands, everyone)) -> None:
        loop(count, *pointers, out, all_ones if active.where is True else active.where.ctypes.data)

    return run


def _divide(machine: Machine, ins: Instruction) -> Run:
    ins.only("rn", "full", "approx", "ftz", ins.type)
    function = np.divide if is_float(ins.type) else _truncated_quotient
    return _elementwise(function, machine, ins, [ins.type] * 3)


def _minmax(largest: bool) -> Builder:
    def build(machine: Machine, ins: Instruction) -> Run:
        ins.only("NaN", "ftz", "relu" if not is_float(ins.type) else "ftz", ins.type)
        types, function = [ins.type] * 3, np.maximum if largest else np.minimum
        if is_float(ins.type):
            return _elementwise(_extreme(largest, "NaN" in ins.opcode), machine, ins, types)
        if "relu" in ins.opcode:
            return _elementwise(lambda a, b: np.maximum(function(a, b), 0), machine, ins, types)
        return _elementwise(function, machine, ins, types)

    return build


def _sign_bit(operation: str) -> Builder:
    """abs, neg and copysign of floats, which only touch the sign bit, NaN or not."""

    def build(machine: Machine, ins: Instruction) -> Run:
        ins.only("ftz", ins.type)
        if not is_float(ins.type):
            function = np.abs if operation == "abs" else np.negative
            return _elementwise(function, machine, ins, [ins.type] * 2)
        size = size_of(_element(ins.type))
        sign = (1 << 8 * size - 1) * (0x10001 if ins.type.endswith("x2") else 1)
        bits = f"b{8 * size_of(ins.type)}"
        unsigned = NUMPY[bits]
        sign_, rest = unsigned(sign), unsigned(~sign % (1 << 8 * size_of(ins.type)))
        functions: dict[str, Callable[..., Any]] = {
            "abs": lambda a: a & rest, "neg": lambda a: a ^ sign_, "copysign": lambda a, b: a & sign_ | b & rest,
        }  # fmt: skip
        return _elementwise(functions[operation], machine, ins, [bits] * len(ins.operands))

    return build


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


def _comparison(name: str, floating: bool) -> Callable[[Any, Any], Any]:
    if not floating:
        return _COMPARE[name]
    if name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        return lambda a, b: _COMPARE[name[:2]](a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne":  # ordered: false where either is NaN
        return lambda a, b: (a != b) & ~(np.isnan(a) | np.isnan(b))
    return _COMPARE[name]


def _set_predicate(machine: Machine, ins: Instruction) -> Run:
    parts = [p for p in ins.opcode[1:-1] if p != "ftz"]
    compare = _comparison(parts[0], is_float(ins.type))
    registers = machine.registers
    a, b = (registers.source(ins.word(i), ins.type) for i in (1, 2))
    first, _, second = ins.word(0).partition("|")
    combine = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[parts[1]] if len(parts) > 1 else None
    if combine is None and not second and "ftz" not in ins.opcode:
        out = registers.array(first)
        if isinstance(compare, np.ufunc):
            return lambda active: compare(a, b, out=out, where=active.where)
        return lambda active: np.copyto(out, compare(a, b), where=active.where)

    def run(active: Active) -> None:
        x, y = (_flushed(a), _flushed(b)) if "ftz" in ins.opcode else (a, b)
        result = compare(x, y)
        other = np.logical_not(result)
        if combine is not None:
            extra = registers.predicate(ins.word(3))
            result, other = combine(result, extra), combine(other, extra)
        registers.write(first, result, active)
        if second:
            registers.write(second, other, active)

    return run


def _select(machine: Machine, ins: Instruction) -> Run:
    ins.only(ins.type)
    registers = machine.registers
    a, b = (registers.source(ins.word(i), f"b{8 * size_of(ins.type)}") for i in (1, 2))
    condition = ins.word(3)
    return lambda active: registers.write(ins.word(0), np.where(registers.predicate(condition), a, b), active)


def _select_by_sign(machine: Machine, ins: Instruction) -> Run:
    ins.only("ftz", *ins.opcode[1:])
    bits = f"b{8 * size_of(ins.opcode[-2])}"
    return _elementwise(lambda a, b, c: np.where(c >= 0, a, b), machine, ins, [bits, bits, bits, ins.type])


def _move(machine: Machine, ins: Instruction) -> Run:
    ins.only(ins.type)
    registers = machine.registers
    to, of = ins.operands
    if isinstance(to, tuple):  # cut one register into several
        source = registers.source(ins.word(1), f"b{8 * size_of(ins.type)}")
        width = 8 * size_of(ins.type) // len(to)
        part = np.dtype(f"u{width // 8}")

        def cut(active: Active) -> None:
            pieces = np.ascontiguousarray(np.broadcast_to(source, machine.count)).view(part).reshape(-1, len(to))
            for i, name in enumerate(to):
                registers.write(name, pieces[:, i], active)

        return cut
    if isinstance(of, tuple):  # join several
        width = 8 * size_of(ins.type) // len(of)
        parts = [registers.source(name, f"b{width}") for name in of]

        def joined(active: Active) -> None:
            rows = np.empty((machine.count, len(of)), f"u{width // 8}")
            for i, source in enumerate(parts):
                rows[:, i] = source
            registers.write(ins.word(0), rows.view(f"u{width * len(of) // 8}")[:, 0], active)

        return joined
    if ins.type == "pred":
        return lambda active: registers.write(ins.word(0), registers.predicate(ins.word(1)), active)
    source, target = registers.source(ins.word(1), f"b{8 * size_of(ins.type)}"), registers.array(ins.word(0))
    return lambda active: np.copyto(target, source, where=active.where)


def _typed(function: Callable[..., Any], *types: str) -> Builder:
    """An operation with operand types of its own; ``T`` is the opcode's."""

    def build(machine: Machine, ins: Instruction) -> Run:
        ins.only(ins.type)
        return _elementwise(function, machine, ins, [ins.type if t == "T" else t for t in types])

    return build


def _byte_dot(machine: Machine, ins: Instruction) -> Run:
    kinds = ins.opcode[1:]
    registers = machine.registers
    rows = [registers.source(ins.word(i + 1), k) for i, k in enumerate(kinds)]
    bytes_ = [np.int8 if k == "s32" else np.uint8 for k in kinds]
    total = "s32" if "s32" in kinds else "u32"
    c = registers.source(ins.word(3), total)

    def run(active: Active) -> None:
        a, b = (np.ascontiguousarray(np.broadcast_to(r, machine.count)).view(t).reshape(-1, 4)
                for r, t in zip(rows, bytes_, strict=True))  # fmt: skip
        registers.write(ins.word(0), _dot(a, b, c), active)

    return run


def _funnel_shift(machine: Machine, ins: Instruction) -> Run:
    ins.only("l", "r", "wrap", "clamp", "b32")
    function = _funnel("l" in ins.opcode, "wrap" in ins.opcode)
    return _elementwise(function, machine, ins, ["b32", "b32", "b32", "u32"])


def _absolute_difference(machine: Machine, ins: Instruction) -> Run:
    ins.only(ins.type)
    return _elementwise(lambda a, b, c: np.where(a < b, b - a, a - b) + c, machine, ins, [ins.type] * 4)


def _rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An approximate function of the hardware: here the nearest value, which its error bound contains."""

    def compute(x: Any) -> Any:
        dtype = np.asarray(x).dtype
        value = function(np.asarray(x).astype(np.float64))
        return rounded_to_bf16(value) if dtype == ml_dtypes.bfloat16 else value.astype(dtype)

    return compute


BUILDERS: dict[str, Builder] = {
    "add": _plain(np.add, np.add, 2),
    "sub": _plain(np.subtract, np.subtract, 2),
    "mul": _multiply,
    "mad": _multiply_add,
    "fma": _fma,
    "div": _divide,
    "rem": _plain(None, _remainder, 2),
    "min": _minmax(False),
    "max": _minmax(True),
    "abs": _sign_bit("abs"),
    "neg": _sign_bit("neg"),
    "copysign": _sign_bit("copysign"),
    "sqrt": _plain(np.sqrt, None, 1),
    "rcp": _plain(_rounded(np.reciprocal), None, 1),
    "rsqrt": _plain(_rounded(lambda x: 1 / np.sqrt(x)), None, 1),
    "ex2": _plain(_rounded(np.exp2), None, 1),
    "lg2": _plain(_rounded(np.log2), None, 1),
    "tanh": _plain(_rounded(np.tanh), None, 1),
    "sin": _plain(_rounded(np.sin), None, 1),
    "cos": _plain(_rounded(np.cos), None, 1),
    "and": _bitwise(np.bitwise_and, np.logical_and),
    "or": _bitwise(np.bitwise_or, np.logical_or),
    "xor": _bitwise(np.bitwise_xor, np.logical_xor),
    "not": _bitwise(np.invert, np.logical_not),
    "shl": _shift(_shift_left),
    "shr": _shift(_shift_right),
    "shf": _funnel_shift,
    "bfe": _typed(_field, "T", "T", "u32", "u32"),
    "bfi": _typed(_inserted, "T", "T", "T", "u32", "u32"),
    "prmt": _typed(_permuted, "b32", "b32", "b32", "b32"),
    "lop3": _typed(_table_logic, "b32", "b32", "b32", "b32", "u32"),
    "popc": _typed(np.bitwise_count, "u32", "T"),
    "clz": _typed(_leading_zeros, "u32", "T"),
    "brev": _typed(_reversed, "T", "T"),
    "dp4a": _byte_dot,
    "sad": _absolute_difference,
    "setp": _set_predicate,
    "selp": _select,
    "slct": _select_by_sign,
    "mov": _move,
}
