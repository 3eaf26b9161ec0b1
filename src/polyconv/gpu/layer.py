"""A convolution of arrays on a GPU: plans for the shapes and strides that come, packs weights there, launches.

All checks come before the first launch.  Results are arrays of the input's library, on its device, made on its current
stream; nothing waits for the GPU, but where a library's streams are not known.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError, DtypeError, Unsupported
from polyconv.gpu.code import Launchable, function
from polyconv.gpu.device import device
from polyconv.gpu.driver import Function, driver
from polyconv.gpu.forms import Form, Job, forms
from polyconv.gpu.geometry import Lie
from polyconv.gpu.guests import DeviceArray, Guest, device_of, guest_of, read
from polyconv.gpu.kernels import move
from polyconv.gpu.kernels.finish import sum_type
from polyconv.problem.problem import Problem

__all__ = ["DeviceLayer", "choose", "compute", "lie_of"]

_MOST_CALLS = 32


@dataclass(frozen=True, slots=True)
class _Launch:
    """Code with the names of what it takes."""

    code: Function
    grid: tuple[int, int, int]
    roles: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """Launches for operands that lie in one way."""

    problem: Problem
    form: Form
    launches: tuple[_Launch, ...]
    weights: tuple[move.Arrange, ...]
    bias: move.Arrange | None


def lie_of(a: DeviceArray, p: Problem, *, is_input: bool) -> Lie:
    """How an operand lies; an axis of extent 1, whose step may be anything, has 0, a lone input channel 1."""
    steps = [0 if extent == 1 else step for extent, step in zip(a.shape, a.strides, strict=True)]
    n, *rest = steps
    c, spatial = (rest[-1], rest[:-1]) if p.layout == "NHWC" else (rest[0], rest[1:])
    channels = p.c if is_input else p.m
    return Lie(n, 1 if channels == 1 and is_input else c, tuple(spatial), a.align)


def choose(job: Job) -> Form:
    """The form predicted fastest, with the bits that one image would have."""
    one = replace(job, problem=replace(job.problem, n=1)) if job.problem.n != 1 else job
    best = min(forms(one), key=lambda form: form.seconds)
    if one is job:
        return best
    return min((form for form in forms(job) if form.arithmetic == best.arithmetic), key=lambda form: form.seconds)


_choose = lru_cache(512)(choose)


class DeviceLayer:
    """A convolution with fixed weights on a GPU; the counterpart of ``prepared.Layer``.

    Parameters
    ----------
    resolve : callable
        ``resolve(n, i)``: the problem for batch n and spatial extents i.
    w, bias : array on a GPU
        Not copied: packed when they are first needed; later changes to them have no effect on what is packed then.
    layout : str
    accuracy : str
        ``fast``, ``strict`` or ``tf32``.
    form : callable, optional
        Takes a job and gives its form; ``choose`` by default.
    own : bool
        Whether packed weights are kept.
    """

    def __init__(self, resolve: Callable[[int, tuple[int, ...]], Problem], w: Any, bias: Any | None = None, *,
                 layout: str = "NCHW", accuracy: str = "fast", form: Callable[[Job], Form] = _choose,
                 own: bool = True) -> None:  # fmt: skip
        self._resolve, self._layout, self._accuracy, self._form, self._own = resolve, layout, accuracy, form, own
        self._w, self._bias = read(w, "w"), None if bias is None else read(bias, "b")
        if self._bias is not None and self._bias.device != self._w.device:
            raise ArgumentError(_devices("b", self._bias.device, "w", self._w.device))
        self._lock = threading.RLock()
        self._calls: OrderedDict[Any, _Call] = OrderedDict()
        self._packed: dict[tuple[move.Arrange, bool], DeviceArray] = {}

    def __call__(self, x: Any, *, residual: Any = None, out: Any = None) -> Any:
        """Convolve; see ``polyconv.conv``."""
        guest = guest_of(x)
        a = guest.read(x, "x")
        beside = None if residual is None else _operand(residual, "residual")
        target = None if out is None else _operand(out, "out")
        key = (_lies(a), None if beside is None else _lies(beside), None if target is None else _lies(target))
        with self._lock:
            call = self._calls.get(key)
        problem = self._checked(a, beside) if call is None else call.problem
        shape = tuple(int(e or 0) for e in problem.y_shape)
        if target is None:
            result = guest.empty(a.device, shape, problem.y_dtype, _order(a, problem))
            target = guest.read(result, "out")
        else:
            result = out
            self._check_out(target, shape, problem, a, beside)
        if 0 in shape:
            return result
        if call is None:
            call = self._plan(problem, a, target, beside)
            with self._lock:
                self._calls[key] = call
                if len(self._calls) > _MOST_CALLS:
                    self._calls.popitem(last=False)
        self._run(call, guest, a, target, beside)
        return result

    # -- checking ----------------------------------------------------------------------------------

    def _checked(self, a: DeviceArray, beside: DeviceArray | None) -> Problem:
        """The problem of operands, which fit it."""
        if a.device != self._w.device:
            raise ArgumentError(_devices("x", a.device, "w", self._w.device))
        if len(a.shape) < 3:
            raise ArgumentError(f"x has shape {a.shape}; it needs batch, channel and at least one spatial axis")
        spatial = a.shape[1:-1] if self._layout == "NHWC" else a.shape[2:]
        p = self._resolve(a.shape[0], tuple(spatial))
        p = replace(p, residual=beside is not None)
        if p.op not in ("conv", "conv_transpose") or p.quantisation is not None:
            raise Unsupported(f"'{p}' is computed on the CPU only; copy its operands there")
        for name, array, dtype, shape in (
            ("x", a, p.x_dtype, p.x_shape), ("w", self._w, p.w_dtype, p.w_shape),
            ("residual", beside, p.y_dtype, p.y_shape),
        ):  # fmt: skip
            if array is None:
                continue
            if array.dtype is not dtype:
                raise DtypeError(f"{name} has type {array.dtype.name} where {dtype.name} is needed; convert it")
            if array.shape != shape:
                raise ArgumentError(f"{name} has shape {array.shape}, this convolution needs {shape}")
        if beside is not None and beside.device != a.device:
            raise ArgumentError(_devices("residual", beside.device, "x", a.device))
        if self._accuracy == "tf32" and p.x != "f32":
            raise ArgumentError(f"accuracy='tf32' is for float32; x is {p.x_dtype.numpy}: leave it out")
        return p

    def _check_out(self, target: DeviceArray, shape: tuple[int, ...], p: Problem, a: DeviceArray,
                   beside: DeviceArray | None) -> None:  # fmt: skip
        if target.dtype is not p.y_dtype:
            raise DtypeError(f"out has type {target.dtype.name}, the result is {p.y}; pass an array of that type")
        if target.shape != shape:
            raise ArgumentError(f"out has shape {target.shape}, the result has {shape}; pass an array of that shape")
        if target.device != a.device:
            raise ArgumentError(_devices("out", target.device, "x", a.device))
        if _overlaps_itself(target):
            raise ArgumentError(f"out has strides {target.strides}: elements overlap each other; pass a plain array")
        for name, other in (("x", a), ("w", self._w), ("b", self._bias), ("residual", beside)):
            if other is None or not _meet(other.span, target.span):
                continue
            if name == "residual" and (other.address, other.strides) == (target.address, target.strides):
                continue
            raise ArgumentError(f"out overlaps {name} in memory; pass an array of its own")

    # -- planning ----------------------------------------------------------------------------------

    def job(self, p: Problem, a: DeviceArray, target: DeviceArray, beside: DeviceArray | None) -> Job:
        """What the choice of a form depends on."""
        residual = None if beside is None else lie_of(beside, p, is_input=False)
        return Job(
            p, lie_of(a, p, is_input=True), lie_of(target, p, is_input=False), residual, self._w.strides,
            self._accuracy, device(a.device),
        )  # fmt: skip

    def _plan(self, p: Problem, a: DeviceArray, target: DeviceArray, beside: DeviceArray | None) -> _Call:
        form = self._form(self.job(p, a, target, beside))
        number = a.device
        launches = []
        if form.moved is not None:
            launches.append(_launch(form.moved, number, {"source": "x", "target": "moved"}))
        names: dict[str, Any] = {"x": "moved" if form.moved is not None else "x", "b": "b", "r": "r", "y": "y"}
        launches += [
            _launch(step.kernel, number, {**names, "w": step.weights}) for step in form.steps if step.kernel.grid[0]
        ]
        bias = None
        if self._bias is not None:
            wide = sum_type(form.steps[0].kernel.g)
            axis = move.Axis(p.m, self._bias.strides[0], p.m)
            bias = move.Arrange((axis,), self._bias.dtype.name, wide)
        weights = tuple(dict.fromkeys(step.weights for step in form.steps if step.weights.size))
        return _Call(p, form, tuple(launches), weights, bias)

    # -- running -----------------------------------------------------------------------------------

    def _run(self, call: _Call, guest: Guest, a: DeviceArray, target: DeviceArray, beside: DeviceArray | None) -> None:
        number, stream = a.device, guest.stream(a.device)
        places: dict[Any, int] = {"x": a.address, "y": target.address, "r": beside.address if beside else 0}
        kept = []
        for wanted in (*call.weights, *((call.bias,) if call.bias else ())):
            packed = self._made(wanted, guest, number, stream, is_bias=wanted is call.bias)
            places["b" if wanted is call.bias else wanted] = packed.address
            kept.append(packed)
        if call.form.moved is not None:
            scratch = guest.read(guest.empty(number, (call.form.moved.bytes,), DTYPES["u8"], None), "workspace")
            places["moved"] = scratch.address
            kept.append(scratch)
        start = driver().launch
        for launch in call.launches:
            start(launch.code, launch.grid, [places.get(role, 0) for role in launch.roles], stream, number)
        if guest.waits:
            driver().synchronize(stream)

    def _made(self, wanted: move.Arrange, guest: Guest, number: int, stream: int, *, is_bias: bool) -> DeviceArray:
        """Weights or bias as kernels read them; made on this stream if they are not there."""
        key = wanted, is_bias
        found = self._packed.get(key)
        if found is not None:
            return found
        source = self._bias if is_bias else self._w
        assert source is not None
        made = guest.read(guest.empty(number, (max(1, wanted.bytes),), DTYPES["u8"], None), "packed weights")
        launch = _launch(wanted, number, {"source": "source", "target": "target"})
        driver().launch(launch.code, launch.grid, [source.address, made.address], stream, number)
        if self._own and not driver().is_capturing(stream):
            driver().synchronize(stream)  # once: later calls may come on other streams
            self._packed[key] = made
        return made

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights in the forms made so far."""
        return sum(wanted.bytes for wanted, _ in self._packed)


def compute(problem: Problem, x: Any, w: Any, bias: Any = None, residual: Any = None, *, out: Any = None,
            accuracy: str = "fast", form: Callable[[Job], Form] = _choose) -> Any:  # fmt: skip
    """Compute a problem once on the GPU where its operands lie: weights are packed for this call."""
    layer = DeviceLayer(lambda n, i: problem, w, bias, layout=problem.layout, accuracy=accuracy, form=form, own=False)
    return layer(x, residual=residual, out=out)


def _launch(spec: Launchable, number: int, roles: dict[str, Any]) -> _Launch:
    return _Launch(function(spec, number), spec.grid, tuple(roles[name] for name in spec.arguments))


def _operand(value: Any, name: str) -> DeviceArray:
    if device_of(value) is None:
        raise ArgumentError(f"{name} lies in the CPU's memory, x on a GPU; copy one of them, so that they lie together")
    return read(value, name)


def _lies(a: DeviceArray) -> tuple[Any, ...]:
    return a.shape, a.strides, a.align, a.dtype.name, a.device


def _devices(name: str, one: int, other_name: str, other: int) -> str:
    return f"{name} lies on CUDA device {one}, {other_name} on CUDA device {other}; copy one of them to the other's"


def _order(a: DeviceArray, p: Problem) -> Sequence[int] | None:
    """Order of a result's axes in memory: channels last for an input that has them so under the shape of planes."""
    if p.layout == "NHWC" or p.c == 1 or a.strides[1] != 1 or all(extent == 1 for extent in a.shape[2:]):
        return None
    return 0, *range(2, len(a.shape)), 1


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _overlaps_itself(a: DeviceArray) -> bool:
    span = 1
    for step, extent in sorted((abs(s), e) for s, e in zip(a.strides, a.shape, strict=True) if e > 1):
        if step < span:
            return True
        span = step * (extent - 1) + span
    return False

