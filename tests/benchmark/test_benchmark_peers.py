"""ncnn, MNN and LiteRT on small problems of every kind that they have: right in f32, or a reason why not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyconv.benchmark.engines import ENGINES, GUESTS, chosen, environment
from polyconv.benchmark.engines.ready import Task
from polyconv.benchmark.judge import computes_truly
from polyconv.benchmark.process import GuestError, Process
from polyconv.benchmark.truth import truth
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem

PEERS = ("ncnn", "mnn", "litert")

# A problem, and for those that cannot express it a word of the reason.
CASES: dict[str, dict[str, str]] = {
    "conv f32 NCHW n1 c32 i14x14 m48 k1x1 b1": {},
    "conv f32 NCHW n2 c16 i17x19 m24 k3x5 p1x2 s2 d2x1 g2 b1 act=Relu": {},
    "conv f32 NCHW n2 c6 i9x8 m8 k3x3 p1:0x0:1 s2x1 b1 r1 act=Clip(0,6)": {},
    "conv f32 NCHW n1 c16 i9x11 m32 k3x3 p1 g16 act=Clip(-0.5,0.25)": {"litert": "Clip"},
    "conv f32 NCHW n1 c40 i100 m24 k5 p4:0 s2 b1": {},
    "conv f32 NCHW n1 c16 i5x6x7 m8 k3x2x3 p1x0x1 s1x2x1 g4 b1": {"mnn": "3 spatial axes", "litert": "3 spatial axes"},
    "conv_transpose f32 NCHW n2 c16 i9x8 m24 k4x4 s2 p1 b1 act=Relu": {},
    "conv_transpose f32 NCHW n1 c16 i9x8 m24 k3x3 s2 p1 op1 g4": {"litert": "transposed"},
    "conv_transpose f32 NCHW n1 c8 i7 m5 k4 s2 p1": {},
    "conv f32 NCHW n1 c8 i9x9 m8 k3x3 p-1": dict.fromkeys(PEERS, "negative"),
    "conv f32 NCHW n1 c8 i9x9 m8 k3x3 b1 act=Sigmoid": {"ncnn": "Sigmoid", "litert": "Sigmoid"},
    "conv f64 NCHW n1 c8 i9x9 m8 k3x3": dict.fromkeys(PEERS, "f32"),
    "conv f32 NCHW n0 c8 i9x9 m8 k3x3": dict.fromkeys(PEERS, "zero"),
    "conv f32 NCHW n1 c4 i3x4x5x6 m4 k1x3x3x1": dict.fromkeys(PEERS, "4 spatial axes"),
}


@pytest.fixture(scope="module", params=PEERS)
def process(request: pytest.FixtureRequest) -> Iterator[Process]:
    """A guest's process."""
    if importlib.util.find_spec(GUESTS[request.param].module) is None:
        pytest.skip(f"{GUESTS[request.param].module} is not installed")
    made = Process(request.param, Task(), {})
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("text", CASES)
def test_a_peer_is_right_or_says_what_it_lacks(process: Process, text: str) -> None:
    p, rng = replace(Problem.parse(text), layout="NCHW"), np.random.default_rng(0)
    made = operands(p, rng, "normal")
    right = truth(p, made, rng)
    process.call("load", p, made)
    for engine in (name for name, row in ENGINES.items() if row.guest == process.guest):
        reason = CASES[text].get(process.guest)
        if reason is not None:
            with pytest.raises(GuestError, match=f"Lacking: .*{reason}"):
                process.call("prepare", engine)
            continue
        assert process.call("prepare", engine)["precision"] == "f32"
        assert min(process.call("burst", engine, 1, 2, 2)) > 0.0
        assert computes_truly(p, right.error(process.call("sample", engine, right.channels))), engine


_THREADS = """
import importlib, sys
from pathlib import Path
import numpy as np
from polyconv.benchmark.engines.ready import Task
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem

def spent():
    return {f.parent.name: int(f.read_text().split()[0]) for f in Path("/proc/self/task").glob("*/schedstat")}

guest, engine, threads = sys.argv[1:]
module, task = importlib.import_module(f"polyconv.benchmark.engines.{guest}"), Task(int(threads))
module.start(task)
p = Problem.parse("conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1")
made = module.ready(engine, p, operands(p, np.random.default_rng(0), "normal"), task)
made.run()
before = spent()
for _ in range(50):
    made.run()
ran = [t - before.get(name, 0) for name, t in spent().items()]
print("threads:", sum(t > 0.1 * max(ran) for t in ran))
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell what threads do")
@pytest.mark.parametrize("engine", [name for name, row in ENGINES.items() if row.guest in PEERS])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_peer_computes_on_as_many_threads_as_asked(engine: str, threads: int) -> None:
    guest = ENGINES[engine].guest
    if importlib.util.find_spec(GUESTS[guest].module) is None:
        pytest.skip(f"{GUESTS[guest].module} is not installed")
    found = subprocess.run(
        [sys.executable, "-c", _THREADS, guest, engine, str(threads)], capture_output=True, text=True, timeout=120,
        check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment(guest, threads, None)},
    )  # fmt: skip
    assert found.stdout.rsplit("threads:", 1)[1].strip() == str(threads)


def test_peers_that_are_absent_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name != "polyconv" else object())
    rows = chosen(PEERS)
    assert {name: rows[name] for name in rows if ENGINES[name].guest in PEERS} == dict.fromkeys(
        ("ncnn", "ncnn-blocked", "mnn", "mnn-small-tiles", "litert"), "not installed"
    )
