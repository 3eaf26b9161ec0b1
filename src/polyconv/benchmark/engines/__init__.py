"""The engines of a comparison: a name to the guest that hosts it, its layout, and the environment it needs.

Each guest is a file here, imported in a process of its own; the table says what an engine is in the words
that reports print.  It must not import any guest.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import field

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.target import LEVELS

__all__ = ["ENGINES", "GUESTS", "OURS", "Engine", "Guest", "chosen", "environment"]


@dataclass(frozen=True, slots=True)
class Guest:
    """A package that computes convolutions.

    Parameters
    ----------
    module : str
        Whose presence makes it available.
    variables : mapping
        Environment of its process; ``{threads}`` and ``{cpus}`` stand for numbers.
    levels : mapping
        Environment that restricts it to an instruction-set level; a level that is missing cannot be had.
    """

    module: str
    variables: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to have a convolution computed.

    Parameters
    ----------
    guest : str
        A key of ``GUESTS``.
    layout : str
        Of the arrays that it is given.
    words : str
        What is measured.
    """

    guest: str
    layout: str
    words: str


GUESTS: dict[str, Guest] = {
    "polyconv": Guest(
        "polyconv", levels={level: {"POLYCONV_TARGET": level} for level in LEVELS}
    ),
    "torch": Guest(
        "torch",
        {"OMP_NUM_THREADS": "{threads}", "MKL_NUM_THREADS": "{threads}", "OMP_PROC_BIND": "true"},
        {
            "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
            "baseline": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default",
                         "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        },
    ),
    "onnxruntime": Guest("onnxruntime"),
    "openvino": Guest(
        "openvino",
        levels={"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "baseline": {"ONEDNN_MAX_CPU_ISA": "SSE41"}},
    ),
    "ncnn": Guest("ncnn", {"OMP_NUM_THREADS": "{threads}"}),
    "mnn": Guest("MNN"),
    "litert": Guest("ai_edge_litert"),
}  # fmt: skip
"""Packages, polyconv among them."""

ENGINES: dict[str, Engine] = {
    "polyconv": Engine("polyconv", "NCHW", "a layer with packed weights, result array given"),
    "polyconv-nhwc": Engine("polyconv", "NHWC", "the same, channels last"),
    "torch": Engine("torch", "NCHW", "torch.nn.functional, contiguous tensors, inference mode"),
    "torch-nhwc": Engine("torch", "NHWC", "the same, channels_last tensors (1-D as 2-D with an axis of one)"),
    "torch-packed": Engine(
        "torch", "NCHW",
        "mkldnn::_convolution_pointwise on weights that were reordered for oneDNN; its result is channels_last",
    ),
    "torch-packed-nhwc": Engine("torch", "NHWC", "the same on channels_last tensors"),
    "torch-quantized": Engine("torch", "NCHW", "torch.ops.quantized on packed weights, by FBGEMM or oneDNN"),
    "torch-quantized-nhwc": Engine("torch", "NHWC", "the same on channels_last tensors"),
    "torch-pt2e": Engine("torch", "NCHW", "onednn::qconv_pointwise on packed weights, as compiled PT2E models call it"),
    "torch-pt2e-nhwc": Engine("torch", "NHWC", "the same on channels_last tensors"),
    "onnxruntime": Engine("onnxruntime", "NCHW", "a model of one node, arrays bound with io_binding"),
    "onnxruntime-nhwc": Engine("onnxruntime", "NHWC", "com.microsoft.QLinearConv with channels_last, the only such"),
    "onnxruntime-qdq": Engine("onnxruntime", "NCHW", "of QLinearConv the nodes that quantise round a Conv"),
    "onnxruntime-qdq-nhwc": Engine("onnxruntime", "NHWC", "the same between two transposes of floats"),
    "openvino": Engine(
        "openvino", "NCHW",
        "a model of one node, f32 hint, tensors set before; of QLinearConv the nodes that quantise round a Conv",
    ),
    "openvino-nhwc": Engine("openvino", "NHWC", "the same between two transposes, which its compiler takes away"),
    "ncnn": Engine("ncnn", "NCHW", "a net of one layer, all types but f32 off"),
    "ncnn-blocked": Engine("ncnn", "NCHW", "the same, its input and result in ncnn's blocks of up to 16 channels"),
    "mnn": Engine("mnn", "NCHW", "a converted ONNX model of one node, precision high"),
    "mnn-small-tiles": Engine("mnn", "NCHW", "the same with small, exact tiles of Winograd's scheme"),
    "litert": Engine("litert", "NHWC", "a model of one operator, all of it in XNNPACK"),
}  # fmt: skip
"""All engines; those of one guest share a process and never run at the same time."""

OURS = {"NCHW": "polyconv", "NHWC": "polyconv-nhwc"}
"""polyconv's own, by layout."""


def chosen(words: Iterable[str] | None, level: str | None = None) -> dict[str, str | None]:
    """Engines to measure, each with None or with the reason why it cannot be.

    Parameters
    ----------
    words : iterable of str, optional
        Names of engines or guests, which stand for all their engines; by default every engine that is
        installed.  polyconv's own are always there.
    level : str, optional
        Instruction-set level to which all are restricted.

    Raises
    ------
    ArgumentError
        If there is no such engine.
    """
    wanted = list(ENGINES) if words is None else []
    for word in words or ():
        found = [name for name, row in ENGINES.items() if word in (name, row.guest)]
        if not found:
            raise ArgumentError(f"there is no engine {word!r}; choose from {', '.join(ENGINES)}")
        wanted += found
    rows: dict[str, str | None] = {}
    for name in ENGINES:
        guest = GUESTS[ENGINES[name].guest]
        if name not in wanted and name not in OURS.values():
            continue
        if importlib.util.find_spec(guest.module) is None:
            rows[name] = "not installed"
        elif level is not None and level not in guest.levels:
            rows[name] = f"cannot be restricted to {level}"
        else:
            rows[name] = None
    return rows


def environment(guest: str, threads: int, level: str | None) -> dict[str, str]:
    """Variables that a guest's process is given in addition."""
    row = GUESTS[guest]
    rows = {**row.variables, **(row.levels[level] if level is not None else {})}
    return {name: text.format(threads=threads) for name, text in rows.items()}
