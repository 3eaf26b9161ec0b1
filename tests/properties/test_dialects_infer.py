"""Hiding sizes from ``infer`` may make its answer less precise, never different; examples cover every row."""

from __future__ import annotations

import random

import pytest

from polyconv import dialects

X, W, B = (2, 4, 9, 8), (6, 2, 3, 3), (6,)
LAST = (2, 9, 8, 4)
QUANTISED = ((), (), W, (6,), (6,), (), (), B)

EXAMPLES = {
    "Conv": ({"group": 2, "strides": [2, 1], "auto_pad": "SAME_UPPER"}, [X, W, B]),
    "ConvTranspose": ({"group": 2, "output_shape": [10, 10]}, [X, (4, 3, 3, 3), B]),
    "ConvInteger": ({"group": 2, "pads": [1, 1, 0, 0]}, [X, W, (), (6,)]),
    "QLinearConv": ({"group": 2, "kernel_shape": [3, 3]}, [X, *QUANTISED]),
    "QLinearConvTranspose": ({"group": 2, "strides": [2, 1]}, [X, (), (), (4, 3, 3, 3), (6,), (6,), (), (), B]),
    "DeformConv": ({"group": 2, "offset_group": 2}, [X, W, (2, 36, 7, 6), B, (2, 18, 7, 6)]),
    "CausalConvWithState": ({}, [(2, 4, 9), (4, 1, 3), (4,), (2, 4, 2)]),
    "FusedConv": ({"group": 2}, [X, W, B, (2, 6, 7, 6)]),
    "NhwcConv": ({"group": 2, "dilations": [2, 3]}, [LAST, W, B]),
    "NhwcFusedConv": ({"group": 2}, [LAST, W, B, (2, 7, 6, 6)]),
    "Convolution": ({"auto_pad": "same_lower", "strides": [3, 2]}, [X, (6, 4, 3, 3)]),
    "GroupConvolution": ({"pads_begin": [2, 1]}, [X, (2, 3, 2, 3, 3)]),
    "ConvolutionBackpropData": ({"strides": [2, 1]}, [X, (4, 6, 3, 3)]),
    "GroupConvolutionBackpropData": ({"output_padding": [1, 0], "strides": [2, 2]}, [X, (2, 2, 3, 3, 3)]),
    "DeformableConvolution": ({"group": 2, "deformable_group": 2}, [X, (2, 36, 7, 6), W]),
}
ROWS = [
    *dialects.onnx.OPERATORS.values(),
    *dialects.ort.OPERATORS.values(),
    *dialects.openvino.OPERATORS.values(),
]


def example(row):
    attributes, shapes = EXAMPLES[row.name]
    if row.layout == "NHWC":
        shapes = [LAST, *shapes[1:]]
    return row(**attributes), shapes


def hidden(rng, shape, share):
    if rng.random() < share / 3:
        return None
    return tuple(rng.choice([None, f"s{size}"]) if rng.random() < share else size for size in shape)


def agree(a, b):
    """Whether a less precise shape allows an exact one."""
    return a is None or (
        len(a) == len(b) and all(not isinstance(p, int) or p == q for p, q in zip(a, b, strict=True))
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.domain}.{row.name}-{row.version}")
def test_less_known_is_never_wrong(row):
    operator, shapes = example(row)
    exact = operator.infer(*shapes)
    assert all(isinstance(size, int) for shape in exact for size in shape)
    rng = random.Random(row.name)
    named = 0
    for trial in range(300):
        found = operator.infer(*(hidden(rng, shape, (trial % 10) / 10) for shape in shapes))
        assert len(found) == len(exact)
        assert all(agree(a, b) for a, b in zip(found, exact, strict=True)), found
        named += any(isinstance(size, str) for shape in found if shape for size in shape)
    assert named, "symbols of batch and channels are kept"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.domain}.{row.name}-{row.version}")
def test_problem_and_infer_tell_the_same_shape(row):
    operator, shapes = example(row)
    types = [row.types[i.type][0] for i in row.inputs[: len(shapes)]]
    problem = operator.problem(*shapes, dtypes=types)
    assert problem.y_shape == operator.infer(*shapes)[0]
    assert problem.x_shape == shapes[0]
    assert type(problem).parse(str(problem)) == problem
    assert operator.problem(*shapes) is None, "without types there is no problem"
