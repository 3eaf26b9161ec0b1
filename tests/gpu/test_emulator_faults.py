"""Mistakes planted in kernels that are right without them: the emulator must report each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator import AsyncFault, Deadlock, Fault, MemoryFault, Race, launch
from snippets import kernel, run
from test_emulator_copies import INIT, WAIT
from test_emulator_tensor_cores import group_product


def planted(text: str, old: str, new: str, which: int = 0) -> str:
    """The text with one occurrence replaced; it must be there."""
    parts = text.split(old)
    assert len(parts) > which + 1, old
    return old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :])


# -- barriers of blocks and clusters -----------------------------------------------------------------

TURNED = """
    mov.u32 %r1, smem; mad.lo.s32 %r2, %r0, 4, %r1; xor.b32 %r3, %r0, 33; mad.lo.s32 %r3, %r3, 4, %r1;
        mov.u32 %r5, 0; mov.u32 %r6, 0;
again:
    add.s32 %r7, %r0, %r5; st.shared.b32 [%r2], %r7; bar.sync 0; ld.shared.b32 %r8, [%r3]; add.s32 %r6, %r6, %r8;
    bar.sync 0; add.s32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 3; @%p1 bra again;
    mul.wide.u32 %rd20, %r0, 4; add.s64 %rd21, %rd1, %rd20; st.global.b32 [%rd21], %r6;
"""


def turned(body: str) -> None:
    y = np.zeros(64, np.uint32)
    run(body, y, threads=64, shared=256)
    np.testing.assert_array_equal(y, 3 * (np.arange(64) ^ 33) + 3)


def test_a_missing_barrier_is_a_race() -> None:
    turned(TURNED)
    with pytest.raises(Race, match=r"reads byte 132 .* which thread 33 wrote .*ld.shared.b32.*thread 0 of block"):
        turned(planted(TURNED, "bar.sync 0;", "", 0))
    with pytest.raises(Race, match=r"writes byte 0 .* which thread 33 reads .*st.shared.b32"):
        turned(planted(TURNED, "bar.sync 0;", "", 1))


def test_two_threads_that_write_one_word_race() -> None:
    with pytest.raises(Race, match="writes byte 0"):
        run("mov.u32 %r1, smem; st.shared.b32 [%r1], %r0;", shared=4)


def test_halves_of_a_word_are_two_places() -> None:
    run("mov.u32 %r1, smem; mad.lo.s32 %r2, %r0, 2, %r1; st.shared.b16 [%r2], %r0;", shared=64)


def test_a_barrier_that_some_threads_never_reach_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match=r"32 threads, first thread 32 .* wait at `bar.sync 0`"):
        run("setp.lt.u32 %p1, %r0, 32; @%p1 ret; bar.sync 0;", threads=64)
    with pytest.raises(Deadlock, match=r"29 threads, first thread 3 "):
        run("setp.lt.u32 %p1, %r0, 3; @%p1 ret; bar.sync 0;", threads=32)


def test_a_count_that_does_not_fit_the_barrier() -> None:
    with pytest.raises(Deadlock):
        run("setp.lt.u32 %p1, %r0, 32; @!%p1 bra end; bar.sync 1, 64; end:", threads=64)
    with pytest.raises(Fault, match="expect"):
        run("setp.lt.u32 %p1, %r0, 32; @%p1 bra one; bar.sync 1, 64; ret; one: bar.sync 1, 96;", threads=128)


def test_a_warp_instruction_that_some_lanes_skip_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match="rest of their warp"):
        run("setp.lt.u32 %p1, %r0, 5; @%p1 bra end; shfl.sync.idx.b32 %r1, %r0, 0, 31, -1; end:")


SUMMED = """
    mov.u32 %r1, smem; mad.lo.s32 %r2, %r0, 4, %r1; mov.u32 %r3, %cluster_ctarank; mad.lo.s32 %r4, %r3, 100, %r0;
    st.shared.b32 [%r2], %r4; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    xor.b32 %r5, %r3, 1; mapa.shared::cluster.u32 %r6, %r2, %r5; ld.shared::cluster.b32 %r7, [%r6];
    mad.lo.s32 %r8, %r3, 32, %r0; mul.wide.u32 %rd20, %r8, 4; add.s64 %rd21, %rd1, %rd20; st.global.b32 [%rd21], %r7;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
"""


def summed(body: str) -> None:
    y = np.zeros((2, 32), np.uint32)
    run(body, y, grid=2, cluster=2, shared=128)
    np.testing.assert_array_equal(y, [100 + np.arange(32), np.arange(32)])


def test_a_missing_cluster_barrier_is_a_race() -> None:
    summed(SUMMED)
    both = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    with pytest.raises(Race, match="of block 1 of the cluster wrote"):
        summed(planted(SUMMED, both, "bar.sync 0;", 0))
    with pytest.raises(Race, match="the block ends while thread 0 of block 1"):
        summed(planted(SUMMED, both, "", 1))
    with pytest.raises(Fault, match="without an arrive"):
        summed(planted(SUMMED, "barrier.cluster.arrive.release.aligned;", "", 0))


def test_a_block_outside_the_cluster() -> None:
    with pytest.raises(MemoryFault, match="cluster of 2"):
        summed(planted(SUMMED, "xor.b32 %r5, %r3, 1", "add.s32 %r5, %r3, 1"))


# -- copies in groups --------------------------------------------------------------------------------

PIPELINE = """
    mov.u32 %r1, smem; xor.b32 %r20, %r0, 33; mad.lo.s32 %r2, %r0, 16, %r1; mad.lo.s32 %r3, %r20, 16, %r1;
    mul.wide.u32 %rd20, %r0, 16; add.s64 %rd21, %rd1, %rd20; mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0;
    cp.async.cg.shared.global [%r2], [%rd21], 16; cp.async.commit_group;
    cp.async.cg.shared.global [%r2+1024], [%rd21+1024], 16; cp.async.commit_group;
again:
    cp.async.wait_group 1; bar.sync 0;
    setp.ge.u32 %p1, %r4, 4; @%p1 bra full; add.s32 %r7, %r6, 2048; rem.u32 %r7, %r7, 3072; add.s32 %r8, %r2, %r7;
    mad.lo.s32 %r9, %r4, 1024, 2048; cvt.u64.u32 %rd22, %r9; add.s64 %rd23, %rd21, %rd22;
    cp.async.cg.shared.global [%r8], [%rd23], 16;
full:
    cp.async.commit_group; add.s32 %r10, %r3, %r6; ld.shared.b32 %r11, [%r10]; add.s32 %r5, %r5, %r11;
    add.s32 %r6, %r6, 1024; rem.u32 %r6, %r6, 3072; add.s32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 6; @%p1 bra again;
    mul.wide.u32 %rd24, %r0, 4; add.s64 %rd25, %rd2, %rd24; st.global.b32 [%rd25], %r5;
"""


def pipeline(body: str) -> None:
    x, y = np.arange(6 * 64 * 4, dtype=np.uint32).reshape(6, 64, 4), np.zeros(64, np.uint32)
    run(body, x, y, threads=64, shared=3072)
    np.testing.assert_array_equal(y, x[:, np.arange(64) ^ 33, 0].sum(axis=0))


def test_a_pipeline_of_copies() -> None:
    pipeline(PIPELINE)
    with pytest.raises(Race, match=r"reads byte .* wrote .*ld.shared"):  # one copy too few waited for
        pipeline(planted(PIPELINE, "wait_group 1", "wait_group 2"))
    with pytest.raises(Race, match="reads"):  # landed, but not for the neighbour
        pipeline(planted(PIPELINE, "bar.sync 0;", ""))
    with pytest.raises(Race, match="reads"):  # copied into the stage that is read now
        pipeline(planted(PIPELINE, "add.s32 %r7, %r6, 2048;", "add.s32 %r7, %r6, 3072;"))
    with pytest.raises(Race, match="reads"):  # no commit, so the wait waits for nothing
        pipeline(planted(PIPELINE, "cp.async.commit_group;", "", 1))
    with pytest.raises(MemoryFault, match=r"of argument 0"):
        pipeline(planted(PIPELINE, "%r4, 1024, 2048", "%r4, 1024, 4096"))


def test_a_thread_waits_for_its_own_copies_only() -> None:
    body = """mov.u32 %r1, smem; setp.eq.u32 %p1, %r0, 0; @%p1 cp.async.cg.shared.global [%r1], [%rd1], 16;
        cp.async.commit_group; setp.eq.u32 %p2, %r0, 1; @%p2 cp.async.wait_group 0; bar.sync 0;
        ld.shared.b32 %r2, [%r1];"""
    with pytest.raises(Race):
        run(body, np.zeros(4, np.float32), shared=16)
    run(body.replace("@%p2", "@%p1"), np.zeros(4, np.float32), shared=16)


# -- mbarriers and bulk copies -----------------------------------------------------------------------

BULK = (
    INIT.format(bar=512, count=1)
    + """
    @!%p1 bra wait; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+256], [%rd1], 128, [%r2];
wait: """
    + WAIT.format("%r2", 0)
    + """ mad.lo.s32 %r3, %r0, 4, %r1; ld.shared.b32 %r4, [%r3+256];
    mul.wide.u32 %rd20, %r0, 4; add.s64 %rd21, %rd2, %rd20; st.global.b32 [%rd21], %r4;
"""
)


def bulk(body: str) -> None:
    x, y = np.arange(64, dtype=np.uint32), np.zeros(32, np.uint32)
    run(body, x, y, shared=520)
    np.testing.assert_array_equal(y, x[:32])


@pytest.mark.parametrize(("old", "new", "fault", "words"), [
    ("_, [%r2], 128", "_, [%r2], 112", Deadlock, "-16 bytes are missing"),
    ("_, [%r2], 128", "_, [%r2], 256", Deadlock, "128 bytes are missing"),
    ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;", "", Deadlock, "1 of 1 arrivals and -128 bytes"),
    ("[%r2], 0; @p", "[%r2], 1; @p", Race, "reads byte 256"),
    (WAIT.format("%r2", 0), "bar.sync 0;", Race, "reads byte 256"),
    ("[%r2], 1; fence", "[%r2], 2; fence", Deadlock, "1 of 2 arrivals"),
    ("fence.mbarrier_init.release.cluster;", "", AsyncFault, "without fence.mbarrier_init"),
    ("ready: bar.sync 0;", "ready:", Race, "byte 512"),
    ("[%rd1], 128,", "[%rd1+8], 128,", MemoryFault, "no multiple of 16"),
    ("[%rd1], 128,", "[%rd1+192], 128,", MemoryFault, "128 bytes at 192 of argument 0"),
    ("[%rd1], 128,", "[%rd1], 120,", Fault, "no multiple of 16"),
    ("[%r1+256], [%rd1]", "[%r1+448], [%rd1]", MemoryFault, "shared memory"),
    ("128, [%r2];\nwait", "128, [%r1];\nwait", Fault, "holds no mbarrier"),
    ("mbarrier.init.shared::cta.b64 [%r2], 1;", "", Fault, "holds no mbarrier"),
])  # fmt: skip
def test_mistakes_with_a_bulk_copy(old: str, new: str, fault: type[Fault], words: str) -> None:
    bulk(BULK)
    with pytest.raises(fault, match=words):
        bulk(planted(BULK, old, new))


def test_a_bulk_copy_that_nobody_waits_for() -> None:
    body = BULK[: BULK.index("wait: ")].replace("bra wait", "ret")
    with pytest.raises(AsyncFault, match="ends while a bulk copy is in flight"):
        run(body, np.zeros(64, np.uint32), shared=520)


def test_a_slot_freed_too_early_is_a_race() -> None:
    """Consumers tell the producer that a slot is free before they have read it."""
    body = """mov.u32 %r1, smem; add.s32 %r2, %r1, 128; add.s32 %r3, %r1, 136; setp.ne.u32 %p1, %r0, 0; @%p1 bra ready;
        mbarrier.init.shared::cta.b64 [%r2], 1; mbarrier.init.shared::cta.b64 [%r3], 32;
        fence.mbarrier_init.release.cluster;
    ready:
        bar.sync 0; setp.lt.u32 %p2, %r0, 32; @%p2 bra empty; setp.ne.u32 %p3, %r0, 32; @%p3 bra end;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 128, [%r2];
        """ + WAIT.format("%r3", 0) + """ mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 128, [%r2]; bra.uni end;
    empty:
        """ + WAIT.format("%r2", 0) + """ mad.lo.s32 %r7, %r0, 4, %r1; {one}{two}
        """ + WAIT.format("%r2", 1).replace("again", "third").replace("done", "fourth") + """
    end:"""  # fmt: skip
    load, free = "ld.shared.b32 %r8, [%r7];", "mbarrier.arrive.shared::cta.b64 _, [%r3];"
    x = np.zeros(32, np.uint32)
    run(body.replace("{one}", load).replace("{two}", free), x, threads=64, shared=144)
    with pytest.raises(Race):
        run(body.replace("{one}", free).replace("{two}", load), x, threads=64, shared=144)


def test_an_arrival_too_many() -> None:
    body = INIT.format(bar=0, count=1) + "mbarrier.arrive.shared::cta.b64 _, [%r2], 2;"
    with pytest.raises(Fault, match="one arrival more than the 1"):
        run(body, threads=32, shared=8)


# -- warp groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "fault", "words"), [
    ({"wait": ""}, AsyncFault, "accumulator of a wgmma that was not waited for"),
    ({"wait": "wgmma.wait_group.sync.aligned 1;"}, AsyncFault, "accumulator of a wgmma that was not waited for"),
    ({"commit": ""}, AsyncFault, "accumulator of a wgmma that was not waited for"),
    ({"first": ""}, AsyncFault, "no wgmma.fence"),
    ({"fence": ""}, AsyncFault, "without fence.proxy.async between"),
    ({"wait": "st.shared.b32 [%r1], %r0; wgmma.wait_group.sync.aligned 0;"}, Race, "writes byte 0 .* reads"),
    ({"wait": "add.s32 %r100, %r100, 1; wgmma.wait_group.sync.aligned 0;"}, AsyncFault, "%r100 is an accumulator"),
])  # fmt: skip
def test_mistakes_with_a_warp_group(change: dict[str, Any], fault: type[Fault], words: str) -> None:
    with pytest.raises(fault, match=words):
        group_product("f16", 8, 128, **change)


def test_registers_changed_between_products_need_a_second_fence() -> None:
    again = """wgmma.wait_group.sync.aligned 0; mov.b32 %r100, 0; FENCE setp.eq.u32 %p3, 1, 1;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r100, %r101, %r102, %r103}, %rd30, %rd31, %p3, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""
    group_product("f16", 8, 128, wait=again.replace("FENCE", "wgmma.fence.sync.aligned;"))
    with pytest.raises(AsyncFault, match=r"%r100 was written and there was no wgmma.fence"):
        group_product("f16", 8, 128, wait=again.replace("FENCE", ""))


@pytest.mark.parametrize("span", [128, 64])
def test_a_wrong_swizzle_gives_wrong_numbers(span: int) -> None:
    got, want = group_product("f16", 8, span, turn=16)
    assert not np.allclose(got, want, atol=0.1)


def test_threads_that_disagree_about_a_descriptor() -> None:
    with pytest.raises(Fault, match="disagree"):
        turned_for_one = "setp.eq.u32 %p3, %r0, 5; @%p3 add.s32 %r8, %r8, 16;"
        group_product("f16", 8, 128, first=f"{turned_for_one} wgmma.fence.sync.aligned;")


# -- addresses ---------------------------------------------------------------------------------------

COPY = """mul.wide.u32 %rd20, %r0, 8; add.s64 %rd21, %rd1, %rd20; add.s64 %rd22, %rd2, %rd20;
    ld.global.v2.b32 {%r1, %r2}, [%rd21]; st.global.v2.b32 [%rd22], {%r1, %r2};"""


@pytest.mark.parametrize(("old", "new", "fault", "words"), [
    ("[%rd21]", "[%rd21+8]", MemoryFault, r"8 bytes at 256 of argument 0 \(k_param_0\), which has 256; .*thread 31"),
    ("[%rd22]", "[%rd22+-8]", MemoryFault, r"8 bytes at -8 of argument 1 .*thread 0 of block"),
    ("[%rd21]", "[%rd21+4]", MemoryFault, "no multiple of 8"),
    ("%rd21, %rd1", "%rd21, 64", MemoryFault, "8 bytes at"),
    ("%rd22, %rd2, %rd20", "%rd22, %rd2, 0", Race, "another thread writes too"),
    ("%rd22, %rd2, %rd20", "%rd22, %rd1, %rd20", MemoryFault, "may not be written"),
    ("cvt", "cvt", None, ""),
])  # fmt: skip
def test_wrong_addresses(old: str, new: str, fault: type[Fault] | None, words: str) -> None:
    x, y = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    x.flags.writeable = False
    if fault is None:
        run(COPY, x, y)
        np.testing.assert_array_equal(x, y)
        return
    with pytest.raises(fault, match=words):
        run(planted(COPY, old, new), x, y)


def test_a_result_of_another_thread_is_not_there_yet() -> None:
    y = np.zeros(64, np.uint32)
    body = """mul.wide.u32 %rd20, %r0, 4; add.s64 %rd21, %rd1, %rd20; st.global.b32 [%rd21], %r0; xor.b32 %r1, %r0, 1;
        mul.wide.u32 %rd20, %r1, 4; add.s64 %rd21, %rd1, %rd20; ld.global.b32 %r2, [%rd21];"""
    with pytest.raises(Race, match="which another thread of this launch wrote"):
        run(body, y)


@pytest.mark.parametrize(("body", "words"), [
    ("mov.u32 %r1, smem; ld.shared.b32 %r2, [%r1+64];", "4 bytes of shared memory at 64 of 64"),
    ("mov.u32 %r1, smem; ld.shared.b32 %r2, [%r1+-4];", "4 bytes of shared memory at -4 of 64"),
    ("mov.u32 %r1, smem; ld.shared.v2.b32 {%r2, %r3}, [%r1+4];", "no multiple of 8"),
    ("mov.u32 %r1, smem; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1+8];", "no multiple of 16"),
    ("mov.u32 %r1, smem; cp.async.ca.shared.global [%r1+2], [%rd1], 4;", "no multiple of 4"),
    ("mov.u32 %r1, smem; cp.async.ca.shared.global [%r1], [%rd1+2], 4;", "no multiple of 4"),
])  # fmt: skip
def test_wrong_shared_addresses(body: str, words: str) -> None:
    with pytest.raises(MemoryFault, match=words):
        run(body, np.zeros(4, np.float32), shared=64)


def test_a_fault_names_its_place() -> None:
    text = kernel(COPY, 2)
    arguments: list[Any] = [np.zeros(48, np.uint32), np.zeros(64, np.uint32)]
    place = r"in `ld.global.v2.b32 \{%r1, %r2\}, \[%rd21\]`; thread 24 of block \(0, 0, 0\)"
    with pytest.raises(MemoryFault, match=place):
        launch(text, "k", grid=(1, 1), threads=32, arguments=arguments)
