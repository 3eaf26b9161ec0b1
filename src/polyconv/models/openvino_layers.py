"""Layers of an IR as the operators of ONNX that mean the same, where one does.

Turns a layer into a node of ONNX's main domain, so that the kernels of ``polyconv.operators`` run both formats.  The
one idea: a layer's attributes and constant inputs become the attributes that ONNX has, or had once; where the two
engines would differ, the answer is a sentence that says so, and the layer stays what it was.  It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyconv.errors import Error
from polyconv.models.elements import BY_OPENVINO
from polyconv.models.graph import Array, Node
from polyconv.models.native import ONNX, Lookup
from polyconv.models.openvino_layer import AUTO_PADS, NOT_CONSTANT, Layer, strided
from polyconv.models.operators import OPENVINO

__all__ = ["as_onnx", "has_form"]


_DIFFERS = "ONNX has no operator that does the same"

Reader = Callable[[Layer], Node | str]


def has_form(node: Node) -> bool:
    """Whether a layer may mean the same as an operator of ONNX, or is one already."""
    return ONNX.knows(node) or (node.domain == OPENVINO and node.op.lower() in _TABLE)


def as_onnx(node: Node, known: Lookup, constants: Mapping[str, Array]) -> Node | str:
    """The node of ONNX that means the same as a layer, or why there is none."""
    if node.domain != OPENVINO:
        return node
    read = _TABLE.get(node.op.lower()) if node.origin is not None else None
    if read is None:
        return f"{node.op} is not computed here"
    if not node.inputs:
        return "it has no input"
    try:
        return read(Layer(node, known, constants))
    except Error:
        raise
    except (IndexError, TypeError, ValueError):
        return "an attribute or an input is missing, or of another kind"


# -- element by element ---------------------------------------------------------------------------------


def _plain(op: str, inputs: int = 1) -> Reader:
    def read(layer: Layer) -> Node | str:
        if len(layer.node.inputs) != inputs or (inputs > 1 and layer.text("auto_broadcast", "numpy") != "numpy"):
            return _DIFFERS
        return layer.onnx(op, range(inputs), 20)

    return read


def _divided(layer: Layer) -> Node | str:
    kind = layer.known(layer.node.inputs[0]).type
    return _plain("Div", 2)(layer) if kind in ("tensor(float)", "tensor(double)") else "integers are divided otherwise"


def _clamped(layer: Layer) -> Node | str:
    return layer.onnx("Clip", version=6, min=layer.real("min"), max=layer.real("max"))


def _gelu(layer: Layer) -> Node | str:
    return layer.onnx("Gelu", version=20) if layer.text("approximation_mode", "erf") == "erf" else _DIFFERS


def _swish(layer: Layer) -> Node | str:
    beta = layer.list(1) if len(layer.node.inputs) > 1 else [1.0]
    return layer.onnx("Swish", version=24) if beta == [1.0] else "its beta is not 1"


def _sloped(layer: Layer) -> Node | str:
    slope = layer.list(1)
    return layer.onnx("LeakyRelu", alpha=slope[0]) if slope is not None and len(slope) == 1 else "it has many slopes"


def _hard_sigmoid(layer: Layer) -> Node | str:
    alpha, beta = layer.list(1), layer.list(2)
    if alpha is None or beta is None or len(alpha) != 1 or len(beta) != 1:
        return NOT_CONSTANT
    return layer.onnx("HardSigmoid", alpha=alpha[0], beta=beta[0])


def _converted(layer: Layer) -> Node | str:
    """To floats only: ONNX does not say which integer a float becomes that lies beyond its ends."""
    row = BY_OPENVINO.get(layer.text("destination_type"))
    return layer.onnx("Cast", to=row.onnx) if row is not None and row.numpy.kind == "f" else _DIFFERS


# -- windows, reductions, lines ---------------------------------------------------------------------------

def _pooled(op: str) -> Reader:
    def read(layer: Layer) -> Node | str:
        rounding, auto = layer.text("rounding_type", "floor"), AUTO_PADS.get(layer.text("auto_pad", "explicit"))
        if rounding not in ("floor", "ceil_torch") or auto is None:
            return "its last windows may begin in padding, which ONNX leaves out"
        more: dict[str, Any] = {"ceil_mode": int(rounding == "ceil_torch"), "auto_pad": auto}
        if auto == "NOTSET":
            more["pads"] = [*layer.numbers("pads_begin"), *layer.numbers("pads_end")]
        if op == "AveragePool":
            more["count_include_pad"] = int(not layer.flag("exclude-pad", default=False))
        elif layer.text("dilations"):
            more["dilations"] = layer.numbers("dilations")
        return layer.onnx(op, version=19, kernel_shape=layer.numbers("kernel"), strides=layer.numbers("strides"),
                          **more)  # fmt: skip

    return read


def _reduced(op: str) -> Reader:
    def read(layer: Layer) -> Node | str:
        axes = layer.list(1)
        if not axes:
            return NOT_CONSTANT
        return layer.onnx(op, version=11, axes=axes, keepdims=int(layer.flag("keep_dims", default=False)))

    return read


def _softmax(op: str, axis: str) -> Reader:
    return lambda layer: layer.onnx(op, axis=layer.numbers("axis", axis)[0])


def _response(layer: Layer) -> Node | str:
    """LRN over channels; of an even size ONNX takes one channel fewer before an element's own."""
    size, axes = layer.numbers("size"), layer.list(1)
    if axes != [1] or len(size) != 1 or size[0] % 2 == 0:
        return _DIFFERS
    return layer.onnx("LRN", version=13, size=size[0], alpha=layer.real("alpha"), beta=layer.real("beta"),
                      bias=layer.real("bias"))  # fmt: skip


def _centred(layer: Layer) -> Node | str:
    """MVN: LayerNormalization without scales, over neighbouring axes."""
    axes, rank = layer.list(1), None if layer.dims is None else len(layer.dims)
    if axes is None or rank is None or not axes:
        return NOT_CONSTANT
    places = sorted(axis % rank for axis in axes)
    if places != list(range(places[0], places[-1] + 1)) or not layer.flag("normalize_variance", default=True):
        return "its axes are not neighbours, or variances stay"
    if layer.text("eps_mode", "inside_sqrt") != "inside_sqrt":
        return "epsilon is added to a root"
    return layer.onnx("LayerNormalization", version=17, axis=places[0], last_axis=places[-1],
                      epsilon=layer.real("eps", 1e-6))  # fmt: skip


# -- moves ------------------------------------------------------------------------------------------------


def _joined(layer: Layer) -> Node | str:
    return layer.onnx("Concat", range(len(layer.node.inputs)), axis=layer.numbers("axis")[0])


def _split(layer: Layer) -> Node | str:
    axis, lengths = layer.list(1), layer.list(2) if layer.node.op.lower() == "variadicsplit" else []
    if axis is None or lengths is None:
        return NOT_CONSTANT
    if lengths:
        extent = None if layer.dims is None else layer.dims[axis[0]]
        if -1 in lengths and not isinstance(extent, int):
            return "one of its lengths is what is left of an extent that is not known"
        rest = 0 if not isinstance(extent, int) else extent - sum(n for n in lengths if n >= 0)
        return layer.onnx("Split", axis=axis[0], split=[rest if n == -1 else n for n in lengths])
    return layer.onnx("Split", axis=axis[0], version=18)


def _turned(layer: Layer) -> Node | str:
    order = layer.list(1)
    if order is None:
        return NOT_CONSTANT
    return layer.onnx("Transpose", perm=order) if order else layer.onnx("Transpose")


def _reshaped(layer: Layer) -> Node | str:
    return layer.onnx("Reshape", (0, 1), 14, allowzero=int(not layer.flag("special_zero", default=False)))


def _with_axes(op: str) -> Reader:
    return lambda layer: layer.onnx(op, range(len(layer.node.inputs)))


def _gathered(layer: Layer) -> Node | str:
    axis = layer.list(2)
    if axis is None or layer.numbers("batch_dims", "0") != [0]:
        return NOT_CONSTANT
    return layer.onnx("Gather", (0, 1), axis=axis[0])


def _shape(layer: Layer) -> Node | str:
    return layer.onnx("Shape", version=15) if layer.text("output_type", "i64") == "i64" else _DIFFERS


def _sliced(layer: Layer) -> Node | str:
    return layer.onnx("Slice", (0, 1, 2, 4, 3) if len(layer.node.inputs) > 4 else (0, 1, 2, None, 3))


def _padded(layer: Layer) -> Node | str:
    begins, ends, mode = layer.list(1), layer.list(2), layer.text("pad_mode")
    value = layer.list(3) if len(layer.node.inputs) > 3 else [0.0]
    if begins is None or ends is None or value is None:
        return NOT_CONSTANT
    if mode not in ("constant", "edge", "reflect") or float(np.float32(value[0])) != value[0]:
        return _DIFFERS
    return layer.onnx("Pad", version=10, mode=mode, pads=[*begins, *ends], value=value[0])


def _blocks(op: str) -> Reader:
    def read(layer: Layer) -> Node | str:
        mode = {"blocks_first": "DCR", "depth_first": "CRD"}.get(layer.text("mode"))
        if mode is None or layer.dims is None or len(layer.dims) != 4:
            return "its blocks are not of two axes"
        return layer.onnx(op, blocksize=layer.numbers("block_size", "1")[0], mode=mode)

    return read


def _tiled(layer: Layer) -> Node | str:
    repeats = layer.constant(1)
    if repeats is None or layer.dims is None or len(layer.dims) != repeats.size:
        return NOT_CONSTANT
    return layer.onnx("Tile", (0, 1))


def _expanded(layer: Layer) -> Node | str:
    if layer.text("mode", "numpy") not in ("numpy", "bidirectional") or len(layer.node.inputs) != 2:
        return _DIFFERS
    return layer.onnx("Expand", (0, 1))


_COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _interpolated(layer: Layer) -> Node | str:
    """Interpolate since opset 4; from 11 on one input has the sizes or the scales."""
    inputs, late = layer.node.inputs, layer.node.version >= 11
    mode = {"nearest": "nearest", "linear_onnx": "linear", "cubic": "cubic"}.get(layer.text("mode"))
    coordinates, rounding = layer.text("coordinate_transformation_mode", "half_pixel"), layer.text("nearest_mode")
    rounding = rounding or "round_prefer_floor"
    if layer.node.version < 4 or mode is None or coordinates not in _COORDINATES or rounding not in _ROUNDINGS:
        return _DIFFERS
    if layer.flag("antialias", default=False) or any((*layer.numbers("pads_begin"), *layer.numbers("pads_end"))):
        return "it smoothes or pads"
    by_sizes, last = layer.text("shape_calculation_mode") == "sizes", 2 if late else 3
    at = 1 if late or by_sizes else 2
    numbers, axes = layer.list(at), layer.list(last) if len(inputs) > last else None
    if numbers is None or (axes is None and len(inputs) > last):
        return NOT_CONSTANT
    if not by_sizes and any(not math.isclose(2 * v, round(2 * v), abs_tol=1e-7) for v in numbers):
        return "its scales are no halves, whose extents are rounded otherwise"
    more: dict[str, Any] = {} if axes is None else {"axes": axes}
    if mode == "nearest":
        more["nearest_mode"] = rounding
    if mode == "cubic":
        more["cubic_coeff_a"] = layer.real("cube_coeff", -0.75)
    given = (0, None, None, at) if by_sizes else (0, None, at)
    return layer.onnx("Resize", given, 19, mode=mode, coordinate_transformation_mode=coordinates, **more)


_TABLE: Mapping[str, Reader] = {
    **{name: _plain(op, 2) for name, op in (
        ("add", "Add"), ("subtract", "Sub"), ("multiply", "Mul"), ("maximum", "Max"), ("minimum", "Min"),
        ("power", "Pow"),
    )},
    **{name: _plain(op) for name, op in (
        ("relu", "Relu"), ("sigmoid", "Sigmoid"), ("tanh", "Tanh"), ("exp", "Exp"), ("sqrt", "Sqrt"), ("abs", "Abs"),
        ("negative", "Neg"), ("erf", "Erf"), ("hswish", "HardSwish"), ("mish", "Mish"), ("log", "Log"),
        ("floor", "Floor"), ("ceiling", "Ceil"), ("sin", "Sin"), ("cos", "Cos"),
    )},
    **{f"reduce{name}": _reduced(f"Reduce{name.capitalize()}") for name in ("mean", "sum", "max", "min")},
    "divide": _divided,
    "elu": lambda layer: layer.onnx("Elu", alpha=layer.real("alpha")),
    "clamp": _clamped,
    "gelu": _gelu,
    "swish": _swish,
    "prelu": _sloped,
    "hardsigmoid": _hard_sigmoid,
    "hsigmoid": lambda layer: layer.onnx("HardSigmoid", alpha=float(np.float32(1 / 6)), beta=0.5),
    "convert": _converted,
    "maxpool": _pooled("MaxPool"),
    "avgpool": _pooled("AveragePool"),
    "softmax": _softmax("Softmax", "1"),
    "logsoftmax": _softmax("LogSoftmax", "-1"),
    "lrn": _response,
    "mvn": _centred,
    "concat": _joined,
    "split": _split,
    "variadicsplit": _split,
    "transpose": _turned,
    "reshape": _reshaped,
    "squeeze": _with_axes("Squeeze"),
    "unsqueeze": _with_axes("Unsqueeze"),
    "gather": _gathered,
    "shapeof": _shape,
    "slice": _sliced,
    "stridedslice": strided,
    "pad": _padded,
    "depthtospace": _blocks("DepthToSpace"),
    "spacetodepth": _blocks("SpaceToDepth"),
    "tile": _tiled,
    "broadcast": _expanded,
    "interpolate": _interpolated,
}  # fmt: skip
"""Type of a layer, in lower case -> the node of ONNX that it is."""
