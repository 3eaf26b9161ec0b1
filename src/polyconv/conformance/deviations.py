"""Where other engines refuse a problem or answer differently: one named row each, with the reason.

A comparison against an engine is either equal within the bound, or every output beyond it is covered by
a row that says what the engine does instead and how far that may lead; nothing else passes.  The rows
hold for onnxruntime 1.31.1, openvino 2026.4.1 and torch 2.13.0; docs/conformance.md explains them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.conformance.judge import Expected, expected, faults
from polyconv.conformance.operands import Operands
from polyconv.dataclass import dataclass
from polyconv.problem.extents import effective_kernel
from polyconv.problem.oracle import magnitude
from polyconv.problem.problem import Problem
from polyconv.target import host_target

__all__ = ["CRASHES", "DIFFERENCES", "REFUSALS", "Difference", "Refusal", "Row", "crash", "explanation", "refusal"]

Array = NDArray[Any]
Condition = Callable[[Problem, Operands], bool]
Cover = Callable[[Problem, Operands, Expected, Array], Array]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of problem at which an engine is on its own.

    Parameters
    ----------
    engine : str
    name : str
        How reports call it.
    when : callable
        Whether it concerns a problem with its operands.
    """

    engine: str
    name: str
    when: Condition


@dataclass(frozen=True, slots=True)
class Refusal(Row):
    """One kind of problem that an engine cannot be asked."""


def _is_zero_sized(p: Problem, made: Operands) -> bool:
    return 0 in (*made.x.shape, *made.w.shape, *p.y_shape)


def _has_negative_pads(p: Problem, made: Operands) -> bool:
    return any(v < 0 for pair in p.pads for v in pair)


def _mixes_types(p: Problem, made: Operands) -> bool:
    return not p.x == p.w == p.y


def _is_integer(p: Problem, made: Operands) -> bool:
    return not p.y_dtype.is_float


def _is_quantised(p: Problem, made: Operands) -> bool:
    return p.quantisation is not None


def _ort_type(p: Problem, made: Operands) -> bool:
    if p.y_dtype.is_float:
        kinds = ("f32", "f64") if p.op == "deform_conv" else ("f32", "f16")
        return not (p.x == p.w == p.y and p.x in kinds)
    eight = p.x in ("i8", "u8") and p.w in ("i8", "u8")
    rescales = p.quantisation is not None and p.quantisation.rescales
    plain = not (p.bias or p.residual or p.activation) or rescales
    return p.op != "conv" or not (eight and plain and (rescales or (p.y == "i32" and p.overflow == "wrap")))


def _ort_grown(p: Problem, made: Operands) -> bool:
    return p.op == "conv_transpose" and any(op >= s for op, s in zip(p.output_padding, p.s, strict=True))


def _ort_end_pads(p: Problem, made: Operands) -> bool:
    """Extents stated outright that end pads cannot express."""
    if p.o is None:
        return False
    rows = zip(p.i, p.k, p.s, p.d, p.pads, p.output_padding, p.o, strict=True)
    return any(
        (int(i or 0) - 1) * s + effective_kernel(k, d) + op - pad[0] < o for i, k, s, d, pad, op, o in rows
    )


def _channel_zero_point(p: Problem, made: Operands) -> bool:
    return p.quantisation is not None and not p.quantisation.rescales and p.quantisation.zw == "c"


def _saturates(p: Problem, made: Operands) -> bool:
    """Whether bytes of unlike signs meet on a CPU without dot products of bytes.

    x86-64's instruction for them adds products in pairs that saturate at 16 bits.
    """
    return {p.x, p.w} == {"u8", "i8"} and not host_target().vnni


REFUSALS: tuple[Refusal, ...] = (
    Refusal("onnxruntime", "zero sizes: errors or garbage", _is_zero_sized),
    Refusal("onnxruntime", "element type without a CPU kernel", _ort_type),
    Refusal("onnxruntime", "negative pads rejected", _has_negative_pads),
    Refusal("onnxruntime", "output_padding of a stride or more rejected", _ort_grown),
    Refusal("onnxruntime", "extended output extents have no attribute form", _ort_end_pads),
    Refusal("onnxruntime", "ConvInteger: zero point per channel rejected", _channel_zero_point),
    Refusal("onnxruntime", "u8 by i8 saturates in pairs without dot products of bytes", _saturates),
    Refusal("openvino", "zero sizes: garbage", _is_zero_sized),
    Refusal("openvino", "quantised operators are not in its opset", _is_quantised),
    Refusal("openvino", "x, w and y must have one type", _mixes_types),
    Refusal("openvino", "more than three spatial axes rejected", lambda p, made: p.rank > 3),
    Refusal("openvino", "negative pads fail to compile", _has_negative_pads),
    Refusal(
        "openvino", "deformable convolution in f32 only",
        lambda p, made: p.op == "deform_conv" and p.x != "f32",
    ),
    Refusal("openvino", "integers through f32, 8-bit results saturate", _is_integer),
    Refusal("openvino", "f64 silently computed in f32", lambda p, made: p.x == "f64"),
    Refusal("torch", "zero sizes: errors", _is_zero_sized),
    Refusal("torch", "more than three spatial axes have no operator", lambda p, made: p.rank > 3),
    Refusal("torch", "no deformable convolution", lambda p, made: p.op == "deform_conv"),
    Refusal("torch", "quantised operators have another form", _is_quantised),
    Refusal("torch", "x, w and y must have one type", _mixes_types),
    Refusal("torch", "no unsigned types beyond 8 bits", lambda p, made: p.x in ("u16", "u32", "u64")),
    Refusal(
        "torch", "integers: no kernel for dilations",
        lambda p, made: _is_integer(p, made) and max(p.d) > 1,
    ),
    Refusal(
        "torch", "integers: no kernel for transposed convolutions",
        lambda p, made: _is_integer(p, made) and p.op == "conv_transpose",
    ),
    Refusal(
        "torch", "integer results wrap only",
        lambda p, made: _is_integer(p, made) and p.overflow == "saturate",
    ),
    Refusal(
        "torch", "narrow integers wrap before residual and activation",
        lambda p, made: _is_integer(p, made) and p.activation is not None,
    ),
)  # fmt: skip
"""Problems that an engine cannot be asked; the first row that applies names the reason."""


def _windows_in_padding(p: Problem, made: Operands) -> bool:
    """Whether, along an axis, windows at both ends lie in the padding wholly, before an activation."""
    reaches = (effective_kernel(k, d) for k, d in zip(p.k, p.d, strict=True))
    inside = any(min(pads) >= reach for pads, reach in zip(p.pads, reaches, strict=True))
    return p.op == "conv" and p.activation is not None and inside


CRASHES: tuple[Refusal, ...] = (
    Refusal("openvino", "dies of whole windows in the padding before an activation", _windows_in_padding),
)
"""Problems that may end an engine's process; consulted only when that happened."""


@dataclass(frozen=True, slots=True)
class Difference(Row):
    """One way in which an engine answers differently.

    Parameters
    ----------
    covers : callable
        ``covers(problem, operands, expected, got)``: which outputs it accounts for, as a mask.
    """

    covers: Cover


def _not_finite(p: Problem, made: Operands) -> bool:
    return not made.is_finite


def _spread(p: Problem, made: Operands, want: Expected, got: Array) -> Array:
    """NaN where a finite value belongs (or the reverse); an activation may have clamped it."""
    special: Array = ~np.isfinite(got.astype(np.float64)) | ~np.isfinite(want.exact)
    name = "" if p.activation is None else p.activation.name
    ends = {"Relu": (0.0,), "HardSigmoid": (0.0, 1.0), "HardSwish": (0.0,)}.get(name, ())
    if p.activation is not None and name == "Clip":
        ends = p.activation.parameters
    return special | np.isin(got.astype(np.float64), ends)


def _approximates(p: Problem, made: Operands) -> bool:
    smooth = ("Sigmoid", "Tanh", "Silu", "Mish", "Gelu", "Elu")
    return p.x in ("f32", "f64") and p.activation is not None and p.activation.name in smooth


def _approximated(p: Problem, made: Operands, want: Expected, got: Array) -> Array:
    return _within(want, got, want.allowed + 1e-6 * (1.0 + np.abs(want.exact)))


_LARGEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}


def _rounds_between(p: Problem, made: Operands) -> bool:
    return p.x in ("f16", "bf16") and (p.residual or p.activation is not None or p.bias)


def _rounded(p: Problem, made: Operands, want: Expected, got: Array) -> Array:
    """Within a few roundings to the result's type of everything that was added up, which may overflow it.

    Behind an activation that multiplies by its gate an overflow may be no number: -Inf times 0.
    """
    size, found = _magnitude(p, made), got.astype(np.float64)
    gated = p.activation is not None and p.activation.name in ("Gelu", "Silu", "Mish")
    overflown = (~np.isfinite(found) if gated else np.isinf(found)) & (size >= _LARGEST[p.y])
    return overflown | _within(want, got, want.allowed + 2.0 * p.y_dtype.eps * size)


def _emulated_bf16(p: Problem, made: Operands) -> bool:
    return p.x == "bf16" and not host_target().bf16


def _transposed_half(p: Problem, made: Operands) -> bool:
    return p.op == "conv_transpose" and p.x == "f16"


def _summed(p: Problem, made: Operands, want: Expected, got: Array) -> Array:
    """Within one rounding to the result's type for every product."""
    products = p.c // p.groups * int(np.prod(p.k)) + 4
    return _within(want, got, want.allowed + products * p.y_dtype.eps * _magnitude(p, made))


def _grouped_extents(p: Problem, made: Operands) -> bool:
    return p.groups > 1 and p.o is not None and any(begin for begin, _ in p.pads)


def _without_begin(p: Problem, made: Operands, want: Expected, got: Array) -> Array:
    """Right for the problem whose begin pads are zero."""
    return _right_for(replace(p, pads=tuple((0, end) for _, end in p.pads)), made, got)


def _shifted_point(p: Problem, made: Operands) -> bool:
    plain = all(n == 1 for n in (*p.k, *p.s)) and p.out == p.i
    return p.op == "conv_transpose" and plain and any(begin for begin, _ in p.pads)


def _without_shift(p: Problem, made: Operands, want: Expected, got: Array) -> Array:
    """Right for the problem without pads and output padding."""
    other = replace(p, pads=((0, 0),) * p.rank, output_padding=(0,) * p.rank, o=None)
    return _right_for(other, made, got)


def _right_for(other: Problem, made: Operands, got: Array) -> Array:
    instead = expected(other, made)
    wrong, _ = faults(other, instead, got)
    return ~wrong | _approximated(other, made, instead, got) | _rounded(other, made, instead, got)


def _magnitude(p: Problem, made: Operands) -> Array:
    with np.errstate(all="ignore"):
        return magnitude(p, made.x, made.w, made.bias, made.residual, **made.keywords())


def _within(want: Expected, got: Array, slack: Array) -> Array:
    with np.errstate(all="ignore"):
        near: Array = np.abs(got.astype(np.float64) - want.exact) <= slack
    return near


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "openvino", "grouped backprop with an output_shape input ignores pads_begin",
        _grouped_extents, _without_begin,
    ),
    Difference(
        "openvino", "pointwise backprop with the input's extents ignores pads and output_padding",
        _shifted_point, _without_shift,
    ),
    Difference("onnxruntime", "activations approximated", _approximates, _approximated),
    Difference("openvino", "activations approximated", _approximates, _approximated),
    Difference("openvino", "f16 and bf16 rounded between operators", _rounds_between, _rounded),
    Difference("torch", "f16 and bf16 rounded between operators", _rounds_between, _rounded),
    Difference("openvino", "bf16 summed in bf16 on CPUs without its dot products", _emulated_bf16, _summed),
    Difference("torch", "f16 transposed convolutions summed in f16", _transposed_half, _summed),
    Difference("onnxruntime", "0 * Inf in the padding", _not_finite, _spread),
    Difference("openvino", "0 * Inf in the padding", _not_finite, _spread),
    Difference("torch", "0 * Inf in the padding", _not_finite, _spread),
)  # fmt: skip
"""Consulted only when an answer lies outside the bound."""


def refusal(engine: str, p: Problem, made: Operands) -> str | None:
    """Why an engine cannot be asked this problem, or None."""
    return next((row.name for row in REFUSALS if row.engine == engine and row.when(p, made)), None)


def crash(engine: str, p: Problem, made: Operands) -> str | None:
    """Why a problem ended an engine's process, or None."""
    return next((row.name for row in CRASHES if row.engine == engine and row.when(p, made)), None)


def explanation(engine: str, p: Problem, made: Operands, want: Expected, got: Array) -> str | None:
    """Why an engine's answer lies outside the bound, or None.

    Parameters
    ----------
    engine : str
    p : Problem
    made : Operands
    want : Expected
        The oracle's answer.
    got : array
        The engine's.

    Returns
    -------
    str or None
        Names of the rows that together cover every wrong output; None if some output is left.
    """
    if got.shape != want.values.shape or got.dtype != want.values.dtype:
        return None
    left, _ = faults(p, want, got)
    names = []
    for row in DIFFERENCES:
        if row.engine == engine and row.when(p, made):
            covered = row.covers(p, made, want, got)
            if (left & covered).any():
                names.append(row.name)
                left = left & ~covered
    return None if left.any() else " + ".join(names)
