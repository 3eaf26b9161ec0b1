"""Sizes along one axis: what a kernel covers, and how many outputs there are.  It must not know problems."""

from __future__ import annotations

__all__ = ["Extent", "effective_kernel", "output_extent"]

Extent = int | None
"""A size; None where it is known only when an array arrives."""


def effective_kernel(kernel: int, dilation: int) -> int:
    """Extent covered by a kernel of ``kernel`` taps: ``(kernel - 1) * dilation + 1``."""
    return (kernel - 1) * dilation + 1


def output_extent(i: int, k: int, s: int, d: int, begin: int, end: int) -> int:
    """Forward output extent ``floor((i + begin + end - ke) / s) + 1`` (semantics 2.2); may be <= 0."""
    return (i + begin + end - effective_kernel(k, d)) // s + 1
