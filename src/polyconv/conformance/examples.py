"""The worked examples of the published operator pages, as data.

Each is a node, its input, its weights and the result that its page prints, in the main domain's
channels-first order; whoever runs them for a channels-last domain moves the channel axis.  Not one
number here was computed by polyconv.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass

__all__ = ["EXAMPLES", "Example"]

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Example:
    """One worked example.

    Parameters
    ----------
    pages : tuple of (str, str, tuple of int)
        Dialect, operator and versions whose page prints it.
    name : str
        As on the page.
    x, w, y : array
        Operands and result, channels first.
    attributes : dict
        Spelled as on the page.
    """

    pages: tuple[tuple[str, str, tuple[int, ...]], ...]
    name: str
    x: Array
    w: Array
    y: Array
    attributes: dict[str, Any] = field(default_factory=dict)


def _counting(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _printed(text: str, *shape: int) -> Array:
    """Numbers as printed; a result with two output channels prints the same ones twice."""
    values = np.array(text.split(), np.float32)
    return np.resize(values, shape)


_MAIN = ("onnx", "Conv", (1, 11))
_NHWC = ("ort", "Conv", (11,))
_TRANSPOSE = (("ort", "ConvTranspose", (1,)),)
_KERNEL_3X3 = np.ones((1, 1, 3, 3), np.float32)
_TWO_3X3 = np.ones((1, 2, 3, 3), np.float32)

_CONV = (
    Example(
        (_MAIN,), "basic_conv_with_padding", _counting(1, 1, 5, 5), _KERNEL_3X3,
        _printed("""
            12 21 27 33 24
            33 54 63 72 51
            63 99 108 117 81
            93 144 153 162 111
            72 111 117 123 84""", 1, 1, 5, 5),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    ),
    Example(
        (_MAIN,), "basic_conv_without_padding", _counting(1, 1, 5, 5), _KERNEL_3X3,
        _printed("""
            54 63 72
            99 108 117
            144 153 162""", 1, 1, 3, 3),
        {"kernel_shape": [3, 3], "pads": [0, 0, 0, 0]},
    ),
    Example(
        (_MAIN, _NHWC), "conv_with_strides_padding", _counting(1, 1, 7, 5), _KERNEL_3X3,
        _printed("""
            12 27 24
            63 108 81
            123 198 141
            112 177 124""", 1, 1, 4, 3),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    Example(
        (_MAIN, _NHWC), "conv_with_strides_no_padding", _counting(1, 1, 7, 5), _KERNEL_3X3,
        _printed("""
            54 72
            144 162
            234 252""", 1, 1, 3, 2),
        {"kernel_shape": [3, 3], "pads": [0, 0, 0, 0], "strides": [2, 2]},
    ),
    Example(
        (_MAIN, _NHWC), "conv_with_strides_and_asymmetric_padding", _counting(1, 1, 7, 5), _KERNEL_3X3,
        _printed("""
            21 33
            99 117
            189 207
            171 183""", 1, 1, 4, 2),
        {"kernel_shape": [3, 3], "pads": [1, 0, 1, 0], "strides": [2, 2]},
    ),
    Example(
        (_MAIN, _NHWC), "conv_with_autopad_same", _counting(1, 1, 5, 5), _KERNEL_3X3,
        _printed("""
            12 27 24
            63 108 81
            72 117 84""", 1, 1, 3, 3),
        {"auto_pad": "SAME_LOWER", "kernel_shape": [3, 3], "strides": [2, 2]},
    ),
)  # fmt: skip

_STRIDES_3X2 = _printed("""
    0 0 1 1 3 2 2 0
    0 0 1 1 3 2 2 0
    0 0 1 1 3 2 2 0
    3 3 7 4 9 5 5 0
    3 3 7 4 9 5 5 0
    3 3 7 4 9 5 5 0
    6 6 13 7 15 8 8 0
    6 6 13 7 15 8 8 0
    6 6 13 7 15 8 8 0
    0 0 0 0 0 0 0 0""", 1, 2, 10, 8)  # fmt: skip

_VOLUME = _printed("""
    0 1 3 6 9 7 4           5 12 21 27 33 24 13         15 33 54 63 72 51 27
    30 63 99 108 117 81 42  25 52 81 87 93 64 33        15 31 48 51 54 37 19

    20 42 66 72 78 54 28        50 104 162 174 186 128 66   90 186 288 306 324 222 114
    120 246 378 396 414 282 144 90 184 282 294 306 208 106  50 102 156 162 168 114 58

    60 123 189 198 207 141 72   135 276 423 441 459 312 159 225 459 702 729 756 513 261
    270 549 837 864 891 603 306 195 396 603 621 639 432 219 105 213 324 333 342 231 117

    60 122 186 192 198 134 68   130 264 402 414 426 288 146 210 426 648 666 684 462 234
    240 486 738 756 774 522 264 170 344 522 534 546 368 186 90 182 276 282 288 194 98

    40 81 123 126 129 87 44     85 172 261 267 273 184 93   135 273 414 423 432 291 147
    150 303 459 468 477 321 162 105 212 321 327 333 224 113 55 111 168 171 174 117 59
    """, 1, 2, 5, 6, 7)  # fmt: skip

_CONV_TRANSPOSE = (
    Example(
        _TRANSPOSE, "convtranspose", _counting(1, 1, 3, 3), _TWO_3X3,
        _printed("""
            0 1 3 3 2
            3 8 15 12 7
            9 21 36 27 15
            9 20 33 24 13
            6 13 21 15 8""", 1, 2, 5, 5),
    ),
    Example(
        _TRANSPOSE, "convtranspose_1d", _counting(1, 1, 3), np.ones((1, 2, 3), np.float32),
        _printed("0 1 3 3 2", 1, 2, 5),
    ),
    Example(
        _TRANSPOSE, "convtranspose_3d",
        _counting(1, 1, 3, 4, 5), np.ones((1, 2, 3, 3, 3), np.float32), _VOLUME,
    ),
    Example(
        _TRANSPOSE, "convtranspose_output_shape", _counting(1, 1, 3, 3), _TWO_3X3, _STRIDES_3X2,
        {"strides": [3, 2], "output_shape": [10, 8]},
    ),
    Example(
        _TRANSPOSE, "convtranspose_pad", _counting(1, 1, 3, 3), _TWO_3X3, _STRIDES_3X2,
        {"strides": [3, 2], "output_padding": [1, 1]},
    ),
    Example(
        _TRANSPOSE, "convtranspose_kernel_shape", _counting(1, 1, 3, 3), _TWO_3X3, _STRIDES_3X2,
        {"strides": [3, 2], "output_shape": [10, 8], "kernel_shape": [3, 3], "output_padding": [1, 1]},
    ),
    Example(
        _TRANSPOSE, "convtranspose_pads", _counting(1, 1, 3, 3), _TWO_3X3,
        _printed("""
            1 1 3
            1 1 3
            7 4 9
            7 4 9
            7 4 9
            13 7 15
            13 7 15""", 1, 2, 7, 3),
        {"strides": [3, 2], "pads": [1, 2, 1, 2]},
    ),
    Example(
        _TRANSPOSE, "convtranspose_dilations",
        np.array([[[[3, 8, 1], [9, 5, 7], [3, 2, 6]]]], np.float32),
        np.array([[[[7, 2], [1, 9]]]], np.float32),
        _printed("""
            21 56 13 16 2
            63 35 67 10 14
            24 22 76 76 21
            9 5 88 45 63
            3 2 33 18 54""", 1, 1, 5, 5),
        {"dilations": [2, 2]},
    ),
    Example(
        _TRANSPOSE, "convtranspose_autopad_same", _counting(1, 1, 3, 3), _TWO_3X3,
        _printed("""
            0 0 1 1 3 2
            0 0 1 1 3 2
            3 3 8 5 12 7
            3 3 7 4 9 5
            9 9 20 11 24 13
            6 6 13 7 15 8""", 1, 2, 6, 6),
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
)  # fmt: skip

EXAMPLES: tuple[Example, ...] = _CONV + _CONV_TRANSPOSE
"""All of them; the three layers that OpenVINO's page prints are in ``layers_ir``."""
