"""Runs this checkout on an emulated 64-bit ARM: an arm64 Debian in a folder, under qemu's user-mode emulation.

``python3 tools/aarch64.py --help`` says how.  The Debian is unpacked, never installed, so it takes no privileges; its
programs see this system's files and run on its kernel.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from environment import ROOT

HELP = """\
Runs this checkout on an emulated 64-bit ARM.

commands:
  fuzz N [-- WORD...]   N random problems against the oracle; a later call for the same code, words and settings goes on
  tests [-- WORD...]    pytest: kernels, calls and threads, or what the words say
  python -- WORD...     any command of Python
  root                  nothing more than what the others need first

Words after -- go on as they are:
  python3 tools/aarch64.py fuzz 500 -- --seed 7 --algorithm direct
  python3 tools/aarch64.py tests -- tests/properties -k fft
  python3 tools/aarch64.py python -- -m polyconv.cli info

Variables go on too: POLYCONV_CHECK=1 checks the bounds of every access.  The first call unpacks an arm64 Debian with
Python and wheels for it (600 MB, a minute or two) in a folder beside the system; one that was interrupted goes on.

It takes qemu-aarch64-static (apt-get install qemu-user-static), Debian or one of its kin for apt-get and dpkg-deb,
and a Python with pip.  Packages come from where apt-get and pip of this system take theirs.
"""

PACKAGES = ("python3", "libstdc++6")
EXTRAS = ("cli", "test")
PLATFORMS = [*(f"manylinux_2_{minor}_aarch64" for minor in range(35, 16, -1)), "manylinux2014_aarch64"]
"""Wheels that fit: Debian 12 has glibc 2.36."""

TESTS = (
    "tests/kernels/test_moves.py", "tests/kernels/test_mathfn.py", "tests/runtime/test_float_environment.py",
    "tests/runtime/test_call_entry.py", "tests/runtime/test_pool.py",
    "--deselect", "tests/runtime/test_call_entry.py::test_calls_and_layers_leave_no_memory_behind",
)  # fmt: skip
"""Kernels, the call entry and the pool at work; what the other tests of kernels compile comes out the same on any
machine, and the test left out measures the memory of the process, most of which is the emulator's."""


def main(arguments: Sequence[str]) -> int:
    """Run a command; its exit status."""
    own, words = divided(arguments)
    given = _parser().parse_args(own)
    if given.command == "python" and not words:
        sys.exit("python needs words after --, such as:  python -- -m polyconv.cli info")
    folder = given.folder.expanduser().resolve()
    python = emulated_python(folder, emulator())
    if given.command == "root":
        print(f"{python} is ready")
        return 0
    if given.command == "fuzz":
        state = folder / "fuzz" / state_name(words)
        state.parent.mkdir(exist_ok=True)
        words = ["-m", "polyconv.conformance.fuzz", "--count", str(given.count), "--resume", str(state), *words]
    elif given.command == "tests":
        words = ["-m", "pytest", "-p", "no:cacheprovider", "--timeout", "3600", *(words or TESTS)]
    begin = time.monotonic()
    status = subprocess.run([python, *words], cwd=ROOT, env=_variables(folder), check=False).returncode
    print(f"{time.monotonic() - begin:.0f} s, exit status {status}")
    return status


def divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words before the first ``--``, and those after it."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:at]), list(arguments[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 tools/aarch64.py", usage="%(prog)s [--folder FOLDER] COMMAND [-- WORD...]", description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--folder", type=Path, default=Path("~/.cache/polyconv-aarch64"),
        help="where the Debian, compiled kernels and the states of fuzzes lie (%(default)s)",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, prog=parser.prog, help=argparse.SUPPRESS)
    commands.add_parser("fuzz").add_argument("count", type=_positive, metavar="N")
    for name in ("tests", "python", "root"):
        commands.add_parser(name)
    return parser


def _positive(word: str) -> int:
    if not word.isdecimal() or int(word) == 0:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of problems, at least 1")
    return int(word)


def state_name(words: Sequence[str]) -> str:
    """Where a fuzz keeps its state, which belongs to its words, to the settings and to this code."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("POLYCONV_"))
    total = hashlib.sha256(shlex.join([*words, *settings]).encode())
    for file in sorted((ROOT / "src").rglob("*.py")):
        total.update(file.read_bytes())
    return f"{total.hexdigest()[:16]}.json"


def emulator() -> str:
    """Path of qemu."""
    if platform.machine() in ("aarch64", "arm64"):
        sys.exit("this machine is a 64-bit ARM: python3 tools/test.py runs the tests on it")
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if found is None:
        sys.exit("qemu-aarch64-static is missing; install it with  apt-get install qemu-user-static")
    return found


def emulated_python(folder: Path, qemu: str) -> Path:
    """Make what is not there yet in a folder; a script that runs its Python.

    A script, for it is what ``sys.executable`` names: the kernel cannot run a program of another architecture, so
    Python could not start itself.
    """
    root = folder / "arm64-debian"
    _once(root, " ".join(PACKAGES), lambda: _unpack(folder, root))
    python = (root / "usr/bin/python3").resolve()  # python3.11
    wheels = root / f"usr/local/lib/{python.name}/dist-packages"
    wanted = requirements()
    _once(wheels, "\n".join(wanted), lambda: _install(wanted, python.name.removeprefix("python"), wheels))
    script = python.with_name("python-emulated")
    words = shlex.join([qemu, "-L", str(root)])
    script.write_text(f'#!/bin/sh\nexec {words} -0 "$0" {shlex.quote(str(python))} "$@"\n')
    script.chmod(0o755)
    return script


def _once(place: Path, wanted: str, make: Callable[[], None]) -> None:
    """Make a folder, unless it was finished with the same wishes."""
    done = place.with_name(place.name + ".done")
    if not done.exists() or done.read_text() != wanted:
        done.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        make()
        done.write_text(wanted)


def _unpack(folder: Path, root: Path) -> None:
    """An arm64 Debian, as far as Python needs it; apt-get keeps what it downloads in the folder."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: this needs Debian or one of its kin")
    apt = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "status").write_text("")  # nothing is installed: everything is downloaded
    options = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::State": apt, "Dir::State::lists": "lists",
        "Dir::State::status": apt / "status", "Dir::Cache": apt, "Debug::NoLocking": "1", "Acquire::Languages": "none",
        "APT::Sandbox::User": "",
    }  # fmt: skip
    command = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    _step("lists of arm64 packages", [*command, "update"])
    _step("packages", [*command, "--yes", "--download-only", "--no-install-recommends", "install", *PACKAGES])
    packages = sorted((apt / "archives").glob("*.deb"))
    _step("unpacking", *(["dpkg-deb", "--extract", package, root] for package in packages))


def requirements() -> list[str]:
    """What polyconv and its tests import, less the other engines."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for name in EXTRAS for line in project["optional-dependencies"][name]]
    return [line for line in (*project["dependencies"], *extras) if not line.startswith("polyconv")]


def _install(wanted: list[str], version: str, place: Path) -> None:
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        sys.exit(f"{sys.executable} has no pip; run this with one that has, such as .venv/bin/python")
    wheels = ["--only-binary=:all:", "--implementation", "cp", "--python-version", version]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    quiet = ["--no-compile", "--no-warn-conflicts", "--disable-pip-version-check"]
    pip: list[str | Path] = [sys.executable, "-m", "pip", "install", *wheels, *platforms, *quiet]
    _step("wheels", [*pip, "--target", place, *wanted])


def _step(name: str, *commands: Sequence[str | Path]) -> None:
    print(f"== {name}", flush=True)
    for command in commands:
        status = subprocess.run(command, check=False).returncode
        if status:
            sys.exit(f"exit status {status}, and what it printed above says why:  {shlex.join(map(str, command))}")


def _variables(folder: Path) -> dict[str, str]:
    """Those of the caller, and what the emulated process needs: the checkout, a cache of its own, time."""
    own = {"PYTHONPATH": str(ROOT / "src"), "POLYCONV_CACHE_DIR": str(folder / "kernels"),
           "POLYCONV_TEST_PATIENCE": "10"}  # fmt: skip
    return {**os.environ, **own}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
