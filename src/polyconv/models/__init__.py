"""Model files run as a whole: convolutions on polyconv, all else on the engine that is installed.

``InferenceSession`` is the way in; ONNX and OpenVINO files become one neutral graph, which is fused, cut
at its convolutions and run in steps.
"""

from __future__ import annotations

from polyconv.models.session import InferenceSession, NodeRecord

__all__ = ["InferenceSession", "NodeRecord"]
