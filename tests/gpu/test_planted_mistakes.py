"""Mistakes planted in the PTX of polyconv's kernels: the emulator must find each."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from emulator import AsyncFault, Deadlock, Fault, Race
from on_virtual_gpu import check
from virtual_gpu import virtual_gpu

from polyconv.gpu.forms import Form, Job, forms
from polyconv.gpu.kernels.gemm import Gemm
from polyconv.gpu.kernels.patch import Patch


def _with(old: str, new: str, which: int = 0) -> Callable[[str], str]:
    """Replace one occurrence of an instruction in the kernels that multiply."""

    def edit(text: str) -> str:
        if ".entry convolution" not in text:
            return text
        parts = text.split(old)
        assert len(parts) > which + 1, old
        return old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :])

    return edit


def _is(form: Form, unit: str, split: int) -> bool:
    """Whether a form's kernel is one of a unit, or a patch, in which so many blocks share a sum."""
    kernel = form.steps[0].kernel
    if isinstance(kernel, Patch):
        return (unit, split) == ("patch", kernel.tile.split)
    return isinstance(kernel, Gemm) and (kernel.tile.unit, kernel.tile.split) == (unit, split)


BOTH = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
MISTAKES = [
    ("warp", 1, _with("bar.sync 0;", ""), Race), ("warp", 1, _with("bar.sync 0;", "", 1), Race),
    ("warp", 1, _with("bar.sync 0;", "", 2), Race),
    ("warp", 1, _with("cp.async.wait_group 2;", "cp.async.wait_group 3;"), Race),
    ("warp", 1, _with("cp.async.commit_group;", "", 3), Race), ("warp", 2, _with(BOTH, "bar.sync 0;"), Race),
    ("warp", 2, _with(BOTH, "", 1), Race), ("scalar", 1, _with("bar.sync 0;", "", 1), Race),
    ("group", 1, _with("fence.proxy.async.shared::cta;", ""), AsyncFault),
    ("group", 1, _with("wgmma.wait_group.sync.aligned 0;", ""), AsyncFault),
    ("group", 1, _with("wgmma.commit_group.sync.aligned;", ""), Fault),
    ("group", 1, _with("wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;"), Race),
]  # fmt: skip


def _substituted(pattern: str, new: str) -> Callable[[str], str]:
    """Replace all places of a pattern in the kernels that multiply."""

    def edit(text: str) -> str:
        if ".entry convolution" not in text:
            return text
        changed, count = re.subn(pattern, new, text)
        assert count, pattern
        return changed

    return edit


PATCH_MISTAKES = [
    ("no barrier after the init", 1, _with("bar.sync 0;", ""), Race),
    ("no barrier before sums are written", 1, _with("bar.sync 0;", "", 1), Race),
    ("no cluster barrier", 2, _with(BOTH, "bar.sync 0;"), Race),
    ("barriers not fenced", 1, _substituted(r"fence\.(mbarrier_init\.release\.cluster|proxy\.async);", ""), AsyncFault),
    ("a step too few waited for", 1, _with("wait_group.sync.aligned 1;", "wait_group.sync.aligned 2;"), Race),
    ("a slot never freed", 1, _with("mbarrier.arrive.shared::cta.b64", "//"), Deadlock),
    ("bytes too many", 1, _substituted(r"(expect_tx.* )(\d+);", r"\g<1>1\g<2>;"), Deadlock),
    ("bytes too few", 1, _substituted(r"(expect_tx.* )(\d+);", r"\g<1>16;"), Deadlock),
    ("slots not awaited", 1, _substituted(r"(try_wait[^;]*, )%r\d+;(?=[^$]*cp\.async\.bulk\.sh)", r"\g<1>1;"), Fault),
]  # fmt: skip


@pytest.mark.parametrize(("split", "edit", "fault"), [pytest.param(*rest, id=name) for name, *rest in PATCH_MISTAKES])
def test_mistakes_planted_in_patches_are_found(split: int, edit: Callable[[str], str], fault: type[Fault]) -> None:
    _must_be_found("conv f16 NHWC n1 c128 i9x10 m64 k3x3 p1", "patch", split, edit, fault)


@pytest.mark.parametrize(("unit", "split", "edit", "fault"), MISTAKES)
def test_planted_mistakes_are_found(unit: str, split: int, edit: Callable[[str], str], fault: type[Fault]) -> None:
    line = "conv f16 NHWC n1 c128 i6x7 m64 k3x3 p1" if unit != "scalar" else "conv f64 NHWC n1 c32 i6x7 m64 k3x3 p1"
    _must_be_found(line, unit, split, edit, fault)


def _must_be_found(line: str, unit: str, split: int, edit: Callable[[str], str], fault: type[Fault]) -> None:
    """Right without the mistake, reported with it."""

    def choose(job: Job) -> Form:
        return next(f for f in forms(job) if _is(f, unit, split))

    with virtual_gpu():
        check(line, choose)
    with virtual_gpu(edit=edit), pytest.raises(fault):
        check(line, choose)
