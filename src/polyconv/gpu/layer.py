"""A convolution of arrays on a GPU: plans for the shapes and strides that come, packs weights there, launches.

All checks come before the first launch.  Results are arrays of the input's library, on its device, made on its current
stream; nothing waits for the GPU, but where a library's streams are not known.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import Dtype
from polyconv.errors import ArgumentError
from polyconv.gpu.calling import Call, Places, copied, launches_of
from polyconv.gpu.causal import causal
from polyconv.gpu.device import device
from polyconv.gpu.driver import driver
from polyconv.gpu.forms import Form, Job
from polyconv.gpu.geometry import Lie
from polyconv.gpu.guests import DeviceArray, Guest, device_of, guest_of, read, where
from polyconv.gpu.kernels.patch import Patch
from polyconv.gpu.launches import Launches
from polyconv.gpu.operands import check_operands, check_out, operand
from polyconv.gpu.packing import Packing, Where
from polyconv.gpu.plan import choose, described, job_of, measured
from polyconv.gpu.quantities import Held, held
from polyconv.gpu.remembered import Decision, key_of, recalled, remember
from polyconv.gpu.scratch import Scratch
from polyconv.planning import wisdom
from polyconv.planning.wisdom_file import Key
from polyconv.problem.extents import batch_and_spatial
from polyconv.problem.plan import Plan
from polyconv.problem.problem import Problem

__all__ = ["Arrays", "DeviceLayer", "Weights", "compute", "lie_of"]

_MOST_CALLS = 32
_ABSENT = 0, None
"""Address and key of an operand that was not given."""
_measuring = threading.RLock()
"""Times of two that measure at once would be those of neither."""
_TIMED_SECONDS = 2e-3
"""For about so long each form runs that is timed."""


def lie_of(a: DeviceArray, p: Problem, *, is_input: bool) -> Lie:
    """How an operand lies; an axis of extent 1, whose step may be anything, has 0, a lone input channel 1."""
    steps = [0 if extent == 1 else step for extent, step in zip(a.shape, a.strides, strict=True)]
    n, *rest = steps
    c, spatial = (rest[-1], rest[:-1]) if p.layout == "NHWC" else (rest[0], rest[1:])
    return Lie(n, 1 if is_input and p.c == 1 else c, tuple(spatial), a.align)


@dataclass(frozen=True, slots=True)
class Weights:
    """The arrays that a layer holds, as they were given."""

    w: Any
    bias: Any


@dataclass(frozen=True, slots=True)
class Arrays:
    """Operands of a call."""

    x: DeviceArray
    y: DeviceArray
    residual: DeviceArray | None = None
    offset: DeviceArray | None = None
    mask: DeviceArray | None = None

    @property
    def all(self) -> tuple[DeviceArray | None, ...]:
        """In the order of ``Places``."""
        return self.x, self.y, self.residual, self.offset, self.mask

    @property
    def places(self) -> Places:
        """Their addresses."""
        x, y, residual, offset, mask = (0 if a is None else a.address for a in self.all)
        return x, y, residual, offset, mask


class DeviceLayer:
    """A convolution with fixed weights on a GPU; the counterpart of ``prepared.Layer``.

    Parameters
    ----------
    resolve : callable
        ``resolve(n, i)``: the problem for batch n and spatial extents i.
    w, bias : array on a GPU
    layout : str
    accuracy : str
        ``fast``, ``strict`` or ``tf32``.
    limit : int or None
        Most bytes that a call takes beyond its result.
    rigor : str
        ``estimate`` chooses by price, all else by the clock.
    form : callable, optional
        Takes a job and gives its form; ``choose`` by default.
    own : bool
        Whether w and bias are copied and what is packed of them is kept; without it they are those of one call.
    quantities : mapping
        Run-time zero points and scales of quantised problems; one value alone may lie in the CPU's memory.
    channels_last : bool
        Whether results lie so for inputs that do not, too: for who goes on with them.

    Notes
    -----
    Safe to call from several threads, and while a stream is captured into a graph.
    """

    def __init__(self, resolve: Callable[[int, tuple[int, ...]], Problem], w: Any, bias: Any | None = None, *,
                 layout: str = "NCHW", accuracy: str = "fast", limit: int | None = None, rigor: str = "estimate",
                 form: Callable[[Job], Form] = choose, own: bool = True,
                 quantities: Mapping[str, Any] | None = None, channels_last: bool = False) -> None:  # fmt: skip
        self._channels_last = channels_last
        self._resolve, self._layout, self._accuracy, self._limit = resolve, layout, accuracy, limit
        self._form, self._own, self._rigor = form, own, rigor
        given = {name: value for name, value in (quantities or {}).items() if value is not None}
        self._without = {n: None for n in ("zx", "zw") if n in given and _is_zero(given[n])}
        given = {name: value for name, value in given.items() if name not in self._without}
        where({"w": w, "b": bias})
        self._device = device(device_of(w) or 0)  # or why it is of no use
        of_w, of_b = read(w, "w"), None if bias is None else read(bias, "b")
        self._of_w = copied(of_w) if own else of_w
        self._of_b = copied(of_b) if own and of_b is not None else of_b
        self._packing = Packing(self._of_w, self._of_b, is_kept=own)
        self._given = {name: _kept(value, name, own=own) for name, value in given.items()}
        there = [read(value, name) for name, value in self._given.items() if device_of(value) is not None]
        self._spans = tuple(a.span for a in (self._of_w, self._of_b, *there) if a is not None)
        self._guest, self._kind = guest_of(w), type(w)
        self._lock, self._scratch = threading.RLock(), Scratch(self._of_w.device)
        self._calls: OrderedDict[Any, Call] = OrderedDict()
        self._known: dict[Key, Any] | None = None

    @property
    def weights(self) -> Weights:
        """Weights and bias."""
        return Weights(self._of_w.holder, None if self._of_b is None else self._of_b.holder)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights this layer owns, in all their forms."""
        return self._packing.bytes

    @property
    def algorithms(self) -> dict[tuple[int, ...], str]:
        """Input shapes of recent calls, the last one last, and the algorithm that computed each."""
        with self._lock:
            return {tuple(int(e or 0) for e in c.problem.x_shape): c.form.algorithm for c in self._calls.values()}

    def __call__(self, x: Any, *, residual: Any = None, out: Any = None, offset: Any = None, mask: Any = None) -> Any:
        """Convolve; see ``polyconv.conv``."""
        kind = type(x)
        guest = self._guest if kind is self._kind else guest_of(x)
        for a in (residual, out, offset, mask):
            if a is not None and type(a) is not kind:  # its library may be another, or it lies elsewhere
                return self._first(x, residual, out, offset, mask, None)
        of_x = guest.known(x)
        of_y = _ABSENT if out is None else guest.known(out)
        of_r = _ABSENT if residual is None else guest.known(residual)
        of_o = _ABSENT if offset is None else guest.known(offset)
        of_m = _ABSENT if mask is None else guest.known(mask)
        if of_x is None or of_y is None or of_r is None or of_o is None or of_m is None:
            return self._first(x, residual, out, offset, mask, None)
        key = of_x[1], of_y[1], of_r[1], of_o[1], of_m[1]
        call, places = self._calls.get(key), (of_x[0], of_y[0], of_r[0], of_o[0], of_m[0])
        if call is None or (out is not None and not call.is_clear(places, self._spans)):
            return self._first(x, residual, out, offset, mask, key)
        if out is None:
            out = call.make()
            places = of_x[0], guest.address(out), of_r[0], of_o[0], of_m[0]
        call.start(guest, self._of_w.device, places)
        return out

    def call(self, x: Any, y: Any, residual: Any = None) -> Call:
        """What a call with operands that lie so starts, to be started by others; see ``work.work_of``."""
        guest = guest_of(x)
        a, target = guest.read(x, "x"), guest.read(y, "out")
        beside = None if residual is None else operand(residual, "residual")
        p = self._problem(a, {"residual": beside, "offset": None, "mask": None})
        arrays, (_, values) = Arrays(a, target, beside), self._held(p)
        job = self.job(p, arrays)
        stream = guest.stream(a.device)
        return self._call_of(job, self._chosen(job), guest, stream, lambda: y, arrays, values)

    def _first(self, x: Any, residual: Any, out: Any, offset: Any, mask: Any, key: Any) -> Any:
        """A call whose operands have not been seen to lie so; it is remembered under a key."""
        guest = guest_of(x)
        a = guest.read(x, "x")
        others = {"residual": residual, "offset": offset, "mask": mask}
        beside = {name: None if value is None else operand(value, name) for name, value in others.items()}
        p = self._problem(a, beside)
        shape = tuple(int(e or 0) for e in p.y_shape)
        make = guest.maker(a.device, shape, p.y_dtype, _order(a, p, always=self._channels_last))
        if out is None:
            out = make()
            target = guest.read(out, "out")
        else:
            target = operand(out, "out")
            check_out(target, p, a, w=self._of_w, b=self._of_b, **beside)
        arrays, (_, values) = Arrays(a, target, **beside), self._held(p)
        if 0 in shape:
            return out
        job = self.job(p, arrays)
        stream = guest.stream(a.device)
        is_kept = self._own and not driver().is_capturing(stream)
        call = self._call_of(job, self._chosen(job), guest, stream, make, arrays, values)
        if is_kept and key is not None:
            with self._lock:
                self._calls[key] = call
                if len(self._calls) > _MOST_CALLS:
                    self._calls.popitem(last=False)
        call.start(guest, self._of_w.device, arrays.places)
        return out

    # -- checking ----------------------------------------------------------------------------------

    def _problem(self, a: DeviceArray, beside: Mapping[str, DeviceArray | None]) -> Problem:
        """The problem of operands, which fit it."""
        p = replace(self._resolved(a.shape), residual=beside["residual"] is not None)
        check_operands(p, a, self._of_w, self._of_b, **beside)
        if self._accuracy == "tf32" and p.x != "f32":
            raise ArgumentError(f"accuracy='tf32' is for float32; x is {p.x_dtype.numpy}: leave it out")
        return p

    def _resolved(self, shape: Sequence[int]) -> Problem:
        """The problem of an input's shape, without zero points that are zero."""
        p = self._resolve(*batch_and_spatial(shape, self._layout))
        return replace(p, quantisation=replace(p.quantisation, **self._without)) if p.quantisation else p

    def _held(self, p: Problem) -> Held:
        return held(p, self._given, self._of_w.device)

    # -- planning ----------------------------------------------------------------------------------

    def job(self, p: Problem, arrays: Arrays) -> Job:
        """What the choice of a form depends on."""

        def lie(a: DeviceArray | None, of: Problem) -> Lie | None:
            return None if a is None else lie_of(a, of, is_input=False)

        planes, y = replace(p, layout="NCHW"), lie_of(arrays.y, p, is_input=False)
        return Job(
            p, lie_of(arrays.x, p, is_input=True), y, lie(arrays.residual, p), self._of_w.strides, self._accuracy,
            self._device, self._limit, self._held(p)[0], lie(arrays.offset, planes), lie(arrays.mask, planes),
        )  # fmt: skip

    def plan(self, shape: Sequence[int], *, rigor: str | None = None) -> Plan:
        """Plan for an input without gaps of a shape; a rigor given decides now, and the layer keeps the choice."""
        p = self._resolved(shape)
        job = job_of(p, self._device, accuracy=self._accuracy, workspace_limit=self._limit)
        job = replace(job, w=self._of_w.strides, quantities=self._held(p)[0])
        if rigor is not None and rigor != "estimate":
            self._decide(job, rigor)
        decision = self._decision(job)
        return described(job, self._form(job) if decision is None else decision.form, decision, self.packed_bytes)

    def _chosen(self, job: Job) -> Form:
        decision = self._decision(job)
        return self._form(job) if decision is None else decision.form

    def _decision(self, job: Job) -> Decision | None:
        """What was measured of a job, or now is where this layer measures; None to predict.

        Wisdom is heeded as it was when this layer first asked, so that nothing which comes later changes its bits; it
        tells of calls that find their weights packed.
        """
        if not self._own or self._form is not choose:
            return None
        with self._lock:
            if self._known is None:
                self._known = dict(wisdom.known())
        if self._rigor == "estimate":
            return recalled(job, self._known)
        return recalled(job, self._known, self._rigor) or self._decide(job, self._rigor)

    def _decide(self, job: Job, rigor: str) -> Decision | None:
        """Choose by the clock unless it did so with this rigor before, and keep it."""
        with _measuring:
            if recalled(job, wisdom.known(), rigor) is None:
                remember(job, *measured(job, rigor, lambda form: self._time(job, form)), rigor)
        key, known = key_of(job), wisdom.known()
        with self._lock:
            self._known = {**(known if self._known is None else self._known), key: known[key]}
            self._calls = OrderedDict()
        return recalled(job, known)

    def _time(self, job: Job, form: Form) -> float:
        """Seconds of a form on random numbers."""
        p, number, of = job.problem, self._of_w.device, guest_of(self._of_w.holder)
        rng = np.random.default_rng(0)
        driver().enter(number)

        def drawn(shape: tuple[int | None, ...], dtype: Dtype) -> DeviceArray:
            whole = tuple(int(e or 0) for e in shape)
            made = of.empty(number, whole, dtype)
            values = rng.standard_normal(whole, np.float32) if dtype.is_float else rng.integers(0, 100, whole)
            driver().upload(made.address, values.astype(dtype.numpy).tobytes(), of.stream(number))
            return made

        x, y = drawn(p.x_shape, p.x_dtype), of.empty(number, tuple(int(e or 0) for e in p.y_shape), p.y_dtype)
        beside = None if job.residual is None else y
        arrays = Arrays(
            x, y, beside, None if job.offset is None else drawn(p.offset_shape, p.x_dtype),
            None if job.mask is None else drawn(p.mask_shape, p.x_dtype),
        )  # fmt: skip
        stream = of.stream(number)
        call = self._call_of(job, form, of, stream, lambda: y.holder, arrays, self._held(p)[1])
        call.start(of, number, arrays.places)
        turns = max(3, min(200, int(_TIMED_SECONDS / form.seconds)))
        first, last = driver().event(), driver().event()
        first.record(stream)
        for _ in range(turns):
            call.start(of, number, arrays.places)
        last.record(stream)
        return last.seconds_since(first) / turns

    # -- running -----------------------------------------------------------------------------------

    def _call_of(self, job: Job, form: Form, guest: Guest, stream: int, make: Callable[[], Any], arrays: Arrays,
                 quantities: Mapping[str, int]) -> Call:  # fmt: skip
        """Code loaded, weights packed on a stream, launches ready."""
        p, number = job.problem, self._of_w.device
        of_steps, keep = self._packing.of_form(form, quantities, Where(guest, stream))
        spans = tuple(None if a is None else (a.span[0] - a.address, a.span[1] - a.address) for a in arrays.all)
        is_alike = arrays.residual is not None and arrays.residual.strides == arrays.y.strides
        launches = Launches(driver(), launches_of(form, number, of_steps, quantities.get("zx", 0)), number)
        of_map = next((step.kernel.map for step in form.steps if isinstance(step.kernel, Patch)), None)
        return Call(p, form, make, self._scratch, launches, spans, is_alike, keep, of_map)


def compute(problem: Problem, x: Any, w: Any, bias: Any = None, residual: Any = None, *, out: Any = None,
            offset: Any = None, mask: Any = None, past: Any = None, accuracy: str = "fast", limit: int | None = None,
            form: Callable[[Job], Form] = choose, quantities: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
    """Compute a problem once on the GPU where its operands lie: weights are packed for this call.

    Returns
    -------
    array
        The result, or (result, present state) of a causal convolution.
    """

    def run(p: Problem, x: Any, *, out: Any) -> Any:
        layer = DeviceLayer(lambda n, i: p, w, bias, layout=p.layout, accuracy=accuracy, limit=limit, form=form,
                            own=False, quantities=quantities)  # fmt: skip
        return layer(x, residual=residual, out=out, offset=offset, mask=mask)

    return causal(problem, x, past, out, run) if problem.op == "causal_conv" else run(problem, x, out=out)


def _is_zero(value: Any) -> bool:
    """Whether zero points that lie in the CPU's memory are all 0; on a GPU they are not looked at."""
    return device_of(value) is None and not np.any(value)


def _kept(value: Any, name: str, *, own: bool) -> Any:
    """A zero point or scale as a layer keeps it; of one call it is the caller's if it has no gaps."""
    if device_of(value) is None:
        return np.array(value)
    a = read(value, name)
    has_gaps = any(step != 1 for extent, step in zip(a.shape, a.strides, strict=True) if extent > 1)
    return copied(a).holder if own or has_gaps else value


def _order(a: DeviceArray, p: Problem, *, always: bool) -> Sequence[int] | None:
    """Order of a result's axes in memory: channels last for an input that has them so under the shape of planes."""
    is_last = p.c != 1 and a.strides[1] == 1 and any(extent != 1 for extent in a.shape[2:])
    if p.layout == "NHWC" or not (is_last or always):
        return None
    return 0, *range(2, len(a.shape)), 1
