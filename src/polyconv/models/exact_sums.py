"""ONNX Runtime's sums of bytes, exact on CPUs without dot products of bytes too.

Its kernels there add products of u8 by i8 in pairs that saturate at 16 bits, unless a session asks for exact sums.
"""

from __future__ import annotations

from typing import Any

from polyconv.target import host_target

__all__ = ["ask_for_exact_sums"]


def ask_for_exact_sums(options: Any) -> None:
    """Have an ``onnxruntime`` session with these options sum bytes exactly where it would not."""
    if not host_target().vnni:
        options.add_session_config_entry("session.x64quantprecision", "1")
