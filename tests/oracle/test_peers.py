"""The oracle against other engines, on moderately large problems; every deviation of theirs is named."""

from __future__ import annotations

import os

import numpy as np
import pytest

from polyconv.conformance import corpus, peers
from polyconv.conformance.deviations import DIFFERENCES, REFUSALS, explanation
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.conformance.peers import GuestError, Peer, available
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

SEED, COUNT = 21, 250


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino", "torch"])
def test_engine_agrees_or_is_explained(engine: str) -> None:
    assert engine in available(), f"install {engine}: the test extra has it"
    peer, agreed, wrong = Peer(engine), 0, []
    for index, p in enumerate(corpus.problems(SEED, COUNT, budget=300_000)):
        made = operands(p, np.random.default_rng([SEED, index]))
        answer = peer.run(p, made)
        if isinstance(answer, str):
            if answer.startswith("error: "):
                wrong.append(f"{p}: {answer}")
            continue
        want = expected(p, made)
        found = complaint(p, want, answer)
        if found is None:
            agreed += 1
        elif explanation(engine, p, made, want, answer) is None:
            wrong.append(f"{p}: {found}")
    peer.close()
    assert not wrong, "\n".join(wrong)
    assert agreed > COUNT / 5


@pytest.mark.parametrize(("rank", "groups"), [(1, 1), (2, 1), (2, 3), (3, 1), (4, 2)])
def test_scipy_correlation(rank: int, groups: int) -> None:
    """SciPy knows neither strides nor groups: correlate each pair of channels, take every s-th."""
    from scipy import ndimage, signal

    rng = np.random.default_rng(rank)
    c, m, strides = 2, 3, tuple(1 + a % 2 for a in range(rank))
    p = Problem(
        "conv", "f64", "f64", "f64", "NCHW", 2, groups * c, (7,) * rank, groups * m, (3,) * rank,
        s=strides, groups=groups,
    )  # fmt: skip
    x, w = rng.standard_normal(p.x_shape), rng.standard_normal(p.w_shape)
    got = oracle(p, x, w)
    every = tuple(slice(None, None, s) for s in strides)
    for n in range(2):
        for out in range(groups * m):
            first = out // m * c
            pairs = [(x[n, first + i], w[out, i]) for i in range(c)]
            parts = [signal.correlate(a, b, mode="valid", method="direct") for a, b in pairs]
            np.testing.assert_allclose(got[n, out], sum(parts)[every], rtol=1e-12, atol=1e-12)
    centred = ndimage.correlate(x[0, 0], w[0, 0], mode="constant")
    one = Problem(
        "conv", "f64", "f64", "f64", "NCHW", 1, 1, (7,) * rank, 1, (3,) * rank, pads=((1, 1),) * rank
    )
    np.testing.assert_allclose(oracle(one, x[:1, :1], w[:1, :1])[0, 0], centred, rtol=1e-12, atol=1e-12)


def test_a_dead_worker_is_replaced_and_named() -> None:
    peer = Peer("torch", seconds=20.0)
    assert peer.call("version")
    assert peer._process is not None
    peer._process.kill()
    peer._process.wait()
    assert peer.call("version")  # a new process
    peer.close()


def test_a_slow_worker_is_ended() -> None:
    peer = Peer("torch", seconds=0.01)  # less than an import takes
    with pytest.raises(GuestError, match=r"torch took longer than 0\.01 s in version"):
        peer.call("version")
    peer.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a matter of fork")
def test_a_forked_child_of_a_slow_worker_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that a guest forks and that hangs holds the worker's end of the pipe."""
    monkeypatch.setattr(peers, "_WORKER", "import os, time; os.fork(); time.sleep(60)")
    peer = Peer("torch", seconds=1.0)
    with pytest.raises(GuestError, match="torch took longer than 1 s in version"):
        peer.call("version")
    peer.close()


def test_what_a_guest_raises_comes_back_as_text() -> None:
    peer = Peer("torch")
    with pytest.raises(GuestError, match="torch: AttributeError"):
        peer.call("no_such_function")
    assert peer.call("version")  # and the process lives on
    peer.close()


def test_every_deviation_has_its_own_name() -> None:
    for table in (REFUSALS, DIFFERENCES):
        names = [(row.engine, row.name) for row in table]
        assert len(set(names)) == len(names)
