"""Writes docs/problem-text.md from the tables in polyconv.problem.text: ``python tools/problem_text_page.py``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from string import Template

from polyconv.dtypes import DTYPES
from polyconv.problem.epilogue import ACTIVATIONS
from polyconv.problem.text import FIELDS, LAYOUTS, OPERATORS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "problem-text.md"

EXAMPLES = {
    "conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1": "3x3, one image of 64 channels and 56 by 56 pixels, padded by 1",
    "conv f32 NHWC n8 c3 i224x224 m64 k7x7 s2 p3 b1 act=Relu": "the first layer of a ResNet, channels last, fused Relu",
    "conv f32 NHWC n1 c144 i56x56 m144 k3x3 s2 p0:1 g144 b1 act=Clip(0,6)":
        "depthwise; padded at the high end only, as TensorFlow's SAME does here",
    "conv f32 NCHW n1 c64 i56x56 m256 k1x1 b1 r1 act=Relu": "1x1 with the shortcut of a residual block added",
    "conv f64 NCHW n1 c1 i4096 m1 k101 p50": "one axis: a filter of 101 taps in double precision",
    "conv f16>f32 NCHW n1 c16 i32x64x64 m32 k3x3x3 p1 d2": "three axes, dilated; half precision in, single out",
    "conv i16>i32 NCHW n1 c1 i512x512 m1 k3x5 p1x2": "whole numbers; different pads along the two axes",
    "conv u8 NHWC n1 c3 i480x640 m3 k3x3 p1 g3 overflow=saturate": "pixels in, pixels out, clipped to 0 to 255",
    "conv_transpose f32 NCHW n1 c256 i14x14 m128 k3x3 s2 p1 op1": "twice the extent, as in a decoder",
    "conv_transpose f32 NCHW n1 c8 i9x9 m8 k2x2 s2 y19x19": "output extents one larger than what the products reach",
    "conv u8*i8>i32 NCHW n1 c64 i28x28 m64 k3x3 p1 zx=t zw=c": "ConvInteger: zero points come with the call",
    "conv u8*i8 NHWC n1 c64 i28x28 m64 k3x3 p1 zx=t zw=t zy=t sx=t sw=c sy=t":
        "QLinearConv: the sums are scaled by channel and rounded to u8",
    "conv u8*i8 NHWC n1 c64 i28x28 m256 k1x1 r1 zx=t zw=t zy=t sx=t sw=c sy=t zr=t sr=t zs=t ss=t":
        "the same with the shortcut of a quantised residual block added: both as the real numbers they stand for",
    "deform_conv f32 NCHW n1 c16 i32x32 m16 k3x3 p1 og2 mask": "deformable, two offset groups, with a mask",
    "causal_conv f32 NCHW n1 c256 i128 m256 k4 p3:0 g256 b1 act=Silu": "a causal depthwise filter along time",
    "conv f32 NCHW n? c64 i?x? m64 k3x3 p1": "a layer's: batch and extents are known when it is called",
}  # fmt: skip

TEXT = Template("""\
# The text of a problem

<!-- Made by tools/problem_text_page.py from the tables in src/polyconv/problem/text.py: edit there. -->

A convolution is one line of text, everywhere: `polyconv.plan` and `polyconv.Problem.parse` read it, so do
`polyconv run`, `explain`, `bench`, `tune` and `check` on the command line; plans, logs, wisdom and error messages
write it.

```python
import polyconv

problem = polyconv.Problem.parse("conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1 b1 act=Relu")
assert str(problem) == "conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1 b1 act=Relu"
print(polyconv.plan(problem))
```

First the operator, then the element types, then the layout, then fields in any order, with spaces between. What is
left out has its default. `str(problem)` writes fields in the order of the table, and nothing that is a default.

## Operators

| word | operator |
|---|---|
$operators

## Types and layout

Types: $types.
One word is that of input, weights and result; `f16>f32` has a wider result, `u8*i8>i32` other weights too.
Only u8 and i8 may be mixed. The result of floats may be any float type, but that of f64 only f64; that of integers any
integer type.

Layouts, of input, result and residual: $layouts, whatever the number of spatial axes. The axes
of the weights are output channels, input channels of a group, kernel in both; of `conv_transpose` input channels,
output channels of a group, kernel.

## Fields

| field | what | without it |
|---|---|---|
$fields

Values of several axes stand with `x` between them, as in `k3x5`; a single one of `k`, `s`, `p`, `d`, `op` and `y`
counts for all axes. Only `n` and `i` may be `?`: such a problem describes a layer, and a plan needs all of them.

Activations: $activations.

There is no field for `auto_pad`: a problem has the numbers that come of it, and
`polyconv.Conv(...).plan(shape).problem` shows them.

## Grammar

```text
problem  =  op " " types " " layout { " " field }
op       =  $ops
types    =  type [ "*" type ] [ ">" type ]            input, weights if they differ, result if it differs
layout   =  "NCHW" | "NHWC"                           or the rank's own: NCW NWC NCDHW NDHWC
field    =  key value  |  key "=" value  |  "mask"    each key once
value    =  item { "x" item }                         items by axis
item     =  number  |  number ":" number  |  "?"      pads: begin ":" end
```

An error names the word that is not understood, the fields there are, and the nearest: `stride2` is answered with `s2`.

## Examples

| text | convolution |
|---|---|
$examples
""")


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| `{first}` | {' | '.join(rest)} |" for first, *rest in rows)


def page() -> str:
    """The page's text."""
    activations = (f"{name}({','.join(row.parameters)})".removesuffix("()") for name, row in ACTIVATIONS.items())
    return TEXT.substitute(
        operators=_rows(OPERATORS.items()),
        types=", ".join(f"`{name}`" for name in DTYPES),
        layouts=", ".join(f"`{word}` ({meaning})" for word, meaning in LAYOUTS.items()),
        fields=_rows((row.example, row.meaning, row.absent or "must be given") for row in FIELDS.values()),
        activations=", ".join(f"`{text}`" for text in activations),
        ops=" | ".join(f'"{word}"' for word in OPERATORS),
        examples=_rows(EXAMPLES.items()),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
