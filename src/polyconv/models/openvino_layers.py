"""Layers of an IR as the operators of ONNX that mean the same, where one does.

Turns a layer into a node of ONNX's main domain, so that the kernels of ``polyconv.operators`` run both formats.  The
one idea: a layer's attributes and constant inputs become the attributes that ONNX has, or had once; where the two
engines would differ, the answer is a sentence that says so, and the layer stays what it was.  It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyconv.errors import ModelError
from polyconv.models.elements import BY_OPENVINO
from polyconv.models.graph import Array, Node
from polyconv.models.limits import shorten
from polyconv.models.native import Lookup
from polyconv.models.operators import OPENVINO

__all__ = ["as_onnx", "has_form"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer, what is known of its inputs, and how its attributes are read."""

    node: Node
    known: Lookup
    constants: Mapping[str, Array]

    def text(self, key: str, default: str = "") -> str:
        """An attribute in lower case, as words of an IR have no case."""
        return str(self.node.origin.data.get(key, default)).strip().lower()

    def flag(self, key: str, *, default: bool) -> bool:
        """An attribute that is true or false."""
        return self.text(key, str(default)) in ("true", "1")

    def numbers(self, key: str, default: str = "") -> list[int]:
        """An attribute that is a list of integers."""
        text = self.text(key, default)
        return [int(self._number(part, key, int)) for part in text.split(",")] if text else []

    def real(self, key: str, default: float | None = None) -> float:
        """An attribute that is a number."""
        text = self.text(key, "" if default is None else str(default))
        return float(self._number(text, key, float))

    def _number(self, text: str, key: str, kind: Callable[[str], Any]) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise ModelError(f"{self.node.label} has {key}={shorten(text)!r}, which is no number") from None

    def constant(self, at: int) -> Array | None:
        """The value of an input that is the same in every run."""
        return self.constants.get(self.node.inputs[at]) if at < len(self.node.inputs) else None

    def list(self, at: int) -> list[Any] | None:
        """The same, as a list."""
        given = self.constant(at)
        return None if given is None else given.reshape(-1).tolist()

    @property
    def dims(self) -> tuple[Any, ...] | None:
        """Extents of the first input; None for an unknown rank."""
        return self.known(self.node.inputs[0]).dims

    def onnx(self, op: str, inputs: Sequence[int | None] = (0,), version: int = 13, **attributes: Any) -> Node:
        """A node of ONNX with some of the layer's inputs."""
        names = tuple("" if at is None else self.node.inputs[at] for at in inputs)
        return Node(self.node.name, op, "", version, names, self.node.outputs, attributes, stands_for=(self.node,))


_NOT_CONSTANT = "a parameter comes with the run"
_DIFFERS = "ONNX has no operator that does the same"

Reader = Callable[[_Layer], Node | str]


def has_form(node: Node) -> bool:
    """Whether a layer may mean the same as an operator of ONNX."""
    return node.domain == OPENVINO and node.op.lower() in _TABLE


def as_onnx(node: Node, known: Lookup, constants: Mapping[str, Array]) -> Node | str:
    """The node of ONNX that means the same as a layer, or why there is none."""
    read = _TABLE.get(node.op.lower()) if node.domain == OPENVINO and node.origin is not None else None
    if read is None:
        return f"{node.op} is not computed here"
    if not node.inputs:
        return "it has no input"
    return read(_Layer(node, known, constants))


# -- element by element ---------------------------------------------------------------------------------


def _plain(op: str, inputs: int = 1) -> Reader:
    def read(layer: _Layer) -> Node | str:
        if len(layer.node.inputs) != inputs or (inputs > 1 and layer.text("auto_broadcast", "numpy") != "numpy"):
            return _DIFFERS
        return layer.onnx(op, range(inputs), 20)

    return read


def _divided(layer: _Layer) -> Node | str:
    kind = layer.known(layer.node.inputs[0]).type
    return _plain("Div", 2)(layer) if kind in ("tensor(float)", "tensor(double)") else "integers are divided otherwise"


def _clamped(layer: _Layer) -> Node | str:
    return layer.onnx("Clip", version=6, min=layer.real("min"), max=layer.real("max"))


def _gelu(layer: _Layer) -> Node | str:
    return layer.onnx("Gelu", version=20) if layer.text("approximation_mode", "erf") == "erf" else _DIFFERS


def _swish(layer: _Layer) -> Node | str:
    beta = layer.list(1) if len(layer.node.inputs) > 1 else [1.0]
    return layer.onnx("Swish", version=24) if beta == [1.0] else "its beta is not 1"


def _sloped(layer: _Layer) -> Node | str:
    slope = layer.list(1)
    return layer.onnx("LeakyRelu", alpha=slope[0]) if slope is not None and len(slope) == 1 else "it has many slopes"


def _hard_sigmoid(layer: _Layer) -> Node | str:
    alpha, beta = layer.list(1), layer.list(2)
    if alpha is None or beta is None or len(alpha) != 1 or len(beta) != 1:
        return _NOT_CONSTANT
    return layer.onnx("HardSigmoid", alpha=alpha[0], beta=beta[0])


def _converted(layer: _Layer) -> Node | str:
    """To floats only: ONNX does not say which integer a float becomes that lies beyond its ends."""
    row = BY_OPENVINO.get(layer.text("destination_type"))
    return layer.onnx("Cast", to=row.onnx) if row is not None and row.numpy.kind == "f" else _DIFFERS


# -- windows, reductions, lines ---------------------------------------------------------------------------

_AUTO = {"explicit": "NOTSET", "notset": "NOTSET", "valid": "VALID", "same_upper": "SAME_UPPER",
         "same_lower": "SAME_LOWER"}  # fmt: skip


def _pooled(op: str) -> Reader:
    def read(layer: _Layer) -> Node | str:
        rounding, auto = layer.text("rounding_type", "floor"), _AUTO.get(layer.text("auto_pad", "explicit"))
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
    def read(layer: _Layer) -> Node | str:
        axes = layer.list(1)
        if not axes:
            return _NOT_CONSTANT
        return layer.onnx(op, version=11, axes=axes, keepdims=int(layer.flag("keep_dims", default=False)))

    return read


def _softmax(layer: _Layer) -> Node | str:
    return layer.onnx("Softmax", axis=layer.numbers("axis", "1")[0])


# -- moves ------------------------------------------------------------------------------------------------


def _joined(layer: _Layer) -> Node | str:
    return layer.onnx("Concat", range(len(layer.node.inputs)), axis=layer.numbers("axis")[0])


def _split(layer: _Layer) -> Node | str:
    axis, lengths = layer.list(1), layer.list(2) if layer.node.op.lower() == "variadicsplit" else []
    if axis is None or lengths is None:
        return _NOT_CONSTANT
    if lengths:
        extent = None if layer.dims is None else layer.dims[axis[0]]
        if -1 in lengths and not isinstance(extent, int):
            return "one of its lengths is what is left of an extent that is not known"
        rest = 0 if not isinstance(extent, int) else extent - sum(n for n in lengths if n >= 0)
        return layer.onnx("Split", axis=axis[0], split=[rest if n == -1 else n for n in lengths])
    return layer.onnx("Split", axis=axis[0], version=18)


def _turned(layer: _Layer) -> Node | str:
    order = layer.list(1)
    if order is None:
        return _NOT_CONSTANT
    return layer.onnx("Transpose", perm=order) if order else layer.onnx("Transpose")


def _reshaped(layer: _Layer) -> Node | str:
    return layer.onnx("Reshape", (0, 1), 14, allowzero=int(not layer.flag("special_zero", default=False)))


def _with_axes(op: str) -> Reader:
    return lambda layer: layer.onnx(op, range(len(layer.node.inputs)))


def _gathered(layer: _Layer) -> Node | str:
    axis = layer.list(2)
    if axis is None or layer.numbers("batch_dims", "0") != [0]:
        return _NOT_CONSTANT
    return layer.onnx("Gather", (0, 1), axis=axis[0])


def _shape(layer: _Layer) -> Node | str:
    return layer.onnx("Shape", version=15) if layer.text("output_type", "i64") == "i64" else _DIFFERS


def _sliced(layer: _Layer) -> Node | str:
    return layer.onnx("Slice", (0, 1, 2, 4, 3) if len(layer.node.inputs) > 4 else (0, 1, 2, None, 3))


def _strided(layer: _Layer) -> Node | str:
    """StridedSlice: a one in a mask leaves that begin or end out."""
    begin, end, steps = layer.list(1), layer.list(2), layer.list(3)
    if begin is None or end is None or (steps is None and len(layer.node.inputs) > 3):
        return _NOT_CONSTANT
    if any(any(layer.numbers(f"{mask}_mask")) for mask in ("new_axis", "shrink_axis", "ellipsis")):
        return "it takes axes out or puts some in"
    if steps is not None and steps != [1] * len(begin):
        return "its steps are not 1"
    count = len(begin)
    open_begin, open_end = ([*layer.numbers(f"{mask}_mask"), *[0] * count][:count] for mask in ("begin", "end"))
    starts = [0 if is_open else v for v, is_open in zip(begin, open_begin, strict=True)]
    ends = [(1 << 62) if is_open else v for v, is_open in zip(end, open_end, strict=True)]
    return layer.onnx("Slice", version=9, starts=starts, ends=ends, axes=list(range(count)))


def _padded(layer: _Layer) -> Node | str:
    begins, ends, mode = layer.list(1), layer.list(2), layer.text("pad_mode")
    value = layer.list(3) if len(layer.node.inputs) > 3 else [0.0]
    if begins is None or ends is None or value is None:
        return _NOT_CONSTANT
    if mode not in ("constant", "edge", "reflect") or float(np.float32(value[0])) != value[0]:
        return _DIFFERS
    return layer.onnx("Pad", version=10, mode=mode, pads=[*begins, *ends], value=value[0])


def _blocks(op: str) -> Reader:
    def read(layer: _Layer) -> Node | str:
        mode = {"blocks_first": "DCR", "depth_first": "CRD"}.get(layer.text("mode"))
        if mode is None or layer.dims is None or len(layer.dims) != 4:
            return "its blocks are not of two axes"
        return layer.onnx(op, blocksize=layer.numbers("block_size", "1")[0], mode=mode)

    return read


def _tiled(layer: _Layer) -> Node | str:
    repeats = layer.constant(1)
    if repeats is None or layer.dims is None or len(layer.dims) != repeats.size:
        return _NOT_CONSTANT
    return layer.onnx("Tile", (0, 1))


def _expanded(layer: _Layer) -> Node | str:
    if layer.text("mode", "numpy") not in ("numpy", "bidirectional") or len(layer.node.inputs) != 2:
        return _DIFFERS
    return layer.onnx("Expand", (0, 1))


_COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _interpolated(layer: _Layer) -> Node | str:
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
        return _NOT_CONSTANT
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
        ("negative", "Neg"), ("erf", "Erf"), ("hswish", "HardSwish"), ("mish", "Mish"),
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
    "softmax": _softmax,
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
    "stridedslice": _strided,
    "pad": _padded,
    "depthtospace": _blocks("DepthToSpace"),
    "spacetodepth": _blocks("SpaceToDepth"),
    "tile": _tiled,
    "broadcast": _expanded,
    "interpolate": _interpolated,
}  # fmt: skip
"""Type of a layer, in lower case -> the node of ONNX that it is."""
