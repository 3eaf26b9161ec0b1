"""The exception family: every error polyconv raises on purpose is one of these six.  Its warnings are here too.

Each message names the argument (or the node of a model), the values that disagree and the way out.
"""

from __future__ import annotations

import reprlib
import sys
import warnings
from typing import Any

__all__ = [
    "ArgumentError", "DtypeError", "Error", "IgnoredWarning", "ModelError", "OutOfMemory", "OverflowWarning",
    "Unsupported", "shown", "warn",
]  # fmt: skip


class Error(Exception):
    """Root of all errors raised by polyconv."""


class ArgumentError(Error, ValueError):
    """An argument's value is invalid or two arguments disagree."""


class DtypeError(Error, TypeError):
    """An element type is not allowed where it was given."""


class ModelError(Error, ValueError):
    """A model file is damaged or one of its nodes is invalid; the message names the node."""


class OutOfMemory(Error, MemoryError):
    """The system does not give the memory for something; the message says for what, and how many bytes."""


class Unsupported(Error, NotImplementedError):
    """The request is valid but outside what polyconv computes."""


class IgnoredWarning(UserWarning):
    """Something was asked for that has no effect here; the message names it."""


class OverflowWarning(UserWarning):
    """Sums of 8-bit numbers go into 8 bits, and nobody said whether they shall wrap."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside polyconv that made the call; Python's filters show each such line once.

    The message must be the same for every call of that line, whatever the arrays.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "polyconv":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class _Brief(reprlib.Repr):
    """``reprlib`` with our limits, and without the integers that ``repr`` refuses for their length."""

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"


_BRIEF = _Brief()
_BRIEF.maxlist = _BRIEF.maxtuple = 16
_BRIEF.maxstring = _BRIEF.maxother = 80
_BRIEF.maxlevel = 3


def shown(value: Any) -> str:
    """How a value stands in a message: briefly and soon, whatever it is."""
    return _BRIEF.repr(value)
