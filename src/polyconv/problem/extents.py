"""Sizes along spatial axes: what a kernel covers, how many outputs there are.  It must not know problems."""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.errors import ArgumentError

__all__ = ["Extent", "batch_and_spatial", "effective_kernel", "output_extent"]

Extent = int | None
"""A size; None where it is known only when an array arrives."""


def effective_kernel(kernel: int, dilation: int) -> int:
    """Extent covered by a kernel of ``kernel`` taps: ``(kernel - 1) * dilation + 1``."""
    return (kernel - 1) * dilation + 1


def output_extent(i: int, k: int, s: int, d: int, begin: int, end: int) -> int:
    """Forward output extent ``floor((i + begin + end - ke) / s) + 1`` (semantics 2.2); may be <= 0."""
    return (i + begin + end - effective_kernel(k, d)) // s + 1


def batch_and_spatial(shape: Sequence[int], layout: str) -> tuple[int, tuple[int, ...]]:
    """Batch and spatial extents of an input of a shape.

    Raises
    ------
    ArgumentError
        If it has none.
    """
    if len(shape) < 3:
        raise ArgumentError(f"x has shape {tuple(shape)}; it needs batch, channel and at least one spatial axis")
    return shape[0], tuple(shape[1:-1] if layout == "NHWC" else shape[2:])
