"""Memory: a call takes what its plan states, a limit is kept, and new extents cost nothing that stays."""

from __future__ import annotations

import json
import os
import re
import sys

import numpy as np
import pytest
from fresh import run

import polyconv

SLACK = 1 << 20  # what the kernel's own count of resident pages may be off by, and Python's small objects
FREE = 64 << 10  # of every thread, not counted in a plan

MEASURE = """
import json

def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))

def growth(call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts anew from here
    before = status("VmRSS")
    call()
    return status("VmHWM") - before
"""

BIG = {
    "dense": "polyconv.Conv(weights(64, 64, 3, 3), pads=1, threads=T), (2, 64, 192, 192), 'f4'",
    "channels last": "polyconv.Conv(weights(64, 64, 3, 3), layout='NHWC', threads=T), (2, 192, 192, 64), 'f4'",
    "depthwise": "polyconv.Conv(weights(96, 1, 5, 5), pads=2, groups=96, threads=T), (2, 96, 160, 160), 'f4'",
    "transposed": "polyconv.ConvTranspose(weights(64, 32, 4, 4), strides=2, threads=T), (2, 64, 96, 96), 'f4'",
    "half": "polyconv.Conv(weights(64, 64, 3, 3, 'f2'), threads=T), (2, 64, 192, 192), 'f2'",
    "many channels": "polyconv.Conv(weights(64, 2048, 1, 1), threads=T), (1, 2048, 64, 64), 'f4'",
    "bytes": "polyconv.Conv(weights(32, 64, 3, 3, 'i1'), out_dtype='i4', threads=T), (2, 64, 192, 192), 'i1'",
    "many taps": "polyconv.Conv(weights(16, 16, 31, 31), pads=15, threads=T), (1, 16, 256, 256), 'f4'",
    "strided": "polyconv.Conv(weights(16, 16, 3, 3), strides=2, dilations=3, threads=T), (2, 16, 400, 400), 'f4'",
    "volume": "polyconv.Conv(weights(1, 1, 5, 5, 5), threads=T), (1, 1, 128, 128, 128), 'f4'",
    "limited": "polyconv.Conv(weights(64, 64, 3, 3), threads=T, workspace_limit=0), (2, 64, 192, 192), 'f4'",
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_grows_the_process_by_no_more_than_its_plan_states(threads: int) -> None:
    """The first call of a layer on large arrays, and the second; a smaller one before them loads the kernels.

    Forms of the weights that the first call makes count in the layer's ``packed_bytes``.
    """
    cases = ", ".join(f"{name!r}: lambda: ({made})" for name, made in BIG.items())
    found = json.loads(
        run(
            MEASURE
            + f"""
T = {threads}

def weights(*shape):
    kind = shape[-1] if isinstance(shape[-1], str) else "f4"
    return np.ones([e for e in shape if not isinstance(e, str)], kind)

report = {{}}
for name, make in {{{cases}}}.items():
    tries = []
    for _ in range(2):  # the kernel's own count jumps now and then: what a call takes, it takes both times
        layer, shape, kind = make()
        small = [e if e == max(1, layer.problem.c) and axis else min(e, 48) for axis, e in enumerate(shape)]
        layer(np.ones([1, *small[1:]], kind))
        plan = layer.plan(shape)
        x, out = np.ones(shape, kind), np.ones(plan.problem.y_shape, plan.problem.y_dtype.numpy)
        packed = layer.packed_bytes
        first = growth(lambda: layer(x, out=out))
        tries.append((first - (layer.packed_bytes - packed), growth(lambda: layer(x, out=out))))
    report[name] = [plan.workspace_bytes, plan.threads, x.nbytes, *map(min, zip(*tries))]
print(json.dumps(report))
"""
        )
    )
    assert found.keys() == BIG.keys()
    for name, (stated, used, input_bytes, first, second) in found.items():
        assert input_bytes > 3 * SLACK  # a copy of the input would be seen
        assert used == threads or name == "limited"
        assert first <= stated + used * FREE + SLACK, name
        assert second <= stated + used * FREE + SLACK, name


ORDINARY = [
    "conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1x1 b1",
    "conv f32 NHWC n2 c256 i14x14 m512 k3x3 p1x1",
    "conv f32 NCHW n1 c3 i224x224 m64 k7x7 s2x2 p3x3",
    "conv f32 NCHW n1 c2048 i7x7 m512 k1x1 b1",
    "conv f32 NHWC n1 c96 i56x56 m96 k7x7 p3x3 g96",
    "conv f16 NCHW n1 c128 i28x28 m128 k3x3 p1x1",
    "conv i8>i32 NCHW n1 c128 i28x28 m128 k3x3 p1x1",
    "conv f64 NCHW n1 c32 i16x16x16 m32 k3x3x3 p1x1x1",
    "conv f32 NCHW n1 c1 i16000 m64 k400 s160",
    "conv_transpose f32 NCHW n1 c64 i28x28 m32 k4x4 s2x2 p1x1",
    "conv_transpose bf16 NHWC n1 c48 i20x20 m24 k3x3 s3x3",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_no_workspace_is_enough_for_ordinary_problems(text: str) -> None:
    p = polyconv.Problem.parse(text)
    plan = polyconv.plan(p, workspace_limit=0)
    assert plan.workspace_bytes == 0
    assert polyconv.plan(p, workspace_limit=0, accuracy="strict").workspace_bytes == 0
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, [int(e or 0) for e in p.x_shape]).astype(p.x_dtype.numpy)
    w = rng.integers(-2, 3, p.w_shape).astype(p.w_dtype.numpy)
    b = rng.integers(-2, 3, p.m).astype(p.y_dtype.numpy) if p.bias else None
    from polyconv.layer import compute

    # sums of small whole numbers are exact in any order
    small = compute(p, x, w, b, workspace_limit=0, threads=2, accuracy="strict")
    np.testing.assert_array_equal(small, compute(p, x, w, b, accuracy="strict"))


def test_a_limit_that_cannot_be_kept_is_an_error_that_names_the_need() -> None:
    """One output at this padding needs a line of 20,000 taps in a panel; what the error names is enough."""
    x, w = np.ones((1, 1, 22_000), np.float32), np.ones((2, 1, 20_000), np.float32)
    with pytest.raises(polyconv.Unsupported, match=r"needs \d+ bytes of workspace, the limit is 0") as caught:
        polyconv.conv(x, w, pads=1, workspace_limit=0)
    needs = min(int(need) for need in re.findall(r"needs (\d+) bytes", str(caught.value)))
    y = polyconv.conv(x, w, pads=1, workspace_limit=needs)
    assert y.shape == (1, 2, 2_003)
    assert (y[..., 1:-1] == 20_000).all() and (y[..., [0, -1]] == 19_999).all()
    assert (polyconv.conv(x, w, workspace_limit=0) == 20_000).all()  # without padding it is read in place


def test_threads_share_a_limit() -> None:
    """The limit is judged for one thread; as many run as fit into it."""
    w, shape = np.ones((64, 64, 3, 3), np.float32), (4, 64, 112, 112)
    free = polyconv.Conv(w, threads=4).plan(shape)
    one = free.workspace_bytes // free.threads
    assert free.threads == 4
    for limit in (one, 2 * one, 3 * one + 1, 4 * one):
        plan = polyconv.Conv(w, threads=4, workspace_limit=limit).plan(shape)
        assert plan.workspace_bytes <= limit
        assert plan.threads == limit // one


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize(("make", "most"), [
    ("layer()", 6),  # kinds of rows of direct, and generic, which large maps of these channels take
    # maps of up to 6 columns: windows that slide along the other axis have tiles of up to 16 rows, compiled by fours,
    # but for those of the first call and of the first other extents, which are compiled alone
    ("polyconv.Conv(np.ones((32, 1, 3, 3), 'f4'), groups=32, strides=2, threads=2)", 5 + 4 + 2),
])  # fmt: skip
def test_a_thousand_sizes_compile_next_to_nothing(make: str, most: int) -> None:
    """Only the first call does, and those at which another algorithm or kind of row comes up for the first time."""
    compiling, growth = json.loads(
        run(
            MEASURE
            + f"""
from polyconv.kernels.objects import EVENTS

rng = np.random.default_rng(2)
one = {make}
compiling, before = 0, 0
for number, size in enumerate(rng.integers(3, 60, (1000, 2))):
    made = EVENTS.compiled + EVENTS.loaded
    one(np.zeros((1, 32, *size), 'f4'))
    compiling += EVENTS.compiled + EVENTS.loaded > made
    before = before or (number == 100 and status("VmRSS"))
print(json.dumps([compiling, status("VmRSS") - before]))
"""
        )
    )
    assert compiling <= most
    assert growth < 32 << 20


@pytest.mark.skipif(not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="of glibc")
def test_what_was_taken_for_a_while_goes_back_to_the_system() -> None:
    kept, given_back = json.loads(
        run(
            MEASURE
            + """
from contextlib import nullcontext
from polyconv.runtime.memory import collecting_later

def stays(block):
    before = status("VmRSS")
    with block:
        made = [np.ones(1 << 17) for _ in range(65)]  # 1 MiB each
        last = made[-1]
        del made
    return status("VmRSS") - before

np.ones(1 << 21)  # freed: from now on arrays of up to 16 MiB lie in the heap
print(json.dumps([stays(nullcontext()), stays(collecting_later())]))
"""
        )
    )
    assert kept > 60 << 20
    assert given_back < 8 << 20
