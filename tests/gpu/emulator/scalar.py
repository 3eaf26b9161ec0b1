"""Arithmetic, logic, comparisons and moves: one value a thread, nothing shared.

Each builder takes an instruction apart once and returns a function that executes it for the active threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .arithmetic import (
    bit_field,
    bits_inserted,
    bits_reversed,
    bytes_permuted,
    dot_of_bytes,
    extreme,
    flushed,
    funnel,
    high_product,
    leading_zeros,
    nearest,
    remainder,
    shift_left,
    shift_right,
    table_logic,
    truncated_quotient,
)
from .fused import compiled, narrow, rounded_to_bf16
from .parser import Instruction, size_of
from .registers import NUMPY, Active, is_float

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS"]

Array = NDArray[Any]
Run = Callable[[Active], None]
Builder = Callable[["Machine", Instruction], Run]

def _element(type_: str) -> str:
    return type_.removesuffix("x2")


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
        value = function(*(map(flushed, sources) if flush else sources))
        value = flushed(value) if flush else value
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
            simple = np.left_shift if function is shift_left else np.right_shift
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
        return _elementwise(high_product, machine, ins, [ins.type] * 3)
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
    return _elementwise(lambda a, b, c: (high_product(a, b) if high else a * b) + c, machine, ins, types)


def _fma(machine: Machine, ins: Instruction) -> Run:
    ins.only("rn", "ftz", "sat", "relu", ins.type)
    types, element = [ins.type] * 4, _element(ins.type)
    if element in ("f16", "bf16"):
        rounded = rounded_to_bf16 if element == "bf16" else lambda v: v.astype(np.float16)
        relu = extreme(True, True)
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
    function = np.divide if is_float(ins.type) else truncated_quotient
    return _elementwise(function, machine, ins, [ins.type] * 3)


def _minmax(largest: bool) -> Builder:
    def build(machine: Machine, ins: Instruction) -> Run:
        ins.only("NaN", "ftz", "relu" if not is_float(ins.type) else "ftz", ins.type)
        types, function = [ins.type] * 3, np.maximum if largest else np.minimum
        if is_float(ins.type):
            return _elementwise(extreme(largest, "NaN" in ins.opcode), machine, ins, types)
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
        x, y = (flushed(a), flushed(b)) if "ftz" in ins.opcode else (a, b)
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
        registers.write(ins.word(0), dot_of_bytes(a, b, c), active)

    return run


def _funnel_shift(machine: Machine, ins: Instruction) -> Run:
    ins.only("l", "r", "wrap", "clamp", "b32")
    function = funnel("l" in ins.opcode, "wrap" in ins.opcode)
    return _elementwise(function, machine, ins, ["b32", "b32", "b32", "u32"])


def _absolute_difference(machine: Machine, ins: Instruction) -> Run:
    ins.only(ins.type)
    return _elementwise(lambda a, b, c: np.where(a < b, b - a, a - b) + c, machine, ins, [ins.type] * 4)


BUILDERS: dict[str, Builder] = {
    "add": _plain(np.add, np.add, 2),
    "sub": _plain(np.subtract, np.subtract, 2),
    "mul": _multiply,
    "mad": _multiply_add,
    "fma": _fma,
    "div": _divide,
    "rem": _plain(None, remainder, 2),
    "min": _minmax(False),
    "max": _minmax(True),
    "abs": _sign_bit("abs"),
    "neg": _sign_bit("neg"),
    "copysign": _sign_bit("copysign"),
    "sqrt": _plain(np.sqrt, None, 1),
    "rcp": _plain(nearest(np.reciprocal), None, 1),
    "rsqrt": _plain(nearest(lambda x: 1 / np.sqrt(x)), None, 1),
    "ex2": _plain(nearest(np.exp2), None, 1),
    "lg2": _plain(nearest(np.log2), None, 1),
    "tanh": _plain(nearest(np.tanh), None, 1),
    "sin": _plain(nearest(np.sin), None, 1),
    "cos": _plain(nearest(np.cos), None, 1),
    "and": _bitwise(np.bitwise_and, np.logical_and),
    "or": _bitwise(np.bitwise_or, np.logical_or),
    "xor": _bitwise(np.bitwise_xor, np.logical_xor),
    "not": _bitwise(np.invert, np.logical_not),
    "shl": _shift(shift_left),
    "shr": _shift(shift_right),
    "shf": _funnel_shift,
    "bfe": _typed(bit_field, "T", "T", "u32", "u32"),
    "bfi": _typed(bits_inserted, "T", "T", "T", "u32", "u32"),
    "prmt": _typed(bytes_permuted, "b32", "b32", "b32", "b32"),
    "lop3": _typed(table_logic, "b32", "b32", "b32", "b32", "u32"),
    "popc": _typed(np.bitwise_count, "u32", "T"),
    "clz": _typed(leading_zeros, "u32", "T"),
    "brev": _typed(bits_reversed, "T", "T"),
    "dp4a": _byte_dot,
    "sad": _absolute_difference,
    "setp": _set_predicate,
    "selp": _select,
    "slct": _select_by_sign,
    "mov": _move,
}
