"""The fuzz finds planted faults, keeps its place, and repeats itself exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levels import LEVELS

from polyconv.conformance import corpus, fuzz, trial
from polyconv.errors import ArgumentError
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

COUNT = 150


def test_polyconv_is_right() -> None:
    report = fuzz.run(COUNT, seed=101)
    assert report.next == COUNT
    assert sum(report.operators.values()) == COUNT
    assert not report.findings, "\n".join(map(str, report.findings))


@pytest.mark.parametrize("operator", sorted(corpus.OPERATORS))
def test_polyconv_is_right_on_every_operator(operator: str) -> None:
    report = fuzz.run(40, seed=102, operator=operator)
    assert not report.findings, "\n".join(map(str, report.findings))


def test_peers_agree_or_are_explained() -> None:
    report = fuzz.run(60, seed=103, peers=("onnxruntime", "openvino", "torch"))
    assert not report.findings, "\n".join(map(str, report.findings))
    assert all(tally.get("agrees", 0) > 5 for tally in report.peers.values())


def test_an_interrupted_problem_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    state = tmp_path / "state.json"
    fuzz.run(2, seed=5, resume=state)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fuzz, "expected", interrupted)
        fuzz.run(5, seed=5, resume=state)
    report = fuzz.run(5, seed=5, resume=state)
    assert (report.next, report.findings, sum(report.operators.values())) == (5, [], 5)


def test_resumes_where_it_stopped(tmp_path: Path) -> None:
    state, seen = tmp_path / "state.json", []
    fuzz.run(7, seed=5, resume=state)
    report = fuzz.run(12, seed=5, resume=state, progress=lambda r: seen.append(r.next))
    assert seen == [8, 9, 10, 11, 12]
    assert sum(report.operators.values()) == 12
    with pytest.raises(ArgumentError, match="belongs to seed 5, not seed 6"):
        fuzz.run(12, seed=6, resume=state)
    with pytest.raises(ArgumentError, match="belongs to seed 5, not seed 5 algorithm generic"):
        fuzz.run(12, seed=5, algorithm="generic", resume=state)


def test_a_trial_that_ended_the_process_is_a_finding(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    fuzz.run(3, seed=5, resume=state)
    stopped = json.loads(state.read_text()) | {"running": 3}
    state.write_text(json.dumps(stopped))
    report = fuzz.run(5, seed=5, resume=state)
    assert [f.index for f in report.mismatches] == [3]
    assert report.next == 5


def test_a_trial_is_decided_by_its_name() -> None:
    for index in range(20):
        one, two = trial.drawn(9, index), trial.drawn(9, index)
        assert str(one) == str(two)
        assert one.operands.x.tobytes() == two.operands.x.tobytes()
        assert one.operands.x.strides == two.operands.x.strides


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"peers": ("tensorflow",)}, r"peers=\['tensorflow'\] are not installed"),
        ({"algorithm": "guess"}, "algorithm='guess' is not known; choose from .*generic"),
        ({"operator": "pool"}, "operator='pool' is not known; choose from .*conv_transpose"),
        ({"target": "sse9"}, "POLYCONV_TARGET='sse9' is not valid"),
    ],
)
def test_unknown_names_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        fuzz.run(1, **given)


@pytest.mark.parametrize(
    "environment",
    [{"POLYCONV_CHECK": "1"}, *({"POLYCONV_TARGET": level} for level in LEVELS[1:])],
    ids=lambda e: " ".join(f"{name}={value}" for name, value in e.items()),
)
def test_other_kernels_are_right(environment: dict[str, str]) -> None:
    """A slice of the fuzz with bounds-checked kernels and on lower instruction sets, in a process each."""
    count = 40 if "POLYCONV_CHECK" in environment else 80  # whose kernels are not kept from run to run
    command = [sys.executable, "-m", "polyconv.conformance.fuzz", "--count", str(count), "--seed", "106", "--json"]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = fuzz.Report.from_json(done.stdout)
    assert (report.next, report.findings) == (count, [])


@pytest.mark.parametrize("algorithm", ["direct", "generic"])
def test_a_forced_algorithm_is_right(algorithm: str) -> None:
    report = fuzz.run(60, seed=107, algorithm=algorithm)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert report.not_applicable < 30


# Faults as a kernel would have them, planted behind the oracle: what the fuzz must find.


def last_channels_lost(p: Problem, y: Any) -> Any:
    """A tail of output channels that is never stored."""
    axis = -1 if p.layout == "NHWC" else 1
    tail = p.m % 8 if p.m > 8 else 0
    if tail:
        y[(slice(None),) * (axis % y.ndim) + (slice(p.m - tail, None),)] = 0
    return y


def last_column_lost(p: Problem, y: Any) -> Any:
    """A row whose last pixel is never stored, for rows that do not fill a vector."""
    axis = -2 if p.layout == "NHWC" else -1
    if y.shape[axis] > 8 and y.shape[axis] % 8:
        y[(..., -1, slice(None)) if axis == -2 else (..., -1)] = 0
    return y


def transposed_edge(p: Problem, y: Any) -> Any:
    return last_column_lost(p, y) if p.op == "conv_transpose" else y


RESULT_FAULTS = (last_channels_lost, last_column_lost, transposed_edge)


def begin_pad_off(p: Problem) -> Problem:
    begin, end = p.pads[-1]
    return replace(p, pads=(*p.pads[:-1], (begin - 1, end + 1))) if begin > 0 and p.op == "conv" else p


def dilation_forgotten(p: Problem) -> Problem:
    out = tuple(int(e or 0) for e in p.out)
    return replace(p, d=(1,) * p.rank, o=out) if p.rank == 2 and p.op == "conv" else p


def stride_off(p: Problem) -> Problem:
    if p.op == "conv" and p.s[0] == 3:
        return replace(p, s=(2, *p.s[1:]), o=tuple(int(e or 0) for e in p.out))
    return p


def activation_forgotten(p: Problem) -> Problem:
    return replace(p, activation=None)


def wrap_for_saturation(p: Problem) -> Problem:
    return replace(p, overflow="wrap")


PROBLEM_FAULTS = (begin_pad_off, dilation_forgotten, stride_off, activation_forgotten, wrap_for_saturation)


def group_off(p: Problem, x: Any, w: Any, bias: Any) -> tuple[Any, Any, Any]:
    """The second group reads the first one's channels."""
    if p.groups > 1 and p.op == "conv" and p.layout == "NCHW" and x.shape[1]:
        x = np.array(x)
        per = p.c // p.groups
        x[:, per : 2 * per] = x[:, :per]
    return x, w, bias


def batch_off(p: Problem, x: Any, w: Any, bias: Any) -> tuple[Any, Any, Any]:
    return (np.repeat(x[:1], x.shape[0], axis=0), w, bias) if x.shape[0] > 1 else (x, w, bias)


def strides_ignored(p: Problem, x: Any, w: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Weights read as if they were contiguous."""
    if not w.flags.c_contiguous and w.size and w.base is not None:
        flat = np.lib.stride_tricks.as_strided(w, (1,), (0,))
        return x, np.broadcast_to(flat.reshape((1,) * w.ndim), w.shape), bias
    return x, w, bias


def bias_of_channel_0(p: Problem, x: Any, w: Any, bias: Any) -> tuple[Any, Any, Any]:
    return (x, w, bias) if bias is None or not bias.size else (x, w, np.full_like(bias, bias[0]))


OPERAND_FAULTS = (group_off, batch_off, strides_ignored, bias_of_channel_0)


def faulty(fault: Callable[..., Any]) -> Callable[..., Any]:
    """A ``compute`` through the oracle, with one fault."""

    def compute(p: Problem, x: Any, w: Any, bias: Any = None, residual: Any = None, **named: Any) -> Any:
        out = named.pop("out", None)
        options = ("threads", "accuracy", "workspace_limit", "algorithm", "layout", "chance")
        named = {k: v for k, v in named.items() if k not in options}
        if fault in OPERAND_FAULTS:
            x, w, bias = fault(p, x, w, bias)
        q = fault(p) if fault in PROBLEM_FAULTS else p
        y = oracle(q, x, w, bias, residual, **named)
        y = fault(p, y) if fault in RESULT_FAULTS else y
        if p.op == "causal_conv":
            past = named.get("past")
            lead = np.zeros((*x.shape[:2], p.k[0] - 1), x.dtype) if past is None else past
            whole = np.concatenate([lead, x], axis=2)
            return y, whole[:, :, whole.shape[2] - (p.k[0] - 1) :]
        if out is None:
            return y
        out[...] = y
        return out

    return compute


def planted(monkeypatch: pytest.MonkeyPatch, compute: Callable[..., Any]) -> None:
    def layer(resolve: Any, w: Any, bias: Any = None, **held: Any) -> Callable[..., Any]:
        def call(x: Any, **named: Any) -> Any:
            return compute(current[0], x, w, bias, **(held | named))

        return call

    current: list[Problem] = []
    against = trial.against

    def remembering(drawn: trial.Trial, *rest: Any, **named: Any) -> Any:
        current[:] = [drawn.problem]
        return against(drawn, *rest, **named)

    monkeypatch.setattr(trial, "compute", compute)
    monkeypatch.setattr(trial, "Layer", layer)
    monkeypatch.setattr(fuzz, "against", remembering)


@pytest.mark.parametrize("fault", RESULT_FAULTS + PROBLEM_FAULTS + OPERAND_FAULTS, ids=lambda f: f.__name__)
def test_planted_fault_is_found(fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, faulty(fault))
    found = fuzz.run(COUNT + 50, seed=104).mismatches
    assert found
    assert not [f for f in found if f.message.startswith("raised")]


def test_without_a_fault_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, faulty(lambda *given: given))
    assert not fuzz.run(COUNT, seed=104).findings


def test_writing_beyond_out_and_into_inputs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = faulty(lambda *given: given)

    def compute(p: Problem, x: Any, w: Any, bias: Any = None, residual: Any = None, **named: Any) -> Any:
        y = right(p, x, w, bias, residual, **named)
        out = named.get("out")
        if out is not None and out.flags.c_contiguous and out.size:
            beyond = np.lib.stride_tricks.as_strided(out.reshape(-1), (out.size + 1,))
            beyond[-1] = 0
        if x.flags.writeable and x.size:
            x[(0,) * x.ndim] = 7
        return y

    planted(monkeypatch, compute)
    messages = {f.message for f in fuzz.run(COUNT, seed=104).mismatches}
    assert "memory around out was written" in messages
    assert "input x was written" in messages
