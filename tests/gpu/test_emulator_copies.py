"""Asynchronous copies of the emulator: groups, mbarriers, bulk copies and boxes of tensors against NumPy's slices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from emulator import TensorMap, launch
from numpy.typing import NDArray
from snippets import kernel, run

Array = NDArray[Any]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies_fill_with_zeros(size: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, 256, (32, size), np.uint8), np.zeros((32, size), np.uint8)
    through = "cg" if size == 16 else "ca"
    vector = {4: "b32", 8: "v2.b32", 16: "v4.b32"}[size]
    names = "{" + ", ".join(f"%r{10 + i}" for i in range(size // 4)) + "}" if size > 4 else "%r10"
    body = f"""mul.wide.u32 %rd20, %r0, {size}; add.s64 %rd21, %rd1, %rd20; mov.u32 %r1, smem;
        mad.lo.s32 %r2, %r0, {size}, %r1;
        rem.u32 %r3, %r0, {size + 1}; cp.async.{through}.shared.global [%r2+0], [%rd21], {size}, %r3;
        cp.async.commit_group; cp.async.wait_group 0; ld.shared.{vector} {names}, [%r2];
        add.s64 %rd22, %rd2, %rd20; st.global.{vector} [%rd22], {names};"""
    run(body, x, y, shared=32 * size)
    want = x.copy()
    for thread in range(32):
        want[thread, thread % (size + 1) :] = 0
    np.testing.assert_array_equal(y, want)


def test_a_source_of_no_bytes_may_lie_anywhere() -> None:
    x, y = np.ones(4, np.uint32), np.ones(4, np.uint32)
    body = """add.s64 %rd21, %rd1, -4096; mov.u32 %r1, smem; mov.u32 %r3, 0;
        cp.async.cg.shared.global [%r1], [%rd21], 16, %r3;
        cp.async.wait_all; ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r1];
        st.global.v4.b32 [%rd2], {%r10, %r11, %r12, %r13};"""
    run(body, x, y, threads=1, shared=16)
    np.testing.assert_array_equal(y, 0)


def test_groups_land_in_order() -> None:
    x, y = np.arange(16, dtype=np.uint32), np.zeros(8, np.uint32)
    body = """mov.u32 %r1, smem;
        cp.async.cg.shared.global [%r1], [%rd1], 16; cp.async.commit_group;
        cp.async.cg.shared.global [%r1+16], [%rd3], 16; cp.async.commit_group;
        cp.async.wait_group 1; ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r1];
        st.global.v4.b32 [%rd2], {%r10, %r11, %r12, %r13};
        cp.async.wait_group 0; ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r1+16];
        st.global.v4.b32 [%rd2+16], {%r10, %r11, %r12, %r13};"""
    run(body, x, y, np.arange(100, 104, dtype=np.uint32), threads=1, shared=32)
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 100, 101, 102, 103])


INIT = """mov.u32 %r1, smem; add.s32 %r2, %r1, {bar}; setp.eq.u32 %p1, %r0, 0;
    @!%p1 bra ready; mbarrier.init.shared::cta.b64 [%r2], {count}; fence.mbarrier_init.release.cluster;
    ready: bar.sync 0;"""

WAIT = """{{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [{0}], {1}; @p bra done; bra again;
    done: }}"""


def test_a_bulk_copy_lands_at_its_barrier() -> None:
    x, y = np.arange(64, dtype=np.uint32), np.zeros(32, np.uint32)
    body = INIT.format(bar=512, count=1) + """
        @!%p1 bra wait; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+256], [%rd1], 128, [%r2];
    wait: """ + WAIT.format("%r2", 0) + """ mad.lo.s32 %r3, %r0, 4, %r1; ld.shared.b32 %r4, [%r3+256];
        mul.wide.u32 %rd20, %r0, 4; add.s64 %rd21, %rd2, %rd20; st.global.b32 [%rd21], %r4;"""  # fmt: skip
    run(body, x, y, shared=520)
    np.testing.assert_array_equal(y, x[:32])


def test_phases_of_a_barrier_hand_a_buffer_to_and_fro() -> None:
    """One warp fills a buffer again and again, the other empties it: what a pipeline of one slot does."""
    x, y = np.arange(10 * 32, dtype=np.uint32), np.zeros((10, 32), np.uint32)
    body = """mov.u32 %r1, smem; add.s32 %r2, %r1, 128; add.s32 %r3, %r1, 136; setp.ne.u32 %p1, %r0, 0; @%p1 bra ready;
        mbarrier.init.shared::cta.b64 [%r2], 1; mbarrier.init.shared::cta.b64 [%r3], 32;
        fence.mbarrier_init.release.cluster;
    ready:
        bar.sync 0; mov.u32 %r4, 0; mov.u32 %r5, 0; setp.lt.u32 %p2, %r0, 32; @%p2 bra empty;
        setp.ne.u32 %p3, %r0, 32; @%p3 bra end;
    fill:
        xor.b32 %r6, %r5, 1; """ + WAIT.format("%r3", "%r6") + """
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128; mul.wide.u32 %rd20, %r4, 128;
        add.s64 %rd21, %rd1, %rd20;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd21], 128, [%r2];
        xor.b32 %r5, %r5, 1; add.s32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 10; @%p4 bra fill; bra.uni end;
    empty:
        """ + WAIT.format("%r2", "%r5") + """ mad.lo.s32 %r7, %r0, 4, %r1; ld.shared.b32 %r8, [%r7];
        mbarrier.arrive.shared::cta.b64 _, [%r3]; mad.lo.s32 %r9, %r4, 32, %r0; mul.wide.u32 %rd20, %r9, 4;
        add.s64 %rd21, %rd2, %rd20; st.global.b32 [%rd21], %r8;
        xor.b32 %r5, %r5, 1; add.s32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 10; @%p4 bra empty;
    end:"""  # fmt: skip
    run(body, x, y, threads=64, shared=144)
    np.testing.assert_array_equal(y.reshape(-1), x)


def box(array: Array, start: tuple[int, ...], extents: tuple[int, ...]) -> Array:
    """Part of an array, zeros outside it; axes outermost first."""
    out = np.zeros(extents, array.dtype)
    for index in itertools.product(*map(range, extents)):
        at = tuple(s + i for s, i in zip(start, index, strict=True))
        if all(0 <= a < n for a, n in zip(at, array.shape, strict=True)):
            out[index] = array[at]
    return out


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_boxes_of_tensors(rank: int, swizzle: int) -> None:
    shape, extents = (2, 3, 5, 4, 32)[-rank:], (2, 2, 3, 2, max(swizzle, 16) // 4)[-rank:]
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    start = (0, 1, -1, 3, -3 if rank > 1 else 20)[-rank:]
    map_ = TensorMap(x, shape[::-1], x.strides[-2::-1] if rank > 1 else (), extents[::-1], swizzle)
    size = map_.bytes
    y = np.zeros(size, np.uint8)
    coordinates = ", ".join(str(s) for s in start[::-1])
    body = INIT.format(bar=4096, count=1) + f"""
        @!%p1 bra wait; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {size};
        cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1+1024], [%rd1,
        {{{coordinates}}}],
        [%r2];
    wait: """ + WAIT.format("%r2", 0) + f""" setp.lt.u32 %p2, %r0, {size // 16}; @!%p2 ret;
        mad.lo.s32 %r3, %r0, 16, %r1;
        ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r3+1024]; mul.wide.u32 %rd20, %r0, 16;
        add.s64 %rd21, %rd2, %rd20;
        st.global.v4.b32 [%rd21], {{%r10, %r11, %r12, %r13}};"""  # fmt: skip
    launch(kernel(body, 2), "k", grid=1, threads=256, arguments=[map_, y], shared=4104)
    want = box(x, start, extents).reshape(-1).view(np.uint8).reshape(-1, 16)
    pieces = y.reshape(-1, 16)
    for i, piece in enumerate(want):
        address = 16 * i  # from a multiple of 1024
        place = address ^ ((address >> 7 & swizzle // 16 - 1) << 4 if swizzle else 0)
        np.testing.assert_array_equal(pieces[place // 16], piece)


def test_a_map_may_be_a_parameter_itself() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(8, np.float32)
    text = f"""
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 y)
{{
    .reg .pred %p<5>; .reg .b32 %r<20>; .reg .b64 %rd<30>;
    ld.param.b64 %rd2, [y]; mov.b64 %rd3, map; cvta.param.u64 %rd1, %rd3; mov.u32 %r0, %tid.x;
    {INIT.format(bar=64, count=1)}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 32;
    cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {{16}}], [%r2];
    {WAIT.format("%r2", 0)}
    ld.shared.v4.f32 {{%r10, %r11, %r12, %r13}}, [%r1+16]; st.global.v4.f32 [%rd2], {{%r10, %r11, %r12, %r13}};
    ret;
}}
"""
    launch(text, "k", grid=1, threads=1, arguments=[TensorMap(x, (64,), (), (8,)), y], shared=72)
    np.testing.assert_array_equal(y[:4], x[20:24])


def test_a_block_tells_a_barrier_of_its_neighbour() -> None:
    y = np.zeros((2, 32), np.uint32)
    body = INIT.format(bar=256, count=32) + """
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        mov.u32 %r3, %cluster_ctarank; xor.b32 %r4, %r3, 1; mad.lo.s32 %r5, %r0, 4, %r1;
        mapa.shared::cluster.u32 %r6, %r5, %r4;
        mapa.shared::cluster.u32 %r7, %r2, %r4; mad.lo.s32 %r8, %r3, 100, %r0; st.shared::cluster.b32 [%r6], %r8;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7]; """ + WAIT.format("%r2", 0) + """
        ld.shared.b32 %r9, [%r5]; mov.u32 %r10, %ctaid.x; mad.lo.s32 %r10, %r10, 32, %r0; mul.wide.u32 %rd20, %r10, 4;
        add.s64 %rd21, %rd1, %rd20; st.global.b32 [%rd21], %r9;"""  # fmt: skip
    run(body, y, grid=2, cluster=2, shared=264)
    np.testing.assert_array_equal(y, [100 + np.arange(32), np.arange(32)])
