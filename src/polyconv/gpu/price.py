"""What a form costs: from the work of its kernels and the rates of a device to seconds.

A multiprocessor holds some blocks at once; each goes from stage to stage, which takes the longest of its products, its
copies from the second cache, and the time that a stage needs however little it does.  All that is copied also passes
the second cache.  The numbers are in ``rates``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyconv.gpu.device import Device
from polyconv.gpu.rates import RATES

__all__ = ["seconds_of"]


def seconds_of(device: Device, steps: Sequence[Any], moved: Any) -> float:
    """Predicted seconds of a form."""
    rates = RATES[device.generation]
    cycles = 0.0
    if moved is not None:
        cycles += rates.moving + 2 * moved.bytes / (rates.moved * device.multiprocessors)
    for step in steps:
        cycles += rates.launch + _PRICES[type(step.kernel).__name__](device, step.kernel)
    return cycles / device.clock


def _gemm(device: Device, kernel: Any) -> float:
    rates, tile, unit = RATES[device.generation], kernel.tile, kernel.unit
    row = rates.units[tile.unit, unit.arithmetic.three]
    blocks = kernel.grid[0]
    at_once = max(1, min(device.shared_multiprocessor // (kernel.shared + 1024), 2048 // kernel.threads))
    most = -(-blocks // device.multiprocessors)  # of one multiprocessor
    at_once = min(at_once, most)
    rounds = most / at_once
    stages = -(-kernel.steps // tile.split)
    passes = 3 if unit.arithmetic.three else 1
    products = tile.rows * tile.columns * tile.bytes / unit.element_bytes * passes
    copied = (tile.rows + tile.columns * unit.parts) * tile.bytes
    stage = max(row.stage, at_once * max(products * row.product * unit.element_bytes, copied / rates.copied))
    cycles = max(rounds * stages * stage, blocks * stages * copied / (rates.second_cache * device.multiprocessors))
    cycles += rounds * rates.block + most * tile.rows * tile.columns * rates.result
    if tile.split > 1:
        cycles += rates.shared_sum + rates.shared_part * tile.split * tile.rows * tile.columns
    return float(cycles)


def _patch(device: Device, kernel: Any) -> float:
    rates, tile = RATES[device.generation], kernel.tile
    row = rates.units["group", kernel.arithmetic.three]
    blocks = kernel.grid[0]
    at_once = max(1, min(device.shared_multiprocessor // (kernel.shared + 1024), 2048 // kernel.threads))
    most = -(-blocks // device.multiprocessors)
    at_once = min(at_once, most)
    steps = -(-kernel.steps // tile.split)
    passes = 3 if kernel.arithmetic.three else 1
    size = kernel.tile.height * kernel.tile.width
    products = size * tile.columns * 128 / kernel.arithmetic.bytes * passes
    copied = kernel.slot_bytes + kernel.patch_bytes / kernel.plane_taps
    step = max(rates.patch_step, at_once * max(products * row.product * kernel.arithmetic.bytes, copied / rates.copied))
    cycles = max(
        most / at_once * steps * step, blocks * steps * copied / (rates.second_cache * device.multiprocessors)
    )
    cycles += most / at_once * rates.block + most * size * tile.columns * rates.result
    if tile.split > 1:
        cycles += rates.shared_sum + rates.shared_part * tile.split * size * tile.columns
    return float(cycles)


def _depthwise(device: Device, kernel: Any) -> float:
    rates, g = RATES[device.generation], kernel.g
    axis = g.axes[kernel.along]
    lines = g.taps // axis.taps
    loads = lines * len({o * axis.stride + t * axis.dilation for o in range(kernel.outputs) for t in range(axis.taps)})
    products = g.taps * kernel.outputs * kernel.channels
    threads = kernel.total / device.multiprocessors
    work = threads * ((loads + g.taps) * rates.load + products * rates.scalar)
    return float(max(work, lines * rates.line) + rates.block)


def _direct(device: Device, kernel: Any) -> float:
    rates, g = RATES[device.generation], kernel.g
    threads = kernel.grid[0] * kernel.threads / device.multiprocessors
    each = kernel.pixels * (rates.load + kernel.columns * rates.scalar) + kernel.columns / 4 * rates.load
    waves = -(-kernel.grid[0] // (device.multiprocessors * 8))
    lines = kernel.terms if g.c * g.axes[-1].taps > 48 else kernel.terms / 6
    work = max(threads * kernel.terms * each, waves * lines * rates.line / 3)
    stored = g.pixels * g.m * g.groups / device.multiprocessors * rates.result
    return float(work + stored + rates.block)


def _plain(device: Device, kernel: Any) -> float:
    rates, g = RATES[device.generation], kernel.g
    steps = g.taps * g.c
    return float(max(kernel.total / device.multiprocessors * steps * 2 * rates.load, steps * rates.line) + rates.block)


_PRICES = {"Gemm": _gemm, "Patch": _patch, "Depthwise": _depthwise, "Direct": _direct, "Plain": _plain}

