"""The control block: memory in which the threads of the pool find the job that runs, and each other.

It is never freed: a worker may look at it while the interpreter shuts down.

====  ==========================================================================================
  0   ticket word of the caller: generation (24 bits) | threads (8) | items left (32); its upper half is the futex
 64   workers asleep; cycles that a worker spins beyond its time, because of a chain of jobs, until one sleeps
128   items finished
192   address of the job
256   lock: a job, with the shared workspace, is running
264   shared workspace: address, bytes
280   CPU that workers are kept away from; number of workers
288   cycle counter at the end of the last shared job; cycles that a worker spins; counter at the begin of the burst
320   thread ids of the workers (64)
576   allowed CPUs (1024 bits); 704 scratch for the same
1088  ticket word of the first worker, that of the next one as far behind it, and so on
====  ==========================================================================================

It must not know who reads and writes it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from polyconv.runtime.arrays import aligned

__all__ = ["CONTROL", "SHARE_BYTES", "poke"]

SHARE_BYTES = 1088
"""From one thread's ticket word to the next one's: whole lines, and not all of them in one set of a cache."""
_memory = aligned(64 * SHARE_BYTES, np.uint8)
CONTROL: int = _memory.ctypes.data
"""Address of the control block."""
_eternal = [ctypes.py_object(_memory)]
ctypes.pythonapi.Py_IncRef(_eternal[0])


def poke(offset: int, kind: Any, value: int) -> None:
    """Write a number into the control block; ``kind`` is its ctypes type."""
    kind.from_address(CONTROL + offset).value = value
