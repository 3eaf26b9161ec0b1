"""The code of field filters calls nothing, on any target, and its dense tiles keep their sums in registers."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from elf import TARGETS, assembly, calls

from polyconv.dtypes import DTYPES
from polyconv.fields.program import build
from polyconv.kernels.field import field_tiles
from polyconv.kernels.field_sums import FieldTile
from polyconv.kernels.isa import field_tile
from polyconv.kernels.language import Module
from polyconv.kernels.objects import texts_only
from polyconv.ndimage.fields import field
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.stages import Types

EVERY = pytest.mark.parametrize("level", TARGETS)


@cache
def kernels(level: str) -> dict[str, str]:
    """Texts by label: every type in and out, every form, sums in doubt, strided arrays."""
    rng = np.random.default_rng(0)
    passes = [
        Pass("window", (0, 1), rng.integers(-3, 4, (3, 3)) + 0.0, (0, 0), ("reflect", "constant")),
        Pass("window", (0, 1), rng.random((21, 21)) / 400, (0, 0), ("wrap", "wrap")),
        Pass("window", (0, 1), np.outer(*rng.random((2, 15))) / 60, (0, 0), ("wrap", "wrap")),
        Pass("window", (0, 1), np.eye(5), (0, 0), ("wrap", "wrap")),
        *(Pass("line", (0,), np.array(w), (0,), ("wrap",)) for w in ([1, 2, 1.5], [1, 3.1, 1], [-1, 0, 1.0])),
        Pass("mean", (1,), np.ones(30), (0,), ("nearest",)),
    ]
    found: dict[str, str] = {}
    with texts_only(lambda label, _, text: label in found or found.__setitem__(label, text())):
        for dtype, row in DTYPES.items():
            for other in {"u8", "f64", dtype}:
                for x, y in ((dtype, other), (other, dtype)):
                    if "f64" in (x, y) and {x, y} & {"f16", "bf16"}:
                        continue
                    fields = np.zeros((40, 90), DTYPES[x].numpy), np.zeros((40, 90), DTYPES[y].numpy)
                    for one in passes:
                        for a, b in (fields, tuple(f[:, ::2] for f in fields)) if row.bits == 32 else (fields,):
                            made = field([one], a, b, Types(x, y, False, False, 1.5))
                            build(made, TARGETS[level], threads=1, limit=None, check=False)
    return found


@EVERY
def test_no_kernel_calls_anything(level: str) -> None:
    """None of kernels of every kind."""
    names = " ".join(kernels(level))
    for dtype in DTYPES:
        assert f"source='{dtype}'" in names and f"target='{dtype}'" in names
    for word in ("form='dense'", "form='listed'", "form='even'", "form='odd'", "doubt='whole'", "doubt='finite'",
                 "blocked=True", "divided=True", "bounded=False", "spread=True", "fused=False"):  # fmt: skip
        assert word in names, word
    assert calls(kernels(level), TARGETS[level]) == {}


STACK = r"[xyz]mm\d+.*\(%rsp\)|\(%rsp\).*[xyz]mm\d+|\bq\d+, \[sp"


def products(level: str, panel: str, rows: int, vectors: int) -> list[str]:
    """Pieces of a dense tile's code with as many products as it has vectors of sums."""
    target = TARGETS[level]
    lanes = target.vector_bytes // (4 if panel == "float" else 8)
    spec = FieldTile(panel, panel == "float", "dense", "f32" if panel == "float" else "f64")
    k = Module(fma=target.has_fma, wide=8 * target.vector_bytes)
    field_tiles(k, spec, lanes, rows, vectors, f16c=target.converts_f16)
    blocks = re.split(r"^\.?L\w+:", assembly(k.text(target.triple), target), flags=re.M)
    return [block for block in blocks if len(re.findall(r"mul|fmadd|fmla", block)) >= rows * vectors]


@pytest.mark.parametrize("panel", ["float", "double"])
@EVERY
def test_dense_tiles_do_not_spill(level: str, panel: str) -> None:
    """The innermost loops of the widest tile: no vector on the stack."""
    found = products(level, panel, *field_tile(TARGETS[level]))
    assert found
    for block in found:
        assert not re.search(STACK, block), block[:2000]


@EVERY
def test_a_spill_is_seen(level: str) -> None:
    """Twice as many sums as there are registers: the test above would notice."""
    rows, vectors = field_tile(TARGETS[level])
    assert any(re.search(STACK, block) for block in products(level, "double", 4 * rows, vectors))
