"""The situation in which an algorithm is chosen: problem, target, limits, machine; and what follows from it alone.

It must not know any algorithm.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import field, replace
from functools import lru_cache

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.lowering.presums import CERTAIN
from polyconv.machine.host import profile_in_force
from polyconv.machine.profile import Profile, Rates
from polyconv.problem.hashed import Hashed
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = [
    "FREE_BYTES", "Situation", "accumulator_arithmetic", "arith_of", "changed", "has_pairs", "image_bytes",
    "lane_arithmetic", "of_one_image", "own_bound", "scheme_of", "short_sums", "transform_refusal",
]  # fmt: skip

FREE_BYTES = 64 << 10
"""Workspace a thread may always use; it does not count against a limit."""


@dataclass(frozen=True, slots=True)
class Situation(Hashed):
    """All that choosing an algorithm may depend on.

    Parameters
    ----------
    problem : Problem
        With known extents.
    target : Target
    limit : int or None
        Most workspace bytes of one thread beyond ``FREE_BYTES``; None for no limit.
    threads : int
        Most threads that will share the items; no bits may depend on it.
    strict : bool
        Accuracy "strict": subnormals kept, own error bounds only.
    finite : bool
        Whether all weights are finite.
    once : bool
        The weights come anew with each call, which then also prepares them; else a layer does, for all calls.
    chance : int or None
        A seed by which an algorithm then chooses among its forms, and how large it takes caches to be; None to choose
        by price and for real caches.  For tests: each form must be right wherever it can be built, and with small
        caches a small problem has several boxes.
    narrow : bool
        Whether all weights, of integers of 8 bits less their zero points, are numbers of i8.
    light : bool
        Whether sums of products of those, with inputs less their zero point, stay below 2^25.
    crowded : int
        Of such weights what ``presums.crowded`` says, where that decides how they are multiplied.
    far : bool
        The weights come from memory at each call, as those of a network do that no cache holds.
    profile : Profile
        What the machine can do, of which prices are made; by default that in force.
    """

    problem: Problem
    target: Target
    limit: int | None = None
    threads: int = 1
    strict: bool = False
    finite: bool = True
    once: bool = False
    chance: int | None = None
    narrow: bool = True
    light: bool = True
    crowded: int = CERTAIN
    far: bool = False
    profile: Profile = field(default_factory=profile_in_force)

    __hash__ = Hashed.__hash__

    def rates(self, arith: Arithmetic) -> Rates:
        """What the machine does in a cycle with vectors of an arithmetic."""
        return self.profile.rates_of(self.target.level, arith.rates or arith.name)

    def transforming(self, arith: Arithmetic) -> float:
        """How much longer transforms take than where they were measured: a multiply-add is one or two instructions."""
        instructions = 1.0 if self.target.has_fma else 2.0
        return max(1.0, self.rates(arith).slower / instructions)

    @property
    def moving(self) -> float:
        """How much longer loads and stores in caches take than on a machine with two loads and one store a cycle."""
        return self.profile.rates_of(self.target.level, "f32").moving

    def budget(self, preferred: int) -> int:
        """Workspace bytes a thread may plan with."""
        near = self.near(preferred)
        return near if self.limit is None else min(near, self.limit + FREE_BYTES)

    def cache(self, level: str, share: float) -> int:
        """``near`` of a share of one of the machine's caches: ``l1``, ``l2`` or ``l3``."""
        return self.near(round(share * self.profile.numbers[f"{level}.bytes"]))

    def near(self, size: int) -> int:
        """Bytes that decide how work is cut and what is asked for early, but no value of a result."""
        return size if self.chance is None else max(1, size >> 4 * (_lot(self.chance, size) % 5))

    def price(self, form: object, cycles: float) -> float:
        """What decides among forms, the lowest wins: predicted cycles, or a lot where that is left to chance."""
        return cycles if self.chance is None else float(_lot(self.chance, form))


def changed(s: Situation, **values: object) -> Situation:
    """The situation with other values: itself, where it has them."""
    has_all = all([getattr(s, name) == value for name, value in values.items()])
    return s if has_all else replace(s, **values)  # type: ignore[arg-type]


@lru_cache(1024)
def of_one_image(s: Situation) -> Situation:
    """A situation without what no choice may depend on."""
    return changed(s, problem=s.problem if s.problem.n == 1 else replace(s.problem, n=1), threads=1)


def _lot(seed: int, thing: object) -> int:
    """A number that seems random, the same in each process: from a seed and what it is drawn for."""
    return zlib.crc32(f"{seed} {thing!r}".encode())


def accumulator_arithmetic(s: Situation) -> str:
    """Arithmetic of a problem's accumulator.

    Floats: f64 for f64, else f32.  Integers: i32 where the result needs no more than the sum modulo 2^32,
    or the sum cannot leave 32 bits; else i64.
    """
    p = s.problem
    if p.x_dtype.is_float:
        return "f64" if "f64" in (p.x, p.y) else "f32"
    wraps = p.overflow == "wrap" and p.activation is None and p.y_dtype.bits <= 32
    if p.quantisation is not None or wraps:
        return "i32"
    largest = max(abs(v) for v in p.x_dtype.limits) * max(abs(v) for v in p.w_dtype.limits)
    products = (p.c // p.groups) * math.prod(p.k)
    added = (p.bias + p.residual) * max(abs(v) for v in p.y_dtype.limits)
    return "i32" if largest * products + added < 1 << 31 and p.y_dtype.bits <= 32 else "i64"


def short_sums(s: Situation) -> bool:
    """Whether sums modulo 2^16 are enough: integers of 8 and 16 bits that wrap around, and nothing else follows."""
    p = s.problem
    wraps = p.overflow == "wrap" and p.activation is None and p.quantisation is None
    return wraps and not p.y_dtype.is_float and p.y_dtype.bits <= 16


def lane_arithmetic(s: Situation) -> str:
    """Arithmetic of sums whose lanes are no channels of an input: vectors hold twice as many sums of 16 bits."""
    return "i16 sums" if short_sums(s) else accumulator_arithmetic(s)


def has_pairs(s: Situation) -> bool:
    """Whether bf16 numbers may be multiplied in pairs: the CPU does, and subnormal numbers may count as zero."""
    return s.problem.x == s.problem.w == "bf16" and s.target.bf16 and not s.strict and s.finite


@lru_cache(1024)
def arith_of(s: Situation) -> Arithmetic:
    """The row of ``accumulator_arithmetic``."""
    return ARITHMETIC[accumulator_arithmetic(s)]


@lru_cache(256)
def image_bytes(p: Problem) -> tuple[int, int]:
    """Bytes of the input and of the result of one image."""
    read, written = (math.prod(e or 0 for e in extents) for extents in (p.i, p.out))
    return p.c * read * p.x_dtype.itemsize, p.m * written * p.y_dtype.itemsize


def scheme_of(parts: Sequence[str]) -> str:
    """Name of what computes the sweeps of a problem: one if they are alike, else all in their order."""
    return "+".join(parts if len(set(parts)) > 1 else parts[:1])


def own_bound(s: Situation) -> tuple[str, float]:
    """Bound of a plain sum of products: ``(k + 4) eps`` times the output's own ``sum|x||w|``; integers are exact."""
    p = s.problem
    if not p.y_dtype.is_float:
        return "own", 0.0
    return "own", ((p.c // p.groups) * math.prod(p.k) + 4) * DTYPES[accumulator_arithmetic(s)].eps


def transform_refusal(s: Situation) -> str | None:
    """Why nothing that transforms tiles can be used; None if something may be."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if s.strict:
        return "its error bound is over a tile's inputs; accuracy='strict' admits bounds over an output's own products"
    if not p.x_dtype.is_float:
        return "transforms floating-point numbers only"
    if not s.finite:
        return "weights hold Inf or NaN"
    return None
