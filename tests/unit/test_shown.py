"""Layers, plans and the package show themselves: text, tables, attributes, names, and ``python -m``."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

import polyconv
from polyconv.cli import EXIT_CODES

X = np.ones((1, 4, 8, 8), np.float32)
W, B = np.ones((6, 2, 3, 3), np.float32), np.arange(6, dtype=np.float32)


def test_a_layer_says_what_it_is_and_what_has_run() -> None:
    layer = polyconv.Conv(W, B, pads=1, groups=2, activation="Relu")
    text = repr(layer)
    assert text.startswith("Conv('conv f32 NCHW n? c4 i?x? m6 k3x3 p1 g2 b1 act=Relu', 432 B, ")
    assert "not called yet" in text
    layer(X)
    algorithm = layer.plan(X.shape).algorithm
    assert layer.algorithms == {X.shape: algorithm}
    assert f"{algorithm} for (1, 4, 8, 8)" in repr(layer)
    for extent in (9, 10, 11, 12):
        layer(np.ones((1, 4, extent, 8), np.float32))
    assert "2 shapes before" in repr(layer)
    assert "(1, 4, 12, 8)" in repr(layer)
    prepared = polyconv.plan("conv f32 NCHW n1 c4 i8x8 m6 k3x3 g2").prepare(W)
    assert repr(prepared).startswith("Prepared('conv f32 NCHW n1 c4 i8x8 m6 k3x3 g2', 432 B, ")
    assert prepared.plan().algorithm in repr(prepared)


def test_a_layer_has_its_weights_and_geometry_as_attributes() -> None:
    layer = polyconv.Conv(
        W, B, strides=2, pads=[(0, 1), (2, 3)], dilations=[1, 2], groups=2, layout="nhwc", activation="LeakyRelu",
        accuracy="strict", workspace_limit="1MiB",  # type: ignore[arg-type]
    )  # fmt: skip
    np.testing.assert_array_equal(layer.weight, W)
    np.testing.assert_array_equal(layer.bias, B)
    shown = {
        "kernel_shape": (3, 3), "strides": (2, 2), "pads": ((0, 1), (2, 3)), "auto_pad": "NOTSET", "dilations": (1, 2),
        "groups": 2, "layout": "NHWC", "overflow": "wrap", "x_dtype": np.float32, "out_dtype": np.float32,
        "accuracy": "strict", "workspace_limit": 1 << 20, "algorithms": {},
    }  # fmt: skip
    assert {name: getattr(layer, name) for name in shown} == shown
    assert str(layer.activation) == "LeakyRelu(0.01)"
    assert polyconv.Conv(W, groups=2).bias is None
    for name in ("weight", "bias"):
        view = getattr(layer, name)
        with pytest.raises(ValueError, match="read-only"):
            view[...] = 0
    for name in shown:
        with pytest.raises(AttributeError):
            setattr(layer, name, 1)
    same = polyconv.Conv(W, groups=2, auto_pad="same_lower")
    assert (same.auto_pad, same.pads) == ("SAME_LOWER", ((0, 0), (0, 0)))
    assert same.plan(X.shape).problem.pads == ((1, 1), (1, 1))


def test_a_transposed_layer_has_its_own_besides() -> None:
    layer = polyconv.ConvTranspose(np.ones((4, 6, 3, 3), np.float32), strides=2, output_padding=1)
    assert (layer.output_padding, layer.output_shape) == ((1, 1), None)
    assert polyconv.ConvTranspose(np.ones((4, 6, 3, 3), np.float32), output_shape=[9, 9]).output_shape == (9, 9)


def test_a_layer_can_be_made_again_from_what_it_shows() -> None:
    layer = polyconv.Conv(W, B, strides=2, pads=[(0, 1), (2, 3)], groups=2, activation="Clip", activation_params=[0, 6])
    assert layer.activation is not None
    other = polyconv.Conv(
        layer.weight, layer.bias, strides=layer.strides, pads=layer.pads, dilations=layer.dilations,
        groups=layer.groups, layout=layer.layout, activation=layer.activation.name,
        activation_params=layer.activation.parameters, out_dtype=layer.out_dtype,
    )  # fmt: skip
    assert other.problem == layer.problem
    np.testing.assert_array_equal(other(X), layer(X))


class _Tables(HTMLParser):
    """Text by cell, and whether every tag is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def test_a_plan_is_a_table_in_a_notebook() -> None:
    plan = polyconv.plan("conv f16>f32 NCHW n1 c64 i28x28 m64 k3x3 p1 b1 act=Relu")
    tables = _Tables()
    tables.feed(plan._repr_html_())
    assert not tables.open
    assert str(plan.problem) in tables.cells  # with its > escaped and back
    assert any(plan.algorithm in cell for cell in tables.cells)
    for name, reason in plan.refused:
        assert f"{name}: {reason}" in tables.cells


def test_the_package_shows_its_public_names_only() -> None:
    script = (
        "import polyconv; assert dir(polyconv) == sorted([*polyconv.__all__, '__version__']), dir(polyconv)\n"
        "import polyconv.layer, polyconv.models.session\n"
        "assert dir(polyconv) == sorted([*polyconv.__all__, '__version__'])\n"
        "for name in dir(polyconv): getattr(polyconv, name)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_module_is_the_command_line() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "polyconv", *words], capture_output=True, text=True, check=False)

    shown = run("info", "--json")
    assert shown.returncode == 0
    assert "schema_version" in shown.stdout
    wrong = run("explain", "conv f32 nothing")
    assert wrong.returncode == 2 in EXIT_CODES
    assert "docs/problem-text.md" in wrong.stderr.replace("\n", "")
