"""The folder of compiled kernels: found again by the next process, and harmless in whatever state it is."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fresh import finish, run, start

from polyconv.target import levels

POSIX = pytest.mark.skipif(os.name != "posix", reason="modes and owners of POSIX")

SCRIPT = """
import json, logging

class Heard(logging.Handler):
    messages = []
    def emit(self, record):
        self.messages.append(record.getMessage())

logging.getLogger("polyconv").addHandler(Heard())
one = layer(c=17, m=19)
y = one(image(c=17, size=12))
from polyconv.kernels.objects import EVENTS
found = {"sum": float(y.sum()), "compiled": EVENTS.compiled, "loaded": EVENTS.loaded, "heard": Heard.messages,
         "llvm": "llvmlite.binding" in sys.modules}
print(json.dumps(found))
"""


def compute(cache: Path, **variables: str) -> dict[str, Any]:
    """What a fresh process finds with this folder; its result is right."""
    found: dict[str, Any] = json.loads(run(SCRIPT, cache, **variables))
    assert found["sum"] == right_sum()
    return found


def right_sum() -> float:
    """The sum of the script's results by the formula, in Python's integers."""
    w = [
        [[(((m * 17 + c) * 3 + a) * 3 + b) % 7 - 3 for a in range(3) for b in range(3)] for c in range(17)]
        for m in range(19)
    ]
    taps = [[sum(w[m][c][t] for m in range(19)) for t in range(9)] for c in range(17)]
    total = 0
    for c in range(17):
        for i in range(12):
            for j in range(12):
                x = ((c * 12 + i) * 12 + j) % 5 - 2
                total += x * sum(
                    taps[c][3 * a + b]
                    for a in range(3)
                    for b in range(3)
                    if 0 <= i - a + 1 < 12 and 0 <= j - b + 1 < 12
                )
    return float(total)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache") / "made" / "by" / "polyconv"
    found = compute(folder)
    assert found["compiled"] > 0
    assert found["loaded"] == 0
    return folder


def objects_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.o"))


def copy_of(folder: Path, to: Path) -> Path:
    to.mkdir(mode=0o700)
    for file in objects_in(folder):
        (to / file.name).write_bytes(file.read_bytes())
        (to / file.name).chmod(0o600)
    return to


@POSIX
def test_the_folder_and_its_files_are_private(warm: Path) -> None:
    assert warm.stat().st_mode & 0o777 == 0o700
    assert objects_in(warm)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in objects_in(warm))
    assert not list(warm.glob("*.part"))


def test_the_next_process_compiles_nothing(warm: Path) -> None:
    found = compute(warm)
    assert found["compiled"] == 0
    assert found["loaded"] > 0
    assert found["heard"] == []
    on_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    assert found["llvm"] is not on_linux  # where objects can be loaded without it


@pytest.mark.parametrize("damage", ["truncated", "a bit flipped", "noise"])
def test_what_is_kept_of_the_processor_is_found_anew_when_damaged(warm: Path, tmp_path: Path, damage: str) -> None:
    folder = copy_of(warm, tmp_path / "cache")
    kept = {file.name: file.read_bytes() for file in warm.glob("*.cpu")}
    for name, data in kept.items():
        (folder / name).write_bytes(DAMAGES[damage](data))
        (folder / name).chmod(0o600)
    found = compute(folder)
    assert found["compiled"] == 0
    assert len(found["heard"]) == len(kept)
    assert {file.name: file.read_bytes() for file in folder.glob("*.cpu")} == kept


@pytest.mark.skipif(len(levels()) == 1, reason="this machine has one target only")
def test_targets_have_objects_of_their_own(tmp_path: Path) -> None:
    assert all(compute(tmp_path / "cache", POLYCONV_TARGET=level)["compiled"] > 0 for level in levels())
    assert all(compute(tmp_path / "cache", POLYCONV_TARGET=level)["compiled"] == 0 for level in levels())


def _truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    place = len(data) * 2 // 3
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": _truncated,
    "a bit flipped": _flipped,
    "a bit of the digest flipped": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    "empty": lambda data: b"",
    "of another format": lambda data: b"polyconv-object-0\n" + data[18:],
    "without a digest": lambda data: data[:20],
    "longer": lambda data: data + b"\0",
    "noise": lambda data: hashlib.sha512(data).digest() * 20,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_objects_are_compiled_again_and_replaced(warm: Path, tmp_path: Path, damage: str) -> None:
    folder = copy_of(warm, tmp_path / "cache")
    for file in objects_in(folder):
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
    found = compute(folder)
    assert found["compiled"] > 0
    assert found["loaded"] == 0
    assert len(found["heard"]) == 1  # one warning for all of them
    assert "damaged" in found["heard"][0]
    assert {f.name: f.read_bytes() for f in objects_in(folder)} == {f.name: f.read_bytes() for f in objects_in(warm)}


def _as_file(folder: Path) -> None:
    folder.write_text("not a folder")


def _below_a_file(folder: Path) -> None:
    folder.parent.rmdir()
    folder.parent.write_text("not a folder")


def _group_writable(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o770)


def _link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def _foreign(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)


STATES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a file": (_as_file, "cannot be used"),
    "below a file": (_below_a_file, "cannot be used"),
    "writable by others": (_group_writable, "chmod 700"),
    "a link": (_link, "not a folder of this user"),
    "another user's": (_foreign, "not a folder of this user"),
}


@POSIX
@pytest.mark.parametrize("state", STATES)
def test_a_folder_that_cannot_be_trusted_is_left_alone(tmp_path: Path, state: str) -> None:
    if state == "another user's" and os.getuid() != 0:
        pytest.skip("only root can give files away")
    (tmp_path / "parent").mkdir()
    folder = tmp_path / "parent" / "cache"
    prepare, message = STATES[state]
    prepare(folder)
    found = compute(folder)
    assert found["compiled"] > 0
    assert len(found["heard"]) == 1
    assert message in found["heard"][0]
    assert not [file for file in tmp_path.rglob("*") if file.suffix in (".o", ".part")]


@POSIX
def test_files_that_cannot_be_trusted_are_compiled_again(warm: Path, tmp_path: Path) -> None:
    """Links, files that others may write, folders in the place of files: none is read; one warning for each kind."""
    folder = copy_of(warm, tmp_path / "cache")
    files = objects_in(folder)
    assert len(files) >= 4
    files[0].rename(tmp_path / "target.o")
    files[0].symlink_to(tmp_path / "target.o")
    files[1].chmod(0o620)
    files[2].unlink()
    files[2].mkdir()
    foreign = os.getuid() == 0
    if foreign:
        os.chown(files[3], 12345, 12345)
    found = compute(folder)
    assert found["compiled"] == 3 + foreign
    assert sum("cannot be read" in message for message in found["heard"]) == 1
    assert sum("not a private file" in message for message in found["heard"]) == 1
    assert (tmp_path / "target.o").read_bytes() == (warm / files[0].name).read_bytes()
    assert not files[0].is_symlink()  # replaced by one of our own
    assert files[2].is_dir()
    found = compute(folder)
    assert found["compiled"] == 1  # the folder in the place of a file is still there


@POSIX
def test_a_full_disk(tmp_path: Path) -> None:
    """No file can grow beyond 100 bytes: every write fails, as on a full disk."""
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""
    found = json.loads(run(code + SCRIPT, tmp_path / "cache"))
    assert found["sum"] == right_sum()
    assert found["compiled"] > 0
    assert len(found["heard"]) == 1
    assert "cannot be written" in found["heard"][0]
    assert list((tmp_path / "cache").iterdir()) == []


@POSIX
def test_a_folder_that_cannot_be_written() -> None:
    prepare = ""
    if os.getuid() == 0:  # root may write anywhere: the process becomes another user when it has read its modules
        prepare = """
import json, logging
from polyconv import cache
from polyconv.kernels import objects
cache.use_folder(None)
layer()(image())
objects.generator()
cache._folder.clear()
objects._loaded.clear()
objects.EVENTS.compiled = 0
os.setuid(12345)
"""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "cache"
        folder.mkdir(mode=0o500)
        if prepare:
            Path(parent).chmod(0o711)
            os.chown(folder, 12345, 12345)
        found = json.loads(run(prepare + SCRIPT, folder))
        assert list(folder.iterdir()) == []
    assert found["sum"] == right_sum()
    assert found["compiled"] > 0
    assert len(found["heard"]) == 1
    assert "cannot be written" in found["heard"][0]


def test_several_processes_start_at_once_on_an_empty_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    processes = [start(SCRIPT, folder) for _ in range(4)]
    for process in processes:
        status, out, err = finish(process)
        assert status == 0, err
        found = json.loads(out)
        assert found["sum"] == right_sum()
        assert found["heard"] == []
    assert not list(folder.glob("*.part"))
    assert compute(folder)["compiled"] == 0


@POSIX
def test_a_process_killed_while_it_writes(warm: Path, tmp_path: Path) -> None:
    """What it left is no object: the next process is not troubled, and in time somebody removes it."""
    folder = tmp_path / "cache"
    code = "import os, signal\nimport pathlib\npathlib.Path.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
    status, _, _ = finish(start(code + SCRIPT, folder))
    assert status == -signal.SIGKILL
    (part,) = folder.iterdir()
    assert part.suffix == ".part"
    assert compute(folder)["heard"] == []
    assert part.exists()  # it may be another process's, still at work
    hours_ago = time.time() - 2 * 3600
    os.utime(part, (hours_ago, hours_ago))
    objects_in(folder)[0].unlink()
    run("from polyconv import cache\ncache._untrimmed = cache._TRIM_BYTES\n" + SCRIPT, folder)  # its turn to look
    assert not part.exists()


def test_memory_only(tmp_path: Path) -> None:
    """``use_folder(None)`` holds, whatever the setting says."""
    code = "from polyconv import cache\ncache.use_folder(None)\n"
    found = json.loads(run(code + SCRIPT, tmp_path / "cache"))
    assert found["compiled"] > 0
    assert not (tmp_path / "cache").exists()
