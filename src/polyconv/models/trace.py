"""What a session did and when, as a file that trace viewers open (the trace event format of Chrome, as onnxruntime's).

Runs and steps become complete events in microseconds since the trace began.  It knows of a step only its name,
operator and engine.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from polyconv.models.program import Program

__all__ = ["Trace"]

_MOST_EVENTS = 1_000_000
"""Older events are dropped."""


class Trace:
    """Events of one session."""

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()
        self._events: deque[dict[str, object]] = deque(maxlen=_MOST_EVENTS)

    def add_run(self, program: Program, seconds: list[float | None], began_ns: int) -> None:
        """Add a run that ends now, with a step behind the other."""
        whole = (time.monotonic_ns() - began_ns) / 1e3
        at = (began_ns - self.start_ns) / 1e3
        self._add("Session", "model_run", at, whole, {})
        for index, (step, time_of) in enumerate(zip(program.steps, seconds, strict=True)):
            if time_of is None:
                continue
            about = {
                "op_name": "+".join(dict.fromkeys(node.op for node in step.nodes)),
                "nodes": [node.name for node in step.nodes],
                "provider": step.segment.engine,
                "problem": program.problem(index),
            }
            self._add("Node", f"{step.nodes[0].name}_kernel_time", at, 1e6 * time_of, about)
            at += 1e6 * time_of

    def written(self, prefix: str) -> str:
        """Write the file; its name, which is the prefix and the time."""
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        for number in count():
            path = Path(f"{prefix}_{stamp}{f'_{number}' if number else ''}.json")
            with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
                json.dump(list(self._events), file)
                break
        return str(path)

    def _add(self, kind: str, name: str, at: float, length: float, about: Mapping[str, object]) -> None:
        self._events.append({
            "cat": kind, "pid": os.getpid(), "tid": threading.get_native_id(), "ph": "X", "name": name,
            "ts": round(at), "dur": round(length), "args": dict(about),
        })  # fmt: skip
