"""The exception family: every error polyconv raises on purpose is one of these six.

Each message names the argument (or the node of a model), the values that disagree and the way out.
"""

from __future__ import annotations

__all__ = ["ArgumentError", "DtypeError", "Error", "ModelError", "OutOfMemory", "Unsupported"]


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
