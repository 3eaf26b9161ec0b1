"""An attribute as a caller or a file gives it, turned into a checked plain Python value.

A kind of attribute is a function that makes a row: how to read it, and what holds where it is absent.
It must not know operators, shapes or arrays.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, shown
from polyconv.names import advice, nearest

__all__ = ["Attribute", "boolean", "choice", "floats", "integer", "integers", "read", "text"]

# NumPy has at most 64 axes, so no list has more entries; whatever is longer is not looked at.
_LONGEST = 128
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operator.

    Parameters
    ----------
    check : callable
        ``check(name, value)`` returns the value to keep, or raises ArgumentError.
    default : object
        What holds where the attribute is absent or None.
    """

    check: Callable[[str, Any], Any]
    default: Any = None


def read(operator_name: str, rows: Mapping[str, Attribute], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the attributes of one operator and fill in defaults.

    Raises
    ------
    ArgumentError
        Naming the attribute, its value and what it may be.
    """
    for name in given:
        if name not in rows:
            meant = nearest(name, rows)
            raise ArgumentError(
                f"{name!r} is not an attribute of {operator_name}; its attributes are {', '.join(rows)}"
                + (f"; did you mean {meant}?" if meant else "")
            )
    return {
        name: row.default if given.get(name) is None else row.check(name, given[name])
        for name, row in rows.items()
    }


def integer(default: int, *, least: int = -_LARGEST - 1) -> Attribute:
    """An integer not below ``least``."""

    def check(name: str, value: Any) -> int:
        return _integer(name, value, least, value)

    return Attribute(check, default)


def integers(*, least: int = -_LARGEST - 1) -> Attribute:
    """A list of integers not below ``least``; absent: None."""

    def check(name: str, value: Any) -> tuple[int, ...]:
        return tuple(_integer(name, v, least, value) for v in _listed(name, value, "integers"))

    return Attribute(check)


def floats() -> Attribute:
    """A list of numbers, each rounded to the 32 bits that the specifications store; absent: None."""

    def check(name: str, value: Any) -> tuple[float, ...]:
        return tuple(_float32(name, v, value) for v in _listed(name, value, "numbers"))

    return Attribute(check)


def choice(*words: str, fold: Callable[[str], str] = str) -> Attribute:
    """One of some words; the first is the default.  ``fold`` comes before the comparison."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or fold(value) not in words:
            raise ArgumentError(
                f"{name}={shown(value)} is not known; choose one of {', '.join(words)}{advice(name, value, words)}"
            )
        return fold(value)

    return Attribute(check, words[0])


def text() -> Attribute:
    """Any string; absent: None."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise ArgumentError(f"{name}={shown(value)} is not a string; give its name in quotes")
        return value

    return Attribute(check)


def boolean(default: bool) -> Attribute:
    """A truth value; the integers 0 and 1 are taken too, as ONNX has no other form."""

    def check(name: str, value: Any) -> bool:
        if not isinstance(value, bool | np.bool) and not (isinstance(value, int) and value in (0, 1)):
            raise ArgumentError(f"{name}={shown(value)} is neither true nor false; give 0 or 1")
        return bool(value)

    return Attribute(check, default)


def _listed(name: str, value: Any, of: str) -> Sequence[Any]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
    if isinstance(value, np.ndarray):
        is_list = value.ndim == 1
    if not is_list:
        raise ArgumentError(f"{name}={shown(value)} is not a list of {of}; give one entry per axis in a list")
    if len(value) > _LONGEST:
        raise ArgumentError(
            f"{name} has {len(value)} entries, no array has that many axes; give at most {_LONGEST}"
        )
    return list(value) if isinstance(value, np.ndarray) else value


def _integer(name: str, value: Any, least: int, whole: Any) -> int:
    try:
        if isinstance(value, bool | np.bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(
            f"{name}={shown(whole)} has {shown(value)} where an integer belongs; write it as int"
        ) from None
    if number < least:
        raise ArgumentError(f"{name}={shown(whole)} has {shown(number)}, the least it may be is {least}; raise it")
    if number > _LARGEST:
        raise ArgumentError(f"{name}={shown(whole)} has {shown(number)}, which does not fit in 64 bits; lower it")
    return number


def _float32(name: str, value: Any, whole: Any) -> float:
    if isinstance(value, bool | np.bool) or not isinstance(value, Real) or value != value:
        raise ArgumentError(f"{name}={shown(whole)} has {shown(value)} where a number belongs; write it as float")
    try:
        with np.errstate(over="ignore"):
            number = float(np.float32(value))
    except OverflowError:
        number = math.inf
    if math.isinf(number) and value != number:
        raise ArgumentError(f"{name}={shown(whole)} has {shown(value)}, which is beyond float32; use inf or less")
    return number
