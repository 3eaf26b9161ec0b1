"""How every command behaves: streams, exit codes, errors as JSON, and what an import costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyconv.cli import EXIT_CODES, VERBS, application, bench, check
from polyconv.errors import ArgumentError, DtypeError, Error, ModelError, Unsupported

EXAMPLE = "conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1"


def test_importing_the_command_line_imports_no_typer() -> None:
    code = (
        "import sys, polyconv, polyconv.cli;"
        "print(sorted({'typer', 'rich', 'PIL', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_typer_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(name='typer')")
    done = subprocess.run(
        [sys.executable, "-m", "polyconv.cli", "info"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', 'src')}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "pip install 'polyconv[cli]'" in done.stderr
    assert done.stdout == ""


def test_help_lists_every_verb_and_exit_code(polyconv: Callable[..., Any]) -> None:
    done = polyconv("--help")
    assert done.code == 0
    folder = Path(check.__file__).parent
    for verb in VERBS:
        assert (verb in done.out) == (folder / f"{verb}.py").exists()
    words = " ".join(done.out.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in words


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(polyconv: Callable[..., Any], verb: str) -> None:
    if not (Path(check.__file__).parent / f"{verb}.py").exists():
        pytest.skip(f"polyconv has no verb {verb} yet")
    done = polyconv(verb, "--help")
    assert done.code == 0
    assert "--json" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fly"], "fly"),
        (["run"], "TARGET"),
        (["run", "no-such-file.onnx"], "no-such-file.onnx"),
        (["run", "conv f32 NCHW n1 c3 i8x8 m4"], "'k'"),
        (["run", "conv f32 NCHW n? c3 i8x8 m4 k3x3"], "'?'"),
        (["run", "conv f32 NCHW n1 c3 i8x8 m4 k3x3", "--threads", "0"], "--threads"),
        (["run", "conv f32 NCHW n1 c3 i8x8 m4 k3x3", "--accuracy", "exact"], "--accuracy"),
        (["run", "conv f32 NCHW n1 c3 i8x8 m4 k3x3", "--workspace-limit", "lots"], "workspace_limit"),
        (["explain", "conv f99 NCHW n1 c3 i8x8 m4 k3x3"], "f99"),
        (["check", "--conformance", "--fuzz", "3"], "--fuzz"),
        (["check", "--resume", "x"], "--resume"),
        (["check", "--faults", "--fuzz", "3"], "--faults"),
        (["check", "--target", "avx2", "--algorithm", "direct"], "--algorithm and --target"),
        (["cache", "burn"], "burn"),
    ],
)
def test_wrong_usage_is_2_and_says_what(polyconv: Callable[..., Any], words: list[str], said: str) -> None:
    plain = polyconv(*words)
    assert (plain.code, plain.out) == (2, "")
    assert said in plain.err
    document = polyconv(*words, "--json")
    assert document.code == 2
    assert document.json["error"]["code"] == "usage"
    assert said in document.json["error"]["message"]
    assert document.json["schema_version"] == 1


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (Unsupported("x"), 3, "unsupported"),
        (ModelError("x"), 1, "model"),
        (DtypeError("x"), 1, "dtype"),
        (ArgumentError("x"), 1, "argument"),
        (Error("x"), 1, "failure"),
        (FileNotFoundError(2, "x"), 1, "file"),
        (MemoryError("x"), 1, "memory"),
        (ImportError("x"), 1, "missing"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("x"), 1, "internal"),
    ],
)
def test_every_error_has_its_exit_code(
    polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, word: str
) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(check, "_self_test", lambda seed, as_json: fail())
    done = polyconv("check", "--json")
    assert done.code == code
    assert code in EXIT_CODES
    assert done.json["error"]["code"] == word
    assert ("Traceback" in done.err) == (word == "internal")
    shown = polyconv("check")
    assert shown.out == ""
    assert "polyconv:" in shown.err


def test_a_real_interrupt_ends_with_130() -> None:
    code = (
        "import os, signal, sys, threading, polyconv.cli;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # in the background it may be ignored
        "threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start();"
        "sys.exit(polyconv.cli.main(['check', '--fuzz', '100000000', '--peers', '']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""


def test_version(polyconv: Callable[..., Any]) -> None:
    done = polyconv("--version")
    assert done.code == 0
    assert done.out.startswith("polyconv ")


def test_quiet_and_no_color_are_accepted_before_the_verb(polyconv: Callable[..., Any]) -> None:
    done = polyconv("-q", "--no-color", "-vv", "info", "--json")
    assert done.code == 0
    assert done.err == ""


def test_the_error_table_ends_in_known_codes() -> None:
    assert {row[2] for row in application._ERRORS} <= set(EXIT_CODES)


def test_json_is_one_document_without_nan() -> None:
    from polyconv.cli.render import _plain

    content = {"a": float("nan"), "b": [float("inf"), 1.5], "c": (Path("x/y"), None, True)}
    spelled = json.dumps(_plain(content), allow_nan=False)
    assert spelled == '{"a": null, "b": [null, 1.5], "c": ["x/y", null, true]}'


@pytest.mark.parametrize("words", [["explain", EXAMPLE], ["info"], ["bench", "--help"], ["info", "--json"]])
def test_a_reader_that_has_enough_is_no_error(words: list[str]) -> None:
    command = [sys.executable, "-m", "polyconv", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in (said := process.stderr.read()) and b"BrokenPipe" not in said
    assert process.returncode == 0


@pytest.mark.parametrize("words", [["explain", EXAMPLE], ["check"], ["info"]])
@pytest.mark.parametrize("columns", [80, 60])
def test_tables_fit_the_terminal_and_are_not_padded(
    polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: list[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = polyconv(*words).out
    assert all(line == line.rstrip() for line in shown.splitlines())
    monkeypatch.delenv("COLUMNS")
    piped = polyconv(*words).out
    assert all(line == line.rstrip() for line in piped.splitlines())
    if words == ["check"]:
        assert max(map(len, shown.splitlines())) <= columns < max(map(len, piped.splitlines()))


def test_bench_names_the_sets_and_takes_json_like_all(polyconv: Callable[..., Any]) -> None:
    said = polyconv("bench", "--help").out
    assert all(name in said for name in ("resnet50", "mobilenet_v2", "unet3d"))
    done = polyconv("bench", "--set", "resnet50", "--json", "all.json")
    assert done.code == 2 and "--save all.json" in done.json["error"]["message"]


def test_bench_checks_its_files_before_it_measures(
    polyconv: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option in ("--save", "--report"):
        for file, why in ((tmp_path, "is a folder"), (tmp_path / "none" / "x", "no folder")):
            done = polyconv("bench", "--set", "all", option, file)
            assert done.code == 2 and option in done.err and why in done.err
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    done = polyconv("bench", "--set", "all", "--report", tmp_path / "all.html")
    assert done.code == 2 and "matplotlib" in done.err and "polyconv[bench]" in done.err
    done = polyconv("bench", "--set", "all", "--resume")
    assert done.code == 2 and "--save" in done.err
