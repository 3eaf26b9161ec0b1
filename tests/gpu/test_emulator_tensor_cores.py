"""Matrix instructions of the emulator against NumPy's products; fragments lie as the PTX manual draws them."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulator import launch
from numpy.typing import NDArray
from snippets import kernel, run

Array = NDArray[Any]

TYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32, "f64": np.float64,
    "s8": np.int8, "u8": np.uint8, "s32": np.int32,
}  # fmt: skip


def numbers(rng: np.random.Generator, shape: tuple[int, ...], type_: str) -> Array:
    """Random numbers of a type; of tf32, some that have digits beyond it."""
    dtype = np.dtype(TYPES[type_])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def wide(a: Array, type_: str) -> Array:
    """Numbers as the hardware multiplies them: of tf32 the first ten bits of fraction."""
    if type_ == "tf32":
        a = (np.ascontiguousarray(a).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return a.astype(np.int64 if a.dtype.kind in "iu" else np.float64)


def place_a(lane: int, register: int, j: int, per: int) -> tuple[int, int]:
    """Row and column of element j of a register of operand A: figures of mma.m16n8k16 and its like."""
    return lane // 4 + 8 * (register & 1), lane % 4 * per + j + 4 * per * (register >> 1)


def place_b(lane: int, register: int, j: int, per: int) -> tuple[int, int]:
    """Row and column of operand B."""
    return lane % 4 * per + j + 4 * per * register, lane // 4


def place_c(lane: int, register: int) -> tuple[int, int]:
    """Row and column of 32-bit accumulators."""
    return lane // 4 + 8 * (register >> 1), lane % 4 * 2 + (register & 1)


def spread(matrix: Array, registers: int, place: Any) -> Array:
    """A matrix as the words of a warp's registers: [lane, register]."""
    item = matrix.itemsize
    word = max(item, 4)
    per = word // item
    rows = np.zeros((32, registers, per), matrix.dtype)
    for lane, register, j in itertools.product(range(32), range(registers), range(per)):
        rows[lane, register, j] = matrix[place(lane, register, j, per)]
    return rows.view(f"u{word}")[..., 0]


MULTIPLY = [
    ("m16n8k16", "f32", "f16", "f16"), ("m16n8k8", "f32", "f16", "f16"), ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k16", "f32", "bf16", "bf16"), ("m16n8k8", "f32", "bf16", "bf16"),
    ("m16n8k8", "f32", "tf32", "tf32"), ("m16n8k4", "f32", "tf32", "tf32"), ("m8n8k4", "f64", "f64", "f64"),
    ("m16n8k32", "s32", "s8", "s8"), ("m16n8k16", "s32", "s8", "s8"), ("m16n8k32", "s32", "u8", "u8"),
    ("m16n8k32", "s32", "u8", "s8"), ("m16n8k32", "s32", "s8", "u8"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "d", "a", "b"), MULTIPLY)
def test_products_of_a_warp(shape: str, d: str, a: str, b: str) -> None:
    rng = np.random.default_rng(3)
    m, k = (int(v) for v in shape[1:].replace("n8k", " ").split())
    left, right, more = numbers(rng, (m, k), a), numbers(rng, (k, 8), b), numbers(rng, (m, 8), d)
    bits = 64 if a == "f64" else 32
    counts = [8 * matrix.nbytes // (32 * bits) for matrix in (left, right, more)]

    def place(lane: int, register: int, j: int, per: int) -> tuple[int, int]:
        return place_c(lane, 2 * register + j if per == 2 else register)

    fragments = ((left, place_a), (right, place_b), (more, place))
    words = np.concatenate([spread(f, n, at) for (f, at), n in zip(fragments, counts, strict=True)], axis=1)
    names = [f"%{'rd' if bits == 64 else 'r'}{30 + i}" for i in range(sum(counts) + counts[2])]
    groups, at = [], 0
    for count in (*counts, counts[2]):
        groups.append("{" + ", ".join(names[at : at + count]) + "}")
        at += count
    body = f"mul.wide.u32 %rd20, %r0, {words.shape[1] * bits // 8}; add.s64 %rd21, %rd1, %rd20;"
    given, made = names[: sum(counts)], names[sum(counts) :]
    body += "".join(f"ld.global.b{bits} {name}, [%rd21+{i * bits // 8}];" for i, name in enumerate(given))
    body += f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d} {groups[3]}, {groups[0]}, {groups[1]}, {groups[2]};"
    body += f"mul.wide.u32 %rd20, %r0, {counts[2] * bits // 8}; add.s64 %rd21, %rd2, %rd20;"
    body += "".join(f"st.global.b{bits} [%rd21+{i * bits // 8}], {name};" for i, name in enumerate(made))
    y = np.zeros((32, counts[2]), f"u{bits // 8}")
    run(body, np.ascontiguousarray(words), y)
    with np.errstate(over="ignore"):
        want = (wide(left, a) @ wide(right, b) + wide(more, d)).astype(TYPES[d])
    np.testing.assert_array_equal(y, spread(want, counts[2], place))


def test_saturated_products_of_bytes() -> None:
    body = """mov.b32 %r1, 0x7f7f7f7f; mov.b32 %r2, 0x7fffffff; mov.b32 %r3, 0x80808080;
        mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%r10, %r11, %r12, %r13}, {%r1, %r3, %r1, %r3},
        {%r1, %r1},
        {%r2, %r2, %r2, %r2};
        mul.wide.u32 %rd20, %r0, 16; add.s64 %rd21, %rd1, %rd20; st.global.v4.b32 [%rd21], {%r10, %r11, %r12, %r13};"""
    y = np.zeros((32, 4), np.int32)
    run(body, y)
    np.testing.assert_array_equal(y[0], [2**31 - 1, 2**31 - 1, 2**31 - 1 - 32 * 127 * 128, 2**31 - 1 - 32 * 127 * 128])


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices_to_and_from_shared_memory(count: int, trans: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 2**16, (count, 8, 8), np.uint16)
    y, z = np.zeros((32, count, 2), np.uint16), np.zeros((count, 8, 8), np.uint16)
    names = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
    body = f"""mov.u32 %r1, smem; mad.lo.s32 %r2, %r0, 16, %r1; mul.wide.u32 %rd20, %r0, 16; add.s64 %rd21, %rd1, %rd20;
        setp.lt.u32 %p1, %r0, {8 * count};
        @%p1 ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd21];
        @%p1 st.shared.v4.b32 [%r2], {{%r20, %r21, %r22, %r23}}; bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {names}, [%r2+0];
        mul.wide.u32 %rd20, %r0, {4 * count}; add.s64 %rd22, %rd2, %rd20;"""
    body += "".join(f"st.global.b32 [%rd22+{4 * i}], %r{10 + i};" for i in range(count))
    body += f"""stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r2+512], {names}; bar.sync 0;
        @%p1 ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r2+512]; mul.wide.u32 %rd20, %r0, 16;
        add.s64 %rd23, %rd3, %rd20;
        @%p1 st.global.v4.b32 [%rd23], {{%r20, %r21, %r22, %r23}};"""
    run(body, x, y, z, shared=1024)
    for lane, i, j in itertools.product(range(32), range(count), range(2)):
        row, column = lane // 4, lane % 4 * 2 + j
        assert y[lane, i, j] == (x[i, column, row] if trans else x[i, row, column])
    np.testing.assert_array_equal(z, x)


# -- products of a warp group ------------------------------------------------------------------------


def staged(matrix: Array, span: int) -> Array:
    """Rows as a descriptor of this swizzle reads them; without one, core matrices of 8 by 16 bytes."""
    raw = np.ascontiguousarray(matrix).view(np.uint8)
    rows, width = raw.shape
    out = np.zeros(rows * max(span, width), np.uint8)
    for r, piece in itertools.product(range(rows), range(width // 16)):
        if span:
            at = r * span + 16 * (piece ^ (r * span >> 7 & span // 16 - 1))
        else:
            at = r // 8 * (8 * width) + piece * 128 + r % 8 * 16
        out[at : at + 16] = raw[r, 16 * piece : 16 * piece + 16]
    return out


def descriptor(name: str, address: str, span: int, width: int) -> str:
    """PTX that makes a descriptor in a 64-bit register."""
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[span]
    stride = 8 * (span or width)
    fixed = mode << 62 | (stride >> 4) << 32 | (128 >> 4) << 16
    return f"bfe.u32 %r390, {address}, 4, 14; cvt.u64.u32 {name}, %r390; or.b64 {name}, {name}, {fixed};"


COPY_IN = """
    mov.u32 %r1, smem; mov.u32 %r2, %r0;
copy:
    setp.ge.u32 %p1, %r2, {pieces}; @%p1 bra copied;
    mul.wide.u32 %rd20, %r2, 16; add.s64 %rd21, %rd1, %rd20; ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd21];
    mad.lo.s32 %r7, %r2, 16, %r1; st.shared.v4.b32 [%r7], {{%r3, %r4, %r5, %r6}}; add.s32 %r2, %r2, 128; bra.uni copy;
copied:
    {fence}
    bar.sync 0;
"""


def group_product(type_: str, n: int, span: int, *, a_in_registers: bool = False, fence: str = "fence.proxy.async;",
                  wait: str = "wgmma.wait_group.sync.aligned 0;", first: str = "wgmma.fence.sync.aligned;",
                  commit: str = "wgmma.commit_group.sync.aligned;", turn: int = 0) -> tuple[Array, Array]:  # fmt: skip
    """A product of 64 rows, n columns and two steps of K by the emulator, and the same by NumPy.

    ``turn`` is xor-ed with where columns lie: a wrong swizzle.
    """
    rng = np.random.default_rng(5)
    out = "s32" if type_ in ("s8", "u8") else "f32"
    k = 32 // np.dtype(TYPES[type_]).itemsize
    a, b = numbers(rng, (64, 2 * k), type_), numbers(rng, (n, 2 * k), type_)
    data = np.concatenate([staged(a, span), staged(b, span)])
    of_b = len(staged(a, span))
    registers = [f"%r{100 + i}" for i in range(n // 2)]
    body = COPY_IN.format(pieces=len(data) // 16, fence=fence)
    body += f"add.s32 %r8, %r1, {of_b}; xor.b32 %r8, %r8, {turn};"
    body += "".join(f"mov.b32 {name}, 0x7fc00000;" for name in registers)
    if a_in_registers:  # of both steps; lanes of a warp hold rows of it
        body += "shr.u32 %r9, %r0, 5; mul.wide.u32 %rd20, %r0, 32; add.s64 %rd21, %rd3, %rd20;"
        body += "".join(f"ld.global.b32 %r{80 + i}, [%rd21+{4 * i}];" for i in range(8))
    body += first
    for step in range(2):
        wide_step = 32 * step if span else 256 * step
        body += f"add.s32 %r11, %r1, {wide_step}; add.s32 %r12, %r8, {wide_step};"
        body += descriptor("%rd30", "%r11", span, 64) + descriptor("%rd31", "%r12", span, 64)
        left = "{" + ", ".join(f"%r{80 + 4 * step + i}" for i in range(4)) + "}" if a_in_registers else "%rd30"
        transposed = (", 0" if a_in_registers else ", 0, 0") if type_ in ("f16", "bf16") else ""
        flags = ", 1, 1" + transposed if out == "f32" else ""
        body += f"{{ .reg .pred p; setp.eq.u32 p, {step}, 1; "
        body += f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{out}.{type_}.{type_} "
        body += f"{{{', '.join(registers)}}}, {left}, %rd31, p{flags}; }}"
    body += commit + wait + f"mul.wide.u32 %rd20, %r0, {2 * n}; add.s64 %rd21, %rd2, %rd20;"
    body += "".join(f"st.global.b32 [%rd21+{4 * i}], {name};" for i, name in enumerate(registers))
    y = np.zeros((128, n // 2), TYPES[out])
    words = np.stack([
        np.concatenate([spread(a[16 * w : 16 * w + 16, k * s : k * s + k], 4, place_a) for s in range(2)], axis=1)
        for w in range(4)
    ])  # fmt: skip
    launch(kernel(body, 3), "k", grid=1, threads=128, arguments=[data, y, np.ascontiguousarray(words)],
           shared=len(data) + 64)  # fmt: skip
    want = (wide(a, type_) @ wide(b, type_).T).astype(TYPES[out])
    got = np.zeros_like(want)
    for thread, i in itertools.product(range(128), range(n // 2)):
        row, column = place_c(thread % 32, i % 4)
        got[16 * (thread // 32) + row, 8 * (i // 4) + column] = y[thread, i]
    return got, want


@pytest.mark.parametrize("type_", ["f16", "bf16", "tf32", "s8", "u8"])
@pytest.mark.parametrize("span", [128, 64, 0])
def test_products_of_a_warp_group(type_: str, span: int) -> None:
    got, want = group_product(type_, 24, span)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)  # two sums, each rounded


@pytest.mark.parametrize("type_", ["f16", "bf16", "tf32"])
def test_products_with_rows_in_registers(type_: str) -> None:
    got, want = group_product(type_, 8, 128, a_in_registers=True)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_the_widest_product() -> None:
    got, want = group_product("f16", 256, 128)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_a_swizzle_depends_on_the_address_not_on_the_tile() -> None:
    """A tile that begins three rows into a swizzled area: what shifted views of an image patch rely on."""
    rng = np.random.default_rng(6)
    area, b = numbers(rng, (80, 16), "f16"), numbers(rng, (8, 16), "f16")
    whole = np.zeros((80, 64), np.float16)
    whole[:, :16] = area
    columns = np.zeros((8, 64), np.float16)
    columns[:, :16] = b
    data = np.concatenate([staged(whole, 128), staged(columns, 128)])
    body = COPY_IN.format(pieces=len(data) // 16, fence="fence.proxy.async;")
    body += f"add.s32 %r11, %r1, {3 * 128}; add.s32 %r12, %r1, {80 * 128};"
    body += descriptor("%rd30", "%r11", 128, 0) + descriptor("%rd31", "%r12", 128, 0)
    body += "mov.b32 %r100, 0; mov.b32 %r101, 0; mov.b32 %r102, 0; mov.b32 %r103, 0; wgmma.fence.sync.aligned;"
    body += """setp.ne.u32 %p2, 1, 1;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r100, %r101, %r102, %r103}, %rd30, %rd31, %p2, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; mul.wide.u32 %rd20, %r0, 16;
        add.s64 %rd21, %rd2, %rd20; st.global.v4.b32 [%rd21], {%r100, %r101, %r102, %r103};"""
    y = np.zeros((128, 4), np.float32)
    run(body, data, y, threads=128, shared=len(data))
    want = wide(area[3:67], "f16") @ wide(b, "f16").T
    for thread, i in itertools.product(range(128), range(4)):
        row, column = place_c(thread % 32, i)
        assert y[thread, i] == np.float32(want[16 * (thread // 32) + row, column])
