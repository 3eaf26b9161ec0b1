"""A problem with its weights, ready for arrays: packs once, plans per extents, runs.

``Layer`` is what the facade, the dialects and sessions hold; ``compute`` is the same for one call.  Operands
are checked in ``operands``, all of them before the first store.  It must know nothing of attribute names.
"""

from __future__ import annotations

import itertools
import logging
import math
import operator
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.algorithms.form import Form, Refusal
from polyconv.algorithms.program import Late, Program, Request, Situation, Step
from polyconv.algorithms.sweep import Sweep
from polyconv.algorithms.table import ALGORITHMS
from polyconv.dtypes import DTYPES, Dtype, of_array
from polyconv.errors import ArgumentError, Error
from polyconv.kernels import objects
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.layout import ROUNDING_BITS
from polyconv.kernels.record import words
from polyconv.operands import (
    Lying,
    check_weights,
    deformation,
    deformation_shapes,
    fused,
    narrow_and_light,
    operand,
    result_of,
    same_memory,
    span,
    strides,
)
from polyconv.planning import wisdom
from polyconv.planning.measure import fastest
from polyconv.planning.planner import Choice, Decision, choose, describe, form_of, reasons, take, threads_for, waking
from polyconv.problem.plan import Plan
from polyconv.problem.problem import Problem, Quantisation
from polyconv.runtime import threads as pool
from polyconv.runtime.arrays import MARKS, aligned, mark, marked, may_overlap
from polyconv.runtime.call import make_entry
from polyconv.runtime.guests import as_array, is_plain
from polyconv.runtime.memory import allocating, native_order, sized
from polyconv.settings import context as settings_context
from polyconv.settings import resolve as setting
from polyconv.settings import spelled_bytes
from polyconv.target import Target, target

__all__ = ["Layer", "causal", "compute", "keep_where_settings_say", "plan", "target_in_force"]

Array = NDArray[Any]

_log = logging.getLogger("polyconv")

_MOST_CALLS = 32
_MOST_PACKED = 64 << 20
"""Calls, those used last, and bytes of packed weights that a layer keeps; more bytes where the weights are large."""
_KEEP_GIL_SECONDS = 5e-6
_PIECE = 1 << 18
_NUMPY = {"float": np.float32, "double": np.float64, "i32": np.int32, "i64": np.int64}
"""NumPy's name of an accumulator."""


_lock = threading.RLock()
"""Guards the tables of all layers, for a moment at a time; a fork waits for it.

Whoever holds it may take it again: a finaliser or a signal handler may call a layer at any point.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def target_in_force() -> Target:
    """What code is made for now; its kernels are kept where settings say."""
    keep_where_settings_say()
    return target(setting("target"))


def keep_where_settings_say() -> None:
    """Let kernels be kept in the folder of the settings that were in force at the first call."""
    if not objects.has_folder():
        objects.use_folder(setting("cache_dir"))


@dataclass(frozen=True, slots=True)
class _Call:
    """A program bound to arrays of given shapes and strides."""

    key: Any
    algorithm: str
    plan_threads: int
    program: Program
    steps: NDArray[np.int64]
    environment: int
    wake: int
    check: bool
    entry: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def _in_workspace(call: _Call) -> AbstractContextManager[None]:
    size = spelled_bytes(call.program.workspace * call.plan_threads)
    return allocating(
        f"the workspace of {call.plan_threads} thread(s) takes {size}", "lower threads, or set a workspace_limit"
    )


def _make_ready(call: _Call) -> None:
    """Have what a call shares with others: the pool's threads and its workspace (both are lost in a fork)."""
    if call.plan_threads > 1:
        pool.start_workers(call.plan_threads)
    if call.entry is not None:
        with _in_workspace(call):
            pool.grow_workspace(call.program.workspace * call.plan_threads)


def _extents(shape: Any) -> tuple[int, ...]:
    """A shape given by a caller, its extents as int: 8.0 would be found for 8 in tables, and 8 for 8.0."""
    try:
        found = tuple(operator.index(e) for e in shape)
    except TypeError:
        raise ArgumentError(f"shape={shape!r} must be a list of whole numbers, that of an input x") from None
    if any(e < 0 for e in found):
        raise ArgumentError(f"shape={shape!r} has a negative extent; give the shape of an input x")
    return found


def _used(table: OrderedDict[Any, Any], key: Any) -> Any:
    """What a table holds under a key, which is now the last to leave it; None if it holds nothing.  Under ``_lock``."""
    found = table.get(key)
    if found is not None:
        table.move_to_end(key)
    return found


class Layer:
    """A convolution with fixed weights, for inputs of any extents.

    Parameters
    ----------
    resolve : callable
        ``resolve(n, i)``: the problem for batch n and spatial extents i.
    w, bias : array
        Copied; later changes have no effect.
    layout : str
        ``NCHW`` or ``NHWC``, as in the problems.
    accuracy, threads, workspace_limit, rigor
        As in ``polyconv.Conv``; None takes the settings in force when the layer is made, for threads at each call.
    algorithm : str
        Row of the table of algorithms to use; None lets the planner choose.
    own : bool
        Copy the weights; without it they must not change while the layer lives, which is planned for one call.
    quantities : mapping
        Run-time ``zx zw zy sx sw sy`` of quantised problems.
    chance : int
        As in ``Situation``: a seed by which forms are chosen, for tests.

    Notes
    -----
    Immutable and safe to call from several threads.
    """

    def __init__(self, resolve: Callable[[int, tuple[int, ...]], Problem], w: ArrayLike, bias: ArrayLike | None = None,
                 *, layout: str = "NCHW", accuracy: str | None = None, threads: int | None = None,
                 workspace_limit: int | None = None, rigor: str | None = None, algorithm: str | None = None,
                 own: bool = True, quantities: Mapping[str, ArrayLike | None] | None = None,
                 chance: int | None = None) -> None:  # fmt: skip
        self._chance = chance
        self._resolve, self._layout, self._own = resolve, layout, own
        self._asked = None if algorithm is None else Decision(algorithm, "asked")
        self._accuracy = setting("accuracy", accuracy)
        self._threads = None if threads is None else setting("threads", threads)
        self._limit = setting("workspace_limit", workspace_limit)
        self._rigor = setting("rigor", rigor)
        self._check = setting("check")
        self._verbose = setting("verbose")
        objects.log_compiling("compile" in self._verbose)
        w = native_order(as_array(w, "w"), "w")
        with allocating(sized("a layer's copy of w", w.shape, w.dtype), "call conv instead, which makes none"):
            self._w = _aligned_copy(w) if own else w
        self._bias = None if bias is None else np.array(native_order(as_array(bias, "b"), "b"), copy=own or None)
        self._quantities = {
            name: np.array(as_array(v, name)) for name, v in (quantities or {}).items() if v is not None
        }
        self._finite = True if not of_array(self._w.dtype, "w").is_float else _all_finite(self._w)
        self._sizes: tuple[bool, bool] | None = None
        self._forms: WeakValueDictionary[Any, Any] = WeakValueDictionary()  # programs of calls hold them
        self._problems: OrderedDict[tuple[int, ...], Problem] = OrderedDict()
        self._calls: OrderedDict[Any, _Call] = OrderedDict()
        self._choices: dict[Any, Decision | None] = {}
        self._wisdom: wisdom.Known | None = None
        self._last: tuple[_Call, Any] | None = None

    # -- calling -----------------------------------------------------------------------------------

    def __call__(self, x: ArrayLike, *, residual: ArrayLike | None = None, out: Any = None,
                 offset: ArrayLike | None = None, mask: ArrayLike | None = None) -> Any:  # fmt: skip
        """Convolve; see ``polyconv.conv`` for operands and errors."""
        last = self._last
        if last is not None and offset is None and last[1] is settings_context():
            call = last[0]
            if out is not None:
                if call.entry(x, out, residual) is not None:
                    return out
            elif type(x) is np.ndarray:
                try:
                    result = np.empty(call.shape, call.dtype)
                except MemoryError:  # said below, if x is what it was
                    return self._run(x, residual, out, offset, mask)
                if call.entry(x, result, residual) is not None:
                    return result
        return self._run(x, residual, out, offset, mask)

    def _run(
        self, x_given: ArrayLike, residual_given: ArrayLike | None, out: Any, offset_given: Any, mask_given: Any
    ) -> Any:
        x = as_array(x_given, "x")
        problem = self.problem_for(x.shape)
        copied = x.dtype.isnative is False
        x = operand(x_given if is_plain(x_given) else x, "x", problem.x_dtype, problem.x_shape)
        check_weights(problem, self._w, self._bias)
        if problem.residual != (residual_given is not None):
            problem = replace(problem, residual=residual_given is not None)
        residual = None
        if residual_given is not None:
            residual = operand(residual_given, "residual", problem.y_dtype, problem.y_shape)
        offset, mask = deformation(problem, offset_given, mask_given)
        result, target_array = result_of(problem, out)
        for name, other in (
            ("x", x),
            ("residual", residual),
            ("offset", offset),
            ("mask", mask),
            ("w", self._w),
            ("b", self._bias),
        ):
            if other is None or not may_overlap(other, target_array):
                continue
            if name == "residual" and same_memory(other, target_array):
                continue
            raise ArgumentError(
                f"out overlaps {name} in memory; pass an array of its own"
                + (" (or exactly the residual's memory)" if name == "residual" else "")
            )
        if target_array.size:
            started = time.perf_counter()
            call = self._call_for(problem, x, target_array, residual, offset, mask)
            self._execute(call, x, target_array, residual, offset, mask)
            is_timed = "exec" in self._verbose
            if is_timed:
                _log.info("exec %s, %.1f us", problem, 1e6 * (time.perf_counter() - started))
            plain = out is None or type(out) is np.ndarray
            if plain and not copied and call.entry is not None and offset is None and not is_timed:
                with _lock:
                    if self._calls.get(call.key) is call:
                        self._last = call, settings_context()
        return result

    def problem_for(self, shape: tuple[int, ...]) -> Problem:
        """Problem of an input shape."""
        with _lock:
            found: Problem | None = _used(self._problems, shape)
        if found is not None:
            return found
        if len(shape) < 3:
            raise ArgumentError(f"x has shape {shape}; it needs batch, channel and at least one spatial axis")
        spatial = shape[1:-1] if self._layout == "NHWC" else shape[2:]
        problem = self._resolve(shape[0], tuple(spatial))
        if problem.x_shape != shape:
            raise ArgumentError(
                f"x has shape {shape}, the weights {tuple(self._w.shape)} with groups={problem.groups} need "
                f"{problem.c} channels in layout {self._layout}: {problem.x_shape}"
            )
        with _lock:
            self._problems[shape] = problem
            if len(self._problems) > _MOST_CALLS:
                self._problems.popitem(last=False)
        return problem

    # -- planning ----------------------------------------------------------------------------------

    def situation(self, problem: Problem) -> Situation:
        """All that the choice of an algorithm depends on."""
        threads = setting("threads") if self._threads is None else self._threads
        strict = self._accuracy == "strict"
        here = target_in_force()
        return Situation(
            problem, here, self._limit, threads, strict, self._finite, not self._own, self._chance,
            *self._narrow_and_light(problem),
        )  # fmt: skip

    def _narrow_and_light(self, p: Problem) -> tuple[bool, bool]:
        """What a situation says of the weights; found once."""
        if self._sizes is None:
            self._sizes = narrow_and_light(p, self._w, self._quantities.get("zx"), self._quantities.get("zw"))
        return self._sizes

    def plan(self, shape: Sequence[int], *, rigor: str | None = None) -> Plan:
        """Plan for an input shape; a rigor given decides now, and the layer keeps the choice."""
        problem = self.problem_for(_extents(shape))
        s = self.situation(problem.fused())
        if rigor is not None:
            self._decide(s, setting("rigor", rigor))
        return replace(describe(s, self._chosen(s), self.packed_bytes), problem=problem)

    def _chosen(self, s: Situation) -> Decision | None:
        """What decides in a situation, for the life of this layer: nothing that comes later may change its bits.

        An estimate follows from the situation alone, and wisdom is read as it was when this layer first asked: both
        are found again, however many extents come along, and are not kept.  What is measured is not: it is kept, and
        costs more time than memory.
        """
        if self._asked is not None:
            return self._asked
        key = s.problem.i, s.problem.residual
        with suppress(KeyError):
            return self._choices[key]
        found = _decided(s, self._rigor, self._first_wisdom())
        return found if found is None or self._rigor == "estimate" else self._choices.setdefault(key, found)

    def _decide(self, s: Situation, rigor: str) -> None:
        """Decide anew, and keep what would not be found again."""
        if self._asked is not None:
            return
        found, key = _decided(s, rigor), (s.problem.i, s.problem.residual)
        is_found_again = self._rigor == "estimate" and found == _decided(s, "estimate", self._first_wisdom())
        with _lock:
            if is_found_again:
                self._choices.pop(key, None)
            else:
                self._choices[key] = found
            self._calls = OrderedDict()  # another thread may be about to put a call of the old choice into the old one
            self._last = None

    def _first_wisdom(self) -> wisdom.Known:
        if self._wisdom is None:
            known = wisdom.known()  # outside the lock: it may read a file
            with _lock:
                if self._wisdom is None:
                    self._wisdom = known
        return self._wisdom

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights this layer owns, in all their forms."""
        with _lock:
            return self._w.nbytes + self._formed()

    @property
    def algorithms(self) -> dict[tuple[int, ...], str]:
        """Input shapes of the calls that are kept, the last one last, and the algorithm that computes each."""
        with _lock:
            return {key[0][0][0]: call.algorithm for key, call in self._calls.items()}

    # -- programs ----------------------------------------------------------------------------------

    def _call_for(self, problem: Problem, x: Array, y: Array, residual: Array | None, offset: Array | None,
                  mask: Array | None) -> _Call:  # fmt: skip
        s = self.situation(problem)
        arrays = (x, y, residual, offset, mask)
        key = (tuple(None if a is None else (a.shape, a.strides) for a in arrays), s.threads, s.target.level, s.profile)
        with _lock:
            calls = self._calls
            if self._last is not None:  # its calls went past this table
                _used(calls, self._last[0].key)
            found: _Call | None = _used(calls, key)
        if found is not None:
            _make_ready(found)
            return found
        choice, s, lying = self._choice(s, x, y, residual)
        algorithm = choice.algorithm
        if "plan" in self._verbose:
            _log.info("plan %s by %s", problem, algorithm)
        if "dispatch" in self._verbose:
            for name, reason in reasons(choice, 1, s.profile.clock):
                _log.info("dispatch %s not by %s: %s", problem, name, reason)
        seconds = choice.running(problem.n or 0) / s.profile.clock
        s = replace(s, threads=threads_for(s, seconds, form_of(algorithm, s).workspace))
        packing = f"{sized('w', self._w.shape, self._w.dtype)} and a packed form for {algorithm}"
        with allocating(packing, "compute some of the output channels at a time"):
            program = self.program(form_of(algorithm, s), lying, offset, mask)
        table = words(
            [v for step in program.steps for v in (step.driver, step.words.ctypes.data, step.words.nbytes, step.items)]
        )
        items = sum(step.items for step in program.steps)
        threads = min(s.threads, max(1, items))
        environment = pool.control_word(strict=s.strict)
        wake = waking(s.profile, seconds)
        entry = None
        if self._own and not self._check and offset is None and x.size and items < pool.MOST_ITEMS:
            entry = make_entry(x, y, residual, table, items, program.workspace, environment, threads, wake,
                               seconds < _KEEP_GIL_SECONDS, (program,))  # fmt: skip
        call = _Call(key, algorithm, threads, program, table, environment, wake, self._check, entry, y.shape,
                     y.dtype)  # fmt: skip
        _make_ready(call)
        most = max(_MOST_PACKED, 8 * self._w.nbytes)
        with _lock:
            calls[key] = call
            while len(calls) > 1 and (len(calls) > _MOST_CALLS or self._formed() > most):
                gone = calls.popitem(last=False)[1]
                if self._last is not None and self._last[0] is gone:
                    self._last = None
                del gone  # and its forms with it, before they are counted again
        return call

    def _choice(self, s: Situation, x: Array, y: Array, residual: Array | None) -> tuple[Choice, Situation, Lying]:
        """The algorithm for arrays, the situation in which its program is made, and how they lie in it."""
        p = s.problem
        lying = strides(x, p), strides(y, p), None if residual is None else strides(residual, p)
        planned, lying = fused(p, lying)
        # how arrays lie decides no algorithm, and with it no bits, unless this one cannot take them
        whole, s = replace(s, problem=p.fused()), replace(s, problem=planned)
        find = choose if "dispatch" in self._verbose else take  # what is not taken costs time to price
        choice = find(whole, self._chosen(whole))
        if s != whole and isinstance(ALGORITHMS[choice.algorithm].fitting(s), Refusal):
            choice = find(s, self._chosen(s))
        return choice, replace(s, once=False), lying

    def unrun(self, x: Array, y: Array, residual: Array | None, offset: Array | None, mask: Array | None,
              run: Callable[[Step, int, int], object]) -> Program:  # fmt: skip
        """The program of a call with such arrays, to be looked at: ``run`` is told what packs weights, and need not.

        A layer whose weights were not packed must not be called.
        """
        problem = self.problem_for(x.shape)
        if problem.residual != (residual is not None):
            problem = replace(problem, residual=residual is not None)
        choice, s, lying = self._choice(self.situation(problem), x, y, residual)
        return self.program(form_of(choice.algorithm, s), lying, offset, mask, run)

    def _formed(self) -> int:
        forms = list(self._forms.values())
        sources = [form.source for form in forms if isinstance(form, Late)]
        converted = (source.nbytes for source in sources if not np.may_share_memory(source, self._w))
        return sum((*(form.nbytes for form in forms), *converted))

    def program(self, form: Form, lying: Lying, offset: Array | None, mask: Array | None,
                run: Callable[[Step, int, int], object] | None = None) -> Program:  # fmt: skip
        """The program of a form for arrays that lie so; ``run`` packs weights, if not this process."""
        s, p, arithmetic = form.s, form.s.problem, form.arithmetic
        kind = _NUMPY[ARITHMETIC[arithmetic].accumulator]
        x, y, residual = lying
        forms: list[Any] = []

        def packed(key: Any, make: Callable[[], Any]) -> Any:
            forms.append(self._packed(key, make))
            return forms[-1]

        request = Request(
            situation=s, arithmetic=arithmetic, x=x, y=y, residual=residual, check=self._check,
            packed=packed, late=packed, weights=lambda sweep: self._sweep_weights(p, sweep, arithmetic),
            bias=None if self._bias is None else _aligned_copy(self._bias.astype(kind)),
            scale=self._scale(p), constants=self._constants(p, kind), zero_point=self._zero_point(p),
            run=run or self._run_now,
            offset=None if offset is None else strides(offset, replace(p, layout="NCHW")),
            mask=None if mask is None else strides(mask, replace(p, layout="NCHW")),
        )  # fmt: skip
        program = form.build(request)
        return replace(program, keep=(*program.keep, *forms))

    def _run_now(self, step: Step, scratch: int, threads: int) -> None:
        steps = words([step.driver, step.words.ctypes.data, step.words.nbytes, step.items])
        pool.run_steps(
            steps, words([0] * 10), scratch, environment=pool.control_word(strict=True), threads=threads, wake=2,
            check=self._check,
        )  # fmt: skip

    def _packed(self, key: Any, make: Callable[[], Any]) -> Any:
        with _lock:
            found = self._forms.get(key)
        if found is None:
            found = make()
            with _lock:
                found = self._forms.setdefault(key, found)
        return found

    def _sweep_weights(self, p: Problem, sweep: Sweep, arithmetic: str) -> Array:
        kind = DTYPES[ARITHMETIC[arithmetic].weight].numpy
        w = self._w.astype(kind, copy=False)
        q = p.quantisation
        if q is not None and q.zw is not None:
            zero = np.asarray(self._quantity(q.zw, "zw")).astype(kind)
            w = w - (zero.reshape(()) if zero.size == 1 else zero.reshape((-1,) + (1,) * (w.ndim - 1)))
        g = p.groups
        if p.op == "conv_transpose":
            w = np.swapaxes(w.reshape(g, p.c // g, p.m // g, *p.k), 1, 2)
        else:
            w = w.reshape(g, p.m // g, p.c // g, *p.k)
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

    def _quantity(self, value: float | str, name: str) -> Any:
        if not isinstance(value, str):
            return value
        if name not in self._quantities:
            raise ArgumentError(f"{name} is given at run time by this problem, but was not passed")
        return self._quantities[name]

    def _zero_point(self, p: Problem) -> int:
        q = p.quantisation
        return 0 if q is None or q.zx is None else int(np.asarray(self._quantity(q.zx, "zx")).reshape(-1)[0])

    def _scale(self, p: Problem) -> Array | None:
        q = p.quantisation or Quantisation()
        if q.sx is None or q.sw is None or q.sy is None:
            return None
        one = np.float32
        sx, sw, sy = (np.asarray(self._quantity(v, n), one) for v, n in ((q.sx, "sx"), (q.sw, "sw"), (q.sy, "sy")))
        with np.errstate(all="ignore"):
            scale = (sx.reshape(-1)[0] * sw.reshape(-1)) / sy.reshape(-1)[0]
        return _aligned_copy(np.broadcast_to(scale.astype(one), (p.m,)))

    def _constants(self, p: Problem, kind: Any) -> Array:
        table = aligned(8, np.int64)
        q = p.quantisation
        if q is not None and q.rescales:
            zero = 0 if q.zy is None else int(np.asarray(self._quantity(q.zy, "zy")).reshape(-1)[0])
            # far from where floats cease to hold all whole numbers
            bounds = (min(max(limit - zero, -(2**20)), 2**20) for limit in p.y_dtype.limits)
            table[:2].view(np.float32)[::2] = tuple(bounds)
            table[2:3].view(np.int32)[0] = zero - ROUNDING_BITS
        elif p.activation is not None:
            for at, value in enumerate(p.activation.parameters):
                if np.dtype(kind).kind == "f":
                    with np.errstate(over="ignore"):  # a bound beyond the type is infinite
                        table[at : at + 1].view(kind)[0] = value
                else:
                    info = np.iinfo(np.uint64 if p.y == "u64" else kind)
                    table[at : at + 1].view(info.dtype)[0] = int(min(max(value, info.min), info.max))
        return table

    def _execute(self, call: _Call, x: Array, y: Array, residual: Array | None, offset: Array | None,
                 mask: Array | None) -> None:  # fmt: skip
        frame = words([v for a in (x, y, residual, offset, mask) for v in ((0, 0) if a is None else span(a))])

        def run() -> None:
            with _in_workspace(call):
                pool.run_steps(
                    call.steps, frame, call.program.workspace, environment=call.environment, threads=call.plan_threads,
                    wake=call.wake, check=call.check,
                )  # fmt: skip

        if not call.check:
            run()
            return
        # what depends on memory that nobody wrote differs between the marks such memory starts as
        added = residual.copy() if residual is not None and may_overlap(residual, y) else None
        found = []
        for pattern in MARKS:
            with marked(pattern):
                if added is None:
                    mark(y)
                else:
                    y[...] = added
                run()
            found.append(y.copy("C"))
        _same_or_raise(*found)


def compute(problem: Problem, x: ArrayLike, w: ArrayLike, bias: ArrayLike | None = None,
            residual: ArrayLike | None = None, *, out: Any = None, offset: ArrayLike | None = None,
            mask: ArrayLike | None = None, past: ArrayLike | None = None, accuracy: str | None = None,
            threads: int | None = None, workspace_limit: int | None = None, algorithm: str | None = None,
            quantities: Mapping[str, ArrayLike | None] | None = None, chance: int | None = None) -> Any:  # fmt: skip
    """Compute a problem once: weights are packed for this call and nothing is remembered.

    Parameters
    ----------
    problem : Problem
        With known extents.
    x, w, bias, residual, offset, mask, past : array
        Operands in its layout and types.
    algorithm : str, optional
        Row of the table of algorithms to use.
    chance : int, optional
        As in ``Situation``, for tests.

    Returns
    -------
    ndarray
        The result, or (result, present state) of a causal convolution.
    """
    keywords: dict[str, Any] = {
        "accuracy": accuracy, "threads": threads, "workspace_limit": workspace_limit, "algorithm": algorithm,
        "chance": chance,
    }  # fmt: skip
    if problem.op == "causal_conv":

        def run(part: Array, y: Array, *, is_head: bool) -> None:
            plain = replace(problem, op="conv", pads=((0, 0),), i=part.shape[2:])
            compute(plain, part, w, bias, out=y, **keywords)

        return causal(problem, x, past, out, run)
    layer = Layer(lambda n, i: problem, w, bias, layout=problem.layout, own=False, quantities=quantities, **keywords)
    return layer._run(x, residual, out, offset, mask)


_PARTS = "compute parts of the batch"


class Part(Protocol):
    """What computes a part of a causal convolution as a plain one without pads, into ``y``."""

    def __call__(self, part: Array, y: Array, /, *, is_head: bool) -> object:
        """Compute; ``is_head`` tells the first k - 1 outputs, which reach into the past."""


def causal(p: Problem, x_given: ArrayLike, past: ArrayLike | None, out: Any, run: Part) -> tuple[Any, Array]:
    """Causal convolution with state, as one or two plain ones (ONNX CausalConvWithState-27).

    Outputs from k - 1 on need no history and read x in place; only the first k - 1, which reach into the
    past, read a copy of 2 (k - 1) positions.
    """
    x = operand(x_given, "input", p.x_dtype, p.x_shape)
    (k,), (length,) = p.k, x.shape[2:]
    history_shape = (x.shape[0], x.shape[1], k - 1)
    if past is None:
        with allocating(sized("a past_state of zeros", history_shape, x.dtype), _PARTS):
            history = np.zeros(history_shape, x.dtype)
    else:
        history = operand(past, "past_state", p.x_dtype, history_shape)
    result, y = result_of(p, out)
    for name, other in (("input", x), ("past_state", history)):
        if may_overlap(other, y):
            raise ArgumentError(f"out overlaps {name} in memory; pass an array of its own")
    reach = min(k - 1, length)
    if reach:
        head_shape = (*x.shape[:2], k - 1 + reach)
        with allocating(sized("a copy of the first inputs with their past", head_shape, x.dtype), _PARTS):
            head = np.concatenate([history, x[:, :, :reach]], axis=2)
        run(head, y[:, :, :reach], is_head=True)
    if length > reach:
        run(x, y[:, :, reach:], is_head=False)
    with allocating(sized("present_state", history_shape, x.dtype), _PARTS):
        if length >= k - 1:
            present = x[:, :, length - (k - 1) :].copy()
        else:
            present = np.concatenate([history[:, :, length:], x], axis=2)
    return result, present


def _same_or_raise(one: Array, other: Array) -> None:
    """Compare two runs bit by bit.

    Raises
    ------
    Error
        If outputs differ: they were never written, or computed from memory that was not.
    """
    bits = (one.nbytes // max(1, one.size),)
    differ = (one.view(np.uint8).reshape(one.shape + bits) != other.view(np.uint8).reshape(one.shape + bits)).any(-1)
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        raise Error(
            f"{int(differ.sum())} of {one.size} outputs, the first at {at}, were not written or come from memory that "
            f"was not; please report it"
        )


def _all_finite(w: Array) -> bool:
    """Whether all elements are finite; many are judged in pieces, so that no array of answers is as large as they."""
    if w.size <= _PIECE:
        return bool(np.isfinite(w).all())
    once = w[tuple(slice(1 if step == 0 else None) for step in w.strides)]  # what is repeated need not be judged again
    pieces = np.nditer(once, ["external_loop", "buffered"], buffersize=_PIECE)
    return all(bool(np.isfinite(piece).all()) for piece in pieces)


def _aligned_copy(values: Array) -> Array:
    copy = aligned(values.shape, values.dtype)
    copy[...] = values
    return copy


def plan(problem: Problem, *, rigor: str | None = None, accuracy: str | None = None, threads: int | None = None,
         workspace_limit: int | None = None, once: bool = False) -> Plan:  # fmt: skip
    """How a problem would be computed.

    Parameters
    ----------
    problem : Problem
        With known extents.
    rigor : str
        ``estimate`` chooses by arithmetic; ``measure`` and ``patient`` time the candidates on this machine,
        and every later layer of this process uses what they found.
    accuracy, threads, workspace_limit
        As for ``conv``.
    once : bool
        Plan as ``conv`` does, where weights come anew with each call and preparing them counts, and not as for a
        layer, which prepares them for all its calls.  Nothing is measured for it.

    Raises
    ------
    ArgumentError
        If it is no Problem, or its extents are unknown.
    Unsupported
        If no algorithm can compute it.
    """
    if not isinstance(problem, Problem):
        raise ArgumentError(f"problem is of type {type(problem).__name__}; give a Problem, as Problem.parse makes")
    if not problem.is_known:
        raise ArgumentError(f"'{problem}' has unknown extents; a plan needs all of them: give n and i")
    plain = replace(problem, op="conv") if problem.op == "causal_conv" else problem  # the past is as good as padding
    narrow, light = narrow_and_light(plain)
    s = Situation(plain.fused(), target_in_force(), setting("workspace_limit", workspace_limit),
                  setting("threads", threads), setting("accuracy", accuracy) == "strict", once=once,
                  narrow=narrow, light=light)  # fmt: skip
    found = describe(s, _decided(s, setting("rigor", rigor)))
    notes = (*found.notes, _WITHOUT_WEIGHTS) if plain.w_dtype.bits == 8 else found.notes
    return replace(found, problem=problem, notes=notes)


_WITHOUT_WEIGHTS = (
    "planned without weights: those that less their zero points are no numbers of i8, or may sum to 2^25 with inputs, "
    "are computed in another way; a layer's plan knows"
)


def _decided(s: Situation, rigor: str, known: wisdom.Known | None = None) -> Decision | None:
    """What was measured of a situation, or with more rigor than an estimate is measured now; None to predict."""
    if s.once:  # times are those of calls that find their weights prepared
        return None
    return wisdom.decision(s, known) if rigor == "estimate" else fastest(s, rigor, _random_candidate)


def _random_candidate(s: Situation, algorithm: str) -> Callable[[], None]:
    """A run of an algorithm on random operands, for timing."""
    p = s.problem
    rng = np.random.default_rng(0)

    def values(shape: tuple[int | None, ...], dtype: Dtype) -> Array:
        sizes = tuple(int(e or 0) for e in shape)
        with allocating(sized("an array to measure with", sizes, dtype.numpy), 'choose with rigor="estimate"'):
            if dtype.is_float:
                return rng.standard_normal(sizes, np.float32).astype(dtype.numpy)
            return rng.integers(0, 100, sizes).astype(dtype.numpy)

    q = p.quantisation or Quantisation()
    quantities = {
        name: np.ones((), np.float32)
        for name in ("zx", "zw", "zy", "sx", "sw", "sy")
        if isinstance(getattr(q, name), str)
    }
    layer = Layer(lambda n, i: p, values(p.w_shape, p.w_dtype), np.ones(p.m, p.y_dtype.numpy) if p.bias else None,
                  layout=p.layout, accuracy="strict" if s.strict else "fast", threads=s.threads,
                  workspace_limit=s.limit, algorithm=algorithm, rigor="estimate", quantities=quantities)  # fmt: skip
    x, out = values(p.x_shape, p.x_dtype), result_of(p, None)[0]
    residual = values(p.y_shape, p.y_dtype) if p.residual else None
    offset = mask = None
    if p.op == "deform_conv":
        offset_shape, mask_shape = deformation_shapes(p)
        offset = values(offset_shape, p.x_dtype)
        mask = values(mask_shape, p.x_dtype) if p.mask else None
    return lambda: layer(x, residual=residual, out=out, offset=offset, mask=mask)
