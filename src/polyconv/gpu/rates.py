"""Rates of generations of GPUs, in cycles of a multiprocessor: numbers that were measured, none of them in a datasheet.

Fitted by least squares of the logarithm to 3,700 times of the 44 layers of ``examples/gpu-layers.txt`` (f16, TF32, f32
in three passes; up to 24 forms each) on an H100 80GB HBM3, 23 November 2026.  Errors are 15 % rms for matrix products,
23 % for patches, 18 % for depthwise kernels; the form predicted fastest takes 4 % longer than the fastest in the
geometric mean.  ``polyconv bench --device cuda --forms N --save FILE`` prints such times.  Generations that nobody
measured have what their datasheets differ by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyconv.dataclass import dataclass

__all__ = ["RATES", "Rates", "TileRate"]


@dataclass(frozen=True, slots=True)
class TileRate:
    """What blocks take that go through stages.

    Parameters
    ----------
    product : float
        For a multiply-add, by bytes of a factor.
    stage : float
        For a stage, however little it does.
    registers : float
        Of a thread, besides its sums.
    beside : float
        For a stage, and each further block that the multiprocessor holds.
    block, result : float
        For a block's first loads and its end; for each of its outputs.
    shared_sum, shared_part : float
        For sums shared by blocks; for each output and block.
    copied, second_cache : float
        Bytes a cycle to shared memory; from the second cache, of each multiprocessor's part.
    """

    product: float
    stage: float
    registers: float
    beside: float = 0.0
    block: float = 3600.0
    result: float = 0.198
    shared_sum: float = 2860.0
    shared_part: float = 0.0066
    copied: float = 41.3
    second_cache: float = 32.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What a generation takes.

    Parameters
    ----------
    tiles : mapping
        By the name of what multiplies and whether products take three passes.
    launch : float
        From the start of a kernel to its first block, and from the last one's end.
    moved, moving : float
        Bytes a cycle of copies of the input, read or written; for such a copy, however small.
    small_block : float
        For the first loads and the end of kernels without stages.
    load, byte, scalar, widening : float
        Of a warp: for a load, for each byte of a thread's, for a multiply-add, for a conversion.
    line, resident : float
        For loads that wait for others; warps that wait at a time.
    other : float
        Share of the shorter of work and waiting that shows beside the longer.
    direct : float
        For a multiply-add of a thread with few input channels.
    """

    tiles: Mapping[tuple[str, bool], TileRate]
    launch: float
    moved: float
    moving: float
    small_block: float
    load: float
    byte: float
    scalar: float
    widening: float
    line: float
    resident: float
    other: float
    direct: float


_PATCH = TileRate(1.33 / 4096, 470, 50, 362, 2900, 0.459, 3540, 0.0283, 97.0, 34.4)

_HOPPER = Rates(
    tiles={
        ("group", False): TileRate(1.86 / 4096, 330, 40), ("group", True): TileRate(1.92 / 4096, 955, 40),
        ("warp", False): TileRate(3.57 / 4096, 346, 60), ("warp", True): TileRate(3.27 / 4096, 805, 60),
        ("scalar", False): TileRate(2.1 / 512, 450, 60),
        ("patch", False): _PATCH, ("patch", True): replace(_PATCH, product=1.96 / 4096, stage=936, registers=90),
    },
    launch=0, moved=8.8, moving=5660, small_block=2410, load=0.915, byte=0.39, scalar=0.717, widening=0.426, line=639,
    resident=51.9, other=0.25, direct=0.035,
)  # fmt: skip

_AMPERE = replace(
    _HOPPER, tiles={name: replace(rate, second_cache=25.0) for name, rate in _HOPPER.tiles.items()}, moved=7.0
)

RATES = {"ampere": _AMPERE, "hopper": _HOPPER}
