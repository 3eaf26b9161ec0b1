"""RoiAlign against its definition in float64 and against onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from levels import LEVELS
from making import info, onnx_model, onnxruntime_run, random
from onnx import TensorProto, helper
from own_models import at_level

from polyconv.errors import ArgumentError
from polyconv.models import InferenceSession

NAMES = "x", "boxes", "images"
EPS = float(np.finfo(np.float32).eps)


def _model(shape: tuple[int, ...], opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("RoiAlign", NAMES, ["y"], "regions", **attributes)
    inputs = [info("x", shape), info("boxes", ["r", 4]), info("images", ["r"], TensorProto.INT64)]
    return onnx_model([node], inputs, [info("y")], {}, opset=opset)


def _feeds(shape: tuple[int, ...], count: int = 9, seed: int = 0, reach: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    low = rng.random((count, 2)) * (shape[3], shape[2]) * reach
    boxes = np.concatenate([low, low + rng.random((count, 2)) * (shape[3], shape[2]) * reach / 2], 1)
    return {"x": random(*shape), "boxes": boxes.astype(np.float32), "images": rng.integers(0, shape[0], count)}


def _wanted(x: np.ndarray, boxes: np.ndarray, images: np.ndarray, *, half: bool = True, height: int = 1, width: int = 1,
            samples: int = 0, scale: float = 1.0) -> np.ndarray:  # fmt: skip
    """The operator as its specification has it; places of samples in f32, as engines have them."""
    h, w = x.shape[2:]
    made = np.zeros((len(boxes), x.shape[1], height, width))
    shift, one = np.float32(0.5 if half else 0), np.float32(1)
    for r, (box, image) in enumerate(zip(boxes * np.float32(scale) - shift, images, strict=True)):
        size = [box[2] - box[0], box[3] - box[1]]
        size = size if half else [max(s, one) for s in size]
        steps = size[0] / np.float32(width), size[1] / np.float32(height)
        grid = [samples or math.ceil(step) for step in steps]
        count = max(grid[0] * grid[1], 1)
        for a in range(height):
            for b in range(width):
                for i in range(grid[1]):
                    y = box[1] + np.float32(a) * steps[1] + np.float32(i + 0.5) * steps[1] / np.float32(grid[1])
                    for j in range(grid[0]):
                        at = box[0] + np.float32(b) * steps[0] + np.float32(j + 0.5) * steps[0] / np.float32(grid[0])
                        if not (-1 <= y <= h and -1 <= at <= w):
                            continue
                        row, column = (min(max(v, 0), e - 1) for v, e in ((y, h), (at, w)))
                        low, left = int(row), int(column)
                        for r0, p in ((low, 1 - (row - low)), (min(low + 1, h - 1), row - low)):
                            for c0, q in ((left, 1 - (column - left)), (min(left + 1, w - 1), column - left)):
                                made[r, :, a, b] += float(p) * float(q) * x[image, :, r0, c0] / count
    return made


def _check(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], level: str | None = None, *, with_host: bool = True,
           **told: Any) -> None:  # fmt: skip
    with at_level(level):
        session = InferenceSession(model.SerializeToString(), threads=1)
        for _ in range(3):
            (ours,) = session.run(None, dict(feeds))
    assert {node.engine for node in session.nodes} == {"polyconv"}
    wanted = _wanted(*(feeds[name] for name in NAMES), **told)
    assert ours.shape == wanted.shape
    # weights add up to one at most: so many roundings of them, and of a sum of as many terms as there are pixels
    bound = (feeds["x"][0, 0].size + 16) * EPS * np.abs(feeds["x"]).max()
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=bound)
    if with_host:
        np.testing.assert_allclose(ours, onnxruntime_run(model, dict(feeds))[0], rtol=0, atol=2 * bound)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [1, 3, 16, 17, 67, 130])
def test_any_number_of_channels(channels: int, level: str | None) -> None:
    shape = (2, channels, 9, 11)
    model = _model(shape, output_height=3, output_width=2, sampling_ratio=2)
    _check(model, _feeds(shape), level, height=3, width=2, samples=2)


@pytest.mark.parametrize("samples", [0, 1, 3])
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_samples_and_coordinates(samples: int, mode: str, scale: float) -> None:
    shape = (2, 5, 12, 10)
    told: dict[str, Any] = {"height": 4, "width": 3, "samples": samples, "scale": scale}
    model = _model(shape, output_height=4, output_width=3, sampling_ratio=samples, spatial_scale=scale,
                   coordinate_transformation_mode=mode)  # fmt: skip
    _check(model, _feeds(shape, reach=1 / scale), half=mode == "half_pixel", **told)


def test_older_operators_take_whole_pixels() -> None:
    shape = (1, 5, 12, 10)
    _check(_model(shape, 10, output_height=2, output_width=2), _feeds(shape), half=False, height=2, width=2)


@pytest.mark.parametrize("shift", [-30.0, -4.0, 4.0, 30.0])
def test_regions_that_are_partly_or_wholly_outside(shift: float) -> None:
    shape = (1, 4, 8, 9)
    feeds = _feeds(shape)
    feeds["boxes"] += np.float32(shift)
    _check(_model(shape, output_height=3, output_width=3, sampling_ratio=2), feeds, height=3, width=3, samples=2)


def test_regions_without_an_extent_and_turned_ones() -> None:
    shape = (1, 4, 8, 9)
    boxes = np.array([[2, 2, 2, 2], [5, 5, 1, 1], [3, 1, 3, 6]], np.float32)
    feeds = {"x": random(*shape), "boxes": boxes, "images": np.zeros(3, np.int64)}
    for samples in (0, 2):
        told = {"height": 2, "width": 2, "samples": samples}
        _check(_model(shape, output_height=2, output_width=2, sampling_ratio=samples), feeds, with_host=False, **told)


def test_no_regions() -> None:
    shape = (1, 4, 8, 9)
    model = _model(shape, output_height=3, output_width=2)
    feeds = {"x": random(*shape), "boxes": np.zeros((0, 4), np.float32), "images": np.zeros(0, np.int64)}
    (found,) = InferenceSession(model.SerializeToString()).run(None, feeds)
    assert (found.shape, found.dtype) == ((0, 4, 3, 2), np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_behind_a_convolution_with_channels_last(threads: int) -> None:
    """Pixels are read as the convolution leaves them; bits do not depend on threads."""
    w, feeds = random(32, 8, 3, 3), _feeds((1, 8, 20, 24), 40)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("RoiAlign", ["c", *NAMES[1:]], ["y"], output_height=7, output_width=7, sampling_ratio=2),
    ]
    inputs = [info("x", (1, 8, 20, 24)), info("boxes", ["r", 4]), info("images", ["r"], TensorProto.INT64)]
    model = onnx_model(nodes, inputs, [info("y")], {"w": w})
    (ours,) = InferenceSession(model.SerializeToString(), threads=threads).run(None, feeds)
    (theirs,) = onnxruntime_run(model, feeds)
    sums = np.abs(feeds["x"]).max() * np.abs(w).sum((1, 2, 3)).max()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2 * (20 * 24 + 72 + 16) * EPS * sums)


HOSTILE = {
    "an image that is not there": {"images": np.array([0, 1, 2, 0, 0, 0, 0, 0, 0])},
    "an image before the first": {"images": np.array([0, -1, 0, 0, 0, 0, 0, 0, 0])},
    "fewer images than regions": {"images": np.zeros(8, np.int64)},
    "far too large a region": {"boxes": np.full((9, 4), 1e30, np.float32) * [0, 0, 1, 1]},
}


@pytest.mark.parametrize("which", HOSTILE)
def test_what_does_not_fit_is_an_error_that_names_the_node(which: str) -> None:
    shape = (2, 4, 8, 9)
    session = InferenceSession(_model(shape, output_height=2, output_width=2).SerializeToString())
    feeds = {name: a.astype(_feeds(shape)[name].dtype) for name, a in {**_feeds(shape), **HOSTILE[which]}.items()}
    with pytest.raises(ArgumentError, match="regions"):
        session.run(None, feeds)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("samples", [0, 2])
def test_corners_that_are_no_numbers_do_no_harm(number: float, samples: int) -> None:
    shape = (1, 4, 8, 9)
    feeds = _feeds(shape)
    feeds["boxes"][2, 1] = number
    model = _model(shape, output_height=2, output_width=2, sampling_ratio=samples)
    session = InferenceSession(model.SerializeToString())
    if number == -np.inf and not samples:  # as many samples as there are pixels
        with pytest.raises(ArgumentError, match="regions"):
            session.run(None, feeds)
        return
    (found,) = session.run(None, feeds)
    others = np.arange(9) != 2
    assert np.isfinite(found[others]).all()
