"""Layers of an IR that quantise, and convolutions between them, as the operators of ONNX that compute with integers.

OpenVINO writes real numbers that stand for integers: FakeQuantize rounds to one of 256 levels, weights are bytes that
Convert, Subtract and Multiply turn into floats.  The one idea: levels are integers with a scale and a zero point, so
that such a layer is QuantizeLinear and DequantizeLinear, and a convolution between two of them QLinearConv.
It runs nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyconv.models.graph import Array, Node, along
from polyconv.models.onnx_integers import integer_convolution
from polyconv.models.openvino_layer import AUTO_PADS, Layer
from polyconv.models.rewriting import Change, View

__all__ = ["Quantity", "integer_layers", "levels_of"]

_LEVELS = 256
_NEAR = 1e-3
"""How far a zero point may be from a whole number, which ranges are meant to make it."""
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True, slots=True)
class Quantity:
    """Integers that stand for the value that a FakeQuantize makes.

    Parameters
    ----------
    node : Node
        The layer.
    integers : str
        Name of the integers.
    scale, zero : (str, array)
        Names and numbers: the value is ``scale (integers - zero)``.  There is one of each, or one a channel.
    """

    node: Node
    integers: str
    scale: tuple[str, Array]
    zero: tuple[str, Array]

    @property
    def constants(self) -> dict[str, Array]:
        """Scale and zero point by name."""
        return dict((self.scale, self.zero))

    @property
    def nodes(self) -> tuple[Node, Node]:
        """What makes the integers, and what makes the value of them."""
        x, y, numbers = self.node.inputs[0], self.node.outputs[0], (self.scale[0], self.zero[0])
        axis = {"axis": 1} if self.scale[1].ndim else {}
        first, second = (
            Node(self.node.name, op, "", 13, (read, *numbers), (made,), axis, stands_for=(self.node,))
            for op, read, made in (("QuantizeLinear", x, self.integers), ("DequantizeLinear", self.integers, y))
        )
        return first, second


def levels_of(node: Node, layer: Layer, rank: int) -> Quantity | None:
    """What a FakeQuantize to 256 levels of one range makes, or of one a channel; None for any other."""
    ends = [layer.constant(at) for at in range(1, 5)]
    if layer.numbers("levels", "0") != [_LEVELS] or layer.text("auto_broadcast", "numpy") != "numpy":
        return None
    numbers = [None if end is None else along(end, rank, 1) for end in ends]
    if any(each is None for each in numbers) or len({each.size for each in numbers if each is not None}) > 1:
        return None
    low, high, *made = (each.astype(np.float64) for each in numbers if each is not None)
    scale = (high - low) / (_LEVELS - 1)
    if not all(map(np.array_equal, made, (low, high))) or not (np.isfinite(scale) & (scale > _TINY)).all():
        return None
    zero = np.rint(-low / scale)
    if (abs(zero + low / scale) > _NEAR).any() or not ((zero >= 0) & (zero < _LEVELS)).all():
        return None
    name, shape = node.outputs[0], () if scale.size == 1 else scale.shape
    return Quantity(node, f"integers of {name}", (f"scale of {name}", scale.reshape(shape).astype(np.float32)),
                    (f"zero point of {name}", zero.reshape(shape).astype(np.uint8)))  # fmt: skip


def integer_layers(conv: Layer, x: Quantity, makers: Mapping[str, Node], follower: Callable[[Node], Layer | None]
                   ) -> tuple[Sequence[Node], Change, Quantity] | None:  # fmt: skip
    """A convolution of integers, and what follows it up to the layer that rounds its results to levels.

    Parameters
    ----------
    conv : Layer
        Convolution or GroupConvolution.
    x : Quantity
        Its input.
    makers : mapping
        Layers that make values of constants alone.
    follower : callable
        The only layer that reads a layer's one result; None where there are others, or it is returned.

    Returns
    -------
    (sequence of Node, Change, Quantity) or None
        The layers; what takes their place, and what that makes; None where it is no convolution of integers.
    """
    weights = _weights(conv, makers)
    if weights is None:
        return None
    integers, scale, zero = weights
    taken, bias = [conv.node], np.zeros(0, np.float32)
    following = follower(conv.node)
    if following is not None and following.node.op == "Add":
        added = next((a for a in map(following.constant, range(2)) if a is not None), None)
        numbers = None if added is None or added.dtype != np.float32 else along(added, integers.ndim, 1)
        if numbers is None or numbers.size != len(integers) or following.text("auto_broadcast", "numpy") != "numpy":
            return None
        taken, bias, following = [*taken, following.node], numbers, follower(following.node)
    clip, following = _clipped(following, follower, integers.ndim)
    taken += clip.nodes
    is_rounded = following is not None and following.node.op == "FakeQuantize"
    y = levels_of(following.node, following, integers.ndim) if following is not None and is_rounded else None
    attributes = _attributes(conv)
    if y is None or attributes is None:
        return None
    taken.append(y.node)
    change = _in_integers(taken, attributes, x, (integers, scale, zero, bias), clip, y)
    return None if change is None else (taken, change, y)


@dataclass(frozen=True, slots=True)
class _Clip:
    """Layers that hold values between two ends."""

    nodes: tuple[Node, ...] = ()
    low: float = -math.inf
    high: float = math.inf


def _clipped(layer: Layer | None, follower: Callable[[Node], Layer | None], rank: int
             ) -> tuple[_Clip, Layer | None]:  # fmt: skip
    """The layers from one on that hold values of a rank between two ends, and what follows them."""
    clip = _Clip()
    while layer is not None and (ends := _ends(layer, rank)) is not None:
        low, high = (min(max(end, ends[0]), ends[1]) for end in (clip.low, clip.high))
        clip, layer = _Clip((*clip.nodes, layer.node), low, high), follower(layer.node)
    return clip, layer


def _ends(layer: Layer, rank: int) -> tuple[float, float] | None:
    """Between which values a layer holds others of a rank; None for one of another kind."""
    op = layer.node.op.lower()
    if op == "relu":
        return 0.0, math.inf
    if op == "clamp":
        return layer.real("min"), layer.real("max")
    if op not in ("maximum", "minimum"):
        return None
    bound = next((a for a in map(layer.constant, range(2)) if a is not None), None)
    if bound is None or bound.size != 1 or bound.ndim > rank or np.isnan(bound).any():
        return None
    end = float(bound.reshape(-1)[0])
    return (end, math.inf) if op == "maximum" else (-math.inf, end)


def _in_integers(taken: Sequence[Node], attributes: Mapping[str, object], x: Quantity, held: Sequence[Array],
                 clip: _Clip, y: Quantity) -> Change | None:  # fmt: skip
    """The change that ``integer_convolution`` makes of the same layers, spelled as ONNX does."""
    name = taken[0].outputs[0]
    parts = {f"{role} of {name}": a for role, a in zip(("bytes", "scales", "zeros", "bias"), held, strict=True)}
    w, scale, zero, bias = parts
    real, sums, clipped = (f"{what} {name}" for what in ("real weights of", "sums", "clipped"))
    file = tuple(node for node in taken[:-1] if node not in clip.nodes)
    axis = {"axis": 0} if held[1].size > 1 else {}
    weights = Node("", "DequantizeLinear", "", 13, (w, scale, zero), (real,), axis)
    conv = Node(taken[0].name, "Conv", "", 13, (x.node.outputs[0], real, *((bias,) if held[3].size else ())), (sums,),
                attributes, stands_for=file)  # fmt: skip
    between, ends = list[Node](), dict[str, Array]()
    if clip.nodes:
        ends = {f"{end} of {name}": np.array(value, np.float32) for end, value in
                (("min", clip.low), ("max", clip.high))}  # fmt: skip
        between = [Node(clip.nodes[0].name, "Clip", "", 13, (sums, *ends), (clipped,), stands_for=clip.nodes)]
    rounding = replace(y.nodes[0], inputs=(clipped if between else sums, *y.nodes[0].inputs[1:]))
    chain = [conv, *between, rounding]
    view = View(
        {**parts, **ends, **x.constants, **y.constants},
        {x.node.outputs[0]: x.nodes[1], real: weights},
        {before.outputs[0]: [after] for before, after in itertools.pairwise(chain)},
        frozenset(), {}, {"": 13},
    )  # fmt: skip
    change = integer_convolution(conv, view)
    if change is None:
        return None
    return replace(change, nodes=(*change.nodes, y.nodes[1]), constants={**change.constants, w: held[0], **y.constants})


def _attributes(conv: Layer) -> dict[str, object] | None:
    """Those of ONNX's Conv; None where padding is of another kind."""
    auto = AUTO_PADS.get(conv.text("auto_pad", "explicit"))
    if auto is None:
        return None
    found: dict[str, object] = {"strides": conv.numbers("strides"), "dilations": conv.numbers("dilations")}
    if conv.node.op == "GroupConvolution":
        dims = conv.known(conv.node.inputs[1]).dims
        if dims is None:
            return None
        found["group"] = dims[0]
    if auto != "NOTSET":
        return found | {"auto_pad": auto}
    return found | {"pads": [*conv.numbers("pads_begin"), *conv.numbers("pads_end")]}


def _weights(conv: Layer, makers: Mapping[str, Node]) -> tuple[Array, Array, Array] | None:
    """Bytes, scales and zero points of ``[Reshape](Multiply([Subtract](Convert(bytes), zeros), scales))``."""
    dims = tuple(extent for extent in conv.known(conv.node.inputs[1]).dims or () if isinstance(extent, int))
    maker = makers.get(conv.node.inputs[1])
    if maker is not None and maker.op == "Reshape":
        maker = makers.get(maker.inputs[0])
    if not dims or maker is None or maker.op != "Multiply":
        return None
    scale, zero = _number(maker.inputs[1], conv, makers), None
    inner = makers.get(maker.inputs[0])
    if inner is not None and inner.op == "Subtract":
        zero, inner = _number(inner.inputs[1], conv, makers), makers.get(inner.inputs[0])
        if zero is None:
            return None
    integers = None if inner is None or inner.op != "Convert" else conv.constants.get(inner.inputs[0])
    if integers is None or integers.dtype not in (np.int8, np.uint8) or integers.size != math.prod(dims):
        return None
    if scale is None:
        return None
    zero = np.zeros(scale.shape, np.float32) if zero is None else zero
    grouped = conv.node.op == "GroupConvolution"
    outputs = dims[0] * (dims[1] if grouped else 1)
    if not all(_is_by_output(a, integers, outputs) for a in (scale, zero)):
        return None
    whole = np.broadcast_to(zero.reshape(-1), scale.size if zero.size == 1 else zero.size).astype(integers.dtype)
    if (whole != zero.reshape(-1)).any() or whole.size != scale.size:
        return None
    return integers.reshape(outputs, -1, *dims[2 + grouped :]), scale.reshape(-1), whole


def _is_by_output(numbers: Array, integers: Array, outputs: int) -> bool:
    """Whether numbers that are broadcast to weights are one of all, or one of each output channel."""
    if numbers.size == 1:
        return True
    leading = 1 if integers.shape[0] == outputs else 2
    aligned = (1,) * (integers.ndim - numbers.ndim) + numbers.shape
    return numbers.size == outputs and aligned[:leading] == integers.shape[:leading]


def _number(name: str, layer: Layer, makers: Mapping[str, Node]) -> Array | None:
    """A constant, or one that is stored in another type."""
    maker = makers.get(name)
    held = layer.constants.get(name if maker is None or maker.op != "Convert" else maker.inputs[0])
    return None if held is None else held.astype(np.float32)
