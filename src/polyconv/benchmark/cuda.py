"""Layers on a GPU, polyconv against cuDNN as PyTorch calls it: times of graphs of launches, contestants in turn.

cuDNN runs in both memory formats of PyTorch, with ``benchmark=True``, without a bias and with it, which PyTorch adds in
a kernel of its own; polyconv always has it.  Times are medians of rounds in which every contestant's graph is replayed;
operands stay in the second cache, for all alike.  Each result is compared with float64's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from statistics import median
from typing import Any

from polyconv.benchmark.sets import Case
from polyconv.cache import cache_folder
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, Error, Unsupported
from polyconv.gpu.code import Launchable, function
from polyconv.gpu.device import Device
from polyconv.gpu.device import device as facts
from polyconv.gpu.driver import driver
from polyconv.gpu.forms import Form, forms
from polyconv.gpu.guests import read
from polyconv.gpu.layer import Arrays, DeviceLayer
from polyconv.gpu.plan import choose
from polyconv.in_force import keep_where_settings_say
from polyconv.problem.problem import Problem

__all__ = ["KINDS", "Mean", "Row", "card", "means", "run", "torch_on_gpu"]

KINDS = {"f32": ("f32", "fast"), "strict": ("f32", "strict"), "tf32": ("f32", "tf32"), "f16": ("f16", "fast"),
         "bf16": ("bf16", "fast")}  # fmt: skip
"""Kinds of arithmetic: the type of arrays and the accuracy asked for."""

_LAUNCHES = 20
"""In a graph: enough that starting it does not count."""
_PEAKS = {"f32": 67e12, "strict": 67e12, "tf32": 495e12, "f16": 989e12, "bf16": 989e12}
"""Operations a second of an H100's datasheet; other devices have the share of their multiprocessors and clock."""
_WRONG = {"f32": 1e-5, "strict": 1e-5, "tf32": 3e-3, "f16": 3e-3, "bf16": 3e-2}
"""Root mean square of errors over that of results, from which on a result is wrong."""


@dataclass(frozen=True, slots=True)
class Row:
    """A layer in a kind of arithmetic; times in microseconds, channels last unless said.

    Parameters
    ----------
    bound : float
        No kernel is faster: arithmetic at the datasheet's rate, operands once through memory.
    cudnn, cudnn_bias : float or None
        The faster of both memory formats, without and with the bias.
    polyconv : float or None
    cudnn_first, polyconv_first : float or None
        Of planes (NCHW) in and out.
    error : float or None
        Root mean square of polyconv's errors over that of the results.
    form : str
    others : tuple of (str, float, float)
        Other forms, their times and what they were predicted.
    """

    layer: str
    problem: str
    kind: str
    bound: float
    cudnn: float | None
    cudnn_bias: float | None
    polyconv: float | None
    cudnn_first: float | None
    polyconv_first: float | None
    error: float | None
    form: str
    others: tuple[tuple[str, float, float], ...] = ()

    @property
    def ratio(self) -> float | None:
        """How many times as long cuDNN takes, without the bias."""
        return None if self.cudnn is None or self.polyconv is None else self.cudnn / self.polyconv

    @property
    def planes(self) -> float | None:
        """The same of planes."""
        first = self.cudnn_first, self.polyconv_first
        return None if first[0] is None or first[1] is None else first[0] / first[1]


@dataclass(frozen=True, slots=True)
class Mean:
    """Geometric means of a kind."""

    kind: str
    layers: int
    best: float
    bias: float
    planes: float
    share: float
    lost: tuple[str, ...]


def card(number: int = 0) -> dict[str, object]:
    """What was measured on, and with."""
    torch = torch_on_gpu()
    return {
        "GPU": facts(number).name, "driver": driver().version, "PyTorch": torch.__version__,
        "cuDNN": torch.backends.cudnn.version(),
    }  # fmt: skip


def means(rows: Sequence[Row]) -> list[Mean]:
    """By kind, over the layers that both computed."""
    found = []
    for kind in dict.fromkeys(row.kind for row in rows):
        some = [row for row in rows if row.kind == kind and row.ratio is not None]
        if some:
            bias = [(row.cudnn_bias or 0) / (row.polyconv or 1) for row in some if row.cudnn_bias]
            planes = [row.planes for row in some if row.planes is not None]
            found.append(Mean(
                kind, len(some), _mean([row.ratio or 1 for row in some]), _mean(bias), _mean(planes),
                _mean([row.bound / (row.polyconv or 1) for row in some]),
                tuple(row.layer for row in some if (row.ratio or 0) < 0.97),
            ))  # fmt: skip
    return found


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def run(cases: Sequence[Case], kinds: Sequence[str], *, device: int = 0, forms: int = 1, rounds: int = 9,
        progress: Callable[[Row, int, int], None] | None = None) -> list[Row]:  # fmt: skip
    """Measure layers.

    Parameters
    ----------
    cases : sequence of Case
        Convolutions of rank 1 to 3 with known extents, as PyTorch has them; others are left out.
    kinds : sequence of str
        Keys of ``KINDS``.
    forms : int
        So many forms of each, those predicted fastest; the row shows that which is predicted fastest of all.
    rounds : int
        In which all contestants take their turns.

    Raises
    ------
    ArgumentError
        If PyTorch with CUDA is not installed.
    """
    torch = torch_on_gpu()
    torch.backends.cudnn.benchmark = True
    keep_where_settings_say()
    jobs = [(case, kind) for case in cases for kind in kinds if _is_taken(case.problem, kind)]
    with torch.no_grad():
        contests = [_Contest(torch, case, kind, device, forms) for case, kind in jobs]
        _build_ahead([form for contest in contests for form in (*contest.last, *contest.first)], device)
    rows = []
    for done, contest in enumerate(contests, 1):
        with torch.no_grad():
            rows.append(contest.row(rounds))
        contests[done - 1] = None  # type: ignore[call-overload]  # its arrays go
        torch.cuda.synchronize()
        if progress is not None:
            progress(rows[-1], done, len(jobs))
    return rows


def _build_ahead(forms: Sequence[Form], device: int) -> None:
    """Make the code of forms in as many processes as there are CPUs; it is found in the cache later."""
    if cache_folder() is None:
        return
    specs = {step.kernel.name: step.kernel for form in forms for step in form.steps}
    count = min(len(specs), (os.cpu_count() or 1) - 1)
    if count > 1:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            list(pool.map(partial(_build, device=device), specs.values(), chunksize=4))


def _build(spec: Launchable, device: int) -> None:
    keep_where_settings_say()
    with suppress(Error):  # it is said where the form has its turn
        function(spec, device)


def torch_on_gpu() -> Any:
    """PyTorch, with a GPU.

    Raises
    ------
    ArgumentError, Unsupported
        If PyTorch is not installed, or finds no GPU.
    """
    try:
        import torch
    except ImportError:
        raise ArgumentError("bench --device cuda needs PyTorch with CUDA, which is not installed") from None
    if not torch.cuda.is_available():
        raise Unsupported("PyTorch finds no GPU; bench --device cuda needs PyTorch with CUDA")
    return torch


def _is_taken(p: Problem, kind: str) -> bool:
    known = p.op == "conv" and p.x == "f32" and p.rank in (1, 2, 3) and p.is_known
    plain = p.activation is None and not p.residual and all(begin == end >= 0 for begin, end in p.pads)
    return known and plain and not (kind == "tf32" and p.groups == p.c)  # cuDNN has no TF32 without sums of channels


class _Contest:
    """The contestants of a layer."""

    def __init__(self, torch: Any, case: Case, kind: str, device: int, count: int) -> None:
        dtype, self.accuracy = KINDS[kind]
        self.torch, self.case, self.kind = torch, case, kind
        self.p = p = replace(case.problem, x=dtype, w=dtype, y=dtype, layout="NCHW", bias=True)
        self.device: Device = facts(device)
        generator = torch.Generator(device=f"cuda:{device}").manual_seed(7)
        type_ = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]

        def drawn(shape: Sequence[int | None], scale: float = 1.0) -> Any:
            sizes = [int(e or 0) for e in shape]
            return (torch.randn(sizes, device=f"cuda:{device}", generator=generator) * scale).to(type_)

        terms = p.c // p.groups * math.prod(p.k)
        self.x, self.w = drawn(p.x_shape), drawn(p.w_shape, (2.0 / terms) ** 0.5)
        self.b = drawn((p.m,))
        self.keywords = {
            "stride": p.s, "padding": [begin for begin, _ in p.pads], "dilation": p.d, "groups": p.groups,
        }  # fmt: skip
        self.keep: list[Any] = []
        self.layer = DeviceLayer(lambda n, i: self.p, self.w, self.b, accuracy=self.accuracy)
        self.last, self.first = self._forms(self._last(self.x), count), self._forms(self.x, 1)

    def row(self, rounds: int) -> Row:
        """Measure."""
        torch = self.torch
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = self.kind == "tf32"
        last, chosen = self._last(self.x), self.last
        graphs: dict[Any, Any] = dict(self._cudnn())
        error = None
        for form in chosen:
            layer = DeviceLayer(lambda n, i: self.p, self.w, self.b, accuracy=self.accuracy,
                                form=lambda job, form=form: form)  # type: ignore[misc]  # fmt: skip
            found = self._entered(graphs, ("last", str(form)), layer, last)
            error = found if form is chosen[0] else error
        self._entered(graphs, ("first", ""), self.layer, self.x)
        seconds = self._race(graphs, rounds)

        def least(*keys: Any) -> float | None:
            return min((seconds[key] for key in keys if key in seconds), default=None)

        names = {str(f): 1e6 * f.seconds for f in chosen if ("last", str(f)) in seconds}
        others = tuple((name, seconds["last", name], predicted) for name, predicted in names.items())
        first = str(chosen[0])
        return Row(
            self.case.name, str(self.case.problem), self.kind, self._bound(),
            least(("cudnn", 0, 0), ("cudnn", 1, 0)), least(("cudnn", 0, 1), ("cudnn", 1, 1)),
            seconds.get(("last", first)), least(("cudnn", 0, 0)), seconds.get(("first", "")), error, first, others[1:],
        )  # fmt: skip

    def _forms(self, x: Any, count: int) -> list[Form]:
        """The chosen form of an input that lies so, and those predicted next."""
        y = self.torch.empty([int(e or 0) for e in self.p.y_shape], dtype=x.dtype, device=x.device)
        y = y if x is self.x else self._last(y)
        job = self.layer.job(self.p, Arrays(read(x, "x"), read(y, "y")))
        rest = sorted(forms(job), key=lambda form: form.seconds)
        return list({str(form): form for form in (choose(job), *rest)}.values())[:count]

    def _last(self, x: Any) -> Any:
        """The same values with channels last in memory."""
        axes = [0, *range(2, x.ndim), 1]
        return x.permute(axes).contiguous().permute([axes.index(a) for a in range(x.ndim)])

    def _entered(self, graphs: dict[Any, Any], key: Any, layer: DeviceLayer, x: Any) -> float | None:
        """Put polyconv among the contestants if it is right; its error."""
        try:
            y = layer(x)
            error = self._error(y)
            if not error < _WRONG[self.kind]:
                raise Error(f"{self.case.name} {self.kind} {key}: wrong by {error:.1e}")
            graphs[key] = self._graph(lambda: layer(x, out=y))
        except Unsupported:
            return None
        self.keep += [layer, y, x]
        return error

    def _error(self, y: Any) -> float:
        """Root mean square of errors over that of results, on the CPU where the GPU has no float64 for it."""
        if not hasattr(self, "_right"):
            function = getattr(self.torch.nn.functional, f"conv{self.p.rank}d")
            operands = [a.double() for a in (self.x, self.w, self.b)]
            try:
                self._right = function(*operands, **self.keywords)
            except RuntimeError:
                self._right = function(*(a.cpu() for a in operands), **self.keywords).to(self.x.device)
        right = self._right
        return float((y.double() - right).pow(2).mean().sqrt() / right.pow(2).mean().sqrt())

    def _cudnn(self) -> Iterator[tuple[Any, Any]]:
        function = getattr(self.torch.nn.functional, f"conv{self.p.rank}d")
        for is_last in (0, 1) if self.p.rank > 1 else (0,):
            x, w = (self._last(a) if is_last else a for a in (self.x, self.w))
            for has_bias in (0, 1):
                bias = self.b if has_bias else None

                def call(x: Any = x, w: Any = w, bias: Any = bias) -> Any:
                    return function(x, w, bias, **self.keywords)

                try:
                    call()
                except RuntimeError:  # cuDNN has no kernel for it
                    continue
                self.keep += [x, w, bias]
                yield ("cudnn", is_last, has_bias), self._graph(call)

    def _graph(self, call: Callable[[], Any]) -> Any:
        torch = self.torch
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            call()
            call()
        torch.cuda.current_stream().wait_stream(beside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_LAUNCHES):
                call()
        return graph

    def _race(self, graphs: dict[Any, Any], rounds: int) -> dict[Any, float]:
        """Microseconds of a launch: medians of rounds."""
        torch = self.torch
        times: dict[Any, list[float]] = {key: [] for key in graphs}
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
        for _ in range(rounds):
            for key, graph in graphs.items():
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                graph.replay()
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                times[key].append(1e3 * start.elapsed_time(end) / _LAUNCHES)
        return {key: median(found) for key, found in times.items()}

    def _bound(self) -> float:
        p = self.p
        operations = 2.0 * p.macs / _PEAKS[self.kind]
        elements = math.prod(int(e or 0) for e in p.x_shape) + math.prod(p.w_shape)
        elements += math.prod(int(e or 0) for e in p.y_shape)
        share = self.device.multiprocessors * self.device.clock / (132 * 1.98e9)
        return 1e6 * max(operations / share, elements * p.x_dtype.itemsize / self.device.memory)
