"""Wisdom: what is measured is used, kept, merged; what a file says is believed only where it may be."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polyconv
from polyconv import ArgumentError, Problem, wisdom
from polyconv.algorithms.table import ALGORITHMS
from polyconv.lowering.situation import Situation
from polyconv.planning import measure
from polyconv.planning.planner import choose
from polyconv.planning.wisdom_file import read
from polyconv.target import host_target

TEXT = "conv f32 NCHW n1 c16 i12x12 m32 k3x3 p1"
PROBLEM = Problem.parse(TEXT)


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that knows nothing, with a file of its own."""
    monkeypatch.setenv("POLYCONV_WISDOM", str(tmp_path / "user.json"))
    _restart()
    yield
    wisdom.forget()


def _restart() -> None:
    wisdom.forget()
    wisdom._state["loaded"] = False


def _situation(text: str = TEXT, **more: Any) -> Situation:
    return Situation(Problem.parse(text), host_target(), **more)


def _other(s: Situation) -> str:
    """An applicable algorithm that the estimate does not choose."""
    choice = choose(s)
    return next(name for name in choice.costs if name != choice.algorithm)


def _learn(s: Situation | None = None) -> str:
    s = s or _situation()
    name = _other(s)
    wisdom.remember(s, name, {name: 1e-6, choose(s).algorithm: 2e-6}, "measure")
    return name


def _document(**changes: Any) -> dict[str, Any]:
    """The content of a file with one entry, some of its fields changed."""
    wisdom.forget()
    _learn()
    [entry] = wisdom.entries()
    wisdom.forget()
    return {"kind": "polyconv wisdom", "schema_version": 1, "entries": [{**asdict(entry), **changes}]}


def _written(file: Path, content: Any) -> Path:
    file.write_text(json.dumps(content))
    return file


def test_what_was_measured_is_used_by_plans_layers_and_calls() -> None:
    name = _learn()
    plan = polyconv.plan(PROBLEM)
    assert (plan.algorithm, plan.source) == (name, "measured")
    assert plan.measured == 1e-6
    layer = polyconv.Conv(np.ones((32, 16, 3, 3), np.float32), pads=1)
    assert layer.plan((1, 16, 12, 12)).algorithm == name
    # another batch, another number of threads and axes that mean the same: one situation
    assert polyconv.plan(replace(PROBLEM, n=7), threads=3).algorithm == name
    assert polyconv.plan(Problem.parse("conv f32 NCHW n1 c16 i1x12x12 m32 k1x3x3 p0x1x1")).algorithm == name


@pytest.mark.parametrize(
    "keywords", [{"strict": True}, {"limit": 1 << 30}, {"finite": False}], ids=lambda k: next(iter(k))
)
def test_another_situation_knows_nothing_of_it(keywords: dict[str, Any]) -> None:
    _learn()
    assert wisdom.decision(_situation()) is not None
    assert wisdom.decision(_situation(**keywords)) is None


def test_a_layer_keeps_its_choice_whatever_comes_later() -> None:
    layer = polyconv.Conv(np.ones((32, 16, 3, 3), np.float32), pads=1)
    before = layer.plan((1, 16, 12, 12)).algorithm
    name = _learn()
    assert name != before
    assert layer.plan((1, 16, 12, 12)).algorithm == before
    assert layer.plan((1, 16, 12, 12), rigor="estimate").algorithm == name  # asked to decide again


def test_measuring_decides_once_and_more_rigor_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_ROUNDS", {"measure": (2, 1e-3), "patient": (2, 1e-3)})
    made: list[str] = []

    def candidate(s: Situation, name: str) -> Any:
        made.append(name)
        return lambda: None

    first = measure.fastest(_situation(), "measure", candidate)
    assert first is not None and first.rigor == "measure" and first.source == "measured"
    count = len(made)
    assert measure.fastest(_situation(), "measure", candidate) == first
    assert len(made) == count
    second = measure.fastest(_situation(), "patient", candidate)
    assert second is not None and second.rigor == "patient"
    assert set(made[count:]) == set(choose(_situation()).costs), "patient measures every candidate"
    count = len(made)
    assert measure.fastest(_situation(), "measure", candidate) == second
    assert len(made) == count


@pytest.mark.parametrize(("share", "is_kept"), [(1.0, True), (1.01, True), (1.5, False)])
def test_a_gain_within_the_noise_leaves_the_prediction(
    share: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = choose(_situation()).algorithm

    def times(runs: Mapping[str, object], *rounds: float) -> dict[str, float]:
        return {name: 1e-3 * (share if name == predicted else 1.0) for name in runs}

    monkeypatch.setattr(measure, "_times", times)
    found = measure.fastest(_situation(), "measure", lambda s, name: lambda: None)
    assert found is not None
    assert (found.algorithm == predicted) == is_kept


def test_export_and_import(tmp_path: Path) -> None:
    name = _learn()
    assert wisdom.export(tmp_path / "a.json") == 1
    assert wisdom.forget() == 1
    assert polyconv.plan(PROBLEM).source == "estimate"
    [entry] = wisdom.import_(tmp_path / "a.json")
    assert (entry.algorithm, entry.problem) == (name, TEXT.replace("n1", "n?"))
    plan = polyconv.plan(PROBLEM)
    assert (plan.algorithm, plan.source) == (name, "wisdom")
    wisdom.export(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_the_users_file_is_read_by_the_next_process_and_grows() -> None:
    name = _learn()
    file = wisdom.save()
    assert file is not None and file == wisdom.path()
    _restart()
    assert polyconv.plan(PROBLEM).source == "wisdom"
    assert polyconv.plan(PROBLEM).algorithm == name
    _restart()
    _learn(_situation(TEXT.replace("m32", "m48")))
    wisdom.save()
    assert len(read(file)) == 2


def test_processes_that_save_at_once_lose_nothing() -> None:
    """Each measures one problem after the other and saves after each: all are in the file in the end."""
    code = """
        import sys
        from polyconv import Problem, wisdom
        from polyconv.lowering.situation import Situation
        from polyconv.target import host_target
        first = int(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.readline()
        for m in range(first, first + 12):
            s = Situation(Problem.parse(f"conv f32 NCHW n1 c16 i12x12 m{m} k3x3 p1x1"), host_target())
            wisdom.remember(s, "direct", {"direct": 1e-6}, "measure")
            assert wisdom.save() is not None
            wisdom.forget()
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    started = [
        subprocess.Popen([*words, str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for first in (8, 108)
    ]
    for process in started:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait(60) for process in started] == [0, 0]
    file = wisdom.path()
    assert file is not None
    assert len(read(file)) == 24


def test_saving_drops_what_this_machine_can_no_longer_use_and_keeps_other_machines() -> None:
    file = wisdom.path()
    assert file is not None
    content = _document(generator="older")
    content["entries"].append({**content["entries"][0], "cpu": "other", "problem": "x"})
    _written(file, content)
    _restart()
    _learn(_situation(TEXT.replace("m32", "m48")))
    wisdom.save()
    assert sorted(e.cpu for e in read(file)) == sorted([host_target().cpu, "other"])


def test_off_means_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCONV_WISDOM", "off")
    _restart()
    _learn()
    assert wisdom.path() is None and wisdom.save() is None
    assert polyconv.plan(PROBLEM).source == "measured"


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu": "pentium"},
        {"generator": "0123456789abcdef"},
        {"version": "99.0"},
        {"algorithm": "telepathy", "arithmetic": "telepathy f32"},
        {"algorithm": "deformable", "arithmetic": "deformable f32"},  # refuses this problem
        {"arithmetic": "winograd f32 F(9,9)"},
        {"problem": "no problem at all"},
        {"target": "sse"},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_what_cannot_be_used_is_ignored_and_no_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    wisdom.import_(_written(tmp_path / "w.json", _document(**changes)))
    assert polyconv.plan(PROBLEM).source == "estimate"


def test_no_file_brings_an_algorithm_beyond_the_accuracy_level(tmp_path: Path) -> None:
    estimate = polyconv.plan(PROBLEM, accuracy="strict")
    for name in ALGORITHMS:
        content = _document(accuracy="strict", algorithm=name, arithmetic=f"{name} f32")
        for arithmetic in (f"{name} f32", "winograd f32 F(4,3)xF(4,3)", "winograd f32 F(2,3)xF(2,3)"):
            content["entries"][0]["arithmetic"] = arithmetic
            wisdom.forget()
            wisdom.import_(_written(tmp_path / "w.json", content))
            assert polyconv.plan(PROBLEM, accuracy="strict").bound_kind == "own" == estimate.bound_kind


def test_no_file_brings_an_algorithm_beyond_the_workspace_limit(tmp_path: Path) -> None:
    content = _document(workspace_limit=0, algorithm="winograd", arithmetic="winograd f32 F(4,3)xF(4,3)")
    wisdom.import_(_written(tmp_path / "w.json", content))
    assert polyconv.plan(PROBLEM, workspace_limit=0).workspace_bytes == 0


def test_of_two_entries_the_usable_then_the_careful_then_the_later_wins(tmp_path: Path) -> None:
    plain = _document()
    names = {
        "patient": {"rigor": "patient", "batch": 2},
        "later": {"batch": 3},
        "foreign": {"rigor": "patient", "batch": 4, "version": "99.0"},
    }
    files = {"plain": _written(tmp_path / "plain.json", plain)}
    for name, changes in names.items():
        files[name] = _written(tmp_path / f"{name}.json", _document(**changes))

    def winner(*order: str) -> int:
        assert wisdom.merge([files[name] for name in order], tmp_path / "all.json") == 1
        return read(tmp_path / "all.json")[0].batch

    assert winner("plain", "later") == 3
    assert winner("later", "plain") == 1
    assert winner("patient", "plain") == winner("plain", "patient") == 2
    assert winner("foreign", "plain") == winner("plain", "foreign") == 1
    assert wisdom.entries() == ()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "JSON"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"kind": "polyconv wisdom"', "JSON"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested"),
        (b"[]", "kind"),
        (b"null", "kind"),
        (b'{"kind": "something else"}', "kind"),
        (b'{"kind": "polyconv wisdom"}', "schema_version"),
        (b'{"kind": "polyconv wisdom", "schema_version": 2, "entries": []}', "schema_version"),
        (b'{"kind": "polyconv wisdom", "schema_version": true, "entries": []}', "schema_version"),
        (b'{"kind": "polyconv wisdom", "schema_version": 1}', "list"),
        (b'{"kind": "polyconv wisdom", "schema_version": 1, "entries": {}}', "list"),
        (b'{"kind": "polyconv wisdom", "schema_version": 1, "entries": [7]}', "entry 0"),
        (b'{"kind": "polyconv wisdom", "schema_version": 1, "entries": [{}]}', "lacks problem"),
        (b'{"kind": "polyconv wisdom", "schema_version": NaN}', "NaN"),
        (b" " * ((16 << 20) + 1), "16 MiB"),
        (b"1" * 10_000, "JSON"),
    ],
)
def test_a_bad_file_is_an_error_that_names_it(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(data)
    with pytest.raises(ArgumentError, match=said) as caught:
        wisdom.import_(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("problem", 3), ("problem", ""), ("problem", "x" * 2000), ("problem", "\x1b[31m"), ("finite", 1),
        ("accuracy", "loose"), ("accuracy", ["fast"]), ("rigor", "estimate"), ("workspace_limit", -1),
        ("workspace_limit", 1.5), ("batch", True), ("threads", "2"), ("seconds", [1.0]), ("seconds", {"direct": "1"}),
        ("seconds", {"direct": -1.0}), ("seconds", {"direct": 10**400}), ("seconds", {"direct": True}),
        ("batch", 10**30), ("generator", None), ("version", {}),
    ],
)  # fmt: skip
def test_a_wrong_field_is_an_error_and_nothing_is_taken(tmp_path: Path, field: str, value: Any) -> None:
    content = _document()
    content["entries"].append({**content["entries"][0], field: value})
    with pytest.raises(ArgumentError, match=f"entry 1 has {field}="):
        wisdom.import_(_written(tmp_path / "w.json", content))
    assert wisdom.entries() == ()


def test_a_folder_a_pipe_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        wisdom.import_(tmp_path / "none.json")
    with pytest.raises((ArgumentError, OSError)):
        wisdom.import_(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ArgumentError, match="plain file"):
            wisdom.import_(tmp_path / "pipe")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_bytes_are_taken_whole_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    wisdom.forget()
    file = tmp_path / "fuzz.json"
    how = data.draw(st.sampled_from(["bytes", "cut", "flip", "value", "document"]))
    content = _document()
    whole = json.dumps(content).encode()
    if how == "bytes":
        file.write_bytes(data.draw(st.binary(max_size=200)))
    elif how == "cut":
        file.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    elif how == "flip":
        at = data.draw(st.integers(0, len(whole) - 1))
        file.write_bytes(whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :])
    elif how == "value":
        field = data.draw(st.sampled_from(sorted(content["entries"][0])))
        content["entries"][0][field] = data.draw(_json)
        _written(file, content)
    else:
        content[data.draw(st.sampled_from(sorted(content)))] = data.draw(_json)
        _written(file, content)
    try:
        found = wisdom.import_(file)
    except ArgumentError as error:
        assert str(file) in str(error)
        assert wisdom.entries() == ()
    else:
        assert len(wisdom.entries()) == len({entry.key for entry in found})
    for accuracy in ("fast", "strict"):
        plan = polyconv.plan(PROBLEM, accuracy=accuracy)
        assert accuracy == "fast" or plan.bound_kind == "own"


def test_trouble_with_the_users_file_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    file = wisdom.path()
    assert file is not None
    file.write_text("{")
    _restart()
    with caplog.at_level(logging.WARNING, logger="polyconv"):
        assert polyconv.plan(PROBLEM).source == "estimate"
        assert polyconv.plan(PROBLEM).source == "estimate"
    assert len(caplog.records) == 1
    assert str(file) in caplog.text
    caplog.clear()
    _learn()
    with caplog.at_level(logging.WARNING, logger="polyconv"):
        assert wisdom.save() is None
    assert "cannot be saved" in caplog.text
    assert file.read_text() == "{", "what is no wisdom is not overwritten"


@pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")
def test_the_users_file_must_be_private_and_no_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _learn()
    file = wisdom.save()
    assert file is not None
    assert not file.stat().st_mode & stat.S_IWOTH
    file.chmod(0o666)
    _restart()
    with caplog.at_level(logging.WARNING, logger="polyconv"):
        assert polyconv.plan(PROBLEM).source == "estimate"
    assert "others may write it" in caplog.text
    file.chmod(0o600)
    file.rename(tmp_path / "elsewhere.json")
    file.symlink_to(tmp_path / "elsewhere.json")
    _restart()
    with caplog.at_level(logging.WARNING, logger="polyconv"):
        assert polyconv.plan(PROBLEM).source == "estimate"
    assert len(caplog.records) == 2


def test_a_plan_tells_predicted_and_measured_times_and_where_the_choice_came_from() -> None:
    before = polyconv.plan(PROBLEM)
    assert before.measured is None and "nothing was measured" in str(before)
    name = _learn()
    plan = polyconv.plan(PROBLEM)
    by_name = {c.algorithm: c for c in plan.candidates}
    assert set(by_name) == {c.algorithm for c in before.candidates} >= {name, before.algorithm}
    assert by_name[before.algorithm].measured == 2e-6
    assert by_name[name].predicted == plan.seconds
    refused = dict(plan.refused)
    assert set(refused) == set(ALGORITHMS) - {name}
    assert "times faster" in refused[before.algorithm]
    assert "measured 2.00 times slower (2 us)" in refused[before.algorithm]
    assert "measured in this process" in str(plan) and "batch 1, 1 thread, rigor measure" in str(plan)
