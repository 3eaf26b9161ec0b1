"""One callable per operator, named and versioned as in its specification.

``dialects.onnx.Conv(version=11, strides=[2, 2])(X, W, B)`` computes, ``.infer(...)`` sizes and
``.bind(...)`` packs weights once; ``onnx``, ``ort`` and ``openvino`` are tables of such operators.
"""

from __future__ import annotations

from polyconv.dialects import onnx, openvino, ort

__all__ = ["onnx", "openvino", "ort"]
