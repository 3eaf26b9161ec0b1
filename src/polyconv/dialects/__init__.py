"""One callable per operator, named and versioned as in its specification.

``dialects.onnx.Conv(version=11, strides=[2, 2])(X, W, B)`` computes, ``.infer(...)`` sizes and
``.bind(...)`` packs weights once; ``onnx``, ``ort`` and ``openvino`` are tables of such operators.

Examples
--------
>>> import numpy as np
>>> from polyconv import dialects
>>> conv = dialects.onnx.Conv(version=11, auto_pad="SAME_UPPER", strides=[2])
>>> conv(np.ones((1, 1, 4), np.float32), np.ones((1, 1, 2), np.float32))
array([[[2., 2.]]], dtype=float32)
>>> conv.infer(("N", 1, None), (1, 1, 2))
(('N', 1, None),)
"""

from __future__ import annotations

from polyconv.dialects import onnx, openvino, ort

__all__ = ["onnx", "openvino", "ort"]
