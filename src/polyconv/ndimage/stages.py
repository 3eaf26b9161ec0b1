"""Passes of a filter to stages of sums: in which arithmetic and in which form.

SciPy sums in double, rounds after every step, and cuts to the type of the result, in which it keeps what is between two
passes, too.  Where every sum is a whole number that a float holds, floats give the same; results that are floats may
be summed in their own type, with a bound of ``k eps sum|w||x|``; all else is done as SciPy does it, step by step.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.fields.plan import Again, Stage
from polyconv.kernels.field_sums import FieldTile
from polyconv.ndimage.borders import MODES
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.windows import Weights, factors, whole_bits

__all__ = ["Grid", "Types", "stages_of"]

EPSILON = sys.float_info.epsilon
"""SciPy leaves out weights of windows up to this, and compares the halves of a line with it."""

_FLOAT_BITS, _DOUBLE_BITS = 24, 53

_NARROW = ("u8", "i8", "u16", "i16", "f16", "bf16", "f32")
"""Types that a float holds."""

_DENSE = 0.6
"""Share of the taps of a window from which on all are summed, those of weight 0 too: rows then share reads."""

_FACTORED = 25
"""Taps from which on a window that is a product of lines is summed line by line."""

_BLOCKED = 12
"""Taps from which on a mean sums blocks of them first."""

_NEARLY = 2.0**-50
"""Relative error of a weight within which a window is a product of lines, where others may be summed in order."""

_CUT_LINES, _CUT_FLOATS = 100, 300
"""Taps from which on sums that are to be cut are formed line by line, or in floats.  In smaller windows of photographs
numbers are often all the same, and then their sum is near that number."""

_MOST_DOUBT = 0.1
"""Error of a sum up to which one that is to be cut may be told from whole numbers."""

_CHANCES = 1 << 18
"""Numbers by chance that tell how many sums are near whole numbers."""

_RANGE = 2.0**90
"""Sums of weights between this and its inverse leave a float room for numbers of 2^-30 to 2^30."""


@dataclass(frozen=True, slots=True)
class Types:
    """Types of field and result, as in ``DTYPES`` (truth values are ``u8``), and what else decides an arithmetic."""

    x: str
    y: str
    truth: bool
    strict: bool
    cval: float


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a field as it is summed: how many, and which of them those are that windows are longer than 1 along.

    ``unit``: positions between neighbours along the last axis, where channels may lie between pixels.
    """

    rank: int
    where: dict[int, int]
    unit: int

    def reach(self, pass_: Pass) -> tuple[int, ...]:
        """Positions that windows are longer than 1."""
        found = [0] * self.rank
        for a, axis in self._longer(pass_):
            found[axis] = (pass_.weights.shape[a] - 1) * self._unit(axis)
        return tuple(found)

    def taps(self, pass_: Pass, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in the weights, the last axis along the weights' axes, as positions in a window."""
        found = np.zeros((*places.shape[:-1], self.rank), np.int64)
        for a, axis in self._longer(pass_):
            found[..., axis] = places[..., a] * self._unit(axis)
        return found

    def spread(self, pass_: Pass) -> Weights:
        """The weights with all axes."""
        shape = [1] * self.rank
        for a, axis in self._longer(pass_):
            shape[axis] = pass_.weights.shape[a]
        return pass_.weights.reshape(shape)

    def _longer(self, pass_: Pass) -> list[tuple[int, int]]:
        """Axes of weights, and which of the field's they are."""
        return [(a, self.where[axis]) for a, axis in enumerate(pass_.axes) if axis in self.where]

    def _unit(self, axis: int) -> int:
        return self.unit if axis == self.rank - 1 else 1


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers of a field: their largest size, bits behind the point (infinite if unknown), whether any is negative."""

    peak: float
    bits: float
    is_signed: bool = True

    @property
    def width(self) -> float:
        """Bits of a number."""
        return (math.frexp(self.peak)[1] if math.isfinite(self.peak) else math.inf) + self.bits

    def summed(self, weights: Weights) -> _Numbers:
        """Their sums with weights."""
        if not np.isfinite(weights).all():
            return _Numbers(math.inf, math.inf)
        is_signed = self.is_signed or bool((weights < 0).any())
        return _Numbers(self.peak * float(np.abs(weights).sum()), self.bits + whole_bits(weights), is_signed)

    def kept(self, dtype: str) -> _Numbers:
        """What a type keeps of them: integers are cut, and wrap where they are too large."""
        row = DTYPES[dtype]
        if row.is_float:
            return self
        most = float(max(abs(v) for v in row.limits))
        wraps = self.peak > most or (self.is_signed and row.kind == "u")
        return _Numbers(most if wraps else self.peak, 0.0, row.kind == "i")


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """How sums are formed: in floats or doubles; fused or step by step; whether they are exact whatever the order."""

    panel: str
    is_fused: bool
    is_exact: bool


def stages_of(passes: Sequence[Pass], grid: Grid, types: Types) -> tuple[Stage, ...]:
    """Stages of passes that share panels: one window, or lines of different axes."""
    numbers = _field(types, any(MODES[mode] is MODES["constant"] for p in passes for mode in p.modes))
    arithmetic = _arithmetic(passes, types, numbers)
    chain = _Chain(grid, types, arithmetic, [])
    for place, pass_ in enumerate(passes):
        is_last = place == len(passes) - 1
        later = any(MODES[mode] is MODES["constant"] for p in passes[place + 1 :] for mode in p.modes)
        if pass_.kind == "window":
            chain.window(pass_, numbers)
        else:
            chain.line(pass_, numbers, is_last=is_last, is_blanked=later)
        numbers = _after(pass_, numbers, types)
    return tuple(chain.stages)


def _field(types: Types, is_filled: bool) -> _Numbers:
    """The numbers of a field and of its border."""
    row = DTYPES[types.x]
    if row.is_float or (is_filled and not math.isfinite(types.cval)):
        return _Numbers(math.inf, math.inf)
    found = _Numbers(float(max(abs(v) for v in row.limits)), 0.0, row.kind == "i")
    if not is_filled:
        return found
    beside = _Numbers(abs(types.cval), float(whole_bits(np.array([types.cval]))), types.cval < 0)
    return _Numbers(max(found.peak, beside.peak), beside.bits, found.is_signed or beside.is_signed)


def _after(pass_: Pass, numbers: _Numbers, types: Types) -> _Numbers:
    """The numbers that a pass leaves in the type of the result."""
    if pass_.kind == "mean":
        found = replace(numbers, bits=numbers.bits if pass_.weights.size == 1 else math.inf)
    else:
        found = numbers.summed(pass_.weights)
    return found.kept(types.y)


def _arithmetic(passes: Sequence[Pass], types: Types, numbers: _Numbers) -> _Arithmetic:
    width = 0.0
    for pass_ in passes:
        width = max(width, numbers.width, numbers.summed(pass_.weights).width)
        numbers = _after(pass_, numbers, types)
    has_mean = any(pass_.kind == "mean" for pass_ in passes)
    if width <= _FLOAT_BITS and not (has_mean and types.y == "f64"):
        return _Arithmetic("float", True, True)
    if width <= _DOUBLE_BITS:
        return _Arithmetic("double", True, True)
    totals = [float(np.abs(pass_.weights).sum()) for pass_ in passes]
    in_range = all(1 / _RANGE < total < _RANGE for total in totals)
    filled = not math.isfinite(types.cval) or abs(types.cval) < _RANGE
    floats = types.x in _NARROW and types.y in ("f16", "bf16", "f32")
    if floats and in_range and filled and not types.strict:
        return _Arithmetic("float", True, False)
    return _Arithmetic("double", False, False)


@dataclass(frozen=True, slots=True)
class _Chain:
    """Stages as they come about; each reads what the one before it has written."""

    grid: Grid
    types: Types
    arithmetic: _Arithmetic
    stages: list[Stage]

    def _tile(self, form: str, numbers: _Numbers, weights: Weights, *, is_last: bool) -> FieldTile:
        """The tile of a stage whose results have the type of the filter's."""
        total = numbers.summed(weights).peak
        limit = 2.0**31 if DTYPES[self.types.y].bits < 32 or self.types.y == "i32" else 2.0**63
        return FieldTile(
            self.arithmetic.panel, self.arithmetic.is_fused, form, self.types.y, bounded=total < limit,
            doubt="" if self.arithmetic.is_exact else self._doubt(total), truth=is_last and self.types.truth,
        )  # fmt: skip

    def _doubt(self, total: float) -> str:
        """Floats may overflow where doubles do not; what is summed in double is as SciPy has it."""
        return "finite" if self.arithmetic.panel == "float" and total >= _RANGE else ""

    # -- windows -----------------------------------------------------------------------------------

    def window(self, pass_: Pass, numbers: _Numbers) -> None:
        """One stage for a window, or a stage for every line that it is a product of."""
        kept = np.abs(pass_.weights) > EPSILON  # not so NaN
        weights = np.where(kept, pass_.weights, 0.0)
        places = np.argwhere(kept)
        again = Again(weights[kept], self.grid.taps(pass_, places))
        pass_ = replace(pass_, weights=weights)
        lines = self._lines_of(weights, numbers)
        if lines is not None:
            tile = self._tile("listed", numbers, pass_.weights, is_last=True)
            if DTYPES[self.types.x].is_float and not self.arithmetic.is_exact:
                tile = replace(tile, doubt="finite")
            self._product(pass_, lines, tile, again)
            return
        if self._cut_sums(pass_, numbers, again):
            return
        is_float = DTYPES[self.types.x].is_float or not math.isfinite(self.types.cval)
        spread, reach = self.grid.spread(pass_), self.grid.reach(pass_)
        is_dense = spread.shape[-2] > 1 and kept.mean() >= _DENSE and np.isfinite(weights).all()
        tile = self._tile("dense" if is_dense else "listed", numbers, weights, is_last=True)
        if is_dense and is_float and not kept.all():
            tile = replace(tile, doubt="finite")  # a product of 0 and what is not finite
        if is_dense:
            self._add(Stage(tile, reach, spread, again.taps[:0], again=again))
        else:
            self._add(Stage(tile, reach, again.weights, again.taps, again=again))

    def _add(self, stage: Stage) -> None:
        self.stages.append(stage if stage.tile.doubt else replace(stage, again=None))

    def _cut_sums(self, pass_: Pass, numbers: _Numbers, again: Again) -> bool:
        """Add stages for sums that are cut to integers and not exact, if some are faster than sums in order.

        A sum in floats, or line by line, that lies farther from a whole number than its error is cut to the integer
        that SciPy's is cut to; others are done again.  How many these are, numbers by chance tell.
        """
        total, taps = numbers.summed(pass_.weights).peak, again.weights.size
        if DTYPES[self.types.y].is_float or self.arithmetic.is_exact or not total < 2.0**31:
            return False
        spread, reach = self.grid.spread(pass_), self.grid.reach(pass_)
        lines = factors(pass_.weights, _NEARLY) if taps >= _CUT_LINES else None
        chain = spread.size // spread.shape[-1] + spread.shape[-1]
        ways = [("in order", taps * 0.6 / 8, 0.0)]
        if taps >= _CUT_FLOATS and spread.shape[-2] > 1 and numbers.width <= _FLOAT_BITS:
            error = (chain + 3) * 2.0**-_FLOAT_BITS * total
            ways.append(("floats", taps * 0.6 / 16 + self._again(again, numbers, error, 16), error))
        if lines is not None and numbers.width <= _DOUBLE_BITS:
            steps = sum(line.size for line in lines)
            error = (steps + 4) * _NEARLY * total
            ways.append(("lines", 0.3 + steps * 1.2 / 8 + self._again(again, numbers, error, 8), error))
        way, _, error = min(ways, key=lambda one: one[1])
        if way == "in order" or error > _MOST_DOUBT:
            return False
        tile = FieldTile(
            "float" if way == "floats" else "double", True, "dense", self.types.y, bounded=True, doubt="whole",
            blocked=way == "floats", truth=self.types.truth,
        )  # fmt: skip
        if way == "floats":
            self._add(Stage(tile, reach, spread, again.taps[:0], doubt=error, again=again))
        elif lines is not None:
            self._product(pass_, lines, tile, again, error)
        return True

    def _again(self, again: Again, numbers: _Numbers, error: float, lanes: int) -> float:
        """Cycles a pixel of doing sums again: of all of a vector, if one is in doubt."""
        low, high = DTYPES[self.types.x].limits
        taps = again.weights.size
        by_chance = np.random.default_rng(0).integers(low, high, (max(1, min(4096, _CHANCES // taps)), taps))
        sums = by_chance @ again.weights
        near = (np.abs(sums - np.rint(sums)) <= error) & (np.abs(sums) > 0.5)
        return float(1 - (1 - near.mean()) ** lanes) * (4 * taps + 40) / lanes

    def _lines_of(self, weights: Weights, numbers: _Numbers) -> tuple[Weights, ...] | None:
        """The lines whose product a window is, where summing them one by one is faster and as exact."""
        if weights.size < max(_FACTORED, 2 * sum(weights.shape)):
            return None
        a = self.arithmetic
        if not a.is_exact and (self.types.strict or not DTYPES[self.types.y].is_float):
            return None
        bits = _FLOAT_BITS if a.panel == "float" else _DOUBLE_BITS
        found = factors(weights, 0.0 if a.is_exact else 2.0 ** (2 - bits))
        if found is None or not a.is_exact:
            return found
        for line in found:
            numbers = numbers.summed(line)
            if numbers.width > bits:
                return None
        return found

    def _product(self, pass_: Pass, lines: Sequence[Weights], whole: FieldTile, again: Again,
                 doubt: float = 0.0) -> None:  # fmt: skip
        """Stages of lines whose sums are not rounded to the result's type before the last, whose tile is given."""
        there = [place for place, line in enumerate(lines) if line.size > 1]
        for place in there:
            line = replace(pass_, kind="line", axes=pass_.axes[place : place + 1], weights=lines[place])
            if place == there[0]:  # lines of one weight are factors
                alone = [float(line[0]) for line in lines if line.size == 1]
                line = replace(line, weights=line.weights * math.prod(alone))
            form, weights, taps = _line(self.grid, line, whole=False)
            tile = replace(whole, form=form) if place == there[-1] else replace(whole, form=form, target="", doubt="")
            source = len(self.stages)
            self._add(Stage(tile, self.grid.reach(line), weights, taps, source=source, doubt=doubt, again=again))

    # -- lines -------------------------------------------------------------------------------------

    def line(self, pass_: Pass, numbers: _Numbers, *, is_last: bool, is_blanked: bool) -> None:
        """A stage for a line, or two for a mean over many positions."""
        source, reach = len(self.stages), self.grid.reach(pass_)
        form, weights, taps = _line(self.grid, pass_, whole=True)
        tile = self._tile(form, numbers, pass_.weights, is_last=is_last)
        tile = replace(tile, from_zero=False, divided=pass_.kind == "mean")
        size = pass_.weights.size
        every = self.grid.taps(pass_, np.arange(size)[:, None])
        again = Again(pass_.weights, every, source)
        sources: tuple[int, ...] = ()
        if pass_.kind == "mean" and size >= _BLOCKED:
            block = math.isqrt(size)
            blocks, rest = divmod(size, block)
            first = replace(pass_, weights=pass_.weights[:block])
            inner = replace(tile, target="", divided=False, doubt="")
            self._add(Stage(inner, self.grid.reach(first), first.weights, every[:block], source=source))
            taps = np.concatenate([every[: blocks * block : block], every[size - rest :]])
            weights, sources = pass_.weights[: len(taps)], (source + 1,) * blocks + (source,) * rest
        self._add(
            Stage(tile, reach, weights, taps, sources, source, is_blanked and not is_last, float(size), again=again)
        )


def _line(grid: Grid, pass_: Pass, *, whole: bool) -> tuple[str, Weights, NDArray[np.int64]]:
    """Form, weights and taps of a line, in SciPy's order: pairs around the middle, or the last tap before the others.

    Parameters
    ----------
    whole : bool
        Whether it is a filter of its own, of which SciPy takes halves as equal that nearly are, and sums taps of weight
        0 too.
    """
    weights, size = pass_.weights, pass_.weights.size
    middle, back, near = size // 2, weights[::-1], EPSILON if whole else 0.0
    with np.errstate(invalid="ignore"):
        is_even = size % 2 == 1 and not (np.abs(weights - back) > near).any()
        is_odd = size % 2 == 1 and not (np.abs(weights + back)[:middle] > near).any()
    if pass_.kind == "line" and size > 1 and (is_even or is_odd):
        left = np.arange(middle)
        pairs = np.stack([np.concatenate([[middle], left]), np.concatenate([[middle], size - 1 - left])], axis=1)
        ordered = np.concatenate([weights[middle : middle + 1], weights[:middle]])
        return "even" if is_even else "odd", ordered, grid.taps(pass_, pairs[:, :, None])
    places = np.roll(np.arange(size), 1)
    if not whole:
        places = places[weights[places] != 0]
    return "listed", weights[places], grid.taps(pass_, places[:, None])
