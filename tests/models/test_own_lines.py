"""Windows, sums and norms along axes: pooling, reductions, softmax, normalisations, against float64 and onnxruntime.

What adds up numbers is within a bound for so many terms; windows of largest numbers have NumPy's bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from levels import BOTH_ENDS, LEVELS
from making import engines, info, onnx_model, onnxruntime_run, random, session
from own_models import FLOATS, model_of, near, node, one, run, same_bits

from polyconv.errors import Error

WINDOWS = [
    (k, s, p, ceil)
    for k, s, p in itertools.product([(2, 2), (3, 3), (1, 3), (5, 2)], [(1, 1), (2, 2), (3, 3), (1, 2)],
                                     [(0, 0, 0, 0), (1, 0, 0, 1)])
    for ceil in (0, 1) if k[0] > p[0] and k[1] > p[3]
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
def test_windows_over_planes(level: str | None) -> None:
    x = random(2, 3, 11, 37)
    wide, tall = random(1, 2, 6, 150), random(1, 2, 37, 9)
    for (k, s, p, ceil), z in itertools.product(WINDOWS, (x, wide, tall)):
        attributes = {"kernel_shape": k, "strides": s, "pads": p, "ceil_mode": ceil}
        nodes = [node("MaxPool", ["x0"], ["y"], **attributes)]
        if not ceil:  # where engines differ over what a window beyond the pads divides by
            nodes += [node("AveragePool", ["x0"], [f"a{c}"], count_include_pad=c, **attributes) for c in (0, 1)]
        model = model_of(nodes, [z], [n.output[0] for n in nodes])
        y, *means = zip(run(model, [z], level=level), onnxruntime_run(model, {"x0": z}), strict=True)
        same_bits(*y)
        for ours, theirs in means:  # k eps sum|x|, of either engine
            np.testing.assert_allclose(ours, theirs, atol=2 * math.prod(k) * np.finfo(np.float32).eps * np.abs(z).max())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_one_window_over_all_of_an_image(dtype: Any, level: str | None) -> None:
    """However large it is."""
    for shape, more in (((2, 3, 27, 19), {}), ((1, 40, 30), {"strides": [3]}), ((2, 5, 4, 3, 20), {"ceil_mode": 1}),
                        ((1, 3, 20, 20), {"auto_pad": "VALID", "dilations": [1, 1]})):  # fmt: skip
        x = random(*shape, dtype=dtype)
        axes, k = tuple(range(2, len(shape))), list(shape[2:])
        largest = one("MaxPool", x, level=level, opset=12, kernel_shape=k, **more)
        same_bits(largest, x.max(axis=axes, keepdims=True))
        given = {name: value for name, value in more.items() if name != "dilations"}
        mean = one("AveragePool", x, level=level, opset=11, kernel_shape=k, **given)
        size = np.abs(x.astype(np.float64)).mean(axis=axes, keepdims=True)
        right = x.astype(np.float64).mean(axis=axes, keepdims=True)
        assert (np.abs(mean - right) <= (math.prod(k) + 2) * np.finfo(dtype).eps * size).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_UPPER"}, {"pads": [1, 1, 1, 1]}])
def test_a_window_as_large_as_the_image_that_meets_padding(attributes: dict[str, Any], level: str | None) -> None:
    x = random(1, 2, 5, 5)
    model = model_of([node("MaxPool", ["x0"], ["y"], kernel_shape=[5, 5], **attributes)], [x])
    found = run(model, [x], level=level)[0]
    assert found.shape[2] > 1
    same_bits(found, onnxruntime_run(model, {"x0": x})[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int8])
def test_largest_of_windows_of_any_rank(dtype: Any, level: str | None) -> None:
    for shape, attributes in (
        ((2, 3, 50), {"kernel_shape": [3], "strides": [2]}),
        ((2, 3, 9, 8, 20), {"kernel_shape": [3, 2, 3], "strides": [2, 1, 2], "pads": [1] * 6}),
        ((1, 2, 20, 90), {"kernel_shape": [3, 3], "dilations": [2, 3], "strides": [1, 2]}),
        ((1, 2, 20, 90), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((1, 1, 9, 2500), {"kernel_shape": [3, 4], "dilations": [1, 3], "strides": [1, 2]}),  # few lines at a time
        ((1, 1, 12, 9000), {"kernel_shape": [2, 2], "strides": [1, 1]}),
    ):
        x = (random(*shape) * 50).astype(dtype)
        model = model_of([node("MaxPool", ["x0"], ["y"], **attributes)], [x])
        same_bits(run(model, [x], level=level)[0], onnxruntime_run(model, {"x0": x})[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions(dtype: Any, level: str | None) -> None:
    for shape in ((2, 3, 11, 37), (1, 70, 9, 40), (3, 1, 1, 1)):
        x = random(*shape, dtype=dtype)
        for axes, keep in itertools.product(([1], [2, 3], [3], [0], [1, 2], [-1]), (0, 1)):
            some = tuple(axes)
            count = math.prod(shape[a] for a in axes)
            size = np.abs(x.astype(np.float64)).sum(axis=some, keepdims=bool(keep))
            mean = one("ReduceMean", x, level=level, axes=axes, keepdims=keep)
            right = x.astype(np.float64).mean(axis=some, keepdims=bool(keep))
            assert (np.abs(mean - right) <= (count + 2) * np.finfo(dtype).eps * size / count).all()
            same_bits(one("ReduceMax", x, level=level, axes=axes, keepdims=keep), x.max(axis=some, keepdims=bool(keep)))
            squares = (x.astype(np.float64) ** 2).sum(axis=some, keepdims=bool(keep))
            for op, exact in (("ReduceL1", size), ("ReduceSumSquare", squares), ("ReduceL2", np.sqrt(squares))):
                found = one(op, x, level=level, axes=axes, keepdims=keep)
                assert (np.abs(found - exact) <= (count + 3) * np.finfo(dtype).eps * exact).all(), op


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1, 1, 2**16), (1, 2**16, 3), (2, 2**14, 40)])
def test_long_sums_keep_small_addends(shape: tuple[int, ...], level: str | None) -> None:
    """One chain from the 1 on would lose all that follow it."""
    axis = 2 if shape[1] == 1 else 1
    x = np.full(shape, 2.0**-25, np.float32)
    x[:, :1, :1] = 1
    if axis == 1:
        x[:, :1] = 1
    found = one("ReduceL1", x, level=level, axes=[axis], keepdims=0)
    right = x.astype(np.float64).sum(axis=axis)
    count = shape[axis]
    assert (np.abs(found - right) <= (2 * 64 + count / 64) * np.finfo(np.float32).eps).all()
    assert (found > 1 + count * 2.0**-26).all()


def normalised(x: np.ndarray, axes: Sequence[int], epsilon: float = 1e-5) -> np.ndarray:
    """Mean 0 and variance 1 over axes, in float64."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=tuple(axes), keepdims=True)
    squares = (centred**2).mean(axis=tuple(axes), keepdims=True)
    return np.asarray(centred / np.sqrt(squares + float(np.float32(epsilon))))


LINE_SHAPES = ((2, 3, 11, 37), (1, 70, 9, 40), (3, 1, 1, 1), (1, 16, 3, 129))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_over_any_axis(dtype: Any, level: str | None) -> None:
    for shape, axis in itertools.product(LINE_SHAPES, (0, 1, 2, -1)):
        x = random(*shape, dtype=dtype) * 5
        wide = np.exp(x.astype(np.float64) - x.max(axis=axis, keepdims=True))
        right = wide / wide.sum(axis=axis, keepdims=True)
        # roundings of the sum, of the function's argument (at most 50) and of the function, relatively
        units = shape[axis] + 50 + 8
        ours = one("Softmax", x, level=level, axis=axis)
        assert (np.abs(ours - right) <= units * np.finfo(dtype).eps * right).all()
        if axis == 2:
            before = one("Softmax", x, level=level, opset=11, axis=axis)  # all axes from there on
            rows = x.reshape(shape[0], shape[1], -1)
            same_bits(before, one("Softmax", rows, level=level, axis=-1).reshape(shape))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_logarithm_of_a_softmax_over_any_axis(dtype: Any, level: str | None) -> None:
    for shape, axis in itertools.product(LINE_SHAPES, (0, 1, 2, -1)):
        x = random(*shape, dtype=dtype) * 60  # shares of e^-200 are 0, their logarithms are not
        falls = x.astype(np.float64) - x.max(axis=axis, keepdims=True)
        right = falls - np.log(np.exp(falls).sum(axis=axis, keepdims=True))
        # roundings of the difference and of its argument, and of the sum, whose logarithm they shift by as much
        bound = (2 * np.abs(falls) + np.abs(right) + shape[axis] + 8) * np.finfo(dtype).eps
        ours = one("LogSoftmax", x, level=level, axis=axis)
        assert (np.abs(ours - right) <= bound).all()
        if axis == 2:
            before = one("LogSoftmax", x, level=level, opset=11, axis=axis)  # all axes from there on
            rows = x.reshape(shape[0], shape[1], -1)
            same_bits(before, one("LogSoftmax", rows, level=level, axis=-1).reshape(shape))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("axis", [0, 1])
def test_logarithms_of_softmax_of_special_numbers(axis: int, level: str | None) -> None:
    x = random(19, 37)
    x[3, 5], x[7, 9], x[11, 2] = np.nan, np.inf, -np.inf
    ours = one("LogSoftmax", x, level=level, axis=axis)
    is_spoilt = np.zeros(x.shape, bool)
    for place in ((3, 5), (7, 9)):
        line = (slice(None), place[1]) if axis == 0 else (place[0], slice(None))
        is_spoilt[line] = True
    np.testing.assert_array_equal(np.isnan(ours), is_spoilt)
    assert ours[11, 2] == -np.inf


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_special_numbers(axis: int, level: str | None) -> None:
    """What is no number spoils its own line alone; minus infinity has no share."""
    x = random(19, 37)
    x[3, 5], x[7, 9], x[11, 2] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        wide = np.exp(x - x.max(axis=axis, keepdims=True), dtype=np.float64)
        right = wide / wide.sum(axis=axis, keepdims=True)
    ours = one("Softmax", x, level=level, axis=axis)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(right))
    assert ours[11, 2] == 0
    np.testing.assert_allclose(ours, right, rtol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_normalisation_of_lines(dtype: Any, level: str | None) -> None:
    for shape in LINE_SHAPES[:2]:
        x = random(*shape, dtype=dtype) * 3 + 2
        for axis in (1, 2, 3):
            axes, extents = tuple(range(axis, 4)), shape[axis:]
            scale, bias = random(*extents, seed=1, dtype=dtype), random(*extents, seed=2, dtype=dtype)
            right = normalised(x, axes)
            terms = math.prod(extents)
            ours = one("LayerNormalization", x, scale, bias, level=level, axis=axis)
            near(ours, right * scale + bias, terms, 4 * float(np.abs(right).max()) * 4)
            near(one("LayerNormalization", x, scale, level=level, axis=axis - 4), right * scale, terms, 64)
        scale, bias = random(shape[1], seed=1, dtype=dtype), random(shape[1], seed=2, dtype=dtype)
        column = (-1, 1, 1)
        right = normalised(x, (2, 3), 1e-3) * scale.reshape(column) + bias.reshape(column)
        near(one("InstanceNormalization", x, scale, bias, level=level, epsilon=1e-3), right, shape[2] * shape[3], 64)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_short_lines_are_the_same_in_any_company(dtype: Any, level: str | None) -> None:
    """Some stay in registers, several at once: lengths round whole vectors, and beyond what registers hold."""
    for length in (1, 2, 3, 5, 8, 15, 16, 17, 24, 33, 48, 100, 129, 384, 400):
        x = random(11, length, dtype=dtype) * 3 + 2
        x[5, length // 2] = np.nan
        scale, bias = (random(length, seed=seed, dtype=dtype) for seed in (1, 2))
        ours = one("LayerNormalization", x, scale, bias, level=level)
        sound = np.arange(11) != 5
        right = normalised(x[sound], (1,))
        near(ours[sound], right * scale + bias, length, 64)
        assert np.isnan(ours[5]).all()
        for first, end in ((0, 1), (3, 10)):
            same_bits(one("LayerNormalization", x[first:end], scale, bias, level=level), ours[first:end])


@pytest.mark.parametrize("level", BOTH_ENDS)
def test_normalisation_of_groups(level: str | None) -> None:
    x, scale, bias = random(2, 12, 5, 7) + 1, random(12, seed=1), random(12, seed=2)
    for groups in (1, 3, 4, 12):
        right = normalised(x.reshape(2, groups, -1), (2,)).reshape(x.shape)
        ours = one("GroupNormalization", x, scale, bias, level=level, opset=21, num_groups=groups)
        near(ours, right * scale.reshape(-1, 1, 1) + bias.reshape(-1, 1, 1), 12 * 35 // groups, 64)


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_responses_of_neighbouring_channels(level: str | None, dtype: Any) -> None:
    """Odd and even windows, wider than there are channels too, every power, pixels that fill no vector."""
    shapes = (2, 7, 5, 13), (1, 33, 150), (3, 4)
    for size, beta, shape in itertools.product((1, 2, 5, 40), (0.25, 0.5, 0.75, 1.0), shapes):
        x = random(*shape, dtype=dtype) * 30
        squares, sums = x.astype(np.float64) ** 2, np.zeros(shape)
        for c in range(shape[1]):
            sums[:, c] = squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1)
        right = x / (2.0 + float(np.float32(0.01)) / size * sums) ** beta
        ours = one("LRN", x, level=level, size=size, alpha=0.01, beta=beta, bias=2.0)
        bound = (min(size, shape[1]) + 8) * float(np.finfo(dtype).eps)  # of sums of squares, whose power is below 1
        assert (np.abs(ours - right) <= bound * np.abs(right)).all()


def test_responses_that_are_left_to_others() -> None:
    """Powers that roots do not make, and sums that may be 0: the answer is onnxruntime's."""
    x = random(1, 4, 3, 3)
    for attributes in ({"beta": 0.6}, {"bias": 0.0}):
        made = session(model_of([node("LRN", ["x0"], ["y"], size=3, **attributes)], [x]))
        assert set(engines(made).values()) == {"onnxruntime"}


def test_no_lines_and_no_elements() -> None:
    for shape in ((0, 3), (2, 0)):
        x = np.zeros(shape, np.float32)
        assert one("Softmax", x).shape == one("LayerNormalization", x, np.ones(shape[1], np.float32)).shape == shape


def test_lines_that_lie_otherwise() -> None:
    """A turned, a reversed and a repeated input, whose copies must not be needed to be right."""
    x = random(6, 40, 5)
    turned = x.transpose(2, 0, 1), x.transpose(1, 0, 2)
    for z in (*turned, x[::-1, :, ::-1], x[:, ::2], np.broadcast_to(x[:1], (4, 40, 5))):
        packed = np.ascontiguousarray(z)
        for axis in range(3):
            same_bits(one("Softmax", z, axis=axis), one("Softmax", packed, axis=axis))
        w = random(z.shape[-1], seed=1)
        same_bits(one("LayerNormalization", z, w), one("LayerNormalization", packed, w))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 2, 4)])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pools_of_inputs_whose_rank_a_run_tells(op: str, shape: tuple[int, ...]) -> None:
    """A file need not say it; a Sigmoid, then, makes values of any rank."""
    model = onnx_model([node("Sigmoid", ["x"], ["s"]), node(op, ["s"], ["y"])], [info("x", None)], [info("y", None)])
    made, x = session(model), random(*shape)
    [y] = made.run(None, {"x": x})
    s = 1 / (1 + np.exp(-x.astype(np.float64)))
    axes = tuple(range(2, len(shape)))
    want = s.mean(axes, keepdims=True) if op == "GlobalAveragePool" else s.max(axes, keepdims=True)
    eps = float(np.finfo(np.float32).eps)
    assert y.shape == want.shape
    assert (np.abs(y - want) <= (8 + math.prod(shape[2:])) * eps).all()
    assert set(engines(made).values()) == {"polyconv"}
    with pytest.raises(Error, match="has no spatial axes"):
        made.run(None, {"x": random(2, 3)})
