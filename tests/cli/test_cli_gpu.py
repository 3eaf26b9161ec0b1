"""What the commands say of GPUs: plans for GPUs that are not here, and why nothing runs where there is none."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyconv.gpu import driver

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from virtual_gpu import virtual_gpu

PROBLEM = "conv f16 NHWC n1 c64 i20x20 m64 k3x3 p1 b1"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver, whatever this one has."""
    monkeypatch.setattr(driver, "_loaded", lambda: "no NVIDIA driver is installed: for this test")


def test_a_plan_for_a_gpu_that_is_not_here(polyconv: Callable[..., Any]) -> None:
    done = polyconv("explain", PROBLEM, "--device", "cuda:H100")
    assert done.code == 0
    assert re.search(r"^algorithm +\w+ for cuda NVIDIA H100 80GB HBM3 sm_90$", done.out, re.MULTILINE)
    assert "more forms are predicted slower" in done.err
    document = polyconv("explain", PROBLEM, "--device", "cuda:A100", "--json").json
    assert document["kernels"][-1].startswith("gemm warp")  # products of warp groups came after it


def test_the_code_of_a_gpu(polyconv: Callable[..., Any]) -> None:
    done = polyconv("explain", PROBLEM, "--device", "cuda:H100", "--kernel", "--code", "asm")
    assert done.code == 0
    assert done.out.count(".visible .entry convolution(") == 1
    assert ".target sm_90a" in done.out
    text = polyconv("explain", PROBLEM, "--device", "cuda:H100", "--kernel", "--code", "ir").out
    assert 'target triple = "nvptx64-nvidia-cuda"' in text


@pytest.mark.parametrize("words", [("explain", PROBLEM), ("check",), ("bench", PROBLEM)])
def test_a_device_that_no_one_knows(polyconv: Callable[..., Any], words: tuple[str, ...]) -> None:
    done = polyconv(*words, "--device", "rocm")
    assert done.code == 2
    assert "--device rocm is not known; give cuda" in " ".join(done.err.split())


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_reason_is_said(polyconv: Callable[..., Any]) -> None:
    done = polyconv("check", "--device", "cuda")
    assert done.code != 0
    assert "no NVIDIA driver is installed: for this test" in done.err
    assert polyconv("info", "--json").json["gpus"] == {"none": "no NVIDIA driver is installed: for this test"}


def test_random_problems_on_the_emulator(polyconv: Callable[..., Any]) -> None:
    with virtual_gpu():
        document = polyconv("check", "--device", "cuda", "--fuzz", 3, "--seed", 1, "--json").json
        assert document["fuzz"]["findings"] == []
        assert document["fuzz"]["tried"] == 3
        assert "none" not in polyconv("info", "--json").json["gpus"]


def test_options_that_have_no_effect(polyconv: Callable[..., Any]) -> None:
    done = polyconv("check", "--device", "cuda", "--conformance")
    assert done.code == 2
    assert "--device goes with --fuzz N and --seed alone" in " ".join(done.err.split())
    assert polyconv("bench", PROBLEM, "--device", "cuda", "--kinds", "f8").code == 2
