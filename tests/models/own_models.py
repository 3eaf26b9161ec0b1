"""Models of a few nodes that polyconv runs itself, and how their results are held against others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
from making import engines, info, onnx_model, session
from onnx import helper

node = helper.make_node
FLOATS = (np.float32, np.float64)
INTEGERS = (np.int32, np.int64, np.uint8, np.int8)


def model_of(
    nodes: Sequence[onnx.NodeProto], feeds: Sequence[np.ndarray], outputs: Sequence[str] = ("y",), *,
    opset: int = 17, constants: dict[str, np.ndarray] | None = None, open_dims: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """Nodes that read x0, x1, ..; types and extents of all values are inferred, extents of inputs may be left open."""
    inputs = [
        info(f"x{at}", [None if open_dims else e for e in x.shape], helper.np_dtype_to_tensor_dtype(x.dtype))
        for at, x in enumerate(feeds)
    ]
    return onnx.shape_inference.infer_shapes(onnx_model(nodes, inputs, list(outputs), constants, opset=opset))


@contextmanager
def at_level(level: str | None) -> Iterator[None]:
    """A block whose kernels use the instructions of a level only."""
    with pytest.MonkeyPatch.context() as patch:
        if level is not None:
            patch.setenv("POLYCONV_TARGET", level)
        yield


def run(model: onnx.ModelProto, feeds: Sequence[np.ndarray], *, level: str | None = None) -> list[np.ndarray]:
    """Results of a session in which polyconv runs every node that is not folded."""
    made = session(model)
    assert set(engines(made).values()) <= {"polyconv", "constant", "removed"}
    with at_level(level):
        return made.run(None, {f"x{at}": x for at, x in enumerate(feeds)})


def one(op: str, *feeds: np.ndarray, level: str | None = None, opset: int = 17, **attributes: Any) -> np.ndarray:
    names = [f"x{at}" for at in range(len(feeds))]
    return run(model_of([node(op, names, ["y"], **attributes)], feeds, opset=opset), feeds, level=level)[0]


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal, zeros of either sign alike, NaN where NaN is."""
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def near(ours: np.ndarray, right: np.ndarray, terms: int, size: float) -> None:
    """Within ``(terms + 8) eps`` of magnitudes of a size."""
    assert ours.dtype in FLOATS and ours.shape == right.shape
    np.testing.assert_allclose(ours, right, rtol=0, atol=(terms + 8) * float(np.finfo(ours.dtype).eps) * size)
