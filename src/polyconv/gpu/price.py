"""What a form costs: from the work of its kernels and a device's numbers to seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyconv.gpu.device import Device

__all__ = ["seconds_of"]

_LAUNCH = 0.9e-6
_FIRST_LOADS = 1.0e-6
_SHARED_SUM = 1.1e-6


def seconds_of(device: Device, steps: Sequence[Any], moved: Any) -> float:
    """Predicted seconds of a form."""
    total = 0.0
    if moved is not None:
        total += _LAUNCH + _FIRST_LOADS + 2.0 * moved.bytes / (0.6 * device.memory)
    for step in steps:
        total += _LAUNCH + _FIRST_LOADS + _kernel(device, step.kernel)
    return total


def _kernel(device: Device, kernel: Any) -> float:
    tile = getattr(kernel, "tile", None)
    if tile is None:
        return float(kernel.g.pixels * kernel.g.groups * kernel.g.m * kernel.g.taps * kernel.g.c) / 1e12
    blocks = kernel.grid[0]
    stages = -(-kernel.steps // tile.split)
    waves = -(-blocks // device.multiprocessors)
    rate = {"group": 2048.0, "warp": 1024.0, "scalar": 128.0}[tile.unit]
    size = kernel.unit.element_bytes
    passes = 3 if kernel.unit.arithmetic.three else 1
    products = tile.rows * tile.columns * tile.bytes / size * passes * (size / 2 if tile.unit != "scalar" else 1)
    cycles = max(products / rate, (tile.rows + tile.columns * kernel.unit.parts) * tile.bytes / 40.0, 150.0)
    return float(waves * stages * cycles) / device.clock + (_SHARED_SUM if tile.split > 1 else 0.0)
