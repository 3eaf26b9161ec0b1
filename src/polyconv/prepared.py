"""A problem with its weights, ready for arrays: packs once, plans per extents, runs.

``Layer`` is what the facade, the dialects and sessions hold.  Operands are checked in ``operands``, all of them before
the first store.  It must know nothing of attribute names.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv import operands
from polyconv.algorithms.form import Form, Refusal
from polyconv.algorithms.table import ALGORITHMS
from polyconv.calls import Call, bound, execute, make_ready, run_now
from polyconv.errors import ArgumentError
from polyconv.in_force import target_in_force
from polyconv.kernels import objects
from polyconv.kernels.isa import ARITHMETIC
from polyconv.lowering.gaps import with_gaps
from polyconv.lowering.presums import CERTAIN
from polyconv.lowering.program import Program, Request, Step
from polyconv.lowering.situation import Situation, changed
from polyconv.operands import Lying, strides
from polyconv.planning import wisdom
from polyconv.planning.around import Around
from polyconv.planning.measure import fastest
from polyconv.planning.planner import Choice, Decision, choose, describe, form_of, reasons, take, threads_for
from polyconv.problem.extents import batch_and_spatial
from polyconv.problem.plan import Plan
from polyconv.problem.problem import Problem
from polyconv.random_operands import random_operands
from polyconv.runtime.guests import as_array, is_plain
from polyconv.runtime.memory import Recent, allocating, sized
from polyconv.settings import context as settings_context
from polyconv.settings import resolve as setting
from polyconv.target import Target
from polyconv.weights import TABLES, Weights

__all__ = ["Layer", "decided"]

Array = NDArray[Any]
_log = logging.getLogger("polyconv")

_MOST_CALLS, _MOST_PACKED = 64, 64 << 20
"""Calls, those used last, and bytes of packed weights that a layer keeps; more bytes where the weights are large."""
_MOST_TABLES = 1 << 20
"""Bytes of the tables of calls that are kept beyond a few."""
_TABLES_OF = attrgetter("table_bytes")
_NUMPY = {"float": np.float32, "double": np.float64, "i16": np.int16, "i32": np.int32, "i64": np.int64}
"""NumPy's name of an accumulator."""


def _used(table: OrderedDict[Any, Any], key: Any) -> Any:
    """What a table holds under a key, which now is the last to leave; None if it holds nothing.  Under ``TABLES``."""
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
        Copy the weights; without it they must not change while the layer lives.
    once : bool
        Plan for one call, in which preparing the weights counts; a layer with a copy of them may be called again.
    quantities : mapping
        Run-time ``zx zw zy sx sw sy`` of quantised problems.
    chance : int
        As in ``Situation``: a seed by which forms are chosen, for tests.
    far : bool
        As in ``Situation``: the weights come from memory at each call.
    varies : bool
        Extents vary from call to call, so that planning is to take little of each; see ``planning.around``.

    Notes
    -----
    Immutable and safe to call from several threads.
    """

    def __init__(self, resolve: Callable[[int, tuple[int, ...]], Problem], w: ArrayLike, bias: ArrayLike | None = None,
                 *, layout: str = "NCHW", accuracy: str | None = None, threads: int | None = None,
                 workspace_limit: int | None = None, rigor: str | None = None, algorithm: str | None = None,
                 own: bool = True, once: bool = False, quantities: Mapping[str, ArrayLike | None] | None = None,
                 chance: int | None = None, far: bool = False, varies: bool = False) -> None:  # fmt: skip
        self._chance, self._far, self._around = chance, far, Around() if varies else None
        self._resolve, self._layout, self._once, self.owns = resolve, layout, once, own
        self._asked = None if algorithm is None else Decision(algorithm, "asked")
        self._accuracy = setting("accuracy", accuracy)
        self._threads = None if threads is None else setting("threads", threads)
        self._limit = setting("workspace_limit", workspace_limit)
        self._rigor = setting("rigor", rigor)
        self._check, self._verbose = setting("check"), setting("verbose")
        objects.log_compiling("compile" in self._verbose)
        self.weights = Weights(w, bias, quantities, own=own)
        self._problems: OrderedDict[Any, Problem] = OrderedDict()
        self._calls: Recent[Call] = Recent(_TABLES_OF)
        self._choices: dict[Any, Decision | None] = {}
        self._wisdom: wisdom.Known | None = None
        self._known: dict[Target, dict[Any, Any]] = {}
        self._last: tuple[Call, Any] | None = None

    def __call__(self, x: ArrayLike, *, residual: ArrayLike | None = None, out: Any = None,
                 offset: ArrayLike | None = None, mask: ArrayLike | None = None) -> Any:  # fmt: skip
        """Convolve; see ``polyconv.conv`` for operands and errors."""
        last = self._last
        if last is not None and last[1] is settings_context():
            call = last[0]
            try:
                y = np.empty(call.shape, call.dtype) if out is None and type(x) is np.ndarray else out
            except MemoryError:  # said below, if x is what it was
                y = None
            # an argument list that is spelled out takes a tenth of the shortest calls less than one that is unpacked
            done = call.entry(x, y, residual) if offset is None else call.entry(x, y, residual, offset, mask)
            if done is not None:
                return done
        return self._run(x, residual, out, offset, mask)

    def _run(self, x_given: ArrayLike, residual_given: ArrayLike | None, out: Any, offset_given: Any,
             mask_given: Any) -> Any:  # fmt: skip
        x = as_array(x_given, "x")
        problem = self.problem_of(x.shape, residual=residual_given is not None)
        copied = x.dtype.isnative is False
        x = operands.operand(x_given if is_plain(x_given) else x, "x", problem.x_dtype, problem.x_shape)
        w, bias = self.weights.w, self.weights.bias
        operands.check_weights(problem, w, bias)
        residual = None
        if residual_given is not None:
            residual = operands.operand(residual_given, "residual", problem.y_dtype, problem.y_shape)
        offset, mask = operands.deformation(problem, offset_given, mask_given)
        result, target_array = operands.result_of(problem, out)
        operands.check_apart(target_array, x=x, residual=residual, offset=offset, mask=mask, w=w, b=bias)
        if target_array.size:
            started = time.perf_counter()
            call = self._call_for(problem, x, target_array, residual, offset, mask)
            others = (residual,) if offset is None else (residual, offset, mask)
            if call.entry is None or call.entry(x, target_array, *others) is None:
                execute(call, (x, target_array, residual, offset, mask))
            is_timed = "exec" in self._verbose
            if is_timed:
                _log.info("exec %s, %.1f us", problem, 1e6 * (time.perf_counter() - started))
            if not copied and not is_timed and call.entry is not None and (out is None or type(out) is np.ndarray):
                with TABLES:
                    if self._calls.get(call.key) is call:
                        self._last = call, settings_context()
        return result

    def problem_for(self, shape: tuple[int, ...]) -> Problem:
        """Problem of an input shape."""
        with TABLES:
            found: Problem | None = _used(self._problems, shape)
        if found is not None:
            return found
        problem = self._resolve(*batch_and_spatial(shape, self._layout))
        if problem.x_shape != shape:
            raise ArgumentError(
                f"x has shape {shape}, the weights {tuple(self.weights.w.shape)} with groups={problem.groups} need "
                f"{problem.c} channels in layout {self._layout}: {problem.x_shape}"
            )
        self.tell(problem)
        return problem

    def tell(self, problem: Problem) -> None:
        """Be told the problem of inputs of its shape, without a residual, by who has found it."""
        self._told(problem.x_shape, problem)

    def _told(self, key: Any, problem: Problem) -> Problem:
        with TABLES:
            self._problems[key] = problem
            if len(self._problems) > 2 * _MOST_CALLS:
                self._problems.popitem(last=False)
        return problem

    def problem_of(self, shape: tuple[int, ...], *, residual: bool) -> Problem:
        """Problem of a call: of an input shape, with a residual or without."""
        problem = self.problem_for(shape)
        if problem.residual == residual:
            return problem
        with TABLES:
            found: Problem | None = _used(self._problems, (shape, residual))
        return found or self._told((shape, residual), replace(problem, residual=residual))

    def situation(self, problem: Problem) -> Situation:
        """All that the choice of an algorithm depends on."""
        target = target_in_force()
        crowded = self.weights.crowded(problem) if target.presums and not self._once else CERTAIN
        return Situation(
            problem, target, self._limit, setting("threads", self._threads), self._accuracy == "strict",
            self.weights.is_finite, self._once, self._chance, *self.weights.narrow_and_light(problem), crowded,
            self._far,
        )  # fmt: skip

    def plan(self, shape: Sequence[int], *, rigor: str | None = None) -> Plan:
        """Plan for an input shape; a rigor given decides now, and the layer keeps the choice."""
        problem = self.problem_for(operands.extents_of(shape))
        s = changed(self.situation(problem), problem=problem.fused())
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
        key = _sizes(s.problem)
        with suppress(KeyError):
            return self._choices[key]
        found = decided(s, self._rigor, self._first_wisdom())
        if found is None and self._around is not None:
            return self._around.decision(s)
        return found if found is None or self._rigor == "estimate" else self._choices.setdefault(key, found)

    def _decide(self, s: Situation, rigor: str) -> None:
        """Decide anew, and keep what would not be found again."""
        if self._asked is not None:
            return
        found, key = decided(s, rigor), _sizes(s.problem)
        is_found_again = self._rigor == "estimate" and found == decided(s, "estimate", self._first_wisdom())
        with TABLES:
            if is_found_again:
                self._choices.pop(key, None)
            else:
                self._choices[key] = found
            # another thread may be about to put a call of the old choice into the old ones
            self._calls = Recent(_TABLES_OF)
            self._last = None

    def _first_wisdom(self) -> wisdom.Known:
        if self._wisdom is None:
            known = wisdom.known()  # outside the lock: it may read a file
            with TABLES:
                if self._wisdom is None:
                    self._wisdom = known
        return self._wisdom

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights this layer owns, in all their forms."""
        with TABLES:
            return self.weights.given_bytes + self.weights.packed_bytes

    @property
    def algorithms(self) -> dict[tuple[int, ...], str]:
        """Input shapes of the calls that are kept, the last one last, and the algorithm that computes each."""
        with TABLES:
            return {key[0][0][0]: call.algorithm for key, call in self._calls.items()}

    def _call_for(self, problem: Problem, x: Array, y: Array, residual: Array | None, offset: Array | None,
                  mask: Array | None) -> Call:  # fmt: skip
        s = self.situation(problem)
        arrays = (x, y, residual, offset, mask)
        key = (tuple(None if a is None else (a.shape, a.strides) for a in arrays), s.threads, s.target.level, s.profile)
        with TABLES:
            calls = self._calls
            if self._last is not None:  # its calls went past this table
                _used(calls, self._last[0].key)
            found: Call | None = _used(calls, key)
        if found is not None:
            make_ready(found)
            return found
        choice, s, lying = self._choice(s, x, y, residual)
        algorithm = choice.algorithm
        if "plan" in self._verbose:
            _log.info("plan %s by %s", problem, algorithm)
        if "dispatch" in self._verbose:
            for name, reason in reasons(choice, 1, s.profile.clock):
                _log.info("dispatch %s not by %s: %s", problem, name, reason)
        seconds = choice.running(s.problem.n or 0) / s.profile.clock
        s = changed(s, threads=threads_for(s, seconds, form_of(algorithm, s).workspace))

        def needed() -> str:
            return f"{sized('w', self.weights.w.shape, self.weights.w.dtype)} and a packed form for {algorithm}"

        with allocating(needed, "compute some of the output channels at a time"):
            form = form_of(algorithm, s)
            program = self.program(form, lying, offset, mask, lone=problem.lone_taps())
        often = self.owns or not self._once
        call = bound(program, key, algorithm, arrays, threads=s.threads, strict=s.strict, seconds=seconds,
                     profile=s.profile, check=self._check, often=often, copies=not form.takes(*lying))
        most = max(_MOST_PACKED, 8 * self.weights.w.nbytes)
        with TABLES:
            calls.put(key, call)
            while len(calls) > 1 and (
                calls.are_too_many(_MOST_CALLS, _MOST_TABLES) or self.weights.packed_bytes > most
            ):  # fmt: skip
                gone = calls.pop_first()
                if self._last is not None and self._last[0] is gone:
                    self._last = None
                del gone  # and its forms with it, before they are counted again
        return call

    def _choice(self, s: Situation, x: Array, y: Array, residual: Array | None) -> tuple[Choice, Situation, Lying]:
        """The algorithm for arrays, the situation in which its program is made, and how they lie in it."""
        p = s.problem
        lying = strides(x, p), strides(y, p), None if residual is None else strides(residual, p)
        planned, lying = operands.fused(p, lying)
        # how arrays lie decides no algorithm, and with it no bits, unless this one cannot take them
        whole, s = changed(s, problem=p.fused()), changed(s, problem=planned)
        find = choose if "dispatch" in self._verbose else take  # what is not taken costs time to price
        choice = find(whole, self._chosen(whole))
        if s != whole and isinstance(ALGORITHMS[choice.algorithm].fitting(s), Refusal):
            choice = find(s, self._chosen(s))
        return choice, changed(s, once=False), lying

    def call(self, x: Array, residual: Array | None, y: Array | None = None) -> Call:
        """The call for inputs and a result that lie like these; a packed result by default."""
        problem = self.problem_of(x.shape, residual=residual is not None)
        return self._call_for(problem, x, operands.result_of(problem, y)[0], residual, None, None)

    def unrun(self, x: Array, y: Array, residual: Array | None, offset: Array | None, mask: Array | None,
              run: Callable[[Step, int, int], object]) -> Program:  # fmt: skip
        """The program of a call with such arrays, to be looked at: ``run`` is told what packs weights, and need not.

        A layer whose weights were not packed must not be called.
        """
        problem = self.problem_of(x.shape, residual=residual is not None)
        choice, s, lying = self._choice(self.situation(problem), x, y, residual)
        form = form_of(choice.algorithm, s)
        return self.program(form, lying, offset, mask, run, lone=problem.lone_taps())

    def program(self, form: Form, lying: Lying, offset: Array | None, mask: Array | None,
                run: Callable[[Step, int, int], object] | None = None, *, lone: tuple[int | None, ...] = ()
                ) -> Program:  # fmt: skip
        """The program of a form for arrays that lie so, or packed; ``run`` packs weights, if not this process.

        ``lone`` are the taps of axes that the form's problem lacks, as ``Problem.lone_taps``.
        """
        s, p, arithmetic = form.s, form.s.problem, form.arithmetic
        kind = _NUMPY[ARITHMETIC[arithmetic].accumulator]
        (x, y, residual), weights, held = lying if form.takes(*lying) else operands.packed(p), self.weights, list[Any]()

        def packed(key: Any, make: Callable[[], Any]) -> Any:
            held.append(weights.packed((lone, key) if any(tap is not None for tap in lone) else key, make))
            return held[-1]

        request = Request(
            situation=s, arithmetic=arithmetic, x=x, y=y, residual=residual, check=self._check, packed=packed,
            weights=lambda sweep: weights.of_sweep(p, sweep, arithmetic, lone), bias=weights.bias_in(kind),
            scale=weights.scale(p), constants=weights.constants(p, kind),
            zero_point=weights.zero_point(p), zero_left=weights.zero_left(p, arithmetic),
            run=run or partial(run_now, check=self._check), moved=lambda *told: None if run else weights.moved(*told),
            offset=None if offset is None else strides(offset, replace(p, layout="NCHW")),
            mask=None if mask is None else strides(mask, replace(p, layout="NCHW")),
            known={} if run else self._known.setdefault(s.target, {}),
        )  # fmt: skip
        made = form.build(request) if form.is_whole else with_gaps(request, form.build(request))
        return Program(made.steps, made.workspace, (*made.keep, *held))


def _sizes(p: Problem) -> Any:
    """What may differ between the problems of a layer: extents, and with them axes that are left out."""
    return p.i, p.k, p.s, p.d, p.pads, p.residual


def decided(s: Situation, rigor: str, known: wisdom.Known | None = None) -> Decision | None:
    """What was measured of a situation, or with more rigor than an estimate is measured now; None to predict."""
    if s.once:  # times are those of calls that find their weights prepared
        return None
    return wisdom.decision(s, known) if rigor == "estimate" else fastest(s, rigor, _candidate)


def _candidate(s: Situation, algorithm: str) -> Callable[[], None]:
    """A run of an algorithm on random operands, for timing."""
    p, drawn = s.problem, random_operands(s.problem)
    layer = Layer(lambda n, i: p, drawn.w, drawn.bias, layout=p.layout, accuracy="strict" if s.strict else "fast",
                  threads=s.threads, workspace_limit=s.limit, algorithm=algorithm, rigor="estimate",
                  quantities=drawn.quantities)  # fmt: skip
    return lambda: layer(drawn.x, residual=drawn.residual, out=drawn.out, offset=drawn.offset, mask=drawn.mask)
