"""Settings: who wins, what is refused, and that the page says what the table says."""

from __future__ import annotations

import contextvars
import os
import runpy
import sys
import threading
from pathlib import Path

import pytest

from polyconv.errors import ArgumentError
from polyconv.settings import SETTINGS, affinity, cgroup_quota, default_threads, resolve, settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in SETTINGS.values():
        for variable in row.variables:
            monkeypatch.delenv(variable, raising=False)


def test_argument_beats_context_beats_variable_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("accuracy") == "fast"
    monkeypatch.setenv("POLYCONV_ACCURACY", "strict")
    assert resolve("accuracy") == "strict"
    with settings(accuracy="fast"):
        assert resolve("accuracy") == "fast"
        assert resolve("accuracy", "strict") == "strict"
    assert resolve("accuracy") == "strict"


def test_threads_variable_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert resolve("threads") == 3
    monkeypatch.setenv("POLYCONV_NUM_THREADS", "5")
    assert resolve("threads") == 5
    monkeypatch.setenv("POLYCONV_NUM_THREADS", " ")
    assert resolve("threads") == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert resolve("threads") == default_threads()


def test_openmp_list_counts_its_outermost_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4,3,2")
    assert resolve("threads") == 4


def test_contexts_nest_and_end_with_errors() -> None:
    with settings(threads=2, accuracy="strict"):
        with pytest.raises(RuntimeError), settings(threads=3):
            assert (resolve("threads"), resolve("accuracy")) == (3, "strict")
            raise RuntimeError
        assert resolve("threads") == 2
        with settings(threads=None):
            assert resolve("threads") == 2


def test_a_context_is_its_threads_own() -> None:
    seen = {}

    def look(name: str) -> None:
        seen[name] = resolve("accuracy")

    with settings(accuracy="strict"):
        bare = threading.Thread(target=look, args=("bare",))
        copied = threading.Thread(target=contextvars.copy_context().run, args=(look, "copied"))
        for thread in (bare, copied):
            thread.start()
            thread.join()
    if not getattr(sys.flags, "thread_inherit_context", False):
        assert seen["bare"] == "fast"
    assert seen["copied"] == "strict"


@pytest.mark.parametrize("value", [0, -1, 1.5, "2.0", "many", True, "0"])
def test_threads_refuses_what_is_no_count(value: object) -> None:
    with pytest.raises(ArgumentError, match=r"^threads=.*at least 1"):
        resolve("threads", value)


@pytest.mark.parametrize(
    ("name", "variable", "text"),
    [
        ("threads", "POLYCONV_NUM_THREADS", "0"),
        ("threads", "OMP_NUM_THREADS", "all"),
        ("accuracy", "POLYCONV_ACCURACY", "FAST"),
        ("workspace_limit", "POLYCONV_WORKSPACE_LIMIT", "-1"),
        ("workspace_limit", "POLYCONV_WORKSPACE_LIMIT", "64 apples"),
        ("rigor", "POLYCONV_RIGOR", "hard"),
        ("check", "POLYCONV_CHECK", "maybe"),
        ("target", "POLYCONV_TARGET", "avx1024"),
        ("verbose", "POLYCONV_VERBOSE", "plan,everything"),
    ],
)
def test_an_invalid_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ArgumentError) as caught:
        resolve(name)
    assert variable in str(caught.value)
    assert repr(text) in str(caught.value)
    assert SETTINGS[name].values in str(caught.value)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (0, 0), (4096, 4096), ("0", 0), ("123", 123), ("1KiB", 1024), ("64MB", 64_000_000),
        ("64MiB", 67_108_864), ("1.5k", 1536), ("2 GiB", 2 << 30),
        ("1e3", None), (-1, None), (1.5, None), ("", None), (True, None),
    ],
)
def test_workspace_limit_units(given: object, value: int | None) -> None:
    if value is None:
        with pytest.raises(ArgumentError, match="workspace_limit"):
            resolve("workspace_limit", given)
    else:
        assert resolve("workspace_limit", given) == value


def test_verbose_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("verbose") == frozenset()
    monkeypatch.setenv("POLYCONV_VERBOSE", "plan, exec")
    assert resolve("verbose") == {"plan", "exec"}
    monkeypatch.setenv("POLYCONV_VERBOSE", "all")
    assert resolve("verbose") == {"plan", "compile", "exec", "dispatch"}


def test_unknown_and_process_settings_are_no_keywords() -> None:
    with pytest.raises(TypeError, match="thread"), settings(thread=1):
        pass
    with pytest.raises(TypeError, match="cache_dir"), settings(cache_dir="x"):
        pass


def test_cache_dir_follows_the_base_directory_specification(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POLYCONV_CACHE_DIR", str(tmp_path / "kernels"))
    assert resolve("cache_dir") == tmp_path / "kernels"
    monkeypatch.delenv("POLYCONV_CACHE_DIR")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert resolve("cache_dir") == tmp_path / "polyconv"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
        assert resolve("cache_dir") == Path.home() / ".cache" / "polyconv"


def test_default_threads_is_what_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(os, "sched_getaffinity"):
        assert affinity() == len(os.sched_getaffinity(0))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
        for quota, threads in ((None, 6), (2.9, 2), (0.4, 1), (64.0, 6)):
            monkeypatch.setattr(sys.modules["polyconv.settings"], "cgroup_quota", lambda quota=quota: quota)
            assert default_threads() == threads


def _groups(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_tightest_quota_on_the_way_up_holds(tmp_path: Path) -> None:
    member = tmp_path / "member"
    member.write_text("0::/pod/box\n")
    root = _groups(
        tmp_path / "fs",
        pod__box__cpu_DOT_max="300000 100000\n",
        pod__cpu_DOT_max="150000 100000\n",
        cpu_DOT_max="max 100000\n",
    )
    assert cgroup_quota(root, member) == 1.5


def test_a_group_path_of_the_host_still_finds_the_mounted_top(tmp_path: Path) -> None:
    member = tmp_path / "member"
    member.write_text("0::/../../elsewhere\n")
    root = _groups(tmp_path / "fs", cpu_DOT_max="250000 100000\n")
    assert cgroup_quota(root, member) == 2.5


def test_version_1_groups(tmp_path: Path) -> None:
    member = tmp_path / "member"
    member.write_text("5:memory:/box\n4:cpu,cpuacct:/box\n")
    root = _groups(
        tmp_path / "fs",
        cpu__box__cpu_DOT_cfs_quota_us="400000\n",
        cpu__box__cpu_DOT_cfs_period_us="100000\n",
        cpu__cpu_DOT_cfs_quota_us="-1\n",
        cpu__cpu_DOT_cfs_period_us="100000\n",
    )
    assert cgroup_quota(root, member) == 4.0


def test_no_groups_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path, tmp_path / "missing") is None


def test_the_page_says_what_the_table_says() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "settings_page.py"))["page"]
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == page(), "run python tools/settings_page.py"
