"""The control block: one page of memory in which the threads of the pool find the job that runs, and each other.

It is never freed: a worker may look at it while the interpreter shuts down.

====  ==========================================================================================
  0   ticket word: generation (24 bits) | threads (8) | items left (32); its upper half is the futex
 64   workers asleep; cycles that a worker spins beyond its time, because of a chain of jobs, until one sleeps
128   items finished
192   address of the job
256   lock: a job, with the shared workspace, is running
264   shared workspace: address, bytes
280   CPU that workers are kept away from; number of workers
288   cycle counter at the end of the last shared job; cycles that a worker spins; counter at the begin of the burst
320   thread ids of the workers (64)
576   allowed CPUs (1024 bits); 704 scratch for the same
====  ==========================================================================================

It must not know who reads and writes it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from polyconv.runtime.arrays import aligned

__all__ = ["CONTROL", "poke"]

_memory = aligned(8192, np.uint8)
CONTROL: int = _memory.ctypes.data
"""Address of the control block."""
_eternal = [ctypes.py_object(_memory)]
ctypes.pythonapi.Py_IncRef(_eternal[0])


def poke(offset: int, kind: Any, value: int) -> None:
    """Write a number into the control block; ``kind`` is its ctypes type."""
    kind.from_address(CONTROL + offset).value = value
