"""The text of a problem: its page cannot go stale, and what is not understood is answered with the nearest field."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import polyconv
from polyconv.problem.text import FIELDS, OPERATORS

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "problem_text_page.py"))
PAGE = (ROOT / "docs" / "problem-text.md").read_text(encoding="utf-8")
EXAMPLES: dict[str, str] = TOOL["EXAMPLES"]

BASE = "conv f32 NCHW n1 c64 i56x56 m64 k3x3"


def test_the_page_says_what_the_tables_say() -> None:
    assert TOOL["page"]() == PAGE, "run python tools/problem_text_page.py"


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_read_and_write_and_plan(text: str) -> None:
    problem = polyconv.Problem.parse(text)
    assert str(problem) == text
    if problem.is_known:
        assert polyconv.plan(problem).algorithm


def test_examples_show_every_operator_and_field() -> None:
    words = [word for text in EXAMPLES for word in text.split()]
    assert set(OPERATORS) <= set(words)
    for row in FIELDS.values():
        assert any(w.startswith(row.key + row.join) for w in words), row.key


QUANTISED, SCALES = "conv u8*i8 NCHW n1 c64 i56x56 m64 k3x3", "sx=1.0 sw=1.0 sy=1.0"
PLAIN = {
    "op": "conv_transpose f32 NCHW n1 c64 i56x56 m64 k3x3 s2",
    "mask": "deform_conv f32 NCHW n1 c64 i56x56 m64 k3x3 og1",
    "overflow": "conv u8 NCHW n1 c64 i56x56 m64 k3x3",
    "zx": QUANTISED, "zw": QUANTISED, "zy": f"{QUANTISED} {SCALES}",
    **dict.fromkeys(("zr", "zs"), f"{QUANTISED} r1 {SCALES} sr=1.0 ss=1.0"),
}  # fmt: skip
"""By field, a text that may have it; others go with ``BASE``."""

TOGETHER = {
    "og": ("deform_conv f32 NCHW n1 c64 i56x56 m64 k3x3", "offset_groups=0 must be at least 1"),
    "sx": (f"{QUANTISED} sw=1.0 sy=1.0", "only sw and sy"),
    "sw": (f"{QUANTISED} sx=1.0 sy=1.0", "only sx and sy"),
    "sy": (f"{QUANTISED} sx=1.0 sw=1.0", "only sx and sw"),
    "sr": (f"{QUANTISED} r1 {SCALES} ss=1.0", "ss stand here without both scales"),
    "ss": (f"{QUANTISED} r1 {SCALES} sr=1.0", "sr stand here without both scales"),
}
"""By field, a text that needs it, and what is said of that without it."""


@pytest.mark.parametrize("key", [key for key in FIELDS if key not in TOGETHER])
def test_each_row_of_the_table_is_what_the_parser_reads(key: str) -> None:
    """The row's example changes the problem, and only its argument; without it holds what the row says."""
    row = FIELDS[key]
    without = " ".join(w for w in PLAIN.get(key, BASE).split() if row.absent or w != row.example)
    if not row.absent:
        with pytest.raises(polyconv.ArgumentError, match=f"lacks '{key}'"):
            polyconv.Problem.parse(without)
    problem = polyconv.Problem.parse(f"{without} {row.example}")
    assert row.example in str(problem).split()
    if row.absent:
        other = polyconv.Problem.parse(without)
        differing = {f for f in problem.__slots__ if getattr(problem, f) != getattr(other, f)}
        assert differing == {row.argument if row.argument in problem.__slots__ else "quantisation"}


@pytest.mark.parametrize("key", TOGETHER)
def test_what_an_operator_needs_is_asked_for(key: str) -> None:
    text, words = TOGETHER[key]
    with pytest.raises(polyconv.ArgumentError, match=words):
        polyconv.Problem.parse(text)
    assert FIELDS[key].example in str(polyconv.Problem.parse(f"{text} {FIELDS[key].example}")).split()


def test_the_past_of_a_causal_convolution_need_not_be_written() -> None:
    text = "causal_conv f32 NCHW n1 c4 i9 m4 k4"
    assert polyconv.Problem.parse(text) == polyconv.Problem.parse(f"{text} p3:0")


def test_what_the_examples_say_holds() -> None:
    by_meaning = {meaning: polyconv.Problem.parse(text) for text, meaning in EXAMPLES.items()}
    [same] = [p for meaning, p in by_meaning.items() if "TensorFlow's SAME" in meaning]
    w = np.zeros(same.w_shape, np.float32)
    layer = polyconv.Conv(w, strides=2, groups=same.groups, auto_pad="SAME_UPPER", layout="NHWC")
    assert layer.plan(same.x_shape).problem.pads == same.pads  # type: ignore[arg-type]
    [twice] = [p for meaning, p in by_meaning.items() if meaning.startswith("twice")]
    assert twice.out == tuple(2 * i for i in twice.i)  # type: ignore[operator]


MEANT = {
    f"{BASE} stride2": "did you mean s2",
    f"{BASE} strides=2": "did you mean s2",
    f"{BASE} padding1": "did you mean p1",
    f"{BASE} dilation=2": "did you mean d2",
    f"{BASE} groups2": "did you mean g2",
    f"{BASE} activation=Relu": "did you mean act=Relu",
    f"{BASE} bias1": "did you mean b1",
    f"{BASE} S2": "did you mean s2",
    f"{BASE} mask=1": "did you mean mask?",
    f"{BASE} q7": "fields read n1 c64",
    f"{BASE} act=relu": "did you mean 'Relu'",
    "conv2d f32 NCHW n1 c64 i56x56 m64 k3x3": "did you mean conv?",
    "conv_transposed f32 NCHW n1 c64 i56x56 m64 k3x3": "did you mean conv_transpose?",
    "conv float32 NCHW n1 c64 i56x56 m64 k3x3": "did you mean f32",
    "conv int8 NCHW n1 c64 i56x56 m64 k3x3": "did you mean i8",
    "conv f32 HWC n1 c64 i56x56 m64 k3x3": "give NCHW or NHWC",
}


@pytest.mark.parametrize("text", MEANT)
def test_the_nearest_is_named(text: str) -> None:
    with pytest.raises(polyconv.ArgumentError) as caught:
        polyconv.Problem.parse(text)
    assert MEANT[text] in str(caught.value)


WRONG = [
    *MEANT,
    "",
    "conv",
    "conv f32 NCHW n1 c64 i56x56 m64",
    f"{BASE} g2 g2",
    f"{BASE} b2",
    f"{BASE} p1x2x3",
    f"{BASE} s0",
    f"{BASE} g3",
    f"{BASE} overflow=clip",
    f"{BASE} act=Clip",
    f"{BASE} act=Clip(a,b)",
    f"{BASE} act=(",
    f"{BASE} zx=c",
    f"{BASE} sw=much",
    f"{BASE} s" + "9" * 30,
    "conv i32 NCHW n1 c64 i56x56 m64 k3x3 act=Tanh",
    f"{BASE} op1",
    f"{BASE} og1",
    f"{BASE} mask",
    f"{BASE} zx=1",
    f"{BASE} overflow=saturate",
    "conv u8*i8 NCHW n1 c64 i56x56 m64 k3x3 zy=1.0",
    "conv f32>i32 NCHW n1 c64 i56x56 m64 k3x3",
    "conv f64>f32 NCHW n1 c64 i56x56 m64 k3x3",
    "conv i32>f32 NCHW n1 c64 i56x56 m64 k3x3",
    "conv f32*f64 NCHW n1 c64 i56x56 m64 k3x3",
    "conv i16*i8 NCHW n1 c64 i56x56 m64 k3x3",
    "deform_conv u8 NCHW n1 c64 i56x56 m64 k3x3 og1",
    "deform_conv f32 NCHW n1 c64 i56x56 m64 k3x3 og5",
    "causal_conv f32 NCHW n1 c4 i9 m4 k4 r1",
    "causal_conv f32 NCHW n1 c4 i9 m4 k4 y9",
    "causal_conv f32 NCHW n1 c4 i9 m4 k4 p3",
    "causal_conv f32 NCHW n1 c4 i9 m4 k4 s2",
    "causal_conv f32 NCHW n1 c4 i9x9 m4 k4x4",
    "causal_conv f32 NHWC n1 c4 i9 m4 k4",
]


@pytest.mark.parametrize("text", WRONG)
def test_every_error_leads_to_the_page(text: str) -> None:
    with pytest.raises((polyconv.ArgumentError, polyconv.DtypeError)) as caught:
        polyconv.Problem.parse(text)
    assert "docs/problem-text.md" in str(caught.value)
    assert "help(polyconv.Problem.parse)" in str(caught.value)


def test_help_in_the_interpreter_names_every_field() -> None:
    text = polyconv.Problem.parse.__doc__ or ""
    for word in (*FIELDS, *OPERATORS):
        assert word in text


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(polyconv.ArgumentError, match="of type int"):
        polyconv.Problem.parse(5)  # type: ignore[arg-type]
