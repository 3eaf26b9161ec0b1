"""Every kernel that some problems need, as the LLVM text that would be compiled: problems in, labels and texts out.

Programs are built as for a call, by every algorithm that takes a problem and for any target, but nothing is compiled
and nothing runs, so any machine can write the texts of all targets.  It must not know who compares them.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Refusal
from polyconv.algorithms.table import ALGORITHMS
from polyconv.dataclass import dataclass
from polyconv.errors import Error
from polyconv.kernels.objects import texts_only
from polyconv.lowering.presums import CERTAIN
from polyconv.lowering.situation import Situation
from polyconv.machine.profile import presets
from polyconv.operands import strides
from polyconv.prepared import Layer
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES
from polyconv.settings import settings
from polyconv.target import Target

__all__ = ["TARGETS", "KernelText", "kernel_texts"]

TARGETS = {
    "avx512": Target(
        "avx512", "x86_64-unknown-linux-gnu", "x86-64-v4",
        "+avx512bf16,+avx512vnni,+avx512vbmi,+avx512vbmi2,+amx-tile,+amx-int8,+amx-bf16",
        bf16=True, vnni=True, vbmi2=True, matrix=True,
    ),
    "avx2": Target("avx2", "x86_64-unknown-linux-gnu", "x86-64-v3", ""),
    "baseline": Target("baseline", "x86_64-unknown-linux-gnu", "x86-64", ""),
}
"""One for each level of x86-64, whatever this machine is."""
_PROFILES = {"avx512": "zen5", "avx2": "zen5", "baseline": "zen5", "neon": "neoverse-n1"}
"""Machines that are planned for, whatever this one is: forms of algorithms, and with them kernels, follow from it."""


@dataclass(slots=True)
class KernelText:
    """A kernel's text, and the algorithms whose programs use it."""

    text: str
    algorithms: set[str] = field(default_factory=set)


def kernel_texts(problems: Iterable[Problem], target: Target, *, check: bool = False) -> dict[str, KernelText]:
    """The kernels of all programs that compute some problems, by label.

    Parameters
    ----------
    problems : iterable of Problem
        With known extents.  The text of a problem also decides threads, accuracy, limit of workspace, whether weights
        are finite and how arrays lie, so that programs differ in these as well.
    target : Target
    check : bool
        With bounds checks.

    Raises
    ------
    Error
        If two kernels with one label have different texts: the label, which names a compiled kernel, says too little.
        Those are compared that are the second, the fourth, the eighth, ... to have it: some labels come hundreds of
        times, and writing texts is what takes time here.
    """
    found: dict[str, KernelText] = {}
    times = Counter[str]()

    def take(label: str, _: object, text: Callable[[], str]) -> None:
        times[label] += 1
        if label not in found:
            found[label] = KernelText(text())
        elif times[label].bit_count() == 1 and found[label].text != text():
            raise Error(f"two kernels are called '{label}', and their texts differ; the label must tell them apart")
        found[label].algorithms.add(algorithm)

    with texts_only(take), settings(check=check):
        for p in problems:
            problem = replace(p, op="conv") if p.op == "causal_conv" else p
            layer, lying, deformation = _made(problem)
            for situation in _situations(layer, problem, target):
                for algorithm in ALGORITHMS:
                    form = ALGORITHMS[algorithm].fitting(situation)
                    if not isinstance(form, Refusal):
                        layer.program(form, lying, *deformation, run=_nothing)
    return found


def _nothing(*_: Any) -> None:
    """Do not run what packs weights: it is no code."""


def _situations(layer: Layer, p: Problem, target: Target) -> list[Situation]:
    """In which a problem is computed: by finite weights, in some way that its text says, and by others if it can be."""
    way = zlib.crc32(str(p).encode())
    limit = (None, None, None, None, None, 1 << 14)[way // 4 % 6]
    narrow, light = layer.weights.narrow_and_light(p)
    crowded = layer.weights.crowded(p) if way // 16 % 2 else CERTAIN
    s = Situation(p, target, limit, 1 + way % 2, strict=way // 2 % 8 == 7, narrow=narrow, light=light, crowded=crowded,
                  profile=presets()[_PROFILES[target.level]])  # fmt: skip
    if 0 in p.y_shape:
        return []
    return [s, replace(s, finite=False)] if p.x_dtype.is_float and way // 2 % 8 < 2 else [s]


def _made(p: Problem) -> tuple[Layer, Any, tuple[Any, Any]]:
    """A layer of zeros; how arrays lie, for one problem in four as of another layout; and offset and mask."""
    other = zlib.crc32(str(p).encode()) // 32 % 4 == 3

    def array(shape: tuple[int | None, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        extents = tuple(int(e or 0) for e in shape)
        if not other:
            return np.zeros(extents, dtype)
        if p.layout == "NHWC":
            return np.moveaxis(np.zeros((extents[0], extents[-1], *extents[1:-1]), dtype), 1, -1)
        return np.moveaxis(np.zeros((extents[0], *extents[2:], extents[1]), dtype), -1, 1)

    q = p.quantisation
    named = {} if q is None else {name: getattr(q, name) for name in QUANTITIES}
    quantities = {name: np.ones(p.m if of == "c" else (), np.float32) for name, of in named.items() if of in ("t", "c")}
    if "zw" in quantities and other:  # of a channel, or all: weights less it are no numbers of i8
        quantities["zw"].flat[0] = 200 if p.w == "u8" else -128
    layer = Layer(
        lambda n, i: p, np.zeros(p.w_shape, p.w_dtype.numpy), np.zeros(p.m, p.y_dtype.numpy) if p.bias else None,
        layout=p.layout, own=False, quantities=quantities,
    )  # fmt: skip
    x, y = array(p.x_shape, p.x_dtype.numpy), array(p.y_shape, p.y_dtype.numpy)
    lying = strides(x, p), strides(y, p), strides(y, p) if p.residual else None
    if p.op != "deform_conv":
        return layer, lying, (None, None)
    taps = p.offset_groups * int(np.prod(p.k))
    offset, mask = (np.zeros([int(e or 0) for e in (p.n, n, *p.out)], p.x_dtype.numpy) for n in (2 * taps, taps))
    return layer, lying, (offset, mask if p.mask else None)
