"""run and explain: models and problems, what they are fed, what is written, what is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from polyconv import InferenceSession, conv
from polyconv import plan as plan_of
from polyconv.cli import saving
from polyconv.problem.problem import Problem

PROBLEM = "conv f32 NCHW n1 c3 i9x9 m4 k3x3 p1 b1"
MADE = {"smooth", "boxed", "sharp", "half", "quarter", "zoomed", "sobel", "scharr", "laplace", "coarse"} | {
    "gabor", "strokes",
}  # fmt: skip

# k eps sum|x||w| of the deepest output: 8 maps, each 225 products with weights of magnitude 4 in all
BOUND = 8 * 229 * 2.0**-23 * 4


def photo(bank: Path) -> np.ndarray:
    pixels = np.asarray(Image.open(bank / "photo.png"), np.float32) / np.float32(255)
    return np.ascontiguousarray(np.moveaxis(pixels, 2, 0)[None])


@pytest.fixture(scope="module")
def reference(bank: Path) -> dict[str, np.ndarray]:
    """What onnxruntime makes of the photograph."""
    session = onnxruntime.InferenceSession(str(bank / "filter_bank.onnx"))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"image": photo(bank)}), strict=True))


@pytest.mark.parametrize("model", ["filter_bank.onnx", "filter_bank.xml"])
def test_the_bank_on_the_photograph(
    polyconv: Callable[..., Any], bank: Path, reference: dict[str, np.ndarray], tmp_path: Path, model: str
) -> None:
    done = polyconv(
        "run", bank / model, "--input", f"image={bank / 'photo.png'}", "--save", tmp_path / "out", "--json"
    )
    assert done.code == 0, done.out
    assert {output["name"] for output in done.json["outputs"]} == set(reference) == MADE
    for name, want in reference.items():
        got = np.load(tmp_path / "out" / f"{name}.npy")
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=BOUND)
        if name != "gabor":
            pixels = np.asarray(Image.open(tmp_path / "out" / f"{name}.png"), np.float64)
            shown = np.moveaxis(want[0], 0, 2) if want.shape[1] == 3 else want[0, 0]
            assert np.abs(pixels - 255 * shown).max() <= 0.5 + 255 * BOUND, name
    assert not (tmp_path / "out" / "gabor.png").exists()
    assert {step["engine"] for step in done.json["steps"] if step["problem"]} == {"polyconv"}
    for step in done.json["steps"]:
        if step["problem"]:
            assert str(Problem.parse(step["problem"])) == step["problem"]
            assert step["algorithm"]
            assert step["milliseconds"] > 0


def test_a_person_gets_tables_and_nothing_on_stderr(
    polyconv: Callable[..., Any], bank: Path, tmp_path: Path
) -> None:
    model, picture = bank / "filter_bank.onnx", bank / "photo.png"
    done = polyconv("run", model, "-i", picture, "--save", tmp_path, "--images")
    assert (done.code, done.err) == (0, "")
    for word in ("what ran where", "smooth/Conv", "polyconv", "1x8x48x64", "gabor.png", "first run"):
        assert word in done.out
    assert Image.open(tmp_path / "gabor.png").size == (3 * 64, 3 * 48)


def test_random_inputs_are_seeded_and_dims_named(
    polyconv: Callable[..., Any], bank: Path, tmp_path: Path
) -> None:
    words = ["run", bank / "filter_bank.onnx", "--dim", "height=24", "--dim", "width=32"]
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert polyconv(*words, "--seed", seed, "--save", tmp_path / folder, "--no-images").code == 0
    a, b, c = (np.load(tmp_path / folder / "smooth.npy") for folder in "abc")
    assert a.shape == (1, 3, 24, 32)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert list((tmp_path / "a").glob("*.png")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--dim height=NUMBER"),
        (["--dim", "height=8"], "--dim width=NUMBER"),
        (["--dim", "height"], "name=value"),
        (["--dim", "height=-3"], "name=value"),
        (["--input", "picture={photo}"], "'picture'"),
        (["--input", "image=nothing.npy"], "nothing.npy"),
        (["--input", "image={bank}/filter_bank.bin"], ".bin"),
        (["--input", "image={bank}/broken.npy"], "broken.npy"),
        (["--input", "image={bank}/broken.png"], "broken.png"),
        (["--input", "{bank}/other.npz"], "wrong_name"),
    ],
)
def test_inputs_that_do_not_fit_are_wrong_usage(
    polyconv: Callable[..., Any], bank: Path, words: list[str], said: str
) -> None:
    (bank / "broken.npy").write_bytes(b"\x93NUMPY")
    (bank / "broken.png").write_bytes(b"no picture")
    np.savez(bank / "other.npz", wrong_name=np.zeros(3), another=np.zeros(3))
    filled = [word.format(bank=bank, photo=bank / "photo.png") for word in words]
    done = polyconv("run", bank / "filter_bank.onnx", *filled)
    assert done.code == 2
    assert said in " ".join(done.err.split())


def test_arrays_come_from_npy_and_npz(
    polyconv: Callable[..., Any], bank: Path, reference: dict[str, np.ndarray], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", photo(bank))
    np.savez(tmp_path / "x.npz", image=photo(bank), other=np.zeros(3))
    for number, word in enumerate([tmp_path / "x.npy", tmp_path / "x.npz", f"image={tmp_path / 'x.npz'}"]):
        folder = tmp_path / str(number)
        done = polyconv("run", bank / "filter_bank.onnx", "--input", word, "--save", folder)
        assert done.code == 0, done.err
        np.testing.assert_allclose(np.load(folder / "sobel.npy"), reference["sobel"], rtol=0, atol=BOUND)


def test_an_array_of_the_wrong_type_is_a_failure_that_names_it(
    polyconv: Callable[..., Any], bank: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", photo(bank).astype(np.float64))
    done = polyconv("run", bank / "filter_bank.onnx", "--input", tmp_path / "x.npy", "--json")
    assert done.code == 1
    assert done.json["error"]["code"] == "dtype"
    assert "float64" in done.json["error"]["message"]


def test_pickled_arrays_are_never_loaded(polyconv: Callable[..., Any], bank: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    assert polyconv("run", bank / "filter_bank.onnx", "--input", tmp_path / "x.npy").code == 2


def test_a_problem_runs_without_a_model(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    done = polyconv("run", PROBLEM, "--save", tmp_path, "--json", "--threads", 1, "--accuracy", "strict")
    assert done.code == 0, done.out
    [output] = done.json["outputs"]
    assert (output["name"], output["shape"]) == ("y", [1, 4, 9, 9])
    assert np.load(tmp_path / "y.npy").shape == (1, 4, 9, 9)
    [step] = done.json["steps"]
    assert step["problem"] == PROBLEM
    assert polyconv("run", PROBLEM, "--input", "x=y.npy").code == 2


def test_a_damaged_model_is_a_failure_that_says_so(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    for name, content in (("a.onnx", b"not a model"), ("b.xml", b"<net"), ("c.onnx", b"")):
        (tmp_path / name).write_bytes(content)
        done = polyconv("run", tmp_path / name, "--json")
        assert done.code == 1, (name, done)
        assert done.json["error"]["code"] == "model", name


def test_an_unsupported_model_is_exit_code_3(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    def described(name: str, kind: int, shape: list[int]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    y = described("y", TensorProto.FLOAT, [1, 1, 4, 4])
    branch = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], "inner")], "branch", [], [y])
    node = helper.make_node("Repeat", ["x"], ["y"], "strange", domain="mine", body=branch)
    inputs = [described("x", TensorProto.FLOAT, [1, 1, 4, 4])]
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 1, 1], [2.0])
    graph = helper.make_graph([node], "g", inputs, [y], [weights])
    imports = [helper.make_opsetid(domain, version) for domain, version in (("", 22), ("mine", 1))]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    save(model, tmp_path / "m.onnx")
    done = polyconv("run", tmp_path / "m.onnx", "--json")
    assert done.code == 3
    assert "strange" in done.json["error"]["message"]


def test_explain_a_problem(polyconv: Callable[..., Any]) -> None:
    import polyconv as package

    plan = package.plan(Problem.parse(PROBLEM))
    shown = polyconv("explain", PROBLEM)
    assert shown.code == 0 and "made for other problems" in shown.err
    lines = str(plan).splitlines()
    assert [line for line in lines if not line.startswith("refused")] == [
        line for line in shown.out.splitlines() if not line.startswith("refused")
    ]
    assert set(shown.out.splitlines()) < set(lines)
    [row] = polyconv("explain", PROBLEM, "--json").json["plans"]
    assert row["problem"] == PROBLEM
    assert row["algorithm"] == plan.algorithm
    assert row["workspace_bytes"] == plan.workspace_bytes
    assert row["refused"]


def test_explain_a_model_lists_each_distinct_problem_once(polyconv: Callable[..., Any], bank: Path) -> None:
    words = ["explain", bank / "filter_bank.onnx", "--dim", "height=16", "--dim", "width=16"]
    rows = polyconv(*words, "--json").json["plans"]
    problems = [row["problem"] for row in rows]
    assert len(problems) == len(set(problems))
    nodes = {name.partition("/")[0] for row in rows for name in row["nodes"]}
    assert MADE | {"grey", "soft", "sobel4", "scharr4"} == nodes
    assert polyconv(*words).code == 0


def test_explain_tells_weights_that_are_fed_from_constant_ones(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    info = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    held = numpy_helper.from_array(np.ones((32, 32, 11, 11), np.float32), "held")
    nodes = [
        helper.make_node("Conv", ["x", "held"], ["a"], "constant", pads=[5] * 4),
        helper.make_node("Conv", ["x", "fed"], ["b"], "moving", pads=[5] * 4),
    ]
    inputs = [info("x", shape=[1, 32, 20, 20]), info("fed", shape=[32, 32, 11, 11])]
    outputs = [info("a", shape=None), info("b", shape=None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [held])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    held_row, fed_row = polyconv("explain", tmp_path / "m.onnx", "--json").json["plans"]
    assert (held_row["nodes"], held_row["once"]) == (["constant"], False)
    assert (fed_row["nodes"], fed_row["once"]) == (["moving"], True)
    assert held_row["problem"] == fed_row["problem"]
    for row in (held_row, fed_row):
        plan = plan_of(Problem.parse(row["problem"]), once=row["once"])
        assert (row["algorithm"], row["seconds"]) == (plan.algorithm, plan.seconds)
    assert fed_row["seconds"] > held_row["seconds"]
    both = polyconv("explain", tmp_path / "m.onnx", "--once", "--json").json["plans"]
    assert [(row["once"], row["nodes"]) for row in both] == [(True, ["constant", "moving"])]
    assert "moving (weights come with each run)" in polyconv("explain", tmp_path / "m.onnx").out


def test_nothing_is_left_when_saving_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.npy").write_bytes(b"old")
    calls = []

    def fail(path: Path, values: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError("disk full")
        np.lib.format.open_memmap(path, "w+", values.dtype, values.shape)

    monkeypatch.setattr(saving.np, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        saving.save(tmp_path, {"a": np.zeros(3), "b": np.zeros(3)})
    assert [file.name for file in tmp_path.iterdir()] == ["a.npy"]
    assert (tmp_path / "a.npy").read_bytes() == b"old"


def test_file_names_are_harmless_and_distinct(tmp_path: Path) -> None:
    names = ["../x", "a/b", "a_b", "A_B", "", ".hidden", "n" * 500]
    outputs = {name: np.full(2, number) for number, name in enumerate(names)}
    saved = saving.save(tmp_path / "out", outputs)
    files = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert len({name.lower() for name in files}) == len(outputs)
    assert [p for p in tmp_path.iterdir() if p.name != "out"] == []
    for name, values in outputs.items():
        assert np.array_equal(np.load(saved[name].array), values)


def test_cache_counts_and_clears_only_its_own_files(
    polyconv: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYCONV_CACHE_DIR", str(tmp_path))
    for name in ("a" * 64 + ".o", "0" * 64 + ".o"):
        (tmp_path / name).write_bytes(b"x" * 1000)
    for name in ("mine.o", "thesis.tex", "A" * 64 + ".o"):
        (tmp_path / name).write_bytes(b"keep")
    facts = polyconv("cache", "info", "--json").json
    assert (facts["kernels"], facts["bytes"]) == (2, 2000)
    assert "2 kernels" in polyconv("cache", "clear").out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["A" * 64 + ".o", "mine.o", "thesis.tex"]
    assert polyconv("cache", "info").code == 0


def test_an_empty_or_missing_cache_is_no_error(
    polyconv: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYCONV_CACHE_DIR", str(tmp_path / "never"))
    assert polyconv("cache", "info", "--json").json["kernels"] == 0
    assert polyconv("cache", "clear").code == 0
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dim", "heigth=8"], ("'heigth'", "did you mean height=8?")),
        (["--dim", "planes=8"], ("'planes'", "there are height, width")),
        (["--dim", "height=8", "--dim", "height=9"], ("height=8", "height=9", "disagree")),
        (["--dim", "height=8", "--input", "photo.png"], ("height=8", "photo.png", "(1, 3, 96, 128)")),
    ],
)
@pytest.mark.parametrize("verb", ["run", "explain", "compare", "tune"])
def test_dimensions_that_no_input_has_are_refused(
    polyconv: Callable[..., Any], bank: Path, words: list[str], said: tuple[str, ...], verb: str
) -> None:
    words = [str(bank / word) if word == "photo.png" else word for word in words]
    done = polyconv(verb, bank / "filter_bank.onnx", *words)
    assert (done.code, done.out) == (2, "")
    assert all(word in done.err for word in said), done.err


def test_dimensions_of_a_fixed_model_are_refused(polyconv: Callable[..., Any], bank: Path) -> None:
    done = polyconv("explain", bank / "filter_bank.xml", "--dim", "height=480")
    assert done.code == 2 and "all sizes of this model are fixed" in done.err and "[1, 3, 96, 128]" in done.err


@pytest.mark.parametrize("verb", ["run", "explain", "bench", "compare", "tune"])
def test_a_picture_given_as_a_model_is_called_one(polyconv: Callable[..., Any], bank: Path, verb: str) -> None:
    done = polyconv(verb, bank / "photo.png")
    assert done.code == 2 and "is a picture" in done.err and "--input NAME=" in done.err


def test_files_that_are_no_models_are_called_what_they_are(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    arrays = tmp_path / "arrays.npz"
    np.savez(arrays, a=np.ones(3))
    content = {
        "a PNG picture": b"\x89PNG\r\n\x1a\n1234",
        "a zip archive": arrays.read_bytes(),
        "a TensorFlow Lite model": b"\x1c\0\0\0TFL3\0\0\0\0",
        "an HTML page": b"<!DOCTYPE html>\n<html></html>",
        "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "no ONNX model": b"nothing like it" * 9,
    }
    for what, data in content.items():
        (tmp_path / "model.onnx").write_bytes(data)
        done = polyconv("run", tmp_path / "model.onnx")
        assert done.code == 1 and what in done.err and "model.onnx" in done.err, done.err


def test_explain_a_model_has_a_row_a_layer_first(polyconv: Callable[..., Any], bank: Path) -> None:
    words = ["explain", bank / "filter_bank.onnx", "--dim", "height=16", "--dim", "width=16"]
    short, long = polyconv(*words), polyconv(*words, "--candidates")
    problems = {row["problem"] for row in polyconv(*words, "--json").json["plans"]}
    assert short.out.count("conv") >= len(problems) and "refused" not in short.out
    assert "16 convolutions, 14 plans" in short.out and "predicted on one thread" in short.out
    part = slice(short.out.index("convolutions, 14 plans"), short.out.index("together"))  # above it times are measured
    assert short.out[part] in long.out
    assert long.out.count("chosen      ") == len(problems)
    assert "computes deform_conv, not conv" not in long.out, "made for other problems"


def test_explain_a_model_has_a_row_a_step(polyconv: Callable[..., Any], bank: Path) -> None:
    words = ["explain", bank / "filter_bank.onnx", "--dim", "height=16", "--dim", "width=16"]
    document = polyconv(*words, "--json").json
    session = InferenceSession(bank / "filter_bank.onnx")
    assert [row["nodes"] for row in document["steps"]] == [list(step.nodes) for step in session.steps]
    plans = {row["problem"]: row for row in document["plans"]}
    for row in document["steps"]:
        assert row["measured_seconds"] > 0 and row["result_bytes"] is not None
        if row["algorithm"] is not None:
            names = " + ".join(row["nodes"])
            [plan] = [plan for plan in plans.values() if names in plan["nodes"]]
            assert (row["algorithm"], row["predicted_seconds"]) == (plan["algorithm"], plan["seconds"])
            assert f" {row['layout']} " in plan["problem"]
    assert sum(row["share"] for row in document["steps"]) == pytest.approx(1.0)
    assert 0 < document["memory"]["peak_bytes"] <= document["memory"]["sum_bytes"]
    shown = polyconv(*words)
    assert f"{len(document['steps'])} steps" in shown.out and "at once, in the step of" in shown.out
    assert "steps" not in polyconv(*words, "--node", "grey").out


def test_run_tells_the_memory_of_a_model(polyconv: Callable[..., Any], bank: Path) -> None:
    words = ["run", bank / "filter_bank.onnx", "--dim", "height=16", "--dim", "width=16", "--repeat", 1]
    assert "at once, in the step of" in polyconv(*words).out
    document = polyconv(*words, "--json").json
    assert 0 < document["memory"]["peak_bytes"] <= document["memory"]["sum_bytes"]


def test_explain_leaves_out_what_could_never_apply(polyconv: Callable[..., Any]) -> None:
    text = "conv f32 NCHW n1 c64 i9x56x56 m64 k3x3x3 p1"  # rows of tiles of three planes are not free anywhere
    done = polyconv("explain", text, "--workspace-limit", "0")
    named = [line.split()[1].rstrip(":") for line in done.out.splitlines() if line.startswith(("refused", "algorithm"))]
    assert set(named) == {c.algorithm for c in plan_of(Problem.parse(text)).candidates}
    assert "bytes of workspace, the limit is 0" in done.out


def test_many_files_run_in_batches(polyconv: Callable[..., Any], tmp_path: Path) -> None:
    info = partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    w = numpy_helper.from_array(np.full((2, 3, 3, 3), 0.25, np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], "one", pads=[1] * 4)
    pictures = [np.random.default_rng(n).integers(0, 255, (8 + 2 * (n == 3), 9, 3), np.uint8) for n in range(5)]
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"p{number}.png")
    for batch in ("N", 1, 2):
        graph = helper.make_graph([node], "g", [info("x", shape=[batch, 3, "h", "w"])], [info("y", shape=None)], [w])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, tmp_path / "m.onnx")
        out = tmp_path / f"out{batch}"
        words = ["run", tmp_path / "m.onnx", "--input", f"x={tmp_path}/p*.png", "--save", out]
        done = polyconv(*words, "--json")
        assert done.code == 0, done.err
        assert [Path(row["files"][0]).name for row in done.json["files"]] == [f"p{n}.png" for n in range(5)]
        assert "5 files" in polyconv(*words).out
        for number, picture in enumerate(pictures):
            x = np.moveaxis(picture.astype(np.float32) / 255, 2, 0)[None]
            right = conv(x, np.full((2, 3, 3, 3), 0.25, np.float32), pads=1)
            np.testing.assert_allclose(np.load(out / f"p{number}" / "y.npy"), right, atol=1e-5)


def test_patterns_that_make_no_sense(polyconv: Callable[..., Any], bank: Path) -> None:
    model = bank / "filter_bank.onnx"
    none = polyconv("run", model, "--input", f"image={bank}/*.gif")
    assert none.code == 2 and "no file" in none.err
    unknown = polyconv("run", model, "--input", f"picture={bank}/*.png")
    assert unknown.code == 2 and "no input 'picture'" in unknown.err and "image" in unknown.err
    alone = polyconv("run", model, "--input", f"image={bank}/photo.png", "--batch", "3")
    assert alone.code == 2 and "--batch" in alone.err
    wrong = polyconv("run", bank / "filter_bank.xml", "--input", f"image={bank}/*.png", "--batch", "3")
    assert wrong.code == 1 and "--batch" in wrong.err
