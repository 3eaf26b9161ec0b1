"""Random graphs: sessions stay within derived bounds, a fault planted in a rewrite is found, and its graph is small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from polyconv.conformance import graph_fuzz
from polyconv.conformance.enclosure_rules import RULES, enclosed, enclosed_node
from polyconv.conformance.enclosures import Call, Enclosure, exact, reference
from polyconv.conformance.graph_fuzz import complaint, complaints
from polyconv.conformance.graphs import Drawing, Drawn, Unfit, drawn
from polyconv.errors import ArgumentError
from polyconv.models import onnx_rules
from polyconv.models.session import InferenceSession

COUNT = 60


def test_random_graphs_are_within_their_bounds() -> None:
    report = graph_fuzz.run(COUNT, seed=301)
    assert not report.mismatches, "\n".join(map(str, report.mismatches))
    assert report.next == COUNT
    assert report.outcomes["agrees"] > 0.9 * COUNT
    assert not report.findings, "\n".join(map(str, report.findings))


def test_what_is_drawn_has_fan_outs_several_outputs_and_shared_initialisers() -> None:
    models = [drawn(302, index).model.graph for index in range(80)]
    readers = [[name for node in m.node for name in set(node.input)] for m in models]
    weights = [{tensor.name for tensor in m.initializer} for m in models]
    assert sum(len(m.output) > 1 for m in models) > 20
    assert sum(any(r.count(n) > 1 for n in set(r) - w) for r, w in zip(readers, weights, strict=True)) > 20
    assert sum(any(r.count(n) > 1 for n in w) for r, w in zip(readers, weights, strict=True)) > 10
    convolutions = [node for m in models for node in m.node if node.op_type == "Conv"]
    groups = {next((a.i for a in node.attribute if a.name == "group"), 1) for node in convolutions}
    assert len(groups) > 3
    assert len({node.op_type for m in models for node in m.node} & set(RULES)) > 0.75 * len(RULES)


def test_a_graph_is_the_same_each_time() -> None:
    one, other = drawn(303, 5), drawn(303, 5)
    assert one.model == other.model
    assert all(np.array_equal(one.feeds[name], other.feeds[name]) for name in one.feeds)


@pytest.mark.parametrize(("fault", "seed"), [("bias", 310), ("weights", 307)])
def test_a_fault_in_a_rewrite_is_found(fault: str, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One part in 10,000 of one channel's factor, or a bias that moves by as much."""
    right = onnx_rules.normalisation

    def wrong(node: Any, view: Any) -> Any:
        found = right(node, view)
        if found is None:
            return None
        scale, shift = found
        return (scale * np.where(np.arange(scale.size) == 0, 1.0001, 1.0), shift) if fault == "weights" else (
            scale, shift + 1e-4)  # fmt: skip

    monkeypatch.setattr(onnx_rules, "normalisation", wrong)
    report = graph_fuzz.run(8, seed=seed, folder=tmp_path)
    assert report.mismatches
    finding = report.mismatches[0]
    model = onnx.load(finding.file)
    moving, ops = {value.name for value in model.graph.input}, list[str]()
    for node in model.graph.node:  # what makes weights of constants has to stay: fed weights are not rewritten
        if moving.intersection(node.input):
            moving.update(node.output)
            ops.append(node.op_type)
    assert "BatchNormalization" in ops and len(ops) < 6
    with np.load(Path(finding.file).with_suffix(".npz")) as feeds:
        values = {name: feeds[name] for name in feeds.files}
    got = InferenceSession(model).run(None, values)
    bounds = enclosed(model, values)
    assert any(complaint(bounds[o.name], a) for o, a in zip(model.graph.output, got, strict=True))
    monkeypatch.undo()
    got = InferenceSession(model).run(None, values)
    assert not any(complaint(bounds[o.name], a) for o, a in zip(model.graph.output, got, strict=True))


_HELD: list[np.ndarray] = []


def _kept_memory(results: list[np.ndarray], runs: int) -> list[np.ndarray]:
    _HELD[:] = results if runs == 1 else _HELD
    if runs == 2:
        _HELD[0][...] += 1
    return results


SPOILT = {
    "a later run changed an earlier one's results": _kept_memory,
    "a second run gave other bits": lambda r, runs: [a + np.float32(1e-7) * a if runs == 3 else a for a in r],
    "alone has other bits": lambda r, runs: [a * 2 if len(r) == 1 and runs == 5 else a for a in r],
    "outputs wrong": lambda r, runs: [a + np.float32(1e-3) for a in r],
    "must be float32": lambda r, runs: [a[..., None] for a in r],
    "raised": lambda r, runs: r[100],
}


@pytest.mark.parametrize("words", SPOILT)
def test_what_is_wrong_with_a_session_is_said(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = next(g for g in (drawn(305, i) for i in range(20)) if all(e.is_float for e in g.expected.values()))
    assert complaints(graph) == []

    class Spoilt:
        """A session whose results are spoilt in one way."""

        def __init__(self, *given: Any, **options: Any) -> None:
            self._session, self._runs = InferenceSession(*given, **options), 0

        def run(self, names: list[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            self._runs += 1
            return SPOILT[words](self._session.run(names, feeds), self._runs)

    monkeypatch.setattr(graph_fuzz, "InferenceSession", Spoilt)
    assert words in " ".join(complaints(graph))


def _node(op: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, ["y"], **attributes)


SOUND = (
    *(_node(op, "x") for op in ("Abs", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
                                "Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "GlobalAveragePool")),
    *(_node(op, "x", "z") for op in ("Add", "Div", "Max", "Min", "Mul", "Sub", "Sum")),
    _node("AveragePool", "x", kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[2, 1]),
    _node("BatchNormalization", "x", "scale", "shift", "shift", "scale"),
    _node("Conv", "x", "w", "shift", pads=[1, 1, 1, 1]), _node("ConvTranspose", "x", "v", strides=[2, 2]),
    _node("InstanceNormalization", "x", "scale", "shift"), _node("LayerNormalization", "x", "z", axis=1),
    _node("MatMul", "x", "u"), _node("MaxPool", "x", kernel_shape=[3, 2], pads=[1, 0, 1, 0], dilations=[1, 2]),
    _node("ReduceMean", "x", "axes"), _node("ReduceSum", "x", "axes"), _node("Softmax", "x", axis=1),
)  # fmt: skip


@pytest.mark.parametrize("node", SOUND, ids=lambda node: node.op_type)
def test_results_of_whatever_lies_within_the_inputs_lie_within_the_outputs(node: onnx.NodeProto) -> None:
    """By onnx's reference evaluator, in float64, on wide enclosures."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 4, 6, 5))
    wide = {name: Enclosure(at - 0.05, at + 0.05, np.dtype(np.float32)) for name, at in {
        "x": x, "z": rng.uniform(0.5, 2, (4, 6, 5)), "w": rng.standard_normal((3, 4, 3, 3)),
        "v": rng.standard_normal((4, 3, 2, 3)), "u": rng.standard_normal((5, 7)),
    }.items()}  # fmt: skip
    known = {"scale": rng.uniform(0.5, 2, 4), "shift": rng.standard_normal(3 if node.op_type == "Conv" else 4)}
    values = wide | {name: Enclosure(a, a, np.dtype(np.float32)) for name, a in known.items()}
    values["axes"] = exact(np.array([1, 3]))
    bounds = enclosed_node(node, values, 20)["y"]
    for _ in range(30):
        ends = rng.random() < 0.5  # corners are where rules break
        at = {name: rng.integers(0, 2, e.shape) if ends else rng.random(e.shape) for name, e in values.items()}
        points = {n: e.low + (e.high - e.low) * at[n] if n in wide else e.low for n, e in values.items()}
        (got,) = reference(Call(node, 20, tuple(values[name] for name in node.input)), [points[n] for n in node.input])
        assert got.dtype == np.float64
        slack = 1e-12 * bounds.largest  # roundings of float64, of the points and of the reference
        assert ((got >= bounds.low - slack) & (got <= bounds.high + slack)).all()


def _one(node: onnx.NodeProto, opset: int, feeds: dict[str, np.ndarray]) -> tuple[onnx.ModelProto, Drawn]:
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs), opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    )
    values = enclosed(model, feeds)
    return model, Drawn(0, 0, model, feeds, {name: values[name] for name in node.output})


def test_an_enclosure_is_as_narrow_as_rounding_allows() -> None:
    """A rule that allows everything would pass every test but this."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 8, 9, 9)).astype(np.float32)
    w = (rng.standard_normal((4, 8, 3, 3)) / 9).astype(np.float32)
    window = float(np.abs(x).max() * np.abs(w).sum(axis=(1, 2, 3)).max())
    for node, feeds, widest in (
        (helper.make_node("Conv", ["x", "w"], ["y"]), {"x": x, "w": w}, 2 * (72 + 4) * 2.0**-23 * 2 * window),
        (helper.make_node("Relu", ["x"], ["y"]), {"x": x}, 0.0),
        (helper.make_node("Add", ["x", "x"], ["y"]), {"x": x}, 2 * 2.0**-23 * 8),
        (helper.make_node("Sigmoid", ["x"], ["y"]), {"x": x}, 16.1 * 2.0**-23),
        (helper.make_node("Softmax", ["x"], ["y"], axis=1), {"x": x}, 100 * 2.0**-23),
        (helper.make_node("LayerNormalization", ["x", "s"], ["y"]), {"x": x, "s": np.ones(9, np.float32)}, 2e-4),
    ):
        _, made = _one(node, 17, feeds)
        e = made.expected["y"]
        assert float((e.high - e.low).max()) <= widest, node.op_type
        assert complaint(e, np.asarray(e.middle, np.float32)) is None


def test_wrong_values_shapes_and_types_are_complaints() -> None:
    want = Enclosure(np.zeros(3), np.ones(3), np.dtype(np.float32))
    assert complaint(want, np.array([0, 0.5, 1], np.float32)) is None
    assert "2 of 3 outputs wrong; worst at (2,)" in str(complaint(want, np.array([-0.1, 1, np.nan], np.float32)))
    assert "must be float32 (3,)" in str(complaint(want, np.zeros(3)))
    assert "must be float32 (3,)" in str(complaint(want, np.zeros(2, np.float32)))


def test_operators_without_a_rule_are_refused() -> None:
    with pytest.raises(ArgumentError, match="the operator Loop has no rule"):
        _one(helper.make_node("Loop", ["x"], ["y"]), 17, {"x": np.ones(1, np.float32)})


def test_a_step_that_does_not_fit_leaves_nothing() -> None:
    d = Drawing(np.random.default_rng(0), 17)
    d.feeds["x"] = np.ones((1, 2), np.float32)
    d.values["x"] = exact(d.feeds["x"])
    d.moving.append("x")

    def step(d: Drawing) -> None:
        d.one("Relu", "x")
        raise Unfit

    assert not d.attempt(step) and (d.nodes, d.moving) == ([], ["x"])
    assert not d.attempt(lambda d: d.one("Mul", "x", d.constant(1e9)))  # larger than what is kept
    assert d.attempt(lambda d: d.one("Relu", "x")) and len(d.nodes) == 1
