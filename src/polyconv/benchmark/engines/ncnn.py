"""ncnn in a comparison: a net of one layer, written as parameter text with its weights in memory.

Images lie channels first, or in ncnn's blocked layout, in and out.  All types shorter than f32 are off.  Runs in a
worker process only.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import ncnn
import numpy as np
from numpy.typing import NDArray

from polyconv.benchmark.engines.ready import Lacking, Ready, Task, check_plain
from polyconv.conformance.operands import Operands
from polyconv.problem.extents import effective_kernel
from polyconv.problem.problem import Problem

__all__ = ["ready", "start", "version"]

_MAGIC = 7767517  # first line of the parameter text
_RAW_F32 = b"\0\0\0\0"  # what stands before weights that are plain f32

# Numbers of parameters for the axes from the last to the first: width, height, depth.
_KERNEL, _DILATION, _STRIDE, _BEGIN, _END = (1, 11, 21), (2, 12, 22), (3, 13, 23), (4, 14, 24), (15, 16, 17)
_MORE = (18, 19, 20)  # output padding of a transposed convolution

_NAME = {1: "1D", 2: "", 3: "3D"}
_SHORT_TYPES = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed", "use_bf16_storage",
                "use_int8_inference", "use_int8_packed", "use_int8_storage", "use_int8_arithmetic")  # fmt: skip

_ACTIVATIONS = {"Relu": ("ReLU", 1), "LeakyRelu": ("ReLU", 2), "Clip": ("Clip", 3)}
"""A layer of its own, and the number of the function inside a convolution."""


def version() -> str:
    """Version of the guest."""
    return importlib.metadata.version("ncnn")


def start(task: Task) -> None:
    """Nothing to set before the first problem: threads are an option of a net."""


def ready(engine: str, p: Problem, made: Operands, task: Task) -> Ready:
    """A net of one layer, and of those for a residual, with its images in the engine's layout."""
    check_plain(p, axes=3)
    if p.activation is not None and p.activation.name not in _ACTIVATIONS:
        raise Lacking(f"its layers do not end with {p.activation.name}")
    blocked = engine == "ncnn-blocked"
    net, weights, pools = ncnn.Net(), _weights(p, made), (ncnn.PoolAllocator(), ncnn.PoolAllocator())
    own = ncnn.Option()  # of what is done round the calls
    for options in (net.opt, own):
        _set(options, task)
    if net.load_param_mem(_text(p)) != 0:
        raise Lacking("ncnn refuses the layer")
    net.load_model_mem(weights)
    # Else every call takes its pages from the system; set now, as the net may outlive them with what it loaded.
    net.opt.blob_allocator, net.opt.workspace_allocator = pools
    images = {"x": _image(made.x, blocked, own)}
    if made.residual is not None:
        images["r"] = _image(made.residual, blocked, own)

    def once() -> Any:
        extractor = net.create_extractor()
        for name, image in images.items():
            extractor.input(name, image)
        code, found = extractor.extract("y", int(blocked))  # 1: in whatever layout it is
        if code != 0:
            raise Lacking(f"ncnn fails with code {code}")
        return found

    def result() -> NDArray[Any]:
        found = once()
        if found.elempack > 1:
            found = ncnn.convert_packing(found, 1, own)
        return np.stack([np.array(found.batch(index)) for index in range(int(p.n or 0))])

    def facts() -> dict[str, Any]:
        assert weights and pools  # the net points to both, so they live as long as this function
        return {"precision": "f32", "kernel": "ncnn", "remark": f"result in blocks of {once().elempack}"}

    return Ready(once, result, facts)


def _set(options: Any, task: Task) -> None:
    """Threads, and no type but f32."""
    options.num_threads = task.threads
    for name in ("use_vulkan_compute", *_SHORT_TYPES):
        setattr(options, name, False)


def _image(a: NDArray[Any], blocked: bool, options: Any) -> Any:
    """A batch in ncnn's memory; ``blocked``, with as many channels innermost as divide their number."""
    image = ncnn.Mat(np.ascontiguousarray(a), 0).clone()
    block = next((b for b in (16, 8, 4) if a.shape[1] % b == 0), 1) if blocked else 1
    return ncnn.convert_packing(image, block, options) if block > 1 else image


def _weights(p: Problem, made: Operands) -> bytes:
    """Weights with the output channel outermost in each group, then the bias."""
    w = made.w
    if p.op == "conv_transpose":
        w = np.swapaxes(w.reshape(p.groups, p.c // p.groups, p.m // p.groups, *p.k), 1, 2)
    bias = b"" if made.bias is None else made.bias.tobytes()
    return _RAW_F32 + np.ascontiguousarray(w).tobytes() + bias


def _text(p: Problem) -> str:
    """The net: inputs, the layer, an addition for a residual, the activation behind that."""
    activation = p.activation
    layers = ["Input in 0 1 x"]
    words = _words(p)
    if p.residual:
        layers += ["Input more 0 1 r", f"{_layer(p)} conv 1 1 x c {words}"]
        layers.append(f"BinaryOp add 2 1 c r {'y' if activation is None else 's'} 0=0")
        if activation is not None:
            layers.append(f"{_ACTIVATIONS[activation.name][0]} act 1 1 s y {_numbered(activation.parameters)}")
    else:
        if activation is not None:
            words += f" 9={_ACTIVATIONS[activation.name][1]}"
        if activation is not None and activation.parameters:
            words += f" -23310={len(activation.parameters)}," + ",".join(f"{v:.9e}" for v in activation.parameters)
        layers.append(f"{_layer(p)} conv 1 1 x y {words}")
    return "\n".join([str(_MAGIC), f"{len(layers)} {2 * len(layers)}", *layers, ""])


def _layer(p: Problem) -> str:
    name = "Convolution" if p.op == "conv" else "Deconvolution"
    return name + ("DepthWise" if p.groups > 1 else "") + _NAME[p.rank]


def _numbered(values: Sequence[float]) -> str:
    return " ".join(f"{number}={value:.9e}" for number, value in enumerate(values))


def _words(p: Problem) -> str:
    """Parameters of the layer, as ``number=value``."""
    more, ends = [0] * p.rank, [end for _, end in p.pads]
    if p.op == "conv_transpose":
        for a, (i, o) in enumerate(zip(p.i, p.out, strict=True)):
            left = (int(i or 0) - 1) * p.s[a] + effective_kernel(p.k[a], p.d[a]) - p.pads[a][0] - int(o or 0)
            ends[a], more[a] = max(left, 0), max(-left, 0)
    rows = [(_KERNEL, p.k), (_DILATION, p.d), (_STRIDE, p.s), (_BEGIN, [begin for begin, _ in p.pads]), (_END, ends)]
    if p.op == "conv_transpose":
        rows.append((_MORE, more))
    values = {0: p.m, 5: int(p.bias), 6: int(np.prod(p.w_shape))}
    if p.groups > 1:
        values[7] = p.groups
    for numbers, by_axis in rows:
        values |= dict(zip(numbers, reversed(by_axis), strict=False))
    return " ".join(f"{number}={value}" for number, value in values.items())
