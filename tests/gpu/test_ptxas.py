"""NVIDIA's assembler takes the PTX of every kind of kernel: syntax, registers, spills.

It comes with the PyPI wheel ``nvidia-cuda-nvcc``; no GPU and no driver takes part.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_virtual_gpu import all_forms
from test_kernels import ARITHMETIC, DEPTHWISE
from test_operators import attention, ran, response, words
from test_sessions import PARTS, run_part
from virtual_gpu import virtual_gpu

from polyconv.gpu import code
from polyconv.gpu.code import Launchable
from polyconv.gpu.compile import ptx
from polyconv.gpu.device import presets
from polyconv.gpu.forms import Form
from polyconv.gpu.kernels.gemm import Gemm
from polyconv.gpu.kernels.joined import Joined
from polyconv.gpu.kernels.patch import Patch
from polyconv.operators.on_gpu import running


def _assembler() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = [Path(place) / "cu13" / "bin" / "ptxas" for place in places]
    return next((path for path in found if path.exists()), None)


PTXAS = _assembler()
pytestmark = pytest.mark.skipif(PTXAS is None, reason="the wheel nvidia-cuda-nvcc, which has ptxas, is not installed")

KINDS = [
    *((f"conv {types} NHWC n1 c64 i14x14 m256 k3x3 p1", accuracy) for types, accuracy in ARITHMETIC),
    ("conv f16 NCHW n2 c6 i9x8 m10 k3x2 s2x3 p1 b1 r1 act=Sigmoid", "fast"),
    *((f"conv {types} NHWC {DEPTHWISE[0]}", "fast") for types in ("f32", "f16", "i8")),
    ("conv f16 NCHW n1 c3 i32x32 m32 k7x7 s2 p3", "fast"),
    *((f"conv u8*i8 NCHW n1 {fields} b1 zx=t zw=c zy=t sx=t sw=c sy=t", "fast") for fields in (
        "c64 i14x14 m256 k3x3 p1", "c32 i14x14 m32 k3x3 p1 g32", "c3 i32x32 m32 k7x7 s2 p3",
    )),
    *((f"deform_conv {types} NCHW n1 c64 i14x14 m64 k3x3 p1 og1 mask b1", "fast") for types in ("f32", "f16", "f64")),
]  # fmt: skip


MOST_SPILLED = 128
"""Bytes of a thread: some words of addresses.  Sums that do not fit into registers spill hundreds."""


def assembled(text: str, architecture: str, folder: Path) -> dict[str, int]:
    """What ptxas says of a kernel: registers, and bytes of spills."""
    source = folder / "kernel.ptx"
    source.write_text(text)
    done = subprocess.run(
        [str(PTXAS), "-arch", architecture, "-v", "-o", str(folder / "kernel.cubin"), str(source)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr}\n{text[:2000]}"
    assert "wgmma" not in done.stderr, done.stderr  # "serialized": products that wait for each other
    numbers = {
        "registers": r"Used (\d+) registers",
        "stores": r"(\d+) bytes spill stores", "loads": r"(\d+) bytes spill loads",
    }  # fmt: skip
    return {name: int(re.findall(pattern, done.stderr)[0]) for name, pattern in numbers.items()}


def _some(found: list[Form]) -> list[Form]:
    """Of every unit the largest tile, which takes most registers, and the smallest; with a sum alone and shared."""
    kinds: dict[object, list[Form]] = {}
    for form in found:
        tile = getattr(form.steps[0].kernel, "tile", None)
        kinds.setdefault((form.algorithm, getattr(tile, "unit", None), getattr(tile, "split", 1) > 1), []).append(form)
    return [pick(forms, key=_registers) for forms in kinds.values() for pick in (max, min)]


def _registers(form: Form) -> int:
    """Sums of a block, or what else grows with the registers that a thread takes."""
    kernel = form.steps[0].kernel
    if isinstance(kernel, Gemm):
        return kernel.tile.rows * kernel.tile.columns
    return kernel.tile.height * kernel.tile.width * kernel.tile.columns if isinstance(kernel, Patch) else 0


@pytest.mark.parametrize("like", ["H100", "A100"])
@pytest.mark.parametrize(("line", "accuracy"), KINDS)
def test_kernels_assemble_and_fit_registers(
    line: str, accuracy: str, like: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    spilled = []
    for form in _some(all_forms(line, accuracy, like)):
        architecture = presets[like].architecture
        found = assembled(ptx(form.steps[0].kernel.kernel(), architecture), architecture, tmp_path)
        record_property(str(form), str(found))
        if found["stores"] + found["loads"] > MOST_SPILLED:
            spilled.append(f"{form}: {found}")
    assert not spilled, "\n".join(spilled)


@pytest.mark.parametrize("like", ["H100", "A100"])
def test_past_and_input_assemble(like: str, tmp_path: Path) -> None:
    for past in (None, (3, 1, 1)):
        text = ptx(Joined((1, 3, 9), 2, 0, past, (21, 7, 1), "f16").kernel(), presets[like].architecture)
        assembled(text, presets[like].architecture, tmp_path)


@pytest.mark.parametrize("like", ["H100", "A100"])
def test_copies_assemble(like: str, tmp_path: Path) -> None:
    """Kernels that bring input and weights into order."""
    for line in (
        "conv f16 NCHW n2 c6 i9x8 m10 k3x3", "conv f32 NHWC n1 c6 i9 m10 k3", "conv i64 NCHW n1 c3 i9x9 m4 k3x3",
        "conv u8 NCHW n1 c6 i9x9 m4 k3x3 p1 zx=t zw=c", "conv i8 NHWC n1 c6 i9x9 m4 k3x3 p1 b1 zx=t zw=t",
    ):  # fmt: skip
        form = all_forms(line, "fast", like)[0]
        architecture = presets[like].architecture
        made = [spec for step in form.steps for spec in (step.weights, step.compensation, step.padding)]
        for spec in (form.moved, *made):
            if spec is not None:
                assembled(ptx(spec.kernel(), architecture), architecture, tmp_path)


def test_kernels_of_operators_assemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the networks of ``test_sessions`` launch, for both architectures."""
    made: dict[str, Launchable] = {}
    find = code.function

    def noted(spec: Launchable, number: int) -> Any:
        made[spec.name] = spec
        return find(spec, number)

    monkeypatch.setattr(running, "function", noted)
    with virtual_gpu():
        for name in PARTS:
            run_part(name)
        ran(*attention("f16"))
        ran(*words(np.int32))
        ran(*response(np.float16, {"size": 5}))
    kinds = {name.partition(" ")[0] for name in made}
    assert kinds == {"pass", "windows", "reduce", "lines", "sample", "gather", "respond", "arrange", "gemm"}
    for spec in made.values():
        for like in ("H100", "A100"):
            architecture = presets[like].architecture
            if isinstance(spec, Gemm) and like == "A100":
                continue  # it was chosen for an H100
            found = assembled(ptx(spec.kernel(), architecture), architecture, tmp_path)
            assert found["stores"] + found["loads"] == 0, spec.name
