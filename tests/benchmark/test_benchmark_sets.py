"""Layer sets, files of problem lines and families: what is measured, and under which name."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyconv.benchmark.families import FAMILIES, family
from polyconv.benchmark.sets import Case, layer_sets, of_file, of_line, of_model, of_sets, select
from polyconv.conformance.corpus import problems
from polyconv.errors import ArgumentError
from polyconv.models.session import NodeRecord
from polyconv.problem.problem import Problem


def test_every_line_of_the_package_is_a_distinct_named_layer() -> None:
    cases = of_sets(["all"])
    assert len(cases) == 156 == len({case.problem for case in cases}) == len({(c.set, c.name) for c in cases})
    assert all(case.set and case.name and case.source for case in cases)
    assert all(case.problem.x == case.problem.y == "f32" and case.problem.layout == "NCHW" for case in cases)
    assert len(layer_sets()) == 38


@pytest.mark.parametrize(
    ("set_", "name", "text"),
    [
        ("resnet50", "conv1", "conv f32 NCHW n1 c3 i224x224 m64 k7x7 s2 p3"),
        ("tcn", "k7_d16", "conv f32 NCHW n1 c150 i400 m150 k7 p96:0 d16"),
        ("fsrcnn", "k9s3_56", "conv_transpose f32 NCHW n1 c56 i96x96 m1 k9x9 s3 p4 op2"),
        ("deepbench", "w151h40c1k32_f20x5_p8s8x2", "conv f32 NCHW n1 c1 i40x151 m32 k5x20 s2x8 p8"),
    ],
)
def test_a_published_layer_reads_as_published(set_: str, name: str, text: str) -> None:
    assert [c.problem for c in layer_sets()[set_] if c.name == name] == [Problem.parse(text)]


def test_a_line_may_carry_set_name_and_source() -> None:
    problem = "conv f32 NCHW n1 c8 i12x12 m16 k3x3"
    assert of_line(problem) == Case(Problem.parse(problem))
    assert of_line(f"{problem}  # net a some paper") == Case(Problem.parse(problem), "net", "a", "some paper")


def test_a_causal_convolution_is_measured_as_the_padded_one() -> None:
    assert str(of_line("causal_conv f32 NCHW n1 c4 i16 m4 k3 g4").problem) == "conv f32 NCHW n1 c4 i16 m4 k3 p2:0 g4"


def test_lines_of_a_file_without_a_name_are_named_by_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("# nothing\n\nconv f32 NCHW n1 c8 i9x9 m8 k3x3\nconv f32 NHWC n1 c8 i9x9 m8 k3x3 # net a\n")
    assert [(case.set, case.name, case.problem.layout) for case in of_file(file)] == [
        ("mine", "3", "NCHW"), ("net", "a", "NHWC"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("conv f32 NCHW n1 c8 i9x9 m8 q3", "mine.txt:1"),
        ("conv f32 NCHW n? c8 i9x9 m8 k3x3", "leaves"),
        ("#", "no problem"),
    ],
)
def test_a_line_that_cannot_be_measured_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(text + "\n")
    with pytest.raises(ArgumentError, match=words):
        of_file(file)


def test_a_model_gives_each_problem_once_named_by_its_nodes() -> None:
    first, second = "conv f32 NCHW n1 c3 i8x8 m4 k3x3", "conv f32 NCHW n1 c4 i6x6 m4 k1x1"
    records = [
        NodeRecord("a", "Conv", "polyconv", 0, first), NodeRecord("r", "Relu", "polyconv", 0, first),
        NodeRecord("b", "Conv", "polyconv", 1, second), NodeRecord("s", "Softmax", "onnxruntime", 2),
        NodeRecord("c", "Conv", "polyconv", 3, second),
    ]  # fmt: skip
    assert [(c.set, c.name, str(c.problem)) for c in of_model("net", records)] == [
        ("net", "a+r", first), ("net", "b x2", second),
    ]  # fmt: skip


def test_select_drops_repetitions_and_what_does_not_match() -> None:
    cases = of_sets(["resnet50", "resnet50"])
    assert len(select(cases, None)) == 23
    assert {case.name for case in select(cases, "k7x7|5b_3x3$")} == {"conv1", "5b_3x3"}
    with pytest.raises(ArgumentError, match="fits none"):
        select(cases, "k9x9")
    with pytest.raises(ArgumentError, match="regular expression"):
        select(cases, "(")
    with pytest.raises(ArgumentError, match="there is no layer set lenet"):
        of_sets(["lenet"])


def test_every_problem_has_a_family() -> None:
    known = [case.problem for case in of_sets(["all"])]
    known += [p for p in problems(0, 500) if p.is_known and 0 not in p.out]
    names = {family(p).name for p in known}
    assert names <= {row.name for row in FAMILIES} and len(names) > 10


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1", "dense 3x3"),
        ("conv f32 NHWC n1 c512 i7x7 m512 k3x3 p1", "dense 3x3, maps up to 7"),
        ("conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1 s2", "1x1, strided, first layers, transposed"),
        ("conv f32 NCHW n1 c3 i56x56 m64 k3x3 p1", "1x1, strided, first layers, transposed"),
        ("conv f32 NCHW n1 c64 i56x56 m256 k1x1", "1x1, strided, first layers, transposed"),
        ("conv f32 NCHW n1 c3 i224x224 m768 k16x16 s16", "1x1, strided, first layers, transposed"),
        ("conv_transpose f32 NCHW n1 c64 i9x9 m32 k2x2 s2", "1x1, strided, first layers, transposed"),
        ("conv_transpose f32 NCHW n1 c64 i9x9 m32 k4x4 s2 p1", "1-D, 3-D, 5x5, transposed k4s2"),
        ("conv f32 NCHW n1 c64 i17x17 m64 k1x7 p0x3", "1-D, 3-D, 5x5, transposed k4s2"),
        ("conv f32 NCHW n1 c64 i400 m64 k5", "1-D, 3-D, 5x5, transposed k4s2"),
        ("conv f32 NCHW n1 c64 i16x28x28 m64 k3x3x3 p1", "1-D, 3-D, 5x5, transposed k4s2"),
        ("conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1 g64", "depthwise 3x3, maps above 28"),
        ("conv f32 NCHW n1 c64 i28x28 m64 k3x3 p1 g64", "depthwise 3x3, maps up to 28"),
        ("conv f32 NCHW n1 c64 i28x28 m64 k7x7 p3 g64", "depthwise 5x5, 7x7"),
        ("conv f32 NCHW n1 c64 i28x28 m64 k3x3 p1 s2 g64", "depthwise 1-D, 3-D, dilated, strided, multiplied"),
        ("conv f32 NCHW n1 c64 i28x28 m128 k3x3 p1 g64", "depthwise 1-D, 3-D, dilated, strided, multiplied"),
        ("conv f32 NCHW n1 c64 i56x56 m64 k31x31 p15 g64", "large kernels"),
        ("conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1 g16", "small groups"),
        ("conv f32 NCHW n1 c64 i8000 m128 k2 d8", "other"),
        ("conv f64 NCHW n1 c64 i56x56 m64 k3x3 p1", "f64, f16, integers"),
        ("conv u8*i8>i32 NCHW n1 c64 i56x56 m64 k3x3 p1", "int8: dense u8s8"),
        ("conv i8>i32 NCHW n1 c64 i56x56 m64 k3x3 p1", "int8: s8s8, groups, depthwise"),
    ],
)  # fmt: skip
def test_a_problem_belongs_to_the_family_of_its_shape(text: str, name: str) -> None:
    assert family(Problem.parse(text)).name == name
