"""The native entry of a deformable convolution: offset and mask are looked at as input, result and residual are."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyconv
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import Operands, operands
from polyconv.prepared import Layer
from polyconv.problem.problem import Problem

Array = np.ndarray[Any, Any]
LINES = {
    "plain": "deform_conv f32 NCHW n2 c4 i7x6 m6 k3x2 p1 b1 og2",
    "with a mask": "deform_conv f32 NCHW n2 c4 i7x6 m6 k3x2 p1 b1 og1 mask",
    "with a residual": "deform_conv f64 NCHW n1 c4 i7x6 m6 k3x2 p1 g2 r1 og1 mask",
}


def made(kind: str) -> tuple[Any, Any, Problem, Operands]:
    """A layer that was called once, its entry, its problem and what it was called with."""
    p = Problem.parse(LINES[kind])
    given = operands(p, np.random.default_rng(3), "normal")
    with polyconv.settings(check=False, threads=1):  # check mode has no native entry
        layer = Layer(lambda n, i: replace(p, n=n, i=i, residual=False), given.w, given.bias)
    layer(given.x, residual=given.residual, offset=given.offset, mask=given.mask)
    assert layer._last is not None
    return layer, layer._last[0].entry, p, given


def rest(given: Operands) -> list[Array | None]:
    return [given.residual, given.offset, given.mask]


def blank(p: Problem) -> Array:
    return np.full([int(e or 0) for e in p.y_shape], 7, p.y_dtype.numpy)


@pytest.mark.parametrize("kind", LINES)
def test_it_computes_what_the_specification_says(kind: str) -> None:
    layer, entry, p, given = made(kind)
    out = blank(p)
    assert entry(given.x, out, *rest(given)) is out
    assert complaint(p, expected(p, given), out) is None
    again = layer(given.x, residual=given.residual, offset=given.offset, mask=given.mask)
    assert again.tobytes() == out.tobytes()


@pytest.mark.parametrize("kind", LINES)
def test_other_offsets_and_masks_are_refused_and_nothing_is_written(kind: str) -> None:
    _, entry, p, given = made(kind)
    offset, out = given.offset, blank(p)
    assert offset is not None
    strange = [
        None, offset.astype(np.float16), offset[:, :-1], offset[..., ::-1], np.asfortranarray(offset), offset[None],
        offset.tolist(), offset.astype(offset.dtype.newbyteorder()),
    ]  # fmt: skip
    wrong_mask = offset if given.mask is None else None
    counts = [sys.getrefcount(thing) for thing in (offset, out, given.x)]
    for other in strange:
        assert entry(given.x, out, given.residual, other, given.mask) is None
    assert entry(given.x, out, given.residual, offset, wrong_mask) is None
    assert entry(given.x, out, given.residual) is None
    assert entry(given.x, out, *rest(given), None) is None
    assert (out == 7).all()
    assert [sys.getrefcount(thing) for thing in (offset, out, given.x)] == counts


@pytest.mark.parametrize("name", ["x", "residual", "offset", "mask"])
def test_results_in_the_memory_of_an_operand_are_refused(name: str) -> None:
    layer, entry, p, given = made("with a residual")
    mine = getattr(given, name)
    size = blank(p).nbytes
    memory = np.zeros(mine.nbytes + size, np.uint8)
    own = memory[: mine.nbytes].view(mine.dtype).reshape(mine.shape)
    own[...] = mine
    inside = replace(given, **{name: own})
    over = memory[mine.nbytes - 8 : mine.nbytes - 8 + size].view(np.float64).reshape(blank(p).shape)
    assert entry(inside.x, over, *rest(inside)) is None
    with pytest.raises(polyconv.ArgumentError, match=f"out overlaps {name}"):
        layer(inside.x, residual=inside.residual, offset=inside.offset, mask=inside.mask, out=over)
    assert own.tobytes() == mine.tobytes()
    beside = memory[mine.nbytes :].view(np.float64).reshape(blank(p).shape)
    assert entry(inside.x, beside, *rest(inside)) is beside
    assert complaint(p, expected(p, given), beside) is None


def test_arrays_that_lie_otherwise_go_the_other_way() -> None:
    layer, _, p, given = made("with a mask")
    assert given.offset is not None
    right = layer(given.x, offset=given.offset, mask=given.mask)
    wide = np.repeat(given.offset, 2, axis=3)[..., ::2]
    swapped = given.offset.astype(given.offset.dtype.newbyteorder())
    for other in (wide, swapped, given.offset.tolist(), given.offset):
        for _ in range(2):
            np.testing.assert_array_equal(layer(given.x, offset=other, mask=given.mask), right)
    with pytest.raises(polyconv.ArgumentError, match="mask"):
        layer(given.x, offset=given.offset)
    with pytest.raises(polyconv.ArgumentError, match="offset"):
        layer(given.x)
    assert complaint(p, expected(p, given), right) is None
