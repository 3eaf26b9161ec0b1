"""The clock of this machine: cycles a second of one core, timed once a process.

Predictions are in cycles; what a machine needs seconds for (is a call long enough to be shared, to wake a thread, to
release the GIL?) reads them here.  A choice of algorithm must not: it would change bits with the weather.  It must not
know what is predicted.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

from polyconv.kernels.objects import kernel_text
from polyconv.target import host_target

__all__ = ["cycles_a_second"]

# Additions and exclusive ors that wait for each other take one cycle each on every CPU with LLVM's integer arithmetic,
# and cannot be combined.  Operating systems often tell another number than the core runs at, virtual machines always.
_PAIRS, _TURNS, _TRIES = 32, 1500, 6
_TEXT = f"""
define i64 @chain(i64 %turns, i64 %a, i64 %b) {{
entry:
  br label %turn
turn:
  %left = phi i64 [%turns, %entry], [%fewer, %turn]
  %v0 = phi i64 [%a, %entry], [%v{_PAIRS}, %turn]
  {"".join(f'''
  %s{i} = add i64 %v{i}, %a
  %v{i + 1} = xor i64 %s{i}, %b''' for i in range(_PAIRS))}
  %fewer = sub i64 %left, 1
  %more = icmp ne i64 %fewer, 0
  br i1 %more, label %turn, label %done
done:
  ret i64 %v{_PAIRS}
}}
"""


@cache
def cycles_a_second() -> float:
    """Cycles a second, in two digits: the best of a few runs that take 0.2 ms together."""
    address = kernel_text("clock", ("chain",), _TEXT, host_target(), {})["chain"]
    chain = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)
    seconds = min(_timed(chain) for _ in range(_TRIES))
    return float(f"{2 * _PAIRS * _TURNS / seconds:.2g}")


def _timed(chain: Callable[[int, int, int], int]) -> float:
    start = time.perf_counter()
    chain(_TURNS, 3, 5)
    return time.perf_counter() - start
