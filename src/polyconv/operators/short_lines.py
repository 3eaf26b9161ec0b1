"""Short lines that are brought to mean 0 and variance 1, some at once: a line is read once and stays in registers.

The mean of a line, and the root of its variance, wait for sums over the lanes of vectors.  The one idea: the sums of
several lines are taken in the same instructions, so that a division and a root serve all of them.  Which lanes are
added first does not depend on how many lines there are: a line has the same bits in any company.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Mask, Module, Type, Value, vector
from polyconv.kernels.record import Memory, Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.job import Conditions, Drive, Step, address_of
from polyconv.operators.rows import read, write

__all__ = ["is_short", "short_step"]

_MOST_TOGETHER = 4
"""Lines at once."""
_CHAINS = 4
"""Sums of squares of a line that take turns: one waits for the one before it."""
_KEPT = 0.75
"""Share of the registers that lines may take; others hold sums, scales and what is computed."""


@dataclass(frozen=True, slots=True)
class _Short:
    """All that shapes the code; ``together`` lines are brought to one scale at once."""

    dtype: str
    length: int
    lanes: int
    together: int
    scaled: bool

    def __str__(self) -> str:
        return f"{self.dtype} {self.length} by {self.lanes}, {self.together} at once{', scaled' if self.scaled else ''}"

    @property
    def kind(self) -> Type:
        """A vector of elements."""
        return vector(LLVM_NAMES[self.dtype], self.lanes)


class _Words(Record):
    """Words of the driver; strides in bytes."""

    total: Word
    rows: Word
    x_base: Word
    x_step: Word
    y_step: Word
    numbers: Memory


def is_short(dtype: str, length: int, c: Conditions) -> bool:
    """Whether lines of so many elements stay in registers."""
    return _spec(dtype, length, False, c) is not None


def short_step(dtype: str, length: int, total: int, x: tuple[int, int], y_step: int, scaled: bool, epsilon: float,
               c: Conditions, threads: int) -> Step:  # fmt: skip
    """The step that normalises lines that are short.

    Parameters
    ----------
    length, total : int
        Elements of a line, which lie beside each other, and how many lines there are.
    x : (int, int)
        The byte of the first line, and how many bytes lie from one to the next.
    y_step : int
        Bytes from a line of the result to the next.
    scaled : bool
        Whether elements have scales and shifts.
    epsilon : float
        Added to variances.
    """
    spec = _spec(dtype, length, scaled, c)
    assert spec is not None
    rows = total if threads == 1 else -(-total // (4 * threads * spec.together)) * spec.together
    keep: list[object] = []
    words = filled(_Words(
        total=total, rows=rows, x_base=x[0], x_step=x[1], y_step=y_step,
        numbers=np.array([length, epsilon], DTYPES[dtype].numpy),
    ), keep)  # fmt: skip
    driver = address_of(f"short lines {spec}", lambda k, name: _drive(k, name, spec), c)
    return Step(driver, words, -(-total // rows), tuple(keep))


def _spec(dtype: str, length: int, scaled: bool, c: Conditions) -> _Short | None:
    """How lines are held: in the longest vectors that they fill, or that masks cut."""
    most = c.target.vector_bytes // DTYPES[dtype].itemsize
    lanes = min(most, 1 << (length - 1).bit_length())
    while not c.target.has_masks and lanes > 1 and length % lanes:
        lanes //= 2
    vectors = -(-length // lanes)
    room = int(_KEPT * c.target.registers) // vectors
    together = min(_MOST_TOGETHER, lanes, 1 << max(0, room.bit_length() - 1))
    return _Short(dtype, length, lanes, together, scaled) if room and lanes > 1 else None


def _drive(k: Module, name: str, spec: _Short) -> None:
    """Add the driver; its operands are the array, the result, and scales and shifts if there are any."""
    with k.function(name, Drive) as given:
        w = at_once(_Words.read(k, given.words))
        x, y = k.buffer(given.frame) + w.x_base, k.buffer(given.frame, 2)
        scales = [k.buffer(given.frame, 2 * at) for at in (2, 3)] if spec.scaled else []
        first = given.item * w.rows
        end = k.minimum(first + w.rows, w.total)
        whole = end - (end - first) % spec.together
        for begin, stop, count in ((first, whole, spec.together), (whole, end, 1)):
            with k.loop(begin, stop, count) as row:
                source, target = (k.rebase(base + row.index * step) for base, step in ((x, w.x_step), (y, w.y_step)))
                _normalised(k, spec, w, source.rows(count, w.x_step, None), target.rows(count, w.y_step, None), scales)


def _normalised(k: Module, spec: _Short, w: _Words, sources: Sequence[Buffer], targets: Sequence[Buffer],
                scales: Sequence[Buffer]) -> None:  # fmt: skip
    """Bring some lines to one scale."""
    kind, places = spec.kind, _places(k, spec)
    size, epsilon = (k.load(kind.scalar, w.numbers + at * kind.element_bytes) for at in (0, 1))
    lines = [[read(k, kind, source + at, mask) for at, mask in places] for source in sources]
    means = _each_over(k, [_added(line) for line in lines], size)
    apart = [
        [_kept(k, value - _picked(k, means, number, spec), mask) for value, (_, mask) in zip(line, places, strict=True)]
        for number, line in enumerate(lines)
    ]
    variances = _each_over(k, [_squared(k, line) for line in apart], size)
    root = k.intrinsic("sqrt", variances.type, variances + k.splat(epsilon, variances.type.lanes))
    factors = 1.0 / root
    for at, (place, mask) in enumerate(places):
        own = [read(k, kind, numbers + place, mask) for numbers in scales]
        for number, target in enumerate(targets):
            value = apart[number][at] * _picked(k, factors, number, spec)
            write(k, k.fma(value, *own) if own else value, target + place, mask)


def _places(k: Module, spec: _Short) -> list[tuple[int, Mask | None]]:
    """At which byte of a line each vector begins, and the mask of one that the line does not fill."""
    rest = spec.length % spec.lanes
    masks = [None] * (spec.length // spec.lanes) + [k.mask(k.constant(INT, rest), spec.lanes)] * bool(rest)
    return [(at * spec.kind.bytes, mask) for at, mask in enumerate(masks)]


def _kept(k: Module, value: Value, mask: Mask | None) -> Value:
    """The elements of a line; 0 beyond its end."""
    return value if mask is None else k.select(mask.bits, value, k.constant(value.type, 0.0))


def _added(values: Sequence[Value]) -> Value:
    """The sum of vectors, by halves."""
    if len(values) == 1:
        return values[0]
    return _added(values[: len(values) // 2]) + _added(values[len(values) // 2 :])


def _squared(k: Module, values: Sequence[Value]) -> Value:
    """The sum of squares of vectors."""
    chains = [value * value for value in values[:_CHAINS]]
    for at, value in enumerate(values[_CHAINS:]):
        chains[at % _CHAINS] = k.fma(value, value, chains[at % _CHAINS])
    return _added(chains)


def _picked(k: Module, numbers: Value, number: int, spec: _Short) -> Value:
    """One of some numbers in every lane."""
    return k.shuffle(numbers, numbers, [number] * spec.lanes)


def _each_over(k: Module, totals: Sequence[Value], size: Value) -> Value:
    """The sums of the lanes of each vector over a number, in one lane each.

    The two halves of a vector are added until one lane is left: of two vectors at once as long as there are two, whose
    halves stand side by side then.
    """
    held, width, parts = list(totals), totals[0].type.lanes, 1
    while width > 1:
        half = width // 2
        lows = [part * width + lane for part in range(parts) for lane in range(half)]
        if len(held) > 1:
            lows += [held[0].type.lanes + low for low in lows]
            parts *= 2
        pairs = list(zip(held[::2], held[1::2], strict=True)) if len(held) > 1 else [(held[0], held[0])]
        held = [k.shuffle(a, b, lows) + k.shuffle(a, b, [low + half for low in lows]) for a, b in pairs]
        width = half
    return held[0] / k.splat(size, held[0].type.lanes)
