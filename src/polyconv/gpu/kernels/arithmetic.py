"""In what matrix products are computed: types of factors and sums, and the instructions that multiply.

**Three passes** (x3).  f32 products on units that keep 11 bits of a factor: with x = h + l, h the upper half of its
bits, and w = H + L likewise, ``l H + h L + h H`` leaves out l L and what l loses, less than 2^-20 |x| |w|.  These units
cut bits off when they add, so a long sum would drift: each stage's starts from zero and is added by the usual addition.
Where x or w is not finite, l is no number: results that are not finite are done again (``repair``).
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.gpu.language import F32, I32, I64, Kernel, Type, Value

__all__ = ["ARITHMETIC", "PASSES", "Arithmetic", "halves"]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """In what is multiplied and added.

    Parameters
    ----------
    staged : str
        Type in which inputs and weights lie, a name of ``DTYPES``.
    bytes : int
        Of one.
    sum : Type
    warp : str
        Shape and types of the product of a warp; empty where there is none.
    group : str
        The same of a warp group, behind its columns; empty where there is none.
    modifiers : str
        What follows a warp group's operands.
    three : bool
        Whether factors are split in two.
    """

    staged: str
    bytes: int
    sum: Type
    warp: str = ""
    group: str = ""
    modifiers: str = ", 1, 1"
    three: bool = False


_TF32 = "m16n8k8.row.col.f32.tf32.tf32.f32"

ARITHMETIC = {
    "f16": Arithmetic("f16", 2, F32, "m16n8k16.row.col.f32.f16.f16.f32", "k16.f32.f16.f16", ", 1, 1, 0, 0"),
    "bf16": Arithmetic("bf16", 2, F32, "m16n8k16.row.col.f32.bf16.bf16.f32", "k16.f32.bf16.bf16", ", 1, 1, 0, 0"),
    "tf32": Arithmetic("f32", 4, F32, _TF32, "k8.f32.tf32.tf32"),
    "x3": Arithmetic("f32", 4, F32, _TF32, "k8.f32.tf32.tf32", three=True),
    "f32": Arithmetic("f32", 4, F32),
    "f64": Arithmetic("f64", 8, Type("double")),
    "i32": Arithmetic("i32", 4, I32),
    "i64": Arithmetic("i64", 8, I64),
    "s8s8": Arithmetic("i8", 1, I32, "m16n8k32.row.col.s32.s8.s8.s32"),
    "u8s8": Arithmetic("u8", 1, I32, "m16n8k32.row.col.s32.u8.s8.s32"),
    "s8u8": Arithmetic("i8", 1, I32, "m16n8k32.row.col.s32.s8.u8.s32"),
    "u8u8": Arithmetic("u8", 1, I32, "m16n8k32.row.col.s32.u8.u8.s32"),
}


def halves(k: Kernel, bits: Value) -> tuple[Value, Value]:
    """An f32 as h, its upper 11 bits, and l, what they leave; both as bits."""
    high = (bits + 0x1000) & -0x2000
    low = k.cast("bitcast", bits, F32) - k.cast("bitcast", high, F32)
    return high, k.cast("bitcast", low, I32)


PASSES = ((1, 0), (0, 1), (0, 0))
"""Which halves of input and weight meet, small products first."""
