"""The emulator's threads, memory and launches: divergence, loads and stores, clusters, warps, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator import MemoryFault, TensorMap, launch, parse
from numpy.typing import NDArray
from snippets import kernel, run

Array = NDArray[Any]

PLACE = "mul.wide.u32 %rd20, %r0, 4; add.s64 %rd21, %rd1, %rd20;"
"""Address of this thread's word of the first argument."""


def test_threads_that_diverge_meet_again() -> None:
    y = np.zeros(64, np.int32)
    body = f"""{PLACE}
        mov.u32 %r1, 0; mov.u32 %r2, 0;
    again:
        setp.ge.u32 %p1, %r2, %r0; @%p1 bra done;
        and.b32 %r3, %r2, 1; setp.eq.u32 %p2, %r3, 0;
        @%p2 bra even;
        add.s32 %r1, %r1, 10; bra.uni next;
    even:
        add.s32 %r1, %r1, 1;
    next:
        add.s32 %r2, %r2, 1; bra.uni again;
    done:
        bar.sync 0;
        st.global.b32 [%rd21], %r1;"""
    run(body, y, threads=64)
    np.testing.assert_array_equal(y, [(n + 1) // 2 + 10 * (n // 2) for n in range(64)])


def test_names_inside_braces_are_their_own() -> None:
    y = np.zeros(32, np.int32)
    one = """{{ .reg .pred p; .reg .b32 t; setp.gt.u32 p, %r0, {0}; mov.u32 t, 0; @p bra skip; mov.u32 t, {1};
        skip: add.s32 %r1, %r1, t; }}"""
    run(f"{PLACE} mov.u32 %r1, 0; {one.format(10, 1)} {one.format(20, 100)} st.global.b32 [%rd21], %r1;", y)
    n = np.arange(32)
    np.testing.assert_array_equal(y, (n <= 10) + 100 * (n <= 20))


def test_a_guard_holds_one_instruction() -> None:
    y = np.full(32, 7, np.int32)
    run(f"{PLACE} setp.lt.u32 %p1, %r0, 5; @%p1 st.global.b32 [%rd21], %r0; @!%p1 exit; st.global.b32 [%rd21+0], 9;", y)
    np.testing.assert_array_equal(y, [9] * 5 + [7] * 27)


def test_special_registers() -> None:
    y = np.zeros((2, 3, 4, 6 * 8, 9), np.uint32)
    names = ["%tid.x", "%tid.y", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%ntid.x", "%nctaid.y", "%laneid",
             "%cluster_ctarank"]  # fmt: skip
    body = """mov.u32 %r1, %tid.y; mov.u32 %r2, %ntid.x; mad.lo.s32 %r1, %r1, %r2, %r0;
        mov.u32 %r3, %ctaid.z; mov.u32 %r4, %nctaid.y; mov.u32 %r5, %ctaid.y; mad.lo.s32 %r3, %r3, %r4, %r5;
        mov.u32 %r4, %nctaid.x; mov.u32 %r5, %ctaid.x; mad.lo.s32 %r3, %r3, %r4, %r5; mad.lo.s32 %r3, %r3, 48, %r1;
        mul.wide.u32 %rd20, %r3, 36; add.s64 %rd21, %rd1, %rd20;"""
    body += "".join(f"mov.u32 %r9, {n}; st.global.b32 [%rd21+{4 * i}], %r9;" for i, n in enumerate(names))
    launch(kernel(body, 1), "k", grid=(4, 3, 2), threads=(8, 6), arguments=[y], cluster=2)
    z, yy, x, t = np.meshgrid(*(np.arange(n) for n in y.shape[:-1]), indexing="ij")
    want = [t % 8, t // 8, x, yy, z, np.full_like(x, 8), np.full_like(x, 3), t % 32, x % 2]
    for i, values in enumerate(want):
        np.testing.assert_array_equal(y[..., i], values, names[i])


def test_parameters_of_every_kind() -> None:
    text = """.version 8.0
.target sm_90a
.address_size 64
.const .align 4 .b32 table[3] = {5, 6, -7};
.visible .entry k(.param .u64 .ptr .global .align 16 y, .param .f32 f, .param .s32 i, .param .u64 l, .param .b16 h)
.maxntid 32
{
    .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .b16 %h<2>;
    ld.param.b64 %rd1, [y]; ld.param.f32 %r1, [f]; ld.param.b32 %r2, [i]; ld.param.v2.b32 {%r3, %r4}, [l];
        ld.param.b16 %h1, [h];
    cvt.u32.u16 %r5, %h1; mov.u64 %rd2, table; ld.const.b32 %r6, [%rd2+8];
    st.global.v4.b32 [%rd1], {%r1, %r2, %r3, %r4}; st.global.v2.b32 [%rd1+16], {%r5, %r6};
    ret;
}
"""
    y = np.zeros(6, np.uint32)
    arguments = [y, 1.5, -3, (7 << 32) | 9, np.float16(2.0)]
    launch(text, "k", grid=1, threads=1, arguments=arguments)
    np.testing.assert_array_equal(y.view(np.int32), [np.float32(1.5).view(np.int32), -3, 9, 7, 0x4000, -7])


def test_widths_and_extensions_of_loads_and_stores() -> None:
    x = np.arange(256, dtype=np.uint8)
    y = np.zeros((32, 8), np.uint32)
    body = """mul.wide.u32 %rd20, %r0, 32; add.s64 %rd21, %rd2, %rd20; cvt.u64.u32 %rd22, %r0;
        add.s64 %rd23, %rd1, %rd22;
        ld.global.u8 %r1, [%rd23+192]; ld.global.s8 %r2, [%rd23+192]; ld.global.nc.b8 %rs1, [%rd23];
        cvt.u32.u16 %r3, %rs1;
        and.b64 %rd24, %rd20, 96; add.s64 %rd25, %rd1, %rd24;
        ld.global.nc.L1::no_allocate.v4.b32 {%r4, %r5, %r6, %r7}, [%rd25+16];
        ld.global.v2.b64 {%rd26, %rd27}, [%rd25]; cvt.u32.u64 %r8, %rd27;
        st.global.v4.b32 [%rd21], {%r1, %r2, %r3, %r4}; st.global.v2.b32 [%rd21+16], {%r7, %r8};
        st.global.b16 [%rd21+24], %r1; st.global.b8 [%rd21+28], %r2;"""
    run(body, x, y)
    t = np.arange(32)
    words = x.view(np.uint32)
    np.testing.assert_array_equal(y[:, 0], 192 + t)
    np.testing.assert_array_equal(y[:, 1].view(np.int32), 192 + t - 256)
    np.testing.assert_array_equal(y[:, 2], t)
    start = (32 * t & 96) // 4
    np.testing.assert_array_equal(y[:, 3], words[start + 4])
    np.testing.assert_array_equal(y[:, 4], words[start + 7])
    np.testing.assert_array_equal(y[:, 5], words[start + 2])
    np.testing.assert_array_equal(y[:, 6], 192 + t)
    np.testing.assert_array_equal(y[:, 7], 192 + t)


def test_shared_memory_is_each_blocks_own() -> None:
    x, y = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32), np.zeros((3, 64), np.float32)
    body = """mov.u32 %r1, %ctaid.x; mad.lo.s32 %r2, %r1, 64, %r0; mul.wide.u32 %rd20, %r2, 4;
        add.s64 %rd21, %rd1, %rd20;
        ld.global.b32 %r3, [%rd21]; mov.u32 %r4, smem; mad.lo.s32 %r5, %r0, 4, %r4; st.shared.b32 [%r5], %r3;
        bar.sync 0;
        xor.b32 %r6, %r0, 63; mad.lo.s32 %r7, %r6, 4, %r4; ld.shared.f32 %r8, [%r7]; add.s64 %rd22, %rd2, %rd20;
        st.global.b32 [%rd22], %r8;"""
    run(body, x, y, threads=64, grid=3, shared=256)
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_shared_memory_and_registers_start_as_nan() -> None:
    y = np.zeros((32, 4), np.uint32)
    run(f"{PLACE} mul.wide.u32 %rd20, %r0, 16; add.s64 %rd21, %rd1, %rd20; mov.u32 %r4, smem; ld.shared.b32 %r1, [%r4];"
        "add.rn.f16x2 %r5, %r1, %r1; st.global.v4.b32 [%rd21], {%r1, %r2, %r1, %r5};", y, shared=64)  # fmt: skip
    assert np.isnan(y[:, :3].view(np.float32)).all()
    assert np.isnan(y.view(np.float16)).all()


def test_shared_variables_of_the_kernel() -> None:
    y = np.zeros(32, np.uint32)
    head = ".maxntid 32"
    body = f""".shared .align 16 .b8 own[64]; .shared .b32 more;
        {PLACE} mov.u32 %r1, own; mov.u32 %r2, more; mov.u32 %r3, smem; setp.eq.u32 %p1, %r0, 0;
        @%p1 st.shared.b32 [more], 5; @%p1 st.shared.b32 [own+60], 6; @%p1 st.shared.b32 [smem], 7; bar.sync 0;
        ld.shared.b32 %r4, [%r2]; ld.shared.b32 %r5, [%r1+60]; ld.shared.b32 %r6, [%r3];
        mad.lo.s32 %r4, %r4, 10, %r5; mad.lo.s32 %r4, %r4, 10, %r6; st.global.b32 [%rd21], %r4;"""
    run(body, y, shared=64, head=head)
    np.testing.assert_array_equal(y, 567)


def test_blocks_of_a_cluster_read_each_others_shared_memory() -> None:
    y = np.zeros((8, 32), np.uint32)
    body = """mov.u32 %r1, %ctaid.x; mad.lo.s32 %r2, %r1, 1000, %r0; mov.u32 %r4, smem; mad.lo.s32 %r5, %r0, 4, %r4;
        st.shared.b32 [%r5], %r2; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        mov.u32 %r6, %cluster_ctarank; add.s32 %r6, %r6, 1; and.b32 %r6, %r6, 3; mapa.shared::cluster.u32 %r7, %r5, %r6;
        ld.shared::cluster.b32 %r8, [%r7]; mad.lo.s32 %r9, %r1, 32, %r0; mul.wide.u32 %rd20, %r9, 4;
        add.s64 %rd21, %rd1, %rd20; st.global.b32 [%rd21], %r8;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"""
    run(body, y, grid=8, cluster=4, shared=128)
    block = np.arange(8)
    neighbour = block // 4 * 4 + (block + 1) % 4
    np.testing.assert_array_equal(y, neighbour[:, None] * 1000 + np.arange(32))


def test_named_barriers_pass_work_from_one_warp_to_another() -> None:
    y = np.zeros(64, np.uint32)
    body = f"""{PLACE} mov.u32 %r4, smem; mad.lo.s32 %r5, %r0, 4, %r4; setp.ge.u32 %p1, %r0, 32; @%p1 bra second;
        st.shared.b32 [%r5], %r0; bar.arrive 3, 64; bra.uni end;
    second:
        bar.sync 3, 64; ld.shared.b32 %r6, [%r5+-128]; st.global.b32 [%rd21], %r6;
    end:
        bar.sync 0;"""
    run(body, y, threads=64, shared=256)
    np.testing.assert_array_equal(y[32:], np.arange(32))


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(mode: str) -> None:
    y, z = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    clamp = 0 if mode == "up" else 31
    run(f"{PLACE} add.s64 %rd22, %rd2, %rd20; add.s32 %r1, %r0, 100; shfl.sync.{mode}.b32 %r2|%p1, %r1, 3, {clamp}, -1;"
        "selp.b32 %r3, 1, 0, %p1; st.global.b32 [%rd21], %r2; st.global.b32 [%rd22], %r3;", y, z)  # fmt: skip
    lane = np.arange(32)
    of = {"up": lane - 3, "down": lane + 3, "bfly": lane ^ 3, "idx": 0 * lane + 3}[mode]
    inside = (of >= 0) & (of < 32)
    np.testing.assert_array_equal(y, 100 + np.where(inside, of, lane))
    np.testing.assert_array_equal(z, inside)


def test_shuffles_within_parts_of_a_warp() -> None:
    y = np.zeros(32, np.uint32)
    run(f"{PLACE} shfl.sync.idx.b32 %r2, %r0, 1, 0x181f, -1; st.global.b32 [%rd21], %r2;", y)
    np.testing.assert_array_equal(y, np.arange(32) // 8 * 8 + 1)


def test_votes_and_reductions() -> None:
    y = np.zeros((32, 8), np.uint32)
    body = """mul.wide.u32 %rd20, %r0, 32; add.s64 %rd21, %rd1, %rd20; setp.lt.u32 %p1, %r0, 7;
        vote.sync.ballot.b32 %r1, %p1, -1; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1;
        selp.b32 %r2, 1, 0, %p2; selp.b32 %r3, 1, 0, %p3; redux.sync.add.s32 %r4, %r0, -1;
        redux.sync.max.u32 %r5, %r0, -1;
        redux.sync.xor.b32 %r6, %r0, -1; elect.sync %r7|%p4, -1; selp.b32 %r8, 1, 0, %p4; activemask.b32 %r9;
        st.global.v4.b32 [%rd21], {%r1, %r2, %r3, %r4}; st.global.v4.b32 [%rd21+16], {%r5, %r6, %r8, %r9};"""
    run(body, y)
    np.testing.assert_array_equal(y[1], [127, 1, 0, 496, 31, 0, 0, 2**32 - 1])
    np.testing.assert_array_equal(y[:, 6], [1] + [0] * 31)


def test_more_threads_than_run_side_by_side() -> None:
    y = np.zeros(80 * 256, np.uint32)
    body = f"mov.u32 %r1, %ctaid.x; mad.lo.s32 %r0, %r1, 256, %r0; {PLACE} st.global.b32 [%rd21], %r0;"
    run(body, y, grid=80, threads=256)
    np.testing.assert_array_equal(y, np.arange(len(y)))


def test_a_block_that_is_no_multiple_of_a_warp() -> None:
    y = np.zeros(40, np.uint32)
    run(f"{PLACE} mov.u32 %r1, smem; mad.lo.s32 %r2, %r0, 4, %r1; st.shared.b32 [%r2], %r0; bar.sync 0;"
        "ld.shared.b32 %r3, [%r1+156]; st.global.b32 [%rd21], %r3;", y, threads=40, shared=160)  # fmt: skip
    np.testing.assert_array_equal(y, 39)


# -- what it refuses ---------------------------------------------------------------------------------


def test_what_a_launch_refuses() -> None:
    text = kernel("", 1, ".maxntid 64\n.reqnctapercluster 2, 1, 1")
    y = np.zeros(4, np.float32)
    for change, words in (
        ({"threads": 128}, "threads a block"), ({"arguments": []}, "parameters"), ({"grid": (4, 70000)}, "grid"),
        ({"cluster": 1}, "clusters of 1"), ({"grid": 3}, "clusters of 2"), ({"shared": 300000}, "shared"),
        ({"name": "j"}, "no kernel j"), ({"arguments": [y[::2]]}, "contiguous"),
    ):  # fmt: skip
        given: dict[str, Any] = {"name": "k", "grid": 2, "threads": 32, "arguments": [y], "cluster": 2} | change
        with pytest.raises(ValueError, match=words):
            launch(text, given.pop("name"), **given)
    with pytest.raises(TypeError, match="4 bytes"):
        launch(text, "k", grid=2, threads=32, arguments=[np.float32(1)], cluster=2)


def test_arrays_that_overlap_in_part_are_refused() -> None:
    y = np.zeros(64, np.float32)
    with pytest.raises(ValueError, match="overlaps"):
        launch(kernel("", 2), "k", grid=1, threads=32, arguments=[y[:40], y[20:]])


def test_one_array_given_twice_is_one_array() -> None:
    y = np.arange(32, dtype=np.uint32)
    run(f"{PLACE} add.s64 %rd22, %rd2, %rd20; ld.global.b32 %r1, [%rd21];"
        "add.s32 %r1, %r1, 1; st.global.b32 [%rd22], %r1;", y, y)  # fmt: skip
    np.testing.assert_array_equal(y, np.arange(1, 33))


def test_functions_besides_kernels_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="functions"):
        parse(".func f() { ret; }")


@pytest.mark.parametrize(("change", "words"), [
    ({"dims": (16, 4, 4, 1, 1, 1)}, "1 to 5 dimensions"), ({"strides": (60, 240)}, "multiples of 16"),
    ({"box": (16, 300, 1)}, "1 to 256"), ({"box": (3, 4, 1)}, "multiple of 16"), ({"swizzle": 48}, "swizzle"),
    ({"swizzle": 32}, "64 bytes, the swizzle 32"), ({"dims": (16, 4, 5)}, "an array of"),
    ({"dims": (0, 4, 4)}, "extents"), ({"element_strides": (1, 9, 1)}, "element strides"),
    ({"offset": 8}, "multiple of 16"), ({"offset": 16}, "an array of"),
])  # fmt: skip
def test_what_a_tensor_map_refuses(change: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"dims": (16, 4, 4), "strides": (64, 256), "box": (16, 2, 2), "swizzle": 64}
    TensorMap(np.zeros((4, 4, 16), np.float32), **good)
    with pytest.raises(ValueError, match=words):
        TensorMap(np.zeros((4, 4, 16), np.float32), **good | change)


def test_what_was_never_written_is_not_read() -> None:
    x, y = np.ones(32, np.float32), np.ones(32, np.float32)
    body = f"{PLACE} add.s64 %rd22, %rd2, %rd20; ld.global.b32 %r1, [%rd21]; st.global.b32 [%rd22], %r1;"
    launch(kernel(body, 2), "k", grid=1, threads=32, arguments=[x, y], unwritten=[1])
    with pytest.raises(MemoryFault, match=r"byte 0 of argument 0 .*never written"):
        launch(kernel(body, 2), "k", grid=1, threads=32, arguments=[x, y], unwritten=[0])
