"""Element types that passes compute with: those of convolutions, and truth values.

It must not know what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyconv.dtypes import DTYPES, Dtype
from polyconv.kernels.convert import LLVM_NAMES

__all__ = ["HALVES", "LLVM", "TRUTH", "TYPES", "dtype_name", "untaken"]

TRUTH = "bool"
"""Name of the type of truth values, which lie in memory as bytes of 0 and 1."""

TYPES: Mapping[str, Dtype] = {**DTYPES, TRUTH: Dtype(TRUTH, np.dtype(np.bool_), "b", 8, "", 0.0)}
"""Name -> type."""

LLVM: Mapping[str, str] = {**LLVM_NAMES, TRUTH: "i8"}
"""Name -> LLVM's element, under which it is loaded and stored."""

HALVES = ("f16", "bf16")
"""Floats of 16 bits, which only a GPU's passes compute with."""

_NAMES = {row.numpy: name for name, row in TYPES.items()}


def dtype_name(dtype: Any, *, has_halves: bool = False, has_truth: bool = False) -> str | None:
    """Name of a NumPy dtype that passes compute with; of floats of 16 bits and truth values if so said."""
    if isinstance(dtype, str) and not dtype:
        return None
    name = _NAMES.get(np.dtype(dtype))
    return None if (name in HALVES and not has_halves) or (name == TRUTH and not has_truth) else name


def untaken(dtype: str) -> str:
    """Why operands of a type are not taken."""
    return f"{dtype} is not computed here" if dtype else "the model does not say the type of an input"
