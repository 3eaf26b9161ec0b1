"""Operators whose results are what is found: places of what is not 0, elements at places, boxes that stay.

As detectors have them behind their networks.  The one idea: they are lines of NumPy, as their results have other
extents in every run, and none of them computes much; what boxes take out has a kernel.  It must not know graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError
from polyconv.operators.counting import adds_up
from polyconv.operators.job import Array, Known, Operation
from polyconv.operators.suppressing import staying
from polyconv.operators.views import Dims, View, maker

__all__ = ["finding"]


def finding(operation: Operation) -> View | str:
    """An operation as lines of NumPy, or why not."""
    if operation.on_gpu:
        return "what is found lies in the CPU's memory"
    make = maker(_TABLE, operation)
    if isinstance(make, str):
        return make
    if not operation.inputs or any(x is not None and not x.dtype for x in operation.inputs):
        return "the model does not say the types of its inputs"
    return make(operation, operation.inputs)


def _found(look: Callable[[Sequence[Array | None]], Array], dtype: str, dims: Dims | None) -> View:
    return View(lambda inputs: [look(inputs)], (dtype,), True, dims)


def _not_zero(operation: Operation, inputs: Sequence[Known | None]) -> View | str:
    """NonZero: places by axis."""
    x = inputs[0]
    if x is None or not x.dims or np.dtype(x.dtype).kind not in "biuf":
        return "the model does not say the rank of its input, or it has none"

    def look(given: Sequence[Array | None]) -> Array:
        assert given[0] is not None
        return np.array(np.nonzero(given[0]), np.int64)

    return _found(look, "int64", (len(x.dims), None))


def _places(places: Array, shape: Sequence[int]) -> tuple[Array, ...]:
    """Places as NumPy takes them, one array an axis; it sees that they lie inside."""
    count = places.shape[-1] if places.ndim else 0
    if not 0 < count <= len(shape):
        raise ArgumentError(f"places of shape {places.shape} name no axes of the input of shape {tuple(shape)}")
    return tuple(places[..., axis] for axis in range(count))


def _gathered(operation: Operation, inputs: Sequence[Known | None]) -> View | str:
    """GatherND: elements, or what lies along the axes that places do not name."""
    x, places = inputs if len(inputs) == 2 else (None, None)
    if x is None or places is None or places.dtype != "int64" or operation.attributes.get("batch_dims", 0):
        return "its places are of another type, or each image has its own"
    rank = None if x.dims is None or not places.dims or places.dims[-1] is None else (
        len(places.dims) - 1 + len(x.dims) - places.dims[-1]
    )  # fmt: skip

    def look(given: Sequence[Array | None]) -> Array:
        x, places = given
        assert x is not None and places is not None
        try:
            if places.ndim and places.shape[-1] == 1 and x.ndim:  # which NumPy takes faster
                return x.take(places[..., 0], 0)
            return np.asarray(x[_places(places, x.shape)])
        except IndexError as error:
            raise ArgumentError(f"places of the input of shape {x.shape}: {error}") from None

    return _found(look, x.dtype, None if rank is None else (None,) * rank)


def _written(operation: Operation, inputs: Sequence[Known | None]) -> View | str:
    """ScatterND: of places that are named twice any may be the last."""
    x, places, updates = inputs if len(inputs) == 3 else (None, None, None)
    if x is None or places is None or updates is None or x.dtype != updates.dtype or places.dtype != "int64":
        return "its inputs are not of the types that they should be"
    if adds_up(operation):
        return "it sums"

    def look(given: Sequence[Array | None]) -> Array:
        x, places, updates = given
        assert x is not None and places is not None and updates is not None
        made, at = x.copy(), _places(places, x.shape)
        wanted = (*places.shape[:-1], *x.shape[len(at) :])
        if updates.shape != wanted:
            raise ArgumentError(f"updates of shape {updates.shape} do not fit the places, which need {wanted}")
        try:
            made[at] = updates
        except IndexError as error:
            raise ArgumentError(f"places of the input of shape {x.shape}: {error}") from None
        return made

    return _found(look, x.dtype, x.dims)


def _boxes(operation: Operation, inputs: Sequence[Known | None]) -> View | str:
    """NonMaxSuppression: (image, class, box) of the boxes of each class that stay, the best one first.

    Of boxes of one score that comes first which has the lower number, as in ONNX Runtime.
    """
    given = [x for x in inputs[:2] if x is not None]
    if len(given) != 2 or any(x.dtype != "float32" for x in given):
        return "boxes and scores are not of f32"
    is_centred = operation.attributes.get("center_point_box", 0) == 1

    def look(given: Sequence[Array | None]) -> Array:
        boxes, scores = given[:2]
        assert boxes is not None and scores is not None
        if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape != (scores.shape[0], scores.shape[2], 4):
            raise ArgumentError(f"boxes of shape {boxes.shape} do not fit scores of shape {scores.shape}")
        most, overlap, least = (_number(given, at) for at in (2, 3, 4))
        if overlap is not None and not 0 <= overlap <= 1:
            raise ArgumentError(f"iou_threshold={overlap} lies outside of 0 to 1")
        if most is None or most < 1:
            return np.zeros((0, 3), np.int64)
        found = [np.zeros((0, 3), np.int64)]
        for image, (of_image, of_classes) in enumerate(zip(boxes, scores, strict=True)):
            ends = _ends(of_image, is_centred)
            for number, of_class in enumerate(of_classes):
                kept = _of_class(ends, of_class, least, overlap or 0.0, int(most))
                found.append(np.stack([np.full_like(kept, image), np.full_like(kept, number), kept], axis=1))
        return np.concatenate(found)

    return _found(look, "int64", (None, 3))


def _number(given: Sequence[Array | None], at: int) -> Any:
    """The one number of an input; None where it is left out."""
    array = given[at] if at < len(given) else None
    return None if array is None else array.item()


def _ends(boxes: Array, is_centred: bool) -> Array:
    """Lower ends along both axes, then upper ends, of (two corners) or (centre, extents)."""
    columns = boxes.T
    if is_centred:
        half = columns[2:] / np.float32(2)
        return np.concatenate([columns[:2] - half, columns[:2] + half])
    return np.concatenate([np.minimum(columns[:2], columns[2:]), np.maximum(columns[:2], columns[2:])])


def _of_class(ends: Array, scores: Array, least: float | None, overlap: float, most: int) -> Array:
    """Numbers of the boxes of a class that stay."""
    candidates = np.arange(len(scores)) if least is None else np.flatnonzero(scores > np.float32(least))
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    return np.asarray(order[staying(ends[:, order], overlap, most)], np.int64) if len(order) else order


_TABLE: Mapping[str, tuple[Sequence[str], Callable[[Operation, Sequence[Known | None]], View | str]]] = {
    "GatherND": (("batch_dims",), _gathered),
    "NonMaxSuppression": (("center_point_box",), _boxes),
    "NonZero": ((), _not_zero),
    "ScatterND": (("reduction",), _written),
}
"""Operator -> the attributes that it may have, and what makes its lines."""
