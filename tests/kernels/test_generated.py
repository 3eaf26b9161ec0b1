"""The code that comes out: it calls nothing, it is what it was, its tiles keep their sums in registers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from elf import TARGETS, assembly, calls, object_code, undefined_symbols

from polyconv.conformance.kernel_texts import kernel_texts
from polyconv.dtypes import DTYPES
from polyconv.kernels import isa
from polyconv.kernels.convert import LLVM_NAMES, narrow, widen
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.fused import FusedTile, fused_channel_tile, fused_pixel_tile
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import Buffer, Module, Type
from polyconv.kernels.objects import module_for
from polyconv.kernels.point import channel_point_tile, listed_point_tile, pixel_point_tile, square_point_tile
from polyconv.kernels.signature import Signature
from polyconv.kernels.tile import channel_tile, pixel_tile
from polyconv.problem.problem import Problem
from polyconv.runtime import call
from polyconv.runtime.architecture import ARM, X86
from polyconv.runtime.runner_text import runner_text

HERE = Path(__file__).parent
EVERY = pytest.mark.parametrize("level", TARGETS)


@cache
def kernels(level: str) -> dict[str, str]:
    """The kernels of a target for the problems of problems.txt: texts by name."""
    problems = (HERE / "problems.txt").read_text().splitlines()
    found = kernel_texts((Problem.parse(line) for line in problems if not line.startswith("#")), TARGETS[level])
    return {name: kernel.text for name, kernel in found.items()}


@EVERY
def test_no_kernel_calls_anything(level: str) -> None:
    """No libm, no memcpy, no compiler runtime (`__truncsfbf2`, `__extendhfsf2`): not on any target.

    Among the kernels are moves in and out of every type, every family of tiles, and every driver.
    """
    names = " ".join(kernels(level))
    for dtype in DTYPES:
        assert f"Move(source='{dtype}'" in names
        assert f"target='{dtype}'" in names
    for along in ("cc", "pp", "pc", "cp", "any"):
        assert f"along='{along}'" in names
    for driver in ("direct", "generic", "deformable"):
        assert f" {driver}" in names
    assert len(kernels(level)) > 200
    assert calls(kernels(level), TARGETS[level]) == {}


# The kept fingerprints: they say that code changed, not that it is right

def digest(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the tool in a process whose sets and dictionaries hash strings in another way than the last one's."""
    path = os.pathsep.join(filter(None, (str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "random"}
    command = [sys.executable, HERE.parents[1] / "tools" / "digest.py", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_another_text_is_noticed(tmp_path: Path) -> None:
    """A kernel that changed, and one that is not among those kept, and no others; the message says how to keep them.

    Of a part of all kernels; `.ci/run` compares all.
    """
    lines = (HERE / "digest.txt").read_text().splitlines()
    (changed,) = (at for at, line in enumerate(lines) if line.endswith(" avx2 check direct"))
    (new,) = (at for at, line in enumerate(lines) if line.endswith(" avx512 check direct"))
    lines[changed] = "0" * 16 + lines[changed][16:]
    (tmp_path / "kept").write_text("\n".join(line for at, line in enumerate(lines) if at != new))
    done = digest("--part", "--kept", str(tmp_path / "kept"))
    assert done.returncode == 1
    found = [line for line in done.stdout.splitlines() if line.startswith(("has", "is"))]
    assert found == ["has another text: avx2 check direct", "is new: avx512 check direct"]
    assert "2 of" in done.stdout
    assert "--write" in done.stdout


# Tiles

MULTIPLY_ADD = {
    ("avx512", "f32"): r"vfmadd\d+ps", ("avx512", "f64"): r"vfmadd\d+pd", ("avx512", "i32"): r"vpmulld",
    ("avx512", "i64"): r"vpmullq", ("avx512", "bf16"): r"vdpbf16ps",
    ("avx2", "f32"): r"vfmadd\d+ps", ("avx2", "f64"): r"vfmadd\d+pd", ("avx2", "i32"): r"vpmulld",
    ("avx2", "i16"): r"vpmaddwd", ("avx2", "i16 sums"): r"vpmullw",
    ("baseline", "f32"): r"mulps", ("baseline", "f64"): r"mulpd",
    ("neon", "f32"): r"fmla\tv\d+\.4s", ("neon", "f64"): r"fmla\tv\d+\.2d", ("neon", "i32"): r"mla\tv\d+\.4s",
}  # fmt: skip
"""One vector instruction that forms a product (and, where there is one, adds it); other pairs need several."""

STACK = {
    "x86": re.compile(r"[xyz]mm\d+.*\((%rsp|%rbp)\)|\((%rsp|%rbp)[^)]*\).*[xyz]mm\d+"),
    "arm": re.compile(r"\b(str|stp|stur|ldr|ldp|ldur)\s+q\d+.*\[(sp|x29)"),
}


def tiles(level: str, arithmetic: str) -> list[tuple[str, int, int]]:
    """Orientation, rows and vectors of every tile of a target for an arithmetic."""
    name = isa._level(TARGETS[level], ARITHMETIC[arithmetic])
    channel = [("channel", rows, v) for v, most in isa._CHANNEL_TILES[name].items() for rows in range(1, most + 1)]
    pixel = [("pixel", rows, v) for rows, most in isa._PIXEL_TILES[name].items() for v in range(1, most + 1)]
    return channel + pixel


def code_of(level: str, arithmetic: str, orientation: str, rows: int, vectors: int) -> str:
    target, row = TARGETS[level], ARITHMETIC[arithmetic]
    k = module_for(target)
    make = {"channel": channel_tile, "pixel": pixel_tile}[orientation]
    make(k, "tile", row, lanes(target, row), rows, vectors)
    return assembly(k.text(target.triple), target)


def inner_loop(code: str) -> str:
    """The shortest block of code that ends in a jump back to its start."""
    lines = code.splitlines()
    labels = {line.split(":")[0]: at for at, line in enumerate(lines) if re.match(r"\.L\w+:", line)}
    loops = []
    for end, line in enumerate(lines):
        jump = re.match(r"\s+(?:j\w+|b\.\w+|b|cbn?z\s+\w+,|tbn?z\s+\w+, #\d+,)\s+(\.L\w+)$", line)
        if jump and labels[jump[1]] < end:
            loops.append(lines[labels[jump[1]] : end + 1])
    return "\n".join(min(loops, key=len))


@pytest.mark.parametrize(("level", "arithmetic"), MULTIPLY_ADD)
def test_tiles(level: str, arithmetic: str) -> None:
    """Each step has one multiply-add for each vector of sums; no sum leaves its register.

    Where several steps stand in a turn of a loop, there is another one for those that remain.

    Products of i32 and i64 take several instructions, and registers: x86-64 puts a vector or two of their largest tiles
    aside, and has them back before those products are there.
    """
    allowed = 4 if arithmetic in ("i32", "i64") and level != "neon" else 0
    pattern = re.compile(rf"\s{MULTIPLY_ADD[level, arithmetic]}\b")
    spills = STACK["arm" if level == "neon" else "x86"]
    steps = {"avx2": 3}.get(level, 1) if arithmetic in ("f32", "f64") else 1
    for orientation, rows, vectors in tiles(level, arithmetic):
        if arithmetic == "bf16" and orientation == "pixel":
            continue  # dot products of pairs are for channels
        code = code_of(level, arithmetic, orientation, rows, vectors)
        what = f"{orientation} tile of {rows} x {vectors}"
        loop = inner_loop(code)
        assert len(pattern.findall(loop)) == rows * vectors, what
        assert len(pattern.findall(code)) == steps * rows * vectors, what
        assert len([line for line in loop.splitlines() if spills.search(line)]) <= allowed, what
        if not allowed:
            assert not [line for line in code.splitlines() if spills.search(line)], what


def test_neon_multiplies_by_an_element() -> None:
    """A step of the largest tiles is products, loads and the loop's own six: no word is spread over a vector first."""
    for rows, vectors in ((14, 1), (12, 2), (8, 3), (6, 4)):
        loop = [line for line in inner_loop(code_of("neon", "f32", "channel", rows, vectors)).splitlines()[1:] if line]
        assert len(loop) <= rows * vectors + rows + vectors + 6
        assert len(re.findall(r"fmla\tv\d+\.4s, v\d+\.4s, v\d+\.s\[0\]", "\n".join(loop))) >= (rows - 1) * vectors


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_neon_tiles_with_their_way_out(dtype: str) -> None:
    """Rows of panels, pixels in place and runs: no sum leaves its register inside a loop."""
    target, spec = TARGETS["neon"], FusedTile(dtype, dtype, Epilogue(bias=True))
    made = {
        fused_channel_tile: isa.run_tiles(target, ARITHMETIC[dtype]).items(),
        channel_point_tile: isa._CHANNEL_TILES["neon"].items(),
        listed_point_tile: isa._CHANNEL_TILES["neon"].items(),
        fused_pixel_tile: [(most, rows) for rows, most in isa.pixel_tiles(target, ARITHMETIC[dtype]).items()],
        pixel_point_tile: [(most, rows) for rows, most in isa.pixel_tiles(target, ARITHMETIC[dtype]).items()],
        square_point_tile: [(1, isa.square_tile(target))],
    }
    for make, sizes in made.items():
        for vectors, rows in sizes:
            k = Module(fma=True, wide=128)
            make(k, "tile", spec, lanes(target, ARITHMETIC[dtype]), rows, vectors, f16c=True)
            loop = inner_loop(assembly(k.text(target.triple), target))
            assert "fmla" in loop
            assert not [line for line in loop.splitlines() if STACK["arm"].search(line)], (make.__name__, rows, vectors)


I8MM = replace(TARGETS["neon"], cpu="neoverse-v1", features="+neon,+dotprod,+i8mm", vnni=True)


def test_neon_multiplies_bytes_where_it_has_the_instruction() -> None:
    """u8 by i8, four products a lane, of which no sum leaves its register."""
    spec = FusedTile("u8s8", "i32", Epilogue())
    for vectors, rows in isa.run_tiles(I8MM, ARITHMETIC["u8s8"]).items():
        k = Module(fma=True, wide=128)
        fused_channel_tile(k, "tile", spec, lanes(I8MM, ARITHMETIC["u8s8"]), rows, vectors, f16c=True)
        loop = inner_loop(assembly(k.text(I8MM.triple), I8MM))
        assert len(re.findall(r"usdot\tv\d+\.4s, v\d+\.16b, v\d+\.", loop)) == rows * vectors
        assert not [line for line in loop.splitlines() if STACK["arm"].search(line)], (rows, vectors)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_neon_computes_8_bit_problems_by_it(layout: str) -> None:
    """Every kernel of their plans compiles for the CPU and calls nothing; products are usdot's."""
    scaled = f"{layout} n1 c40 i9x10 m37 b1 zx=t zw=0 zy=t sx=t sw=c sy=t"
    lines = (f"conv u8*i8 {scaled} k3x3 p1", f"conv i8 {scaled.replace('m37', 'm40')} k3x3 p1 g10",
             f"conv u8*i8>i32 {layout} n1 c64 i9x9 m40 k1x1", f"conv u8*i8 {scaled.replace('m37', 'm40')} k3x3 p1 g40")
    for line in lines:
        found = kernel_texts([Problem.parse(line)], I8MM)
        dots = {"dots", "dots_depthwise", "dots_grouped"}
        products = [kernel.text for kernel in found.values() if dots & kernel.algorithms]
        assert any("usdot" in text for text in products), line
        assert not any("vpdpbusd" in kernel.text for kernel in found.values()), line
        assert not [symbols for text in products if (symbols := undefined_symbols(object_code(text, I8MM)))], line


class Doubled(Signature):
    x: Buffer
    y: Buffer


def test_neon_converts_halves_itself() -> None:
    """Four at a time, in one instruction; bf16 in whole numbers, for few CPUs have more."""
    kind, to = Type("float", 4), TARGETS["neon"]
    for dtype, instructions in (("f16", {"fcvtl", "fcvtn"}), ("bf16", set())):
        k = Module(fma=True, wide=128)
        with k.function("doubled", Doubled) as given:
            value = widen(k, k.load(kind.of(LLVM_NAMES[dtype]), given.x), DTYPES[dtype], "float", f16c=to.converts_f16)
            k.store(narrow(k, value + value, DTYPES[dtype], f16c=to.converts_f16), given.y)
        code = assembly(k.text(to.triple), to)
        assert set(re.findall(r"\b(b?fcvt\w*)", code)) == instructions
        assert not undefined_symbols(object_code(k.text(to.triple), to))


def test_a_spill_is_seen() -> None:
    """Twice as many sums as there are registers: the tests above would notice."""
    target, row = TARGETS["avx2"], ARITHMETIC["f32"]
    k = Module(fma=True, wide=256)
    channel_tile(k, "tile", row, 8, 16, 2)
    code = assembly(k.text(target.triple), target)
    assert any(STACK["x86"].search(line) for line in code.splitlines())
    assert any(STACK["x86"].search(line) for line in inner_loop(code).splitlines())
    assert STACK["arm"].search("\tstr\tq8, [sp, #16]")
    assert STACK["arm"].search("\tldp\tq1, q2, [sp]")


# The runner and the call entry, which are written as LLVM text

SYSTEM = {"syscall", "sched_yield", "sched_getcpu", "sched_setaffinity"}


@EVERY
def test_the_runner_calls_the_system_only(level: str) -> None:
    """Four functions of the C library, bound when it is loaded, on every processor."""
    body = runner_text(ARM if level == "neon" else X86)
    obj = object_code(f'target triple = "{TARGETS[level].triple}"\n{body}', TARGETS[level])
    assert set(undefined_symbols(obj)) <= SYSTEM


@EVERY
def test_the_call_entry_calls_python_and_the_runner_only(level: str) -> None:
    obj = object_code(f'target triple = "{TARGETS[level].triple}"\n{call.entry_text()}', TARGETS[level])
    assert set(undefined_symbols(obj)) == {*call._API, "serial", "shared", "acquire", "release"}
