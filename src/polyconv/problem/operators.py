"""What each operator has and has not: fields and element types that a problem must not combine.

A field that nobody would read is refused, so that no text is half understood.  It must not know shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyconv.errors import ArgumentError, DtypeError

if TYPE_CHECKING:
    from polyconv.problem.problem import Problem

__all__ = ["check_operator", "check_types"]

_BYTES = {"u8", "i8"}


def check_operator(p: Problem) -> None:
    """Refuse what a problem's operator does not have.

    Raises
    ------
    ArgumentError
        Naming the field.
    """
    if p.op != "conv_transpose" and any(p.output_padding):
        raise ArgumentError(f"output_padding {p.output_padding} is for conv_transpose, not for {p.op}; leave it out")
    if p.op == "deform_conv":
        if p.offset_groups < 1 or p.c % p.offset_groups:
            raise ArgumentError(
                f"offset_groups={p.offset_groups} must be at least 1 and divide c={p.c} in a deform_conv"
            )
    elif p.offset_groups or p.mask:
        raise ArgumentError(f"offset_groups={p.offset_groups} and mask={p.mask} are for deform_conv, not for {p.op}")
    if p.op == "causal_conv":
        _check_causal(p)


def _check_causal(p: Problem) -> None:
    if len(p.i) != 1 or (p.layout, p.s, p.d, p.pads) != ("NCHW", (1,), (1,), ((p.k[0] - 1, 0),)):
        raise ArgumentError(
            f"a causal_conv has one axis, channels first, strides and dilations of 1 and k - 1 pads before the input; "
            f"this one has layout {p.layout}, k={p.k} s={p.s} d={p.d} pads={p.pads}: leave them out"
        )
    if p.residual or p.o is not None:
        raise ArgumentError("a causal_conv has neither a residual nor output extents of its own; leave them out")


def check_types(p: Problem) -> None:
    """Refuse element types that no arithmetic is defined for, and words for integers where there are none.

    Raises
    ------
    ArgumentError, DtypeError
        Naming types and field.
    """
    x, w, y = p.x_dtype, p.w_dtype, p.y_dtype
    if x is not w and not {x.name, w.name} <= _BYTES:
        raise DtypeError(f"x is {x.name}, w is {w.name}; give both one type (only u8 and i8 may be mixed)")
    if x.is_float != y.is_float or (x.name == "f64" and y is not x):
        fitting = "f64" if x.name == "f64" else "f16, bf16, f32 or f64" if x.is_float else "an integer type"
        raise DtypeError(f"a result of {y.name} does not fit inputs of {x.name}; choose {fitting}")
    if p.op == "deform_conv" and not x.is_float:
        raise DtypeError(f"a deform_conv computes floats, x is {x.name}; choose f16, bf16, f32 or f64")
    if p.overflow == "saturate" and y.is_float:
        raise ArgumentError(f"overflow=saturate is for integers, the result is {y.name}; leave it out")
    q = p.quantisation
    if q is None:
        return
    if y.is_float:
        raise ArgumentError(f"zero points and scales are for integers, the types are {p.x}, {p.w} and {p.y}")
    scales = [name for name in ("sx", "sw", "sy") if getattr(q, name) is not None]
    if 0 < len(scales) < 3:
        raise ArgumentError(f"of the scales sx, sw and sy only {' and '.join(scales)} stand here; give all or none")
    if q.zy is not None and not scales:
        raise ArgumentError("zy is the zero point of a scaled result; give sx, sw and sy, or leave it out")
    _check_sum(p, bool(scales))


def _check_sum(p: Problem, is_scaled: bool) -> None:
    """Refuse zero points and scales of a residual and of the sum with it where there is no such sum."""
    given = [name for name in ("zr", "sr", "zs", "ss") if getattr(p.quantisation, name) is not None]
    if not given:
        return
    if not {"sr", "ss"} <= {*given}:
        raise ArgumentError(f"{' and '.join(given)} stand here without both scales; give sr and ss, or leave all out")
    if not is_scaled or not p.residual:
        raise ArgumentError("sr and ss are scales of a residual and of its sum with a scaled result; give r1, sx, sw "
                            "and sy, or leave them out")  # fmt: skip
    if p.y_dtype.bits > 8 or p.activation is not None:
        raise ArgumentError(f"a sum of scaled results is of u8 or i8 and has no activation; the result is {p.y}, the "
                            f"activation {p.activation}")  # fmt: skip
