"""``tune`` and ``wisdom``: measured choices on their way to the user's file and out of it, and in ``explain``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polyconv import wisdom
from polyconv.planning.wisdom_file import read
from polyconv.target import levels

ONE = "conv f32 NCHW n1 c16 i12x12 m32 k3x3 p1"
TWO = "conv f32 NHWC n1 c8 i9 m8 k3"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process that knows nothing, and its user's file."""
    file = tmp_path / "user" / "wisdom.json"
    monkeypatch.setenv("POLYCONV_WISDOM", str(file))
    monkeypatch.delenv("POLYCONV_CHECK", raising=False)
    _restart()
    yield file
    wisdom.forget()


def _restart() -> None:
    wisdom.forget()
    wisdom._state["loaded"] = False


def test_tune_measures_keeps_and_explain_tells(polyconv: Callable[..., Any], own: Path) -> None:
    before = polyconv("explain", ONE)
    assert "nothing was measured" in before.out
    done = polyconv("tune", ONE, TWO, "--threads", "1")
    assert done.code == 0, done.err
    assert "estimate within 10 % of the best measured candidate" in done.out
    assert f"{ONE}: " in done.err and str(own) in done.err
    assert {entry.rigor for entry in read(own)} == {"measure"}
    _restart()
    after = polyconv("explain", ONE)
    assert "wisdom, measured in an earlier process" in after.out
    [plan] = polyconv("explain", ONE, "--json").json["plans"]
    assert plan["source"] == "wisdom"
    times = {c["algorithm"]: c["measured"] for c in plan["candidates"]}
    assert times[plan["algorithm"]] == plan["measured"] > 0
    assert {name for name, _ in plan["refused"]} | {plan["algorithm"]} >= set(times)


def test_tune_json_and_what_is_known_is_not_measured_again(polyconv: Callable[..., Any], own: Path) -> None:
    first = polyconv("tune", ONE, "--json").json
    [row] = first["rows"]
    assert first["file"] == own.as_posix() and first["problems"] == 1
    assert (row["problem"], row["source"]) == (ONE, "measured")
    measured = {c["algorithm"]: c["measured"] for c in row["candidates"]}
    assert row["gain"] == pytest.approx(measured[row["estimate"]] / measured[row["chosen"]])
    assert first["estimate_near"] == (row["loss"] <= 1.1)
    _restart()
    [known] = polyconv("tune", ONE, "--json").json["rows"]
    assert known == {**row, "source": "wisdom"}
    _restart()
    [again] = polyconv("tune", ONE, "--json", "--again").json["rows"]
    assert again["source"] == "measured"
    _restart()
    [careful] = polyconv("tune", ONE, "--json", "--rigor", "patient").json["rows"]
    assert careful["source"] == "measured"
    assert [entry.rigor for entry in read(own)] == ["patient"]


def test_tune_takes_what_bench_takes(polyconv: Callable[..., Any], tmp_path: Path, bank: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text(f"# two\n{ONE}  # net first\n{TWO}\n")
    sizes = ("--dim", "height=24", "--dim", "width=20")
    words = ("tune", lines, bank / "filter_bank.onnx", *sizes, "--json", "--match", "first|filter_bank")
    rows = polyconv(*words).json["rows"]
    assert rows[0]["label"] == "net first NCHW"
    assert all(row["label"].startswith("filter_bank") for row in rows[1:]) and len(rows) > 1
    both = polyconv("tune", ONE, "--layout", "both", "--json").json["rows"]
    assert [row["problem"].split()[2] for row in both] == ["NCHW", "NHWC"]


def test_a_time_limit_ends_it_and_keeps_what_was_done(polyconv: Callable[..., Any]) -> None:
    done = polyconv("tune", ONE, TWO, "--time-limit", "0")
    assert done.code == 0
    assert "the time limit left 2 of 2 out" in done.out


def test_tune_at_other_settings_is_other_wisdom(polyconv: Callable[..., Any], own: Path) -> None:
    words = ("--accuracy", "strict", "--target", levels()[0], "--workspace-limit", "0")
    assert polyconv("tune", ONE, *words).code == 0
    [entry] = read(own)
    assert (entry.accuracy, entry.target, entry.workspace_limit) == ("strict", levels()[0], 0)
    assert polyconv("explain", ONE, "--json").json["plans"][0]["source"] == "estimate"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune"], "name what to tune"),
        (["tune", ONE, "--rigor", "guess"], "guess"),
        (["tune", ONE, "--match", "xyz"], "fits none"),
        (["tune", "--set", "nonet"], "nonet"),
        (["wisdom"], "ACTION"),
        (["wisdom", "praise"], "praise"),
        (["wisdom", "export"], "1 files"),
        (["wisdom", "merge", "a"], "--into"),
        (["wisdom", "show", "--into", "x"], "--into"),
        (["wisdom", "path", "--match", "x"], "--match"),
        (["wisdom", "show", "--match", "("], "regular expression"),
    ],
)
def test_wrong_usage(polyconv: Callable[..., Any], words: list[str], said: str) -> None:
    done = polyconv(*words)
    assert (done.code, done.out) == (2, "")
    assert said.lower() in done.err.lower()


def test_tuning_checked_kernels_is_refused(polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_CHECK", "1")
    done = polyconv("tune", ONE)
    assert done.code == 2 and "POLYCONV_CHECK" in done.err


def test_wisdom_there_and_back(polyconv: Callable[..., Any], own: Path, tmp_path: Path) -> None:
    empty = polyconv("wisdom", "show", "--json").json
    assert (empty["entries"], empty["file"]) == ([], own.as_posix())
    assert polyconv("wisdom", "path").out.strip() == str(own)
    polyconv("tune", ONE, TWO)
    shown = polyconv("wisdom", "show")
    assert "2 entries, 2 of use here" in shown.out
    assert polyconv("wisdom", "export", tmp_path / "out.json").code == 0
    assert (tmp_path / "out.json").read_bytes() == own.read_bytes()
    assert "forgot 1 of 2" in polyconv("wisdom", "forget", "--match", "NHWC", "--yes").out
    assert len(read(own)) == 1
    assert polyconv("wisdom", "forget", "-y").code == 0
    assert not own.exists()
    _restart()
    done = polyconv("wisdom", "import", tmp_path / "out.json", "--json").json
    assert (done["count"], done["usable"]) == (2, 2)
    assert own.read_bytes() == (tmp_path / "out.json").read_bytes()


def test_wisdom_of_others_is_taken_kept_and_said_to_be_of_no_use(
    polyconv: Callable[..., Any], own: Path, tmp_path: Path
) -> None:
    polyconv("tune", ONE)
    content = json.loads(own.read_text())
    content["entries"][0]["cpu"] = "pentium"
    (tmp_path / "other.json").write_text(json.dumps(content))
    _restart()
    done = polyconv("wisdom", "import", tmp_path / "other.json")
    assert done.code == 0 and "0 of use here" in done.out and "another CPU, pentium" in done.err
    assert len(read(own)) == 2
    assert "1 of use here" in polyconv("wisdom", "show").out
    merged = polyconv("wisdom", "merge", own, tmp_path / "other.json", "--into", tmp_path / "all.json", "--json").json
    assert merged["count"] == 2
    assert "pentium" in polyconv("wisdom", "show", tmp_path / "all.json").out


def test_a_bad_file_is_an_error_here_and_a_warning_elsewhere(polyconv: Callable[..., Any], own: Path) -> None:
    own.parent.mkdir()
    own.write_text('{"kind": "nonsense"}')
    done = polyconv("wisdom", "show")
    assert done.code == 1 and str(own) in done.err and done.out == ""
    assert polyconv("wisdom", "import", own, "--json").json["error"]["code"] == "argument"
    assert polyconv("wisdom", "import", own.parent / "none.json", "--json").json["error"]["code"] == "file"
    _restart()
    assert polyconv("explain", ONE).code == 0
    assert polyconv("wisdom", "forget", "-y").code == 0
    assert not own.exists()


def test_off(polyconv: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_WISDOM", "off")
    assert "nothing was kept" in polyconv("tune", ONE).err
    assert polyconv("wisdom", "path").out.strip() == "off"
    assert polyconv("wisdom", "show").code == 2


def test_another_process_measures_nothing(polyconv: Callable[..., Any], own: Path) -> None:
    polyconv("tune", ONE)
    code = (
        "import polyconv.planning.measure as m, polyconv\n"
        "m._times = None\n"
        f"plan = polyconv.plan(polyconv.Problem.parse({ONE!r}), rigor='measure')\n"
        "print(plan.source, plan.algorithm)"
    )
    environment = {**os.environ, "POLYCONV_WISDOM": str(own)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    [entry] = read(own)
    assert done.stdout.split() == ["wisdom", entry.algorithm]
