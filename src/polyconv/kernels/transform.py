"""Winograd's transforms as kernels: tiles of a panel to the transform domain, and sums back to pixels.

``F(m, r)`` computes m outputs of an r-tap correlation from n = m + r - 1 products at the points
0, +-p, ..., infinity (Winograd 1980; Toom-Cook): ``y = A^T [(G g) * (B^T d)]`` with, for the polynomial
``N(x) = prod (x - p_i)`` over the finite points and ``N_i = N / (x - p_i)``,

    B^T row i = coefficients of N_i,   G row i = (1, p_i, p_i^2, ...) / N_i(p_i),   A^T column i = (1, p_i, ...),
    B^T last = coefficients of N,      G last = (0, ..., 0, 1),                     A^T last = (0, ..., 0, 1).

Opposite points share work: their rows of B^T are even part plus and minus odd part, and A^T needs only
the sum and the difference of their products.

Where a tile has two inputs, all other taps of its two outputs meeting padding, three taps take three products:
``y0 = w1 (d0 + d1) + (w2 - w1) d1`` and ``y1 = w1 (d0 + d1) + (w0 - w1) d0``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.kernels.language import Buffer, Module, Value, vector
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import ROW_WORDS

__all__ = [
    "Closed", "InputTransform", "OutputTransform", "Scheme", "WeightTransform", "input_transform", "output_transform",
    "weight_transform",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scheme:
    """F(m, r) with the points 0, +-p for every p of ``pairs``, and infinity.  F(1, 1) transforms nothing."""

    m: int
    r: int
    pairs: tuple[float, ...] = ()

    @property
    def n(self) -> int:
        """Products of a tile."""
        return self.m + self.r - 1

    @property
    def inputs(self) -> int:
        """Inputs of a tile."""
        return self.n

    @property
    def ends(self) -> int:
        """Last products, those that tiles one output short do without."""
        return 1

    def __str__(self) -> str:
        return f"F({self.m},{self.r})"

    @property
    def weights(self) -> NDArray[np.float64]:
        """G, n x r, in float64."""
        if self.n == 1:
            return np.ones((1, 1))
        points = self._points()
        rows = []
        for i, p in enumerate(points):
            f = np.prod([p - q for j, q in enumerate(points) if j != i])
            rows.append([p**t / f for t in range(self.r)])
        return np.array([*rows, [0.0] * (self.r - 1) + [1.0]])

    @property
    def growth(self) -> float:
        """How much larger than ``max|d| sum|g|`` the terms of an output get: ``max sum |A^T||G||B^T|`` per tap."""
        if self.n == 1:
            return 1.0
        points = self._points()
        whole = np.abs(np.poly(points))[::-1]
        rows = [np.abs(np.poly([q for j, q in enumerate(points) if j != i])).sum() for i in range(len(points))]
        spread = np.array([*rows, whole.sum()])[:, None] * np.abs(self.weights)
        back = [[abs(p) ** t for p in points] + [float(t == self.m - 1)] for t in range(self.m)]
        return float((np.array(back) @ spread).max())

    def _points(self) -> list[float]:
        return [0.0, *(s * p for p in self.pairs for s in (1.0, -1.0))]

    def _even(self, leave: float | None) -> list[float]:
        """Coefficients, in x^2, of the product of (x^2 - p^2) over the pairs but one."""
        poly = np.array([1.0])
        for p in self.pairs:
            if p != leave:
                poly = np.convolve(poly, [-p * p, 1.0])
        return [float(v) for v in poly]

    def forward(self, k: Module, d: Sequence[Value]) -> list[Value]:
        """B^T d; of n - 1 values all but the last row, which alone needs the n-th."""
        if self.n == 1:
            return list(d)
        whole = self._even(None)
        result = [_sum(k, whole, d[0::2])]
        for p in self.pairs:
            part = self._even(p)
            even = _sum(k, part, d[2::2])
            odd = _sum(k, [p * c for c in part], d[1::2])
            result += [even + odd, even - odd]
        return [*result, _sum(k, whole, d[1::2])] if len(d) == self.n else result

    def spread(self, k: Module, g: Sequence[Value]) -> list[Value]:
        """G g; of less than r taps all but the last row, which alone is the r-th."""
        if self.n == 1:
            return list(g)
        rows = [[float(v) for v in row[: len(g)]] for row in self.weights]
        result = [_sum(k, rows[0][:1], g)]
        for row in rows[1:-1:2]:  # of the two opposite points of a pair
            even, odd = _sum(k, row[0::2], g[0::2]), [_sum(k, row[1::2], g[1::2])] if len(g) > 1 else []
            result += [even + odd[0], even - odd[0]] if odd else [even, even]
        return [*result, g[-1]] if len(g) == self.r else result

    def back(self, k: Module, v: Sequence[Value]) -> list[Value]:
        """A^T v; the product at infinity enters the last output only."""
        if self.n == 1:
            return list(v)
        sums = [v[1 + 2 * i] + v[2 + 2 * i] for i in range(len(self.pairs))]
        differences = [v[1 + 2 * i] - v[2 + 2 * i] for i in range(len(self.pairs))]
        outputs = []
        for t in range(self.m):
            terms = sums if t % 2 == 0 else differences
            y = _sum(k, [p**t for p in self.pairs], terms)
            if t == 0:
                y = y + v[0]
            outputs.append(y + v[-1] if t == self.m - 1 else y)
        return outputs


@dataclass(frozen=True, slots=True)
class Closed(Scheme):
    """Two outputs of three taps from the only two inputs there are, one of each tap's neighbours being padding."""

    m: int = 2
    r: int = 3

    @property
    def n(self) -> int:
        """Products of a tile."""
        return 3

    @property
    def inputs(self) -> int:
        """Inputs of a tile."""
        return 2

    @property
    def ends(self) -> int:
        """Last products, those that a tile of a single input does without."""
        return 2

    @property
    def growth(self) -> float:
        """As of other schemes: the middle tap meets both inputs, and one of them once more."""
        return 3.0

    def __str__(self) -> str:
        return "T(2,3)"

    def forward(self, k: Module, d: Sequence[Value]) -> list[Value]:
        """Inputs as products need them."""
        return [d[0] + d[1], d[1], d[0]]

    def spread(self, k: Module, g: Sequence[Value]) -> list[Value]:
        """Weights as products need them."""
        return [g[1], g[2] - g[1], g[0] - g[1]]

    def back(self, k: Module, v: Sequence[Value]) -> list[Value]:
        """The two outputs."""
        return [v[0] + v[1], v[0] + v[2]]


def _sum(k: Module, coefficients: Sequence[float], values: Sequence[Value]) -> Value:
    """``sum c v``, unit coefficients last so that they are additions."""
    terms = sorted(zip(coefficients, values, strict=False), key=lambda t: abs(t[0]) == 1.0)
    total: Value | None = None
    for c, v in terms:
        if c == 0.0:
            continue
        if total is None:
            total = v if c == 1.0 else v * c
        elif c == 1.0:
            total = total + v
        elif c == -1.0:
            total = total - v
        else:
            total = k.fma(v, k.constant(v.type, c), total)
    assert total is not None
    return total


class InputTransform(Signature):
    """A run of ``count`` tiles along a row, ``step`` bytes apart in the panel, one panel row apart in the target.

    Lines and pixels of a tile lie ``line`` and ``pixel`` bytes apart, points of the target, row-major, ``point`` bytes.
    """

    panel: Buffer
    line: Int
    pixel: Int
    target: Buffer
    point: Int
    count: Int
    step: Int


def input_transform(k: Module, name: str, y: Scheme, x: Scheme, element: str, lanes: int,
                    full: tuple[bool, bool] = (True, True)) -> None:  # fmt: skip
    """Add the transform of inputs.

    Along an axis that is not ``full``, where weights have a tap less, the point at infinity is left out: its weights
    are zeros.
    """
    tall, wide = y.inputs - (not full[0]), x.inputs - (not full[1])
    kind = vector(element, lanes)
    row_bytes = ROW_WORDS * kind.element_bytes
    with k.function(name, InputTransform) as given, k.loop(0, given.count) as tile:
        source, place = given.panel + tile.index * given.step, given.target + tile.index * row_bytes
        for part in range(ROW_WORDS // lanes):
            columns = []
            for j in range(wide):
                at, column = source + (given.pixel * j + part * kind.bytes), []
                for _ in range(tall):
                    column.append(k.load(kind, at))
                    at = at + given.line
                columns.append(y.forward(k, column))
            at = place + part * kind.bytes
            for i in range(len(columns[0])):
                for value in x.forward(k, [column[i] for column in columns]):
                    k.store(value, at)
                    at = at + given.point
                if not full[1]:
                    at = at + given.point


class WeightTransform(Signature):
    """Rows of weights, by channel and the taps of two axes, to rows by point, row-major, and channel."""

    rows: Buffer
    channel: Int
    y: Int
    x: Int
    target: Buffer
    point: Int
    channels: Int
    row: Int


def weight_transform(k: Module, name: str, y: Scheme, x: Scheme, element: str, lanes: int,
                     taps: tuple[int, int]) -> None:  # fmt: skip
    """Add the transform of weights: computed in double, rounded once.

    Along an axis with less taps than the scheme's there is no point at infinity.

    Parameters
    ----------
    lanes : int
        Doubles per vector.
    """
    kind, wide = vector(element, lanes), vector("double", lanes)
    with (
        k.function(name, WeightTransform) as given,
        k.loop(0, given.channels) as channel,
        k.loop(0, given.row, kind.bytes) as part,
    ):
        source = given.rows + (channel.index * given.channel + part.index)
        columns = []
        for j in range(taps[1]):
            column = [k.load(kind, source + (given.y * i + given.x * j)) for i in range(taps[0])]
            columns.append(y.spread(k, column if kind == wide else [k.cast("fpext", v, wide) for v in column]))
        at = given.target + (channel.index * given.row + part.index)
        for i in range(len(columns[0])):
            for value in x.spread(k, [column[i] for column in columns]):
                k.store(value if kind == wide else k.cast("fptrunc", value, kind), at)
                at = at + given.point
            if taps[1] < x.r:
                at = at + given.point


class OutputTransform(Signature):
    """A run of ``count`` tiles along a row, one row of sums apart there, ``step`` bytes apart in the target.

    Lines and pixels of a tile lie ``line`` and ``pixel`` bytes apart.  Where an output, or the sum of a line, is not
    finite the word ``flag`` becomes non-zero.
    """

    sums: Buffer
    point: Int
    target: Buffer
    line: Int
    pixel: Int
    count: Int
    step: Int
    flag: Buffer


def output_transform(k: Module, name: str, y: Scheme, x: Scheme, element: str, lanes: int, vectors: int) -> None:
    """Add the transform of sums back to outputs, whose rows are so many ``vectors`` wide."""
    kind = vector(element, lanes)
    row_bytes = vectors * kind.bytes
    with k.function(name, OutputTransform) as given:
        with k.loop(0, given.count, carry=[k.constant(kind, 0)]) as tile:
            (seen,) = tile.values
            for part in range(vectors):
                at = given.sums + tile.index * row_bytes + part * kind.bytes
                rows: list[list[Value]] = []
                for _ in range(y.n):
                    line = []
                    for _ in range(x.n):
                        line.append(k.load(kind, at))
                        at = at + given.point
                    rows.append(x.back(k, line))
                place = given.target + tile.index * given.step + part * kind.bytes
                outputs = [y.back(k, [row[j] for row in rows]) for j in range(x.m)]
                for i in range(y.m):
                    for j in range(x.m):
                        k.store(outputs[j][i], place + given.pixel * j)
                    # 0 * Inf and 0 * NaN are NaN; a sum that overflows costs no more than computing the tile again
                    total = reduce(operator.add, [column[i] for column in outputs])
                    seen = k.fma(total, k.constant(kind, 0), seen)
                    place = place + given.line
            tile.next(seen)
        found = k.any(tile.results[0].is_nan())
        with k.when(found > 0):
            k.store(found, given.flag)
