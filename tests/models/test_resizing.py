"""Resize and Upsample: against the specification written out here, and onnx's reference evaluator, at every level."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levels import BOTH_ENDS, LEVELS
from making import engines, info, onnx_model, random, session
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from own_models import at_level, model_of, run, same_bits

import polyconv
from polyconv.errors import Error
from polyconv.operators.taps import picked, weighted

node = helper.make_node
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
MOVED = (np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, np.bool_)


# -- the specification ----------------------------------------------------------------------------------


def place(o: int, inp: int, out: int, scale: float, mode: str, region: tuple[float, float]) -> float:
    """``x_original`` of an output, as the attribute coordinate_transformation_mode says."""
    if mode == "half_pixel":
        return (o + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return inp / 2 * (1 - out / (scale * inp)) + (o + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (o + 0.5) / scale - 0.5 if out > 1 else 0.0
    if mode == "align_corners":  # the extent that is asked for, which may be no integer: onnx's own cases have it so
        return 0.0 if scale * inp == 1 else o * (inp - 1) / (scale * inp - 1)
    if mode == "asymmetric":
        return o / scale
    start, end = region
    if out > 1:
        return o * (end - start) * (inp - 1) / (out - 1) + start * (inp - 1)
    return (end - start) * (inp - 1) / 2 + start * (inp - 1)


def nearest(x: float, rounding: str) -> int:
    below = math.floor(x)
    if x == below:
        return below
    half = x - below
    up = {"round_prefer_floor": half > 0.5, "round_prefer_ceil": half >= 0.5, "floor": False, "ceil": True}[rounding]
    return below + up


def share(distance: float, mode: str, a: float) -> float:
    """Weight of an element that lies so far away."""
    d = abs(distance)
    if mode == "linear":
        return max(0.0, 1 - d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def axis_of(x: np.ndarray, axis: int, out: int, scale: float, region: tuple[float, float], a: dict[str, Any]
            ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """An axis resized, and the sum of magnitudes that its results are made of."""
    inp, mode, rows = x.shape[axis], a.get("mode", "nearest"), np.moveaxis(x, axis, 0)
    found, sizes = np.zeros((2, out, *rows.shape[1:]))
    coordinates = a.get("coordinate_transformation_mode", "half_pixel")
    for o in range(out):
        where = place(o, inp, out, scale, coordinates, region)
        if coordinates == "tf_crop_and_resize" and not 0 <= where <= inp - 1:
            found[o] = np.float32(a.get("extrapolation_value", 0.0))
            sizes[o] = np.abs(found[o])  # other axes may interpolate it
            continue
        if mode == "nearest":
            found[o] = rows[min(max(nearest(where, a.get("nearest_mode", ROUNDINGS[0])), 0), inp - 1)]
            continue
        stretch = min(1.0, scale) if a.get("antialias") else 1.0
        reach = (1 if mode == "linear" else 2) / stretch
        cubic = float(np.float32(a.get("cubic_coeff_a", -0.75)))
        near = range(math.floor(where - reach), math.ceil(where + reach) + 1)
        weights = {i: share((where - i) * stretch, mode, cubic) for i in near}
        if a.get("antialias"):
            total = sum(weights.values())
            weights = {i: w / total for i, w in weights.items()}
        if a.get("exclude_outside"):
            weights = {i: w for i, w in weights.items() if 0 <= i < inp}
            total = sum(weights.values())
            weights = {i: w / total for i, w in weights.items()}
        for i, w in weights.items():
            found[o] += w * rows[min(max(i, 0), inp - 1)]
            sizes[o] += abs(w) * abs(rows[min(max(i, 0), inp - 1)])
    return np.moveaxis(found, 0, axis), np.moveaxis(sizes, 0, axis)


def resized(x: np.ndarray, scales: list[float], outs: list[int], regions: list[tuple[float, float]],
            a: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """A tensor resized axis by axis, in float64, and a bound of what it is made of."""
    wide, size = x.astype(np.float64), np.abs(x.astype(np.float64))
    for axis, (out, scale) in enumerate(zip(outs, scales, strict=True)):
        if (out, scale, regions[axis]) != (x.shape[axis], 1.0, (0.0, 1.0)):
            wide, _ = axis_of(wide, axis, out, scale, regions[axis], a)
            size = axis_of(size, axis, out, scale, regions[axis], a)[1] if a.get("mode") != "nearest" else size
    return wide, size


def resize_model(x: np.ndarray, *, scales: Any = None, sizes: Any = None, roi: Any = None, opset: int = 19,
                 **attributes: Any) -> onnx.ModelProto:  # fmt: skip
    """A Resize whose numbers are constants."""
    constants = {"scales": np.array(scales, np.float32)} if sizes is None else {"sizes": np.array(sizes, np.int64)}
    inputs = ["x0", "", "scales"] if sizes is None else ["x0", "", "", "sizes"]
    if roi is not None:
        constants["roi"], inputs[1] = np.array(roi, np.float32), "roi"
    return model_of([node("Resize", inputs, ["y"], **attributes)], [x], opset=opset, constants=constants)


def check(x: np.ndarray, ours: np.ndarray, right: np.ndarray, size: np.ndarray, mode: str, taps: int) -> None:
    """Equal where elements are picked; else within ``k eps`` of the sum of magnitudes."""
    assert ours.shape == right.shape and ours.dtype == x.dtype
    if mode == "nearest":
        same_bits(ours, right.astype(x.dtype))
        return
    # a product and a sum for each tap of each axis, weights of three roundings, places of some more units each
    eps = float(np.finfo(x.dtype).eps)
    bound = (2 * taps + 8) * x.ndim * eps * size + 64 * max(x.shape) * np.finfo(float).eps * np.abs(x).max(initial=0)
    assert (np.abs(ours - right) <= bound).all()


EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 40)
SCALES = (0.3, 0.5, 0.6, 0.75, 1.0, 1.0, 1.5, 2.0, 2.0, 2.0, 2.6, 3.0, 4.0, 8.0)


@st.composite
def drawn(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, Any], list[tuple[int, float]], list[tuple[float, float]]]:
    """An array, attributes and numbers of a Resize, the extent and scale of each axis, and regions."""
    rank = draw(st.integers(1, 5))
    shape = [draw(st.sampled_from(EXTENTS[:7] if rank > 3 else EXTENTS)) for _ in range(rank)]
    changed = sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank)))
    mode = draw(st.sampled_from(("nearest", "nearest", "linear", "linear", "cubic")))
    a: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": draw(st.sampled_from(COORDINATES))}
    if mode == "nearest":
        a["nearest_mode"] = draw(st.sampled_from(ROUNDINGS))
    else:
        a["antialias"] = int(draw(st.sampled_from((False, False, True))))
        a["exclude_outside"] = int(draw(st.sampled_from((False, True))))
    if mode == "cubic" and draw(st.booleans()):
        a["cubic_coeff_a"] = -0.5
    found = []
    for axis, extent in enumerate(shape):
        scale = float(np.float32(draw(st.sampled_from(SCALES)))) if axis in changed else 1.0
        out = math.floor(np.float32(extent) * np.float32(scale))
        found.append((out, scale) if out else (extent, 1.0))
    if draw(st.booleans()):
        a["sizes"] = [out for out, _ in found]
        found = [(out, out / extent) for (out, _), extent in zip(found, shape, strict=True)]
    else:
        a["scales"] = [scale for _, scale in found]
    regions = [(0.0, 1.0)] * rank
    if a["coordinate_transformation_mode"] == "tf_crop_and_resize":
        ends = st.sampled_from(((0.0, 1.0), (0.25, 0.75), (-0.5, 1.25), (0.75, 0.5)))
        regions = [draw(ends) if axis in changed else (0.0, 1.0) for axis in range(rank)]
        a |= {"roi": [r[0] for r in regions] + [r[1] for r in regions], "extrapolation_value": 7.5}
    dtype = draw(st.sampled_from(MOVED if mode == "nearest" else (np.float32, np.float64)))
    least = 0 if np.dtype(dtype).kind == "u" else -40
    x = np.random.default_rng(draw(st.integers(0, 99))).integers(least, 40, shape) / (2 if mode != "nearest" else 1)
    order = draw(st.permutations(range(rank)))
    lies = np.asarray(x.astype(dtype).transpose(order), order="C")
    return lies.transpose([order.index(axis) for axis in range(rank)]), a, found, regions


@settings(max_examples=300, deadline=None)
@given(drawn(), st.sampled_from(BOTH_ENDS), st.integers(1, 2))
def test_as_the_specification_says(
    case: tuple[np.ndarray, dict[str, Any], list[tuple[int, float]], list[tuple[float, float]]], level: str | None,
    threads: int,
) -> None:  # fmt: skip
    """Any axes of any rank by any numbers, whatever order the array has in memory."""
    x, a, axes, regions = case
    if x.dtype == np.bool_ or x.dtype.kind in "iu":
        a.pop("extrapolation_value", None)
    with polyconv.settings(threads=threads):
        (ours,) = run(resize_model(x, **a), [x], level=level)
    right, size = resized(x, [s for _, s in axes], [o for o, _ in axes], regions, a)
    taps = 2 * math.ceil(max(2 / min(1.0, *(s for _, s in axes)), 2))
    check(x, ours, right, size, a["mode"], taps)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_what_networks_have(channels_last: bool, level: str | None) -> None:
    """Twofold, fourfold and one and a half, of rows longer than vectors, against onnx's own evaluator."""
    for extents, scale, dtype in itertools.product(((9, 37), (40, 65), (1, 130)), (2.0, 4.0, 1.5, 0.5),
                                                   (np.float32, np.float64)):  # fmt: skip
        shape = (2, *extents, 5) if channels_last else (2, 3, *extents)
        x = random(*shape, dtype=dtype)
        scales = [1.0, scale, scale, 1.0] if channels_last else [1.0, 1.0, scale, scale]
        for mode, coordinates in itertools.product(("nearest", "linear", "cubic"), ("half_pixel", "asymmetric")):
            a = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
            if mode != "nearest":
                del a["nearest_mode"]
            model = resize_model(x, scales=scales, **a)
            (ours,) = run(model, [x], level=level)
            (theirs,) = ReferenceEvaluator(model).run(None, {"x0": x})
            assert ours.shape == theirs.shape
            if mode == "nearest":
                same_bits(ours, theirs)
            else:
                own = np.float32 if mode == "cubic" else dtype  # in which the evaluator has its weights
                bound = 32 * float(np.finfo(own).eps) * float(np.abs(x).max()) * 3
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_rows_without_a_pattern(dtype: Any) -> None:
    """Bits are the same where lanes are picked and where outputs are made one by one; no tap meets what it has not."""
    x = (random(2, 3, 9, 67) * 50).astype(dtype)
    if dtype == np.float32:
        x[0, 1, 2, 5], x[1, 0, 4, 66], x[1, 2, :, 0] = np.nan, np.inf, -np.inf
    modes = ("linear", "cubic", "nearest") if dtype == np.float32 else ("nearest",)
    sizes = ((9, 134), (18, 134), (9, 131), (9, 87), (9, 50), (9, 33), (9, 20), (13, 3), (9, 1000))
    for mode, (rows, width), exclude in itertools.product(modes, sizes, (0, 1)):
        a = {"mode": mode, "coordinate_transformation_mode": "align_corners", "exclude_outside": exclude}
        model = resize_model(x, sizes=[2, 3, rows, width], **a)
        one_by_one = run(model, [x], level="avx2")[0]
        same_bits(run(model, [x])[0], one_by_one)
        with polyconv.settings(threads=2):
            same_bits(run(model, [x])[0], one_by_one)


@pytest.mark.parametrize("dtype", MOVED)
def test_nearest_of_every_type(dtype: Any) -> None:
    x = (random(2, 3, 7, 41) * 50).astype(dtype)
    (ours,) = run(resize_model(x, scales=[1, 1, 2, 3], nearest_mode="floor",
                               coordinate_transformation_mode="asymmetric"), [x])  # fmt: skip
    same_bits(ours, x.repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_ratio_of_extents_kept(policy: str) -> None:
    x = random(1, 2, 6, 9)
    for axes, sizes in (([2, 3], [11, 12]), ([3, 2], [4, 17])):
        a = {"sizes": sizes, "mode": "linear", "keep_aspect_ratio_policy": policy}
        model = resize_model(x, axes=axes, **a)
        (theirs,) = ReferenceEvaluator(model).run(None, {"x0": x})
        (ours,) = run(model, [x])
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        same_bits(run(resize_model(x, axes=[axis - 4 for axis in axes], **a), [x])[0], ours)


@pytest.mark.parametrize("opset", [7, 8, 9])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_counts_from_the_first_element(mode: str, opset: int) -> None:
    x, scales = random(1, 3, 5, 20), [1.0, 1.0, 2.0, 3.0]
    given = {} if opset < 9 else {"scales": np.array(scales, np.float32)}
    attributes = {"mode": mode} | ({"scales": scales} if opset < 9 else {})
    made = node("Upsample", ["x0", *given], ["y"], **attributes)
    model = onnx_model([made], [info("x0", x.shape)], [info("y", [1, 3, 10, 60])], given, opset=opset)
    a = {"mode": mode, "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    right, size = resized(x, scales, [1, 3, 10, 60], [(0.0, 1.0)] * 4, a)
    check(x, run(model, [x])[0], right, size, mode, 2)


def test_first_resize_is_upsample() -> None:
    x = random(1, 3, 6, 20)
    given = {"scales": np.array([1, 1, 0.5, 2], np.float32)}
    model = onnx_model([node("Resize", ["x0", "scales"], ["y"])], [info("x0", x.shape)], [info("y")], given, opset=10)
    same_bits(run(model, [x])[0], x[:, :, ::2].repeat(2, 3))


def test_extents_that_only_a_run_tells() -> None:
    """One session for several sizes, an empty one among them."""
    x = random(1, 2, 5, 7)
    made = session(model_of([node("Resize", ["x0", "", "s"], ["y"], nearest_mode="floor",
                                  coordinate_transformation_mode="asymmetric")], [x], open_dims=True,
                            constants={"s": np.array([1, 1, 2, 2], np.float32)}))  # fmt: skip
    for shape in ((1, 2, 5, 7), (3, 1, 1, 1), (2, 2, 0, 4), (1, 2, 5, 7), (2, 3, 40, 33)):
        z = random(*shape)
        same_bits(made.run(None, {"x0": z})[0], z.repeat(2, 2).repeat(2, 3))
    assert set(engines(made).values()) == {"polyconv"}


@pytest.mark.parametrize("level", BOTH_ENDS)
def test_what_is_no_number_stays_where_it_is(level: str | None) -> None:
    """Only outputs that take it are spoilt; a neighbour without a share is not taken."""
    x = np.ones((1, 1, 5, 40), np.float32)
    x[0, 0, 2, 20], x[0, 0, 4, 3] = np.nan, np.inf
    for mode in ("nearest", "linear"):
        a = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
        (ours,) = run(resize_model(x, sizes=[1, 1, 9, 79], **a), [x], level=level)
        assert np.isnan(ours[0, 0, 4, 40]) and np.isinf(ours[0, 0, 8, 6])
        right, _ = resized(np.where(np.isfinite(x), 1.0, 1000.0), [1.0, 1.0, 9 / 5, 79 / 40], [1, 1, 9, 79],
                           [(0.0, 1.0)] * 4, a | {"nearest_mode": "round_prefer_floor"})  # fmt: skip
        np.testing.assert_array_equal(np.isfinite(ours), right < 1.5 if mode == "nearest" else right == 1.0)


def test_a_pattern_says_what_the_table_says() -> None:
    rng = np.random.default_rng(5)
    found = 0
    for extent, scale in itertools.product((1, 2, 5, 9, 40), (0.5, 1.5, 2, 3, 8, 1.3)):
        out = max(1, int(extent * scale))
        where = (np.arange(out) + 0.5) / scale - 0.5
        below = np.ceil(where) - 1
        shares = np.stack([1 - (where - below), where - below], 1)
        for taps in (weighted((below[:, None] + [0, 1]).astype(int), shares, extent),
                     picked(np.clip(below.astype(int), -1, extent - 1), extent),
                     picked(rng.integers(-1, extent, out), extent)):  # fmt: skip
            pattern = taps.pattern
            if pattern is None:
                continue
            found += 1
            count = len(pattern.phases)
            assert 0 <= pattern.begin <= pattern.end <= out and (pattern.end - pattern.begin) % count == 0
            for o in range(pattern.begin, pattern.end):
                repeat, phase = divmod(o - pattern.begin, count)
                places = [pattern.base + pattern.stride * repeat + offset for offset in pattern.phases[phase]]
                assert places == taps.positions[o, : taps.counts[o]].tolist() and max(places) < extent
                np.testing.assert_allclose(pattern.weights[phase], taps.weights[o, : taps.counts[o]], atol=1e-12)
    assert found > 40


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({"scales": [1, 2]}, "must be one number for each of the axes"),
        ({"scales": [1, 1, -2, 2]}, "cannot be resized"),
        ({"scales": [1, 1, np.nan, 2]}, "cannot be resized"),
        ({"scales": [1, 1, 1e30, 2]}, "cannot be resized|more than one tensor may have"),
        ({"scales": [1, 1, 1e7, 1e7]}, "more than one tensor may have"),
        ({"sizes": [1, 3, -4, 4]}, "cannot be resized"),
        ({"sizes": [4, 4], "axes": [2, 9]}, "must be one number for each of the axes"),
        ({"sizes": [1, 3, 4, 4], "roi": [0, 1], "coordinate_transformation_mode": "tf_crop_and_resize"}, "roi="),
    ],
)
def test_numbers_that_make_no_sense_are_named(numbers: dict[str, Any], says: str) -> None:
    constants = {n: np.array(numbers[n], k) for n, k in (("roi", np.float32), ("scales", np.float32),
                                                         ("sizes", np.int64)) if n in numbers}  # fmt: skip
    inputs = ["x0", *(n if n in numbers else "" for n in ("roi", "scales", "sizes"))]
    attributes = {n: v for n, v in numbers.items() if n not in constants}
    made = session(onnx_model([node("Resize", inputs, ["y"], "enlarge", **attributes)], [info("x0", [None] * 4)],
                              [info("y")], constants, opset=19))  # fmt: skip
    with pytest.raises(Error, match=f"Resize node 'enlarge': .*({says})"):
        made.run(None, {"x0": random(1, 3, 5, 5)})


def test_what_is_not_interpolated_runs_on_the_host() -> None:
    x = info("x0", [1, 1, 4, 4], TensorProto.UINT8)
    model = onnx_model([node("Resize", ["x0", "", "s"], ["y"], "r", mode="linear")], [x], [info("y")],
                       {"s": np.array([1, 1, 2, 2], np.float32)}, opset=13)  # fmt: skip
    (record,) = session(model).nodes
    assert (record.engine, record.reason) == ("onnxruntime", "uint8 is not interpolated here")


@pytest.mark.parametrize("level", BOTH_ENDS)
def test_no_access_is_out_of_bounds(level: str | None) -> None:
    """Kernels that check every access."""
    ways = itertools.product(((5, 7), (9, 40), (1, 1)), (2.0, 1.5, 0.5, 2.6), ("nearest", "linear"))
    with at_level(level), polyconv.settings(check=True):
        for extents, scale, mode in ways:
            x = random(2, 3, *extents)
            last = x.transpose(0, 2, 3, 1)
            if int(min(extents) * scale) >= 1:
                run(resize_model(x, scales=[1, 1, scale, scale], mode=mode), [x])
                run(resize_model(last, scales=[1, scale, scale, 1], mode=mode), [last])
