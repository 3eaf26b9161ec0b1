"""A convolution of arrays on a GPU: plans for the shapes and strides that come, packs weights there, launches.

All checks come before the first launch.  Results are arrays of the input's library, on its device, made on its current
stream; nothing waits for the GPU, but where a library's streams are not known.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError, Unsupported
from polyconv.gpu.code import Launchable, function
from polyconv.gpu.device import device
from polyconv.gpu.driver import TensorMap, driver
from polyconv.gpu.forms import Form, Job
from polyconv.gpu.geometry import Lie
from polyconv.gpu.guests import DeviceArray, Guest, device_of, guest_of, read, where
from polyconv.gpu.kernels import move
from polyconv.gpu.kernels.finish import sum_type
from polyconv.gpu.kernels.patch import Patch
from polyconv.gpu.launches import ITSELF, Launch, Launches, launch_once
from polyconv.gpu.operands import check_operands, check_out, operand
from polyconv.gpu.plan import choose, described, lies_of, measured
from polyconv.problem.extents import batch_and_spatial
from polyconv.problem.plan import Plan
from polyconv.problem.problem import Problem

__all__ = ["DeviceLayer", "compute", "lie_of"]

_MOST_CALLS = 32
_ABSENT = 0, None
"""Address and key of an operand that was not given."""
_TIMED_SECONDS = 2e-3
"""For about so long each form runs that is timed."""


_X, _Y, _R, _MOVED, _MAP = range(5)
"""What changes from call to call: addresses of input, result, residual, of the input's copy and of its tensor map."""
_MOST_MAPS = 64


@dataclass(frozen=True, slots=True)
class _Call:
    """Launches for operands that lie in one way.

    Parameters
    ----------
    make : callable
        Makes the result.
    start : Launches
        Started with the addresses of input, result, residual and the input's copy.
    moved : callable or None
        Makes memory for the input's copy.
    spans : tuple
        Bytes before and behind the address of input, result and residual.
    is_alike : bool
        Whether result and residual lie alike, so that they may be the same memory.
    keep : tuple
        Packed weights and bias.
    map : tuple or None
        What the input's tensor map is made of, where kernels read it through one.
    maps : dict
        Maps by the input's address.
    """

    problem: Problem
    form: Form
    make: Callable[[], Any]
    moved: Callable[[], Any] | None
    start: Launches
    spans: tuple[tuple[int, int] | None, ...]
    is_alike: bool
    keep: tuple[DeviceArray, ...]
    map: tuple[Any, ...] | None
    maps: dict[int, TensorMap] = field(default_factory=dict)

    def mapped(self, x: int) -> int:
        """Address of the map of an input."""
        if self.map is None:
            return 0
        found = self.maps.get(x)
        if found is None:
            if len(self.maps) >= _MOST_MAPS:
                self.maps.clear()
            found = self.maps[x] = driver().tensor_map(x, *self.map)
        return found.address


def lie_of(a: DeviceArray, p: Problem, *, is_input: bool) -> Lie:
    """How an operand lies; an axis of extent 1, whose step may be anything, has 0, a lone input channel 1."""
    steps = [0 if extent == 1 else step for extent, step in zip(a.shape, a.strides, strict=True)]
    n, *rest = steps
    c, spatial = (rest[-1], rest[:-1]) if p.layout == "NHWC" else (rest[0], rest[1:])
    return Lie(n, 1 if is_input and p.c == 1 else c, tuple(spatial), a.align)


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

    Notes
    -----
    Safe to call from several threads, and while a stream is captured into a graph.
    """

    def __init__(self, resolve: Callable[[int, tuple[int, ...]], Problem], w: Any, bias: Any | None = None, *,
                 layout: str = "NCHW", accuracy: str = "fast", limit: int | None = None, rigor: str = "estimate",
                 form: Callable[[Job], Form] = choose, own: bool = True) -> None:  # fmt: skip
        self._resolve, self._layout, self._accuracy, self._limit = resolve, layout, accuracy, limit
        self._form, self._own, self._rigor = form, own, rigor
        where({"w": w, "b": bias})
        self._device = device(device_of(w) or 0)  # or why it is of no use
        of_w, of_b = read(w, "w"), None if bias is None else read(bias, "b")
        self._of_w = _copied(of_w) if own else of_w
        self._of_b = _copied(of_b) if own and of_b is not None else of_b
        self._spans = tuple(a.span for a in (self._of_w, self._of_b) if a is not None)
        self._guest, self._kind = guest_of(w), type(w)
        self._lock = threading.RLock()
        self._calls: OrderedDict[Any, _Call] = OrderedDict()
        self._packed: dict[tuple[move.Arrange, bool], DeviceArray] = {}
        self._decided: dict[Job, tuple[Form, dict[str, float]]] = {}

    @property
    def _w(self) -> Any:
        return self._of_w.holder

    @property
    def _bias(self) -> Any:
        return None if self._of_b is None else self._of_b.holder

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights this layer owns, in all their forms."""
        whole = int(np.prod(self._of_w.shape)) * self._of_w.dtype.itemsize
        return whole + sum(wanted.bytes for wanted, _ in self._packed)

    @property
    def algorithms(self) -> dict[tuple[int, ...], str]:
        """Input shapes of recent calls, the last one last, and the algorithm that computed each."""
        with self._lock:
            return {tuple(int(e or 0) for e in c.problem.x_shape): c.form.algorithm for c in self._calls.values()}

    def __call__(self, x: Any, *, residual: Any = None, out: Any = None) -> Any:
        """Convolve; see ``polyconv.conv``."""
        guest = self._guest if type(x) is self._kind else guest_of(x)
        of_x = guest.known(x)
        of_r = _ABSENT if residual is None else guest.known(residual)
        of_y = _ABSENT if out is None else guest.known(out)
        if of_x is None or of_r is None or of_y is None:
            return self._first(x, residual, out, None)
        key = of_x[1], of_r[1], of_y[1]
        call = self._calls.get(key)
        if call is None or (out is not None and not self._is_clear(call, of_x[0], of_y[0], of_r[0])):
            return self._first(x, residual, out, key)
        if out is None:
            out = call.make()
            self._start(call, guest, of_x[0], guest.address(out), of_r[0])
        else:
            self._start(call, guest, of_x[0], of_y[0], of_r[0])
        return out

    def _first(self, x: Any, residual: Any, out: Any, key: Any) -> Any:
        """A call whose operands have not been seen to lie so; it is remembered under a key."""
        guest = guest_of(x)
        a = guest.read(x, "x")
        beside = None if residual is None else operand(residual, "residual")
        p = self._problem(a, beside)
        shape = tuple(int(e or 0) for e in p.y_shape)
        make = guest.maker(a.device, shape, p.y_dtype, _order(a, p))
        if out is None:
            out = make()
            target = guest.read(out, "out")
        else:
            target = operand(out, "out")
            check_out(target, p, a, w=self._of_w, b=self._of_b, residual=beside)
        if 0 in shape:
            return out
        job = self.job(p, a, target, beside)
        stream = guest.stream(a.device)
        is_kept = self._own and not driver().is_capturing(stream)
        call = self._call_of(job, self._chosen(job), guest, stream, make, (a, target, beside))
        if is_kept and key is not None:
            with self._lock:
                self._calls[key] = call
                if len(self._calls) > _MOST_CALLS:
                    self._calls.popitem(last=False)
        self._start(call, guest, a.address, target.address, beside.address if beside else 0)
        return out

    # -- checking ----------------------------------------------------------------------------------

    def _problem(self, a: DeviceArray, beside: DeviceArray | None) -> Problem:
        """The problem of operands, which fit it."""
        p = replace(self._resolve(*batch_and_spatial(a.shape, self._layout)), residual=beside is not None)
        if p.op not in ("conv", "conv_transpose") or p.quantisation is not None:
            raise Unsupported(f"'{p}' is computed on the CPU only; copy its operands there")
        check_operands(p, a, self._of_w, beside)
        if self._accuracy == "tf32" and p.x != "f32":
            raise ArgumentError(f"accuracy='tf32' is for float32; x is {p.x_dtype.numpy}: leave it out")
        return p

    # -- planning ----------------------------------------------------------------------------------

    def job(self, p: Problem, a: DeviceArray, target: DeviceArray, beside: DeviceArray | None) -> Job:
        """What the choice of a form depends on."""
        residual = None if beside is None else lie_of(beside, p, is_input=False)
        return Job(
            p, lie_of(a, p, is_input=True), lie_of(target, p, is_input=False), residual, self._of_w.strides,
            self._accuracy, self._device, self._limit,
        )  # fmt: skip

    def plan(self, shape: Sequence[int], *, rigor: str | None = None) -> Plan:
        """Plan for an input without gaps of a shape; a rigor given decides now, and the layer keeps the choice."""
        p = self._resolve(*batch_and_spatial(shape, self._layout))
        x, y, _ = lies_of(p)
        job = Job(p, x, y, None, self._of_w.strides, self._accuracy, self._device, self._limit)
        if rigor is not None and rigor != "estimate":
            self._decide(job)
        form = self._chosen(job)
        seconds = self._decided[job][1] if job in self._decided else None
        return described(job, form, seconds, self.packed_bytes)

    def _chosen(self, job: Job) -> Form:
        found = self._decided.get(job)
        if found is not None:
            return found[0]
        return self._form(job) if self._rigor == "estimate" else self._decide(job)[0]

    def _decide(self, job: Job) -> tuple[Form, dict[str, float]]:
        """Choose by the clock, and keep it."""
        found = measured(job, lambda form: self._time(job, form))
        with self._lock:
            self._decided[job] = found
            self._calls = OrderedDict()
        return found

    def _time(self, job: Job, form: Form) -> float:
        """Seconds of a form on an input of random numbers."""
        p, number, of = job.problem, self._of_w.device, guest_of(self._w)
        rng = np.random.default_rng(0)
        shape = tuple(int(e or 0) for e in p.x_shape)
        values = rng.integers(0, 100, shape) if not p.x_dtype.is_float else rng.standard_normal(shape, np.float32)
        x, y = of.empty(number, shape, p.x_dtype), of.empty(number, tuple(int(e or 0) for e in p.y_shape), p.y_dtype)
        driver().enter(number)
        driver().upload(x.address, values.astype(p.x_dtype.numpy).tobytes())
        stream = of.stream(number)
        beside = y if job.residual is not None else None
        call = self._call_of(job, form, of, stream, lambda: y.holder, (x, y, beside))
        places = x.address, y.address, y.address if beside else 0
        self._start(call, of, *places)
        turns = max(3, min(200, int(_TIMED_SECONDS / form.seconds)))
        first, last = driver().event(), driver().event()
        first.record(stream)
        for _ in range(turns):
            self._start(call, of, *places)
        last.record(stream)
        return last.seconds_since(first) / turns

    # -- running -----------------------------------------------------------------------------------

    def _call_of(self, job: Job, form: Form, guest: Guest, stream: int, make: Callable[[], Any],
                 operands: tuple[DeviceArray, DeviceArray, DeviceArray | None]) -> _Call:  # fmt: skip
        """Code loaded, weights packed on a stream, launches ready."""
        p, number = job.problem, self._of_w.device
        keep: list[DeviceArray] = []
        packed: dict[move.Arrange, int] = {}
        for wanted in dict.fromkeys(step.weights for step in form.steps if step.weights.size):
            keep.append(self._made(wanted, guest, stream, is_bias=False))
            packed[wanted] = keep[-1].address
        fixed: dict[str, int] = {}
        if self._of_b is not None:
            axis = move.Axis(p.m, self._of_b.strides[0], p.m)
            bias = move.Arrange((axis,), self._of_b.dtype.name, sum_type(form.steps[0].kernel.g))
            keep.append(self._made(bias, guest, stream, is_bias=True))
            fixed["b"] = keep[-1].address
        launches, moved = [], None
        if form.moved is not None and form.moved.grid[0]:  # an input without elements has no copy
            moved = guest.maker(number, (form.moved.bytes,), DTYPES["u8"], None)
            launches.append(_launch(form.moved, number, {"source": _X, "target": _MOVED}, {}))
        changing = {"x": _X if moved is None else _MOVED, "y": _Y, "r": _R}
        launches += [
            _launch(step.kernel, number, changing, {**fixed, "w": packed.get(step.weights, 0)})
            for step in form.steps if step.kernel.grid[0]
        ]  # fmt: skip
        spans = tuple(None if a is None else (a.span[0] - a.address, a.span[1] - a.address) for a in operands)
        is_alike = operands[2] is not None and operands[2].strides == operands[1].strides
        start = Launches(driver(), launches, number)
        of_map = next((step.kernel.map for step in form.steps if isinstance(step.kernel, Patch)), None)
        return _Call(p, form, make, moved, start, spans, is_alike, tuple(keep), of_map)

    def _is_clear(self, call: _Call, x: int, y: int, residual: int) -> bool:
        """Whether the result's memory is surely no operand's, but for the residual's own."""
        of_x, of_y, of_r = call.spans
        assert of_x is not None
        assert of_y is not None
        low, high = y + of_y[0], y + of_y[1]
        if x + of_x[0] < high and low < x + of_x[1]:
            return False
        for start, end in self._spans:
            if start < high and low < end:
                return False
        if of_r is None or (residual == y and call.is_alike):
            return True
        return residual + of_r[1] <= low or high <= residual + of_r[0]

    def _start(self, call: _Call, guest: Guest, x: int, y: int, residual: int) -> None:
        """Launch."""
        stream = guest.stream(self._of_w.device)
        moved = None if call.moved is None else call.moved()  # its memory is the stream's until this is done
        copy = 0 if moved is None else guest.address(moved)
        call.start((x, y, residual, copy, call.mapped(x if moved is None else copy)), stream)
        if guest.waits:
            driver().synchronize(stream)

    def _made(self, wanted: move.Arrange, guest: Guest, stream: int, *, is_bias: bool) -> DeviceArray:
        """Weights or bias as kernels read them; made on this stream if they are not there."""
        key = wanted, is_bias
        found = self._packed.get(key)
        if found is not None:
            return found
        source = self._of_b if is_bias else self._of_w
        assert source is not None
        made = guest.empty(source.device, (max(1, wanted.bytes),), DTYPES["u8"])
        _arrange(wanted, source, made, stream)
        if self._own and not driver().is_capturing(stream):
            driver().synchronize(stream)  # once: later calls may come on other streams
            self._packed[key] = made
        return made


def compute(problem: Problem, x: Any, w: Any, bias: Any = None, residual: Any = None, *, out: Any = None,
            accuracy: str = "fast", limit: int | None = None, form: Callable[[Job], Form] = choose) -> Any:  # fmt: skip
    """Compute a problem once on the GPU where its operands lie: weights are packed for this call."""
    layer = DeviceLayer(lambda n, i: problem, w, bias, layout=problem.layout, accuracy=accuracy, limit=limit,
                        form=form, own=False)  # fmt: skip
    return layer(x, residual=residual, out=out)


def _launch(spec: Launchable, number: int, changing: Mapping[str, int], fixed: Mapping[str, int]) -> Launch:
    """A kernel's launch; of its arguments some change from call to call."""
    addresses = [fixed.get(name, 0) for name in spec.arguments]
    slots = tuple((slot, changing[name]) for slot, name in enumerate(spec.arguments) if name in changing)
    if isinstance(spec, Patch):
        slots = (*slots, (len(addresses), ITSELF + _MAP))
        addresses.append(0)
    return Launch(function(spec, number), spec.grid, (*addresses, *spec.numbers.values()), slots)


def _arrange(wanted: move.Arrange, source: DeviceArray, target: DeviceArray, stream: int) -> None:
    fixed = {"source": source.address, "target": target.address}
    launch_once(_launch(wanted, source.device, {}, fixed), stream, source.device)


def _copied(source: DeviceArray) -> DeviceArray:
    """A copy without gaps, made before this returns."""
    guest = guest_of(source.holder)
    copy = guest.empty(source.device, source.shape, source.dtype)
    if 0 not in source.shape:
        axes = tuple(move.Axis(extent, step, extent) for extent, step in zip(source.shape, source.strides, strict=True))
        stream = guest.stream(source.device)
        _arrange(move.Arrange(axes, source.dtype.name, source.dtype.name), source, copy, stream)
        driver().synchronize(stream)
    return copy


def _order(a: DeviceArray, p: Problem) -> Sequence[int] | None:
    """Order of a result's axes in memory: channels last for an input that has them so under the shape of planes."""
    if p.layout == "NHWC" or p.c == 1 or a.strides[1] != 1 or all(extent == 1 for extent in a.shape[2:]):
        return None
    return 0, *range(2, len(a.shape)), 1
