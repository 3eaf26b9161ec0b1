"""Resize and its old form Upsample: attributes and extents to the taps of each axis.

Turns what ONNX says of an axis into places between its elements, and these into neighbours with weights.  The one
idea: interpolation goes axis by axis, so one axis is all that must be understood.  Places are computed in float64, in
the order in which the specification writes them, as a nearest neighbour may depend on their last bit.
It must not know kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.operators.finish import Finish
from polyconv.operators.job import Array, Conditions, Operation, Own, Plan, Planning, constant
from polyconv.operators.lying import Lies
from polyconv.operators.moving import carrier
from polyconv.operators.numbers import COMES_WITH_THE_RUN, with_numbers
from polyconv.operators.picking import sampled
from polyconv.operators.taps import Floats, Taps, picked, weighted, whole
from polyconv.operators.types import TYPES, dtype_name, untaken

__all__ = ["resizing"]


@dataclass(frozen=True, slots=True)
class _Way:
    """How a tensor is resized: attributes with the names of ONNX's Resize, and inputs that are constants.

    Parameters
    ----------
    mode, coordinates, nearest : str
        ``mode``, ``coordinate_transformation_mode`` and ``nearest_mode``.
    policy : str
        ``keep_aspect_ratio_policy``.
    cubic : float
        ``cubic_coeff_a``.
    extrapolation : float
    antialias, exclude_outside : bool
    axes : tuple of int or None
        That regions, scales and sizes are of; None for all.
    region : tuple of float
        Begins, then ends, relative to the extents; empty where there is none.
    scales : tuple of float
        In float32; empty where sizes are given.
    sizes : tuple of int
    """

    mode: str
    coordinates: str
    nearest: str
    policy: str = "stretch"
    cubic: float = -0.75
    extrapolation: float = 0.0
    antialias: bool = False
    exclude_outside: bool = False
    axes: tuple[int, ...] | None = None
    region: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: inputs, outputs, the scale, the extent that the scale asks for, and the region."""

    inp: int
    out: int
    scale: float
    width: float
    region: tuple[float, float]


def resizing(operation: Operation) -> Own | str:
    """An operation as taps of each axis, or why not."""
    return with_numbers(operation, (1, 2, 3), _read)


def _read(operation: Operation) -> Own | str:
    way = (_upsampled if operation.op == "Upsample" else _resized)(operation)
    if isinstance(way, str):
        return way
    x = operation.inputs[0] if operation.inputs else None
    if x is None or operation.outputs != 1:
        return "it has no input"
    is_nearest = way.mode == "nearest"
    known = carrier(x.dtype) if is_nearest else dtype_name(x.dtype, has_halves=operation.on_gpu)
    if known is None or (not is_nearest and np.dtype(x.dtype).kind != "f"):
        return untaken(x.dtype) if not x.dtype else f"{x.dtype} is not interpolated here"
    finished = None if is_nearest or operation.on_gpu else partial(partial, _planned, way)
    return Own((0,), (x.dtype,), partial(_planned, way, None), gaps=True, finished=finished)


def _planned(way: _Way, finish: Finish | None, given: Sequence[Lies], c: Conditions) -> Plan:
    planning = Planning(given, c)
    axes = _axes(way, given[0].shape)
    dtype = given[0].dtype if finish is None else TYPES[finish.expression.made].numpy
    y = planning.result([axis.out for axis in axes], dtype)
    if not c.dry:
        sampled(planning, 0, y, [_taps(way, axis) for axis in axes], way.extrapolation, finish)
    return planning.plan()


# -- attributes and inputs ----------------------------------------------------------------------------


def _upsampled(operation: Operation) -> _Way | str:
    """Upsample and the first Resize have scales alone, which count from the first element."""
    mode = operation.attributes.get("mode", "nearest")
    scales = operation.attributes.get("scales")
    if set(operation.attributes).difference(("mode", "scales")) or mode not in ("nearest", "linear"):
        return "it has attributes that are not done here"
    if scales is None:
        scales = _numbers(operation, 1)
    if isinstance(scales, str):
        return scales
    return _Way(mode, "asymmetric", "floor", scales=tuple(float(np.float32(v)) for v in scales))


_COORDINATES: Mapping[str, Callable[[_Axis, Floats], Floats]] = {
    "half_pixel": lambda axis, o: (o + 0.5) / axis.scale - 0.5,
    "half_pixel_symmetric": lambda axis, o: (
        axis.inp / 2 * (1 - axis.out / axis.width) + (o + 0.5) / axis.scale - 0.5
    ),
    "pytorch_half_pixel": lambda axis, o: (o + 0.5) / axis.scale - 0.5 if axis.out > 1 else np.zeros(len(o)),
    "align_corners": lambda axis, o: o * (axis.inp - 1) / (axis.width - 1) if axis.width != 1 else np.zeros(len(o)),
    "asymmetric": lambda axis, o: o / axis.scale,
    "tf_half_pixel_for_nn": lambda axis, o: (o + 0.5) / axis.scale,
    "tf_crop_and_resize": lambda axis, o: _of_region(axis, o),
}
"""``coordinate_transformation_mode`` -> places of outputs between the inputs of an axis."""


def _of_region(axis: _Axis, outputs: Floats) -> Floats:
    start, end = axis.region
    if axis.out == 1:
        return np.full(len(outputs), (end - start) * (axis.inp - 1) / 2 + start * (axis.inp - 1))
    return outputs * (end - start) * (axis.inp - 1) / (axis.out - 1) + start * (axis.inp - 1)


_ROUNDED: Mapping[str, Callable[[Floats], Floats]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
"""``nearest_mode`` -> the element that is nearest to a place."""

_POLICIES = ("stretch", "not_larger", "not_smaller")
_ATTRIBUTES = (
    "mode", "coordinate_transformation_mode", "nearest_mode", "keep_aspect_ratio_policy", "cubic_coeff_a",
    "extrapolation_value", "antialias", "exclude_outside", "axes",
)  # fmt: skip


def _resized(operation: Operation) -> _Way | str:
    if operation.version < 11:
        return _upsampled(operation)
    a = operation.attributes
    mode, nearest = a.get("mode", "nearest"), a.get("nearest_mode", "round_prefer_floor")
    coordinates, policy = a.get("coordinate_transformation_mode", "half_pixel"), a.get("keep_aspect_ratio_policy")
    known = mode in ("nearest", "linear", "cubic") and coordinates in _COORDINATES and nearest in _ROUNDED
    if set(a).difference(_ATTRIBUTES) or not known or (policy or "stretch") not in _POLICIES:
        return "it has attributes that are not done here"
    if mode == "nearest" and a.get("antialias", 0):
        return "the nearest element cannot be smoothed"
    values = [_numbers(operation, at) if _is_given(operation, at) else () for at in (1, 2, 3)]
    if coordinates != "tf_crop_and_resize":
        values[0] = ()
    region, scales, sizes = values
    for each in (region, scales, sizes):
        if isinstance(each, str):
            return each
    if bool(len(scales)) == bool(len(sizes)):
        return "it has scales and sizes, or neither"
    axes = a.get("axes")
    return _Way(
        mode, coordinates, nearest, policy or "stretch", float(np.float32(a.get("cubic_coeff_a", -0.75))),
        float(np.float32(a.get("extrapolation_value", 0.0))), bool(a.get("antialias", 0)),
        bool(a.get("exclude_outside", 0)), None if axes is None else tuple(axes), tuple(map(float, region)),
        tuple(float(np.float32(v)) for v in scales), tuple(int(v) for v in sizes),
    )  # fmt: skip


def _is_given(operation: Operation, at: int) -> bool:
    given = operation.inputs[at] if at < len(operation.inputs) else None
    return given is not None and given.dims != (0,)


def _numbers(operation: Operation, at: int) -> Sequence[Any] | str:
    """Numbers of an input that is a constant."""
    given = constant(operation.inputs[at]) if at < len(operation.inputs) else None
    if given is None:
        return COMES_WITH_THE_RUN
    return [v.item() for v in given.reshape(-1)] if given.dtype.kind in "fiu" else "its scales are no numbers"


# -- extents ------------------------------------------------------------------------------------------


def _axes(way: _Way, shape: tuple[int, ...]) -> list[_Axis]:
    """All axes of a tensor.

    Raises
    ------
    ArgumentError
        If numbers are not those of its axes, or an extent is negative.
    """
    rank = len(shape)
    chosen = tuple(range(rank)) if way.axes is None else way.axes
    given = "sizes" if way.sizes else "scales"
    if len(way.sizes or way.scales) != len(chosen) or any(not -rank <= a < rank for a in chosen):
        raise ArgumentError(
            f"{given}={list(way.sizes or way.scales)} must be one number for each of the axes {list(chosen)} of the "
            f"input of shape {shape}"
        )
    region = way.region or (*[0.0] * len(chosen), *[1.0] * len(chosen))
    if len(region) != 2 * len(chosen):
        raise ArgumentError(f"roi={list(way.region)} must be a begin and an end for each of {len(chosen)} axes")
    found = [_Axis(extent, extent, 1.0, float(extent), (0.0, 1.0)) for extent in shape]
    scales = _scales(way, [shape[a] for a in chosen])
    for at, (a, (out, scale)) in enumerate(zip(chosen, scales, strict=True)):
        extent = shape[a]
        if out < 0 or not scale > 0 or not math.isfinite(scale) or (extent == 0 and out):
            raise ArgumentError(f"an extent of {extent} cannot be resized to {out}, by a scale of {scale}")
        found[a % rank] = _Axis(extent, out, scale, scale * extent, (region[at], region[len(chosen) + at]))
    return found


def _scales(way: _Way, extents: Sequence[int]) -> list[tuple[int, float]]:
    """The new extent and the scale of each axis; extents of scales are those of ONNX's own inference, in float32."""
    if way.scales:
        wide = [np.float32(extent) * np.float32(s) for extent, s in zip(extents, way.scales, strict=True)]
        return [(math.floor(w) if math.isfinite(w) else -1, s) for w, s in zip(wide, way.scales, strict=True)]
    each = [size / extent if extent else 1.0 for size, extent in zip(way.sizes, extents, strict=True)]
    if way.policy == "stretch":
        return list(zip(way.sizes, each, strict=True))
    scale = (min if way.policy == "not_larger" else max)(each)
    return [(int(scale * extent + 0.5), scale) for extent in extents]


# -- taps ---------------------------------------------------------------------------------------------


def _taps(way: _Way, axis: _Axis) -> Taps:
    """Taps of an axis."""
    in_region = way.coordinates == "tf_crop_and_resize" and axis.region != (0.0, 1.0)
    if axis.inp == axis.out and math.isclose(axis.scale, 1.0) and not in_region:
        return whole(axis.inp)
    if 0 in (axis.inp, axis.out):
        return picked(np.zeros(axis.out, np.int64), axis.inp)
    places = _COORDINATES[way.coordinates](axis, np.arange(axis.out, dtype=np.float64))
    outside = np.zeros(axis.out, bool)
    if way.coordinates == "tf_crop_and_resize":
        outside = (places < 0) | (places > axis.inp - 1)
    if way.mode == "nearest":
        nearest = np.clip(_ROUNDED[way.nearest](places), 0, axis.inp - 1).astype(np.int64)
        return picked(np.where(outside, -1, nearest), axis.inp)
    near = np.round(places)  # what is an integer but for rounding is one: its neighbours have no share
    places = np.where(np.abs(places - near) <= 4 * np.finfo(float).eps * (np.abs(places) + 1), near, places)
    stretch = min(axis.scale, 1.0) if way.antialias else 1.0
    positions, weights = _neighbours(way, places, stretch)
    if way.exclude_outside:
        weights = np.where((positions < 0) | (positions >= axis.inp), 0.0, weights)
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return weighted(positions, weights, axis.inp, outside)


def _neighbours(way: _Way, places: Floats, stretch: float) -> tuple[Array, Floats]:
    """Positions round some places, and their weights; the filter is wider by 1 / ``stretch``."""
    reach = 1 if way.mode == "linear" else 2
    first = math.floor(-reach / stretch) + 1
    steps = np.arange(first, 2 - first)
    below = np.ceil(places) - 1  # so that a share is in (0, 1]
    away = (steps - (places - below)[:, None]) * stretch
    weights = _linear(away) if way.mode == "linear" else _cubic(away, way.cubic)
    if stretch != 1.0:
        weights = weights / weights.sum(1, keepdims=True)
    return (below[:, None] + steps).astype(np.int64), weights


def _linear(away: Floats) -> Floats:
    return np.clip(1.0 - np.abs(away), 0.0, 1.0)


def _cubic(away: Floats, a: float) -> Floats:
    """Keys' kernel."""
    d = np.abs(away)
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, inner, np.where(d < 2, outer, 0.0))
