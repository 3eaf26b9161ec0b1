"""A problem to the family of convolutions it belongs to.

The table is read from top to bottom and its last row fits everything, so every problem has one family.
It must not know any measured time.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.dataclass import dataclass
from polyconv.problem.problem import Problem

__all__ = ["FAMILIES", "Family", "family"]

_FEW_CHANNELS = 4  # of a first layer: grey, colours, colours with alpha
_SMALL_GROUP = 32  # channels
_LARGE_KERNEL = 9


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of convolution.

    Parameters
    ----------
    name : str
        How tables call it.
    holds : callable
        Whether a problem, in its canonical form, is of this kind, if no row above claimed it.
    """

    name: str
    holds: Callable[[Problem], bool]


def _is_depthwise(p: Problem) -> bool:
    return p.groups > 1 and p.groups == p.c


def _is_strided(p: Problem) -> bool:
    return any(s > 1 for s in p.s)


def _is_dilated(p: Problem) -> bool:
    return any(d > 1 for d in p.d)


def _is_plain_depthwise(p: Problem) -> bool:
    return _is_depthwise(p) and p.op == "conv" and p.rank == 2 and p.m == p.c and not (_is_strided(p) or _is_dilated(p))


def _map(p: Problem) -> int:
    """Longer side of the result."""
    return max(int(o or 0) for o in p.out)


def _has_eight_bits(p: Problem) -> bool:
    return p.x in ("i8", "u8") and p.w in ("i8", "u8")


def _is_small_axes(p: Problem) -> bool:
    """Kernels of 3 to 7 taps along one axis or three, 5x5, and the transposed kernel of 4 with stride 2."""
    if p.op == "conv_transpose":
        return set(p.k) == {4} and set(p.s) == {2} and p.groups == 1
    if _is_strided(p) or _is_dilated(p) or p.groups > 1:
        return False
    taps = sorted(k for k in p.k if k > 1)
    if len(taps) == 1:
        return 3 <= taps[0] <= 7
    return taps == [5, 5] or taps == [3, 3, 3]


def _is_dense_3x3(p: Problem) -> bool:
    return p.op == "conv" and p.k == (3, 3) and p.groups == 1 and not (_is_strided(p) or _is_dilated(p))


def _is_plain_work(p: Problem) -> bool:
    """What no trick makes cheaper: single taps, strides, few input channels, other transposed ones."""
    return all(k == 1 for k in p.k) or _is_strided(p) or p.c // p.groups <= _FEW_CHANNELS or p.op == "conv_transpose"


FAMILIES: tuple[Family, ...] = (
    Family("deformable", lambda p: p.op == "deform_conv"),
    Family("int8: dense u8s8", lambda p: _has_eight_bits(p) and (p.x, p.w, p.groups) == ("u8", "i8", 1)),
    Family("int8: s8s8, groups, depthwise", _has_eight_bits),
    Family("f64, f16, integers", lambda p: not p.x == p.w == p.y == "f32"),
    Family("large kernels", lambda p: p.op == "conv" and max(p.k) >= _LARGE_KERNEL and not _is_strided(p)),
    Family("depthwise 3x3, maps above 28", lambda p: _is_plain_depthwise(p) and p.k == (3, 3) and _map(p) > 28),
    Family("depthwise 3x3, maps up to 28", lambda p: _is_plain_depthwise(p) and p.k == (3, 3)),
    Family("depthwise 5x5, 7x7", lambda p: _is_plain_depthwise(p) and p.k in ((5, 5), (7, 7))),
    Family("depthwise 1-D, 3-D, dilated, strided, multiplied", _is_depthwise),
    Family("small groups", lambda p: p.groups > 1 and max(p.c, p.m) // p.groups <= _SMALL_GROUP),
    Family("1-D, 3-D, 5x5, transposed k4s2",
           lambda p: _is_small_axes(p) and (p.op == "conv_transpose" or p.c > _FEW_CHANNELS)),
    Family("1x1, strided, first layers, transposed", _is_plain_work),
    Family("dense 3x3, maps up to 7", lambda p: _is_dense_3x3(p) and _map(p) <= 7),
    Family("dense 3x3", _is_dense_3x3),
    Family("other", lambda p: True),
)  # fmt: skip
"""All families; the first that holds is a problem's."""


def family(p: Problem) -> Family:
    """Family of a problem with known extents."""
    plain = p.canonical()
    return next(row for row in FAMILIES if row.holds(plain))
