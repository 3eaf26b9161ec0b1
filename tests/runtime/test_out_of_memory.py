"""Where memory ends: an error that says for what it was, how much, and what the caller can do; all else goes on."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest
from fresh import run

import polyconv
from polyconv import OutOfMemory
from polyconv.runtime import arrays, control, threads

LIMITED = """
import resource

def limited(megabytes):
    # no more than so much beyond what the process has now
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

def unlimited():
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def said(call):
    try:
        call()
    except polyconv.OutOfMemory as error:
        assert isinstance(error, MemoryError) and isinstance(error, polyconv.Error)
        print(error)
    else:
        print("no error")

ones = np.ones((1, 1, 8, 8), "f4"), np.ones((1, 1, 1, 1), "f4")
polyconv.conv(*ones)  # whatever a first call loads
wide = np.broadcast_to(np.float32(1), (1, 1, 8192, 8192))  # 256 MiB that take none
"""

WHERE = {
    "the result": (
        "said(lambda: polyconv.conv(wide, ones[1]))",
        "the result of shape (1, 1, 8192, 8192), float32, takes 256 MiB, more than the system gives; compute parts of "
        "the batch or the image, or give an out= of your own, such as a numpy.memmap",
    ),
    "the result of a layer": (
        "layer = polyconv.Conv(ones[1]); layer(ones[0]); said(lambda: layer(wide))",
        "the result of shape (1, 1, 8192, 8192), float32, takes 256 MiB",
    ),
    "the result of an operator": (
        "said(lambda: polyconv.dialects.onnx.Conv()(wide, ones[1]))",
        "the result of shape (1, 1, 8192, 8192), float32, takes 256 MiB",
    ),
    "a layer's weights": (
        "said(lambda: polyconv.Conv(wide.reshape(8192, 8192, 1, 1)))",
        "a layer's copy of w of shape (8192, 8192, 1, 1), float32, takes 256 MiB, more than the system gives; "
        "call conv instead, which makes none",
    ),
    "packed weights": (
        "said(lambda: polyconv.conv(np.ones((1, 8192, 2, 2), 'f4'), wide.reshape(8192, 8192, 1, 1)))",
        "w of shape (8192, 8192, 1, 1), float32, takes 256 MiB and a packed form for ",
    ),
    "a byte-swapped input": (
        "said(lambda: polyconv.conv(np.broadcast_to(np.array(1, '>f4'), wide.shape), ones[1]))",
        "a copy of x, which is byte-swapped, of shape (1, 1, 8192, 8192), float32, takes 256 MiB, more than the system "
        "gives; give x in native byte order",
    ),
    "a byte-swapped input of an operator": (
        "said(lambda: polyconv.dialects.onnx.Conv()(np.broadcast_to(np.array(1, '>f4'), wide.shape), ones[1]))",
        "a copy of X, which is byte-swapped, of shape",
    ),
    "an array to measure with": (
        "said(lambda: polyconv.Conv(ones[1], pads=1, rigor='measure').plan(wide.shape))",
        "an array to measure with of shape",
    ),
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space, as Linux does")
@pytest.mark.parametrize("case", WHERE)
def test_the_error_names_what_it_was_for(case: str) -> None:
    code, expected = WHERE[case]
    out = run(f"{LIMITED}\nlimited(100)\n{code}\nunlimited()\nprint(polyconv.conv(*ones).sum())")
    error, again = out.splitlines()
    assert error.startswith(expected)
    assert "; " in error  # a way out
    assert again == "64.0"


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space, as Linux does")
def test_the_result_of_a_call_by_the_native_entry() -> None:
    out = run(
        LIMITED
        + """
one = polyconv.Conv(ones[1])
right = one(wide)
limited(100)
said(lambda: one(wide))
assert one(wide, out=right) is right
unlimited()
print(one(wide).shape)
"""
    )
    error, shape = out.splitlines()
    assert error.startswith("the result of shape (1, 1, 8192, 8192), float32, takes 256 MiB")
    assert shape == "(1, 1, 8192, 8192)"


def test_a_model_names_the_node() -> None:
    pytest.importorskip("onnx")
    models = str(Path(__file__).parents[1] / "models")
    out = run(
        LIMITED
        + f"""
sys.path.insert(0, {models!r})
from making import info, onnx_model, session
from onnx import helper
nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "first"), helper.make_node("Identity", ["x"], ["z"], "second")]
model = onnx_model(nodes, [info("x", [1, 1, "h", "w"])], ["y", "z"], {{"w": ones[1]}})
made = session(model)
made.run(["y"], {{"x": ones[0]}})
limited(100)
said(lambda: made.run(["y"], {{"x": wide}}))
"""
    )
    assert out.startswith("Conv node 'first': the result of shape (1, 1, 8192, 8192), float32, takes 256 MiB, more")


SPACIOUS = "conv f32 NCHW n1 c512 i56x56 m512 k3x3 p1x1"


@pytest.mark.parametrize("where", ["shared", "own"])
def test_the_workspace(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """One that all calls share grows, and one that is in use leaves a call with its own."""
    problem = polyconv.Problem.parse(SPACIOUS)
    plan = polyconv.plan(problem, threads=2)
    assert plan.workspace_bytes > 1 << 20
    with polyconv.settings(check=False):
        layer = polyconv.Conv(np.ones(problem.w_shape, np.float32), pads=1, threads=2)
    x = np.ones(problem.x_shape, np.float32)

    def full(size: int, kind: object) -> object:
        if size > 1 << 20:
            raise MemoryError
        return arrays.aligned(size, kind)

    monkeypatch.setattr(threads, "aligned", full)
    monkeypatch.setattr(threads, "unwritten", full)
    control.poke(272, ctypes.c_int64, 0)
    if where == "own":
        monkeypatch.setattr(threads, "grow_workspace", lambda size: None)
    said = r"the workspace of 2 thread\(s\) takes .*B, .*; lower threads, or set a workspace_limit"
    with pytest.raises(OutOfMemory, match=said):
        layer(x)
    assert layer(x[:, :, :3, :3]).shape == (1, 512, 3, 3)
    monkeypatch.undo()
    assert layer(x).shape == x.shape
    small = polyconv.Conv(np.ones(problem.w_shape, np.float32), pads=1, threads=2, workspace_limit=0)
    assert small(x).shape == x.shape


def test_pages_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large arrays are mapped; a system without huge pages has others, one without memory says so as usual."""
    if not hasattr(arrays.mmap, "MADV_HUGEPAGE"):
        pytest.skip("this system maps no huge pages")

    class Pages(arrays.mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(arrays.mmap, "mmap", Pages)
    assert not arrays.aligned(3 << 20, np.uint8).any()
    for count in (1 << 62, 1 << 70):
        with pytest.raises(MemoryError):
            arrays.aligned(count, np.uint8)


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space, as Linux does")
@pytest.mark.parametrize("verb", ["run", "compare"])
def test_the_command_line_names_the_array_in_its_own_type(verb: str) -> None:
    pytest.importorskip("typer")
    out = run(
        LIMITED
        + f"""
from polyconv.cli import main
import contextlib, io, polyconv.cli.application, polyconv.conformance.peers

limited(200)
err = io.StringIO()
with contextlib.redirect_stderr(err):
    code = main([{verb!r}, "conv f32 NCHW n1 c1 i8192x8192 m1 k1x1"])
print(code)
print(err.getvalue())
"""
    )
    assert out == (
        "1\npolyconv: x, drawn at random, of shape (1, 1, 8192, 8192), float32, takes 256 MiB, more than the system "
        "gives; choose smaller sizes\n\n"
    )
