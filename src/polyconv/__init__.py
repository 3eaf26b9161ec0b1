"""Convolution in every dialect, planned and compiled for the CPU it runs on.

``conv`` and ``conv_transpose`` take arrays, ``Conv`` and ``ConvTranspose`` hold packed weights, ``plan``
explains a ``Problem``, ``InferenceSession`` runs a model file, ``dialects`` has one callable per
operator of ONNX, ONNX Runtime and OpenVINO, ``ndimage`` filters pictures and fields, and ``wisdom`` keeps what
measuring found out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from polyconv.errors import (
    ArgumentError,
    DtypeError,
    Error,
    IgnoredWarning,
    ModelError,
    OutOfMemory,
    OverflowWarning,
    Unsupported,
)
from polyconv.settings import settings

if TYPE_CHECKING:
    from polyconv import dialects, ndimage
    from polyconv.layer import Conv, ConvTranspose, Plan, conv, conv_transpose, plan
    from polyconv.models.ort_value import OrtValue
    from polyconv.models.providers import get_available_providers
    from polyconv.models.session import InferenceSession
    from polyconv.models.session_options import ExecutionMode, GraphOptimizationLevel, RunOptions, SessionOptions
    from polyconv.planning import wisdom
    from polyconv.problem.problem import Problem

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "Conv", "ConvTranspose", "DtypeError", "Error", "ExecutionMode", "GraphOptimizationLevel",
    "IgnoredWarning", "InferenceSession", "ModelError", "OrtValue", "OutOfMemory", "OverflowWarning", "Plan", "Problem",
    "RunOptions", "SessionOptions", "Unsupported", "conv", "conv_transpose", "dialects", "get_available_providers",
    "ndimage", "plan", "settings", "wisdom",
]  # fmt: skip

logging.getLogger(__name__).addHandler(logging.NullHandler())

# What pulls in NumPy, LLVM or a reader is imported when it is first named, so that importing costs little.
_LATER = {
    name: module
    for module, names in {
        "polyconv.problem.problem": ("Problem",),
        "polyconv.layer": ("Conv", "ConvTranspose", "Plan", "conv", "conv_transpose", "plan"),
        "polyconv.models.session": ("InferenceSession",),
        "polyconv.models.ort_value": ("OrtValue",),
        "polyconv.models.providers": ("get_available_providers",),
        "polyconv.models.session_options": ("ExecutionMode", "GraphOptimizationLevel", "RunOptions", "SessionOptions"),
    }.items()
    for name in names
}  # fmt: skip

_MODULES = {
    "dialects": "polyconv.dialects", "ndimage": "polyconv.ndimage", "wisdom": "polyconv.planning.wisdom",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    from polyconv.collecting import uncollected

    module = _LATER.get(name) or _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'polyconv' has no attribute {name!r}")
    with uncollected():
        made = importlib.import_module(module)
    value = globals()[name] = getattr(made, name) if name in _LATER else made
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
