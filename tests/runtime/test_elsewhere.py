"""Functions in helper processes: results and errors as here, no helper that stays, and none where there can be none."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from fresh import run

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="elsewhere everything runs here"
)

BEGIN = """
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from polyconv.elsewhere import elsewhere, _idle, _is_possible
"""


def test_kernels_are_compiled_without_loading_llvm(tmp_path: Path) -> None:
    found = run("layer()(image()); print('llvmlite.binding' in sys.modules)", tmp_path)
    assert found.strip() == "False"


def test_a_setting_keeps_them_here(tmp_path: Path) -> None:
    code = "os.environ['POLYCONV_HELPERS'] = '0'; layer()(image()); print('llvmlite.binding' in sys.modules)"
    assert run(f"import sys; {code}", tmp_path).strip() == "True"


def test_answers_and_errors_come_back_and_helpers_are_used_again() -> None:
    run(
        BEGIN
        + """
there = elsewhere(os.getpid)
assert there != os.getpid()
try:
    elsewhere(divmod, 1, 0)
except ZeroDivisionError:
    pass
assert elsewhere(os.getpid) == there
assert elsewhere(bytes, 1 << 20) == bytes(1 << 20)
"""
    )


def test_threads_have_helpers_of_their_own_and_not_too_many() -> None:
    run(
        BEGIN
        + """
with ThreadPoolExecutor(12) as pool:
    list(pool.map(lambda _: elsewhere(time.sleep, 0.2), range(12)))
assert 1 < len(_idle) <= 8
"""
    )


def test_helpers_leave_when_there_is_nothing_to_do() -> None:
    run(
        BEGIN
        + """
there = elsewhere(os.getpid)
end = time.monotonic() + 60 * patience
while Path(f"/proc/{there}").exists() and time.monotonic() < end:
    time.sleep(0.1)
assert not Path(f"/proc/{there}").exists()  # nor is it a zombie
assert elsewhere(os.getpid) not in (there, os.getpid())
"""
    )


def test_a_helper_that_dies_is_an_error_and_the_next_call_has_another() -> None:
    run(
        BEGIN
        + """
try:
    elsewhere(os.abort)
except RuntimeError as error:
    assert "signal 6 in abort" in str(error), error
else:
    raise AssertionError
assert elsewhere(len, "abc") == 3
"""
    )


def test_an_interrupted_call_leaves_no_answer_behind() -> None:
    run(
        BEGIN
        + """
def stop(*given):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
elsewhere(len, "")
signal.setitimer(signal.ITIMER_REAL, 0.3)
begin = time.monotonic()
try:
    elsewhere(time.sleep, 100)
except KeyboardInterrupt:
    pass
assert time.monotonic() - begin < 50
assert elsewhere(len, "abc") == 3
"""
    )


def test_a_fork_leaves_helpers_to_the_parent() -> None:
    run(
        BEGIN
        + """
there = elsewhere(os.getpid)
child = os.fork()
if not child:
    os._exit(0 if elsewhere(os.getpid) not in (there, os.getpid()) else 1)
assert os.waitpid(child, 0)[1] == 0
assert elsewhere(len, "abc") == 3
"""
    )


@pytest.mark.parametrize("name", ["python-broken", "program", "python-absent"])
def test_where_there_can_be_no_helper_it_runs_here(name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    if name != "python-absent":
        program.write_text("#!/bin/sh\nexit 3\n")
        program.chmod(0o755)
    run(
        f"import sys; sys.executable = {str(program)!r}\n"
        + BEGIN
        + "assert elsewhere(os.getpid) == os.getpid()\nassert not _is_possible[0]"
    )
