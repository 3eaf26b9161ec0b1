"""Attribute values and shapes that no file should hold: a clear error, soon, whatever they are."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from polyconv import dialects
from polyconv.errors import ArgumentError

onnx = dialects.onnx

X, W = (2, 4, 9, 9), (6, 4, 3, 3)


def problem(op, *shapes, dtypes="f32", **more):
    types = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    return op.problem(*shapes, dtypes=types, **more)


def refused(error, *fragments):
    """Expect an error whose message holds every fragment: argument, values, way out."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*(?:{f}))" for f in fragments))


HOSTILE = {
    "long list": [1] * 10**6,
    "long range": range(10**12),
    "huge": [1 << 70],
    "enormous": [1 << 10**6],
    "float": [1.0],
    "text": "11",
    "bytes": b"\1\1",
    "bool": [True],
    "none inside": [None],
    "nested": [[1], [1]],
    "scalar": 1,
    "matrix": np.ones((2, 2), np.int64),
    "floats": np.ones(2),
    "flags": np.ones(2, bool),
    "mapping": {1: 2},
    "endless": iter(int, 1),
    "words": ["1", "1"],
}
CYCLE: list[object] = []
CYCLE.append(CYCLE)
HOSTILE["cycle"] = CYCLE


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "name", ["strides", "dilations", "pads", "kernel_shape", "output_padding", "output_shape"]
)
def test_hostile_lists(name, value):
    with pytest.raises(ArgumentError, match=name) as caught:
        onnx.ConvTranspose(**{name: value})
    assert len(str(caught.value)) < 400


HOSTILE_INTEGERS = {
    "float": 1.0,
    "bool": True,
    "text": "1",
    "list": [1],
    "huge": 1 << 70,
    "enormous": -(1 << 10**6),
    "float32": np.float32(1),
    "flag": np.True_,
    "object": object(),
}


@pytest.mark.parametrize("value", HOSTILE_INTEGERS.values(), ids=HOSTILE_INTEGERS)
def test_hostile_integers(value):
    with refused(ArgumentError, "group=", "int|lower|least"):
        onnx.Conv(group=value)


def test_huge_but_legal_integers_are_computed_with():
    most = sys.maxsize
    op = onnx.Conv(strides=[most, 1], pads=[most, 0, most, 0])
    assert op.infer((1, 4, 9, 9), W) == ((1, 6, 3, 7),)
    with refused(ArgumentError, "2\\^40"):
        problem(op, X, W)


@pytest.mark.parametrize("shape", ["NCHW", 5, {1, 2}, (1,) * 65, b"1234"])
def test_infer_refuses_what_is_no_shape(shape):
    with refused(ArgumentError, "shape of X", "one per axis"):
        onnx.Conv().infer(shape, W)


@pytest.mark.parametrize("size", [-1, True, 2.0, 1 << 80, [3]])
def test_infer_refuses_what_is_no_size(size):
    with refused(ArgumentError, "shape of X", "int|least|lower"):
        onnx.Conv().infer((1, 4, size, 9), W)
