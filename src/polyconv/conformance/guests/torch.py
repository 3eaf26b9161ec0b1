"""PyTorch as a witness: a problem becomes one functional convolution between pads and crops.

Pads of any sign are applied to the input before, those of a transposed convolution to the result
after.  Runs in a worker process only.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray

from polyconv.conformance.operands import Operands
from polyconv.problem.epilogue import WITHOUT_AFFINE
from polyconv.problem.extents import effective_kernel
from polyconv.problem.problem import Problem

__all__ = ["activation", "run_problem", "version"]

Array = NDArray[Any]

torch.set_num_threads(1)

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
_BF16 = np.dtype(ml_dtypes.bfloat16)


def version() -> str:
    """Version of the guest."""
    return importlib.metadata.version("torch")


def _tensor(a: Array | None) -> Any:
    if a is None:
        return None
    a = np.array(a, order="C")
    return (
        torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if a.dtype == _BF16 else torch.from_numpy(a)
    )


def _array(t: Any) -> Array:
    t = t.contiguous()
    return t.view(torch.int16).numpy().view(_BF16) if t.dtype == torch.bfloat16 else np.asarray(t.numpy())


def _padded(t: Any, pads: list[tuple[int, int]]) -> Any:
    """Enlarged first and cropped after, so that no extent is negative in between."""
    flat = [v for pair in reversed(pads) for v in pair]
    for step in ([max(v, 0) for v in flat], [min(v, 0) for v in flat]):
        t = functional.pad(t, step) if any(step) else t
    return t


def run_problem(p: Problem, made: Operands) -> Array:
    """Result of a problem."""
    last = p.layout == "NHWC"
    x = _tensor(np.moveaxis(made.x, -1, 1) if last else made.x)
    w, bias = _tensor(made.w), _tensor(made.bias)
    if p.op == "causal_conv":
        y = functional.conv1d(_history(p, made, x), w, bias, groups=p.groups)
    elif p.op == "conv":
        y = _CONV[p.rank](_padded(x, list(p.pads)), w, bias, stride=p.s, dilation=p.d, groups=p.groups)
    else:
        y = _TRANSPOSE[p.rank](x, w, None, stride=p.s, dilation=p.d, groups=p.groups)
        natural = [
            (int(i or 0) - 1) * s + effective_kernel(k, d)
            for i, s, k, d in zip(p.i, p.s, p.k, p.d, strict=True)
        ]
        cuts = [(-b, int(o or 0) + b - n) for (b, _), o, n in zip(p.pads, p.out, natural, strict=True)]
        y = _padded(y, cuts)
        if bias is not None:
            y = y + bias.reshape(-1, *(1,) * p.rank)
    if made.residual is not None:
        y = y + _tensor(np.moveaxis(made.residual, -1, 1) if last else made.residual)
    if p.activation is not None:
        y = activation(p, y)
    result = _array(y)
    return np.moveaxis(result, 1, -1) if last else result


def _history(p: Problem, made: Operands, x: Any) -> Any:
    past = _tensor(made.past)
    return _padded(x, [(p.k[0] - 1, 0)]) if past is None else torch.cat([past, x], dim=2)


def activation(p: Problem, y: Any) -> Any:
    """Tensor after the problem's activation."""
    assert p.activation is not None
    name, parameters = p.activation.name, p.activation.parameters
    simple = {
        "Relu": functional.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Silu": functional.silu,
        "Mish": functional.mish, "HardSwish": functional.hardswish, "Gelu": functional.gelu,
    }  # fmt: skip
    if name in simple:
        return simple[name](y)
    if name in WITHOUT_AFFINE:
        return simple[WITHOUT_AFFINE[name]](y) * parameters[0] + parameters[1]
    if name == "LeakyRelu":
        return functional.leaky_relu(y, parameters[0])
    if name == "Elu":
        return functional.elu(y, parameters[0])
    if name == "Clip":
        low, high = parameters if y.dtype.is_floating_point else (int(v) for v in parameters)
        return torch.clamp(y, low, high)
    return torch.clamp(y * parameters[0] + parameters[1], 0.0, 1.0)
