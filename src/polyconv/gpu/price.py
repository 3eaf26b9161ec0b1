"""What a form costs: from the work of its kernels and the rates of a device to seconds.

A multiprocessor holds some blocks at once; each goes from stage to stage, which takes the longest of its products, its
copies from the second cache, and the time that a stage needs however little it does.  All that is copied also passes
the second cache.  The numbers are in ``rates``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyconv.dtypes import DTYPES
from polyconv.gpu.device import Device
from polyconv.gpu.rates import RATES, TileRate

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


def _tiles(device: Device, kernel: Any, rate: TileRate, *, sums: int, steps: int, products: float, copied: float
           ) -> float:  # fmt: skip
    """Cycles of blocks that go through stages.

    Parameters
    ----------
    sums : int
        Of a block.
    steps : int
        Stages of a block.
    products, copied : float
        Of a stage: multiply-adds times the bytes of a factor, and bytes.
    """
    split = kernel.cluster
    held = 2 if kernel.tile.parts > split else 1  # sums, and totals of parts
    registers = min(255, held * sums / kernel.threads + rate.registers)
    at_once = min(
        device.shared_multiprocessor // (kernel.shared + 1024), 2048 // kernel.threads,
        int(65536 / (kernel.threads * registers)),
    )  # fmt: skip
    blocks = kernel.grid[0]
    most = -(-blocks // device.multiprocessors)  # of one multiprocessor
    at_once = max(1, min(at_once, most))
    stage = max(rate.stage + rate.beside * (at_once - 1), at_once * max(products * rate.product, copied / rate.copied))
    rounds = most / at_once
    cycles = max(rounds * steps * stage, blocks * steps * copied / (rate.second_cache * device.multiprocessors))
    cycles += rounds * rate.block + most * sums * rate.result
    return float(cycles + (rate.shared_sum + rate.shared_part * split * sums if split > 1 else 0.0))


def _gemm(device: Device, kernel: Any) -> float:
    tile, unit = kernel.tile, kernel.unit
    three = unit.arithmetic.three
    passes = 3.0 if three else 1.0
    if kernel.g.quantities.zw:  # inputs are summed as 8 more columns of each warp
        passes += 8 * tile.warps[1] / tile.columns
    return _tiles(
        device, kernel, RATES[device.generation].tiles[tile.unit, three], sums=tile.rows * tile.columns,
        steps=-(-kernel.steps // tile.split), products=tile.rows * tile.columns * tile.bytes * passes,
        copied=(tile.rows + tile.columns * unit.parts) * tile.bytes,
    )  # fmt: skip


def _patch(device: Device, kernel: Any) -> float:
    tile, three = kernel.tile, kernel.arithmetic.three
    sums = tile.height * tile.width * tile.columns
    return _tiles(
        device, kernel, RATES[device.generation].tiles["patch", three], sums=sums,
        steps=-(-kernel.steps // tile.split), products=sums * 128 * (3 if three else 1),
        copied=kernel.slot_bytes + kernel.patch_bytes / kernel.plane_taps,
    )  # fmt: skip


def _depthwise(device: Device, kernel: Any) -> float:
    rates, g = RATES[device.generation], kernel.g
    axis, size = g.axes[kernel.along], DTYPES[g.x_type].itemsize
    lines = g.taps // axis.taps
    loads = lines * len({o * axis.stride + t * axis.dilation for o in range(kernel.outputs) for t in range(axis.taps)})
    loads += g.taps
    each = loads * (rates.load + rates.byte * kernel.channels * size)
    each += g.taps * kernel.outputs * kernel.channels * rates.scalar
    each += loads * kernel.channels * rates.widening if size < 4 else 0.0
    warps = kernel.total / 32 / device.multiprocessors
    work, waiting = warps * each, max(1.0, warps / rates.resident) * lines * rates.line
    return float(rates.small_block + max(work, waiting) + rates.other * min(work, waiting))


def _direct(device: Device, kernel: Any) -> float:
    rates, g = RATES[device.generation], kernel.g
    products = kernel.grid[0] * kernel.threads * kernel.pixels * kernel.columns * kernel.terms / device.multiprocessors
    more = 1 + 0.1 * (kernel.pixels > 1) + 0.15 * (kernel.columns > 16)
    return float(rates.small_block + products * rates.direct * more * (2 if g.x_type == "f64" else 1))


def _plain(device: Device, kernel: Any) -> float:
    rates, g = RATES[device.generation], kernel.g
    steps, warps = g.taps * g.c, kernel.total / 32 / device.multiprocessors
    return float(rates.small_block + max(1.0, warps / rates.resident) * steps * rates.line)


_CORNERS = 4


def _deformable(device: Device, kernel: Any) -> float:
    """Loads of corners, and of weights that a block's threads share, beside multiply-adds; nobody measured it."""
    rates, g = RATES[device.generation], kernel.g
    terms = kernel.grid[0] * kernel.threads * g.taps * g.c / device.multiprocessors
    each = _CORNERS * (rates.load + rates.byte * DTYPES[g.x_type].itemsize + rates.scalar) / 32
    return float(rates.small_block + terms * (each + kernel.columns * (rates.direct + rates.load / 32)))


_PRICES = {
    "Deformable": _deformable, "Depthwise": _depthwise, "Direct": _direct, "Gemm": _gemm, "Patch": _patch,
    "Plain": _plain,
}  # fmt: skip
