"""Arrays of which each output is taken from few inputs along every axis: resized and padded ones, as a step.

Turns ``Taps`` of up to four axes into a step of the driver.  It must not know operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.record import filled
from polyconv.operators.job import Array, Conditions, Step, address_of
from polyconv.operators.planes import cut_planes
from polyconv.operators.sampling_driver import (
    NUMBER_BYTES,
    PICKED,
    AxisWords,
    Sampling,
    SamplingWords,
    drive_sampling,
)
from polyconv.operators.taps import Blocks, Pattern, Taps
from polyconv.target import Target

__all__ = ["sampling_step", "window_of", "workspace_of"]

_MOST_TAPS = 8
"""Of an output along the last axis, for code that is written out."""
_NO_BLOCKS = Blocks(np.zeros(0, np.int64), np.zeros((0, 1, 1), np.int64), np.zeros((0, 1, 1)))


def window_of(last: Taps, dtype: str, target: Target) -> int:
    """Vectors of inputs in which lies what a vector of outputs takes; 0 where there are more, or no instruction."""
    lanes = target.vector_bytes // DTYPES[dtype].itemsize
    is_able = target.has_masks and LLVM_NAMES[dtype] in PICKED and last.most <= _MOST_TAPS
    if not is_able or last.pattern is not None or not last.counts.all():
        return 0
    vectors = -(-last.blocks(lanes).reach // lanes)
    return vectors if vectors <= len(PICKED[LLVM_NAMES[dtype]]) else 0


def workspace_of(spec: Sampling, axes: Sequence[Taps]) -> int:
    """Bytes of a thread: the sum of rows."""
    beyond = spec.window * spec.kind.bytes  # which is read and not picked
    return axes[-1].extent * spec.kind.element_bytes + beyond if spec.sums and not spec.direct else 0


def sampling_step(spec: Sampling, axes: Sequence[Taps], planes: tuple[int, int], strides: Sequence[int], offset: int,
                  pitch: int, filling: float, numbers: Sequence[Array], c: Conditions, threads: int
                  ) -> Step:  # fmt: skip
    """The step.

    Parameters
    ----------
    axes : sequence of Taps
        Four; the first ones have one output where the array has fewer.
    planes : (int, int)
        Extents of the axes before them.
    strides : sequence of int
        Of those, and of all of ``axes`` but the last, in bytes; along the last one elements lie together.
    offset : int
        Of the first element, in bytes.
    pitch : int
        Bytes from one row of the result to the next.
    filling : number
        The filling value.
    numbers : sequence of array
        With which results are finished; see ``Finish``.
    """
    kind, size = DTYPES[spec.dtype].numpy, DTYPES[spec.dtype].itemsize
    rows, items = cut_planes(planes, math.prod(a.outputs for a in axes[:-1]), pitch, strides, offset, threads)
    pattern, width = axes[-1].pattern, axes[-1].extent
    if pattern is None:
        pattern = Pattern(0, 0, 0, 1, (), ())
    repeats = (pattern.end - pattern.begin) // max(1, len(pattern.phases))
    read_beyond = max((o for phase in pattern.phases for o in phase), default=0) // pattern.stride * pattern.stride
    within = max(0, width - pattern.base - read_beyond) // pattern.stride
    full = min(repeats, within) // spec.kind.lanes * spec.kind.lanes
    blocks = axes[-1].blocks(spec.kind.lanes) if spec.window else _NO_BLOCKS
    keep: list[object] = []

    def table(axis: Taps, step: int) -> AxisWords:
        places = np.concatenate([axis.counts[:, None], axis.positions * step], 1)
        return AxisWords(outs=axis.outputs, most=axis.most, places=places, weights=axis.weights.astype(kind))

    upper, middle, lower, last = (table(axis, step) for axis, step in zip(axes, [*strides[2:], size], strict=True))
    words = filled(SamplingWords(
        rows=rows, width=width, upper=upper, middle=middle, lower=lower, last=last, begin=pattern.begin,
        end=pattern.end, base=pattern.base, repeats=repeats, full=full,
        weights=np.array([w for phase in pattern.weights for w in phase], kind), filling=np.array([filling], kind),
        bases=blocks.bases * size, picks=blocks.picks.astype(np.int32), factors=blocks.weights.astype(kind),
        numbers=np.frombuffer(b"".join(a.tobytes().ljust(NUMBER_BYTES, b"\0") for a in numbers), np.uint8),
    ), keep)  # fmt: skip
    driver = address_of(f"sampling {spec}", lambda k, name: drive_sampling(k, name, spec), c)
    return Step(driver, words, items, tuple(keep))
