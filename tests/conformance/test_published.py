"""The published cases, one test each: page examples, node cases, converted models, printed layers.

The nine light networks, the 0.9 GB layer and the long fuzz are commands: ``polyconv check``.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from polyconv.conformance import published, suite
from polyconv.conformance.examples import EXAMPLES
from polyconv.conformance.layers_ir import LAYERS
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem


@functools.cache
def outcomes(section: str) -> dict[str, str | None]:
    """Complaints of a section by case."""
    return {f"{o.operator}-{o.version} {o.name}": o.complaint for o in suite.SECTIONS[section]()}


PAGES = [f"{d} {n}-{v} page: {e.name}" for e in EXAMPLES for d, n, versions in e.pages for v in versions]
NODES = [f"onnx {c.operator}-{c.version} {c.name}" for c in published.nodes()]
CONVERTED = [f"onnx {c.operator}-{c.version} {c.name}" for c in published.converted()]


def test_all_cases_are_there() -> None:
    """Counts of the pages and the package: 24 direct and 26 causal node cases, 28 + 2 models."""
    assert len(EXAMPLES) == 6 + 9
    assert len(PAGES) == 2 * 6 + 4 + 9
    direct = {name.split()[-1] for name in NODES if "causal" not in name}
    assert len(direct) == 24
    assert len(NODES) == 3 * (6 + 11) + 2 + 1 + 2 * 4 + 26
    assert len(CONVERTED) == 28 + 2
    assert len(list(published.light())) == 9


@pytest.mark.parametrize("case", PAGES)
def test_page_example(case: str) -> None:
    assert outcomes("examples")[case] is None


@pytest.mark.parametrize("case", NODES)
def test_node_case(case: str) -> None:
    assert outcomes("nodes")[case] is None


@pytest.mark.parametrize("case", CONVERTED)
def test_converted_model(case: str) -> None:
    assert outcomes("converted")[case] is None


@pytest.mark.parametrize("layer", LAYERS[:2], ids=lambda layer: layer.name)
def test_printed_layer(layer: suite.LayerIR) -> None:
    assert suite._small_layer(layer) is None


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_printed_layers_are_their_problems(layer: suite.LayerIR) -> None:
    p = layer.parsed
    assert (p.x_shape, p.w_shape, p.y_shape) == (layer.data, layer.filters, layer.output)


def test_examples_agree_with_the_oracle() -> None:
    """The data was typed in: the oracle confirms every example that needs no auto_pad or output_shape."""
    confirmed = 0
    for example in EXAMPLES:
        a, rank = example.attributes, example.x.ndim - 2
        if "auto_pad" in a or "output_shape" in a:
            continue
        flat = a.get("pads", [0] * 2 * rank)
        transposed = "transpose" in example.name
        p = Problem(
            "conv_transpose" if transposed else "conv", "f32", "f32", "f32", "NCHW",
            1, 1, example.x.shape[2:], example.w.shape[1 if transposed else 0], example.w.shape[2:],
            s=tuple(a.get("strides", ())), d=tuple(a.get("dilations", ())),
            pads=tuple(zip(flat[:rank], flat[rank:], strict=True)),
            output_padding=tuple(a.get("output_padding", ())),
        )  # fmt: skip
        np.testing.assert_array_equal(oracle(p, example.x, example.w), example.y, example.name)
        confirmed += 1
    assert confirmed == 11


def test_rows_count_cases() -> None:
    rows = suite.run(sections=["examples"])
    assert [(r.operator, r.version, r.run) for r in rows] == [
        ("onnx Conv", 1, 6),
        ("onnx Conv", 11, 6),
        ("ort Conv", 11, 4),
        ("ort ConvTranspose", 1, 9),
    ]


def test_a_raising_case_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **attributes: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(suite.dialects.onnx.Factory, "__call__", broken)
    rows = suite.run(sections=["examples"])
    assert all(r.passed == 0 and r.failures[0][1] == "raised RuntimeError: planted" for r in rows)
