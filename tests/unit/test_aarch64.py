"""The tool that runs polyconv on an emulated 64-bit ARM, without an emulator: what it is told, asks for and starts."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import aarch64  # noqa: E402

POSIX = pytest.mark.skipif(os.name != "posix", reason="starts scripts of a shell")


@pytest.fixture
def on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this Python in the place of an emulated one."""
    monkeypatch.setattr(aarch64, "emulator", lambda: "qemu")
    monkeypatch.setattr(aarch64, "emulated_python", lambda folder, qemu: sys.executable)


def test_words_after_two_dashes_go_on() -> None:
    assert aarch64.divided(["fuzz", "3", "--", "--seed", "1", "--"]) == (["fuzz", "3"], ["--seed", "1", "--"])
    assert aarch64.divided(["tests"]) == (["tests"], [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: command"),
        (["bench"], "invalid choice: 'bench'"),
        (["fuzz"], "required: N"),
        (["fuzz", "0"], "'0' is not a number of problems"),
        (["fuzz", "few"], "'few' is not a number of problems"),
        (["tests", "tests/unit"], "unrecognized arguments: tests/unit"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        aarch64.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        aarch64.main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(f"\n  {word} " in text for word in ("fuzz", "tests", "python", "root"))
    assert "apt-get install qemu-user-static" in text and "--folder" in text


def test_python_needs_words() -> None:
    with pytest.raises(SystemExit, match="needs words after --"):
        aarch64.main(["python"])


def test_a_missing_emulator_is_named_with_its_package(
    on_x86: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"qemu-aarch64-static is missing.*apt-get install qemu-user-static"):
        aarch64.main(["--folder", str(tmp_path / "folder"), "root"])
    assert not (tmp_path / "folder").exists()


def test_a_machine_of_that_kind_needs_no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(SystemExit, match=r"tools/test\.py"):
        aarch64.emulator()


def test_another_system_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get is missing: this needs Debian"):
        aarch64.emulated_python(tmp_path / "folder", "qemu")


def test_it_asks_for_what_is_tested_but_no_other_engine() -> None:
    names = {line.split(">")[0].split("<")[0].split("=")[0].strip() for line in aarch64.requirements()}
    assert {"numpy", "llvmlite", "ml_dtypes", "filelock", "pytest", "hypothesis", "pytest-timeout", "mpmath"} <= names
    assert not names & {"torch", "onnxruntime", "openvino"} and not any("polyconv" in name for name in names)


@POSIX
def test_python_starts_itself_through_the_emulator(tmp_path: Path) -> None:
    """The script names qemu, the root, itself and the real Python, in folders with spaces too."""
    folder = tmp_path / "a folder"
    binaries, wheels = folder / "arm64-debian/usr/bin", folder / "arm64-debian/usr/local/lib/python3.11"
    binaries.mkdir(parents=True)
    wheels.mkdir(parents=True)
    (binaries / "python3.11").write_text("")
    (binaries / "python3").symlink_to("python3.11")
    (folder / "arm64-debian.done").write_text(" ".join(aarch64.PACKAGES))
    (wheels / "dist-packages.done").write_text("\n".join(aarch64.requirements()))
    qemu = folder / "qemu"
    qemu.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    qemu.chmod(0o755)
    script = aarch64.emulated_python(folder, str(qemu))
    said = subprocess.run([script, "-c", "a b"], capture_output=True, text=True, check=True).stdout
    root = folder / "arm64-debian"
    assert said.splitlines() == ["-L", str(root), "-0", str(script), str(binaries / "python3.11"), "-c", "a b"]


def test_a_fuzz_keeps_its_state(native: None, tmp_path: Path) -> None:
    """One file for each campaign, so that each goes on by itself."""
    for seed in ("7", "8"):
        assert aarch64.main(["--folder", str(tmp_path), "fuzz", "2", "--", "--seed", seed]) == 0
    states = [json.loads(file.read_text()) for file in (tmp_path / "fuzz").iterdir()]
    assert sorted((state["campaign"]["seed"], state["next"]) for state in states) == [(7, 2), (8, 2)]


def test_another_setting_has_another_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYCONV_CHECK", raising=False)
    plain = aarch64.state_name([])
    monkeypatch.setenv("POLYCONV_CHECK", "1")
    assert plain != aarch64.state_name([])


def test_other_code_has_other_states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/one.py").write_text("1")
    monkeypatch.setattr(aarch64, "ROOT", tmp_path)
    before = aarch64.state_name(["--seed", "1"])
    assert before == aarch64.state_name(["--seed", "1"]) != aarch64.state_name(["--seed", "2"])
    (tmp_path / "src/one.py").write_text("2")
    assert before != aarch64.state_name(["--seed", "1"])


def test_the_exit_status_is_the_commands_own(native: None, tmp_path: Path, capfd: Any) -> None:
    code = "import os, sys, polyconv; print(polyconv.__file__, os.environ['POLYCONV_CACHE_DIR']); sys.exit(3)"
    assert aarch64.main(["--folder", str(tmp_path), "python", "--", "-c", code]) == 3
    said = capfd.readouterr().out
    assert str(ROOT / "src" / "polyconv" / "__init__.py") in said and str(tmp_path / "kernels") in said
