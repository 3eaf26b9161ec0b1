"""Where other engines refuse a problem or answer differently: one named row each, with the reason.

A comparison against an engine is either equal within the bound or explained by a row of these
tables; nothing else passes.  The sections named are those of the semantics dossier; "measured"
means onnxruntime 1.31.1, openvino 2026.4.1 and torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem, effective_kernel

__all__ = ["DIFFERENCES", "REFUSALS", "Deviation", "explanation", "refusal"]

Condition = Callable[[Problem, Operands], bool]


@dataclass(frozen=True, slots=True)
class Deviation:
    """One known deviation of an engine.

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


def _states_extents(p: Problem, made: Operands) -> bool:
    return p.o is not None


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


REFUSALS: tuple[Deviation, ...] = (
    Deviation("onnxruntime", "zero sizes: errors or garbage (8.1)", _is_zero_sized),
    Deviation("onnxruntime", "element type without a CPU kernel (7.1, 5.1, 5.2)", _ort_type),
    Deviation("onnxruntime", "negative pads rejected (2.5)", _has_negative_pads),
    Deviation("onnxruntime", "output_padding of a stride or more rejected (4.3)", _ort_grown),
    Deviation("onnxruntime", "extended output extents have no attribute form (4.2)", _ort_end_pads),
    Deviation("onnxruntime", "ConvInteger: zero point per channel rejected (5.1)", _channel_zero_point),
    Deviation("openvino", "zero sizes: garbage (8.1)", _is_zero_sized),
    Deviation("openvino", "quantised operators are not in its opset", _is_quantised),
    Deviation("openvino", "x, w and y must have one type (6.1)", _mixes_types),
    Deviation("openvino", "more than three spatial axes rejected (6.1)", lambda p, made: p.rank > 3),
    Deviation("openvino", "negative pads fail to compile (6.1, 6.3)", _has_negative_pads),
    Deviation(
        "openvino", "deformable convolution in f32 only",
        lambda p, made: p.op == "deform_conv" and p.x != "f32",
    ),
    Deviation("openvino", "integers through f32, 8-bit results saturate (7.2)", _is_integer),
    Deviation("openvino", "f64 silently computed in f32 (7.1)", lambda p, made: p.x == "f64"),
    Deviation("torch", "zero sizes: errors (8.1)", _is_zero_sized),
    Deviation("torch", "more than three spatial axes have no operator", lambda p, made: p.rank > 3),
    Deviation("torch", "no deformable convolution", lambda p, made: p.op == "deform_conv"),
    Deviation("torch", "quantised operators have another form", _is_quantised),
    Deviation("torch", "x, w and y must have one type", _mixes_types),
    Deviation("torch", "no unsigned types beyond 8 bits", lambda p, made: p.x in ("u16", "u32", "u64")),
    Deviation(
        "torch", "integers: no kernel for dilations",
        lambda p, made: _is_integer(p, made) and max(p.d) > 1,
    ),
    Deviation(
        "torch", "integers: no kernel for transposed convolutions",
        lambda p, made: _is_integer(p, made) and p.op == "conv_transpose",
    ),
    Deviation(
        "torch", "integer results wrap only",
        lambda p, made: _is_integer(p, made) and p.overflow == "saturate",
    ),
    Deviation(
        "torch", "narrow integers wrap before residual and activation",
        lambda p, made: _is_integer(p, made) and p.activation is not None,
    ),
)  # fmt: skip
"""Problems that an engine cannot be asked; the first row that applies names the reason."""


def _not_finite(p: Problem, made: Operands) -> bool:
    return not made.is_finite


def _approximates(p: Problem, made: Operands) -> bool:
    smooth = ("Sigmoid", "Tanh", "Silu", "Mish", "Gelu", "Elu")
    return p.activation is not None and p.activation.name in smooth


def _rounds_between(p: Problem, made: Operands) -> bool:
    return p.x in ("f16", "bf16") and (p.residual or p.activation is not None or p.bias)


def _transposed_half(p: Problem, made: Operands) -> bool:
    return p.op == "conv_transpose" and p.x in ("f16", "bf16")


DIFFERENCES: tuple[Deviation, ...] = (
    Deviation(
        "openvino", "grouped backprop with an output_shape input ignores pads_begin (measured)",
        lambda p, made: p.groups > 1 and p.o is not None and any(begin for begin, _ in p.pads),
    ),
    Deviation("onnxruntime", "0 * Inf in the padding (8.3)", _not_finite),
    Deviation("openvino", "0 * Inf in the padding (8.3)", _not_finite),
    Deviation("torch", "f16 transposed convolutions summed in f16 (measured)", _transposed_half),
    Deviation("torch", "0 * Inf in the padding (8.3)", _not_finite),
    Deviation("onnxruntime", "rational approximations of activations (3.3)", _approximates),
    Deviation("openvino", "approximated activations (measured)", _approximates),
    Deviation("torch", "approximated activations (measured)", _approximates),
    Deviation("onnxruntime", "f16 rounded between operators (7.1)", _rounds_between),
    Deviation("openvino", "f16 and bf16 rounded between operators (7.1)", _rounds_between),
    Deviation("torch", "f16 and bf16 rounded between operators (7.1)", _rounds_between),
)  # fmt: skip
"""Problems that an engine answers differently; consulted only when its answer lies outside the bound."""


def _first(rows: tuple[Deviation, ...], engine: str, p: Problem, made: Operands) -> str | None:
    return next((row.name for row in rows if row.engine == engine and row.when(p, made)), None)


def refusal(engine: str, p: Problem, made: Operands) -> str | None:
    """Why an engine cannot be asked this problem, or None."""
    return _first(REFUSALS, engine, p, made)


def explanation(engine: str, p: Problem, made: Operands) -> str | None:
    """Why an engine's answer may lie outside the bound, or None."""
    return _first(DIFFERENCES, engine, p, made)
