"""A problem as one line of text, and back: ``parse(spell(p)) == p``.

``op types layout fields``, one space between, defaults left out, fixed order.  The same line is a
test id, a benchmark row, a log field and a bug report.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.problem.epilogue import Activation, activation
from polyconv.problem.problem import Extent, Problem, Quantisation

__all__ = ["parse", "spell"]

_OPS = ("conv", "conv_transpose", "deform_conv", "causal_conv")
_ACTIVATION = re.compile(r"([A-Za-z]+)(?:\((.*)\))?\Z")
_QUANTISED = ("zx", "zw", "zy", "sx", "sw", "sy")


def _types(p: Problem) -> str:
    if p.x == p.w == p.y:
        return p.x
    left = p.x if p.x == p.w else f"{p.x}*{p.w}"
    return left if p.x == p.y else f"{left}>{p.y}"


def _extents(values: tuple[Extent, ...]) -> str:
    return "x".join("?" if v is None else str(v) for v in values)


def _repeated(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else _extents(values)


def _pads(pads: tuple[tuple[int, int], ...]) -> str:
    parts = [str(b) if b == e else f"{b}:{e}" for b, e in pads]
    return parts[0] if len(set(parts)) == 1 else "x".join(parts)


def spell(p: Problem) -> str:
    """Write a problem as its line of text."""
    rank = p.rank
    words = [p.op, _types(p), p.layout]
    words += [f"n{'?' if p.n is None else p.n}", f"c{p.c}", f"i{_extents(p.i)}", f"m{p.m}"]
    words.append(f"k{_extents(p.k)}")
    if p.s != (1,) * rank:
        words.append(f"s{_repeated(p.s)}")
    if p.pads != ((0, 0),) * rank:
        words.append(f"p{_pads(p.pads)}")
    if p.d != (1,) * rank:
        words.append(f"d{_repeated(p.d)}")
    if p.groups != 1:
        words.append(f"g{p.groups}")
    if p.output_padding != (0,) * rank:
        words.append(f"op{_repeated(p.output_padding)}")
    if p.o is not None:
        words.append(f"y{_extents(p.o)}")
    if p.bias:
        words.append("b1")
    if p.residual:
        words.append("r1")
    if p.activation is not None:
        words.append(f"act={p.activation}")
    if p.overflow != "wrap":
        words.append(f"overflow={p.overflow}")
    if p.quantisation is not None:
        for name in _QUANTISED:
            value = getattr(p.quantisation, name)
            if value is not None:
                words.append(f"{name}={value if isinstance(value, str) else repr(float(value))}")
    if p.offset_groups:
        words.append(f"og{p.offset_groups}")
    if p.mask:
        words.append("mask")
    return " ".join(words)


def _int(text: str, word: str) -> int:
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ArgumentError(f"{word!r} in the problem text: {text!r} is not a whole number")
    return int(text)


def _extent_list(text: str, word: str) -> tuple[Extent, ...]:
    return tuple(None if t == "?" else _int(t, word) for t in text.split("x"))


def _ints(text: str, word: str, rank: int) -> tuple[int, ...]:
    values = tuple(_int(t, word) for t in text.split("x"))
    return values * rank if len(values) == 1 else values


def _pad_list(text: str, word: str, rank: int) -> tuple[tuple[int, int], ...]:
    pairs = []
    for part in text.split("x"):
        begin, _, end = part.partition(":")
        pairs.append((_int(begin, word), _int(end or begin, word)))
    return tuple(pairs) * rank if len(pairs) == 1 else tuple(pairs)


def _activation(text: str, word: str, *, is_float: bool) -> Activation | None:
    match = _ACTIVATION.match(text)
    if match is None:
        raise ArgumentError(f"{word!r} in the problem text is not act=Name or act=Name(a,b)")
    try:
        inner = [float(v) for v in match[2].split(",")] if match[2] else []
    except ValueError:
        raise ArgumentError(f"{word!r} in the problem text has parameters that are no numbers") from None
    return activation(match[1], inner, is_float=is_float)


def _layout(word: str, rank: int) -> str:
    last = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
    first = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
    if word in ("NCHW", first.get(rank)):
        return "NCHW"
    if word in ("NHWC", last.get(rank)):
        return "NHWC"
    raise ArgumentError(f"layout {word!r} in the problem text does not fit {rank} spatial axes")


# Longest names first: "op" must be tried before "o.." words, "og" before "g".
_FIELDS: tuple[str, ...] = ("op", "og", "n", "c", "i", "m", "k", "s", "p", "d", "g", "y", "b", "r")


def parse(text: str) -> Problem:
    """Read a problem from its line of text.

    Raises
    ------
    ArgumentError
        Naming the word that is not understood.
    """
    words = text.split()
    if len(words) < 4 or words[0] not in _OPS:
        raise ArgumentError(
            f"problem text {text[:80]!r} must start with one of {', '.join(_OPS)}, the types and the layout, "
            f"as in 'conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1'"
        )
    op, types, layout, *rest = words
    left, _, y = types.partition(">")
    x, _, w = left.partition("*")
    w = w or x
    y = y or x
    for name in (x, w, y):
        if name not in DTYPES:
            raise ArgumentError(f"{types!r} in the problem text: {name!r} is not one of {', '.join(DTYPES)}")
    seen: dict[str, str] = {}
    for word in rest:
        key, value = _split(word)
        if key in seen:
            raise ArgumentError(f"{word!r} in the problem text repeats {key!r}")
        seen[key] = value
    for key in ("n", "c", "i", "m", "k"):
        if key not in seen:
            raise ArgumentError(f"the problem text {text[:80]!r} lacks the field {key!r}")
    i = _extent_list(seen["i"], f"i{seen['i']}")
    rank = len(i)
    is_float = DTYPES[y].is_float

    def given(key: str, read: Callable[..., Any], *extra: Any) -> Any:
        return read(seen[key], key + seen[key], *extra) if key in seen else None

    quantised = {q: _quantised(seen[q], q) for q in _QUANTISED if q in seen}
    return Problem(
        op=op, x=x, w=w, y=y, layout=_layout(layout, rank),
        n=None if seen["n"] == "?" else _int(seen["n"], f"n{seen['n']}"),
        c=_int(seen["c"], f"c{seen['c']}"), i=i, m=_int(seen["m"], f"m{seen['m']}"),
        k=given("k", _ints, rank), s=given("s", _ints, rank) or (), d=given("d", _ints, rank) or (),
        pads=given("p", _pad_list, rank) or (), groups=1 if "g" not in seen else given("g", _int),
        output_padding=given("op", _ints, rank) or (),
        o=given("y", _ints, rank),
        bias=seen.get("b") == "1", residual=seen.get("r") == "1",
        activation=_activation(seen["act"], f"act={seen['act']}", is_float=is_float) if "act" in seen else None,
        overflow=seen.get("overflow", "wrap"),
        quantisation=Quantisation(**quantised) if quantised else None,
        offset_groups=given("og", _int) or 0, mask="mask" in seen,
    )  # fmt: skip


def _split(word: str) -> tuple[str, str]:
    if word == "mask":
        return word, ""
    key, equals, value = word.partition("=")
    if equals and key in ("act", "overflow", *_QUANTISED):
        return key, value
    for name in _FIELDS:
        if word.startswith(name) and len(word) > len(name) and word[len(name)] in "0123456789?-":
            if name in ("b", "r") and word[1:] not in ("0", "1"):
                break
            return name, word[len(name) :]
    raise ArgumentError(f"{word!r} in the problem text is not a known field")


def _quantised(text: str, name: str) -> float | str:
    if text in ("c", "t"):
        return text
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(f"{name}={text} in the problem text is not a number, c or t") from None
