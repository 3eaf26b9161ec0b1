"""``explain --kernel``: the kernels that it lists are those that calls compile, and their texts what is compiled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest

import polyconv as package
from polyconv.target import levels

SOURCE = Path(__file__).parents[2] / "src"
PROBLEM = "conv f32 NHWC n1 c64 i20x20 m64 k1x1 b1 act=Relu"

COMPUTED = """
import json, sys
import numpy as np
import polyconv
from polyconv.conformance.operands import operands
from polyconv.kernels import objects
from polyconv.kernels.compile import object_code
listed, wrong = set(), []
plans = [polyconv.plan(text) for text in json.load(sys.stdin)]
for plan in plans:
    listed |= {kernel.label for kernel in plan.kernels()}
levels = tuple(f"{plan.target} " for plan in plans)
assert not any(label.startswith(levels) for label in objects.EVENTS.seconds), "only generated"
for plan in plans:
    made = operands(plan.problem, np.random.default_rng(0), "small")
    named = {name: getattr(made, name) for name in ("residual", "offset", "mask", "past")}
    plan(made.x, made.w, made.bias, **{k: v for k, v in named.items() if v is not None}, **made.quantities)
for kernel in (kernel for plan in plans for kernel in plan.kernels()):
    if not kernel.file.read_bytes().endswith(object_code(kernel.ir, kernel.target)):
        wrong.append(kernel.label)
compiled = {" ".join(label.split()) for label in objects.EVENTS.seconds if label.startswith(levels)}
print(json.dumps([sorted(listed), sorted(compiled), wrong]))
"""


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_CHECK", "0")
    monkeypatch.delenv("POLYCONV_TARGET", raising=False)


@pytest.mark.parametrize(
    "problems",
    [
        ["conv f32 NCHW n1 c64 i28x28 m64 k3x3 p1 b1 act=Relu", PROBLEM],
        ["conv f32 NHWC n2 c16 i15x17 m24 k3x5 s2 p0:1x2 r1 act=LeakyRelu(0.1)"],
        ["conv f32 NCHW n2 c32 i28x28 m32 k3x3 p1 g32", "conv f32 NHWC n1 c32 i28x28 m32 k3x3 p1 g32"],
        ["conv u8*i8 NHWC n1 c16 i9x9 m8 k3x3 p1 b1 zx=t zw=t zy=t sx=t sw=c sy=t"],
        ["deform_conv f32 NCHW n1 c16 i12x12 m8 k3x3 p1 b1 og2 mask"],
        ["causal_conv f32 NCHW n1 c64 i40 m64 k2 p1:0", "conv_transpose f32 NCHW n1 c16 i9x9 m8 k3x3 s2 p1 op1 b1"],
    ],
)
def test_the_kernels_of_a_plan_are_those_that_its_call_compiles(problems: list[str], tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "POLYCONV_CACHE_DIR": str(tmp_path), "POLYCONV_WISDOM": "off"}
    done = subprocess.run([sys.executable, "-c", COMPUTED], input=json.dumps(problems), env=environment, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed, compiled, wrong = json.loads(done.stdout)
    assert listed == compiled != []
    assert wrong == [], "the file of the cache is not what the text compiles to"


def test_the_code_of_a_problem(polyconv: Callable[..., Any]) -> None:
    kernels = package.plan(PROBLEM).kernels()
    done = polyconv("explain", PROBLEM, "--kernel")
    assert done.code == 0
    for kernel in kernels:
        assert done.out.count(f"; kernel {kernel.label}\n") == 1
        assert done.out.count(f"# kernel {kernel.label}\n") == 1
        assert kernel.ir in done.out
    assert [kernel.role for kernel in kernels].count("driver") == 1
    assert (kernels[0].role, kernels[0].kinds) == ("driver", {"Driver": 1})
    table = polyconv("explain", PROBLEM, "--kernel", "--code", "list").out
    assert done.out.startswith(table) and "define" not in table
    assert all(kernel.label in " ".join(table.split()) for kernel in kernels)


def test_one_kernel_is_a_module_and_its_assembly_defines_its_functions(polyconv: Callable[..., Any]) -> None:
    words = ["explain", PROBLEM, "--kernel", "--match", "point channel", "--code"]
    (kernel,) = (k for k in package.plan(PROBLEM).kernels() if "point channel" in k.label)
    module = llvm.parse_assembly(polyconv(*words, "ir").out)
    module.verify()
    assert {f.name for f in module.functions if not f.is_declaration} == {name for name, _ in kernel.functions}
    assembly = polyconv(*words, "asm").out
    assert {name for name, _ in kernel.functions} <= set(re.findall(r"^_?(\w+):", assembly, re.M))
    assert "define" not in assembly


def test_the_code_as_data(polyconv: Callable[..., Any], bank: Path) -> None:
    words = ["explain", bank / "filter_bank.onnx", "--dim", "height=16", "--dim", "width=16", "--kernel", "--json"]
    found = polyconv(*words, "--code", "ir").json
    labels = [kernel["label"] for kernel in found["kernels"]]
    assert len(labels) == len(set(labels)), "kernels that plans share are told once"
    assert {kernel["label"] for row in found["plans"] for kernel in row["kernels"]} == set(labels)
    assert all(any(k["role"] == "driver" for k in row["kernels"]) for row in found["plans"])
    assert {key for kernel in found["kernels"] for key in kernel} == {"label", "functions", "file", "ir"}
    for kernel in found["kernels"]:
        assert all(f"@{function['name']}(" in kernel["ir"] for function in kernel["functions"])
    [one] = polyconv("explain", PROBLEM, "--kernel", "--json", "--match", "^\\w+ pointwise").json["kernels"]
    assert one["functions"][0]["kind"] == "Driver" and "ret" in one["assembly"]


@pytest.mark.parametrize("level", levels())
def test_the_target_in_force_decides(level: str, polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_TARGET", level)
    found = polyconv("explain", PROBLEM, "--kernel", "--json").json["kernels"]
    assert all(kernel["label"].startswith(f"{level} ") for kernel in found)
    code = "".join(kernel["assembly"] for kernel in found)
    if level in ("baseline", "avx2", "avx512"):
        assert ("%ymm" in code or "%zmm" in code) == (level != "baseline")
        assert ("%zmm" in code) == (level == "avx512")


def test_check_mode_has_its_own_kernels(polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {k.label: k.ir for k in package.plan(PROBLEM).kernels()}
    monkeypatch.setenv("POLYCONV_CHECK", "1")
    found = polyconv("explain", PROBLEM, "--kernel", "--code", "ir", "--json").json["kernels"]
    assert {kernel["label"].replace(" check ", " ", 1) for kernel in found} == set(plain)
    for kernel in found:
        assert " check " in kernel["label"] and kernel["file"] is None
        assert kernel["ir"].count("icmp") > plain[kernel["label"].replace(" check ", " ", 1)].count("icmp")


def test_nodes_are_chosen_by_name(polyconv: Callable[..., Any], bank: Path) -> None:
    words = ["explain", bank / "filter_bank.onnx", "--dim", "height=16", "--dim", "width=16"]
    rows = polyconv(*words, "--json", "--node", "sharp/Conv", "--node", "sobel/Clip").json["plans"]
    assert [row["nodes"] for row in rows] == [["sharp/Conv + sharp/Add + sharp/Clip"], ["sobel/Conv + sobel/Clip"]]
    assert "2 convolutions" in polyconv(*words, "--node", "sharp/Conv", "--node", "sobel/Clip").out
    missing = polyconv(*words, "--node", "sharp/Con")
    assert missing.code == 2 and "is called sharp/Con; did you mean sharp/Conv?" in missing.err
    assert "without --node lists their names" in polyconv(*words, "--node", "nothing of the kind").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node", "grey"], "the target is a problem"),
        (["--code", "ir"], "add --kernel"),
        (["--match", "direct"], "add --kernel"),
        (["--kernel", "--candidates"], "leave one out"),
        (["--kernel", "--match", "("], "no regular expression"),
        (["--kernel", "--match", "nothing of the kind"], "--code list"),
        (["--kernel", "--code", "machine"], "machine"),
    ],
)
def test_wrong_usage(words: list[str], said: str, polyconv: Callable[..., Any]) -> None:
    done = polyconv("explain", PROBLEM, *words)
    assert done.code == 2 and said in done.err


def test_an_empty_result_needs_no_kernel() -> None:
    assert package.plan("conv f32 NCHW n0 c4 i8x8 m4 k3x3").kernels() == ()
