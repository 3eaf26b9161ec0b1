"""The convolutions of OpenVINO's operator sets: one function and one row each.

Their geometry is that of its engine, arithmetic is exact in the element type and wraps (semantics 6).
Groups stand in the first axis of the weights, which become ONNX's order by a reshape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dialects.attributes import Attribute, boolean, choice, integer, integers
from polyconv.dialects.lowering import forward, transposed
from polyconv.dialects.node import (
    Dim,
    Lowering,
    Node,
    Weights,
    exact,
    per_axis,
    product,
    spatial_rank,
    split,
)
from polyconv.dialects.onnx import deformable
from polyconv.dialects.reading import SIZES
from polyconv.dialects.rows import Factory, Input, Row, factories, named, newest
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError, Unsupported
from polyconv.problem.padding import Pair, backprop_pads

__all__ = ["OPERATORS", "lookup"]

Array = NDArray[Any]


def convolution(node: Node) -> Lowering:
    """Convolution: filters (C_out, C_in, k..), no groups (semantics 6.1)."""
    rank = spatial_rank(node)
    if rank is None:
        return Lowering((None,))
    m, c, *k = _shape(node, rank + 2)
    return forward(node, rank, Weights(c, m, tuple(k), 1, "groups"), _auto_pad(node), _pads(node, rank))


def group_convolution(node: Node) -> Lowering:
    """GroupConvolution: filters (G, C_out/G, C_in/G, k..) (semantics 6.2)."""
    rank = spatial_rank(node, leading=3)
    if rank is None:
        return Lowering((None,))
    groups, m, c, *k = _shape(node, rank + 3)
    if groups is None:
        groups = _deduced(node, rank, c)
    weights = Weights(c, product(groups, m), tuple(k), groups, "groups")
    return _ungrouped(forward(node, rank, weights, _auto_pad(node), _pads(node, rank)))


def convolution_backprop(node: Node) -> Lowering:
    """ConvolutionBackpropData: filters (C_in, C_out, k..), output_shape an input (semantics 6.3)."""
    rank = spatial_rank(node)
    if rank is None:
        return Lowering((None,))
    c, m, *k = _shape(node, rank + 2)
    return _backprop(node, rank, Weights(c, m, tuple(k), 1, "groups"))


def group_convolution_backprop(node: Node) -> Lowering:
    """GroupConvolutionBackpropData: filters (G, C_in/G, C_out/G, k..) (semantics 6.4)."""
    rank = spatial_rank(node, leading=3)
    if rank is None:
        return Lowering((None,))
    groups, c, m, *k = _shape(node, rank + 3)
    if groups is None:
        groups = _deduced(node, rank, c)
    return _ungrouped(_backprop(node, rank, Weights(product(groups, c), m, tuple(k), groups, "groups")))


def deformable_convolution(node: Node) -> Lowering:
    """DeformableConvolution: filters (C_out, C_in/group, kY, kX) (semantics 5.5, 6.6)."""
    rank = spatial_rank(node)
    if rank is None:
        return Lowering((None,))
    data = node.values["x"]
    if data.dtype is not None and not DTYPES[data.dtype].is_float:
        raise Unsupported(
            f"{node.operator} of {data.dtype} ({data}) is not computed: convert data, offsets and filters "
            f"to f32"
        )
    m, c, *k = _shape(node, rank + 2)
    weights = Weights(c, m, tuple(k), node.attributes["group"], "group")
    lowering = deformable(node, rank, weights, _auto_pad(node), _pads(node, rank), "deformable_group")
    if lowering.problem is None or node.attributes.get("bilinear_interpolation_pad"):
        return lowering
    return Lowering(lowering.shapes, lowering.problem, {"offset": _rounded_at_the_border(lowering)})


def _backprop(node: Node, rank: int, weights: Weights) -> Lowering:
    padding = per_axis(node, "output_padding", rank, 0)
    wanted = _output_shape(node, rank)
    return transposed(
        node, rank, weights, _auto_pad(node), _pads(node, rank), padding, wanted, rule=backprop_pads
    )


def _output_shape(node: Node, rank: int) -> tuple[Dim, ...] | None:
    """Spatial output extents from the third input; unknown ones where its content is."""
    value = node.values.get(SIZES)
    if value is None:
        return None
    given = value.shape if value.content is None else (len(value.content),)
    if given is not None and (len(given) != 1 or given[0] not in (rank, None)):
        raise ArgumentError(
            f"{value} must have shape ({rank},): give the extent of every spatial axis of "
            f"{node.values['x']}, without batch and channels"
        )
    return (None,) * rank if value.content is None else value.content


def _shape(node: Node, axes: int) -> tuple[Dim, ...]:
    return node.values["w"].shape or (None,) * axes


def _deduced(node: Node, rank: int, per_group: Dim) -> Dim:
    """Number of groups from the channels of the data, where the filters do not tell it."""
    channels = split(node.values["x"].shape, rank, node.layout)[1]
    if isinstance(channels, int) and isinstance(per_group, int) and per_group and channels % per_group == 0:
        return channels // per_group
    return None


def _ungrouped(lowering: Lowering) -> Lowering:
    """Fold the axis of groups into the next one: that is the order of a Problem's weights."""
    if lowering.problem is None:
        return lowering
    shape = lowering.problem.w_shape
    return Lowering(lowering.shapes, lowering.problem, {"w": lambda w: w.reshape(shape)})


def _auto_pad(node: Node) -> str:
    """The attribute auto_pad in the words of ONNX, in which the arithmetic is written."""
    word: str = node.attributes["auto_pad"]
    return "NOTSET" if word == "explicit" else word.upper()


def _pads(node: Node, rank: int) -> tuple[Pair, ...]:
    begins, ends = per_axis(node, "pads_begin", rank, 0), per_axis(node, "pads_end", rank, 0)
    return tuple(zip(begins, ends, strict=True))


def _rounded_at_the_border(lowering: Lowering) -> Callable[[Array], Array]:
    """What makes a deformable convolution without bilinear_interpolation_pad one with it.

    Without it a sample between the image and the padding takes the border's value at the high end and
    nothing at the low end.  With it, the position rounded down gives just that, and all other positions
    mean the same in both.
    """
    p = lowering.problem
    assert p is not None

    out, extents = exact(*p.out), exact(*p.i)

    def rounded(offset: Array) -> Array:
        given = offset.reshape(offset.shape[0], p.offset_groups, *p.k, 2, *out)
        result = given.copy()
        for axis, (columns, rows) in enumerate((((-1, 1, 1, 1), (-1, 1)), ((-1, 1, 1), (-1,)))):
            taps = np.arange(p.k[axis]) * p.d[axis] - p.pads[axis][0]
            base = taps.reshape(columns) + (np.arange(out[axis]) * p.s[axis]).reshape(rows)
            own = given[:, :, :, :, axis]
            at = own.astype(np.promote_types(own.dtype, np.float32)) + base
            last = extents[axis] - 1
            between = ((at > -1) & (at < 0)) | ((at > last) & (at < last + 1))
            result[:, :, :, :, axis] = np.where(between, np.floor(own), own)
        return result.reshape(offset.shape)

    return rounded


_DATA = (Input("data", "x", "T"), Input("filters", "w", "T"))
_BACKPROP = (*_DATA, Input("output_shape", SIZES, "T1", optional=True))
_DEFORMABLE = (_DATA[0], Input("offsets", "offset", "T"), _DATA[1])
_MASKED = (*_DEFORMABLE, Input("mask", "mask", "T", optional=True))

_CONVOLUTION: Mapping[str, Attribute] = {
    "strides": integers(least=1),
    "pads_begin": integers(least=0),
    "pads_end": integers(least=0),
    "dilations": integers(least=1),
    "auto_pad": choice("explicit", "same_upper", "same_lower", "valid", fold=str.lower),
}
_TRANSPOSED = {**_CONVOLUTION, "output_padding": integers()}
_GROUPS = {"group": integer(1, least=1), "deformable_group": integer(1, least=1)}
_DEFORM = {**_CONVOLUTION, **_GROUPS}
_PADDED = {**_DEFORM, "bilinear_interpolation_pad": boolean(False)}

_NUMERIC = {"T": tuple(DTYPES)}
_SIZED = {**_NUMERIC, "T1": tuple(name for name, row in DTYPES.items() if not row.is_float)}


_row = partial(Row, "openvino", semantics=("openvino",))

OPERATORS: dict[tuple[str, int], Row] = {
    (row.name, row.version): row
    for row in (
        _row("Convolution", 1, convolution, _DATA, _CONVOLUTION, _NUMERIC),
        _row("GroupConvolution", 1, group_convolution, _DATA, _CONVOLUTION, _NUMERIC),
        _row("ConvolutionBackpropData", 1, convolution_backprop, _BACKPROP, _TRANSPOSED, _SIZED),
        _row("GroupConvolutionBackpropData", 1, group_convolution_backprop, _BACKPROP, _TRANSPOSED, _SIZED),
        _row("DeformableConvolution", 1, deformable_convolution, _DEFORMABLE, _DEFORM, _NUMERIC),
        _row("DeformableConvolution", 8, deformable_convolution, _MASKED, _PADDED, _NUMERIC),
    )
}
"""Every operator by name and the number of the operator set that introduced it."""


def lookup(name: str, opset: int) -> int:
    """Version of an operator that holds in an operator set: the newest not above it.

    Raises
    ------
    Unsupported
        If there is none.
    """
    return newest("openvino", [v for n, v in OPERATORS if n == name], name, opset)


_FACTORIES = factories(OPERATORS.values())


def __getattr__(name: str) -> Factory:
    return named(_FACTORIES, name, __name__)


def __dir__() -> list[str]:
    return [*__all__, *_FACTORIES]
