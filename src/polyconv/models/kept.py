"""What a process leaves the next one about a model: its graph as it was read, and the plans of its convolutions.

Files beside the compiled kernels, under names that say all that shapes what is in them: the model's bytes, the code
that read them, the packages it asked.  Any that is absent, damaged or of another kind is made anew.  Like a kernel,
such a file is believed because it is private to its user (``polyconv.cache``): it may make any object.  It must not
know what it keeps.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyconv import cache
from polyconv.in_force import keep_where_settings_say

__all__ = ["digest_of", "keep", "kept", "place"]

_MOST_BYTES = 16 << 20
"""Of a file: a model whose small constants take more is read as soon as parsed."""


def digest_of(data: bytes) -> str:
    """Name of a content."""
    return hashlib.sha256(data).hexdigest()


def place(kind: str, parts: Sequence[str]) -> Path | None:
    """File for what some texts determine; None where nothing is kept."""
    keep_where_settings_say()
    found = cache.place(parts, kind)
    return found if found is not None and cache.usable(found.parent) else None


def kept(file: Path | None, read: Callable[[bytes], Any] = pickle.loads) -> Any:
    """What a file holds; None where there is none, or it cannot be read."""
    data = None if file is None else cache.read(file)
    if data is None:
        return None
    try:
        return read(data)
    except Exception:  # whatever stands there, it is made anew
        return None


def keep(file: Path | None, data: bytes) -> None:
    """Leave bytes for the next process, unless they are many."""
    if file is not None and len(data) <= _MOST_BYTES:
        cache.write(file, data)
