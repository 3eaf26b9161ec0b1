"""Files of the object cache in this process: whose they are, which go first, what their names depend on."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polyconv import cache, target
from polyconv.kernels import objects
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Signature
from polyconv.target import host_target


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of our own, in use."""
    before = cache.cache_folder() if cache.has_folder() else ...
    cache.use_folder(tmp_path)
    tmp_path.chmod(0o700)
    yield tmp_path
    cache._folder[:] = [] if before is ... else [before]


FOREIGN = (
    "main.o",
    "notes.txt",
    "f" * 63 + ".o",
    "g" * 64 + ".o",
    "a" * 64 + ".obj",
    "tmp1234.part",
    "b" * 64 + ".o.bak",
)


def test_clearing_touches_only_files_of_our_own(folder: Path) -> None:
    for name in FOREIGN:
        (folder / name).write_bytes(b"somebody's")
    ours = [folder / f"{digit * 64}.o" for digit in "0a9"]
    for file in ours:
        file.write_bytes(b"ours")
    assert cache.clear_cache() == 3
    assert sorted(file.name for file in folder.iterdir()) == sorted(FOREIGN)
    assert cache.clear_cache() == 0


def test_the_oldest_go_when_there_are_too_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_BYTES", 3500)
    for name in FOREIGN:
        (folder / name).write_bytes(bytes(5000))
    for age, digit in enumerate("3a0f7"):  # oldest last
        file = folder / f"{digit * 64}.o"
        file.write_bytes(bytes(1000))
        os.utime(file, (time.time() - age, time.time() - age))
    cache._trim(folder)
    assert sorted(file.name for file in folder.iterdir()) == sorted([*FOREIGN, *(f"{d * 64}.o" for d in "3a0")])


def test_runs_of_networks_drive_out_no_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_BYTES", 3500)
    monkeypatch.setattr(cache, "_MOST_LARGE", 3500)
    names = [f"{'0' * 64}.o", f"{'1' * 64}.plans", *(f"{digit * 64}.runs" for digit in "23456")]
    for number, name in enumerate(names):  # oldest first
        (folder / name).write_bytes(bytes(1000))
        os.utime(folder / name, (time.time() - 100 + number, time.time() - 100 + number))
    cache._trim(folder)
    assert sorted(file.name for file in folder.iterdir()) == sorted([*names[:2], *names[4:]])


def test_what_could_not_be_read_again_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST_BYTES", 3500)
    for size in (3450, 3451):  # with a head of 50 bytes
        cache.write(folder / f"{size:064x}.o", bytes(size))
    assert [cache.read(file) for file in folder.iterdir()] == [bytes(3450)]


def _long(extra: int) -> bytes:
    """A payload of some megabytes and so many bytes, of which each block is another one."""
    return np.random.default_rng(1).integers(0, 256, (3 << 20) + extra, np.uint8).tobytes()


@pytest.mark.parametrize("extra", [0, 1, 4095, 4096, -1])
@pytest.mark.parametrize("cuts", [(), (1,), (5, 4096, 70_000, 1 << 20, (1 << 20) + 1, 3_000_000)], ids=str)
def test_long_payloads_come_back_however_they_are_cut(folder: Path, extra: int, cuts: tuple[int, ...]) -> None:
    whole, ends = _long(extra), [*cuts, (3 << 20) + extra]
    pieces = [memoryview(whole)[begin:end] for begin, end in zip([0, *cuts], ends, strict=True)]
    one, other = folder / f"{1:064x}.o", folder / f"{2:064x}.o"
    cache.write(one, whole)
    cache.write(other, *pieces, b"")
    assert cache.read(one) == whole
    assert one.read_bytes() == other.read_bytes()


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda data: data[:70_001] + bytes([data[70_001] ^ 1]) + data[70_002:],
    "a bit of the last bytes": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "a block of zeros": lambda data: data[: 1 << 20] + bytes(4096) + data[(1 << 20) + 4096 :],
    "blocks that changed places": lambda data: data[4096:8192] + data[:4096] + data[8192:],
    "a block that is lost": lambda data: data[:4096] + data[8192:],
    "a byte more": lambda data: data + b"\0",
    "a byte less": lambda data: data[:-1],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_long_payload_that_changed_is_not_read(folder: Path, change: str) -> None:
    whole, file = _long(100), folder / f"{1:064x}.runs"
    cache.write(file, whole)
    kept = file.read_bytes()
    head = len(kept) - len(whole)
    assert cache.read(file) == whole
    file.write_bytes(kept[:head] + CHANGES[change](kept[head:]))
    assert cache.read(file) is None


def test_the_folder_is_looked_through_once_for_so_many_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(cache, "_trim", looked.append)
    monkeypatch.setattr(cache, "_TRIM_BYTES", 5000)
    monkeypatch.setattr(cache, "_untrimmed", 0)
    for number in range(10):  # with a head of 50 bytes each
        cache.write(folder / f"{number:064x}.o", bytes(1100))
    assert looked == [folder, folder]
    assert len(list(folder.glob("*.o"))) == 10


class Nothing(Signature):
    """No arguments."""


def test_the_key_has_all_that_shapes_the_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, source of the generator, LLVM and target: another one of any is another object."""

    def build(k: Module) -> None:
        with k.function("nothing", Nothing):
            pass

    def objects_after(name: str) -> int:
        objects._loaded.clear()
        objects.kernel(name, {"nothing": Nothing}, build, host_target())
        return len(list(folder.glob("*.o")))

    monkeypatch.setattr(objects, "_loaded", {})
    assert objects_after("one") == 1
    assert objects_after("one") == 1
    assert objects_after("two") == 2
    monkeypatch.setattr(objects, "generator", lambda: "another")
    assert objects_after("one") == 3
    monkeypatch.setattr(objects, "llvm_version", lambda: "0.0.0")
    assert objects_after("one") == 4


def test_the_fingerprint_of_the_generator_is_that_of_its_text(tmp_path: Path) -> None:
    """A copy of the package with other file times has the same one; a changed letter makes another."""
    package = Path(objects.__file__).parents[1]
    code = "from polyconv.kernels.objects import generator; print(generator())"

    def fingerprint(root: Path) -> str:
        found = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(root)},
                               capture_output=True, text=True, check=True)  # fmt: skip
        return found.stdout.strip()

    copy = shutil.copytree(package, tmp_path / "polyconv", copy_function=shutil.copyfile)
    assert fingerprint(tmp_path) == fingerprint(package.parent)
    source = copy / "kernels" / "tile.py"
    times = source.stat()
    source.write_text(source.read_text().replace("ROW_WORDS = 16", "ROW_WORDS = 32"))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fingerprint(tmp_path) != fingerprint(package.parent)


def test_each_kind_of_trouble_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_warned", set())
    with caplog.at_level(logging.WARNING, "polyconv"):
        for name in ("a", "b", "c"):
            (folder / name).write_bytes(b"damaged")
            (folder / name).chmod(0o600)
            assert cache.read(folder / name) is None
    assert len(caplog.records) == 1


def test_what_llvm_says_of_the_processor_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process finds what the first one did, and another processor is another file."""
    ask = target.host_target.__wrapped__
    found = target._found_by_llvm()
    assert ask() == found
    if target._processor() is None:
        return
    assert len(list(folder.glob("*.cpu"))) == 1
    with monkeypatch.context() as patch:
        patch.setattr(target, "_found_by_llvm", lambda: pytest.fail("it was asked again"))
        assert ask() == found
    other = replace(found, cpu="another")
    monkeypatch.setattr(target, "_found_by_llvm", lambda: other)
    monkeypatch.setattr(target, "_processor", lambda: "another")
    assert ask() == other
    assert len(list(folder.glob("*.cpu"))) == 2
