"""Positions of two arrays one behind the other: the past of a causal convolution, then its input.

Extents and steps are told to a launch, so that one code per type is enough.
"""

from __future__ import annotations

import math
from typing import ClassVar

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import I64, Kernel, Pointer, Value

__all__ = ["Joined"]

_THREADS = 256
_AXES = ("n", "c", "at")


@dataclass(frozen=True, slots=True)
class Joined:
    """A kernel to make.

    Parameters
    ----------
    shape : (int, int, int)
        Of the result: batch, channels, positions.
    history, first : int
        Positions before the input's first; which of all is the result's first.
    past, x : tuple of int or None
        Steps in elements; where there is no past zeros take its place.
    dtype : str
        A name of ``DTYPES``.
    """

    shape: tuple[int, int, int]
    history: int
    first: int
    past: tuple[int, ...] | None
    x: tuple[int, ...]
    dtype: str
    threads: ClassVar[int] = _THREADS
    shared: ClassVar[int] = 0
    cluster: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"joined {self.dtype}" + " without a past" * (self.past is None)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-math.prod(self.shape) // _THREADS), 1, 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        return *(("past",) if self.past is not None else ()), "input", "target"

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        told = {"size": math.prod(self.shape), "channels": self.shape[1], "positions": self.shape[2]}
        told |= {"history": self.history, "first": self.first}
        for source, steps in (("past", self.past or (0, 0, 0)), ("input", self.x)):
            told |= {f"{source}_{axis}": step for axis, step in zip(_AXES, steps, strict=True)}
        return told

    def kernel(self) -> Kernel:
        """The kernel: a thread writes one element."""
        k = Kernel("joined", self.arguments, _THREADS, numbers=tuple(self.numbers))
        told, size, element = k.numbers, DTYPES[self.dtype].itemsize, ELEMENTS[self.dtype]
        index = k.cast("zext", k.block[0], I64) * _THREADS + k.cast("zext", k.thread, I64)
        with k.when(index.below(told["size"])):
            row, at = index // told["positions"], index % told["positions"] + told["first"]
            image, channel = row // told["channels"], row % told["channels"]

            def place(source: str, position: Value) -> Pointer:
                steps = (told[f"{source}_{axis}"] for axis in _AXES)
                total = [here * step for here, step in zip((image, channel, position), steps, strict=True)]
                return Pointer(source, (total[0] + total[1] + total[2]) * size)

            is_past = at < told["history"]
            value = k.variable(0, element)
            with k.when(is_past, otherwise=True):
                value.set(k.load(element, place("input", at - told["history"])))
            if self.past is not None:
                with k.when(is_past):
                    value.set(k.load(element, place("past", at)))
            k.store(value.get(), Pointer("target", index * size))
        return k
