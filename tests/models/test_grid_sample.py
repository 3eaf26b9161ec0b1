"""GridSample on a kernel, against a definition of its own: neighbours, one axis after another, in f64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from levels import LEVELS
from making import info, onnx_model, random
from onnx import TensorProto, helper
from own_models import at_level

import polyconv
from polyconv.models.session import InferenceSession

KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE}


def _model(x: np.ndarray, grid: np.ndarray, opset: int = 20, before: Any = (), **attributes: Any) -> onnx.ModelProto:
    source = "c" if before else "x"
    nodes = [*before, helper.make_node("GridSample", [source, "grid"], ["y"], "sampled", **attributes)]
    kind = KINDS[x.dtype]
    given = [info("x", x.shape, kind), info("grid", grid.shape, KINDS[grid.dtype])]
    return onnx_model(nodes, given, [info("y", None, kind)], opset=opset)


def _right(x: np.ndarray, grid: np.ndarray, mode: str = "linear", padding: str = "zeros", middles: int = 0
           ) -> np.ndarray:  # fmt: skip
    """ONNX's definition in f64: neighbours of a place, each with its share; what lies outside is 0, or the nearest."""
    n, channels, *extents = x.shape
    y = np.zeros((n, channels, *grid.shape[1:-1]))
    for image, *at in np.ndindex(*grid.shape[:-1]):
        places = []
        for g, extent in zip(grid[(image, *at)][::-1], extents, strict=True):
            place = (float(g) + 1) / 2 * (extent - 1) if middles else ((float(g) + 1) * extent - 1) / 2
            places.append(min(max(place, 0), extent - 1) if padding == "border" else place)
        if mode == "nearest":
            corners = [([int(np.rint(place)) for place in places], 1.0)]
        else:
            firsts = [int(np.floor(place)) for place in places]
            corners = [
                ([f + m for f, m in zip(firsts, more, strict=True)],
                 float(np.prod([1 - p + f if not m else p - f for p, f, m in zip(places, firsts, more, strict=True)])))
                for more in itertools.product((0, 1), repeat=len(places))
            ]  # fmt: skip
        for where, weight in corners:
            if all(0 <= w < e for w, e in zip(where, extents, strict=True)) and weight:
                y[(image, slice(None), *at)] += weight * x[(image, slice(None), *where)].astype(np.float64)
    return y


def _places(shape: tuple[int, ...], axes: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Within, outside, and on whole elements and edges."""
    drawn = np.random.default_rng(seed)
    grid = drawn.uniform(-1.4, 1.4, (*shape, axes))
    some = drawn.random(grid.shape) < 0.2
    grid[some] = drawn.choice([-1.0, 1.0, 0.0, -2.0, 2.0], int(some.sum()))
    return grid.astype(dtype)


def _close(x: np.ndarray, grid: np.ndarray, padding: str = "zeros", middles: int = 0, opset: int = 20) -> None:
    """A session interpolates right, in two runs.

    A place is rounded five times, by half an eps of up to E + 1 elements each, and moves by so much between neighbours.
    """
    mode = "linear" if opset >= 20 else "bilinear"
    made = InferenceSession(_model(x, grid, opset, mode=mode, padding_mode=padding, align_corners=middles))
    want = _right(x, grid, "linear", padding, middles)
    eps = max(np.finfo(x.dtype).eps, np.finfo(grid.dtype).eps)
    moved = 5 * sum(2 * e + 2 for e in x.shape[2:]) + 2 * 2 ** len(x.shape[2:])
    for _ in range(2):
        (y,) = made.run(None, {"x": x, "grid": grid})
        assert (y.shape, y.dtype) == (want.shape, x.dtype)
        assert np.abs(y - want).max(initial=0) <= moved * eps * 2 * np.abs(x).max(initial=0)
    assert {record.engine for record in made.nodes} == {"polyconv"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("middles", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("shape", [(2, 5, 6, 7), (1, 1, 1, 9), (1, 33, 8, 3)], ids=str)
def test_linear(shape: tuple[int, ...], padding: str, middles: int, level: str) -> None:
    with at_level(level):
        _close(random(*shape), _places((shape[0], 4, 5), 2), padding=padding, middles=middles)


@pytest.mark.parametrize("middles", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_nearest(padding: str, middles: int) -> None:
    """Places in f64, so that none is rounded to another side than in the definition."""
    x, grid = random(2, 5, 6, 7), _places((2, 9, 4), 2, np.float64)
    made = InferenceSession(_model(x, grid, mode="nearest", padding_mode=padding, align_corners=middles))
    want = _right(x, grid, "nearest", padding, middles)
    np.testing.assert_array_equal(made.run(None, {"x": x, "grid": grid})[0], want)


@pytest.mark.parametrize("opset", [16, 20])
@pytest.mark.parametrize("kinds", list(itertools.product([np.float32, np.float64], repeat=2)), ids=str)
def test_types_and_versions(kinds: tuple[Any, Any], opset: int) -> None:
    _close(random(2, 5, 6, 7).astype(kinds[0]), _places((2, 4, 5), 2, kinds[1]), opset=opset)


@pytest.mark.parametrize("shape", [(2, 3, 11), (2, 3, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("padding", ["zeros", "border"])
def test_one_and_three_axes(shape: tuple[int, ...], padding: str) -> None:
    axes = len(shape) - 2
    _close(random(*shape), _places((2, 3, 4, 2)[: 1 + axes], axes), padding=padding)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("channels", [1, 4, 16, 37, 64])
def test_many_places_and_channels_last(channels: int, threads: int) -> None:
    """What a convolution made with channels last is sampled in vectors of channels."""
    x, grid = random(2, channels, 12, 10), _places((2, 30, 7), 2)
    w = np.zeros((channels, channels, 1, 1), np.float32)
    w[np.arange(channels), np.arange(channels)] = 1
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    model = _model(x, grid, before=[conv], mode="linear")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    want = _right(x, grid)
    for layout in ("model", "channels_last"):
        made = InferenceSession(model, threads=threads, layout=layout)
        for _ in range(3):
            y = made.run(None, {"x": x, "grid": grid})[0]
            np.testing.assert_allclose(y, want, atol=60 * np.finfo(np.float32).eps * np.abs(x).max(), rtol=0)


def test_what_is_no_place_touches_nothing() -> None:
    """Whatever comes with a run, nothing outside is read; infinite elements outside have no share."""
    x = random(1, 3, 4, 5)
    x[..., -1] = np.inf
    grid = np.array([[np.nan, 0], [np.inf, 0], [-np.inf, 0], [1e30, -1e30], [-1, 0], [0, 0]], np.float32)[None, None]
    for padding in ("zeros", "border"):
        made = InferenceSession(_model(x, grid, padding_mode=padding))
        y = made.run(None, {"x": x, "grid": grid})[0][0, :, 0]
        if padding == "zeros":
            assert (y[:, :4] == 0).all()
            np.testing.assert_allclose(y[:, 4], 0.25 * (x[0, :, 1, 0] + x[0, :, 2, 0]), rtol=1e-6)
        else:
            np.testing.assert_allclose(y[:, 2], 0.5 * (x[0, :, 1, 0] + x[0, :, 2, 0]), rtol=1e-6)
            assert np.isposinf(y[:, 1]).all()
        assert np.isfinite(y[:, 4:]).all()


@pytest.mark.parametrize(
    ("x", "grid", "said"),
    [((2, 3, 4, 5), (1, 6, 7, 2), "do not fit"), ((2, 3, 4, 5), (2, 6, 7, 3), "do not fit"),
     ((2, 3, 0, 5), (2, 6, 7, 2), "nothing to sample")],
    ids=str,
)  # fmt: skip
def test_places_that_do_not_fit(x: Any, grid: Any, said: str) -> None:
    nodes = [helper.make_node("GridSample", ["x", "grid"], ["y"], "sampled")]
    open_ = [info(name, [None] * 4) for name in ("x", "grid")]
    made = InferenceSession(onnx_model(nodes, open_, [info("y")], opset=20))
    with pytest.raises(polyconv.Error, match=f"sampled.*{said}"):
        made.run(None, {"x": random(*x), "grid": random(*grid)})


@pytest.mark.parametrize("shape", [(0, 6, 7), (1, 0, 7)], ids=str)
def test_no_places(shape: tuple[int, ...]) -> None:
    x, grid = random(shape[0], 3, 4, 5), np.zeros((*shape, 2), np.float32)
    made = InferenceSession(_model(x, grid))
    assert made.run(None, {"x": x, "grid": grid})[0].shape == (shape[0], 3, *shape[1:])


@pytest.mark.parametrize("attributes", [{"mode": "cubic"}, {"padding_mode": "reflection"}], ids=str)
def test_what_is_left_to_others(attributes: dict[str, Any]) -> None:
    x, grid = random(1, 3, 4, 5), _places((1, 6, 7), 2)
    made = InferenceSession(_model(x, grid, **attributes))
    assert "polyconv" not in {record.engine for record in made.nodes}
    assert made.run(None, {"x": x, "grid": grid})[0].shape == (1, 3, 6, 7)
