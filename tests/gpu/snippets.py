"""Small kernels in PTX around a few lines, and exact arithmetic to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from emulator import launch
from numpy.typing import NDArray

__all__ = ["NUMPY", "apply", "kernel", "rounded", "run"]

Array = NDArray[Any]

NUMPY: dict[str, Any] = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32,
    "b32": np.uint32, "b16": np.uint16, "b64": np.uint64, "u64": np.uint64, "s64": np.int64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "f16x2": np.uint32, "bf16x2": np.uint32, "tf32": np.float32,
}  # fmt: skip

_REGISTERS = """
    .reg .pred %p<40>;
    .reg .b16 %rs<40>;
    .reg .b32 %r<400>;
    .reg .b64 %rd<60>;
"""


def kernel(body: str, parameters: int = 2, head: str = "") -> str:
    """A module whose kernel ``k`` has pointers ``%rd1``, ``%rd2`` .. and the thread's number ``%r0``."""
    declared = ",\n".join(f".param .u64 .ptr .global .align 16 k_param_{i}" for i in range(parameters))
    loads = "".join(f"    ld.param.b64 %rd{i + 1}, [k_param_{i}];\n" for i in range(parameters))
    return f"""//
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(
{declared}
)
{head}
{{
{_REGISTERS}
{loads}
    mov.u32 %r0, %tid.x;
{body}
    ret;
}}
"""


def run(body: str, *arguments: Any, threads: int = 32, grid: int = 1, cluster: int = 1, shared: int = 0,
        head: str = "") -> None:  # fmt: skip
    """Run lines of PTX; arguments are at ``%rd1`` and so on."""
    text = kernel(body, len(arguments), head)
    launch(text, "k", grid=grid, threads=threads, arguments=arguments, shared=shared, cluster=cluster)


def _register(type_: str, i: int) -> str:
    size = np.dtype(NUMPY[type_]).itemsize
    return {1: f"%rs{i}", 2: f"%rs{i}", 4: f"%r{i + 10}", 8: f"%rd{i + 20}"}[size]


def apply(instruction: str, types: Sequence[str], *operands: Array) -> Array:
    """One instruction for every element of its operands.

    Parameters
    ----------
    instruction : str
        With ``{d}``, ``{a}``, ``{b}`` .. for its operands.
    types : sequence of str
        Of the result, then of the operands.
    operands : array
    """
    count = len(operands[0])
    lines = ["mov.u32 %r1, %ctaid.x; mad.lo.s32 %r0, %r1, 128, %r0; cvt.u64.u32 %rd10, %r0;"]
    lines.append(f"setp.ge.u32 %p1, %r0, {count}; @%p1 ret;")
    names = {"d": _register(types[0], 0)}
    for i, type_ in enumerate(types[1:]):
        size = np.dtype(NUMPY[type_]).itemsize
        name = names["abcdef"[i] if i < 3 else "efgh"[i - 3]] = _register(type_, i + 1)
        lines.append(f"mad.lo.u64 %rd11, %rd10, {size}, %rd{i + 2};")
        lines.append(f"ld.global.b{8 * size} {name}, [%rd11];")
    lines.append(instruction.format(**names))
    size = np.dtype(NUMPY[types[0]]).itemsize
    lines.append(f"mad.lo.u64 %rd11, %rd10, {size}, %rd1; st.global.b{8 * size} [%rd11], {names['d']};")
    y = np.zeros(count, NUMPY[types[0]])
    arrays = [np.ascontiguousarray(o, dtype=NUMPY[t]) for o, t in zip(operands, types[1:], strict=True)]
    run("\n".join(lines), y, *arrays, threads=128, grid=-(-count // 128))
    return y


_FORMATS: dict[str, tuple[int, int, int]] = {
    "f16": (11, -24, 65504), "bf16": (8, -133, 255 * 2**120), "tf32": (11, -136, (2**11 - 1) * 2**117),
    "f32": (24, -149, (2**24 - 1) * 2**104), "f64": (53, -1074, (2**53 - 1) * 2**971),
}  # fmt: skip
"""Digits, exponent of the last one of subnormal numbers, and largest number."""

_TO_WHOLE: dict[str, Callable[[Fraction], int]] = {
    "rn": round,
    "rz": int,
    "rm": lambda v: v.numerator // v.denominator,
    "rp": lambda v: -(-v.numerator // v.denominator),
    "rna": lambda v: int(abs(v) + Fraction(1, 2)) * (1 if v > 0 else -1),
}


def rounded(value: Fraction, type_: str, mode: str = "rn") -> float:
    """A number rounded once to a floating type: by definition, in rational arithmetic."""
    if value == 0:
        return 0.0
    digits, least, largest = _FORMATS[type_]
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    step = Fraction(2) ** max(exponent - digits + 1, least)
    result = _TO_WHOLE[mode](value / step) * step
    if abs(result) > largest:
        toward = mode == "rz" or mode == ("rm" if value > 0 else "rp")
        return float(largest if value > 0 else -largest) if toward else float("inf" if value > 0 else "-inf")
    return float(result)
