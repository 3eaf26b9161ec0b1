"""PyTorch's quantised convolutions: those of eager mode, and the one that compiled PT2E models call.

Both take u8, weights packed beforehand, and a bias in floats.  Runs in a worker process only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyconv.benchmark.engines.qdq import check_rescaled, zero_points_and_scales
from polyconv.benchmark.engines.ready import Lacking
from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

__all__ = ["quantised"]

Call = Callable[[], Any]

_EAGER = {1: torch.ops.quantized.conv1d, 2: torch.ops.quantized.conv2d, 3: torch.ops.quantized.conv3d}
_PACK = {
    1: torch.ops.quantized.conv1d_prepack, 2: torch.ops.quantized.conv2d_prepack,
    3: torch.ops.quantized.conv3d_prepack,
}  # fmt: skip
_FORMAT = {2: torch.channels_last, 3: torch.channels_last_3d}


def quantised(engine: str, p: Problem, made: Operands) -> tuple[Call, Callable[[], NDArray[Any]]]:
    """A call of one convolution, and what it finds as a NumPy array.

    Raises
    ------
    Lacking
        If there is no such operator.
    """
    check_rescaled(p)
    last = engine.endswith("nhwc")
    if (p.x, p.w, p.y) != ("u8", "i8", "u8"):
        raise Lacking("takes u8 and weights of i8, and makes u8")
    if not 1 <= p.rank <= 3 or (last and p.rank == 1):
        raise Lacking(f"no {'channels_last ' if last else ''}operator with {p.rank} spatial axes")
    if any(begin != end or begin < 0 for begin, end in p.pads):
        raise Lacking("pads are the same at both ends")
    given = zero_points_and_scales(p, made)
    if given["zw"].any():
        raise Lacking("the zero point of weights is 0")
    x, w = torch.from_numpy(np.array(made.x)), torch.from_numpy(np.array(made.w))
    x = x.contiguous(memory_format=_FORMAT[p.rank]) if last else x
    bias = None if made.bias is None else torch.from_numpy((made.bias * (given["sx"] * given["sw"])).astype(np.float32))
    make = _compiled if "pt2e" in engine else _eager
    call, integers = make(p, x, w, bias, given)
    return call, lambda: np.asarray(integers(call()).contiguous().numpy())


def _geometry(p: Problem) -> tuple[list[int], list[int], list[int], int]:
    return list(p.s), [begin for begin, _ in p.pads], list(p.d), p.groups


def _eager(p: Problem, x: Any, w: Any, bias: Any, given: dict[str, NDArray[Any]]) -> tuple[Call, Callable[[Any], Any]]:
    """``torch.ops.quantized``: tensors that know their scales."""
    (sx, zx), (sy, zy) = ((float(given["s" + a]), int(given["z" + a])) for a in "xy")
    scales = torch.from_numpy(np.broadcast_to(given["sw"], (p.m,)).astype(np.float64))
    qx = torch._make_per_tensor_quantized_tensor(x, sx, zx)
    qw = torch._make_per_channel_quantized_tensor(w, scales, torch.zeros(p.m, dtype=torch.int64), 0)
    packed, conv = _PACK[p.rank](qw, bias, *_geometry(p)), _EAGER[p.rank]
    return lambda: conv(qx, packed, sy, zy), lambda y: y.int_repr()


def _compiled(p: Problem, x: Any, w: Any, bias: Any, given: dict[str, NDArray[Any]]
              ) -> tuple[Call, Callable[[Any], Any]]:  # fmt: skip
    """``torch.ops.onednn.qconv_pointwise``: tensors of integers, scales beside them."""
    (sx, zx), (sy, zy) = ((float(given["s" + a]), int(given["z" + a])) for a in "xy")
    scales = torch.from_numpy(np.broadcast_to(given["sw"], (p.m,)).astype(np.float32))
    zeros = torch.zeros(p.m, dtype=torch.int64)
    packed = torch.ops.onednn.qconv_prepack(w, scales, sx, zx, *_geometry(p), list(x.shape))
    conv = torch.ops.onednn.qconv_pointwise
    rest: tuple[Any, ...] = (*_geometry(p), sy, zy, torch.uint8, "none", [], "")
    return lambda: conv(x, sx, zx, packed, scales, zeros, bias, *rest), lambda y: y
