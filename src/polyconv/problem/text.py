"""A problem as one line of text, and back: ``parse(spell(p)) == p``.

``op types layout fields``, one space between, defaults left out, fixed order.  The same line is a
test id, a benchmark row, a log field and a bug report.  A row of ``FIELDS`` is all there is to a field: the
reader, the writer, every error and docs/problem-text.md follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError, Error
from polyconv.names import nearest
from polyconv.problem.epilogue import Activation, activation
from polyconv.problem.extents import Extent
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES, Quantisation

__all__ = ["FIELDS", "LAYOUTS", "OPERATORS", "Field", "parse", "spell"]

_HELP = "docs/problem-text.md and help(polyconv.Problem.parse) explain the problem text"

OPERATORS = {
    "conv": "convolution (cross-correlation, as in neural networks)",
    "conv_transpose": "transposed convolution, the adjoint of conv; pads crop its result",
    "deform_conv": "deformable convolution: every tap is moved by an offset that comes with the call",
    "causal_conv": "causal convolution along one axis: k - 1 values of the past, a state, stand before the input",
}
"""First word to what it stands for."""

LAYOUTS = {"NCHW": "channels first", "NHWC": "channels last"}
"""Third word to the axis order of input, result and residual, for any number of spatial axes."""

_SPELLINGS = {"NCHW": {1: "NCW", 3: "NCDHW"}, "NHWC": {1: "NWC", 3: "NDHWC"}}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the text.

    Parameters
    ----------
    key : str
        What it begins with.
    name : str
        What it stands for, in a word.
    meaning : str
        The same in a sentence.
    absent : str
        What holds where it is left out; empty where it must be there.
    example : str
        The field as it may stand in a text.
    argument : str
        Parameter of ``Problem``.
    write : callable
        ``write(problem)``: the value as text, None where it is what holds anyway.
    read : callable
        ``read(text, rank)``: the value; raises ValueError with what is wrong.
    join : str
        ``=`` where that stands between key and value.
    bare : bool
        Whether the key is all.
    """

    key: str
    name: str
    meaning: str
    absent: str
    example: str
    argument: str
    write: Callable[[Problem], str | None]
    read: Callable[[str, int], Any]
    join: str = ""
    bare: bool = False


# Values to text


def _extent(value: Extent) -> str:
    return "?" if value is None else str(value)


def _extents(values: tuple[Extent, ...]) -> str:
    return "x".join(_extent(v) for v in values)


def _unless(values: tuple[int, ...], usual: int) -> str | None:
    if all(v == usual for v in values):
        return None
    return str(values[0]) if len(set(values)) == 1 else _extents(values)


def _spelled_pads(pads: tuple[tuple[int, int], ...]) -> str | None:
    parts = [str(b) if b == e else f"{b}:{e}" for b, e in pads]
    if set(parts) == {"0"}:
        return None
    return parts[0] if len(set(parts)) == 1 else "x".join(parts)


def _quantity(p: Problem, name: str) -> str | None:
    value = None if p.quantisation is None else getattr(p.quantisation, name)
    return value if value is None or isinstance(value, str) else repr(float(value))


# Text to values


def _int(text: str, rank: int = 0) -> int:
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _read_extent(text: str, rank: int = 0) -> Extent:
    return None if text == "?" else _int(text)


def _read_extents(text: str, rank: int) -> tuple[Extent, ...]:
    return tuple(_read_extent(t) for t in text.split("x"))


def _ints(text: str, rank: int) -> tuple[int, ...]:
    values = tuple(_int(t) for t in text.split("x"))
    return values * rank if len(values) == 1 else values


def _pads(text: str, rank: int) -> tuple[tuple[int, int], ...]:
    pairs = []
    for part in text.split("x"):
        begin, _, end = part.partition(":")
        pairs.append((_int(begin), _int(end or begin)))
    return tuple(pairs) * rank if len(pairs) == 1 else tuple(pairs)


def _switch(text: str, rank: int) -> bool:
    if text not in ("0", "1"):
        raise ValueError(f"{text!r} is neither 0 nor 1")
    return text == "1"


def _read_activation(text: str, rank: int) -> Activation | None:
    match = re.fullmatch(r"([A-Za-z]+)(?:\((.*)\))?", text)
    if match is None:
        raise ValueError("an activation reads Name or Name(a,b)")
    try:
        inner = [float(v) for v in match[2].split(",")] if match[2] else []
    except ValueError:
        raise ValueError("its parameters are no numbers") from None
    return activation(match[1], inner)


def _quantity_field(key: str, name: str, example: str) -> Field:
    """A zero point or a scale; those of the weights may differ by output channel."""
    without = "the residual is added to the sums of products" if key[1] in "rs" else "the sum is the result"
    absent = "none: 0" if key[0] == "z" else f"none: {without}"
    words, forms = (("c", "t"), ", `c` one for each output channel") if key[1] == "w" else (("t",), "")

    def read(text: str, rank: int) -> float | str:
        if text in words:
            return text
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number or {' or '.join(words)}") from None

    meaning = f"{name}: a number, or given with the call: `t` one{forms}"
    return Field(key, name.replace(" ", "_"), meaning, absent, example, key, lambda p: _quantity(p, key), read, "=")


FIELDS: Mapping[str, Field] = {row.key: row for row in (
    Field("n", "batch", "batch; `?` where it is known at run time only", "", "n1", "n",
          lambda p: _extent(p.n), _read_extent),
    Field("c", "in_channels", "input channels", "", "c64", "c", lambda p: str(p.c), _int),
    Field("i", "input_extents", "spatial extents of the input, as many as there are axes; `?` where unknown", "",
          "i56x56", "i", lambda p: _extents(p.i), _read_extents),
    Field("m", "out_channels", "output channels", "", "m64", "m", lambda p: str(p.m), _int),
    Field("k", "kernel_size", "kernel extents; one number for all axes", "", "k3x3", "k",
          lambda p: _extents(p.k), _ints),
    Field("s", "strides", "strides; one number for all axes", "1", "s2", "s", lambda p: _unless(p.s, 1), _ints),
    Field("p", "pads", "padding; one for all axes, `begin:end` where they differ; negative crops",
          "0; the past of a causal_conv", "p0:1x2",
          "pads", lambda p: _spelled_pads(p.pads), _pads),
    Field("d", "dilations", "dilations; one number for all axes", "1", "d2", "d", lambda p: _unless(p.d, 1), _ints),
    Field("g", "groups", "groups; divides `c` and `m`", "1", "g64", "groups",
          lambda p: None if p.groups == 1 else str(p.groups), _int),
    Field("op", "output_padding", "extra elements at the high end of a transposed convolution", "0", "op1",
          "output_padding", lambda p: _unless(p.output_padding, 0), _ints),
    Field("y", "output_shape", "output extents where they do not follow from the rest; what no product reaches "
          "holds the bias", "what follows from the rest", "y57x57", "o",
          lambda p: None if p.o is None else _extents(p.o), _ints),
    Field("b", "bias", "`b1`: there is a bias, a number for each output channel", "b0", "b1", "bias",
          lambda p: "1" if p.bias else None, _switch),
    Field("r", "residual", "`r1`: an array of the result's shape is added before the activation", "r0", "r1",
          "residual", lambda p: "1" if p.residual else None, _switch),
    Field("act", "activation", "activation, with its parameters in brackets", "none", "act=Clip(0,6)", "activation",
          lambda p: None if p.activation is None else str(p.activation), _read_activation, "="),
    Field("overflow", "overflow", "`wrap` or `saturate`: what integers do that leave the result's range", "wrap",
          "overflow=saturate", "overflow", lambda p: None if p.overflow == "wrap" else p.overflow,
          lambda text, rank: text, "="),
    _quantity_field("zx", "zero point of the input", "zx=t"),
    _quantity_field("zw", "zero point of the weights", "zw=c"),
    _quantity_field("zy", "zero point of the result", "zy=3.0"),
    _quantity_field("sx", "scale of the input", "sx=0.02"),
    _quantity_field("sw", "scale of the weights", "sw=c"),
    _quantity_field("sy", "scale of the result", "sy=t"),
    _quantity_field("zr", "zero point of a residual with a scale of its own", "zr=128.0"),
    _quantity_field("sr", "scale of the residual", "sr=0.05"),
    _quantity_field("zs", "zero point of the sum of result and residual", "zs=t"),
    _quantity_field("ss", "scale of that sum", "ss=t"),
    Field("og", "offset_groups", "offset groups of a deformable convolution; divides `c`", "0; a deform_conv needs it",
          "og1", "offset_groups", lambda p: str(p.offset_groups) if p.offset_groups else None, _int),
    Field("mask", "mask", "a deformable convolution with a modulation mask", "no mask", "mask", "mask",
          lambda p: "" if p.mask else None, lambda text, rank: True, bare=True),
)}  # fmt: skip
"""Fields in the order in which they are written."""

_LONGEST_FIRST = sorted((row for row in FIELDS.values() if not row.join and not row.bare), key=lambda r: -len(r.key))


def spell(p: Problem) -> str:
    """Write a problem as its line of text."""
    left = p.x if p.x == p.w else f"{p.x}*{p.w}"
    words = [p.op, left if p.x == p.y else f"{left}>{p.y}", p.layout]
    for row in FIELDS.values():
        value = row.write(p)
        if value is not None:
            words.append(f"{row.key}{row.join}{value}")
    return " ".join(words)


def parse(text: str) -> Problem:
    """Read a problem from its line of text.

    Raises
    ------
    ArgumentError, DtypeError
        Naming the word that is not understood, or the values that disagree.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"a problem's text is a str, not of type {type(text).__name__}; {_HELP}")
    try:
        return _parsed(text.split())
    except Error as error:
        raise type(error)(f"problem text {text[:80]!r}: {error}; {_HELP}") from None


def _parsed(words: list[str]) -> Problem:
    if len(words) < 4 or words[0] not in OPERATORS:
        meant = nearest(words[0], OPERATORS) if words and words[0] not in OPERATORS else None
        raise ArgumentError(
            f"it must start with one of {', '.join(OPERATORS)}, the types and the layout, as in "
            f"'conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1'" + (f"; did you mean {meant}?" if meant else "")
        )
    op, types, layout, *rest = words
    x, w, y = _types(types)
    found: dict[str, tuple[str, str]] = {}
    for word in rest:
        row, value = _field(word)
        if row.key in found:
            raise ArgumentError(f"{word!r} repeats {row.key!r}; give each field once")
        found[row.key] = word, value
    missing = [row for row in FIELDS.values() if not row.absent and row.key not in found]
    if missing:
        names = ", ".join(f"{row.key!r} ({row.name}, as in {row.example})" for row in missing)
        raise ArgumentError(f"it lacks {names}")
    rank = found["i"][1].count("x") + 1
    values: dict[str, Any] = {}
    for key, (word, value) in found.items():
        try:
            values[FIELDS[key].argument] = FIELDS[key].read(value, rank)
        except ValueError as error:
            raise ArgumentError(f"{word!r}: {error}") from None
    quantised = {name: values.pop(name) for name in QUANTITIES if name in values}
    if quantised:
        values["quantisation"] = Quantisation(**quantised)
    act: Activation | None = values.get("activation")
    if act is not None:
        activation(act.name, act.parameters, is_float=DTYPES[y].is_float)
    return Problem(op=op, x=x, w=w, y=y, layout=_layout(layout, rank), **values)


def _types(word: str) -> tuple[str, str, str]:
    """Types of input, weights and result."""
    left, _, y = word.partition(">")
    x, _, w = left.partition("*")
    for name in (x, w or x, y or x):
        if name not in DTYPES:
            meant = nearest(name, [row.numpy.name for row in DTYPES.values()])
            short = next((row.name for row in DTYPES.values() if row.numpy.name == meant), None)
            raise ArgumentError(
                f"{word!r} should be element types; {name!r} is not one of {', '.join(DTYPES)}"
                + (f"; did you mean {short}?" if short else "")
            )
    return x, w or x, y or x


def _layout(word: str, rank: int) -> str:
    for layout, own in _SPELLINGS.items():
        if word.upper() in (layout, own.get(rank)):
            return layout
    raise ArgumentError(f"{word!r} is no layout of {rank} spatial axes; give {' or '.join(LAYOUTS)}")


def _field(word: str) -> tuple[Field, str]:
    """The row of a word, and its value."""
    key, equals, value = word.partition("=")
    row = FIELDS.get(key)
    if row is not None and (row.bare or row.join) and row.join == equals:
        return row, value
    for row in _LONGEST_FIRST:
        rest = word[len(row.key) :]
        if word.startswith(row.key) and rest[:1] in tuple("0123456789?-"):
            return row, rest
    known = " ".join(row.example for row in FIELDS.values())
    raise ArgumentError(f"{word!r} is no field; fields read {known}{_meant(word)}")


def _meant(word: str) -> str:
    letters = re.match(r"[A-Za-z_]*", word)
    name = letters[0] if letters else ""
    by_name = {row.name: row for row in FIELDS.values()}
    found = FIELDS.get(name.lower()) or by_name.get(nearest(name, by_name) or "")
    if found is None:
        return ""
    value = "" if found.bare else word[len(name) :].lstrip("=:")
    return f"; did you mean {found.key}{found.join}{value}?"
