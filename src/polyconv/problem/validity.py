"""What makes a ``Problem`` a convolution: whole numbers, an entry per axis, sizes that fit and can be addressed.

What belongs to one operator or type stands in ``operators``.  It must not know algorithms or machines.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError, DtypeError
from polyconv.problem.epilogue import Activation
from polyconv.problem.extents import effective_kernel
from polyconv.problem.operators import check_operator, check_types
from polyconv.problem.quantisation import Quantisation

if TYPE_CHECKING:
    from polyconv.problem.problem import Problem

__all__ = ["check", "make_whole"]

# 64-bit index arithmetic in the generated code must never overflow: the product of all extents of
# any tensor, in bytes, stays below 2^62.
_MOST_BYTES = 1 << 62

_NUMBERS = ("n", "c", "m", "groups", "offset_groups")
_BY_AXIS = ("i", "k", "s", "d", "output_padding", "o")
_NAMES = ("kernel", "strides", "dilations", "pads", "output_padding", "output extents")
_OPEN = ("n", "i")
_INT = {int}


def make_whole(p: Problem) -> None:
    """Make every size an int, and every list of them a tuple.

    Tables look problems up by value: 8.0 and True would find what was made for 8 and 1, or the other way round.

    Raises
    ------
    ArgumentError
        Naming the field that has something else.
    """
    fill = object.__setattr__
    for name in _NUMBERS:
        value = getattr(p, name)
        if type(value) is not int:
            fill(p, name, _whole(value, name))
    for name in _BY_AXIS:
        values = getattr(p, name)
        if name == "o" and values is None:
            continue
        if type(values) is not tuple or not _INT.issuperset(map(type, values)):
            fill(p, name, tuple(_whole(v, name) for v in _entries(values, name)))
    if type(p.pads) is not tuple or any([type(v) is not tuple or not _INT.issuperset(map(type, v)) for v in p.pads]):
        pairs = (_entries(pair, "pads") for pair in _entries(p.pads, "pads"))
        fill(p, "pads", tuple(tuple(_whole(e, "pads") for e in pair) for pair in pairs))
    if any([len(pair) != 2 for pair in p.pads]):
        raise ArgumentError(f"pads={p.pads} must be (begin, end) pairs, one per axis")


def _entries(values: Any, name: str) -> Iterable[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name}={values!r} must be a list with an entry per axis")
    return values


def _whole(value: Any, name: str) -> int | None:
    if value is None and name in _OPEN:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}={value!r} must be a whole number") from None


def check(p: Problem) -> None:
    """Refuse what is no convolution: axes without an entry, sizes out of range, groups that do not divide, ...

    Raises
    ------
    ArgumentError, DtypeError
        Naming the field, the values that disagree, and the way out.
    """
    rank = len(p.i)
    if p.op not in ("conv", "conv_transpose", "deform_conv", "causal_conv"):
        raise ArgumentError(f"op {p.op!r} is not conv, conv_transpose, deform_conv or causal_conv")
    for role in (p.x, p.w, p.y):
        if role not in DTYPES:
            raise DtypeError(f"dtype {role!r} is not one of {', '.join(DTYPES)}")
    if p.layout not in ("NCHW", "NHWC"):
        raise ArgumentError(f"layout {p.layout!r} is not NCHW or NHWC")
    if rank < 1:
        raise ArgumentError("a convolution needs at least one spatial axis; x has none")
    by_axis = p.k, p.s, p.d, p.pads, p.output_padding, *(() if p.o is None else (p.o,))
    for name, entries in zip(_NAMES, by_axis, strict=False):
        if len(entries) != rank:
            raise ArgumentError(
                f"{name} {entries} has {len(entries)} entries, x has {rank} spatial axes; give one entry per axis"
            )
    for name, values in zip(_NAMES, (p.k, p.s, p.d), strict=False):
        if min(values) < 1:
            raise ArgumentError(f"{name} {values} must be positive along every axis")
    if min([v for v in (p.n, p.c, p.m, *p.i) if v is not None]) < 0:
        raise ArgumentError(f"sizes n={p.n} c={p.c} i={p.i} m={p.m} must not be negative")
    if p.groups < 1:
        raise ArgumentError(f"groups={p.groups} must be at least 1")
    if p.c % p.groups or p.m % p.groups:
        raise ArgumentError(
            f"groups={p.groups} divides neither or only one of c={p.c} and m={p.m}; choose groups that divide both"
        )
    if p.overflow not in ("wrap", "saturate"):
        raise ArgumentError(f"overflow {p.overflow!r} is not wrap or saturate")
    if not (p.activation is None or isinstance(p.activation, Activation)):
        raise ArgumentError(f"activation {p.activation!r} must be an Activation, with its parameters, or None")
    if not (p.quantisation is None or isinstance(p.quantisation, Quantisation)):
        raise ArgumentError(f"quantisation {p.quantisation!r} must be a Quantisation or None")
    check_operator(p)
    check_types(p)
    if p.is_known:
        if any([e is not None and e < 0 for e in p.out]):
            raise ArgumentError(
                f"the output extents {p.out} are negative: the kernel {p.k} with dilations {p.d} is "
                f"larger than the input {p.i} with pads {p.pads}; enlarge the input or the pads"
            )
        _check_size(p)


def _check_size(p: Problem) -> None:
    reach = [effective_kernel(k, d) + abs(b) + abs(e) for k, d, (b, e) in zip(p.k, p.d, p.pads, strict=True)]
    if max(*reach, *p.s) >= 1 << 40:
        raise ArgumentError(f"kernel {p.k}, dilations {p.d}, strides {p.s} or pads {p.pads} reach beyond 2^40 elements")
    if 8 * math.prod([e or 1 for e in (p.n, p.c, p.m, *p.i, *p.out, *p.k)]) < _MOST_BYTES:
        return  # nor does any of the three exceed it
    for name, shape, dtype in (
        ("x", p.x_shape, p.x_dtype),
        ("w", p.w_shape, p.w_dtype),
        ("y", p.y_shape, p.y_dtype),
    ):
        total = 8 * math.prod([max(1, e or 1) for e in shape])
        if total >= _MOST_BYTES:
            raise ArgumentError(
                f"{name} of shape {shape} and type {dtype.name} exceeds the addressable size; split the problem"
            )
