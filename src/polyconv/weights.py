"""The weights of a layer: as they were given, and in all forms in which kernels stream them.

Turns weights, bias and quantities of a problem into the arrays that a program points to; each form is made once and
kept as long as a program holds it.  It must not know which algorithm asks, or why.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, ref

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.dtypes import DTYPES, of_array
from polyconv.errors import ArgumentError
from polyconv.kernels.isa import ARITHMETIC
from polyconv.lowering.presums import CERTAIN, crowded
from polyconv.lowering.program import zeros
from polyconv.lowering.rescaling import rescaling_constants
from polyconv.lowering.sweep import Sweep
from polyconv.operands import narrow_and_light, outputs_first
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import Quantisation
from polyconv.runtime.arrays import aligned, as_aligned, place
from polyconv.runtime.guests import as_array
from polyconv.runtime.memory import allocating, freed, native_order, sized

__all__ = ["TABLES", "Weights"]

Array = NDArray[Any]
Back = Callable[[Array, Array], None]
"""Writes the weights that a packed form holds into an array, as they were."""

_PIECE = 1 << 18
"""Elements that are judged at a time."""

TABLES = threading.RLock()
"""Guards the tables of all layers, for a moment at a time; a fork waits for it.

Whoever holds it may take it again: a finaliser or a signal handler may call a layer at any point.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=TABLES.acquire, after_in_parent=TABLES.release, after_in_child=TABLES.release)


class Weights:
    """Weights, bias and quantities of a convolution.

    Parameters
    ----------
    w, bias : array
        As in a problem.
    quantities : mapping
        Run-time ``zx zw zy sx sw sy`` of quantised problems.
    own : bool
        Copy them; without it they must not change while this lives.
    """

    def __init__(self, w: ArrayLike, bias: ArrayLike | None, quantities: Mapping[str, ArrayLike | None] | None, *,
                 own: bool) -> None:  # fmt: skip
        given = native_order(as_array(w, "w"), "w")
        with allocating(sized("a layer's copy of w", given.shape, given.dtype), "call conv instead, which makes none"):
            self.w = as_aligned(given) if own else given
        self.bias = None if bias is None else np.array(native_order(as_array(bias, "b"), "b"), copy=own or None)
        self.is_finite = True if not of_array(self.w.dtype, "w").is_float else _all_finite(self.w)
        self._quantities = {
            name: np.array(as_array(v, name)) for name, v in (quantities or {}).items() if v is not None
        }
        self._sizes: tuple[bool, bool] | None = None
        self._crowded: int | None = None
        self._rescaling: Array | None = None
        self._moved: tuple[ref[Array], Callable[[Array], Array]] | None = None
        self._given: Callable[[], Array] | None = None
        self._forms: WeakValueDictionary[Any, Any] = WeakValueDictionary()  # programs hold them

    def narrow_and_light(self, p: Problem) -> tuple[bool, bool]:
        """What a ``Situation`` says of how large weights are; found once."""
        if self._sizes is None:
            self._sizes = narrow_and_light(p, self.given(), self._quantities.get("zx"), self._quantities.get("zw"))
        return self._sizes

    def crowded(self, p: Problem) -> int:
        """What a ``Situation`` says of how often products of weights must not be summed in 16 bits; found once."""
        if p.w_dtype.bits != 8 or p.x_dtype.bits != 8 or p.groups > 1 or not self.narrow_and_light(p)[0]:
            return CERTAIN
        if self._crowded is None:
            w, zero = outputs_first(p, self.given()), self._zero_points(p)
            if zero.any():
                w = w - zero.astype(np.int16).reshape(-1, *(1,) * (w.ndim - 1))
            w = w.astype(np.int8, copy=False)
            self._crowded = crowded(w.reshape(p.m, p.c, math.prod(p.k)))
        return self._crowded

    def same_as(self, w: Array, bias: Array | None, quantities: Mapping[str, ArrayLike | None] | None) -> bool:
        """Whether others are the same, byte by byte."""
        mine: dict[str, Array | None] = {**self._quantities, "w": self.given(), "b": self.bias}
        others = {name: as_array(v, name) for name, v in (quantities or {}).items() if v is not None}
        return mine.keys() == {"w", "b", *others} and all(
            (mine[name] is None and other is None) or _same(mine[name], other)
            for name, other in {**others, "b": bias, "w": w}.items()
        )

    def packed(self, key: Any, make: Callable[[], Any]) -> Any:
        """The form kept under a key, made on first use."""
        with TABLES:
            found = self._forms.get(key)
        if found is None:
            found = make()
            with TABLES:
                found = self._forms.setdefault(key, found)
        return found

    def moved(self, w: Array, packed: Array, back: Back) -> None:
        """Be told that a packed form holds ``w`` in another order; that counts where ``w`` is all of the weights."""
        if w.nbytes == self.w.nbytes and w.ctypes.data == self.w.ctypes.data and _is_dense(w) and _is_dense(self.w):
            self._moved = ref(packed), partial(_put_back, back, _lie(w), _lie(self.w))

    def let_go(self) -> bool:
        """Forget the weights as they were given, where a packed form has them all; whether they are forgotten.

        From then on ``w`` tells their shape and type only, and ``given`` puts them together again.
        """
        if self._given is not None:
            return True
        packed, back = (None, None) if self._moved is None else (self._moved[0](), self._moved[1])
        with TABLES:
            forms = list(self._forms.values())
        if packed is None or back is None or any(np.may_share_memory(self.w, form) for form in forms):
            return False
        self._given, count = partial(back, packed), self.w.nbytes
        self.w = np.broadcast_to(np.zeros((), self.w.dtype), self.w.shape)
        freed(count)
        return True

    def given(self) -> Array:
        """The weights as they were given."""
        put_together = self._given
        return self.w if put_together is None else put_together()

    @property
    def given_bytes(self) -> int:
        """Bytes of the weights as they were given, if they are still there."""
        return place(self.w).size

    @property
    def packed_bytes(self) -> int:
        """Bytes of all forms that programs hold, beside the weights themselves."""
        with TABLES:
            forms = list(self._forms.values())
        return sum(form.nbytes for form in forms if not np.may_share_memory(form, self.w))

    def of_sweep(self, p: Problem, sweep: Sweep, arithmetic: str, lone: tuple[int | None, ...]) -> Array:
        """Weights of a sweep less their zero points: (groups, m/groups, c/groups, taps), in the arithmetic's type.

        Where ``zero_left`` has some of the zero points, weights are less the rest of them.  ``lone`` has the taps of
        axes that the problem lacks, as ``Problem.lone_taps``.
        """
        kind = DTYPES[ARITHMETIC[arithmetic].weight].numpy
        w = self.given()[(..., *(slice(None) if tap is None else tap for tap in lone))].astype(kind, copy=False)
        left, zero = self.zero_left(p, arithmetic), self._zero_points(p)
        zero = (zero if left is None else zero - left).astype(kind)
        g = p.groups
        if p.op == "conv_transpose":
            w = np.swapaxes(w.reshape(g, p.c // g, p.m // g, *p.k), 1, 2)
        else:
            w = w.reshape(g, p.m // g, p.c // g, *p.k)
        if zero.any():
            w = w - (zero.reshape(()) if zero.size == 1 else zero.reshape(g, -1, *(1,) * (w.ndim - 2)))
        at: tuple[Any, ...]
        indices = list(itertools.product(*(axis.tap_indices for axis in sweep)))
        if p.op == "conv_transpose" and math.prod(p.k) > 1:
            # tap by tap: outputs, which lie a tap's distance apart, then lie together
            by_tap: Array = np.empty((len(indices), g, p.c // g, p.m // g), kind)
            for target, tap in zip(by_tap, indices, strict=True):
                at = (..., *tap)
                target[...] = w[at].swapaxes(1, 2)
            return by_tap.transpose(1, 3, 2, 0)
        if len(indices) < math.prod(p.k):
            some = (slice(a.first_tap, a.first_tap + a.taps) for a in sweep)  # forward, their steps are 1
            at = (..., *some)
            w = w[at]
        return w.reshape(*w.shape[:3], len(indices))

    def zero_left(self, p: Problem, arithmetic: str) -> Array | None:
        """What is still to be taken off all weights, or those of each output channel, where they are bytes.

        Weights less their zero points may need 9 bits; less 128 where they are unsigned, they are numbers of i8, and
        so is what is left: from -128 to 127.  None where nothing is.
        """
        if ARITHMETIC[arithmetic].weight != "i8" or self.narrow_and_light(p)[0]:
            return None
        zero = self._zero_points(p) - (p.w_dtype.limits[1] + 1) // 2 * (p.w == "u8")
        return zero[:1] if (zero == zero[0]).all() else zero

    def _zero_points(self, p: Problem) -> Array:
        """Those of the weights: one of all, or of every output channel."""
        q = p.quantisation
        zero = 0 if q is None or q.zw is None else self._quantity(q.zw, "zw")
        return np.asarray(zero).astype(np.int32).reshape(-1)

    def bias_in(self, kind: Any) -> Array | None:
        """The bias in the accumulator's type."""
        return None if self.bias is None else as_aligned(self.bias.astype(kind))

    def zero_point(self, p: Problem) -> int:
        """Zero point of the input."""
        q = p.quantisation
        return 0 if q is None else int(self._number(q, "zx"))

    def scale(self, p: Problem) -> Array | None:
        """What sums of each output channel are multiplied by: ``sx sw / sy`` in f32."""
        q = p.quantisation or Quantisation()
        if q.sx is None or q.sw is None or q.sy is None:
            return None
        one = np.float32
        sx, sw, sy = (np.asarray(self._quantity(v, n), one) for v, n in ((q.sx, "sx"), (q.sw, "sw"), (q.sy, "sy")))
        with np.errstate(all="ignore"):
            scale = (sx.reshape(-1)[0] * sw.reshape(-1)) / sy.reshape(-1)[0]
        return as_aligned(np.broadcast_to(scale.astype(one), (p.m,)))

    def constants(self, p: Problem, kind: Any) -> Array:
        """Parameters of the activation, or of rounding to the result's type, in slots of 8 bytes."""
        q = p.quantisation
        if q is not None and q.rescales:
            if self._rescaling is None:
                self._rescaling = rescaling_constants(p, partial(self._number, q))
            return self._rescaling
        if p.activation is None:
            return zeros()
        table = aligned(8, np.int64)
        for at, value in enumerate(p.activation.parameters):
            if np.dtype(kind).kind == "f":
                with np.errstate(over="ignore"):  # a bound beyond the type is infinite
                    table[at : at + 1].view(kind)[0] = value
            else:
                info = np.iinfo(np.uint64 if p.y == "u64" else kind)
                table[at : at + 1].view(info.dtype)[0] = int(min(max(value, info.min), info.max))
        return table

    def _number(self, q: Quantisation, name: str) -> Any:
        """A zero point or scale of all channels, as a number."""
        value = getattr(q, name)
        return 0 if value is None else np.asarray(self._quantity(value, name)).reshape(-1)[0].item()

    def _quantity(self, value: float | str, name: str) -> Any:
        if not isinstance(value, str):
            return value
        if name not in self._quantities:
            raise ArgumentError(f"{name} is given at run time by this problem, but was not passed")
        return self._quantities[name]


def _all_finite(w: Array) -> bool:
    """Whether all elements are finite; many are judged in pieces, so that no array of answers is as large as they."""
    if w.size <= _PIECE:
        return bool(np.isfinite(w).all())
    once = w[tuple(slice(1 if step == 0 else None) for step in w.strides)]  # what is repeated need not be judged again
    pieces = np.nditer(once, ["external_loop", "buffered"], buffersize=_PIECE)
    return all(bool(np.isfinite(piece).all()) for piece in pieces)


def _same(a: Array | None, b: Array | None) -> bool:
    """Whether two arrays have the same shape, type and bytes; large ones are compared in pieces."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    word = f"u{a.itemsize}"
    one, other = a.view(word), b.view(word)
    if a.size <= _PIECE // 8:
        return bool((one == other).all())
    pieces = np.nditer([one, other], ["external_loop", "buffered"], buffersize=_PIECE // 8)
    return all(bool((p == q).all()) for p, q in pieces)


class _Lie(NamedTuple):
    """How an array lies in memory that it fills."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]


def _lie(a: Array) -> _Lie:
    return _Lie(a.shape, a.dtype, a.strides)


def _is_dense(a: Array) -> bool:
    """Whether an array fills the memory from its first element on: each element once, in whatever order of axes."""
    return bool(a.transpose(np.argsort(a.strides)[::-1]).flags.c_contiguous)


def _put_back(back: Back, w: _Lie, given: _Lie, packed: Array) -> Array:
    """Weights as they were given, of packed ones that hold them as ``w``."""
    memory = np.empty(math.prod(given.shape) * given.dtype.itemsize, np.uint8).data
    back(packed, np.ndarray(w.shape, w.dtype, memory, strides=w.strides))
    return np.ndarray(given.shape, given.dtype, memory, strides=given.strides)
