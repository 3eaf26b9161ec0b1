"""Cycles of memory that algorithms have in common: what streams from afar, what collides, what is written in parts.

Turns the sizes of a problem into cycles.  It must not know the order in which anything is read.
"""

from __future__ import annotations

import math
from functools import lru_cache

from polyconv.lowering.situation import Situation, image_bytes
from polyconv.lowering.sweep import Axis
from polyconv.machine.profile import Profile
from polyconv.problem.problem import Problem

__all__ = [
    "WEIGHTS_FROM_MEMORY",
    "apart_cycles",
    "beyond_cycles",
    "crowding_cycles",
    "far_cycles",
    "is_slow_beyond",
    "planes_collide",
    "sets_met",
    "streamed_cycles",
    "ways",
]  # fmt: skip

WEIGHTS_FROM_MEMORY = 8 / 10.6
"""Of the bytes a cycle that memory gives, those of weights that stream past tiles.  Measured on a Zen 5."""


@lru_cache(256)
def planes_collide(p: Problem, *, reading: bool) -> bool:
    """Whether channels of the input (or result) lie a multiple of 4 KiB apart: all in the same sets of a cache."""
    extents, dtype = (p.i, p.x_dtype) if reading else (p.out, p.y_dtype)
    size = math.prod(e or 0 for e in extents) * dtype.itemsize
    return p.layout == "NCHW" and size > 0 and size % 4096 == 0


_CACHED, _LEAVING = 1 / 2, 3 / 16
"""Shares of a last cache: input and result beyond the first come from memory, call after call; beyond the second some
of them does."""

_LINES = 3 / 10.6
"""Of the bytes a cycle that memory gives, those of lines of a panel: measured, of what a Zen 5 gives."""


def far_cycles(s: Situation, read: float, *, soon: bool = False) -> float:
    """Cycles that bytes of the input take which come from memory, not from a cache; 0 for small problems.

    What boxes read that others read as well comes from memory once.

    Parameters
    ----------
    soon : bool
        Of images that a cache just holds, some counts already: what boxes keep besides pushes it out.
    """
    share, held, rate = _far(s, soon)
    return share * min(read, held) / rate


@lru_cache(256)
def _far(s: Situation, soon: bool) -> tuple[float, int, float]:
    """Share of the input that comes from memory; bytes of an image; bytes a cycle."""
    held, written = image_bytes(s.problem)
    cached, leaving = (s.profile.cache("l3", share) for share in (_CACHED, _LEAVING))
    beyond = held + written - leaving
    share = beyond / (cached - leaving) if soon else float(held + written > cached)
    return min(1.0, max(0.0, share)), held, s.profile.stream("memory", _LINES)


_SLOW, _LEFT, _WAITED, _WAITED_APART = 1 / 3, 1 / 2, 0.6, 2.0
"""Of the bytes a cycle of a second-level cache, those below which a last one is slow; of the bytes of the former, what
it has left for an image and its result; and of the time in which bytes come from the last one, what tiles wait where
nobody asks early, for lines that follow each other, and for lines of many planes.  Measured on an Emerald Rapids, 18
layers; a Zen 5 waits for next to nothing."""


def is_slow_beyond(profile: Profile) -> bool:
    """Whether what a second-level cache does not hold comes from a slow one, so that it is worth asking early."""
    return profile.stream("l3", 1.0) < profile.stream("l2", _SLOW)


def waiting_cycles(s: Situation, size: float, *, apart: bool) -> float:
    """Cycles that tiles wait for bytes for which nobody asks early; ``apart``: for those of lines of many planes."""
    if not is_slow_beyond(s.profile) or sum(image_bytes(s.problem)) <= s.profile.cache("l2", _LEFT):
        return 0.0
    return (_WAITED_APART if apart else _WAITED) * size / s.profile.stream("l3", 1.0)


_BEYOND = 1.8
"""Cycles that a line takes more which a second-level cache does not hold, where whole rows are moved: Zen 5."""


def beyond_cycles(s: Situation, size: int) -> float:
    """Cycles that so many bytes of an image take more because a second-level cache does not hold them all."""
    return _BEYOND / s.profile.numbers["line"] * max(0.0, size - s.profile.numbers["l2.bytes"])


_SEEN, _CUT = 0.3, 48
"""What is not hidden behind products of what a second-level cache sends; bytes of lines that vectors share with others.
Measured with AVX2: pixels of planes cost 15 to 50 % of a tile's products on a Zen 3, up to 9 % on a Zen 5."""


def streamed_cycles(s: Situation, size: int, *, apart: bool = False) -> float:
    """Cycles that a step of a tile of short vectors waits for bytes of pixels or weights from a second-level cache.

    Longer vectors hide it: their steps take twice as long.  Bytes whose lines lie apart are fetched by nobody ahead.
    """
    if s.target.vector_bytes >= s.profile.numbers["line"]:
        return 0.0
    return (1.0 if apart else _SEEN) * (size + _CUT) / s.profile.numbers["l2.read"]


def ways(s: Situation) -> int:
    """Lines of a set of the first-level cache, which has as many sets as a page has lines."""
    return int(s.profile.numbers["l1.bytes"] / s.profile.numbers["page"])


def sets_met(s: Situation, pitch: int) -> int:
    """Sets of the first-level cache that positions so many bytes apart meet."""
    line = int(s.profile.numbers["line"])
    sets = int(s.profile.numbers["page"]) // line
    return sets if pitch % line else sets // math.gcd(pitch // line, sets)


_CROWDED = 15.0
"""Cycles of a line of results that was written in part and comes again.  Measured on a Zen 3."""


def crowding_cycles(s: Situation, rows: int) -> float:
    """Cycles of a line of each of so many planes, written one after another: of those a first-level cache cannot hold.

    Planes a multiple of a large power of two apart share few of its sets.
    """
    plane = math.prod(o or 0 for o in s.problem.out) * s.problem.y_dtype.itemsize
    return _CROWDED * min(1.0, max(0.0, rows / (sets_met(s, plane) * ways(s)) - 1))


def apart_cycles(s: Situation, axis: Axis) -> float:
    """Cycles that a vector of results takes more where those of other phases lie between.

    Every line is written in parts; if a second-level cache does not hold the result it comes and goes for each.
    """
    p = s.problem
    if p.layout == "NHWC" or axis.out_step == 1:
        return 0.0
    if image_bytes(p)[1] <= s.profile.cache("l2", 1):
        return 20.0
    return 50.0 if axis.out_step == 2 else 70.0
