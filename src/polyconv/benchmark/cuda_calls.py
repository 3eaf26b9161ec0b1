"""What a call of a layer on a GPU costs besides the GPU's time: the host's microseconds, and the first call's wait.

A small layer is called, by polyconv and by PyTorch.  It must not know how kernels are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from polyconv.benchmark.cuda import torch_on_gpu
from polyconv.dataclass import dataclass
from polyconv.gpu.code import forget
from polyconv.layer import Conv

__all__ = ["Costs", "costs"]


@dataclass(frozen=True, slots=True)
class Costs:
    """What a call costs besides the GPU's time.

    Parameters
    ----------
    call, call_out : float
        Microseconds of the host for a layer's call that makes its result, and for one that is given it.
    torch : float
        Of PyTorch's ``conv2d``.
    first, size, cached : float
        Milliseconds of a layer's first call, until the result is there: with no code kept, of a new image
        size, and with the code in the cache.
    """

    call: float
    call_out: float
    torch: float
    first: float
    size: float
    cached: float


_CALLS, _BURSTS = 100, 15
"""Calls between two waits, few enough that the GPU's queue is never full, and how often."""


def costs(device: int = 0) -> Costs:
    """Measure what calls of a small layer (64 channels, 3x3, 56x56, f16, channels last) cost the host."""
    torch = torch_on_gpu()
    place = f"cuda:{device}"
    odd = 40 + int(1e6 * time.perf_counter()) % 1000  # an image that no cache knows
    w = torch.randn(64, 64, 3, 3, device=place).half()

    def image(size: int) -> Any:
        return torch.randn(1, 64, 56, size, device=place).half().contiguous(memory_format=torch.channels_last)

    def spent(work: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    with torch.no_grad():
        x, y, z = image(odd), image(odd + 1), image(56)
        first = spent(lambda: Conv(w, pads=1)(x))
        layer = Conv(w, pads=1)
        layer(x)
        size = spent(lambda: layer(y))
        forget()
        cached = spent(lambda: Conv(w, pads=1)(x))
        out = layer(z)
        library = torch.nn.functional.conv2d
        call, call_out = _host(torch, lambda: layer(z)), _host(torch, lambda: layer(z, out=out))
        return Costs(call, call_out, _host(torch, lambda: library(z, w, padding=1)), first, size, cached)


def _host(torch: Any, work: Callable[[], object]) -> float:
    """Microseconds of the host for a call: the least of some bursts."""
    found = []
    for _ in range(_BURSTS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            work()
        found.append(1e6 * (time.perf_counter() - start) / _CALLS)
    return min(found)
