"""The native runner of jobs, loaded: where its functions are, and how Python calls them.

It must know nothing of Python's threads.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Any

from polyconv.kernels.objects import kernel_text
from polyconv.runtime.architecture import architecture_of
from polyconv.runtime.runner_text import SYSTEM, runner_text, without_system
from polyconv.target import host_target

__all__ = ["HAS_FUTEX", "HERE", "function", "native"]

HERE = architecture_of(platform.machine())
"""This CPU's architecture."""
HAS_FUTEX = sys.platform == "linux" and HERE.futex is not None
"""Whether workers can sleep; where they cannot there are none, and jobs run on the caller."""


@cache
def native() -> dict[str, int]:
    """Addresses of the runner's functions: serial, shared, chain, lane, rouse, worker, acquire, release, counter."""
    text = runner_text(HERE)
    symbols = {}
    if HAS_FUTEX:
        process = ctypes.CDLL(None)
        symbols = {n: ctypes.cast(getattr(process, n), ctypes.c_void_p).value or 0 for n in SYSTEM}
    else:
        text = without_system(text)
    functions = ("serial", "shared", "chain", "lane", "rouse", "worker", "acquire", "release", "counter")
    return kernel_text("runner", functions, text, host_target(), symbols)


@cache
def function(name: str, *kinds: Any, result: Any = None) -> Any:
    """One of these functions, to be called from Python."""
    return ctypes.CFUNCTYPE(result, *kinds)(native()[name])
