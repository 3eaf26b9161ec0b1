"""Rates of generations of GPUs, in cycles of a multiprocessor: numbers that were measured, none of them in a datasheet.

Fitted by least squares of the logarithm to 864 times of 35 layers (f16, TF32, f32 in three passes; up to nine forms
each) on an H100 80GB HBM3, 23 November 2026: the error is 15 % rms, and the form predicted fastest takes 3 % longer
than the fastest measured.  Generations that nobody measured have what their datasheets differ by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = ["RATES", "Rates", "UnitRate"]


@dataclass(frozen=True, slots=True)
class UnitRate:
    """What one unit takes.

    Parameters
    ----------
    product : float
        For a multiply-add, by bytes of a factor.
    stage : float
        For a stage, however little it does.
    """

    product: float
    stage: float


@dataclass(frozen=True, slots=True)
class Rates:
    """What a generation takes.

    Parameters
    ----------
    units : mapping
        By the unit's name and whether products take three passes.
    launch : float
        From the start of a kernel to its first block, and from the last one's end.
    block, result : float
        For a block's first loads and its end; for each of its outputs.
    shared_sum, shared_part : float
        For sums shared by blocks; for each output and block.
    copied, second_cache, moved : float
        Bytes a cycle to shared memory; from the second cache, of each multiprocessor's part; read or written
        by copies of the input.
    moving : float
        For such a copy, however small.
    patch_step : float
        For a tap of a patch, however little it does.
    load, scalar : float
        For a load and a multiply-add of one thread.
    line : float
        For loads that wait for others.
    """

    units: Mapping[tuple[str, bool], UnitRate]
    launch: float
    block: float
    result: float
    shared_sum: float
    shared_part: float
    copied: float
    second_cache: float
    moved: float
    moving: float
    patch_step: float
    load: float
    scalar: float
    line: float


_HOPPER = Rates(
    units={
        ("group", False): UnitRate(2.01 / 4096, 325), ("group", True): UnitRate(1.96 / 4096, 925),
        ("warp", False): UnitRate(3.59 / 4096, 139), ("warp", True): UnitRate(3.40 / 4096, 794),
        ("scalar", False): UnitRate(2.1 / 512, 450),
    },
    launch=225, block=3950, result=0.125, shared_sum=2810, shared_part=45.4 / 4096, copied=40.2, second_cache=30.4,
    moved=18.6, moving=6540, patch_step=300, load=0.062, scalar=0.0135, line=470,
)  # fmt: skip

RATES = {"ampere": replace(_HOPPER, second_cache=25.0, moved=15.0), "hopper": _HOPPER}
