"""What a model file may make this process do before it is refused.

Turns sizes that a file declares into a ModelError when no honest file has them.  The one idea: every
number read from a file is compared with what is really there (bytes of the file, memory of the
machine) before anything is allocated.  It knows neither file formats nor operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyconv.errors import ModelError
from polyconv.runtime.memory import most_bytes

__all__ = ["MOST_NODES", "check_bytes", "shorten"]

MOST_NODES = 1_000_000
"""Most nodes a graph may have, after its functions have been written out."""


def check_bytes(who: str, shape: Sequence[int], itemsize: int) -> None:
    """Refuse a tensor that this machine cannot hold.

    Parameters
    ----------
    who : str
        What asks for it, for the message: ``ConstantOfShape node 'a'``.
    shape : sequence of int
        Extents.
    itemsize : int
        Bytes per element.

    Raises
    ------
    ModelError
        If an extent is negative or the tensor exceeds half the machine's memory.
    """
    if any(extent < 0 for extent in shape):
        raise ModelError(f"{who} asks for the shape {shorten(shape)}; extents must not be negative")
    size = math.prod(shape) * itemsize
    if size > most_bytes():
        raise ModelError(
            f"{who} asks for a tensor of shape {shorten(shape)}, {size >> 20} MiB; this machine lends one "
            f"tensor at most {most_bytes() >> 20} MiB: run it on a larger machine or correct the file"
        )


def shorten(value: object, most: int = 300) -> str:
    """Text of a value that came from a file, cut to a readable length."""
    text = value if isinstance(value, str) else _text(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _text(value: object) -> str:
    if isinstance(value, list | tuple) and len(value) > 100:
        return f"{str(value[:8])[:-1]}, ... {len(value)} entries]"
    return str(value)
