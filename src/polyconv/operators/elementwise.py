"""ONNX's element-wise operators as expressions, with the constants that stand in them.

Turns an operation into a ``Fragment``, or into a sentence that says why not.  The one idea: a row per operator in a
table; parameters become operands of one element, so that they shape no code.  It must not know kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyconv.operators.building import Builder, Fragment
from polyconv.operators.expression import CONVERT, DEQUANTISE, QUANTISE, WHERE
from polyconv.operators.functions import FUNCTIONS, may_multiply
from polyconv.operators.job import Array, Known, Operation, constant
from polyconv.operators.types import HALVES, TRUTH, TYPES, dtype_name, untaken

__all__ = ["OPERATORS", "fragment"]


Reader = Callable[[Operation, list[Known], list[str]], Fragment | str]
"""An operation, its inputs that are there and their dtypes, to a fragment or to why there is none."""


def fragment(operation: Operation) -> Fragment | str:
    """An operation as an expression, or why not."""
    present = [given for given in operation.inputs if given is not None]
    if operation.outputs != 1 or not present or operation.inputs[0] is None:
        return "it has more than one result, or no input"
    on_gpu = operation.on_gpu
    dtypes = [dtype_name(given.dtype, has_halves=on_gpu, has_truth=not on_gpu) for given in present]
    if None in dtypes:
        return untaken(present[dtypes.index(None)].dtype)
    return _TABLE[operation.op](operation, present, [d for d in dtypes if d is not None])


_ATTRIBUTES = "it has attributes that are not done here"
_TYPES = "it is not done here for these types"
_NOT_CONSTANT = "a parameter comes with the run"
_RANK = "the model does not say the rank of an input"


def _is_plain(operation: Operation, allowed: Sequence[str] = ()) -> bool:
    """Whether it has no attributes but some, as those by which old opsets broadcast."""
    return not set(operation.attributes).difference(allowed)


def _same(function: str, count: int, *, makes: str | None = None) -> Reader:
    """An operator of so many operands of one type, which is its result's unless another is said."""

    def read(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
        fits = len(inputs) == len(operation.inputs) == count and len(set(dtypes)) == 1 and _is_plain(operation)
        if not fits or TYPES[dtypes[0]].kind not in FUNCTIONS[function].kinds:
            return _TYPES if _is_plain(operation) else _ATTRIBUTES
        if operation.on_gpu and makes is not None:
            return "it is not done on a GPU"
        builder = Builder(range(count), dtypes)
        builder.apply(function, *range(count), dtype=makes)
        return builder.fragment()

    return read


def _angle(function: str) -> Reader:
    """Sin and Cos of f32; of other types NumPy counts them."""
    read = _same(function, 1)

    def of_singles(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
        return _TYPES if operation.on_gpu or dtypes[:1] != ["f32"] else read(operation, inputs, dtypes)

    return of_singles


def _where(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    """Where: one of two operands of one type, as truth values say."""
    if len(inputs) != 3 or dtypes[0] != TRUTH or dtypes[1] != dtypes[2] or not _is_plain(operation):
        return _TYPES
    builder = Builder(range(3), dtypes)
    builder.apply(WHERE, 0, 1, 2, dtype=dtypes[1])
    return builder.fragment()


def _chained(function: str) -> Reader:
    """Sum, Max and Min: of any number of operands, from the left."""

    def read(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
        fits = len(inputs) == len(operation.inputs) and len(inputs) <= 8 and len(set(dtypes)) == 1
        if not fits or not _is_plain(operation) or TYPES[dtypes[0]].kind not in FUNCTIONS[function].kinds:
            return _TYPES if fits else "its inputs are more than 8, or of several types"
        builder = Builder(range(len(inputs)), dtypes)
        total = builder.apply("Identity", 0) if len(inputs) == 1 else 0
        for other in range(1, len(inputs)):
            total = builder.apply(function, total, other)
        return builder.fragment()

    return read


def _parametric(function: str, parameters: Callable[[Operation], Sequence[float] | None]) -> Reader:
    """An operator of one operand, and of numbers that its attributes give."""

    def read(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
        values = parameters(operation)
        if values is None or len(operation.inputs) != 1:
            return _ATTRIBUTES
        if TYPES[dtypes[0]].kind not in FUNCTIONS[function].kinds:
            return _TYPES
        kind = TYPES[dtypes[0]].numpy
        builder = Builder((0,), dtypes, [np.array(v, kind) for v in values])
        builder.apply(function, *range(1 + len(values)))
        return builder.fragment()

    return read


def _number(name: str, default: float) -> Callable[[Operation], Sequence[float] | None]:
    return _numbers((name, default))


def _numbers(*named: tuple[str, float]) -> Callable[[Operation], Sequence[float] | None]:
    """Attributes that are floats, in the 32 bits that ONNX stores, of defaults too."""

    def read(operation: Operation) -> Sequence[float] | None:
        if not _is_plain(operation, [name for name, _ in named]):
            return None
        values = [operation.attributes.get(name, default) for name, default in named]
        return [float(np.float32(v)) for v in values] if all(isinstance(v, int | float) for v in values) else None

    return read


def _gelu(operation: Operation) -> Sequence[float] | None:
    word = operation.attributes.get("approximate", "none")
    return () if str(word).lower() == "none" and _is_plain(operation, ["approximate"]) else None


def _swish(operation: Operation) -> Sequence[float] | None:
    return () if operation.attributes.get("alpha", 1.0) == 1.0 and _is_plain(operation, ["alpha"]) else None


def _clip(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    """Bounds are attributes before opset 11, inputs since; one that is left out is the type's own limit."""
    row = TYPES[dtypes[0]]
    if row.name == TRUTH:
        return _TYPES
    limits = (float("-inf"), float("inf")) if row.is_float else row.limits
    if operation.version < 11:
        if not _is_plain(operation, ("min", "max")) or not row.is_float:
            return _TYPES
        largest = float(np.finfo(np.float32).max)
        bounds = [operation.attributes.get("min", -largest), operation.attributes.get("max", largest)]
    else:
        bounds = []
        for at, limit in enumerate(limits, 1):
            given = operation.inputs[at] if at < len(operation.inputs) else None
            value = limit if given is None else constant(given)
            if value is None or np.size(value) != 1:
                return _clip_by_run(operation, dtypes[0], limits)
            bounds.append(value if given is None else np.asarray(value).reshape(())[()])
    kind = row.numpy
    held = [np.array(b, kind) for b in bounds]
    if any(math.isnan(float(b)) for b in held):
        return "a bound is no number"
    builder = Builder((0,), dtypes[:1], held)
    builder.apply("Clip", 0, 1, 2)
    return builder.fragment()


def _clip_by_run(operation: Operation, dtype: str, limits: tuple[float, float]) -> Fragment | str:
    """Clip by single numbers of which one or two come with the run."""
    bounds = [operation.inputs[at] if at < len(operation.inputs) else None for at in (1, 2)]
    kind = TYPES[dtype].numpy
    if any(given is not None and (given.dims not in ((), (1,)) or given.dtype != kind.name) for given in bounds):
        return _NOT_CONSTANT
    reads = [0, *(at for at, given in enumerate(bounds, 1) if given is not None)]
    held = [np.array(limit, kind) for limit, given in zip(limits, bounds, strict=True) if given is None]
    builder = Builder(reads, [dtype] * len(reads), held)
    last = len(reads)  # the number of the limit that stands for a bound that is left out
    places = [reads.index(at) if given is not None else last for at, given in enumerate(bounds, 1)]
    builder.apply("Clip", 0, *places)
    return builder.fragment(follows=True)


def _power(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    """Powers whose exponent is a small constant: products, roots and reciprocals."""
    exponent = constant(inputs[1]) if len(inputs) == 2 else None
    if exponent is None or exponent.size != 1 or exponent.ndim > len(inputs[0].dims or ()) or not _is_plain(operation):
        return "the exponent is not one constant"
    if not TYPES[dtypes[0]].is_float:
        return _TYPES
    builder = Builder((0,), dtypes[:1])
    value = float(exponent.reshape(()))
    if value == 2.0:
        builder.apply("Mul", 0, 0)
    elif value == 3.0:
        builder.apply("Mul", builder.apply("Mul", 0, 0), 0)
    elif value in _POWERS:
        builder.apply(_POWERS[value], 0)
    else:
        return f"the exponent is {value}, not one of 2, 3, {', '.join(map(str, _POWERS))}"
    return builder.fragment()


_POWERS = {1.0: "Identity", 0.5: "RootPower", -1.0: "Reciprocal"}

_TARGETS = {1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: TRUTH, 10: "f16", 11: "f64"}
"""``TensorProto.DataType`` -> dtype."""


def _cast(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    """Cast; a float that an integer type does not hold has no value of its own in ONNX."""
    to = _TARGETS.get(operation.attributes.get("to", 0))
    is_half = to in HALVES and (not operation.on_gpu or dtypes[0] == "f64")  # which would be rounded twice
    is_taken = to is not None and not is_half and not (to == TRUTH and operation.on_gpu)
    if to is None or not is_taken or len(inputs) != 1 or not _is_plain(operation, ("to", "saturate")):
        return "it casts to a type that is not computed here"
    builder = Builder((0,), dtypes)
    builder.apply(CONVERT, 0, dtype=to)
    return builder.fragment()


def _batch_normalised(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    """A scale and a shift for each channel, formed in float64 and rounded once."""
    known = [constant(given) for given in inputs[1:]]
    scale, bias, mean, variance = known if len(known) == 4 else (None,) * 4
    dims, row = inputs[0].dims, TYPES[dtypes[0]]
    if scale is None or bias is None or mean is None or variance is None:
        return _NOT_CONSTANT
    if dims is None or len(dims) < 2:
        return _RANK
    if not row.is_float or any(a.shape != dims[1:2] for a in (scale, bias, mean, variance)):
        return "its parameters have not the number of channels"
    attributes = operation.attributes
    if attributes.get("training_mode", 0) or not attributes.get("spatial", 1):
        return _ATTRIBUTES
    if not _is_plain(operation, ("epsilon", "momentum", "training_mode", "spatial")):
        return _ATTRIBUTES
    wide = [a.astype(np.float64) for a in (scale, bias, mean, variance)]
    with np.errstate(all="ignore"):
        factor = wide[0] / np.sqrt(wide[3] + float(np.float32(attributes.get("epsilon", 1e-5))))
        shift = wide[1] - wide[2] * factor
        shape = (-1, *(1,) * (len(dims) - 2))
        held = [np.ascontiguousarray(a.astype(row.numpy).reshape(shape)) for a in (factor, shift)]
    builder = Builder((0,), dtypes[:1], held)
    builder.apply("Add", builder.apply("Mul", 0, 1), 2)
    return builder.fragment(follows=True)


def _sloped(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    """PRelu: since opset 9 the slope is broadcast to the input, and to no more."""
    x, slope = inputs if len(inputs) == 2 else (None, None)
    if x is None or slope is None or x.dims is None or slope.dims is None or operation.version < 9:
        return _RANK if operation.version >= 9 else "slopes were not broadcast before opset 9"
    if len(slope.dims) > len(x.dims) or len(set(dtypes)) != 1 or not TYPES[dtypes[0]].is_float:
        return _TYPES
    builder = Builder((0, 1), dtypes)
    builder.apply("Sloped", 0, 1)
    return builder.fragment(follows=True)


def _scales(operation: Operation, inputs: list[Known]) -> tuple[Array, Array | None] | str:
    """Scale and zero point of QuantizeLinear and DequantizeLinear, in the shape that broadcasts along their axis."""
    dims, known = inputs[0].dims, [constant(given) for given in inputs[1:]]
    if not known or any(a is None for a in known):
        return _NOT_CONSTANT
    scale, zero = known[0], known[1] if len(known) > 1 else None
    if scale is None or scale.dtype != np.float32 or scale.ndim > 1 or (zero is not None and zero.shape != scale.shape):
        return "its scale is not of f32, or has more than one axis"
    if not _is_plain(operation, ("axis", "saturate")):
        return _ATTRIBUTES
    if scale.size == 1:
        return scale.reshape(()), None if zero is None else zero.reshape(())
    axis = operation.attributes.get("axis", 1)
    if dims is None or not isinstance(axis, int) or not -len(dims) <= axis < len(dims) or dims[axis] != scale.size:
        return "its scales have not the extent of their axis, or it is not known"
    shape = [1] * len(dims)
    shape[axis] = -1
    return scale.reshape(shape), None if zero is None else zero.reshape(shape)


_SMALL = ("u8", "i8", "u16", "i16")


def _by_run(operation: Operation, inputs: list[Known], dtypes: list[str], function: str, made: str) -> Fragment | str:
    """QuantizeLinear or DequantizeLinear by single numbers that come with a run."""
    if len(inputs) != 3 or any(given.dims not in ((), (1,)) for given in inputs[1:]):
        return _NOT_CONSTANT
    if dtypes[1] != "f32" or dtypes[2] not in _SMALL or not _is_plain(operation, ("axis", "saturate")):
        return _TYPES
    builder = Builder((0, 1, 2), dtypes)
    builder.apply(function, 0, 1, 2, dtype=made)
    return builder.fragment(follows=True)


def _quantised(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    found = _scales(operation, inputs)
    if found is _NOT_CONSTANT and dtypes[0] == "f32":
        return _by_run(operation, inputs, dtypes, QUANTISE, dtypes[-1])
    if isinstance(found, str) or dtypes[0] != "f32":
        return found if isinstance(found, str) else _TYPES
    scale, zero = found
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    target = dtype_name(zero.dtype)
    if target not in _SMALL:
        return _TYPES
    constants = [scale, zero]
    if may_multiply(scale):
        constants.append(np.asarray(np.float32(1) / scale))  # NumPy makes no array of one without axes
    builder = Builder((0,), dtypes[:1], tuple(constants))
    builder.apply(QUANTISE, *range(1 + len(constants)), dtype=target)
    return builder.fragment()


def _dequantised(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    found = _scales(operation, inputs)
    if found is _NOT_CONSTANT and dtypes[0] == dtypes[-1]:
        return _by_run(operation, inputs, dtypes, DEQUANTISE, "f32")
    if isinstance(found, str) or dtypes[0] not in _SMALL:
        return found if isinstance(found, str) else _TYPES
    scale, zero = found
    zero = np.zeros(scale.shape, TYPES[dtypes[0]].numpy) if zero is None else zero
    if dtype_name(zero.dtype) != dtypes[0]:
        return _TYPES
    builder = Builder((0,), dtypes[:1], (scale, zero))
    builder.apply(DEQUANTISE, 0, 1, 2, dtype="f32")
    return builder.fragment()


def _dropped(operation: Operation, inputs: list[Known], dtypes: list[str]) -> Fragment | str:
    """Dropout as inference has it: it drops nothing."""
    training = constant(operation.inputs[2]) if len(operation.inputs) > 2 else None
    if len(operation.inputs) > 2 and operation.inputs[2] is not None and (training is None or training.any()):
        return "it may be asked to train"
    if operation.attributes.get("is_test", 1) == 0:
        return "it may be asked to train"
    builder = Builder((0,), dtypes[:1])
    builder.apply("Identity", 0)
    return builder.fragment()


_TABLE: Mapping[str, Reader] = {
    **{name: _same(name, 2, makes=TRUTH) for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    **{name: _same(name, 2) for name in ("And", "Or", "Xor")},
    "Not": _same("Not", 1),
    "IsNaN": _same("IsNaN", 1, makes=TRUTH),
    "IsInf": _same("IsInf", 1, makes=TRUTH),
    "Where": _where,
    "Add": _same("Add", 2),
    "Sub": _same("Sub", 2),
    "Mul": _same("Mul", 2),
    "Div": _same("Div", 2),
    "Sum": _chained("Add"),
    "Max": _chained("Max"),
    "Min": _chained("Min"),
    "Neg": _same("Neg", 1),
    "Abs": _same("Abs", 1),
    "Reciprocal": _same("Reciprocal", 1),
    "Sqrt": _same("Sqrt", 1),
    "Exp": _same("Exp", 1),
    "Log": _same("Log", 1),
    "Softplus": _same("Softplus", 1),
    "Sin": _angle("Sin"),
    "Cos": _angle("Cos"),
    "Round": _same("Round", 1),
    "Floor": _same("Floor", 1),
    "Ceil": _same("Ceil", 1),
    "Erf": _same("Erf", 1),
    "Relu": _same("Relu", 1),
    "Sigmoid": _same("Sigmoid", 1),
    "Tanh": _same("Tanh", 1),
    "HardSwish": _same("HardSwish", 1),
    "Mish": _same("Mish", 1),
    "LeakyRelu": _parametric("Sloped", _number("alpha", 0.01)),
    "Elu": _parametric("Elu", _number("alpha", 1.0)),
    "HardSigmoid": _parametric("HardSigmoid", _numbers(("alpha", 0.2), ("beta", 0.5))),
    "Gelu": _parametric("Gelu", _gelu),
    "Swish": _parametric("Silu", _swish),
    "Clip": _clip,
    "PRelu": _sloped,
    "Pow": _power,
    "Cast": _cast,
    "BatchNormalization": _batch_normalised,
    "QuantizeLinear": _quantised,
    "DequantizeLinear": _dequantised,
    "Dropout": _dropped,
}

OPERATORS = tuple(_TABLE)
"""Operators of this family."""
