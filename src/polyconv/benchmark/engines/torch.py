"""PyTorch in a comparison: eager calls in both memory formats, and weights reordered for oneDNN.

The reordered form is what a frozen ``torch.compile`` graph calls.  Runs in a worker process only.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray

from polyconv.benchmark.engines.ready import Lacking, Ready, Task
from polyconv.benchmark.engines.torch_quantised import quantised
from polyconv.conformance.guests.torch import activation
from polyconv.conformance.operands import Operands
from polyconv.problem.extents import effective_kernel
from polyconv.problem.problem import Problem

__all__ = ["ready", "start", "version"]

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
_BF16 = np.dtype(ml_dtypes.bfloat16)
_MODE = torch.inference_mode()  # entered once and never left: it ends with the process

Call = Callable[[], Any]


def version() -> str:
    """Version of the guest, and of the oneDNN inside."""
    inside = next((line for line in torch.__config__.show().splitlines() if "MKL-DNN" in line), "")
    found = re.search(r"v(\d[\d.]*)", inside)
    return importlib.metadata.version("torch") + (f" (oneDNN {found[1]})" if found else "")


def start(task: Task) -> None:
    """Set the threads; leave gradients behind for good."""
    torch.set_num_threads(task.threads)
    _MODE.__enter__()


def ready(engine: str, p: Problem, made: Operands, task: Task) -> Ready:
    """Tensors in the engine's format and the call that convolves them."""
    if "quantized" in engine or "pt2e" in engine:
        call, found = quantised(engine, p, made)
        return Ready(call, found, lambda: {"precision": f"{p.x} x {p.w}", "kernel": _implementation(call)})
    if p.op not in ("conv", "conv_transpose") or p.quantisation is not None:
        raise Lacking("no operator of this kind")
    if not p.x == p.w == p.y:
        raise Lacking("operands and result have one type")
    if not 1 <= p.rank <= 3:
        raise Lacking(f"no operator with {p.rank} spatial axes")
    packed, last = "packed" in engine, engine.endswith("nhwc")
    if packed and p.x not in ("f32", "f16", "bf16"):
        raise Lacking(f"oneDNN has no {p.x} convolution")
    plane = p.rank == 1 and (packed or last)  # channels_last and reordered weights begin at two axes
    x, w, bias, residual = (_tensor(a) for a in (made.x, made.w, made.bias, made.residual))
    if plane:
        x, w = x.unsqueeze(2), w.unsqueeze(2)
        residual = None if residual is None else residual.unsqueeze(2)
    if last:
        x, w, residual = (None if t is None else t.contiguous(memory_format=_LAST[t.ndim - 2])
                          for t in (x, w, residual))  # fmt: skip
    call = (_reordered if packed else _eager)(p, plane, x, w, bias, residual)
    remark = "asymmetric pads: torch.nn.functional.pad before each call" if _before(p) else ""

    def result() -> NDArray[Any]:
        y = call().contiguous()
        return _array(y.squeeze(2) if plane else y)

    def facts() -> dict[str, Any]:
        return {"precision": p.x, "kernel": _implementation(call), "remark": remark}

    return Ready(call, result, facts)


def _tensor(a: NDArray[Any] | None) -> Any:
    if a is None:
        return None
    a = np.array(a, order="C")
    return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if a.dtype == _BF16 else torch.from_numpy(a)


def _array(t: Any) -> NDArray[Any]:
    return t.view(torch.int16).numpy().view(_BF16) if t.dtype == torch.bfloat16 else np.asarray(t.numpy())


def _before(p: Problem) -> list[int]:
    """Pads to give to ``pad`` before a convolution, innermost axis first; empty where its own will do."""
    if p.op == "conv_transpose" or all(begin == end >= 0 for begin, end in p.pads):
        return []
    return [v for pair in reversed(p.pads) for v in pair]


def _geometry(p: Problem, plane: bool) -> tuple[list[int], list[int], list[int], list[int]]:
    """Pads, output padding, strides, dilations."""
    pads = [0] * p.rank if _before(p) else [begin for begin, _ in p.pads]
    more = [0] * p.rank
    if p.op == "conv_transpose":
        for a, (i, o) in enumerate(zip(p.i, p.out, strict=True)):
            natural = (int(i or 0) - 1) * p.s[a] - 2 * pads[a] + effective_kernel(p.k[a], p.d[a])
            more[a] = int(o or 0) - natural
            if pads[a] < 0 or not 0 <= more[a] < max(p.s[a], p.d[a]):
                raise Lacking("no output padding gives these extents")
    lists = pads, more, list(p.s), list(p.d)
    head = (0, 0, 1, 1)
    return tuple([first, *values] for first, values in zip(head, lists, strict=True)) if plane else lists  # type: ignore[return-value]


def _eager(p: Problem, plane: bool, x: Any, w: Any, bias: Any, residual: Any) -> Call:
    pads, more, s, d = _geometry(p, plane)
    before, g = _before(p), p.groups
    rank = p.rank + plane
    if p.op == "conv_transpose":
        transpose = _TRANSPOSE[rank]
        core: Call = lambda: transpose(x, w, bias, s, pads, more, g, d)  # noqa: E731
    elif before:
        conv = _CONV[rank]
        core = lambda: conv(functional.pad(x, before), w, bias, s, pads, d, g)  # noqa: E731
    else:
        conv = _CONV[rank]
        core = lambda: conv(x, w, bias, s, pads, d, g)  # noqa: E731
    return _behind(p, core, residual)


def _behind(p: Problem, core: Call, residual: Any) -> Call:
    """Residual and activation as operators of their own."""
    if residual is None and p.activation is None:
        return core
    if p.activation is None:
        return lambda: core() + residual
    if residual is None:
        return lambda: activation(p, core())
    return lambda: activation(p, core() + residual)


def _reordered(p: Problem, plane: bool, x: Any, w: Any, bias: Any, residual: Any) -> Call:
    pads, more, s, d = _geometry(p, plane)
    before, g = _before(p), p.groups
    relu = p.activation is not None and p.activation.name == "Relu"
    attribute = "relu" if relu and residual is None else "none"
    size = list((functional.pad(x, before) if before else x).shape)
    if p.op == "conv_transpose":
        if g > 1 and g == p.c:
            raise Lacking("torch.compile does not reorder the weights of depthwise transposed convolutions")
        reordered = torch.ops.mkldnn._reorder_convolution_transpose_weight(w, pads, more, s, d, g, size)
        transpose = torch.ops.mkldnn._convolution_transpose_pointwise
        core: Call = lambda: transpose(x, reordered, bias, pads, more, s, d, g, attribute, [], "")  # noqa: E731
        return core if attribute == "relu" else _behind(p, core, residual)
    reordered = torch.ops.mkldnn._reorder_convolution_weight(w, pads, s, d, g, size)
    conv = torch.ops.mkldnn._convolution_pointwise
    if residual is not None and (relu or p.activation is None):
        unary = "relu" if relu else None
        given: Call = (lambda: functional.pad(x, before)) if before else (lambda: x)
        return lambda: conv.binary(given(), residual, reordered, bias, pads, s, d, g, "add", 1.0, unary, [], None)
    if before:
        core = lambda: conv(functional.pad(x, before), reordered, bias, pads, s, d, g, attribute, [], "")  # noqa: E731
    else:
        core = lambda: conv(x, reordered, bias, pads, s, d, g, attribute, [], "")  # noqa: E731
    return core if attribute == "relu" else _behind(p, core, residual)


def _implementation(call: Call) -> str:
    """Which of oneDNN's implementations a call runs, by its own verbose lines; PyTorch's own where it has none."""
    with tempfile.TemporaryFile() as lines:
        kept = os.dup(1)
        try:
            os.dup2(lines.fileno(), 1)
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                call()
            ctypes.CDLL(None).fflush(None)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        lines.seek(0)
        rows = [line.split(",") for line in lines.read().decode(errors="replace").splitlines()]
    runs = [row for row in rows if len(row) > 6 and row[0] == "onednn_verbose" and "exec" in row]
    kinds = [(row[row.index("exec") + 2], row[row.index("exec") + 3]) for row in runs]
    return " + ".join(f"{kind} {made_by}" for kind, made_by in kinds) or "PyTorch's own"
