"""Passes over bytes: quotients rounded once without a division, arrays that lie across, residuals read as bytes.

QuantizeLinear is defined in f32 to the last bit, so that NumPy gives the very integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from levels import LEVELS
from making import info, onnx_model, onnxruntime_run, session
from onnx import TensorProto
from own_models import at_level, model_of, node, run, same_bits
from test_integer_rewrites import steps_of

from polyconv.operators.elementwise import fragment
from polyconv.operators.fusing import Fused, Member, planner_of
from polyconv.operators.job import Known, Operation
from polyconv.operators.lying import channels_last, is_channels_last, lies, packed
from polyconv.operators.running import Planned

INTEGERS = (np.uint8, np.int8, np.uint16, np.int16)
ODD = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-45, -1e-45, 1e-38], np.float32)


def quantised(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """By a division, as ONNX says; NaN is the least integer here."""
    low, high = np.iinfo(zero.dtype).min, np.iinfo(zero.dtype).max
    with np.errstate(all="ignore"):
        y = np.rint(x / scale).astype(np.float64) + zero
    return np.where(np.isnan(y), low, np.clip(y, low, high)).astype(zero.dtype)


def near_ties(rng: np.random.Generator, scale: float, zero: int, dtype: Any, count: int) -> np.ndarray:
    """Numbers up to three units in the last place from where integers change, beyond both ends of their range too."""
    low, high = np.iinfo(dtype).min - zero, np.iinfo(dtype).max - zero
    ties = ((rng.integers(low - 3, high + 4, count) + 0.5) * np.float64(scale)).astype(np.float32)
    return (ties.view(np.int32) + rng.integers(-3, 4, count).astype(np.int32)).view(np.float32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_quotients_are_rounded_once(dtype: Any, level: str | None) -> None:
    rng = np.random.default_rng(7)
    sizes = [*np.exp2(rng.uniform(-12, 3, 6)), *np.exp2(rng.uniform(-60, 60, 4)), 2.0**-60, 2.0**60, 2.0**-64, 2.0**90]
    just_below = [np.nextafter(np.float32(2.0**e), np.float32(0)) for e in (-7, 0, 5)]  # all bits of the fraction set
    for size in (*sizes, *just_below):
        scale, zero = np.float32(size), np.array(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1), dtype)
        x = np.concatenate([near_ties(rng, float(scale), int(zero), dtype, 3000), ODD])
        model = model_of([node("QuantizeLinear", ["x0", "s", "z"], ["y"])], [x], opset=21,
                         constants={"s": np.asarray(scale), "z": zero})  # fmt: skip
        same_bits(run(model, [x], level=level)[0], quantised(x, scale, zero))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("axis", [1, 3])
def test_quotients_by_scales_of_an_axis(axis: int, level: str | None) -> None:
    rng = np.random.default_rng(8)
    scale, zero = np.exp2(rng.uniform(-9, 2, 5)).astype(np.float32), rng.integers(0, 256, 5).astype(np.uint8)
    rows = [near_ties(rng, float(s), int(z), np.uint8, 2 * 40) for s, z in zip(scale, zero, strict=True)]
    x = np.moveaxis(np.stack(rows).reshape(5, 2, 1, 40), 0, -1).copy()  # (2, 1, 40, 5)
    x = x if axis == 3 else np.moveaxis(x, 3, 1).copy()
    shape = [5 if a == axis else 1 for a in range(4)]
    model = model_of([node("QuantizeLinear", ["x0", "s", "z"], ["y"], axis=axis)], [x], opset=21,
                     constants={"s": scale, "z": zero})  # fmt: skip
    same_bits(run(model, [x], level=level)[0], quantised(x, scale.reshape(shape), zero.reshape(shape)))


def planned(op: str, x: np.ndarray, scale: np.ndarray, zero: np.ndarray, lie: Callable[..., Any]) -> np.ndarray:
    """The result of QuantizeLinear or DequantizeLinear, which is to lie in a certain way."""
    made = "float32" if op == "DequantizeLinear" else zero.dtype.name
    known = (Known(x.dtype.name, x.shape), *(Known(a.dtype.name, a.shape, a) for a in (scale, zero)))
    found = fragment(Operation(op, 21, {}, known))
    assert not isinstance(found, str)
    planner = planner_of(Fused(1, (), (Member(found, (0,)),), (1,)))
    (y,) = Planned(lambda given, c: planner(given, replace(c, into=(lie(x.shape, made),))), 1)([x])
    return y


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1, 3, 40, 50), (2, 3, 37, 41), (1, 19, 21, 33), (3, 2, 5000), (1, 5, 8, 9, 23)])
def test_arrays_lie_across(shape: tuple[int, ...], level: str | None) -> None:
    """From planes to pixels and back; scales of one number, and of each channel."""
    rng = np.random.default_rng(9)
    orders: tuple[Callable[..., Any], ...] = (packed, channels_last)
    of_channel = (1, -1, *[1] * (len(shape) - 2))
    for scales in (1, shape[1]):
        scale, zero = np.float32(rng.uniform(0.01, 0.1, scales)), rng.integers(0, 256, scales).astype(np.uint8)
        real, whole = np.float32(rng.normal(0, 4, shape)), rng.integers(0, 256, shape).astype(np.uint8)
        s, z = (a.reshape(of_channel) if scales > 1 else a[0] for a in (scale, zero))
        given = (scale, zero) if scales > 1 else (np.asarray(s), np.asarray(z))
        right = quantised(real, s, z), (whole.astype(np.float32) - np.float32(z)) * s
        for of_x in orders:
            for of_y in orders:
                for op, x, y in zip(("QuantizeLinear", "DequantizeLinear"), (real, whole), right, strict=True):
                    lie = of_x(shape, x.dtype)
                    lying = np.ndarray(shape, x.dtype, np.empty(lie.size, np.uint8), 0, lie.strides)
                    lying[...] = x
                    with at_level(level):
                        found = planned(op, lying, *given, of_y)
                    assert is_channels_last(lies(found)) == (of_y is channels_last)
                    same_bits(found, y)


def residual_model(blocks: int) -> Any:
    """Blocks of a quantised convolution whose result, by another scale than its own, is added to what it read."""
    rng = np.random.default_rng(3)
    held: dict[str, np.ndarray] = {"z": np.array(7, np.uint8), "n": np.array(0, np.int8)}
    nodes = [node("QuantizeLinear", ["x", "s0", "z"], ["q0"])]
    for at in range(blocks):
        held |= {f"s{at}": np.asarray(np.float32(0.03 + 0.01 * at)), f"t{at}": np.asarray(np.float32(0.02 + 0.01 * at)),
                 f"v{at}": np.asarray(np.float32(0.01)), f"w{at}": rng.integers(-40, 40, (8, 8, 3, 3)).astype(np.int8)}
        nodes += [
            node("DequantizeLinear", [f"q{at}", f"s{at}", "z"], [f"x{at}"]),
            node("DequantizeLinear", [f"w{at}", f"v{at}", "n"], [f"f{at}"]),
            node("Conv", [f"x{at}", f"f{at}"], [f"c{at}"], pads=[1, 1, 1, 1]),
            node("QuantizeLinear", [f"c{at}", f"t{at}", "z"], [f"b{at}"]),
            node("DequantizeLinear", [f"b{at}", f"s{at}", "z"], [f"r{at}"]),
            node("Add", [f"r{at}", f"x{at}"], [f"a{at}"]),
            node("Relu", [f"a{at}"], [f"p{at}"]),
            node("QuantizeLinear", [f"p{at}", f"s{at + 1}", "z"], [f"q{at + 1}"]),
        ]  # fmt: skip
    held[f"s{blocks}"] = np.asarray(np.float32(0.05))
    nodes.append(node("DequantizeLinear", [f"q{blocks}", f"s{blocks}", "z"], ["y"]))
    return onnx_model(nodes, [info("x", [1, 8, 9, 20], TensorProto.FLOAT)], ["y"], held, opset=17)


def test_residuals_are_read_as_bytes() -> None:
    """No pass but the last stores floats: sums read the bytes that the convolutions before them read."""
    model, x = residual_model(3), np.float32(np.random.default_rng(4).normal(0, 2, (1, 8, 9, 20)))
    made = session(model)
    (y,), right = made.run(None, {"x": x}), onnxruntime_run(model, {"x": x})[0]
    assert np.abs(y - right).max() <= 1.01 * 0.05  # an integer may differ where engines round a product otherwise
    sums = [ops for _, ops in steps_of(made) if "Add" in ops.split("+")]
    assert [ops.count("DequantizeLinear") for ops in sums] == [2, 2, 3]
    stored = [value for step in made._promised.program.steps for value in step.segment.outputs]
    assert [value.name for value in stored if value.type == "tensor(float)"] == ["y"]
